"""Normal scores: every column of numbers as a coordinate that is nearly N(0, 1), and back.

A level with a share of the cells, such as 0, a category or a missing cell, is an interval of the score.
Where in it a cell lies is unknown. It is drawn from the normal distribution that the other coordinates
predict, cut to the interval: the position then carries the dependence instead of hiding it in noise.
(These are the latent variables of a Gaussian copula with discrete margins; Hoff 2007.) Categories
without an order get the one along which the other columns separate them best.

Numbers with many different values get a smooth score: piecewise linear between a few quantiles, so that
straight relations between columns stay nearly straight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr, ndtri

from sliceflow.engine.random import Seed
from sliceflow.spaces.tables.columns import ATOM, MANY, Column

__all__ = ["Coordinate", "Scores", "Stream", "quantiles"]

_KNOTS = np.linspace(-2.5, 2.5, 9)  # of a smooth score
_SWEEPS = 4  # over the coordinates, to place cells in their intervals
_RIDGE = 0.01  # of the correlations
_FAR = 5.0  # scores stay within
_LEAST = 0.5  # that a coordinate counts for distances
_ORDERING = 100  # coordinates that order the levels of a category, at most
_BLOCK = 32  # coordinates whose predictions are computed together
_QUANTILES = 1025  # of a coordinate, kept to find ranks


class Stream:
    """Random numbers of a seed, one call after the other."""

    def __init__(self, seed: Seed) -> None:
        self._seed, self._calls = seed, 0

    def uniform(self, n: int) -> np.ndarray:
        """n numbers in (0, 1)."""
        self._calls += 1
        out: np.ndarray = self._seed.child(self._calls).uniform(n, 1)[:, 0].numpy()
        return out

    def normal(self, n: int) -> np.ndarray:
        """n normal numbers."""
        return np.asarray(ndtri(self.uniform(n)))


@dataclass(frozen=True, eq=False)
class Coordinate:
    """One coordinate of the scores.

    Parameters
    ----------
    column : number of the column
    flag : whether it says that the column is missing, instead of its value
    levels : the different numbers; of categories their codes in the order of the score
    cum : share of the cells below each level, and 1
    knots : numbers and their scores, if the score is smooth; else empty (2, 0)
    """

    column: int
    flag: bool
    levels: np.ndarray
    cum: np.ndarray
    knots: np.ndarray

    @property
    def smooth(self) -> bool:
        return bool(self.knots.shape[1] > 0)

    def bounds(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The interval of ranks of each number; (0, 1) for NaN. Between levels both ends are equal."""
        value = np.isnan(numbers).astype(float) if self.flag else numbers
        order = np.argsort(self.levels)  # codes of categories have another order
        ascending = self.levels[order]
        at = np.clip(np.searchsorted(ascending, value), 0, len(ascending) - 1)
        known = ascending[at] == value
        lo = np.where(known, self.cum[:-1][order[at]], 0.0)
        hi = np.where(known, self.cum[1:][order[at]], 1.0)
        between = ~known & ~np.isnan(value)  # only where levels are numbers, in ascending order
        if between.any():
            u = np.interp(value[between], self.levels, (self.cum[:-1] + self.cum[1:]) / 2)
            lo[between] = hi[between] = u
        return lo, hi

    def smoothed(self, numbers: np.ndarray) -> np.ndarray:
        """The smooth score: straight beyond the last knots."""
        x, z = self.knots
        out = np.interp(numbers, x, z)
        for end, inner, side in ((0, 1, numbers < x[0]), (-1, -2, numbers > x[-1])):
            slope = (z[end] - z[inner]) / (x[end] - x[inner])
            out = np.where(side, z[end] + slope * (numbers - x[end]), out)
        return np.asarray(np.clip(out, -_FAR, _FAR))

    def unsmoothed(self, scores: np.ndarray) -> np.ndarray:
        """The numbers with these smooth scores, within those of the table."""
        x, z = self.knots
        out = np.interp(scores, z, x)
        for end, inner, side in ((0, 1, scores < z[0]), (-1, -2, scores > z[-1])):
            slope = (x[end] - x[inner]) / (z[end] - z[inner])
            out = np.where(side, x[end] + slope * (scores - z[end]), out)
        return np.asarray(np.clip(out, self.levels[0], self.levels[-1]))

    def numbers(self, u: np.ndarray, column: Column) -> np.ndarray:
        """The numbers at ranks u; between levels that occur once each, new ones."""
        last = len(self.levels) - 1
        at = np.clip(np.searchsorted(self.cum, u, "right") - 1, 0, last)
        found = self.levels[at]
        if self.flag or column.is_category or not self.smooth:
            return found
        width = np.diff(self.cum)
        once = width[at] < 1.5 * width.min()
        below, above = self.levels[np.maximum(at - 1, 0)], self.levels[np.minimum(at + 1, last)]
        share = (u - self.cum[at]) / width[at]
        new = (below + found) / 2 + share * (above - below) / 2
        new = np.clip(column.on_grid(new), self.levels[0], self.levels[-1])
        return np.where(once, new, found)


