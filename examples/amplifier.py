"""What the amplifier ξ does: the same class-conditional flow with ξ = 0, 2, 5 and 10.

    python examples/amplifier.py --out examples-out

writes `amplifier.png`. Each row was asked for one class. At ξ = 0 the flow does not see
the classes; the larger ξ, the further they are held from each other. The number over
each grid is the share of samples that a classifier, trained on real pictures,
recognizes as the class asked for.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from grids import BLUE, Panel, by_class, sheet
from runs import arguments, class_names, fit, name, read, rows, settings
from sklearn.svm import SVC

from sliceflow.datasets import PictureSet

AMPLIFIERS = (0, 2, 5, 10)  # those of the paper
N_TRAIN = 10_000  # pictures that the classifier learns from; more would take long
N_JUDGED = 1000  # samples of each flow: the share is known to a percent or two

# From pictures (n, h, w[, c]) to their classes (n,).
Classifier = Callable[[np.ndarray], np.ndarray]


def support_vector_machine(train: PictureSet) -> Classifier:
    """A classifier of real pictures."""
    X = rows(train.images[:N_TRAIN], train.n_pixel_values)
    svm = SVC().fit(X, train.labels[:N_TRAIN])
    return lambda images: svm.predict(rows(images, train.n_pixel_values))


def recognized(judge: Classifier, images: np.ndarray, labels: np.ndarray) -> float:
    """The share of pictures that a classifier recognizes as their class."""
    return float(np.mean(judge(images[:N_JUDGED]) == labels[:N_JUDGED]))


def draw(
    path: Path,
    train: PictureSet,
    test: PictureSet,
    settings: dict,
    judge: Classifier | None = None,
) -> dict:
    """Fit four flows, draw them, and let a classifier judge them.

    It is a support vector machine, unless another one is given.
    """
    if judge is None:
        judge = support_vector_machine(train)
    panels = []
    costs = []
    shares = {}
    row_names = class_names(train)
    for amplifier in AMPLIFIERS:
        flow, cost = fit(
            train, train.labels, **settings, amplifier=amplifier, n_knots=0
        )
        images = flow.particles_
        labels = flow.particle_conditions_
        costs.append(cost)
        shares[amplifier] = recognized(judge, images, labels)
        title = f"ξ = {amplifier}: {shares[amplifier]:.1%} recognized"
        panels.append(
            Panel(by_class(images, labels, 6), title, BLUE, row_names=row_names)
        )
        row_names = []  # only the first panel names the classes
    share_of_real = recognized(judge, test.images, test.labels)
    title = (
        f"{name(train)} by class: {costs[-1]} each. Of real test pictures, "
        f"{share_of_real:.1%} are recognized"
    )
    sheet(path, panels, train.n_pixel_values, title)
    return {
        "fits": costs,
        "recognized": shares,
        "real ones recognized": share_of_real,
    }


def main() -> None:
    """Draw four amplifiers of one set."""
    args = arguments(__doc__)
    train, test = read(args)
    path = args.out / "amplifier.png"
    results = draw(path, train, test, settings(args))
    for amplifier, share in results["recognized"].items():
        print(f"amplifier {amplifier}: {share:.3f} recognized as the class asked for")
    print("wrote", path)


if __name__ == "__main__":
    main()
