"""The plan of a density: the settings of its classes, and what the fit costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from sliceflow.models.fit_plan import FitPlan
from sliceflow.saved_types import Count
from sliceflow.spaces.density.settings import (
    GaussianizationSettings,
    choose_n_knots,
)

# Nanoseconds for each number of a step, with its candidates; users are told an order
# of magnitude.
_NANOSECONDS = {"cpu": 400.0, "cuda": 20.0}
# A regression on y and its flow take about as long as this many steps.
_STEPS_OF_REGRESSION = 1_000
# Arrays of the size of the rows that a step needs.
ARRAYS_PER_STEP = 12


@dataclass(frozen=True)
class ClassPlan:
    """How the density of one class is fitted, or the density of all rows."""

    n_rows: Count
    # Of the flow. None if there are too few rows for one: then the class is normal,
    # with a covariance that all classes share.
    settings: GaussianizationSettings | None

    @property
    def n_steps(self) -> int:
        """The most steps of the flow."""
        if self.settings is None:
            return 0
        return self.settings.n_steps

    @property
    def penalty(self) -> float:
        """The penalty of rough maps of the flow."""
        if self.settings is None:
            return 0.0
        return self.settings.penalty

    @property
    def n_components(self) -> int:
        """The components of the mixture before the flow; 1 is a normal distribution."""
        if self.settings is None:
            return 1
        return self.settings.initial_map.n_components


@dataclass(frozen=True, kw_only=True)
class DensityPlan(FitPlan):
    """The plan of the fit of a density. It prints as a table."""

    n_rows: Count
    n_columns: Count
    # One for each class, or one for all rows; none if y is numbers.
    classes: tuple[ClassPlan, ...]
    dtype: Literal["float32", "float64"] = "float64"  # of samples, as of X
    condition_dim: Count = 0  # columns of y that is numbers

    @property
    def method(self) -> str:
        """What is fitted, in a few words."""
        if self.condition_dim:
            return "regression on y, then a sliced flow from data to noise"
        return "sliced flow from data to noise"

    def summary(self) -> Sequence[tuple[str, object]]:
        """Names and values to print; those with the value "" are left out."""
        n_classes = ""
        if len(self.classes) > 1:
            n_classes = str(len(self.classes))
        return [
            ("data", f"{self.n_rows} rows of {self.n_columns} columns"),
            ("columns of y", self.condition_dim or ""),
            ("classes", n_classes),
            ("mixture", _join([plan.n_components for plan in self.classes])),
            ("steps", _join([plan.n_steps for plan in self.classes])),
            ("penalty", _join([plan.penalty for plan in self.classes])),
            ("knots", _join([choose_n_knots(plan.n_rows) for plan in self.classes])),
        ]

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of samples."""
        return torch.float32 if self.dtype == "float32" else torch.float64

    @property
    def nbytes(self) -> int:
        """Memory of the fit, without the input data."""
        return fit_bytes(self.n_rows, self.n_columns)

    @property
    def seconds(self) -> float:
        """About how long the fit takes on its device."""
        n_steps = sum(plan.n_steps for plan in self.classes)
        if self.condition_dim:
            n_steps = _STEPS_OF_REGRESSION
        n_values = self.n_rows * self.n_columns * n_steps
        return self.seconds_for(n_values, _NANOSECONDS)


def fit_bytes(n: int, d: int) -> int:
    """Memory to fit rows (n, d), without the rows themselves."""
    return ARRAYS_PER_STEP * 8 * n * d


def _join(values: Sequence[float]) -> str:
    """The different values, in order, as text."""
    return ", ".join(f"{value:g}" for value in dict.fromkeys(values))
