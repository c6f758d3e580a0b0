"""Model files: one dataclass, compressed, written atomically, and checked before use.

A file is a safetensors file, compressed by zstd with a checksum. Its tensors are the
arrays of the dataclass, whose bytes `packing` has reordered, and one named "header",
which is an `Envelope` with all the rest; see `codec`. So other tools can open a model:
``zstd -dc model.sliceflow > model.safetensors``. There is no pickle.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as from_safetensors
from safetensors.numpy import save as to_safetensors

import sliceflow
from sliceflow.base import codec
from sliceflow.base.atomic import write_atomically
from sliceflow.base.memory_budget import MemoryBudget
from sliceflow.errors import DataError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

RUN_FILE = "model.sliceflow"  # the model in the folder of a run of the command line
FORMAT = 2  # raised whenever an older version would misread the new files
# The name of the tensor with all but arrays. No saved class has an array of this name.
HEADER = "header"
# The most bytes of a header. The header of a table with many levels has some megabytes.
MAX_HEADER_SIZE = 1 << 25
# Python's objects take about this many bytes in memory for each byte of a header.
MEMORY_PER_HEADER_BYTE = 20
# Bytes in memory for every byte of arrays: unzipped, copied by safetensors, unpacked.
MEMORY_PER_ARRAY_BYTE = 3
# Level 9 takes a second for 140 MB on one core. Measured on small models of all kinds,
# level 3 is four times as fast with files up to 5 % larger, and level 19 is ten times
# as slow with files up to 10 % smaller.
COMPRESSION_LEVEL = 9
# Files of format 1, by sliceflow 0.3.0 and before, were safetensors with a text of
# JSON. The text named the version for an estimator, but not for a posterior.
FORMAT_1 = re.compile(
    rb'"sliceflow":"(\{\\"format\\":1,\\"library\\":\\"(?P<version>[\w.]+)|post)'
)


class ModelFileError(ValueError):
    """A model file that cannot be used. The message names it and says what is wrong."""


# The errors that objects of a file raise if they pass every check of types and shapes
# and still do not fit together. torch raises RuntimeErrors, and pandas
# NotImplementedErrors, which are RuntimeErrors, too.
CONTENT_ERRORS = (
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RuntimeError,
)


@runtime_checkable
class DrawsSamples(Protocol):
    """A saved object that draws samples, which take memory, too."""

    def sample_bytes(self) -> int:
        """Memory to draw one sample."""


@contextmanager
def as_model_file_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn whatever is wrong with the content of a file into a `ModelFileError`."""
    try:
        yield
    except ModelFileError:
        raise
    except CONTENT_ERRORS as error:
        raise ModelFileError(f"{os.fspath(path)}: {error}") from error
    except MemoryError as error:
        raise ModelFileError(f"{os.fspath(path)} does not fit into memory") from error


class Envelope(msgspec.Struct):
    """What a file holds besides its arrays.

    Attributes
    ----------
    format : the format of the file; see `FORMAT`
    library : the version of sliceflow that wrote the file
    class_name : the name of the dataclass
    header : the dataclass's object without its arrays, as `codec.encode` gives it
    """

    format: int
    library: str
    class_name: str
    header: msgspec.Raw


def save(path: str | os.PathLike[str], value: Any) -> None:
    """Write a dataclass. If that fails, an existing file stays as it is."""
    header, arrays = codec.encode(value)
    if len(header) > MAX_HEADER_SIZE:
        fact = f"all but arrays takes {len(header)} bytes"
        raise DataError(
            f"{fact}, but a file may have {MAX_HEADER_SIZE}",
            "use fewer or shorter labels",
        )
    write(path, type(value).__name__, header, arrays)


def load(
    path: str | os.PathLike[str],
    types: Sequence[type[T]],
    device: torch.device | str = "cpu",
    max_memory: int | None = None,
) -> T:
    """Load the object that `save` wrote, of one of these dataclasses.

    Parameters
    ----------
    path : the file, or the folder of a run of the command line
    types : the dataclasses that the file may hold
    device : the device of tensors
    max_memory : bytes that the object may take, together with one sample if it is a
        `DrawsSamples`. None takes a limit from the size of the file; see `MemoryBudget`

    Raises
    ------
    ModelFileError
        If anything is wrong with the file.
    """

    def find_type(class_name: str) -> type[T]:
        return _find_type(class_name, types)

    return load_by_class_name(path, find_type, device, max_memory)


def load_by_class_name(
    path: str | os.PathLike[str],
    find_type: Callable[[str], type[T]],
    device: torch.device | str = "cpu",
    max_memory: int | None = None,
) -> T:
    """Load the object that `save` wrote, if the file's dataclass is known by its name.

    `find_type` gives the dataclass for the name in the file, or raises a ValueError for
    an unknown name. The other parameters are those of `load`.
    """
    name = _path_in_folder(path)
    content = _read_content(name)
    budget = MemoryBudget(len(content), max_memory)
    with as_model_file_errors(name):
        class_name, header, arrays = parse(content, budget)
        value = codec.decode(find_type(class_name), header, arrays, device)
        if isinstance(value, DrawsSamples):
            budget.check_sample(value.sample_bytes())
    return value


