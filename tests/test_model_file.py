"""Saved flows: what comes out of a file is what went in, and a damaged file is a clear error."""

import json
import math
import os
import random
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from sklearn.datasets import load_digits

import sliceflow
from models import DIGIT_LABELS, DIGITS, FITTED, PICTURES, RNG, X, parts, pictures, vectors
from sliceflow import (
    ImageFlow,
    ModelFileError,
    PictureOptions,
    SlicedWassersteinFlow,
    VectorOptions,
    load,
)
from sliceflow.engine.frames import Orthogonal, Random
from sliceflow.engine.transports import Auto, Histogram, Sorted
from sliceflow.models import file as container
from sliceflow.models.saved import FORMAT, OLDEST

DATA = Path(__file__).parent / "data"
LABELS = {
    "ints": np.arange(60) % 3,
    "small ints": (np.arange(60) % 3).astype(np.int8),
    "strings": np.array(["cat", "dog", "a longer name"])[np.arange(60) % 3],
    "bools": np.arange(60) % 2 == 0,
    "floats": (np.arange(60) % 3).astype(np.float32),
    "tuples": [("a", i % 3, None) for i in range(60)],
    "mixed": [("a", 1), "b", 2.0, True][:3] * 20,
    "bytes": np.array([b"x", b"y"])[np.arange(60) % 2],
    "dates": np.array(["2024-01-01", "2024-01-02"], dtype="datetime64[D]")[np.arange(60) % 2],
    "surrogates": np.array(["\ud800", "é"], dtype=object)[np.arange(60) % 2],
}


def again(flow, path, **options):
    flow.save(path, **options)
    return load(path, device="cpu")


def same(a, b):
    assert type(a) is type(b)
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert bool((a == b).all())


# What comes out


@settings(max_examples=12)
@given(
    frame=st.sampled_from(["orthogonal", "random", "axis", Random(7, fixed=True), Orthogonal()]),
    transport=st.sampled_from(
        ["auto", "sorted", "histogram", Histogram(8, most=50), Sorted(40), Auto(9)]
    ),
    condition=st.sampled_from(["none", "labels", "columns"]),
    dtype=st.sampled_from([np.float32, np.float64]),
    entropy=st.sampled_from([0.0, 0.01]),
    amplifier=st.sampled_from([0.0, 10.0]),
    standardize=st.booleans(),
    particles=st.booleans(),
)
def test_vectors_sample_the_same_bits_after_saving(
    tmp_path_factory,
    frame,
    transport,
    condition,
    dtype,
    entropy,
    amplifier,
    standardize,
    particles,
):
    y = {"none": None, "labels": LABELS["ints"], "columns": X[:, :2] * 3 + 1}[condition]
    flow = vectors(
        frame=frame,
        transport=transport,
        entropy=entropy,
        amplifier=amplifier,
        standardize=standardize,
    ).fit(X.astype(dtype), y)
    loaded = again(flow, tmp_path_factory.getbasetemp() / "vectors.sliceflow", particles=particles)
    assert loaded.get_params() == flow.get_params()
    same(loaded.sample(70, random_state=1), flow.sample(70, random_state=1))
    given_y = {"none": None, "labels": 1, "columns": [0.5, -0.5]}[condition]
    same(loaded.sample(20, given_y, random_state=1), flow.sample(20, given_y, random_state=1))
    assert loaded.history_ == flow.history_
    assert loaded.n_iter_ == flow.n_iter_
    assert loaded.n_features_in_ == 3
    if particles:
        same(loaded.particles_, flow.particles_)
        assert np.array_equal(loaded.particle_conditions_, flow.particle_conditions_)


@pytest.mark.filterwarnings("error")
def test_parameters_may_be_numbers_of_numpy(tmp_path):
    numbers = dict(n_particles=np.int64(60), n_pixel_values=PICTURES.max() + 1, quality=np.int32(2))
    numbers |= dict(mirror=np.bool_(True), n_clusters=np.int64(1), transport=Histogram(np.int64(8)))
    options = PictureOptions(n_knots=np.int64(16), taper=np.float32(0.5))
    drawn = ImageFlow(**numbers, options=options).fit(PICTURES)
    frame = Random(np.int64(5))
    rows = SlicedWassersteinFlow(
        np.int64(60), np.int64(3), frame, options=VectorOptions(taper=np.float32(0.5))
    ).fit(X)
    for flow in (drawn, rows):
        loaded = again(flow, tmp_path / "flow.sliceflow")
        same(loaded.sample(9, random_state=1), flow.sample(9, random_state=1))


