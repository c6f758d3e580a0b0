"""What each browser has on the server: an uploaded table, and the process that fits it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

__all__ = ["Sessions"]

MOST = 16  # browsers at a time; the one that was silent for longest makes room
_NAME = re.compile(r"[0-9a-f]{16,64}")


class _State(Protocol):
    @property
    def busy(self) -> bool: ...

    def close(self) -> None: ...


S = TypeVar("S", bound=_State)


class Sessions(Generic[S]):
    """The state of every browser by its name, which the page draws at random.

    Parameters
    ----------
    make : the state of a new browser
    """

    def __init__(self, make: Callable[[], S]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._states: dict[str, tuple[S, float]] = {}

    def of(self, name: str) -> S:
        """The state of a browser."""
        if not _NAME.fullmatch(name):
            raise ValueError("the request names no session")
        gone: list[S] = []
        with self._lock:
            state = self._states[name][0] if name in self._states else self._make()
            self._states[name] = (state, time.monotonic())
            while len(self._states) > MOST:
                others = (other for other in self._states if other != name)
                oldest = min(others, key=lambda k: (self._states[k][0].busy, self._states[k][1]))
                gone.append(self._states.pop(oldest)[0])
        for old in gone:
            old.close()
        return state

    def close(self) -> None:
        """Forget all of them, and end their processes."""
        with self._lock:
            states, self._states = self._states, {}
        for state, _ in states.values():
            state.close()