def write(
    path: str | os.PathLike[str],
    class_name: str,
    header: bytes,
    arrays: Mapping[str, NDArray[Any]],
) -> None:
    """Write a file of the dataclass `class_name`, given its header and arrays."""
    envelope = Envelope(FORMAT, sliceflow.__version__, class_name, msgspec.Raw(header))
    packed_envelope = np.frombuffer(msgspec.msgpack.encode(envelope), np.uint8)
    tensors = to_safetensors({HEADER: packed_envelope, **arrays})
    # The bytes do not depend on the number of threads.
    compressor = zstandard.ZstdCompressor(
        level=COMPRESSION_LEVEL, write_checksum=True, threads=-1
    )
    content = compressor.compress(tensors)
    write_atomically(path, lambda file: file.write(content))


def parse(
    content: bytes, budget: MemoryBudget
) -> tuple[str, bytes, dict[str, NDArray[Any]]]:
    """Read the name of the dataclass, its header and the arrays from a file's content.

    The `budget` counts memory before it is allocated. Raises a ValueError if the file
    is damaged, or of another format.
    """
    _check_not_format_1(content)
    tensors = _unzip(content, budget)
    if HEADER not in tensors:
        raise ValueError("it has no header")
    packed_envelope = tensors.pop(HEADER).tobytes()
    _check_header_size(len(packed_envelope), budget)
    envelope = msgspec.msgpack.decode(packed_envelope, type=Envelope)
    if envelope.format != FORMAT:
        raise ValueError(
            f"it has format {envelope.format}, by sliceflow {envelope.library}; "
            f"sliceflow {sliceflow.__version__} reads format {FORMAT}: "
            f"install sliceflow {envelope.library} or newer"
        )
    return envelope.class_name, bytes(envelope.header), tensors


def _check_not_format_1(content: bytes) -> None:
    """Raise a ValueError for a file of an old version, which is not compressed."""
    old = FORMAT_1.search(content[:300])
    if old is not None:
        version = (old["version"] or b"0.3.0").decode()
        raise ValueError(
            f"it was written by sliceflow {version} in format 1, which is no longer "
            "read; fit and save the model again"
        )


def _unzip(content: bytes, budget: MemoryBudget) -> dict[str, NDArray[Any]]:
    """The tensors of a file, whose checksum zstd compares."""
    try:
        size = zstandard.frame_content_size(content)
        if size < 0:  # unknown
            raise ValueError("it does not say how many bytes it holds")
        budget.take(MEMORY_PER_ARRAY_BYTE * size)
        # This never makes more than `size` bytes: if there are more, the file is wrong.
        unzipped = zstandard.ZstdDecompressor().decompress(
            content, allow_extra_data=False
        )
        _check_header_size(int.from_bytes(unzipped[:8], "little"), budget)
        tensors: dict[str, NDArray[Any]] = from_safetensors(unzipped)
    except (zstandard.ZstdError, SafetensorError) as error:
        raise ValueError(
            f"it is not a sliceflow file, or is damaged: {error}; copy or save it again"
        ) from error
    return tensors


def _check_header_size(size: int, budget: MemoryBudget) -> None:
    """Count the memory of a header; a ValueError if it is too large."""
    if size > MAX_HEADER_SIZE:
        raise ValueError(
            f"it has a header of {size} bytes; at most {MAX_HEADER_SIZE} are allowed"
        )
    budget.take(MEMORY_PER_HEADER_BYTE * size)


def _find_type(class_name: str, types: Sequence[type[T]]) -> type[T]:
    """The dataclass of this name."""
    by_name = {saved_type.__name__: saved_type for saved_type in types}
    if class_name not in by_name:
        class_names = ", ".join(by_name)
        raise ValueError(f"it holds {class_name[:60]!r}, not one of {class_names}")
    return by_name[class_name]


def _path_in_folder(path: str | os.PathLike[str]) -> str:
    """The path of the model's file, also where the folder of a run is given."""
    name = os.fspath(path)
    if not os.path.isdir(name):
        return name
    inside = os.path.join(name, RUN_FILE)
    if not os.path.exists(inside):
        raise ModelFileError(
            f"{name} is a folder without {RUN_FILE}; "
            "give the name of a file, or the folder of a run that has ended"
        )
    return inside


def _read_content(name: str) -> bytes:
    """The bytes of a file; a `ModelFileError` for what is not a file."""
    try:
        if not stat.S_ISREG(os.stat(name).st_mode):  # reading a pipe would block
            raise ModelFileError(f"{name} is not a file")
        with open(name, "rb") as file:
            return file.read()
    except OSError as error:
        reason = error.strerror or error
        raise ModelFileError(f"{name} cannot be read: {reason}") from error
    except ModelFileError:
        raise
    except ValueError as error:  # NUL, or what the system cannot encode
        raise ModelFileError(f"{name!r} cannot name a file: {error}") from error
