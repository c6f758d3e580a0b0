"""Variants of shrinkage beside each other: which rule for moving less gives the best pictures?

    python benchmarks/shrinkage.py digits --device cpu
    python benchmarks/shrinkage.py cifar16 --data-root DATA --fid-weights FILE
    python benchmarks/shrinkage.py digits --variants none own:1 own:1+tapered pooled:1,.25+own:.2

A map is fitted to m particles and n data. Its signal over noise is ρ = c/(σ²·(1/m + 1/n)): c is the
mean squared displacement, σ² the variance of the particles along the direction. A variant is a name
with its numbers; several are joined by +, and act one after the other:

none              maps as they were fitted
own:κ,f           each map by its own factor, max(f, 1 − κ/ρ); with f = 0 this is the library's
hard:τ            a map moves fully if ρ > τ, else not at all
squared:κ         max(0, 1 − (κ/ρ)²)
pooled:κ,f        max(f, 1 − κ/ρ̄), with ρ̄ of all positions and classes that share a row of the rotation
modes:J,f,κ       the displacement as J cosine modes of the quantile level, each by its own noise and
                  pooled in the same way; what is left over likewise
shared:J,f,κ      the same, with the classes' coefficients shrunk towards their mean, and the mean
                  towards 0
step:s, tapered   no shrinkage, but steps of size s; every stage's step size falls to 0
auto              what the library does by default

`digits` are scikit-learn's, by class, on any CPU. `cifar16` is CIFAR-10 at 16×16 pixels (means of 2×2),
by class, with mirror images. Scores are of the batched samples. Writes shrinkage.md and shrinkage.json.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from paper.common import Scale, Scorer, number, pixel_rows
from report import keep, table
from torch import Tensor

from sliceflow import ImageFlow, PictureOptions, datasets, metrics
from sliceflow.datasets import Pictures
from sliceflow.devices import resolve_device
from sliceflow.engine.flow import Flow
from sliceflow.engine.shrinkage import Shrinkage
from sliceflow.engine.transports import Fit, GridTable
from sliceflow.spaces.pictures.levels import LevelFlow
from sliceflow.spaces.pictures.pyramid import Subspace
from sliceflow.spaces.pictures.tiles import TileFrame

QUALITY = {"digits": 50, "cifar16": 200}
PARTICLES = {"digits": 10_000, "cifar16": 50_000}
NEAREST = 2000  # samples and test pictures whose neighbours are looked for
VARIANTS = (
    "none", "step:.5", "step:.25", "tapered", "own:.25", "own:.4", "own:.7", "own:1", "own:1.5",
    "own:2", "own:1+tapered", "own:1+step:.5", "own:1.5,.2", "hard:.5", "hard:1.2", "squared:.7",
    "squared:1.5", "pooled:2.5,.1", "pooled:2.5,.25", "pooled:1,.1", "pooled:1,.25+own:.2",
    "modes:4,.2", "modes:4", "shared:4,.2", "auto",
)  # fmt: skip
TINY = 1e-20
NEAR = {"NN ratio": metrics.nn_ratio, "copies": metrics.copies, "strays": metrics.strays}
SCORES = ("FID", "FD", "recognised", "FD-PCA32", *NEAR)


class Maps(NamedTuple):
    """The maps of a step, one for each of C classes and h directions: C·h rows.

    `rate` is 1/m + 1/n of each map, `side` how many rows the rotation of a tile has. The rows of the
    rotation are neighbours; then come tiles, then classes.
    """

    table: GridTable
    cost: Tensor
    rate: Tensor
    side: int
    n_classes: int

    @property
    def edges(self) -> Tensor:
        """Of the bins, (C·h, B + 1)."""
        n_bins = self.table.values.shape[1] - 1
        at = torch.arange(n_bins + 1, dtype=torch.float64, device=self.cost.device) / n_bins
        lo, hi = (t.double()[:, None] for t in (self.table.lo, self.table.hi))
        return lo + (hi - lo) * at

    @property
    def shares(self) -> Tensor:
        """Of the particles in each bin, (C·h, B)."""
        assert self.table.counts is not None
        counts = self.table.counts.double()
        return counts / counts.sum(1, keepdim=True).clamp(min=1)

    @property
    def noise(self) -> Tensor:
        """σ²·(1/m + 1/n), (C·h,)."""
        p, middles = self.shares, (self.edges[:, 1:] + self.edges[:, :-1]) / 2
        mean = (p * middles).sum(1, keepdim=True)
        return self.rate * (p * (middles - mean).square()).sum(1)

    @property
    def inverse_ratio(self) -> Tensor:
        """1/ρ; of a map that moves nothing, a huge number."""
        return torch.where(self.cost > 0, self.noise / self.cost.double(), 1 / TINY)

    def wiener(self, ratio: Tensor, kappa: float, floor: float, weight: Tensor | None = None) -> Tensor:
        """max(floor, 1 − κ/ρ̄), ρ̄ being the mean of a ratio over classes and positions, per row."""
        weight = torch.ones_like(ratio) if weight is None else weight
        total, whole = (t.view(-1, self.side).sum(0) for t in (ratio * weight, weight))
        mean = total / whole.clamp(min=TINY)
        return (1 - kappa / mean.clamp(min=TINY)).clamp(min=floor).repeat(len(ratio) // self.side)


# A rule changes the displacement (C·h, B + 1) of maps at their edges, by its numbers.
Rule = Callable[..., Tensor]


def own(maps: Maps, moved: Tensor, kappa: float, floor: float = 0.0) -> Tensor:
    """Each map by its own factor of James and Stein."""
    return moved * (1 - kappa * maps.inverse_ratio).clamp(min=floor)[:, None]


def hard(maps: Maps, moved: Tensor, tau: float) -> Tensor:
    """All or nothing."""
    return moved * (tau * maps.inverse_ratio < 1)[:, None]


def squared(maps: Maps, moved: Tensor, kappa: float) -> Tensor:
    """A factor nearer to all or nothing than `own`."""
    return moved * (1 - (kappa * maps.inverse_ratio).square()).clamp(min=0)[:, None]


def pooled(maps: Maps, moved: Tensor, kappa: float, floor: float = 0.0) -> Tensor:
    """One factor for all positions and classes."""
    ratio = maps.cost.double() / maps.noise.clamp(min=TINY)
    return moved * maps.wiener(ratio, kappa, floor, maps.noise)[:, None]


class Modes(NamedTuple):
    """A displacement as cosine modes of the quantile level u, φ₀ = 1 and φⱼ = √2·cos(πju).

    The coefficients aⱼ = ∫ (T(F⁻¹(u)) − F⁻¹(u))·φⱼ(u) du of equal distributions have the variance
    νⱼ = (1/m + 1/n)·Var Ψⱼ(x), Ψⱼ(x) = ∫ˣ φⱼ(F(s)) ds being their influence function. `rest` is the
    squared displacement beyond the modes, and `rest_noise` what it is in equal distributions.
    """

    coefficients: Tensor  # (J, C·h)
    noise: Tensor  # (J, C·h)
    at_edges: Tensor  # φⱼ, (J, C·h, B + 1)
    rest: Tensor
    rest_noise: Tensor

    @classmethod
    def of(cls, maps: Maps, moved: Tensor, n_modes: int) -> "Modes":
        """The first modes."""
        p, width = maps.shares, maps.edges[:, 1:2] - maps.edges[:, :1]
        level = torch.nn.functional.pad(p.cumsum(1), (1, 0)).clamp(0, 1)
        u, at_middle = level[:, 1:] - p / 2, (moved[:, 1:] + moved[:, :-1]) / 2
        a, noise, at_edges = [], [], []
        for j in range(n_modes):
            phi, at = (math.sqrt(2 if j else 1) * torch.cos(math.pi * j * t) for t in (u, level))
            psi = width * (phi.cumsum(1) - phi / 2)
            apart = psi - (p * psi).sum(1, keepdim=True)
            a.append((p * at_middle * phi).sum(1))
            noise.append(maps.rate * (p * apart.square()).sum(1))
            at_edges.append(at)
        found, spread = torch.stack(a), torch.stack(noise)
        whole = (p * at_middle.square()).sum(1)
        # ∫ u(1 − u)/f(F⁻¹(u))² du, the density f being that of nine bins: single ones may be empty.
        near = torch.nn.functional.avg_pool1d(p[:, None], 9, 1, 4, count_include_pad=False)[:, 0]
        of_bin = torch.where(p > 0, p * u * (1 - u) * (width / near.clamp(min=TINY)).square(), 0.0)
        return cls(
            found,
            spread,
            torch.stack(at_edges),
            (whole - found.square().sum(0)).clamp(min=0),
            (maps.rate * of_bin.sum(1) - spread.sum(0)).clamp(min=0),
        )

    def shrunk(self, maps: Maps, moved: Tensor, kept: Tensor, kappa: float, floor: float) -> Tensor:
        """The displacement with the coefficients `kept`, and less of what is left over."""
        factor = maps.wiener(self.rest / self.rest_noise.clamp(min=TINY), kappa, floor)
        change = kept - factor * self.coefficients
        return factor[:, None] * moved + torch.einsum("jh,jhb->hb", change, self.at_edges)


def modes(maps: Maps, moved: Tensor, n: float, floor: float = 0.0, kappa: float = 1.0) -> Tensor:
    """Each mode by the factor of Wiener."""
    found = Modes.of(maps, moved, int(n))
    pairs = zip(found.coefficients, found.noise.clamp(min=TINY), strict=True)
    kept = [a * maps.wiener(a.square() / noise, kappa, floor) for a, noise in pairs]
    return found.shrunk(maps, moved, torch.stack(kept), kappa, floor)


def shared(maps: Maps, moved: Tensor, n: float, floor: float = 0.0, kappa: float = 1.0) -> Tensor:
    """Each mode of a class towards the mean of the classes, and the mean towards 0."""
    found, c, kept = Modes.of(maps, moved, int(n)), maps.n_classes, []
    for a, noise in zip(found.coefficients, found.noise.clamp(min=TINY), strict=True):
        of_class, noise_of = a.view(c, -1), noise.view(c, -1)
        mean, noise_of_mean = of_class.mean(0), noise_of.mean(0) / c
        common = mean * maps.wiener(mean.square() / noise_of_mean, kappa, floor)
        apart = (of_class - mean).view(-1)
        if c > 1:
            apart = apart * maps.wiener(apart.square() / (noise * (c - 1) / c), kappa, floor)
        kept.append(common.repeat(c) + apart)
    return found.shrunk(maps, moved, torch.stack(kept), kappa, floor)


RULES: dict[str, Rule] = {f.__name__: f for f in (own, hard, squared, pooled, modes, shared)}


class Variant(NamedTuple):
    """What a name such as ``own:.4+step:.5`` stands for."""

    rules: list[tuple[Rule, list[float]]]
    stage: dict[str, float]
    shrinkage: str | float

    @classmethod
    def of(cls, name: str) -> "Variant":
        """Read the name."""
        rules, stage = [], {}
        for part in () if name in ("none", "auto") else name.split("+"):
            word, _, text = part.partition(":")
            try:
                numbers = [float(t) for t in text.split(",") if t]
            except ValueError:
                numbers = []
            if word in RULES and numbers:
                rules.append((RULES[word], numbers))
            elif word == "step" and len(numbers) == 1:
                stage["step_size"] = numbers[0]
            elif part == "tapered":
                stage["taper"] = 1.0
            else:
                known = ", ".join((*RULES, "step"))
                raise SystemExit(
                    f"--variants {name}: {part} must be none, auto, tapered or one of {known} "
                    "with numbers, such as own:.4"
                )
        return cls(rules, stage, "auto" if name == "auto" else float(bool(rules)))

    def shrunk(self, fit: Fit, rates: Sequence[float], side: int) -> tuple[Fit, Tensor]:
        """In place of `Shrinkage.shrunk`: the fit with other maps, and which of them move."""
        assert isinstance(fit.table, GridTable)
        rate = torch.tensor(rates, dtype=torch.float64, device=fit.cost.device)
        rate = rate.repeat_interleave(len(fit.cost) // len(rate))
        maps = Maps(fit.table, fit.cost, rate, side, len(rates))
        moved = fit.table.values.double() - maps.edges
        for rule, numbers in self.rules:
            moved = rule(maps, moved, *numbers)
        values = (maps.edges + moved).to(fit.table.values.dtype)
        return fit._replace(table=replace(fit.table, values=values)), moved.any(1).to(values.dtype)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Fits of pictures follow this variant."""
        project, engine, side = TileFrame.project, LevelFlow.engine, [1]

        def seen(frame: TileFrame, *args: Any) -> Tensor:
            side[0] = frame.geometry.side
            return project(frame, *args)

        def staged(levels: LevelFlow, i: int) -> tuple[Flow, Subspace]:
            flow, subspace = engine(levels, i)
            return replace(flow, schedule=[replace(flow.schedule[0], **self.stage)]), subspace

        def shrunk(by: Shrinkage, fit: Fit, variance: Tensor | None = None) -> tuple[Fit, Tensor]:
            return self.shrunk(fit, by.rates, side[0])

        with ExitStack() as stack:
            stack.enter_context(patch.object(LevelFlow, "engine", staged))
            if self.rules:
                stack.enter_context(patch.object(TileFrame, "project", seen))
                stack.enter_context(patch.object(Shrinkage, "shrunk", shrunk))
            yield


