"""The fit of pictures: read them, plan their fit, choose its start, and run it.

`PictureAdapter` reads the user's pictures and plans their fit: a `PlannedPictureFit`.
Its `tune` chooses where particles start, and gives a `TunedPictureFit` (`tuned.py`),
which loads the pictures that particles move onto. That runs as `RunningPictureFit`
(`running.py`), which holds the particles and the flow, for `engine.flow.simulate`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sliceflow.arrays import Mask
from sliceflow.base.checkpoints import Checkpoints
from sliceflow.base.flow_conditions import FlowConditions
from sliceflow.base.flow_estimator import run_flow, until_finished
from sliceflow.base.protocols import FitResult
from sliceflow.base.ranks import ONE_PROCESS, Communicator
from sliceflow.base.rows import Conditions
from sliceflow.devices import require_memory
from sliceflow.engine.events import FlowListener
from sliceflow.engine.flow import resolve_map_sharing
from sliceflow.engine.labels import as_array
from sliceflow.engine.random import Seed
from sliceflow.errors import DataError, DataWarning, warn_user
from sliceflow.estimators.pictures import choices, costs
from sliceflow.estimators.pictures.batching import choose_batch_size
from sliceflow.estimators.pictures.fitted import FittedPictures
from sliceflow.estimators.pictures.known_parts import as_known
from sliceflow.estimators.pictures.layout import Layout
from sliceflow.estimators.pictures.parameters import PictureParameters
from sliceflow.estimators.pictures.plan import (
    PicturePlan,
    plan_noise_start,
    plan_pictures,
)
from sliceflow.estimators.pictures.rows import PictureData, PictureRows
from sliceflow.estimators.pictures.running import RunningPictureFit
from sliceflow.estimators.pictures.start_trial import needs_trial, noise_is_better
from sliceflow.estimators.pictures.tuned import TunedPictureFit

# If all integer pixels are in the lowest quarter of the possible values, the user has
# probably forgotten `n_pixel_values`.
DARK_DIVISOR = 4


@dataclass(frozen=True)
class PictureAdapter:
    """Reads pictures and plans their fit, for the parameters of one `ImageFlow`."""

    parameters: PictureParameters
    device: torch.device
    layout: Layout | None = None  # the layout of pictures; None infers it from them
    ranks: Communicator = ONE_PROCESS

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
            shard = self.ranks.shard_by_counts(len(pixels), kind)
        conditions = None
        if labels is not None:
            all_labels = self.ranks.all_gather_rows(labels)
            conditions = Conditions.infer(all_labels, len(all_labels), "labels")
        return PictureRows(layout, pixels, conditions, shard)

    def plan_fit(self, rows: PictureRows, seed: Seed) -> PlannedPictureFit:
        """Plan a fit of these pictures; an error if that is impossible.

        No trial is run: a start that is "auto" is mosaics wherever these are possible
        and no worse than noise for most pictures.
        """
        parameters = self.parameters
        data = PictureData.from_rows(rows, self.device, parameters.mirror)
        m = choices.choose_n_picture_particles(
            parameters, data.n_all, data.n_classes, self.ranks.size, self.device
        )
        wanted_amplifier = parameters.amplifier
        n_clusters = _choose_n_clusters(data, parameters, m)
        if n_clusters > 1:
            data = data.with_clusters(n_clusters, seed.child("data"), self.ranks)
            wanted_amplifier = math.inf  # clusters have separate maps
        amplifier = choices.choose_amplifier(
            wanted_amplifier, parameters.transport, m, data.n_all, data.n_classes
        )

        stores_maps = parameters.options.n_knots != 0
        flow_conditions = _flow_conditions(data, m, amplifier, seed, stores_maps)
        known = None
        if parameters.known is not None:
            known = as_known(parameters.known, data.layout).copy()
        plan = plan_pictures(
            data, parameters, flow_conditions, amplifier, self.device, self.ranks
        )
        plan = replace(plan, batch_size=choose_batch_size(plan, self.device))
        _require_memory(plan, data, self.ranks)
        return PlannedPictureFit(
            plan=plan,
            rows=rows,
            parameters=parameters,
            seed=seed,
            ranks=self.ranks,
            data=data,
            flow_conditions=flow_conditions,
            known=known,
        )


@dataclass(frozen=True)
class PlannedPictureFit:
    """A planned fit of pictures. No particle has moved yet, and no trial was run."""

    plan: PicturePlan
    rows: PictureRows  # the user's, checked
    parameters: PictureParameters
    seed: Seed
    ranks: Communicator
    data: PictureData  # the rows on the device, with mirror images and clusters
    flow_conditions: FlowConditions
    known: Mask | None  # (h, w), True where a pixel is known
    checkpoints: Checkpoints | None = None

    def with_checkpoints(self, checkpoints: Checkpoints) -> PlannedPictureFit:
        """The same fit, which writes checkpoints and resumes from the last one."""
        return replace(self, checkpoints=checkpoints)

    def run(self, listeners: Sequence[FlowListener]) -> FitResult[FittedPictures]:
        """Choose where particles start, if that is open, move them, finish the fit.

        The flow goes on where a checkpoint ended, if there is one.
        """
        running = RunningPictureFit.start(self.tune())
        with until_finished(self.checkpoints):
            finished = run_flow(running, listeners, self.ranks, self.checkpoints)
            return running.result(finished)

    def tune(self) -> TunedPictureFit:
        """Choose by trials where particles start, if the plan leaves that open.

        They start as noise if that is much better than the mosaics of the plan. All
        other settings are those of the plan. This is the first thing that a fit does.
        """
        plan = self.plan
        if needs_trial(plan) and noise_is_better(self, self._fit_on_trial):
            plan = plan_noise_start(plan, self.parameters)
            _require_memory(plan, self.data, self.ranks)
        return TunedPictureFit(self, plan)

    def _fit_on_trial(
        self, train: PictureRows, parameters: PictureParameters, seed: Seed
    ) -> NDArray[Any]:
        """Fit pictures on trial, and return the pixels (m, c, h, w) of its particles.

        Their start is in the parameters, so that this fit needs no trial itself.
        """
        adapter = PictureAdapter(parameters, self.data.device, train.layout)
        result = adapter.plan_fit(train, seed).run(())
        assert result.particles is not None, "the fit of a flow gives its particles"
        return train.layout.read(result.particles.X)


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
    """The labels of n pictures as an array (n,); a `DataError` if they are not n."""
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


def _choose_n_clusters(data: PictureData, parameters: PictureParameters, m: int) -> int:
    """Choose how many clusters the pictures are divided into; 1 does not divide them.

    Pictures with labels or with known pixels have no clusters.
    """
    if data.conditions is not None or parameters.known is not None:
        return 1
    return choices.choose_n_clusters(
        parameters, m, data.n_all, data.layout.shape, data.device
    )


def _flow_conditions(
    data: PictureData, m: int, amplifier: float, seed: Seed, stores_maps: bool
) -> FlowConditions:
    """Allocate m particles, with classes or clusters in the data's proportions.

    `stores_maps` is whether the fit keeps its maps, to draw samples later.
    """
    if data.conditions is None:
        return FlowConditions.without_y(m, stores_maps)
    conditions_seed = seed.child("conditions")
    return FlowConditions.in_proportion(
        data.conditions,
        m,
        resolve_map_sharing(amplifier, data.n_classes),
        conditions_seed,
        conditions_seed.child("mixed"),
        stores_maps,
    )


def _require_memory(plan: PicturePlan, data: PictureData, ranks: Communicator) -> None:
    """Raise a `NotEnoughMemoryError` if the device cannot hold the fit."""
    n_shard = data.pixel_points.shape[1]
    m_shard = ranks.own_shard(plan.n_moved_particles).count
    what = (
        f"{m_shard} moving particles, for n_particles={plan.n_particles}, "
        f"{n_shard} pictures of {plan.layout.dimension} values and a model of "
        f"{plan.n_steps} steps need"
    )
    hint = "lower n_particles, steps_per_stage or n_knots (0 keeps no model)"
    require_memory(costs.fit_bytes(plan, n_shard, m_shard), data.device, what, hint)
