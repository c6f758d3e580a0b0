"""The held-out numbers of today's defaults, all in one file; before and after a change, side by side.

    OMP_NUM_THREADS=1 python benchmarks/today.py cpu --out before.json --data-root DATA
    python benchmarks/today.py gpu --out before.json --data-root DATA --fid-weights WEIGHTS.npz
    python benchmarks/today.py table before.json after.json

Every row is written as soon as it is measured; a second run skips the rows that are there. ``--only``
takes the beginning of names, such as ``tables`` or ``vectors/moons``. ``--quick`` shrinks everything, to
see that it runs. DATA is the folder of the picture sets (else SLICEFLOW_DATA), or holds NAME.npz with
train_images, train_labels, test_images and test_labels. A row whose data are missing is skipped, and
that is said.

sliced      sliced Wasserstein distance to held-out rows, in standard deviations
c2st        how often a forest (posteriors: a perceptron) tells samples from real rows: .5 is ideal
detection   AUC of boosted trees that tell synthetic from held-out rows: .5 is ideal
shape       agreement of the columns' own distributions: 1 is ideal
trend       mean difference of the associations of two columns: 0 is ideal
utility     R² or AUC on held-out rows of boosted trees that learnt synthetic rows
copies      share of samples nearer to a fitted row than the nearest 1 % of held-out rows: .01 is ideal
nn_ratio    median distance to the nearest fitted row, over that of held-out rows: 1 is ideal
fid768, fd  Fréchet distances to the training pictures, in Inception's layer of 768 features and in those
            of a classifier that learnt the training pictures
recognised  share that this classifier takes for what they should be
coverage    share of held-out pictures with a sample among their five nearest neighbours
offline_…   the same of `sample`, which moves fresh noise; without it, of `particles_`
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from judge import first
from report import facts, table
from scores import (
    c2st,
    copies,
    coverage,
    distances_to,
    frechet,
    nn_ratio,
    sliced_distance,
    table_scores,
    thumbnails,
    vector_scores,
)
from table_sets import SETS, halves, load_table

from sliceflow import ImageFlow, SlicedWassersteinFlow, datasets
from sliceflow.datasets import Pictures

Row = dict[str, Any]
Job = Callable[[int, argparse.Namespace], Row]


class Skipped(Exception):
    """What a row needs is not there."""


# --- vectors -----------------------------------------------------------------------------------------


def _clocks() -> tuple[float, float]:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def timed(work: Callable[[], Any]) -> tuple[Any, Row]:
    """What `work` returns, its seconds, and CPU seconds of all threads."""
    began = _clocks()
    out = work()
    ended = _clocks()
    return out, {"seconds": ended[0] - began[0], "cpu_seconds": ended[1] - began[1]}


def offline(numbers: Row) -> Row:
    """The numbers of offline samples, by their names."""
    return {f"offline_{name}": value for name, value in numbers.items()}


def vectors(
    load: Callable[[int], tuple[np.ndarray, ...]], seed: int, args: argparse.Namespace
) -> Row:
    """Half of the rows fitted by default, the other half held out."""
    x, *labels = load(seed)
    order = np.random.default_rng(seed).permutation(len(x))
    fitted, held = np.array_split(order[:200] if args.quick else order, 2)
    y = labels[0] if labels else None
    few = {"n_steps": 5} if args.quick else {}
    flow = SlicedWassersteinFlow(random_state=seed, device="cpu", **few)
    _, row = timed(lambda: flow.fit(x[fitted], None if y is None else y[fitted]))
    n = max(len(held), min(4_000, len(flow.particles_)))
    chosen = np.random.default_rng(seed).permutation(len(flow.particles_))[:n]
    made = np.asarray(flow.particles_)[chosen]
    row |= vector_scores(made, x[fitted], x[held])
    fresh = flow.sample(n, random_state=seed)
    row |= offline(vector_scores(np.asarray(fresh), x[fitted], x[held]))
    if y is not None:
        conditions = np.asarray(flow.particle_conditions_)[chosen]
        row["recognised"] = recogniser(x[fitted], y[fitted]).score(made, conditions)
    return row


def moons(n: int, noise: float, seed: int) -> tuple[np.ndarray, ...]:
    """Twice n rows, as one half is held out."""
    from sklearn.datasets import make_moons

    return (make_moons(2 * n, noise=noise, random_state=seed)[0],)


def sklearn_rows(name: str, by_class: bool, seed: int) -> tuple[np.ndarray, ...]:
    """A set of scikit-learn; the seed chooses the halves elsewhere."""
    import sklearn.datasets

    x, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
    return (x, y) if by_class else (x,)


def recogniser(x: np.ndarray, y: np.ndarray) -> Any:
    """A classifier of small pictures."""
    from sklearn.svm import SVC

    return SVC(gamma="scale", C=10).fit(x.reshape(len(x), -1), y)


# --- posteriors --------------------------------------------------------------------------------------


def posteriors(task: str, simulations: int, seed: int, args: argparse.Namespace) -> Row:
    """Samples of `posterior` against draws of the true one, at five observations."""
    from posterior_tasks import TASKS
    from two_samples import c2st as perceptron

    from sliceflow.inference import posterior

    known = TASKS[task]
    q, m = (1, 50) if args.quick else (5, 1_000)
    theta, x = known.draw(simulations, seed=1_000 + seed)
    x0 = known.draw(q, seed=2_000)[1]
    rng = np.random.default_rng(3_000)
    true = np.stack([known.posterior(at, m, rng) for at in x0])

    def draw() -> np.ndarray:
        found = posterior(theta, x, bounds=known.bounds)
        return (
            found.sample_batched((m,), x=x0, random_state=seed)
            .transpose(0, 1)
            .double()
            .numpy()
        )

    made, row = timed(draw)
    found = [perceptron(ours, theirs) for ours, theirs in zip(made, true, strict=True)]
    return row | {"c2st": float(np.mean(found))}


# --- tables ------------------------------------------------------------------------------------------


def tables(name: str, seed: int, args: argparse.Namespace) -> Row:
    """Half of the rows fitted by default, the other half held out."""
    from sliceflow import TableFlow

    try:
        frame, target = load_table(name, args.csv)
    except (ImportError, OSError) as error:
        raise Skipped(str(error)) from error
    train, test = halves(
        frame.sample(120, random_state=0) if args.quick else frame, seed
    )
    flow = TableFlow(random_state=seed)
    made, row = timed(lambda: flow.fit(train).sample(len(train), random_state=seed))
    return row | table_scores(train, test, made, target, seed)


# --- pictures ----------------------------------------------------------------------------------------


@cache
def pictures(
    name: str, root: str | None, quick: bool = False
) -> tuple[Pictures, Pictures]:
    """Pictures to fit and pictures held out, of NAME.npz or of a set that `datasets.load` knows."""
    folder = root or os.environ.get("SLICEFLOW_DATA")
    packed = folder and Path(folder, f"{name}.npz")
    if packed and packed.exists():
        with np.load(packed) as file:
            arrays = [
                (file[f"{part}_images"], file.get(f"{part}_labels")) for part in _PARTS
            ]
        parts = [Pictures(*both, 256, name) for both in arrays]
    else:
        try:
            parts = [datasets.load(name, part, root) for part in _PARTS]
        except (datasets.DatasetError, OSError) as error:
            raise Skipped(str(error)) from error
    train, test = parts
    return (first(train, 200), first(test, 60)) if quick else (train, test)


_PARTS = ("train", "test")


def digits(seed: int, args: argparse.Namespace) -> Row:
    """Small pictures by class, on a CPU."""
    train, test = pictures("digits", args.data_root)
    flow = ImageFlow(
        n_pixel_values=train.n_pixel_values,
        quality=1 if args.quick else "standard",
        random_state=seed,
        device="cpu",
    )
    _, row = timed(lambda: flow.fit(train.images, train.labels))
    judge = recogniser(train.images, train.labels)
    n = min(2_000, len(flow.particles_))
    for rename, (x, y) in (
        (dict, (flow.particles_[:n], flow.particle_conditions_[:n])),
        (offline, flow.sample(n, random_state=seed, return_y=True)),
    ):
        ours, train_rows, test_rows = (
            np.asarray(a, float).reshape(len(a), -1)
            for a in (x, train.images, test.images)
        )
        near = distances_to(ours, train_rows)
        real = distances_to(test_rows, train_rows)
        row |= rename(
            {
                "sliced": sliced_distance(ours, test_rows),
                "c2st": c2st(ours, test_rows),
                "recognised": judge.score(ours, y),
                "coverage": coverage(ours[: len(test_rows)], test_rows),
                "nn_ratio": nn_ratio(near, real),
                "copies": copies(near, real),
            }
        )
    return row


def mnist_on_cpu(quality: str, seed: int, args: argparse.Namespace) -> Row:
    """MNIST by class on a CPU: how long it takes, and how good it is."""
    train, test = pictures("mnist", args.data_root, args.quick)
    flow = ImageFlow(
        quality=1 if args.quick else quality, random_state=seed, device="cpu"
    )
    _, row = timed(lambda: flow.fit(train.images, train.labels))
    row |= {"particles": len(flow.particles_), "model_mb": megabytes(flow)}
    judge = classifier("mnist", args, "cpu")
    n = min(5_000, len(flow.particles_))
    x = flow.particles_[:n]
    y = flow.particle_conditions_[:n]
    near, real = (distances_to(a[:1_000], train.images) for a in (x, test.images))
    return row | {
        "fd": frechet(judge.features(x), real_features("mnist", args, "cpu")),
        "recognised": judge.score(x, y),
        "nn_ratio": nn_ratio(near, real),
        "copies": copies(near, real),
    }


def megabytes(flow: Any) -> float:
    """Of the model's file."""
    with tempfile.TemporaryDirectory() as folder:
        flow.save(Path(folder, "model"))
        return (
            sum(
                file.stat().st_size
                for file in Path(folder).rglob("*")
                if file.is_file()
            )
            / 1e6
        )


