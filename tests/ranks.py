"""Fits that are the same on any number of ranks: a script that torchrun starts, and
what it needs.

    torchrun --nproc-per-node 2 ranks.py FOLDER CASE CASE/kill CASE/stop CASE/resume …

A case is fitted, and what must be equal is written; or the last rank kills itself after
step 5; or all stop there; or a fit that was stopped goes on.

`run_forked` does the same in forks of this process, which import nothing again.
"""

import math
import multiprocessing
import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

from sliceflow import ImageFlow, SlicedWassersteinFlow, VectorOptions
from sliceflow.base.ranks import Communicator, joined
from sliceflow.engine.transports import HistogramTransport

DIGITS = load_digits()
PICTURES = DIGITS.images[:300].astype(np.uint8)
LABELS = DIGITS.target[:300]
NAMES = np.array([f"digit {c}" for c in LABELS])
RNG = np.random.default_rng(0)
X = RNG.normal(size=(500, 4)) + RNG.integers(0, 3, (500, 1))
Y = np.sort(RNG.integers(0, 4, 500))  # in order: ranks have different classes

vectors = dict(
    n_particles=1001,
    n_steps=8,
    random_state=3,
    device="cpu",
    transport=HistogramTransport(64),
    options=VectorOptions(n_knots=32, smoothing=0, n_axis_steps=0),
)
pictures = dict(
    schedule="1[1] 3[2] 8[5,3]",
    n_particles=803,
    steps_per_stage=2,
    n_pixel_values=17,
    random_state=3,
    device="cpu",
    transport=HistogramTransport(64),
)


def stop(event):
    """End the second stage after one step; only the last rank wants to."""
    last = int(os.environ.get("RANK", 0)) + 1 == int(os.environ.get("WORLD_SIZE", 1))
    return last and event.stage_index == 1


# name: estimator, the arrays that are sharded, other arguments of fit
CASES = {
    "labels": (lambda: SlicedWassersteinFlow(**vectors), (X, Y), {}),
    "entropy": (
        lambda: SlicedWassersteinFlow(**vectors, entropy=0.01),
        (X.astype("f4"),),
        {},
    ),
    "columns": (
        lambda: SlicedWassersteinFlow(**vectors, condition_mode="joint"),
        (X[:, :2], X[:, 2:]),
        {},
    ),
    "digits": (lambda: ImageFlow(**pictures, amplifier=10.0), (PICTURES, NAMES), {}),
    "apart": (
        lambda: ImageFlow(**pictures, amplifier=math.inf, mirror=True),
        (PICTURES, LABELS),
        {},
    ),
    "clusters": (lambda: ImageFlow(**pictures, n_clusters=3), (PICTURES,), {}),
    "masked": (lambda: ImageFlow(**pictures, known="top"), (PICTURES,), {}),
    "a stage ended": (
        lambda: ImageFlow(**pictures),
        (PICTURES,),
        dict(listeners=(stop,)),
    ),
}
WRONG = {  # what differs from rank to rank
    "other amplifier": lambda rank: dict(amplifier=10.0 + rank),
    "other seed": lambda rank: dict(random_state=rank),
    "other columns": lambda rank: {},
    "kept rows": lambda rank: dict(save_rows=True),
    "own maps": lambda rank: dict(amplifier=math.inf),
}


def halt(event):
    """A listener that ends the fit with an error, after the checkpoint of step 4."""
    if event.steps_done == 5:
        raise ValueError("stopped")


def fitted(name, ranks=None, **options):
    """The case fitted, on this rank's rows: shares that are not equal."""
    if name in WRONG:
        flow = SlicedWassersteinFlow(**vectors).set_params(**WRONG[name](ranks.rank))
        columns = 3 + ranks.rank if name == "other columns" else 4
        return flow.fit(X[:50, :1].repeat(columns, 1), Y[:50], ranks=ranks)
    make, arrays, more = CASES[name]
    if ranks is not None:
        cuts = [
            round(len(arrays[0]) * (r / ranks.size) ** 1.3)
            for r in range(ranks.size + 1)
        ]
        arrays = [a[cuts[ranks.rank] : cuts[ranks.rank + 1]] for a in arrays]
    options["listeners"] = (*more.get("listeners", ()), *options.get("listeners", ()))
    return make().fit(*arrays, **options, ranks=ranks)


def result(flow, ranks=Communicator()):  # noqa: B008
    """What must be the same: all particles, their conditions, the history, offline
    samples.
    """
    out = {
        "particles": ranks.all_gather_rows(flow.particles_),
        "distance": flow.history_["distance"],
    }
    if flow.particle_conditions_ is not None:
        out["conditions"] = ranks.all_gather_rows(flow.particle_conditions_)
    if getattr(flow, "known", None) is not None:
        out["samples"] = flow.inpaint(PICTURES[:5], n=2, random_state=0)
    else:
        out["samples"] = flow.sample(50, random_state=0)
    return out


def run(folder, words):
    """What this rank does: see the docstring of this file."""
    with joined("cpu") as ranks:

        def kill(event):
            if ranks.rank == ranks.size - 1 and event.steps_done == 5:
                os.kill(os.getpid(), signal.SIGKILL)

        for word in words:
            name, _, verb = word.partition("/")
            kept = dict(checkpoint_dir=folder / f"kept {name}", checkpoint_every=0)
            steps = []
            listener = {"kill": kill, "stop": halt, "resume": steps.append}.get(verb)
            options = {**kept, "listeners": (listener,)} if verb else {}
            try:
                flow = fitted(name, ranks, **options)
            except ValueError as error:
                (folder / f"{name} {ranks.rank}.txt").write_text(str(error))
                continue
            assert not steps or steps[0].steps_done == 5
            found = result(flow, ranks)
            if ranks.is_main:
                np.savez(folder / f"{word.replace('/', ' ')}.npz", **found)
                flow.save(folder / f"{name}.sliceflow")


def run_forked(size, folder, *words):
    """Fork ranks off this process, which print their errors, and return exit codes.

    Only for Linux. They meet at a store of this process, as those of torchrun do.
    """
    store = torch.distributed.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )
    variables = {
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": "lo",  # the loop of Linux
    }
    context = multiprocessing.get_context("fork")
    processes = []
    for rank in range(size):
        own_variables = variables | {"RANK": str(rank)}
        process = context.Process(
            target=_run_one, args=(own_variables, folder, words), daemon=True
        )
        process.start()
        processes.append(process)
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def _run_one(variables, folder, words):
    """Be one rank, in a fork: with one thread, since forks have no others."""
    os.environ.update(variables)
    torch.set_num_threads(1)
    with threadpool_limits(1):
        run(folder, words)


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])
