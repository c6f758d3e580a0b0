"""Rows of numbers: the user's X and y, checked, and given back in the user's form."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeAlias,
    Union,
)

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_array, validate_data
from torch import Tensor

from sliceflow.base.prepared_fit import check_not_prepared
from sliceflow.base.ranks import Shard
from sliceflow.base.rows import ArrayRows, Conditions
from sliceflow.dataframes import as_dataframe, check_columns, column_names
from sliceflow.errors import DataError
from sliceflow.saved_types import ArraySpec, Label
from sliceflow.validation import from_tensor, unmasked

if TYPE_CHECKING:
    import pandas as pd

# The forms of the user's X, in which samples come back. Not everyone has pandas.
VectorArray: TypeAlias = Union[NDArray[Any], Tensor, "pd.DataFrame"]


@dataclass(frozen=True, eq=False)
class VectorRows(ArrayRows):
    """The user's rows of numbers and their conditions, checked.

    On several ranks, each rank has its own rows in X, but the conditions of all rows,
    on which the number of particles and their y depend. `n_all_rows` counts all rows.

    Attributes
    ----------
    X : this rank's rows (n, d)
    conditions : the conditions of the rows of all ranks; None without y
    names : the names of the columns if the user's X is a DataFrame; None otherwise
    tensor_device : the kind of device if the user's X is a tensor; None otherwise
    partial_shard : which of all rows this rank has; None in a fit of one process
    """

    X: Annotated[NDArray[Any], ArraySpec("n d", ("float32", "float64"))]
    conditions: Conditions | None = None
    names: tuple[Label, ...] | None = None
    tensor_device: str | None = None
    partial_shard: Shard | None = field(default=None, metadata={"saved": False})

    def check_saved(self) -> None:
        """Raise a ValueError if saved rows contradict their conditions or names."""
        self.check_lengths()
        d = self.X.shape[1]
        if self.names is not None and len(self.names) != d:
            raise ValueError(f"there are {len(self.names)} names for {d} columns")

    @property
    def values(self) -> NDArray[Any]:
        """This rank's rows (n, d)."""
        return self.X

    @property
    def n_all_rows(self) -> int:
        """The number of rows of all ranks."""
        if self.partial_shard is None:
            return len(self.X)
        return self.partial_shard.total

    @property
    def dtype(self) -> Literal["float32", "float64"]:
        """The type of the numbers, by name."""
        return "float32" if self.X.dtype == np.float32 else "float64"

    def with_values(self, values: NDArray[Any], conditions: Conditions | None) -> Self:
        """Rows of the same kind with other values and conditions."""
        return replace(self, X=values, conditions=conditions)

    def user_X_and_y(
        self, device: torch.device
    ) -> tuple[VectorArray, NDArray[Any] | None]:
        """X and y as the user would pass them."""
        X = in_user_form(
            torch.from_numpy(self.X), self.names, self.tensor_device, device
        )
        return X, self.y


def in_user_form(
    rows: Tensor,
    names: tuple[Any, ...] | None,
    tensor_device: str | None,
    device: torch.device,
) -> VectorArray:
    """Rows (n, d) in the form of the user's X: an array, a tensor or a DataFrame.

    `tensor_device` is the kind of device of a tensor X, such as "cuda".
    """
    if tensor_device == "cpu":
        return rows.contiguous().cpu()
    if tensor_device is not None:
        return rows.contiguous().to(device)
    array = np.ascontiguousarray(rows.cpu().numpy())
    if names is None:
        return array
    return as_dataframe(array, names)


def validated_by_sklearn(X: Any, estimator: object) -> NDArray[Any]:
    """X after scikit-learn's checks, float32 or float64; errors name the estimator."""
    array = check_array(
        X,
        dtype=["float64", "float32"],
        ensure_all_finite=False,
        estimator=estimator,
        input_name="X",
    )
    return np.asarray(array)


class PlanForVectors(Protocol):
    """The plan of a fit of vectors, by which new rows are checked."""

    @property
    def n_columns(self) -> int: ...

    @property
    def dtype(self) -> Literal["float32", "float64"]: ...


class FittedToVectors(Protocol):
    """A state that was fitted to vectors, by which new rows are checked."""

    @property
    def plan(self) -> PlanForVectors: ...

    @property
    def names(self) -> tuple[Label, ...] | None:
        """The names of the columns if X was a DataFrame, else None."""


class KnownColumns(NamedTuple):
    """The columns that new rows must have."""

    n: int
    names: tuple[Label, ...] | None
    dtype: Literal["float32", "float64"]

    @classmethod
    def of_rows(cls, rows: VectorRows) -> KnownColumns:
        """The columns of rows that a user has added and that are not fitted yet."""
        return cls(rows.X.shape[1], rows.names, rows.dtype)

    @classmethod
    def of_model(cls, model: FittedToVectors) -> KnownColumns:
        """The columns of the rows that a model was fitted to."""
        return cls(model.plan.n_columns, model.names, model.plan.dtype)


