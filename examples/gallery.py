"""Pictures of the real sets: samples, classes, completions, amplifiers, ablation, neighbours.

    python examples/gallery.py --data-root DATA --out gallery
    python examples/gallery.py --data-root DATA --out gallery --only mnist celeba-inpainting
    python examples/gallery.py --data-root DATA --out gallery --small

writes one file for each picture, .png for grey sets and .jpg for photographs, and `gallery.json`: what
was fitted, how long it took, on what. It is made for a GPU; `--small` shows on a CPU that it runs.
Samples shown are the first ones, not the best ones.
"""

import argparse
import datetime
import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path

import amplifier
import local_and_pyramid
import nearest
import numpy as np
import torch
from grids import Panel, by_class, completions, sheet
from runs import class_names, fit, name, samples

from sliceflow import ImageFlow, __version__
from sliceflow.datasets import Pictures, load
from sliceflow.devices import resolve_device
from sliceflow.spaces.pictures.layout import MASKS

STEPS = {"mnist": 50, "fashion-mnist": 50, "cifar10": 50, "celeba": 30}  # per stage
PARTICLES = {
    "mnist": 60_000,
    "fashion-mnist": 60_000,
    "cifar10": 100_000,
    "celeba": 40_000,
}
HELD_OUT = 500  # faces: CelebA's first pictures have no test set of their own
GIVEN = {"top": "the top half", "left": "the left half", "border": "all but the middle"}


def unconditional(
    path: Path,
    train: Pictures,
    test: Pictures,
    settings: dict,
    shape: tuple[int, int] = (8, 16),
) -> dict:
    """Samples without labels."""
    images, cost = samples(train, **settings)
    grid = images[: shape[0] * shape[1]].reshape(*shape, *images.shape[1:])
    sheet(
        path, [Panel(grid)], train.n_pixel_values, f"{name(train)}, no labels: {cost}"
    )
    return {"fits": [cost]}


def conditional(
    path: Path,
    train: Pictures,
    test: Pictures,
    settings: dict,
    measure: Callable[[np.ndarray, np.ndarray], dict] | None = None,
) -> dict:
    """Samples by class, a row of each; `measure` takes all of them and their classes."""
    flow, cost = fit(train, train.labels, n_knots=0, **settings)
    grid = by_class(flow.particles_, flow.particle_conditions_, 12)
    panel = Panel(grid, row_names=class_names(train))
    sheet(path, [panel], train.n_pixel_values, f"{name(train)} by class: {cost}")
    numbers = measure(flow.particles_, flow.particle_conditions_) if measure else {}
    return {"fits": [cost], **numbers}


def inpainting(
    path: Path,
    train: Pictures,
    test: Pictures,
    settings: dict,
    given: str,
    measure: Callable[[ImageFlow], dict] | None = None,
) -> dict:
    """Test pictures, one of each class, of which a part is given; six completions of each."""
    flow, cost = fit(train, observed=given, n_knots=64, **settings)
    chosen = (
        range(10)
        if test.labels is None
        else np.unique(test.labels, return_index=True)[1]
    )
    pictures = test.images[list(chosen)]
    completed = flow.inpaint(pictures, n=6, random_state=1)
    known = MASKS[given](*pictures.shape[1:3])
    names = [] if test.labels is None else class_names(test)
    title = f"{name(train)}, test pictures of which {GIVEN[given]} is given: {cost}"
    sheet(
        path,
        completions(pictures, completed, known, names),
        train.n_pixel_values,
        title,
    )
    return {"fits": [cost], **(measure(flow) if measure else {})}


