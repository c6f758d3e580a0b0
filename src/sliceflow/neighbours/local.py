"""Local conditions: samples of x given y = y₀ from the rows whose y is near y₀.

The k rows nearest to y₀ get Epanechnikov's weights. Distances ignore columns of y that say nothing about
x, and of many columns they see what these predict (`views`). The rows move along linear regressions to
y₀ (`regressions`). Samples are drawn along the moved rows (`draws`), so they are new.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.neighbours.bandwidth import choose_spread
from sliceflow.neighbours.draws import MEASURED, NEAR, draw_near, unit_within
from sliceflow.neighbours.regressions import COMPONENTS, Adjusted, adjust
from sliceflow.neighbours.search import build_search, find_nearest, inverse_deviation, kernel_weights
from sliceflow.neighbours.views import View, moments, project, relevance, ridge

__all__ = ["LocalRows", "LocalSettings", "work_bytes"]

_FEWEST, _MOST = 50, 2_000  # rows of a neighbourhood that are tried
_TRIED = 150  # rows whose likelihood chooses k,
_SURPRISE = 20.0  # no less than this below their median: a row that nothing foresees must not decide
_WIDE = 20  # more columns of y are replaced by what they predict
_SEVERAL, _ENOUGH = 4, 400  # columns and rows from which a summary is tried,
_FEATURES, _SHARE = 500, 4  # of this many random features, but no more than a share of the rows
_CHECKED = 20  # rows whose neighbourhoods choose h
_LARGEST = 1e50  # of a number in a model: its square and the square of that are finite
_NUMBERS = 1 << 21  # numbers of one array in memory at a time


@dataclass(frozen=True)
class LocalSettings:
    """What a fit finds out about rows, and a file keeps beside them.

    Parameters
    ----------
    k : neighbours of a condition
    spread : h, how far samples go along their neighbours
    projection : (l + n_features, m), what is seen of y is multiplied with it before distances
    n_features : random features that are seen of y beside its l columns
    """

    k: int
    spread: float
    projection: Tensor = field(repr=False)
    n_features: int = 0

    def check(self, n: int, columns: int) -> None:
        """Raise a ValueError if these cannot be the settings of n rows with so many columns of y."""
        if not 1 <= self.k <= n:
            raise ValueError(f"local has {self.k} neighbours among {n} rows")
        if not 0 <= self.spread <= 100:
            raise ValueError(f"local has a spread of {self.spread}")
        if not 0 <= self.n_features <= _FEATURES:
            raise ValueError(f"local has {self.n_features} features")
        shape, at = tuple(self.projection.shape), columns + self.n_features
        if len(shape) != 2 or shape[0] != at or self.projection.dtype != torch.float64:
            raise ValueError(f"local has a projection of {shape} for {at} columns")


@dataclass(frozen=True)
class LocalRows:
    """Rows x (n, d) with conditions y (n, l), ready to be asked for x given y.

    Parameters
    ----------
    x, y : float64 rows and their conditions, finite
    settings : how distances see y, and how many neighbours count

    Examples
    --------
    x is ±y, with some noise:

    >>> rng = np.random.default_rng(0)
    >>> y = rng.uniform(1, 3, (2000, 1))
    >>> x = rng.choice([-1, 1], (2000, 1)) * y + 0.1 * rng.normal(size=(2000, 1))
    >>> local = LocalRows.fit_to(x, y)
    >>> samples = local.sample(np.array([[1.5], [2.5]]), 500, Seed(0))
    >>> samples.shape, samples.abs().mean(1)[:, 0].round(decimals=1).tolist()
    (torch.Size([2, 500, 1]), [1.5, 2.5])
    """

    x: Tensor
    y: Tensor
    settings: LocalSettings

    @classmethod
    def fit_to(cls, x: Any, y: Any, k: int | None = None) -> LocalRows:
        """The rows with settings found from them.

        None chooses k by the likelihood of rows left out. So it does, for 4 to 20 columns of y, whether
        distances are those of columns or those of a summary: the summary is taken if rows left out are
        more likely then, by more than a standard error.
        """
        x, y = _float64(x), _float64(y)
        if y.shape[1] > _WIDE:
            local = _summarised(x, y)
        else:
            projection = torch.diag(relevance(x, View.fit_to(y)(y)))
            local = cls(x, y, LocalSettings(len(x), 0.8, projection))
        if k is not None:
            local = local.with_(k=min(k, len(x)))
        else:
            k, likelihood = _choose_k(local)
            local = local.with_(k=k)
            if _SEVERAL <= y.shape[1] <= _WIDE and len(y) >= _ENOUGH:
                local = _better_summarised(local, likelihood)
        return local.with_(spread=_spread(local))

    def with_(self, **changes: Any) -> LocalRows:
        """The same rows and search with another k or spread."""
        other = replace(self, settings=replace(self.settings, **changes))
        other.__dict__.update(_search=self._search, _projected=self._projected, _view=self._view)
        return other

    def check(self) -> None:
        """Raise a ValueError if samples might fail: damaged rows or settings."""
        if self.x.ndim != 2 or self.y.ndim != 2 or len(self.x) != len(self.y) or not len(self.x):
            shapes = tuple(self.x.shape), tuple(self.y.shape)
            raise ValueError(f"local has rows of {shapes[0]} and conditions of {shapes[1]}")
        self.settings.check(*self.y.shape)
        for name, values in (("rows", self.x), ("conditions", self.y)):
            if values.dtype != torch.float64 or not bool((values.abs() < _LARGEST).all()):
                raise ValueError(f"local has {name} that are not numbers below {_LARGEST:.0e}")
        if not bool((self._projected.abs() < _LARGEST).all()):
            raise ValueError(f"local has a projection to numbers beyond {_LARGEST:.0e}")

    @property
    def description(self) -> str:
        """What distances see of y, in words."""
        n = self.y.shape[1]
        tails = f"; normal scores of {len(self._view.scores)} heavy-tailed" if self._view.scores else ""
        if self.settings.n_features:
            return f"of a summary of {n} columns by {self.settings.n_features} random features{tails}"
        used = int((torch.diagonal(self.settings.projection) > 0).sum())
        return f"of {used} of {n} columns, weighted by relevance{tails}"

    @cached_property
    def _view(self) -> View:
        return View.fit_to(self.y, self.settings.n_features)

    def _seen(self, y: Tensor) -> Tensor:
        return project(self._view, y, self.settings.projection)

    @cached_property
    def _projected(self) -> Tensor:
        return self._seen(self.y)

    @cached_property
    def _search(self) -> NearestNeighbors:
        return build_search(self._projected)

    @cached_property
    def _plain_search(self) -> tuple[NearestNeighbors, Tensor, float]:
        """A search of distinct conditions in standard deviations, the unit, and how far they reach.

        The reach is the largest distance of a condition to its tenth neighbour; of few, to the last.
        """
        unit = inverse_deviation(self.y)
        distinct = torch.unique(self.y * unit, dim=0)
        search, some = build_search(distinct), distinct[:: max(1, len(distinct) // 1_000)]
        reach = find_nearest(search, some, min(10, len(distinct)))[0][:, -1].max()
        return search, unit, float(reach)

    def warn_of_far(self, y0: Any, name: str, stacklevel: int, numbers: Tensor | None = None) -> None:
        """Warn of a condition that is farther from all rows than rows are from each other.

        `numbers` are those that the user gave the conditions; `name` is theirs.
        """
        search, unit, reach = self._plain_search
        distance = find_nearest(search, _float64(y0) * unit, 1)[0][:, 0]
        i = int(distance.argmax())
        if distance[i] > reach:
            number = i if numbers is None else int(numbers[i])
            warnings.warn(
                f"{name}[{number}] is {float(distance[i]):.3g} standard deviations of {name} from the "
                f"nearest row, where rows have ten neighbours within {reach:.3g}: its samples are "
                "extrapolated",
                UserWarning,
                stacklevel=stacklevel + 1,
            )

    def adjusted(
        self, y0: Any, without: Tensor | None = None, most: int = COMPONENTS, at: Tensor | None = None
    ) -> Adjusted:
        """The neighbourhoods of conditions y0 (q, l), moved to them.

        Parameters
        ----------
        without : (q,), a row that each condition must not use
        most : the largest number of regressions
        at : (q, d), points whose log density is wanted
        """
        seen = self._seen(_float64(y0))
        k = self.settings.k if without is None else min(self.settings.k, len(self.x) - 1)
        distance, rows = find_nearest(self._search, seen, k, without)
        weight, radius = kernel_weights(distance)
        offset = (self._projected[rows] - seen[:, None]) / radius[..., None]
        return adjust(self.x[rows], offset, weight, rows, most, at)

    def sample(self, y0: Any, n: int, seed: Seed) -> Tensor:
        """n samples for each condition of y0 (q, l): (q, n, d).

        The numbers of a condition depend on its index and the seed, not on the other conditions.
        """
        return self.draw(y0, n, seed)[0]

    def draw(self, y0: Any, n: int, seed: Seed, most: int = COMPONENTS) -> tuple[Tensor, Tensor]:
        """Samples as `sample` gives them, and the row (q, n) that each was drawn around.

        `most` is the largest number of regressions. In many columns BIC takes 1 of them.
        """
        y0, (k, d) = _float64(y0), (self.settings.k, self.x.shape[1])
        out = torch.empty(len(y0), n, d, dtype=torch.float64)
        around = torch.empty(len(y0), n, dtype=torch.int64)
        block = min(n, max(1, _NUMBERS // (NEAR * d)))  # samples at a time
        fitted = COMPONENTS * (self.settings.projection.shape[1] + d + 1)
        size = max(k * max(fitted, min(k, max(block, MEASURED))), block * NEAR * d)
        chunk = max(1, _NUMBERS // size)
        for first in range(0, len(y0), chunk):
            near = self.adjusted(y0[first : first + chunk], most=most)
            part = slice(first, first + len(near.x))
            for at in range(0, n, block):
                own, these = seed.child("from", at) if at else seed, slice(at, min(at + block, n))
                points, own_rows = draw_near(near, these.stop - at, self.settings.spread, own, first)
                out[part, these], around[part, these] = points, near.rows.gather(1, own_rows)
        # A column of one value stays as it is, to the last bit.
        return torch.where((self.x != self.x[0]).any(0), out, self.x[0]), around


def _float64(values: Any) -> Tensor:
    return torch.as_tensor(np.asarray(values), dtype=torch.float64)


def work_bytes(n: int, columns: int) -> int:
    """Memory of choosing the settings of n rows, beside the rows."""
    several = _SEVERAL <= columns <= _WIDE and n >= _ENOUGH
    return (1 << 27) + several * 8 * 2 * n * columns


def _summarised(x: Tensor, y: Tensor, without: Tensor | None = None) -> LocalRows:
    """Rows with distances of a summary of y: what it predicts of x and of its squares, 2d columns.

    The regression does not see the rows `without`.
    """
    view = View.fit_to(y, min(_FEATURES, len(y) // _SHARE))
    learnt = torch.ones(len(y), dtype=torch.bool)
    learnt[[] if without is None else without] = False
    projection = ridge(view, y[learnt], moments(x[learnt]))
    return LocalRows(x, y, LocalSettings(len(x), 0.8, projection, view.n_features))


def _better_summarised(local: LocalRows, likelihood: Tensor) -> LocalRows:
    """The same, or the same rows with a summary of y if rows left out are more likely then."""
    k, other = _choose_k(_summarised(local.x, local.y, _left_out(len(local.x))))
    gain = other - likelihood
    if not gain.mean() > gain.std() / math.sqrt(len(gain)):
        return local
    return _summarised(local.x, local.y).with_(k=k)


def _left_out(n: int) -> Tensor:
    """The rows whose likelihood chooses."""
    return Seed(0).child("k").permutation(n)[:_TRIED]


def _choose_k(local: LocalRows) -> tuple[int, Tensor]:
    """The least k under which rows left out are about most likely, and their log likelihoods.

    Tries neighbourhoods of 50 rows, or twice the columns, and doubles them up to 2,000 rows or until
    the mean log likelihood has fallen twice. Of those within half a standard error of the best, takes
    the smallest: it is the fastest, and sees the least of other conditions.
    """
    n, columns = len(local.x), local.settings.projection.shape[1] + local.x.shape[1]
    k, most = max(_FEWEST, 2 * columns), min(n - 1, _MOST)
    if n <= k:
        return n, torch.empty(0)
    tried, found = _left_out(n), dict[int, Tensor]()
    best = k
    while not found or (max(found) < most and best in list(found)[-2:]):
        k = min(k, most)
        trial, chunk = local.with_(k=k), max(1, _NUMBERS // (k * COMPONENTS * (columns + 1)))
        parts = [
            trial.adjusted(local.y[some], without=some, at=local.x[some]).log_density
            for some in torch.split(tried, chunk)
        ]
        likelihood = torch.cat(parts)
        found[k] = likelihood.clamp(min=float(likelihood.median()) - _SURPRISE)
        best = max(found, key=lambda k: float(found[k].mean()))
        k *= 2
    for k, likelihood in found.items():
        behind = found[best] - likelihood
        if behind.mean() <= behind.std() / (2 * math.sqrt(len(tried))):
            return k, likelihood
    return best, found[best]


def _spread(local: LocalRows) -> float:
    """h by `choose_spread`, from the neighbourhoods of some rows."""
    if local.settings.k < 3:
        return local.settings.spread
    some = Seed(0).child("spread").permutation(len(local.x))[:_CHECKED]
    near = local.adjusted(local.y[some])
    unit = unit_within(near)

    def draw(h: float) -> list[Tensor]:
        return list(draw_near(near, 2 * MEASURED, h, Seed(0))[0] * unit)

    return choose_spread(list(near.x * unit), draw) or local.settings.spread
