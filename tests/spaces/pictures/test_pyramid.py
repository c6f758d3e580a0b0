"""Pyramid levels: orthonormal, reproducing constants, blind to everything orthogonal to them."""

import pytest
import torch

from sliceflow.engine.random import Seed
from sliceflow.spaces.pictures import schedules
from sliceflow.spaces.pictures.pyramid import UPSAMPLINGS, Subspace, basis

FULL = {28: "mnist", 32: "cifar10", 64: "celeba"}
ODD = [1, 2, 3, 5, 9, 27, 33]
SHAPES = [
    (1, 8, 8, 3, 3),
    (3, 8, 8, 5, 5),
    (3, 12, 7, 5, 3),
    (1, 5, 9, 1, 2),
    (2, 6, 4, 6, 2),
    (1, 1, 7, 1, 3),
]


def sizes():
    """(full, small) of every preset's stages and of every level of odd sizes."""
    presets = [
        (full, level.h)
        for full, name in FULL.items()
        for level in schedules.from_string(schedules.PRESETS[name], full, full)
    ]
    return sorted({*presets, *((full, small) for full in ODD for small in range(1, full + 1))})


def identity(n):
    return torch.eye(n).double()


@pytest.mark.parametrize("upsampling", UPSAMPLINGS)
def test_every_basis_has_orthonormal_columns(upsampling):
    for full, small in sizes():
        u = basis(full, small, upsampling)
        assert u.shape == (full, small)
        assert u.dtype == torch.float64
        assert torch.allclose(u.T @ u, identity(small), rtol=0, atol=1e-10), (full, small)


@pytest.mark.parametrize("upsampling", UPSAMPLINGS)
def test_every_basis_can_represent_a_constant(upsampling):
    for full, small in sizes():
        u, one = basis(full, small, upsampling), torch.ones(full).double()
        assert torch.allclose(u @ (u.T @ one), one, rtol=0, atol=1e-10), (full, small)


@pytest.mark.parametrize("upsampling", UPSAMPLINGS)
def test_a_basis_treats_left_and_right_alike(upsampling):
    """Nearest pixels halve a tie to one side, so it is compared where nothing ties."""
    for full, small in ((28, 7), (28, 4), (27, 9), (32, 8)):
        u = basis(full, small, upsampling)
        assert torch.allclose(u, u.flip(0, 1), atol=1e-10)


def test_nearest_pixels_are_blocks():
    expected = torch.kron(identity(4), torch.full((3, 1), 3**-0.5).double())
    assert torch.allclose(basis(12, 4, "nearest"), expected)


def test_columns_are_local():
    """The columns are the upsampling's bumps, not waves over the whole picture."""
    u = basis(64, 16)
    distance = (torch.arange(64)[:, None] - (4 * torch.arange(16) + 1.5)).abs()
    far = (u.square() * (distance > 12)).sum(0)
    assert float(far.max()) < 0.02


@pytest.mark.parametrize("upsampling", UPSAMPLINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_painting_and_reading_again_is_the_identity(upsampling, shape):
    level = Subspace(*shape, upsampling)
    z = Seed(0).normal(level.dimension, 4)
    assert level.up(z).shape == (shape[0] * shape[1] * shape[2], 4)
    assert torch.allclose(level.down(level.up(z)), z, rtol=0, atol=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
def test_constant_pictures_stay_constant(shape):
    level = Subspace(*shape)
    x = torch.full((shape[0] * shape[1] * shape[2], 2), 0.7).double()
    assert torch.allclose(level.up(level.down(x)), x, rtol=0, atol=1e-10)
    # A constant has constant coefficients only where nothing is cut off; their norm is kept always.
    assert torch.allclose(level.down(x).norm(), x.norm())


@pytest.mark.parametrize("shape", SHAPES)
def test_a_level_leaves_everything_orthogonal_to_it_untouched(shape):
    level = Subspace(*shape)
    x = Seed(0).normal(shape[0] * shape[1] * shape[2], 3)
    before = level.down(x)
    after = before + Seed(1).normal(*before.shape)
    moved = x + level.up(after - before)
    rest, rest_moved = (v - level.up(level.down(v)) for v in (x, moved))
    assert torch.allclose(rest, rest_moved, rtol=0, atol=1e-10)
    assert torch.allclose(level.down(moved), after, rtol=0, atol=1e-10)


def test_a_level_is_the_kronecker_product_of_its_axes_channel_by_channel():
    level = Subspace(2, 7, 5, 3, 2)
    u = torch.kron(identity(2), torch.kron(basis(7, 3), basis(5, 2)))
    x = Seed(0).normal(70, 4)
    assert torch.allclose(level.down(x), u.T @ x)
    assert torch.allclose(level.up(u.T @ x), u @ (u.T @ x))


def test_full_resolution_is_the_picture_itself():
    level = Subspace(3, 6, 4, 6, 4)
    x = torch.zeros(72, 2)
    assert level.is_full_resolution
    assert level.down(x) is x
    assert level.up(x) is x
    assert not Subspace(3, 6, 4, 6, 3).is_full_resolution


def test_scale_is_what_a_constant_picture_grows_by():
    level = Subspace(1, 8, 8, 2, 2, "nearest")
    assert torch.allclose(level.down(torch.ones(64, 1)), torch.full((4, 1), 4.0))


def test_pictures_keep_their_precision():
    level = Subspace(1, 8, 8, 3, 3)
    for dtype in (torch.float32, torch.float64):
        assert level.down(torch.zeros(64, 2, dtype=dtype)).dtype == dtype


@pytest.mark.parametrize("small", [0, -1, 9])
def test_a_level_must_fit_the_picture(small):
    message = f"^a level of {small} pixels does not fit a picture of 8; use 1 to 8$"
    with pytest.raises(ValueError, match=message):
        basis(8, small)


def test_chunks_of_columns_change_nothing(monkeypatch):
    x = torch.randn(3 * 12 * 10, 1000, dtype=torch.float64)
    level = Subspace(3, 12, 10, 5, 4)
    small = level.down(x)
    pictures = level.up(small)
    monkeypatch.setattr("sliceflow.spaces.pictures.pyramid._CHUNK", 1)  # 256 columns at a time
    torch.testing.assert_close(level.down(x), small)
    torch.testing.assert_close(level.up(small), pictures)
