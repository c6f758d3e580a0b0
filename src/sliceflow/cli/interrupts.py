"""Ctrl-C, SIGTERM and the end of the terminal (SIGHUP), which mean the same here."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["DelayedInterrupt", "signals_as_interrupt"]

_ENDS = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]  # none on Windows


@contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt; a handler of SIGINT set meanwhile gets all.

    Shells ignore SIGINT in the background of a script. Here it is heard all the same, so that a fit
    that is stopped writes a checkpoint. Others with a handler of their own, as under nohup, keep it.
    """
    before: dict[signal.Signals, Any] = {}
    if _in_main_thread():
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


class DelayedInterrupt:
    """Delays Ctrl-C from the end of a fit until its files are written; a second one is not delayed.

    It is a listener of the fit, whose `close` marks that end.
    """

    def __init__(self) -> None:
        self._asked, self._before = False, signal.getsignal(signal.SIGINT)

    def __call__(self, _: object) -> None:
        pass

    def close(self) -> None:
        """Begin to delay. Only the main thread hears Ctrl-C."""
        if _in_main_thread() and callable(self._before):
            signal.signal(signal.SIGINT, self._remember)

    def _remember(self, *_: object) -> None:
        self._asked = True
        self.release()

    def release(self) -> None:
        """Stop delaying, and forget what was delayed."""
        if callable(self._before) and signal.getsignal(signal.SIGINT) == self._remember:
            signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Stop delaying, and raise an interrupt that was delayed."""
        self.release()
        if self._asked:
            raise KeyboardInterrupt


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
