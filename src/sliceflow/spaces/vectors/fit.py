"""The fit of vectors: plan it, tune it, move the particles, make the columns exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.devices import require_memory
from sliceflow.engine.allocation import MIN_PARTICLES
from sliceflow.engine.batches import Batches, Target
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.conditions import ClassEncoder
from sliceflow.engine.encoded_y import FlowY, SeparateClassIndices
from sliceflow.engine.events import FlowListener, History
from sliceflow.engine.flow import ParticleStreams, Step, resolve_condition_use
from sliceflow.engine.labels import as_array
from sliceflow.engine.model_steps import ModelStep
from sliceflow.engine.random import Seed
from sliceflow.engine.shrinkage import inverse_sample_sizes, shrunk_flow
from sliceflow.errors import CopyWarning, ParameterError
from sliceflow.metrics.copying import evidence_of_copying
from sliceflow.models.checkpoints import Checkpoints
from sliceflow.models.distributed import across_ranks
from sliceflow.models.flow_estimator import choose_n_particles, run_flow
from sliceflow.models.particles import ParticleAllocation
from sliceflow.models.protocols import FitResult, ParticleResult
from sliceflow.models.ranks import SINGLE, Communicator
from sliceflow.models.rows import RowConditions
from sliceflow.models.vector_rows import VectorRows, read_rows
from sliceflow.spaces.vectors.axis_steps import AxisSteps
from sliceflow.spaces.vectors.data import VectorData
from sliceflow.spaces.vectors.fitted import FittedVectors
from sliceflow.spaces.vectors.local import LocalVectorTask
from sliceflow.spaces.vectors.parameters import VectorParameters
from sliceflow.spaces.vectors.plan import (
    VectorPlan,
    max_directions,
    plan_vectors,
    uses_local_conditions,
)
from sliceflow.spaces.vectors.units import ColumnScaler


@dataclass(frozen=True)
class VectorAdapter:
    """Reads rows of vectors and plans their fit, for one estimator."""

    parameters: VectorParameters
    device: torch.device
    # scikit-learn's check of the number and the names of columns
    validate: Callable[[Any], np.ndarray]
    ranks: Communicator = SINGLE

    def read(self, X: Any, y: Any) -> VectorRows:
        """The user's rows, checked."""
        rows = read_rows(X, self.validate)
        if y is not None:
            y = as_array(y)
            rows = replace(rows, conditions=RowConditions.infer(y, len(rows)))
        if self.ranks.size == 1:
            return rows
        return self._with_all_conditions(rows, y)

    def _with_all_conditions(
        self, rows: VectorRows, y: np.ndarray | None
    ) -> VectorRows:
        """This rank's rows with the conditions of all ranks, and their place there."""
        n, d = rows.X.shape
        what = f"X of {rows.X.dtype} with {d} columns and {describe_y(y)}"
        shard = self.ranks.gather_shard(n, what)
        row_conditions = None
        if y is not None:
            row_conditions = RowConditions.infer(self.ranks.gather(y), shard.total)
        return replace(rows, conditions=row_conditions, rank_shard=shard)

    def make_task(self, rows: VectorRows, seed: Seed) -> VectorTask | LocalVectorTask:
        """Plan a fit of these rows; an error if that is impossible."""
        parameters = self.parameters
        n_ranks = self.ranks.size
        n_classes = 0
        if rows.conditions is not None:
            encoder = rows.conditions.encoder
            if uses_local_conditions(encoder, parameters, n_ranks):
                return LocalVectorTask.for_rows(rows, parameters, seed, self.device)
            n_classes = rows.n_classes
        n_particles = choose_n_particles(
            parameters.n_particles, rows.n_all_rows, n_classes, n_ranks
        )
        # Maps of few particles would be poor for fresh ones.
        n_flow_particles = max(n_particles, MIN_PARTICLES)
        allocation = ParticleAllocation(n_particles, n_flow_particles)
        if rows.conditions is not None:
            allocation = self._allocate_particles(
                rows.conditions, n_particles, seed.child("conditions")
            )
        plan = plan_vectors(rows, parameters, allocation, self.device, n_ranks)
        self._require_memory(plan, len(rows.X))
        data = VectorData(plan, rows, seed, self.device, self.ranks)
        return VectorTask(data, allocation)

    def _allocate_particles(
        self, row_conditions: RowConditions, n_particles: int, seed: Seed
    ) -> ParticleAllocation:
        """The particles of a flow, with y in the proportions of the rows.

        Raises a `ParameterError` if every class must have its own maps but cannot.
        """
        xi = self.parameters.amplifier
        use = resolve_condition_use(xi, row_conditions.encoder.condition_dim)
        if use == "separate" and not isinstance(row_conditions.encoder, ClassEncoder):
            fact = "fits each class separately, but y is continuous"
            hint = "use a finite amplifier, or labels (n,)"
            raise ParameterError("amplifier", xi, fact, hint)
        if use == "separate" and self.ranks.size > 1:
            fact = "fits each class separately, which several ranks cannot do"
            hint = "use a finite amplifier, or one process"
            raise ParameterError("amplifier", xi, fact, hint)
        return ParticleAllocation.in_proportion(
            row_conditions, n_particles, use, seed, seed
        )

    def _require_memory(self, plan: VectorPlan, n_shard: int) -> None:
        """Raise a `NotEnoughMemoryError` if the device cannot hold the fit.

        This rank has `n_shard` rows.
        """
        m_shard = self.ranks.shard(plan.n_flow_particles).count
        n_directions = max_directions(plan.frame_kind, plan.n_columns)
        what = (
            f"n_particles={plan.n_particles}, for which {m_shard} move here, with "
            f"{n_shard} rows of {plan.n_columns} columns and up to {n_directions} "
            "directions need"
        )
        hint = (
            "lower n_particles, the number of columns, directions or bins, or n_knots"
        )
        require_memory(plan.fit_bytes(n_shard, m_shard), self.device, what, hint)


