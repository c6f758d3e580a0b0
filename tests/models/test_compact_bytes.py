"""Compact tables: maps ascend, and bytes come back or are refused."""

import math
import zlib
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sliceflow import ImageFlow, ModelFileError, PictureOptions, load
from sliceflow.engine.compact import CompactTable, at_bends
from sliceflow.engine.transports import GridTable, Histogram
from sliceflow.kernels import reference
from sliceflow.models import file as container
from sliceflow.models.compact_bytes import from_bytes, to_bytes
from sliceflow.models.file import Fields, read
from sliceflow.models.limits import Allowance, model_bytes
from sliceflow.spaces.pictures.plan import choose_knots

FIELDS = ("lo", "hi", "at", "levels")
RNG = np.random.default_rng(0)
PICTURES = RNG.integers(0, 17, (300, 5, 4)).astype(np.uint8)
LABELS = np.arange(300) % 3
BOTH = (Histogram(128), Histogram(1024))
small = dict(
    schedule="1[1] 3[2] 5[3]",
    n_particles=400,
    quality=3,
    n_pixel_values=17,
    random_state=3,
    device="cpu",
    transport="histogram",
)


@st.composite
def grids(draw):
    """Tables as histograms of particles and data make them: smooth, gappy, tied, constant, far away."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    h, n_bins = draw(st.integers(1, 5)), draw(st.sampled_from([1, 2, 16, 101, 256]))
    scale = draw(st.sampled_from([1.0, 1e-6, 1e6, 1e30]))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    shape = draw(st.sampled_from(["smooth", "gaps", "ties", "constant", "nowhere to go"]))
    z_p, z_q = rng.normal(size=(h, 500)), rng.gamma(2, size=(h, 400))
    if shape == "gaps":
        z_p += 20 * (np.arange(500) % 3)
        z_q += 20 * (np.arange(400) % 3)
    elif shape == "ties":
        z_p, z_q = z_p.round(), z_q.round()
    elif shape == "constant":
        z_p = np.full_like(z_p, 0.7)
    elif shape == "nowhere to go":
        z_q = z_p
    z_p, z_q = (torch.from_numpy(scale * z).to(dtype) for z in (z_p, z_q))
    return Histogram(n_bins).fit(z_p, z_q).table


@st.composite
def kept(draw):
    """Such tables at a few knots."""
    table = draw(grids())
    n_knots = draw(st.integers(2, min(table.values.shape[1], 40)))
    reach = draw(st.sampled_from([1e-3, 1.0, 4.0])) * float(table.values.abs().max() + 1e-30)
    return at_bends(table, n_knots, reach)


def bent(n_bins=64, rows=20, seed=0):
    """Maps between random histograms, with the particles' counts."""
    rng = torch.Generator().manual_seed(seed)
    p = torch.randn(rows, 4000, generator=rng) * (1 + torch.arange(rows)[:, None] / rows)
    q = torch.randn(rows, 4000, generator=rng)
    q += torch.sign(torch.randn(rows, 4000, generator=rng)) * 2  # two hills: maps bend
    return Histogram(n_bins).fit(p, q).table, p


def same_bits(given):
    """The tables that come back have every bit of those given."""
    numbers = [len(t.lo) for t in given], [t.exponent for t in given], given[0].n_bins
    again = from_bytes(to_bytes(given), *numbers, given[0].at.shape[1], given[0].dtype)
    for a, b in zip(given, again, strict=True):
        assert (a.n_bins, a.exponent, a.dtype) == (b.n_bins, b.exponent, b.dtype)
        for name in FIELDS:
            ours, theirs = getattr(a, name), getattr(b, name)
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            assert theirs.is_contiguous()
            assert ours.numpy().tobytes() == theirs.numpy().tobytes()


@settings(max_examples=100)
@given(table=kept(), shift=st.sampled_from([0, 3]))
def test_bytes_come_back_bit_for_bit(table, shift):
    other = replace(table, exponent=table.exponent + shift, levels=-table.levels)
    same_bits([table, other])


@settings(max_examples=200)
@given(data=st.data())
def test_any_numbers_come_back_bit_for_bit(data):
    """Differences of more than 16 bits, ranges that are no whole units, minus zero, any sizes."""
    h, n_knots = data.draw(st.integers(1, 5)), data.draw(st.integers(2, 9))
    exponent = data.draw(st.sampled_from([-1000, -40, -9, 0, 100]))
    level = st.integers(-(1 << 15), (1 << 15) - 1) | st.sampled_from([-32768, 32767])
    levels = data.draw(st.lists(level, min_size=h * n_knots, max_size=h * n_knots))
    inner = st.sets(st.integers(1, 98), min_size=n_knots - 2, max_size=n_knots - 2)
    at = [[0, *sorted(data.draw(inner)), 99] for _ in range(h)]
    unit = math.ldexp(1.0, exponent - 3)
    whole = st.integers(-(1 << 20), 1 << 20).map(lambda n: n * unit) | st.just(-0.0)
    number = whole if data.draw(st.booleans()) else whole | st.floats(-1e30, 1e30)
    ranges = [sorted((data.draw(number), data.draw(number))) for _ in range(h)]
    lo, hi = torch.tensor(ranges, dtype=torch.float64).T
    at = torch.tensor(at, dtype=torch.int32)
    levels = torch.tensor(levels, dtype=torch.int16).view(h, n_knots)
    same_bits([CompactTable(lo, hi, at, levels, 99, exponent)])


