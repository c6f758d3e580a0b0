"""The named sets: the names and places of their files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from sliceflow.errors import HintedError


class MissingSetError(HintedError, FileNotFoundError):
    """The files of a named set are missing."""


class NamedSet(NamedTuple):
    """A published set: its name in torchvision, its files by split, and their alternative ending."""

    torchvision: str
    folders: tuple[str, ...]
    files: Mapping[str, tuple[str, ...]]
    ending: str


_IDX = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_BATCHES = {
    "train": tuple(f"data_batch_{i}" for i in range(1, 6)),
    "test": ("test_batch",),
}
_FACES = {"train": ("*.jpg",), "valid": ("*.jpg",), "test": ("*.jpg",)}
_BATCH_FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py", "cifar10", "")
SETS = {
    "mnist": NamedSet("MNIST", ("MNIST/raw", "mnist", ""), _IDX, ".gz"),
    "fashion-mnist": NamedSet(
        "FashionMNIST", ("FashionMNIST/raw", "fashion-mnist", ""), _IDX, ".gz"
    ),
    "cifar10": NamedSet("CIFAR10", _BATCH_FOLDERS, _BATCHES, ".bin"),
    "celeba": NamedSet(
        "CelebA", ("celeba/img_align_celeba", "img_align_celeba"), _FACES, ""
    ),
}


def root_folder(root: str | os.PathLike[str] | None) -> Path:
    """The folder of the sets: the argument, else SLICEFLOW_DATA, else the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "sliceflow")
    return Path(root or os.environ.get("SLICEFLOW_DATA") or cache).expanduser()


def find(name: str, root: Path, wanted: tuple[str, ...]) -> list[Path]:
    """The wanted files, all from one folder, each with or without the alternative ending."""
    places = [root / folder for folder in SETS[name].folders]
    ending = SETS[name].ending
    missing = list(wanted)
    for place in places:
        found = {
            f: sorted(place.glob(f)) or sorted(place.glob(f + ending)) for f in wanted
        }
        if all(found.values()):
            return [path for paths in found.values() for path in paths]
        missing = min(missing, [f for f in wanted if not found[f]], key=len)
    wanted_name = f"{missing[0]} or {missing[0]}{ending}" if ending else missing[0]
    made = (
        f"torchvision.datasets.{SETS[name].torchvision}({str(root)!r}, download=True)"
    )
    hint = f"name the folder above with root= or SLICEFLOW_DATA, or download the set: {made}"
    raise MissingSetError(
        f"{name}: no {wanted_name} in {', '.join(map(str, places))}", hint
    )


def is_complete(name: str, root: Path) -> bool:
    """Whether all files of all splits are there."""
    try:
        return all(find(name, root, files) for files in set(SETS[name].files.values()))
    except FileNotFoundError:
        return False
