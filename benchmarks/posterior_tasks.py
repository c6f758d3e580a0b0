"""Simulators with known posteriors, after sbibm's (Lueckmann et al. 2021), restated in
numpy.

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


@dataclass(frozen=True)
class Task:
    """A simulator: `prior(n, rng)`, `simulate(theta, rng)`, `posterior(x0, n, rng)`,
    box or None.

    `folder` and `file` are the names of sbibm's folder and of its observations.
    """

    name: str
    folder: str
    prior: Callable[[int, Rng], Array]
    simulate: Callable[[Array, Rng], Array]
    posterior: Callable[[Array, int, Rng], Array]
    low: float | None = None
    high: float | None = None
    file: str = "observation.csv"

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The box of a uniform prior."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def draw(self, n: int, seed: int) -> tuple[Array, Array]:
        """n pairs of parameters and simulations."""
        rng = np.random.default_rng(seed)
        theta = self.prior(n, rng)
        return theta, self.simulate(theta, rng)


def _uniform(low: float, high: float, d: int) -> Callable[[int, Rng], Array]:
    return lambda n, rng: rng.uniform(low, high, (n, d))


def _until(
    n: int, draw: Callable[[int], Array], inside: Callable[[Array], Array]
) -> Array:
    """n draws that are inside."""
    kept: list[Array] = []
    while sum(map(len, kept)) < n:
        made = draw(2 * n)
        kept.append(made[inside(made)])
    return np.concatenate(kept)[:n]


def _rejected(propose: Callable[[int], tuple[Array, Array]], n: int, rng: Rng) -> Array:
    """n of the proposed draws, each kept with a probability in proportion to its
    weight.

    `propose(m)` gives m draws and the logarithms of their weights. The largest weight
    seen is that which is always kept; earlier draws are thinned when a larger one
    comes.
    """
    kept = np.empty(0)
    log_u = np.empty(0)
    top = -np.inf  # log_u: of weight minus a uniform's logarithm
    m = 4 * n
    while True:
        draws, log_weight = propose(m)
        level = log_weight - np.log(rng.random(m))
        fits = level >= max(top, log_weight.max())
        top = max(top, float(log_weight.max()))
        kept = (
            np.concatenate((kept[log_u >= top], draws[fits]))
            if len(kept)
            else draws[fits]
        )
        log_u = np.concatenate((log_u[log_u >= top], level[fits]))
        if len(kept) >= n:
            return kept[rng.permutation(len(kept))[:n]]
        m = min(2_000_000, 2 * m)


# Two moons: a crescent in x, two of them in the posterior.
def _crescent(n: int, rng: Rng) -> Array:
    a = rng.uniform(-np.pi / 2, np.pi / 2, n)
    r = rng.normal(0.1, 0.01, n)
    return np.stack((r * np.cos(a) + 0.25, r * np.sin(a)), 1)


def _moons(theta: Array, rng: Rng) -> Array:
    turned = np.stack((-np.abs(theta.sum(1)), theta[:, 1] - theta[:, 0]), 1) / np.sqrt(
        2
    )
    return _crescent(len(theta), rng) + turned


def _moons_posterior(x0: Array, n: int, rng: Rng) -> Array:
    def draw(m: int) -> Array:
        q = x0 - _crescent(m, rng)
        q = q[q[:, 0] <= 0]
        plus = q[:, 0] * rng.choice([-1.0, 1.0], len(q))
        minus = q[:, 1]
        return np.stack((plus - minus, plus + minus), 1) / np.sqrt(2)

    return _until(n, draw, lambda t: (np.abs(t) < 1).all(1))


# Gaussian mixture: a wide and a narrow Gaussian around the parameter.
def _around(centre: Array, rng: Rng) -> Array:
    scale = np.where(rng.random(len(centre)) < 0.5, 1.0, 0.1)[:, None]
    return centre + scale * rng.normal(size=centre.shape)


def _mixture_posterior(x0: Array, n: int, rng: Rng) -> Array:
    return _until(
        n,
        lambda m: _around(np.tile(x0, (m, 1)), rng),
        lambda t: (np.abs(t) < 10).all(1),
    )


# SLCP: four points of a Gaussian whose covariance is written in squares.
def _slcp_scales(theta: Array) -> tuple[Array, Array, Array]:
    return theta[:, 2] ** 2, theta[:, 3] ** 2, np.tanh(theta[:, 4])


def _slcp(theta: Array, rng: Rng) -> Array:
    s1, s2, rho = _slcp_scales(theta)
    e = rng.normal(size=(len(theta), 4, 2))
    x1 = theta[:, :1] + s1[:, None] * e[:, :, 0]
    x2 = theta[:, 1:2] + s2[:, None] * (
        rho[:, None] * e[:, :, 0] + np.sqrt(1 - rho**2)[:, None] * e[:, :, 1]
    )
    return np.stack((x1, x2), 2).reshape(len(theta), 8)


def _slcp_posterior(x0: Array, n: int, rng: Rng) -> Array:
    """Scales by rejection; then the mean is Gaussian, and is drawn again while outside
    the box.
    """
    points = x0.reshape(4, 2)
    mean = points.mean(0)
    count = 4
    scatter = (points - mean).T @ (points - mean)

    def scales(m: int) -> tuple[Array, Array]:
        theta = rng.uniform(-3, 3, (m, 5))
        s1, s2, rho = _slcp_scales(theta)
        rest = 1 - rho**2
        square = (
            scatter[0, 0] / s1**2
            - 2 * rho * scatter[0, 1] / (s1 * s2)
            + scatter[1, 1] / s2**2
        ) / rest
        return theta, -(count - 1) * (
            np.log(s1 * s2) + 0.5 * np.log(rest)
        ) - 0.5 * square

    def draw(m: int) -> Array:
        made = _rejected(scales, m, rng)
        a, b, r = _slcp_scales(made)
        e = rng.normal(size=(m, 2)) / np.sqrt(count)
        made[:, 0] = mean[0] + a * e[:, 0]
        made[:, 1] = mean[1] + b * (r * e[:, 0] + np.sqrt(1 - r**2) * e[:, 1])
        return made

    return _until(n, draw, lambda t: (np.abs(t) < 3).all(1))


# Bernoulli GLM: spikes of a neuron with a smooth filter of nine weights.
_BINS = 100
_FILTER = 9


def _glm_design() -> Array:
    stimulus = np.random.RandomState(42).normal(size=_BINS)
    lagged = [
        np.concatenate((np.zeros(j), stimulus[: _BINS - j])) for j in range(_FILTER)
    ]
    return np.stack((np.ones(_BINS), *lagged), 1)


def _glm_root() -> Array:
    """L with cov(θ) = LLᵀ: an offset of variance 2 and a smooth filter."""
    second = np.diag(np.ones(_FILTER)) - np.diag(np.ones(_FILTER - 1), -1)
    f = second @ second + np.diag(np.sqrt(np.arange(_FILTER) / _FILTER))
    root = np.zeros((_FILTER + 1, _FILTER + 1))
    root[0, 0] = np.sqrt(2)
    root[1:, 1:] = np.linalg.inv(f)
    return root


_DESIGN = _glm_design()
_ROOT = _glm_root()


def _glm_raw(theta: Array, rng: Rng) -> Array:
    return (
        rng.random((len(theta), _BINS)) < 1 / (1 + np.exp(-theta @ _DESIGN.T))
    ).astype(float)


def _glm_summary(theta: Array, rng: Rng) -> Array:
    return _glm_raw(theta, rng) @ _DESIGN


def _glm_posterior(x0: Array, n: int, rng: Rng) -> Array:
    """By rejection from a Student t with eight degrees of freedom around the mode."""
    summary = x0 if len(x0) == _FILTER + 1 else x0 @ _DESIGN
    precision = np.linalg.inv(_ROOT @ _ROOT.T)
    mode = np.zeros(len(precision))
    d = len(precision)
    for _ in range(50):  # Newton's steps, halved
        p = 1 / (1 + np.exp(-_DESIGN @ mode))
        hessian = precision + (_DESIGN * (p * (1 - p))[:, None]).T @ _DESIGN
        mode = mode + 0.5 * np.linalg.solve(
            hessian, summary - _DESIGN.T @ p - precision @ mode
        )
    root = np.linalg.inv(np.linalg.cholesky(hessian)).T
    dof = 8

    def propose(m: int) -> tuple[Array, Array]:
        e = rng.normal(size=(m, d)) / np.sqrt(rng.chisquare(dof, (m, 1)) / dof)
        theta = mode + e @ root.T
        log_p = theta @ summary - np.logaddexp(0, theta @ _DESIGN.T).sum(1)
        log_p -= 0.5 * ((theta @ precision) * theta).sum(1)
        return theta, log_p + 0.5 * (dof + d) * np.log1p((e**2).sum(1) / dof)

    return _rejected(propose, n, rng)


# Lotka–Volterra: hares and lynxes at ten times, counted with ten per cent error.
_LV_MEAN = np.array([-0.125, -3.0, -0.125, -3.0])
_LV_SCALE = 0.5


def _populations(theta: Array) -> Array:
    """(n, 20): both populations at ten times, by Runge and Kutta's fourth-order method."""
    a, b, c, d = theta.T
    state = np.stack((np.full(len(theta), 30.0), np.ones(len(theta))))
    h = 0.1
    out = [state]

    def slope(s: Array) -> Array:
        return np.stack((a * s[0] - b * s[0] * s[1], d * s[0] * s[1] - c * s[1]))

    for step in range(1, 190):
        k1 = slope(state)
        k2 = slope(state + h / 2 * k1)
        k3 = slope(state + h / 2 * k2)
        state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + slope(state + h * k3))
        state = np.clip(state, 1e-10, 1e4)
        if step % 21 == 0:
            out.append(state)
    return (
        np.stack(out, 2)
        .reshape(2, len(theta), -1)
        .transpose(1, 0, 2)
        .reshape(len(theta), -1)
    )


