"""Posteriors of simulators: parameters given an observation, from simulations alone.

Samples at an observation come from the simulations nearest to it (`neighbors.py`), or
from a likelihood that is fitted to all of them (`likelihood.py`). The calls are those
of sbi, but there is no `log_prob`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from sliceflow.arrays import SMALLEST_POSITIVE, Floats
from sliceflow.base import file
from sliceflow.engine import events
from sliceflow.engine.random import RandomStateLike, Seed
from sliceflow.errors import DataError
from sliceflow.estimators.density.conditional import MIN_CONDITIONAL_ROWS
from sliceflow.inference.checks import (
    as_observations,
    as_prior_bounds,
    as_shape,
    as_simulations,
    check_values,
    is_between,
)
from sliceflow.inference.comparison import Comparison, compare
from sliceflow.inference.likelihood import LikelihoodSampler, fit_likelihood
from sliceflow.inference.neighbors import fit_neighbor_sampler
from sliceflow.metrics.calibration_ranks import Calibration, calibration
from sliceflow.saved_types import ArraySpec
from sliceflow.validation import (
    from_tensor,
    require_choice,
    require_int,
    require_verbosity,
)

__all__ = ["Posterior", "load", "posterior"]

# Observations whose samples are drawn together. With more, progress is shown less
# often; with fewer, samples take longer.
OBSERVATIONS_PER_BATCH = 50
# Samples that `map` draws. With more, the mode is more exact, but the kernel density
# takes n²/4 distances.
SAMPLES_FOR_MAP = 2_000
# Steps of mean shift towards the mode. It starts at the densest sample, near the mode:
# fewer steps might end before it, more would not change it.
MEAN_SHIFT_STEPS = 50

# This many simulations are held out to choose a method, at most a fifth of all: with
# 100, differences of some tenths of a nat are seen.
HELD_OUT_TO_CHOOSE = 100
# Samples at each held-out simulation. Their distances to the true parameters estimate
# the density there.
SAMPLES_TO_CHOOSE = 200

# The most simulations to which both methods are fitted, to choose one: with more, the
# choice takes longer than the fit that follows.
MAX_SIMULATIONS_TO_CHOOSE = 20_000
# The seed of which rows are held out, and of random features. It is fixed, so that the
# same simulations make the same posterior.
LIKELIHOOD_SEED = Seed(0)

Dtype = Literal["float32", "float64"]
Method = Literal["neighbors", "likelihood"]


class PosteriorSampler(Protocol):
    """Draws θ given x: from nearest simulations, or by a likelihood."""

    def iter_samples(
        self, x: Floats, n: int, rng: np.random.Generator, batch_size: int
    ) -> Iterator[Floats]:
        """Draw n samples at each observation x (q, l), between the bounds, in batches.

        Batches are (b, n, d), of at most `batch_size` observations, in their order.
        """


class Posterior:
    """Posterior p(θ | x): draws θ given x. `posterior` makes it and checks its input.

    Parameters
    ----------
    theta : array (n, d)
        Parameters, float64.
    x : array (n, l)
        Simulations, float64.
    low, high : array (d,)
        Bounds of the parameters, infinite where there are none.
    dtype : "float32" or "float64", default "float64"
        The type of samples.
    verbose : bool, default False
        Whether to log the progress of samples at many observations.
    likelihood : LikelihoodSampler or None, default None
        A likelihood that is fitted to the simulations. None takes the nearest
        simulations.
    comparison : Comparison or None, default None
        How both methods compare, if "auto" has compared them.

    Attributes
    ----------
    method : "neighbors" or "likelihood"
        How samples are drawn.
    comparison : Comparison or None
        How both methods compare on held-out simulations, if "auto" has compared them.
    default_x : array (l,) or None
        The observation of `sample` and `map` without x.

    Examples
    --------
    >>> theta = np.random.default_rng(0).normal(size=(40, 1))
    >>> given_x = posterior(theta, 3 * theta).set_default_x(1.5)
    >>> bool(abs(given_x.sample((100,), random_state=0).mean() - 0.5) < 0.1)
    True
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
        likelihood: LikelihoodSampler | None = None,
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
        self._likelihood = likelihood
        self._sampler: PosteriorSampler
        if likelihood is None:
            self._sampler = fit_neighbor_sampler(theta, x, low, high)
        else:
            self._sampler = likelihood

    @property
    def method(self) -> Method:
        """How samples are drawn: "neighbors" or "likelihood"."""
        if self._likelihood is None:
            return "neighbors"
        return "likelihood"

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
        """Set the observation that `sample` and `map` take if they get no x.

        Parameters
        ----------
        x : (l,) or (1, l)
            One observation.

        Returns
        -------
        self : Posterior
        """
        self.default_x = self._one_observation(x)[0]
        return self

    def sample(
        self,
        shape: int | Sequence[int] = (),
        x: Any = None,
        *,
        random_state: RandomStateLike = None,
    ) -> Tensor:
        """Draw samples at one observation.

        Parameters
        ----------
        shape : int or tuple of int, default ()
            How many samples, such as ``(1000,)``.
        x : (l,), (1, l) or None, default None
            The observation. None takes that of `set_default_x`.
        random_state : int, RandomState, Generator or None, default None
            With None, every call gives new samples.

        Returns
        -------
        samples : tensor (*shape, d)
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
        random_state: RandomStateLike = None,
    ) -> Tensor:
        """Draw samples at several observations.

        Parameters
        ----------
        shape : int or tuple of int
            How many samples at each observation.
        x : (q, l)
            The observations.
        random_state : int, RandomState, Generator or None, default None
            With None, every call gives new samples.

        Returns
        -------
        samples : tensor (*shape, q, d)

        Examples
        --------
        >>> theta = np.random.default_rng(0).normal(size=(40, 1))
        >>> given_x = posterior(theta, theta)
        >>> given_x.sample_batched((10,), [[0.0], [1.0]]).shape
        torch.Size([10, 2, 1])
        """
        shape = as_shape(shape)
        observations = self._observations(x)
        samples = self._sample_all(observations, int(np.prod(shape)), random_state)
        by_sample = self._as_tensor(samples.transpose(1, 0, 2))
        return by_sample.reshape(*shape, len(observations), -1)

    def map(self, x: Any = None, *, random_state: RandomStateLike = 0) -> Tensor:
        """Find the most probable θ at one observation: the highest mode of samples.

        Mean shift (Fukunaga and Hostetler, 1975) climbs from the densest sample. The
        density is estimated by Gaussian kernels of Scott's width.

        Parameters
        ----------
        x : (l,), (1, l) or None, default None
            The observation. None takes that of `set_default_x`.
        random_state : int, RandomState, Generator or None, default 0
            The seed of the samples.

        Returns
        -------
        mode : tensor (d,)

        Examples
        --------
        >>> theta = np.random.default_rng(0).normal(size=(40, 1))
        >>> bool(abs(posterior(theta, theta).map([0.5]) - 0.5) < 0.1)
        True
        """
        observation = self._one_observation(x)
        samples = self._sample_all(observation, SAMPLES_FOR_MAP, random_state)[0]
        return self._as_tensor(np.clip(_highest_mode(samples), self.low, self.high))

    def calibrate(
        self,
        theta: Any,
        x: Any,
        *,
        n_samples: int = 100,
        random_state: RandomStateLike = 0,
    ) -> Calibration:
        """Test whether samples at each x cover theta as often as they should.

        Pass some hundred fresh simulations: parameters from the prior, and simulations
        of them, that did not make this posterior.

        Parameters
        ----------
        theta, x : (q, d) and (q, l)
            Fresh parameters and their simulations.
        n_samples : int, default 100
            How many samples to draw at each x.
        random_state : int, RandomState, Generator or None, default 0
            The seed of the samples.

        Returns
        -------
        calibration : sliceflow.metrics.Calibration
            Print it.

        Raises
        ------
        DataError
            If some of the simulations made this posterior.

        Examples
        --------
        >>> theta, noise = np.random.default_rng(1).normal(size=(2, 60, 1))
        >>> x = theta + noise
        >>> tests = posterior(theta[:40], x[:40]).calibrate(theta[40:], x[40:])
        >>> tests.ranks.shape, tests.n_samples
        ((20, 1), 100)
        """
        require_int("n_samples", n_samples, 1)
        theta, x = as_simulations(theta, x)
        known_simulations = {row.tobytes() for row in np.hstack((self.theta, self.x))}
        simulations = np.hstack((theta, x))
        n_known = sum(row.tobytes() in known_simulations for row in simulations)
        if n_known:
            raise DataError(
                f"{n_known} of {len(x)} simulations made this posterior",
                "simulate fresh ones",
            )
        with warnings.catch_warnings():
            # Warnings of far observations are no news: fresh simulations are far from
            # all others now and then, and the test covers them.
            warnings.simplefilter("ignore")
            samples = self._sample_all(self._observations(x), n_samples, random_state)
        return calibration(samples, theta, first_axis="conditions")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write simulations, bounds and likelihood to a file, which `load` opens.

        Parameters
        ----------
        path : str or path
            The file. An existing file is replaced atomically.
        """
        saved = SavedPosterior(
            theta=self.theta,
            x=self.x,
            low=self.low,
            high=self.high,
            default_x=self.default_x,
            dtype=self.dtype,
            likelihood=self._likelihood,
            comparison=self.comparison,
        )
        file.save(path, saved)

    def _as_tensor(self, theta: Floats) -> Tensor:
        """Samples (…, d) as a tensor of the user's type."""
        return torch.from_numpy(np.ascontiguousarray(theta.astype(self.dtype)))

    def _one_observation(self, x: Any) -> Floats:
        """The user's observation as (1, l), checked; the default one for None."""
        observations = self._observations(x)
        if len(observations) > 1:
            raise DataError(
                f"x has {len(observations)} observations",
                "sample takes one, sample_batched several",
            )
        return observations

    def _observations(self, x: Any) -> Floats:
        """The user's observations as (q, l), checked; the default one for None."""
        if x is None:
            x = self.default_x
        if x is None:
            raise DataError(
                "x is missing", "pass the observation, or call set_default_x"
            )
        return as_observations(x, n_values=self.x.shape[1])

    def _sample_all(
        self, observations: Floats, n: int, random_state: RandomStateLike
    ) -> Floats:
        """Draw n samples at each of q observations (q, l), inside the bounds.

        The result is (q, n, d).
        """
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


