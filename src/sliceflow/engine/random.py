"""All random numbers of the package, from one counter-based seed tree.

A `Seed` is a node of the tree, named by a path such as ``("frame", 3, 17)``. Its
numbers are the Philox4x32-10 stream (Salmon et al. 2011, "Parallel random numbers: as
easy as 1, 2, 3") whose key is a hash of the path. The integer arithmetic is exact, so
every device and every version draws the same bits, in any order and in any chunks; only
normal numbers may differ in the last digit.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from sliceflow.errors import ParameterError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    # A kernel: ``draw(first, n, key, device)`` is the n quads (n, 4) of numbers of the
    # counters from `first` on.
    _DrawQuads = Callable[[int, int, tuple[int, int], torch.device | str], Tensor]

# What draws numbers imports torch, and the kernels, itself. They take seconds to
# import, and a table takes only seeds from here: numpy draws its numbers.

# At most this many numbers are converted at a time, which bounds the temporary int64
# words to some 100 MB.
_NUMBERS_PER_CHUNK = 1 << 22
# Philox makes four words of one counter. These four, and the numbers made of them, are
# a "quad" below. Every row of numbers begins with a new quad.
_WORDS_PER_COUNTER = 4


# What users may pass as `random_state`, as in scikit-learn.
RandomStateLike = (
    int | np.integer[Any] | np.random.RandomState | np.random.Generator | None
)


@dataclass(frozen=True)
class Seed:
    """A node of the seed tree, which gives random numbers and further nodes."""

    root: int  # the number that `random_state` gave; the same for the whole tree
    path: tuple[str | int, ...] = ()

    @classmethod
    def from_random_state(cls, random_state: object) -> Seed:
        """The root of a seed tree for scikit-learn's `random_state`.

        It may be None, an int, a RandomState, a Generator, or a `Seed`, which is
        returned.
        """
        if random_state is None:
            return cls(int(np.random.SeedSequence().generate_state(2, np.uint64)[0]))
        if isinstance(random_state, Seed):
            return random_state
        is_bool = isinstance(random_state, bool)
        if isinstance(random_state, (int, np.integer)) and not is_bool:
            if random_state < 0:
                raise ParameterError(
                    "random_state", random_state, "is negative", "pass an int >= 0"
                )
            return cls(int(random_state))
        if isinstance(random_state, np.random.RandomState):
            return cls(int(random_state.randint(0, 2**31 - 1)))
        if isinstance(random_state, np.random.Generator):
            return cls(int(random_state.integers(0, 2**63 - 1)))
        hint = "pass None, an int >= 0, a numpy RandomState or a numpy Generator"
        raise ParameterError("random_state", random_state, "cannot seed anything", hint)

    def child(self, *names: str | SupportsIndex) -> Seed:
        """A node below this one. Integers of any type give the same node."""
        path = list(self.path)
        for name in names:
            if isinstance(name, str):
                path.append(str(name))
            else:
                path.append(int(operator.index(name)))
        return Seed(self.root, tuple(path))

    @property
    def key(self) -> tuple[int, int]:
        """Philox's 64-bit key: the BLAKE2b hash of the root and the path."""
        text = repr((self.root, *self.path))
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        low = int.from_bytes(digest[:4], "little")
        high = int.from_bytes(digest[4:], "little")
        return low, high

    def uniform(
        self,
        rows: int,
        columns: int,
        *,
        first_row: int = 0,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        part: slice | None = None,
    ) -> Tensor:
        """(rows, columns) numbers in (0, 1); only a `part` of the columns, if asked.

        They are multiples of 2⁻³². Row i depends on `first_row + i` alone. Without a
        dtype they are float64. A part has the numbers that its columns would have in
        the whole, which is not stored.
        """
        import torch

        from sliceflow import kernels

        uniform = kernels.for_device(device).uniform
        drawn_dtype = torch.float64 if dtype is None else dtype

        def draw(
            first: int, n: int, key: tuple[int, int], device: torch.device | str
        ) -> Tensor:
            return uniform(first, n, key, device, drawn_dtype)

        all_columns = slice(0, columns)
        part = all_columns if part is None else part
        # On a GPU a call per row would cost more than the unused numbers.
        if part != all_columns and torch.device(device).type == "cpu":
            return self._part_of_rows(draw, rows, columns, first_row, drawn_dtype, part)
        return self._numbers(draw, rows, columns, first_row, drawn_dtype, device, part)

    def normal(
        self,
        rows: int,
        columns: int,
        *,
        first_row: int = 0,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """(rows, columns) standard normal numbers, by Box and Muller in float64.

        Row i depends on `first_row + i` alone. Without a dtype they stay float64.
        """
        import torch

        from sliceflow import kernels

        draw = kernels.for_device(device).normal
        drawn_dtype = torch.float64 if dtype is None else dtype
        return self._numbers(draw, rows, columns, first_row, drawn_dtype, device)

    def laplace(self, rows: int, columns: int, device: torch.device | str) -> Tensor:
        """(rows, columns) Laplace numbers of variance 1/columns, in float64.

        They are −sign(v)·ln(1 − 2|v|)/√(2·columns) with uniform v in (−½, ½).
        """
        import torch

        words = self._words(rows, columns, 0, device)[:, :columns]
        v = (words.double() + 0.5) / 2**32 - 0.5
        return torch.sign(v) * torch.log1p(-2 * v.abs()) / -math.sqrt(2 * columns)

    def permutation(self, n: int) -> Tensor:
        """A random order of 0 to n − 1, on the CPU: the same for every device."""
        return self._words(n, 1, 0, "cpu")[:, 0].argsort(stable=True)

    def _words(
        self, rows: int, columns: int, first_row: int, device: torch.device | str
    ) -> Tensor:
        """(rows, 4·⌈columns/4⌉) 32-bit words; row i depends on first_row + i alone."""
        from sliceflow import kernels

        quads_per_row = math.ceil(columns / _WORDS_PER_COUNTER)
        philox = kernels.for_device(device).philox
        words = philox(
            first_row * quads_per_row, rows * quads_per_row, self.key, device
        )
        return words.view(rows, quads_per_row * _WORDS_PER_COUNTER)

    def _numbers(
        self,
        draw: _DrawQuads,
        rows: int,
        columns: int,
        first_row: int,
        dtype: torch.dtype,
        device: torch.device | str,
        part: slice | None = None,
    ) -> Tensor:
        """Numbers (rows, columns); only a `part` of the columns, if there is one.

        All columns are drawn, by blocks of rows, which bounds the memory.
        """
        import torch

        if part is None:
            part = slice(0, columns)
        out = torch.empty((rows, part.stop - part.start), dtype=dtype, device=device)
        quads_per_row = math.ceil(columns / _WORDS_PER_COUNTER)
        rows_per_chunk = max(1, _NUMBERS_PER_CHUNK // max(1, columns))
        key = self.key
        for begin in range(0, rows, rows_per_chunk):
            n_rows = min(rows_per_chunk, rows - begin)
            first_quad = (first_row + begin) * quads_per_row
            quads = draw(first_quad, n_rows * quads_per_row, key, device)
            numbers = quads.view(n_rows, quads_per_row * _WORDS_PER_COUNTER)
            out[begin : begin + n_rows] = numbers[:, part]
        return out

    def _part_of_rows(
        self,
        draw: _DrawQuads,
        rows: int,
        columns: int,
        first_row: int,
        dtype: torch.dtype,
        part: slice,
    ) -> Tensor:
        """The `part` of the columns that `_numbers` has, on the CPU.

        Of each row, only the quads that hold the part are drawn.
        """
        import torch

        quads_per_row = math.ceil(columns / _WORDS_PER_COUNTER)
        first_quad = part.start // _WORDS_PER_COUNTER
        end_quad = math.ceil(part.stop / _WORDS_PER_COUNTER)
        n_quads = end_quad - first_quad
        n_before = part.start - first_quad * _WORDS_PER_COUNTER
        part_size = part.stop - part.start
        key = self.key
        out = torch.empty((rows, part_size), dtype=dtype)
        for row in range(rows):
            first_counter = (first_row + row) * quads_per_row + first_quad
            quads = draw(first_counter, n_quads, key, "cpu")
            out[row] = quads.view(-1)[n_before : n_before + part_size]
        return out
