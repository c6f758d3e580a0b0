"""Subspaces of a pyramid: orthonormal, and they reproduce constants."""

import pytest
import torch

from sliceflow.engine.random import Seed
from sliceflow.estimators.pictures import schedules
from sliceflow.estimators.pictures.pyramid import PyramidSubspace, upsampling_basis

ODD = [1, 2, 3, 5, 9, 27, 33]
SHAPES = [
    (3, 8, 8, 5, 5),
    (3, 12, 7, 5, 3),
    (1, 5, 9, 1, 2),
    (2, 6, 4, 6, 2),
    (1, 1, 7, 1, 3),
]


def sizes():
    """(full, small) of all stages of the paper and of every resolution of odd sizes."""
    pairs = set()
    for full in (28, 32, 64):
        for stage in schedules.from_string(schedules.paper(full, full), full, full):
            pairs.add((full, stage.height))
    for full in ODD:
        for small in range(1, full + 1):
            pairs.add((full, small))
    return sorted(pairs)


def identity(n):
    return torch.eye(n).double()


def test_every_basis_has_orthonormal_columns_and_can_represent_a_constant():
    for full, small in sizes():
        u = upsampling_basis(full, small)
        one = torch.ones(full).double()
        assert (u.shape, u.dtype) == ((full, small), torch.float64)
        assert torch.allclose(u.T @ u, identity(small), rtol=0, atol=1e-10), (
            full,
            small,
        )
        assert torch.allclose(u @ (u.T @ one), one, rtol=0, atol=1e-10), (full, small)
        assert torch.allclose(u, u.flip(0, 1), atol=1e-10)  # left and right alike


def test_columns_are_local():
    """The columns are the upsampling's bumps, not waves over the whole picture."""
    u = upsampling_basis(64, 16)
    distance = (torch.arange(64)[:, None] - (4 * torch.arange(16) + 1.5)).abs()
    far = (u.square() * (distance > 12)).sum(0)
    assert float(far.max()) < 0.02


@pytest.mark.parametrize("shape", SHAPES)
def test_painting_and_reading_again_is_the_identity(shape):
    subspace = PyramidSubspace(*shape)
    z = Seed(0).normal(subspace.dimension, 4)
    assert subspace.embed(z).shape == (shape[0] * shape[1] * shape[2], 4)
    assert torch.allclose(subspace.restrict(subspace.embed(z)), z, rtol=0, atol=1e-10)
    assert subspace.embed(z.float()).dtype == torch.float32


def test_a_level_is_the_kronecker_product_of_its_axes_channel_by_channel():
    subspace = PyramidSubspace(2, 7, 5, 3, 2)
    u = torch.kron(
        identity(2), torch.kron(upsampling_basis(7, 3), upsampling_basis(5, 2))
    )
    x = Seed(0).normal(70, 4)
    assert torch.allclose(subspace.restrict(x), u.T @ x)
    assert torch.allclose(subspace.embed(u.T @ x), u @ (u.T @ x))


def test_full_resolution_is_the_picture_itself():
    subspace = PyramidSubspace(3, 6, 4, 6, 4)
    x = torch.zeros(72, 2)
    assert subspace.is_whole
    assert subspace.restrict(x) is x
    assert subspace.embed(x) is x
    assert not PyramidSubspace(3, 6, 4, 6, 3).is_whole


def test_chunks_of_columns_change_nothing(monkeypatch):
    x = torch.randn(3 * 12 * 10, 1000, dtype=torch.float64)
    subspace = PyramidSubspace(3, 12, 10, 5, 4)
    small = subspace.restrict(x)
    pictures = subspace.embed(small)
    # Only the least number of columns at a time, 256.
    monkeypatch.setattr("sliceflow.estimators.pictures.pyramid.MAX_VALUES_PER_CHUNK", 1)
    torch.testing.assert_close(subspace.restrict(x), small)
    torch.testing.assert_close(subspace.embed(small), pictures)
