"""Does a fit of vectors copy its rows? With smoothing, the default, and without.

    OMP_NUM_THREADS=1 python benchmarks/copying.py
    python benchmarks/copying.py --sets wine --seeds 1

Half of the rows are fitted, the other half held out; columns are standardised by the fitted rows. Every
number is the median over seeds, which choose the halves, the two moons and the flow.

h          the smoothing that the fitted rows choose
NN ratio   median distance to the nearest fitted row, over that of held-out rows: 1 is ideal, 0 copies
copies     share of samples nearer to a fitted row than the nearest 1 % of held-out rows: .01 is ideal
strays     share of samples farther from the fitted rows than any held-out row
forest     how often a random forest tells samples from held-out rows, equally many of both: .5 is ideal
SW₂        sliced distance to the held-out rows
CPU s      seconds of the fit
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from report import facts, signature, table
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine, make_moons
from sklearn.model_selection import train_test_split

from sliceflow import SlicedWassersteinFlow, VectorOptions, metrics

COLUMNS = ("h", "NN ratio", "copies", "strays", "forest", "SW₂", "CPU s")
MOST = 2_000  # samples and held-out rows that the forest sees
SMOOTHING = {"off": 0.0, "auto": "auto"}


def moons(n: int, noise: float) -> Callable[[int], np.ndarray]:
    """Twice n rows of two moons, for a seed."""
    return lambda seed: np.asarray(make_moons(2 * n, noise=noise, random_state=seed)[0])


SETS: dict[str, Callable[[int], np.ndarray]] = {
    "moons-500-.05": moons(500, 0.05),
    "moons-500-.1": moons(500, 0.1),
    "moons-2000-.05": moons(2000, 0.05),
    "moons-2000-.1": moons(2000, 0.1),
    "wine": lambda _: load_wine().data,
    "diabetes": lambda _: load_diabetes(scaled=False).data,
    "breast-cancer": lambda _: load_breast_cancer().data,
}


def measured(rows: np.ndarray, smoothing: float | str, seed: int, n_steps: int) -> np.ndarray:
    """The columns of the table, of batched and of offline samples: (2, 7)."""
    train, held = train_test_split(rows, test_size=0.5, random_state=seed)
    mean, std = train.mean(0), train.std(0)
    options = VectorOptions(smoothing=smoothing)
    flow = SlicedWassersteinFlow(n_steps=n_steps, random_state=seed, device="cpu", options=options)
    began = time.process_time()
    flow.fit(train)
    seconds = time.process_time() - began
    some = np.random.default_rng(seed).permutation(len(flow.particles_))[: 2 * MOST]
    both = (np.asarray(flow.particles_)[some], flow.sample(2 * MOST, random_state=seed))
    train, held, *both = ((x - mean) / np.where(std > 0, std, 1) for x in (train, held, *both))
    return np.array(
        [
            [
                flow.plan_.smoothing,
                metrics.nn_ratio(x, train, held, device="cpu"),
                metrics.copies(x, train, held, device="cpu"),
                metrics.strays(x, train, held, device="cpu"),
                metrics.two_sample_accuracy(x[:MOST], held[:MOST], n_trees=100),
                metrics.sliced_wasserstein(x, held),
                seconds,
            ]
            for x in both
        ]
    )


def cells(numbers: np.ndarray) -> list[str]:
    """A line of the table."""
    h, ratio, near, far, told, distance, seconds = numbers.tolist()
    shares = [f"{100 * share:.1f} %" for share in (near, far)]
    return [f"{h:.2f}", f"{ratio:.2f}", *shares, f"{told:.3f}", f"{distance:.3f}", f"{seconds:.1f}"]


def main(arguments: Sequence[str] | None = None) -> str:
    """Measure the sets that are asked for, and return the table."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--smoothing", nargs="+", choices=SMOOTHING, default=list(SMOOTHING))
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args(arguments)
    lines = []
    for name in args.sets:
        for option in args.smoothing:
            found = [
                measured(SETS[name](seed), SMOOTHING[option], seed, args.steps)
                for seed in range(args.first_seed, args.first_seed + args.seeds)
            ]
            for kind, numbers in zip(("batched", "offline"), np.median(found, axis=0), strict=True):
                lines.append([f"{name}, smoothing {option}, {kind}", *cells(numbers)])
                print(*lines[-1], file=sys.stderr, flush=True)
    command = " ".join(["python benchmarks/copying.py", *arguments])
    text = table(["set", *COLUMNS], lines)
    text += f"\n\n{signature(facts(torch.device('cpu')), command)}"
    print(text)
    return text


if __name__ == "__main__":
    main()
