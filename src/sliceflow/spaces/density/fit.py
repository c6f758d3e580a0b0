"""The fit of a density: its plan, the flows of its classes, and what a file keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.devices import require_memory
from sliceflow.engine import events
from sliceflow.engine.conditions import (
    ContinuousEncoder,
    LabelEncoder,
    MixedEncoder,
)
from sliceflow.engine.labels import as_array
from sliceflow.engine.random import Seed
from sliceflow.errors import DataError, DataWarning
from sliceflow.models.plan import Plan
from sliceflow.models.protocols import FitResult
from sliceflow.models.rows import RowConditions
from sliceflow.models.vector_rows import VectorRows, as_rows, in_users_form
from sliceflow.saved_types import Between, Count, Label
from sliceflow.spaces.density.conditional import ConditionalDensity
from sliceflow.spaces.density.gaussianization import (
    Gaussianization,
    GaussianizationSettings,
    choose_settings,
    count_knots,
    fit_gaussianization,
    fit_normal,
)
from sliceflow.spaces.density.support import (
    Support,
    check_bounds,
    check_density_rows,
    spread_ties,
)

# A class with fewer rows than this, or than twice its columns, gets a normal
# distribution with the covariance within all classes: it has too few for its own.
MIN_ROWS_OF_CLASS = 20
# Fewer rows teach a regression on y too little: half of them would be held out, or used
# up by a dozen coefficients.
MIN_ROWS_OF_REGRESSION = 50
# Nanoseconds for each number of a step, with its candidates; users are told an order
# of magnitude.
_NANOSECONDS = {"cpu": 400.0, "cuda": 20.0}
# A regression on y takes about as long as so many steps of a flow.
_STEPS_OF_REGRESSION = 1_000
# Arrays of the size of the rows that a step needs.
_ARRAYS_PER_STEP = 12


@dataclass(frozen=True)
class ClassPlan:
    """How the density of one class is fitted, or that of all rows."""

    n_rows: Count
    n_steps: Count
    smoothing: Annotated[float, Between(0)]
    n_components: Count
    ridge: Annotated[float, Between(0)]
    columns_first: bool = False
    # Too few rows for a flow: the class is normal, with a covariance that all share.
    is_normal: bool = False

    @property
    def settings(self) -> GaussianizationSettings:
        """What the fit takes."""
        return GaussianizationSettings(
            self.n_steps,
            self.smoothing,
            self.n_components,
            self.ridge,
            self.columns_first,
        )


@dataclass(frozen=True, kw_only=True)
class DensityPlan(Plan):
    """What a fit of a density does. It prints as a table."""

    n_rows: Count
    n_columns: Count
    # One for each class, or one for all rows; none if y is numbers.
    classes: tuple[ClassPlan, ...]
    dtype: str = "float64"
    n_conditions: Count = 0  # columns of y that is numbers

    @property
    def method(self) -> str:
        """What is fitted, in a few words."""
        if self.n_conditions:
            return "regression on y, then a sliced flow from data to noise"
        return "sliced flow from data to noise"

    def summary(self) -> Sequence[tuple[str, object]]:
        """Names and values to print; those with the value "" are left out."""
        n_classes = ""
        if len(self.classes) > 1:
            n_classes = str(len(self.classes))
        return [
            ("data", f"{self.n_rows} rows of {self.n_columns} columns"),
            ("columns of y", self.n_conditions or ""),
            ("classes", n_classes),
            ("mixture", _joined([plan.n_components for plan in self.classes])),
            ("steps", _joined([plan.n_steps for plan in self.classes])),
            ("smoothing", _joined([plan.smoothing for plan in self.classes])),
            ("knots", _joined([count_knots(plan.n_rows) for plan in self.classes])),
        ]

    @property
    def nbytes(self) -> int:
        """Memory of the fit, without the input data."""
        return _ARRAYS_PER_STEP * 8 * self.n_rows * self.n_columns

    @property
    def seconds(self) -> float:
        """About how long the fit takes on its device."""
        n_steps = sum(plan.n_steps for plan in self.classes)
        if self.n_conditions:
            n_steps = _STEPS_OF_REGRESSION
        n_values = self.n_rows * self.n_columns * n_steps
        return self.seconds_for(n_values, _NANOSECONDS)


def _joined(values: Sequence[float]) -> str:
    """The different values, in order."""
    return ", ".join(f"{value:g}" for value in dict.fromkeys(values))


@dataclass(frozen=True)
class FittedDensity:
    """The state of a fitted density."""

    plan: DensityPlan
    support: Support
    flows: Sequence[Gaussianization]  # one for each class, or one for all rows
    encoder: LabelEncoder | None = None  # of y; None without y
    names: tuple[Label, ...] | None = None  # of the columns, if X is a DataFrame
    tensor_device: str | None = None  # of the user's tensor; None for other types
    # Of y that is numbers, which then stands for flows and encoder.
    conditional: ConditionalDensity | None = None
    columns: ContinuousEncoder | None = None
    device: torch.device = field(default=torch.device("cpu"), metadata={"saved": False})

    needs_rows = False

    def check_saved(self) -> None:
        """Raise a ValueError if the parts of a file do not fit together."""
        if self.conditional is not None:
            self._check_conditional(self.conditional)
            return
        n_flows = 1 if self.encoder is None else self.encoder.condition_dim
        if len(self.flows) != n_flows or len(self.plan.classes) != n_flows:
            raise ValueError("there is not one flow for each class")
        d = self.plan.n_columns
        for flow in self.flows:
            is_square = flow.factor.shape == (d, d) and flow.start.means.shape[1] == d
            thetas = [step.theta for step in flow.steps]
            has_thetas = all(t is not None and t.shape == (d, d) for t in thetas)
            if not (is_square and has_thetas and len(flow.shift) == d):
                raise ValueError(f"a flow does not have {d} columns")
        if len(self.support.low) != d:
            raise ValueError(f"there are no bounds for {d} columns")

    def _check_conditional(self, conditional: ConditionalDensity) -> None:
        if self.columns is None:
            raise ValueError("there are no conditions")
        d = self.plan.n_columns
        if conditional.n_columns != d or len(self.support.low) != d:
            raise ValueError(f"the regression does not have {d} columns")
        conditional.check_conditions(self.columns.condition_dim)

    def conditional_log_density(self, X: np.ndarray, y: Tensor) -> Tensor:
        """log p(x | y) (n,) of rows (n, d) given encoded conditions y (n, l)."""
        assert self.conditional is not None
        x = torch.from_numpy(X).to(torch.float64)
        inside = self.support.contains(x.to(self.device)).cpu()
        result = x.new_full((len(x),), -torch.inf)
        if bool(inside.any()):
            u, log_det = self.support.encode(x[inside].to(self.device))
            functions = self.conditional.at(y[inside].numpy())
            log_density = self.conditional.log_density(u.cpu().numpy(), functions)
            result[inside] = torch.from_numpy(log_density) + log_det.cpu()
        return result

    def sample_bytes(self, n: int = 1) -> int:
        """Memory to draw n samples."""
        sizes = [plan.n_components for plan in self.plan.classes]
        n_components = max(sizes, default=1)
        return 8 * n * self.plan.n_columns * (_ARRAYS_PER_STEP + n_components)

    @property
    def log_priors(self) -> Tensor:
        """The logarithms of the shares of the classes, (C,)."""
        sizes = [plan.n_rows for plan in self.plan.classes]
        shares = torch.tensor(sizes, dtype=torch.float64, device=self.device)
        return (shares / shares.sum()).log()

    def log_densities(self, X: np.ndarray) -> Tensor:
        """log p(x | class) of rows (n, d) for each class: (C, n)."""
        x = torch.from_numpy(X.astype(np.float64)).to(self.device)
        inside = self.support.contains(x)
        result = x.new_full((len(self.flows), len(x)), -torch.inf)
        if bool(inside.any()):
            u, log_det = self.support.encode(x[inside])
            for c, flow in enumerate(self.flows):
                result[c, inside] = flow.log_density(u) + log_det
        return result

    def to_noise(self, X: np.ndarray, codes: Tensor) -> Tensor:
        """Rows (n, d) of classes `codes` (n,) as rows of N(0, I)."""
        x = torch.from_numpy(X.astype(np.float64)).to(self.device)
        outside = ~self.support.contains(x)
        if bool(outside.any()):
            row = int(outside.double().argmax())
            raise DataError("it is not within the bounds", "drop the row", row=row)
        u, _ = self.support.encode(x)
        if self.conditional is not None:
            functions = self.conditional.at(codes.numpy())
            z = self.conditional.to_noise(u.cpu().numpy(), functions)
            return torch.from_numpy(z).to(self.device)
        return self._by_class(u, codes, lambda flow, rows: flow.to_noise(rows)[0])

    def from_noise(self, z: Tensor, codes: Tensor) -> Tensor:
        """Rows z (n, d) of N(0, I) as rows of the classes `codes` (n,)."""
        z = z.to(self.device, torch.float64)
        if self.conditional is not None:
            functions = self.conditional.at(codes.numpy())
            rows = self.conditional.from_noise(z.cpu().numpy(), functions)
            return self.support.decode(torch.from_numpy(rows).to(self.device))
        u = self._by_class(z, codes, lambda flow, rows: flow.from_noise(rows))
        return self.support.decode(u)

    def _by_class(
        self,
        rows: Tensor,
        codes: Tensor,
        change: Callable[[Gaussianization, Tensor], Tensor],
    ) -> Tensor:
        result = torch.empty_like(rows)
        codes = codes.to(rows.device)
        for c, flow in enumerate(self.flows):
            of_class = codes == c
            if bool(of_class.any()):
                result[of_class] = change(flow, rows[of_class])
        return result

    def in_users_form(self, rows: Tensor) -> Any:
        """Rows (n, d) as X was: an array, a tensor or a DataFrame, of its dtype."""
        rows = rows.to(getattr(torch, self.plan.dtype))
        return in_users_form(rows, self.names, self.tensor_device, self.device)


@dataclass(frozen=True)
class DensityAdapter:
    """Reads and plans the rows of a `SlicedDensity`."""

    bounds: Any
    n_steps: int | None  # None chooses it
    smoothing: float | None  # None chooses it
    n_components: int | None  # None chooses it
    device: torch.device
    validate: Callable[[Any], np.ndarray]

    def read(self, X: Any, y: Any) -> VectorRows:
        """The user's rows, checked."""
        array = as_rows(X, self.validate)
        names = None
        if hasattr(X, "columns"):
            names = tuple(X.columns)
        tensor_device = None
        if isinstance(X, Tensor):
            tensor_device = X.device.type
        conditions = None
        if y is not None:
            labels = as_array(y)
            is_number = labels.dtype.kind == "f"
            if labels.ndim == 2 and labels.shape[1] == 1 and not is_number:
                labels = labels[:, 0]
            conditions = RowConditions.infer(labels, len(array))
            if isinstance(conditions.encoder, MixedEncoder):
                fact = "y has both labels and numbers"
                raise DataError(fact, "pass class labels (n,), or numbers (n, l)")
        rows = VectorRows(array, conditions, names, tensor_device)
        low, high = check_bounds(self.bounds, array.shape[1])
        if len(array) < 2:
            fact = f"Found array with {len(array)} sample(s) (n_samples=1)"
            raise DataError(fact, "a density needs at least 2 rows")
        check_density_rows(array.astype(np.float64), low, high, names)
        return rows

    def make_task(self, rows: VectorRows, seed: Seed) -> DensityTask | ConditionalTask:
        """Choose the settings of every class, by held-out likelihood."""
        X = rows.X.astype(np.float64)
        low, high = check_bounds(self.bounds, X.shape[1])
        X, tied = spread_ties(X, low, high, seed)
        support = Support.fit_to(X, low, high, self.device)
        encoded, _ = support.encode(torch.from_numpy(X).to(self.device))
        if rows.conditions is not None:
            columns = rows.conditions.encoder
            if isinstance(columns, ContinuousEncoder):
                task = self._plan_conditional(rows, columns, support, encoded, seed)
                return replace(task, warning=_tie_warning(tied, rows.names))
        parts = _rows_of_classes(encoded, rows)
        classes = []
        for c, part in enumerate(parts):
            classes.append(
                self._plan_class(part, len(parts) > 1, seed.child("class", c))
            )
        plan = DensityPlan(
            device=str(self.device),
            n_rows=len(X),
            n_columns=X.shape[1],
            classes=tuple(classes),
            dtype=str(rows.X.dtype),
        )
        what = f"{plan.n_rows} rows of {plan.n_columns} columns need"
        require_memory(plan.nbytes, self.device, what, "fit fewer rows")
        encoder = None
        if rows.conditions is not None:
            assert isinstance(rows.conditions.encoder, LabelEncoder)
            encoder = rows.conditions.encoder
        fitted = FittedDensity(
            plan=plan,
            support=support,
            flows=(),
            encoder=encoder,
            names=rows.names,
            tensor_device=rows.tensor_device,
            device=self.device,
        )
        return DensityTask(plan, fitted, parts, seed, _tie_warning(tied, rows.names))

    def _plan_conditional(
        self,
        rows: VectorRows,
        columns: ContinuousEncoder,
        support: Support,
        encoded: Tensor,
        seed: Seed,
    ) -> ConditionalTask:
        """A regression on y, and the flow of what is left over."""
        n, d = encoded.shape
        if n < MIN_ROWS_OF_REGRESSION:
            fact = f"there are {n} rows with y that is numbers"
            raise DataError(fact, f"pass at least {MIN_ROWS_OF_REGRESSION} rows")
        plan = DensityPlan(
            device=str(self.device),
            n_rows=n,
            n_columns=d,
            classes=(),
            dtype=str(rows.X.dtype),
            n_conditions=columns.condition_dim,
        )
        what = f"{n} rows of {d} columns need"
        require_memory(plan.nbytes, self.device, what, "fit fewer rows")
        fitted = FittedDensity(
            plan=plan,
            support=support,
            flows=(),
            names=rows.names,
            tensor_device=rows.tensor_device,
            columns=columns,
            device=self.device,
        )
        assert rows.codes is not None
        return ConditionalTask(plan, fitted, encoded, rows.codes, seed)

    def _plan_class(self, x: Tensor, is_class: bool, seed: Seed) -> ClassPlan:
        n, d = x.shape
        if n < 4 or (is_class and n < max(MIN_ROWS_OF_CLASS, 2 * d)):
            return ClassPlan(n, 0, 0.0, 1, 0.0, is_normal=True)
        settings = choose_settings(
            x, seed, self.n_steps, self.smoothing, self.n_components
        )
        return ClassPlan(
            n,
            settings.n_steps,
            settings.smoothing,
            settings.n_components,
            settings.ridge,
            settings.columns_first,
        )


