"""The passes over memory that make up a step, for each device: a registry.

`reference` has and documents every kernel in plain torch. `cpu` (numba) and `triton`
(NVIDIA GPUs) have faster versions of some, under the same names. Kernels take
projections as (h, n) tensors, one row per direction. In float64 every device computes
what the reference does, up to the order of sums.
"""

from __future__ import annotations

import importlib
import warnings
from functools import cache
from types import ModuleType, SimpleNamespace

import torch
from torch import Tensor

from sliceflow.kernels import reference
from sliceflow.kernels.geometry import Geometry
from sliceflow.kernels.reference import MAX_QUANTIZED_SHIFT

__all__ = ["MAX_QUANTIZED_SHIFT", "Geometry", "complete", "for_device", "for_tensor"]


@cache
def complete(module: ModuleType) -> SimpleNamespace:
    """All kernels: those of `module`, and the reference's where it has none."""
    kernels = {}
    for name in reference.__all__:
        kernels[name] = getattr(module, name, getattr(reference, name))
    return SimpleNamespace(**kernels)


def for_device(device: torch.device | str) -> SimpleNamespace:
    """The fastest kernels for `device`."""
    kind = torch.device(device).type
    if kind == "cpu":
        return _load("cpu", device="CPU", library="numba")
    if kind == "cuda":
        return _load("triton", device="GPU", library="Triton")
    return complete(reference)


def for_tensor(z: Tensor) -> SimpleNamespace:
    """The fastest kernels for the device of `z`."""
    return for_device(z.device)


@cache
def _load(module: str, device: str, library: str) -> SimpleNamespace:
    """The kernels of a module; the reference's, with one warning, if it cannot be used.

    `device` and `library` are names for the warning.
    """
    if module == "triton" and torch.version.hip is not None:
        reason = f"torch {torch.__version__} is built for AMD GPUs (ROCm)"
        remedy = "an NVIDIA GPU"
    else:
        try:
            return complete(importlib.import_module(f"sliceflow.kernels.{module}"))
        except ImportError as error:
            # numba lags behind Python, and Triton does not exist for every system.
            reason = f"{library} cannot be imported ({error})"
            remedy = f"pip install {library.lower()}"
    warnings.warn(
        f"{reason}; the slower plain-torch kernels are used on the {device}. "
        f"{remedy} brings the fast ones",
        RuntimeWarning,
        stacklevel=3,
    )
    return complete(reference)