def describe_y(y: np.ndarray | None) -> str:
    """The kind and the shape of a user's y, which all ranks must share."""
    if y is None:
        return "no y"
    if y.ndim == 1:
        return f"y of {y.dtype.kind} and shape (n,)"
    widths = ", ".join(str(width) for width in y.shape[1:])
    return f"y of {y.dtype.kind} and shape (n, {widths})"


@dataclass(frozen=True)
class VectorTask:
    """A planned fit of a flow. No particle has moved yet, and no data are loaded."""

    data: VectorData
    allocation: ParticleAllocation
    checkpoints: Checkpoints | None = None

    @property
    def plan(self) -> VectorPlan:
        """What the fit will do."""
        return self.data.plan

    @property
    def rows(self) -> VectorRows:
        """The user's rows, checked."""
        return self.data.rows

    @property
    def seed(self) -> Seed:
        """The seed of the fit."""
        return self.data.seed

    @property
    def ranks(self) -> Communicator:
        """Those that take part."""
        return self.data.ranks

    def with_checkpoints(self, checkpoints: Checkpoints) -> VectorTask:
        """The same fit, which writes checkpoints and resumes from the last one."""
        return replace(self, checkpoints=checkpoints)

    def run(self, listeners: Sequence[FlowListener]) -> FitResult[FittedVectors]:
        """Choose the bandwidth, move the particles, and make their columns exact.

        The flow goes on where a checkpoint ended, if there is one.
        """
        task = self.tune()
        data = task.data
        flow = RunningVectors(task)
        with run_flow(flow, listeners, data.ranks, self.checkpoints) as flow_end:
            kept = self.allocation.kept_cloud(flow.particles.x, data.ranks)
            model_steps = flow_end.state.model_steps
            if data.plan.n_axis_particles:
                axis_steps = AxisSteps.for_data(data)
                axis_steps.move(kept, self.allocation.kept_flow_y, flow_end)
                model_steps = axis_steps.append_to(model_steps)
            fitted = _fitted_vectors(data, model_steps)
            result = self._result(fitted, data, kept.x, flow_end.history)
        return result

    def tune(self) -> VectorTask:
        """This fit, with the bandwidth that "auto" stands for, which takes a trial."""
        return replace(self, data=self.data.tune())

    def _result(
        self, fitted: FittedVectors, data: VectorData, x: Tensor, history: History
    ) -> FitResult[FittedVectors]:
        """The result of the fit, with this rank's kept particles x (d, n)."""
        shard = data.ranks.shard(self.allocation.n_kept).slice
        flow_y = self.allocation.kept_flow_y
        shard_y = None if flow_y is None else flow_y.take(shard)
        X = fitted.in_users_form(fitted.decode_points(x, shard_y))
        y = self.allocation.kept_conditions
        if y is not None:
            y = y[shard]
        return FitResult(
            fitted,
            history.as_columns(),
            _copy_warning(data, x, flow_y),
            ParticleResult(X, y),
        )


