"""Axis steps, the last ones of a fit of vectors: they make columns exact.

The steps of the flow place the particles that they were fitted to better than fresh
ones. So axis steps are fitted twice, each time from where the flow ended: once to the
particles that the user keeps, and once to fresh particles, for the model. The first
maps are thrown away, and the particles of the second.

Checkpoints do not see these steps, which are few: a fit that is resumed after its flow
does them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sliceflow.base.checkpoints import RunningFlow
from sliceflow.base.particle_allocation import ParticleGroup
from sliceflow.base.ranks import Communicator, Shard
from sliceflow.engine.batches import Batches, DataTarget
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import FlowY
from sliceflow.engine.events import FlowEvent, FlowListener
from sliceflow.engine.flow import FlowSpec, FlowState, ParticleRng, replay, simulate
from sliceflow.engine.model_steps import ModelStep
from sliceflow.engine.proportions import proportional_indices, y_with_added_particles
from sliceflow.engine.random import Seed
from sliceflow.estimators.vectors.plan import VectorPlan


@dataclass(frozen=True, eq=False)
class AxisSteps:
    """The axis steps of a flow.

    Attributes
    ----------
    spec : the flow, on all ranks
    stage_indices : of its stages of axis steps
    data_cloud : this rank's data, as `TrainingVectors.axis_cloud` gives them
    make_batches : divides particles and data into batches
    """

    spec: FlowSpec
    stage_indices: range
    data_cloud: Cloud
    make_batches: Callable[[ParticleGroup], Batches]

    def move_kept_particles(
        self, kept_cloud: Cloud, group: ParticleGroup, run: RunningFlow
    ) -> int:
        """Move the kept particles, in place, by axis steps that are fitted to them.

        Returns the number of steps: a listener may end the stage early.

        Parameters
        ----------
        kept_cloud : the kept particles of this rank, in the user's order
        group : those of all ranks
        run : what has moved them so far: steps and seconds are counted on, and its
            listeners are called after each of these steps
        """
        # No model stores these maps.
        stages = [replace(stage, stores_maps=False) for stage in self.spec.stages]
        spec = replace(self.spec, stages=stages)
        state = replace(run.state, model_steps=[])
        self._simulate(spec, kept_cloud, group, state, run.listeners)
        return state.steps_done - run.state.steps_done

    def fit_to_fresh_particles(
        self,
        fresh: FreshParticles,
        flow_steps: Sequence[ModelStep],
        n_axis_steps: int,
    ) -> list[ModelStep]:
        """Fit axis steps to fresh particles that the flow's model moves first.

        There are `n_axis_steps` of them, as many as the kept particles had. Returns the
        steps of that model, and then the axis steps.
        """

        def are_done(event: FlowEvent) -> bool:
            return event.steps_done >= n_axis_steps

        replay(self.spec, flow_steps, fresh.cloud, fresh.particle_rng)
        state = FlowState(model_steps=list(flow_steps))
        self._simulate(self.spec, fresh.cloud, fresh.group, state, [are_done])
        return state.model_steps

    def _simulate(
        self,
        spec: FlowSpec,
        particles: Cloud,
        group: ParticleGroup,
        state: FlowState,
        listeners: Sequence[FlowListener],
    ) -> None:
        """Make the columns of this rank's particles exact, in place.

        `group` are the particles of all ranks. If each class has its own maps, the
        particles are sorted by class for the steps, and put back after the last.
        """
        with particles.in_class_order() as (moving, order):
            if order is not None:
                # One process has all particles: several have no maps of every class.
                group = replace(group, y=moving.y)
            target = DataTarget.from_cloud(self.data_cloud, self.make_batches(group))
            simulate(
                spec,
                moving,
                target,
                stage_indices=self.stage_indices,
                listeners=listeners,
                state=state,
            )


@dataclass(frozen=True, eq=False)
class FreshParticles:
    """New particles, where a flow begins: those of this rank, and the group of all."""

    cloud: Cloud
    group: ParticleGroup
    particle_rng: ParticleRng

    @classmethod
    def draw(
        cls,
        plan: VectorPlan,
        row_y: FlowY | None,
        seed: Seed,
        ranks: Communicator,
        device: torch.device,
    ) -> FreshParticles:
        """Draw the fresh particles of a fit with this plan, and this y of its rows."""
        seed = seed.child("fresh")
        group = ParticleGroup(plan.n_fresh_particles)
        if row_y is not None:
            y = _fresh_y(plan, row_y, seed)
            group = ParticleGroup(len(y), y)
        own = group.own_part(ranks)
        starts = seed.child("start")
        rows = sobol_normal(own.shard, plan.n_columns, starts)
        cloud = Cloud.from_rows(rows.to(plan.torch_dtype), own.y, device)
        return cls(cloud, group, ParticleRng(seed.child("particles"), own.shard.first))


def _fresh_y(plan: VectorPlan, row_y: FlowY, seed: Seed) -> FlowY:
    """Conditions of fresh particles, in proportion, with enough of each class."""
    indices = proportional_indices(
        row_y, plan.n_fresh_particles, seed.child("conditions")
    )
    y = row_y.take(indices)
    return y_with_added_particles(y_p=y, y_q=row_y, seed=seed)


def sobol_normal(shard: Shard, d: int, seed: Seed) -> Tensor:
    """These points of a Sobol sequence, mapped to N(0, I): (n, d).

    They are random for more columns than the sequence is known for.
    """
    engine = torch.quasirandom.SobolEngine
    if d > engine.MAXDIM:
        return seed.normal(shard.count, d, first_row=shard.first)
    scramble_seed = int(seed.uniform(1, 1) * 2**31)
    sequence: Any = engine(d, True, scramble_seed)  # type: ignore[no-untyped-call]
    u: Tensor = sequence.fast_forward(shard.first).draw(
        shard.count, dtype=torch.float64
    )
    x: Tensor = torch.special.ndtri(u.clamp(2**-40, 1 - 2**-40))
    return x
