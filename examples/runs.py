"""What the picture examples share: command line, data sets, timed fits."""

import argparse
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from sklearn.base import clone

from sliceflow import ImageFlow, ImageOptions
from sliceflow.datasets import PictureSet, load
from sliceflow.devices import resolve_device

NAMES = {
    "digits": "Digits",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "celeba": "CelebA",
}
CLASSES = {
    "fashion-mnist": (
        "T-shirt trousers pullover dress coat sandal shirt trainer bag boot"
    ),
    "cifar10": "plane car bird cat deer dog frog horse ship lorry",
}
NBSP = "\N{NO-BREAK SPACE}"
N_SAMPLES = 2000  # that are drawn and measured


def arguments(doc: str) -> argparse.Namespace:
    """The command line of an example. The folder to write to is made."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    sets = ("digits", "mnist", "fashion-mnist", "cifar10")
    parser.add_argument(
        "--out", type=Path, default=Path("examples-out"), help="folder to write to"
    )
    parser.add_argument("--dataset", choices=sets, default="digits")
    parser.add_argument(
        "--data-root", type=Path, help="folder of the data sets; digits need none"
    )
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda, or auto: a GPU if there is one"
    )
    parser.add_argument("--steps-per-stage", type=int, default=10)
    parser.add_argument("--n-particles", type=int, default=2000)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    return args


def read(args: argparse.Namespace) -> tuple[PictureSet, PictureSet]:
    """The training and the test pictures."""
    train = load(args.dataset, "train", args.data_root)
    test = load(args.dataset, "test", args.data_root)
    return train, test


def settings(args: argparse.Namespace) -> dict:
    """What every fit of an example is given."""
    return {
        "steps_per_stage": args.steps_per_stage,
        "n_particles": args.n_particles,
        "device": args.device,
    }


def name(pictures: PictureSet) -> str:
    """What a set is called."""
    return NAMES[pictures.name]


def class_names(pictures: PictureSet) -> list[str]:
    """What its classes are called, in the order of their labels."""
    if pictures.name in CLASSES:
        return CLASSES[pictures.name].split()
    return [str(label) for label in np.unique(pictures.labels)]


def rows(images: np.ndarray, n_pixel_values: int) -> np.ndarray:
    """Pictures as rows of numbers in [-1, 1], as the metrics want them."""
    return images.reshape(len(images), -1) / ((n_pixel_values - 1) / 2) - 1


def mirrored(pictures: PictureSet) -> bool:
    """Whether the mirror image of a picture could be in the set as well.

    Things and faces, which are in color; not digits.
    """
    return pictures.images.ndim == 4


@dataclass(frozen=True)
class Cost:
    """What a fit took."""

    particles: int
    steps: int
    seconds: float

    @property
    def time(self) -> str:
        """Steps and seconds, for a title."""
        digits = 1 if self.seconds < 10 else 0
        return f"{self.steps:,}{NBSP}steps, {self.seconds:.{digits}f}{NBSP}s"

    def __str__(self) -> str:
        return f"{self.particles:,}{NBSP}particles, {self.time}"


def fit(
    train: PictureSet,
    labels: np.ndarray | None = None,
    *,
    n_knots: str | int = "auto",
    **settings: object,
) -> tuple[ImageFlow, Cost]:
    """A fitted flow and what it cost, compiling aside."""
    settings = {"options": ImageOptions(n_knots=n_knots)} | settings
    flow = ImageFlow(
        n_pixel_values=train.n_pixel_values,
        mirror=mirrored(train),
        random_state=0,
        **settings,
    )
    if resolve_device(flow.device).type == "cuda":
        # Compile all kernels, and find the memory, before the clock starts.
        clone(flow).set_params(steps_per_stage=1).fit(train.images, labels)
    started_at = time.perf_counter()
    flow.fit(train.images, labels)
    seconds = time.perf_counter() - started_at
    return flow, Cost(len(flow.particles_), flow.n_iter_, seconds)


@cache
def samples(train: PictureSet, **settings: object) -> tuple[np.ndarray, Cost]:
    """2000 batched samples without labels, and what they cost.

    The same ones when asked again: several pictures of the gallery show them.
    """
    flow, cost = fit(train, n_knots=0, **settings)
    return flow.particles_[:N_SAMPLES], cost
