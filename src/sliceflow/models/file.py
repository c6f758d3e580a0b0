"""Files of tensors with one JSON text, written atomically and checked before they are used.

The format is safetensors, which many tools can open. The text and a checksum of everything are in its
``__metadata__``. There is no pickle, and nothing here depends on the meaning of the tensors.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from typing import Any, BinaryIO

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from sliceflow.models.atomic import write_atomically

__all__ = ["Fields", "ModelFileError", "read", "write"]

HEADER_LIMIT = 1 << 24  # bytes of the header: parsing JSON takes some twenty times as many
TENSORS_LIMIT = 10_000
_TEXT, _CHECKSUM = "sliceflow", "blake2b"
_CODES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float64: "F64",
}


class ModelFileError(ValueError):
    """A file that cannot be used; the message names it and says what is wrong."""


def write(path: str | os.PathLike[str], text: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write `text` and `tensors` to `path`. If that fails, an existing file is left unchanged.

    `atomic.write_atomically` says what may be replaced.

    Parameters
    ----------
    path : a file in an existing folder
    text : anything that `json` can write; no NaN, no infinities
    tensors : by name, on any device

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f"{folder}/x", {"answer": 42}, {"t": torch.arange(3)})
    ...     read(f"{folder}/x")
    ({'answer': 42}, {'t': tensor([0, 1, 2])})
    """
    if len(tensors) > TENSORS_LIMIT:
        raise ValueError(f"there are {len(tensors)} tensors, and a file may hold {TENSORS_LIMIT}")
    # The largest types first, so that every tensor is aligned.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    arrays = {name: tensors[name].detach().cpu().contiguous() for name in names}
    # Parameters may be numpy's numbers.
    words = json.dumps(text, allow_nan=False, separators=(",", ":"), default=np.generic.item)
    header: dict[str, Any] = {"__metadata__": {_TEXT: words, _CHECKSUM: _checksum(words, arrays)}}
    end = 0
    for name, t in arrays.items():
        begin, end = end, end + t.nbytes
        place = {"shape": list(t.shape), "data_offsets": [begin, end]}
        header[name] = {"dtype": _CODES[t.dtype], **place}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    if len(head) > HEADER_LIMIT:
        raise ValueError(
            f"the header takes {len(head)} bytes, but a file may have {HEADER_LIMIT}; are there very "
            "many labels, or very long ones?"
        )

    def put(file: BinaryIO) -> None:
        file.write(len(head).to_bytes(8, "little"))
        file.write(head)
        for t in arrays.values():
            file.write(_bytes(t))

    write_atomically(path, put)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The text and the tensors, on the CPU, of a file by `write`.

    No more is allocated than the file has bytes. A `ModelFileError` says what is wrong.
    """
    name = os.fspath(path)
    try:
        status, start = os.stat(name), b""
        if stat.S_ISREG(status.st_mode):  # reading a pipe would block
            with open(name, "rb") as file:
                start = file.read(8)
    except OSError as error:
        raise ModelFileError(f"{name} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # NUL, or what the system cannot encode
        raise ModelFileError(f"{name!r} cannot name a file: {error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise ModelFileError(f"{name} is not a file")
    size = int.from_bytes(start, "little")
    if len(start) < 8 or size < 2 or 8 + size > status.st_size:
        raise ModelFileError(
            f"{name} is not a sliceflow file, or was cut off: it has {status.st_size} bytes"
            + (f" and a header of {size}" if len(start) == 8 else "")
        )
    if size > HEADER_LIMIT:
        raise ModelFileError(f"{name} has a header of {size} bytes; at most {HEADER_LIMIT} are allowed")
    try:
        with safe_open(name, framework="pt") as opened:
            metadata, names = opened.metadata() or {}, opened.keys()
            if len(names) > TENSORS_LIMIT:
                raise ValueError(
                    f"it has {len(names)} tensors, and at most {TENSORS_LIMIT} are allowed"
                )
            # A clone, or the tensors would change with the file.
            tensors = {key: opened.get_tensor(key).clone() for key in names}
    except (SafetensorError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise ModelFileError(f"{name} is damaged: {error}; copy or save it again") from error
    if _TEXT not in metadata:
        raise ModelFileError(f"{name} holds tensors but was not written by sliceflow")
    words = metadata[_TEXT]
    unknown = [key for key, t in tensors.items() if t.dtype not in _CODES]
    if unknown or metadata.get(_CHECKSUM) != _checksum(words, tensors):
        raise ModelFileError(f"{name} is damaged: its checksum is wrong; copy or save it again")
    try:
        text = json.loads(words, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{name} has a text that is not valid JSON: {error}") from error
    if not isinstance(text, dict):
        raise ModelFileError(f"{name} has a text that is not a JSON object")
    return text, tensors


class Fields:
    """Typed access to the fields of a JSON object; a ValueError says what does not fit.

    Examples
    --------
    >>> fields = Fields({"seed": {"entropy": -1}})
    >>> fields.inner("seed").whole("entropy", 0)
    Traceback (most recent call last):
    ...
    ValueError: seed.entropy is -1; it must be an integer of at least 0
    """

    def __init__(self, value: Any, where: str = "") -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{where or 'the text'} is {_short(value)}; it must be a JSON object")
        self.value, self._where = value, where

    def _name(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name

    def _need(self, ok: bool, name: str, what: str) -> None:
        if not ok:
            raise ValueError(f"{self._name(name)} is {_short(self.value[name])}; it must be {what}")

    def raw(self, name: str) -> Any:
        """The field of any type."""
        if name not in self.value:
            raise ValueError(f"{self._name(name)} is missing")
        return self.value[name]

    def whole(self, name: str, least: int, most: int = 1 << 53) -> int:
        """An integer from `least` to `most`."""
        value = self.raw(name)
        ok = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        limit = f"of at least {least}" if most == 1 << 53 else f"from {least} to {most}"
        self._need(ok, name, f"an integer {limit}")
        return int(value)

    def number(self, name: str, least: float = -math.inf, most: float = math.inf) -> float:
        """A finite number from `least` to `most`."""
        value = self.raw(name)
        ok = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
        limits = "" if least == -math.inf else f", at least {least:g}"
        limits += "" if most == math.inf else f" and at most {most:g}"
        self._need(ok and least <= value <= most, name, f"a finite number{limits}")
        return float(value)

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self.raw(name)
        self._need(isinstance(value, bool), name, "true or false")
        return bool(value)

    def text(self, name: str) -> str:
        """A string."""
        value = self.raw(name)
        self._need(isinstance(value, str), name, "a string")
        return str(value)

    def rows(self, name: str) -> list[Any]:
        """A list of anything."""
        value = self.raw(name)
        self._need(isinstance(value, list), name, "a list")
        return list(value)

    def wholes(self, name: str, least: int) -> list[int]:
        """A list of integers of at least `least`."""
        values = self.rows(name)
        ok = all(type(v) is int and least <= v <= 1 << 53 for v in values)
        self._need(ok, name, f"a list of integers of at least {least}")
        return values

    def inner(self, name: str) -> Fields:
        """A nested object."""
        return Fields(self.raw(name), self._name(name))

    def inners(self, name: str) -> list[Fields]:
        """A list of objects."""
        return [Fields(v, f"{self._name(name)}[{i}]") for i, v in enumerate(self.rows(name))]


def _short(value: Any) -> str:
    try:
        shown = repr(value)
    except (ValueError, RecursionError):  # integers of thousands of digits, deep nesting
        shown = f"a {type(value).__name__} too long to show"
    return shown if len(shown) <= 60 else shown[:57] + "…"


def _refused(word: str) -> None:
    raise ValueError(f"{word} is not a number")


def _bytes(t: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    return t.reshape(-1).view(torch.uint8).numpy().data if t.numel() else memoryview(b"")


def _checksum(words: str, tensors: dict[str, Tensor]) -> str:
    """A hash of the text and of the tensors' names, types, shapes and values."""
    total = hashlib.blake2b(words.encode(), digest_size=16)
    for name in sorted(tensors):
        t = tensors[name]
        total.update(repr((name, str(t.dtype), tuple(t.shape))).encode())
        total.update(_bytes(t))
    return total.hexdigest()
