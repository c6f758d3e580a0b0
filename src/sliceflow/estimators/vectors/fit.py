"""The fit of vectors: plan it, tune it, move the particles, make the columns exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from sliceflow.base.checkpoints import Checkpoints
from sliceflow.base.distributed import across_ranks
from sliceflow.base.flow_conditions import FlowConditions
from sliceflow.base.flow_estimator import (
    choose_n_particles,
    run_flow,
    until_finished,
)
from sliceflow.base.protocols import FitResult, ParticleResult
from sliceflow.base.ranks import ONE_PROCESS, Communicator
from sliceflow.base.rows import Conditions
from sliceflow.base.vector_rows import VectorRows, read_rows
from sliceflow.devices import require_memory
from sliceflow.engine.allocation import MIN_PARTICLES
from sliceflow.engine.batches import Batches, DataTarget
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import SeparateClassIndices, separate_classes_or_none
from sliceflow.engine.events import FlowListener, History
from sliceflow.engine.flow import FlowSpec, ParticleNoise, Step, resolve_map_sharing
from sliceflow.engine.labels import as_array
from sliceflow.engine.model_steps import ModelStep
from sliceflow.engine.random import Seed
from sliceflow.engine.shrinkage import noise_factors, shrunk_flow
from sliceflow.engine.y_encoders import ClassEncoder
from sliceflow.errors import CopyWarning, ParameterError
from sliceflow.estimators.vectors.axis_steps import AxisSteps
from sliceflow.estimators.vectors.fitted import FittedVectors
from sliceflow.estimators.vectors.local import PlannedLocalVectorFit
from sliceflow.estimators.vectors.parameters import VectorParameters
from sliceflow.estimators.vectors.plan import (
    VectorPlan,
    fit_bytes,
    max_directions,
    plan_vectors,
    uses_local_conditions,
)
from sliceflow.estimators.vectors.smoother import Smoother
from sliceflow.estimators.vectors.tuned import TunedVectorFit, scalers_of_classes
from sliceflow.estimators.vectors.units import ColumnScaler, transform_by_class
from sliceflow.metrics.copying import evidence_of_copying


@dataclass(frozen=True)
class VectorAdapter:
    """Reads rows of vectors and plans their fit, for one estimator."""

    parameters: VectorParameters
    device: torch.device
    # scikit-learn's check of the number and the names of columns
    validate: Callable[[Any], NDArray[Any]]
    ranks: Communicator = ONE_PROCESS

    def read(self, X: Any, y: Any) -> VectorRows:
        """The user's rows, checked."""
        rows = read_rows(X, self.validate)
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
        # Maps of few particles would be poor for fresh ones.
        n_moved_particles = max(n_particles, MIN_PARTICLES)
        flow_conditions = FlowConditions(n_particles, n_moved_particles)
        if rows.conditions is not None:
            flow_conditions = self._flow_conditions(
                rows.conditions, n_particles, seed.child("conditions")
            )
        plan = plan_vectors(rows, parameters, flow_conditions, self.device, n_ranks)
        self._require_memory(plan, len(rows.X))
        return PlannedVectorFit(
            plan, rows, seed, self.ranks, self.device, flow_conditions
        )

    def _flow_conditions(
        self, conditions: Conditions, n_particles: int, seed: Seed
    ) -> FlowConditions:
        """The particles of a flow, with y in the proportions of the rows.

        Raises a `ParameterError` if every class must have its own maps but cannot.
        """
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
        # The seed of the conditions also draws the order in which particles move, as
        # `in_proportion` explains.
        return FlowConditions.in_proportion(
            conditions, n_particles, sharing, seed, mixing_seed=seed
        )

    def _require_memory(self, plan: VectorPlan, n_shard: int) -> None:
        """Raise a `NotEnoughMemoryError` if the device cannot hold the fit.

        This rank has `n_shard` rows.
        """
        m_shard = self.ranks.own_shard(plan.n_moved_particles).count
        n_directions = max_directions(plan.frame_kind, plan.n_columns)
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


