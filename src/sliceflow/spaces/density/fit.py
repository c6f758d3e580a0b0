"""The fit of a density: how rows are read, planned and fitted, class by class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.arrays import Floats
from sliceflow.devices import require_memory
from sliceflow.engine import events
from sliceflow.engine.labels import as_array
from sliceflow.engine.random import Seed
from sliceflow.engine.y_encoders import (
    ClassEncoder,
    ContinuousEncoder,
    MixedEncoder,
)
from sliceflow.errors import DataError, DataWarning, warn_user
from sliceflow.models.protocols import FitResult
from sliceflow.models.rows import RowConditions
from sliceflow.models.vector_rows import VectorRows, read_rows
from sliceflow.spaces.density.conditional import (
    MIN_CONDITIONAL_ROWS,
    ConditionalDensity,
)
from sliceflow.spaces.density.fitted import (
    FittedClassDensities,
    FittedConditionalDensity,
)
from sliceflow.spaces.density.gaussianization import fit_gaussianization, fit_normal
from sliceflow.spaces.density.plan import ClassPlan, DensityPlan, fit_bytes
from sliceflow.spaces.density.settings_search import choose_settings
from sliceflow.spaces.density.support import (
    Names,
    RowGroup,
    SupportTransform,
    Tie,
    check_enough_rows,
    check_not_constant,
    check_within_bounds,
    column_label,
    spread_ties,
)
from sliceflow.validation import ColumnBounds, as_column_bounds

# A class with fewer rows than this, or than twice its columns, gets a normal
# distribution with the covariance within all classes: it has too few rows for a
# covariance of its own.
MIN_ROWS_OF_CLASS = 20
# Fewer rows than this, of a class or of all, cannot be split into rows to fit and to
# hold out.
MIN_ROWS_TO_CHOOSE = 4


@dataclass(frozen=True)
class DensityAdapter:
    """Reads the rows of a `SlicedDensity`, and chooses how to fit them.

    Settings are chosen by trial fits, so a plan takes most of the time of a fit, unless
    all settings are given.
    """

    bounds: ColumnBounds | None  # the user's
    n_steps: int | None  # None chooses it
    penalty: float | None  # None chooses it
    n_components: int | None  # None chooses it
    device: torch.device
    validate: Callable[[Any], np.ndarray]  # scikit-learn's checks of X

    def read(self, X: Any, y: Any) -> VectorRows:
        """The user's rows, checked."""
        rows = read_rows(X, self.validate)
        if y is not None:
            rows = replace(rows, conditions=_read_conditions(y, len(rows)))
        low, high = as_column_bounds(self.bounds, rows.X.shape[1], "columns")
        check_within_bounds(rows.X.astype(np.float64), low, high, rows.names)
        return rows

    def plan_fit(
        self, rows: VectorRows, seed: Seed
    ) -> PlannedClassDensities | PlannedConditionalDensity:
        """Choose the settings of every class, by trial fits and held-out likelihood."""
        n, d = rows.X.shape
        what = f"{n} rows of {d} columns need"
        require_memory(fit_bytes(n, d), self.device, what, "fit fewer rows")
        low, high = as_column_bounds(self.bounds, d, "columns")
        training = _TrainingRows.from_rows(rows, low, high, self.device, seed)
        encoder = None
        if rows.conditions is not None:
            encoder = rows.conditions.encoder
        if isinstance(encoder, ContinuousEncoder):
            return self._plan_conditional(training, encoder, seed)
        assert encoder is None or isinstance(encoder, ClassEncoder)
        return self._choose_classes(training, encoder, seed)

    def _choose_classes(
        self, training: _TrainingRows, encoder: ClassEncoder | None, seed: Seed
    ) -> PlannedClassDensities:
        """A density of each class, or one of all rows."""
        rows_by_class = training.rows_by_class()
        has_classes = len(rows_by_class) > 1
        classes = []
        for c, x in enumerate(rows_by_class):
            classes.append(self._choose_class(x, has_classes, seed.child("class", c)))
        n, d = training.x.shape
        plan = DensityPlan(
            device=str(self.device),
            n_rows=n,
            n_columns=d,
            classes=tuple(classes),
            dtype=training.user_rows.dtype,
        )
        return PlannedClassDensities(plan, training, encoder, self.device, seed)

    def _choose_class(self, x: Tensor, is_class: bool, seed: Seed) -> ClassPlan:
        """Settings for rows x (n, d), which are those of a class or all rows."""
        n, d = x.shape
        if n < MIN_ROWS_TO_CHOOSE or (is_class and _is_small_class(n, d)):
            return ClassPlan(n, settings=None)
        settings = choose_settings(
            x, seed, self.n_steps, self.penalty, self.n_components
        )
        return ClassPlan(n, settings)

    def _plan_conditional(
        self, training: _TrainingRows, encoder: ContinuousEncoder, seed: Seed
    ) -> PlannedConditionalDensity:
        """A regression on y, and the density of what is left over."""
        n, d = training.x.shape
        if n < MIN_CONDITIONAL_ROWS:
            fact = f"there are {n} rows with y that is numbers"
            raise DataError(fact, f"pass at least {MIN_CONDITIONAL_ROWS} rows")
        self._warn_of_ignored()
        plan = DensityPlan(
            device=str(self.device),
            n_rows=n,
            n_columns=d,
            classes=(),
            dtype=training.user_rows.dtype,
            condition_dim=encoder.condition_dim,
        )
        return PlannedConditionalDensity(plan, training, encoder, self.device, seed)

    def _warn_of_ignored(self) -> None:
        """Warn of parameters that the user has set, and a regression does not read."""
        values = {
            "n_steps": self.n_steps,
            "penalty": self.penalty,
            "n_components": self.n_components,
        }
        ignored = [name for name, value in values.items() if value is not None]
        if ignored:
            fact = f"y is numbers, so a regression is fitted: {', '.join(ignored)}"
            warn_user(
                DataWarning(f"{fact} of a flow without y do nothing", "omit them")
            )


