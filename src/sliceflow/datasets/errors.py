"""Errors of data files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sliceflow.errors import HintedError

MOST_INFLATION = 1032  # the largest ratio of deflate, and so of zip and gz


class DatasetError(HintedError, ValueError):
    """A file does not hold what its name or header says."""


class BrokenPictureError(DatasetError):
    """A picture of a folder cannot be read."""


class MixedSizesError(DatasetError):
    """The pictures of a folder differ in size."""


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Turn the errors of decoders into a `DatasetError` that names the file."""
    try:
        yield
    except (DatasetError, MemoryError, PermissionError):
        raise
    except Exception as error:
        raise DatasetError(
            f"{file} cannot be read: {str(error) or type(error).__name__}"
        ) from error