def _lotka_volterra(theta: Array, rng: Rng) -> Array:
    mean = np.log(_populations(theta))
    return np.asarray(np.exp(mean + 0.1 * rng.normal(size=mean.shape)))


def _lotka_volterra_posterior(x0: Array, n: int, rng: Rng) -> Array:
    """Population Monte Carlo: a Student t is fitted to weighted draws, again and again."""
    log_x = np.log(x0)

    def log_p(z: Array) -> Array:
        fit = np.log(_populations(np.exp(_LV_MEAN + _LV_SCALE * z)))
        return -0.5 * ((log_x - fit) ** 2).sum(1) / 0.01 - 0.5 * (z**2).sum(1)

    def propose(m: int) -> tuple[Array, Array]:
        e = rng.normal(size=(m, 4)) / np.sqrt(rng.chisquare(dof, (m, 1)) / dof)
        z = mean + e @ root.T
        return z, log_p(z) + 0.5 * (dof + 4) * np.log1p((e**2).sum(1) / dof)

    mean, root, dof = np.zeros(4), np.eye(4), 4
    for _ in range(12):
        z, log_w = propose(20_000)
        temper = 1.0
        while True:  # as much of the likelihood as leaves 500 draws of weight
            w = np.exp(temper * (log_w - log_w.max()))
            if w.sum() ** 2 / (w**2).sum() > 500 or temper < 1e-6:
                break
            temper /= 1.5
        w /= w.sum()
        mean = w @ z
        root = np.linalg.cholesky(
            (z - mean).T @ ((z - mean) * w[:, None]) * 1.2 + 1e-12 * np.eye(4)
        )
    return np.asarray(np.exp(_LV_MEAN + _LV_SCALE * _rejected(propose, n, rng)))


