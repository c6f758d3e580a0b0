"""Posteriors of simulators: parameters given an observation, from simulations alone.

Samples at an observation come from the simulations nearest to it, without any fit
(`neighbours.py`), or from a likelihood that is fitted to all of them
(`likelihood.py`). The calls are those of sbi, but there is no `log_prob`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from sliceflow.arrays import Floats
from sliceflow.engine import events
from sliceflow.engine.random import RandomState, Seed
from sliceflow.errors import DataError
from sliceflow.inference.checks import (
    as_shape,
    check_bounds,
    check_observations,
    check_simulations,
    check_values,
    is_between,
)
from sliceflow.inference.comparison import Comparison, compare
from sliceflow.inference.likelihood import MIN_SIMULATIONS, Likelihood
from sliceflow.inference.neighbours import NeighbourSampler
from sliceflow.metrics.calibration import Calibration, calibration
from sliceflow.models import file
from sliceflow.saved_types import ArraySpec
from sliceflow.validation import from_tensor, require

__all__ = ["Posterior", "load", "posterior"]

# Observations whose samples are drawn at a time. With more, lines of progress come less
# often; with fewer, samples take longer.
OBSERVATIONS_PER_BATCH = 50
# Samples that `map` draws. With more, the mode is more exact, but the kernel density
# takes n²/4 distances.
SAMPLES_FOR_MAP = 2_000
# Steps of mean shift towards the mode. It starts at the densest sample, near the mode:
# fewer steps might end before it, more would not change it.
MEAN_SHIFT_STEPS = 50

# Of n simulations, so many are held out to choose a method, at most a fifth: with 100,
# differences of some tenths of a nat are seen.
HELD_OUT_TO_CHOOSE = 100
# Samples at each of them. The distance to the nearest ones is a density.
SAMPLES_TO_CHOOSE = 200

# Simulations with which both are fitted: with more, the choice takes longer than the
# fit that follows.
MAX_SIMULATIONS_TO_CHOOSE = 20_000
# Which rows are held out, and random features: the same for everybody, so that the same
# simulations make the same posterior.
LIKELIHOOD_SEED = Seed(0)

Dtype = Literal["float32", "float64"]
Method = Literal["neighbours", "likelihood"]


class Posterior:
    """Samples of θ given x. Made by `posterior`, which checks what it is given.

    Parameters
    ----------
    theta : parameters (n, d), float64
    x : simulations (n, l), float64
    low, high : bounds (d,) of the parameters, infinite where there are none
    dtype : of samples
    verbose : whether to log the progress of samples at many observations
    likelihood : fitted to the simulations; None takes the nearest of them
    comparison : of both methods, if there was one

    Attributes
    ----------
    method : "neighbours" or "likelihood"
    """

    def __init__(
        self,
        theta: Floats,
        x: Floats,
        low: Floats,
        high: Floats,
        dtype: Dtype = "float64",
        verbose: bool = False,
        *,
        likelihood: Likelihood | None = None,
        comparison: Comparison | None = None,
    ) -> None:
        self.theta = theta
        self.x = x
        self.low = low
        self.high = high
        self.dtype: Dtype = dtype
        self.verbose = verbose
        self.default_x: Floats | None = None
        self.comparison = comparison
        self._sampler: NeighbourSampler | Likelihood
        if likelihood is None:
            self._sampler = NeighbourSampler(theta, x, low, high)
        else:
            self._sampler = likelihood

    @property
    def method(self) -> Method:
        """By which method samples are drawn."""
        if isinstance(self._sampler, Likelihood):
            return "likelihood"
        return "neighbours"

    def __repr__(self) -> str:
        n, d = self.theta.shape
        n_values = self.x.shape[1]
        text = (
            f"Posterior of {d} parameters given {n_values} values, from {n} "
            f"simulations, by {self.method}"
        )
        if self.comparison is not None:
            text += f" ({self.comparison})"
        return text

    def set_default_x(self, x: Any) -> Self:
        """Set the observation of `sample` and `map` without x; returns itself."""
        self.default_x = self._one_observation(x)[0]
        return self

    def sample(
        self,
        shape: int | Sequence[int] = (),
        x: Any = None,
        *,
        random_state: RandomState = None,
    ) -> Tensor:
        """Samples at one observation x (l,) or (1, l): a tensor (*shape, d).

        `shape` is a tuple such as (1000,), or an int. Without x it is that of
        `set_default_x`. The same `random_state` gives the same samples; None gives new
        ones on every call.
        """
        shape = as_shape(shape)
        observation = self._one_observation(x)
        samples = self._sample_all(observation, int(np.prod(shape)), random_state)
        return self._as_tensor(samples).view(*shape, -1)

    def sample_batched(
        self,
        shape: int | Sequence[int],
        x: Any,
        *,
        random_state: RandomState = None,
    ) -> Tensor:
        """Samples at several observations x (q, l): a tensor (*shape, q, d)."""
        shape = as_shape(shape)
        observations = self._observations(x)
        samples = self._sample_all(observations, int(np.prod(shape)), random_state)
        by_sample = self._as_tensor(samples.transpose(1, 0, 2))
        return by_sample.reshape(*shape, len(observations), -1)

    def map(self, x: Any = None, *, random_state: RandomState = 0) -> Tensor:
        """The most probable θ (d,) at one observation: the highest mode of samples.

        Mean shift (Fukunaga and Hostetler, 1975) from the densest sample. The density
        is that of Gaussian kernels of Scott's width.
        """
        observation = self._one_observation(x)
        samples = self._sample_all(observation, SAMPLES_FOR_MAP, random_state)[0]
        n, d = samples.shape
        width = (samples.std(axis=0) + 1e-300) * n ** (-1 / (d + 4))
        centre = samples.mean(axis=0)
        scaled = (samples - centre) / width
        # The density at every sample, from every fourth one: four times as fast.
        squared_distances = np.square(scaled[:, None] - scaled[None, ::4]).sum(2)
        mode = scaled[np.exp(-0.5 * squared_distances).sum(1).argmax()]
        for _ in range(MEAN_SHIFT_STEPS):
            weights = np.exp(-0.5 * np.square(scaled - mode).sum(1))
            mode = weights @ scaled / weights.sum()
        return self._as_tensor(np.clip(centre + mode * width, self.low, self.high))

    def calibrate(
        self,
        theta: Any,
        x: Any,
        *,
        n_samples: int = 100,
        random_state: RandomState = 0,
    ) -> Calibration:
        """Whether n samples at each x cover theta as often as they should.

        Pass some hundred fresh simulations: parameters from the prior that did not make
        this posterior. See `metrics.calibration`.
        """
        theta, x = check_simulations(theta, x)
        known_simulations = {row.tobytes() for row in np.hstack((self.theta, self.x))}
        simulations = np.hstack((theta, x))
        n_known = sum(row.tobytes() in known_simulations for row in simulations)
        if n_known:
            raise DataError(
                f"{n_known} of {len(x)} simulations made this posterior",
                "simulate fresh ones",
            )
        with warnings.catch_warnings():
            # Some fresh simulations are far from all others: that is part of the test.
            warnings.simplefilter("ignore")
            samples = self._sample_all(self._observations(x), n_samples, random_state)
        return calibration(samples, theta, first="conditions")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write simulations, bounds and likelihood to a file, without pickle."""
        likelihood = None
        if isinstance(self._sampler, Likelihood):
            likelihood = self._sampler
        saved = SavedPosterior(
            theta=self.theta,
            x=self.x,
            low=self.low,
            high=self.high,
            default_x=self.default_x,
            dtype=self.dtype,
            likelihood=likelihood,
            comparison=self.comparison,
        )
        file.save(path, saved)

    def _as_tensor(self, theta: Floats) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(theta.astype(self.dtype)))

    def _one_observation(self, x: Any) -> Floats:
        """One observation (1, l), checked; the default one for None."""
        observations = self._observations(x)
        if len(observations) > 1:
            raise DataError(
                f"x has {len(observations)} observations",
                "sample takes one, sample_batched several",
            )
        return observations

    def _observations(self, x: Any) -> Floats:
        """Observations (q, l), checked; the default one for None."""
        if x is None:
            x = self.default_x
        if x is None:
            raise DataError(
                "x is missing", "pass the observation, or call set_default_x"
            )
        return check_observations(x, n_values=self.x.shape[1])

    def _sample_all(
        self, observations: Floats, n: int, random_state: RandomState
    ) -> Floats:
        """n samples at each of q observations (q, l), between the bounds: (q, n, d)."""
        require(n >= 1, "n_samples", n, "at least 1")
        rng = _as_generator(random_state)
        batches = self._sampler.iter_samples(
            observations, n, rng, OBSERVATIONS_PER_BATCH
        )
        q = len(observations)
        if self.verbose:
            events.show_log()
        samples = np.empty((q, n, self.theta.shape[1]))
        n_done = 0
        for batch in batches:
            samples[n_done : n_done + len(batch)] = batch
            n_done += len(batch)
            if self.verbose and q > 1:
                events.LOGGER.info("samples at %d/%d observations", n_done, q)
        return samples


