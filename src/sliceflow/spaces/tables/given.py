"""Draws given what is known: columns of all new rows, or the other cells of each row.

*Given columns* choose rows, and a chain of the others is fitted to these: categories, missing cells,
lists, ranges and frequent numbers by what rows have. A number that few rows have takes the nearest rows
and moves them there: their numbers change as a regression on the given ones says.

*Missing cells* are filled by trees that see all other columns (multiple imputation by trees: Doove, van
Buuren and Dusseldorp 2014). They start as cells of a near row. Then each is that of a random row in the
leaf of a random tree, in a few sweeps over the columns, which let filled cells agree. Trees are grown on
different rows, so that draws spread as far as rows do; holes of these rows are filled first.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.neighbors import NearestNeighbors

from sliceflow.engine.random import Seed
from sliceflow.spaces.tables.cells import shown
from sliceflow.spaces.tables.chain import Detail, Link, grow
from sliceflow.spaces.tables.columns import Column
from sliceflow.spaces.tables.table import Table, generator

__all__ = ["condition_on", "fill"]

_ENOUGH = 20  # rows behind an answer, from which on it is not worth a warning
_NEAR, _LEAST, _MOST = 8, 100, 2_000  # an eighth of the rows are near a number; at least, at most
_FAR = 0.5  # standard deviations
_RIDGE = 1e-3
_TREES, _SHARE, _DETAIL = 10, 0.63, Detail(5, 2.0)  # of a column with missing cells; a tree's rows
_NEAREST, _STARTS, _COMPARED = 5, 5_000, 50  # rows to start from, of so many, by so many columns
_SWEEPS, _ROUNDS, _ROUNDS_IMPLIED = 2, 10, 2  # rounds for rows that break a rule, or an implied one
_MOST_ROWS, _MOST_CELLS = 20_000, 2_000_000  # to learn from


def condition_on(
    table: Table, given: Mapping[Any, Any]
) -> tuple[np.ndarray, dict[int, float], dict[int, Any]]:
    """Rows z (n, d) for what is given; the position, and the value, of each column that has only one.

    A ValueError says what cannot be; a warning what is doubtful.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"given={given!r} must be a dict such as {{'plan': 'gold', 'age': (30, 40)}}")
    rows, notes = np.ones(len(table.z), dtype=bool), list[str]()
    fixed, values, near = dict[int, float](), dict[int, Any](), dict[int, float]()
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
            fixed[c], number, one = _find(column, value)
            same = at == fixed[c]
            if column.format is not None and not np.isnan(number):
                values[c] = one
                if not column.values[0] <= number <= column.values[-1]:
                    notes.append(f"{name}={value} is outside the table's values")
                if int((same & rows).sum()) < _ENOUGH:
                    near[c] = number
                    continue
            rows &= same
    if not rows.any():
        fact = f"no row of the table has given={dict(given)}"
        raise ValueError(f"{fact}; leave out what never occurs together")
    z = table.z[rows]
    if near:
        z, found = _moved(table, z, near)
        z[:, list(near)] = [fixed[c] for c in near]
        if found < _ENOUGH:
            notes.append(f"only {found} rows of the table are near it")
    if int(rows.sum()) < _ENOUGH:
        notes.append(f"only {int(rows.sum())} rows of the table have this")
    if notes:
        warnings.warn(f"given={dict(given)}: {'; '.join(notes)}", UserWarning, stacklevel=3)
    return z, fixed, values


def _find(column: Column, value: Any) -> tuple[float, float, Any]:
    """The position of a value, its number, and the value as a Series of one."""
    one = column.read(value)
    if one.isna().any():
        return -1.0, np.nan, one
    at, number = column.find(one)
    return float(np.rint(at[0]) if column.exact else at[0]), float(number[0]), one


def _in_range(column: Column, at: np.ndarray, value: tuple[Any, ...]) -> np.ndarray:
    if len(value) != 2 or column.format is None:
        fact = f"given {column.name!r}={value!r} is not a range (low, high) of numbers or times"
        raise ValueError(f"{fact}; pass a list")
    low, high = (_find(column, v)[1] for v in value)
    numbers = column.numbers(at)
    return np.asarray((numbers >= low) & (numbers <= high))


