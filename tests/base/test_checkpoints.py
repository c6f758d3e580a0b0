"""Checkpoints: a fit that was stopped goes on and ends with the same bits."""

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from models import PARTS, X, full_disk, saved, vectors
from sliceflow.base.checkpoints import CheckpointMismatchError, read_checkpoint
from sliceflow.base.file import ModelFileError, load
from sliceflow.base.fingerprint import digest, fingerprint
from sliceflow.engine.random import Seed
from sliceflow.errors import ParameterError

SEED = Seed(3)
DATA = SEED.child("data").normal(3, 90, dtype=torch.float32) ** 3
KINDS = [
    "labels",
    "floats",
    "max-sliced",
    "per class",
    "gray",
    "bends",
    "classes apart",
    "color",
]


def fit(folder, kind="vectors", listeners=(), every=0, **changes):
    make, data = PARTS[kind]
    flow = make().set_params(**changes)
    return flow.fit(
        *data, checkpoint_dir=folder, checkpoint_every=every, listeners=listeners
    )


class Killed(Exception):
    pass


def stopped(folder, after=2, kind="vectors", **more):
    """A fit that was killed, a step after its checkpoint."""
    events = []

    def kill(event):
        events.append(event)
        if len(events) > after:
            raise Killed

    with pytest.raises(Killed):
        fit(folder, kind, kill, **more)
    return folder / "fit.checkpoint"


@pytest.mark.parametrize("kind", [*KINDS, "masked"])
def test_a_fit_stopped_after_any_step_goes_on_to_the_same_bits(kind, tmp_path, fitted):
    whole = fitted(kind)
    expected = saved(whole, particles=True)
    for after in range(1, whole.n_iter_):
        stopped(tmp_path, after, kind)
        steps = []
        resumed = fit(tmp_path, kind, steps.append)
        assert len(steps) < whole.n_iter_
        assert resumed.history_["step"] == whole.history_["step"]
        assert saved(resumed, particles=True) == expected
        assert not list(tmp_path.iterdir())  # nothing is left of a fit that ended well


def test_a_random_seed_is_that_of_the_fit_that_goes_on(tmp_path):
    stopped(tmp_path / "a", random_state=None)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    first = fit(tmp_path / "a", random_state=None)
    second = fit(tmp_path / "b", random_state=None)
    assert saved(first, particles=True) == saved(second, particles=True)


def test_the_seed_of_a_checkpoint_is_read_before_a_fit_is_planned(tmp_path):
    cpu = torch.device("cpu")
    assert read_checkpoint(tmp_path, cpu) is None
    stopped(tmp_path, random_state=5)
    last = read_checkpoint(tmp_path, cpu)
    assert last.seed == Seed.from_random_state(5)
    assert last.steps_done == 2


def test_steps_that_a_listener_skipped_stay_skipped(tmp_path):
    def skip(event):
        return event.stage_index == 1

    def kill(event):
        if event.steps_done == 4:
            raise Killed

    whole = []
    resumed = []
    fit(tmp_path / "whole", "gray", (skip, whole.append))
    with pytest.raises(Killed):
        fit(tmp_path / "part", "gray", (skip, kill))
    fit(tmp_path / "part", "gray", (skip, resumed.append))

    def positions(events):
        return [
            (e.steps_done, e.steps_total, e.stage_index, e.step_index) for e in events
        ]

    assert positions(whole)[-len(resumed) :] == positions(resumed)


def test_checkpoints_are_written_from_time_to_time_only(tmp_path):
    stopped(tmp_path, every=60)
    assert not list(tmp_path.iterdir())


def test_the_folder_is_made_and_leftovers_of_a_killed_write_are_removed(tmp_path):
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    (folder / ".fit.checkpoint.0123abcd.part").write_bytes(b"half")
    (folder / "mine.part").touch()
    fit(folder)
    assert [path.name for path in folder.iterdir()] == ["mine.part"]


# Ctrl-C


def ctrl_c(step, times=1):
    def press(event):
        if event.steps_done == step:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    return press


def test_ctrl_c_keeps_the_last_complete_step_and_says_how_to_go_on(tmp_path, fitted):
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(
        KeyboardInterrupt, match="stopped after 3 steps; to resume it, fit again with"
    ):
        fit(tmp_path, listeners=ctrl_c(3), every=60)
    assert signal.getsignal(signal.SIGINT) is handler
    steps = []
    assert saved(fit(tmp_path, listeners=steps.append)) == saved(fitted("vectors"))
    assert steps[0].steps_done == 4


