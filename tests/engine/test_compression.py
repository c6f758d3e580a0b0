"""Compressed maps: few knots, where the maps bend, and the tails."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sliceflow.engine.compression import (
    Compression,
    compress_grid_at_bends,
    compress_grid_evenly,
)
from sliceflow.engine.maps import GridMaps, KnotMaps
from sliceflow.engine.transports import HistogramTransport, SortedTransport


@st.composite
def grids(draw):
    """Maps as histograms of particles and data make them.

    Smooth, gappy, tied, constant, far away.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    h = draw(st.integers(1, 5))
    n_bins = draw(st.sampled_from([1, 2, 16, 101, 256]))
    scale = draw(st.sampled_from([1.0, 1e-6, 1e6, 1e30]))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    shape = draw(
        st.sampled_from(["smooth", "gaps", "ties", "constant", "nowhere to go"])
    )
    z_p = rng.normal(size=(h, 500))
    z_q = rng.gamma(2, size=(h, 400))
    if shape == "gaps":
        z_p += 20 * (np.arange(500) % 3)
        z_q += 20 * (np.arange(400) % 3)
    elif shape == "ties":
        z_p = z_p.round()
        z_q = z_q.round()
    elif shape == "constant":
        z_p = np.full_like(z_p, 0.7)
    elif shape == "nowhere to go":
        z_q = z_p
    z_p = torch.from_numpy(scale * z_p).to(dtype)
    z_q = torch.from_numpy(scale * z_q).to(dtype)
    return HistogramTransport(n_bins).solve(z_p, z_q).maps


@st.composite
def compressed_maps(draw):
    """Such maps at a few knots."""
    grid_maps = draw(grids())
    n_knots = draw(st.integers(2, min(grid_maps.values.shape[1], 40)))
    max_displacement = draw(st.sampled_from([1e-3, 1.0, 4.0])) * float(
        grid_maps.values.abs().max() + 1e-30
    )
    return compress_grid_at_bends(grid_maps, n_knots, max_displacement)


def bent(n_bins=64, rows=20, seed=0):
    """Maps between random histograms, with the particles' counts."""
    rng = torch.Generator().manual_seed(seed)
    p = torch.randn(rows, 4000, generator=rng) * (
        1 + torch.arange(rows)[:, None] / rows
    )
    q = torch.randn(rows, 4000, generator=rng)
    q += torch.sign(torch.randn(rows, 4000, generator=rng)) * 2  # two hills: maps bend
    return HistogramTransport(n_bins).solve(p, q).maps, p


@given(compressed=compressed_maps())
def test_displacements_are_straight_between_knots_and_maps_ascend(compressed):
    """Map by map, as the docstring says it."""
    grid = compressed.expand()
    edges = np.arange(compressed.n_bins + 1)
    assert grid.values.dtype == compressed.dtype
    for row, (lo, hi) in enumerate(zip(compressed.lo, compressed.hi, strict=True)):
        d = np.interp(
            edges,
            compressed.edges[row],
            compressed.quantized_displacements[row].double() * 2.0**compressed.exponent,
        )
        values = float(lo) + float(hi - lo) * edges / compressed.n_bins + d
        wanted = np.maximum.accumulate(values)
        digits = 4 * torch.finfo(compressed.dtype).eps * np.abs(values).max()
        assert np.abs(grid.values[row].double().numpy() - wanted).max() <= digits


