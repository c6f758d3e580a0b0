"""The adapter of pictures: it reads the user's pictures and plans their fit."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from sliceflow.devices import require_memory
from sliceflow.engine.allocation import MIN_PARTICLES
from sliceflow.engine.flow import resolve_condition_use
from sliceflow.engine.labels import as_array
from sliceflow.engine.random import Seed
from sliceflow.errors import DataError, DataWarning, warn_user
from sliceflow.models.particles import ParticleAllocation
from sliceflow.models.ranks import SINGLE, Communicator
from sliceflow.models.rows import RowConditions
from sliceflow.spaces.pictures import choices, schedules
from sliceflow.spaces.pictures.batching import choose_batch_size
from sliceflow.spaces.pictures.fit import PictureTask
from sliceflow.spaces.pictures.known_parts import as_known
from sliceflow.spaces.pictures.layout import Layout
from sliceflow.spaces.pictures.parameters import PictureParameters
from sliceflow.spaces.pictures.plan import PicturePlan
from sliceflow.spaces.pictures.rows import PictureData, PictureRows
from sliceflow.spaces.pictures.start_trial import StartTrial, needs_trial

# If all integer pixels are in the lowest quarter of the possible values, the user has
# probably forgotten `n_pixel_values`.
DARK_DIVISOR = 4


@dataclass(frozen=True)
class PictureAdapter:
    """Reads pictures and plans their fit, for the parameters of one `ImageFlow`."""

    parameters: PictureParameters
    device: torch.device
    layout: Layout | None = None  # the layout of pictures; None infers it from them
    ranks: Communicator = SINGLE

    def read(self, X: Any, y: Any) -> PictureRows:
        """The user's pictures and labels, checked."""
        if y is not None and self.parameters.known is not None:
            raise DataError(
                "a flow can use labels or known pixels, not both", "choose one"
            )
        layout = self.layout
        if layout is None:
            layout = Layout.infer(X, self.parameters.n_pixel_values)
        pixels = layout.read(X)
        if layout.n_pixel_values is None:
            dtype = np.promote_types(layout.dtype, np.float32)
            pixels = pixels.astype(dtype, copy=False)
        elif self.layout is None:
            _warn_if_dark(pixels, layout.n_pixel_values)

        labels = None
        kind = str(layout)
        if y is not None:
            labels = _as_labels(y, len(pixels))
            kind += " and labels"
        shard = None
        if self.ranks.size > 1:
            shard = self.ranks.gather_shard(len(pixels), kind)
        row_conditions = None
        if labels is not None:
            all_labels = self.ranks.gather(labels)
            row_conditions = RowConditions.infer(all_labels, len(all_labels), "labels")
        return PictureRows(layout, pixels, row_conditions, shard)

    def make_task(self, rows: PictureRows, seed: Seed) -> PictureTask:
        """What a fit of these pictures will do; an error if that is impossible."""
        parameters = self.parameters
        data = PictureData.from_rows(rows, self.device, parameters.mirror)
        m = choices.choose_particles(
            parameters, data.n, data.n_classes, self.ranks.size, self.device
        )
        clustered = self._with_clusters(data, m, seed)
        amplifier = parameters.amplifier
        if clustered is not data:
            amplifier = math.inf  # clusters have separate maps
        data = clustered
        amplifier = choices.choose_amplifier(
            amplifier, parameters.transport, m, data.n, data.n_classes
        )

        allocation = self._allocate_particles(data, m, amplifier, seed)
        known = None
        if parameters.known is not None:
            known = as_known(parameters.known, data.layout).copy()
        plan = self._plan(data, m, allocation.n_moved, amplifier)
        plan = replace(plan, batch_size=choose_batch_size(plan, self.device))
        self._require_memory(plan, data)
        start_trial = None
        if needs_trial(plan, self.ranks.size):
            start_trial = StartTrial(self)
        return PictureTask(
            plan,
            rows,
            data,
            allocation,
            known,
            seed,
            self.ranks,
            start_trial,
        )

    @property
    def _stores_maps(self) -> bool:
        """Whether the fit keeps its maps, to draw samples later."""
        return self.parameters.options.n_knots != 0

    def _allocate_particles(
        self, data: PictureData, m: int, amplifier: float, seed: Seed
    ) -> ParticleAllocation:
        """The particles, with classes or clusters in the data's proportions."""
        if data.conditions is None:
            n_moved = max(m, MIN_PARTICLES) if self._stores_maps else m
            return ParticleAllocation(m, n_moved)
        conditions_seed = seed.child("conditions")
        return ParticleAllocation.in_proportion(
            data.conditions,
            m,
            resolve_condition_use(amplifier, data.n_classes),
            conditions_seed,
            conditions_seed.child("mixed"),
            self._stores_maps,
        )

    def _with_clusters(self, data: PictureData, m: int, seed: Seed) -> PictureData:
        """The pictures with clusters, or the same pictures if they get none.

        Pictures with labels or with known pixels have no clusters.
        """
        if data.conditions is not None or self.parameters.known is not None:
            return data
        k = choices.choose_clusters(
            self.parameters, m, data.n, data.layout.shape, self.device
        )
        if k == 1:
            return data
        return data.with_clusters(k, seed.child("data"), self.ranks)

    def _plan(
        self, data: PictureData, m: int, n_flow_particles: int, amplifier: float
    ) -> PicturePlan:
        """The plan of a fit that keeps m particles, still without its batch size."""
        parameters = self.parameters
        options = parameters.options
        layout = data.layout
        n_classes = data.n_classes
        completes = parameters.known is not None
        use = resolve_condition_use(amplifier, n_classes)
        mosaic_size = choices.choose_mosaic_size(
            options.start, layout, use == "shared", completes
        )
        n_steps = choices.choose_steps_per_stage(
            parameters,
            shared_from_noise=use != "separate" and mosaic_size == 0,
            device=self.device,
        )

        n_points = data.n + n_flow_particles
        n_distinct_per_map = float(data.n)
        if data.mirrored:
            n_distinct_per_map /= 2
        if use == "separate":
            n_points = data.n + m  # as `choose_amplifier` counted them
            n_distinct_per_map /= n_classes
        return PicturePlan(
            device=str(self.device),
            n_ranks=self.ranks.size,
            n_pictures=data.n,
            layout=layout,
            mirror=data.mirrored,
            n_particles=m,
            n_flow_particles=n_flow_particles,
            condition_kind=_condition_kind(data, completes),
            n_classes=n_classes,
            amplifier=amplifier,
            picture_stages=self._picture_stages(layout, n_steps),
            patch_basis=choices.choose_patch_basis(
                parameters.patch_basis, data, self.ranks
            ),
            n_directions=choices.choose_directions(options.n_directions, layout),
            transport=choices.choose_picture_transport(
                parameters.transport, use, n_points, self.ranks.size
            ),
            n_knots=choices.choose_knots(options.n_knots, m, use, n_classes),
            mosaic_size=mosaic_size,
            shrinkage=choices.choose_shrinkage(
                options.shrinkage, n_distinct_per_map, n_steps, mosaic_size > 0
            ),
            options=options,
        )

    def _picture_stages(
        self, layout: Layout, n_steps: int
    ) -> tuple[schedules.PictureStage, ...]:
        """The stages that the parameter `schedule` says."""
        channels, height, width = layout.shape
        text = self.parameters.schedule
        if text == "auto":
            text = schedules.auto(height, width, channels)
        elif text == "paper":
            text = schedules.paper(height, width)
        return tuple(schedules.from_string(text, height, width, n_steps))

    def _require_memory(self, plan: PicturePlan, data: PictureData) -> None:
        """Raise a `NotEnoughMemoryError` if the device cannot hold the fit."""
        n_shard = data.pixel_points.shape[1]
        m_shard = self.ranks.shard(plan.n_flow_particles).count
        what = (
            f"n_particles={plan.n_particles}, for which {m_shard} move here, {n_shard} "
            f"pictures of {plan.layout.dimension} "
            f"values and a model of {plan.n_steps} steps need"
        )
        hint = "lower n_particles, steps_per_stage or n_knots (0 keeps no model)"
        nbytes = plan.fit_bytes(n_shard, m_shard)
        require_memory(nbytes, self.device, what, hint)


