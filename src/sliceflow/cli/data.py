"""The data of a command, pictures or a table, and the estimator for them."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from sliceflow import datasets
from sliceflow.arrays import Ints, Mask
from sliceflow.cli.failures import CommandError, UsageError
from sliceflow.cli.messy_tables import find_free_text, note_free_text
from sliceflow.cli.settings import (
    DATASET_NAMES,
    PICTURES,
    TABLE,
    DataKind,
    Settings,
    parse_kinds,
)
from sliceflow.table_files import Dialect
from sliceflow.wording import did_you_mean

if TYPE_CHECKING:
    import pandas as pd

    from sliceflow import ImageFlow, TableFlow
    from sliceflow.app.server import JsonObject
    from sliceflow.estimators.pictures.known_parts import KnownPart

# With fewer rows, none is held out: a tenth of them would be too few to measure with.
_MIN_ROWS_TO_HOLD_OUT = 100
# Pictures with labels are fitted by class unless a class has fewer pictures than this:
# the maps of a class of a few pictures would hardly do more than copy them. Chosen by
# judgment.
_MIN_PICTURES_OF_A_CLASS = 10
# The most channels of a picture in a file: red, green, blue and opacity.
_MAX_CHANNELS = 4
# Pixels of a picture of the known part count as white from this value on.
_WHITE = 128
_DATASET_HINTS = {
    datasets.BrokenPictureError: "fix or remove that file, or pass --skip-broken",
    datasets.MixedSizesError: (
        "pass --size 32, or any other: it crops the middle square and resizes it"
    ),
    datasets.MissingSetError: (
        "name the folder above the set with --data-root, or set SLICEFLOW_DATA"
    ),
    datasets.DatasetError: (
        "pass a folder of pictures, an .npy or .npz file, or a table"
    ),
}


@dataclass(frozen=True, eq=False)
class BaseInput(ABC):
    """What pictures and a table have in common, as they were read.

    Parameters
    ----------
    name : such as "digits"
    notes : texts that say what was left out of the data
    """

    name: str
    notes: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    @abstractmethod
    def kind(self) -> DataKind:
        """What the data are: "pictures" or "table"."""

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """The number of pictures, or of rows of the table."""

    @property
    @abstractmethod
    def fitted_rows(self) -> NDArray[Any] | pd.DataFrame:
        """The rows to which the model is fitted."""

    @property
    def columns(self) -> list[str]:
        """The names of a table's columns; pictures have none."""
        return []

    @property
    @abstractmethod
    def description(self) -> str:
        """The data in words, such as "1297 pictures of 8×8 in 10 classes"."""

    def summary(self, held_out: BaseInput | None) -> JsonObject:
        """The data as config.json and the report describe them."""
        return {
            "name": self.name,
            "kind": self.kind,
            "what": self.description,
            "columns": self.columns,
            "held_out": 0 if held_out is None else held_out.n_rows,
            "notes": list(self.notes),
            "dialect": None,
        }

    @abstractmethod
    def take(self, rows: Ints) -> Self:
        """The data of these rows only."""

    @property
    def fitted_data(self) -> Self:
        """The data to which the model is fitted."""
        return self

    @abstractmethod
    def aligned(self, other: BaseInput) -> Self | None:
        """Other data in the form of these; None if they are not alike."""

    @abstractmethod
    def hashable_rows(self) -> list[Hashable]:
        """The rows, so that two are equal if they have the same values."""


@dataclass(frozen=True, eq=False)
class PictureInput(BaseInput):
    """Pictures, as they were read.

    Parameters
    ----------
    x : pictures (n, h, w[, c])
    labels : their classes (n,), or None
    n_pixel_values : integer pixels are below this number
    """

    x: NDArray[Any]
    labels: NDArray[Any] | None = None
    n_pixel_values: int = 256

    @property
    def kind(self) -> DataKind:
        return PICTURES

    @property
    def n_rows(self) -> int:
        return len(self.x)

    @property
    def fitted_rows(self) -> NDArray[Any]:
        return self.x

    @property
    def description(self) -> str:
        height, width = self.x.shape[1:3]
        text = f"{len(self.x)} pictures of {height}×{width}"
        if self.x.ndim == 4:
            text += " in color"
        if self.labels is not None:
            text += f" in {len(np.unique(self.labels))} classes"
        return text

    def take(self, rows: Ints) -> Self:
        labels = None if self.labels is None else self.labels[rows]
        return replace(self, x=self.x[rows], labels=labels)

    def aligned(self, other: BaseInput) -> Self | None:
        """Other pictures with the type of these.

        They must have the same size, and pixels of the same kind and range.
        """
        if not isinstance(other, type(self)) or other.x.shape[1:] != self.x.shape[1:]:
            return None
        has_whole_pixels = self.x.dtype.kind != "f"
        if has_whole_pixels != (other.x.dtype.kind != "f"):
            return None
        if has_whole_pixels and other.x.max() >= self.n_pixel_values:
            return None
        pictures = other.x.astype(self.x.dtype)
        return replace(other, x=pictures, n_pixel_values=self.n_pixel_values)

    def hashable_rows(self) -> list[Hashable]:
        """The pictures as bytes."""
        return [picture.tobytes() for picture in np.ascontiguousarray(self.x)]