PICTURES = {  # which set, and who draws it
    "mnist": ("mnist", unconditional),
    "mnist-by-class": ("mnist", conditional),
    "mnist-inpainting": ("mnist", partial(inpainting, given="top")),
    "mnist-amplifier": ("mnist", amplifier.draw),
    "mnist-ablation": ("mnist", local_and_pyramid.draw),
    "mnist-neighbours": ("mnist", nearest.draw),
    "fashion-mnist": ("fashion-mnist", unconditional),
    "fashion-mnist-by-class": ("fashion-mnist", conditional),
    "fashion-mnist-inpainting": ("fashion-mnist", partial(inpainting, given="left")),
    "cifar10": ("cifar10", unconditional),
    "cifar10-by-class": ("cifar10", conditional),
    "cifar10-inpainting": ("cifar10", partial(inpainting, given="left")),
    "cifar10-neighbours": ("cifar10", nearest.draw),
    "celeba": ("celeba", partial(unconditional, shape=(6, 12))),
    "celeba-inpainting": ("celeba", partial(inpainting, given="border")),
    "celeba-neighbours": ("celeba", nearest.draw),
}


@cache
def read(
    dataset: str, root: Path, n: int | None, whole: bool
) -> tuple[Pictures, Pictures]:
    """At most n training pictures, and test pictures; of `whole` CelebA none are held out."""
    train = stored(dataset, "train", root)
    if dataset != "celeba":
        return part(train, 0, n), stored(dataset, "test", root)
    first = len(train.images) - HELD_OUT
    return part(train, 0, n or (None if whole else first)), part(train, first, None)


@cache
def stored(dataset: str, split: str, root: Path) -> Pictures:
    """A set as it is on the disk."""
    return load(dataset, split, root)


def part(pictures: Pictures, first: int, last: int | None) -> Pictures:
    """Some of the pictures."""
    labels = None if pictures.labels is None else pictures.labels[first:last]
    return Pictures(
        pictures.images[first:last], labels, pictures.n_pixel_values, pictures.name
    )


def machine(device: torch.device) -> dict:
    """What a picture was made on, and when."""
    return {
        "date": str(datetime.date.today()),
        "machine": torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else platform.machine(),
        "sliceflow": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def main() -> None:
    """Draw the pictures asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", type=Path, help="folder of the data sets")
    parser.add_argument(
        "--out", type=Path, default=Path("gallery"), help="folder to write to"
    )
    only = {"nargs": "+", "choices": PICTURES, "default": PICTURES, "metavar": "NAME"}
    parser.add_argument("--only", **only, help=", ".join(PICTURES))
    parser.add_argument("--quality", type=int, help=f"steps per stage; {STEPS}")
    parser.add_argument("--n-particles", type=int, help=f"{PARTICLES}")
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda, or auto: a GPU if there is one"
    )
    small = "2000 pictures, 1000 particles, 2 steps per stage: to see that it runs"
    parser.add_argument("--small", action="store_true", help=small)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    record = args.out / "gallery.json"
    made = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    for which in args.only:
        dataset, draw = PICTURES[which]
        settings = {
            "quality": args.quality or (2 if args.small else STEPS[dataset]),
            "n_particles": args.n_particles
            or (1000 if args.small else PARTICLES[dataset]),
            "device": args.device,
        }
        began = time.perf_counter()
        n = 2000 if args.small else None
        whole = which == "celeba" and not args.small
        train, test = read(dataset, args.data_root, n, whole)
        path = args.out / f"{which}.{'png' if train.images.ndim == 3 else 'jpg'}"
        numbers = draw(path, train, test, settings)
        numbers["fits"] = [asdict(cost) for cost in numbers["fits"]]
        made[which] = {
            "file": path.name,
            "pictures": len(train.images),
            **settings,
            **numbers,
            "seconds in all": time.perf_counter() - began,
            **machine(resolve_device(args.device)),
        }
        # After every picture: a run that is cut short leaves what it made.
        record.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        fits = sum(cost["seconds"] for cost in numbers["fits"])
        kilobytes = path.stat().st_size / 1e3
        total = made[which]["seconds in all"]
        print(
            f"{path}: {fits:.1f} s of fits, {total:.1f} s in all, {kilobytes:.0f} kB",
            flush=True,
        )


if __name__ == "__main__":
    main()
