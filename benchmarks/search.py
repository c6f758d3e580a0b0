"""Search the settings of a picture set for quality against seconds, with a judge that is not the last.

    python benchmarks/search.py cifar10 --data-root DATA --out search
    python benchmarks/search.py mnist --conditional --data-root DATA --out search --seconds 200

Every candidate below is fitted with seed 1 and judged by the Fréchet distance of its particles in the
features of a small classifier (`sliceflow.metrics.train_classifier`) to the test pictures. Those on the
frontier, which nothing beats in both distance and seconds, are then reported with seed 0: the same
distance, and by another network, that of FID, where `--fid-weights` gives it. What was chosen by one
seed and one network is thus reported by others. Writes `search.json` after every fit.
"""

import argparse
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from report import facts, signature, table
from timing import timed_fit

from sliceflow import ImageFlow, PictureOptions, metrics
from sliceflow.datasets import Pictures, load
from sliceflow.devices import resolve_device
from sliceflow.engine.transports import Histogram
from sliceflow.spaces.pictures.schedules import PRESETS, auto

PAPER = {  # its schedules
    "digits": "1[1] 2[2] 3[3] 4[4] 5[5] 6[6] 8[8,7,5,3]",
    "mnist": PRESETS["mnist"],
    "fashion-mnist": PRESETS["mnist"],
    "cifar10": PRESETS["cifar10"],
}


@dataclass(frozen=True)
class Candidate:
    """Settings of `ImageFlow`, and what they are called."""

    name: str
    quality: int
    settings: dict = field(default_factory=dict)


def candidates(paper: str, text: str, labels: bool, steps: tuple[int, ...]) -> list[Candidate]:
    """The automatic schedule by steps, then one thing changed at a time, at the second number."""
    out = [Candidate("auto", n) for n in steps]
    n, side = steps[1], text.split()[-1].split("[")[0]
    changed: dict[str, dict] = {
        "the paper's schedule": {"schedule": paper},
        "low levels × 1": {"schedule": text.replace("*3", "")},
        "low levels × 10": {"schedule": text.replace("*3", "*10")},
        "small patches once": {"schedule": text.replace(f" {side}[7,5,3]*2", "")},
        "small patches again × 4": {"schedule": text.replace(f"{side}[7,5,3]*2", f"{side}[7,5,3]*4")},
        "no pairs, no single pixels": {"schedule": text.partition(f" {side}[2]")[0]},
        "no large patches": {"schedule": text.replace("15,13,11,", "").replace("14,13,11,", "14,")},
        "every second patch": {"schedule": text.replace("15,13,11,9,7,5,3", "15,11,7,5,3")},
        "no taper": {"options": PictureOptions(n_knots=0, taper=0.0)},
        "start noise 0.3": {"options": PictureOptions(n_knots=0, start_noise=0.3)},
        "directions of pixels": {"patch_basis": "pixels"},
        "directions of cosines": {"patch_basis": "cosines"},
    }
    changed |= {f"{bins} bins": {"transport": Histogram(bins)} for bins in (64, 256)}
    for most in (1 << 14, 1 << 15, 1 << 16):
        changed[f"{most} columns"] = {"transport": Histogram(128, most)}
    if labels:
        changed |= {f"ξ = {xi}": {"amplifier": xi} for xi in (10.0, 20.0)}
    else:
        changed |= {f"{k} clusters": {"n_clusters": k} for k in (1, 10, 30, 100)}
    return [*out, *(Candidate(name, n, settings) for name, settings in changed.items())]


def frontier(rows: list[dict]) -> list[dict]:
    """Those that no other is as good as in less time, from the fastest to the best."""
    best, out = float("inf"), []
    for row in sorted(rows, key=lambda row: row["seconds"]):
        if row["distance"] < best:
            best = row["distance"]
            out.append(row)
    return out


