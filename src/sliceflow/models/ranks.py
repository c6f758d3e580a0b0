"""One fit on many devices and machines, by `torch.distributed`.

Every rank holds its own particles and rows, and draws the same frames from the seed. Only the maps need
all ranks: their ranges and then their counts are summed (`SharedHistogram`), two messages per step.
`torchrun` starts the ranks, `joined` connects them, and ``fit(…, ranks=ranks)`` does the rest.
"""

from __future__ import annotations

import datetime
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from sliceflow import kernels
from sliceflow.dataframes import as_frame, column_names
from sliceflow.devices import resolve_device
from sliceflow.engine.batches import ALL_COLUMNS, Batch
from sliceflow.engine.events import Listener, notify
from sliceflow.engine.flow import Flow
from sliceflow.engine.shrinkage import Shrunk
from sliceflow.engine.transports import Counts, FittedMap, Histogram, Transport

__all__ = ["LostRankError", "Ranks", "joined", "under_torchrun"]

_FINE = 4096  # bins of steps that are sorted in a single process, to make columns exact


@dataclass(frozen=True)
class Shard:
    """The rows of this rank among the `total` of all ranks: `count` of them, starting at `first`."""

    first: int
    count: int
    total: int

    @property
    def slice(self) -> slice:
        """The numbers of these rows among all."""
        return slice(self.first, self.first + self.count)

    def times(self, n: int) -> Shard:
        """The same if every row stands n times, one after the other."""
        return Shard(n * self.first, n * self.count, n * self.total)


