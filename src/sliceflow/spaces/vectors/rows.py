"""The rows of a fit of vectors: the user's X and y, checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.dataframes import Form, check_columns
from sliceflow.engine import conditions
from sliceflow.errors import from_tensor, unmasked
from sliceflow.models.codec import Array
from sliceflow.models.ranks import Place, Ranks
from sliceflow.models.rows import Conditions, GivenRows, join_labels

__all__ = ["VectorRows", "check_rows", "in_users_form", "read_rows"]


@dataclass(frozen=True)
class VectorRows(GivenRows):
    """The user's rows."""

    X: Annotated[np.ndarray, Array("n d", (torch.float32, torch.float64))]  # (n, d), this rank's rows
    given: Conditions | None = None  # conditions of the rows of all ranks; None without y
    form: Form | None = None  # columns of the user's DataFrame; None for other types
    tensor: str = ""  # the kind of device of the user's tensor; empty for other types
    place: Place | None = field(default=None, metadata={"saved": False})

    @property
    def values(self) -> np.ndarray:
        return self.X

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.X.dtype == np.float32 else torch.float64

    def append(self, others: VectorRows) -> VectorRows:
        if others.X.shape[1] != self.X.shape[1]:
            fact = f"X has {others.X.shape[1]} features, but the model has {self.X.shape[1]}"
            raise ValueError(f"{fact}; pass rows with the same columns")
        X, y = np.concatenate((self.X, others.X)), join_labels(self.y, others.y)
        return replace(self, X=X, given=Conditions.infer(y, len(X)))

    def take(self, numbers: np.ndarray) -> VectorRows:
        y = None if self.y is None else self.y[numbers]
        return replace(self, X=self.X[numbers], given=Conditions.infer(y, len(numbers)))

    def of_class(self, code: int) -> VectorRows:
        """The rows of one class, as if there were no others."""
        assert self.codes is not None
        return replace(self, X=self.X[(self.codes == code).numpy()], given=None, place=None)

    def in_users_form(self, device: torch.device) -> tuple[Any, Any]:
        return in_users_form(torch.from_numpy(self.X), self.form, self.tensor, device), self.y


def in_users_form(rows: Tensor, form: Form | None, tensor: str, device: torch.device) -> Any:
    """Rows (n, d) as an array, a tensor or a DataFrame, as X was."""
    if tensor:
        return rows.contiguous().to("cpu" if tensor == "cpu" else device)
    array = np.ascontiguousarray(rows.cpu().numpy())
    return array if form is None else form.made(array)


def read_rows(X: Any, y: Any, validate: Callable[[Any], np.ndarray], ranks: Ranks) -> VectorRows:
    """The rows of a fit, checked; `validate` is scikit-learn's check of columns."""
    tensor, form = X.device.type if isinstance(X, Tensor) else "", Form.of(X)
    rows = check_rows(X, validate)
    array = None if y is None else conditions.as_array(y)
    of_y = "no y" if array is None else f"y of kind {array.dtype.kind} and shape (n, {array.shape[1:]})"
    Conditions.infer(array, len(rows))  # report errors in a rank's own y before ranks communicate
    place = ranks.place(len(rows), f"X of {rows.dtype} with {rows.shape[1]} columns and {of_y}")
    given = Conditions.infer(None if array is None else ranks.gather(array), place.total)
    return VectorRows(rows, given, form, tensor, None if ranks.size == 1 else place)


def check_rows(X: Any, validate: Callable[[Any], np.ndarray]) -> np.ndarray:
    """The user's X as (n, d) finite numbers, float32 or float64."""
    X = unmasked(from_tensor(X), "X")
    check_columns(X)
    form = Form.of(X)
    X = validate(X if form is not None else _as_numeric(X))
    finite = np.isfinite(X)
    if not finite.all():
        row, column = np.argwhere(~finite)[0].tolist()
        what = "NaN" if np.isnan(X[row, column]) else "infinity"
        name = column if form is None else repr(form.names[column])
        advice = "Missing values and infinities are not supported: drop or fill them first"
        raise ValueError(f"Input X contains {what} in row {row}, column {name}. {advice}")
    return np.asarray(X)


def _as_numeric(X: Any) -> Any:
    """X, with lists as arrays. Refuses types that numpy would silently turn into numbers."""
    if isinstance(X, list | tuple):
        try:
            X = np.asarray(X)
        except ValueError:  # rows of mixed lengths; scikit-learn reports them
            return X
    dtype = getattr(X, "dtype", None)
    kind = getattr(dtype, "kind", "f")
    text = "convert numbers written as text with X.astype(float), and encode any other text first"
    if kind == "c":
        raise ValueError(f"Complex data not supported: X has dtype {dtype}; pass two real columns")
    if kind == "O" and isinstance(X, np.ndarray):
        for position, value in np.ndenumerate(X):
            if isinstance(value, str | bytes):
                raise ValueError(f"X contains the text {value!r} at {list(position)}; {text}")
    if kind in "UST":
        raise ValueError(f"X contains text (dtype {dtype}); {text}")
    if kind in "mM":
        raise ValueError(f"X has dtype {dtype}; convert dates to numbers, such as days")
    return X
