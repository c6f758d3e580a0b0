"""Histograms of clouds that are spread over ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from sliceflow import kernels
from sliceflow.engine.batches import ALL, Batch, Batches, Target
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.conditions import row_weights
from sliceflow.engine.flow import Flow
from sliceflow.engine.shrinkage import Shrunk
from sliceflow.engine.transports import Auto, Counts, Fit, Histogram, Transport
from sliceflow.models.ranks.group import Place, Ranks

__all__ = ["SharedHistogram", "across_ranks", "target_across", "weighted_batches"]

_FINE = 4096  # bins of steps that are sorted in a single process, to make columns exact


def across_ranks(flow: Flow, ranks: Ranks) -> Flow:
    """The flow with maps that are fitted to the clouds of all ranks, by histograms.

    Stages that make columns exact take fine histograms; any other transport that sorts is an error.
    """
    if ranks.size == 1:
        return flow
    stages = [
        replace(stage, transport=_shared(stage.transport, ranks, stage.exact)) for stage in flow.stages
    ]
    return replace(flow, stages=stages)


def _shared(transport: Transport, ranks: Ranks, exact: bool) -> Transport:
    if isinstance(transport, Shrunk):
        return replace(transport, transport=_shared(transport.transport, ranks, exact), total=ranks.sum)
    if isinstance(transport, Auto):
        transport = Histogram(transport.n_bins)
    if exact and not isinstance(transport, Histogram):
        transport = Histogram(_FINE)
    if not isinstance(transport, Histogram):
        raise ValueError(
            f"transport={transport!r} sorts, which {ranks.size} ranks cannot do together; use "
            "transport='histogram' or 'auto', or fit in one process"
        )
    return SharedHistogram(transport, ranks)


@dataclass(frozen=True)
class SharedHistogram:
    """Histograms of clouds of which every rank has a part; all ranks get the same table.

    Ranks send their ranges, four numbers per direction, and then their counts: 2·h·B numbers of eight
    bytes. Both sums are exact, so the tables are those of a single process.
    """

    histogram: Histogram
    ranks: Ranks
    most: None = None

    def fit(self, z_p: Tensor, z_q: Tensor, batch: Batch = ALL) -> Fit:
        """Count all columns, or every run separately; a rank may have no data, or none of a class."""
        weights, runs, histogram = batch.weights, batch.runs, self.histogram
        if weights is not None and len(weights) == 1 and float(weights[0]) == 0:
            z_q, weights = z_q[:, :0], weights[:0]  # see `weighted_batches`
        h, kernel = len(z_p), kernels.for_tensor(z_p)
        starts = [(0, z.shape[1]) for z in (z_p, z_q)] if runs is None else [r.starts for r in runs]
        parts = [
            [z[:, first:end] for first, end in pairwise(of)]
            for z, of in zip((z_p, z_q), starts, strict=True)
        ]
        far = torch.full_like(kernel.value_range(z_p[:, :1])[0], torch.inf)
        ranges = [[kernel.value_range(z) if z.shape[1] else (far, -far) for z in of] for of in parts]
        lo, hi = (torch.stack([torch.cat([r[end] for r in of]) for of in ranges]) for end in (0, 1))
        ends = self.ranks.minimum(torch.stack((lo, -hi)))  # (lo and −hi, p and q, C·h)
        still = []
        if runs is not None:
            nothing = torch.isinf(ends).any(0).any(0).view(-1, h)[:, 0]
            still = torch.nonzero(nothing)[:, 0].tolist()
            ends = torch.where(torch.isinf(ends), 0.0, ends)
        (lo_p, lo_q), (hi_p, hi_q) = histogram.range_of(ends[0], -ends[1])

        def counts(of: list[Tensor], lo: Tensor, hi: Tensor, weights: Tensor | None) -> Tensor:
            none = torch.zeros((h, histogram.n_bins), dtype=torch.int32, device=lo.device)
            return torch.cat(
                [
                    kernel.count(z, a, b, histogram.n_bins, weights) if z.shape[1] else none
                    for z, a, b in zip(of, lo.view(-1, h), hi.view(-1, h), strict=True)
                ]
            )

        p = counts(parts[0], lo_p, hi_p, None)
        q = counts(parts[1], lo_q, hi_q, weights)
        both = self.ranks.sum(torch.cat((p, q)).double())
        counts_p, counts_q = both[: len(p)].to(p.dtype), both[len(p) :]
        counts_q = counts_q.to(p.dtype) if weights is None else counts_q
        of_all = Counts(counts_p, lo_p, hi_p), Counts(counts_q, lo_q, hi_q)
        return histogram.between(*of_all, z_p.dtype, still, len(starts[0]) - 1)


def weighted_batches(
    codes_q: Tensor | None, codes_p: Tensor | None, here: Tensor, device: torch.device | str
) -> Batches:
    """A single batch of everything, with the weights of this rank's data.

    Parameters
    ----------
    codes_q, codes_p : the conditions of all data and all particles; None where they play no part
    here : indices of the data on this rank
    """
    weights = None if codes_q is None or codes_p is None else row_weights(codes_q, codes_p)
    if weights is None:
        return Batches()
    own = weights[here]
    used = torch.nonzero(own)[:, 0]
    if len(used) == 0:  # empty projections would fail: keep one column, of weight 0
        used = torch.zeros(1, dtype=torch.int64)
    data = None if len(used) == len(own) else [used.to(device)]
    return Batches(data=data, weights=own[used].to(device))


def target_across(  # many: what one rank has, and what all ranks have
    ranks: Ranks,
    flow: Flow,
    particles: Cloud,
    data: Cloud,
    stage: int,
    codes_p: Tensor | None,
    codes_q: Tensor | None,
    here: Place,
) -> Target:
    """This rank's data as a target of a stage. With several ranks, each step looks at all columns.

    Parameters
    ----------
    codes_p, codes_q : the conditions of the particles and the data of all ranks
    here : place of this rank's data among those of all ranks
    """
    if ranks.size == 1:
        return flow.target(particles, data, stage)
    codes = (codes_q, codes_p) if flow.conditional else (None, None)
    numbers = torch.arange(here.first, here.first + here.count)
    return Target.from_cloud(data, weighted_batches(*codes, numbers, data.x.device))
