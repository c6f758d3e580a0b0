"""The held-out numbers of today's defaults in one file; two files side by side.

    OMP_NUM_THREADS=1 python benchmarks/today.py cpu --out before.json --data-root DATA
    python benchmarks/today.py gpu --out before.json --data-root DATA --fid-weights NPZ
    python benchmarks/today.py table before.json after.json

Every row is written as soon as it is measured; a second run skips the rows that are
there. ``--only`` takes the beginning of names, such as ``tables`` or ``vectors/moons``.
``--quick`` shrinks everything, to see that it runs. DATA is the folder of the picture
sets (else SLICEFLOW_DATA), or holds NAME.npz with train_images, train_labels,
test_images and test_labels. A row whose data are missing is skipped, and that is said.

sliced      sliced Wasserstein distance to held-out rows, in standard deviations
c2st        how often a forest (posteriors: a perceptron) tells samples from real rows:
            .5 is ideal
detection   AUC of boosted trees that tell synthetic from held-out rows: .5 is ideal
shape       agreement of the columns' own distributions: 1 is ideal
trend       mean difference of the associations of two columns: 0 is ideal
utility     R² or AUC on held-out rows of boosted trees that learnt synthetic rows
copies      share of samples nearer to a fitted row than the nearest 1 % of held-out
            rows: .01 is ideal
nn_ratio    median distance to the nearest fitted row, over that of held-out rows: 1 is
            ideal
fid768, fd  Fréchet distances to the training pictures, in Inception's layer of 768
            features and in those of a classifier that learnt the training pictures
recognized  share that this classifier takes for what they should be
coverage    share of held-out pictures with a sample among their five nearest neighbors
offline_…   the same of `sample`, which moves fresh noise; without it, of `particles_`
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from judge import slice_pictures
from networks import Classifier, inception768, train_classifier
from report import Row, machine_facts, markdown_table, script_parser
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
from sklearn.svm import SVC
from table_sets import SETS, halves, load_table

from sliceflow import ImageFlow, SlicedWassersteinFlow, datasets
from sliceflow.datasets import PictureSet

Args = argparse.Namespace
Job = Callable[[int, Args], Row]  # from a seed to a row
RowsOfSeed = Callable[[int], tuple[np.ndarray, np.ndarray | None]]  # rows, labels
Result = TypeVar("Result")

# How many rows and pictures are scored. All keep a row within minutes.
MIN_SCORED_VECTORS = 4_000  # of small sets more samples than held-out rows
MAX_SCORED_DIGITS = 2_000
MAX_SCORED_MNIST = 5_000  # on a CPU
MAX_SEARCHED_MNIST = 1_000  # on a CPU, for the nearest training picture
MAX_SCORED_PICTURES = 10_000  # on a GPU; as many as there are test pictures
MAX_SEARCHED_PICTURES = 5_000  # on a GPU
N_COMPLETED = 500
N_OBSERVATIONS = 5
N_POSTERIOR_DRAWS = 1_000


class Skipped(Exception):
    """What a row needs is not there."""


def clocks() -> tuple[float, float]:
    """Seconds of the wall and of the CPU, once the GPU has done its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def timed(function: Callable[[], Result]) -> tuple[Result, Row]:
    """What a function returns, its seconds, and CPU seconds of all threads."""
    started_at, cpu_started_at = clocks()
    result = function()
    stopped_at, cpu_stopped_at = clocks()
    times = {
        "seconds": stopped_at - started_at,
        "cpu_seconds": cpu_stopped_at - cpu_started_at,
    }
    return result, times


def with_prefix(prefix: str, numbers: Row) -> Row:
    """The same numbers, with something before their names."""
    return {prefix + name: value for name, value in numbers.items()}


# --- vectors --------------------------------------------------------------------------


