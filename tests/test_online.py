"""Data kept as counts: rows come and go, and the model is that of the rows that are there."""

import math
import pickle
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sliceflow
from models import DIGIT_LABELS as LABELS
from models import DIGITS as IMAGES
from models import come_and_go, counted_pictures, counted_vectors
from sliceflow import (
    ImageFlow,
    PictureOptions,
    SlicedWassersteinFlow,
    VectorOptions,
    kernels,
    metrics,
)
from sliceflow.engine import frames, transports
from sliceflow.engine.compact import CompactTable
from sliceflow.engine.flow import Flow
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.kernels import reference
from sliceflow.online.counts import CountedStage
from sliceflow.online.tally import Tally, mix
from sliceflow.spaces.pictures.online import CountedLevel
from sliceflow.spaces.pictures.pyramid import Subspace
from sliceflow.spaces.pictures.tiles import Tiles

SLOW = pytest.mark.slow
KINDS_OF_PICTURES = [
    (None, "pixels"),
    pytest.param(None, "cosines", marks=SLOW),
    pytest.param(10.0, "pixels", marks=SLOW),
    (10.0, "cosines"),
    (math.inf, "pixels"),
    pytest.param(math.inf, "cosines", marks=SLOW),
]


def empty_tally(h=3, n_bins=16, width=0.5):
    return Tally(
        torch.zeros(h, n_bins, dtype=torch.int32), torch.full((h,), width, dtype=torch.float64)
    )


