"""Plans: what a fit does, with every "auto" resolved, before it is done and after."""

import dataclasses
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sliceflow
from sliceflow import (
    ImageFlow,
    PictureOptions,
    SlicedWassersteinFlow,
    VectorOptions,
    frames,
    transports,
)
from sliceflow.errors import NotEnoughMemoryError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 3))
Y = np.arange(90) % 3
PICTURES = RNG.integers(0, 17, (60, 5, 4)).astype(np.uint8)
LABELS = np.arange(60) % 3


def vectors(**parameters):
    few = dict(n_particles=100, n_steps=2, random_state=3, device="cpu")
    return SlicedWassersteinFlow(**{**few, **parameters})


def pictures(**parameters):
    small = dict(schedule="1[1] 5[3]", n_particles=60, quality=2, n_pixel_values=17)
    return ImageFlow(**{**small, "random_state": 3, "device": "cpu", **parameters})


FITS = {
    "SWF": (vectors, {}, (X,)),
    "SWF, float32": (vectors, dict(n_particles=None), (X.astype(np.float32),)),
    "CSWF ξ=10": (vectors, {}, (X, Y)),
    "CSWF ξ=2.5": (
        vectors,
        dict(amplifier=2.5, frame=frames.Random(7), condition="joint"),
        (X, X[:, :2]),
    ),
    "per class": (vectors, dict(amplifier=math.inf), (X, Y)),
    "SWF, early": (vectors, dict(early_stopping=True, amplifier=0), (X, Y)),
    "SWF, paper": (vectors, dict(preset="paper", frame=frames.Random(9)), (X,)),
    "SWF, pictures": (pictures, {}, (PICTURES,)),
    "CSWF ξ=10, pictures": (pictures, dict(mirror=True), (PICTURES, LABELS)),
    "CSWF ξ=3, pictures": (pictures, dict(amplifier=3), (PICTURES, LABELS)),
    "per class, pictures": (
        pictures,
        dict(amplifier=math.inf, transport="histogram"),
        (PICTURES, LABELS),
    ),
    "clusters": (pictures, dict(n_clusters=3, transport="histogram"), (PICTURES,)),
    "completion": (pictures, dict(observed="top"), (PICTURES,)),
    "SWF, no model": (pictures, dict(options=PictureOptions(n_knots=0)), (PICTURES,)),
    "SWF, paper, pictures": (
        pictures,
        dict(preset="paper", options=PictureOptions(n_directions=20)),
        (PICTURES,),
    ),
}


@pytest.fixture(params=FITS)
def fit(request):
    make, parameters, data = FITS[request.param]
    return request.param, lambda **more: make(**{**parameters, **more}), data


def test_a_fit_does_what_its_plan_says(fit):
    name, make, data = fit
    plan, fitted = make().plan(*data), make().fit(*data)
    assert fitted.plan_ == plan
    assert hash(fitted.plan_) == hash(plan)
    assert plan.method == name.split(",")[0]
    assert plan.n_particles == len(fitted.particles_)
    vectors_apart = plan.method == "per class" and isinstance(fitted, SlicedWassersteinFlow)
    stages = plan.stages() if isinstance(fitted, SlicedWassersteinFlow) else plan.stages
    n_steps = sum(stage.n_steps for stage in stages)
    assert fitted.n_iter_ == (plan.n_conditions if vectors_apart else 1) * n_steps
    assert plan.n_moved >= plan.n_particles
    assert plan.nbytes > fitted.particles_.nbytes


def test_nothing_is_left_auto(fit):
    _, make, data = fit
    plan = make().plan(*data)
    for field in dataclasses.fields(plan):
        value = getattr(plan, field.name)
        assert not (isinstance(value, str) and value == "auto"), field.name
        assert not isinstance(value, transports.Auto), field.name
    assert "auto" not in str(plan).lower()


