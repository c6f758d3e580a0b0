"""Errors of data files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sliceflow.errors import HintedError


class DatasetError(HintedError, ValueError):
    """Pictures that cannot be loaded.

    Attributes
    ----------
    file : path or None
        The file or folder, where it is known.
    fact : str
        What is wrong.
    hint : str
        What to do about it, or an empty text.
    """

    def __init__(self, fact: str, hint: str = "", file: Path | None = None) -> None:
        super().__init__(fact, hint)
        self.file = file
        self.args = (fact, hint, file)

    @property
    def where(self) -> str:
        if self.file is None:
            return ""
        return f"{self.file} "


class BrokenPictureError(DatasetError):
    """A picture of a folder cannot be read."""


class MixedSizesError(DatasetError):
    """The pictures of a folder differ in size."""


class MissingSetError(HintedError, FileNotFoundError):
    """The files of a named set are missing.

    Attributes
    ----------
    name : str
        The name of the set.
    fact : str
        What is missing.
    hint : str
        What to do about it.
    """

    def __init__(self, fact: str, hint: str = "", name: str = "") -> None:
        super().__init__(fact, hint)
        self.name = name
        self.args = (fact, hint, name)

    @property
    def where(self) -> str:
        return f"{self.name}: "


@contextmanager
def as_dataset_errors(file: Path) -> Iterator[None]:
    """Turn the errors of decoders into a `DatasetError` that names the file."""
    try:
        yield
    except (DatasetError, MemoryError, PermissionError):
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise DatasetError(f"cannot be read: {reason}", file=file) from error
