"""`FlowEstimator`: fit, plan, sample, score, save, add and forget, written once for all estimators.

The space says what rows are, how they become columns of numbers and back, where particles start, and
what a fit costs; the flow moves particles onto the data. To follow a fit: `FlowEstimator.fit` → the
space's `prepare` → `fitting.run_parts` → `engine.flow.simulate`.
"""

from __future__ import annotations

import copy
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from sliceflow.devices import require_memory, resolve_device
from sliceflow.engine import conditions, events
from sliceflow.engine.clouds import Cloud, sliced_distance
from sliceflow.engine.random import Seed
from sliceflow.errors import CopyWarning, ParameterError, is_int, require
from sliceflow.models.checkpoints import Checkpoints
from sliceflow.models.fitting import run_parts
from sliceflow.models.identity import identity, same_on_all
from sliceflow.models.ranks import Ranks
from sliceflow.models.rows import without
from sliceflow.models.saving import Model, save

_MIN_SCORED = 2_000  # `score` draws at least this many samples
_BATCHED = ("particles_", "particle_conditions_")


class PreparedFit(NamedTuple):
    """Rows that were read, and what a fit will do with them. Made by `FlowEstimator.prepare`."""

    estimator: FlowEstimator
    space: Any
    rows: Any
    seed: Seed
    ranks: Ranks
    job: Any  # what the space prepared
    keep: bool = (
        False  # whether the model keeps these rows; else a copy, if it keeps any
    )

    @property
    def plan(self) -> Any:
        """What the fit will do, with every "auto" resolved. Print it."""
        return self.job.plan


