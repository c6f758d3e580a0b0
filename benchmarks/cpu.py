"""Speed on one CPU core: seconds per step beside POT and numpy in the same run, and
their growth.

    python benchmarks/cpu.py [--quick] [--out runs/cpu]

1. One step of 2,000 particles on scikit-learn's digits: POT's autograd step, a bare
   numpy step, ours by sorting and by histograms. The sliced distance afterwards shows
   that the work is the same.
2. Seconds per step of ours with 10³ to 10⁶ particles.

Times are CPU seconds of one pinned process with one thread, medians over repeats taken
in turn. On a quiet machine these are the wall's; on a busy one they are not disturbed
as much.
"""

import os

# Before numpy, torch and numba are imported: they read these once.
os.environ.update(
    dict.fromkeys(
        (
            "OMP_NUM_THREADS",
            "MKL_NUM_THREADS",
            "NUMBA_NUM_THREADS",
            "OPENBLAS_NUM_THREADS",
        ),
        "1",
    )
)

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import keep, table
from scores import sliced_distance
from sklearn.datasets import load_digits
from torch import Tensor

from sliceflow.engine import frames, transports
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.flow import Flow, ParticleNoise, simulate
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage

N_DIRECTIONS = 1_000  # of random frames
N_BINS = 256
SIZES = (1_000, 10_000, 100_000, 1_000_000)


def noise(d: int, n: int) -> Tensor:
    """Particles to start from, (d, n) as the engine stores them."""
    return torch.randn((d, n), generator=torch.Generator().manual_seed(0))


