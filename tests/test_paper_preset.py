"""The paper's settings are the paper's, and the pieces that they name run together."""

import itertools

import numpy as np
import pytest
import torch

import sliceflow
from sliceflow import SlicedWassersteinFlow, VectorOptions
from sliceflow.engine import paper
from sliceflow.engine.frames import Random
from sliceflow.engine.random import Seed
from sliceflow.engine.transports import Interpolated
from sliceflow.spaces.pictures import schedules
from sliceflow.spaces.pictures.layout import Layout
from sliceflow.spaces.pictures.levels import PATCH_BASES, LevelFlow
from sliceflow.spaces.pictures.pyramid import UPSAMPLINGS
from sliceflow.spaces.pictures.tiles import RandomPatches, Tiles


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


def walk(patch_basis, size=(6, 6)):
    layout = Layout(*size, None, "uint8", 256)
    stages = schedules.from_string("2[2] 6[3]", *size, 2)
    return LevelFlow(
        layout, stages, Seed(0), 0, 10.0, None, "lanczos", patch_basis, False, True, 1.0, 0.0, 1 << 20,
        torch.float16, n_directions=30,
    )  # fmt: skip


@pytest.mark.parametrize("patch_basis", PATCH_BASES)
def test_a_walk_tells_the_directions_of_its_stages(patch_basis):
    for i in range(2):
        made = walk(patch_basis)
        kind, (flow, subspace) = made.directions(i), made.engine(i)
        assert flow.schedule[0].frame == kind
        seed, x = flow.seed.child("frame", 0), torch.zeros(subspace.dimension, 1)
        drawn = [flow.frame(0, k, x) for k in range(5)]
        assert [f.n_directions for f in drawn] == [kind.count(seed, k) for k in range(5)]
        assert max(f.n_directions for f in drawn) <= kind.most_directions
        assert isinstance(kind, RandomPatches if patch_basis == "random" else Tiles)


def test_random_patches_keep_the_precision_of_the_particles():
    """Their products are dense: no kernel would add up half precision in float32."""
    flow, _ = walk("random").engine(1)
    assert flow.frame(0, 0, torch.zeros(36, 1)).theta.dtype == torch.float32
    assert walk("pixels").engine(1)[0].precision == torch.float16


def test_no_random_patch_is_empty():
    """A centre is a pixel of the picture, so some of the patch is in it."""
    theta = RandomPatches(1, 5, 4, 4, 5000).draw(Seed(0), 0, 20, 0).theta
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
    cpu, gpu = (kind.draw(Seed(5), 3, 360, 4, device) for device in ("cpu", "cuda"))
    assert torch.allclose(cpu.theta, gpu.theta.cpu(), rtol=0, atol=1e-9)
    assert torch.allclose(cpu.theta_y, gpu.theta_y.cpu(), rtol=0, atol=1e-9)
    z_p, z_q = Seed(0).normal(50, 900), Seed(1).normal(50, 700) + 1
    weights = Seed(2).uniform(1, 700)[0]
    for w in (None, weights):
        a = Interpolated().fit(z_p, z_q, w)
        b = Interpolated().fit(z_p.cuda(), z_q.cuda(), None if w is None else w.cuda())
        assert torch.allclose(a.dz, b.dz.cpu(), rtol=0, atol=1e-9)
        z = Seed(3).normal(50, 300)
        assert torch.allclose(a.table.displace(z), b.table.displace(z.cuda()).cpu(), rtol=0, atol=1e-9)
