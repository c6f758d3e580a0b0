"""Folders of picture files, decoded by Pillow, CelebA's among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from sliceflow.datasets.errors import (
    BrokenPictureError,
    DatasetError,
    MixedSizesError,
    as_dataset_errors,
)
from sliceflow.errors import warn_user

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp")
# What Pillow may decode: no format that runs other programs, as EPS does.
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "PPM", "TIFF")
# CelebA's aligned faces, and the square in their middle that is usually taken.
_FACE_WIDTH = 178
_FACE_HEIGHT = 218
_FACE_SQUARE = 140
# Broken pictures that a warning names.
_MAX_NAMED = 3


def read(
    path: Path, size: int | None, skip_broken: bool
) -> tuple[NDArray[np.uint8], NDArray[np.str_] | None]:
    """The pictures in a folder, or in its subfolders, whose names are the labels.

    With a `size`, the middle square of each, resized to this side.
    """
    files, has_class_folders = _find_files(path)

    def crop(image: Image) -> Image:
        if size is None:
            return image
        return _middle_square(image, min(image.size), size)

    images, decoded = _decode_all(files, crop, skip_broken)
    if not has_class_folders:
        return images, None
    return images, np.array([file.parent.name for file in decoded])


def _find_files(path: Path) -> tuple[list[Path], bool]:
    """The files of pictures, and whether they are in a subfolder for each class."""
    files = _picture_files(path)
    class_files = []
    for folder in sorted(path.iterdir()):
        if folder.is_dir() and not folder.name.startswith("."):
            class_files += _picture_files(folder)
    where = f"({', '.join(SUFFIXES)} in it or one folder per class)"
    if files and class_files:
        fact = f"holds both pictures and folders of pictures {where}"
        raise DatasetError(fact, file=path)
    if not files and not class_files:
        raise DatasetError(f"holds no pictures {where}", file=path)
    if class_files:
        return class_files, True
    return files, False


def _picture_files(folder: Path) -> list[Path]:
    """The files of a folder that are pictures by their names, in order."""
    files = []
    for file in folder.iterdir():
        is_picture = file.suffix.lower() in SUFFIXES and file.is_file()
        if is_picture and not file.name.startswith("."):
            files.append(file)
    return sorted(files)


def _decode_all(
    files: Sequence[Path], crop: Callable[[Image], Image], skip_broken: bool
) -> tuple[NDArray[np.uint8], list[Path]]:
    """The pictures that can be read, cropped, gray if all are; and their files."""
    stack = _PictureStack(max_pictures=len(files))
    problems: list[str] = []
    for file in files:
        try:
            pixels = _decode(file, crop)
        except BrokenPictureError as error:
            if not skip_broken:
                raise
            problems.append(error.where + error.fact)
        else:
            stack.add(pixels, file)
    if not stack.files:
        fact = f"none of {len(files)} pictures can be read; the first: {problems[0]}"
        raise BrokenPictureError(fact)
    if problems:
        _warn_of_skipped(problems, len(files))
    return stack.images[: len(stack.files)], stack.files


class _PictureStack:
    """Pictures of one size in one array, in color as soon as one picture is.

    Attributes
    ----------
    images : (max_pictures, h, w[, 3]), of which the first are filled
    files : the files of the pictures that were added
    """

    def __init__(self, max_pictures: int) -> None:
        self.max_pictures = max_pictures
        self.images = np.empty(0, np.uint8)
        self.files: list[Path] = []

    def add(self, pixels: NDArray[np.uint8], file: Path) -> None:
        """Add the pixels (h, w[, 3]) of a file; an error if their size is another."""
        if not self.files:
            self.images = np.empty((self.max_pictures, *pixels.shape), np.uint8)
        elif pixels.shape[:2] != self.images.shape[1:3]:
            first_shape = self.images.shape[1:]
            _raise_mixed_sizes(self.files[0], first_shape, file, pixels.shape)
        is_color_picture = pixels.ndim == 3
        is_color_stack = self.images.ndim == 4
        if is_color_picture and not is_color_stack:
            self.images = np.repeat(self.images[..., None], 3, axis=-1)
        if is_color_stack and not is_color_picture:
            pixels = pixels[..., None]
        self.images[len(self.files)] = pixels
        self.files.append(file)


def _decode(file: Path, crop: Callable[[Image], Image]) -> NDArray[np.uint8]:
    """The pixels of one picture, cropped; an error if it cannot be read."""
    try:
        image = upright(file)
        with as_dataset_errors(file):
            return np.asarray(crop(image))
    except DatasetError as error:
        hint = "skip_broken=True skips such files"
        raise BrokenPictureError(error.fact, hint, error.file) from error


def _warn_of_skipped(problems: Sequence[str], n_files: int) -> None:
    """Warn of broken pictures that were left out."""
    named = "; ".join(problems[:_MAX_NAMED])
    if len(problems) > _MAX_NAMED:
        named += "; …"
    message = f"skipped {len(problems)} of {n_files} pictures: {named}"
    warn_user(message)


def _raise_mixed_sizes(
    first_file: Path,
    first_shape: tuple[int, ...],
    file: Path,
    shape: tuple[int, ...],
) -> NoReturn:
    """Raise an error about two pictures of different sizes."""
    first_size = f"{first_shape[1]}x{first_shape[0]}"
    size = f"{shape[1]}x{shape[0]}"
    raise MixedSizesError(
        f"is {first_size} but {file} is {size}",
        "pass size= to make them one size",
        first_file,
    )


def upright(file: Path) -> Image:
    """One picture, turned as its camera was held, on white: gray if it is stored so."""
    try:
        import PIL.Image as pillow
        from PIL.ImageOps import exif_transpose
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'pictures need Pillow: pip install "sliceflow[images]"'
        ) from error
    with as_dataset_errors(file), pillow.open(file, formats=_FORMATS) as stored:
        image = exif_transpose(stored)
        if image.mode[0] in "IF":
            raise ValueError(
                f"its pixels ({image.mode}) have more than 256 levels; make it 8-bit"
            )
        mode = "RGB"
        if image.mode in ("1", "L", "LA"):
            mode = "L"
        if image.has_transparency_data:
            white = pillow.new("RGBA", image.size, "white")
            image = pillow.alpha_composite(white, image.convert("RGBA"))
        converted: Image = image.convert(mode)
        return converted


def _middle_square(image: Image, side: float, size: int) -> Image:
    """The middle square, side×side, as size×size pixels."""
    from PIL.Image import Resampling

    width, height = image.size
    left = (width - side) / 2
    top = (height - side) / 2
    if side == size:  # a crop by whole pixels resamples nothing
        left = math.floor(left)
        top = math.floor(top)
    box = (left, top, left + side, top + side)
    return image.resize((size, size), Resampling.LANCZOS, box=box)


def read_faces(
    files: Sequence[Path], split: str, size: int, skip_broken: bool
) -> NDArray[np.uint8]:
    """CelebA's faces of a published split, size×size.

    The usual square, 140×140 of 178×218, in proportion if pictures are smaller.
    """
    images, _ = _decode_all(
        _files_of_split(files, split), lambda image: _face(image, size), skip_broken
    )
    return images


def _face(image: Image, size: int) -> Image:
    """The face in one of CelebA's pictures."""
    width, height = image.size
    difference = height * _FACE_WIDTH - width * _FACE_HEIGHT
    if abs(difference) > _FACE_HEIGHT:  # more than a pixel off
        raise ValueError(
            f"{width}x{height} is not in proportion to CelebA's 178x218; "
            "load it by path"
        )
    return _middle_square(image, width * _FACE_SQUARE / _FACE_WIDTH, size)


def _files_of_split(files: Sequence[Path], split: str) -> Sequence[Path]:
    """The files that CelebA's list puts into a split; without it, all are "train"."""
    partition = files[0].parent.parent / "list_eval_partition.txt"
    if not partition.is_file():
        if split == "train":
            return files
        raise DatasetError(
            f"celeba: without {partition} all pictures are 'train', none {split!r}"
        )
    with as_dataset_errors(partition):
        lines = partition.read_text().splitlines()
        split_numbers = dict(line.split() for line in lines)
    number = str(("train", "valid", "test").index(split))
    chosen = [file for file in files if split_numbers.get(file.name) == number]
    if not chosen:
        fact = f"puts none of the {len(files)} pictures into {split!r}"
        raise DatasetError(fact, file=partition)
    return chosen