def measure_vectors(load: RowsOfSeed, seed: int, args: Args) -> Row:
    """Half of the rows fitted by default, the other half held out."""
    x, y = load(seed)
    order = np.random.default_rng(seed).permutation(len(x))
    settings: dict[str, Any] = {}
    if args.quick:
        order = order[:200]
        settings["n_steps"] = 5
    fitted, held_out = np.array_split(order, 2)
    train = x[fitted]
    test = x[held_out]
    y_train = None
    if y is not None:
        y_train = y[fitted]
    flow = SlicedWassersteinFlow(random_state=seed, device="cpu", **settings)
    _, row = timed(lambda: flow.fit(train, y_train))
    n_particles = len(flow.particles_)
    n = max(len(test), min(MIN_SCORED_VECTORS, n_particles))
    chosen = np.random.default_rng(seed).permutation(n_particles)[:n]
    batched = np.asarray(flow.particles_)[chosen]
    row |= vector_scores(batched, train, test)
    offline = np.asarray(flow.sample(n, random_state=seed))
    row |= with_prefix("offline_", vector_scores(offline, train, test))
    if y_train is not None:
        conditions = np.asarray(flow.particle_conditions_)[chosen]
        row["recognized"] = fit_svm(train, y_train).score(batched, conditions)
    return row


def moons(n: int, noise: float, seed: int) -> tuple[np.ndarray, None]:
    """Twice n rows, as one half is held out."""
    from sklearn.datasets import make_moons

    x, _ = make_moons(2 * n, noise=noise, random_state=seed)
    return x, None