@dataclass(frozen=True, eq=False)
class SavedPosterior:
    """The part of a posterior that a file holds."""

    theta: Annotated[np.ndarray, ArraySpec("n d", "float64")]
    x: Annotated[np.ndarray, ArraySpec("n l", "float64")]
    low: Annotated[np.ndarray, ArraySpec("d", "float64", finite=False)]
    high: Annotated[np.ndarray, ArraySpec("d", "float64", finite=False)]
    default_x: Annotated[np.ndarray, ArraySpec("l", "float64")] | None
    dtype: Dtype
    likelihood: LikelihoodSampler | None = None
    comparison: Comparison | None = None

    def check_saved(self) -> None:
        """Raise a ValueError if the fields of a file contradict each other."""
        as_simulations(self.theta, self.x)  # raises an error if they are not
        if self.default_x is not None:
            check_values("default_x", self.default_x[None], "it must be finite")
        if not is_between(self.theta, self.low, self.high):
            raise ValueError("theta is not between its bounds")
        if self.likelihood is not None:
            self.likelihood.check_dimensions(self.theta.shape[1], self.x.shape[1])


def posterior(
    theta: Any,
    x: Any,
    *,
    bounds: Any = None,
    method: Method | Literal["auto"] = "neighbors",
    verbose: bool = False,
) -> Posterior:
    """Make the posterior p(θ | x) from parameters of the prior and their simulations.

    Parameters
    ----------
    theta : tensor, array or DataFrame (n, d) or (n,)
        Parameters; (n,) is one parameter. Samples have its floating type, float64 for
        whole numbers.
    x : tensor, array or DataFrame (n, l) or (n,)
        What was simulated with each of them; (n,) is one value.
    bounds : tuple (low, high) or None, default None
        The ends of the prior: numbers, or one number for each parameter, infinite where
        there is no end. No sample is outside: a draw outside is made again, and what is
        then still outside is mirrored at the bound. So samples are too dense at
        a bound if most of the posterior is beyond it.
    method : "neighbors", "likelihood" or "auto", default "neighbors"
        How samples are drawn.

        - "neighbors": from the simulations nearest to the observation, by local
          regressions. Trials choose how many are near, in some seconds.
        - "likelihood": a likelihood p(x | θ) is fitted to all simulations, with mean,
          scale and correlations of x as smooth functions of θ, and sampled over θ by
          tempered chains. It is better for many informative values, and takes seconds
          to a few minutes to fit. The prior, which it needs as a density, is for each
          parameter uniform between its bounds, normal or log-normal, whichever makes
          the simulated parameters most likely.
        - "auto": the method that makes the true parameters of held-out simulations more
          likely, however close the two are. `method` and `comparison` of the posterior,
          and its repr, say which and why.
    verbose : bool, default False
        Log the progress of samples at many observations, to the logger "sliceflow" of
        Python's `logging`, or to stderr if no handler shows that.

    Returns
    -------
    posterior : Posterior

    Raises
    ------
    DataError
        If a value is not finite, if shapes do not fit, or if there are too few
        simulations for a likelihood.
    ParameterError
        If theta is not between the bounds, or if `method` or `verbose` is invalid.

    Examples
    --------
    θ has the prior N(0, 1) and x = θ + noise, so the posterior at x = 1 is N(½, ½):

    >>> theta, noise = np.random.default_rng(1).normal(size=(2, 2000))
    >>> given_x = posterior(theta, theta + noise)
    >>> samples = given_x.sample((1000,), x=1.0, random_state=0)
    >>> samples.shape, round(float(samples.mean()), 1), round(float(samples.var()), 1)
    (torch.Size([1000, 1]), 0.5, 0.5)
    """
    user_theta = theta
    theta, x = as_simulations(theta, x)
    user_dtype = np.asarray(from_tensor(user_theta)).dtype
    dtype: Dtype = "float64"
    if user_dtype.kind == "f" and user_dtype.itemsize <= 4:
        dtype = "float32"
    low, high = as_prior_bounds(bounds, theta)
    require_choice("method", method, ("neighbors", "likelihood", "auto"))
    require_verbosity(verbose)
    comparison = None
    if method == "auto":
        comparison = _compare_methods(theta, x, low, high)
        method = comparison.better
    likelihood = None
    if method == "likelihood":
        likelihood = fit_likelihood(theta, x, low, high, LIKELIHOOD_SEED)
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
    """Fit both methods to some simulations, and compare them on the held-out others."""
    n = len(theta)
    n_held_out = min(HELD_OUT_TO_CHOOSE, n // 5)
    if n - n_held_out < MIN_CONDITIONAL_ROWS:
        return Comparison(neighbors=0.0, likelihood=-np.inf, error=0.0, n=0)
    order = LIKELIHOOD_SEED.child("held out").permutation(n).numpy()
    held_out = order[:n_held_out]
    train = order[n_held_out:][:MAX_SIMULATIONS_TO_CHOOSE]
    likelihood = fit_likelihood(theta[train], x[train], low, high, LIKELIHOOD_SEED)
    by_neighbors = Posterior(theta[train], x[train], low, high)
    by_likelihood = Posterior(theta[train], x[train], low, high, likelihood=likelihood)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some are far, which is part of the test
        return compare(
            by_neighbors._sample_all(x[held_out], SAMPLES_TO_CHOOSE, 0),
            by_likelihood._sample_all(x[held_out], SAMPLES_TO_CHOOSE, 0),
            theta[held_out],
        )


def load(path: str | os.PathLike[str], *, max_memory: int | None = None) -> Posterior:
    """Load the posterior that `Posterior.save` wrote. It gives the same samples.

    Parameters
    ----------
    path : str or path
        The file.
    max_memory : int or None, default None
        Maximum bytes, as in `sliceflow.load`.

    Returns
    -------
    posterior : Posterior

    Raises
    ------
    ModelFileError
        If the file is damaged, or is no posterior.

    Examples
    --------
    >>> import tempfile
    >>> theta = np.random.default_rng(0).normal(size=(40, 1))
    >>> given_x = posterior(theta, theta)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     given_x.save(f"{folder}/theta.posterior")
    ...     loaded = load(f"{folder}/theta.posterior")
    >>> samples = given_x.sample((3,), x=0.5, random_state=0)
    >>> bool((loaded.sample((3,), x=0.5, random_state=0) == samples).all())
    True
    """
    saved = file.load(path, [SavedPosterior], max_memory=max_memory)
    with file.as_model_file_errors(path):
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


def _highest_mode(samples: Floats) -> Floats:
    """The mode (d,) of samples (n, d) that is highest, by mean shift."""
    n, d = samples.shape
    width = (samples.std(axis=0) + SMALLEST_POSITIVE) * n ** (-1 / (d + 4))
    center = samples.mean(axis=0)
    scaled = (samples - center) / width
    # Every fourth sample is enough to compare densities, and four times as fast.
    squared_distances = np.square(scaled[:, None] - scaled[None, ::4]).sum(2)
    mode = scaled[np.exp(-0.5 * squared_distances).sum(1).argmax()]
    for _ in range(MEAN_SHIFT_STEPS):
        weights = np.exp(-0.5 * np.square(scaled - mode).sum(1))
        mode = weights @ scaled / weights.sum()
    return np.asarray(center + mode * width)


def _as_generator(random_state: RandomStateLike) -> np.random.Generator:
    """A generator of numpy. Before version 2.2, numpy makes none of a RandomState."""
    if isinstance(random_state, np.random.Generator):
        return random_state
    if isinstance(random_state, np.random.RandomState):
        return np.random.Generator(random_state._bit_generator)
    return np.random.default_rng(Seed.from_random_state(random_state).root)
