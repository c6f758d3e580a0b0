"""One-dimensional optimal transport, one monotone map per direction; no frames, no particles' loop.

A transport is fitted to projected particles z_p (h, M) and projected data z_q (h, N) and returns a
*table*, the maps ``T = F_q⁻¹ ∘ F_p`` of all h directions, which displaces any z (h, n). Tables are
plain tensors and know nothing of how they were fitted: a model is a sequence of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sliceflow import kernels
from sliceflow.rng import Seed

__all__ = ["Auto", "GridTable", "Histogram", "KnotTable", "Sorted", "Table", "Transport"]


class Table(Protocol):
    """The maps of one step."""

    def displace(self, z: Tensor) -> Tensor:
        """T(z) − z for any z (h, n): linear between knots, a rigid shift beyond the ends."""
        ...

    def thin(self, n_knots: int) -> Table:
        """The same maps with at most about `n_knots` knots each, smoothed: what a model keeps."""
        ...


class Transport(Protocol):
    """A way to fit a `Table`."""

    def fit(self, z_p: Tensor, z_q: Tensor, weights: Tensor | None, seed: Seed) -> tuple[Table, Tensor]:
        """Fit to particles z_p (h, M) and data z_q (h, N); `weights` (N,) > 0 weighs the data.

        Returns the table and the particles' own displacement T(z_p) − z_p, which a fit often knows
        more cheaply than the table does.
        """
        ...


@dataclass(frozen=True)
class KnotTable:
    """Maps through arbitrary knots: T(knots) = values, both (h, K) and ascending along each row."""

    knots: Tensor
    values: Tensor

    def displace(self, z: Tensor) -> Tensor:
        out: Tensor = kernels.for_tensor(z).displace_knots(z, self.knots, self.values)
        return out

    def thin(self, n_knots: int) -> KnotTable:
        """Average over `n_knots` cells of equal mass.

        Averages, because a map through every particle follows the particles' own sampling noise,
        which fresh particles do not share: it would push them away from the data.
        """
        size = self.knots.shape[1]
        if size <= n_knots:
            return self
        edge = torch.arange(n_knots + 1, device=self.knots.device) * size // n_knots
        first, count = edge[:-1, None], edge.diff()[:, None]
        member = torch.arange(int(count.max()), device=edge.device)  # cells differ in size by one
        index, valid = (first + member).clamp(max=size - 1), member < count

        def mean(t: Tensor) -> Tensor:
            cells = torch.where(valid, t[:, index], 0.0)
            return (cells.sum(2, dtype=torch.float64) / count[:, 0]).to(t.dtype)

        return KnotTable(mean(self.knots), mean(self.values))


@dataclass(frozen=True)
class GridTable:
    """Maps on a uniform grid: edge b of [lo, hi] (h,) goes to values[:, b], (h, B + 1)."""

    lo: Tensor
    hi: Tensor
    values: Tensor

    def displace(self, z: Tensor) -> Tensor:
        out: Tensor = kernels.for_tensor(z).displace_grid(z, self.lo, self.hi, self.values)
        return out

    def thin(self, n_knots: int) -> GridTable:
        """Keep every k-th edge, k a divisor of the number of bins: histograms are smooth already."""
        n_bins = self.values.shape[1] - 1
        stride = next(k for k in range(1, n_bins + 1) if n_bins % k == 0 and n_bins // k <= n_knots)
        return GridTable(self.lo, self.hi, self.values[:, ::stride].contiguous())


@dataclass(frozen=True)
class Sorted:
    """Exact transport between the sorted samples, with the paper's linear interpolation.

    Every sample stands at the middle of its mass, so that M particles and N data of any numbers match
    without bias, and M = N, no ties, sends the k-th particle to the k-th datum exactly. Tied particles
    move together; nothing is put into a gap of the data that is far wider than the gaps beside it.
    Costs O(M log M + N log N) per direction.

    Parameters
    ----------
    subset : int or None
        Fit F_p on this many particles, drawn anew each step (the paper does so on CIFAR-10 and
        CelebA); None uses all.

    Examples
    --------
    >>> z_p, z_q = torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([[10.0, 30.0, 20.0]])
    >>> table, dz = Sorted().fit(z_p, z_q, None, Seed(0))
    >>> z_p + dz
    tensor([[30., 10., 20.]])
    >>> z = torch.tensor([[1.5]])
    >>> z + table.displace(z)
    tensor([[15.]])
    """

    subset: int | None = None

    def fit(
        self, z_p: Tensor, z_q: Tensor, weights: Tensor | None, seed: Seed
    ) -> tuple[KnotTable, Tensor]:
        k = kernels.for_tensor(z_p)
        if weights is None:
            sorted_q, w = k.sort_rows(z_q), None
        else:
            sorted_q, order = k.argsort_rows(z_q)
            w = weights[order]
        if self.subset is not None and self.subset < z_p.shape[1]:
            chosen = seed.permutation(z_p.shape[1])[: self.subset].to(z_p.device)
            knots = k.sort_rows(z_p[:, chosen])
            table = KnotTable(knots, k.match(knots, sorted_q, w))
            return table, table.displace(z_p)
        knots, order = k.argsort_rows(z_p)
        values = k.match(knots, sorted_q, w)
        return KnotTable(knots, values), torch.empty_like(z_p).scatter_(1, order, values - knots)


@dataclass(frozen=True)
class Histogram:
    """Transport between histograms: two passes over memory, no sorting, cost linear in M and N.

    Counts are taken over each direction's own [min, max]; T is exact at the particles' bin edges (up
    to the data's bins) and linear between them. Counts add up, over chunks and over machines.

    Parameters
    ----------
    n_bins : int
        Bins for the particles and for the data. More are needed when conditions spread the
        projections: each of C classes gets about n_bins/C of them.

    Examples
    --------
    >>> z = torch.linspace(0, 1, 1001)[None]
    >>> table, dz = Histogram(n_bins=64).fit(z, 2 * z + 1, None, Seed(0))
    >>> bool((dz - (z + 1)).abs().max() < 1e-2)
    True
    """

    n_bins: int = 256

    def fit(
        self, z_p: Tensor, z_q: Tensor, weights: Tensor | None, seed: Seed
    ) -> tuple[GridTable, Tensor]:
        k = kernels.for_tensor(z_p)
        lo_p, hi_p = k.value_range(z_p)
        lo_q, hi_q = k.value_range(z_q)
        counts_p = k.count(z_p, lo_p, hi_p, self.n_bins)
        counts_q = k.count(z_q, lo_q, hi_q, self.n_bins, weights)
        values = k.compose(counts_p, lo_p, hi_p, counts_q, lo_q, hi_q)
        table = GridTable(lo_p, hi_p, values.to(z_p.dtype))
        return table, table.displace(z_p)


@dataclass(frozen=True)
class Auto:
    """`Sorted` for clouds of up to `threshold` particles and data together, else `Histogram`.

    Small clouds gain from exactness; large ones fill their bins, and sorting them costs more than
    everything else in the step.
    """

    threshold: int = 5_000
    n_bins: int = 1024

    def fit(self, z_p: Tensor, z_q: Tensor, weights: Tensor | None, seed: Seed) -> tuple[Table, Tensor]:
        if z_p.shape[1] + z_q.shape[1] <= self.threshold:
            return Sorted().fit(z_p, z_q, weights, seed)
        return Histogram(self.n_bins).fit(z_p, z_q, weights, seed)
