"""Folders of picture files, decoded by Pillow, CelebA's among them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sliceflow.datasets.errors import (
    BrokenPictureError,
    DatasetError,
    MixedSizesError,
    reading,
)

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp")
_FORMATS = (
    "PNG",
    "JPEG",
    "BMP",
    "WEBP",
    "GIF",
    "PPM",
    "TIFF",
)  # and none that runs other programs


def read(
    path: Path, size: int | None, skip_broken: bool
) -> tuple[np.ndarray, np.ndarray | None]:
    """The pictures in a folder, or in its subfolders, whose names are the labels."""

    def inside(folder: Path) -> list[Path]:
        files = (
            f for f in folder.iterdir() if f.suffix.lower() in SUFFIXES and f.is_file()
        )
        return sorted(f for f in files if not f.name.startswith("."))

    own = inside(path)
    folders = sorted(
        f for f in path.iterdir() if f.is_dir() and not f.name.startswith(".")
    )
    in_classes = [file for folder in folders for file in inside(folder)]
    if bool(own) == bool(in_classes):
        held = "both pictures and folders of pictures" if own else "no pictures"
        raise DatasetError(
            f"{path} holds {held} ({', '.join(SUFFIXES)} in it or one folder per class)"
        )
    square = (lambda i: _middle_square(i, min(i.size), size)) if size else (lambda i: i)
    images, kept = _decode_all(own or in_classes, square, skip_broken)
    return images, np.array(
        [in_classes[i].parent.name for i in kept]
    ) if in_classes else None


def _decode_all(
    files: Sequence[Path], fit: Callable[[Image], Image], skip_broken: bool
) -> tuple[np.ndarray, list[int]]:
    """The pictures that can be read, grey if all are, and the indices of their files."""
    images = np.empty(0, np.uint8)
    kept = list[int]()
    broken = list[str]()
    for i, file in enumerate(files):
        try:
            image = upright(file)
            with reading(file):
                picture = np.asarray(fit(image))
        except DatasetError as error:
            if not skip_broken:
                raise BrokenPictureError(
                    str(error), "skip_broken=True skips such files"
                ) from error
            broken.append(str(error))
            continue
        if not kept:
            images = np.empty((len(files), *picture.shape), np.uint8)
        if picture.shape[:2] != images.shape[1:3]:
            first, this = (
                "{1}x{0}".format(*shape) for shape in (images.shape[1:], picture.shape)
            )
            fact = f"{files[kept[0]]} is {first} but {file} is {this}"
            raise MixedSizesError(fact, "pass size= to make them one size")
        if picture.ndim == images.ndim:  # the first in colour, after grey ones
            images = np.repeat(images[..., None], 3, axis=-1)
        images[len(kept)] = (
            picture if picture.ndim == images.ndim - 1 else picture[..., None]
        )
        kept.append(i)
    if not kept:
        raise BrokenPictureError(
            f"none of {len(files)} pictures can be read; the first: {broken[0]}"
        )
    if broken:
        shown = "; ".join(broken[:3]) + ("; …" if len(broken) > 3 else "")
        warnings.warn(
            f"skipped {len(broken)} of {len(files)} pictures: {shown}", stacklevel=4
        )
    return images[: len(kept)], kept


def upright(file: Path) -> Image:
    """One picture as its camera meant it, on white: grey if stored grey, else in colour."""
    try:
        import PIL.Image as pillow
        from PIL.ImageOps import exif_transpose
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'pictures need Pillow: pip install "sliceflow[images]"'
        ) from error
    with reading(file), pillow.open(file, formats=_FORMATS) as stored:
        image = exif_transpose(stored)
        if image.mode[0] in "IF":
            raise ValueError(
                f"its pixels ({image.mode}) have more than 256 levels; make it 8-bit"
            )
        mode = "L" if image.mode in ("1", "L", "LA") else "RGB"
        if image.has_transparency_data:
            white = pillow.new("RGBA", image.size, "white")
            image = pillow.alpha_composite(white, image.convert("RGBA"))
        converted: Image = image.convert(mode)
        return converted


def _middle_square(image: Image, side: float, size: int) -> Image:
    """The middle square, side×side, as size×size pixels."""
    left, top = ((length - side) / 2 for length in image.size)
    if side == size:  # a crop by whole pixels resamples nothing
        left = math.floor(left)
        top = math.floor(top)
    from PIL.Image import Resampling

    return image.resize(
        (size, size), Resampling.LANCZOS, box=(left, top, left + side, top + side)
    )


def read_faces(
    files: Sequence[Path], split: str, size: int, skip_broken: bool
) -> np.ndarray:
    """CelebA's faces of a published split, size×size: the usual 140×140 of 178×218, in proportion."""

    def face(image: Image) -> Image:
        w, h = image.size
        if abs(h * 178 - w * 218) > 218:  # more than a pixel off
            raise ValueError(
                f"{w}x{h} is not in proportion to CelebA's 178x218; load it by path"
            )
        return _middle_square(image, w * 140 / 178, size)

    partition = files[0].parent.parent / "list_eval_partition.txt"
    if not partition.is_file():
        if split != "train":
            raise DatasetError(
                f"celeba: without {partition} all pictures are 'train', none {split!r}"
            )
        return _decode_all(files, face, skip_broken)[0]
    with reading(partition):
        parts = dict(line.split() for line in partition.read_text().splitlines())
    number = str(("train", "valid", "test").index(split))
    if not (chosen := [file for file in files if parts.get(file.name) == number]):
        raise DatasetError(
            f"{partition} puts none of the {len(files)} pictures into {split!r}"
        )
    return _decode_all(chosen, face, skip_broken)[0]
