"""Local frames: Parseval at every stage and border, reproducible; one whole tile is `Orthogonal`."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sliceflow.engine.clouds import Cloud
from sliceflow.engine.flow import Flow, Noise, simulate
from sliceflow.engine.frames import Orthogonal, rotation
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.transports import Sorted
from sliceflow.spaces.pictures import schedules
from sliceflow.spaces.pictures.pyramid import Subspace
from sliceflow.spaces.pictures.tiles import RandomPatches, Tiles

CPU = torch.device("cpu")


def tiles_of(preset, full, channels):
    """The kinds of frame of all stages of a preset, without repetitions."""
    levels = schedules.from_string(schedules.PRESETS[preset], full, full)
    few = [level for level in levels if channels == 1 or level.patch < 8]  # large ones take long
    return list(dict.fromkeys(Tiles(channels, level.h, level.w, level.patch) for level in few))


def dimension(kind):
    return kind.channels * kind.height * kind.width


def pixels(d):
    return torch.zeros(d, 1).double()


def matrix(frame, d):
    """Θ as a dense (h, d) matrix."""
    return frame.project(Cloud(torch.eye(d).double()))


@pytest.mark.parametrize(("preset", "full", "channels"), [("mnist", 28, 1), ("cifar10", 32, 3)])
def test_tiles_are_parseval_at_every_stage_of_every_preset(preset, full, channels):
    """In float32, as the flow runs them, for every pixel of the picture: the borders too."""
    for kind in tiles_of(preset, full, channels):
        d = dimension(kind)
        x = Seed(2).normal(d, 2, dtype=torch.float32)
        frame = kind.draw(Seed(1), 3, x)
        z = frame.project(Cloud(x))
        assert frame.parseval == 1
        assert z.shape == (frame.n_directions, 2)
        assert float((frame.lift(z) - x).abs().max()) < 1e-5, kind
        assert torch.allclose(z.norm(dim=0), x.norm(dim=0), rtol=1e-5)


@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9), st.integers(1, 6), st.integers(0, 20))
def test_tiles_are_parseval_for_any_shape_patch_and_offset(channels, height, width, patch, step):
    kind = Tiles(channels, height, width, patch)
    d = dimension(kind)
    theta = matrix(kind.draw(Seed(0), step, pixels(d), 0), d)
    assert torch.allclose(theta.T @ theta, torch.eye(d).double(), atol=1e-12)


@given(st.integers(1, 2), st.integers(1, 8), st.integers(1, 8), st.integers(1, 5), st.integers(0, 5))
def test_lift_is_the_transpose_of_project(channels, height, width, patch, step):
    kind = Tiles(channels, height, width, patch)
    d = dimension(kind)
    frame = kind.draw(Seed(0), step, pixels(d), 0)
    dz = Seed(1).normal(frame.n_directions, 3)
    assert torch.allclose(frame.lift(dz), matrix(frame, d).T @ dz, atol=1e-12)


def test_a_direction_sees_one_patch_of_all_channels():
    kind = Tiles(2, 9, 7, 3)
    for step in range(5):
        theta = matrix(kind.draw(Seed(0), step, pixels(126), 0), 126).view(-1, 2, 9, 7)
        for direction in theta:
            rows, columns = (direction != 0).any(0).nonzero().T
            assert len(rows) == 0 or int(rows.max() - rows.min()) < 3
            assert len(rows) == 0 or int(columns.max() - columns.min()) < 3


def test_all_offsets_of_the_tiles_occur():
    kind = Tiles(1, 8, 10, 3)
    offsets = {kind.draw(Seed(0), step, pixels(80), 0).geometry.offset for step in range(100)}
    assert offsets == {(top, left) for top in range(3) for left in range(3)}


def test_a_tile_as_large_as_the_picture_stays_where_it_is():
    for patch in (5, 9):
        frames = [Tiles(1, 5, 7, patch).draw(Seed(0), step, pixels(35), 0) for step in range(20)]
        assert {frame.geometry.offset[0] for frame in frames} == {0}
        assert {frame.geometry.size for frame in frames} == {(5, min(patch, 7))}
    assert {frame.geometry.grid for frame in frames} == {(1, 1)}


@pytest.mark.parametrize("d", [1, 9, 64, 65, 243])
def test_rotations_are_orthogonal_also_out_of_the_pool(d):
    theta = rotation(Seed(0).child(4), 0, d)
    assert float((theta @ theta.T - torch.eye(d).double()).abs().max()) < 1e-12


def test_rotations_out_of_the_pool_differ_from_step_to_step():
    thetas = [rotation(Seed(0), step, 81) for step in range(40)]
    assert len({float(theta[0, 0]) for theta in thetas}) == 40


@pytest.mark.parametrize(
    "kind", [Tiles(3, 6, 7, 3), Tiles(1, 12, 12, 9), RandomPatches(1, 6, 7, 3, 20)], ids=str
)
def test_the_same_seed_gives_the_same_frame(kind):
    d = dimension(kind)
    a, b, other_step, other_seed = (
        kind.draw(seed, step, pixels(d), 2)
        for seed, step in ((Seed(3), 7), (Seed(3), 7), (Seed(3), 8), (Seed(4), 7))
    )
    assert torch.equal(matrix(a, d), matrix(b, d))
    assert torch.equal(a.theta_y, b.theta_y)
    assert not torch.equal(a.theta, other_step.theta)
    assert not torch.equal(a.theta, other_seed.theta)


def test_a_condition_does_not_change_the_tiles():
    kind = Tiles(1, 7, 7, 3)
    plain, conditional = (kind.draw(Seed(0), 2, pixels(49), width) for width in (0, 4))
    assert plain.theta_y is None
    assert conditional.theta_y.shape == (conditional.n_directions, 4)
    assert torch.equal(matrix(plain, 49), matrix(conditional, 49))


def test_random_patches_are_unit_vectors_of_one_patch():
    kind = RandomPatches(2, 9, 7, 4, 200)
    frame = kind.draw(Seed(0), 0, pixels(126), 0)
    assert frame.parseval == 200 / 126
    assert torch.allclose(frame.theta.norm(dim=1), torch.ones(200).double())
    for direction in frame.theta.view(200, 2, 9, 7):
        rows, columns = (direction != 0).any(0).nonzero().T
        assert int(rows.max() - rows.min()) < 4
        assert int(columns.max() - columns.min()) < 4


@pytest.mark.parametrize(
    ("shape", "patch", "full"),
    [((2, 9, 7), 4, None), ((1, 4, 4), 4, (12, 10)), ((3, 5, 6), 3, (11, 11)), ((1, 1, 1), 1, (6, 6))],
)
@pytest.mark.parametrize("n_conditions", [0, 3])
def test_random_patches_are_those_of_a_loop_over_directions(shape, patch, full, n_conditions):
    """Each patch put into its place by itself, then upsampled by the plain kernel, then normalised."""
    (c, h, w), h_full, w_full = shape, *(full or shape[1:])
    frame = RandomPatches(c, h, w, patch, 40, full).draw(Seed(2), 5, pixels(c * h * w), n_conditions)
    seed = Seed(2).child(5)
    patches = seed.child("x").normal(40, c * patch**2).view(40, c, patch, patch)
    centres = (seed.child("centre").uniform(40, 2) * torch.tensor([h, w])).long().tolist()
    subspace = Subspace(c, h_full, w_full, h, w)
    for i, (row, column) in enumerate(centres):
        picture = torch.zeros(c, h, w).double()
        for r in range(patch):
            for t in range(patch):
                y, x = row - patch // 2 + r, column - patch // 2 + t
                if 0 <= y < h and 0 <= x < w:
                    picture[:, y, x] = patches[i, :, r, t]
        large = torch.einsum("Yy,cyx,Xx->cYX", plain(h_full, h), picture, plain(w_full, w))
        unit = large.flatten() / large.norm() / (2**0.5 if n_conditions else 1)
        assert torch.allclose(subspace.up(frame.theta[i][:, None])[:, 0], unit, atol=1e-12)
    if n_conditions:
        assert torch.allclose(frame.theta_y.norm(dim=1), torch.full((40,), 0.5).double().sqrt())


def plain(full, small):
    """The matrix that upsamples by Lanczos' kernel, its rows summing to 1; nothing orthonormal."""
    if full == small:
        return torch.eye(full).double()
    t = ((torch.arange(full).double() + 0.5) * small / full - 0.5)[:, None] - torch.arange(small)
    weights = torch.where(t.abs() < 5, torch.sinc(t) * torch.sinc(t / 5), 0.0)
    return weights / weights.sum(1, keepdim=True)


