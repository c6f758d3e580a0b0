"""Devices and their memory."""

from __future__ import annotations

import os

import torch

from sliceflow.errors import NotEnoughMemoryError, ParameterError
from sliceflow.wording import format_bytes


def resolve_device(device: str | torch.device) -> torch.device:
    """The torch device that `device` names, a CPU or a CUDA device; "auto" is a GPU if there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        fact = "is not a torch device"
        raise ParameterError("device", device, fact, "try 'cpu' or 'cuda'") from error
    fact = ""
    advice = "pass device='cpu'"
    if resolved.type == "cuda" and not torch.cuda.is_available():
        fact = "but torch sees no CUDA device"
    elif resolved.type == "cuda" and (resolved.index or 0) >= (
        there := torch.cuda.device_count()
    ):
        fact = f"but torch sees {there} CUDA devices, counted from 0"
        advice = "pass 'cuda'"
    elif resolved.type not in ("cpu", "cuda"):
        fact = "is neither a CPU nor a CUDA device"
    if fact:
        raise ParameterError("device", device, fact, advice)
    return resolved


def require_memory(wanted: int, device: torch.device, what: str, advice: str) -> None:
    """Raise an error at once for what can never be allocated, instead of failing later."""
    free = free_memory(device)
    if free is not None and wanted > free:
        fact = (
            f"{what} about {format_bytes(wanted)}"
            f" but {device} has {format_bytes(free)} free"
        )
        raise NotEnoughMemoryError(fact, advice)


def projection_budget(device: torch.device) -> int:
    """Bytes for the projections of a chunk, which changes no result: small for caches, large for GPUs."""
    most = 1 << (32 if device.type == "cuda" else 26)
    return min(most, (free_memory(device) or most) // 8)


def free_memory(device: torch.device) -> int | None:
    """Free bytes on the device; None if the system does not say."""
    if device.type == "cuda":
        # Memory that torch has reserved is free, too.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    try:  # counts the memory of cached files as available
        with open("/proc/meminfo") as lines:
            available = next(line for line in lines if line.startswith("MemAvailable"))
            return 1024 * int(available.split()[1])
    except (OSError, StopIteration):
        return _pages("SC_AVPHYS_PAGES")


def total_memory(device: torch.device) -> int | None:
    """All bytes of the device; None if the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return _pages("SC_PHYS_PAGES")


def _pages(name: str) -> int | None:
    try:
        return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
