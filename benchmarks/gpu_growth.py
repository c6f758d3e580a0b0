"""Seconds per step against the number of particles and of pixels, with straight lines and a plot."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import floors
import made_up
import torch
from presets import SEED, Shape
from report import Line, table
from timing import steps_seconds
from torch import Tensor

from sliceflow.devices import projection_budget
from sliceflow.engine import transports
from sliceflow.engine.flow import Cloud, Flow, Noise, batches_for, simulate
from sliceflow.engine.schedule import Stage
from sliceflow.spaces.pictures.tiles import Tiles

__all__ = ["growth", "stage_seconds"]


def stage_seconds(
    x: Tensor,
    data: Tensor,
    shape: Shape,
    patch: int,
    transport: transports.Transport,
    n_steps: int = 17,
    repeats: int = 3,
) -> float:
    """Median seconds per step of a stage of tiles, over `repeats` stages; x stays as it is."""
    device = x.device
    taken = []
    for repeat in range(repeats + 1):  # the first one compiles
        steps = n_steps if repeat else 2
        flow = Flow(
            [Stage("tiles", Tiles(*shape, patch), steps)],
            SEED.child("repeat", repeat),
            budget=projection_budget(device),
            precision=torch.float16 if device.type == "cuda" else None,
        )
        particles, target = Cloud(x.clone()), Cloud(data)
        batches = batches_for(flow, particles, target, transport)
        target = target if batches.order is None else target.part(batches.order)
        run = partial(
            simulate, flow, particles, target, transport, Noise(SEED), n_knots=0, batches=batches
        )
        taken += steps_seconds(run, steps, device)
    return statistics.median(taken[1:])


def growth(
    m: int,
    device: torch.device,
    plot: Path | None,
    *,
    n_steps: int = 17,
    n_data: tuple[int, int] = (60_000, 100_000),
    factors: Sequence[float] = (0.25, 0.5, 1, 2, 4),
    sides: Sequence[int] = (8, 12, 16, 24, 32),
    picture: Shape = (1, 28, 28),
    patch: int = 7,
) -> tuple[dict, str]:
    """Numbers and text: M from m/4 to 4m at one picture size, then d of colour pictures at m."""
    sizes = [16 * round(factor * m / 16) for factor in factors]  # a GPU likes rows at round addresses
    x = made_up.cloud(picture, max(sizes), device, 1)
    data = made_up.cloud(picture, n_data[0], device, 2)
    kinds = {
        f"at most {transports.MOST:,} counted": transports.Histogram(256),
        "all counted": transports.Histogram(256, most=None),
    }
    by_m = {
        name: [
            stage_seconds(x[:, :size].contiguous(), data, picture, patch, transport, n_steps)
            for size in sizes
        ]
        for name, transport in kinds.items()
    }
    del x, data
    values, by_d = [3 * side * side for side in sides], []
    for side in sides:
        shape = (3, side, side)
        x, data = made_up.cloud(shape, m, device, 1), made_up.cloud(shape, n_data[1], device, 2)
        by_d.append(stage_seconds(x, data, shape, patch, transports.Histogram(256), n_steps))

    lines = {name: Line.through(sizes, seconds) for name, seconds in by_m.items()}
    line_d = Line.through(values, by_d)
    rows_m = [
        [f"{size:,}", *(f"{1000 * seconds[i]:.3f}" for seconds in by_m.values())]
        for i, size in enumerate(sizes)
    ]
    rows_m += [
        ["line: ms at M = 0", *(f"{1000 * line.a:.3f}" for line in lines.values())],
        ["line: ns per particle", *(f"{1e9 * line.b:.2f}" for line in lines.values())],
        ["line: R²", *(f"{line.r2:.4f}" for line in lines.values())],
    ]
    rows_d = [
        [
            f"{side}×{side}×3",
            f"{3 * side * side:,}",
            f"{floors.geometry((3, side, side), patch).n_directions:,}",
            f"{1000 * seconds:.3f}",
        ]
        for side, seconds in zip(sides, by_d, strict=True)
    ]
    rows_d += [
        ["line: ms at d = 0", "", "", f"{1000 * line_d.a:.3f}"],
        ["line: µs per value", "", "", f"{1e6 * line_d.b:.3f}"],
        ["line: R²", "", "", f"{line_d.r2:.4f}"],
    ]
    c, h, w = picture
    text = [
        f"Milliseconds per step, pictures of {c}×{h}×{w}, patch {patch}, N = {n_data[0]:,}:",
        "",
        table(["M", *by_m], rows_m),
        "",
        f"M = {m:,}, N = {n_data[1]:,}, patch {patch}, colour pictures of growing size:",
        "",
        table(["picture", "d", "directions", "ms per step"], rows_d),
    ]
    if plot is not None and _plotted(plot, sizes, by_m, lines, values, by_d, line_d):
        text += ["", f"![Milliseconds per step against M and against d]({plot.name})"]
    numbers = {
        "M": {"sizes": sizes, "seconds": by_m, "lines": {k: asdict(v) for k, v in lines.items()}},
        "d": {"sizes": values, "seconds": by_d, "line": asdict(line_d)},
    }
    return numbers, "\n".join(text)


def _plotted(
    path: Path,
    sizes: Sequence[int],
    by_m: dict[str, list[float]],
    lines: dict[str, Line],
    values: Sequence[int],
    by_d: Sequence[float],
    line_d: Line,
) -> bool:
    """Draw both; False where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    curves = [
        (left, sizes, by_m[name], lines[name], name, colour, marker)
        for name, colour, marker in zip(by_m, ("#0072B2", "#D55E00"), "os", strict=True)
    ]
    curves.append((right, values, by_d, line_d, "colour pictures", "#0072B2", "o"))
    for axes, x, seconds, line, name, colour, marker in curves:
        axes.plot(x, [1000 * s for s in seconds], marker, color=colour)
        ends = [0, max(x)]
        label = f"{name}, R² = {line.r2:.4f}"
        axes.plot(
            ends, [1000 * line.at(v) for v in ends], color=colour, marker=marker, ms=0, label=label
        )
    left.set(xlabel="particles M", ylabel="ms per step")
    right.set(xlabel="values of a picture d", ylabel="ms per step")
    for axes in (left, right):
        axes.set(xlim=(0, None), ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return True
