"""What small models are worth: megabytes against the quality of offline samples, and how fast they are.

    python benchmarks/table_size.py                                   # digits, on a CPU: a minute
    python benchmarks/table_size.py --data-root DATA                  # MNIST and CIFAR-10: for a GPU
    python benchmarks/table_size.py mnist14 --steps 8 --data-root DATA    # a small MNIST, for a CPU

Fits each set once with maps on a fine grid, keeps these maps in each of the ways, and draws offline
samples from the same noise by each. The batched samples are the goal, real pictures the floor. Writes
table_size.png and table_size.json; with ``--keep`` also all samples, for judges from outside.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from judge import Judge
from report import facts, signature, table

from sliceflow import ImageFlow, datasets, load
from sliceflow.compact import at_bends
from sliceflow.picture_parameters import default_bins
from sliceflow.transports import Histogram

__all__ = ["AnyJudge", "Problem", "measured", "text", "ways"]

Row = dict[str, float]


class AnyJudge(Protocol):
    """Whatever scores samples: `judge.Judge`, or what the function of ``--judge`` gives."""

    def score(self, samples: np.ndarray) -> Row:
        """Distances, by name, the smaller the better; the last one is drawn and compared."""
        ...


@dataclass(frozen=True)
class Problem:
    """Pictures to fit, held-out ones, and labels or none."""

    name: str
    images: np.ndarray
    labels: np.ndarray | None
    held_out: np.ndarray
    levels: int
    mirror: bool = False

    @classmethod
    def of(cls, name: str, root: str | None) -> Problem:
        """A named set: with its labels, but for cifar10, which has mirror images instead.

        mnist14 are 10,000 pictures of MNIST at half the size, and 10,000 others.
        """
        if name == "mnist14":
            data = datasets.load("mnist", root=root)
            halved = data.images[:20_000].reshape(-1, 14, 2, 14, 2).mean((2, 4)).round()
            halved = halved.astype(np.uint8)
            return cls(name, halved[:10_000], data.labels[:10_000], halved[10_000:], 256)
        data, test = datasets.load(name, root=root), datasets.load(name, "test", root=root)
        colour = name == "cifar10"
        return cls(name, data.images, None if colour else data.labels, test.images, data.levels, colour)

    def fitted(
        self, steps: str | int, particles: int | None, amplifier: float, device: str
    ) -> ImageFlow:
        """A flow that keeps every edge of its maps; its pictures have no clusters."""
        n_bins = default_bins(0.0 if self.labels is None else amplifier)
        return ImageFlow(
            n_particles=particles,
            amplifier=amplifier,
            clusters=1,
            quality=steps,
            levels=self.levels,
            mirror=self.mirror,
            device=device,
            random_state=0,
            transport=Histogram(n_bins),
            n_knots=n_bins,
        ).fit(self.images, self.labels)


def ways(
    n_bins: int, knots: tuple[int, ...], errors: tuple[float, ...]
) -> dict[str, tuple[str, float]]:
    """The ways to keep maps, by name: even knots, knots at bends, the error of `ImageFlow.compress`."""
    even = {f"{n} even knots": ("even", n) for n in (1024, 256, 128, 64) if n <= n_bins}
    bends = {f"{n} knots at bends": ("bends", n) for n in knots if n < n_bins}
    return {**even, **bends, **{f"compress({error:g})": ("compress", error) for error in errors}}


def kept(flow: ImageFlow, kind: str, number: float, folder: Path) -> tuple[ImageFlow, int]:
    """The flow with its maps kept in one way, and their bytes: those of the file if compact."""
    other = copy.copy(flow)
    if kind == "even":
        other._model = [
            [replace(s, table=s.table.thin(int(number))) for s in steps] for steps in flow._model
        ]
        tables: list[Any] = [step.table for steps in other._model for step in steps]
        return other, sum(t.values.nbytes + t.lo.nbytes + t.hi.nbytes for t in tables)
    if kind == "bends":
        other._model = [
            [replace(s, table=_bends(s.table, int(number), flow._walk, i)) for s in steps]
            for i, steps in enumerate(flow._model)
        ]
    else:
        other.compress(number)
    other.save(folder / "m")
    return other, (folder / "m").stat().st_size


def _bends(table: Any, n_knots: int, walk: Any, stage: int) -> Any:
    """A grid's maps as a fit keeps them; what is left of its counts are its weights."""
    reach = walk.engine(stage)[0].schedule[0].reach
    return at_bends(replace(table, counts=table.weights.double().square()), n_knots, reach)


