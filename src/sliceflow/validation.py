"""Checks of parameters and data, and conversions of what users pass."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from sliceflow.arrays import Floats
from sliceflow.errors import DataError, ParameterError

if TYPE_CHECKING:
    from torch import Tensor

# One bound for all columns, or one for each; and the lower and upper bounds of columns.
Bound = float | Sequence[float]
ColumnBounds = tuple[Bound, Bound]

CallableT = TypeVar("CallableT", bound=Callable[..., Any])


def require(
    ok: bool, name: str, value: object, requirement: str, hint: str = ""
) -> None:
    """Raise a `ParameterError` with a parameter's name and value, unless `ok`.

    `requirement` says what it must be, such as "at least 1".
    """
    if not ok:
        raise ParameterError(name, value, f"must be {requirement}", hint)


def require_choice(
    name: str, value: object, choices: Sequence[str | None], hint: str = ""
) -> None:
    """Raise a `ParameterError` unless a parameter is one of some words, or None."""
    requirement = _either(map(repr, choices))
    require(_is_one_of(value, choices), name, value, requirement, hint)


def require_bool(name: str, value: object) -> None:
    """Raise a `ParameterError` unless a parameter is True or False."""
    require(is_bool(value), name, value, "True or False")


def require_int(
    name: str,
    value: object,
    minimum: int,
    *,
    others: Sequence[str | None] = (),
    hint: str = "",
) -> None:
    """Raise a `ParameterError` unless a parameter is an int of at least `minimum`.

    It may also be one of the `others`, such as None or "auto".
    """
    is_valid = is_int(value, minimum) or _is_one_of(value, others)
    requirement = _either([*map(repr, others), f"an int of at least {minimum}"])
    require(is_valid, name, value, requirement, hint)


def require_real(
    name: str,
    value: object,
    minimum: float,
    *,
    others: Sequence[str | None] = (),
    may_be_infinite: bool = False,
    hint: str = "",
) -> None:
    """Raise a `ParameterError` unless a parameter is a number of at least `minimum`.

    It may also be one of the `others`, such as None or "auto".
    """
    maximum = sys.float_info.max
    number = f"a finite number of at least {minimum}"
    if may_be_infinite:
        maximum = math.inf
        number = f"a number of at least {minimum}, which may be math.inf"
    is_valid = is_real(value, minimum, maximum) or _is_one_of(value, others)
    requirement = _either([*map(repr, others), number])
    require(is_valid, name, value, requirement, hint)


def require_verbosity(verbose: object) -> None:
    """Raise a `ParameterError` unless the parameter `verbose` says how much to log."""
    is_valid = is_bool(verbose) or is_int(verbose, 0)
    require(is_valid, "verbose", verbose, "a bool, or an int of at least 0")


def _is_one_of(value: object, choices: Iterable[str | None]) -> bool:
    """Whether a value, which may be anything, is one of some words or None."""
    if value is not None and not isinstance(value, str):
        return False
    return value in choices


def _either(alternatives: Iterable[str]) -> str:
    """Alternatives in words: "a", "a or b", "a, b or c"."""
    *first, last = alternatives
    if not first:
        return last
    return f"{', '.join(first)} or {last}"


def check_finite(x: Tensor, hint: str) -> None:
    """Raise a `DataError` if results are not all finite."""
    n = int((~x.isfinite()).sum())
    if n == 0:
        return
    fact = (
        f"{n} of {x.numel()} values came out infinite or as NaN, "
        f"beyond what {x.dtype} can hold"
    )
    raise DataError(fact, hint)


def is_bool(value: object) -> bool:
    """Whether `value` is True or False, of Python or numpy."""
    return isinstance(value, bool | np.bool)


def is_int(value: object, minimum: int) -> bool:
    """Whether `value` is an integer (not a bool) of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return False
    return int(value) >= minimum


def is_real(value: object, low: float, high: float = sys.float_info.max) -> bool:
    """Whether `value` is a number (not a bool, not NaN) from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return low <= float(value) <= high


def as_column_bounds(
    bounds: ColumnBounds | None, n_columns: int, columns: str
) -> tuple[Floats, Floats]:
    """The user's `bounds` as arrays (d,), infinite where there are none.

    Parameters
    ----------
    bounds : what the user passed as ``bounds``
    n_columns : d
    columns : what has the bounds, such as "columns", for errors

    Raises
    ------
    ParameterError
        If it is not a pair of bounds, or if a lower bound is not below its upper one.
    """
    if bounds is None:
        bounds = (-np.inf, np.inf)
    hint = f"pass (low, high): numbers, or lists of {n_columns}, one for each of the "
    hint += columns
    try:
        lower, upper = bounds
        low = _as_bound(lower, n_columns)
        high = _as_bound(upper, n_columns)
    except (TypeError, ValueError) as error:
        fact = f"is not a pair of bounds of the {columns}"
        raise ParameterError("bounds", bounds, fact, hint) from error
    is_ordered = low < high
    if not is_ordered.all():
        column = int(np.argmin(is_ordered))
        fact = "has a lower bound that is not below the upper one, at index "
        fact += f"{column} of the {columns}"
        raise ParameterError("bounds", bounds, fact, hint)
    return low, high


def _as_bound(bound: Any, n_columns: int) -> Floats:
    """One number, or one for each column, as an array (d,) of its own."""
    values = np.asarray(from_tensor(bound), dtype=np.float64)
    return np.broadcast_to(values, (n_columns,)).copy()


def as_callables(
    value: CallableT | Iterable[CallableT] | None, name: str
) -> tuple[CallableT, ...]:
    """What a user passes as one callable, several or None; as a tuple."""
    if value is None:
        return ()
    if callable(value):
        return (value,)
    requirement = "a callable, a tuple of several, or None"
    require(isinstance(value, Iterable), name, value, requirement)
    several = tuple(value)
    require(all(callable(one) for one in several), name, several, requirement)
    return several


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
    is_list = isinstance(x, list | tuple)
    for row, part in enumerate(x if is_list else [x]):
        if not isinstance(part, np.ma.MaskedArray) or not np.ma.is_masked(part):
            continue
        place = np.argwhere(np.ma.getmaskarray(part))[0].tolist()
        if is_list:
            place = [row, *place]
        fact = f"a value of {name} is masked"
        if place:
            fact += f" at {place}"
        raise DataError(fact, "drop or fill what is masked first")
    return x
