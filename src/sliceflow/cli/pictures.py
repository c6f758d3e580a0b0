"""Pictures as files: grids, single pictures, animations, and samples beside their neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sliceflow.app.pictures import as_bytes, single
from sliceflow.models.atomic import write_atomically

_SHOWN = 56  # pixels: smaller pictures are enlarged
_FRAMES = 40


def grid(images: np.ndarray, shown: int = _SHOWN, *, ground: int | None = 255) -> Image.Image:
    """Bytes (rows, columns, h, w[, c]) as one picture; between them grey `ground`, None: transparent."""
    n_rows, n_columns, h, w = images.shape[:4]
    colour = images if images.ndim == 5 else images[..., None]
    if ground is None and colour.shape[-1] in (1, 3):
        opaque = np.full((*colour.shape[:4], 1), 255, np.uint8)
        colour = np.concatenate((colour.repeat(3 // colour.shape[-1], axis=4), opaque), axis=4)
        ground = 0
    c = colour.shape[-1]
    gap = max(1, h // 12)
    out = np.full((n_rows, h + gap, n_columns, w + gap, c), 255 if ground is None else ground, np.uint8)
    out[:, :h, :, :w] = colour.transpose(0, 2, 1, 3, 4)
    flat = out.reshape(n_rows * (h + gap), n_columns * (w + gap), c)
    picture: Image.Image = single(flat[:-gap, :-gap])
    zoom = max(1, round(shown / h))
    return picture.resize((zoom * picture.width, zoom * picture.height), Image.Resampling.NEAREST)


def by_class(
    images: np.ndarray, labels: np.ndarray | None, columns: int = 10
) -> tuple[np.ndarray, list[str]]:
    """(rows, columns, h, w[, c]) with a row for each class, and the class names."""
    if labels is None:
        columns = min(columns, len(images))
        rows = min(columns, len(images) // columns)
        return images[: rows * columns].reshape(rows, columns, *images.shape[1:]), []
    classes, counts = np.unique(labels, return_counts=True)
    columns = min(columns, int(counts.min()))
    return np.stack([images[labels == c][:columns] for c in classes]), [str(c) for c in classes]


def write_evolution(flow: Any, pictures: np.ndarray, path: Path, seed: int) -> None:
    """Write samples of a model, or completions of these pictures, as an animation from their start."""
    side = 8 if pictures.ndim == 3 else 6  # colours make a .gif large
    how: dict[str, Any] = {"random_state": seed, "n_frames": _FRAMES}
    if flow.observed is None:
        way = flow.evolution(side**2, **how)
    else:
        some = pictures[np.linspace(0, len(pictures) - 1, side**2).astype(int)]
        way = flow.evolution(1, **how, X=some)[:, :, 0]
    values = flow.plan_.layout.n_pixel_values
    shown = (by_class(as_bytes(x, values), None, side)[0] for x in np.asarray(way))
    first, *rest = (grid(x, 32, ground=128) for x in shown)  # a .gif cannot fit the page: grey
    times = [90] * len(rest) + [2000]  # it pauses at its last frame
    write_picture(path, first, "GIF", save_all=True, append_images=rest, duration=times, loop=0)


def write_picture(path: Path, picture: Image.Image, kind: str = "PNG", **how: Any) -> None:
    """Write a picture to a file, whole or not at all."""
    write_atomically(path, lambda file: picture.save(file, kind, **how))