def _tie_warning(
    tied: Sequence[int], names: tuple[Any, ...] | None
) -> DataWarning | None:
    """What to say of columns whose values were spread; or nothing."""
    if not tied:
        return None
    column = tied[0] if names is None else names[tied[0]]
    fact = "many rows have the same value, so values were spread over the step between"
    if len(tied) > 1:
        fact += f" them (also in {len(tied) - 1} more columns)"
    else:
        fact += " them"
    return DataWarning(fact, "drop it, or pass it as y", column=column)


def _rows_of_classes(x: Tensor, rows: VectorRows) -> list[Tensor]:
    """The rows x (n, d) of each class, or all rows."""
    if rows.codes is None:
        return [x]
    codes = rows.codes.to(x.device)
    return [x[codes == c] for c in range(rows.condition_dim)]


@dataclass(frozen=True)
class DensityTask:
    """A planned fit."""

    plan: DensityPlan
    begun: FittedDensity  # without its flows
    parts: Sequence[Tensor]  # the rows of each class
    seed: Seed
    warning: DataWarning | None = None

    def run(self, listeners: Sequence[events.Listener]) -> FitResult[FittedDensity]:
        """Fit the flow of each class, and tell the listeners of every step."""
        history = events.History()
        total = sum(plan.n_steps for plan in self.plan.classes)
        flows = []
        steps_done = 0
        for c, (plan, x) in enumerate(zip(self.plan.classes, self.parts, strict=True)):
            if plan.is_normal:
                flows.append(fit_normal(x, self.parts))
                continue
            name = "flow"
            if self.begun.encoder is not None:
                name = f"class {self.begun.encoder.classes[c]}"
            relay = _Relay((history, *listeners), name, c, steps_done, total)
            seed = self.seed.child("class", c)
            flows.append(fit_gaussianization(x, plan.settings, seed, [relay]))
            steps_done += plan.n_steps
        fitted = replace(self.begun, flows=tuple(flows))
        return FitResult(fitted, history.as_columns(), self.warning)


@dataclass(frozen=True)
class ConditionalTask:
    """A planned fit to rows with conditions that are numbers."""

    plan: DensityPlan
    begun: FittedDensity
    x: Tensor  # (n, d), without bounds
    y: Tensor  # (n, l), standardised
    seed: Seed
    warning: DataWarning | None = None

    def run(self, listeners: Sequence[events.Listener]) -> FitResult[FittedDensity]:
        """Fit the regression and the flow; there are no steps to tell of."""
        conditional = ConditionalDensity.fit_to(
            self.x.cpu().numpy(), self.y.numpy(), self.seed.child("conditional")
        )
        fitted = replace(self.begun, conditional=conditional)
        return FitResult(fitted, events.History().as_columns(), self.warning)


@dataclass(frozen=True)
class _Relay:
    """Passes the events of a class on, counted over all classes."""

    listeners: Sequence[events.Listener]
    name: str
    class_index: int
    steps_before: int
    steps_total: int

    def __call__(self, event: events.Event) -> bool:
        counted = replace(
            event,
            stage_name=self.name,
            stage_index=self.class_index,
            steps_done=self.steps_before + event.steps_done,
            steps_total=self.steps_total,
        )
        return events.notify(self.listeners, counted)
