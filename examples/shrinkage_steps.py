"""What a flow does to real pictures, with and without shrinkage.

    python examples/shrinkage_steps.py --out examples-out

writes `shrinkage_steps.png`. Every other digit starts as a particle, the others are the
data: both have the same distribution, and the flow has nothing to do. Every class is
moved by itself, with 4×4 tiles at the full resolution. The maps of a step follow the
noise of some 90 particles and 90 pictures, and the noise adds up, unless maps are
shrunk within it.
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits

from sliceflow.engine.batches import DataTarget
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.events import FlowEvent
from sliceflow.engine.flow import FlowSpec, ParticleRng, simulate
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.shrinkage import compute_noise_factors, shrunk_flow
from sliceflow.engine.transports import SortedTransport
from sliceflow.estimators.pictures.tiles import Tiles

N_STEPS = 200
SHOWN_STEPS = (10, 50, 200)
KAPPA = 2.0  # the most that "auto" takes
WITHOUT = "without shrinkage"
WITH = f"with shrinkage, κ = {KAPPA:g}"
COLORS = {WITHOUT: "#E69F00", WITH: "#0072B2"}


def trajectory(
    x: torch.Tensor, data: torch.Tensor, kappa: float, seed: Seed
) -> torch.Tensor:
    """Particles x (d, m) before every step and after the last: (steps + 1, d, m)."""
    positions = [x.clone()]
    particles = Cloud(x.clone())

    def keep(event: FlowEvent) -> None:
        positions.append(event.particles.clone())

    stage = Stage(
        "tiles", Tiles(1, 8, 8, 4), N_STEPS, SortedTransport(), stores_maps=False
    )
    flow = FlowSpec([stage], seed.child("flow"))
    if kappa > 0:
        flow = shrunk_flow(
            flow, kappa, compute_noise_factors(x.shape[1], data.shape[1])
        )
    target = DataTarget.from_cloud(Cloud(data))
    simulate(
        flow, particles, target, ParticleRng(seed.child("noise")), listeners=(keep,)
    )
    # A stage may end early, because hardly any map moves.
    while len(positions) < N_STEPS + 1:
        positions.append(positions[-1])
    return torch.stack(positions)


def trajectories(
    x: torch.Tensor, labels: np.ndarray, kappa: float
) -> list[torch.Tensor]:
    """Those of the ten classes, each moved by itself."""
    moved = []
    for digit in range(10):
        members = x[:, labels == digit]
        particles = members[:, 1::2]
        data = members[:, ::2]
        moved.append(trajectory(particles, data, kappa, Seed(digit)))
    return moved


def draw_digits(
    figure: plt.Figure, rows: list[tuple[str, list[torch.Tensor], int, str]]
) -> None:
    """A digit of each class in every row: its text, trajectories, step and color."""
    axes = figure.subplots(len(rows), 10)
    for row_axes, (text, moved, step, color) in zip(axes, rows, strict=True):
        for ax, positions in zip(row_axes, moved, strict=True):
            digit = positions[step, :, 0].view(8, 8)
            ax.imshow(digit, cmap="gray_r", vmin=-1, vmax=1)
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(False)
        row_axes[0].set_ylabel(text, rotation=0, ha="right", va="center", color=color)


def displacement(moved: list[torch.Tensor]) -> torch.Tensor:
    """Root mean square displacement of all pixels after every step: (steps + 1,)."""
    moves = torch.cat([positions - positions[:1] for positions in moved], 2)
    return moves.square().mean((1, 2)).sqrt()


def main() -> None:
    """Move all classes twice, and draw pictures and distances."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("examples-out"), help="folder to write to"
    )
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    digits = load_digits()
    fractions = np.random.default_rng(0).uniform(size=digits.data.shape)
    dequantized = (digits.data + fractions) * (2 / 17) - 1
    x = torch.tensor(dequantized, dtype=torch.float32).T
    moved = {
        WITHOUT: trajectories(x, digits.target, 0.0),
        WITH: trajectories(x, digits.target, KAPPA),
    }

    fig = plt.figure(figsize=(12, 4.6), layout="constrained")
    left, right = fig.subfigures(1, 2, width_ratios=(1.3, 1))
    rows = [("real", moved[WITHOUT], 0, "black")]
    for name, color in COLORS.items():
        with_or_without = name.split()[0]
        for step in SHOWN_STEPS:
            rows.append((f"{with_or_without}, {step} steps", moved[name], step, color))
    draw_digits(left, rows)

    ax = right.subplots()
    sigma = x.std(1, correction=0).square().mean().sqrt()
    for name, color in COLORS.items():
        distance = displacement(moved[name]) / sigma
        ax.plot(distance, color=color, label=name)
        for step in SHOWN_STEPS:
            print(f"{name}: moved by {float(distance[step]):.3f} σ in {step} steps")
    ax.set(xlabel="steps", ylabel="root mean square displacement, in σ", ylim=(0, None))
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    title = (
        "Real digits as particles, other real digits as data: a flow should leave them "
        "where they are"
    )
    fig.suptitle(title, x=0.01, ha="left", fontsize=13)
    fig.savefig(out / "shrinkage_steps.png", dpi=100)
    print("wrote", out / "shrinkage_steps.png")


if __name__ == "__main__":
    main()
