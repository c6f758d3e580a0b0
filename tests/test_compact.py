"""Compact tables: errors stay small, maps ascend, and bytes come back or are refused."""

import math
import zlib
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sliceflow import ImageFlow, ModelFileError, SlicedWassersteinFlow, VectorOptions, load
from sliceflow.engine.compact import MOST_KNOTS, CompactTable, at_bends, compress, thinned
from sliceflow.engine.transports import GridTable, Histogram, KnotTable, Sorted
from sliceflow.kernels import reference
from sliceflow.pictures.plan import choose_knots, direction_bytes
from sliceflow.storage import file as container
from sliceflow.storage.compact_bytes import from_bytes, to_bytes

FIELDS = ("lo", "hi", "sizes", "at", "levels")
RNG = np.random.default_rng(0)
PICTURES = RNG.integers(0, 17, (300, 5, 4)).astype(np.uint8)
LABELS = np.arange(300) % 3
BOTH = ("histogram", Histogram(1024))
small = dict(
    schedule="1[1] 3[2] 5[3]",
    n_particles=400,
    quality=3,
    levels=17,
    random_state=3,
    device="cpu",
    transport="histogram",
    n_knots=256,
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
    return Histogram(n_bins).fit(z_p, z_q).table.thin(n_bins)


def rms(table, other):
    """What particles notice of the difference, for each map."""
    share = table.weights.double().square()
    weights = torch.nn.functional.pad(share, (1, 0)) + torch.nn.functional.pad(share, (0, 1))
    lost = (table.values.double() - other.values.double()).square()
    return ((weights * lost).sum(1) / weights.sum(1)).sqrt()


@settings(max_examples=200)
@given(table=grids(), relative=st.sampled_from([1e-4, 1e-2, 0.3]))
def test_the_error_is_below_the_one_allowed_and_maps_ascend(table, relative):
    error = relative * max(float((table.values.max() - table.values.min()).abs()), 1e-30)
    small = compress(table, error)
    grid = small.grid()
    assert bool((grid.values.diff(dim=1) >= 0).all())
    assert bool(torch.isfinite(grid.values).all())
    assert grid.values.dtype == table.values.dtype
    step = math.ldexp(1.0, small.exponent)
    digits = torch.finfo(table.values.dtype).eps * float(table.values.abs().max())
    full = small.sizes == MOST_KNOTS
    assert bool((rms(table, grid)[~full] <= error + step + 8 * digits).all())
    assert bool(((grid.lo - table.lo).abs() <= step / 16 + digits).all())
    assert bool(((grid.hi - table.hi).abs() <= step / 16 + digits).all())


@settings(max_examples=100)
@given(tables=st.lists(grids(), min_size=1, max_size=3), error=st.sampled_from([1e-3, 0.1, 10.0]))
def test_bytes_come_back_bit_for_bit(tables, error):
    one = tables[0].values
    tables = [t for t in tables if (t.values.shape[1], t.values.dtype) == (one.shape[1], one.dtype)]
    given = [compress(t, error) for t in tables]
    first = given[0]
    sizes, exponents = [len(t.lo) for t in given], [t.exponent for t in given]
    knots = sum(len(t.at) for t in given)
    again = from_bytes(to_bytes(given), sizes, exponents, first.n_bins, knots, first.dtype)
    for a, b in zip(given, again, strict=True):
        for name in FIELDS:
            assert getattr(a, name).dtype == getattr(b, name).dtype
            assert torch.equal(getattr(a, name), getattr(b, name))
        assert torch.equal(a.grid().values, b.grid().values)


def same_bits(given):
    """The tables that come back, which have every bit of those given."""
    numbers = [len(t.lo) for t in given], [t.exponent for t in given], given[0].n_bins
    knots, dtype = sum(len(t.at) for t in given), given[0].dtype
    again = from_bytes(to_bytes(given), *numbers, knots, dtype)
    for a, b in zip(given, again, strict=True):
        for name in FIELDS:
            assert getattr(a, name).numpy().tobytes() == getattr(b, name).numpy().tobytes()


@settings(max_examples=200)
@given(data=st.data())
def test_any_numbers_come_back_bit_for_bit(data):
    """Differences of more than 16 bits, ranges that are no whole units, minus zero, any sizes."""
    sizes = data.draw(st.lists(st.integers(2, 9), min_size=1, max_size=5))
    exponent = data.draw(st.sampled_from([-1000, -40, -9, 0, 100]))
    level = st.integers(-(1 << 15), (1 << 15) - 1) | st.sampled_from([-32768, 32767])
    levels = data.draw(st.lists(level, min_size=sum(sizes), max_size=sum(sizes)))
    places = [
        sorted(data.draw(st.sets(st.integers(1, 98), min_size=n - 2, max_size=n - 2))) for n in sizes
    ]
    unit = math.ldexp(1.0, exponent - 3)
    whole = st.integers(-(1 << 20), 1 << 20).map(lambda n: n * unit) | st.just(-0.0)
    number = whole if data.draw(st.booleans()) else whole | st.floats(-1e30, 1e30)
    ranges = [sorted((data.draw(number), data.draw(number))) for _ in sizes]
    lo, hi = torch.tensor(ranges, dtype=torch.float64).T
    at = torch.tensor([k for inner in places for k in (0, *inner, 99)], dtype=torch.int32)
    levels = torch.tensor(levels, dtype=torch.int16)
    sizes = torch.tensor(sizes, dtype=torch.int16)
    same_bits([CompactTable(lo, hi, sizes, at, levels, 99, exponent)])


def test_ranges_of_whole_units_take_few_bytes_and_others_are_exact():
    table = at_bends(bent()[0], 12, reach=16.0)
    odd = replace(table, lo=table.lo - 1e-9)
    same_bits([table])
    same_bits([odd])
    same_bits([table, odd])
    assert zlib.decompress(to_bytes([table]))[0] == 1
    assert zlib.decompress(to_bytes([odd]))[0] == 0
    assert len(to_bytes([table])) < len(to_bytes([odd]))


@settings(max_examples=50)
@given(table=grids())
def test_displacements_are_straight_between_knots(table):
    """Map by map, as the docstring says it."""
    small = compress(table, 1e-3)
    grid, first = small.grid(), 0
    for row, (lo, hi, size) in enumerate(zip(small.lo, small.hi, small.sizes, strict=True)):
        knots = slice(first, first := first + int(size))
        edges = np.arange(small.n_bins + 1)
        d = np.interp(edges, small.at[knots], small.levels[knots].double() * 2.0**small.exponent)
        values = float(lo) + float(hi - lo) * edges / small.n_bins + d
        wanted = np.maximum.accumulate(values)
        digits = 4 * torch.finfo(table.values.dtype).eps * np.abs(wanted).max()
        assert np.abs(grid.values[row].double().numpy() - wanted).max() <= digits


def table_of(n_bins=256, h=40):
    z_p, z_q = RNG.normal(size=(h, 4000)), RNG.gamma(2, size=(h, 4000))
    return Histogram(n_bins).fit(torch.from_numpy(z_p).float(), torch.from_numpy(z_q).float()).table


def test_a_smaller_error_takes_more_knots_and_few_are_enough():
    table = table_of().thin(256)
    sizes = [int(compress(table, error).sizes.sum()) for error in (4.0, 0.1, 0.01, 0.001)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 2 * 40
    assert sizes[1] < 16 * 40


def test_the_mean_displacement_is_kept_though_knots_are_few():
    """Errors of the mean would be the same for all particles, and add up step by step."""
    table, error = table_of().thin(256), 0.3
    share = table.weights.double().square()
    weights = torch.nn.functional.pad(share, (1, 0)) + torch.nn.functional.pad(share, (0, 1))
    lost = compress(table, error).grid().values.double() - table.values
    mean = (weights * lost).sum(1) / weights.sum(1)
    assert float(mean.square().mean().sqrt()) < 0.2 * error


def test_a_table_that_was_not_thinned_is_and_one_without_weights_is_refused():
    table = table_of()
    assert torch.equal(
        compress(table, 0.01).grid().values, compress(table.thin(256), 0.01).grid().values
    )
    with pytest.raises(ValueError, match="do not tell where the particles were"):
        compress(GridTable(table.lo, table.hi, table.values), 0.01)
    wide = GridTable(table.lo, table.hi, torch.zeros(40, 70_001), weights=torch.ones(40, 70_000))
    with pytest.raises(ValueError, match="maps of 70000 bins; at most 65535"):
        compress(wide, 0.01)


def test_maps_that_are_not_finite_are_refused():
    table = table_of().thin(256)
    table.values[3, 5] = torch.nan
    with pytest.raises(ValueError, match="the flow did not stay finite"):
        compress(table, 0.1)


def test_a_straight_map_has_two_knots_and_displaces_as_its_grid_does():
    lo, hi = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    values = torch.linspace(1, 3, 9)[None]
    table = GridTable(lo, hi, values, weights=torch.ones(1, 8, dtype=torch.uint8))
    small = compress(table, 0.125)
    assert small.at.tolist() == [0, 8]
    assert (small.levels * 2.0**small.exponent).tolist() == [1, 2]
    z = torch.tensor([[-1.0, 0.0, 0.5, 1.0, 2.0]])
    assert torch.equal(small.displace(z), table.displace(z))
    assert small.thin(3) is small


def test_maps_that_leave_the_numbers_are_not_written():
    lo, hi = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    table = GridTable(lo, hi, torch.tensor([[0.0, 3e38]]), weights=torch.ones(1, 1, dtype=torch.uint8))
    with pytest.raises(ValueError, match="compact maps reach beyond the numbers of float32"):
        to_bytes([compress(table, 1.0)])


# Bytes that are not ours


def packed(**changes):
    tables = [compress(table_of(), 0.05)]
    given = dict(
        packed=to_bytes(tables),
        directions=[40],
        exponents=[tables[0].exponent],
        n_bins=256,
        n_knots=len(tables[0].at),
        dtype=torch.float32,
    )
    return given | changes


@pytest.mark.parametrize(
    "changes",
    [
        dict(directions=[39]),
        dict(directions=[20, 20]),
        dict(exponents=[2000]),
        dict(n_bins=0),
        dict(n_bins=1 << 20),
        dict(n_bins=20),
        dict(n_knots=79),
        dict(n_knots=80),
        dict(directions=[1 << 40], n_knots=1 << 42),
        dict(packed=b""),
        dict(packed=b"not zlib"),
        dict(packed=packed()["packed"][:-1]),
        dict(packed=packed()["packed"] + b"\0"),
        dict(packed=zlib.compress(bytes(1 << 20))),
        dict(packing=1),
    ],
    ids=lambda c: "-".join(c),
)
def test_wrong_numbers_are_refused(changes):
    with pytest.raises(ValueError, match=r"compact maps|exponents|cannot hold"):
        from_bytes(**packed(**changes))


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
    flow = ImageFlow(**small, **options)
    return flow.fit(PICTURES, LABELS if condition == "labels" else None)


@pytest.mark.parametrize("condition", ["none", "labels", "observed"])
def test_compressed_flows_sample_the_same_bits_after_saving(tmp_path, condition):
    flow = fitted(condition)
    flow.save(tmp_path / "whole")
    assert flow.compress() is flow
    flow.save(tmp_path / "small")
    assert (tmp_path / "small").stat().st_size < (tmp_path / "whole").stat().st_size / 4
    loaded = load(tmp_path / "small", device="cpu")
    loaded.save(tmp_path / "again")
    assert (tmp_path / "small").read_bytes() == (tmp_path / "again").read_bytes()
    for f in (loaded, loaded.compress(), flow.compress(0.5)):  # what is compressed stays as it is
        if condition == "observed":
            a, b = (g.inpaint(PICTURES[:9], random_state=1) for g in (f, flow))
        else:
            a, b = (g.sample(50, random_state=1) for g in (f, flow))
        assert np.array_equal(a, b)


def test_samples_of_a_compressed_flow_are_near_those_of_the_whole_one():
    flow = fitted("labels")
    whole = flow.sample(200, random_state=0).astype(int)
    near = [
        np.abs(fitted("labels").compress(e).sample(200, random_state=0) - whole).mean()
        for e in (0.01, 0.1)
    ]
    assert near[0] < near[1] < 0.6


def test_vectors_are_compressed_and_sorted_maps_stay_as_they_are(tmp_path):
    x = RNG.normal(size=(500, 3))
    flow = SlicedWassersteinFlow(
        800, 6, transport=Histogram(64), random_state=0, device="cpu", options=VectorOptions(n_knots=64)
    ).fit(x)
    flow.compress(0.05)
    kinds = [type(step.table) for step in flow._model]
    assert kinds == [CompactTable] * 6 + [KnotTable] * 2
    flow.save(tmp_path / "m")
    samples = load(tmp_path / "m", device="cpu").sample(50, random_state=1)
    assert np.array_equal(samples, flow.sample(50, random_state=1))


def test_what_cannot_be_compressed_says_so(tmp_path):
    with pytest.raises(ValueError, match="not fitted yet"):
        ImageFlow().compress()
    flow = fitted("none")
    for error in (0, -1.0, math.nan, math.inf, "small", True):
        with pytest.raises((ValueError, TypeError), match="error"):
            flow.compress(error)
    flow.save(tmp_path / "m")
    with pytest.raises(ValueError, match="compress a flow as it was fitted"):
        load(tmp_path / "m", device="cpu").compress()
    with pytest.raises(ValueError, match="n_knots=0, which keeps no maps"):
        ImageFlow(**{**small, "n_knots": 0}).fit(PICTURES).compress()


def test_a_fit_that_went_on_from_a_checkpoint_is_compressed_to_the_same_bits(tmp_path):
    class Stopped(Exception):
        pass

    def stop(event):
        if event.steps_done == 5:
            raise Stopped

    with pytest.raises(Stopped):
        ImageFlow(**small).fit(PICTURES, listeners=(stop,), checkpoint_dir=tmp_path, checkpoint_every=0)
    flow = ImageFlow(**small).fit(PICTURES, checkpoint_dir=tmp_path, checkpoint_every=0)
    a, b = (f.compress().sample(50, random_state=1) for f in (flow, fitted("none")))
    assert np.array_equal(a, b)


def test_wrong_fields_of_compact_tables_are_model_file_errors(tmp_path):
    path = tmp_path / "m"
    fitted("labels").compress().save(path)
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
    table = compress(table_of(1024), 0.01)
    assert torch.equal(table.to(torch.device("cuda")).grid().values.cpu(), table.grid().values)
    flow = ImageFlow(**{**small, "device": "cuda"}).fit(PICTURES, LABELS).compress()
    flow.save(tmp_path / "m")
    wanted = flow.sample(200, random_state=0)
    assert np.array_equal(load(tmp_path / "m", device="cuda").sample(200, random_state=0), wanted)
    other = load(tmp_path / "m", device="cpu").sample(200, random_state=0)
    assert np.abs(other.astype(int) - wanted).mean() < 0.1


def test_triton_kernels_move_particles_by_a_compact_table():
    """On a GPU, or else in Triton's interpreter."""
    gpu = pytest.importorskip("sliceflow.kernels.triton.passes")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    grid = compress(table_of(64, 3), 0.01).to(device).grid()
    z = torch.randn(3, 100, generator=torch.Generator().manual_seed(0)).to(device)
    ours = gpu.displace_grid(z, grid.lo, grid.hi, grid.values)
    wanted = reference.displace_grid(z, grid.lo, grid.hi, grid.values)
    assert float((ours - wanted).abs().max()) < 1e-5


def test_where_nobody_was_maps_are_kept_too():
    """Fresh particles come where those of the fit were not: in the tails, between two of them."""
    z_p, z_q = torch.randn(2, 3, 60, generator=torch.Generator().manual_seed(0))
    table = Histogram(256).fit(z_p, z_q).table.thin(256)
    assert int((table.weights == 0).sum()) == 0
    lost = compress(table, 1e-4).grid().values - table.values
    assert float(lost.abs().max()) < 0.01


# A few knots of each map, as a fit keeps them


def bent(n_bins=64, rows=20, seed=0):
    """Maps between random histograms, with the particles' counts."""
    rng = torch.Generator().manual_seed(seed)
    p = torch.randn(rows, 4000, generator=rng) * (1 + torch.arange(rows)[:, None] / rows)
    q = torch.randn(rows, 4000, generator=rng)
    q += torch.sign(torch.randn(rows, 4000, generator=rng)) * 2  # two hills: maps bend
    return Histogram(n_bins).fit(p, q).table, p


def test_knots_stand_at_different_edges_from_the_first_to_the_last():
    for n_knots in (2, 3, 12, 64):
        table, _ = bent()
        kept = at_bends(table, n_knots, reach=16.0)
        at = kept.at.view(20, n_knots)
        assert bool((at.diff(dim=1) > 0).all())
        assert at[:, 0].eq(0).all()
        assert at[:, -1].eq(64).all()
        assert bool(torch.isfinite(kept.grid().values).all())


def test_knots_at_bends_are_better_than_even_ones():
    table, p = bent()
    whole = table.displace(p)

    def error(other):
        return float((other.displace(p) - whole).square().mean().sqrt())

    few = error(at_bends(table, 13, reach=16.0))
    plain = error(table.thin(12))
    assert few < plain / 2
    assert error(at_bends(table, 33, reach=16.0)) < few / 1.5


def test_lines_between_knots_leave_the_mean_and_the_spread_as_they_are():
    """Lines through the map itself would cut its corners: images would shrink, at every step."""
    table, p = bent()
    image, wanted = p + at_bends(table, 8, reach=16.0).displace(p), p + table.displace(p)
    assert (image.mean(1) - wanted.mean(1)).abs().max() < 0.01
    assert ((image.std(1) / wanted.std(1)) - 1).abs().max() < 0.005


def test_a_map_of_few_lines_is_kept_to_its_last_digit_that_counts():
    place = torch.linspace(-1, 1, 65, dtype=torch.float64)
    value = place + torch.where(place < 0.25, 0.5, 0.5 + 0.75 * (place - 0.25))
    table = GridTable(
        torch.tensor([-1.0]), torch.tensor([1.0]), value[None].float(), torch.full((1, 64), 1000)
    )
    kept = at_bends(table, 9, reach=4.0)
    assert (kept.grid().values - table.values).abs().max() < 0.02


def test_a_map_that_does_not_say_where_particles_are_is_kept_too():
    table, _ = bent()
    some = at_bends(replace(table, counts=None), 24, 16.0).grid()
    assert (some.values - table.values).abs().mean() < 0.1


def test_shared_maps_and_sorted_ones_keep_eight_times_as_many_knots():
    table, p = bent(256)
    assert at_bends(table, 12, 8.0).sizes.unique().tolist() == [12]
    assert thinned(table, 12, 8.0, shared=False).sizes.unique().tolist() == [12]
    assert thinned(table, 12, 8.0, shared=True).sizes.unique().tolist() == [96]
    assert isinstance(thinned(table, 256, 8.0, shared=False), GridTable)
    assert isinstance(thinned(table, 12, None, shared=False), GridTable)
    knots = Sorted().fit(p, p + 1).table
    assert thinned(knots, 12, 8.0, shared=False).values.shape[1] == 96


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
        flow = ImageFlow("1[1]", m, 1, levels=17, amplifier=math.inf, transport="histogram")
        flow.fit(PICTURES, LABELS)
        assert flow._model[0][0].table.sizes.unique().tolist() == [n_knots]


@pytest.mark.parametrize("n_knots", ["auto", 0, 1, 2, 16, 100, 300, 1024])
@pytest.mark.parametrize(
    ("transport", "amplifier"),
    [("sorted", 0.0), ("sorted", 10.0), *((t, xi) for t in BOTH for xi in (0.0, 10.0, math.inf))],
)
def test_a_model_takes_the_memory_that_is_expected_of_it(transport, amplifier, n_knots):
    options = dict(transport=transport, amplifier=amplifier, n_knots=n_knots, levels=17)
    flow = ImageFlow("1[1]", 9000, 1, **options).fit(PICTURES, LABELS)
    tables = [step.table for step in flow._model[0]]
    parts = (getattr(table, f.name) for table in tables for f in fields(table))
    taken = sum(part.nbytes for part in parts if isinstance(part, torch.Tensor))
    assert taken == direction_bytes(flow, 9000, len(PICTURES), amplifier, 3)
