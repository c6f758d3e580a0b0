"""The fit of vectors: plan it, move the particles, make the columns exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray

from sliceflow.base.checkpoints import Checkpoints, RunningFlow
from sliceflow.base.distributed import across_ranks
from sliceflow.base.flow_estimator import (
    checkpointed_until_done,
    resolve_n_particles,
    run_flow,
)
from sliceflow.base.particle_allocation import (
    ParticleAllocation,
    allocate_particles,
)
from sliceflow.base.protocols import FitResult, ParticleResult
from sliceflow.base.ranks import ONE_PROCESS, Communicator
from sliceflow.base.rows import Conditions
from sliceflow.base.vector_rows import VectorRows, read_vector_rows
from sliceflow.engine.batches import (
    Batches,
    DataTarget,
    make_batches,
    make_weighted_batches,
)
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import FlowY, SeparateClassIndices
from sliceflow.engine.events import FlowListener, History
from sliceflow.engine.flow import FlowSpec, replay, simulate
from sliceflow.engine.labels import as_array
from sliceflow.engine.model_steps import ModelStep
from sliceflow.engine.random import Seed
from sliceflow.engine.shrinkage import compute_noise_factors, shrunk_flow
from sliceflow.errors import CopyWarning
from sliceflow.estimators.vectors.fitted import FittedVectors
from sliceflow.estimators.vectors.fresh_particles import FreshParticles
from sliceflow.estimators.vectors.local import PlannedLocalVectorFit
from sliceflow.estimators.vectors.parameters import VectorParameters
from sliceflow.estimators.vectors.plan import (
    VectorPlan,
    plan_vectors,
    resolve_use_of_y,
)
from sliceflow.estimators.vectors.scaling import ColumnScaler
from sliceflow.estimators.vectors.training_data import ScaledRows, TrainingData
from sliceflow.metrics.copying import describe_copying
from sliceflow.neighbors.smoothing import choose_smoothing_bandwidth


@dataclass(frozen=True)
class VectorFitPlanner:
    """Reads rows of vectors and plans their fit, for one estimator."""

    parameters: VectorParameters
    device: torch.device
    # scikit-learn's check of the number and the names of columns
    validate: Callable[[Any], NDArray[Any]]
    ranks: Communicator = ONE_PROCESS

    def read(self, X: Any, y: Any) -> VectorRows:
        """The user's rows, checked."""
        rows = read_vector_rows(X, self.validate)
        if y is not None:
            y = as_array(y)
            rows = replace(rows, conditions=Conditions.infer(y, len(rows)))
        if self.ranks.size == 1:
            return rows
        return self._with_all_conditions(rows, y)

    def _with_all_conditions(
        self, rows: VectorRows, y: NDArray[Any] | None
    ) -> VectorRows:
        """This rank's rows, with their place among all rows and with all conditions."""
        n, d = rows.X.shape
        what = f"X of {rows.X.dtype} with {d} columns and {describe_y(y)}"
        shard = self.ranks.shard_by_counts(n, what)
        conditions = None
        if y is not None:
            conditions = Conditions.infer(self.ranks.all_gather_rows(y), shard.total)
        return replace(rows, conditions=conditions, partial_shard=shard)

    def plan_fit(
        self, rows: VectorRows, seed: Seed
    ) -> PlannedVectorFit | PlannedLocalVectorFit:
        """Plan a fit of these rows; an error if that is impossible."""
        parameters = self.parameters
        n_ranks = self.ranks.size
        use_of_y = resolve_use_of_y(rows.conditions, parameters, n_ranks)
        if use_of_y == "local":
            return PlannedLocalVectorFit.for_rows(rows, parameters, seed, self.device)
        n_classes = 0
        if rows.conditions is not None:
            n_classes = rows.n_classes
        n_particles = resolve_n_particles(
            parameters.n_particles, rows.n_all_rows, n_classes, n_ranks
        )
        allocation = allocate_particles(
            rows.conditions, n_particles, use_of_y, seed.child("conditions")
        )
        if n_ranks > 1:
            allocation = allocation.on_rank(self.ranks)
        plan = plan_vectors(
            rows, parameters, allocation, use_of_y, self.device, n_ranks
        )
        plan.require_memory()
        return PlannedVectorFit(
            plan=plan,
            rows=rows,
            seed=seed,
            ranks=self.ranks,
            device=self.device,
            allocation=allocation,
            scaled_rows=ScaledRows(
                rows,
                allocation.row_y,
                self.ranks,
                standardize=plan.standardize,
                n_neighbors=plan.options.n_neighbors,
            ),
        )


def describe_y(y: NDArray[Any] | None) -> str:
    """The kind and the shape of a user's y, which all ranks must share."""
    if y is None:
        return "no y"
    if y.ndim == 1:
        return f"y of {y.dtype.kind} and shape (n,)"
    widths = ", ".join(str(width) for width in y.shape[1:])
    return f"y of {y.dtype.kind} and shape (n, {widths})"


