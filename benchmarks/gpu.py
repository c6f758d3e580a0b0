"""Speed on one NVIDIA GPU: kernels and whole steps against the card's own rates, and growth.

    python benchmarks/gpu.py [--out FILE.md] [--json FILE] [--particles 100000] [--quick]
    python benchmarks/gpu.py --precision-table --most --data-root DATA

The first command measures, in one run:

1. rates: bytes per second of a large copy, operations per second of large products;
2. kernels: the least bytes and operations of each, its time, its share of those rates;
3. stages: every stage of the presets mnist and cifar10 through `ImageFlow.fit`, on made-up pictures:
   milliseconds per step, how much of that the GPU works, and the sum for 100 steps per stage;
4. growth: seconds per step against the number of particles and of pixels, with straight lines.

The second prints trade-offs on MNIST instead: precision, and how many columns a step looks at.
A machine without a GPU gets a message and exit status 2.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import torch
import trade_offs
from floors import Rates
from gpu_growth import growth
from gpu_kernels import kernel_cases, kernels_text, measured_kernels
from gpu_stages import measured_stages, stages_text
from presets import CIFAR10, MNIST
from report import facts, seconds_text, signature
from timing import own_seconds

from sliceflow import datasets


def measured_rates(device: torch.device, n_bytes: int = 1 << 31, side: int = 4096) -> Rates:
    """Of a copy of `n_bytes`, bytes read plus written, and of products of side × side matrices."""
    source = torch.randn(n_bytes // 4, device=device)
    target = torch.empty_like(source)
    copy = 2 * n_bytes / own_seconds(lambda: target.copy_(source), device)
    left, right = torch.randn((2, side, side), device=device)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")  # TF32
    tf32 = 2 * side**3 / own_seconds(lambda: torch.mm(left, right), device)
    torch.set_float32_matmul_precision(before)
    left16, right16 = left.half(), right.half()
    half = 2 * side**3 / own_seconds(lambda: torch.mm(left16, right16), device)
    return Rates(copy, half, tf32)


def speed(
    k: ModuleType,
    pack: Callable[..., object],
    m: int,
    device: torch.device,
    plot: Path,
    *,
    quick: bool,
    labels: bool,
) -> Iterator[tuple[str, object, str]]:
    """The four parts, each as (title, numbers, text), as soon as it is measured."""
    rates = measured_rates(device)
    text = (
        f"Copying {rates.copy / 1e12:.2f} TB/s (2 GiB, bytes read plus written); products of 4096² "
        f"matrices {rates.half / 1e12:.0f} Tflop/s with float16 operands, {rates.tf32 / 1e12:.0f} "
        "with TF32. Shares below are of the first and the second."
    )
    yield "Rates", asdict(rates), text

    rows = measured_kernels(kernel_cases(k, pack, m, device, quick=quick), rates, device)
    yield "Kernels", rows, kernels_text(rows, rates)

    steps = {"n_steps": 9, "n_profiled": 5} if quick else {}
    numbers = measured_stages(MNIST, m, rates, device, **steps)
    yield "Stages of mnist", numbers, stages_text(numbers)
    if labels:  # twice as many particles as pictures: equal shares of classes need no weights
        numbers = measured_stages(MNIST, 2 * MNIST.n_data, rates, device, labels=True, **steps)
        yield "Stages of mnist, labels", numbers, stages_text(numbers)
    if not quick:
        numbers = measured_stages(CIFAR10, m, rates, device)
        yield "Stages of cifar10", numbers, stages_text(numbers)

    fewer = {"factors": (0.25, 1, 4), "sides": (8, 16, 32), "n_steps": 9} if quick else {}
    yield "Growth", *growth(m, device, plot, **fewer)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for, print it as it comes, and write it where asked."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="write the tables here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers here")
    parser.add_argument("--particles", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help="fewer sizes and steps, no cifar10")
    parser.add_argument("--labels", action="store_true", help="also the stages of mnist with labels")
    parser.add_argument("--precision-table", action="store_true", help="MNIST by precision, instead")
    parser.add_argument("--most", action="store_true", help="MNIST by columns looked at, instead")
    parser.add_argument("--steps", type=int, default=30, help="steps per stage of those two tables")
    parser.add_argument("--data-root", help="where MNIST lies, for those two tables")
    args = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print(
            "benchmarks/gpu.py measures an NVIDIA GPU, but torch sees none here; "
            "benchmarks/cpu.py measures a CPU",
            file=sys.stderr,
        )
        return 2
    try:
        from sliceflow.kernels import triton as gpu
        from sliceflow.kernels.triton import values as gpu_values
    except ImportError as error:
        print(f"the GPU's kernels need Triton, which cannot be imported: {error}", file=sys.stderr)
        return 2

    began = time.perf_counter()
    device = torch.device("cuda", torch.cuda.current_device())
    if args.precision_table or args.most:
        train, test = (datasets.load("mnist", split, args.data_root) for split in ("train", "test"))
        parts = trade_offs.tables(
            train,
            test,
            "mnist",
            args.particles,
            args.steps,
            precisions=args.precision_table,
            most=args.most,
        )
    else:
        plot = (args.out or Path(__file__)).with_suffix(".png")
        options = {"quick": args.quick, "labels": args.labels}
        parts = speed(gpu, gpu_values.pack, args.particles, device, plot, **options)
    numbers: dict[str, object] = {}
    sections = []
    for title, values, text in parts:
        numbers[title] = values
        sections.append(f"### {title}\n\n{text}\n")
        print(sections[-1], flush=True)
        print(f"{time.perf_counter() - began:.0f} s so far", file=sys.stderr, flush=True)

    about = facts(device)
    closing = signature(about, " ".join(["python benchmarks/gpu.py", *arguments])) + (
        f" The run took {seconds_text(time.perf_counter() - began)}, compiling included."
    )
    print(closing)
    if args.json:
        args.json.write_text(json.dumps({"machine": about, **numbers}, indent=2) + "\n")
    if args.out:
        heading = f"## One {about['machine']}, {about['date']}"
        args.out.write_text("\n".join([heading, "", closing, "", *sections]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