@dataclass(frozen=True)
class SavedPosterior:
    """What a file holds of a posterior."""

    theta: Annotated[np.ndarray, ArraySpec("n d", torch.float64)]
    x: Annotated[np.ndarray, ArraySpec("n l", torch.float64)]
    low: Annotated[np.ndarray, ArraySpec("d", torch.float64, finite=False)]
    high: Annotated[np.ndarray, ArraySpec("d", torch.float64, finite=False)]
    default_x: Annotated[np.ndarray, ArraySpec("l", torch.float64)] | None
    dtype: Dtype
    likelihood: Likelihood | None = None
    comparison: Comparison | None = None

    def check_saved(self) -> None:
        """Raise a ValueError if the fields of a file contradict each other."""
        check_simulations(self.theta, self.x)
        if self.default_x is not None:
            check_values("default_x", self.default_x[None], "it must be finite")
        if not is_between(self.theta, self.low, self.high):
            raise ValueError("theta is not between its bounds")
        if self.likelihood is not None:
            self.likelihood.check_width(self.theta.shape[1], self.x.shape[1])


def posterior(
    theta: Any,
    x: Any,
    *,
    bounds: Any = None,
    method: Method | Literal["auto"] = "neighbours",
    verbose: bool = False,
) -> Posterior:
    """The posterior p(θ | x), from parameters θ of the prior and simulations x of each.

    Parameters
    ----------
    theta : (n, d) tensor, array or DataFrame of parameters; (n,) is one parameter.
        Samples have its floating type, float64 for whole numbers
    x : (n, l) of what was simulated with each; (n,) is one value
    bounds : None, or (low, high), the ends of the prior: numbers, or one for each
        parameter; infinite where there is none. No sample is outside: those that would
        be are drawn again, and what is then still outside is mirrored at the bound. So
        samples are too dense at a bound if most of the posterior is beyond it
    method : how samples are drawn.

        - "neighbours": from the simulations nearest to the observation, by local
          regressions. There is nothing to fit
        - "likelihood": a likelihood p(x | θ) is fitted to all simulations, with mean,
          scale and correlations of x as smooth functions of θ, and sampled over θ by
          tempered chains. It is better for many informative values, and takes seconds
          to a few minutes to fit. The prior, which it needs as a density, is for each
          parameter uniform between its bounds, normal or log-normal, whichever makes
          the simulated parameters most likely
        - "auto": whichever of both makes the true parameters of simulations that were
          held out more likely, however close they are. `method` and `comparison` of
          the posterior, and its repr, say which and why
    verbose : log the progress of samples at many observations, to the logger
        "sliceflow" of Python's `logging`, or to stderr if no handler shows that

    Examples
    --------
    θ has the prior N(0, 1) and x = θ + noise, so the posterior at x = 1 is N(½, ½):

    >>> theta, noise = np.random.default_rng(1).normal(size=(2, 2000))
    >>> given_x = posterior(theta, theta + noise)
    >>> samples = given_x.sample((1000,), x=1.0, random_state=0)
    >>> samples.shape, round(float(samples.mean()), 1), round(float(samples.var()), 1)
    (torch.Size([1000, 1]), 0.5, 0.5)
    """
    user_dtype = np.asarray(from_tensor(theta)).dtype
    dtype: Dtype = "float64"
    if user_dtype.kind == "f" and user_dtype.itemsize <= 4:
        dtype = "float32"
    theta, x = check_simulations(theta, x)
    low, high = check_bounds(bounds, theta)
    require(
        method in ("neighbours", "likelihood", "auto"),
        "method",
        method,
        "'neighbours', 'likelihood' or 'auto'",
    )
    comparison = None
    if method == "auto":
        comparison = _compare_methods(theta, x, low, high)
        method = comparison.better
    likelihood = None
    if method == "likelihood":
        likelihood = Likelihood.from_data(theta, x, low, high, LIKELIHOOD_SEED)
    return Posterior(
        theta,
        x,
        low,
        high,
        dtype,
        verbose,
        likelihood=likelihood,
        comparison=comparison,
    )


