"""`VectorOptions` and `PictureOptions`: wrong values are named, right ones are like any parameter."""

import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone

import sliceflow
from sliceflow import ImageFlow, PictureOptions, SlicedWassersteinFlow, VectorOptions
from sliceflow.errors import ParameterError

X = np.random.default_rng(0).normal(size=(40, 2))
PICTURES = np.random.default_rng(0).integers(0, 17, (40, 4, 4)).astype(np.uint8)


def vectors(options):
    return SlicedWassersteinFlow(20, 2, device="cpu", random_state=0, options=options)


def pictures(options):
    return ImageFlow("1[1] 4[3]", 20, 2, n_pixel_values=17, device="cpu", options=options)


WRONG = [
    (VectorOptions, "taper", value, "a number from 0 to 1")
    for value in (-0.1, 1.1, np.nan, np.inf, "half", None, True)
]
WRONG += [
    (VectorOptions, "n_axis_steps", value, "an int of at least 0")
    for value in (-1, 1.0, "two", None, True)
]
WRONG += [
    (VectorOptions, "n_knots", value, "an int of at least 2") for value in (1, 16.0, "auto", None)
]
WRONG += [
    (VectorOptions, "validation_fraction", value, "a number between 0 and 1")
    for value in (0, 1, 0.0, 1.0, -0.1, np.nan, "some", None, True)
]
WRONG += [
    (VectorOptions, "n_iter_no_change", value, "an int of at least 1") for value in (0, 1.5, None)
]
WRONG += [
    (VectorOptions, "tol", value, "a number of at least 0") for value in (-1e-9, np.nan, np.inf, "0")
]
WRONG += [
    (VectorOptions, "smoothing", value, "'auto' or a number of at least 0")
    for value in (-0.1, np.nan, np.inf, "some", None)
]
WRONG += [(VectorOptions, "n_neighbors", value, "an int of at least 2") for value in (1, 20.0, None)]
WRONG += [
    (VectorOptions, "shrinkage", value, "a finite number of at least 0")
    for value in (-1, np.nan, np.inf, "auto", None)
]
WRONG += [
    (PictureOptions, "shrinkage", value, "'auto' or a finite number of at least 0")
    for value in (-1, np.nan, np.inf, "much", None)
]
WRONG += [
    (PictureOptions, "start", value, "'auto', 'noise' or an int of at least 1")
    for value in (0, -1, 1.5, True, "data", None)
]
WRONG += [
    (PictureOptions, name, value, "a finite number of at least 0")
    for name in ("locality", "start_noise")
    for value in (-0.1, np.nan, np.inf, "much", None)
]
WRONG += [
    (PictureOptions, name, value, "True or False")
    for name in ("clip", "dequantize")
    for value in (1, 0.0, "no", None)
]
WRONG += [
    (PictureOptions, "dequantize_every", value, "'stage' or 'step'")
    for value in ("never", "Stage", 1, None)
]
WRONG += [
    (PictureOptions, "n_directions", value, "an int of at least 1")
    for value in (0, 10.0, "auto", None, True)
]
WRONG += [
    (PictureOptions, "upsampling", value, "one of ['bilinear', 'lanczos', 'nearest']")
    for value in ("cubic", None, 3)
]
WRONG += [(PictureOptions, "taper", value, "a number from 0 to 1") for value in (-1, 2, "x", None)]
WRONG += [
    (PictureOptions, "n_knots", value, "'auto' or an int of at least 0")
    for value in (-1, 16.0, "all", None, True)
]
WRONG += [
    (PictureOptions, "precision", value, "one of ['auto', 'float32', 'float16', 'bfloat16']")
    for value in ("double", None, 16)
]


@pytest.mark.parametrize(("kind", "name", "value", "what"), WRONG, ids=repr)
def test_a_wrong_value_is_named_with_what_it_must_be(kind, name, value, what):
    options = kind(**{name: value})  # by scikit-learn's conventions nothing is checked before a fit
    flow, x = (vectors(options), X) if kind is VectorOptions else (pictures(options), PICTURES)
    for call in (flow.fit, flow.plan, flow.partial_fit):
        with pytest.raises(ParameterError) as caught:
            call(x)
        assert str(caught.value) == f"{name}={value!r} must be {what}"
        assert not hasattr(flow, "history_")


@pytest.mark.parametrize("value", [1, 0.0, "no", None], ids=repr)
def test_switches_of_estimators_are_true_or_false(value):
    for flow, name, x in (
        (SlicedWassersteinFlow(standardize=value), "standardize", X),
        (SlicedWassersteinFlow(early_stopping=value), "early_stopping", X),
        (ImageFlow(mirror=value), "mirror", PICTURES),
    ):
        for call in (flow.fit, flow.plan, flow.partial_fit):
            with pytest.raises(ParameterError) as caught:
                call(x)
            assert str(caught.value) == f"{name}={value!r} must be True or False"
    assert SlicedWassersteinFlow(standardize=np.bool(False)).plan(X).standardize is False


