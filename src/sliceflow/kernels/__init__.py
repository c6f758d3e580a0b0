"""The passes over memory that make up a step, for each device: a registry.

`reference` has every kernel in plain torch, for any device, and documents what it computes. `cpu`
(numba) and `triton` (NVIDIA GPUs) have faster versions of some of them, under the same names. Callers
ask `for_device` or `for_tensor`, and get all the kernels of ``reference.__all__``.

Kernels take projections as (h, n) tensors, one row per direction. In float64 every device computes
exactly what the reference does, up to the order of sums. To support another device, write a module with
the kernels that are worth it, and add it to `for_device`.
"""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType, SimpleNamespace

import torch
from torch import Tensor

from sliceflow.kernels import reference
from sliceflow.kernels.geometry import Geometry
from sliceflow.kernels.reference_bends import MOST_LEVEL

__all__ = ["MOST_LEVEL", "Geometry", "complete", "for_device", "for_tensor"]


@cache
def complete(module: ModuleType) -> SimpleNamespace:
    """All kernels: those of `module`, and the reference's where it has none."""
    names = reference.__all__
    return SimpleNamespace(**{name: getattr(module, name, getattr(reference, name)) for name in names})


@cache
def _cpu() -> SimpleNamespace:
    try:
        from sliceflow.kernels import cpu
    except ImportError as error:  # a Python that numba does not support yet
        return _slower(f"numba cannot be imported ({error})", "CPU", "pip install numba")
    return complete(cpu)


@cache
def _gpu() -> SimpleNamespace:
    if torch.version.hip is not None:
        return _slower(
            f"torch {torch.__version__} is built for AMD GPUs (ROCm)", "GPU", "an NVIDIA GPU"
        )
    try:
        from sliceflow.kernels import triton
    except ImportError as error:  # torch's CUDA builds bring Triton on Linux, not everywhere
        return _slower(f"Triton cannot be imported ({error})", "GPU", "pip install triton")
    return complete(triton)


def _slower(why: str, device: str, remedy: str) -> SimpleNamespace:
    """The reference, with a warning: once per process, because the callers are cached."""
    warnings.warn(
        f"{why}; the slower plain-torch kernels are used on the {device}. "
        f"{remedy} brings the fast ones",
        RuntimeWarning,
        stacklevel=4,
    )
    return complete(reference)


def for_device(device: torch.device | str) -> SimpleNamespace:
    """The fastest kernels for `device`."""
    kind = torch.device(device).type
    return _cpu() if kind == "cpu" else _gpu() if kind == "cuda" else complete(reference)


def for_tensor(z: Tensor) -> SimpleNamespace:
    """The fastest kernels for the device of `z`."""
    return for_device(z.device)
