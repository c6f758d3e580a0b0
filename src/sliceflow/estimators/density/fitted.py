"""The fitted models of a density: of classes, or given a continuous y.

Both map rows to noise and back, given an encoded y: `ClassIndices` or `ContinuousY`.
`SlicedDensity` encodes the user's y.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sliceflow.base.rows import Conditions
from sliceflow.base.vector_rows import VectorArray, in_user_form
from sliceflow.engine.encoded_y import ClassIndices, ContinuousY, EncodedY
from sliceflow.engine.proportions import proportional_indices
from sliceflow.engine.random import Seed
from sliceflow.engine.y_encoders import ClassEncoder, ContinuousEncoder
from sliceflow.errors import DataError
from sliceflow.estimators.density.conditional import ConditionalDensity
from sliceflow.estimators.density.gaussianization import Gaussianization
from sliceflow.estimators.density.invertible_maps import log_prob
from sliceflow.estimators.density.mixture import MAX_VALUES_PER_CHUNK
from sliceflow.estimators.density.plan import ARRAYS_PER_STEP, DensityPlan
from sliceflow.estimators.density.regression import AffineMapGivenY
from sliceflow.estimators.density.support import SupportTransform
from sliceflow.saved_types import Label
from sliceflow.validation import check_finite


@dataclass(frozen=True, kw_only=True, eq=False)
class BaseFittedDensity(ABC):
    """Base class of both fitted models."""

    plan: DensityPlan
    support_transform: SupportTransform
    names: tuple[Label, ...] | None = None  # of the columns, if X is a DataFrame
    tensor_device: str | None = None  # of the user's tensor; None for other types
    device: torch.device = field(default=torch.device("cpu"), metadata={"saved": False})

    needs_rows = False

    def check_saved(self) -> None:
        """Raise a ValueError if the parts of a file do not fit together."""
        d = self.plan.n_columns
        if len(self.support_transform.low) != d:
            raise ValueError(f"there are no bounds for {d} columns")

    @abstractmethod
    def log_prob(self, X: NDArray[Any], y: EncodedY | None) -> Tensor:
        """log p(x | y) (n,) of rows X (n, d); log p(x) without y."""

    @abstractmethod
    def to_noise(self, X: NDArray[Any], y: EncodedY | None) -> Tensor:
        """Rows X (n, d) as noise (n, d) of N(0, I)."""

    @abstractmethod
    def from_noise(self, noise: Tensor, y: EncodedY | None) -> Tensor:
        """Noise (n, d) of N(0, I) as rows (n, d)."""

    @abstractmethod
    def draw_conditions(self, n: int, seed: Seed) -> Conditions | None:
        """Draw the y of n samples, in the proportions of the fitted rows.

        The result is None if the model has no y.
        """

    def sample(self, n: int, y: EncodedY | None, seed: Seed) -> VectorArray:
        """n samples (n, d) in the user's form, with these encoded conditions."""
        noise = seed.child("noise").normal(n, self.plan.n_columns)
        return self.in_user_form(self.from_noise(noise, y))

    def sample_bytes(self, n: int = 1) -> int:
        """Memory to draw n samples."""
        n_values = n * self.plan.n_columns
        n_of_mixture = min(n_values * self._max_components, MAX_VALUES_PER_CHUNK)
        return 8 * (n_values * ARRAYS_PER_STEP + n_of_mixture)

    @property
    @abstractmethod
    def _max_components(self) -> int:
        """The components of the largest mixture."""

    def in_user_form(self, rows: Tensor) -> VectorArray:
        """Rows (n, d) in the form and the dtype of the user's X."""
        rows = rows.to(self.plan.torch_dtype)
        check_finite(rows, "fit float64, or rescale the rows")
        return in_user_form(rows, self.names, self.tensor_device, self.device)

    def _as_tensor(self, X: NDArray[Any]) -> Tensor:
        """Rows X (n, d) of the user in float64, on the device of the model."""
        return torch.from_numpy(X.astype(np.float64)).to(self.device)

    def _without_bounds(self, X: NDArray[Any]) -> Tensor:
        """Rows X (n, d) of the user in columns without bounds; all must be inside."""
        x = self._as_tensor(X)
        is_outside = ~self.support_transform.is_within_bounds(x)
        if bool(is_outside.any()):
            row = int(is_outside.double().argmax())
            raise DataError("it is not within the bounds", "drop the row", row=row)
        unbounded, _ = self.support_transform.call_and_ladj(x)
        return unbounded


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedClassDensities(BaseFittedDensity):
    """A density of each class, or one of all rows without y."""

    class_flows: tuple[Gaussianization, ...]  # of each class, or one of all rows
    y_encoder: ClassEncoder | None = None  # None without y

    def check_saved(self) -> None:
        """Raise a ValueError if the parts of a file do not fit together."""
        super().check_saved()
        n_densities = 1 if self.y_encoder is None else self.y_encoder.n_classes
        if (
            len(self.class_flows) != n_densities
            or len(self.plan.classes) != n_densities
        ):
            raise ValueError("there is not one density for each class")
        if not self.plan.is_tuned:
            raise ValueError("the plan is not that of a density that was fitted")
        d = self.plan.n_columns
        if not all(flow.has_columns(d) for flow in self.class_flows):
            raise ValueError(f"a density does not have {d} columns")

    @property
    def _max_components(self) -> int:
        return max(flow.initial_map.mixture.n_components for flow in self.class_flows)

    @property
    def log_priors(self) -> Tensor:
        """The logarithms of the shares of the classes, (C,)."""
        sizes = [each.n_rows for each in self.plan.classes]
        shares = torch.tensor(sizes, dtype=torch.float64, device=self.device)
        return (shares / shares.sum()).log()

    def log_prob(self, X: NDArray[Any], y: EncodedY | None) -> Tensor:
        """log p(x | y) (n,) of rows X (n, d) of classes y (n,); log p(x) without y."""
        if y is None:
            return self._log_joint_by_class(X).logsumexp(0)
        class_indices = _class_indices(y).to(self.device)
        return self._log_prob_by_class(X).gather(0, class_indices[None])[0]

    def _log_joint_by_class(self, X: NDArray[Any]) -> Tensor:
        """log p(x, class) of rows X (n, d) for each class: (C, n)."""
        return self._log_prob_by_class(X) + self.log_priors[:, None]

    def _log_prob_by_class(self, X: NDArray[Any]) -> Tensor:
        """log p(x | class) of rows X (n, d) for each class: (C, n)."""
        x = self._as_tensor(X)
        is_inside = self.support_transform.is_within_bounds(x)
        result = x.new_full((len(self.class_flows), len(x)), -torch.inf)
        if bool(is_inside.any()):
            result[:, is_inside] = log_prob(
                x[is_inside],
                self.support_transform,
                base=self._log_prob_by_class_unbounded,
            )
        return result

    def _log_prob_by_class_unbounded(self, unbounded: Tensor) -> Tensor:
        """log p(x | class) of rows (n, d) in columns without bounds: (C, n)."""
        return torch.stack([flow.log_prob(unbounded) for flow in self.class_flows])

    def to_noise(self, X: NDArray[Any], y: EncodedY | None) -> Tensor:
        """Rows X (n, d) of classes y (n,) as noise (n, d) of N(0, I).

        Without y, each row takes its likeliest class.
        """
        if y is None:
            class_indices = self._log_joint_by_class(X).argmax(0)
        else:
            class_indices = _class_indices(y)
        unbounded = self._without_bounds(X)
        return self._map_by_class(unbounded, class_indices, Gaussianization.to_noise)

    def from_noise(self, noise: Tensor, y: EncodedY | None) -> Tensor:
        """Noise (n, d) of N(0, I) as rows (n, d) of classes y (n,)."""
        if y is not None:
            class_indices = _class_indices(y)
        elif self.y_encoder is None:
            class_indices = torch.zeros(len(noise), dtype=torch.int64)
        else:
            hint = "pass y, one label for each row"
            raise DataError("the model has classes", hint)
        noise = noise.to(self.device, torch.float64)
        unbounded = self._map_by_class(noise, class_indices, Gaussianization.inverse)
        return self.support_transform.inverse(unbounded)

    def _map_by_class(
        self,
        rows: Tensor,
        class_indices: Tensor,
        map_rows: Callable[[Gaussianization, Tensor], Tensor],
    ) -> Tensor:
        """Rows (n, d) in their order, each mapped by the density of its class."""
        result = torch.empty_like(rows)
        class_indices = class_indices.to(rows.device)
        for c, flow in enumerate(self.class_flows):
            is_in_class = class_indices == c
            if bool(is_in_class.any()):
                result[is_in_class] = map_rows(flow, rows[is_in_class])
        return result

    def draw_conditions(self, n: int, seed: Seed) -> Conditions | None:
        """The classes of n samples, in the proportions of the fitted rows."""
        if self.y_encoder is None:
            return None
        sizes = torch.tensor([each.n_rows for each in self.plan.classes])
        row_y = ClassIndices(torch.arange(len(sizes)).repeat_interleave(sizes))
        drawn = row_y.take(proportional_indices(row_y, n, seed))
        return Conditions(self.y_encoder, drawn.values)


