"""Checks that both estimators share: parameters, device, memory."""

from __future__ import annotations

import os
import sys
from numbers import Integral, Real

import torch

__all__ = ["default_particles", "is_int", "is_real", "need", "need_memory", "resolve_device"]


def need(ok: bool, name: str, value: object, what: str) -> None:
    """Raise a ValueError that names the parameter, its value and what it must be, unless `ok`."""
    if not ok:
        raise ValueError(f"{name}={value!r} must be {what}")


def is_int(value: object, least: int) -> bool:
    """Whether `value` is a whole number (not a bool) of at least `least`."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def is_real(value: object, low: float, high: float = sys.float_info.max) -> bool:
    """Whether `value` is a number (not a bool, not NaN) from `low` to `high`."""
    return isinstance(value, Real) and not isinstance(value, bool) and low <= float(value) <= high


def resolve_device(device: str | torch.device) -> torch.device:
    """The torch device that `device` names; "auto" is a GPU where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device={device!r} is not a torch device; try 'cpu' or 'cuda'") from error
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={device!r} but torch sees no CUDA device; pass device='cpu'")
    return resolved


def default_particles(n: int) -> int:
    """The smallest multiple of n rows that is at least 10,000.

    Fewer, and the maps follow the particles' own noise: poor offline samples. A multiple, so that every
    row's condition is used equally often.
    """
    return n * max(1, -(-10_000 // n))


def need_memory(wanted: int, device: torch.device, what: str, advice: str) -> None:
    """Refuse at once what could never be allocated, instead of dying in the middle."""
    free = _free_memory(device)
    if free is not None and wanted > free:
        raise MemoryError(
            f"{what} about {wanted / 2**30:.1f} GiB but {device} has {free / 2**30:.1f} GiB free; "
            f"{advice}"
        )


def _free_memory(device: torch.device) -> int | None:
    """Free bytes on the device; None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
