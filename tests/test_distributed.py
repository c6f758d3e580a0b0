"""Ranks: any number of them gives what one process gives, and none of them may die unnoticed."""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

import ranks as fits
import sliceflow
from sliceflow import ImageFlow, ModelFileError, SlicedWassersteinFlow, VectorOptions
from sliceflow.engine.random import Seed
from sliceflow.engine.transports import Auto, Histogram, Sorted
from sliceflow.models.identity import digest, same_on_all
from sliceflow.models.ranks import (
    LostRank,
    Place,
    Ranks,
    SharedTransport,
    joined,
    lost,
    shared_transport,
    weighted_batches,
)

TOLERANCE = 1e-5
POSIX = pytest.mark.skipif(os.name == "nt", reason="needs the signals of POSIX")
LOOP = {"linux": "lo", "darwin": "lo0"}  # the interface that ranks of one machine talk through


def torchrun(n, *words, start=subprocess.run, **options):
    """A command on n ranks of this machine."""
    if sys.platform not in LOOP:
        pytest.skip("torchrun needs libuv, which torch does not bring on Windows")
    source = str(Path(sliceflow.__file__).parent.parent)
    loop = LOOP[sys.platform]
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)]
    return start(
        [sys.executable, *ranks, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": source,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": loop,
        },
        **options,
    )


def same(found, wanted):
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        ours, value = np.asarray(found[name]), np.asarray(value)
        assert ours.shape == value.shape, name
        if value.dtype.kind == "f":
            assert np.abs(ours - value).max() <= TOLERANCE, name
        else:
            assert np.array_equal(ours, value), name


