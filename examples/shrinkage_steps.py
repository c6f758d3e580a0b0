"""What a flow does to real pictures, with and without shrinkage.

    python examples/shrinkage_steps.py --out examples-out

writes `shrinkage_steps.png`. Every other digit starts as a particle, the others are the data: both have
the same distribution, and the flow has nothing to do. Every class is moved by itself, with 4×4 tiles at
the full resolution. The maps of a step follow the noise of some 90 particles and 90 pictures, and the
noise adds up, unless maps are shrunk within it.
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits

from sliceflow.engine.clouds import Cloud
from sliceflow.engine.events import Event
from sliceflow.engine.flow import Flow, Noise, simulate
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.shrinkage import noise_rates, shrunk_flow
from sliceflow.engine.transports import Sorted
from sliceflow.spaces.pictures.tiles import Tiles

N_STEPS = 200
SHOWN = (10, 50, 200)
KAPPA = 2.0
COLOURS = {"without shrinkage": "#E69F00", f"with shrinkage, κ = {KAPPA:g}": "#0072B2"}


def moved(
    x: torch.Tensor, data: torch.Tensor, kappa: float, seed: Seed
) -> torch.Tensor:
    """The particles x (d, m) before every step and after the last, (steps + 1, d, m)."""
    kept = [x.clone()]
    particles = Cloud(x.clone())

    def keep(event: Event) -> None:
        kept.append(event.particles.clone())

    stage = Stage("tiles", Tiles(1, 8, 8, 4), N_STEPS, Sorted(), n_knots=0)
    flow = Flow([stage], seed.child("flow"))
    if kappa:
        flow = shrunk_flow(flow, kappa, noise_rates(x.shape[1], data.shape[1]))
    target = flow.target(particles, Cloud(data))
    simulate(flow, particles, target, Noise(seed.child("noise")), listeners=(keep,))
    return torch.stack(
        kept + [kept[-1]] * (N_STEPS + 1 - len(kept))
    )  # a stage may end early


def main() -> None:
    """Move all classes twice, and draw pictures and distances."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("examples-out"), help="folder to write to"
    )
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    digits = load_digits()
    rows = digits.data + np.random.default_rng(0).uniform(
        size=digits.data.shape
    )  # dequantised
    x = torch.tensor(rows * (2 / 17) - 1, dtype=torch.float32).T
    strategies: dict[str, list[torch.Tensor]] = {name: [] for name in COLOURS}
    for digit in range(10):
        of_class = x[:, digits.target == digit]
        for (_, kept), kappa in zip(strategies.items(), (0.0, KAPPA), strict=True):
            kept.append(moved(of_class[:, 1::2], of_class[:, ::2], kappa, Seed(digit)))

    fig = plt.figure(figsize=(12, 4.6), layout="constrained")
    left, right = fig.subfigures(1, 2, width_ratios=(1.3, 1))
    lines = [("real", strategies["without shrinkage"], 0, "black")]
    for name, colour in COLOURS.items():
        strategy = name.split()[0]
        lines += [
            (f"{strategy}, {step} steps", strategies[name], step, colour)
            for step in SHOWN
        ]
    axes = left.subplots(len(lines), 10)
    for pictures, (text, kept, step, colour) in zip(axes, lines, strict=True):
        for ax, of_class in zip(pictures, kept, strict=True):
            ax.imshow(of_class[step, :, 0].view(8, 8), cmap="gray_r", vmin=-1, vmax=1)
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(False)
        pictures[0].set_ylabel(text, rotation=0, ha="right", va="center", color=colour)
    ax = right.subplots()
    sigma = x.std(1, correction=0).square().mean().sqrt()
    for name, kept in strategies.items():
        every = torch.cat([of_class - of_class[:1] for of_class in kept], 2)
        apart = every.square().mean((1, 2)).sqrt() / sigma
        ax.plot(apart, color=COLOURS[name], label=name)
        print(
            f"{name}: moved by",
            *(f"{float(apart[k]):.3f}" for k in SHOWN),
            "after",
            *SHOWN,
            "steps",
        )
    ax.set(xlabel="steps", ylabel="root mean square displacement, in σ", ylim=(0, None))
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    title = "Real digits as particles, other real digits as data: a flow should leave them where they are"
    fig.suptitle(title, x=0.01, ha="left", fontsize=13)
    fig.savefig(out / "shrinkage_steps.png", dpi=100)
    print("wrote", out / "shrinkage_steps.png")


if __name__ == "__main__":
    main()
