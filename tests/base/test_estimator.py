"""What all estimators share: fit, plan, sample, score, save, listeners."""

import dataclasses
import inspect
import itertools
import logging
import math
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import sliceflow
from models import (
    EVEN_AND_ODD,
    FITTED,
    LABELS,
    PARTS,
    PICTURES,
    X,
    draws,
    interrupt,
    pictures,
    saved,
    vectors,
)
from problems import mixture
from sliceflow import (
    ImageFlow,
    ImageOptions,
    SlicedDensity,
    SlicedWassersteinFlow,
    TableFlow,
    VectorOptions,
    frames,
    metrics,
    transports,
)
from sliceflow.engine.events import LOGGER
from sliceflow.engine.random import Seed
from sliceflow.errors import DataError

SAMPLED = [kind for kind in PARTS if kind != "masked"]
WITH_Y = [kind for kind, (_, data) in PARTS.items() if len(data) > 1]
CLASSES = ["labels", "per class", "gray labels", "classes apart", "kept"]


@pytest.fixture(params=PARTS)
def kind(request):
    return request.param


# Conventions


@parametrize_with_checks([vectors(0, n_particles=30, n_steps=1)])
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([SlicedWassersteinFlow()])
def test_scikit_learn_conventions_at_the_defaults(estimator, check):
    check(estimator)


@pytest.mark.parametrize("estimator", [SlicedWassersteinFlow, ImageFlow])
def test_constructors_take_keywords_only_and_keep_what_they_are_given(estimator):
    with pytest.raises(TypeError):
        estimator(10)
    parameters = inspect.signature(estimator).parameters
    assert {
        "device",
        "random_state",
        "verbose",
        "save_rows",
        "options",
        "preset",
    } <= set(parameters)
    values = {name: object() for name in parameters}
    flow = estimator(**values)
    assert all(getattr(flow, name) is value for name, value in values.items())


def test_a_fit_changes_neither_parameters_nor_data(kind):
    make, data = PARTS[kind]
    before = pickle.dumps(data)
    flow = make()
    parameters = pickle.dumps(flow.get_params())
    assert flow.fit(*data) is flow
    assert (
        pickle.dumps(flow.get_params())
        == parameters
        == pickle.dumps(clone(flow).get_params())
    )
    assert pickle.dumps(data) == before


@pytest.mark.filterwarnings("error:The given NumPy array is not writable")
@pytest.mark.usefixtures("torch_warns_every_time")
def test_rows_may_be_read_only(kind):
    make, data = PARTS[kind]
    read_only = [np.array(part) for part in data]
    for part in read_only:
        part.flags.writeable = False
    make().fit(*read_only)


def test_attributes_fit_together(kind, fitted):
    flow = fitted(kind)
    _, data = PARTS[kind]
    assert type(flow.particles_) is type(data[0])
    assert flow.particles_.dtype == data[0].dtype
    assert flow.particles_.shape[1:] == data[0].shape[1:]
    assert len(flow.particles_) == flow.plan_.n_particles == flow.n_particles
    assert (flow.particle_conditions_ is None) == (len(data) == 1)
    assert hasattr(flow, "classes_") == (kind in [*CLASSES, "tuples", "kept"])
    lengths = {len(column) for column in flow.history_.values()}
    assert lengths == {flow.n_iter_}
    assert np.all(np.diff(flow.history_["seconds"]) >= 0)
    if kind in CLASSES:
        shares = np.bincount(data[1]) / len(data[1])
        found = np.bincount(flow.particle_conditions_) / flow.n_particles
        assert found == pytest.approx(shares, abs=0.02)


def test_the_same_seed_gives_the_same_bits(kind, fitted):
    flow = fitted(kind)
    again = FITTED[kind]()
    assert saved(again, particles=True) == saved(flow, particles=True)
    assert np.array_equal(draws(flow), draws(flow))
    make, data = PARTS[kind]
    other = make().set_params(random_state=4).fit(*data)
    assert not np.array_equal(other.particles_, flow.particles_)
    if kind not in (
        "local",
        "mixed",
        "color",
    ):  # maps are of the seed; these have none that move
        assert not np.array_equal(draws(other), draws(flow))
    assert not np.array_equal(draws(flow, seed=6), draws(flow))
    assert not np.array_equal(draws(flow, seed=None), draws(flow, seed=None))


