"""Samples that a command has drawn, to be measured, written and shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd


class PictureSamples(NamedTuple):
    """New pictures (n, h, w[, c]) of a model, and their labels."""

    x: NDArray[Any]
    labels: NDArray[Any] | None


class TableSamples(NamedTuple):
    """New rows of a table."""

    x: pd.DataFrame


Samples = PictureSamples | TableSamples