@settings(max_examples=20)
@given(
    condition=st.sampled_from(["none", "labels", "top", "mask", "nothing observed"]),
    transport=st.sampled_from(["auto", "sorted", "histogram", Histogram(8, most=50)]),
    layout=st.sampled_from(["grey", "colour", "floats", "tensor"]),
    upsampling=st.sampled_from(["lanczos", "bilinear", "nearest"]),
    clip=st.booleans(),
    mirror=st.booleans(),
)
def test_pictures_sample_the_same_bits_after_saving(
    tmp_path_factory, condition, transport, layout, upsampling, clip, mirror
):
    images = {
        "grey": PICTURES,
        "colour": np.stack([PICTURES] * 3, axis=3),
        "floats": (PICTURES / 16).astype(np.float32),
        "tensor": torch.from_numpy(PICTURES),
    }[layout]
    mask = np.arange(20).reshape(5, 4) % 3 == 0
    observed = {"top": "top", "mask": mask, "nothing observed": np.zeros((5, 4), bool)}.get(condition)
    labels = np.array(["even", "odd"])[np.arange(50) % 2] if condition == "labels" else None
    flow = pictures(
        transport=transport,
        options=PictureOptions(n_knots=16, upsampling=upsampling, clip=clip),
        mirror=mirror,
        observed=observed,
    ).fit(images, labels)
    loaded = again(flow, tmp_path_factory.getbasetemp() / "pictures.sliceflow", particles=True)
    if condition != "nothing observed" and observed is not None:
        same(
            loaded.inpaint(images[:4], 3, random_state=1),
            flow.inpaint(images[:4], 3, random_state=1),
        )
    else:
        same(loaded.sample(30, random_state=1), flow.sample(30, random_state=1))
    if labels is not None:
        same(loaded.sample(9, "odd", random_state=1), flow.sample(9, "odd", random_state=1))
    same(loaded.particles_, flow.particles_)
    assert np.array_equal(loaded.particle_conditions_, flow.particle_conditions_)
    assert loaded.schedule_ == flow.schedule_
    assert loaded.history_ == flow.history_
    assert np.array_equal(loaded.observed, observed)


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_every_kind_come_back(tmp_path, kind):
    y = LABELS[kind]
    flow = vectors().fit(X, y)
    loaded = again(flow, tmp_path / "m", particles=True)
    assert loaded.classes_.dtype == flow.classes_.dtype
    assert loaded.classes_.tolist() == flow.classes_.tolist()
    assert [type(v) for v in loaded.classes_.tolist()] == [type(v) for v in flow.classes_.tolist()]
    assert loaded.particle_conditions_.tolist() == flow.particle_conditions_.tolist()
    same(loaded.sample(40, random_state=1), flow.sample(40, random_state=1))
    same(loaded.sample(3, y[0], random_state=1), flow.sample(3, y[0], random_state=1))
    with pytest.raises(ValueError, match="unknown label 'never'"):
        loaded.sample(2, "never")