@pytest.mark.parametrize("kind", SAMPLED)
def test_samples_of_the_fits_seed_are_new_ones(kind, fitted):
    """They are not the particles of the fit again, on which the maps were fitted."""
    flow = fitted(kind)
    n = flow.n_particles
    particles = np.asarray(flow.particles_, dtype=float).reshape(n, -1)

    def distances(seed):
        samples = np.asarray(flow.sample(n, random_state=seed), dtype=float)
        return np.abs(samples.reshape(n, -1) - particles).mean(axis=1)

    # The medians of n distances each, from the same distribution. Were the samples the
    # particles again, the first would be a small part of the second.
    assert np.median(distances(flow.random_state)) > np.median(distances(99)) / 2


@pytest.mark.parametrize("kind", [kind for kind in SAMPLED if kind != "clusters"])
def test_a_sample_does_not_depend_on_how_many_are_drawn_nor_on_chunks(
    kind, fitted, monkeypatch
):
    flow = fitted(kind)
    _, data = PARTS[kind]

    def sample(n):
        y = data[1][:n] if len(data) > 1 else None
        return np.asarray(flow.sample(n, y=y, random_state=1), float)

    many = sample(9)
    tolerance = 1e-5  # arrays of other shapes are rounded otherwise
    if many.max() > 2 and data[0].dtype == np.uint8:
        tolerance = 1
    if kind not in ("local", "mixed"):
        assert np.abs(many[:4] - sample(4)).max() <= tolerance
    for space in ("vectors", "pictures"):
        monkeypatch.setattr(f"sliceflow.estimators.{space}.fitted.SAMPLES_PER_PASS", 2)
    assert np.abs(sample(9) - many).max() <= tolerance


# Plans


def as_planned(plan):
    """A fitted plan as it was before the fit, which chooses some settings by trial."""
    if plan.method == "local":
        return dataclasses.replace(
            plan, n_local_neighbors=None, distance_description=None
        )
    if getattr(plan, "bandwidth", 0) and plan.smoothing_reason:
        return dataclasses.replace(plan, bandwidth=None)
    return plan


def test_a_fit_does_what_its_plan_says(kind, fitted):
    make, data = PARTS[kind]
    plan = make().plan(*data)
    flow = fitted(kind)
    assert plan == as_planned(flow.plan_)
    if plan.method != "local":  # nothing flows
        assert plan.n_moved_particles >= plan.n_particles
    assert plan.nbytes > 0
    for field in dataclasses.fields(plan):
        value = getattr(plan, field.name)
        assert value != "auto"
        assert not isinstance(value, transports.AutoTransport)
    lines = str(plan).splitlines()
    assert lines[0].split() == ["method", *plan.method.split()]
    assert plan._repr_html_().count("<tr>") == len(lines)
    assert [line.split()[0] for line in lines][1] == "data"
    elsewhere = dataclasses.replace(plan, device="cuda", n_ranks=2)
    assert plan.settings() == elsewhere.settings()


def test_what_is_prepared_is_fitted_as_planned(kind, fitted):
    make, data = PARTS[kind]
    flow = make()
    usual = fitted(kind)
    prepared = flow.prepare(*data)
    assert prepared.plan == flow.plan(prepared) == as_planned(usual.plan_)
    assert np.array_equal(flow.fit(prepared).particles_, usual.particles_)
    for other, y in ((make(), None), (flow, np.ones(3))):
        with pytest.raises(ValueError, match=r"was prepared.* with X alone"):
            other.fit(prepared, y)


@pytest.mark.parametrize(
    ("estimator", "rows"),
    [
        (vectors(), X),
        (pictures(), PICTURES),
        (SlicedDensity(n_steps=0, penalty=1, n_components=1), X),
        (TableFlow(), pd.DataFrame(X, columns=["a", "b", "c"])),
    ],
)
def test_only_a_fit_takes_what_was_prepared(estimator, rows):
    flow = clone(estimator)
    prepared = flow.prepare(rows)
    for method in ("partial_fit", "fit", "partial_fit", "forget", "score"):
        if method == "fit":
            flow.fit(prepared)
            continue
        with pytest.raises(DataError, match="what prepare returned; pass the rows"):
            getattr(flow, method)(prepared)


@pytest.mark.parametrize("kind", ["labels", "local", "gray"])
def test_rows_that_change_after_they_were_prepared_are_fitted_as_they_were(
    kind, fitted
):
    make, data = PARTS[kind]
    data = [np.array(part) for part in data]
    flow = make()
    prepared = flow.prepare(*data)
    for part in data:
        part[:] = part[0]
    assert np.array_equal(flow.fit(prepared).particles_, fitted(kind).particles_)


