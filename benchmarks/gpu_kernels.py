"""Every kernel on one GPU: its least work, its time, its shares of the card's own
rates.

    python benchmarks/gpu_kernels.py --out runs/gpu_kernels

Least work is counted on paper: every input read once and every output written once,
whatever a kernel really does; of products, multiplications and additions of real
pixels. A share is the least work over the time, against a copy and a product of
matrices measured in the same run. Times are the GPU's own, medians of 20 calls that the
host has queued before; what fits into the cache may lie there, as in a step, hence
shares above 100 %. Without a GPU it runs on the CPU, to see that it does.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from report import keep, table
from torch import Tensor

from sliceflow import kernels
from sliceflow.engine.frames import rotation
from sliceflow.engine.random import Seed
from sliceflow.kernels.geometry import Geometry

CLASSES = 10
KNOTS = 16
EXPONENT = -12
PICTURES = {"MNIST": (1, 28, 28), "CIFAR-10": (3, 32, 32)}
PATCHES = (15, 9, 5, 3)
HEADER = ("kernel", "size", "MB", "least ms", "ms", "of copy", "of products")


@dataclass(frozen=True)
class Rates:
    """What a machine reaches: bytes read plus written a second, operations a second of
    products.
    """

    copy: float
    products: float


@dataclass(frozen=True)
class Case:
    """A call of a kernel at one size; bytes it must move, operations of products it
    must do.
    """

    kernel: str
    size: str
    bytes: int
    operations: int
    work: Callable[[], object]


def wait(device: torch.device) -> None:
    """Until the device has done all it was told to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def own_seconds(
    work: Callable[[], object], device: torch.device, repeats: int = 20
) -> float:
    """Median seconds of one call on the device itself, the host's part left out."""
    for _ in range(3 if device.type == "cuda" else 1):
        work()
    wait(device)
    if device.type != "cuda":
        began = time.perf_counter()
        work()
        return time.perf_counter() - began
    events = [
        [torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)
    ]
    torch.cuda._sleep(
        20_000_000
    )  # some 10 ms, in which the host queues all of the work
    for begin, end in events:
        begin.record()
        work()
        end.record()
    wait(device)
    return statistics.median(begin.elapsed_time(end) for begin, end in events) / 1_000


