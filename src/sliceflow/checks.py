"""Checks that both estimators share: parameters, device, memory."""

from __future__ import annotations

import os

import torch

__all__ = ["free_memory", "need", "resolve_device"]


def need(ok: bool, name: str, value: object, what: str) -> None:
    """Raise a ValueError that names the parameter, its value and what it must be, unless `ok`."""
    if not ok:
        raise ValueError(f"{name}={value!r} must be {what}")


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


def free_memory(device: torch.device) -> int | None:
    """Free bytes on the device; None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
