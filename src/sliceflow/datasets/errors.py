"""Distrust: nothing that a file says is believed before it is checked. No format lives here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["MOST_INFLATION", "BrokenPictureError", "DatasetError", "MixedSizesError", "reading"]

MOST_INFLATION = 1032  # deflate packs no tighter, so no zip or gz holds more


class DatasetError(ValueError):
    """A file does not hold what its name or its header says; the message names it.

    `fact` is the message without its advice.
    """

    __module__ = "sliceflow.datasets"  # where users find it, and what tracebacks show

    def __init__(self, fact: str, advice: str = "") -> None:
        super().__init__(f"{fact}{advice and '; '}{advice}")
        self.fact = fact


class BrokenPictureError(DatasetError):
    """A picture of a folder cannot be read."""

    __module__ = "sliceflow.datasets"


class MixedSizesError(DatasetError):
    """The pictures of a folder are not of one size."""

    __module__ = "sliceflow.datasets"


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Whatever a decoder finds wrong becomes a DatasetError that names the file."""
    try:
        yield
    except (DatasetError, MemoryError, PermissionError):
        raise
    except Exception as error:
        raise DatasetError(f"{file} cannot be read: {str(error) or type(error).__name__}") from error
