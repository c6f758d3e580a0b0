"""Model files: whole or not at all, and refused if anything is wrong."""

import os
import random
import socket
import stat
import tracemalloc
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
import pytest
import torch
import zstandard
from safetensors.numpy import load as from_safetensors
from safetensors.numpy import save as to_safetensors
from torch import Tensor

import sliceflow
from models import full_disk
from sliceflow.base import codec, file
from sliceflow.base.atomic import write_atomically
from sliceflow.base.file import ModelFileError, load, save
from sliceflow.base.saved_steps import (
    check_finite_samples,
    check_steps,
    largest_coordinate,
)
from sliceflow.base.saving import SavedHistory
from sliceflow.engine import frames, transports, y_encoders
from sliceflow.engine.compression import compress_grid_at_bends
from sliceflow.engine.flow import FlowSpec
from sliceflow.engine.maps import GridMaps, KnotMaps
from sliceflow.engine.model_steps import ModelStep
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.saved_types import ArraySpec


@dataclass(frozen=True)
class Small:
    """Like a saved estimator."""

    seed: Seed
    frame: frames.StorableFrameKind
    transport: transports.StorableTransport
    model: tuple[ModelStep, ...]
    condition: y_encoders.ConditionEncoder | None
    history: SavedHistory
    rows: Annotated[Tensor, ArraySpec("n d", "float64")]

    def check_saved(self):
        flow = FlowSpec([Stage("flow", self.frame, 8)], self.seed)
        check_steps(flow, self.model, lambda step: 5)
        d = self.rows.shape[1]
        largest = largest_coordinate(flow, self.model, d)
        check_finite_samples(flow, largest, d, torch.float32, None)

    def sample_bytes(self):
        return 1 << 20


def steps(n=8):
    """Maps of every kind, some of which move nothing."""
    rng = np.random.default_rng(0)
    knots = torch.from_numpy(np.sort(rng.normal(size=(5, 6)))).float()
    values = torch.from_numpy(np.sort(rng.normal(size=(5, 6)))).float()
    grid = torch.linspace(-1, 1, 41).repeat(5, 1)
    bent = grid + 0.2 * torch.sin(3 * grid) * (torch.arange(5) < 3)[:, None]
    low = torch.full((5,), -1.0).double()
    whole = GridMaps(low, -low, bent)
    tables = [KnotMaps(knots, values), whole, compress_grid_at_bends(whole, 9, 1.0)]
    theta = torch.eye(5, 7)
    return tuple(
        ModelStep(0, k, tables[k % 3], theta if k == 3 else None) for k in range(n)
    )


def small(**changes):
    history = SavedHistory(
        stage=["flow"] * 8,
        step=list(range(8)),
        distance=[0.5] * 7 + [np.nan],
        active_fraction=[1.0] * 8,
    )
    fields = dict(
        seed=Seed(7, ("frame", 3)),
        frame=frames.Random(20),
        transport=transports.HistogramTransport(64),
        model=steps(),
        condition=y_encoders.ClassEncoder(np.array(["cat", "dog"])),
        history=history,
        rows=torch.zeros(3, 7, dtype=torch.float64),
    )
    return Small(**fields | changes)


def one_step(knots, values, theta=None):
    """A model of one step with these maps."""
    return (ModelStep(0, 0, KnotMaps(knots, values), theta),)


@pytest.fixture
def path(tmp_path):
    save(tmp_path / "x.sliceflow", small())
    return tmp_path / "x.sliceflow"