def test_random_patches_do_not_depend_on_how_many_are_placed_at_a_time(monkeypatch):
    whole = RandomPatches(2, 6, 5, 3, 30, (12, 12)).draw(Seed(0), 1, pixels(60), 2).theta
    monkeypatch.setattr("sliceflow.spaces.pictures.tiles._NUMBERS", 7 * 60)
    assert torch.equal(
        RandomPatches(2, 6, 5, 3, 30, (12, 12)).draw(Seed(0), 1, pixels(60), 2).theta, whole
    )


def test_random_patches_are_parseval_on_average_away_from_the_borders():
    """x += Θᵀ(…)/c with c = H/d then has the step 1: the paper's η/H with η = d."""
    frame = RandomPatches(1, 9, 9, 3, 200_000).draw(Seed(0), 0, torch.zeros(81, 1))
    mean = frame.theta.T @ frame.theta / frame.parseval
    inner = torch.arange(81).view(9, 9)[2:-2, 2:-2].flatten()
    assert torch.allclose(mean[inner][:, inner], torch.eye(25), atol=0.05)
    assert float(mean.trace()) == pytest.approx(81, rel=1e-4)


def test_random_patches_reach_every_pixel():
    frame = RandomPatches(1, 6, 8, 3, 1000).draw(Seed(0), 0, pixels(48), 0)
    assert bool((frame.theta != 0).any(0).all())