def measured(
    flow: ImageFlow,
    judge: AnyJudge,
    n: int,
    n_seeds: int,
    some: dict[str, tuple[str, float]],
    *,
    keep: Path | None = None,
    on_cpu: int = 0,
) -> Iterator[tuple[str, Row]]:
    """Size, scores and speed: of batched samples, and of offline ones for every way to keep the maps.

    Scores are means over `n_seeds` sets of n samples. All sets have labels in the same proportions.
    `on_cpu` samples of every compressed file are also drawn on a CPU, to see how far they are off.
    """
    order = np.random.default_rng(0).permutation(len(flow.particles_))
    parts = [order[:n]] + [order[k * n : (k + 1) * n] for k in range(1, n_seeds)]
    scores = [judge.score(flow.particles_[part]) for part in parts if len(part) == len(parts[0])]
    yield "batched samples", _mean(scores)
    y = None if flow.particle_conditions_ is None else flow.particle_conditions_[order[:n]]
    n = len(order[:n])
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        np.save(keep / "batched.npy", flow.particles_[order[:n]])
        if y is not None:
            np.save(keep / "labels.npy", y)  # of the batched and of all offline samples
    n_maps = sum(len(step.table.lo) for steps in flow._model for step in steps)
    for name, way in some.items():
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            other, size = kept(flow, *way, Path(folder))
            row = {"MB": size / 1e6, "bytes per map": size / n_maps}
            row["seconds to make"] = time.perf_counter() - began
            if way[0] != "even" and on_cpu:
                row["apart from a CPU"] = _apart(other, Path(folder) / "m", on_cpu, y)
        other.sample(1, None if y is None else y[:1], random_state=0)  # compiles
        began = time.perf_counter()
        samples = [other.sample(n, y, random_state=1000 + seed) for seed in range(n_seeds)]
        row["samples/s"] = n * n_seeds / (time.perf_counter() - began)
        if keep is not None:
            np.save(keep / f"{name.replace(' ', '_')}.npy", samples[0])
        yield name, row | _mean([judge.score(s) for s in samples])


def _mean(scores: list[Row]) -> Row:
    return {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}


def _apart(flow: ImageFlow, file: Path, n: int, y: np.ndarray | None) -> float:
    """Mean distance of a pixel from what a CPU makes of the same file, the range of pixels being 2."""
    y = None if y is None else y[:n]
    here, there = (f.sample(n, y, random_state=0) for f in (flow, load(file, device="cpu")))
    return float(np.abs(here.astype(float) - there).mean() * 2 / flow.levels)


def text(rows: dict[str, Row], scores: list[str]) -> str:
    """The table."""
    goal = rows["batched samples"]

    def cell(row: Row, name: str, digits: str) -> str:
        return format(row[name], digits) if name in row else ""

    cells = [
        [
            name,
            cell(row, "MB", ".1f"),
            cell(row, "bytes per map", ".0f"),
            *(f"{row[score]:.4f}" for score in scores),
            *(f"{row[score] / goal[score]:.2f}" for score in scores),
            cell(row, "samples/s", ".0f"),
            cell(row, "seconds to make", ".1f"),
            cell(row, "apart from a CPU", ".4f"),
        ]
        for name, row in rows.items()
    ]
    ratios = [f"{score} / batched" for score in scores]
    head = ["maps kept as", "MB", "bytes per map", *scores, *ratios]
    return table([*head, "samples/s", "seconds to make", "apart from a CPU"], cells)


