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
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sliceflow.base.checkpoints import FlowRun
from sliceflow.base.distributed import across_ranks
from sliceflow.engine.allocation import proportional_indices, y_of_added_particles
from sliceflow.engine.batches import DataTarget
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import FlowY, SeparateClassIndices
from sliceflow.engine.events import FlowListener
from sliceflow.engine.flow import FlowSpec, FlowState, ParticleNoise, replay, simulate
from sliceflow.engine.model_steps import ModelStep
from sliceflow.engine.random import Seed
from sliceflow.estimators.vectors.plan import AXIS_TRANSPORT, VectorPlan
from sliceflow.estimators.vectors.units import as_cloud

if TYPE_CHECKING:
    from sliceflow.estimators.vectors.fit import PlannedVectorFit


@dataclass(frozen=True)
class AxisSteps:
    """The axis steps of a fit, which are the last stage of its flow."""

    tuned: PlannedVectorFit
    data_cloud: Cloud  # this rank's data, as `TrainingVectors.axis_cloud` gives them

    def move_kept_particles(self, kept: Cloud, flow: FlowRun) -> None:
        """Move the kept particles, in place, by axis steps that are fitted to them.

        Parameters
        ----------
        kept : the kept particles of this rank, in the user's order
        flow : what has moved them so far: steps and seconds are counted on, and its
            listeners are called after each of these steps
        """
        spec = self._spec()
        # No model stores these maps.
        stages = [replace(stage, stores_maps=False) for stage in spec.stages]
        spec = replace(spec, stages=stages)
        kept_y = self.tuned.allocation.kept_y
        state = replace(flow.state, model_steps=[])
        self._simulate(spec, kept, kept_y, state, flow.listeners)

    def fit_to_fresh_particles(
        self, flow_steps: Sequence[ModelStep]
    ) -> list[ModelStep]:
        """Fit axis steps to fresh particles that the flow's model has moved.

        Returns the steps of that model, and then the axis steps.
        """
        fresh, fresh_y = _fresh_particles(self.tuned, flow_steps)
        state = FlowState(model_steps=list(flow_steps))
        self._simulate(self._spec(), fresh, fresh_y, state, listeners=())
        return state.model_steps

    def _spec(self) -> FlowSpec:
        """The flow of the plan, on all ranks: only its axis steps will run."""
        spec = self.tuned.plan.flow_spec(self.tuned.seed, self.tuned.device)
        return across_ranks(spec, self.tuned.ranks)

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
        run_axis_steps = partial(
            simulate,
            spec,
            target=DataTarget.from_cloud(self.data_cloud, batches),
            stages=self.tuned.plan.axis_stages,
            listeners=listeners,
            state=state,
        )
        if isinstance(y_p, SeparateClassIndices):
            # One process has all particles: several have no maps of every class.
            with particles.in_class_order() as (sorted_particles, _):
                run_axis_steps(sorted_particles)
        else:
            run_axis_steps(particles)


def _fresh_particles(
    tuned: PlannedVectorFit, flow_steps: Sequence[ModelStep]
) -> tuple[Cloud, FlowY | None]:
    """Draw fresh particles of this rank, and move them by the steps of a model.

    The second result is the y of those of all ranks.
    """
    plan = tuned.plan
    seed = tuned.seed.child("fresh")
    n_fresh_particles = plan.n_fresh_particles
    y = None
    if tuned.allocation.row_y is not None:
        y = _fresh_y(plan, tuned.allocation.row_y, seed)
        n_fresh_particles = len(y)
    shard = tuned.ranks.own_shard(n_fresh_particles)
    own_y = None
    if y is not None:
        own_y = y.take(shard.slice)
    starts = seed.child("start")
    rows = sobol_normal(shard.first, shard.count, plan.n_columns, starts)
    fresh = as_cloud(rows.to(plan.torch_dtype), own_y, tuned.device)
    particle_noise = ParticleNoise(seed.child("particles"), shard.first)
    spec = plan.flow_spec(tuned.seed, tuned.device)
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
