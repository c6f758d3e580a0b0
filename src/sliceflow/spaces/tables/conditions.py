"""Given columns: the rows that have what is given, and a chain of the others fitted to them.

Categories, missing cells, lists, ranges and frequent numbers choose rows. A number that few rows have
takes the nearest rows and moves them there: their numbers change as a regression on the given ones says.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sliceflow.spaces.tables.cells import shown
from sliceflow.spaces.tables.columns import Column
from sliceflow.spaces.tables.table import Table

__all__ = ["Condition", "condition_on"]

_ENOUGH = 20  # rows behind an answer, from which on it is not worth a warning
_NEAR, _LEAST, _MOST = 8, 100, 2_000  # an eighth of the rows are near a number; at least, at most
_FAR = 0.5  # standard deviations
_RIDGE = 1e-3


@dataclass
class Condition:
    """Positions z (n, d) of rows for a chain, of columns that have one value (also as a Series), and doubts."""

    z: np.ndarray
    fixed: dict[int, float] = field(default_factory=dict)
    values: dict[int, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def condition_on(table: Table, given: Mapping[Any, Any]) -> Condition:
    """The rows for what is given. A ValueError says what cannot be; a warning what is doubtful."""
    if not isinstance(given, Mapping):
        raise ValueError(f"given={given!r} must be a dict such as {{'plan': 'gold', 'age': (30, 40)}}")
    rows, near, out = np.ones(len(table.z), dtype=bool), dict[int, float](), Condition(table.z)
    for name, value in given.items():
        if name not in table.names:
            raise ValueError(f"given {name!r} is not a column; there are {shown(table.names)}")
        c = table.names.index(name)
        column, at = table.columns[c], table.z[:, c]
        if column.kind in ("identifier", "drop"):
            raise ValueError(f"given {name!r} is of kind {column.kind}; samples make it up")
        if isinstance(value, tuple):
            rows &= _in_range(column, at, value)
        elif isinstance(value, list | set | frozenset | np.ndarray):
            rows &= np.isin(at, [_find(column, v)[0] for v in value])
        else:
            out.fixed[c], number, out.values[c] = _find(column, value)
            same = at == out.fixed[c]
            if column.format is not None and not np.isnan(number):
                if not column.values[0] <= number <= column.values[-1]:
                    out.notes.append(f"{name}={value} is outside the table's values")
                if int((same & rows).sum()) < _ENOUGH:
                    near[c] = number
                    continue
            rows &= same
    if not rows.any():
        raise ValueError(
            f"no row of the table has given={dict(given)}; leave out what never occurs together"
        )
    out.z = table.z[rows]
    if near:
        out.z = _moved(table, out, near)
    if int(rows.sum()) < _ENOUGH:
        out.notes.append(f"only {int(rows.sum())} rows of the table have this")
    if out.notes:
        warnings.warn(f"given={dict(given)}: {'; '.join(out.notes)}", UserWarning, stacklevel=3)
    return out


def _find(column: Column, value: Any) -> tuple[float, float, Any]:
    """The position of a value, its number, and the value as a Series of one."""
    one = column.read(value)
    if one.isna().any():
        return -1.0, np.nan, one
    at, number = column.find(one)
    return float(np.rint(at[0]) if column.exact else at[0]), float(number[0]), one


def _in_range(column: Column, at: np.ndarray, value: tuple[Any, ...]) -> np.ndarray:
    if len(value) != 2 or column.format is None:
        raise ValueError(
            f"given {column.name!r}={value!r}: a range is (low, high) of numbers or times; pass a list"
        )
    low, high = (_find(column, v)[1] for v in value)
    numbers = column.numbers(at)
    return np.asarray((numbers >= low) & (numbers <= high))


def _moved(table: Table, condition: Condition, near: Mapping[int, float]) -> np.ndarray:
    """The rows nearest to numbers, moved there by a regression of their other numbers on these."""
    columns, given = table.columns, list(near)
    z = condition.z[(condition.z[:, given] >= 0).all(1)]
    if not len(z):
        raise ValueError("no row has a value of all given columns at once")
    x = np.column_stack([columns[c].numbers(z[:, c]) for c in given])
    scale = x.std(0)
    away = (np.array(list(near.values())) - x) / np.where(scale > 0, scale, 1.0)
    k = min(len(z), max(_LEAST, min(len(z) // _NEAR, _MOST)))
    distance = np.sqrt((away**2).sum(1))
    if (found := int((distance < _FAR).sum())) < _ENOUGH:
        condition.notes.append(f"only {found} rows of the table are near it")
    nearest = np.argsort(distance, kind="stable")[:k]
    z, away = z[nearest].copy(), away[nearest]
    design = np.column_stack((np.ones(k), away))
    gram = design.T @ design + _RIDGE * k * np.diag([0.0, *[1.0] * len(given)]) * (away**2).mean()
    for c in table.order:
        column = columns[c]
        moving = z[:, c] >= 0
        if c in given or not column.free.any() or moving.sum() < 3 * design.shape[1]:
            continue
        moving &= column.free[np.maximum(z[:, c], 0).astype(np.int64)]
        y = column.numbers(z[:, c])
        if moving.sum() < 3 * design.shape[1]:
            continue
        slopes = np.linalg.solve(
            gram * moving.mean(), design[moving].T @ (y[moving] - y[moving].mean())
        )[1:]
        target = np.clip(y[moving] - away[moving] @ slopes, column.values[0], column.values[-1])
        z[moving, c] = column.positions_of(column.on_grid(target))
    for c in given:
        z[:, c] = condition.fixed[c]
    return np.where(np.isnan(z), -1.0, z)
