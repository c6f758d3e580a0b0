"""A fitted flow of vectors, and how to draw samples from it.

`BaseFittedVectors` has what `FittedVectors` and `local.FittedLocalVectors` share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.base.rows import Conditions, HasConditions
from sliceflow.base.saved_steps import (
    check_finite_samples,
    check_steps,
    largest_coordinate,
)
from sliceflow.base.vector_rows import VectorArray, in_user_form
from sliceflow.engine import frames
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import EncodedY, FlowY, separate_classes_or_none
from sliceflow.engine.flow import FlowSpec, ParticleRng, as_flow_y, replay
from sliceflow.engine.frames import frame_bytes
from sliceflow.engine.model_steps import ModelStep
from sliceflow.engine.random import Seed
from sliceflow.engine.rotations import freeing_rotation_pools
from sliceflow.engine.y_encoders import MixedEncoder
from sliceflow.errors import DataWarning, warn_user
from sliceflow.estimators.vectors.plan import BaseVectorPlan, VectorPlan
from sliceflow.estimators.vectors.scaling import (
    ColumnScaler,
    inverse_transform_by_class,
)
from sliceflow.saved_types import Label
from sliceflow.validation import check_finite

# A pass over the steps of a model draws at most this many samples, to bound the memory.
SAMPLES_PER_PASS = 1 << 16
# From this many samples at one continuous condition on, there is a warning: their
# distribution would look wrong.
MANY_SAMPLES_OF_ONE_CONDITION = 50


@dataclass(frozen=True, kw_only=True, eq=False)
class BaseFittedVectors(HasConditions):
    """Base class of all fitted models of vectors, of a flow or of local conditions.

    Attributes
    ----------
    plan : what the fit did
    scaler : the units of the columns, from all rows
    conditions : the conditions of the rows; None without y
    names : the names of the columns if the user's X is a DataFrame; None otherwise
    tensor_device : the kind of device if the user's X is a tensor; None otherwise
    device : the device that draws samples
    """

    plan: BaseVectorPlan
    scaler: ColumnScaler
    conditions: Conditions | None = None
    names: tuple[Label, ...] | None = None
    tensor_device: str | None = None
    device: torch.device = field(default=torch.device("cpu"), metadata={"saved": False})

    def check_saved(self) -> None:
        """Raise a ValueError if the parts of a saved model do not fit together."""
        d = self.plan.n_columns
        width = self.condition_dim
        if width != self.plan.condition_dim:
            raise ValueError(
                f"the condition has width {width}, the plan {self.plan.condition_dim}"
            )
        if self.names is not None and len(set(self.names)) != d:
            raise ValueError(f"there are {len(set(self.names))} names for {d} columns")
        self.scaler.check_width(d)

    def sample_bytes(self, n: int = 1) -> int:
        """Memory to draw n samples.

        It holds the samples twice, because passes are joined; the conditions of the
        samples; and the work of one pass.
        """
        d = self.plan.n_columns
        itemsize = self.plan.torch_dtype.itemsize
        width = self.plan.condition_dim
        bytes_of_condition = 0
        if width:
            bytes_of_condition = 64 + 8 * width
        bytes_of_pass = 4 * min(SAMPLES_PER_PASS, n) * d * itemsize
        return n * (2 * d * itemsize + bytes_of_condition) + bytes_of_pass

    def standardized_points(self, X: Any) -> Tensor:
        """The user's rows as points (d, n), in units that make columns comparable."""
        rows = np.asarray(X.detach().cpu() if isinstance(X, Tensor) else X)
        return self.scaler.transform(rows.astype(self.plan.dtype)).T

    @property
    def scalers_by_class(self) -> tuple[ColumnScaler, ...]:
        """The units of samples: one `ColumnScaler` for each class, or one for all."""
        return (self.scaler,)

    def rows_in_user_units(self, x: Tensor, y: FlowY | None = None) -> Tensor:
        """Points (d, n) in the model's units -> rows (n, d) in the user's units.

        `y` has the conditions of the points, as the flow saw them. Classes with maps of
        their own have units of their own, too.
        """
        rows = inverse_transform_by_class(
            self.scalers_by_class, x.T, separate_classes_or_none(y)
        )
        check_finite(rows, "rescale X, drop outliers, or pass float64")
        return rows

    def in_user_form(self, rows: Tensor) -> VectorArray:
        """Rows in the form of the user's X: an array, a tensor or a DataFrame."""
        return in_user_form(rows, self.names, self.tensor_device, self.device)


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedVectors(BaseFittedVectors):
    """The fitted model of vectors whose particles flowed.

    Attributes
    ----------
    seed : the seed of the fit, from which samples draw the frames of the flow again
    class_scalers : the units of each class, if each class has its own maps; else ()
    steps : the steps of the flow and the axis steps, with their maps
    """

    plan: VectorPlan
    seed: Seed
    class_scalers: tuple[ColumnScaler, ...] = ()
    steps: tuple[ModelStep, ...] = ()

    @property
    def needs_rows(self) -> bool:
        """False: samples need only the maps."""
        return False

    # Checks of a file

    def check_saved(self) -> None:
        """Raise a ValueError if the parts of a saved model do not fit together."""
        super().check_saved()
        if isinstance(self.y_encoder, MixedEncoder):
            raise ValueError("a flow has a condition of labels and continuous columns")
        if len(self.class_scalers) != self.plan.n_separate_classes:
            n_units = len(self.class_scalers)
            raise ValueError(
                f"{n_units} classes have units, not {self.plan.n_separate_classes}"
            )
        for scaler in self.class_scalers:
            scaler.check_width(self.plan.n_columns)
        self._check_steps()

    def _check_steps(self) -> None:
        """Raise a ValueError if maps do not fit the plan, or samples may overflow."""
        plan = self.plan
        d = plan.n_columns
        spec = plan.flow_spec(self.seed, self.device)
        n_classes = max(1, plan.n_separate_classes)
        n_maps = [n_classes * s.frame_kind.max_directions(d) for s in spec.stages]
        check_steps(spec, self.steps, lambda step: n_maps[step.stage_index])
        largest = largest_coordinate(spec, self.steps, d)
        check_finite_samples(spec, largest, d, plan.torch_dtype, self.encoded_y)
        for step in self.steps:
            frame_kind = spec.stages[step.stage_index].frame_kind
            is_fitted = isinstance(frame_kind, frames.MaxSliced)
            wanted_width = d if is_fitted else 0
            width = 0 if step.theta is None else step.theta.shape[1]
            if width != wanted_width:
                raise ValueError(
                    f"step {step.step_index} does not have directions in {d} columns"
                )
        for scaler in self.scalers_by_class:
            # The others are clamped by `inverse_transform`.
            is_linear = ~scaler.is_heavy_tailed
            farthest = largest * float(scaler.scale[is_linear].max(initial=0.0))
            farthest += float(np.abs(scaler.shift[is_linear]).max(initial=0.0))
            if not farthest < torch.finfo(plan.torch_dtype).max:
                end = f"scale and shift can take them to {farthest:.1e}"
                fact = f"samples may not stay finite: {end}"
                raise ValueError(f"{fact}; fit with rescaled columns, or in float64")

    # Samples

    @property
    def scalers_by_class(self) -> tuple[ColumnScaler, ...]:
        """The units in which particles move: of each class, or one for all."""
        return self.class_scalers or (self.scaler,)

    def sample_bytes(self, n: int = 1) -> int:
        """Memory to draw n samples, including the memory of a frame."""
        plan = self.plan
        bytes_of_frame = 0
        for stage in plan.stages():
            of_stage = frame_bytes(
                stage.frame_kind,
                plan.n_columns,
                plan.condition_dim,
                plan.torch_dtype.itemsize,
            )
            bytes_of_frame = max(bytes_of_frame, of_stage)
        return super().sample_bytes(n) + bytes_of_frame

    def sample(self, n: int, y: EncodedY | None, seed: Seed) -> VectorArray:
        """n samples with these encoded conditions, in the form of X."""
        if self.plan.condition_kind == "continuous" and y is not None:
            _warn_if_one_condition(y)
        plan = self.plan
        sample_y = as_flow_y(y, plan.map_sharing, plan.condition_dim)
        spec = plan.flow_spec(self.seed, self.device)
        parts = []
        with freeing_rotation_pools():
            for first in range(0, n, SAMPLES_PER_PASS):
                count = min(SAMPLES_PER_PASS, n - first)
                part_y = None
                if sample_y is not None:
                    part_y = sample_y.take(slice(first, first + count))
                particle_rng = ParticleRng(seed.child("samples"), first)
                parts.append(self._draw_pass(spec, count, part_y, particle_rng))
        if not parts:  # an empty y asks for no samples
            parts.append(torch.empty((0, plan.n_columns), dtype=plan.torch_dtype))
        return self.in_user_form(parts[0] if len(parts) == 1 else torch.cat(parts))

    def _draw_pass(
        self,
        spec: FlowSpec,
        n: int,
        y: FlowY | None,
        particle_rng: ParticleRng,
    ) -> Tensor:
        """n samples (n, d) of the flow, in the user's units."""
        x = torch.empty((n, self.plan.n_columns), dtype=self.plan.torch_dtype)
        cloud = Cloud.from_rows(x, y, self.device)
        particle_rng.fill(cloud.x, "start")
        replay(spec, self.steps, cloud, particle_rng)
        return self.rows_in_user_units(cloud.x, y)


def _warn_if_one_condition(y: EncodedY) -> None:
    """Warn if many samples of a joint flow are asked for at one continuous condition.

    A map of x and y together has one value for all particles whose projections are
    equal. Particles with the same y come together at every step: 500 samples of a
    spiral, given its radius, stood on 11 spots.
    """
    if len(y) < MANY_SAMPLES_OF_ONE_CONDITION:
        return
    if bool((y.values == y.values[0]).all()):
        fact = f"{len(y)} samples of condition_mode='joint' share one y"
        effect = "they gather on a few spots"
        warn_user(DataWarning(f"{fact}: {effect}", "fit with condition_mode='local'"))
