"""Batches: which particles and data a step is fitted to.

A map fitted to some tens of thousands of points is nearly as good as a map fitted to
all points, and it moves all particles. The particles and the data are divided once into
batches that take turns. In every batch each condition has as many data as particles: a
surplus of one class would be transported across the gap to another.

Most batches are slices of the points, which a GPU reads at full speed. So particles
must be in random order, and data in the `data_order` that `make_batches` returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from sliceflow.engine.clouds import (
    ALL_POINTS,
    ClassOrder,
    Cloud,
    Permutation,
    PointIndices,
    PointSelection,
    SortedSelection,
)
from sliceflow.engine.encoded_y import (
    ClassIndices,
    ClassSlices,
    FlowY,
    SeparateClassIndices,
)
from sliceflow.engine.random import Seed

if TYPE_CHECKING:
    from sliceflow.engine.flow import Step

# A batch of labeled particles is paired with this many different batches of data,
# before the pairs repeat. The indices of the data of each pair are stored, so that more
# pairs take more memory.
_PAIRS_PER_BATCH = 4
# Batches of more points than this have a multiple of `_ALIGNMENT` points, because a GPU
# reads aligned addresses faster. In small batches that would leave out too many.
_MIN_ALIGNED = 256
_ALIGNMENT = 16
# Weights of data, which are 1 on average, are multiples of 2⁻⁴⁰: sums up to 2¹³ are
# then exact in any order. Histograms, which ranks add up, round weights to a coarser
# unit, so that larger sums are exact, too.
_WEIGHT_UNIT = 2.0**-40


@dataclass(frozen=True, eq=False)
class Batch:
    """The particles and the data that one step is fitted to.

    Attributes
    ----------
    particle_selection : which particles are in the batch
    data_selection : which data are in the batch
    weights : the weights (n,) of the n data of the batch; None if all count alike
    all_data_y : the conditions of all data, inside and outside of the batch; None if
        the flow ignores y
    """

    particle_selection: PointSelection = ALL_POINTS
    data_selection: PointSelection = ALL_POINTS
    weights: Tensor | None = None
    all_data_y: FlowY | None = None

    @property
    def uses_all_particles(self) -> bool:
        """Whether the projections of all particles are known."""
        return self.particle_selection.indices is None

    @property
    def has_data(self) -> bool:
        """Whether this rank has data with the conditions of particles.

        If it has none, the batch has one datum of weight 0: `make_weighted_batches`.
        """
        if self.weights is None or len(self.weights) != 1:
            return True
        return float(self.weights[0]) != 0

    @property
    def class_slices(self) -> tuple[ClassSlices, ClassSlices] | None:
        """Where the classes are among the batch's particles, and among its data.

        None if the classes share their maps.
        """
        p = self.particle_selection
        q = self.data_selection
        if isinstance(p, SortedSelection) and isinstance(q, SortedSelection):
            return p.class_slices, q.class_slices
        return None


WHOLE_BATCH = Batch()


@dataclass(frozen=True, eq=False)
class Batches:
    """The batches of successive steps, which take turns.

    Batch number b has item ``b % len(particle_selections)`` of `particle_selections`,
    and item ``b % len(data_selections)`` of `data_selections`.

    Attributes
    ----------
    particle_selections : the particles of each batch; None if every step uses all
        particles
    data_selections : the data of each batch; None if every step uses all data
    data_order : the order into which the data must be brought; None leaves them as they
        are. If each class has its own maps, this order sorts the data by class
    weights : the weights (n,) of the n data that every batch uses; None if all data
        count alike
    """

    particle_selections: Sequence[PointSelection] | None = None
    data_selections: Sequence[PointSelection] | None = None
    data_order: Permutation | None = None
    weights: Tensor | None = None

    def at_step(self, steps_done: int, particles: Cloud, data: Cloud) -> Batch:
        """The batch of the step after `steps_done` steps.

        `data` has all data, in the `data_order`.
        """
        return Batch(
            _in_turn(self.particle_selections, steps_done, particles),
            _in_turn(self.data_selections, steps_done, data),
            self.weights,
            data.y,
        )


def _in_turn(
    selections: Sequence[PointSelection] | None, steps_done: int, cloud: Cloud
) -> PointSelection:
    """The selection whose turn it is, or all points of the cloud."""
    if selections is None:
        return cloud.all_points
    selection = selections[steps_done % len(selections)]
    if isinstance(cloud.y, SeparateClassIndices):
        assert isinstance(selection, SortedSelection), "parts of unsorted classes"
    return selection


class Target(Protocol):
    """What a flow moves particles onto."""

    def data_and_batch(self, step: Step) -> tuple[Cloud, Batch]:
        """The data of a step, in the subspace of its stage, and the batch to fit to."""


@dataclass
class DataTarget:
    """A target of data: it loads the data of each step, and has their batches.

    Attributes
    ----------
    load_data : loads the data of a step, which `Batches.data_order` then reorders
    batches_factory : makes the batches when the first step begins. By default a step
        uses all points
    reloads_every_step : whether data are loaded for every step, not only for every
        stage
    """

    load_data: Callable[[Step], Cloud]
    batches_factory: Callable[[], Batches] = Batches
    reloads_every_step: bool = False
    # The index of the stage whose data were loaded last, and the data themselves.
    _loaded: tuple[int, Cloud] | None = field(default=None, repr=False)

    @classmethod
    def from_cloud(cls, data: Cloud, batches: Batches | None = None) -> DataTarget:
        """A target of the same data at all steps, which by default use all points."""
        if batches is None:
            batches = Batches()
        return cls(lambda step: data, lambda: batches)

    @cached_property
    def batches(self) -> Batches:
        """The batches: which particles and data each step is fitted to."""
        return self.batches_factory()

    def data_and_batch(self, step: Step) -> tuple[Cloud, Batch]:
        """The data of a step, in the subspace of its stage, and the batch to fit to."""
        data = self._ordered_data(step)
        return data, self.batches.at_step(step.steps_done, step.particles, data)

    def _ordered_data(self, step: Step) -> Cloud:
        """The data of a step in the subspace of its stage, in the order of the batches.

        They are loaded only where they change: at the first step of a stage, or at
        every step; and at the first step of a simulation, which may resume a stage.
        """
        loads = self.reloads_every_step or step.step_index == 0
        if loads or self._loaded is None or self._loaded[0] != step.stage_index:
            self._loaded = None  # frees the memory first
            data = self.load_data(step)
            if self.batches.data_order is not None:
                data = data.reordered(self.batches.data_order)
            data = data.sorted_by_class()
            restricted = replace(data, x=step.stage.subspace.restrict(data.x))
            self._loaded = (step.stage_index, restricted)
        return self._loaded[1]


@dataclass(frozen=True)
class AnalyticTarget:
    """A target whose distribution is known exactly, such as N(0, I): there are no data.

    Steps are fitted to all particles. The transport knows the target, so it gets
    projections (h, 0) of data.
    """

    def data_and_batch(self, step: Step) -> tuple[Cloud, Batch]:
        """A cloud without points, and the batch of all particles."""
        x = step.particles.x
        return Cloud(x.new_zeros(len(x), 0)), WHOLE_BATCH


def make_batches(
    m: int,
    n: int,
    batch_size: int | None,
    seed: Seed,
    device: torch.device | str = "cpu",
    *,
    y_p: FlowY | None = None,
    y_q: FlowY | None = None,
) -> Batches:
    """Batches of at most `batch_size` of m particles and of n data, in one process.

    `y_p` and `y_q` are the conditions of particles and data, if the flow uses them.
    Every batch then has as many data as particles of each condition. If they are
    `SeparateClassIndices`, every batch has an equal share of each class.
    """
    if y_p is None or y_q is None:
        return _batches_without_y(m, n, batch_size, seed, device)
    y_p = y_p.to(device)
    y_q = y_q.to(device)
    if isinstance(y_p, SeparateClassIndices) and isinstance(y_q, SeparateClassIndices):
        return _batches_of_separate_classes(batch_size, seed, y_p=y_p, y_q=y_q)
    return _batches_by_condition(batch_size, seed, device, y_p=y_p, y_q=y_q)


def _batches_without_y(
    m: int, n: int, batch_size: int | None, seed: Seed, device: torch.device | str
) -> Batches:
    """Batches without conditions: every part of particles meets every part of data."""
    if batch_size is None or max(m, n) <= batch_size:
        return Batches()
    parts_p = _equal_slices(m, batch_size)
    parts_q = _equal_slices(n, batch_size)
    data_in_turn = []
    for turn in range(len(parts_q)):
        for b in range(len(parts_p)):
            data_in_turn.append(parts_q[(b + turn) % len(parts_q)])
    order = seed.child("order").permutation(n)
    return Batches(
        _selections(parts_p) if len(parts_p) > 1 else None,
        _selections(data_in_turn),
        Permutation(order.to(device)),
    )


def _batches_by_condition(
    batch_size: int | None,
    seed: Seed,
    device: torch.device | str,
    *,
    y_p: FlowY,
    y_q: FlowY,
) -> Batches:
    """Batches for conditions that share maps.

    Each batch has as many data as particles of each condition.
    """
    m = len(y_p)
    n = len(y_q)
    if batch_size is None or max(m, n) <= batch_size:
        return make_weighted_batches(slice(None), device, y_p=y_p, y_q=y_q)
    groups = point_groups(y_p=y_p, y_q=y_q)
    if groups is None:
        return _batches_without_y(m, n, batch_size, seed, device)
    groups_p = groups[0].cpu()
    groups_q = groups[1].cpu()
    parts_p = _equal_slices(m, batch_size)
    data_in_turn = []
    for indices in _matching_data(parts_p, groups_p, groups_q):
        data_in_turn.append(indices.to(device))
    # Group by group, and at random within each group.
    shuffled = seed.child("order").permutation(n)
    order = shuffled[torch.argsort(groups_q[shuffled], stable=True)]
    return Batches(
        _selections(parts_p) if len(parts_p) > 1 else None,
        _selections(data_in_turn),
        Permutation(order.to(device)),
    )


def _selections(parts: Sequence[PointIndices]) -> list[PointSelection]:
    """Selections of parts of points, in a flow where classes, if any, share maps."""
    return [PointSelection(part) for part in parts]


def _batches_of_separate_classes(
    batch_size: int | None,
    seed: Seed,
    *,
    y_p: SeparateClassIndices,
    y_q: SeparateClassIndices,
) -> Batches:
    """Batches for classes that have their own maps: an equal share of each class.

    The batches select parts of particles and data that are sorted by class.
    """
    if batch_size is None or max(len(y_p), len(y_q)) <= batch_size:
        # Data that are loaded anew are sorted by this order, which is found only once.
        return Batches(data_order=ClassOrder.from_y(y_q, y_q.n_classes))
    device = y_q.values.device
    shuffled = Permutation(seed.child("order").permutation(len(y_q)).to(device))
    # Class by class, and at random within each class.
    class_order = ClassOrder.from_y(y_q.take(shuffled.indices), y_q.n_classes)
    slices_p = ClassSlices.from_class_indices(y_p, y_p.n_classes)
    return Batches(
        stratified_parts(slices_p, batch_size, device),
        stratified_parts(class_order.class_slices, batch_size, device),
        shuffled.then(class_order),
    )


def stratified_parts(
    class_slices: ClassSlices, batch_size: int, device: torch.device
) -> list[SortedSelection]:
    """All points in parts of about `batch_size`, with an equal share of every class.

    The points are sorted by class, as `class_slices` says. The points of each part are
    sorted by class, too.
    """
    n_parts = math.ceil(class_slices.starts[-1] / batch_size)
    parts = []
    for b in range(n_parts):
        indices_of_classes = []
        for class_slice in class_slices.slices:
            size = class_slice.stop - class_slice.start
            first = class_slice.start + size * b // n_parts
            end = class_slice.start + size * (b + 1) // n_parts
            indices_of_classes.append(torch.arange(first, end, device=device))
        sizes = [len(indices) for indices in indices_of_classes]
        slices_of_part = ClassSlices(tuple(accumulate(sizes, initial=0)))
        parts.append(SortedSelection(torch.cat(indices_of_classes), slices_of_part))
    return parts


def make_weighted_batches(
    own_points: Tensor | slice, device: torch.device | str, *, y_p: FlowY, y_q: FlowY
) -> Batches:
    """Batches of all points, with weights that give data the particles' proportions.

    Data of weight 0 are left out. `y_p` and `y_q` are the conditions of the
    particles and data of all ranks; this rank has the data `own_points`.
    """
    weights = point_weights(y_p=y_p, y_q=y_q)
    if weights is None:
        return Batches()
    weights = weights[own_points]
    used = torch.nonzero(weights)[:, 0]
    if len(used) == 0:  # empty projections would fail: keep one point, of weight 0
        used = torch.zeros(1, dtype=torch.int64)
    data_selections = None
    if len(used) < len(weights):
        data_selections = [PointSelection(used.to(device))]
    return Batches(data_selections=data_selections, weights=weights[used].to(device))


def _equal_slices(n: int, batch_size: int) -> list[slice]:
    """0 to n − 1 in as few equal parts of at most `batch_size` as possible.

    A remainder that fills no part is left out.
    """
    n_parts = math.ceil(n / batch_size)
    size = n // n_parts
    if n_parts > 1 and size > _MIN_ALIGNED:
        size -= size % _ALIGNMENT
    return [slice(b * size, (b + 1) * size) for b in range(n_parts)]


def _matching_data(
    batches: list[slice], groups_p: Tensor, groups_q: Tensor
) -> list[Tensor]:
    """For every batch of particles, in turn, as many data of the same conditions.

    `groups_p` (M,) and `groups_q` (N,) are the group indices of particles and data, as
    `point_groups` returns them. The results are indices of data that are sorted by
    group.
    """
    n_groups = int(max(groups_p.max(), groups_q.max())) + 1
    group_size = torch.bincount(groups_q, minlength=n_groups)
    group_start = group_size.cumsum(0) - group_size
    data_indices = []
    for turn in range(_PAIRS_PER_BATCH * len(batches)):
        groups = groups_p[batches[turn % len(batches)]].sort().values
        groups = groups[group_size[groups] > 0]  # conditions that the data have
        indices_in_groups = _next_in_groups(groups, group_size, turn)
        data_indices.append((group_start[groups] + indices_in_groups).int())
    return data_indices


def _next_in_groups(groups: Tensor, group_size: Tensor, turn: int) -> Tensor:
    """The datum of each particle (k,), as an index among the data of its group.

    `groups` (k,) are the groups of the particles, ascending. In every turn, a group
    takes the data that follow the data of the turn before; after its last datum it
    begins again. If three particles are of group 0, which has five data, and two of
    group 1, which has one, the first turn gives 0 1 2 and 0 0, and the second 3 4 0 and
    0 0.
    """
    first_of_group = torch.searchsorted(groups, groups)
    index_in_group = torch.arange(len(groups)) - first_of_group
    taken_per_turn = torch.bincount(groups, minlength=len(group_size))[groups]
    return (index_in_group + turn * taken_per_turn) % group_size[groups]


def point_groups(*, y_p: FlowY, y_q: FlowY) -> tuple[Tensor, Tensor] | None:
    """Group indices (M,) of particles and (N,) of data: equal for equal conditions.

    The result is None if groups cannot be compared, because data and particles have
    different sets of distinct continuous y.
    """
    if isinstance(y_q, ClassIndices):
        return y_p.values, y_q.values
    n = len(y_q)
    all_rows = torch.cat((y_q.values, y_p.values.to(y_q.values.dtype)))
    groups = _distinct_row_ids(all_rows)
    groups_q = groups[:n]
    groups_p = groups[n:]
    if not torch.equal(torch.unique(groups_q), torch.unique(groups_p)):
        return None
    return groups_p, groups_q


def _distinct_row_ids(rows: Tensor) -> Tensor:
    """The index (n,) of each row (n, l) among the distinct rows.

    This is faster than `torch.unique` with dim=0. After each column, `indices` tells
    the rows apart by the columns so far.
    """
    indices = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    for column in rows.T:
        distinct, column_indices = torch.unique(column, return_inverse=True)
        pair_indices = indices * len(distinct) + column_indices
        indices = torch.unique(pair_indices, return_inverse=True)[1]
    return indices


def point_weights(*, y_p: FlowY, y_q: FlowY) -> Tensor | None:
    """Weights (N,) of the data that give every condition the particles' mass.

    A row whose condition g is shared by N_g of N rows and M_g of M particles counts
    (M_g/M)/(N_g/N) in F_q. Otherwise a surplus of one class would be transported across
    the gap to another, a jump of size ξ. The result is None if all weights are 1, or if
    conditions cannot be compared.
    """
    groups = point_groups(y_p=y_p, y_q=y_q)
    if groups is None:
        return None
    groups_p, groups_q = groups
    n_groups = int(max(groups_q.max(), groups_p.max())) + 1
    n_g = torch.bincount(groups_q, minlength=n_groups).double()
    m_g = torch.bincount(groups_p, minlength=n_groups).double()
    ratio = (m_g / len(groups_p)) / (n_g / len(groups_q))
    # Rounded, but only 0 becomes 0.
    units = (ratio / _WEIGHT_UNIT).round().clamp(min=1)
    rounded = torch.where(ratio > 0, units * _WEIGHT_UNIT, 0.0)
    weights = rounded[groups_q]
    return None if bool((weights == 1).all()) else weights
