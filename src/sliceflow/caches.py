"""Caches of tensors, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, ParamSpec

import torch
from torch import Tensor

P = ParamSpec("P")


class Cached(Generic[P]):
    """A function of hashable arguments that caches its results.

    The cache has at most `max_bytes`, and drops the results that were used least
    recently. A result larger than `max_bytes` is not cached, unless `keep_latest` is
    set: then the latest result stays until the next one comes. Threads may share the
    cache.
    """

    def __init__(
        self,
        function: Callable[P, Tensor],
        max_bytes: int,
        *,
        keep_latest: bool = False,
    ) -> None:
        self.function = function
        self.max_bytes = max_bytes
        self.keep_latest = keep_latest
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self._results: OrderedDict[Hashable, Tensor] = OrderedDict()
        self._lock = Lock()

    def __call__(self, *args: P.args, **options: P.kwargs) -> Tensor:
        key = (args, *sorted(options.items()))
        with self._lock:
            if key in self._results:
                self._results.move_to_end(key)
                return self._results[key]
        # A result outlives the caller's inference mode, and others may need gradients.
        with torch.inference_mode(mode=False):
            result = self.function(*args, **options)
        if self.keep_latest or result.nbytes <= self.max_bytes:
            with self._lock:
                self._results[key] = result
                self._drop_oldest(min_results=1)
        return result

    @property
    def nbytes(self) -> int:
        """The bytes of all cached results."""
        return sum(result.nbytes for result in self._results.values())

    def trim(self) -> None:
        """Drop results until the bound holds, even the latest one."""
        with self._lock:
            self._drop_oldest(min_results=0)

    def _drop_oldest(self, min_results: int) -> None:
        """Drop results until the bound holds, or only `min_results` are left."""
        while self.nbytes > self.max_bytes and len(self._results) > min_results:
            self._results.popitem(last=False)


def cached(
    max_bytes: int, *, keep_latest: bool = False
) -> Callable[[Callable[P, Tensor]], Cached[P]]:
    """Decorate a function from hashable arguments to a tensor; see `Cached`."""

    def decorate(function: Callable[P, Tensor]) -> Cached[P]:
        return Cached(function, max_bytes, keep_latest=keep_latest)

    return decorate
