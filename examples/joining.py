"""Clothes join digits: a model learns new classes without the old ones, and forgets.

    python examples/joining.py --out examples-out
    python examples/joining.py --data-root DATA --device cuda --steps-per-stage 8

writes `joining.png`: samples after a fit of the first classes, after `partial_fit` of
the others, and after `forget` of one. The model keeps its rows, so forgetting leaves no
trace: the file is, byte for byte, that of a model that never saw the class.
"""

from pathlib import Path

import numpy as np
from grids import BLUE, ORANGE, Panel, by_class, sheet
from runs import arguments

from sliceflow import ImageFlow
from sliceflow.datasets import load


def digits_and_clothes(root: Path | None) -> tuple[np.ndarray, np.ndarray, int]:
    """Pictures, their labels, and the number of values of a pixel.

    Without data sets the digits from 5 on stand for the clothes.
    """
    if root is None:
        digits = load("digits")
        return digits.images, digits.labels, digits.n_pixel_values
    digits = load("mnist", root=root)
    clothes = load("fashion-mnist", root=root)
    images = np.concatenate((digits.images, clothes.images))
    labels = np.concatenate((digits.labels, clothes.labels + 10))
    return images, labels, 256


def panel(flow: ImageFlow, title: str, color: str) -> Panel:
    """Six batched samples of each class that the flow knows."""
    grid = by_class(flow.particles_, flow.particle_conditions_, 6)
    return Panel(grid, title, color)


def main() -> None:
    """Fit, add, forget, and draw."""
    args = arguments(__doc__)
    images, labels, n_pixel_values = digits_and_clothes(args.data_root)
    n_classes = len(np.unique(labels))
    first_classes = labels < n_classes // 2
    last_class = labels == labels.max()
    flow = ImageFlow(
        steps_per_stage=args.steps_per_stage,
        n_particles=args.n_particles,
        n_pixel_values=n_pixel_values,
        save_rows=True,  # so that rows can be added and forgotten
        device=args.device,
        random_state=0,
    )

    flow.fit(images[first_classes], labels[first_classes])
    panels = [panel(flow, "fit", BLUE)]
    flow.partial_fit(images[~first_classes], labels[~first_classes])
    panels.append(panel(flow, "partial_fit of the others", ORANGE))
    flow.forget(images[last_class], labels[last_class])
    panels.append(panel(flow, "forget the last class", BLUE))

    title = "Classes that join, and one that goes"
    print("wrote", sheet(args.out / "joining.png", panels, n_pixel_values, title))


if __name__ == "__main__":
    main()
