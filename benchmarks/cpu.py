"""Speed on one CPU core: seconds per step beside POT and numpy, and their growth.

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
    OMP_NUM_THREADS="1",
    MKL_NUM_THREADS="1",
    NUMBA_NUM_THREADS="1",
    OPENBLAS_NUM_THREADS="1",
)

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from report import Row, command_line, markdown_table, script_parser, write_report
from scores import sliced_distance
from sklearn.datasets import load_digits
from torch import Tensor

from sliceflow.engine import frames, transports
from sliceflow.engine.batches import DataTarget, make_batches
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.flow import FlowSpec, ParticleRng, simulate
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage

N_RANDOM_DIRECTIONS = 1_000  # many times the 64 pixels, as the paper takes
N_BINS = 256  # of a histogram: the default of `HistogramTransport`
N_REPEATS = 5  # whose median is reported
# Steps that are timed together: an orthogonal frame has a sixteenth of the directions,
# so its steps are shorter.
N_STEPS_RANDOM = 2
N_STEPS_ORTHOGONAL = 10
N_STEPS_GROWTH = 3
SIZES = (1_000, 10_000, 100_000, 1_000_000)  # particles


def digit_rows() -> np.ndarray:
    """scikit-learn's digits (n, 64), pixels in [-1, 1]."""
    return (load_digits().data / 8 - 1).astype(np.float32)


def noise(d: int, n: int) -> Tensor:
    """Particles to start from, (d, n) as the engine stores them."""
    return torch.randn((d, n), generator=torch.Generator().manual_seed(0))


