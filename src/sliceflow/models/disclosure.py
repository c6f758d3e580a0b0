"""What the maps of a model tell of single rows of the data it was fitted to."""

from __future__ import annotations

from typing import Any

from sliceflow.engine.compact import CompactTable
from sliceflow.engine.transports import KnotTable

__all__ = ["holds_data", "holds_rows", "knots_and_rows"]


def holds_data(flow: Any) -> bool | None:
    """Whether values of the data can be read from a fitted flow's maps, and so from its file.

    A map with a knot for every row it was fitted to leads to the data's own values: exactly, where
    there are as many particles as rows, and nearly, where there are more. With fewer knots than rows
    a knot is what several rows have in common; the outermost may still be single rows. None is not
    known: an early version saved the model. Local conditions (``condition="local"``) and tables keep
    all rows, and colour pictures all pictures, unless ``start="noise"``.

    Examples
    --------
    >>> import numpy as np
    >>> from sliceflow import SlicedWassersteinFlow, VectorOptions
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> flow = SlicedWassersteinFlow(n_particles=200, n_steps=3, random_state=0)
    >>> few = SlicedWassersteinFlow(200, 3, options=VectorOptions(n_knots=50), random_state=0)
    >>> holds_data(flow.fit(X)), holds_data(few.fit(X))
    (True, False)
    """
    if holds_rows(flow):
        return True
    knots, rows = knots_and_rows(flow)
    return None if rows is None else knots >= rows


def holds_rows(flow: Any) -> bool:
    """Whether the model keeps the rows themselves: local conditions and tables need them."""
    return bool(getattr(flow._fitted, "keeps_rows", False))


def knots_and_rows(flow: Any) -> tuple[int, int | None]:
    """The most knots of a map, and how many rows it was fitted to: of a class, if those have their own.

    None where it is not known how many rows there were.
    """
    fitted = flow._fitted
    return max((_knots(step.table) for step in fitted.steps), default=0), fitted.rows_of_a_map


def _knots(table: Any) -> int:
    if isinstance(table, CompactTable):
        return int(table.at.shape[1])
    return int(table.values.shape[1] - (0 if isinstance(table, KnotTable) else 1))