def _warn_if_dark(pixels: NDArray[Any], n_pixel_values: int) -> None:
    """Warn if integer pixels probably have fewer values than `n_pixel_values`."""
    brightest = int(pixels.max())
    if 0 < brightest < n_pixel_values // DARK_DIVISOR:
        warning = DataWarning(
            f"the brightest pixel is {brightest}, but pixels may have "
            f"{n_pixel_values} values",
            f"if they are 0..{brightest}, pass n_pixel_values={brightest + 1}",
        )
        warn_user(warning)


def _as_labels(y: Any, n: int) -> NDArray[Any]:
    """The labels of n pictures as an array (n,)."""
    labels = np.atleast_1d(as_array(y, "labels"))
    if len(labels) != n:
        raise DataError(
            f"there are {n} pictures but {len(labels)} labels",
            "pass one label per picture",
        )
    if labels.ndim != 1:
        raise DataError(
            f"labels have shape {labels.shape}", "pass one class label per picture"
        )
    return labels


def _condition_kind(
    data: PictureData, completes: bool
) -> Literal["none", "labels", "clusters", "known"]:
    """Which kind of y the flow is conditioned on."""
    if completes:
        return "known"
    if data.conditions is None:
        return "none"
    if data.conditions.encoder.are_clusters:
        return "clusters"
    return "labels"