@pytest.mark.parametrize(
    ("dtype", "labels", "message"),
    [
        ("<i8", [1, 1], "not all 2 are distinct"),
        ("|O", [1.0, 1], "not all 2 are distinct"),
        ("|O", [], "there are no labels"),
        ("<U1", ["ab"], "labels that are not of dtype <U1"),
        ("<i8", [1.5], "labels that are not of dtype int64"),
        ("<i8", [True], "labels that are not of dtype int64"),
        ("<U1", "ab", "Expected `array`, got `str`"),
        ("<U99999999", ["a"] * 9, "9 labels of dtype <U99999999"),
        ("<i8,<i8", [1], "is not a dtype of labels"),
    ],
)
def test_labels_that_are_not_distinct_or_of_their_type_are_refused(
    dtype, labels, message
):
    classes = {"class": "labels", "dtype": dtype, "labels": labels}
    tree = {"class": "ClassEncoder", "classes": classes, "encodes_clusters": False}
    header = msgspec.msgpack.encode(tree)
    with pytest.raises(ValueError, match=message):
        codec.decode(y_encoders.ClassEncoder, header, {})


def test_the_file_is_safetensors_compressed_by_zstd(path):
    tensors = from_safetensors(zstandard.decompress(path.read_bytes()))
    envelope = msgspec.msgpack.decode(tensors["header"].tobytes())
    assert envelope["format"] == file.FORMAT
    assert envelope["library"] == sliceflow.__version__
    assert envelope["class_name"] == "Small"
    header = envelope["header"]
    assert header["class"] == "Small"
    assert header["seed"] == {"class": "Seed", "root": 7, "path": ["frame", 3]}
    assert tensors["rows"].shape == (3, 7)
    assert tensors["rows"].dtype == np.float64


def test_the_same_object_gives_the_same_bytes(path, tmp_path):
    save(tmp_path / "again", small())
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_the_folder_of_a_run_is_loaded_as_its_model(tmp_path):
    with pytest.raises(ModelFileError, match=r"is a folder without model\.sliceflow"):
        load(tmp_path, (Small,))
    save(tmp_path / "model.sliceflow", small())
    assert load(tmp_path, (Small,)).seed == Seed(7, ("frame", 3))


# What is refused


class Own(frames.Orthogonal):
    """A frame of the user's own."""


DESCENDING = -torch.arange(15.0).view(5, 3)
FAR = torch.full((5, 1), 1e38)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(frame=Own()), "frame is .*, which a file cannot hold"),
        (dict(model=steps()[1:]), "step 1 of stage 0 is out of order"),
        (dict(model=one_step(*torch.zeros(2, 4, 3))), "has 4 maps but needs 5"),
        (
            dict(model=one_step(DESCENDING, torch.ones(5, 3))),
            "knots that do not ascend",
        ),
        (
            dict(model=one_step(torch.zeros(5, 1), FAR)),
            "its samples may not stay finite",
        ),
        (
            dict(model=one_step(*torch.zeros(2, 5, 3), 1.01 * torch.eye(5, 7))),
            "not orthonormal",
        ),
        (
            dict(condition=y_encoders.ClassEncoder(np.array([3 + 1j]))),
            "which a file cannot hold",
        ),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        save(tmp_path / "x", small(**changes))
    assert not list(tmp_path.iterdir())


def test_noise_and_starts_count_in_what_particles_reach():
    def reach(entropy=0.0, start_std=1.0):
        flow = FlowSpec([Stage("flow", frames.Random(5), 8)], Seed(0), entropy=entropy)
        largest = largest_coordinate(flow, steps(), 7, start_std)
        check_finite_samples(flow, largest, 7, torch.float32, None)
        return largest

    assert reach() < 1e4
    for far in ({"entropy": 1e75}, {"start_std": 1e37}):
        with pytest.raises(ValueError, match="may not stay finite"):
            reach(**far)


def test_another_format_and_another_kind_are_named(path, tmp_path, monkeypatch):
    with pytest.raises(ModelFileError, match="holds 'Small', not one of Seed"):
        load(path, (Seed,))
    with monkeypatch.context() as patch:
        patch.setattr(file, "FORMAT", 3)
        patch.setattr(sliceflow, "__version__", "9.9")
        save(tmp_path / "new", small())
    with pytest.raises(
        ModelFileError, match=r"format 3, by sliceflow 9\.9; .* install sliceflow 9"
    ):
        load(tmp_path / "new", (Small,))


