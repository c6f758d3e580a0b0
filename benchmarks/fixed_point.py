"""Particles that start as real rows: a flow should leave them where they are, and this is what it does.

    python benchmarks/fixed_point.py --sets moons digits-rows digits --device cpu
    python benchmarks/fixed_point.py --sets mnist cifar10 --data-root DATA --levels last all --steps 200

The particles are already spread as the data are, so every displacement is noise that the flow takes
for signal. With --start half (the default) the maps are fitted to one random half of the training set
and the particles start as the rows of the other half, which no map sees. With --start same both are
the whole training set. Pictures run the stages of the full resolution (--levels last) or all of them.
Vectors are fitted without smoothing.

moved      root mean square displacement of a coordinate, over the standard deviation of the data
noise      the same, if every step adds its own independent noise: κ·σ²·(1/m + 1/n) per direction with
           κ = 3, σ² the variance along it within a class, m and n the different rows of the class
           among particles and data. Mirror images and rows that are used twice are not new rows
κ          of the maps themselves, their mean squared displacement over σ²·(1/m + 1/n):
           in the first step, before which nothing has moved → in the mean over all steps
seconds    of the fit; the first case of a kind also compiles
distances  sliced distance and FD-PCA32 to held-out rows, FD to the training pictures in the features of
           a small network; each before → after

Without --data-root, the variable SLICEFLOW_DATA names the folder of the sets; moons and digits need
none. --set passes any parameter or option to the flow, such as ``--set transport=sorted taper=0``.
Writes fixed_point.md, fixed_point.json and, of every case, the particles as .npy (the first 50,000).
"""

import argparse
import ast
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from paper.common import Scale, Scorer, number, pixel_rows
from report import keep, table
from sklearn.datasets import make_moons
from torch import Tensor

from sliceflow import ImageFlow, PictureOptions, SlicedWassersteinFlow, VectorOptions, datasets, metrics
from sliceflow.datasets import Pictures
from sliceflow.devices import resolve_device
from sliceflow.engine.events import History
from sliceflow.engine.flow import Cloud, Run
from sliceflow.engine.random import Seed
from sliceflow.models.ranks import Place, Ranks
from sliceflow.spaces.pictures import fit as pictures
from sliceflow.spaces.pictures.data import PictureData
from sliceflow.spaces.pictures.layout import Layout
from sliceflow.spaces.pictures.levels import LevelFlow
from sliceflow.spaces.pictures.plan import choose_clusters
from sliceflow.spaces.pictures.start import ParticleLabels
from sliceflow.spaces.pictures.tiles import Tiles
from sliceflow.spaces.vectors import fit as vectors
from sliceflow.spaces.vectors.data import read_input
from sliceflow.spaces.vectors.start import ParticleConditions

KAPPA = 3.0  # of the noise that is expected; measured values are between 2 and 4
KEPT = 50_000  # particles that are written
SCORED = 10_000  # rows that sliced distances look at
ROWS = ("moons", "digits-rows")
PICTURES = ("digits", "mnist", "fashion-mnist", "cifar10")
KINDS = ("classes", "clusters", "none")
COMMON = ("set", "method", "start", "levels", "particles", "steps", "seconds", "moved", "noise", "κ")
SCORES = ("sliced distance", "FD-PCA32", "FD", "recognised", "NN ratio", "FID")


class Moved(NamedTuple):
    """Particles (n, d) before and after a flow, and what the flow did.

    `noise` is the mean squared displacement of a coordinate that is expected; `kappas` are those of the
    maps of every step over σ²·(1/m + 1/n).
    """

    before: Tensor
    after: Tensor
    method: str
    steps: int
    seconds: float
    noise: float
    kappas: np.ndarray