def median_seconds(
    functions: Mapping[str, Callable[[], None]], repeats: int
) -> dict[str, float]:
    """Median CPU seconds of each function, called in turn.

    A first round warms up and is dropped.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats + 1):
        for name, function in functions.items():
            started_at = time.process_time()
            function()
            seconds[name].append(time.process_time() - started_at)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


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
        theta = None
        if orthogonal:
            theta = torch.linalg.qr(torch.randn(d, d))[0]
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
    rng: np.random.Generator,
) -> None:
    """The barest exact steps in numpy, in place on x (d, m), for rows (d, n).

    The i-th smallest of m particles goes to the quantile (i + ½) / m of the rows.
    """
    d, m = x.shape
    n = rows.shape[1]
    position = ((np.arange(m, dtype=np.float32) + 0.5) * (n / m) - 0.5).clip(0, n - 1)
    below = np.minimum(position.astype(np.int64), n - 2)
    weight = position - below.astype(np.float32)
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
        lower = z_q[:, below]
        quantiles = lower + weight * (z_q[:, below + 1] - lower)
        dz = np.empty_like(z_p)
        np.put_along_axis(dz, order, quantiles, axis=1)
        dz -= z_p
        x += np.float32(d / len(theta)) * (theta.T @ dz)


def engine_steps(
    x: Tensor,
    rows: Tensor,
    frame: frames.FrameKind,
    transport: transports.Transport,
    n_steps: int,
) -> None:
    """`n_steps` steps of the engine, in place on x (d, m), for rows (d, n).

    With all it does beside moving particles.
    """
    seed = Seed(int(1e6 * time.perf_counter()))  # new directions on every call
    flow = FlowSpec([Stage("steps", frame, n_steps, transport)], seed)
    cloud = Cloud(x)
    batches = make_batches(
        x.shape[1], rows.shape[1], transport.batch_size, seed.child("batches")
    )
    target = DataTarget.from_cloud(Cloud(rows), batches)
    simulate(flow, cloud, target, ParticleRng(seed))


def compare_methods(m: int, orthogonal: bool, n_steps: int, repeats: int) -> list[Row]:
    """A row for each method: seconds per step, and the distance that is left."""
    rows = digit_rows()
    d = rows.shape[1]
    h = N_RANDOM_DIRECTIONS
    frame: frames.FrameKind = frames.Random(n_directions=h)
    directions = f"{h} random"
    if orthogonal:
        h = d
        frame = frames.Orthogonal()
        directions = f"{h} orthogonal"
    rng = np.random.default_rng(0)
    start = noise(d, m)
    x_pot = start.T.contiguous()
    x_numpy = start.numpy().copy()
    x_sorted = start.clone()
    x_histogram = start.clone()
    data = torch.from_numpy(rows.T.copy())
    pot_data = torch.from_numpy(rows)
    sort = transports.SortedTransport()
    histogram = transports.HistogramTransport(N_BINS)
    functions = {
        "POT, autograd": partial(pot_steps, x_pot, pot_data, h, orthogonal, n_steps),
        "numpy, argsort": partial(
            numpy_steps, x_numpy, rows.T, h, orthogonal, n_steps, rng
        ),
        "sliceflow, sorted": partial(
            engine_steps, x_sorted, data, frame, sort, n_steps
        ),
        "sliceflow, histogram": partial(
            engine_steps, x_histogram, data, frame, histogram, n_steps
        ),
    }
    seconds = median_seconds(functions, repeats)
    moved = {
        "POT, autograd": x_pot.numpy(),
        "numpy, argsort": x_numpy.T,
        "sliceflow, sorted": x_sorted.numpy().T,
        "sliceflow, histogram": x_histogram.numpy().T,
    }
    table = []
    for name in functions:
        table.append(
            {
                "method": name,
                "directions": directions,
                "seconds per step": seconds[name] / n_steps,
                "times faster than POT": seconds["POT, autograd"] / seconds[name],
                "than numpy": seconds["numpy, argsort"] / seconds[name],
                "sliced distance": sliced_distance(moved[name], rows),
            }
        )
    return table


def measure_growth(sizes: Sequence[int], repeats: int) -> list[Row]:
    """Seconds per step with few and many particles."""
    rows = torch.from_numpy(digit_rows().T)
    frame = frames.Orthogonal()
    histogram = transports.HistogramTransport(N_BINS)
    table = []
    for m in sizes:
        x = noise(len(rows), m)
        steps = partial(engine_steps, x, rows, frame, histogram, N_STEPS_GROWTH)
        seconds = median_seconds({"ours": steps}, repeats)["ours"] / N_STEPS_GROWTH
        table.append(
            {
                "particles": m,
                "seconds per step": seconds,
                "ns per value": 1e9 * seconds / x.numel(),
            }
        )
    return table


def format_rows(rows: Sequence[Row]) -> str:
    """A Markdown table of rows that all have the same names."""
    cells = []
    for row in rows:
        cells.append([format_cell(value) for value in row.values()])
    return markdown_table(list(rows[0]), cells)


def format_cell(value: str | float) -> str:
    """Three digits of a float; others as they are."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value)


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    """Measure both parts."""
    parser = script_parser(__doc__)
    parser.add_argument("--particles", type=int, default=2_000)
    parser.add_argument(
        "--quick", action="store_true", help="few of all, to see that it runs"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/cpu"))
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    m = args.particles
    repeats = N_REPEATS
    sizes: Sequence[int] = SIZES
    if args.quick:
        m = 200
        repeats = 1
        sizes = SIZES[:1]
    step_rows = [
        *compare_methods(m, False, N_STEPS_RANDOM, repeats),
        *compare_methods(m, True, N_STEPS_ORTHOGONAL, repeats),
    ]
    growth_rows = measure_growth(sizes, repeats)
    text = f"{format_rows(step_rows)}\n\n{format_rows(growth_rows)}"
    rows = step_rows + growth_rows
    command = command_line("benchmarks/cpu.py", arguments)
    write_report(args.out, text, rows, torch.device("cpu"), command)
    return rows


if __name__ == "__main__":
    if hasattr(os, "sched_setaffinity"):  # one core, whose caches stay its own
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    main()