def _row_groups(rows: VectorRows) -> list[RowGroup]:
    """All rows, and the rows of every class that gets a flow of its own."""
    n, d = rows.X.shape
    groups = [RowGroup("rows", np.ones(n, bool))]
    conditions = rows.conditions
    if conditions is None or not isinstance(conditions.encoder, ClassEncoder):
        return groups
    class_indices = conditions.label_y.values.numpy()
    for c, label in enumerate(conditions.encoder.classes.tolist()):
        mask = class_indices == c
        if not _is_small_class(int(mask.sum()), d):
            groups.append(RowGroup(f"rows of class {label!r}", mask, is_class=True))
    return groups


def _is_small_class(n: int, d: int) -> bool:
    """Whether a class of n rows (n, d) has too few for a flow of its own."""
    return n < max(MIN_ROWS_OF_CLASS, 2 * d)


def _read_conditions(y: Any, n: int) -> RowConditions:
    """The user's y of n rows: class labels, or numbers, but not both."""
    labels = as_array(y)
    is_number = labels.dtype.kind == "f"
    if labels.ndim == 2 and labels.shape[1] == 1 and not is_number:
        labels = labels[:, 0]
    conditions = RowConditions.infer(labels, n)
    if isinstance(conditions.encoder, MixedEncoder):
        fact = "y has both labels and numbers"
        raise DataError(fact, "pass class labels (n,), or numbers (n, l)")
    return conditions


def _tie_warning(ties: Sequence[Tie], names: Names) -> DataWarning | None:
    """A warning of columns whose values were spread; None if there are none."""
    if not ties:
        return None
    first = ties[0]
    fact = f"many {first.group.name} have the same value, so values were "
    fact += "spread over the step between them"
    if len(ties) > 1:
        fact += f" (also in {len(ties) - 1} more columns)"
    hint = "drop it, or pass it as y"
    if first.group.is_class:
        hint = "drop the column, or the class"
    return DataWarning(fact, hint, column=column_label(first.column, names))


@dataclass(frozen=True)
class _TrainingRows:
    """The rows of a fit, in columns without bounds."""

    user_rows: VectorRows
    support_transform: SupportTransform
    x: Tensor  # (n, d), without bounds and ties
    warning: DataWarning | None  # about ties

    @classmethod
    def from_rows(
        cls,
        rows: VectorRows,
        low: Floats,
        high: Floats,
        device: torch.device,
        seed: Seed,
    ) -> _TrainingRows:
        """The user's rows between bounds (d,); a `DataError` if they have no density.

        This is checked here, and not while rows are read, because it takes all rows of
        a fit, and `partial_fit` may pass one row at a time, or before bounds change.
        """
        X = rows.X.astype(np.float64)
        check_within_bounds(X, low, high, rows.names)
        check_enough_rows(len(X))
        groups = _row_groups(rows)
        check_not_constant(X, groups[0], rows.names)
        X, ties = spread_ties(X, low, high, seed, groups)
        for group in groups:
            check_not_constant(X, group, rows.names)
        transform = SupportTransform.from_data(X, low, high, device)
        unbounded, _ = transform.call_and_ladj(torch.from_numpy(X).to(device))
        warning = _tie_warning(ties, rows.names)
        return cls(rows, transform, unbounded, warning)

    def rows_by_class(self) -> list[Tensor]:
        """The rows (n, d) of each class, or all rows."""
        if self.user_rows.encoded_y is None:
            return [self.x]
        class_indices = self.user_rows.encoded_y.values.to(self.x.device)
        return [self.x[class_indices == c] for c in range(self.user_rows.n_classes)]


