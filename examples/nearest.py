"""Is it copying? Samples beside the training pictures that are nearest to them.

    python examples/nearest.py --out examples-out

writes `neighbors.png`. Left: batched samples, no labels. Right: test pictures, which
no model has seen, as the measure of what to expect. After each, its five nearest
training pictures. The samples are copies if they look more like their neighbors than
the test pictures look like theirs.
"""

from pathlib import Path

import numpy as np
from grids import BLUE, INK, Panel, sheet
from runs import arguments, mirrored, name, read, samples, settings

from sliceflow import metrics
from sliceflow.datasets import PictureSet

N_ROWS = 10  # pictures shown
N_NEAREST = 5  # of each
MAX_COMPARED = 2000  # enough for two digits of the NN ratio


def nn_ratio(
    images: np.ndarray, train: PictureSet, test: PictureSet, device: str = "auto"
) -> float:
    """`sliceflow.metrics.nn_ratio` of at most 2000 pictures, as they were fitted."""
    return metrics.nn_ratio(
        images[:MAX_COMPARED],
        train.images,
        test.images[:MAX_COMPARED],
        mirror=mirrored(train),
        device=device,
    )


def panels_beside_nearest(
    images: np.ndarray, title: str, color: str, train: PictureSet, device: str
) -> list[Panel]:
    """Pictures with their distance to the nearest training picture, and these."""
    images = images[:N_ROWS]
    neighbors, distances = metrics.nearest_pictures(
        images, train.images, N_NEAREST, mirror=mirrored(train), device=device
    )
    # In units in which pixels are in [-1, 1], as in the metrics.
    unit = (train.n_pixel_values - 1) / 2
    row_names = [f"{distance / unit:.1f}" for distance in distances[:, 0]]
    return [
        Panel(images[:, None], title, color, row_names=row_names),
        Panel(neighbors, "nearest training pictures"),
    ]


def draw(path: Path, train: PictureSet, test: PictureSet, settings: dict) -> dict:
    """Fit, find the neighbors, draw them."""
    device = settings["device"]
    images, cost = samples(train, **settings)
    ratio = nn_ratio(images, train, test, device)
    panels = [
        *panels_beside_nearest(images, "sample", BLUE, train, device),
        *panels_beside_nearest(test.images, "test", INK, train, device),
    ]
    title = (
        f"{name(train)}, no labels: {cost}. Numbers are distances to the nearest "
        f"training picture. NN ratio {ratio:.2f} (1 is ideal, near 0 is copying)."
    )
    sheet(path, panels, train.n_pixel_values, title)
    return {"fits": [cost], "NN ratio": ratio}


def main() -> None:
    """Draw the neighbors of one set."""
    args = arguments(__doc__)
    train, test = read(args)
    path = args.out / "neighbors.png"
    results = draw(path, train, test, settings(args))
    print(f"NN ratio {results['NN ratio']:.3f}")
    print("wrote", path)


if __name__ == "__main__":
    main()