class Placed:
    """Puts the particles where a fit is to start, in the way in which a checkpoint is restored.

    Parameters
    ----------
    x : (d, m), in the order in which the fit is asked for particles
    codes : of their classes, for fits that sort the particles by class
    stage : the first one to run
    """

    def __init__(self, x: Tensor, codes: Tensor | None = None, stage: int = 0) -> None:
        self.x, self.codes, self.stage = x, codes, stage

    @contextmanager
    def running(self, run: Run, particles: Cloud, *_: Any) -> Iterator[None]:
        """What a fit calls of `sliceflow.models.checkpoints.CheckpointWriter`."""
        order = None if particles.runs is None else self.codes.argsort(stable=True)
        particles.x.copy_(self.x if order is None else self.x[:, order])
        run.stage = self.stage
        yield
        self.after = particles.x if order is None else particles.x[:, order.argsort()]

    def before_last_steps(self, *_: Any) -> None:
        """Nothing is written."""


class Classes:
    """How many different rows of each class there are among particles and data.

    Parameters
    ----------
    particles, data : class numbers; None is one class
    different : how many different rows there are of each
    """

    def __init__(
        self, particles: Tensor | None, data: Tensor | None, different: tuple[int, int]
    ) -> None:
        self.data, self.m, self.n = data, *(torch.tensor([float(count)]) for count in different)
        if particles is not None and data is not None:
            width = int(max(particles.max(), data.max())) + 1
            m, n = (torch.bincount(t.cpu(), minlength=width) for t in (particles, data))
            self.m, self.n = self.m * m / m.sum(), self.n * n / n.sum()

    def noise(self, x: Tensor, evenly: bool = False) -> float:
        """σ²·(1/m + 1/n), summed over the coordinates of the data x (d, n): the mean over the classes.

        Classes count `evenly`, or as they have particles.
        """
        used = torch.nonzero((self.m > 0) & (self.n > 0))[:, 0]
        parts = [x] if self.data is None else [x[:, self.data == c] for c in used.tolist()]
        spread = torch.stack([part.double().var(1, correction=0).sum().cpu() for part in parts])
        of = spread * (1 / self.m[used] + 1 / self.n[used])
        return float(of.mean() if evenly else (of * self.m[used]).sum() / self.m[used].sum())


def move_rows(
    settings: dict[str, Any],
    X: np.ndarray,
    y: np.ndarray | None,
    X0: np.ndarray,
    y0: np.ndarray | None,
    device: torch.device,
    seed: Seed,
) -> Moved:
    """Particles that start as the rows X0 with the labels y0, moved by a fit to X and y."""
    options = settings.get("options") or VectorOptions(smoothing=0)
    parameters = SlicedWassersteinFlow(**settings).get_params(deep=False) | {"options": options}
    if y is not None and y0 is not None and math.isinf(parameters["amplifier"]):
        return _move_classes(settings, X, y, X0, y0, device, seed)
    given, m = read_input(X, y, None, None, Ranks()), len(X0)
    job = vectors.prepare(parameters, given, None, seed, device, Ranks(), n_particles=m)
    codes = None if given.condition is None else given.condition.encode(y0)
    job = replace(job, plan=replace(job.plan, n_moved=m), assigned=ParticleConditions(y0, codes))
    placed, history = Placed(job.units.encode(X0).T), History()
    began = time.perf_counter()
    done = vectors.run(job, history, [], placed, None)
    seconds = time.perf_counter() - began
    seen = (codes, given.codes) if job.plan.amplifier > 0 else (None, None)
    classes = Classes(*seen, tuple(len(np.unique(rows, axis=0)) for rows in (X0, X)))
    one = classes.noise(job.rows.x.T) / X.shape[1]
    squares = [stage.size_of(k) ** 2 for stage in job.plan.stages() for k in range(stage.n_steps)]
    distances = history.as_columns()["distance"]
    return Moved(
        torch.from_numpy(X0),
        job.units.decode(done.particles).cpu(),
        job.plan.method,
        len(squares),
        seconds,
        KAPPA * sum(squares) * classes.noise(torch.from_numpy(X.T)) / X.shape[1],
        np.square(distances) / one,
    )


