"""All random numbers of the package, from one counter-based seed tree.

A `Seed` is a node of the tree, named by a path such as ``("frame", 3, 17)``. Its numbers are the
Philox4x32-10 stream (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") whose key is a
hash of the path. The integer arithmetic is exact, so every device and every version draws the same
bits, in any order and in any chunks; only normal numbers may differ in the last digit.
"""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
import torch
from torch import Tensor

from sliceflow import kernels

_CHUNK = 1 << 22  # numbers per chunk: bounds the int64 temporaries to some 100 MB


@dataclass(frozen=True)
class Seed:
    """A node of the seed tree."""

    entropy: int
    path: tuple[str | int, ...] = ()

    @classmethod
    def from_random_state(cls, random_state: object) -> Seed:
        """The root for scikit-learn's `random_state`: None, an int, a RandomState or a Generator."""
        if random_state is None:
            return cls(int(np.random.SeedSequence().generate_state(2, np.uint64)[0]))
        if isinstance(random_state, Seed):
            return random_state
        if isinstance(random_state, (int, np.integer)) and not isinstance(
            random_state, bool
        ):
            if random_state < 0:
                raise ValueError(
                    f"random_state={random_state} is negative; pass an int >= 0"
                )
            return cls(int(random_state))
        if isinstance(random_state, np.random.RandomState):
            return cls(int(random_state.randint(0, 2**31 - 1)))
        if isinstance(random_state, np.random.Generator):
            return cls(int(random_state.integers(0, 2**63 - 1)))
        kinds = "None, an int >= 0, a numpy RandomState or a numpy Generator"
        raise ValueError(
            f"random_state={random_state!r} cannot seed anything; pass {kinds}"
        )

    def child(self, *names: str | SupportsIndex) -> Seed:
        """A node below this one. Integers of any type give the same node."""
        plain = (
            str(n) if isinstance(n, str) else int(operator.index(n)) for n in names
        )
        return Seed(self.entropy, (*self.path, *plain))

    @property
    def key(self) -> tuple[int, int]:
        """Philox's 64-bit key: the BLAKE2b hash of the entropy and the path."""
        text = repr((self.entropy, *self.path))
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return int.from_bytes(digest[:4], "little"), int.from_bytes(
            digest[4:], "little"
        )

    def _words(
        self, rows: int, columns: int, start: int, device: torch.device | str
    ) -> Tensor:
        """(rows, 4·⌈columns/4⌉) 32-bit words; row i depends on `start + i` alone."""
        quads = -(-columns // 4)
        words: Tensor = kernels.for_device(device).philox(
            start * quads, rows * quads, self.key, device
        )
        return words.view(rows, 4 * quads)

    def _numbers(
        self,
        convert: Callable[[Tensor], Tensor],
        rows: int,
        columns: int,
        start: int,
        dtype: torch.dtype,
        device: torch.device | str,
        part: slice | None = None,
    ) -> Tensor:
        """Words converted to numbers, in `part` of (rows, columns), by blocks of rows to bound the memory."""
        part = part or slice(0, columns)
        out = torch.empty((rows, part.stop - part.start), dtype=dtype, device=device)
        block = max(1, _CHUNK // max(1, columns))
        for lo in range(0, rows, block):
            n = min(block, rows - lo)
            out[lo : lo + n] = convert(self._words(n, columns, start + lo, device))[
                :, part
            ]
        return out

    def uniform(
        self,
        rows: int,
        columns: int,
        *,
        start: int = 0,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        part: slice | None = None,
    ) -> Tensor:
        """(rows, columns), or a `part` of these, of numbers in (0, 1), in steps of 2^-32."""
        most = (
            1 - 2.0**-24 if dtype == torch.float32 else 1.0
        )  # it would round the largest up to 1

        def convert(words: Tensor) -> Tensor:
            return ((words.double() + 0.5) / 2**32).clamp_(max=most)

        return self._numbers(convert, rows, columns, start, dtype, device, part)

    def uniform_part(
        self,
        rows: int,
        columns: int,
        part: slice,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """``uniform(rows, columns)[:, part]``, without storing the rest."""
        # On a GPU a call per row would cost more than the unused numbers.
        if part == slice(0, columns) or torch.device(device).type != "cpu":
            return self.uniform(rows, columns, dtype=dtype, device=device, part=part)
        quads = -(-columns // 4)
        first = part.start // 4
        end = -(-part.stop // 4)
        out = torch.empty((rows, part.stop - part.start), dtype=dtype)
        for row in range(rows):  # a run of quads out of each row
            run = self.uniform(end - first, 4, start=row * quads + first, dtype=dtype)
            out[row] = run.view(-1)[part.start - 4 * first : part.stop - 4 * first]
        return out

    def normal(
        self,
        rows: int,
        columns: int,
        *,
        start: int = 0,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """(rows, columns) standard normal numbers, by Box and Muller's formula in float64."""
        box_muller = kernels.for_device(device).box_muller
        return self._numbers(box_muller, rows, columns, start, dtype, device)

    def laplace(self, rows: int, columns: int, device: torch.device | str) -> Tensor:
        """(rows, columns) Laplace numbers −sign(v)·ln(1 − 2|v|)/√(2·columns), uniform v in (−½, ½)."""
        v = (
            self._words(rows, columns, 0, device)[:, :columns].double() + 0.5
        ) / 2**32 - 0.5
        return torch.sign(v) * torch.log1p(-2 * v.abs()) / -math.sqrt(2 * columns)

    def permutation(self, n: int) -> Tensor:
        """A random order of 0..n-1 (on the CPU: it must be the same for every device)."""
        return torch.argsort(self._words(n, 1, 0, "cpu")[:, 0], stable=True)
