"""Pictures in tiles.

Projected, moved and lifted by every backend as by the reference.
"""

import numpy as np
import pytest
import torch

from sliceflow.kernels import TileGeometry, reference

CUTS = [  # channels, height, width, patch, offset
    (1, 1, 1, 1, (0, 0)),
    (1, 4, 4, 4, (0, 0)),  # as many directions as lanes: the rotation is not filled up
    (1, 8, 4, 3, (2, 1)),
    (3, 5, 4, 3, (2, 1)),
]
LARGE_CUTS = [  # minutes in Triton's interpreter
    (3, 8, 8, 5, (4, 0)),
    (1, 15, 17, 13, (7, 3)),
    (3, 10, 9, 10, (0, 2)),
]
ALL_CUTS = [*CUTS, *(pytest.param(cut, marks=pytest.mark.slow) for cut in LARGE_CUTS)]


def tiles_of(backend, cut, n, dtype, n_shared=0, n_separate=1):
    """Pictures, a rotation, its geometry, maps, and class offsets.

    `n_shared` classes offset projections, or `n_separate` ones have their own maps.
    """
    channels, height, width, patch, offset = cut
    geometry = TileGeometry(
        (channels, height, width), (min(patch, height), min(patch, width)), offset
    )
    rng = np.random.default_rng(n)
    h = geometry.n_directions
    x = (
        torch.from_numpy(rng.normal(size=(channels * height * width, n)))
        .float()
        .to(backend.device)
    )
    theta = np.linalg.qr(
        rng.normal(size=(geometry.values_per_tile, geometry.values_per_tile))
    )[0]
    theta = np.pad(
        theta,
        (0, backend.padded_size(geometry.values_per_tile) - geometry.values_per_tile),
    )
    lo = torch.from_numpy((-2.0) + rng.uniform(0, 0.5, n_separate * h)).to(x.device)
    hi = torch.from_numpy(1.5 + rng.uniform(0, 0.5, n_separate * h)).to(x.device)
    values = (
        torch.from_numpy(np.sort(rng.normal(size=(n_separate * h, 65)), axis=1))
        .float()
        .to(x.device)
    )
    of_classes = (None, None)
    if n_shared:
        offsets = torch.from_numpy(rng.normal(size=(h, n_shared))).float().to(x.device)
        of_classes = (offsets, (torch.arange(n) % n_shared).to(x.device))
    return (
        x,
        torch.from_numpy(theta).to(x.device, dtype),
        geometry,
        (lo, hi, values),
        of_classes,
    )


def dtypes(backend):
    """Triton's rotations may have 16 bits.

    The errors of half precision add up as a random walk.
    """
    return (
        (torch.float16, torch.float32) if backend.name == "triton" else (torch.float32,)
    )


@pytest.mark.parametrize("cut", ALL_CUTS, ids=str)
def test_tiles_are_projected_and_lifted(backend, cut):
    for dtype in dtypes(backend):
        x, theta, geometry, _, of_classes = tiles_of(backend, cut, 40, dtype, 3)
        indices = torch.arange(39, 0, -3, device=x.device).int()
        for chosen in ((None, None, None), (indices, *of_classes)):
            z = backend.project_tiles(
                x, theta.T.contiguous().T, geometry, *chosen
            )  # as QR leaves it
            wanted = reference.project_tiles(x, theta, geometry, *chosen)
            assert z.shape == wanted.shape
            assert float((z - wanted).abs().max()) <= (
                4e-3 if dtype == torch.float16 else 1e-4
            )
        z = reference.project_tiles(x, theta, geometry)
        back = backend.lift_tiles(z, theta, geometry)  # a rotation and its inverse
        assert float((back - x).abs().max()) <= (
            2e-2 if dtype == torch.float16 else 1e-4
        )


