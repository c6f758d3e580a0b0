"""What small models are worth: megabytes against the quality of offline samples, and how fast they are.

    python benchmarks/table_size.py                                   # digits, on a CPU: half a minute
    python benchmarks/table_size.py --data-root DATA                  # MNIST and CIFAR-10: for a GPU
    python benchmarks/table_size.py mnist14 --steps 8 --data-root DATA    # a small MNIST, for a CPU

Fits each set, with the same seed, once for every ``--knots``, the option `n_knots`. What ``--even``
knots leave is taken from one fit with all edges of all maps. Offline samples of each are drawn from the
same noise. The batched samples are the goal, real pictures the floor. Writes table_size.png and
table_size.json; with ``--keep`` also all samples, for judges from outside.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from judge import Judge, NetworkJudge
from report import facts, signature, table

from sliceflow import ImageFlow, PictureOptions, datasets, load
from sliceflow.devices import resolve_device
from sliceflow.engine.transports import GridTable, Histogram

__all__ = ["AnyJudge", "Problem", "flows", "measured", "text", "ways"]

ALL = 1024  # edges of a map, or more than it has
APART = ("apart from a CPU", "the same in float32")

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
    n_pixel_values: int
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
        return cls(
            name, data.images, None if colour else data.labels, test.images, data.n_pixel_values, colour
        )

    def fitted(self, n_knots: int | None, **settings: Any) -> ImageFlow:
        """A flow that keeps so many knots of its maps; None keeps every edge."""
        settings |= {"n_pixel_values": self.n_pixel_values, "mirror": self.mirror, "random_state": 0}
        flow = ImageFlow(
            options=PictureOptions(n_knots=ALL if n_knots is None else n_knots), **settings
        )
        return flow.fit(self.images, self.labels)


def ways(even: Sequence[int], knots: Sequence[int]) -> dict[str, tuple[str, int]]:
    """The ways to keep maps, by name: even knots, or `n_knots`."""
    return {
        **{f"{n} even knots": ("even", n) for n in even},
        **{f"n_knots={n}": ("n_knots", n) for n in knots},
    }


def flows(
    problem: Problem, some: dict[str, tuple[str, int]], settings: dict[str, Any]
) -> Iterator[tuple[str, ImageFlow]]:
    """The flows whose maps are kept in each of these ways, each fitted when it is asked for."""
    whole = None
    for name, (kind, number) in some.items():
        if kind == "n_knots":
            yield name, problem.fitted(number, **settings)
            continue
        whole = whole or problem.fitted(None, **settings)
        flow = copy.copy(whole)
        flow._model = [
            [replace(step, table=step.table.thin(number)) for step in steps] for steps in whole._model
        ]
        yield name, flow


def maps_of(flow: ImageFlow) -> int:
    """How many maps a model has."""
    return sum(len(step.table.lo) for steps in flow._model for step in steps)


def size_of(flow: ImageFlow, path: Path) -> int:
    """Bytes of the model's file; of grids those of their maps alone."""
    tables = [step.table for steps in flow._model for step in steps]
    flow.save(path)
    if all(isinstance(table, GridTable) for table in tables):
        return sum(t.values.nbytes + t.lo.nbytes + t.hi.nbytes for t in tables)
    return path.stat().st_size


