"""Parameters, options and presets of flows: wrong values are named before a fit."""

import dataclasses
import inspect
import math
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone

import sliceflow
from models import EVEN_AND_ODD, LABELS, PICTURES, X, pictures, vectors
from sliceflow import (
    ImageFlow,
    ImageOptions,
    SlicedWassersteinFlow,
    VectorOptions,
    devices,
    frames,
    transports,
)
from sliceflow.errors import ParameterError
from sliceflow.estimators.pictures.paper import paper_parameters
from sliceflow.estimators.vectors.paper import PAPER
from sliceflow.estimators.vectors.parameters import VectorParameters

DATA = {SlicedWassersteinFlow: X, ImageFlow: PICTURES}
OPTIONS = {SlicedWassersteinFlow: VectorOptions, ImageFlow: ImageOptions}
NAN = math.nan
INF = math.inf
COUNT = (0, 2.5, "many", True)
STEPS = (-1, 1.0, None)
WRONG = {  # names, and values that are refused
    SlicedWassersteinFlow: dict(
        n_particles=COUNT,
        n_steps=STEPS,
        frame=("circle", 3, None, frames.Random, frames.MaxSliced),
        transport=("fast", None, transports.HistogramTransport),
        amplifier=(-1, NAN, "10", None, 10**400),
        entropy=(-0.1, INF, "a", 10**400),
        standardize=(1, None),
        condition_mode=("some", None, np.ones(2)),
        save_rows=(1, None),
        preset=("Paper", 1, "", np.ones(2)),
        options=({}, "fast", ImageOptions(), VectorOptions),
        verbose=(-1, "loud"),
    ),
    ImageFlow: dict(
        schedule=(None, 3),
        n_particles=COUNT,
        quality=("good", 3, None),
        steps_per_stage=(0, True, 1.5, "standard"),
        amplifier=(-1, NAN, -INF, "none"),
        n_pixel_values=(1, 17.0, 2**20 + 1, 2**40),
        mirror=(1, None),
        transport=("greedy", None, transports.AutoTransport),
        patch_basis=("waves", None),
        n_clusters=(0, "many", 2.0, True, None),
        save_rows=(1, None),
        preset=("fast", True),
        options=({}, 3, VectorOptions(), ImageOptions),
        verbose=(-1, None),
    ),
    VectorOptions: dict(
        taper=(-0.1, 1.1, NAN, "half", True),
        n_axis_steps=STEPS,
        n_knots=(1, 16.0, "auto"),
        smoothing=(-0.1, INF, "some", None),
        n_neighbors=(1, 20.0),
        shrinkage=(-1, INF, "auto"),
    ),
    ImageOptions: dict(
        start=(0, 1.5, True, "data"),
        locality=(-0.1, INF, "much"),
        start_noise=(-0.1, NAN, None),
        clip=(1, None),
        dequantize_every=("never", 1),
        n_directions=(0, 10.0, True),
        taper=(-1, 2, "x"),
        n_knots=(-1, 16.0, "all", True),
        precision=("double", 16),
        shrinkage=(-1, NAN, "much"),
    ),
}
CASES = [
    (kind, name, value)
    for kind, table in WRONG.items()
    for name, values in table.items()
    for value in values
]


@pytest.mark.parametrize(("kind", "name", "value"), CASES, ids=repr)
def test_a_wrong_value_is_named_before_anything_is_fitted(kind, name, value):
    if kind in OPTIONS:
        flow = kind(**{name: value})
    else:
        estimator = next(e for e, options in OPTIONS.items() if options is kind)
        flow = estimator(options=kind(**{name: value}))
    for call in (flow.fit, flow.plan, flow.partial_fit):
        with pytest.raises(ParameterError, match=r" must be ") as caught:
            call(DATA[type(flow)])
        assert (caught.value.parameter, repr(caught.value.value)) == (name, repr(value))
    assert not hasattr(flow, "history_")
    again = pickle.loads(pickle.dumps(caught.value))  # as joblib sends it
    assert str(again) == str(caught.value)


def test_every_parameter_and_option_has_wrong_values_above():
    elsewhere = {
        "device",
        "random_state",
        "known",
    }  # below, and in the tests of layouts
    for kind, table in WRONG.items():
        assert set(inspect.signature(kind).parameters) - elsewhere == set(table)