@pytest.mark.parametrize(
    "metadata",
    [
        r'"sliceflow":"{\"format\":1,\"library\":\"0.3.0\",\"kind\":\"Small\"}"',
        '"dtype":"float64","sliceflow":"posterior 1"',
    ],
)
def test_files_of_older_versions_are_named(tmp_path, metadata):
    text = f'{{"__metadata__":{{{metadata}}}}}'.encode()
    (tmp_path / "old").write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(
        ModelFileError, match=r"old: it was written by sliceflow 0\.3\.0 in format 1"
    ):
        load(tmp_path / "old", (Small,))


def test_what_is_not_a_model_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("sixteen letters and more")
    (tmp_path / "empty frame").write_bytes(zstandard.compress(b""))
    for name in ("pipe", "empty", "text", "empty frame", "nowhere", "a\0b", "\ud800"):
        with pytest.raises(ModelFileError):
            sliceflow.load(f"{tmp_path}/{name}")


TUPLE_LABEL = msgspec.msgpack.encode({"class": "tuple", "labels": [0]})[:-1]


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        b"\x81\xa1a" * 100_000,
        b"\xdd\xff\xff\xff\xff",  # claims 4,294,967,295 items
        b"\xdf\xff\xff\xff\xff\xa1a\x01",
        b"\xc6\xff\xff\xff\xff",
        b"\x82\xa5class\xa5Small\xa4seed" + TUPLE_LABEL * 100_000 + b"\x01",
    ],
)
def test_hostile_headers_are_refused(tmp_path, header):
    file.write(tmp_path / "x", "Small", header, {})
    tracemalloc.start()
    with pytest.raises(ModelFileError):
        load(tmp_path / "x", (Small,))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10**8


def test_labels_nested_too_deep_are_refused(tmp_path):
    encoder = {"class": "ClassEncoder", "encodes_clusters": False}
    start = msgspec.msgpack.encode(encoder)[1:]
    labels = msgspec.msgpack.encode({"class": "labels", "dtype": "|O", "labels": [0]})[
        :-1
    ]
    deep = labels + TUPLE_LABEL * 100_000 + b"\x01"
    header = b"\x83" + start + b"\xa7classes" + deep
    file.write(tmp_path / "x", "ClassEncoder", header, {})
    with pytest.raises(ModelFileError):
        load(tmp_path / "x", (y_encoders.ClassEncoder,))


def test_a_file_cut_off_or_changed_anywhere_is_refused_or_the_same(path):
    """A few bits of a frame of zstd mean nothing, and are ignored."""
    whole = path.read_bytes()
    rng = random.Random(0)
    damaged = [whole[: rng.randrange(len(whole))] for _ in range(20)]
    bits = [*range(8 * 80), *(rng.randrange(8 * len(whole)) for _ in range(60))]
    for bit in bits:
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(changed))
    damaged.append(whole + b"x")
    n_refused = 0
    for content in damaged:
        path.write_bytes(content)
        try:
            loaded = load(path, (Small,))
        except ModelFileError:
            n_refused += 1
            continue
        save(path, loaded)
        assert path.read_bytes() == whole
    assert n_refused > 0.95 * len(damaged)


# Bombs


def refused(path, frame, message):
    """Whether a file with this frame is refused, with little memory."""
    path.write_bytes(frame)
    tracemalloc.start()
    with pytest.raises(ModelFileError, match=message):
        load(path, (Small,))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak < 10**7


def test_sizes_are_counted_before_anything_is_unzipped(tmp_path):
    bomb = zstandard.compress(bytes(200_000_000))
    assert len(bomb) < 20_000
    message = (
        r"its parts take 572\.2 MiB of memory, and a file of .* may take 30\d\.. MiB"
    )
    assert refused(tmp_path / "x", bomb, message)


