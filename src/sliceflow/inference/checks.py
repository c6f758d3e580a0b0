"""What users pass to posteriors, checked: simulations, bounds, observations, shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sliceflow.arrays import Floats
from sliceflow.errors import DataError, ParameterError
from sliceflow.validation import (
    as_column_bounds,
    from_tensor,
    is_int,
    require,
    unmasked,
)

# The largest magnitude of parameters and simulations: its square is still a float64.
MAX_MAGNITUDE = 1e100


def as_simulations(theta: Any, x: Any) -> tuple[Floats, Floats]:
    """Parameters (n, d) and simulations (n, l) in float64."""
    theta = _as_rows("theta", theta)
    x = _as_rows("x", x)
    if len(theta) != len(x):
        raise DataError(
            f"theta has {len(theta)} rows but x has {len(x)}",
            "pass one x for each theta",
        )
    return theta, x


def _as_rows(name: str, values: Any) -> Floats:
    """The user's `values` as float64 rows (n, d), one for each simulation.

    `name` is what the user calls them, for errors.
    """
    rows = _as_numbers(name, values)
    if rows.ndim == 1:
        rows = rows[:, None]
    if rows.ndim != 2 or rows.size == 0:
        raise DataError(
            f"{name} has shape {rows.shape}", "pass one row for each simulation"
        )
    check_values(name, rows, "drop such simulations")
    return rows


def _as_numbers(name: str, values: Any) -> Floats:
    """The user's `values` as float64; numpy would read text, and count dates."""
    hint = "pass numbers in rows of one length"
    try:
        array = np.asarray(from_tensor(unmasked(values, name)))
        if array.dtype.kind not in "biufO":
            raise DataError(f"{name} has dtype {array.dtype}", hint)
        numbers: Floats = array.astype(np.float64)
    except DataError:
        raise
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} cannot be read as numbers: {error}", hint) from error
    return numbers


def check_values(name: str, rows: Floats, hint: str) -> None:
    """Raise a `DataError` for the first value that is not finite, or too large.

    Parameters
    ----------
    name : what the user calls the rows
    rows : (n, d)
    hint : what to do if a value is not finite
    """
    with np.errstate(invalid="ignore"):
        wrong = np.argwhere(~(np.abs(rows) <= MAX_MAGNITUDE))
    if len(wrong) == 0:
        return
    row, column = wrong[0].tolist()
    value = rows[row, column]
    if np.isfinite(value):
        hint = "divide such columns by a large number"
    raise DataError(f"{name} contains {value}", hint, row=row, column=column)


def as_observations(x: Any, n_values: int) -> Floats:
    """Observations (q, l) of l = `n_values` values; one may be (l,)."""
    observations = _as_numbers("x", x)
    if n_values == 1 and observations.ndim < 2:
        observations = observations.reshape(-1, 1)
    observations = np.atleast_2d(observations)
    q = len(observations)
    if observations.shape != (q, n_values) or q == 0:
        raise DataError(
            f"x has shape {np.shape(x)} but simulations have {n_values} values",
            f"pass ({n_values},) or (q, {n_values})",
        )
    check_values("x", observations, "observations must be finite")
    return observations


def as_prior_bounds(bounds: Any, theta: Floats) -> tuple[Floats, Floats]:
    """The bounds (d,) that the user gave; parameters (n, d) must be between them."""
    low, high = as_column_bounds(bounds, theta.shape[1], "parameters")
    if not is_between(theta, low, high):
        least = theta.min(axis=0).tolist()
        largest = theta.max(axis=0).tolist()
        raise ParameterError(
            "bounds",
            bounds,
            "must enclose all parameters theta",
            f"its columns reach from {least} to {largest}",
        )
    return low, high


def is_between(theta: Floats, low: Floats, high: Floats) -> bool:
    """Whether low < high, with all parameters (n, d) between them."""
    return bool((low < high).all() and ((theta >= low) & (theta <= high)).all())


def as_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    """The shape that the user gave as a tuple of integers of at least 1."""
    if isinstance(shape, Iterable):
        sizes = tuple(shape)
    else:
        sizes = (shape,)
    is_valid = all(is_int(size, 1) for size in sizes)
    require(is_valid, "shape", sizes, "ints of at least 1")
    return tuple(int(size) for size in sizes)
