"""The fit of a density: how rows are read, planned and fitted, class by class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sliceflow.arrays import Floats
from sliceflow.base.protocols import FitResult
from sliceflow.base.rows import Conditions
from sliceflow.base.vector_rows import VectorRows, read_vector_rows
from sliceflow.devices import require_memory
from sliceflow.engine.events import EventListener
from sliceflow.engine.labels import as_array
from sliceflow.engine.random import Seed
from sliceflow.engine.y_encoders import (
    ClassEncoder,
    ContinuousEncoder,
    MixedEncoder,
)
from sliceflow.errors import DataError, DataWarning, warn_user
from sliceflow.estimators.density.conditional import (
    MIN_CONDITIONAL_ROWS,
    fit_conditional_density,
)
from sliceflow.estimators.density.fitted import (
    FittedClassDensities,
    FittedConditionalDensity,
)
from sliceflow.estimators.density.gaussianization import (
    Gaussianization,
    fit_gaussianization,
    fit_normal,
)
from sliceflow.estimators.density.plan import (
    DensityPlan,
    NormalClassPlan,
    TunedClassPlan,
    UntunedClassPlan,
    fit_bytes,
)
from sliceflow.estimators.density.progress import (
    FLOW,
    DensityEvent,
    FitProgress,
    expected_flow,
)
from sliceflow.estimators.density.settings import GaussianizationParameters
from sliceflow.estimators.density.settings_search import (
    choose_settings,
    expected_phases,
    expected_trials,
    require_enough_rows,
)
from sliceflow.estimators.density.support import (
    Names,
    RowGroup,
    SupportTransform,
    TiedColumn,
    check_enough_rows,
    check_not_constant,
    check_scales,
    check_within_bounds,
    column_label,
    jitter_ties,
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
class DensityFitPlanner:
    """Reads the rows of a `SlicedDensity`, and plans their fit."""

    parameters: GaussianizationParameters
    bounds: ColumnBounds | None  # the user's
    device: torch.device
    validate: Callable[[Any], NDArray[Any]]  # scikit-learn's checks of X

    def read(self, X: Any, y: Any) -> VectorRows:
        """The user's rows, checked."""
        rows = read_vector_rows(X, self.validate)
        if y is not None:
            rows = replace(rows, conditions=_read_conditions(y, len(rows)))
        low, high = as_column_bounds(self.bounds, rows.X.shape[1], "columns")
        check_within_bounds(rows.X.astype(np.float64), low, high, rows.names)
        return rows

    def plan_fit(
        self, rows: VectorRows, seed: Seed
    ) -> PlannedClassDensityFit | PlannedConditionalDensityFit:
        """Plan a fit of these rows; an error if that is impossible."""
        n, d = rows.X.shape
        what = f"{n} rows of {d} columns need"
        require_memory(fit_bytes(n, d), self.device, what, "fit fewer rows")
        low, high = as_column_bounds(self.bounds, d, "columns")
        training_rows = TrainingRows.from_user_rows(rows, low, high, self.device, seed)
        encoder = None
        if rows.conditions is not None:
            encoder = rows.conditions.encoder
        if isinstance(encoder, ContinuousEncoder):
            return self._plan_conditional(training_rows, encoder, seed)
        assert encoder is None or isinstance(encoder, ClassEncoder)
        return self._plan_classes(training_rows, encoder, seed)

    def _plan_classes(
        self, training_rows: TrainingRows, encoder: ClassEncoder | None, seed: Seed
    ) -> PlannedClassDensityFit:
        """Plan a density of each class, or one of all rows."""
        rows_by_class = training_rows.by_class()
        has_classes = len(rows_by_class) > 1
        n, d = training_rows.x.shape
        plan = DensityPlan(
            device=str(self.device),
            n_rows=n,
            n_columns=d,
            classes=tuple(
                self._plan_class(len(x), d, has_classes) for x in rows_by_class
            ),
            dtype=training_rows.user_rows.dtype,
        )
        return PlannedClassDensityFit(plan, training_rows, encoder, self.device, seed)

    def _plan_class(
        self, n: int, d: int, is_class: bool
    ) -> UntunedClassPlan | NormalClassPlan:
        """Plan the density of n rows of d columns: of one class, or of all."""
        if n < MIN_ROWS_TO_CHOOSE or (is_class and _is_small_class(n, d)):
            return NormalClassPlan(n)
        require_enough_rows(n, self.parameters)
        trials = expected_trials(n, self.parameters)
        n_trial_steps = sum(phases.n_steps for phases in trials)
        return UntunedClassPlan(n, self.parameters, n_trial_steps)

    def _plan_conditional(
        self, training_rows: TrainingRows, encoder: ContinuousEncoder, seed: Seed
    ) -> PlannedConditionalDensityFit:
        """Plan a regression on y, and the density of what is left over."""
        n, d = training_rows.x.shape
        if n < MIN_CONDITIONAL_ROWS:
            fact = f"there are {n} rows with a continuous y"
            raise DataError(fact, f"pass at least {MIN_CONDITIONAL_ROWS} rows")
        self._warn_of_ignored()
        plan = DensityPlan(
            device=str(self.device),
            n_rows=n,
            n_columns=d,
            classes=(),
            dtype=training_rows.user_rows.dtype,
            condition_dim=encoder.condition_dim,
        )
        return PlannedConditionalDensityFit(
            plan, training_rows, encoder, self.device, seed
        )

    def _warn_of_ignored(self) -> None:
        """Warn of parameters that the user has set, and a regression does not read."""
        values = asdict(self.parameters)
        ignored = [name for name, value in values.items() if value != "auto"]
        if ignored:
            fact = f"y is continuous, so a regression is fitted: {', '.join(ignored)}"
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
        is_member = class_indices == c
        if not _is_small_class(int(is_member.sum()), d):
            groups.append(
                RowGroup(f"rows of class {label!r}", is_member, is_class=True)
            )
    return groups


