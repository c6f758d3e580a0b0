"""Checkpoints: a flow that was stopped goes on and ends with the same bits, on any number of ranks."""

import os
import random
import signal
import threading
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from models import PICTURES, pictures
from sliceflow.engine import frames
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.events import History
from sliceflow.engine.flow import Flow, Noise, Run, simulate
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage, Whole
from sliceflow.engine.transports import Histogram, Sorted
from sliceflow.models.checkpoints import Checkpoints, OtherFitError, Running
from sliceflow.models.file import ModelFileError
from sliceflow.models.identity import digest, identity
from sliceflow.models.ranks import Ranks

SEED = Seed(3)
DATA = SEED.child("data").normal(3, 90, dtype=torch.float32) ** 3
OF = {"estimator": "a test", "n_steps": "8"}


class Plane(Whole):
    """The first two coordinates."""

    def down(self, x):
        return x[:2].clone()

    def up(self, coordinates):
        return torch.cat([coordinates, torch.zeros_like(coordinates[:1])])


STAGES = {
    "sorted": (Stage("flow", frames.Orthogonal(), 5, Sorted()), Stage("axis", frames.Axis(), 2)),
    "bent": (Stage("flow", frames.Orthogonal(), 5, Histogram(64), n_knots=8, reach=4.0),),
    "fitted": (Stage("flow", frames.MaxSliced(), 4),),
    "spaces": (
        Stage("plane", frames.Orthogonal(), 4, space=Plane()),
        Stage("all", frames.Random(9), 3),
    ),
}


@dataclass
class Fitted:
    x: torch.Tensor
    model: list
    history: dict


def run_flow(name="sorted", checkpoints=None, listeners=()):
    """Fit 60 particles to the data; with what they learnt, and how."""
    flow = Flow(STAGES[name], SEED if checkpoints is None else checkpoints.seed, entropy=0.01)
    noise = Noise(flow.seed.child("noise"))
    particles, data = Cloud(noise.fill(torch.empty(3, 60))), Cloud(DATA)
    run, history = Run(), History()
    heard = [history, *listeners]

    def simulated():
        target = flow.target(particles, data)
        return simulate(flow, particles, target, noise, listeners=heard, run=run)

    if checkpoints is None:
        model = simulated()
    else:
        with checkpoints.running(Running(run, particles, history)):
            model = simulated()
    return Fitted(particles.x, model, history.as_columns())


def same(a, b):
    assert torch.equal(a.x, b.x)
    for name in ("stage", "step", "distance"):
        assert a.history[name] == b.history[name]
    assert len(a.model) == len(b.model)
    for s, t in zip(a.model, b.model, strict=True):
        assert (s.stage, s.step, type(s.table)) == (t.stage, t.step, type(t.table))
        tables = [table.grid() if hasattr(table, "grid") else table for table in (s.table, t.table)]
        assert torch.equal(*(table.values for table in tables))
        assert (s.theta is None) or torch.equal(s.theta, t.theta)


class Killed(Exception):
    pass


def killer(after):
    """A listener that lets some steps pass and then breaks the fit."""
    heard = []

    def kill(event):
        heard.append(event)
        if len(heard) > after:
            raise Killed

    return kill


def stopped(folder, after=3, name="sorted", **about):
    """A fit that was killed, after some more steps than its checkpoint has."""
    with pytest.raises(Killed):
        run_flow(name, Checkpoints(folder, 0, OF | about, SEED), (killer(after),))
    return folder / "fit.checkpoint"


@pytest.mark.parametrize("name", STAGES)
def test_a_fit_stopped_after_any_step_goes_on_to_the_same_bits(name, tmp_path):
    whole = run_flow(name)
    for after in range(1, len(whole.history["step"])):
        stopped(tmp_path, after, name)
        steps = []
        resumed = run_flow(name, Checkpoints(tmp_path, 0, OF, SEED), (steps.append,))
        assert len(steps) == len(whole.history["step"]) - after
        same(resumed, whole)
        assert not list(tmp_path.iterdir())  # nothing is left of a fit that ended well


def test_a_random_seed_is_that_of_the_fit_that_goes_on(tmp_path):
    stopped(tmp_path)
    checkpoints = Checkpoints(tmp_path, 0, OF, Seed(999))
    assert checkpoints.resumes
    assert checkpoints.seed == SEED


