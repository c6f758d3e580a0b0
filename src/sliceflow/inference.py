"""Posteriors of simulators: parameters given an observation, from simulations alone.

`posterior` has the shape of the posteriors of sbi: simulate, then ask for samples at any observation.
There is no network and no training: an observation asks the simulations nearest to it
(`sliceflow.neighbours.local`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.errors import from_tensor, is_int, need
from sliceflow.neighbours.local import LocalRows

__all__ = ["Posterior", "posterior"]

_AGAIN = 8  # times the samples that are drawn again where some are outside the bounds


@dataclass(frozen=True)
class Posterior:
    """Samples of θ given x. Made by `posterior`.

    Parameters
    ----------
    near : the simulations
    low, high : (d,), the bounds of θ; infinite where there are none
    dtype : of the samples
    """

    near: LocalRows
    low: Tensor
    high: Tensor
    dtype: torch.dtype

    def sample(self, shape: Any = (1,), x: Any = None, *, random_state: Any = None) -> Tensor:
        """Samples at one observation x (l,) or (1, l): a tensor (*shape, d).

        Parameters
        ----------
        shape : the number of samples, as a tuple such as (1000,), or an int
        x : the observation
        random_state : int, RandomState, Generator or None
            None gives new samples on every call.
        """
        shape = (shape,) if is_int(shape, 1) else tuple(shape)
        x0 = self._observations(x)
        if len(x0) != 1:
            raise ValueError(
                f"x has {len(x0)} observations; sample takes one, sample_batched takes several"
            )
        n = int(np.prod(shape))
        need(n >= 1 and all(is_int(m, 1) for m in shape), "shape", shape, "ints of at least 1")
        return self._drawn(x0, n, random_state)[0].view(*shape, -1)

    def sample_batched(self, shape: Any, x: Any, *, random_state: Any = None) -> Tensor:
        """Samples at several observations x (q, l): a tensor (*shape, q, d)."""
        shape = (shape,) if is_int(shape, 1) else tuple(shape)
        x0, n = self._observations(x), int(np.prod(shape))
        need(n >= 1 and all(is_int(m, 1) for m in shape), "shape", shape, "ints of at least 1")
        made = self._drawn(x0, n, random_state).transpose(0, 1)
        return made.reshape(*shape, len(x0), -1)

    def log_prob(self, *_: Any, **__: Any) -> NoReturn:
        """Not there: always raises an error that says so."""
        raise NotImplementedError(
            "this posterior has samples but no density, so it has no log_prob; estimate one from "
            "samples, for example with scipy.stats.gaussian_kde"
        )

    def _observations(self, x: Any) -> Tensor:
        if x is None:
            raise ValueError("x is missing; pass the observation")
        x0 = np.atleast_2d(np.asarray(from_tensor(x), dtype=np.float64))
        width = self.near.y.shape[1]
        if x0.ndim != 2 or x0.shape[1] != width or not len(x0):
            raise ValueError(
                f"x has shape {np.shape(x)} but simulations have {width} values; pass ({width},) or "
                f"(q, {width})"
            )
        if not np.isfinite(x0).all():
            raise ValueError(f"x contains {x0[~np.isfinite(x0)][0]}; observations must be finite")
        return torch.from_numpy(x0)

    def _drawn(self, x0: Tensor, n: int, random_state: Any) -> Tensor:
        self.near.warn_of_far(x0, "x", stacklevel=3)
        return self._inside(x0, n, Seed.of(random_state)).to(self.dtype)

    def _inside(self, x0: Tensor, n: int, seed: Seed) -> Tensor:
        """n samples (q, n, d) between the bounds: what is outside is drawn again."""
        made = self.near.sample(x0, n, seed)
        inside = ((made >= self.low) & (made <= self.high)).all(2)
        for i in torch.nonzero(~inside.all(1))[:, 0].tolist():
            more = self.near.sample(x0[i : i + 1], _AGAIN * n, seed.child("again", i))[0]
            fits = ((more >= self.low) & (more <= self.high)).all(1)
            outside = torch.nonzero(~inside[i])[:, 0]
            spare = more[fits][: len(outside)]
            made[i, outside[: len(spare)]] = spare
        return _mirrored(made, self.low, self.high)


def posterior(theta: Any, x: Any, *, bounds: Any = None) -> Posterior:
    """The posterior p(θ | x), from parameters θ drawn from their prior and simulations x of them.

    Parameters
    ----------
    theta : (n, d) tensor or array of parameters
    x : (n, l) tensor or array of what was simulated with each
    bounds : None, or (low, high), the ends of the prior: numbers, or one for each parameter; infinite
        where there is none. No sample is outside: those that would be are drawn again

    Examples
    --------
    θ has the prior N(0, 1) and x = θ + noise, so the posterior at x = 1 is N(½, ½):

    >>> theta = Seed(0).normal(2000, 1)
    >>> x = theta + Seed(1).normal(2000, 1)
    >>> samples = posterior(theta, x).sample((1000,), x=[1.0], random_state=0)
    >>> samples.shape, round(float(samples.mean()), 1), round(float(samples.var()), 1)
    (torch.Size([1000, 1]), 0.5, 0.5)
    """
    dtype = theta.dtype if isinstance(theta, Tensor) and theta.is_floating_point() else torch.float32
    rows, given = (np.asarray(from_tensor(a), dtype=np.float64) for a in (theta, x))
    for name, a in (("theta", rows), ("x", given)):
        if a.ndim != 2 or 0 in a.shape:
            raise ValueError(f"{name} has shape {a.shape}; pass one row for each simulation")
        if not np.isfinite(a).all():
            at = np.argwhere(~np.isfinite(a))[0].tolist()
            raise ValueError(f"{name} contains {a[tuple(at)]} at {at}; drop such simulations")
    if len(rows) != len(given):
        raise ValueError(
            f"theta has {len(rows)} rows but x has {len(given)}; pass one x for each theta"
        )
    ends = (-np.inf, np.inf) if bounds is None else bounds
    low, high = (
        torch.from_numpy(
            np.broadcast_to(np.asarray(from_tensor(end), np.float64), rows.shape[1:]).copy()
        )
        for end in ends
    )
    inside = torch.from_numpy(rows)
    if not bool((low < high).all()) or not bool(((inside >= low) & (inside <= high)).all()):
        raise ValueError(
            f"bounds={bounds!r} must have low < high with all of theta between; its columns reach from "
            f"{rows.min(axis=0).tolist()} to {rows.max(axis=0).tolist()}"
        )
    return Posterior(LocalRows.fit_to(rows, given), low, high, dtype)


def _mirrored(theta: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """What is still beyond a bound, mirrored at it until it is inside; the rest to the bit."""
    both = torch.isfinite(low) & torch.isfinite(high)
    width = torch.where(both, high - low, 1)
    turned = torch.remainder((theta - torch.where(both, low, 0)) / width, 2)
    turned = torch.where(turned > 1, 2 - turned, turned) * width + torch.where(both, low, 0)
    one = torch.where(theta < low, 2 * low - theta, torch.where(theta > high, 2 * high - theta, theta))
    out = torch.minimum(torch.maximum(torch.where(both, turned, one), low), high)
    return torch.where((theta < low) | (theta > high), out, theta)
