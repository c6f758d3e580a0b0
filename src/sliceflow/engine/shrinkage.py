"""Shrinkage: a map moves particles only as far as its data justify.

This is not in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from sliceflow import kernels
from sliceflow.engine.batches import WHOLE_BATCH, Batch, point_weights
from sliceflow.engine.encoded_y import (
    ClassIndices,
    ClassSlices,
    FlowY,
    SeparateClassIndices,
)
from sliceflow.engine.flow import FlowSpec
from sliceflow.engine.maps import GridMaps, KnotMaps, TransportMaps
from sliceflow.engine.schedule import Stage
from sliceflow.engine.transports import Transport, TransportSolution
from sliceflow.errors import ParameterError

# Values converted to float64 at a time: bounds the memory of `variance_within`.
_VALUES_AT_ONCE = 1 << 22
# Variances are rounded to this many bits: ranks add up in another order than one
# process, and must get the same number.
_VARIANCE_BITS = 20


def _sum_in_one_process(sums: Tensor) -> Tensor:
    """Sums over all ranks where there is only this process: the sums themselves."""
    return sums


@dataclass(frozen=True)
class ShrunkTransport:
    """A transport whose maps are shrunk towards the identity, each by its own noise.

    A map that is fitted to m particles and n data of the same distribution still moves
    particles: by about 3·σ²·(1/m + 1/n) in the mean square, where σ² is the variance
    along the direction. Thousands of such steps destroy detail. So the displacement
    T(z) − z of a map, whose mean square is w, is multiplied by

        max(0, 1 − κ·σ²·(1/m + 1/n)/w),

    the factor of James and Stein. Maps whose w is less than κ·σ²·(1/m + 1/n) become the
    identity; with κ = 3 this is the mean w of maps that are noise alone.

    If each class has its own maps, m, n and σ² are those of the class. If classes share
    the maps, ξ spreads them along each map, and noise adds up over the classes: σ² is
    then the sum of their variances.
    """

    transport: Transport
    kappa: float
    # 1/m + 1/n: (C,) if each class has its own maps, otherwise (1,).
    noise_factors: tuple[float, ...]
    n_shared_classes: int = 0  # C if C classes share the maps; 0 if none do
    sum_over_ranks: Callable[[Tensor], Tensor] = _sum_in_one_process

    @property
    def batch_size(self) -> int | None:
        """The most particles and data of a step: those of the shrunk transport."""
        return self.transport.batch_size

    def solve(
        self, z_p: Tensor, z_q: Tensor, batch: Batch = WHOLE_BATCH
    ) -> TransportSolution:
        """The shrunk maps from particles z_p (h, M) to data z_q (h, N)."""
        solution = self.transport.solve(z_p, z_q, batch)
        fitted_maps = self._require_known_particles(solution.maps)
        variance = None
        if self.n_shared_classes:
            variance = self._variance_within_classes(z_q, batch)
        maps, shrink_factors = fitted_maps.shrink(
            solution.mean_squared_displacement,
            _as_tensor(self._thresholds, z_p.device),
            variance,
        )
        dz = solution.dz
        if dz is not None:
            slices_p = None if batch.class_slices is None else batch.class_slices[0]
            dz = _scale(dz, shrink_factors, slices_p)
        is_active = shrink_factors > 0
        active_fraction = is_active.to(shrink_factors.dtype).mean()
        return solution._replace(maps=maps, dz=dz, active_fraction=active_fraction)

    @property
    def _thresholds(self) -> tuple[float, ...]:
        """κ·(1/m + 1/n): the least w/σ² of a map that is not the identity."""
        return tuple(self.kappa * noise_factor for noise_factor in self.noise_factors)

    def _require_known_particles(self, maps: TransportMaps) -> KnotMaps | GridMaps:
        """Fitted maps that know the variance of their particles, or raise."""
        if isinstance(maps, KnotMaps):
            return maps
        if isinstance(maps, GridMaps) and maps.counts is not None:
            return maps
        kind = type(maps).__name__
        raise ParameterError(
            "transport",
            self.transport,
            f"makes maps of type {kind}, without the variance of their particles",
            "set shrinkage=0, or use transport='auto'",
        )

    def _variance_within_classes(self, z_q: Tensor, batch: Batch) -> Tensor:
        """The variance (h,) of the data z_q (h, n) of a batch, within their classes."""
        y = batch.all_data_y
        assert isinstance(y, ClassIndices), "classes share the maps"
        if batch.data_selection.indices is not None:
            y = y.take(batch.data_selection.indices)
        return variance_within(z_q, y, self.n_shared_classes, self.sum_over_ranks)


def shrunk_flow(
    spec: FlowSpec,
    kappa: float,
    noise_factors: tuple[float, ...],
    unshrunk_stages: Collection[int] = (),
) -> FlowSpec:
    """The flow with shrunk maps.

    The maps of axis stages, and of stages with the indices `unshrunk_stages`, stay as
    they are.
    """
    stages: list[Stage] = []
    for i, stage in enumerate(spec.stages):
        if stage.is_axis_stage or i in unshrunk_stages:
            stages.append(stage)
        else:
            n_shared = spec.shared_condition_dim
            shrunk = ShrunkTransport(stage.transport, kappa, noise_factors, n_shared)
            stages.append(replace(stage, transport=shrunk))
    return replace(spec, stages=stages)


def compute_noise_factors(
    m: int,
    n: int,
    *,
    y_p: FlowY | None = None,
    y_q: FlowY | None = None,
    batch_size: int | None = None,
    distinct_share: float = 1.0,
) -> tuple[float, ...]:
    """1/m + 1/n for m particles and n data: the noise of a map is proportional to it.

    Parameters
    ----------
    m, n : the numbers of particles and data
    y_p, y_q : the conditions of particles and data, if the flow uses them
    batch_size : how many particles and data one step uses; None is all of them
    distinct_share : the share of different data, such as ½ if half of them are mirror
        images

    Returns
    -------
    noise_factors : (1,), or (C,), one for each class, if they have separate maps
    """
    share_p = _share_of_batch(m, batch_size)
    share_q = _share_of_batch(n, batch_size) * distinct_share
    sizes_p = [m]
    sizes_q = [n]
    if isinstance(y_p, SeparateClassIndices) and isinstance(y_q, SeparateClassIndices):
        sizes_p = y_p.sizes(y_p.n_classes).tolist()
        sizes_q = y_q.sizes(y_q.n_classes).tolist()
    elif y_p is not None and y_q is not None:
        sizes_q = [_effective_size(n, point_weights(y_p=y_p, y_q=y_q))]
    return tuple(
        _noise_factor(share_p * size_p, share_q * size_q)
        for size_p, size_q in zip(sizes_p, sizes_q, strict=True)
    )


def _effective_size(n: int, weights: Tensor | None) -> int:
    """Kish's effective number of n data with weights (n,); n if these are None."""
    if weights is None:
        return n
    return int(weights.sum() ** 2 / weights.square().sum())


