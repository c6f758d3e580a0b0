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
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from judge import load_split
from report import (
    Row,
    add_device_argument,
    command_line,
    format_number,
    markdown_table,
    script_parser,
    write_report,
)
from scores import distances_to, nn_ratio, sliced_distance
from sklearn.datasets import make_moons

from sliceflow.datasets import PictureSet
from sliceflow.devices import resolve_device
from sliceflow.engine.batches import DataTarget, make_batches
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.flow import FlowSpec, ParticleRng, simulate
from sliceflow.engine.frames import FrameKind, Orthogonal
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.shrinkage import compute_noise_factors, shrunk_flow
from sliceflow.engine.transports import AutoTransport, HistogramTransport, Transport
from sliceflow.estimators.pictures.tiles import Tiles

SETS = ("moons", "digits", "mnist", "fashion-mnist", "cifar10")
HEADER = ("set", "κ", "steps", "moved", "noise", "sliced", "NN ratio", "seconds")
NOISE_FACTOR = 3.0  # of the expected noise; measured values are between 2 and 4
MAX_SCORED = 2_000  # rows, as distances to all fitted rows take long
MAX_PATCH = 7  # a middle one of the schedules of pictures
MAX_ROWS_TO_SORT = 8_000  # with more, histograms are faster
N_BINS = 128  # as pictures have by default


def load_rows(
    name: str, root: Path | None, n: int | None
) -> tuple[np.ndarray, np.ndarray, FrameKind]:
    """Rows to fit and to start from, rows held out, and the frames of a step."""
    if name == "moons":
        x = make_moons(6_000, noise=0.1, random_state=0)[0]
        return x[:4_000][:n], x[4_000:], Orthogonal()
    train, test = load_split(name, root, n)
    height, width = train.images.shape[1:3]
    channels = train.images[0].size // (height * width)
    tiles = Tiles(channels, height, width, min(MAX_PATCH, height))
    return picture_rows(train), picture_rows(test), tiles


def picture_rows(pictures: PictureSet) -> np.ndarray:
    """Pictures as rows (n, c·h·w) of numbers in [-1, 1]."""
    x = pictures.images
    if x.ndim == 4:
        x = x.transpose(0, 3, 1, 2)
    scale = (pictures.n_pixel_values - 1) / 2
    return x.reshape(len(x), -1) / scale - 1


def run_flow(
    particles: np.ndarray,
    data: np.ndarray,
    frame: FrameKind,
    kappa: float,
    n_steps: int,
    device: str,
) -> tuple[np.ndarray, int]:
    """The particles (m, d) after a flow towards the data, and the steps it took.

    It ends early once all maps stand still.
    """
    x = torch.tensor(particles.T, dtype=torch.float32, device=device)
    target = torch.tensor(data.T, dtype=torch.float32, device=device)
    transport: Transport = AutoTransport()
    if max(len(particles), len(data)) > MAX_ROWS_TO_SORT:
        transport = HistogramTransport(N_BINS)
    flow = FlowSpec(
        [Stage("steps", frame, n_steps, transport, stores_maps=False)], Seed(0)
    )
    if kappa > 0:
        flow = shrunk_flow(
            flow, kappa, compute_noise_factors(len(particles), len(data))
        )
    cloud = Cloud(x.clone())
    n_steps_done = 0

    def count_step(_: object) -> None:
        nonlocal n_steps_done
        n_steps_done += 1

    batches = make_batches(
        len(particles),
        len(data),
        transport.batch_size,
        flow.seed.child("batches"),
        device,
    )
    fitted = DataTarget.from_cloud(Cloud(target), batches)
    simulate(flow, cloud, fitted, ParticleRng(Seed(0)), listeners=(count_step,))
    return cloud.x.T.cpu().numpy(), n_steps_done


def measure(name: str, kappa: float, args: argparse.Namespace) -> Row:
    """A row of the table."""
    rows, held_out, frame = load_rows(name, args.data_root, args.rows)
    order = np.random.default_rng(0).permutation(len(rows))
    data_rows, particle_rows = np.array_split(order, 2)
    data = rows[data_rows]
    before = rows[particle_rows]
    started_at = time.perf_counter()
    after, n_steps = run_flow(before, data, frame, kappa, args.steps, args.device)
    seconds = time.perf_counter() - started_at
    spread = float(np.sqrt(data.var(0).mean()))
    held_out = held_out[:MAX_SCORED]
    held_out_distances = distances_to(held_out, data, device=args.device)
    nn_ratios = []
    sliced_distances = []
    for x in (before, after):
        distances = distances_to(x[:MAX_SCORED], data, device=args.device)
        nn_ratios.append(nn_ratio(distances, held_out_distances))
        sliced_distances.append(sliced_distance(x[:MAX_SCORED], held_out))
    noise_per_step = NOISE_FACTOR * (1 / len(before) + 1 / len(data))
    return {
        "set": name,
        "κ": kappa,
        "steps": n_steps,
        "moved": float(np.sqrt(((after - before) ** 2).mean())) / spread,
        "noise": float(np.sqrt(n_steps * noise_per_step)),
        "sliced": sliced_distances,
        "NN ratio": nn_ratios,
        "seconds": seconds,
    }


def format_cell(value: str | float | list[float]) -> str:
    """A number, or the numbers before and after with an arrow between them."""
    if isinstance(value, list):
        return " → ".join(map(format_number, value))
    return format_number(value)


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    """Measure every set without shrinkage and with it."""
    parser = script_parser(__doc__)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=["moons", "digits"])
    parser.add_argument("--kappa", type=float, nargs="+", default=[0.0, 2.0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rows", type=int, help="of the set; all unless set")
    parser.add_argument(
        "--data-root", type=Path, help="folder of the sets; else SLICEFLOW_DATA"
    )
    add_device_argument(parser)
    parser.add_argument("--out", type=Path, default=Path("runs/fixed_point"))
    args = parser.parse_args(arguments)
    device = resolve_device(args.device)
    args.device = str(device)
    command = command_line("benchmarks/fixed_point.py", arguments)
    rows: list[Row] = []
    cells: list[list[str]] = []
    for name in args.sets:
        for kappa in args.kappa:
            row = measure(name, kappa, args)
            rows.append(row)
            cells.append([format_cell(value) for value in row.values()])
            text = markdown_table(HEADER, cells)
            write_report(args.out, text, rows, device, command)
    return rows


if __name__ == "__main__":
    main()
