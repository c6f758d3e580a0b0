"""The flow in the other direction, from data to noise: its transport and its frames.

The particles are the data, and the target is N(0, I). Its projections are N(0, 1) along
every direction and known exactly, so a step fits T = Φ⁻¹ ∘ F to the particles alone.

The directions follow two papers, which flow from data to noise as well:

    V. Laparra, G. Camps-Valls, J. Malo: Iterative Gaussianization: from ICA to Random
    Rotations. IEEE Transactions on Neural Networks, 2011.

    B. Dai, U. Seljak: Sliced Iterative Normalizing Flows. ICML 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from sliceflow.caches import cached
from sliceflow.engine.batches import WHOLE_BATCH, Batch
from sliceflow.engine.frames import DenseFrame
from sliceflow.engine.random import Seed
from sliceflow.engine.rotations import rotation
from sliceflow.engine.smooth_maps import SmoothMaps
from sliceflow.engine.transports import TransportSolution

# The largest slope at and beyond the outermost knots, of standardized values. There
# are no data beyond to estimate it, and slopes above 1 would grow exponentially over
# the steps: a held-out row a little outside would end at 1e10 (measured on 118 rows of
# 13 columns).
MAX_TAIL_SLOPE = 1.0
# Cells between two knots, to which the particles are counted: the work of a fit does
# then not depend on their number. Slopes are linear between knots, so few are enough.
_CELLS_PER_INTERVAL = 4
# The least distance of two knots, in standard deviations. It bounds how sharp an edge
# of a distribution can get in one step.
_MIN_KNOT_DISTANCE = 0.02
# The most that a logarithm of a slope changes in one iteration of Newton's method.
_MAX_NEWTON_STEP = 2.0
# Damping of Newton's method, as by Levenberg and Marquardt: at first, and the factors
# after a step that helped and after one that did not.
_FIRST_DAMPING = 1e-3
_DAMPING_DOWN = 0.2
_DAMPING_UP = 20.0
_LEAST_DAMPING = 1e-6
# Up to this many rows are compared with a normal distribution to choose directions.
_MAX_COMPARED = 2_000
# Bytes of what all fits with the same number of knots, or of particles, have in common.
_CACHE_BYTES = 1 << 20
# Iterations of the independent component analysis: it need not converge, because it
# is one candidate of several.
_ICA_ITERATIONS = 10


@dataclass(frozen=True)
class GaussianizingTransport:
    """Solves for smooth maps of particles to N(0, 1) by penalized maximum likelihood.

    With η = log T′ at the knots, linear in between, a map maximizes

        Σᵢ (log φ(T(zᵢ)) + log T′(zᵢ)) − penalty/2 · Σₖ (ηₖ₊₁ − ηₖ)²/Δ,

    where Δ is the mean distance of knots if z is normal. The penalty is 0 for straight
    lines, so few data, or a strong penalty, fit a normal distribution. Therefore noise
    moves next to nothing: n data of N(0, 1) nearly stay where they are.

    Parameters
    ----------
    penalty : the weight of roughness, in units of one datum
    n_knots : the number of knots; more resolve finer details, if `penalty` allows it
    relaxation : the share of the displacement that maps have, above 0. A step of size 1
        does all of that
    n_iterations : iterations of Newton's method
    """

    penalty: float = 100.0
    n_knots: int = 32
    relaxation: float = 1.0
    n_iterations: int = 4

    batch_size: ClassVar[int | None] = None

    def solve(
        self, z_p: Tensor, z_q: Tensor, batch: Batch = WHOLE_BATCH
    ) -> TransportSolution:
        """Solve for the maps of particles z_p (h, M) to N(0, 1); z_q is not read.

        A ValueError if classes have maps of their own: they need a flow each.
        """
        if batch.class_slices is not None:
            raise ValueError(
                "classes have separate maps, which a GaussianizingTransport does not "
                "solve for: run one flow for each class"
            )
        maps = self._fit_maps(z_p).relaxed(self.relaxation)
        dz = maps.displace(z_p)
        # Listeners hear of the whole distance to N(0, 1), of which a step does a share.
        whole_displacement = dz / self.relaxation
        return TransportSolution(maps, whole_displacement.square().mean(1), dz)

    def _fit_maps(self, z: Tensor) -> SmoothMaps:
        """The maps T of z (h, n), without relaxation."""
        mean = z.mean(1, keepdim=True)
        deviation = z.std(1, keepdim=True).clamp(min=torch.finfo(z.dtype).tiny)
        standardized = (z - mean) / deviation
        likelihood = _Likelihood.from_values(standardized, self.n_knots, self.penalty)
        first_values, slopes = likelihood.maximize(self.n_iterations)
        # The ends belong to the tails: if only these were limited, the density would
        # jump at the outermost datum, and rounding would decide on which side it is.
        ends = slopes[:, [0, -1]].clamp(max=MAX_TAIL_SLOPE)
        slopes = torch.cat((ends[:, :1], slopes[:, 1:-1], ends[:, 1:]), 1)
        knots = mean + deviation * likelihood.knots
        return SmoothMaps(knots, slopes / deviation, first_values)


class _Evaluation(NamedTuple):
    """The loss of h maps, and the maps at their nodes."""

    loss: Tensor  # (h,), minus the penalized mean log-likelihood
    values: Tensor  # (h, G), T at the nodes
    slopes: Tensor  # (h, G), T′ at the nodes

    def improved_by(self, new: _Evaluation) -> _Evaluation:
        """The new evaluation of each map whose loss is lower, else this one."""
        is_better = new.loss < self.loss
        is_better_row = is_better[:, None]
        return _Evaluation(
            torch.where(is_better, new.loss, self.loss),
            torch.where(is_better_row, new.values, self.values),
            torch.where(is_better_row, new.slopes, self.slopes),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Likelihood:
    """The penalized likelihood of h maps, for values that are counted at nodes.

    The parameters of a map are T at its first knot, and η at all K knots.
    """

    knots: Tensor  # (h, K)
    nodes: Tensor  # (h, G), the knots among them
    shares: Tensor  # (h, G), the share of the values at each node
    hats: Tensor  # (G, K): T′ at the nodes is hats · slopes at the knots
    integrals: Tensor  # (h, G, K): T − T(first knot) is integrals · slopes
    penalty_matrix: Tensor  # (K + 1, K + 1)

    @classmethod
    def from_values(cls, z: Tensor, n_knots: int, penalty: float) -> _Likelihood:
        """The likelihood of the maps of standardized values z (h, n)."""
        n = z.shape[1]
        max_normal = _expected_max_normal(n)
        knots = _choose_knots(z, n_knots, max_normal)
        nodes = _subdivided(knots)
        hats = _hat_functions(n_knots, z.dtype, z.device)
        half_sums = (hats[1:] + hats[:-1]) / 2
        # T rises by the mean of the slopes at two nodes times their distance.
        pieces = half_sums * nodes.diff(dim=1)[:, :, None]
        start = pieces.new_zeros(len(z), 1, n_knots)
        # penalty/(n·Δ): normal values are about from −max_normal to max_normal.
        knots_per_unit = (n_knots - 1) / (2 * max_normal)
        weight = knots_per_unit * penalty / n
        return cls(
            knots=knots,
            nodes=nodes,
            shares=_linear_counts(z, nodes) / n,
            hats=hats,
            integrals=torch.cat((start, pieces.cumsum(1)), 1),
            penalty_matrix=weight * _squared_differences(n_knots, z.dtype, z.device),
        )

    def maximize(self, n_iterations: int) -> tuple[Tensor, Tensor]:
        """T at the first knots (h,), and the slopes (h, K), by damped Newton steps."""
        parameters = torch.cat((self.knots[:, :1], torch.zeros_like(self.knots)), 1)
        current = self._evaluate(parameters)
        damping = torch.full_like(current.loss, _FIRST_DAMPING)
        for _ in range(n_iterations):
            gradient, hessian = self._derivatives(parameters, current)
            diagonal = torch.diagonal(hessian, dim1=1, dim2=2)
            ridge = damping[:, None] * diagonal + torch.finfo(damping.dtype).eps
            newton_step = torch.linalg.solve(
                hessian + torch.diag_embed(ridge), gradient
            )
            new_parameters = parameters - newton_step.clamp(
                -_MAX_NEWTON_STEP, _MAX_NEWTON_STEP
            )
            new = self._evaluate(new_parameters)
            is_better = new.loss < current.loss
            parameters = torch.where(is_better[:, None], new_parameters, parameters)
            current = current.improved_by(new)
            raised = (damping * _DAMPING_UP).clamp(min=_LEAST_DAMPING)
            damping = torch.where(is_better, damping * _DAMPING_DOWN, raised)
        return parameters[:, 0], parameters[:, 1:].exp()

    def _evaluate(self, parameters: Tensor) -> _Evaluation:
        """The loss of maps with these parameters (h, K + 1)."""
        knot_slopes = parameters[:, 1:].exp()
        rises = torch.bmm(self.integrals, knot_slopes[:, :, None])[:, :, 0]
        values = parameters[:, :1] + rises
        slopes = knot_slopes @ self.hats.T
        costs = (self.shares * (values.square() / 2 - slopes.log())).sum(1)
        penalties = ((parameters @ self.penalty_matrix) * parameters).sum(1) / 2
        return _Evaluation(costs + penalties, values, slopes)

    def _derivatives(
        self, parameters: Tensor, at: _Evaluation
    ) -> tuple[Tensor, Tensor]:
        """The gradient (h, K + 1) of the loss, and its Hessian made positive.

        With the share s of the values at each of the nodes, over which sums go, the
        derivatives t of T and u of log T′ by the parameters p, and the matrix P of the
        penalty,

            loss     = Σ s·(T²/2 − log T′) + pᵀP·p/2,
            gradient = c + P·p,  where c = Σ s·(T·t − u),
            Hessian  = Σ s·(t·tᵀ + u·uᵀ) + diag(0, c₁, …, c_K) + P.

        The diagonal is of the second derivatives: slopes are exp η, so ∂²T/∂ηₖ² is tₖ,
        and ∂² log T′ is diag(u) − u·uᵀ. Where c is negative, it is left out.
        """
        d_values, d_log_slopes = self._node_derivatives(parameters, at)
        shares = self.shares[:, :, None]
        residuals = d_values * at.values[:, :, None] - d_log_slopes
        cost_gradient = (shares * residuals).sum(1)
        gradient = cost_gradient + parameters @ self.penalty_matrix

        products = torch.bmm((shares * d_values).mT, d_values)
        products += torch.bmm((shares * d_log_slopes).mT, d_log_slopes)
        diagonal = cost_gradient.clamp(min=0)
        diagonal[:, 0] = 0  # T is linear in its first value
        hessian = products + torch.diag_embed(diagonal) + self.penalty_matrix
        return gradient, hessian

    def _node_derivatives(
        self, parameters: Tensor, at: _Evaluation
    ) -> tuple[Tensor, Tensor]:
        """The derivatives of T and of log T′ by the parameters, (h, G, K + 1)."""
        pad = torch.nn.functional.pad
        knot_slopes = parameters[:, None, 1:].exp()
        by_eta = self.integrals * knot_slopes
        log_by_eta = self.hats * knot_slopes / at.slopes[:, :, None]
        # The first parameter is T at the first knot, which moves all of T alike.
        return pad(by_eta, (1, 0), value=1.0), pad(log_by_eta, (1, 0))


@lru_cache(maxsize=64)
def _expected_max_normal(n: int) -> float:
    """About the expected largest of n standard normal numbers."""
    probability = torch.tensor(1 - 0.5 / n, dtype=torch.float64)
    return float(torch.special.ndtri(probability))


def _choose_knots(z: Tensor, n_knots: int, max_normal: float) -> Tensor:
    """Knots (h, K) of values z (h, n): quantiles, and a third of them evenly spaced.

    The quantiles are those that are evenly spaced for normal numbers. The others lie in
    gaps, where there are no quantiles. Knots that are too near to each other move
    apart, away from the middle one.
    """
    n = z.shape[1]
    n_even = n_knots // 3
    ascending = z.sort(dim=1).values
    position = _quantile_positions(n, n_knots - n_even, max_normal, z.dtype, z.device)
    below = position.floor().long().clamp(max=n - 2)
    quantiles = torch.lerp(
        ascending[:, below], ascending[:, below + 1], position - below
    )
    shares = torch.arange(1, n_even + 1, dtype=z.dtype, device=z.device) / (n_even + 1)
    even = torch.lerp(ascending[:, :1], ascending[:, -1:], shares)
    knots = torch.cat((quantiles, even), 1).sort(dim=1).values
    widths = knots.diff(dim=1).clamp(min=_MIN_KNOT_DISTANCE)
    spread = torch.nn.functional.pad(widths.cumsum(1), (1, 0))
    middle = n_knots // 2
    return spread - spread[:, middle, None] + knots[:, middle, None]


@cached(_CACHE_BYTES)
def _quantile_positions(
    n: int, k: int, max_normal: float, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Where, among n ascending values, k quantiles are: even ones for normal values."""
    normal = torch.linspace(-max_normal, max_normal, k, dtype=dtype, device=device)
    positions: Tensor = (torch.special.ndtr(normal) * n - 0.5).clamp(0, n - 1)
    return positions


