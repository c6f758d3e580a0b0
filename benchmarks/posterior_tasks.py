"""Simulators with known posteriors, after sbibm's (Lueckmann et al. 2021), in numpy.

Each task draws parameters from its prior, simulates, and draws from the posterior of an
observation: exactly where there is a formula, else by rejection from a Student t or the
prior. `published` reads the ten observations of a task, with 10,000 draws of each
posterior, from sbibm's wheel or its folder.
"""

from __future__ import annotations

import bz2
import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["TASKS", "Task", "published"]

Array = np.ndarray
Rng = np.random.Generator
Prior = Callable[[int, Rng], Array]
# From a number m to m draws, and the logarithms (m,) of their weights.
Proposal = Callable[[int], tuple[Array, Array]]


@dataclass(frozen=True)
class Task:
    """A simulator: its prior, the simulation, and draws from its true posterior.

    Parameters
    ----------
    name : of the task
    folder : the name of sbibm's folder
    prior : `prior(n, rng)` are n parameters (n, d)
    simulate : `simulate(theta, rng)` is what each parameter gives (n, l)
    posterior : `posterior(x0, n, rng)` are n draws (n, d) for one observation (l,)
    low, high : the bounds of a uniform prior; None for others
    file : the name of sbibm's file of an observation
    """

    name: str
    folder: str
    prior: Prior
    simulate: Callable[[Array, Rng], Array]
    posterior: Callable[[Array, int, Rng], Array]
    low: float | None = None
    high: float | None = None
    file: str = "observation.csv"

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The box of a uniform prior."""
        if self.low is None or self.high is None:
            return None
        return self.low, self.high

    def draw(self, n: int, seed: int) -> tuple[Array, Array]:
        """n pairs of parameters and simulations."""
        rng = np.random.default_rng(seed)
        theta = self.prior(n, rng)
        return theta, self.simulate(theta, rng)


# --- priors and rejection -------------------------------------------------------------


def _uniform_prior(low: float, high: float, d: int) -> Prior:
    return lambda n, rng: rng.uniform(low, high, (n, d))


def _normal_prior(d: int, scale: float) -> Prior:
    return lambda n, rng: scale * rng.normal(size=(n, d))


def _draw_inside(n: int, draw: Callable[[int], Array], bound: float) -> Array:
    """n draws whose coordinates all lie in (-bound, bound); `draw(m)` gives some m."""
    accepted: list[Array] = []
    n_accepted = 0
    while n_accepted < n:
        draws = draw(2 * n)
        inside = draws[(np.abs(draws) < bound).all(1)]
        accepted.append(inside)
        n_accepted += len(inside)
    return np.concatenate(accepted)[:n]


def _rejection_sample(propose: Proposal, n: int, rng: Rng) -> Array:
    """n of the proposed draws, each accepted in proportion to its weight.

    A draw is accepted if log w − log u ≥ max log w, for u uniform in (0, 1). The
    maximum is that of the draws so far; earlier draws are thinned when it rises.
    """
    batch_size = 4 * n
    draws, log_weight = propose(batch_size)
    max_log_weight = float(log_weight.max())
    level = log_weight - np.log(rng.random(batch_size))
    accepted = draws[level >= max_log_weight]
    accepted_level = level[level >= max_log_weight]
    while len(accepted) < n:
        batch_size = min(2_000_000, 2 * batch_size)
        draws, log_weight = propose(batch_size)
        max_log_weight = max(max_log_weight, float(log_weight.max()))
        level = log_weight - np.log(rng.random(batch_size))
        is_new = level >= max_log_weight
        is_still = accepted_level >= max_log_weight
        accepted = np.concatenate((accepted[is_still], draws[is_new]))
        accepted_level = np.concatenate((accepted_level[is_still], level[is_new]))
    return accepted[rng.permutation(len(accepted))[:n]]


def _student_t(n: int, d: int, dof: int, rng: Rng) -> tuple[Array, Array]:
    """n draws (n, d) of a standard Student t, and −log of their densities (n,).

    The latter up to a constant.
    """
    t = rng.normal(size=(n, d)) / np.sqrt(rng.chisquare(dof, (n, 1)) / dof)
    return t, 0.5 * (dof + d) * np.log1p((t**2).sum(1) / dof)


# --- two moons: a crescent in x, two of them in the posterior -------------------------


def _crescent(n: int, rng: Rng) -> Array:
    angle = rng.uniform(-np.pi / 2, np.pi / 2, n)
    radius = rng.normal(0.1, 0.01, n)
    return np.stack((radius * np.cos(angle) + 0.25, radius * np.sin(angle)), 1)


def _moons(theta: Array, rng: Rng) -> Array:
    shift = np.stack((-np.abs(theta.sum(1)), theta[:, 1] - theta[:, 0]), 1)
    return _crescent(len(theta), rng) + shift / np.sqrt(2)


def _moons_posterior(x0: Array, n: int, rng: Rng) -> Array:
    """The simulation inverted: either sign of θ₁ + θ₂ gives the same shift."""

    def draw(m: int) -> Array:
        shift = x0 - _crescent(m, rng)
        shift = shift[shift[:, 0] <= 0]
        theta_sum = shift[:, 0] * rng.choice([-1.0, 1.0], len(shift))
        difference = shift[:, 1]
        theta = np.stack((theta_sum - difference, theta_sum + difference), 1)
        return theta / np.sqrt(2)

    return _draw_inside(n, draw, bound=1)


# --- Gaussian linear: θ plus noise; both have a variance of 0.1 -----------------------


def _linear(theta: Array, rng: Rng) -> Array:
    return theta + np.sqrt(0.1) * rng.normal(size=theta.shape)


def _linear_posterior(x0: Array, n: int, rng: Rng) -> Array:
    return x0 / 2 + np.sqrt(0.05) * rng.normal(size=(n, len(x0)))


# --- Gaussian mixture: a wide and a narrow Gaussian around the parameter --------------


def _mixture(center: Array, rng: Rng) -> Array:
    is_wide = rng.random(len(center)) < 0.5
    scale = np.where(is_wide, 1.0, 0.1)[:, None]
    return center + scale * rng.normal(size=center.shape)


def _mixture_posterior(x0: Array, n: int, rng: Rng) -> Array:
    def draw(m: int) -> Array:
        return _mixture(np.tile(x0, (m, 1)), rng)

    return _draw_inside(n, draw, bound=10)


# --- SLCP: four points of a Gaussian whose covariance is written in squares -----------

_SLCP_POINTS = 4


def _slcp_scales(theta: Array) -> tuple[Array, Array, Array]:
    """Both standard deviations and the correlation, each (n,)."""
    return theta[:, 2] ** 2, theta[:, 3] ** 2, np.tanh(theta[:, 4])


def _slcp(theta: Array, rng: Rng) -> Array:
    s1, s2, rho = _slcp_scales(theta)
    e = rng.normal(size=(len(theta), _SLCP_POINTS, 2))
    e1 = e[:, :, 0]
    e2 = rho[:, None] * e[:, :, 0] + np.sqrt(1 - rho**2)[:, None] * e[:, :, 1]
    x1 = theta[:, 0, None] + s1[:, None] * e1
    x2 = theta[:, 1, None] + s2[:, None] * e2
    return np.stack((x1, x2), 2).reshape(len(theta), 2 * _SLCP_POINTS)


def _slcp_posterior(x0: Array, n: int, rng: Rng) -> Array:
    """Scales by rejection from the prior; given these, the means are Gaussian."""
    points = x0.reshape(_SLCP_POINTS, 2)
    mean = points.mean(0)
    scatter = (points - mean).T @ (points - mean)

    def propose_scales(m: int) -> tuple[Array, Array]:
        theta = rng.uniform(-3, 3, (m, 5))
        s1, s2, rho = _slcp_scales(theta)
        unexplained = 1 - rho**2
        square = (
            scatter[0, 0] / s1**2
            - 2 * rho * scatter[0, 1] / (s1 * s2)
            + scatter[1, 1] / s2**2
        ) / unexplained
        log_root_determinant = np.log(s1 * s2) + 0.5 * np.log(unexplained)
        return theta, -(_SLCP_POINTS - 1) * log_root_determinant - 0.5 * square

    def draw(m: int) -> Array:
        theta = _rejection_sample(propose_scales, m, rng)
        s1, s2, rho = _slcp_scales(theta)
        e = rng.normal(size=(m, 2)) / np.sqrt(_SLCP_POINTS)
        theta[:, 0] = mean[0] + s1 * e[:, 0]
        theta[:, 1] = mean[1] + s2 * (rho * e[:, 0] + np.sqrt(1 - rho**2) * e[:, 1])
        return theta

    return _draw_inside(n, draw, bound=3)


# --- Bernoulli GLM: spikes of a neuron with a smooth filter of nine weights -----------

_GLM_BINS = 100
_GLM_FILTER = 9


def _glm_design() -> Array:
    """(100, 10): ones, and the stimulus of now and of eight bins before."""
    stimulus = np.random.RandomState(42).normal(size=_GLM_BINS)
    columns = [np.ones(_GLM_BINS)]
    for lag in range(_GLM_FILTER):
        columns.append(np.concatenate((np.zeros(lag), stimulus[: _GLM_BINS - lag])))
    return np.stack(columns, 1)


def _glm_prior_root() -> Array:
    """L with cov(θ) = LLᵀ: an offset of variance 2 and a smooth filter."""
    difference = np.diag(np.ones(_GLM_FILTER)) - np.diag(np.ones(_GLM_FILTER - 1), -1)
    growth = np.diag(np.sqrt(np.arange(_GLM_FILTER) / _GLM_FILTER))
    root = np.zeros((_GLM_FILTER + 1, _GLM_FILTER + 1))
    root[0, 0] = np.sqrt(2)
    root[1:, 1:] = np.linalg.inv(difference @ difference + growth)
    return root


_GLM_DESIGN = _glm_design()
_GLM_PRIOR_ROOT = _glm_prior_root()


def _glm_prior(n: int, rng: Rng) -> Array:
    return rng.normal(size=(n, _GLM_FILTER + 1)) @ _GLM_PRIOR_ROOT.T


def _glm_raw(theta: Array, rng: Rng) -> Array:
    """Whether there is a spike in each bin, (n, 100)."""
    spike_probability = 1 / (1 + np.exp(-theta @ _GLM_DESIGN.T))
    return (rng.random((len(theta), _GLM_BINS)) < spike_probability).astype(float)


def _glm_summary(theta: Array, rng: Rng) -> Array:
    """The sufficient statistics (n, 10) of the spikes."""
    return _glm_raw(theta, rng) @ _GLM_DESIGN


def _glm_posterior(x0: Array, n: int, rng: Rng) -> Array:
    """By rejection from a Student t with eight degrees of freedom around the mode."""
    summary = x0
    if len(x0) == _GLM_BINS:
        summary = x0 @ _GLM_DESIGN
    precision = np.linalg.inv(_GLM_PRIOR_ROOT @ _GLM_PRIOR_ROOT.T)
    d = len(precision)
    mode = np.zeros(d)
    for _ in range(50):  # Newton's steps, halved
        p = 1 / (1 + np.exp(-_GLM_DESIGN @ mode))
        weighted_design = _GLM_DESIGN * (p * (1 - p))[:, None]
        hessian = precision + weighted_design.T @ _GLM_DESIGN
        gradient = summary - _GLM_DESIGN.T @ p - precision @ mode
        mode = mode + 0.5 * np.linalg.solve(hessian, gradient)
    root = np.linalg.inv(np.linalg.cholesky(hessian)).T

    def propose(m: int) -> tuple[Array, Array]:
        t, log_weight = _student_t(m, d, 8, rng)
        theta = mode + t @ root.T
        log_p = theta @ summary - np.logaddexp(0, theta @ _GLM_DESIGN.T).sum(1)
        log_p -= 0.5 * ((theta @ precision) * theta).sum(1)
        return theta, log_p + log_weight

    return _rejection_sample(propose, n, rng)


# --- Lotka–Volterra: hares and lynxes at ten times, counted with ten per cent error ---

_LV_MEAN = np.array([-0.125, -3.0, -0.125, -3.0])  # of log θ
_LV_SCALE = 0.5  # of log θ
_LV_ERROR = 0.1  # of log x
_LV_ERROR_VARIANCE = 0.01
_LV_TIME_STEP = 0.1
_LV_STEPS_PER_OBSERVATION = 21
_LV_OBSERVATIONS = 10


def _lv_prior(n: int, rng: Rng) -> Array:
    return np.asarray(np.exp(_LV_MEAN + _LV_SCALE * rng.normal(size=(n, 4))))


def _populations(theta: Array) -> Array:
    """(n, 20): hares at ten times, then lynxes, by the fourth-order Runge–Kutta."""
    a, b, c, d = theta.T
    h = _LV_TIME_STEP
    n = len(theta)

    def slope(state: Array) -> Array:
        hares, lynxes = state
        return np.stack(
            (a * hares - b * hares * lynxes, d * hares * lynxes - c * lynxes)
        )

    state = np.stack((np.full(n, 30.0), np.ones(n)))
    observed = [state]
    for _ in range(_LV_OBSERVATIONS - 1):
        for _ in range(_LV_STEPS_PER_OBSERVATION):
            k1 = slope(state)
            k2 = slope(state + h / 2 * k1)
            k3 = slope(state + h / 2 * k2)
            k4 = slope(state + h * k3)
            state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            state = np.clip(state, 1e-10, 1e4)
        observed.append(state)
    return np.stack(observed, 2).transpose(1, 0, 2).reshape(n, -1)


def _lotka_volterra(theta: Array, rng: Rng) -> Array:
    mean = np.log(_populations(theta))
    return np.asarray(np.exp(mean + _LV_ERROR * rng.normal(size=mean.shape)))


def _lotka_volterra_posterior(x0: Array, n: int, rng: Rng) -> Array:
    """By rejection from a Student t, which population Monte Carlo fits before.

    All is in z = (log θ − mean) / scale, where the prior is a standard Gaussian.
    """
    log_x = np.log(x0)

    def to_theta(z: Array) -> Array:
        return np.asarray(np.exp(_LV_MEAN + _LV_SCALE * z))

    def proposal(mean: Array, root: Array) -> Proposal:
        """Student's t with this mean and root of the covariance, and its weights."""

        def propose(m: int) -> tuple[Array, Array]:
            t, log_weight = _student_t(m, 4, 4, rng)
            z = mean + t @ root.T
            residual = log_x - np.log(_populations(to_theta(z)))
            log_likelihood = -0.5 * (residual**2).sum(1) / _LV_ERROR_VARIANCE
            return z, log_likelihood - 0.5 * (z**2).sum(1) + log_weight

        return propose

    propose = proposal(np.zeros(4), np.eye(4))
    for _ in range(12):
        z, log_weight = propose(20_000)
        weights = _tempered_weights(log_weight, min_draws=500)
        mean = weights @ z
        covariance = (z - mean).T @ ((z - mean) * weights[:, None])
        # A fifth wider, so that no part of the posterior is left out.
        root = np.linalg.cholesky(covariance * 1.2 + 1e-12 * np.eye(4))
        propose = proposal(mean, root)
    return to_theta(_rejection_sample(propose, n, rng))