def _move_classes(
    settings: dict[str, Any],
    X: np.ndarray,
    y: np.ndarray,
    X0: np.ndarray,
    y0: np.ndarray,
    device: torch.device,
    seed: Seed,
) -> Moved:
    """The same where every class is fitted by itself (ξ = ∞)."""
    classes = np.unique(y)
    parts = [
        move_rows(settings, X[y == c], None, X0[y0 == c], None, device, seed.child("class", i))
        for i, c in enumerate(classes)
    ]
    shares = [float(np.mean(y0 == c)) for c in classes]
    after = torch.empty_like(torch.from_numpy(X0))
    for c, part in zip(classes, parts, strict=True):
        after[torch.from_numpy(y0 == c)] = part.after
    return Moved(
        torch.from_numpy(X0),
        after,
        "per class",
        parts[0].steps,
        sum(part.seconds for part in parts),
        sum(share * part.noise for share, part in zip(shares, parts, strict=True)),
        sum(share * part.kappas for share, part in zip(shares, parts, strict=True)),
    )


class Halves(NamedTuple):
    """Pictures that are fitted, and the columns of raw values with class numbers that are not."""

    fitted: PictureData
    raw: Tensor
    codes: Tensor | None

    @classmethod
    def of(cls, data: PictureData, fitted: Tensor, others: Tensor) -> "Halves":
        """By the numbers of the pictures; the mirror images of the fitted ones go with them."""
        others, chosen = others.to(data.device), fitted.to(data.device)
        if data.mirrored:
            chosen = torch.cat((chosen, chosen + data.place.total))
        codes, own = data.codes, data.own_codes
        part = replace(
            data,
            raw=data.raw[:, chosen],
            place=Place(0, len(fitted), len(fitted)),
            codes=None if codes is None else codes[chosen.cpu()],
            names=None if data.names is None else data.names[chosen.cpu().numpy()],
            own_codes=None if own is None else own[chosen],
        )
        return cls(part, data.raw[:, others], None if own is None else own[others])


def move_pictures(
    settings: dict[str, Any],
    train: Pictures,
    labels: np.ndarray | None,
    fitted: Tensor,
    others: Tensor,
    device: torch.device,
    seed: Seed,
    levels: str = "last",
    shift: float = 0.0,
) -> Moved | None:
    """Particles that start as the pictures numbered `others`, moved by a fit to those in `fitted`.

    None where clusters are asked for and there are too few pictures for them. `shift` is added to the
    pixels, of [−1, 1], that the particles start with. `levels` is "last", "all" or "none".
    """
    options = settings.get("options") or PictureOptions(n_knots=0)
    parameters = ImageFlow(n_particles=len(others), **settings).get_params(deep=False)
    parameters |= {"options": options, "mirror": False}  # they are there already
    data = PictureData.of(
        train.images,
        labels,
        n_pixel_values=train.n_pixel_values,
        observed=None,
        device=device,
        ranks=Ranks(),
    )
    mirror = settings.get("mirror", False)
    if mirror:
        data = data.with_mirror_images()
    if labels is None and parameters["n_clusters"] != 1:
        n = len(fitted) * (2 if mirror else 1)
        k = choose_clusters(parameters, n, data.layout.shape)
        if k == 1:
            return None
        data = data.clustered(k, seed.child("data"), options.upsampling, Ranks())
    halves = Halves.of(data, fitted, others)
    job = pictures.prepare(parameters, halves.fitted, seed, None)
    m, codes = len(others), halves.codes
    assigned = ParticleLabels(codes=None if codes is None else codes.cpu())
    job = replace(job, plan=replace(job.plan, n_moved=m), assigned=assigned)
    x0 = data.layout.encode(halves.raw, seed.child("real pictures"), dequantize=options.dequantize)
    stages, full = job.plan.stages, (data.layout.height, data.layout.width)
    firsts = {"none": len(stages), "all": 0}
    firsts["last"] = next(i for i, stage in enumerate(stages) if (stage.h, stage.w) == full)
    placed, history = Placed(x0 + shift, codes, firsts[levels]), History()
    began = time.perf_counter()
    done = pictures.run(job, history, [], placed, None)
    seconds, columns = time.perf_counter() - began, history.as_columns()
    seen = (codes, halves.fitted.own_codes) if job.plan.amplifier > 0 else (None, None)
    classes = Classes(*seen, (len(others.unique()), len(fitted)))
    noise, kappas = _expected(done.fitted.levels, halves.fitted, classes, firsts[levels], columns)
    where = placed.x.T, placed.after.T
    return Moved(*where, job.plan.method, len(columns["step"]), seconds, noise, kappas)


