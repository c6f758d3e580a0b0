"""The numerical loops of a step, for each device: a registry.

`Kernels` lists them with their types. `reference` implements and documents all of them
in plain torch. `cpu` (numba) and `triton` (NVIDIA GPUs) have faster versions of some,
under the same names, and import the others from `reference`. Kernels take projections
as (h, n) tensors: one row per direction, one column per point. In float64 every device
computes what the reference does, up to the order of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from sliceflow.errors import warn_user
from sliceflow.kernels import reference
from sliceflow.kernels.classes import displace_by_class, rows_of_class_maps
from sliceflow.kernels.geometry import TileGeometry
from sliceflow.kernels.reference.compressed_maps import MAX_QUANTIZED_DISPLACEMENT

__all__ = [
    "MAX_QUANTIZED_DISPLACEMENT",
    "Kernels",
    "TileGeometry",
    "displace_by_class",
    "for_device",
    "for_tensor",
    "rows_of_class_maps",
]


class Kernels(Protocol):
    """The kernels of one device, as a module. `reference` says what each returns."""

    # Random numbers

    def philox(
        self, first: int, n: int, key: tuple[int, int], device: torch.device | str
    ) -> Tensor: ...

    def uniform(
        self,
        first: int,
        n: int,
        key: tuple[int, int],
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> Tensor: ...

    def normal(
        self, first: int, n: int, key: tuple[int, int], device: torch.device | str
    ) -> Tensor: ...

    # Sorted samples

    def sort_rows(self, z: Tensor) -> Tensor: ...

    def argsort_rows(self, z: Tensor) -> tuple[Tensor, Tensor]: ...

    def match_sorted(
        self, z_p: Tensor, z_q: Tensor, w_q: Tensor | None = None
    ) -> Tensor: ...

    def displace_knots(self, z: Tensor, knots: Tensor, values: Tensor) -> Tensor: ...

    # Histograms

    def value_range(self, z: Tensor) -> tuple[Tensor, Tensor]: ...

    def bin_counts(
        self,
        z: Tensor,
        lo: Tensor,
        hi: Tensor,
        n_bins: int,
        weights: Tensor | None = None,
    ) -> Tensor: ...

    def histogram(
        self,
        z: Tensor,
        n_bins: int,
        weights: Tensor | None = None,
        starts: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def compose_histograms(
        self,
        counts_p: Tensor,
        lo_p: Tensor,
        hi_p: Tensor,
        counts_q: Tensor,
        lo_q: Tensor,
        hi_q: Tensor,
    ) -> tuple[Tensor, Tensor]: ...

    def shrink(
        self,
        lo: Tensor,
        hi: Tensor,
        values: Tensor,
        counts: Tensor,
        mean_squared_displacement: Tensor,
        thresholds: Tensor,
        variance: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...

    def shrink_factors(
        self, mean_squared_displacement: Tensor, thresholds: Tensor, variance: Tensor
    ) -> Tensor: ...

    def displace_grid(
        self,
        z: Tensor,
        lo: Tensor,
        hi: Tensor,
        values: Tensor,
        starts: Sequence[int] | None = None,
    ) -> Tensor: ...

    # Compressed maps

    def flatten_tails(
        self, lo: Tensor, hi: Tensor, values: Tensor, counts: Tensor
    ) -> Tensor: ...

    def compress_grid(
        self,
        lo: Tensor,
        hi: Tensor,
        values: Tensor,
        counts: Tensor,
        n_knots: int,
        exponent: int,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...

    def expand_grid(
        self,
        lo: Tensor,
        hi: Tensor,
        edges: Tensor,
        quantized_displacements: Tensor,
        n_bins: int,
        exponent: int,
        dtype: torch.dtype,
    ) -> Tensor: ...

    # Classes and distances

    def add_class_offsets(
        self, z: Tensor, offsets: Tensor, class_indices: Tensor
    ) -> Tensor: ...

    def nearest_distance(
        self, x: Tensor, rows: Tensor, max_gap: Tensor, exclude_self: bool = False
    ) -> Tensor: ...

    def keep_smallest(
        self, scores: Tensor, first: int, best_scores: Tensor, best_columns: Tensor
    ) -> None: ...

    # Points

    def take_points(self, x: Tensor, indices: Tensor) -> Tensor: ...

    # Pictures in tiles

    def padded_size(self, k: int) -> int: ...

    def project_tiles(
        self,
        x: Tensor,
        theta: Tensor,
        geometry: TileGeometry,
        indices: Tensor | None = None,
        offsets: Tensor | None = None,
        class_indices: Tensor | None = None,
    ) -> Tensor: ...

    def lift_tiles(
        self, dz: Tensor, theta: Tensor, geometry: TileGeometry
    ) -> Tensor: ...

    def move_tiles(  # noqa: PLR0913, tiles, a map and classes, as bare tensors
        self,
        x: Tensor,
        theta: Tensor,
        geometry: TileGeometry,
        lo: Tensor,
        hi: Tensor,
        values: Tensor,
        step_size: float,
        offsets: Tensor | None = None,
        class_indices: Tensor | None = None,
        starts: Sequence[int] | None = None,
    ) -> None: ...


# A module can implement a Protocol. Here and in `_cpu_kernels` and `_gpu_kernels`, type
# checkers compare the signatures of all its functions with those above.
_REFERENCE: Kernels = reference


def for_device(device: torch.device | str) -> Kernels:
    """The fastest kernels for `device`."""
    device_type = torch.device(device).type
    if device_type == "cpu":
        return _cpu_kernels()
    if device_type == "cuda":
        return _gpu_kernels()
    return _REFERENCE


def for_tensor(z: Tensor) -> Kernels:
    """The fastest kernels for the device of the tensor `z`."""
    return for_device(z.device)


@cache
def _cpu_kernels() -> Kernels:
    """The kernels in numba, or those of the reference if numba cannot be imported."""
    try:
        from sliceflow.kernels import cpu
    except ImportError as error:  # numba may not exist for a new Python yet
        _warn("CPU", f"numba cannot be imported ({error})", "pip install numba")
        return _REFERENCE
    return cpu


@cache
def _gpu_kernels() -> Kernels:
    """The kernels in Triton, or those of the reference if they cannot run here."""
    if torch.version.hip is not None:
        reason = f"torch {torch.__version__} is built for AMD GPUs (ROCm)"
        _warn("GPU", reason, "an NVIDIA GPU")
        return _REFERENCE
    try:
        from sliceflow.kernels import triton
    except ImportError as error:  # Triton is not made for every system
        _warn("GPU", f"Triton cannot be imported ({error})", "pip install triton")
        return _REFERENCE
    return triton


def _warn(device: str, reason: str, remedy: str) -> None:
    """Warn that a device has no fast kernels; `_cpu_kernels` caches, so only once."""
    warn_user(
        f"{reason}; the slower plain-torch kernels are used on the {device}. "
        f"{remedy} brings the fast ones",
        RuntimeWarning,
    )
