"""Every kernel against the plain-torch reference in float64, on friendly and hostile projections."""

import inspect
import re
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from sliceflow import kernels
from sliceflow.kernels import Geometry, complete, cpu, reference

KINDS = ["normal", "ties", "constant", "huge", "tiny", "gap"]
SIZES = [1, 2, 3, 7, 64, 97, 1000]


def projections(kind: str, h: int, n: int, rng: np.random.Generator) -> torch.Tensor:
    z = rng.normal(size=(h, n))
    if kind == "ties":
        z = np.round(z)
    elif kind == "constant":
        z = np.full((h, n), 3.0)
    elif kind == "huge":
        z = z * 1e30
    elif kind == "tiny":
        z = z * 1e-30
    elif kind == "gap":
        z[:, ::2] += 1000
    return torch.from_numpy(z)


@st.composite
def problems(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    h, m, n = draw(st.integers(1, 5)), draw(st.sampled_from(SIZES)), draw(st.sampled_from(SIZES))
    z_p = projections(draw(st.sampled_from(KINDS)), h, m, rng)
    z_q = projections(draw(st.sampled_from(KINDS)), h, n, rng)
    weights = torch.from_numpy(rng.uniform(0.1, 3, size=n)) if draw(st.booleans()) else None
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    return z_p.to(dtype), z_q.to(dtype), weights


def close(a, b, scale, dtype):
    """Equal to a few units in the last place of the largest number that took part."""
    tolerance = (4e-6 if dtype == torch.float32 else 1e-11) * float(scale)
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    worst = float((a.double() - b.double()).abs().max())
    assert worst <= tolerance, f"{worst} > {tolerance}"


@given(problems())
def test_sorted_kernels_agree(problem):
    z_p, z_q, weights = problem
    scale = max(z_p.abs().max(), z_q.abs().max())
    sorted_p = cpu.sort_rows(z_p)
    assert torch.equal(sorted_p, reference.sort_rows(z_p))
    if weights is None:
        sorted_q, w = reference.sort_rows(z_q), None
    else:
        sorted_q, order = cpu.argsort_rows(z_q)
        ref_q, ref_order = reference.argsort_rows(z_q)
        assert torch.equal(sorted_q, ref_q)
        assert torch.equal(torch.gather(z_q, 1, order), sorted_q)
        # Ties may come in any order, so compare each value's total weight.
        w, ref_w = weights[order], weights[ref_order]
        for row in range(len(z_q)):
            value, group = torch.unique(ref_q[row], return_inverse=True)
            totals = [torch.zeros(len(value)).double().index_add(0, group, x[row]) for x in (w, ref_w)]
            assert torch.allclose(*totals)
    values = cpu.match(sorted_p, sorted_q, w)
    close(values, reference.match(sorted_p, sorted_q, w), z_q.abs().max(), z_p.dtype)
    assert bool((values.diff(dim=1) >= 0).all())
    fresh = torch.cat((z_p, z_p * 1.5, z_p - 0.5), dim=1)
    ours = cpu.displace_knots(fresh, sorted_p, values)
    close(ours, reference.displace_knots(fresh, sorted_p, values), scale, z_p.dtype)


@given(problems(), st.sampled_from([1, 2, 16, 255]))
@example((torch.tensor([[0.1257, -0.1321]]), torch.tensor([[0.6404, 0.1049]]), None), 16)
def test_histogram_kernels_agree(problem, n_bins):
    z_p, z_q, weights = problem
    scale = max(z_p.abs().max(), z_q.abs().max())
    range_p, range_q = cpu.value_range(z_p), cpu.value_range(z_q)
    assert all(torch.equal(a, b) for a, b in zip(range_p, reference.value_range(z_p), strict=True))
    counts_p = cpu.count(z_p, *range_p, n_bins)
    counts_q = cpu.count(z_q, *range_q, n_bins, weights)
    assert torch.equal(counts_p, reference.count(z_p, *range_p, n_bins))
    assert torch.allclose(counts_q, reference.count(z_q, *range_q, n_bins, weights))
    assert torch.allclose(counts_p.sum(1), torch.full((len(z_p),), float(z_p.shape[1])).double())
    tables = [k.compose(counts_p, *range_p, counts_q, *range_q) for k in (cpu, reference)]
    tables, costs = zip(*tables, strict=True)
    close(*tables, z_q.abs().max(), torch.float64)
    assert torch.allclose(*costs, rtol=1e-9, atol=1e-12 * float(scale) ** 2)
    for ours, theirs in zip(cpu.histogram(z_p, n_bins), (counts_p, *range_p), strict=True):
        assert torch.equal(ours, theirs)
    slack = 1e-12 * float(z_q.abs().max())
    assert bool((tables[0].diff(dim=1) >= -slack).all())
    fresh = torch.cat((z_p, z_p * 1.5, z_p - 0.5), dim=1)
    moved = [k.displace_grid(fresh, *range_p, tables[0]) for k in (cpu, reference)]
    close(*moved, scale, z_p.dtype)


@given(problems(), st.sampled_from([2, 16, 255]), st.floats(0, 10))
def test_shrunk_maps_agree(problem, n_bins, kappa):
    z_p, z_q, _ = problem
    counts, lo, hi = reference.histogram(z_p, n_bins)
    values, cost = reference.compose(counts, lo, hi, *reference.histogram(z_q, n_bins))
    rate = torch.tensor([kappa / z_p.shape[1]], dtype=torch.float64)
    (ours, factor), (theirs, expected) = (
        k.shrink(lo, hi, values, counts, cost, rate) for k in (cpu, reference)
    )
    close(ours, theirs, max(z_p.abs().max(), z_q.abs().max()), torch.float64)
    assert torch.allclose(factor, expected, atol=1e-6)
    assert bool(((factor >= 0) & (factor <= 1)).all())
    if kappa == 0:
        assert torch.allclose(theirs[cost > 0], values[cost > 0], rtol=1e-12)


@pytest.mark.parametrize("module", [cpu, reference])
def test_counts_add_up(module):
    """Over chunks, machines and time: the sum of the parts' counts is the whole's."""
    z = torch.randn(3, 1001, generator=torch.Generator().manual_seed(0))
    lo, hi = module.value_range(z)
    parts = sum(module.count(part, lo, hi, 37) for part in z.split(100, dim=1))
    assert torch.equal(parts, module.count(z, lo, hi, 37))


RUNS = [(0, 97), (0, 40, 97), (0, 0, 1, 20, 20, 97, 97)]  # where runs of columns start


@pytest.mark.parametrize("starts", RUNS, ids=str)
@pytest.mark.parametrize("module", [cpu, reference])
def test_runs_of_columns_are_counted_by_themselves(module, starts):
    z = torch.randn(3, 97, generator=torch.Generator().manual_seed(0))
    counts, lo, hi = module.histogram_of_runs(z, 37, starts)
    assert counts.shape == (3 * (len(starts) - 1), 37)
    for c, (first, end) in enumerate(pairwise(starts)):
        rows = slice(3 * c, 3 * c + 3)
        if first < end:
            separate = module.histogram(z[:, first:end], 37)
        else:
            separate = (torch.zeros(3, 37).double(), torch.zeros(3).double(), torch.zeros(3).double())
        for ours, theirs in zip((counts, lo, hi), separate, strict=True):
            assert torch.equal(ours[rows], theirs)
    for ours, theirs in zip((counts, lo, hi), reference.histogram_of_runs(z, 37, starts), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("starts", RUNS, ids=str)
@pytest.mark.parametrize("module", [cpu, reference])
def test_runs_are_displaced_by_tables_of_their_own(module, starts):
    g = torch.Generator().manual_seed(0)
    z, h = torch.randn(3, 97, generator=g), 3 * (len(starts) - 1)
    lo, hi = -2 + torch.rand(h, generator=g).double(), 1 + torch.rand(h, generator=g).double()
    values = torch.randn(h, 9, generator=g).sort().values.double()
    moved = module.displace_runs(z, lo, hi, values, starts)
    for c, (first, end) in enumerate(pairwise(starts)):
        rows = slice(3 * c, 3 * c + 3)
        if first < end:
            separate = module.displace_grid(z[:, first:end], lo[rows], hi[rows], values[rows])
            assert torch.equal(moved[:, first:end], separate)
    close(moved, reference.displace_runs(z, lo, hi, values, starts), 4, z.dtype)


@pytest.mark.parametrize("module", [cpu, reference])
def test_values_outside_a_given_range_are_counted_at_its_ends(module):
    z = torch.tensor([[-5.0, 0.5, 9.0]])
    counts = module.count(z, torch.tensor([0.0]).double(), torch.tensor([1.0]).double(), 4)
    assert counts.tolist() == [[1, 0, 1, 1]]


@pytest.mark.parametrize("module", [cpu, reference])
def test_no_empty_run_is_crossed(module):
    """Two clusters far apart keep to themselves: the bins beside the gap are not stretched into it."""
    z = torch.cat((torch.linspace(0, 1, 500), torch.linspace(100, 101, 500))).double()[None]
    lo, hi = module.value_range(z)
    counts = module.count(z, lo, hi, 64)
    table, cost = module.compose(counts, lo, hi, counts, lo, hi)
    assert float(module.displace_grid(z, lo, hi, table).abs().max()) < 1e-6
    assert float(cost.max()) < 1e-12


def modules():
    """Those that speed up some kernels."""
    return [cpu, *([pytest.importorskip("sliceflow.kernels.triton")] if find_spec("triton") else [])]


def test_every_device_has_every_kernel_and_calls_it_alike():
    """A faster kernel has the arguments of the reference's, which may have more: what it is made of."""
    for module in modules():
        own = [name for name in reference.__all__ if hasattr(module, name)]
        assert len(own) > 10
        for name in own:
            theirs = list(inspect.signature(getattr(reference, name)).parameters)
            ours = list(inspect.signature(getattr(module, name)).parameters)
            assert ours == theirs[: len(ours)], name
            given = [
                p for p in theirs[len(ours) :] if p not in ("add", "displace", "histogram", "project")
            ]
            assert given == [], name
        assert set(vars(complete(module))) == set(reference.__all__)
        assert all(getattr(complete(module), name) is getattr(module, name) for name in own)


def test_nobody_goes_round_the_registry():
    """Only the kernels themselves import the modules of a device."""
    home = Path(kernels.__file__).parent
    past = re.compile(r"kernels\.(reference|cpu|triton)|kernels import .*\b(reference|cpu|triton)\b")
    files = [f for f in home.parent.rglob("*.py") if home not in f.parents]
    assert len(files) > 50
    assert [str(f) for f in files if past.search(f.read_text())] == []


def test_big_arrays_are_sorted_in_threads():
    z = torch.randn(9, 50_000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(cpu.sort_rows(z), torch.sort(z, dim=1).values)


def test_without_numba_the_reference_takes_over(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sliceflow.kernels.cpu", None)
    monkeypatch.delattr(kernels, "cpu")
    kernels._cpu.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match="pip install numba"):
            assert kernels.for_tensor(torch.zeros(1, 1)) is complete(reference)
    finally:
        kernels._cpu.cache_clear()


@pytest.mark.parametrize("n_classes", [0, 3])
def test_tiles_agree(n_classes):
    """Pictures of 2 × 7 × 5 in tiles of 3, seven columns of them, with and without classes."""
    geometry = Geometry((2, 7, 5), (3, 3), (1, 2))
    g = torch.Generator().manual_seed(0)
    x, theta = torch.randn(70, 40, generator=g), torch.randn(18, 18, generator=g)
    h = geometry.n_directions
    offsets, codes = torch.randn(h, 3, generator=g), torch.arange(40) % 3
    shift = (offsets, codes) if n_classes else (None, None)
    table = (
        -torch.ones(h).double(),
        torch.ones(h).double(),
        torch.randn(h, 9, generator=g).sort().values,
    )
    for columns in (None, torch.arange(39, 0, -6).int()):
        z = [k.project_tiles(x, theta, geometry, columns, *shift) for k in (cpu, reference)]
        assert torch.allclose(*z, atol=1e-5)
    moved = [x.clone(), x.clone()]
    for k, ours in zip((cpu, reference), moved, strict=True):
        k.move_tiles(ours, theta, geometry, *table, 0.5, *shift)
    assert torch.allclose(*moved, atol=1e-4)
    assert not torch.allclose(moved[0], x)


@pytest.mark.parametrize("module", [cpu, reference])
def test_runs_of_tiles_are_moved_by_themselves(module):
    geometry = Geometry((2, 7, 5), (3, 3), (1, 2))
    g = torch.Generator().manual_seed(0)
    x, theta = torch.randn(70, 40, generator=g), torch.randn(18, 18, generator=g)
    h, starts = geometry.n_directions, (0, 13, 13, 40)
    lo, hi = -torch.ones(3 * h).double(), torch.ones(3 * h).double()
    values = torch.randn(3 * h, 9, generator=g).sort().values
    moved, separate = x.clone(), x.clone()
    module.move_tiles(moved, theta, geometry, lo, hi, values, 0.5, starts=starts)
    for c in (0, 2):
        rows, part = slice(c * h, (c + 1) * h), separate[:, starts[c] : starts[c + 1]]
        module.move_tiles(part, theta, geometry, lo[rows], hi[rows], values[rows], 0.5)
    assert torch.allclose(moved, separate, atol=1e-4)
    assert not torch.allclose(moved, x)


STRANGE = torch.tensor(
    [
        [0.0, 1.0, 2.0, np.nan],
        [np.nan, 0.0, 1.0, 2.0],
        [np.nan, np.nan, np.nan, np.nan],
        [0.0, 1.0, 2.0, np.inf],
        [-np.inf, 0.0, 1.0, 2.0],
        [-np.inf, np.inf, 0.0, np.nan],
    ]
)


@pytest.mark.parametrize("v", [np.nan, -np.inf, np.inf, -1e300, 1e300, 0.0, 0.7])
@pytest.mark.parametrize("start", [0.0, np.nan, -np.inf, np.inf])
@pytest.mark.parametrize("rate", [0.0, 8.0])
def test_every_number_has_a_bin(v, start, rate):
    """It is where something is written, and compiled code casts NaN to anything; Python refuses."""
    assert 0 <= int(cpu._bin(v, start, rate, 8)) <= 7
    assert int(cpu._bin(v, start, rate, 8)) == int(cpu._bin.py_func(v, start, rate, 8))


@pytest.mark.parametrize("weights", [None, torch.ones(4)])
@pytest.mark.parametrize("module", [cpu, reference])
def test_what_is_not_finite_is_counted_at_an_end(module, weights):
    lo, hi = torch.zeros(6).double(), torch.full((6,), 2.0).double()
    for dtype in (torch.float32, torch.float64):
        counts = module.count(STRANGE.to(dtype), lo, hi, 32, weights)
        assert counts[:, [0, 16, 31]].tolist() == [
            [2, 1, 1], [2, 1, 1], [4, 0, 0], [1, 1, 2], [2, 1, 1], [3, 0, 1]
        ]  # fmt: skip
        assert module.histogram(STRANGE.to(dtype), 32, weights)[0].sum(1).tolist() == [4] * 6


@pytest.mark.parametrize("module", [cpu, reference])
def test_maps_leave_what_is_not_finite_as_it_is_and_move_the_rest(module):
    lo, hi = torch.zeros(6).double(), torch.full((6,), 2.0).double()
    values = torch.linspace(1, 3, 33).expand(6, -1).contiguous()
    moved = STRANGE + module.displace_grid(STRANGE, lo, hi, values)
    finite = torch.isfinite(STRANGE)
    assert torch.allclose(moved[finite], STRANGE[finite] + 1)
    assert not bool(torch.isfinite(moved[~finite]).any())
    for order in (STRANGE, STRANGE.sort(dim=1).values):  # tables of such values, too
        knots = order.sort(dim=1).values
        assert module.displace_knots(order, knots, knots).shape == (6, 4)
        module.displace_grid(order, *module.value_range(order), values)


@pytest.fixture
def fresh_gpu_kernels():
    kernels._gpu.cache_clear()
    yield
    kernels._gpu.cache_clear()


def said_once(match):
    """The kernels for a GPU are asked for twice, and the warning comes once."""
    with pytest.warns(RuntimeWarning, match=match) as said:
        found = [kernels.for_device(device) for device in ("cuda", torch.device("cuda:0"))]
    assert all(k is complete(reference) for k in found)
    assert len(said) == 1


def test_without_triton_the_reference_takes_over_on_a_gpu_and_says_so(monkeypatch, fresh_gpu_kernels):
    modules = __import__("sys").modules
    for name in [n for n in modules if n.startswith("sliceflow.kernels.triton")]:
        monkeypatch.delitem(modules, name)
    monkeypatch.delattr(kernels, "triton", raising=False)
    monkeypatch.setitem(modules, "triton", None)
    monkeypatch.setattr(torch.version, "hip", None)
    said_once(r"^Triton cannot be imported \(.*\); the slower .* pip install triton brings")


def test_an_amd_gpu_does_not_get_the_kernels_for_nvidia(monkeypatch, fresh_gpu_kernels):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    said_once(r"is built for AMD GPUs \(ROCm\); the slower plain-torch kernels are used on the GPU")