def validated_like_fitted(
    X: Any,
    estimator: object,
    columns: KnownColumns,
    dtypes: Sequence[str] | None = None,
) -> NDArray[Any]:
    """X after scikit-learn's checks, with known columns; errors name the estimator.

    The result has one of the `dtypes`, or the dtype of the columns if this is None.
    """
    # A copy, because scikit-learn compares X with attributes that are set on it.
    compared = copy.copy(estimator)
    set_feature_names(compared, columns.n, columns.names)
    array = validate_data(
        compared,
        X,
        dtype=columns.dtype if dtypes is None else list(dtypes),
        ensure_all_finite=False,
        reset=False,
    )
    return np.asarray(array)


def set_feature_names(estimator: object, n: int, names: tuple[Any, ...] | None) -> None:
    """Set the number and the names of columns, where scikit-learn looks for them."""
    attributes = vars(estimator)
    attributes["n_features_in_"] = n
    attributes.pop("feature_names_in_", None)
    if names and all(isinstance(name, str) for name in names):
        attributes["feature_names_in_"] = np.array(names, dtype=object)


def read_vector_rows(X: Any, validate: Callable[[Any], NDArray[Any]]) -> VectorRows:
    """The user's X as rows without conditions, which remember the form of X.

    `validate` is as in `as_float_array`.
    """
    names = None
    tensor_device = None
    if isinstance(X, Tensor):
        tensor_device = X.device.type
    elif not isinstance(X, np.ndarray):
        names = column_names(X)
    return VectorRows(
        as_float_array(X, validate), names=names, tensor_device=tensor_device
    )


def as_float_array(X: Any, validate: Callable[[Any], NDArray[Any]]) -> NDArray[Any]:
    """The user's X as (n, d) finite numbers, float32 or float64.

    `validate` is scikit-learn's check of the number and the names of columns.
    """
    X = unmasked(from_tensor(X), "X")
    names = None
    if not isinstance(X, np.ndarray):
        check_columns(X)
        names = column_names(X)
    if names is None:
        X = _as_numeric(X)
    else:
        _require_names_of_one_kind(names)
    array = validate(X)
    finite = np.isfinite(array)
    if not finite.all():
        row, column = np.argwhere(~finite)[0].tolist()
        value = "NaN" if np.isnan(array[row, column]) else "infinity"
        raise DataError(
            f"Input X contains {value}",
            "Missing values and infinities are not supported: drop or fill them first",
            row=row,
            column=column if names is None else names[column],
        )
    return array


def _require_names_of_one_kind(names: Sequence[Any]) -> None:
    """Raise a `DataError` if some names of columns are text and others are not.

    scikit-learn keeps names that are all text, drops others, and refuses mixtures.
    """
    is_text = [isinstance(name, str) for name in names]
    if any(is_text) and not all(is_text):
        other = names[is_text.index(False)]
        fact = f"some names of columns are text, but {other!r} is not"
        raise DataError(fact, "rename the columns: X.columns = X.columns.astype(str)")


def _array_of_lists(X: Any) -> Any:
    """Lists of rows as an array; a `DataError` for what holds no rows."""
    check_not_prepared(X)
    if X is None or isinstance(X, str | bytes | Mapping | Set | Iterator):
        kind = type(X).__name__
        raise DataError(f"X is a {kind}", "pass an array (n, d), or a DataFrame")
    if not isinstance(X, list | tuple):
        return X
    try:
        return np.asarray(X)
    except ValueError as error:
        fact = "the rows of X cannot be read as an array of numbers"
        raise DataError(fact, "pass rows of one length") from error


def _as_numeric(X: Any) -> Any:
    """X, with lists as arrays.

    Refuses text and dates, which numpy would silently turn into numbers.
    """
    if not hasattr(X, "shape"):
        X = _array_of_lists(X)
    dtype = getattr(X, "dtype", None)
    kind = getattr(dtype, "kind", "f")
    if kind in "mM":
        fact = f"X has dtype {dtype}"
        raise DataError(fact, "convert dates to numbers, such as days")
    if kind == "V":
        fact = f"X is a structured array, of dtype {dtype}"
        raise DataError(fact, "convert it: pandas.DataFrame(X)")
    text = ""
    if kind in "UST":
        text = f"of dtype {dtype}"
    elif kind == "O" and isinstance(X, np.ndarray):
        for value in X.flat:
            if isinstance(value, str | bytes):
                text = repr(value)
                break
    if text:
        hint = "convert numbers written as text with X.astype(float)"
        hint = f"{hint}, and encode any other text first"
        raise DataError(f"X contains text, {text}", hint)
    return X
