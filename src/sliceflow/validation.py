"""Checks of parameters and data, and conversions of what users pass."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from sliceflow.arrays import Floats
from sliceflow.errors import DataError, ParameterError

if TYPE_CHECKING:
    from torch import Tensor

# One bound for all columns, or one for each; and the lower and upper bounds of columns.
Bound = float | Sequence[float]
ColumnBounds = tuple[Bound, Bound]

CallableT = TypeVar("CallableT", bound=Callable[..., Any])
ValueT = TypeVar("ValueT")

# The largest count of a parameter, as in files. No machine could hold more.
MAX_COUNT = 1 << 40
# The largest int of torch.
_MAX_INT64 = (1 << 63) - 1


def require(
    ok: bool, name: str, value: object, requirement: str, hint: str = ""
) -> None:
    """Raise a `ParameterError` with a parameter's name and value, unless `ok`.

    `requirement` says what the value must be, such as "at least 1". If the value is one
    of this package's classes, the error says how to make an object of it.
    """
    if not ok:
        raise _parameter_error(name, value, requirement, hint)


def _parameter_error(
    name: str, value: object, requirement: str, hint: str
) -> ParameterError:
    """The error of a parameter that is not what it must be; see `require`."""
    if isinstance(value, type) and value.__module__.startswith("sliceflow."):
        hint = f"this is a class: write {value.__name__}()"
    return ParameterError(name, value, f"must be {requirement}", hint)


def require_choice(
    name: str,
    value: object,
    choices: Sequence[str | None],
    hint: str = "",
    *,
    protocol: type | None = None,
    objects: str = "",
) -> None:
    """Raise a `ParameterError` unless a parameter is one of some words, or None.

    With a `protocol`, it may also be an object that has the protocol's methods. Errors
    call such objects `objects`, for example "a transport from sliceflow.transports".
    """
    if isinstance(value, str | None) and value in choices:
        return
    allowed = [*map(repr, choices)]
    if protocol is not None:
        if is_object_of(value, protocol):
            require_arguments(name, value, protocol)
            return
        allowed.append(objects)
    raise _parameter_error(name, value, _either(allowed), hint)


def require_bool(name: str, value: object) -> None:
    """Raise a `ParameterError` unless a parameter is True or False."""
    require(isinstance(value, bool | np.bool), name, value, "True or False")


def require_int(
    name: str,
    value: object,
    minimum: int,
    *,
    maximum: int = MAX_COUNT,
    others: Sequence[str | None] = (),
    hint: str = "",
) -> None:
    """Raise a `ParameterError` unless a parameter is an int of at least `minimum`.

    It may also be one of the `others`, such as None or "auto". An int above the
    `maximum`, which no user comes near, has an error of its own.
    """
    if isinstance(value, str | None) and value in others:
        return
    if not is_int(value, minimum):
        wanted = _either([*map(repr, others), f"an int of at least {minimum}"])
        raise _parameter_error(name, value, wanted, hint)
    is_too_large = isinstance(value, Integral) and int(value) > maximum
    require(not is_too_large, name, value, f"at most {maximum}", hint)


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
    if isinstance(value, str | None) and value in others:
        return
    maximum = sys.float_info.max
    number = f"a finite number of at least {minimum}"
    if may_be_infinite:
        maximum = math.inf
        number = f"a number of at least {minimum}, which may be math.inf"
    if not is_real(value, minimum, maximum):
        wanted = _either([*map(repr, others), number])
        raise _parameter_error(name, value, wanted, hint)


def require_verbosity(verbose: object) -> None:
    """Raise a `ParameterError` unless the parameter `verbose` says how much to log."""
    is_valid = isinstance(verbose, bool | np.bool) or is_int(verbose, 0)
    require(is_valid, "verbose", verbose, "a bool, or an int of at least 0")


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


def is_object_of(value: object, protocol: type) -> bool:
    """Whether `value` has the members of a runtime protocol, and is not a class.

    A class has these members, too, but its methods have no object to work on.
    `require_arguments` checks what the methods take.
    """
    return isinstance(value, protocol) and not isinstance(value, type)


def require_arguments(name: str, value: object, protocol: type) -> None:
    """Raise a `ParameterError` unless methods take the arguments that a protocol says.

    Methods of the protocol are called with all of their arguments, in order.
    """
    for method_name, declared in inspect.getmembers(protocol, inspect.isfunction):
        if method_name.startswith("_"):
            continue
        _, *arguments = inspect.signature(declared).parameters  # without self
        try:
            inspect.signature(getattr(value, method_name)).bind(*arguments)
        except TypeError:
            call = f"{method_name}({', '.join(arguments)})"
            requirement = f"an object whose method can be called as {call}"
            raise _parameter_error(name, value, requirement, "") from None


def is_int(value: object, minimum: int) -> bool:
    """Whether `value` is an integer (not a bool) of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return False
    return int(value) >= minimum


def is_real(value: object, low: float, high: float = sys.float_info.max) -> bool:
    """Whether `value` is a number (not a bool, not NaN) from `low` to `high`."""
    if not isinstance(value, int | float | np.integer | np.floating):
        return False
    if isinstance(value, bool):
        return False
    try:
        number = float(value)
    except OverflowError:  # an int beyond the floats
        return False
    return low <= number <= high