def measured(
    flow: ImageFlow, judge: AnyJudge, y: np.ndarray | None, n: int, n_seeds: int, on_cpu: int
) -> tuple[Row, np.ndarray]:
    """Size, speed and scores of n offline samples of labels y, as means over seeds; the first samples.

    `on_cpu` samples of the file are also drawn on a CPU, to see how far they are off.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m"
        size = size_of(flow, path)
        row = {"MB": size / 1e6, "bytes per map": size / maps_of(flow)}
        if on_cpu:
            row |= _apart(flow, path, on_cpu, y)
    flow.sample(1, None if y is None else y[:1], random_state=0)  # compiles
    began = time.perf_counter()
    samples = [flow.sample(n, y, random_state=1000 + seed) for seed in range(n_seeds)]
    row["samples/s"] = n * n_seeds / (time.perf_counter() - began)
    return row | _mean([judge.score(part) for part in samples]), samples[0]


def _mean(scores: list[Row]) -> Row:
    return {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}


def _apart(flow: ImageFlow, file: Path, n: int, y: np.ndarray | None) -> Row:
    """Mean distance of a pixel from what a CPU makes of the same file, the range of pixels being 2."""
    y = None if y is None else y[:n]
    exact = load(file, device=flow.device, precision="float32")
    here, in_float32, there = (
        f.sample(n, y, random_state=0).astype(float) for f in (flow, exact, load(file, device="cpu"))
    )
    return {
        name: float(np.abs(pixels - there).mean() * 2 / flow.n_pixel_values)
        for name, pixels in zip(APART, (here, in_float32), strict=True)
    }


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
            *(cell(row, name, ".5f") for name in APART),
        ]
        for name, row in rows.items()
    ]
    ratios = [f"{score} / batched" for score in scores]
    head = ["maps kept as", "MB", "bytes per map", *scores, *ratios]
    return table([*head, "samples/s", *APART], cells)


def plot(results: list[dict[str, Any]], path: Path) -> None:
    """The last score against megabytes, a panel for each set."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogFormatter

    figure, panels = plt.subplots(
        1, len(results), figsize=(6.5 * len(results), 4.5), layout="constrained", squeeze=False
    )
    for axes, result in zip(panels[0], results, strict=True):
        rows, score = result["rows"], result["scores"][-1]
        kinds = (("even", "o-", "#0072B2"), ("n_knots", "s-", "#CC79A7"))
        for kind, style, colour in kinds:
            some = {name: row for name, row in rows.items() if kind in name}
            if not some:
                continue
            x, y = ([row[of] for row in some.values()] for of in ("MB", score))
            axes.plot(x, y, style, color=colour, label=kind)
            for name, *at in zip(some, x, y, strict=True):
                number = re.sub(r"[^\d.]", "", name)
                axes.annotate(
                    number,
                    at,
                    xytext=(4, 4),
                    textcoords="offset points",
                    fontsize=8,
                    annotation_clip=True,
                )
        goal = rows["batched samples"][score]
        axes.axhline(goal, color="#000000", lw=1, label="batched samples")
        axes.axhline(1.1 * goal, color="#000000", lw=1, ls="--", label="batched + 10 %")
        axes.axhline(rows["real pictures"][score], color="#009E73", lw=1, ls=":", label="real pictures")
        axes.set(xscale="log", xlabel="MB", ylabel=score, title=result["title"])
        axes.set_ylim(0, min(2 * goal, axes.get_ylim()[1]))  # what is twice as bad need not be seen
        axes.xaxis.set_major_formatter(LogFormatter())  # 50, not 5×10¹
        axes.xaxis.set_minor_formatter(LogFormatter())
        axes.legend(loc="lower left")
    figure.savefig(path, dpi=110)


def named(judge: str, problem: Problem, most: int, device: str) -> AnyJudge:
    """What ``--judge`` says; a function is called with pictures, held-out ones and n_pixel_values."""
    images, held_out, n_pixel_values = problem.images, problem.held_out, problem.n_pixel_values
    if judge == "pixels":
        return Judge.of(images, held_out, n_pixel_values=n_pixel_values, most=most)
    if judge == "network":
        return NetworkJudge.of(images, problem.labels, n_pixel_values=n_pixel_values, device=device)
    module, _, function = judge.partition(":")
    made: AnyJudge = getattr(importlib.import_module(module), function)(
        images, held_out, n_pixel_values
    )
    return made


