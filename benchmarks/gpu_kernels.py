"""Every kernel on one GPU: its least work, its time, its share of the card's rates.

    python benchmarks/gpu_kernels.py --out runs/gpu_kernels

Least work is counted on paper: every input read once and every output written once,
whatever a kernel really does; of products, multiplications and additions of real
pixels. A share is the least work over the time, against a copy and a product of
matrices measured in the same run. Times are the GPU's own, medians of 20 calls that the
host has queued before; what fits into the cache may lie there, as in a step, hence
shares above 100 %. Without a GPU it runs on the CPU, to see that it does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from report import Row, command_line, markdown_table, script_parser, write_report
from torch import Tensor

from sliceflow import kernels
from sliceflow.engine.random import Seed
from sliceflow.engine.rotations import rotation
from sliceflow.kernels import Kernels, TileGeometry

HEADER = ("kernel", "size", "MB", "least ms", "ms", "of copy", "of products")
PictureShape = tuple[int, int, int]  # channels, height, width

# Sizes as pictures have them.
PICTURES: dict[str, PictureShape] = {"MNIST": (1, 28, 28), "CIFAR-10": (3, 32, 32)}
PATCHES = (15, 9, 5, 3)
N_DIRECTIONS = 3 * 32 * 32
N_CLASSES = 10
N_KNOTS = 16
KNOT_EXPONENT = -12  # stored displacements are multiples of 2⁻¹²
N_BINS = (256, 1024)
N_TILE_BINS = 256
# Random words are drawn four at a time, for the 28² pixels of one in 100 particles.
NOISE_BLOCKS_PER_PARTICLE = 28**2 // 4
PARTICLES_PER_NOISE = 100
# A thousandth of a step leaves the pictures nearly as they are from call to call.
STEP_SIZE = 1e-3

# Rates are measured with 2 GiB, far more than a cache holds, and with large matrices.
COPY_BYTES = 1 << 31
MATRIX_SIDE = 4096
N_REPEATS = 20
# Some 10 ms on a GPU, in which the host queues all of the calls.
SLEEP_CYCLES = 20_000_000


@dataclass(frozen=True)
class Rates:
    """What a machine reaches."""

    copy: float  # bytes read plus bytes written, a second
    products: float  # operations of products of matrices, a second


@dataclass(frozen=True)
class Case:
    """A call of a kernel at one size."""

    kernel: str
    size: str
    n_bytes: int  # that it must read and write
    n_operations: int  # of products that it must do
    call: Callable[[], object]


def wait(device: torch.device) -> None:
    """Until the device has done all that was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def half_precision(device: torch.device) -> torch.dtype:
    """float16 on a GPU; a CPU has no fast products of it."""
    if device.type == "cuda":
        return torch.float16
    return torch.float32


def device_seconds(call: Callable[[], object], device: torch.device) -> float:
    """Median seconds of one call on the device itself, the host's part left out."""
    if device.type != "cuda":
        return host_seconds(call)
    for _ in range(3):  # compiles
        call()
    wait(device)
    starts = [torch.cuda.Event(enable_timing=True) for _ in range(N_REPEATS)]
    stops = [torch.cuda.Event(enable_timing=True) for _ in range(N_REPEATS)]
    torch.cuda._sleep(SLEEP_CYCLES)
    for start, stop in zip(starts, stops, strict=True):
        start.record()
        call()
        stop.record()
    wait(device)
    milliseconds = []
    for start, stop in zip(starts, stops, strict=True):
        milliseconds.append(start.elapsed_time(stop))
    return statistics.median(milliseconds) / 1_000


def host_seconds(call: Callable[[], object]) -> float:
    """Seconds of a second call."""
    call()  # compiles
    started_at = time.perf_counter()
    call()
    return time.perf_counter() - started_at


