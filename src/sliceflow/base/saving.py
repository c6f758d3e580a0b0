"""Saving and loading estimators: a file holds the parameters and the `FitRecord`.

A file holds an object of one dataclass; see `codec`. The dataclass of an estimator is
made from the estimator's class: its parameters from the annotations of the constructor,
and its other fields from `_saved_types`. These are the dataclasses of the saved model,
which most often is the fitted model, and of the rows. For an estimator such as

    class Flow(Estimator[FlowRows, FittedFlow, FlowEvent, FlowPlan]):
        _saved_types = (FittedFlow, FlowRows)

        def __init__(self, n_steps: int = 100, random_state: Any = None) -> None: ...

a file holds an object of, in short,

    @dataclass(frozen=True)
    class Flow:
        parameters: Parameters  # a dataclass with one field, n_steps: int
        seed: Seed
        model: FittedFlow
        history: SavedHistory
        rows: FlowRows | None
        particles: FlowRows | None
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, fields, make_dataclass, replace
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Optional,
    Protocol,
    TypeVar,
    get_type_hints,
)

from sliceflow.base import file
from sliceflow.base.protocols import (
    FittedModelT,
    FlowRows,
    ParticleResult,
    PlanT,
    RowsT,
    StorableModel,
)
from sliceflow.devices import resolve_device
from sliceflow.engine.events import EventT, HistoryColumns
from sliceflow.engine.random import Seed
from sliceflow.saved_types import Count

if TYPE_CHECKING:
    import torch

    from sliceflow.base.estimator import Estimator

EstimatorT = TypeVar("EstimatorT", bound="Estimator[Any, Any, Any, Any]")

# Parameters that are not saved: they say how and where to compute, not what was fitted.
UNSAVED_PARAMETERS = ("device", "random_state", "verbose")


@dataclass(frozen=True)
class FitRecord(Generic[RowsT, FittedModelT]):
    """What a fit leaves to its estimator: `save` writes it.

    Attributes
    ----------
    seed : the seed of the fit, which a refit uses again
    model : the fitted model; its `plan` says what the fit did
    history : the columns of the fit's history
    rows : the training rows; None if the model does not have its rows
    """

    seed: Seed
    model: FittedModelT
    history: HistoryColumns
    rows: RowsT | None = None


class StorableHistory(Protocol):
    """What a file holds of the history of a fit: a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def as_columns(self) -> HistoryColumns:
        """The columns that there are, by name."""


@dataclass(frozen=True)
class SavedHistory:
    """The history of a flow, by columns; see `events.History`."""

    stage: Sequence[str]
    step: Sequence[Count]
    distance: Sequence[float]
    active_fraction: Sequence[float]
    # Only in checkpoints: without times, the same fit gives the same model file.
    seconds: Sequence[float] | None = None

    @classmethod
    def from_columns(cls, columns: HistoryColumns) -> SavedHistory:
        """The history with these columns, as `events.History.as_columns` gives them."""
        columns_by_field: dict[str, Any] = dict(columns)
        return cls(**columns_by_field)

    def check_saved(self) -> None:
        """Raise a ValueError if the columns of a file have different lengths."""
        lengths = {len(column) for column in self.as_columns().values()}
        if len(lengths) != 1:
            raise ValueError("the columns of a history have different lengths")

    def as_columns(self) -> dict[str, list[Any]]:
        """The columns that there are, by name."""
        return {
            name: list(column)
            for name, column in vars(self).items()
            if column is not None
        }


@dataclass(frozen=True)
class _SavedEstimator(Generic[RowsT]):
    """All that a file holds; each class of estimators has a subclass of this.

    Attributes
    ----------
    parameters : the parameters of the constructor, in a dataclass
    seed : the seed of the fit
    model : the saved model
    history : the history of the fit
    rows : the training rows; None if the file does not hold them
    particles : the particles of a flow, as rows; None if the file does not hold them
    """

    parameters: object
    seed: Seed
    model: StorableModel
    history: StorableHistory
    rows: RowsT | None
    particles: FlowRows | None

    def sample_bytes(self) -> int:
        """Memory to draw one sample."""
        return self.model.sample_bytes()


