"""Missing cells, filled by trees that see all other columns.

This is multiple imputation by trees (Doove, van Buuren and Dusseldorp 2014). The cells of a row start
together, as those of a near row, moved along a regression on the known cells. Then each is that of a
random row in the leaf of a random tree, or along a line, in a few sweeps over the columns. Each tree is
grown on a copy of the table's rows, whose own holes are filled in the same sweeps.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from sklearn.neighbors import NearestNeighbors

from sliceflow.engine.random import Seed
from sliceflow.spaces.tables.chain import Link, TreeSettings, choose_strategy, grow
from sliceflow.spaces.tables.table import Table, generator

_TREES = (
    3,
    10,
)  # of a column, at least and at most: one for each table that is asked for
_SHARE = 0.63
_DETAIL = TreeSettings(8, 2.0)  # of the rows that a tree has, and how fine it is
_NEAREST = 10
_STARTS = 5_000
_COMPARED = 50  # rows to start from, of so many, by so many columns
_RIDGE = 1e-4
_ITERATIONS = 4  # of the regression; holes of its own rows are expected so many times
_SWEEPS = 2
_ROUNDS = 10
_ROUNDS_IMPLIED = 2  # rounds for rows that break a rule, or an implied one
_MOST_ROWS = 20_000
_MOST_CELLS = 2_000_000  # to learn from


def fill(
    table: Table, z: np.ndarray, n: int, seed: Seed
) -> tuple[np.ndarray, np.ndarray]:
    """Positions z (m, d) n times, missing cells filled but of identifiers; and which rows break rules."""
    columns = table.columns
    rng = generator(seed.child("fill"))
    constant = [of.kind == "constant" and len(of.order) > 0 for of in columns]
    most = min(_MOST_ROWS, _MOST_CELLS // len(columns))
    known = table.z[generator(seed.child("some")).permutation(len(table.z))[:most]]
    usable = [
        c
        for c in table.order
        if columns[c].kind != "identifier" and (known[:, c] >= 0).any()
    ]
    trees = int(np.clip(n, *_TREES))
    holes = bool((known[:, usable] < 0).any())
    learnt = np.tile(known, (trees, 1))
    out = np.concatenate((learnt, np.tile(np.where(constant, 0.0, z), (n, 1))))
    gone = (out < 0) & np.isin(np.arange(len(columns)), usable)
    rest = np.flatnonzero(gone.any(1))
    forests = dict[int, list[Link]]()
    wanted = [c for c in usable if gone[:, c].any()]
    asked = replace(
        table.rules, rules=tuple(of for of in table.rules.rules if not of.implied)
    )
    for attempt in range(_ROUNDS):
        if not len(rest):
            break
        if attempt == _ROUNDS_IMPLIED:  # known cells may break what nobody asked for
            table = replace(table, rules=asked)
        part = out[rest]
        own = gone[rest]
        _start(table, known[:_STARTS], part, usable, rng)
        for sweep in range(_SWEEPS):
            for c in wanted:
                if not attempt and (holes or not sweep):  # trees see rows without holes
                    learnt[rest[rest < len(learnt)]] = part[rest < len(learnt)]
                    rows = learnt.reshape(-1, *known.shape)[:, known[:, c] >= 0]
                    forests[c] = _forest(
                        table, rows, c, usable, seed.child("column", c, sweep)
                    )
                _redraw(table, forests[c], part, own, rng)
            filled = np.where(own & (part < 0), np.nan, part)
            ok = table.rules.complete(filled, own)
            part = np.where(np.isfinite(filled), filled, part)
        out[rest[ok]] = filled[ok]
        rest = rest[~ok & (rest >= len(learnt))]
    return out[len(learnt) :], rest - len(learnt)


def _start(
    table: Table,
    rows: np.ndarray,
    z: np.ndarray,
    usable: list[int],
    rng: np.random.Generator,
) -> None:
    """Take missing cells of z from one of the nearest rows, in place: numbers move as is expected."""
    columns = table.columns
    at = 0

    def points(z: np.ndarray) -> np.ndarray:
        axes = ((z[:, [c]], columns[c].axes(z[:, c])) for c in usable[:_COMPARED])
        return np.hstack([np.where(cells < 0, np.nan, x) for cells, x in axes])

    seen = points(rows)
    each, which = np.unique(z, axis=0, return_inverse=True)
    search = NearestNeighbors(
        n_neighbors=min(_NEAREST, len(rows)), metric="nan_euclidean"
    ).fit(seen)
    to = points(each)
    near = rng.permuted(
        search.kneighbors(to, return_distance=False)[which.reshape(-1)], axis=1
    )
    mean = np.nansum(seen, axis=0) / np.maximum(1, (~np.isnan(seen)).sum(0))
    left = np.zeros(1)
    full = np.where(np.isnan(seen), mean, seen)
    for _ in range(
        _ITERATIONS if np.isnan(seen).any() else 1
    ):  # expectation maximisation
        covariance = np.cov(full.T, ddof=0) + left + _RIDGE * np.eye(seen.shape[1])
        precision = np.linalg.inv(covariance)
        mean = full.mean(0)
        full, left = _expected(seen - mean, precision)
        full += mean
    moved = full[near[:, 0]]
    moved += _expected(to[which.reshape(-1)] - moved, precision)[0]
    for c in usable:
        own = columns[c]
        gone = z[:, c] < 0
        levels = np.arange(len(columns[c].order))
        cells = rows[near[gone], c]
        axes = own.axes(levels)
        z[gone, c] = cells[np.arange(len(cells)), np.argmax(cells >= 0, axis=1)]
        if own.is_number and at < moved.shape[1]:
            z[gone, c] = np.rint(np.interp(moved[gone, at], axes[:, 0], levels))
        at += axes.shape[1]


def _expected(x: np.ndarray, precision: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points x (m, a) of a Gaussian around 0 with NaN replaced by means; and the mean covariance left."""
    out = np.nan_to_num(x)
    left = np.zeros_like(precision)
    patterns, which = np.unique(np.isnan(x), axis=0, return_inverse=True)
    order = np.argsort(which.reshape(-1), kind="stable")
    sizes = np.bincount(which.reshape(-1))
    for gone, rows in zip(
        patterns, np.split(order, np.cumsum(sizes)[:-1]), strict=True
    ):
        covariance = np.linalg.inv(precision[np.ix_(gone, gone)])
        slopes = precision[np.ix_(~gone, gone)] @ covariance
        out[np.ix_(rows, gone)] = -out[np.ix_(rows, ~gone)] @ slopes
        left[np.ix_(gone, gone)] += covariance * (len(rows) / len(x))
    return out, left


