"""Samples of a density from many chains at once, by tempering.

The chains start at draws of the prior, weighted by a power of the likelihood that is so
small that many of them count. The power grows to 1 in steps; at each, chains are drawn
again by their new weights and then move (Del Moral, Doucet and Jasra 2006). So modes
keep the shares that they deserve.

A chain moves along the difference of two chains of the other half (ter Braak 2006), in
all coordinates or in some. The differences know scales, correlations and the distances
between modes, so no step sizes need to be tuned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sliceflow.arrays import Floats, Ints, Mask
from sliceflow.engine.random import Seed

__all__ = ["sample_tempered"]

# The log-likelihoods (n,) of parameters (n, d), each at one of q observations (n,).
LogLikelihood = Callable[[Floats, Ints], Floats]
# Log-densities (n,) of parameters (n, d); −∞ where they are impossible.
LogDensity = Callable[[Floats], Floats]

# There are as many chains as samples, within these limits. With fewer, differences of
# chains are too coarse for ten parameters; with more, burning in costs more than
# drawing longer.
MIN_CHAINS = 200
MAX_CHAINS = 2_000
# Each new power of the likelihood is chosen so that this share of the chains stays
# effective.
EFFECTIVE_SHARE = 0.7
# The first power is chosen so that this share of the starts stays effective: a few that
# are near a mode by chance must not be the ancestors of all chains.
EFFECTIVE_START_SHARE = 0.5
# The numbers of moves at every power, before samples are taken, and between samples of
# one chain. The four modes of SLCP have equal shares by symmetry. With 4 moves, and a
# first power that leaves few starts, shares were off by .13 to .58 in total variation
# (six runs, two observations, 10,000 simulations); with 15, and half of the starts, by
# .04 to .16.
MOVES_PER_POWER = 15
BURN_IN_MOVES = 24
MOVES_PER_SAMPLE = 10
# The share of moves by a whole difference, which leap from mode to mode, and the share
# of moves in some of the coordinates only. A move may be both: where the sign of one
# parameter does not matter, modes differ in that one only.
LEAP_SHARE = 0.2
PARTIAL_SHARE = 0.5
# How many coordinates a move in some of the coordinates has, on average.
MEAN_COORDINATES = 1.5
# The spread of the length of a move, as a logarithm: short moves for narrow places.
LENGTH_SPREAD = 1.0
# The share of moves that should be accepted, at which chains of 5 to 10 dimensions mix
# fastest, and how fast the lengths of moves adapt to reach it.
TARGET_ACCEPTANCE = 0.25
ADAPTATION_RATE = 0.5
# The next power is found to within 2⁻²⁰ of the way to 1, and grows by this at least:
# where no simulation is near an observation, there would be thousands of powers.
POWER_BISECTIONS = 20
MIN_POWER_CHANGE = 0.02


@dataclass(eq=False)
class Chains:
    """m chains at each of q observations: their θ (q, m, d) and densities (q, m)."""

    theta: Floats
    log_likelihood: Floats
    log_prior: Floats

    def take(self, indices: Ints) -> Chains:
        """Select chains (q, m') of each observation, some perhaps several times."""
        return Chains(
            np.take_along_axis(self.theta, indices[:, :, None], axis=1),
            np.take_along_axis(self.log_likelihood, indices, axis=1),
            np.take_along_axis(self.log_prior, indices, axis=1),
        )


class _MoveNumbers(NamedTuple):
    """Uniform random numbers of moves (q, n), and of their coordinates (q, n, d).

    Each decides something of a move.
    """

    first: Floats  # the first of two chains, whose difference the move follows
    second: Floats  # the second of them, another one
    leap: Floats  # whether the move is by the whole difference
    accept: Floats  # whether the move is accepted
    partial: Floats  # whether the move is in some of the coordinates only
    coordinates: Floats  # which coordinates these are

    @classmethod
    def draw(cls, q: int, n: int, d: int, seed: Seed) -> _MoveNumbers:
        """The numbers of n moves, in d coordinates, at each of q observations."""
        numbers = seed.uniform(q * n, 5 + d).numpy().reshape(q, n, 5 + d)
        return cls(
            first=numbers[:, :, 0],
            second=numbers[:, :, 1],
            leap=numbers[:, :, 2],
            accept=numbers[:, :, 3],
            partial=numbers[:, :, 4],
            coordinates=numbers[:, :, 5:],
        )


def _differences(theta: Floats, others: Ints, numbers: _MoveNumbers) -> Floats:
    """Differences (q, n, d) of two random chains each, 0 in coordinates that stay.

    Parameters
    ----------
    theta : of all chains, (q, m, d)
    others : indices of the chains whose differences these are
    numbers : random numbers of n moves
    """
    d = theta.shape[2]
    n_others = len(others)
    first = (numbers.first * n_others).astype(int)
    # So many places further in the circle of the others, where the first is not.
    offset = 1 + (numbers.second * (n_others - 1)).astype(int)
    second = (first + offset) % n_others
    first_theta = np.take_along_axis(theta, others[first][:, :, None], axis=1)
    second_theta = np.take_along_axis(theta, others[second][:, :, None], axis=1)
    differences = first_theta - second_theta
    is_partial = numbers.partial < PARTIAL_SHARE
    is_fixed = numbers.coordinates > MEAN_COORDINATES / d
    differences[is_partial[:, :, None] & is_fixed] = 0
    return np.asarray(differences)


class ChainMover:
    """Moves chains, and learns how long moves should be at each observation.

    Parameters
    ----------
    log_likelihood, log_prior : functions of parameters, as in `sample_tempered`
    q, d : the numbers of observations and of parameters
    seed : the seed of all moves
    """

    def __init__(
        self,
        log_likelihood: LogLikelihood,
        log_prior: LogDensity,
        q: int,
        d: int,
        seed: Seed,
    ) -> None:
        self.log_likelihood = log_likelihood
        self.log_prior = log_prior
        self.seed = seed
        self.n_moves = 0
        # The best length for a Gaussian (Roberts, Gelman and Gilks 1997), for
        # differences, whose variance is twice that of the chains.
        self.log_length = np.full(q, np.log(2.38 / (2 * d) ** 0.5))

    def move(self, chains: Chains, power: Floats, n_moves: int, adapt: bool) -> None:
        """Move all chains, in place; their distribution prior · likelihood^power stays.

        Parameters
        ----------
        chains : m chains at each of q observations
        power : the power of the likelihood at each observation, (q,)
        n_moves : how often chains move
        adapt : whether to change the lengths of moves, so that a good share is accepted
        """
        q, n = chains.log_likelihood.shape
        for _ in range(n_moves):
            seed = self.seed.child(self.n_moves)
            self.n_moves += 1
            order = seed.child("halves").permutation(n).numpy()
            halves = (order[: n // 2], order[n // 2 :])
            is_accepted = np.zeros((q, n), bool)
            for i, moving in enumerate(halves):
                is_accepted[:, moving] = self._move_half(
                    chains, moving, halves[1 - i], power, seed.child("half", i)
                )
            if adapt:
                excess = is_accepted.mean(axis=1) - TARGET_ACCEPTANCE
                self.log_length += ADAPTATION_RATE * excess

    def _move_half(
        self, chains: Chains, moving: Ints, others: Ints, power: Floats, seed: Seed
    ) -> Mask:
        """Move some chains along differences of others, in place.

        Parameters
        ----------
        chains, power : as in `move`
        moving, others : indices (n,) of the chains that move, and of the other half
        seed : the seed of these moves

        Returns
        -------
        is_accepted : (q, n), which moves were accepted
        """
        q, _, d = chains.theta.shape
        numbers = _MoveNumbers.draw(q, len(moving), d, seed.child("uniform"))
        spread = seed.child("lengths").normal(q, len(moving)).numpy()
        length = np.exp(self.log_length[:, None] + LENGTH_SPREAD * spread)
        length[numbers.leap < LEAP_SHARE] = 1
        move = length[:, :, None] * _differences(chains.theta, others, numbers)
        proposed = chains.theta[:, moving] + move
        return self._move_accepted(chains, moving, proposed, power, numbers.accept)

    def _move_accepted(
        self,
        chains: Chains,
        moving: Ints,
        proposed: Floats,
        power: Floats,
        uniform: Floats,
    ) -> Mask:
        """Accept or reject proposals, as Metropolis and Hastings do, and move chains.

        Chains move in place.

        Parameters
        ----------
        chains, power : as in `move`
        moving : indices (n,) of the chains that may move
        proposed : where they would be, (q, n, d)
        uniform : random numbers (q, n)

        Returns
        -------
        is_accepted : (q, n), which chains have moved
        """
        log_likelihood, log_prior = self._evaluate(proposed)
        log_ratio = power[:, None] * (log_likelihood - chains.log_likelihood[:, moving])
        log_ratio += log_prior - chains.log_prior[:, moving]
        is_accepted = np.log(uniform) < log_ratio
        observation, moved = np.nonzero(is_accepted)
        changed = (observation, moving[moved])
        chains.theta[changed] = proposed[is_accepted]
        chains.log_likelihood[changed] = log_likelihood[is_accepted]
        chains.log_prior[changed] = log_prior[is_accepted]
        return np.asarray(is_accepted)

    def _evaluate(self, theta: Floats) -> tuple[Floats, Floats]:
        """Log-likelihoods and log-priors (q, n) of parameters (q, n, d)."""
        q, n, d = theta.shape
        log_prior = self.log_prior(theta.reshape(q * n, d)).reshape(q, n)
        log_likelihood = np.full((q, n), -np.inf)
        is_possible = np.isfinite(log_prior)
        observations = np.nonzero(is_possible)[0]
        if len(observations):
            log_likelihood[is_possible] = self.log_likelihood(
                theta[is_possible], observations
            )
        return log_likelihood, log_prior


def sample_tempered(
    log_likelihood: LogLikelihood,
    log_prior: LogDensity,
    initial_theta: Floats,
    initial_log_likelihood: Floats,
    n: int,
    seed: Seed,
) -> Floats:
    """Draw n samples of prior · likelihood at each of q observations: (q, n, d).

    Parameters
    ----------
    log_likelihood : takes parameters (m, d), and for each the index (m,) of an
    observation
    log_prior : takes parameters (m, d)
    initial_theta : draws (s, d) of the prior, some thousands
    initial_log_likelihood : of these draws at each observation, (q, s)
    n : the number of samples
    seed : the seed of all moves
    """
    q = len(initial_log_likelihood)
    n_starts, d = initial_theta.shape
    n_chains = min(max(MIN_CHAINS, n), MAX_CHAINS)
    n_chains += n_chains % 2  # two halves of one size
    power = _next_power(
        initial_log_likelihood, np.zeros(q), EFFECTIVE_START_SHARE * n_starts
    )
    chosen = _resample(initial_log_likelihood, power, n_chains, seed.child("start"))
    chains = Chains(
        initial_theta[chosen],
        np.take_along_axis(initial_log_likelihood, chosen, axis=1),
        log_prior(initial_theta)[chosen],
    )
    mover = ChainMover(log_likelihood, log_prior, q, d, seed.child("moves"))
    mover.move(chains, power, MOVES_PER_POWER, adapt=True)
    chains = _raise_power(chains, power, mover, seed)
    return _draw_samples(chains, n, mover, seed)


def _raise_power(
    chains: Chains, power: Floats, mover: ChainMover, seed: Seed
) -> Chains:
    """The chains after the power of the likelihood has grown from `power` (q,) to 1.

    At each power, chains are drawn again by their new weights, and then move.
    """
    _, n_chains = chains.log_likelihood.shape
    n_powers = 0
    while (power < 1).any():
        min_effective = EFFECTIVE_SHARE * n_chains
        next_power = _next_power(chains.log_likelihood, power, min_effective)
        change = next_power - power
        power_seed = seed.child("power", n_powers)
        chosen = _resample(chains.log_likelihood, change, n_chains, power_seed)
        chains = chains.take(chosen)
        power = next_power
        mover.move(chains, power, MOVES_PER_POWER, adapt=True)
        n_powers += 1
    return chains


def _draw_samples(chains: Chains, n: int, mover: ChainMover, seed: Seed) -> Floats:
    """n samples (q, n, d) of chains whose power is 1, which move on in place."""
    q, n_chains = chains.log_likelihood.shape
    power = np.ones(q)
    mover.move(chains, power, BURN_IN_MOVES, adapt=True)
    samples = [chains.theta.copy()]
    while len(samples) * n_chains < n:
        mover.move(chains, power, MOVES_PER_SAMPLE, adapt=False)
        samples.append(chains.theta.copy())
    order = seed.child("order").permutation(len(samples) * n_chains).numpy()
    return np.concatenate(samples, axis=1)[:, order[:n]]


def _next_power(log_likelihood: Floats, power: Floats, min_effective: float) -> Floats:
    """The largest powers ≤ 1 (q,) at which enough chains stay effective, by bisection.

    Parameters
    ----------
    log_likelihood : log-likelihoods (q, n) of the chains at each observation
    power : the powers (q,) so far
    min_effective : how many of the chains must stay effective
    """
    low = np.zeros(len(power))
    high = 1 - power
    is_last = _effective_count(log_likelihood, high) >= min_effective
    for _ in range(POWER_BISECTIONS):
        middle = (low + high) / 2
        is_enough = _effective_count(log_likelihood, middle) >= min_effective
        low = np.where(is_enough, middle, low)
        high = np.where(is_enough, high, middle)
    return np.where(
        is_last, 1.0, np.minimum(power + np.maximum(low, MIN_POWER_CHANGE), 1.0)
    )


def _weights(log_likelihood: Floats, power: Floats) -> Floats:
    """Weights (q, n) of chains, in proportion to a power of their likelihoods."""
    highest = log_likelihood.max(axis=1, keepdims=True)
    weights = np.exp(power[:, None] * (log_likelihood - highest))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _effective_count(log_likelihood: Floats, power: Floats) -> Floats:
    """Kish's effective number (q,) of chains that are weighted."""
    return np.asarray(1 / np.square(_weights(log_likelihood, power)).sum(axis=1))


def _resample(log_likelihood: Floats, power: Floats, n: int, seed: Seed) -> Ints:
    """n indices at each observation (q, n), each as often as its weight says.

    Systematic resampling: n numbers at equal distances, with one random offset, pick
    from the summed weights.
    """
    totals = np.cumsum(_weights(log_likelihood, power), axis=1)
    positions = (np.arange(n) + float(seed.uniform(1, 1)[0, 0])) / n
    indices = [np.searchsorted(total, positions * total[-1]) for total in totals]
    return np.asarray(np.minimum(np.stack(indices), totals.shape[1] - 1))
