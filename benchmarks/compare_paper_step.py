"""Algorithm 1 as the paper prints it against ours: one step with equal directions, and equal quality.

    python benchmarks/compare_paper_step.py [--directions 10000] [--particles 100000] [--data 60000]
    python benchmarks/compare_paper_step.py --data-root DATA [--steps 1 3 10] [--our-steps 1 3 10 30]

One step: random local directions, `torch.sort`, binary search and linear interpolation, against
histograms with the very same directions, and against our default frame of tiles. Drawing directions is
left out of both. With --data-root also the paper's MNIST schedule, Algorithm 1 against `ImageFlow`:
quality against seconds. Runs on a CPU too, with small numbers.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import made_up
import numpy as np
import torch
from gpu_growth import stage_seconds
from judge import Judge
from paper import algorithm1
from report import facts, seconds_text, signature, table
from timing import wait
from torch import Tensor
from trade_offs import fitted

from sliceflow import datasets
from sliceflow.devices import resolve_device
from sliceflow.engine import transports
from sliceflow.engine.random import Seed
from sliceflow.spaces.pictures import schedules
from sliceflow.spaces.pictures.layout import Layout
from sliceflow.spaces.pictures.pyramid import Subspace
from sliceflow.spaces.pictures.tiles import Tiles

# One step ----------------------------------------------------------------------------------------


def product(a: Tensor, b: Tensor) -> Tensor:
    """a·b added up in float32, whatever the operands are."""
    if a.dtype == torch.float32:
        return torch.mm(a, b)
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    return torch.mm(a.float(), b.float())


def our_displacement(
    x: Tensor, data: Tensor, theta: Tensor, chunk: int, bins: int, dtype: torch.dtype
) -> Tensor:
    """The same step with histograms: project, count, compose, displace, lift."""
    transport = transports.Histogram(bins, most=None)
    x_, data_, theta_ = (t.to(dtype) for t in (x, data, theta))
    dx = torch.zeros_like(x)
    for part in theta_.split(chunk):
        z_p, z_q = product(part, x_), product(part, data_)
        dz = transport.fit(z_p, z_q).table.displace(z_p)
        dx += product(part.T, dz.to(dtype))
    return dx.mul_(len(x) / len(theta))


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Products of float32 matrices in "float32" or in "TF32", where the device knows it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision({"float32": "highest", "TF32": "high"}[precision])
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def with_peak(work: Callable[[], Any], device: torch.device) -> tuple[Any, int | None]:
    """What `work` returns, and the most bytes it had allocated at a time; None where nothing says."""
    if device.type != "cuda":
        return work(), None
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    return work(), torch.cuda.max_memory_allocated(device) - before


def median_seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Of calls that come after a first one."""
    taken = []
    for _ in range(repeats):
        wait(device)
        began = time.perf_counter()
        work()
        wait(device)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def one_step(
    n_directions: int,
    m: int,
    n: int,
    side: int,
    patch: int,
    bins: int,
    chunk: int,
    repeats: int,
    device: torch.device,
) -> tuple[dict, str]:
    """Part 1: seconds per step, peak memory and agreement, on made-up pictures."""
    shape = (1, side, side)
    x, data = made_up.cloud(shape, m, device, 1), made_up.cloud(shape, n, device, 2)
    generator = torch.Generator(device).manual_seed(0)
    x += 0.3 * torch.randn(x.shape, generator=generator, device=device)  # halfway through a flow
    theta = algorithm1.random_patches(n_directions, shape, patch, generator)

    def theirs(precision: str, search: bool = True) -> Callable[[], Tensor]:
        def work() -> Tensor:
            with products_in(precision):
                return algorithm1.displacement(x, data, theta, chunk, search=search)

        return work

    def ours(precision: str, dtype: torch.dtype = torch.float32) -> Callable[[], Tensor]:
        def work() -> Tensor:
            with products_in(precision):
                return our_displacement(x, data, theta, chunk, bins, dtype)

        return work

    works = {
        "Algorithm 1 as printed, float32 products": theirs("float32"),
        "Algorithm 1 as printed, TF32 products": theirs("TF32"),
        "Algorithm 1, ranks instead of the search, TF32": theirs("TF32", search=False),
        "ours, the same directions, float32 products": ours("float32"),
        "ours, the same directions, TF32 products": ours("TF32"),
        "ours, the same directions, float16 operands": ours("float32", torch.float16),
    }
    rows: dict[str, dict] = {}
    printed: Tensor | None = None
    for name, work in works.items():
        dx, peak = with_peak(work, device)
        printed = dx if printed is None else printed
        rows[name] = {
            "directions": n_directions,
            "seconds": median_seconds(work, device, repeats),
            "peak bytes": peak,
            "difference": float((dx - printed).norm() / printed.norm()),
        }
    tiles = Tiles(*shape, patch)
    drawn = [tiles.draw(Seed(0), k, side * side, 0).n_directions for k in range(32)]
    stage = partial(stage_seconds, x, data, shape, patch, transports.Histogram(bins, most=None))
    seconds, peak = with_peak(stage, device)
    rows["ours, tiles"] = {
        "directions": round(statistics.mean(drawn)),
        "seconds": seconds,
        "peak bytes": None if peak is None else peak - x.nbytes,  # the stage moves a copy of x
        "difference": None,
    }

    first = next(iter(rows.values()))["seconds"]
    cells = [
        [
            name,
            f"{row['directions']:,}",
            seconds_text(row["seconds"]),
            f"{first / row['seconds']:.1f}x",
            "" if row["peak bytes"] is None else f"{row['peak bytes'] / 2**30:.2f}",
            "" if row["difference"] is None else f"{row['difference']:.1e}",
        ]
        for name, row in rows.items()
    ]
    text = [
        f"M = {m:,} particles, N = {n:,} made-up pictures of {side}×{side}, patch {patch}; dense Θ, "
        f"{chunk:,} directions at a time, {bins} bins; Θ is drawn before. Difference: of the "
        "displacements, relative to the first row's.",
        "",
        table(["", "directions", "a step", "faster", "peak GiB", "difference"], cells),
        "",
        f"Tiles have {min(drawn):,} to {max(drawn):,} directions, {statistics.mean(drawn):,.0f} on "
        "average; their time is a whole step of the engine.",
    ]
    return rows, "\n".join(text)


