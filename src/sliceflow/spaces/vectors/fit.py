"""The fit of vectors: plan it, move the particles, make the columns exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.dataframes import column_names
from sliceflow.devices import require_memory
from sliceflow.engine.allocation import MIN_PARTICLES
from sliceflow.engine.batches import Target
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.compression import ModelStep
from sliceflow.engine.conditions import (
    ConditionUse,
    LabelEncoder,
    MixedEncoder,
    condition_use,
)
from sliceflow.engine.events import Listener
from sliceflow.engine.flow import FlowSpec, FlowState, ParticleStreams
from sliceflow.engine.labels import as_array
from sliceflow.engine.random import Seed
from sliceflow.engine.shrinkage import noise_rates, shrunk_flow
from sliceflow.engine.transports import (
    Auto,
    Histogram,
    Transport,
    resolve_transport,
)
from sliceflow.errors import CopyWarning, DataError, ParameterError
from sliceflow.metrics.copying import evidence_of_copying
from sliceflow.models.checkpoints import Checkpoints
from sliceflow.models.distributed import across_ranks
from sliceflow.models.particles import (
    ParticleConditions,
    ParticleOrder,
    select_particles,
)
from sliceflow.models.plan import default_particles
from sliceflow.models.protocols import FitResult, ParticleResult
from sliceflow.models.ranks import SINGLE, Ranks
from sliceflow.models.rows import RowConditions
from sliceflow.models.running import run_flow
from sliceflow.models.vector_rows import VectorRows, as_rows
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
    ConditionKind,
    SmoothingPlan,
    VectorPlan,
    choose_frame,
    count_axis_particles,
    count_knots,
    max_directions,
    plan_smoothing,
)
from sliceflow.spaces.vectors.rows import Units
from sliceflow.validation import require

# What these names of the parameter `transport` stand for.
HISTOGRAM = Histogram()
AUTO = Auto()


@dataclass(frozen=True)
class VectorAdapter:
    """Vectors, for one estimator."""

    parameters: VectorParameters
    device: torch.device
    # scikit-learn's check of the number and the names of columns
    validate: Callable[[Any], np.ndarray]
    ranks: Ranks = SINGLE

    def read(self, X: Any, y: Any) -> VectorRows:
        """The user's rows, checked."""
        array = as_rows(X, self.validate)
        names = None
        if hasattr(X, "columns"):
            names = column_names(X)
        tensor_device = None
        if isinstance(X, Tensor):
            tensor_device = X.device.type
        row_conditions = None
        if y is not None:
            y = as_array(y)
            row_conditions = RowConditions.infer(y, len(array))
        rows = VectorRows(array, row_conditions, names, tensor_device)
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
        """What a fit of these rows will do; an error if that is impossible."""
        n = len(rows.X)
        if self.ranks.size > 1:
            n = rows.shard.total
        is_local = self._is_local(rows)
        n_particles = self._count_particles(rows, n, is_local)
        if is_local:
            return LocalVectorTask.choose(
                rows, n_particles, self.parameters.standardize, seed, self.device
            )
        return self._plan_flow(rows, n, n_particles, seed)

    def _is_local(self, rows: VectorRows) -> bool:
        """Whether conditions are local; an error if they must be but cannot."""
        mode = self.parameters.condition
        encoder = None
        if rows.conditions is not None:
            encoder = rows.conditions.encoder
        if encoder is None or isinstance(encoder, LabelEncoder):
            if mode == "local":
                fact = "needs continuous columns in y"
                raise ParameterError("condition", mode, fact, "pass y of shape (n, l)")
            return False
        use = condition_use(self.parameters.amplifier, encoder.condition_dim)
        is_local = mode == "local" or (mode == "auto" and use == "shared")
        if self.ranks.size > 1:
            if mode == "local":
                fact = "keeps all rows in one process"
                hint = "fit in one process, or set condition='joint'"
                raise ParameterError("condition", mode, fact, hint)
            is_local = False
        if isinstance(encoder, MixedEncoder) and not is_local:
            fact = f"y has labels and columns, which condition={mode!r} cannot fit here"
            hint = "use condition='local', or pass labels (n,) or columns (n, l)"
            raise DataError(fact, hint)
        return is_local

    def _count_particles(self, rows: VectorRows, n: int, is_local: bool) -> int:
        """The number of particles to keep, for which there must be memory.

        n is the number of rows of all ranks.
        """
        m = self.parameters.n_particles
        if m is None and is_local:
            m = LOCAL_PARTICLES
        elif m is None:
            m = default_particles(n)
        m = int(m)
        minimum = self.ranks.size
        if rows.conditions is not None:
            encoder = rows.conditions.encoder
            if isinstance(encoder, LabelEncoder):
                minimum = max(minimum, encoder.condition_dim)
        requirement = f"at least {minimum}, one for each class and rank"
        require(m >= minimum, "n_particles", m, requirement)
        d = rows.X.shape[1]
        nbytes = 3 * rows.X.itemsize * d * self.ranks.shard(m).count
        what = f"n_particles={m} of {d} columns need"
        require_memory(nbytes, self.device, what, "lower n_particles")
        return m

    def _plan_flow(
        self, rows: VectorRows, n: int, n_particles: int, seed: Seed
    ) -> VectorTask:
        """One flow for the n rows of all ranks."""
        amplifier = 0.0
        particle_conditions = None
        if rows.conditions is not None:
            amplifier = self.parameters.amplifier
            use = condition_use(amplifier, rows.condition_dim)
            if use == "separate":
                self._require_labels_in_one_process(rows)
            drawn_from = seed.child("conditions")
            particle_conditions = ParticleConditions.in_proportion(
                rows.conditions, n_particles, use, drawn_from, drawn_from
            )
        plan = self._plan_without_cost(
            rows, n, n_particles, amplifier, particle_conditions
        )
        n_local = len(rows.X)
        m_local = self.ranks.shard(plan.n_flow_particles).count
        n_directions = max_directions(plan.frame, plan.n_columns)
        what = (
            f"n_particles={plan.n_particles}, for which {m_local} move here, with "
            f"{n_local} rows of {plan.n_columns} columns and up to {n_directions} "
            "directions need"
        )
        hint = (
            "lower n_particles, the number of columns, directions or bins, or n_knots"
        )
        nbytes = plan.fit_bytes(n_local, m_local)
        plan = plan.with_cost(nbytes, plan.fit_seconds(), what, hint)
        data = TrainingData(plan, rows, seed, self.device, self.ranks)
        return VectorTask(data, particle_conditions)

    def _require_labels_in_one_process(self, rows: VectorRows) -> None:
        """Raise a `ParameterError` unless every class can have its own maps."""
        xi = self.parameters.amplifier
        if not isinstance(rows.encoder, LabelEncoder):
            fact = "fits each class separately, but y is continuous"
            hint = "use a finite amplifier, or labels (n,)"
            raise ParameterError("amplifier", xi, fact, hint)
        if self.ranks.size > 1:
            fact = "fits each class separately, which several ranks cannot do"
            hint = "use a finite amplifier, or one process"
            raise ParameterError("amplifier", xi, fact, hint)

    def _plan_without_cost(
        self,
        rows: VectorRows,
        n: int,
        n_particles: int,
        amplifier: float,
        particle_conditions: ParticleConditions | None,
    ) -> VectorPlan:
        """The plan with every "auto" resolved, but without its cost.

        There are n rows of all ranks.
        """
        parameters = self.parameters
        options = parameters.options
        d = rows.X.shape[1]
        n_flow_particles = max(n_particles, MIN_PARTICLES)
        if particle_conditions is not None:
            n_flow_particles = len(particle_conditions.codes)
        condition_kind: ConditionKind = "none"
        condition_dim = 0
        use: ConditionUse = "none"
        row_codes = None  # unless the flow uses them
        if rows.conditions is not None:
            condition_kind = rows.conditions.encoder.kind
            condition_dim = rows.conditions.encoder.condition_dim
            use = condition_use(amplifier, condition_dim)
            if use != "none":
                row_codes = rows.conditions.codes

        frame = choose_frame(parameters.frame, d, use, self.ranks.size)
        smoothing = plan_smoothing(
            options.smoothing, rows.X, row_codes, n, n_flow_particles
        )
        transport, n_knots = self._plan_maps(
            use, particle_conditions, row_codes, n_flow_particles, smoothing
        )
        return VectorPlan(
            device=str(self.device),
            n_ranks=self.ranks.size,
            n_rows=n,
            n_columns=d,
            dtype=rows.dtype,
            n_particles=n_particles,
            n_flow_particles=n_flow_particles,
            n_axis_particles=count_axis_particles(
                n_flow_particles, frame, d, options.n_axis_steps
            ),
            condition_kind=condition_kind,
            condition_dim=condition_dim,
            amplifier=amplifier,
            frame=frame,
            transport=transport,
            n_steps=parameters.n_steps,
            entropy=parameters.entropy,
            standardize=parameters.standardize,
            options=options,
            n_knots=n_knots,
            bandwidth=smoothing.bandwidth,
            smoothing_reason=smoothing.reason,
            draws_per_row=smoothing.draws_per_row,
        )

    def _plan_maps(
        self,
        use: ConditionUse,
        particle_conditions: ParticleConditions | None,
        row_codes: Tensor | None,
        n_flow_particles: int,
        smoothing: SmoothingPlan,
    ) -> tuple[Transport, int]:
        """The transport, and the number of knots to keep of each map.

        `row_codes` are None if the flow ignores conditions.
        """
        options = self.parameters.options
        n_per_map = n_flow_particles + smoothing.n_data
        n_knots = int(options.n_knots)
        if particle_conditions is not None and row_codes is not None:
            codes = particle_conditions.codes
            if options.shrinkage and codes.dim() == 2:
                fact = "does not work with a continuous y"
                kappa = options.shrinkage
                raise ParameterError("shrinkage", kappa, fact, "set it to 0")
            if use == "separate":
                n_per_map = _largest_class(
                    codes_p=codes,
                    codes_q=row_codes,
                    draws_per_row=smoothing.n_data / len(row_codes),
                )
            else:
                n_knots = count_knots(n_knots, codes)
        transport = resolve_transport(
            self.parameters.transport, n_per_map, self.ranks.size, HISTOGRAM, AUTO
        )
        return transport, n_knots


