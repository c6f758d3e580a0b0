"""Why directions are local, and why there is a pyramid: Figure 2 of Du et al. (ICML 2023).

    python examples/local_and_pyramid.py --out examples-out
    python examples/local_and_pyramid.py --dataset mnist --data-root DATA --n-particles 60000

writes `local_and_pyramid.png`. Three flows of equally many steps: directions over the whole picture;
local directions, patches from large to small, at full resolution; local directions and a pyramid of
resolutions, from coarse to fine. Under each are its distance to the test pictures (FD-PCA32, small is
good) and its NN ratio (1 is good, 0 is copying), measured on 2000 batched samples.
"""

import numpy as np
from grids import BLUE, INK, arguments, panels, read, rows, save, settings, show

from sliceflow import ImageFlow
from sliceflow.metrics import frechet_distance_pca, nn_ratio
from sliceflow.schedule import auto, from_string


def main() -> None:
    """Fit three flows, draw and measure their particles."""
    args = arguments(__doc__)
    train, test = read(args)
    h, w = train.images.shape[1:3]
    pyramid = auto(h, w)
    finest = pyramid.split()[-1]
    total = args.quality * len(from_string(pyramid, h, w))
    ways = [
        ("whole picture", f"{max(h, w)}[{max(h, w)}]"),
        ("local", finest),
        ("local and pyramid", pyramid),
    ]
    train_rows, test_rows = (rows(part.images, part.levels) for part in (train, test))

    def score(images: np.ndarray) -> str:
        samples, unseen = rows(images[:2000], train.levels), test_rows[:2000]
        distance = frechet_distance_pca(samples, unseen, train_rows)
        return f"FD-PCA32 {distance:.2f}, NN ratio {nn_ratio(samples, train_rows, unseen):.2f}"

    floor = frechet_distance_pca(train_rows[:2000], test_rows[:2000], train_rows)
    grids = [("real training pictures", train.images, f"FD-PCA32 {floor:.2f} (the floor)")]
    for name, text in ways:
        steps = max(1, round(total / len(from_string(text, h, w))))
        chosen = settings(args, train) | {"schedule": text, "quality": steps, "n_knots": 0}
        flow = ImageFlow(**chosen).fit(train.images)
        grids.append((name, flow.particles_, score(flow.particles_)))
        print(f"{name}: {flow.n_iter_} steps, {grids[-1][2]}")

    fig, axes = panels(4, 14, 4.2)
    for ax, (name, images, numbers) in zip(axes, grids, strict=True):
        grid = images[:64].reshape(8, 8, *images.shape[1:])
        show(ax, grid, train.levels, name, colour=INK if ax is axes[0] else BLUE)
        ax.set_xlabel(numbers, fontsize=11)
    fig.suptitle(f"{train.name}, no labels: {total} steps each, {args.n_particles} particles")
    print("wrote", save(fig, args.out / "local_and_pyramid.png"))


if __name__ == "__main__":
    main()