def _is_small_class(n: int, d: int) -> bool:
    """Whether a class of n rows (n, d) has too few for a flow of its own."""
    return n < max(MIN_ROWS_OF_CLASS, 2 * d)


def _read_conditions(y: Any, n: int) -> Conditions:
    """The user's y of n rows, checked: class labels or continuous, but not both."""
    conditions = Conditions.infer(as_array(y), n)
    if isinstance(conditions.encoder, MixedEncoder):
        fact = "y has both labels and numbers"
        raise DataError(fact, "pass class labels (n,), or numbers (n, l)")
    return conditions


def _tie_warning(
    tied_columns: Sequence[TiedColumn], names: Names
) -> DataWarning | None:
    """A warning of columns whose values were jittered; None if there are none."""
    if not tied_columns:
        return None
    first = tied_columns[0]
    fact = f"many {first.group.name} have the same value, so values were "
    fact += "spread over the step between them"
    if len(tied_columns) > 1:
        fact += f" (also in {len(tied_columns) - 1} more columns)"
    hint = "drop it, or pass it as y"
    if first.group.is_class:
        hint = "drop the column, or the class"
    return DataWarning(fact, hint, column=column_label(first.column_index, names))


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """The rows to which a density is fitted, without bounds and ties.

    Parameters
    ----------
    user_rows : the rows as the user passed them, checked
    support_transform : maps the user's columns to columns without bounds
    x : the rows (n, d) after it; before it, ties were jittered
    tie_warning : tells the user of these ties; None if there were none
    """

    user_rows: VectorRows
    support_transform: SupportTransform
    x: Tensor
    tie_warning: DataWarning | None

    @classmethod
    def from_user_rows(
        cls,
        rows: VectorRows,
        low: Floats,
        high: Floats,
        device: torch.device,
        seed: Seed,
    ) -> TrainingRows:
        """The user's rows between bounds (d,); a `DataError` if they have no density.

        This is checked here, and not while rows are read, because it takes all rows of
        a fit, and `partial_fit` may pass one row at a time, or before bounds change.
        """
        bounded = rows.X.astype(np.float64)
        check_within_bounds(bounded, low, high, rows.names)
        check_enough_rows(len(bounded))
        groups = _row_groups(rows)
        check_not_constant(bounded, groups[0], rows.names)
        untied, tied_columns = jitter_ties(bounded, low, high, seed, groups)
        for group in groups:
            check_not_constant(untied, group, rows.names)
        transform = SupportTransform.from_data(untied, low, high, device)
        x, _ = transform.call_and_ladj(torch.from_numpy(untied).to(device))
        check_scales(x, rows.names)
        return cls(rows, transform, x, _tie_warning(tied_columns, rows.names))

    def by_class(self) -> list[Tensor]:
        """The rows (n, d) of each class, or all rows."""
        if self.user_rows.encoded_y is None:
            return [self.x]
        class_indices = self.user_rows.encoded_y.values.to(self.x.device)
        return [self.x[class_indices == c] for c in range(self.user_rows.n_classes)]