def test_a_label_that_json_cannot_write_is_refused(tmp_path):
    y = np.empty(60, dtype=object)
    y[:] = [frozenset({i % 2}) for i in range(60)]
    flow = vectors().fit(X, y)
    with pytest.raises(ValueError, match=r"is a frozenset, which a file cannot store; use strings"):
        flow.save(tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_tensors_and_names_of_columns_come_back(tmp_path):
    flow = vectors().fit(torch.from_numpy(X).float())
    loaded = again(flow, tmp_path / "m", particles=True)
    same(loaded.sample(5, random_state=1), flow.sample(5, random_state=1))
    same(loaded.particles_, flow.particles_)
    flow.fit(pd.DataFrame(X, columns=["a", "b", "ç"]))
    assert again(flow, tmp_path / "m").feature_names_in_.tolist() == ["a", "b", "ç"]


def test_a_stage_that_a_listener_ended_is_kept_as_it_is(tmp_path):
    def stop(event):
        return event.stage_index == 0 and event.step == 1

    flow = vectors().fit(X, listeners=(stop,))
    loaded = again(flow, tmp_path / "m")
    assert loaded.history_["stage"] == ["flow", "flow", "axis", "axis"]
    same(loaded.sample(9, random_state=1), flow.sample(9, random_state=1))
    flow = pictures().fit(PICTURES, listeners=(lambda e: e.stage_index == 1,))
    same(again(flow, tmp_path / "m").sample(9, random_state=1), flow.sample(9, random_state=1))


def test_a_flow_of_no_steps_is_a_model_too(tmp_path):
    flow = vectors(n_axis_steps=0, n_steps=0).fit(X)
    same(again(flow, tmp_path / "m").sample(9, random_state=1), flow.sample(9, random_state=1))


def test_saving_what_was_loaded_gives_the_same_file(tmp_path):
    for flow in (
        vectors().fit(X, LABELS["tuples"]),
        pictures(observed="left").fit(PICTURES),
    ):
        again(flow, tmp_path / "a", particles=True).save(tmp_path / "b", particles=True)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_particles_are_left_out_unless_asked_for(tmp_path):
    flow = vectors().fit(X)
    loaded = again(flow, tmp_path / "m")
    assert not hasattr(loaded, "particles_")
    with pytest.raises(
        AttributeError, match=r"particles_ is not in .*m, .*sample\(\), or save with parti"
    ):
        loaded.particles_  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'particle'"):
        loaded.particle  # noqa: B018
    with pytest.raises(AttributeError, match="particles_ is not in"):
        loaded.save(tmp_path / "n", particles=True)
    assert loaded.fit(X).particles_.shape == (80, 3)


def test_a_loaded_model_can_be_fitted_again(tmp_path):
    flow = vectors().fit(X)
    same(again(flow, tmp_path / "m").fit(X).particles_, flow.particles_)


class OwnTransport(Sorted):
    pass


class OwnFrame(Orthogonal):
    pass


class OwnTable:
    def displace(self, z):
        return torch.zeros_like(z)

    def thin(self, n_knots):
        return self


class OwnTables(Sorted):
    def fit(self, z_p, z_q, weights=None):
        return super().fit(z_p, z_q, weights)._replace(table=OwnTable())


def test_a_transport_of_the_users_own_is_forgotten_and_a_frame_is_refused(tmp_path):
    flow = vectors(transport=OwnTransport()).fit(X)
    loaded = again(flow, tmp_path / "m")
    assert loaded.transport == "auto"
    same(loaded.sample(9, random_state=1), flow.sample(9, random_state=1))
    flow = vectors(frame=OwnFrame()).fit(X)
    with pytest.raises(
        ValueError, match=r"^frame=OwnFrame\(\) cannot be saved: .* Random, Orthogonal, Ax"
    ):
        flow.save(tmp_path / "n")
    flow = vectors(n_axis_steps=0, transport=OwnTables()).fit(X)
    with pytest.raises(ValueError, match=r"^a OwnTable cannot be saved"):
        flow.save(tmp_path / "n")


def test_what_is_not_fitted_or_keeps_no_maps_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="not fitted yet"):
        SlicedWassersteinFlow().save(tmp_path / "m")
    with pytest.raises(ValueError, match="n_knots=0, which keeps no maps"):
        pictures(n_knots=0).fit(PICTURES).save(tmp_path / "m")


def test_the_file_is_safetensors_with_one_json_text(tmp_path):
    pictures().fit(PICTURES).save(tmp_path / "m")
    with safe_open(tmp_path / "m", framework="np") as file:
        text = json.loads(file.metadata()["sliceflow"])
        assert file.get_tensor("tables.0.0.knots").shape == (2, 128)
    assert text["format"] == FORMAT
    assert text["library"] == sliceflow.__version__
    assert text["estimator"] == "ImageFlow"
    assert [(stage["h"], stage["patch"]) for stage in text["schedule"]] == [(1, 1), (3, 2), (5, 3)]


def test_the_precision_of_products_is_the_loading_devices_own(tmp_path):
    flow = pictures(options=PictureOptions(precision="float16")).fit(PICTURES)
    loaded = again(flow, tmp_path / "m")
    assert loaded.options.precision == "float16"
    assert loaded._fitted.levels.precision is None  # a CPU has float32 only
    same(loaded.sample(9, random_state=1), flow.sample(9, random_state=1))
    other = load(tmp_path / "m", device="cpu", precision="float32")
    assert (other.options.precision, other._fitted.levels.precision) == ("float32", None)
    same(other.sample(9, random_state=1), flow.sample(9, random_state=1))
    with pytest.raises(ValueError, match="precision='float8'"):
        load(tmp_path / "m", device="cpu", precision="float8")
    vectors().fit(X).save(tmp_path / "v")
    with pytest.raises(ValueError, match="applies to pictures"):
        load(tmp_path / "v", device="cpu", precision="float32")


