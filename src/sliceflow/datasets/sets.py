"""The named sets: the names and places of their files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sliceflow.datasets.errors import MissingSetError


class NamedSet(NamedTuple):
    """A published set, and where its files are."""

    torchvision: str  # the class of torchvision that downloads it
    folders: tuple[str, ...]  # below the root: one of them has the files
    files: Mapping[str, tuple[str, ...]]  # the names, or patterns, of each split
    ending: str  # file names may have it in addition, such as ".gz"


_IDX = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_BATCHES = {
    "train": tuple(f"data_batch_{i}" for i in range(1, 6)),
    "test": ("test_batch",),
}
# All faces are in one folder: a list of them makes the splits.
_FACES = {"train": ("*.jpg",), "valid": ("*.jpg",), "test": ("*.jpg",)}
SETS = {
    "mnist": NamedSet(
        torchvision="MNIST",
        folders=("MNIST/raw", "mnist", ""),
        files=_IDX,
        ending=".gz",
    ),
    "fashion-mnist": NamedSet(
        torchvision="FashionMNIST",
        folders=("FashionMNIST/raw", "fashion-mnist", ""),
        files=_IDX,
        ending=".gz",
    ),
    "cifar10": NamedSet(
        torchvision="CIFAR10",
        folders=("cifar-10-batches-bin", "cifar-10-batches-py", "cifar10", ""),
        files=_BATCHES,
        ending=".bin",
    ),
    "celeba": NamedSet(
        torchvision="CelebA",
        folders=("celeba/img_align_celeba", "img_align_celeba"),
        files=_FACES,
        ending="",
    ),
}


def root_folder(root: str | os.PathLike[str] | None) -> Path:
    """The folder of the sets: the argument, SLICEFLOW_DATA, or the user's cache."""
    if root:
        return Path(root).expanduser()
    variable = os.environ.get("SLICEFLOW_DATA")
    if variable:
        return Path(variable).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    if not cache:
        cache = "~/.cache"
    return Path(cache, "sliceflow").expanduser()


def find(name: str, root: Path, wanted: tuple[str, ...]) -> list[Path]:
    """The wanted files of a set, all from one folder, with or without the set's ending.

    Raises a `MissingSetError` if no folder has all of them.
    """
    named_set = SETS[name]
    folders = [root / folder for folder in named_set.folders]
    fewest_missing = list(wanted)
    for folder in folders:
        found, missing = _find_in_folder(folder, wanted, named_set.ending)
        if not missing:
            return found
        if len(missing) < len(fewest_missing):
            fewest_missing = missing
    file = fewest_missing[0]
    if named_set.ending:
        file = f"{file} or {file}{named_set.ending}"
    places = ", ".join(map(str, folders))
    download = (
        f"torchvision.datasets.{named_set.torchvision}({str(root)!r}, download=True)"
    )
    hint = (
        "name the folder above with root= or SLICEFLOW_DATA, "
        f"or download the set: {download}"
    )
    raise MissingSetError(f"no {file} in {places}", hint, name)


def _find_in_folder(
    folder: Path, patterns: Sequence[str], ending: str
) -> tuple[list[Path], list[str]]:
    """The files that match patterns, and the patterns that no file matches.

    A file may also have the `ending` behind a pattern.
    """
    found = []
    missing = []
    for pattern in patterns:
        files = sorted(folder.glob(pattern))
        if not files:
            files = sorted(folder.glob(pattern + ending))
        if not files:
            missing.append(pattern)
        found += files
    return found, missing


def is_complete(name: str, root: Path) -> bool:
    """Whether all files of all splits are there."""
    try:
        for files in SETS[name].files.values():
            find(name, root, files)
    except MissingSetError:
        return False
    return True
