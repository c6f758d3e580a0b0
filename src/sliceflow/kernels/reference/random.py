"""Random numbers, in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_MASK_32_BITS = 0xFFFFFFFF
# The constants of Philox4x32-10 (Salmon et al. 2011): its rounds, the multipliers of
# each round, and what each round adds to the two words of the key.
_PHILOX_ROUNDS = 10
_PHILOX_M0 = 0xD2511F53
_PHILOX_M1 = 0xCD9E8D57
_PHILOX_W0 = 0x9E3779B9
_PHILOX_W1 = 0xBB67AE85
# A larger number below 1 would be rounded up to 1.
LARGEST_FLOAT32_BELOW_1 = 1 - 2.0**-24


def philox(
    first: int, n: int, key: tuple[int, int], device: torch.device | str
) -> Tensor:
    """Philox4x32-10, a counter-based generator of random bits.

    Parameters
    ----------
    first, n : the counters are first to first + n − 1, as int64 that wrap around
    key : two 32-bit words

    Returns
    -------
    words : int64 (n, 4), four 32-bit words for each counter
    """
    counter = torch.arange(first, first + n, dtype=torch.int64, device=device)
    c0 = counter & _MASK_32_BITS
    c1 = (counter >> 32) & _MASK_32_BITS
    c2 = torch.zeros_like(c0)
    c3 = torch.zeros_like(c0)
    k0, k1 = key
    for _ in range(_PHILOX_ROUNDS):
        p0 = c0 * _PHILOX_M0
        p1 = c2 * _PHILOX_M1
        c0 = ((p1 >> 32) & _MASK_32_BITS) ^ c1 ^ k0
        c1 = p1 & _MASK_32_BITS
        c2 = ((p0 >> 32) & _MASK_32_BITS) ^ c3 ^ k1
        c3 = p0 & _MASK_32_BITS
        k0 = (k0 + _PHILOX_W0) & _MASK_32_BITS
        k1 = (k1 + _PHILOX_W1) & _MASK_32_BITS
    return torch.stack((c0, c1, c2, c3), dim=1)


def uniform(
    first: int,
    n: int,
    key: tuple[int, int],
    device: torch.device | str,
    dtype: torch.dtype,
) -> Tensor:
    """Numbers in (0, 1), (n, 4) of `dtype`, made of the words of `philox`."""
    return words_as_uniform(philox(first, n, key, device), dtype)


def words_as_uniform(words: Tensor, dtype: torch.dtype) -> Tensor:
    """32-bit words w as (w + ½)/2³², rounded to `dtype`, but never up to 1."""
    uniform = (words.to(torch.float64) + 0.5) / 2**32
    if dtype == torch.float32:
        uniform = uniform.clamp_(max=LARGEST_FLOAT32_BELOW_1)
    return uniform.to(dtype)


def normal(
    first: int, n: int, key: tuple[int, int], device: torch.device | str
) -> Tensor:
    """Standard normal numbers, float64 (n, 4), made of the words of `philox`."""
    return box_muller(philox(first, n, key, device))


def box_muller(words: Tensor) -> Tensor:
    """Standard normal numbers, float64 (n, 2m), from 32-bit words (n, 2m).

    Two neighboring words (a, b) become u = (a + ½)/2³² and v = (b + ½)/2³², and these
    √(−2 ln u)·cos 2πv and √(−2 ln u)·sin 2πv.
    """
    uniform = (words.to(torch.float64) + 0.5) / 2**32
    radius = torch.sqrt(-2 * torch.log(uniform[:, 0::2]))
    angle = 2 * math.pi * uniform[:, 1::2]
    pair = torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), dim=-1)
    return pair.flatten(1)
