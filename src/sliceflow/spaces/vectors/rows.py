"""The rows of a fit of vectors: the user's X and y, checked, and the engine's units of their columns."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.dataframes import as_frame, check_columns, column_names
from sliceflow.errors import from_tensor, unmasked
from sliceflow.fields import Array, Label
from sliceflow.models.ranks import Ranks, Shard
from sliceflow.models.rows import ArrayRows, Conditions
from sliceflow.neighbours.features import heavy_tail

_FAR = 10.0  # standard deviations: only columns with a value beyond this can have heavy tails


@dataclass(frozen=True)
class VectorRows(ArrayRows):
    """The user's rows."""

    X: Annotated[
        np.ndarray, Array("n d", (torch.float32, torch.float64))
    ]  # (n, d), this rank's rows
    given: Conditions | None = (
        None  # conditions of the rows of all ranks; None without y
    )
    names: tuple[Label, ...] | None = (
        None  # of the columns of a DataFrame; None for other types
    )
    tensor: str = ""  # the kind of device of the user's tensor; empty for other types
    shard: Shard | None = field(default=None, metadata={"saved": False})
    _names = ("X", "y")

    def of_class(self, code: int) -> VectorRows:
        """The rows of one class, as if there were no others."""
        assert self.codes is not None
        return replace(
            self, X=self.X[(self.codes == code).numpy()], given=None, shard=None
        )

    def in_users_form(self, device: torch.device) -> tuple[Any, Any]:
        return in_users_form(
            torch.from_numpy(self.X), self.names, self.tensor, device
        ), self.y


def in_users_form(
    rows: Tensor, names: tuple[Any, ...] | None, tensor: str, device: torch.device
) -> Any:
    """Rows (n, d) as an array, a tensor or a DataFrame, as X was."""
    if tensor:
        return rows.contiguous().to("cpu" if tensor == "cpu" else device)
    array = np.ascontiguousarray(rows.cpu().numpy())
    return array if names is None else as_frame(array, names)


def check_rows(X: Any, validate: Callable[[Any], np.ndarray]) -> np.ndarray:
    """The user's X as (n, d) finite numbers, float32 or float64."""
    X = unmasked(from_tensor(X), "X")
    check_columns(X)
    names = column_names(X)
    X = validate(_as_numeric(X) if names is None else X)
    finite = np.isfinite(X)
    if not finite.all():
        row, column = np.argwhere(~finite)[0].tolist()
        what = "NaN" if np.isnan(X[row, column]) else "infinity"
        name = column if names is None else repr(names[column])
        advice = (
            "Missing values and infinities are not supported: drop or fill them first"
        )
        raise ValueError(
            f"Input X contains {what} in row {row}, column {name}. {advice}"
        )
    return np.asarray(X)


def _as_numeric(X: Any) -> Any:
    """X, with lists as arrays. Refuses text and dates, which numpy would turn into numbers in silence."""
    if isinstance(X, list | tuple):
        with suppress(ValueError):  # rows of mixed lengths; scikit-learn reports them
            X = np.asarray(X)
    dtype = getattr(X, "dtype", None)
    kind = getattr(dtype, "kind", "f")
    found = f"of dtype {dtype}"
    if kind == "O" and isinstance(X, np.ndarray):
        texts = (v for v in X.flat if isinstance(v, str | bytes))
        kind, found = next((("U", repr(text)) for text in texts), (kind, ""))
    if kind in "UST":
        advice = "convert numbers written as text with X.astype(float), and encode any other text first"
        raise ValueError(f"X contains text, {found}; {advice}")
    if kind in "mM":
        raise ValueError(f"X has dtype {dtype}; convert dates to numbers, such as days")
    return X


