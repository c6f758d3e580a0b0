"""Connecting the processes that torchrun started."""

from __future__ import annotations

import datetime
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from sliceflow.devices import resolve_device
from sliceflow.models.ranks.group import Ranks
from sliceflow.models.ranks.lost import LostRank

__all__ = ["joined", "under_torchrun"]


def under_torchrun() -> bool:
    """Whether this process is one of several that `torchrun` started."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def joined(device: str | torch.device = "auto", timeout: float = 600.0) -> Iterator[Ranks]:
    """The ranks that `torchrun` started, connected while the block runs; a single rank without it.

    NCCL connects GPUs, where each rank takes the GPU of its local rank. Gloo connects CPUs.

    Parameters
    ----------
    device : as for the estimator
    timeout : seconds without an answer after which a rank counts as lost

    Examples
    --------
    >>> import numpy as np
    >>> from sliceflow import SlicedWassersteinFlow
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> with joined("cpu") as ranks:
    ...     flow = SlicedWassersteinFlow(n_particles=200, n_steps=3, random_state=0)
    ...     flow.fit(ranks.mine(X), ranks=ranks).particles_.shape
    (200, 2)
    """
    if not under_torchrun():
        yield Ranks()
        return
    backend = "gloo"
    if resolve_device(device).type == "cuda":
        local, available = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= available:
            raise ValueError(
                f"local rank {local} has no GPU: torch sees {available} here; start at most "
                f"--nproc-per-node {available}, or pass device='cpu'"
            )
        torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl"
    ours = not dist.is_initialized()
    if ours:
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout))
    ranks = Ranks(dist.get_rank(), dist.get_world_size())

    def ended(*_: Any) -> None:
        raise LostRank(
            f"rank {ranks.rank} of {ranks.size} was told to end: another rank died, or the job was "
            "cancelled"
        )

    in_main = threading.current_thread() is threading.main_thread()  # only there are signals handled
    before: Any = signal.signal(signal.SIGTERM, ended) if in_main else None
    try:
        yield ranks
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)
    if ours:  # not after an error: other ranks may be gone
        dist.destroy_process_group()
