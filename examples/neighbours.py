"""Is it copying? Samples beside the training pictures that are nearest to them.

    python examples/neighbours.py --out examples-out

writes `neighbours.png`. Left: batched samples, no labels. Right: test pictures, which no model has
seen, as the measure of what to expect. After each, its five nearest training pictures. The samples are
copies if they look more like their neighbours than the test pictures look like theirs.
"""

import numpy as np
from grids import BLUE, INK, arguments, panels, read, rows, save, settings, show
from sklearn.neighbors import NearestNeighbors

from sliceflow import ImageFlow
from sliceflow.metrics import nn_ratio

N_ROWS, N_NEAREST = 10, 5


def main() -> None:
    """Fit, find the neighbours, draw them."""
    args = arguments(__doc__)
    train, test = read(args)
    flow = ImageFlow(**settings(args, train), n_knots=0).fit(train.images)
    train_rows, test_rows = (rows(part.images, part.levels) for part in (train, test))
    nearest = NearestNeighbors(n_neighbors=N_NEAREST).fit(train_rows)
    ratio = nn_ratio(rows(flow.particles_[:2000], train.levels), train_rows, test_rows[:2000])

    fig, axes = panels(2, 10, 8)
    groups = [("sample", BLUE, flow.particles_), ("test picture", INK, test.images)]
    for ax, (name, colour, images) in zip(axes, groups, strict=True):
        images = images[:N_ROWS]
        distance, index = nearest.kneighbors(rows(images, train.levels))
        blank = np.full_like(images, 0 if images.ndim == 3 else train.levels - 1)  # paper
        grid = np.concatenate((np.stack((images, blank), 1), train.images[index]), axis=1)
        columns = [name, "", *(f"{i + 1}" for i in range(N_NEAREST))]
        names = [f"{d:.1f}" for d in distance[:, 0]]
        title = f"{name}s | their nearest training pictures"
        show(ax, grid, train.levels, title, row_names=names, column_names=columns, colour=colour)
        ax.set_ylabel("distance to the nearest")
    fig.suptitle(f"{train.name}: NN ratio {ratio:.2f} (1 is ideal, near 0 is copying)")
    print(f"NN ratio {ratio:.3f}")
    print("wrote", save(fig, args.out / "neighbours.png"))


if __name__ == "__main__":
    main()
