"""The plan of a fit of pictures: all parameters, with every "auto" resolved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch

from sliceflow.base.fit_plan import FitPlan
from sliceflow.base.particle_allocation import ParticleAllocation
from sliceflow.base.ranks import Communicator
from sliceflow.devices import require_memory
from sliceflow.engine.flow import MapSharing, resolve_map_sharing
from sliceflow.engine.transports import StorableTransport
from sliceflow.estimators.pictures import choices, costs, schedules
from sliceflow.estimators.pictures.batching import resolve_batch_size
from sliceflow.estimators.pictures.layout import Layout
from sliceflow.estimators.pictures.options import (
    MAX_KNOTS,
    MAX_MOSAIC_SIZE,
    ImageOptions,
)
from sliceflow.estimators.pictures.parameters import (
    PatchBasis,
    PictureParameters,
)
from sliceflow.estimators.pictures.rows import DevicePictures
from sliceflow.estimators.pictures.schedules import PictureStage
from sliceflow.saved_types import Between, Count


@dataclass(frozen=True, kw_only=True)
class PicturePlan(FitPlan):
    """What a fit of pictures does. It prints as a table."""

    n_pictures: Count  # of all ranks, including mirror images
    layout: Layout
    mirror: bool
    n_particles: Count  # particles that the user gets, as `particles_`
    # Particles that the fit moves: those that the user gets, and more for better maps.
    n_moved_particles: Count
    condition_kind: Literal["none", "labels", "clusters", "known"]
    n_classes: Count  # number of classes or clusters
    amplifier: Annotated[float, Between(0, math.inf)]  # ξ; 0 without conditions
    picture_stages: tuple[PictureStage, ...]
    patch_basis: PatchBasis
    n_directions: Count  # directions of a step, if these are random patches
    transport: StorableTransport
    # The most particles of a step, and the most pictures; None uses all.
    batch_size: int | None = None
    n_knots: Annotated[int, Between(0, MAX_KNOTS)]  # kept per map; 0 keeps no model
    # The pictures of a mosaic; 0 starts from noise.
    mosaic_size: Annotated[int, Between(0, MAX_MOSAIC_SIZE)]
    shrinkage: Annotated[float, Between(0)]  # κ of the maps; 0 is off
    # The options as the user gave them: the fields above have what "auto" stands for.
    # But if a trial has chosen noise, `options.start` is "noise", not "auto".
    options: ImageOptions

    def check_saved(self) -> None:
        """Raise a ValueError if a saved plan contradicts itself."""
        for stage in self.picture_stages:
            if stage.height > self.layout.height or stage.width > self.layout.width:
                raise ValueError(
                    f"a stage is larger than pictures of {self.layout.shape}"
                )

    @property
    def map_sharing(self) -> MapSharing:
        """What the flow does with the classes."""
        return resolve_map_sharing(self.amplifier, self.n_classes)

    @property
    def n_separate_classes(self) -> int:
        """The number of classes with separate maps; 0 if all classes share maps."""
        if self.map_sharing == "separate":
            return self.n_classes
        return 0

    @property
    def method(self) -> str:
        """The method: SWF, CSWF with its ξ, per class, clusters or completion."""
        if self.condition_kind == "known":
            return "completion"
        if self.condition_kind == "clusters":
            return "clusters"
        if self.n_separate_classes:
            return "per class"
        if self.map_sharing == "shared":
            return f"CSWF ξ={self.amplifier:g}"
        return "SWF"

    @property
    def n_steps(self) -> int:
        return sum(stage.n_steps for stage in self.picture_stages)

    @property
    def start(self) -> str:
        """Where particles start, in words."""
        if self.mosaic_size == 0:
            return "noise"
        source = "the data"
        if self.n_separate_classes and self.condition_kind == "labels":
            source = "their class"
        elif self.n_separate_classes:
            source = "their cluster"
        return (
            f"mosaics of {self.mosaic_size} training pictures of {source}, "
            "which the model keeps"
        )

    def summary(self) -> Sequence[tuple[str, object]]:
        """Names and values to print; names with the value "" are left out."""
        return [
            ("data", self._data_in_words()),
            ("condition", self._condition_in_words()),
            ("particles", self._particles_in_words()),
            ("start", self.start),
            ("stages", self._stages_in_words()),
            ("steps", self.n_steps),
            ("directions", self._directions_in_words()),
            ("transport", repr(self.transport)),
            ("a step uses", self._batch_in_words()),
            ("shrinkage", self._shrinkage_in_words()),
            ("model", self._model_in_words()),
        ]

    def _data_in_words(self) -> str:
        layout = self.layout
        pictures = "pictures"
        if self.mirror:
            pictures = "pictures and mirror images"
        size = f"{layout.height}×{layout.width}"
        if layout.channels is not None:
            size += f"×{layout.channels}"
        values = "floats"
        if layout.n_pixel_values is not None:
            values = f"{layout.n_pixel_values} values a pixel"
        return f"{self.n_pictures} {pictures} of {size}, {values}"

    def _condition_in_words(self) -> str:
        if self.condition_kind == "labels":
            return f"{self.n_classes} classes"
        if self.condition_kind == "clusters":
            return f"{self.n_classes} clusters"
        if self.condition_kind == "known":
            return "known pixels"
        return ""

    def _particles_in_words(self) -> str:
        if self.n_moved_particles > self.n_particles:
            return f"{self.n_particles}, {self.n_moved_particles} moved for the model"
        return f"{self.n_particles}"

    def _stages_in_words(self) -> str:
        stages = " ".join(str(stage) for stage in self.picture_stages)
        return f"{len(self.picture_stages)}: {stages}"

    def _directions_in_words(self) -> str:
        if self.patch_basis == "random":
            return f"{self.n_directions} random patches"
        return f"tiles of {self.patch_basis}"

    def _batch_in_words(self) -> str:
        if self.batch_size is None:
            return ""
        return f"at most {self.batch_size} particles and pictures"

    def _shrinkage_in_words(self) -> str:
        if self.shrinkage == 0:
            return "off"
        return f"κ = {self.shrinkage:.2g}"

    def _model_in_words(self) -> str:
        if self.n_knots == 0:
            return "none kept"
        return f"{self.n_knots} knots per map"

    @property
    def nbytes(self) -> int:
        """Memory of the fit on each device, without the input data."""
        return costs.fit_bytes(self)

    def require_memory(self) -> None:
        """Raise a `NotEnoughMemoryError` if the device cannot hold the fit."""
        what = (
            f"{self.n_moved_per_rank} moving particles, for "
            f"n_particles={self.n_particles}, {self.n_pictures_per_rank} pictures of "
            f"{self.layout.dimension} values and a model of {self.n_steps} steps need"
        )
        hint = "lower n_particles, steps_per_stage or n_knots (0 keeps no model)"
        require_memory(self.nbytes, torch.device(self.device), what, hint)

    @property
    def n_pictures_per_rank(self) -> int:
        """The pictures of the rank that has the most, if they are divided equally."""
        return math.ceil(self.n_pictures / self.n_ranks)

    @property
    def n_moved_per_rank(self) -> int:
        """The moving particles of the rank that has the most."""
        return math.ceil(self.n_moved_particles / self.n_ranks)

    @property
    def seconds(self) -> float:
        """About how long a fit takes on its device."""
        return costs.fit_seconds(self)


def plan_pictures(
    pictures: DevicePictures,
    parameters: PictureParameters,
    allocation: ParticleAllocation,
    amplifier: float,
    ranks: Communicator,
) -> PicturePlan:
    """The plan of a flow onto these pictures, with every "auto" resolved.

    Parameters
    ----------
    pictures : the pictures on the device of the fit, in clusters if it uses some
    parameters : the parameters of the estimator
    allocation : how many particles the flow moves, and their y
    amplifier : ξ; 0 without classes
    ranks : the processes that share the fit
    """
    device = pictures.device
    options = parameters.options
    layout = pictures.layout
    n_classes = pictures.n_classes
    has_known = parameters.known is not None
    sharing = resolve_map_sharing(amplifier, n_classes)
    choices.require_possible_start(options.start, sharing, has_known)

    mosaic_size = choices.resolve_mosaic_size(
        options.start,
        has_colors=pictures.has_colors(ranks),
        sharing=sharing,
        has_known=has_known,
    )
    n_steps = choices.resolve_steps_per_stage(parameters, sharing, mosaic_size, device)
    picture_stages = _picture_stages(parameters.schedule, layout, n_steps)
    patch_basis = choices.resolve_patch_basis(parameters.patch_basis, pictures, ranks)
    n_directions = choices.resolve_n_directions(options.n_directions, layout)
    transport = choices.resolve_picture_transport(
        parameters.transport,
        sharing,
        _n_points(pictures.n_pictures, allocation, sharing),
        ranks.size,
    )
    n_knots = choices.resolve_n_picture_knots(
        options.n_knots, allocation.n_kept, sharing, n_classes
    )
    shrinkage = choices.resolve_shrinkage(
        options.shrinkage,
        _n_pictures_per_map(pictures, sharing),
        n_steps,
        has_mosaic_start=mosaic_size > 0,
    )
    plan = PicturePlan(
        device=str(device),
        n_ranks=ranks.size,
        n_pictures=pictures.n_pictures,
        layout=layout,
        mirror=pictures.has_mirror_images,
        n_particles=allocation.n_kept,
        n_moved_particles=allocation.n_moved,
        condition_kind=_condition_kind(pictures, has_known),
        n_classes=n_classes,
        amplifier=amplifier,
        picture_stages=picture_stages,
        patch_basis=patch_basis,
        n_directions=n_directions,
        transport=transport,
        n_knots=n_knots,
        mosaic_size=mosaic_size,
        shrinkage=shrinkage,
        options=options,
    )
    return replace(plan, batch_size=resolve_batch_size(plan, device))


def _n_points(
    n_pictures: int, allocation: ParticleAllocation, sharing: MapSharing
) -> int:
    """The number of particles and pictures by which a transport is chosen."""
    if sharing == "separate":
        # Without particles that are added for the maps: `resolve_amplifier` has decided
        # for separate maps by the same number.
        return n_pictures + allocation.n_kept
    return n_pictures + allocation.n_moved


def _n_pictures_per_map(pictures: DevicePictures, sharing: MapSharing) -> float:
    """The number of different pictures to which a map is fitted.

    Mirror images count as the pictures that they show.
    """
    n_distinct = float(pictures.n_pictures)
    if pictures.has_mirror_images:
        n_distinct /= 2
    if sharing == "separate":
        n_distinct /= pictures.n_classes
    return n_distinct


def _picture_stages(
    schedule: str, layout: Layout, n_steps: int
) -> tuple[PictureStage, ...]:
    """The stages that the parameter `schedule` says."""
    channels, height, width = layout.shape
    text = schedule
    if schedule == "auto":
        text = schedules.auto(height, width, channels)
    elif schedule == "paper":
        text = schedules.paper(height, width)
    return tuple(schedules.from_string(text, height, width, n_steps))


def _condition_kind(
    pictures: DevicePictures, has_known: bool
) -> Literal["none", "labels", "clusters", "known"]:
    """Which kind of y the flow is conditioned on."""
    if has_known:
        return "known"
    if pictures.conditions is None:
        return "none"
    if pictures.has_clusters:
        return "clusters"
    return "labels"
