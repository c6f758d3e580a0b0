"""Checkpoints: a fit that was stopped goes on and ends with the same bits."""

import math
import os
import random
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import sliceflow
from sliceflow import (
    ImageFlow,
    ModelFileError,
    PictureOptions,
    SlicedWassersteinFlow,
    VectorOptions,
)
from sliceflow.engine import frames
from sliceflow.engine.transports import Histogram, Sorted
from sliceflow.models import file as container

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 3)) ** 3
Y = np.arange(90) % 3
PICTURES = RNG.integers(0, 17, (50, 5, 4)).astype(np.uint8)
quick = dict(
    n_particles=100, n_steps=6, random_state=3, device="cpu", options=VectorOptions(n_knots=16)
)
small = dict(
    schedule="1[1] 3[2] 5[3]",
    n_particles=60,
    quality=3,
    n_pixel_values=17,
    random_state=3,
    device="cpu",
)

apart = dict(amplifier=math.inf, transport="histogram")


def stops(event):
    return event.stage_index == 1 and event.step == 1


FITS = {
    "vectors": (lambda: SlicedWassersteinFlow(**quick), (X,), {}),
    "labels, entropy": (lambda: SlicedWassersteinFlow(**quick, entropy=0.01), (X, Y), {}),
    "columns": (
        lambda: SlicedWassersteinFlow(**quick, frame=frames.Random(20), condition="joint"),
        (X, X[:, :2]),
        {},
    ),
    "max-sliced": (lambda: SlicedWassersteinFlow(**quick, frame="max-sliced"), (X,), {}),
    "batches": (lambda: SlicedWassersteinFlow(**quick, transport=Histogram(16, most=40)), (X, Y), {}),
    "shares": (
        lambda: SlicedWassersteinFlow(**quick),
        (X, Y),
        dict(particle_conditions=[0, 0, 1, 2] * 25),
    ),
    "early stopping": (
        lambda: SlicedWassersteinFlow(
            **quick | dict(n_steps=20, options=VectorOptions(n_knots=16, n_iter_no_change=2, tol=0.1)),
            early_stopping=True,
        ),
        (X,),
        {},
    ),
    "pictures": (lambda: ImageFlow(**small), (PICTURES, np.arange(50) % 2), {}),
    "batches of pictures": (lambda: ImageFlow(**small, transport=Sorted(25)), (PICTURES,), {}),
    "classes apart": (lambda: ImageFlow(**small, **apart), (PICTURES, np.arange(50) % 3), {}),
    "batches of classes": (
        lambda: ImageFlow(**small, **{**apart, "transport": Histogram(16, most=20)}),
        (PICTURES, np.arange(50) % 3),
        {},
    ),
    "clusters": (lambda: ImageFlow(**small, transport="histogram", n_clusters=3), (PICTURES,), {}),
    "inpainting": (lambda: ImageFlow(**small, observed="top"), (PICTURES,), {}),
    "a stage ended": (lambda: ImageFlow(**small), (PICTURES,), dict(listeners=(stops,))),
    "no model": (lambda: ImageFlow(**small, options=PictureOptions(n_knots=0)), (PICTURES,), {}),
}


class Killed(Exception):
    pass


def killer(step):
    """A listener that lets `step` steps pass and then breaks the fit."""
    heard = []

    def kill(event):
        heard.append(event)
        if len(heard) > step:
            raise Killed

    return kill


def same(a, b):
    assert np.array_equal(a.particles_, b.particles_)
    assert np.array_equal(a.particle_conditions_, b.particle_conditions_)
    for name in ("stage", "step", "distance"):
        assert a.history_[name] == b.history_[name], name
    assert a.n_iter_ == b.n_iter_
    if getattr(a, "observed", None) is not None:
        ours, others = (flow.inpaint(PICTURES[:3], 2, random_state=0) for flow in (a, b))
        assert np.array_equal(ours, others)
    elif a.options is None or a.options.n_knots != 0:
        assert np.array_equal(a.sample(9, random_state=0), b.sample(9, random_state=0))


@pytest.mark.parametrize("name", FITS)
def test_a_fit_stopped_after_any_step_goes_on_to_the_same_bits(name, tmp_path):
    make, data, options = FITS[name]
    whole = make().fit(*data, **options)
    options = {**options, "checkpoint_dir": tmp_path, "checkpoint_every": 0}
    listeners = options.pop("listeners", ())
    for step in range(1, whole.n_iter_):
        with pytest.raises(Killed):
            make().fit(*data, **options, listeners=(*listeners, killer(step)))
        assert (tmp_path / "fit.checkpoint").exists()
        steps = []
        resumed = make().fit(*data, **options, listeners=(*listeners, steps.append))
        # Axis steps are few, and done again.
        kept = [stage for stage in whole.history_["stage"][:step] if stage != "axis"]
        assert len(steps) == whole.n_iter_ - len(kept)
        assert steps[-1].steps_done == steps[-1].steps_total == whole.n_iter_
        same(resumed, whole)
        assert not list(tmp_path.iterdir())  # nothing is left of a fit that ended well


