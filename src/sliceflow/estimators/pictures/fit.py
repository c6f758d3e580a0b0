"""The fit of pictures: read them, plan their fit, choose its start, and run it.

`PictureFitPlanner` reads the user's pictures and plans their fit, a
`PlannedPictureFit`. Its `tune` chooses where particles start. Its `run` begins with
that, and moves them onto the pictures that `TrainingPictures` loads for every stage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sliceflow.arrays import Mask
from sliceflow.base.checkpoints import Checkpoints, RunningFlow
from sliceflow.base.distributed import across_ranks
from sliceflow.base.flow_estimator import checkpointed_until_done, run_flow
from sliceflow.base.particle_allocation import (
    ParticleAllocation,
    allocate_particles,
)
from sliceflow.base.protocols import FitResult, ParticleResult
from sliceflow.base.ranks import ONE_PROCESS, Communicator
from sliceflow.base.rows import Conditions
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import ClassIndices
from sliceflow.engine.events import FlowListener
from sliceflow.engine.flow import FlowSpec, ParticleRng, resolve_map_sharing
from sliceflow.engine.labels import as_array
from sliceflow.engine.proportions import balanced_indices
from sliceflow.engine.random import Seed
from sliceflow.engine.shrinkage import compute_noise_factors
from sliceflow.errors import CopyWarning, DataError, DataWarning, warn_user
from sliceflow.estimators.pictures import choices
from sliceflow.estimators.pictures.fitted import FittedPictures
from sliceflow.estimators.pictures.flow_builder import PictureFlowBuilder
from sliceflow.estimators.pictures.known_parts import as_known
from sliceflow.estimators.pictures.layout import Layout
from sliceflow.estimators.pictures.mosaics import (
    build_mosaics,
    gather_mosaic_sources,
    initial_points,
)
from sliceflow.estimators.pictures.parameters import PictureParameters
from sliceflow.estimators.pictures.plan import PicturePlan, plan_pictures
from sliceflow.estimators.pictures.rows import DevicePictures, PictureRows
from sliceflow.estimators.pictures.start_trial import choose_start_by_trial, needs_trial
from sliceflow.estimators.pictures.training_pictures import TrainingPictures
from sliceflow.metrics.copying import describe_copying

# If all integer pixels are in the lowest quarter of the possible values, the user has
# probably forgotten `n_pixel_values`.
DARK_DIVISOR = 4


@dataclass(frozen=True, eq=False)
class PictureFitPlanner:
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
        unclustered = DevicePictures.from_rows(rows, self.device, parameters.mirror)
        n_particles = choices.resolve_n_picture_particles(
            parameters,
            unclustered.n_pictures,
            unclustered.n_classes,
            self.ranks.size,
            self.device,
        )
        pictures = self._with_clusters(unclustered, n_particles, seed)
        amplifier = self._resolve_amplifier(pictures, n_particles)
        allocation = allocate_particles(
            pictures.conditions,
            n_particles,
            resolve_map_sharing(amplifier, pictures.n_classes),
            seed.child("conditions"),
            stores_maps=parameters.options.n_knots != 0,
        )
        if self.ranks.size > 1:
            allocation = allocation.on_rank(self.ranks)
        is_known = None
        if parameters.known is not None:
            is_known = as_known(parameters.known, pictures.layout).copy()
        plan = plan_pictures(pictures, parameters, allocation, amplifier, self.ranks)
        plan.require_memory()
        return PlannedPictureFit(
            plan=plan,
            rows=rows,
            parameters=parameters,
            seed=seed,
            ranks=self.ranks,
            pictures=pictures,
            allocation=allocation,
            is_known=is_known,
        )

    def _with_clusters(
        self, pictures: DevicePictures, n_particles: int, seed: Seed
    ) -> DevicePictures:
        """The pictures, in clusters if there are no labels and no known pixels."""
        if pictures.conditions is not None or self.parameters.known is not None:
            return pictures
        n_clusters = choices.resolve_n_clusters(
            self.parameters,
            n_particles,
            pictures.n_pictures,
            pictures.layout.shape,
            pictures.device,
        )
        if n_clusters == 1:
            return pictures
        return pictures.with_clusters(n_clusters, seed.child("data"), self.ranks)

    def _resolve_amplifier(self, pictures: DevicePictures, n_particles: int) -> float:
        """Choose ξ for pictures with their labels or clusters, if they have some."""
        amplifier = self.parameters.amplifier
        if pictures.has_clusters:
            amplifier = math.inf  # clusters have separate maps
        return choices.resolve_amplifier(
            amplifier,
            self.parameters.transport,
            n_particles,
            pictures.n_pictures,
            pictures.n_classes,
        )


@dataclass(frozen=True, eq=False)
class PlannedPictureFit:
    """A planned fit of pictures. No particle has moved yet, and no trial was run."""

    plan: PicturePlan
    rows: PictureRows  # the user's, checked
    parameters: PictureParameters
    seed: Seed
    ranks: Communicator
    pictures: DevicePictures  # the rows on the device, with mirror images and clusters
    allocation: ParticleAllocation
    is_known: Mask | None  # (h, w), True where a pixel is known
    is_tuned: bool = False  # whether trials have chosen the start
    checkpoints: Checkpoints | None = None

    def with_checkpoints(self, checkpoints: Checkpoints) -> PlannedPictureFit:
        """The same fit, which writes checkpoints and resumes from the last one."""
        return replace(self, checkpoints=checkpoints)

    def run(self, listeners: Sequence[FlowListener]) -> FitResult[FittedPictures]:
        """Choose where particles start, if that is open, and move them.

        The flow goes on where a checkpoint ended, if there is one.
        """
        return self.tune(listeners)._run_tuned(listeners)

    def _run_tuned(
        self, listeners: Sequence[FlowListener]
    ) -> FitResult[FittedPictures]:
        """Move the particles onto the pictures, from where the plan says."""
        mosaic_sources = None
        if self.plan.mosaic_size:
            mosaic_sources = gather_mosaic_sources(self.pictures, self.ranks)
        particle_rng = self.allocation.particle_rng(self.seed)
        particles = self._initial_particles(mosaic_sources, particle_rng)
        with checkpointed_until_done(self.checkpoints):
            run = run_flow(
                self.training_spec(),
                particles,
                self.training_pictures().target(),
                particle_rng,
                listeners=listeners,
                ranks=self.ranks,
                checkpoints=self.checkpoints,
            )
            return self._result(mosaic_sources, run)

    def tune(self, listeners: Sequence[FlowListener] = ()) -> PlannedPictureFit:
        """This fit, with the choice by trials of where particles start.

        Particles start as noise if the mosaics of the plan are collages. All other
        settings are those of the plan. The trials are two small fits, of which the
        listeners get no events.
        """
        if self.is_tuned:
            return self
        tuned = replace(self, is_tuned=True)
        if not needs_trial(self.plan) or choose_start_by_trial(self) == "mosaics":
            return tuned
        options = replace(self.parameters.options, start="noise")
        plan = plan_pictures(
            self.pictures,
            replace(self.parameters, options=options),
            self.allocation,
            self.plan.amplifier,
            self.ranks,
        )
        plan.require_memory()
        return replace(tuned, plan=plan)

    def fit_on_trial(
        self, train: PictureRows, parameters: PictureParameters, seed: Seed
    ) -> NDArray[Any]:
        """Fit some pictures, and return the pixels (m, c, h, w) of the particles.

        The parameters say where particles start, so that this fit needs no trial.
        """
        planner = PictureFitPlanner(parameters, self.pictures.device, train.layout)
        result = planner.plan_fit(train, seed).run(())
        assert result.particles is not None, "the fit of a flow gives its particles"
        return train.layout.read(result.particles.X)

    def _initial_particles(
        self, mosaic_sources: Tensor | None, particle_rng: ParticleRng
    ) -> Cloud:
        """This rank's particles where the flow begins, with the pixels that are known.

        `mosaic_sources` (n, c, h, w) are the pictures of which mosaics are made.
        Without them, particles start as noise.
        """
        pictures = self.pictures
        y = self.allocation.own_y(pictures.device)
        assert y is None or isinstance(y, ClassIndices), "pictures have labels"
        mosaics = build_mosaics(
            self.plan, mosaic_sources, pictures.label_y, pictures.device
        )
        x = initial_points(
            self.plan,
            mosaics,
            self.allocation.n_own,
            y,
            particle_rng,
            pictures.device,
        )
        is_known_value = self._is_known_value()
        if is_known_value is not None:
            x = torch.where(is_known_value, self._encoded_incomplete_pictures(), x)
        return Cloud(x, y)

    def training_spec(self) -> FlowSpec:
        """The flow as it is fitted: its maps are shrunk, and fitted on all ranks.

        A model replays the plain flow of `PictureFlowBuilder.flow_spec`.
        """
        plan = self.plan
        # Mirror images are no new pictures.
        distinct_share = 0.5 if plan.mirror else 1.0
        # One factor for each class: the noise of its maps is proportional to it.
        factors = compute_noise_factors(
            plan.n_moved_particles,
            plan.n_pictures,
            y_p=self.allocation.moved_y,
            y_q=self.allocation.row_y,
            batch_size=plan.batch_size,
            distinct_share=distinct_share,
        )
        device = self.pictures.device
        builder = PictureFlowBuilder(plan, self.seed, device, self._is_known_value())
        return across_ranks(builder.flow_spec(factors), self.ranks)

    def _is_known_value(self) -> Tensor | None:
        """Which values (d, 1) of a picture are known; None if none is."""
        pictures = self.pictures
        return pictures.layout.is_known_value(self.is_known, pictures.device)

    def _encoded_incomplete_pictures(self) -> Tensor:
        """The values (d, n) of the pictures that this rank's particles complete.

        The known pixels of these pictures do not move. Kept particles complete each
        picture equally often, and so do the particles that are added for the maps.
        """
        pictures = self.pictures
        n_particles = self.plan.n_particles
        n_moved = self.plan.n_moved_particles
        own = self.allocation.own_slice
        seed = self.seed.child("conditions")
        pictures_of_kept = balanced_indices(pictures.n_pictures, n_particles, seed)
        pictures_of_added = balanced_indices(
            pictures.n_pictures, n_moved - n_particles, seed.child("further")
        )
        indices = torch.cat((pictures_of_kept, pictures_of_added))[own]
        pixel_points = pictures.gather_pictures(indices.to(pictures.device), self.ranks)
        return pictures.layout.encode(
            pixel_points,
            self.seed.child("observed"),
            n_total=n_moved,
            index_slices=[own],
        )

    def training_pictures(self) -> TrainingPictures:
        """The pictures onto which the particles move."""
        return TrainingPictures(self.plan, self.pictures, self.seed, self.allocation)

    def _result(
        self, mosaic_sources: Tensor | None, run: RunningFlow
    ) -> FitResult[FittedPictures]:
        """Assemble the model, and this rank's part of the kept particles."""
        allocation = self.allocation
        steps = run.state.model_steps
        model = FittedPictures(
            plan=self.plan,
            seed=self.seed,
            steps=tuple(step.without_identity_maps() for step in steps),
            conditions=self.pictures.conditions,
            known=self.is_known,
            mosaic_sources=mosaic_sources,
            device=self.pictures.device,
        )
        x = allocation.kept_cloud(run.particles, self.ranks).x
        y = allocation.kept_user_y
        if y is not None:
            y = self.ranks.own_rows(y)
        return FitResult(
            model,
            run.history.as_columns(),
            self._copy_warning(x),
            ParticleResult(self.pictures.layout.decode(x), y),
        )

    def _copy_warning(self, x: Tensor) -> CopyWarning | None:
        """A warning if the particles x (d, n) copy pictures, else None.

        Two kinds of fits are not checked. On several ranks, no rank has all pictures.
        And if pixels are known, particles copy these on purpose.
        """
        if self.ranks.size > 1 or self.is_known is not None:
            return None
        pixel_points = self.pictures.pixel_points
        layout = replace(self.pictures.layout, is_tensor=False)
        particles = np.asarray(layout.decode(x)).reshape(x.shape[1], -1)
        n = pixel_points.shape[1]
        pixels = pixel_points.view(*layout.shape, n)
        rows = pixels.permute(3, 1, 2, 0).reshape(n, -1)
        evidence = describe_copying([(rows, particles)], self.plan.device)
        if not evidence:
            return None
        return CopyWarning(
            f"the particles copy rows of X ({evidence}); more shrinkage than "
            f"{self.plan.shrinkage:.2g} (ImageOptions), or a lower quality, help"
        )


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
