"""Shrinkage of maps within their noise: a map moves particles only as far as its data justify."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sliceflow.engine.transports import Fit, GridTable, KnotTable, RunPair, Table, Transport

__all__ = ["Shrunk"]


@dataclass(frozen=True)
class Shrunk:
    """A transport whose maps are shrunk towards standing still, each by its own noise.

    A map fitted to m particles and n data of one and the same distribution still moves particles, by
    κ·σ²·(1/m + 1/n) in the mean square, σ² being the variance along the direction and κ about 2 to 4.
    So the displacement T(z) − z of a map with mean square c is multiplied by
    max(0, 1 − κ·σ²·(1/m + 1/n)/c), the factor of James and Stein. Where classes have maps of their
    own, m, n and σ² are those of the class.

    Parameters
    ----------
    transport : that fits the maps
    strength : κ
    distinct : the share of different data: ½ if half of them are mirror images of the others

    Examples
    --------
    >>> from sliceflow.engine.transports import Sorted
    >>> z = torch.randn(2, 500, generator=torch.Generator().manual_seed(0))
    >>> z_p, z_q = z[:, :250], z[:, 250:] + torch.tensor([[0.0], [2.0]])
    >>> free, shrunk = (t.fit(z_p, z_q).dz.square().mean(1) for t in (Sorted(), Shrunk(Sorted(), 3.0)))
    >>> (shrunk / free < 0.5).tolist()  # the first map is noise, the second a shift by 2
    [True, False]
    """

    transport: Transport
    strength: float
    distinct: float = 1.0

    @property
    def most(self) -> int | None:
        return self.transport.most

    def fit(self, z_p: Tensor, z_q: Tensor, weights: Tensor | None = None, runs: RunPair = None) -> Fit:
        fit = self.transport.fit(z_p, z_q, weights, runs)
        h, device = len(z_p), z_p.device
        if runs is None:
            n = z_q.shape[1] if weights is None else float(weights.sum() ** 2 / weights.square().sum())
            rate = torch.full((h,), 1 / z_p.shape[1] + 1 / (self.distinct * n), device=device)
        else:
            m, n_q = (torch.tensor(of.starts, device=device).diff().clamp(min=1) for of in runs)
            rate = (1 / m + 1 / (self.distinct * n_q)).repeat_interleave(h)
        noise = self.strength * _variance(fit.table) * rate.double()
        cost = fit.cost.double()
        factor = torch.where(cost > noise, 1 - noise / cost.clamp(min=1e-300), 0.0)
        dz = None if fit.dz is None else fit.dz * factor[:, None].to(fit.dz.dtype)
        return Fit(_towards_identity(fit.table, factor), fit.cost, dz)


def _variance(table: Table) -> Tensor:
    """The variance of the particles that each map was fitted to."""
    if isinstance(table, KnotTable):
        return table.knots.double().var(1, correction=0)
    if not isinstance(table, GridTable) or table.counts is None:
        raise ValueError(
            f"maps of type {type(table).__name__} do not tell the variance of their particles"
        )
    n_bins = table.counts.shape[1]
    middle = torch.arange(n_bins, device=table.lo.device, dtype=torch.float32) - (n_bins - 1) / 2
    powers = torch.stack((torch.ones_like(middle), middle, middle.square()), 1)
    total, first, second = (table.counts.float() @ powers).double().unbind(1)  # moments, in bins
    mean = first / total.clamp(min=1)
    variance: Tensor = (second / total.clamp(min=1) - mean.square()).clamp(min=0)
    width = (table.hi.double() - table.lo.double()) / n_bins
    return variance * width.square()


def _towards_identity(table: Table, factor: Tensor) -> Table:
    """The maps z + f·(T(z) − z)."""
    if isinstance(table, KnotTable):
        by = factor[:, None].to(table.values.dtype)
        return KnotTable(table.knots, table.knots + by * (table.values - table.knots))
    assert isinstance(table, GridTable)
    values, n_bins = table.values, table.values.shape[1] - 1
    lo, hi = (of.to(values.dtype)[:, None] for of in (table.lo, table.hi))
    at = torch.arange(n_bins + 1, device=values.device, dtype=values.dtype) / n_bins
    edges = torch.lerp(lo, hi, at)
    return replace(table, values=torch.lerp(edges, values, factor[:, None].to(values.dtype)))