@dataclass(frozen=True)
class Units:
    """The engine's units of columns: (g(x) − shift)/scale, of mean 0 and standard deviation 1.

    g compresses a heavy-tailed column, else most of its values would lie in a few bins of a histogram:
    g(x) = asinh((x − middle)/width), with its median and the median distance from that. Other columns
    have `width` 0, and g(x) = x.
    """

    shift: Annotated[np.ndarray, Array("d", torch.float64)]
    scale: Annotated[np.ndarray, Array("d", torch.float64)]
    middle: Annotated[np.ndarray, Array("d", torch.float64)]
    width: Annotated[np.ndarray, Array("d", torch.float64, ge=0)]

    def check(self) -> None:
        if not (self.scale > 0).all():
            raise ValueError("a scale is not positive")

    @classmethod
    def fit_to(
        cls,
        X: np.ndarray,
        standardize: bool,
        ranks: Ranks | None = None,
        n: int | None = None,
    ) -> Units:
        """The units for the rows of all ranks, n in total; the user's own if not `standardize`."""
        d = X.shape[1]
        n = n or len(X)
        ranks = ranks or Ranks()
        units = cls(np.zeros(d), np.ones(d), np.zeros(d), np.zeros(d))
        if not standardize:
            return units
        lowest, highest, mean, std = _summary(X, ranks, n)
        with np.errstate(over="ignore", invalid="ignore"):
            near = np.maximum(mean - lowest, highest - mean) <= _FAR * std
        for j in np.flatnonzero(~near & (lowest < highest)):
            column = ranks.gather(np.ascontiguousarray(X[:, j])).astype(np.float64)
            units.middle[j], units.width[j] = heavy_tail(column) or (0.0, 0.0)
        lowest, highest, mean, std = _summary(units._compressed(X), ranks, n)
        constant = lowest == highest
        bad = ~constant & ~(np.isfinite(std) & (std > 0))
        if bad.any():
            at = int(np.argmax(bad))
            fact = f"column {at} of X cannot be standardised: its standard deviation is {std[at]}"
            raise ValueError(f"{fact}; rescale it")
        shift = np.where(constant, lowest, mean)
        scale = np.where(constant, 1.0, std)
        return replace(units, shift=shift, scale=scale)

    @property
    def heavy_tailed(self) -> np.ndarray:
        return self.width > 0

    def encode(self, X: np.ndarray) -> Tensor:
        """Rows (n, d) in the user's units -> rows in the engine's units, of the same dtype."""
        return torch.from_numpy(
            ((self._compressed(X) - self.shift) / self.scale).astype(X.dtype)
        )

    def decode(self, x: Tensor) -> Tensor:
        """Columns (d, n) in the engine's units -> rows (n, d) in the user's, of the same dtype."""
        fields = self.scale, self.shift, self.middle, self.width
        scale, shift, middle, width = (torch.from_numpy(t).to(x.device) for t in fields)
        rows = x.T.double() * scale + shift
        at = width > 0
        if self.heavy_tailed.any():
            far = (
                torch.finfo(x.dtype).max / 4
            )  # keeps every number finite, whatever the maps do
            wide = torch.sinh(rows[:, at].clamp(-700, 700)) * width[at] + middle[at]
            rows[:, at] = wide.clamp(-far, far)
        return rows.to(x.dtype)

    def _compressed(self, X: np.ndarray) -> np.ndarray:
        """g(x)."""
        if not self.heavy_tailed.any():
            return X
        X = X.astype(np.float64)
        at = self.heavy_tailed
        X[:, at] = np.arcsinh((X[:, at] - self.middle[at]) / self.width[at])
        return X


def _summary(X: np.ndarray, ranks: Ranks, n: int) -> tuple[np.ndarray, ...]:
    """Minimum, maximum, mean and standard deviation of each column of all ranks' rows."""
    ends = ranks.minimum(
        torch.from_numpy(np.stack((X.min(axis=0), -X.max(axis=0))))
    ).numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        mean = ranks.mean(X, n)
        return ends[0], -ends[1], mean, np.sqrt(ranks.mean(X, n, about=mean))
