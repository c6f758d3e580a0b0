"""Ranks on this machine: milliseconds of a step, how much of them is messages, and the messages' bytes.

    python benchmarks/scaling.py --ranks 1 2

starts torchrun for every number of ranks, on CPUs with one thread each. Times are medians over steps on
the first rank: of the clock, of its processor, and inside of messages, waiting for the others included.

    python benchmarks/scaling.py --model

prints what the cost model of docs/scaling.md says of 8 GPUs and of 64 nodes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np
import torch.distributed as dist
from made_up import pictures
from report import table

from sliceflow import ImageFlow, PictureOptions, SlicedWassersteinFlow, VectorOptions
from sliceflow.engine.transports import Histogram
from sliceflow.models.ranks import Ranks, joined

__all__ = ["Messages", "Stage", "main", "measured", "sent_per_link"]

HEADS = ["what", "ranks", "ms per step", "CPU ms", "ms in messages", "kB summed", "kB sent per link"]


@dataclass(frozen=True)
class Stage:
    """The cost of a step: milliseconds per 100,000 columns on one H200 (RESULTS-H200.md), and messages.

    Counting 3072 directions takes 1.18 ms with 256 bins, 3.22 with 1024. Assumed, not measured: 0.3 ms
    of the host; inside a node 200 GB/s and 30 µs per message; between nodes 40 GB/s for each GPU and
    100 µs.
    """

    name: str
    directions: int
    move: float
    project: float

    def work(self, particles: float, data: float, n_bins: int) -> float:
        """Milliseconds of one GPU with so many particles and data."""
        count = {256: 1.18, 1024: 3.22}[n_bins] * self.directions / 3072
        return (self.move * particles + (self.project + count) * (particles + data)) / 1e5

    def summed(self, n_bins: int) -> float:
        """Bytes of counts and ranges that are added up."""
        return self.directions * (2 * 4 * n_bins + 16)

    def messages(self, n_bins: int, nodes: int) -> float:
        """Milliseconds of both messages, 8 GPUs to a node."""
        inside = sent_per_link(self.summed(n_bins), 8)
        between = sent_per_link(self.summed(n_bins) / 8, nodes)
        return 1e3 * (inside / 200e9 + between / 40e9) + 2 * (0.03 + (0.1 if nodes > 1 else 0))


STAGES = (
    Stage("28×28, patch 7", 1225, 0.67, 0.33),
    Stage("28×28, patch 15", 2025, 1.62, 0.73),
    Stage("32×32×3, patch 5", 3675, 2.75, 1.20),
    Stage("32×32×3, patch 15", 6075, 4.94, 3.58),
)
HOST = 0.3  # ms


def model() -> str:
    """The cost model's table: M = 10⁶ on 1 and 8 GPUs, M = 10⁹ on 64 nodes of 8."""
    heads = ["stage", "bins", "MB summed", "1 GPU, 10⁶", "8 GPUs, 10⁶", "of it messages"]
    rows = []
    for stage in STAGES:
        for n_bins in (256, 1024):
            one, eight = (stage.work(1e6 / r, 6e4 / r, n_bins) + HOST for r in (1, 8))
            here, there = (stage.messages(n_bins, nodes) for nodes in (1, 64))
            many = stage.work(1e9 / 512, 1e7 / 512, n_bins) + HOST
            numbers = [stage.summed(n_bins) / 1e6, one, eight + here, here, many + there, there]
            rows.append([stage.name, str(n_bins), *(f"{v:.3g}" for v in numbers)])
    return table([*heads, "64 nodes, 10⁹", "of it messages"], rows)


class Messages:
    """Listens to ``all_reduce``: seconds and bytes since they were last asked for."""

    def __init__(self) -> None:
        self.seconds, self.bytes, self._said = 0.0, 0, dist.all_reduce
        dist.all_reduce = self

    def __call__(self, tensor, *args):
        began = time.perf_counter()
        self._said(tensor, *args)
        self.seconds += time.perf_counter() - began
        self.bytes += tensor.nbytes

    def taken(self) -> tuple[float, int]:
        out = self.seconds, self.bytes
        self.seconds, self.bytes = 0.0, 0
        return out


def sent_per_link(n_bytes: float, ranks: int) -> float:
    """Bytes that every rank sends to its neighbour when a ring of them adds up so many."""
    return 2 * (ranks - 1) / ranks * n_bytes


def cases(particles: int, steps: int) -> dict:
    """Name, estimator and data: pictures of one stage, and vectors."""
    histogram = Histogram(256, most=None)
    flow = dict(n_particles=particles, transport=histogram, random_state=0, device="cpu")
    digits = pictures((1, 28, 28), 10_000)
    rows = np.random.default_rng(0).normal(size=(10_000, 64))
    return {
        "28×28, patch 7": (
            ImageFlow("28[7]", quality=steps, options=PictureOptions(n_knots=0), **flow),
            digits,
        ),
        "64 columns": (
            SlicedWassersteinFlow(n_steps=steps, options=VectorOptions(n_axis_steps=0), **flow),
            rows,
        ),
    }


def measured(particles: int, steps: int, ranks: Ranks) -> list[list]:
    """A row of the table for each of the cases."""
    out, messages = [], Messages()
    for name, (flow, data) in cases(particles, steps).items():
        heard: list[tuple[float, ...]] = []

        def hear(_, heard=heard):
            heard.append((time.perf_counter(), time.process_time(), *messages.taken()))

        flow.fit(ranks.mine(data), ranks=ranks, listeners=(hear,))
        later = heard[2:]
        wall, cpu = (
            [1e3 * (b[i] - a[i]) for a, b in zip(heard[1:], later, strict=False)] for i in (0, 1)
        )
        size = statistics.median(row[3] for row in later)
        numbers = [statistics.median(v) for v in (wall, cpu, [1e3 * row[2] for row in later])]
        kilobytes = [size / 1e3, sent_per_link(size, ranks.size) / 1e3]
        out.append([name, ranks.size, *numbers, *kilobytes])
    return out


def main() -> None:
    """Measure as one of the ranks, or start them and print their table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--particles", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--model", action="store_true")
    given = parser.parse_args()
    if given.model:
        print(model())
        return
    if "RANK" in os.environ:
        with joined("cpu") as ranks:
            rows = measured(given.particles, given.steps, ranks)
            if ranks.first:
                print("ROWS", json.dumps(rows))
        return
    rows = []
    for n in given.ranks:
        words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n), __file__]
        words += ["--particles", str(given.particles), "--steps", str(given.steps)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        ran = subprocess.run(
            [sys.executable, *words], stdout=subprocess.PIPE, text=True, check=True, env=env
        )
        rows += json.loads(ran.stdout.split("ROWS", 1)[1])
    rows.sort(key=lambda row: str(row[0]))
    print(
        table(HEADS, [[str(v) if isinstance(v, (str, int)) else f"{v:.3g}" for v in r] for r in rows])
    )


if __name__ == "__main__":
    main()