def test_random_patches_are_normalised_together_with_the_condition():
    frame = RandomPatches(1, 6, 6, 3, 50).draw(Seed(0), 0, pixels(36), 4)
    assert frame.theta.shape == (50, 36)
    assert frame.theta_y.shape == (50, 4)
    joint = torch.cat((frame.theta, frame.theta_y), dim=1)
    assert torch.allclose(joint.norm(dim=1), torch.ones(50).double())


@pytest.mark.parametrize("n_conditions", [0, 3])
@pytest.mark.parametrize(("channels", "height"), [(1, 8), (3, 4), (1, 9), (3, 5)], ids=str)
def test_one_tile_over_the_whole_picture_is_the_vector_engine(channels, height, n_conditions):
    """d = 64 and 48 draw their rotations afresh, d = 81 and 75 take them out of the pool."""
    d, m, n = channels * height * height, 60, 50
    moved = []
    for kind in (Tiles(channels, height, height, height), Orthogonal()):
        flow = Flow([Stage("flow", kind, 10, Sorted())], Seed(5), n_conditions)
        y_p, y_q = (torch.arange(k) % 3 if n_conditions else None for k in (m, n))
        particles = Cloud(Seed(0).normal(d, m, dtype=torch.float32), y_p)
        data = Cloud(0.5 * Seed(1).normal(d, n, dtype=torch.float32) + 1, y_q)
        simulate(flow, particles, flow.target(particles, data), Noise(Seed(2)))
        moved.append(particles.x)
    assert torch.allclose(*moved, rtol=0, atol=1e-4)
