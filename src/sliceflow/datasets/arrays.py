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
from numpy.typing import NDArray

from sliceflow.arrays import Ints
from sliceflow.datasets.errors import DatasetError, as_dataset_errors

# No more than this many bytes come from one compressed byte: the limit of deflate, and
# so of zip and gz. A header that promises more is not believed.
_MAX_INFLATION = 1032
# The header of an array in numpy's format is shorter.
_MAX_HEADER_BYTES = 1 << 16
_GZIP_MAGIC = b"\x1f\x8b"


def read(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """The pictures in an .npy or .npz file, and the labels if it has any."""
    with as_dataset_errors(path):
        if path.suffix.lower() == ".npy":
            arrays = _read_npy(path)
        else:
            arrays = _read_npz(path)
    labels = None
    for key in ("labels", "y"):
        if key in arrays:
            labels = arrays.pop(key)
            break
    images = _pictures_among(arrays, path)
    shape = images.shape
    if images.dtype.kind not in "buif" or len(shape) not in (3, 4) or 0 in shape:
        raise DatasetError(
            f"holds {images.dtype} {shape}, not pictures (n, h, w) or (n, h, w, c)",
            file=path,
        )
    if labels is not None and labels.shape != shape[:1]:
        fact = f"has labels of shape {labels.shape} for {shape[0]} pictures"
        raise DatasetError(fact, file=path)
    return images, labels


def _pictures_among(arrays: dict[str, NDArray[Any]], path: Path) -> NDArray[Any]:
    """The array that is named `images` or `x`, or the only one."""
    for key in ("images", "x"):
        if key in arrays:
            return arrays[key]
    if len(arrays) != 1:
        hint = "name the one of pictures 'images'"
        raise DatasetError(f"has arrays {sorted(arrays)}", hint, path)
    return next(iter(arrays.values()))


def _read_npy(path: Path) -> dict[str, NDArray[Any]]:
    """The array of an .npy file, as if it was named `images`."""
    with path.open("rb") as stream:
        return {"images": _read_array(stream, path.stat().st_size)}


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by their names."""
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            possible = member.compress_size * _MAX_INFLATION
            size = min(member.file_size, possible)
            key = member.filename.removesuffix(".npy")
            arrays[key] = _read_array(archive.open(member), size)
    return arrays


def _read_array(stream: IO[bytes], size: int) -> NDArray[Any]:
    """An array in numpy's format; its header must not promise more than `size`."""
    header = io.BytesIO(stream.read(_MAX_HEADER_BYTES))
    if npy.read_magic(header) == (1, 0):
        shape, _, dtype = npy.read_array_header_1_0(header)
    else:
        shape, _, dtype = npy.read_array_header_2_0(header)
    promised = math.prod(shape) * dtype.itemsize
    if promised > size:
        raise ValueError(
            f"its header promises {shape} of {dtype}, {promised} bytes, "
            f"and it has {size}"
        )
    stream.seek(0)
    return np.asarray(npy.read_array(stream, allow_pickle=False))


def read_idx(files: Sequence[Path]) -> tuple[NDArray[np.uint8], Ints]:
    """Pictures and labels from two idx files."""
    image_file, label_file = files
    images = _read_idx_file(image_file, n_axes=3)
    labels = _read_idx_file(label_file, n_axes=1)
    if len(labels) != len(images):
        fact = f"has {len(labels)} labels, {image_file} {len(images)} pictures"
        raise DatasetError(fact, file=label_file)
    return images, labels.astype(np.int64)


def _read_idx_file(file: Path, n_axes: int) -> NDArray[np.uint8]:
    """The bytes of an idx file, gzipped or not.

    It begins with 00 00 08 and the number of axes, the sizes as big-endian uint32.
    """
    with as_dataset_errors(file), file.open("rb") as raw:
        # Not by its name: browsers may unpack .gz files.
        is_gzipped = raw.read(2) == _GZIP_MAGIC
        raw.seek(0)
        max_size = file.stat().st_size
        stream: io.BufferedReader | gzip.GzipFile = raw
        if is_gzipped:
            max_size *= _MAX_INFLATION
            stream = gzip.GzipFile(fileobj=raw)
        header = stream.read(4 + 4 * n_axes)
        if header[:4] != bytes((0, 0, 8, n_axes)):
            raise DatasetError(
                f"is not an idx{n_axes} file of bytes: it starts with {header[:4]!r}",
                file=file,
            )
        shape = struct.unpack(f">{n_axes}I", header[4:])
        size = math.prod(shape)
        data = b""
        if size <= max_size:
            data = stream.read(size + 1)  # one more shows that the file is too long
        if len(data) != size or size == 0:
            raise DatasetError(
                "is truncated, damaged or empty: "
                f"its header gives sizes {shape}, {size} bytes",
                file=file,
            )
    return np.frombuffer(data, np.uint8).reshape(shape).copy()