def test_prepared_rows_have_the_bits_of_the_users_in_any_layout():
    columns_first = np.asfortranarray(X)
    flow = vectors()
    direct = flow.fit(columns_first).particles_
    assert np.array_equal(flow.fit(flow.prepare(columns_first)).particles_, direct)


@pytest.mark.parametrize("kind", ["labels", "local", "gray"])
@pytest.mark.parametrize("changes", [dict(n_particles=31), dict(random_state=8)])
def test_what_was_prepared_with_other_parameters_is_refused(kind, changes):
    make, data = PARTS[kind]
    flow = make()
    prepared = flow.prepare(*data)
    before = flow.get_params(deep=False)
    flow.set_params(**changes)
    (name,) = changes
    with pytest.raises(ValueError, match=rf"other parameters \({name}\): prepare it"):
        flow.fit(prepared)
    assert not hasattr(flow, "history_")
    flow.set_params(**before | {"verbose": 1}).fit(prepared)


def test_parameters_that_were_changed_in_place_are_noticed():
    frame = pd.DataFrame({"a": np.arange(60.0), "b": np.arange(60) % 3})
    images = np.random.default_rng(0).integers(0, 256, (60, 4, 4)).astype(np.uint8)
    kinds = {}
    known = np.eye(4, dtype=bool)
    bounds = [[-1.0, -1.0], 60.0]
    table = TableFlow(kinds=kinds)
    pictures = ImageFlow(known=known, n_particles=60, steps_per_stage=1)
    density = SlicedDensity(bounds=bounds, n_steps=0, penalty=1, n_components=1)
    prepared_table = table.prepare(frame)
    prepared_pictures = pictures.prepare(images)
    prepared_density = density.prepare(frame)

    kinds["b"] = "category"
    known[0, 1] = True
    bounds[0][1] = -2.0

    for flow, prepared, name in [
        (table, prepared_table, "kinds"),
        (pictures, prepared_pictures, "known"),
        (density, prepared_density, "bounds"),
    ]:
        with pytest.raises(ValueError, match=rf"other parameters \({name}\)"):
            flow.fit(prepared)
    known[0, 1] = False  # as it was
    pictures.set_params(known=torch.from_numpy(known.copy())).fit(prepared_pictures)


def test_a_generator_that_has_drawn_since_is_the_same_parameter():
    rows = np.random.default_rng(0).normal(size=(60, 2))
    generator = np.random.default_rng(1)
    flow = SlicedWassersteinFlow(n_particles=60, n_steps=1, random_state=generator)
    prepared = flow.prepare(rows)
    generator.normal()
    flow.fit(prepared)


@pytest.mark.parametrize("state", [np.random.RandomState, np.random.default_rng])
@pytest.mark.parametrize("kind", ["labels", "gray labels"])
def test_planning_changes_nothing(kind, state):
    make, data = PARTS[kind]
    flow = make().set_params(random_state=state(7))
    other = make().set_params(random_state=state(7))
    plan = flow.plan(*data)
    assert not [
        name for name in vars(flow) if name.endswith("_") or name.startswith("_")
    ]
    assert flow.plan(*data) == plan
    assert np.array_equal(flow.fit(*data).particles_, other.fit(*data).particles_)
    before = dict(vars(flow))
    flow.plan(*(part[::2] for part in data))
    assert vars(flow) == before


@pytest.mark.parametrize("kind", [*CLASSES, "local"])
def test_too_little_memory_is_refused_by_plan_and_fit_before_any_work(
    kind, monkeypatch
):
    make, data = PARTS[kind]
    require = make().plan(*data).nbytes
    monkeypatch.setattr("sliceflow.devices.free_memory", lambda device: require)
    flow = make()
    assert flow.plan(*data).nbytes == require
    monkeypatch.setattr("sliceflow.devices.free_memory", lambda device: require - 1)
    for call in (flow.plan, flow.fit, flow.partial_fit):
        with pytest.raises(MemoryError, match=r"needs? about .* but cpu has .* free; "):
            call(*data)
    assert not hasattr(flow, "plan_")
    assert flow._pending_rows is None


