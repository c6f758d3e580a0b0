"""The run of pictures or of a table: only here are the two told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sliceflow.cli.data import Input, PictureInput, TableInput
from sliceflow.cli.failures import CommandError, Output
from sliceflow.cli.picture_run import PictureRun
from sliceflow.cli.settings import Settings
from sliceflow.cli.table_run import TableRun

if TYPE_CHECKING:
    from sliceflow.cli.run_folder import Model


def as_fitted_run(
    settings: Settings,
    model: Model,
    train: Input,
    held_out: Input | None,
    output: Output,
) -> PictureRun | TableRun:
    """The run of a model and its data; an error if the model is of other data."""
    from sliceflow import TableFlow

    if isinstance(model, TableFlow):
        if isinstance(train, TableInput) and not isinstance(held_out, PictureInput):
            return TableRun(settings, train, held_out, output, model)
    else:
        from sliceflow import ImageFlow  # imports torch, which a table does not need

        if (
            isinstance(model, ImageFlow)
            and isinstance(train, PictureInput)
            and not isinstance(held_out, TableInput)
        ):
            return PictureRun(settings, train, held_out, output, model)
    fact = (
        f"the model is of type {type(model).__name__}, "
        f"but the data of the run are {train.description}"
    )
    raise CommandError(fact, "fit the run again")