@dataclass(frozen=True, eq=False)
class Scores:
    """All coordinates of a table.

    Parameters
    ----------
    columns : of the table
    coordinates : those with a coordinate
    precision : (d, d), inverse of their correlations
    ends : (d, 1025), quantiles of each coordinate
    fixed : (columns,), the numbers of columns that have no coordinate; NaN for missing
    """

    columns: tuple[Column, ...]
    coordinates: tuple[Coordinate, ...]
    precision: np.ndarray
    ends: np.ndarray
    fixed: np.ndarray

    @classmethod
    def of(
        cls, columns: Sequence[Column], numbers: np.ndarray, draw: Stream
    ) -> tuple[Scores, np.ndarray]:
        """The scores of numbers (n, columns), and the table in them, (n, d)."""
        found: list[Coordinate] = []
        for c, column in enumerate(columns):
            if not column.modelled:
                continue
            missing = np.isnan(numbers[:, c])
            if missing.any() and not missing.all():
                found.append(_coordinate(c, True, missing.astype(float)))
            present = numbers[~missing, c]
            if len(np.unique(present)) > 1:
                found.append(_coordinate(c, False, present, smooth=not column.is_category))
        start = np.empty((len(numbers), len(found)))
        for j, coordinate in enumerate(found):
            start[:, j] = _placed(coordinate, numbers[:, coordinate.column], columns, draw)
        for _ in range(2):  # the orders of categories depend on each other
            for j, coordinate in enumerate(found):
                column = columns[coordinate.column]
                if column.kind == "category" and not coordinate.flag and len(coordinate.levels) > 2:
                    values = numbers[:, coordinate.column]
                    found[j] = _ordered(coordinate, values, start, j)
                    start[:, j] = _placed(found[j], values, columns, draw)
        fixed = np.array([_first(column) for column in numbers.T])
        d = len(found)
        scores = cls(tuple(columns), tuple(found), np.eye(d), np.empty((d, 0)), fixed)
        z = start
        for _ in range(_SWEEPS if len(found) > 1 else 0):
            scores = replace(scores, precision=_precision(z))
            z = scores._drawn(z, numbers, draw, ranked=True)
        scores = replace(scores, precision=_precision(z), ends=quantiles(z))
        return scores, z

    def encode(self, numbers: np.ndarray, draw: Stream) -> np.ndarray:
        """The scores (m, d) of other rows of numbers; what is missing in them is drawn."""
        z = np.empty((len(numbers), len(self.coordinates)))
        for j, coordinate in enumerate(self.coordinates):
            z[:, j] = _placed(coordinate, numbers[:, coordinate.column], self.columns, draw)
        for _ in range(_SWEEPS):
            z = self._drawn(z, numbers, draw, ranked=False)
        return z

    def _drawn(self, z: np.ndarray, numbers: np.ndarray, draw: Stream, *, ranked: bool) -> np.ndarray:
        """One sweep: every cell that is an interval is drawn given the other coordinates."""
        z, first, block = z.copy(), 0, slice(0)
        predicted = np.empty((len(z), 0))  # z times the precision of a block; its changes are added
        for j, coordinate in enumerate(self.coordinates):
            if j % _BLOCK == 0:
                first, block = j, slice(j, j + _BLOCK)
                predicted = z @ self.precision[:, block]
            values = numbers[:, coordinate.column]
            lo, hi = coordinate.bounds(values)
            if coordinate.smooth:
                free = np.isnan(values)
                if not free.any():
                    continue
            else:
                free = hi > lo
            own = self.precision[j, j]
            mean = (z[:, j] - predicted[:, j - first] / own)[free]
            before = z[:, j].copy()
            spread = 1 / np.sqrt(own)
            u = draw.uniform(int(free.sum()))
            if coordinate.smooth:
                z[free, j] = np.clip(mean + spread * ndtri(np.clip(u, 1e-9, 1 - 1e-9)), -_FAR, _FAR)
            else:
                low, high = (
                    np.clip(ndtri(np.clip(e[free], 1e-9, 1 - 1e-9)), -_FAR, _FAR) for e in (lo, hi)
                )
                a, b = ndtr((low - mean) / spread), ndtr((high - mean) / spread)
                drawn = mean + spread * ndtri(np.clip(a + (b - a) * u, 1e-12, 1 - 1e-12))
                z[free, j] = np.clip(drawn, low, high)
                if ranked:
                    z[:, j] = _ranked(z[:, j])
            predicted += np.outer(z[:, j] - before, self.precision[j, block])
        return z

    def decode(
        self, z: np.ndarray, ends: np.ndarray | None = None, *, missing: bool = True
    ) -> np.ndarray:
        """Scores (m, d) as numbers (m, columns); `ends` are quantiles of the scores."""
        ends = self.ends if ends is None else ends
        out = np.tile(self.fixed, (len(z), 1))
        levels = np.linspace(0, 1, ends.shape[1])
        gone = np.zeros(out.shape, dtype=bool)
        for j, coordinate in enumerate(self.coordinates):
            u = np.clip(np.interp(z[:, j], ends[j], levels), 0, 1 - 1e-12)
            value = coordinate.numbers(u, self.columns[coordinate.column])
            if coordinate.flag:
                gone[:, coordinate.column] = value == 1
            else:
                out[:, coordinate.column] = value
        if missing:
            out[gone] = np.nan
        return out

    def relevance(self) -> np.ndarray:
        """(d,), what a unit of each coordinate counts when neighbours are searched.

        √R² of its regression on the others, at least `_LEAST`: rows need not be alike in what has
        nothing to do with the rest.
        """
        explained = 1 - 1 / np.diagonal(self.precision)
        return np.sqrt(np.clip(explained, _LEAST**2, 1.0))