@pytest.mark.parametrize(
    "kind", ["vectors", "labels", "per class", "gray", "gray labels", "color"]
)
def test_more_samples_than_memory_are_refused_at_once(kind, fitted, monkeypatch):
    monkeypatch.setattr("sliceflow.devices.free_memory", lambda device: 1 << 34)
    with pytest.raises(
        MemoryError, match=r"n=100000000000 samples need about .* but cpu has 16.0 GiB"
    ):
        fitted(kind).sample(10**11)


# Listeners


def test_listeners_of_a_refit_may_be_an_iterator(rng):
    """To check them once used them up."""
    heard = []
    flow = SlicedWassersteinFlow(n_particles=200, n_steps=3, device="cpu")
    flow.fit(rng.normal(size=(50, 2)), listeners=iter([heard.append]))
    n_events = len(heard)
    flow.refit(listeners=iter([heard.append]))
    assert len(heard) == 2 * n_events > 0


@pytest.mark.parametrize("kind", ["labels", "per class", "gray labels", "color"])
def test_listeners_hear_every_step_and_verbose_logs_them(kind, caplog):
    make, data = PARTS[kind]
    heard = []
    flow = make().set_params(verbose=1).fit(*data, listeners=heard.append)
    assert [event.steps_done for event in heard] == list(range(1, flow.n_iter_ + 1))
    assert heard[-1].steps_total == flow.n_iter_
    assert [event.stage_name for event in heard] == flow.history_["stage"]
    assert [event.step_index for event in heard] == flow.history_["step"]
    stages = {event.stage_index: event.stage_name for event in heard}
    assert list(stages) == list(range(len(stages)))
    logged = caplog.messages
    assert len(logged) == min(10, flow.n_iter_)
    last = f"step {flow.n_iter_}/{flow.n_iter_}, stage {heard[-1].stage_name}, sliced"
    assert last in logged[-1]
    assert {(r.name, r.levelname) for r in caplog.records} == {("sliceflow", "INFO")}
    make().fit(*data)
    assert caplog.messages == logged


def test_what_is_logged_goes_to_stderr_unless_there_is_a_handler(
    monkeypatch, capsys, tmp_path
):
    def fit_twice():
        for _ in range(2):
            flow = SlicedWassersteinFlow(n_particles=10, n_steps=1, verbose=1)
            flow.fit(np.zeros((20, 2)))

    path = tmp_path / "log"
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("mine: %(message)s"))
    message = "step 3/3, stage axis, sliced distance"
    with monkeypatch.context() as patch:
        # The handlers of pytest are those of a user, too.
        patch.setattr(logging.root, "handlers", [handler])
        patch.setattr(LOGGER, "handlers", [])
        fit_twice()
        handler.close()
        assert capsys.readouterr() == ("", "")
        assert path.read_text().count(f"mine: {message}") == 2  # one of each fit
        patch.setattr(logging.root, "handlers", [])
        fit_twice()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count(f"sliceflow: {message}") == 2


@pytest.mark.parametrize("kind", ["labels", "per class", "gray"])
def test_a_listener_ends_a_stage(kind):
    make, data = PARTS[kind]
    heard = []
    listeners = (heard.append, lambda event: event.stage_index == 0)
    flow = make().fit(*data, listeners=listeners)
    stages = flow.history_["stage"]
    assert [event.steps_done for event in heard] == list(range(1, flow.n_iter_ + 1))
    assert heard[-1].steps_total == flow.n_iter_ < heard[0].steps_total
    assert stages.count(stages[0]) == 1
    assert len(set(stages)) > 1
    assert np.isfinite(draws(flow)).all()


@pytest.mark.parametrize("kind", ["labels", "per class", "gray labels", "color"])
def test_a_fit_that_fails_or_is_interrupted_leaves_the_old_model(kind):
    make, data = PARTS[kind]
    flow = make().fit(*data)
    before = saved(flow, particles=True)
    attributes = dict(vars(flow))
    with pytest.raises(KeyboardInterrupt):
        flow.fit(data[0][..., :1], *data[1:], listeners=interrupt)
    with pytest.raises(ValueError, match=r"but 3 labels|but y has 3"):
        flow.fit(data[0], [0, 1, 2])
    assert dict(vars(flow)) == attributes
    assert saved(flow, particles=True) == before


def test_a_refit_without_labels_forgets_the_classes():
    for make, data in ((vectors, (X, LABELS)), (pictures, (PICTURES, EVEN_AND_ODD))):
        flow = make().fit(*data)
        assert flow.classes_.tolist() == sorted(set(data[1].tolist()))
        flow.fit(data[0])
        assert flow.particle_conditions_ is None
        assert not hasattr(flow, "classes_")
        assert saved(flow) == saved(make().fit(data[0]))


