"""The passes over memory that a step is made of, one module per device, all with the same functions.

- `reference`: plain torch, on any device, and what every other module is tested against;
- `cpu`: numba, in threads over directions;
- `gpu`: Triton, for NVIDIA GPUs.

Every function takes projections as (h, n) tensors, one row per direction. A module offers

- ``philox(first, n, key, device)``: the random bits of a counter range;
- ``box_muller(words)``: normal numbers from them;
- ``laplace(rows, columns, key, device)``: Laplace numbers, from bits of their own;
- ``sort_rows(z)``, ``argsort_rows(z)``: each row in ascending order;
- ``add_class_offsets(z, offsets, codes)``: every column shifted by its class;
- ``match(z_p, z_q, w_q)``: values of F_q⁻¹∘F_p at sorted particles, from sorted data;
- ``displace_knots(z, knots, values)``: T(z) − z for a table of arbitrary knots;
- ``value_range(z)``: each row's smallest and largest value;
- ``count(z, lo, hi, n_bins, weights)``: each row's histogram;
- ``histogram(z, n_bins, weights)``: both of these, the range found on the way;
- ``histogram_of_runs(z, n_bins, starts)``: the same of every run of columns by itself;
- ``compose(counts_p, lo_p, hi_p, counts_q, lo_q, hi_q)``: F_q⁻¹∘F_p at the particles' bin edges, and
  what moving along it costs;
- ``add_below(total, counts, width, start, step, factor)``: a histogram's values below given edges;
- ``displace_grid(z, lo, hi, values)``: T(z) − z for a table on a uniform grid;
- ``displace_runs(z, lo, hi, values, starts)``: the same with tables for every run of columns;
- ``at_bends(lo, hi, values, counts, n_knots, exponent)``: the maps of such a table at a few knots;
- ``through_knots(lo, hi, sizes, at, levels, n_bins, exponent, dtype)``: their values on the grid again;
- ``lanes(k)``: to how many rows and columns a tile's rotation is filled up with zeros;
- ``project_tiles(x, theta, geometry, columns, offsets, codes)``: z of pictures cut into tiles;
- ``move_tiles(x, theta, geometry, lo, hi, values, size, offsets, codes, starts)``: the whole second
  half of a step for pictures, in place.

A kernel module for another device is one more entry in `for_device`.
"""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from sliceflow.kernels import reference

__all__ = ["for_device", "for_tensor"]


@cache
def _cpu() -> ModuleType:
    try:
        from sliceflow.kernels import cpu
    except ImportError as error:  # a Python that numba does not support yet
        warnings.warn(
            f"numba cannot be imported ({error}); the slower plain-torch kernels are used. "
            "pip install numba brings the fast ones back",
            RuntimeWarning,
            stacklevel=3,
        )
        return reference
    return cpu


@cache
def _gpu() -> ModuleType:
    if torch.version.hip is not None:
        return _slower(f"torch {torch.__version__} is built for AMD GPUs (ROCm)", "an NVIDIA GPU")
    try:
        from sliceflow.kernels.triton import passes as gpu
    except ImportError as error:  # torch's CUDA builds bring Triton on Linux, not everywhere
        return _slower(f"Triton cannot be imported ({error})", "pip install triton")
    return gpu


def _slower(why: str, remedy: str) -> ModuleType:
    """Said once for a process: what calls this is cached."""
    warnings.warn(
        f"{why}; the slower plain-torch kernels are used on the GPU. {remedy} brings the fast ones",
        RuntimeWarning,
        stacklevel=4,
    )
    return reference


def for_device(device: torch.device | str) -> ModuleType:
    """The fastest kernels that work on `device`."""
    kind = torch.device(device).type
    return _cpu() if kind == "cpu" else _gpu() if kind == "cuda" else reference


def for_tensor(z: Tensor) -> ModuleType:
    """The fastest kernels that can work on `z`."""
    return for_device(z.device)
