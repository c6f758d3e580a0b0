"""Pictures of the real sets: samples, classes, completions, amplifiers, neighbors.

    python examples/gallery.py --data-root DATA --out gallery
    python examples/gallery.py --data-root DATA --out gallery --only mnist celeba
    python examples/gallery.py --data-root DATA --out gallery --small

writes one file for each picture, .png for gray sets and .jpg for photographs, and
`gallery.json`: what was fitted, how long it took, on what. It is made for a GPU;
`--small` shows on a CPU that it runs. Samples shown are the first ones, not the best
ones.
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
from sliceflow.datasets import PictureSet, load
from sliceflow.devices import resolve_device
from sliceflow.estimators.pictures.known_parts import KNOWN_PARTS

STEPS = {"mnist": 50, "fashion-mnist": 50, "cifar10": 50, "celeba": 30}  # per stage
PARTICLES = {
    "mnist": 60_000,
    "fashion-mnist": 60_000,
    "cifar10": 100_000,
    "celeba": 40_000,
}
HELD_OUT = 500  # faces: CelebA's first pictures have no test set of their own
# With --small: training pictures, particles and steps per stage.
SMALL_PICTURES = 2000
SMALL_PARTICLES = 1000
SMALL_STEPS = 2
GIVEN = {"top": "the top half", "left": "the left half", "border": "all but the middle"}


def unconditional(
    path: Path,
    train: PictureSet,
    test: PictureSet,
    settings: dict,
    shape: tuple[int, int] = (8, 16),
) -> dict:
    """Samples without labels."""
    images, cost = samples(train, **settings)
    n_rows, n_columns = shape
    shown = images[: n_rows * n_columns]
    grid = shown.reshape(n_rows, n_columns, *images.shape[1:])
    title = f"{name(train)}, no labels: {cost}"
    sheet(path, [Panel(grid)], train.n_pixel_values, title)
    return {"fits": [cost]}


def conditional(
    path: Path,
    train: PictureSet,
    test: PictureSet,
    settings: dict,
    measure: Callable[[np.ndarray, np.ndarray], dict] | None = None,
) -> dict:
    """Samples by class, a row of each; `measure` takes all samples and labels."""
    flow, cost = fit(train, train.labels, n_knots=0, **settings)
    grid = by_class(flow.particles_, flow.particle_conditions_, 12)
    panel = Panel(grid, row_names=class_names(train))
    sheet(path, [panel], train.n_pixel_values, f"{name(train)} by class: {cost}")
    results = {"fits": [cost]}
    if measure is not None:
        results |= measure(flow.particles_, flow.particle_conditions_)
    return results


def inpainting(
    path: Path,
    train: PictureSet,
    test: PictureSet,
    settings: dict,
    given: str,
    measure: Callable[[ImageFlow], dict] | None = None,
) -> dict:
    """Test pictures, one of each class, of which a part is given; six completions."""
    flow, cost = fit(train, known=given, n_knots=64, **settings)
    if test.labels is None:
        pictures = test.images[:10]
        row_names = []
    else:
        _, first_of_class = np.unique(test.labels, return_index=True)
        pictures = test.images[first_of_class]
        row_names = class_names(test)
    completed = flow.inpaint(pictures, n=6, random_state=1)
    h, w = pictures.shape[1:3]
    panels = completions(pictures, completed, KNOWN_PARTS[given](h, w), row_names)
    title = f"{name(train)}, test pictures of which {GIVEN[given]} is given: {cost}"
    sheet(path, panels, train.n_pixel_values, title)
    results = {"fits": [cost]}
    if measure is not None:
        results |= measure(flow)
    return results


PICTURES = {  # which set, and who draws it
    "mnist": ("mnist", unconditional),
    "mnist-by-class": ("mnist", conditional),
    "mnist-inpainting": ("mnist", partial(inpainting, given="top")),
    "mnist-amplifier": ("mnist", amplifier.draw),
    "mnist-ablation": ("mnist", local_and_pyramid.draw),
    "mnist-neighbors": ("mnist", nearest.draw),
    "fashion-mnist": ("fashion-mnist", unconditional),
    "fashion-mnist-by-class": ("fashion-mnist", conditional),
    "fashion-mnist-inpainting": ("fashion-mnist", partial(inpainting, given="left")),
    "cifar10": ("cifar10", unconditional),
    "cifar10-by-class": ("cifar10", conditional),
    "cifar10-inpainting": ("cifar10", partial(inpainting, given="left")),
    "cifar10-neighbors": ("cifar10", nearest.draw),
    "celeba": ("celeba", partial(unconditional, shape=(6, 12))),
    "celeba-inpainting": ("celeba", partial(inpainting, given="border")),
    "celeba-neighbors": ("celeba", nearest.draw),
}


@cache
def read(
    dataset: str, root: Path, n: int | None, whole: bool
) -> tuple[PictureSet, PictureSet]:
    """At most n training pictures, and test pictures.

    CelebA's last pictures are its test pictures. They are held out, unless n is None
    and the `whole` set is asked for.
    """
    train = stored(dataset, "train", root)
    if dataset != "celeba":
        return part(train, 0, n), stored(dataset, "test", root)
    first_test = len(train.images) - HELD_OUT
    if n is None and not whole:
        n = first_test
    return part(train, 0, n), part(train, first_test, None)


@cache
def stored(dataset: str, split: str, root: Path) -> PictureSet:
    """A set as it is on the disk."""
    return load(dataset, split, root)


def part(pictures: PictureSet, first: int, last: int | None) -> PictureSet:
    """Some of the pictures."""
    labels = pictures.labels
    if labels is not None:
        labels = labels[first:last]
    images = pictures.images[first:last]
    return PictureSet(images, labels, pictures.n_pixel_values, pictures.name)


def machine(device: torch.device) -> dict:
    """What a picture was made on, and when."""
    machine_name = platform.machine()
    if device.type == "cuda":
        machine_name = torch.cuda.get_device_name(device)
    return {
        "date": str(datetime.date.today()),
        "machine": machine_name,
        "sliceflow": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def fit_settings(args: argparse.Namespace, dataset: str) -> dict:
    """What every fit of a set is given."""
    steps_per_stage = STEPS[dataset]
    n_particles = PARTICLES[dataset]
    if args.small:
        steps_per_stage = SMALL_STEPS
        n_particles = SMALL_PARTICLES
    if args.steps_per_stage is not None:
        steps_per_stage = args.steps_per_stage
    if args.n_particles is not None:
        n_particles = args.n_particles
    return {
        "steps_per_stage": steps_per_stage,
        "n_particles": n_particles,
        "device": args.device,
    }


def make(which: str, args: argparse.Namespace) -> dict:
    """Draw one picture, and return its entry in `gallery.json`."""
    started_at = time.perf_counter()
    dataset, draw = PICTURES[which]
    settings = fit_settings(args, dataset)
    n = SMALL_PICTURES if args.small else None
    train, test = read(dataset, args.data_root, n, whole=which == "celeba")
    suffix = "png" if train.images.ndim == 3 else "jpg"
    path = args.out / f"{which}.{suffix}"
    results = draw(path, train, test, settings)
    costs = [asdict(cost) for cost in results.pop("fits")]
    seconds = time.perf_counter() - started_at
    fit_seconds = sum(cost["seconds"] for cost in costs)
    kilobytes = path.stat().st_size / 1e3
    print(
        f"{path}: {fit_seconds:.1f} s of fits, {seconds:.1f} s in all, "
        f"{kilobytes:.0f} kB",
        flush=True,
    )
    return {
        "file": path.name,
        "pictures": len(train.images),
        **settings,
        "fits": costs,
        **results,
        "seconds in all": seconds,
        **machine(resolve_device(args.device)),
    }


def main() -> None:
    """Draw the pictures asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", type=Path, help="folder of the data sets")
    parser.add_argument(
        "--out", type=Path, default=Path("gallery"), help="folder to write to"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PICTURES,
        default=PICTURES,
        metavar="NAME",
        help=", ".join(PICTURES),
    )
    parser.add_argument("--steps-per-stage", type=int, help=f"default: {STEPS}")
    parser.add_argument("--n-particles", type=int, help=f"{PARTICLES}")
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda, or auto: a GPU if there is one"
    )
    parser.add_argument(
        "--small",
        action="store_true",
        help="2000 pictures, 1000 particles, 2 steps per stage: to see that it runs",
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    record = args.out / "gallery.json"
    entries = {}
    if record.exists():
        entries = json.loads(record.read_text(encoding="utf-8"))
    for which in args.only:
        entries[which] = make(which, args)
        # After every picture: a run that is cut short leaves what it made.
        record.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
