"""Axis steps, the last ones of a fit of vectors: they make columns exact.

The steps of the flow place the particles that they were fitted to better than fresh
ones. So axis steps are fitted twice, each time from where the flow ended: once to the
particles that the user keeps, and once to fresh particles, for the model. The first
maps are thrown away, and the particles of the second.

Checkpoints do not see these steps, which are few: a fit that is resumed after its flow
does them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sliceflow.base.distributed import across_ranks
from sliceflow.base.protocols import FinishedFlow
from sliceflow.engine.allocation import proportional_indices, y_of_added_particles
from sliceflow.engine.batches import DataTarget
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import FlowY, SeparateClassIndices
from sliceflow.engine.events import FlowListener
from sliceflow.engine.flow import FlowSpec, FlowState, ParticleNoise, replay, simulate
from sliceflow.engine.model_steps import ModelStep
from sliceflow.engine.random import Seed
from sliceflow.estimators.vectors.plan import AXIS_TRANSPORT, VectorPlan
from sliceflow.estimators.vectors.tuned import TunedVectorFit
from sliceflow.estimators.vectors.units import as_cloud


@dataclass(frozen=True)
class AxisSteps:
    """The axis steps of a fit, and this rank's data as they see them."""

    tuned: TunedVectorFit
    spec: FlowSpec  # the axis steps alone
    data_cloud: Cloud

    @classmethod
    def for_fit(cls, tuned: TunedVectorFit) -> AxisSteps:
        """The axis steps of a fit, on all ranks. Their data are drawn here."""
        spec = tuned.plan.axis_stage_spec(tuned.seed, tuned.device)
        return cls(tuned, across_ranks(spec, tuned.ranks), tuned.axis_cloud())

    def move_kept_particles(self, kept: Cloud, finished_flow: FinishedFlow) -> None:
        """Move the kept particles, in place, by axis steps that are fitted to them.

        Parameters
        ----------
        kept : the kept particles of this rank, in the user's order
        finished_flow : where the flow ended: steps and seconds are counted on, and its
            listeners are called after each of these steps
        """
        # No model stores these maps.
        stages = [replace(stage, stores_maps=False) for stage in self.spec.stages]
        spec = replace(self.spec, stages=stages)
        state = finished_flow.state.for_further_steps()
        kept_y = self.tuned.flow_conditions.kept_y
        self._simulate(spec, kept, kept_y, state, finished_flow.listeners)

    def extend_model(self, flow_steps: Sequence[ModelStep]) -> list[ModelStep]:
        """Fit axis steps to fresh particles, which the model's steps have moved.

        Returns these steps, and then the axis steps.
        """
        fresh, fresh_y = _fresh_particles(self.tuned, flow_steps)
        state = FlowState(model_steps=list(flow_steps))
        self._simulate(self.spec, fresh, fresh_y, state, listeners=())
        return state.model_steps

    def _simulate(
        self,
        spec: FlowSpec,
        particles: Cloud,
        y_p: FlowY | None,
        state: FlowState,
        listeners: Sequence[FlowListener],
    ) -> None:
        """Make the columns of this rank's particles exact, in place.

        `y_p` is the y of the particles of all ranks. If each class has its own maps,
        the particles are sorted by class for the steps, and put back after the last.
        """
        n_particles = particles.x.shape[1]
        batches = self.tuned.batches(n_particles, y_p, AXIS_TRANSPORT.batch_size)
        target = DataTarget.from_cloud(self.data_cloud, batches)
        if isinstance(y_p, SeparateClassIndices):
            # One process has all particles: several have no maps of every class.
            with particles.in_class_order() as (by_class, _):
                simulate(spec, by_class, target, listeners=listeners, state=state)
        else:
            simulate(spec, particles, target, listeners=listeners, state=state)


def _fresh_particles(
    tuned: TunedVectorFit, flow_steps: Sequence[ModelStep]
) -> tuple[Cloud, FlowY | None]:
    """Draw fresh particles of this rank, and move them by the steps of a model.

    The second result is the y of those of all ranks.
    """
    plan = tuned.plan
    seed = tuned.seed.child("fresh")
    n_fresh_particles = plan.n_fresh_particles
    y = None
    if tuned.flow_conditions.row_y is not None:
        y = _fresh_y(plan, tuned.flow_conditions.row_y, seed)
        n_fresh_particles = len(y)
    shard = tuned.ranks.own_shard(n_fresh_particles)
    own_y = None
    if y is not None:
        own_y = y.take(shard.slice)
    starts = seed.child("start")
    rows = sobol_normal(shard.first, shard.count, plan.n_columns, starts)
    fresh = as_cloud(rows.to(plan.torch_dtype), own_y, tuned.device)
    particle_noise = ParticleNoise(seed.child("particles"), shard.first)
    spec = plan.flow_stage_spec(tuned.seed, tuned.device)
    replay(spec, flow_steps, fresh, particle_noise)
    return fresh, y


def _fresh_y(plan: VectorPlan, row_y: FlowY, seed: Seed) -> FlowY:
    """Conditions of fresh particles, in proportion, with enough of each class."""
    indices = proportional_indices(
        row_y, plan.n_fresh_particles, seed.child("conditions")
    )
    y = row_y.take(indices)
    return y.concatenate(y_of_added_particles(y_p=y, y_q=row_y, seed=seed))


def sobol_normal(first: int, n: int, d: int, seed: Seed) -> Tensor:
    """Points `first` to first + n of a Sobol sequence, mapped to N(0, I): (n, d).

    They are random for more columns than the sequence is known for.
    """
    engine = torch.quasirandom.SobolEngine
    if d > engine.MAXDIM:
        return seed.normal(n, d, first_row=first)
    scramble_seed = int(seed.uniform(1, 1) * 2**31)
    sequence: Any = engine(d, True, scramble_seed)  # type: ignore[no-untyped-call]
    u: Tensor = sequence.fast_forward(first).draw(n, dtype=torch.float64)
    x: Tensor = torch.special.ndtri(u.clamp(2**-40, 1 - 2**-40))
    return x
