"""Local frames: Parseval for every shape and offset; one whole tile is `Orthogonal`.

`tests/engine/test_algorithm1.py` writes out the directions of `RandomPatches`.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from problems import target_for
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import ClassIndices
from sliceflow.engine.flow import FlowSpec, ParticleRng, simulate
from sliceflow.engine.frames import Orthogonal
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.transports import SortedTransport
from sliceflow.estimators.pictures.tiles import RandomPatches, Tiles


def pixels(d):
    return torch.zeros(d, 1).double()


def matrix(frame, d):
    """Θ as a dense (h, d) matrix."""
    return frame.project(Cloud(torch.eye(d).double()))


@given(
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 6),
    st.integers(0, 20),
)
def test_tiles_are_parseval_and_lift_is_the_transpose(
    channels, height, width, patch, step
):
    d = channels * height * width
    frame = Tiles(channels, height, width, patch).make_frame(
        Seed(0), step, pixels(d), 0
    )
    theta = matrix(frame, d)
    dz = Seed(1).normal(frame.geometry.n_directions, 3)
    assert torch.allclose(theta.T @ theta, torch.eye(d).double(), atol=1e-12)
    assert torch.allclose(frame.lift(dz), theta.T @ dz, atol=1e-12)


def test_a_direction_sees_one_patch_of_all_channels():
    kind = Tiles(2, 9, 7, 3)
    for step in range(5):
        theta = matrix(kind.make_frame(Seed(0), step, pixels(126), 0), 126).view(
            -1, 2, 9, 7
        )
        for direction in theta:
            rows, columns = (direction != 0).any(0).nonzero().T
            if len(rows):  # else it lies beyond the border
                assert int(rows.max() - rows.min()) < 3
                assert int(columns.max() - columns.min()) < 3


def test_all_offsets_of_the_tiles_occur():
    kind = Tiles(1, 8, 10, 3)
    offsets = {
        kind.make_frame(Seed(0), step, pixels(80), 0).geometry.offset
        for step in range(100)
    }
    assert offsets == {(top, left) for top in range(3) for left in range(3)}


def test_a_tile_as_large_as_the_picture_stays_where_it_is():
    for patch in (5, 9):
        frames = [
            Tiles(1, 5, 7, patch).make_frame(Seed(0), step, pixels(35), 0)
            for step in range(20)
        ]
        assert {frame.geometry.offset[0] for frame in frames} == {0}
        assert {frame.geometry.size for frame in frames} == {(5, min(patch, 7))}
    assert {frame.geometry.grid for frame in frames} == {(1, 1)}


def test_a_condition_does_not_change_the_tiles():
    kind = Tiles(1, 7, 7, 3)
    plain = kind.make_frame(Seed(0), 2, pixels(49), 0)
    conditional = kind.make_frame(Seed(0), 2, pixels(49), 4)
    assert plain.theta_y is None
    assert conditional.theta_y.shape == (conditional.geometry.n_directions, 4)
    assert torch.equal(matrix(plain, 49), matrix(conditional, 49))


def test_random_patches_do_not_depend_on_how_many_are_placed_at_a_time(monkeypatch):
    kind = RandomPatches(2, 6, 5, 3, 30, (12, 12))
    whole = kind.make_frame(Seed(0), 1, pixels(60), 2).theta
    monkeypatch.setattr("sliceflow.estimators.pictures.tiles.MAX_PLACED_VALUES", 7 * 60)
    assert torch.equal(kind.make_frame(Seed(0), 1, pixels(60), 2).theta, whole)


def test_random_patches_are_parseval_on_average_away_from_the_borders():
    """x += Θᵀ(…)/c with c = H/d then has the step 1: the paper's η/H with η = d."""
    frame = RandomPatches(1, 9, 9, 3, 200_000).make_frame(
        Seed(0), 0, torch.zeros(81, 1)
    )
    mean = frame.theta.T @ frame.theta / frame.frame_bound
    inner = torch.arange(81).view(9, 9)[2:-2, 2:-2].flatten()
    assert torch.allclose(mean[inner][:, inner], torch.eye(25), atol=0.05)
    assert float(mean.trace()) == pytest.approx(81, rel=1e-4)


@pytest.mark.parametrize("condition_dim", [0, 3])
@pytest.mark.parametrize(
    ("channels", "height"), [(1, 8), (3, 4), (1, 9), (3, 5)], ids=str
)
def test_one_tile_over_the_whole_picture_is_the_vector_engine(
    channels, height, condition_dim
):
    """Sizes with rotations of even and of odd dimension."""
    d = channels * height * height
    m = 60
    n = 50
    moved = []
    for kind in (Tiles(channels, height, height, height), Orthogonal()):
        flow = FlowSpec(
            [Stage("flow", kind, 10, SortedTransport())], Seed(5), condition_dim
        )
        particles = Cloud(Seed(0).normal(d, m, dtype=torch.float32))
        data = Cloud(0.5 * Seed(1).normal(d, n, dtype=torch.float32) + 1)
        if condition_dim:
            particles.y = ClassIndices(torch.arange(m) % 3)
            data.y = ClassIndices(torch.arange(n) % 3)
        simulate(
            flow, particles, target_for(flow, particles, data), ParticleRng(Seed(2))
        )
        moved.append(particles.x)
    assert torch.allclose(*moved, rtol=0, atol=1e-4)
