"""One fit on many devices and machines, by `torch.distributed`.

Every rank holds its own particles and rows, and draws the same frames from the seed.
Only the maps need all ranks: their ranges and then their counts are summed
(`rank_transports`), two messages per step. `torchrun` starts the ranks, `joined`
connects them, and ``fit(…, ranks=ranks)`` does the rest.
"""

from __future__ import annotations

import datetime
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from sliceflow.dataframes import as_frame, column_names
from sliceflow.devices import resolve_device
from sliceflow.engine.events import Event, Listener, notify
from sliceflow.errors import DataError

__all__ = ["LostRankError", "Ranks", "joined", "under_torchrun"]

# Numbers of which sums are computed at a time: 8 MiB of float64.
_NUMBERS_AT_ONCE = 1 << 20


class LostRankError(RuntimeError):
    """Another rank no longer answers, or the job was ended from outside."""


@dataclass(frozen=True)
class Shard:
    """The rows of this rank among the `total` of all ranks.

    There are `count` of them, starting at `first`.
    """

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
    """The processes of one fit, seen from one of them.

    All ranks must call every method that sends a message.
    """

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this rank is the one that prints and writes files."""
        return self.rank == 0

    def share(self, total: int) -> Shard:
        """This rank's equal share of `total` rows, which are contiguous."""
        first = self.rank * total // self.size
        end = (self.rank + 1) * total // self.size
        return Shard(first, end - first, total)

    def mine(self, rows: Any) -> Any:
        """This rank's share of rows that every rank was given."""
        return rows[self.share(len(rows)).slice]

    def shard(self, count: int, what: str = "rows") -> Shard:
        """The place of this rank's `count` rows among those of all ranks.

        All ranks must say the same of `what` they have.
        """
        answers = self.all_gather((count, what))
        for rank, (n, kind) in enumerate(answers):
            if kind != what:
                fact = f"rank {rank} has {kind} but rank {self.rank} has {what}"
                hint = "give all ranks the same kind of data and the same arguments"
                raise DataError(fact, hint)
            if n == 0:
                fact = f"rank {rank} of {self.size} has none of the data"
                raise DataError(fact, "use fewer ranks")
        counts = [n for n, _ in answers]
        return Shard(sum(counts[: self.rank]), count, sum(counts))

    def agree(self, facts: dict[str, str]) -> None:
        """Raise a ValueError that lists differences unless all ranks have `facts`."""
        for rank, others in enumerate(self.all_gather(facts)):
            differences = []
            for name in sorted({*facts, *others}):
                other = others.get(name)
                here = facts.get(name)
                if other != here:
                    differences.append(
                        f"{name}={other} on rank {rank} but {here} on rank {self.rank}"
                    )
            if differences:
                hint = "give all ranks the same parameters"
                raise ValueError(f"{'; '.join(differences)}: {hint}")

    # Messages

    def sum(self, t: Tensor) -> Tensor:
        """The sum over all ranks, written into t, which is returned."""
        return self._reduce(t, dist.ReduceOp.SUM)

    def minimum(self, t: Tensor) -> Tensor:
        """The elementwise minimum over all ranks, written into t, which is returned."""
        return self._reduce(t, dist.ReduceOp.MIN)

    def maximum(self, number: int) -> int:
        """The largest of the ranks' numbers.

        It is sent between CPUs and does not wait for a GPU.
        """
        return -int(self.minimum(torch.tensor([-number])))

    def _reduce(self, t: Tensor, operation: Any) -> Tensor:
        if self.size > 1:
            with self._reporting_lost_ranks():
                dist.all_reduce(t, operation)
        return t

    def all_gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in order of rank.

        They are pickled: keep them small.
        """
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
        for rank, count in enumerate(self.all_gather(t.shape[-1])):
            if rank == self.rank:
                part = t.contiguous()
            else:
                part = t.new_empty((*t.shape[:-1], count))
            with self._reporting_lost_ranks():
                dist.broadcast(part, rank)
            yield first, part
            first += count

    def pick(self, t: Tensor, numbers: Tensor) -> Tensor:
        """Columns of all ranks' t (d, n) by their numbers.

        The ranks broadcast their own columns in turn.
        """
        if self.size == 1:
            return t[:, numbers]
        picked = t.new_empty(len(t), len(numbers))
        for first, part in self.columns(t):
            in_part = (numbers >= first) & (numbers < first + part.shape[1])
            places = torch.nonzero(in_part)[:, 0]
            picked[:, places] = part[:, numbers[places] - first]
        return picked

    def gather(self, rows: Any) -> Any:
        """The rows (n, …) of all ranks, of the same type as `rows`."""
        if self.size == 1:
            return rows
        if isinstance(rows, Tensor):
            parts = [part for _, part in self.columns(rows.movedim(0, -1))]
            return torch.cat(parts, -1).movedim(-1, 0).contiguous()
        names = column_names(rows)
        all_rows = np.concatenate(self.all_gather(np.asarray(rows)))
        return all_rows if names is None else as_frame(all_rows, names)

    def mean(
        self, rows: np.ndarray, n: int, about: np.ndarray | None = None
    ) -> np.ndarray:
        """The mean of each column, or of (rows − about)², over the n rows of all ranks.

        It has the same bits however rows are spread over ranks, because a flow would
        amplify a difference in a single bit: numbers are split into two integers,
        multiples of 2⁻³⁰ and of 2⁻⁶² of the largest, whose sums are exact.
        """
        lowest = rows.min(axis=0).astype(np.float64)
        highest = rows.max(axis=0).astype(np.float64)
        if self.size > 1:
            ends = torch.from_numpy(np.stack((lowest, -highest)))
            lowest, highest = self.minimum(ends).numpy() * [[1], [-1]]
        if about is not None:
            lowest = (lowest - about) ** 2
            highest = (highest - about) ** 2
        largest = np.maximum(np.abs(lowest), np.abs(highest))
        finite = np.isfinite(largest)
        power = np.frexp(largest)[1]
        sums = np.zeros((2, rows.shape[1]), np.int64)  # of the two integers
        chunk = max(1, _NUMBERS_AT_ONCE // max(1, rows.shape[1]))
        for first in range(0, len(rows), chunk):
            values = np.asarray(rows[first : first + chunk], np.float64)
            if about is not None:
                values = (values - about) ** 2
            scaled = np.ldexp(np.where(finite, values, 0.0), 30 - power)
            upper = np.rint(scaled)
            lower = np.rint(np.ldexp(scaled - upper, 32))
            sums += np.stack((upper, lower)).astype(np.int64).sum(axis=1)
        if self.size > 1:
            sums = self.sum(torch.from_numpy(sums)).numpy()
        # Python's integers have any size, so each mean is rounded only once.
        pairs = zip(*sums.tolist(), strict=True)
        means = [((upper << 32) + lower) / n for upper, lower in pairs]
        return np.asarray(
            np.where(finite, np.ldexp(np.array(means), power - 62), largest)
        )

    def agreeing(self, listeners: Sequence[Listener]) -> list[Listener]:
        """Listeners that end a stage on all ranks if one, on any rank, asks to."""
        if self.size == 1 or self.maximum(len(listeners)) == 0:
            return list(listeners)

        def notify_on_all_ranks(event: Event) -> bool:
            return self.maximum(int(notify(listeners, event))) > 0

        return [notify_on_all_ranks]

    @contextmanager
    def _reporting_lost_ranks(self) -> Iterator[None]:
        """Turn errors of messages into a `LostRankError`, which says what they mean."""
        try:
            yield
        except (LostRankError, torch.OutOfMemoryError):
            raise
        except RuntimeError as error:
            fact = f"rank {self.rank} of {self.size} has lost another rank"
            message = f"{fact}, which died or does not answer: {error}"
            raise LostRankError(message) from error


SINGLE = Ranks()  # a fit in one process


def under_torchrun() -> bool:
    """Whether this process is one of several that `torchrun` started."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def joined(
    device: str | torch.device = "auto", timeout: float = 600.0
) -> Iterator[Ranks]:
    """The ranks that `torchrun` started, connected while the block runs.

    Without torchrun it is a single rank. NCCL connects GPUs, where each rank takes the
    GPU of its local rank; Gloo connects CPUs. A rank that does not answer for `timeout`
    seconds counts as lost.

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
        yield SINGLE
        return
    backend = "gloo"
    if resolve_device(device).type == "cuda":
        _take_gpu()
        backend = "cpu:gloo,cuda:nccl"
    connects = not dist.is_initialized()
    if connects:
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout))
    ranks = Ranks(dist.get_rank(), dist.get_world_size())
    with _sigterm_as_error(ranks):
        yield ranks
    if connects:  # not after an error: other ranks may be gone
        dist.destroy_process_group()


def _take_gpu() -> None:
    """Use the GPU of this machine with the number of the local rank."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    n_gpus = torch.cuda.device_count()
    if local_rank >= n_gpus:
        fact = f"local rank {local_rank} has no GPU: torch sees {n_gpus} here"
        hint = f"start at most --nproc-per-node {n_gpus}, or pass device='cpu'"
        raise ValueError(f"{fact}; {hint}")
    torch.cuda.set_device(local_rank)


@contextmanager
def _sigterm_as_error(ranks: Ranks) -> Iterator[None]:
    """Raise a `LostRankError` if this process is told to end, as torchrun does."""

    def raise_error(*_: Any) -> None:
        fact = f"rank {ranks.rank} of {ranks.size} was told to end"
        raise LostRankError(f"{fact}: another rank died, or the job was cancelled")

    # Only the main thread can handle signals.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler_afterwards: Any = signal.signal(signal.SIGTERM, raise_error)
    try:
        yield
    except LostRankError:
        if dist.is_torchelastic_launched():
            # torchrun's signal would end this rank before its error is printed.
            handler_afterwards = signal.SIG_IGN
        raise
    finally:
        signal.signal(signal.SIGTERM, handler_afterwards)
