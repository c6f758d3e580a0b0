"""`Estimator`: what all estimators share, whether or not they move particles.

`fit` reads the user's rows, plans the fit, runs it and stores the model. Rows can be
added and forgotten later: the model keeps its rows, and fits what is left again with
the same seed. What is particular to flows of particles is in `flow_estimator`.
"""

from __future__ import annotations

import copy
import os
import warnings
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from sliceflow.engine import events
from sliceflow.engine.random import Seed
from sliceflow.errors import HintedError, require
from sliceflow.models.rows import without
from sliceflow.models.saving import Model, SavedHistory, save


class NoRowsError(HintedError, ValueError):
    """Rows are to be added or removed, but the model does not have its rows."""


class PreparedFit(NamedTuple):
    """Rows that were read, and what a fit will do with them; see `Estimator.prepare`."""

    estimator: Estimator
    adapter: Any
    rows: Any
    seed: Seed
    planned: Any  # what `adapter.plan` returned
    owns_rows: bool = False  # no other code changes these rows: they need no copy

    @property
    def plan(self) -> Any:
        """What the fit will do, with every "auto" resolved. Print it."""
        return self.planned.plan


@dataclass(frozen=True)
class FitResult:
    """What a fit of any kind gives."""

    fitted: Any  # the fitted state: what draws samples
    history: dict[str, list[Any]] = field(default_factory=dict)  # `history_`
    warning: Warning | None = None  # what the user should know about the result


