"""Shrinkage of maps within their noise: a map moves particles only as far as its data justify.

This is not in the paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from sliceflow import kernels
from sliceflow.engine.batches import ALL, Batch
from sliceflow.engine.clouds import ClassSlices
from sliceflow.engine.conditions import row_weights
from sliceflow.engine.flow import Flow
from sliceflow.engine.schedule import Stage
from sliceflow.engine.transports import FittedMap, GridMap, KnotMap, Transport

_NUMBERS = 1 << 22  # values in float64 at a time


@dataclass(frozen=True)
class Shrunk:
    """A transport whose maps are shrunk towards standing still, each by its own noise.

    A map that is fitted to m particles and n data of the same distribution still moves particles: by
    about 3·σ²·(1/m + 1/n) in the mean square, where σ² is the variance along the direction. Thousands
    of such steps destroy detail. So the displacement T(z) − z of a map with mean square c is multiplied
    by max(0, 1 − κ·σ²·(1/m + 1/n)/c), the factor of James and Stein. Maps with less than κ stand still.

    Where classes have maps of their own, m, n and σ² are those of the class. Where a finite ξ spreads
    classes along a map, noise adds up over the classes: σ² is then the sum of their variances.
    """

    transport: Transport
    strength: float  # κ
    rates: tuple[
        float, ...
    ]  # 1/m + 1/n of each class that has its own maps; else of all
    n_shared: int = 0  # number of classes that share the maps; 0 if none do
    total: Callable[[Tensor], Tensor] = lambda sums: sums  # adds up sums over ranks

    @property
    def max_samples(self) -> int | None:
        return self.transport.max_samples

    def fit(self, z_p: Tensor, z_q: Tensor, batch: Batch = ALL) -> FittedMap:
        fit = self.transport.fit(z_p, z_q, batch)
        variance = None
        if self.n_shared:
            assert batch.codes is not None, "classes that share maps have codes"
            codes = batch.codes if batch.data is None else batch.codes[batch.data]
            variance = variance_within(z_q, codes, self.n_shared, self.total)
        rate = _on_device(tuple(self.strength * r for r in self.rates), fit.cost.device)
        slices_p = None if batch.class_slices is None else batch.class_slices[0]
        fit, factor = _shrink(fit, rate, variance, slices_p)
        return fit._replace(moving=(factor > 0).to(factor.dtype).mean())


def _shrink(
    fit: FittedMap,
    rate: Tensor,
    variance: Tensor | None,
    slices_p: ClassSlices | None,
) -> tuple[FittedMap, Tensor]:
    """The fit with shrunk maps, and the factor of each map.

    `variance` (h,) replaces that of the particles. If classes have maps of their own,
    `slices_p` are the particles' columns of each class.
    """
    table = fit.table
    cost = fit.cost
    if isinstance(table, GridMap) and table.counts is not None:
        values, factor = kernels.for_tensor(table.values).shrink(
            table.lo, table.hi, table.values, table.counts, cost, rate, variance
        )
        return fit._replace(table=replace(table, values=values)), factor
    if not isinstance(table, KnotMap):
        fact = f"maps of type {type(table).__name__} do not tell the variance of their particles"
        raise ValueError(f"{fact}; set shrinkage=0, or use transport='auto'")
    if variance is None:
        variance = _knot_variance(table)
    noise = rate.repeat_interleave(len(cost) // len(rate)) * variance.double()
    cost = cost.double()
    factor = torch.where(cost > noise, 1 - noise / cost, 0.0)
    by = factor[:, None].to(table.values.dtype)
    table = replace(table, values=torch.lerp(table.knots, table.values, by))
    dz = None if fit.dz is None else _scale(fit.dz, factor, slices_p)
    return FittedMap(table, fit.cost, dz), factor


def _knot_variance(table: KnotMap) -> Tensor:
    """The variance of the knots of each map, (h,) or (C·h,); 0 if a map moves nothing."""
    if table.knots_per_class is None:
        return table.knots.double().var(1, correction=0)
    h = len(table.knots) // len(table.knots_per_class)
    still = table.knots.new_zeros(h, dtype=torch.float64)
    return torch.cat(
        [still if one is None else _knot_variance(one) for one in table.split_classes()]
    )


def _scale(dz: Tensor, factor: Tensor, slices_p: ClassSlices | None) -> Tensor:
    """Displacements dz (h, M) times the factors (h,) of their maps, or (C·h,) by class."""
    factor = factor.to(dz.dtype)
    if slices_p is None:
        return dz * factor[:, None]
    scaled = torch.empty_like(dz)
    by_class = factor.view(len(slices_p), -1, 1)
    for columns, of_class in zip(slices_p.slices, by_class, strict=True):
        scaled[:, columns] = dz[:, columns] * of_class
    return scaled


def shrunk_flow(flow: Flow, strength: float, rates: tuple[float, ...]) -> Flow:
    """The flow with shrunk maps, except where they make columns exact."""

    def shrunk(stage: Stage) -> Stage:
        transport = Shrunk(stage.transport, strength, rates, flow.n_shared)
        return stage if stage.exact else replace(stage, transport=transport)

    return replace(flow, stages=list(map(shrunk, flow.stages)))


@lru_cache(64)
def _on_device(rates: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(rates, dtype=torch.float64, device=device)


def noise_rates(
    m: int,
    n: int,
    codes_p: Tensor | None = None,
    codes_q: Tensor | None = None,
    n_classes: int = 0,
    max_samples: int | None = None,
    distinct: float = 1.0,
) -> tuple[float, ...]:
    """1/m + 1/n for m particles and n data: what the noise of a map is proportional to.

    With `n_classes` classes that have maps of their own, a rate for each. A step looks at `max_samples` particles
    and data; `distinct` is the share of different data: ½ if half of them are mirror images.
    """
    share_p, share_q = (
        1.0 if max_samples is None else min(1.0, max_samples / max(1, size))
        for size in (m, n)
    )
    if codes_p is not None and codes_q is not None and n_classes:
        sizes = (
            torch.bincount(codes, minlength=n_classes).tolist()
            for codes in (codes_p, codes_q)
        )
        pairs = list(zip(*sizes, strict=True))
    else:
        weights = (
            None
            if codes_p is None or codes_q is None
            else row_weights(codes_q, codes_p)
        )
        if weights is not None:  # the effective number of weighted data
            n = int(weights.sum() ** 2 / weights.square().sum())
        pairs = [(m, n)]
    share_q *= distinct
    return tuple(
        1 / max(1.0, share_p * p) + 1 / max(1.0, share_q * q) for p, q in pairs
    )


def variance_within(
    z: Tensor,
    codes: Tensor,
    n_classes: int,
    total: Callable[[Tensor], Tensor] = lambda sums: sums,
) -> Tensor:
    """The sum over the classes of the variance of z (h, n) within the class, (h,)."""
    member = torch.nn.functional.one_hot(codes.long(), n_classes).double()  # (n, C)
    sums = [torch.cat((member.sum(0)[None], member.new_zeros(1, n_classes)))]
    for part in torch.split(z, max(1, _NUMBERS // max(1, z.shape[1]))):
        x = part.double()
        sums += [torch.stack((x @ member, x.square() @ member), 1).flatten(0, 1)]
    all_sums = total(torch.cat(sums)).view(-1, 2, n_classes)
    size = all_sums[0, 0].clamp(min=1)
    first, second = all_sums[1:].unbind(1)
    variance = (second / size - (first / size).square()).clamp(min=0).sum(1)
    mantissa, exponent = torch.frexp(
        variance
    )  # 20 bits: ranks sum in another order than one process
    return torch.ldexp((mantissa * 2**20).round() / 2**20, exponent)
