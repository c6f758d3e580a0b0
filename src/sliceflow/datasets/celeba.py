"""CelebA's faces: the usual crop, and the published splits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sliceflow.datasets.errors import DatasetError, reading
from sliceflow.datasets.folders import decode_all, middle_square

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["read"]


def read(files: Sequence[Path], split: str, size: int, skip_broken: bool) -> np.ndarray:
    """The faces of a split, size×size."""

    def face(image: Image) -> Image:
        """The usual 140×140 of 178×218, in proportion."""
        w, h = image.size
        if abs(h * 178 - w * 218) > 218:  # more than a pixel off
            raise ValueError(
                f"{w}x{h} is not in proportion to CelebA's 178x218; load the folder by path"
            )
        return middle_square(image, w * 140 / 178, size)

    images, _ = decode_all(_in_split(files, split), face, skip_broken)
    return images


def _in_split(files: Sequence[Path], split: str) -> Sequence[Path]:
    partition = files[0].parent.parent / "list_eval_partition.txt"
    if not partition.is_file():
        if split != "train":
            raise DatasetError(f"celeba: without {partition} all pictures are 'train', none {split!r}")
        return files
    with reading(partition):
        parts = dict(line.split() for line in partition.read_text().splitlines())
    wanted = str(("train", "valid", "test").index(split))
    chosen = [file for file in files if parts.get(file.name) == wanted]
    if not chosen:
        raise DatasetError(f"{partition} puts none of the {len(files)} pictures into {split!r}")
    return chosen
