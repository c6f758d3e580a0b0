"""One-dimensional optimal transport: one monotone map per direction.

A transport is fitted to projected particles z_p (h, M) and projected data z_q (h, N).
It returns the maps ``T = F_q⁻¹ ∘ F_p`` of all h directions, which displace any z (h,
n). The module `maps` describes these maps, and how each class may have maps of its own.
A model is a sequence of maps with fewer knots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from sliceflow import kernels
from sliceflow.arrays import chunks
from sliceflow.engine.batches import WHOLE_BATCH, Batch
from sliceflow.engine.encoded_y import ClassSlices
from sliceflow.engine.maps import (
    GridMaps,
    KnotMaps,
    TransportMaps,
    concatenate_classes,
)
from sliceflow.validation import require_int

__all__ = [
    "AlignedHistogramTransport",
    "AutoTransport",
    "BuiltinTransport",
    "HistogramTransport",
    "Histograms",
    "PaperTransport",
    "SortedTransport",
    "StorableTransport",
    "Transport",
    "TransportName",
    "TransportSolution",
]

# `PaperTransport` sorts this many values at a time, which bounds its memory.
_MAX_SORTED_VALUES = 1 << 30
# The most particles and data that a histogram counts in one step. Fewer are faster and
# worse: 16,384 points a step instead of all raise MNIST's FD from 2.29 to 2.50, and
# from .20 to .70 with labels (benchmarks/RESULTS.md).
MAX_COUNTED_POINTS = 1 << 17


class TransportSolution(NamedTuple):
    """The maps of a step, and what solving for them has found out.

    Attributes
    ----------
    maps : TransportMaps
        The maps T.
    mean_squared_displacement : tensor (h,) or (C·h,)
        The mean of (T(z) − z)² over the particles, for each map.
    dz : tensor (h, M) or None, default None
        The displacements of the particles, if they are known more exactly than by the
        maps.
    active_fraction : tensor or None, default None
        The fraction of maps that are not the identity, if maps are shrunk.
    data_per_map : tensor (C·h,) or None, default None
        How many data each map is for, if each class has its own maps; 0 if the class
        has no particles or no data. None if all data share the maps.
    """

    maps: TransportMaps
    mean_squared_displacement: Tensor
    dz: Tensor | None = None
    active_fraction: Tensor | None = None
    data_per_map: Tensor | None = None

    @property
    def distance(self) -> Tensor:
        """The sliced distance before the step: the root mean square displacement.

        Classes count by their share of the data, as in `clouds.sliced_distance`.
        """
        if self.data_per_map is None:
            return self.mean_squared_displacement.mean().sqrt()
        weights = self.data_per_map.double()
        total = (weights * self.mean_squared_displacement).sum()
        return (total / weights.sum().clamp(min=1)).sqrt()


class Histograms(NamedTuple):
    """Histograms, with B equal bins of [lo, hi] in each row.

    There is a row for each direction, or C·h rows if each class has its own histograms.
    """

    counts: Tensor  # (h, B)
    lo: Tensor  # (h,)
    hi: Tensor  # (h,)


@runtime_checkable
class Transport(Protocol):
    """A method to solve for maps from projected particles to projected data."""

    @property
    def batch_size(self) -> int | None:
        """The most particles, and the most data, that a fit gives to one step.

        Plans of fits read it and `make_batches` divides by it: `solve` and `simulate`
        take all that they get. Each step gets others, and its maps then move all
        particles. None gives all, as do fits on several ranks.
        """
        ...

    def solve(
        self, z_p: Tensor, z_q: Tensor, batch: Batch = WHOLE_BATCH
    ) -> TransportSolution:
        """Solve for the maps of one step.

        It must not write to `z_p` or `z_q`, which may be the points themselves.

        Parameters
        ----------
        z_p : tensor (h, M)
            Projected particles.
        z_q : tensor (h, N)
            Projected data.
        batch : Batch, default all points
            The weights of the data. If it has `class_slices`, each class gets its own
            maps.

        Returns
        -------
        solution : TransportSolution
        """
        ...


@dataclass(frozen=True)
class SortedTransport:
    """Exact transport between the sorted samples, with linear interpolation.

    Each sample sits at the middle of its mass, so that any M particles and N data match
    without bias. If M = N, without ties, the k-th particle moves exactly to the k-th
    datum. Tied particles move together. No particle moves into a gap of the data that
    is far wider than the adjacent gaps. `PaperTransport` is the paper's method.
    The cost is O(M log M + N log N) per direction.

    Parameters
    ----------
    batch_size : int or None, default None
        Fit to this many particles and data, different ones in each step, as the paper
        does on CIFAR-10 and CelebA. None uses all.

    Examples
    --------
    >>> z_p, z_q = torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([[10.0, 30.0, 20.0]])
    >>> solution = SortedTransport().solve(z_p, z_q)
    >>> z_p + solution.dz
    tensor([[30., 10., 20.]])
    >>> z = torch.tensor([[1.5]])
    >>> z + solution.maps.displace(z)
    tensor([[15.]])
    """

    batch_size: int | None = None

    def __post_init__(self) -> None:
        require_int("batch_size", self.batch_size, 1, others=(None,))

    def solve(
        self, z_p: Tensor, z_q: Tensor, batch: Batch = WHOLE_BATCH
    ) -> TransportSolution:
        """Solve for maps from particles z_p (h, M) to data z_q; see `Transport`."""
        if batch.class_slices is not None:
            return self._solve_separate_maps(z_p, z_q, *batch.class_slices)
        solution = self._solve_shared_maps(z_p, z_q, batch.weights)
        return TransportSolution(
            solution.maps, solution.mean_squared_displacement, solution.dz
        )

    def _solve_separate_maps(
        self, z_p: Tensor, z_q: Tensor, slices_p: ClassSlices, slices_q: ClassSlices
    ) -> TransportSolution:
        """Solve for the maps of every class alone.

        The maps of a class without particles or data move nothing.
        """
        h = len(z_p)
        maps: list[KnotMaps | None] = []
        mean_squared_displacements = []
        data_per_map = []
        dz = torch.zeros_like(z_p)
        for slice_p, slice_q in zip(slices_p.slices, slices_q.slices, strict=True):
            class_p = z_p[:, slice_p]
            class_q = z_q[:, slice_q]
            if class_p.shape[1] == 0 or class_q.shape[1] == 0:
                maps.append(None)
                mean_squared_displacements.append(z_p.new_zeros(h))
                data_per_map.append(0)
                continue
            solution = self._solve_shared_maps(class_p, class_q)
            maps.append(solution.maps)
            mean_squared_displacements.append(solution.mean_squared_displacement)
            data_per_map.append(class_q.shape[1])
            dz[:, slice_p] = solution.dz
        data_of_classes = torch.tensor(data_per_map, device=z_p.device)
        return TransportSolution(
            concatenate_classes(maps, h, z_p),
            torch.cat(mean_squared_displacements),
            dz,
            data_per_map=data_of_classes.repeat_interleave(h),
        )

    def _solve_shared_maps(
        self, z_p: Tensor, z_q: Tensor, weights: Tensor | None = None
    ) -> _SortedSolution:
        """Solve for the maps that all points share."""
        backend = kernels.for_tensor(z_p)
        sorted_weights = None
        if weights is None:
            sorted_q = backend.sort_rows(z_q)
        else:
            sorted_q, order_q = backend.argsort_rows(z_q)
            sorted_weights = weights[order_q]
        knots, order_p = backend.argsort_rows(z_p)
        values = backend.match_sorted(knots, sorted_q, sorted_weights)
        displacement = values - knots
        return _SortedSolution.from_displacement(
            KnotMaps(knots, values), displacement, order_p
        )


class _SortedSolution(NamedTuple):
    """The maps that points share along h directions, solved by sorting."""

    maps: KnotMaps
    mean_squared_displacement: Tensor  # (h,)
    dz: Tensor  # (h, M), the displacements of the particles

    @classmethod
    def from_displacement(
        cls, maps: KnotMaps, displacement: Tensor, order_p: Tensor
    ) -> _SortedSolution:
        """The solution that moves the k-th sorted particle by ``displacement[:, k]``.

        This is particle ``order_p[:, k]``.
        """
        dz = torch.empty_like(displacement).scatter_(1, order_p, displacement)
        return cls(maps, displacement.square().mean(1), dz)


@dataclass(frozen=True)
class PaperTransport(SortedTransport):
    """The paper's transport: both CDFs interpolate linearly between sorted samples.

    With samples z_0 ≤ … ≤ z_{n-1} (the paper's appendix on CDF estimation), T = F_q⁻¹ ∘
    F_p, where

        F(z) = (I + (z − z_I)/(z_{I+1} − z_I))/n,  z_I ≤ z ≤ z_{I+1},
        F⁻¹(a) = z_I + (a·n − I)·(z_{I+1} − z_I),  I = ⌊a·n⌋.

    Where the paper says nothing, F⁻¹ stays at z_{n-1} above (n − 1)/n, and I is the
    last of ties. For weighted data, the fraction of the weight below z_k replaces k/n.
    `SortedTransport` has its samples at (k + ½)/n instead, which makes no difference if
    M = N.

    Parameters
    ----------
    batch_size : int or None, default None
        Fit to this many particles and data, different ones in each step. None uses all.

    Examples
    --------
    >>> z_p, z_q = torch.tensor([[3.0, 1.0, 2.0, 4.0]]), torch.tensor([[10.0, 20.0]])
    >>> z_p + PaperTransport().solve(z_p, z_q).dz  # F_p is ½, 0, ¼ and ¾
    tensor([[20., 10., 15., 20.]])
    """

    def _solve_shared_maps(
        self, z_p: Tensor, z_q: Tensor, weights: Tensor | None = None
    ) -> _SortedSolution:
        """Solve for the maps that all points share, for some directions at a time."""
        n_rows = max(1, _MAX_SORTED_VALUES // max(z_p.shape[1], z_q.shape[1]))
        if n_rows >= len(z_p):
            return _solve_as_in_paper(z_p, z_q, weights)
        parts = []
        for rows in chunks(len(z_p), n_rows):
            parts.append(_solve_as_in_paper(z_p[rows], z_q[rows], weights))
        return _SortedSolution(
            KnotMaps(
                torch.cat([part.maps.knots for part in parts]),
                torch.cat([part.maps.values for part in parts]),
            ),
            torch.cat([part.mean_squared_displacement for part in parts]),
            torch.cat([part.dz for part in parts]),
        )


def _solve_as_in_paper(
    z_p: Tensor, z_q: Tensor, weights: Tensor | None
) -> _SortedSolution:
    """Solve for the maps of all these directions at once; see `PaperTransport`."""
    backend = kernels.for_tensor(z_p)
    sorted_p, order_p = backend.argsort_rows(z_p)
    if weights is None:
        maps, images = _paper_maps(sorted_p, backend.sort_rows(z_q))
    else:
        sorted_q, order_q = backend.argsort_rows(z_q)
        maps, images = _weighted_paper_maps(sorted_p, sorted_q, weights[order_q])
    displacement = _with_last_of_ties(images, sorted_p).sub_(sorted_p)
    return _SortedSolution.from_displacement(maps, displacement, order_p)


def _paper_maps(sorted_p: Tensor, sorted_q: Tensor) -> tuple[KnotMaps, Tensor]:
    """The maps of sorted particles (h, M) to sorted data (h, N), and their images.

    The images (h, M) are where the particles go, as if there were no ties. T bends only
    at the probabilities of the particles and of the data, which are the same for all
    directions: two particles, at 0 and ½, and four data, at 0, ¼, ½ and ¾, give knots
    at 0, ¼ and ½. F_p attains no probability above the last particle's.
    """
    at_p = _sample_probabilities(sorted_p)
    at_q = _sample_probabilities(sorted_q)
    images = _interpolate(at_p, at_q, sorted_q)
    at_knots = torch.unique(torch.cat((at_p, at_q.clamp(max=float(at_p[-1])))))
    knots = _interpolate(at_knots, at_p, sorted_p)
    values = _interpolate(at_knots, at_q, sorted_q)
    return KnotMaps(knots, values), images


def _weighted_paper_maps(
    sorted_p: Tensor, sorted_q: Tensor, sorted_weights: Tensor
) -> tuple[KnotMaps, Tensor]:
    """The maps and images as `_paper_maps` gives them, for data with weights.

    The weights (h, N) are in the order of the data, which differs by direction. So each
    direction has M + N knots of its own, of which some may be equal.
    """
    h = len(sorted_p)
    # One row for each direction, as the data have: weights differ in their order.
    at_p = _sample_probabilities(sorted_p).expand(h, -1).contiguous()
    weights = sorted_weights.double()
    weight_below = weights.cumsum(1) - weights
    at_q = weight_below / weights.sum(1, keepdim=True)
    images = _interpolate_rows(at_p, at_q, sorted_q)
    at_knots = torch.cat((at_p, at_q.clamp(max=float(at_p[0, -1]))), 1).sort(1).values
    knots = _interpolate_rows(at_knots, at_p, sorted_p)
    values = _interpolate_rows(at_knots, at_q, sorted_q)
    return KnotMaps(knots, values), images


def _sample_probabilities(z: Tensor) -> Tensor:
    """The probabilities k/n of the samples in z (h, n), as float64 (n,)."""
    n = z.shape[1]
    return torch.arange(n, dtype=torch.float64, device=z.device) / n


def _interpolate(at: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Interpolate rows linearly, as `np.interp` does: y (h, n) at x (n,).

    The result (h, m) is at other x, `at` (m,). x ascends; beyond its ends the result is
    constant. The kernels interpolate in float64; this function does so in the type of
    y, because it works on M + N values per direction.
    """
    left, right, share = _neighbors_in(x, at)
    y_left = y.index_select(1, left)
    y_right = y.index_select(1, right)
    return torch.lerp(y_left, y_right, share.to(y.dtype))


def _interpolate_rows(at: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """As `_interpolate`, but each row has its own x (h, n) and `at` (h, m)."""
    left, right, share = _neighbors_in(x, at)
    return torch.lerp(y.gather(1, left), y.gather(1, right), share.to(y.dtype))


def _neighbors_in(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The indices in x of the values left and right of `at`, and where `at` is between.

    This share is 0 at the left value and 1 at the right one. x and `at` may have rows.
    """
    last = x.shape[-1] - 1
    left = torch.searchsorted(x, at, right=True) - 1
    left = left.clamp_(0, max(0, last - 1))
    right = (left + 1).clamp_(max=last)
    x_left = x.gather(-1, left)
    gap = x.gather(-1, right) - x_left
    share = torch.where(gap > 0, (at - x_left) / gap, 0.0)
    return left, right, share.clamp_(0, 1)


def _with_last_of_ties(values: Tensor, z: Tensor) -> Tensor:
    """Give all values (h, n) of a tie in the sorted z (h, n) its last one, in place.

    With z = 1 1 1 2 3 3, the values 4 5 6 7 8 9 become 6 6 6 7 9 9. No tie goes on from
    one row to the next.
    """
    pad = torch.nn.functional.pad
    is_equal_to_next = pad(z[:, 1:] == z[:, :-1], (0, 1))
    # What is overwritten: all of a tie but its last, as indices of the flattened rows.
    # In the example these are 0 1 4, and the comments below go on with it.
    tied = is_equal_to_next.view(-1).nonzero()[:, 0]
    if len(tied) == 0:
        return values
    is_gap = tied.diff() > 1  # no, yes: 0 1 are of one tie, and 4 is of the next
    is_first_of_tie = pad(is_gap, (1, 0), value=True)  # yes, no, yes
    is_last_of_tie = pad(is_gap, (0, 1), value=True)  # no, yes, yes
    last_of_ties = tied[is_last_of_tie] + 1  # 2 5
    tie_of_each = is_first_of_tie.cumsum(0) - 1  # 0 0 1
    flat_values = values.view(-1)
    flat_values[tied] = flat_values[last_of_ties[tie_of_each]]
    return values


@dataclass(frozen=True)
class HistogramTransport:
    """Transport between histograms: two passes over memory, no sorting.

    The cost is linear in M and N. Bins cover [min, max] of each direction. T is linear
    in each bin of the particles. At the edges it is exact for the counts of the data,
    as if these were spread evenly over their bins. Counts can be added up over chunks
    and machines.

    Parameters
    ----------
    n_bins : int, default 256
        Bins for the particles and for the data. Conditions that spread the projections
        need more: each of C classes gets about n_bins/C of them.
    batch_size : int or None, default 131072
        Count at most this many particles and data, different ones in each step. None
        counts all. Fewer are faster and a little worse, with class labels clearly
        worse.

    Examples
    --------
    >>> z = torch.linspace(0, 1, 1001)[None]
    >>> solution = HistogramTransport(n_bins=64).solve(z, 2 * z + 1)
    >>> bool((solution.maps.displace(z) - (z + 1)).abs().max() < 1e-2)
    True
    """

    n_bins: int = 256
    batch_size: int | None = MAX_COUNTED_POINTS

    def __post_init__(self) -> None:
        require_int("n_bins", self.n_bins, 1)
        require_int("batch_size", self.batch_size, 1, others=(None,))

    def solve(
        self, z_p: Tensor, z_q: Tensor, batch: Batch = WHOLE_BATCH
    ) -> TransportSolution:
        """Solve for maps from particles z_p (h, M) to data z_q; see `Transport`."""
        if batch.class_slices is None:
            return solve_histograms(
                self.count(z_p), self.count(z_q, batch.weights), z_p.dtype
            )
        slices_p, slices_q = batch.class_slices
        return solve_class_histograms(
            self.count_by_class(z_p, slices_p),
            self.count_by_class(z_q, slices_q),
            z_p.dtype,
            has_points_in_every_class=not slices_p.empty and not slices_q.empty,
        )

    def count(self, z: Tensor, weights: Tensor | None = None) -> Histograms:
        """The histogram of each direction of z (h, n)."""
        counts, lo, hi = kernels.for_tensor(z).histogram(z, self.n_bins, weights)
        return Histograms(counts, lo, hi)

    def count_by_class(self, z: Tensor, class_slices: ClassSlices) -> Histograms:
        """The histograms of each class, C·h rows, in one pass over z.

        All counts of a class without points are 0.
        """
        counts, lo, hi = kernels.for_tensor(z).histogram(
            z, self.n_bins, starts=class_slices.starts
        )
        return Histograms(counts, lo, hi)

    def bin_range(self, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
        """The range that bins cover, for values from lo to hi."""
        return lo, hi


@dataclass(frozen=True)
class AlignedHistogramTransport(HistogramTransport):
    """Transport between histograms whose bins cover at least `span`.

    If the span is the range of pixels, pixel values stand at the edges of bins, and
    particles end exactly on them.
    """

    span: tuple[float, float] = (-1.0, 1.0)

    def count(self, z: Tensor, weights: Tensor | None = None) -> Histograms:
        """The histogram of each direction of z (h, n), over at least the span."""
        backend = kernels.for_tensor(z)
        lo, hi = self.bin_range(*backend.value_range(z))
        return Histograms(backend.bin_counts(z, lo, hi, self.n_bins, weights), lo, hi)

    def count_by_class(self, z: Tensor, class_slices: ClassSlices) -> Histograms:
        """The histograms of each class, C·h rows, one class after the other."""
        parts = []
        for class_slice in class_slices.slices:
            z_class = z[:, class_slice]
            if z_class.shape[1]:
                parts.append(self.count(z_class))
            else:  # a class without points has no range: any range will do
                of_first_point = self.count(z[:, :1])
                no_counts = torch.zeros_like(of_first_point.counts)
                parts.append(of_first_point._replace(counts=no_counts))
        return Histograms(
            torch.cat([part.counts for part in parts]),
            torch.cat([part.lo for part in parts]),
            torch.cat([part.hi for part in parts]),
        )

    def bin_range(self, lo: Tensor, hi: Tensor) -> tuple[Tensor, Tensor]:
        """The range from lo to hi, extended to the span where that goes further."""
        return lo.clamp(max=self.span[0]), hi.clamp(min=self.span[1])


def solve_histograms(
    histograms_p: Histograms, histograms_q: Histograms, dtype: torch.dtype
) -> TransportSolution:
    """Solve for the maps from counted particles to counted data.

    `dtype` is the type of the maps' values.
    """
    maps, mean_squared_displacement = _compose(histograms_p, histograms_q, dtype)
    return TransportSolution(maps, mean_squared_displacement)


def solve_class_histograms(
    histograms_p: Histograms,
    histograms_q: Histograms,
    dtype: torch.dtype,
    *,
    has_points_in_every_class: bool,
) -> TransportSolution:
    """Solve for the maps of every class at once, from histograms with C·h rows.

    Parameters
    ----------
    histograms_p, histograms_q : of the particles and of the data
    dtype : the type of the maps' values
    has_points_in_every_class : False if a class has no particles, or no data. The maps
        of such a class move nothing, and count as maps to no data. True spares a pass
        over all maps
    """
    maps, mean_squared_displacement = _compose(histograms_p, histograms_q, dtype)
    data_per_map = histograms_q.counts.sum(1)
    if not has_points_in_every_class:
        has_points = (histograms_p.counts.sum(1) > 0) & (data_per_map > 0)
        maps = _with_identity_where_empty(maps, has_points)
        mean_squared_displacement = mean_squared_displacement.where(has_points, 0.0)
        data_per_map = data_per_map.where(has_points, 0)
    return TransportSolution(maps, mean_squared_displacement, data_per_map=data_per_map)


def _compose(
    histograms_p: Histograms, histograms_q: Histograms, dtype: torch.dtype
) -> tuple[GridMaps, Tensor]:
    """The maps F_q⁻¹ ∘ F_p, and their mean squared displacements (h,)."""
    backend = kernels.for_tensor(histograms_p.counts)
    values, mean_squared_displacement = backend.compose_histograms(
        counts_p=histograms_p.counts,
        lo_p=histograms_p.lo,
        hi_p=histograms_p.hi,
        counts_q=histograms_q.counts,
        lo_q=histograms_q.lo,
        hi_q=histograms_q.hi,
    )
    maps = GridMaps(
        histograms_p.lo, histograms_p.hi, values.to(dtype), histograms_p.counts
    )
    return maps, mean_squared_displacement


def _with_identity_where_empty(maps: GridMaps, has_points: Tensor) -> GridMaps:
    """The maps of a fit where `has_points` (h,) is True, and the identity elsewhere."""
    assert maps.counts is not None, "a fit knows them"
    edges = torch.linspace(
        -1, 1, maps.values.shape[1], dtype=torch.float64, device=maps.values.device
    )
    # A range of positive width: beyond it, a map moves as at its ends, by 0.
    return GridMaps(
        lo=maps.lo.where(has_points, -1.0),
        hi=maps.hi.where(has_points, 1.0),
        values=maps.values.where(has_points[:, None], edges.to(maps.values.dtype)),
        counts=maps.counts.where(has_points[:, None], 1),
    )


@dataclass(frozen=True)
class AutoTransport:
    """Transport by sorting if there are few points, and by counting if there are many.

    It is a `SortedTransport` for up to `max_sorted` particles and data in total, and a
    `HistogramTransport` for more. Sorting is exact, and fast enough for few points.
    Counting takes two passes over memory for any number of points. By default there are
    more bins than in a `HistogramTransport`: this transport is for vectors, which have
    few directions, so that finer maps cost little. Pictures have thousands of
    directions, whose maps would fill the memory.

    Parameters
    ----------
    max_sorted : int, default 5000
        The most particles and data in total that are sorted. A larger number is exact
        for more points, and slower.
    n_bins : int, default 1024
        As in `HistogramTransport`.
    batch_size : int or None, default 131072
        As in `HistogramTransport`.

    Examples
    --------
    >>> transport = AutoTransport(max_sorted=1000)
    >>> type(transport.choose(900)).__name__, type(transport.choose(2000)).__name__
    ('SortedTransport', 'HistogramTransport')
    """

    max_sorted: int = 5_000
    n_bins: int = 1024
    batch_size: int | None = MAX_COUNTED_POINTS

    def __post_init__(self) -> None:
        require_int("max_sorted", self.max_sorted, 0)
        HistogramTransport(self.n_bins, self.batch_size)  # checks them

    def solve(
        self, z_p: Tensor, z_q: Tensor, batch: Batch = WHOLE_BATCH
    ) -> TransportSolution:
        """Solve for maps from particles z_p (h, M) to data z_q; see `Transport`."""
        return self.choose(z_p.shape[1] + z_q.shape[1]).solve(z_p, z_q, batch)

    def choose(self, n: int, n_ranks: int = 1) -> SortedTransport | HistogramTransport:
        """The transport for `n` particles and data in total.

        Several ranks always count, because only counts add up over ranks.
        """
        if n <= self.max_sorted and n_ranks == 1:
            return SortedTransport(self.batch_size)
        return HistogramTransport(self.n_bins, self.batch_size)


# Names of transports, for the parameter `transport`; see `resolve_transport`.
TransportName = Literal["auto", "sorted", "histogram", "paper"]


def resolve_transport(
    transport: TransportName | Transport,
    n: int,
    n_ranks: int,
    histogram: HistogramTransport,
    auto: AutoTransport,
) -> Transport:
    """The transport that a user's parameter names; an object is returned as it is.

    Parameters
    ----------
    transport : a name, or a transport
    n : the number of particles and data in total
    n_ranks : the number of ranks
    histogram, auto : the transports that these two names stand for; `auto` is resolved
    for n points
    """
    if transport == "sorted":
        return SortedTransport()
    if transport == "paper":
        return PaperTransport()
    if transport == "histogram":
        return histogram
    if transport == "auto":
        transport = auto
    if isinstance(transport, AutoTransport):
        return transport.choose(n, n_ranks)
    assert not isinstance(transport, str), "the names are checked before"
    return transport


BuiltinTransport = SortedTransport | PaperTransport | HistogramTransport | AutoTransport
# The type of fields in saved dataclasses. A user's own transport runs as well, but
# cannot be written to a file.
StorableTransport = Annotated[Transport, BuiltinTransport]