class _FileTypes(NamedTuple):
    """The dataclasses that are made for a class of estimators."""

    estimator: type[_SavedEstimator[Any]]
    parameters: Callable[..., object]


# The types of files that were made so far, by class of estimators.
_FILE_TYPES: dict[type, _FileTypes] = {}


def _file_types(
    estimator_type: type[Estimator[RowsT, FittedModelT, EventT, PlanT]],
) -> _FileTypes:
    """The dataclasses of a class of estimators, made once."""
    if estimator_type not in _FILE_TYPES:
        _FILE_TYPES[estimator_type] = _make_file_types(estimator_type)
    return _FILE_TYPES[estimator_type]


def _make_file_types(
    estimator_type: type[Estimator[RowsT, FittedModelT, EventT, PlanT]],
) -> _FileTypes:
    model_type, rows_type = estimator_type._saved_types
    parameters_type = _parameters_type(estimator_type)
    parts: list[tuple[str, Any]] = [
        ("parameters", parameters_type),
        ("seed", Seed),
        ("model", model_type),
        ("history", estimator_type._history_type),
        ("rows", Optional[rows_type]),  # noqa: UP045 - it is known only now
        ("particles", Optional[rows_type]),  # noqa: UP045
    ]
    saved_type = make_dataclass(
        estimator_type.__name__, parts, bases=(_SavedEstimator,), frozen=True
    )
    return _FileTypes(saved_type, parameters_type)


def _parameters_type(estimator_type: type) -> type:
    """The dataclass of an estimator's saved parameters, with their annotations."""
    constructor: Any = estimator_type.__init__  # type: ignore[misc]
    annotations = get_type_hints(constructor, include_extras=True)
    parameters = [
        (name, annotation)
        for name, annotation in annotations.items()
        if name not in UNSAVED_PARAMETERS and name != "return"
    ]
    return make_dataclass("Parameters", parameters, frozen=True)


def save(
    estimator: Estimator[RowsT, FittedModelT, EventT, PlanT],
    path: str | os.PathLike[str],
    particles: FlowRows | None = None,
) -> None:
    """Write a fitted estimator and, if they are given, its particles as rows."""
    file_types = _file_types(type(estimator))
    parameters = estimator.get_params(deep=False)
    for name in UNSAVED_PARAMETERS:
        parameters.pop(name, None)
    record = estimator._record
    history_type = estimator._history_type
    history_names = {field.name for field in fields(history_type)} - {"seconds"}
    history = {name: record.history[name] for name in history_names}
    saved = file_types.estimator(
        parameters=file_types.parameters(**parameters),
        seed=record.seed,
        model=estimator._storable_model(record.model),
        history=history_type(**history),
        rows=estimator._rows_for_file(),
        particles=particles,
    )
    file.save(path, saved)


def load_estimator(
    path: str | os.PathLike[str],
    find_estimator_type: Callable[[str], type[EstimatorT]],
    device: torch.device | str,
    max_memory: int | None,
) -> EstimatorT:
    """The fitted estimator of a file.

    `find_estimator_type` gives the class for the name in the file, or raises a
    ValueError if there is none. Raises a `ModelFileError` if the file is not valid; see
    `file.load`.
    """

    def find_saved_type(class_name: str) -> type[_SavedEstimator[Any]]:
        return _file_types(find_estimator_type(class_name)).estimator

    saved = file.load_by_class_name(path, find_saved_type, device, max_memory)
    estimator_type = find_estimator_type(type(saved).__name__)
    estimator = estimator_type(**vars(saved.parameters))
    saved_model = _on_device(saved.model, device)
    with file.as_model_file_errors(path):
        estimator._require_valid_parameters()
        model = estimator._restore_model(saved_model, saved.rows)
        record = FitRecord(saved.seed, model, saved.history.as_columns(), saved.rows)
        particles = None
        if saved.particles is not None:
            user_particles = saved.particles.user_X_and_y(resolve_device(device))
            particles = ParticleResult(*user_particles)
        estimator._set_fitted(record, particles)
    return estimator


def _on_device(saved_model: StorableModel, device: torch.device | str) -> StorableModel:
    """A saved model that draws on this device; models of tables have no device."""
    if all(field.name != "device" for field in fields(saved_model)):
        return saved_model
    return replace(saved_model, device=resolve_device(device))
