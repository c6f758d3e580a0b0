"""Saving and loading estimators: a file holds the constructor's parameters and the `Model`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, make_dataclass, replace
from functools import cache
from typing import Any, get_type_hints

import torch

from sliceflow.engine.random import Seed
from sliceflow.fields import Count
from sliceflow.models import file

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
    """The history of a fit, by columns; see `events.History`."""

    stage: Sequence[str]
    step: Sequence[Count]
    distance: Sequence[float]
    moving: Sequence[float]
    seconds: Sequence[float] | None = (
        None  # not of a model: the same fit gives the same file
    )

    def check(self) -> None:
        if len({len(column) for column in self.columns().values()}) != 1:
            raise ValueError("the columns of a history have different lengths")

    def columns(self) -> dict[str, list[Any]]:
        return {
            name: list(column)
            for name, column in vars(self).items()
            if column is not None
        }


@cache
def _saved_type(kind: Any) -> Any:
    """The dataclass that a file of this estimator holds."""
    _, fitted, rows = kind._kinds
    hints = get_type_hints(kind.__init__, include_extras=True)
    parameters = {
        name: of for name, of in hints.items() if name not in (*_NOT_SAVED, "return")
    }
    made = make_dataclass("Parameters", parameters.items(), frozen=True)
    parts = {"parameters": made, "seed": Seed, "fitted": fitted}
    parts |= {
        "history": kind._history_type,
        "rows": rows | None,
        "particles": rows | None,
    }
    own = {"sample_bytes": lambda self: self.fitted.sample_bytes()}
    return make_dataclass(kind.__name__, parts.items(), frozen=True, namespace=own)


def save(
    estimator: Any, path: str | os.PathLike[str], *, particles: bool = False
) -> None:
    """Write a fitted estimator; with `particles`, the batched samples, too."""
    model = estimator._model
    given = estimator.get_params(deep=False).items()
    batched = None
    if particles:
        adapter = estimator._adapter(like_fitted=True)
        batched = adapter.read(estimator.particles_, estimator.particle_conditions_)
    saved = _saved_type(estimator.__class__)
    parameters = {name: value for name, value in given if name not in _NOT_SAVED}
    history_type = estimator._history_type
    names = {field.name for field in fields(history_type)} - {"seconds"}
    history = history_type(**{name: model.history[name] for name in names})
    own = get_type_hints(saved)["parameters"](**parameters)
    rows = estimator._rows_for_file()
    file.save(path, saved(own, model.seed, model.fitted, history, rows, batched))


def load_estimator(
    path: str | os.PathLike[str],
    kinds: Sequence[Any],
    device: torch.device,
    max_memory: int | None,
) -> Any:
    """The fitted estimator of a file, one of these kinds. Raises a `ModelFileError` if it is not valid."""
    by_type = {_saved_type(kind): kind for kind in kinds}
    saved: Any = file.load(path, tuple(by_type), device, max_memory)
    estimator: Any = by_type[type(saved)](**vars(saved.parameters))
    fitted = saved.fitted
    if "device" in {field.name for field in fields(fitted)}:
        fitted = replace(fitted, device=device)
    model = Model(saved.seed, fitted, saved.history.columns(), saved.rows)
    try:
        estimator._adapter()  # checks the parameters
        batched = (
            () if saved.particles is None else saved.particles.in_users_form(device)
        )
        estimator._store_model(model, *batched)
    except (
        ValueError,
        ArithmeticError,
        NotImplementedError,
    ) as error:  # the last of pandas
        raise file.ModelFileError(f"{os.fspath(path)}: {error}") from error
    return estimator