def moons_like(n, seed=0):
    """Three classes in the plane, and their labels."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=n)
    centres = np.array([[0.0, 0.0], [2.0, 0.5], [-1.0, 2.0]])
    return centres[y] + 0.3 * rng.normal(size=(n, 2)), y


vectors = partial(counted_vectors, n_particles=300, n_steps=6)
pictures = partial(
    counted_pictures, schedule="1[1] 4[4,3] 8[5,1]", quality=2, n_particles=600, patch_basis="pixels"
)


def tables(flow):
    steps = [flow._fitted.steps]
    maps = [s.table for stage in steps for s in stage]
    maps = [t.grid() if isinstance(t, CompactTable) else t for t in maps]
    return [(t.lo, t.hi, t.values) for t in maps]


def assert_same(a, b):
    """Two models, bit for bit: their counts, their tables, their particles."""
    one, other = a._online.ledger, b._online.ledger
    assert one.rows == other.rows
    for label in one.rows:
        for stage, same in zip(one.tallies[label], other.tallies[label], strict=True):
            for t, u in zip(stage, same, strict=True):
                for name in ("width", "counts", "keys", "outer"):
                    assert torch.equal(getattr(t, name), getattr(u, name))
    for t, u in zip(tables(a), tables(b), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(t, u, strict=True))
    assert np.array_equal(a.particles_, b.particles_)
    assert np.array_equal(a.particle_conditions_, b.particle_conditions_)


# Counts


@given(st.integers(0, 10_000), st.lists(st.integers(0, 60), min_size=1, max_size=4))
@settings(max_examples=30, deadline=None)
def test_bins_of_one_width_are_as_narrow_as_the_outermost_value_allows(seed, cuts):
    z = torch.from_numpy(np.random.default_rng(seed).standard_cauchy((3, 60)) * 3)
    grown = empty_tally()
    for part in torch.tensor_split(z, sorted(cuts), dim=1):
        if part.shape[1]:
            grown.add(part)
    counts, width = grown.even()
    assert grown.total == 60
    for row, c, w in zip(z.numpy(), counts, width.tolist(), strict=True):
        assert c.tolist() == np.histogram(np.floor(row / w), np.arange(-8, 9))[0].tolist()
        assert w == 0.5 or np.abs(np.floor(2 * row / w) + 0.5).max() > 8


@given(st.integers(0, 10_000), st.integers(0, 59))
@settings(max_examples=30, deadline=None)
def test_what_was_added_can_be_taken_away(seed, n):
    z = torch.from_numpy(np.random.default_rng(seed).standard_cauchy((3, 60)) * 3)
    tally, some = empty_tally(), empty_tally()
    tally.add(z)
    tally.add(z[:, n:], -1)
    if n:
        some.add(z[:, :n])
    for name in ("counts", "width", "keys", "outer"):
        assert torch.equal(getattr(tally, name), getattr(some, name))
    assert tally.total == n


def test_far_values_take_bins_only_while_they_are_there():
    tally = empty_tally(3, 16)
    before = tally.nbytes
    far = torch.tensor([[1e3, -5.0], [1.0, 2.0], [0.0, 0.0]])
    tally.add(far)
    assert tally.keys.tolist() == [1 * 3 + 0, 8 * 3 + 0]
    assert tally.nbytes == before + 2 * (8 + 8 * 4)
    assert tally.even()[1].tolist() == [128.0, 0.5, 0.5]
    tally.add(far[:, :1], -1)
    assert tally.even()[1].tolist() == [1.0, 0.5, 0.5]
    tally.add(far[:, 1:], -1)
    assert tally.nbytes == before


def test_a_mixture_is_the_histogram_of_the_shifted_classes():
    rng = torch.Generator().manual_seed(0)
    z = [torch.randn(2, n, generator=rng, dtype=torch.float64) for n in (4000, 1000)]
    offsets = torch.tensor([[0.0, 30.0], [5.0, 0.0]], dtype=torch.float64)
    tallies = [empty_tally(2, 256, 1 / 16), empty_tally(2, 256, 1 / 16)]
    for tally, values in zip(tallies, z, strict=True):
        tally.add(values)
    counts, lo, hi = mix(tallies, [300, 700], offsets, 512)
    share = counts.double() / counts.sum(1, keepdim=True)
    middle = lo[:, None] + (torch.arange(512) + 0.5) * ((hi - lo) / 512)[:, None]
    mean = 0.3 * (z[0].mean(1) + offsets[:, 0]) + 0.7 * (z[1].mean(1) + offsets[:, 1])
    assert torch.allclose((share * middle).sum(1), mean, atol=0.02)
    # Far apart, the mass below the gap is the class's own to the last unit.
    assert int(counts[0][middle[0] < 15].sum()) * 10 == int(counts[0].sum()) * 3
    assert int(counts[0][(middle[0] > 8) & (middle[0] < 22)].sum()) == 0


@pytest.mark.parametrize("masses", [[1, 99_999], [1, 1], [7, 3]])
def test_a_mixture_has_the_units_of_30_bits_and_every_class_its_share_of_them(masses):
    tallies = [empty_tally(2, 64, 1 / 8) for _ in masses]
    for tally, n in zip(tallies, (3, 1000), strict=True):
        tally.add(torch.randn(2, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64))
    offsets = torch.tensor([[0.0, 40.0], [0.0, 40.0]], dtype=torch.float64)
    counts, lo, hi = mix(tallies, masses, offsets, 1024)
    unit = 2**30 // sum(masses)
    assert counts.sum(1).tolist() == [unit * sum(masses)] * 2
    assert int(counts.min()) >= 0  # no sum has run over
    middle = lo[:, None] + (torch.arange(1024) + 0.5) * ((hi - lo) / 1024)[:, None]
    assert [int(c[m < 20].sum()) for c, m in zip(counts, middle, strict=True)] == [unit * masses[0]] * 2


def test_values_below_edges_are_the_references():
    rng = np.random.default_rng(0)
    counts = torch.from_numpy(rng.integers(0, 9, (5, 32))).int()
    width = torch.from_numpy(rng.uniform(0.1, 1, 5))
    start, step = torch.from_numpy(rng.normal(size=5) - 9), torch.from_numpy(rng.uniform(0, 0.3, 5))
    out = []
    for k in (reference, kernels.for_device("cpu")):
        total = torch.ones(5, 100, dtype=torch.float64)
        k.add_below(total, counts, width, start, step, 2.5)
        out.append(total)
    assert torch.allclose(*out, rtol=1e-12)
    assert torch.allclose(out[0].diff(dim=1).clamp(max=0), torch.zeros(5, 99).double())  # ascending


@pytest.mark.parametrize("kind", ["tiles", "pyramid", "orthogonal"])
def test_projections_do_not_depend_on_the_company(kind):
    space = None
    if kind == "orthogonal":
        frame, d = frames.Orthogonal(), 37
    else:
        side = 11 if kind == "tiles" else 7
        space, d = Subspace(2, 11, 11, side, side), 242
        frame = Tiles(2, side, side, 5)
    flow = Flow([Stage("", frame, 3)], Seed(0))
    place = CountedStage(flow, 0) if space is None else CountedLevel(flow, 0, space)
    x = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (d, 500))).float()

    def project(x):
        seen = place.down(x)
        return place.project(place.frame(2, seen), seen)

    together = project(x)
    for columns in ([0], [499, 3], list(range(7, 240))):
        assert torch.equal(project(x[:, columns]), together[:, columns])
    # And they are the flow's own, up to rounding.
    seen = x.double() if space is None else space.down(x.double())
    exact = place.frame(2, seen).project(seen)
    assert float((together - exact).abs().max()) < 1e-3


def test_the_noise_of_a_name_is_uniform_and_its_own():
    u = Seed(3).uniform_named(torch.arange(4000), 7)
    assert u.shape == (4000, 7)
    assert float(u.min()) > 0 and float(u.max()) < 1  # noqa: PT018
    assert torch.allclose(u.mean(0), torch.full((7,), 0.5, dtype=u.dtype), atol=0.02)
    assert float(torch.corrcoef(u.T).fill_diagonal_(0).abs().max()) < 0.06
    assert torch.equal(Seed(3).uniform_named(torch.tensor([17]), 7), u[17:18])
    assert not torch.equal(Seed(4).uniform_named(torch.tensor([17]), 7), u[17:18])


# Batches


@pytest.mark.parametrize("labelled", [False, True])
def test_ten_batches_of_vectors_are_one(labelled):
    X, y = moons_like(200)
    y = y if labelled else None
    one = vectors(standardize=False).partial_fit(X, y)
    ten = vectors(standardize=False)
    for i, part in enumerate(np.array_split(np.random.default_rng(1).permutation(200), 10)):
        ten.partial_fit(X[part], None if y is None else y[part], refresh=i == 9)
    assert_same(one, ten)


@pytest.mark.parametrize(("amplifier", "patch_basis"), KINDS_OF_PICTURES)
def test_ten_batches_of_pictures_are_one(amplifier, patch_basis):
    X, y = IMAGES[:300], None if amplifier is None else LABELS[:300]
    settings = dict(patch_basis=patch_basis, amplifier="auto" if amplifier is None else amplifier)
    one = pictures(**settings).partial_fit(X, y)
    ten = pictures(**settings)
    for i, part in enumerate(np.array_split(np.random.default_rng(1).permutation(300), 10)):
        ten.partial_fit(X[part], None if y is None else y[part], refresh=i == 9)
    assert_same(one, ten)


def test_classes_that_come_one_by_one_are_numbered_as_if_they_had_come_together():
    X, y = moons_like(200)
    names = np.array(["b", "c", "a"])[y]
    one = vectors(standardize=False).partial_fit(X, names)
    grown = vectors(standardize=False)
    for name in ("c", "b", "a"):
        grown.partial_fit(X[names == name], names[names == name], refresh=name == "a")
    assert_same(one, grown)
    assert grown.classes_.tolist() == ["a", "b", "c"]


def test_units_are_those_of_the_first_rows():
    X, y = moons_like(200)
    one = vectors().partial_fit(X[:20], y[:20]).partial_fit(X[20:], y[20:])
    many = vectors().partial_fit(X[:20], y[:20])
    for part in np.array_split(np.arange(20, 200), 5):
        many.partial_fit(X[part], y[part], refresh=False)
    assert_same(one, many.refresh())


def test_a_batch_far_from_the_first_is_reached():
    X, _ = moons_like(200)
    flow = vectors(n_steps=40).partial_fit(X).partial_fit(X + 1000.0)
    assert 0.4 < np.mean(flow.particles_[:, 0] > 500) < 0.6
    assert np.all((flow.particles_[:, 0] < 100) | (flow.particles_[:, 0] > 900))


@pytest.mark.parametrize(("amplifier", "patch_basis"), KINDS_OF_PICTURES)
def test_it_is_a_fit_on_all_the_data_with_the_same_seed(amplifier, patch_basis):
    X, y = IMAGES[:900], None if amplifier is None else LABELS[:900]
    settings = dict(quality=4, n_particles=900, patch_basis=patch_basis)
    settings |= dict(amplifier="auto" if amplifier is None else amplifier)
    fit = pictures(transport=transports.Histogram(1024), **settings).fit(X, y)
    online = pictures(**settings).partial_fit(X, y)
    assert np.array_equal(fit.particle_conditions_, online.particle_conditions_)

    def rows(images):
        return images.reshape(len(images), -1) * (2 / 17) - 1

    real = rows(X)
    far = [metrics.sliced_wasserstein(rows(f.particles_), real) for f in (fit, online)]
    assert abs(far[0] - far[1]) < 0.01
    assert metrics.sliced_wasserstein(rows(fit.particles_), rows(online.particles_)) < 0.045
    assert metrics.sliced_wasserstein(real, rows(IMAGES[900:])) > 0.07  # for comparison


def test_absorbing_takes_no_memory_but_for_new_classes():
    X, y = moons_like(400)
    flow = vectors().partial_fit(X[:50], y[:50])
    before = flow._online.ledger.nbytes
    assert before == 3 * (6 + 2) * 2 * 64 * 4  # classes, steps, directions, bins, bytes
    assert flow.partial_fit(X[50:], y[50:], refresh=False)._online.ledger.nbytes == before


def test_absorbing_costs_the_same_whatever_is_there_already(monkeypatch):
    X, y = moons_like(3000)
    add, values = Tally.add, []

    def counted(self, z, sign=1):
        values.append(z.numel())
        add(self, z, sign)

    costs = []
    monkeypatch.setattr(Tally, "add", counted)
    for n in (20, 2900):
        flow = vectors().partial_fit(X[:n], y[:n])
        values.clear()
        flow.partial_fit(X[-50:], y[-50:], refresh=False)
        costs.append(sum(values))
    assert costs[0] == costs[1] == 50 * (6 + 2) * 2  # rows, steps, directions


# Forgetting


def test_forgotten_pictures_were_never_there():
    X, y = IMAGES[:300], LABELS[:300]
    flow = pictures().partial_fit(X, y)
    flow.forget(X[200:][::-1], y[200:][::-1])
    assert_same(flow, pictures().partial_fit(X[:200], y[:200]))


def test_cosines_forget_too():
    X, y = IMAGES[:300], LABELS[:300]
    flow = pictures(patch_basis="cosines").partial_fit(X, y).forget(X[200:], y[200:])
    assert_same(flow, pictures(patch_basis="cosines").partial_fit(X[:200], y[:200]))


def test_mirror_images_are_forgotten_with_the_pictures():
    X, y = IMAGES[:120], LABELS[:120]
    flow = pictures(mirror=True).partial_fit(X, y).forget(X[60:], y[60:])
    other = pictures(mirror=True).partial_fit(X[:60], y[:60])
    assert_same(flow, other)
    whole = pictures(mirror=True).partial_fit(X)
    tally = whole._online.ledger.tallies[None][0][0]
    assert int(tally.counts[0].sum()) == 240


def test_a_forgotten_class_is_gone_from_the_samples():
    X, y = moons_like(400)
    flow = vectors(n_steps=30).partial_fit(X, y)
    assert np.mean(flow.sample(500, random_state=0)[:, 1] > 1.4) > 0.2
    with pytest.warns(UserWarning, match="still affect"):  # a third of the first rows
        flow.forget(X[y == 2], y[y == 2])
    assert flow.classes_.tolist() == [0, 1]
    assert np.mean(flow.sample(500, random_state=0)[:, 1] > 1.4) < 0.01
    with pytest.raises(ValueError, match="unknown label 2"):
        flow.sample(5, y=2)


def test_a_forgotten_class_of_pictures_leaves_the_others_as_they_were():
    X, y = IMAGES[:300], LABELS[:300]
    flow = pictures(amplifier=math.inf).partial_fit(X, y)
    before, own = flow.sample(20, y=8, random_state=0), y == 3
    flow.forget(X[own], y[own])
    assert flow.classes_.tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert_same(flow, pictures(amplifier=math.inf).partial_fit(X[~own], y[~own]))
    assert flow._fitted.levels.apart == 9
    with pytest.raises(ValueError, match="unknown label 3"):
        flow.sample(2, y=3)
    # Only the number of its particles has changed for another class.
    assert np.abs(flow.sample(20, y=8, random_state=0).astype(int) - before).mean() < 1


@given(st.data())
@settings(max_examples=6, deadline=None)
def test_whatever_came_and_went_classes_apart_are_those_of_the_pictures_that_are_there(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    settings = dict(schedule="1[1] 8[3]", n_particles=100, amplifier=math.inf)
    flow = pictures(**settings)
    left = come_and_go(data, rng, flow, IMAGES, LABELS, st.booleans())
    assert_same(flow.refresh(), pictures(**settings).partial_fit(IMAGES[left], LABELS[left]))


def test_a_row_counts_as_often_as_it_came():
    X, _ = moons_like(50)
    flow = vectors(standardize=False).partial_fit(np.concatenate((X, X[:10]))).forget(X[:10])
    assert_same(flow, vectors(standardize=False).partial_fit(X))
    flow.forget(X[:10])
    with pytest.raises(ValueError, match="never added"):
        flow.forget(X[:1])
    flow.partial_fit(X[:1])
    with pytest.raises(ValueError, match="never added"):
        flow.forget(X[[0, 0]])  # it is there, but not twice
    with pytest.raises(ValueError, match="never added"):
        flow.forget(X[[40, 41, 40]])
    flow.forget(X[:1])


@given(st.data())
@settings(max_examples=12, deadline=None)
def test_whatever_came_and_went_the_model_is_that_of_the_rows_that_are_there(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    X = np.round(rng.normal(size=(30, 2)) * rng.choice([1, 20], size=(30, 1)), 1)
    y = rng.integers(3, size=30)
    flow, fresh = (vectors(n_steps=2, standardize=False) for _ in range(2))
    left = come_and_go(data, rng, flow, X, y, st.just(False))
    assert_same(flow.refresh(), fresh.partial_fit(X[left], y[left]))


# Refreshes


@pytest.mark.parametrize("make", [vectors, pictures], ids=["vectors", "pictures"])
def test_a_partial_refresh_keeps_the_first_maps_and_sees_the_new_rows(make):
    if make is vectors:
        (X, _), last, total = moons_like(200), 3, 8
    else:
        X, last, total = IMAGES[:300], 3, 10  # two stages of two steps each hold the last three
    flow = make().partial_fit(X[:100])
    before, steps = tables(flow), flow.n_iter_
    flow.partial_fit(X[100:], refresh=last)
    kept = steps - (last if make is vectors else 4)
    after = tables(flow)
    assert len(after) == len(before) == flow.n_iter_ == steps
    assert all(torch.equal(x[2], y[2]) for x, y in zip(before[:kept], after[:kept], strict=True))
    assert not any(torch.equal(x[2], y[2]) for x, y in zip(before[kept:], after[kept:], strict=True))
    assert len(flow.history_["seconds"]) == steps
    whole = make().partial_fit(X)
    if make is pictures:
        assert_same(flow.refresh(total), whole)
    assert flow.sample(3, random_state=0).shape[0] == 3


def test_a_partial_refresh_needs_the_same_classes_and_a_model():
    X, y = moons_like(100)
    flow = vectors().partial_fit(X[y < 2], y[y < 2])
    with pytest.raises(ValueError, match="refresh all steps"):
        flow.partial_fit(X[y == 2], y[y == 2], refresh=2)
    flow.refresh()
    with pytest.raises(ValueError, match="last=0 must be"):
        flow.refresh(0)
    empty = pictures(options=PictureOptions(n_knots=0)).partial_fit(IMAGES[:50])
    with pytest.raises(ValueError, match="n_knots=0"):
        empty.refresh(1)


@pytest.mark.parametrize(("was", "now"), [(10.0, math.inf), (math.inf, 10.0)])
def test_a_partial_refresh_needs_maps_of_the_same_kind(was, now):
    X, y = IMAGES[:100], LABELS[:100]
    flow = pictures(amplifier=was).partial_fit(X, y).set_params(amplifier=now)
    with pytest.raises(ValueError, match=f"and amplifier={now} changes that; refresh all steps"):
        flow.refresh(2)
    assert_same(flow.refresh(), pictures(amplifier=now).partial_fit(X, y))
    before = tables(flow)
    for t, u in zip(before[:6], tables(flow.refresh(2))[:6], strict=True):  # and now it can be done
        assert all(torch.equal(x, y) for x, y in zip(t, u, strict=True))


def test_large_classes_are_held_apart_as_in_a_fit():
    X, y = IMAGES[:200], np.arange(200) % 2
    flow = pictures(schedule="1[1]", n_particles=50).partial_fit(X, y)
    assert flow._fitted.levels.amplifier == math.inf
    assert (
        pictures(schedule="1[1]", n_particles=50).partial_fit(X[1:], y[1:])._fitted.levels.amplifier
        == 10.0
    )


def test_the_amplifier_may_change_without_counting_again():
    X, y = moons_like(200)
    flow = vectors(standardize=False).partial_fit(X, y).set_params(amplifier=2.0).refresh()
    assert_same(flow, vectors(standardize=False, amplifier=2.0).partial_fit(X, y))
    # Without an amplifier classes are not seen, and the flow is that of the rows alone.
    flow.set_params(amplifier=0.0).refresh()
    alone = vectors(standardize=False).partial_fit(X)
    assert np.abs(flow.particles_ - alone.particles_).mean() < 0.1


def test_listeners_hear_a_refresh():
    heard = []
    vectors().partial_fit(moons_like(50)[0], listeners=(lambda event: heard.append(event.steps_done),))
    assert heard == list(range(1, 9))


# What is refused, and what is kept


def test_fit_keeps_no_counts():
    X, _ = moons_like(50)
    flow = vectors().fit(X)
    with pytest.raises(ValueError, match="no counts of its data"):
        flow.forget(X[:1])
    with pytest.warns(UserWarning, match="starts again"):
        flow.partial_fit(X[:30])
    assert_same(flow, vectors().partial_fit(X[:30]))
    assert flow.fit(X)._online is None


def test_fit_is_not_changed_by_what_was_counted():
    X, y = moons_like(50)
    assert np.array_equal(
        vectors().partial_fit(X, y).fit(X, y).particles_, vectors().fit(X, y).particles_
    )


def test_wrong_rows_are_refused_and_nothing_changes():
    X, y = moons_like(60)
    flow = vectors().partial_fit(X, y)
    before = pickle.dumps(flow._online.ledger.rows)
    wrong = y.copy()
    wrong[7] = (wrong[7] + 1) % 3
    for bad_X, bad_y, says in (
        (X, wrong, "never added"),
        (X[:5] + 1e-9, y[:5], "never added"),
        (X, y, "all 60 rows"),
        (X[:5], None, "never added"),
    ):
        with pytest.raises(ValueError, match=says):
            flow.forget(bad_X, bad_y)
    with pytest.raises(ValueError, match="came with class labels"):
        flow.partial_fit(X)
    with pytest.raises(ValueError, match="continuous"):
        flow.partial_fit(X, X)
    with pytest.raises(ValueError, match="features"):
        flow.partial_fit(X[:, :1], y)
    assert pickle.dumps(flow._online.ledger.rows) == before


@pytest.mark.parametrize(
    ("changes", "refresh", "says"),
    [(dict(n_particles=2), True, "fewer than the 3 classes"), ({}, 0, "last=0"), ({}, 2, "not fitted")],
)
@pytest.mark.parametrize("make", [vectors, pictures], ids=["vectors", "pictures"])
def test_rows_whose_refresh_is_refused_are_not_counted_twice_when_they_come_again(
    make, changes, refresh, says
):
    X, y = moons_like(60) if make is vectors else (IMAGES[:60], LABELS[:60] % 3)
    flow = make(**changes)
    with pytest.raises(ValueError, match=says):
        flow.partial_fit(X, y, refresh=refresh)
    assert_same(
        flow.set_params(n_particles=300).partial_fit(X, y), make(n_particles=300).partial_fit(X, y)
    )


def test_rows_are_still_there_when_the_refresh_without_them_is_refused():
    X, y = moons_like(60)
    flow = vectors().partial_fit(X, y)
    before = pickle.dumps(flow._online.ledger.rows[1])
    with pytest.raises(ValueError, match="refresh all steps"):
        flow.forget(X[y == 0], y[y == 0], refresh=2)
    assert flow._online.ledger.sizes() == Counter(y.tolist())
    assert pickle.dumps(flow._online.ledger.rows[1]) == before
    assert_same(flow.refresh(), vectors().partial_fit(X, y))


def test_none_is_no_label_beside_others():
    X, _ = moons_like(60)
    flow = vectors()
    with pytest.raises(ValueError, match="row 0 of y has no label"):
        flow.partial_fit(X, [None, "a"] * 30)
    assert flow.partial_fit(X, ["b", "a"] * 30).classes_.tolist() == ["a", "b"]


def test_what_cannot_be_counted_is_refused():
    X, y = moons_like(60)
    with pytest.raises(ValueError, match="sorts the data"):
        vectors(transport="sorted").partial_fit(X)
    with pytest.raises(ValueError, match="multiple of 4"):
        vectors(transport=transports.Histogram(30)).partial_fit(X)
    with pytest.raises(ValueError, match="early_stopping"):
        vectors(early_stopping=True).partial_fit(X)
    with pytest.raises(ValueError, match="n_steps=0 must be at least 1 for partial_fit"):
        vectors(n_steps=0, options=VectorOptions(n_axis_steps=0)).partial_fit(X)
    with pytest.raises(ValueError, match="random directions"):
        vectors(frame="random").partial_fit(X, y)
    vectors(frame=frames.Random(20)).partial_fit(X)
    with pytest.raises(ValueError, match="observed"):
        pictures(observed="top").partial_fit(IMAGES[:20])
    flow = vectors().partial_fit(X)
    with pytest.raises(ValueError, match="n_steps was 6 and is now 7"):
        flow.set_params(n_steps=7).partial_fit(X)


def test_a_pickle_goes_on_and_a_file_only_samples(tmp_path):
    X, y = moons_like(100)
    flow = vectors().partial_fit(X[:50], y[:50])
    copy = pickle.loads(pickle.dumps(flow))
    assert_same(copy.partial_fit(X[50:], y[50:]), flow.partial_fit(X[50:], y[50:]))
    flow.save(tmp_path / "model")
    loaded = sliceflow.load(tmp_path / "model")
    assert np.array_equal(loaded.sample(20, random_state=1), flow.sample(20, random_state=1))
    with pytest.raises(ValueError, match="holds a model without counts"):
        loaded.partial_fit(X, y)
    with pytest.raises(ValueError, match="pickle does"):
        loaded.forget(X[:1], y[:1])


def test_floats_tensors_and_colours_grow_too():
    rng = np.random.default_rng(0)
    colours = rng.uniform(size=(40, 6, 5, 3)).astype(np.float32)
    flow = ImageFlow(schedule="2[2] 6[3]", quality=2, n_particles=50, random_state=0)
    flow.partial_fit(torch.from_numpy(colours[:20])).partial_fit(torch.from_numpy(colours[20:]))
    assert flow.particles_.shape == (50, 6, 5, 3)
    X = torch.from_numpy(moons_like(50)[0]).float()
    assert vectors().partial_fit(X).particles_.dtype == torch.float32


def test_a_loaded_flow_that_was_fitted_again_can_grow(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 2))
    SlicedWassersteinFlow(100, 3, random_state=0).fit(x).save(tmp_path / "m")
    flow = sliceflow.load(tmp_path / "m")
    flow.fit(x)
    with pytest.warns(UserWarning, match="starts again"):
        flow.partial_fit(x)
    assert len(flow.particles_) == 100


def test_classes_of_an_earlier_fit_are_gone():
    x = np.random.default_rng(0).normal(size=(60, 2))
    flow = SlicedWassersteinFlow(100, 3, random_state=0).fit(x, np.arange(60) % 2)
    with pytest.warns(UserWarning, match="starts again"):
        flow.partial_fit(x)
    assert not hasattr(flow, "classes_")