def _normal(d: int, scale: float) -> Callable[[int, Rng], Array]:
    return lambda n, rng: scale * rng.normal(size=(n, d))


def _glm_prior(n: int, rng: Rng) -> Array:
    return rng.normal(size=(n, _FILTER + 1)) @ _ROOT.T


def _lv_prior(n: int, rng: Rng) -> Array:
    return np.asarray(np.exp(_LV_MEAN + _LV_SCALE * rng.normal(size=(n, 4))))


TASKS = {
    task.name: task
    for task in (
        Task(
            "two moons",
            "two_moons",
            _uniform(-1, 1, 2),
            _moons,
            _moons_posterior,
            -1,
            1,
        ),
        Task(
            "Gaussian linear",
            "gaussian_linear",
            _normal(10, np.sqrt(0.1)),
            lambda theta, rng: theta + np.sqrt(0.1) * rng.normal(size=theta.shape),
            lambda x0, n, rng: x0 / 2 + np.sqrt(0.05) * rng.normal(size=(n, len(x0))),
        ),
        Task(
            "Gaussian mixture",
            "gaussian_mixture",
            _uniform(-10, 10, 2),
            _around,
            _mixture_posterior,
            -10,
            10,
        ),
        Task("SLCP", "slcp", _uniform(-3, 3, 5), _slcp, _slcp_posterior, -3, 3),
        Task(
            "Bernoulli GLM", "bernoulli_glm", _glm_prior, _glm_summary, _glm_posterior
        ),
        Task(
            "Bernoulli GLM, raw",
            "bernoulli_glm",
            _glm_prior,
            _glm_raw,
            _glm_posterior,
            file="observation_raw.csv",
        ),
        Task(
            "Lotka–Volterra",
            "lotka_volterra",
            _lv_prior,
            _lotka_volterra,
            _lotka_volterra_posterior,
        ),
    )
}


def published(task: Task, sbibm: Path) -> tuple[Array, Array]:
    """sbibm's observations (10, l) of a task and draws (10, 10000, d) of their
    posteriors.
    """

    def read(name: str) -> bytes:
        inside = f"sbibm/tasks/{task.folder}/files/{name}"
        if sbibm.is_dir():
            return (sbibm / inside).read_bytes()
        with zipfile.ZipFile(sbibm) as wheel:
            return wheel.read(inside)

    def rows(text: bytes) -> Array:
        return np.loadtxt(io.BytesIO(text), delimiter=",", skiprows=1, ndmin=2)

    places = [f"num_observation_{i}/" for i in range(1, 11)]
    x0 = np.concatenate([rows(read(place + task.file)) for place in places])
    name = "reference_posterior_samples.csv.bz2"
    return x0, np.stack([rows(bz2.decompress(read(place + name))) for place in places])