def _expected(
    levels: LevelFlow, data: PictureData, classes: Classes, first: int, history: dict[str, list[Any]]
) -> tuple[float, np.ndarray]:
    """`Moved.noise` and `Moved.kappas` of the stages from `first` on.

    A step's directions are orthonormal, but for zeros around the border: of their variances the sum is
    known, so that their mean follows from how many there are.
    """
    x, done = data.layout.encode(data.raw, Seed(0), dequantize=levels.dequantize), 0
    distances, steps = history["distance"], history["step"]
    d, total, ratios, known = x.shape[0], 0.0, [], {}
    for i in range(first, len(levels.stages)):
        flow, subspace = levels.engine(i)
        stage, size = flow.schedule[0], (levels.stages[i].h, levels.stages[i].w)
        if size not in known:
            low = x if subspace.is_full_resolution else subspace.down(x)
            known[size] = [classes.noise(low, evenly) for evenly in (False, flow.apart)]
        moved, mapped = known[size]
        for k in range(stage.n_steps):
            if done == len(steps) or steps[done] != k:  # the stage ended early
                break
            h = subspace.dimension
            if isinstance(stage.frame, Tiles):
                h = stage.frame.count(flow.seed.child("frame", 0), k)
            total += KAPPA * stage.size_of(k) ** 2 * moved / d
            ratios.append(distances[done] ** 2 * h / mapped)
            done += 1
    return total, np.array(ratios)


def displacement(moved: Moved, data: np.ndarray | Tensor) -> dict[str, float]:
    """How far a coordinate moved, and how far noise alone would move it, in units of the data's σ."""
    sigma = math.sqrt(float(np.var(np.asarray(data, dtype=np.float64), axis=0).mean()))
    apart = (moved.after.double() - moved.before.double()).square().mean()
    return {
        "moved": math.sqrt(float(apart)) / sigma,
        "noise": math.sqrt(moved.noise) / sigma,
        "κ first": float(moved.kappas[0]) if moved.steps else math.nan,
        "κ mean": float(moved.kappas.mean()) if moved.steps else math.nan,
    }


