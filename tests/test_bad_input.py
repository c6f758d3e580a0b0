"""Bad input: a message that names the value and the way out, or a documented behaviour."""

import pickle
import re
from unittest import mock

import numpy as np
import pytest
import torch

from sliceflow import ImageFlow, SlicedWassersteinFlow, VectorOptions, devices
from sliceflow.devices import free_memory

X = np.random.default_rng(0).normal(size=(30, 3))
Y = np.arange(30) % 3
quick = dict(n_particles=40, n_steps=4, random_state=0)


def fit(x=X, y=None, **parameters):
    return SlicedWassersteinFlow(**(quick | parameters)).fit(x, y)


def with_value(value):
    x = X.copy()
    x[4, 1] = value
    return x


REFUSED = {
    "nan": (with_value(np.nan), None, "Input X contains NaN"),
    "inf": (with_value(np.inf), None, "Input X contains infinity"),
    "-inf": (with_value(-np.inf), None, "Input X contains infinity"),
    "no rows": (X[:0], None, "Found array with 0 sample(s)"),
    "no columns": (X[:, :0], None, "Found array with 0 feature(s)"),
    "one dimension": (X[:, 0], None, "Expected 2D array, got 1D array instead"),
    "text": (np.array([["a", "b"]]), None, "X contains text (dtype <U1)"),
    "complex": (X + 1j, None, "Complex data not supported"),
    "y too short": (X, Y[:-1], "X has 30 rows but y has 29; pass one y for every row of X"),
    "y of rank 3": (
        X,
        np.zeros((30, 1, 1)),
        "y has shape (30, 1, 1); pass labels (n,) or columns (n, l)",
    ),
    "y without columns": (X, np.zeros((30, 0)), "y has 0 columns; leave it out"),
    "y with nan": (X, np.full((30, 1), np.nan), "y contains nan at [0, 0]"),
    "y of fractions": (X, np.linspace(0, 1, 30), "pass y[:, None] for a continuous condition"),
    "y of text columns": (
        X,
        np.full((30, 1), "a"),
        "continuous conditions must be numbers, labels 1-D",
    ),
    "too large to standardise": (with_value(1e300), None, "column 1 of X cannot be standardised"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_data_that_cannot_be_fitted(case):
    x, y, message = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        fit(x, y)


PARAMETERS = {
    "n_particles=0 must be None or an int of at least 1": dict(n_particles=0),
    "n_particles=2.5 must be None or an int of at least 1": dict(n_particles=2.5),
    "n_steps=-1 must be an int of at least 0": dict(n_steps=-1),
    "frame='circle' must be one of ['axis', 'max-sliced', 'orthogonal', 'random'] or a frame": dict(
        frame="circle"
    ),
    "frame=3 must be one of": dict(frame=3),
    "transport='fast' must be one of ['auto', 'histogram', 'interpolated', 'sorted'] or a": dict(
        transport="fast"
    ),
    "amplifier=-1 must be a number of at least 0": dict(amplifier=-1),
    "amplifier=nan must be a number of at least 0": dict(amplifier=float("nan")),
    "entropy=-0.1 must be a finite number of at least 0": dict(entropy=-0.1),
    "taper=2 must be a number from 0 to 1": dict(options=VectorOptions(taper=2)),
    "validation_fraction=1.0 must be a number between 0 and 1": dict(
        options=VectorOptions(validation_fraction=1.0)
    ),
    "n_iter_no_change=0 must be an int of at least 1": dict(options=VectorOptions(n_iter_no_change=0)),
    "tol='a' must be a number of at least 0": dict(options=VectorOptions(tol="a")),
    "verbose=-1 must be an int of at least 0": dict(verbose=-1),
    "n_knots=1 must be an int of at least 2": dict(options=VectorOptions(n_knots=1)),
    "device='gpu' is not a torch device": dict(device="gpu"),
    "random_state=-3 is negative": dict(random_state=-3),
}


@pytest.mark.parametrize("message", PARAMETERS)
def test_parameters_out_of_range(message):
    with pytest.raises(ValueError, match=re.escape(message)):
        fit(**PARAMETERS[message])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_missing_gpu():
    with pytest.raises(
        ValueError, match="device='cuda' but torch sees no CUDA device; pass device='cpu'"
    ):
        fit(device="cuda")


@pytest.mark.parametrize("device", ["mps", torch.device("mps"), "mps:0", "meta"])
def test_a_device_without_float64(device):
    """Apple's GPUs; "meta" keeps no numbers at all."""
    with pytest.raises(
        ValueError, match="has no float64, which sliceflow computes in; pass device='cpu'"
    ):
        fit(device=device)
    with pytest.raises(ValueError, match="has no float64"):
        ImageFlow(device=device).fit(np.zeros((3, 2, 2), np.uint8))
    with pytest.raises(ValueError, match="has no float64"):
        SlicedWassersteinFlow(device=device).partial_fit(X)


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices.resolve_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(
        ValueError, match="device='cuda:2' but torch sees 2 CUDA devices, counted from 0; pass 'cuda'"
    ):
        fit(device="cuda:2")


def test_more_classes_than_particles():
    with pytest.raises(ValueError, match="n_particles=2 is fewer than the 3 classes of y; pass n_part"):
        fit(X, Y, n_particles=2)


def test_no_memory_for_the_particles():
    message = r"n_particles=1000000000000 with 30 rows of 3 columns and 3 directions needs about .* GiB"
    with pytest.raises(MemoryError, match=message):
        fit(n_particles=10**12)


def test_memory_in_which_the_system_keeps_files_is_free(monkeypatch):
    told = mock.mock_open(read_data="MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable: 2000 kB\n")
    monkeypatch.setattr(devices, "open", told, raising=False)
    assert free_memory(torch.device("cpu")) == 2000 * 1024
    told.side_effect = FileNotFoundError  # not Linux
    assert free_memory(torch.device("cpu")) != 2000 * 1024


def test_early_stopping_needs_rows():
    with pytest.raises(ValueError, match="holds out 1 of 1 rows and leaves none to fit"):
        fit(X[:1], early_stopping=True)


def test_particles_of_a_class_that_is_held_out_have_nowhere_to_go():
    y, options = np.array(["rare"] + 29 * ["other"]), VectorOptions(validation_fraction=0.9)
    message = "particle_conditions has 'rare', but early_stopping holds out all its rows"
    with pytest.raises(ValueError, match=message):
        SlicedWassersteinFlow(n_steps=4, early_stopping=True, options=options, random_state=0).fit(
            X, y, particle_conditions=["rare"] * 9
        )


def test_particle_conditions_that_do_not_fit():
    flow = SlicedWassersteinFlow(**quick)
    with pytest.raises(ValueError, match="particle_conditions was given without y"):
        flow.fit(X, particle_conditions=Y)
    with pytest.raises(ValueError, match="particle_conditions has 30 rows but n_particles=40"):
        flow.fit(X, Y, particle_conditions=Y)
    with pytest.raises(ValueError, match="unknown label 9; the model knows 0, 1, 2"):
        flow.set_params(n_particles=None).fit(X, Y, particle_conditions=np.full(30, 9))


SAMPLING = {
    "n_samples=0 must be an int of at least 1": dict(n_samples=0),
    "n_samples=-5 must be an int of at least 1": dict(n_samples=-5),
    "n_samples=1.5 must be an int of at least 1": dict(n_samples=1.5),
    "unknown label 7; the model knows 0, 1, 2": dict(n_samples=2, y=7),
    "unknown labels 'a', 'b'; the model knows 0, 1, 2": dict(n_samples=2, y=["a", "b"]),
    "y has 3 rows but n_samples=2; pass one condition, or one per sample": dict(
        n_samples=2, y=[0, 1, 2]
    ),
    "y has 2 columns but the model was fitted with 3 (one-hot labels of 3 classes); pass class labels "
    "or an (n, 3) array": dict(n_samples=2, y=np.ones((2, 2))),
}


@pytest.mark.parametrize("message", SAMPLING)
def test_samples_that_cannot_be_drawn(message):
    with pytest.raises(ValueError, match=re.escape(message)):
        fit(X, Y).sample(**SAMPLING[message])


def test_conditions_for_an_unconditional_model_and_columns_of_another_width():
    with pytest.raises(ValueError, match="y was given but the model was fitted without conditions"):
        fit().sample(2, y=1)
    with pytest.raises(
        ValueError, match=re.escape("y has shape (2, 3) but the model was fitted with 2")
    ):
        fit(X, X[:, :2]).sample(2, y=np.ones((2, 3)))


def test_sampling_before_fitting():
    with pytest.raises(ValueError, match="not fitted yet"):
        SlicedWassersteinFlow().sample(2)
    refused = SlicedWassersteinFlow(**quick)
    with pytest.raises(ValueError, match="X has 30 rows but y has 29"):
        refused.fit(X, Y[:-1])
    with pytest.raises(ValueError, match="not fitted yet"):
        refused.sample(2)


def test_an_interrupted_refit_leaves_the_old_model_whole():
    flow = fit(X, Y)
    before = flow.sample(3, y=1, random_state=0)

    def interrupt(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        flow.fit(1000 * X[:, :2], listeners=(interrupt,))
    assert np.array_equal(flow.sample(3, y=1, random_state=0), before)


def test_a_refit_without_labels_forgets_the_classes():
    flow = fit(X, Y)
    assert flow.classes_.tolist() == [0, 1, 2]
    assert not hasattr(flow.fit(X), "classes_")


def test_one_row_is_what_every_particle_becomes():
    flow = fit(X[:1])
    assert np.allclose(flow.particles_, X[:1], atol=1e-12)
    assert np.allclose(flow.sample(3), X[:1], atol=1e-12)


def test_one_column_and_one_particle_are_legal():
    assert fit(X[:, :1]).particles_.shape == (40, 1)
    assert fit(n_particles=1).particles_.shape == (1, 3)


@pytest.mark.parametrize("value", [0.1, -3.0, 1e300])
def test_constant_columns_stay_constant_bit_for_bit(value):
    x = X.copy()
    x[:, 2] = value
    flow = fit(x)
    assert np.all(flow.particles_[:, 2] == value)
    assert np.all(flow.sample(5, random_state=0)[:, 2] == value)


def test_one_class_and_duplicate_rows_are_legal():
    assert fit(X, np.zeros(30, dtype=int)).sample(2, y=0).shape == (2, 3)
    assert np.isfinite(fit(np.repeat(X[:2], 20, axis=0)).particles_).all()


def test_huge_and_tiny_values_keep_their_scale():
    for scale in (1e-30, 1e30):
        x = fit(X * scale).particles_
        assert np.allclose(x.std(0), X.std(0) * scale, rtol=0.2)


def test_a_failed_fit_leaves_the_old_model_usable():
    flow = fit()
    before = flow.sample(3, random_state=0)
    with pytest.raises(ValueError, match="contains NaN"):
        flow.fit(with_value(np.nan))
    assert np.array_equal(flow.sample(3, random_state=0), before)


def test_errors_keep_what_was_wrong_also_from_another_process():
    with pytest.raises(ValueError, match="device='toaster' is not a torch device; try 'cpu'") as told:
        fit(device="toaster")
    error = pickle.loads(pickle.dumps(told.value))  # as joblib sends it
    assert (error.name, error.value, str(error)) == ("device", "toaster", str(told.value))


def test_vectors_of_bfloat16_come_back_as_float32():
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    flow = SlicedWassersteinFlow(n_steps=2, n_particles=40, random_state=0).fit(x.bfloat16())
    assert flow.particles_.dtype == torch.float32


def test_one_condition_is_not_enough_for_many_particles():
    x, y = np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 2
    with pytest.raises(ValueError, match="particle_conditions has 1 rows but n_particles=20"):
        SlicedWassersteinFlow(n_steps=1, n_particles=20).fit(x, y, particle_conditions=1)
    flow = SlicedWassersteinFlow(n_steps=1).fit(x, np.ones(20, int), particle_conditions=1)
    assert flow.particles_.shape == (1, 2)


def test_labels_in_messages_are_plain():
    y = np.array(["class_0", "class_1", "class_2"])[Y]
    for kind in (str, object):
        with pytest.raises(ValueError, match="unknown label 'class_9'; the model knows 'class_0', 'c"):
            fit(X, y.astype(kind)).sample(1, y=[np.str_("class_9")])
    grown = SlicedWassersteinFlow(**quick).partial_fit(X, list(map(np.str_, y)))
    with pytest.raises(ValueError, match="a row of class 'class_1' was never added"):
        grown.forget(X[:1], [np.str_("class_1")])
    alone = [np.str_("alone"), *y[1:]]
    with pytest.raises(ValueError, match="particle_conditions has 'alone', but early_stopping"):
        SlicedWassersteinFlow(
            n_steps=1,
            random_state=0,
            early_stopping=True,
            options=VectorOptions(validation_fraction=0.9),
        ).fit(X, alone, particle_conditions=[np.str_("alone")] * 9)


PICTURES = np.random.default_rng(0).integers(0, 17, (20, 4, 4)).astype(np.uint8)
small = dict(n_pixel_values=17, quality=1, n_particles=30, random_state=0)


def test_masks_of_pictures_and_missing_labels_are_not_ignored():
    hidden = np.ma.masked_array(PICTURES, mask=np.zeros(PICTURES.shape, bool))
    hidden[3, 1, 2] = np.ma.masked
    labels = np.ma.masked_array(np.arange(20) % 2, mask=np.arange(20) == 5)
    flow = ImageFlow(**small)
    for images in (hidden, list(hidden)):
        for method in (flow.fit, flow.partial_fit):
            with pytest.raises(ValueError, match=r"a value of the pictures is masked at \[3, 1, 2\]"):
                method(images)
    with pytest.raises(ValueError, match=r"a value of labels is masked at \[5\]; drop or fill"):
        flow.fit(PICTURES, labels)
    for value in (None, float("nan")):
        with pytest.raises(ValueError, match=r"row 1 of labels has no label .*; drop such rows"):
            flow.fit(PICTURES, ["a", value] * 10)
    with pytest.raises(ValueError, match=r"labels have shape \(20, 2\); pass one class label"):
        flow.fit(PICTURES, np.full((20, 2), "a"))
    known = np.ma.masked_array(np.eye(4, dtype=bool), mask=np.eye(4, dtype=bool))
    with pytest.raises(ValueError, match=r"a value of observed is masked at \[0, 0\]"):
        ImageFlow(**small, observed=known).fit(PICTURES)
    whole = ImageFlow(**small).fit(np.ma.masked_array(PICTURES), np.ma.masked_array(labels.data))
    assert np.array_equal(whole.particles_, flow.fit(PICTURES, labels.data).particles_)
    assert type(whole.particle_conditions_) is np.ndarray


def test_pixels_that_are_to_be_completed_may_be_masked_and_others_not():
    flow = ImageFlow(**small, observed="top").fit(PICTURES)
    below = np.zeros(PICTURES.shape, bool)
    below[:, 2:] = True
    seen = flow.inpaint(np.ma.masked_array(PICTURES, mask=below), random_state=0)
    assert np.array_equal(seen[:, 0, :2], PICTURES[:, :2])
    assert np.array_equal(seen, flow.inpaint(np.where(below, 0, PICTURES), random_state=0))
    with pytest.raises(ValueError, match=r"a value of the pictures is masked at \[0, 0, 0\]"):
        flow.inpaint(np.ma.masked_array(PICTURES, mask=~below))


def test_pictures_of_long_doubles_are_read_as_doubles():
    images = np.random.default_rng(0).random((20, 4, 4)).astype(np.longdouble)
    flow = ImageFlow(quality=1, n_particles=30, random_state=0).fit(images)
    assert flow.particles_.dtype == np.float64
