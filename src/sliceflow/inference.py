"""Posteriors of simulators: parameters given an observation, from simulations alone.

Without training: an observation asks the simulations nearest to it (`sliceflow.neighbours.local`). The
calls are those of sbi, but there is no `log_prob`: samples have no density.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine.conditions import ContinuousCondition
from sliceflow.engine.random import Seed
from sliceflow.errors import from_tensor, is_int, require
from sliceflow.metrics.calibration import Calibration, calibration
from sliceflow.neighbours.local import LocalSampler
from sliceflow.spaces.vectors.rows import Units

__all__ = ["Posterior", "load", "posterior"]

_LARGEST = 1e100  # magnitude whose square is still a float64
_REDRAWN = 8  # times the samples that are drawn for those outside the bounds
_AT_ONCE = 50  # observations, between two lines of progress
_FOR_MAP = 2_000
_SHIFTS = 50  # samples that `map` sees, and steps to their mode


class Posterior:
    """Samples of θ given x. Made by `posterior`, which checks what it is given."""

    def __init__(
        self,
        theta: np.ndarray,
        x: np.ndarray,
        bounds: tuple[np.ndarray, np.ndarray],
        dtype: str,
        verbose: bool,
    ) -> None:
        self.theta = theta
        self.x = x
        self.low, self.high = bounds
        self.dtype = dtype
        self.verbose = verbose
        self.default_x: np.ndarray | None = None
        self._units = Units.fit_to(theta, standardize=True)
        self._given = ContinuousCondition.fit_to(x)
        self._local = LocalSampler.fit(self._units.encode(theta), self._given.encode(x))

    def __repr__(self) -> str:
        n, d = self.theta.shape
        width = self.x.shape[1]
        return f"Posterior of {d} parameters given {width} values, from {n} simulations"

    def set_default_x(self, x: Any) -> Posterior:
        """The observation at which `sample` and `map` look unless told otherwise; returns itself."""
        self.default_x = self._observations(x, most=1)[0]
        return self

    def sample(
        self, shape: Any = (), x: Any = None, *, random_state: Any = None
    ) -> Tensor:
        """Samples at one observation x (l,) or (1, l): a tensor (*shape, d).

        `shape` is a tuple such as (1000,), or an int. Without x it is that of `set_default_x`. The same
        `random_state` gives the same samples; None gives new ones on every call.
        """
        shape = _shape(shape)
        made = self._draw(
            self._observations(x, most=1), int(np.prod(shape)), random_state
        )
        return self._tensor(made).view(*shape, -1)

    def sample_batched(self, shape: Any, x: Any, *, random_state: Any = None) -> Tensor:
        """Samples at several observations x (q, l): a tensor (*shape, q, d)."""
        shape = _shape(shape)
        x0 = self._observations(x)
        made = self._draw(x0, int(np.prod(shape)), random_state)
        return self._tensor(made.transpose(1, 0, 2)).reshape(*shape, len(x0), -1)

    def map(self, x: Any = None, *, random_state: Any = 0) -> Tensor:
        """The most probable θ (d,) at one observation: the highest mode of a density of samples.

        Mean shift (Fukunaga and Hostetler, 1975) from the densest sample, by Scott's width.
        """
        made = self._draw(self._observations(x, most=1), _FOR_MAP, random_state)[0]
        width = (made.std(axis=0) + 1e-300) * len(made) ** (-1 / (made.shape[1] + 4))
        centre = made.mean(axis=0)
        z = (made - centre) / width
        at = z[
            np.exp(-0.5 * np.square(z[:, None] - z[None, ::4]).sum(2)).sum(1).argmax()
        ]
        for _ in range(_SHIFTS):
            weight = np.exp(-0.5 * np.square(z - at).sum(1))
            at = weight @ z / weight.sum()
        return self._tensor(np.clip(centre + at * width, self.low, self.high))

    def calibrate(
        self, theta: Any, x: Any, *, n_samples: int = 100, random_state: Any = 0
    ) -> Calibration:
        """Whether n samples at each x cover theta as often as they should: `metrics.calibration`.

        Pass some hundred fresh simulations: parameters from the prior that did not make this posterior.
        """
        theta, x = _matching(theta, x)
        seen = {row.tobytes() for row in np.hstack((self.theta, self.x))}
        used = sum(row.tobytes() in seen for row in np.hstack((theta, x)))
        if used:
            raise ValueError(
                f"{used} of {len(x)} simulations made this posterior; simulate fresh ones"
            )
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # some of fresh simulations are far: that is part of it
            made = self._draw(self._observations(x), n_samples, random_state)
        return calibration(made, theta, first="conditions")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the simulations and bounds to a file of safetensors, without pickle; see `load`."""
        from safetensors.numpy import save_file

        arrays = {"theta": self.theta, "x": self.x, "low": self.low, "high": self.high}
        if self.default_x is not None:
            arrays["default_x"] = self.default_x
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        save_file(arrays, path, {"sliceflow": "posterior 1", "dtype": self.dtype})

    def _tensor(self, made: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(made.astype(self.dtype)))

    def _observations(self, x: Any, most: int | None = None) -> np.ndarray:
        """Observations (q, l), checked."""
        if x is None and self.default_x is None:
            raise ValueError(
                "x is missing; pass the observation, or call set_default_x"
            )
        x0 = np.asarray(
            from_tensor(self.default_x if x is None else x), dtype=np.float64
        )
        width = self.x.shape[1]
        x0 = x0.reshape(-1, 1) if width == 1 and x0.ndim < 2 else np.atleast_2d(x0)
        if x0.ndim != 2 or x0.shape[1] != width or not len(x0):
            shapes = f"x has shape {np.shape(x)} but simulations have {width} values"
            raise ValueError(f"{shapes}; pass ({width},) or (q, {width})")
        if most is not None and len(x0) > most:
            raise ValueError(
                f"x has {len(x0)} observations; sample takes one, sample_batched several"
            )
        _check_values("x", x0, "observations must be finite")
        return x0

    def _draw(self, x0: np.ndarray, n: int, random_state: Any) -> np.ndarray:
        """n samples at each of q observations, (q, n, d), between the bounds."""
        require(n >= 1, "n_samples", n, "at least 1")
        rng = np.random.default_rng(random_state)
        y = self._given.encode(x0)
        self._local.warn_if_far(y, "x", stacklevel=3)
        out = np.empty((len(x0), n, self.theta.shape[1]))
        for first in range(0, len(x0), _AT_ONCE):
            part = slice(first, min(first + _AT_ONCE, len(x0)))
            made = self._ask(y[part], n, rng)
            for i in np.flatnonzero(self._outside(made).any(1)):
                outside = np.flatnonzero(self._outside(made[i]))
                more = self._ask(y[part][i : i + 1], _REDRAWN * n, rng)[0]
                inside = more[~self._outside(more)][: len(outside)]
                made[i, outside[: len(inside)]] = inside
            # What is still beyond a bound is mirrored at it.
            mirrored = np.where(
                made < self.low, 2 * self.low - made, 2 * self.high - made
            )
            beyond = (made < self.low) | (made > self.high)
            out[part] = np.where(beyond, np.clip(mirrored, self.low, self.high), made)
            if self.verbose and len(x0) > 1:
                print(
                    f"sliceflow: samples at {part.stop}/{len(x0)} observations",
                    file=sys.stderr,
                )
        return out

    def _outside(self, theta: np.ndarray) -> np.ndarray:
        return np.asarray(((theta < self.low) | (theta > self.high)).any(-1))

    def _ask(self, y: Tensor, n: int, rng: np.random.Generator) -> np.ndarray:
        """n samples (q, n, d) at each of the encoded observations y (q, l), also beyond the bounds."""
        made, _ = self._local.sample(y, n, Seed(int(rng.integers(2**31))).child(0, n))
        return self._units.decode(made.flatten(0, 1).T).view(made.shape).numpy()


