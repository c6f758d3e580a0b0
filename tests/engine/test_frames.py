"""Frames.

Parseval, reproducible, the same on every device, blind to conditions they are not
given.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sliceflow.engine.clouds import Cloud
from sliceflow.engine.frames import Axis, DenseFrame, MaxSliced, Orthogonal, Random
from sliceflow.engine.random import Seed
from sliceflow.engine.rotations import rotation
from sliceflow.errors import ParameterError


def particles(d):
    return torch.zeros(d, 1).double()


@given(st.integers(1, 60), st.integers(0, 5), st.integers(0, 3))
def test_orthogonal_and_axis_frames_are_parseval(d, step, condition_dim):
    for kind in (Orthogonal(), Axis()):
        frame = kind.make_frame(Seed(1), step, particles(d), condition_dim)
        theta = torch.eye(d).double() if frame.theta is None else frame.theta
        assert frame.frame_bound == 1
        assert torch.allclose(theta.T @ theta, torch.eye(d).double(), atol=1e-12)
        x = Seed(2).normal(d, 5)
        assert torch.allclose(frame.lift(frame.project(Cloud(x))), x, atol=1e-12)


def test_random_frames_are_parseval_on_average():
    d = 4
    frames = [
        Random(500).make_frame(Seed(0), step, particles(d), 0) for step in range(200)
    ]
    mean = sum(f.theta.T @ f.theta / f.frame_bound for f in frames) / len(frames)
    assert torch.allclose(mean, torch.eye(d).double(), atol=0.02)


def test_random_directions_are_the_papers():
    plain = Random(30).make_frame(Seed(0), 0, particles(5), 0)
    assert torch.allclose(plain.theta.norm(dim=1), torch.ones(30).double())
    assert plain.frame_bound == 30 / 5  # lift divides by H/d: the factor η/H with η = d
    joint = Random(30).make_frame(Seed(0), 0, particles(5), 2)
    norm = torch.cat((joint.theta, joint.theta_y), dim=1).norm(dim=1)
    assert torch.allclose(norm, torch.ones(30).double())


def test_directions_change_with_the_step_unless_they_are_fixed():
    for kind, same in (
        (Orthogonal(), False),
        (Random(5), False),
        (Random(5, fixed=True), True),
    ):
        for d in (4, 81):  # drawn afresh, and out of the pool
            a = kind.make_frame(Seed(0), 0, particles(d), 0).theta
            b = kind.make_frame(Seed(0), 1, particles(d), 0).theta
            assert torch.equal(a, b) == same


def test_fixed_is_true_or_false():
    with pytest.raises(ParameterError, match=r"fixed='no' must be True or False"):
        Random(5, fixed="no")


def test_orthogonal_frames_are_uniform():
    """E[θ θᵀ] = I/d for every row, and determinants of both signs."""
    rotations = torch.stack(
        [
            Orthogonal().make_frame(Seed(0), k, particles(3), 0).theta
            for k in range(2000)
        ]
    )
    second = torch.einsum("kia,kib->iab", rotations, rotations) / len(rotations)
    assert torch.allclose(second, torch.eye(3).double().expand(3, 3, 3) / 3, atol=0.03)
    assert 0.45 < float((torch.linalg.det(rotations) > 0).double().mean()) < 0.55


@pytest.mark.gpu
@pytest.mark.parametrize("d", [1, 9, 16, 25, 49, 81, 121, 169, 225, 400])
def test_a_gpu_draws_the_cpus_rotations(d):
    for step in (0, 1, 33, 100):
        cpu = rotation(Seed(5).child("level", 3), step, d, "cpu")
        gpu = rotation(Seed(5).child("level", 3), step, d, "cuda")
        assert torch.allclose(cpu, gpu.cpu(), rtol=0, atol=1e-9)


def total_distance(theta, x, y):
    """Σ W₂² along the directions, for as many particles as data."""
    a = (theta @ x).sort(dim=1).values
    b = (theta @ y).sort(dim=1).values
    return float((a - b).square().mean(1).sum())


@given(st.integers(1, 40), st.integers(2, 60), st.integers(2, 60), st.integers(0, 5))
def test_max_sliced_directions_are_orthonormal(d, m, n, step):
    x = Seed(1).normal(d, m)
    y = Seed(2).normal(d, n)
    frame = MaxSliced().make_frame(Seed(0), step, x, x_q=y)
    h = min(32, -(-d // 2))
    assert frame.theta.shape == (h, d)
    assert torch.allclose(
        frame.theta @ frame.theta.T, torch.eye(h).double(), atol=1e-12
    )
    again = MaxSliced().make_frame(Seed(0), step, x, x_q=y)
    assert torch.equal(frame.theta, again.theta)


def test_max_sliced_directions_find_the_difference():
    d = 30
    x = Seed(1).normal(d, 3000)
    y = Seed(2).normal(d, 3000)
    y[7] += 2
    y[9] *= 3
    kind = MaxSliced(n_directions=2, n_iterations=60)
    theta = kind.make_frame(Seed(0), 0, x, x_q=y).theta
    assert (
        float(theta[:, [7, 9]].square().sum()) > 1.7
    )  # of 2: they nearly span both dimensions
    largest = total_distance(torch.eye(d).double()[[7, 9]], x, y)
    assert total_distance(theta, x, y) > 0.7 * largest
    assert total_distance(rotation(Seed(0), 0, d)[:2], x, y) < 0.3 * largest


def test_fitted_directions_are_kept_and_others_drawn_again():
    x = Seed(1).normal(6, 50)
    assert MaxSliced().make_frame(Seed(0), 0, x, x_q=x).theta_to_store is not None
    assert Orthogonal().make_frame(Seed(0), 0, x).theta_to_store is None


def test_stored_directions_that_a_model_would_replay_otherwise_are_refused():
    """A model replays stored directions without y, and as an orthonormal frame."""
    theta = torch.eye(2)
    stored = DenseFrame(theta, None, theta_to_store=theta)
    assert stored.amplified(10.0) == stored
    with pytest.raises(ValueError, match="theta_y is a tensor"):
        DenseFrame(theta, torch.ones(2, 1), theta_to_store=theta)
    with pytest.raises(ValueError, match="frame_bound=30"):
        DenseFrame(theta, None, frame_bound=30, theta_to_store=theta)


@pytest.mark.parametrize(
    "kind", [Random(7), Orthogonal(), Axis(), MaxSliced(3), MaxSliced(50)], ids=str
)
@pytest.mark.parametrize("d", [1, 2, 20])
def test_directions_are_counted_as_they_are_drawn(kind, d):
    x = Seed(1).normal(30, d).T
    frame = kind.make_frame(Seed(0), 0, x, x_q=x + 1)
    assert kind.max_directions(d) == len(frame.project(Cloud(x)))
