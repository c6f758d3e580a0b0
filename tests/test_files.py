"""Files are replaced whole, by files alone, and nobody can read them who could not before."""

import os
import socket
import stat
from pathlib import Path

import numpy as np
import pytest

from sliceflow import SlicedWassersteinFlow
from sliceflow.cli.run_folder import RunFolder
from sliceflow.models.atomic import write_atomically

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs the rights, links and pipes of POSIX")
FLOW = SlicedWassersteinFlow(n_particles=20, n_steps=1, random_state=0, device="cpu").fit(np.eye(4, 2))


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def put_words(path):
    write_atomically(path, lambda file: file.write(b"words"))


def put_json(path):
    RunFolder(path.parent).write_json(path.name, {"a": 1})


WRITERS = pytest.mark.parametrize("write", [put_words, FLOW.save, put_json], ids=lambda w: w.__name__)


@WRITERS
def test_what_is_not_a_file_is_not_replaced(tmp_path, write):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as door:
        here = os.getcwd()
        os.chdir(tmp_path)  # names of sockets are short
        try:
            door.bind("socket")
        finally:
            os.chdir(here)
    (tmp_path / "link").symlink_to("pipe")
    there = ["pipe", "socket", "link"]
    try:
        os.mknod(tmp_path / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        there.append("device")
    except PermissionError:  # only root may make one
        pass
    kinds = {name: stat.S_IFMT((tmp_path / name).stat().st_mode) for name in there}
    for name in there:
        with pytest.raises(OSError, match=f"{name} is a pipe, a socket or a device, which is not"):
            write(tmp_path / name)
    assert {name: stat.S_IFMT((tmp_path / name).stat().st_mode) for name in there} == kinds
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(there)


@WRITERS
@pytest.mark.parametrize("rights", [0o600, 0o640, 0o664, 0o400])
def test_a_file_that_is_replaced_keeps_its_mode(tmp_path, write, rights):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    path.chmod(rights)
    write(path)
    assert path.read_bytes() != b"old"
    assert mode(path) == rights


@WRITERS
def test_a_new_file_has_the_mode_of_any_new_file(tmp_path, write):
    (tmp_path / "plain").touch()
    write(tmp_path / "x")
    assert mode(tmp_path / "x") == mode(tmp_path / "plain")


@WRITERS
def test_a_link_stays_a_link_and_its_target_is_replaced(tmp_path, write):
    (tmp_path / "folder").mkdir()
    target = tmp_path / "folder" / "target"
    target.write_bytes(b"old")
    target.chmod(0o600)
    (tmp_path / "link").symlink_to("folder/target")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert target.read_bytes() != b"old"
    assert mode(target) == 0o600
    (tmp_path / "nowhere yet").symlink_to("new")
    write(tmp_path / "nowhere yet")
    assert (tmp_path / "new").is_file()


def test_nobody_reads_a_secret_file_while_it_is_written(tmp_path):
    path = tmp_path / "x"
    path.touch(0o600)
    seen = []

    def look(file):
        file.write(b"secret")
        seen.extend(mode(p) for p in tmp_path.iterdir() if p != path)

    write_atomically(path, look)
    assert seen == [0o600]


@pytest.mark.skipif(getattr(os, "geteuid", lambda: 1)() != 0, reason="only root gives files away")
def test_a_file_that_root_replaces_stays_its_owners(tmp_path):
    path = tmp_path / "x"
    path.touch()
    os.chown(path, 1234, 4321)
    FLOW.save(path)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 4321)


def test_a_writer_that_fails_leaves_everything_as_it_was(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def fails(file):
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, fails)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_name_that_no_file_can_have_is_shown(tmp_path):
    with pytest.raises(ValueError, match=r"a\\x00b' cannot name a file: embedded null"):
        FLOW.save(f"{tmp_path}/a\0b")


@pytest.mark.parametrize("name", ["", "new/"])
def test_a_name_without_a_file_in_it_is_refused(tmp_path, monkeypatch, name):
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(IsADirectoryError, match=f"^{name!r} names no file; give the name of a file$"):
        put_words(name)
    assert list(tmp_path.rglob("*")) == [folder]


def test_the_first_error_is_told_even_if_the_new_file_cannot_be_removed(tmp_path, monkeypatch):
    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    def put(_):
        monkeypatch.setattr(Path, "unlink", denied)
        raise ValueError("what went wrong")

    with pytest.raises(ValueError, match="what went wrong"):
        write_atomically(tmp_path / "x", put)
    monkeypatch.undo()
    assert not (tmp_path / "x").exists()