def posterior(
    theta: Any, x: Any, *, bounds: Any = None, verbose: bool = False
) -> Posterior:
    """The posterior p(θ | x), from parameters θ drawn from their prior and simulations x of them.

    Parameters
    ----------
    theta : (n, d) tensor, array or DataFrame of parameters; (n,) is one parameter. Samples have its
        floating type, float64 for whole numbers
    x : (n, l) of what was simulated with each; (n,) is one value
    bounds : None, or (low, high), the ends of the prior: numbers, or one for each parameter; infinite
        where there is none. No sample is outside: those that would be are drawn again
    verbose : show the progress of samples at many observations

    Examples
    --------
    θ has the prior N(0, 1) and x = θ + noise, so the posterior at x = 1 is N(½, ½):

    >>> theta, noise = np.random.default_rng(1).normal(size=(2, 2000))
    >>> found = posterior(theta, theta + noise)
    >>> samples = found.sample((1000,), x=1.0, random_state=0)
    >>> samples.shape, round(float(samples.mean()), 1), round(float(samples.var()), 1)
    (torch.Size([1000, 1]), 0.5, 0.5)
    """
    kind = np.asarray(from_tensor(theta)).dtype
    rows, given = _matching(theta, x)
    ends = (-np.inf, np.inf) if bounds is None else bounds
    low, high = (
        np.broadcast_to(np.asarray(from_tensor(e), np.float64), rows.shape[1])
        for e in ends
    )
    if not (low < high).all() or not ((rows >= low) & (rows <= high)).all():
        reach = f"from {rows.min(axis=0).tolist()} to {rows.max(axis=0).tolist()}"
        fact = f"bounds={bounds!r} must have low < high with all of theta between"
        raise ValueError(f"{fact}; its columns reach {reach}")
    dtype = "float32" if kind.kind == "f" and kind.itemsize <= 4 else "float64"
    return Posterior(rows, given, (low, high), dtype, verbose)


