"""The plan of a density: the settings of its classes, and what the fit costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from sliceflow.base.fit_plan import FitPlan
from sliceflow.estimators.density.settings import (
    Auto,
    GaussianizationParameters,
    GaussianizationSettings,
    n_knots_for,
)
from sliceflow.estimators.density.settings_search import expected_trials
from sliceflow.estimators.density.trials import MAX_ROWS_TO_CHOOSE
from sliceflow.saved_types import Count

# The cost of a step, with its candidates, counts numbers: the n·d numbers of its rows,
# and the numbers that would take as long as the rest. These are a fixed number for each
# step, and some for each pair of knots of a map. Each number takes this many
# nanoseconds. Measured on a CPU, within a third, with 100 to 100,000 rows of 2 to 30
# columns; users are told an order of magnitude.
_NANOSECONDS = {"cpu": 200.0, "cuda": 20.0}
_FIXED_NUMBERS_PER_STEP = 15_000
_NUMBERS_PER_KNOT_PAIR = 3
# A regression of one column on l columns of y takes as long as so many numbers for each
# row, times √l³: measured with 400 to 10,000 rows and two and five columns of y.
_NUMBERS_PER_REGRESSED_VALUE = 40
# Arrays of the size of the rows that a step needs, and arrays that the fit of a map
# needs, with four numbers for each pair of knots.
ARRAYS_PER_STEP = 12
_ARRAYS_PER_MAP = 8


@dataclass(frozen=True)
class UntunedClassPlan:
    """The plan of the density of a class, or of all rows, before it is tuned."""

    n_rows: Count
    parameters: GaussianizationParameters  # what the user says of the flow
    n_trial_steps: Count  # steps of the trials: about how many

    @property
    def expected_steps(self) -> int:
        """The most steps of the flow, or about how many if this is "auto"."""
        return self.parameters.expected_steps

    @property
    def n_steps(self) -> int | Auto:
        """The most steps of the flow."""
        return self.parameters.n_steps

    @property
    def penalty(self) -> float | Auto:
        """The penalty of rough maps of the flow."""
        return self.parameters.penalty

    @property
    def n_components(self) -> int | Auto:
        """The components of the mixture before the flow."""
        return self.parameters.n_components


@dataclass(frozen=True)
class TunedClassPlan:
    """The plan of the density of a class, or of all rows, after it was tuned."""

    n_rows: Count
    settings: GaussianizationSettings
    n_trial_steps: Count  # steps of the trials that were done

    @property
    def expected_steps(self) -> int:
        """The most steps of the flow."""
        return self.settings.n_steps

    @property
    def n_steps(self) -> int:
        """The most steps of the flow."""
        return self.settings.n_steps

    @property
    def penalty(self) -> float:
        """The penalty of rough maps of the flow."""
        return self.settings.penalty

    @property
    def n_components(self) -> int:
        """The components of the mixture before the flow."""
        return self.settings.initial_map.n_components


@dataclass(frozen=True)
class NormalClassPlan:
    """The plan of the density of a class with too few rows for a flow.

    It is a normal distribution with the covariance within all classes. In the terms of
    the other plans, this is a mixture of one component, without a flow or trials.
    """

    n_rows: Count
    n_trial_steps: ClassVar[int] = 0
    expected_steps: ClassVar[int] = 0
    n_steps: ClassVar[int] = 0
    penalty: ClassVar[float] = 0.0
    n_components: ClassVar[int] = 1


@dataclass(frozen=True, kw_only=True)
class DensityPlan(FitPlan):
    """The plan of the fit of a density. It prints as a table."""

    n_rows: Count
    n_columns: Count
    # One for each class, or one for all rows; none if y is continuous.
    classes: tuple[UntunedClassPlan | TunedClassPlan | NormalClassPlan, ...]
    dtype: Literal["float32", "float64"] = "float64"  # of samples, as of X
    condition_dim: Count = 0  # columns of a continuous y

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
        n_trial_steps = sum(each.n_trial_steps for each in self.classes)
        trials = ""
        if n_trial_steps > 0:
            trials = f"{n_trial_steps} steps"
        if not self.is_tuned:
            trials = f"about {trials}"
        return [
            ("data", f"{self.n_rows} rows of {self.n_columns} columns"),
            ("columns of y", self.condition_dim or ""),
            ("classes", n_classes),
            ("trials", trials),
            ("mixture", _join([each.n_components for each in self.classes])),
            ("steps", _join([each.n_steps for each in self.classes])),
            ("penalty", _join([each.penalty for each in self.classes])),
            ("knots", _join([n_knots_for(each.n_rows) for each in self.classes])),
        ]

    @property
    def is_tuned(self) -> bool:
        """Whether all settings are chosen."""
        return not any(isinstance(each, UntunedClassPlan) for each in self.classes)

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
        d = self.n_columns
        n_numbers = 0.0
        if self.condition_dim:
            n_numbers += self._numbers_of_regression()
        for each in self.classes:
            n_chosen = min(each.n_rows, MAX_ROWS_TO_CHOOSE)
            n_numbers += each.n_trial_steps * _numbers_per_step(n_chosen, d)
            n_numbers += each.expected_steps * _numbers_per_step(each.n_rows, d)
        return self.seconds_for(n_numbers, _NANOSECONDS)

    def _numbers_of_regression(self) -> float:
        """How many numbers take as long as a regression on y and trials of its flow."""
        d = self.n_columns
        n = min(self.n_rows, MAX_ROWS_TO_CHOOSE)
        trials = expected_trials(n, GaussianizationParameters())
        n_trial_steps = sum(phases.n_steps for phases in trials)
        n_numbers = n_trial_steps * _numbers_per_step(n, d)
        per_row: float = _NUMBERS_PER_REGRESSED_VALUE * self.condition_dim**1.5
        return n_numbers + n * d * per_row


def _numbers_per_step(n: int, d: int) -> float:
    """How many numbers take as long as a step of n rows in d columns."""
    n_knot_pairs = d * n_knots_for(n) ** 2
    return n * d + _FIXED_NUMBERS_PER_STEP + _NUMBERS_PER_KNOT_PAIR * n_knot_pairs


def fit_bytes(n: int, d: int) -> int:
    """Memory to fit rows (n, d), without the rows themselves."""
    n_knot_numbers = 4 * n_knots_for(n) ** 2 * d
    return 8 * (ARRAYS_PER_STEP * n * d + _ARRAYS_PER_MAP * n_knot_numbers)


def _join(values: Sequence[float | Auto]) -> str:
    """The different values, in order, as text."""
    texts = []
    for value in dict.fromkeys(values):
        texts.append(value if isinstance(value, str) else f"{value:g}")
    return ", ".join(texts)
