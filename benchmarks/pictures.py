"""Fit one picture set and say how long it took; write samples and a grid to look at.

    python benchmarks/pictures.py mnist --data-root DATA --particles 100000 --out runs/mnist
    python benchmarks/pictures.py cifar10 --data-root DATA --particles 100000 --mirror

Writes samples.npy (and labels.npy), grid.png and run.json. The time is that of `fit` alone, after a
short fit that compiles the kernels.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from timing import timed_fit

import sliceflow
import sliceflow.spaces.pictures.layout
from sliceflow import PictureOptions, datasets
from sliceflow.spaces.pictures.plan import QUALITY, choose_transport


def grid(images: np.ndarray, columns: int = 20) -> np.ndarray:
    """Pictures side by side, row by row."""
    rows = len(images) // columns
    tiles = images[: rows * columns].reshape(rows, columns, *images.shape[1:])
    return np.concatenate([np.concatenate(list(row), axis=1) for row in tiles], axis=0)


def main() -> None:
    """Run one configuration."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("--data-root")
    parser.add_argument("--schedule", default="auto", help="mnist, cifar10, … are the paper's")
    parser.add_argument("--particles", type=int)
    parser.add_argument("--steps", type=int, default=QUALITY["standard"], help="steps per stage")
    parser.add_argument("--conditional", action="store_true")
    parser.add_argument("--amplifier", type=float, help="how far apart classes are held; inf is one")
    parser.add_argument(
        "--clusters", type=int, help="of pictures without labels; default: by their number"
    )
    parser.add_argument("--mirror", action="store_true")
    parser.add_argument("--observed", help="complete pictures of which this part is known, e.g. top")
    parser.add_argument("--bins", type=int, help="histogram bins")
    parser.add_argument("--offline", type=int, default=0, help="also draw this many offline samples")
    parser.add_argument("--knots", type=int, help="kept of each map; default: by the particles")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", default="auto", help="operands on a GPU: float16, float32, …")
    parser.add_argument("--directions", default="auto", help="pixels, cosines, or auto")
    parser.add_argument("--most", type=int, help="particles and pictures that a step looks at")
    parser.add_argument("--out", type=Path, default=Path("runs/pictures"))
    args = parser.parse_args()

    data = datasets.load(args.name, root=args.data_root)
    keep_model = args.offline > 0 or args.observed is not None
    settings = {
        "schedule": args.schedule,
        "amplifier": "auto" if args.amplifier is None else args.amplifier,
        "n_clusters": args.clusters or "auto",
        "n_pixel_values": data.n_pixel_values,
        "mirror": args.mirror,
        "observed": args.observed,
        "device": args.device,
        "random_state": args.seed,
        "patch_basis": args.directions,
        "options": PictureOptions(
            n_knots=(args.knots or "auto") if keep_model else 0, precision=args.precision
        ),
    }
    labels = data.labels if args.conditional else None
    if args.bins or args.most:
        shared = labels is not None and args.amplifier is not None
        given = {name: v for name, v in (("n_bins", args.bins), ("most", args.most)) if v}
        usual = choose_transport("histogram", args.amplifier if shared else 0.0)
        settings["transport"] = replace(usual, **given)

    flow, seconds = timed_fit(data.images, labels, args.particles, args.steps, **settings)

    args.out.mkdir(parents=True, exist_ok=True)
    np.save(args.out / "samples.npy", flow.particles_[:50_000])
    if labels is not None:
        np.save(args.out / "labels.npy", flow.particle_conditions_[:50_000])
        order = np.argsort(flow.particle_conditions_[:4000], kind="stable")
        chosen = np.concatenate(
            [order[flow.particle_conditions_[order] == c][:20] for c in flow.classes_]
        )
        picture = grid(flow.particles_[chosen])
    else:
        picture = grid(flow.particles_[:200])
    if args.observed is not None:
        test = datasets.load(args.name, split="test", root=args.data_root).images[:20]
        done = flow.inpaint(test, n_samples=8, random_state=0)
        hidden = flow.inpaint(test, n_samples=1, random_state=0)[:, 0]
        known = sliceflow.spaces.pictures.layout.MASKS[args.observed](*test.shape[1:3])
        hidden[:, ~known] = 128
        picture = grid(
            np.concatenate(
                [np.concatenate((hidden[:, None], done, test[:, None]), 1)[i] for i in range(20)]
            ),
            10,
        )
    out = {
        "seconds": round(seconds, 2),
        "particles": len(flow.particles_),
        "steps": flow.n_iter_,
        "sliceflow": sliceflow.__version__,
        "torch": torch.__version__,
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor(),
    }
    if torch.cuda.is_available():
        out["peak GiB"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    if args.offline:
        began = time.perf_counter()
        offline = flow.sample(args.offline, random_state=1)
        out["offline seconds"] = round(time.perf_counter() - began, 2)
        np.save(args.out / "offline.npy", offline)
    from PIL import Image

    Image.fromarray(
        picture if data.n_pixel_values == 256 else picture * (255 // (data.n_pixel_values - 1))
    ).save(args.out / "grid.png")
    settings |= {"n_particles": args.particles, "quality": args.steps}
    settings = {k: str(v) for k, v in settings.items()}
    (args.out / "run.json").write_text(json.dumps(settings | out, indent=1))
    print(args.name, json.dumps(settings | out))


if __name__ == "__main__":
    main()
