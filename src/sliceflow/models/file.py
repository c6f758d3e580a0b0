"""Model files: dataclasses in safetensors, written atomically and checked before they are used.

A JSON text and a checksum are in ``__metadata__``. There is no pickle: `codec` makes text and tensors.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Sequence
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

import sliceflow
from sliceflow.models import codec
from sliceflow.models.atomic import write_atomically
from sliceflow.models.limits import Allowance

RUN_FILE = "model.sliceflow"  # the model in the folder of a run of the command line
FORMAT = 1  # a new number only where an old library would misread the file
HEADER_LIMIT = (
    1 << 25
)  # bytes of the header: parsing JSON takes some twenty times as many
_TEXT = "sliceflow"
_CHECKSUM = "blake2b"


class ModelFileError(ValueError):
    """A file that cannot be used; the message names it and says what is wrong."""


def save(path: str | os.PathLike[str], value: Any) -> None:
    """Write a dataclass to `path`. If that fails, an existing file is left unchanged."""
    tensors: dict[str, np.ndarray] = {}
    body = codec.pack(type(value), value, tensors)
    kind = type(value).__name__
    library = sliceflow.__version__
    write(
        path,
        {"format": FORMAT, "library": library, "kind": kind, "body": body},
        tensors,
    )


def load(
    path: str | os.PathLike[str],
    kinds: Sequence[Any],
    device: Any = "cpu",
    max_memory: int | None = None,
) -> Any:
    """The dataclass that `save` wrote, one of these `kinds`; a `ModelFileError` says what is wrong.

    `path` may be a run's folder. `max_memory` also bounds ``value.sample_bytes()``; see `Allowance`.
    """
    path = _in_folder(path)
    text, tensors = read(path)
    allowance = Allowance(os.path.getsize(path), max_memory)
    try:
        kind = _kind(text, kinds)
        value = codec.unpack(kind, text["body"], tensors, allowance, device)
        allowance.for_sample(getattr(value, "sample_bytes", lambda: 0)())
    except (
        ValueError,
        TypeError,
        ArithmeticError,
        LookupError,
        AttributeError,
    ) as error:
        raise ModelFileError(f"{path}: {error}") from error
    except (RuntimeError, MemoryError) as error:  # of torch, for shapes that cannot be
        raise ModelFileError(f"{path} does not fit into memory: {error}") from error
    return value


def _kind(text: dict[str, Any], kinds: Sequence[Any]) -> Any:
    """The class whose object the text describes."""
    number = text.get("format")
    library = text.get("library")
    own = sliceflow.__version__
    if type(number) is int and number > FORMAT:
        fact = f"it has format {number}, by sliceflow {library}; sliceflow {own} reads format {FORMAT}"
        raise ValueError(f"{fact}: install sliceflow {library} or newer")
    if number != FORMAT or text.keys() != {"format", "library", "kind", "body"}:
        raise ValueError("it is not a model")
    known = {kind.__name__: kind for kind in kinds}
    if text["kind"] not in [*known]:
        raise ValueError(
            f"it holds {str(text['kind'])[:60]!r}, not one of {', '.join(known)}"
        )
    return known[text["kind"]]


def _in_folder(path: str | os.PathLike[str]) -> str:
    """The model's file, also where a run's folder is given."""
    name = os.fspath(path)
    if not os.path.isdir(name):
        return name
    if not os.path.exists(inside := os.path.join(name, RUN_FILE)):
        advice = "give the name of a file, or the folder of a run that has ended"
        raise ModelFileError(f"{name} is a folder without {RUN_FILE}; {advice}")
    return inside


def write(
    path: str | os.PathLike[str], text: dict[str, Any], tensors: dict[str, np.ndarray]
) -> None:
    """Write `text`, which is JSON without NaN and infinities, and `tensors` of bytes, as `save` does."""
    words = json.dumps(text, allow_nan=False, separators=(",", ":"))
    header: dict[str, Any] = {
        "__metadata__": {_TEXT: words, _CHECKSUM: _checksum(words, tensors)}
    }
    end = 0
    for name, t in tensors.items():
        begin = end
        end = end + len(t)
        header[name] = {"dtype": "U8", "shape": [len(t)], "data_offsets": [begin, end]}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    if len(head) > HEADER_LIMIT:
        fact = f"the header takes {len(head)} bytes, but a file may have {HEADER_LIMIT}"
        raise ValueError(
            f"{fact}; are there very many steps or labels, or very long ones?"
        )
    size = len(head).to_bytes(8, "little")
    arrays = (t.data for t in tensors.values())
    write_atomically(path, lambda file: file.writelines([size, head, *arrays]))


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The text and the tensors of a file by `write`; else a `ModelFileError`."""
    name = os.fspath(path)
    _check_start(name)
    try:
        with safe_open(name, framework="np") as opened:
            metadata = opened.metadata() or {}
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"{name} is damaged: {error}; copy or save it again"
        ) from error
    if _TEXT not in metadata:
        raise ModelFileError(f"{name} holds tensors but was not written by sliceflow")
    words = metadata[_TEXT]
    bytes_only = all(t.dtype == np.uint8 for t in tensors.values())
    if not bytes_only or metadata.get(_CHECKSUM) != _checksum(words, tensors):
        raise ModelFileError(
            f"{name} is damaged: its checksum is wrong; copy or save it again"
        )
    try:
        text = json.loads(words, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(
            f"{name} has a text that is not valid JSON: {error}"
        ) from error
    if not isinstance(text, dict):
        raise ModelFileError(f"{name} has a text that is not a JSON object")
    return text, tensors


def _check_start(name: str) -> None:
    """Raise a `ModelFileError` for what is no file, or has no header of a size that can be."""
    try:
        status = os.stat(name)
        start = b""
        if stat.S_ISREG(status.st_mode):  # reading a pipe would block
            with open(name, "rb") as file:
                start = file.read(8)
    except OSError as error:
        raise ModelFileError(
            f"{name} cannot be read: {error.strerror or error}"
        ) from error
    except ValueError as error:  # NUL, or what the system cannot encode
        raise ModelFileError(f"{name!r} cannot name a file: {error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise ModelFileError(f"{name} is not a file")
    size = int.from_bytes(start, "little")
    if len(start) < 8 or size < 2 or 8 + size > status.st_size:
        fact = f"{name} is not a sliceflow file, or was cut off"
        raise ModelFileError(f"{fact}: it has {status.st_size} bytes")
    if size > HEADER_LIMIT:
        raise ModelFileError(
            f"{name} has a header of {size} bytes; at most {HEADER_LIMIT} are allowed"
        )


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not a number")


def _checksum(words: str, tensors: dict[str, np.ndarray]) -> str:
    """A hash of the text, and of the tensors with their names and sizes."""
    total = hashlib.blake2b(words.encode(), digest_size=16)
    for name in sorted(tensors):
        total.update(repr((name, tensors[name].shape)).encode())
        total.update(tensors[name].data)
    return total.hexdigest()
