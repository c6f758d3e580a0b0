"""Fashion-MNIST joins MNIST: a model of digits is given clothes, and forgets some.

    python benchmarks/joining.py --data-root DATA --device cuda
    python benchmarks/joining.py --rows 300 --steps-per-stage 1  # digits, on a CPU

Digits are fitted by class. Then `partial_fit` adds the clothes of one class after
another, without a refit in between; one `refit` fits all. `forget` removes a class
again. The model keeps its rows, so a model that forgot equals, byte for byte, the one
that never saw them: the last line says so. Without a data root, the second half of the
digits' classes stands for the clothes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from judge import Judge, load_split, slice_pictures
from report import (
    Row,
    add_device_argument,
    command_line,
    script_parser,
    table_of_rows,
    write_report,
)

from sliceflow import ImageFlow
from sliceflow.datasets import PictureSet
from sliceflow.devices import resolve_device

HEADER = (
    "after",
    "classes",
    "pictures",
    "seconds",
    "FD",
    "FD floor",
    "recognized",
    "NN ratio",
    "copies",
)
N_CLASSES_OF_DIGITS = 10


def load_pictures(args: argparse.Namespace) -> tuple[PictureSet, PictureSet]:
    """Digits (labels 0 to 9) and clothes (10 to 19), to fit and held out."""
    if args.data_root is None:
        train, test = load_split("digits")
        train = slice_pictures(train, stop=args.rows)
        return train, slice_pictures(test, stop=args.rows)
    digits_train, digits_test = load_split("mnist", args.data_root, args.rows)
    clothes_train, clothes_test = load_split("fashion-mnist", args.data_root, args.rows)
    return join(digits_train, clothes_train), join(digits_test, clothes_test)


def join(digits: PictureSet, clothes: PictureSet) -> PictureSet:
    """Both sets as one; the clothes have the labels after the digits'."""
    assert digits.labels is not None
    assert clothes.labels is not None
    images = np.concatenate((digits.images, clothes.images))
    labels = np.concatenate((digits.labels, clothes.labels + N_CLASSES_OF_DIGITS))
    return PictureSet(images, labels, 256, "MNIST and Fashion-MNIST")


def select_classes(
    train: PictureSet, classes: Iterable[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Pictures and labels of these classes, one class after the other."""
    assert train.labels is not None
    images = []
    labels = []
    for label in classes:
        is_class = train.labels == label
        images.append(train.images[is_class])
        labels.append(train.labels[is_class])
    return np.concatenate(images), np.concatenate(labels)


def file_bytes(flow: ImageFlow) -> bytes:
    """The model's file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model")
        flow.save(path)
        return path.read_bytes()


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = script_parser(__doc__)
    parser.add_argument(
        "--data-root", type=Path, help="folder of the sets; digits without it"
    )
    parser.add_argument("--rows", type=int, help="pictures of each set; all unless set")
    parser.add_argument("--quality", default="standard", help="draft, standard or best")
    parser.add_argument("--steps-per-stage", type=int, help="in place of --quality")
    add_device_argument(parser)
    parser.add_argument("--epochs", type=int, help="of the network that judges")
    parser.add_argument("--out", type=Path, default=Path("runs/joining"))
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    """Fit, add, refit, forget; score after each."""
    args = parse_arguments(arguments)
    device = resolve_device(args.device)
    command = command_line("benchmarks/joining.py", arguments)
    train, test = load_pictures(args)
    cache = args.out.parent / "networks"
    judge = Judge(train, test, str(device), cache=cache, epochs=args.epochs)
    settings: dict[str, Any] = {
        "quality": args.quality,
        "steps_per_stage": args.steps_per_stage,
        "n_pixel_values": train.n_pixel_values,
        "device": str(device),
        "random_state": 0,
        "save_rows": True,
    }
    classes = np.unique(train.labels)
    first_classes = classes[: len(classes) // 2]
    new_classes = classes[len(classes) // 2 :]
    last_class = classes[-1:]
    flow = ImageFlow(**settings)
    rows: list[Row] = []

    def measure(event: str, known: np.ndarray, change: Callable[[], None]) -> None:
        """Time a change of the flow, and score the classes it then knows."""
        started_at = time.perf_counter()
        change()
        seconds = time.perf_counter() - started_at
        scores = judge.among(known).score(flow.particles_, flow.particle_conditions_)
        row = {
            "after": event,
            "classes": len(known),
            "pictures": int(np.isin(train.labels, known).sum()),
            "seconds": seconds,
        }
        rows.append(row | scores)
        text = f"{table_of_rows(HEADER, rows)}\n\n{judge}"
        write_report(args.out, text, rows, device, command)

    def fit_first() -> None:
        flow.fit(*select_classes(train, first_classes))

    def add_new() -> None:
        for label in new_classes:
            images, labels = select_classes(train, [label])
            flow.partial_fit(images, labels, refit=False)
        flow.refit()

    def forget_last() -> None:
        flow.forget(*select_classes(train, last_class))

    measure("fit", first_classes, fit_first)
    measure("partial_fit of each, refit", classes, add_new)
    measure("forget the last class", classes[:-1], forget_last)
    never = ImageFlow(**settings)
    never.fit(*select_classes(train, classes[:-1]))
    rows[-1]["same file"] = file_bytes(never) == file_bytes(flow)
    print("a model that never saw the class has the same file:", rows[-1]["same file"])
    return rows


if __name__ == "__main__":
    main()
