"""Fashion-MNIST joins MNIST: a model that knows digits is given clothes, and then
forgets some.

    python benchmarks/joining.py --data-root DATA --device cuda
    python benchmarks/joining.py --rows 300 --quality 1        # digits stand for both, on a CPU

Digits are fitted by class. Then `partial_fit` adds the clothes of one class after
another, without a refresh in between; one `refresh` fits all. `forget` removes a class
again. The model keeps its rows, so a model that forgot equals, byte for byte, the one
that never saw them: the last line says so.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from judge import Judge, first, load_split
from report import keep, number, table

from sliceflow import ImageFlow
from sliceflow.datasets import Pictures
from sliceflow.devices import resolve_device

HEADER = (
    "after",
    "classes",
    "pictures",
    "seconds",
    "FD",
    "FD floor",
    "recognised",
    "NN ratio",
    "copies",
)


def both(args: argparse.Namespace) -> tuple[Pictures, Pictures]:
    """Digits with labels 0 to 9 and clothes with labels 10 to 19, fitted and held out."""
    if (
        args.data_root is None
    ):  # the second half of the digits' classes stand for the clothes
        return tuple(first(p, args.rows) for p in load_split("digits"))  # type: ignore[return-value]
    sets = [
        load_split(name, args.data_root, args.rows)
        for name in ("mnist", "fashion-mnist")
    ]
    joined = []
    for digits, clothes in zip(*sets, strict=True):
        images = np.concatenate((digits.images, clothes.images))
        labels = np.concatenate((digits.labels, clothes.labels + 10))
        joined.append(Pictures(images, labels, 256, "MNIST and Fashion-MNIST"))
    return joined[0], joined[1]


def file_of(flow: ImageFlow) -> bytes:
    """The model's file."""
    with tempfile.TemporaryDirectory() as folder:
        flow.save(Path(folder, "model"))
        return Path(folder, "model").read_bytes()


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Fit, add, refresh, forget; score after each."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--data-root", type=Path, help="folder of the sets; digits without it"
    )
    parser.add_argument("--rows", type=int, help="pictures of each set; all unless set")
    parser.add_argument(
        "--quality", default="standard", help="a preset, or steps per stage"
    )
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda, or auto: a GPU if there is one"
    )
    parser.add_argument("--epochs", type=int, help="of the network that judges")
    parser.add_argument("--out", type=Path, default=Path("runs/joining"))
    args = parser.parse_args(arguments)
    args.device = str(resolve_device(args.device))
    command = shlex.join(["python", "benchmarks/joining.py", *arguments])
    quality = int(args.quality) if args.quality.isdigit() else args.quality
    train, test = both(args)
    judge = Judge(
        train, test, args.device, cache=args.out.parent / "networks", epochs=args.epochs
    )
    classes = np.unique(train.labels)
    settings: dict[str, Any] = {
        "quality": quality,
        "n_pixel_values": train.n_pixel_values,
    }
    settings |= {"device": args.device, "random_state": 0, "keep_rows": True}
    known = classes[: len(classes) // 2]
    new = classes[len(classes) // 2 :]
    of = {c: train.images[train.labels == c] for c in classes}
    flow = ImageFlow(**settings)
    rows = []

    def add(cs: Sequence[Any], how: Callable[..., object], **options: Any) -> None:
        how(
            np.concatenate([of[c] for c in cs]),
            np.concatenate([[c] * len(of[c]) for c in cs]),
            **options,
        )

    def note(name: str, there: Sequence[Any], work: Callable[[], object]) -> None:
        began = time.perf_counter()
        work()
        row = {
            "after": name,
            "classes": len(there),
            "pictures": sum(len(of[c]) for c in there),
        }
        row["seconds"] = time.perf_counter() - began
        rows.append(
            row | judge.among(there).score(flow.particles_, flow.particle_conditions_)
        )
        cells = [[number(r.get(key)) for key in HEADER] for r in rows]
        keep(
            args.out,
            f"{table(HEADER, cells)}\n\n{judge}",
            rows,
            torch.device(args.device),
            command,
        )

    def join() -> None:
        for c in new:
            add([c], flow.partial_fit, refresh=False)
        flow.refresh()

    note("fit", known, lambda: add(known, flow.fit))
    note("partial_fit of each, refresh", classes, join)
    note("forget the last class", classes[:-1], lambda: add(classes[-1:], flow.forget))
    never = ImageFlow(**settings)
    add(classes[:-1], never.fit)
    rows[-1]["same file"] = file_of(never) == file_of(flow)
    print("a model that never saw the class has the same file:", rows[-1]["same file"])
    return rows


if __name__ == "__main__":
    main()