class Judge:
    """Distances of samples to test pictures, by one network and, with weights, by another."""

    def __init__(self, train: Pictures, test: Pictures, device: str, weights: Path | None) -> None:
        given = (train.images, train.labels, test.images, test.labels)
        self.network = metrics.train_classifier(
            *given, n_pixel_values=train.n_pixel_values, device=device
        )
        self.train, self.test, self.weights, self.device = train, test, weights, device
        self.wanted = self.network.features(test.images)

    def __call__(self, samples: np.ndarray, labels: np.ndarray | None) -> dict[str, float]:
        few = samples[:10_000]
        out = {"distance": metrics.frechet_distance(self.network.features(few), self.wanted)}
        if labels is not None:
            out["accuracy"] = float((self.network.predict(few) == labels[:10_000]).mean())
        return out

    def last(self, samples: np.ndarray) -> dict[str, float]:
        """By the network of FID, which chose nothing."""
        if self.weights is None:
            return {}
        options = {"weights": self.weights, "layer": 768, "device": self.device}
        return {"FID-768": metrics.fid(samples[:50_000], self.train.images, **options).value}


def fitted(
    train: Pictures, labels: np.ndarray | None, candidate: Candidate, m: int, device: str, seed: int
) -> tuple[ImageFlow, float]:
    """A flow and its seconds, compiling aside."""
    mirror = train.images.ndim == 4
    settings = {
        "n_pixel_values": train.n_pixel_values,
        "mirror": mirror,
        "device": device,
        "options": PictureOptions(n_knots=0),
    }
    settings |= {"random_state": seed, **candidate.settings}
    return timed_fit(train.images, labels, m, candidate.quality, **settings)


def tabled(rows: list[dict], extra: list[str]) -> str:
    """The table of some candidates."""
    head = ["candidate", "steps", "seconds", "distance", *extra]
    body = [
        [row["name"], str(row["quality"]), f"{row['seconds']:.1f}", f"{row['distance']:.3f}"]
        + [f"{row[name]:.4g}" if name in row else "" for name in extra]
        for row in rows
    ]
    return table(head, body)


def main(arguments: list[str] | None = None) -> None:
    """Search, report, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", choices=list(PAPER))
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--conditional", action="store_true")
    parser.add_argument("--particles", type=int, default=60_000)
    parser.add_argument("--steps", type=int, nargs=3, default=(15, 50, 200), help="per stage")
    parser.add_argument("--only", nargs="+", help="names of candidates")
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no fit after so many")
    parser.add_argument("--fid-weights", type=Path, help="of the FID network, for the last word")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("search"))
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    train, test = (load(args.dataset, split, args.data_root) for split in ("train", "test"))
    labels = train.labels if args.conditional else None
    judge = Judge(train, test, str(resolve_device(args.device)), args.fid_weights)
    rows: list[dict] = []

    def tried(candidate: Candidate, seed: int, last: bool) -> dict:
        flow, seconds = fitted(train, labels, candidate, args.particles, args.device, seed)
        order = np.random.default_rng(0).permutation(len(flow.particles_))
        samples = flow.particles_[order]
        asked = None if labels is None else flow.particle_conditions_[order]
        row = {**asdict(candidate), "seed": seed, "seconds": seconds, **judge(samples, asked)}
        row["settings"] = {name: repr(value) for name, value in candidate.settings.items()}
        return row | (judge.last(samples) if last else {})

    def write(reported: list[dict]) -> None:
        about = {"machine": facts(resolve_device(args.device)), "tried": rows, "reported": reported}
        (args.out / "search.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")

    text = auto(*train.images.shape[1:3])
    every = candidates(PAPER[args.dataset], text, args.conditional, tuple(args.steps))
    chosen = [c for c in every if args.only is None or c.name in args.only]
    for candidate in chosen:
        if time.perf_counter() - began > args.seconds:
            print(f"no time is left for {candidate.name!r} and what follows")
            break
        rows.append(tried(candidate, seed=1, last=False))
        write([])
        print(tabled(rows[-1:], ["accuracy"]).splitlines()[-1], flush=True)
    best = frontier(rows)
    print("\nfrontier, seed 1\n" + tabled(best, ["accuracy"]))
    by_name = {(c.name, c.quality): c for c in chosen}
    reported = []
    for row in best:
        reported.append(tried(by_name[row["name"], row["quality"]], seed=0, last=True))
        write(reported)
    print("\nthe same, seed 0\n" + tabled(reported, ["accuracy", "FID-768"]))
    print(signature(facts(resolve_device(args.device)), f"python benchmarks/search.py {args.dataset}"))


if __name__ == "__main__":
    main()
