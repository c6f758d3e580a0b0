"""What is forgotten leaves no trace, and what fails changes nothing."""

import pickle
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sliceflow
from models import DIGIT_LABELS as LABELS
from models import DIGITS as IMAGES
from models import come_and_go
from models import counted_pictures as pictures
from models import counted_vectors as vectors
from sliceflow import PictureOptions, SlicedWassersteinFlow, VectorOptions
from sliceflow.engine import events, flow
from sliceflow.online.counts import columns_to_grid, to_grid
from sliceflow.online.first import Column
from sliceflow.online.tally import Tally


def rows(n, seed=0, d=3):
    return np.random.default_rng(seed).normal(size=(n, d)) * [1, 30, 0.01] + [5, -70, 0]


@contextmanager
def no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def no_clock(monkeypatch):
    """Steps take no time: the seconds of a history are all that two equal models differ in."""
    monkeypatch.setattr(flow, "now", lambda: 0.0)
    monkeypatch.setattr(events, "now", lambda: 0.0)


def saved(model, tmp_path):
    model.save(tmp_path / "model", particles=True)
    return (tmp_path / "model").read_bytes()


def counts(model):
    """All that is counted, by label, and the rows' names."""
    ledger = model._online.ledger
    tallies = {
        label: [(t.counts, t.keys, t.outer) for stage in stages for t in stage]
        for label, stages in ledger.tallies.items()
    }
    return ledger.rows, tallies, model._online.waiting, ledger.change


def assert_same_counts(a, b):
    (rows_a, tallies_a, waiting_a, change_a), (rows_b, tallies_b, waiting_b, change_b) = a, b
    assert rows_a == rows_b
    assert change_a is change_b is None
    assert (waiting_a or {}).keys() == (waiting_b or {}).keys()
    assert tallies_a.keys() == tallies_b.keys()
    for label, tallies in tallies_a.items():
        for t, u in zip(tallies, tallies_b[label], strict=True):
            assert all(torch.equal(x, y) for x, y in zip(t, u, strict=True))


# The file of a model that forgot is that of one that never knew


SECRETS = {
    "one row": (rows(1, seed=9), None),
    "ten rows": (rows(10, seed=9), None),
    "far away": (np.array([[1e6, -3e7, 400.0]]), None),
    "a class of its own": (rows(4, seed=9), [7, 7, 7, 7]),
    "some of a class": (rows(4, seed=9), [2, 0, 0, 2]),
    "long labels": (rows(2, seed=9), ["zebra, striped", "a"]),
    "labels that cannot be sorted": (rows(2, seed=9), [(1,), "c"]),
    "labels of another width": (rows(2, seed=9), np.array([0, 200], np.uint8)),
}


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("place", ["first", "last"])
def test_a_file_holds_nothing_of_forgotten_rows(secret, place, tmp_path, no_clock):
    gone, labels = SECRETS[secret]
    kind = None if labels is None else str if isinstance(labels[-1], str) else int
    X, y = rows(200), None if kind is None else [kind(i % 3) for i in range(200)]
    if secret == "labels that cannot be sorted":
        y = [("c", (1,), 5)[i % 3] for i in range(200)]
    model, never = vectors(), vectors().partial_fit(X, y)
    if place == "first":
        model.partial_fit(gone, labels, refresh=False).partial_fit(X, y)
    else:
        model.partial_fit(X, y).partial_fit(gone, labels)
    assert saved(model, tmp_path) != saved(never, tmp_path)
    model.forget(gone, labels)
    assert saved(model, tmp_path) == saved(never, tmp_path)
    assert model._online.first.names == never._online.first.names
    assert_same_counts(counts(model), counts(never))


def test_the_order_in_which_labels_came_is_not_in_the_file(tmp_path, no_clock):
    X, y = rows(90) / 30, ["c", (1,), 5] * 30
    model = vectors(standardize=False).partial_fit(X[:2] + 1, [(1,), "c"])
    model.partial_fit(X, y).forget(X[:2] + 1, [(1,), "c"])
    assert saved(model, tmp_path) == saved(vectors(standardize=False).partial_fit(X, y), tmp_path)


