"""Particles that start as real rows: a flow should leave them where they are.

    python benchmarks/fixed_point.py
    python benchmarks/fixed_point.py --sets mnist cifar10 --data-root DATA --device cuda

The maps are fitted to one random half of the rows; the particles start as the other
half, which no map sees. They are already spread as the data are, so every displacement
is noise that the flow takes for signal. Without shrinkage (κ = 0) thousands of steps
destroy detail; with it the particles stand still.

moved     root mean square displacement of a coordinate, over the standard deviation of
          the data
noise     the same, if every step adds its own noise: 3·σ²·(1/m + 1/n) per direction and
          step
sliced    sliced distance to held-out rows, before → after
NN ratio  of particles to the fitted half, over that of held-out rows, before → after: 1
is ideal
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from judge import load_split
from report import keep, number, table
from scores import distances_to, nn_ratio, sliced_distance
from sklearn.datasets import make_moons

from sliceflow.devices import resolve_device
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.flow import Flow, ParticleNoise, simulate
from sliceflow.engine.frames import Orthogonal
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.shrinkage import noise_rates, shrunk_flow
from sliceflow.engine.transports import Auto, Histogram
from sliceflow.spaces.pictures.tiles import Tiles

SETS = ("moons", "digits", "mnist", "fashion-mnist", "cifar10")
KAPPA = 3.0  # of the expected noise; measured values are between 2 and 4
HEADER = ("set", "κ", "steps", "moved", "noise", "sliced", "NN ratio", "seconds")
SCORED = 2_000


def rows_of(
    name: str, root: Path | None, n: int | None
) -> tuple[np.ndarray, np.ndarray, Any]:
    """Rows to fit and to start from, rows held out, and the frames of a step."""
    if name == "moons":
        x = make_moons(6_000, noise=0.1, random_state=0)[0]
        return x[:4_000][:n], x[4_000:], Orthogonal()
    train, test = load_split(name, root, n)
    rows = [
        p.images.reshape(len(p.images), p.images.shape[1], p.images.shape[2], -1)
        for p in (train, test)
    ]
    channels, h, w = rows[0].shape[3], *rows[0].shape[1:3]
    scale = (train.n_pixel_values - 1) / 2
    fitted, held = (
        x.transpose(0, 3, 1, 2).reshape(len(x), -1) / scale - 1 for x in rows
    )
    return fitted, held, Tiles(channels, h, w, min(7, h))


def moved(
    particles: np.ndarray,
    data: np.ndarray,
    frame: Any,
    kappa: float,
    n_steps: int,
    device: str,
) -> tuple[np.ndarray, int]:
    """The particles after a flow, and the steps it took; maps that all stand still end
    it.
    """
    x = torch.tensor(particles.T, dtype=torch.float32, device=device)
    target = torch.tensor(data.T, dtype=torch.float32, device=device)
    transport = Histogram(128) if max(len(particles), len(data)) > 8_000 else Auto()
    flow = Flow([Stage("steps", frame, n_steps, transport, n_knots=0)], Seed(0))
    if kappa > 0:
        flow = shrunk_flow(flow, kappa, noise_rates(len(particles), len(data)))
    cloud = Cloud(x.clone())
    goal = Cloud(target)
    done = 0

    def count(_: Any) -> None:
        nonlocal done
        done += 1

    simulate(
        flow,
        cloud,
        flow.target(cloud, goal),
        ParticleNoise(Seed(0)),
        listeners=(count,),
    )
    return cloud.x.T.cpu().numpy(), done


def measured(name: str, kappa: float, args: argparse.Namespace) -> dict[str, Any]:
    """A row of the table."""
    rows, held, frame = rows_of(name, args.data_root, args.rows)
    order = np.random.default_rng(0).permutation(len(rows))
    data, before = (rows[part] for part in np.array_split(order, 2))
    began = time.perf_counter()
    after, steps = moved(before, data, frame, kappa, args.steps, args.device)
    seconds = time.perf_counter() - began
    spread = float(np.sqrt(data.var(0).mean()))
    usual = distances_to(held[:SCORED], data, device=args.device)
    near = [
        nn_ratio(distances_to(x[:SCORED], data, device=args.device), usual)
        for x in (before, after)
    ]
    sliced = [sliced_distance(x[:SCORED], held[:SCORED]) for x in (before, after)]
    return {
        "set": name,
        "κ": kappa,
        "steps": steps,
        "moved": float(np.sqrt(((after - before) ** 2).mean())) / spread,
        "noise": float(np.sqrt(KAPPA * steps * (1 / len(before) + 1 / len(data)))),
        "sliced": sliced,
        "NN ratio": near,
        "seconds": seconds,
    }


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Measure every set without shrinkage and with it."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sets", nargs="+", choices=SETS, default=["moons", "digits"])
    parser.add_argument("--kappa", type=float, nargs="+", default=[0.0, 2.0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rows", type=int, help="of the set; all unless set")
    parser.add_argument(
        "--data-root", type=Path, help="folder of the sets; else SLICEFLOW_DATA"
    )
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda, or auto: a GPU if there is one"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/fixed_point"))
    args = parser.parse_args(arguments)
    args.device = str(resolve_device(args.device))
    command = shlex.join(["python", "benchmarks/fixed_point.py", *arguments])
    rows: list[dict[str, Any]] = []
    for name in args.sets:
        for kappa in args.kappa:
            rows.append(measured(name, kappa, args))
            cells = [
                [
                    " → ".join(map(number, v)) if isinstance(v, list) else number(v)
                    for v in row.values()
                ]
                for row in rows
            ]
            keep(
                args.out, table(HEADER, cells), rows, torch.device(args.device), command
            )
    return rows


if __name__ == "__main__":
    main()
