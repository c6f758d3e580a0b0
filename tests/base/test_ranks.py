"""Ranks: any number of them gives what one process gives, and none dies unnoticed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ranks as fits
import sliceflow
from models import vectors
from sliceflow.base.estimator import NoRowsError
from sliceflow.base.fingerprint import require_same_parameters
from sliceflow.base.ranks import Communicator, LostRankError, joined
from sliceflow.estimators.vectors.fit import describe_y

LOOP = {
    "linux": "lo",
    "darwin": "lo0",
}  # the interface that ranks of one machine talk through


def torchrun(n, *words):
    """The script of this test on n ranks of this machine."""
    if sys.platform not in LOOP:
        pytest.skip("torchrun needs libuv, which torch does not bring on Windows")
    source = str(Path(sliceflow.__file__).parent.parent)
    variables = os.environ | {
        "PYTHONPATH": source,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": LOOP[sys.platform],
    }
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)]
    command = [sys.executable, *ranks, fits.__file__, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=variables)


def same(results, expected):
    assert set(results) == set(expected)
    for name in expected:
        result = np.asarray(results[name])
        value = np.asarray(expected[name])
        assert result.shape == value.shape, name
        if value.dtype.kind == "f":
            assert np.abs(result - value).max() <= 1e-5, name
        else:
            assert np.array_equal(result, value), name


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What two ranks give: all cases and errors, by one start of the processes."""
    folder = tmp_path_factory.mktemp("two")
    stop = dict(
        checkpoint_dir=folder / "kept digits",
        checkpoint_every=0,
        listeners=(fits.halt,),
    )
    with pytest.raises(ValueError, match="stopped"):
        fits.fitted("digits", **stop)
    words = (*fits.CASES, *fits.WRONG, "digits/resume", "clusters/stop")
    if sys.platform == "linux":
        assert fits.run_forked(2, folder, *words) == [0, 0]
    else:  # where a process that has used libraries of the system cannot fork
        ran = torchrun(2, folder, *words)
        assert ran.returncode == 0, ran.stderr
    return folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """What is left of a fit on three ranks, one of which died."""
    folder = tmp_path_factory.mktemp("three")
    return folder, torchrun(3, folder, "labels", "digits/kill")


@pytest.mark.parametrize("name", fits.CASES)
def test_two_ranks_give_the_particles_and_the_model_of_one_process(name, two):
    alone = fits.result(fits.fitted(name))
    same(np.load(two / f"{name}.npz"), alone)
    loaded = sliceflow.load(two / f"{name}.sliceflow", device="cpu")
    if name != "masked":
        assert np.allclose(
            loaded.sample(50, random_state=0), alone["samples"], atol=1e-5
        )


def test_rows_of_ranks_are_not_known_to_a_model(two):
    model = sliceflow.load(two / "labels.sliceflow", device="cpu")
    message = r"each of 2 ranks had its own; fit all rows again, in one process"
    with pytest.raises(NoRowsError, match=message):
        model.forget([[0.0]])


def test_any_number_of_ranks_goes_on_where_others_stopped(two):
    """Two where one stopped, and one where two did."""
    same(np.load(two / "digits resume.npz"), fits.result(fits.fitted("digits")))
    steps = []
    kept = two / "kept clusters"
    flow = fits.fitted("clusters", checkpoint_dir=kept, listeners=(steps.append,))
    assert steps[0].steps_done == 5
    same(fits.result(flow), fits.result(fits.fitted("clusters")))
    assert not list(kept.iterdir())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "other amplifier",
            "amplifier=1{other}.0 on rank {other} but 1{rank}.0 on rank {rank}",
        ),
        (
            "other seed",
            "random_state={other} on rank {other} but {rank} on rank {rank}",
        ),
        ("other columns", "rank {other} has X of float64 with {wide} columns"),
        ("kept rows", "save_rows=True needs all rows in one process"),
        ("own maps", "which several ranks cannot do; use a finite amplifier"),
    ],
)
def test_ranks_that_do_not_fit_together_are_an_error_on_each(name, text, two):
    for rank, other in ((0, 1), (1, 0)):
        message = (two / f"{name} {rank}.txt").read_text()
        assert text.format(rank=rank, other=other, wide=3 + other) in message
    assert not (two / f"{name}.npz").exists()