def read(name: str, root: Path | None, few: int | None) -> tuple[Pictures, Pictures]:
    """Training and test pictures."""
    source = "cifar10" if name == "cifar16" else name
    parts = []
    for split in ("train", "test"):
        part = datasets.load(source, split, root)
        images = part.images[:few]
        if name == "cifar16":
            n, h, w, c = images.shape
            blocks = images.reshape(n, h // 2, 2, w // 2, 2, c)
            images = blocks.mean((2, 4), dtype=np.float32).round().astype(np.uint8)
        parts.append(Pictures(images, part.labels[:few], part.n_pixel_values, name))
    return parts[0], parts[1]


def cases(name: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every variant, fitted and scored."""
    train, test = read(name, args.data_root, args.rows)
    levels, mirror = train.n_pixel_values, name == "cifar16"
    variants = [Variant.of(text) for text in args.variants]
    if mirror:
        epochs = {} if args.epochs is None else {"epochs": args.epochs}
        scorer = Scorer.of(train, test, args, Scale(None, None, None, epochs))

    def distances(images: np.ndarray, labels: np.ndarray | None) -> dict[str, Any]:
        if mirror:
            return scorer.score(images, labels)
        real = [pixel_rows(part.images, levels) for part in (test, train)]
        fds = [
            metrics.frechet_distance_pca(rows, *real) for rows in (pixel_rows(images, levels), real[1])
        ]
        return dict(zip(("FD-PCA32", "FD floor"), fds, strict=True))

    for text, variant in zip(args.variants, variants, strict=True):
        flow = ImageFlow(
            n_particles=args.particles or PARTICLES[name],
            quality=args.quality or QUALITY[name],
            n_pixel_values=levels,
            mirror=mirror,
            amplifier=math.inf,
            transport="histogram",
            options=PictureOptions(n_knots=0, shrinkage=variant.shrinkage),
            device=args.device,
            random_state=args.seed,
        )
        with variant.running():
            began = time.perf_counter()
            flow.fit(train.images, train.labels)
            seconds = time.perf_counter() - began
        row = {"variant": text, "seconds": seconds, "steps": flow.n_iter_}
        row |= distances(flow.particles_, flow.particle_conditions_)
        near = (flow.particles_[:NEAREST], train.images, test.images[:NEAREST])
        for key, measure in NEAR.items():
            row[key] = measure(*near, mirror=mirror, device=args.device)
        yield row


def line(row: dict[str, Any], scores: Sequence[str]) -> list[str]:
    """A line of the table."""
    given = [row["variant"], f"{row['seconds']:.1f}", f"{row['steps']:,}"]
    return [*given, *(number(row.get(key)) for key in scores)]


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Compare the variants that are asked for."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=QUALITY)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), metavar="NAME:NUMBERS")
    parser.add_argument("--data-root", type=Path, help="folder of the sets; else SLICEFLOW_DATA")
    parser.add_argument("--quality", type=int, help=f"steps per stage; default: {QUALITY}")
    parser.add_argument("--particles", type=int, help=f"default: {PARTICLES}")
    parser.add_argument("--rows", type=int, help="of the training and the test set; default: all")
    parser.add_argument("--epochs", type=int, help="of the network that FD is measured with")
    parser.add_argument("--fid-weights", type=Path, help="the FID network's file: also give FID")
    layers = metrics.inception.LAYERS
    parser.add_argument("--fid-layer", type=int, default=768, choices=layers)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/shrinkage"))
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for row in cases(args.name, args):
        rows.append(row)
        print(*line(row, SCORES), flush=True)
    scores = [key for key in SCORES if any(key in row for row in rows)]
    command = " ".join(["python benchmarks/shrinkage.py", *arguments])
    shown = table(["variant", "seconds", "steps", *scores], [line(row, scores) for row in rows])
    shown += f"\n\nFloor of FD: {rows[0]['FD floor']:.3g}. "
    keep(args.out / "shrinkage", shown, rows, resolve_device(args.device), command)
    return rows


if __name__ == "__main__":
    main()