class RunningVectors:
    """The flow of vectors while it runs: the particles, and all that moves them."""

    def __init__(self, task: VectorTask) -> None:
        data = task.data
        plan = data.plan
        self.task = task

        # This rank's particles among those of all ranks, at random places.
        shard = data.ranks.shard(plan.n_flow_particles)
        self.particle_streams = ParticleStreams(
            data.seed.child("particles"), shard.first
        )
        x = torch.empty(
            plan.n_columns, shard.count, dtype=plan.torch_dtype, device=data.device
        )
        self.particle_streams.fill(x, "start")
        self.particles = Cloud(x)
        if task.allocation.flow_y is not None:
            self.particles = task.allocation.cloud(x, data.ranks)

        # Maps are shrunk, and fitted to the clouds of all ranks.
        self.spec = plan.flow_spec(data.seed, data.device, only="flow")
        if plan.options.shrinkage:
            inverse_sizes = self._inverse_sample_sizes()
            self.spec = shrunk_flow(self.spec, plan.options.shrinkage, inverse_sizes)
        if data.ranks.size > 1:
            self.spec = across_ranks(self.spec, data.ranks)

    def _inverse_sample_sizes(self) -> tuple[float, ...]:
        """Numbers, one for each class, to which the noise of maps is proportional."""
        data = self.task.data
        plan = data.plan
        return inverse_sample_sizes(
            plan.n_flow_particles,
            plan.n_rows * plan.draws_per_row,
            y_p=self.task.allocation.flow_y,
            y_q=data.y_q,
            max_samples=plan.batch_size,
            distinct_share=1 / plan.draws_per_row,
        )

    def target(self) -> Target:
        """The data of the flow, which are loaded when the first step needs them."""
        return Target(self._load_data, self._load_batches)

    def _load_data(self, step: Step) -> Cloud:
        """What the particles move onto before the axis steps: the same in each step."""
        return self.task.data.flow_cloud()

    def _load_batches(self) -> Batches:
        """Which particles and data each step is fitted to."""
        data = self.task.data
        n_particles = self.particles.x.shape[1]
        y_p = self.task.allocation.flow_y
        return data.batches(n_particles, y_p, data.plan.batch_size)


def _fitted_vectors(
    data: VectorData, model_steps: Sequence[ModelStep]
) -> FittedVectors:
    """The fitted state, given the steps of the model."""
    rows = data.rows
    scaler = data.scalers_by_class[0]
    class_scalers: tuple[ColumnScaler, ...] = ()
    if data.plan.n_separate_classes:
        scaler = ColumnScaler.from_data(rows.X, data.plan.standardize)
        class_scalers = data.scalers_by_class
    return FittedVectors(
        plan=data.plan,
        seed=data.seed,
        scaler=scaler,
        class_scalers=class_scalers,
        steps=tuple(model_steps),
        conditions=rows.conditions,
        names=rows.names,
        tensor_device=rows.tensor_device,
        device=data.device,
    )


def _copy_warning(data: VectorData, x: Tensor, y: FlowY | None) -> CopyWarning | None:
    """A warning if the particles x (d, n) copy rows; None if they do not."""
    if data.ranks.size > 1:
        return None
    pairs = [(data.encoded_rows, x.T)]
    row_y = data.flow_y
    if isinstance(row_y, SeparateClassIndices) and y is not None:
        pairs = []
        for c in range(row_y.n_classes):
            class_rows = data.encoded_rows[row_y.values == c]
            is_of_class = (y.values == c).to(x.device)
            pairs.append((class_rows, x[:, is_of_class].T))
    evidence = evidence_of_copying(pairs)
    if not evidence:
        return None
    more = f"more smoothing than {data.plan.bandwidth:.2g} (VectorOptions)"
    hint = f"{more}, or fewer n_steps, help"
    return CopyWarning(f"the particles copy rows of X ({evidence}); {hint}")
