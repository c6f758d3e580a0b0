"""Completions of test pictures: are they like real ones, are they recognised, are they new?

    python benchmarks/completions.py --data-root DATA
    python benchmarks/completions.py --sets celeba --celeba faces.npy --n 500 --out runs/completions
    python benchmarks/completions.py --sets digits --quick

Known is what the paper's figure 5 shows: the top half (digits, MNIST), the left half (Fashion-MNIST,
CIFAR-10), or all but the middle (CelebA).

real        the test pictures themselves: the floor of every number
copy        the hidden part of the training picture whose known part is nearest
flow        ``ImageFlow(observed=…)``, fitted, then `inpaint`
complete    `ImageFlow.inpaint(mask=…)` of a model that keeps its pictures: no steps
labels      the same, if the labels are given

FD          Fréchet distance of completed pictures to other test pictures, in the features of a network
            that learnt the training pictures; biased upwards by few pictures, as *real* shows
recognised  share that this network takes for what they are
NN ratio    of hidden parts: 1 is ideal, near 0 is copying
copies      of hidden parts: share nearer to a training picture than 1 % of real ones are; .01 is ideal
speckle     mean |Laplacian| of hidden parts over that of real ones: below 1 is blurred, above 1 noisy
seam        mean step from a known to a hidden pixel over that of real pictures; 1 is ideal
seconds     fit and all completions; the kernels were compiled before

Writes completions.md and completions.json after every row, and a sheet of the first pictures of each
set. CelebA's last tenth is held out. A set whose files are missing is skipped, and that is said.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from report import keep, table

from sliceflow import ImageFlow, datasets, metrics
from sliceflow.devices import resolve_device
from sliceflow.engine.random import Seed
from sliceflow.spaces.pictures.inpainting import complete_pictures
from sliceflow.spaces.pictures.layout import MASKS

HEADER = ("set", "method", "FD", "recognised", "NN ratio", "copies", "speckle", "seam", "seconds")
KNOWN = {  # of each set
    "digits": "top",
    "mnist": "top",
    "fashion-mnist": "left",
    "cifar10": "left",
    "celeba": "border",
}
STEPS = {"digits": 50, "mnist": 50, "fashion-mnist": 50, "cifar10": 30, "celeba": 30}  # of the flow
EPOCHS = {"cifar10": 12, "celeba": 4}  # of the network
QUICK = {"n": 40, "train": 400, "steps": 1, "width": 4}
SHOWN = 16  # pictures of a sheet


def flat(images: np.ndarray) -> np.ndarray:
    """Pictures as rows."""
    return images.reshape(len(images), -1)


def read(name: str, args: argparse.Namespace) -> tuple[datasets.Pictures, datasets.Pictures]:
    """Pictures to learn from and test pictures."""
    if name == "celeba":
        faces = datasets.load(args.celeba or name, root=args.data_root).images
        held_out = len(faces) // 10
        train, test = (
            datasets.Pictures(part, None, 256, name) for part in (faces[:-held_out], faces[-held_out:])
        )
    else:
        train, test = (datasets.load(name, split, args.data_root) for split in ("train", "test"))
    return part(train, 0, args.train), test


def part(pictures: datasets.Pictures, first: int, last: int | None) -> datasets.Pictures:
    """Some of the pictures."""
    labels = None if pictures.labels is None else pictures.labels[first:last]
    images = np.ascontiguousarray(pictures.images[first:last])
    return datasets.Pictures(images, labels, pictures.n_pixel_values, pictures.name)


def copied(X: np.ndarray, known: np.ndarray, like: np.ndarray, device: str) -> np.ndarray:
    """X with the hidden part of the picture whose known part is nearest."""
    _, index = metrics.nearest(flat(X[:, known]), flat(like[:, known]), device=device)
    out = X.copy()
    out[:, ~known] = like[index[:, 0]][:, ~known]
    return out


def methods(
    train: datasets.Pictures, test: datasets.Pictures, args: argparse.Namespace
) -> Iterator[tuple[str, np.ndarray, float]]:
    """Name, completions and seconds of every method."""
    mask = KNOWN[train.name]
    known = MASKS[mask](*train.images.shape[1:3])
    options = {"n_pixel_values": train.n_pixel_values, "random_state": args.seed}
    by_pictures: Any = {"n_pixel_values": train.n_pixel_values, "seed": Seed(args.seed)}
    yield "real", test.images, 0.0
    began = time.perf_counter()
    done = copied(test.images, known, train.images, args.device)
    yield "copy", done, time.perf_counter() - began
    began = time.perf_counter()
    done = complete_pictures(test.images, known, train.images, **by_pictures)[:, 0]
    yield "complete", done, time.perf_counter() - began
    if train.labels is not None:
        labels = {"y": test.labels, "like_y": train.labels}
        began = time.perf_counter()
        done = complete_pictures(test.images, known, train.images, **labels, **by_pictures)[:, 0]
        yield "labels", done, time.perf_counter() - began
    if args.no_flow:
        return
    steps = args.steps or STEPS[train.name]
    settings = {"observed": mask, "device": args.device, **options}
    if resolve_device(args.device).type == "cuda":  # compile the kernels
        warm = ImageFlow(n_particles=8_000, quality=1, **settings).fit(train.images[:8_000])
        warm.inpaint(test.images[:2], random_state=0)
    began = time.perf_counter()
    flow = ImageFlow(n_particles=args.particles, quality=steps, **settings).fit(train.images)
    done = flow.inpaint(test.images, random_state=args.seed)[:, 0]
    yield "flow", done, time.perf_counter() - began


def speckle(images: np.ndarray, hidden: np.ndarray) -> float:
    """Mean |Laplacian| at pixels that are hidden with all of their four neighbours."""
    x = images.astype(np.float32)
    rough = 4 * x[:, 1:-1, 1:-1] - x[:, :-2, 1:-1] - x[:, 2:, 1:-1] - x[:, 1:-1, :-2] - x[:, 1:-1, 2:]
    inside = hidden[1:-1, 1:-1] & hidden[:-2, 1:-1] & hidden[2:, 1:-1]
    inside &= hidden[1:-1, :-2] & hidden[1:-1, 2:]
    return float(np.abs(rough[:, inside]).mean())


def seam(images: np.ndarray, hidden: np.ndarray) -> float:
    """Mean difference of neighbouring pixels of which one is hidden."""
    x = images.astype(np.float32)
    down = np.abs(np.diff(x, axis=1))[:, hidden[1:] != hidden[:-1]]
    right = np.abs(np.diff(x, axis=2))[:, hidden[:, 1:] != hidden[:, :-1]]
    return float(np.concatenate((flat(down), flat(right)), 1).mean())


def rows_of(
    train: datasets.Pictures,
    test: datasets.Pictures,
    args: argparse.Namespace,
    shown: dict[str, np.ndarray],
) -> Iterator[dict[str, Any]]:
    """The rows of a set as they come; `shown` receives the first completions."""
    n = min(args.n, len(test.images) // 2)
    given, others = part(test, 0, n), part(test, n, None)
    small = {"epochs": 1 if args.quick else EPOCHS.get(train.name), "width": args.width}
    network = metrics.train_classifier(
        train.images,
        train.labels,
        others.images,
        others.labels,
        n_pixel_values=train.n_pixel_values,
        device=args.device,
        **small,
    )
    features = network.features(others.images)
    hidden = ~MASKS[KNOWN[train.name]](*train.images.shape[1:3])
    parts = [flat(images[:, hidden]) for images in (train.images, given.images)]
    for method, done, seconds in methods(train, given, args):
        shown[method] = done[:SHOWN]
        row: dict[str, Any] = {"set": train.name, "method": method}
        row["FD"] = metrics.frechet_distance(network.features(done), features)
        row["recognised"] = None if given.labels is None else network.score(done, given.labels)
        ours = flat(done[:, hidden])
        row["NN ratio"] = metrics.nn_ratio(ours, *parts, device=args.device)
        row["copies"] = metrics.copies(ours, *parts, device=args.device)
        row["speckle"] = speckle(done, hidden) / speckle(given.images, hidden)
        row["seam"] = seam(done, hidden) / seam(given.images, hidden)
        row["seconds"] = seconds
        row |= {"pictures": n, "learnt from": len(train.images), "accuracy": network.accuracy}
        yield row


def sheet(path: Path, shown: dict[str, np.ndarray], hidden: np.ndarray, top: int) -> None:
    """What is known of the first pictures, then a row of each method."""
    known = shown["real"].copy()
    known[:, hidden] = top // 2
    lines = [np.concatenate(list(line), 1) for line in (known, *shown.values())]
    page = np.concatenate(lines, 0).astype(np.float32) * (255 / top)
    Image.fromarray(page.round().astype(np.uint8)).save(path)


def written(rows: Sequence[dict[str, Any]]) -> str:
    """The table."""
    cells = [
        [
            "" if row[key] is None else row[key] if i < 2 else f"{row[key]:.3g}"
            for i, key in enumerate(HEADER)
        ]
        for row in rows
    ]
    return table(HEADER, cells)


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Complete the test pictures of every set in every way."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    usual = [name for name in KNOWN if name != "digits"]
    parser.add_argument("--sets", nargs="+", choices=tuple(KNOWN), default=usual, metavar="SET")
    parser.add_argument("--data-root", type=Path, help="folder of the sets; else SLICEFLOW_DATA")
    parser.add_argument("--celeba", type=Path, help="faces as an .npy file (n, h, w, 3)")
    parser.add_argument("--n", type=int, default=1_000, help="test pictures to complete")
    parser.add_argument("--train", type=int, help="pictures to learn from; all unless set")
    parser.add_argument("--steps", type=int, help="of the flow, per stage; by the set unless set")
    parser.add_argument("--particles", type=int, help="of the flow; its default unless set")
    parser.add_argument(
        "--width", type=int, help="of the network's first layer; its default unless set"
    )
    parser.add_argument("--no-flow", action="store_true", help="leave out the flow: slow on a CPU")
    parser.add_argument("--quick", action="store_true", help="few of all, to see that it runs")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/completions"))
    args = parser.parse_args(arguments)
    if args.quick:
        vars(args).update(QUICK)
    args.out.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["python", "benchmarks/completions.py", *arguments])
    rows: list[dict[str, Any]] = []
    for name in args.sets:
        try:
            train, test = read(name, args)
        except datasets.MissingSetError as error:
            print(f"skipped: {error}", flush=True)
            continue
        shown: dict[str, np.ndarray] = {}
        hidden = ~MASKS[KNOWN[name]](*train.images.shape[1:3])
        for row in rows_of(train, test, args, shown):
            rows.append(row)
            sheet(args.out / f"{name}.png", shown, hidden, train.n_pixel_values - 1)
            keep(
                args.out / "completions",
                f"{written(rows)}\n\n",
                rows,
                resolve_device(args.device),
                command,
            )
    return rows


if __name__ == "__main__":
    main()