class FlowEstimator(BaseEstimator):  # type: ignore[misc]
    """What all estimators share. A subclass has parameters, documentation, and its `_space`."""

    _kinds: tuple[
        type, type, type
    ]  # of the plan, the fitted state and the rows: what a file holds
    _model: Model
    _waiting: Any = None  # rows that wait for the next refresh

    def _space(self, like_fitted: bool = False) -> Any:
        """The space, with checked parameters; with `like_fitted`, of rows like those of the model."""
        raise NotImplementedError

    # Fitting

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        listeners: events.Listeners = (),
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 60.0,
        ranks: Ranks | None = None,
    ) -> Self:
        """Move particles onto the rows of X.

        Parameters
        ----------
        X, y : the rows and their conditions, of kinds that the class names; or X is what `prepare` gave
        listeners : a callable that takes a `sliceflow.events.Event` after every step, or a tuple of
            them; returning True ends the stage
        checkpoint_dir : a folder for the state of the fit, or None. To resume an interrupted fit, call
            it again with the same data, parameters and folder. The result has the same bits as that of
            an uninterrupted fit
        checkpoint_every : seconds between checkpoints
        ranks : from `sliceflow.ranks.joined`. All ranks call this with the same parameters and their
            own rows. `particles_` and `particle_conditions_` are this rank's share;
            ``ranks.gather(flow.particles_)`` gives all
        """
        heard = list(events.as_listeners(listeners))
        prepared = X if isinstance(X, PreparedFit) else self.prepare(X, y, ranks=ranks)
        if prepared is X and not (X.estimator is self and y is None and ranks is None):
            raise ValueError(
                "X was prepared: fit the estimator that did it, without y and ranks"
            )
        rows = prepared.rows
        seed = prepared.seed
        ranks = prepared.ranks
        job = prepared.job
        checkpoints: list[Checkpoints] = []
        ranks.agree(
            {"checkpoint_dir": "None" if checkpoint_dir is None else "a folder"}
        )
        if checkpoint_dir is not None:
            settings = self.get_params(deep=False) | job.plan.settings()
            about = (type(self).__name__, settings, torch.device(job.plan.device))
            fixed = None if self.random_state is None else seed
            known = identity(*about, fixed, **rows.digests(ranks))
            folder = Path(checkpoint_dir)
            n = len(job.parts)
            names = [""] if n == 1 else [f"part-{i}" for i in range(n)]
            where = (folder, checkpoint_every, known, seed, ranks)
            checkpoints = [Checkpoints(*where, name) for name in names]
            found = next((c.seed for c in checkpoints if c.resumes), seed)
            if found != seed:
                seed = found
                job = prepared.space.prepare(rows, found, ranks)
        if self.verbose and ranks.first:
            heard.append(events.Progress())
        with events.closing(heard):
            results, history = run_parts(job.parts, ranks.agreeing(heard), checkpoints)
        fitted, particles, y = job.finish(results)
        keeps = getattr(self, "keep_rows", True) or fitted.needs_rows
        own = rows if prepared.keep else _copied(rows) if keeps else None
        # Attributes come last: a fit that fails or is interrupted leaves the old model unchanged.
        self._keep(Model(seed, fitted, history, own), particles, y)
        shown, advice = job.copies(results)
        if shown:
            told = f"the particles copy rows of X ({shown}); {advice}"
            warnings.warn(
                told, CopyWarning, stacklevel=4 if prepared.keep else 2
            )  # the user's call
        return self

    def prepare(
        self, X: Any, y: Any = None, *, ranks: Ranks | None = None
    ) -> PreparedFit:
        """Read and plan: ``fit`` takes the result in place of X and y, and its ``plan`` can be printed."""
        space = self._space()
        ranks = ranks or Ranks()
        device = resolve_device(self.device)
        same_on_all(ranks, type(self).__name__, self.get_params(deep=False), device)
        if getattr(self, "keep_rows", False) and ranks.size > 1:
            advice = "fit without it, or in one process"
            raise ParameterError(
                "keep_rows", True, "keeps all rows in one process", advice
            )
        rows = space.read(X, y, ranks)
        seed = ranks.broadcast(Seed.from_random_state(self.random_state))
        return PreparedFit(
            self, space, rows, seed, ranks, space.prepare(rows, seed, ranks)
        )

    def plan(self, X: Any, y: Any = None) -> Any:
        """What ``fit(X, y)`` would do, with every "auto" resolved; fits nothing. Print it."""
        space = self._space()
        return space.prepare(space.read(X, y, Ranks()), self._seed_copy(), Ranks()).plan

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        *,
        refresh: bool = True,
        listeners: events.Listeners = (),
    ) -> Self:
        """Add rows, then fit all rows again with the same seed; any call may bring new classes.

        The model keeps its rows from the first call on, also in its file. It is the model of one fit to
        all rows in the order in which they came, bit for bit. If anything fails or is interrupted, the
        model stays as it was. With `refresh` False, it only keeps the rows until the next refresh.
        """
        known = self._known_rows()
        space = self._space(like_fitted=known is not None)
        new = space.read(X, y, Ranks())
        rows = _copied(new) if known is None else known.append(new)
        return self._renew(space, rows, refresh, listeners)

    def forget(
        self,
        X: Any,
        y: Any = None,
        *,
        refresh: bool = True,
        listeners: events.Listeners = (),
    ) -> Self:
        """Remove rows, given with their y as they were fitted, then fit those that are left.

        The model is then the one that never saw them, bit for bit. Of equal rows the last go first, and
        an unknown row is an error. If anything fails or is interrupted, the model stays as it was. With
        `refresh` False, the maps are still those of all rows until the next refresh.
        """
        known = self._known_rows(needed=True)
        space = self._space(like_fitted=True)
        return self._renew(
            space, without(known, space.read(X, y, Ranks())), refresh, listeners
        )

    def refresh(self, *, listeners: events.Listeners = ()) -> Self:
        """Fit all rows that the model keeps, with the same seed and today's parameters."""
        return self._renew(
            self._space(), self._known_rows(needed=True), True, listeners
        )

    def _seed_copy(self) -> Seed:
        return Seed.from_random_state(
            copy.deepcopy(self.random_state)
        )  # a generator must not advance

    def _known_rows(self, needed: bool = False) -> Any:
        """The rows of the model and those that wait; None before the first fit, if none are `needed`."""
        if self._waiting is not None:
            return self._waiting
        if "_model" not in vars(self):
            if needed:
                raise ValueError(
                    "this estimator has no rows yet; call fit or partial_fit first"
                )
            return None
        if self._model.rows is None:
            advice = "fit it with keep_rows=True, or start a new one with partial_fit"
            raise ValueError(
                f"this {type(self).__name__} does not keep its rows; {advice}"
            )
        return self._model.rows

    def _renew(
        self, space: Any, rows: Any, refresh: bool, listeners: events.Listeners
    ) -> Self:
        require(isinstance(refresh, bool), "refresh", refresh, "True or False")
        events.as_listeners(listeners)
        if not refresh:
            self._waiting = rows
            return self
        known = self._model.seed if "_model" in vars(self) else None
        seed = known or Seed.from_random_state(self.random_state)
        ranks = Ranks()
        job = space.prepare(rows, seed, ranks)
        return self.fit(
            PreparedFit(self, space, rows, seed, ranks, job, True), listeners=listeners
        )

    def _keep(self, model: Model, particles: Any = None, y: Any = None) -> None:
        """Replace the fitted attributes by those of a new model."""
        for name in ("_waiting", "classes_", *_BATCHED):
            self.__dict__.pop(name, None)
        self._model = model
        self.plan_ = model.fitted.plan
        self.history_ = model.history
        self.n_iter_ = len(model.history["step"])
        if particles is not None:
            self.particles_ = particles
            self.particle_conditions_ = y
        condition = model.fitted.condition
        if isinstance(condition, conditions.LabelCondition) and not condition.hidden:
            self.classes_ = condition.classes

    # Sampling

    def sample(
        self,
        n: int = 1,
        y: Any = None,
        random_state: Any = None,
        *,
        return_y: bool = False,
    ) -> Any:
        """Fresh samples.

        Parameters
        ----------
        n : number of samples
        y : one condition for all samples, or several: then n must be 1 (one sample of each) or their
            number. None takes conditions in the data's proportions
        random_state : int, RandomState, Generator or None (new samples on every call)
        return_y : also return the conditions of the samples

        Returns
        -------
        n rows in the form, the units and the type of X; with `return_y`, a pair: the rows and their y
        (None without conditions)
        """
        fitted = self._fitted_state()
        seed = Seed.from_random_state(random_state)
        n, codes = self._codes_for(fitted, n, y, seed)
        rows = fitted.draw(n, codes, seed)
        if not return_y:
            return rows
        shown = codes is not None and not fitted.condition.hidden
        return rows, fitted.condition.decode(codes) if shown else None

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the sliced Wasserstein distance between fresh samples and rows: higher is better.

        −SW₂ over 100 random directions, in the units of the flow. With y, samples take the rows'
        conditions: rows of a class are compared with samples of that class, and with continuous y,
        (x, y) are compared jointly. Pass held-out rows: on the fitted rows the model that copies best
        would win. `GridSearchCV` and `cross_val_score` use this score.
        """
        fitted = self._fitted_state()
        seed = self._seed_copy().child("score")
        columns = fitted.columns(self._like_fitted(X))
        codes = None
        n = columns.shape[1]
        condition = fitted.condition
        if y is not None and condition is not None and not condition.hidden:
            codes = condition.encode(conditions.as_array(y))
            if len(codes) != n:
                raise ValueError(
                    f"X has {n} rows but y has {len(codes)}; pass one y for every row"
                )
        times = -(-_MIN_SCORED // n)
        drawn = None if codes is None else codes.repeat(times, *[1] * (codes.dim() - 1))
        if codes is None:
            _, drawn = self._codes_for(fitted, times * n, None, seed)
        fresh = fitted.columns(fitted.draw(times * n, drawn, seed))
        samples = Cloud(fresh, None if codes is None else drawn)
        return -sliced_distance(samples, Cloud(columns, codes), Seed(0))

    def _fitted_state(self) -> Any:
        """The fitted state; raises sklearn's NotFittedError before a fit."""
        check_is_fitted(self, "history_")
        return self._model.fitted

    def _like_fitted(self, X: Any) -> Any:
        """X, checked to be like the fitted rows."""
        return X

    def _codes_for(
        self, fitted: Any, n: int, y: Any, seed: Seed
    ) -> tuple[int, Tensor | None]:
        """The number of samples, and their encoded conditions; None takes the data's proportions."""
        require(is_int(n, 1), "n", n, "an int of at least 1")
        condition = fitted.condition
        codes = fitted.codes
        if y is not None and (condition is None or condition.hidden):
            raise ValueError("y was given but the model was fitted without y; omit y")
        self._need_memory(fitted, n)  # before codes are allocated
        if condition is None or codes is None:
            return n, None
        if y is None:
            return n, codes[conditions.proportional(codes, n, seed.child("conditions"))]
        requested = condition.encode(conditions.repeated(condition, y, n))
        if len(requested) != n:
            if n != 1:
                advice = f"pass one condition for all samples, or n={len(requested)} for one of each"
                raise ValueError(
                    f"y has {len(requested)} conditions but n={n}; {advice}"
                )
            self._need_memory(fitted, len(requested))
        return len(requested), requested

    def _need_memory(self, fitted: Any, n: int) -> None:
        what = f"n={n} samples need"
        require_memory(
            fitted.sample_bytes(n), fitted.device, what, "draw fewer at a time"
        )

    # Files

    def save(self, path: str | os.PathLike[str], *, particles: bool = False) -> None:
        """Write the fitted model to one file, which `sliceflow.load` opens on any machine.

        The file holds the rows if the model keeps them: ``sliceflow info`` tells.

        Parameters
        ----------
        path : the file; one that is there is replaced, at once and only when all is written. It keeps
            its mode. Of a symbolic link the target is replaced; folders, pipes and devices are refused
        particles : also keep the batched samples, `particles_` and `particle_conditions_`
        """
        self._fitted_state()
        if self._waiting is not None:
            raise ValueError(
                "rows were added or removed without a refresh; call refresh() before save"
            )
        save(self, path, particles=particles)

    if not TYPE_CHECKING:  # or every misspelt attribute would pass

        def __getattr__(self, name: str) -> Any:
            if name in _BATCHED and "_model" in self.__dict__:
                fact = (
                    f"{name} is not in the file of this model, which was saved without"
                )
                raise AttributeError(
                    f"{fact}; draw with sample(), or save with particles=True"
                )
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}"
            )


def _copied(rows: Any) -> Any:
    """The rows, apart from the user's arrays, which may change."""
    return rows.take(np.arange(len(rows)))
