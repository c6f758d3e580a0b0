"""Why directions are local, and why there is a pyramid: Figure 2 of Du et al. (ICML 2023).

    python examples/local_and_pyramid.py --out examples-out
    python examples/local_and_pyramid.py --dataset mnist --data-root DATA --n-particles 60000

writes `local_and_pyramid.png`. Three flows of equally many steps: uniform directions, over the whole
picture; local directions, patches from large to small, at full resolution; local directions and a
pyramid of resolutions, from coarse to fine. Under each are its distance to the test pictures (FD-PCA32,
small is good) and its NN ratio (1 is good, 0 is copying), measured on 2000 batched samples.
"""

from pathlib import Path

import numpy as np
from grids import BLUE, INK, Panel, sheet
from nearest import nn_ratio
from runs import arguments, name, read, rows, samples, settings

from sliceflow.datasets import Pictures
from sliceflow.metrics import frechet_distance_pca
from sliceflow.spaces.pictures.schedules import auto, from_string


def draw(path: Path, train: Pictures, test: Pictures, settings: dict) -> dict:
    """Fit three flows, draw and measure their particles."""
    h, w = train.images.shape[1:3]
    pyramid = auto(h, w)
    side = max(h, w)
    total = sum(
        stage.n_steps for stage in from_string(pyramid, h, w, settings["quality"])
    )
    strategies = [
        ("uniform", {"schedule": f"{side}[{side}]"}),
        (
            "local",
            {
                "schedule": next(
                    word for word in pyramid.split() if word.startswith(f"{side}[")
                )
            },
        ),
        ("local + pyramid", {}),
    ]
    settings = settings | {"n_clusters": 1}  # they help all three
    # At random: a set has an order (MNIST's digits come in cycles of ten, and by writers).
    rng = np.random.default_rng(0)
    unseen, seen = (
        rows(part.images[rng.permutation(len(part.images))[:n]], part.n_pixel_values)
        for part, n in ((test, 2000), (train, 10_000))
    )

    def grid(images: np.ndarray) -> np.ndarray:
        return images[:48].reshape(8, 6, *images.shape[1:])

    floor = frechet_distance_pca(seen[:2000], unseen, seen)
    panels = [Panel(grid(train.images), "real", INK, note=f"FD-PCA32 {floor:.2f}")]
    costs = []
    scores = {"real": {"FD-PCA32": floor}}
    for strategy, changed in strategies:
        if "schedule" in changed:
            changed["quality"] = max(
                1, round(total / len(from_string(changed["schedule"], h, w)))
            )
        images, cost = samples(train, **settings | changed)
        distance = frechet_distance_pca(
            rows(images, train.n_pixel_values), unseen, seen
        )
        ratio = nn_ratio(images, train, test, settings["device"])
        costs.append(cost)
        scores[strategy] = {"FD-PCA32": distance, "NN ratio": ratio}
        note = f"FD-PCA32 {distance:.2f}, NN ratio {ratio:.2f}"
        panels.append(Panel(grid(images), f"{strategy}: {cost.time}", BLUE, note=note))
    title = f"{name(train)}, no labels: equally many steps, {costs[0].particles:,} particles"
    sheet(path, panels, train.n_pixel_values, title)
    return {"fits": costs, "scores": scores}


def main() -> None:
    """Draw the three flows of one set."""
    args = arguments(__doc__)
    path = args.out / "local_and_pyramid.png"
    for strategy, numbers in draw(path, *read(args), settings(args))["scores"].items():
        print(
            f"{strategy}:",
            ", ".join(f"{what} {number:.2f}" for what, number in numbers.items()),
        )
    print("wrote", path)


if __name__ == "__main__":
    main()
