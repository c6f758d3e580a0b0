"""The fit of vectors: plan it, move the particles, then make the columns exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.devices import require_memory
from sliceflow.engine.batches import Batches, Target
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.conditions import LabelEncoder
from sliceflow.engine.encoded_y import EncodedY, SeparateClasses
from sliceflow.engine.events import FlowListener
from sliceflow.engine.flow import (
    FlowState,
    ParticleStreams,
    Step,
    condition_use,
)
from sliceflow.engine.labels import as_array
from sliceflow.engine.model_steps import ModelStep
from sliceflow.engine.random import Seed
from sliceflow.engine.shrinkage import inverse_sample_sizes, shrunk_flow
from sliceflow.errors import CopyWarning, ParameterError
from sliceflow.metrics.copying import evidence_of_copying
from sliceflow.models.checkpoints import Checkpoints
from sliceflow.models.distributed import across_ranks
from sliceflow.models.flow_estimator import default_particles, run_flow
from sliceflow.models.particles import ParticleConditions
from sliceflow.models.protocols import FitResult, ParticleResult
from sliceflow.models.ranks import SINGLE, Communicator
from sliceflow.models.rows import RowConditions
from sliceflow.models.vector_rows import VectorRows, read_rows
from sliceflow.spaces.vectors.axis_steps import (
    AxisStepContext,
    fit_axis_steps_to_fresh,
    fit_axis_steps_to_kept,
)
from sliceflow.spaces.vectors.data import TrainingData
from sliceflow.spaces.vectors.fitted import FittedVectors
from sliceflow.spaces.vectors.local import LOCAL_PARTICLES, LocalVectorTask
from sliceflow.spaces.vectors.parameters import VectorParameters
from sliceflow.spaces.vectors.plan import (
    VectorPlan,
    count_particles,
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
        kind_of_y = "no y"
        if y is not None:
            kind_of_y = f"y of {y.dtype.kind} and shape (n, {y.shape[1:]})"
        n, d = rows.X.shape
        what = f"X of {rows.X.dtype} with {d} columns and {kind_of_y}"
        shard = self.ranks.gather_shard(n, what)
        row_conditions = None
        if y is not None:
            row_conditions = RowConditions.infer(self.ranks.gather(y), shard.total)
        return replace(rows, conditions=row_conditions, rank_shard=shard)

    def make_task(self, rows: VectorRows, seed: Seed) -> VectorTask | LocalVectorTask:
        """Plan a fit of these rows; an error if that is impossible."""
        parameters = self.parameters
        n_ranks = self.ranks.size
        n_rows = len(rows.X)
        if n_ranks > 1:
            n_rows = rows.shard.total
        encoder = None
        if rows.conditions is not None:
            encoder = rows.conditions.encoder

        default = default_particles(n_rows)
        is_local = uses_local_conditions(encoder, parameters, n_ranks)
        if is_local:
            default = LOCAL_PARTICLES
        n_particles = count_particles(parameters.n_particles, default, encoder, n_ranks)
        if is_local:
            return LocalVectorTask.fit_samplers(
                rows, n_particles, parameters.standardize, seed, self.device
            )
        particle_conditions = ParticleConditions()
        if rows.conditions is not None:
            particle_conditions = self._particle_conditions(
                rows.conditions, n_particles, seed.child("conditions")
            )
        plan = plan_vectors(
            rows,
            parameters,
            n_rows,
            n_particles,
            particle_conditions,
            self.device,
            n_ranks,
        )
        self._require_memory(plan, len(rows.X))
        data = TrainingData(plan, rows, seed, self.device, self.ranks)
        return VectorTask(data, particle_conditions)

    def _particle_conditions(
        self, row_conditions: RowConditions, n_particles: int, seed: Seed
    ) -> ParticleConditions:
        """The conditions of the particles of a flow, in the proportions of the rows.

        Raises a `ParameterError` if every class must have its own maps but cannot.
        """
        xi = self.parameters.amplifier
        use = condition_use(xi, row_conditions.encoder.condition_dim)
        if use == "separate" and not isinstance(row_conditions.encoder, LabelEncoder):
            fact = "fits each class separately, but y is continuous"
            hint = "use a finite amplifier, or labels (n,)"
            raise ParameterError("amplifier", xi, fact, hint)
        if use == "separate" and self.ranks.size > 1:
            fact = "fits each class separately, which several ranks cannot do"
            hint = "use a finite amplifier, or one process"
            raise ParameterError("amplifier", xi, fact, hint)
        return ParticleConditions.in_proportion(
            row_conditions, n_particles, use, seed, seed
        )

    def _require_memory(self, plan: VectorPlan, n_local: int) -> None:
        """Raise a `NotEnoughMemoryError` if the device cannot hold the fit.

        This rank has `n_local` rows.
        """
        m_local = self.ranks.shard(plan.n_flow_particles).count
        n_directions = max_directions(plan.frame_kind, plan.n_columns)
        what = (
            f"n_particles={plan.n_particles}, for which {m_local} move here, with "
            f"{n_local} rows of {plan.n_columns} columns and up to {n_directions} "
            "directions need"
        )
        hint = (
            "lower n_particles, the number of columns, directions or bins, or n_knots"
        )
        require_memory(plan.fit_bytes(n_local, m_local), self.device, what, hint)


@dataclass(frozen=True)
class VectorTask:
    """A planned fit of a flow. No particle has moved yet, and no data are loaded."""

    data: TrainingData
    particle_conditions: ParticleConditions
    checkpoints: Checkpoints | None = None

    @property
    def plan(self) -> VectorPlan:
        """The plan of the fit."""
        return self.data.plan

    def with_checkpoints(self, checkpoints: Checkpoints) -> VectorTask:
        """The same fit, which writes checkpoints and resumes from the last one."""
        return replace(self, checkpoints=checkpoints)

    def run(self, listeners: Sequence[FlowListener]) -> FitResult[FittedVectors]:
        """Move the particles, or go on where a checkpoint ended, and finish the fit."""
        running = RunningVectors(self)
        return run_flow(running, listeners, self.data.ranks, self.checkpoints)


class RunningVectors:
    """The fit of vectors while it runs: the particles, and all that moves them.

    The methods stand in the order in which they run.
    """

    def __init__(self, task: VectorTask) -> None:
        data = task.data
        plan = data.plan
        self.data = data
        self.particle_conditions = task.particle_conditions

        # This rank's particles among those of all ranks, at random places.
        self.shard = data.ranks.shard(plan.n_flow_particles)
        self.particle_noise = ParticleStreams(
            data.seed.child("particles"), self.shard.first
        )
        x = torch.empty(
            plan.n_columns,
            self.shard.count,
            dtype=plan.torch_dtype,
            device=data.device,
        )
        self.particle_noise.fill(x, "start")
        self.particles = Cloud(x)
        if task.particle_conditions.used_y is not None:
            self.particles = task.particle_conditions.cloud(x, self.shard)

        # Maps are shrunk, and fitted to the clouds of all ranks.
        self.spec = plan.flow_spec(data.seed, data.device, only="flow")
        if plan.options.shrinkage:
            inverse_sizes = self._inverse_sample_sizes()
            self.spec = shrunk_flow(self.spec, plan.options.shrinkage, inverse_sizes)
        if data.ranks.size > 1:
            self.spec = across_ranks(self.spec, data.ranks)

    def _inverse_sample_sizes(self) -> tuple[float, ...]:
        """Numbers, one for each class, to which the noise of maps is proportional."""
        plan = self.data.plan
        return inverse_sample_sizes(
            plan.n_flow_particles,
            plan.n_rows * plan.draws_per_row,
            y_p=self.particle_conditions.used_y,
            y_q=self.data.draws_y,
            max_samples=plan.transport.max_samples,
            distinct_share=1 / plan.draws_per_row,
        )

    def target(self) -> Target:
        """The data of the flow, which are loaded when the first step needs them."""
        return Target(self._load_data, self._load_batches)

    def _load_data(self, step: Step) -> Cloud:
        """What the particles move onto before the axis steps: the same in each step."""
        return self.data.flow_cloud()

    def _load_batches(self) -> Batches:
        """Which particles and data each step is fitted to."""
        max_samples = self.data.plan.transport.max_samples
        y_p = self.particle_conditions.used_y
        return self.data.batches(self.shard.count, y_p, max_samples)

    def finish(
        self, state: FlowState, listeners: Sequence[FlowListener]
    ) -> FitResult[FittedVectors]:
        """Make the columns exact by axis steps, and give the result of the fit.

        Parameters
        ----------
        state : where the flow ended
        listeners : called after each axis step
        """
        data = self.data
        m = data.plan.n_particles
        kept_shard = data.ranks.shard(m)
        conditions = self.particle_conditions
        kept = conditions.kept_cloud(self.particles.x, self.shard, m, data.ranks)
        kept_y = conditions.kept_used_y(m)
        model = state.model_steps
        if data.plan.n_axis_particles:
            context = AxisStepContext.for_data(data)
            fit_axis_steps_to_kept(context, kept, kept_y, state, listeners)
            model = fit_axis_steps_to_fresh(context, state.model_steps)
        x = kept.in_user_order()
        fitted = self._fitted(model)
        shard_y = None
        if kept_y is not None:
            shard_y = kept_y.take(kept_shard.slice)
        X = fitted.in_form(fitted.decode(x, shard_y))
        y = None
        if conditions.kept_conditions is not None:
            y = conditions.kept_conditions[kept_shard.slice]
        warning = self._copy_warning(fitted.plan, x, kept_y)
        return FitResult(fitted, warning=warning, particles=ParticleResult(X, y))

    def _fitted(self, model: Sequence[ModelStep]) -> FittedVectors:
        """The fitted state, given the steps of the model."""
        data = self.data
        rows = data.rows
        units = data.units_by_class[0]
        class_units: tuple[ColumnScaler, ...] = ()
        if data.plan.n_separate_classes:
            units = ColumnScaler.from_data(rows.X, data.plan.standardize)
            class_units = data.units_by_class
        return FittedVectors(
            plan=data.final_plan(),
            seed=data.seed,
            units=units,
            class_units=class_units,
            steps=tuple(model),
            conditions=rows.conditions,
            names=rows.names,
            tensor_device=rows.tensor_device,
            device=data.device,
        )

    def _copy_warning(
        self, plan: VectorPlan, x: Tensor, y: EncodedY | None
    ) -> CopyWarning | None:
        """A warning if the particles x (d, n) copy rows; None if they do not."""
        data = self.data
        if data.ranks.size > 1:
            return None
        pairs = [(data.encoded_rows, x.T)]
        row_y = data.used_y
        if isinstance(row_y, SeparateClasses) and y is not None:
            pairs = []
            for c in range(row_y.n_classes):
                class_rows = data.encoded_rows[row_y.values == c]
                is_of_class = (y.values == c).to(x.device)
                pairs.append((class_rows, x[:, is_of_class].T))
        evidence = evidence_of_copying(pairs)
        if not evidence:
            return None
        more = f"more smoothing than {plan.bandwidth:.2g} (VectorOptions)"
        hint = f"{more}, or fewer n_steps, help"
        return CopyWarning(f"the particles copy rows of X ({evidence}); {hint}")
