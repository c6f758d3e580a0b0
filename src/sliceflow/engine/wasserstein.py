"""The Wasserstein distance in one dimension: the core of every sliced distance."""

from __future__ import annotations

import torch
from torch import Tensor


def squared_wasserstein(z_p: Tensor, z_q: Tensor) -> Tensor:
    """W₂² (h,) between the values of each row of z_p (h, m) and of z_q (h, n).

    W₂² = ∫₀¹ |F⁻¹(t) − G⁻¹(t)|² dt with the quantile functions F⁻¹ of z_p and G⁻¹ of
    z_q. It is exact for any m and n: the quantile functions are constant between the
    probabilities i/m and j/n, so the integral is a sum over the intervals between
    neighbors among all these probabilities.
    """
    m = z_p.shape[1]
    n = z_q.shape[1]
    probabilities_p = torch.arange(1, m + 1, dtype=torch.float64, device=z_p.device) / m
    probabilities_q = torch.arange(1, n + 1, dtype=torch.float64, device=z_p.device) / n
    probabilities = torch.unique(torch.cat((probabilities_p, probabilities_q)))
    widths = torch.diff(probabilities, prepend=probabilities.new_zeros(1))
    middles = probabilities - widths / 2
    i = (middles * m).long().clamp(max=m - 1)
    j = (middles * n).long().clamp(max=n - 1)
    gaps = z_p.sort(dim=1).values[:, i] - z_q.sort(dim=1).values[:, j]
    return gaps.square() @ widths.to(gaps.dtype)
