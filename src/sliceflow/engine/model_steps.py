"""The steps that a model stores, and the compressed form of their maps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from sliceflow import kernels
from sliceflow.engine.maps import GridMaps, KnotMaps, TransportMaps
from sliceflow.engine.rotations import are_orthonormal
from sliceflow.engine.smooth_maps import SmoothMaps
from sliceflow.saved_types import FLOAT_DTYPES, ArraySpec, Between, Count

# The most knots of a compressed map: its two ends, and as many more as one byte can
# count.
MAX_COMPRESSED_KNOTS = 257
# The most bins of a compressed map, so that the index of an edge fits into 16 bits.
MAX_BINS = (1 << 16) - 1
# How far ΘΘᵀ of stored directions may be from the identity: far above the rounding of
# float32. Directions of a damaged file are much worse.
_ORTHONORMAL_TOL = 1e-3


@dataclass(frozen=True, eq=False)
class CompressedMaps:
    """h maps through K knots each, on the edges of a uniform grid over [lo, hi].

    Knot k of a map is at edge `edges[:, k]` of its `n_bins` bins, and moves by
    ``quantized_displacements[:, k] · 2**exponent``. The displacement D is linear
    between knots. The first knot is at edge 0, the last at edge `n_bins`. `dtype` is
    the type of the values on the expanded grid. If each class has its own maps, h
    stands for C·h.

    Identity maps can be left out. Then `map_indices` (h,) are the indices of the stored
    maps among all `n_maps` maps. If none are left out, `map_indices` is None.
    """

    lo: Annotated[Tensor, ArraySpec("h", "float64")]
    hi: Annotated[Tensor, ArraySpec("h", "float64")]
    edges: Annotated[Tensor, ArraySpec("h k", "int32", n_difference_axes=1)]
    quantized_displacements: Annotated[
        Tensor, ArraySpec("h k", "int16", n_difference_axes=1)
    ]
    n_maps: Count  # with the identity maps that are left out
    n_bins: Annotated[int, Between(1, MAX_BINS)]
    exponent: Annotated[int, Between(-1000, 1000)]
    dtype: torch.dtype = torch.float32
    map_indices: (
        Annotated[Tensor, ArraySpec("h", "int64", ge=0, n_difference_axes=1)] | None
    ) = None

    def check_saved(self) -> None:
        """Raise a ValueError if these maps cannot be applied."""
        self._check_knots()
        self._check_map_indices()
        self._check_range()

    def _check_knots(self) -> None:
        edges = self.edges
        n_knots = edges.shape[1]
        is_float = self.dtype in (torch.float32, torch.float64)
        if not 2 <= n_knots <= MAX_COMPRESSED_KNOTS or not is_float:
            raise ValueError(f"compressed maps have {n_knots} knots of {self.dtype}")
        is_from_first = bool((edges[:, 0] == 0).all())
        is_to_last = bool((edges[:, -1] == self.n_bins).all())
        is_ascending = bool((edges[:, :-1] < edges[:, 1:]).all())
        if not (is_from_first and is_to_last and is_ascending):
            raise ValueError(
                f"compressed maps have knots that do not ascend from 0 to {self.n_bins}"
            )

    def _check_map_indices(self) -> None:
        if self.map_indices is None:
            if len(self.lo) != self.n_maps:
                raise ValueError(
                    f"there are {len(self.lo)} compressed maps, not {self.n_maps}"
                )
            return
        if len(self.map_indices) == 0:
            return
        is_ascending = bool((self.map_indices[:-1] < self.map_indices[1:]).all())
        if not is_ascending or int(self.map_indices[-1]) >= self.n_maps:
            raise ValueError(
                f"compressed maps have indices that do not ascend below {self.n_maps}"
            )

    def _check_range(self) -> None:
        if not bool((self.lo <= self.hi).all()):
            raise ValueError("compressed maps have ranges that end before they begin")
        farthest = 0.0
        if len(self.lo):
            farthest = max(-float(self.lo.amin()), float(self.hi.amax()))
        farthest += 2.0 ** (self.exponent + 15)  # displacements are below 2¹⁵ steps
        if not farthest < torch.finfo(self.dtype).max / 4:
            raise ValueError(
                f"compressed maps reach beyond the numbers of {self.dtype}"
            )

    def expand(self) -> GridMaps:
        """The maps on their whole grid, made to ascend.

        The bits are the same on every device.
        """
        maps = self.with_identity_maps()
        values = kernels.for_tensor(maps.lo).expand_grid(
            maps.lo,
            maps.hi,
            maps.edges,
            maps.quantized_displacements,
            self.n_bins,
            self.exponent,
            self.dtype,
        )
        return GridMaps(maps.lo, maps.hi, values)

    def with_identity_maps(self) -> CompressedMaps:
        """All maps: the stored ones, and the identity maps that were left out.

        The CPU does not wait for a GPU here.
        """
        if self.map_indices is None:
            return self
        map_indices = self.map_indices

        def zeros_elsewhere(stored: Tensor) -> Tensor:
            all_rows = stored.new_zeros(self.n_maps, *stored.shape[1:])
            return all_rows.index_copy_(0, map_indices, stored)

        return replace(
            self,
            lo=zeros_elsewhere(self.lo),
            hi=zeros_elsewhere(self.hi),
            edges=zeros_elsewhere(self.edges),
            quantized_displacements=zeros_elsewhere(self.quantized_displacements),
            map_indices=None,
        ).with_canonical_identity_maps()

    def without_identity_maps(self) -> CompressedMaps:
        """The maps without identity maps, which move nothing."""
        if self.map_indices is not None:
            return self
        map_indices = self.quantized_displacements.any(1).nonzero()[:, 0]
        return replace(
            self,
            lo=self.lo[map_indices],
            hi=self.hi[map_indices],
            edges=self.edges[map_indices],
            quantized_displacements=self.quantized_displacements[map_indices],
            map_indices=map_indices,
        )

    def with_canonical_identity_maps(self) -> CompressedMaps:
        """The maps, whose identity maps have the range [−1, 1] and evenly spaced knots.

        So identity maps need not be stored: `with_identity_maps` makes the same ones.
        """
        is_moving = self.quantized_displacements.any(1)
        n_knots = self.edges.shape[1]
        knot_indices = torch.arange(n_knots, device=self.edges.device)
        even_edges = knot_indices * self.n_bins // (n_knots - 1)
        return replace(
            self,
            lo=torch.where(is_moving, self.lo, -1.0),
            hi=torch.where(is_moving, self.hi, 1.0),
            edges=torch.where(
                is_moving[:, None], self.edges, even_edges.to(self.edges.dtype)
            ),
        )


@dataclass(frozen=True, eq=False)
class ModelStep:
    """One step of a model: step `step_index` of stage `stage_index`, and its maps.

    `theta` (h, d) are the directions if they were fitted. If it is None, the frame is
    drawn again from the numbers of the stage and the step.
    """

    stage_index: Count
    step_index: Count
    maps: KnotMaps | GridMaps | CompressedMaps | SmoothMaps
    theta: Annotated[Tensor, ArraySpec("h d", FLOAT_DTYPES)] | None = None

    def check_saved(self) -> None:
        """Raise a ValueError if the directions are not orthonormal."""
        if self.theta is None:
            return
        if not are_orthonormal(self.theta, _ORTHONORMAL_TOL):
            raise ValueError("the fitted directions of a step are not orthonormal")

    def without_identity_maps(self) -> ModelStep:
        """The step without identity maps, if its maps are compressed."""
        if isinstance(self.maps, CompressedMaps):
            return replace(self, maps=self.maps.without_identity_maps())
        return self

    def expand_maps(self) -> TransportMaps:
        """The maps in the form that moves particles."""
        if isinstance(self.maps, CompressedMaps):
            return self.maps.expand()
        return self.maps
