"""Frames: Parseval, reproducible, the same on every device, blind to conditions they are not given."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sliceflow.engine.frames import Axis, Orthogonal, Random, rotation
from sliceflow.engine.random import Seed

KINDS = [Orthogonal(), Random(n_directions=40), Random(n_directions=40, fixed=True), Axis()]


def matrix(frame, d):
    return torch.eye(d).double() if frame.theta is None else frame.theta


@given(st.integers(1, 60), st.integers(0, 5), st.integers(0, 3))
def test_orthogonal_and_axis_frames_are_parseval(d, step, n_conditions):
    for kind in (Orthogonal(), Axis()):
        frame = kind.draw(Seed(1), step, d, n_conditions)
        theta = matrix(frame, d)
        assert frame.parseval == 1
        assert torch.allclose(theta.T @ theta, torch.eye(d).double(), atol=1e-12)
        x = Seed(2).normal(d, 5)
        assert torch.allclose(frame.lift(frame.project(x)), x, atol=1e-12)


def test_random_frames_are_parseval_on_average():
    d = 4
    frames = [Random(500).draw(Seed(0), step, d, 0) for step in range(200)]
    mean = sum(f.theta.T @ f.theta / f.parseval for f in frames) / len(frames)
    assert torch.allclose(mean, torch.eye(d).double(), atol=0.02)


def test_random_directions_are_the_papers():
    plain = Random(30).draw(Seed(0), 0, 5, 0)
    assert torch.allclose(plain.theta.norm(dim=1), torch.ones(30).double())
    assert plain.parseval == 30 / 5  # lift divides by H/d: the factor η/H with η = d
    joint = Random(30).draw(Seed(0), 0, 5, 2)
    norm = torch.cat((joint.theta, joint.theta_y), dim=1).norm(dim=1)
    assert torch.allclose(norm, torch.ones(30).double())


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_same_place_gives_the_same_frame(kind):
    a, b = (kind.draw(Seed(3), 7, 6, 2) for _ in range(2))
    assert torch.equal(matrix(a, 6), matrix(b, 6))
    assert (a.theta_y is None) == isinstance(kind, Axis)


def test_directions_change_with_the_step_unless_they_are_fixed():
    for kind, same in ((Orthogonal(), False), (Random(5), False), (Random(5, fixed=True), True)):
        a, b = (kind.draw(Seed(0), step, 4, 0).theta for step in (0, 1))
        assert torch.equal(a, b) == same


def test_a_condition_does_not_change_the_directions_of_x():
    a, b = (Orthogonal().draw(Seed(0), 0, 4, l).theta for l in (0, 3))  # noqa: E741
    assert torch.equal(a, b)


def test_orthogonal_frames_are_uniform():
    """E[θ θᵀ] = I/d for every row, and determinants of both signs."""
    rotations = torch.stack([Orthogonal().draw(Seed(0), k, 3, 0).theta for k in range(2000)])
    second = torch.einsum("kia,kib->iab", rotations, rotations) / len(rotations)
    assert torch.allclose(second, torch.eye(3).double().expand(3, 3, 3) / 3, atol=0.03)
    assert 0.45 < float((torch.linalg.det(rotations) > 0).double().mean()) < 0.55


@pytest.mark.parametrize("d", [1, 4, 9, 16, 17, 32, 49])
@pytest.mark.parametrize("more", [0, 3])
def test_rotations_lie_in_memory_row_by_row(d, more):
    """As kernels read them."""
    assert rotation(Seed(0), 5, d, side=d + more).is_contiguous()


@pytest.mark.gpu
@pytest.mark.parametrize("d", [1, 9, 16, 25, 49, 81, 121, 169, 225, 400])
def test_a_gpu_draws_the_cpus_rotations(d):
    for step in (0, 1, 33, 100):
        cpu, gpu = (rotation(Seed(5).child("level", 3), step, d, device) for device in ("cpu", "cuda"))
        assert torch.allclose(cpu, gpu.cpu(), rtol=0, atol=1e-9)