@dataclass(frozen=True, eq=False)
class PlannedClassDensityFit:
    """A planned fit of a density of each class, or of all rows without y."""

    plan: DensityPlan
    training_rows: TrainingRows
    encoder: ClassEncoder | None
    device: torch.device
    seed: Seed

    @property
    def rows(self) -> VectorRows:
        """The user's rows, checked."""
        return self.training_rows.user_rows

    def run(
        self, listeners: Sequence[EventListener[DensityEvent]]
    ) -> FitResult[FittedClassDensities]:
        """Choose the settings of every class by trials, then fit their densities."""
        progress = FitProgress(listeners)
        classes = self._tune_classes(progress)
        result = self._fit_classes(classes, progress)
        progress.notify_of_end()
        return result

    def tune(self, listeners: Sequence[EventListener[DensityEvent]]) -> Self:
        """This fit, with the settings of every class chosen by trials."""
        classes = self._tune_classes(FitProgress(listeners))
        return replace(self, plan=replace(self.plan, classes=classes))

    def _tune_classes(
        self, progress: FitProgress
    ) -> tuple[TunedClassPlan | NormalClassPlan, ...]:
        """The plan of every class, with its settings chosen."""
        self._announce_phases(progress)
        tuned: list[TunedClassPlan | NormalClassPlan] = []
        for c, x in enumerate(self.training_rows.by_class()):
            class_plan = self.plan.classes[c]
            if isinstance(class_plan, UntunedClassPlan):
                class_plan = self._tune_class(c, class_plan, x, progress)
            tuned.append(class_plan)
        return tuple(tuned)

    def _announce_phases(self, progress: FitProgress) -> None:
        """Announce the trials and flows of all classes, for estimates of the time."""
        for c, class_plan in enumerate(self.plan.classes):
            phases = [expected_flow(class_plan.expected_steps)]
            if isinstance(class_plan, UntunedClassPlan):
                phases = expected_phases(class_plan.n_rows, class_plan.parameters)
            self._progress_of_class(c, progress).announce(phases)

    def _tune_class(
        self, c: int, class_plan: UntunedClassPlan, x: Tensor, progress: FitProgress
    ) -> TunedClassPlan:
        """Choose the settings of class c by trials on its rows x (n, d)."""
        class_progress = self._progress_of_class(c, progress)
        steps_before = progress.steps_done
        seed = self.seed.child("class", c)
        settings = choose_settings(x, class_plan.parameters, seed, class_progress)
        n_trial_steps = progress.steps_done - steps_before
        return TunedClassPlan(class_plan.n_rows, settings, n_trial_steps)

    def _fit_classes(
        self,
        classes: tuple[TunedClassPlan | NormalClassPlan, ...],
        progress: FitProgress,
    ) -> FitResult[FittedClassDensities]:
        """Fit the density of each class."""
        rows_by_class = self.training_rows.by_class()
        class_flows = []
        for c, class_plan in enumerate(classes):
            if isinstance(class_plan, NormalClassPlan):
                flow = fit_normal(rows_by_class[c], rows_by_class)
            else:
                flow = self._fit_flow(c, class_plan, rows_by_class[c], progress)
            class_flows.append(flow)
        fitted = FittedClassDensities(
            plan=replace(self.plan, classes=classes),
            support_transform=self.training_rows.support_transform,
            class_flows=tuple(class_flows),
            y_encoder=self.encoder,
            names=self.training_rows.user_rows.names,
            tensor_device=self.training_rows.user_rows.tensor_device,
            device=self.device,
        )
        return FitResult(
            fitted, progress.history.as_columns(), self.training_rows.tie_warning
        )

    def _fit_flow(
        self, c: int, class_plan: TunedClassPlan, x: Tensor, progress: FitProgress
    ) -> Gaussianization:
        """Fit the flow of class c to its rows x (n, d)."""
        class_progress = self._progress_of_class(c, progress)
        class_progress.begin_phase(FLOW)
        seed = self.seed.child("class", c)
        listeners = [class_progress.notify_of_step]
        return fit_gaussianization(x, class_plan.settings, seed, listeners)

    def _progress_of_class(self, c: int, progress: FitProgress) -> FitProgress:
        """The progress of the same fit, for the phases of class c, or of all rows."""
        if self.encoder is None:
            return progress
        return progress.for_class(str(self.encoder.classes[c]), c)


@dataclass(frozen=True, eq=False)
class PlannedConditionalDensityFit:
    """A planned fit of a density given a continuous y.

    Trials choose the settings of the flow of residuals, and the residuals are those of
    a regression that is fitted to all rows. So the trials are a part of the fit
    (`fit_conditional_density`), and `tune` has nothing to choose before it.
    """

    plan: DensityPlan
    training_rows: TrainingRows
    encoder: ContinuousEncoder
    device: torch.device
    seed: Seed

    @property
    def rows(self) -> VectorRows:
        """The user's rows, checked."""
        return self.training_rows.user_rows

    def tune(self, listeners: Sequence[EventListener[DensityEvent]]) -> Self:
        """This fit itself: its trials need residuals, which `run` computes."""
        return self

    def run(
        self, listeners: Sequence[EventListener[DensityEvent]]
    ) -> FitResult[FittedConditionalDensity]:
        """Fit the regression, then the flow of its residuals."""
        progress = FitProgress(listeners)
        y = self.training_rows.user_rows.encoded_y
        assert y is not None, "rows with an encoder of y have y"
        conditional = fit_conditional_density(
            self.training_rows.x.cpu().numpy(),
            y.values.numpy(),
            self.seed.child("conditional"),
            progress,
        )
        progress.notify_of_end()
        fitted = FittedConditionalDensity(
            plan=self.plan,
            support_transform=self.training_rows.support_transform,
            conditional=conditional,
            y_encoder=self.encoder,
            names=self.training_rows.user_rows.names,
            tensor_device=self.training_rows.user_rows.tensor_device,
            device=self.device,
        )
        history = progress.history.as_columns()
        return FitResult(fitted, history, self.training_rows.tie_warning)