@pytest.mark.parametrize(
    ("make", "x", "name", "value"),
    [
        (vectors, X, "transport", transports.HistogramTransport),
        (vectors, X, "frame", frames.Random),
        (vectors, X, "options", VectorOptions),
        (pictures, PICTURES, "transport", transports.SortedTransport),
        (pictures, PICTURES, "options", ImageOptions),
    ],
)
def test_a_class_is_refused_and_the_error_says_how_to_make_an_object(
    make, x, name, value
):
    with pytest.raises(ParameterError) as caught:
        make(**{name: value}).fit(x)
    assert caught.value.parameter == name
    assert caught.value.hint == f"this is a class: write {value.__name__}()"


class _Squares:
    """A transport that users could write."""

    batch_size = None

    def solve(self, z_p, z_q, batch=None):
        return transports.SortedTransport().solve(z_p, z_q**2)


def test_transports_of_users_need_no_base_class():
    assert len(vectors(transport=_Squares()).fit(X).sample(3)) == 3
    with pytest.raises(ParameterError, match="transport="):
        vectors(transport=_Squares).fit(X)


@pytest.mark.parametrize("ranks", [3, "all", sliceflow.ranks.Communicator])
def test_ranks_that_are_none_are_refused(ranks):
    with pytest.raises(ParameterError, match=r"ranks=.* must be None or what"):
        vectors().fit(X, ranks=ranks)


@pytest.mark.parametrize("device", [None, 0, True, ["cpu"], torch.device])
def test_devices_that_are_no_text_are_refused(device):
    for make, x in ((vectors, X), (pictures, PICTURES)):
        with pytest.raises(ParameterError, match="is not a torch device"):
            make(device=device).fit(x)


def test_devices_and_seeds_that_do_not_exist_are_named(monkeypatch):
    for make, x in ((vectors, X), (pictures, PICTURES)):
        for device, words in (
            ("toaster", "is not a torch device"),
            ("mps", "is neither a CPU nor a CUDA device"),
        ):
            with pytest.raises(ParameterError, match=words):
                make(device=device).fit(x)
        with pytest.raises(ValueError, match="random_state=-3 is negative"):
            make(random_state=-3).fit(x)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices.resolve_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(
        ParameterError, match="but torch sees 2 CUDA devices, counted from 0"
    ):
        vectors(device="cuda:2").fit(X)


def test_numbers_of_numpy_are_numbers(tmp_path):
    settings = dict(
        n_particles=np.int64(40), amplifier=np.float64(10), save_rows=np.bool(True)
    )
    options = VectorOptions(n_knots=np.int32(16), taper=np.float32(0.5))
    flow = vectors(**settings, n_steps=np.int64(2), options=options).fit(X, LABELS)
    flow.save(tmp_path / "model")
    loaded = sliceflow.load(tmp_path / "model", device="cpu")
    assert loaded.options == options
    assert np.array_equal(
        loaded.sample(5, random_state=0), flow.sample(5, random_state=0)
    )
    assert (
        len(pictures(**settings, steps_per_stage=np.int64(1)).fit(PICTURES).particles_)
        == 40
    )


def test_options_are_compared_cloned_and_searched_like_any_parameter():
    for make, kind, data in (
        (vectors, VectorOptions, X),
        (pictures, ImageOptions, PICTURES),
    ):
        options = kind(taper=0.25, n_knots=16)
        assert make(options=None).plan(data) == make(options=kind()).plan(data)
        flow = clone(make(options=options))
        assert flow.options == options
        before = flow.fit(data).sample(5, random_state=0)
        flow.set_params(
            options=kind(taper=1.0)
        )  # changed after the fit, it does not change samples
        assert np.array_equal(flow.sample(5, random_state=0), before)
        with pytest.raises(dataclasses.FrozenInstanceError):
            options.taper = 1.0


# The preset


def adapter_parameters(flow):
    """The parameters that a fit takes, by name."""
    parameters = flow._fit_planner().parameters
    return {
        field.name: getattr(parameters, field.name)
        for field in dataclasses.fields(parameters)
    }


