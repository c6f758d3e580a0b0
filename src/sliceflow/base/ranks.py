"""One fit on many devices and machines, by `torch.distributed`.

A rank is one process of the fit. Every rank has its own particles and rows, and draws
the same frames from the seed. Only the maps depend on all ranks: these exchange the
ranges of their projections and then their counts (`DistributedHistogramTransport`), two
messages in each step. `torchrun` starts the ranks, `joined` connects them, and
``fit(…, ranks=ranks)`` does the rest.
"""

from __future__ import annotations

import datetime
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from sliceflow.dataframes import as_dataframe, column_names
from sliceflow.devices import resolve_device
from sliceflow.engine.events import EventListener, EventT, notify
from sliceflow.errors import DataError, HintedError, ParameterError

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from torch import Tensor

# Functions that send messages import torch themselves. It takes seconds, and a table,
# which is fitted in one process, does without it.

__all__ = [
    "Communicator",
    "LostRankError",
    "RankMismatchError",
    "joined",
    "under_torchrun",
]

ValueT = TypeVar("ValueT")
DTypeT = TypeVar("DTypeT", bound=np.generic)


class Sliceable(Protocol):
    """Rows of any kind: an array, a tensor, a DataFrame or a list."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Self: ...


SliceableT = TypeVar("SliceableT", bound=Sliceable)


class LostRankError(HintedError, RuntimeError):
    """Another rank no longer answers, or the job was ended from outside.

    Attributes
    ----------
    fact : str
        What happened.
    hint : str
        What to do about it, or an empty text.
    """


class RankMismatchError(HintedError, ValueError):
    """The ranks of one fit have different parameters, or different kinds of data.

    Attributes
    ----------
    fact : str
        What differs.
    hint : str
        What to do about it.
    """


@dataclass(frozen=True)
class Shard:
    """The contiguous part of the rows of all ranks that one rank has.

    Attributes
    ----------
    first : int
        The index of the shard's first row among the rows of all ranks.
    count : int
        The number of rows of this rank.
    total : int
        The number of rows of all ranks.
    """

    first: int
    count: int
    total: int

    @property
    def slice(self) -> slice:
        """The indices of the shard's rows among the rows of all ranks."""
        return slice(self.first, self.first + self.count)

    def repeated(self, n: int) -> Shard:
        """The shard if each row is repeated n times before the next row."""
        return Shard(n * self.first, n * self.count, n * self.total)


