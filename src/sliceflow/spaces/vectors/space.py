"""The space of vectors: how rows become a planned fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from sliceflow.devices import need_memory
from sliceflow.engine import conditions
from sliceflow.engine.random import Seed
from sliceflow.engine.transports import Auto
from sliceflow.errors import ParameterError, need
from sliceflow.models.identity import digest
from sliceflow.models.particles import Assigned
from sliceflow.models.ranks import Ranks
from sliceflow.neighbours.local import work_bytes
from sliceflow.neighbours.regressions import COMPONENTS
from sliceflow.spaces.vectors import plan as plans
from sliceflow.spaces.vectors.fit import VectorJob, VectorPart, assign_conditions, hold_out
from sliceflow.spaces.vectors.fitted import FittedVectors
from sliceflow.spaces.vectors.local import PARTICLES, LocalModel, is_local
from sliceflow.spaces.vectors.plan import VectorPlan, count_particles
from sliceflow.spaces.vectors.rows import VectorRows, read_rows
from sliceflow.spaces.vectors.smoothing import Smoothing
from sliceflow.spaces.vectors.units import Units

__all__ = ["VectorSpace", "as_conditions"]

_KINDS: dict[Any, Any] = {
    conditions.Labels: "labels", conditions.Columns: "columns", conditions.Mixed: "mixed"
}  # fmt: skip


@dataclass(frozen=True)
class VectorSpace:
    """Vectors, for one estimator."""

    parameters: Mapping[str, Any]  # the estimator's checked ones, and `options`, never None
    device: torch.device
    validate: Callable[[Any], np.ndarray]  # scikit-learn's check of the number and names of columns
    particle_conditions: np.ndarray | None = None  # y of the particles, if the user chose it

    def read(self, X: Any, y: Any, ranks: Ranks) -> VectorRows:
        if self.parameters["keep_rows"] and ranks.size > 1:
            advice = "fit without it, or in one process"
            raise ParameterError("keep_rows", True, "keeps all rows in one process", advice)
        return read_rows(X, y, self.validate, ranks)

    def digests(self) -> dict[str, str]:
        return {"particle_conditions": digest(self.particle_conditions)}

    def prepare(self, rows: VectorRows, seed: Seed, ranks: Ranks) -> VectorJob:
        if is_local(self.parameters, rows.condition, ranks):
            return self._prepare_local(rows, seed)
        if rows.condition is not None and math.isinf(self.parameters["amplifier"]):
            return self._prepare_classes(rows, seed, ranks)
        m = self.parameters["n_particles"]
        part = self._part(rows, seed, ranks, m, self.particle_conditions)
        return VectorJob(part.plan, (part,), self._fitted(part.plan, part.units, rows))

    def _fitted(self, plan: VectorPlan, units: Units, rows: VectorRows) -> FittedVectors:
        form: Any = dict(given=rows.given, form=rows.form, tensor=rows.tensor)
        return FittedVectors(plan, units, **form, device=self.device)

    def _part(
        self, rows: VectorRows, seed: Seed, ranks: Ranks, n_particles: int | None,
        y_p: np.ndarray | None = None, name: str = "",
    ) -> VectorPart:  # fmt: skip
        """One flow for all rows. Raises an error if it is impossible."""
        parameters, options = self.parameters, self.parameters["options"]
        units = Units.fit_to(rows.X, parameters["standardize"], ranks, rows.n)
        x, held = units.encode(rows.X), None
        if parameters["early_stopping"]:
            fraction = options.validation_fraction
            rows, x, held = hold_out(rows, x, fraction, seed.child("held out"), ranks, name)
        m = count_particles(n_particles, rows.n, rows.condition, y_p)
        need(m >= ranks.size, "n_particles", m, f"at least {ranks.size}, one per rank")
        self._need_clouds(rows, m, ranks)
        amplifier = float(parameters["amplifier"]) if rows.condition is not None else 0.0
        codes = rows.codes if amplifier else None
        smoothing = Smoothing.choose(x, codes, rows.n, options, units.heavy_tailed, ranks)
        assigned = assign_conditions(rows, m, y_p, amplifier, seed.child("conditions"))
        plan = self._plan(rows, m, amplifier, assigned, smoothing, ranks)
        data = rows, x, held, units, assigned, smoothing if smoothing.h else None
        return VectorPart(name, plan, *data, seed, self.device, ranks)

    def _need_clouds(self, rows: VectorRows, m: int, ranks: Ranks) -> None:
        """Raise an error at once if the particles alone do not fit into memory."""
        d = rows.X.shape[1]
        nbytes = 3 * rows.dtype.itemsize * d * ranks.share(m).count
        need_memory(nbytes, self.device, f"n_particles={m} of {d} columns need", "lower n_particles")

    def _plan(
        self, rows: VectorRows, m: int, amplifier: float, assigned: Assigned, smoothing: Smoothing,
        ranks: Ranks,
    ) -> VectorPlan:  # fmt: skip
        parameters, options, n = self.parameters, self.parameters["options"], rows.n
        n_moved, transport = assigned.n_moved(m), parameters["transport"]
        transport = plans.TRANSPORTS[transport]() if isinstance(transport, str) else transport
        if isinstance(transport, Auto):
            transport = transport.choose(n_moved + (max(n, n_moved) if smoothing.h else n), ranks.size)
        kind = _KINDS.get(type(rows.condition), "none")
        if options.shrinkage and kind == "columns" and amplifier:
            fact = "does not work with a continuous y"
            raise ParameterError("shrinkage", options.shrinkage, fact, "set it to 0")
        plan = VectorPlan(
            device=str(self.device),
            n_ranks=ranks.size,
            n_rows=n,
            n_columns=rows.X.shape[1],
            dtype="float32" if rows.dtype == torch.float32 else "float64",
            n_particles=m,
            n_moved=n_moved,
            condition=kind,
            n_conditions=0 if rows.condition is None else rows.condition.width,
            amplifier=amplifier,
            frame=plans.choose_frame(parameters["frame"], rows.X.shape[1], amplifier, ranks.size),
            transport=transport,
            n_steps=int(parameters["n_steps"]),
            entropy=float(parameters["entropy"]),
            standardize=bool(parameters["standardize"]),
            early_stopping=bool(parameters["early_stopping"]),
            options=options,
            n_knots=plans.count_knots(int(options.n_knots), assigned.codes if amplifier else None),
            smoothing=smoothing.h,
            smoothing_from=smoothing.why,
        )
        if any(stage.exact for stage in plan.stages()):
            # 65,536 if there are few directions: 1 % quantiles then have an error of a few per cent.
            n_fresh = max(n_moved, min(1 << 16, (1 << 18) // plan.n_directions))
            plan = replace(plan, n_fresh=n_fresh)
        here, particles = len(rows), ranks.share(n_moved).count
        nbytes, seconds = plans.fit_bytes(plan, here, particles), plans.fit_seconds(plan)
        plan = replace(plan, nbytes=nbytes, seconds=seconds)
        what = f"n_particles={particles} with {here} rows of {plan.n_columns} columns and"
        advice = "lower n_particles, the number of columns, directions or bins, or n_knots"
        plan.need_memory(f"{what} {plan.n_directions} directions needs", advice)
        return plan

    def _prepare_classes(self, rows: VectorRows, seed: Seed, ranks: Ranks) -> VectorJob:
        """One flow per class (ξ = ∞)."""
        condition, codes, y, y_p = rows.condition, rows.codes, rows.y, self.particle_conditions
        if not isinstance(condition, conditions.Labels) or codes is None or y is None:
            fact = "amplifier=inf fits each class separately, but y is continuous"
            raise ValueError(f"{fact}; use a finite amplifier, or pass class labels (n,)")
        if ranks.size > 1:
            fact = "amplifier=inf fits each class separately, which several ranks cannot do"
            raise ValueError(f"{fact}; use a finite amplifier, or fit in one process")
        m = count_particles(self.parameters["n_particles"], len(codes), condition, y_p)
        if y_p is None:
            self._need_clouds(rows, m, ranks)  # before codes are allocated
            numbers = conditions.proportional(codes, m, seed.child("conditions"), least=1)
            y_p, codes_p = y[numbers.numpy()], codes[numbers]
        else:
            codes_p = condition.encode(y_p)
            if codes_p.dim() != 1:
                raise ValueError("amplifier=inf needs class labels as particle_conditions, not weights")
        sizes = torch.bincount(codes_p, minlength=condition.width).tolist()
        names = map(conditions.format_label, condition.classes)
        parts = tuple(
            self._part(rows.of_class(c), seed.child("class", c), ranks, max(1, size), name=name)
            for c, (size, name) in enumerate(zip(sizes, names, strict=True))
        )
        plan = _joint_plan([part.plan for part in parts], len(codes_p))
        units = Units.fit_to(rows.X, self.parameters["standardize"], ranks, rows.n)
        return VectorJob(plan, parts, self._fitted(plan, units, rows), y_p, codes_p)

    def _prepare_local(self, rows: VectorRows, seed: Seed) -> VectorJob:
        """Keep the rows; the particles are samples at their own conditions."""
        parameters, y_p = self.parameters, self.particle_conditions
        units = Units.fit_to(rows.X, parameters["standardize"], Ranks(), rows.n)
        given: Any = rows.given
        codes = given.codes
        m = parameters["n_particles"] or (PARTICLES if y_p is None else None)
        m = count_particles(m, rows.n, rows.condition, y_p)
        still, xi = (
            replace(self, parameters={**parameters, "n_steps": 0}),
            float(parameters["amplifier"]),
        )
        plan = still._plan(rows, m, xi, Assigned(), Smoothing(0.0), Ranks())
        columns, d = codes.shape[1], rows.X.shape[1]
        nbytes = plan.nbytes + 8 * 4 * rows.n * (d + columns) + work_bytes(rows.n, columns)
        plan = replace(plan, nbytes=nbytes, seconds=0.0, components=COMPONENTS)
        plan.need_memory(f"{rows.n} rows of {d} columns, kept for conditions, need", "keep fewer")
        labelled = isinstance(rows.condition, conditions.Mixed)
        local = LocalModel.fit_to(units.encode(rows.X).double(), codes, labelled)
        settings, about = tuple(part.settings for part in local.parts), local.description
        plan = replace(plan, distances=about, neighbours=max(own.k for own in settings))
        if y_p is None:
            numbers = conditions.even_rows(rows.n, m, seed.child("conditions"))
            y_p, codes_p = given.y[numbers.numpy()], codes[numbers]
        else:
            codes_p = given.condition.encode(y_p)
        fitted = replace(self._fitted(plan, units, rows), settings=settings, local=local)
        return VectorJob(plan, (), fitted, y_p, codes_p, seed)


def _joint_plan(parts: list[VectorPlan], n_particles: int) -> VectorPlan:
    """The plan of all classes, which keep `n_particles` together."""
    largest = max(parts, key=lambda plan: plan.n_moved)

    def stays(plan: VectorPlan) -> int:
        clouds = 8 * plan.n_columns * (plan.n_rows + plan.n_particles)
        return clouds + plans.model_bytes(plan, plan.n_moved)

    nbytes = sum(map(stays, parts)) + max(plan.nbytes - stays(plan) for plan in parts)
    why = largest.smoothing_from
    plan = replace(
        largest,
        n_rows=sum(plan.n_rows for plan in parts),
        n_particles=n_particles,
        n_moved=sum(plan.n_moved for plan in parts),
        condition="labels",
        n_conditions=len(parts),
        amplifier=math.inf,
        smoothing_from=why and f"{why}, here of the largest class",
        nbytes=nbytes,
        seconds=sum(plan.seconds for plan in parts),
    )
    what = f"n_particles={n_particles} with {len(parts)} classes, each with maps of its own, needs"
    plan.need_memory(what, "lower n_steps or n_knots")
    return plan


def as_conditions(particle_conditions: Any) -> np.ndarray | None:
    """The user's `particle_conditions` as an array."""
    y = particle_conditions
    return None if y is None else np.atleast_1d(conditions.as_array(y))
