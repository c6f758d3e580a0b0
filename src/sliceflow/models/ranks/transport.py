"""Transports between clouds that are spread over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from sliceflow import kernels
from sliceflow.engine.batches import MiniBatches
from sliceflow.engine.conditions import row_weights
from sliceflow.engine.transports import Auto, Counts, Fit, Histogram, RunPair, Transport
from sliceflow.models.ranks.group import Ranks

__all__ = ["SharedTransport", "shared_transport", "weighted_batches"]


def shared_transport(transport: Transport, ranks: Ranks, n: int) -> Transport:
    """The transport between the clouds of all ranks, `n` particles and data in total."""
    if ranks.size == 1:
        return transport
    chosen = transport.chosen(n) if isinstance(transport, Auto) else transport
    return SharedTransport(chosen, ranks, n)


@dataclass(frozen=True)
class SharedTransport:
    """A transport between clouds of which every rank has a part; all ranks get the same table.

    Histograms send their ranges, four numbers per direction, and then their counts: 2·h·B numbers of
    four bytes, or eight where the data are weighted. Both sums are exact, so the tables are those of a
    single process. For any other transport every rank gets all projections. That is exact, too, but a
    message of h·(M + N) numbers: for small clouds and for a few steps.
    """

    transport: Transport
    ranks: Ranks
    n: int
    most: int | None = None

    def fit(self, z_p: Tensor, z_q: Tensor, weights: Tensor | None = None, runs: RunPair = None) -> Fit:
        if weights is not None and len(weights) == 1 and float(weights[0]) == 0:
            z_q, weights = z_q[:, :0], weights[:0]  # see `weighted_batches`
        if isinstance(self.transport, Histogram):
            return self._by_counts(self.transport, z_p, z_q, weights, runs)
        place = self.ranks.place(z_p.shape[1])
        weights = None if weights is None else self.ranks.joint(weights)
        fit = self.transport.fit(self.ranks.joint(z_p), self.ranks.joint(z_q), weights)
        return fit._replace(dz=None if fit.dz is None else fit.dz[:, place.slice])

    def total(self, sums: Tensor) -> Tensor:
        """Sums over the columns of all ranks."""
        return self.ranks.sum(sums)

    def _by_counts(
        self, histogram: Histogram, z_p: Tensor, z_q: Tensor, weights: Tensor | None, runs: RunPair
    ) -> Fit:
        """Count all columns, or every run separately; a rank may have no data, or none of a class."""
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

        def counted(of: list[Tensor], lo: Tensor, hi: Tensor, weights: Tensor | None) -> Tensor:
            none = torch.zeros((h, histogram.n_bins), dtype=torch.int32, device=lo.device)
            return torch.cat(
                [
                    kernel.count(z, a, b, histogram.n_bins, weights) if z.shape[1] else none
                    for z, a, b in zip(of, lo.view(-1, h), hi.view(-1, h), strict=True)
                ]
            )

        p = counted(parts[0], lo_p, hi_p, None)
        q = counted(parts[1], lo_q, hi_q, weights)
        whole = weights is None and self.n < 1 << 31
        both = self.ranks.sum(torch.cat((p, q)).to(torch.int32 if whole else torch.float64))
        counts_p, counts_q = both[: len(p)].to(p.dtype), both[len(p) :]
        counts_q = counts_q.to(p.dtype) if weights is None else counts_q
        of_all = Counts(counts_p, lo_p, hi_p), Counts(counts_q, lo_q, hi_q)
        return histogram.between(*of_all, z_p.dtype, still, len(starts[0]) - 1)


def weighted_batches(
    codes_q: Tensor | None, codes_p: Tensor | None, here: Tensor, device: torch.device | str
) -> tuple[MiniBatches, int]:
    """A single batch of everything, with the weights of this rank's data.

    Also the number of data, over all ranks, that are left out because no particle has their condition.

    Parameters
    ----------
    codes_q, codes_p : the conditions of all data and all particles; None where they play no part
    here : indices of the data on this rank
    """
    weights = None if codes_q is None or codes_p is None else row_weights(codes_q, codes_p)
    if weights is None:
        return MiniBatches(), 0
    mine = weights[here]
    used = torch.nonzero(mine)[:, 0]
    if len(used) == 0:  # empty projections would fail: keep one column, of weight 0
        used = torch.zeros(1, dtype=torch.int64)
    data = None if len(used) == len(mine) else [used.to(device)]
    return MiniBatches(data=data, weights=mine[used].to(device)), int((weights == 0).sum())