def measured_rates(
    device: torch.device, n_bytes: int = 1 << 31, side: int = 4096
) -> Rates:
    """Of a copy of `n_bytes`, and of a product of side × side matrices in half
    precision.
    """
    source = torch.randn(n_bytes // 4, device=device)
    target = torch.empty_like(source)
    copy = 2 * n_bytes / own_seconds(lambda: target.copy_(source), device)
    half = torch.float16 if device.type == "cuda" else torch.float32
    left, right = torch.randn((2, side, side), device=device).to(half)
    return Rates(copy, 2 * side**3 / own_seconds(lambda: torch.mm(left, right), device))


def _maps(k: Any, z: Tensor, bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """lo, hi and values of the maps that take z to 1.01 z: small displacements, as late
    in a flow.
    """
    counts, lo, hi = k.histogram(z, bins)
    values, _ = k.compose(counts, lo, hi, counts, 1.01 * lo, 1.01 * hi)
    return lo, hi, values.to(z.dtype)


def row_cases(k: Any, h: int, m: int, device: torch.device) -> Iterator[Case]:
    """Kernels that work on projections (h, m), and on the tables of h directions."""
    z = torch.randn((h, m), device=device)
    size = f"{h:,} × {m:,}"
    for bins in (256, 1024):
        named = f"{size}, {bins} bins"
        yield Case(
            "histogram", named, 4 * h * (m + bins + 2), 0, partial(k.histogram, z, bins)
        )
        maps = _maps(k, z, bins)
        moved = 8 * h * m + 4 * h * (bins + 3)
        yield Case("displace_grid", named, moved, 0, partial(k.displace_grid, z, *maps))
        counts, lo, hi = k.histogram(z, bins)
        compose = partial(k.compose, counts, lo, hi, counts, lo, hi)
        yield Case(
            "compose", f"{h:,} × {bins} bins", 4 * h * (3 * bins + 6), 0, compose
        )
        keep_knots = partial(k.compress_map, *maps, counts, KNOTS, EXPONENT)
        read = h * (4 * (2 * bins + 3) + 6 * KNOTS + 16)
        yield Case("compress_map", f"{h:,} × {bins} bins", read, 0, keep_knots)
        lo, hi, at, levels = keep_knots()
        through = partial(k.expand_map, lo, hi, at, levels, bins, EXPONENT, z.dtype)
        written = h * (6 * KNOTS + 16 + 4 * (bins + 1))
        yield Case("expand_map", f"{h:,} × {bins} bins", written, 0, through)
    offsets = torch.randn((h, CLASSES), device=device)
    codes = torch.randint(CLASSES, (m,), device=device)
    add = partial(k.add_class_offsets, z, offsets, codes)
    yield Case("add_class_offsets", size, 8 * h * m + 4 * h * CLASSES + 8 * m, 0, add)
    n = 196 * m // 100
    yield Case(
        "philox",
        f"{n:,} × 4 words",
        32 * n,
        0,
        partial(k.philox, 0, n, Seed(0).key, device),
    )


def tile_cases(
    k: Any,
    shape: tuple[int, int, int],
    name: str,
    patches: Sequence[int],
    m: int,
    device: torch.device,
) -> Iterator[Case]:
    """Projecting and moving m pictures cut into tiles, with 256 bins."""
    x = torch.rand((shape[0] * shape[1] * shape[2], m), device=device) * 2 - 1
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    for patch in patches:
        side = min(patch, shape[1])
        offset = (
            side // 2 if side < shape[1] else 0
        )  # tiles as a step cuts them on average
        cut = Geometry(shape, (side, side), (offset, offset))
        theta = rotation(Seed(0), 0, cut.side, device, dtype, k.padded_size(cut.side))
        d = len(x)
        s = cut.side
        h = cut.n_directions
        size = f"{name} [{side}], {h:,} × {m:,}"
        project = partial(k.project_tiles, x, theta, cut)
        least = 4 * d * m + 2 * s * s + 4 * h * m
        yield Case("project_tiles", size, least, 2 * s * d * m, project)
        maps = _maps(
            k, project(), 256
        )  # steps of a thousandth leave the pictures nearly as they are
        least = 8 * d * m + 2 * s * s + 4 * h * 259
        yield Case(
            "move_tiles",
            size,
            least,
            4 * s * d * m,
            partial(k.move_tiles, x, theta, cut, *maps, 1e-3),
        )


def kernel_cases(
    k: Any, m: int, device: torch.device, *, h: int = 3072, quick: bool = False
) -> Iterator[Case]:
    """Every kernel of `k` at the sizes that pictures need."""
    yield from row_cases(k, h, m, device)
    for name, shape in [("tiny", (1, 6, 6))] if quick else PICTURES.items():
        yield from tile_cases(k, shape, name, (3,) if quick else PATCHES, m, device)


def measured(case: Case, rates: Rates, device: torch.device) -> dict[str, Any]:
    """A row of numbers."""
    seconds = own_seconds(case.work, device)
    return {
        "kernel": case.kernel,
        "size": case.size,
        "bytes": case.bytes,
        "least seconds": max(case.bytes / rates.copy, case.operations / rates.products),
        "seconds": seconds,
        "of copy": case.bytes / seconds / rates.copy,
        "of products": case.operations / seconds / rates.products
        if case.operations
        else None,
    }


def shown(rows: Sequence[dict[str, Any]], rates: Rates) -> str:
    """The rates and the table."""
    cells = [
        [
            row["kernel"],
            row["size"],
            f"{row['bytes'] / 1e6:,.1f}",
            f"{1_000 * row['least seconds']:.3f}",
            f"{1_000 * row['seconds']:.3f}",
            f"{row['of copy']:.0%}",
            "" if row["of products"] is None else f"{row['of products']:.0%}",
        ]
        for row in rows
    ]
    text = f"Copying {rates.copy / 1e12:.2f} TB/s, products {rates.products / 1e12:.0f} Tflop/s."
    return f"{text}\n\n{table(HEADER, cells)}"


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Measure every kernel."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--particles", type=int, default=100_000)
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, to see that it runs"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_kernels"))
    args = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rates = measured_rates(device, *((1 << 16, 32) if args.quick else ()))
    m, h = (320, 6) if args.quick else (args.particles, 3072)
    cases = kernel_cases(kernels.for_device(device), m, device, h=h, quick=args.quick)
    rows = [measured(case, rates, device) for case in cases]
    command = shlex.join(["python", "benchmarks/gpu_kernels.py", *arguments])
    keep(args.out, shown(rows, rates), rows, device, command)
    return rows


if __name__ == "__main__":
    main()
