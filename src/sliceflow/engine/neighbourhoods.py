"""Local conditions: samples of x given y = y₀ from the rows whose y is near y₀.

The k rows nearest to y₀ get Epanechnikov's weights, wᵢ = 1 − (|yᵢ − y₀|/r)² for the distance r of the
farthest. Distances ignore columns of y that say nothing about x (`relevance`), and of many columns they
see what these predict (`sliceflow.engine.views`). A mixture of K linear
regressions, x = a + B(y − y₀) + noise, is fitted to them by expectation maximisation, with K by BIC.
Every row is moved along the regression of its component to where it would be at y₀:
xᵢ ← xᵢ − B(yᵢ − y₀). A sample is one of these *adjusted* rows, drawn by weight, plus h times a Gaussian
with the covariance of the adjusted rows nearest to it: it is new, and follows their shape. Samples are
then scaled to the covariance that the adjusted rows have within components, because draws spread more.

Linear adjustment of neighbours is due to Beaumont, Zhang and Balding (2002), "Approximate Bayesian
computation in population genetics". A mixture adjusts every mode by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.engine.views import LEARNT, View, per_deviation, predictions, targets

__all__ = [
    "Adjusted",
    "Neighbourhoods",
    "choose_k",
    "choose_spread",
    "projection_of",
    "relevance",
    "work_bytes",
]

COMPONENTS = 4  # the most regressions of a neighbourhood
SPREAD, NEAR = 0.8, 20  # h unless chosen, and the adjusted rows whose covariance a draw has
_ALWAYS, _BY_COLUMN = 0.8, 0.2  # the largest h: in few columns more would only blur
_NEAREST = 0.95  # distance of a draw to its nearest row, over that of a row to its nearest other row,
_REACHED = 0.97  # but no more than this share of what the largest h reaches
_SMALLEST, _LARGEST, _HALVINGS = 0.25, 4.0, 6  # of the range of h
_ITERATIONS, _STARTS, _LLOYD = 12, 3, 4  # of expectation maximisation, and of k-means before it
_LEARNT = 500  # rows of a neighbourhood that these see
_RIDGE = 1e-3  # of the regressions, as a share of the squares of each column
_FEWEST, _MOST = 50, 2_000  # rows of a neighbourhood that `choose_k` tries
_TRIED = 150  # rows whose likelihood chooses k,
_SURPRISE = 20.0  # no less than this below their median: a row that nothing foresees must not decide
_WIDE = 20  # more columns of y are replaced by what they predict,
_SEVERAL, _ENOUGH = (
    4,
    400,
)  # and of several columns of enough rows, if that is better, what is predicted
_FEATURES, _SHARE = 500, 4  # by this many random features, but no more than a share of the rows
_GROWN = 4_000  # rows that the trees of `relevance` see
_CHECKED = 20  # rows whose neighbourhoods choose h
_MEASURED = 48  # the least draws of a condition that measure how far draws spread
_FEW, _MANY = 6, 100_000  # columns and rows beyond which all distances are faster than a tree
_NUMBERS = 1 << 21  # numbers of one array in memory at a time


@dataclass(frozen=True)
class Adjusted:
    """Neighbourhoods of q conditions, moved to them.

    Parameters
    ----------
    x : (q, k, d), adjusted rows
    weight : (q, k), their weights; each row of it sums to 1
    component : (q, k), the regression to which they belong
    rows : (q, k), their numbers
    n_components : (q,), K
    inflation : (q,), √(n/(n − p)) for the p coefficients of regressions on n effective rows, which
        make residuals too small
    likelihood : (q,), log density of the mixture at a point that was asked for; else empty
    """

    x: Tensor
    weight: Tensor
    component: Tensor
    rows: Tensor
    n_components: Tensor
    inflation: Tensor
    likelihood: Tensor


@dataclass(frozen=True)
class Neighbourhoods:
    """Rows x (n, d) with conditions y (n, l), ready to be asked for x given y.

    Parameters
    ----------
    x, y : float64 rows and their conditions, finite
    k : neighbours of a condition; at most n
    projection : (l, m), what y is multiplied with before distances and regressions
    spread : h
    view : what is seen of y, and multiplied instead of y; None is y itself

    Examples
    --------
    x is ±y, with some noise:

    >>> rng = np.random.default_rng(0)
    >>> y = rng.uniform(1, 3, (2000, 1))
    >>> x = rng.choice([-1, 1], (2000, 1)) * y + 0.1 * rng.normal(size=(2000, 1))
    >>> near = Neighbourhoods.of(x, y)
    >>> made = near.sample(np.array([[1.5], [2.5]]), 500, Seed(0))
    >>> made.shape, made.abs().mean(1)[:, 0].round(decimals=1).tolist()
    (torch.Size([2, 500, 1]), [1.5, 2.5])
    """

    x: Tensor
    y: Tensor
    k: int
    projection: Tensor = field(repr=False)
    spread: float = SPREAD
    view: View | None = field(default=None, repr=False)

    @classmethod
    def of(cls, x: Any, y: Any, k: int | None = None) -> Neighbourhoods:
        """Those of arrays or tensors x (n, d) and y (n, l), with h by `choose_spread`.

        None chooses k by `choose_k`, and for 4 to 20 columns of y whether distances are those of
        columns or those of a summary: the summary is taken if held-out rows are more likely then, by
        more than a standard error.
        """
        x, y = _rows(x), _rows(y)
        view = View.of(y)
        near = cls(x, y, min(k or len(x), len(x)), projection_of(x, view(y)), view=view)
        if k is None:
            k, likelihood = _chosen(near)
            near = near.with_(k=k)
            if _SEVERAL <= y.shape[1] <= _WIDE and len(y) >= _ENOUGH:
                near = _summarised(near, likelihood)
        return near.with_(spread=choose_spread(near))

    @classmethod
    def again(
        cls, x: Tensor, y: Tensor, k: int, projection: Tensor, spread: float, plain: bool = False
    ) -> Neighbourhoods:
        """Those that `of` found, from what a file keeps; `plain` has no view."""
        view = None if plain else View.of(y, len(projection) - y.shape[1])
        return cls(x, y, k, projection, spread, view)

    def with_(self, **changes: Any) -> Neighbourhoods:
        """The same rows and search tree with other settings."""
        other = replace(self, **changes)
        other.__dict__.update(search=self.search, _projected=self._projected)
        return other

    @property
    def words(self) -> str:
        """What distances see of y, in words."""
        n, view = self.y.shape[1], self.view
        scores = len(view.scores) if view else 0
        tails = f"; normal scores of {scores} heavy-tailed" if scores else ""
        if view and view.n_features:
            return f"of a summary of {n} columns by {view.n_features} random features{tails}"
        if n > _WIDE:
            return f"of linear predictions by {n} columns{tails}"
        used = int((torch.diagonal(self.projection) > 0).sum())
        return f"of {used} of {n} columns, weighted by relevance{tails}"

    @cached_property
    def _projected(self) -> Tensor:
        return self._seen(self.y)

    def _seen(self, y: Tensor) -> Tensor:
        if self.view is None:
            return y @ self.projection
        parts = torch.split(y, max(1, _NUMBERS // len(self.projection)))
        return torch.cat([self.view(part) @ self.projection for part in parts])

    @cached_property
    def search(self) -> NearestNeighbors:
        """The search among the rows' conditions: exact, by a tree, or by all distances if faster."""
        n, columns = self._projected.shape
        plain = columns > _FEW and n > _MANY
        return NearestNeighbors(algorithm="brute" if plain else "auto").fit(self._projected.numpy())

    @cached_property
    def _plain(self) -> tuple[NearestNeighbors, np.ndarray, Tensor]:
        """The search tree of the distinct conditions in standard deviations, these, and the unit."""
        unit = per_deviation(self.y)
        distinct = torch.unique(self.y * unit, dim=0).numpy()
        return NearestNeighbors().fit(distinct), distinct, unit

    @cached_property
    def reach(self) -> float:
        """The largest distance of a distinct condition to its tenth neighbour (of few, the last)."""
        search, distinct, _ = self._plain
        some = distinct[:: max(1, len(distinct) // 1_000)]
        return float(search.kneighbors(some, min(10, len(distinct)))[0][:, -1].max())

    def distances(self, y0: Any) -> Tensor:
        """(q,), how far the nearest row is, in standard deviations of y; compare with `reach`."""
        search, _, unit = self._plain
        return torch.from_numpy(search.kneighbors((_rows(y0) * unit).numpy(), 1)[0][:, 0])

    def adjusted(
        self, y0: Any, without: Tensor | None = None, most: int = COMPONENTS, at: Tensor | None = None
    ) -> Adjusted:
        """The neighbourhoods of conditions y0 (q, l).

        Parameters
        ----------
        without : (q,), a row that each condition must not use
        most : the largest K
        at : (q, d), points whose log density is wanted
        """
        y0 = self._seen(_rows(y0))
        k = self.k if without is None else min(self.k, len(self.x) - 1)
        distance, rows = map(
            torch.from_numpy,
            self.search.kneighbors(y0.numpy(), k + (without is not None)),
        )
        if without is not None:  # drop this row, or else the farthest
            own = rows == without[:, None]
            own[:, -1] |= ~own.any(1)
            distance, rows = (t[~own].view(len(y0), k) for t in (distance, rows))
        radius = distance[:, -1:] * (1 + 1e-6)
        weight = 1 - (distance / torch.where(radius > 0, radius, 1)).square()
        weight = weight / weight.sum(1, keepdim=True)
        offset = (self._projected[rows] - y0[:, None]) / torch.where(radius > 0, radius, 1)[..., None]
        return _adjusted(self.x[rows], offset, weight, rows, most, at)

    def sample(self, y0: Any, n: int, seed: Seed) -> Tensor:
        """n samples for each condition of y0 (q, l): (q, n, d).

        The numbers of a condition depend on its index and the seed, not on the other conditions.
        """
        return self.draws(y0, n, seed)[0]

    def draws(self, y0: Any, n: int, seed: Seed, most: int = COMPONENTS) -> tuple[Tensor, Tensor]:
        """Samples as `sample` gives them, and the row (q, n) that each was drawn around.

        `most` is the largest K. In many columns BIC takes 1, and trying more only takes time.
        """
        y0, d = _rows(y0), self.x.shape[1]
        out = torch.empty(len(y0), n, d, dtype=torch.float64)
        around = torch.empty(len(y0), n, dtype=torch.int64)
        block = min(n, max(1, _NUMBERS // (NEAR * d)))  # samples at a time
        fitted = COMPONENTS * (self.projection.shape[1] + d + 1)
        size = max(self.k * max(fitted, min(self.k, max(block, _MEASURED))), block * NEAR * d)
        chunk = max(1, _NUMBERS // size)
        for first in range(0, len(y0), chunk):
            some = slice(first, min(first + chunk, len(y0)))
            near = self.adjusted(y0[some], most=most)
            for at in range(0, n, block):
                m, own = min(block, n - at), seed.child("from", at) if at else seed
                picks = drawn_from(near, m, own, first)
                out[some, at : at + m] = drawn(near, m, self.spread, own, first, picks)
                around[some, at : at + m] = near.rows.gather(1, picks[:, :m])
        # A column of one value stays as it is, to the last bit.
        return torch.where((self.x != self.x[0]).any(0), out, self.x[0]), around


def _rows(y0: Any) -> Tensor:
    return torch.as_tensor(np.asarray(y0), dtype=torch.float64)


def _adjusted(
    x: Tensor, offset: Tensor, weight: Tensor, rows: Tensor, most: int, at: Tensor | None
) -> Adjusted:
    """Rows x (q, k, d) at y₀ + offset (q, k, l), moved along the mixture with the best BIC."""
    q, k = weight.shape
    best = torch.full((q,), math.inf, dtype=x.dtype)
    out, component = x.clone(), torch.zeros(q, k, dtype=torch.int64)
    n_components = torch.ones(q, dtype=torch.int64)
    likelihood = torch.zeros(q if at is not None else 0, dtype=x.dtype)
    left = torch.arange(q)
    for n in range(1, most + 1):
        fit = _mixture(x[left], offset[left], weight[left], n, None if at is None else at[left])
        better = fit.bic < best[left]
        chosen, left = better.nonzero()[:, 0], left[better]
        if not len(left):
            break
        best[left], n_components[left] = fit.bic[chosen], n
        own = fit.own[chosen]
        component[left] = own
        slopes = fit.slopes[chosen]
        moved = torch.zeros_like(out[left])
        for c in range(n):
            moved += torch.where((own == c)[..., None], offset[left] @ slopes[:, c], 0)
        out[left] = x[left] - moved
        if at is not None:
            likelihood[left] = fit.likelihood[chosen]
    count = 1 / weight.square().sum(1)
    left_over = torch.maximum(count - n_components * (offset.shape[2] + 1), count / 2)
    inflation = (count / left_over).sqrt()
    return Adjusted(out, weight, component, rows, n_components, inflation, likelihood)


@dataclass(frozen=True)
class _Mixture:
    """BIC (q,), slopes (q, K, l, d), the most likely component of each row (q, k), density at y₀."""

    bic: Tensor
    slopes: Tensor
    own: Tensor
    likelihood: Tensor


def _mixture(x: Tensor, offset: Tensor, weight: Tensor, n: int, at: Tensor | None) -> _Mixture:
    """n weighted linear regressions of x (q, k, d) on the offset (q, k, l), for each condition."""
    d, k = x.shape[2], x.shape[1]
    count = 1 / weight.square().sum(1)  # rows of equal weight that would say as much
    weight = weight * count[:, None]
    mean = (weight[..., None] * x).sum(1, keepdim=True) / count[:, None, None]
    x = x - mean
    z = torch.cat((torch.ones_like(offset[..., :1]), offset, x), 2).transpose(1, 2).contiguous()
    if n == 1:
        share = torch.ones_like(weight)[:, None]
    else:
        some = slice(None, None, -(-k // _LEARNT))  # the rows are sorted by distance
        share = _clusters(x[:, some], weight[:, some], n)
        few, lighter = z[:, :, some].contiguous(), weight[:, some]
        for _ in range(_ITERATIONS):
            fit = _regressions(few, share * lighter[:, None], d)
            share = torch.softmax(fit.log_density(few), 1)
        share = torch.softmax(fit.log_density(z), 1)
    fit = _regressions(z, share * weight[:, None], d)
    log_p = fit.log_density(z)
    n_parameters = n * (d * (offset.shape[2] + 1) + d * (d + 1) / 2 + 1) - 1
    bic = -2 * (weight * torch.logsumexp(log_p, 1)).sum(1) + n_parameters * count.log()
    likelihood = bic.new_empty(0)
    if at is not None:
        there = torch.cat(
            (torch.ones_like(at[:, :1]), torch.zeros_like(offset[:, 0]), at - mean[:, 0]), 1
        )
        likelihood = torch.logsumexp(fit.log_density(there[..., None])[..., 0], 1)
    return _Mixture(bic, fit.slopes[:, :, 1:], log_p.argmax(1), likelihood)


@dataclass(frozen=True)
class _Regressions:
    """n regressions of x on (1, offset), with their slopes (q, n, l + 1, d).

    With z = (1, offset, x), the residuals in units of their noise are `whitening` (q, n, d, f) times z,
    and `constant` (q, n) is the log of a component's share and of the density's factor.
    """

    slopes: Tensor
    whitening: Tensor
    constant: Tensor

    def log_density(self, z: Tensor) -> Tensor:
        """log of share times density, (q, n, k), at the columns of z (q, f, k)."""
        q, n, d, f = self.whitening.shape
        rest = (self.whitening.reshape(q, n * d, f) @ z).view(q, n, d, -1)
        return self.constant[..., None] - 0.5 * rest.square_().sum(2)


def _regressions(z: Tensor, mass: Tensor, d: int) -> _Regressions:
    """Regressions of the last d rows of z (q, f, k) on the others, with the rows' mass (q, n, k)."""
    (q, f, k), n = z.shape, mass.shape[1]
    products = ((mass[:, :, None] * z[:, None]).reshape(q, n * f, k) @ z.transpose(1, 2)).view(
        q, n, f, f
    )
    size, at = products[:, :, 0, 0], f - d
    gram, cross, square = products[:, :, :at, :at], products[:, :, :at, at:], products[:, :, at:, at:]
    penalty = _RIDGE * torch.diagonal(gram, dim1=2, dim2=3) + 1e-9
    penalty[..., 0] = 1e-12
    slopes = torch.linalg.solve(gram + torch.diag_embed(penalty), cross)
    both = slopes.transpose(2, 3) @ cross
    spread = square - both - both.transpose(2, 3) + slopes.transpose(2, 3) @ gram @ slopes
    # One more row, which has the variance of all components, keeps a covariance from collapsing.
    total = size.sum(1)[:, None]
    pooled = torch.diagonal(spread, dim1=2, dim2=3).sum(1, keepdim=True).clamp(min=0)
    floor = 1e-9 * torch.diagonal(square, dim1=2, dim2=3).sum(1, keepdim=True) + 1e-100
    one = ((pooled + floor) / total[..., None]).expand(-1, n, -1)
    covariance = (spread + torch.diag_embed(one)) / (size + 1)[..., None, None]
    root = torch.linalg.cholesky(covariance)
    residual = torch.cat((-slopes.transpose(2, 3), torch.eye(d, dtype=z.dtype).expand(q, n, d, d)), 3)
    whitening = torch.linalg.solve_triangular(root, residual, upper=False)
    constant = ((size + 1) / (total + n)).log() - torch.diagonal(root, dim1=2, dim2=3).log().sum(2)
    return _Regressions(slopes, whitening, constant - 0.5 * d * math.log(2 * math.pi))


def _variance(x: Tensor, weight: Tensor) -> Tensor:
    """Weighted variances (q, d) of the columns."""
    share = (weight / weight.sum(1, keepdim=True))[..., None]
    return (share * (x - (share * x).sum(1, keepdim=True)).square()).sum(1)


def _clusters(x: Tensor, weight: Tensor, n: int) -> Tensor:
    """The clusters (q, n, k) of the rows, as zeros and ones: the best of some starts of k-means."""
    q, k, d = x.shape
    z = x / (_variance(x, weight)[:, None] + 1e-300).sqrt()
    ends = weight.cumsum(1)
    best = torch.full((q,), math.inf, dtype=x.dtype)
    own = torch.zeros(q, k, dtype=torch.int64)
    for start in range(_STARTS):
        u = Seed(0).child("clusters", start).uniform(1, n).expand(q, -1) * ends[:, -1:]
        picked = torch.searchsorted(ends, u.contiguous()).clamp(max=k - 1)
        centre = z.gather(1, picked[..., None].expand(-1, -1, d))
        for _ in range(_LLOYD):
            nearest = torch.cdist(z, centre).argmin(2)
            mass = torch.nn.functional.one_hot(nearest, n).to(x.dtype) * weight[..., None]
            centre = mass.transpose(1, 2) @ z / (mass.sum(1)[..., None] + 1e-9)
        distance, nearest = torch.cdist(z, centre).min(2)
        cost = (weight * distance.square()).sum(1)
        own = torch.where((cost < best)[:, None], nearest, own)
        best = torch.minimum(best, cost)
    return torch.nn.functional.one_hot(own, n).to(x.dtype).transpose(1, 2).contiguous()


def drawn_from(near: Adjusted, n: int, seed: Seed, first: int = 0) -> Tensor:
    """Which of its adjusted rows each point of `drawn` is around: (q, n), or 48 if n is less."""
    q, k, _ = near.x.shape
    ends = near.weight.cumsum(1)
    u = seed.child("row").uniform(q, max(n, _MEASURED), start=first) * ends[:, -1:]
    return torch.searchsorted(ends, u).clamp(max=k - 1)


def drawn(
    near: Adjusted, n: int, h: float, seed: Seed, first: int = 0, picks: Tensor | None = None
) -> Tensor:
    """n new points (q, n, d) along the adjusted rows.

    `first` is the index of the first condition, `picks` the result of `drawn_from` if it is known.
    """
    q, k, d = near.x.shape
    m = max(n, _MEASURED)
    own = drawn_from(near, n, seed, first) if picks is None else picks
    w = seed.child("noise").normal(q, n * NEAR, start=first).view(q, n, NEAR)
    if k == 1:
        return near.x.expand(q, n, d).clone()
    centre, mean = _centred(near)
    # With more draws than rows, find the neighbours of the rows once.
    at = own if m < k else torch.arange(k).expand(q, k)
    around = _nearest(near, centre, at, min(NEAR, k))
    if m >= k:
        around = around.gather(1, own[..., None].expand(-1, -1, around.shape[2]))
    shape = around.shape
    points = centre.gather(1, around.flatten(1)[..., None].expand(-1, -1, d)).view(*shape, d)
    points = points - points.mean(2, keepdim=True)
    flat = points.flatten(1, 2)
    noise_covariance = flat.transpose(1, 2) @ flat / (m * (shape[2] - 1))
    noise = (w[..., None, : shape[2]] @ points[:, :n])[:, :, 0] / math.sqrt(shape[2] - 1)
    chosen = own[:, :n, None].expand(-1, -1, d)
    made = centre.gather(1, chosen) + h * noise
    covariance = (near.weight[..., None] * centre).transpose(1, 2) @ centre
    least = _least_map(covariance + h**2 * noise_covariance, covariance)
    return mean.gather(1, chosen) + near.inflation[:, None, None] * (made @ least)


def _centred(near: Adjusted) -> tuple[Tensor, Tensor]:
    """The adjusted rows minus the mean of their component, and these means: twice (q, k, d)."""
    n = int(near.n_components.max())
    mass = torch.nn.functional.one_hot(near.component, n).to(near.x.dtype)
    weighted = mass * near.weight[..., None]
    means = weighted.transpose(1, 2) @ near.x / (weighted.sum(1)[..., None] + 1e-300)
    mean = mass @ means
    return near.x - mean, mean


def _unit(near: Adjusted, centre: Tensor) -> Tensor:
    """1 over the standard deviation within components of each column: (q, 1, d)."""
    scale = (near.weight[..., None] * centre.square()).sum(1, keepdim=True).sqrt()
    return 1 / torch.where(scale > 0, scale, 1)


def _nearest(near: Adjusted, centre: Tensor, at: Tensor, n: int) -> Tensor:
    """The n nearest adjusted rows (q, m, n) of the same component, for the rows `at` (q, m).

    A component with fewer rows lends those of others, moved to its mean.
    """
    z = centre * _unit(near, centre)
    own = z.gather(1, at[..., None].expand(-1, -1, z.shape[2]))
    distance = torch.cdist(own, z)
    other = near.component.gather(1, at)[..., None] != near.component[:, None]
    return torch.topk(distance + 1e6 * other, n, dim=2, largest=False).indices


def _least_map(e: Tensor, c: Tensor) -> Tensor:
    """E⁻¹ᐟ²(E¹ᐟ²CE¹ᐟ²)¹ᐟ²E⁻¹ᐟ²: of the linear maps from covariance E to C, that which moves least."""
    values, vectors = torch.linalg.eigh(e)
    inside = values > 1e-10 * values[:, -1:]
    root = torch.where(inside, values, 0).clamp(min=0).sqrt()
    back = torch.where(inside, 1 / torch.where(inside, root, 1), 0)
    half = vectors * root[:, None]
    squares, turned = torch.linalg.eigh(half.transpose(1, 2) @ c @ half)
    half = (vectors * back[:, None]) @ turned
    out: Tensor = (half * squares.clamp(min=0).sqrt()[:, None]) @ half.transpose(1, 2)
    return out


def projection_of(x: Tensor, y: Tensor) -> Tensor:
    """What y (n, l) is multiplied with: its `relevance`, or for many columns what they predict.

    More than 20 columns are replaced by their linear predictions of the columns of x and of their
    squares, in standard deviations of these: 2d columns.
    """
    if y.shape[1] <= _WIDE:
        return torch.diag(relevance(x, y))
    unit = torch.where((y != y[0]).any(0), per_deviation(y), 0)
    return unit[:, None] * predictions(x, y * unit)


def work_bytes(n: int, columns: int) -> int:
    """Memory of choosing the distances between n rows of y, beside the rows."""
    several = _SEVERAL <= columns <= _WIDE and n >= _ENOUGH
    return (1 << 26) + several * 8 * 4 * min(n, LEARNT) * (columns + min(_FEATURES, n // _SHARE))


def _summarised(near: Neighbourhoods, likelihood: Tensor) -> Neighbourhoods:
    """`near`, or the same rows with distances of a summary, if held-out rows are more likely then."""
    x, y = near.x, near.y
    view = View.of(y, min(_FEATURES, len(y) // _SHARE))
    learnt = torch.ones(len(y), dtype=torch.bool)
    learnt[_tried(len(y))] = False
    found = Neighbourhoods(x, y, len(x), predictions(x[learnt], y[learnt], view), view=view)
    k, other = _chosen(found)
    gain = other - likelihood
    if not gain.mean() > gain.std() / math.sqrt(len(gain)):
        return near
    return Neighbourhoods(x, y, k, predictions(x, y, view), view=view)


def relevance(x: Tensor, y: Tensor) -> Tensor:
    """(l,) what a unit of each column of y counts: √(l·its importance), over its standard deviation.

    Importances are those of randomised trees, which predict the columns of x and their squares. What
    a shuffled column reaches is subtracted, so columns that do not matter count nothing. Those of one
    value count nothing either. If no column matters, all count alike.

    Examples
    --------
    >>> y = Seed(0).normal(500, 2)
    >>> relevance(y[:, :1].abs(), y).round(decimals=1)
    tensor([1.4000, 0.0000], dtype=torch.float64)
    """
    varies = (y != y[0]).any(0)
    unit = torch.where(varies, per_deviation(y), 0)
    if len(y) < 10 or int(varies.sum()) < 2:
        return unit if bool(varies.any()) else torch.ones_like(unit)
    some = Seed(0).child("some").permutation(len(y))[:_GROWN]
    columns = (y * unit)[some][:, varies]
    shuffled = columns[Seed(0).child("shuffled").permutation(len(columns))]
    trees = ExtraTreesRegressor(50, min_samples_leaf=5, random_state=0)
    trees.fit(torch.cat((columns, shuffled), 1).numpy(), targets(x[some]).numpy())
    found = torch.from_numpy(trees.feature_importances_)
    own, chance = found[: columns.shape[1]], found[columns.shape[1] :]
    own = (own - chance.max()).clamp(min=0)
    if own.sum() == 0:
        return unit
    out = unit.clone()
    out[varies] *= (len(own) * own / own.sum()).sqrt()
    return out


def choose_k(near: Neighbourhoods, most: int = _MOST) -> int:
    """The least k under which rows that it does not use are about most likely, given their conditions.

    Tries neighbourhoods of 50 rows, or twice the columns, and doubles them up to `most` rows or until
    the mean log likelihood has fallen twice. Of those within half a standard error of the best, takes
    the smallest: it is the fastest, and sees the least of other conditions.
    """
    return _chosen(near, most)[0]


def _tried(n: int) -> Tensor:
    """The rows whose likelihood chooses."""
    return Seed(0).child("k").permutation(n)[:_TRIED]


def _chosen(near: Neighbourhoods, most: int = _MOST) -> tuple[int, Tensor]:
    """k by `choose_k`, and the log likelihoods under it of the rows that were tried."""
    n, columns = near.x.shape[0], near.projection.shape[1] + near.x.shape[1]
    k = max(_FEWEST, 2 * columns)
    if n <= k:
        return n, torch.empty(0)
    tried = _tried(n)
    found: dict[int, Tensor] = {}
    best = k
    while not found or max(found) < min(n - 1, most):
        k = min(k, n - 1, most)
        trial = near.with_(k=k)
        chunk = max(1, _NUMBERS // (k * COMPONENTS * (columns + 1)))
        parts = [
            trial.adjusted(near.y[some], without=some, at=near.x[some]).likelihood
            for some in torch.split(tried, chunk)
        ]
        likelihood = torch.cat(parts)
        found[k] = likelihood.clamp(min=float(likelihood.median()) - _SURPRISE)
        best = max(found, key=lambda k: float(found[k].mean()))
        if best not in list(found)[-2:]:
            break
        k *= 2
    for k, likelihood in found.items():
        behind = found[best] - likelihood
        if behind.mean() <= behind.std() / (2 * math.sqrt(len(tried))):
            return k, likelihood
    return best, found[best]


def choose_spread(near: Neighbourhoods) -> float:
    """The h with which draws are about as far from adjusted rows as these are from each other.

    Distances to the nearest are compared by their geometric means. Medians would jump where one
    component is far denser than another.
    """
    if near.k < 3:
        return SPREAD
    some = Seed(0).child("spread").permutation(len(near.x))[:_CHECKED]
    found = near.adjusted(near.y[some])
    unit = _unit(found, _centred(found)[0])
    x = found.x * unit
    step = max(1, near.k // _MEASURED)
    apart = torch.cdist(x[:, ::step].contiguous(), x).topk(2, dim=2, largest=False).values[..., 1]
    distinct = apart.median(1).values > 0
    if not bool(distinct.any()):  # most rows are there twice
        return SPREAD

    def ratio(h: float) -> float:
        made = drawn(found, 2 * _MEASURED, h, Seed(0)) * unit
        nearest = torch.cdist(made, x).amin(2)
        return float((_typical(nearest) / _typical(apart))[distinct].median())

    low, high = math.log(_SMALLEST), math.log(_LARGEST)
    aim = min(_NEAREST, _REACHED * ratio(_LARGEST))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if ratio(math.exp(middle)) < aim else (low, middle)
    return min(math.exp(high), _ALWAYS + _BY_COLUMN * x.shape[2])


def _typical(distance: Tensor) -> Tensor:
    """Geometric means along the last axis, of what is not zero."""
    there = distance > 0
    logs = torch.where(there, distance, 1).log()
    return (logs.sum(-1) / there.sum(-1).clamp(min=1)).exp()
