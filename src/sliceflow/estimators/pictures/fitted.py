"""A fitted flow of pictures, and how to draw samples and completions from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.arrays import chunks
from sliceflow.base.rows import Conditions, HasConditions
from sliceflow.base.saved_steps import (
    check_finite_samples,
    check_steps,
    largest_coordinate,
)
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import ClassIndices, EncodedY
from sliceflow.engine.flow import ParticleRng
from sliceflow.engine.model_steps import CompressedMaps, ModelStep
from sliceflow.engine.random import Seed
from sliceflow.engine.rotations import freeing_rotation_pools
from sliceflow.errors import DataError
from sliceflow.estimators.pictures import costs
from sliceflow.estimators.pictures.flow_builder import (
    PictureFlowBuilder,
    replay_with_snapshots,
)
from sliceflow.estimators.pictures.known_parts import with_hidden_as_zero
from sliceflow.estimators.pictures.layout import Layout, PictureArray
from sliceflow.estimators.pictures.mosaics import (
    Mosaics,
    build_mosaics,
    initial_points,
    layout_of_mosaic_sources,
)
from sliceflow.estimators.pictures.plan import PicturePlan
from sliceflow.estimators.pictures.rows import check_saved_labels
from sliceflow.saved_types import ArraySpec

# On a CPU, a pass over the steps of a model draws this many samples.
SAMPLES_PER_PASS = 1 << 13
# On a GPU, where a small step takes as long as a large one, a pass has more samples:
# as many as fit into MAX_VALUES_PER_PASS values (256 MB in float32), within limits.
MAX_SAMPLES_PER_PASS = 1 << 16
MAX_VALUES_PER_PASS = 1 << 26


@dataclass(frozen=True, eq=False)
class FittedPictures(HasConditions):
    """The state of a fitted estimator of pictures."""

    plan: PicturePlan
    seed: Seed  # of the fit: its frames are drawn again
    steps: tuple[ModelStep, ...]
    # The classes or clusters of the pictures, also of mirror images
    conditions: Conditions | None = None
    # (h, w), True where a pixel is known
    known: Annotated[np.ndarray, ArraySpec("h w", "bool")] | None = None
    # The pictures that mosaics are made of; None if particles start as noise
    mosaic_sources: (
        Annotated[Tensor, ArraySpec("n c h w", "uint8", n_difference_axes=3)] | None
    ) = None
    device: torch.device = field(default=torch.device("cpu"), metadata={"saved": False})
    needs_rows = False  # samples need no rows: mosaics store their pictures themselves

    def check_saved(self) -> None:
        """Raise a ValueError if the parts of a saved model do not fit together."""
        self._check_conditions()
        self._check_stored_pictures()
        self._check_steps()

    def _check_conditions(self) -> None:
        plan = self.plan
        check_saved_labels(self.conditions)
        if self.n_classes != plan.n_classes:
            raise ValueError(
                f"the pictures have {self.n_classes} classes, the plan {plan.n_classes}"
            )
        if (self.known is not None) != (plan.condition_kind == "known"):
            raise ValueError("known pixels and condition do not fit")
        picture_size = plan.layout.shape[1:]
        if self.known is not None and self.known.shape != picture_size:
            raise ValueError(
                f"known pixels have shape {self.known.shape}, not {picture_size}"
            )

    def _check_stored_pictures(self) -> None:
        plan = self.plan
        if (self.mosaic_sources is not None) != (plan.mosaic_size > 0):
            raise ValueError("the kept pictures and the start of the plan do not fit")
        if self.mosaic_sources is None:
            return
        n = len(self.mosaic_sources)
        shape = plan.layout.shape
        has_pictures = n > 0 and self.mosaic_sources.shape[1:] == shape
        n_values = layout_of_mosaic_sources(plan.layout).n_pixel_values
        assert n_values is not None  # stored pictures are bytes
        if not has_pictures or int(self.mosaic_sources.max()) >= n_values:
            raise ValueError(f"the kept pictures are not at least one of {shape}")
        if plan.n_separate_classes:
            n_labels = n
            if plan.mirror:
                n_labels = 2 * n
            if self.label_y is None or len(self.label_y) != n_labels:
                raise ValueError(f"there are not labels for {n} kept pictures")

    def _check_steps(self) -> None:
        plan = self.plan
        builder = PictureFlowBuilder(plan, self.seed, torch.device("cpu"))
        n_classes = max(1, plan.n_separate_classes)

        def expected_n_maps(step: ModelStep) -> int:
            n_directions = builder.count_directions_of_step(
                step.stage_index, step.step_index
            )
            return n_directions * n_classes

        spec = builder.flow_spec()
        check_steps(spec, self.steps, expected_n_maps)
        d = plan.layout.dimension
        start_std = max(1.0, plan.options.start_noise)
        largest = largest_coordinate(spec, self.steps, d, start_std)
        check_finite_samples(spec, largest, d, torch.float32, self.encoded_y)
        if any(step.theta is not None for step in self.steps):
            raise ValueError(
                "a step stores directions, but the steps of pictures never do"
            )

    @property
    def layout(self) -> Layout:
        return self.plan.layout

    @cached_property
    def mosaics(self) -> Mosaics | None:
        """The mosaics as which particles start; None if they start as noise."""
        return build_mosaics(self.plan, self.mosaic_sources, self.label_y, self.device)

    def sample_bytes(self, n: int = 1) -> int:
        """Memory to draw n samples.

        These are the pictures, twice, because chunks are joined; their classes; the
        work of a pass; and the largest grid of maps.
        """
        d = self.layout.dimension
        picture_bytes = 2 * d * np.dtype(self.layout.dtype).itemsize + 64
        n_directions = max(costs.max_directions_per_stage(self.plan))
        pass_bytes = 4 * min(n, self._samples_per_pass()) * (3 * d + n_directions)
        grid_bytes = 0
        for step in self.steps:
            if isinstance(step.maps, CompressedMaps):
                n_values = step.maps.n_maps * (step.maps.n_bins + 1)
                grid_bytes = max(grid_bytes, 24 * n_values)
        frame_bytes = costs.frame_bytes(self.plan)
        return n * picture_bytes + pass_bytes + frame_bytes + grid_bytes

    def _samples_per_pass(self) -> int:
        if self.device.type == "cpu":
            return SAMPLES_PER_PASS
        wanted = MAX_VALUES_PER_PASS // self.layout.dimension
        return max(SAMPLES_PER_PASS, min(MAX_SAMPLES_PER_PASS, wanted))

    def standardized_points(self, X: Any) -> Tensor:
        """The user's pictures as columns (d, n) of values in [−1, 1]."""
        return self.layout.encode(self._pixel_points(X))

    def _pixel_points(self, X: Any) -> Tensor:
        """The pixels of the user's pictures as columns (d, n)."""
        return self.layout.to_points(torch.from_numpy(self.layout.read(X)))

    def sample(self, n: int, y: EncodedY | None, seed: Seed) -> PictureArray:
        """n samples of the classes `y`, in the user's layout."""
        return self.evolution(n, y, seed)[0]

    @freeing_rotation_pools()
    def evolution(
        self,
        n: int,
        y: EncodedY | None,
        seed: Seed,
        n_snapshots: int = 1,
        incomplete_points: Tensor | None = None,
    ) -> list[PictureArray]:
        """n samples on their way from the start to the end, in the user's layout.

        Parameters
        ----------
        n : number of samples
        y : their class indices, or None
        seed : of the samples
        n_snapshots : how often each sample is recorded on its way; 1 is only the end
        incomplete_points : for a model with known pixels, the pictures to complete, as
            columns (d, k) of pixels; each is completed n/k times

        Returns
        -------
        a list of snapshots, each with all n pictures; the last one has the samples
        """
        self._check_can_sample(incomplete_points)
        if n == 0:  # an empty y: as many snapshots as of one picture, without it
            assert self.encoded_y is not None, "only y asks for no samples"
            y_of_one = self.encoded_y.take(slice(1))
            snapshots_of_one = self.evolution(1, y_of_one, seed, n_snapshots)
            return [pictures[:0] for pictures in snapshots_of_one]
        is_known_value = self.layout.is_known_value(self.known, self.device)
        builder = PictureFlowBuilder(self.plan, self.seed, self.device, is_known_value)
        spec = builder.flow_spec()
        snapshots_of_passes = []
        for part in chunks(n, self._samples_per_pass()):
            particle_rng = ParticleRng(seed.child("samples"), part.start)
            particles = self._initial_cloud(part, y, particle_rng)
            if is_known_value is not None and incomplete_points is not None:
                encoded = self._encoded_incomplete_pictures(
                    incomplete_points, part, n, seed
                )
                particles.x = torch.where(is_known_value, encoded, particles.x)
            snapshots = replay_with_snapshots(
                spec, self.steps, particles, particle_rng, n_snapshots
            )
            snapshots_of_passes.append([self.layout.decode(x) for x in snapshots])
        return [self._joined(parts) for parts in zip(*snapshots_of_passes, strict=True)]

    def _check_can_sample(self, incomplete_points: Tensor | None) -> None:
        if not self.steps:
            raise DataError(
                "it was fitted with n_knots=0, which keeps no maps",
                "fit with n_knots > 0",
            )
        if self.known is not None and incomplete_points is None:
            raise DataError(
                "this model completes pictures (known=…)", "call inpaint(X)"
            )

    def _initial_cloud(
        self, part: slice, y: EncodedY | None, particle_rng: ParticleRng
    ) -> Cloud:
        """The particles of a part of the samples, where they start."""
        count = part.stop - part.start
        part_y = None
        if y is not None:
            assert isinstance(y, ClassIndices), "pictures have labels"
            part_y = y.take(part).to(self.device)
        x = initial_points(
            self.plan, self.mosaics, count, part_y, particle_rng, self.device
        )
        return Cloud(x, part_y)

    def _encoded_incomplete_pictures(
        self, incomplete_points: Tensor, part: slice, n: int, seed: Seed
    ) -> Tensor:
        """The values (d, m) of the pictures that a part of the n samples completes.

        Samples of the same picture follow each other.
        """
        n_per_picture = n // incomplete_points.shape[1]
        samples = torch.arange(part.start, part.stop, device=incomplete_points.device)
        picture_of_sample = samples // n_per_picture
        return self.layout.encode(
            incomplete_points[:, picture_of_sample],
            seed.child("observed", 0),
            n_total=n,
            index_slices=[part],
        )

    def _joined(self, parts: Sequence[PictureArray]) -> PictureArray:
        """Pictures of several passes as one array or tensor."""
        if len(parts) == 1:
            return parts[0]
        if self.layout.is_tensor:
            return torch.cat([torch.as_tensor(part) for part in parts])
        return np.concatenate(parts)

    def completions(
        self, X: Any, n: int, seed: Seed, n_snapshots: int = 1
    ) -> PictureArray:
        """Complete each of k pictures X n times, and record the pictures on their way.

        Returns
        -------
        (snapshots, k, n, h, w[, c]); the last snapshot has the completions
        """
        is_known = self.known
        assert is_known is not None  # the caller has checked this
        given = with_hidden_as_zero(X, is_known)
        incomplete_points = self._pixel_points(given).to(self.device)
        k = incomplete_points.shape[1]
        snapshots = self.evolution(k * n, None, seed, n_snapshots, incomplete_points)
        completed = np.stack([np.asarray(pictures) for pictures in snapshots])
        # Encoding rounds the values; copy the exact ones.
        exact = given.astype(self.layout.dtype)[:, is_known]
        completed[:, :, is_known] = exact.repeat(n, 0)
        completed = completed.reshape(len(snapshots), k, n, *completed.shape[2:])
        if self.layout.is_tensor:
            return torch.from_numpy(completed)
        return completed
