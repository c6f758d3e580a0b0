"""Algorithm 1 of the paper beside the defaults: pictures and seconds, side by side.

    python examples/algorithm1.py --out algorithm1
    make paper

writes `moons.png`, `digits.png` and, if its files are there, `mnist.png`, each with
the data, samples of ``preset="paper"`` and samples of the defaults, and `seconds.md`.
On pictures the paper takes 10,000 directions and 300 steps per stage, which are hours
on a CPU. So both take fewer steps here, and Algorithm 1 fewer directions; the titles
say how many. ``--steps 300 --directions 10000`` are the paper's own.
"""

import argparse
import time
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from grids import BLUE, INK, ORANGE, Panel, sheet
from sklearn.datasets import make_moons

from sliceflow import ImageFlow, ImageOptions, SlicedWassersteinFlow, metrics
from sliceflow.datasets import MissingSetError, PictureSet, load
from sliceflow.wording import format_duration

N_MOONS = 2000
GRID_SIDE = 8  # pictures in a row and in a column of a grid
MAX_PICTURES = 10_000  # of MNIST: more take longer and look the same
N_MEASURED = 2000  # rows that the sliced distance is computed of


class Compared(NamedTuple):
    """A fit: its name, its samples, its seconds, and how far its samples are."""

    name: str
    samples: np.ndarray
    seconds: float
    distance: float  # the sliced distance of samples to held-out rows


class Scale(NamedTuple):
    """How large the fits of pictures are."""

    steps: int  # per stage
    directions: int  # of Algorithm 1, at each step
    particles: int


def compare_moons(out: Path, particles: int) -> list[Compared]:
    """Fit two moons with both, and draw their samples beside the data."""
    X, _ = make_moons(N_MOONS, noise=0.06, random_state=0)
    held_out, _ = make_moons(N_MOONS, noise=0.06, random_state=1)
    flows = {
        "Algorithm 1": SlicedWassersteinFlow(
            preset="paper", n_particles=particles, random_state=0
        ),
        "defaults": SlicedWassersteinFlow(n_particles=particles, random_state=0),
    }
    compared = [
        fit(name, flow, X, held_out, n_samples=N_MOONS) for name, flow in flows.items()
    ]
    panels = [("data", X), *((title(fitted), fitted.samples) for fitted in compared)]
    fig, axes = plt.subplots(
        1, 3, figsize=(12, 2.9), sharex=True, sharey=True, layout="constrained"
    )
    colors = (INK, BLUE, ORANGE)
    for ax, (name, points), color in zip(axes, panels, colors, strict=True):
        ax.scatter(points[:, 0], points[:, 1], s=3, linewidths=0, c=color)
        ax.set(title=name, aspect="equal")
    fig.savefig(out / "moons.png", dpi=110, bbox_inches="tight")
    plt.close(fig)
    return compared


def compare_pictures(
    out: Path, train: PictureSet, test: PictureSet, scale: Scale
) -> list[Compared]:
    """Fit pictures with both, and draw their samples beside the data."""
    images = train.images[:MAX_PICTURES]
    settings = {
        "n_pixel_values": train.n_pixel_values,
        "steps_per_stage": scale.steps,
        "n_particles": scale.particles,
        "random_state": 0,
    }
    # The batched samples of the paper are the particles: no model is kept.
    options = ImageOptions(n_directions=scale.directions, n_knots=0)
    flows = {
        "Algorithm 1": ImageFlow(preset="paper", options=options, **settings),
        "defaults": ImageFlow(options=ImageOptions(n_knots=0), **settings),
    }
    compared = []
    for name, flow in flows.items():
        compared.append(fit(name, flow, images, test.images))
    panels = [Panel(grid(images), "data", INK)]
    for fitted, color in zip(compared, (BLUE, ORANGE), strict=True):
        panels.append(Panel(grid(fitted.samples), title(fitted), color))
    n_directions = flows["Algorithm 1"].plan_.options.n_directions
    heading = (
        f"{train.name}: {scale.steps} steps per stage, {scale.particles} particles; "
        f"Algorithm 1 with {n_directions} directions"
    )
    sheet(out / f"{train.name}.png", panels, train.n_pixel_values, heading)
    return compared


def fit(
    name: str,
    flow: SlicedWassersteinFlow | ImageFlow,
    data: np.ndarray,
    held_out: np.ndarray,
    n_samples: int = GRID_SIDE**2,
) -> Compared:
    """Fit, and take particles as samples."""
    print(f"{name}: fitting {len(data)} rows", flush=True)
    started_at = time.perf_counter()
    flow.fit(data)
    seconds = time.perf_counter() - started_at
    particles = np.asarray(flow.particles_)
    distance = metrics.sliced_wasserstein(
        as_rows(particles[:N_MEASURED]), as_rows(held_out[:N_MEASURED])
    )
    return Compared(name, particles[:n_samples], seconds, distance)


def as_rows(values: np.ndarray) -> np.ndarray:
    """Vectors or pictures as rows (n, d) of floats."""
    return values.reshape(len(values), -1).astype(np.float64)


def title(fitted: Compared) -> str:
    """The name of a fit and its seconds."""
    return f"{fitted.name}, {format_duration(fitted.seconds)}"


def grid(pictures: np.ndarray) -> np.ndarray:
    """The first pictures, not the best, as (rows, columns, h, w[, c])."""
    first = pictures[: GRID_SIDE**2]
    return first.reshape(GRID_SIDE, GRID_SIDE, *pictures.shape[1:])


def table(results: dict[str, list[Compared]]) -> str:
    """Seconds and sliced distances in Markdown."""
    lines = [
        "| data | | seconds | sliced distance to held-out rows |",
        "|---|---|--:|--:|",
    ]
    for data, compared in results.items():
        for fitted in compared:
            lines.append(
                f"| {data} | {fitted.name} | {fitted.seconds:.1f} "
                f"| {fitted.distance:.3g} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run everything and list what was written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("examples-out"), help="folder to write to"
    )
    parser.add_argument("--steps", type=int, default=20, help="per stage of pictures")
    parser.add_argument(
        "--directions", type=int, default=500, help="of Algorithm 1, for pictures"
    )
    parser.add_argument("--particles", type=int, default=2000)
    parser.add_argument("--data-root", help="the folder above MNIST")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    scale = Scale(args.steps, args.directions, args.particles)
    results = {"moons": compare_moons(args.out, args.particles)}
    for name in ("digits", "mnist"):
        try:
            train = load(name, root=args.data_root)
            test = load(name, "test", root=args.data_root)
        except MissingSetError:
            print(f"{name} is not there; --data-root names the folder above it")
            continue
        results[name] = compare_pictures(args.out, train, test, scale)
    text = table(results)
    (args.out / "seconds.md").write_text(text, encoding="utf-8")
    print(text)
    print(f"open the pictures in {args.out}")


if __name__ == "__main__":
    main()
