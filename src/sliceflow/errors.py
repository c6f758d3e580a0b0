"""Errors that say what is wrong and what to do about it."""

from __future__ import annotations

import sys
import warnings

import numpy as np

# A warning never names a line in these packages as the user's: this package itself, and
# contextlib, whose decorators its functions have.
_INNER_PACKAGES = ("sliceflow", "contextlib")


class HintedError(Exception):
    """An error that says what is wrong and what to do about it, in fields.

    The message is "fact; hint", after the place where it is wrong if that is known. The
    command line builds its own messages from the fields.

    Attributes
    ----------
    fact : str
        What is wrong.
    hint : str
        What to do about it, or an empty text.
    """

    def __init__(self, fact: str, hint: str = "") -> None:
        self.fact = fact
        self.hint = hint
        # Copies, and errors that come from other processes, are made from the `args`:
        # subclasses with other parameters set these.
        super().__init__(fact, hint)

    @property
    def where(self) -> str:
        """Where it is wrong, as the message begins; empty if there is no such place."""
        return ""

    @property
    def full_hint(self) -> str:
        """What to do about it, as the message ends; empty if nothing is known."""
        return self.hint

    def __str__(self) -> str:
        message = self.where + self.fact
        if self.full_hint:
            message += f"; {self.full_hint}"
        return message


class ParameterError(HintedError, ValueError):
    """An invalid parameter: "size=-1 must be at least 1".

    Attributes
    ----------
    parameter : str
        The name of the parameter.
    value : object
        What was passed.
    fact : str
        What is wrong.
    hint : str
        What to do about it, or an empty text.

    Examples
    --------
    >>> str(ParameterError("size", -1, "must be at least 1", "pass 1 or more"))
    'size=-1 must be at least 1; pass 1 or more'
    """

    def __init__(
        self, parameter: str, value: object, fact: str, hint: str = ""
    ) -> None:
        super().__init__(fact, hint)
        self.parameter = parameter
        self.value = value
        self.args = (parameter, value, fact, hint)

    @property
    def where(self) -> str:
        value = self.value
        if isinstance(value, np.generic):
            value = value.item()  # 3 instead of np.int64(3)
        return f"{self.parameter}={value!r} "


class DataProblem(HintedError):
    """What `DataError` and `DataWarning` share: a fact about data, and where it is.

    Attributes
    ----------
    row : int or None
        Counted from 0, as pandas and numpy do; None if it is unknown.
    column : str, int or None
        The name or number of the column; None if it is unknown.
    suggested_kinds : tuple of str
        Kinds of columns, such as "category", of which the user may choose one for this
        column.
    fact : str
        What is wrong.
    hint : str
        What to do about it, or an empty text.
    """

    def __init__(
        self,
        fact: str,
        hint: str = "",
        row: int | None = None,
        column: object = None,
        suggested_kinds: tuple[str, ...] = (),
    ) -> None:
        super().__init__(fact, hint)
        self.row = row
        self.column = column
        self.suggested_kinds = suggested_kinds
        self.args = (fact, hint, row, column, suggested_kinds)

    @property
    def where(self) -> str:
        places = []
        if self.row is not None:
            places.append(f"row {self.row}")
        if self.column is not None:
            places.append(f"column {self.column!r}")
        if not places:
            return ""
        return f"{', '.join(places)}: "

    @property
    def full_hint(self) -> str:
        """The hint and the suggested kinds, as the parameter `kinds` takes them."""
        parts = []
        if self.hint:
            parts.append(self.hint)
        choices = [f"{{{self.column!r}: {kind!r}}}" for kind in self.suggested_kinds]
        if choices:
            parts.append(f"pass kinds={' or '.join(choices)}")
        return ", or ".join(parts)


class DataError(DataProblem, ValueError):
    """Data that cannot be used, with the row and the column where they are known.

    Attributes
    ----------
    row : int or None
        Counted from 0, as pandas and numpy do; None if it is unknown.
    column : str, int or None
        The name or number of the column; None if it is unknown.
    suggested_kinds : tuple of str
        Kinds of columns, such as "category", of which you may choose one for this
        column.
    fact : str
        What is wrong.
    hint : str
        What to do about it, or an empty text.

    Examples
    --------
    >>> str(DataError("is NaN", "fill or drop it", row=5, column="age"))
    "row 5, column 'age': is NaN; fill or drop it"
    """


class DataWarning(DataProblem, UserWarning):
    """Data that can be used, but perhaps not as the user expects.

    It has the attributes of a `DataError`.
    """


class CopyWarning(UserWarning):
    """The particles copy rows of the data: samples may not be new."""


class NotEnoughMemoryError(HintedError, MemoryError):
    """Something that was asked for needs more memory than there can ever be.

    Attributes
    ----------
    fact : str
        What needs how much memory.
    hint : str
        What to do about it, or an empty text.
    """


def warn_user(warning: Warning | str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's code that called this package.

    The `category` is used if the warning is a text; a `Warning` has its own.
    """
    stack_level = 1
    frame = sys._getframe()
    while frame.f_back is not None and _is_inner(frame.f_globals):
        frame = frame.f_back
        stack_level += 1
    warnings.warn(warning, category, stacklevel=stack_level)


def _is_inner(module: dict[str, object]) -> bool:
    """Whether a module, given by its globals, is not the user's."""
    package = str(module.get("__name__", "")).partition(".")[0]
    return package in _INNER_PACKAGES
