"""The processes of one fit: which rows each has, and the messages between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from sliceflow.dataframes import Form
from sliceflow.engine.events import Event, Listener, tell
from sliceflow.models.ranks.lost import reporting_lost_ranks

__all__ = ["Place", "Ranks"]


@dataclass(frozen=True)
class Place:
    """The rows of this rank among the `total` of all ranks: `count` of them, starting at `first`."""

    first: int
    count: int
    total: int

    @property
    def slice(self) -> slice:
        return slice(self.first, self.first + self.count)


@dataclass(frozen=True)
class Ranks:
    """The processes of one fit, seen from one of them. A single process sends no messages.

    All ranks must call every method that sends a message.

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
        """Whether this rank is the one that prints and writes files."""
        return self.rank == 0

    # Shares

    def share(self, total: int) -> Place:
        """This rank's equal share of `total` rows, which are contiguous.

        Examples
        --------
        >>> [Ranks(r, 3).share(10).slice for r in range(3)]
        [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
        """
        first, end = (r * total // self.size for r in (self.rank, self.rank + 1))
        return Place(first, end - first, total)

    def mine(self, rows: Any) -> Any:
        """This rank's share of rows that every rank was given."""
        return rows[self.share(len(rows)).slice]

    def place(self, count: int, what: str = "rows") -> Place:
        """Place of this rank's `count` rows among those of all ranks, which must all have `what`."""
        answers = self.all_gather((count, what))
        for r, (n, kind) in enumerate(answers):
            if kind != what:
                raise ValueError(
                    f"rank {r} has {kind} but rank {self.rank} has {what}; give all ranks the same "
                    "kind of data and the same arguments"
                )
            if n == 0:
                raise ValueError(f"rank {r} of {self.size} has none of the data; use fewer ranks")
        counts = [n for n, _ in answers]
        return Place(sum(counts[: self.rank]), count, sum(counts))

    def agree(self, facts: dict[str, str]) -> None:
        """Raise a ValueError unless `facts` are the same on all ranks; it lists the differences.

        Examples
        --------
        >>> Ranks().agree({"amplifier": "10.0"})
        """
        for r, others in enumerate(self.all_gather(facts)):
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
        return self._reduce(t, dist.ReduceOp.SUM)

    def minimum(self, t: Tensor) -> Tensor:
        """The elementwise minimum over all ranks, written into t, which is returned."""
        return self._reduce(t, dist.ReduceOp.MIN)

    def maximum(self, number: int) -> int:
        """The largest of the ranks' numbers. It is sent between CPUs and does not wait for a GPU."""
        return -int(self.minimum(torch.tensor([-number])))

    def _reduce(self, t: Tensor, how: Any) -> Tensor:
        if self.size > 1:
            with reporting_lost_ranks(self.rank, self.size):
                dist.all_reduce(t, how)
        return t

    def all_gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in order of rank. They are pickled: keep them small."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with reporting_lost_ranks(self.rank, self.size):
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
            part = t.contiguous() if r == self.rank else t.new_empty((*t.shape[:-1], count))
            with reporting_lost_ranks(self.rank, self.size):
                dist.broadcast(part, r)
            yield first, part
            first += count

    def joint(self, t: Tensor) -> Tensor:
        """The columns (…, n) of all ranks side by side."""
        return t if self.size == 1 else torch.cat([part for _, part in self.columns(t)], dim=-1)

    def pick(self, t: Tensor, numbers: Tensor) -> Tensor:
        """Columns of all ranks' t (d, n) by their indices. Ranks broadcast their own in turn."""
        if self.size == 1:
            return t[:, numbers]
        out = t.new_empty(len(t), len(numbers))
        for first, part in self.columns(t):
            here = torch.nonzero((numbers >= first) & (numbers < first + part.shape[1]))[:, 0]
            out[:, here] = part[:, numbers[here] - first]
        return out

    def gather(self, rows: Any) -> Any:
        """The rows (n, …) of all ranks, of the same type as `rows`.

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
        if rows.dtype.kind not in "fiub":  # strings of any length
            return np.concatenate(self.all_gather(rows))
        as_bytes = torch.from_numpy(np.ascontiguousarray(rows)).reshape(-1).view(torch.uint8)
        whole: np.ndarray = self.joint(as_bytes).numpy().view(rows.dtype)
        return whole.reshape(-1, *rows.shape[1:])

    # For a fit

    def mean(self, rows: np.ndarray, n: int, about: np.ndarray | None = None) -> np.ndarray:
        """The mean of each column over the n rows of all ranks: the same bits however they are spread.

        With `about`, the mean of (rows − about)². Numbers are split into two integers, multiples of
        2⁻³⁰ and of 2⁻⁶² of the largest, whose sums are exact. The flow amplifies differences in
        rounding: one bit here would change the particles after some dozens of steps.

        Examples
        --------
        >>> Ranks().mean(np.array([[1.0, 0.1], [2.0, 0.2]]), 2)
        array([1.5 , 0.15])
        """

        def values(rows: np.ndarray) -> np.ndarray:
            rows = np.asarray(rows, np.float64)
            return rows if about is None else (rows - about) ** 2

        ends = np.stack((rows.min(axis=0), -rows.max(axis=0))).astype(np.float64)
        low, high = self.minimum(torch.from_numpy(ends)).numpy() * [[1], [-1]]
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

    def agreeing(self, listeners: Sequence[Listener]) -> list[Listener]:
        """Listeners that end a stage on all ranks as soon as one listener, on any rank, asks to."""
        if self.maximum(len(listeners)) == 0 or self.size == 1:
            return list(listeners)

        class Agreed:
            def __call__(_, event: Event) -> bool:
                return self.maximum(int(tell(listeners, event))) > 0

            def close(_) -> None:
                for listener in listeners:
                    getattr(listener, "close", lambda: None)()

        return [Agreed()]