def _forest(
    table: Table, copies: np.ndarray, c: int, usable: list[int], seed: Seed
) -> list[Link]:
    """Trees of a column, one of each copy. Each has rows of its own (bagging)."""
    before = np.array([b for b in usable if b != c], dtype=np.int64)
    out = []
    strategy = choose_strategy(
        table.columns, copies[0], c, before, seed.child("way").key
    )
    for t, rows in enumerate(copies):
        some = generator(seed.child("rows", t)).permutation(len(rows))[
            : round(_SHARE * len(rows))
        ]
        out.append(
            grow(
                table.columns,
                rows[some],
                c,
                before,
                seed.child("grow", t).key,
                _DETAIL,
                strategy,
            )
        )
    return out


def _redraw(
    table: Table,
    forest: list[Link],
    z: np.ndarray,
    gone: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Draw the cells `gone` of a forest's column anew, in place, each by a random tree."""
    c = forest[0].column
    parts = np.array_split(rng.permutation(np.flatnonzero(gone[:, c])), len(forest))
    for link, own in zip(forest, parts, strict=True):
        drawn = np.where(gone[own] & (z[own] < 0), np.nan, z[own])
        drawn[:, c] = np.nan
        found = link.draw(z[own], rng, partial(table.rules.allowed, c, drawn, False))
        z[own, c] = np.where(np.isnan(found), z[own, c], found)
