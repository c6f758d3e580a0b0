"""Figures 3, 8 and 10: samples without labels of the four sets, batched and offline.

python -m benchmarks.paper.figure3 --scale full --data-root DATA
"""

from collections.abc import Sequence

from .common import command
from .unconditional import HEADER, cells, measured


def main(arguments: Sequence[str] | None = None) -> dict:
    """Fit, draw and score the four sets."""
    run = command("Figures 3, 8 and 10: samples without labels", "figure3", __doc__, arguments)
    sets = run.sets("mnist", "fashion-mnist", "cifar10", "celeba")
    rows = {dataset: measured(run, dataset) for dataset in sets}
    scored = {dataset: row.pop("scorer") for dataset, row in rows.items()}
    lines = [line for row in rows.values() for line in cells(row)]
    return run.finish(HEADER, lines, {"rows": rows, "scored by": scored})


if __name__ == "__main__":
    main()