def with_plain_numbers(value: ValueT) -> ValueT:
    """A parameter, or a dataclass of parameters, with numbers in Python's types.

    With numbers of numpy, such as int8, products of parameters could overflow.
    Dataclasses among the parameters have plain numbers, too.
    """
    plain: Any = value
    if isinstance(value, np.bool | np.integer | np.floating):
        plain = value.item()
    elif isinstance(value, int) and value > _MAX_INT64 and is_real(value, 0):
        plain = float(value)  # only parameters that are no counts have such ints
    elif is_dataclass(value) and not isinstance(value, type):
        plain = replace(
            value,
            **{
                field.name: with_plain_numbers(getattr(value, field.name))
                for field in fields(value)
            },
        )
    return cast(ValueT, plain)


def as_column_bounds(
    bounds: ColumnBounds | None, n_columns: int, noun: str
) -> tuple[Floats, Floats]:
    """The user's `bounds` as arrays (d,), infinite where there are none.

    Parameters
    ----------
    bounds : what the user passed as ``bounds``
    n_columns : d
    noun : what errors call the columns, such as "parameters"

    Raises
    ------
    ParameterError
        If `bounds` is not a pair, or if a lower bound is not below its upper bound.
    """
    if bounds is None:
        bounds = (-np.inf, np.inf)
    one_or_many = f"numbers, or lists of {n_columns}, one for each of the {noun}"
    hint = f"pass (low, high): {one_or_many}"
    try:
        if isinstance(bounds, str | bytes | Set | Mapping):
            raise TypeError("it has no order, or no numbers")
        lower, upper = bounds
        low = _as_bound(lower, n_columns)
        high = _as_bound(upper, n_columns)
    except (TypeError, ValueError, OverflowError) as error:
        fact = f"is not a pair of bounds of the {noun}"
        raise ParameterError("bounds", bounds, fact, hint) from error
    is_ordered = low < high
    if not is_ordered.all():
        column = int(np.argmin(is_ordered))
        where = f"at index {column} of the {noun}"
        fact = f"has a lower bound that is not below the upper one, {where}"
        raise ParameterError("bounds", bounds, fact, hint)
    return low, high


def _as_bound(bound: Any, n_columns: int) -> Floats:
    """One number, or one for each column, as a new array (d,)."""
    numbers = np.asarray(from_tensor(bound))
    if numbers.dtype.kind not in "fiuO":  # numpy would read text, and count dates
        raise TypeError(f"bounds are of dtype {numbers.dtype}")
    values = numbers.astype(np.float64)
    return np.broadcast_to(values, (n_columns,)).copy()


def as_callables(
    value: CallableT | Iterable[CallableT] | None, name: str
) -> tuple[CallableT, ...]:
    """The callables that a user passes, as one, several or None, in a tuple."""
    if value is None:
        return ()
    requirement = "a callable, a tuple of several, or None"
    require(not isinstance(value, type), name, value, requirement)
    if callable(value):
        return (value,)
    is_several = isinstance(value, Iterable) and not isinstance(value, str | Mapping)
    require(is_several, name, value, requirement)
    several = tuple(value)
    for one in several:
        is_listener = callable(one) and not isinstance(one, type)
        require(is_listener, name, one, requirement)
    return several


def duplicates(values: Sequence[Any]) -> list[Any]:
    """The values that occur earlier in the sequence, too, in order."""
    if len(set(values)) == len(values):
        return []
    return [value for i, value in enumerate(values) if value in values[:i]]


@overload
def from_tensor(x: Tensor) -> NDArray[Any]: ...


@overload
def from_tensor(x: ValueT) -> ValueT | NDArray[Any]: ...


def from_tensor(x: object) -> object:
    """A tensor on any device as an array; anything else unchanged.

    bfloat16, which numpy does not have, becomes float32.
    """
    torch = sys.modules.get("torch")  # without it, x is not a tensor
    if torch is None or not isinstance(x, torch.Tensor):
        return x
    if x.is_meta or x.layout != torch.strided:
        kind = "without data" if x.is_meta else f"of layout {x.layout}"
        raise DataError(f"a tensor {kind} was passed", "pass a dense tensor of numbers")
    tensor = x.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return tensor.numpy()


def unmasked(x: ValueT, name: str) -> ValueT:
    """x unchanged, or a `DataError` if a mask of numpy.ma hides values of it.

    x is an array, or a list of arrays.
    """
    arrays: Sequence[object] = [x]
    if isinstance(x, list | tuple):
        arrays = x
    for i, array in enumerate(arrays):
        if not isinstance(array, np.ma.MaskedArray) or not np.ma.is_masked(array):
            continue
        place = np.argwhere(np.ma.getmaskarray(array))[0].tolist()
        if isinstance(x, list | tuple):
            place = [i, *place]
        fact = f"a value of {name} is masked"
        if place:
            fact += f" at {place}"
        raise DataError(fact, "drop or fill what is masked first")
    return x
