"""Smooth functions of conditions: groups of features, from straight lines to waves.

A regression is linear in these features. They come in groups, each with a penalty of
its own (`ridge.py`), so that a group that explains nothing costs next to nothing:

    stage 0   straight lines, one of every column of y
    stage 1   cubic splines of every column, in bands from smooth to rough
    stage 2   products of the smoothest functions of two columns
    stage 3   cosines of random directions, in bands of their frequencies

The directions are of all kinds, or mostly those in which means bend
(`learned_directions.py`).

Outside the range of the data only the straight lines go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Annotated, NamedTuple

import numpy as np
from scipy.interpolate import BSpline

from sliceflow.arrays import Floats, Ints, Mask, chunks
from sliceflow.engine.random import Seed
from sliceflow.saved_types import ArraySpec

__all__ = ["N_STAGES", "SmoothBasis", "is_in_chosen_group", "varying_columns"]

# The stages in which groups are tried, as listed above.
STRAIGHT_LINES, SPLINES, PRODUCTS, COSINES = range(4)
N_STAGES = 4
# The most intervals of a spline. For n rows there are n^(1/3), the rate at which the
# intervals of the best splines shrink. More would only take time, because penalties
# decide how smooth functions are.
MAX_INTERVALS = 32
# The functions of a spline, from smooth to rough, are split into bands that end here.
# So a smooth function with one bend does not pay for all rough functions.
BAND_ENDS = (3, 9)
# The most features of all products together: with 300 of them, 10,000 rows take some 50
# ms.
MAX_PRODUCTS = 300
# The most functions of one column that enter products.
MAX_PRODUCT_ORDER = 8
# Cosines in every group, and how far their phases go, in radians, along one standard
# deviation: half a radian is nearly a parabola, two have several bends.
COSINES_PER_GROUP = 100
FREQUENCIES = (0.5, 1.0, 2.0)
# A column that varies by less than this share of its magnitude is constant: rounding.
CONSTANT_SHARE = 1e-12
# A spline needs this many different quantiles; columns with fewer stay straight.
MIN_KNOTS = 4
# Directions whose variance is below this share of the largest are left out, because
# they are combinations of the others.
MIN_VARIANCE_SHARE = 1e-8
# Cubic splines: the lowest degree whose curvature is continuous.
DEGREE = 3


def varying_columns(values: Floats) -> Ints:
    """The indices of the columns of values (n, l) that are not constant."""
    smallest_spread = CONSTANT_SHARE * np.abs(values).max(axis=0)
    return np.flatnonzero(values.std(axis=0) > smallest_spread)


def is_in_chosen_group(is_chosen: Mask, groups: Ints) -> Mask:
    """Which features (p,) belong to the chosen groups.

    `is_chosen` (g,) says which groups are chosen, and `groups` (p,) has the group of
    each feature. The constant, of group −1, always belongs to them.
    """
    with_constant = np.append(is_chosen, True)  # the last item has the index −1, too
    return np.asarray(with_constant[groups])


class FeatureGroup(NamedTuple):
    """Features (n, p) that enter a regression together, and their stage."""

    stage: int
    features: Floats


@dataclass(frozen=True, eq=False)
class Spline:
    """Cubic splines of one column t, from smooth to rough.

    On the data they have mean 0 and variance 1 and are uncorrelated, also with t.

    Parameters
    ----------
    knots : in ascending order, the ends four times
    coefficients : of B-splines (b, p), for p functions; p may be 0
    """

    knots: Annotated[np.ndarray, ArraySpec("k", "float64")]
    coefficients: Annotated[np.ndarray, ArraySpec("b p", "float64")]

    @classmethod
    def from_data(cls, t: Floats, n_intervals: int) -> Spline:
        """Splines with knots at quantiles of t (n,).

        The b B-splines of these knots are made into p splines, in three steps: straight
        lines are taken off, then what is left is made uncorrelated, and last it is
        rotated so that splines are in the order of their roughness.
        """
        quantiles = np.unique(np.quantile(t, np.linspace(0, 1, n_intervals + 1)))
        ends = (quantiles[0], quantiles[-1])
        knots = np.concatenate(([ends[0]] * DEGREE, quantiles, [ends[1]] * DEGREE))
        centers = (knots[1:-3] + knots[2:-2] + knots[3:-1]) / DEGREE
        b = len(centers)
        if len(quantiles) < MIN_KNOTS:
            return cls(knots, np.empty((b, 0)))

        b_splines = BSpline(knots, np.eye(b), DEGREE)(t)
        without_lines, values = _take_off_lines(b_splines, t, centers)
        whitening = _whitening(values)
        from_smooth_to_rough = _roughness_axes(whitening, centers)
        return cls(knots, without_lines @ whitening @ from_smooth_to_rough)

    def __call__(self, t: Floats) -> Floats:
        """Values (n, p) at t (n,), which is moved into the range of the knots."""
        inside = np.clip(t, self.knots[0], self.knots[-1])
        return np.asarray(BSpline(self.knots, self.coefficients, DEGREE)(inside))


def _take_off_lines(
    b_splines: Floats, t: Floats, centers: Floats
) -> tuple[Floats, Floats]:
    """Take off the straight line in t that fits each B-spline best.

    Parameters
    ----------
    b_splines : their values (n, b) at t (n,)
    centers : of the B-splines, (b,)

    Returns
    -------
    coefficients : of the B-splines (b, b), for b splines without lines
    values : of these splines at t, (n, b)
    """
    lines = np.stack((np.ones_like(t), t), 1)
    slopes = np.linalg.lstsq(lines, b_splines, rcond=None)[0]
    # B-splines reproduce 1 and t, with coefficients of 1 and their centers.
    coefficients_of_lines = np.stack((np.ones(len(centers)), centers), 1)
    coefficients = np.eye(len(centers)) - coefficients_of_lines @ slopes
    return coefficients, b_splines - lines @ slopes


def _whitening(values: Floats) -> Floats:
    """The matrix (b, p) that makes the columns of values (n, b) uncorrelated.

    Their means are 0, and their variances become 1. Directions that hardly vary are
    left out.
    """
    variances, axes = np.linalg.eigh(values.T @ values / len(values))
    is_used = variances > MIN_VARIANCE_SHARE * variances[-1]
    return np.asarray(axes[:, is_used] / np.sqrt(variances[is_used]))


def _roughness_axes(coefficients: Floats, centers: Floats) -> Floats:
    """A rotation (p, p) of splines with coefficients (b, p), the smoothest one first.

    Roughness is the sum of the squares of second derivatives. These are differences of
    the coefficients, which count at the `centers` (b,) of the B-splines.
    """
    slopes = np.diff(coefficients, axis=0) / np.diff(centers)[:, None]
    middles = (centers[1:] + centers[:-1]) / 2
    curvatures = np.diff(slopes, axis=0) / np.diff(middles)[:, None]
    _, axes = np.linalg.eigh(curvatures.T @ curvatures)
    return np.asarray(axes)


@dataclass(frozen=True, eq=False)
class Cosines:
    """√2·cos(fᵀt + phase) of standardized conditions t, for r frequencies f.

    Parameters
    ----------
    frequencies, phases : (c, r) and (r,)
    """

    frequencies: Floats
    phases: Floats

    @classmethod
    def empty(cls, n_columns: int) -> Cosines:
        """No cosines, of conditions with this many columns."""
        return cls(np.empty((n_columns, 0)), np.empty(0))

    @classmethod
    def draw(cls, root: Floats, n_groups_per_band: int, seed: Seed) -> Cosines:
        """Random cosines in bands of `FREQUENCIES`.

        Their frequencies have the covariance root·rootᵀ (c, c). The trace of its
        product with the covariance of t should be c.
        """
        n_columns = len(root)
        n_per_band = n_groups_per_band * COSINES_PER_GROUP
        lengths = np.repeat(FREQUENCIES, n_per_band) / n_columns**0.5
        directions = seed.child("directions").normal(n_columns, len(lengths)).numpy()
        phases = 2 * np.pi * seed.child("phases").uniform(len(lengths), 1).numpy()
        return cls(root @ (directions * lengths), phases[:, 0])

    def take(self, cosines: slice) -> Cosines:
        """Some of these cosines."""
        return Cosines(self.frequencies[:, cosines], self.phases[cosines])

    def __call__(self, t: Floats) -> Floats:
        """Values (n, r) at standardized conditions t (n, c)."""
        return np.asarray(np.sqrt(2) * np.cos(t @ self.frequencies + self.phases))

    def slopes(self, t: Floats) -> Floats:
        """The derivative (n, r) of every cosine by its phase, at t (n, c)."""
        return np.asarray(-np.sqrt(2) * np.sin(t @ self.frequencies + self.phases))


@dataclass(frozen=True, eq=False)
class SmoothBasis:
    """Features of conditions y (n, l): a 1, and the features of all kept groups.

    Parameters
    ----------
    used_columns : indices (c,) of the columns of y that vary, c of its l columns
    shift, scale : means and standard deviations of these columns
    splines : one for each of these columns
    product_order : how many functions of a column enter products
    frequencies, phases : parameters of the cosines, (c, r) and (r,)
    kept_groups : which of all groups are kept
    """

    used_columns: Annotated[np.ndarray, ArraySpec("c", "int64")]
    shift: Annotated[np.ndarray, ArraySpec("c", "float64")]
    scale: Annotated[np.ndarray, ArraySpec("c", "float64")]
    splines: tuple[Spline, ...]
    product_order: int
    frequencies: Annotated[np.ndarray, ArraySpec("c r", "float64")]
    phases: Annotated[np.ndarray, ArraySpec("r", "float64")]
    kept_groups: Annotated[np.ndarray, ArraySpec("g", "bool")]

    @classmethod
    def from_data(cls, y: Floats, seed: Seed) -> SmoothBasis:
        """All groups, for conditions such as y (n, l)."""
        used_columns = varying_columns(y)
        shift = y[:, used_columns].mean(axis=0)
        scale = y.std(axis=0)[used_columns]
        t = (y[:, used_columns] - shift) / scale
        n_intervals = min(MAX_INTERVALS, round(len(y) ** (1 / 3)))
        splines = tuple(Spline.from_data(column, n_intervals) for column in t.T)
        cosines = Cosines.empty(len(used_columns))
        if len(used_columns) > 1:
            variances, axes = np.linalg.eigh(t.T @ t / len(t))
            least = MIN_VARIANCE_SHARE * variances[-1]
            inverse_root = axes / np.sqrt(np.maximum(variances, least))
            cosines = Cosines.draw(inverse_root, 1, seed)
        basis = cls(
            used_columns=used_columns,
            shift=shift,
            scale=scale,
            splines=splines,
            product_order=_product_order(len(used_columns)),
            frequencies=cosines.frequencies,
            phases=cosines.phases,
            kept_groups=np.empty(0, bool),
        )
        return basis._with_all_groups()

    @property
    def cosines(self) -> Cosines:
        """The cosines of all groups."""
        return Cosines(self.frequencies, self.phases)

    def with_cosines(self, cosines: Cosines) -> SmoothBasis:
        """All groups of this basis, with other cosines."""
        basis = replace(self, frequencies=cosines.frequencies, phases=cosines.phases)
        return basis._with_all_groups()

    def _with_all_groups(self) -> SmoothBasis:
        """The same basis, with all groups kept."""
        n_groups = len(list(self._iter_all_groups(self._any_condition)))
        return replace(self, kept_groups=np.ones(n_groups, bool))

    def standardize(self, y: Floats) -> Floats:
        """The columns of conditions y that vary, in standard deviations, (n, c)."""
        return np.asarray((y[:, self.used_columns] - self.shift) / self.scale)

    def take_groups(self, is_kept: Mask) -> SmoothBasis:
        """The basis with only some of its g groups: those of `is_kept` (g,)."""
        kept_groups = self.kept_groups.copy()
        kept_groups[kept_groups] = is_kept
        return replace(self, kept_groups=kept_groups)

    def features(self, y: Floats) -> Floats:
        """Features (n, p) of conditions y (n, l), a column of ones first."""
        blocks = [np.ones((len(y), 1))]
        for group in self._iter_kept_groups(y):
            blocks.append(group.features)
        return np.concatenate(blocks, axis=1)

    def group_of_each_feature(self) -> Ints:
        """The index of the group to which each feature belongs, (p,); −1 of the 1."""
        groups = [-1]
        for i, group in enumerate(self._iter_kept_groups(self._any_condition)):
            groups.extend([i] * group.features.shape[1])
        return np.array(groups)

    def stage_of_each_group(self) -> Ints:
        """The stages of the groups, (g,)."""
        groups = self._iter_kept_groups(self._any_condition)
        return np.array([group.stage for group in groups], int)

    @property
    def _any_condition(self) -> Floats:
        """A condition (1, l), to see which groups there are: they are so for all."""
        return np.zeros((1, int(self.used_columns.max(initial=-1)) + 1))

    def _iter_kept_groups(self, y: Floats) -> Iterator[FeatureGroup]:
        """Every group that is kept, for conditions y (n, l)."""
        all_groups = self._iter_all_groups(y)
        for is_kept, group in zip(self.kept_groups, all_groups, strict=True):
            if is_kept:
                yield group

    def _iter_all_groups(self, y: Floats) -> Iterator[FeatureGroup]:
        """Every group, for conditions y (n, l)."""
        t = self.standardize(y)
        for column in t.T:
            yield FeatureGroup(STRAIGHT_LINES, column[:, None])
        spline_values = []
        for spline, column in zip(self.splines, t.T, strict=True):
            values = spline(column)
            spline_values.append(values)
            for band in _bands(values):
                yield FeatureGroup(SPLINES, band)
        inside = self._within_splines(t)
        if self.product_order:
            yield from self._iter_products(inside, spline_values)
        for group in chunks(len(self.phases), COSINES_PER_GROUP):
            yield FeatureGroup(COSINES, self.cosines.take(group)(inside))

    def _within_splines(self, t: Floats) -> Floats:
        """Conditions t (n, c), each column moved into the range of its spline."""
        inside = np.empty_like(t)
        for i, spline in enumerate(self.splines):
            inside[:, i] = np.clip(t[:, i], spline.knots[0], spline.knots[-1])
        return inside

    def _iter_products(
        self, inside: Floats, spline_values: list[Floats]
    ) -> Iterator[FeatureGroup]:
        """Products of the smoothest functions of every two columns.

        Parameters
        ----------
        inside : the columns (n, c), within the ranges of their splines
        spline_values : of each column (n, p)
        """
        smoothest = []
        for column, values in zip(inside.T, spline_values, strict=True):
            functions = np.concatenate((column[:, None], values), axis=1)
            smoothest.append(functions[:, : self.product_order])
        for first, second in combinations(smoothest, 2):
            products = first[:, :, None] * second[:, None, :]
            n_products = first.shape[1] * second.shape[1]
            yield FeatureGroup(PRODUCTS, products.reshape(len(inside), n_products))


def _bands(functions: Floats) -> Iterator[Floats]:
    """The functions (n, p) of a spline in bands, from smooth to rough."""
    for band in np.split(functions, BAND_ENDS, axis=1):
        if band.shape[1] > 0:
            yield band


def _product_order(n_columns: int) -> int:
    """How many functions of each column enter products; 0 for too many columns."""
    n_pairs = n_columns * (n_columns - 1) // 2
    if n_pairs == 0:
        return 0
    return min(MAX_PRODUCT_ORDER, int((MAX_PRODUCTS / n_pairs) ** 0.5))
