"""Devices, their memory and threads."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Literal

from sliceflow.errors import NotEnoughMemoryError, ParameterError
from sliceflow.wording import format_bytes

if TYPE_CHECKING:
    import torch

# Functions that need torch import it themselves: it takes seconds, and new rows of a
# table, whose memory is checked here, do without it.

# Projections of a chunk: 64 MiB stay near the caches of a CPU, 4 GiB keep a GPU busy.
_MAX_PROJECTION_BYTES_ON_CPU = 1 << 26
_MAX_PROJECTION_BYTES_ON_GPU = 1 << 32
# Projections take at most this share of the free memory: sorting needs several arrays
# of the same size, and the rows need memory, too.
_PROJECTION_SHARE = 1 / 8
# The size of the work that tells how fast a CPU is: it projects and moves points, and
# fits into the caches, as the work on one direction does.
_TIMED_TILE = 64
_TIMED_POINTS = 2048
_TIMED_BINS = 128
# The shortest of this many tries counts: longer ones were interrupted.
_N_TIMED = 5
# Seconds that this work took on one idle core of the machine on which the costs of CPUs
# in plans were measured: x86-64 at 2.5 GHz with AVX-512, torch 2.13.
_REFERENCE_SECONDS = 4.0e-3


@cache
def cpu_slowness() -> float:
    """How many times as long this CPU takes as the CPU on which costs were measured.

    It is measured once in a process, on one thread, as busy as the CPU is then.
    """
    import torch

    theta = torch.eye(_TIMED_TILE)
    x = torch.linspace(-1, 1, _TIMED_TILE * _TIMED_POINTS).view(_TIMED_TILE, -1)
    values = torch.linspace(-1, 1, _TIMED_BINS + 1, dtype=torch.float64)
    seconds = []
    with one_thread():
        for _ in range(_N_TIMED):
            started_at = time.perf_counter()
            z = (theta @ x).double()
            position = (z + 1) * (_TIMED_BINS / 2)
            below = position.long().clamp_(0, _TIMED_BINS - 1)
            rise = values[below + 1] - values[below]
            moved_z = values[below] + rise * (position - below)
            theta.T @ (moved_z - z).float()  # only its time matters
            seconds.append(time.perf_counter() - started_at)
    return min(seconds) / _REFERENCE_SECONDS


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread for products that sum over many rows.

    Several threads add up parts of such a sum, so its last bits would depend on the
    number of threads. Products that sum over few columns do not need this.
    """
    import torch

    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)


def resolve_device(device: str | torch.device) -> torch.device:
    """The torch device that `device` names, a CPU or a CUDA device.

    "auto" is a GPU if there is one.
    """
    import torch

    if not isinstance(device, str | torch.device):
        fact = "is not a torch device"
        raise ParameterError("device", device, fact, "try 'cpu' or 'cuda'")
    if device == "auto" and torch.cuda.is_available():
        return torch.device("cuda")
    if device == "auto":
        return torch.device("cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        fact = "is not a torch device"
        raise ParameterError("device", device, fact, "try 'cpu' or 'cuda'") from error
    if resolved.type == "cpu":
        return resolved
    if resolved.type != "cuda":
        fact = "is neither a CPU nor a CUDA device"
        raise ParameterError("device", device, fact, "pass device='cpu'")
    if not torch.cuda.is_available():
        fact = "but torch sees no CUDA device"
        raise ParameterError("device", device, fact, "pass device='cpu'")
    n_devices = torch.cuda.device_count()
    if resolved.index is not None and resolved.index >= n_devices:
        fact = f"but torch sees {n_devices} CUDA devices, counted from 0"
        raise ParameterError("device", device, fact, "pass 'cuda'")
    return resolved


def require_memory(
    wanted: int, device: torch.device | Literal["cpu"], what: str, hint: str
) -> None:
    """Raise a `NotEnoughMemoryError` if `wanted` bytes can never be allocated.

    `what` begins the message, such as "the particles need".
    """
    free = free_memory(device)
    if free is None or wanted <= free:
        return
    fact = (
        f"{what} about {format_bytes(wanted)}"
        f" but {device} has {format_bytes(free)} free"
    )
    raise NotEnoughMemoryError(fact, hint)


def max_projection_bytes(device: torch.device) -> int:
    """Bytes for the projections of a chunk. It changes no result, only the speed."""
    max_bytes = _MAX_PROJECTION_BYTES_ON_CPU
    if device.type == "cuda":
        max_bytes = _MAX_PROJECTION_BYTES_ON_GPU
    free = free_memory(device)
    if not free:
        free = max_bytes
    return min(max_bytes, int(free * _PROJECTION_SHARE))


def free_memory(device: torch.device | Literal["cpu"]) -> int | None:
    """Free bytes on the device; None if the system does not say."""
    if not isinstance(device, str) and device.type == "cuda":
        import torch

        free_on_device, _ = torch.cuda.mem_get_info(device)
        # Memory that torch has reserved but does not use is free, too.
        reserved = torch.cuda.memory_reserved(device)
        return int(free_on_device) + reserved - torch.cuda.memory_allocated(device)
    try:
        # Linux counts the memory of cached files as available here.
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable"):
                    return 1024 * int(line.split()[1])
    except OSError:
        pass
    return _bytes_of_pages("SC_AVPHYS_PAGES")


def total_memory(device: torch.device) -> int | None:
    """All bytes of the device; None if the system does not say."""
    if device.type == "cuda":
        import torch

        _, total = torch.cuda.mem_get_info(device)
        return int(total)
    return _bytes_of_pages("SC_PHYS_PAGES")


def _bytes_of_pages(name: str) -> int | None:
    """Bytes of the pages that a name of `os.sysconf` counts; None if it is unknown."""
    try:
        return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
