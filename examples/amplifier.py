"""What the amplifier ξ does: the same class-conditional flow with ξ = 0, 2, 5 and 10.

    python examples/amplifier.py --out examples-out

writes `amplifier.png`. Each row was asked for one class. At ξ = 0 the flow does not see the classes;
the larger ξ, the further apart they are held. The number over each grid is the share of samples that a
classifier, trained on real pictures, recognises as the class asked for.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from grids import BLUE, Panel, by_class, sheet
from runs import arguments, class_names, fit, name, read, rows, settings
from sklearn.svm import SVC

from sliceflow.datasets import Pictures

AMPLIFIERS = (0, 2, 5, 10)


def machine(train: Pictures) -> Callable[[np.ndarray], np.ndarray]:
    """A support vector machine that knows real pictures: it makes classes of images."""
    judge = SVC().fit(
        rows(train.images[:10_000], train.n_pixel_values), train.labels[:10_000]
    )
    return lambda images: judge.predict(rows(images, train.n_pixel_values))


def draw(
    path: Path,
    train: Pictures,
    test: Pictures,
    settings: dict,
    judge: Callable[[np.ndarray], np.ndarray] | None = None,
) -> dict:
    """Fit four flows, let a classifier (`machine`, unless another is given) judge them, draw them."""
    judge = judge or machine(train)

    def recognised(images: np.ndarray, labels: np.ndarray) -> float:
        return float(np.mean(judge(images[:1000]) == labels[:1000]))

    panels = []
    costs = []
    shares = {}
    for amplifier in AMPLIFIERS:
        flow, cost = fit(
            train, train.labels, **settings, amplifier=amplifier, n_knots=0
        )
        images = flow.particles_
        labels = flow.particle_conditions_
        costs.append(cost)
        shares[amplifier] = recognised(images, labels)
        title = f"ξ = {amplifier}: {shares[amplifier]:.1%} recognised"
        names = [] if panels else class_names(train)
        panels.append(Panel(by_class(images, labels, 6), title, BLUE, row_names=names))
    real = recognised(test.images, test.labels)
    title = f"{name(train)} by class: {costs[-1]} each. Of real test pictures, {real:.1%} are recognised"
    sheet(path, panels, train.n_pixel_values, title)
    return {"fits": costs, "recognised": shares, "real ones recognised": real}


def main() -> None:
    """Draw four amplifiers of one set."""
    args = arguments(__doc__)
    path = args.out / "amplifier.png"
    for amplifier, share in draw(path, *read(args), settings(args))[
        "recognised"
    ].items():
        print(f"amplifier {amplifier}: {share:.3f} recognised as the class asked for")
    print("wrote", path)


if __name__ == "__main__":
    main()
