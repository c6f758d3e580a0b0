"""Being told to stop, by Ctrl-C or by SIGTERM, which is the same here. Nothing is said."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Unbroken", "told_to_stop"]


@contextmanager
def told_to_stop() -> Iterator[None]:
    """SIGINT and SIGTERM raise KeyboardInterrupt, until somebody handles SIGINT, and then that is done.

    Also where SIGINT is ignored, as in the background of a script: a fit that is told to stop keeps a
    checkpoint. A SIGTERM that is not left to the system stays as it is.
    """
    if not _in_main_thread():
        yield
        return
    before: dict[signal.Signals, Any] = {}
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        before[signal.SIGTERM] = signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _as_interrupt(_: int, frame: Any) -> None:
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)


class Unbroken:
    """From the end of a fit until its files are written Ctrl-C waits; a second one does not.

    It is a listener of the fit, whose `close` marks that end.
    """

    def __init__(self) -> None:
        self._asked, self._before = False, signal.getsignal(signal.SIGINT)

    def __call__(self, _: object) -> None:
        pass

    def close(self) -> None:
        """Begin to wait. Only the main thread hears Ctrl-C."""
        if _in_main_thread() and callable(self._before):
            signal.signal(signal.SIGINT, self._ask)

    def _ask(self, *_: object) -> None:
        self._asked = True
        self.release()

    def release(self) -> None:
        """Stop waiting."""
        if callable(self._before) and signal.getsignal(signal.SIGINT) == self._ask:
            signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Stop waiting, and do now what was asked for in the meantime."""
        self.release()
        if self._asked:
            raise KeyboardInterrupt


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