@pytest.mark.gpu
def test_what_was_fitted_on_a_gpu_samples_on_a_cpu_and_back(tmp_path):
    flow = vectors(device="cuda").fit(X, LABELS["ints"])
    flow.save(tmp_path / "m")
    wanted = flow.sample(50, 1, random_state=0)
    same(load(tmp_path / "m", device="cuda").sample(50, 1, random_state=0), wanted)
    assert (
        np.abs(load(tmp_path / "m", device="cpu").sample(50, 1, random_state=0) - wanted).max() < 1e-6
    )
    flow = pictures(device="cuda").fit(PICTURES)
    flow.save(tmp_path / "m")
    wanted = flow.sample(50, random_state=0)
    same(load(tmp_path / "m", device="cuda").sample(50, random_state=0), wanted)
    other = load(tmp_path / "m", device="cpu").sample(50, random_state=0)
    assert np.abs(other.astype(int) - wanted).mean() < 0.1


@pytest.mark.gpu
@pytest.mark.parametrize("n", [40, 500, 3000])
@pytest.mark.parametrize("patch_basis", ["pixels", "cosines"])
def test_a_gpus_model_of_classes_and_large_tiles_samples_on_a_cpu(tmp_path, patch_basis, n):
    """Rotations out of the pool and not, filled up and not (4[4]), maps for each class, few knots."""
    digits = load_digits()
    images, labels = digits.images.astype(np.uint8), digits.target
    options = dict(n_pixel_values=17, amplifier=math.inf, transport="histogram", random_state=0)
    options["patch_basis"] = patch_basis
    flow = ImageFlow("2[2] 4[4] 5[5] 8[8,7,5,4]", 6000, 8, **options, device="cuda")
    flow.fit(images, labels).save(tmp_path / "m")
    assert flow._fitted.levels.apart == 10
    asked = np.random.default_rng(0).integers(0, 10, n)
    wanted = flow.sample(n, asked, random_state=0)
    same(load(tmp_path / "m", device="cuda").sample(n, asked, random_state=0), wanted)
    other = load(tmp_path / "m", device="cpu").sample(n, asked, random_state=0).astype(int)
    unlike = np.abs(np.roll(other, 1, axis=0) - wanted).mean()
    assert np.abs(other - wanted).mean() < 0.1 * unlike
    exact = load(tmp_path / "m", device="cuda", precision="float32")
    assert np.abs(exact.sample(n, asked, random_state=0) - other).mean() < 0.01 * unlike


# Everything that `pip install sliceflow` does not bring.
ALONE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {others}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
import sliceflow
assert sliceflow.__file__.startswith(sys.argv[1]), sliceflow.__file__
for path, label in (("rows", "dog"), ("digits", 7)):
    flow = sliceflow.load(path, device="cpu")
    print(flow.sample(20, label, random_state=0).tobytes().hex())
"""


def test_another_process_with_nothing_but_the_library_samples_the_same(tmp_path):
    """As the wheel has it: the package's folder alone, away from this repository."""
    rows = vectors().fit(X, LABELS["strings"])
    digits = ImageFlow("1[1] 4[3] 8[5]", 300, 2, transport="histogram", random_state=0, device="cpu")
    digits.set_params(n_pixel_values=17).fit(DIGITS, DIGIT_LABELS)
    rows.save(tmp_path / "rows")
    digits.save(tmp_path / "digits")
    site = tmp_path / "site"
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(sliceflow.__file__).parent, site / "sliceflow", ignore=skip)
    others = {"PIL", "matplotlib", "tqdm", "rich", "typer", "pandas", "pytest", "hypothesis", "ot"}
    ran = subprocess.run(
        [sys.executable, "-c", ALONE.format(others=others), site],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
    )
    assert ran.returncode == 0, ran.stderr
    wanted = rows.sample(20, "dog", random_state=0), digits.sample(20, 7, random_state=0)
    assert ran.stdout.split() == [samples.tobytes().hex() for samples in wanted]


# Files of earlier formats


