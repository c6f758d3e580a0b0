"""Files of estimators: what is loaded is what was saved, for every kind of model."""

import os
import pickle
import random

import numpy as np
import pytest
import torch

import sliceflow
from models import (
    COLOURS,
    FITTED,
    LABELS,
    PARTS,
    PICTURES,
    X,
    draws,
    pictures,
    saved,
    vectors,
)
from mutations import change_tensors, change_text
from sliceflow import ModelFileError, SlicedWassersteinFlow
from sliceflow.models import file, limits

UNSAVED = {"device", "random_state", "verbose"}


@pytest.fixture(params=PARTS)
def kind(request):
    return request.param


def test_a_loaded_model_is_the_saved_one(kind, fitted, tmp_path):
    flow = fitted(kind)
    flow.save(tmp_path / "model", particles=True)
    loaded = sliceflow.load(tmp_path / "model", device="cpu")
    assert type(loaded) is type(flow)
    for name, value in flow.get_params().items():
        if name not in UNSAVED:
            assert getattr(loaded, name) == value, name
    assert loaded.plan_ == flow.plan_
    assert not loaded.plan_.seconds  # they depend on the number of threads
    assert loaded.n_iter_ == flow.n_iter_
    for name, column in loaded.history_.items():
        assert np.array_equal(column, flow.history_[name], equal_nan=name != "stage")
    assert np.array_equal(getattr(loaded, "classes_", 0), getattr(flow, "classes_", 0))
    assert np.array_equal(draws(loaded), draws(flow))
    assert np.array_equal(loaded.particles_, flow.particles_)
    assert np.array_equal(loaded.particle_conditions_, flow.particle_conditions_)
    assert saved(loaded, particles=True) == (tmp_path / "model").read_bytes()
    again = pickle.loads(pickle.dumps(flow))
    assert np.array_equal(draws(again), draws(flow))


def test_particles_are_left_out_unless_asked_for(tmp_path, fitted):
    for kind in ("labels", "grey labels"):
        fitted(kind).save(tmp_path / kind)
        loaded = sliceflow.load(tmp_path / kind)
        assert not hasattr(loaded, "particles_")
        with pytest.raises(
            AttributeError, match="particles_ is not in the file of this model"
        ):
            _ = loaded.particles_
        with pytest.raises(AttributeError, match="no attribute 'particle_'"):
            _ = loaded.particle_
        with pytest.raises(AttributeError, match="particles_ is not in"):
            loaded.save(tmp_path / "again", particles=True)
        assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    "kind", ["labels", "local", "per class", "grey labels", "masked", "colour"]
)
def test_a_loaded_model_can_be_fitted_again(kind, fitted, tmp_path):
    _, data = PARTS[kind]
    fitted(kind).save(tmp_path / "model")
    loaded = sliceflow.load(tmp_path / "model", device="cpu").set_params(random_state=3)
    assert loaded.fit(*data) is loaded
    assert saved(loaded, particles=True) == saved(fitted(kind), particles=True)


@pytest.mark.parametrize("kind", ["vectors", "labels", "grey", "grey labels", "colour"])
def test_rows_are_in_the_file_only_if_they_are_kept(kind, tmp_path):
    make, data = PARTS[kind]
    sizes = []
    for keep in (False, True):
        flow = make().set_params(keep_rows=keep).fit(*data)
        flow.save(tmp_path / "model")
        loaded = sliceflow.load(tmp_path / "model", device="cpu")
        assert (
            (loaded._model.rows is not None) == (flow._model.rows is not None) == keep
        )
        sizes.append((tmp_path / "model").stat().st_size)
    x, y = loaded._model.rows.in_users_form(torch.device("cpu"))
    assert np.array_equal(x, data[0])
    assert x.dtype == data[0].dtype
    assert y is None if len(data) == 1 else np.array_equal(y, data[1])
    assert sizes[0] < sizes[1]