def test_the_secret_that_came_first_is_not_in_the_file(tmp_path):
    secret = np.array([[52341.25, 0.123456789]])
    others = np.random.default_rng(0).normal(size=(300, 2)) * [20000, 1] + [50000, 0]
    model = vectors().partial_fit(secret, refresh=False)
    model.partial_fit(others).forget(secret)
    file = saved(model, tmp_path)
    assert not any(value.tobytes() in file for value in secret[0])


@pytest.mark.parametrize("changes", [{}, {"mirror": True}, {"patch_basis": "cosines"}])
def test_a_file_holds_nothing_of_forgotten_pictures(changes, tmp_path, no_clock):
    never = pictures(**changes).partial_fit(IMAGES[20:80], LABELS[20:80])
    model = pictures(**changes).partial_fit(IMAGES[:20], LABELS[:20], refresh=False)
    model.partial_fit(IMAGES[20:90], LABELS[20:90]).forget(IMAGES[80:90], LABELS[80:90])
    model.forget(IMAGES[:20], LABELS[:20])
    assert saved(model, tmp_path) == saved(never, tmp_path)


@given(st.data())
@settings(max_examples=10, deadline=None)
def test_whatever_came_and_went_counts_are_those_of_the_rows_that_are_there(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    X = rng.standard_cauchy(size=(30, 2)) * rng.choice([1e-3, 1, 1e5], size=(30, 1))
    y = rng.integers(3, size=30)
    model, fresh = (vectors(n_steps=1, standardize=False) for _ in range(2))
    left = come_and_go(data, rng, model, X, y, st.just(False))
    fresh.partial_fit(X[left], y[left], refresh=False)
    assert_same_counts(counts(model), counts(fresh))


# What the first rows decide


def unit(column):
    return column.exponent, column.middle, column.share


@given(st.integers(0, 10_000), st.integers(2, 60), st.sampled_from(["normal", "cauchy", "zeros"]))
@settings(max_examples=60, deadline=None)
def test_it_is_known_whether_the_rest_of_the_first_rows_has_the_same_unit(seed, n, kind):
    rng = np.random.default_rng(seed)
    x = rng.standard_cauchy(n) if kind == "cauchy" else rng.normal(size=n)
    x = (x + 10 * rng.normal()) * 10 ** rng.uniform(-3, 3)
    if kind == "zeros":
        x[rng.uniform(size=n) < 0.9] = 0
    column = Column.of(x)
    assert column.same()
    assert unit(Column.of(rng.permutation(x))) == unit(column)
    gone = rng.permutation(n)[: rng.integers(1, n)]
    rest = Column.of(np.delete(x, gone))
    if kind != "zeros":  # whether values are equal is not known when they are gone
        assert column.without(x[gone]).same() == (unit(rest) == unit(column))
    if unit(rest) == unit(column):
        kept = column.without(x[gone])
        assert kept.same()
        assert np.array_equal(kept.cells, rest.cells)
        assert np.array_equal(kept.counts, rest.counts)


def test_units_are_near_those_of_mean_and_standard_deviation():
    rng = np.random.default_rng(0)
    for scale in 2.0 ** rng.uniform(-20, 20, size=50):
        column = Column.of(scale * rng.normal(3, 1, size=1000))
        assert 0.5 < column.scale / scale < 1.3
        assert abs(column.shift / scale - 3) < 0.8
        assert np.log2(column.scale) % 1 == 0
        assert (column.shift / column.scale) % 1 == 0


@pytest.mark.parametrize("value", [0.0, 1.0, -52341.0, 1e-9])
def test_a_column_of_one_value_is_near_zero_and_shows_few_bits_of_it(value):
    column = Column.of(np.full(20, value))
    assert abs(value - column.shift) <= column.scale / 2
    assert abs(column.middle) <= 1024
    assert value == 0 or column.scale < abs(value) / 500


def test_one_row_far_away_does_not_change_the_unit():
    x = np.random.default_rng(0).normal(size=100)
    assert unit(Column.of(np.append(x, 1e9))) == unit(Column.of(x))


def test_zeros_do_not_make_a_unit():
    x = np.zeros(1000)
    x[::20] = np.random.default_rng(0).lognormal(size=50)
    assert 0.1 < Column.of(x).scale < 4


def test_forget_says_which_units_stay():
    X = rows(100)
    model = vectors().partial_fit(X * [1, 100, 1]).partial_fit(X)
    with pytest.warns(UserWarning, match=r"still affect the units \(shift, scale\) of columns 0 "):
        model.forget(X * [1, 100, 1])
    model.partial_fit(X[:3] + 1)
    with no_warning():  # those were none of the first rows
        model.forget(X[:3] + 1)


def test_forget_says_which_directions_stay():
    grey, black = np.full((20, 8, 8), 8, np.uint8), np.zeros((40, 8, 8), np.uint8)
    black[np.arange(40), np.arange(40) % 8] = 16
    model = pictures().partial_fit(grey).partial_fit(black)
    with pytest.warns(UserWarning, match="still affect patch_basis='cosines', chosen by \"auto\""):
        model.forget(grey)
    waited = pictures().partial_fit(grey, refresh=False).partial_fit(black)
    assert waited._fitted.levels.patch_basis == "cosines"
    with pytest.warns(UserWarning, match="patch_basis='cosines'"):
        waited.forget(grey)
    other = pictures().partial_fit(grey[:2], refresh=False).partial_fit(black)
    assert other._fitted.levels.patch_basis == "pixels"
    with no_warning():
        other.forget(grey[:2])


def test_of_equal_rows_the_later_one_goes_first():
    X = rows(5)
    model = vectors().partial_fit(X).partial_fit(np.concatenate((X[:1], rows(50, seed=1))))
    with no_warning():
        model.forget(X[:1])
    assert model._online.first.names[None].total() == 5
    assert sum(int(c.counts.sum()) for c in model._online.first.columns) == 15


def test_a_thousand_rows_set_the_units_and_fewer_wait():
    X = rows(1500)
    model = vectors()
    for part in np.array_split(X, 15):
        model.partial_fit(part, refresh=False)
        waiting = model._online.waiting
        there = model._online.ledger.sizes()[None]
        assert (waiting is None) == (there >= 1000)
        assert waiting is None or len(waiting) == there
    assert np.array_equal(model._online.scale, [Column.of(x).scale for x in X[:1000].T])
    at_once = vectors().partial_fit(X, refresh=False)
    assert at_once._online.waiting is None
    assert not any(X[0, 0].tobytes() in pickle.dumps(m) for m in (model, at_once))


def test_rows_that_wait_count_as_often_as_they_came():
    X = rows(30)
    model = vectors().partial_fit(np.concatenate((X, X[:4])), refresh=False)
    with pytest.raises(ValueError, match="never added"):
        model.forget(X[[0, 0, 0]], refresh=False)
    model.forget(X[[0, 1, 1]], refresh=False)
    fresh = vectors().partial_fit(np.concatenate((X[[0, *range(2, 30)]], X[2:4])))
    assert_same_counts(counts(model.refresh()), counts(fresh))


def test_labels_that_are_equal_but_of_two_types_are_refused():
    X = rows(20)
    model = vectors().partial_fit(X, [0, 1] * 10)
    with pytest.raises(ValueError, match=r"label 0\.0 is a float, but earlier 0 was a int"):
        model.partial_fit(X, [0.0, 1.0] * 10)
    with pytest.raises(ValueError, match="label False is a bool"):
        model.partial_fit(X, [False, True] * 10)
    model.forget(X[:2], [0.0, 1.0])


# Maps that still know


def test_maps_that_know_forgotten_rows_are_spoken_of(tmp_path):
    X = rows(60)
    model = vectors().partial_fit(X)
    model.forget(X[:3], refresh=False)
    with pytest.warns(UserWarning, match="the model to be saved still has maps"):
        model.save(tmp_path / "model")
    with pytest.warns(UserWarning, match="refreshed in part, still has maps"):
        model.refresh(2)
    with pytest.warns(UserWarning, match="refreshed in part, still has maps"):
        model.forget(X[3:4], refresh=2)
    with no_warning():
        model.refresh().save(tmp_path / "model")
        model.partial_fit(X[:3], refresh=2)
        sliceflow.load(tmp_path / "model").save(tmp_path / "again")


# All or nothing


class Trouble(BaseException):
    pass


def failing(error, after=2):
    def listen(event):
        if event.steps_done == after:
            raise error

    return (listen,)


FAILURES = {
    "a listener": dict(listeners=failing(RuntimeError("no"))),
    "memory": dict(listeners=failing(MemoryError())),
    "an interrupt": dict(listeners=failing(KeyboardInterrupt())),
    "anything": dict(listeners=failing(Trouble())),
    "no listeners": dict(listeners=3),
    "refused": dict(refresh=0),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("make", [vectors, pictures])
@pytest.mark.parametrize("labelled", [False, True])
def test_what_fails_changes_nothing(make, failure, labelled):
    X = rows(60) if make is vectors else IMAGES[:60]
    y = np.arange(60) % 3 if labelled else None

    def some(*of):
        return X[slice(*of)], None if y is None else y[slice(*of)]

    begun, expected = make(), make().partial_fit(*some(40))
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        begun.partial_fit(*some(40), **FAILURES[failure])
    assert not isinstance(caught.value, AssertionError)
    assert vars(begun) == vars(make())
    begun.partial_fit(*some(40))
    assert_same_counts(counts(begun), counts(expected))

    waiting = make().partial_fit(*some(20), refresh=False)
    with pytest.raises(BaseException):  # noqa: B017, PT011
        waiting.partial_fit(*some(20, 40), **FAILURES[failure])
    waiting.partial_fit(*some(20, 40))
    assert_same_counts(counts(waiting), counts(expected))

    before = dict(vars(begun))
    with pytest.raises(BaseException):  # noqa: B017, PT011
        begun.partial_fit(*some(40, 60), **FAILURES[failure])
    assert vars(begun) == before
    assert_same_counts(counts(begun), counts(expected))
    with pytest.raises(BaseException):  # noqa: B017, PT011
        begun.forget(*some(10), **FAILURES[failure])
    assert vars(begun) == before
    assert_same_counts(counts(begun), counts(expected))
    begun.partial_fit(*some(40, 60))


@pytest.mark.parametrize("change", ["partial_fit", "forget"])
def test_counting_can_be_interrupted_anywhere(change, monkeypatch):
    X, y = np.concatenate((rows(300), rows(5) * 1e4)), np.arange(305) % 2
    monkeypatch.setattr("sliceflow.online.counts.BUDGET", 1)
    monkeypatch.setattr(
        "sliceflow.spaces.vectors.online.projection_budget", lambda device: 1
    )  # parts of 64
    model = vectors(n_steps=1, options=VectorOptions(n_axis_steps=1)).partial_fit(X[:260], y[:260])
    arguments = (X[100:], y[100:] + 1) if change == "partial_fit" else (X[60:250], y[60:250])
    before = pickle.loads(pickle.dumps(model))
    add, calls, stop = Tally.add, 0, 0

    def counted(self, z, sign=1):
        nonlocal calls
        calls += 1
        if calls == stop:
            raise KeyboardInterrupt
        add(self, z, sign)
        if calls == -stop:
            raise KeyboardInterrupt

    monkeypatch.setattr(Tally, "add", counted)
    getattr(pickle.loads(pickle.dumps(model)), change)(*arguments)
    for when in [*range(-calls, 0), *range(1, calls + 1)]:
        calls, stop = 0, when
        with pytest.raises(KeyboardInterrupt):
            getattr(model, change)(*arguments)
        assert_same_counts(counts(model), counts(before))

    # A second one while the first is undone: the next call finishes that.
    def twice(self, z, sign=1):
        nonlocal calls
        calls += 1
        if calls in (7, 9):
            raise KeyboardInterrupt
        add(self, z, sign)

    calls = 0
    monkeypatch.setattr(Tally, "add", twice)
    with pytest.raises(KeyboardInterrupt):
        getattr(model, change)(*arguments)
    assert model._online.ledger.change is not None
    monkeypatch.setattr(Tally, "add", add)
    assert len(model.sample(3)) == 3
    getattr(model, change)(*arguments, refresh=False)
    getattr(before, change)(*arguments, refresh=False)
    assert_same_counts(counts(model), counts(before))


def test_a_listener_that_cannot_be_closed_undoes_the_refresh():
    class Listener:
        def __call__(self, event):
            return None

        def close(self):
            raise OSError("disk full")

    X = rows(60)
    model = vectors().partial_fit(X[:40])
    before = dict(vars(model))
    with pytest.raises(OSError, match="disk full"):
        model.partial_fit(X[40:], listeners=(Listener(),))
    assert vars(model) == before
    assert model._online.ledger.sizes() == {None: 40}


# Outliers


@pytest.mark.parametrize("together", [True, False])
def test_a_forgotten_outlier_leaves_the_particles_as_they_were(together):
    X, far = rows(200), np.full((1, 3), 1e6)
    never = vectors().partial_fit(X)
    model = vectors()
    if together:
        model.partial_fit(np.concatenate((X, far)))
    else:
        model.partial_fit(X).partial_fit(far)
    assert model.particles_.std() > 1000
    model.forget(far)
    assert np.array_equal(model.particles_, never.particles_)


@pytest.mark.parametrize("first", [True, False])
def test_a_row_out_of_all_bounds_is_refused(first):
    X, far = rows(50), np.full((1, 3), 1e306)
    model = vectors()
    if not first:
        model.partial_fit(X)
    with pytest.raises(
        ValueError, match=r"column 0 of X holds 1e\+306, more than 1e\+12 times its unit"
    ):
        model.partial_fit(np.concatenate((X, far)))
    model.partial_fit(X)
    assert np.isfinite(model.particles_).all()
    with pytest.raises(ValueError, match="column 0 of X cannot be standardised"):
        vectors().partial_fit(X * 1e306)


def test_long_rows_are_projected_alike_in_any_company():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(64, 40)) * 10.0 ** rng.uniform(-2, 11, size=(64, 1))
    one = vectors(standardize=False).partial_fit(X, refresh=False)
    for row in X[:-1][::-1]:
        one.forget(row[None], refresh=False)
    fresh = vectors(standardize=False).partial_fit(X[-1:], refresh=False)
    assert_same_counts(counts(one), counts(fresh))


def test_results_are_finite_or_an_error():
    X = np.random.default_rng(0).uniform(-3.4e38, 3.4e38, size=(300, 2)).astype(np.float32)
    model = SlicedWassersteinFlow(2000, 5, random_state=0, transport="histogram").fit(X)
    assert np.isfinite(model.particles_).all()
    assert np.isfinite(model.sample(20_000, random_state=0)).all()
    del model._fitted.parts[0].model[
        -2:
    ]  # the axis steps, which bring samples back into the data's range
    with pytest.raises(
        ValueError, match=r"values came out infinite or as NaN, beyond what torch\.float32"
    ):
        model.sample(20_000, random_state=0)
    before = dict(vars(model))
    changed = dict(entropy=10.0, options=VectorOptions(n_axis_steps=0))
    with pytest.raises(ValueError, match="came out infinite"):
        model.set_params(**changed).fit(X)
    assert vars(model) == before | changed
    picture = pictures(schedule="1[1]", n_particles=20, options=PictureOptions(start_noise=3e38))
    with pytest.raises(ValueError, match="came out infinite or as NaN"):
        picture.fit(IMAGES[:50])
    assert not hasattr(picture, "particles_")


def test_sums_of_long_rows_are_exact_in_any_order():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(50, 200)) * 10.0 ** rng.uniform(-3, 11, size=200))
    rounded, theta = (
        columns_to_grid(x),
        to_grid(torch.from_numpy(np.linalg.qr(rng.normal(size=(50, 50)))[0])),
    )
    assert float(((rounded - x).abs().amax(0) / x.abs().amax(0)).max()) < 1e-3
    assert torch.equal(rounded[:, :7], columns_to_grid(x[:, :7]))
    order = torch.from_numpy(rng.permutation(50))
    assert torch.equal((theta[:, order].T * rounded[order, 3:4]).sum(0), theta @ rounded[:, 3])
    one_by_one = sum(theta[:, j : j + 1] * rounded[j] for j in order.tolist())
    assert torch.equal(one_by_one, theta @ rounded)


def test_an_interrupted_refresh_counts_mirror_images_back_too():
    model = pictures(mirror=True, patch_basis="pixels").partial_fit(IMAGES[:30], LABELS[:30])
    before = pickle.loads(pickle.dumps(model))
    for change, of in (("partial_fit", slice(20, 50)), ("forget", slice(5, 15))):
        with pytest.raises(KeyboardInterrupt):
            getattr(model, change)(IMAGES[of], LABELS[of], listeners=failing(KeyboardInterrupt()))
        assert_same_counts(counts(model), counts(before))


def test_minus_zero_is_forgotten_as_zero():
    X = rows(20)
    X[3, 1] = -0.0
    model = vectors(standardize=False).partial_fit(X, refresh=False)
    X[3, 1] = 0.0
    model.forget(X[3:5], refresh=False)
    assert model._online.ledger.sizes() == {None: 18}
