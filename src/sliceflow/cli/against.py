"""The data of --against, which take the place of the held-out rows of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from sliceflow.cli.data import BaseInput, read_data
from sliceflow.cli.failures import CommandError, UsageError
from sliceflow.cli.settings import DATASET_NAMES, TABLE, Settings

InputT = TypeVar("InputT", bound=BaseInput)


def read_against(
    settings: Settings, against: str, root: str | None, train: InputT
) -> InputT:
    """Data to compare with: the test split of a set, all of anything else."""
    try:
        whole, test_split = read_data(_settings_to_read(settings, against), root)
    except CommandError as error:
        fact = f"--against {against}: {error.fact}"
        raise UsageError(fact, "pass data like the fitted ones") from error
    held_out = whole if test_split is None else test_split
    aligned = train.aligned(held_out)
    if aligned is None:
        fact = (
            f"--against {against} has {held_out.description}, "
            f"the run {train.description}"
        )
        hint = "pass data like those that were fitted: size, pixel values, columns"
        raise UsageError(fact, hint)
    return aligned


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


def count_common_rows(held_out: BaseInput, train: BaseInput) -> int:
    """How many held-out rows are equal to training rows."""
    train_rows = set(train.hashable_rows())
    return sum(row in train_rows for row in held_out.hashable_rows())
