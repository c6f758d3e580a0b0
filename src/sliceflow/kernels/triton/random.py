"""Random numbers on NVIDIA GPUs, in Triton: the same bits as `reference` draws."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sliceflow.kernels.reference.random import box_muller, words_as_uniform


@triton.jit(do_not_specialize=["first", "n", "key0", "key1"])
def _philox_kernel(out, first, n, key0, key1, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = 0xFFFFFFFF
    counter = first + at
    c0 = counter & mask
    c1 = (counter >> 32) & mask
    c2 = tl.zeros_like(c0)
    c3 = tl.zeros_like(c0)
    k0 = tl.zeros_like(c0) + key0
    k1 = tl.zeros_like(c0) + key1
    for _ in tl.static_range(10):
        p0 = c0 * 0xD2511F53
        p1 = c2 * 0xCD9E8D57
        c0 = ((p1 >> 32) & mask) ^ c1 ^ k0
        c1 = p1 & mask
        c2 = ((p0 >> 32) & mask) ^ c3 ^ k1
        c3 = p0 & mask
        k0 = (k0 + 0x9E3779B9) & mask
        k1 = (k1 + 0xBB67AE85) & mask
    here = out + 4 * at
    valid = at < n
    tl.store(here, c0, mask=valid)
    tl.store(here + 1, c1, mask=valid)
    tl.store(here + 2, c2, mask=valid)
    tl.store(here + 3, c3, mask=valid)


def philox(
    first: int, n: int, key: tuple[int, int], device: torch.device | str
) -> Tensor:
    out = torch.empty((n, 4), dtype=torch.int64, device=device)
    grid: Any = (triton.cdiv(n, 1024),)
    _philox_kernel[grid](out, first, n, *key, BLOCK=1024)
    return out


def uniform(
    first: int,
    n: int,
    key: tuple[int, int],
    device: torch.device | str,
    dtype: torch.dtype,
) -> Tensor:
    return words_as_uniform(philox(first, n, key, device), dtype)


def normal(
    first: int, n: int, key: tuple[int, int], device: torch.device | str
) -> Tensor:
    return box_muller(philox(first, n, key, device))