def test_types_of_arrays_come_back(tmp_path):
    for given in (
        torch.from_numpy(X),
        torch.from_numpy(X).float(),
        X,
        X.astype(np.float32),
    ):
        flow = vectors(0, keep_rows=True).fit(given, LABELS)
        flow.save(tmp_path / "model", particles=True)
        loaded = sliceflow.load(tmp_path / "model", device="cpu")
        for out in (
            loaded.particles_,
            loaded.sample(3),
            loaded._model.rows.in_users_form("cpu")[0],
        ):
            assert type(out) is type(given)
            assert out.dtype == given.dtype
    for images in (torch.from_numpy(PICTURES), torch.from_numpy(COLOURS)):
        flow = pictures(schedule="1[1]", n_pixel_values=256).fit(images)
        flow.save(tmp_path / "model")
        assert isinstance(sliceflow.load(tmp_path / "model").sample(3), torch.Tensor)
    assert (
        vectors(0).fit(torch.from_numpy(X).bfloat16()).particles_.dtype == torch.float32
    )
    assert vectors(0).fit((10 * X).astype(int)).particles_.dtype == np.float64


QUICK = ("tuples", "local", "per class", "grey labels", "colour", "masked", "table")


@pytest.mark.parametrize(
    ("kind", "n"),
    [*((kind, 40) for kind in QUICK)]
    + [pytest.param(k, 150, marks=pytest.mark.slow) for k in FITTED],
)
def test_changed_files_are_refused_or_draw_numbers(
    kind, n, fitted, tmp_path, monkeypatch
):
    """A file may say anything: an error, or samples that are finite. 3,150 files in all."""
    path = tmp_path / "model"
    rng = random.Random(0)
    refused = 0
    fitted(kind).save(path)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    text, tensors = file.read(path)
    for i in range(n):
        changed = (
            (change_text(text, rng), tensors)
            if i % 2
            else (text, change_tensors(tensors, rng))
        )
        try:
            file.write(path, *changed)
            loaded = sliceflow.load(path, device="cpu")
            sampled = draws(loaded)
            if kind == "kept":
                loaded.inpaint(PICTURES[:2], "top", y=0, random_state=0)
        except ModelFileError:
            refused += 1
        else:
            assert kind == "table" or np.isfinite(sampled).all()
    assert refused > n / 4


def test_a_saved_precision_is_that_of_a_gpu(fitted, tmp_path):
    fitted("grey").save(tmp_path / "model")
    loaded = sliceflow.load(tmp_path / "model", device="cpu", precision="float32")
    assert loaded.options.precision == "float32"
    assert np.array_equal(draws(loaded), draws(fitted("grey")))
    fitted("vectors").save(tmp_path / "model")
    with pytest.raises(ValueError, match="precision='float32' applies to pictures"):
        sliceflow.load(tmp_path / "model", precision="float32")


@pytest.mark.gpu
def test_a_model_loaded_on_a_gpu_draws_what_the_fitted_one_draws(kind, tmp_path):
    make, data = PARTS[kind]
    flow = make().set_params(device="cuda").fit(*data)
    flow.save(tmp_path / "model")
    assert np.array_equal(
        draws(sliceflow.load(tmp_path / "model", device="cuda")), draws(flow)
    )


def test_a_model_of_usual_fits_may_take_its_memory():
    """That of 9,000 faces takes 18 times its file. What zlib could make of a file is refused."""
    limits.Allowance(61_200_000).take(1_090_669_744)
    with pytest.raises(
        ValueError, match="if you trust the file, load it with max_memory="
    ):
        limits.Allowance(61_200_000).take(1_000 * 61_200_000)


def test_a_transport_of_the_users_own_cannot_be_saved(tmp_path):
    class Own:
        max_samples = None

        def fit(self, *args):
            return sliceflow.transports.Sorted().fit(*args)

    flow = SlicedWassersteinFlow(
        n_particles=50, n_steps=1, transport=Own(), random_state=0
    ).fit(X)
    assert np.isfinite(flow.sample(3)).all()
    with pytest.raises(ValueError, match="transport"):
        flow.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()
