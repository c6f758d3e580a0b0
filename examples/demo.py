"""Two moons, digits by class, halves of digits completed: fit, sample, look, measure.

    python examples/demo.py --out demo

writes `moons.png`, `density.png`, `digits.png`, `digits_inpainting.png` and
`quality.md`, in under a minute on two cores. Nothing is downloaded: the data come with
scikit-learn. *Batched* samples are the particles at the end of a fit; *offline* samples
are fresh noise moved by the fitted maps, as many as you like.
"""

import argparse
import datetime
import os
import platform
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from density import density
from grids import BLUE, INK, ORANGE, Panel, by_class, completions, sheet
from runs import rows
from sklearn.datasets import make_moons
from sklearn.svm import SVC

from sliceflow import ImageFlow, SlicedWassersteinFlow, __version__, metrics
from sliceflow.datasets import PictureSet, load
from sliceflow.estimators.pictures.known_parts import KNOWN_PARTS

COLORS = ("#0072B2", "#E69F00")  # Okabe and Ito: told apart by every kind of eye
VERBOSE = int(sys.stderr.isatty())  # progress bars, for people only
N_SAMPLES = 2000  # that are drawn and measured, of each kind
STEPS_PER_STAGE = 20
N_COMPLETIONS = 6


class Measure(NamedTuple):
    """A row of the table: a name in `scores`, its ideal value, and what it says."""

    name: str
    ideal: str
    meaning: str


MEASURES = [
    Measure(
        "accuracy",
        "1",
        "samples that a classifier of real digits recognizes as the class asked for",
    ),
    Measure(
        "FD-PCA32",
        "real rows",
        "Fréchet distance to the test rows, 32 principal components",
    ),
    Measure(
        "sliced distance", "real rows", "sliced 2-Wasserstein distance to the test rows"
    ),
    Measure(
        "two-sample accuracy",
        "0.5",
        "how often a random forest tells samples from test rows",
    ),
    Measure(
        "NN ratio",
        "1",
        "distance to the nearest training row, over a test row's; 0 is copying",
    ),
]


class LabeledRows(NamedTuple):
    """Rows (n, d) and their classes (n,)."""

    X: np.ndarray
    y: np.ndarray


def as_rows(images: np.ndarray, y: np.ndarray, n_pixel_values: int) -> LabeledRows:
    """Pictures and their classes as rows."""
    return LabeledRows(rows(images, n_pixel_values), y)


def scores(
    samples: LabeledRows, train: LabeledRows, test: LabeledRows
) -> dict[str, float]:
    """What is measured of labeled samples.

    `accuracy` is that of a classifier of real rows, on the samples; `TSTR` that of a
    classifier of samples, on the test rows.
    """
    trained_on_real = SVC(C=10).fit(train.X, train.y)
    trained_on_samples = SVC(C=10).fit(samples.X, samples.y)
    return {
        "FD-PCA32": metrics.frechet_distance_pca(samples.X, test.X, train.X),
        "sliced distance": metrics.sliced_wasserstein(samples.X, test.X),
        "two-sample accuracy": metrics.two_sample_score(samples.X, test.X),
        "NN ratio": metrics.nn_ratio(samples.X, train.X, test.X),
        "accuracy": float(trained_on_real.score(samples.X, samples.y)),
        "TSTR": float(trained_on_samples.score(test.X, test.y)),
    }


def moons(out: Path) -> Path:
    """Fit two moons by class, and draw the data beside batched and offline samples."""
    X, y = make_moons(N_SAMPLES, noise=0.06, random_state=0)
    # As pictures are: numba compiles its kernels once, not twice.
    X = X.astype(np.float32)
    # Two columns need few steps; many more would copy the rows.
    flow = SlicedWassersteinFlow(n_steps=50, random_state=0, verbose=VERBOSE)
    flow.fit(X, y)
    batched = flow.particles_[:N_SAMPLES]
    y_batched = flow.particle_conditions_[:N_SAMPLES]
    offline = flow.sample(N_SAMPLES, y=y, random_state=1)
    panels = [
        (f"data: {N_SAMPLES} rows", X, y),
        (f"batched samples: {N_SAMPLES} particles", batched, y_batched),
        (f"offline samples: {N_SAMPLES} new points", offline, y),
    ]
    fig, axes = plt.subplots(
        1, 3, figsize=(12, 2.9), sharex=True, sharey=True, layout="constrained"
    )
    for ax, (title, points, labels) in zip(axes, panels, strict=True):
        for label, color in enumerate(COLORS):
            members = points[labels == label]
            ax.scatter(
                members[:, 0],
                members[:, 1],
                s=4,
                linewidths=0,
                c=color,
                label=f"class {label}",
            )
        ax.set(title=title, xlabel="$x_1$", aspect="equal")
    axes[0].set_ylabel("$x_2$")
    axes[0].legend(markerscale=4, loc="upper right")
    fig.savefig(out / "moons.png", dpi=110, bbox_inches="tight")
    return out / "moons.png"


