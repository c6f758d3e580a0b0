"""Small files, large costs: what a model will take is known before it is taken."""

import json
import random
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from models import FITTED, X, parts, vectors
from sliceflow import ModelFileError, load
from sliceflow.cli.run_folder import RunFolder
from sliceflow.models import file as container
from sliceflow.models.saved import RUN_FILE

KINDS = ("vectors", "floats", "columns", "counted", "max-sliced", "pictures", "bends", "inpainting")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The text and tensors of a small model of each kind."""
    folder, kept = tmp_path_factory.mktemp("models"), {}

    def copied(kind):
        if kind not in kept:
            FITTED[kind]().save(folder / kind)
            kept[kind] = parts(folder / kind)
        text, tensors = kept[kind]
        return json.loads(json.dumps(text)), dict(tensors)

    return copied


def peak():
    """The most memory of this process since it was last asked, in bytes, and at the moment.

    Both are 0 where there is no /proc.
    """
    if sys.platform != "linux":
        return 0, 0
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    now, most = (1024 * int(lines[name].split()[0]) for name in ("VmRSS", "VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return most, now


def opened(path, **options):
    """The flow or None if it is refused: within two seconds of a processor, and 500 MB."""
    assert path.stat().st_size < 10_000_000
    _, before = peak()
    began = time.process_time()
    try:
        flow = load(path, device="cpu", **options)
    except ModelFileError:
        flow = None
    assert time.process_time() - began < 2
    assert peak()[0] - before < 500e6
    return flow


def refused(path, message, **options):
    assert opened(path, **options) is None
    with pytest.raises(ModelFileError, match=message):
        load(path, device="cpu", **options)


# What compact maps of nothing take: numbers that zlib makes small


def nothing(h, knots):
    """The packed bytes of h maps of so many knots each, which move nothing."""
    inner = np.ones((knots - 2) * h, "u1").tobytes() + bytes((knots - 2) * h)
    whole = b"\1" + bytes(16 * h) + bytes([knots - 2]) * h + inner + bytes(2 * h * knots)
    return torch.frombuffer(bytearray(zlib.compress(whole, 1)), dtype=torch.uint8)


def group(steps, h, knots, bins=1024):
    return {
        "kind": "compact",
        "steps": list(range(steps)),
        "directions": [h] * steps,
        "exponents": [0] * steps,
        "bins": bins,
        "knots": steps * h * knots,
        "packing": 2,
        "type": "float32",
    }


def picture_file(saved, path, side, patch, channels=None, **about):
    """A model of pictures with one stage of one step."""
    text, tensors = saved("bends")
    text["pictures"] |= {"height": side, "width": side, "channels": channels}
    h = (channels or 1) * side * side
    stage = {"h": side, "w": side, "patch": patch, "n_steps": 1, "tables": [group(1, h, 2, **about)]}
    text["schedule"] = [stage]
    tensors = {n: t for n, t in tensors.items() if not n.startswith("tables")}
    container.write(path, text, tensors | {"tables.0.0.packed": nothing(h, 2)})


def vector_file(saved, path, d, steps=1, knots=2, frame=None, packed=None, **about):
    text, _ = saved("counted")
    stage = text["schedule"][0] | {"n_steps": steps, "tables": [group(steps, d, knots, **about)]}
    if frame is not None:
        stage["frame"] = frame
        stage["tables"] = [group(steps, frame.get("n_directions", d), knots, **about)]
    text["schedule"] = [stage]
    h = stage["tables"][0]["directions"][0]
    units = {"shift": torch.zeros(1, d).double(), "scale": torch.ones(1, d).double()}
    packed = nothing(steps * h, knots) if packed is None else packed
    container.write(path, text, units | {"tables.0.0.packed": packed})


def test_a_file_of_a_few_kilobytes_cannot_ask_for_gigabytes_when_it_is_sampled(saved, tmp_path):
    path = tmp_path / "m"
    picture_file(saved, path, 300, 300)
    assert path.stat().st_size < 12_000
    refused(path, r"drawing a sample of it takes [\d.e+]+ GB .*; if you trust the file, load it with")
    picture_file(saved, path, 300, 3, bins=65535)  # the grid of a step
    refused(path, r"drawing a sample of it takes 142 GB of memory, and a file of .* may take 1.07 GB;")
    picture_file(saved, path, 2000, 1)  # four million maps
    refused(path, r"its maps take 156 MB of memory, and a file of \d+(\.\d+)? kB may take 105 MB")
    vector_file(saved, path, 20_000)
    refused(path, "drawing a sample of it takes 90.1 GB of memory, and a file of 3")
    many = {"kind": "Random", "n_directions": 1_000_000, "fixed": False}
    vector_file(saved, path, 10_000, frame=many)
    refused(path, r"drawing a sample of it takes 3\d\d GB of memory")
    text, tensors = saved("pictures")
    text["condition"]["classes"] = list(range(600_000))  # directions of the condition
    text["condition"]["dtype"] = "<i8"
    container.write(path, text, tensors)
    assert opened(path) is not None  # 42 directions
    picture_file(saved, path, 100, 1)
    text["pictures"], text["schedule"] = (container.read(path)[0][n] for n in ("pictures", "schedule"))
    container.write(path, text, tensors | {"tables.0.0.packed": nothing(10_000, 2)})
    refused(path, r"drawing a sample of it takes 14\d GB of memory")


def test_models_that_can_be_had_are_had(saved, tmp_path):
    path = tmp_path / "m"
    picture_file(saved, path, 20, 20)
    assert opened(path).sample(1, random_state=0).shape == (1, 20, 20)
    vector_file(saved, path, 300, steps=3)
    assert opened(path).sample(2, random_state=0).shape == (2, 300)


def test_packed_maps_are_counted_before_they_are_unpacked(saved, tmp_path):
    path = tmp_path / "m"
    three_hundred_megabytes = torch.zeros(329_000, dtype=torch.uint8)  # for who believes the text
    vector_file(saved, path, 1000, steps=340, knots=257, packed=three_hundred_megabytes)
    assert path.stat().st_size < 400_000
    refused(path, "its maps take 535 MB of memory, and a file of 3.* kB may take 105 MB")
    vector_file(saved, path, 1000, steps=60, knots=257)  # almost as many as may be
    assert opened(path) is not None


def test_the_limit_can_be_raised_and_lowered(saved, tmp_path):
    path = tmp_path / "m"
    vector_file(saved, path, 1000, steps=70, knots=257)
    refused(path, "its maps take 110 MB of memory")
    assert load(path, device="cpu", max_memory=600_000_000).n_features_in_ == 1000
    vector_file(saved, path, 1000)
    refused(path, "its maps take 51.3 kB of memory, and max_memory is 10 kB;", max_memory=10_000)
    refused(path, "drawing a sample .* and max_memory is 130 MB;", max_memory=130_000_000)
    for wrong in (0, -1, 1.5, True, "1 GB"):
        with pytest.raises(ValueError, match=r"max_memory=.* must be None or bytes, an int"):
            load(path, device="cpu", max_memory=wrong)


def test_many_steps_stages_and_tensors_are_counted(saved, tmp_path):
    path = tmp_path / "m"
    vector_file(saved, path, 1, steps=400_000, packed=torch.zeros(9, dtype=torch.uint8))
    refused(path, "its maps take 1.65 GB of memory")
    vector_file(saved, path, 1, steps=10_000)
    assert len(opened(path)._fitted.steps) == 10_000
    text, tensors = saved("bends")
    whole = text["schedule"]
    empty = {"h": 1, "w": 1, "patch": 1, "n_steps": 1, "tables": []}
    text["schedule"] = [*whole, *[empty] * 30_000]
    container.write(path, text, tensors)
    refused(path, "its maps take 123 MB of memory")
    text["schedule"] = [*whole[:2], whole[2] | {"tables": [{}] * 200_000}]
    container.write(path, text, tensors)
    refused(path, "its maps take 819 MB of memory")
    text["schedule"] = whole
    with pytest.raises(ValueError, match="there are 10001 tensors, and a file may hold 10000"):
        container.write(path, text, {str(i): torch.zeros(0) for i in range(10_001)})


def test_a_file_of_very_many_tensors_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(container, "TENSORS_LIMIT", 1 << 40)
    container.write(tmp_path / "m", {}, {str(i): torch.zeros(0) for i in range(30_000)})
    monkeypatch.undo()
    refused(tmp_path / "m", "has 30000 tensors, and at most 10000 are allowed")


def test_steps_that_leave_others_out_are_refused(saved, tmp_path):
    """Frames are drawn in blocks of steps: a step here and there would cost a block each."""
    text, tensors = saved("bends")
    row = text["schedule"][2]
    row["n_steps"] = 1 << 40
    row["tables"][0]["steps"] = [0, 1 << 30]
    container.write(tmp_path / "m", text, tensors)
    refused(tmp_path / "m", "stage 2 has 2 steps, but step 1073741824 is one of them")
    row["tables"][0] |= {"steps": [], "directions": [], "exponents": [], "knots": 0}
    container.write(tmp_path / "m", text, tensors)
    refused(tmp_path / "m", "has 0 steps but 0 sizes")


@pytest.mark.parametrize("place", ["labels", "history", "columns", "path", "tuples"])
def test_long_texts_take_no_time(saved, tmp_path, place):
    text, tensors = saved("vectors")
    if place == "labels":
        text["condition"] |= {"dtype": "<i8", "classes": list(range(10**6))}
    elif place == "tuples":
        nested = [{"tuple": [i, {"tuple": [None, "a"]}]} for i in range(60_000)]
        text["condition"] |= {"dtype": "|O", "classes": nested}
    elif place == "history":
        text["history"] = {name: [0] * 900_000 for name in ("step", "distance", "seconds")}
        text["history"]["stage"] = [""] * 900_000
    elif place == "columns":
        text["columns"] = ["a"] * 1_500_000
    else:
        text["seeds"][0]["path"] = ["x" * 9_000_000]
    container.write(tmp_path / "m", text, tensors)
    opened(tmp_path / "m")


# Types and names that are none


@pytest.mark.parametrize(
    "dtype", ["f8,(", "(2,3)f8", "U9,U9", "V9", "<U" + "9" * 9, "c16", "M8[", "x" * 99]
)
def test_a_type_that_is_none_of_labels_is_refused(saved, tmp_path, dtype):
    text, tensors = saved("vectors")
    text["condition"]["dtype"] = dtype
    container.write(tmp_path / "m", text, tensors)
    refused(tmp_path / "m", "condition|data type")
    text, tensors = saved("pictures")
    text["pictures"]["dtype"] = dtype
    container.write(tmp_path / "m", text, tensors)
    refused(tmp_path / "m", "pictures.dtype is .*, which does not match n_pixel_values")


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_name_that_no_file_can_have_is_a_model_file_error(name):
    with pytest.raises(ModelFileError, match="cannot name a file"):
        load(name)


# Samples that would not be finite


def at(text, *path):
    for key in path[:-1]:
        text = text[key]
    return text, path[-1]


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("floats", {"scale": 1e37}),
        ("floats", {"shift": -1e39}),
        ("vectors", {"scale": 1e307}),
        ("vectors", {"shift": 1e308, "scale": 1e307}),
        ("floats", {("schedule", 0, "step_size"): 1e37}),
        ("vectors", {("schedule", 0, "step_size"): 1e299, "scale": 1e9}),
        ("vectors", {("schedule", 0, "step_size"): -1.0}),
        ("vectors", {("schedule", 1, "taper"): -0.5}),
        ("vectors", {("entropy",): -1.0}),
        ("floats", {("entropy",): 1e80}),
        ("columns", {("amplifier",): 1e299, "codes": 1e9}),
        ("vectors", {("amplifier",): -1.0}),
        ("pictures", {("amplifier",): 1e38}),
        ("pictures", {("start_noise",): 1e38}),
        ("pictures", {("start_noise",): -1.0}),
        ("pictures", {("taper",): 2.0}),
        ("pictures", {"tables.1.0.values": 1e36}),
        ("vectors", {"tables.1.0.values": 1e305, "scale": 1e3}),
    ],
    ids=str,
)
def test_what_would_make_samples_infinite_is_refused(saved, tmp_path, kind, change):
    text, tensors = saved(kind)
    for name, value in change.items():
        if isinstance(name, tuple):
            inner, key = at(text, *name)
            assert key in inner
            inner[key] = value
        else:
            tensors[name] = torch.full_like(tensors[name], value)
    container.write(tmp_path / "m", text, tensors)
    refused(tmp_path / "m", "may not stay finite|must be a finite number, at least 0")


@pytest.mark.parametrize("factor", [1.1, 1e30])
def test_fitted_directions_must_be_orthonormal(saved, tmp_path, factor):
    text, tensors = saved("max-sliced")
    name = next(name for name in tensors if name.endswith(".theta"))
    tensors[name] = factor * tensors[name]
    container.write(tmp_path / "m", text, tensors)
    with pytest.raises(ModelFileError, match="directions that are not orthonormal"):
        load(tmp_path / "m")


def test_fitted_directions_must_be_there(saved, tmp_path):
    text, tensors = saved("max-sliced")
    tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith(".theta")}
    container.write(tmp_path / "m", text, tensors)
    with pytest.raises(ModelFileError, match="does not have directions in 3 columns"):
        load(tmp_path / "m")


def test_large_units_are_no_harm(tmp_path):
    for scale, dtype in ((1e30, np.float32), (1e-30, np.float32), (1e150, np.float64)):
        flow = vectors().fit((X * scale).astype(dtype))
        flow.save(tmp_path / "m")
        samples = load(tmp_path / "m", device="cpu").sample(50, random_state=0)
        assert np.isfinite(samples).all()
        assert 0.5 < samples.astype(np.longdouble).std() / scale < 2


def test_what_could_not_be_loaded_is_not_saved(tmp_path):
    flow = vectors(standardize=False).fit(X)
    (part,) = flow._fitted.parts
    wide = replace(part, units=replace(part.units, scale=np.full(3, 1e307)))
    flow._fitted = replace(flow._fitted, parts=(wide,))
    with pytest.raises(ValueError, match=r"samples may not stay finite.*fit with rescaled columns"):
        flow.save(tmp_path / "m")
    assert not list(tmp_path.iterdir())


# Folders of runs


def test_the_folder_of_a_run_is_loaded_as_its_model(tmp_path):
    assert RUN_FILE in RunFolder.FILES
    flow = vectors().fit(X)
    with pytest.raises(ModelFileError, match=r"is a folder without model.sliceflow; .* has ended$"):
        load(tmp_path)
    flow.save(tmp_path / RUN_FILE)
    for name in (tmp_path, str(tmp_path), f"{tmp_path}/"):
        same = load(name, device="cpu").sample(9, random_state=1) == flow.sample(9, random_state=1)
        assert bool(same.all())
    with pytest.raises(AttributeError, match=r"particles_ is not in .*/model.sliceflow, "):
        load(tmp_path, device="cpu").particles_  # noqa: B018


# Files that mean it: wrong numbers anywhere, with a right checksum

NUMBERS = [0, 1, 2, 3, 7, -1, 0.5, -0.5, 1e-300, 1e38, -1e38, 1e299, 17, 255, 4096, 2**16, 2**31, 2**53]
NUMBERS += [2**63, 10**30, None, True, "", "f8,(", "inf", [], {}]


def places(value, path=()):
    """Every place of a JSON value, deepest first."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in inner:
        if isinstance(one, (dict, list)):
            yield from places(one, (*path, key))
        yield (*path, key)


