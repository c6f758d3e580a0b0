"""Ranks: one fit on many devices and machines. What ranks say to each other is said here.

Every rank holds its own particles and its own rows of the data, draws the same frames from the seed,
and moves its own particles. Only the maps need everybody: ranges and then counts are added up over all
ranks (`Shared`), two messages per step, and every rank composes the same table from them.

`torchrun` starts the ranks, `joined` brings them together, ``fit(…, ranks=ranks)`` does the rest.
"""

from __future__ import annotations

import datetime
import os
import pickle
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from sliceflow import kernels
from sliceflow.dataframes import Form
from sliceflow.devices import resolve_device
from sliceflow.engine.batches import MiniBatches
from sliceflow.engine.conditions import row_weights
from sliceflow.engine.events import Event, Listener, tell
from sliceflow.engine.transports import Auto, Both, Counts, Fit, Histogram, Transport

__all__ = ["LostRank", "Place", "Ranks", "Shared", "joined", "under_torchrun", "weighed"]


_PATIENCE = 3.0  # seconds to wait for torchrun's signal


class LostRank(RuntimeError):
    """Another rank does not answer any more, or the job was ended from outside."""


@dataclass(frozen=True)
class Place:
    """Which of `total` things, counted through all ranks, are here: `count` of them from `first` on."""

    first: int
    count: int
    total: int

    @property
    def slice(self) -> slice:
        return slice(self.first, self.first + self.count)


