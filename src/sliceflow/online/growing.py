"""`Growing`: `partial_fit`, `forget` and `refresh` of both estimators; the users' rows on their way.

The counts themselves are in `counts`. What differs between vectors and pictures is in the rooms of
those names.
"""

from __future__ import annotations

import hashlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from sliceflow import conditions, events, transports
from sliceflow.checks import is_int, need, need_memory
from sliceflow.flow import Cloud, Flow, Noise, Run, Step
from sliceflow.online.counts import Ledger, Mixture
from sliceflow.rng import Seed

__all__ = [
    "Growing",
    "Online",
    "can_go_on",
    "go_on",
    "histogram_bins",
    "keep",
    "names_of",
    "parameters_of",
]

_GRID = 1024  # the fewest bins for classes that the amplifier holds apart


class Growing:
    """What makes an estimator one that grows: its data are kept as counts (`sliceflow.online`).

    The first `partial_fit` begins; ``fit`` keeps no counts, and `partial_fit` after it begins anew.
    """

    _online: Online | None = None

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        *,
        refresh: bool | int = True,
        listeners: events.Listeners = (),
    ) -> Self:
        """Absorb rows, at a cost that does not depend on how many there are already; then refresh.

        Whatever the batches and their order, the model is the same, bit for bit. The rows of the first
        call also set the units of vectors (`standardize`). If anything is refused, the refresh too, no
        rows are absorbed.

        Parameters
        ----------
        X : rows or pictures, as `fit` takes them
        y : None, or class labels; new ones may come with any call
        refresh : True moves the particles onto all the data, False only counts; a number is `refresh`'s
        listeners : as of `fit`
        """
        estimator, listeners = cast(Any, self), events.listening(listeners)
        estimator._check_parameters()
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
        online = self._online or estimator._begin_online(X)
        online.check(estimator)
        if refresh is not False:
            online.check_memory(estimator, estimator.n_particles)
        online.absorb(estimator, X, y)
        before, self._online = self._online, online
        try:
            return self._refreshed(refresh, listeners)
        except ValueError:
            online.change(estimator, X, y, -1)
            self._online = before
            raise

    def forget(
        self,
        X: Any,
        y: Any = None,
        *,
        refresh: bool | int = True,
        listeners: events.Listeners = (),
    ) -> Self:
        """Take rows away again: the model is then that of the others, as if these had never been there.

        Parameters
        ----------
        X, y : the rows and their labels as they were given to `partial_fit`, in any order. Rows that
            are not there are an error, and then nothing is taken away
        refresh, listeners : as of `partial_fit`
        """
        online, listeners = self._kept(), events.listening(listeners)
        online.forget(cast(Any, self), X, y)
        try:
            return self._refreshed(refresh, listeners)
        except ValueError:
            online.change(cast(Any, self), X, y, 1)
            raise

    def refresh(self, last: int | None = None, *, listeners: events.Listeners = ()) -> Self:
        """Move fresh particles onto the data as they are now.

        Parameters
        ----------
        last : do only so many stages of pictures, or steps of vectors, from the end; the particles
            reach them by the maps of the last refresh. Faster, and good enough where new rows are
            like the old ones. None does all
        listeners : as of `fit`
        """
        online = self._kept()
        if last is not None:
            need(is_int(last, 1), "last", last, "None or an int of at least 1")
            check_is_fitted(self, "history_")
        heard: list[events.Listener] = [history := events.History(), *events.listening(listeners)]
        if cast(Any, self).verbose:
            heard.append(events.Progress())
        with events.closing(heard):
            online.refresh(cast(Any, self), last, heard, history)
        return self

    def _refreshed(self, refresh: bool | int, listeners: events.Listeners) -> Self:
        if refresh is False:
            return self
        return self.refresh(None if refresh is True else refresh, listeners=listeners)

    def _kept(self) -> Online:
        if self._online is None:
            raise ValueError(
                "there are no counts of the data: partial_fit keeps them, fit does not, and no file of "
                "save holds them (pickle keeps them)"
            )
        self._online.check(self)
        return self._online


