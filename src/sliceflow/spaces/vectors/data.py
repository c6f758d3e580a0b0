"""The input of a fit: X and y, checked, split into rows to fit and rows to hold out.

Each rank has its own rows of X. Every rank has the y of all ranks, because particles take their
conditions from any row.
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
from sliceflow.models.old_checkpoints import digest
from sliceflow.models.ranks import Place, Ranks
from sliceflow.spaces.vectors.units import Units

__all__ = ["FitInput", "HeldRows", "Rows", "check_rows", "hold_out", "read_input"]


@dataclass(frozen=True)
class FitInput:
    """The user's X and y, checked. Without conditions, y, condition and codes are None.

    Parameters
    ----------
    X : (n, d), this rank's rows
    place : position of these rows among the rows of all ranks
    device : the device of the user's tensor; None for arrays
    form : columns of the user's DataFrame; None for other types
    y : conditions of all ranks' rows, as the user wrote them
    condition : the kind of y
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
        """Digests of the data, for the `identity` of the fit."""
        digests = dict(X=digest(self.X, ranks, self.place), y=digest(self.y))
        return digests | {"particle_conditions": digest(particle_conditions)}

    def of_class(self, code: int) -> FitInput:
        """The rows of one class, as if there were no others."""
        assert self.codes is not None
        X = self.X[(self.codes == code).numpy()]
        return FitInput(X, Place(0, len(X), len(X)), self.device, self.form)

    def rows(self, units: Units) -> Rows:
        """All rows, in the engine's units."""
        return Rows(units.encode(self.X), self.place, self.y, self.condition, self.codes)


@dataclass(frozen=True)
class Rows:
    """The rows of a fit: x (n, d) in the engine's units; the other fields as in `FitInput`."""

    x: Tensor
    place: Place
    y: np.ndarray | None = None
    condition: conditions.Condition | None = None
    codes: Tensor | None = None


class HeldRows(NamedTuple):
    """The held-out rows of all ranks, x (n, d), and their codes."""

    x: Tensor
    codes: Tensor | None


def read_input(
    X: np.ndarray, y: Any, device: torch.device | None, form: Form | None, ranks: Ranks
) -> FitInput:
    """The input of a fit; X is checked already. Raises a ValueError if y is not valid.

    Parameters
    ----------
    device, form : as in `FitInput`
    """
    y = None if y is None else conditions.as_array(y)
    place = ranks.place(len(X), _describe(X, y))
    if y is None:
        return FitInput(X, place, device, form)
    conditions.infer(y, len(X))  # report errors in a rank's own y before ranks communicate
    y = ranks.gather(y)
    condition = conditions.infer(y, place.total)
    return FitInput(X, place, device, form, y, condition, condition.encode(y))


def check_rows(X: Any, validate: Callable[[Any], np.ndarray]) -> np.ndarray:
    """The user's X as (n, d) finite numbers, float32 or float64.

    `validate` is scikit-learn's check of the number and names of columns.
    """
    X = unmasked(from_tensor(X), "X")
    check_columns(X)
    form = Form.of(X)
    X = validate(X if form is not None else _as_numeric(X))
    finite = np.isfinite(X)
    if not finite.all():
        row, column = np.argwhere(~finite)[0].tolist()
        what = "NaN" if np.isnan(X[row, column]) else "infinity"
        name = column if form is None else repr(form.names[column])
        raise ValueError(
            f"Input X contains {what} in row {row}, column {name}. Missing values and infinities are "
            "not supported: drop or fill them first"
        )
    return np.asarray(X)


def hold_out(
    rows: Rows, fraction: float, seed: Seed, ranks: Ranks, name: str = ""
) -> tuple[Rows, HeldRows]:
    """This rank's rows to fit, and the held-out rows of all ranks; `name` is their class, if any."""
    kept, held = _split(rows.place.total, fraction, seed, name)
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


def _split(n: int, fraction: float, seed: Seed, name: str) -> tuple[Tensor, Tensor]:
    """Row numbers to fit, and row numbers to hold out."""
    n_held = math.ceil(fraction * n)
    if n_held >= n:
        raise ValueError(
            f"early_stopping holds out {n_held} of {n} rows{name and f' of class {name}'} and leaves "
            "none to fit; "
            "give more rows or set early_stopping=False"
        )
    order = seed.permutation(n)
    return order[n_held:].sort().values, order[:n_held].sort().values


def _describe(X: np.ndarray, y: np.ndarray | None) -> str:
    """A description of the input on which all ranks must agree."""
    of_y = "no y" if y is None else f"y of kind {y.dtype.kind} and shape (n, {y.shape[1:]})"
    return f"X of {X.dtype} with {X.shape[1]} columns and {of_y}"


def _as_numeric(X: Any) -> Any:
    """X, with lists as arrays. Refuses types that numpy would silently turn into numbers."""
    if isinstance(X, list | tuple):
        try:
            X = np.asarray(X)
        except ValueError:  # rows of mixed lengths; scikit-learn reports them
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
                    f"X contains the text {value!r} at {list(place)}; convert numbers written as text "
                    "with X.astype(float), and encode any other text first"
                )
    if kind in "UST":
        raise ValueError(
            f"X contains text (dtype {dtype}); convert numbers written as text with "
            "X.astype(float), and encode any other text first"
        )
    if kind in "mM":
        raise ValueError(
            f"X has dtype {dtype}; convert dates to numbers, such as days since the first date"
        )
    return X
