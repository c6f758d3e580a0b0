"""Is it copying? Samples beside the training pictures that are nearest to them.

    python examples/nearest.py --out examples-out

writes `neighbours.png`. Left: batched samples, no labels. Right: test pictures, which no model has
seen, as the measure of what to expect. After each, its five nearest training pictures. The samples are
copies if they look more like their neighbours than the test pictures look like theirs.
"""

from pathlib import Path

import numpy as np
from grids import BLUE, INK, Panel, sheet
from runs import arguments, mirrored, name, read, samples, settings

from sliceflow import metrics
from sliceflow.datasets import Pictures

N_ROWS = 10
N_NEAREST = 5


def nn_ratio(
    images: np.ndarray, train: Pictures, test: Pictures, device: str = "auto"
) -> float:
    """`sliceflow.metrics.nn_ratio` of at most 2000 pictures, as they were fitted."""
    few = images[:2000]
    others = test.images[:2000]
    return metrics.nn_ratio(
        few, train.images, others, mirror=mirrored(train), device=device
    )


def draw(path: Path, train: Pictures, test: Pictures, settings: dict) -> dict:
    """Fit, find the neighbours, draw them."""
    images, cost = samples(train, **settings)
    device = settings["device"]
    ratio = nn_ratio(images, train, test, device)
    panels = []
    for what, group, colour in (("sample", images, BLUE), ("test", test.images, INK)):
        group = group[:N_ROWS]
        found, distances = metrics.nearest_pictures(
            group, train.images, N_NEAREST, mirror=mirrored(train), device=device
        )
        unit = (train.n_pixel_values - 1) / 2  # pixels in [-1, 1], as in the metrics
        numbers = [f"{d / unit:.1f}" for d in distances[:, 0]]
        panels += [
            Panel(group[:, None], what, colour, row_names=numbers),
            Panel(found, "nearest training pictures"),
        ]
    title = f"{name(train)}, no labels: {cost}. Numbers are distances to the nearest training picture. "
    title += f"NN ratio {ratio:.2f} (1 is ideal, near 0 is copying)."
    sheet(path, panels, train.n_pixel_values, title)
    return {"fits": [cost], "NN ratio": ratio}


def main() -> None:
    """Draw the neighbours of one set."""
    args = arguments(__doc__)
    path = args.out / "neighbours.png"
    print(f"NN ratio {draw(path, *read(args), settings(args))['NN ratio']:.3f}")
    print("wrote", path)


if __name__ == "__main__":
    main()
