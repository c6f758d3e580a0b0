"""The algorithm: move particles onto data step by step, and replay the steps.

This is Algorithm 1 of Du et al. (ICML 2023) with exchangeable parts: the stages with
their frames, transports and subspaces, the target, and the condition. `simulate` is the
method; read it first.

The engine stores particles and data as columns, (d, n). Projections (h, n) then have
the values of each direction side by side in memory, which makes sorting and counting
fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sliceflow.engine.batches import Target, divide
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.compact import CompactMap, ModelStep, thin
from sliceflow.engine.events import Event, Listener, notify, now
from sliceflow.engine.frames import AnyFrame, Frame, freeing_rotation_pools
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.transports import FittedMap, TransportMap

# Bytes for the projections of one chunk of particles: bounds the memory of a step.
PROJECTION_BYTES = 1 << 28
# A stage has converged if at most this share of its maps still moves anything.
CONVERGENCE_TOL = 0.05
# Convergence is checked every so many steps: reading the share waits for a GPU.
CONVERGENCE_CHECK_EVERY = 4
# Random numbers drawn at a time for the particles: bounds the memory.
_NUMBERS_PER_DRAW = 1 << 26
# The fewest particles moved or drawn at a time, however large each of them is.
_MIN_CHUNK = 256


@freeing_rotation_pools()
def simulate(
    flow: Flow,
    particles: Cloud,
    target: Target,
    noise: ParticleNoise,
    *,
    listeners: Sequence[Listener] = (),
    state: FlowState | None = None,
    n_stages: int | None = None,
) -> list[ModelStep]:
    """Move the particles onto the target, in place, and return the model.

    The model is the list of steps, which `replay` applies to other particles. Only
    ``particles.x`` is written to: conditions never move. A stage ends early if a
    listener returns True, or if hardly any map moves anything.

    Parameters
    ----------
    flow : the stages, the seed of the frames, and the amplifier of the condition
    particles : the points to move, x (d, M)
    target : the data, and which particles and data each step is fitted to
    noise : the random numbers of the entropy term
    listeners : called after every step
    state : the progress of an earlier simulation to resume, with the `particles` as
        they were then; it is updated after every step
    n_stages : stop after this many stages; None runs all of them
    """
    if state is None:
        state = FlowState()
    for step in flow.iter_steps(particles, state, n_stages):
        data, batch = target.at(step)
        frame = step.frame(data)
        z_p = frame.project(step.particles, batch.particles)
        z_q = frame.project(data, batch.data)
        fit = step.stage.transport.fit(z_p, z_q, batch)
        if batch.particles is None:  # the projections of all particles are known
            step.move(frame, fit.map, noise, z=z_p, dz=fit.dz)
        else:
            step.move(frame, fit.map, noise)
        state.model += step.stored(frame, fit.map)
        state.advance(step, fit, listeners)
    return state.model


def replay(
    flow: Flow,
    model: Sequence[ModelStep],
    particles: Cloud,
    noise: ParticleNoise,
    after_step: Callable[[Step], None] = lambda step: None,
) -> None:
    """Move other particles, in place, by the steps of a model.

    `after_step` is called after each of them.
    """
    steps_of_stage: dict[int, list[ModelStep]] = {}
    for model_step in model:
        steps_of_stage.setdefault(model_step.stage, []).append(model_step)
    steps_before = 0
    for stage_index, moved in flow.iter_stages(particles):
        for model_step in steps_of_stage.get(stage_index, []):
            step = Step(
                flow=flow,
                stage_index=stage_index,
                index=model_step.step,
                steps_before=steps_before,
                particles=moved,
                all_coordinates=particles,
            )
            frame = step.frame(theta=model_step.theta)
            step.move(frame, model_step.expanded(), noise)
            after_step(step)
            steps_before += 1


@dataclass(frozen=True)
class Flow:
    """The settings of a flow, for `simulate` and `replay`."""

    stages: Sequence[Stage]  # the schedule
    seed: Seed  # root of the frames' seeds
    condition_dim: int = 0  # l, the width of the condition; 0 for none
    # ξ. With 0 the condition is ignored: the unconditional flow, bit for bit. With ∞
    # each class has its own maps.
    amplifier: float = 10.0
    entropy: float = 0.0  # λ of the entropy-regularised flow (Liutkus et al. 2019)
    # Bytes for projections; particles that need more are moved in chunks.
    budget: int = PROJECTION_BYTES

    @property
    def conditional(self) -> bool:
        """Whether the condition has any effect."""
        return self.condition_dim > 0 and self.amplifier > 0

    @property
    def per_class(self) -> bool:
        """Whether each class has its own maps."""
        return self.conditional and math.isinf(self.amplifier)

    @property
    def n_shared(self) -> int:
        """The width of the condition if all conditions share the maps, else 0."""
        if self.conditional and not self.per_class:
            return self.condition_dim
        return 0

    def target(self, particles: Cloud, data: Cloud, stage_index: int = 0) -> Target:
        """The data as a target, in batches for the transport of a stage."""
        max_samples = None
        if self.stages:
            max_samples = self.stages[stage_index].transport.max_samples
        batches = divide(
            m=particles.x.shape[1],
            n=data.x.shape[1],
            max_samples=max_samples,
            codes_p=particles.y if self.n_shared else None,
            codes_q=data.y if self.n_shared else None,
            seed=self.seed.child("batches"),
            device=data.x.device,
        )
        return Target.from_cloud(data, batches)

    def iter_stages(
        self, particles: Cloud, first: int = 0, end: int | None = None
    ) -> Iterator[tuple[int, Cloud]]:
        """The index of each stage from `first` on, and the particles in its subspace.

        The caller moves these. Their change is added to `particles` afterwards.
        """
        if end is None:
            end = len(self.stages)
        for stage_index in range(first, end):
            subspace = self.stages[stage_index].subspace
            before = subspace.restrict(particles.x)
            if before is particles.x:  # the whole space
                yield stage_index, particles
            else:
                moved = replace(particles, x=before.clone())
                yield stage_index, moved
                particles.x += subspace.extend(moved.x - before)
            subspace.finish(particles.x)

    def iter_steps(
        self, particles: Cloud, state: FlowState, n_stages: int | None = None
    ) -> Iterator[Step]:
        """The steps that are left. The caller counts them by `state.advance`."""
        state.started_at = now() - state.seconds
        for stage_index, moved in self.iter_stages(
            particles, state.stage_index, n_stages
        ):
            if state.coordinates is not None:  # resumes in the middle of this stage
                moved.x.copy_(state.coordinates)
            state.coordinates = None if moved is particles else moved.x
            while state.step_in_stage < self.stages[stage_index].n_steps:
                yield Step(
                    flow=self,
                    stage_index=stage_index,
                    index=state.step_in_stage,
                    steps_before=state.steps_done,
                    particles=moved,
                    all_coordinates=particles,
                )
            state.stage_index = stage_index + 1
            state.step_in_stage = 0
            state.coordinates = None


@dataclass(frozen=True)
class Step:
    """One step of a flow, and the particles that it moves."""

    flow: Flow
    stage_index: int
    index: int  # of the step in its stage
    steps_before: int  # steps done before, in all stages
    particles: Cloud  # in the subspace of the stage
    all_coordinates: Cloud  # in the whole space, as they were before the stage

    @property
    def stage(self) -> Stage:
        """The stage of the step."""
        return self.flow.stages[self.stage_index]

    def frame(self, data: Cloud | None = None, theta: Tensor | None = None) -> AnyFrame:
        """The directions of the step.

        They are `theta` (h, d) if a model has stored them. Otherwise they are drawn
        from the seed of the step; some kinds of frames fit them to the particles and
        `data`.
        """
        x = self.particles.x
        if theta is not None:
            return Frame(theta.to(x), None)
        branch = self.stage.branch
        if not branch:
            branch = ("frame", self.stage_index)
        return self.stage.frame_kind.draw(
            self.flow.seed.child(*branch),
            self.index,
            x,
            self.flow.n_shared,
            None if data is None else data.x,
        ).amplified(self.flow.amplifier)

    def move(
        self,
        frame: AnyFrame,
        transport_map: TransportMap,
        noise: ParticleNoise,
        z: Tensor | None = None,
        dz: Tensor | None = None,
    ) -> None:
        """x += s·Θᵀ(T(z) − z)/c + √(2λη)·ε in place, with step size s and η = s·d.

        η is the paper's step size. The projections `z` (h, M) of all particles and
        their displacements `dz` = T(z) − z are used if they are known. Otherwise
        particles are projected and moved in chunks.
        """
        step_size = self.stage.step_size_at(self.index)
        if z is not None and dz is None and self._is_worth_keeping(z):
            dz = transport_map.displace(z, self.particles)
        if dz is not None:
            self.particles.x.add_(frame.lift(dz), alpha=step_size)
        else:
            self._move_in_chunks(frame, transport_map, step_size)
        if self.flow.entropy > 0 and not self.stage.matches_marginals:
            self._add_noise(noise, step_size)

    def _is_worth_keeping(self, z: Tensor) -> bool:
        """Whether to read projections again: a GPU computes them faster."""
        return z.device.type == "cpu" and z.nbytes <= self.flow.budget

    def _move_in_chunks(
        self, frame: AnyFrame, transport_map: TransportMap, step_size: float
    ) -> None:
        """Project and move so many particles at a time that memory suffices."""
        d, n = self.particles.x.shape
        bytes_per_particle = self.particles.x.itemsize * max(frame.n_directions, d)
        chunk = max(_MIN_CHUNK, self.flow.budget // bytes_per_particle)
        for first in range(0, n, chunk):
            part = self.particles.part(slice(first, first + chunk))
            frame.move(part, transport_map, step_size)

    def _add_noise(self, noise: ParticleNoise, step_size: float) -> None:
        """Add the noise √(2λη)·ε of the entropy term, with η = step_size·d."""
        x = self.particles.x
        eta = step_size * len(x)
        epsilon = torch.empty_like(x)
        noise.child("entropy", self.stage_index, self.index).fill(epsilon)
        x.add_(epsilon, alpha=math.sqrt(2 * self.flow.entropy * eta))

    def stored(self, frame: AnyFrame, transport_map: TransportMap) -> list[ModelStep]:
        """What a model stores of the step: nothing, or its maps with fewer knots."""
        stage = self.stage
        if stage.n_knots == 0:
            return []
        stored_map: TransportMap | CompactMap = transport_map
        if stage.n_knots is not None:
            stored_map = thin(
                transport_map,
                stage.n_knots,
                max_displacement=stage.max_displacement,
                shared=self.flow.n_shared > 0,
                tails=stage.matches_marginals,
            )
        return [ModelStep(self.stage_index, self.index, stored_map, frame.stored)]

    def positions(self) -> Tensor:
        """A copy of the particles (d, n) in the whole space, as they are now."""
        x = self.all_coordinates.x
        if self.particles is self.all_coordinates:
            return x.clone()
        subspace = self.stage.subspace
        return x + subspace.extend(self.particles.x - subspace.restrict(x))


@dataclass
class FlowState:
    """The progress of a simulation: where it starts, and its state after every step."""

    stage_index: int = 0  # the stage of the next step
    step_in_stage: int = 0  # the next step; after the last one, their number
    steps_done: int = 0  # in all stages
    steps_skipped: int = 0  # of stages that ended early
    seconds: float = 0.0  # time spent, also before the simulation was resumed
    model: list[ModelStep] = field(default_factory=list)
    # The particles in the subspace of the stage; None if that is the whole space.
    coordinates: Tensor | None = None
    after_step: Callable[[], None] = lambda: None
    started_at: float = 0.0  # the time `now()` would have been at 0 seconds

    def advance(
        self, step: Step, fit: FittedMap, listeners: Sequence[Listener]
    ) -> None:
        """Count a step and notify the listeners; end a stage that is finished."""
        self.stage_index = step.stage_index
        self.step_in_stage = step.index + 1
        self.steps_done += 1
        self.seconds = now() - self.started_at

        steps_left = step.stage.n_steps - self.step_in_stage
        converged = self._has_converged(fit)
        steps_planned = sum(stage.n_steps for stage in step.flow.stages)
        steps_total = steps_planned - self.steps_skipped
        if converged:
            steps_total -= steps_left
        event = Event(
            stage=step.stage.name,
            stage_index=step.stage_index,
            step=step.index,
            steps_done=self.steps_done,
            steps_total=steps_total,
            distance=fit.cost.mean().sqrt(),
            seconds=self.seconds,
            particles=step.particles.x,
            active_fraction=fit.active_fraction,
            stage_steps=step.stage.n_steps,
        )
        if notify(listeners, event) or converged:
            self.steps_skipped += steps_left
            self.step_in_stage = step.stage.n_steps
        self.after_step()

    def _has_converged(self, fit: FittedMap) -> bool:
        """Whether hardly any map moves anything, if it is time to check that."""
        if (
            fit.active_fraction is None
            or self.step_in_stage % CONVERGENCE_CHECK_EVERY != 0
        ):
            return False
        return float(fit.active_fraction) <= CONVERGENCE_TOL


@dataclass(frozen=True)
class ParticleNoise:
    """The particles' random numbers: particle j uses row `first + j`.

    So a particle's numbers do not depend on the number of particles or on its chunk.
    """

    seed: Seed
    first: int = 0

    def child(self, *names: str | int) -> ParticleNoise:
        """The numbers of the same particles at another node of the seed tree."""
        return ParticleNoise(self.seed.child(*names), self.first)

    def fill(self, x: Tensor) -> Tensor:
        """Fill x (d, n) with N(0, I) and return it."""
        d, n = x.shape
        chunk = max(_MIN_CHUNK, _NUMBERS_PER_DRAW // d)
        for first in range(0, n, chunk):
            columns = x[:, first : first + chunk]
            numbers = self.seed.normal(
                columns.shape[1],
                d,
                start=self.first + first,
                dtype=x.dtype,
                device=x.device,
            )
            columns.copy_(numbers.T)
        return x
