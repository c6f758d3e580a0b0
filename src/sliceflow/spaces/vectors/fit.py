"""The fit of vectors: plan it, move the particles, make the columns exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.dataframes import column_names
from sliceflow.devices import require_memory
from sliceflow.engine import conditions
from sliceflow.engine.batches import Target, make_batches_per_class, weighted_batches
from sliceflow.engine.clouds import ClassOrder, Cloud
from sliceflow.engine.compression import ModelStep
from sliceflow.engine.events import History, Listener
from sliceflow.engine.flow import Flow, FlowState, ParticleNoise, replay, simulate
from sliceflow.engine.random import Seed
from sliceflow.engine.shrinkage import noise_rates, shrunk_flow
from sliceflow.engine.transports import Auto, Histogram, resolve_transport
from sliceflow.errors import CopyWarning, DataError, ParameterError
from sliceflow.metrics.copying import copy_warning
from sliceflow.models.checkpoints import Checkpoints
from sliceflow.models.flow_estimator import run_flow
from sliceflow.models.particles import (
    ParticleConditions,
    count_moved,
    select_particles,
)
from sliceflow.models.protocols import FlowResult
from sliceflow.models.rank_transports import across_ranks
from sliceflow.models.ranks import SINGLE, Ranks, Shard
from sliceflow.models.rows import RowConditions
from sliceflow.neighbours.local import LocalSampler
from sliceflow.spaces.vectors.fitted import FittedVectors
from sliceflow.spaces.vectors.parameters import VectorParameters
from sliceflow.spaces.vectors.plan import (
    VectorPlan,
    choose_frame,
    condition_kind,
    count_knots,
)
from sliceflow.spaces.vectors.rows import (
    Units,
    VectorRows,
    as_cloud,
    check_rows,
    encode_classes,
)
from sliceflow.spaces.vectors.smoothing import Smoothing, plan_smoothing
from sliceflow.validation import require

# What these names of the parameter `transport` stand for.
HISTOGRAM = Histogram()
AUTO = Auto()

# Particles of local conditions unless the user says how many: each needs a
# neighbourhood of its own.
LOCAL_PARTICLES = 200
# Bytes that the choice of settings takes if conditions are local.
LOCAL_CHOICE_BYTES = 1 << 27


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
        x = check_rows(X, self.validate)
        names = column_names(X) if hasattr(X, "columns") else None
        tensor_device = None
        if isinstance(X, Tensor):
            tensor_device = X.device.type
        row_conditions = None
        if y is not None:
            y = conditions.as_array(y)
            row_conditions = RowConditions.infer(y, len(x))
        rows = VectorRows(x, row_conditions, names, tensor_device)
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

    def plan(
        self, rows: VectorRows, seed: Seed
    ) -> PlannedVectors | PlannedLocalVectors:
        """What a fit of these rows will do; an error if that is impossible."""
        is_local = self._is_local(rows)
        n_particles = self._count_particles(rows, is_local)
        if is_local:
            return self._plan_local(rows, n_particles, seed)
        return self._plan_flow(rows, n_particles, seed)

    def _is_local(self, rows: VectorRows) -> bool:
        """Whether conditions are local; an error if they must be but cannot."""
        mode = self.parameters.condition
        condition = rows.condition
        if condition is None or isinstance(condition, conditions.LabelCondition):
            if mode == "local":
                fact = "needs continuous columns in y"
                raise ParameterError("condition", mode, fact, "pass y of shape (n, l)")
            return False
        xi = self.parameters.amplifier
        is_local = mode == "local" or (mode == "auto" and 0 < xi < math.inf)
        if self.ranks.size > 1:
            if mode == "local":
                fact = "keeps all rows in one process"
                hint = "fit in one process, or set condition='joint'"
                raise ParameterError("condition", mode, fact, hint)
            is_local = False
        if isinstance(condition, conditions.MixedCondition) and not is_local:
            fact = f"y has labels and columns, which condition={mode!r} cannot fit here"
            hint = "use condition='local', or pass labels (n,) or columns (n, l)"
            raise DataError(fact, hint)
        return is_local

    def _count_particles(self, rows: VectorRows, is_local: bool) -> int:
        """The number of particles to keep, for which there must be memory."""
        m = self.parameters.n_particles
        if m is None and is_local:
            m = LOCAL_PARTICLES
        elif m is None:
            m = conditions.default_particles(rows.shard.total)
        m = int(m)
        least = self.ranks.size
        if isinstance(rows.condition, conditions.LabelCondition):
            least = max(least, rows.condition.condition_dim)
        kind = f"at least {least}, one for each class and rank"
        require(m >= least, "n_particles", m, kind)
        d = rows.X.shape[1]
        nbytes = 3 * rows.X.itemsize * d * self.ranks.share(m).count
        what = f"n_particles={m} of {d} columns need"
        require_memory(nbytes, self.device, what, "lower n_particles")
        return m

    def _plan_flow(
        self, rows: VectorRows, n_particles: int, seed: Seed
    ) -> PlannedVectors:
        """One flow for all rows."""
        amplifier = 0.0
        if rows.conditions is not None:
            amplifier = self.parameters.amplifier
        per_class = math.isinf(amplifier)
        if per_class:
            self._check_per_class(rows)

        units_by_class = self._fit_units(rows, per_class)
        codes = rows.codes if amplifier else None
        x = encode_classes(units_by_class, rows.X, codes)
        heavy_tailed = np.any([units.heavy_tailed for units in units_by_class], axis=0)
        smoothing, smoothing_from = plan_smoothing(
            x,
            codes,
            rows.shard.total,
            self.parameters.options,
            torch.from_numpy(heavy_tailed),
            self.ranks,
        )
        particle_conditions = None
        if rows.conditions is not None:
            drawn_from = seed.child("conditions")
            particle_conditions = ParticleConditions.in_proportion(
                rows.conditions, n_particles, amplifier, drawn_from, drawn_from
            )
        plan = self._plan_without_cost(
            rows, n_particles, amplifier, particle_conditions, smoothing, smoothing_from
        )
        n = len(rows)
        m = self.ranks.share(plan.n_moved).count
        rows_in_words = f"{n} rows of {plan.n_columns} columns"
        what = (
            f"n_particles={m} with {rows_in_words} and {plan.n_directions} directions "
            "needs"
        )
        hint = (
            "lower n_particles, the number of columns, directions or bins, or n_knots"
        )
        nbytes, seconds = plan.cost(n, m)
        plan = plan.with_cost(nbytes, seconds, what, hint)
        return PlannedVectors(
            plan=plan,
            rows=rows,
            x=x,
            units_by_class=units_by_class,
            particle_conditions=particle_conditions,
            smoothing=smoothing,
            seed=seed,
            device=self.device,
            ranks=self.ranks,
        )

    def _check_per_class(self, rows: VectorRows) -> None:
        """Raise a `ParameterError` unless every class can have its own maps."""
        xi = self.parameters.amplifier
        if not isinstance(rows.condition, conditions.LabelCondition):
            fact = "fits each class separately, but y is continuous"
            hint = "use a finite amplifier, or labels (n,)"
            raise ParameterError("amplifier", xi, fact, hint)
        if self.ranks.size > 1:
            fact = "fits each class separately, which several ranks cannot do"
            hint = "use a finite amplifier, or one process"
            raise ParameterError("amplifier", xi, fact, hint)

    def _fit_units(self, rows: VectorRows, per_class: bool) -> tuple[Units, ...]:
        """The units in which particles move: one for all rows, or one for each class.

        Classes may have very different scales: the flow starts from N(0, I), and would
        hardly resolve a class that is much narrower than the others.
        """
        standardize = self.parameters.standardize
        if not per_class:
            n = rows.shard.total
            return (Units.fit_to(rows.X, standardize, self.ranks, n),)
        assert rows.codes is not None
        units_by_class = []
        for c in range(rows.n_conditions):
            is_of_class = (rows.codes == c).numpy()
            units_by_class.append(Units.fit_to(rows.X[is_of_class], standardize))
        return tuple(units_by_class)

    def _plan_without_cost(
        self,
        rows: VectorRows,
        n_particles: int,
        amplifier: float,
        particle_conditions: ParticleConditions | None,
        smoothing: Smoothing | None = None,
        smoothing_from: str = "",
    ) -> VectorPlan:
        """The plan with every "auto" resolved, but without its cost."""
        parameters = self.parameters
        options = parameters.options
        n = rows.shard.total
        d = rows.X.shape[1]
        n_moved = count_moved(n_particles, particle_conditions)
        n_data = n if smoothing is None else max(n, n_moved)
        n_per_map = n_moved + n_data
        n_knots = int(options.n_knots)
        if particle_conditions is not None and amplifier:
            if options.shrinkage and particle_conditions.codes.dim() == 2:
                fact = "does not work with a continuous y"
                kappa = options.shrinkage
                raise ParameterError("shrinkage", kappa, fact, "set it to 0")
            if math.isinf(amplifier):
                n_per_map = _largest_class(
                    particle_conditions.codes, rows.codes, n_data / n
                )
            else:
                n_knots = count_knots(n_knots, particle_conditions.codes)
        return VectorPlan(
            device=str(self.device),
            n_ranks=self.ranks.size,
            n_rows=n,
            n_columns=d,
            dtype="float32" if rows.X.dtype == np.float32 else "float64",
            n_particles=n_particles,
            n_moved=n_moved,
            condition=condition_kind(rows.condition),
            n_conditions=rows.n_conditions,
            amplifier=amplifier,
            frame=choose_frame(parameters.frame, d, amplifier, self.ranks.size),
            transport=resolve_transport(
                parameters.transport,
                n_per_map,
                self.ranks.size,
                HISTOGRAM,
                AUTO,
            ),
            n_steps=parameters.n_steps,
            entropy=parameters.entropy,
            standardize=parameters.standardize,
            options=options,
            n_knots=n_knots,
            smoothing=0.0 if smoothing is None else smoothing.h,
            smoothing_from=smoothing_from,
        )

    def _plan_local(
        self, rows: VectorRows, n_particles: int, seed: Seed
    ) -> PlannedLocalVectors:
        """Keep the rows; the particles are samples at their own conditions."""
        row_conditions = rows.conditions
        assert row_conditions is not None
        n, d = rows.X.shape
        amplifier = self.parameters.amplifier
        plan = self._plan_without_cost(rows, n_particles, amplifier, None)
        n_codes = row_conditions.codes.shape[1]
        values = 4 * n * d + 6 * n * n_codes + 4 * n_particles * d
        what = f"{n} rows of {d} columns, kept for conditions, need"
        plan = replace(plan, n_steps=0).with_cost(
            LOCAL_CHOICE_BYTES + 8 * values, 0.0, what, "keep fewer"
        )
        fitted = FittedVectors(
            plan,
            seed,
            Units.fit_to(rows.X, self.parameters.standardize),
            conditions=row_conditions,
            names=rows.names,
            tensor_device=rows.tensor_device,
            device=self.device,
        )
        local = tuple(LocalSampler.fit(x, y) for x, y in fitted.local_parts(rows))
        largest = max(local, key=lambda sampler: len(sampler.x))
        plan = replace(
            plan, neighbours=largest.settings.k, distances=largest.description
        )
        settings = tuple(sampler.settings for sampler in local)
        fitted = replace(fitted, plan=plan, local=local, settings=settings)
        numbers = conditions.even_indices(n, n_particles, seed.child("conditions"))
        return PlannedLocalVectors(fitted, row_conditions.take(numbers), seed)


def _largest_class(codes_p: Tensor, codes_q: Tensor | None, n_draws: float) -> int:
    """The particles and the data, with draws of each row, of the largest class."""
    assert codes_q is not None
    n_classes = int(codes_q.max()) + 1
    sizes_p = torch.bincount(codes_p, minlength=n_classes)
    sizes_q = torch.bincount(codes_q, minlength=n_classes)
    return int((sizes_p + n_draws * sizes_q).max())


@dataclass(frozen=True)
class PlannedLocalVectors:
    """A planned fit of local conditions, which moves nothing: its model is the rows."""

    fitted: FittedVectors
    conditions: RowConditions  # of the particles
    seed: Seed
    ranks: Ranks = SINGLE

    @property
    def plan(self) -> VectorPlan:
        """What the fit will do."""
        return self.fitted.plan

    def run(
        self, listeners: Sequence[Listener], checkpoints: Checkpoints | None = None
    ) -> FlowResult[FittedVectors]:
        """Draw the particles; there are no steps to hear of or to resume."""
        codes = self.conditions.codes
        particles = self.fitted.draw(len(codes), codes, self.seed.child("particles"))
        no_steps = History().as_columns()
        y = self.conditions.y
        return FlowResult(self.fitted, no_steps, particles=particles, y=y)


@dataclass(frozen=True)
class PlannedVectors:
    """A planned fit of a flow. No particle has moved yet."""

    plan: VectorPlan
    rows: VectorRows
    x: Tensor  # (n, d), this rank's rows in the flow's units
    # Units of each class that has its own maps, or one for all.
    units_by_class: tuple[Units, ...]
    particle_conditions: ParticleConditions | None
    smoothing: Smoothing | None  # draws around the rows; None fits the rows themselves
    seed: Seed
    device: torch.device
    ranks: Ranks

    def run(
        self, listeners: Sequence[Listener], checkpoints: Checkpoints | None = None
    ) -> FlowResult[FittedVectors]:
        """Move the particles, with all that follows."""
        return run_flow(RunningVectors(self), listeners, checkpoints)


@dataclass(frozen=True)
class TrainingData:
    """What the particles move onto: the rows in the flow's units, or draws of them."""

    for_flow: Cloud  # this rank's data
    for_axes: Cloud  # the same for the axis steps, see `Smoothing.draws`
    codes: Tensor | None  # conditions of the data of all ranks
    shard: Shard  # the place of this rank's data there
    n_draws: int  # data of each row

    @classmethod
    def from_planned(cls, planned: PlannedVectors) -> TrainingData:
        """The rows, or `n_draws` draws of each if the plan smooths them."""
        rows = planned.rows
        codes = rows.codes
        x_for_flow = planned.x
        x_for_axes = planned.x
        n_draws = 1
        if planned.smoothing is not None:
            n_draws = planned.plan.n_draws
            x_for_flow, x_for_axes = planned.smoothing.draws(
                n_draws, planned.seed.child("smoothing"), rows.shard
            )
            if codes is not None:
                codes = codes.repeat_interleave(n_draws, 0)
        shard = rows.shard.repeated(n_draws)
        rank_codes = _codes_of_rank(codes, shard)
        for_flow = as_cloud(x_for_flow, rank_codes, planned.device)
        for_axes = as_cloud(x_for_axes, rank_codes, planned.device)
        return cls(for_flow, for_axes, codes, shard, n_draws)