def divided(n: int, start: str, m: int | None, seed: Seed) -> tuple[Tensor, Tensor]:
    """Numbers of the rows that are fitted, and of those that m particles start as.

    Of those every one is used equally often; m is by default how many there are.
    """
    order = seed.child("halves").permutation(n)
    fitted, others = (order[: n // 2].sort().values, order[n // 2 :])
    if start == "same":
        fitted, others = torch.arange(n), order
    return fitted, others.repeat(-(-(m or 1) // len(others)))[: m or len(others)]


def read_rows(name: str, few: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training rows, their labels, and held-out rows, in units of the training rows' spread."""
    if name == "moons":
        X, labels = make_moons(4000, noise=0.1, random_state=0)
        train, y, test = X[:2000], labels[:2000], X[2000:]
    else:
        digits = [datasets.load("digits", split) for split in ("train", "test")]
        train, test = (part.images.reshape(len(part.images), -1).astype(float) for part in digits)
        y = digits[0].labels
    train, y, spread = train[:few], y[:few], train.std(axis=0)
    mean, spread = train.mean(axis=0), np.where(spread > 0, spread, 1)
    return (train - mean) / spread, y, (test - mean) / spread


def settings_of(args: argparse.Namespace, kind: type, steps: str) -> dict[str, Any]:
    """What the estimator is given: steps, and what --set says; options among them by their names."""
    named = {field.name for field in fields(kind)}
    given = dict(word.split("=", 1) for word in args.set)
    values = {key: _value(text) for key, text in given.items()}
    options = {key: value for key, value in values.items() if key in named}
    options = {"n_knots": 0} | options if kind is PictureOptions else {"smoothing": 0} | options
    rest = {key: value for key, value in values.items() if key not in named}
    if args.steps is not None:
        rest[steps] = args.steps
    return {**rest, "options": kind(**options), "device": args.device}


def _value(text: str) -> Any:
    """A number, None or True where it is one; else the text."""
    if text == "inf":
        return math.inf
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def cases_of_rows(name: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What happens to real rows, with and without labels."""
    X, y, test = read_rows(name, args.rows)
    device, seed = resolve_device(args.device), Seed(args.seed)
    settings = settings_of(args, VectorOptions, "n_steps")
    for start in args.start:
        fitted, others = (t.numpy() for t in divided(len(X), start, args.particles, seed))
        train, X0 = X[fitted], X[others]

        def scores(rows: np.ndarray, train: np.ndarray = train) -> dict[str, float]:
            return {
                "sliced distance": metrics.sliced_wasserstein(rows[:SCORED], test),
                "FD-PCA32": metrics.frechet_distance_pca(rows, test, train),
                "NN ratio": metrics.nn_ratio(rows[:2000], train, test, device=args.device),
            }

        for kind in args.by:
            if kind == "clusters":  # of pictures alone
                continue
            labels = (y[fitted], y[others]) if kind == "classes" else (None, None)
            moved = move_rows(settings, train, labels[0], X0, labels[1], device, seed)
            after = moved.after.numpy()
            np.save(args.out / f"{name}-{kind}-{start}.npy", after[:KEPT])
            about = {"set": name, "by": kind, "start": start, "levels": None}
            yield _row(about, moved, train, scores(X0), scores(after))


def cases_of_pictures(name: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What happens to real pictures: by class, by cluster and without, in each choice of levels."""
    train, test = (datasets.load(name, split, args.data_root) for split in ("train", "test"))
    train = _some(train, torch.arange(len(train.images))[: args.rows])
    network = Scale(None, None, None, {} if args.epochs is None else {"epochs": args.epochs})
    scorer = Scorer.of(train, test, args, network)
    device, seed, mirror = resolve_device(args.device), Seed(args.seed), train.images.ndim == 4
    usual = {"n_pixel_values": train.n_pixel_values, "mirror": mirror}
    settings = usual | settings_of(args, PictureOptions, "quality")
    layout = Layout.of(train.images, train.n_pixel_values)
    held_out = pixel_rows(test.images[:SCORED], train.n_pixel_values)
    for start in args.start:
        fitted, others = divided(len(train.images), start, args.particles, seed)
        seen, real = _some(train, fitted), _some(train, others)

        def scores(images: np.ndarray, seen: Pictures = seen, real: Pictures = real) -> dict[str, Any]:
            rows = pixel_rows(images[:SCORED], train.n_pixel_values)
            out = {"sliced distance": metrics.sliced_wasserstein(rows, held_out)}
            out |= scorer.score(images, real.labels)
            few, unseen = images[:2000], test.images[:2000]
            out["NN ratio"] = metrics.nn_ratio(
                few, seen.images, unseen, mirror=settings["mirror"], device=args.device
            )
            return out

        before = scores(real.images)
        if real.labels is not None:
            np.save(args.out / f"{name}-{start}-labels.npy", real.labels[:KEPT])
        for kind in args.by:
            labels = train.labels if kind == "classes" else None
            one = settings | ({"n_clusters": 1} if kind == "none" else {})
            for levels in args.levels:
                moved = move_pictures(one, train, labels, fitted, others, device, seed, levels)
                if moved is None:
                    print(f"{name}: {len(fitted)} pictures are too few for clusters", flush=True)
                    break
                after = layout.write(moved.after.T)
                np.save(args.out / f"{name}-{kind}-{levels}-{start}.npy", after[:KEPT])
                about = {"set": name, "by": kind, "start": start, "levels": levels}
                yield _row(
                    about, moved, pixel_rows(seen.images, train.n_pixel_values), before, scores(after)
                )


def _some(pictures: Pictures, numbers: Tensor) -> Pictures:
    chosen = numbers.numpy()
    labels = None if pictures.labels is None else pictures.labels[chosen]
    return Pictures(pictures.images[chosen], labels, pictures.n_pixel_values, pictures.name)


def _row(
    about: dict[str, Any], moved: Moved, data: np.ndarray, before: dict[str, Any], after: dict[str, Any]
) -> dict[str, Any]:
    """A case, for the table and for JSON."""
    done = {"method": moved.method, "particles": len(moved.after), "steps": moved.steps}
    done |= {"seconds": moved.seconds, **displacement(moved, data)}
    return {**about, **done, "before": before, "after": after}


def cells(row: dict[str, Any], scores: Sequence[str]) -> list[str]:
    """A line of the table."""
    texts = [row["set"], row["method"], row["start"], row["levels"] or "–", f"{row['particles']:,}"]
    numbers = [f"{row['steps']:,}", f"{row['seconds']:.1f}"]
    numbers += [number(row[key], "{:.3f}".format) for key in ("moved", "noise")]
    numbers.append(f"{row['κ first']:.2f} → {row['κ mean']:.2f}")
    pairs = [[number(_plain(row[when].get(key))) for when in ("before", "after")] for key in scores]
    return [*texts, *numbers, *(" → ".join(pair) if all(pair) else "" for pair in pairs)]


def _plain(value: Any) -> float | None:
    return value["value"] if isinstance(value, dict) else value


def tables(rows: Sequence[dict[str, Any]]) -> str:
    """Vectors and pictures have tables of their own, with the scores that they have."""
    out = []
    for group in (ROWS, PICTURES):
        some = [row for row in rows if row["set"] in group]
        scores = [key for key in SCORES if any(key in row["after"] for row in some)]
        if some:
            out.append(table([*COMMON, *scores], [cells(row, scores) for row in some]))
    return "\n\n".join(out)


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run every case that is asked for."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sets = (*ROWS, *PICTURES)
    parser.add_argument("--sets", nargs="+", choices=sets, default=["moons", "digits-rows", "digits"])
    parser.add_argument("--data-root", type=Path, help="folder of the sets; else SLICEFLOW_DATA")
    parser.add_argument("--start", nargs="+", choices=("half", "same"), default=["half"])
    parser.add_argument("--by", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--levels", nargs="+", choices=("last", "all"), default=["last"])
    parser.add_argument("--steps", type=int, help="of rows, or per stage of pictures; else the default")
    parser.add_argument("--particles", type=int, help="default: each row once")
    parser.add_argument("--rows", type=int, help="of the training set; default: all")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="more parameters")
    parser.add_argument("--fid-weights", type=Path, help="the FID network's file: also give FID")
    layers = metrics.inception.LAYERS
    parser.add_argument("--fid-layer", type=int, default=768, choices=layers)
    parser.add_argument("--epochs", type=int, help="of the network that FD is measured with")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/fixed-point"))
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in args.sets:
        for row in (cases_of_rows if name in ROWS else cases_of_pictures)(name, args):
            rows.append(row)
            print(tables(rows[-1:]), flush=True)
    command = " ".join(["python benchmarks/fixed_point.py", *arguments])
    shown, device = f"{tables(rows)}\n\n", resolve_device(args.device)
    keep(args.out / "fixed_point", shown, rows, device, command)
    return rows


if __name__ == "__main__":
    main()