def test_it_is_frozen_and_can_be_sent_to_other_processes(fit):
    _, make, data = fit
    plan = make().plan(*data)
    for field in dataclasses.fields(plan):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(plan, field.name, None)
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_it_prints_one_aligned_line_for_every_fact(fit):
    name, make, data = fit
    plan = make().plan(*data)
    lines = str(plan).splitlines()
    start = lines[0].index(plan.method)
    assert lines[0].split() == ["method", *name.split(",")[0].split()]
    for line in lines:
        assert line[:start].strip(), line
        assert line[start - 2 : start] == "  ", line
        assert line[start] != " ", line
        assert line == line.rstrip()
    facts = [line[:start].strip() for line in lines]
    assert len(set(facts)) == len(facts)
    assert facts[1] == "data"
    assert facts[-2:] == ["device", "memory"]
    assert f"{plan.n_particles}" in lines[facts.index("particles")]
    assert ("condition" in facts) == (plan.condition != "none")


def test_settings_are_what_the_result_depends_on(fit):
    _, make, data = fit
    plan = make().plan(*data)
    names = {field.name for field in dataclasses.fields(plan)}
    by_rows = {"smoothing"} if getattr(plan, "smoothing_from", "") else set()
    assert set(plan.settings()) == names - {"nbytes", "device", "n_ranks"} - by_rows
    assert all(value == getattr(plan, name) for name, value in plan.settings().items())
    elsewhere = dataclasses.replace(plan, nbytes=1, device="cuda", n_ranks=4)
    assert elsewhere.settings() == plan.settings()


def test_planning_changes_nothing(fit):
    _, make, data = fit
    for state in (3, np.random.RandomState(3), np.random.default_rng(3)):
        flow, before = make(random_state=state), pickle.dumps(make(random_state=state).get_params())
        plan = flow.plan(*data)
        assert not [name for name in vars(flow) if name.endswith("_") or name.startswith("_")]
        assert pickle.dumps(flow.get_params()) == before
        assert flow.plan(*data) == plan


@pytest.mark.parametrize("kind", [np.random.RandomState, np.random.default_rng])
@pytest.mark.parametrize(("make", "data"), [(vectors, (X, Y)), (pictures, (PICTURES, LABELS))])
def test_a_fit_after_planning_is_the_same_fit(make, data, kind):
    flow = make(random_state=kind(7))
    flow.plan(*data)
    assert np.array_equal(flow.fit(*data).particles_, make(random_state=kind(7)).fit(*data).particles_)


def test_a_fitted_model_stays_as_it_was_when_another_fit_is_planned(fit):
    _, make, data = fit
    flow = make().fit(*data)
    before = dict(vars(flow))
    flow.plan(*(part[::2] for part in data))
    assert vars(flow) == before


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 4000), st.booleans())
def test_a_plan_has_what_was_asked_for(n, d, m, single):
    x = np.random.default_rng(n).normal(size=(n, d)).astype(np.float32 if single else np.float64)
    plan = vectors(n_particles=m).plan(x)
    assert (plan.n_rows, plan.n_columns, plan.n_particles) == (n, d, m)
    assert plan.n_moved == max(m, 2000)
    assert (plan.smoothing > 0) == (n >= 10)
    assert plan.dtype == str(x.dtype)
    more = vectors(n_particles=m + 2000).plan(x)
    assert more.nbytes >= plan.nbytes


# Checkpoints: of the same plan, however it is spelled


class Killed(Exception):
    pass


def kill(event):
    if event.steps_done == 2:
        raise Killed


def stopped(make, data, folder):
    with pytest.raises(Killed):
        make().fit(*data, checkpoint_dir=folder, checkpoint_every=0, listeners=kill)