def plot(results: list[dict[str, Any]], path: Path) -> None:
    """The last score against megabytes, a panel for each set."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        1, len(results), figsize=(6.5 * len(results), 4.5), layout="constrained", squeeze=False
    )
    for axes, result in zip(panels[0], results, strict=True):
        rows, score = result["rows"], result["scores"][-1]
        kinds = (("even", "o-", "#0072B2"), ("bends", "s-", "#CC79A7"), ("compress", "D-", "#D55E00"))
        for kind, style, colour in kinds:
            some = [row for name, row in rows.items() if kind in name]
            axes.plot(
                [r["MB"] for r in some], [r[score] for r in some], style, color=colour, label=kind
            )
        goal = rows["batched samples"][score]
        axes.axhline(goal, color="#000000", lw=1, label="batched samples")
        axes.axhline(1.1 * goal, color="#000000", lw=1, ls="--", label="batched + 10 %")
        axes.axhline(rows["real pictures"][score], color="#009E73", lw=1, ls=":", label="real pictures")
        axes.set(xscale="log", yscale="log", xlabel="MB", ylabel=score, title=result["title"])
        axes.legend()
    figure.savefig(path, dpi=110)


def named(judge: str | None, problem: Problem, most: int) -> AnyJudge:
    """``module:function`` called with pictures to fit, held-out ones and levels; else our own judge."""
    if judge is None:
        return Judge.of(problem.images, problem.held_out, levels=problem.levels, most=most)
    module, _, function = judge.partition(":")
    made: AnyJudge = getattr(importlib.import_module(module), function)(
        problem.images, problem.held_out, problem.levels
    )
    return made


def main(argv: list[str] | None = None) -> None:
    """Fit, keep in every way, sample, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", help="default: digits; mnist cifar10 with a --data-root")
    parser.add_argument("--data-root")
    parser.add_argument(
        "--steps", help="per stage, or draft, standard, best; default: standard, digits 10"
    )
    parser.add_argument("--particles", type=int)
    parser.add_argument("--amplifier", type=float, default=10.0, help="inf: every class its own maps")
    parser.add_argument("--samples", type=int, help="default: as many as held-out pictures")
    parser.add_argument("--seeds", type=int, default=2, help="sets of samples that are judged")
    parser.add_argument("--errors", type=float, nargs="*", default=[0.1, 0.2, 0.4, 0.8])
    parser.add_argument("--knots", type=int, nargs="*", default=[8, 12, 16, 24], help="at bends")
    parser.add_argument("--judge", help="module:function, in place of the distances in pixels")
    parser.add_argument("--keep", type=Path, help="a folder for all samples, as .npy")
    parser.add_argument("--on-cpu", type=int, default=0, help="samples to draw on a CPU as well")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/table_size"))
    args = parser.parse_args(argv)

    command = "python benchmarks/table_size.py " + " ".join(sys.argv[1:] if argv is None else argv)
    results: list[dict[str, Any]] = []
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.sets or (["mnist", "cifar10"] if args.data_root else ["digits"]):
        problem = Problem.of(name, args.data_root)
        given = args.steps or ("10" if name == "digits" else "standard")
        steps = int(given) if given.isdigit() else given
        began = time.perf_counter()
        flow = problem.fitted(steps, args.particles, args.amplifier, args.device)
        seconds = time.perf_counter() - began
        n = args.samples or min(10_000, len(problem.held_out))
        judge = named(args.judge, problem, n)
        rows = {"real pictures": judge.score(problem.images)}
        scores = list(rows["real pictures"])
        some = ways(flow.n_knots, tuple(args.knots), tuple(args.errors))
        keep = None if args.keep is None else args.keep / name
        options: dict[str, Any] = dict(keep=keep, on_cpu=args.on_cpu)
        for way, row in measured(flow, judge, n, args.seeds, some, **options):
            rows[way] = row
            print(name, way, {k: round(v, 4) for k, v in row.items()}, flush=True)
        n_maps = sum(len(step.table.lo) for steps in flow._model for step in steps)
        labels = "without labels" if problem.labels is None else "with labels"
        title = f"{name} {labels}, {given} steps per stage, {len(flow.particles_):,} particles"
        about = facts(flow._device)
        print(f"\n{title}: {n_maps:,} maps on {flow.n_knots} bins, fitted in {seconds:.0f} s\n")
        print(f"{text(rows, scores)}\n\n{signature(about, command)}\n", flush=True)
        result = {
            "title": title,
            "maps": n_maps,
            "fit seconds": seconds,
            "scores": scores,
            "rows": rows,
        }
        results.append({"about": about, "command": command, **result})
        # After every set: whoever stops the next one has this one.
        plot(results, args.out / "table_size.png")
        (args.out / "table_size.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
