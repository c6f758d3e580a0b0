"""`Growing`: `partial_fit`, `forget` and `refresh` of both estimators, each done whole or not at all.

How rows come into the counts is in `rows`, the counts themselves in `counts`. What differs between
vectors and pictures is in the rooms of those names.
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
    """What makes an estimator one that grows: its data are kept as counts (`sliceflow.online`).

    The first `partial_fit` begins; ``fit`` keeps no counts, and `partial_fit` after it begins anew.
    """

    _online: Online | None = None
    _fitted: Any
    history_: dict[str, list[Any]]

    def _parameters(self) -> dict[str, Any]:
        """The parameters, checked."""
        raise NotImplementedError

    def _online_rows(self, X: Any, first: bool = False) -> Any:
        """X, checked; the `first` rows say how many columns all have."""
        raise NotImplementedError

    def _begin_online(self, X: Any) -> Online:
        """Nothing counted yet, for rows like X."""
        raise NotImplementedError

    def _keep(self, plan: Any, fitted: Any, particles: Any, y: Any, history: Any) -> None:
        """What was learned replaces what was there."""
        raise NotImplementedError

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        *,
        refresh: bool | int = True,
        listeners: events.Listeners = (),
    ) -> Self:
        """Absorb rows, at a cost that does not depend on how many there are already; then refresh.

        Whatever the batches and their order, the model is the same, bit for bit. The first rows, which
        are those there at the first refresh or once there are 1000, also set the units of vectors
        (`standardize`) and choose the directions of pictures (`patch_basis="auto"`). If anything fails
        or is interrupted, the refresh too, no rows are absorbed and nothing is changed.

        Parameters
        ----------
        X : rows or pictures, as `fit` takes them
        y : None, or class labels; new ones may come with any call
        refresh : True moves the particles onto all the data, False only counts; a number is `refresh`'s
        listeners : as of `fit`
        """
        parameters = self._parameters()
        if self._online is None and "_file" in vars(self):
            raise ValueError(
                f"{vars(self)['_file']} holds a model but no counts of its data: nothing can be added. "
                "Pickle an estimator to go on with it another day; begin with a new one now"
            )
        if self._online is None and hasattr(self, "history_"):
            # No error: scikit-learn's conventions want it to work.
            warnings.warn(
                "this model comes from fit, which keeps no counts of its data; partial_fit begins "
                "anew, with these rows alone",
                UserWarning,
                stacklevel=2,
            )
        listening = events.listening(listeners)
        with _all_or_nothing(self):
            begun = self._online is not None
            rows = self._online_rows(X, first=not begun)
            online = self._online or self._begin_online(X)
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
        """Take rows away again: the model is then that of the others, as if these had never been there.

        If they helped to set units or to choose directions, and what is left of the first rows would
        have set others, a warning says which: these stay. If anything fails or is interrupted, the
        refresh too, nothing is taken away.

        Parameters
        ----------
        X, y : the rows and their labels as they were given to `partial_fit`, in any order. Rows that
            are not there are an error
        refresh, listeners : as of `partial_fit`. Without a refresh, or with one of the last steps
            only, maps that were made with these rows stay in the model until the next full one
        """
        listening = events.listening(listeners)
        first = None if self._online is None else self._online.first
        with _all_or_nothing(self):
            self._online = online = self._current_counts().forgotten(self._online_rows(X), y)
            self._refreshed(refresh, listening)
        if online.first is not None and online.first is not first and (trace := online.first.trace()):
            warnings.warn(
                f"the forgotten rows leave this behind: {trace}. The first rows decided it, and those "
                "of them that are left would have decided otherwise. Begin with a new estimator to be "
                "rid of it",
                UserWarning,
                stacklevel=2,
            )
        if refresh is not False:
            self._warn_if_stale("this model, refreshed in part,")
        return self

    def refresh(self, last: int | None = None, *, listeners: events.Listeners = ()) -> Self:
        """Move fresh particles onto the data as they are now.

        Parameters
        ----------
        last : do only so many steps from the end, of pictures the whole stages that hold them; the
            particles reach them by the maps of the last refresh. Faster, and good enough where new
            rows are like the old ones. None does all
        listeners : as of `fit`
        """
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
                "there are no counts of the data: partial_fit keeps them, fit does not, and no file of "
                "save holds them (pickle keeps them)"
            )
        self._online.check(self._parameters())
        return self._online

    def _warn_if_stale(self, what: str) -> None:
        """Warn that `what` has maps that were made before rows were forgotten."""
        if self._online is not None and self._online.stale and hasattr(self, "history_"):
            warnings.warn(
                f"{what} still has maps that were made with rows that are forgotten since; refresh() "
                "makes all of them again",
                UserWarning,
                stacklevel=3,
            )


@contextmanager
def _all_or_nothing(estimator: Any) -> Iterator[None]:
    """What is done to an estimator and its counts is done whole, or not at all."""
    before, online = dict(vars(estimator)), estimator._online
    if online is not None:
        online.ledger.undo()  # where undoing was interrupted itself
    try:
        yield
        estimator._online.ledger.change = None  # from here on it is done
    except BaseException:
        estimator.__dict__ = before
        if online is not None:
            online.ledger.undo()
        raise


def check_classes(was: conditions.Labels | None, now: conditions.Labels | None) -> None:
    """Refuse a partial refresh from a model of other classes."""
    before, after = (None if labels is None else labels.classes.tolist() for labels in (was, now))
    if before != after:
        raise ValueError(
            f"the classes were {before} at the last refresh and are {after}; all steps must be done "
            "again: leave last out"
        )


def resume_run(steps: Sequence[Step], before: PreviousRefresh, history: events.History) -> Run:
    """The run behind some steps of the model before, with their history."""
    n = len(steps)
    history.before = {name: column[:n] for name, column in before.history.items()}
    if n == 0:
        return Run()
    last = steps[-1]
    model = [[s for s in steps if s.stage == i] for i in range(last.stage + 1)]
    return Run(last.stage, last.step + 1, done=n, model=model)
