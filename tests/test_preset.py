"""`preset="paper"`: both estimators run Algorithm 1, with the settings of `sliceflow.engine.paper`."""

import inspect

import numpy as np
import pytest
import torch
from sklearn.base import clone

import sliceflow
from sliceflow import (
    ImageFlow,
    PictureOptions,
    SlicedWassersteinFlow,
    VectorOptions,
    frames,
    transports,
)
from sliceflow.engine import paper
from sliceflow.engine.flow import Noise
from sliceflow.engine.random import Seed
from sliceflow.errors import ParameterError
from test_algorithm1 import drawn, joint, local_directions, step

RNG = np.random.default_rng(0)
X = RNG.gamma(2, size=(200, 3)) - 1
Y = np.arange(200) % 2
PICTURES = RNG.integers(0, 17, (40, 5, 4)).astype(np.uint8)
LABELS = np.arange(40) % 2


def vectors(**parameters):
    few = dict(n_particles=2000, n_steps=4, frame=frames.Random(30), random_state=5, device="cpu")
    return SlicedWassersteinFlow(**{"preset": "paper", **few, **parameters})


def pictures(n_directions=40, n_knots="auto", **parameters):
    small = dict(schedule="1[1] 3[2] 5[3]", n_particles=80, quality=2, n_pixel_values=17)
    options = PictureOptions(n_directions=n_directions, n_knots=n_knots)
    return ImageFlow(
        **{"preset": "paper", **small, "random_state": 5, "device": "cpu", "options": options}
        | parameters
    )


# The settings


@pytest.mark.parametrize(
    ("estimator", "settings"),
    [(SlicedWassersteinFlow, paper.VECTORS), (ImageFlow, paper.PICTURES)],
)
def test_parameters_left_alone_take_the_papers_values(estimator, settings):
    flow = estimator(preset="paper")
    resolved, before = flow._parameters(), flow.get_params()
    for name, setting in settings.items():
        where = vars(resolved["options"]) if name not in resolved else resolved
        assert where[name] == setting.value, name
    changed = {name for name, value in resolved.items() if value is not before[name]}
    assert changed <= {*settings, "options"}
    assert flow.get_params() == before  # as they were given


def test_every_setting_is_a_parameter_or_an_option():
    for estimator, options, settings in (
        (SlicedWassersteinFlow, VectorOptions, paper.VECTORS),
        (ImageFlow, PictureOptions, paper.PICTURES),
    ):
        names = {*inspect.signature(estimator).parameters, *inspect.signature(options).parameters}
        assert set(settings) <= names


def test_a_plan_of_vectors_has_them():
    plan = SlicedWassersteinFlow(preset="paper", n_steps=3, device="cpu").plan(X, Y)
    assert (plan.method, plan.frame) == ("CSWF ξ=10", frames.Random(10_000))
    assert (plan.transport, plan.standardize) == (transports.Interpolated(), False)
    assert (plan.taper, plan.n_axis_steps, plan.entropy, plan.step_size) == (0, 0, 0, 1)
    assert plan.stages()[0].n_steps == 3


def test_a_plan_of_pictures_has_them():
    plan = ImageFlow(preset="paper", n_pixel_values=17, device="cpu").plan(PICTURES)
    assert (plan.method, plan.patch_basis, plan.n_directions) == ("SWF", "random", 10_000)
    assert plan.transport == transports.Interpolated()
    assert (plan.start_noise, plan.clip, plan.dequantize_every) == (1.0, False, "step")
    assert (plan.taper, plan.n_conditions) == (0, 0)
    assert {stage.n_steps for stage in plan.stages} == {300}
    labelled = ImageFlow(preset="paper", n_pixel_values=17, device="cpu").plan(PICTURES, LABELS)
    assert labelled.method == "CSWF ξ=10"


def test_without_a_preset_nothing_is_of_the_paper():
    plan = SlicedWassersteinFlow(device="cpu").plan(X)
    assert (plan.frame, plan.taper, plan.n_axis_steps) == (frames.Orthogonal(), 0.5, 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("frame", frames.Random(7)),
        ("frame", "axis"),
        ("transport", "sorted"),
        ("amplifier", 3.0),
        ("entropy", 0.5),
        ("n_steps", 9),
        ("n_particles", 77),
    ],
)
def test_what_is_given_for_vectors_wins(name, value):
    flow = SlicedWassersteinFlow(preset="paper", **{name: value})
    resolved, usual = flow._parameters(), SlicedWassersteinFlow(preset="paper")._parameters()
    assert resolved.pop(name) == value
    del usual[name]
    assert resolved == usual


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("schedule", "1[1] 5[3]"),
        ("quality", 7),
        ("patch_basis", "pixels"),
        ("transport", "histogram"),
        ("amplifier", 3.0),
        ("n_clusters", 4),
        ("mirror", True),
    ],
)
def test_what_is_given_for_pictures_wins(name, value):
    flow = ImageFlow(preset="paper", **{name: value})
    resolved, usual = flow._parameters(), ImageFlow(preset="paper")._parameters()
    assert resolved.pop(name) == value
    del usual[name]
    assert resolved == usual