@dataclass(frozen=True)
class Ranks:
    """The processes of one fit, seen from one of them. All ranks must call every method that sends."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this rank is the one that prints and writes files."""
        return self.rank == 0

    def share(self, total: int) -> Shard:
        """This rank's equal share of `total` rows, which are contiguous."""
        first, end = (r * total // self.size for r in (self.rank, self.rank + 1))
        return Shard(first, end - first, total)

    def mine(self, rows: Any) -> Any:
        """This rank's share of rows that every rank was given."""
        return rows[self.share(len(rows)).slice]

    def shard(self, count: int, what: str = "rows") -> Shard:
        """Place of this rank's `count` rows among those of all ranks, which must all have `what`."""
        answers = self.all_gather((count, what))
        for r, (n, kind) in enumerate(answers):
            if kind != what:
                advice = "give all ranks the same kind of data and the same arguments"
                raise ValueError(
                    f"rank {r} has {kind} but rank {self.rank} has {what}; {advice}"
                )
            if n == 0:
                raise ValueError(
                    f"rank {r} of {self.size} has none of the data; use fewer ranks"
                )
        counts = [n for n, _ in answers]
        return Shard(sum(counts[: self.rank]), count, sum(counts))

    def agree(self, facts: dict[str, str]) -> None:
        """Raise a ValueError unless `facts` are the same on all ranks; it lists the differences."""
        for r, others in enumerate(self.all_gather(facts)):
            pairs = [
                (name, others.get(name), facts.get(name))
                for name in sorted({*facts, *others})
            ]
            here = f"on rank {self.rank}"
            differs = [
                f"{name}={a} on rank {r} but {b} {here}"
                for name, a, b in pairs
                if a != b
            ]
            if differs:
                raise ValueError(
                    f"{'; '.join(differs)}: give all ranks the same parameters"
                )

    # Messages

    def sum(self, t: Tensor) -> Tensor:
        """The sum over all ranks, written into t, which is returned."""
        return self._reduce(t, dist.ReduceOp.SUM)

    def minimum(self, t: Tensor) -> Tensor:
        """The elementwise minimum over all ranks, written into t, which is returned."""
        return self._reduce(t, dist.ReduceOp.MIN)

    def maximum(self, number: int) -> int:
        """The largest of the ranks' numbers. It is sent between CPUs and does not wait for a GPU."""
        return -int(self.minimum(torch.tensor([-number])))

    def _reduce(self, t: Tensor, how: Any) -> Tensor:
        if self.size > 1:
            with self._reporting_lost_ranks():
                dist.all_reduce(t, how)
        return t

    def all_gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in order of rank. They are pickled: keep them small."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with self._reporting_lost_ranks():
            dist.all_gather_object(values, value)
        return values

    def broadcast(self, value: Any) -> Any:
        """The value of rank 0, on all ranks."""
        return self.all_gather(value if self.first else None)[0]

    def columns(self, t: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Every rank's columns (…, n) in turn, with the index of the first one."""
        if self.size == 1:
            yield 0, t
            return
        first = 0
        for r, count in enumerate(self.all_gather(t.shape[-1])):
            part = (
                t.contiguous()
                if r == self.rank
                else t.new_empty((*t.shape[:-1], count))
            )
            with self._reporting_lost_ranks():
                dist.broadcast(part, r)
            yield first, part
            first += count

    def pick(self, t: Tensor, numbers: Tensor) -> Tensor:
        """Columns of all ranks' t (d, n) by their indices. Ranks broadcast their own in turn."""
        if self.size == 1:
            return t[:, numbers]
        out = t.new_empty(len(t), len(numbers))
        for first, part in self.columns(t):
            here = torch.nonzero(
                (numbers >= first) & (numbers < first + part.shape[1])
            )[:, 0]
            out[:, here] = part[:, numbers[here] - first]
        return out

    def gather(self, rows: Any) -> Any:
        """The rows (n, …) of all ranks, of the same type as `rows`."""
        if self.size == 1:
            return rows
        if isinstance(rows, Tensor):
            parts = [part for _, part in self.columns(rows.movedim(0, -1))]
            return torch.cat(parts, -1).movedim(-1, 0).contiguous()
        names = column_names(rows)
        whole = np.concatenate(self.all_gather(np.asarray(rows)))
        return whole if names is None else as_frame(whole, names)

    def mean(
        self, rows: np.ndarray, n: int, about: np.ndarray | None = None
    ) -> np.ndarray:
        """The mean of each column, or of (rows − about)², over the n rows of all ranks.

        It has the same bits however rows are spread: numbers are split into two integers, multiples of
        2⁻³⁰ and of 2⁻⁶² of the largest, whose sums are exact. The flow would amplify one other bit.
        """

        def values(rows: np.ndarray) -> np.ndarray:
            rows = np.asarray(rows, np.float64)
            return rows if about is None else (rows - about) ** 2

        ends = np.stack((rows.min(axis=0), -rows.max(axis=0))).astype(np.float64)
        low, high = self.minimum(torch.from_numpy(ends)).numpy() * [[1], [-1]]
        largest = np.maximum(np.abs(values(low)), np.abs(values(high)))
        finite = np.isfinite(largest)
        power = np.frexp(largest)[1]
        total = np.zeros((2, rows.shape[1]), np.int64)
        chunk = max(1, (1 << 20) // max(1, rows.shape[1]))
        for first in range(0, len(rows), chunk):
            part = np.ldexp(
                np.where(finite, values(rows[first : first + chunk]), 0.0), 30 - power
            )
            upper = np.rint(part)
            limbs = np.stack((upper, np.rint(np.ldexp(part - upper, 32))))
            total += limbs.astype(np.int64).sum(axis=1)
        wholes = zip(*self.sum(torch.from_numpy(total)).tolist(), strict=True)
        means = [((upper << 32) + lower) / n for upper, lower in wholes]  # rounded once
        return np.asarray(
            np.where(finite, np.ldexp(np.array(means), power - 62), largest)
        )

    def agreeing(self, listeners: Sequence[Listener]) -> list[Listener]:
        """Listeners that end a stage on all ranks as soon as one listener, on any rank, asks to."""
        if self.size == 1 or self.maximum(len(listeners)) == 0:
            return list(listeners)
        return [lambda event: self.maximum(int(notify(listeners, event))) > 0]

    @contextmanager
    def _reporting_lost_ranks(self) -> Iterator[None]:
        try:
            yield
        except (LostRankError, torch.OutOfMemoryError):
            raise
        except RuntimeError as error:
            fact = f"rank {self.rank} of {self.size} has lost another rank"
            raise LostRankError(
                f"{fact}, which died or does not answer: {error}"
            ) from error


SINGLE = Ranks()  # a fit in one process


class LostRankError(RuntimeError):
    """Another rank no longer answers, or the job was ended from outside."""


def under_torchrun() -> bool:
    """Whether this process is one of several that `torchrun` started."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def joined(
    device: str | torch.device = "auto", timeout: float = 600.0
) -> Iterator[Ranks]:
    """The ranks that `torchrun` started, connected while the block runs; a single rank without it.

    NCCL connects GPUs, where each rank takes the GPU of its local rank. Gloo connects CPUs. A rank that
    does not answer for `timeout` seconds counts as lost.

    Examples
    --------
    >>> import numpy as np
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
        local = int(os.environ.get("LOCAL_RANK", "0"))
        available = torch.cuda.device_count()
        if local >= available:
            advice = f"start at most --nproc-per-node {available}, or pass device='cpu'"
            raise ValueError(
                f"local rank {local} has no GPU: torch sees {available} here; {advice}"
            )
        torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl"
    ours = not dist.is_initialized()
    if ours:
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout))
    ranks = Ranks(dist.get_rank(), dist.get_world_size())

    def ended(*_: Any) -> None:
        which = f"rank {ranks.rank} of {ranks.size} was told to end"
        raise LostRankError(f"{which}: another rank died, or the job was cancelled")

    in_main = (
        threading.current_thread() is threading.main_thread()
    )  # only there are signals handled
    before: Any = signal.signal(signal.SIGTERM, ended) if in_main else None
    try:
        yield ranks
    except LostRankError:
        if (
            dist.is_torchelastic_launched()
        ):  # whose signal would end this rank before its error is told
            before = signal.SIG_IGN
        raise
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)
    if ours:  # not after an error: other ranks may be gone
        dist.destroy_process_group()


