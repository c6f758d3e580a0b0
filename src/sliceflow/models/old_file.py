"""Typed access to JSON, for the readers that the codec replaces."""

from __future__ import annotations

import math
from typing import Any

from sliceflow.models.file import ModelFileError, read, write

__all__ = ["Fields", "ModelFileError", "read", "write"]


class Fields:
    """Typed access to the fields of a JSON object; a ValueError says what does not fit.

    Examples
    --------
    >>> fields = Fields({"seed": {"entropy": -1}})
    >>> fields.inner("seed").whole("entropy", 0)
    Traceback (most recent call last):
    ...
    ValueError: seed.entropy is -1; it must be an integer of at least 0
    """

    def __init__(self, value: Any, where: str = "") -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{where or 'the text'} is {_short(value)}; it must be a JSON object")
        self.value, self._where = value, where

    def _name(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name

    def _need(self, ok: bool, name: str, what: str) -> None:
        if not ok:
            raise ValueError(f"{self._name(name)} is {_short(self.value[name])}; it must be {what}")

    def raw(self, name: str) -> Any:
        """The field of any type."""
        if name not in self.value:
            raise ValueError(f"{self._name(name)} is missing")
        return self.value[name]

    def whole(self, name: str, least: int, most: int = 1 << 53) -> int:
        """An integer from `least` to `most`."""
        value = self.raw(name)
        ok = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        limit = f"of at least {least}" if most == 1 << 53 else f"from {least} to {most}"
        self._need(ok, name, f"an integer {limit}")
        return int(value)

    def number(self, name: str, least: float = -math.inf, most: float = math.inf) -> float:
        """A finite number from `least` to `most`."""
        value = self.raw(name)
        ok = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
        limits = "" if least == -math.inf else f", at least {least:g}"
        limits += "" if most == math.inf else f" and at most {most:g}"
        self._need(ok and least <= value <= most, name, f"a finite number{limits}")
        return float(value)

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self.raw(name)
        self._need(isinstance(value, bool), name, "true or false")
        return bool(value)

    def text(self, name: str) -> str:
        """A string."""
        value = self.raw(name)
        self._need(isinstance(value, str), name, "a string")
        return str(value)

    def rows(self, name: str) -> list[Any]:
        """A list of anything."""
        value = self.raw(name)
        self._need(isinstance(value, list), name, "a list")
        return list(value)

    def wholes(self, name: str, least: int) -> list[int]:
        """A list of integers of at least `least`."""
        values = self.rows(name)
        ok = all(type(v) is int and least <= v <= 1 << 53 for v in values)
        self._need(ok, name, f"a list of integers of at least {least}")
        return values

    def inner(self, name: str) -> Fields:
        """A nested object."""
        return Fields(self.raw(name), self._name(name))

    def inners(self, name: str) -> list[Fields]:
        """A list of objects."""
        return [Fields(v, f"{self._name(name)}[{i}]") for i, v in enumerate(self.rows(name))]


def _short(value: Any) -> str:
    try:
        shown = repr(value)
    except (ValueError, RecursionError):  # integers of thousands of digits, deep nesting
        shown = f"a {type(value).__name__} too long to show"
    return shown if len(shown) <= 60 else shown[:57] + "…"
