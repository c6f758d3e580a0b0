"""A fitted flow of vectors, and how to draw samples from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine.clouds import ClassOrder
from sliceflow.engine.compression import ModelStep
from sliceflow.engine.conditions import MixedEncoder
from sliceflow.engine.flow import FlowSpec, ParticleStreams, replay
from sliceflow.engine.frames import (
    MaxSliced,
    count_directions,
    frame_bytes,
    freeing_rotation_pools,
)
from sliceflow.engine.random import Seed
from sliceflow.errors import DataWarning, warn_user
from sliceflow.models.limits import checked_reach
from sliceflow.models.rows import HasConditions, RowConditions
from sliceflow.models.vector_rows import VectorRows, in_users_form
from sliceflow.neighbours.local import LocalSampler, LocalSettings
from sliceflow.saved_types import Label
from sliceflow.spaces.vectors.plan import VectorPlan
from sliceflow.spaces.vectors.rows import Units, as_cloud, decode_classes
from sliceflow.validation import check_finite

# Offline samples of one pass over the steps of a model: bounds the memory.
SAMPLES_PER_PASS = 1 << 16
# With so many samples at one continuous condition, users look at their distribution.
MANY_SAMPLES_OF_ONE_CONDITION = 50


@dataclass(frozen=True)
class FittedVectors(HasConditions):
    """The state of a fitted estimator of vectors."""

    plan: VectorPlan
    seed: Seed  # of the fit: the frames of its flow are drawn again
    units: Units  # of the columns of all rows
    class_units: tuple[Units, ...] = ()  # of each class, if classes have their own maps
    steps: tuple[ModelStep, ...] = ()  # the maps; none if conditions are local
    conditions: RowConditions | None = None  # of the rows; None without y
    names: tuple[Label, ...] | None = None  # of the columns, if X is a DataFrame
    tensor_device: str | None = None  # of the user's tensor; None for other types
    local_settings: tuple[LocalSettings, ...] = ()  # of `local`
    device: torch.device = field(default=torch.device("cpu"), metadata={"saved": False})
    # If conditions are local: a sampler of all rows; with labels in y, one of the rows
    # of each combination of them. A file has the rows only once, and `with_rows` puts
    # them here.
    local: tuple[LocalSampler, ...] = field(default=(), metadata={"saved": False})

    @property
    def needs_rows(self) -> bool:
        """Whether samples need the rows: conditions are local."""
        return len(self.local_settings) > 0

    def with_rows(self, rows: VectorRows | None) -> FittedVectors:
        """The same with samplers of the rows, if conditions are local.

        This completes a state that was read from a file; any other is complete.
        """
        if not self.needs_rows or self.local:
            return self
        if rows is None or rows.codes is None or rows.codes.dim() != 2:
            raise ValueError("local conditions need rows with a continuous condition")
        n_columns = rows.X.shape[1]
        if n_columns != self.plan.n_columns:
            raise ValueError(
                f"the rows have {n_columns} columns, not {self.plan.n_columns}"
            )
        parts = self.local_parts(rows)
        if len(parts) != len(self.local_settings):
            n_settings = len(self.local_settings)
            raise ValueError(
                f"local has settings for {n_settings} parts of {len(parts)}"
            )
        samplers = []
        for (x, y), settings in zip(parts, self.local_settings, strict=True):
            on_cpu = replace(settings, projection=settings.projection.cpu())
            sampler = LocalSampler(x, y, on_cpu)
            sampler.check_saved()
            samplers.append(sampler)
        return replace(self, local=tuple(samplers))

    def local_parts(self, rows: VectorRows) -> list[tuple[Tensor, Tensor]]:
        """x and the continuous y of all rows; with labels in y, of each combination."""
        assert rows.codes is not None
        encoded = self.units.encode(rows.X).double()
        parts = self._by_label(rows.codes)
        return [(encoded[indices], y) for _, indices, y in parts]

    def _by_label(self, codes: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Each combination of labels, the rows that have it, and their continuous y."""
        if isinstance(self.encoder, MixedEncoder):
            labels = codes[:, 0].long()
            columns = codes[:, 1:]
        else:
            labels = torch.zeros(len(codes), dtype=torch.int64)
            columns = codes
        for c in torch.unique(labels).tolist():
            indices = torch.nonzero(labels == c)[:, 0]
            yield c, indices, columns[indices]

    # Checks of a file

    def check_saved(self) -> None:
        """Raise a ValueError if the parts of a saved model do not fit together."""
        plan = self.plan
        d = plan.n_columns
        is_local = plan.method == "local"
        if self.needs_rows != is_local or (is_local and self.steps):
            raise ValueError(f"settings or steps do not fit the method {plan.method}")
        width = self.condition_dim
        if width != plan.condition_dim:
            raise ValueError(
                f"the condition has width {width}, the plan {plan.condition_dim}"
            )
        if self.names is not None and len(set(self.names)) != d:
            raise ValueError(f"there are {len(set(self.names))} names for {d} columns")
        if len(self.class_units) != plan.n_separate_classes:
            n_units = len(self.class_units)
            raise ValueError(
                f"{n_units} classes have units, not {plan.n_separate_classes}"
            )
        for units in (self.units, *self.class_units):
            if len(units.shift) != d:
                raise ValueError(f"there are not units for {d} columns")
        if not is_local:
            self._check_steps()

    def _check_steps(self) -> None:
        """Raise a ValueError if maps do not fit the plan, or samples may overflow."""
        plan = self.plan
        d = plan.n_columns
        flow = plan.flow(self.seed, self.device)
        n_classes = max(1, plan.n_separate_classes)
        n_maps = [n_classes * count_directions(s.frame_kind, d) for s in flow.stages]
        reach = checked_reach(
            flow, self.steps, lambda i, k: n_maps[i], d, plan.torch_dtype, self.codes
        )
        for step in self.steps:
            is_fitted = isinstance(flow.stages[step.stage_index].frame_kind, MaxSliced)
            wanted_width = d if is_fitted else 0
            width = 0 if step.theta is None else step.theta.shape[1]
            if width != wanted_width:
                raise ValueError(
                    f"step {step.step_index} does not have directions in {d} columns"
                )
        for units in self._units_by_class:
            linear = ~units.heavy_tailed  # `decode` clamps heavy-tailed columns
            farthest = reach * float(units.scale[linear].max(initial=0.0))
            farthest += float(np.abs(units.shift[linear]).max(initial=0.0))
            if not farthest < torch.finfo(plan.torch_dtype).max:
                end = f"scale and shift can take them to {farthest:.1e}"
                fact = f"samples may not stay finite: {end}"
                raise ValueError(f"{fact}; fit with rescaled columns, or in float64")

    # Samples

    @property
    def _units_by_class(self) -> tuple[Units, ...]:
        """The units in which particles move: of each class, or one for all."""
        return self.class_units or (self.units,)

    def sample_bytes(self, n: int = 1) -> int:
        """Memory to draw n samples.

        Twice the samples, because passes are joined, their conditions, and the work of
        one pass.
        """
        plan = self.plan
        d = plan.n_columns
        itemsize = plan.torch_dtype.itemsize
        width = plan.condition_dim
        bytes_of_frame = 0
        for stage in plan.stages():
            of_stage = frame_bytes(stage.frame_kind, d, width, itemsize)
            bytes_of_frame = max(bytes_of_frame, of_stage)
        bytes_of_condition = 0
        if width:
            bytes_of_condition = 64 + 8 * width
        bytes_of_pass = 4 * min(SAMPLES_PER_PASS, n) * d * itemsize
        return (
            n * (2 * d * itemsize + bytes_of_condition) + bytes_of_pass + bytes_of_frame
        )

    def features(self, X: Any) -> Tensor:
        """The user's rows as points (d, n), in units that make columns comparable."""
        rows = np.asarray(X.detach().cpu() if isinstance(X, Tensor) else X)
        return self.units.encode(rows.astype(self.plan.dtype)).T

    def draw(self, n: int, codes: Tensor | None, seed: Seed) -> Any:
        """n samples with these encoded conditions, in the form of X."""
        if self.local:
            assert codes is not None
            return self.in_form(self._draw_local(codes, seed))
        if self.plan.condition_kind == "continuous" and codes is not None:
            _warn_if_one_condition(codes)
        flow = self.plan.flow(self.seed, self.device)
        parts = []
        with freeing_rotation_pools():
            for first in range(0, n, SAMPLES_PER_PASS):
                count = min(SAMPLES_PER_PASS, n - first)
                part_codes = None
                if codes is not None:
                    part_codes = codes[first : first + count]
                noise = ParticleStreams(seed.child("particles"), first)
                parts.append(self._draw_pass(flow, count, part_codes, noise))
        return self.in_form(parts[0] if len(parts) == 1 else torch.cat(parts))

    def _draw_pass(
        self, flow: FlowSpec, n: int, codes: Tensor | None, noise: ParticleStreams
    ) -> Tensor:
        """n samples (n, d) of the flow, in the user's units."""
        x = torch.empty((n, self.plan.n_columns), dtype=self.plan.torch_dtype)
        cloud = as_cloud(x, codes, self.device)
        noise.fill(cloud.x, "start")
        if not flow.per_class or cloud.codes is None:
            replay(flow, self.steps, cloud, noise)
            return self.decode(cloud.x)
        class_order = ClassOrder.from_class_indices(
            cloud.codes, self.plan.n_separate_classes
        )
        by_class = class_order.sort(cloud.x)
        replay(flow, self.steps, by_class, noise)
        return self.decode(class_order.unsort(by_class.x), codes)

    def _draw_local(self, codes: Tensor, seed: Seed) -> Tensor:
        """Samples (n, d) near the rows with similar conditions, in the user's units."""
        shape = (len(codes), self.plan.n_columns)
        out = torch.empty(shape, dtype=self.plan.torch_dtype, device=self.device)
        for c, indices, y in self._by_label(codes):
            self.local[c].warn_if_far(y, "y", indices)
            x = self.local[c].sample_each(y, seed.child(c))  # float64: small spreads
            out[indices] = self.decode(x.T).to(out)
        return out

    def decode(self, x: Tensor, codes: Tensor | None = None) -> Tensor:
        """Columns (d, n) in the flow's units -> rows (n, d) in the user's units.

        `codes` are class indices, if classes have units of their own.
        """
        rows = decode_classes(self._units_by_class, x, codes)
        check_finite(rows, "rescale X, drop outliers, or pass float64")
        return rows

    def in_form(self, rows: Tensor) -> Any:
        """Rows in the form of X: an array, a tensor or a DataFrame."""
        return in_users_form(rows, self.names, self.tensor_device, self.device)


def _warn_if_one_condition(codes: Tensor) -> None:
    """Warn if many samples of a joint flow are asked for at one continuous condition.

    A map of x and y together has one value for all particles whose projections are
    equal. Particles with the same y come together at every step: 500 samples of a
    spiral, given its radius, stood on 11 spots.
    """
    if len(codes) < MANY_SAMPLES_OF_ONE_CONDITION:
        return
    if bool((codes == codes[0]).all()):
        fact = f"{len(codes)} samples of condition='joint' share one y"
        effect = "they gather on a few spots"
        warn_user(DataWarning(f"{fact}: {effect}", "fit with condition='local'"))
