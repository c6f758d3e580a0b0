"""Completions of test pictures: are they like real ones, recognized, and new?

    python benchmarks/completions.py --data-root DATA --device cuda
    python benchmarks/completions.py --sets digits

Known is what the paper's figure 5 shows: the top half (digits, MNIST), the left half
(Fashion-MNIST, CIFAR-10), or all but the middle (CelebA).

real        the test pictures themselves: the floor of every number
copied      the hidden part of the training picture whose known part is nearest
inpaint     ``inpaint(X, known)`` of a model that keeps its pictures; with labels, if
            they are given
known       a flow of the hidden pixels, ``ImageFlow(known=…)``

FD, recognized, NN ratio and copies are those of `judge.py`, the last two of hidden
parts.
speckle     mean |Laplacian| of hidden parts over that of real ones: below 1 is blurred,
            above 1 noisy
seam        mean step from a known to a hidden pixel over that of real pictures: 1 is
            ideal
seconds     of fit and of all completions
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from judge import Judge, load_split, slice_pictures
from report import (
    Row,
    add_device_argument,
    command_line,
    script_parser,
    table_of_rows,
    write_report,
)
from scores import copies, distances_to, frechet, nn_ratio

from sliceflow import ImageFlow, datasets
from sliceflow.datasets import PictureSet
from sliceflow.devices import resolve_device
from sliceflow.estimators.pictures.known_parts import KNOWN_PARTS

HEADER = (
    "set",
    "method",
    "FD",
    "recognized",
    "NN ratio",
    "copies",
    "speckle",
    "seam",
    "seconds",
)
PARTS_OF_SETS = {  # by set: the part that is known
    "digits": "top",
    "mnist": "top",
    "fashion-mnist": "left",
    "cifar10": "left",
    "celeba": "border",
}
SEARCH_BLOCK = 200  # pictures whose distances to all others are computed at once


def copy_nearest(X: np.ndarray, known: np.ndarray, train: np.ndarray) -> np.ndarray:
    """X with the hidden part of the training picture whose known part is nearest."""
    known_parts = torch.from_numpy(X[:, known].reshape(len(X), -1)).float()
    train_parts = torch.from_numpy(train[:, known].reshape(len(train), -1)).float()
    nearest = []
    for block in known_parts.split(SEARCH_BLOCK):
        nearest.append(torch.cdist(block, train_parts).argmin(1))
    rows = torch.cat(nearest).numpy()
    completed = X.copy()
    completed[:, ~known] = train[rows][:, ~known]
    return completed


def methods(
    train: PictureSet, test: PictureSet, args: argparse.Namespace
) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    """The name of every method, and a call that completes the test pictures."""
    part = PARTS_OF_SETS[train.name]
    known = KNOWN_PARTS[part](*train.images.shape[1:3])
    settings: dict[str, Any] = {
        "n_pixel_values": train.n_pixel_values,
        "random_state": args.seed,
        "device": args.device,
        "steps_per_stage": args.steps_per_stage,
    }

    def inpaint(y: np.ndarray | None, y_train: np.ndarray | None) -> np.ndarray:
        flow = ImageFlow(save_rows=True, **settings).fit(train.images, y_train)
        completed = flow.inpaint(test.images, part, y=y, random_state=args.seed)
        return np.asarray(completed[:, 0])

    def flow_of_hidden() -> np.ndarray:
        flow = ImageFlow(known=part, **settings).fit(train.images)
        completed = flow.inpaint(test.images, random_state=args.seed)
        return np.asarray(completed[:, 0])

    yield "real", lambda: test.images
    yield "copied", lambda: copy_nearest(test.images, known, train.images)
    yield "inpaint", lambda: inpaint(None, None)
    if train.labels is not None:
        yield "inpaint, labels", lambda: inpaint(test.labels, train.labels)
    yield "known", flow_of_hidden


def speckle(images: np.ndarray, hidden: np.ndarray) -> float:
    """Mean |Laplacian| at pixels that are hidden with all of their four neighbors."""
    x = images.astype(np.float32)
    laplacian = (
        4 * x[:, 1:-1, 1:-1]
        - x[:, :-2, 1:-1]
        - x[:, 2:, 1:-1]
        - x[:, 1:-1, :-2]
        - x[:, 1:-1, 2:]
    )
    inside = hidden[1:-1, 1:-1].copy()
    inside &= hidden[:-2, 1:-1]
    inside &= hidden[2:, 1:-1]
    inside &= hidden[1:-1, :-2]
    inside &= hidden[1:-1, 2:]
    return float(np.abs(laplacian[:, inside]).mean())


def seam(images: np.ndarray, hidden: np.ndarray) -> float:
    """Mean difference of neighboring pixels of which one is hidden."""
    x = images.astype(np.float32)
    down = np.abs(np.diff(x, axis=1))[:, hidden[1:] != hidden[:-1]]
    right = np.abs(np.diff(x, axis=2))[:, hidden[:, 1:] != hidden[:, :-1]]
    steps = np.hstack((down.reshape(len(x), -1), right.reshape(len(x), -1)))
    return float(steps.mean())


def measure_set(name: str, args: argparse.Namespace) -> Iterator[Row]:
    """The rows of a set, each as soon as it is measured.

    Half of the test pictures at most are completed; FD is measured to the others.
    """
    train, test = load_split(name, args.data_root, args.train)
    n = min(args.n, len(test.images) // 2)
    completed_test = slice_pictures(test, stop=n)
    other_test = slice_pictures(test, start=n)
    cache = args.out.parent / "networks"
    judge = Judge(train, other_test, args.device, cache=cache, epochs=args.epochs)
    test_features = judge.network.features(other_test.images)
    hidden = ~KNOWN_PARTS[PARTS_OF_SETS[name]](*train.images.shape[1:3])
    hidden_train = train.images[:, hidden]
    hidden_test = completed_test.images[:, hidden]
    real_distances = distances_to(hidden_test, hidden_train, device=args.device)
    real_speckle = speckle(completed_test.images, hidden)
    real_seam = seam(completed_test.images, hidden)
    for method, complete in methods(train, completed_test, args):
        started_at = time.perf_counter()
        images = complete()
        distances = distances_to(images[:, hidden], hidden_train, device=args.device)
        recognized = None
        if completed_test.labels is not None:
            recognized = judge.network.score(images, completed_test.labels)
        yield {
            "set": name,
            "method": method,
            "FD": frechet(judge.network.features(images), test_features),
            "recognized": recognized,
            "NN ratio": nn_ratio(distances, real_distances),
            "copies": copies(distances, real_distances),
            "speckle": speckle(images, hidden) / real_speckle,
            "seam": seam(images, hidden) / real_seam,
            "seconds": time.perf_counter() - started_at,
        }


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    """Complete the test pictures of every set by every method."""
    parser = script_parser(__doc__)
    without_digits = [name for name in PARTS_OF_SETS if name != "digits"]
    parser.add_argument(
        "--sets",
        nargs="+",
        choices=tuple(PARTS_OF_SETS),
        default=without_digits,
        metavar="SET",
    )
    parser.add_argument(
        "--data-root", type=Path, help="folder of the sets; else SLICEFLOW_DATA"
    )
    parser.add_argument(
        "--n", type=int, default=1_000, help="test pictures to complete"
    )
    parser.add_argument(
        "--train", type=int, help="pictures to learn from; all unless set"
    )
    parser.add_argument("--steps-per-stage", type=int, default=8, help="of the flow")
    parser.add_argument("--epochs", type=int, help="of the network that judges")
    add_device_argument(parser)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/completions"))
    args = parser.parse_args(arguments)
    device = resolve_device(args.device)
    args.device = str(device)
    command = command_line("benchmarks/completions.py", arguments)
    rows: list[Row] = []
    for name in args.sets:
        try:
            for row in measure_set(name, args):
                rows.append(row)
                text = table_of_rows(HEADER, rows)
                write_report(args.out, text, rows, device, command)
        except datasets.MissingSetError as error:
            print(f"skipped: {error}", flush=True)
    return rows


if __name__ == "__main__":
    main()
