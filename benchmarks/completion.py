"""Completions of half pictures: what they are recognised as, and whether they are new.

    python benchmarks/completion.py digits
    python benchmarks/completion.py mnist --data-root DATA --rows 15000 --queries 300

copy        the hidden part of one of the 30 pictures whose known part is nearest
complete    `sliceflow.complete`; then the same with the labels given
flow        a flow fitted with observed=, with --flow QUALITY

recognised  share of completions that a support vector machine, trained on the training pictures, takes
            for what they are; *real* is its share on the whole test pictures
NN ratio    of hidden parts: 1 is ideal, near 0 is copying
forest      how often a random forest tells the hidden parts from real ones: ½ is ideal
seconds     of all completions; learning included
Writes completion.md, completion.json, and completions of the first pictures as completion.png.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from report import keep, table
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import pairwise_distances
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

from sliceflow import ImageFlow, complete, datasets, metrics
from sliceflow.devices import resolve_device
from sliceflow.pictures.layout import MASKS

HEADER = ("method", "recognised", "real", "NN ratio", "forest", "seconds")
NEAREST = 30


def flat(images: np.ndarray) -> np.ndarray:
    """Pictures as rows of floats."""
    return images.reshape(len(images), -1).astype(np.float32)


def copied(X: np.ndarray, known: np.ndarray, like: np.ndarray, seed: int) -> np.ndarray:
    """The hidden part of a picture that is near."""
    apart = pairwise_distances(flat(X[:, known]), flat(like[:, known]))
    chosen = np.random.default_rng(seed).integers(0, NEAREST, len(X))
    near = apart.argpartition(NEAREST, axis=1)[np.arange(len(X)), chosen]
    return np.where(known.reshape(known.shape + (1,) * (X.ndim - 3)), X, like[near])


def methods(args: argparse.Namespace, train: Any, test: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Names and completions."""
    known = MASKS[args.known](*train.images.shape[1:3])
    options = {"n_pixel_values": train.n_pixel_values, "random_state": args.seed}
    yield "copy", copied(test.images, known, train.images, args.seed)
    yield "complete", complete(test.images, known, train.images, **options)[:, 0]
    labels = {"y": test.labels, "like_y": train.labels}
    yield (
        "complete, labels given",
        complete(test.images, known, train.images, **labels, **options)[:, 0],
    )
    if args.flow:
        flow = ImageFlow(quality=args.flow, observed=args.known, device=args.device, **options)
        yield (
            f"flow, {args.flow} steps",
            flow.fit(train.images).inpaint(test.images, random_state=0)[:, 0],
        )


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Complete the test pictures in every way."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=("digits", "mnist", "fashion-mnist", "cifar10"))
    parser.add_argument("--data-root", type=Path, help="folder of the sets; else SLICEFLOW_DATA")
    parser.add_argument("--known", choices=tuple(MASKS), default="top")
    parser.add_argument("--rows", type=int, help="pictures to learn from; default: all")
    parser.add_argument("--queries", type=int, default=300, help="test pictures to complete")
    parser.add_argument("--flow", type=int, help="also fit a flow, with so many steps per stage")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/completion"))
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    whole = [datasets.load(args.name, split, args.data_root) for split in ("train", "test")]
    parts = [slice(0, args.rows), slice(0, args.queries)]
    train, test = (
        datasets.Pictures(w.images[p], w.labels[p], w.n_pixel_values, w.name)
        for w, p in zip(whole, parts, strict=True)
    )
    others = whole[1].images[args.queries : 2 * args.queries]
    judge = make_pipeline(PCA(min(50, flat(train.images).shape[1]), random_state=0), SVC(C=10))
    judge.fit(flat(train.images), train.labels)
    real = float((judge.predict(flat(test.images)) == test.labels).mean())
    known = MASKS[args.known](*train.images.shape[1:3])
    rows, shown = [], [test.images[:20]]
    made, began = methods(args, train, test), time.perf_counter()
    for name, done in made:
        seconds = time.perf_counter() - began
        hidden = [flat(images[:, ~known]) for images in (done, train.images, test.images, others)]
        labels = np.repeat([0, 1], [len(hidden[0]), len(hidden[3])])
        forest = RandomForestClassifier(200, random_state=0)
        rows.append(
            {
                "method": name,
                "recognised": float((judge.predict(flat(done)) == test.labels).mean()),
                "real": real,
                "NN ratio": metrics.nn_ratio(*hidden[:3], device=args.device),
                "forest": float(
                    cross_val_score(forest, np.r_[hidden[0], hidden[3]], labels, cv=5).mean()
                ),
                "seconds": seconds,
            }
        )
        shown.append(done[:20])
        print(written(rows[-1:]), flush=True)
        began = time.perf_counter()
    page = np.concatenate([np.concatenate(list(line), 1) for line in shown], 0)
    Image.fromarray((page * (255 // (train.n_pixel_values - 1))).astype(np.uint8)).save(
        args.out / "completion.png"
    )
    command = " ".join(["python benchmarks/completion.py", *arguments])
    keep(args.out / "completion", f"{written(rows)}\n\n", rows, resolve_device(args.device), command)
    return rows


def written(rows: Sequence[dict[str, Any]]) -> str:
    """The table."""
    return table(HEADER, [[row["method"], *(f"{row[key]:.3g}" for key in HEADER[1:])] for row in rows])


if __name__ == "__main__":
    main()
