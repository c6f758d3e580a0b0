"""Pictures from files: named sets, folders of pictures, arrays. Nothing is scaled or encoded."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sliceflow.datasets import arrays, cifar, folders, sets
from sliceflow.datasets.errors import BrokenPictureError, DatasetError, MixedSizesError
from sliceflow.datasets.sets import MissingSetError
from sliceflow.errors import is_int, require

__all__ = [
    "BrokenPictureError",
    "DatasetError",
    "MissingSetError",
    "MixedSizesError",
    "Pictures",
    "available",
    "load",
]


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures (n, h, w[, c]) as stored, their labels or None; whole pixels are below n_pixel_values."""

    images: np.ndarray
    labels: np.ndarray | None
    n_pixel_values: int
    name: str


def load(
    name_or_path: str | os.PathLike[str],
    split: str = "train",
    root: str | os.PathLike[str] | None = None,
    *,
    size: int | None = None,
    skip_broken: bool = False,
) -> Pictures:
    """Pictures of a named set, a folder, or a .npy or .npz file.

    Parameters
    ----------
    name_or_path : "digits", "mnist", "fashion-mnist", "cifar10", "celeba", or a path
        A folder with one subfolder per class gives labels. An .npz file has `images` or `x`, or a
        single array, and optionally `labels` or `y`.
    split : "train" or "test", for CelebA also "valid"; a path has only "train"
    root : the folder of the named sets; by default SLICEFLOW_DATA, or sliceflow in the user's cache
    size : for folders and CelebA (default 64): the middle square, resized to this side
    skip_broken : skip pictures that cannot be read, with a warning

    Examples
    --------
    >>> digits = load("digits")
    >>> digits.images.shape, digits.n_pixel_values
    ((1297, 8, 8), 17)
    """
    path = Path(name_or_path).expanduser()
    named = name_or_path in ("digits", *sets.SETS)
    require(
        size is None or is_int(size, 1), "size", size, "None or an int of at least 1"
    )
    if size is not None and (name_or_path != "celeba" if named else path.is_file()):
        raise ValueError(
            f"size={size} is for celeba and folders; {path} is read as it was stored"
        )
    if named:
        return _named(
            str(name_or_path), split, sets.root_folder(root), size, skip_broken
        )
    if not path.exists():
        known = ", ".join(("digits", *sets.SETS))
        raise DatasetError(
            f"{str(path)!r} is neither a known set ({known}) nor an existing path"
        )
    if split != "train":
        raise DatasetError(
            f"{path} has no split {split!r}: a path is read whole, as 'train'"
        )
    if path.is_dir():
        return Pictures(
            *folders.read(path, size, skip_broken), 256, path.resolve().name
        )
    if path.suffix not in (".npy", ".npz"):
        raise DatasetError(
            f"{path} is not a folder of pictures, an .npy or an .npz file"
        )
    images, labels = arrays.read(path)
    return Pictures(
        images, labels, {"bool": 2, "int8": 128}.get(images.dtype.name, 256), path.stem
    )


def available(root: str | os.PathLike[str] | None = None) -> dict[str, bool]:
    """Which named sets are complete; nothing is read.

    >>> available("/nowhere")["mnist"]
    False
    """
    folder = sets.root_folder(root)
    return {"digits": True} | {
        name: sets.is_complete(name, folder) for name in sets.SETS
    }


def _named(name: str, split: str, root: Path, size: int | None, skip: bool) -> Pictures:
    splits = sets.SETS[name].files if name in sets.SETS else ("train", "test")
    if split not in splits:
        raise DatasetError(f"{name} has no split {split!r}; it has {', '.join(splits)}")
    if name == "digits":
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        images = load_digits()["images"].astype(np.uint8)
        labels = load_digits()["target"]
        both = train_test_split(
            images, labels, test_size=500, stratify=labels, random_state=0
        )
        images, labels = both[::2] if split == "train" else both[1::2]
        return Pictures(images, labels, 17, name)
    files = sets.find(name, root, sets.SETS[name].files[split])
    if name == "celeba":
        return Pictures(
            folders.read_faces(files, split, size or 64, skip), None, 256, name
        )
    images, labels = cifar.read(files) if name == "cifar10" else arrays.read_idx(files)
    return Pictures(images, labels, 256, name)