@pytest.mark.parametrize("estimator", [SlicedWassersteinFlow, ImageFlow])
def test_nothing_can_be_drawn_or_saved_before_a_fit(estimator, tmp_path):
    flow = estimator()
    for call in (
        flow.sample,
        lambda: flow.score(PICTURES),
        lambda: flow.save(tmp_path / "model"),
    ):
        with pytest.raises(NotFittedError):
            call()
    assert not hasattr(flow, "particles_")


# Samples and their y


@pytest.mark.parametrize("kind", SAMPLED)
@given(st.integers(1, 9), st.integers(0, 2**32))
@settings(max_examples=2)
def test_samples_come_with_their_y_and_are_drawn_again_for_it(kind, fitted, n, seed):
    flow = fitted(kind)
    _, data = PARTS[kind]
    x, y = flow.sample(n, random_state=seed, return_y=True)
    assert x.shape == (n, *data[0].shape[1:])
    assert x.dtype == data[0].dtype
    assert np.isfinite(x).all()
    assert np.array_equal(x, flow.sample(n, random_state=seed))
    assert (y is None) == (kind not in WITH_Y)
    if y is not None:
        assert len(y) == n
        again, y_again = flow.sample(n, y=y, random_state=seed, return_y=True)
        assert np.array_equal(again, x)
        assert np.array_equal(y_again, y)
    if kind in CLASSES:
        assert (
            np.ptp(np.bincount(flow.sample(60, return_y=True)[1])) == 0
        )  # in the data's proportions


@pytest.mark.parametrize("condition_mode", ["joint", "local"])
def test_samples_come_with_the_very_y_that_was_asked_for(condition_mode, rng):
    columns = 3.3 * rng.normal(size=(60, 2))  # to standardize them and back rounds
    mixed = np.array([*zip("ab" * 30, columns[:, 0], strict=True)], dtype=object)
    flow = SlicedWassersteinFlow(
        n_particles=60, n_steps=1, condition_mode=condition_mode
    )
    for y in (columns, mixed) if condition_mode == "local" else (columns,):
        flow.fit(X[:60], y)
        asked = y[:20]
        _, y_of_samples = flow.sample(y=asked, return_y=True)
        assert y_of_samples.tolist() == asked.tolist()
        _, y_of_samples = flow.sample(3, y=asked[0], return_y=True)
        assert y_of_samples.tolist() == [asked[0].tolist()] * 3
        _, y_of_rows = flow.sample(20, return_y=True)
        assert all(row in y.tolist() for row in y_of_rows.tolist())


@pytest.mark.parametrize("kind", WITH_Y)
def test_an_empty_y_gives_no_samples(kind, fitted):
    flow = fitted(kind)
    _, y_of_sample = flow.sample(return_y=True)
    for y in ([], (), y_of_sample[:0]):
        x, y_of_samples = flow.sample(y=y, return_y=True)
        assert x.shape == (0, *flow.sample(1).shape[1:])
        assert x.dtype == flow.sample(1).dtype
        assert y_of_samples.shape == y_of_sample[:0].shape
        with pytest.raises(DataError, match="y has 0 conditions for 3 samples"):
            flow.sample(3, y=y)
        if isinstance(flow, ImageFlow):
            snapshots = flow.evolution(y=y, n_snapshots=3)
            of_one = flow.evolution(1, n_snapshots=3)
            assert snapshots.shape == (len(of_one), 0, *of_one.shape[2:])


def test_labels_that_are_tuples_of_different_lengths_can_be_asked_for():
    labels = np.empty(60, dtype=object)
    labels[:] = [("a",)] * 30 + [("b", "c")] * 30
    x = X[:60].copy()
    x[30:, 0] += 100
    flow = vectors(amplifier=math.inf).fit(x, labels)
    for y in ([("a",), ("b", "c")], (("a",), ("b", "c"))):
        samples, y_of_samples = flow.sample(y=y, return_y=True)
        assert y_of_samples.tolist() == list(y)
        assert samples[0, 0] < 50 < samples[1, 0]
    assert (flow.sample(9, y=("b", "c"))[:, 0] > 50).all()


