"""Rows that metrics take: checked, subsampled, and their nearest rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

from sliceflow.arrays import Floats, Ints
from sliceflow.devices import resolve_device
from sliceflow.errors import DataError
from sliceflow.neighbors.search import nearest_rows
from sliceflow.validation import from_tensor, is_int, require, require_bool

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from torch import Tensor

# Rows (n, d) or pictures (n, h, w[, c]) as users have them.
RowsLike: TypeAlias = Union["ArrayLike", "Tensor"]


def as_flat_rows(x: RowsLike, name: str = "x") -> NDArray[Any]:
    """`x` as rows (n, d) of finite numbers; pictures are flattened, the type stays."""
    array = np.asarray(from_tensor(x))
    if array.ndim < 2 or array.size == 0:
        fact = f"{name} has the shape {array.shape}"
        raise DataError(fact, "pass rows (n, d) or pictures (n, h, w[, c])")
    rows: NDArray[Any] = array.reshape(len(array), -1)
    if rows.dtype.kind not in "biuf":
        raise DataError(f"{name} holds {rows.dtype}, not numbers")
    if rows.dtype.kind == "f":
        is_finite = np.isfinite(rows).all(axis=1)
        if not is_finite.all():
            fact = f"{name} has a NaN or an infinity"
            row = int(np.flatnonzero(~is_finite)[0])
            raise DataError(fact, "leave such rows out", row=row)
    return rows


def require_same_width(a: NDArray[Any], b: NDArray[Any], names: str) -> None:
    """Raise a `DataError` unless both have the same number of columns."""
    if a.shape[1] != b.shape[1]:
        fact = f"{names} have {a.shape[1]} and {b.shape[1]} numbers in a row"
        raise DataError(fact, "pass equally many")


def subsample(x: NDArray[Any], n: int, seed: int = 0) -> NDArray[Any]:
    """n random rows without repetition, in their order; all if there are no more."""
    if len(x) <= n:
        return x
    chosen = np.random.default_rng(seed).permutation(len(x))[:n]
    return x[np.sort(chosen)]


def nearest(
    rows: RowsLike,
    data: RowsLike,
    k: int = 1,
    *,
    device: str = "auto",
    exclude_self: bool = False,
) -> tuple[Floats, Ints]:
    """Find the k nearest rows of `data` for each row.

    The distance to a copy is exactly 0. Rows that are equally far are in the order of
    their indices. It takes less than 1 GiB of memory.

    Parameters
    ----------
    rows, data : (n, d) and (N, d), or pictures
        The rows, and the rows among which to search. Integers are not converted in
        memory.
    k : int, default 1
        How many rows to find.
    device : "cpu", "cuda" or "auto", default "auto"
        Where they are searched.
    exclude_self : bool, default False
        Whether `rows` are `data`, and row i is not a neighbor of itself. Its copies
        still are.

    Returns
    -------
    distances : (n, k)
        Euclidean distances, in ascending order.
    indices : (n, k)
        The indices of the nearest rows in `data`.

    Examples
    --------
    >>> data = np.array([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0]])
    >>> distances, index = nearest(np.array([[0.9, 0.0]]), data, k=2, device="cpu")
    >>> distances.round(3), index
    (array([[0.1, 0.9]]), array([[1, 0]]))
    """
    require_bool("exclude_self", exclude_self)
    rows = as_flat_rows(rows, "rows")
    data = as_flat_rows(data, "data")
    require_same_width(rows, data, "rows and data")
    n_others = len(data)
    exclude = None
    if exclude_self:
        if len(rows) != len(data):
            counts = f"{len(rows)}, {len(data)}"
            raise DataError(f"exclude_self=True needs rows that are the data: {counts}")
        n_others -= 1
        exclude = np.arange(len(rows))
    wanted = f"a whole number from 1 to {n_others}, the rows there are"
    require(is_int(k, 1) and k <= n_others, "k", k, wanted)
    return nearest_rows(rows, data, k, device=resolve_device(device), exclude=exclude)