def result_of(name: str, steps: str | int, args: argparse.Namespace) -> dict[str, Any]:
    """One set with so many steps: fit, keep in every way, sample, score."""
    problem = Problem.of(name, args.data_root)
    n = args.samples or min(10_000, len(problem.held_out))
    judge = named(args.judge, problem, n, args.device)
    real = problem.held_out[:n] if args.judge == "network" else problem.images  # those it has not seen
    rows = {"real pictures": judge.score(real)}
    settings = {
        "quality": steps,
        "n_particles": args.particles,
        "transport": Histogram(128, most=None) if args.count_all else "histogram",
        "device": args.device,
    }
    order: np.ndarray = np.zeros(0)
    y = None
    for way, flow in flows(problem, ways(args.even, args.knots), settings):
        if "batched samples" not in rows:
            order = np.random.default_rng(0).permutation(len(flow.particles_))[:n]
            rows["batched samples"] = judge.score(flow.particles_[order])
            if flow.particle_conditions_ is not None:
                y = flow.particle_conditions_[order]  # of the batched and of all offline samples
            keep(args.keep, name, "batched", flow.particles_[order])
            keep(args.keep, name, "labels", y)
        rows[way], samples = measured(flow, judge, y, len(order), args.seeds, args.on_cpu)
        keep(args.keep, name, way, samples)
        print(name, way, {k: round(v, 4) for k, v in rows[way].items()}, flush=True)
    labels = "without labels" if y is None else "with labels"
    pace = steps if isinstance(steps, str) else f"{steps} steps per stage"
    title = f"{name} {labels}, {pace}, {len(flow.particles_):,} particles"
    return {"title": title, "maps": maps_of(flow), "scores": list(rows["real pictures"]), "rows": rows}


def keep(folder: Path | None, name: str, way: str, samples: np.ndarray | None) -> None:
    """Samples for a judge from outside."""
    if folder is not None and samples is not None:
        (folder / name).mkdir(parents=True, exist_ok=True)
        np.save(folder / name / f"{way.replace(' ', '_')}.npy", samples)


def main(argv: list[str] | None = None) -> None:
    """Every set, with each number of steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", help="default: digits; mnist cifar10 with a --data-root")
    parser.add_argument("--data-root")
    parser.add_argument(
        "--steps", nargs="+", help="per stage, or draft, standard, best; default: standard, digits 10"
    )
    parser.add_argument("--particles", type=int)
    parser.add_argument(
        "--count-all", action="store_true", help="all particles at every step, 128 bins"
    )
    parser.add_argument("--samples", type=int, help="default: as many as held-out pictures")
    parser.add_argument("--seeds", type=int, default=2, help="sets of offline samples that are judged")
    parser.add_argument("--even", type=int, nargs="*", default=[], help="knots, evenly spread")
    parser.add_argument("--knots", type=int, nargs="*", default=[8, 12, 16, 24], help="n_knots")
    judges = "pixels, network (FD in its features; it is trained first), or module:function"
    parser.add_argument("--judge", default="pixels", help=judges)
    parser.add_argument("--keep", type=Path, help="a folder for all samples, as .npy")
    parser.add_argument("--on-cpu", type=int, default=0, help="samples to draw on a CPU as well")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/table_size"))
    args = parser.parse_args(argv)

    command = "python benchmarks/table_size.py " + " ".join(sys.argv[1:] if argv is None else argv)
    about = facts(resolve_device(args.device))
    results: list[dict[str, Any]] = []
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.sets or (["mnist", "cifar10"] if args.data_root else ["digits"]):
        for given in args.steps or ["10" if name == "digits" else "standard"]:
            result = result_of(name, int(given) if given.isdigit() else given, args)
            print(f"\n{result['title']}: {result['maps']:,} maps\n")
            print(
                f"{text(result['rows'], result['scores'])}\n\n{signature(about, command)}\n", flush=True
            )
            results.append({"about": about, "command": command, **result})
            # After every one: whoever stops the next one has this one.
            plot(results, args.out / "table_size.png")
            (args.out / "table_size.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
