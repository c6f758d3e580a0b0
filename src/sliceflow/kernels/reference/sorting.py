"""Maps of sorted samples, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from sliceflow.kernels.reference.interpolation import (
    images_beyond,
    interpolate_at_positions,
    positions_among,
)

# A gap of the data is jumped over if it is this many times as wide as both gaps beside
# it. Where the data are dense, gaps are about exponentially distributed, and one in 45
# is that wide by chance: 2·(1/9 − 1/10). Jumping over so narrow a gap changes little. A
# larger ratio would leave particles between classes that stand near each other.
GAP_RATIO = 8.0


def sort_rows(z: Tensor) -> Tensor:
    """Each row of z (h, n) in ascending order."""
    return torch.sort(z, dim=1).values


def argsort_rows(z: Tensor) -> tuple[Tensor, Tensor]:
    """Sorted rows of z (h, n), and the point each value came from, int64 (h, n)."""
    values, order = torch.sort(z, dim=1)
    return values, order


def match_sorted(z_p: Tensor, z_q: Tensor, w_q: Tensor | None = None) -> Tensor:
    """The transport map T = F_q⁻¹(F_p(z)) at every particle.

    A particle is an atom of mass 1/M, a datum one of mass w_i/Σw. An atom is in the
    middle of its mass, F(z_k) = (C_{k-1} + C_k)/2 with C the cumulative masses; tied
    particles share the middle of theirs. F⁻¹ is linear between the data and constant
    beyond them.

    Across a gap more than `GAP_RATIO` times as wide as both gaps beside it F⁻¹ jumps
    where the mass of one datum ends: so no particle lands between two classes that the
    amplifier separates, nor between two values of a discrete coordinate.

    Parameters
    ----------
    z_p : sorted particles (h, M)
    z_q : sorted data (h, N)
    w_q : positive weights (h, N) of the data, in their order; None if all are equal

    Returns
    -------
    values : (h, M), ascending in each row
    """
    m = z_p.shape[1]
    n = z_q.shape[1]
    z = z_p.contiguous()
    first = torch.searchsorted(z, z, right=False)
    after = torch.searchsorted(z, z, right=True)
    probability = (first + after).double() / (2 * m)  # F_p(z), (h, M)
    # The position of that quantile among the data: k at datum k, fractions between.
    w = None if w_q is None else w_q.double()
    if w is None:
        position = probability * n - 0.5
    else:
        cumulative = w.cumsum(1)
        probabilities_q = (cumulative - w / 2) / cumulative[:, -1:]
        position = positions_among(probability, probabilities_q.contiguous())
    q = z_q.double()
    if n > 2:
        position = _out_of_wide_gaps(position, q, w)
    return interpolate_at_positions(position, q).to(z_p.dtype)


def _out_of_wide_gaps(position: Tensor, q: Tensor, w: Tensor | None) -> Tensor:
    """Positions (h, M) among data q (h, N), where none is within a wide gap.

    One that was goes to the datum before the gap, or to the one after it if the mass of
    the datum before, by weights w (h, N), ends below it. There are at least three data.
    """
    n = q.shape[1]
    gap = q.diff(dim=1)
    padded = torch.nn.functional.pad(gap, (1, 1))  # no gaps beyond the ends
    is_wide = gap > GAP_RATIO * torch.maximum(padded[:, :-2], padded[:, 2:])
    i = position.clamp(0, n - 1).floor().clamp(max=n - 2).long()  # the gap's index
    if w is None:
        end_of_mass: Tensor | float = 0.5
    else:
        end_of_mass = torch.gather(w[:, :-1] / (w[:, :-1] + w[:, 1:]), 1, i)
    at_datum = i + (position - i > end_of_mass).double()
    return torch.where(torch.gather(is_wide, 1, i), at_datum, position)


def displace_knots(z: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """T(z) − z for z (h, n), where T is linear between T(knots) = values.

    `knots` and `values` are (h, K) and ascend in each row. `images_beyond` says where
    points beyond the ends go.
    """
    zd = z.double().contiguous()
    k = knots.double().contiguous()
    v = values.double()
    first = k[:, :1]
    last = k[:, -1:]
    below, above = images_beyond(zd, first, last, v)
    image = interpolate_at_positions(positions_among(zd, k), v)
    image = torch.where(zd >= last, above, image)
    image = torch.where(zd <= first, below, image)
    return (image - zd).to(z.dtype)
