"""Ctrl-C, SIGTERM and the end of the terminal (SIGHUP), which mean the same here."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["signals_as_interrupt", "uninterrupted"]

_ENDS = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]  # none on Windows


@contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt; a handler of SIGINT set meanwhile gets all.

    Shells ignore SIGINT in the background of a script. Here it is heard all the same, so that a fit
    that is stopped writes a checkpoint. Others with a handler of their own, as under nohup, keep it.
    """
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in _ENDS:
            if signal.getsignal(number) == signal.SIG_DFL:
                before[number] = signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_: int, frame: Any) -> None:
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Files are written to the end: Ctrl-C waits until then; a second one does not."""
    before, asked = signal.getsignal(signal.SIGINT), []
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return

    def remember(*_: object) -> None:
        asked.append(True)
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        raise KeyboardInterrupt