def _share_of_batch(size: int, batch_size: int | None) -> float:
    """The share of `size` particles or data that one step uses."""
    if batch_size is None:
        return 1.0
    return min(1.0, batch_size / max(1, size))


def _noise_factor(m: float, n: float) -> float:
    """1/m + 1/n, where fewer than one particle or datum count as one."""
    return 1 / max(1.0, m) + 1 / max(1.0, n)


def variance_within(
    z: Tensor,
    y: ClassIndices,
    n_classes: int,
    sum_over_ranks: Callable[[Tensor], Tensor] = _sum_in_one_process,
) -> Tensor:
    """The sum over the classes of the variance of z (h, n) within each class: (h,).

    If every rank has a part of the points, `sum_over_ranks` adds up a tensor over the
    ranks.
    """
    one_hot = torch.nn.functional.one_hot(y.values.long(), n_classes)
    is_member = one_hot.double()  # (n, C)
    own_sums = []  # of the values, (h, C)
    own_square_sums = []
    rows_at_once = max(1, _VALUES_AT_ONCE // max(1, z.shape[1]))
    for rows in torch.split(z, rows_at_once):
        values = rows.double()
        own_sums.append(values @ is_member)
        own_square_sums.append(values.square() @ is_member)
    own_sizes = is_member.sum(0, keepdim=True)
    # One message to the other ranks has all sums, (1 + h + h, C).
    message = torch.cat((own_sizes, *own_sums, *own_square_sums))
    sizes, sums, square_sums = torch.split(sum_over_ranks(message), [1, len(z), len(z)])
    sizes = sizes.clamp(min=1)  # a class may have no points
    in_class = square_sums / sizes - (sums / sizes).square()
    return _rounded(in_class.clamp(min=0).sum(1))


def _rounded(x: Tensor) -> Tensor:
    """Numbers rounded to `_VARIANCE_BITS` significant bits."""
    mantissa, exponent = torch.frexp(x)
    mantissa = (mantissa * 2**_VARIANCE_BITS).round() / 2**_VARIANCE_BITS
    return torch.ldexp(mantissa, exponent)


def _scale(dz: Tensor, shrink_factors: Tensor, slices_p: ClassSlices | None) -> Tensor:
    """Displacements dz (h, M) times the factors of their maps, (h,) or (C·h,)."""
    factors = shrink_factors[:, None].to(dz.dtype)
    if slices_p is None:
        return dz * factors
    scaled = torch.empty_like(dz)
    for c, class_slice in enumerate(slices_p.slices):
        rows = kernels.rows_of_class_maps(c, len(dz))
        scaled[:, class_slice] = dz[:, class_slice] * factors[rows]
    return scaled


# Cached, because a GPU would wait for the numbers in every step.
@lru_cache(64)
def _as_tensor(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=device)
