"""Every kernel of every backend against the plain-torch reference.

Projections are friendly and hostile.

Triton's kernels run on a GPU where there is one, else in Triton's interpreter.
"""

import inspect
from itertools import pairwise

import numpy as np
import pytest
import torch

from sliceflow.kernels import Kernels, cpu, reference
from sliceflow.kernels.reference.random import box_muller, words_as_uniform

KINDS = ["normal", "ties", "constant", "gap", "huge", "tiny"]
SIZES = [1, 97, 1009]
PAIRS = (
    [("normal", q) for q in KINDS]
    + [(p, "normal") for p in KINDS[1:]]
    + [("ties", "ties")]
)
STARTS = [
    (0, 97),
    (0, 40, 97),
    (0, 0, 1, 1025, 1025, 3000, 3000),
]  # where the points of each class start


def projections(kind, n, seed=0, h=3, dtype=torch.float32, device="cpu"):
    z = np.random.default_rng([seed, n]).normal(size=(h, n))
    if kind == "ties":
        z = np.round(z)
    elif kind == "constant":
        z = np.full((h, n), 3.0)
    elif kind == "gap":
        z[:, ::2] += 1000
    elif kind in ("huge", "tiny"):
        z = z * (1e30 if kind == "huge" else 1e-30)
    return torch.from_numpy(z).to(device, dtype)


def close(ours, theirs, scale, dtype=torch.float32, slack=1.0):
    """Equal to some units in the last place of the largest number that took part."""
    tolerance = slack * (2e-5 if dtype == torch.float32 else 1e-11) * float(scale)
    assert ours.shape == theirs.shape
    if ours.numel():
        worst = float((ours.double() - theirs.double()).abs().max())
        assert worst <= tolerance, f"{worst} > {tolerance}"


def span(*tensors):
    return max(float(t.double().abs().max()) for t in tensors)


def counted(module, z, n_bins):
    counts, lo, hi = reference.histogram(z, n_bins)
    return (counts, lo, hi) if module.name == "cpu" else (counts.int(), lo, hi)


# Random numbers


def test_philox_gives_the_published_answers(backend):
    """Known-answer vector of Random123, philox4x32 with 10 rounds."""
    zero = backend.philox(0, 1, (0, 0), backend.device)[0].tolist()
    assert zero == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.mark.parametrize(
    ("first", "n"), [(0, 0), (0, 1), (5, 3000), (2**32 - 7, 20), (2**40, 5)]
)
def test_random_bits_are_the_same_everywhere(backend, first, n):
    key = (0xDEADBEEF, 0x12345678)
    ours = backend.philox(first, n, key, backend.device)
    assert torch.equal(ours, reference.philox(first, n, key, backend.device))
    normal = backend.normal(first, n, key, backend.device)
    close(normal, box_muller(ours), 1, torch.float64)


# Sorted samples


@pytest.mark.parametrize("n", [0, *SIZES])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_sorted(backend, kind, n):
    for dtype in backend.dtypes:
        z = projections(kind, n, dtype=dtype, device=backend.device)
        values, order = backend.argsort_rows(z)
        assert torch.equal(backend.sort_rows(z), reference.sort_rows(z))
        assert torch.equal(values, reference.sort_rows(z))
        assert torch.equal(torch.gather(z, 1, order), values)


