"""New rows of scores: draws along the rows' neighbours, and a sliced flow that corrects them.

A draw at row i with the mean m and the differences of its k nearest rows is

    m + √(1 − h²)·(zᵢ − m) + h·Σⱼ wⱼ·(zⱼ − m),   wⱼ ~ N(0, 1/(k − 1)),

which has the mean and the covariance of the neighbourhood for every h from 0 to 1. Of the k and h with
which draws are no nearer to rows than rows are to each other, those that blur least are taken
(`smoothed`). Draws blur what is finer than a neighbourhood. A sliced-Wasserstein flow in the whitened
coordinates, with maps shrunk within their noise (`sliceflow.engine.shrinkage`), moves them back on to
the data where they differ significantly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from sklearn.neighbors import NearestNeighbors

from sliceflow.engine.clouds import Cloud
from sliceflow.engine.compact import ModelStep
from sliceflow.engine.flow import Flow, Noise, replay, simulate
from sliceflow.engine.frames import Orthogonal
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import flat
from sliceflow.engine.shrinkage import noise_rates, shrunk_flow

__all__ = ["LocalFlow"]

CELL = 4_096  # rows among which neighbours are searched
TRIED = (0.6, 0.7, 0.8, 0.9, 1.0)  # h
_SEEN = 2_000  # rows whose draws choose h:
_CLOSE = ((0.01, 0.005), (0.05, 0.01))  # the nearest share of rows, and how much more often draws are
_MEDIAN = 0.8  # of the median distance of rows
_TIMES = (1, 2, 4)  # as many neighbours
_FEWEST = 1_000  # draws, several at a row if there are fewer
_KNOWN = 20_000  # rows that these draws are compared with
_MOST_PARTICLES = 1 << 15  # that the flow is fitted with, and rows that it looks at
_MOST_COORDINATES = 256  # that the flow moves, those with the largest variances
_KNOTS = 128  # of each map of the model
_FLOOR = 1e-2  # the least standard deviation that is whitened
_CHUNK = 1 << 16  # draws that the flow moves at a time
_NUMBERS = 1 << 22  # of the neighbours of draws at a time


@dataclass(frozen=True, eq=False)
class LocalFlow:
    """Draws along neighbours, and the flow that corrects them.

    Parameters
    ----------
    z : (n, d), rows of scores
    near : (n, k), the nearest rows of each, itself among them
    h : how far draws go
    mean, turn, scale : (d,), (d, m) and (m,), coordinates of the flow: (z − mean)·turn/scale
    flow, model : the flow and its maps
    """

    z: np.ndarray
    near: np.ndarray
    h: float
    mean: np.ndarray
    turn: np.ndarray
    scale: np.ndarray
    flow: Flow
    model: tuple[ModelStep, ...]

    @classmethod
    def fit(
        cls,
        z: np.ndarray,
        weights: np.ndarray,
        decoded: Callable[[np.ndarray], np.ndarray],
        seed: Seed,
        device: torch.device,
        *,
        k: int,
        h: float | None,
        kappa: float,
        n_steps: int,
    ) -> LocalFlow:
        """Fit the flow with maps shrunk by κ; h=None is `smoothed`, with k neighbours or more."""
        n, d = z.shape
        mean = z.mean(0)
        values, turn = np.linalg.eigh((z - mean).T @ (z - mean) / n) if d else (np.empty(0), np.eye(0))
        values, turn = values[-_MOST_COORDINATES:], turn[:, -_MOST_COORDINATES:]
        scale = np.sqrt(np.maximum(values, _FLOOR**2))
        near = neighbours(z * weights, min(n, k if h is not None else max(_TIMES) * k))
        flow = cls(z, near, 1.0 if h is None else h, mean, turn, scale, Flow([], seed), ())
        flow = smoothed(flow, k, decoded, seed.child("h")) if h is None else flow
        flow = replace(flow, near=np.ascontiguousarray(flow.near))
        m = min(max(n, 1_000), _MOST_PARTICLES)
        stages = flat(Orthogonal(), n_steps=n_steps, n_axis_steps=0, n_knots=_KNOTS)
        engine, model = Flow(stages, seed.child("flow")), []
        if n_steps and n > 2 and d:
            rows = (
                z
                if n <= _MOST_PARTICLES
                else z[seed.child("rows").permutation(n)[:_MOST_PARTICLES].numpy()]
            )
            cloud, data = (
                _cloud(flow._turned(x), device) for x in (flow.draws(m, seed.child("draws")), rows)
            )
            noise = Noise(seed.child("particles"))
            fitting = shrunk_flow(engine, kappa, noise_rates(m, len(rows))) if kappa else engine
            model = simulate(fitting, cloud, fitting.target(cloud, data), noise)
        return replace(flow, flow=engine, model=tuple(model))

    def _turned(self, x: np.ndarray) -> np.ndarray:
        return np.asarray((x - self.mean) @ self.turn / self.scale)

    def _back(self, draws: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Draws moved as their coordinates of the flow were."""
        return np.asarray(draws + (after - before) * self.scale @ self.turn.T)

    def draws(self, n: int, seed: Seed) -> np.ndarray:
        """n draws (n, d) along the neighbours; every row is used about equally often."""
        rows = len(self.z)
        times = -(-n // rows)
        order = np.concatenate([seed.child("order", t).permutation(rows).numpy() for t in range(times)])
        return self.draws_at(order[:n], seed.child("noise"))

    def draws_at(self, at: np.ndarray, seed: Seed) -> np.ndarray:
        """A draw at each of these rows."""
        k = self.near.shape[1]
        out = np.empty((len(at), self.z.shape[1]))
        chunk = max(1, _NUMBERS // max(1, k * self.z.shape[1]))
        for first in range(0, len(at), chunk):
            some = at[first : first + chunk]
            around = self.z[self.near[some]]  # (c, k, d)
            mean = around.mean(1)
            w = seed.normal(len(some), k, start=first).numpy() / np.sqrt(max(1, k - 1))
            w -= w.mean(1, keepdims=True)
            noise = np.einsum("ck,ckd->cd", w, around)
            kept = np.sqrt(max(0.0, 1 - self.h**2))
            out[first : first + chunk] = mean + kept * (self.z[some] - mean) + self.h * noise
        return out

    def sample(self, n: int, seed: Seed, device: torch.device) -> np.ndarray:
        """n new rows of scores."""
        draws = self.draws(n, seed)
        if not self.model:
            return draws
        out = np.empty_like(draws)
        for first in range(0, n, _CHUNK):
            part = draws[first : first + _CHUNK]
            turned = self._turned(part)
            cloud = _cloud(turned, device)
            replay(self.flow, self.model, cloud, Noise(seed.child("particles"), first))
            out[first : first + _CHUNK] = self._back(part, turned, cloud.x.T.cpu().numpy())
        return out


def _cloud(x: np.ndarray, device: torch.device) -> Cloud:
    return Cloud(torch.from_numpy(np.ascontiguousarray(x.T)).to(device))


def cells_of(z: np.ndarray, most: int = CELL) -> list[np.ndarray]:
    """Numbers of rows in cells of at most `most`, split in halves where the rows spread most."""
    done, left = [], [np.arange(len(z))]
    while left:
        rows = left.pop()
        if len(rows) <= most:
            done.append(rows)
            continue
        some = z[rows[:: max(1, len(rows) // 2_000)]]
        direction = np.linalg.eigh(np.cov(some.T.reshape(z.shape[1], -1)).reshape(z.shape[1], -1))[1][
            :, -1
        ]
        order = np.argsort(z[rows] @ direction, kind="stable")
        left += [rows[order[: len(rows) // 2]], rows[order[len(rows) // 2 :]]]
    return done


def neighbours(z: np.ndarray, k: int) -> np.ndarray:
    """The k nearest rows (n, k) of each row, itself first, searched in cells of `CELL` rows."""
    near = np.empty((len(z), k), dtype=np.int64)
    for rows in cells_of(z):
        own = z[rows]
        if z.shape[1] == 0:
            near[rows] = rows[:k]
            continue
        found = (
            NearestNeighbors(n_neighbors=min(k, len(rows)))
            .fit(own)
            .kneighbors(own, return_distance=False)
        )
        near[rows] = rows[found]
    return near


def smoothed(
    flow: LocalFlow, k: int, decoded: Callable[[np.ndarray], np.ndarray], seed: Seed
) -> LocalFlow:
    """The flow with the h, and k neighbours or more, that blur least and keep draws away from rows.

    `decoded` turns scores into points whose distances are those of the table (`metrics.tables`). Draws
    keep away if they are nearer to rows than the nearest hundredth of the rows are to each other hardly
    more often than these (`_CLOSE`), and their median distance is `_MEDIAN` of that of the rows. If no
    draws do, those count that do so for the nearest twentieth: the nearest hundredth of a small table
    is one or two rows. The blur is h² times the variance of a neighbourhood. More neighbours have more
    variance, but draws along them leave the row in more directions, so that a lower h is enough.
    """
    n = len(flow.z)
    if n < 10:
        return replace(flow, near=flow.near[:, :k])
    some = seed.child("seen").permutation(n)[:_SEEN].numpy()
    known = seed.child("seen").permutation(n)[:_KNOWN].numpy()  # the same rows first
    rows = decoded(flow.z[known])
    search = NearestNeighbors(n_neighbors=2).fit(rows)
    between = search.kneighbors(rows[: len(some)])[0][:, 1]
    at = np.tile(some, -(-_FEWEST // len(some)))
    tried = []
    for more in sorted({min(n, times * k) for times in _TIMES}):
        near = flow.near[:, :more]
        few = some[: max(1, _NUMBERS // max(1, more * flow.z.shape[1]))]
        wide = flow.z[near[few]].var(1).sum(1).mean()
        tried += [(h**2 * wide, replace(flow, near=near, h=h)) for h in TRIED]
    limits = []
    for share, more_often in _CLOSE:
        close = np.quantile(between, share) + 1e-9
        limits.append((close, np.mean(between <= close) + more_often))
    second = []
    for _, found in sorted(tried, key=lambda one: one[0]):
        distance = search.kneighbors(decoded(found.draws_at(at, seed.child("draws"))), 1)[0][:, 0]
        if np.median(distance) >= _MEDIAN * np.median(between):
            keeps = [np.mean(distance <= close) <= often for close, often in limits]
            if keeps[0]:
                return found
            second += [found] if keeps[1] else []
    return second[0] if second else tried[-1][1]