def test_every_setting_has_wrong_values_above():
    for kind in (VectorOptions, PictureOptions):
        tested = {name for of, name, *_ in WRONG if of is kind}
        assert tested == {field.name for field in dataclasses.fields(kind)}


@pytest.mark.parametrize("wrong", [{}, {"taper": 0.5}, "fast", 3, PictureOptions(), VectorOptions])
def test_other_things_than_options_are_refused_for_vectors(wrong):
    with pytest.raises(ParameterError, match=r"must be None or a sliceflow\.VectorOptions"):
        vectors(wrong).fit(X)


@pytest.mark.parametrize("wrong", [{}, {"taper": 0.5}, "fast", 3, VectorOptions(), PictureOptions])
def test_other_things_than_options_are_refused_for_pictures(wrong):
    with pytest.raises(ParameterError, match=r"must be None or a sliceflow\.PictureOptions"):
        pictures(wrong).fit(PICTURES)


def test_unknown_settings_are_refused_at_once():
    for kind in (VectorOptions, PictureOptions):
        with pytest.raises(TypeError, match="unexpected keyword argument 'n_steps'"):
            kind(n_steps=3)
        with pytest.raises(dataclasses.FrozenInstanceError):
            kind().taper = 0.1


reals = st.floats(0, 1)
ints = st.integers(2, 1000)
VECTORS = st.builds(
    VectorOptions,
    taper=reals | st.sampled_from([0, 1, np.float32(0.5)]),
    n_axis_steps=st.integers(0, 5) | st.just(np.int64(2)),
    n_knots=ints,
    validation_fraction=st.floats(0.01, 0.99),
    n_iter_no_change=ints,
    tol=reals,
)
PICTURE = st.builds(
    PictureOptions,
    start=st.sampled_from(["auto", "noise", 1, np.int64(7)]),
    start_noise=st.floats(0, 1e6),
    clip=st.booleans(),
    dequantize=st.booleans(),
    dequantize_every=st.sampled_from(["stage", "step"]),
    n_directions=ints,
    upsampling=st.sampled_from(["lanczos", "bilinear", "nearest"]),
    taper=reals,
    n_knots=ints | st.just("auto") | st.just(0),
    precision=st.sampled_from(["auto", "float32", "float16", "bfloat16"]),
)


@given(VECTORS | PICTURE)
def test_right_values_pass_and_are_values(options):
    options.check()
    assert pickle.loads(pickle.dumps(options)) == options
    assert dataclasses.replace(options) == options
    assert hash(dataclasses.replace(options)) == hash(options)
    if not any(isinstance(v, np.generic) for v in vars(options).values()):
        assert eval(repr(options)) == options  # it says how to make it


@given(VECTORS | PICTURE)
def test_they_are_a_parameter_like_any_other(options):
    flow = vectors(options) if isinstance(options, VectorOptions) else pictures(options)
    assert flow.get_params()["options"] is options
    again = clone(flow)
    assert again is not flow
    assert again.options == options
    assert clone(flow).set_params(options=None).options is None
    assert repr(options).split("(")[0] in repr(flow).replace("\n", "")
    assert pickle.loads(pickle.dumps(flow)).get_params() == flow.get_params()


def test_none_is_the_defaults():
    for make, x, kind in ((vectors, X, VectorOptions), (pictures, PICTURES, PictureOptions)):
        ours, others = (make(options).set_params(random_state=0) for options in (None, kind()))
        assert ours.plan(x) == others.plan(x)
        assert np.array_equal(ours.fit(x).particles_, others.fit(x).particles_)
        assert ours.options is None  # as it was given
        assert "options" not in repr(ours)


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        (VectorOptions(taper=0.25), "taper"),
        (VectorOptions(n_axis_steps=0), "n_axis_steps"),
        (VectorOptions(n_knots=64), "n_knots"),
        (VectorOptions(validation_fraction=0.3), "validation_fraction"),
        (VectorOptions(n_iter_no_change=3), "n_iter_no_change"),
        (VectorOptions(tol=0.5), "tol"),
        (PictureOptions(start_noise=0.2), "start_noise"),
        (PictureOptions(clip=False), "clip"),
        (PictureOptions(dequantize=False), "dequantize"),
        (PictureOptions(dequantize_every="step"), "dequantize_every"),
        (PictureOptions(upsampling="nearest"), "upsampling"),
        (PictureOptions(taper=0.25), "taper"),
        (PictureOptions(n_knots=20), "n_knots"),
    ],
)
def test_plans_have_them(options, setting):
    make, x = (vectors, X) if isinstance(options, VectorOptions) else (pictures, PICTURES)
    wanted = getattr(options, setting)
    assert getattr(make(options).plan(x), setting) == wanted
    assert getattr(make(None).plan(x), setting) != wanted


def test_files_keep_them(tmp_path):
    for make, x, options in (
        (vectors, X, VectorOptions(taper=0.25, n_knots=16, tol=np.float64(0.5))),
        (pictures, PICTURES, PictureOptions(clip=False, n_knots=np.int64(8))),
    ):
        make(options).fit(x).save(tmp_path / "model")
        assert sliceflow.load(tmp_path / "model", device="cpu").options == options