@pytest.mark.parametrize("name", ["vectors", "pictures"])
def test_a_fit_stopped_many_times_ends_with_the_same_bits(name, tmp_path):
    make, data, _ = FITS[name]
    options = dict(checkpoint_dir=tmp_path, checkpoint_every=0)
    for _ in range(4):
        with pytest.raises(Killed):
            make().fit(*data, **options, listeners=(killer(1),))
    resumed = make().fit(*data, **options)
    same(resumed, make().fit(*data))
    assert np.all(np.diff(resumed.history_["seconds"]) > 0)


def test_a_random_seed_is_the_same_when_the_fit_goes_on(tmp_path):
    make = lambda: SlicedWassersteinFlow(**{**quick, "random_state": None})  # noqa: E731
    first, seen = [], []
    options = dict(checkpoint_dir=tmp_path, checkpoint_every=0)
    with pytest.raises(Killed):
        make().fit(X, **options, listeners=(lambda e: first.append(e.particles.clone()), killer(3)))
    make().fit(X, **options, listeners=(lambda e: seen.append(e.particles.clone()),))
    assert np.array_equal(first[3], seen[0])  # the step that was lost, done again


def test_checkpoints_are_written_from_time_to_time_only(tmp_path):
    with pytest.raises(Killed):
        SlicedWassersteinFlow(**quick).fit(X, checkpoint_dir=tmp_path, listeners=(killer(5),))
    assert not list(tmp_path.iterdir())


def test_the_folder_is_made_and_leftovers_of_a_killed_write_are_removed(tmp_path):
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    (folder / ".fit.checkpoint.0123abcd.part").write_bytes(b"half")
    (folder / "mine.txt").touch()
    SlicedWassersteinFlow(**quick).fit(X, checkpoint_dir=folder, checkpoint_every=0)
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    SlicedWassersteinFlow(**quick).fit(X, checkpoint_dir=tmp_path / "new" / "one")


# Ctrl-C


def ctrl_c(step, times=1):
    def press(event):
        if event.steps_done == step:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    return press


@pytest.mark.parametrize("name", ["vectors", "pictures", "inpainting"])
def test_ctrl_c_keeps_the_last_complete_step_and_says_how_to_go_on(name, tmp_path):
    make, data, _ = FITS[name]
    handler = signal.getsignal(signal.SIGINT)
    flow = make()
    with pytest.raises(
        KeyboardInterrupt, match="stopped after 4 steps; to resume it, fit again with the same"
    ):
        flow.fit(*data, checkpoint_dir=tmp_path, listeners=(ctrl_c(4),))
    assert signal.getsignal(signal.SIGINT) is handler
    assert not hasattr(flow, "history_")
    steps = []
    same(flow.fit(*data, checkpoint_dir=tmp_path, listeners=(steps.append,)), make().fit(*data))
    assert steps[0].steps_done == 5


def test_a_second_ctrl_c_does_not_wait(tmp_path):
    with pytest.raises(KeyboardInterrupt) as caught:
        SlicedWassersteinFlow(**quick).fit(X, checkpoint_dir=tmp_path, listeners=(ctrl_c(3, times=2),))
    assert "to go on" not in str(caught.value)


def test_other_threads_can_fit_with_checkpoints(tmp_path):
    flow = SlicedWassersteinFlow(**quick)
    thread = threading.Thread(target=flow.fit, args=(X,), kwargs=dict(checkpoint_dir=tmp_path))
    thread.start()
    thread.join()
    same(flow, SlicedWassersteinFlow(**quick).fit(X))


# What does not fit


@pytest.fixture
def stopped(tmp_path):
    with pytest.raises(Killed):
        SlicedWassersteinFlow(**quick).fit(
            X, Y, checkpoint_dir=tmp_path, checkpoint_every=0, listeners=(killer(3),)
        )
    return tmp_path


