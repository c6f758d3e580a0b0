"""Frames that complete pictures: they move hidden pixels, and never known ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor

from sliceflow.engine.clouds import ALL_POINTS, Cloud, PointSelection
from sliceflow.engine.frames import Frame
from sliceflow.engine.maps import TransportMaps
from sliceflow.engine.random import Seed
from sliceflow.estimators.pictures.pyramid import PyramidSubspace
from sliceflow.estimators.pictures.tiles import RandomPatches, Tiles


@dataclass(frozen=True, eq=False)
class MaskedFrameKind:
    """Frames on the coefficients of a subspace that never move known pixels."""

    subspace: PyramidSubspace
    kind: Tiles | RandomPatches  # on the coefficients of the subspace
    is_known_value: Tensor  # (d, 1), True where a value never moves

    def max_directions(self, d: int) -> int:
        """The most directions of a frame on coefficients; d is the number of pixels."""
        return self.kind.max_directions(self.subspace.dimension)

    def make_frame(
        self,
        seed: Seed,
        step_index: int,
        x_p: Tensor,
        condition_dim: int = 0,
        x_q: Tensor | None = None,
    ) -> MaskedFrame:
        """The frame of a step. What is known is the only condition."""
        return MaskedFrame(
            self.subspace,
            self.kind.make_frame(seed, step_index, x_p),
            self.is_known_value,
        )


@dataclass(frozen=True, eq=False)
class MaskedFrame:
    """A frame on coefficients that acts on pixels: z = ΘUᵀx, and dx = M·UΘᵀdz.

    U extends coefficients of the subspace to pixels, Θ are directions on coefficients,
    and M is 0 where a pixel is known: these pixels never move.
    """

    subspace: PyramidSubspace
    frame: Frame  # on the coefficients of the subspace
    is_known_value: Tensor  # (d, 1)
    theta_to_store: None = None  # no directions to store: the frame can be drawn again

    def count_directions(self, d: int) -> int:
        """The directions of the frame on coefficients; d is the number of pixels."""
        return self.frame.count_directions(self.subspace.dimension)

    def amplified(self, amplifier: float) -> Self:
        """The frame itself: what is known is the only condition."""
        return self

    def project(self, cloud: Cloud, points: PointSelection = ALL_POINTS) -> Tensor:
        """z (h, n) of some or all columns of pictures (d, n)."""
        cloud = cloud.take(points.indices)
        coefficients = self.subspace.restrict(cloud.x)
        return self.frame.project(replace(cloud, x=coefficients))

    def lift(self, dz: Tensor) -> Tensor:
        """dx (d, n) of dz (h, n); 0 where a pixel is known."""
        return self.subspace.embed(self.frame.lift(dz)) * ~self.is_known_value

    def move(self, cloud: Cloud, maps: TransportMaps, step_size: float) -> None:
        """Move the hidden pixels of pictures, in place."""
        before = self.subspace.restrict(cloud.x)
        after = before.clone()
        self.frame.move(replace(cloud, x=after), maps, step_size)
        cloud.x += self.subspace.embed(after.sub_(before)) * ~self.is_known_value
