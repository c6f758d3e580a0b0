"""Figures 4 and 11: samples by class, ξ = 10, of the three sets with classes.

python -m benchmarks.paper.figure4 --scale full --data-root DATA
"""

from collections.abc import Sequence

import gallery
from runs import name

from .common import command, number

KEYS = ("FD", "FD floor", "recognised", "recognised floor", "NN ratio", "FID")


def main(arguments: Sequence[str] | None = None) -> dict:
    """Fit, draw and score each set by class."""
    run = command("Figures 4 and 11: samples by class, ξ = 10", "figure4", __doc__, arguments)
    rows, lines, scored = {}, [], {}
    for dataset in run.sets("mnist", "fashion-mnist", "cifar10"):
        train, test = run.read(dataset)
        scorer = scored[dataset] = run.scorer(train, test)
        settings = run.settings(dataset) | {"amplifier": 10.0}

        def measure(images, labels, scorer=scorer):
            return scorer.score(images, labels) | {"NN ratio": scorer.nn_ratio(images)}

        made = gallery.conditional(run.path(dataset, train), train, test, settings, measure)
        rows[dataset], (cost,) = made, made["fits"]
        scores = [number(made.get(key)) for key in KEYS]
        lines.append(
            [name(train), f"{cost.particles:,}", f"{cost.steps:,}", f"{cost.seconds:.1f}", *scores]
        )
    header = ["set", "particles", "steps", "seconds", *KEYS]
    return run.finish(header, lines, {"rows": rows, "scored by": scored})


if __name__ == "__main__":
    main()