@pytest.mark.parametrize("path", sorted(DATA.glob("*.sliceflow")), ids=lambda path: path.name)
def test_files_of_every_format_still_sample_what_they_did(path):
    """Made by tests/data/make.py; a change of the frames' numbers would show here."""
    flow = load(path, device="cpu")
    recorded = json.loads(path.with_suffix(".json").read_text())
    if "inpaint" in recorded:
        images = np.array(recorded["pictures"], dtype=np.uint8)
        samples = flow.inpaint(images, 2, random_state=0)
        assert np.abs(samples.astype(int) - np.array(recorded["inpaint"])).max() <= 1
    else:
        for y, wanted in zip(recorded["y"], recorded["samples"], strict=True):
            samples = flow.sample(4, y, random_state=0).astype(float)
            tolerance = 1 if isinstance(flow, ImageFlow) else 1e-4
            assert np.abs(samples - np.array(wanted)).max() <= tolerance
    assert path.stat().st_size < 60_000


@pytest.mark.parametrize("path", sorted(DATA.glob("*.sliceflow")), ids=lambda path: path.name)
def test_files_of_every_format_are_saved_in_the_newest_with_the_same_maps(path, tmp_path):
    flow = load(path, device="cpu")
    flow.save(tmp_path / "m")
    again = load(tmp_path / "m", device="cpu")
    models = [[f._fitted.steps] for f in (flow, again)]
    for a, b in zip(*([s for steps in model for s in steps] for model in models), strict=True):
        for name, kept in vars(a.table).items():
            other = getattr(b.table, name)
            assert torch.equal(kept, other) if isinstance(kept, torch.Tensor) else kept == other


def test_there_is_a_file_of_every_format_for_every_kind_of_model():
    names = {path.name for path in DATA.glob("*.sliceflow")}
    kinds = ("vectors", "pictures", "inpainting", "classes", "bends")
    assert names >= {f"{kind}-{n}.sliceflow" for kind in kinds for n in range(OLDEST, FORMAT + 1)}
    local = ("local", "mixed")
    assert names >= {f"{kind}-{n}.sliceflow" for kind in local for n in range(8, FORMAT + 1)}


def test_local_conditions_of_format_8_are_as_they_were_after_saving_again_and_grow(tmp_path):
    old = load(DATA / "local-8.sliceflow", device="cpu")
    old.save(tmp_path / "m")
    again = load(tmp_path / "m", device="cpu")
    assert [flow._fitted.local.near[0].view for flow in (old, again)] == [None, None]
    samples = [flow.sample(50, [0.1, 0.2], random_state=0) for flow in (old, again)]
    assert np.abs(samples[0] - samples[1]).max() < 1e-12
    again.partial_fit(np.zeros((3, 2)), np.zeros((3, 2)))
    assert len(again._fitted.local.x) == 203


# Writing


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "m"
    flow = vectors().fit(X)
    flow.save(path)
    before = path.read_bytes()
    flow.fit(X + 1)

    def full(_):
        raise OSError(28, "No space left on device")

    for broken in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, broken, full if broken == "fsync" else lambda *_: full(0))
            with pytest.raises(OSError, match="No space left"):
                flow.save(path)
        assert path.read_bytes() == before
        assert [p.name for p in tmp_path.iterdir()] == ["m"]
    flow.save(path)
    assert path.read_bytes() != before


def test_a_write_that_stops_halfway_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "m"
    flow = vectors().fit(X)
    flow.save(path)
    before = path.read_bytes()
    real, left = container._bytes, [0]

    def stops(t):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return real(t)

    calls = range(2 * len(parts(path).tensors))
    monkeypatch.setattr(container, "_bytes", stops)
    for count in calls:  # once for the checksum, once for the file
        left[0] = count
        with pytest.raises(OSError, match="No space left"):
            flow.save(path)
        assert path.read_bytes() == before
        assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_saving_into_a_folder_or_nowhere_says_so(tmp_path):
    flow = vectors().fit(X)
    with pytest.raises(IsADirectoryError, match="is a folder; give the name of a file"):
        flow.save(tmp_path)
    with pytest.raises(FileNotFoundError):
        flow.save(tmp_path / "not there" / "m")


@pytest.mark.skipif(os.name == "nt", reason="needs the rights and links of POSIX")
def test_a_saved_file_has_the_rights_of_any_new_file_and_links_are_followed(tmp_path):
    flow = vectors().fit(X)
    (tmp_path / "plain").touch()
    (tmp_path / "link").symlink_to(tmp_path / "m")
    flow.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("m", "plain")]
    assert modes[0] == modes[1]


