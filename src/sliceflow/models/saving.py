"""Saving and loading estimators: a file holds the parameters and the `Model`."""

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

# Parameters that are not saved: they say how and where to compute, not what was fitted.
UNSAVED_PARAMETERS = ("device", "random_state", "verbose")


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
    active_fraction: Sequence[float]
    # Only in checkpoints: without times, the same fit gives the same model file.
    seconds: Sequence[float] | None = None

    def check(self) -> None:
        lengths = {len(column) for column in self.columns().values()}
        if len(lengths) != 1:
            raise ValueError("the columns of a history have different lengths")

    def columns(self) -> dict[str, list[Any]]:
        """The columns that there are, by name."""
        return {
            name: list(column)
            for name, column in vars(self).items()
            if column is not None
        }


@cache
def _saved_type(kind: Any) -> Any:
    """The dataclass that a file of this class of estimators holds.

    It has the estimator's name. Its `parameters` are those of the constructor, with the
    same annotations.
    """
    _, fitted, rows = kind._kinds
    annotations = get_type_hints(kind.__init__, include_extras=True)
    parameters = [
        (name, annotation)
        for name, annotation in annotations.items()
        if name not in UNSAVED_PARAMETERS and name != "return"
    ]
    parts = [
        ("parameters", make_dataclass("Parameters", parameters, frozen=True)),
        ("seed", Seed),
        ("fitted", fitted),
        ("history", kind._history_type),
        ("rows", rows | None),
        ("particles", rows | None),
    ]
    methods = {"sample_bytes": lambda self: self.fitted.sample_bytes()}
    return make_dataclass(kind.__name__, parts, frozen=True, namespace=methods)


def save(
    estimator: Any, path: str | os.PathLike[str], *, particles: bool = False
) -> None:
    """Write a fitted estimator; with `particles`, the batched samples, too."""
    saved_type = _saved_type(estimator.__class__)
    parameters_type = get_type_hints(saved_type)["parameters"]
    parameters = {
        name: value
        for name, value in estimator.get_params(deep=False).items()
        if name not in UNSAVED_PARAMETERS
    }
    batched_samples = None
    if particles:
        adapter = estimator._adapter(like_fitted=True)
        batched_samples = adapter.read(
            estimator.particles_, estimator.particle_conditions_
        )
    model = estimator._model
    history_type = estimator._history_type
    names = {field.name for field in fields(history_type)} - {"seconds"}
    history = history_type(**{name: model.history[name] for name in names})
    saved = saved_type(
        parameters=parameters_type(**parameters),
        seed=model.seed,
        fitted=model.fitted,
        history=history,
        rows=estimator._rows_for_file(),
        particles=batched_samples,
    )
    file.save(path, saved)


def load_estimator(
    path: str | os.PathLike[str],
    kinds: Sequence[Any],
    device: torch.device,
    max_memory: int | None,
) -> Any:
    """The fitted estimator of a file, of one of these classes.

    Raises a `ModelFileError` if the file is not valid; see `file.load`.
    """
    estimator_of = {_saved_type(kind): kind for kind in kinds}
    saved: Any = file.load(path, tuple(estimator_of), device, max_memory)
    estimator: Any = estimator_of[type(saved)](**vars(saved.parameters))
    fitted = saved.fitted
    if "device" in {field.name for field in fields(fitted)}:
        fitted = replace(fitted, device=device)
    model = Model(saved.seed, fitted, saved.history.columns(), saved.rows)
    with file.reading(path):
        estimator._adapter()  # checks the parameters
        if saved.particles is None:
            estimator._store_model(model)
        else:
            particles, conditions = saved.particles.in_users_form(device)
            estimator._store_model(model, particles, conditions)
    return estimator
