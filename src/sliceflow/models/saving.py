"""Saving and loading estimators: a file holds the constructor's parameters and the `Model`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, make_dataclass
from functools import cache
from typing import Annotated, Any, get_type_hints

import numpy as np
import torch

from sliceflow.engine.random import Seed
from sliceflow.models import file
from sliceflow.models.codec import Array, Record
from sliceflow.models.ranks import Ranks

_NOT_SAVED = ("device", "random_state", "verbose")


@dataclass(frozen=True)
class Model:
    """All that a fit learnt: what `save` writes."""

    seed: Seed  # of the fit, which a refresh takes again
    fitted: Any  # draws the samples; its `plan` says what the fit did
    history: dict[str, list[Any]]  # see `events.History`
    rows: Any = None  # the training rows, if the model keeps them


@dataclass(frozen=True)
class SavedHistory:
    """The history of a fit. Seconds are left out: the same fit gives the same file."""

    stage: tuple[str, ...]
    step: Annotated[np.ndarray, Array("n", torch.int64, ge=0)]
    distance: Annotated[np.ndarray, Array("n", torch.float64, finite=False)]
    moving: Annotated[np.ndarray, Array("n", torch.float64, finite=False)]

    def check(self) -> None:
        if len(self.stage) != len(self.step):
            raise ValueError(f"there are {len(self.stage)} stages for {len(self.step)} steps")


@cache
def _saved_type(kind: Any) -> Any:
    """The dataclass that a file of this estimator holds."""
    _, fitted, rows = kind._kinds
    hints = get_type_hints(kind.__init__, include_extras=True)
    parameters = {name: of for name, of in hints.items() if name not in (*_NOT_SAVED, "return")}
    parts = {"parameters": Record(parameters), "seed": Seed, "fitted": fitted}
    parts |= {"history": SavedHistory, "rows": rows | None, "particles": rows | None}
    return make_dataclass(kind.__name__, parts.items(), frozen=True)


def save(estimator: Any, path: str | os.PathLike[str], *, particles: bool = False) -> None:
    """Write a fitted estimator; with `particles`, the batched samples, too."""
    model, given = estimator._model, estimator.get_params(deep=False).items()
    batched = None
    if particles:
        space = estimator._space(like_fitted=True)
        batched = space.read(estimator.particles_, estimator.particle_conditions_, Ranks())
    parameters = {name: value for name, value in given if name not in _NOT_SAVED}
    columns = [np.array(model.history[f.name]) for f in fields(SavedHistory)[1:]]
    numbers = (column.astype(np.float64) for column in columns[1:])
    history = SavedHistory(tuple(model.history["stage"]), columns[0].astype(np.int64), *numbers)
    parts = (parameters, model.seed, model.fitted, history, model.rows, batched)
    file.save(path, _saved_type(estimator.__class__)(*parts))


def load_estimator(
    path: str | os.PathLike[str], kinds: Sequence[Any], device: torch.device, max_memory: int | None
) -> Any:
    """The fitted estimator of a file, one of these kinds. Raises a `ModelFileError` if it is not valid."""
    by_type = {_saved_type(kind): kind for kind in kinds}
    saved: Any = file.load(path, tuple(by_type), device, max_memory)
    estimator: Any = by_type[type(saved)](**saved.parameters)
    columns = {name: np.array(column).tolist() for name, column in vars(saved.history).items()}
    model = Model(saved.seed, saved.fitted, columns, saved.rows)
    batched = () if saved.particles is None else saved.particles.in_users_form(device)
    try:
        estimator._space()  # checks the parameters
        estimator._keep(model, *batched)
    except ValueError as error:
        raise file.ModelFileError(f"{os.fspath(path)}: {error}") from error
    estimator._file = os.fspath(path)
    return estimator