OTHERS = {
    "frame was Orthogonal() and is Random(n_directions=4, fixed=False)": dict(frame=frames.Random(4)),
    "transport was Histogram(n_bins=256, most=131072) and is Sorted(most=None)": dict(
        transport="sorted"
    ),
    "n_particles was 100 and is 101": dict(n_particles=101),
    "taper was 0.5 and is 0.25": dict(options=VectorOptions(taper=0.25)),
    "standardize was True and is False": dict(standardize=False),
    "amplifier was 10.0 and is 0.0": dict(amplifier=0),
    "early_stopping was False and is True": dict(early_stopping=True),
    "n_knots was 512 and is 600": dict(options=VectorOptions(n_knots=600)),
}


@pytest.mark.parametrize("message", OTHERS)
def test_vectors_of_another_plan_are_refused_by_the_name_of_the_setting(message, tmp_path):
    stopped(lambda: vectors(transport="histogram"), (X, Y), tmp_path)
    with pytest.raises(ValueError, match="is the checkpoint of another fit: ") as caught:
        vectors(**{"transport": "histogram", **OTHERS[message]}).fit(X, Y, checkpoint_dir=tmp_path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("message", "parameters"),
    [
        ("clip was True and is False", dict(options=PictureOptions(clip=False))),
        ("patch_basis was 'cosines' and is 'pixels'", dict(patch_basis="pixels")),
        ("amplifier was 10.0 and is 3.0", dict(amplifier=3)),
        ("mirror was False and is True", dict(mirror=True)),
        ("stages was (", dict(quality=3)),
    ],
)
def test_pictures_of_another_plan_are_refused_by_the_name_of_the_setting(message, parameters, tmp_path):
    stopped(pictures, (PICTURES, LABELS), tmp_path)
    with pytest.raises(ValueError, match="is the checkpoint of another fit: ") as caught:
        pictures(**parameters).fit(PICTURES, LABELS, checkpoint_dir=tmp_path)
    assert message in str(caught.value)


