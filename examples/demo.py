"""Two moons, digits by class, halves of digits completed: fit, sample, look, measure.

    python examples/demo.py --out demo

writes `moons.png`, `digits.png`, `digits_inpainting.png` and `quality.md`, in under a minute on two
cores. Nothing is downloaded: the data come with scikit-learn. *Batched* samples are the particles at
the end of a fit; *offline* samples are fresh noise moved by the fitted maps, as many as you like.
"""

import argparse
import datetime
import os
import platform
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from grids import BLUE, INK, ORANGE, Panel, by_class, completions, sheet
from runs import rows
from sklearn.datasets import make_moons
from sklearn.svm import SVC

from sliceflow import ImageFlow, SlicedWassersteinFlow, __version__, metrics
from sliceflow.datasets import Pictures, load
from sliceflow.spaces.pictures.layout import MASKS

COLOURS = ("#0072B2", "#E69F00")  # Okabe and Ito: told apart by every kind of eye
VERBOSE = int(sys.stderr.isatty())

# What is measured: (key in `scores`, ideal value, what it says)
MEASURES = [
    (
        "accuracy",
        "1",
        "samples that a classifier of real digits recognises as the class asked for",
    ),
    ("FD-PCA32", "floor", "Fréchet distance to the test rows, 32 principal components"),
    ("sliced distance", "floor", "sliced 2-Wasserstein distance to the test rows"),
    (
        "two-sample accuracy",
        "0.5",
        "how often a random forest tells samples from test rows",
    ),
    (
        "NN ratio",
        "1",
        "distance to the nearest training row, over a test row's; 0 is copying",
    ),
]


def scores(
    samples: np.ndarray,
    labels: np.ndarray,
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
) -> dict[str, float]:
    """What is measured of labelled rows.

    `accuracy` is that of a classifier of real rows, on the samples; `TSTR` that of a classifier of
    samples, on the test rows.
    """
    return {
        "FD-PCA32": metrics.frechet_distance_pca(samples, test[0], train[0]),
        "sliced distance": metrics.sliced_wasserstein(samples, test[0]),
        "two-sample accuracy": metrics.two_sample_accuracy(samples, test[0]),
        "NN ratio": metrics.nn_ratio(samples, train[0], test[0]),
        "accuracy": float(SVC(C=10).fit(*train).score(samples, labels)),
        "TSTR": float(SVC(C=10).fit(samples, labels).score(*test)),
    }


def moons(out: Path) -> Path:
    """Fit two moons by class, and draw the data beside batched and offline samples."""
    X, y = make_moons(2000, noise=0.06, random_state=0)
    X = X.astype(
        np.float32
    )  # as pictures are: numba compiles its kernels once, not twice
    # Two columns need few steps; many more would copy the rows.
    flow = SlicedWassersteinFlow(n_steps=50, random_state=0, verbose=VERBOSE).fit(X, y)
    clouds = [
        ("data: 2000 rows", X, y),
        (
            "batched samples: 2000 particles",
            flow.particles_[:2000],
            flow.particle_conditions_[:2000],
        ),
        ("offline samples: 2000 new points", flow.sample(2000, y=y, random_state=1), y),
    ]
    fig, axes = plt.subplots(
        1, 3, figsize=(12, 2.9), sharex=True, sharey=True, layout="constrained"
    )
    for ax, (title, points, labels) in zip(axes, clouds, strict=True):
        for label in (0, 1):
            chosen = points[labels == label]
            ax.scatter(
                *chosen.T, s=4, linewidths=0, c=COLOURS[label], label=f"class {label}"
            )
        ax.set(title=title, xlabel="$x_1$", aspect="equal")
    axes[0].set_ylabel("$x_2$")
    axes[0].legend(markerscale=4, loc="upper right")
    fig.savefig(out / "moons.png", dpi=110, bbox_inches="tight")
    return out / "moons.png"


