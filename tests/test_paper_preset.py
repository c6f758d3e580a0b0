"""The paper's settings are the paper's, and the pieces that they name run together."""

import itertools

import numpy as np
import pytest
import torch

import sliceflow
from sliceflow import SlicedWassersteinFlow, VectorOptions
from sliceflow.engine import paper
from sliceflow.engine.batches import Batch
from sliceflow.engine.frames import Random
from sliceflow.engine.random import Seed
from sliceflow.engine.transports import Interpolated
from sliceflow.spaces.pictures import schedules
from sliceflow.spaces.pictures.levels import PATCH_BASES
from sliceflow.spaces.pictures.pyramid import UPSAMPLINGS
from sliceflow.spaces.pictures.tiles import RandomPatches


def test_vectors_and_pictures_share_what_the_paper_says_once():
    vectors, pictures = paper.values(paper.VECTORS), paper.values(paper.PICTURES)
    for name in ("transport", "amplifier", "taper"):
        assert vectors[name] == pictures[name]
    assert vectors["frame"] == Random(pictures["n_directions"])
    assert pictures["transport"] == Interpolated()
    assert pictures["patch_basis"] in PATCH_BASES
    assert pictures["upsampling"] in UPSAMPLINGS
    assert all(setting.source for setting in (*paper.VECTORS.values(), *paper.PICTURES.values()))


@pytest.mark.parametrize("size", [28, 32, 64])
def test_steps_in_all_are_within_the_papers(size):
    steps = paper.PICTURES["quality"].value
    stages = schedules.from_string(schedules.paper(size, size), size, size, steps)
    assert 10_000 <= sum(stage.n_steps for stage in stages) <= 20_000


@pytest.mark.parametrize("size", range(1, 70))
def test_the_papers_schedule_ends_at_the_picture_and_falls_in_patches(size):
    stages = schedules.from_string(schedules.paper(size, size - size // 3), size, size - size // 3)
    assert [stage.h for stage in stages] == sorted(stage.h for stage in stages)
    assert (stages[-1].h, stages[-1].w) == (size, size - size // 3)
    assert all(stage.patch <= min(stage.h, 15) for stage in stages)
    for a, b in itertools.pairwise(stages):
        assert a.h < b.h or a.patch > b.patch


def test_no_random_patch_is_empty():
    """A centre is a pixel of the picture, so some of the patch is in it."""
    theta = RandomPatches(1, 5, 4, 4, 5000).draw(Seed(0), 0, torch.zeros(20, 1)).theta
    assert np.allclose(theta.norm(dim=1), 1)


def test_a_flow_of_interpolated_maps_is_saved_and_drawn_from(tmp_path):
    given = paper.values(paper.VECTORS)
    names = ("taper", "n_axis_steps", "smoothing", "shrinkage")
    options = VectorOptions(**{name: given.pop(name) for name in names}, n_knots=64)
    given |= dict(n_particles=300, n_steps=6, frame=Random(30), options=options)
    x = np.random.default_rng(0).gamma(2, size=(150, 2))
    flow = SlicedWassersteinFlow(**given, device="cpu", random_state=0).fit(x, np.arange(150) % 3)
    again = sliceflow.load(flow.save(tmp_path / "flow") or tmp_path / "flow", device="cpu")
    assert again.transport == Interpolated()
    assert np.array_equal(*(f.sample(50, y=1, random_state=1) for f in (flow, again)))
    assert np.abs(flow.sample(2000, random_state=1).mean(0) - x.mean(0)).max() < 0.3


@pytest.mark.gpu
def test_a_gpu_draws_and_moves_as_the_cpu_does():
    kind = RandomPatches(3, 12, 10, 5, 400, (24, 20))
    cpu, gpu = (
        kind.draw(Seed(5), 3, torch.zeros(360, 1, dtype=torch.float64, device=device), 4)
        for device in ("cpu", "cuda")
    )
    assert torch.allclose(cpu.theta, gpu.theta.cpu(), rtol=0, atol=1e-9)
    assert torch.allclose(cpu.theta_y, gpu.theta_y.cpu(), rtol=0, atol=1e-9)
    z_p, z_q = Seed(0).normal(50, 900), Seed(1).normal(50, 700) + 1
    weights = Seed(2).uniform(1, 700)[0]
    for w in (None, weights):
        a = Interpolated().fit(z_p, z_q, Batch(weights=w))
        b = Interpolated().fit(z_p.cuda(), z_q.cuda(), Batch(weights=None if w is None else w.cuda()))
        assert torch.allclose(a.dz, b.dz.cpu(), rtol=0, atol=1e-9)
        z = Seed(3).normal(50, 300)
        assert torch.allclose(a.table.displace(z), b.table.displace(z.cuda()).cpu(), rtol=0, atol=1e-9)