OTHERS = {
    "n_steps was 6 and is 7": (dict(n_steps=7), X, Y),
    "amplifier was 10.0 and is 2.0; entropy was 0.0 and is 0.1": (
        dict(amplifier=2, entropy=0.1),
        X,
        Y,
    ),
    "random_state was Seed(entropy=3, path=()) and is Seed(entropy=4, path=())": (
        dict(random_state=4),
        X,
        Y,
    ),
    "frame was Orthogonal() and is Axis()": (dict(frame="axis"), X, Y),
    "X was float64 (90, 3) #": ({}, X + 1e-9, Y),
    "y was int64 (90,) #": ({}, X, Y[::-1]),
    " and is None": ({}, X, None),
}


@pytest.mark.parametrize("message", OTHERS)
def test_a_checkpoint_of_another_fit_is_refused_and_named(stopped, message):
    parameters, x, y = OTHERS[message]
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        SlicedWassersteinFlow(**{**quick, **parameters}).fit(x, y, checkpoint_dir=stopped)
    assert "is the checkpoint of another fit" in str(caught.value)
    assert (stopped / "fit.checkpoint").exists()


@pytest.mark.parametrize("kind", [np.array, torch.tensor, np.ndarray.tolist])
def test_a_checkpoint_of_another_mask_is_refused(kind, tmp_path):
    images = np.random.default_rng(0).integers(256, size=(20, 40, 40), dtype=np.uint8)
    masks = np.zeros((2, 40, 40), bool)
    masks[0, 20, 20] = masks[1, 19, 19] = True  # printed, both are the same few corners
    first, other = (ImageFlow("1[1] 2[2]", 50, 3, random_state=0, observed=kind(m)) for m in masks)
    with pytest.raises(Killed):
        first.fit(images, checkpoint_dir=tmp_path, checkpoint_every=0, listeners=(killer(3),))
    with pytest.raises(ValueError, match="observed was"):
        other.fit(images, checkpoint_dir=tmp_path)


def test_a_checkpoint_of_another_estimator_is_refused(stopped):
    with pytest.raises(ValueError, match="estimator was SlicedWassersteinFlow and is ImageFlow"):
        ImageFlow(**small).fit(PICTURES, checkpoint_dir=stopped)


def test_what_is_shown_and_where_may_change(stopped):
    flow = SlicedWassersteinFlow(**{**quick, "device": "auto"}, verbose=1)
    if not torch.cuda.is_available():
        same(flow.fit(X, Y, checkpoint_dir=stopped), SlicedWassersteinFlow(**quick).fit(X, Y))