# Equal quality -----------------------------------------------------------------------------------


def paper_flow(
    data: datasets.Pictures,
    text: str,
    m: int,
    n_directions: int,
    n_steps: int,
    chunk: int,
    device: torch.device,
    start_noise: float = 0.1,
) -> tuple[np.ndarray, float]:
    """Algorithm 1 through a schedule: the particles as pictures, and the seconds of its steps alone.

    Three kindnesses: a level runs on its coefficients, so that its products are small; drawing the
    directions, encoding the data and painting levels are not timed; particles start at 0.1 instead of
    1, which is what the authors ran. η is the level's number of coefficients.
    """
    layout, seed = Layout.of(data.images, data.n_pixel_values), Seed(0)
    raw = layout.read(data.images, device)
    generator = torch.Generator(device).manual_seed(0)
    x = start_noise * torch.randn((layout.dimension, m), generator=generator, device=device)
    seconds = 0.0
    for i, stage in enumerate(schedules.from_string(text, layout.height, layout.width, n_steps)):
        level = Subspace(*layout.shape, stage.h, stage.w)
        target = level.down(layout.encode(raw, seed.child("data", i)))
        before = level.down(x)
        now = before.clone()
        shape = (layout.shape[0], stage.h, stage.w)
        for _ in range(n_steps):
            theta = algorithm1.random_patches(n_directions, shape, stage.patch, generator)
            wait(device)
            began = time.perf_counter()
            now += algorithm1.displacement(now, target, theta, chunk)
            wait(device)
            seconds += time.perf_counter() - began
        x = x + level.up(now - before)
    return layout.write(x), seconds


def seconds_to_reach(curve: Sequence[tuple[float, float]], value: float) -> float | None:
    """When a curve of (seconds, distance) falls to `value`, log-linear in between; None if never.

    Where even its first point is below, that point's seconds: an upper bound.
    """
    points = sorted(curve)
    for (t0, v0), (t1, v1) in zip([points[0], *points], points, strict=False):
        if v1 <= value:
            share = (math.log(v0) - math.log(value)) / (math.log(v0) - math.log(v1)) if v0 > v1 else 1
            return math.exp(math.log(t0) + max(0.0, share) * (math.log(t1) - math.log(t0)))
    return None


