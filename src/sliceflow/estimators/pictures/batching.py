"""Which particles and pictures a step of a fit uses.

A step may fit its maps to a part of the particles and pictures, the points of two
clouds; the maps then move all particles. Several numbers limit these points. They are
decided in this order, and none is ever larger than the one before:

1. ``transport.batch_size`` is the limit that the user sets, for particles and for
   pictures. The default is `choices.MAX_POINTS_PER_STEP`.
2. ``plan.batch_size`` is this limit, lowered by `resolve_batch_size` to what the device
   can hold. From here on it alone counts. None is no limit: a step uses all points. It
   is always None on several ranks.
3. With a batch size, one of these two divides the points:

   - `divide_pictures`, on a CPU, if only the pictures are more than a
     batch. Each stage uses the next part of the pictures, of about the batch size, so
     that only this part is encoded. All steps of the stage use all of this part and
     all particles.
   - `batches_of_steps`, otherwise. A stage encodes all pictures, and each step uses
     the next batch of particles and of pictures.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from sliceflow.devices import total_memory
from sliceflow.engine.batches import (
    Batches,
    make_batches,
    make_weighted_batches,
    stratified_parts,
)
from sliceflow.engine.clouds import ClassOrder, SortedSelection
from sliceflow.engine.encoded_y import ClassSlices, FlowY, SeparateClassIndices
from sliceflow.engine.random import Seed
from sliceflow.estimators.pictures.costs import max_directions_per_stage
from sliceflow.estimators.pictures.rows import DevicePictures

if TYPE_CHECKING:
    from sliceflow.estimators.pictures.plan import PicturePlan

# A step uses at least this many particles and pictures, however small the memory is.
MIN_BATCH = 4096
# On a CPU, where a step takes long, it uses at most as many pictures as there are
# particles, or this many if there are fewer particles.
MIN_CPU_BATCH = 10_000
# The projections of a step may take an eighth of the memory of a computer, which other
# programs use too, or a quarter of the memory of a GPU.
CPU_MEMORY_DIVISOR = 8
GPU_MEMORY_DIVISOR = 4
# Bytes for each direction: the projections of a particle and of a picture, in float32.
BYTES_PER_DIRECTION = 8


def resolve_batch_size(plan: PicturePlan, device: torch.device) -> int | None:
    """Choose the most particles, and the most pictures, of a step; None is all.

    They fit into a share of the total memory: not of the free memory, because the batch
    size changes the result of a fit.
    """
    user_limit = plan.transport.batch_size
    if plan.n_ranks > 1 or user_limit is None:
        return None
    limits = [user_limit]
    is_cpu = device.type == "cpu"
    memory = total_memory(device)
    if memory is not None:
        divisor = GPU_MEMORY_DIVISOR
        if is_cpu:
            divisor = CPU_MEMORY_DIVISOR
        bytes_per_point = BYTES_PER_DIRECTION * max(max_directions_per_stage(plan))
        affordable = memory // divisor // bytes_per_point
        limits.append(max(MIN_BATCH, affordable))
    if is_cpu and plan.options.dequantize_every == "stage":
        limits.append(max(plan.n_moved_particles, MIN_CPU_BATCH))
    batch_size = min(limits)
    if batch_size >= max(plan.n_moved_particles, plan.n_pictures):
        return None
    return batch_size


def divide_pictures(
    plan: PicturePlan, pictures: DevicePictures, seed: Seed
) -> list[SortedSelection]:
    """Divide the pictures into parts that stages use in turn.

    Classes with separate maps are divided equally among the parts. Without such
    classes, all pictures count as one class. The list is empty if every stage uses all
    pictures. So it is if classes share maps, because then the classes must have the
    same proportions among the pictures of a step as among its particles.
    """
    batch_size = plan.batch_size
    if batch_size is None:
        return []
    if plan.n_moved_particles > batch_size or pictures.n_pictures <= batch_size:
        return []
    if pictures.device.type != "cpu" or plan.map_sharing == "shared":
        return []
    shuffled = seed.child("order").permutation(pictures.n_pictures)
    n_classes = plan.n_separate_classes
    if n_classes and pictures.own_y is not None:
        # Class by class, at random within each.
        shuffled_classes = pictures.own_y.values[shuffled]
        order = shuffled[torch.argsort(shuffled_classes, stable=True)]
        class_slices = ClassSlices.from_class_indices(pictures.own_y, n_classes)
    else:
        order = shuffled
        class_slices = ClassSlices((0, pictures.n_pictures))
    parts = stratified_parts(class_slices, batch_size, pictures.device)
    return [replace(part, indices=order[part.indices]) for part in parts]


def batches_of_steps(
    plan: PicturePlan,
    pictures: DevicePictures,
    seed: Seed,
    *,
    y_p: FlowY | None,
    y_q: FlowY | None,
) -> Batches:
    """The particles and pictures that each step uses, in turn, in one process.

    Parameters
    ----------
    y_p, y_q : the classes of all particles and of all pictures, or None if the flow
        ignores them. If they have separate maps, the particles are sorted by class
    """
    return make_batches(
        plan.n_moved_particles,
        pictures.n_pictures,
        plan.batch_size,
        seed,
        pictures.device,
        y_p=y_p,
        y_q=y_q,
    )


def batches_of_all_points(
    pictures: DevicePictures, *, y_p: FlowY | None, y_q: FlowY | None
) -> Batches:
    """One batch of all points of this rank, for a fit on several ranks.

    Parameters
    ----------
    y_p, y_q : the classes of the particles and of the pictures of all ranks, or None
        if the flow ignores them
    """
    if y_p is None or y_q is None or pictures.own_y is None:
        return Batches()
    if isinstance(y_q, SeparateClassIndices):
        return Batches(data_order=ClassOrder.from_y(pictures.own_y, y_q.n_classes))
    return make_weighted_batches(
        pictures.indices.cpu(), pictures.device, y_p=y_p, y_q=y_q
    )
