"""Runs that are interrupted or killed at any moment: what is kept, and how they are resumed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("typer")

from running import FEW, command, environment, inside, refused
from sliceflow.cli import evaluate, evolution, fit
from sliceflow.cli.failures import Failed
from sliceflow.cli.run_folder import Lock


def interrupted(words, when, number=signal.SIGINT, before=()):
    """What a fit says that gets Ctrl-C, or another signal, as soon as `when()` is true."""
    if os.name == "nt":
        pytest.skip("Windows sends no signals to other processes")
    process = subprocess.Popen(
        [*before, *command(*words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    deadline = time.monotonic() + 60
    while not when():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    out, said = process.communicate(timeout=60)
    said = "\n".join(line for line in said.splitlines() if not line.startswith("step "))
    return subprocess.CompletedProcess(words, process.returncode, out, said)


def test_a_resumed_run_ends_with_the_same_samples(tmp_path):
    words = ["fit", "digits", "--quality", "8", "--particles", "300"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    checkpoint = stopped / "checkpoint" / "fit.checkpoint"
    refused(
        interrupted([*words, "--checkpoint-every", "0", "--out", stopped], checkpoint.exists),
        1,
        "stopped after",
        "--resume",
    )
    assert not (stopped / "model.sliceflow").exists()
    refused(inside(*words, "--out", stopped), 2, "is not empty", "--resume")
    refused(inside("report", stopped), 2, "has not ended", "--resume")
    refused(inside("sample", stopped, "--out", tmp_path / "x.png"), 2, "has not ended", "--resume")
    other = inside(*words, "--seed", 1, "--out", stopped, "--resume")
    refused(other, 2, "--seed is 1, but the run in", "was started with 0", "--resume")
    result = inside(*words, "--out", stopped, "--resume")
    assert result.returncode == 0, result.stderr
    assert not (stopped / "checkpoint").exists()
    assert inside(*words, "--out", whole).returncode == 0
    with np.load(whole / "samples.npz") as a, np.load(stopped / "samples.npz") as b:
        assert np.array_equal(a["images"], b["images"])
    with Image.open(whole / "evolution.gif") as a, Image.open(stopped / "evolution.gif") as b:
        assert a.n_frames == b.n_frames
    refused(inside(*words, "--out", stopped, "--resume"), 2, "has ended", "--force")


IGNORING = (
    "import os, signal, sys; signal.signal(2, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
)


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)],
    ids=["SIGINT", "SIGTERM"],
)
def test_a_run_in_the_background_of_a_script_is_stopped_with_a_checkpoint(tmp_path, number):
    # There Ctrl-C is ignored.
    words = ["fit", "digits", "--quality", "9", "--particles", "300", "--checkpoint-every", "999"]
    config, before = tmp_path / "run" / "config.json", [sys.executable, "-c", IGNORING]
    result = interrupted([*words, "--out", tmp_path / "run"], config.exists, number, before)
    refused(result, 1, "stopped after", "--resume")
    assert (tmp_path / "run" / "checkpoint" / "fit.checkpoint").exists()
    assert not (tmp_path / "run" / Lock.NAME).exists()


def killed_in(name, run, monkeypatch, tmp_path):
    """A copy of what a run has left when it was killed in a function of `fit`'s, with no time left."""

    class Killed(BaseException):
        pass

    def die(*_, **__):
        shutil.copytree(run, tmp_path / "left")
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(*name, die)
        with pytest.raises(Killed):
            inside("fit", "digits", *FEW, "--conditional", "--out", run, "--checkpoint-every", "0")
    shutil.rmtree(run, ignore_errors=True)
    (tmp_path / "left").rename(run)


def same_samples(run, other):
    with np.load(run / "samples.npz") as a, np.load(other / "samples.npz") as b:
        return np.array_equal(a["images"], b["images"])


@pytest.mark.parametrize("moment", ["measure", "draw_neighbours"])
def test_a_run_that_was_killed_while_it_was_measured_is_finished(
    digits_run, tmp_path, monkeypatch, moment
):
    run = tmp_path / "run"
    killed_in((evaluate, moment), run, monkeypatch, tmp_path)
    model = (run / "model.sliceflow").read_bytes()
    words = ("fit", "digits", *FEW, "--conditional", "--out", run)
    refused(inside(*words), 2, "is not empty", "--resume continues")
    result = inside(*words, "--resume")
    assert result.returncode == 0, result.stderr
    assert "has ended; measuring it now" in result.stdout
    assert "300 particles, 46 steps" in result.stdout
    assert (run / "model.sliceflow").read_bytes() == model  # nothing was fitted
    assert {p.name for p in run.iterdir()} == {p.name for p in digits_run[0].iterdir()}
    refused(inside(*words, "--resume"), 2, "has ended", "sliceflow evaluate", "--force")