@pytest.mark.parametrize(
    ("estimator", "of_paper"),
    [
        (SlicedWassersteinFlow, lambda defaults: PAPER),
        (ImageFlow, paper_parameters),
    ],
)
def test_parameters_left_alone_take_the_papers_values_and_others_win(
    estimator, of_paper
):
    flow = estimator(preset="paper", device="cpu")
    before = flow.get_params()
    resolved = adapter_parameters(flow)
    values = of_paper(estimator()._fit_planner().parameters)
    without_preset = [name for name in resolved if name != "preset"]
    for name in without_preset:
        assert resolved[name] == getattr(values, name), name
    assert flow.get_params() == before
    given = dict(
        transport="sorted", amplifier=3.0, options=OPTIONS[estimator](taper=0.25)
    )
    won = adapter_parameters(estimator(preset="paper", device="cpu", **given))
    assert (won["transport"], won["amplifier"], won["options"].taper) == (
        "sorted",
        3.0,
        0.25,
    )
    assert won["options"] == dataclasses.replace(resolved["options"], taper=0.25)
    rest = {"transport", "amplifier", "options"}
    assert all(
        won[name] == value for name, value in resolved.items() if name not in rest
    )


def changes_of(defaults, preset, prefix=""):
    """The parameters that a preset changes, and options, by name, as text."""
    changes = {}
    for field in dataclasses.fields(defaults):
        value = getattr(preset, field.name)
        if value == getattr(defaults, field.name):
            continue
        if field.name == "options":
            changes |= changes_of(defaults.options, value, "options.")
        else:
            changes[prefix + field.name] = repr(value)
    return changes


def test_the_table_of_the_preset_has_all_that_it_changes():
    page = Path(__file__).parents[2] / "docs" / "paper.md"
    table, _, _ = page.read_text().partition("Parameters that you set yourself")
    rows = re.findall(r"^\| `([\w.]+)` \| (.+?) \| (.+?) \|", table, re.MULTILINE)
    of_vectors = {name: value for name, value, _ in rows if value != "–"}
    of_pictures = {name: value for name, _, value in rows if value != "–"}
    defaults = ImageFlow()._fit_planner().parameters
    for documented, changes in (
        (of_vectors, changes_of(VectorParameters(), PAPER)),
        (of_pictures, changes_of(defaults, paper_parameters(defaults))),
    ):
        if "frame" in changes:  # it depends on the number of columns
            changes["frame"] = "Random(64·d)"
        changes["transport"] = changes["transport"].replace("batch_size=None", "")
        assert {name: f"`{value}`" for name, value in changes.items()} == documented


def test_plans_of_the_preset_are_the_papers():
    plan = SlicedWassersteinFlow(preset="paper", n_steps=3, device="cpu").plan(
        X, LABELS
    )
    assert (plan.method, plan.frame_kind) == ("CSWF ξ=10", frames.Random(192))
    assert (plan.transport, plan.standardize, plan.bandwidth) == (
        transports.PaperTransport(),
        False,
        0,
    )
    assert [(stage.n_steps, stage.taper) for stage in plan.stages()] == [(3, 0)]
    wide = SlicedWassersteinFlow(preset="paper", n_particles=50).plan(
        np.arange(50.0 * 200).reshape(50, 200)
    )
    assert wide.frame_kind == frames.Random(
        10_000
    )  # no more, however many columns there are
    plan = ImageFlow(preset="paper", n_pixel_values=17, device="cpu").plan(
        PICTURES, EVEN_AND_ODD
    )
    assert (plan.method, plan.patch_basis, plan.mosaic_size) == (
        "CSWF ξ=10",
        "random",
        0,
    )
    assert (plan.transport, plan.shrinkage) == (transports.PaperTransport(), 0)
    assert plan.n_directions == 13 * plan.layout.dimension
    assert {stage.n_steps for stage in plan.picture_stages} == {300}


def test_the_papers_flow_of_digits_fits_into_a_laptop():
    digits = np.zeros((1797, 8, 8), dtype=np.uint8)
    plan = ImageFlow(preset="paper", n_pixel_values=17, device="cpu").plan(digits)
    assert plan.nbytes < 4 << 30
