"""Model files: whole or not at all, opened by many tools, and refused if anything is wrong."""

import json
import os
import random
import socket
import stat
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor

import sliceflow
from models import full_disk
from sliceflow.engine import conditions, frames, transports
from sliceflow.engine.compact import ModelStep, at_bends
from sliceflow.engine.flow import Flow
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.transports import GridMap, KnotMap
from sliceflow.fields import Array
from sliceflow.models import codec, file
from sliceflow.models.atomic import write_atomically
from sliceflow.models.file import ModelFileError, load, save
from sliceflow.models.limits import Allowance, check_steps
from sliceflow.models.saving import SavedHistory


@dataclass(frozen=True)
class Small:
    """Like a saved estimator."""

    seed: Seed
    frame: frames.SavedFrame
    transport: transports.SavedTransport
    model: tuple[ModelStep, ...]
    condition: conditions.Condition | None
    history: SavedHistory
    rows: Annotated[Tensor, Array("n d", torch.float64)]

    def check(self):
        flow = Flow([Stage("flow", self.frame, 8)], self.seed)
        check_steps(flow, self.model, lambda i, k: 5, self.rows.shape[1], torch.float32)

    def sample_bytes(self):
        return 1 << 20


def steps(n=8):
    """Maps of every kind, some of which move nothing."""
    rng = np.random.default_rng(0)
    knots, values = (
        torch.from_numpy(np.sort(rng.normal(size=(5, 6)))).float() for _ in range(2)
    )
    grid = torch.linspace(-1, 1, 41).repeat(5, 1)
    bent = grid + 0.2 * torch.sin(3 * grid) * (torch.arange(5) < 3)[:, None]
    whole = GridMap(
        torch.full((5,), -1.0).double(), torch.full((5,), 1.0).double(), bent
    )
    tables = [KnotMap(knots, values), whole, at_bends(whole, 9, 1.0)]
    theta = torch.eye(5, 7)
    return tuple(
        ModelStep(0, k, tables[k % 3], theta if k == 3 else None) for k in range(n)
    )


def small(**changes):
    stage = dict(stage=["flow"] * 8, step=list(range(8)), distance=[0.5] * 7 + [np.nan])
    whole = dict(
        seed=Seed(7, ("frame", 3)),
        frame=frames.Random(20),
        transport=transports.Histogram(64),
        model=steps(),
        condition=conditions.LabelCondition(np.array(["cat", "dog"])),
        history=SavedHistory(**stage, moving=[1.0] * 8),
        rows=torch.zeros(3, 7, dtype=torch.float64),
    )
    return Small(**whole | changes)


@pytest.fixture
def path(tmp_path):
    save(tmp_path / "x.sliceflow", small())
    return tmp_path / "x.sliceflow"


@pytest.mark.parametrize(
    ("dtype", "labels", "words"),
    [
        ("<i8", [1, 1], "not all 2 are distinct"),
        ("|O", [1.0, 1], "not all 2 are distinct"),
        ("|O", [], "there are no labels"),
        ("<U1", ["ab"], "labels that are not of dtype <U1"),
        ("<i8", [1.5], "labels that are not of dtype int64"),
        ("<i8", [True], "labels that are not of dtype int64"),
        ("<U1", "ab", "must be a list"),
        ("<U99999999", ["a"] * 9, "9 labels of dtype <U99999999"),
        ("<i8,<i8", [1], "is not a type of labels"),
    ],
)
def test_labels_that_are_not_distinct_or_of_their_type_are_refused(
    dtype, labels, words
):
    node = {"classes": {"dtype": dtype, "labels": labels}, "hidden": False}
    with pytest.raises(ValueError, match=words):
        codec.unpack(
            conditions.LabelCondition,
            {"value": node, "arrays": {}},
            {},
            Allowance(1000),
        )


def test_the_file_is_safetensors_with_one_json_text(path):
    with safe_open(path, "np") as opened:
        text = json.loads(opened.metadata()["sliceflow"])
        assert opened.get_tensor("rows").nbytes == 3 * 7 * 8
    assert (text["format"], text["library"], text["kind"]) == (
        1,
        sliceflow.__version__,
        "Small",
    )


def test_the_folder_of_a_run_is_loaded_as_its_model(tmp_path):
    with pytest.raises(ModelFileError, match=r"is a folder without model\.sliceflow"):
        load(tmp_path, (Small,))
    save(tmp_path / "model.sliceflow", small())
    assert load(tmp_path, (Small,)).seed == Seed(7, ("frame", 3))


# What is refused


class Own(frames.Orthogonal):
    """A frame of the user's own."""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            dict(frame=Own()),
            "frame is .*, which a file cannot hold; it holds Random, Orthogonal, Axis",
        ),
        (dict(model=steps()[1:]), "step 1 of stage 0 is out of order"),
        (
            dict(model=(ModelStep(0, 0, KnotMap(*torch.zeros(2, 4, 3))),)),
            "has 4 maps but needs 5",
        ),
        (
            dict(
                model=(
                    ModelStep(
                        0, 0, KnotMap(-torch.arange(15.0).view(5, 3), torch.ones(5, 3))
                    ),
                )
            ),
            "knots that do not ascend",
        ),
        (
            dict(
                model=(
                    ModelStep(
                        0, 0, KnotMap(torch.zeros(5, 1), torch.full((5, 1), 1e38))
                    ),
                )
            ),
            "its samples may not stay finite",
        ),
        (
            dict(model=(ModelStep(0, 0, steps()[0].map, 1.01 * torch.eye(5, 7)),)),
            "not orthonormal",
        ),
        (
            dict(condition=conditions.LabelCondition(np.array([3 + 1j]))),
            "is not a type of labels",
        ),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        save(tmp_path / "x", small(**changes))
    assert not list(tmp_path.iterdir())


