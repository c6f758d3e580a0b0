"""Why the amplifier works: Appendix A of Du et al. (ICML 2023), drawn with the engine.

    python examples/appendix_a.py --out examples-out

writes `appendix_a.png`. Both x (horizontal, generated) and y (vertical, the condition)
are real numbers; start and target are mixtures of two Gaussians which differ in x only.
Five rows:

(a) the joint flow moves x and y: each component of the start is torn between both of
    the target;
(b) the ideal: one flow of x for each component, y stays;
(c) the joint flow again, the components farther from each other in y: nearly
    horizontal, close to the ideal;
(d) the conditional flow, which sees ξ·y with ξ = 10 and moves only x: as good as the
    ideal;
(e) the same with ξ = 1: components are not held apart, and one particle in five stays
    behind.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.patches import Patch

from sliceflow.engine.batches import DataTarget, make_batches
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import ContinuousY
from sliceflow.engine.events import FlowEvent
from sliceflow.engine.flow import FlowSpec, ParticleRng, simulate
from sliceflow.engine.frames import FrameKind, Orthogonal, Random
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.transports import SortedTransport

N = 1000  # particles, and data
# The components are at x = ±SIDE and y = ±NEAR, or ±FAR in row (c).
SIDE = 1.5
NEAR = 1.5
FAR = 4.5
SD = 0.45  # their standard deviation
MARGIN = 1.8  # around the components' centers, in the pictures
# Moments that are shown, in units in which the way that an ideal particle still has to
# go shrinks by 1/e.
TIMES = (0.0, 0.4, 0.8, 1.6, 8.0)
DT = 0.1  # of a step
N_DIRECTIONS = 100  # of a step
COLORS = ("#D55E00", "#E69F00")  # of the particles, by the component they start in


class Mixture(NamedTuple):
    """Start and target x, and the y they share, each (N,).

    The first half is the upper component, which starts on the left.
    """

    start: torch.Tensor
    target: torch.Tensor
    y: torch.Tensor


def mixture(height: float) -> Mixture:
    """A start and a target whose components are at y = ±height."""
    noise = SD * Seed(0).child("mixture").normal(3, N)
    sign = torch.where(torch.arange(N) < N // 2, 1.0, -1.0).double()
    return Mixture(
        start=noise[0] - SIDE * sign,
        target=noise[1] + SIDE * sign,
        y=noise[2] + height * sign,
    )


def run(
    particles: Cloud,
    data: Cloud,
    frame: FrameKind,
    *,
    dt: float = DT,
    amplifier: float = 0.0,
) -> list[np.ndarray]:
    """The particles (d, n) at each of TIMES."""
    shown_steps = [round(time / DT) for time in TIMES]
    moments = [particles.x.numpy().copy()]

    def keep(event: FlowEvent) -> None:
        if event.steps_done in shown_steps:
            moments.append(event.particles.numpy().copy())

    stage = Stage("flow", frame, shown_steps[-1], SortedTransport(), step_size=dt)
    condition_dim = 1 if amplifier > 0 else 0
    flow = FlowSpec([stage], Seed(1), condition_dim=condition_dim, amplifier=amplifier)
    batches = make_batches(
        particles.x.shape[1],
        data.x.shape[1],
        stage.transport.batch_size,
        flow.seed.child("batches"),
        y_p=particles.y,
        y_q=data.y,
    )
    target = DataTarget.from_cloud(data, batches)
    simulate(flow, particles, target, ParticleRng(Seed(2)), listeners=[keep])
    return moments


def joint(height: float) -> list[np.ndarray]:
    """Rows (a) and (c): (x, y) together, in the plane."""
    start, target, y = mixture(height)
    particles = Cloud(torch.stack((start, y)))
    data = Cloud(torch.stack((target, y)))
    return run(particles, data, Random(N_DIRECTIONS))


def ideal() -> list[np.ndarray]:
    """Row (b): every component its own flow on the line, which has one direction."""
    start, target, y = mixture(NEAR)
    upper = slice(None, N // 2)
    lower = slice(N // 2, None)
    frame = Orthogonal()
    upper_x = run(Cloud(start[None, upper]), Cloud(target[None, upper]), frame)
    lower_x = run(Cloud(start[None, lower]), Cloud(target[None, lower]), frame)
    moments = []
    for x_above, x_below in zip(upper_x, lower_x, strict=True):
        x = np.concatenate((x_above, x_below), axis=1)[0]
        moments.append(np.stack((x, y)))
    return moments


def conditional(amplifier: float) -> list[np.ndarray]:
    """Rows (d) and (e): x moves, y is a condition of one column."""
    start, target, y = mixture(NEAR)
    # θ lies half in x and half in y, on average, and y does not move: twice the step
    # keeps the pace.
    moments = run(
        Cloud(start[None].clone(), ContinuousY(y[:, None])),
        Cloud(target[None], ContinuousY(y[:, None])),
        Random(N_DIRECTIONS),
        dt=2 * DT,
        amplifier=amplifier,
    )
    return [np.stack((x[0], y)) for x in moments]


def draw(path: Path) -> dict[str, float]:
    """Run the five flows and draw them; the share of particles that arrive, by flow."""
    rows = [
        ("(a) joint flow, x and y move", NEAR, joint(NEAR)),
        ("(b) ideal, one flow for each component", NEAR, ideal()),
        ("(c) joint flow, components farther apart in y", FAR, joint(FAR)),
        ("(d) conditional flow, amplifier ξ = 10", NEAR, conditional(10)),
        ("(e) conditional flow, amplifier ξ = 1", NEAR, conditional(1)),
    ]
    # All rows have one scale. There is room for titles, and for the names of the axes.
    heights = [2 * (height + MARGIN) + 1.6 for _, height, _ in rows]
    heights[-1] += 0.8
    fig = plt.figure(figsize=(11, 0.32 * sum(heights)), layout="constrained")
    panels = fig.subfigures(5, 1, height_ratios=heights)
    shares = {}
    for panel, (title, height, moments) in zip(panels, rows, strict=True):
        axes = panel.subplots(1, 5, sharey=True)
        for ax, time, xy in zip(axes, TIMES, moments, strict=True):
            draw_moment(ax, height, xy)
            ax.set_title(f"t = {time:g}", fontsize=10)
        axes[0].set_ylabel("y (condition)")
        sides = np.sign(moments[-1][0])
        shares[title] = float(np.mean(sides == np.repeat([1, -1], N // 2)))
        result = f"{shares[title]:.0%} reach the target at their own height"
        panel.suptitle(f"{title}: {result}", x=0.01, ha="left", weight="bold")
    for ax in axes:
        ax.set_xlabel("x (generated)")
    legend = [
        Patch(color="#3182bd", label="target"),
        Patch(color=COLORS[0], label="started above"),
        Patch(color=COLORS[1], label="started below"),
    ]
    panels[2].axes[2].legend(handles=legend, loc="center")  # where there is room
    fig.savefig(path, dpi=90, bbox_inches="tight")
    plt.close(fig)
    return shares


def draw_moment(ax: plt.Axes, height: float, xy: np.ndarray) -> None:
    """One panel: the target's density in blue, the particles over it."""
    right = SIDE + MARGIN
    top = height + MARGIN
    x, y = np.meshgrid(np.linspace(-right, right, 120), np.linspace(-top, top, 160))
    upper = np.exp(-((x - SIDE) ** 2 + (y - height) ** 2) / (2 * SD**2))
    lower = np.exp(-((x + SIDE) ** 2 + (y + height) ** 2) / (2 * SD**2))
    levels = [0.05, 0.2, 0.4, 0.6, 0.8, 1.1]
    ax.contourf(x, y, upper + lower, levels=levels, cmap="Blues")
    for half, color in zip(np.split(xy, 2, axis=1), COLORS, strict=True):
        ax.scatter(half[0], half[1], s=2, c=color, linewidths=0)
    ax.set_xticks((-2, 0, 2))
    ax.set(aspect="equal", xlim=(-right, right), ylim=(-top, top))


def main() -> None:
    """Run the five flows and draw them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("examples-out"), help="folder to write to"
    )
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    draw(out / "appendix_a.png")
    print("wrote", out / "appendix_a.png")


if __name__ == "__main__":
    main()
