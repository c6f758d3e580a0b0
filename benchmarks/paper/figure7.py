"""Figure 7: the amplifier ξ = 0, 2, 5, 10 on the three sets with classes.

python -m benchmarks.paper.figure7 --scale full --data-root DATA
"""

from collections.abc import Sequence

import amplifier
from runs import name

from .common import command


def main(arguments: Sequence[str] | None = None) -> dict:
    """Draw and judge each set."""
    run = command("Figure 7: the amplifier ξ", "figure7", __doc__, arguments)
    rows, lines, scored = {}, [], {}
    for dataset in run.sets("mnist", "fashion-mnist", "cifar10"):
        train, test = run.read(dataset)
        scorer = scored[dataset] = run.scorer(train, test)
        path, settings = run.path(dataset, train), run.settings(dataset)
        made = amplifier.draw(path, train, test, settings, scorer.network.predict)
        rows[dataset] = made
        for (xi, share), cost in zip(made["recognised"].items(), made["fits"], strict=True):
            lines.append(
                [name(train), f"{xi:g}", f"{cost.steps:,}", f"{cost.seconds:.1f}", f"{share:.1%}"]
            )
        lines.append([name(train), "real test pictures", "", "", f"{made['real ones recognised']:.1%}"])
    header = ["set", "ξ", "steps", "seconds", "recognised as the class asked for"]
    return run.finish(header, lines, {"rows": rows, "scored by": scored})


if __name__ == "__main__":
    main()
