"""Local conditions: samples of x given y = y₀ from the rows whose y is near y₀.

The k nearest rows, by columns of y or what they predict (`views`), get Epanechnikov's weights, move to
y₀ along linear regressions, and samples are drawn along them (`draws`).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.fields import Array, Between, Count
from sliceflow.neighbours.draws import (
    COMPONENTS,
    MEASURED,
    NEAR,
    Adjusted,
    adjust,
    centred,
    draw_near,
)
from sliceflow.neighbours.search import (
    build_search,
    choose_spread,
    find_nearest,
    kernel_weights,
)
from sliceflow.neighbours.views import (
    View,
    inverse_deviation,
    moments,
    project,
    relevance,
    ridge,
)

_FEWEST = 50
_MOST = 2_000  # rows of a neighbourhood that are tried
_TRIED = 150  # rows whose likelihood chooses k,
_SURPRISE = 20.0  # no less than this below their median: a row that nothing foresees must not decide
_SEVERAL = 4
_WIDE = 20  # columns of y from which a summary is tried, and beyond which it is taken,
_ENOUGH = 400
_FEATURES = 500
_SHARE = 4  # with enough rows; its random features, fewer than a share
_CHECKED = 20  # rows whose neighbourhoods choose h
_LARGEST = 1e50  # of a number in a model: its square and the square of that are finite
_NUMBERS = 1 << 21  # numbers of one array in memory at a time


@dataclass(frozen=True)
class LocalSettings:
    """What a fit finds out about rows, and a file keeps beside them."""

    k: Count  # neighbours of a condition
    spread: Annotated[
        float, Between(0, 100)
    ]  # h, how far samples go along their neighbours
    # (l + n_features, m), of what is seen of y
    projection: Annotated[Tensor, Array("f m", torch.float64)] = field(repr=False)
    n_features: Count = 0  # random features that are seen of y beside its l columns


@dataclass(frozen=True)
class LocalRows:
    """Rows x (n, d) with conditions y (n, l), float64 and finite, ready to be asked for x given y."""

    x: Tensor
    y: Tensor
    settings: LocalSettings

    @classmethod
    def fit_to(cls, x: Any, y: Any, k: int | None = None) -> LocalRows:
        """The rows with settings found from them: k, and a summary of 4 to 20 columns of y, by likelihood."""
        x = _float64(x)
        y = _float64(y)
        summarised = y.shape[1] > _WIDE
        local = _summarised(x, y) if summarised else _by_relevance(x, y)
        if k is None:
            k, likelihood = _choose_k(local)
            if not summarised and y.shape[1] >= _SEVERAL and len(y) >= _ENOUGH:
                tried = Seed(0).child("k").permutation(len(x))[:_TRIED]
                other_k, other = _choose_k(_summarised(x, y, tried))
                gain = other - likelihood
                if gain.mean() > gain.std() / math.sqrt(len(gain)):
                    local = _summarised(x, y)
                    k = other_k
        local = local.with_(k=min(k, len(x)))
        return local.with_(spread=_choose_spread(local))

    def with_(self, **changes: Any) -> LocalRows:
        """The same rows and search with another k or spread."""
        other = replace(self, settings=replace(self.settings, **changes))
        other.__dict__.update(_view=self._view, _seen=self._seen, _search=self._search)
        return other

    def check(self) -> None:
        """Raise a ValueError if samples might fail: damaged rows or settings."""
        n, columns = self.y.shape
        own = self.settings
        width, m = self.settings.projection.shape
        fits = 1 <= own.k <= n and 0 <= own.n_features <= _FEATURES and m > 0
        if not fits or width != columns + own.n_features:
            raise ValueError(
                f"local settings do not fit {n} rows with {columns} columns of y: {own}"
            )
        if not all(
            bool((t.abs() < _LARGEST).all()) for t in (self.x, self.y, self._seen)
        ):
            raise ValueError(
                f"local has numbers beyond {_LARGEST:.0e}, or that are none"
            )

    @property
    def description(self) -> str:
        """What distances see of y, in words."""
        n = self.y.shape[1]
        scores = len(self._view.scores)
        features = self.settings.n_features
        tails = f"; normal scores of {scores} heavy-tailed" if scores else ""
        if features:
            return f"of a summary of {n} columns by {features} random features{tails}"
        used = int((torch.diagonal(self.settings.projection) > 0).sum())
        return f"of {used} of {n} columns, weighted by relevance{tails}"

    @cached_property
    def _view(self) -> View:
        return View.fit_to(self.y, self.settings.n_features)

    @cached_property
    def _seen(self) -> Tensor:
        return project(self._view, self.y, self.settings.projection)

    @cached_property
    def _search(self) -> NearestNeighbors:
        return build_search(self._seen)

    @cached_property
    def _reach(self) -> tuple[NearestNeighbors, Tensor, float]:
        """A search of distinct conditions, in which unit, and the largest distance to the tenth neighbour."""
        unit = inverse_deviation(self.y)
        distinct = torch.unique(self.y * unit, dim=0)
        search = build_search(distinct)
        some = distinct[:: max(1, len(distinct) // 1_000)]
        return (
            search,
            unit,
            float(find_nearest(search, some, min(10, len(distinct)))[0].max()),
        )

    def warn_of_far(
        self, y0: Any, name: str, stacklevel: int, numbers: Tensor | None = None
    ) -> None:
        """Warn of a condition that is farther from all rows than rows are from each other; `name` is y's."""
        search, unit, reach = self._reach
        distance = find_nearest(search, _float64(y0) * unit, 1)[0][:, 0]
        i = int(distance.argmax())
        if distance[i] > reach:
            which = f"{name}[{i if numbers is None else int(numbers[i])}]"
            far = f"{float(distance[i]):.3g} standard deviations of {name} from the nearest row"
            usual = f"where rows have ten neighbours within {reach:.3g}: its samples are extrapolated"
            warnings.warn(f"{which} is {far}, {usual}", stacklevel=stacklevel + 1)

    def adjusted(
        self,
        y0: Any,
        without: Tensor | None = None,
        most: int = COMPONENTS,
        at: Tensor | None = None,
    ) -> Adjusted:
        """Neighbourhoods of y0 (q, l) without a row each, moved there, and log densities `at` points."""
        seen = project(self._view, _float64(y0), self.settings.projection)
        k = min(self.settings.k, len(self.x) - (without is not None))
        distance, rows = find_nearest(self._search, seen, k, without)
        weight, radius = kernel_weights(distance)
        offset = (self._seen[rows] - seen[:, None]) / radius[..., None]
        return adjust(self.x[rows], offset, weight, rows, most, at)

    def sample_each(self, y0: Tensor, seed: Seed) -> Tensor:
        """One sample (q, d) for each condition of y0; equal ones share a neighbourhood."""
        distinct, own, counts = torch.unique(
            y0, dim=0, return_inverse=True, return_counts=True
        )
        order = torch.argsort(own, stable=True)
        first = torch.cumsum(counts, 0) - counts
        out = torch.empty(len(y0), self.x.shape[1], dtype=torch.float64)
        for n in torch.unique(
            counts
        ).tolist():  # conditions that are there equally often
            some = torch.nonzero(counts == n)[:, 0]
            rows = order[(first[some][:, None] + torch.arange(n)).flatten()]
            out[rows] = self.draw(distinct[some], n, seed.child(n))[0].flatten(0, 1)
        return out

    def draw(
        self, y0: Any, n: int, seed: Seed, most: int = COMPONENTS
    ) -> tuple[Tensor, Tensor]:
        """n samples for each condition of y0, (q, n, d), and the row (q, n) around which each is drawn.

        A condition's samples follow from its index and the seed, not from the others. Rows are moved by
        at most `most` regressions.
        """
        y0 = _float64(y0)
        k = self.settings.k
        d = self.x.shape[1]
        out = torch.empty(len(y0), n, d, dtype=torch.float64)
        around = torch.empty(len(y0), n, dtype=torch.int64)
        block = min(n, max(1, _NUMBERS // (NEAR * d)))  # samples at a time
        fitted = COMPONENTS * (self._seen.shape[1] + d + 1)
        size = max(k * max(fitted, min(k, max(block, MEASURED))), block * NEAR * d)
        chunk = max(1, _NUMBERS // size)
        for first in range(0, len(y0), chunk):
            near = self.adjusted(y0[first : first + chunk], most=most)
            for at in range(0, n, block):
                part = slice(first, first + chunk), slice(at, min(at + block, n))
                own = seed.child("from", at) if at else seed
                out[part], picked = draw_near(
                    near, part[1].stop - at, self.settings.spread, own, first
                )
                around[part] = near.rows.gather(1, picked)
        # A column of one value stays as it is, to the last bit.
        return torch.where((self.x != self.x[0]).any(0), out, self.x[0]), around


def _float64(values: Any) -> Tensor:
    return torch.as_tensor(np.asarray(values), dtype=torch.float64)


def _by_relevance(x: Tensor, y: Tensor) -> LocalRows:
    """Rows with distances of the columns of y, weighted by relevance."""
    projection = torch.diag(relevance(x, View.fit_to(y)(y)))
    return LocalRows(x, y, LocalSettings(len(x), 0.8, projection))


def _summarised(x: Tensor, y: Tensor, without: Tensor | None = None) -> LocalRows:
    """Rows with distances of a summary of y, whose regression does not see the rows `without`."""
    view = View.fit_to(y, min(_FEATURES, len(y) // _SHARE))
    learnt = torch.ones(len(y)) > 0
    if without is not None:
        learnt[without] = False
    projection = ridge(view, y[learnt], moments(x[learnt]))
    return LocalRows(x, y, LocalSettings(len(x), 0.8, projection, view.n_features))


def _choose_k(local: LocalRows) -> tuple[int, Tensor]:
    """The least k under which rows left out are about most likely, and their log likelihoods.

    k doubles until the mean has fallen twice. About: within half a standard error of the best.
    """
    n = len(local.x)
    columns = local._seen.shape[1] + local.x.shape[1]
    k = max(_FEWEST, 2 * columns)
    most = min(n - 1, _MOST)
    tried = Seed(0).child("k").permutation(n)[:_TRIED]
    if n <= k:
        return n, torch.empty(0)
    best = k
    found = dict[int, Tensor]()
    while not found or (max(found) < most and best in list(found)[-2:]):
        k = min(k, most)
        trial, chunk = (
            local.with_(k=k),
            max(1, _NUMBERS // (k * COMPONENTS * (columns + 1))),
        )
        parts = torch.split(tried, chunk)
        near = (
            trial.adjusted(local.y[own], without=own, at=local.x[own]) for own in parts
        )
        likelihood = torch.cat([part.log_density for part in near])
        found[k] = likelihood.clamp(min=float(likelihood.median()) - _SURPRISE)
        best = max(found, key=lambda k: float(found[k].mean()))
        k *= 2
    behind = {k: found[best] - likelihood for k, likelihood in found.items()}
    k = next(
        k
        for k, b in behind.items()
        if b.mean() <= b.std() / (2 * math.sqrt(len(tried)))
    )
    return k, found[k]


def _choose_spread(local: LocalRows) -> float:
    """H by `choose_spread`, from the neighbourhoods of some rows."""
    some = Seed(0).child("spread").permutation(len(local.x))[:_CHECKED]
    near = local.adjusted(local.y[some])
    unit = centred(near)[2]

    def draw(h: float) -> list[Tensor]:
        return list(draw_near(near, 2 * MEASURED, h, Seed(0))[0] * unit)

    enough = local.settings.k >= 3
    return (
        choose_spread(list(near.x * unit), draw) if enough else 0.0
    ) or local.settings.spread