@pytest.fixture(scope="module")
def alone():
    """What one process gives, fitted when it is asked for."""
    known = {}

    def result(name):
        if name not in known:
            known[name] = fits.result(fits.fitted(name))
        return known[name]

    return result


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of a checkpoint by one process."""
    folder = tmp_path_factory.mktemp("stopped")

    def stop(event):
        if event.steps_done == 4:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        fits.fitted("early stopping", checkpoint_dir=folder, checkpoint_every=0, listeners=(stop,))
    return folder


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """What three ranks give, the job and its folder: all cases, and then one of them dies."""
    folder = tmp_path_factory.mktemp("three")
    ran = torchrun(3, fits.__file__, folder, *fits.CASES, "digits by class/kill")
    return folder, ran


QUICK = ("labels", "digits by class")


@pytest.fixture(scope="module")
def two(tmp_path_factory, stopped):
    """What two ranks give: some cases, the rest of another process' fit, and errors."""
    folder = tmp_path_factory.mktemp("two")
    shutil.copytree(stopped, folder / "kept early stopping")
    words = [*QUICK, "early stopping/resume", "other columns", *fits.OTHERS]
    ran = torchrun(2, fits.__file__, folder, *words)
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.fixture(scope="module")
def two_more(tmp_path_factory, three):
    """What two ranks give: all cases, and the rest of the fit of three ranks."""
    folder = tmp_path_factory.mktemp("more")
    shutil.copytree(three[0] / "kept digits by class", folder / "kept digits by class")
    ran = torchrun(2, fits.__file__, folder, *fits.CASES, "digits by class/resume")
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.mark.parametrize("name", QUICK)
def test_two_ranks_give_the_particles_and_the_model_of_one_process(name, alone, two):
    same(np.load(two / f"{name}.npz"), alone(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", fits.CASES)
def test_ranks_give_the_particles_and_the_model_of_one_process(name, alone, two_more, three):
    for folder in (two_more, three[0]):
        same(np.load(folder / f"{name}.npz"), alone(name))


@pytest.mark.parametrize("name", ["labels", "inpainting", "classes apart", "clusters"])
def test_one_rank_gives_the_particles_of_one_process(name, alone):
    same(fits.result(fits.fitted(name, Ranks())), alone(name))


def test_a_model_saved_by_the_first_rank_is_the_model_of_one_process(alone, two):
    flow = sliceflow.load(two / "digits by class.sliceflow", device="cpu")
    assert np.array_equal(flow.sample(50, random_state=0), alone("digits by class")["samples"])


@pytest.mark.slow
def test_a_dead_rank_ends_the_job_and_it_is_said_where_the_checkpoint_is(three):
    folder, ran = three
    assert ran.returncode != 0
    assert "another rank" in ran.stderr
    assert "The fit ends after 6 steps" in ran.stderr
    path = folder / "kept digits by class" / "fit.checkpoint"
    assert f"the last checkpoint is {path}: start the same fit again, on any ranks" in ran.stderr
    names = [p.name for p in path.parent.iterdir() if not p.name.startswith(".")]
    assert sorted(names) == ["fit.checkpoint", *(f"fit.checkpoint.6.{i}" for i in (0, 1667, 3335))]


@pytest.mark.slow
def test_a_fit_of_three_ranks_goes_on_with_two_or_in_one_process(three, two_more, alone, tmp_path):
    name = "digits by class"
    same(np.load(two_more / f"{name} resume.npz"), alone(name))
    shutil.copytree(three[0] / f"kept {name}", tmp_path / "kept")
    steps = []
    flow = fits.fitted(name, checkpoint_dir=tmp_path / "kept", listeners=(steps.append,))
    assert steps[0].steps_done == 7
    same(fits.result(flow), alone(name))
    assert not list((tmp_path / "kept").iterdir())


@pytest.mark.slow
@POSIX
def test_a_rank_killed_at_any_moment_leaves_a_checkpoint_to_go_on_from(alone, tmp_path):
    name, pick, done = "digits by class", random.Random(0), 0
    path = tmp_path / f"kept {name}" / "fit.checkpoint"
    for n in (2, 3, 2, 3):
        job = torchrun(n, fits.__file__, tmp_path, f"{name}/resume", start=subprocess.Popen)
        before = path.stat().st_mtime_ns if path.exists() else 0
        while job.poll() is None and not (path.exists() and path.stat().st_mtime_ns > before):
            time.sleep(0.01)
        time.sleep(pick.uniform(0, 0.05))  # writing takes most of a step
        if job.poll() is None:
            os.kill(int((tmp_path / f"pid {pick.randrange(n)}").read_text()), signal.SIGKILL)
        job.communicate(timeout=120)
        if job.returncode == 0 or not path.exists():  # it was done already
            break
        now = json.loads(safe_open(path, "pt").metadata()["sliceflow"])["done"]
        assert now > done
        done = now
    assert done > 0
    same(fits.result(fits.fitted(name, checkpoint_dir=path.parent)), alone(name))


def test_a_fit_of_one_process_goes_on_with_two_ranks(two, alone):
    same(np.load(two / "early stopping resume.npz"), alone("early stopping"))
    assert not list((two / "kept early stopping").iterdir())


@pytest.mark.slow
def test_a_part_that_is_missing_is_a_clear_error(three, tmp_path):
    shutil.copytree(three[0] / "kept digits by class", tmp_path / "kept")
    (tmp_path / "kept" / "fit.checkpoint.6.1667").unlink()
    with pytest.raises(ModelFileError, match=r"fit\.checkpoint is damaged: .*6\.1667 cannot be read"):
        fits.fitted("digits by class", checkpoint_dir=tmp_path / "kept")


def test_ranks_that_do_not_fit_together_are_an_error(two):
    for rank, other in ((0, 1), (1, 0)):
        said = (two / f"other columns {rank}.txt").read_text()
        assert f"rank {other} has X of float64 with {3 + other} columns and no y" in said
        assert f"rank {rank} has X of float64 with {3 + rank} columns and no y" in said


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("other amplifier", "amplifier=1{}.0 on rank {} but 1{}.0 on rank {}"),
        ("other particles", "n_particles=500{} on rank {} but 500{} on rank {}"),
        ("other seed", "random_state={} on rank {} but {} on rank {}"),
    ],
)
def test_ranks_with_other_parameters_are_an_error_that_names_them(name, text, two):
    for rank, other in ((0, 1), (1, 0)):
        said = (two / f"{name} {rank}.txt").read_text()
        assert said == f"{text.format(other, other, rank, rank)}: give all ranks the same parameters"
    assert not (two / f"{name}.npz").exists()


def test_what_changes_no_particle_may_differ_from_rank_to_rank(two):
    assert (two / "other verbosity.npz").exists()


def told(monkeypatch, *facts):
    """Ranks that have said these facts, seen from the first."""
    monkeypatch.setattr(Ranks, "all_gather", lambda self, value: [value, *facts])
    return Ranks(0, 1 + len(facts))


