"""CIFAR-10's batches, binary or pickled. Pickles are never executed."""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sliceflow.datasets.errors import DatasetError, reading

_CORE = r"multiarray\._reconstruct|numeric\._frombuffer"
_ALLOWED = rf"numpy\.(ndarray|dtype|_?core\.({_CORE}))|_codecs\.encode"


def read(files: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Pictures and labels of all batches; a picture is a red, a green and a blue plane of 32×32."""
    rows = []
    labels = []
    for file in files:
        with reading(file):
            if file.suffix != ".bin":
                x, y = _pickled_batch(file)
            elif (size := file.stat().st_size) % 3073:
                raise DatasetError(
                    f"{file} is truncated: {size} bytes are not whole pictures of 3073"
                )
            else:
                table = np.fromfile(file, np.uint8).reshape(-1, 3073)
                x = table[:, 1:]
                y = table[:, 0].astype(np.int64)
        if x.shape != (len(y), 3072) or len(y) == 0:
            raise DatasetError(
                f"{file} has {len(y)} labels but data {x.shape} instead of (n, 3072)"
            )
        if y.min() < 0 or y.max() > 9:
            raise DatasetError(
                f"{file} has labels {y.min()} to {y.max()}; CIFAR-10's are 0 to 9"
            )
        rows.append(x)
        labels.append(y)
    planes = np.concatenate(rows).reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), np.concatenate(labels)


class _Record:
    """A call in a pickle, recorded instead of executed."""

    def __init__(self, *args: Any) -> None:
        self.args = args
        self.state = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """Records replace numpy's functions: a forged dtype or shape makes them allocate anything."""

    def find_class(self, module: str, name: str, /) -> Any:
        if not re.fullmatch(_ALLOWED, f"{module}.{name}"):
            raise pickle.UnpicklingError(
                f"its pickle asks for {module}.{name}, which is refused"
            )
        return _Record


def _pickled_batch(file: Path) -> tuple[np.ndarray, np.ndarray]:
    raw = file.read_bytes()
    # A pass without execution: all lengths are within the file, and no memo index makes a huge table.
    for opcode, arg, _ in pickletools.genops(raw):
        if opcode.name in ("PUT", "LONG_BINPUT") and int(arg or 0) > len(raw):
            raise pickle.UnpicklingError(f"its pickle has a memo index of {arg}")
    batch = _Unpickler(io.BytesIO(raw), encoding="latin1").load()
    labels = batch.get("labels") if isinstance(batch, dict) else None
    if not isinstance(labels, list) or not isinstance(batch.get("data"), _Record):
        raise DatasetError(
            f"{file} is not a CIFAR-10 batch: a dict of 'labels', a list, and 'data'"
        )
    record = batch["data"]
    if record.state:
        _, shape, dtype, fortran, raw = record.state
    else:  # pickle protocol 5
        raw, dtype, shape = record.args[:3]
        fortran = record.args[3] == "F"
    if dtype.args[0] != "u1":
        raise pickle.UnpicklingError(
            f"its data are {dtype.args[0]!r} instead of bytes, 'u1'"
        )
    raw = (
        raw.args[0] if isinstance(raw, _Record) else raw
    )  # Python 3 may write bytes as latin1 text
    raw = raw.encode("latin1") if isinstance(raw, str) else raw
    x = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")
    return x, np.array([int(label) for label in labels], np.int64)