@dataclass(frozen=True)
class Ranks:
    """The processes of one fit, seen from one of them. Alone, nothing is ever sent.

    Whatever asks the other ranks must be called by all of them.

    Examples
    --------
    >>> ranks = Ranks()
    >>> ranks.first, ranks.share(10).slice
    (True, slice(0, 10, None))
    """

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this rank is the one that speaks and writes for all."""
        return self.rank == 0

    # What is whose

    def share(self, total: int) -> Place:
        """This rank's share of `total` things: neighbours, and as many as every other rank's.

        Examples
        --------
        >>> [Ranks(r, 3).share(10).slice for r in range(3)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
        """
        first, end = (r * total // self.size for r in (self.rank, self.rank + 1))
        return Place(first, end - first, total)

    def mine(self, rows: Any) -> Any:
        """This rank's share of rows that every rank has."""
        return rows[self.share(len(rows)).slice]

    def place(self, count: int, what: str = "rows") -> Place:
        """Where this rank's `count` things are among those of all ranks, which must all have `what`."""
        all_of_them = self.told_by_all((count, what))
        for r, (n, kind) in enumerate(all_of_them):
            if kind != what:
                raise ValueError(
                    f"rank {r} has {kind} but rank {self.rank} has {what}; give all ranks the same "
                    "kind of data and the same arguments"
                )
            if n == 0:
                raise ValueError(f"rank {r} of {self.size} has none of the data; use fewer ranks")
        counts = [n for n, _ in all_of_them]
        return Place(sum(counts[: self.rank]), count, sum(counts))

    def agree(self, facts: dict[str, str]) -> None:
        """Refuse ranks that are not of one mind: `facts` must be the same on all, name by name.

        Examples
        --------
        >>> Ranks().agree({"amplifier": "10.0"})
        """
        for r, others in enumerate(self.told_by_all(facts)):
            differs = [
                f"{name}={others.get(name)} on rank {r} but {facts.get(name)} on rank {self.rank}"
                for name in sorted({*facts, *others})
                if facts.get(name) != others.get(name)
            ]
            if differs:
                raise ValueError(f"{'; '.join(differs)}: give all ranks the same parameters")

    # Messages

    def sum(self, t: Tensor) -> Tensor:
        """The sum over all ranks, written into t, which is returned."""
        return self._reduced(t, dist.ReduceOp.SUM)

    def least(self, t: Tensor) -> Tensor:
        """The least over all ranks, written into t, which is returned."""
        return self._reduced(t, dist.ReduceOp.MIN)

    def largest(self, number: int) -> int:
        """The largest of the ranks' numbers. It goes from CPU to CPU: no GPU is waited for."""
        return -int(self.least(torch.tensor([-number])))

    def _reduced(self, t: Tensor, how: Any) -> Tensor:
        if self.size > 1:
            with _asking(self):
                dist.all_reduce(t, how)
        return t

    def told_by_all(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order. Small ones: they are pickled, from rank to rank."""
        if self.size == 1:
            return [value]
        with _asking(self):
            text = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
            lengths = torch.zeros(self.size, dtype=torch.int64)
            lengths[self.rank] = len(text)
            dist.all_reduce(lengths)
            out = []
            for r, length in enumerate(lengths.tolist()):
                part = text if r == self.rank else torch.empty(length, dtype=torch.uint8)
                dist.broadcast(part, r)
                out.append(pickle.loads(part.numpy().tobytes()))
        return out

    def told_by_first(self, value: Any) -> Any:
        """What rank 0 says; the others wait for it."""
        return self.told_by_all(value if self.first else None)[0]

    def columns(self, t: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Every rank's columns (…, n) in turn, with the number of the first of them."""
        if self.size == 1:
            yield 0, t
            return
        first = 0
        for r, count in enumerate(self.told_by_all(t.shape[-1])):
            part = t.contiguous() if r == self.rank else t.new_empty((*t.shape[:-1], count))
            with _asking(self):
                dist.broadcast(part, r)
            yield first, part
            first += count

    def joint(self, t: Tensor) -> Tensor:
        """The columns (…, n) of all ranks side by side."""
        return t if self.size == 1 else torch.cat([part for _, part in self.columns(t)], dim=-1)

    def pick(self, t: Tensor, numbers: Tensor) -> Tensor:
        """Columns of all ranks' t (d, n) by their numbers. One rank's at a time pass by."""
        if self.size == 1:
            return t[:, numbers]
        out = t.new_empty(len(t), len(numbers))
        for first, part in self.columns(t):
            here = torch.nonzero((numbers >= first) & (numbers < first + part.shape[1]))[:, 0]
            out[:, here] = part[:, numbers[here] - first]
        return out

    def gather(self, rows: Any) -> Any:
        """The rows (n, …) of all ranks, of the kind that is given: all particles from each rank's.

        Examples
        --------
        >>> Ranks().gather(np.arange(3))
        array([0, 1, 2])
        """
        if self.size == 1:
            return rows
        if isinstance(rows, Tensor):
            return torch.cat([part.movedim(-1, 0) for _, part in self.columns(rows.movedim(0, -1))])
        form = Form.of(rows)
        if form is not None:
            return form.made(self.gather(np.asarray(rows)))
        if rows.dtype.kind not in "fiub":  # names of any length
            return np.concatenate(self.told_by_all(rows))
        as_bytes = torch.from_numpy(np.ascontiguousarray(rows)).reshape(-1).view(torch.uint8)
        whole: np.ndarray = self.joint(as_bytes).numpy().view(rows.dtype)
        return whole.reshape(-1, *rows.shape[1:])

    # What a fit needs

    def mean(self, rows: np.ndarray, n: int, about: np.ndarray | None = None) -> np.ndarray:
        """The mean of each column of all ranks' rows, n in all: the same bits however they are spread.

        Of (rows − about)², if that is given. Numbers are cut in two whole ones, multiples of 2⁻³⁰ and
        of 2⁻⁶² of the largest, whose sums are exact. The flow amplifies differences in rounding: one
        bit here, and after some dozens of steps the particles would be others.

        Examples
        --------
        >>> Ranks().mean(np.array([[1.0, 0.1], [2.0, 0.2]]), 2)
        array([1.5 , 0.15])
        """

        def values(rows: np.ndarray) -> np.ndarray:
            rows = np.asarray(rows, np.float64)
            return rows if about is None else (rows - about) ** 2

        ends = np.stack((rows.min(axis=0), -rows.max(axis=0))).astype(np.float64)
        low, high = self.least(torch.from_numpy(ends)).numpy() * [[1], [-1]]
        largest = np.maximum(np.abs(values(low)), np.abs(values(high)))
        power, total = np.frexp(largest)[1], np.zeros((2, rows.shape[1]), np.int64)
        chunk = max(1, (1 << 20) // max(1, rows.shape[1]))
        for first in range(0, len(rows), chunk):
            part = np.where(np.isfinite(largest), values(rows[first : first + chunk]), 0.0)
            part = np.ldexp(part, 30 - power)
            upper = np.rint(part)
            limbs = np.stack((upper, np.rint(np.ldexp(part - upper, 32))))
            total += limbs.astype(np.int64).sum(axis=1)
        wholes = zip(*self.sum(torch.from_numpy(total)).tolist(), strict=True)
        means = [((upper << 32) + lower) / n for upper, lower in wholes]  # rounded once
        return np.asarray(
            np.where(np.isfinite(largest), np.ldexp(np.array(means), power - 62), largest)
        )

    def shared(self, transport: Transport, n: int) -> Transport:
        """The transport between the clouds of all ranks, `n` particles and data in all."""
        if self.size == 1:
            return transport
        chosen = transport.chosen(n) if isinstance(transport, Auto) else transport
        return Shared(chosen, self, n)

    def agreeing(self, listeners: Sequence[Listener]) -> list[Listener]:
        """Listeners that end a stage on every rank as soon as one of them, on any rank, wants to."""
        if self.largest(len(listeners)) == 0 or self.size == 1:
            return list(listeners)

        class Agreed:
            def __call__(_, event: Event) -> bool:
                return self.largest(int(tell(listeners, event))) > 0

            def close(_) -> None:
                for listener in listeners:
                    getattr(listener, "close", lambda: None)()

        return [Agreed()]


@dataclass(frozen=True)
class Shared:
    """A transport between clouds of which every rank has a part; all ranks get the same table.

    Histograms send their ranges, four numbers per direction, and then their counts: 2·h·B numbers of
    four bytes, of eight where the data are weighted. Both sums are exact: the tables are those of one
    process that has all the columns. Any other transport is given all projections on every rank, which
    is exact as well but a message of h·(M + N) numbers: for small clouds and for a few steps.
    """

    transport: Transport
    ranks: Ranks
    n: int
    most: int | None = None

    def fit(self, z_p: Tensor, z_q: Tensor, weights: Tensor | None = None, runs: Both = None) -> Fit:
        if weights is not None and len(weights) == 1 and float(weights[0]) == 0:
            z_q, weights = z_q[:, :0], weights[:0]  # see `weighed`
        if isinstance(self.transport, Histogram):
            return self._by_counts(self.transport, z_p, z_q, weights, runs)
        place = self.ranks.place(z_p.shape[1])
        weights = None if weights is None else self.ranks.joint(weights)
        fit = self.transport.fit(self.ranks.joint(z_p), self.ranks.joint(z_q), weights)
        return fit._replace(dz=None if fit.dz is None else fit.dz[:, place.slice])

    def _by_counts(
        self, histogram: Histogram, z_p: Tensor, z_q: Tensor, weights: Tensor | None, runs: Both
    ) -> Fit:
        """Of all columns, or of every run by itself; a rank may have no data, or nothing of a class."""
        h, kernel = len(z_p), kernels.for_tensor(z_p)
        starts = [(0, z.shape[1]) for z in (z_p, z_q)] if runs is None else [r.starts for r in runs]
        parts = [
            [z[:, first:end] for first, end in pairwise(of)]
            for z, of in zip((z_p, z_q), starts, strict=True)
        ]
        far = torch.full_like(kernel.value_range(z_p[:, :1])[0], torch.inf)
        ranges = [[kernel.value_range(z) if z.shape[1] else (far, -far) for z in of] for of in parts]
        lo, hi = (torch.stack([torch.cat([r[end] for r in of]) for of in ranges]) for end in (0, 1))
        ends = self.ranks.least(torch.stack((lo, -hi)))  # (lo and −hi, p and q, C·h)
        still = []
        if runs is not None:
            nothing = torch.isinf(ends).any(0).any(0).view(-1, h)[:, 0]
            still = torch.nonzero(nothing)[:, 0].tolist()
            ends = torch.where(torch.isinf(ends), 0.0, ends)
        (lo_p, lo_q), (hi_p, hi_q) = ends[0], -ends[1]

        def counted(of: list[Tensor], lo: Tensor, hi: Tensor, weights: Tensor | None) -> Tensor:
            some = zip(of, lo.view(-1, h), hi.view(-1, h), strict=True)
            return torch.cat(
                [
                    kernel.count(z, a, b, histogram.n_bins, weights)
                    if z.shape[1]
                    else torch.zeros((h, histogram.n_bins), dtype=torch.int32, device=z.device)
                    for z, a, b in some
                ]
            )

        p = counted(parts[0], lo_p, hi_p, None)
        q = counted(parts[1], lo_q, hi_q, weights)
        whole = weights is None and self.n < 1 << 31
        both = self.ranks.sum(torch.cat((p, q)).to(torch.int32 if whole else torch.float64))
        counts_p, counts_q = both[: len(p)].to(p.dtype), both[len(p) :]
        counts_q = counts_q.to(p.dtype) if weights is None else counts_q
        of_all = Counts(counts_p, lo_p, hi_p), Counts(counts_q, lo_q, hi_q)
        return histogram.between(*of_all, z_p.dtype, still, len(starts[0]) - 1)


def weighed(
    codes_q: Tensor | None, codes_p: Tensor | None, here: Tensor, device: torch.device | str
) -> tuple[MiniBatches, int]:
    """What the steps of ranks look at, everything, with the weights of the data that are here.

    And how many of all data are left out, because no particle has their condition.

    Parameters
    ----------
    codes_q, codes_p : the conditions of all data and all particles; None where they play no part
    here : numbers of the data that this rank has
    """
    weights = None if codes_q is None or codes_p is None else row_weights(codes_q, codes_p)
    if weights is None:
        return MiniBatches(), 0
    mine = weights[here]
    used = torch.nonzero(mine)[:, 0]
    if len(used) == 0:  # projections of nothing are asking for trouble: one column, of no weight
        used = torch.zeros(1, dtype=torch.int64)
    data = None if len(used) == len(mine) else [used.to(device)]
    return MiniBatches(data=data, weights=mine[used].to(device)), int((weights == 0).sum())


def under_torchrun() -> bool:
    """Whether this process is one of several that `torchrun` started."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def joined(device: str | torch.device = "auto", timeout: float = 600.0) -> Iterator[Ranks]:
    """The ranks that `torchrun` started, joined while the block runs; without it, one rank.

    NCCL joins GPUs, each rank taking the one of its local number, and Gloo joins CPUs.

    Parameters
    ----------
    device : as of the estimator
    timeout : seconds to wait for the others before they are held to be lost

    Examples
    --------
    >>> from sliceflow import SlicedWassersteinFlow
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> with joined("cpu") as ranks:
    ...     flow = SlicedWassersteinFlow(n_particles=200, n_steps=3, random_state=0)
    ...     flow.fit(ranks.mine(X), ranks=ranks).particles_.shape
    (200, 2)
    """
    if not under_torchrun():
        yield Ranks()
        return
    backend = "gloo"
    if resolve_device(device).type == "cuda":
        local, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= there:
            raise ValueError(
                f"local rank {local} has no GPU: torch sees {there} here; start at most "
                f"--nproc-per-node {there}, or pass device='cpu'"
            )
        torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl"
    ours = not dist.is_initialized()
    if ours:
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout))
    ranks = Ranks(dist.get_rank(), dist.get_world_size())

    def ended(*_: Any) -> None:
        raise LostRank(
            f"rank {ranks.rank} of {ranks.size} was told to end: another rank has died, or the job was "
            "cancelled"
        )

    hears = threading.current_thread() is threading.main_thread()
    before: Any = signal.signal(signal.SIGTERM, ended) if hears else None
    try:
        yield ranks
    finally:
        if hears:
            signal.signal(signal.SIGTERM, before)
    if ours:  # not after an error: there may be nobody left to part from
        dist.destroy_process_group()


@contextmanager
def _asking(ranks: Ranks) -> Iterator[None]:
    """What torch says when a rank does not answer, in our words; any other error as it is."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, LostRank) or not _is_loss(error):
            raise
        _outlive_torchrun()
        raise LostRank(
            f"rank {ranks.rank} of {ranks.size} has lost another rank, which died or does not answer"
        ) from error


def _is_loss(error: RuntimeError) -> bool:
    """Whether another rank is gone, by what Gloo, NCCL and torch's store say then.

    Messages of other sizes than the other rank's, or no memory for one, are no loss.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return False
    if isinstance(error, (dist.DistNetworkError, dist.DistStoreError)):
        return True
    return _LOSS.search(str(error)) is not None


_LOSS = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|closed by peer|reset by peer|broken pipe"
    r"|timed? ?out|pair closure|no route to host|network error|socket"
    r"|remote ?error|remote process exited|communicator was aborted",
    re.IGNORECASE,
)


def _outlive_torchrun() -> None:
    """Let pass the SIGTERM with which torchrun ends all ranks when one has died.

    It comes within a second; without it, what this rank has to say would be lost.
    """
    if threading.current_thread() is not threading.main_thread() or not dist.is_torchelastic_launched():
        return
    heard = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: heard.set())
    try:
        heard.wait(_PATIENCE)
    finally:
        signal.signal(signal.SIGTERM, before)