@dataclass
class Online(ABC):
    """The counts of one estimator, and what must not change while they are kept.

    Parameters
    ----------
    ledger : the counts
    seed, device : of all refreshes
    parameters : the estimator's, those that the counts depend on
    times : columns that stand for each row
    dtype : of the labels
    """

    ledger: Ledger
    seed: Seed
    device: torch.device
    parameters: dict[str, str]
    times: int = 1
    dtype: np.dtype[Any] | None = None

    @abstractmethod
    def rows(self, estimator: Any, X: Any) -> np.ndarray:
        """X checked, (n, …) of one type."""

    @abstractmethod
    def columns(self, rows: np.ndarray) -> Tensor:
        """The rows of one class as the engine stores them: (d, times·n) on the device."""

    @abstractmethod
    def values(self, columns: Tensor, names: Tensor, place: int) -> Tensor:
        """Columns as they are counted at a place."""

    @abstractmethod
    def refresh(
        self, estimator: Any, last: int | None, heard: list[events.Listener], history: events.History
    ) -> None:
        """Simulate, and keep the results in the estimator."""

    @abstractmethod
    def check_memory(self, estimator: Any, m: int | None) -> None:
        """Refuse a refresh of m particles that memory cannot hold; None are not too many."""

    def check(self, estimator: Any) -> None:
        """Refuse to go on with counts that are not what the parameters say."""
        for name, was in self.parameters.items():
            value = repr(getattr(estimator, name))
            if value != was:
                raise ValueError(
                    f"{name} was {was} and is {value}, but the counts depend on it; set it back, or "
                    "begin with a new estimator"
                )
        if not self.ledger.whole:
            raise ValueError(
                "partial_fit or forget was interrupted while it counted: the counts are of no use any "
                "more. Begin with a new estimator"
            )

    def absorb(self, estimator: Any, X: Any, y: Any) -> None:
        """Count rows in."""
        rows, names, labels, groups = self._sorted(estimator, X, y)
        known = set(self.ledger.rows)
        if known and (None in known) != (y is None):
            was = "without labels" if None in known else "with class labels"
            raise ValueError(f"the rows before came {was}; give all of them labels or none")
        if y is not None and not all(place.independent for place in self.ledger.places):
            raise ValueError(
                "random directions change with the number of classes; partial_fit with labels takes "
                "frame='orthogonal' or 'axis'"
            )
        new = len(known.union(label for label, _ in groups)) - len(known)
        steps = sum(
            (p.most_directions or self.ledger.dimension) * p.n_steps for p in self.ledger.places
        )
        need_memory(
            4 * steps * self.ledger.n_bins * new,
            self.device,
            f"the counts of {new} classes, {steps} directions of {self.ledger.n_bins} bins each, need",
            "take a transport of fewer bins, such as transports.Histogram(64), or fewer steps",
        )
        self._change(rows, names, groups, 1)
        if labels is not None and labels.dtype.kind in "iub":
            self.dtype = (
                labels.dtype if self.dtype is None else np.result_type(self.dtype, labels.dtype)
            )

    def forget(self, estimator: Any, X: Any, y: Any) -> None:
        """Take rows out of the counts."""
        rows, names, _, groups = self._sorted(estimator, X, y)
        missing = self.ledger.missing(names, groups)
        if missing is not None:
            label = next(label for label, of in groups if of.start <= missing < of.stop)
            of = "" if label is None else f" of class {conditions.shown(label)}"
            raise ValueError(
                f"{len(rows)} rows are to be forgotten, but the counts do not hold all of them: a row"
                f"{of} was never absorbed, or is forgotten already. Nothing was changed"
            )
        if len(rows) == sum(self.ledger.sizes().values()):
            raise ValueError(
                f"these are all the {len(rows)} rows there are, and a flow needs some; delete the model"
            )
        self._change(rows, names, groups, -1)

    def change(self, estimator: Any, X: Any, y: Any, sign: int) -> None:
        """Count rows in (sign 1) or out (sign −1) that were checked before."""
        rows, names, _, groups = self._sorted(estimator, X, y)
        self._change(rows, names, groups, sign)

    def _sorted(
        self, estimator: Any, X: Any, y: Any
    ) -> tuple[np.ndarray, list[int], np.ndarray | None, list[tuple[Hashable, slice]]]:
        """Rows in the order of their labels, the rows' names, the labels, and each label's rows."""
        rows = self.rows(estimator, X)
        if y is None:
            return rows, names_of(rows), None, [(None, slice(0, len(rows)))]
        labels = conditions.as_array(y)
        condition = conditions.infer(labels, len(rows))
        if not isinstance(condition, conditions.Labels):
            raise ValueError(
                f"y has shape {labels.shape}; partial_fit takes class labels (n,). Continuous "
                "conditions need the rows themselves: use fit"
            )
        codes = condition.encode(labels).numpy()
        rows = rows[np.argsort(codes, kind="stable")]
        ends = np.cumsum(np.bincount(codes, minlength=condition.width)).tolist()
        groups: list[tuple[Hashable, slice]] = [
            (label, slice(start, end))
            for label, start, end in zip(condition.classes.tolist(), [0, *ends[:-1]], ends, strict=True)
        ]
        return rows, names_of(rows), labels, groups

    def _change(
        self,
        rows: np.ndarray,
        names: list[int],
        groups: list[tuple[Hashable, slice]],
        sign: int,
    ) -> None:
        parts = [self.columns(rows[of]) for _, of in groups]
        columns = torch.cat(parts, dim=1)
        # A mirror image is a picture of its own, with its own noise.
        own = names if self.times == 1 else names_of(columns.T.contiguous().cpu().numpy())
        own_names = torch.tensor(own, device=self.device)
        wide = [(label, slice(self.times * of.start, self.times * of.stop)) for label, of in groups]
        self.ledger.change(
            lambda i, part: self.values(columns[:, part], own_names[part], i),
            names,
            wide,
            sign,
            self.times,
        )

    def condition(self) -> tuple[conditions.Labels | None, list[Hashable], Tensor]:
        """The classes there are now, the ledger's labels in their order, and the class of every row."""
        sizes = self.ledger.sizes()
        if None in sizes:
            return None, [None], torch.zeros(sizes[None], dtype=torch.int64)
        array = conditions.as_array(list(sizes))
        if self.dtype is not None and array.dtype.kind in "iub":
            array = array.astype(self.dtype)
        condition = conditions.Labels.of(array)
        labels = condition.classes.tolist()
        counts = torch.tensor([sizes[label] for label in labels])
        return condition, labels, torch.repeat_interleave(torch.arange(len(labels)), counts)

    def particles(
        self, d: int, dtype: torch.dtype, m: int, codes: Tensor | None, scale: float = 1.0
    ) -> tuple[Cloud, Noise]:
        """M of them at their start, with the classes that a fit on all the rows would give them."""
        noise = Noise(self.seed.child("particles"))
        x = noise.child("start").fill(torch.empty(d, m, dtype=dtype, device=self.device))
        x.mul_(scale)
        if codes is None:
            return Cloud(x), noise
        rows = conditions.proportional(codes, m, self.seed.child("conditions"))
        return Cloud(x, codes[rows].to(self.device)), noise

    def mixture(
        self, place: int, labels: list[Hashable], codes: Tensor, particles: Cloud, flow: Flow
    ) -> Mixture:
        """The data at a place for particles that are conditioned, or are not."""
        who = particles.y.cpu() if flow.conditional and particles.y is not None else codes
        masses = torch.bincount(who, minlength=len(labels)).tolist()
        n_bins = self.ledger.n_bins
        n_bins = n_bins if len(labels) == 1 or flow.apart else max(n_bins, _GRID)
        return Mixture(self.ledger, place, labels, masses, n_bins)