@cache
def _classifier(
    name: str, root: str | None, quick: bool, folder: str | None, device: str
) -> Any:
    from networks import train_classifier

    train, test = pictures(name, root, quick)
    few = (
        {"epochs": 1, "width": 4}
        if quick
        else {"epochs": 12}
        if train.images.ndim == 4
        else {"epochs": 6}
    )
    if device == "cpu" and not quick:
        few = {"epochs": 2, "width": 8}
    return train_classifier(train, test, device=device, cache=folder, **few)


def classifier(name: str, args: argparse.Namespace, device: str) -> Any:
    """A network that learnt the training pictures; kept in ``--cache``."""
    return _classifier(name, args.data_root, args.quick, args.cache, device)


@cache
def _real_features(
    name: str, root: str | None, quick: bool, folder: str | None, device: str
) -> np.ndarray:
    train, _ = pictures(name, root, quick)
    return _classifier(name, root, quick, folder, device).features(train.images)


def real_features(name: str, args: argparse.Namespace, device: str) -> np.ndarray:
    """The classifier's features of the training pictures."""
    return _real_features(name, args.data_root, args.quick, args.cache, device)


def completed(
    name: str, mask: str, device: str, seed: int, args: argparse.Namespace
) -> Row:
    """The hidden halves of held-out pictures, with and without labels."""
    train, test = pictures(name, args.data_root, args.quick)
    x = test.images[: 50 if args.quick else 500]
    y = test.labels[: 50 if args.quick else 500]
    half = x.shape[1] // 2
    if name == "digits":
        judge = recogniser(train.images, train.labels)
        score = lambda x, y: judge.score(x.reshape(len(x), -1), y)  # noqa: E731
    else:
        score = classifier(name, args, device).score
    hidden = [
        np.asarray(a[:, half:], float).reshape(len(a), -1) for a in (train.images, x)
    ]
    row: Row = {"recognised_real": score(x, y)}
    for labels, prefix in ((None, ""), (y, "by_class_")):
        settings = {
            "n_pixel_values": train.n_pixel_values,
            "random_state": seed,
            "device": device,
        }
        flow = ImageFlow(quality="draft", keep_rows=True, **settings)
        flow.fit(train.images, None if labels is None else train.labels)
        found, times = timed(
            partial(flow.inpaint, x, mask, y=labels, random_state=seed)
        )
        done = found[:, 0]
        ours = np.asarray(done[:, half:], float).reshape(len(done), -1)
        near, real = (
            distances_to(a, hidden[0], device=device) for a in (ours, hidden[1])
        )
        numbers = {
            "recognised": score(done, y),
            "sliced": sliced_distance(
                ours / train.n_pixel_values, hidden[1] / train.n_pixel_values
            ),
            "nn_ratio": nn_ratio(near, real),
            "copies": copies(near, real),
        }
        row |= {prefix + k: v for k, v in (times | numbers).items()}
    return row


