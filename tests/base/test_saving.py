"""Files of estimators: what is loaded is what was saved, for every kind of model."""

import difflib
import inspect
import os
import pickle
import random

import msgspec
import numpy as np
import pandas as pd
import pytest
import torch

import sliceflow
from models import (
    COLORS,
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
from mutations import change_arrays, change_header
from sliceflow import (
    ImageFlow,
    ModelFileError,
    SlicedDensity,
    SlicedWassersteinFlow,
    TableFlow,
    TreeSettings,
)
from sliceflow.base import codec, file, memory_budget, saving
from sliceflow.errors import DataError

UNSAVED = {"device", "random_state", "verbose"}


@pytest.fixture(params=PARTS)
def kind(request):
    return request.param


def test_a_loaded_model_is_the_saved_one(kind, fitted, tmp_path):
    flow = fitted(kind)
    flow.save(tmp_path / "model", particles=True)
    loaded = sliceflow.load(tmp_path / "model", device="cpu")
    assert type(loaded) is type(flow)
    for name, value in flow.get_params(deep=False).items():
        if name not in UNSAVED:
            assert getattr(loaded, name) == value, name
    assert loaded.plan_ == flow.plan_
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


def test_no_saved_class_misspells_its_check():
    estimators = (SlicedWassersteinFlow, ImageFlow, TableFlow, SlicedDensity)
    for estimator in estimators:
        codec._saved_class(saving._file_types(estimator).estimator)
    n_checked = 0
    for cls in codec._SAVED_CLASSES:
        methods = [name for name in dir(cls) if callable(getattr(cls, name))]
        similar = difflib.get_close_matches("check_saved", methods, cutoff=0.8)
        assert similar in ([], ["check_saved"]), cls
        if similar:
            assert len(inspect.signature(cls.check_saved).parameters) == 1, cls
            n_checked += 1
    assert n_checked >= 10


def test_particles_are_left_out_unless_asked_for(tmp_path, fitted):
    for kind in ("labels", "gray labels"):
        fitted(kind).save(tmp_path / kind)
        loaded = sliceflow.load(tmp_path / kind)
        assert not hasattr(loaded, "particles_")
        with pytest.raises(
            AttributeError, match="particles_ is not in the file of this model"
        ):
            _ = loaded.particles_
        with pytest.raises(AttributeError, match="no attribute 'particle_'"):
            _ = loaded.particle_
        with pytest.raises(DataError, match="has no particles") as caught:
            loaded.save(tmp_path / "again", particles=True)
        assert caught.value.hint.startswith("save without particles, or fit again")
        assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    "kind", ["labels", "local", "per class", "gray labels", "masked", "color"]
)
def test_a_loaded_model_can_be_fitted_again(kind, fitted, tmp_path):
    _, data = PARTS[kind]
    fitted(kind).save(tmp_path / "model")
    loaded = sliceflow.load(tmp_path / "model", device="cpu").set_params(random_state=3)
    assert loaded.fit(*data) is loaded
    assert saved(loaded, particles=True) == saved(fitted(kind), particles=True)


@pytest.mark.parametrize("kind", ["vectors", "labels", "gray", "gray labels", "color"])
def test_rows_are_in_the_file_only_if_they_are_kept(kind, tmp_path):
    make, data = PARTS[kind]
    sizes = []
    for keep in (False, True):
        flow = make().set_params(save_rows=keep).fit(*data)
        flow.save(tmp_path / "model")
        loaded = sliceflow.load(tmp_path / "model", device="cpu")
        assert flow._record.rows is not None  # in memory, for partial_fit
        assert (loaded._record.rows is not None) == keep
        sizes.append((tmp_path / "model").stat().st_size)
    x, y = loaded._record.rows.user_X_and_y(torch.device("cpu"))
    assert np.array_equal(x, data[0])
    assert x.dtype == data[0].dtype
    assert y is None if len(data) == 1 else np.array_equal(y, data[1])
    assert sizes[0] < sizes[1]


