"""The pyramid as one flow: its stages, their spaces, and what is observed."""

import math

import pytest
import torch

from sliceflow.engine.batches import Target
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.flow import Noise, Run, Step, replay, simulate
from sliceflow.engine.random import Seed
from sliceflow.engine.shrinkage import Shrunk
from sliceflow.engine.transports import AlignedHistogram, Histogram, Sorted
from sliceflow.spaces.pictures import schedules
from sliceflow.spaces.pictures.layout import Layout
from sliceflow.spaces.pictures.levels import PATCH_BASES, LevelFlow, Painted, evolution
from sliceflow.spaces.pictures.pyramid import Subspace
from sliceflow.spaces.pictures.tiles import RandomPatches, Tiles

LAYOUT = Layout(6, 6, None, "uint8", 17)


def levels(schedule="2[2] 6[3] 6[1]=1", steps=2, known=None, **changes):
    settings = dict(
        layout=LAYOUT,
        stages=schedules.from_string(schedule, 6, 6, steps),
        seed=Seed(0),
        n_conditions=0,
        amplifier=10.0,
        known=known,
        upsampling="lanczos",
        patch_basis="pixels",
        clip=True,
        taper=0.5,
        budget=1 << 20,
        precision=torch.float16,
        n_directions=30,
    )
    return LevelFlow(**settings | changes)


def clouds(m=40, n=30):
    start, data = Seed(1).normal(m, 36), Seed(2).uniform(n, 36) * 2 - 1
    return Cloud(start.T.contiguous()), Cloud(data.T.contiguous())


@pytest.mark.parametrize("patch_basis", PATCH_BASES)
def test_stages_have_the_directions_of_their_level(patch_basis):
    made = levels("2[2] 6[3]", patch_basis=patch_basis)
    flow, x = made.flow(), torch.zeros(36, 1)
    for i, kind in enumerate((RandomPatches if patch_basis == "random" else Tiles,) * 2):
        assert isinstance(flow.stages[i].frame, kind)
        cloud = Cloud(flow.stages[i].space.down(x))
        frames = [Step(flow, i, k, 0, cloud, Cloud(x)).frame() for k in range(5)]
        assert [f.n_directions for f in frames] == [made.count_directions(i, k) for k in range(5)]
        assert max(f.n_directions for f in frames) <= made.directions(i).most_directions
        # The products of random patches are dense: nothing would add up half precision in float32.
        half = torch.float32 if patch_basis == "random" else torch.float16
        assert frames[0].theta.dtype == half


def test_single_pixels_are_exact_and_come_after_everything_else():
    shrunk = [stage.transport for stage in levels().flow(Histogram(16), 12, lambda t: "shrunk").stages]
    assert shrunk == ["shrunk", "shrunk", AlignedHistogram(32, Histogram(16).most, (-1.0, 64 / 17 - 1))]
    coarse, fine, single = levels().flow(Histogram(16), 12).stages
    assert [stage.n_knots for stage in (coarse, fine, single)] == [12, 12, 512]
    assert [stage.taper for stage in (coarse, fine, single)] == [0, 0.5, 0]
    assert [stage.space.clip for stage in (coarse, fine, single)] == [False, False, True]
    assert single.frame.precision is None
    assert levels().flow(Sorted(), 12).stages[-1].transport == Sorted()
    assert [stage.n_knots for stage in levels().flow(Histogram(16)).stages] == [0, 0, 0]


def test_few_random_patches_take_small_steps():
    sizes = [s.step_size for s in levels("2[2] 6[3]", patch_basis="random").flow().stages]
    assert sizes == [1.0, 30 / 36]


def test_a_coarse_stage_leaves_finer_detail_alone_and_the_last_one_clips():
    flow, (particles, data) = levels().flow(Sorted(), 12), clouds()
    start, space = particles.x.clone(), Subspace(1, 6, 6, 2, 2)
    simulate(flow, particles, Target.from_cloud(data), Noise(Seed(0)), n_stages=1)
    change = particles.x - start
    assert float(change.abs().max()) > 0.1
    assert torch.allclose(space.up(space.down(change)), change, atol=1e-9)
    assert float(particles.x.abs().max()) > 1
    simulate(flow, particles, Target.from_cloud(data), Noise(Seed(0)), run=Run(stage=1))
    assert float(particles.x.abs().max()) <= 1


def test_observed_pixels_never_move_and_the_others_do():
    known = (torch.arange(36) < 18)[:, None]
    flow, (particles, data) = levels(known=known, clip=False).flow(Sorted(), 12), clouds()
    start = particles.x.clone()
    model = simulate(flow, particles, Target.from_cloud(data), Noise(Seed(0)))
    assert all(isinstance(stage.frame, Painted) for stage in flow.stages)
    assert torch.equal(particles.x[:18], start[:18])
    assert float((particles.x - start)[18:].abs().min(1).values.max()) > 0
    again = Cloud(start.clone())
    replay(flow, model, again, Noise(Seed(0)))
    assert torch.equal(again.x[:18], start[:18])
    assert torch.allclose(again.x, particles.x, atol=0.5)


def test_evolution_starts_at_the_start_and_ends_where_replay_does():
    flow, (particles, data) = levels().flow(Sorted(), 12), clouds()
    model = simulate(flow, particles, Target.from_cloud(data), Noise(Seed(0)))
    fresh, same = clouds()[0], clouds()[0]
    frames = evolution(flow, model, fresh, Noise(Seed(0)), 4)
    replay(flow, model, same, Noise(Seed(0)))
    assert len(frames) == 4
    assert all(frame.shape == (36, 40) for frame in frames)
    assert torch.equal(frames[0], clouds()[0].x)
    assert torch.equal(frames[-1], same.x)
    assert len(evolution(flow, model, clouds()[0], Noise(Seed(0)), 100)) == len(model) + 1


def test_classes_apart_and_shrinkage_reach_the_engine():
    made = levels(n_conditions=3, amplifier=math.inf)
    flow = made.flow(Histogram(16), 4, lambda t: Shrunk(t, 1.0, (0.1,) * 3))
    assert (made.apart, flow.apart, flow.n_shared) == (3, True, 0)
    assert isinstance(flow.stages[0].transport, Shrunk)
    assert isinstance(flow.stages[-1].transport, AlignedHistogram)
