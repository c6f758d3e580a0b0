"""Figure 1: local directions, and those of a coarser level brought to the picture's resolution.

python -m benchmarks.paper.figure1
"""

from collections.abc import Sequence

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch

from sliceflow.engine.random import Seed
from sliceflow.spaces.pictures.pyramid import Subspace
from sliceflow.spaces.pictures.tiles import Tiles

from .common import command

SIDE, COLUMNS = 28, 6
LEVELS = ((28, 7), (28, 3), (14, 7), (14, 3), (7, 3), (4, 4))  # resolution, patch


def directions(level: int, patch: int) -> np.ndarray:
    """(COLUMNS, SIDE, SIDE): directions of a frame of tiles at a level, as they act on pictures."""
    frame = Tiles(1, level, level, patch).draw(Seed(0), 1, level**2, 0)
    # The tiles in the middle, not those that hang over the border.
    lifted = frame.lift(torch.eye(frame.n_directions))  # (level², directions)
    inside = torch.argsort(lifted.norm(dim=0), descending=True, stable=True)
    chosen = inside[torch.linspace(0, len(inside) // 2, COLUMNS).long()]
    up = Subspace(1, SIDE, SIDE, level, level).up(lifted[:, chosen])
    return up.T.reshape(COLUMNS, SIDE, SIDE).numpy()


def main(arguments: Sequence[str] | None = None) -> dict:
    """Draw them; every scale is the same."""
    run = command("Figure 1: local and upsampled directions", "figure1", __doc__, arguments)
    fig, axes = plt.subplots(len(LEVELS), COLUMNS, figsize=(8.4, 9), layout="constrained")
    lines = []
    for row, (level, patch) in zip(axes, LEVELS, strict=True):
        made = directions(level, patch)
        for ax, theta in zip(row, made, strict=True):
            most = np.abs(theta).max()
            shown = ax.imshow(theta / most, cmap="RdBu", vmin=-1, vmax=1)
            ax.set(xticks=(), yticks=())
        row[0].set_ylabel(f"{level}×{level}\npatch {patch}×{patch}")
        length = float(np.linalg.norm(made.reshape(COLUMNS, -1), axis=1).max())
        lines.append([f"{level}×{level}[{patch}]", f"{length:.4f}"])
    fig.colorbar(shown, ax=axes, shrink=0.4, label="weight of a pixel, over the largest")
    fig.suptitle(f"Directions on pictures of {SIDE}×{SIDE}: local, and upsampled by Lanczos-5")
    fig.savefig(run.path("directions"), dpi=90)
    plt.close(fig)
    header = ["level[patch]", "longest of the directions drawn (unit: 1)"]
    return run.finish(header, lines, {"rows": lines})


if __name__ == "__main__":
    main()
