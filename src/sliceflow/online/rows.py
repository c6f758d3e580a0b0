"""`Online`: the users' rows on their way into the counts, and out again; what both estimators share."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from sliceflow.devices import need_memory
from sliceflow.engine import conditions, events, transports
from sliceflow.engine.flow import Cloud, Flow, Noise
from sliceflow.engine.random import Seed
from sliceflow.errors import need
from sliceflow.online.counts import Change, Ledger, Mixture
from sliceflow.online.first import FirstRows

__all__ = [
    "Online",
    "PreviousRefresh",
    "Refreshed",
    "RowBatch",
    "fixed",
    "histogram_bins",
    "names_of",
    "settings",
]

FIRST_ROWS = 1000  # rows that decide what the first rows decide, if no refresh comes before
_MIN_BINS = 1024  # the fewest bins for classes that the amplifier holds apart


class RowBatch(NamedTuple):
    """Rows in the order of their labels, their names, and where each label's rows are."""

    rows: np.ndarray
    names: list[int]
    groups: list[tuple[Hashable, slice]]

    def keys(self) -> list[tuple[Hashable, int]]:
        """The label and the name of every row."""
        return [(label, name) for label, of in self.groups for name in self.names[of]]


class PreviousRefresh(NamedTuple):
    """The last refresh, of which a new one keeps all but the `last` stages or steps."""

    fitted: Any
    history: dict[str, list[Any]]
    last: int


class Refreshed(NamedTuple):
    """What a refresh gives: its plan, the fitted state, the batched samples and their classes."""

    plan: Any
    fitted: Any
    particles: Any
    y: np.ndarray | None