@dataclass(frozen=True, eq=False)
class TableInput(BaseInput):
    """A table, as it was read.

    Parameters
    ----------
    x : the rows
    dialect : how the text file of the table is written
    free_text : columns that are left out, because they hold free text
    full_table : the table of which `x` is a part. The model is fitted to all of it, and
        measured by a second fit to `x` alone
    """

    x: pd.DataFrame
    dialect: Dialect | None = None
    free_text: tuple[str, ...] = ()
    full_table: pd.DataFrame | None = None

    @property
    def kind(self) -> DataKind:
        return TABLE

    @property
    def n_rows(self) -> int:
        return len(self.x)

    @property
    def fitted_rows(self) -> pd.DataFrame:
        if self.full_table is None:
            return self.x
        return self.full_table

    @property
    def columns(self) -> list[str]:
        return [str(name) for name in self.x.columns]

    @property
    def description(self) -> str:
        return f"{len(self.fitted_rows)} rows of {len(self.columns)} columns"

    def summary(self, held_out: BaseInput | None) -> JsonObject:
        dialect = None if self.dialect is None else asdict(self.dialect)
        return super().summary(held_out) | {"dialect": dialect}

    def take(self, rows: Ints) -> Self:
        """The data of these rows only; `full_table` keeps all rows."""
        part = self.x.iloc[rows].reset_index(drop=True)
        return replace(self, x=part, full_table=self.x)

    @property
    def fitted_data(self) -> Self:
        return replace(self, x=self.fitted_rows, full_table=None)

    def aligned(self, other: BaseInput) -> Self | None:
        """Another table with the columns of this one, which it must have."""
        if not isinstance(other, type(self)):
            return None
        if not set(self.columns) <= set(other.columns):
            return None
        return replace(other, x=other.x[list(self.x.columns)])

    def hashable_rows(self) -> list[Hashable]:
        """The rows as texts."""
        texts = self.x.astype(object).map(str).to_numpy()
        return [tuple(row) for row in texts]


Input = PictureInput | TableInput
InputT = TypeVar("InputT", PictureInput, TableInput)


def read_data(
    settings: Settings, root: str | None = None
) -> tuple[Input, Input | None]:
    """Read the data to fit, and the data to measure with.

    The second are the test split of a named set, else a held-out share; None if there
    are too few. `root` replaces the folder of the named sets.
    """
    settings.check()
    if settings.kind == TABLE:
        return hold_out(_read_table(settings), settings.holdout)
    return read_picture_data(settings, root)


def read_picture_data(
    settings: Settings, root: str | None = None
) -> tuple[PictureInput, PictureInput | None]:
    """The pictures to fit and to measure with, as `read_data` returns them."""
    pictures = _with_labels_to_fit(_read_pictures(settings, "train", root), settings)
    if settings.source in DATASET_NAMES:
        try:
            held_out = _read_pictures(settings, "test", root)
        except CommandError:  # CelebA without its list of splits, or a missing file
            pass
        else:
            if pictures.labels is None:
                held_out = replace(held_out, labels=None)
            return pictures, held_out
    return hold_out(pictures, settings.holdout)


def _with_labels_to_fit(pictures: PictureInput, settings: Settings) -> PictureInput:
    """The pictures, with labels only if they are to be fitted by class.

    That is so with --conditional. Without this flag, it is so if every class has enough
    pictures. A model that completes pictures has no classes.
    """
    labels = pictures.labels
    completes = settings.known is not None
    if labels is None or settings.conditional:
        return pictures
    if completes or settings.conditional is False:
        return replace(pictures, labels=None)
    classes, counts = np.unique(labels, return_counts=True)
    smallest = int(np.argmin(counts))
    if len(classes) > 1 and counts[smallest] >= _MIN_PICTURES_OF_A_CLASS:
        return pictures
    note = (
        f"not fitted by class: class {classes[smallest]} has {counts[smallest]} "
        "pictures; --conditional fits by class all the same"
    )
    if len(classes) == 1:
        note = f"not fitted by class: all pictures are of class {classes[0]}"
    return replace(pictures, labels=None, notes=(*pictures.notes, note))


