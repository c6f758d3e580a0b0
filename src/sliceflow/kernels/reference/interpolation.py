"""Linear interpolation of rows, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def interpolate_at_positions(position: Tensor, values: Tensor) -> Tensor:
    """values (h, n) at fractional positions (h, m) from 0 to n − 1, linearly.

    Positions are clamped at both ends.
    """
    last = values.shape[1] - 1
    position = position.clamp(0, last)
    i = position.floor().nan_to_num(0.0).clamp(max=max(last - 1, 0)).long()
    left = torch.gather(values, 1, i)
    right = torch.gather(values, 1, (i + 1).clamp(max=last))
    return left + (position - i) * (right - left)


def positions_among(values: Tensor, knots: Tensor) -> Tensor:
    """The fractional positions (h, m) of values (h, m) among ascending knots (h, n).

    The position is k at knot k, and between two knots a fraction. A value at tied knots
    has the position of the last of them.
    """
    last = knots.shape[1] - 1
    i = (torch.searchsorted(knots, values, right=True) - 1).clamp(0, max(last - 1, 0))
    left = torch.gather(knots, 1, i)
    gap = torch.gather(knots, 1, (i + 1).clamp(max=last)) - left
    return i + torch.where(gap > 0, (values - left) / gap, 0.0).clamp(0, 1)


def images_beyond(
    z: Tensor, lo: Tensor, hi: Tensor, values: Tensor
) -> tuple[Tensor, Tensor]:
    """T(z) where z (h, n) is below lo (h, 1), and T(z) where z is above hi (h, 1).

    Points beyond an end move as far as the end does. Particles with unusual y come
    there at every step, and a slope would pull them ever further. Where the whole map
    leads to one value (a constant coordinate), or begins at one (lo = hi), points
    beyond go to the value of the end.
    """
    low_end = values[:, :1]
    high_end = values[:, -1:]
    slope = ((hi > lo) & (high_end > low_end)).to(z.dtype)
    return low_end + slope * (z - lo), high_end + slope * (z - hi)
