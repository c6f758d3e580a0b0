"""Files in numpy's formats, .npy and .npz."""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from sliceflow.datasets.errors import MOST_INFLATION, DatasetError, reading

__all__ = ["n_pixel_values", "read"]


def read(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """The pictures in a file, and the labels if it has any."""
    with reading(path):
        arrays = _arrays(path)
    labels = next((arrays.pop(key) for key in ("labels", "y") if key in arrays), None)
    key = next((key for key in ("images", "x", *arrays) if key in arrays), "")
    if key not in ("images", "x") and len(arrays) != 1:
        raise DatasetError(f"{path} has arrays {sorted(arrays)}; name the one of pictures 'images'")
    images, shape = arrays[key], arrays[key].shape
    if images.dtype.kind not in "buif" or len(shape) not in (3, 4) or 0 in shape:
        raise DatasetError(
            f"{path} holds {images.dtype} {shape}, not pictures (n, h, w) or (n, h, w, c)"
        )
    if labels is not None and labels.shape != shape[:1]:
        raise DatasetError(f"{path} has labels of shape {labels.shape} for {shape[0]} pictures")
    return images, labels


def n_pixel_values(images: np.ndarray) -> int:
    """256, or fewer if the type has fewer values: 2 for booleans."""
    if images.dtype.kind not in "iu":
        return 2 if images.dtype == bool else 256
    return min(256, int(np.iinfo(images.dtype).max) + 1)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".npy":
        with path.open("rb") as stream:
            return {"images": _array(stream, path.stat().st_size)}
    with zipfile.ZipFile(path) as archive:
        return {
            info.filename.removesuffix(".npy"): _array(
                archive.open(info), min(info.file_size, info.compress_size * MOST_INFLATION)
            )
            for info in archive.infolist()
        }


def _array(stream: IO[bytes], size: int) -> np.ndarray:
    """An array in numpy's format; its header must not promise more than `size` bytes."""
    head = io.BytesIO(stream.read(1 << 16))
    first = npy.read_magic(head) == (1, 0)
    read_header = npy.read_array_header_1_0 if first else npy.read_array_header_2_0
    shape, _, dtype = read_header(head)
    if (need := math.prod(shape) * dtype.itemsize) > size:
        raise ValueError(f"its header promises {shape} of {dtype}, {need} bytes, and it has {size}")
    stream.seek(0)
    array: np.ndarray = npy.read_array(stream, allow_pickle=False)
    return array
