"""Ctrl-C that waits until work has come to a place where it can stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def deferring_ctrl_c(pressed: threading.Event, *, only_first: bool) -> Iterator[None]:
    """Let Ctrl-C set an event, in a `with` block, instead of raising an error.

    The work in the block looks at the event wherever it can stop.

    Parameters
    ----------
    pressed : the event that Ctrl-C sets
    only_first : whether a second Ctrl-C raises its error at once

    Examples
    --------
    >>> pressed = threading.Event()
    >>> with deferring_ctrl_c(pressed, only_first=True):
    ...     signal.raise_signal(signal.SIGINT)
    >>> pressed.is_set()
    True
    """
    usual_handler = signal.getsignal(signal.SIGINT)

    def handle(*_: Any) -> None:
        pressed.set()
        if only_first:
            signal.signal(signal.SIGINT, usual_handler)

    # Only the main thread receives Ctrl-C, and only if it is not ignored.
    in_main_thread = threading.current_thread() is threading.main_thread()
    replaces_handler = in_main_thread and callable(usual_handler)
    if replaces_handler:
        signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        if replaces_handler:
            signal.signal(signal.SIGINT, usual_handler)
