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
    """An error that says what is wrong, the `fact`, and what to do about it, the `hint`.

    The message is both, "fact; hint". A command line builds its own text from the fields.
    """

    def __init__(self, fact: str, hint: str = "") -> None:
        self.fact = fact
        self.hint = hint
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
        return f"{message}; {self.advice}" if self.advice else message


class ParameterError(HintedError, ValueError):
    """An invalid parameter, with its name and value."""

    def __init__(
        self, parameter: str, value: object, fact: str, hint: str = ""
    ) -> None:
        super().__init__(fact, hint)
        self.parameter = parameter
        self.value = value
        self.args = (parameter, value, fact, hint)  # joblib builds it again from these

    @property
    def where(self) -> str:
        shown = self.value.item() if isinstance(self.value, np.generic) else self.value
        return f"{self.parameter}={shown!r} "


class DataProblem(HintedError):
    """What `DataError` and `DataWarning` share: a fact about data, and where it is.

    Rows are counted from 0, as pandas and numpy do. `suggested_kinds` are kinds of
    columns, such as "category", of which the user may choose one for this column.
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
        return f"{', '.join(places)}: " if places else ""

    @property
    def advice(self) -> str:
        """The hint and the suggested kinds, as the parameter `columns` takes them."""
        choices = [f"{{{self.column!r}: {kind!r}}}" for kind in self.suggested_kinds]
        if not choices:
            return self.hint
        suggestion = f"pass columns={' or '.join(choices)}"
        return f"{self.hint}, or {suggestion}" if self.hint else suggestion


class DataError(DataProblem, ValueError):
    """Data that cannot be used, with the row and the column where they are known."""


class DataWarning(DataProblem, UserWarning):
    """Data that can be used, but perhaps not as the user expects."""


class CopyWarning(UserWarning):
    """The particles copy rows of the data: samples may not be new."""


class NotEnoughMemoryError(HintedError, MemoryError):
    """What was asked for can never be allocated."""


def require(ok: bool, name: str, value: object, what: str) -> None:
    """Raise a `ParameterError` that names the parameter, its value and what it must be, unless `ok`."""
    if not ok:
        raise ParameterError(name, value, f"must be {what}")


def require_finite(x: Tensor, advice: str) -> None:
    """Raise a ValueError if results are not all finite."""
    if n := int((~x.isfinite()).sum()):
        fact = f"{n} of {x.numel()} values came out infinite or as NaN, beyond what {x.dtype} can hold"
        raise ValueError(f"{fact}; {advice}")


def is_bool(value: object) -> bool:
    """Whether `value` is True or False, of Python or numpy."""
    return isinstance(value, bool | np.bool)


def is_int(value: object, least: int) -> bool:
    """Whether `value` is an integer (not a bool) of at least `least`."""
    return (
        isinstance(value, Integral)
        and not isinstance(value, bool)
        and int(value) >= least
    )


def is_real(value: object, low: float, high: float = sys.float_info.max) -> bool:
    """Whether `value` is a number (not a bool, not NaN) from `low` to `high`."""
    return (
        isinstance(value, Real)
        and not isinstance(value, bool)
        and low <= float(value) <= high
    )


def doubled(values: Sequence[Any]) -> list[Any]:
    """Values that stand a second time, in order."""
    if len(set(values)) == len(values):
        return []
    return [value for i, value in enumerate(values) if value in values[:i]]


def from_tensor(x: Any) -> Any:
    """A tensor on any device as an array (bfloat16 as float32); anything else unchanged."""
    torch = sys.modules.get("torch")  # without it, x is not a tensor
    if torch is None or not isinstance(x, torch.Tensor):
        return x
    x = x.detach().cpu()
    return (x.float() if x.dtype == torch.bfloat16 else x).numpy()


def unmasked(x: Any, name: str) -> Any:
    """x unchanged, or a ValueError if a mask of numpy.ma hides values of it."""
    listed = isinstance(x, list | tuple)
    for row, part in enumerate(x if listed else [x]):
        if isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part):
            place = [row] * listed + np.argwhere(np.ma.getmaskarray(part))[0].tolist()
            where = f" at {place}" if place else ""
            raise ValueError(
                f"a value of {name} is masked{where}; drop or fill what is masked first"
            )
    return x