def test_ranges_of_whole_units_take_few_bytes_and_others_are_exact():
    table = at_bends(bent()[0], 12, reach=16.0)
    odd = replace(table, lo=table.lo - 1e-9)
    same_bits([table])
    same_bits([odd])
    same_bits([table, odd])
    assert zlib.decompress(to_bytes([table]))[0] == 1
    assert zlib.decompress(to_bytes([odd]))[0] == 0
    assert len(to_bytes([table])) < len(to_bytes([odd]))


def test_maps_that_leave_the_numbers_are_not_written():
    lo, hi = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    table = at_bends(GridTable(lo, hi, torch.tensor([[0.0, 3e38]])), 2, 1e38)
    with pytest.raises(ValueError, match="compact maps reach beyond the numbers of float32"):
        to_bytes([table])


# Maps that move nothing


def test_files_hardly_grow_with_maps_that_move_nothing(tmp_path):
    """All maps are noise of one distribution: with shrinkage hardly any is kept, and all come back."""
    sizes = []
    for kappa in (0.0, 50.0):
        options = PictureOptions(n_knots=8, shrinkage=kappa)
        flow = ImageFlow(**{**small, "quality": 30}, options=options).fit(PICTURES)
        flow.save(tmp_path / "m")
        again = load(tmp_path / "m", device="cpu")
        assert np.array_equal(again.sample(20, random_state=1), flow.sample(20, random_state=1))
        sizes.append((tmp_path / "m").stat().st_size)
    assert sizes[1] < 0.7 * sizes[0]


def test_maps_that_move_nothing_take_hardly_any_memory_and_so_their_file_can_be_loaded(tmp_path):
    """They are counted before a file is unpacked, and a small file may not take much."""
    counted = []
    for kappa in (0.0, 1e6):
        options = PictureOptions(n_knots=8, shrinkage=kappa)
        flow = ImageFlow(**{**small, "quality": 4}, options=options).fit(PICTURES)
        flow.save(tmp_path / "m")
        steps = load(tmp_path / "m", device="cpu")._fitted.steps
        moving = sum(step.table.lo.numel() for step in steps if isinstance(step.table, CompactTable))
        header = Fields(read(tmp_path / "m")[0])
        counted.append((moving, model_bytes(header, Allowance(10**9))))
    (all_maps, before), (some, after) = counted
    assert some < 0.2 * all_maps
    assert before - after >= 70 * (all_maps - some)


# Bytes that are not ours


@cache
def ours():
    table = at_bends(bent(256, 40)[0], 12, 16.0)
    return dict(
        packed=to_bytes([table]),
        directions=[40],
        exponents=[table.exponent],
        n_bins=256,
        n_knots=12,
        dtype=torch.float32,
    )


def packed(**changes):
    return ours() | changes


@pytest.mark.parametrize(
    "changes",
    [
        dict(directions=[39]),
        dict(directions=[20, 20]),
        dict(exponents=[2000]),
        dict(n_bins=0),
        dict(n_bins=1 << 20),
        dict(n_bins=20),
        dict(n_knots=13),
        dict(n_knots=2),
        dict(n_knots=1),
        dict(n_knots=1 << 20),
        dict(directions=[1 << 40]),
        dict(packed=b""),
        dict(packed=b"not zlib"),
        dict(packed=packed()["packed"][:-1]),
        dict(packed=packed()["packed"] + b"\0"),
        dict(packed=zlib.compress(bytes(1 << 20))),
    ],
    ids=lambda c: "-".join(c),
)
def test_wrong_numbers_are_refused(changes):
    with pytest.raises(ValueError, match=r"compact maps|exponents|cannot hold"):
        from_bytes(**packed(**changes))


def test_maps_of_other_numbers_of_knots_are_refused():
    given = packed()
    whole = bytearray(zlib.decompress(given["packed"]))
    first = 1 + 16 * 40  # the number of knots of the first map
    whole[first], whole[first + 1] = whole[first] - 1, whole[first] + 1
    with pytest.raises(ValueError, match="40 compact maps do not all have 12 knots"):
        from_bytes(**{**given, "packed": zlib.compress(bytes(whole))})


@settings(max_examples=200)
@given(at=st.integers(0, 1 << 20), byte=st.integers(0, 255))
def test_any_other_byte_gives_usable_tables_or_is_refused(at, byte):
    given = packed()
    whole = bytearray(zlib.decompress(given["packed"]))
    whole[at % len(whole)] = byte
    try:
        (table,) = from_bytes(**{**given, "packed": zlib.compress(bytes(whole))})
    except ValueError:
        return
    grid = table.grid()
    assert grid.values.shape == (40, 257)
    assert bool((grid.values.diff(dim=1) >= 0).all())