SPELLINGS = {
    "names and objects": (
        vectors,
        (X, Y),
        {},
        dict(
            frame=frames.Orthogonal(),
            amplifier=np.float64(10),
            n_steps=np.int64(2),
            options=VectorOptions(),
            verbose=0,
        ),
    ),
    "the transport that auto is": (vectors, (X,), {}, lambda plan: dict(transport=plan.transport)),
    "the particles that None is": (
        vectors,
        (X,),
        dict(n_particles=None),
        lambda plan: dict(n_particles=plan.n_particles),
    ),
    "the preset": (
        vectors,
        (X,),
        dict(preset="paper", frame=frames.Random(5)),
        dict(
            preset=None,
            transport="interpolated",
            standardize=False,
            options=VectorOptions(taper=0, n_axis_steps=0, smoothing=0),
        ),
    ),
    "what auto is for pictures": (
        pictures,
        (PICTURES, LABELS),
        {},
        lambda plan: dict(
            transport=plan.transport,
            patch_basis=plan.patch_basis,
            amplifier=plan.amplifier,
            options=PictureOptions(n_knots=plan.n_knots, precision="float32"),
        ),
    ),
    "what draft is": (pictures, (PICTURES,), dict(quality="draft"), dict(quality=18)),
    "a mask by name": (
        pictures,
        (PICTURES,),
        dict(observed="top"),
        dict(observed=np.arange(20).reshape(5, 4) < 8),
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_the_same_plan_in_other_words_goes_on(name, tmp_path):
    make, data, parameters, others = SPELLINGS[name]
    plan = make(**parameters).plan(*data)
    others = {**parameters, **(others(plan) if callable(others) else others)}
    assert make(**others).plan(*data) == plan
    stopped(lambda: make(**parameters), data, tmp_path)
    heard = []
    again = make(**others).fit(*data, checkpoint_dir=tmp_path, listeners=heard.append)
    assert heard[0].steps_done == 2  # the step that was lost
    assert np.array_equal(again.particles_, make(**parameters).fit(*data).particles_)


# Memory


@pytest.mark.parametrize(
    ("make", "data"),
    [
        (vectors, (X,)),
        (vectors, (X, Y)),
        (lambda: vectors(amplifier=math.inf), (X, Y)),
        (pictures, (PICTURES,)),
        (pictures, (PICTURES, LABELS)),
    ],
)
def test_too_much_memory_is_refused_by_both_in_the_same_words(make, data, monkeypatch):
    monkeypatch.setattr("sliceflow.devices.free_memory", lambda device: 5 << 30)
    flow = make().set_params(n_particles=10**12)
    texts = []
    for call in (flow.plan, flow.fit):
        with pytest.raises(
            NotEnoughMemoryError, match=r" but cpu has 5\.0 GiB free; lower n_part"
        ) as e:
            call(*data)
        texts.append(str(e.value))
    assert texts[0] == texts[1]
    assert not hasattr(flow, "plan_")


@pytest.mark.parametrize(("make", "data"), [(vectors, (X, Y)), (pictures, (PICTURES, LABELS))])
def test_memory_is_needed_as_the_plan_says(make, data, monkeypatch):
    need = make().plan(*data).nbytes
    monkeypatch.setattr("sliceflow.devices.free_memory", lambda device: need)
    assert make().plan(*data).nbytes == need
    monkeypatch.setattr("sliceflow.devices.free_memory", lambda device: need - 1)
    with pytest.raises(NotEnoughMemoryError):
        make().plan(*data)


# Files and rows that come one after the other


@pytest.mark.parametrize(("make", "data"), [(vectors, (X, Y)), (pictures, (PICTURES, LABELS))])
def test_a_loaded_model_says_why_it_has_no_plan(make, data, tmp_path):
    make().fit(*data).save(tmp_path / "model")
    again = sliceflow.load(tmp_path / "model", device="cpu")
    assert not hasattr(again, "plan_")
    with pytest.raises(AttributeError, match=r"^plan_ is of a fit; .*model does not hold it$"):
        _ = again.plan_
    assert again.set_params(random_state=3).fit(*data).plan_ == make().plan(*data)


@pytest.mark.parametrize(
    ("make", "data", "method"),
    [
        (vectors, (X,), "SWF"),
        (vectors, (X, Y), "CSWF ξ=10"),
        (lambda: vectors(amplifier=math.inf), (X, Y), "per class"),
        (pictures, (PICTURES,), "SWF"),
        (pictures, (PICTURES, LABELS), "CSWF ξ=10"),
        (lambda: pictures(amplifier=math.inf), (PICTURES, LABELS), "per class"),
    ],
)
def test_rows_that_come_one_after_the_other_have_a_plan(make, data, method):
    flow = make().partial_fit(*(part[:40] for part in data), refresh=False)
    assert not hasattr(flow, "plan_")
    flow.partial_fit(*(part[40:] for part in data))
    plan = flow.plan_
    assert plan.method == method
    assert isinstance(plan.transport, transports.Histogram)
    assert plan.n_particles == len(flow.particles_)
    assert (plan.n_rows if hasattr(plan, "n_rows") else plan.n_pictures) == len(data[0])
    flow.forget(*(part[:10] for part in data))
    assert (flow.plan_.n_rows if hasattr(plan, "n_rows") else flow.plan_.n_pictures) == len(
        data[0]
    ) - 10
    assert str(flow.plan_).splitlines()[0].endswith(method)


def test_wrong_data_are_refused_as_a_fit_refuses_them():
    for call in (vectors().plan, vectors().fit):
        with pytest.raises(ValueError, match="X has 90 rows but y has 3"):
            call(X, [0, 1, 2])
    for call in (pictures().plan, pictures().fit):
        with pytest.raises(ValueError, match="there are 60 pictures but 3 labels"):
            call(PICTURES, [0, 1, 2])


def test_tensors_have_the_plan_of_arrays():
    assert vectors().plan(torch.from_numpy(X), Y) == vectors().plan(X, Y)
    assert pictures().plan(torch.from_numpy(PICTURES)).n_pictures == 60