def _compare_methods(theta: Floats, x: Floats, low: Floats, high: Floats) -> Comparison:
    """Both methods, judged by parameters of simulations that they have not seen."""
    n = len(theta)
    n_held_out = min(HELD_OUT_TO_CHOOSE, n // 5)
    if n - n_held_out < MIN_SIMULATIONS:
        return Comparison(neighbours=0.0, likelihood=-np.inf, error=0.0, n=0)
    order = LIKELIHOOD_SEED.child("held out").permutation(n).numpy()
    held_out = order[:n_held_out]
    rest = order[n_held_out:][:MAX_SIMULATIONS_TO_CHOOSE]
    samples = {}
    for method in ("neighbours", "likelihood"):
        likelihood = None
        if method == "likelihood":
            likelihood = Likelihood.from_data(
                theta[rest], x[rest], low, high, LIKELIHOOD_SEED
            )
        trial = Posterior(theta[rest], x[rest], low, high, likelihood=likelihood)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some are far, which is part of the test
            samples[method] = trial._sample_all(x[held_out], SAMPLES_TO_CHOOSE, 0)
    return compare(samples["neighbours"], samples["likelihood"], theta[held_out])


def load(path: str | os.PathLike[str], *, max_memory: int | None = None) -> Posterior:
    """The posterior that `Posterior.save` wrote: it gives the same samples.

    Raises a `ModelFileError` for any other file. `max_memory` is as in
    `sliceflow.load`.
    """
    saved = file.load(path, [SavedPosterior], max_memory=max_memory)
    with file.reading(path):
        loaded = Posterior(
            saved.theta,
            saved.x,
            saved.low,
            saved.high,
            saved.dtype,
            likelihood=saved.likelihood,
            comparison=saved.comparison,
        )
    loaded.default_x = saved.default_x
    return loaded


def _as_generator(random_state: RandomState) -> np.random.Generator:
    """A generator of numpy. Before version 2.2, numpy makes none of a RandomState."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.Generator(random_state._bit_generator)
    return np.random.default_rng(random_state)