def _largest_class(*, codes_p: Tensor, codes_q: Tensor, draws_per_row: float) -> int:
    """The particles and the data, with draws of each row, of the largest class.

    `codes_p` and `codes_q` are the class indices of the particles and of the rows.
    """
    n_classes = int(codes_q.max()) + 1
    sizes_p = torch.bincount(codes_p, minlength=n_classes)
    sizes_q = torch.bincount(codes_q, minlength=n_classes)
    return int((sizes_p + draws_per_row * sizes_q).max())


@dataclass(frozen=True)
class VectorTask:
    """A planned fit of a flow. No particle has moved yet, and no data are drawn."""

    data: TrainingData
    particle_conditions: ParticleConditions | None

    @property
    def plan(self) -> VectorPlan:
        """What the fit will do."""
        return self.data.plan

    def run(
        self, listeners: Sequence[Listener], checkpoints: Checkpoints | None = None
    ) -> FitResult[FittedVectors]:
        """Move the particles, with all that follows."""
        running = RunningVectors(self.data, self.particle_conditions)
        return run_flow(running, listeners, checkpoints, self.data.ranks)


class RunningVectors:
    """A flow whose particles stand at their start, or are on their way.

    The steps of `flow` move `particles`. `finish` runs the axis steps, which cannot be
    resumed; see `axis_steps`.
    """

    def __init__(
        self, data: TrainingData, particle_conditions: ParticleConditions | None
    ) -> None:
        plan = data.plan
        self.data = data
        self.particle_conditions = particle_conditions

        # This rank's particles, at their start.
        self.shard = data.ranks.shard(plan.n_flow_particles)
        self.order = ParticleOrder()
        if particle_conditions is not None:
            self.order = ParticleOrder.from_conditions(
                particle_conditions, plan.n_separate_classes, self.shard
            )
        shard_codes = None
        if self.order.codes is not None:
            shard_codes = self.order.codes[self.shard.slice].to(data.device)
        x = torch.empty(
            plan.n_columns, self.shard.count, dtype=plan.torch_dtype, device=data.device
        )
        self.particles = Cloud(x, shard_codes, self.order.class_slices)
        self.noise = ParticleStreams(data.seed.child("particles"), self.shard.first)
        self.noise.fill(self.particles.x, "start")

        # Maps are shrunk, and fitted to the clouds of all ranks.
        self.flow = plan.flow_spec(data.seed, data.device)
        if plan.options.shrinkage:
            self.flow = self._shrunk(self.flow)
        if data.ranks.size > 1:
            self.flow = across_ranks(self.flow, data.ranks)

    def _shrunk(self, flow: FlowSpec) -> FlowSpec:
        """The flow with maps that are shrunk by their noise."""
        plan = self.data.plan
        codes_p = None
        codes_q = None
        if flow.condition_use != "none":
            codes_p = self.order.codes
            codes_q = self.data.codes
        rates = noise_rates(
            plan.n_flow_particles,
            plan.n_rows * plan.draws_per_row,
            codes_p=codes_p,
            codes_q=codes_q,
            n_classes=plan.n_separate_classes,
            max_samples=plan.transport.max_samples,
            distinct=1 / plan.draws_per_row,
        )
        return shrunk_flow(flow, plan.options.shrinkage, rates)

    def target(self) -> Target:
        """What the particles move onto before the axis steps.

        The data are drawn when the first step asks for them.
        """
        max_samples = self.data.plan.transport.max_samples
        batches = self.data.batches(self.shard.count, self.order.codes, max_samples)

        def draw(stage_index: int, step_index: int) -> Cloud:
            return self.data.flow_cloud().part(batches.order)

        return Target(draw, batches)

    def finish(
        self, state: FlowState, listeners: Sequence[Listener]
    ) -> FitResult[FittedVectors]:
        """What the fit gives, after axis steps that make columns exact."""
        data = self.data
        m = data.plan.n_particles
        x = select_particles(
            self.particles.x, self.order.flow_index, self.shard, m, data.ranks
        )
        codes = None
        shard_codes = None
        y = None
        if self.particle_conditions is not None:
            kept_shard = data.ranks.shard(m)
            codes = self.particle_conditions.kept_codes(m)
            shard_codes = codes[kept_shard.slice]
            y = self.particle_conditions.y
            if y is not None:
                y = y[kept_shard.slice]
        model = state.steps
        if data.plan.n_axis_particles:
            context = AxisStepContext.for_data(data, self.noise)
            x = fit_axis_steps_to_kept(context, x, codes, state, listeners)
            model = fit_axis_steps_to_fresh(context, state.steps)
        fitted = self._fitted(model)
        particles = ParticleResult(fitted.in_form(fitted.decode(x, shard_codes)), y)
        warning = self._copy_warning(fitted.plan, x, codes)
        return FitResult(fitted, warning=warning, particles=particles)

    def _fitted(self, model: Sequence[ModelStep]) -> FittedVectors:
        """The fitted state."""
        data = self.data
        rows = data.rows
        units = data.units_by_class[0]
        class_units: tuple[Units, ...] = ()
        if data.plan.n_separate_classes:
            units = Units.from_data(rows.X, data.plan.standardize)
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
        self, plan: VectorPlan, x: Tensor, codes: Tensor | None
    ) -> CopyWarning | None:
        """What to tell the user if the particles x (d, n) copy rows; else nothing."""
        data = self.data
        if data.ranks.size > 1:
            return None
        pairs = [(data.encoded, x.T)]
        if plan.n_separate_classes and codes is not None:
            row_codes = data.rows.codes
            assert row_codes is not None
            pairs = []
            for c in range(plan.n_separate_classes):
                is_of_class = (codes == c).to(x.device)
                pairs.append((data.encoded[row_codes == c], x[:, is_of_class].T))
        evidence = evidence_of_copying(pairs)
        if not evidence:
            return None
        more = f"more smoothing than {plan.bandwidth:.2g} (VectorOptions)"
        hint = f"{more}, or fewer n_steps, help"
        return CopyWarning(f"the particles copy rows of X ({evidence}); {hint}")
