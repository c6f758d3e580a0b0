"""Fits that are the same on any number of ranks; a script that torchrun starts, and what it needs.

    torchrun --nproc-per-node 2 ranks.py FOLDER CASE CASE/kill CASE/resume …

A case is fitted, and all particles are kept; or the last rank kills itself after step 7; or the fit
that was killed goes on.
"""

import math
import os
import signal
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from sliceflow import ImageFlow, SlicedWassersteinFlow, VectorOptions
from sliceflow.engine.transports import Histogram
from sliceflow.models.ranks import Ranks, joined

DIGITS = load_digits()
PICTURES, LABELS = DIGITS.images[:900].astype(np.uint8), DIGITS.target[:900]
ORDER = np.argsort(LABELS, kind="stable")  # ranks have other classes
NAMES = np.array([f"digit {c}" for c in LABELS])
RNG = np.random.default_rng(0)
# Black and white on the first ranks, grey on the last: what directions they are for, all must agree on.
MIXED = np.concatenate((16 * (PICTURES[:600] > 8), RNG.integers(4, 12, (300, 8, 8)))).astype(np.uint8)
X = RNG.normal(size=(1500, 5)) + RNG.integers(0, 3, (1500, 1))
Y = np.sort(RNG.integers(0, 4, 1500))  # in order: ranks have different classes
FEW = RNG.normal(size=(80, 3))

vectors = dict(
    n_particles=4001, n_steps=12, random_state=3, device="cpu", options=VectorOptions(n_knots=32)
)
pictures = dict(
    schedule="1[1] 3[2] 8[5,3]",
    n_particles=5003,
    quality=4,
    n_pixel_values=17,
    random_state=3,
    device="cpu",
)


def stop(event):
    """End the second stage after two steps; only the last rank wants to."""
    return (
        event.stage_index == 1
        and event.step == 1
        and int(os.environ.get("RANK", 0)) + 1 == int(os.environ.get("WORLD_SIZE", 1))
    )


# name: estimator, the arrays that are sharded, other options of fit
CASES = {
    "vectors": (lambda: SlicedWassersteinFlow(**vectors), (X,), {}),
    "float32, entropy": (
        lambda: SlicedWassersteinFlow(**vectors, entropy=0.01),
        (X.astype(np.float32),),
        {},
    ),
    "labels": (lambda: SlicedWassersteinFlow(**vectors), (X, Y), {}),
    "classes left out": (
        lambda: SlicedWassersteinFlow(**{**vectors, "n_particles": None}),
        (X, Y),
        dict(particle_conditions=[1, 0, 1, 1] * 1250),
    ),
    "columns": (
        lambda: SlicedWassersteinFlow(**vectors, frame="random", condition="joint"),
        (X[:, :3], X[:, 3:]),
        {},
    ),
    "sorted": (lambda: SlicedWassersteinFlow(**{**vectors, "n_particles": 161}), (FEW,), {}),
    "early stopping": (
        lambda: SlicedWassersteinFlow(
            **vectors
            | dict(n_steps=40, options=VectorOptions(n_iter_no_change=2, tol=0.05, n_knots=32)),
            early_stopping=True,
        ),
        (X, Y),
        {},
    ),
    "digits": (lambda: ImageFlow(**pictures), (PICTURES / 16,), {}),
    "digits by class": (lambda: ImageFlow(**pictures), (PICTURES, NAMES), {}),
    "classes apart": (lambda: ImageFlow(**pictures, amplifier=math.inf), (PICTURES, NAMES), {}),
    "classes apart, in order": (
        lambda: ImageFlow(**pictures, amplifier=math.inf, mirror=True),
        (PICTURES[ORDER], LABELS[ORDER]),
        {},
    ),
    "clusters": (lambda: ImageFlow(**pictures, n_clusters=3), (PICTURES,), {}),
    "mirror images": (lambda: ImageFlow(**pictures, mirror=True), (PICTURES, LABELS), {}),
    "some drawings, some not": (lambda: ImageFlow(**pictures), (MIXED,), {}),
    "inpainting": (lambda: ImageFlow(**pictures, observed="top"), (PICTURES,), {}),
    "mirrored inpainting": (
        lambda: ImageFlow(**pictures, observed="left", mirror=True, transport=Histogram(64)),
        (PICTURES,),
        {},
    ),
    "a stage ended": (lambda: ImageFlow(**pictures), (PICTURES,), dict(listeners=(stop,))),
}


# name: a case, and what of it depends on the rank
OTHERS = {
    "other amplifier": ("labels", lambda rank: {"amplifier": 10.0 + rank}),
    "other particles": ("digits", lambda rank: {"n_particles": 5000 + rank}),
    "other seed": ("vectors", lambda rank: {"random_state": rank}),
    "other verbosity": ("sorted", lambda rank: {"verbose": rank}),
}


def fitted(name, ranks=None, **options):
    """The case fitted, on this rank's rows: shares that are not equal."""
    if name == "other columns":
        return SlicedWassersteinFlow(10, 1).fit(np.ones((5, 3 + ranks.rank)), ranks=ranks)
    if name.startswith("other "):  # rank r has a parameter that no other rank has
        make, arrays, more = CASES[OTHERS[name][0]]
        other = make().set_params(**OTHERS[name][1](ranks.rank))
        return other.fit(*arrays, **more, ranks=ranks)
    make, arrays, more = CASES[name]
    if ranks is not None:
        n = len(arrays[0])
        cuts = [round(n * (r / ranks.size) ** 1.3) for r in range(ranks.size + 1)]
        arrays = [a[cuts[ranks.rank] : cuts[ranks.rank + 1]] for a in arrays]
    options["listeners"] = (*more.get("listeners", ()), *options.get("listeners", ()))
    return make().fit(*arrays, **{**more, **options}, ranks=ranks)


def result(flow, ranks=Ranks()):  # noqa: B008
    """What must be the same: all particles, their conditions, the history, offline samples."""
    out = {"particles": ranks.gather(flow.particles_), "distance": flow.history_["distance"]}
    if flow.particle_conditions_ is not None:
        out["conditions"] = ranks.gather(flow.particle_conditions_)
    if getattr(flow, "observed", None) is not None:
        out["samples"] = flow.inpaint(PICTURES[:5], 2, random_state=0)
    else:
        out["samples"] = flow.sample(50, random_state=0)
    return out


def main():
    folder = Path(sys.argv[1])
    with joined("cpu") as ranks:
        (folder / f"pid {ranks.rank}").write_text(str(os.getpid()))

        def kill(event):
            if ranks.rank == ranks.size - 1 and event.steps_done == 7:
                os.kill(os.getpid(), signal.SIGKILL)

        for word in sys.argv[2:]:
            name, _, verb = word.partition("/")
            kept = dict(checkpoint_dir=folder / f"kept {name}", checkpoint_every=0)
            options = {"kill": {**kept, "listeners": (kill,)}, "resume": kept}.get(verb, {})
            try:
                flow = fitted(name, ranks, **options)
            except ValueError as error:
                (folder / f"{word.replace('/', ' ')} {ranks.rank}.txt").write_text(str(error))
                continue
            found = result(flow, ranks)
            if ranks.first:
                np.savez(folder / f"{word.replace('/', ' ')}.npz", **found)
                flow.save(folder / f"{name}.sliceflow")


if __name__ == "__main__":
    main()
