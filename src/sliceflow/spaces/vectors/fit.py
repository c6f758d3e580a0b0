"""The fit of vectors: plan it, move the particles, make the columns exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.dataframes import column_names
from sliceflow.devices import require_memory
from sliceflow.engine import conditions
from sliceflow.engine.batches import Target, divide_per_class, weighted_batches
from sliceflow.engine.clouds import Cloud, sort_by_class
from sliceflow.engine.compact import ModelStep
from sliceflow.engine.events import History, Listener
from sliceflow.engine.flow import Flow, FlowState, ParticleNoise, replay, simulate
from sliceflow.engine.random import Seed
from sliceflow.engine.shrinkage import noise_rates, shrunk_flow
from sliceflow.engine.transports import Auto, Histogram, choose_transport
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
from sliceflow.models.ranks import SINGLE, Ranks
from sliceflow.models.rows import RowConditions
from sliceflow.neighbours.local import LocalSampler
from sliceflow.spaces.vectors.fitted import FittedVectors
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
from sliceflow.spaces.vectors.smoothing import Smoothing, choose_smoothing
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

    parameters: Mapping[str, Any]  # the estimator's checked ones; `options` never None
    device: torch.device
    # scikit-learn's check of the number and the names of columns
    validate: Callable[[Any], np.ndarray]
    ranks: Ranks = SINGLE

    def read(self, X: Any, y: Any) -> VectorRows:
        """The user's rows, checked."""
        x = check_rows(X, self.validate)
        names = column_names(X) if hasattr(X, "columns") else None
        tensor = X.device.type if isinstance(X, Tensor) else ""
        row_conditions = None
        if y is not None:
            y = conditions.as_array(y)
            row_conditions = RowConditions.infer(y, len(x))
        rows = VectorRows(x, row_conditions, names, tensor)
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
        mode = self.parameters["condition"]
        condition = rows.condition
        if condition is None or isinstance(condition, conditions.LabelCondition):
            if mode == "local":
                fact = "needs continuous columns in y"
                raise ParameterError("condition", mode, fact, "pass y of shape (n, l)")
            return False
        xi = float(self.parameters["amplifier"])
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
        m = self.parameters["n_particles"]
        if m is None and is_local:
            m = LOCAL_PARTICLES
        elif m is None:
            m = conditions.default_particles(rows.shard.total)
        m = int(m)
        least = self.ranks.size
        if isinstance(rows.condition, conditions.LabelCondition):
            least = max(least, rows.condition.width)
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
            amplifier = float(self.parameters["amplifier"])
        per_class = math.isinf(amplifier)
        if per_class:
            self._check_per_class(rows)

        units = self._fit_units(rows, per_class)
        codes = rows.codes if amplifier else None
        if per_class:
            x = encode_classes(units, rows.X, codes)
        else:
            x = units[0].encode(rows.X)
        heavy_tailed = np.any([u.width > 0 for u in units], axis=0)
        smoothing, smoothing_from = choose_smoothing(
            x,
            codes,
            rows.shard.total,
            self.parameters["options"],
            torch.from_numpy(heavy_tailed),
            self.ranks,
        )
        assigned = None
        if rows.conditions is not None:
            drawn_from = seed.child("conditions")
            assigned = ParticleConditions.in_proportion(
                rows.conditions, n_particles, amplifier, drawn_from, drawn_from
            )
        plan = self._resolve(
            rows, n_particles, amplifier, assigned, smoothing, smoothing_from
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
            plan, rows, x, units, assigned, smoothing, seed, self.device, self.ranks
        )

    def _check_per_class(self, rows: VectorRows) -> None:
        """Raise a `ParameterError` unless every class can have its own maps."""
        xi = self.parameters["amplifier"]
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
        standardize = self.parameters["standardize"]
        if not per_class:
            n = rows.shard.total
            return (Units.fit_to(rows.X, standardize, self.ranks, n),)
        assert rows.codes is not None
        units = []
        for c in range(rows.n_conditions):
            of_class = (rows.codes == c).numpy()
            units.append(Units.fit_to(rows.X[of_class], standardize))
        return tuple(units)

    def _resolve(
        self,
        rows: VectorRows,
        n_particles: int,
        amplifier: float,
        assigned: ParticleConditions | None,
        smoothing: Smoothing | None = None,
        smoothing_from: str = "",
    ) -> VectorPlan:
        """The plan with every "auto" resolved, but without its cost."""
        parameters = self.parameters
        options = parameters["options"]
        n = rows.shard.total
        d = rows.X.shape[1]
        n_moved = count_moved(n_particles, assigned)
        n_data = n if smoothing is None else max(n, n_moved)
        n_per_map = n_moved + n_data
        n_knots = int(options.n_knots)
        if assigned is not None and amplifier:
            if options.shrinkage and assigned.codes.dim() == 2:
                fact = "does not work with a continuous y"
                kappa = options.shrinkage
                raise ParameterError("shrinkage", kappa, fact, "set it to 0")
            if math.isinf(amplifier):
                n_per_map = _largest_class(assigned.codes, rows.codes, n_data / n)
            else:
                n_knots = count_knots(n_knots, assigned.codes)
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
            frame=choose_frame(parameters["frame"], d, amplifier, self.ranks.size),
            transport=choose_transport(
                parameters["transport"],
                n_per_map,
                self.ranks.size,
                HISTOGRAM,
                AUTO,
            ),
            n_steps=int(parameters["n_steps"]),
            entropy=float(parameters["entropy"]),
            standardize=bool(parameters["standardize"]),
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
        amplifier = float(self.parameters["amplifier"])
        plan = self._resolve(rows, n_particles, amplifier, None)
        n_codes = row_conditions.codes.shape[1]
        values = 4 * n * d + 6 * n * n_codes + 4 * n_particles * d
        what = f"{n} rows of {d} columns, kept for conditions, need"
        plan = replace(plan, n_steps=0).with_cost(
            LOCAL_CHOICE_BYTES + 8 * values, 0.0, what, "keep fewer"
        )
        fitted = FittedVectors(
            plan,
            seed,
            Units.fit_to(rows.X, self.parameters["standardize"]),
            conditions=row_conditions,
            names=rows.names,
            tensor=rows.tensor,
            device=self.device,
        )
        local = tuple(LocalSampler.fit(x, y) for x, y in fitted.local_parts(rows))
        largest = max(local, key=lambda sampler: len(sampler.x))
        plan = replace(
            plan, neighbours=largest.settings.k, distances=largest.description
        )
        settings = tuple(sampler.settings for sampler in local)
        fitted = replace(fitted, plan=plan, local=local, settings=settings)
        numbers = conditions.even_rows(n, n_particles, seed.child("conditions"))
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
    units: tuple[Units, ...]  # of each class that has its own maps, or one for all
    assigned: ParticleConditions | None  # the particles' conditions
    smoothing: Smoothing | None  # draws around the rows; None fits the rows themselves
    seed: Seed
    device: torch.device
    ranks: Ranks

    def start(self) -> RunningVectors:
        """The particles at their start."""
        return RunningVectors(self)

    def run(
        self, listeners: Sequence[Listener], checkpoints: Checkpoints | None = None
    ) -> FlowResult[FittedVectors]:
        """Move the particles, with all that follows."""
        return run_flow(self.start(), listeners, checkpoints)


