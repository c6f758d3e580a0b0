"""The paper's method as it is printed, beside ours: what each of them reaches, and in what time.

    python benchmarks/paper_faithful.py mnist cifar10 --data-root DATA --particles 100000 --steps 50

Every row names its method. SWF has no labels, CSWF holds classes apart by a finite amplifier ξ. Both
are the paper's and run here as printed (`preset="paper"`): random local patches, linear interpolation
of both CDFs, η = d over H, start N(0, I), dequantisation at every step. "Per class" and "clusters" are
our defaults with and without labels: every class, or every cluster, has maps of its own. Sets that are
too small for that get SWF or CSWF from our defaults too, and their rows say so.

Without --data-root, the variable SLICEFLOW_DATA names the folder of the sets; digits need none. --steps
are steps per stage (the paper: about 300) and --directions is H (the paper: 10,000): fewer are faster.
Float32 products are TF32 on a GPU unless --float32 is given.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from paper.common import Scale, Scorer, number
from report import facts, signature, table
from runs import mirrored, name

from sliceflow import ImageFlow, PictureOptions, datasets
from sliceflow.datasets import Pictures
from sliceflow.devices import resolve_device
from sliceflow.engine import paper
from sliceflow.engine.transports import Interpolated

AS_PRINTED = ("swf", "cswf")
OURS = ("clusters", "classes")
LABELLED = ("cswf", "classes")
HEADER = (
    "set", "method", "flow", "particles", "H", "steps", "seconds", "FD", "FD floor", "recognised",
    "NN ratio", "FID",
)  # fmt: skip


class Samples(NamedTuple):
    """What a method gave: pictures, their labels, the steps done, and its name."""

    images: np.ndarray
    labels: np.ndarray | None
    steps: int
    method: str


def fitted(
    train: Pictures, labels: np.ndarray | None, as_printed: bool, args: argparse.Namespace
) -> Samples:
    """Batched samples of one method: the paper's as printed, or `ImageFlow` with its defaults."""
    settings: dict[str, Any] = {"quality": args.our_steps, "options": PictureOptions(n_knots=0)}
    if as_printed:
        settings = {
            "preset": "paper",
            "quality": args.steps,
            "amplifier": args.amplifier,
            "transport": Interpolated(args.most),
            "options": PictureOptions(n_knots=0, n_directions=args.directions),
        }
    flow = ImageFlow(
        n_particles=args.particles or paper.PARTICLES.get(train.name, len(train.images)),
        n_pixel_values=train.n_pixel_values,
        mirror=mirrored(train),
        device=args.device,
        random_state=args.seed,
        verbose=int(args.verbose),
        **settings,
    ).fit(train.images, labels)
    return Samples(flow.particles_, flow.particle_conditions_, flow.n_iter_, flow.plan_.method)


def measured(method: str, train: Pictures, scorer: Scorer, args: argparse.Namespace) -> dict[str, Any]:
    """One row: the samples of a method, scored."""
    labels = train.labels if method in LABELLED else None
    if method in LABELLED and labels is None:
        raise SystemExit(f"{name(train)} has no labels: leave {method} out of --methods")
    began = time.perf_counter()
    made = fitted(train, labels, method in AS_PRINTED, args)
    seconds = time.perf_counter() - began
    scores = {**scorer.score(made.images, made.labels), "NN ratio": scorer.nn_ratio(made.images)}
    np.save(args.out / f"{train.name}-{method}.npy", made.images[:50_000])
    if made.labels is not None:
        np.save(args.out / f"{train.name}-{method}-labels.npy", made.labels[:50_000])
    return {
        "set": name(train),
        "method": made.method,
        "flow": "as printed" if method in AS_PRINTED else "ours",
        "particles": len(made.images),
        "H": args.directions if method in AS_PRINTED else None,
        "steps": made.steps,
        "seconds": seconds,
        **scores,
    }


def cells(row: dict[str, Any]) -> list[str]:
    """A line of the table."""
    texts = [row["set"], row["method"], row["flow"]]
    counts = ["" if row[key] is None else f"{row[key]:,}" for key in ("particles", "H", "steps")]
    scores = [number(row[key]) for key in ("FD", "FD floor")]
    recognised = f"{row['recognised']:.1%}" if "recognised" in row else ""
    last = [recognised, number(row["NN ratio"]), number(row.get("FID"))]
    return [*texts, *counts, f"{row['seconds']:.1f}", *scores, *last]


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the methods that are asked for, on every set."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="+", help="mnist, fashion-mnist, cifar10 or digits")
    parser.add_argument("--data-root", type=Path, help="folder of the sets; else SLICEFLOW_DATA")
    methods = (*AS_PRINTED, *OURS)
    parser.add_argument("--methods", nargs="+", choices=methods, default=list(AS_PRINTED))
    parser.add_argument("--particles", type=int, help="M; default: the paper's")
    steps = paper.PICTURES["quality"].value
    parser.add_argument("--steps", type=int, default=steps, help="per stage, as printed")
    parser.add_argument("--our-steps", type=int, default=50, help="per stage, of our defaults")
    h = paper.N_DIRECTIONS
    parser.add_argument("--directions", type=int, default=h, help="H, of the steps as printed")
    parser.add_argument("--most", type=int, help="particles and pictures whose CDFs a step takes")
    xi = paper.PICTURES["amplifier"].value
    parser.add_argument("--amplifier", type=float, default=xi, help="ξ of CSWF")
    parser.add_argument("--pictures", type=int, help="of the training set; default: all")
    parser.add_argument("--float32", action="store_true", help="no TF32 products")
    parser.add_argument("--fid-weights", type=Path, help="the FID network's file: also give FID")
    parser.add_argument("--fid-layer", type=int, default=768)
    parser.add_argument("--epochs", type=int, help="of the network that FD is measured with")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true", help="say when a stage is done")
    parser.add_argument("--out", type=Path, default=Path("runs/paper-faithful"))
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    device = resolve_device(args.device)
    before = torch.get_float32_matmul_precision()
    if not args.float32:
        torch.set_float32_matmul_precision("high")
    network = Scale(None, None, None, {} if args.epochs is None else {"epochs": args.epochs})
    rows = []
    try:
        for dataset in args.sets:
            train, test = (datasets.load(dataset, split, args.data_root) for split in ("train", "test"))
            if args.pictures:
                few = slice(args.pictures)
                of = None if train.labels is None else train.labels[few]
                train = Pictures(train.images[few], of, train.n_pixel_values, train.name)
            scorer = Scorer.of(train, test, args, network)
            for method in args.methods:
                rows.append(measured(method, train, scorer, args))
                print(table(HEADER, [cells(rows[-1])]), flush=True)
    finally:
        torch.set_float32_matmul_precision(before)
    about = facts(device)
    command = " ".join(["python benchmarks/paper_faithful.py", *arguments])
    text = f"{table(HEADER, [cells(row) for row in rows])}\n\n{signature(about, command)}\n"
    kept = {"command": command, "machine": about, "rows": rows}
    (args.out / "paper_faithful.md").write_text(text, encoding="utf-8")
    (args.out / "paper_faithful.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    print(f"\n{text}")
    return rows


if __name__ == "__main__":
    main()
