"""The Triton kernels against the plain-torch reference, on a GPU or else in Triton's interpreter."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton", reason="Triton is not installed")

from sliceflow.kernels import Geometry, reference  # noqa: E402
from sliceflow.kernels import triton as gpu  # noqa: E402
from sliceflow.kernels.triton import large_tiles as gpu_large_tiles  # noqa: E402
from sliceflow.kernels.triton import tiles as gpu_tiles  # noqa: E402
from sliceflow.kernels.triton.values import displace_in_place, pack  # noqa: E402

KINDS = ["normal", "ties", "constant", "gap", "huge", "tiny"]
SIZES = [1, 2, 97, 1009, 5000]
BINS = [32, 64, 256]


def projections(kind: str, n: int, seed: int = 0, h: int = 3) -> torch.Tensor:
    z = np.random.default_rng([seed, n]).normal(size=(h, n))
    if kind == "ties":
        z = np.round(z)
    elif kind == "constant":
        z = np.full((h, n), 3.0)
    elif kind == "gap":
        z[:, ::2] += 1000
    elif kind == "huge":
        z = z * 1e30
    elif kind == "tiny":
        z = z * 1e-30
    return torch.from_numpy(z).float().to(DEVICE)


def integers(z, n_bins):
    """The reference's counts as the GPU's own type."""
    return reference.count(z, *reference.value_range(z), n_bins).to(torch.int32)


def span(*tensors):
    return max(float(t.double().abs().max()) for t in tensors)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_ranges_agree(kind, n):
    z = projections(kind, n)
    for ours, theirs in zip(gpu.value_range(z), reference.value_range(z), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("n_bins", BINS)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_counts_agree_but_for_values_at_an_edge(kind, n, n_bins):
    z = projections(kind, n, h=2)
    lo, hi = reference.value_range(z)
    counts = gpu.count(z, lo, hi, n_bins)
    expected = reference.count(z, lo, hi, n_bins)
    assert counts.dtype == torch.int32
    assert counts.sum(1).tolist() == [n] * len(z)
    if kind == "ties":  # a whole tie may stand at an edge: one edge's worth of rounding moves all of it
        total, wanted = counts.cumsum(1).double(), expected.cumsum(1)
        assert int(((total - wanted).abs() > 0).sum(1).max()) <= 3
    else:
        assert int((counts - expected).abs().sum(1).max()) <= 2 * (1 + n // 1000)


def test_more_values_than_one_program_handles_are_counted():
    z = projections("normal", 40_001, h=2)
    counts = gpu.count(z, *reference.value_range(z), 64)
    assert counts.sum(1).tolist() == [40_001] * 2
    assert int((counts - reference.count(z, *reference.value_range(z), 64)).abs().sum(1).max()) <= 80


def test_values_outside_a_given_range_are_counted_at_its_ends():
    z = torch.tensor([[-5.0, 0.51, 9.0, -1e6, 1e6]], device=DEVICE)
    lo, hi = (torch.tensor([v], dtype=torch.float64, device=DEVICE) for v in (0.0, 1.0))
    counts = gpu.count(z, lo, hi, 32)
    assert {b: c for b, c in enumerate(counts[0].tolist()) if c} == {0: 2, 16: 1, 31: 2}


def test_counts_add_up():
    z = projections("normal", 1009)
    lo, hi = gpu.value_range(z)
    parts = sum(gpu.count(part, lo, hi, 64) for part in z.split(100, dim=1))
    assert torch.equal(parts, gpu.count(z, lo, hi, 64))


PAIRS = [
    (p, q) if "normal" in (p, q) else pytest.param(p, q, marks=pytest.mark.slow)
    for p, q in product(KINDS, KINDS)
]


@pytest.mark.parametrize("n_bins", BINS)
@pytest.mark.parametrize(("kind_p", "kind_q"), PAIRS)
def test_tables_from_the_same_counts_agree(kind_p, kind_q, n_bins):
    for m, n in ((1, 97), (97, 1), (1009, 5000)):
        z_p, z_q = projections(kind_p, m, h=1), projections(kind_q, n, seed=1, h=1)
        counts_p, counts_q = integers(z_p, n_bins), integers(z_q, n_bins)
        ranges = reference.value_range(z_p), reference.value_range(z_q)
        values = gpu.compose(counts_p, *ranges[0], counts_q, *ranges[1])[0]
        expected = reference.compose(counts_p.double(), *ranges[0], counts_q.double(), *ranges[1])[0]
        assert values.dtype == torch.float32
        assert values.shape == (len(z_p), n_bins + 1)
        worst = float((values - expected).abs().max())
        assert worst <= 1e-5 * span(z_q), (m, n)
        assert bool((values.diff(dim=1) >= -1e-6 * span(z_q)).all())


def test_particles_and_data_may_have_different_bins():
    z_p, z_q = projections("gap", 1009), projections("normal", 97, seed=1)
    counts_p, counts_q = integers(z_p, 64), integers(z_q, 256)
    ranges = reference.value_range(z_p), reference.value_range(z_q)
    values = gpu.compose(counts_p, *ranges[0], counts_q, *ranges[1])[0]
    expected = reference.compose(counts_p.double(), *ranges[0], counts_q.double(), *ranges[1])[0]
    assert float((values - expected).abs().max()) <= 1e-5 * span(z_q)


def test_large_counts_do_not_overflow():
    """Levels are products of two totals: 10^6 particles times 10^6 data, twice."""
    rng = np.random.default_rng(0)
    counts_p, counts_q = (
        torch.from_numpy(rng.multinomial(1_000_000, np.full(64, 1 / 64), size=2)).int().to(DEVICE)
        for _ in range(2)
    )
    lo, hi = (torch.full((2,), v, dtype=torch.float64, device=DEVICE) for v in (-1.0, 1.0))
    values = gpu.compose(counts_p, lo, hi, counts_q, lo, hi)[0]
    expected = reference.compose(counts_p.double(), lo, hi, counts_q.double(), lo, hi)[0]
    assert float((values - expected).abs().max()) <= 1e-5


@pytest.mark.parametrize("n_bins", BINS)
@pytest.mark.parametrize("kind", KINDS)
def test_displacements_by_the_same_table_agree(kind, n_bins):
    for n in SIZES:
        z, z_q = projections(kind, n, h=2), projections("normal", 97, seed=1, h=2)
        ranges = reference.value_range(z), reference.value_range(z_q)
        counts = integers(z, n_bins).double(), integers(z_q, n_bins).double()
        table = reference.compose(counts[0], *ranges[0], counts[1], *ranges[1])[0].float()
        fresh = torch.cat((z, z * 1.5, z - 0.5), dim=1)
        moved = gpu.displace_grid(fresh, *ranges[0], table)
        expected = reference.displace_grid(fresh, *ranges[0], table)
        assert moved.dtype == torch.float32
        assert float((moved - expected).abs().max()) <= 2e-5 * span(fresh, z_q), n


@pytest.mark.parametrize("n_bins", BINS)
@pytest.mark.parametrize("kind", ["normal", "gap", "huge"])
def test_a_whole_step_agrees_to_a_bin(kind, n_bins):
    """A value counted in the bin next door moves the table by less than that bin."""
    z_p, z_q = projections(kind, 1009), projections(kind, 5000, seed=1)
    images = []
    for k in (gpu, reference):
        ranges = k.value_range(z_p), k.value_range(z_q)
        counts = k.count(z_p, *ranges[0], n_bins), k.count(z_q, *ranges[1], n_bins)
        table = k.compose(counts[0], *ranges[0], counts[1], *ranges[1])[0].float()
        images.append(z_p + k.displace_grid(z_p, *ranges[0], table))
    assert float((images[0] - images[1]).abs().mean()) <= 1e-3 * span(z_q) / n_bins
    assert float((images[0] - images[1]).abs().max()) <= 2 * span(z_q) / n_bins


def test_no_empty_run_is_crossed():
    """Two clusters far apart keep to themselves: the bins beside the gap are not stretched into it."""
    z = torch.cat((torch.linspace(0, 1, 500), torch.linspace(100, 101, 500)))[None].to(DEVICE)
    lo, hi = gpu.value_range(z)
    counts = gpu.count(z, lo, hi, 64)
    table = gpu.compose(counts, lo, hi, counts, lo, hi)[0]
    assert float(gpu.displace_grid(z, lo, hi, table).abs().max()) < 1e-3


@pytest.mark.parametrize("n", [*SIZES, 4096, 4097])
@pytest.mark.parametrize("n_classes", [1, 10])
def test_class_offsets_agree(n, n_classes):
    z = projections("normal", n)
    offsets = projections("normal", n_classes, seed=1)
    codes = (torch.arange(n) % n_classes).to(DEVICE)
    ours = gpu.add_class_offsets(z, offsets, codes)
    assert torch.equal(ours, reference.add_class_offsets(z, offsets, codes))


def test_views_are_read_where_they_lie():
    """A part of the columns, every other row, and a transposed tensor."""
    z = projections("normal", 17, h=6)
    codes, offsets = torch.arange(17).to(DEVICE) % 5, projections("normal", 5, seed=1, h=17)
    for view in (z[:, 3:14], z[::2], z.T):
        lo, hi = reference.value_range(view)
        expected = gpu.count(view.contiguous(), lo, hi, 32)
        assert torch.equal(gpu.count(view, lo, hi, 32), expected)
        table = projections("normal", 33, seed=2, h=len(view)).sort(dim=1).values
        moved = gpu.displace_grid(view, lo, hi, table)
        assert torch.equal(moved, gpu.displace_grid(view.contiguous(), lo, hi, table))
        c, o = codes[: view.shape[1]], offsets[: len(view)]
        assert torch.equal(gpu.add_class_offsets(view, o, c), reference.add_class_offsets(view, o, c))


def test_what_triton_does_not_do_is_the_references():
    """Weights, float64, and bins that are not a power of two."""
    z = projections("normal", 97)
    lo, hi = reference.value_range(z)
    weights = torch.rand(97, dtype=torch.float64, device=DEVICE)
    for args in ((z, lo, hi, 64, weights), (z.double(), lo, hi, 64), (z, lo, hi, 37), (z, lo, hi, 16)):
        assert torch.equal(gpu.count(*args), reference.count(*args))  # integers: in any order
    counts = gpu.count(z, lo, hi, 64), gpu.count(z, lo, hi, 64, weights)
    table = gpu.compose(counts[0], lo, hi, counts[1], lo, hi)[0]
    expected = reference.compose(counts[0].double(), lo, hi, counts[1], lo, hi)[0]
    assert torch.equal(table, expected)
    moved = gpu.displace_grid(z.double(), lo, hi, table)
    assert torch.equal(moved, reference.displace_grid(z.double(), lo, hi, table))


@pytest.mark.parametrize("n_bins", BINS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_range_is_found_on_the_way(kind, n_bins):
    for n in (1, 97, 2048, 4097):
        z = projections(kind, n)
        counts, lo, hi = gpu.histogram(z, n_bins)
        expected = reference.value_range(z)
        assert torch.equal(lo.double(), expected[0])
        assert torch.equal(hi.double(), expected[1])
        assert torch.equal(counts, gpu.count(z, lo, hi, n_bins))


RUNS = [  # where runs of columns start
    (0, 97),
    (0, 40, 97),
    (0, 0, 1, 1025, 1025, 5000, 5000),
    (0, 5001, 9999, 15_000, 40_001),
]


@pytest.mark.parametrize("n_bins", [32, 64, 128, 512, 1024])
@pytest.mark.parametrize("starts", RUNS, ids=str)
def test_runs_of_columns_are_counted_by_themselves(starts, n_bins):
    z = projections("normal", starts[-1])
    counts, lo, hi = gpu.histogram_of_runs(z, n_bins, starts)
    expected = reference.histogram_of_runs(z, n_bins, starts)
    assert (counts.dtype, lo.dtype, hi.dtype) == (torch.int32, torch.float32, torch.float32)
    assert torch.equal(lo.double(), expected[1])
    assert torch.equal(hi.double(), expected[2])
    assert counts.shape == expected[0].shape
    assert torch.equal(counts.sum(1), expected[0].sum(1).long())
    off = (counts - expected[0]).abs().sum(1)  # but for values at an edge
    assert bool((off <= 2 * (1 + expected[0].sum(1) // 1000)).all())
    for c, (first, end) in enumerate(pairwise(starts)):
        if first < end:
            rows = slice(c * len(z), (c + 1) * len(z))
            assert torch.equal(counts[rows], gpu.histogram(z[:, first:end], n_bins)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_runs_of_any_kind_are_counted_as_without_runs(kind):
    z, starts = projections(kind, 1009), (0, 300, 300, 1009)
    counts, lo, hi = gpu.histogram_of_runs(z, 64, starts)
    for c, (first, end) in enumerate(pairwise(starts)):
        if first < end:
            rows = slice(c * len(z), (c + 1) * len(z))
            separate = gpu.histogram(z[:, first:end], 64)
            for ours, theirs in zip((counts, lo, hi), separate, strict=True):
                assert torch.equal(ours[rows], theirs)
    whole, separate = gpu.histogram_of_runs(z, 64, (0, 1009)), gpu.histogram(z, 64)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(whole, separate, strict=True))


def test_runs_that_triton_does_not_count_are_the_references():
    z = projections("normal", 97, h=4)
    for view, n_bins in ((z.double(), 64), (z, 37), (z, 16)):
        ours = gpu.histogram_of_runs(view, n_bins, (0, 20, 20, 97))
        theirs = reference.histogram_of_runs(view, n_bins, (0, 20, 20, 97))
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    ours = gpu.histogram_of_runs(z.T, 64, (0, 1, 4))  # a transposed tensor is copied
    theirs = gpu.histogram_of_runs(z.T.contiguous(), 64, (0, 1, 4))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_runs_are_displaced_by_tables_of_their_own():
    z, starts = projections("normal", 97), (0, 20, 20, 97)
    lo, hi = (torch.full((9,), v, device=DEVICE) for v in (-2.0, 1.5))
    values = projections("normal", 33, seed=2, h=9).sort(dim=1).values
    moved = gpu.displace_runs(z, lo, hi, values, starts)
    expected = reference.displace_runs(z, lo, hi, values, starts)
    assert float((moved - expected).abs().max()) <= 2e-5 * span(z, values)


def test_the_cost_is_the_mean_squared_displacement():
    z_p, z_q = projections("normal", 5000), 2 * projections("normal", 1009, seed=1) + 1
    ours = gpu.compose(*gpu.histogram(z_p, 256), *gpu.histogram(z_q, 256))
    theirs = reference.compose(*reference.histogram(z_p, 256), *reference.histogram(z_q, 256))
    assert torch.allclose(ours[1].double(), theirs[1], rtol=1e-3)
    moved = reference.displace_grid(z_p, *reference.value_range(z_p), theirs[0])
    assert torch.allclose(theirs[1], moved.double().square().mean(1), rtol=5e-3)


@pytest.mark.parametrize("n_bins", [32, 128, 1024])
def test_shrunk_maps_are_the_references(n_bins):
    z_p, z_q = projections("normal", 4000), 1.05 * projections("normal", 1009, seed=1)
    counts, lo, hi = gpu.histogram(z_p, n_bins)
    values, cost = gpu.compose(counts, lo, hi, *gpu.histogram(z_q, n_bins))
    for kappa in (0.0, 1.0, 1e9):
        h = len(z_p)  # two halves of the maps with rates of their own, where that is possible
        rate = torch.tensor([kappa / 4000, kappa / 1009][: 1 + (h % 2 == 0)], device=DEVICE).double()
        ours, factor = gpu.shrink(lo, hi, values, counts, cost, rate)
        theirs, expected = reference.shrink(lo, hi, values, counts, cost, rate)
        assert float((ours - theirs).abs().max()) <= 1e-5 * span(z_p, z_q)
        assert torch.allclose(factor, expected, atol=1e-4)
    assert float(factor.abs().max()) == 0


def test_the_random_bits_are_the_references():
    key = (0xDEADBEEF, 0x12345678)
    for first, n in ((0, 1), (5, 3000), (2**32 - 7, 20), (2**40, 5)):
        ours = gpu.philox(first, n, key, DEVICE)
        assert torch.equal(ours, reference.philox(first, n, key, DEVICE))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 3), (50, 4), (300, 10)])
def test_laplace_numbers_agree(rows, columns):
    ours = gpu.laplace(rows, columns, (3, 2**32 - 1), DEVICE)
    expected = reference.laplace(rows, columns, (3, 2**32 - 1), DEVICE)
    assert ours.shape == (rows, columns)
    assert float((ours - expected).abs().max()) <= 1e-6


CUTS = [  # channels, height, width, patch, offset
    (1, 1, 1, 1, (0, 0)),
    (1, 4, 4, 4, (0, 0)),  # as many directions as lanes: the rotation is not filled up
    (1, 6, 6, 6, (0, 0)),
    (1, 10, 7, 3, (2, 1)),
    (3, 5, 4, 3, (2, 1)),
]
LARGE_CUTS = [  # minutes in Triton's interpreter
    (3, 8, 8, 5, (4, 0)),
    (1, 15, 17, 13, (7, 3)),
    (3, 10, 9, 10, (0, 2)),  # 270 directions a tile: not on chip
]
ALL_CUTS = [*CUTS, *(pytest.param(cut, marks=pytest.mark.slow) for cut in LARGE_CUTS)]


def tiles_of(cut, n, dtype, n_classes=0):
    """Pictures, a rotation, its geometry, a table, and class offsets."""
    channels, height, width, patch, offset = cut
    size = (min(patch, height), min(patch, width))
    geometry = Geometry((channels, height, width), size, offset)
    rng = np.random.default_rng(n)
    x = torch.from_numpy(rng.normal(size=(channels * height * width, n))).float().to(DEVICE)
    theta = np.linalg.qr(rng.normal(size=(geometry.side, geometry.side)))[0]
    h = geometry.n_directions
    lo, hi = (torch.full((h,), v, device=DEVICE) for v in (-2.0, 1.5))
    values = torch.from_numpy(np.sort(rng.normal(size=(h, 65)), axis=1)).float().to(DEVICE)
    more = gpu.lanes(geometry.side) - geometry.side
    theta = np.pad(theta, (0, more))
    shift = (None, None)
    if n_classes:
        offsets = torch.from_numpy(rng.normal(size=(h, n_classes))).float().to(DEVICE)
        shift = (offsets, (torch.arange(n) % n_classes).to(DEVICE))
    return x, torch.from_numpy(theta).to(DEVICE, dtype), geometry, (lo, hi, values), shift


@pytest.mark.parametrize("n_classes", [0, 3])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("cut", ALL_CUTS, ids=str)
def test_tiles_are_projected_as_by_the_reference(cut, dtype, n_classes):
    x, theta, geometry, _, shift = tiles_of(cut, 40, dtype, n_classes)
    columns = torch.arange(39, 0, -3, device=DEVICE).int()
    for chosen in (None, columns):
        z = gpu.project_tiles(x, theta, geometry, chosen, *shift)
        expected = reference.project_tiles(x, theta, geometry, chosen, *shift)
        assert z.shape == expected.shape
        # A rounded operand of each product: the errors of half precision add up as a random walk.
        assert float((z - expected).abs().max()) <= (4e-3 if dtype == torch.float16 else 1e-4)


@pytest.mark.parametrize("n_classes", [0, 3])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("cut", ALL_CUTS, ids=str)
def test_tiles_are_moved_as_by_the_reference(cut, dtype, n_classes):
    x, theta, geometry, table, shift = tiles_of(cut, 40, dtype, n_classes)
    ours, theirs = x.clone(), x.clone()
    gpu.move_tiles(ours, theta, geometry, *table, 0.7, *shift)
    reference.move_tiles(theirs, theta, geometry, *table, 0.7, *shift)
    assert float((theirs - x).abs().max()) > 0.1
    error = (ours - theirs).abs()
    # Tables of 65 random knots bend sharply: a z that is rounded by 1e-3 moves by up to 1e-2.
    assert float(error.max()) <= (5e-2 if dtype == torch.float16 else 1e-4)
    assert float(error.mean()) <= (2e-3 if dtype == torch.float16 else 1e-5)


def test_a_tile_that_does_not_fit_on_chip_is_projected_and_moved():
    """272 directions; `LARGE_CUTS` have more of such tiles."""
    x, theta, geometry, table, _ = tiles_of((1, 17, 16, 17, (0, 0)), 16, torch.float32)
    expected = reference.project_tiles(x, theta, geometry)
    assert float((gpu.project_tiles(x, theta, geometry) - expected).abs().max()) <= 1e-4
    ours, theirs = x.clone(), x.clone()
    gpu.move_tiles(ours, theta, geometry, *table, 0.7)
    reference.move_tiles(theirs, theta, geometry, *table, 0.7)
    assert float((theirs - x).abs().max()) > 0.1
    assert float((ours - theirs).abs().max()) <= 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("cut", ALL_CUTS[2:], ids=str)
def test_a_rotation_may_lie_in_memory_column_by_column(cut, dtype):
    """As a QR decomposition leaves it."""
    x, theta, geometry, table, _ = tiles_of(cut, 40, dtype)
    turned = theta.T.contiguous().T
    same = gpu.project_tiles(x, theta, geometry), gpu.project_tiles(x, turned, geometry)
    assert torch.equal(*same)
    ours, theirs = x.clone(), x.clone()
    gpu.move_tiles(ours, turned, geometry, *table, 0.7)
    gpu.move_tiles(theirs, theta, geometry, *table, 0.7)
    assert torch.allclose(ours, theirs, atol=1e-5)  # cuBLAS adds in another order


def test_a_part_of_the_columns_is_moved_in_place():
    x, theta, geometry, table, _ = tiles_of(CUTS[4], 60, torch.float32)
    ours, theirs = x.clone(), x.clone()
    gpu.move_tiles(ours[:, 16:50], theta, geometry, *table, 1.0)
    reference.move_tiles(theirs[:, 16:50], theta, geometry, *table, 1.0)
    assert torch.equal(ours[:, :16], x[:, :16])
    assert torch.equal(ours[:, 50:], x[:, 50:])
    assert torch.allclose(ours, theirs, atol=5e-3)


def tables_of(geometry, n_runs):
    """As many tables as there are runs, all different."""
    rng, h = np.random.default_rng(n_runs), n_runs * geometry.n_directions
    lo, hi = (torch.from_numpy(v + rng.uniform(0, 0.5, h)).float().to(DEVICE) for v in (-2.0, 1.5))
    return lo, hi, torch.from_numpy(np.sort(rng.normal(size=(h, 65)), axis=1)).float().to(DEVICE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("cut", "starts"),
    [
        *((cut, (0, 13, 13, 40)) for cut in CUTS),
        (CUTS[3], (0, 0, 131, 132, 300)),
        *(pytest.param(cut, (0, 13, 13, 40), marks=pytest.mark.slow) for cut in LARGE_CUTS),
    ],
    ids=str,
)
def test_runs_of_tiles_are_moved_as_by_the_reference(cut, starts, dtype):
    x, theta, geometry, _, _ = tiles_of(cut, starts[-1], dtype)
    table = tables_of(geometry, len(starts) - 1)
    ours, theirs = x.clone(), x.clone()
    gpu.move_tiles(ours, theta, geometry, *table, 0.7, starts=starts)
    reference.move_tiles(theirs, theta, geometry, *table, 0.7, starts=starts)
    assert float((theirs - x).abs().max()) > 0.1
    error = (ours - theirs).abs()
    assert float(error.max()) <= (5e-2 if dtype == torch.float16 else 1e-4)
    assert float(error.mean()) <= (2e-3 if dtype == torch.float16 else 1e-5)


def test_runs_longer_than_a_block_are_displaced_in_place():
    z, starts = projections("normal", 4200), (0, 2049, 2049, 4200)
    lo, hi = (torch.full((9,), v, device=DEVICE) for v in (-2.0, 1.5))
    values = projections("normal", 65, seed=2, h=9).sort(dim=1).values
    moved = z.clone()
    displace_in_place(moved, pack(lo, hi, values), starts=starts)
    expected = reference.displace_runs(z, lo, hi, values, starts)
    assert float((moved - expected).abs().max()) <= 5e-3  # read in half precision


@pytest.mark.parametrize("cut", ALL_CUTS, ids=str)
def test_a_single_run_of_tiles_is_moved_as_without_runs(cut):
    x, theta, geometry, table, _ = tiles_of(cut, 70, torch.float16)
    ours, theirs = x.clone(), x.clone()
    gpu.move_tiles(ours, theta, geometry, *table, 0.7, starts=[0, 70])
    gpu.move_tiles(theirs, theta, geometry, *table, 0.7)
    assert torch.equal(ours, theirs)


def test_runs_in_a_part_of_the_columns_are_moved_in_place():
    x, theta, geometry, _, _ = tiles_of(CUTS[4], 60, torch.float32)
    table = tables_of(geometry, 2)
    ours, theirs = x.clone(), x.clone()
    gpu.move_tiles(ours[:, 16:50], theta, geometry, *table, 1.0, starts=(0, 5, 34))
    reference.move_tiles(theirs[:, 16:50], theta, geometry, *table, 1.0, starts=(0, 5, 34))
    assert torch.equal(ours[:, :16], x[:, :16])
    assert torch.equal(ours[:, 50:], x[:, 50:])
    assert torch.allclose(ours, theirs, atol=5e-3)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("n_bins", [32, 1024])
def test_what_is_not_finite_is_counted_at_an_end_and_stays_where_it_is(n_bins):
    z = projections("normal", 40, h=4)
    z[0, 5], z[1, 6], z[2, 7], z[3] = np.nan, np.inf, -np.inf, np.nan
    lo, hi = (torch.full((4,), v, device=DEVICE) for v in (-2.0, 2.0))
    counts = gpu.count(z, lo, hi, n_bins)
    assert torch.equal(counts.double(), reference.count(z, lo.double(), hi.double(), n_bins))
    assert gpu.histogram(z, n_bins)[0].sum(1).tolist() == [40] * 4
    assert gpu.histogram_of_runs(z, n_bins, (0, 13, 40))[0].sum(1).tolist() == [13] * 4 + [27] * 4
    values = projections("normal", n_bins + 1, seed=2, h=4).sort(dim=1).values
    moved = gpu.displace_grid(z, lo, hi, values)
    assert torch.equal(torch.isfinite(moved), torch.isfinite(z))
    displace_in_place(z, pack(lo, hi, values))  # reads by bins, in half precision
    assert z.shape == moved.shape


class Recorder:
    """Stands for a kernel: notes the grids that it is launched with, and runs nothing."""

    def __init__(self):
        self.grids = []

    def __getitem__(self, grid):
        self.grids.append(grid)
        return lambda *args, **options: None


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("patch", [1, 2, 3, 9, 20])
@pytest.mark.parametrize("side", [256, 512])
def test_grids_of_large_pictures_are_within_what_cuda_allows(side, patch, channels, monkeypatch):
    """65,536 tiles of one pixel, for example; 2³¹ − 1 programs along the first axis, else 65,535."""
    kernels = {
        name: Recorder() for name in ("_project_kernel", "_move_kernel", "_cut_kernel", "_paste_kernel")
    }
    for name, kernel in kernels.items():
        room = gpu_tiles if hasattr(gpu_tiles, name) else gpu_large_tiles
        monkeypatch.setattr(room, name, kernel)
    geometry = Geometry((channels, side, side), (patch, patch), (patch - 1, patch - 1))
    words = torch.zeros(1, 64, dtype=torch.int32)
    monkeypatch.setattr(gpu_tiles, "pack", lambda *table: (words, words))
    monkeypatch.setattr(gpu_large_tiles, "displace_in_place", lambda *args: None)
    monkeypatch.setattr(torch, "bmm", lambda a, b, **out: torch.zeros(1).expand(len(a), a.shape[1], 1))
    x, lanes = torch.zeros(channels * side * side, 1), gpu.lanes(geometry.side)
    theta, values = torch.zeros(lanes, lanes, dtype=torch.float16), torch.zeros(1, 65)
    gpu.project_tiles(x, theta, geometry)
    gpu.move_tiles(x, theta, geometry, values[:, 0], values[:, 0], values, 1.0)
    launched = [grid for kernel in kernels.values() for grid in kernel.grids]
    assert len(launched) == 2 if lanes <= 256 else 3
    for first, *others in launched:
        assert first <= 2**31 - 1
        assert all(size <= 65_535 for size in others)
    if lanes <= 256:
        tiles = np.prod(geometry.grid)
        assert [np.prod(grid) for grid in launched] == [tiles * max(1, lanes // 128), tiles]


def test_more_blocks_of_columns_and_directions_than_one_have_their_places():
    """Two blocks of directions, three of columns: a tile of 147 values, 300 pictures."""
    x, theta, geometry, _, shift = tiles_of((3, 9, 8, 7, (2, 5)), 300, torch.float32, 2)
    expected = reference.project_tiles(x, theta, geometry, None, *shift)
    z = gpu.project_tiles(x, theta, geometry, None, *shift)
    assert float((z - expected).abs().max()) <= 1e-4
