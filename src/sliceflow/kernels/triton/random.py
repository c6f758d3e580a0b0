"""Random numbers on NVIDIA GPUs, in Triton: the same bits as `reference` draws."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["laplace", "philox"]


@triton.jit
def _words(counter, key0, key1):
    """The four words of every counter."""
    mask = 0xFFFFFFFF
    c0, c1 = counter & mask, (counter >> 32) & mask
    c2, c3 = tl.zeros_like(c0), tl.zeros_like(c0)
    k0, k1 = tl.zeros_like(c0) + key0, tl.zeros_like(c0) + key1
    for _ in tl.static_range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0 = ((p1 >> 32) & mask) ^ c1 ^ k0
        c1 = p1 & mask
        c2 = ((p0 >> 32) & mask) ^ c3 ^ k1
        c3 = p0 & mask
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return c0, c1, c2, c3


@triton.jit(do_not_specialize=["first", "n", "key0", "key1"])
def _philox_kernel(out, first, n, key0, key1, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c0, c1, c2, c3 = _words(first + at, key0, key1)
    here, valid = out + 4 * at, at < n
    tl.store(here, c0, mask=valid)
    tl.store(here + 1, c1, mask=valid)
    tl.store(here + 2, c2, mask=valid)
    tl.store(here + 3, c3, mask=valid)


@triton.jit
def _laplace_of(word, scale):
    u = (word.to(tl.float64) + 0.5) / 4294967296.0 - 0.5
    size = -scale * tl.log(1.0 - 2.0 * tl.abs(u))  # 1 − 2|u| is exact
    return tl.where(u < 0, -size, size)


@triton.jit(do_not_specialize=["n", "key0", "key1"])
def _laplace_kernel(out, n, columns, quads, key0, key1, scale, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c0, c1, c2, c3 = _words(at, key0, key1)
    column = at % quads * 4
    here, left = out + at // quads * columns + column, tl.where(at < n, columns - column, 0)
    tl.store(here, _laplace_of(c0, scale), mask=left > 0)
    tl.store(here + 1, _laplace_of(c1, scale), mask=left > 1)
    tl.store(here + 2, _laplace_of(c2, scale), mask=left > 2)
    tl.store(here + 3, _laplace_of(c3, scale), mask=left > 3)


def laplace(rows: int, columns: int, key: tuple[int, int], device: torch.device | str) -> Tensor:
    quads, scale = -(-columns // 4), 1 / math.sqrt(2 * columns)
    out = torch.empty((rows, columns), dtype=torch.float32, device=device)
    grid: Any = (triton.cdiv(rows * quads, 256),)
    _laplace_kernel[grid](out, rows * quads, columns, quads, *key, scale, BLOCK=256)
    return out


def philox(first: int, n: int, key: tuple[int, int], device: torch.device | str) -> Tensor:
    out = torch.empty((n, 4), dtype=torch.int64, device=device)
    grid: Any = (triton.cdiv(n, 1024),)
    _philox_kernel[grid](out, first, n, *key, BLOCK=1024)
    return out
