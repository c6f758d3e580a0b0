"""`Estimator`: what all estimators share, whether or not they move particles.

`fit` reads the rows, plans a `PlannedFit` of them, runs it and stores the model. An
estimator keeps its rows in memory: if rows are added or removed later, it fits all rows
that it then has, with the same seed. The module `flow_estimator` has what only flows of
particles share.
"""

from __future__ import annotations

import copy
import math
import os
from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import fields, is_dataclass, replace
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from sklearn.utils.validation import check_is_fitted

from sliceflow.base.prepared_fit import PreparedFit, copied_parameters
from sliceflow.base.protocols import (
    FitPlanner,
    FitResult,
    FittedModel,
    FittedModelT,
    Options,
    ParticleResult,
    PlannedFit,
    PlanT,
    RowsT,
    StorableModel,
)
from sliceflow.base.ranks import ONE_PROCESS, Communicator
from sliceflow.base.removal import remove_rows
from sliceflow.base.saving import FitRecord, SavedHistory, StorableHistory, save
from sliceflow.devices import require_memory
from sliceflow.engine.events import (
    ClosableListener,
    EventT,
    HistoryColumns,
    Listeners,
    Progress,
)
from sliceflow.engine.random import RandomStateLike, Seed
from sliceflow.errors import HintedError, warn_user
from sliceflow.validation import as_callables, require

if TYPE_CHECKING:
    import torch

    class BaseEstimator:
        """The part of scikit-learn's class that is used here, with types.

        The class itself has no types: for mypy it is `Any`, as which it would let every
        misspelt attribute of an estimator pass.
        """

        def get_params(self, deep: bool = True) -> dict[str, Any]: ...

        def set_params(self, **parameters: Any) -> Self: ...

        def __getstate__(self) -> dict[str, Any]: ...

        def __sklearn_tags__(self) -> Any: ...
else:
    from sklearn.base import BaseEstimator

__all__ = ["Estimator", "FitResult", "NoRowsError"]

# `score` draws at least this many samples, so that its own noise is small where there
# are few rows. More would take longer.
_MIN_SCORED = 2_000
# How scikit-learn names a field of the parameter `options`.
_OPTION_PREFIX = "options__"


OptionsT = TypeVar("OptionsT", bound=Options)


def draws_per_scored_row(n: int) -> int:
    """How many samples `score` draws for each of n rows."""
    return math.ceil(_MIN_SCORED / n)


def require_sample_memory(model: FittedModel, n: int, device: torch.device) -> None:
    """Raise a `NotEnoughMemoryError` if n samples do not fit into memory."""
    nbytes = model.sample_bytes(n)
    require_memory(nbytes, device, f"n={n} samples need", "draw fewer at a time")


class NoRowsError(HintedError, ValueError):
    """Rows cannot be added or removed, because the model does not have its rows."""


