"""Two moons and 8×8 digits by class: fit, sample, look, measure. No network, no training loop.

    python examples/demo.py --out demo

writes `moons.png`, `digits.png` and `quality.md`, in well under a minute on two cores. Nothing is
downloaded: both data sets come with scikit-learn. *Batched* samples are the particles at the end of a
fit; *offline* samples are fresh noise moved by the fitted maps, as many as you like, at any time.
"""

import argparse
import datetime
import os
import platform
import sys
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits, make_moons
from sklearn.model_selection import train_test_split

from sliceflow import SlicedWassersteinFlow, __version__
from sliceflow.metrics import digits_protocol

COLOURS = ("#0072B2", "#E69F00")  # Okabe and Ito: told apart by every kind of eye
VERBOSE = int(sys.stderr.isatty())

# What is measured: (key in `digits_protocol`, ideal value, what it says)
MEASURES = [
    ("accuracy", "1", "samples that a classifier of real digits recognises as the class asked for"),
    ("FD-PCA32", "floor", "Fréchet distance to the test rows, 32 principal components"),
    ("sliced distance", "floor", "sliced 2-Wasserstein distance to the test rows"),
    ("two-sample accuracy", "0.5", "how often a random forest tells samples from test rows"),
    ("NN ratio", "1", "distance to the nearest training row, over a test row's; 0 is copying"),
]


def moons(out: Path) -> Path:
    """Fit two moons by class, and draw the data beside batched and offline samples."""
    X, y = make_moons(2000, noise=0.06, random_state=0)
    # Two columns need few steps; many more would copy the rows.
    flow = SlicedWassersteinFlow(n_steps=50, random_state=0, verbose=VERBOSE).fit(X, y)
    panels = [
        ("data: 2000 rows", X, y),
        ("batched samples: 2000 particles", flow.particles_[:2000], flow.particle_conditions_[:2000]),
        ("offline samples: 2000 new points", flow.sample(2000, y=y, random_state=1), y),
    ]
    fig, axes = plt.subplots(1, 3, figsize=(12, 2.9), sharex=True, sharey=True, layout="constrained")
    for ax, (title, points, labels) in zip(axes, panels, strict=True):
        for label in (0, 1):
            chosen = points[labels == label]
            ax.scatter(*chosen.T, s=4, linewidths=0, c=COLOURS[label], label=f"class {label}")
        ax.set(title=title, xlabel="$x_1$", aspect="equal")
    axes[0].set_ylabel("$x_2$")
    axes[0].legend(markerscale=4, loc="upper right")
    return save(fig, out / "moons.png")


def digits(out: Path) -> tuple[Path, str]:
    """Fit digits by class; draw real ones beside samples, and measure how good the samples are."""
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(
        X / 8 - 1, y, test_size=500, stratify=y, random_state=0
    )
    began = time.perf_counter()
    # Batched samples want many steps; offline samples want many particles, for smooth maps.
    batched = SlicedWassersteinFlow(n_particles=2000, n_steps=400, random_state=0, verbose=VERBOSE)
    batched.fit(X_train, y_train)
    after_batched = time.perf_counter()
    model = SlicedWassersteinFlow(n_steps=200, random_state=0, verbose=VERBOSE).fit(X_train, y_train)
    y_offline = np.resize(y_train, 2000)
    offline = model.sample(2000, y=y_offline, random_state=1)
    seconds = (after_batched - began, time.perf_counter() - after_batched)

    groups = [
        ("real training digits", X_train, y_train),
        ("batched samples", batched.particles_, batched.particle_conditions_),
        ("offline samples", offline, y_offline),
    ]
    table = quality(groups, (X_train, y_train), (X_test, y_test), seconds)
    return draw_digits(groups, out / "digits.png"), table


def draw_digits(groups: list, path: Path, n: int = 7) -> Path:
    """A row for each class, n digits of it from each group; the first ones, not the best ones."""
    fig, axes = plt.subplots(1, len(groups), figsize=(12, 6.3), layout="constrained")
    colours = ("black", "#0072B2", "#D55E00")
    for ax, colour, (title, rows, labels) in zip(axes, colours, groups, strict=True):
        canvas = np.full((10 * 9, n * 9), np.nan)  # a pixel of margin around every digit
        for label in range(10):
            for column, row in enumerate(rows[labels == label][:n]):
                top, left = 9 * label, 9 * column
                canvas[top : top + 8, left : left + 8] = row.reshape(8, 8)
        ax.imshow(canvas, cmap="gray_r", vmin=-1, vmax=1, interpolation="nearest")
        ax.set_title(title, fontsize=15, color=colour)
        ax.set_yticks(9 * np.arange(10) + 3.5, [f"class {label}" for label in range(10)], fontsize=11)
        ax.set_xticks([])
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    return save(fig, path)


def quality(groups: list, train: tuple, test: tuple, seconds: tuple[float, float]) -> str:
    """The table of measured quality, in Markdown; the floor is what real rows score."""
    floor, batched, offline = (digits_protocol(rows, labels, train, test) for _, rows, labels in groups)
    # A training row is its own neighbour, and known to the classifier: here the floor is the test rows.
    floor |= {"accuracy": floor["TSTR"], "NN ratio": 1.0}
    lines = [
        "# Digits, by class: measured quality",
        "",
        "| measure | batched | offline | floor | ideal | what it says |",
        "|---|---|---|---|---|---|",
        *(
            f"| {key} | {batched[key]:.3f} | {offline[key]:.3f} | {floor[key]:.3f} | {ideal} | {what} |"
            for key, ideal, what in MEASURES
        ),
        "",
        f"Floor: what {len(train[0])} real training rows score in place of samples (for accuracy and "
        f"NN ratio: what the {len(test[0])} test rows score).",
        f"Batched: 2000 particles after 400 steps ({seconds[0]:.1f} s). Offline: 2000 new samples of a "
        f"model of 200 steps ({seconds[1]:.1f} s).",
        "",
        f"`python {' '.join(sys.argv)}`, {datetime.date.today()}, sliceflow {__version__}, "
        f"{os.cpu_count()} cores of {platform.machine()}.",
    ]
    return "\n".join(lines) + "\n"


def save(fig: plt.Figure, path: Path) -> Path:
    """Write a figure and forget it."""
    fig.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(fig)
    return path


def main() -> None:
    """Run everything and list what was written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("examples-out"), help="folder to write to")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    written = [moons(out)]
    picture, table = digits(out)
    (out / "quality.md").write_text(table, encoding="utf-8")
    print(table)
    print("wrote", *written, picture, out / "quality.md", sep="\n  ")


if __name__ == "__main__":
    main()
