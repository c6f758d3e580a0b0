"""Ranks that died: one error for whatever Gloo, NCCL or torchrun report."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

__all__ = ["LostRank", "reporting_lost_ranks"]

_PATIENCE = 3.0  # seconds to wait for torchrun's signal
_LOSS = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|closed by peer|reset by peer|broken pipe"
    r"|timed? ?out|pair closure|no route to host|network error|socket"
    r"|remote ?error|remote process exited|communicator was aborted",
    re.IGNORECASE,
)


class LostRank(RuntimeError):
    """Another rank no longer answers, or the job was ended from outside."""


@contextmanager
def reporting_lost_ranks(rank: int, size: int) -> Iterator[None]:
    """Raise `LostRank` where torch reports that a rank does not answer; pass on any other error."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, LostRank) or not _is_loss(error):
            raise
        _outlive_torchrun()
        raise LostRank(
            f"rank {rank} of {size} has lost another rank, which died or does not answer"
        ) from error


def _is_loss(error: RuntimeError) -> bool:
    """Whether another rank is gone, judged by the messages of Gloo, NCCL and torch's store.

    Messages of mismatched sizes, or too little memory for one, are not a loss.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return False
    if isinstance(error, (dist.DistNetworkError, dist.DistStoreError)):
        return True
    return _LOSS.search(str(error)) is not None


def _outlive_torchrun() -> None:
    """Wait for the SIGTERM with which torchrun ends all ranks when one has died, and ignore it.

    It comes within a second. It would end this rank before the error is reported.
    """
    if threading.current_thread() is not threading.main_thread() or not dist.is_torchelastic_launched():
        return
    heard = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: heard.set())
    try:
        heard.wait(_PATIENCE)
    finally:
        signal.signal(signal.SIGTERM, before)