# --- pictures on a GPU -------------------------------------------------------------------------------


@cache
def inception(weights: str, device: str) -> Callable[[np.ndarray], np.ndarray]:
    """The features of uint8 pictures in the layer of 768, from a file of folded weights."""
    from networks import inception768

    return inception768(weights, device)


def kept_features(
    name: str, part: str, x: np.ndarray, args: argparse.Namespace
) -> np.ndarray:
    """Inception's features of real pictures, kept in ``--cache``."""
    path = args.cache and Path(args.cache, f"inception768-{name}-{part}-{len(x)}.npy")
    if path and path.exists():
        return np.load(path)
    found = inception(args.fid_weights, args.device)(x)
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, found)
    return found


def gpu_pictures(name: str, by_class: bool, seed: int, args: argparse.Namespace) -> Row:
    """All defaults; fitted twice, so that the second time nothing is compiled."""
    train, test = pictures(name, args.data_root, args.quick)
    if by_class and train.labels is None:
        raise Skipped(f"{name} has no labels")
    y = train.labels if by_class else None
    settings = {"random_state": seed, "device": args.device}
    if args.quick:
        settings |= {"quality": 1, "n_particles": 60}
    first = ImageFlow(**settings).fit(train.images, y).particles_
    flow, row = timed(lambda: ImageFlow(**settings).fit(train.images, y))
    row["same_bits"] = bool(np.array_equal(first, flow.particles_))
    row |= {"particles": len(flow.particles_), "model_mb": megabytes(flow)}
    n = min(args.samples, len(flow.particles_))
    real = {
        part: kept_features(name, part, a.images, args)
        for part, a in (("train", train), ("test", test))
    }
    row |= picture_scores(
        name, flow.particles_[:n], flow.particle_conditions_, real, args
    )
    fresh, times = timed(lambda: flow.sample(n, random_state=seed, return_y=by_class))
    row |= offline(times)
    x, labels = fresh if by_class else (fresh, None)
    return row | offline(picture_scores(name, x, labels, real, args))