def test_a_frame_that_does_not_say_its_size_is_refused(tmp_path):
    compressor = zstandard.ZstdCompressor(write_content_size=False)
    silent = compressor.compress(bytes(200_000_000))
    assert refused(tmp_path / "x", silent, "does not say how many bytes it holds")


@pytest.mark.parametrize("size", [257, 60_000])
def test_a_frame_of_another_size_than_it_says_is_refused(tmp_path, size):
    frame = bytearray(zstandard.compress(bytes(1000)))
    assert frame[5:7] == (1000 - 256).to_bytes(2, "little")
    frame[5:7] = (size - 256).to_bytes(2, "little")
    assert refused(tmp_path / "x", bytes(frame), "or is damaged: ")


def test_more_than_one_frame_is_refused(tmp_path):
    tensors = to_safetensors({"header": np.zeros(0, np.uint8)})
    frame = zstandard.compress(tensors)
    assert refused(tmp_path / "x", frame + frame, "unused|extra")


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (1 << 60, "it has a header of 1152921504606846976 bytes"),
        (1 << 24, "its parts take"),
        (40, "or is damaged: "),
    ],
)
def test_safetensors_with_a_wrong_header_are_refused(tmp_path, size, message):
    tensors = size.to_bytes(8, "little") + bytes(1000)
    assert refused(tmp_path / "x", zstandard.compress(tensors), message)


def test_arrays_that_claim_more_than_there_is_are_refused(tmp_path):
    text = b'{"header":{"dtype":"F64","shape":[4294967296,4294967296],'
    text += b'"data_offsets":[0,8]}}'
    tensors = len(text).to_bytes(8, "little") + text + bytes(8)
    assert refused(tmp_path / "x", zstandard.compress(tensors), "or is damaged: ")


def test_types_that_numpy_does_not_have_are_refused(tmp_path):
    text = b'{"header":{"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]}}'
    tensors = len(text).to_bytes(8, "little") + text + bytes(8)
    # safetensors names the type, or, in old versions, does not know it either.
    message = "F8_E4M3|InvalidHeaderDeserialization"
    assert refused(tmp_path / "x", zstandard.compress(tensors), message)


def test_memory_can_be_limited(path):
    with pytest.raises(
        ModelFileError, match=r"max_memory is 1\.0 KiB; if you trust the file"
    ):
        load(path, (Small,), max_memory=1000)
    with pytest.raises(ModelFileError, match="drawing a sample of it takes"):
        load(path, (Small,), max_memory=1 << 20)
    assert load(path, (Small,), max_memory=1 << 22)


def test_headers_have_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(file, "MAX_HEADER_SIZE", 100)
    with pytest.raises(ValueError, match="use fewer or shorter labels"):
        save(tmp_path / "x", small())


# Atomic writes

posix = pytest.mark.skipif(
    os.name == "nt", reason="needs the rights, links and pipes of POSIX"
)


def save_seed(path):
    save(path, Seed(1))


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@posix
def test_what_is_not_a_file_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind("socket")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "socket", "link"):
        with pytest.raises(
            OSError, match=f"{name} is a pipe, a socket or a device, which is not"
        ):
            save_seed(tmp_path / name)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "pipe", "socket"]
    for name, message in (
        ("", "names no file"),
        ("new/", "names no file"),
        (".", "is a folder"),
    ):
        with pytest.raises(IsADirectoryError, match=message):
            save_seed(name)


@posix
@pytest.mark.parametrize("rights", [0o600, 0o664])
def test_a_file_that_is_replaced_keeps_its_mode(tmp_path, rights):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    path.chmod(rights)
    save_seed(path)
    assert path.read_bytes() != b"old"
    assert mode(path) == rights


@posix
def test_a_link_stays_a_link_and_a_new_file_has_the_mode_of_any(tmp_path):
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "plain").touch()
    save_seed(tmp_path / "link")
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

    # Once the file is there, and again while it is written.
    monkeypatch.setattr(os, "chmod", look)
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
        save_seed(path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]