def test_whose_label_it_was_is_not_in_the_file(tmp_path):
    y = np.array(["b", "a", "c"])[RNG.integers(0, 3, 60)]
    vectors().fit(X, y).save(tmp_path / "m")
    kept = parts(tmp_path / "m").tensors["codes"]
    assert kept.dtype == torch.int32
    assert kept.tolist() == sorted("abc".index(label) for label in y)


def test_what_was_read_does_not_change_with_the_file(tmp_path):
    path, before = tmp_path / "x", torch.arange(10_000)
    container.write(path, {}, {"t": before})
    _, tensors = container.read(path)
    with path.open("r+b") as file:
        file.seek(-before.nbytes, os.SEEK_END)
        file.write(bytes(before.nbytes))
    assert torch.equal(tensors["t"], before)


def test_tensors_are_aligned_in_the_file(tmp_path):
    for n in range(8):
        container.write(tmp_path / "x", {"a": "b" * n}, {"t": torch.arange(3), "u": torch.ones(1)})
        assert int.from_bytes((tmp_path / "x").read_bytes()[:8], "little") % 8 == 0


def test_a_distance_that_was_no_number_is_none_again(tmp_path):
    flow = vectors().fit(X)
    flow.history_["distance"][1] = math.nan
    flow.history_["distance"][2] = math.inf
    kept = again(flow, tmp_path / "m").history_["distance"]
    assert [math.isnan(v) for v in kept[:4]] == [False, True, True, False]


def test_another_precision_is_the_walks_own(tmp_path, monkeypatch):
    pictures().fit(PICTURES).save(tmp_path / "m")
    kinds = {"auto": torch.float16, "float32": torch.float32}  # as on a GPU
    for name, module in list(sys.modules.items()):
        if name.startswith("sliceflow.spaces.pictures.") and hasattr(module, "choose_operands"):
            monkeypatch.setattr(module, "choose_operands", lambda precision, device: kinds[precision])
    assert load(tmp_path / "m", device="cpu")._fitted.levels.precision == torch.float16
    exact = load(tmp_path / "m", device="cpu", precision="float32")
    assert exact._fitted.levels.precision == torch.float32


# Bad files


def test_codes_of_no_class_and_names_of_no_column_are_refused(tmp_path):
    path = tmp_path / "m"
    vectors().fit(pd.DataFrame(X, columns=list("abc")), LABELS["ints"]).save(path)
    good = parts(path)
    for wrong in (3, -1):
        codes = good.tensors["codes"].clone()
        codes[-1 if wrong > 0 else 0] = wrong
        container.write(path, good.text, good.tensors | {"codes": codes})
        refuses(path, "codes are not numbers of the classes")
    for names in (["a", "b"], list("abcd")):
        container.write(path, good.text | {"columns": names}, good.tensors)
        refuses(path, f"columns has {len(names)} names for 3 columns")


