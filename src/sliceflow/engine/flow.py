"""The algorithm: move particles onto data step by step, and replay the steps.

This is Algorithm 1 of the paper with exchangeable parts: the stages with their frames,
transports and subspaces, the target, and the condition. `simulate` is the method; read
it first.

    C. Du, T. Li, T. Pang, S. Yan, M. Lin: Nonparametric Generative Modeling with
    Conditional Sliced-Wasserstein Flows. ICML 2023.

The entropy term, which is noise in every step, comes from

    A. Liutkus, U. Şimşekli, S. Majewski, A. Durmus, F.-R. Stöter: Sliced-Wasserstein
    Flows: Nonparametric Generative Modeling via Optimal Transport and Diffusions.
    ICML 2019.

Particles and data are *points* in d dimensions. The engine stores n points as the
columns of a tensor x (d, n); their projections along h directions are z (h, n). Each
direction is then one row, side by side in memory, which makes sorting and counting
fast. Throughout the engine d is the dimension, h the number of directions, l the
dimension of the condition, M and N are the numbers of particles and data, and C is the
number of classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from sliceflow.arrays import chunks
from sliceflow.engine.batches import Batch, Target
from sliceflow.engine.clouds import Cloud, Permutation, PointIndices
from sliceflow.engine.compression import Compression
from sliceflow.engine.encoded_y import (
    ClassIndices,
    EncodedY,
    FlowY,
    MixedY,
    SeparateClassIndices,
)
from sliceflow.engine.events import EventListener, FlowEvent, notify, now
from sliceflow.engine.frames import DenseFrame, Frame
from sliceflow.engine.maps import TransportMaps
from sliceflow.engine.model_steps import CompressedMaps, ModelStep
from sliceflow.engine.random import Seed
from sliceflow.engine.rotations import freeing_rotation_pools
from sliceflow.engine.schedule import Stage
from sliceflow.engine.transports import TransportSolution

# What a flow does with y. "unconditional": the flow ignores y. "shared": all conditions
# share the maps, and y offsets the projections. "separate": every class has maps of its
# own.
MapSharing = Literal["unconditional", "shared", "separate"]

# The projections of one chunk of particles have at most this many bytes, 256 MB, which
# bounds the memory of a step. Smaller chunks start more kernels.
PROJECTION_BYTES = 1 << 28
# A stage has converged if at most this fraction of its maps is not the identity. A
# larger one ends stages sooner, with less detail; a smaller one runs steps in which
# next to nothing moves.
CONVERGENCE_TOL = 0.05
# Convergence is checked once in this many steps, because reading the fraction makes the
# CPU wait for the GPU. A stage is at most three steps longer than with a check in every
# step.
CONVERGENCE_CHECK_EVERY = 4
# At most this many random numbers of particles are drawn at a time: 512 MB in float64.
_NUMBERS_PER_DRAW = 1 << 26
# The fewest particles moved or drawn at a time, however large a particle is: the work
# of a chunk must outweigh its start.
_MIN_CHUNK = 256


def do_nothing(moving: Cloud) -> None:
    """What `simulate` calls after a step if nothing is to be saved."""


def simulate(
    spec: FlowSpec,
    particles: Cloud,
    target: Target,
    particle_rng: ParticleRng | None = None,
    *,
    stage_indices: range | None = None,
    listeners: Sequence[EventListener[FlowEvent]] = (),
    state: FlowState | None = None,
    after_step: Callable[[Cloud], None] = do_nothing,
) -> list[ModelStep]:
    """Move the particles onto the target, in place, and return the model's steps.

    `replay` applies these steps to other particles. Only ``particles.x`` is written to:
    conditions never move. A stage ends early if a listener returns True, or if nearly
    all of its maps are the identity.

    If each class has its own maps, the particles must be sorted by class: the first
    lines of the module `clouds` follow these maps through a step.

    Parameters
    ----------
    spec : the stages, the seed of the frames, and the amplifier of the condition
    particles : the points to move, x (d, M)
    target : the data, and which particles and data each step is fitted to
    particle_rng : the random numbers of the particles, for the entropy term; None
        if no step adds noise
    stage_indices : the indices of the stages to run now; None runs all stages
    listeners : called after every step
    state : the progress of an earlier simulation, to resume it. The steps that it has
        done are not run again, and `particles` must be where it left them.
        `FlowState.advance` updates the state after every step
    after_step : called after every step, once the state is up to date, with the
        particles in the subspace of the stage: state and particles can be saved now
    """
    if stage_indices is None:
        stage_indices = range(len(spec.stages))
    if particle_rng is None and spec.adds_noise(stage_indices):
        raise ValueError("entropy adds noise: pass particle_rng, its random numbers")
    if state is None:
        state = FlowState()
    started_at = now() - state.seconds
    with freeing_rotation_pools():
        first = max(stage_indices.start, state.stage_index)
        for stage_index in range(first, stage_indices.stop):
            with spec.moving_in_subspace(stage_index, particles) as moving:
                state.enter_stage(stage_index, spec.stages[stage_index], moving)
                while not state.stage_is_over:
                    step = Step(
                        spec=spec,
                        stage_index=stage_index,
                        step_index=state.step_index,
                        steps_done=state.steps_done,
                        particles=moving,
                        particles_in_whole_space=particles,
                    )
                    data, batch = target.data_and_batch(step)
                    frame = step.make_frame(data)
                    z_p = frame.project(step.particles, batch.particle_selection)
                    z_q = frame.project(data, batch.data_selection)
                    solution = step.stage.transport.solve(z_p, z_q, batch)
                    dz = step.known_displacements(solution, z_p, batch)
                    step.move(frame, solution.maps, particle_rng, dz)
                    model_step = step.to_model_step(frame, solution.maps)
                    state.seconds = now() - started_at
                    state.advance(step, solution, model_step, listeners)
                    after_step(moving)
            state.leave_stage()
    return state.model_steps


def replay(
    spec: FlowSpec,
    steps: Sequence[ModelStep],
    particles: Cloud,
    particle_rng: ParticleRng,
    snapshots_after: Collection[int] = (),
) -> list[Tensor]:
    """Move other particles, in place, by the steps of a model.

    The particles may be in any order. If each class has its own maps, they are sorted
    by class for the steps, and put back into their own order after the last one.

    Returns
    -------
    snapshots : copies of the particles (d, n), in their own order. There is one after
        each number of steps in `snapshots_after`, from 1 to the number of all steps
    """
    y = as_flow_y(particles.y, spec.map_sharing, spec.condition_dim)
    with Cloud(particles.x, y).moving_in_class_order() as (moving, order):
        if order is None:
            return _replay_in_order(spec, steps, moving, particle_rng, snapshots_after)
        sorted_rng = replace(particle_rng, order=order)
        snapshots = _replay_in_order(spec, steps, moving, sorted_rng, snapshots_after)
    return [order.undo_on_x(x) for x in snapshots]


def _replay_in_order(
    spec: FlowSpec,
    steps: Sequence[ModelStep],
    particles: Cloud,
    particle_rng: ParticleRng,
    snapshots_after: Collection[int],
) -> list[Tensor]:
    """Move particles that are sorted by class if each class has its own maps."""
    steps_of_stage: dict[int, list[ModelStep]] = {}
    for model_step in steps:
        steps_of_stage.setdefault(model_step.stage_index, []).append(model_step)
    snapshots = []
    steps_done = 0
    for stage_index in range(len(spec.stages)):
        with spec.moving_in_subspace(stage_index, particles) as moving:
            for model_step in steps_of_stage.get(stage_index, []):
                step = Step(
                    spec=spec,
                    stage_index=stage_index,
                    step_index=model_step.step_index,
                    steps_done=steps_done,
                    particles=moving,
                    particles_in_whole_space=particles,
                )
                frame = step.make_frame(theta=model_step.theta)
                step.move(frame, model_step.expand_maps(), particle_rng)
                steps_done += 1
                if steps_done in snapshots_after:
                    snapshots.append(step.current_points())
    return snapshots


def resolve_map_sharing(amplifier: float, condition_dim: int) -> MapSharing:
    """What a flow does with a condition of l = `condition_dim`, for its amplifier ξ.

    Without a condition, l = 0, or with ξ = 0, the result is the unconditional flow, bit
    for bit. With ξ = ∞ each class has its own maps.

    The first lines of the module `clouds` follow separate maps through a step.
    """
    if condition_dim == 0 or amplifier == 0:
        return "unconditional"
    if math.isinf(amplifier):
        return "separate"
    return "shared"


def as_flow_y(
    y: EncodedY | None, sharing: MapSharing, condition_dim: int
) -> FlowY | None:
    """The y that a flow sees, for this sharing of maps.

    It is None without y, or if the flow ignores y. If each class has maps of its own,
    it is `SeparateClassIndices`.
    """
    if y is None or sharing == "unconditional":
        return None
    if isinstance(y, MixedY):
        raise TypeError("no flow takes labels and numbers")
    if sharing == "shared":
        return y
    if not isinstance(y, ClassIndices):
        raise TypeError(f"only classes have separate maps, not a {type(y).__name__}")
    return SeparateClassIndices(y.values, condition_dim)


@dataclass(frozen=True)
class FlowSpec:
    """The settings of a flow, for `simulate` and `replay`.

    Attributes
    ----------
    stages : the stages, in the order in which they run
    seed : the root of the seeds of all frames
    condition_dim : l, the number of classes, or of columns of a continuous condition; 0
        without a condition
    amplifier : ξ; see `resolve_map_sharing`
    entropy : λ of the entropy-regularized flow (Liutkus et al. 2019)
    max_projection_bytes : the most bytes of projections at a time. Particles whose
        projections need more are moved in chunks
    """

    stages: Sequence[Stage]
    seed: Seed
    condition_dim: int = 0
    amplifier: float = 10.0
    entropy: float = 0.0
    max_projection_bytes: int = PROJECTION_BYTES

    @property
    def map_sharing(self) -> MapSharing:
        """What the flow does with y: who shares maps, or that it ignores y."""
        return resolve_map_sharing(self.amplifier, self.condition_dim)

    @property
    def shared_condition_dim(self) -> int:
        """l if all conditions share the maps and offset projections; otherwise 0."""
        if self.map_sharing == "shared":
            return self.condition_dim
        return 0

    def adds_noise(self, stage_indices: Sequence[int]) -> bool:
        """Whether steps of these stages add the noise of the entropy term."""
        stages = [self.stages[i] for i in stage_indices]
        return self.entropy > 0 and not all(s.is_axis_stage for s in stages)

    def with_n_steps(self, stage_indices: Collection[int], n_steps: int) -> FlowSpec:
        """The same flow, with `n_steps` steps in each of these stages."""
        stages = list(self.stages)
        for stage_index in stage_indices:
            stages[stage_index] = replace(stages[stage_index], n_steps=n_steps)
        return replace(self, stages=stages)

    @contextmanager
    def moving_in_subspace(self, stage_index: int, particles: Cloud) -> Iterator[Cloud]:
        """The particles in the subspace of a stage, to move in place in a `with` block.

        In the whole space these are `particles` themselves. In any other subspace they
        are a copy of the particles' coordinates there, and `particles` stay as they
        were until the block ends: then they move as far as the coordinates did. If an
        error ends the block, the copy is lost, and `particles` stay as they were.
        """
        subspace = self.stages[stage_index].subspace
        if subspace.is_whole:
            yield particles
        else:
            before = subspace.restrict(particles.x)
            moving = replace(particles, x=before.clone())
            yield moving
            particles.x += subspace.embed(moving.x - before)
        subspace.clip_(particles.x)


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a flow, and the particles that it moves.

    Attributes
    ----------
    spec : the flow
    stage_index : the index of the stage
    step_index : the index of the step in its stage
    steps_done : the number of steps before this one, in all stages
    particles : the particles in the subspace of the stage, which the step moves
    particles_in_whole_space : the particles in the whole space: the same cloud if the
        stage moves them there. Otherwise they follow when the stage ends
    """

    spec: FlowSpec
    stage_index: int
    step_index: int
    steps_done: int
    particles: Cloud
    particles_in_whole_space: Cloud

    @property
    def stage(self) -> Stage:
        """The stage of the step."""
        return self.spec.stages[self.stage_index]

    def make_frame(
        self, data: Cloud | None = None, theta: Tensor | None = None
    ) -> Frame:
        """Make the frame of the step.

        Its directions are `theta` (h, d) if a model has stored them. Otherwise they are
        drawn from the seed of the step; some kinds of frames fit them to the particles
        and `data`.
        """
        x = self.particles.x
        if theta is not None:
            return DenseFrame(theta.to(x), None)
        frame_seed_path = self.stage.frame_seed_path
        if not frame_seed_path:
            frame_seed_path = ("frame", self.stage_index)
        return self.stage.frame_kind.make_frame(
            self.spec.seed.child(*frame_seed_path),
            self.step_index,
            x,
            self.spec.shared_condition_dim,
            None if data is None else data.x,
        ).amplified(self.spec.amplifier)

    def known_displacements(
        self, solution: TransportSolution, z_p: Tensor, batch: Batch
    ) -> Tensor | None:
        """T(z) − z (h, M) of all particles, if it is known or quickly computed.

        Otherwise the result is None, and `move` projects the particles again. That is
        necessary if z_p (h, m) is of a batch, not of all particles. It is better on a
        GPU, which projects faster than it reads, and if projections take much memory.
        """
        if not batch.uses_all_particles:
            return None
        if solution.dz is not None:
            return solution.dz
        if z_p.device.type == "cpu" and z_p.nbytes <= self.spec.max_projection_bytes:
            return solution.maps.displace(z_p, self.particles)
        return None

    def move(
        self,
        frame: Frame,
        maps: TransportMaps,
        particle_rng: ParticleRng | None,
        dz: Tensor | None = None,
    ) -> None:
        """x += s·Θᵀ(T(z) − z)/c + √(2λη)·ε in place, with step size s and η = s·d.

        η is the paper's step size. `dz` (h, M) is T(z) − z of all particles. If it is
        None, particles are projected and moved in chunks.
        """
        step_size = self.stage.step_size_at(self.step_index)
        if dz is not None:
            self.particles.x.add_(frame.lift(dz), alpha=step_size)
        else:
            self._move_in_chunks(frame, maps, step_size)
        if self.spec.entropy > 0 and not self.stage.is_axis_stage:
            assert particle_rng is not None, "noise takes random numbers"
            self._add_noise(particle_rng, step_size)

    def _move_in_chunks(
        self, frame: Frame, maps: TransportMaps, step_size: float
    ) -> None:
        """Project and move as many particles at a time as the limit of bytes allows."""
        d, n = self.particles.x.shape
        values_per_particle = max(frame.count_directions(d), d)
        bytes_per_particle = self.particles.x.itemsize * values_per_particle
        chunk_size = max(
            _MIN_CHUNK, self.spec.max_projection_bytes // bytes_per_particle
        )
        for part in chunks(n, chunk_size):
            frame.move(self.particles.take(part), maps, step_size)

    def _add_noise(self, particle_rng: ParticleRng, step_size: float) -> None:
        """Add the noise √(2λη)·ε of the entropy term, with η = step_size·d."""
        x = self.particles.x
        eta = step_size * len(x)
        epsilon = torch.empty_like(x)
        particle_rng.fill(epsilon, "entropy", self.stage_index, self.step_index)
        x.add_(epsilon, alpha=math.sqrt(2 * self.spec.entropy * eta))

    def to_model_step(self, frame: Frame, maps: TransportMaps) -> ModelStep | None:
        """The step with compressed maps; None if the model does not store the stage."""
        stage = self.stage
        if not stage.stores_maps:
            return None
        model_maps: TransportMaps | CompressedMaps = maps
        if stage.max_knots is not None:
            compression = Compression(
                stage.max_knots,
                stage.max_displacement,
                shared_by_conditions=self.spec.shared_condition_dim > 0,
                keep_tails=stage.is_axis_stage,
            )
            model_maps = compression.compress(maps)
        return ModelStep(
            self.stage_index, self.step_index, model_maps, frame.theta_to_store
        )

    def current_points(self) -> Tensor:
        """A copy of the particles (d, n) in the whole space, as they are now."""
        x = self.particles_in_whole_space.x
        subspace = self.stage.subspace
        if subspace.is_whole:
            return x.clone()
        return x + subspace.embed(self.particles.x - subspace.restrict(x))


