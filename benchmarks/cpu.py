"""Speed and quality on one CPU core: against POT and numpy, against the hardware, and in growth.

    python benchmarks/cpu.py [--part 1|2|3|4] [--json PATH] [--markdown PATH] [--plot PATH]

Four parts, one function each:

1. seconds per step beside POT's autograd step and a bare numpy step;
2. the fewest bytes and operations of a histogram step, in seconds at this core's own measured rates,
   beside the seconds it takes;
3. growth of the seconds per step with the number of particles, from 10^3 to 10^6;
4. quality and CPU seconds of a class-conditional flow on scikit-learn's digits.

Every time is in CPU seconds of the process (`time.process_time`): on one core these are the wall's
when the machine is quiet, and they are not disturbed by other programs when it is not.
"""

import os

# Before numpy, torch and numba are imported: they read these once.
os.environ.update(
    dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"
    )
)
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import argparse
import datetime
import json
import math
import platform
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import ot
import torch
from report import seconds_text, table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC
from torch import Tensor

import sliceflow
from sliceflow import SlicedWassersteinFlow, metrics
from sliceflow.engine import frames, transports
from sliceflow.engine.flow import Cloud, Flow, Noise, batches_for, simulate
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage

torch.set_num_threads(1)

Split = tuple[np.ndarray, np.ndarray]

M = 2000  # particles of parts 1, 2 and 4
H = 1000  # random directions per step of parts 1 and 2
N_BINS = 256


def digits() -> tuple[Split, Split]:
    """scikit-learn's digits as (X, y) of 1297 training and 500 test rows, v/8 - 1, float32."""
    X, y = load_digits(return_X_y=True)
    X = (X / 8 - 1).astype(np.float32)
    train, test, y_train, y_test = train_test_split(X, y, test_size=500, stratify=y, random_state=0)
    return (train, y_train), (test, y_test)


def noise(d: int, n: int, seed: int = 0) -> Tensor:
    """Particles to start from, (d, n) as the engine stores them."""
    return torch.randn((d, n), generator=torch.Generator().manual_seed(seed))


# Timing ------------------------------------------------------------------------------------------


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    began = time.process_time()
    work()
    return time.process_time() - began


def medians(works: dict[str, Callable[[], object]], repeats: int = 5) -> dict[str, float]:
    """Median CPU seconds of each of `works`, taken in turn; a first round warms up and is dropped."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats + 1):
        for name, work in works.items():
            taken[name].append(cpu_seconds(work))
    return {name: statistics.median(seconds[1:]) for name, seconds in taken.items()}


def verdict(met: bool) -> str:
    """The word that stands beside a goal."""
    return "met" if met else "MISSED"


# Part 1 ------------------------------------------------------------------------------------------


def pot_steps(x: Tensor, rows: Tensor, n_directions: int, orthogonal: bool, n_steps: int) -> None:
    """`n_steps` gradient steps of ½·SW₂² by POT and autograd, in place on x (M, d).

    The step size M·d makes it the same step as ours: the gradient of a particle carries its mass 1/M.
    """
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
    rng: np.random.Generator,
) -> None:
    """The barest exact steps in numpy, in place on x (d, M), for rows (d, N): no search, no ties."""
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
        z_p, z_q = theta @ x, theta @ rows
        order = np.argsort(z_p, axis=1)
        z_q.sort(axis=1)
        left = z_q[:, i]
        quantiles = left + f * (z_q[:, i + 1] - left)
        dz = np.empty_like(z_p)
        np.put_along_axis(dz, order, quantiles, axis=1)
        dz -= z_p
        x += np.float32(d / len(theta)) * (theta.T @ dz)


def our_steps(
    x: Tensor,
    rows: Tensor,
    frame: frames.FrameKind,
    transport: transports.Transport,
    n_steps: int,
    seed: int = 0,
) -> None:
    """`n_steps` steps of the engine, in place on x (d, M), with all it does beside moving particles."""
    flow = Flow([Stage("steps", frame, n_steps)], Seed(seed))
    simulate(flow, Cloud(x), Cloud(rows), transport, Noise(Seed(seed)))


def steps_of_every_method(rows: np.ndarray, orthogonal: bool, n_steps: int) -> dict[str, tuple]:
    """Each method's name -> (`n_steps` steps of it as a call, its particles (M, d) as a call)."""
    begin = noise(rows.shape[1], M)  # (d, M)
    h = rows.shape[1] if orthogonal else H
    frame = frames.Orthogonal() if orthogonal else frames.Random(n_directions=H)
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    x_pot, rows_pot = begin.T.contiguous(), torch.from_numpy(rows)
    x_numpy, columns = begin.numpy().copy(), rows.T.copy()
    x_sorted, x_histogram = begin.clone(), begin.clone()
    data = torch.from_numpy(columns)
    histogram = transports.Histogram(N_BINS)
    calls = iter(range(10**9))  # a new seed, hence new directions, on every call
    return {
        "(a) POT, torch autograd": (
            lambda: pot_steps(x_pot, rows_pot, h, orthogonal, n_steps),
            lambda: x_pot.numpy(),
        ),
        "(b) numpy, argsort": (
            lambda: numpy_steps(x_numpy, columns, h, orthogonal, n_steps, rng),
            lambda: x_numpy.T,
        ),
        "(c) sliceflow, sorted": (
            lambda: our_steps(x_sorted, data, frame, transports.Sorted(), n_steps, next(calls)),
            lambda: x_sorted.numpy().T,
        ),
        "(d) sliceflow, histogram": (
            lambda: our_steps(x_histogram, data, frame, histogram, n_steps, next(calls)),
            lambda: x_histogram.numpy().T,
        ),
    }


