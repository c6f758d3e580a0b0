"""What a fit is given: X and y, checked, and of them the rows that it fits or holds out.

Of X every rank has its own rows. y and its codes are those of all ranks, everywhere: particles take
their conditions from any row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sliceflow.dataframes import Form, check_columns
from sliceflow.engine import conditions
from sliceflow.engine.random import Seed
from sliceflow.errors import from_tensor, unmasked
from sliceflow.ranks import Place, Ranks
from sliceflow.storage.checkpoints import digest
from sliceflow.vectors.units import Units

__all__ = ["Given", "HeldRows", "Rows", "checked", "hold_out", "read"]


@dataclass(frozen=True)
class Given:
    """What the user gives to a fit, checked.

    Parameters
    ----------
    X : (n, d), this rank's rows
    place : of these among the rows of all ranks
    device : where the user's tensor is; None for arrays
    form : of the user's DataFrame; None for others
    y : of all ranks' rows, as the user wrote it; None without conditions, as the next two
    condition : what y is
    codes : y, encoded
    """

    X: np.ndarray
    place: Place
    device: torch.device | None
    form: Form | None
    y: np.ndarray | None = None
    condition: conditions.Condition | None = None
    codes: Tensor | None = None

    def digests(self, particle_conditions: np.ndarray | None, ranks: Ranks) -> dict[str, str]:
        """What the `identity` of the fit says of its data."""
        of = dict(X=digest(self.X, ranks, self.place), y=digest(self.y))
        return of | {"particle_conditions": digest(particle_conditions)}

    def of_class(self, code: int) -> Given:
        """The rows of one class, as if there were no others."""
        assert self.codes is not None
        X = self.X[(self.codes == code).numpy()]
        return Given(X, Place(0, len(X), len(X)), self.device, self.form)

    def rows(self, units: Units) -> Rows:
        """All rows, in the units of the engine."""
        return Rows(units.encode(self.X), self.place, self.y, self.condition, self.codes)


@dataclass(frozen=True)
class Rows:
    """The rows that a fit looks at: x (n, d) in the units of the engine, else as in `Given`."""

    x: Tensor
    place: Place
    y: np.ndarray | None = None
    condition: conditions.Condition | None = None
    codes: Tensor | None = None


class HeldRows(NamedTuple):
    """The x (n, d) of rows that are held out, of all ranks, and their codes."""

    x: Tensor
    codes: Tensor | None


def read(X: np.ndarray, y: Any, device: torch.device | None, form: Form | None, ranks: Ranks) -> Given:
    """X, which is checked already, with y; a ValueError names what is wrong with it.

    Parameters
    ----------
    device, form : as of `Given`
    """
    y = None if y is None else conditions.as_array(y)
    place = ranks.place(len(X), _kind(X, y))
    if y is None:
        return Given(X, place, device, form)
    conditions.infer(y, len(X))  # what is wrong with a rank's own is said before all are asked
    y = ranks.gather(y)
    condition = conditions.infer(y, place.total)
    return Given(X, place, device, form, y, condition, condition.encode(y))


def checked(X: Any, validate: Callable[[Any], np.ndarray]) -> np.ndarray:
    """The user's X as (n, d) finite numbers, float32 or float64.

    `validate` is scikit-learn's check of the number of columns and their names.
    """
    X = unmasked(from_tensor(X), "X")
    check_columns(X)
    form = Form.of(X)
    X = validate(X if form is not None else _numbers(X))
    finite = np.isfinite(X)
    if not finite.all():
        row, column = np.argwhere(~finite)[0].tolist()
        what = "NaN" if np.isnan(X[row, column]) else "infinity"
        name = column if form is None else repr(form.names[column])
        raise ValueError(
            f"Input X contains {what} in row {row}, column {name}. Missing values and infinities are "
            "not handled: drop or fill them first"
        )
    return np.asarray(X)


def hold_out(
    rows: Rows, fraction: float, seed: Seed, ranks: Ranks, name: str = ""
) -> tuple[Rows, HeldRows]:
    """The rows to fit, and those held out, of all ranks; `name` is of the class that they all have."""
    kept, held = _divided(rows.place.total, fraction, seed, name)
    place = rows.place
    kept_here, held_here = (
        numbers[(numbers >= place.first) & (numbers < place.first + place.count)] - place.first
        for numbers in (kept, held)
    )
    all_held = ranks.gather(rows.x[held_here])
    x, y, codes, held_codes = rows.x[kept_here], rows.y, rows.codes, None
    if y is not None and codes is not None:
        y, codes, held_codes = y[kept.numpy()], codes[kept], codes[held]
    fitted = Rows(x, ranks.place(len(x)), y, rows.condition, codes)
    return fitted, HeldRows(all_held, held_codes)


def _divided(n: int, fraction: float, seed: Seed, name: str) -> tuple[Tensor, Tensor]:
    """Row numbers to fit and row numbers held out."""
    n_held = math.ceil(fraction * n)
    if n_held >= n:
        raise ValueError(
            f"early_stopping holds out {n_held} of {n} rows{name and f' of class {name}'} and leaves "
            "none to fit; "
            "give more rows or set early_stopping=False"
        )
    order = seed.permutation(n)
    return order[n_held:].sort().values, order[:n_held].sort().values


def _kind(X: np.ndarray, y: np.ndarray | None) -> str:
    """What ranks must agree on."""
    of_y = "no y" if y is None else f"y of kind {y.dtype.kind} and shape (n, {y.shape[1:]})"
    return f"X of {X.dtype} with {X.shape[1]} columns and {of_y}"


def _numbers(X: Any) -> Any:
    """X, a list as an array; what numpy would turn into numbers in silence is refused."""
    if isinstance(X, list | tuple):
        try:
            X = np.asarray(X)
        except ValueError:  # rows of mixed lengths, of which scikit-learn will tell
            return X
    dtype = getattr(X, "dtype", None)
    kind = getattr(dtype, "kind", "f")
    if kind == "c":
        raise ValueError(
            f"Complex data not supported: X has dtype {dtype}; pass real and imaginary parts as columns"
        )
    if kind == "O" and isinstance(X, np.ndarray):
        for place, value in np.ndenumerate(X):
            if isinstance(value, str | bytes):
                raise ValueError(
                    f"X holds the text {value!r} at {list(place)}; turn text that says numbers into "
                    "numbers with X.astype(float), and encode any other text first"
                )
    if kind in "UST":
        raise ValueError(
            f"X holds text, of dtype {dtype}; turn text that says numbers into numbers with "
            "X.astype(float), and encode any other text first"
        )
    if kind in "mM":
        raise ValueError(
            f"X has dtype {dtype}; turn dates into numbers, such as the days since the first of them"
        )
    return X