@dataclass(eq=False)
class FlowState:
    """The progress of a simulation: where it starts, and its state after each step.

    Attributes
    ----------
    stage_index : the index of the stage of the next step
    step_index : the index of the next step in its stage
    stage_is_over : whether the stage is over, by its last step or early
    steps_done : the number of steps done, in all stages
    steps_skipped : the number of steps left out because stages ended early
    seconds : the time spent, including the time before the simulation was resumed
    model_steps : the steps that the model stores
    coordinates_to_restore : where the particles (k, M) were, in the subspace of the
        stage, when an earlier simulation ended in this stage. None once the stage has
        been resumed, and in the whole space
    """

    stage_index: int = 0
    step_index: int = 0
    stage_is_over: bool = False
    steps_done: int = 0
    steps_skipped: int = 0
    seconds: float = 0.0
    model_steps: list[ModelStep] = field(default_factory=list)
    coordinates_to_restore: Tensor | None = None

    def enter_stage(self, stage_index: int, stage: Stage, moving: Cloud) -> None:
        """Begin a stage. If it is resumed, put the particles where they were.

        `moving` are the particles in the subspace of the stage; see
        `FlowSpec.moving_in_subspace`.
        """
        self.stage_index = stage_index
        if stage.n_steps == 0:
            self.stage_is_over = True
        if self.coordinates_to_restore is not None:
            moving.x.copy_(self.coordinates_to_restore)
            self.coordinates_to_restore = None

    def leave_stage(self) -> None:
        """Go on to the first step of the next stage."""
        self.stage_index += 1
        self.step_index = 0
        self.stage_is_over = False

    def advance(
        self,
        step: Step,
        solution: TransportSolution,
        model_step: ModelStep | None,
        listeners: Sequence[EventListener[FlowEvent]],
    ) -> None:
        """Count a step, store its `model_step` if there is one, and notify listeners.

        The stage is over after its last step, or early if nearly all maps are the
        identity or a listener returns True.
        """
        if model_step is not None:
            self.model_steps.append(model_step)
        self.step_index = step.step_index + 1
        self.steps_done += 1

        steps_left = step.stage.n_steps - self.step_index
        has_converged = self._has_converged(solution)
        event = self._event(step, solution, model_step, has_converged)
        is_stopped = notify(listeners, event)
        self.stage_is_over = has_converged or is_stopped or steps_left == 0
        if self.stage_is_over:
            self.steps_skipped += steps_left

    def _event(
        self,
        step: Step,
        solution: TransportSolution,
        model_step: ModelStep | None,
        has_converged: bool,
    ) -> FlowEvent:
        """The event of a step that was counted.

        If its stage has converged, `steps_total` leaves out the rest of its steps.
        """
        steps_total = sum(stage.n_steps for stage in step.spec.stages)
        steps_total -= self.steps_skipped
        if has_converged:
            steps_total -= step.stage.n_steps - self.step_index
        return FlowEvent(
            stage_name=step.stage.name,
            stage_index=step.stage_index,
            step_index=step.step_index,
            steps_done=self.steps_done,
            steps_total=steps_total,
            distance=solution.distance,
            seconds=self.seconds,
            particles=step.particles.x,
            active_fraction=solution.active_fraction,
            stage_steps=step.stage.n_steps,
            model_step=model_step,
        )

    def _has_converged(self, solution: TransportSolution) -> bool:
        """Whether nearly all maps are the identity; False in steps without a check."""
        if (
            solution.active_fraction is None
            or self.step_index % CONVERGENCE_CHECK_EVERY != 0
        ):
            return False
        return float(solution.active_fraction) <= CONVERGENCE_TOL