def test_a_tuple_that_holds_a_list_is_no_label(fitted):
    with pytest.raises(DataError, match=r"y has shape \(1, 1\) but the model was"):
        fitted("labels").sample(y=([0],))


def test_one_condition_is_for_all_samples_and_several_are_for_one_each(fitted):
    for kind, one, several in (
        ("labels", 1, [2, 0, 1]),
        ("tuples", ("a", 1, None), [("a", 2, None), ("a", 0, None)]),
        ("columns", [0.5, 1.0], [[0.5, 1.0], [0.0, 0.0], [1.0, 1.0]]),
        ("local", 0.5, [[0.5], [0.0]]),
        ("mixed", ("odd", 0.5), [("even", 0.1), ("odd", 0.5)]),
        ("per class", 1, [2, 0, 1]),
        ("gray labels", 1, [1, 0, 1]),
        ("classes apart", np.int64(1), np.array([1, 0])),
        ("labels", np.array(1), torch.tensor([2, 0])),
        ("gray labels", torch.tensor(1), [0, 1]),
    ):
        flow = fitted(kind)
        k = len(several)
        assert len(flow.sample(y=one)) == 1
        x, y = flow.sample(4, y=one, random_state=0, return_y=True)
        assert len(x) == len(y) == 4
        assert all(np.all(np.asarray(row == y[0])) for row in y)
        each = flow.sample(y=several, random_state=0)
        assert np.array_equal(each, flow.sample(k, y=several, random_state=0))
        with pytest.raises(
            ValueError, match=f"y has {k} conditions for {k + 2} samples; pass one"
        ):
            flow.sample(k + 2, y=several)


@pytest.mark.parametrize("n", [0, -3, 2.5, True, None])
def test_numbers_of_samples_are_checked(n, fitted):
    for kind in ("labels", "gray"):
        with pytest.raises(ValueError, match=rf"^n={n} must be an int of at least 1$"):
            fitted(kind).sample(n)
    with pytest.raises(ValueError, match=rf"^n={n} must be an int of at least 1$"):
        fitted("masked").inpaint(PICTURES[:2], n=n)
    assert len(fitted("gray").sample(np.int64(3))) == 3


def test_conditions_that_do_not_exist_are_refused(fitted):
    for kind in ("labels", "gray labels"):
        flow = fitted(kind)
        known = ", ".join(map(str, flow.classes_.tolist()))
        with pytest.raises(
            ValueError, match=f"unknown labels 'x', 7; the model knows {known}$"
        ):
            flow.sample(y=["x", 7, 1])
        with pytest.raises(
            DataError, match=r"unknown label 0.5; .*; nearest to 0.5 are 0 and 1$"
        ):
            flow.sample(y=0.5)
        last = flow.classes_[-1]
        with pytest.raises(DataError, match=f"; nearest to 7.5 is {last}$"):
            flow.sample(y=[7.5, 0.5])
    for kind in ("vectors", "gray", "clusters"):
        with pytest.raises(
            ValueError, match="y was given but the model was fitted without y; omit y"
        ):
            fitted(kind).sample(2, y=1)
    with pytest.raises(
        ValueError, match=r"y has shape \(2, 3\) but the model was fitted with 2 cont"
    ):
        fitted("columns").sample(y=np.ones((2, 3)))


CODES = np.arange(60) % 3
TEXT_TYPES = {
    "ints": CODES * 7 - 7,
    "floats": CODES / 1.0,
    "texts": np.array(["cat", "dog", "emu"])[CODES],
    "bytes": np.array([b"c", b"d", b"e"])[CODES],
    "tuples": [("a", int(c)) for c in CODES],
    "of any type": [("a", 1, True)[c] for c in CODES],
    "series": pd.Series(["x", "y", "z"]).iloc[CODES].reset_index(drop=True),
    "categories": pd.Series(pd.Categorical.from_codes(CODES, ["x", "y", "z"])),
    "tensor": torch.from_numpy(CODES),
}