def _codes_of_rank(codes: Tensor | None, shard: Shard) -> Tensor | None:
    """One rank's part of the codes of all ranks; None without conditions."""
    if codes is None:
        return None
    return codes[shard.slice]


class RunningVectors:
    """A flow whose particles stand at their start, or are on their way."""

    def __init__(self, planned: PlannedVectors) -> None:
        plan = planned.plan
        self.planned = planned
        self.data = TrainingData.from_planned(planned)

        # The codes of the particles of all ranks, in the order in which the flow moves
        # them, and how to find the user's order: see `models.particles`.
        self.codes: Tensor | None = None
        self.positions: Tensor | None = None
        if planned.particle_conditions is not None:
            self.codes = planned.particle_conditions.codes
            self.positions = planned.particle_conditions.positions
        class_slices = None
        if plan.n_separate_classes and self.codes is not None:
            class_order = ClassOrder.from_codes(self.codes, plan.n_separate_classes)
            class_slices = class_order.class_slices
            self.codes = class_order.codes
            if self.positions is None:
                self.positions = class_order.inverse
            else:
                self.positions = class_order.inverse[self.positions]

        # This rank's particles, at their start.
        self.share = planned.ranks.share(plan.n_moved)
        x = planned.x.new_empty(self.share.count, plan.n_columns)
        rank_codes = _codes_of_rank(self.codes, self.share)
        self.particles = as_cloud(x, rank_codes, planned.device)
        self.particles.class_slices = class_slices
        self.noise = ParticleNoise(planned.seed.child("particles"), self.share.first)
        self.noise.child("start").fill(self.particles.x)

        # The flow as offline samples replay it, and as it is fitted.
        self.sampling_flow = plan.flow(planned.seed, planned.device)
        self.flow = self._fitted_flow()
        self.n_stages = sum(not stage.matches_marginals for stage in self.flow.stages)

    def _fitted_flow(self) -> Flow:
        """The flow with transports that shrink maps, or fit them on several ranks."""
        plan = self.planned.plan
        ranks = self.planned.ranks
        flow = self.sampling_flow
        if plan.options.shrinkage:
            codes_p = self.codes if flow.conditional else None
            codes_q = self.data.codes if flow.conditional else None
            rates = noise_rates(
                plan.n_moved,
                plan.n_rows * self.data.n_draws,
                codes_p,
                codes_q,
                n_classes=plan.n_separate_classes,
                max_samples=plan.transport.max_samples,
                distinct=1 / self.data.n_draws,
            )
            flow = shrunk_flow(flow, plan.options.shrinkage, rates)
        if ranks.size > 1:
            flow = across_ranks(flow, ranks)
        return flow

    def target(self) -> Target:
        """What the particles move onto before the axis steps."""
        return self._target(
            self.particles, self.codes, self.data.for_flow, self.n_stages - 1
        )

    def _target(
        self, particles: Cloud, codes: Tensor | None, data: Cloud, stage_index: int
    ) -> Target:
        """The data for these particles; `codes` are of the particles of all ranks."""
        flow = self.flow
        plan = self.planned.plan
        if self.planned.ranks.size > 1:
            codes_p = codes if flow.conditional else None
            codes_q = self.data.codes if flow.conditional else None
            shard = self.data.shard.slice
            batches = weighted_batches(codes_q, codes_p, shard, data.x.device)
            return Target.from_cloud(data, batches)
        if not plan.n_separate_classes:
            return flow.target(particles, data, stage_index)
        assert particles.y is not None
        assert data.y is not None
        batches = make_batches_per_class(
            flow.stages[stage_index].transport.max_samples if flow.stages else None,
            particles.y,
            data.y,
            plan.n_separate_classes,
            flow.seed.child("batches"),
        )
        return Target.from_cloud(data, batches)

    def finish(
        self, state: FlowState, listeners: Sequence[Listener]
    ) -> FlowResult[FittedVectors]:
        """What the fit gives, after axis steps that make columns exact.

        Earlier steps place the particles that they were fitted to better than fresh
        ones. So there are two sets of axis steps: one for the kept particles, and one
        for the model, fitted to fresh particles.
        """
        planned = self.planned
        m = planned.plan.n_particles
        x = select_particles(
            self.particles.x, self.positions, self.share, m, planned.ranks
        )
        codes = None
        y = None
        if planned.particle_conditions is not None:
            codes = planned.particle_conditions.kept_codes(m)
            y = planned.particle_conditions.y
        if y is not None:
            y = y[planned.ranks.share(len(y)).slice]
        model = state.model
        if planned.plan.n_fresh:
            x = self._fit_kept_axis_steps(x, codes, state, listeners)
            model = self._fit_model_axis_steps(state)
        fitted = self._fitted(model)
        rank_codes = _codes_of_rank(codes, planned.ranks.share(m))
        particles = fitted.in_form(fitted.decode(x, rank_codes))
        warning = self._copy_warning(x, codes)
        return FlowResult(fitted, warning=warning, particles=particles, y=y)

    def _fit_kept_axis_steps(
        self,
        x: Tensor,
        codes: Tensor | None,
        state: FlowState,
        listeners: Sequence[Listener],
    ) -> Tensor:
        """The kept particles (d, n) of this rank, moved by axis steps fitted to them.

        `codes` are those of all ranks, in the same order.
        """
        # Steps and seconds are counted on. The maps are of no further use, and
        # checkpoints do not see these steps, which are few.
        axis_state = FlowState(
            stage_index=state.stage_index,
            steps_done=state.steps_done,
            steps_skipped=state.steps_skipped,
            seconds=state.seconds,
        )
        plan = self.planned.plan
        rank_codes = _codes_of_rank(codes, self.planned.ranks.share(plan.n_particles))
        if rank_codes is not None:
            rank_codes = rank_codes.to(x.device)
        if not plan.n_separate_classes or rank_codes is None:
            cloud = Cloud(x, rank_codes)
            self._run_axis_steps(cloud, codes, axis_state, listeners)
            return cloud.x
        class_order = ClassOrder.from_codes(rank_codes, plan.n_separate_classes)
        cloud = class_order.sort(x)
        self._run_axis_steps(cloud, class_order.codes, axis_state, listeners)
        return class_order.unsort(cloud.x)

    def _fit_model_axis_steps(self, state: FlowState) -> list[ModelStep]:
        """The model's steps, and then axis steps fitted to fresh particles."""
        fresh, codes = self._fresh_particles(state.model)
        axis_state = FlowState(state.stage_index, model=list(state.model))
        self._run_axis_steps(fresh, codes, axis_state, listeners=())
        return axis_state.model

    def _run_axis_steps(
        self,
        particles: Cloud,
        codes: Tensor | None,
        state: FlowState,
        listeners: Sequence[Listener],
    ) -> None:
        """Make the columns of these particles exact, from where `state` stands."""
        last = len(self.flow.stages) - 1
        target = self._target(particles, codes, self.data.for_axes, last)
        simulate(
            self.flow, particles, target, self.noise, listeners=listeners, state=state
        )

    def _fresh_particles(
        self, model: Sequence[ModelStep]
    ) -> tuple[Cloud, Tensor | None]:
        """This rank's fresh particles, moved by a model, and the codes of all ranks."""
        planned = self.planned
        plan = planned.plan
        seed = planned.seed.child("fresh")
        codes_q = planned.rows.codes
        n_fresh = plan.n_fresh
        codes = None
        if codes_q is not None:
            codes = self._fresh_codes(codes_q, n_fresh, seed)
            n_fresh = len(codes)
        share = planned.ranks.share(n_fresh)
        starts = seed.child("start")
        x = _sobol_normal(share.first, share.count, plan.n_columns, starts)
        class_slices = None
        if plan.n_separate_classes and codes is not None:
            class_order = ClassOrder.from_codes(codes, plan.n_separate_classes)
            class_slices = class_order.class_slices
            codes = class_order.codes
            x = x[class_order.order]
        x = x.to(self.data.for_flow.x.dtype)
        fresh = as_cloud(x, _codes_of_rank(codes, share), planned.device)
        fresh.class_slices = class_slices
        noise = ParticleNoise(seed.child("particles"), share.first)
        replay(self.sampling_flow, model, fresh, noise)
        return fresh, codes

    def _fresh_codes(self, codes_q: Tensor, n_fresh: int, seed: Seed) -> Tensor:
        """Conditions of fresh particles, in proportion, with enough of each class."""
        numbers = conditions.stratified_indices(
            codes_q, n_fresh, seed.child("conditions")
        )
        codes = codes_q[numbers]
        if not self.sampling_flow.conditional:
            return codes
        per_class = self.planned.plan.n_separate_classes > 0
        more = conditions.extra_codes(codes_q, codes, per_class, seed)
        return torch.cat((codes, more))

    def _fitted(self, model: Sequence[ModelStep]) -> FittedVectors:
        """The fitted state."""
        planned = self.planned
        rows = planned.rows
        units = planned.units_by_class[0]
        class_units: tuple[Units, ...] = ()
        if planned.plan.n_separate_classes:
            units = Units.fit_to(rows.X, planned.plan.standardize)
            class_units = planned.units_by_class
        return FittedVectors(
            planned.plan,
            planned.seed,
            units,
            class_units=class_units,
            steps=tuple(model),
            conditions=rows.conditions,
            names=rows.names,
            tensor_device=rows.tensor_device,
            device=planned.device,
        )

    def _copy_warning(self, x: Tensor, codes: Tensor | None) -> CopyWarning | None:
        """What to tell the user if the particles x (d, n) copy rows; else nothing."""
        planned = self.planned
        if planned.ranks.size > 1:
            return None
        pairs = [(planned.x, x.T)]
        if planned.plan.n_separate_classes and codes is not None:
            codes_q = planned.rows.codes
            assert codes_q is not None
            pairs = []
            for c in range(planned.plan.n_separate_classes):
                is_of_class = (codes == c).to(x.device)
                pairs.append((planned.x[codes_q == c], x[:, is_of_class].T))
        evidence = copy_warning(pairs)
        if not evidence:
            return None
        more = f"more smoothing than {planned.plan.smoothing:.2g} (VectorOptions)"
        hint = f"{more}, or fewer n_steps, help"
        return CopyWarning(f"the particles copy rows of X ({evidence}); {hint}")


def _sobol_normal(first: int, n: int, d: int, seed: Seed) -> Tensor:
    """Points `first` to first + n of a Sobol sequence, mapped to N(0, I): (n, d).

    They are random for more columns than the sequence is known for.
    """
    engine = torch.quasirandom.SobolEngine
    if d > engine.MAXDIM:
        return seed.normal(n, d, start=first)
    scramble_seed = int(seed.uniform(1, 1) * 2**31)
    sequence: Any = engine(d, True, scramble_seed)  # type: ignore[no-untyped-call]
    u: Tensor = sequence.fast_forward(first).draw(n, dtype=torch.float64)
    x: Tensor = torch.special.ndtri(u.clamp(2**-40, 1 - 2**-40))
    return x