def test_types_of_arrays_come_back(tmp_path):
    for data in (
        torch.from_numpy(X),
        torch.from_numpy(X).float(),
        X,
        X.astype(np.float32),
    ):
        flow = vectors(0, save_rows=True).fit(data, LABELS)
        flow.save(tmp_path / "model", particles=True)
        loaded = sliceflow.load(tmp_path / "model", device="cpu")
        kept_rows, _ = loaded._record.rows.user_X_and_y("cpu")
        for rows in (loaded.particles_, loaded.sample(3), kept_rows):
            assert type(rows) is type(data)
            assert rows.dtype == data.dtype
    for images in (torch.from_numpy(PICTURES), torch.from_numpy(COLORS)):
        flow = pictures(schedule="1[1]", n_pixel_values=256).fit(images)
        flow.save(tmp_path / "model")
        assert isinstance(sliceflow.load(tmp_path / "model").sample(3), torch.Tensor)
    flow = vectors(0).fit(torch.from_numpy(X).bfloat16())
    assert flow.particles_.dtype == torch.float32
    flow = vectors(0).fit((10 * X).astype(int))
    assert flow.particles_.dtype == np.float64


@pytest.mark.parametrize(
    "tree_settings", [None, (5, 2.0), (5, 2.0, 0), TreeSettings(5, 2.0)]
)
def test_every_form_of_tree_settings_is_saved(tree_settings, tmp_path):
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 0] > 0})
    flow = TableFlow(tree_settings=tree_settings, random_state=0).fit(frame)
    flow.save(tmp_path / "model")
    loaded = sliceflow.load(tmp_path / "model")
    assert loaded.tree_settings == tree_settings
    pd.testing.assert_frame_equal(
        loaded.sample(9, random_state=0), flow.sample(9, random_state=0)
    )


def test_seeds_of_any_size_are_saved(tmp_path):
    flow = vectors(random_state=1 << 100).fit(X)
    flow.save(tmp_path / "model")
    assert sliceflow.load(tmp_path / "model")._record.seed == flow._record.seed


QUICK_KINDS = (
    "tuples",
    "local",
    "per class",
    "gray labels",
    "color",
    "masked",
    "table",
)
SLOW_KINDS = [pytest.param(kind, 150, marks=pytest.mark.slow) for kind in FITTED]


@pytest.mark.parametrize(
    ("kind", "n"), [*((kind, 40) for kind in QUICK_KINDS), *SLOW_KINDS]
)
def test_changed_files_are_refused_or_draw_numbers(
    kind, n, fitted, tmp_path, monkeypatch
):
    """A file may say anything: an error, or finite samples. 3,280 files in all."""
    path = tmp_path / "model"
    rng = random.Random(0)
    n_refused = 0
    fitted(kind).save(path)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    content = path.read_bytes()
    kind_name, header, arrays = file.parse(
        content, memory_budget.MemoryBudget(len(content))
    )
    for i in range(n):
        if i % 2:
            tree = change_header(msgspec.msgpack.decode(header), rng)
            file.write(path, kind_name, msgspec.msgpack.encode(tree), arrays)
        else:
            file.write(path, kind_name, header, change_arrays(arrays, rng))
        try:
            loaded = sliceflow.load(path, device="cpu")
        except ModelFileError:
            n_refused += 1
            continue
        samples = draws(loaded)
        assert kind == "table" or np.isfinite(samples).all()
        if kind == "kept":
            loaded.inpaint(PICTURES[:2], "top", y=0, random_state=0)
    assert n_refused > n / 4


def test_a_saved_precision_is_that_of_a_gpu(fitted, tmp_path):
    fitted("gray").save(tmp_path / "model")
    loaded = sliceflow.load(tmp_path / "model", device="cpu", precision="float32")
    assert loaded.plan_.options.precision == "float32"
    assert np.array_equal(draws(loaded), draws(fitted("gray")))
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
    """That of 9,000 faces takes 18 times its file. A bomb takes far more."""
    memory_budget.MemoryBudget(61_200_000).take(1_090_669_744)
    with pytest.raises(
        ValueError, match="if you trust the file, load it with max_memory="
    ):
        memory_budget.MemoryBudget(61_200_000).take(1_000 * 61_200_000)


def test_an_estimator_of_the_users_own_class_cannot_be_saved(tmp_path):
    """`load` could not open the file: it knows the classes of this package only."""

    class OwnFlow(SlicedWassersteinFlow):
        pass

    flow = OwnFlow(n_steps=1, n_particles=50, device="cpu").fit(X)
    with pytest.raises(ValueError, match="OwnFlow is a class of your own"):
        flow.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_transport_of_the_users_own_cannot_be_saved(tmp_path):
    class Own:
        batch_size = None

        def solve(self, *args):
            return sliceflow.transports.SortedTransport().solve(*args)

    flow = SlicedWassersteinFlow(
        n_particles=50, n_steps=1, transport=Own(), random_state=0
    ).fit(X)
    assert np.isfinite(flow.sample(3)).all()
    with pytest.raises(ValueError, match="transport"):
        flow.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()