@pytest.mark.parametrize("written", TEXT_TYPES)
@pytest.mark.parametrize("space", ["vectors", "pictures"])
def test_labels_come_back_as_they_were_written(space, written, tmp_path):
    images = np.resize(PICTURES, (60, 5, 4))
    flow = (
        vectors(0, n_steps=1).fit(X, TEXT_TYPES[written])
        if space == "vectors"
        else pictures()
    )
    if space == "pictures":
        flow.set_params(schedule="1[1]").fit(images, TEXT_TYPES[written])
    flow.save(tmp_path / "model")
    y = TEXT_TYPES[written]
    labels = y.tolist() if hasattr(y, "tolist") else y
    for model in (flow, sliceflow.load(tmp_path / "model", device="cpu")):
        found = model.sample(6, random_state=0, return_y=True)[1]
        assert isinstance(found, np.ndarray)
        key = [(type(label), label) for label in labels]
        assert all(key.count((type(label), label)) == 20 for label in found.tolist())
        for label in set(found.tolist()):
            assert len(model.sample(2, y=label)) == 2


# Score


@pytest.mark.parametrize("kind", SAMPLED)
def test_the_score_is_a_fixed_number_and_changes_nothing(kind, fitted):
    flow = fitted(kind)
    _, data = PARTS[kind]
    before = dict(vars(flow))
    scores = {flow.score(*data) for _ in range(2)}
    assert len(scores) == 1
    assert -math.inf < scores.pop() < 0
    assert vars(flow) == before
    assert math.isfinite(flow.score(*(part[:1] for part in data)))


def test_a_loaded_model_scores_as_the_saved_one(fitted, tmp_path):
    """It drew other samples each time: files have no `random_state`."""
    flow = fitted("labels")
    _, data = PARTS["labels"]
    flow.save(tmp_path / "model")
    loaded = sliceflow.load(tmp_path / "model", device="cpu")
    assert loaded.score(*data) == loaded.score(*data) == flow.score(*data)


def test_the_score_is_minus_the_sliced_distance_in_the_units_of_the_flow(fitted):
    seed = Seed(3).child("score")
    rng = np.random.default_rng(1)
    rows = rng.normal(1, 2, (300, 3))

    def standardized(x):
        return (x - X.mean(0)) / X.std(0)

    drawn = fitted("vectors").sample(2100, random_state=seed)
    distance = metrics.sliced_wasserstein(standardized(drawn), standardized(rows))
    assert fitted("vectors").score(rows) == pytest.approx(-distance, rel=0.05)

    def encoded(pixels):  # 17 values, in [−1, 1]
        return (pixels.reshape(-1, 20) + 0.5) / 8.5 - 1

    drawn = fitted("gray").sample(2000, random_state=seed)
    distance = metrics.sliced_wasserstein(encoded(drawn), encoded(PICTURES))
    assert fitted("gray").score(PICTURES) == pytest.approx(-distance, rel=0.1)

    plain = vectors(0).fit(X)
    named = vectors(0).fit(pd.DataFrame(X, columns=list("abc")))
    assert named.score(pd.DataFrame(rows, columns=list("abc"))) == plain.score(rows)
    assert named.set_params(random_state=4).score(named.sample(9)) < 0


