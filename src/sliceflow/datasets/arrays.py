"""Files of arrays: .npy, .npz, and idx, as of MNIST."""

from __future__ import annotations

import gzip
import io
import math
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from sliceflow.datasets.errors import MOST_INFLATION, DatasetError, reading


def read(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """The pictures in a file, and the labels if it has any."""
    with reading(path):
        arrays = _arrays(path)
    labels = next((arrays.pop(key) for key in ("labels", "y") if key in arrays), None)
    key = next((key for key in ("images", "x", *arrays) if key in arrays), "")
    if key not in ("images", "x") and len(arrays) != 1:
        raise DatasetError(
            f"{path} has arrays {sorted(arrays)}; name the one of pictures 'images'"
        )
    images = arrays[key]
    shape = arrays[key].shape
    if images.dtype.kind not in "buif" or len(shape) not in (3, 4) or 0 in shape:
        held = f"{images.dtype} {shape}"
        raise DatasetError(
            f"{path} holds {held}, not pictures (n, h, w) or (n, h, w, c)"
        )
    if labels is not None and labels.shape != shape[:1]:
        raise DatasetError(
            f"{path} has labels of shape {labels.shape} for {shape[0]} pictures"
        )
    return images, labels


def _arrays(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".npy":
        with path.open("rb") as stream:
            return {"images": _array(stream, path.stat().st_size)}
    with zipfile.ZipFile(path) as archive:
        most = {
            i: min(i.file_size, i.compress_size * MOST_INFLATION)
            for i in archive.infolist()
        }
        return {
            i.filename.removesuffix(".npy"): _array(archive.open(i), n)
            for i, n in most.items()
        }


def _array(stream: IO[bytes], size: int) -> np.ndarray:
    """An array in numpy's format; its header must not promise more than `size` bytes."""
    head = io.BytesIO(stream.read(1 << 16))
    old = npy.read_magic(head) == (1, 0)
    shape, _, dtype = (npy.read_array_header_1_0 if old else npy.read_array_header_2_0)(
        head
    )
    if (require := math.prod(shape) * dtype.itemsize) > size:
        raise ValueError(
            f"its header promises {shape} of {dtype}, {require} bytes, and it has {size}"
        )
    stream.seek(0)
    return np.asarray(npy.read_array(stream, allow_pickle=False))


def read_idx(files: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Pictures and labels from a file of each."""
    images = _idx(files[0], 3)
    labels = _idx(files[1], 1)
    if len(labels) != len(images):
        raise DatasetError(
            f"{files[1]} has {len(labels)} labels, {files[0]} {len(images)} pictures"
        )
    return images, labels.astype(np.int64)


def _idx(file: Path, rank: int) -> np.ndarray:
    """An idx file, gzipped or not: 00 00 08 rank, the sizes as big-endian uint32, then bytes."""
    with reading(file), file.open("rb") as plain:
        packed = (
            plain.read(2) == b"\x1f\x8b"
        )  # not by its name: browsers may unpack .gz files
        plain.seek(0)
        stream: Any = gzip.GzipFile(fileobj=plain) if packed else plain
        head = stream.read(4 + 4 * rank)
        if head[:4] != bytes((0, 0, 8, rank)):
            raise DatasetError(
                f"{file} is not an idx{rank} file of bytes: it starts with {head[:4]!r}"
            )
        shape = struct.unpack(f">{rank}I", head[4:])
        require = math.prod(shape)
        most = file.stat().st_size * (MOST_INFLATION if packed else 1)
        data = stream.read(require + 1) if require <= most else b""
        if len(data) != require or require == 0:
            fact = f"its header gives sizes {shape}, {require} bytes"
            raise DatasetError(f"{file} is truncated, damaged or empty: {fact}")
    return np.frombuffer(data, np.uint8).reshape(shape).copy()
