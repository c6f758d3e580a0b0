"""CIFAR-10's batches, binary or pickled. Pickles are never executed."""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sliceflow.arrays import Ints
from sliceflow.datasets.errors import DatasetError, as_dataset_errors

# A picture is a red, a green and a blue plane of 32×32 bytes.
_PICTURE_BYTES = 3 * 32 * 32
# In binary batches, the label is a byte before each picture.
_RECORD_BYTES = 1 + _PICTURE_BYTES
_N_CLASSES = 10
# What pickles of arrays call, in old and new versions of numpy.
_ALLOWED_CALLS = (
    "numpy.ndarray",
    "numpy.dtype",
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct",
    "numpy.core.numeric._frombuffer",
    "numpy._core.numeric._frombuffer",
    "_codecs.encode",
)


def read(files: Sequence[Path]) -> tuple[NDArray[np.uint8], Ints]:
    """Pictures (n, 32, 32, 3) and labels (n,) of all batches."""
    batches = []
    labels = []
    for file in files:
        with as_dataset_errors(file):
            if file.suffix == ".bin":
                x, y = _read_binary(file)
            else:
                x, y = _read_pickle(file)
        if x.shape != (len(y), _PICTURE_BYTES) or len(y) == 0:
            fact = f"has {len(y)} labels but data {x.shape} instead of (n, 3072)"
            raise DatasetError(fact, file=file)
        if y.min() < 0 or y.max() >= _N_CLASSES:
            fact = f"has labels {y.min()} to {y.max()}; CIFAR-10's are 0 to 9"
            raise DatasetError(fact, file=file)
        batches.append(x)
        labels.append(y)
    planes = np.concatenate(batches).reshape(-1, 3, 32, 32)
    images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    return images, np.concatenate(labels)


def _read_binary(file: Path) -> tuple[NDArray[np.uint8], Ints]:
    """Pictures (n, 3072) and labels (n,) of a binary batch."""
    size = file.stat().st_size
    if size % _RECORD_BYTES:
        fact = f"is truncated: {size} bytes are not whole pictures of {_RECORD_BYTES}"
        raise DatasetError(fact, file=file)
    records = np.fromfile(file, np.uint8).reshape(-1, _RECORD_BYTES)
    return records[:, 1:], records[:, 0].astype(np.int64)


class _Record:
    """A call in a pickle, recorded instead of executed."""

    def __init__(self, *args: Any) -> None:
        self.args = args
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """An unpickler that records calls of numpy's functions instead of making them.

    For a forged dtype or shape, these functions would allocate any amount of memory.
    """

    def find_class(self, module: str, name: str, /) -> type[_Record]:
        if f"{module}.{name}" not in _ALLOWED_CALLS:
            raise pickle.UnpicklingError(
                f"its pickle asks for {module}.{name}, which is refused"
            )
        return _Record


def _read_pickle(file: Path) -> tuple[NDArray[np.uint8], Ints]:
    """Pictures (n, 3072) and labels (n,) of a pickled batch."""
    content = file.read_bytes()
    _require_small_memo(content)
    batch = _Unpickler(io.BytesIO(content), encoding="latin1").load()
    labels = None
    data = None
    if isinstance(batch, dict):
        labels = batch.get("labels")
        data = batch.get("data")
    if not isinstance(labels, list) or not isinstance(data, _Record):
        fact = "is not a CIFAR-10 batch: a dict of 'labels', a list, and 'data'"
        raise DatasetError(fact, file=file)
    return _as_array(data), np.array([int(label) for label in labels], np.int64)


def _require_small_memo(content: bytes) -> None:
    """Read a pickle without executing it, which checks that lengths are within it.

    Also refuse an index of its memo that would make a huge table.
    """
    for opcode, arg, _ in pickletools.genops(content):
        if opcode.name in ("PUT", "LONG_BINPUT") and int(arg or 0) > len(content):
            raise pickle.UnpicklingError(f"its pickle has a memo index of {arg}")


def _as_array(record: _Record) -> NDArray[np.uint8]:
    """The array of bytes that a recorded call would have made."""
    if record.state:
        _, shape, dtype, is_fortran, raw = record.state
    else:  # pickle protocol 5
        raw, dtype, shape, order = record.args[:4]
        is_fortran = order == "F"
    if dtype.args[0] != "u1":
        raise pickle.UnpicklingError(
            f"its data are {dtype.args[0]!r} instead of bytes, 'u1'"
        )
    if isinstance(raw, _Record):
        raw = raw.args[0]
    if isinstance(raw, str):  # Python 3 may write bytes as latin1 text
        raw = raw.encode("latin1")
    array = np.frombuffer(raw, np.uint8)
    if is_fortran:
        return array.reshape(shape, order="F")
    return array.reshape(shape)
