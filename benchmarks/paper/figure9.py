"""Figure 9: nearest training pictures of samples, CIFAR-10 and CelebA (and the two grey sets).

python -m benchmarks.paper.figure9 --scale full --data-root DATA
"""

from collections.abc import Sequence

import gallery
import neighbours
from runs import name

from .common import command, number


def main(arguments: Sequence[str] | None = None) -> dict:
    """Draw the neighbours, and give the NN ratio."""
    run = command("Figure 9: nearest neighbours", "figure9", __doc__, arguments)
    rows, lines = {}, []
    for dataset in run.sets("mnist", "fashion-mnist", "cifar10", "celeba"):
        train, test = run.read(dataset)
        rows[dataset] = neighbours.draw(run.path(dataset, train), train, test, run.settings(dataset))
        (cost,) = rows[dataset]["fits"]
        middle = len(test.images) // 2
        others = gallery.part(test, middle, None)
        half = neighbours.nn_ratio(test.images[:middle], train, others, run.args.device)
        rows[dataset]["floor"] = half
        ratio = number(rows[dataset]["NN ratio"])
        lines.append([name(train), f"{cost.particles:,}", f"{cost.seconds:.1f}", ratio, number(half)])
    header = [
        "set",
        "particles",
        "seconds",
        "NN ratio",
        "floor: half the test pictures by the other half",
    ]
    notes = [
        "1 is ideal, near 0 is copying. Where mirror images were fitted, they count as neighbours."
    ]
    return run.finish(header, lines, {"rows": rows, "notes": notes})


if __name__ == "__main__":
    main()