@pytest.fixture(scope="module", params=["tuples", "pictures", "bends", "inpainting", "classes"])
def model(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / f"{request.param}.sliceflow"
    FITTED[request.param]().save(path, particles=True)
    return path


def refuses(path, message="."):
    with pytest.raises(ModelFileError, match=message) as caught:
        load(path, device="cpu")
    assert str(path) in str(caught.value)


def test_a_file_cut_off_anywhere_is_refused(model, tmp_path):
    whole, cut = model.read_bytes(), tmp_path / "cut"
    for size in [*range(0, 40), *range(40, len(whole), len(whole) // 60), len(whole) - 1]:
        cut.write_bytes(whole[:size])
        refuses(cut)
    cut.write_bytes(whole + b"\0")
    refuses(cut)


def test_a_flipped_bit_anywhere_is_refused(model, tmp_path):
    whole, flipped = model.read_bytes(), tmp_path / "flipped"
    rng = random.Random(0)
    for _ in range(150):
        damaged, bit = bytearray(whole), rng.randrange(8 * len(whole))
        damaged[bit // 8] ^= 1 << bit % 8
        flipped.write_bytes(damaged)
        refuses(flipped)


def test_what_is_not_a_model_is_refused(tmp_path):
    refuses(tmp_path / "nowhere", "cannot be read: No such file")
    refuses(tmp_path, "is a folder without model.sliceflow; give the name of a file, or")
    (tmp_path / "empty").touch()
    refuses(tmp_path / "empty", "is not a sliceflow file, or was cut off: it has 0 bytes$")
    (tmp_path / "text").write_text("This is the story of a particle that wanted to be a digit.")
    refuses(tmp_path / "text", "is not a sliceflow file, or was cut off: it has 58 bytes")
    np.savez(tmp_path / "arrays.npz", x=X)
    refuses(tmp_path / "arrays.npz", "is not a sliceflow file")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        refuses(tmp_path / "pipe", "is not a file")
    from safetensors.torch import save_file

    save_file({"weights": torch.zeros(3)}, tmp_path / "other.safetensors")
    refuses(tmp_path / "other.safetensors", "was not written by sliceflow")


def test_an_unreadable_file_is_refused(model, tmp_path, monkeypatch):
    path = tmp_path / "secret"
    path.write_bytes(model.read_bytes())
    path.chmod(0)
    if os.access(path, os.R_OK):  # root reads everything

        def denied(*_):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(container, "open", denied, raising=False)
    refuses(path, "cannot be read: Permission denied")


def test_a_renamed_model_opens_under_any_name(model, tmp_path):
    path = tmp_path / "renamed.txt"
    path.write_bytes(model.read_bytes())
    assert load(path, device="cpu").n_iter_ > 0


def test_an_oversized_header_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "m"
    with path.open("wb") as file:
        file.write((1 << 40).to_bytes(8, "little"))
        file.truncate(1 << 20)
    refuses(path, "cut off")
    with path.open("wb") as file:  # sparse: it takes no room on the disk
        file.write((1 << 32).to_bytes(8, "little"))
        file.truncate(1 << 33)
    refuses(path, "has a header of 4294967296 bytes; at most 16777216 are allowed")


def test_a_newer_format_says_which_version_is_needed(model, tmp_path):
    old = parts(model)
    container.write(tmp_path / "m", {**old.text, "format": FORMAT + 1, "library": "9.1.0"}, old.tensors)
    refuses(
        tmp_path / "m",
        f"has format {FORMAT + 1}, by sliceflow 9.1.0; .* install sliceflow 9.1.0 or newer",
    )
    row = old.text["schedule"][0]["tables"][0]
    row["kind"] = "splines"
    container.write(tmp_path / "m", old.text, old.tensors)
    refuses(tmp_path / "m", "tables of kind 'splines'.* install a newer one")


def paths_of(value, path=()):
    """Every place in a JSON value."""
    yield path
    for key, inner in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield from paths_of(inner, (*path, key))


def changed(text, path, change):
    text = json.loads(json.dumps(text))
    at = text
    for key in path[:-1]:
        at = at[key]
    change(at, path[-1])
    return text


def nest(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


HOSTILE = [
    None,
    True,
    -1,
    0,
    2**40,
    2**70,
    10**400,
    0.5,
    -1e300,
    "",
    "x" * 300,
    [],
    {},
    [[]],
    [-1],
    nest(200),
]


def accepts_or_refuses(path):
    """A file may be good by chance; then it must be usable, else it is a ModelFileError."""
    try:
        flow = load(path, device="cpu")
    except ModelFileError:
        return None
    return flow


def test_wrong_values_anywhere_in_the_text_are_refused_or_harmless(model, tmp_path):
    """With a right checksum: the writer means it."""
    whole, path, rng = parts(model), tmp_path / "m", random.Random(1)
    places = [p for p in paths_of(whole.text) if p]
    for place in rng.sample(places, min(len(places), 80)):
        for value in rng.sample(HOSTILE, 3):
            text = changed(whole.text, place, lambda at, key, value=value: at.__setitem__(key, value))
            container.write(path, text, whole.tensors)
            accepts_or_refuses(path)
    for place in rng.sample(places, min(len(places), 150)):
        if isinstance(place[-1], str) and place[0] not in ("parameters",):
            text = changed(whole.text, place, lambda at, key: at.pop(key))
            container.write(path, text, whole.tensors)
            accepts_or_refuses(path)


@pytest.mark.parametrize("name", ["format", "estimator", "schedule", "history", "condition"])
def test_missing_fields_are_named(model, tmp_path, name):
    whole = parts(model)
    del whole.text[name]
    container.write(tmp_path / "m", whole.text, whole.tensors)
    refuses(tmp_path / "m", f"{name} is missing")


def test_wrong_tensors_are_refused(model, tmp_path):
    whole, path = parts(model), tmp_path / "m"
    for name, t in whole.tensors.items():
        for other in (
            None,
            t[:-1],
            t[:0],
            torch.cat((t, t[:1])),
            t[None],
            t.to(torch.int16),
            t.double() if t.dtype == torch.float32 else t.float(),
            torch.full_like(t, torch.nan) if t.is_floating_point() else None,
            -t if name.endswith((".knots", ".hi", "scale")) else None,
        ):
            tensors = {k: v for k, v in whole.tensors.items() if k != name}
            if other is not None:
                tensors[name] = other
            container.write(path, whole.text, tensors)
            if name in ("particles", "particle_conditions", "codes") and other is not None:
                accepts_or_refuses(path)  # fewer of them are possible
            elif name == "particles" or name == "particle_conditions":
                accepts_or_refuses(path)
            elif (
                name.endswith("values")
                and name.replace("values", "lo") in tensors
                and (other is not None and other.dtype == torch.float64)
            ):
                accepts_or_refuses(path)  # a grid's values may be of either type
            else:
                refuses(path)


def raw(path, words, checksum=None):
    """A file whose text is `words`, with the right checksum."""
    metadata = {"sliceflow": words, "blake2b": checksum or container._checksum(words, {})}
    head = json.dumps({"__metadata__": metadata}).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "null",
        "[]",
        '"text"',
        "{",
        '{"format": NaN}',
        '{"format": Infinity}',
        '{"format": 1e999}',
        '{"format": 1' + "0" * 5000 + "}",
        '{"format": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"a":' * 50_000 + "1" + "}" * 50_000,
        '{"format": true}',
        '{"format": "1"}',
        '{"format": 1, "estimator": "os.system"}',
        '{"format": 1, "estimator": "ImageFlow"}',
        '{"format": 1, "estimator": ["ImageFlow"]}',
        '{"format": 10, "library": {}}',
    ],
    ids=lambda words: words[:30],
)
def test_hostile_json_is_refused(tmp_path, words):
    raw(tmp_path / "m", words)
    refuses(tmp_path / "m")


def test_a_wrong_checksum_is_refused(tmp_path):
    raw(tmp_path / "m", "{}", "00")
    refuses(tmp_path / "m", "its checksum is wrong; copy or save it again")


def mutated(whole, rng):
    """The bytes with a few random changes: flipped, cut, repeated, replaced, or in the header alone."""
    out = bytearray(whole)
    head = int.from_bytes(whole[:8], "little")
    for _ in range(rng.choice((1, 1, 2, 5))):
        end = len(out) if rng.random() < 0.3 else min(len(out), 8 + head)
        at, kind = rng.randrange(max(1, end)), rng.randrange(5)
        size = rng.choice((1, 2, 8, 64))
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del out[at : at + size]
        elif kind == 2:
            out[at:at] = out[at : at + size]
        elif kind == 3:
            out[at : at + size] = rng.randbytes(size)
        else:
            out[at : at + 1] = rng.choice(
                (b"9", b"-", b"[", b"{", b"}", b'"', b"e9", b"0", b"\xff", b"NaN")
            )
        if not out:
            break
    return bytes(out)


def most_memory():
    """The most kB that this process has held; 0 where only Windows could say."""
    try:
        import resource
    except ImportError:
        return 0
    unit = 1024 if sys.platform == "darwin" else 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // unit


def fuzz(model, tmp_path, count):
    whole, path, rng = model.read_bytes(), tmp_path / "m", random.Random(2)
    wanted = load(model, device="cpu").history_
    peak = most_memory()
    for _ in range(count):
        path.write_bytes(mutated(whole, rng))
        if flow := accepts_or_refuses(path):
            assert flow.history_ == wanted
    assert most_memory() - peak < 100_000


def test_mutated_files_are_refused_and_nothing_else_happens(model, tmp_path):
    fuzz(model, tmp_path, 300)


@pytest.mark.slow
def test_ten_thousand_mutated_files_are_refused_and_nothing_else_happens(model, tmp_path):
    fuzz(model, tmp_path, 10_000)


def test_mutated_texts_with_a_right_checksum_are_refused_or_harmless(model, tmp_path):
    whole, path, rng = parts(model), tmp_path / "m", random.Random(3)
    words = json.dumps(whole.text)
    for _ in range(300):
        damaged = mutated(b"\0" * 8 + words.encode(), rng)[8:].decode("latin-1")
        try:
            text = json.loads(damaged)
            assert isinstance(text, dict)
            container.write(path, text, whole.tensors)
        except (ValueError, AssertionError):
            continue
        accepts_or_refuses(path)


def test_the_error_is_a_value_error_and_at_the_front_door():
    assert issubclass(ModelFileError, ValueError)
    assert re.search("load", " ".join(sliceflow.__all__))