def test_checkpoints_are_written_from_time_to_time_only(tmp_path):
    with pytest.raises(Killed):
        run_flow("sorted", Checkpoints(tmp_path, 60, OF, SEED), (killer(3),))
    assert not list(tmp_path.iterdir())


def test_the_folder_is_made_and_leftovers_of_a_killed_write_are_removed(tmp_path):
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    (folder / ".fit.checkpoint.0123abcd.part").write_bytes(b"half")
    (folder / "mine.part").touch()
    run_flow("sorted", Checkpoints(folder, 0, OF, SEED))
    assert [path.name for path in folder.iterdir()] == ["mine.part"]


def test_one_of_several_flows_is_kept_until_all_are_done(tmp_path):
    checkpoints, particles, run = (
        Checkpoints(tmp_path, 9, OF, SEED, part="c"),
        Cloud(DATA),
        Run(stage=1),
    )
    with checkpoints.running(Running(run, particles, History())) as keep:
        keep()
    resumed, again = Run(), Cloud(torch.zeros_like(DATA))
    with Checkpoints(tmp_path, 9, OF, SEED, part="c").running(Running(resumed, again, History())):
        assert resumed.stage == 1
        assert torch.equal(again.x, DATA)
    checkpoints.remove()
    assert not list(tmp_path.iterdir())


# Ctrl-C


def ctrl_c(step, times=1):
    def press(event):
        if event.steps_done == step:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    return press


def test_ctrl_c_keeps_the_last_complete_step_and_says_how_to_go_on(tmp_path):
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="stopped after 4 steps; to resume it, fit again with"):
        run_flow("sorted", Checkpoints(tmp_path, 60, OF, SEED), (ctrl_c(4),))
    assert signal.getsignal(signal.SIGINT) is handler
    steps = []
    same(run_flow("sorted", Checkpoints(tmp_path, 60, OF, SEED), (steps.append,)), run_flow())
    assert steps[0].steps_done == 5


def test_a_second_ctrl_c_does_not_wait(tmp_path):
    with pytest.raises(KeyboardInterrupt) as caught:
        run_flow("sorted", Checkpoints(tmp_path, 60, OF, SEED), (ctrl_c(3, times=2),))
    assert "to resume" not in str(caught.value)


# What does not fit


def test_a_checkpoint_of_another_fit_is_refused_and_named(tmp_path):
    path = stopped(tmp_path, X="float64 #1")
    words = "n_steps was 8 and is 9; sigma was None and is 1"
    with pytest.raises(OtherFitError, match=f"is the checkpoint of another fit: .*{words}"):
        Checkpoints(tmp_path, 0, {**OF, "n_steps": "9", "sigma": "1"}, SEED)
    with pytest.raises(OtherFitError, match="another fit: X was float64 #1 and is float64 #2;"):
        Checkpoints(tmp_path, 0, {**OF, "X": "float64 #2"}, SEED)  # a single difference
    assert path.exists()


def test_a_fit_with_another_mask_does_not_go_on(tmp_path):
    kept = dict(checkpoint_dir=tmp_path, checkpoint_every=0)
    with pytest.raises(Killed):
        pictures(observed="top").fit(PICTURES, **kept, listeners=killer(2))
    with pytest.raises(OtherFitError, match="observed was 'top' and is 'left'"):
        pictures(observed="left").fit(PICTURES, **kept)


def test_the_identity_of_a_fit_is_all_that_its_result_depends_on():
    def of(settings, data=DATA, **changes):
        array = digest(np.asarray(data))
        return identity("flow", settings, torch.device("cpu"), SEED, X=array, **changes)

    mask = np.zeros((40, 40), bool)
    other = mask.copy()
    other[20, 20] = True  # printed, both are the same few corners
    plain = of({"n": 1, "mask": mask})
    assert plain == of(
        {"n": np.int64(1), "mask": torch.from_numpy(mask), "device": "cuda", "verbose": 1}
    )
    for changed in (of({"n": 2, "mask": mask}), of({"n": 1, "mask": other})):
        assert sum(plain[name] != changed[name] for name in plain) == 1
    assert plain["X"] != of({}, DATA.flip(0))["X"]


