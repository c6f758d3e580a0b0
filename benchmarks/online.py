"""New classes online: absorbed by counting, nothing forgotten; and classes forgotten on request.

    python benchmarks/online.py --scale small
    python benchmarks/online.py --data-root DATA --device cuda --steps 30 --out runs/online

Three parts, the first two the demonstrations of the paper's authors:

- `unconditional`: MNIST class by class, then Fashion-MNIST class by class, without labels;
- `conditional`: the classes of Fashion-MNIST join a conditional MNIST;
- `refresh`: what a refresh of the last stages alone saves and costs.

After every class it is measured how well the *old* ones are still there, beside a fit from scratch on
all the pictures so far. At the end the first class is forgotten. Writes online.md, online.json, an
animation of each demonstration and its last pictures. `--scale small` is digits class by class, for a
CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from report import facts, signature, table

from sliceflow import ImageFlow, datasets, metrics
from sliceflow.cli.grid import animation, as_bytes, grid
from sliceflow.devices import resolve_device

CLOTHES = (
    "T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot",
)  # fmt: skip
COLUMNS, ROWS = 10, 12  # pictures shown; with labels a row for each class
GREYS = 16  # of animations, whose files are then less than half as large


@dataclass(frozen=True)
class World:
    """All the pictures there will be: of classes 0..C-1, which arrive in groups."""

    images: np.ndarray
    labels: np.ndarray
    names: Sequence[str]
    n_pixel_values: int
    schedule: str
    n_first: int  # classes that a conditional flow begins with

    def some(self, per_class: int) -> World:
        """The first pictures of every class."""
        chosen = [np.flatnonzero(self.labels == c)[:per_class] for c in range(len(self.names))]
        rows = np.sort(np.concatenate(chosen))
        return replace(self, images=self.images[rows], labels=self.labels[rows])

    def of(self, classes: Sequence[int]) -> np.ndarray:
        """Which pictures are of some classes."""
        return np.isin(self.labels, classes)


def load(scale: str, root: str | None) -> tuple[World, World]:
    """Training and test pictures."""
    out = []
    for split in ("train", "test"):
        if scale == "small":
            data = datasets.load("digits", split=split)
            names = [str(c) for c in range(10)]
            out.append(World(data.images, data.labels, names, 17, "auto", 5))
            continue
        mnist, fashion = (datasets.load(n, split=split, root=root) for n in ("mnist", "fashion-mnist"))
        images = np.concatenate((mnist.images, fashion.images))
        labels = np.concatenate((mnist.labels.astype(int), fashion.labels.astype(int) + 10))
        names = [*(str(c) for c in range(10)), *CLOTHES]
        out.append(World(images, labels, names, 256, "mnist", 10))
    return out[0], out[1]


def timed(work: Callable[[], Any]) -> float:
    """Seconds that it takes."""
    began = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def rows_of(images: np.ndarray, n_pixel_values: int, most: int = 5000) -> np.ndarray:
    """Some pictures as rows in [-1, 1]."""
    return images[:most].reshape(len(images[:most]), -1) * np.float32(2 / n_pixel_values) - 1


def kept(shares: np.ndarray, real: np.ndarray, classes: Sequence[int]) -> float:
    """Of the mass that some classes should have, the part that they have."""
    return float(np.minimum(shares, real)[classes].sum() / real[classes].sum())


class Watcher:
    """Judges batched samples: which classes are in them, and how far they are from test pictures."""

    def __init__(self, world: World, test: World, recogniser: metrics.PictureClassifier) -> None:
        self.world, self.test, self.recogniser = world, test, recogniser

    def look(self, flow: ImageFlow, there: Sequence[int], old: Sequence[int]) -> dict[str, float]:
        """Old and new classes: their accuracy where samples have labels, else what is there of them."""
        samples, labels = np.asarray(flow.particles_), flow.particle_conditions_
        found = self.recogniser.predict(samples)
        real = np.bincount(self.world.labels[self.world.of(there)], minlength=len(self.world.names))
        shares = np.bincount(found, minlength=len(real)) / len(found)
        test = self.test.images[self.test.of(there)]
        test = test[np.random.default_rng(0).permutation(len(test))]
        out = {
            "distance": metrics.sliced_wasserstein(
                rows_of(samples, self.world.n_pixel_values), rows_of(test, self.world.n_pixel_values)
            )
        }
        if labels is None:
            kind, value = "kept", lambda classes: kept(shares, real / real.sum(), classes)
        else:
            right = found == labels
            kind, value = "accuracy", lambda classes: float(right[np.isin(labels, classes)].mean())
        new = [c for c in there if c not in old]
        out[f"{kind}, old"] = value(old) if old else float("nan")
        out[f"{kind}, new"] = value(new) if new else float("nan")
        return out


def picture(flow: ImageFlow, world: World, caption: str) -> Image.Image:
    """The first samples: a row for each class that is there, or any of them."""
    samples, labels = (
        as_bytes(np.asarray(flow.particles_), world.n_pixel_values),
        flow.particle_conditions_,
    )
    if labels is None:
        shown = grid(samples[: ROWS * COLUMNS].reshape(ROWS, COLUMNS, *samples.shape[1:]), 28)
    else:
        blank = np.full((COLUMNS, *samples.shape[1:]), 255, np.uint8)
        rows = [
            samples[labels == c][:COLUMNS] if c in labels else blank for c in range(len(world.names))
        ]
        rows = [np.concatenate((row, blank))[:COLUMNS] for row in rows]
        shown = grid(np.stack(rows), 28)
    out = Image.new("L", (shown.width, shown.height + 18), 255)
    out.paste(shown, (0, 18))
    ImageDraw.Draw(out).text((2, 3), caption, fill=0)
    return out


def few_greys(picture: Image.Image) -> Image.Image:
    """A grey picture in `GREYS` greys."""
    top = GREYS - 1
    out = picture.point([round(v * top / 255) for v in range(256)])
    out.putpalette([round(v * 255 / top) for v in range(GREYS) for _ in "RGB"])
    return out


def demonstration(
    make: Callable[[], ImageFlow],
    world: World,
    watcher: Watcher,
    groups: Sequence[Sequence[int]],
    labelled: bool,
    out: Path,
    *,
    scratch: bool = True,
) -> dict[str, Any]:
    """Groups of classes arrive, then the first class is forgotten."""

    def given(classes: Sequence[int]) -> tuple[np.ndarray, np.ndarray | None]:
        chosen = world.of(classes)
        return world.images[chosen], world.labels[chosen] if labelled else None

    name = "conditional" if labelled else "unconditional"
    flow, there, points, frames = make(), [], [], []
    for group in groups:
        old, there = there, [*there, *group]
        who = world.names[group[0]] if len(group) == 1 else f"{len(group)} classes"
        point: dict[str, Any] = {"arrived": who}
        point["absorb"] = timed(partial(flow.partial_fit, *given(group), refresh=False))
        point["refresh"] = timed(flow.refresh)
        point |= watcher.look(flow, there, old)
        frames.append(picture(flow, world, f"+ {who}"))
        if scratch:
            other = make()
            point["fit"] = timed(partial(other.fit, *given(there)))
            point |= {f"{k}, scratch": v for k, v in watcher.look(other, there, old).items()}
        points.append(point)
        print(f"{name}: {point}", flush=True)
    last = there[0]
    before = watcher.recogniser.predict(np.asarray(flow.particles_))
    flow.forget(*given([last]))
    after = watcher.recogniser.predict(np.asarray(flow.particles_))
    frames.append(picture(flow, world, f"{world.names[last]} forgotten"))
    animation(out / f"{name}.gif", [few_greys(frame) for frame in frames], 600)
    frames[-2].save(out / f"{name}.png")
    return {
        "points": points,
        "counts, bytes": flow._online.ledger.nbytes,
        "forgotten": world.names[last],
        "share before": float(np.mean(before == last)),
        "share after": float(np.mean(after == last)),
    }


def refreshes(
    make: Callable[[], ImageFlow], world: World, test: World, lasts: Sequence[int]
) -> list[dict[str, Any]]:
    """Half of the pictures, then the other half, with refreshes of some last stages.

    Once the halves are alike, once the classes of the second half are new.
    """
    rng = np.random.default_rng(0)
    order = rng.permutation(len(world.images))
    new = world.labels[order] >= world.n_first
    halves = {
        "alike": np.arange(len(order)) < len(order) // 2,
        "new classes": ~new,
    }
    real = rows_of(test.images[rng.permutation(len(test.images))], world.n_pixel_values)
    out = []
    for name, first in halves.items():
        begin = make().partial_fit(world.images[order[first]])
        whole = len(begin.schedule_)
        rest = world.images[order[~first]]
        state = begin._fitted, begin.history_, begin.particles_
        begin.partial_fit(rest, refresh=False)
        for last in (0, *(n for n in sorted(lasts) if n < whole), whole):
            begin._fitted, begin.history_, begin.particles_ = state
            seconds = 0.0
            if last:
                again = partial(begin.refresh, last if last < whole else None)
                seconds = timed(again)
            far = {
                kind: metrics.sliced_wasserstein(rows_of(samples, world.n_pixel_values), real)
                for kind, samples in (
                    ("batched", np.asarray(begin.particles_)),
                    ("offline", begin.sample(5000, random_state=0)),
                )
            }
            out.append({"second half": name, "stages": last, "of": whole, "seconds": seconds} | far)
            print(f"refresh: {out[-1]}", flush=True)
    return out


def text_of(name: str, result: Any) -> str:
    """A table of what a part found."""
    if name == "refresh":
        cells = [
            [r["second half"], f"{r['stages']} of {r['of']}", f"{r['seconds']:.2f}",
             f"{r['batched']:.4f}", f"{r['offline']:.4f}"]
            for r in result
        ]  # fmt: skip
        head = ["second half", "stages", "seconds", "sliced distance, batched", "offline"]
        return table(head, cells)
    points = result["points"]
    columns = [key for key in points[-1] if key != "arrived"]
    cells = [[p["arrived"], *(f"{p[key]:.4g}" for key in columns)] for p in points]
    size = result["counts, bytes"] / 2**20
    return (
        f"{table(['arrived', *columns], cells)}\n\n"
        f"The counts take {size:.0f} MiB. Forgetting {result['forgotten']}: its share of the samples "
        f"falls from {result['share before']:.2%} to {result['share after']:.2%}."
    )


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", choices=("small", "full"), default="full")
    parser.add_argument("--part", choices=("unconditional", "conditional", "refresh"), action="append")
    parser.add_argument("--data-root")
    parser.add_argument("--steps", type=int, help="steps per stage; default 30, small 5")
    parser.add_argument("--particles", type=int, help="default 60,000, small 1500")
    parser.add_argument("--classes", type=int, help="only so many classes")
    parser.add_argument("--per-class", type=int, help="only so many pictures of each class")
    parser.add_argument("--schedule", help="default: the paper's, small auto")
    parser.add_argument("--no-scratch", action="store_true", help="leave the fits from scratch out")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/online"))
    args = parser.parse_args(argv)
    small, device = args.scale == "small", resolve_device(args.device)
    if small:
        torch.set_num_threads(1)  # threads wait for each other longer than such small steps take
    world, test = load(args.scale, args.data_root)
    world = world if args.per_class is None else world.some(args.per_class)
    args.out.mkdir(parents=True, exist_ok=True)
    recogniser = metrics.train_classifier(
        world.images,
        world.labels,
        n_pixel_values=world.n_pixel_values,
        device=args.device,
        mirror=False,
    )
    right = recogniser.score(test.images, test.labels)
    print(f"the recogniser is right on {right:.2%} of the test pictures", flush=True)

    def make() -> ImageFlow:
        return ImageFlow(
            schedule=args.schedule or world.schedule,
            quality=args.steps or (5 if small else 30),
            n_particles=args.particles or (1500 if small else 60_000),
            n_pixel_values=world.n_pixel_values,
            device=device,
            patch_basis="pixels",  # the fits from scratch would choose by what is there
            n_clusters=1,  # partial_fit knows of none
            random_state=0,
        )

    make().set_params(quality=1).fit(world.images[:6000])  # compiles
    classes = list(range(args.classes or len(world.names)))
    watcher = Watcher(world, test, recogniser)
    results: dict[str, Any] = {"recogniser": right}
    text = f"The recogniser is right on {right:.2%} of the test pictures.\n"
    for part in args.part or ("unconditional", "conditional", "refresh"):
        if part == "refresh":
            stages = 11 if small else 35
            results[part] = refreshes(make, world, test, [stages // 8, stages // 4, stages // 2])
        else:
            alone = [[c] for c in classes]
            first = [c for c in classes if c < world.n_first]
            groups = (
                alone if part == "unconditional" else [first, *([c] for c in classes[len(first) :])]
            )
            labelled = part == "conditional"
            results[part] = demonstration(
                make, world, watcher, groups, labelled, args.out, scratch=not args.no_scratch
            )
        text += f"\n### {part.capitalize()}\n\n{text_of(part, results[part])}\n"
    command = "python benchmarks/online.py " + " ".join(sys.argv[1:] if argv is None else argv)
    text += f"\n{signature(facts(device), command.strip())}\n"
    (args.out / "online.md").write_text(text)
    (args.out / "online.json").write_text(json.dumps(results, indent=1))
    print(text)
    return results


if __name__ == "__main__":
    main()
