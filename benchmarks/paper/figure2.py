"""Figure 2: uniform directions, local ones, local ones in a pyramid; equally many steps.

python -m benchmarks.paper.figure2 --scale full --data-root DATA
"""

from collections.abc import Sequence

import local_and_pyramid
from runs import name

from .common import command, number


def main(arguments: Sequence[str] | None = None) -> dict:
    """Draw the ablation of each set."""
    run = command("Figure 2: local directions, pyramid", "figure2", __doc__, arguments)
    rows, lines = {}, []
    for dataset in run.sets("mnist", "cifar10"):
        train, test = run.read(dataset)
        made = local_and_pyramid.draw(run.path(dataset, train), train, test, run.settings(dataset))
        rows[dataset] = made
        costs = [None, *made["fits"]]  # real pictures were not fitted
        for (way, score), cost in zip(made["scores"].items(), costs, strict=True):
            work = ["", ""] if cost is None else [f"{cost.steps:,}", f"{cost.seconds:.1f}"]
            scores = (number(score.get(key)) for key in ("FD-PCA32", "NN ratio"))
            lines.append([name(train), way, *work, *scores])
    header = ["set", "directions", "steps", "seconds", "FD-PCA32", "NN ratio"]
    return run.finish(header, lines, {"rows": rows})


if __name__ == "__main__":
    main()