def measure_rates(device: torch.device, n_bytes: int, side: int) -> Rates:
    """Of a copy of `n_bytes`, and of a product of matrices in half precision."""
    source = torch.randn(n_bytes // 4, device=device)
    target = torch.empty_like(source)
    copy_seconds = device_seconds(lambda: target.copy_(source), device)
    matrices = torch.randn((2, side, side), device=device).to(half_precision(device))
    left, right = matrices
    product_seconds = device_seconds(lambda: torch.mm(left, right), device)
    return Rates(2 * n_bytes / copy_seconds, 2 * side**3 / product_seconds)


def small_maps(k: Kernels, z: Tensor, n_bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """lo, hi and values of maps z → 1.01 z, which are small ones, as late in a flow."""
    counts, lo, hi = k.histogram(z, n_bins)
    values, _ = k.compose_histograms(counts, lo, hi, counts, 1.01 * lo, 1.01 * hi)
    return lo, hi, values.to(z.dtype)


def row_cases(k: Kernels, h: int, m: int, device: torch.device) -> Iterator[Case]:
    """Kernels that work on projections (h, m), and on the tables of h directions."""
    z = torch.randn((h, m), device=device)
    size = f"{h:,} × {m:,}"
    for n_bins in N_BINS:
        yield from histogram_cases(k, z, n_bins)
        yield from map_cases(k, z, n_bins)
    offsets = torch.randn((h, N_CLASSES), device=device)
    class_indices = torch.randint(N_CLASSES, (m,), device=device)
    yield Case(
        "add_class_offsets",
        size,
        n_bytes=8 * h * m + 4 * h * N_CLASSES + 8 * m,
        n_operations=0,
        call=partial(k.add_class_offsets, z, offsets, class_indices),
    )
    n = NOISE_BLOCKS_PER_PARTICLE * m // PARTICLES_PER_NOISE
    yield Case(
        "philox",
        f"{n:,} × 4 words",
        n_bytes=32 * n,
        n_operations=0,
        call=partial(k.philox, 0, n, Seed(0).key, device),
    )


def histogram_cases(k: Kernels, z: Tensor, n_bins: int) -> Iterator[Case]:
    """Counting projections z (h, m), and moving them."""
    h, m = z.shape
    size = f"{h:,} × {m:,}, {n_bins} bins"
    yield Case(
        "histogram",
        size,
        n_bytes=4 * h * (m + n_bins + 2),
        n_operations=0,
        call=partial(k.histogram, z, n_bins),
    )
    lo, hi, values = small_maps(k, z, n_bins)
    yield Case(
        "displace_grid",
        size,
        n_bytes=8 * h * m + 4 * h * (n_bins + 3),
        n_operations=0,
        call=partial(k.displace_grid, z, lo, hi, values),
    )


def map_cases(k: Kernels, z: Tensor, n_bins: int) -> Iterator[Case]:
    """Maps of h directions: from two histograms, to knots, and back to a grid."""
    h = len(z)
    size = f"{h:,} × {n_bins} bins"
    counts, lo, hi = k.histogram(z, n_bins)
    yield Case(
        "compose_histograms",
        size,
        n_bytes=4 * h * (3 * n_bins + 6),
        n_operations=0,
        call=partial(k.compose_histograms, counts, lo, hi, counts, lo, hi),
    )
    knot_bytes = 6 * N_KNOTS + 16  # of one direction, with its range
    map_lo, map_hi, values = small_maps(k, z, n_bins)
    compress_grid = partial(
        k.compress_grid, map_lo, map_hi, values, counts, N_KNOTS, KNOT_EXPONENT
    )
    yield Case(
        "compress_grid",
        size,
        n_bytes=h * (4 * (2 * n_bins + 3) + knot_bytes),
        n_operations=0,
        call=compress_grid,
    )
    knot_lo, knot_hi, edges, quantized_displacements = compress_grid()
    yield Case(
        "expand_grid",
        size,
        n_bytes=h * (knot_bytes + 4 * (n_bins + 1)),
        n_operations=0,
        call=partial(
            k.expand_grid,
            knot_lo,
            knot_hi,
            edges,
            quantized_displacements,
            n_bins,
            KNOT_EXPONENT,
            z.dtype,
        ),
    )


def tile_cases(
    k: Kernels,
    shape: PictureShape,
    name: str,
    patches: Sequence[int],
    m: int,
    device: torch.device,
) -> Iterator[Case]:
    """Projecting and moving m pictures cut into tiles."""
    channels, height, width = shape
    d = channels * height * width
    x = torch.rand((d, m), device=device) * 2 - 1
    for patch in patches:
        patch = min(patch, height)
        offset = 0
        if patch < height:
            offset = patch // 2  # tiles as a step cuts them on average
        geometry = TileGeometry(shape, (patch, patch), (offset, offset))
        s = geometry.values_per_tile
        h = geometry.n_directions
        dtype = half_precision(device)
        theta = rotation(Seed(0), 0, s, device, dtype, k.padded_size(s))
        size = f"{name} [{patch}], {h:,} × {m:,}"
        project = partial(k.project_tiles, x, theta, geometry)
        yield Case(
            "project_tiles",
            size,
            n_bytes=4 * d * m + 2 * s * s + 4 * h * m,
            n_operations=2 * s * d * m,
            call=project,
        )
        maps = small_maps(k, project(), N_TILE_BINS)
        yield Case(
            "move_tiles",
            size,
            n_bytes=8 * d * m + 2 * s * s + 4 * h * (N_TILE_BINS + 3),
            n_operations=4 * s * d * m,
            call=partial(k.move_tiles, x, theta, geometry, *maps, STEP_SIZE),
        )


def all_cases(k: Kernels, m: int, device: torch.device) -> Iterator[Case]:
    """Every kernel of `k` at the sizes that pictures need, with m particles."""
    yield from row_cases(k, N_DIRECTIONS, m, device)
    for name, shape in PICTURES.items():
        yield from tile_cases(k, shape, name, PATCHES, m, device)


def quick_cases(k: Kernels, device: torch.device) -> Iterator[Case]:
    """Every kernel of `k` at a tiny size, to see that it runs."""
    yield from row_cases(k, 6, 320, device)
    yield from tile_cases(k, (1, 6, 6), "tiny", (3,), 320, device)


def measure(case: Case, rates: Rates, device: torch.device) -> Row:
    """A row of numbers."""
    seconds = device_seconds(case.call, device)
    share_of_products = None
    if case.n_operations > 0:
        share_of_products = case.n_operations / seconds / rates.products
    copy_seconds = case.n_bytes / rates.copy
    product_seconds = case.n_operations / rates.products
    return {
        "kernel": case.kernel,
        "size": case.size,
        "bytes": case.n_bytes,
        "least seconds": max(copy_seconds, product_seconds),
        "seconds": seconds,
        "of copy": case.n_bytes / seconds / rates.copy,
        "of products": share_of_products,
    }


def format_report(rows: Sequence[Row], rates: Rates) -> str:
    """The rates and the table."""
    cells = []
    for row in rows:
        share_of_products = ""
        if row["of products"] is not None:
            share_of_products = f"{row['of products']:.0%}"
        cells.append(
            [
                row["kernel"],
                row["size"],
                f"{row['bytes'] / 1e6:,.1f}",
                f"{1_000 * row['least seconds']:.3f}",
                f"{1_000 * row['seconds']:.3f}",
                f"{row['of copy']:.0%}",
                share_of_products,
            ]
        )
    copy = f"{rates.copy / 1e12:.2f} TB/s"
    products = f"{rates.products / 1e12:.0f} Tflop/s"
    return f"Copying {copy}, products {products}.\n\n{markdown_table(HEADER, cells)}"


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    """Measure every kernel."""
    parser = script_parser(__doc__)
    parser.add_argument("--particles", type=int, default=100_000)
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, to see that it runs"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_kernels"))
    args = parser.parse_args(arguments)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda")
    k = kernels.for_device(device)
    if args.quick:
        rates = measure_rates(device, n_bytes=1 << 16, side=32)
        cases = quick_cases(k, device)
    else:
        rates = measure_rates(device, COPY_BYTES, MATRIX_SIDE)
        cases = all_cases(k, args.particles, device)
    rows = [measure(case, rates, device) for case in cases]
    command = command_line("benchmarks/gpu_kernels.py", arguments)
    write_report(args.out, format_report(rows, rates), rows, device, command)
    return rows


if __name__ == "__main__":
    main()
