"""evolution.gif: some samples on their way from where they start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sliceflow.cli.data import Data
from sliceflow.cli.grid import animation, as_bytes, by_class, grid

__all__ = ["write_evolution"]

_FRAMES = 40


def write_evolution(flow: Any, train: Data, path: Path, seed: int) -> None:
    """Write samples of a model, or completions of training pictures, as an animation."""
    side = 8 if train.x.ndim == 3 else 6  # colours make a .gif large
    n, how = side**2, {"random_state": seed, "n_frames": _FRAMES}
    if flow.observed_ is None:
        way = flow.evolution(n, **how)
    else:
        some = train.x[np.linspace(0, len(train.x) - 1, n).astype(int)]
        way = flow.evolution(1, **how, X=some)[:, :, 0]
    shown = (by_class(as_bytes(x, train.n_pixel_values), None, side)[0] for x in np.asarray(way))
    animation(path, [grid(x, 32, ground=128) for x in shown])  # a .gif cannot fit the page: grey