@dataclass(frozen=True)
class PlannedVectorFit:
    """A planned fit of a flow. No particle has moved yet, and no data are loaded."""

    plan: VectorPlan
    rows: VectorRows  # the user's, checked
    seed: Seed
    ranks: Communicator
    device: torch.device
    flow_conditions: FlowConditions
    checkpoints: Checkpoints | None = None

    def with_checkpoints(self, checkpoints: Checkpoints) -> PlannedVectorFit:
        """The same fit, which writes checkpoints and resumes from the last one."""
        return replace(self, checkpoints=checkpoints)

    def run(self, listeners: Sequence[FlowListener]) -> FitResult[FittedVectors]:
        """Choose the bandwidth, move the particles, and make their columns exact.

        The flow goes on where a checkpoint ended, if there is one. Its steps move
        particles along all directions, and axis steps then along each column.
        """
        tuned = self.tune()
        running = RunningVectorFit.start(tuned)
        with until_finished(self.checkpoints):
            finished = run_flow(running, listeners, self.ranks, self.checkpoints)
            kept = self.flow_conditions.kept_cloud(running.particles.x, self.ranks)
            model_steps = finished.state.model_steps
            if self.plan.options.n_axis_steps:
                axis_steps = AxisSteps.for_fit(tuned)
                axis_steps.move_kept_particles(kept, finished)
                model_steps = axis_steps.extend_model(model_steps)
            return _fit_result(tuned, kept, model_steps, finished.history)

    def tune(self) -> TunedVectorFit:
        """Choose the bandwidth if it is "auto", and the units of the rows.

        Only the bandwidth takes a trial: `plan_vectors` has resolved all other
        settings. This is the first thing that a fit does.
        """
        plan = self.plan
        row_y = self.flow_conditions.row_y
        scalers_by_class = scalers_of_classes(
            self.rows, row_y, plan.standardize, self.ranks
        )
        scaled_rows = transform_by_class(
            scalers_by_class, self.rows.X, separate_classes_or_none(row_y)
        )
        smoother = None
        if plan.smoothing != 0:
            smoother = Smoother.from_data(
                plan.smoothing,
                self.ranks.all_gather_rows(scaled_rows),
                row_y,
                plan.options.n_neighbors,
                self.ranks,
            )
            plan = replace(plan, smoothing=smoother.bandwidth)
        return TunedVectorFit(
            plan=plan,
            rows=self.rows,
            seed=self.seed,
            ranks=self.ranks,
            device=self.device,
            flow_conditions=self.flow_conditions,
            scalers_by_class=scalers_by_class,
            scaled_rows=scaled_rows,
            smoother=smoother,
        )


@dataclass(frozen=True)
class RunningVectorFit:
    """The flow of vectors while it runs: the particles, and all that moves them."""

    tuned: TunedVectorFit
    spec: FlowSpec  # the flow without its axis steps
    particles: Cloud  # of this rank
    particle_noise: ParticleNoise

    @classmethod
    def start(cls, tuned: TunedVectorFit) -> RunningVectorFit:
        """Put this rank's particles at random places, where the flow begins."""
        plan = tuned.plan
        shard = tuned.ranks.own_shard(plan.n_moved_particles)
        particle_noise = ParticleNoise(tuned.seed.child("particles"), shard.first)
        x = torch.empty(
            plan.n_columns, shard.count, dtype=plan.torch_dtype, device=tuned.device
        )
        particle_noise.fill(x, "start")
        y = None
        if tuned.flow_conditions.moved_y is not None:
            y = tuned.flow_conditions.own_y(tuned.ranks, tuned.device)
        return cls(tuned, _spec_of_fit(tuned), Cloud(x, y), particle_noise)

    def target(self) -> DataTarget:
        """The data of the flow, which are loaded when the first step needs them."""
        return DataTarget(self._load_data, self._load_batches)

    def _load_data(self, step: Step) -> Cloud:
        """What the particles move onto before the axis steps: the same in each step."""
        return self.tuned.flow_cloud()

    def _load_batches(self) -> Batches:
        """Which particles and data each step is fitted to."""
        moved_y = self.tuned.flow_conditions.moved_y
        n_particles = self.particles.x.shape[1]
        return self.tuned.batches(n_particles, moved_y, self.tuned.plan.batch_size)


