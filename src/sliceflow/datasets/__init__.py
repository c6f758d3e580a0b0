"""Pictures from files: named sets, folders of pictures, arrays.

Pixels are neither scaled nor encoded.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sliceflow.datasets import arrays, cifar, folders, sets
from sliceflow.datasets.errors import (
    BrokenPictureError,
    DatasetError,
    MissingSetError,
    MixedSizesError,
)
from sliceflow.errors import ParameterError
from sliceflow.validation import require_int

__all__ = [
    "BrokenPictureError",
    "DatasetError",
    "MissingSetError",
    "MixedSizesError",
    "PictureSet",
    "available",
    "load",
]

_NAMES = ("digits", *sets.SETS)
# The side of CelebA's faces unless the user says another: the usual one in papers.
_FACE_SIZE = 64
# Of scikit-learn's 1797 digits, this many are the test set.
_DIGITS_TEST_SIZE = 500
# The number of pixel values of arrays of these types. All others have 256.
_N_PIXEL_VALUES = {"bool": 2, "int8": 128}


@dataclass(frozen=True, eq=False)
class PictureSet:
    """Pictures as they are stored, and their labels.

    Attributes
    ----------
    images : array (n, h, w[, c])
        The pictures.
    labels : array (n,) or None
        Their labels.
    n_pixel_values : int
        Integer pixels are 0 to ``n_pixel_values - 1``.
    name : str
        The name of the set, or of the file or folder.
    """

    images: NDArray[Any]
    labels: NDArray[Any] | None
    n_pixel_values: int
    name: str


def load(
    name_or_path: str | os.PathLike[str],
    split: str = "train",
    root: str | os.PathLike[str] | None = None,
    *,
    size: int | None = None,
    skip_broken: bool = False,
) -> PictureSet:
    """Load the pictures of a named set, a folder, or an .npy or .npz file.

    Parameters
    ----------
    name_or_path : str or path
        "digits", "mnist", "fashion-mnist", "cifar10", "celeba", or a path. A folder
        with one subfolder per class gives labels. An .npz file has `images` or `x`, or
        a single array, and optionally `labels` or `y`.
    split : str, default "train"
        "train" or "test", for CelebA also "valid". A path has only "train".
    root : str, path or None, default None
        The folder of the named sets. None takes the environment variable
        SLICEFLOW_DATA, or the folder sliceflow in the user's cache.
    size : int or None, default None
        For folders and CelebA: pictures become their middle square, resized to this
        side. None leaves folders as they are, and is 64 for CelebA.
    skip_broken : bool, default False
        Skip pictures that cannot be read, with a warning.

    Returns
    -------
    pictures : PictureSet

    Raises
    ------
    MissingSetError
        If the files of a named set are not there.
    DatasetError
        If the pictures cannot be read or differ in size.

    Examples
    --------
    >>> digits = load("digits")
    >>> digits.images.shape, digits.n_pixel_values
    ((1297, 8, 8), 17)
    """
    path = Path(name_or_path).expanduser()
    is_named = name_or_path in _NAMES
    require_int("size", size, 1, others=(None,))
    is_resizable = not path.is_file()
    if is_named:
        is_resizable = name_or_path == "celeba"
    if size is not None and not is_resizable:
        fact = f"is for celeba and folders; {path} is read as it was stored"
        raise ParameterError("size", size, fact)
    if is_named:
        folder = sets.root_folder(root)
        return _load_named(str(name_or_path), split, folder, size, skip_broken)
    return _load_path(path, split, size, skip_broken)


def available(root: str | os.PathLike[str] | None = None) -> dict[str, bool]:
    """Which named sets have all their files. No file is read.

    Parameters
    ----------
    root : str, path or None, default None
        The folder of the named sets, as in `load`.

    Returns
    -------
    complete : dict
        True or False, by the name of the set.

    Examples
    --------
    >>> available("/nowhere")["mnist"]
    False
    """
    folder = sets.root_folder(root)
    complete = {"digits": True}
    for name in sets.SETS:
        complete[name] = sets.is_complete(name, folder)
    return complete


def _load_path(
    path: Path, split: str, size: int | None, skip_broken: bool
) -> PictureSet:
    """The pictures of a folder or of a file of arrays."""
    if not path.exists():
        known = ", ".join(_NAMES)
        raise DatasetError(
            f"{str(path)!r} is neither a known set ({known}) nor an existing path"
        )
    if split != "train":
        fact = f"has no split {split!r}: a path is read whole, as 'train'"
        raise DatasetError(fact, file=path)
    if path.is_dir():
        images, labels = folders.read(path, size, skip_broken)
        return PictureSet(images, labels, 256, path.resolve().name)
    if path.suffix.lower() not in (".npy", ".npz"):
        fact = "is not a folder of pictures, an .npy or an .npz file"
        raise DatasetError(fact, file=path)
    images, labels = arrays.read(path)
    n_pixel_values = _N_PIXEL_VALUES.get(images.dtype.name, 256)
    return PictureSet(images, labels, n_pixel_values, path.stem)


def _load_named(
    name: str, split: str, root: Path, size: int | None, skip_broken: bool
) -> PictureSet:
    """The pictures of a named set, whose files are below `root`."""
    splits: tuple[str, ...] = ("train", "test")
    if name != "digits":
        splits = tuple(sets.SETS[name].files)
    if split not in splits:
        hint = f"it has {', '.join(splits)}"
        raise DatasetError(f"{name} has no split {split!r}", hint)
    if name == "digits":
        return _load_digits(split)
    files = sets.find(name, root, sets.SETS[name].files[split])
    if name == "celeba":
        if size is None:
            size = _FACE_SIZE
        faces = folders.read_faces(files, split, size, skip_broken)
        return PictureSet(faces, None, 256, name)
    if name == "cifar10":
        images, labels = cifar.read(files)
    else:
        images, labels = arrays.read_idx(files)
    return PictureSet(images, labels, 256, name)


def _load_digits(split: str) -> PictureSet:
    """Scikit-learn's digits, split in the same way for everybody."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = digits["images"].astype(np.uint8)
    train_images, test_images, train_labels, test_labels = train_test_split(
        images,
        digits["target"],
        test_size=_DIGITS_TEST_SIZE,
        stratify=digits["target"],
        random_state=0,
    )
    if split == "train":
        return PictureSet(train_images, train_labels, 17, "digits")
    return PictureSet(test_images, test_labels, 17, "digits")