def medians(works: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median CPU seconds of each of `works`, taken in turn; a first round warms up and
    is dropped.
    """
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats + 1):
        for name, work in works.items():
            began = time.process_time()
            work()
            taken[name].append(time.process_time() - began)
    return {name: statistics.median(seconds[1:]) for name, seconds in taken.items()}


def pot_steps(
    x: Tensor, rows: Tensor, n_directions: int, orthogonal: bool, n_steps: int
) -> None:
    """`n_steps` gradient steps of ½·SW₂² by POT and autograd, in place on x (m, d).

    The step size m·d makes it the same step as ours: the gradient of a particle carries
    its mass 1/m.
    """
    import ot

    m, d = x.shape
    for _ in range(n_steps):
        theta = torch.linalg.qr(torch.randn(d, d))[0] if orthogonal else None
        x.requires_grad_(True)
        distance = ot.sliced_wasserstein_distance(
            x, rows, n_projections=n_directions, projections=theta
        )
        (distance**2 / 2).backward()
        with torch.no_grad():
            x -= m * d * x.grad
        x.grad = None
    x.requires_grad_(False)


def numpy_steps(
    x: np.ndarray,
    rows: np.ndarray,
    n_directions: int,
    orthogonal: bool,
    n_steps: int,
    rng: Any,
) -> None:
    """The barest exact steps in numpy, in place on x (d, m), for rows (d, n): no
    search, no ties.
    """
    d, m = x.shape
    n = rows.shape[1]
    position = ((np.arange(m, dtype=np.float32) + 0.5) * (n / m) - 0.5).clip(0, n - 1)
    i = np.minimum(position.astype(np.int64), n - 2)
    f = position - i.astype(np.float32)
    for _ in range(n_steps):
        if orthogonal:
            theta = np.linalg.qr(rng.standard_normal((d, d), dtype=np.float32))[0]
        else:
            theta = rng.standard_normal((n_directions, d), dtype=np.float32)
            theta /= np.linalg.norm(theta, axis=1, keepdims=True)
        z_p = theta @ x
        z_q = theta @ rows
        order = np.argsort(z_p, axis=1)
        z_q.sort(axis=1)
        left = z_q[:, i]
        dz = np.empty_like(z_p)
        np.put_along_axis(dz, order, left + f * (z_q[:, i + 1] - left), axis=1)
        dz -= z_p
        x += np.float32(d / len(theta)) * (theta.T @ dz)


def our_steps(
    x: Tensor,
    rows: Tensor,
    frame: frames.FrameKind,
    transport: transports.Transport,
    n_steps: int,
) -> None:
    """`n_steps` steps of the engine, in place on x (d, m), with all it does beside
    moving particles.
    """
    seed = Seed(int(1e6 * time.perf_counter()))  # new directions on every call
    flow = Flow([Stage("steps", frame, n_steps, transport)], seed)
    cloud = Cloud(x)
    simulate(flow, cloud, flow.target(cloud, Cloud(rows)), ParticleNoise(seed))


def beside_others(
    orthogonal: bool, m: int, n_steps: int, repeats: int
) -> list[dict[str, Any]]:
    """A row for each method: seconds per step, and the distance that is left."""
    rows = (load_digits().data / 8 - 1).astype(np.float32)
    d = rows.shape[1]
    begin = noise(rows.shape[1], m)
    data = torch.from_numpy(rows.T.copy())
    h = d if orthogonal else N_DIRECTIONS
    frame = frames.Orthogonal() if orthogonal else frames.Random(n_directions=h)
    rng = np.random.default_rng(0)
    x_pot = begin.T.contiguous()
    x_numpy = begin.numpy().copy()
    x_sorted = begin.clone()
    x_histogram = begin.clone()
    works: dict[str, Callable[[], object]] = {
        "POT, autograd": lambda: pot_steps(
            x_pot, torch.from_numpy(rows), h, orthogonal, n_steps
        ),
        "numpy, argsort": lambda: numpy_steps(
            x_numpy, rows.T, h, orthogonal, n_steps, rng
        ),
        "sliceflow, sorted": lambda: our_steps(
            x_sorted, data, frame, transports.Sorted(), n_steps
        ),
        "sliceflow, histogram": lambda: our_steps(
            x_histogram, data, frame, transports.Histogram(N_BINS), n_steps
        ),
    }
    taken = medians(works, repeats)
    ends = (x_pot.numpy(), x_numpy.T, x_sorted.numpy().T, x_histogram.numpy().T)
    slowest = taken["POT, autograd"], taken["numpy, argsort"]
    return [
        {
            "method": name,
            "directions": f"{h} {'orthogonal' if orthogonal else 'random'}",
            "seconds per step": taken[name] / n_steps,
            "times faster than POT": slowest[0] / taken[name],
            "than numpy": slowest[1] / taken[name],
            "sliced distance": sliced_distance(end, rows),
        }
        for name, end in zip(works, ends, strict=True)
    ]


def growth(sizes: Sequence[int], repeats: int) -> list[dict[str, Any]]:
    """Seconds per step with few and many particles."""
    rows = torch.from_numpy((load_digits().data.T / 8 - 1).astype(np.float32))
    histogram = transports.Histogram(N_BINS)
    out = []
    for m in sizes:
        x = noise(len(rows), m)
        work = lambda x=x: our_steps(x, rows, frames.Orthogonal(), histogram, 3)  # noqa: E731
        seconds = medians({"ours": work}, repeats)["ours"] / 3
        out.append(
            {
                "particles": m,
                "seconds per step": seconds,
                "ns per value": 1e9 * seconds / x.numel(),
            }
        )
    return out


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Measure both parts."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--particles", type=int, default=2_000)
    parser.add_argument(
        "--quick", action="store_true", help="few of all, to see that it runs"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/cpu"))
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    m, repeats, sizes = (
        (200, 1, SIZES[:1]) if args.quick else (args.particles, 5, SIZES)
    )
    steps = [beside_others(kind, m, n, repeats) for kind, n in ((False, 2), (True, 10))]
    parts = [steps[0] + steps[1], growth(sizes, repeats)]
    text = "\n\n".join(
        table(
            list(rows[0]),
            [
                [f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()]
                for row in rows
            ],
        )
        for rows in parts
    )
    rows = parts[0] + parts[1]
    command = shlex.join(["python", "benchmarks/cpu.py", *arguments])
    keep(args.out, text, rows, torch.device("cpu"), command)
    return rows


if __name__ == "__main__":
    if hasattr(os, "sched_setaffinity"):  # one core, whose caches stay its own
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    main()