def sklearn_rows(
    name: str, by_class: bool, seed: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """A set of scikit-learn; the seed chooses the halves elsewhere."""
    import sklearn.datasets

    x, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
    if by_class:
        return x, y
    return x, None


def fit_svm(x: np.ndarray, y: np.ndarray) -> SVC:
    """A classifier of small pictures."""
    return SVC(gamma="scale", C=10).fit(x.reshape(len(x), -1), y)


# --- posteriors -----------------------------------------------------------------------


def measure_posterior(name: str, n_simulations: int, seed: int, args: Args) -> Row:
    """Samples of `posterior` against draws of the true one, at a few observations."""
    from posterior_tasks import TASKS
    from two_samples import c2st as perceptron_c2st

    from sliceflow.inference import posterior

    n_observations = N_OBSERVATIONS
    n_draws = N_POSTERIOR_DRAWS
    if args.quick:
        n_observations = 1
        n_draws = 50
    task = TASKS[name]
    theta, x = task.draw(n_simulations, seed=1_000 + seed)
    _, x0 = task.draw(n_observations, seed=2_000)
    rng = np.random.default_rng(3_000)
    true = [task.posterior(observation, n_draws, rng) for observation in x0]

    def draw() -> np.ndarray:
        fitted = posterior(theta, x, bounds=task.bounds)
        draws = fitted.sample_batched((n_draws,), x=x0, random_state=seed)
        return draws.transpose(0, 1).double().numpy()

    samples, row = timed(draw)
    accuracies = []
    for ours, theirs in zip(samples, true, strict=True):
        accuracies.append(perceptron_c2st(ours, theirs))
    row["c2st"] = float(np.mean(accuracies))
    return row


# --- tables ---------------------------------------------------------------------------


def measure_table(name: str, seed: int, args: Args) -> Row:
    """Half of the rows fitted by default, the other half held out."""
    from sliceflow import TableFlow

    try:
        frame, target = load_table(name, args.csv)
    except (ImportError, OSError) as error:
        raise Skipped(str(error)) from error
    if args.quick:
        frame = frame.sample(120, random_state=0)
    train, test = halves(frame, seed)
    flow = TableFlow(random_state=seed)
    synthetic, row = timed(
        lambda: flow.fit(train).sample(len(train), random_state=seed)
    )
    return row | table_scores(train, test, synthetic, target, seed)


# --- pictures -------------------------------------------------------------------------


@cache
def load_pictures(
    name: str, root: str | None, quick: bool = False
) -> tuple[PictureSet, PictureSet]:
    """Pictures to fit and pictures held out, of NAME.npz or of a set by its name."""
    folder = root or os.environ.get("SLICEFLOW_DATA")
    if folder is not None and Path(folder, f"{name}.npz").exists():
        train, test = read_npz(Path(folder, f"{name}.npz"))
    else:
        try:
            train = datasets.load(name, "train", root)
            test = datasets.load(name, "test", root)
        except (datasets.DatasetError, OSError) as error:
            raise Skipped(str(error)) from error
    if quick:
        train = slice_pictures(train, stop=200)
        test = slice_pictures(test, stop=60)
    return train, test


def read_npz(path: Path) -> tuple[PictureSet, PictureSet]:
    """Training and test pictures of one file; it may have no labels."""
    with np.load(path) as file:
        train = PictureSet(
            file["train_images"], file.get("train_labels"), 256, path.stem
        )
        test = PictureSet(file["test_images"], file.get("test_labels"), 256, path.stem)
    return train, test


def as_rows(images: np.ndarray) -> np.ndarray:
    """Pictures as rows (n, d) of floats."""
    return np.asarray(images, float).reshape(len(images), -1)


def measure_digits(seed: int, args: Args) -> Row:
    """Small pictures by class, on a CPU."""
    train, test = load_pictures("digits", args.data_root)
    assert train.labels is not None
    steps_per_stage = None
    if args.quick:
        steps_per_stage = 1
    flow = ImageFlow(
        n_pixel_values=train.n_pixel_values,
        steps_per_stage=steps_per_stage,
        random_state=seed,
        device="cpu",
    )
    _, row = timed(lambda: flow.fit(train.images, train.labels))
    svm = fit_svm(train.images, train.labels)
    n = min(MAX_SCORED_DIGITS, len(flow.particles_))
    train_rows = as_rows(train.images)
    test_rows = as_rows(test.images)

    def score(images: np.ndarray, labels: np.ndarray) -> Row:
        samples = as_rows(images)
        sample_distances = distances_to(samples, train_rows)
        test_distances = distances_to(test_rows, train_rows)
        return {
            "sliced": sliced_distance(samples, test_rows),
            "c2st": c2st(samples, test_rows),
            "recognized": svm.score(samples, labels),
            "coverage": coverage(samples[: len(test_rows)], test_rows),
            "nn_ratio": nn_ratio(sample_distances, test_distances),
            "copies": copies(sample_distances, test_distances),
        }

    row |= score(flow.particles_[:n], flow.particle_conditions_[:n])
    images, labels = flow.sample(n, random_state=seed, return_y=True)
    return row | with_prefix("offline_", score(images, labels))


def measure_mnist_on_cpu(quality: str, seed: int, args: Args) -> Row:
    """MNIST by class on a CPU: how long it takes, and how good it is."""
    train, test = load_pictures("mnist", args.data_root, args.quick)
    settings: dict[str, Any] = {"quality": quality}
    if args.quick:
        settings["steps_per_stage"] = 1
    flow = ImageFlow(random_state=seed, device="cpu", **settings)
    _, row = timed(lambda: flow.fit(train.images, train.labels))
    row |= {"particles": len(flow.particles_), "model_mb": file_megabytes(flow)}
    network = classifier("mnist", args, "cpu")
    images = flow.particles_[:MAX_SCORED_MNIST]
    labels = flow.particle_conditions_[:MAX_SCORED_MNIST]
    sample_distances = distances_to(images[:MAX_SEARCHED_MNIST], train.images)
    test_distances = distances_to(test.images[:MAX_SEARCHED_MNIST], train.images)
    train_features = classifier_features("mnist", args, "cpu")
    row |= {
        "fd": frechet(network.features(images), train_features),
        "recognized": network.score(images, labels),
        "nn_ratio": nn_ratio(sample_distances, test_distances),
        "copies": copies(sample_distances, test_distances),
    }
    return row


def file_megabytes(flow: ImageFlow) -> float:
    """The size of the model's file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model")
        flow.save(path)
        return path.stat().st_size / 1e6


def classifier(name: str, args: Args, device: str) -> Classifier:
    """A network that learnt the training pictures; kept in ``--cache``."""
    return _classifier(name, args.data_root, args.quick, args.cache, device)


@cache
def _classifier(
    name: str, root: str | None, quick: bool, cache_folder: str | None, device: str
) -> Classifier:
    train, test = load_pictures(name, root, quick)
    width = None
    if quick:
        epochs = 1
        width = 4
    elif device == "cpu":
        epochs = 2
        width = 8
    elif train.images.ndim == 4:
        epochs = 12
    else:
        epochs = 6
    return train_classifier(
        train, test, device=device, cache=cache_folder, epochs=epochs, width=width
    )


def classifier_features(name: str, args: Args, device: str) -> np.ndarray:
    """The classifier's features of the training pictures."""
    return _classifier_features(name, args.data_root, args.quick, args.cache, device)


@cache
def _classifier_features(
    name: str, root: str | None, quick: bool, cache_folder: str | None, device: str
) -> np.ndarray:
    train, _ = load_pictures(name, root, quick)
    network = _classifier(name, root, quick, cache_folder, device)
    return network.features(train.images)


# --- completed pictures ---------------------------------------------------------------


def measure_completions(
    name: str, part: str, device: str, seed: int, args: Args
) -> Row:
    """The hidden lower halves of held-out pictures, with and without labels."""
    train, test = load_pictures(name, args.data_root, args.quick)
    assert test.labels is not None
    n = N_COMPLETED
    if args.quick:
        n = 50
    images = test.images[:n]
    labels = test.labels[:n]
    recognize = recognizer(train, device, args)
    height = images.shape[1]
    hidden_train = as_rows(train.images[:, height // 2 :])
    hidden_real = as_rows(images[:, height // 2 :])
    real_distances = distances_to(hidden_real, hidden_train, device=device)

    def complete(y: np.ndarray | None, y_train: np.ndarray | None) -> Row:
        flow = ImageFlow(
            quality="draft",
            save_rows=True,
            n_pixel_values=train.n_pixel_values,
            random_state=seed,
            device=device,
        )
        flow.fit(train.images, y_train)
        completions, numbers = timed(
            lambda: flow.inpaint(images, part, y=y, random_state=seed)
        )
        completed = completions[:, 0]
        hidden = as_rows(completed[:, height // 2 :])
        distances = distances_to(hidden, hidden_train, device=device)
        numbers["recognized"] = recognize(completed, labels)
        numbers["sliced"] = sliced_distance(
            hidden / train.n_pixel_values, hidden_real / train.n_pixel_values
        )
        numbers["nn_ratio"] = nn_ratio(distances, real_distances)
        numbers["copies"] = copies(distances, real_distances)
        return numbers

    row = {"recognized_real": recognize(images, labels)}
    row |= complete(None, None)
    row |= with_prefix("by_class_", complete(labels, train.labels))
    return row


def recognizer(
    train: PictureSet, device: str, args: Args
) -> Callable[[np.ndarray, np.ndarray], float]:
    """A function from pictures and labels to the share that a classifier recognizes."""
    if train.name != "digits":
        return classifier(train.name, args, device).score
    assert train.labels is not None
    svm = fit_svm(train.images, train.labels)
    return lambda images, labels: svm.score(images.reshape(len(images), -1), labels)


# --- pictures on a GPU ----------------------------------------------------------------


@cache
def inception(weights: str, device: str) -> Callable[[np.ndarray], np.ndarray]:
    """The features of uint8 pictures in Inception's layer of 768."""
    return inception768(weights, device)


def inception_features(
    name: str, split: str, images: np.ndarray, args: Args
) -> np.ndarray:
    """Inception's features of real pictures, kept in ``--cache``."""
    extract = inception(args.fid_weights, args.device)
    if not args.cache:
        return extract(images)
    path = Path(args.cache, f"inception768-{name}-{split}-{len(images)}.npy")
    if path.exists():
        return np.load(path)
    features = extract(images)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, features)
    return features


def measure_gpu_pictures(name: str, by_class: bool, seed: int, args: Args) -> Row:
    """All defaults; fitted twice, so that the second time nothing is compiled."""
    train, test = load_pictures(name, args.data_root, args.quick)
    y = None
    if by_class:
        y = train.labels
        if y is None:
            raise Skipped(f"{name} has no labels")
    settings: dict[str, Any] = {"random_state": seed, "device": args.device}
    if args.quick:
        settings |= {"steps_per_stage": 1, "n_particles": 60}
    first_flow = ImageFlow(**settings).fit(train.images, y)
    flow, row = timed(lambda: ImageFlow(**settings).fit(train.images, y))
    row["same_bits"] = bool(np.array_equal(first_flow.particles_, flow.particles_))
    row |= {"particles": len(flow.particles_), "model_mb": file_megabytes(flow)}
    n = min(args.samples, len(flow.particles_))
    train_features = inception_features(name, "train", train.images, args)
    test_features = inception_features(name, "test", test.images, args)
    score = partial(
        picture_scores,
        name,
        train_features=train_features,
        test_features=test_features,
        args=args,
    )
    row |= score(flow.particles_[:n], flow.particle_conditions_)
    samples, times = timed(lambda: flow.sample(n, random_state=seed, return_y=by_class))
    images = samples
    labels = None
    if by_class:
        images, labels = samples
    row |= with_prefix("offline_", times)
    return row | with_prefix("offline_", score(images, labels))


def picture_scores(
    name: str,
    images: np.ndarray,
    labels: np.ndarray | None,
    *,
    train_features: np.ndarray,
    test_features: np.ndarray,
    args: Args,
) -> Row:
    """Distances to the training set, the shares recognized and covered, and copies.

    The features are Inception's, of all training and test pictures.
    """
    train, test = load_pictures(name, args.data_root, args.quick)
    device = args.device
    features = inception(args.fid_weights, device)(images)
    m = min(MAX_SCORED_PICTURES, len(test.images), len(images))
    row = {
        "fid768": frechet(features, train_features, device),
        "coverage": coverage(features[:m], test_features[:m], device=device),
        "coverage_floor": coverage(
            train_features[-m:], test_features[:m], device=device
        ),
    }
    if train.labels is not None:
        network = classifier(name, args, device)
        scored = images[:MAX_SCORED_PICTURES]
        network_features = network.features(scored)
        row["fd"] = frechet(
            network_features, classifier_features(name, args, device), device
        )
        if labels is not None:
            row["recognized"] = network.score(scored, labels[:MAX_SCORED_PICTURES])
    searched = images[:MAX_SEARCHED_PICTURES]
    test_images = test.images[:MAX_SEARCHED_PICTURES]
    row |= copy_scores("", searched, train.images, test_images, device)
    row |= copy_scores(
        "_thumbnails",
        thumbnails(searched),
        thumbnails(train.images),
        thumbnails(test_images),
        device,
    )
    row |= copy_scores(
        "_features",
        features[:MAX_SEARCHED_PICTURES],
        train_features,
        test_features[:MAX_SEARCHED_PICTURES],
        device,
    )
    return row


def copy_scores(
    suffix: str, samples: np.ndarray, train: np.ndarray, test: np.ndarray, device: str
) -> Row:
    """Copies and NN ratio in one space, with a suffix to their names."""
    sample_distances = distances_to(samples, train, device=device)
    test_distances = distances_to(test, train, device=device)
    return {
        f"copies{suffix}": copies(sample_distances, test_distances),
        f"nn_ratio{suffix}": nn_ratio(sample_distances, test_distances),
    }


# --- all rows -------------------------------------------------------------------------


def cpu_jobs() -> dict[str, Job]:
    """By name, the quick ones first."""
    jobs: dict[str, Job] = {}
    for n, noise in itertools.product((500, 2_000), (0.05, 0.1)):
        load: RowsOfSeed = partial(moons, n, noise)
        jobs[f"vectors/moons {n} noise {noise}"] = partial(measure_vectors, load)
    sklearn_sets = {
        "wine": "wine",
        "cancer": "breast_cancer",
        "diabetes": "diabetes",
    }
    for title, name in sklearn_sets.items():
        load = partial(sklearn_rows, name, False)
        jobs[f"vectors/{title}"] = partial(measure_vectors, load)
    load = partial(sklearn_rows, "digits", True)
    jobs["vectors/digits by class"] = partial(measure_vectors, load)
    for task, n in itertools.product(
        ("two moons", "Gaussian mixture"), (1_000, 10_000)
    ):
        jobs[f"posteriors/{task} {n}"] = partial(measure_posterior, task, n)
    jobs["completions/digits"] = partial(measure_completions, "digits", "top", "cpu")
    jobs["pictures on a CPU/digits by class"] = measure_digits
    for name in SETS:
        jobs[f"tables/{name}"] = partial(measure_table, name)
    for quality in ("draft", "standard"):
        title = f"pictures on a CPU/MNIST by class {quality}"
        jobs[title] = partial(measure_mnist_on_cpu, quality)
    return jobs


def gpu_jobs(device: str) -> dict[str, Job]:
    """By name."""
    jobs: dict[str, Job] = {}
    labeled_sets = {
        "MNIST": "mnist",
        "Fashion-MNIST": "fashion-mnist",
        "CIFAR-10": "cifar10",
    }
    for title, name in labeled_sets.items():
        by_class = partial(measure_gpu_pictures, name, True)
        without_labels = partial(measure_gpu_pictures, name, False)
        jobs[f"pictures/{title} by class"] = by_class
        jobs[f"pictures/{title}"] = without_labels
    jobs["pictures/faces"] = partial(measure_gpu_pictures, "celeba", False)
    jobs["completions/MNIST"] = partial(measure_completions, "mnist", "top", device)
    return jobs


def stop_row(signal_number: int, frame: object) -> None:
    """What an alarm does: end the row that is being measured."""
    raise TimeoutError("out of time")


def measure(jobs: dict[str, Job], args: Args) -> None:
    """Measure the rows that are not there yet, and write each at once."""
    facts = machine_facts(torch.device(args.device))
    facts["threads"] = str(torch.get_num_threads())
    contents: dict[str, list[Row]] = {"rows": []}
    if args.out.exists():
        contents = json.loads(args.out.read_text(encoding="utf-8"))
    done = {(row["name"], row["seed"]) for row in contents["rows"]}
    names = list(jobs)
    if args.only:
        names = [name for name in jobs if name.startswith(tuple(args.only))]
    signal.signal(signal.SIGALRM, stop_row)
    for name, seed in itertools.product(names, args.seeds):
        if (name, seed) in done:
            continue
        started_at = time.perf_counter()
        try:
            signal.alarm(args.limit)
            numbers = jobs[name](seed, args)
        except (Skipped, TimeoutError) as error:
            print(f"{name}, seed {seed}: skipped, {error}", flush=True)
            continue
        finally:
            signal.alarm(0)
        numbers["took"] = time.perf_counter() - started_at
        row = {"name": name, "seed": seed, **numbers, "about": facts}
        contents["rows"].append(row)
        write_json(args.out, contents)
        shown = {k: round(v, 4) for k, v in numbers.items() if isinstance(v, float)}
        print(name, seed, shown, flush=True)


def write_json(path: Path, contents: dict[str, list[Row]]) -> None:
    """Replace a file at once, so that no run that is stopped leaves half of one."""
    text = json.dumps(contents, indent=1, default=float)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(text + "\n", encoding="utf-8")
    part.replace(path)


def add_measure_arguments(
    parser: argparse.ArgumentParser, seeds: Sequence[int], device: str
) -> None:
    """What `cpu` and `gpu` understand, with different defaults."""
    parser.add_argument(
        "--out", type=Path, required=True, help="the JSON file to write or continue"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=seeds)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="rows that begin so")
    parser.add_argument("--data-root", help="the folder of picture sets")
    parser.add_argument("--csv", help="a folder of tables by table_sets.write_csv")
    parser.add_argument(
        "--cache", help="a folder for networks and features of real pictures"
    )
    parser.add_argument(
        "--fid-weights", help="FID's Inception weights, folded, as .npz"
    )
    parser.add_argument(
        "--samples", type=int, default=50_000, help="pictures that are scored"
    )
    parser.add_argument(
        "--limit", type=int, default=0, help="seconds a row may take; 0 is no limit"
    )
    parser.add_argument(
        "--quick", action="store_true", help="few of all, to see that it runs"
    )
    parser.add_argument("--device", default=device)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, or print the tables of files that were written."""
    parser = script_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    add_measure_arguments(commands.add_parser("cpu"), seeds=[0, 1, 2], device="cpu")
    add_measure_arguments(commands.add_parser("gpu"), seeds=[7], device="cuda")
    table_parser = commands.add_parser("table")
    table_parser.add_argument("files", type=Path, nargs="+")
    args = parser.parse_args(arguments)
    if args.command == "table":
        print(side_by_side(args.files))
    elif args.command == "cpu":
        measure(cpu_jobs(), args)
    else:
        measure(gpu_jobs(args.device), args)


# --- files side by side ---------------------------------------------------------------

SHOWN = {  # the numbers of each kind of row that a table has; the file has all
    "vectors": (
        "sliced",
        "c2st",
        "nn_ratio",
        "copies",
        "recognized",
        "offline_sliced",
        "offline_c2st",
        "offline_copies",
        "cpu_seconds",
    ),
    "posteriors": ("c2st", "cpu_seconds"),
    "tables": (
        "detection",
        "shape",
        "trend",
        "utility",
        "copies",
        "nn_ratio",
        "cpu_seconds",
    ),
    "completions": (
        "recognized",
        "by_class_recognized",
        "sliced",
        "nn_ratio",
        "copies",
        "cpu_seconds",
        "by_class_cpu_seconds",
    ),
    "pictures on a CPU": (
        "sliced",
        "c2st",
        "fd",
        "recognized",
        "coverage",
        "nn_ratio",
        "copies",
        "cpu_seconds",
    ),
    "pictures": (
        "seconds",
        "fid768",
        "fd",
        "recognized",
        "coverage",
        "copies",
        "copies_thumbnails",
        "copies_features",
        "offline_fid768",
        "offline_coverage",
        "model_mb",
    ),
}
LOWER_IS_BETTER = (  # the beginnings of names; of all others more is better
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
# What a number that was measured with one seed may vary by, as a share of it.
ONE_SEED_SPREAD = 0.05
# Smaller losses are no losses: a table shows three digits.
MIN_LOSS = 0.005


def side_by_side(files: Sequence[Path]) -> str:
    """A Markdown table for every kind of row, and what got worse.

    Numbers are means over seeds ± their standard deviation.
    """
    labels = [file.stem for file in files]
    rows_of_files = []
    for file in files:
        rows_of_files.append(json.loads(file.read_text(encoding="utf-8"))["rows"])
    sections = []
    for kind in SHOWN:
        lines = kind_lines(kind, labels, rows_of_files)
        if lines:
            header = ["set", "seeds", *SHOWN[kind]]
            table = table_without_empty_columns(header, lines)
            sections.append(f"### {kind}\n\n{table}\n")
    if len(files) > 1:
        worse = worse_numbers(rows_of_files[0], rows_of_files[-1]) or ["nothing"]
        sections.append(f"Worse beyond the noise: {', '.join(worse)}.\n")
    for label, rows in zip(labels, rows_of_files, strict=True):
        for facts in distinct_facts(rows):
            sections.append(f"- {label}: {facts}")
    return "\n".join(sections)


def kind_lines(
    kind: str, labels: Sequence[str], rows_of_files: Sequence[Sequence[Row]]
) -> list[list[str]]:
    """The lines of a kind's table: each row as every file has it."""
    all_rows = list(itertools.chain.from_iterable(rows_of_files))
    lines = []
    for name in row_names(all_rows, kind):
        title = name.partition("/")[2]
        for label, rows in zip(labels, rows_of_files, strict=True):
            seeds = rows_named(rows, name)
            if seeds:
                cells = [format_mean(values_of(seeds, c)) for c in SHOWN[kind]]
                lines.append([f"{title}, {label}", str(len(seeds)), *cells])
    return lines


def worse_numbers(before: Sequence[Row], after: Sequence[Row]) -> list[str]:
    """The rows and columns that got worse."""
    worse = []
    for kind, columns in SHOWN.items():
        for name in row_names(before, kind):
            old_rows = rows_named(before, name)
            new_rows = rows_named(after, name)
            for column in columns:
                if is_worse(old_rows, new_rows, column):
                    worse.append(f"{name} {column}")
    return worse


def row_names(rows: Sequence[Row], kind: str) -> list[str]:
    """The names of the rows of a kind, each once."""
    names = [row["name"] for row in rows if row["name"].startswith(kind + "/")]
    return list(dict.fromkeys(names))


def rows_named(rows: Sequence[Row], name: str) -> list[Row]:
    """The rows with a name, one for each seed."""
    return [row for row in rows if row["name"] == name]


def values_of(rows: Sequence[Row], column: str) -> list[float]:
    """The numbers of a column, of the rows that have it."""
    return [row[column] for row in rows if column in row]


def table_without_empty_columns(
    header: Sequence[str], lines: Sequence[Sequence[str]]
) -> str:
    """A Markdown table of the columns in which any line has something."""
    used = [i for i in range(len(header)) if any(line[i] for line in lines)]
    used_header = [header[i] for i in used]
    used_lines = [[line[i] for i in used] for line in lines]
    return markdown_table(used_header, used_lines)


def distinct_facts(rows: Sequence[Row]) -> list[str]:
    """The machines and versions that rows were measured with, each once."""
    facts: dict[str, None] = {}
    for row in rows:
        facts[", ".join(f"{key} {value}" for key, value in row["about"].items())] = None
    return list(facts)


def is_worse(before: Sequence[Row], after: Sequence[Row], column: str) -> bool:
    """Whether a number got worse by more than twice what seeds make it vary."""
    old = values_of(before, column)
    new = values_of(after, column)
    if not old or not new:
        return False
    lower_is_better = column.rpartition("offline_")[2].startswith(LOWER_IS_BETTER)
    if column.endswith("nn_ratio"):  # 1 is ideal; 2 is as bad as a half
        lower_is_better = True
        old = [abs(np.log(value)) + 1 for value in old]
        new = [abs(np.log(value)) + 1 for value in new]
    ideal = ideal_value(column)
    if ideal is not None:  # what is better than ideal is not better
        old = [max(value, ideal) for value in old]
        new = [max(value, ideal) for value in new]
    loss = float(np.mean(new) - np.mean(old))
    if not lower_is_better:
        loss = -loss
    if len(old) > 1 and len(new) > 1:
        spread = float(max(np.std(old), np.std(new)))
    else:
        spread = ONE_SEED_SPREAD * abs(float(np.mean(old)))
    return loss > max(2 * spread, MIN_LOSS)


def ideal_value(column: str) -> float | None:
    """The value of a number that real rows have; None if there is none."""
    if "copies" in column:
        return 0.01
    if column.endswith(("c2st", "detection")):
        return 0.5
    return None


def format_mean(values: Sequence[float]) -> str:
    """The mean ± the standard deviation; of truth values, whether all are true."""
    if not values:
        return ""
    if isinstance(values[0], bool):
        if all(values):
            return "yes"
        return "no"
    mean = float(np.mean(values))
    if len(values) == 1:
        return f"{mean:.3g}"
    return f"{mean:.3g} ± {np.std(values):.1g}"


if __name__ == "__main__":
    main()
