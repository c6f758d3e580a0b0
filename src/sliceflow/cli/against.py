"""The data of --against, which take the place of the held-out rows of a run."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path

import numpy as np

from sliceflow.cli.data import Input, PictureInput, TableInput, read_data
from sliceflow.cli.failures import CommandError, UsageError
from sliceflow.cli.settings import DATASET_NAMES, TABLE, Settings


def read_against(
    settings: Settings, against: str, root: str | None, train: Input
) -> Input:
    """Data to compare with: the test split of a set, all of anything else."""
    try:
        whole, held_out = read_data(_settings_to_read(settings, against), root)
    except CommandError as error:
        fact = f"--against {against}: {error.fact}"
        raise UsageError(fact, "pass data like the fitted ones") from error
    if held_out is None:
        held_out = whole
    if not _are_alike(held_out, train):
        fact = (
            f"--against {against} has {held_out.description}, "
            f"the run {train.description}"
        )
        hint = "pass data like those that were fitted: size, pixel values, columns"
        raise UsageError(fact, hint)
    if isinstance(held_out, TableInput) and isinstance(train, TableInput):
        return replace(held_out, x=held_out.x[list(train.x.columns)])
    assert isinstance(held_out, PictureInput), "both are tables, or both pictures"
    assert isinstance(train, PictureInput), "both are tables, or both pictures"
    pictures = held_out.x.astype(train.x.dtype)
    return replace(held_out, x=pictures, n_pixel_values=train.n_pixel_values)


def _settings_to_read(settings: Settings, against: str) -> Settings:
    """The settings with which the data of --against are read."""
    if settings.kind == TABLE:
        return replace(settings, source=against, target=None, drop=None, holdout=0.0)
    size = None
    if against == "celeba" or Path(against).is_dir():
        size = settings.size
    if against in DATASET_NAMES:
        return Settings(against, size=size)
    return Settings(against, size=size, holdout=0.0)


def _are_alike(held_out: Input, train: Input) -> bool:
    """Whether data have the columns, or the size and kind of pixels, of others."""
    if isinstance(held_out, TableInput) and isinstance(train, TableInput):
        return set(train.columns) <= set(held_out.columns)
    if not (isinstance(held_out, PictureInput) and isinstance(train, PictureInput)):
        return False
    if held_out.x.shape[1:] != train.x.shape[1:]:
        return False
    has_whole_pixels = train.x.dtype.kind != "f"
    if has_whole_pixels != (held_out.x.dtype.kind != "f"):
        return False
    return not has_whole_pixels or bool(held_out.x.max() < train.n_pixel_values)


def count_common_rows(held_out: Input, train: Input) -> int:
    """How many held-out rows are equal to training rows."""
    train_rows = set(_hashable_rows(train))
    return sum(row in train_rows for row in _hashable_rows(held_out))


def _hashable_rows(data: Input) -> list[Hashable]:
    """The rows of a table as texts, or pictures as bytes."""
    if isinstance(data, TableInput):
        texts = data.x.astype(object).map(str).to_numpy()
        return [tuple(row) for row in texts]
    return [picture.tobytes() for picture in np.ascontiguousarray(data.x)]