@given(compressed=compressed_maps(), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_maps_that_move_nothing_are_left_out_and_come_back(compressed, share, seed):
    still = (
        torch.rand(len(compressed.lo), generator=torch.Generator().manual_seed(seed))
        < share
    )
    compressed = replace(
        compressed,
        quantized_displacements=torch.where(
            still[:, None], 0, compressed.quantized_displacements
        ),
    ).with_canonical_identity_maps()
    moving_maps = compressed.without_identity_maps()
    moving = compressed.quantized_displacements.any(1)
    assert (len(moving_maps.lo), moving_maps.n_maps) == (
        int(moving.sum()),
        len(compressed.lo),
    )
    moving_maps.check_saved()
    again = moving_maps.with_identity_maps()
    assert all(
        torch.equal(getattr(compressed, name), getattr(again, name))
        for name in ("lo", "hi", "edges", "quantized_displacements")
    )
    z = compressed.lo.new_tensor([[-3.0, 0.1, 5.0]]).expand(len(compressed.lo), -1)
    assert bool((moving_maps.expand().displace(z)[~moving].abs() < 1e-6).all())


def test_knots_at_bends_are_better_than_even_ones():
    grid_maps, p = bent()
    whole = grid_maps.displace(p)

    def error(other):
        return float((other.displace(p) - whole).square().mean().sqrt())

    few = error(compress_grid_at_bends(grid_maps, 13, max_displacement=16.0).expand())
    plain = error(compress_grid_evenly(grid_maps, 12))
    assert few < plain / 2
    assert (
        error(compress_grid_at_bends(grid_maps, 33, max_displacement=16.0).expand())
        < few / 1.5
    )


def test_lines_between_knots_leave_the_mean_and_the_spread_as_they_are():
    """Lines through the map itself would cut its corners.

    Images would shrink, at every step.
    """
    grid_maps, p = bent()
    image = p + compress_grid_at_bends(
        grid_maps, 8, max_displacement=16.0
    ).expand().displace(p)
    wanted = p + grid_maps.displace(p)
    assert (image.mean(1) - wanted.mean(1)).abs().max() < 0.01
    assert ((image.std(1) / wanted.std(1)) - 1).abs().max() < 0.005


def test_shared_maps_and_sorted_ones_keep_eight_times_as_many_knots():
    grid_maps, p = bent(256)
    shared = Compression(12, 8.0, shared_by_conditions=True)
    assert Compression(12, 8.0).compress(grid_maps).edges.shape == (20, 12)
    assert shared.compress(grid_maps).edges.shape == (20, 96)
    assert isinstance(Compression(256, 8.0).compress(grid_maps), GridMaps)
    assert isinstance(Compression(12, None).compress(grid_maps), GridMaps)
    knots = SortedTransport().solve(p, p + 1).maps
    assert Compression(12, 8.0).compress(knots).values.shape[1] == 96


@given(seed=st.integers(0, 2**32 - 1), shift=st.floats(-3, 3))
def test_compressed_maps_have_rigid_tails(seed, shift):
    """Beyond the ¼√M-th particle: one shift, inside the data's range.

    Unchanged in between.
    """
    rng = np.random.default_rng(seed)
    z_p, z_q = (torch.from_numpy(rng.standard_t(3, size=(2, 4000))) for _ in range(2))
    grid_maps = HistogramTransport(256).solve(z_p, z_q + shift).maps
    compressed = compress_grid_evenly(grid_maps, 256)
    edge = torch.lerp(
        grid_maps.lo[:, None], grid_maps.hi[:, None], torch.linspace(0, 1, 257).double()
    )
    few = round(4000**0.5 / 4)
    ordered = z_p.sort(dim=1).values
    width = (grid_maps.hi - grid_maps.lo)[:, None] / 256
    inside = (edge > ordered[:, few + 1, None] + width) & (
        edge < ordered[:, -few - 2, None] - width
    )
    assert torch.equal(compressed.values[inside], grid_maps.values[inside])
    assert bool((compressed.values.diff(dim=1) >= -1e-12).all())
    assert torch.equal(
        compressed.values,
        compressed.values.clamp(grid_maps.values[:, :1], grid_maps.values[:, -1:]),
    )
    for row in range(2):
        low = ordered[row, few - 2] - width[row]
        high = ordered[row, -few + 1] + width[row]
        for tail in (edge[row] < low, edge[row] > high):
            moved = (compressed.values - edge)[row][tail]
            free = (compressed.values[row] > grid_maps.values[row, 0]) & (
                compressed.values[row] < grid_maps.values[row, -1]
            )
            moved = moved[free[tail]]  # the others stand at the ends of the data
            assert len(moved) == 0 or float(moved.max() - moved.min()) < 1e-9


@pytest.mark.parametrize(
    ("n_bins", "n_knots"), [(1021, 512), (514, 256), (256, 512), (7, 3), (2, 1), (1, 1)]
)
def test_grids_of_any_number_of_bins_keep_many_of_them(n_bins, n_knots):
    grid_maps, z_p = bent(n_bins)
    grid_maps = replace(grid_maps, counts=None)  # no rigid tails: the values stay
    compressed = compress_grid_evenly(grid_maps, n_knots)
    kept = compressed.values.shape[1] - 1
    assert min(n_bins, n_knots) / 2 < kept <= n_knots
    ends = [0, -1]
    assert torch.equal(compressed.values[:, ends], grid_maps.values[:, ends])
    assert (compressed.values.diff(dim=1) >= 0).all()
    # Between edges both are lines: what is lost is within the wider bins.
    error = (compressed.displace(z_p) - grid_maps.displace(z_p)).abs().amax(1)
    largest_rise = compressed.values.diff(dim=1).amax(1)
    assert (error <= largest_rise + 1e-6).all()


def test_compressed_maps_keep_their_tails_if_asked():
    knots = torch.linspace(0, 1, 10_000)[None]
    values = torch.tan(1.57 * knots)
    knot_maps = KnotMaps(knots, values)
    plain = Compression(100).compress(knot_maps)
    tails = Compression(100, keep_tails=True).compress(knot_maps)
    assert float(plain.values.max()) < 0.6 * float(values.max())
    assert float(tails.values.max()) == float(values.max())
    assert tails.knots.shape[1] <= 100 + 2 * 8
    for z in (-5.0, 6.0):  # beyond the particles: to the end, not beyond it
        moved = z + float(tails.displace(torch.tensor([[z]])))
        assert moved == pytest.approx(
            float(values.min() if z < 0 else values.max()), rel=1e-6
        )
    assert bool((tails.knots.diff() > 0).all())


@pytest.mark.parametrize("n_knots", [1, 16, 300])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "transport",
    [SortedTransport(), HistogramTransport(128), HistogramTransport(1024)],
    ids=str,
)
@pytest.mark.parametrize("max_displacement", [8.0, None])
def test_a_map_takes_the_memory_that_is_expected_of_it(
    transport, shared, n_knots, max_displacement
):
    compression = Compression(n_knots, max_displacement, shared_by_conditions=shared)
    z = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 3, 9000))).float()
    n_bins = getattr(transport, "n_bins", None)
    compressed = compression.compress(transport.solve(*z).maps)
    parts = [
        part for part in vars(compressed).values() if isinstance(part, torch.Tensor)
    ]
    nbytes = sum(part.nbytes for part in parts)
    most = 3 * compression.map_bytes(n_bins)
    assert nbytes == most if max_displacement else nbytes <= most