def digits(out: Path, train: PictureSet, test: PictureSet) -> tuple[Path, str]:
    """Fit digits by class; draw real ones beside samples, and measure the samples.

    Returns the path of the picture, and the table of measured quality.
    """
    n_pixel_values = train.n_pixel_values
    settings = {
        "n_pixel_values": n_pixel_values,
        "steps_per_stage": STEPS_PER_STAGE,
        "random_state": 0,
        "verbose": VERBOSE,
    }
    seconds = {}

    started_at = time.perf_counter()
    flow = ImageFlow(n_particles=N_SAMPLES, transport="histogram", **settings)
    flow.fit(train.images, train.labels)
    seconds["batched"] = time.perf_counter() - started_at

    # Offline samples want many particles, for smooth maps: leave n_particles to its
    # default.
    started_at = time.perf_counter()
    model = ImageFlow(**settings).fit(train.images, train.labels)
    y_offline = np.resize(train.labels, N_SAMPLES)
    offline = model.sample(N_SAMPLES, y=y_offline, random_state=1)
    seconds["offline"] = time.perf_counter() - started_at

    # The same digits as vectors of 64 numbers, to compare with: no patches, no pyramid.
    started_at = time.perf_counter()
    vectors = SlicedWassersteinFlow(
        n_particles=N_SAMPLES,
        n_steps=400,
        random_state=0,
        transport="histogram",
        verbose=VERBOSE,
    )
    vectors.fit(rows(train.images, n_pixel_values).astype(np.float32), train.labels)
    seconds["vectors"] = time.perf_counter() - started_at

    panels = []
    for title, color, images, labels in (
        ("real training digits", INK, train.images, train.labels),
        ("batched samples", BLUE, flow.particles_, flow.particle_conditions_),
        ("offline samples", ORANGE, offline, y_offline),
    ):
        names = [str(label) for label in flow.classes_]
        grid = by_class(images, labels, 7)
        panels.append(Panel(grid, title, color, row_names=names))
    path = sheet(out / "digits.png", panels, n_pixel_values, "Digits by class")

    train_rows = as_rows(train.images, train.labels, n_pixel_values)
    test_rows = as_rows(test.images, test.labels, n_pixel_values)
    measured = {
        "batched": as_rows(flow.particles_, flow.particle_conditions_, n_pixel_values),
        "offline": as_rows(offline, y_offline, n_pixel_values),
        "vectors": LabeledRows(vectors.particles_, vectors.particle_conditions_),
        "real rows": train_rows,
    }
    with ThreadPoolExecutor() as pool:
        results = pool.map(
            lambda samples: scores(samples, train_rows, test_rows), measured.values()
        )
        numbers = dict(zip(measured, results, strict=True))
    return path, quality(numbers, len(train.images), len(test.images), seconds)


def inpainting(out: Path, train: PictureSet, test: PictureSet) -> Path:
    """Complete the lower halves of test digits, six times each."""
    flow = ImageFlow(
        n_pixel_values=train.n_pixel_values,
        known="top",
        steps_per_stage=15,
        n_particles=N_SAMPLES,
        random_state=0,
        verbose=VERBOSE,
    )
    flow.fit(train.images)
    _, first_of_class = np.unique(test.labels, return_index=True)
    given = test.images[first_of_class]
    completed = flow.inpaint(given, n=N_COMPLETIONS, random_state=1)
    known = KNOWN_PARTS["top"](8, 8)
    names = [str(label) for label in range(10)]
    panels = completions(given, completed, known, names)
    title = "Test digits: the top half is given, the checked half is hidden"
    return sheet(out / "digits_inpainting.png", panels, train.n_pixel_values, title)


def quality(
    scores: dict[str, dict[str, float]],
    n_train: int,
    n_test: int,
    seconds: dict[str, float],
) -> str:
    """The table of measured quality, in Markdown, beside that of real rows."""
    batched = scores["batched"]
    offline = scores["offline"]
    vectors = scores["vectors"]
    # A training row is its own neighbor, and known to the classifier: for these two
    # measures test rows are the real rows.
    reference = scores["real rows"] | {
        "accuracy": scores["real rows"]["TSTR"],
        "NN ratio": 1.0,
    }
    lines = [
        "# Digits, by class: measured quality",
        "",
        "| measure | pictures, batched | pictures, offline | vectors, batched "
        "| real rows | ideal | what it says |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, ideal, meaning in MEASURES:
        lines.append(
            f"| {name} | {batched[name]:.3f} | {offline[name]:.3f} "
            f"| {vectors[name]:.3f} | {reference[name]:.3f} | {ideal} | {meaning} |"
        )
    lines += [
        "",
        f"Floor: what {n_train} real training rows score in place of samples (for "
        f"accuracy and NN ratio: what the {n_test} test rows score).",
        f"Pictures: `ImageFlow`, {STEPS_PER_STAGE} steps per stage; batched: "
        f"{N_SAMPLES} particles ({seconds['batched']:.1f} s); offline: {N_SAMPLES} new "
        "samples of a model of the default 10,000 or more particles "
        f"({seconds['offline']:.1f} s). Vectors: `SlicedWassersteinFlow`, {N_SAMPLES} "
        f"particles, 400 steps ({seconds['vectors']:.1f} s). The first run on a "
        "machine compiles its kernels within these seconds.",
        "",
        f"`python {' '.join(sys.argv)}`, {datetime.date.today()}, sliceflow "
        f"{__version__}, {os.cpu_count()} cores of {platform.machine()}.",
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
    moons_path = moons(out)
    density_path = density(out)
    digits_path, table = digits(out, train, test)
    inpainting_path = inpainting(out, train, test)
    quality_path = out / "quality.md"
    quality_path.write_text(table, encoding="utf-8")
    print(table)
    written = (moons_path, density_path, digits_path, inpainting_path, quality_path)
    print("wrote", *written, sep="\n  ")


if __name__ == "__main__":
    main()