def equal_quality(
    train: datasets.Pictures,
    test: datasets.Pictures,
    text: str,
    m: int,
    n_directions: int,
    steps: Sequence[int],
    our_steps: Sequence[int],
    chunk: int,
    device: torch.device,
) -> tuple[dict, str]:
    """Part 2: both distances against seconds, Algorithm 1 and ours, and the ratio at equal distance."""
    judge = Judge.of(train.images, test.images, n_pixel_values=train.n_pixel_values)
    floor = judge.score(train.images)
    few = datasets.Pictures(train.images[:1000], None, train.n_pixel_values, train.name)
    paper_flow(few, text, 1000, 64, 1, chunk, device)  # whatever is set up on first use
    theirs, ours = [], []
    for n in steps:
        samples, seconds = paper_flow(train, text, m, n_directions, n, chunk, device)
        theirs.append({"steps": n, "seconds": seconds, **judge.score(samples)})
    for n in our_steps:
        flow, seconds = fitted(train, None, m, n, text, device=device)
        ours.append({"steps": n, "seconds": seconds, **judge.score(flow.particles_)})
    metrics = ("FD-PCA32", "sliced distance")
    cells = []
    for row in theirs:
        row["ours"] = {
            name: seconds_to_reach([(r["seconds"], r[name]) for r in ours], row[name])
            for name in metrics
        }
        equal = [
            "never" if t is None else f"{seconds_text(t)}, {row['seconds'] / t:.0f}x"
            for t in row["ours"].values()
        ]
        cells.append(["Algorithm 1", *_cells(row), *equal])
    cells += [["ours", *_cells(row), "", ""] for row in ours]
    cells.append(
        ["real training pictures", "", "", *(f"{floor[name]:.4g}" for name in metrics), "", ""]
    )
    said = [
        f"{train.name}, N = {len(train.images):,}, M = {m:,}, schedule `{text}`; Algorithm 1 with "
        f"{n_directions:,} random local directions per step, its steps alone timed; ours is all of "
        f"`ImageFlow.fit`. Distances of {len(judge.test):,} samples to as many test pictures. The last "
        "two columns: when ours is as near, by interpolation, and how much sooner.",
        "",
        table(
            ["", "steps per stage", "seconds", *metrics, "ours at equal FD", "at equal distance"], cells
        ),
    ]
    return {"Algorithm 1": theirs, "ours": ours, "real": floor}, "\n".join(said)


def _cells(row: dict) -> list[str]:
    numbers = [f"{row[name]:.4g}" for name in ("FD-PCA32", "sliced distance")]
    return [str(row["steps"]), f"{row['seconds']:.2f}", *numbers]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one part or both, print them, and write them where asked."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directions", type=int, default=10_000, help="H")
    parser.add_argument("--particles", type=int, default=100_000, help="M")
    parser.add_argument("--data", type=int, default=60_000, help="N of the one step")
    parser.add_argument("--side", type=int, default=28, help="of the one step's pictures")
    parser.add_argument("--patch", type=int, default=7, help="of the one step")
    parser.add_argument("--bins", type=int, default=256, help="of our histograms in the one step")
    parser.add_argument("--chunk", type=int, default=1000, help="directions at a time")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data-root", help="where MNIST lies: also measure time to equal quality")
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 3, 10], help="of Algorithm 1")
    parser.add_argument("--our-steps", type=int, nargs="+", default=[1, 3, 10, 30, 100])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="write the tables here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers here")
    args = parser.parse_args(arguments)
    device = resolve_device(args.device)
    h, m = args.directions, args.particles

    numbers, sections = {}, []

    def say(title: str, part: tuple[dict, str]) -> None:
        numbers[title] = part[0]
        sections.append(f"### {title}\n\n{part[1]}\n")
        print(sections[-1], flush=True)

    sizes = (h, m, args.data, args.side, args.patch, args.bins, args.chunk, args.repeats)
    say("One step of Algorithm 1", one_step(*sizes, device))
    if args.data_root is not None:
        train, test = (datasets.load("mnist", split, args.data_root) for split in ("train", "test"))
        preset = schedules.PRESETS["mnist"]
        curves = (m, h, args.steps, args.our_steps, args.chunk, device)
        say("Time to equal quality", equal_quality(train, test, preset, *curves))
    about = facts(device)
    closing = signature(about, " ".join(["python benchmarks/compare_paper_step.py", *arguments]))
    print(closing)
    if args.json:
        args.json.write_text(json.dumps({"machine": about, **numbers}, indent=2) + "\n")
    if args.out:
        heading = f"## Algorithm 1 and ours, {about['date']}"
        args.out.write_text("\n".join([heading, "", closing, "", *sections]))


if __name__ == "__main__":
    main()