# Flows


def fitted(condition):
    options = dict(observed="top") if condition == "observed" else {}
    flow = ImageFlow(**small, **options, options=PictureOptions(n_knots=2))
    return flow.fit(PICTURES, LABELS if condition == "labels" else None)


@pytest.mark.parametrize("condition", ["none", "labels", "observed"])
def test_flows_sample_the_same_bits_after_saving(tmp_path, condition):
    flow = fitted(condition)
    assert all(isinstance(step.table, CompactTable) for step in flow._fitted.model)
    flow.save(tmp_path / "model")
    loaded = load(tmp_path / "model", device="cpu")
    loaded.save(tmp_path / "again")
    assert (tmp_path / "model").read_bytes() == (tmp_path / "again").read_bytes()
    if condition == "observed":
        a, b = (f.inpaint(PICTURES[:9], random_state=1) for f in (flow, loaded))
    else:
        a, b = (f.sample(50, random_state=1) for f in (flow, loaded))
    assert np.array_equal(a, b)


def test_wrong_fields_of_compact_tables_are_model_file_errors(tmp_path):
    path = tmp_path / "m"
    fitted("labels").save(path)
    text, tensors = container.read(path)
    group = text["schedule"][1]["tables"][0]
    for name in ("bins", "knots", "type", "exponents", "directions", "steps", "packing"):
        for value in (None, -1, 0, 1 << 40, [], [-5000], "float16", [0] * 3):
            container.write(
                path,
                {
                    **text,
                    "schedule": [
                        {**row, "tables": [{**group, name: value}]} if i == 1 else row
                        for i, row in enumerate(text["schedule"])
                    ],
                },
                tensors,
            )
            if (name, value) == ("exponents", [0] * 3):
                continue  # other steps are possible
            with pytest.raises(ModelFileError):
                load(path, device="cpu")
    for other in (None, torch.zeros(9), torch.zeros(0, dtype=torch.uint8), torch.zeros(9, 9)):
        changed = {k: v for k, v in tensors.items() if k != "tables.1.0.packed"}
        if other is not None:
            changed["tables.1.0.packed"] = other
        container.write(path, text, changed)
        with pytest.raises(ModelFileError):
            load(path, device="cpu")


@pytest.mark.gpu
def test_a_gpu_makes_the_same_grids_and_samples_alike(tmp_path):
    table = at_bends(bent(1024)[0], 50, 16.0)
    assert torch.equal(table.to(torch.device("cuda")).grid().values.cpu(), table.grid().values)
    flow = ImageFlow(**{**small, "device": "cuda"}).fit(PICTURES, LABELS)
    flow.save(tmp_path / "m")
    wanted = flow.sample(200, random_state=0)
    assert np.array_equal(load(tmp_path / "m", device="cuda").sample(200, random_state=0), wanted)
    other = load(tmp_path / "m", device="cpu").sample(200, random_state=0)
    assert np.abs(other.astype(int) - wanted).mean() < 0.1


def test_triton_kernels_move_particles_by_a_compact_table():
    """On a GPU, or else in Triton's interpreter."""
    gpu = pytest.importorskip("sliceflow.kernels.triton")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    grid = at_bends(bent(64, 3)[0], 12, 16.0).to(device).grid()
    z = torch.randn(3, 100, generator=torch.Generator().manual_seed(0)).to(device)
    ours = gpu.displace_grid(z, grid.lo, grid.hi, grid.values)
    wanted = reference.displace_grid(z, grid.lo, grid.hi, grid.values)
    assert float((ours - wanted).abs().max()) < 1e-5


@pytest.mark.parametrize(
    ("n_particles", "amplifier", "n_classes", "n_knots"),
    [
        (60_000, math.inf, 10, 16),
        (240_000, math.inf, 10, 32),
        (240_000, 10.0, 10, 16),  # they share maps, and keep eight times as many
        (24_000, 0.0, 10, 32),  # they are not told apart
        (24_000, 0.0, 0, 32),
        (10, math.inf, 10, 16),
        (10**9, 0.0, 0, 64),
    ],
)
def test_maps_of_more_particles_keep_more_knots(n_particles, amplifier, n_classes, n_knots):
    assert choose_knots("auto", n_particles, amplifier, n_classes) == n_knots
    assert choose_knots(7, n_particles, amplifier, n_classes) == 7


def test_a_fit_chooses_how_many_knots_it_keeps():
    for m, n_knots in ((9_000, 16), (72_000, 32)):
        flow = ImageFlow("1[1]", m, 1, n_pixel_values=17, amplifier=math.inf, transport="histogram")
        flow.fit(PICTURES, LABELS)
        assert flow._fitted.model[0].table.at.shape[1] == n_knots