def _spec_of_fit(tuned: TunedVectorFit) -> FlowSpec:
    """The flow without its axis steps. Its maps are shrunk, and fitted on all ranks."""
    plan = tuned.plan
    spec = plan.flow_stage_spec(tuned.seed, tuned.device)
    if plan.options.shrinkage:
        # One for each class: the noise of its maps is proportional to it.
        factors = noise_factors(
            plan.n_moved_particles,
            plan.n_rows * plan.draws_per_row,
            y_p=tuned.flow_conditions.moved_y,
            y_q=tuned.data_y,
            batch_size=plan.batch_size,
            distinct_share=1 / plan.draws_per_row,
        )
        spec = shrunk_flow(spec, plan.options.shrinkage, factors)
    if tuned.ranks.size > 1:
        spec = across_ranks(spec, tuned.ranks)
    return spec


def _fit_result(
    tuned: TunedVectorFit,
    kept: Cloud,
    model_steps: Sequence[ModelStep],
    history: History,
) -> FitResult[FittedVectors]:
    """Assemble the model, and this rank's part of the kept particles."""
    flow_conditions = tuned.flow_conditions
    own_slice = tuned.ranks.own_shard(flow_conditions.n_kept).slice
    own_y = None
    if flow_conditions.kept_y is not None:
        own_y = flow_conditions.kept_y.take(own_slice)
    model = _fitted_vectors(tuned, model_steps)
    X = model.in_users_form(model.rows_in_users_units(kept.x, own_y))
    y = flow_conditions.kept_user_y
    if y is not None:
        y = y[own_slice]
    return FitResult(
        model, history.as_columns(), _copy_warning(tuned, kept.x), ParticleResult(X, y)
    )


def _fitted_vectors(
    tuned: TunedVectorFit, model_steps: Sequence[ModelStep]
) -> FittedVectors:
    """Make the fitted model of its steps."""
    scaler = tuned.scalers_by_class[0]
    class_scalers: tuple[ColumnScaler, ...] = ()
    if tuned.plan.n_separate_classes:
        scaler = ColumnScaler.from_data(tuned.rows.X, tuned.plan.standardize)
        class_scalers = tuned.scalers_by_class
    return FittedVectors(
        plan=tuned.plan,
        seed=tuned.seed,
        scaler=scaler,
        class_scalers=class_scalers,
        steps=tuple(model_steps),
        conditions=tuned.rows.conditions,
        names=tuned.rows.names,
        tensor_device=tuned.rows.tensor_device,
        device=tuned.device,
    )


def _copy_warning(tuned: TunedVectorFit, x: Tensor) -> CopyWarning | None:
    """Make a warning if the kept particles x (d, n) copy rows, else None.

    On several ranks, none has all rows: they are not compared.
    """
    if tuned.ranks.size > 1:
        return None
    pairs = [(tuned.scaled_rows, x.T)]
    row_y = tuned.flow_conditions.row_y
    kept_y = tuned.flow_conditions.kept_y
    if isinstance(row_y, SeparateClassIndices) and kept_y is not None:
        pairs = []
        for c in range(row_y.n_classes):
            rows_of_class = tuned.scaled_rows[row_y.values == c]
            is_of_class = (kept_y.values == c).to(x.device)
            pairs.append((rows_of_class, x[:, is_of_class].T))
    evidence = evidence_of_copying(pairs)
    if not evidence:
        return None
    more = f"more smoothing than {tuned.plan.smoothing:.2g} (VectorOptions)"
    hint = f"{more}, or fewer n_steps, help"
    return CopyWarning(f"the particles copy rows of X ({evidence}); {hint}")