def seconds_per_step() -> tuple[dict, str]:
    """Part 1: one step of M = 2000 particles on 1297 digits, ours beside POT's and numpy's."""
    (train, _), _ = digits()
    numbers: dict = {}
    for name, orthogonal, n_steps in (("random", False, 2), ("orthogonal", True, 10)):
        methods = steps_of_every_method(train, orthogonal, n_steps)
        taken = medians({method: work for method, (work, _) in methods.items()})
        numbers[name] = {
            method: {
                "seconds per step": taken[method] / n_steps,
                "sliced distance after": metrics.sliced_wasserstein(particles(), train),
            }
            for method, (_, particles) in methods.items()
        }

    a, b, _, ours = numbers["random"]
    rows = []
    for method in numbers["random"]:
        cells = [method]
        for column in numbers.values():
            seconds = column[method]["seconds per step"]
            cells += [
                seconds_text(seconds),
                f"{column[a]['seconds per step'] / seconds:.1f}x",
                f"{column[b]['seconds per step'] / seconds:.1f}x",
                f"{column[method]['sliced distance after']:.3f}",
            ]
        rows.append(cells)
    d = train.shape[1]
    ratio_a, ratio_b = (
        numbers["random"][other]["seconds per step"] / numbers["random"][ours]["seconds per step"]
        for other in (a, b)
    )
    numbers["goals"] = {
        "30x faster than POT": {"reached": ratio_a, "met": ratio_a >= 30},
        "5x faster than numpy": {"reached": ratio_b, "met": ratio_b >= 5},
    }
    text = [
        f"M = {M} particles, N = {len(train)} rows of digits, d = {d}, unconditional, float32; a new "
        f"frame every step, {H} random directions or, the default, {d} orthogonal ones. SW₂: sliced "
        "distance to the rows after equally many steps (12 and 60), to show that the work is the same.",
        "",
        table(
            [
                "",
                f"{H} random",
                "vs (a)",
                "vs (b)",
                "SW₂",
                f"{d} orthogonal",
                "vs (a)",
                "vs (b)",
                "SW₂",
            ],
            rows,
        ),
        "",
        f"Goal: (d) 30x faster than (a): {ratio_a:.1f}x, {verdict(ratio_a >= 30)}. "
        f"(d) 5x faster than (b): {ratio_b:.1f}x, {verdict(ratio_b >= 5)}.",
    ]
    return numbers, "\n".join(text)


# Part 2 ------------------------------------------------------------------------------------------


