"""Smooth increasing maps, which can be inverted and have known slopes.

Densities need them: the log-density of a flow is a sum of logarithms of slopes. The
piecewise linear maps of other transports have slopes too noisy for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from torch import Tensor

from sliceflow.saved_types import ArraySpec

if TYPE_CHECKING:
    from sliceflow.engine.clouds import Cloud


@dataclass(frozen=True, eq=False)
class SmoothMaps:
    """Maps T, one for each row, whose slopes T′ are linear between knots.

    Between knots T is a parabola, and beyond them a straight line. The inverse is known
    in closed form.
    """

    knots: Annotated[Tensor, ArraySpec("h k", "float64")]  # ascending
    slopes: Annotated[Tensor, ArraySpec("h k", "float64")]  # T′ at the knots
    first_values: Annotated[Tensor, ArraySpec("h", "float64")]  # T(first knot)

    def check_saved(self) -> None:
        """Raise a ValueError if these maps cannot be applied."""
        if self.knots.shape[1] < 2:
            raise ValueError("smooth maps have fewer than two knots")
        if not bool((self.knots[:, 1:] > self.knots[:, :-1]).all()):
            raise ValueError("smooth maps have knots that do not ascend")
        if not bool((self.slopes > 0).all()):
            raise ValueError("smooth maps have slopes that are not positive")

    @property
    def values(self) -> Tensor:
        """T at the knots, (h, K)."""
        widths = self.knots.diff(dim=1)
        rises = (self.slopes[:, 1:] + self.slopes[:, :-1]) / 2 * widths
        first = self.first_values[:, None]
        return torch.cat((first, first + rises.cumsum(1)), 1)

    def call_and_ladj(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """T(z) and log T′(z), both (h, n), for z (h, n).

        The name is zuko's. As in PyTorch, a transform of single numbers has a Jacobian
        of single numbers.
        """
        i = _interval_of_each(self.knots, z)
        left = self.knots.gather(1, i)
        width = self.knots.gather(1, i + 1) - left
        slope_left = self.slopes.gather(1, i)
        bend = (self.slopes.gather(1, i + 1) - slope_left) / width
        offset = z - left
        inside = torch.minimum(offset.clamp(min=0), width)
        beyond = offset - inside
        slope = slope_left + bend * inside
        value = self.values.gather(1, i) + (slope_left + bend * inside / 2) * inside
        return value + slope * beyond, slope.log()

    def displace(self, z: Tensor, cloud: Cloud | None = None) -> Tensor:
        """T(z) − z for projections z (h, n)."""
        return self.call_and_ladj(z)[0] - z

    def inverse(self, t: Tensor) -> Tensor:
        """The z with T(z) = t, for t (h, n)."""
        values = self.values
        i = _interval_of_each(values, t)
        left = self.knots.gather(1, i)
        width = self.knots.gather(1, i + 1) - left
        slope_left = self.slopes.gather(1, i)
        slope_right = self.slopes.gather(1, i + 1)
        bend = (slope_right - slope_left) / width
        low = values.gather(1, i)
        high = values.gather(1, i + 1)
        rise = torch.minimum((t - low).clamp(min=0), high - low)
        # The root of slope·u + bend·u²/2 = rise in a form that subtracts nothing.
        root = (slope_left.square() + 2 * bend * rise).clamp(min=0).sqrt()
        inside = torch.minimum(2 * rise / (slope_left + root), width)
        beyond_low = (t - low).clamp(max=0) / slope_left
        beyond_high = (t - high).clamp(min=0) / slope_right
        return left + inside + beyond_low + beyond_high

    def relaxed(self, share: float) -> SmoothMaps:
        """The map (1 − share)·z + share·T(z)."""
        first = (1 - share) * self.knots[:, 0] + share * self.first_values
        return SmoothMaps(self.knots, (1 - share) + share * self.slopes, first)


def _interval_of_each(edges: Tensor, values: Tensor) -> Tensor:
    """The index i of the interval from edge i to i + 1 of each of the values (h, n).

    The edges are (h, K). Values beyond them are of the outermost intervals.
    """
    i = torch.searchsorted(edges, values.contiguous()) - 1
    return i.clamp(0, edges.shape[1] - 2)