def _read_table(settings: Settings) -> TableInput:
    """The table of a file, which must have the columns that flags name."""
    from sliceflow.estimators.tables.files import read_file

    path = Path(settings.source).expanduser()
    file = read_file(path, settings.missing or ())
    names = [str(column) for column in file.df.columns]
    kinds = parse_kinds(settings.column, settings.drop) or {}
    named_by_flags = list(kinds)
    if settings.target:
        named_by_flags.append(settings.target)
    for name in named_by_flags:
        if name not in names:
            fact = f"{settings.source} has no column {name!r}"
            raise UsageError(fact, did_you_mean(name, names))
    free_text = find_free_text(file.df, kinds)
    notes = [note.where + note.fact for note in file.notes]
    notes += [note_free_text(name) for name in free_text]
    return TableInput(
        path.stem,
        file.df,
        notes=tuple(notes),
        dialect=file.dialect,
        free_text=tuple(free_text),
    )


def _read_pictures(settings: Settings, split: str, root: str | None) -> PictureInput:
    """Pictures by name or path, with a note on those that were skipped."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pictures = datasets.load(
                settings.source,
                split,
                root or settings.data_root,
                size=settings.size,
                skip_broken=settings.skip_broken,
            )
    except (datasets.DatasetError, datasets.MissingSetError) as error:
        fact = error.where + error.fact
        raise CommandError(fact, _dataset_hint(error)) from error
    _check_pictures(pictures, settings)
    return PictureInput(
        name=pictures.name,
        x=pictures.images,
        labels=pictures.labels,
        n_pixel_values=pictures.n_pixel_values,
        notes=tuple(str(warning.message) for warning in caught),
    )


def _check_pictures(pictures: datasets.PictureSet, settings: Settings) -> None:
    """Refuse pictures that no file shows, and those without labels by class."""
    shape = pictures.images.shape
    if len(shape) == 4 and shape[3] > _MAX_CHANNELS:
        fact = (
            f"{settings.source} has {shape[3]} channels, "
            f"but files show at most {_MAX_CHANNELS}"
        )
        raise UsageError(fact, "fit them in Python, with sliceflow.ImageFlow")
    if settings.conditional and pictures.labels is None:
        fact = f"--conditional needs labels, but {pictures.name} has none"
        hint = (
            "put the pictures into one subfolder per class, or leave --conditional out"
        )
        raise UsageError(fact, hint)


def _dataset_hint(error: Exception) -> str:
    """The flag that helps against an error of `datasets.load`."""
    for error_class, hint in _DATASET_HINTS.items():
        if isinstance(error, error_class):
            return hint
    raise error


def hold_out(data: InputT, share: float) -> tuple[InputT, InputT | None]:
    """The rows to fit, and a random share held out, or None if there are too few."""
    n = data.n_rows
    n_held_out = round(share * n)
    if n_held_out == 0 or n < _MIN_ROWS_TO_HOLD_OUT:
        return data, None
    order = np.random.default_rng(0).permutation(n)
    train = data.take(np.sort(order[n_held_out:]))
    held_out = data.take(np.sort(order[:n_held_out]))
    return train, held_out


def make_table_flow(settings: Settings, free_text: tuple[str, ...] = ()) -> TableFlow:
    """The estimator of a table, without its columns of free text."""
    from sliceflow import TableFlow

    drop = [*(settings.drop or ()), *free_text]
    return TableFlow(
        kinds=parse_kinds(settings.column, drop),
        constraints=tuple(settings.constraint or ()),
        random_state=settings.seed,
    )


def make_image_flow(settings: Settings, data: PictureInput) -> ImageFlow:
    """The estimator of pictures."""
    from sliceflow import ImageFlow

    known: KnownPart | Mask | None = None
    if settings.known is not None:
        height, width = data.x.shape[1:3]
        known = read_known(settings.known, height, width)
    return ImageFlow(
        quality=settings.quality,
        steps_per_stage=settings.steps_per_stage,
        n_particles=settings.particles,
        save_rows=settings.save_rows,
        known=known,
        n_pixel_values=data.n_pixel_values,
        mirror=settings.mirror,
        device=settings.device,
        random_state=settings.seed,
    )


def read_known(text: str, height: int, width: int) -> KnownPart | Mask:
    """The known part that --known says: its name, or booleans (height, width).

    The booleans are True where the picture in a file is white.
    """
    from PIL import Image, UnidentifiedImageError

    from sliceflow.estimators.pictures.known_parts import KNOWN_PARTS

    if text in KNOWN_PARTS:
        return cast("KnownPart", text)

    file = Path(text).expanduser()
    hint = (
        f"pass {', '.join(KNOWN_PARTS)}, or a picture of {width}x{height}, "
        "white where pixels are known and black elsewhere"
    )
    try:
        with Image.open(file) as picture:
            known = np.asarray(picture.convert("L")) >= _WHITE
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise UsageError(f"--known {text} cannot be read: {error}", hint) from error
    if known.shape != (height, width):
        fact = f"--known {text} is {known.shape[1]}x{known.shape[0]}, another size"
        raise UsageError(fact, hint)
    if known.all():
        raise UsageError(f"--known {text} is all white", hint)
    if not known.any():
        raise UsageError(f"--known {text} is all black", hint)
    return known