# Maps of clouds that are spread over ranks


def across_ranks(flow: Flow, ranks: Ranks) -> Flow:
    """The flow with maps fitted to all ranks' clouds by histograms, fine ones where columns are exact."""
    if ranks.size == 1:
        return flow
    shared = (
        _shared(stage.transport, ranks, stage.matches_marginals)
        for stage in flow.stages
    )
    stages = [
        replace(s, transport=transport)
        for s, transport in zip(flow.stages, shared, strict=True)
    ]
    return replace(flow, stages=stages)


def _shared(transport: Transport, ranks: Ranks, exact: bool) -> Transport:
    if isinstance(transport, Shrunk):
        return replace(
            transport,
            transport=_shared(transport.transport, ranks, exact),
            sum_over_ranks=ranks.sum,
        )
    if exact and not isinstance(transport, Histogram):
        transport = Histogram(_FINE)
    if not isinstance(transport, Histogram):
        fact = f"transport={transport!r} sorts, which {ranks.size} ranks cannot do together"
        raise ValueError(
            f"{fact}; use transport='histogram' or 'auto', or fit in one process"
        )
    return SharedHistogram(transport, ranks)


@dataclass(frozen=True)
class SharedHistogram:
    """Histograms of clouds of which every rank has a part: exact sums, the tables of a single process."""

    histogram: Histogram
    ranks: Ranks
    max_samples: None = None

    def fit(self, z_p: Tensor, z_q: Tensor, batch: Batch = ALL_COLUMNS) -> FittedMap:
        """Count all columns, or every run separately; a rank may have no data, or none of a class."""
        weights = batch.weights
        class_slices = batch.class_slices
        histogram = self.histogram
        if weights is not None and len(weights) == 1 and float(weights[0]) == 0:
            z_q = z_q[:, :0]
            weights = weights[:0]  # see `weighted_batches`
        h = len(z_p)
        kernel = kernels.for_tensor(z_p)
        starts = (
            [(0, z.shape[1]) for z in (z_p, z_q)]
            if class_slices is None
            else [r.starts for r in class_slices]
        )
        clouds = zip((z_p, z_q), starts, strict=True)
        parts = [[z[:, first:end] for first, end in pairwise(own)] for z, own in clouds]
        far = torch.full_like(kernel.value_range(z_p[:, :1])[0], torch.inf)
        ranges = [
            [kernel.value_range(z) if z.shape[1] else (far, -far) for z in own]
            for own in parts
        ]
        lo, hi = (
            torch.stack([torch.cat([r[end] for r in own]) for own in ranges])
            for end in (0, 1)
        )
        ends = self.ranks.minimum(torch.stack((lo, -hi)))  # (lo and −hi, p and q, C·h)
        still = []
        if class_slices is not None:
            nothing = torch.isinf(ends).any(0).any(0).view(-1, h)[:, 0]
            still = torch.nonzero(nothing)[:, 0].tolist()
            ends = torch.where(torch.isinf(ends), 0.0, ends)
        (lo_p, lo_q), (hi_p, hi_q) = histogram.bin_range(ends[0], -ends[1])

        def counts(
            own: list[Tensor], lo: Tensor, hi: Tensor, weights: Tensor | None
        ) -> Tensor:
            ranges = zip(own, lo.view(-1, h), hi.view(-1, h), strict=True)
            return torch.cat(
                [
                    kernel.count(z, low, high, histogram.n_bins, weights)
                    for z, low, high in ranges
                ]
            )

        p = counts(parts[0], lo_p, hi_p, None)
        q = counts(parts[1], lo_q, hi_q, weights)
        both = self.ranks.sum(torch.cat((p, q)).double())
        counts_p = both[: len(p)].to(p.dtype)
        counts_q = both[len(p) :]
        counts_q = counts_q.to(p.dtype) if weights is None else counts_q
        of_all = Counts(counts_p, lo_p, hi_p), Counts(counts_q, lo_q, hi_q)
        return histogram.between(*of_all, z_p.dtype, still, len(starts[0]) - 1)
