"""Runs that are interrupted or killed, or whose disk fills, at any moment.

What is kept of them, and how they go on.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

pytest.importorskip("typer")

from models import interrupt
from running import FEW, command, done, environment, inside, refused
from sliceflow import ImageFlow
from sliceflow.cli.failures import CommandError
from sliceflow.cli.picture_run import PictureRun
from sliceflow.cli.run_folder import LOCK, RunFolder
from sliceflow.cli.table_run import TableRun

# A script that ignores Ctrl-C, and becomes the command that its arguments name.
IGNORING_CTRL_C = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])
"""
POSIX = pytest.mark.skipif(
    os.name == "nt", reason="Windows sends no signals to other processes"
)


def started(words, before=(), sign="checkpoint/*"):
    """A fit in a process of its own, when a sign of it is in its folder."""
    run = words[words.index("--out") + 1]
    process = subprocess.Popen(
        [*before, *command(*words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    deadline = time.monotonic() + 120
    while not any(run.glob(sign)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


def same_samples(run, other):
    if (run / "samples.csv").exists():
        return (run / "samples.csv").read_text() == (other / "samples.csv").read_text()
    with np.load(run / "samples.npz") as a, np.load(other / "samples.npz") as b:
        return np.array_equal(a["images"], b["images"])


def press_ctrl_c(self, event):
    """A progress bar that interrupts the fit after some steps."""
    if event.steps_done == 3:
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_leaves_a_checkpoint_and_a_resumed_run_ends_with_the_same_samples(
    tmp_path, digits_run, monkeypatch
):
    words = ["fit", "digits", *FEW]
    stopped = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        patch.setattr("sliceflow.cli.progress.ProgressBar.__call__", press_ctrl_c)
        refused(inside(*words, "--out", stopped), 1, "stopped after", "--resume")
    assert not (stopped / "model.sliceflow").exists()
    assert not (stopped / LOCK).exists()
    refused(inside(*words, "--out", stopped), 2, "is not empty", "--resume")
    refused(inside("evaluate", stopped), 2, "has not ended", "--resume")
    refused(
        inside("sample", stopped, "--out", tmp_path / "x.png"),
        2,
        "has not ended",
        "--resume",
    )
    other = inside(*words, "--seed", 1, "--out", stopped, "--resume")
    refused(other, 2, "--seed is 1, but the run in", "was started with 0", "--resume")
    done(*words, "--out", stopped, "--resume")
    assert not (stopped / "checkpoint").exists()
    assert same_samples(stopped, digits_run[0])
    refused(inside(*words, "--out", stopped, "--resume"), 2, "has ended", "--force")


def test_ctrl_c_leaves_nothing_of_a_table_which_has_no_checkpoints(
    people, tmp_path, monkeypatch
):
    words = ["fit", people, "--out", tmp_path / "run"]
    with monkeypatch.context() as patch:
        patch.setattr("sliceflow.cli.progress.ProgressBar.__call__", press_ctrl_c)
        refused(inside(*words), 1, "the fit was stopped", "run it again")
    assert not (tmp_path / "run").exists()


def test_a_killed_fit_of_a_table_is_fitted_again_by_resume(people, table_run, tmp_path):
    config = json.loads((table_run[0] / "config.json").read_text())
    del config["finished"]  # as it is before the fit has ended
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps(config))
    words = ["fit", people, "--constraint", "start <= end", "--out", run]
    refused(inside(*words), 2, "is not empty; it holds config.json", "--force")
    said = done(*words, "--resume")
    assert "a table has no checkpoints; it is fitted again" in said
    assert same_samples(run, table_run[0])


@POSIX
@pytest.mark.slow
def test_ctrl_c_is_heard_in_the_background_of_a_script(tmp_path):
    """There it is ignored unless a process asks for it."""
    words = ["fit", "digits", "--checkpoint-every", "0", "--out", tmp_path / "run"]
    process = started(words, [sys.executable, "-c", IGNORING_CTRL_C])
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=60)
    result = subprocess.CompletedProcess(words, process.returncode, out, said)
    refused(result, 1, "stopped after", "--resume")


@POSIX
@pytest.mark.slow
def test_two_fits_do_not_write_to_one_folder_and_a_killed_one_can_be_replaced(
    digits_run, tmp_path
):
    run = tmp_path / "run"
    words = ("fit", "digits", *FEW, "--conditional", "--quiet", "--out", run)
    first = started(
        ["fit", "digits", "--out", run, "--quiet", "--checkpoint-every", "0"]
    )
    try:
        for more in ((), ("--force",), ("--resume",)):
            said = inside(*words, *more)
            refused(
                said, 1, f"another fit is writing to {run}", str(first.pid), "--out"
            )
    finally:
        first.kill()  # nothing can be tidied up
        first.communicate()
    assert (run / LOCK).exists()
    refused(inside(*words), 2, "is not empty; it holds checkpoint", "--resume")
    done(*words, "--force")
    assert same_samples(run, digits_run[0])
    assert not (run / LOCK).exists()
    assert not (run / "checkpoint").exists()


@POSIX
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pictures", "table"])
def test_fits_killed_at_random_moments_end_with_the_same_file(kind, people, tmp_path):
    source = [people]
    if kind == "pictures":
        source = ["digits", "--steps-per-stage", "4", "--particles", "1000"]
        source += ["--checkpoint-every", "0"]
    words = ["fit", *source, "--quiet", "--out"]
    whole = started([*words, tmp_path / "whole"], sign="*")
    began = time.monotonic()
    rng = random.Random(kind)
    kills = 0
    whole.communicate()
    took = time.monotonic() - began
    while kills < 5:
        run = tmp_path / str(random.random())
        process = started([*words, run], sign="*")
        time.sleep(rng.uniform(0, took))
        process.kill()
        process.communicate()
        if process.returncode == 0:  # it was faster than the first one
            took *= 0.9
            continue
        kills += 1
        if "report.html" not in os.listdir(run):
            done(*words, run, "--resume")
        files = [folder / "model.sliceflow" for folder in (run, tmp_path / "whole")]
        assert files[0].read_bytes() == files[1].read_bytes()


@contextmanager
def full_disk(most):
    """Let no file be longer than some bytes."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def contents(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@POSIX
@pytest.mark.parametrize(
    "name", ["a.png", "a.npz", "a", "a.csv", "a.parquet", "a.xlsx"]
)
def test_samples_on_a_full_disk_leave_the_old_ones(
    name, digits_run, table_run, tmp_path
):
    run = (table_run if name[2:] in ("csv", "parquet", "xlsx") else digits_run)[0]
    words = ("sample", run, "--out", tmp_path / name)
    done(*words, "--n", 9)
    before = contents(tmp_path)
    with full_disk(50):
        refused(
            inside(*words, "--n", 99, "--force"),
            1,
            f"{tmp_path}/",
            "File too large",
            "free some",
        )
    assert contents(tmp_path) == before


@POSIX
def test_a_fit_on_a_full_disk_says_so_and_is_finished_with_space(
    tmp_path, digits_run, monkeypatch
):
    run = tmp_path / "run"
    draw = PictureRun.draw_samples
    words = ("fit", "digits", *FEW, "--conditional", "--save-rows", "--out", run)
    with full_disk(20_000):
        said = inside(*words, "--quiet", "--checkpoint-every", "0")
        warned = said.stderr.splitlines(True)[0]
        said.stderr = said.stderr[said.stderr.index("error") :]
        assert "no checkpoint could be written" in warned
        refused(said, 1, f"{run}/model.sliceflow: File too large", "free some")
    assert not run.exists()

    def full(*given):
        drawn = draw(*given)
        resources.enter_context(full_disk(20_000))
        return drawn

    with ExitStack() as resources:
        monkeypatch.setattr(PictureRun, "draw_samples", full)
        refused(inside(*words), 1, f"{run}/samples.npz: File too large", "free some")
    monkeypatch.setattr(PictureRun, "draw_samples", draw)
    assert sorted(path.name for path in run.iterdir()) == [
        "config.json",
        "model.sliceflow",
    ]
    done(*words, "--resume")
    assert same_samples(run, digits_run[0])


def test_a_full_disk_at_the_very_save_keeps_the_checkpoint(
    tmp_path, digits_run, monkeypatch
):
    run = tmp_path / "run"
    words = ["fit", "digits", *FEW, "--save-rows", "--checkpoint-every", "0"]
    words += ["--out", run]

    def no_space(self, path, **_):
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("sliceflow.ImageFlow.save", no_space)
        result = inside(*words, "--quiet")
        refused(result, 1, "No space left", "free some space", "--resume")
    steps = []
    with monkeypatch.context() as patch:
        patch.setattr(
            "sliceflow.cli.progress.ProgressBar.__call__",
            lambda self, event: steps.append(event.steps_done),
        )
        done(*words, "--resume")
    assert steps == []  # nothing is fitted again
    assert not (run / "checkpoint").exists()
    assert same_samples(run, digits_run[0])


@pytest.mark.parametrize(
    ("kind", "moment"),
    [
        pytest.param("pictures", "save", marks=pytest.mark.slow),
        ("pictures", "draw_samples"),
        ("table", "measure"),
    ],
)
def test_a_run_that_was_killed_later_is_finished_by_resume(
    kind, moment, digits_run, table_run, people, tmp_path, monkeypatch
):
    """`save` stands for any moment before the model is there: it is fitted again."""

    class Killed(BaseException):
        pass

    def die(*_, **__):
        shutil.copytree(run, tmp_path / "left")
        raise Killed

    run = tmp_path / "run"
    words = ["fit", "digits", *FEW, "--conditional"]
    finished = digits_run[0]
    if kind == "table":
        words = ["fit", people, "--constraint", "start <= end"]
        finished = table_run[0]
    with monkeypatch.context() as patch:
        if moment == "save":
            estimator = "TableFlow" if kind == "table" else "ImageFlow"
            patch.setattr(f"sliceflow.{estimator}.save", die)
        else:
            fitted_run = TableRun if kind == "table" else PictureRun
            patch.setattr(fitted_run, moment, die)
        with pytest.raises(Killed):
            inside(*words, "--out", run)
    shutil.rmtree(run, ignore_errors=True)
    (tmp_path / "left").rename(run)
    if moment != "save":
        refused(inside(*words, "--out", run), 2, "is not empty", "--resume")
    said = done(*words, "--out", run, "--resume")
    assert ("has ended; measuring it now" in said) == (moment != "save")
    for name in ("model.sliceflow", "samples.npz", "samples.csv", "evaluation.json"):
        if (finished / name).exists():
            assert (run / name).exists()
    assert same_samples(run, finished)


def test_a_lock_keeps_others_out_and_an_empty_folder_goes(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "one")
    with folder.locked(force=True, resume=False):
        assert (folder / LOCK).read_text() == f"{os.getpid()}\n"
        with (
            pytest.raises(CommandError, match=f"another fit .*: process {os.getpid()}"),
            folder.locked(force=True, resume=False),
        ):
            pass
        (folder / "mine.txt").touch()
    assert [path.name for path in folder.path.iterdir()] == ["mine.txt"]
    (folder / "mine.txt").unlink()
    with folder.locked(force=True, resume=False):
        pass
    assert folder.path.exists(), "it was there before"
    folder.path.rmdir()
    (tmp_path / "runs").rmdir()
    with folder.locked(force=True, resume=False):
        pass
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_before_the_first_step_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(ImageFlow, "fit", interrupt)
    words = ("fit", "digits", *FEW, "--quiet", "--out", tmp_path / "run")
    refused(inside(*words), 1, "stopped before its first checkpoint", "again")
    assert not (tmp_path / "run").exists()


def test_force_replaces_a_run_whose_settings_are_damaged(tmp_path):
    folder = RunFolder(tmp_path)
    (folder / "model.sliceflow").touch()
    (folder / "config.json").write_text("{")
    with folder.locked(force=True, resume=False):
        folder.begin({"settings": {}}, replace=True)
    assert folder.files == ["config.json"]