def digits(out: Path, train: Pictures, test: Pictures) -> tuple[Path, str]:
    """Fit digits by class; draw real ones beside samples, and measure how good the samples are."""
    shared = {
        "n_pixel_values": train.n_pixel_values,
        "quality": 20,
        "random_state": 0,
        "verbose": VERBOSE,
    }
    began = time.perf_counter()
    flow = ImageFlow(n_particles=2000, transport="histogram", **shared)
    flow.fit(train.images, train.labels)
    after_batched = time.perf_counter()
    # Offline samples want many particles, for smooth maps: leave n_particles to its default.
    model = ImageFlow(**shared).fit(train.images, train.labels)
    y_offline = np.resize(train.labels, 2000)
    offline = model.sample(2000, y=y_offline, random_state=1)
    after_offline = time.perf_counter()
    # The same digits as vectors of 64 numbers, to compare with: no patches, no pyramid.
    vectors = SlicedWassersteinFlow(
        n_particles=2000,
        n_steps=400,
        random_state=0,
        transport="histogram",
        verbose=VERBOSE,
    )
    vectors.fit(
        rows(train.images, train.n_pixel_values).astype(np.float32), train.labels
    )
    seconds = np.diff((began, after_batched, after_offline, time.perf_counter()))

    groups = [
        ("real training digits", INK, train.images, train.labels),
        ("batched samples", BLUE, flow.particles_, flow.particle_conditions_),
        ("offline samples", ORANGE, offline, y_offline),
    ]
    names = [str(label) for label in flow.classes_]
    drawn = [
        Panel(by_class(images, labels, 7), title, colour, row_names=names)
        for title, colour, images, labels in groups
    ]
    picture = sheet(out / "digits.png", drawn, train.n_pixel_values, "Digits by class")
    real, unseen = (
        (rows(part.images, part.n_pixel_values), part.labels) for part in (train, test)
    )
    measured = [
        (rows(flow.particles_, train.n_pixel_values), flow.particle_conditions_),
        (rows(offline, train.n_pixel_values), y_offline),
        (vectors.particles_, vectors.particle_conditions_),
        real,
    ]
    with ThreadPoolExecutor() as pool:
        numbers = list(pool.map(lambda pair: scores(*pair, real, unseen), measured))
    return picture, quality(numbers, len(train.images), len(test.images), seconds)


def inpainting(out: Path, train: Pictures, test: Pictures, n: int = 6) -> Path:
    """Complete the lower halves of test digits, six times each."""
    flow = ImageFlow(
        n_pixel_values=train.n_pixel_values,
        observed="top",
        quality=15,
        n_particles=2000,
        random_state=0,
        verbose=VERBOSE,
    )
    given = test.images[
        [np.flatnonzero(test.labels == label)[0] for label in range(10)]
    ]
    completed = flow.fit(train.images).inpaint(given, n=n, random_state=1)
    known = MASKS["top"](8, 8)
    drawn = completions(given, completed, known, [str(label) for label in range(10)])
    title = "Test digits: the top half is given, the checked half is hidden"
    return sheet(out / "digits_inpainting.png", drawn, train.n_pixel_values, title)


def quality(scores: list, n_train: int, n_test: int, seconds: np.ndarray) -> str:
    """The table of measured quality, in Markdown; the floor is what real rows score."""
    batched, offline, vectors, floor = scores
    # A training row is its own neighbour, and known to the classifier: here the floor is the test rows.
    floor |= {"accuracy": floor["TSTR"], "NN ratio": 1.0}
    lines = [
        "# Digits, by class: measured quality",
        "",
        "| measure | pictures, batched | pictures, offline | vectors, batched | floor | ideal "
        "| what it says |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {key} | {batched[key]:.3f} | {offline[key]:.3f} | {vectors[key]:.3f} "
            f"| {floor[key]:.3f} | {ideal} | {what} |"
            for key, ideal, what in MEASURES
        ),
        "",
        f"Floor: what {n_train} real training rows score in place of samples (for accuracy and NN "
        f"ratio: what the {n_test} test rows score).",
        f"Pictures: `ImageFlow`, 20 steps per stage; batched: 2000 particles ({seconds[0]:.1f} s); "
        f"offline: 2000 new samples of a model of the default 10,000 or more particles "
        f"({seconds[1]:.1f} s). Vectors: `SlicedWassersteinFlow`, 2000 particles, 400 steps "
        f"({seconds[2]:.1f} s). The first run on a machine compiles its kernels within these seconds.",
        "",
        f"`python {' '.join(sys.argv)}`, {datetime.date.today()}, sliceflow {__version__}, "
        f"{os.cpu_count()} cores of {platform.machine()}.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run everything and list what was written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("examples-out"), help="folder to write to"
    )
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    train = load("digits")
    test = load("digits", split="test")
    written = [moons(out)]
    picture, table = digits(out, train, test)
    written += [picture, inpainting(out, train, test)]
    (out / "quality.md").write_text(table, encoding="utf-8")
    print(table)
    print("wrote", *written, out / "quality.md", sep="\n  ")


if __name__ == "__main__":
    main()