def _moved(table: Table, z: np.ndarray, near: Mapping[int, float]) -> tuple[np.ndarray, int]:
    """The rows nearest to numbers, moved there by a regression of their other numbers on these.

    Also, how many rows are near.
    """
    columns, given = table.columns, list(near)
    z = z[(z[:, given] >= 0).all(1)]
    if not len(z):
        raise ValueError("no row has a value of all given columns at once")
    x = np.column_stack([columns[c].numbers(z[:, c]) for c in given])
    scale = x.std(0)
    away = (np.array(list(near.values())) - x) / np.where(scale > 0, scale, 1.0)
    k = min(len(z), max(_LEAST, min(len(z) // _NEAR, _MOST)))
    distance = np.sqrt((away**2).sum(1))
    nearest = np.argsort(distance, kind="stable")[:k]
    z, away = z[nearest].copy(), away[nearest]
    design = np.column_stack((np.ones(k), away))
    gram = design.T @ design + _RIDGE * k * np.diag([0.0, *[1.0] * len(given)]) * (away**2).mean()
    for c in set(table.order) - set(given):
        column, moving = columns[c], z[:, c] >= 0
        if column.free.any():
            moving &= column.free[np.maximum(z[:, c], 0).astype(np.int64)]
        if not column.free.any() or moving.sum() < 3 * design.shape[1]:
            continue
        y = column.numbers(z[:, c])[moving]
        slopes = np.linalg.solve(gram * moving.mean(), design[moving].T @ (y - y.mean()))[1:]
        target = np.clip(y - away[moving] @ slopes, column.values[0], column.values[-1])
        z[moving, c] = column.positions_of(column.on_grid(target))
    return np.where(np.isnan(z), -1.0, z), int((distance < _FAR).sum())


# Missing cells


def fill(table: Table, z: np.ndarray, seed: Seed) -> tuple[np.ndarray, np.ndarray]:
    """Positions z (m, d) with missing cells filled, and which rows could not keep the rules.

    Cells of columns without values, identifiers and those that are left out stay as they are.
    """
    columns, never = table.columns, ("identifier", "constant")
    most = min(_MOST_ROWS, _MOST_CELLS // len(columns))
    rows = known = table.z[generator(seed.child("some")).permutation(len(table.z))[:most]]
    usable = [c for c in table.order if columns[c].kind not in never and (known[:, c] >= 0).any()]
    if (known[:, usable] < 0).any():  # trees see each row without holes, as those to be filled will be
        rows, _ = _fill(table, known, known, np.tile(known, (_TREES, 1)), usable, seed.child("table"))
    return _fill(table, known, rows, z, usable, seed)


def _fill(  # many: rows to learn from, and to fill
    table: Table, known: np.ndarray, rows: np.ndarray, z: np.ndarray, usable: list[int], seed: Seed
) -> tuple[np.ndarray, np.ndarray]:
    """Fill z (m, d) by trees of `rows`, which are one or more copies of `known` (n, d), filled or not."""
    rng, out = generator(seed.child("fill")), z.copy()
    gone = (z < 0) & np.isin(np.arange(z.shape[1]), usable)
    wanted, rest = [c for c in usable if gone[:, c].any()], np.flatnonzero(gone.any(1))
    forests = [_forest(table, known, rows, c, usable, seed.child("column", c)) for c in wanted]
    asked = replace(table.rules, rules=tuple(of for of in table.rules.rules if not of.implied))
    for attempt in range(_ROUNDS):
        if not len(rest):
            break
        if attempt == _ROUNDS_IMPLIED:  # known cells may break what nobody asked for
            table = replace(table, rules=asked)
        part, own = z[rest], gone[rest]
        _start(table, rows[: len(known)][:_STARTS], part, own, usable, rng)
        for _ in range(_SWEEPS):
            for forest in forests:
                _redraw(table, forest, part, own, rng)
            table.rules.solve(part, own)
        filled = np.where(own & (part < 0), np.nan, part)
        ok = table.rules.complete(filled, ~own)
        out[rest[ok]] = filled[ok]
        rest = rest[~ok]
    return out, rest


def _start(  # many: rows to take cells from, and cells to fill
    table: Table, rows: np.ndarray, z: np.ndarray, gone: np.ndarray, usable: list[int],
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """Take the cells `gone` of z from one of the nearest rows, in place: then few sweeps are enough."""

    def points(z: np.ndarray) -> np.ndarray:
        axes = ((c, table.columns[c].axes(z[:, c])) for c in usable[:_COMPARED])
        return np.hstack([np.where(z[:, [c]] < 0, np.nan, x) for c, x in axes])

    search = NearestNeighbors(n_neighbors=min(_NEAREST, len(rows)), metric="nan_euclidean")
    each, which = np.unique(z, axis=0, return_inverse=True)
    near = search.fit(points(rows)).kneighbors(points(each), return_distance=False)[which.reshape(-1)]
    chance = rng.random(near.shape)
    for c in usable:
        cells = rows[near[gone[:, c]], c]
        first = np.argmax(np.where(cells >= 0, chance[gone[:, c]], -1.0), axis=1)
        z[gone[:, c], c] = np.take_along_axis(cells, first[:, None], axis=1)[:, 0]


def _forest(  # many: rows to learn from, and what of them
    table: Table, known: np.ndarray, rows: np.ndarray, c: int, usable: list[int], seed: Seed
) -> list[Link]:
    """Trees of a column. Each has rows of its own (bagging), of another copy."""
    there, copies, out = np.flatnonzero(known[:, c] >= 0), len(rows) // len(known), []
    before = np.array([b for b in usable if b != c], dtype=np.int64)
    for t in range(_TREES):
        some = generator(seed.child("rows", t)).permutation(there)[: round(_SHARE * len(there))]
        own = rows[some + t % copies * len(known)]
        out.append(grow(table.columns, own, c, before, seed.child("grow", t).key, _DETAIL))
    return out


def _redraw(
    table: Table, forest: list[Link], z: np.ndarray, gone: np.ndarray, rng: np.random.Generator
) -> None:
    """Draw the cells `gone` of a forest's column anew, in place, each by a random tree."""
    c = forest[0].column
    parts = np.array_split(rng.permutation(np.flatnonzero(gone[:, c])), len(forest))
    for link, own in zip(forest, parts, strict=True):
        drawn = np.where(gone[own] & (z[own] < 0), np.nan, z[own])
        drawn[:, c] = np.nan

        def allowed(k: np.ndarray, at: np.ndarray, drawn: np.ndarray = drawn) -> np.ndarray:
            return np.asarray((at >= 0) & table.rules.allowed(c, drawn[k], at))

        found = link.draw(table.columns, z[own], rng, allowed)
        z[own, c] = np.where(np.isnan(found), z[own, c], found)