def test_options_that_are_given_win_one_by_one():
    given = VectorOptions(taper=0.25, n_knots=64)
    options = SlicedWassersteinFlow(preset="paper", options=given)._parameters()["options"]
    assert options == VectorOptions(taper=0.25, n_knots=64, n_axis_steps=0, smoothing=0)
    given = PictureOptions(start_noise=0.3, upsampling="nearest")
    options = ImageFlow(preset="paper", options=given)._parameters()["options"]
    assert (options.start_noise, options.upsampling) == (0.3, "nearest")
    assert (options.n_directions, options.clip, options.dequantize_every) == (10_000, False, "step")


@pytest.mark.parametrize("wrong", ["Paper", "fast", "", 1, True, ["paper"]])
@pytest.mark.parametrize(
    ("make", "x"), [(SlicedWassersteinFlow, X), (ImageFlow, PICTURES)], ids=["vectors", "pictures"]
)
def test_another_preset_is_an_error(make, x, wrong):
    flow = make(preset=wrong)
    for call in (flow.fit, flow.plan, flow.partial_fit):
        with pytest.raises(ParameterError, match=r"must be None or 'paper'") as caught:
            call(x)
        assert (caught.value.name, caught.value.value) == ("preset", wrong)


def test_a_clone_keeps_the_preset():
    flow = clone(vectors())
    assert flow.preset == "paper"
    assert "preset='paper'" in repr(flow)


# Files


@pytest.mark.parametrize(
    ("make", "data"),
    [(vectors, (X,)), (vectors, (X, Y)), (pictures, (PICTURES,)), (pictures, (PICTURES, LABELS))],
)
def test_models_of_the_preset_are_saved(make, data, tmp_path):
    flow = make().fit(*data)
    flow.save(tmp_path / "model")
    again = sliceflow.load(tmp_path / "model", device="cpu")
    assert {k: v for k, v in again.get_params().items() if k != "random_state"} == {
        k: v for k, v in flow.get_params().items() if k != "random_state"
    }
    assert again._parameters()["transport"] == transports.Interpolated()
    x, y = again.sample(30, random_state=1, return_y=True)
    wanted, names = flow.sample(30, random_state=1, return_y=True)
    assert np.array_equal(x, wanted)
    assert np.array_equal(y, names)


# Algorithm 1


@pytest.mark.parametrize("labels", [False, True])
def test_vectors_take_the_steps_of_algorithm_1(labels):
    heard = []
    flow = vectors().fit(
        X, Y if labels else None, listeners=lambda event: heard.append(event.particles.T.clone())
    )
    engine = flow._fitted.parts[0].flow
    x = torch.empty(3, 2000, dtype=torch.float64)
    Noise(Seed(5).child("particles"), 0).child("start").fill(x)
    assert abs(float(x.std()) - 1) < 0.05
    x, width = x.T.numpy(), 2 if labels else 0
    y_p = np.eye(2)[flow.particle_conditions_] if labels else np.zeros((2000, 0))
    y_q = np.eye(2)[Y][:, :width]
    assert len(heard) == flow.n_iter_ == 4
    for k in range(4):
        theta = joint(engine.frame(0, k, torch.zeros(3, 1, dtype=torch.float64)))
        assert theta.shape == (30, 3 + width)
        x = step(x, y_p, X, y_q, theta, 10.0, eta=3)
        assert np.allclose(heard[k].numpy(), x, rtol=0, atol=1e-8)
    assert np.allclose(flow.particles_, x, rtol=0, atol=1e-8)


@pytest.mark.parametrize("labels", [False, True])
def test_pictures_take_the_steps_of_algorithm_1(labels):
    """At every level of the pyramid, with new dequantisation noise at every step."""
    heard, m, full = [], 80, (5, 4)
    flow = pictures(n_knots=0).fit(
        PICTURES,
        LABELS if labels else None,
        listeners=lambda event: heard.append(event.particles.T.clone()),
    )
    x = torch.empty(20, m)
    Noise(Seed(5).child("particles"), 0).child("start").fill(x)
    x, width = x.T.double().numpy(), 2 if labels else 0
    y_p = np.eye(2)[flow.particle_conditions_] if labels else np.zeros((m, 0))
    y_q = np.eye(2)[LABELS][:, :width]
    walk, layout, done = flow._fitted.levels, flow.layout_, 0
    raw = layout.read(PICTURES)
    assert [(stage.h, stage.w) for stage in walk.stages] == [(1, 1), (3, 2), (5, 4)]
    for i, stage in enumerate(walk.stages):
        level, seed = (1, stage.h, stage.w), walk.seed.child("level", i, "frame", 0)
        for k in range(stage.n_steps):
            noisy = layout.encode(raw, Seed(5).child("data", i, k)).T.double().numpy()
            assert np.array_equal(np.floor((noisy + 1) * 8.5), raw.T.numpy())
            patch = min(stage.patch, stage.h)
            theta = local_directions(*drawn(seed, k, 40, level, patch, width), level, full)
            x = step(x, y_p, noisy, y_q, theta, 10.0, eta=min(stage.h * stage.w, 40))
            done += 1
        if i == 2:  # before, the engine tells of a level's coefficients
            assert np.allclose(heard[-1].numpy(), x, rtol=0, atol=2e-4)
    assert len(heard) == done == flow.n_iter_ == 6
    written = np.clip(np.floor((x + 1) * 8.5), 0, 16)
    assert np.mean(written == flow.particles_.reshape(m, 20)) > 0.99  # but where it is rounded
