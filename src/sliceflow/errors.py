"""Errors that say what is wrong and what to do, and checks that raise them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


class HintedError(Exception):
    """An error that says what is wrong and what to do about it, in fields.

    The message is "fact; hint", after the place where it is wrong if that is known.
    Command lines build texts of their own from the fields.

    Attributes
    ----------
    fact : what is wrong
    hint : what to do about it, or an empty text
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
    def advice(self) -> str:
        """What to do about it, as the message ends; empty if nothing is known."""
        return self.hint

    def __str__(self) -> str:
        message = self.where + self.fact
        if self.advice:
            message += f"; {self.advice}"
        return message


class ParameterError(HintedError, ValueError):
    """An invalid parameter: "size=-1 must be at least 1".

    Attributes
    ----------
    parameter, value : its name and value
    fact, hint : what is wrong, and what to do about it
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
    row : counted from 0, as pandas and numpy do; None if it is unknown
    column : its name or number; None if it is unknown
    suggested_kinds : kinds of columns, such as "category", of which the user may choose
        one for this column
    fact, hint : what is wrong, and what to do about it
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
    def advice(self) -> str:
        """The hint and the suggested kinds, as the parameter `columns` takes them."""
        parts = []
        if self.hint:
            parts.append(self.hint)
        choices = [f"{{{self.column!r}: {kind!r}}}" for kind in self.suggested_kinds]
        if choices:
            parts.append(f"pass columns={' or '.join(choices)}")
        return ", or ".join(parts)


class DataError(DataProblem, ValueError):
    """Data that cannot be used, with the row and the column where they are known.

    The message is such as "row 5, column 'age': is NaN; fill or drop it".

    Attributes
    ----------
    row : counted from 0, as pandas and numpy do; None if it is unknown
    column : its name or number; None if it is unknown
    suggested_kinds : kinds of columns, such as "category", of which you may choose one
        for this column
    fact, hint : what is wrong, and what to do about it
    """


class DataWarning(DataProblem, UserWarning):
    """Data that can be used, but perhaps not as the user expects."""


class CopyWarning(UserWarning):
    """The particles copy rows of the data: samples may not be new."""


class NotEnoughMemoryError(HintedError, MemoryError):
    """What was asked for can never be allocated."""


def require(ok: bool, name: str, value: object, what: str) -> None:
    """Raise a `ParameterError` with a parameter's name and value, unless `ok`.

    `what` says what it must be, such as "at least 1".
    """
    if not ok:
        raise ParameterError(name, value, f"must be {what}")


def require_finite(x: Tensor, advice: str) -> None:
    """Raise a `DataError` if results are not all finite."""
    n = int((~x.isfinite()).sum())
    if n == 0:
        return
    fact = (
        f"{n} of {x.numel()} values came out infinite or as NaN, "
        f"beyond what {x.dtype} can hold"
    )
    raise DataError(fact, advice)


def is_bool(value: object) -> bool:
    """Whether `value` is True or False, of Python or numpy."""
    return isinstance(value, bool | np.bool)


def is_int(value: object, least: int) -> bool:
    """Whether `value` is an integer (not a bool) of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return False
    return int(value) >= least


def is_real(value: object, low: float, high: float = sys.float_info.max) -> bool:
    """Whether `value` is a number (not a bool, not NaN) from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return low <= float(value) <= high


def duplicates(values: Sequence[Any]) -> list[Any]:
    """Values that stand a second time, in order."""
    if len(set(values)) == len(values):
        return []
    return [value for i, value in enumerate(values) if value in values[:i]]


def from_tensor(x: Any) -> Any:
    """A tensor on any device as an array; anything else unchanged.

    bfloat16, which numpy does not have, becomes float32.
    """
    torch = sys.modules.get("torch")  # without it, x is not a tensor
    if torch is None or not isinstance(x, torch.Tensor):
        return x
    x = x.detach().cpu()
    if x.dtype == torch.bfloat16:
        x = x.float()
    return x.numpy()


def unmasked(x: Any, name: str) -> Any:
    """x unchanged, or a `DataError` if a mask of numpy.ma hides values of it.

    x is an array, or a list of arrays.
    """
    if not isinstance(x, list | tuple):
        _require_no_mask(x, name, [])
        return x
    for row, part in enumerate(x):
        _require_no_mask(part, name, [row])
    return x


def _require_no_mask(x: Any, name: str, place: list[int]) -> None:
    """Raise a `DataError` if values of x are masked; `place` is that of x in a list."""
    if not isinstance(x, np.ma.MaskedArray) or not np.ma.is_masked(x):
        return
    first = np.argwhere(np.ma.getmaskarray(x))[0]
    place = [*place, *first.tolist()]
    fact = f"a value of {name} is masked"
    if place:
        fact += f" at {place}"
    raise DataError(fact, "drop or fill what is masked first")
