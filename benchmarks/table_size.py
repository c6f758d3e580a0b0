"""What a map costs and what it is worth: FD of offline samples against bytes per map.

    python benchmarks/table_size.py --labels --particles 4000    # digits: a minute on a CPU core
    python benchmarks/table_size.py --data-root DATA --set mnist14 --labels --steps 8
    python benchmarks/table_size.py --data-root DATA --set mnist --labels --steps 100 --particles 120000

Fits once with maps on a fine grid (`--knots`), keeps the same maps in each of the ways, and draws
offline samples from the same noise by each. The batched samples are the goal, real pictures the floor.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from judge import Judge
from report import facts, signature, table

from sliceflow import ImageFlow, datasets
from sliceflow.compact import compress
from sliceflow.transports import GridTable, Histogram

__all__ = ["Problem", "measured", "text", "ways"]


@dataclass(frozen=True)
class Problem:
    """Pictures to fit, held-out ones, and labels or none."""

    name: str
    images: np.ndarray
    labels: np.ndarray | None
    held_out: np.ndarray
    levels: int

    @classmethod
    def digits(cls, labels: bool) -> Problem:
        """scikit-learn's digits, a third of them held out."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        order = np.random.default_rng(0).permutation(len(digits.images))
        images, y = digits.images.astype(np.uint8)[order], digits.target[order]
        return cls("digits", images[:1200], y[:1200] if labels else None, images[1200:], 17)

    @classmethod
    def of(cls, name: str, root: str | None, labels: bool) -> Problem:
        """A named set; mnist14 are 10,000 pictures of MNIST at half the size and 10,000 others."""
        if name == "digits":
            return cls.digits(labels)
        if name == "mnist14":
            data = datasets.load("mnist", root=root)
            halved = (
                data.images[:20_000].reshape(-1, 14, 2, 14, 2).mean((2, 4)).round().astype(np.uint8)
            )
            y = data.labels[:10_000] if labels else None
            return cls(name, halved[:10_000], y, halved[10_000:], 256)
        data, test = datasets.load(name, root=root), datasets.load(name, "test", root=root)
        return cls(name, data.images, data.labels if labels else None, test.images, data.levels)


Change = Callable[[GridTable], tuple[object, int]]


def uniform(n_knots: int) -> Change:
    """Every k-th edge in float32."""

    def change(t: GridTable) -> tuple[object, int]:
        small = t.thin(n_knots)
        return small, 4 * small.values.numel() + 8 * len(t.lo)

    return change


def whole_numbers(n_knots: int) -> Change:
    """Every k-th edge, displacements as bytes of each map's own scale, differences through zlib."""

    def change(t: GridTable) -> tuple[object, int]:
        small = t.thin(n_knots)
        place = torch.arange(small.values.shape[1], device=t.lo.device) / (small.values.shape[1] - 1)
        edge = small.lo[:, None] + (small.hi - small.lo)[:, None] * place
        d = small.values.double() - edge
        scale = d.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
        level = (d / scale).round()
        stream = level.diff(dim=1, prepend=level[:, :1] * 0).cpu().numpy().astype(np.int16)
        packed = zlib.compress(stream.view(np.uint8).reshape(-1, 2).T.tobytes(), 9)
        values = (edge + level * scale).cummax(1).values.to(small.values.dtype)
        return GridTable(small.lo, small.hi, values), len(packed) + 10 * len(d)

    return change


def few_knots(n_knots: int) -> Change:
    """The same number of knots for every map, where it bends most; sizes without a compressor."""

    def change(t: GridTable) -> tuple[object, int]:
        small = compress(t, 1e-9, most=n_knots)  # the step is what 16 bits allow
        return small, 4 * len(small.at) + 8 * len(t.lo)

    return change


def ways(errors: tuple[float, ...] = (0.025, 0.05, 0.1, 0.2)) -> dict[str, Change | float]:
    """The ways to keep maps, by name: a change of every table, or the error of `ImageFlow.compress`."""
    out: dict[str, Change | float] = {}
    for n in (1024, 256, 128, 64, 32):
        out[f"{n} uniform, float32"] = uniform(n)
    for n in (256, 128, 64):
        out[f"{n} uniform, bytes"] = whole_numbers(n)
    for n in (64, 32, 16):
        out[f"{n} where it bends"] = few_knots(n)
    for error in errors:
        out[f"compact, error {error:g}"] = error
    return out


def measured(
    flow: ImageFlow, judge: Judge, n: int, seeds: range, kept: dict[str, Change | float]
) -> Iterator[tuple[str, dict[str, float]]]:
    """Bytes per map, FD of n offline samples, and seconds, for every way to keep the maps of `flow`."""
    n_maps = sum(len(step.table.lo) for level in flow._model for step in level)
    n_bins = flow._model[0][0].table.values.shape[1] - 1
    for name, way in kept.items():
        if isinstance(way, float):
            began = time.perf_counter()
            other = copy.copy(flow).compress(way)
            seconds = time.perf_counter() - began
            with tempfile.TemporaryDirectory() as folder:
                other.save(Path(folder) / "m")
                size = (Path(folder) / "m").stat().st_size
        else:
            if "uniform" in name and int(name.split()[0]) > n_bins:
                continue
            other, size, began = copy.copy(flow), 0, time.perf_counter()
            other._model = [[] for _ in flow._model]
            for level, steps in zip(other._model, flow._model, strict=True):
                for step in steps:
                    small, count = way(step.table)
                    level.append(replace(step, table=small))
                    size += count
            seconds = time.perf_counter() - began
        scores = [judge.score(other.sample(n, random_state=1000 + s))["FD-PCA32"] for s in seeds]
        yield (
            name,
            {
                "bytes per map": size / n_maps,
                "FD-PCA32": float(np.mean(scores)),
                "spread": float(np.std(scores)),
                "seconds": seconds,
            },
        )