@dataclass(frozen=True)
class Communicator:
    """The processes of one fit, seen from one of them.

    Methods that send messages must be called by all ranks, in the same order. With one
    rank they send nothing. `joined` makes this object.

    Parameters
    ----------
    rank : int, default 0
        The number of this process, from 0 to size − 1.
    size : int, default 1
        The number of processes.

    Examples
    --------
    >>> ranks = Communicator(rank=1, size=2)
    >>> ranks.is_main, ranks.own_rows([10, 11, 12, 13])
    (False, [12, 13])
    """

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which prints and writes files."""
        return self.rank == 0

    def own_shard(self, total: int) -> Shard:
        """This rank's part if `total` rows are divided equally among all ranks."""
        first = self.rank * total // self.size
        end = (self.rank + 1) * total // self.size
        return Shard(first, end - first, total)

    def own_rows(self, rows: SliceableT) -> SliceableT:
        """This rank's part of `rows`, of which every rank has all."""
        return rows[self.own_shard(len(rows)).slice]

    def shard_by_counts(self, count: int, data_kind: str = "rows") -> Shard:
        """The shard of this rank, which has `count` rows, by the counts of all ranks.

        Parameters
        ----------
        count : int
            The number of rows of this rank.
        data_kind : str, default "rows"
            What the rows are, for error messages.

        Returns
        -------
        shard : Shard

        Raises
        ------
        RankMismatchError
            If ranks pass different `data_kind`.
        DataError
            If a rank has no rows.
        """
        answers = self.all_gather_objects((count, data_kind))
        for rank, (rank_count, rank_kind) in enumerate(answers):
            if rank_kind != data_kind:
                fact = (
                    f"rank {rank} has {rank_kind} but rank {self.rank} has {data_kind}"
                )
                hint = "give all ranks the same kind of data and the same arguments"
                raise RankMismatchError(fact, hint)
            if rank_count == 0:
                fact = f"rank {rank} of {self.size} has none of the data"
                raise DataError(fact, "use fewer ranks")
        counts = [rank_count for rank_count, _ in answers]
        return Shard(sum(counts[: self.rank]), count, sum(counts))

    def require_equal(self, settings: dict[str, str]) -> None:
        """Raise a `RankMismatchError` unless all ranks have the same settings."""
        for rank, rank_settings in enumerate(self.all_gather_objects(settings)):
            differences = []
            for name in sorted({*settings, *rank_settings}):
                other = rank_settings.get(name)
                own = settings.get(name)
                if other != own:
                    differences.append(
                        f"{name}={other} on rank {rank} but {own} on rank {self.rank}"
                    )
            if differences:
                hint = "give all ranks the same parameters"
                raise RankMismatchError(", ".join(differences), hint)

    # Messages

    def sum_(self, t: Tensor) -> Tensor:
        """Sum t over all ranks. The sum is written into t, which is returned."""
        return self._reduce(t, "SUM")

    def minimum_(self, t: Tensor) -> Tensor:
        """The elementwise minimum of t over all ranks, written into t and returned."""
        return self._reduce(t, "MIN")

    def max_int(self, number: int) -> int:
        """The largest of the ranks' numbers.

        The message goes from CPU to CPU, and does not wait for GPUs.
        """
        import torch

        return -int(self.minimum_(torch.tensor([-number])))

    def _reduce(self, t: Tensor, operation: Literal["SUM", "MIN"]) -> Tensor:
        if self.size == 1:
            return t
        import torch.distributed as dist

        with self._reporting_lost_ranks():
            dist.all_reduce(t, getattr(dist.ReduceOp, operation))
        return t

    def all_gather_objects(self, value: ValueT) -> list[ValueT]:
        """The values of all ranks, as a list by rank.

        The values are pickled: keep them small.
        """
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        values = [value] * self.size  # replaced by the value of each rank
        with self._reporting_lost_ranks():
            dist.all_gather_object(values, value)
        return values

    def broadcast(self, value: ValueT) -> ValueT:
        """Send the value of rank 0 to all ranks, and return it."""
        if self.size == 1:
            return value
        own_message = [value] if self.is_main else []  # only rank 0 sends a value
        messages = self.all_gather_objects(own_message)
        (value_of_rank_0,) = messages[0]
        return value_of_rank_0

    def iter_points(self, t: Tensor) -> Iterator[tuple[int, Tensor]]:
        """The points t (…, n) of every rank, in turn.

        Yields pairs: the index of a rank's first point among the points of all ranks,
        and the rank's points.
        """
        if self.size == 1:
            yield 0, t
            return
        import torch.distributed as dist

        first = 0
        for rank, count in enumerate(self.all_gather_objects(t.shape[-1])):
            if rank == self.rank:
                part = t.contiguous()
            else:
                part = t.new_empty((*t.shape[:-1], count))
            with self._reporting_lost_ranks():
                dist.broadcast(part, rank)
            yield first, part
            first += count

    def gather_points(self, t: Tensor, indices: Tensor) -> Tensor:
        """The points with these indices (k,) among the points t (d, n) of all ranks.

        The result is (d, k) on every rank, and each rank may ask for other points.
        Ranks broadcast all of their points in turn.
        """
        if self.size == 1:
            return t[:, indices]
        gathered = t.new_empty(len(t), len(indices))
        for first, part in self.iter_points(t):
            is_in_part = (indices >= first) & (indices < first + part.shape[1])
            gathered[:, is_in_part] = part[:, indices[is_in_part] - first]
        return gathered

    @overload
    def all_gather_rows(self, rows: Tensor) -> Tensor: ...

    @overload
    def all_gather_rows(self, rows: NDArray[DTypeT]) -> NDArray[DTypeT]: ...

    @overload
    def all_gather_rows(self, rows: pd.DataFrame) -> pd.DataFrame: ...

    def all_gather_rows(
        self, rows: Tensor | NDArray[Any] | pd.DataFrame
    ) -> Tensor | NDArray[Any] | pd.DataFrame:
        """The rows (n, …) of all ranks, of the same type as `rows`."""
        if self.size == 1:
            return rows
        import torch

        if isinstance(rows, torch.Tensor):
            parts = [part for _, part in self.iter_points(rows.movedim(0, -1))]
            return torch.cat(parts, -1).movedim(-1, 0).contiguous()
        names = column_names(rows)
        array = np.concatenate(self.all_gather_objects(np.asarray(rows)))
        if names is None:
            return array
        return as_dataframe(array, names)

    @contextmanager
    def _reporting_lost_ranks(self) -> Iterator[None]:
        """Turn torch's errors, except a lack of memory, into a `LostRankError`."""
        import torch

        try:
            yield
        except (LostRankError, torch.OutOfMemoryError):
            raise
        except RuntimeError as error:
            fact = f"rank {self.rank} of {self.size} has lost another rank"
            raise LostRankError(
                f"{fact}, which died or does not answer: {error}"
            ) from error