@dataclass
class Online(ABC):
    """The counts of one estimator, and what must not change while they are kept.

    Rows wait until there are enough to decide what the first rows decide, or until a refresh: then they
    are counted, and only their counts are kept.

    Parameters
    ----------
    ledger : the counts
    seed, device : of all refreshes
    parameters : the estimator's, those that the counts depend on
    times : columns that stand for each row
    waiting : rows by label and name, while what depends on them is not decided; None once it is
    first : the rows that decided, or None where nothing depended on them
    stale : whether rows were forgotten that the maps of the model may still know
    """

    ledger: Ledger
    seed: Seed
    device: torch.device
    parameters: dict[str, str]
    times: int = 1
    waiting: dict[tuple[Hashable, int], np.ndarray] | None = None
    first: FirstRows | None = None
    stale: bool = False

    @abstractmethod
    def read(self, X: Any) -> np.ndarray:
        """X, (n, …) of one type."""

    @abstractmethod
    def decided(self, batch: RowBatch) -> Self:
        """The same with what these rows decide, and nothing counted."""

    @abstractmethod
    def columns(self, rows: np.ndarray) -> Tensor:
        """The rows of one class as the engine stores them: (d, times·n) on the device."""

    @abstractmethod
    def values(self, columns: Tensor, names: Tensor, place: int) -> Tensor:
        """Columns as they are counted at a place."""

    @abstractmethod
    def refresh(
        self,
        parameters: Mapping[str, Any],
        previous: PreviousRefresh | None,
        listeners: list[events.Listener],
        history: events.History,
    ) -> Refreshed:
        """Move particles onto the data as they are now; from `before` on, if that is given."""

    @abstractmethod
    def check_memory(self, parameters: Mapping[str, Any], m: int) -> None:
        """Refuse a refresh of m particles that memory cannot hold."""

    def check(self, parameters: Mapping[str, Any]) -> None:
        """Refuse to go on with counts that are not what the parameters say."""
        now = settings(parameters)
        for name, was in self.parameters.items():
            value = repr(now[name])
            if value != was:
                raise ValueError(
                    f"{name} was {was} and is {value}, but the counts depend on it; set it back, or "
                    "begin with a new estimator"
                )

    def absorbed(self, X: Any, y: Any) -> Self:
        """With more rows."""
        batch = self._read_batch(X, y)
        known = {label: label for label in self.ledger.rows}
        if known and (None in known) != (y is None):
            was = "without labels" if None in known else "with class labels"
            raise ValueError(f"the rows before came {was}; give all of them labels or none")
        if y is not None and not all(place.independent for place in self.ledger.places):
            raise ValueError(
                "random directions change with the number of classes; partial_fit with labels takes "
                "frame='orthogonal' or 'axis'"
            )
        for label, _ in batch.groups:
            same = known.get(label, label)
            if type(same) is not type(label):  # and which came first must not matter
                raise ValueError(
                    f"the label {label!r} is a {type(label).__name__}, but {same!r} before was a "
                    f"{type(same).__name__}; give all labels as one type"
                )
        if self.waiting is None:
            self._apply_change(batch, 1)
            return self
        if not self.waiting and len(batch.rows) >= FIRST_ROWS:
            return self._counted(batch)
        more = Counter(batch.keys())
        waiting = self.waiting | dict(zip(batch.keys(), batch.rows, strict=True))
        new = self._waiting(waiting, self._row_counts() + more)
        return new.settled() if sum(new.ledger.sizes().values()) >= FIRST_ROWS else new

    def forgotten(self, X: Any, y: Any) -> Self:
        """With fewer rows."""
        batch = self._read_batch(X, y)
        missing = self.ledger.missing(batch.names, batch.groups)
        if missing is not None:
            label = next(label for label, of in batch.groups if of.start <= missing < of.stop)
            of = "" if label is None else f" of class {conditions.format_label(label)}"
            raise ValueError(
                f"{len(batch.rows)} rows are to be forgotten, but the counts do not hold all of them: "
                f"a row{of} was never absorbed, or is forgotten already. Nothing was changed"
            )
        if len(batch.rows) == sum(self.ledger.sizes().values()):
            raise ValueError(
                f"these are all the {len(batch.rows)} rows there are, and a flow needs some; "
                "delete the model"
            )
        if self.waiting is not None:
            left = self._row_counts() - Counter(batch.keys())
            return self._waiting({key: self.waiting[key] for key in left}, left)
        self._apply_change(batch, -1)
        first = self.first and self.first.forgotten(*batch, self.ledger.rows)
        return replace(self, first=first, stale=True)

    def settled(self) -> Self:
        """With what the first rows decide, and those that waited counted."""
        if self.waiting is None:
            return self
        keys = sorted(self._row_counts().elements(), key=lambda key: (_label_key(key[0]), key[1]))
        groups, start = [], 0
        for label, n in Counter(label for label, _ in keys).items():
            groups.append((label, slice(start, start + n)))
            start += n
        rows = np.stack([self.waiting[key] for key in keys])
        return self._counted(RowBatch(rows, [name for _, name in keys], groups))

    def _counted(self, batch: RowBatch) -> Self:
        """With what these rows decide, and with them alone."""
        new = self.decided(batch)
        new._apply_change(batch, 1)
        new.ledger.change = None
        return new

    def _row_counts(self) -> Counter[tuple[Hashable, int]]:
        """The label and name of every row, and how often it is there."""
        rows = self.ledger.rows.items()
        return Counter({(label, name): n for label, names in rows for name, n in names.items()})

    def _waiting(
        self, waiting: dict[tuple[Hashable, int], np.ndarray], row_counts: Counter[tuple[Hashable, int]]
    ) -> Self:
        """With these rows, which wait."""
        rows: dict[Hashable, Counter[int]] = {}
        for (label, name), n in row_counts.items():
            rows.setdefault(label, Counter())[name] = n
        return replace(self, waiting=waiting, ledger=replace(self.ledger, rows=rows))

    def _read_batch(self, X: Any, y: Any) -> RowBatch:
        """The user's rows and labels, checked."""
        rows = self.read(X)
        if y is None:
            return RowBatch(rows, names_of(rows), [(None, slice(0, len(rows)))])
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
        return RowBatch(rows, names_of(rows), groups)

    def _apply_change(self, batch: RowBatch, sign: int) -> None:
        rows, names, groups = batch
        if sign > 0:
            self._need_memory({label for label, _ in groups} - set(self.ledger.rows))
        parts = [self.columns(rows[of]) for _, of in groups]
        columns = torch.cat(parts, dim=1)
        # A mirror image is a picture of its own, with its own noise.
        own = names if self.times == 1 else names_of(columns.T.contiguous().cpu().numpy())
        own_names = torch.tensor(own, device=self.device)
        wide = [(label, slice(self.times * of.start, self.times * of.stop)) for label, of in groups]

        def x(i: int, part: slice) -> Tensor:
            return self.values(columns[:, part], own_names[part], i)

        self.ledger.apply(Change(x, names, wide, sign, self.times))

    def _need_memory(self, new: set[Hashable]) -> None:
        steps = sum(
            (p.most_directions or self.ledger.dimension) * p.n_steps for p in self.ledger.places
        )
        need_memory(
            4 * steps * self.ledger.n_bins * len(new),
            self.device,
            f"the counts of {len(new)} classes, {steps} directions of {self.ledger.n_bins} bins each, "
            "need",
            "take a transport of fewer bins, such as transports.Histogram(64), or fewer steps",
        )

    def condition(self) -> tuple[conditions.Labels | None, list[Hashable], Tensor]:
        """The classes there are now, the ledger's labels in their order, and the class of every row."""
        sizes = self.ledger.sizes()
        if None in sizes:
            return None, [None], torch.zeros(sizes[None], dtype=torch.int64)
        # Labels that cannot be sorted are numbered in this order, not in that of their coming.
        condition = conditions.Labels.of(conditions.as_array(sorted(sizes, key=_label_key)))
        labels = condition.classes.tolist()
        counts = torch.tensor([sizes[label] for label in labels])
        return condition, labels, torch.repeat_interleave(torch.arange(len(labels)), counts)

    def particles(
        self,
        d: int,
        dtype: torch.dtype,
        m: int,
        codes: Tensor | None,
        amplifier: float,
        scale: float = 1.0,
        model: bool = True,
    ) -> tuple[Cloud, Noise]:
        """M of them at their start, with the classes that a fit on all the rows would give them.

        Behind them stand those that a `model` wants besides (`conditions.extra_codes`).
        """
        y, enough = None, max(m, conditions.ENOUGH) if model else m
        if codes is not None:
            seed = self.seed.child("conditions")
            y = codes[conditions.proportional(codes, m, seed, least=1)]
            y = conditions.moved(codes, y, amplifier, seed, model).to(self.device)
            enough = len(y)
        noise = Noise(self.seed.child("particles"))
        x = noise.child("start").fill(torch.empty(d, enough, dtype=dtype, device=self.device))
        return Cloud(x.mul_(scale), y), noise

    def mixture(
        self, place: int, labels: list[Hashable], codes: Tensor, particles: Cloud, flow: Flow
    ) -> Mixture:
        """The data at a place for particles that are conditioned, or are not."""
        class_codes = particles.y.cpu() if flow.conditional and particles.y is not None else codes
        masses = torch.bincount(class_codes, minlength=len(labels)).tolist()
        n_bins = self.ledger.n_bins
        n_bins = n_bins if len(labels) == 1 or flow.apart else max(n_bins, _MIN_BINS)
        return Mixture(self.ledger, place, labels, masses, n_bins)


def settings(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of an estimator, and those among its options, by name."""
    return {**parameters, **asdict(parameters["options"])}


def fixed(parameters: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    """Settings as they must stay."""
    now = settings(parameters)
    return {name: repr(now[name]) for name in names}


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


def _label_key(label: Hashable) -> tuple[str, str]:
    """Labels of any kind, in an order that depends on nothing else."""
    return type(label).__name__, repr(label)


def names_of(rows: np.ndarray) -> list[int]:
    """A 64-bit name for each row, by what is in it."""
    return [
        int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "little", signed=True)
        for row in rows
    ]