def text(rows: dict[str, dict[str, float]]) -> str:
    """The table."""
    cells = [
        [
            name,
            f"{row['bytes per map']:.0f}" if "bytes per map" in row else "",
            f"{row['FD-PCA32']:.4f}",
            f"{row['spread']:.4f}" if "spread" in row else "",
            f"{row['seconds']:.0f}" if "seconds" in row else "",
        ]
        for name, row in rows.items()
    ]
    return table(["maps kept as", "bytes per map", "FD-PCA32", "±", "seconds to make"], cells)


def plot(rows: dict[str, dict[str, float]], title: str, path: Path) -> None:
    """FD against bytes per map, one line for each way."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    styles = {
        "uniform, float32": ("o-", "#0072B2"),
        "uniform, bytes": ("s-", "#56B4E9"),
        "where it bends": ("^-", "#E69F00"),
        "compact": ("D-", "#D55E00"),
    }
    for kind, (style, colour) in styles.items():
        some = [row for name, row in rows.items() if kind in name]
        some.sort(key=lambda row: row["bytes per map"])
        x, y = [r["bytes per map"] for r in some], [r["FD-PCA32"] for r in some]
        axes.plot(x, y, style, color=colour, label=kind)
    batched = rows["batched samples"]["FD-PCA32"]
    axes.axhline(batched, color="#000000", lw=1, label="batched samples")
    axes.axhline(1.1 * batched, color="#000000", lw=1, ls="--", label="batched + 10 %")
    axes.axhline(
        rows["real pictures"]["FD-PCA32"], color="#009E73", lw=1, ls=":", label="real pictures"
    )
    axes.set(xscale="log", yscale="log", xlabel="bytes per map", ylabel="FD-PCA32", title=title)
    axes.legend()
    figure.savefig(path, dpi=110)


def main(argv: list[str] | None = None) -> None:
    """Fit, keep in every way, sample, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", default="digits", help="digits, mnist14, mnist, cifar10, …")
    parser.add_argument("--data-root")
    parser.add_argument("--labels", action="store_true")
    parser.add_argument("--steps", type=int, default=20, help="steps per stage")
    parser.add_argument("--schedule", default="auto")
    parser.add_argument("--particles", type=int)
    parser.add_argument("--knots", type=int, help="of the fine grid; default: all bins")
    parser.add_argument("--bins", type=int, help="default: 1024 with labels, 256 without")
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--errors", type=float, nargs="+", default=[0.025, 0.05, 0.1, 0.2])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--mirror", action="store_true")
    parser.add_argument("--only", nargs="+", default=[""], help="only ways whose names begin so")
    parser.add_argument("--out", type=Path, default=Path("runs/table_size"))
    args = parser.parse_args(argv)

    problem = Problem.of(args.set, args.data_root, args.labels)
    n_bins = args.bins or (1024 if args.labels else 256)
    flow = ImageFlow(
        schedule=args.schedule,
        n_particles=args.particles,
        quality=args.steps,
        levels=problem.levels,
        mirror=args.mirror,
        device=args.device,
        random_state=0,
        transport=Histogram(n_bins),
        n_knots=args.knots or n_bins,
    )
    began = time.perf_counter()
    flow.fit(problem.images, problem.labels)
    seconds = time.perf_counter() - began
    n_maps = sum(len(step.table.lo) for level in flow._model for step in level)
    judge = Judge.of(
        problem.images, problem.held_out, levels=problem.levels, most=args.samples, n_directions=1
    )
    order = np.random.default_rng(0).permutation(len(flow.particles_))[: args.samples]
    rows = {
        "real pictures": judge.score(problem.images),
        "batched samples": judge.score(flow.particles_[order]),
    }
    kept = {n: w for n, w in ways(tuple(args.errors)).items() if n.startswith(tuple(args.only))}
    for name, row in measured(flow, judge, args.samples, range(args.seeds), kept):
        rows[name] = row
        print(name, {k: round(v, 4) for k, v in row.items()}, flush=True)

    labels = "with labels" if args.labels else "without labels"
    title = f"{args.set} {labels}, {args.steps} steps per stage, {len(flow.particles_):,} particles"
    about = facts(flow._device)
    command = "python benchmarks/table_size.py " + " ".join(argv or sys.argv[1:])
    print(f"\n{title}: {n_maps:,} maps on {n_bins} bins, fitted in {seconds:.0f} s\n\n{text(rows)}\n")
    print(signature(about, command))
    args.out.mkdir(parents=True, exist_ok=True)
    plot(rows, title, args.out / "table_size.png")
    result = {"about": about, "command": command, "maps": n_maps, "fit seconds": seconds, "rows": rows}
    (args.out / "table_size.json").write_text(json.dumps(result, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
