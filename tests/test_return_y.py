"""`sample(return_y=True)`: samples together with the conditions that they were drawn for."""

import functools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sliceflow
from sliceflow import ImageFlow, SlicedWassersteinFlow, VectorOptions

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
CODES = np.repeat([0, 1, 2], [30, 20, 10])
X[:, 0] += 20 * CODES
PICTURES = RNG.integers(0, 17, (60, 4, 4)).astype(np.uint8)


def vectors(**parameters):
    few = dict(n_particles=60, n_steps=3, random_state=3, device="cpu")
    options = VectorOptions(n_axis_steps=0, n_knots=16)
    return SlicedWassersteinFlow(**{**few, "options": options, **parameters})


def pictures(**parameters):
    small = dict(schedule="1[1] 4[3]", n_particles=60, quality=2, n_pixel_values=17)
    return ImageFlow(**{**small, "random_state": 3, "device": "cpu", **parameters})


def objects(values):
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


LABELS = {
    "ints": CODES * 7 - 7,
    "floats": CODES / 1.0,
    "bools": CODES == 1,
    "texts": np.array(["cat", "dog", "emu"])[CODES],
    "bytes": np.array([b"c", b"d", b"e"])[CODES],
    "tuples": objects([("a", int(c)) for c in CODES]),
    "mixed": objects([("a", 1, "b")[c] for c in CODES]),
    "list": [("x", "y", "z")[c] for c in CODES],
    "series": pd.Series(["x", "y", "z"]).iloc[CODES].reset_index(drop=True),
    "categories": pd.Series(pd.Categorical.from_codes(CODES, ["x", "y", "z"])),
    "tensor": torch.from_numpy(CODES),
}
MAKE = {
    "vectors": (vectors, X),
    "per class": (lambda: vectors(amplifier=math.inf), X),
    "pictures": (pictures, PICTURES),
    "pictures per class": (lambda: pictures(amplifier=math.inf, transport="histogram"), PICTURES),
}


def both(flow, n, **more):
    """x with its y; x is the same without, and when it is drawn for that y."""
    x, y = flow.sample(n, random_state=5, return_y=True, **more)
    assert np.array_equal(x, flow.sample(n, random_state=5, **more))
    if y is not None:
        again, y_again = flow.sample(n, y=y, random_state=5, return_y=True)
        assert np.allclose(again, x, rtol=1e-12, atol=1e-12)
        assert np.array_equal(y_again, y) or np.allclose(y_again, y, rtol=1e-12)
    return x, y


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("name", MAKE)
def test_labels_come_back_as_they_were_written(name, kind):
    make, x = MAKE[name]
    flow = make().fit(x, LABELS[kind])
    samples, y = both(flow, 12)
    assert isinstance(y, np.ndarray)
    assert len(samples) == len(y) == 12
    written = np.asarray(LABELS[kind]).tolist() if kind != "tuples" else LABELS[kind].tolist()
    assert {type(label) for label in y.tolist()} <= {type(label) for label in written}
    # in the shares of the data: 6, 4 and 2
    assert {label: y.tolist().count(label) for label in written} == {
        label: written.count(label) // 5 for label in written
    }


@pytest.mark.parametrize("name", ["vectors", "per class"])
def test_every_sample_has_its_own_label(name):
    flow = MAKE[name][0]().set_params(n_steps=20).fit(X, LABELS["texts"])
    x, y = both(flow, 300)
    nearest = np.array(["cat", "dog", "emu"])[np.clip(np.round(x[:, 0] / 20), 0, 2).astype(int)]
    assert (nearest == y).mean() > 0.95


@functools.cache
def of_three_classes():
    return vectors().fit(X, CODES)


@given(st.integers(1, 50), st.integers(0, 2**32))
@settings(max_examples=10)
def test_any_number_of_samples_has_as_many_labels(n, seed):
    flow = of_three_classes()
    x, y = flow.sample(n, random_state=seed, return_y=True)
    assert x.shape == (n, 2)
    assert y.shape == (n,)
    assert np.array_equal(x, flow.sample(n, y=y, random_state=seed))


@pytest.mark.parametrize("name", MAKE)
def test_conditions_that_are_asked_for_come_back(name):
    make, x = MAKE[name]
    flow = make().fit(x, LABELS["texts"])
    assert both(flow, 3, y="dog")[1].tolist() == ["dog"] * 3
    assert both(flow, 3, y=["dog", "cat", "dog"])[1].tolist() == ["dog", "cat", "dog"]


@pytest.mark.parametrize("name", ["vectors", "pictures"])
def test_weights_of_classes_come_back(name):
    make, x = MAKE[name]
    weights = np.array([[0.5, 0.5, 0], [0.2, 0.3, 0.5]])
    _, y = both(make().fit(x, CODES), 2, y=weights)
    assert np.array_equal(y, weights)


def test_columns_come_back_in_the_users_units():
    columns = np.stack((100 + CODES, RNG.normal(size=60) * 1e-3), 1)
    flow = vectors().fit(X, columns)
    _, y = both(flow, 60)
    assert np.allclose(np.sort(y, axis=0), np.sort(columns, axis=0))  # each row once
    assert np.allclose(both(flow, 2, y=[101.0, 0.0])[1], [[101, 0]] * 2)
    assert np.allclose(both(flow, 2, y=columns[:2])[1], columns[:2])


def test_without_a_condition_there_is_none():
    assert both(vectors().fit(X), 4)[1] is None
    assert both(pictures().fit(PICTURES), 4)[1] is None


def test_hidden_clusters_are_not_labels():
    flow = pictures(n_clusters=3, transport="histogram").fit(PICTURES)
    assert flow.plan_.method == "clusters"
    assert both(flow, 7)[1] is None


def test_a_flow_that_ignores_its_labels_still_names_them():
    flow = vectors(amplifier=0).fit(X, CODES)
    x, y = both(flow, 12)
    assert np.bincount(y).tolist() == [6, 4, 2]
    assert x.shape == (12, 2)


def test_data_frames_and_tensors_come_with_arrays_of_labels():
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    for make in (vectors, lambda: vectors(amplifier=math.inf)):
        x, y = make().fit(frame, LABELS["series"]).sample(5, random_state=0, return_y=True)
        assert x.columns.tolist() == ["a", "b"]
        wanted, names = make().fit(X, LABELS["series"]).sample(5, random_state=0, return_y=True)
        assert np.array_equal(x.to_numpy(), wanted)
        assert y.tolist() == names.tolist()
        x, y = make().fit(torch.from_numpy(X), torch.from_numpy(CODES)).sample(5, return_y=True)
        assert isinstance(x, torch.Tensor)
        assert isinstance(y, np.ndarray)
    x, y = pictures().fit(torch.from_numpy(PICTURES), CODES).sample(5, return_y=True)
    assert isinstance(x, torch.Tensor)
    assert isinstance(y, np.ndarray)


@pytest.mark.parametrize("name", MAKE)
def test_models_of_files_know_the_labels_too(name, tmp_path):
    make, x = MAKE[name]
    flow = make().fit(x, LABELS["texts"])
    flow.save(tmp_path / "model")
    again = sliceflow.load(tmp_path / "model", device="cpu")
    for a, b in zip(both(flow, 12), both(again, 12), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("name", MAKE)
def test_models_that_grow_know_the_labels_too(name):
    make, x = MAKE[name]
    flow = make().partial_fit(x[::2], LABELS["texts"][::2]).partial_fit(x[1::2], LABELS["texts"][1::2])
    _, y = both(flow, 12)
    assert {label: y.tolist().count(label) for label in y} == {"cat": 6, "dog": 4, "emu": 2}