ONE_PROCESS = Communicator()  # a fit in one process


def listeners_across_ranks(
    listeners: Sequence[EventListener[EventT]], ranks: Communicator
) -> list[EventListener[EventT]]:
    """Listeners that end a stage on all ranks if a listener on any rank ends it."""
    if ranks.size == 1 or ranks.max_int(len(listeners)) == 0:
        return list(listeners)

    def any_rank_ends_stage(event: EventT) -> bool:
        ends_stage = notify(listeners, event)
        return ranks.max_int(int(ends_stage)) > 0

    return [any_rank_ends_stage]


# Connecting ranks


def under_torchrun() -> bool:
    """Whether this process is one of several that `torchrun` started.

    Examples
    --------
    >>> under_torchrun()
    False
    """
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def joined(
    device: str | torch.device = "auto", timeout: float = 600.0
) -> Iterator[Communicator]:
    """Connect the ranks that `torchrun` started, as long as the block runs.

    Without `torchrun` there is one rank. NCCL connects GPUs: each rank takes the GPU of
    its local rank. Gloo connects CPUs.

    Parameters
    ----------
    device : str or torch.device, default "auto"
        The device of the fit: "auto", "cpu" or "cuda".
    timeout : float, default 600
        A rank that does not answer for so many seconds counts as lost.

    Yields
    ------
    ranks : Communicator

    Examples
    --------
    >>> import numpy as np
    >>> from sliceflow import SlicedWassersteinFlow
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> with joined("cpu") as ranks:
    ...     flow = SlicedWassersteinFlow(n_particles=200, n_steps=3, random_state=0)
    ...     flow.fit(ranks.own_rows(X), ranks=ranks).particles_.shape
    (200, 2)
    """
    if not under_torchrun():
        yield Communicator()
        return
    import torch.distributed as dist

    backend = _choose_backend(device)
    starts_group = not dist.is_initialized()
    if starts_group:
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout))
    ranks = Communicator(dist.get_rank(), dist.get_world_size())
    with _raising_on_sigterm(ranks):
        yield ranks
    if starts_group:  # not after an error: other ranks may be gone
        dist.destroy_process_group()


def _choose_backend(device: str | torch.device) -> str:
    """The backend that connects ranks on a device. Ranks on GPUs get theirs here."""
    if resolve_device(device).type != "cuda":
        return "gloo"
    import torch

    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    n_devices = torch.cuda.device_count()
    if local_rank >= n_devices:
        fact = f"has no GPU for local rank {local_rank}: torch sees {n_devices} here"
        hint = f"start at most --nproc-per-node {n_devices}, or pass device='cpu'"
        raise ParameterError("device", str(device), fact, hint)
    torch.cuda.set_device(local_rank)
    return "cpu:gloo,cuda:nccl"


@contextmanager
def _raising_on_sigterm(ranks: Communicator) -> Iterator[None]:
    """Raise a `LostRankError` at SIGTERM inside, so that a fit can name its checkpoint.

    Only the main thread can handle signals: in other threads, nothing happens.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(*_: Any) -> None:
        fact = f"rank {ranks.rank} of {ranks.size} was told to end"
        raise LostRankError(f"{fact}: another rank died, or the job was cancelled")

    previous_handler = signal.signal(signal.SIGTERM, handle)
    next_handler = previous_handler
    try:
        yield
    except LostRankError:
        import torch.distributed as dist

        if dist.is_torchelastic_launched():
            # torchrun sends SIGTERM as soon as any rank has failed. It would end this
            # rank before its error is printed.
            next_handler = signal.SIG_IGN
        raise
    finally:
        signal.signal(signal.SIGTERM, next_handler)