@pytest.mark.slow
def test_a_dead_rank_ends_the_job_and_the_fit_goes_on_in_one_process(killed):
    folder, ran = killed
    same(np.load(folder / "labels.npz"), fits.result(fits.fitted("labels")))
    assert ran.returncode != 0
    assert "another rank" in ran.stderr
    kept = folder / "kept digits"
    assert (
        f"the last checkpoint is {kept / 'fit.checkpoint'}: start the same fit again"
        in ran.stderr
    )
    steps = []
    flow = fits.fitted("digits", checkpoint_dir=kept, listeners=(steps.append,))
    assert steps[0].steps_done == 5
    same(fits.result(flow), fits.result(fits.fitted("digits")))
    assert not list(kept.iterdir())


# The pieces


@given(st.integers(0, 1000), st.integers(1, 20))
def test_shares_are_all_there_is_and_nearly_equal(total, size):
    shares = [Communicator(r, size).own_shard(total) for r in range(size)]
    assert [i for s in shares for i in range(total)[s.slice]] == list(range(total))
    assert max(s.count for s in shares) - min(s.count for s in shares) <= 1
    rows = np.arange(total)
    assert np.array_equal(
        np.concatenate([Communicator(r, size).own_rows(rows) for r in range(size)]),
        rows,
    )


def answering(monkeypatch, *answers):
    """Ranks of which the others answered so, seen from the first."""
    monkeypatch.setattr(
        Communicator, "all_gather_objects", lambda self, value: [value, *answers]
    )
    return Communicator(0, 1 + len(answers))


def test_ranks_without_rows_and_other_parameters_are_named(monkeypatch):
    with pytest.raises(
        ValueError, match="rank 1 of 2 has none of the data; use fewer ranks"
    ):
        answering(monkeypatch, (0, "rows")).shard_by_counts(5)
    shard = answering(monkeypatch, (3, "rows")).shard_by_counts(5)
    assert (shard.first, shard.count, shard.total) == (0, 5, 8)
    ranks = answering(monkeypatch, {"a": "1", "b": "2"}, {"a": "1", "b": "3"})
    with pytest.raises(
        ValueError, match=r"^b=3 on rank 2 but 2 on rank 0; give all ranks the same"
    ):
        ranks.require_equal({"a": "1", "b": "2"})


def test_what_changes_no_particle_may_differ_from_rank_to_rank(monkeypatch):
    facts = []
    monkeypatch.setattr(
        Communicator, "require_equal", lambda self, of: facts.append(of)
    )

    def agree(**changes):
        require_same_parameters(
            Communicator(0, 2),
            "flow",
            vectors(**changes).get_params(),
            torch.device("cpu"),
        )

    agree(random_state=np.random.RandomState(0))
    agree(random_state=np.random.RandomState(1), verbose=1)
    agree(random_state=np.random.RandomState(1), n_steps=9)
    assert facts[0] == facts[1]
    assert {name for name in facts[2] if facts[2][name] != facts[1][name]} == {
        "n_steps"
    }


LOST = [
    RuntimeError("[pair.cc:534] Connection closed by peer [127.0.0.1]:1234"),
    torch.distributed.DistNetworkError("failed to recv, got 0 bytes"),
]
OTHER = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
    ValueError("other"),
]


@pytest.mark.parametrize("error", [*LOST, *OTHER], ids=str)
def test_a_rank_that_is_gone_is_said_to_be_lost_and_other_errors_stay(
    error, monkeypatch
):
    def fail(*_):
        raise error

    monkeypatch.setattr(torch.distributed, "all_reduce", fail)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(LostRankError if error in LOST else type(error)) as caught:
        Communicator(0, 2).max_int(1)
    assert (caught.value is error) == (error in OTHER)
    assert signal.getsignal(signal.SIGTERM) == before


def test_signals_are_as_before_when_ranks_part_in_error(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(LostRankError, match="was told to end"), joined("cpu"):
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_shape_of_y_is_written_as_numpy_does():
    assert describe_y(None) == "no y"
    assert describe_y(np.zeros(3)) == "y of f and shape (n,)"
    assert describe_y(np.zeros((3, 2))) == "y of f and shape (n, 2)"