@dataclass(frozen=True)
class PlannedClassDensities:
    """A planned fit of a density of each class, or of all rows without y."""

    plan: DensityPlan
    training: _TrainingRows
    encoder: ClassEncoder | None
    device: torch.device
    seed: Seed

    @property
    def rows(self) -> VectorRows:
        """The user's rows, checked."""
        return self.training.user_rows

    def run(
        self, listeners: Sequence[events.FlowListener]
    ) -> FitResult[FittedClassDensities]:
        """Fit the density of each class, and tell the listeners of every step."""
        history = events.History()
        started_at = events.now()
        steps_left = sum(plan.n_steps for plan in self.plan.classes)
        rows_by_class = self.training.rows_by_class()
        class_flows = []
        steps_done = 0
        for c, plan in enumerate(self.plan.classes):
            x = rows_by_class[c]
            if plan.settings is None:
                class_flows.append(fit_normal(x, rows_by_class))
                continue
            name = "flow"
            if self.encoder is not None:
                name = f"class {self.encoder.classes[c]}"
            steps_left -= plan.n_steps
            relay = _ClassRelay(
                listeners=(history, *listeners),
                stage_name=name,
                class_index=c,
                steps_before=steps_done,
                steps_after=steps_left,
                seconds_before=events.now() - started_at,
            )
            seed = self.seed.child("class", c)
            flow = fit_gaussianization(x, plan.settings, seed, [relay])
            class_flows.append(flow)
            steps_done += len(flow.steps)
        fitted = FittedClassDensities(
            plan=self.plan,
            support_transform=self.training.support_transform,
            class_flows=tuple(class_flows),
            y_encoder=self.encoder,
            names=self.training.user_rows.names,
            tensor_device=self.training.user_rows.tensor_device,
            device=self.device,
        )
        return FitResult(fitted, history.as_columns(), self.training.warning)


@dataclass(frozen=True)
class PlannedConditionalDensity:
    """A planned fit of a density given y that is numbers."""

    plan: DensityPlan
    training: _TrainingRows
    encoder: ContinuousEncoder
    device: torch.device
    seed: Seed

    @property
    def rows(self) -> VectorRows:
        """The user's rows, checked."""
        return self.training.user_rows

    def run(
        self, listeners: Sequence[events.FlowListener]
    ) -> FitResult[FittedConditionalDensity]:
        """Fit the regression and the residuals. There are no steps, so no events."""
        y = self.training.user_rows.encoded_y
        assert y is not None, "rows with an encoder of y have y"
        conditional = ConditionalDensity.from_data(
            self.training.x.cpu().numpy(),
            y.values.numpy(),
            self.seed.child("conditional"),
        )
        fitted = FittedConditionalDensity(
            plan=self.plan,
            support_transform=self.training.support_transform,
            conditional=conditional,
            y_encoder=self.encoder,
            names=self.training.user_rows.names,
            tensor_device=self.training.user_rows.tensor_device,
            device=self.device,
        )
        no_steps = events.History().as_columns()
        return FitResult(fitted, no_steps, self.training.warning)


@dataclass(frozen=True)
class _ClassRelay:
    """A listener that passes the events of one class on, counted over all classes.

    Every class has a flow of its own, of one stage; for the user's listeners, these are
    the stages of one flow.
    """

    listeners: Sequence[events.FlowListener]
    stage_name: str
    class_index: int
    steps_before: int  # that were done for the classes before
    steps_after: int  # that are planned for the classes behind
    seconds_before: float  # from the start of the fit to that of this class

    def __call__(self, event: events.Event) -> bool:
        counted = replace(
            event,
            stage_name=self.stage_name,
            stage_index=self.class_index,  # a class is a stage for the listeners
            steps_done=self.steps_before + event.steps_done,
            steps_total=self.steps_before + event.steps_total + self.steps_after,
            seconds=self.seconds_before + event.seconds,
        )
        return events.notify(self.listeners, counted)
