"""Why the amplifier works: Appendix A of Du et al. (ICML 2023), drawn with the engine itself.

    python examples/appendix_a.py --out examples-out

writes `appendix_a.png`. Both x (horizontal, generated) and y (vertical, the condition) are real
numbers; start and target are mixtures of two Gaussians which differ in x only. Five rows:

(a) the joint flow moves x and y: each component of the start is torn between both of the target;
(b) the ideal: one flow of x for each component, y stays;
(c) the joint flow again, the components moved apart in y: nearly horizontal, close to the ideal;
(d) the conditional flow, which sees ξ·y with ξ = 10 and moves only x: as good as the ideal;
(e) the same with ξ = 1: components are not held apart, and one particle in five stays behind.
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.patches import Patch

from sliceflow.engine.clouds import Cloud
from sliceflow.engine.events import Event
from sliceflow.engine.flow import Flow, Noise, simulate
from sliceflow.engine.frames import FrameKind, Orthogonal, Random
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.transports import Sorted

N = 1000  # particles, and data
SIDE = 1.5
NEAR = 1.5
FAR = 4.5
SD = 0.45  # components at x = ±SIDE, y = ±NEAR or ±FAR
MARGIN = 1.8  # around the components' centres, in the pictures
TIMES = (
    0.0,
    0.4,
    0.8,
    1.6,
    8.0,
)  # in units in which an ideal particle's way shrinks by 1/e
DT = 0.1
COLOURS = ("#D55E00", "#E69F00")  # of the particles, by the component they start in


def mixture(height: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Start and target x, and the y they share, each (N,); the first half is the upper component."""
    noise = SD * Seed(0).child("mixture").normal(3, N)
    up = torch.where(torch.arange(N) < N // 2, 1.0, -1.0).double()
    return noise[0] - SIDE * up, noise[1] + SIDE * up, noise[2] + height * up


def run(
    particles: Cloud,
    data: Cloud,
    frame: FrameKind,
    *,
    dt: float = DT,
    amplifier: float = 0.0,
) -> list[np.ndarray]:
    """The particles (d, n) at each of TIMES."""
    moments = [round(t / DT) for t in TIMES]
    kept = [particles.x.numpy().copy()]

    def keep(event: Event) -> None:
        if event.steps_done in moments:
            kept.append(event.particles.numpy().copy())

    stage = Stage("flow", frame, moments[-1], Sorted(), step_size=dt)
    flow = Flow([stage], Seed(1), n_conditions=int(amplifier > 0), amplifier=amplifier)
    simulate(
        flow, particles, flow.target(particles, data), Noise(Seed(2)), listeners=[keep]
    )
    return kept


def joint(height: float) -> list[np.ndarray]:
    """Rows (a) and (c): (x, y) together, in the plane."""
    x, target, y = mixture(height)
    return run(Cloud(torch.stack((x, y))), Cloud(torch.stack((target, y))), Random(100))


def ideal() -> list[np.ndarray]:
    """Row (b): every component its own flow on the line, where there is only one direction."""
    x, target, y = mixture(NEAR)
    halves = slice(None, N // 2), slice(N // 2, None)
    moved = [
        run(Cloud(x[None, half]), Cloud(target[None, half]), Orthogonal())
        for half in halves
    ]
    return [
        np.stack((np.concatenate(both, axis=1)[0], y))
        for both in zip(*moved, strict=True)
    ]


def conditional(amplifier: float) -> list[np.ndarray]:
    """Rows (d) and (e): x moves, y is a condition of one column."""
    x, target, y = mixture(NEAR)
    # θ lies half in x and half in y, on average, and y does not move: twice the step keeps the pace.
    kept = run(
        Cloud(x[None].clone(), y[:, None]),
        Cloud(target[None], y[:, None]),
        Random(100),
        dt=2 * DT,
        amplifier=amplifier,
    )
    return [np.stack((z[0], y)) for z in kept]


def draw(path: Path) -> dict[str, float]:
    """Run the five flows and draw them; the share of particles that arrive, by flow."""
    rows = [
        ("(a) joint flow, x and y move", NEAR, joint(NEAR)),
        ("(b) ideal, one flow for each component", NEAR, ideal()),
        ("(c) joint flow, components farther apart in y", FAR, joint(FAR)),
        ("(d) conditional flow, amplifier ξ = 10", NEAR, conditional(10)),
        ("(e) conditional flow, amplifier ξ = 1", NEAR, conditional(1)),
    ]
    heights = [
        2 * (height + MARGIN) + 1.6 for _, height, _ in rows
    ]  # one scale; 1.6 for the titles
    heights[-1] += 0.8  # and for the names of the axes
    fig = plt.figure(figsize=(11, 0.32 * sum(heights)), layout="constrained")
    panels = fig.subfigures(5, 1, height_ratios=heights)
    shares = {}
    for panel, (title, height, moments) in zip(panels, rows, strict=True):
        axes = panel.subplots(1, 5, sharey=True)
        for ax, time, xy in zip(axes, TIMES, moments, strict=True):
            draw_moment(ax, height, xy)
            ax.set_title(f"t = {time:g}", fontsize=10)
        axes[0].set_ylabel("y (condition)")
        shares[title] = float(
            np.mean(np.sign(moments[-1][0]) == np.repeat([1, -1], N // 2))
        )
        title += f": {shares[title]:.0%} reach the target at their own height"
        panel.suptitle(title, x=0.01, ha="left", weight="bold")
    for ax in axes:
        ax.set_xlabel("x (generated)")
    legend = [
        Patch(color=c, label=f"started {w}")
        for c, w in zip(COLOURS, ("above", "below"), strict=True)
    ]
    legend = [Patch(color="#3182bd", label="target"), *legend]
    panels[2].axes[2].legend(handles=legend, loc="center")  # where there is room
    fig.savefig(path, dpi=90, bbox_inches="tight")
    plt.close(fig)
    return shares


def draw_moment(ax: plt.Axes, height: float, xy: np.ndarray) -> None:
    """One panel: the target's density in blue, the particles over it."""
    right = SIDE + MARGIN
    top = height + MARGIN
    gx, gy = np.meshgrid(np.linspace(-right, right, 120), np.linspace(-top, top, 160))
    density = sum(
        np.exp(-((gx - s * SIDE) ** 2 + (gy - s * height) ** 2) / (2 * SD**2))
        for s in (1, -1)
    )
    ax.contourf(gx, gy, density, levels=[0.05, 0.2, 0.4, 0.6, 0.8, 1.1], cmap="Blues")
    for half, colour in zip(np.split(xy, 2, axis=1), COLOURS, strict=True):
        ax.scatter(*half, s=2, c=colour, linewidths=0)
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