class Estimator(BaseEstimator, ABC, Generic[RowsT, FittedModelT, EventT, PlanT]):
    """Base class of all estimators: parameters, plans, progress, files, kept rows.

    A subclass has a constructor, whose parameters include `random_state` and `verbose`,
    documentation, a method `sample`, and provides (`base.protocols` has the types):

    - `_saved_types`: the dataclasses of its saved model, which may be a union, and of
      its rows. A file holds objects of these dataclasses.
    - `_history_type`: the dataclass in which a file holds the history, with a method
      `as_columns()` that gives the dict of lists back.
    - `_fit_planner(like_fitted)`: checks the parameters and returns a `FitPlanner`. Its
      `read(X, y)` gives the user's `Rows`, checked, and its `plan_fit(rows, seed)` a
      `PlannedFit`.
    - A `PlannedFit` has a `plan`, which users print, and `run(listeners)`, which does
      the work and returns a `FitResult`.
    - `_set_fitted(record, particles)` may be extended to set further attributes.
    - A file holds the fitted model itself. If it shall hold something else,
      `_storable_model(model)` gives that, and `_restore_model(saved, rows)` makes the
      fitted model of it.

    ``save_rows=True``, where there is this parameter, writes the rows to the file.
    Otherwise they are written only if sampling needs them. A pickle has the rows if a
    file has them; a copy, also a deep one, always has them.
    """

    _saved_types: tuple[type[StorableModel] | UnionType, type[RowsT]]
    _history_type: type[StorableHistory] = SavedHistory
    _options_type: type[Options] | None = None  # of the parameter `options`
    # Parameters that every subclass has; its constructor sets them.
    random_state: RandomStateLike
    verbose: int
    # Only some subclasses have this parameter; other subclasses write no rows to files.
    save_rows: bool = False
    # Set by a fit.
    _record: FitRecord[RowsT, FittedModelT]
    plan_: PlanT
    history_: HistoryColumns
    n_iter_: int
    # All rows, if some were added or removed since the last fit.
    _pending_rows: RowsT | None = None

    @abstractmethod
    def _fit_planner(
        self, like_fitted: bool = False
    ) -> FitPlanner[RowsT, FittedModelT, EventT, PlanT]:
        """The planner that reads rows and plans their fit, for the current parameters.

        With `like_fitted`, rows must be of the kind that the model was fitted to.
        """

    # Parameters

    def _require_valid_parameters(self) -> None:
        """Raise a `ParameterError` for an invalid parameter: every planner does."""
        self._fit_planner()

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters; if `deep`, also the fields of `options`, as options__NAME."""
        parameters: dict[str, Any] = super().get_params(deep=deep)
        if not deep or self._options_type is None:
            return parameters
        options = self._options_or_defaults(self._options_type)
        if is_dataclass(options):  # else `fit` refuses them
            for field in fields(options):
                parameters[_OPTION_PREFIX + field.name] = getattr(options, field.name)
        return parameters

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters; ``options__NAME=value`` changes one field of `options`."""
        if self._options_type is None:
            return super().set_params(**parameters)
        option_names = {field.name for field in fields(self._options_type)}
        changes = {}
        for name in [name for name in parameters if name.startswith(_OPTION_PREFIX)]:
            option = name.removeprefix(_OPTION_PREFIX)
            if option not in option_names:
                fact = f"Invalid parameter {name!r} for {type(self).__name__}"
                raise ValueError(f"{fact}; options have {sorted(option_names)}")
            changes[option] = parameters.pop(name)
        super().set_params(**parameters)
        if changes:
            options = self._options_or_defaults(self._options_type)
            is_options = isinstance(options, self._options_type)
            requirement = f"None or a sliceflow.{self._options_type.__name__}"
            require(is_options, "options", options, requirement)
            super().set_params(options=replace(options, **changes))
        return self

    def _options_or_defaults(self, options_type: type[OptionsT]) -> OptionsT:
        """The parameter `options`, or the defaults of its type if it is None."""
        options: OptionsT | None = vars(self)["options"]
        if options is None:
            return options_type()
        return options

    # Fitting

    def fit(self, X: Any, y: Any = None, *, listeners: Listeners[EventT] = ()) -> Self:
        """Fit the rows of X.

        Parameters
        ----------
        X : rows
            Of the kinds that the class lists, or what `prepare` returned.
        y : conditions of the rows or None, default None
            Of the kinds that the class lists.
        listeners : callable or tuple of callables, default ()
            Each takes an event after every step. If the fit chooses settings by trials,
            there may be events of trials, too.

        Returns
        -------
        self : the fitted estimator
        """
        planned_fit = self._read_and_plan(X, y)
        is_prepared = isinstance(X, PreparedFit)
        return self._run_fit(planned_fit, listeners, may_keep_rows=is_prepared)

    def _read_and_plan(
        self, X: Any, y: Any, *, copies_rows: bool = False
    ) -> PlannedFit[RowsT, FittedModelT, EventT, PlanT]:
        """The planned fit of the user's X and y; `prepare` may have planned it."""
        if isinstance(X, PreparedFit):
            return X.planned_fit_for(self, y)
        planner = self._fit_planner()
        rows = planner.read(X, y)
        if copies_rows:
            rows = rows.copy()
        return planner.plan_fit(rows, Seed.from_random_state(self.random_state))

    def _run_fit(
        self,
        planned_fit: PlannedFit[RowsT, FittedModelT, EventT, PlanT],
        listeners: Listeners[EventT],
        *,
        ranks: Communicator = ONE_PROCESS,
        may_keep_rows: bool = False,
    ) -> Self:
        """Run a fit, and store its model. Every `fit` ends here.

        Parameters
        ----------
        planned_fit : the planned fit
        listeners : the user's listeners
        ranks : the ranks that take part in the fit
        may_keep_rows : whether the rows need no copy, because no other code changes
            them
        """
        all_listeners = list(as_callables(listeners, "listeners"))
        if self.verbose and ranks.is_main:
            all_listeners.append(Progress())
        with ExitStack() as at_the_end:
            for listener in all_listeners:
                if isinstance(listener, ClosableListener):
                    at_the_end.callback(listener.close)
            result = planned_fit.run(all_listeners)
        # With several ranks, no process has all rows, so none can refit them.
        rows = None
        if ranks.size == 1:
            rows = planned_fit.rows if may_keep_rows else planned_fit.rows.copy()
        # Attributes are set last, so that a fit that fails leaves the old model
        # unchanged.
        record = FitRecord(planned_fit.seed, result.model, result.history, rows)
        self._set_fitted(record, result.particles)
        if result.warning is not None:
            warn_user(result.warning)
        return self

    def prepare(
        self, X: Any, y: Any = None
    ) -> PreparedFit[PlannedFit[RowsT, FittedModelT, EventT, PlanT]]:
        """Read and plan the rows. `fit` takes the result instead of X and y.

        Parameters
        ----------
        X : rows
            As in `fit`. What `prepare` returned before is not planned again.
        y : conditions of the rows or None, default None
            As in `fit`.

        Returns
        -------
        prepared : PreparedFit
            Its `plan` says what the fit will do, with the parameters that the estimator
            has now. It holds a copy of the rows, which takes as much memory as X.
        """
        planned_fit = self._read_and_plan(X, y, copies_rows=True)
        return PreparedFit(self, copied_parameters(self), planned_fit)

    def plan(self, X: Any, y: Any = None) -> PlanT:
        """What ``fit(X, y)`` would do, its memory and its time. Print it.

        A plan runs no trial. A setting that takes a trial, such as how far rows of
        vectors are spread, is "auto" in the plan; `plan_` has what the fit has chosen.
        A plan of pictures copies them to the device, and may divide them into clusters.

        Parameters
        ----------
        X : rows
            As in `fit`.
        y : conditions of the rows or None, default None
            As in `fit`.

        Returns
        -------
        plan : FitPlan

        Examples
        --------
        >>> import numpy as np
        >>> from sliceflow import SlicedWassersteinFlow
        >>> X = np.random.default_rng(0).normal(size=(300, 2))
        >>> SlicedWassersteinFlow(n_steps=50).plan(X).n_particles
        10200
        """
        if isinstance(X, PreparedFit):
            return X.planned_fit_for(self, y).plan
        planner = self._fit_planner()
        return planner.plan_fit(planner.read(X, y), self._seed_copy()).plan

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        *,
        refit: bool = True,
        listeners: Listeners[EventT] = (),
    ) -> Self:
        """Add rows, then fit all rows again with the same seed.

        The result is the model of one fit to all rows in the order in which they came,
        bit for bit. If anything fails or is interrupted, the model stays as it was.

        This works after any fit: an estimator has its rows in memory. A file or a
        pickle has them only with ``save_rows=True``.

        Parameters
        ----------
        X : rows
            The new rows, of the kinds that the class lists.
        y : conditions of the rows or None, default None
            As in `fit`.
        refit : bool, default True
            Whether to fit now. With False, the model stays as it is until the method
            `refit` is called. Before that, `save` is an error, and so is a pickle that
            would not have the rows.
        listeners : callable or tuple of callables, default ()
            As in `fit`.

        Returns
        -------
        self : the estimator

        Raises
        ------
        NoRowsError
            If the model does not have its rows.

        Examples
        --------
        >>> import numpy as np
        >>> from sliceflow import SlicedWassersteinFlow
        >>> X = np.random.default_rng(0).normal(size=(200, 2))
        >>> flow = SlicedWassersteinFlow(n_particles=200, n_steps=3, random_state=0)
        >>> first = flow.fit(X[:100]).sample(5, random_state=0)
        >>> both = flow.partial_fit(X[100:]).sample(5, random_state=0)
        >>> at_once = flow.fit(X).sample(5, random_state=0)
        >>> bool((both == at_once).all()), bool((both == first).all())
        (True, False)
        """
        current_rows = self._current_rows()
        planner = self._fit_planner(like_fitted=current_rows is not None)
        new_rows = planner.read(X, y)
        if current_rows is None:
            rows = new_rows.copy()
        else:
            rows = current_rows.concatenate(new_rows)
        return self._replace_rows(planner, rows, refit, listeners)

    def forget(
        self,
        X: Any,
        y: Any = None,
        *,
        refit: bool = True,
        listeners: Listeners[EventT] = (),
    ) -> Self:
        """Remove rows, then fit the remaining rows again with the same seed.

        The result is the model that never saw the removed rows, bit for bit.

        Parameters
        ----------
        X : rows
            The rows to remove, as they were fitted. Of equal rows, the last is removed
            first.
        y : conditions of the rows or None, default None
            As they were fitted.
        refit : bool, default True
            Whether to fit now, as in `partial_fit`.
        listeners : callable or tuple of callables, default ()
            As in `fit`.

        Returns
        -------
        self : the estimator

        Raises
        ------
        NoRowsError
            If the model does not have its rows.
        DataError
            If a row is not one of the model's rows, or if none would be left.

        Examples
        --------
        >>> import numpy as np
        >>> from sliceflow import SlicedWassersteinFlow
        >>> X = np.random.default_rng(0).normal(size=(200, 2))
        >>> flow = SlicedWassersteinFlow(n_particles=200, n_steps=3, random_state=0)
        >>> forgotten = flow.fit(X).forget(X[100:]).sample(5, random_state=0)
        >>> never_seen = flow.fit(X[:100]).sample(5, random_state=0)
        >>> bool((forgotten == never_seen).all())
        True
        """
        current_rows = self._required_rows()
        planner = self._fit_planner(like_fitted=True)
        rows = remove_rows(current_rows, planner.read(X, y))
        return self._replace_rows(planner, rows, refit, listeners)

    def refit(self, *, listeners: Listeners[EventT] = ()) -> Self:
        """Fit all rows again, with the same seed and the current parameters.

        These include rows that were added or removed with ``refit=False``.

        Parameters
        ----------
        listeners : callable or tuple of callables, default ()
            As in `fit`.

        Returns
        -------
        self : the estimator
        """
        return self._replace_rows(
            self._fit_planner(), self._required_rows(), True, listeners
        )

    def _replace_rows(
        self,
        planner: FitPlanner[RowsT, FittedModelT, EventT, PlanT],
        rows: RowsT,
        refit: bool,
        listeners: Listeners[EventT],
    ) -> Self:
        """Fit these rows with the model's seed, or keep them for a later `refit`.

        Parameters
        ----------
        planner : the planner that has read the rows; it plans their fit
        rows : all rows that the model shall have; nobody else changes them
        refit : whether to fit now
        listeners : the listeners of the fit
        """
        require(isinstance(refit, bool), "refit", refit, "True or False")
        all_listeners = as_callables(listeners, "listeners")
        if not refit:
            self._pending_rows = rows
            return self
        if self._is_fitted:
            seed = self._record.seed
        else:
            seed = Seed.from_random_state(self.random_state)
        planned_fit = planner.plan_fit(rows, seed)
        return self._run_fit(planned_fit, all_listeners, may_keep_rows=True)

    # The model

    @property
    def _is_fitted(self) -> bool:
        return "_record" in vars(self)

    def _fitted_model(self) -> FittedModelT:
        """The fitted model; raises scikit-learn's NotFittedError before a fit."""
        check_is_fitted(self, "history_")
        return self._record.model

    def _set_fitted(
        self,
        record: FitRecord[RowsT, FittedModelT],
        particles: ParticleResult[Any] | None = None,
    ) -> None:
        """Set the fitted attributes to the results of a fit, or of a file.

        Fits and files both end here. Only flows have `particles`, and files may be
        without. A subclass extends this to set more attributes.
        """
        self.__dict__.pop("_pending_rows", None)
        self._record = record
        # The plan of a model is of the type with which its fit was planned.
        self.plan_ = cast(PlanT, record.model.plan)
        self.history_ = record.history
        self.n_iter_ = max(map(len, record.history.values()), default=0)

    def _storable_model(self, model: FittedModelT) -> StorableModel:
        """What a file holds of a fitted model: the model itself by default."""
        return model

    def _restore_model(self, saved: StorableModel, rows: RowsT | None) -> FittedModelT:
        """The fitted model of a file, made of its saved model and of its rows.

        A subclass overrides this if the saved model is not the complete fitted one: see
        `FittedModel.needs_rows`. Raises a ValueError if the rows do not fit.
        """
        # A file holds one of `_saved_types`, which most often is a fitted model.
        return cast(FittedModelT, saved)

    def _current_rows(self) -> RowsT | None:
        """The model's rows, with pending changes; None before the first fit."""
        if self._pending_rows is not None:
            return self._pending_rows
        if not self._is_fitted:
            return None
        if self._record.rows is not None:
            return self._record.rows
        n_ranks = self._record.model.plan.n_ranks
        if n_ranks > 1:
            reason = f"each of {n_ranks} ranks had its own"
            hint = "fit all rows again, in one process"
        else:
            reason = "its file, or pickle, was written without save_rows=True"
            hint = "fit all rows again, with save_rows=True"
        fact = f"this {type(self).__name__} does not have its rows: {reason}"
        raise NoRowsError(fact, hint)

    def _required_rows(self) -> RowsT:
        """The model's rows, with pending changes; a `NoRowsError` if there are none."""
        rows = self._current_rows()
        if rows is None:
            fact = "this estimator has no rows yet"
            raise NoRowsError(fact, "call fit or partial_fit first")
        return rows

    def _seed_copy(self) -> Seed:
        """The seed of the next fit, without advancing a generator of the user."""
        return Seed.from_random_state(copy.deepcopy(self.random_state))

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file, which `sliceflow.load` opens anywhere.

        The file may hold the rows: ``sliceflow info`` tells.

        Parameters
        ----------
        path : str or path
            The file. An existing file is replaced atomically and keeps its permissions.
            A symbolic link is followed. Folders, pipes and devices raise an error.
        """
        self._check_saveable()
        save(self, path)

    def _check_saveable(self) -> None:
        """Raise an error if `load` could not open a file of this estimator."""
        self._fitted_model()
        if not type(self).__module__.startswith("sliceflow."):
            name = type(self).__name__
            fact = f"{name} is a class of your own, which load does not know"
            raise ValueError(f"{fact}: pickle it, or fit a class of sliceflow")
        self._require_no_pending_rows("save")

    def _require_no_pending_rows(self, use: str) -> None:
        """Raise a ValueError if rows wait for a refit, which this use would lose."""
        if self._pending_rows is not None:
            fact = "rows were added or removed without a refit"
            raise ValueError(f"{fact}; call refit() before {use}")

    @property
    def _files_have_rows(self) -> bool:
        """Whether a file or a pickle holds the rows."""
        return self.save_rows or (self._is_fitted and self._record.model.needs_rows)

    def _rows_for_file(self) -> RowsT | None:
        """The rows, if a file or a pickle shall hold them."""
        return self._record.rows if self._files_have_rows else None

    def __copy__(self) -> Self:
        """A copy that shares the attributes, also the rows."""
        return self._with_attributes(vars(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy in memory. It has the rows, as any estimator in memory has."""
        return self._with_attributes(copy.deepcopy(vars(self), memo))

    def _with_attributes(self, attributes: dict[str, Any]) -> Self:
        """Another estimator of this class, with these attributes."""
        other = type(self).__new__(type(self))
        vars(other).update(attributes)
        return other

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickle, with rows only if a file would have them.

        Raises a ValueError if it would lose rows that wait for a refit.
        """
        if not self._files_have_rows:
            self._require_no_pending_rows("pickle")
        state = dict(super().__getstate__())
        if self._is_fitted:
            state["_record"] = replace(self._record, rows=self._rows_for_file())
        return state