def _tempered_weights(log_weight: Array, min_draws: float) -> Array:
    """Weights to a power ≤ 1 that leaves at least `min_draws` effective draws."""
    power = 1.0
    while True:
        weights = np.exp(power * (log_weight - log_weight.max()))
        effective_draws = weights.sum() ** 2 / (weights**2).sum()
        if effective_draws > min_draws or power < 1e-6:
            return weights / weights.sum()
        power /= 1.5


# --- all tasks ------------------------------------------------------------------------

_ALL = (
    Task(
        name="two moons",
        folder="two_moons",
        prior=_uniform_prior(-1, 1, 2),
        simulate=_moons,
        posterior=_moons_posterior,
        low=-1,
        high=1,
    ),
    Task(
        name="Gaussian linear",
        folder="gaussian_linear",
        prior=_normal_prior(10, np.sqrt(0.1)),
        simulate=_linear,
        posterior=_linear_posterior,
    ),
    Task(
        name="Gaussian mixture",
        folder="gaussian_mixture",
        prior=_uniform_prior(-10, 10, 2),
        simulate=_mixture,
        posterior=_mixture_posterior,
        low=-10,
        high=10,
    ),
    Task(
        name="SLCP",
        folder="slcp",
        prior=_uniform_prior(-3, 3, 5),
        simulate=_slcp,
        posterior=_slcp_posterior,
        low=-3,
        high=3,
    ),
    Task(
        name="Bernoulli GLM",
        folder="bernoulli_glm",
        prior=_glm_prior,
        simulate=_glm_summary,
        posterior=_glm_posterior,
    ),
    Task(
        name="Bernoulli GLM, raw",
        folder="bernoulli_glm",
        prior=_glm_prior,
        simulate=_glm_raw,
        posterior=_glm_posterior,
        file="observation_raw.csv",
    ),
    Task(
        name="Lotka–Volterra",
        folder="lotka_volterra",
        prior=_lv_prior,
        simulate=_lotka_volterra,
        posterior=_lotka_volterra_posterior,
    ),
)
TASKS = {task.name: task for task in _ALL}


def published(task: Task, sbibm: Path) -> tuple[Array, Array]:
    """sbibm's ten observations (10, l) and draws (10, 10000, d) of their posteriors."""

    def read(name: str) -> bytes:
        path = f"sbibm/tasks/{task.folder}/files/{name}"
        if sbibm.is_dir():
            return (sbibm / path).read_bytes()
        with zipfile.ZipFile(sbibm) as wheel:
            return wheel.read(path)

    def parse(text: bytes) -> Array:
        return np.loadtxt(io.BytesIO(text), delimiter=",", skiprows=1, ndmin=2)

    observations = []
    posteriors = []
    for i in range(1, 11):
        folder = f"num_observation_{i}"
        observations.append(parse(read(f"{folder}/{task.file}")))
        packed = read(f"{folder}/reference_posterior_samples.csv.bz2")
        posteriors.append(parse(bz2.decompress(packed)))
    return np.concatenate(observations), np.stack(posteriors)