class Estimator(BaseEstimator):  # type: ignore[misc]
    """Parameters, plans, progress, files, and rows that come and go.

    A subclass has a constructor, whose parameters include `random_state` and
    `verbose`, documentation, a method `sample`, and provides:

    - `_kinds`: the dataclasses of its plan, its fitted state and its rows. A file holds
      objects of these.
    - `_history_type`: the dataclass in which a file holds the history, with a method
      `columns()` that gives the dict of lists back.
    - `_adapter(like_fitted)`: checks the parameters and returns an object with
      `read(X, y)`, which gives the user's rows, checked, and `plan(rows, seed)`. With
      `like_fitted`, rows must be of the kind that the model was fitted to.
    - Rows have `append(rows)`, `take(numbers)`, `keys()` (equal for equal rows) and
      `len(rows)`.
    - What `plan` returns has a `plan`, which users print, and `run(listeners)`, which
      does the work and returns a `FitResult`.
    - The fitted state has its `plan`, `sample_bytes(n)` and `needs_rows`, which tells
      whether samples need the rows. Then they are in the model's file in any case.
    - `_store_model(model)` may be extended to set further attributes.
    """

    _kinds: tuple[type, type, type]
    _history_type: type = SavedHistory
    _model: Model
    _pending_rows: Any = None  # all rows, if some were added or removed since the fit

    def _adapter(self, like_fitted: bool = False) -> Any:
        """What reads rows and plans their fit, for today's parameters."""
        raise NotImplementedError

    # Fitting

    def fit(self, X: Any, y: Any = None, *, listeners: events.Listeners = ()) -> Self:
        """Fit the rows of X.

        Parameters
        ----------
        X, y : the rows and what belongs to them, of kinds that the class names; or X is
            what `prepare` returned
        listeners : a callable that takes an event after every step, or a tuple of them
        """
        prepared = self._as_prepared(X, y)
        heard = self._all_listeners(listeners)
        with events.closing(heard):
            result = prepared.planned.run(heard)
        # Attributes come last: a fit that fails leaves the old model unchanged.
        self._store_model(self._new_model(prepared, result))
        self._warn(result.warning, prepared)
        return self

    def prepare(self, X: Any, y: Any = None) -> PreparedFit:
        """Read and plan. `fit` takes the result in place of X and y; print its `plan`."""
        adapter = self._adapter()
        rows = adapter.read(X, y)
        seed = Seed.from_random_state(self.random_state)
        return PreparedFit(self, adapter, rows, seed, adapter.plan(rows, seed))

    def plan(self, X: Any, y: Any = None) -> Any:
        """What ``fit(X, y)`` would do, every "auto" resolved; fits nothing. Print it."""
        adapter = self._adapter()
        return adapter.plan(adapter.read(X, y), self._seed_copy()).plan

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        *,
        refresh: bool = True,
        listeners: events.Listeners = (),
    ) -> Self:
        """Add rows, then fit all rows again with the same seed.

        The result is the model of one fit to all rows in the order in which they came,
        bit for bit. If anything fails or is interrupted, the model stays as it was. With
        `refresh` False, the rows only wait for the next refresh.
        """
        known = self._known_rows()
        adapter = self._adapter(like_fitted=known is not None)
        new = adapter.read(X, y)
        rows = _copied(new) if known is None else known.append(new)
        return self._refit(adapter, rows, refresh, listeners)

    def forget(
        self,
        X: Any,
        y: Any = None,
        *,
        refresh: bool = True,
        listeners: events.Listeners = (),
    ) -> Self:
        """Remove rows, given with their y as they were fitted, and fit those that remain.

        The result is the model that never saw them, bit for bit. Of equal rows the last
        goes first; an unknown row is an error. If anything fails or is interrupted, the
        model stays as it was. With `refresh` False, the model is still that of all rows
        until the next refresh.
        """
        known = self._known_rows(needed=True)
        adapter = self._adapter(like_fitted=True)
        rows = without(known, adapter.read(X, y))
        return self._refit(adapter, rows, refresh, listeners)

    def refresh(self, *, listeners: events.Listeners = ()) -> Self:
        """Fit all rows of the model again: the same seed, today's parameters."""
        rows = self._known_rows(needed=True)
        return self._refit(self._adapter(), rows, True, listeners)

    def _refit(
        self, adapter: Any, rows: Any, refresh: bool, listeners: events.Listeners
    ) -> Self:
        """Fit these rows with the seed of the model, or store them for a later refresh."""
        require(isinstance(refresh, bool), "refresh", refresh, "True or False")
        events.as_listeners(listeners)  # checks them
        if not refresh:
            self._pending_rows = rows
            return self
        if self._is_fitted:
            seed = self._model.seed
        else:
            seed = Seed.from_random_state(self.random_state)
        planned = adapter.plan(rows, seed)
        prepared = PreparedFit(self, adapter, rows, seed, planned, owns_rows=True)
        return self.fit(prepared, listeners=listeners)

    def _as_prepared(self, X: Any, y: Any) -> PreparedFit:
        """X and y, read and planned, if X is not already what `prepare` returned."""
        if not isinstance(X, PreparedFit):
            return self.prepare(X, y)
        if X.estimator is not self or y is not None:
            raise ValueError("X was prepared: fit the estimator that did it, without y")
        return X

    def _all_listeners(self, listeners: events.Listeners) -> list[events.Listener]:
        """The user's listeners, and with `verbose` one that prints."""
        heard = list(events.as_listeners(listeners))
        if self.verbose:
            heard.append(events.Progress())
        return heard

    def _new_model(self, prepared: PreparedFit, result: FitResult) -> Model:
        rows = None
        if prepared.owns_rows:
            rows = prepared.rows
        elif getattr(self, "keep_rows", True) or result.fitted.needs_rows:
            rows = _copied(prepared.rows)
        return Model(prepared.seed, result.fitted, result.history, rows)

    def _warn(self, warning: Warning | None, prepared: PreparedFit) -> None:
        """Warn, if there is a warning, at the line where the user called."""
        if warning is not None:
            # This, `fit`, the user's call; or this, `fit`, `_refit`, `partial_fit`, …
            stacklevel = 5 if prepared.owns_rows else 3
            warnings.warn(warning, stacklevel=stacklevel)

    # The model

    @property
    def _is_fitted(self) -> bool:
        return "_model" in vars(self)

    def _fitted_state(self) -> Any:
        """The fitted state; raises scikit-learn's NotFittedError before a fit."""
        check_is_fitted(self, "history_")
        return self._model.fitted

    def _store_model(self, model: Model) -> None:
        """Replace the fitted attributes by those of a new model."""
        self.__dict__.pop("_pending_rows", None)
        self._model = model
        self.plan_ = model.fitted.plan
        self.history_ = model.history
        self.n_iter_ = max(map(len, model.history.values()))

    def _known_rows(self, needed: bool = False) -> Any:
        """The rows of the model, with pending changes.

        None before the first fit, if they are not `needed`.
        """
        if self._pending_rows is not None:
            return self._pending_rows
        if self._is_fitted:
            if self._model.rows is None:
                fact = f"this {type(self).__name__} does not keep its rows"
                hint = "fit it with keep_rows=True, or start a new one with partial_fit"
                raise NoRowsError(fact, hint)
            return self._model.rows
        if needed:
            fact = "this estimator has no rows yet"
            raise NoRowsError(fact, "call fit or partial_fit first")
        return None

    def _seed_copy(self) -> Seed:
        """The seed of the next fit, without advancing a generator of the user."""
        return Seed.from_random_state(copy.deepcopy(self.random_state))

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file, which `sliceflow.load` opens anywhere.

        The file holds the rows if the model keeps them: ``sliceflow info`` tells.

        Parameters
        ----------
        path : the file; one that is there is replaced, at once and only when all is
            written. It keeps its mode. Of a symbolic link the target is replaced;
            folders, pipes and devices are refused
        """
        self._check_saveable()
        save(self, path)

    def _check_saveable(self) -> None:
        self._fitted_state()
        if self._pending_rows is not None:
            fact = "rows were added or removed without a refresh"
            raise ValueError(f"{fact}; call refresh() before save")


def _copied(rows: Any) -> Any:
    """The rows without a connection to the user's arrays, which may change."""
    return rows.take(np.arange(len(rows)))
