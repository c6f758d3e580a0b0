"""Draws near a condition y₀: rows moved there along linear regressions, and Gaussians along them.

A mixture of K regressions, x = a + B(y − y₀) + noise, is fitted by expectation maximisation, with K by
BIC. Every row moves along that of its component: xᵢ − B(yᵢ − y₀) (Beaumont, Zhang and Balding, 2002).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.neighbours.search import pick

COMPONENTS = 4  # the most regressions of a neighbourhood
_ITERATIONS = 12
_STARTS = 3
_LLOYD = 4  # of expectation maximisation, and of k-means before it
_LEARNT = 500  # rows of a neighbourhood that these see
_RIDGE = 1e-3  # of the regressions, as a share of the squares of each column
NEAR = 20  # adjusted rows whose covariance a draw has
MEASURED = 48  # the least draws of a condition that measure how far draws spread


@dataclass(frozen=True)
class Adjusted:
    """Neighbourhoods of q conditions, moved to them."""

    x: Tensor  # (q, k, d), adjusted rows
    weight: Tensor  # (q, k); those of a condition sum to 1
    component: Tensor  # (q, k), the regressions to which rows belong
    rows: Tensor  # (q, k), their numbers
    inflation: Tensor  # (q,), √(n/(n − p)) for p coefficients on n effective rows
    log_density: (
        Tensor  # (q,), of the mixture at a point that was asked for; else empty
    )


def adjust(
    x: Tensor,
    offset: Tensor,
    weight: Tensor,
    rows: Tensor,
    most: int,
    at: Tensor | None = None,
) -> Adjusted:
    """Rows x (q, k, d) at y₀ + offset (q, k, l), moved along the mixture of up to `most` with the best BIC."""
    q, k = weight.shape
    out = x.clone()
    best = torch.full((q,), math.inf, dtype=x.dtype)
    component = torch.zeros(q, k, dtype=torch.int64)
    left = torch.arange(q)
    log_density = torch.zeros(q if at is not None else 0, dtype=x.dtype)
    for n in range(1, most + 1):
        mix, bic, own = _fit_mixture(x[left], offset[left], weight[left], n)
        better = bic < best[left]
        if not bool(better.any()):
            break
        if at is not None:
            there = _joined(
                at[left, None] - mix.mean, torch.zeros_like(offset[left, :1])
            )
            log_density[left[better]] = torch.logsumexp(
                mix.log_density(there)[better, :, 0], 1
            )
        left = left[better]
        own = own[better]
        slopes = mix.slopes[better]
        best[left] = bic[better]
        component[left] = own
        moves = [
            (own == c)[..., None] * (offset[left] @ slopes[:, c, 1:]) for c in range(n)
        ]
        out[left] = x[left] - sum(moves)
    count = 1 / weight.square().sum(1)
    coefficients = (component.amax(1) + 1) * (offset.shape[2] + 1)
    inflation = (count / torch.maximum(count - coefficients, count / 2)).sqrt()
    return Adjusted(out, weight, component, rows, inflation, log_density)


@dataclass(frozen=True)
class _Mixture:
    """n regressions of x − mean (q, 1, d) on (1, offset), with their slopes (q, n, l + 1, d).

    `whitening` (q, n, d, f) times z = (1, offset, x − mean) are residuals in units of their noise.
    `constant` (q, n) is the log of a component's share and of the density's factor.
    """

    mean: Tensor
    slopes: Tensor
    whitening: Tensor
    constant: Tensor

    def log_density(self, z: Tensor) -> Tensor:
        """Log of share times density, (q, n, k), at the columns of z (q, f, k)."""
        q, n, d, f = self.whitening.shape
        rest = (self.whitening.reshape(q, n * d, f) @ z).view(q, n, d, -1)
        return self.constant[..., None] - 0.5 * rest.square_().sum(2)


def _joined(x: Tensor, offset: Tensor) -> Tensor:
    return torch.cat((torch.ones_like(offset[..., :1]), offset, x), 2).mT.contiguous()


def _fit_mixture(
    x: Tensor, offset: Tensor, weight: Tensor, n: int
) -> tuple[_Mixture, Tensor, Tensor]:
    """n regressions of x (q, k, d) on the offset (q, k, l), their BIC, and rows' components (q, k)."""
    k, d = x.shape[1:]
    count = 1 / weight.square().sum(1)  # rows of equal weight that would say as much
    weight = weight * count[:, None]
    mean = (weight[..., None] * x).sum(1, keepdim=True) / count[:, None, None]
    z = _joined(x - mean, offset)
    share = torch.ones_like(weight)[:, None]
    if n > 1:
        some = slice(None, None, -(-k // _LEARNT))  # the rows are sorted by distance
        few = z[:, :, some].contiguous()
        lighter = weight[:, some]
        share = _clusters((x - mean)[:, some], lighter, n)
        for _ in range(_ITERATIONS):
            mix = _regressions(few, share * lighter[:, None], mean)
            share = torch.softmax(mix.log_density(few), 1)
        share = torch.softmax(mix.log_density(z), 1)
    mix = _regressions(z, share * weight[:, None], mean)
    n_parameters = n * (d * (offset.shape[2] + 1) + d * (d + 1) / 2 + 1) - 1
    log_p = mix.log_density(z)
    likelihood = (weight * torch.logsumexp(log_p, 1)).sum(1)
    return mix, n_parameters * count.log() - 2 * likelihood, log_p.argmax(1)


def _regressions(z: Tensor, mass: Tensor, mean: Tensor) -> _Mixture:
    """Regressions of the last d rows of z (q, f, k) on the others, with the rows' mass (q, n, k)."""
    q, f, k = z.shape
    n = mass.shape[1]
    d = mean.shape[2]
    products = ((mass[:, :, None] * z[:, None]).reshape(q, n * f, k) @ z.mT).view(
        q, n, f, f
    )
    size = products[:, :, 0, 0]
    at = f - d
    gram = products[:, :, :at, :at]
    cross = products[:, :, :at, at:]
    square = products[:, :, at:, at:]
    penalty = _RIDGE * torch.diagonal(gram, dim1=2, dim2=3) + 1e-9
    penalty[..., 0] = 1e-12
    slopes = torch.linalg.solve(gram + torch.diag_embed(penalty), cross)
    both = slopes.mT @ cross
    spread = square - both - both.mT + slopes.mT @ gram @ slopes
    # One more row, which has the variance of all components, keeps a covariance from collapsing.
    total = size.sum(1)[:, None]
    pooled = torch.diagonal(spread, dim1=2, dim2=3).sum(1, keepdim=True).clamp(min=0)
    floor = 1e-9 * torch.diagonal(square, dim1=2, dim2=3).sum(1, keepdim=True) + 1e-100
    one = ((pooled + floor) / total[..., None]).expand(-1, n, -1)
    root = torch.linalg.cholesky(
        (spread + torch.diag_embed(one)) / (size + 1)[..., None, None]
    )
    residual = torch.cat(
        (-slopes.mT, torch.eye(d, dtype=z.dtype).expand(q, n, d, d)), 3
    )
    whitening = torch.linalg.solve_triangular(root, residual, upper=False)
    constant = ((size + 1) / (total + n)).log() - torch.diagonal(
        root, dim1=2, dim2=3
    ).log().sum(2)
    return _Mixture(mean, slopes, whitening, constant - 0.5 * d * math.log(2 * math.pi))


def _clusters(x: Tensor, weight: Tensor, n: int) -> Tensor:
    """Clusters (q, n, k) of rows, as zeros and ones: the best of some starts of k-means."""
    q, k, d = x.shape
    share = (weight / weight.sum(1, keepdim=True))[..., None]
    x = x - (share * x).sum(1, keepdim=True)
    z = x / ((share * x.square()).sum(1, keepdim=True) + 1e-300).sqrt()
    best = x.new_full((q,), math.inf)
    own = torch.zeros(q, k, dtype=torch.int64)
    for start in range(_STARTS):
        u = Seed(0).child("clusters", start).uniform(1, n).expand(q, -1).contiguous()
        centre = z.gather(1, pick(weight, u)[..., None].expand(-1, -1, d))
        for _ in range(_LLOYD):
            nearest = torch.cdist(z, centre).argmin(2)
            mass = (
                torch.nn.functional.one_hot(nearest, n).to(x.dtype) * weight[..., None]
            )
            centre = mass.mT @ z / (mass.sum(1)[..., None] + 1e-9)
        distance, nearest = torch.cdist(z, centre).min(2)
        cost = (weight * distance.square()).sum(1)
        own = torch.where((cost < best)[:, None], nearest, own)
        best = torch.minimum(best, cost)
    return torch.nn.functional.one_hot(own, n).to(x.dtype).mT.contiguous()


def noise_along(around: Tensor, w: Tensor) -> Tensor:
    """Noise (…, t, d) with the covariance of points (…, k, d), by standard normal w (…, t, k)."""
    return (
        w
        @ (around - around.mean(-2, keepdim=True))
        / math.sqrt(max(1, around.shape[-2] - 1))
    )


def transport_map(e: Tensor, c: Tensor) -> Tensor:
    """E⁻¹ᐟ²(E¹ᐟ²CE¹ᐟ²)¹ᐟ²E⁻¹ᐟ², which moves least from covariance E to C; 1 where E has no spread."""
    values, vectors = torch.linalg.eigh(e)
    inside = values > 1e-10 * values[..., -1:]
    root = torch.where(inside, values, 0).clamp(min=0).sqrt()
    inverse = torch.where(inside, 1 / torch.where(inside, root, 1), 0)
    half = vectors * root[..., None, :]
    squares, turned = torch.linalg.eigh(half.mT @ c @ half)
    back = (vectors * inverse[..., None, :]) @ turned
    outside = vectors * (~inside)[..., None, :]
    out: Tensor = (
        back * squares.clamp(min=0).sqrt()[..., None, :]
    ) @ back.mT + outside @ vectors.mT
    return out


def draw_near(
    near: Adjusted, n: int, h: float, seed: Seed, first: int = 0
) -> tuple[Tensor, Tensor]:
    """n new points (q, n, d) along the adjusted rows, and the one (q, n) that each is drawn around.

    A point is a row, drawn by weight, plus h times a Gaussian of the rows nearest to it, scaled to the
    covariance that rows have within components. `first` is the index of the first condition.
    """
    q, k, d = near.x.shape
    m = max(n, MEASURED)
    own = pick(near.weight, seed.child("row").uniform(q, m, start=first))
    if k == 1:
        return near.x.expand(q, n, d).clone(), own[:, :n]
    centre, mean, unit = centred(near)
    # With more draws than rows, find the neighbours of the rows once.
    at = own if m < k else torch.arange(k).expand(q, k)
    other = near.component.gather(1, at)[..., None] != near.component[:, None]
    # A component of few rows borrows those of others, moved to its mean.
    distance = torch.cdist(_rows_at(centre * unit, at), centre * unit) + 1e6 * other
    around = torch.topk(distance, min(NEAR, k), dim=2, largest=False).indices
    around = around if m < k else _rows_at(around, own)
    points = _rows_at(centre, around.flatten(1)).view(*around.shape, d)
    w = seed.child("noise").normal(q, n * NEAR, start=first).view(q, n, 1, NEAR)
    noise = noise_along(points[:, :n], w[..., : points.shape[2]])[:, :, 0]
    flat = (points - points.mean(2, keepdim=True)).flatten(1, 2)
    extra = flat.mT @ flat / (m * (points.shape[2] - 1))  # the covariance of the noise
    covariance = (near.weight[..., None] * centre).mT @ centre
    own = own[:, :n]
    scaling = near.inflation[:, None, None] * transport_map(
        covariance + h**2 * extra, covariance
    )
    return _rows_at(mean, own) + (_rows_at(centre, own) + h * noise) @ scaling, own


def centred(near: Adjusted) -> tuple[Tensor, Tensor, Tensor]:
    """Adjusted rows minus the means of their components, the means, and 1 over deviations (q, 1, d)."""
    mass = torch.nn.functional.one_hot(
        near.component, int(near.component.max()) + 1
    ).to(near.x.dtype)
    weighted = mass * near.weight[..., None]
    mean = mass @ (weighted.mT @ near.x / (weighted.sum(1)[..., None] + 1e-300))
    centre = near.x - mean
    scale = (near.weight[..., None] * centre.square()).sum(1, keepdim=True).sqrt()
    return centre, mean, 1 / torch.where(scale > 0, scale, 1)


def _rows_at(x: Tensor, at: Tensor) -> Tensor:
    """Rows (q, m, d) of x (q, k, d) at the numbers (q, m)."""
    return x.gather(1, at[..., None].expand(-1, -1, x.shape[2]))