def test_ranks_agree_on_parameters_arrays_and_checkpoints(monkeypatch):
    flow = SlicedWassersteinFlow(n_steps=3, random_state=np.random.RandomState(0))
    facts = []
    monkeypatch.setattr(Ranks, "agree", lambda self, of: facts.append(of))

    def agree(checkpoint_dir=None, ranks=Ranks(0, 2), **changes):  # noqa: B008
        parameters = flow.set_params(**changes).get_params()
        same_on_all(ranks, "flow", parameters, torch.device("cpu"), checkpoint_dir)

    agree()
    agree(random_state=np.random.RandomState(1))
    assert facts[0] == facts[1]  # the first rank's is that of all
    agree("folder")
    agree("other folder", options=VectorOptions(tol=0.5))
    agree(ranks=Ranks())
    assert len(facts) == 4
    changed = [{k for k in a if a[k] != b[k]} for a, b in pairwise(facts[1:])]
    assert changed == [{"checkpoint_dir"}, {"options"}]


def test_the_parameter_that_differs_is_named(monkeypatch):
    ranks = told(monkeypatch, {"a": "1", "b": "2"}, {"a": "1", "b": "3"})
    with pytest.raises(ValueError, match=r"^b=3 on rank 2 but 2 on rank 0: give all ranks the same"):
        ranks.agree({"a": "1", "b": "2"})
    told(monkeypatch, {"a": "1"}).agree({"a": "1"})


LOST = [
    RuntimeError("[pair.cc:534] Connection closed by peer [127.0.0.1]:1234"),
    RuntimeError("[unbound_buffer.cc:81] Timed out waiting 600000ms for recv operation to complete"),
    RuntimeError("[pair.cc:427] writev [127.0.0.1]:5: Broken pipe"),
    torch.distributed.DistBackendError("NCCL error: ncclRemoteError: remote process exited"),
    torch.distributed.DistNetworkError("failed to recv, got 0 bytes"),
]
OTHER = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes"),
    RuntimeError("op.preamble.length <= op.nbytes. 32 vs 16"),
    torch.distributed.DistBackendError("NCCL error: ncclInvalidUsage"),
]