def _first(column: np.ndarray) -> float:
    present = column[~np.isnan(column)]
    return float(present[0]) if len(present) else float("nan")


def quantiles(z: np.ndarray) -> np.ndarray:
    """(d, 1025) quantiles of the columns of z (n, d)."""
    n = len(z)
    at = (np.arange(n) + 0.5) / n
    levels = np.linspace(0, 1, _QUANTILES)
    return np.array([np.interp(levels, at, np.sort(column)) for column in z.T]).reshape(-1, _QUANTILES)


def _coordinate(c: int, flag: bool, present: np.ndarray, smooth: bool = False) -> Coordinate:
    levels, counts = np.unique(present, return_counts=True)
    cum = np.concatenate(([0.0], np.cumsum(counts) / counts.sum()))
    knots = np.empty((2, 0))
    if smooth and len(levels) >= MANY and counts.max() < ATOM * len(present):
        x, first = np.unique(np.quantile(present, ndtr(_KNOTS)), return_index=True)
        knots = np.array([x, _KNOTS[first]])
        spread = Coordinate(c, flag, levels, cum, knots).smoothed(present)
        knots[1] = (knots[1] - spread.mean()) / spread.std()
    return Coordinate(c, flag, levels, cum, knots)


def _placed(
    coordinate: Coordinate, numbers: np.ndarray, columns: Sequence[Column], draw: Stream
) -> np.ndarray:
    """A score for every cell, at random within its interval, or within its step of the grid."""
    if coordinate.smooth:
        step = columns[coordinate.column].step
        z = coordinate.smoothed(numbers + step * (draw.uniform(len(numbers)) - 0.5))
        return np.where(np.isnan(numbers), draw.normal(len(numbers)), z)
    lo, hi = coordinate.bounds(numbers)
    u = lo + (hi - lo) * draw.uniform(len(numbers))
    return np.asarray(np.clip(ndtri(np.clip(u, 1e-6, 1 - 1e-6)), -_FAR, _FAR))


def _ranked(z: np.ndarray) -> np.ndarray:
    out = np.empty(len(z))
    out[np.argsort(z, kind="stable")] = ndtri((np.arange(len(z)) + 0.5) / len(z))
    return out


def _precision(z: np.ndarray) -> np.ndarray:
    d = z.shape[1]
    centred = z - z.mean(0)
    covariance = centred.T @ centred / max(1, len(z) - 1)
    ridge = _RIDGE + d / len(z) * 0.1  # more for few rows
    return np.linalg.inv((covariance + ridge * np.eye(d)) / (1 + ridge))


def _ordered(coordinate: Coordinate, codes: np.ndarray, z: np.ndarray, j: int) -> Coordinate:
    """The levels in the order of their means, along the axis of the whitened other coordinates on which
    these differ most; of many coordinates, of the `_ORDERING` on which they differ most each."""
    if z.shape[1] == 1:
        return coordinate
    ok = ~np.isnan(codes)
    levels = np.sort(coordinate.levels)
    at = np.searchsorted(levels, codes[ok])
    count = np.bincount(at, minlength=len(levels))
    member = (np.eye(len(levels)) / (count + 1)).take(at, 0).T  # times columns: shrunk means of levels
    others = np.delete(np.arange(z.shape[1]), j)
    if len(others) > _ORDERING:
        centred = z[ok] - z[ok].mean(0)
        apart = (count[:, None] * (member @ centred) ** 2).sum(0)[others]
        others = others[np.sort(np.argsort(-apart, kind="stable")[:_ORDERING])]
    x = z[np.ix_(ok, others)]
    x = x - x.mean(0)
    value, vector = np.linalg.eigh(x.T @ x / len(x))
    x = x @ vector / np.sqrt(np.maximum(value, 1e-3))
    means = member @ x
    axis = np.linalg.svd(means * np.sqrt(count)[:, None], full_matrices=False)[2][0]
    axis = axis * np.sign(axis[np.argmax(np.abs(axis))])
    order = np.argsort(means @ axis, kind="stable")
    cum = np.concatenate(([0.0], np.cumsum(count[order]) / count.sum()))
    return replace(coordinate, levels=levels[order].astype(float), cum=cum)