def _class_indices(y: EncodedY) -> Tensor:
    """The class indices (n,) of labels that a class encoder has encoded."""
    assert isinstance(y, ClassIndices), "densities of classes have labels"
    return y.values


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedConditionalDensity(BaseFittedDensity):
    """A density given a continuous y. Without y it has no density and no samples."""

    conditional: ConditionalDensity  # of rows in columns without bounds, on the CPU
    y_encoder: ContinuousEncoder

    def check_saved(self) -> None:
        """Raise a ValueError if the parts of a file do not fit together."""
        super().check_saved()
        d = self.plan.n_columns
        if self.conditional.n_columns != d:
            raise ValueError(f"the regression does not have {d} columns")
        self.conditional.check_conditions(self.y_encoder.condition_dim)

    @property
    def _max_components(self) -> int:
        flow = self.conditional.residual_flow
        if flow is None:
            return 1
        return flow.initial_map.mixture.n_components

    def log_prob(self, X: NDArray[Any], y: EncodedY | None) -> Tensor:
        """log p(x | y) (n,) of rows X (n, d) given encoded y (n, l)."""
        continuous_y = _require_y(y)
        x = self._as_tensor(X)
        is_inside = self.support_transform.is_within_bounds(x)
        result = x.new_full((len(x),), -torch.inf)
        if bool(is_inside.any()):
            map_given_y = self._map_given(continuous_y.take(is_inside.cpu()))

            def log_prob_unbounded(unbounded: Tensor) -> Tensor:
                values = self.conditional.log_prob(unbounded.cpu().numpy(), map_given_y)
                return torch.from_numpy(values).to(self.device)

            result[is_inside] = log_prob(
                x[is_inside], self.support_transform, base=log_prob_unbounded
            )
        return result

    def to_noise(self, X: NDArray[Any], y: EncodedY | None) -> Tensor:
        """Rows X (n, d) given encoded y (n, l) as noise (n, d) of N(0, I)."""
        map_given_y = self._map_given(_require_y(y))
        unbounded = self._without_bounds(X)
        noise = self.conditional.to_noise(unbounded.cpu().numpy(), map_given_y)
        return torch.from_numpy(noise).to(self.device)

    def from_noise(self, noise: Tensor, y: EncodedY | None) -> Tensor:
        """Noise (n, d) of N(0, I) as rows (n, d) given encoded y (n, l)."""
        map_given_y = self._map_given(_require_y(y))
        noise = noise.to("cpu", torch.float64)
        unbounded = self.conditional.from_noise(noise.numpy(), map_given_y)
        return self.support_transform.inverse(
            torch.from_numpy(unbounded).to(self.device)
        )

    def _map_given(self, y: ContinuousY) -> AffineMapGivenY:
        """The map of rows to residuals at each encoded y (n, l)."""
        return self.conditional.map_given(y.values.cpu().numpy())

    def draw_conditions(self, n: int, seed: Seed) -> Conditions | None:
        """Raise a `DataError`: the model does not keep the y of its rows."""
        raise _missing_y()


FittedDensity = FittedClassDensities | FittedConditionalDensity


def _require_y(y: EncodedY | None) -> ContinuousY:
    """The continuous y; a `DataError` if the user has passed none."""
    if y is None:
        raise _missing_y()
    assert isinstance(y, ContinuousY), "a conditional density has a continuous y"
    return y


def _missing_y() -> DataError:
    """The error of a call without y."""
    hint = "pass the conditions, (n, l) or one row for all"
    return DataError("y is missing", hint)
