"""The fit of vectors: plan it, move the particles, make the columns exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.dataframes import column_names
from sliceflow.devices import require_memory
from sliceflow.engine import conditions, events
from sliceflow.engine.batches import Target, weighted_batches
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.compact import ModelStep
from sliceflow.engine.flow import FlowState, Noise, replay, simulate
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.shrinkage import noise_rates, shrunk_flow
from sliceflow.engine.transports import Auto, Histogram, choose_transport
from sliceflow.errors import ParameterError, require
from sliceflow.metrics.copying import copy_warning
from sliceflow.models.particles import ParticleConditions, select_particles
from sliceflow.models.ranks import SINGLE, Ranks, Shard, across_ranks
from sliceflow.models.rows import Conditions
from sliceflow.neighbours.local import LocalRows
from sliceflow.spaces.vectors import plan as plans
from sliceflow.spaces.vectors.fitted import FittedVectors, VectorModel, as_cloud
from sliceflow.spaces.vectors.plan import VectorPlan
from sliceflow.spaces.vectors.rows import Units, VectorRows, check_rows
from sliceflow.spaces.vectors.smoothing import Smoothing, choose_smoothing

_LOCAL_PARTICLES = (
    200  # of local conditions unless the user says how many: each needs a neighbourhood
)


@dataclass(frozen=True)
class VectorAdapter:
    """Vectors, for one estimator."""

    parameters: Mapping[
        str, Any
    ]  # the estimator's checked ones, and `options`, never None
    device: torch.device
    validate: Callable[
        [Any], np.ndarray
    ]  # scikit-learn's check of the number and names of columns
    ranks: Ranks = SINGLE

    def read(self, X: Any, y: Any) -> VectorRows:
        ranks = self.ranks
        x = check_rows(X, self.validate)
        array = None if y is None else conditions.as_array(y)
        Conditions.infer(
            array, len(x)
        )  # report errors in a rank's own y before ranks communicate
        about = (
            "no y"
            if array is None
            else f"y of {array.dtype.kind} and shape (n, {array.shape[1:]})"
        )
        shard = ranks.shard(
            len(x), f"X of {x.dtype} with {x.shape[1]} columns and {about}"
        )
        given = Conditions.infer(
            None if array is None else ranks.gather(array), shard.total
        )
        tensor = X.device.type if isinstance(X, Tensor) else ""
        return VectorRows(
            x, given, column_names(X), tensor, None if ranks.size == 1 else shard
        )

    def plan(self, rows: VectorRows, seed: Seed) -> VectorJob:
        ranks = self.ranks
        parameters = self.parameters
        d = rows.X.shape[1]
        local = self._is_local(rows.condition, ranks)
        default = _LOCAL_PARTICLES if local else conditions.default_particles(rows.n)
        m = int(parameters["n_particles"] or default)
        classes = (
            rows.n_conditions
            if isinstance(rows.condition, conditions.LabelCondition)
            else 1
        )
        least = max(ranks.size, classes)
        require(
            m >= least,
            "n_particles",
            m,
            f"at least {least}, one for each class and rank",
        )
        nbytes = (
            3 * rows.X.itemsize * d * ranks.share(m).count
        )  # before anything is allocated
        require_memory(
            nbytes,
            self.device,
            f"n_particles={m} of {d} columns need",
            "lower n_particles",
        )
        if local:
            return self._prepare_local(rows, m, seed)
        if rows.condition is not None and math.isinf(parameters["amplifier"]):
            return self._prepare_classes(rows, m, seed, ranks)
        part = self._part(rows, m, seed, ranks)
        return VectorJob(
            self._fitted(part.plan, part.units, rows), (part,), part.assigned.y
        )

    def _is_local(self, condition: conditions.Condition | None, ranks: Ranks) -> bool:
        """Whether a fit is local; raises an error if that is required but impossible."""
        mode = self.parameters["condition"]
        xi = self.parameters["amplifier"]
        obstacle = None
        if condition is None or isinstance(condition, conditions.LabelCondition):
            obstacle = "needs continuous columns in y", "pass y of shape (n, l)"
        elif ranks.size > 1:
            obstacle = (
                "keeps all rows in one process",
                "fit in one process, or set condition='joint'",
            )
        if mode == "local" and obstacle:
            raise ParameterError("condition", mode, *obstacle)
        local = not obstacle and (
            mode == "local" or (mode == "auto" and 0 < xi < math.inf)
        )
        if isinstance(condition, conditions.MixedCondition) and not local:
            fact = f"y has labels and columns, which condition={mode!r} cannot fit here"
            raise ValueError(
                f"{fact}; use condition='local', or pass labels (n,) or columns (n, l)"
            )
        return local

    def _fitted(
        self, plan: VectorPlan, units: Units, rows: VectorRows
    ) -> FittedVectors:
        form: Any = dict(given=rows.given, names=rows.names, tensor=rows.tensor)
        return FittedVectors(plan, units, **form, device=self.device)

    def _part(
        self, rows: VectorRows, m: int, seed: Seed, ranks: Ranks, name: str = ""
    ) -> VectorPart:
        """One flow for all rows. Raises an error if it is impossible."""
        units = Units.fit_to(rows.X, self.parameters["standardize"], ranks, rows.n)
        x = units.encode(rows.X)
        options = self.parameters["options"]
        amplifier = (
            0.0 if rows.condition is None else float(self.parameters["amplifier"])
        )
        codes = rows.codes if amplifier else None
        found = choose_smoothing(x, codes, rows.n, options, units.heavy_tailed, ranks)
        own = seed.child("conditions")
        assigned = ParticleConditions.in_proportion(rows.given, m, amplifier, own, own)
        plan = self._plan(rows, m, amplifier, assigned, found, ranks)
        here = len(rows)
        particles = ranks.share(plan.n_moved).count
        what = (
            f"n_particles={particles} with {here} rows of {plan.n_columns} columns and"
        )
        advice = (
            "lower n_particles, the number of columns, directions or bins, or n_knots"
        )
        takes = plans.fit_bytes(plan, here, particles), plans.fit_seconds(plan)
        plan = plan.taking(
            *takes, f"{what} {plan.n_directions} directions needs", advice
        )
        return VectorPart(name, plan, rows, x, units, assigned, found[0], seed, ranks)

    def _plan(
        self,
        rows: VectorRows,
        m: int,
        amplifier: float,
        assigned: ParticleConditions,
        smoothing: tuple[Smoothing | None, str],
        ranks: Ranks,
    ) -> VectorPlan:
        """The plan, without what it takes."""
        parameters = self.parameters
        options = self.parameters["options"]
        draws, why = smoothing
        n = rows.n
        d = rows.X.shape[1]
        n_moved = assigned.n_moved(m)
        n_data = max(n, n_moved) if draws else n
        codes = assigned.codes if amplifier else None
        if options.shrinkage and codes is not None and codes.dim() == 2:
            fact = "does not work with a continuous y"
            raise ParameterError("shrinkage", options.shrinkage, fact, "set it to 0")
        return VectorPlan(
            device=str(self.device),
            n_ranks=ranks.size,
            n_rows=n,
            n_columns=d,
            dtype="float32" if rows.X.dtype == np.float32 else "float64",
            n_particles=m,
            n_moved=n_moved,
            condition=plans.KINDS[type(rows.condition)],
            n_conditions=rows.n_conditions,
            amplifier=amplifier,
            frame=plans.choose_frame(parameters["frame"], d, amplifier, ranks.size),
            transport=choose_transport(
                parameters["transport"],
                n_moved + n_data,
                ranks.size,
                Histogram(),
                Auto(),
            ),
            n_steps=int(parameters["n_steps"]),
            entropy=float(parameters["entropy"]),
            standardize=bool(parameters["standardize"]),
            options=options,
            n_knots=plans.count_knots(int(options.n_knots), codes),
            smoothing=draws.h if draws else 0.0,
            smoothing_from=why,
        )

    def _prepare_classes(
        self, rows: VectorRows, m: int, seed: Seed, ranks: Ranks
    ) -> VectorJob:
        """One flow per class (ξ = ∞)."""
        condition = rows.condition
        codes = rows.codes
        y = rows.y
        if (
            not isinstance(condition, conditions.LabelCondition)
            or codes is None
            or y is None
        ):
            fact = "fits each class separately, but y is continuous"
            raise ParameterError(
                "amplifier", math.inf, fact, "use a finite amplifier, or labels (n,)"
            )
        if ranks.size > 1:
            fact = "fits each class separately, which several ranks cannot do"
            raise ParameterError(
                "amplifier", math.inf, fact, "use a finite amplifier, or one process"
            )
        numbers = conditions.proportional(codes, m, seed.child("conditions"), least=1)
        sizes = torch.bincount(codes[numbers], minlength=condition.width).tolist()
        names = map(conditions.format_label, condition.classes)
        parts = tuple(
            self._part(rows.of_class(c), size, seed.child("class", c), ranks, name)
            for c, (size, name) in enumerate(zip(sizes, names, strict=True))
        )
        plan = plans.join([part.plan for part in parts])
        units = Units.fit_to(rows.X, self.parameters["standardize"])
        return VectorJob(
            self._fitted(plan, units, rows), parts, y[numbers.numpy()], codes[numbers]
        )

    def _prepare_local(self, rows: VectorRows, m: int, seed: Seed) -> VectorJob:
        """Keep the rows; the particles are samples at their own conditions."""
        given: Any = rows.given
        n = rows.n
        d = rows.X.shape[1]
        columns = given.codes.shape[1]
        xi = float(self.parameters["amplifier"])
        plan = self._plan(rows, m, xi, ParticleConditions(), (None, ""), Ranks())
        choosing = 1 << 27  # bytes that the choice of settings takes
        nbytes = choosing + 8 * (4 * n * d + 6 * n * columns + 4 * m * d)
        what = f"{n} rows of {d} columns, kept for conditions, need"
        plan = replace(plan, n_steps=0).taking(nbytes, 0.0, what, "keep fewer")
        units = Units.fit_to(rows.X, self.parameters["standardize"])
        fitted = self._fitted(plan, units, rows)
        local = tuple(LocalRows.fit_to(*part) for part in fitted.local_parts(rows))
        largest = max(local, key=lambda part: len(part.x))
        settings = tuple(p.settings for p in local)
        plan = replace(
            plan, neighbours=largest.settings.k, distances=largest.description
        )
        fitted = replace(fitted, plan=plan, local=local, settings=settings)
        given = given.take(conditions.even_rows(n, m, seed.child("conditions")))
        return VectorJob(fitted, (), given.y, given.codes, seed.child("particles"))


@dataclass(frozen=True)
class VectorJob:
    """A planned fit: one part, one per class (ξ = ∞), or none if conditions are local."""

    fitted: FittedVectors  # without the models of the parts
    parts: tuple[VectorPart, ...]
    y: np.ndarray | None  # of the kept particles of all ranks
    codes: Tensor | None = None  # theirs, if classes are apart or conditions local
    seed: Seed | None = None  # of particles with local conditions

    @property
    def plan(self) -> VectorPlan:
        return self.fitted.plan

    def finish(
        self, results: Sequence[tuple[VectorModel, Tensor]]
    ) -> tuple[FittedVectors, Any, Any]:
        if self.codes is not None and self.seed is not None:
            return (
                self.fitted,
                self.fitted.draw(len(self.codes), self.codes, self.seed),
                self.y,
            )
        fitted = replace(self.fitted, models=tuple(model for model, _ in results))
        parts = [fitted.decode(model.units, x) for model, x in results]
        out = parts[0]
        y = self.y
        if self.codes is not None:
            out = out.new_empty(len(self.codes), out.shape[1])
            for c, part in enumerate(parts):
                out[self.codes == c] = part
        if y is not None:
            y = y[self.parts[0].ranks.share(len(y)).slice]
        return fitted, fitted.in_form(out), y

    def copies(self, results: Sequence[tuple[VectorModel, Tensor]]) -> tuple[str, str]:
        if not self.parts or self.plan.n_ranks > 1:
            return "", ""
        pairs = zip(self.parts, results, strict=True)
        shown = copy_warning([(part.x, x.T) for part, (_, x) in pairs])
        more = f"more smoothing than {self.plan.smoothing:.2g} (VectorOptions)"
        return shown, f"{more}, or fewer n_steps, help"


@dataclass(frozen=True)
class VectorPart:
    """One flow of a fit, planned."""

    name: str  # the class, if classes are fitted separately; else ""
    plan: VectorPlan
    rows: VectorRows
    x: Tensor  # (n, d), these rows in the engine's units
    units: Units
    assigned: ParticleConditions  # the particles' conditions
    smoothing: Smoothing | None  # draws around the rows; None fits the rows themselves
    seed: Seed
    ranks: Ranks

    @property
    def stages(self) -> list[Stage]:
        return self.plan.stages()

    def begin(self) -> MovingVectors:
        return MovingVectors(self)


class MovingVectors:
    """A fit whose particles stand at their start, or are on their way."""

    def __init__(self, part: VectorPart) -> None:
        plan = part.plan
        ranks = part.ranks
        seed = part.seed
        device = torch.device(part.plan.device)
        codes = part.assigned.codes
        codes_q = part.rows.codes
        times = 1
        clouds = (part.x, part.x)
        if part.smoothing is not None:
            times = plan.n_draws
            clouds = part.smoothing.draws(
                times, seed.child("smoothing"), part.rows.here
            )
            codes_q = None if codes_q is None else codes_q.repeat_interleave(times, 0)
        self.part = part
        self.codes_q = codes_q  # the codes of the data of all ranks
        self.shard = Shard(
            *(times * number for number in astuple(part.rows.here))
        )  # of this rank's
        own = None if codes_q is None else codes_q[self.shard.slice]
        # what the flow looks at, and the axis steps
        self.data, self.last_data = (as_cloud(x, own, device) for x in clouds)
        self.share = ranks.share(plan.n_moved)
        self.noise = Noise(seed.child("particles"), self.share.first)
        self.first = self.share.first
        own = None if codes is None else codes[self.share.slice]
        self.particles = as_cloud(
            part.x.new_empty(self.share.count, plan.n_columns), own, device
        )
        self.noise.child("start").fill(self.particles.x)
        self.flow = fitting = plan.flow(seed, device)  # replays the model
        if plan.options.shrinkage:
            both = (codes, codes_q) if fitting.n_shared else (None, None)
            how: Any = dict(max_samples=plan.transport.max_samples, distinct=1 / times)
            rates = noise_rates(plan.n_moved, plan.n_rows * times, *both, **how)
            fitting = shrunk_flow(fitting, plan.options.shrinkage, rates)
        self.fitting = across_ranks(fitting, ranks)

    def move(self, run: FlowState, listeners: Sequence[events.Listener]) -> None:
        self._simulate(
            self.particles, self.part.assigned.codes, run, listeners, exact=False
        )

    def finish(
        self, run: FlowState, listeners: Sequence[events.Listener]
    ) -> tuple[VectorModel, Tensor]:
        """The model and this rank's kept particles (d, n), after axis steps that make columns exact.

        Earlier steps place the particles that they were fitted to better than fresh ones. So there are
        two sets of axis steps: one for the kept particles, and one for the model, fitted to fresh ones.
        """
        part = self.part
        model = run.model
        m = part.plan.n_particles
        assigned = part.assigned
        ranks = part.ranks
        x = select_particles(self.particles.x, assigned.column, self.share, m, ranks)
        codes = assigned.kept_codes(m)
        if part.plan.n_fresh:
            own = None if codes is None else codes[ranks.share(m).slice].to(x.device)
            last = replace(run, model=[], after=FlowState().after)
            self._simulate(Cloud(x, own), codes, last, listeners, exact=True)
            fresh, codes = self._fresh(model)
            model = self._simulate(
                fresh, codes, FlowState(run.stage, model=list(model)), (), exact=True
            )
        return VectorModel(part.seed, tuple(model), part.units), x

    def _simulate(
        self,
        particles: Cloud,
        codes: Tensor | None,
        run: FlowState,
        listeners: Sequence[events.Listener],
        exact: bool,
    ) -> list[ModelStep]:
        """Run the stages before the axis steps, or these; `codes` are of the particles of all ranks."""
        flow = self.fitting
        data = self.last_data if exact else self.data
        n_stages = sum(exact or not stage.exact for stage in flow.stages)
        if n_stages == 0:
            return run.model
        if self.part.ranks.size == 1:
            target = flow.target(particles, data, n_stages - 1)
        else:
            both = (self.codes_q, codes) if flow.conditional else (None, None)
            batches = weighted_batches(*both, self.shard.slice, data.x.device)
            target = Target.from_cloud(data, batches)
        how: Any = dict(listeners=listeners, run=run, n_stages=n_stages)
        return simulate(flow, particles, target, self.noise, **how)

    def _fresh(self, model: Sequence[ModelStep]) -> tuple[Cloud, Tensor | None]:
        """This rank's share of fresh particles, moved by a model, and the codes of all of them."""
        plan = self.part.plan
        codes_q = self.part.rows.codes
        seed = self.part.seed.child("fresh")
        m = plan.n_fresh
        codes = None
        if codes_q is not None:
            codes = codes_q[
                conditions.proportional(codes_q, m, seed.child("conditions"))
            ]
            if self.flow.conditional:  # give rare classes enough particles
                codes = torch.cat(
                    (codes, conditions.extra_codes(codes_q, codes, False, seed))
                )
        share = self.part.ranks.share(m if codes is None else len(codes))
        x = _sobol_normal(share.first, share.count, plan.n_columns, seed.child("start"))
        own = None if codes is None else codes[share.slice]
        fresh = as_cloud(x.to(self.data.x.dtype), own, self.data.x.device)
        replay(self.flow, model, fresh, Noise(seed.child("particles"), share.first))
        return fresh, codes


def _sobol_normal(first: int, n: int, d: int, seed: Seed) -> Tensor:
    """Points `first` to first + n of a Sobol sequence, mapped to N(0, I): (n, d); random for large d."""
    if d > torch.quasirandom.SobolEngine.MAXDIM:
        return seed.normal(n, d, start=first)
    number = int(seed.uniform(1, 1) * 2**31)
    sequence: Any = torch.quasirandom.SobolEngine(d, True, number)  # type: ignore[no-untyped-call]
    u: Tensor = sequence.fast_forward(first).draw(n, dtype=torch.float64)
    x: Tensor = torch.special.ndtri(u.clamp(2**-40, 1 - 2**-40))
    return x
