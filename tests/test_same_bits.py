"""A fixed seed gives what it gave before: moving and renaming code must not change a bit.

Digests hold where they were made, on the kind of CPU that `tests/data/bits.json` names, with the
version of torch there. Elsewhere sums come out in another order: means and spreads are compared.
`python tests/test_same_bits.py` writes the file anew: only when results are meant to change.
"""

import hashlib
import json
import math
import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, make_moons

import sliceflow
from sliceflow import ImageFlow, PictureOptions, SlicedWassersteinFlow, VectorOptions

FILE = Path(__file__).parent / "data" / "bits.json"
MACHINE = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} torch {torch.__version__}"
ON = dict(device="cpu", random_state=0)
ROWS = dict(options=VectorOptions(smoothing=0), **ON)
WHOLE = dict(options=PictureOptions(shrinkage=0), **ON)


def vectors() -> list[np.ndarray]:
    x, y = make_moons(300, noise=0.05, random_state=0)
    plain = SlicedWassersteinFlow(600, 6, **ROWS).fit(x)
    labels = SlicedWassersteinFlow(600, 6, **ROWS).fit(x.astype(np.float32), y)
    columns = SlicedWassersteinFlow(300, 5, frame="random", condition="joint", **ROWS)
    columns.fit(x[:, :1], x[:, 1:])
    return [
        plain.particles_,
        plain.sample(50, random_state=1),
        labels.particles_,
        labels.sample(50, y=1, random_state=1),
        columns.particles_,
        columns.sample(20, y=0.5, random_state=1),
    ]


def smoothed_vectors() -> list[np.ndarray]:
    x, y = make_moons(300, noise=0.05, random_state=0)
    plain = SlicedWassersteinFlow(600, 6, **ON).fit(x)
    apart = SlicedWassersteinFlow(600, 6, amplifier=math.inf, **ON).fit(x, y)
    options = VectorOptions(smoothing=0.8, n_neighbors=10)
    labels = SlicedWassersteinFlow(600, 6, options=options, **ON).fit(x.astype(np.float32), y)
    strength = np.array([plain.plan_.smoothing, apart.plan_.smoothing])
    return [
        strength,
        plain.particles_,
        plain.sample(50, random_state=1),
        apart.particles_,
        labels.particles_,
    ]


def counted_vectors() -> list[np.ndarray]:
    x = np.random.default_rng(0).standard_t(2, size=(400, 3))
    flow = SlicedWassersteinFlow(800, 6, transport="histogram", entropy=0.01, **ROWS).fit(x)
    online = SlicedWassersteinFlow(500, 6, **ON).partial_fit(x[:300]).partial_fit(x[300:])
    online.forget(x[50:100])
    return [flow.particles_, flow.sample(50, random_state=1), online.particles_]


def stopped_early() -> list[np.ndarray]:
    x, _ = make_moons(300, noise=0.05, random_state=0)
    flow = SlicedWassersteinFlow(
        600,
        30,
        early_stopping=True,
        options=VectorOptions(n_iter_no_change=2, tol=0.1, smoothing=0),
        **ON,
    )
    return [flow.fit(x).particles_, np.array(flow.n_iter_)]


def pictures() -> list[np.ndarray]:
    images, y = (load_digits().images[:500].astype(np.uint8), load_digits().target[:500])
    options = dict(schedule="1[1] 4[3] 8[5,3]", quality=3, n_particles=400, n_pixel_values=17, **WHOLE)
    shared = ImageFlow(**options, amplifier=10).fit(images, y)
    apart = ImageFlow(**options, amplifier=math.inf, transport="histogram").fit(images, y % 2)
    clusters = ImageFlow(**options, n_clusters=3, transport="histogram", mirror=True).fit(images)
    top = ImageFlow(**options, observed="top").fit(images)
    cosines = ImageFlow(**options, patch_basis="cosines").fit(images)
    online = ImageFlow(**options).partial_fit(images[:300], y[:300]).partial_fit(images[300:], y[300:])
    return [
        shared.particles_,
        shared.sample(20, 3, random_state=1),
        apart.particles_,
        apart.sample(20, 1, random_state=1),
        clusters.particles_,
        clusters.sample(20, random_state=1),
        top.inpaint(images[:5], 2, random_state=1),
        cosines.particles_,
        cosines.sample(20, random_state=1),
        online.particles_,
    ]


def coloured_pictures() -> list[np.ndarray]:
    images = np.random.default_rng(0).random((200, 6, 5, 3)).astype(np.float32)
    schedule = "1[1]*3 2[2]*3 3[3]*3 4[4]*3 5[5]*3 6[6] 6[2,1]"
    noise = PictureOptions(start="noise", shrinkage=0)
    flow = ImageFlow(schedule, quality=2, n_particles=300, options=noise, **ON).fit(images)
    return [flow.particles_, flow.sample(10, random_state=1)]


def loaded() -> list[np.ndarray]:
    return [
        np.asarray(
            sliceflow.load(FILE.parent / f"{name}-5.sliceflow", "cpu").sample(20, random_state=1)
        )
        for name in ("vectors", "pictures", "classes", "bends")
    ]


CASES = [vectors, smoothed_vectors, counted_vectors, stopped_early, pictures, coloured_pictures, loaded]


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def summary(array: np.ndarray) -> list[float]:
    """Mean and spread, which rounding hardly changes even where single pixels differ."""
    values = np.asarray(array, dtype=np.float64)
    return [round(float(values.mean()), 6), round(float(values.std()), 6)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_results_of_a_seed_are_as_they_were(case: Callable[[], list[np.ndarray]]) -> None:
    kept = json.loads(FILE.read_text())
    arrays = case()
    for array, was in zip(arrays, kept["summaries"][case.__name__], strict=True):
        mean, std = summary(array)
        assert mean == pytest.approx(was[0], abs=0.05 * was[1] + 1e-6)
        assert std == pytest.approx(was[1], rel=0.05)
    if kept["machine"] == MACHINE:
        assert [digest(array) for array in arrays] == kept["digests"][case.__name__]


if __name__ == "__main__":
    results = {case.__name__: case() for case in CASES}
    text = {
        "machine": MACHINE,
        "digests": {name: [digest(a) for a in arrays] for name, arrays in results.items()},
        "summaries": {name: [summary(a) for a in arrays] for name, arrays in results.items()},
    }
    FILE.write_text(json.dumps(text, indent=1) + "\n")
