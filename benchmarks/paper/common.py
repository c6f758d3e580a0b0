"""What the commands share: the command line, the sets and sizes of a scale, scores, what is written."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import gallery
import numpy as np
from neighbours import nn_ratio
from report import facts, signature, table
from runs import mirrored, name

from sliceflow import metrics
from sliceflow.datasets import Pictures, load
from sliceflow.devices import resolve_device

__all__ = ["Command", "Scorer", "command", "number", "pixel_rows", "table"]

MOST = 10_000  # samples that are scored
# Real sets at a scale for CPUs: so many pictures, and so many times fewer steps.
SLICES = {"mnist": (2000, 2), "fashion-mnist": (2000, 2), "cifar10": (1000, 10), "celeba": (400, 20)}


@dataclass(frozen=True)
class Scale:
    """How much is computed. `steps` and `particles` are None where the set decides."""

    pictures: int | None
    steps: int | None
    particles: int | None
    classifier: dict[str, Any] = field(default_factory=dict)

    def choose(self, **values: Any) -> Any:
        """The value for this scale, such as ``choose(tiny=1, small=10, full=100)``."""
        return values[next(key for key, scale in SCALES.items() if scale is self)]


SCALES = {
    "tiny": Scale(300, 1, 300, {"width": 4, "epochs": 2}),  # to see that it runs
    "small": Scale(2000, 20, 2000, {"width": 8, "epochs": 8}),  # two minutes on a CPU
    "full": Scale(None, None, None),  # one GPU
}


@dataclass
class Command:
    """One table or figure being made."""

    what: str
    module: str
    args: argparse.Namespace
    written: str
    began: float = field(default_factory=time.perf_counter)

    @property
    def scale(self) -> Scale:
        return SCALES[self.args.scale]

    @property
    def out(self) -> Path:
        return self.args.out

    def sets(self, *wanted: str) -> list[str]:
        """The paper's sets where they are to be had; else digits stand for them."""
        if self.args.datasets:
            foreign = set(self.args.datasets) - {"digits", *wanted}
            if foreign:
                raise SystemExit(
                    f"{self.what} is of {', '.join(wanted)}; --datasets {' '.join(foreign)} is not"
                )
            return list(self.args.datasets)
        return list(wanted) if self.args.data_root else ["digits"]

    def read(self, dataset: str) -> tuple[Pictures, Pictures]:
        """Training and test pictures, as many as the scale allows."""
        n, root = self.scale.pictures, self.args.data_root
        if dataset == "digits":
            train, test = (load("digits", split) for split in ("train", "test"))
            return gallery.part(train, 0, n), test
        n = None if n is None else min(n, SLICES[dataset][0])
        train, test = gallery.read(dataset, root, n, False)
        return train, gallery.part(test, 0, n)

    def settings(self, dataset: str) -> dict[str, Any]:
        """What every fit is given: steps per stage, particles, device."""
        steps = self.scale.steps or gallery.STEPS.get(dataset, 100)
        if self.args.scale != "full" and dataset in SLICES:
            steps = -(-steps // SLICES[dataset][1])
        particles = self.scale.particles or gallery.PARTICLES.get(dataset, 60_000)
        return {
            "quality": self.args.quality or steps,
            "n_particles": self.args.n_particles or particles,
            "device": self.args.device,
        }

    def path(self, label: str, train: Pictures | None = None) -> Path:
        """Where a picture goes: .jpg for photographs, else .png."""
        photographs = train is not None and train.images.ndim == 4
        return self.out / f"{self.module}-{label}.{'jpg' if photographs else 'png'}"

    def scorer(self, train: Pictures, test: Pictures) -> "Scorer":
        """The judge of this set's samples."""
        return Scorer.of(train, test, self.args, self.scale)

    def finish(self, header: Sequence[str], rows: Sequence[Sequence[str]], numbers: dict) -> dict:
        """Write and print: all numbers as JSON, a table and who made it for RESULTS.md."""
        about = facts(resolve_device(self.args.device))
        seconds = time.perf_counter() - self.began
        numbers = {
            "what": self.what,
            "command": self.written,
            "scale": self.args.scale,
            **numbers,
            "seconds in all": seconds,
            "machine": about,
        }
        text = "\n\n".join(
            [f"### {self.what}", table(header, rows), *_notes(numbers), signature(about, self.written)]
        )
        (self.out / f"{self.module}.md").write_text(text + "\n", encoding="utf-8")
        kept = json.dumps(numbers, indent=1, default=_plain, ensure_ascii=False)
        (self.out / f"{self.module}.json").write_text(kept + "\n", encoding="utf-8")
        print(f"{text}\n\n{seconds:.0f} s; wrote {self.out / self.module}.json and .md", flush=True)
        return numbers


def _notes(numbers: dict) -> list[str]:
    """Which network scored, and what is not as in the paper."""
    scored = {str(score) for score in numbers.get("scored by", {}).values()}
    return [*sorted(scored), *numbers.get("notes", [])]


def _plain(value: Any) -> object:
    """What JSON does not know: costs, scorers, numpy's numbers."""
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value.item() if isinstance(value, np.generic) else str(value)


def command(what: str, module: str, doc: str, arguments: Sequence[str] | None) -> Command:
    """Read the command line; the folder to write to is made."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.paper.{module}", description=doc.splitlines()[0]
    )
    scales = "small: two minutes on a CPU; full: one GPU; tiny: to see that it runs"
    parser.add_argument("--scale", choices=SCALES, default="small", help=scales)
    parser.add_argument("--data-root", type=Path, help="folder of the sets; without it, digits")
    parser.add_argument("--datasets", nargs="+", choices=("digits", *gallery.STEPS), metavar="SET")
    parser.add_argument("--out", type=Path, default=Path("runs/paper"), help="folder to write to")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto: a GPU if there is one")
    parser.add_argument("--quality", type=int, help="steps per stage; else the scale's and the set's")
    parser.add_argument("--n-particles", type=int)
    parser.add_argument("--fid-weights", type=Path, help="the FID network's file: also give FID")
    layers = metrics.inception.LAYERS
    parser.add_argument("--fid-layer", type=int, default=2048, choices=layers)
    args = parser.parse_args(arguments)
    if args.scale == "full" and args.data_root is None and not args.datasets:
        parser.error("--scale full wants --data-root, the folder of the paper's sets")
    args.out.mkdir(parents=True, exist_ok=True)
    written = " ".join([f"python -m benchmarks.paper.{module}", *arguments])
    return Command(what, module, args, written)


@dataclass(frozen=True, eq=False)
class Scorer:
    """FD of samples to the training pictures in the features of a small network, and FID if told.

    Its floor are as many test pictures in the samples' place. No more samples than test pictures are
    looked at: FD depends on the count.
    """

    train: Pictures
    test: Pictures
    network: metrics.PictureClassifier
    features: np.ndarray
    args: argparse.Namespace

    @classmethod
    def of(cls, train: Pictures, test: Pictures, args: argparse.Namespace, scale: Scale) -> "Scorer":
        """Train the network, or read it from the folder of an earlier run."""
        network = metrics.train_classifier(
            train.images, train.labels, test.images, test.labels,
            n_pixel_values=train.n_pixel_values,
            device=args.device,
            cache=args.out / "classifiers",
            **scale.classifier,
        )  # fmt: skip
        return cls(train, test, network, network.features(train.images), args)

    def __str__(self) -> str:
        about = self.network.about
        accuracy = "" if self.network.accuracy is None else f", {self.network.accuracy:.1%} accurate"
        said = (
            f"{name(self.train)}: FD in the {self.features.shape[1]} features of a network that learnt "
            f"{about['classes']} from {about['trained on']:,} training pictures{accuracy} on test ones"
        )
        if self.args.fid_weights is None:
            return (
                said + ". FD is not FID, and does not compare with the paper's; --fid-weights adds FID."
            )
        return said + f"; FID-{self.args.fid_layer} with {self.args.fid_weights.name}."

    def score(self, images: np.ndarray, labels: np.ndarray | None = None) -> dict[str, Any]:
        """FD, its floor at this count, the share recognised as their class, and FID if told."""
        n = min(MOST, len(images), len(self.test.images))
        out: dict[str, Any] = {"samples": n}
        out["FD"] = metrics.frechet_distance(self.network.features(images[:n]), self.features)
        out["FD floor"] = self.floor(n)
        if labels is not None and self.train.labels is not None:
            out["recognised"] = self.network.score(images[:MOST], labels[:MOST])
            out["recognised floor"] = self.network.accuracy
        if self.args.fid_weights is not None:
            out["FID"] = self._fid(images[:50_000])
        return out

    @cache  # noqa: B019 (it lives as long as the command)
    def floor(self, n: int) -> float:
        """FD of n test pictures."""
        return metrics.frechet_distance(self.network.features(self.test.images[:n]), self.features)

    def nn_ratio(self, images: np.ndarray) -> float:
        """Of at most 2000 samples; 1 is ideal, near 0 is copying."""
        return nn_ratio(images, self.train, self.test, self.args.device)

    def _fid(self, images: np.ndarray) -> dict[str, Any]:
        return metrics.fid(images, self._inception, **self._fid_options).as_dict()

    @cached_property
    def _inception(self) -> np.ndarray:
        """The training pictures as the FID network sees them."""
        return metrics.inception_features(self.train.images, **self._fid_options)

    @property
    def _fid_options(self) -> dict[str, Any]:
        return {
            "layer": self.args.fid_layer,
            "weights": self.args.fid_weights,
            "n_pixel_values": self.train.n_pixel_values,
            "device": self.args.device,
        }

    def as_dict(self) -> dict[str, Any]:
        """For JSON: which network, and how good it is."""
        return {**self.network.about, "accuracy": self.network.accuracy, "mirror": mirrored(self.train)}


def pixel_rows(images: np.ndarray, n_pixel_values: int) -> np.ndarray:
    """Rows of pixels in [−1, 1]."""
    rows = images.reshape(len(images), -1).astype(np.float32)
    return (rows + 0.5) * np.float32(2 / n_pixel_values) - 1


def number(value: Any, form: Callable[[float], str] = "{:.3g}".format) -> str:
    """A number, or nothing where there is none; of an FID its value and layer."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return f"{value['value']:.3g} (FID-{value['layer']}, floor {value['floor']:.2g})"
    return form(value)