@pytest.mark.parametrize(
    "moment",
    [(fit, "_write_fit"), (fit, "_write_samples"), (evolution, "write_evolution")],
    ids=lambda moment: moment[1],
)
def test_a_run_that_was_killed_while_it_was_written_is_resumed(
    digits_run, tmp_path, monkeypatch, moment
):
    run = tmp_path / "run"
    killed_in(moment, run, monkeypatch, tmp_path)
    assert (run / "checkpoint" / "last.checkpoint").exists()
    assert not (run / "checkpoint" / "fit.checkpoint").exists()
    result = inside("fit", "digits", *FEW, "--conditional", "--out", run, "--resume")
    assert result.returncode == 0, result.stderr
    assert "starts from the beginning" not in result.stdout
    assert same_samples(run, digits_run[0])
    assert {p.name for p in run.iterdir()} == {p.name for p in digits_run[0].iterdir()}


def test_two_fits_do_not_write_to_one_folder(digits_run, tmp_path):
    run = tmp_path / "run"
    words = ("fit", "digits", *FEW, "--conditional", "--quiet", "--out", run)
    long = ["fit", "digits", "--out", run, "--quiet", "--checkpoint-every", "0"]
    first = subprocess.Popen(command(*long), env=environment())
    while not (run / "checkpoint" / "fit.checkpoint").exists():
        assert first.poll() is None
        time.sleep(0.02)
    try:
        for more in ((), ("--force",), ("--resume",)):
            refused(
                inside(*words, *more), 1, f"another fit is writing to {run}", str(first.pid), "--out"
            )
        assert (run / "checkpoint" / "fit.checkpoint").exists()
    finally:
        first.kill()  # nothing can be tidied up
        first.wait()
    assert (run / Lock.NAME).exists()
    refused(inside(*words), 2, "is not empty; it holds checkpoint", "--resume")
    assert inside(*words, "--force").returncode == 0
    assert same_samples(run, digits_run[0])
    assert not (run / Lock.NAME).exists()


def test_a_second_fit_that_began_before_the_folder_was_there_refuses(tmp_path, monkeypatch):
    run, other = tmp_path / "run", Lock(tmp_path / "run")

    def meanwhile(*words, **more):
        run.mkdir()
        other.take()
        return read(*words, **more)

    read = fit.read
    monkeypatch.setattr(fit, "read", meanwhile)
    words = ("fit", "digits", *FEW, "--quiet", "--out", run)
    refused(inside(*words), 1, "another fit", str(os.getpid()))
    (run / "samples.csv").write_text("of that fit")
    other.close()
    monkeypatch.setattr(fit, "read", read)
    refused(inside(*words), 2, "it holds samples.csv")


def test_a_lock_is_given_back_and_locks_nothing_afterwards(tmp_path):
    one, two = Lock(tmp_path), Lock(tmp_path)
    one.take()
    with pytest.raises(Failed, match="another fit"):
        two.take()
    one.close()
    assert list(tmp_path.iterdir()) == []
    two.take()
    two.take()  # its own
    two.close()
    two.close()
    Lock(tmp_path / "nowhere").take()
    assert not (tmp_path / "nowhere").exists()


def test_ctrl_c_before_the_first_step_leaves_nothing(tmp_path):
    started = time.monotonic()
    words = ["fit", "digits", "--quality", "5", "--out", tmp_path / "run"]
    refused(interrupted(words, lambda: time.monotonic() > started + 0.5), 1, "interrupted", "again")
    assert not (tmp_path / "run").exists()


def test_ctrl_c_while_measuring_keeps_the_fit(tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "measure", interrupt)
        result = inside("fit", "digits", *FEW, "--quiet", "--out", tmp_path / "run")
    refused(result, 1, "done and saved", "--resume")
    assert inside("evaluate", tmp_path / "run", "--quiet").returncode == 0
    assert inside("report", tmp_path / "run", "--quiet").returncode == 0
    assert (tmp_path / "run" / "neighbours.png").exists()


def test_ctrl_c_while_the_fit_is_written_waits_until_it_is(tmp_path, monkeypatch):
    from sliceflow import ImageFlow

    save = ImageFlow.save

    def interrupt(self, path):
        signal.raise_signal(signal.SIGINT)
        return save(self, path)

    monkeypatch.setattr(ImageFlow, "save", interrupt)
    handler = signal.getsignal(signal.SIGINT)
    result = inside("fit", "digits", *FEW, "--quiet", "--out", tmp_path / "run")
    refused(result, 1, "done and saved", "--resume")
    assert signal.getsignal(signal.SIGINT) == handler
    assert (tmp_path / "run" / "samples.npz").exists()
    assert json.loads((tmp_path / "run" / "config.json").read_text())["steps"] == 44
