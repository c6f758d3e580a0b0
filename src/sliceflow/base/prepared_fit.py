"""`PreparedFit`: a planned fit that a user holds, and may run later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np

from sliceflow.base.protocols import AnyPlannedFit, PlannedFit, PlanT
from sliceflow.errors import DataError
from sliceflow.validation import from_tensor

PlannedFitT = TypeVar("PlannedFitT", bound=AnyPlannedFit)
PlannedFitT_co = TypeVar("PlannedFitT_co", bound=AnyPlannedFit, covariant=True)


class PreparesFits(Protocol[PlannedFitT_co]):
    """An estimator whose `prepare` plans fits of one kind."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters of the constructor, by name."""

    def prepare(self, X: Any, y: Any = None) -> PreparedFit[PlannedFitT_co]:
        """The planned fit of rows X and their conditions y."""


@dataclass(frozen=True)
class PreparedFit(Generic[PlannedFitT_co]):
    """What `prepare` gives, and what `fit` takes instead of X.

    Attributes
    ----------
    estimator : the estimator that will be fitted
    parameters : copies of the estimator's parameters, made when the fit was planned
    planned_fit : the fit that will run
    """

    estimator: PreparesFits[PlannedFitT_co]
    parameters: Mapping[str, object]
    planned_fit: PlannedFitT_co

    @property
    def plan(self: PreparedFit[PlannedFit[Any, Any, Any, PlanT]]) -> PlanT:
        """What the fit will do. Print it."""
        return self.planned_fit.plan

    def planned_fit_for(
        self, estimator: PreparesFits[PlannedFitT], *others: object
    ) -> PlannedFitT:
        """The planned fit; a ValueError if this estimator would plan another one now.

        `others` are arguments of `fit` that `prepare` has used already, such as y. They
        must be None now.
        """
        is_given = any(other is not None for other in others)
        if self.estimator is not estimator or is_given:
            raise ValueError(
                "X was prepared: fit the estimator that prepared it, with X alone"
            )
        changed = [
            name
            for name, value in copied_parameters(estimator).items()
            if name != "verbose" and not _are_equal(value, self.parameters[name])
        ]
        if changed:
            names = ", ".join(changed)
            raise ValueError(
                f"X was prepared with other parameters ({names}): prepare it again"
            )
        # This very estimator planned the fit, so the fit is of the kind that it plans.
        return cast(PlannedFitT, self.planned_fit)


def check_not_prepared(X: object) -> None:
    """Raise a `DataError` if X, of which rows are read, is what `prepare` returned."""
    if isinstance(X, PreparedFit):
        hint = "pass the rows: only fit, plan and prepare take it"
        raise DataError("X is what prepare returned", hint)


def copied_parameters(estimator: PreparesFits[AnyPlannedFit]) -> dict[str, object]:
    """The parameters of an estimator, by name, as they are now."""
    parameters = estimator.get_params(deep=False)
    return {name: _copied(value) for name, value in parameters.items()}


def _copied(value: Any) -> object:
    """A parameter, in which all that could be changed in place is copied.

    Containers are copied as dicts and tuples, and tensors as arrays. Other objects are
    not copied, and a generator counts as the same one after it has drawn.
    """
    value = from_tensor(value)
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_copied(item) for item in value)
    return value


def _are_equal(a: object, b: object) -> bool:
    """Whether two copied parameters are equal."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_are_equal(a[key], b[key]) for key in a)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_are_equal, a, b))
    try:
        return a is b or bool(a == b)
    except (ValueError, RuntimeError):  # an array, and what is none
        return False