@dataclass(frozen=True, eq=False)
class PlannedVectorFit:
    """A planned fit of a flow. No particle has moved yet, and no data are loaded.

    Attributes
    ----------
    plan : what the fit will do
    rows : the user's rows, checked
    seed : the seed of the fit
    ranks : the ranks that run the fit
    device : where the flow runs
    allocation : the particles: how many move, with which y, and which the user gets
    scaled_rows : the rows in the flow's units, and their neighbors
    checkpoints : writes and resumes checkpoints; None without them
    """

    plan: VectorPlan
    rows: VectorRows
    seed: Seed
    ranks: Communicator
    device: torch.device
    allocation: ParticleAllocation
    scaled_rows: ScaledRows
    checkpoints: Checkpoints | None = None

    def with_checkpoints(self, checkpoints: Checkpoints) -> PlannedVectorFit:
        """The same fit, which writes checkpoints and resumes from the last one."""
        return replace(self, checkpoints=checkpoints)

    def run(self, listeners: Sequence[FlowListener]) -> FitResult[FittedVectors]:
        """Choose the bandwidth, move the particles, and make their columns exact.

        The flow goes on where a checkpoint ended, if there is one. Its steps move
        particles along all directions, and axis steps then along each column.
        """
        tuned = self.tune(listeners)
        data = tuned.training_data()
        with checkpointed_until_done(self.checkpoints):
            run = tuned._run_flow(data, listeners)
            kept, model_steps = tuned._run_axis_steps(data, run)
            return tuned._result(kept, model_steps, run.history)

    def tune(self, listeners: Sequence[FlowListener] = ()) -> PlannedVectorFit:
        """This fit with the bandwidth chosen, if it is "auto".

        The plan has all other settings already. Listeners get no events.
        """
        if self.plan.bandwidth is not None:
            return self
        bandwidth = choose_smoothing_bandwidth(self.scaled_rows.neighbors)
        bandwidth = self.ranks.broadcast(bandwidth)
        return replace(self, plan=replace(self.plan, bandwidth=bandwidth))

    def training_data(self) -> TrainingData:
        """The data of a tuned fit."""
        plan = self.plan
        assert plan.bandwidth is not None, "a tuned fit has a bandwidth"
        return TrainingData(
            scaled_rows=self.scaled_rows,
            bandwidth=plan.bandwidth,
            draws_per_row=plan.draws_per_row,
            own_slice=self.rows.shard.repeated(plan.draws_per_row).slice,
            seed=self.seed.child("smoothing"),
            device=self.device,
        )

    def _run_flow(
        self, data: TrainingData, listeners: Sequence[FlowListener]
    ) -> RunningFlow:
        """Move particles from random places along all directions."""
        plan = self.plan
        allocation = self.allocation
        shape = (plan.n_columns, allocation.n_own)
        x = torch.empty(shape, dtype=plan.torch_dtype, device=self.device)
        particle_rng = allocation.particle_rng(self.seed)
        particle_rng.fill(x, "start")
        particles = Cloud(x, allocation.own_y(self.device))
        make_batches_of_flow = partial(
            self._make_batches,
            data,
            allocation.n_moved,
            allocation.moved_y,
            plan.batch_size,
        )
        target = DataTarget(data.load_for_flow, make_batches_of_flow)
        return run_flow(
            self.training_spec(data),
            particles,
            target,
            particle_rng,
            stage_indices=plan.flow_stage_indices,
            listeners=listeners,
            ranks=self.ranks,
            checkpoints=self.checkpoints,
        )

    def training_spec(self, data: TrainingData) -> FlowSpec:
        """The flow as it is fitted: maps are shrunk, and solved for on all ranks.

        The maps of axis steps are not shrunk.
        """
        plan = self.plan
        spec = plan.flow_spec(self.seed, self.device)
        if plan.options.shrinkage:
            # One factor for each class, to which the noise of its maps is proportional.
            factors = compute_noise_factors(
                plan.n_moved_particles,
                data.n,
                y_p=self.allocation.moved_y,
                y_q=data.y,
                batch_size=plan.batch_size,
                distinct_share=1 / plan.draws_per_row,
            )
            spec = shrunk_flow(spec, plan.options.shrinkage, factors)
        if self.ranks.size > 1:
            spec = across_ranks(spec, self.ranks)
        return spec

    def _run_axis_steps(
        self, data: TrainingData, run: RunningFlow
    ) -> tuple[Cloud, list[ModelStep]]:
        """This rank's kept particles, and the steps of the model, with axis steps.

        Axis steps are fitted twice, each time from where the flow ended, because the
        flow places the particles that it was fitted to better than fresh ones. The kept
        particles get maps of their own, which no model stores. The maps of the model
        are fitted to fresh particles, because samples are fresh particles, too.

        Checkpoints do not see axis steps, which are few: a fit that is resumed after
        its flow does them again.
        """
        kept = self.allocation.kept_cloud(run.particles, self.ranks)
        flow_steps = run.state.model_steps
        if not self.plan.axis_stage_indices:
            return kept, flow_steps
        spec = self.training_spec(data)
        n_axis_steps = self._move_along_axes(spec, kept, data, run)
        spec = spec.with_n_steps(self.plan.axis_stage_indices, n_axis_steps)
        axis_steps = self._fit_axis_steps(spec, flow_steps, data)
        return kept, [*flow_steps, *axis_steps]

    def _move_along_axes(
        self, spec: FlowSpec, kept: Cloud, data: TrainingData, run: RunningFlow
    ) -> int:
        """Make the columns of the kept particles exact, in place.

        Events continue the count of steps and seconds of the flow. Returns the number
        of axis steps: a listener may end them early.
        """
        stages = [replace(stage, stores_maps=False) for stage in spec.stages]
        state = replace(run.state, model_steps=[])
        batches = self._make_batches(
            data, self.plan.n_particles, self.allocation.kept_y
        )
        with kept.moving_in_class_order() as (ordered, _):
            simulate(
                replace(spec, stages=stages),
                ordered,
                DataTarget.from_cloud(data.axis_cloud, batches),
                stage_indices=self.plan.axis_stage_indices,
                listeners=run.listeners,
                state=state,
            )
        return state.steps_done - run.state.steps_done

    def _fit_axis_steps(
        self, spec: FlowSpec, flow_steps: Sequence[ModelStep], data: TrainingData
    ) -> list[ModelStep]:
        """The axis steps of the model: fitted to fresh particles after its flow."""
        fresh = FreshParticles.draw(
            self.plan, self.allocation.row_y, self.seed, self.ranks, self.device
        )
        replay(spec, flow_steps, fresh.cloud, fresh.particle_rng)
        batches = self._make_batches(data, fresh.n, fresh.y)
        return simulate(
            spec,
            fresh.cloud.sorted_by_class(),
            DataTarget.from_cloud(data.axis_cloud, batches),
            stage_indices=self.plan.axis_stage_indices,
        )

    def _make_batches(
        self,
        data: TrainingData,
        n_particles: int,
        y_p: FlowY | None,
        batch_size: int | None = None,
    ) -> Batches:
        """Divide particles and data into batches for the steps of a stage.

        A step takes at most `batch_size` particles and `batch_size` data; None takes
        all. `n_particles` counts the particles of all ranks, and `y_p` has their
        conditions.
        """
        if self.ranks.size > 1:
            if y_p is None or data.y is None:
                return Batches()
            return make_weighted_batches(
                data.own_slice, self.device, y_p=y_p, y_q=data.y
            )
        return make_batches(
            n_particles,
            data.n,
            batch_size,
            self.seed.child("flow", "batches"),
            self.device,
            y_p=y_p,
            y_q=data.y,
        )

    def _result(
        self, kept: Cloud, model_steps: Sequence[ModelStep], history: History
    ) -> FitResult[FittedVectors]:
        """Assemble the model, and this rank's part of the kept particles."""
        model = self._fitted_vectors(model_steps)
        X = model.in_user_form(model.rows_in_user_units(kept.x, kept.y))
        y = self.allocation.kept_user_y
        if y is not None:
            y = self.ranks.own_rows(y)
        warning = self._copy_warning(kept)
        return FitResult(model, history.as_columns(), warning, ParticleResult(X, y))

    def _fitted_vectors(self, model_steps: Sequence[ModelStep]) -> FittedVectors:
        """The fitted model with these steps."""
        scalers_by_class = self.scaled_rows.scalers_by_class
        scaler = scalers_by_class[0]
        class_scalers: tuple[ColumnScaler, ...] = ()
        if self.plan.n_separate_classes:
            scaler = ColumnScaler.from_data(self.rows.X, self.plan.standardize)
            class_scalers = scalers_by_class
        return FittedVectors(
            plan=self.plan,
            seed=self.seed,
            scaler=scaler,
            class_scalers=class_scalers,
            steps=tuple(model_steps),
            conditions=self.rows.conditions,
            names=self.rows.names,
            tensor_device=self.rows.tensor_device,
            device=self.device,
        )

    def _copy_warning(self, kept: Cloud) -> CopyWarning | None:
        """A warning if the kept particles copy rows, else None.

        With several ranks the result is None: no rank has all rows to compare.
        """
        if self.ranks.size > 1:
            return None
        scaled = self.scaled_rows.own_rows
        pairs = [(scaled, kept.x.T)]
        row_y = self.allocation.row_y
        if isinstance(row_y, SeparateClassIndices) and kept.y is not None:
            pairs = []
            for c in range(row_y.n_classes):
                rows_of_class = scaled[row_y.values == c]
                kept_of_class = kept.x[:, kept.y.values == c]
                pairs.append((rows_of_class, kept_of_class.T))
        evidence = describe_copying(pairs)
        if not evidence:
            return None
        more = f"more smoothing than {self.plan.bandwidth:.2g} (VectorOptions)"
        hint = f"{more}, or fewer n_steps, help"
        return CopyWarning(f"the particles copy rows of X ({evidence}); {hint}")
