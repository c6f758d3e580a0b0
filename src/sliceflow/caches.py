"""Caches of tensors, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, ParamSpec

from torch import Tensor

P = ParamSpec("P")


class Cached(Generic[P]):
    """A function of hashable arguments with a cache of `most` bytes; `always` keeps even a larger result."""

    def __init__(
        self, function: Callable[P, Tensor], most: int, *, always: bool = False
    ) -> None:
        self.function = function
        self.most = most
        self.always = always
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self._kept: OrderedDict[Hashable, Tensor] = OrderedDict()
        self._lock = Lock()

    def __call__(self, *args: P.args, **options: P.kwargs) -> Tensor:
        key = (args, *sorted(options.items()))
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        value = self.function(*args, **options)
        if self.always or value.nbytes <= self.most:
            with self._lock:
                self._kept[key] = value
                self._shrink(keeping=1)
        return value

    @property
    def nbytes(self) -> int:
        """Of all cached results."""
        return sum(value.nbytes for value in self._kept.values())

    def trim(self) -> None:
        """Remove results until the bound holds, even the latest one."""
        with self._lock:
            self._shrink(keeping=0)

    def _shrink(self, keeping: int) -> None:
        while self.nbytes > self.most and len(self._kept) > keeping:
            self._kept.popitem(last=False)


def cached(
    most: int, *, always: bool = False
) -> Callable[[Callable[P, Tensor]], Cached[P]]:
    """Decorates a function from hashable arguments to a tensor; see `Cached`."""
    return lambda function: Cached(function, most, always=always)