@pytest.mark.parametrize("error", LOST, ids=str)
def test_a_rank_that_is_gone_is_said_to_be_lost(error, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(torch.distributed, "all_reduce", fail)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(LostRank, match=r"^rank 0 of 2 has lost another rank, which died or does not"):
        Ranks(0, 2).maximum(1)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("error", OTHER, ids=str)
def test_any_other_error_is_what_it_is(error, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(torch.distributed, "all_reduce", fail)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(type(error)) as caught:
        Ranks(0, 2).maximum(1)
    assert caught.value is error
    assert signal.getsignal(signal.SIGTERM) == before


@POSIX
@pytest.mark.parametrize("launched", [False, True])
def test_the_end_that_torchrun_brings_is_outlived_once_and_then_signals_end_again(
    launched, monkeypatch
):
    """Without torchrun nothing is waited for."""
    heard, waited = [], []

    class Waiting(threading.Event):
        def wait(self, timeout=None):
            waited.append(super().wait(timeout))

    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("own"))
    try:
        monkeypatch.setattr(torch.distributed, "is_torchelastic_launched", lambda: launched)
        if launched:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        monkeypatch.setattr(threading, "Event", Waiting)
        lost._outlive_torchrun()
        assert waited == ([True] if launched else [])
        assert heard == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == ["own"]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_signals_are_as_before_when_ranks_part_in_error(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(LostRank, match="was told to end"), joined("cpu"):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.slow
def test_the_command_line_under_torchrun_writes_what_it_writes_alone(tmp_path):
    settings = pytest.importorskip("sliceflow.cli.settings")
    from sliceflow.cli.failures import Say
    from sliceflow.cli.fit import fit

    words = ["-m", "sliceflow", "fit", "digits", "--conditional", "--quality", "1", "--device", "cpu"]
    words += ["--particles", "2000", "--out", tmp_path / "ranks"]
    ran = torchrun(2, *words)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("1297 pictures of 8×8") == 1  # only the first rank speaks
    how = {"conditional": True, "quality": "1", "particles": 2000, "device": "cpu"}
    fit(settings.Settings("digits", str(tmp_path / "alone"), **how), Say(silent=True, progress=False))
    files = [{p.name for p in (tmp_path / of).iterdir()} for of in ("ranks", "alone")]
    assert files[0] == files[1]
    found, wanted = (np.load(tmp_path / of / "samples.npz") for of in ("ranks", "alone"))
    same(found, wanted)


# Pieces


@given(st.integers(0, 1000), st.integers(1, 20))
def test_shares_are_all_there_is_and_nearly_equal(total, size):
    shares = [Ranks(r, size).share(total) for r in range(size)]
    assert [i for s in shares for i in range(total)[s.slice]] == list(range(total))
    assert max(s.count for s in shares) - min(s.count for s in shares) <= 1


@given(
    st.lists(
        st.floats(-1e100, 1e100).filter(lambda v: v == 0 or abs(v) > 1e-200), min_size=1, max_size=30
    ),
    st.integers(0, 29),
)
def test_the_mean_is_exact_and_in_any_order(values, cut):
    found = Ranks().mean(np.array(values)[:, None], len(values))
    turned = Ranks().mean(np.array(values[cut:] + values[:cut])[:, None], len(values))
    exact = math.fsum(values) / len(values)
    assert found[0] == turned[0]
    assert found[0] == pytest.approx(exact, rel=1e-12, abs=1e-15 * max(map(abs, values)))


def test_the_mean_of_infinite_and_of_zero_columns():
    found = Ranks().mean(np.array([[0.0, np.inf, 5e-324], [0.0, 1.0, 5e-324]]), 2)
    assert found.tolist() == [0.0, np.inf, 5e-324]


@given(st.integers(1, 5), st.integers(1, 40), st.data())
def test_a_part_of_the_numbers_is_that_part_of_all_of_them(rows, columns, data):
    first = data.draw(st.integers(0, columns - 1))
    part = slice(first, data.draw(st.integers(first + 1, columns)))
    whole = Seed(1).uniform(rows, columns, dtype=torch.float32)
    assert torch.equal(Seed(1).uniform_part(rows, columns, part, dtype=torch.float32), whole[:, part])


@pytest.mark.parametrize(
    "array",
    [
        fits.X,
        fits.X.astype(np.float32)[:, 0],
        fits.PICTURES[:, :3, :3],
        fits.NAMES,
        fits.NAMES.astype(object),
        fits.Y > 1,
    ],
)
def test_a_digest_does_not_depend_on_how_rows_are_spread_but_on_every_one_of_them(array):
    class Two(Ranks):
        """Adds what it has heard before."""

        def sum(self, t):
            return t.add_(heard.pop() if heard else 0)

    heard, n = [], len(array)
    first, last = Place(0, 100, n), Place(100, n - 100, n)

    class Tells(Ranks):
        def sum(self, t):
            heard.append(t.clone())
            return t

    digest(array[:100], Tells(), first)
    assert digest(array[100:], Two(), last) == digest(array)
    changed = array.copy()
    changed[[3, -1]] = changed[[-1, 3]]
    assert digest(changed) != digest(array)
    changed = array.copy()
    changed[5] = array[np.flatnonzero((array != array[5]).reshape(n, -1).any(1))[0]]
    assert digest(changed) != digest(array)


def test_data_that_no_particle_has_the_class_of_are_left_out():
    codes_q, codes_p = torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([1, 2])
    look, left_out = weighted_batches(codes_q, codes_p, torch.arange(2, 6), "cpu")
    assert left_out == 2
    assert look.at(0) == (None, None)
    assert look.weights.tolist() == pytest.approx([3, 1, 1, 1])
    look, _ = weighted_batches(codes_q, codes_p, torch.arange(2), "cpu")  # a rank with nothing of use
    assert look.weights.tolist() == [0]


def test_small_clouds_are_sorted_and_large_ones_counted_by_what_all_ranks_have():
    ranks = Ranks(0, 2)
    assert shared_transport(Auto(), ranks, 5000) == SharedTransport(Sorted(most=1 << 17), ranks, 5000)
    assert shared_transport(Auto(), ranks, 5001) == SharedTransport(Histogram(1024), ranks, 5001)
    assert shared_transport(Auto(), Ranks(), 10) == Auto()


@pytest.mark.parametrize(
    ("flow", "data"),
    [
        (SlicedWassersteinFlow(n_particles=2, n_steps=1), fits.FEW),
        (ImageFlow(n_particles=2, quality=1, n_pixel_values=17), fits.PICTURES),
    ],
)
def test_every_rank_needs_a_particle(flow, data, monkeypatch):
    ranks = Ranks(0, 3)
    monkeypatch.setattr(Ranks, "all_gather", lambda self, value: [value] * self.size)
    monkeypatch.setattr(Ranks, "_reduce", lambda self, t, how: t)
    with pytest.raises(ValueError, match="n_particles=2 must be at least 3, one per rank"):
        flow.fit(data, ranks=ranks)
