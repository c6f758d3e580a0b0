"""The fit of vectors: plan it, move the particles, make the columns exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from numpy.typing import NDArray

from sliceflow.base.checkpoints import Checkpoints, FlowRun
from sliceflow.base.distributed import across_ranks
from sliceflow.base.flow_estimator import (
    choose_n_particles,
    resumable_by,
    run_flow,
)
from sliceflow.base.particle_allocation import (
    OwnParticles,
    ParticleAllocation,
    ParticleGroup,
)
from sliceflow.base.protocols import FitResult, ParticleResult
from sliceflow.base.ranks import ONE_PROCESS, Communicator, Shard
from sliceflow.base.rows import Conditions
from sliceflow.base.vector_rows import VectorRows, read_vector_rows
from sliceflow.devices import require_memory
from sliceflow.engine.batches import (
    Batches,
    DataTarget,
    make_batches,
    make_weighted_batches,
)
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import FlowY, SeparateClassIndices
from sliceflow.engine.events import FlowListener, History
from sliceflow.engine.flow import FlowSpec, ParticleRng, resolve_map_sharing
from sliceflow.engine.labels import as_array
from sliceflow.engine.model_steps import ModelStep
from sliceflow.engine.random import Seed
from sliceflow.engine.shrinkage import compute_noise_factors, shrunk_flow
from sliceflow.engine.y_encoders import ClassEncoder
from sliceflow.errors import CopyWarning, ParameterError
from sliceflow.estimators.vectors.axis_steps import AxisSteps, FreshParticles
from sliceflow.estimators.vectors.fitted import FittedVectors
from sliceflow.estimators.vectors.local import PlannedLocalVectorFit
from sliceflow.estimators.vectors.parameters import VectorParameters
from sliceflow.estimators.vectors.plan import (
    AXIS_TRANSPORT,
    VectorPlan,
    fit_bytes,
    max_directions_of_fit,
    plan_vectors,
    uses_local_conditions,
)
from sliceflow.estimators.vectors.scaling import ColumnScaler
from sliceflow.estimators.vectors.smoother import Smoother
from sliceflow.estimators.vectors.training_vectors import (
    ScaledVectors,
    TrainingVectors,
)
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
        """This rank's rows with the conditions of all ranks, and their place there."""
        n, d = rows.X.shape
        what = f"X of {rows.X.dtype} with {d} columns and {describe_y(y)}"
        shard = self.ranks.shard_by_counts(n, what)
        conditions = None
        if y is not None:
            conditions = Conditions.infer(self.ranks.all_gather_rows(y), shard.total)
        return replace(rows, conditions=conditions, rank_shard=shard)

    def plan_fit(
        self, rows: VectorRows, seed: Seed
    ) -> PlannedVectorFit | PlannedLocalVectorFit:
        """Plan a fit of these rows; an error if that is impossible."""
        parameters = self.parameters
        n_ranks = self.ranks.size
        n_classes = 0
        if rows.conditions is not None:
            encoder = rows.conditions.encoder
            if uses_local_conditions(encoder, parameters, n_ranks):
                return PlannedLocalVectorFit.for_rows(
                    rows, parameters, seed, self.device
                )
            n_classes = rows.n_classes
        n_particles = choose_n_particles(
            parameters.n_particles, rows.n_all_rows, n_classes, n_ranks
        )
        allocation = self._allocate_particles(
            rows.conditions, n_particles, seed.child("conditions")
        )
        plan = plan_vectors(rows, parameters, allocation, self.device, n_ranks)
        self._require_memory(plan, len(rows.X))
        scaled_vectors = ScaledVectors(
            rows,
            allocation.row_y,
            self.ranks,
            standardize=plan.standardize,
            n_neighbors=plan.options.n_neighbors,
        )
        return PlannedVectorFit(
            plan, rows, seed, self.ranks, self.device, allocation, scaled_vectors
        )

    def _allocate_particles(
        self, conditions: Conditions | None, n_particles: int, seed: Seed
    ) -> ParticleAllocation:
        """The particles of a flow, with y in the proportions of the rows.

        Raises a `ParameterError` if every class must have its own maps but cannot.
        """
        if conditions is None:
            return ParticleAllocation.without_y(n_particles, stores_maps=True)
        xi = self.parameters.amplifier
        sharing = resolve_map_sharing(xi, conditions.encoder.condition_dim)
        if sharing == "separate" and not isinstance(conditions.encoder, ClassEncoder):
            fact = "fits each class separately, but y is continuous"
            hint = "use a finite amplifier, or labels (n,)"
            raise ParameterError("amplifier", xi, fact, hint)
        if sharing == "separate" and self.ranks.size > 1:
            fact = "fits each class separately, which several ranks cannot do"
            hint = "use a finite amplifier, or one process"
            raise ParameterError("amplifier", xi, fact, hint)
        return ParticleAllocation.in_proportion(
            conditions, n_particles, sharing, seed, stores_maps=True
        )

    def _require_memory(self, plan: VectorPlan, n_shard: int) -> None:
        """Raise a `NotEnoughMemoryError` if the device cannot hold the fit.

        This rank has `n_shard` rows.
        """
        m_shard = self.ranks.own_shard(plan.n_moved_particles).count
        n_directions = max_directions_of_fit(plan.frame_kind, plan.n_columns)
        what = (
            f"{m_shard} moving particles, for n_particles={plan.n_particles}, "
            f"{n_shard} rows of {plan.n_columns} columns and up to {n_directions} "
            "directions need"
        )
        hint = (
            "lower n_particles, the number of columns, directions or bins, or n_knots"
        )
        require_memory(fit_bytes(plan, n_shard, m_shard), self.device, what, hint)


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
    """A planned fit of a flow. No particle has moved yet, and no data are loaded."""

    plan: VectorPlan
    rows: VectorRows  # the user's, checked
    seed: Seed
    ranks: Communicator
    device: torch.device
    allocation: ParticleAllocation
    scaled_vectors: ScaledVectors  # the rows in the flow's units
    checkpoints: Checkpoints | None = None

    def with_checkpoints(self, checkpoints: Checkpoints) -> PlannedVectorFit:
        """The same fit, which writes checkpoints and resumes from the last one."""
        return replace(self, checkpoints=checkpoints)

    def run(self, listeners: Sequence[FlowListener]) -> FitResult[FittedVectors]:
        """Choose the bandwidth, move the particles, and make their columns exact.

        The flow goes on where a checkpoint ended, if there is one. Its steps move
        particles along all directions, and axis steps then along each column.
        """
        return self.tune(listeners)._run_tuned(listeners)

    def tune(self, listeners: Sequence[FlowListener] = ()) -> PlannedVectorFit:
        """This fit with the bandwidth chosen, if it is "auto".

        All other settings are those of the plan. Listeners get no events.
        """
        if self.plan.bandwidth is not None:
            return self
        bandwidth = choose_smoothing_bandwidth(self.scaled_vectors.neighbors)
        bandwidth = self.ranks.broadcast(bandwidth)
        return replace(self, plan=replace(self.plan, bandwidth=bandwidth))

    def _run_tuned(self, listeners: Sequence[FlowListener]) -> FitResult[FittedVectors]:
        """Move the particles onto the data, and make their columns exact."""
        training = self.training_vectors()
        with resumable_by(self.checkpoints):
            run = self._run_flow(training, listeners)
            kept_cloud, model_steps = self._run_axis_steps(training, run)
            return self._result(kept_cloud, model_steps, run.history)

    def _run_flow(
        self, training: TrainingVectors, listeners: Sequence[FlowListener]
    ) -> FlowRun:
        """Move particles from random places along all directions."""
        own_particles = self.allocation.moved.own_part(self.ranks, self.device)
        particle_rng = ParticleRng(
            self.seed.child("particles"), own_particles.shard.first
        )
        return run_flow(
            self.fit_flow_spec(),
            self.initial_particles(own_particles, particle_rng),
            self.target(training),
            particle_rng,
            stage_indices=self.plan.flow_stage_indices,
            listeners=listeners,
            ranks=self.ranks,
            checkpoints=self.checkpoints,
        )

    def _run_axis_steps(
        self, training: TrainingVectors, run: FlowRun
    ) -> tuple[Cloud, list[ModelStep]]:
        """The kept particles of this rank and the model's steps, after axis steps.

        These are fitted twice: to the kept particles, which end exact, and for the
        model to fresh ones, which the flow has not been fitted to. Without axis steps,
        both are those of the flow.
        """
        allocation = self.allocation
        kept_cloud = allocation.kept_cloud(run.particles.x, self.ranks)
        if not self.plan.axis_stage_indices:
            return kept_cloud, run.state.model_steps
        axis_steps = self.make_axis_steps(training)
        n_axis_steps = axis_steps.move_kept_particles(kept_cloud, allocation.kept, run)
        fresh = FreshParticles.draw(
            self.plan, allocation.row_y, self.seed, self.ranks, self.device
        )
        model_steps = axis_steps.fit_to_fresh_particles(
            fresh, run.state.model_steps, n_axis_steps
        )
        return kept_cloud, model_steps

    def training_vectors(self) -> TrainingVectors:
        """The data of a tuned fit: the rows in the flow's units, or draws of them."""
        plan = self.plan
        assert plan.bandwidth is not None, "a tuned fit has a bandwidth"
        scaled_vectors = self.scaled_vectors
        smoother = None
        if plan.bandwidth > 0 or plan.draws_per_row > 1:
            smoother = Smoother(
                plan.bandwidth, scaled_vectors.all_rows, scaled_vectors.neighbors
            )
        return TrainingVectors(
            scaled_vectors=scaled_vectors,
            smoother=smoother,
            draws_per_row=plan.draws_per_row,
            y=self.data_y,
            shard=self.data_shard,
            seed=self.seed.child("smoothing"),
            device=self.device,
        )

    @cached_property
    def data_y(self) -> FlowY | None:
        """The y of the data of all ranks: that of each row, once for each draw."""
        row_y = self.allocation.row_y
        if row_y is None:
            return None
        row_indices = torch.arange(len(row_y))
        return row_y.take(row_indices.repeat_interleave(self.plan.draws_per_row))

    @property
    def data_shard(self) -> Shard:
        """Which of the data of all ranks this rank has."""
        return self.rows.shard.repeated(self.plan.draws_per_row)

    def initial_particles(
        self, own_particles: OwnParticles, particle_rng: ParticleRng
    ) -> Cloud:
        """This rank's particles at random places, where the flow begins."""
        plan = self.plan
        shape = (plan.n_columns, own_particles.shard.count)
        x = torch.empty(shape, dtype=plan.torch_dtype, device=self.device)
        particle_rng.fill(x, "start")
        return Cloud(x, own_particles.y)

    def fit_flow_spec(self) -> FlowSpec:
        """The flow as it is fitted: maps are shrunk, and solved for on all ranks."""
        plan = self.plan
        spec = plan.flow_spec(self.seed, self.device)
        if plan.options.shrinkage:
            # One for each class: the noise of its maps is proportional to it.
            factors = compute_noise_factors(
                plan.n_moved_particles,
                plan.n_rows * plan.draws_per_row,
                y_p=self.allocation.moved.y,
                y_q=self.data_y,
                batch_size=plan.batch_size,
                distinct_share=1 / plan.draws_per_row,
            )
            spec = shrunk_flow(spec, plan.options.shrinkage, factors)
        if self.ranks.size > 1:
            spec = across_ranks(spec, self.ranks)
        return spec

    def target(self, training: TrainingVectors) -> DataTarget:
        """What the particles move onto: rows are drawn when the first step begins."""
        return DataTarget(
            load_data=lambda step: training.flow_cloud(),
            make_batches=lambda: self._make_batches(
                self.allocation.moved, self.plan.batch_size
            ),
        )

    def make_axis_steps(self, training: TrainingVectors) -> AxisSteps:
        """The axis steps of the flow, on all ranks. Their data are drawn here."""
        spec = self.plan.flow_spec(self.seed, self.device)
        return AxisSteps(
            across_ranks(spec, self.ranks),
            self.plan.axis_stage_indices,
            training.axis_cloud(),
            make_batches=partial(
                self._make_batches, batch_size=AXIS_TRANSPORT.batch_size
            ),
        )

    def _make_batches(
        self, particles: ParticleGroup, batch_size: int | None
    ) -> Batches:
        """Divide particles and the data into batches for the steps of a stage.

        A step takes at most `batch_size` of both.
        """
        y_q = self.data_y
        if self.ranks.size > 1:
            if particles.y is None or y_q is None:
                return Batches()
            own_data = self.data_shard.slice
            return make_weighted_batches(
                own_data, self.device, y_p=particles.y, y_q=y_q
            )
        return make_batches(
            particles.n,
            self.plan.n_rows * self.plan.draws_per_row,
            batch_size,
            self.seed.child("flow", "batches"),
            self.device,
            y_p=particles.y,
            y_q=y_q,
        )

    def _result(
        self, kept: Cloud, model_steps: Sequence[ModelStep], history: History
    ) -> FitResult[FittedVectors]:
        """Assemble the model, and this rank's part of the kept particles."""
        model = self._fitted_vectors(model_steps)
        X = model.in_users_form(model.rows_in_users_units(kept.x, kept.y))
        y = self.allocation.kept_user_y
        if y is not None:
            y = self.ranks.own_rows(y)
        warning = self._copy_warning(kept)
        return FitResult(model, history.as_columns(), warning, ParticleResult(X, y))

    def _fitted_vectors(self, model_steps: Sequence[ModelStep]) -> FittedVectors:
        """Make the fitted model of its steps."""
        scalers_by_class = self.scaled_vectors.scalers_by_class
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

        On several ranks, none has all rows: they are not compared.
        """
        if self.ranks.size > 1:
            return None
        scaled_rows = self.scaled_vectors.own_rows
        pairs = [(scaled_rows, kept.x.T)]
        row_y = self.allocation.row_y
        if isinstance(row_y, SeparateClassIndices) and kept.y is not None:
            pairs = []
            for c in range(row_y.n_classes):
                rows_of_class = scaled_rows[row_y.values == c]
                kept_of_class = kept.x[:, kept.y.values == c]
                pairs.append((rows_of_class, kept_of_class.T))
        evidence = describe_copying(pairs)
        if not evidence:
            return None
        more = f"more smoothing than {self.plan.bandwidth:.2g} (VectorOptions)"
        hint = f"{more}, or fewer n_steps, help"
        return CopyWarning(f"the particles copy rows of X ({evidence}); {hint}")