def test_a_damaged_checkpoint_is_a_clear_error(tmp_path):
    path = stopped(tmp_path)
    whole, rng = path.read_bytes(), random.Random(0)
    damaged = [whole[:size] for size in (0, 5, 100, len(whole) // 2, len(whole) - 1)]
    for _ in range(40):
        changed, bit = bytearray(whole), rng.randrange(8 * len(whole))
        changed[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(changed))
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(ModelFileError, match=r"fit\.checkpoint.* delete it to start the fit again"):
            Checkpoints(tmp_path, 0, OF, SEED)


def test_a_checkpoint_of_other_particles_is_a_clear_error(tmp_path):
    stopped(tmp_path)
    for x, words in ((torch.zeros(3, 61), r"of shape \(3, 60\)"), (torch.zeros(4, 60), "of shape")):
        checkpoints = Checkpoints(tmp_path, 0, OF, SEED)
        with (
            pytest.raises(ModelFileError, match=rf"is damaged: .*{words}.*Delete it to start"),
            checkpoints.running(Running(Run(), Cloud(x), History())),
        ):
            pass


@pytest.mark.parametrize("every", [-1, "often", float("nan")])
def test_bad_intervals_are_refused(every, tmp_path):
    with pytest.raises(ValueError, match="must be a number of seconds, at least 0"):
        Checkpoints(tmp_path, every, OF, SEED)


def test_a_full_disk_is_a_warning_and_the_last_checkpoint_stays(tmp_path, monkeypatch):
    path = stopped(tmp_path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with (
        pytest.warns(RuntimeWarning, match=r"no checkpoint could be written .*No space left"),
        pytest.raises(Killed),
    ):
        run_flow("sorted", Checkpoints(tmp_path, 0, OF, SEED), (killer(2),))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["fit.checkpoint"]
    with pytest.warns(RuntimeWarning, match="the fit continues"):
        resumed = run_flow("sorted", Checkpoints(tmp_path, 0, OF, SEED))
    same(resumed, run_flow())


# Ranks


@dataclass(frozen=True)
class Thread(Ranks):
    """A rank that is a thread of this process."""

    barrier: threading.Barrier | None = None
    letters: tuple = ()

    def all_gather(self, letter):
        self.letters[self.rank] = letter
        self.barrier.wait()
        out = list(self.letters)
        self.barrier.wait()
        return out

    def broadcast(self, letter):
        return self.all_gather(letter)[0]

    def maximum(self, number):
        return max(self.all_gather(number))

    def columns(self, t):
        parts = self.all_gather(t)
        for r, part in enumerate(parts):
            yield sum(p.shape[1] for p in parts[:r]), part


def on_ranks(size, work):
    """Call `work` with each of the ranks at the same time; what they return, in order."""
    barrier, letters, out = threading.Barrier(size), [None] * size, [None] * size

    def one(r):
        try:
            out[r] = work(Thread(r, size, barrier, letters))
        except BaseException as error:
            out[r] = error

    threads = [threading.Thread(target=one, args=(r,)) for r in range(size)]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    return out


def write_on(folder, size):
    """A checkpoint after 3 steps, by ranks with a share of the columns of DATA each."""

    def work(ranks):
        share = ranks.share(90)
        run = Run(stage=1, step=2, done=3, coordinates=DATA[:2, share.slice].clone())
        checkpoints = Checkpoints(folder, 0, OF, SEED, ranks, part="x")
        cloud = Cloud(DATA[:, share.slice].clone())
        with checkpoints.running(Running(run, cloud, History(), share.first)):
            run.after()

    return on_ranks(size, work)


@pytest.mark.parametrize(("writers", "readers"), [(1, 2), (3, 2)])
def test_any_number_of_ranks_reads_what_others_wrote(tmp_path, writers, readers):
    assert write_on(tmp_path, writers) == [None] * writers
    names = [path.name for path in (tmp_path / "x").iterdir()]
    assert names == ["fit.checkpoint"]

    def work(ranks):
        share, run = ranks.share(90), Run()
        cloud = Cloud(torch.zeros(3, share.count))
        checkpoints = Checkpoints(tmp_path, 60, OF, SEED, ranks, part="x")
        with checkpoints.running(Running(run, cloud, History(), share.first)):
            return cloud.x, run.coordinates, run.done

    parts = on_ranks(readers, work)
    assert torch.equal(torch.cat([part[0] for part in parts], 1), DATA)
    assert torch.equal(torch.cat([part[1] for part in parts], 1), DATA[:2])
    assert {part[2] for part in parts} == {3}