def picture_scores(
    name: str,
    x: np.ndarray,
    y: np.ndarray | None,
    real: dict[str, np.ndarray],
    args: argparse.Namespace,
) -> Row:
    """Distances of pictures to the training set, what is recognised, and how many are copied."""
    train, test = pictures(name, args.data_root, args.quick)
    device = args.device
    features = inception(args.fid_weights, args.device)(x)
    m = min(10_000, len(test.images), len(x))
    row: Row = {
        "fid768": frechet(features, real["train"], device),
        "coverage": coverage(features[:m], real["test"][:m], device=device),
        "coverage_floor": coverage(real["train"][-m:], real["test"][:m], device=device),
    }
    if train.labels is not None:
        judge = classifier(name, args, device)
        row["fd"] = frechet(
            judge.features(x[:10_000]), real_features(name, args, device), device
        )
        if y is not None:
            row["recognised"] = judge.score(x[:10_000], y[:10_000])
    few = slice(0, 5_000)
    spaces = {
        "": (x[few], train.images, test.images[few]),
        "_thumbnails": tuple(
            thumbnails(a) for a in (x[few], train.images, test.images[few])
        ),
        "_features": (features[few], real["train"], real["test"][few]),
    }
    for suffix, (ours, theirs, held) in spaces.items():
        near, usual = (distances_to(a, theirs, device=device) for a in (ours, held))
        row[f"copies{suffix}"] = copies(near, usual)
        row[f"nn_ratio{suffix}"] = nn_ratio(near, usual)
    return row


# --- all rows ----------------------------------------------------------------------------------------


