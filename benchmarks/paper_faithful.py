"""The paper's method as it is printed, beside ours: what each of them reaches, and in what time.

    python benchmarks/paper_faithful.py mnist cifar10 --data-root DATA --particles 100000 --steps 50

Every row names its method. SWF has no labels, CSWF holds classes apart by a finite amplifier ξ. Both
are the paper's and run here as printed (`sliceflow.paper`): random local patches, linear interpolation
of both CDFs, η = d over H, start N(0, I), dequantisation at every step. "Per class" and "clusters" are
our defaults with and without labels: every class, or every cluster, has maps of its own. Sets that are
too small for that get SWF or CSWF from our defaults too, and their rows say so.

Without --data-root, the variable SLICEFLOW_DATA names the folder of the sets; digits need none. --steps
are steps per stage (the paper: about 300) and --directions is H (the paper: 10,000): fewer are faster.
Float32 products are TF32 on a GPU unless --float32 is given.
"""

import argparse
import json
import math
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
from torch import Tensor

from sliceflow import ImageFlow, PictureOptions, datasets, paper
from sliceflow.datasets import Pictures
from sliceflow.devices import projection_budget, resolve_device
from sliceflow.engine import conditions
from sliceflow.engine.batches import divide
from sliceflow.engine.events import Event
from sliceflow.engine.flow import Cloud, Noise, Redrawn
from sliceflow.engine.random import Seed
from sliceflow.engine.transports import Interpolated
from sliceflow.pictures import schedules
from sliceflow.pictures.layout import Layout
from sliceflow.pictures.levels import Walk

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


def method_of(labels: np.ndarray | None, xi: float) -> str:
    """The name of a flow; ξ is that of the labels, or of the clusters where there are none."""
    if labels is None:
        return "clusters" if xi == math.inf else "SWF"
    return "per class" if xi == math.inf else f"CSWF ξ={xi:g}"


def as_printed(
    train: Pictures,
    labels: np.ndarray | None,
    *,
    xi: float,
    m: int,
    steps: int,
    n_directions: int,
    most: int | None,
    device: torch.device,
    seed: Seed,
    verbose: bool,
) -> Samples:
    """Batched samples of the paper's flow."""
    given = paper.values(paper.PICTURES)
    layout = Layout.of(train.images, train.n_pixel_values)
    raw = layout.read(train.images, device)
    raw = layout.mirrored(raw) if mirrored(train) else raw
    codes: Tensor | None = None
    codes_p: Tensor | None = None
    width = 0
    if labels is not None:
        classes, numbers = np.unique(labels, return_inverse=True)
        codes, width = torch.from_numpy(numbers).repeat(raw.shape[1] // len(labels)), len(classes)
        rows = conditions.proportional(codes, m, seed.child("conditions"), least=1)
        codes_p, codes = codes[rows].to(device), codes.to(device)
    walk = Walk(
        layout,
        schedules.from_string(
            schedules.paper(layout.height, layout.width), layout.height, layout.width, steps
        ),
        seed.child("flow"),
        n_conditions=width,
        amplifier=xi,
        known=None,
        budget=projection_budget(device),
        precision=None,
        n_directions=n_directions,
        **{
            key: given[key]
            for key in ("upsampling", "patch_basis", "clip", "dequantize", "start_noise", "taper")
        },
    )
    noise = Noise(seed.child("particles"))
    x = noise.child("start").fill(torch.empty(layout.dimension, m, device=device))
    x.mul_(walk.start_noise)
    batches = divide(m, raw.shape[1], most, codes_p, codes, seed.child("batches"), device)
    if batches.order is not None:
        raw, codes = raw[:, batches.order], None if codes is None else codes[batches.order]

    def data(i: int) -> Redrawn:
        def at(k: int) -> Cloud:
            return Cloud(layout.encode(raw, seed.child("data", i, k)), codes)

        return Redrawn(at)

    done, particles = [], Cloud(x, codes_p)

    def listen(event: Event) -> None:
        done.append(event.stage)
        if verbose and len(done) % steps == 0:
            at = f"{event.stage}, step {event.steps_done} of {event.steps_total}"
            print(f"{at}, {event.seconds:.0f} s", file=sys.stderr, flush=True)

    walk.simulate(particles, data, Interpolated(most), noise, 0, [listen], batches)
    drawn = None if codes_p is None else classes[codes_p.cpu().numpy()]
    return Samples(layout.write(particles.x), drawn, len(done), method_of(labels, xi))


def ours(
    train: Pictures,
    labels: np.ndarray | None,
    *,
    m: int,
    steps: int,
    device: torch.device,
    seed: int,
) -> Samples:
    """The same of `ImageFlow` with its defaults."""
    flow = ImageFlow(
        n_particles=m,
        quality=steps,
        n_pixel_values=train.n_pixel_values,
        mirror=mirrored(train),
        device=device,
        random_state=seed,
        options=PictureOptions(n_knots=0),
    ).fit(train.images, labels)
    xi = flow._walk.amplifier
    return Samples(flow.particles_, flow.particle_conditions_, flow.n_iter_, method_of(labels, xi))


def measured(
    method: str, train: Pictures, scorer: Scorer, args: argparse.Namespace, device: torch.device
) -> dict[str, Any]:
    """One row: the samples of a method, scored."""
    labels = train.labels if method in LABELLED else None
    if method in LABELLED and labels is None:
        raise SystemExit(f"{name(train)} has no labels: leave {method} out of --methods")
    m = args.particles or paper.PARTICLES.get(train.name, len(train.images))
    common: dict[str, Any] = {"m": m, "device": device}
    began = time.perf_counter()
    if method in AS_PRINTED:
        made = as_printed(
            train, labels, xi=args.amplifier, steps=args.steps, n_directions=args.directions,
            most=args.most, seed=Seed(args.seed), verbose=args.verbose, **common,
        )  # fmt: skip
    else:
        made = ours(train, labels, steps=args.our_steps, seed=args.seed, **common)
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
                rows.append(measured(method, train, scorer, args, device))
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