@dataclass(frozen=True, eq=False)
class ParticleRng:
    """Random numbers for particles: where they start, and the noise of the steps.

    Particle j uses row ``first + j`` of the numbers below `seed`. So its numbers depend
    neither on how many particles there are, nor on which chunk or rank it belongs to,
    nor on the other particles' classes.

    Attributes
    ----------
    seed : the root of the random numbers
    first : the index of the first of these particles among all particles of the run
    order : the order in which the particles stand; None if they stand in the order of
        their indices j
    """

    seed: Seed
    first: int = 0
    order: Permutation | None = None

    def fill(self, x: Tensor, *names: str | int) -> Tensor:
        """Fill x (d, n) with N(0, I) in place, and return it.

        Numbers are drawn from the node `names` below the seed. Without another `order`,
        column j has the numbers of particle j.
        """
        seed = self.seed.child(*names)
        d, n = x.shape
        chunk_size = max(_MIN_CHUNK, _NUMBERS_PER_DRAW // max(1, d))
        for begin in range(0, n, chunk_size):
            end = min(begin + chunk_size, n)
            numbers = seed.normal(
                end - begin,
                d,
                first_row=self.first + begin,
                dtype=x.dtype,
                device=x.device,
            )
            point_indices: PointIndices = slice(begin, end)
            if self.order is not None:
                point_indices = self.order.inverse[begin:end]
            x[:, point_indices] = numbers.T
        return x