def load(path: str | os.PathLike[str]) -> Posterior:
    """The posterior that `Posterior.save` wrote: it gives the same samples."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            about = file.metadata() or {}
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"{os.fspath(path)} is not a posterior, or damaged ({error})"
        ) from error
    if (
        about.get("sliceflow") != "posterior 1"
        or not {"theta", "x", "low", "high"} <= found.keys()
    ):
        raise ValueError(f"{os.fspath(path)} is not a posterior that sliceflow saved")
    made = posterior(found["theta"], found["x"], bounds=(found["low"], found["high"]))
    made.dtype = "float32" if about.get("dtype") == "float32" else "float64"
    return made.set_default_x(found["default_x"]) if "default_x" in found else made


def _matching(theta: Any, x: Any) -> tuple[np.ndarray, np.ndarray]:
    """Parameters (n, d) and simulations (n, l) in float64, checked."""
    rows = [np.asarray(from_tensor(a), dtype=np.float64) for a in (theta, x)]
    rows = [a[:, None] if a.ndim == 1 else a for a in rows]
    for name, a in zip(("theta", "x"), rows, strict=True):
        if a.ndim != 2 or 0 in a.shape:
            raise ValueError(
                f"{name} has shape {a.shape}; pass one row for each simulation"
            )
        _check_values(name, a, "drop such simulations")
    n, m = map(len, rows)
    if n != m:
        raise ValueError(f"theta has {n} rows but x has {m}; pass one x for each theta")
    return rows[0], rows[1]


def _check_values(name: str, rows: np.ndarray, advice: str) -> None:
    with np.errstate(invalid="ignore"):
        bad = np.argwhere(~(np.abs(rows) <= _LARGEST))
    if len(bad):
        value = rows[tuple(bad[0])]
        at = bad[0].tolist()
        advice = (
            "divide such columns by a large number" if np.isfinite(value) else advice
        )
        raise ValueError(f"{name} contains {value} at {at}; {advice}")


def _shape(shape: Any) -> tuple[int, ...]:
    out = (shape,) if is_int(shape, 0) else tuple(shape)
    require(all(is_int(m, 1) for m in out), "shape", out, "ints of at least 1")
    return tuple(int(m) for m in out)