def test_a_damaged_checkpoint_is_a_clear_error(stopped):
    path = stopped / "fit.checkpoint"
    whole, rng = path.read_bytes(), random.Random(0)
    cut = [whole[:size] for size in (0, 5, 100, len(whole) // 2, len(whole) - 1)]
    for _ in range(40):
        damaged, bit = bytearray(whole), rng.randrange(8 * len(whole))
        damaged[bit // 8] ^= 1 << bit % 8
        cut.append(bytes(damaged))
    for damaged in cut:
        path.write_bytes(damaged)
        with pytest.raises(ModelFileError, match=r"fit\.checkpoint.* delete it to start the fit again"):
            SlicedWassersteinFlow(**quick).fit(X, Y, checkpoint_dir=stopped)


def test_a_checkpoint_of_fewer_particles_is_a_clear_error(stopped):
    path = stopped / "fit.checkpoint"
    text, tensors = container.read(path)
    few = tensors["particles"][:, :-1].contiguous()
    container.write(path, text, tensors | {"particles": few})
    with pytest.raises(ModelFileError, match=r"is damaged: it holds \d+ of \d+ particles\. Delete it"):
        SlicedWassersteinFlow(**quick).fit(X, Y, checkpoint_dir=stopped)


def test_a_saved_model_is_not_a_checkpoint_nor_the_other_way_round(stopped, tmp_path):
    with pytest.raises(ModelFileError, match="format is missing"):
        sliceflow.load(stopped / "fit.checkpoint")
    SlicedWassersteinFlow(**quick).fit(X).save(stopped / "fit.checkpoint")
    with pytest.raises(ModelFileError, match="checkpoint is missing"):
        SlicedWassersteinFlow(**quick).fit(X, Y, checkpoint_dir=stopped)


@pytest.mark.parametrize("every", [-1, None, "often", float("nan")])
def test_bad_intervals_are_refused(every, tmp_path):
    with pytest.raises(ValueError, match="must be a number of seconds, at least 0"):
        SlicedWassersteinFlow(**quick).fit(X, checkpoint_dir=tmp_path, checkpoint_every=every)


def test_a_full_disk_is_a_warning_and_the_last_checkpoint_stays(stopped, monkeypatch):
    path = stopped / "fit.checkpoint"
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    options = dict(checkpoint_dir=stopped, checkpoint_every=0)
    with (
        pytest.warns(RuntimeWarning, match=r"no checkpoint could be written .*No space left"),
        pytest.raises(Killed),
    ):
        SlicedWassersteinFlow(**quick).fit(X, Y, **options, listeners=(killer(2),))
    assert path.read_bytes() == before
    assert [p.name for p in stopped.iterdir()] == ["fit.checkpoint"]
    with pytest.warns(RuntimeWarning, match="the fit continues"):
        resumed = SlicedWassersteinFlow(**quick).fit(X, Y, **options)
    same(resumed, SlicedWassersteinFlow(**quick).fit(X, Y))


# SIGKILL

# One process that imports everything and does nothing else, so that forking it is safe and quick.
SCRIPT = """
import os, random, select, signal, sys, time
import numpy as np
import torch
from sliceflow import ImageFlow, SlicedWassersteinFlow, VectorOptions

kind, where, kills, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
rng = np.random.default_rng(0)
if kind == "vectors":
    options = VectorOptions(n_knots=32)
    flow = SlicedWassersteinFlow(2000, 150, random_state=0, device="cpu", options=options)
    data = rng.normal(size=(1000, 4)) ** 3, np.arange(1000) % 3
else:
    flow = ImageFlow("1[1] 3[3] 8[8,3]", 1000, 40, n_pixel_values=17, random_state=0, device="cpu")
    data = rng.integers(0, 17, (500, 8, 8)).astype(np.uint8), np.arange(500) % 2

def start(name, **options):
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        began = time.perf_counter()
        say = lambda e: os.write(writes, b"%d\\n" % e.steps_done) and None
        flow.fit(*data, **options, listeners=(say,))
        np.savez(f"{where}/{name}.npz", particles=flow.particles_, distance=flow.history_["distance"],
                 samples=flow.sample(50, random_state=0), seconds=time.perf_counter() - began)
        os._exit(0)
    os.close(writes)
    return child, os.fdopen(reads)

def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

child, said = start("alone")
said.read()
assert ended(child) == 0
alone = np.load(f"{where}/alone.npz")
total, span = len(alone["distance"]), float(alone["seconds"])
options = dict(checkpoint_dir=f"{where}/checkpoints", checkpoint_every=0)
pick = random.Random(seed)
for _ in range(kills):
    child, said = start("resumed", **options)
    first = int(said.readline())
    for _ in range(pick.randrange(total // (2 * kills))):  # by steps: a clock may find it done
        said.readline()
    time.sleep(pick.uniform(0, span / total))
    os.kill(child, signal.SIGKILL)
    status = ended(child)
    print(first, status, flush=True)
child, said = start("resumed", **options)
said.read()
assert ended(child) == 0
"""


def killed_and_resumed(kind, folder, kills, seed):
    """Kill a fit at random moments, again and again, and hold it against one that was left alone."""
    if not hasattr(os, "fork"):
        pytest.skip("needs os.fork")
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, kind, str(folder), str(kills), str(seed)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(sliceflow.__file__).parent.parent)},
    )
    assert ran.returncode == 0, ran.stderr
    first, status = np.array([line.split() for line in ran.stdout.splitlines()], dtype=int).T
    assert np.all(status == -signal.SIGKILL)
    assert len(status) == kills
    assert np.all(np.diff(first) >= 0)  # every start goes on where the one before was
    assert first[-1] > 1
    whole, resumed = np.load(folder / "alone.npz"), np.load(folder / "resumed.npz")
    for name in ("particles", "samples", "distance"):
        assert np.array_equal(resumed[name], whole[name]), name


@pytest.mark.parametrize("kind", ["vectors", pytest.param("pictures", marks=pytest.mark.slow)])
def test_a_fit_killed_at_random_moments_ends_with_the_same_bits(kind, tmp_path):
    killed_and_resumed(kind, tmp_path, 2, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vectors", "pictures"])
def test_a_fit_killed_twenty_times_ends_with_the_same_bits(kind, tmp_path):
    killed_and_resumed(kind, tmp_path, 20, seed=1)


def test_what_a_fit_left_that_was_killed_while_writing_is_removed(tmp_path):
    left = tmp_path / ".fit.checkpoint.0a1b2c3d.part"
    left.write_bytes(b"half a checkpoint")
    mine = tmp_path / "notes.part"
    mine.write_text("mine")
    SlicedWassersteinFlow(**quick).fit(X, checkpoint_dir=tmp_path)
    assert list(tmp_path.iterdir()) == [mine]
