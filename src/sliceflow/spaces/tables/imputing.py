"""Missing cells, filled by trees that see all other columns.

This is multiple imputation by trees (Doove, van Buuren and Dusseldorp 2014). Cells start as those of a
near row. Then each is that of a random row in the leaf of a random tree, or along a line, in a few
sweeps over the columns. Trees are grown on different rows, whose own holes are filled first.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from sklearn.neighbors import NearestNeighbors

from sliceflow.engine.random import Seed
from sliceflow.spaces.tables.chain import Detail, Link, choose_way, grow
from sliceflow.spaces.tables.table import Table, generator

_TREES, _SHARE, _DETAIL = 10, 0.63, Detail(5, 2.0)  # of a column with missing cells; a tree's rows
_NEAREST, _STARTS, _COMPARED = 5, 5_000, 50  # rows to start from, of so many, by so many columns
_SWEEPS, _ROUNDS, _ROUNDS_IMPLIED = 2, 10, 2  # rounds for rows that break a rule, or an implied one
_MOST_ROWS, _MOST_CELLS = 20_000, 2_000_000  # to learn from


def fill(table: Table, z: np.ndarray, seed: Seed) -> tuple[np.ndarray, np.ndarray]:
    """Positions z (m, d) with missing cells filled, but of identifiers; and which rows break rules."""
    columns = table.columns
    constant = [of.kind == "constant" and len(of.order) > 0 for of in columns]
    z = np.where(constant, 0.0, z)
    most = min(_MOST_ROWS, _MOST_CELLS // len(columns))
    rows = known = table.z[generator(seed.child("some")).permutation(len(table.z))[:most]]
    usable = [c for c in table.order if columns[c].kind != "identifier" and (known[:, c] >= 0).any()]
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
    way = choose_way(table.columns, rows[there], c, before, seed.child("way").key)
    for t in range(_TREES):
        some = generator(seed.child("rows", t)).permutation(there)[: round(_SHARE * len(there))]
        own = rows[some + t % copies * len(known)]
        out.append(grow(table.columns, own, c, before, seed.child("grow", t).key, _DETAIL, way))
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

        found = link.draw(z[own], rng, allowed)
        z[own, c] = np.where(np.isnan(found), z[own, c], found)