def _subdivided(knots: Tensor) -> Tensor:
    """The knots (h, K), with further nodes that divide each interval evenly."""
    h = len(knots)
    parts = torch.arange(_CELLS_PER_INTERVAL, dtype=knots.dtype, device=knots.device)
    parts = parts / _CELLS_PER_INTERVAL
    nodes = knots[:, :-1, None] + knots.diff(dim=1)[:, :, None] * parts
    return torch.cat((nodes.reshape(h, -1), knots[:, -1:]), 1)


@cached(_CACHE_BYTES)
def _hat_functions(n_knots: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(G, K): how much the value at each knot counts at each node."""
    n_nodes = (n_knots - 1) * _CELLS_PER_INTERVAL + 1
    places = torch.arange(n_nodes, dtype=dtype, device=device)
    places = places[:, None] / _CELLS_PER_INTERVAL
    knots = torch.arange(n_knots, dtype=dtype, device=device)
    return (1 - (places - knots).abs()).clamp(min=0)


@cached(_CACHE_BYTES)
def _squared_differences(
    n_knots: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """(K + 1, K + 1): the form Σ (ηₖ₊₁ − ηₖ)² of the parameters of a map."""
    differences = torch.eye(n_knots, dtype=dtype, device=device).diff(dim=0)
    form = torch.zeros(n_knots + 1, n_knots + 1, dtype=dtype, device=device)
    form[1:, 1:] = differences.T @ differences
    return form


def _linear_counts(z: Tensor, nodes: Tensor) -> Tensor:
    """How many of the values z (h, n) are at each node (h, G).

    A value between two nodes counts partly at both, and one beyond them at the end.
    """
    last = nodes.shape[1] - 2
    left = (torch.searchsorted(nodes, z.contiguous()) - 1).clamp(0, last)
    low = nodes.gather(1, left)
    high = nodes.gather(1, left + 1)
    weight = ((z - low) / (high - low)).clamp(0, 1)
    counts = torch.zeros_like(nodes).scatter_add_(1, left, 1 - weight)
    return counts.scatter_add_(1, left + 1, weight)


@dataclass(frozen=True)
class LeastGaussianRotation:
    """The rotation, of several candidates, along which particles are least normal.

    The candidates are `n_candidates` random rotations and the directions of an
    independent component analysis. A model stores the chosen directions.
    """

    n_candidates: int = 8

    def max_directions(self, d: int) -> int:
        """d: the candidates are rotations."""
        return d

    def make_frame(
        self,
        seed: Seed,
        step_index: int,
        x_p: Tensor,
        condition_dim: int = 0,
        x_q: Tensor | None = None,
    ) -> DenseFrame:
        """The frame of a step; see `FrameKind`. There are no conditions."""
        d, n = x_p.shape
        compared = x_p
        if n > _MAX_COMPARED:
            u = seed.child("compared").uniform(1, _MAX_COMPARED, first_row=step_index)
            compared = x_p[:, (u[0] * n).long().to(x_p.device)]
        candidates = []
        for number in range(self.n_candidates):
            child = seed.child("candidate", number)
            candidates.append(rotation(child, step_index, d, x_p.device, x_p.dtype))
        if d > 1:
            start = rotation(seed.child("ica"), step_index, d, x_p.device, x_p.dtype)
            candidates.append(_independent_directions(compared, start, step_index))
        quantiles = _normal_quantiles(compared.shape[1], x_p.dtype, x_p.device)
        distances = torch.stack(
            [_distance_to_normal(theta @ compared, quantiles) for theta in candidates]
        )
        theta = candidates[int(distances.argmax())].contiguous()
        return DenseFrame(theta, None, theta_to_store=theta)


@cached(_CACHE_BYTES)
def _normal_quantiles(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The quantiles (n,) of N(0, 1) with which n ascending values are compared."""
    probabilities = (torch.arange(n, dtype=dtype, device=device) + 0.5) / n
    quantiles: Tensor = torch.special.ndtri(probabilities)
    return quantiles


def _distance_to_normal(z: Tensor, quantiles: Tensor) -> Tensor:
    """The sum over directions of W₂² between z (h, n) and N(0, 1)."""
    gaps: Tensor = z.sort(dim=1).values - quantiles
    return gaps.square().mean(1).sum()


def _independent_directions(x: Tensor, start: Tensor, step_index: int) -> Tensor:
    """Orthonormal directions (d, d) of FastICA, from a rotation to start with.

    Steps take turns with the two usual contrasts: log cosh, and a Gaussian bump, which
    finds heavy tails.
    """
    centered = x - x.mean(1, keepdim=True)
    n = x.shape[1]
    theta = start
    for _ in range(_ICA_ITERATIONS):
        z = theta @ centered
        if step_index % 2 == 0:
            g = torch.tanh(z)
            g_slope = 1 - g.square()
        else:
            bump = torch.exp(-z.square() / 2)
            g = z * bump
            g_slope = (1 - z.square()) * bump
        gradient = g @ centered.T / n - g_slope.mean(1, keepdim=True) * theta
        u, _, v = torch.linalg.svd(gradient)
        theta = u @ v
    return theta
