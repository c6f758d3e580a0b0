"""Maps for clouds that are spread over ranks: histograms, summed over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from sliceflow import kernels
from sliceflow.base.ranks import Communicator
from sliceflow.engine.batches import WHOLE_BATCH, Batch
from sliceflow.engine.flow import FlowSpec
from sliceflow.engine.shrinkage import ShrunkTransport
from sliceflow.engine.transports import (
    Histograms,
    HistogramTransport,
    Transport,
    TransportSolution,
    solve_class_histograms,
    solve_histograms,
)
from sliceflow.errors import ParameterError

# The bins of histograms in axis stages, in which a single process sorts.
_AXIS_BINS = 4096


def across_ranks(spec: FlowSpec, ranks: Communicator) -> FlowSpec:
    """The flow, with transports that fit maps to the clouds of all ranks by histograms.

    Axis stages have finer histograms.
    """
    if ranks.size == 1:
        return spec
    stages = []
    for stage in spec.stages:
        transport = _transport_across_ranks(stage.transport, ranks, stage.is_axis_stage)
        stages.append(replace(stage, transport=transport))
    return replace(spec, stages=stages)


def _transport_across_ranks(
    transport: Transport, ranks: Communicator, is_axis_stage: bool
) -> Transport:
    """A transport that does what `transport` does, for the clouds of all ranks."""
    if isinstance(transport, ShrunkTransport):
        inner = _transport_across_ranks(transport.transport, ranks, is_axis_stage)
        return replace(transport, transport=inner, sum_over_ranks=ranks.sum_)
    if is_axis_stage and not isinstance(transport, HistogramTransport):
        transport = HistogramTransport(_AXIS_BINS)
    if not isinstance(transport, HistogramTransport):
        fact = f"sorts, which {ranks.size} ranks cannot do together"
        hint = "use transport='histogram' or 'auto', or fit in one process"
        raise ParameterError("transport", transport, fact, hint)
    return DistributedHistogramTransport(transport, ranks)


class _Range(NamedTuple):
    """The least and the largest value of each row of projections, class by class.

    For rows without values, they are ∞ and −∞.
    """

    lo: Tensor  # (C·h,)
    hi: Tensor  # (C·h,)

    @classmethod
    def of(cls, parts: Sequence[Tensor]) -> _Range:
        """The range of the rows of the parts (h, n): one part, or one of each class."""
        backend = kernels.for_tensor(parts[0])
        least = []
        largest = []
        for z in parts:
            if z.shape[1]:
                lo, hi = backend.value_range(z)
            else:
                # Ranges have the type that the kernel `value_range` returns.
                like, _ = backend.value_range(z.new_zeros(len(z), 1))
                lo = torch.full_like(like, torch.inf)
                hi = torch.full_like(like, -torch.inf)
            least.append(lo)
            largest.append(hi)
        return cls(torch.cat(least), torch.cat(largest))

    @property
    def has_values(self) -> Tensor:
        """Which rows (C·h,) have values."""
        return ~(self.lo.isinf() | self.hi.isinf())

    def with_zeros_where_empty(self) -> _Range:
        """The range, but from 0 to 0 for rows without values."""
        lo = torch.where(self.has_values, self.lo, 0.0)
        hi = torch.where(self.has_values, self.hi, 0.0)
        return _Range(lo, hi)


@dataclass(frozen=True)
class DistributedHistogramTransport:
    """Histograms of clouds of which every rank has a part.

    Sums over ranks are exact, so a single process would fit the same maps.
    """

    histogram: HistogramTransport
    ranks: Communicator
    batch_size: None = None

    def solve(
        self, z_p: Tensor, z_q: Tensor, batch: Batch = WHOLE_BATCH
    ) -> TransportSolution:
        """Solve for maps of the points of all ranks, or of the points of each class.

        A rank may have no data, or no data of a class.
        """
        if batch.class_slices is not None:
            slices_p, slices_q = batch.class_slices
            return self._solve_classes(
                [z_p[:, class_slice] for class_slice in slices_p.slices],
                [z_q[:, class_slice] for class_slice in slices_q.slices],
            )
        weights = batch.weights
        if weights is not None and not batch.has_data:
            # The point of weight 0 that stands for no data would widen the range.
            z_q = z_q[:, :0]
            weights = weights[:0]
        range_p, range_q = self._over_ranks(_Range.of([z_p]), _Range.of([z_q]))
        histograms_p, histograms_q = self._count_all_ranks(
            [z_p], [z_q], range_p, range_q, weights
        )
        return solve_histograms(histograms_p, histograms_q, z_p.dtype)

    def _solve_classes(
        self, parts_p: Sequence[Tensor], parts_q: Sequence[Tensor]
    ) -> TransportSolution:
        """Solve for the maps of each class, from particles and data (h, n) of each."""
        range_p, range_q = self._over_ranks(_Range.of(parts_p), _Range.of(parts_q))
        has_points = range_p.has_values & range_q.has_values
        histograms_p, histograms_q = self._count_all_ranks(
            parts_p,
            parts_q,
            range_p.with_zeros_where_empty(),
            range_q.with_zeros_where_empty(),
        )
        return solve_class_histograms(
            histograms_p,
            histograms_q,
            parts_p[0].dtype,
            has_points_in_every_class=bool(has_points.all()),
        )

    def _over_ranks(self, p: _Range, q: _Range) -> tuple[_Range, _Range]:
        """The ranges of the values of all ranks, from the ranges of this rank's."""
        # The largest value is minus the least of all values times −1: so one message
        # has all ends.
        ends = torch.stack((p.lo, -p.hi, q.lo, -q.hi))
        lo_p, minus_hi_p, lo_q, minus_hi_q = self.ranks.minimum_(ends)
        return _Range(lo_p, -minus_hi_p), _Range(lo_q, -minus_hi_q)

    def _count_all_ranks(
        self,
        parts_p: Sequence[Tensor],
        parts_q: Sequence[Tensor],
        range_p: _Range,
        range_q: _Range,
        weights: Tensor | None = None,
    ) -> tuple[Histograms, Histograms]:
        """The histograms of the particles and of the data of all ranks.

        `parts_p` and `parts_q` are this rank's particles and data: one part (h, n), or
        one for each class. `weights` are the weights of this rank's data. The ranges
        are those of all ranks.
        """
        bins_p = _Range(*self.histogram.bin_range(*range_p))
        bins_q = _Range(*self.histogram.bin_range(*range_q))
        own_p = self._count(parts_p, bins_p, None)
        own_q = self._count(parts_q, bins_q, weights)
        # One message has both, in float64, in which sums of counts are exact.
        sums = self.ranks.sum_(torch.cat((own_p, own_q)).double())
        counts_p = sums[: len(own_p)].to(own_p.dtype)
        counts_q = sums[len(own_p) :].to(own_q.dtype)
        return Histograms(counts_p, *bins_p), Histograms(counts_q, *bins_q)

    def _count(
        self, parts: Sequence[Tensor], range_: _Range, weights: Tensor | None
    ) -> Tensor:
        """The counts (C·h, B) of this rank's values, in bins of a range."""
        backend = kernels.for_tensor(parts[0])
        h = len(parts[0])
        lo_by_part = range_.lo.view(-1, h)  # (C, h)
        hi_by_part = range_.hi.view(-1, h)
        n_bins = self.histogram.n_bins
        counts = [
            backend.bin_counts(z, lo, hi, n_bins, weights)
            for z, lo, hi in zip(parts, lo_by_part, hi_by_part, strict=True)
        ]
        return torch.cat(counts)
