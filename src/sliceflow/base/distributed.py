"""Maps of clouds that are spread over ranks: histograms, summed over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
)
from sliceflow.errors import ParameterError

# Bins in stages that match marginals. A single process sorts in these steps.
_MARGINAL_BINS = 4096


def across_ranks(spec: FlowSpec, ranks: Communicator) -> FlowSpec:
    """The flow, with transports that fit maps to the clouds of all ranks by histograms.

    Stages that match marginals have finer histograms.
    """
    if ranks.size == 1:
        return spec
    stages = []
    for stage in spec.stages:
        transport = _transport_across_ranks(
            stage.transport, ranks, stage.exact_marginals
        )
        stages.append(replace(stage, transport=transport))
    return replace(spec, stages=stages)


def _transport_across_ranks(
    transport: Transport, ranks: Communicator, exact_marginals: bool
) -> Transport:
    if isinstance(transport, ShrunkTransport):
        summed = _transport_across_ranks(transport.transport, ranks, exact_marginals)
        return replace(transport, transport=summed, sum_over_ranks=ranks.sum_)
    if exact_marginals and not isinstance(transport, HistogramTransport):
        transport = HistogramTransport(_MARGINAL_BINS)
    if not isinstance(transport, HistogramTransport):
        fact = f"sorts, which {ranks.size} ranks cannot do together"
        hint = "use transport='histogram' or 'auto', or fit in one process"
        raise ParameterError("transport", transport, fact, hint)
    return DistributedHistogramTransport(transport, ranks)


@dataclass(frozen=True)
class DistributedHistogramTransport:
    """Histograms of clouds of which every rank has a part.

    Sums over ranks are exact, so the maps are those of a single process.
    """

    histogram: HistogramTransport
    ranks: Communicator
    batch_size: None = None

    def solve(
        self, z_p: Tensor, z_q: Tensor, batch: Batch = WHOLE_BATCH
    ) -> TransportSolution:
        """Solve for maps to the columns of all ranks, or to those of every class.

        A rank may have no data, or none of a class.
        """
        weights = batch.weights
        if weights is not None and len(weights) == 1 and float(weights[0]) == 0:
            # A rank without data has one column of weight 0: `make_weighted_batches`.
            z_q = z_q[:, :0]
            weights = weights[:0]
        parts_p = [z_p]
        parts_q = [z_q]
        if batch.class_slices is not None:
            slices_p, slices_q = batch.class_slices
            parts_p = [z_p[:, columns] for columns in slices_p.slices]
            parts_q = [z_q[:, columns] for columns in slices_q.slices]
        lo, hi, identity_classes = self._ranges(
            parts_p, parts_q, per_class=batch.class_slices is not None
        )
        lo, hi = self.histogram.bin_range(lo, hi)
        counts_p = self._count(parts_p, lo[0], hi[0], None)
        counts_q = self._count(parts_q, lo[1], hi[1], weights)

        dtype = counts_p.dtype
        sums = self.ranks.sum_(torch.cat((counts_p, counts_q)).double())
        sums_p = sums[: len(counts_p)].to(dtype)
        sums_q = sums[len(counts_p) :]
        if weights is None:
            sums_q = sums_q.to(dtype)
        return self.histogram.solve_counts(
            Histograms(sums_p, lo[0], hi[0]),
            Histograms(sums_q, lo[1], hi[1]),
            z_p.dtype,
            identity_classes,
            len(parts_p),
        )

    def _ranges(
        self, parts_p: Sequence[Tensor], parts_q: Sequence[Tensor], per_class: bool
    ) -> tuple[Tensor, Tensor, list[int]]:
        """The least and largest values of p and of q on all ranks, both (2, C·h).

        Also returns the classes that have no particles or no data on any rank.
        """
        h = len(parts_p[0])
        lo_p, hi_p = _value_ranges(parts_p)
        lo_q, hi_q = _value_ranges(parts_q)
        lo = torch.stack((lo_p, lo_q))
        hi = torch.stack((hi_p, hi_q))
        ends = self.ranks.minimum_(torch.stack((lo, -hi)))
        identity_classes = []
        if per_class:
            is_missing = torch.isinf(ends)  # no rank has a value
            stays = is_missing.any(0).any(0).view(-1, h)[:, 0]
            identity_classes = torch.nonzero(stays)[:, 0].tolist()
            ends = torch.where(is_missing, 0.0, ends)
        return ends[0], -ends[1], identity_classes

    def _count(
        self, parts: Sequence[Tensor], lo: Tensor, hi: Tensor, weights: Tensor | None
    ) -> Tensor:
        """The counts (C·h, B) of this rank's values, in bins of [lo, hi] (C·h,)."""
        kernel = kernels.for_tensor(parts[0])
        h = len(parts[0])
        counts = [
            kernel.bin_counts(z, part_lo, part_hi, self.histogram.n_bins, weights)
            for z, part_lo, part_hi in zip(
                parts, lo.view(-1, h), hi.view(-1, h), strict=True
            )
        ]
        return torch.cat(counts)


def _value_ranges(parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The least and largest values (C·h,) of each row of the parts (h, n).

    For a part without columns they are ∞ and −∞.
    """
    kernel = kernels.for_tensor(parts[0])
    least = []
    largest = []
    for z in parts:
        if z.shape[1]:
            lo, hi = kernel.value_range(z)
        else:
            # Ranges have the type that the kernel `value_range` returns.
            like, _ = kernel.value_range(z.new_zeros(len(z), 1))
            lo = torch.full_like(like, torch.inf)
            hi = torch.full_like(like, -torch.inf)
        least.append(lo)
        largest.append(hi)
    return torch.cat(least), torch.cat(largest)