@pytest.mark.parametrize(("kind_p", "kind_q"), PAIRS)
@pytest.mark.parametrize("weighted", [False, True])
def test_sorted_samples_are_matched(backend, kind_p, kind_q, weighted):
    for dtype in backend.dtypes:
        for m, n in ((1, 97), (97, 1), (7, 2), (1009, 500)):
            z_p, z_q = (
                projections(kind, size, seed, dtype=dtype, device=backend.device)
                .sort(dim=1)
                .values
                for seed, (kind, size) in enumerate([(kind_p, m), (kind_q, n)])
            )
            w = (
                projections(
                    "normal", n, 2, dtype=torch.float64, device=backend.device
                ).abs()
                + 0.1
            )
            values = backend.match_sorted(z_p, z_q, w if weighted else None)
            close(
                values,
                reference.match_sorted(z_p, z_q, w if weighted else None),
                span(z_q),
                dtype,
            )
            assert bool((values.diff(dim=1) >= 0).all())
            fresh = torch.cat((z_p, z_p * 1.5, z_p - 0.5, z_p[:, :0]), dim=1)
            moved = [k.displace_knots(fresh, z_p, values) for k in (backend, reference)]
            close(*moved, span(fresh, z_q), dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("others", [False, True])
def test_the_closest_row_is_found(backend, kind, others):
    for dtype in backend.dtypes if backend.name == "cpu" else ():
        for m, n, d in ((0, 3, 2), (1, 97, 1), (97, 40, 4)):
            rows = projections(kind, d, h=n, dtype=dtype)
            x = rows if others else projections(kind, d, 1, h=m, dtype=dtype)
            most = torch.tensor([float("inf"), 0.5, 0.0, 2.0][:d], dtype=dtype)
            ours = backend.nearest_distance(x, rows, most, others)
            theirs = reference.nearest_distance(x, rows, most, others)
            close(ours, theirs, span(x, rows) if x.numel() else 1, dtype)
            if not others and d > 1:
                assert backend.nearest_distance(rows, rows, most).tolist() == [0.0] * n


# Histograms


@pytest.mark.parametrize("n_bins", [37, 1024])
@pytest.mark.parametrize("kind", KINDS)
def test_values_are_counted(backend, kind, n_bins):
    """float32 kernels may count a value at an edge next door, and a tie with it."""
    for n in SIZES:
        for dtype in backend.dtypes:
            z = projections(kind, n, h=2, dtype=dtype, device=backend.device)
            counts, lo, hi = backend.histogram(z, n_bins)
            wanted, *ends = reference.histogram(z, n_bins)
            assert torch.equal(lo.double(), ends[0])
            assert torch.equal(hi.double(), ends[1])
            assert torch.equal(counts, backend.bin_counts(z, lo, hi, n_bins))
            assert counts.sum(1).tolist() == [n] * len(z)
            if kind == "ties":
                edges = (counts.double().cumsum(1) - wanted.cumsum(1)).abs() > 0
                assert int(edges.sum(1).max()) <= (0 if backend.name == "cpu" else 3)
            else:
                off = 0 if backend.name == "cpu" else 2 * (1 + n // 1000)
                assert int((counts - wanted).abs().sum(1).max()) <= off


def test_weights_are_counted(backend):
    z = projections("normal", 1009, device=backend.device)
    weights = torch.rand(1009, dtype=torch.float64, device=backend.device)
    ours = backend.histogram(z, 64, weights)[0]
    theirs = reference.histogram(z, 64, weights)[0]
    assert torch.allclose(ours, theirs)


@pytest.mark.filterwarnings("error:invalid value encountered in cast")
@pytest.mark.parametrize("n_bins", [32, 1024])
def test_what_is_not_finite_is_counted_at_an_end_and_stays_where_it_is(backend, n_bins):
    """NaN is cast to no integer: it could be any, and index memory that is not ours."""
    z = projections("normal", 40, h=4, device=backend.device)
    z[0, 5] = np.nan
    z[1, 6] = np.inf
    z[2, 7] = -np.inf
    z[3] = np.nan
    lo = torch.full((4,), -2.0, dtype=torch.float64, device=z.device)
    hi = -lo
    counts = reference.bin_counts(z, lo, hi, n_bins)
    assert counts.sum(1).tolist() == [40] * 4
    assert int(counts[3, 0]) == 40  # NaN is in the first bin
    for low, high in ((lo, hi), (lo * np.nan, hi), (lo, hi * np.inf), (lo, lo)):
        assert torch.equal(
            backend.bin_counts(z, low, high, n_bins).double(),
            reference.bin_counts(z, low, high, n_bins),
        )
    assert backend.histogram(z, n_bins)[0].sum(1).tolist() == [40] * 4
    assert (
        backend.histogram(z, n_bins, starts=(0, 13, 40))[0].sum(1).tolist()
        == [13] * 4 + [27] * 4
    )
    values = (
        projections("normal", n_bins + 1, 2, h=4, device=z.device).sort(dim=1).values
    )
    moved = backend.displace_grid(z, lo, hi, values)
    assert torch.equal(torch.isfinite(moved), torch.isfinite(z))


@pytest.mark.parametrize("v", [np.nan, -np.inf, np.inf, -1e300, 1e300, 0.0, 0.7])
@pytest.mark.parametrize("start", [0.0, np.nan, -np.inf, np.inf])
def test_every_number_has_a_bin(v, start):
    """It is where something is written, and compiled code casts NaN to anything.

    Python refuses.
    """
    for rate in (0.0, 8.0):
        assert 0 <= int(cpu._bin(v, start, rate, 8)) <= 7
        assert int(cpu._bin(v, start, rate, 8)) == int(
            cpu._bin.py_func(v, start, rate, 8)
        )


@pytest.mark.parametrize(("kind_p", "kind_q"), PAIRS)
def test_maps_between_histograms_agree(backend, kind_p, kind_q):
    for m, n, *bins in ((1, 97, 32, 32), (97, 1, 32, 32), (1009, 5000, 64, 128)):
        z_p = projections(kind_p, m, h=2, device=backend.device)
        z_q = projections(kind_q, n, 1, h=2, device=backend.device)
        p = counted(backend, z_p, bins[0])
        q = counted(backend, z_q, bins[1])
        values, mean_square = backend.compose_histograms(*p, *q)
        wanted, squares = reference.compose_histograms(*(t.double() for t in (*p, *q)))
        close(values, wanted, span(z_q), values.dtype)
        if "huge" in (kind_p, kind_q):
            continue  # squares beyond float32
        assert torch.allclose(
            mean_square.double(), squares, rtol=1e-3, atol=1e-9 * span(z_p, z_q) ** 2
        )
        assert bool((values.diff(dim=1) >= -1e-6 * span(z_q)).all())
        fresh = torch.cat((z_p, z_p * 1.5, z_p - 0.5), dim=1)
        float_values = values.float()
        moved = [
            k.displace_grid(fresh, p[1], p[2], float_values)
            for k in (backend, reference)
        ]
        close(*moved, span(fresh, z_q))
        for kappa in (0.0, 1.0, 1e9) if m > n / 9 > 1 else ():
            thresholds = torch.tensor(
                [kappa / m, kappa / n], dtype=torch.float64, device=z_p.device
            )
            args = (p[1], p[2], values, p[0], mean_square, thresholds)
            ours, factors = backend.shrink(*args)
            theirs, expected = reference.shrink(*args)
            close(ours, theirs, span(z_p, z_q))
            assert torch.allclose(factors, expected, atol=1e-4)


def test_large_counts_do_not_overflow(backend, rng):
    """Levels are products of two totals: 10^6 particles times 10^6 data, twice."""
    p, q = (
        torch.from_numpy(rng.multinomial(1_000_000, np.full(64, 1 / 64), size=2)).to(
            backend.device
        )
        for _ in range(2)
    )
    lo = torch.full((2,), (-1.0), dtype=torch.float64, device=backend.device)
    hi = torch.full((2,), 1.0, dtype=torch.float64, device=backend.device)
    kind = torch.int32 if backend.name == "triton" else torch.float64
    values = backend.compose_histograms(p.to(kind), lo, hi, q.to(kind), lo, hi)[0]
    close(
        values,
        reference.compose_histograms(p.double(), lo, hi, q.double(), lo, hi)[0],
        1,
    )


def test_no_empty_run_is_crossed_and_displacements_are_measured(backend):
    """Two clusters far apart keep to themselves.

    The bins beside the gap are not stretched into it.
    """
    z = torch.cat((torch.linspace(0, 1, 500), torch.linspace(100, 101, 500)))[None].to(
        backend.device
    )
    counts, lo, hi = backend.histogram(z, 64)
    values, mean_square = backend.compose_histograms(counts, lo, hi, counts, lo, hi)
    assert float(backend.displace_grid(z, lo, hi, values).abs().max()) < 1e-3
    assert float(mean_square.max()) < 1e-6
    counts, lo, hi = backend.histogram(
        z := projections("normal", 5000, device=z.device), 256
    )
    values, mean_square = backend.compose_histograms(
        counts, lo, hi, *backend.histogram(2 * z + 1, 256)
    )
    moved = backend.displace_grid(z, lo, hi, values.float())
    expected = moved.double().square().mean(1)
    assert torch.allclose(mean_square.double(), expected, rtol=5e-3)


@pytest.mark.parametrize("starts", STARTS, ids=str)
@pytest.mark.parametrize("n_bins", [37, 1024])
def test_classes_are_counted_and_displaced_by_themselves(backend, starts, n_bins):
    z = projections("normal", starts[-1], device=backend.device)
    n_classes = len(starts) - 1
    counts, lo, hi = backend.histogram(z, n_bins, starts=starts)
    values = (
        projections("normal", 65, 2, h=3 * n_classes, device=z.device)
        .sort(dim=1)
        .values
    )
    ends = [
        torch.full((3 * n_classes,), v, device=z.device).double() for v in (-2.0, 1.5)
    ]
    maps = (*ends, values)

    moved = backend.displace_grid(z, *maps, starts)
    close(moved, reference.displace_grid(z, *maps, starts), 4)
    assert counts.shape == (3 * n_classes, n_bins)
    for c, (first, end) in enumerate(pairwise(starts)):
        rows = slice(3 * c, 3 * c + 3)
        if first == end:
            assert not bool(counts[rows].any() or lo[rows].any() or hi[rows].any())
            continue
        alone = backend.displace_grid(z[:, first:end], *(t[rows] for t in maps))
        assert torch.equal(moved[:, first:end], alone)
        own = backend.histogram(z[:, first:end], n_bins)
        assert all(
            torch.equal(a[rows], b) for a, b in zip((counts, lo, hi), own, strict=True)
        )


def test_views_are_read_where_they_lie(backend):
    """A part of the points, every other row, and a transposed tensor."""
    z = projections("normal", 17, h=6, device=backend.device)
    class_indices = torch.arange(17).to(z.device) % 5
    offsets = projections("normal", 5, 1, 17, device=z.device)
    for view in (z[:, 3:14], z[::2], z.T, z[:, :0]):
        c = class_indices[: view.shape[1]]
        o = offsets[: len(view)]
        ours = backend.add_class_offsets(view, o, c)
        assert torch.equal(ours, reference.add_class_offsets(view, o, c))
        table = (
            projections("normal", 33, 2, len(view), device=z.device).sort(dim=1).values
        )
        lo = torch.full((len(view),), (-2.0), device=z.device).double()
        hi = torch.full((len(view),), 2.0, device=z.device).double()
        moved = backend.displace_grid(view, lo, hi, table)
        assert torch.equal(
            moved, backend.displace_grid(view.contiguous(), lo, hi, table)
        )
        if view.shape[1]:
            counts = backend.bin_counts(view, lo, hi, 32)
            assert torch.equal(
                counts, backend.bin_counts(view.contiguous(), lo, hi, 32)
            )


# The backends themselves


def test_a_backend_calls_its_kernels_as_the_reference_does(backend):
    """Every kernel has the same parameters, defaults and types in every backend."""
    assert backend.module.__all__ == reference.__all__
    own = []
    for name in reference.__all__:
        ours = getattr(backend.module, name)
        theirs = getattr(reference, name)
        assert inspect.signature(ours) == inspect.signature(theirs), name
        if ours is not theirs:
            own.append(name)
    assert len(own) > 10


def test_the_protocol_has_the_signatures_of_the_reference():
    kernel_names = [name for name in vars(Kernels) if not name.startswith("_")]
    assert sorted(kernel_names) == reference.__all__
    for name in kernel_names:
        protocol = inspect.signature(getattr(Kernels, name))
        without_self = list(protocol.parameters.values())[1:]
        theirs = inspect.signature(getattr(reference, name))
        assert without_self == list(theirs.parameters.values()), name
        assert protocol.return_annotation == theirs.return_annotation, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("first", "n"), [(0, 1), (2**62, 97), (7, 2_051)])
def test_uniform_numbers_are_the_same_bits_everywhere(backend, dtype, first, n):
    key = (3, 2**32 - 1)
    ours = backend.uniform(first, n, key, backend.device, dtype)
    theirs = reference.uniform(first, n, key, backend.device, dtype)
    assert torch.equal(ours, theirs)
    assert ours.dtype == dtype
    assert bool(((ours > 0) & (ours < 1)).all())


def test_the_largest_word_stays_below_1():
    largest = torch.tensor([[2**32 - 1]])
    for dtype in (torch.float32, torch.float64):
        assert float(words_as_uniform(largest, dtype)) < 1


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(("d", "n", "m"), [(1, 1, 1), (7, 13, 97), (97, 1009, 640)])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_points_are_taken(backend, dtype, d, n, m, is_transposed):
    values = np.random.default_rng(n).integers(0, 256, (n, d))
    x = torch.from_numpy(values).to(backend.device, dtype).T
    if not is_transposed:
        x = x.contiguous()
    indices = torch.from_numpy(np.random.default_rng(m).integers(0, n, m)).to(x.device)
    assert torch.equal(backend.take_points(x, indices), x[:, indices])
    assert backend.take_points(x, indices[:0]).shape == (d, 0)


@pytest.mark.parametrize("index", [-1, 3])
def test_points_that_do_not_exist_are_not_taken(index):
    with pytest.raises(IndexError, match="must be 0 to 2"):
        cpu.take_points(torch.zeros(5, 3), torch.tensor([0, index]))


@pytest.mark.parametrize("kind", [*KINDS, "NaN", "infinite"])
@pytest.mark.parametrize(("m", "n_kept"), [(1, 1), (13, 13), (97, 9), (1009, 97)])
def test_the_smallest_scores_are_kept(backend, kind, m, n_kept):
    scores = projections(kind, m, device=backend.device)
    if kind == "NaN":
        scores[:, ::2] = torch.nan
    elif kind == "infinite":
        scores[:, 1:] = torch.inf

    def kept(module):
        best_scores = scores.new_full((len(scores), n_kept), torch.inf)
        columns = torch.full_like(best_scores, -1, dtype=torch.int64)
        half = m // 2
        module.keep_smallest(scores[:, :half], 0, best_scores, columns)
        module.keep_smallest(scores[:, half:], half, best_scores, columns)
        return best_scores, columns

    best_scores, columns = kept(backend)
    assert torch.equal(best_scores.sort().values, kept(reference)[0].sort().values)
    # Each of them is a column of its own, with this score.
    assert bool((columns.sort().values.diff() > 0).all())
    assert bool((columns >= 0).all())
    found = scores.gather(1, columns).nan_to_num(torch.inf, torch.inf)
    assert torch.equal(found, best_scores)
    in_order = scores.nan_to_num(torch.inf, torch.inf).sort().values[:, :n_kept]
    assert torch.equal(best_scores.sort().values, in_order)