def parameters_of(estimator: Any, names: Sequence[str]) -> dict[str, str]:
    """Parameters as they must stay."""
    return {name: repr(getattr(estimator, name)) for name in names}


def histogram_bins(transport: str | transports.Transport, auto: int) -> int:
    """The bins of every histogram that is kept, `auto` unless the transport says."""
    if isinstance(transport, str) and transport != "sorted":
        return auto
    n_bins = getattr(transport, "n_bins", None)
    if n_bins is None:
        raise ValueError(
            f"transport={transport!r} sorts its data, but partial_fit keeps only counts; "
            "use transport='auto' or transports.Histogram(n_bins)"
        )
    need(n_bins >= 4 and n_bins % 4 == 0, "n_bins", n_bins, "a multiple of 4: bins are merged in pairs")
    return int(n_bins)


def can_go_on(estimator: Any, condition: conditions.Labels | None, steps: Sequence[Any]) -> None:
    """Refuse a partial refresh that the last model cannot lead to."""
    was = None if estimator._condition is None else estimator._condition.classes.tolist()
    now = None if condition is None else condition.classes.tolist()
    if was != now:
        raise ValueError(
            f"the classes were {was} at the last refresh and are {now}; all steps must be done again: "
            "leave last out"
        )
    if not steps:
        raise ValueError("the model was made with n_knots=0, which keeps no maps to go on from")


def go_on(steps: Sequence[Step], estimator: Any, history: events.History) -> Run:
    """The run behind some steps of an estimator's model, with their history."""
    n = len(steps)
    history.before = {name: column[:n] for name, column in estimator.history_.items()}
    if n == 0:
        return Run()
    last = steps[-1]
    model = [[s for s in steps if s.stage == i] for i in range(last.stage + 1)]
    return Run(last.stage, last.step + 1, done=n, model=model)


def keep(
    estimator: Any,
    condition: conditions.Labels | None,
    codes: Tensor | None,
    particles: Cloud,
    history: events.History,
) -> None:
    """What both estimators keep of a refresh."""
    estimator._condition, estimator._codes = condition, codes
    estimator.particle_conditions_ = None
    estimator.__dict__.pop("classes_", None)
    if condition is not None and particles.y is not None:
        estimator.classes_ = condition.classes
        estimator.particle_conditions_ = condition.classes[particles.y.cpu().numpy()]
    estimator.history_ = history.as_columns()
    estimator.n_iter_ = len(estimator.history_["step"])


def names_of(rows: np.ndarray) -> list[int]:
    """A 64-bit name for each row, by what is in it."""
    return [
        int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "little", signed=True)
        for row in rows
    ]
