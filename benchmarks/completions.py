"""Completions of test pictures: are they like real ones, are they recognised, are they
new?

    python benchmarks/completions.py --data-root DATA --device cuda
    python benchmarks/completions.py --sets digits

Known is what the paper's figure 5 shows: the top half (digits, MNIST), the left half
(Fashion-MNIST, CIFAR-10), or all but the middle (CelebA).

real        the test pictures themselves: the floor of every number
copied      the hidden part of the training picture whose known part is nearest
inpaint     ``inpaint(X, mask)`` of a model that keeps its pictures; with labels, if
            they are given
observed    a flow of the hidden pixels, ``ImageFlow(observed=…)``

FD, recognised, NN ratio and copies are those of `judge.py`, the last two of hidden
parts.
speckle     mean |Laplacian| of hidden parts over that of real ones: below 1 is blurred,
            above 1 noisy
seam        mean step from a known to a hidden pixel over that of real pictures: 1 is
            ideal
seconds     of fit and of all completions
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from judge import Judge, first, load_split
from report import keep, number, table
from scores import copies, distances_to, frechet, nn_ratio

from sliceflow import ImageFlow, datasets
from sliceflow.datasets import Pictures
from sliceflow.devices import resolve_device
from sliceflow.spaces.pictures.layout import MASKS

HEADER = (
    "set",
    "method",
    "FD",
    "recognised",
    "NN ratio",
    "copies",
    "speckle",
    "seam",
    "seconds",
)
KNOWN = {
    "digits": "top",
    "mnist": "top",
    "fashion-mnist": "left",
    "cifar10": "left",
    "celeba": "border",
}


def copied(X: np.ndarray, known: np.ndarray, like: np.ndarray) -> np.ndarray:
    """X with the hidden part of the picture whose known part is nearest."""
    given = torch.from_numpy(X[:, known].reshape(len(X), -1)).float()
    theirs = torch.from_numpy(like[:, known].reshape(len(like), -1)).float()
    near = torch.cat(
        [torch.cdist(part, theirs).argmin(1) for part in given.split(200)]
    ).numpy()
    out = X.copy()
    out[:, ~known] = like[near][:, ~known]
    return out


def methods(
    train: Pictures, test: Pictures, args: argparse.Namespace
) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    """The name of every method, and a call that completes the test pictures."""
    mask = KNOWN[train.name]
    x = test.images
    settings: dict[str, Any] = {
        "n_pixel_values": train.n_pixel_values,
        "random_state": args.seed,
        "device": args.device,
        "quality": args.quality,
    }

    def inpaint(y: np.ndarray | None, like_y: np.ndarray | None) -> np.ndarray:
        flow = ImageFlow(keep_rows=True, **settings).fit(train.images, like_y)
        return np.asarray(flow.inpaint(x, mask, y=y, random_state=args.seed)[:, 0])

    def observed() -> np.ndarray:
        flow = ImageFlow(observed=mask, **settings).fit(train.images)
        return np.asarray(flow.inpaint(x, random_state=args.seed)[:, 0])

    yield "real", lambda: x
    yield "copied", lambda: copied(x, MASKS[mask](*x.shape[1:3]), train.images)
    yield "inpaint", lambda: inpaint(None, None)
    if train.labels is not None:
        yield "inpaint, labels", lambda: inpaint(test.labels, train.labels)
    yield "observed", observed


def speckle(images: np.ndarray, hidden: np.ndarray) -> float:
    """Mean |Laplacian| at pixels that are hidden with all of their four neighbours."""
    x = images.astype(np.float32)
    rough = (
        4 * x[:, 1:-1, 1:-1]
        - x[:, :-2, 1:-1]
        - x[:, 2:, 1:-1]
        - x[:, 1:-1, :-2]
        - x[:, 1:-1, 2:]
    )
    inside = hidden[1:-1, 1:-1] & hidden[:-2, 1:-1] & hidden[2:, 1:-1]
    inside &= hidden[1:-1, :-2] & hidden[1:-1, 2:]
    return float(np.abs(rough[:, inside]).mean())


def seam(images: np.ndarray, hidden: np.ndarray) -> float:
    """Mean difference of neighbouring pixels of which one is hidden."""
    x = images.astype(np.float32)
    down = np.abs(np.diff(x, axis=1))[:, hidden[1:] != hidden[:-1]]
    right = np.abs(np.diff(x, axis=2))[:, hidden[:, 1:] != hidden[:, :-1]]
    return float(
        np.concatenate([a.reshape(len(a), -1) for a in (down, right)], 1).mean()
    )


def rows_of(name: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of a set as they come."""
    train, test = load_split(name, args.data_root, args.train)
    n = min(args.n, len(test.images) // 2)
    given = first(test, n)
    others = first(test, None, n)
    judge = Judge(
        train,
        others,
        args.device,
        cache=args.out.parent / "networks",
        epochs=args.epochs,
    )
    features = judge.network.features(others.images)
    hidden = ~MASKS[KNOWN[name]](*train.images.shape[1:3])
    theirs = train.images[:, hidden]
    usual = distances_to(given.images[:, hidden], theirs, device=args.device)
    for method, work in methods(train, given, args):
        began = time.perf_counter()
        done = work()
        near = distances_to(done[:, hidden], theirs, device=args.device)
        yield {
            "set": name,
            "method": method,
            "FD": frechet(judge.network.features(done), features),
            "recognised": None
            if given.labels is None
            else judge.network.score(done, given.labels),
            "NN ratio": nn_ratio(near, usual),
            "copies": copies(near, usual),
            "speckle": speckle(done, hidden) / speckle(given.images, hidden),
            "seam": seam(done, hidden) / seam(given.images, hidden),
            "seconds": time.perf_counter() - began,
        }


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Complete the test pictures of every set in every way."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    usual = [name for name in KNOWN if name != "digits"]
    parser.add_argument(
        "--sets", nargs="+", choices=tuple(KNOWN), default=usual, metavar="SET"
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
    parser.add_argument("--quality", type=int, default=8, help="steps per stage")
    parser.add_argument("--epochs", type=int, help="of the network that judges")
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda, or auto: a GPU if there is one"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/completions"))
    args = parser.parse_args(arguments)
    args.device = str(resolve_device(args.device))
    command = shlex.join(["python", "benchmarks/completions.py", *arguments])
    rows: list[dict[str, Any]] = []
    for name in args.sets:
        try:
            for row in rows_of(name, args):
                rows.append(row)
                text = table(
                    HEADER, [[number(row[key]) for key in HEADER] for row in rows]
                )
                keep(args.out, text, rows, torch.device(args.device), command)
        except datasets.MissingSetError as error:
            print(f"skipped: {error}", flush=True)
    return rows


if __name__ == "__main__":
    main()