def copy_rate(n_bytes: int) -> float:
    """Bytes read and written per second when copying an array of `n_bytes`."""
    a = np.ones(n_bytes // 8)
    b = np.zeros_like(a)
    loops = max(1, (1 << 27) // n_bytes)

    def copy() -> None:
        for _ in range(loops):
            np.copyto(b, a)

    return 2 * n_bytes * loops / medians({"copy": copy})["copy"]


def sgemm_rate(n: int = 1024) -> float:
    """Floating-point operations per second of a float32 product of n x n matrices."""
    a, b = torch.randn(n, n), torch.randn(n, n)
    out = torch.empty(n, n)
    return 2 * n**3 / medians({"product": lambda: torch.mm(a, b, out=out)})["product"]


def least_work(h: int, m: int, n: int, d: int, bins: int) -> dict[str, tuple[int, int]]:
    """(operations of products, bytes moved) that each piece of a histogram step cannot do without.

    Every piece reads and writes each array it needs exactly once, in float32; the range of a direction
    must be known before its values are counted, so `fit` reads the projections twice. The engine
    projects the particles again when it moves them, which happens in chunks; that is not counted here.
    """
    z_p, z_q, counts, maps = 4 * h * m, 4 * h * n, 4 * h * bins, 4 * h * (bins + 1)
    theta, particles, rows = 4 * h * d, 4 * d * m, 4 * d * n
    return {
        "draw the frame": (0, theta),
        "project": (2 * h * d * (m + n), 2 * theta + particles + rows + z_p + z_q),
        "fit: range, count, compose": (0, 2 * (z_p + z_q) + 2 * 2 * counts + maps),
        "move: displace, lift": (2 * h * d * m, z_p + maps + z_p + theta + z_p + 2 * particles),
    }


def seconds_of_pieces(frame_kind: frames.FrameKind, rows: np.ndarray, n_steps: int) -> dict[str, float]:
    """Seconds per step of the same pieces as the engine runs them, and of the whole step."""
    d = rows.shape[1]
    seed, transport = Seed(0), transports.Histogram(N_BINS)
    data = torch.from_numpy(rows.T.copy())
    x = noise(d, M)
    our_steps(x, data, frame_kind, transport, n_steps=3)  # compiles, and leaves the starting noise

    def draw(step: int) -> frames.AnyFrame:
        return frame_kind.draw(seed, step, d, 0, x.device, x.dtype)

    frame = draw(0)
    z_p, z_q = frame.project(x), frame.project(data)
    maps = transport.fit(z_p, z_q).table
    target = x.clone()

    def repeated(work: Callable[[], object]) -> Callable[[], None]:
        def loop() -> None:
            for _ in range(n_steps):
                work()

        return loop

    pieces: dict[str, Callable[[], object]] = {
        "draw the frame": lambda: draw(0),
        "project": lambda: (frame.project(x), frame.project(data)),
        "fit: range, count, compose": lambda: transport.fit(z_p, z_q),
        "move: displace, lift": lambda: frame.move(target, maps, None, 1e-6),
    }
    works = {name: repeated(work) for name, work in pieces.items()}
    works["whole step"] = lambda: our_steps(x, data, frame_kind, transport, n_steps)
    return {name: seconds / n_steps for name, seconds in medians(works).items()}


def least_and_reached() -> tuple[dict, str]:
    """Part 2: what a histogram step must do at least, at this core's rates, beside what it takes."""
    (train, _), _ = digits()
    n, d = train.shape
    sgemm = sgemm_rate()
    far = copy_rate(1 << 28)
    numbers: dict = {"sgemm flop/s": sgemm, "copy bytes/s, 268 MB": far}
    text = [
        f"Measured in this run: sgemm {sgemm / 1e9:.1f} Gflop/s (1024 x 1024 matrices), copying "
        f"{far / 1e9:.1f} GB/s (268 MB, bytes read plus written). The least time of a piece is its "
        "operations at the sgemm rate plus its bytes at the rate of copying an array of the size of "
        "the projected particles, which may lie in a cache. The scalar work of counting and composing, "
        "some ten operations per value, comes on top: neither rate covers it. The engine projects the "
        "particles a second time when it moves them, which the least work does without.",
    ]
    for h, kind, n_steps in ((H, frames.Random(n_directions=H), 2), (d, frames.Orthogonal(), 20)):
        near = copy_rate(4 * h * M)
        least, reached = least_work(h, M, n, d, N_BINS), seconds_of_pieces(kind, train, n_steps)
        reached["rest: tables kept, distance, loop"] = reached["whole step"] - sum(
            reached[name] for name in least
        )
        least["rest: tables kept, distance, loop"] = (0, 0)
        least["whole step"] = tuple(sum(column) for column in zip(*least.values(), strict=True))
        # With directions taken in blocks that fit the cache, projections never reach memory at all.
        fused = 4 * (2 * h * d + 3 * d * M + d * n + h * (N_BINS + 1))
        floor_fused = least["whole step"][0] / sgemm + fused / near
        rows = []
        column = numbers[type(kind).__name__.lower()] = {
            "n_directions": h,
            "copy bytes/s": near,
            "fused": {"bytes": fused, "least seconds": floor_fused},
        }
        for name, (flop, n_bytes) in least.items():
            floor = flop / sgemm + n_bytes / near
            column[name] = {
                "flop": flop,
                "bytes": n_bytes,
                "least seconds": floor,
                "seconds": reached[name],
            }
            rows.append(
                [
                    name,
                    f"{flop / 1e6:.1f}",
                    f"{n_bytes / 1e6:.2f}",
                    seconds_text(floor),
                    seconds_text(reached[name]),
                    f"{reached[name] / floor:.1f}x" if floor > 0 else "",
                ]
            )
        text += [
            "",
            f"{type(kind).__name__} frame, h = {h}, M = {M}, N = {n}, d = {d}, {N_BINS} bins; copying "
            f"{4 * h * M / 1e6:.1f} MB at {near / 1e9:.1f} GB/s:",
            "",
            table(["", "Mflop", "MB", "least", "reached", "reached / least"], rows),
            "",
            f"If projections never left the cache: {fused / 1e6:.2f} MB and the same operations, "
            f"{seconds_text(floor_fused)} at least; the step takes "
            f"{reached['whole step'] / floor_fused:.1f}x that.",
        ]
    return numbers, "\n".join(text)


# Part 3 ------------------------------------------------------------------------------------------


def steps_alone(
    x: Tensor, rows: Tensor, transport: transports.Transport, n_steps: int
) -> Callable[[], object]:
    """`n_steps` steps as a call; dividing the clouds into batches, once in a flow, is done before."""
    flow = Flow([Stage("steps", frames.Orthogonal(), n_steps)], Seed(0))
    particles, data = Cloud(x), Cloud(rows)
    batches = batches_for(flow, particles, data, transport)
    data = data if batches.order is None else data.part(batches.order)
    return lambda: simulate(flow, particles, data, transport, Noise(Seed(0)), batches=batches)


def growth(plot: Path) -> tuple[dict, str]:
    """Part 3: seconds per step for M = N from 10^3 to 10^6, d = 16, and the exponent."""
    d, sizes = 16, [10**3, 10**4, 10**5, 10**6]
    kinds = {"histogram": transports.Histogram(N_BINS), "sorted": transports.Sorted()}
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for m in sizes:
        data = noise(d, m, seed=1)
        data += 3 * torch.sign(data)  # corners of a cube: not what the particles are already
        n_steps = max(1, min(50, 200_000 // m))
        works = {name: steps_alone(noise(d, m), data, kind, n_steps) for name, kind in kinds.items()}
        for name, taken in medians(works, repeats=3).items():
            seconds[name].append(taken / n_steps)
    exponents = {
        name: math.log(s[3] / s[1]) / math.log(sizes[3] / sizes[1]) for name, s in seconds.items()
    }
    numbers = {"M": sizes, "d": d, "seconds per step": seconds, "exponent": exponents}
    rows = [
        [f"10^{round(math.log10(m))}", *(seconds_text(s[i]) for s in seconds.values())]
        for i, m in enumerate(sizes)
    ]
    rows.append(["exponent, 10^4 to 10^6", *(f"{e:.2f}" for e in exponents.values())])
    text = [
        f"Seconds per step, M = N, d = {d}, orthogonal frame, float32; histograms of {N_BINS} bins, of "
        f"at most {transports.MOST:,} particles and data a step; all particles are moved. Dividing "
        "larger clouds into batches is done once in a flow and not counted.",
        "",
        table(["M = N", *kinds], rows),
    ]
    if peak := peak_memory():
        numbers["peak memory, bytes"] = peak
        text += ["", f"Peak memory of the process so far: {peak / 1e9:.2f} GB."]
    if plot_growth(plot, sizes, seconds, exponents):
        text += ["", f"![Seconds per step against the number of particles]({plot.name})"]
    return numbers, "\n".join(text)


def peak_memory() -> int | None:
    """The largest resident size of this process in bytes, where the system says."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else 1024 * peak


def plot_growth(
    path: Path, sizes: list[int], seconds: dict[str, list[float]], exponents: dict[str, float]
) -> bool:
    """Draw part 3; False where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 3.6), layout="constrained")
    for (name, s), colour, marker in zip(seconds.items(), ("#0072B2", "#D55E00"), "os", strict=True):
        label = f"{name}: exponent {exponents[name]:.2f}"
        axes.loglog(sizes, s, color=colour, marker=marker, label=label)
    axes.set(
        xlabel="particles M = data N",
        ylabel="CPU seconds per step",
        title="One core, d = 16, orthogonal frame",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return True


# Part 4 ------------------------------------------------------------------------------------------

GOALS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "accuracy": (">= 0.99", lambda v: v >= 0.99),
    "FD-PCA32": ("<= 0.27", lambda v: v <= 0.27),
    "sliced distance": ("<= 0.046", lambda v: v <= 0.046),
    "two-sample accuracy": ("<= 0.62", lambda v: v <= 0.62),
    "NN ratio": ("0.8 to 1.2", lambda v: 0.8 <= v <= 1.2),
    "CPU seconds of fit": ("< 10", lambda v: v < 10),
}


def scores(
    samples: np.ndarray,
    labels: np.ndarray,
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
) -> dict[str, float]:
    """The metrics of labelled rows.

    `accuracy`: of a support vector machine trained on the training rows, on the samples; `TSTR` (train
    on synthetic, test on real): of one trained on the samples, on the test rows. Both are SVC(C=10).
    """
    return {
        "FD-PCA32": metrics.frechet_distance_pca(samples, test[0], train[0]),
        "sliced distance": metrics.sliced_wasserstein(samples, test[0]),
        "two-sample accuracy": metrics.two_sample_accuracy(samples, test[0]),
        "NN ratio": metrics.nn_ratio(samples, train[0], test[0]),
        "accuracy": float(SVC(C=10).fit(*train).score(samples, labels)),
        "TSTR": float(SVC(C=10).fit(samples, labels).score(*test)),
    }


def digits_quality() -> tuple[dict, str]:
    """Part 4: the class-conditional flow on digits as vectors, and its offline samples."""
    train, test = digits()
    SlicedWassersteinFlow(M, n_steps=1, random_state=0).fit(*train)  # compiles
    model = SlicedWassersteinFlow(n_particles=M, n_steps=400, random_state=0)
    seconds = cpu_seconds(lambda: model.fit(*train))
    reached = scores(model.particles_, model.particle_conditions_, train, test)
    reached["CPU seconds of fit"] = seconds
    real = scores(*train, train, test)

    rows = []
    for name, value in reached.items():
        goal, met = GOALS.get(name, ("", None))
        floor = f"{real[name]:.3f}" if name in real else ""
        rows.append([name, f"{value:.3f}", goal, verdict(met(value)) if met else "", floor])

    offline = SlicedWassersteinFlow(n_particles=None, n_steps=200, random_state=0)
    offline_seconds = cpu_seconds(lambda: offline.fit(*train))
    began = time.process_time()
    samples = offline.sample(2000, random_state=1)
    sample_seconds = time.process_time() - began
    fd_offline, fd_batched = (
        metrics.frechet_distance_pca(x, test[0], train[0]) for x in (samples, offline.particles_[:2000])
    )
    excess = fd_offline / fd_batched - 1
    numbers = {
        "batched": reached,
        "real training rows": real,
        "goals met": {name: met(reached[name]) for name, (_, met) in GOALS.items()},
        "offline": {
            "FD-PCA32": fd_offline,
            "FD-PCA32 of the batched samples": fd_batched,
            "excess": excess,
            "within 15 %": abs(excess) <= 0.15,
            "n_particles": len(offline.particles_),
            "CPU seconds of fit": offline_seconds,
            "CPU seconds of sample": sample_seconds,
        },
    }
    text = [
        "`SlicedWassersteinFlow(n_particles=2000, n_steps=400, random_state=0)` on digits (8 x 8, 1297 "
        "training and 500 test rows, v/8 - 1, float32) with labels; metrics "
        "against the test rows.",
        "",
        table(["", "reached", "goal", "", "real training rows"], rows),
        "",
        f"Offline samples, `n_particles=None` ({len(offline.particles_)}), `n_steps=200` (fit "
        f"{offline_seconds:.2f} CPU s, sample {sample_seconds:.2f}): FD-PCA32 of 2000 offline samples "
        f"{fd_offline:.3f}, of the first 2000 batched samples {fd_batched:.3f}, {excess:+.1%}; goal "
        f"within 15 %: {verdict(abs(excess) <= 0.15)}.",
    ]
    return numbers, "\n".join(text)


# The run -----------------------------------------------------------------------------------------


def machine() -> dict:
    """The kind of machine and the versions that the numbers belong to."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].split(":", 1)[1].strip() if lines else model
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": model,
        "cores used": 1,
        "versions": {
            "python": platform.python_version(),
            "sliceflow": sliceflow.__version__,
            **{name: version(name) for name in ("torch", "numpy", "numba", "scikit-learn", "POT")},
        },
    }


def main() -> None:
    """Run the parts asked for, print them, and write them where asked."""
    parser = argparse.ArgumentParser(description="Speed and quality on one CPU core.")
    parser.add_argument("--part", type=int, choices=(1, 2, 3, 4), help="only this part (default: all)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all numbers here")
    parser.add_argument("--markdown", type=Path, metavar="PATH", help="write a section of results here")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="PATH",
        default=Path(__file__).with_name("growth.png"),
        help="write the plot of part 3 here (default: growth.png beside this file)",
    )
    args = parser.parse_args()

    parts: dict[int, tuple[str, Callable[[], tuple[dict, str]]]] = {
        1: ("Seconds per step", seconds_per_step),
        2: ("Least work and time reached", least_and_reached),
        3: ("Growth", lambda: growth(args.plot)),
        4: ("Digits as vectors", digits_quality),
    }
    began_cpu, began = time.process_time(), time.perf_counter()
    numbers: dict = {}
    sections = []
    for i, (title, run) in parts.items():
        if args.part in (None, i):
            numbers[title], text = run()
            sections.append(f"### {title}\n\n{text}\n")
            print(sections[-1], flush=True)

    facts = machine()
    share = (time.process_time() - began_cpu) / (time.perf_counter() - began)
    facts["share of the core"] = share
    command = "python benchmarks/cpu.py" + (f" --part {args.part}" if args.part else "")
    closing = (
        f"{facts['date']}, one core of: {facts['cpu']}. "
        + ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
        + f". Command: `{command}`. All times are CPU seconds; this run had {share:.0%} of its core"
        + ("." if share > 0.9 else ", so other programs were running and caches were shared.")
    )
    print(closing)
    if args.json:
        args.json.write_text(json.dumps({"machine": facts, **numbers}, indent=2) + "\n")
    if args.markdown:
        heading = f"## One CPU core, {facts['date']}"
        args.markdown.write_text("\n".join([heading, "", closing, "", *sections]))


if __name__ == "__main__":
    main()