def test_noise_and_starts_count_in_what_particles_reach():
    def reach(entropy=0.0, start=1.0):
        flow = Flow([Stage("flow", frames.Random(5), 8)], Seed(0), entropy=entropy)
        return check_steps(flow, steps(), lambda i, k: 5, 7, torch.float32, start=start)

    assert reach() < 1e4
    for far in ({"entropy": 1e75}, {"start": 1e37}):
        with pytest.raises(ValueError, match="may not stay finite"):
            reach(**far)


def test_another_format_and_another_kind_are_named(path):
    text, tensors = file.read(path)
    file.write(path, text | {"format": 2, "library": "9.9"}, tensors)
    with pytest.raises(
        ModelFileError, match=r"format 2, by sliceflow 9\.9; .* install sliceflow 9"
    ):
        load(path, (Small,))
    file.write(path, text | {"more": 1}, tensors)
    with pytest.raises(ModelFileError, match="it is not a model"):
        load(path, (Small,))
    file.write(path, text, tensors)
    with pytest.raises(ModelFileError, match="holds 'Small', not one of Seed"):
        load(path, (Seed,))


def test_what_is_not_a_model_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("sixteen letters and more")
    (tmp_path / "huge").write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    for name in ("pipe", "empty", "text", "huge", "nowhere", "a\0b", "\ud800"):
        with pytest.raises(ModelFileError):
            sliceflow.load(f"{tmp_path}/{name}")


@pytest.mark.parametrize(
    "words",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "[]",
        '{"a": NaN}',
        '{"a": 1e999}',
        "1" * 10_000,
    ],
)
def test_hostile_json_is_refused(tmp_path, words, monkeypatch):
    monkeypatch.setattr(
        json,
        "dumps",
        lambda v, dumps=json.dumps, **k: words if v == {} else dumps(v, **k),
    )
    file.write(tmp_path / "x", {}, {})
    with pytest.raises(ModelFileError):
        load(tmp_path / "x", (Small,))


def test_a_file_cut_off_or_changed_anywhere_is_refused(path):
    whole = path.read_bytes()
    rng = random.Random(0)
    damaged = [whole[: rng.randrange(len(whole))] for _ in range(20)]
    for _ in range(60):
        changed = bytearray(whole)
        bit = rng.randrange(8 * len(whole))
        changed[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(changed))
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(ModelFileError):
            load(path, (Small,))


def test_memory_can_be_limited(path):
    with pytest.raises(
        ModelFileError, match=r"max_memory is 1\.0 KiB; if you trust the file"
    ):
        load(path, (Small,), max_memory=1000)
    with pytest.raises(ModelFileError, match="drawing a sample of it takes"):
        load(path, (Small,), max_memory=1 << 20)
    assert load(path, (Small,), max_memory=1 << 22)


# Atomic writes

posix = pytest.mark.skipif(
    os.name == "nt", reason="needs the rights, links and pipes of POSIX"
)


def put(path):
    save(path, Seed(1))


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@posix
def test_what_is_not_a_file_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as door:
        door.bind("socket")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "socket", "link"):
        with pytest.raises(
            OSError, match=f"{name} is a pipe, a socket or a device, which is not"
        ):
            put(tmp_path / name)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "pipe", "socket"]
    for name, words in (
        ("", "names no file"),
        ("new/", "names no file"),
        (".", "is a folder"),
    ):
        with pytest.raises(IsADirectoryError, match=words):
            put(name)


@posix
@pytest.mark.parametrize("rights", [0o600, 0o664])
def test_a_file_that_is_replaced_keeps_its_mode(tmp_path, rights):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    path.chmod(rights)
    put(path)
    assert path.read_bytes() != b"old"
    assert mode(path) == rights


@posix
def test_a_link_stays_a_link_and_a_new_file_has_the_mode_of_any(tmp_path):
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "plain").touch()
    put(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert mode(tmp_path / "target") == mode(tmp_path / "plain")


@posix
def test_nobody_reads_a_secret_file_while_it_is_written(tmp_path, monkeypatch):
    (tmp_path / "x").touch(0o600)
    seen = []
    chmod = os.chmod

    def look(*given):
        seen.extend(map(mode, tmp_path.iterdir()))
        return chmod(*given) if len(given) > 1 else None

    monkeypatch.setattr(
        os, "chmod", look
    )  # once it is there, and again while it is written
    write_atomically(tmp_path / "x", look)
    assert seen == [0o600] * 4


def test_a_writer_that_fails_or_a_full_disk_leaves_everything_as_it_was(
    path, monkeypatch
):
    before = path.read_bytes()

    def half(opened):
        opened.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, half)
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        put(path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]