def test_a_second_ctrl_c_does_not_wait(tmp_path):
    with pytest.raises(KeyboardInterrupt) as caught:
        fit(tmp_path, listeners=ctrl_c(3, times=2), every=60)
    assert "to resume" not in str(caught.value)


def test_ctrl_c_after_the_flow_keeps_its_last_checkpoint(tmp_path, fitted):
    pressed = []

    def press_in_axis_step(event):
        if event.stage_name == "axis" and not pressed:
            signal.raise_signal(signal.SIGINT)
            pressed.append(event.steps_done)

    with pytest.raises(KeyboardInterrupt, match="to resume it, fit again with"):
        fit(tmp_path, listeners=press_in_axis_step)
    assert pressed
    assert (tmp_path / "fit.checkpoint").exists()
    steps = []
    assert saved(fit(tmp_path, listeners=steps.append)) == saved(fitted("vectors"))
    assert {event.stage_name for event in steps} == {"axis"}
    assert not (tmp_path / "fit.checkpoint").exists()


# What does not fit


def test_a_checkpoint_of_another_fit_is_refused_and_named(tmp_path):
    path = stopped(tmp_path)
    with pytest.raises(
        CheckpointMismatchError,
        match="is the checkpoint of another fit: n_steps was 4 and is 9",
    ):
        fit(tmp_path, n_steps=9)
    assert path.exists()
    stopped(tmp_path / "masked", kind="masked")
    with pytest.raises(CheckpointMismatchError, match="known was 'top' and is 'left'"):
        fit(tmp_path / "masked", "masked", known="left")


def test_the_identity_of_a_fit_is_all_that_its_result_depends_on():
    def of(settings, data=DATA, **changes):
        array = digest(np.asarray(data))
        return fingerprint(
            "flow", settings, torch.device("cpu"), SEED, X=array, **changes
        )

    mask = np.zeros((40, 40), bool)
    other = mask.copy()
    other[20, 20] = True  # printed, both are the same few corners
    plain = of({"n": 1, "mask": mask})
    same = {
        "n": np.int64(1),
        "mask": torch.from_numpy(mask),
        "device": "cuda",
        "verbose": 1,
    }
    assert plain == of(same)
    for changed in (of({"n": 2, "mask": mask}), of({"n": 1, "mask": other})):
        assert sum(plain[name] != changed[name] for name in plain) == 1
    assert plain["X"] != of({}, DATA.flip(0))["X"]


def test_a_damaged_checkpoint_is_a_clear_error(tmp_path):
    path = stopped(tmp_path)
    whole = path.read_bytes()
    for size in (0, 5, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(
            ModelFileError, match=r"fit\.checkpoint.* delete it to start the fit again"
        ):
            fit(tmp_path)


@pytest.mark.parametrize("every", [-1, "often", float("nan"), float("inf"), True, None])
@pytest.mark.parametrize("has_folder", [False, True])
def test_bad_intervals_are_refused(every, has_folder, tmp_path):
    folder = tmp_path / "new"
    with pytest.raises(ParameterError, match="must be a finite number of at least 0"):
        vectors().fit(
            X, checkpoint_dir=folder if has_folder else None, checkpoint_every=every
        )
    assert not folder.exists()


@pytest.mark.parametrize("folder", [3, True, "", b"folder", ["folder"], "a\0b", Path])
def test_what_is_no_path_of_a_folder_is_refused_before_X_is_read(folder):
    with pytest.raises(
        ParameterError, match=r"checkpoint_dir=.* must be None or the path of a folder"
    ):
        vectors().fit("no rows", checkpoint_dir=folder)


def test_checkpoints_need_a_folder_and_no_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(ParameterError, match="must be a folder, but is a file"):
        vectors().fit(X, checkpoint_dir=path)
    with pytest.raises(ParameterError, match="keep_checkpoint='yes' must be True or"):
        vectors().fit(X, checkpoint_dir=tmp_path, keep_checkpoint="yes")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_is_a_warning_and_the_last_checkpoint_stays(
    tmp_path, monkeypatch, fitted
):
    path = stopped(tmp_path)
    before = path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full_disk)
        with pytest.warns(
            RuntimeWarning, match=r"no checkpoint could be written .*No space left"
        ):
            stopped(tmp_path, 1)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["fit.checkpoint"]
    assert saved(fit(tmp_path)) == saved(fitted("vectors"))


def test_a_checkpoint_is_read_once(tmp_path, monkeypatch):
    stopped(tmp_path)
    n_read = []

    def counted(*arguments):
        n_read.append(1)
        return load(*arguments)

    monkeypatch.setattr("sliceflow.base.checkpoints.load", counted)
    fit(tmp_path)
    assert len(n_read) == 1
