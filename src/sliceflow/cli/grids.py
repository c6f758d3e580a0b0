"""Pictures as files: grids, animations, arrays; and files of pictures as arrays."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sliceflow.app.pictures import as_bytes, as_image
from sliceflow.base.atomic import write_atomically
from sliceflow.cli.failures import CommandError, UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

    from sliceflow import ImageFlow
    from sliceflow.estimators.pictures.layout import Layout

# Pictures of fewer pixels are enlarged to about this side, to be seen on a page.
_SHOWN_SIDE = 56
# Pictures of fewer pixels are enlarged to about this side in an animation, which is a
# large file.
_SHOWN_SIDE_OF_ANIMATION = 32
_N_SNAPSHOTS = 40
_FRAME_MILLISECONDS = 90
_LAST_FRAME_MILLISECONDS = 2000  # the animation pauses at its end
_WHITE = 255
_GRAY = 128  # between pictures of an animation: for light pages and for dark ones


def write_pictures(
    path: Path, x: NDArray[Any], layout: Layout, labels: NDArray[Any] | None
) -> None:
    """Write pictures (n, h, w[, c]) as .npz, as one grid (.png) or as a folder."""
    ending = path.suffix.lower()
    if ending == ".npz":
        write_arrays(path, labels, images=x)
        return
    pixels = as_bytes(x, layout.n_pixel_values)
    if ending == ".png":
        write_image(path, make_grid(_in_a_square(pixels)), optimize=True)
    else:
        _write_folder(path, pixels)


def _in_a_square(pixels: NDArray[Any]) -> NDArray[Any]:
    """(n, h, w[, c]) as (rows, columns, h, w[, c]), with white pictures at the end."""
    n_columns = int(np.ceil(np.sqrt(len(pixels))))
    n_white = -len(pixels) % n_columns
    white = np.full((n_white, *pixels.shape[1:]), _WHITE, np.uint8)
    filled = np.concatenate((pixels, white))
    return filled.reshape(-1, n_columns, *pixels.shape[1:])


def _write_folder(path: Path, pixels: NDArray[Any]) -> None:
    """Write one file for each picture: 00.png, 01.png, …

    All are written to another folder first, because a disk may fill. Then they replace
    the pictures of an earlier command.
    """
    n_digits = len(str(len(pixels) - 1))
    with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as new:
        for i, picture in enumerate(pixels):
            write_image(Path(new, f"{i:0{n_digits}d}.png"), as_image(picture))
        path.mkdir(exist_ok=True)
        for old in path.glob("*.png"):
            if old.stem.isdigit():
                old.unlink()
        for file in Path(new).iterdir():
            file.rename(path / file.name)


def write_arrays(
    path: Path, labels: NDArray[Any] | None, **arrays: NDArray[Any]
) -> None:
    """Write arrays and labels as .npz."""
    if labels is not None:
        arrays["labels"] = labels

    def save(file: BinaryIO) -> None:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    write_atomically(path, save)


def write_image(path: Path, image: Image, kind: str = "PNG", **options: Any) -> None:
    """Write a picture to a file, whole or not at all; `options` are those of Pillow."""
    write_atomically(path, lambda file: image.save(file, kind, **options))


def make_grid(
    pixels: NDArray[Any], shown_side: int = _SHOWN_SIDE, *, ground: int = _WHITE
) -> Image:
    """Bytes (rows, columns, h, w[, c]) as one picture.

    Small pictures are enlarged to about `shown_side` pixels; gaps have the gray value
    `ground`.
    """
    n_rows, n_columns, h, w = pixels.shape[:4]
    channels = pixels.shape[4:]
    gap = max(1, h // 12)
    cells = np.full((n_rows, h + gap, n_columns, w + gap, *channels), ground, np.uint8)
    cells[:, :h, :, :w] = pixels.swapaxes(1, 2)
    page = cells.reshape(n_rows * (h + gap), n_columns * (w + gap), *channels)
    image = as_image(page[:-gap, :-gap])
    zoom = max(1, round(shown_side / h))
    nearest_pixel = 0  # Pillow's number for it
    return image.resize((zoom * image.width, zoom * image.height), nearest_pixel)


def arrange_by_class(
    pictures: NDArray[Any], labels: NDArray[Any] | None, n_columns: int = 10
) -> tuple[NDArray[Any], list[str]]:
    """The first pictures as (rows, columns, h, w[, c]), and the names of the rows.

    There is a row for each class. Without labels rows have no names, and there are at
    most as many as columns.
    """
    if labels is None:
        n_columns = min(n_columns, len(pictures))
        n_rows = min(n_columns, len(pictures) // n_columns)
        first = pictures[: n_rows * n_columns]
        return first.reshape(n_rows, n_columns, *pictures.shape[1:]), []
    classes, counts = np.unique(labels, return_counts=True)
    n_columns = min(n_columns, int(counts.min()))
    rows = [pictures[labels == label][:n_columns] for label in classes]
    return np.stack(rows), [str(label) for label in classes]


def write_evolution(
    model: ImageFlow, pictures: NDArray[Any], path: Path, seed: int
) -> None:
    """Write an animation: samples of a model on their way from their start.

    A model that completes pictures completes some of these `pictures` instead.
    """
    side = 8
    if pictures.ndim == 4:
        side = 6  # colors make a .gif large
    frames = []
    for snapshot in _draw_snapshots(model, pictures, side**2, seed):
        pixels = as_bytes(snapshot, model.plan_.layout.n_pixel_values)
        arranged, _ = arrange_by_class(pixels, None, side)
        frames.append(make_grid(arranged, _SHOWN_SIDE_OF_ANIMATION, ground=_GRAY))
    milliseconds = [_FRAME_MILLISECONDS] * len(frames)
    milliseconds[-1] = _LAST_FRAME_MILLISECONDS
    write_image(
        path,
        frames[0],
        "GIF",
        save_all=True,
        append_images=frames[1:],
        duration=milliseconds,
        loop=0,
    )


def _draw_snapshots(
    model: ImageFlow, pictures: NDArray[Any], n: int, seed: int
) -> NDArray[Any]:
    """Snapshots (s, n, h, w[, c]) of n samples, or of completions of n pictures."""
    if model.known is None:
        samples = model.evolution(n, random_state=seed, n_snapshots=_N_SNAPSHOTS)
        return np.asarray(samples)
    evenly_spaced = np.linspace(0, len(pictures) - 1, n).astype(int)
    completed = model.evolution(
        1, random_state=seed, n_snapshots=_N_SNAPSHOTS, X=pictures[evenly_spaced]
    )
    return np.asarray(completed)[:, :, 0]


def read_pictures(path: Path, layout: Layout, *, resize: bool) -> NDArray[Any]:
    """Pictures like those of a layout: its size, its colors, its kind of pixels.

    `path` is a picture, a folder of them, or an array (.npy or .npz).
    """
    if path.suffix.lower() in (".npy", ".npz"):
        return _read_array(path, resize=resize)
    files = find_picture_files(path)
    pictures = [_read_picture(file, layout, resize) for file in files]
    values = np.stack(pictures) / 255.0
    if layout.channels == 1:
        values = values[..., None]
    if layout.n_pixel_values is not None:
        values = (values * (layout.n_pixel_values - 1)).round()
    return np.asarray(values.astype(layout.dtype))


def _read_array(path: Path, *, resize: bool) -> NDArray[Any]:
    """The pictures of an .npy or .npz file, as they are."""
    from sliceflow.datasets import DatasetError, load

    if resize:
        fact = f"--resize is for files of pictures, not for {path}"
        raise UsageError(fact, "leave it out")
    try:
        return load(path).images
    except DatasetError as error:
        hint = "pass pictures like those that were fitted"
        raise CommandError(error.where + error.fact, hint) from error


def find_picture_files(path: Path) -> list[Path]:
    """A picture, or all pictures of a folder; an error if there is none."""
    from sliceflow.datasets.folders import SUFFIXES

    hint = f"name a picture, a folder of {', '.join(SUFFIXES)}, an .npy or an .npz"
    if not path.exists():
        raise UsageError(f"{path} does not exist", hint)
    if not path.is_dir():
        return [path]
    files = [file for file in sorted(path.iterdir()) if file.suffix.lower() in SUFFIXES]
    if not files:
        raise UsageError(f"{path} holds no pictures", hint)
    return files


def _read_picture(file: Path, layout: Layout, resize: bool) -> NDArray[Any]:
    """The bytes (h, w[, c]) of a picture, upright, in the size of the layout."""
    from PIL.Image import Resampling

    from sliceflow.datasets import DatasetError
    from sliceflow.datasets.folders import upright

    mode = "L" if layout.shape[0] == 1 else "RGB"
    try:
        picture = upright(file).convert(mode)
    except DatasetError as error:
        raise CommandError(str(error), "fix or remove that file") from error
    size = (layout.width, layout.height)
    if picture.size != size:
        if not resize:
            fact = (
                f"{file} is {picture.width}x{picture.height}, "
                f"the model's pictures are {layout.width}x{layout.height}"
            )
            raise UsageError(fact, "pass --resize")
        picture = picture.resize(size, Resampling.LANCZOS)
    return np.asarray(picture)
