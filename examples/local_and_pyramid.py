"""Why directions are local, and why there is a pyramid: Figure 2 of Du et al. (2023).

    python examples/local_and_pyramid.py --out examples-out
    python examples/local_and_pyramid.py --dataset mnist --data-root DATA

writes `local_and_pyramid.png`. Three flows of equally many steps: uniform directions,
over the whole picture; local directions, patches from large to small, at full
resolution; local directions and a pyramid of resolutions, from coarse to fine. Under
each are its distance to the test pictures (FD-PCA32, small is good) and its NN ratio (1
is good, 0 is copying), measured on 2000 batched samples.
"""

from pathlib import Path

import numpy as np
from grids import BLUE, INK, Panel, sheet
from nearest import nn_ratio
from runs import arguments, name, read, rows, samples, settings

from sliceflow.datasets import PictureSet
from sliceflow.estimators.pictures.schedules import auto, from_string
from sliceflow.metrics import frechet_distance_pca

N_TEST = 2000  # pictures that samples are compared with
N_TRAIN = 10_000  # pictures whose principal components the distance uses


def schedules(height: int, width: int) -> dict[str, str]:
    """The schedules of the three flows, by name."""
    side = max(height, width)
    pyramid = auto(height, width)
    at_full_resolution = [
        entry for entry in pyramid.split() if entry.startswith(f"{side}[")
    ]
    return {
        "uniform": f"{side}[{side}]",
        "local": at_full_resolution[0],
        "local + pyramid": pyramid,
    }


def random_rows(pictures: PictureSet, n: int, rng: np.random.Generator) -> np.ndarray:
    """n pictures at random, as rows.

    A set has an order: MNIST's digits come in cycles of ten, and by writers.
    """
    chosen = rng.permutation(len(pictures.images))[:n]
    return rows(pictures.images[chosen], pictures.n_pixel_values)


def grid(images: np.ndarray) -> np.ndarray:
    """The first 48 pictures as a grid."""
    return images[:48].reshape(8, 6, *images.shape[1:])


def draw(path: Path, train: PictureSet, test: PictureSet, settings: dict) -> dict:
    """Fit three flows, draw and measure their particles."""
    h, w = train.images.shape[1:3]
    steps_per_stage = settings["steps_per_stage"]
    rng = np.random.default_rng(0)
    test_rows = random_rows(test, N_TEST, rng)
    train_rows = random_rows(train, N_TRAIN, rng)
    stages = from_string(auto(h, w), h, w, steps_per_stage)
    n_steps = sum(stage.n_steps for stage in stages)

    reference = frechet_distance_pca(train_rows[:N_TEST], test_rows, train_rows)
    panels = [Panel(grid(train.images), "real", INK, note=f"FD-PCA32 {reference:.2f}")]
    scores = {"real": {"FD-PCA32": reference}}
    costs = []
    for flow_name, schedule in schedules(h, w).items():
        # Clusters would help all three.
        changes = {"n_clusters": 1}
        if schedule != auto(h, w):
            n_stages = len(from_string(schedule, h, w))
            changes["schedule"] = schedule
            changes["steps_per_stage"] = max(1, round(n_steps / n_stages))
        images, cost = samples(train, **settings | changes)
        sample_rows = rows(images, train.n_pixel_values)
        distance = frechet_distance_pca(sample_rows, test_rows, train_rows)
        ratio = nn_ratio(images, train, test, settings["device"])
        costs.append(cost)
        scores[flow_name] = {"FD-PCA32": distance, "NN ratio": ratio}
        title = f"{flow_name}: {cost.time}"
        note = f"FD-PCA32 {distance:.2f}, NN ratio {ratio:.2f}"
        panels.append(Panel(grid(images), title, BLUE, note=note))
    title = (
        f"{name(train)}, no labels: equally many steps, "
        f"{costs[0].particles:,} particles"
    )
    sheet(path, panels, train.n_pixel_values, title)
    return {"fits": costs, "scores": scores}


def main() -> None:
    """Draw the three flows of one set."""
    args = arguments(__doc__)
    train, test = read(args)
    path = args.out / "local_and_pyramid.png"
    results = draw(path, train, test, settings(args))
    for flow_name, numbers in results["scores"].items():
        shown = [f"{what} {number:.2f}" for what, number in numbers.items()]
        print(f"{flow_name}:", ", ".join(shown))
    print("wrote", path)


if __name__ == "__main__":
    main()
