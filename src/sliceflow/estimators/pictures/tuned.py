"""A fit of pictures with all its settings: what it takes to put particles on their way.

The plan says what the fit does. Beside it are the pictures on the device, the particles
and their classes, and the known pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import torch

from sliceflow.arrays import Mask
from sliceflow.base.flow_conditions import FlowConditions
from sliceflow.base.ranks import Communicator
from sliceflow.devices import require_memory
from sliceflow.engine.allocation import MIN_PARTICLES
from sliceflow.engine.flow import resolve_map_sharing
from sliceflow.engine.random import Seed
from sliceflow.estimators.pictures import choices, costs
from sliceflow.estimators.pictures.batching import choose_batch_size
from sliceflow.estimators.pictures.known_parts import as_known
from sliceflow.estimators.pictures.parameters import PictureParameters
from sliceflow.estimators.pictures.plan import (
    PicturePlan,
    plan_noise_start,
    plan_pictures,
)
from sliceflow.estimators.pictures.rows import PictureData, PictureRows


@dataclass(frozen=True)
class TunedPictureFit:
    """A fit of pictures with all settings chosen. No particle has moved yet."""

    plan: PicturePlan
    seed: Seed
    data: PictureData  # the rows on the device, with mirror images and clusters
    flow_conditions: FlowConditions
    known: Mask | None  # (h, w), True where a pixel is known
    ranks: Communicator

    @classmethod
    def from_rows(
        cls,
        rows: PictureRows,
        parameters: PictureParameters,
        seed: Seed,
        device: torch.device,
        ranks: Communicator,
    ) -> Self:
        """The fit of these pictures; an error if that is impossible.

        No trial is run: a start that is "auto" is mosaics wherever these are possible
        and no worse than noise for most pictures.
        """
        data = PictureData.from_rows(rows, device, parameters.mirror)
        m = choices.choose_n_picture_particles(
            parameters, data.n, data.n_classes, ranks.size, device
        )
        amplifier = parameters.amplifier
        n_clusters = _choose_n_clusters(data, parameters, m)
        if n_clusters > 1:
            data = data.with_clusters(n_clusters, seed.child("data"), ranks)
            amplifier = math.inf  # clusters have separate maps
        amplifier = choices.choose_amplifier(
            amplifier, parameters.transport, m, data.n, data.n_classes
        )

        stores_maps = parameters.options.n_knots != 0
        flow_conditions = _flow_conditions(data, m, amplifier, seed, stores_maps)
        known = None
        if parameters.known is not None:
            known = as_known(parameters.known, data.layout).copy()
        plan = plan_pictures(
            data, parameters, flow_conditions, amplifier, device, ranks
        )
        plan = replace(plan, batch_size=choose_batch_size(plan, device))
        fit = cls(plan, seed, data, flow_conditions, known, ranks)
        fit.require_memory()
        return fit

    def starting_as_noise(self, parameters: PictureParameters) -> Self:
        """The same fit, but its particles start as noise; an error as of `from_rows`.

        `parameters` are those from which it was planned.
        """
        fit = replace(self, plan=plan_noise_start(self.plan, parameters))
        fit.require_memory()
        return fit

    def require_memory(self) -> None:
        """Raise a `NotEnoughMemoryError` if the device cannot hold the fit."""
        plan = self.plan
        n_shard = self.data.pixel_points.shape[1]
        m_shard = self.ranks.own_shard(plan.n_moved_particles).count
        what = (
            f"{m_shard} moving particles, for n_particles={plan.n_particles}, "
            f"{n_shard} pictures of {plan.layout.dimension} values and a model of "
            f"{plan.n_steps} steps need"
        )
        hint = "lower n_particles, steps_per_stage or n_knots (0 keeps no model)"
        nbytes = costs.fit_bytes(plan, n_shard, m_shard)
        require_memory(nbytes, self.data.device, what, hint)


def _choose_n_clusters(data: PictureData, parameters: PictureParameters, m: int) -> int:
    """How many clusters the pictures are divided into; 1 does not divide them.

    Pictures with labels or with known pixels have no clusters.
    """
    if data.conditions is not None or parameters.known is not None:
        return 1
    return choices.choose_n_clusters(
        parameters, m, data.n, data.layout.shape, data.device
    )


def _flow_conditions(
    data: PictureData, m: int, amplifier: float, seed: Seed, stores_maps: bool
) -> FlowConditions:
    """The particles, with classes or clusters in the data's proportions.

    `stores_maps` is whether the fit keeps its maps, to draw samples later.
    """
    if data.conditions is None:
        n_moved_particles = max(m, MIN_PARTICLES) if stores_maps else m
        return FlowConditions(m, n_moved_particles)
    conditions_seed = seed.child("conditions")
    return FlowConditions.in_proportion(
        data.conditions,
        m,
        resolve_map_sharing(amplifier, data.n_classes),
        conditions_seed,
        conditions_seed.child("mixed"),
        stores_maps,
    )
