"""How much samples of vectors depend on the seed, and on small changes of the rows.

    OMP_NUM_THREADS=1 python benchmarks/spread_vectors.py

`SlicedWassersteinFlow` fits three quarters of the rows of a data set, and chooses how
far it spreads them. The held-out quarter stays the same; what changes from run to run
is one of

seeds       the seed of the fit and of the draws
perturbed   every number, by a millionth of a deviation, with one seed
resampled   a tenth of the rows, which other rows replace, with one seed

Printed are the sliced distance of samples to held-out rows, its median and its worst
over runs, their ratio, and the bandwidths that were chosen. A choice that sits on a
cliff makes the ratio large.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from report import markdown_table, script_parser
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_wine,
    make_moons,
)
from spread import CHANGES, perturb, resample

from sliceflow import SlicedWassersteinFlow

HEADER = (
    "set",
    "what changes",
    "runs",
    "median",
    "worst",
    "worst / median",
    "bandwidths",
)
FITTED_SHARE = 0.75


def data_sets() -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Names and rows, each with two to eight columns."""
    yield "moons", make_moons(600, noise=0.08, random_state=3)[0]
    yield "wine", load_wine().data[:, :6]
    yield "cancer", load_breast_cancer().data[:, :8]
    yield "diabetes", load_diabetes().data[:, [2, 3, 4, 8]]


def fit_changed(
    rows: NDArray[np.float64], change: str, run: int
) -> SlicedWassersteinFlow:
    """The flow of one run."""
    rng = np.random.default_rng(run + 1)
    seed = 0
    if change == "seeds":
        seed = run
    elif change == "perturbed":
        rows = perturb(pd.DataFrame(rows), rng).to_numpy()
    else:
        rows = rows[resample(pd.DataFrame(rows), rng)]
    flow = SlicedWassersteinFlow(n_particles=2000, random_state=seed, device="cpu")
    return flow.fit(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one table."""
    parser = script_parser(__doc__)
    parser.add_argument("--changes", nargs="+", choices=CHANGES, default=CHANGES)
    parser.add_argument("--runs", type=int, default=10)
    args = parser.parse_args(arguments)
    cells = []
    for name, rows in data_sets():
        shuffled = np.random.default_rng(5).permutation(rows)
        n_fitted = int(FITTED_SHARE * len(rows))
        held_out = shuffled[n_fitted:]
        for change in args.changes:
            distances = []
            bandwidths = []
            for run in range(args.runs):
                flow = fit_changed(shuffled[:n_fitted], change, run)
                distances.append(-flow.score(held_out))
                bandwidths.append(float(flow.plan_.bandwidth or 0))
            median = float(np.median(distances))
            worst = max(distances)
            numbers = [f"{median:.4f}", f"{worst:.4f}", f"{worst / median:.2f}"]
            chosen = f"{min(bandwidths):.2f} to {max(bandwidths):.2f}"
            cells.append([name, change, str(args.runs), *numbers, chosen])
    print(markdown_table(HEADER, cells))


if __name__ == "__main__":
    main()
