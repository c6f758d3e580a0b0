"""`Online`: adds the user's rows to the counts and removes them, for both estimators."""

from __future__ import annotations

import hashlib
import math
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
from sliceflow.engine.classes import sort_by_class
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

FIRST_ROWS = 1000  # number of first rows that decide, unless a refresh comes earlier
_MIN_BINS = 1024  # minimum for classes that share maps


class RowBatch(NamedTuple):
    """Rows sorted by label, their names, and the slice of each label."""

    rows: np.ndarray
    names: list[int]
    groups: list[tuple[Hashable, slice]]

    def keys(self) -> list[tuple[Hashable, int]]:
        """The label and the name of every row."""
        return [(label, name) for label, of in self.groups for name in self.names[of]]


class PreviousRefresh(NamedTuple):
    """The previous refresh. A new one keeps all but the `last` steps."""

    fitted: Any
    history: dict[str, list[Any]]
    last: int


class Refreshed(NamedTuple):
    """The result of a refresh: plan, fitted state, batched samples and their classes."""

    plan: Any
    fitted: Any
    particles: Any
    y: np.ndarray | None


@dataclass
class Online(ABC):
    """The counts of one estimator, and the settings that they depend on.

    The first rows wait until there are enough of them, or until a refresh. Then they are counted, and
    only their counts are kept.

    Parameters
    ----------
    ledger : the counts
    seed, device : seed and device of all refreshes
    parameters : the estimator's parameters that the counts depend on
    times : columns per row
    waiting : the waiting first rows by label and name; None once they are counted
    first : the rows that decided, or None if nothing depends on them
    stale : whether the model may have maps fitted to forgotten rows
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
        """X as (n, …), always with the same dtype."""

    @abstractmethod
    def decided(self, batch: RowBatch) -> Self:
        """A copy with the decisions of these rows, and empty counts."""

    @abstractmethod
    def columns(self, rows: np.ndarray) -> Tensor:
        """The rows of one class in the engine's layout: (d, times·n) on the device."""

    @abstractmethod
    def values(self, columns: Tensor, names: Tensor, place: int) -> Tensor:
        """Columns in the form that stage `place` counts."""

    @abstractmethod
    def refresh(
        self,
        parameters: Mapping[str, Any],
        previous: PreviousRefresh | None,
        listeners: list[events.Listener],
        history: events.History,
    ) -> Refreshed:
        """Move particles onto the current data; continue from `previous`, if given."""

    @abstractmethod
    def check_memory(self, parameters: Mapping[str, Any], m: int) -> None:
        """Raise an error if memory cannot hold a refresh of m particles."""

    def check(self, parameters: Mapping[str, Any]) -> None:
        """Raise a ValueError if a parameter that the counts depend on has changed."""
        now = settings(parameters)
        for name, was in self.parameters.items():
            value = repr(now[name])
            if value != was:
                raise ValueError(
                    f"{name} was {was} and is now {value}, but the counts depend on it; set it back, "
                    "or start with a new estimator"
                )

    def absorbed(self, X: Any, y: Any) -> Self:
        """The counts with more rows."""
        batch = self._read_batch(X, y)
        known = {label: label for label in self.ledger.rows}
        if known and (None in known) != (y is None):
            was = "without labels" if None in known else "with class labels"
            raise ValueError(f"the earlier rows came {was}; pass labels for all rows or for none")
        if y is not None and not all(place.independent for place in self.ledger.places):
            raise ValueError(
                "random directions change with the number of classes; partial_fit with labels needs "
                "frame='orthogonal' or 'axis'"
            )
        for label, _ in batch.groups:
            same = known.get(label, label)
            if type(same) is not type(label):  # the order of the rows must not matter
                raise ValueError(
                    f"the label {label!r} is a {type(label).__name__}, but earlier {same!r} was a "
                    f"{type(same).__name__}; pass all labels as one type"
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
        """The counts with fewer rows."""
        batch = self._read_batch(X, y)
        missing = self.ledger.missing(batch.names, batch.groups)
        if missing is not None:
            label = next(label for label, of in batch.groups if of.start <= missing < of.stop)
            of = "" if label is None else f" of class {conditions.format_label(label)}"
            raise ValueError(
                f"cannot forget these {len(batch.rows)} rows: a row{of} was never added, or was "
                "already forgotten. Nothing was changed"
            )
        if len(batch.rows) == sum(self.ledger.sizes().values()):
            raise ValueError(
                f"cannot forget all {len(batch.rows)} rows: a flow needs at least one; delete the "
                "model instead"
            )
        if self.waiting is not None:
            left = self._row_counts() - Counter(batch.keys())
            return self._waiting({key: self.waiting[key] for key in left}, left)
        self._apply_change(batch, -1)
        first = self.first and self.first.forgotten(*batch, self.ledger.rows)
        return replace(self, first=first, stale=True)

    def settled(self) -> Self:
        """The counts after the waiting rows have decided and been counted."""
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
        """The counts of these rows alone, with their decisions."""
        new = self.decided(batch)
        new._apply_change(batch, 1)
        new.ledger.change = None
        return new

    def _row_counts(self) -> Counter[tuple[Hashable, int]]:
        """The label and name of each row, and its count."""
        rows = self.ledger.rows.items()
        return Counter({(label, name): n for label, names in rows for name, n in names.items()})

    def _waiting(
        self, waiting: dict[tuple[Hashable, int], np.ndarray], row_counts: Counter[tuple[Hashable, int]]
    ) -> Self:
        """A copy in which these rows wait."""
        rows: dict[Hashable, Counter[int]] = {}
        for (label, name), n in row_counts.items():
            rows.setdefault(label, Counter())[name] = n
        return replace(self, waiting=waiting, ledger=replace(self.ledger, rows=rows))

    def _read_batch(self, X: Any, y: Any) -> RowBatch:
        """The user's rows and labels, checked and sorted by label."""
        rows = self.read(X)
        if y is None:
            return RowBatch(rows, names_of(rows), [(None, slice(0, len(rows)))])
        labels = conditions.as_array(y)
        condition = conditions.infer(labels, len(rows))
        if not isinstance(condition, conditions.Labels):
            raise ValueError(
                f"y has shape {labels.shape}; partial_fit takes class labels (n,). For a continuous y "
                "set condition='local' of vectors, or use fit"
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
        # A mirror image has its own name, and so its own noise.
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
            "use a transport with fewer bins, such as transports.Histogram(64), or fewer steps",
        )

    def condition(self) -> tuple[conditions.Labels | None, list[Hashable], Tensor]:
        """The current classes, the ledger's labels in their order, and the class of each row."""
        sizes = self.ledger.sizes()
        if None in sizes:
            return None, [None], torch.zeros(sizes[None], dtype=torch.int64)
        # Sort first: labels without an order must not be numbered by when they were added.
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
    ) -> tuple[Cloud, Tensor, Noise]:
        """Particles at their start, with the classes of a fit on all rows, and where the M kept are.

        The others are those that a `model` needs (`conditions.extra_codes`). They are sorted by class
        if each class has its own maps (ξ = ∞).
        """
        y, enough = None, max(m, conditions.ENOUGH) if model else m
        if codes is not None:
            seed = self.seed.child("conditions")
            y = codes[conditions.proportional(codes, m, seed, least=1)]
            y = conditions.moved(codes, y, amplifier, seed, model).to(self.device)
            enough = len(y)
        noise = Noise(self.seed.child("particles"))
        x = noise.child("start").fill(torch.empty(d, enough, dtype=dtype, device=self.device))
        cloud, place = Cloud(x.mul_(scale), y), torch.arange(m, device=self.device)
        if y is not None and codes is not None and math.isinf(amplifier):
            y, _, order, runs = sort_by_class(y, int(codes.max()) + 1)
            cloud, place = Cloud(cloud.x, y, runs), order[:m]
        return cloud, place, noise

    def mixture(
        self, place: int, labels: list[Hashable], codes: Tensor, particles: Cloud, flow: Flow
    ) -> Mixture:
        """The data at stage `place`, for these particles."""
        class_codes = particles.y.cpu() if flow.conditional and particles.y is not None else codes
        masses = torch.bincount(class_codes, minlength=len(labels)).tolist()
        n_bins = self.ledger.n_bins
        n_bins = n_bins if len(labels) == 1 or flow.apart else max(n_bins, _MIN_BINS)
        return Mixture(self.ledger, place, labels, masses, n_bins)


def settings(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of an estimator, including its options, by name."""
    return {**parameters, **asdict(parameters["options"])}


def fixed(parameters: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    """The settings that must not change, as text."""
    now = settings(parameters)
    return {name: repr(now[name]) for name in names}


def histogram_bins(transport: str | transports.Transport, auto: int) -> int:
    """The number of bins per histogram: the transport's, or `auto`."""
    if isinstance(transport, str) and transport != "sorted":
        return auto
    n_bins = getattr(transport, "n_bins", None)
    if n_bins is None:
        raise ValueError(
            f"transport={transport!r} sorts the data, but partial_fit keeps only counts; "
            "use transport='auto' or transports.Histogram(n_bins)"
        )
    need(n_bins >= 4 and n_bins % 4 == 0, "n_bins", n_bins, "a multiple of 4: bins are merged in pairs")
    return int(n_bins)


def _label_key(label: Hashable) -> tuple[str, str]:
    """A sort key for labels of any type."""
    return type(label).__name__, repr(label)


def names_of(rows: np.ndarray) -> list[int]:
    """A 64-bit name for each row: a hash of its content."""
    return [
        int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "little", signed=True)
        for row in rows
    ]