def cpu_jobs() -> dict[str, Job]:
    """By name, the quick ones first."""
    jobs: dict[str, Job] = {}
    for n in (500, 2_000):
        for noise in (0.05, 0.1):
            jobs[f"vectors/moons {n} noise {noise}"] = partial(
                vectors, partial(moons, n, noise)
            )
    for short, name in (
        ("wine", "wine"),
        ("cancer", "breast_cancer"),
        ("diabetes", "diabetes"),
    ):
        jobs[f"vectors/{short}"] = partial(vectors, partial(sklearn_rows, name, False))
    jobs["vectors/digits by class"] = partial(
        vectors, partial(sklearn_rows, "digits", True)
    )
    for task in ("two moons", "Gaussian mixture"):
        for n in (1_000, 10_000):
            jobs[f"posteriors/{task} {n}"] = partial(posteriors, task, n)
    jobs["completions/digits"] = partial(completed, "digits", "top", "cpu")
    jobs["pictures on a CPU/digits by class"] = digits
    for name in SETS:
        jobs[f"tables/{name}"] = partial(tables, name)
    for quality in ("draft", "standard"):
        jobs[f"pictures on a CPU/MNIST by class {quality}"] = partial(
            mnist_on_cpu, quality
        )
    return jobs


def gpu_jobs(device: str) -> dict[str, Job]:
    """By name."""
    jobs: dict[str, Job] = {}
    for title, name in (
        ("MNIST", "mnist"),
        ("Fashion-MNIST", "fashion-mnist"),
        ("CIFAR-10", "cifar10"),
    ):
        for by_class in (True, False):
            full = f"pictures/{title}{' by class' if by_class else ''}"
            jobs[full] = partial(gpu_pictures, name, by_class)
    jobs["pictures/faces"] = partial(gpu_pictures, "celeba", False)
    jobs["completions/MNIST"] = partial(completed, "mnist", "top", device)
    return jobs


def _out_of_time(*_: Any) -> None:
    raise TimeoutError("out of time")