class RunningVectors:
    """A flow whose particles stand at their start, or are on their way."""

    def __init__(self, planned: PlannedVectors) -> None:
        plan = planned.plan
        ranks = planned.ranks
        self.planned = planned
        self._set_data()

        # The particles of this rank, in an order in which classes that have their own
        # maps are contiguous.
        self.share = ranks.share(plan.n_moved)
        self.codes: Tensor | None = None  # of the particles of all ranks
        self.positions: Tensor | None = None  # see `ParticleConditions`
        class_slices = None
        if planned.assigned is not None:
            self.codes = planned.assigned.codes
            self.positions = planned.assigned.positions
        if plan.per_class and self.codes is not None:
            self.codes, _, inverse, class_slices = sort_by_class(
                self.codes, plan.per_class
            )
            if self.positions is None:
                self.positions = inverse
            else:
                self.positions = inverse[self.positions]
        own_codes = None
        if self.codes is not None:
            own_codes = self.codes[self.share.slice]
        x = planned.x.new_empty(self.share.count, plan.n_columns)
        self.particles = as_cloud(x, own_codes, planned.device)
        self.particles.class_slices = class_slices
        self.noise = ParticleNoise(planned.seed.child("particles"), self.share.first)
        self.noise.child("start").fill(self.particles.x)

        self.replayed = plan.flow(planned.seed, planned.device)
        self.flow = self._fitted_flow()
        self.n_stages = sum(not stage.matches_marginals for stage in self.flow.stages)

    def _set_data(self) -> None:
        """Set the data of the flow and of its axis steps: rows, or draws of them."""
        planned = self.planned
        rows = planned.rows
        codes = rows.codes
        x = planned.x
        x_for_axes = planned.x
        n_draws = 1
        if planned.smoothing is not None:
            n_draws = planned.plan.n_draws
            x, x_for_axes = planned.smoothing.draws(
                n_draws, planned.seed.child("smoothing"), rows.shard
            )
            if codes is not None:
                codes = codes.repeat_interleave(n_draws, 0)
        self.n_draws = n_draws
        self.data_codes = codes  # of the data of all ranks
        self.data_shard = rows.shard.repeated(n_draws)
        own_codes = None
        if codes is not None:
            own_codes = codes[self.data_shard.slice]
        self.data = as_cloud(x, own_codes, planned.device)
        self.data_for_axes = as_cloud(x_for_axes, own_codes, planned.device)

    def _fitted_flow(self) -> Flow:
        """The flow with transports that shrink maps, or fit them on several ranks."""
        plan = self.planned.plan
        ranks = self.planned.ranks
        flow = self.replayed
        if plan.options.shrinkage:
            codes_p = self.codes if flow.conditional else None
            codes_q = self.data_codes if flow.conditional else None
            rates = noise_rates(
                plan.n_moved,
                plan.n_rows * self.n_draws,
                codes_p,
                codes_q,
                n_classes=plan.per_class,
                max_samples=plan.transport.max_samples,
                distinct=1 / self.n_draws,
            )
            flow = shrunk_flow(flow, plan.options.shrinkage, rates)
        if ranks.size > 1:
            flow = across_ranks(flow, ranks)
        return flow

    def target(self) -> Target:
        """What the particles move onto before the axis steps."""
        return self._target(self.particles, self.codes, self.data, self.n_stages - 1)

    def _target(
        self, particles: Cloud, codes: Tensor | None, data: Cloud, stage_index: int
    ) -> Target:
        """The data for these particles; `codes` are of the particles of all ranks."""
        flow = self.flow
        plan = self.planned.plan
        if self.planned.ranks.size > 1:
            codes_p = codes if flow.conditional else None
            codes_q = self.data_codes if flow.conditional else None
            shard = self.data_shard.slice
            batches = weighted_batches(codes_q, codes_p, shard, data.x.device)
            return Target.from_cloud(data, batches)
        if not plan.per_class:
            return flow.target(particles, data, stage_index)
        assert particles.y is not None
        assert data.y is not None
        batches = divide_per_class(
            flow.stages[stage_index].transport.max_samples if flow.stages else None,
            particles.y,
            data.y,
            plan.per_class,
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
        plan = planned.plan
        m = plan.n_particles
        x = select_particles(
            self.particles.x, self.positions, self.share, m, planned.ranks
        )
        codes = None
        y = None
        if planned.assigned is not None:
            codes = planned.assigned.kept_codes(m)
            y = planned.assigned.y
        model = state.model
        if plan.n_fresh:
            axis_state = replace(state, model=[], after_step=FlowState().after_step)
            x = self._make_columns_exact(x, codes, axis_state, listeners)
            fresh, fresh_codes = self._fresh_particles(model)
            fresh_state = FlowState(state.stage_index, model=list(model))
            self._run_axis_steps(fresh, fresh_codes, fresh_state, ())
            model = fresh_state.model
        if y is not None:
            y = y[planned.ranks.share(len(y)).slice]
        fitted = self._fitted(model)
        own_codes = None
        if codes is not None:
            own_codes = codes[planned.ranks.share(m).slice]
        particles = fitted.in_form(fitted.decode(x, own_codes))
        warning = self._copy_warning(x, codes)
        return FlowResult(fitted, warning=warning, particles=particles, y=y)

    def _make_columns_exact(
        self,
        x: Tensor,
        codes: Tensor | None,
        state: FlowState,
        listeners: Sequence[Listener],
    ) -> Tensor:
        """The kept particles (d, n) of this rank after the axis steps.

        `codes` are those of all ranks, in the same order.
        """
        own_codes = None
        if codes is not None:
            share = self.planned.ranks.share(self.planned.plan.n_particles)
            own_codes = codes[share.slice].to(x.device)
        per_class = self.planned.plan.per_class
        if not per_class or own_codes is None:
            cloud = Cloud(x, own_codes)
            self._run_axis_steps(cloud, codes, state, listeners)
            return cloud.x
        codes, order, inverse, slices = sort_by_class(own_codes, per_class)
        cloud = Cloud(x[:, order], codes, slices)
        self._run_axis_steps(cloud, codes, state, listeners)
        return cloud.x[:, inverse]

    def _run_axis_steps(
        self,
        particles: Cloud,
        codes: Tensor | None,
        state: FlowState,
        listeners: Sequence[Listener],
    ) -> None:
        """Make the columns of these particles exact, from where `state` stands."""
        last = len(self.flow.stages) - 1
        target = self._target(particles, codes, self.data_for_axes, last)
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
        if plan.per_class and codes is not None:
            codes, order, _, class_slices = sort_by_class(codes, plan.per_class)
            x = x[order]
        own_codes = None if codes is None else codes[share.slice]
        fresh = as_cloud(x.to(self.data.x.dtype), own_codes, planned.device)
        fresh.class_slices = class_slices
        noise = ParticleNoise(seed.child("particles"), share.first)
        replay(self.replayed, model, fresh, noise)
        return fresh, codes

    def _fresh_codes(self, codes_q: Tensor, n_fresh: int, seed: Seed) -> Tensor:
        """Conditions of fresh particles in the data's proportions, enough of each class."""
        numbers = conditions.stratified_rows(codes_q, n_fresh, seed.child("conditions"))
        codes = codes_q[numbers]
        if not self.replayed.conditional:
            return codes
        per_class = self.planned.plan.per_class > 0
        more = conditions.extra_codes(codes_q, codes, per_class, seed)
        return torch.cat((codes, more))

    def _fitted(self, model: Sequence[ModelStep]) -> FittedVectors:
        """The fitted state."""
        planned = self.planned
        rows = planned.rows
        units = planned.units[0]
        class_units: tuple[Units, ...] = ()
        if planned.plan.per_class:
            units = Units.fit_to(rows.X, planned.plan.standardize)
            class_units = planned.units
        return FittedVectors(
            planned.plan,
            planned.seed,
            units,
            class_units,
            tuple(model),
            rows.conditions,
            rows.names,
            rows.tensor,
            device=planned.device,
        )

    def _copy_warning(self, x: Tensor, codes: Tensor | None) -> CopyWarning | None:
        """What to tell the user if the particles x (d, n) copy rows; else nothing."""
        planned = self.planned
        if planned.ranks.size > 1:
            return None
        pairs = [(planned.x, x.T)]
        if planned.plan.per_class and codes is not None:
            codes_q = planned.rows.codes
            assert codes_q is not None
            pairs = []
            for c in range(planned.plan.per_class):
                of_class = (codes == c).to(x.device)
                pairs.append((planned.x[codes_q == c], x[:, of_class].T))
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
