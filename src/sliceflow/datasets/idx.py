"""Files in the idx format, as of MNIST."""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sliceflow.datasets.errors import MOST_INFLATION, DatasetError, reading

__all__ = ["read"]


def read(files: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Pictures and labels from a file of each."""
    images, labels = _idx(files[0], 3), _idx(files[1], 1)
    if len(labels) != len(images):
        raise DatasetError(f"{files[1]} has {len(labels)} labels, {files[0]} {len(images)} pictures")
    return images, labels.astype(np.int64)


def _idx(file: Path, rank: int) -> np.ndarray:
    """An idx file, gzipped or not: 00 00 08 rank, the sizes as big-endian uint32, then bytes."""
    with reading(file), file.open("rb") as plain:
        packed = plain.read(2) == b"\x1f\x8b"  # not by its name: browsers may unpack .gz files
        plain.seek(0)
        stream: Any = gzip.GzipFile(fileobj=plain) if packed else plain
        head, magic = stream.read(4 + 4 * rank), bytes((0, 0, 8, rank))
        if head[:4] != magic:
            raise DatasetError(
                f"{file} starts with {head[:4].hex(' ') or 'nothing'} instead of {magic.hex(' ')}: "
                f"it is not an idx{rank} file of bytes"
            )
        shape = struct.unpack(f">{rank}I", head[4:])
        need, most = math.prod(shape), file.stat().st_size * (MOST_INFLATION if packed else 1)
        data = stream.read(need + 1) if need <= most else b""
        if len(data) != need or need == 0:
            raise DatasetError(
                f"{file} is truncated or damaged: its header gives sizes {shape}, {need} bytes, but "
                f"{'more' if len(data) > need > 0 else 'fewer' if need else 'no pictures'} follow"
            )
    return np.frombuffer(data, np.uint8).reshape(shape).copy()