def measure(jobs: dict[str, Job], args: argparse.Namespace) -> None:
    """Measure the rows that are not there yet, and write each at once."""
    about = facts(torch.device(args.device)) | {"threads": str(torch.get_num_threads())}
    known = (
        json.loads(args.out.read_text(encoding="utf-8"))
        if args.out.exists()
        else {"rows": []}
    )
    done = {(row["name"], row["seed"]) for row in known["rows"]}
    chosen = [
        name for name in jobs if not args.only or name.startswith(tuple(args.only))
    ]
    signal.signal(signal.SIGALRM, _out_of_time)
    for name, seed in [(name, seed) for name in chosen for seed in args.seeds]:
        if (name, seed) in done:
            continue
        began = time.perf_counter()
        try:
            signal.alarm(args.limit)
            row = jobs[name](seed, args)
        except (Skipped, TimeoutError) as error:
            print(f"{name}, seed {seed}: skipped, {error}", flush=True)
            continue
        finally:
            signal.alarm(0)
        row = {"name": name, "seed": seed, **row, "took": time.perf_counter() - began}
        known["rows"].append(row | {"about": about})
        args.out.parent.mkdir(parents=True, exist_ok=True)
        fresh = args.out.with_suffix(".part")
        fresh.write_text(
            json.dumps(known, indent=1, default=float) + "\n", encoding="utf-8"
        )
        fresh.replace(args.out)
        print(
            name,
            seed,
            {k: round(v, 4) for k, v in row.items() if isinstance(v, float)},
            flush=True,
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, or print the tables of files that were written."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("cpu", "gpu"):
        sub = commands.add_parser(command)
        sub.add_argument(
            "--out", type=Path, required=True, help="the JSON file to write or continue"
        )
        sub.add_argument(
            "--seeds",
            type=int,
            nargs="+",
            default=[0, 1, 2] if command == "cpu" else [7],
        )
        sub.add_argument("--only", nargs="+", metavar="NAME", help="rows that begin so")
        sub.add_argument("--data-root", help="the folder of picture sets")
        sub.add_argument("--csv", help="a folder of tables by table_sets.write_csv")
        sub.add_argument(
            "--cache", help="a folder for networks and features of real pictures"
        )
        sub.add_argument(
            "--fid-weights", help="FID's Inception weights, folded, as .npz"
        )
        sub.add_argument(
            "--samples", type=int, default=50_000, help="pictures that are scored"
        )
        sub.add_argument(
            "--limit", type=int, default=0, help="seconds a row may take; 0 is no limit"
        )
        sub.add_argument(
            "--quick", action="store_true", help="few of all, to see that it runs"
        )
        sub.add_argument("--device", default="cpu" if command == "cpu" else "cuda")
    shown = commands.add_parser("table")
    shown.add_argument("files", type=Path, nargs="+")
    args = parser.parse_args(argv)
    if args.command == "table":
        print(side_by_side(args.files))
        return
    measure(cpu_jobs() if args.command == "cpu" else gpu_jobs(args.device), args)


SHOWN = {  # of each kind of row; the file has all numbers
    "vectors": "sliced c2st nn_ratio copies recognised offline_sliced offline_c2st offline_copies cpu_seconds",
    "posteriors": "c2st cpu_seconds",
    "tables": "detection shape trend utility copies nn_ratio cpu_seconds",
    "completions": "recognised by_class_recognised sliced nn_ratio copies cpu_seconds by_class_cpu_seconds",
    "pictures on a CPU": "sliced c2st fd recognised coverage nn_ratio copies cpu_seconds",
    "pictures": "seconds fid768 fd recognised coverage copies copies_thumbnails copies_features "
    "offline_fid768 offline_coverage model_mb",
}
LOWER_IS_BETTER = (
    "sliced",
    "c2st",
    "detection",
    "trend",
    "fid768",
    "fd",
    "copies",
    "seconds",
    "cpu_seconds",
    "by_class_cpu_seconds",
    "model_mb",
)
NOISE = 0.05  # of a number that was measured with one seed, as a share of it


def side_by_side(files: Sequence[Path]) -> str:
    """A Markdown table for every kind of row, means over seeds ± their standard deviation, and a verdict."""
    found = [json.loads(file.read_text(encoding="utf-8"))["rows"] for file in files]
    names = list(dict.fromkeys(row["name"] for rows in found for row in rows))
    out = []
    worse = []
    for kind, columns in SHOWN.items():
        lines = []
        for name in (name for name in names if name.startswith(kind + "/")):
            own = [[row for row in rows if row["name"] == name] for rows in found]
            for file, rows in zip(files, own, strict=True):
                if rows:
                    cells = [
                        _cell([r[c] for r in rows if c in r]) for c in columns.split()
                    ]
                    lines.append(
                        [
                            f"{name.partition('/')[2]}, {file.stem}",
                            str(len(rows)),
                            *cells,
                        ]
                    )
            worse += [
                f"{name} {c}" for c in columns.split() if _worse(own[0], own[-1], c)
            ]
        if lines:
            header = ("set", "seeds", *columns.split())
            used = [i for i in range(len(header)) if any(line[i] for line in lines)]
            lines = [[line[i] for i in used] for line in lines]
            out.append(f"### {kind}\n\n{table([header[i] for i in used], lines)}\n")
    if len(files) > 1:
        out.append(f"Worse beyond the noise: {', '.join(worse) or 'nothing'}.\n")
    for file, rows in zip(files, found, strict=True):
        for about in {json.dumps(row["about"]): None for row in rows}:
            facts_of = ", ".join(f"{k} {v}" for k, v in json.loads(about).items())
            out.append(f"- {file.stem}: {facts_of}")
    return "\n".join(out)


def _worse(before: list[Row], after: list[Row], column: str) -> bool:
    """Whether a number got worse by more than twice what seeds make it vary, or `NOISE` of one seed."""
    a, b = ([row[column] for row in rows if column in row] for rows in (before, after))
    if not a or not b:
        return False
    ideal = (
        0.01
        if "copies" in column
        else 0.5
        if column.endswith(("c2st", "detection"))
        else None
    )
    gain = 1 if column.rpartition("offline_")[2].startswith(LOWER_IS_BETTER) else -1
    if column.endswith("nn_ratio"):
        ideal = 1.0
        gain = 1
        a, b = ([abs(np.log(v)) + 1 for v in values] for values in (a, b))
    elif ideal is not None:  # what is better than ideal is not better
        a, b = ([max(v, ideal) for v in values] for values in (a, b))
    spread = (
        max(np.std(a), np.std(b))
        if len(a) > 1 < len(b)
        else NOISE * abs(float(np.mean(a)))
    )
    return bool(gain * (np.mean(b) - np.mean(a)) > max(2 * spread, 0.005))


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    if isinstance(values[0], bool):
        return "yes" if all(values) else "no"
    mean = float(np.mean(values))
    spread = float(np.std(values))
    return f"{mean:.3g} ± {spread:.1g}" if len(values) > 1 else f"{mean:.3g}"


if __name__ == "__main__":
    main()