@pytest.mark.parametrize(
    "starts", [None, (0, 13, 13, 40)], ids=["together", "by class"]
)
@pytest.mark.parametrize("cut", ALL_CUTS, ids=str)
def test_tiles_are_moved(backend, cut, starts):
    """Tables of 65 random knots bend sharply.

    A z that is rounded by 1e-3 moves by up to 1e-2.
    """
    dtype = dtypes(backend)[0]
    n_shared, n_separate = (3, 1) if starts is None else (0, len(starts) - 1)
    x, theta, geometry, table, of_classes = tiles_of(
        backend, cut, 40, dtype, n_shared, n_separate
    )
    ours = x.clone()
    theirs = x.clone()
    backend.move_tiles(ours, theta, geometry, *table, 0.7, *of_classes, starts)
    reference.move_tiles(theirs, theta, geometry, *table, 0.7, *of_classes, starts)
    assert float((theirs - x).abs().max()) > 0.1
    error = (ours - theirs).abs()
    half = dtype == torch.float16
    assert float(error.max()) <= (5e-2 if half else 1e-3)
    assert float(error.mean()) <= (2e-3 if half else 1e-5)


@pytest.mark.parametrize("starts", [None, (0, 7, 16)], ids=["together", "by class"])
def test_tiles_that_do_not_fit_on_chip_are_projected_and_moved(
    starts, backend, monkeypatch
):
    """As if a tile of nine values were too large; `LARGE_CUTS` has one of 270."""
    if backend.name == "triton":
        from sliceflow.kernels.triton import tiles

        monkeypatch.setattr(tiles, "_MAX_LANES_ON_CHIP", 8)
    dtype = dtypes(backend)[0]
    n_separate = 1 if starts is None else 2
    settings = (16, dtype, 2 if starts is None else 0, n_separate)
    x, theta, geometry, table, of_classes = tiles_of(
        backend, (1, 4, 3, 3, (2, 0)), *settings
    )
    indices = torch.arange(15, 0, -3, device=x.device).int()
    wanted = reference.project_tiles(x, theta, geometry, indices, *of_classes)
    z = backend.project_tiles(x, theta, geometry, indices, *of_classes)
    assert float((z - wanted).abs().max()) <= 4e-3
    ours = x.clone()
    theirs = x.clone()
    backend.move_tiles(ours, theta, geometry, *table, 0.7, *of_classes, starts)
    reference.move_tiles(theirs, theta, geometry, *table, 0.7, *of_classes, starts)
    assert float((theirs - x).abs().max()) > 0.1
    assert float((ours - theirs).abs().max()) <= 5e-2


def test_a_part_of_the_pictures_is_moved_in_place(backend):
    for starts in (None, (0, 5, 34)):
        n_separate = 1 if starts is None else 2
        x, theta, geometry, table, _ = tiles_of(
            backend, CUTS[1], 60, torch.float32, n_separate=n_separate
        )
        ours = x.clone()
        theirs = x.clone()
        backend.move_tiles(ours[:, 16:50], theta, geometry, *table, 1.0, starts=starts)
        reference.move_tiles(
            theirs[:, 16:50], theta, geometry, *table, 1.0, starts=starts
        )
        assert torch.equal(ours[:, :16], x[:, :16])
        assert torch.equal(ours[:, 50:], x[:, 50:])
        assert torch.allclose(ours, theirs, atol=5e-3)


def test_more_blocks_of_pictures_and_directions_than_one_have_their_places(backend):
    """Two blocks of directions, two of pictures: a tile of 147 values, 150 pictures."""
    x, theta, geometry, _, of_classes = tiles_of(
        backend, (3, 7, 7, 7, (0, 5)), 150, torch.float32, 2
    )
    wanted = reference.project_tiles(x, theta, geometry, None, *of_classes)
    z = backend.project_tiles(x, theta, geometry, None, *of_classes)
    assert float((z - wanted).abs().max()) <= 1e-4


@pytest.mark.parametrize("cut", ALL_CUTS)
def test_every_value_of_all_tiles_is_of_a_picture_or_beyond(cut):
    channels, height, width, patch, offset = cut
    size = (min(patch, height), min(patch, width))
    geometry = TileGeometry((channels, height, width), size, offset)
    values = torch.cat((geometry.scatter_index, geometry.beyond_indices)).sort().values
    assert torch.equal(values, torch.arange(geometry.n_directions))