def changed(text, tensors, rng):
    """A model with one to three changes: of numbers in its text, or of its tensors."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        if rng.random() < 0.3:
            name = rng.choice(list(tensors))
            t, kind = tensors[name].clone(), rng.randrange(4)
            if kind == 0:
                t = t[: rng.randrange(len(t) + 1)] if t.dim() else t
            elif kind == 1:
                t = torch.cat((t, t))
            elif kind == 2 and t.is_floating_point():
                t = t * 10.0 ** rng.choice((-300, -30, 30, 37, 300))
            elif t.numel():
                t.view(-1)[rng.randrange(t.numel())] = rng.choice((0, 1, 100))
            tensors[name] = t
            continue
        path = rng.choice([p for p in places(text) if p[0] != "history" or rng.random() < 0.02])
        inner, key = at(text, *path)
        was = inner[key]
        if isinstance(was, list) and was and rng.random() < 0.5:
            inner[key] = was * rng.choice((2, 3, 10_000 // len(was) + 1))
        elif isinstance(was, (int, float)) and not isinstance(was, bool) and rng.random() < 0.5:
            inner[key] = was * rng.choice((2, 10, 1000, 10**6)) + rng.choice((-1, 0, 1))
        else:
            inner[key] = rng.choice(NUMBERS)
    return text, tensors


def fuzz(saved, tmp_path, kind, count):
    rng, path, used = random.Random(kind), tmp_path / "m", 0
    for _ in range(count):
        try:
            container.write(path, *changed(*saved(kind), rng))
        except (ValueError, OverflowError):  # JSON has no infinity
            continue
        flow = opened(path, max_memory=100_000_000)
        if flow is None:
            continue
        used += 1
        before = peak()[1]
        with np.errstate(all="ignore"):
            if getattr(flow, "observed_", None) is not None:
                channels = flow.layout_.channels
                shape = (1, *flow.observed_.shape, *([channels] if channels else []))
                samples = flow.inpaint(np.zeros(shape, flow.layout_.dtype))
            else:
                samples = flow.sample(2, random_state=0)
        assert np.isfinite(np.asarray(samples)).all()
        assert peak()[0] - before < 200e6
    assert used > count // 50


@pytest.mark.parametrize("kind", KINDS)
def test_changed_models_are_refused_or_give_finite_samples(saved, tmp_path, kind):
    fuzz(saved, tmp_path, kind, 100)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_thousands_of_changed_models_are_refused_or_give_finite_samples(saved, tmp_path, kind):
    fuzz(saved, tmp_path, kind, 1500)