def test_wrong_labels_score_lower():
    x = np.arange(60.0)[:, None] % 2 * 9 + X
    y = np.arange(60) % 2
    for flow in (vectors(n_steps=20), vectors(n_steps=20, amplifier=math.inf)):
        flow.fit(x, y)
        assert flow.score(x, 1 - y) < 3 * flow.score(x, y)
        is_first = y == 0  # shares of classes do not matter with labels
        assert flow.score(x[is_first], y[is_first]) > 3 * flow.score(x[is_first])
    joint = vectors(condition_mode="joint", n_steps=20).fit(x, x[:, :1])
    assert joint.score(x, np.roll(x[:, :1], 1, axis=0)) < 1.5 * joint.score(x, x[:, :1])
    light = (PICTURES // 2 + 8 * EVEN_AND_ODD[:, None, None]).astype(np.uint8)
    flow = pictures(steps_per_stage=5).fit(light, EVEN_AND_ODD)
    assert flow.score(light, 1 - EVEN_AND_ODD) < 2 * flow.score(light, EVEN_AND_ODD)


def test_searches_choose_by_the_score():
    x = mixture(200, 3)
    y = np.arange(200) % 2
    grid = GridSearchCV(vectors(0), {"n_steps": [1, 20]}, cv=2, error_score="raise")
    assert grid.fit(pd.DataFrame(x), y).best_params_ == {"n_steps": 20}
    scores = cross_val_score(
        pictures(), PICTURES, EVEN_AND_ODD, cv=2, error_score="raise"
    )
    assert np.all(scores < 0)


def test_searches_reach_into_the_options():
    x = mixture(60, 3)
    flow = vectors(0, n_steps=1, options=None)
    defaults = flow.get_params()
    assert defaults["options__smoothing"] == "auto"
    assert "options__smoothing" not in flow.get_params(deep=False)
    grid = GridSearchCV(flow, {"options__smoothing": [0, 0.5]}, cv=2)
    found = grid.fit(x).best_estimator_.options
    assert found.smoothing == grid.best_params_["options__smoothing"]
    assert flow.options is None
    flow.set_params(options__n_knots=8).set_params(options__taper=1.0, n_steps=2)
    assert flow.options == VectorOptions(n_knots=8, taper=1.0)
    assert (flow.n_steps, clone(flow).options) == (2, flow.options)
    with pytest.raises(ValueError, match="Invalid parameter 'options__no'"):
        flow.set_params(options__no=1)


def test_what_cannot_be_scored_is_refused(fitted):
    flow = fitted("labels")
    with pytest.raises(
        ValueError, match="X has 60 rows but y has 3; pass one y for every row"
    ):
        flow.score(X, [0, 1, 2])
    with pytest.raises(
        ValueError, match="X has 2 features, but SlicedWassersteinFlow is expecting 3"
    ):
        flow.score(X[:, :2])
    with pytest.raises(ValueError, match="completes pictures"):
        fitted("masked").score(PICTURES)
    for kind, x in (("vectors", X), ("gray", PICTURES), ("clusters", PICTURES)):
        with pytest.raises(
            DataError, match="y was given but the model was fitted without y; omit y"
        ):
            fitted(kind).score(x, np.zeros(len(x), dtype=int))


# Everything with everything


FRAMES = ["orthogonal", "max-sliced", "axis", frames.Random(n_directions=5)]
TRANSPORTS = ["auto", "sorted", "histogram", "paper"]
CONDITIONS = {
    "none": ({}, None),
    "ignored": (dict(amplifier=0), LABELS),
    "shared maps": ({}, LABELS),
    "per class": (dict(amplifier=math.inf), LABELS),
    "columns": (dict(condition_mode="joint"), X[:, :2]),
    "local": (dict(condition_mode="local"), X[:, :2]),
}
BASES = ["pixels", "cosines", "random"]
PICTURED = {
    "none": ({}, False),
    "ignored": (dict(amplifier=0), True),
    "shared maps": (dict(amplifier=10.0), True),
    "per class": (dict(amplifier=math.inf), True),
    "clusters": (dict(n_clusters=2), False),
    "known": (dict(known="top"), False),
}


def goes_through(flow, data, folder):
    flow.fit(*data)
    flow.save(folder / "model")
    loaded = sliceflow.load(folder / "model", device="cpu")
    assert np.isfinite(flow.particles_).all()
    assert np.isfinite(draws(flow)).all()
    assert np.array_equal(draws(loaded), draws(flow))


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize(
    ("frame", "transport"), [*itertools.product(FRAMES, TRANSPORTS)], ids=str
)
def test_every_frame_transport_and_condition_of_vectors(
    frame, transport, condition, tmp_path
):
    changes, y = CONDITIONS[condition]
    flow = vectors(0, n_steps=2, frame=frame, transport=transport, **changes)
    sees_y = frame not in ("max-sliced", "axis")
    if condition in ("shared maps", "columns") and not sees_y:
        with pytest.raises(
            ValueError, match=f"frame='{frame}' does not work with conditions"
        ):
            flow.fit(X, y)
        return
    if condition == "local" and (frame, transport) != ("orthogonal", "auto"):
        return  # they have neither
    goes_through(flow, (X,) if y is None else (X, y), tmp_path)


@pytest.mark.parametrize("condition", PICTURED)
@pytest.mark.parametrize(
    ("basis", "transport"), [*itertools.product(BASES, TRANSPORTS)]
)
def test_every_basis_transport_and_condition_of_pictures(
    basis, transport, condition, tmp_path
):
    changes, labeled = PICTURED[condition]
    options = ImageOptions(n_knots=16, n_directions=20)
    flow = pictures(
        patch_basis=basis,
        transport=transport,
        steps_per_stage=1,
        options=options,
        **changes,
    )
    data = (PICTURES, EVEN_AND_ODD) if labeled else (PICTURES,)
    if transport != "histogram" and condition in ("per class", "clusters"):
        with pytest.raises(
            ValueError, match="needs histograms, but this transport sorts 60 particles"
        ):
            flow.fit(*data)
        return
    goes_through(flow, data, tmp_path)
