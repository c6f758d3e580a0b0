"""`Growing`: `partial_fit`, `forget` and `refresh` of both estimators, each all or nothing.

`rows` turns rows into counts, and `counts` stores these. `vectors.online` and `pictures.online` hold
what differs between the estimators.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

from sklearn.utils.validation import check_is_fitted

from sliceflow.engine import conditions, events
from sliceflow.engine.compact import Step
from sliceflow.engine.flow import Run
from sliceflow.errors import is_int, need
from sliceflow.online.rows import Online, PreviousRefresh

__all__ = ["Growing", "check_classes", "resume_run"]


class Growing:
    """Mixin for incremental fitting: the estimator keeps counts of its data (`sliceflow.online`).

    ``fit`` keeps no counts; `partial_fit` after it starts again from its own rows.
    """

    _online: Online | None = None
    _fitted: Any
    history_: dict[str, list[Any]]

    def _parameters(self) -> dict[str, Any]:
        """The checked parameters."""
        raise NotImplementedError

    def _online_rows(self, X: Any, first: bool = False) -> Any:
        """X, checked; the `first` rows set the number of columns."""
        raise NotImplementedError

    def _begin_online(self, X: Any, rows: Any) -> Online:
        """Empty counts for rows like X; `rows` are X, checked."""
        raise NotImplementedError

    def _grow_rows(self, X: Any, y: Any, refresh: bool | int) -> bool:
        """`partial_fit` of a model that keeps rows instead of counts; False if it keeps counts."""
        return False

    def _forget_rows(self, X: Any, y: Any, refresh: bool | int) -> bool:
        """`forget` of such a model."""
        return False

    def _refresh_rows(self, last: int | None) -> bool:
        """`refresh` of such a model."""
        return False

    def _keep(
        self, plan: Any, fitted: Any, particles: Any, y: Any, history: dict[str, list[Any]]
    ) -> None:
        """Replace the fitted attributes, by those of a fit or of a refresh."""
        self.plan_, self._fitted, self._online = plan, fitted, None
        for name in ("_file", "_waiting"):  # no longer a loaded model; no rows wait
            self.__dict__.pop(name, None)
        self.particles_, self.particle_conditions_ = particles, y
        self.__dict__.pop("classes_", None)
        condition = fitted.condition
        if isinstance(condition, conditions.Labels) and not condition.hidden:
            self.classes_ = condition.classes
        self.history_, self.n_iter_ = history, len(history["step"])

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        *,
        refresh: bool | int = True,
        listeners: events.Listeners = (),
    ) -> Self:
        """Add rows, then refresh. The cost of adding does not depend on the number of earlier rows.

        The model does not depend on the batches or their order, bit for bit. The first rows are those
        present at the first refresh, or as soon as there are 1000. They also set the units of vectors
        (`standardize`) and choose the basis of pictures (`patch_basis="auto"`). If anything fails or is
        interrupted, including the refresh, nothing changes.

        With a continuous or mixed y the conditions of vectors are local, and the model keeps the rows,
        also in its file. Then it is that of ``fit`` on all rows, in the order in which they came, bit
        for bit, and rows can be added after `fit` and `sliceflow.load`, too.

        Parameters
        ----------
        X : rows or pictures, as in `fit`
        y : None, class labels, or for vectors with local conditions as in `fit`; any call may add new
            classes
        refresh : True fits the model to all data; False only counts, or keeps the rows until the next
            refresh; a number is `last` of `refresh`
        listeners : as in `fit`
        """
        if self._grow_rows(X, y, refresh):
            return self
        parameters = self._parameters()
        if self._online is None and "_file" in vars(self):
            raise ValueError(
                f"{vars(self)['_file']} holds a model without counts of its data: partial_fit cannot "
                "add rows to it. Start with a new estimator; to continue one later, pickle it"
            )
        if self._online is None and hasattr(self, "history_"):
            # A warning, not an error: scikit-learn's conventions require this to work.
            warnings.warn(
                "fit keeps no counts of its data, so partial_fit discards this model and starts again "
                "with these rows alone",
                UserWarning,
                stacklevel=2,
            )
        listening = events.listening(listeners)
        with _all_or_nothing(self):
            rows = self._online_rows(X, first=self._online is None)
            online = self._online or self._begin_online(X, rows)
            online.check(parameters)
            if refresh is not False and parameters["n_particles"] is not None:
                online.check_memory(parameters, int(parameters["n_particles"]))
            self._online = online.absorbed(rows, y)
            self._refreshed(refresh, listening)
        return self

    def forget(
        self,
        X: Any,
        y: Any = None,
        *,
        refresh: bool | int = True,
        listeners: events.Listeners = (),
    ) -> Self:
        """Remove rows. The model is then the same as if they had never been added.

        There is one exception: units and the patch basis, which the first rows decided, stay. If the
        remaining first rows would decide otherwise, a warning says so. If anything fails or is
        interrupted, including the refresh, nothing changes.

        With local conditions there is no exception: it is a fit of the remaining rows, in their order;
        of equal rows the last go first.

        Parameters
        ----------
        X, y : rows and their y as passed to `partial_fit`, in any order. Unknown rows raise an error
        refresh, listeners : as in `partial_fit`. Without a full refresh, the model keeps maps that were
            fitted to these rows; local conditions refuse that
        """
        if self._forget_rows(X, y, refresh):
            return self
        listening = events.listening(listeners)
        first = None if self._online is None else self._online.first
        with _all_or_nothing(self):
            self._online = online = self._current_counts().forgotten(self._online_rows(X), y)
            self._refreshed(refresh, listening)
        if online.first is not None and online.first is not first and (trace := online.first.trace()):
            warnings.warn(
                f"the forgotten rows still affect {trace}. The first rows decided this, and the "
                "remaining first rows would decide otherwise. Start with a new estimator to remove "
                "this trace",
                UserWarning,
                stacklevel=2,
            )
        if refresh is not False:
            self._warn_if_stale("this model, refreshed in part,")
        return self

    def refresh(self, last: int | None = None, *, listeners: events.Listeners = ()) -> Self:
        """Move fresh particles onto the current data.

        Parameters
        ----------
        last : refit only this many steps at the end; for pictures, the complete stages that contain
            them. Earlier steps keep their maps. This is faster, and accurate enough if new rows are
            like the old ones. None refits all steps. Local conditions have no steps
        listeners : as in `fit`
        """
        if self._refresh_rows(last):
            return self
        with _all_or_nothing(self):
            self._refresh(last, events.listening(listeners))
        self._warn_if_stale("this model, refreshed in part,")
        return self

    def _refresh(self, last: int | None, listeners: tuple[events.Listener, ...]) -> None:
        online, parameters, before = self._current_counts(), self._parameters(), None
        if last is not None:
            need(is_int(last, 1), "last", last, "None or an int of at least 1")
            check_is_fitted(self, "history_")
            before = PreviousRefresh(self._fitted, self.history_, last)
        all_listeners: list[events.Listener] = [history := events.History(), *listeners]
        if parameters["verbose"]:
            all_listeners.append(events.Progress())
        online = self._online = online.settled()
        with events.closing(all_listeners):
            new = online.refresh(parameters, before, all_listeners, history)
        self._keep(*new, history.as_columns())
        self._online = replace(online, stale=False) if last is None else online

    def _refreshed(self, refresh: bool | int, listeners: tuple[events.Listener, ...]) -> None:
        if refresh is not False:
            self._refresh(None if refresh is True else refresh, listeners)

    def _current_counts(self) -> Online:
        if self._online is None:
            raise ValueError(
                "this estimator has no counts of its data: only partial_fit keeps them, and save does "
                "not store them (pickle does)"
            )
        self._online.check(self._parameters())
        return self._online

    def _warn_if_stale(self, what: str) -> None:
        """Warn that `what` has maps fitted to forgotten rows."""
        if self._online is not None and self._online.stale and hasattr(self, "history_"):
            warnings.warn(
                f"{what} still has maps that were fitted to forgotten rows; refresh() refits all maps",
                UserWarning,
                stacklevel=3,
            )


@contextmanager
def _all_or_nothing(estimator: Any) -> Iterator[None]:
    """Restore the estimator and its counts if an exception is raised."""
    before, online = dict(vars(estimator)), estimator._online
    if online is not None:
        online.ledger.undo()  # an earlier undo may have been interrupted
    try:
        yield
        estimator._online.ledger.change = None  # the change can no longer be undone
    except BaseException:
        estimator.__dict__ = before
        if online is not None:
            online.ledger.undo()
        raise


def check_classes(was: conditions.Labels | None, now: conditions.Labels | None) -> None:
    """Raise a ValueError for a partial refresh of a model with other classes."""
    before, after = (None if labels is None else labels.classes.tolist() for labels in (was, now))
    if before != after:
        raise ValueError(
            f"the classes were {before} at the last refresh and are now {after}; refresh all steps: "
            "leave last out"
        )


def resume_run(steps: Sequence[Step], before: PreviousRefresh, history: events.History) -> Run:
    """The run after some steps of the previous model, with their history."""
    n = len(steps)
    history.before = {name: column[:n] for name, column in before.history.items()}
    if n == 0:
        return Run()
    last = steps[-1]
    model = [[s for s in steps if s.stage == i] for i in range(last.stage + 1)]
    return Run(last.stage, last.step + 1, done=n, model=model)
