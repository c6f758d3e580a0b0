"""The fitted models of a density: of classes, or given a continuous y.

Users' y goes into the methods of `BaseFittedDensity`. They encode it, as `ClassIndices`
or `ContinuousY`, for the methods of the two states that compute.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sliceflow.base.estimator import require_sample_memory
from sliceflow.base.rows import Conditions
from sliceflow.base.vector_rows import VectorArray, in_users_form
from sliceflow.engine.encoded_y import ClassIndices, ContinuousY
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

# The encoded y of a fitted model.
Y = TypeVar("Y", ClassIndices, ContinuousY)


@dataclass(frozen=True, kw_only=True, eq=False)
class BaseFittedDensity(ABC, Generic[Y]):
    """Base class of both fitted models, with the methods that take the user's y.

    These do what the methods of `SlicedDensity` of the same names do. Their y is one
    condition for all rows, one for each row, or None.
    """

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

    def score_samples(self, X: NDArray[Any], y: Any) -> Tensor:
        """log p(x | y) (n,) of rows X (n, d); log p(x) without y."""
        return self._log_prob(X, self._encode_for_rows(y, len(X)))

    def transform(self, X: NDArray[Any], y: Any) -> Tensor:
        """Rows X (n, d) as noise (n, d) of N(0, I)."""
        return self._to_noise(X, self._encode_for_rows(y, len(X)))

    def inverse_transform(self, noise: Tensor, y: Any) -> VectorArray:
        """Noise (n, d) of N(0, I) as rows (n, d) in the user's form."""
        encoded_y = self._encode_for_rows(y, len(noise))
        return self._in_users_form(self._from_noise(noise, encoded_y))

    def sample(
        self, n: int, y: Any, seed: Seed
    ) -> tuple[VectorArray, NDArray[Any] | None]:
        """Rows (n, d) in the user's form, and their y as the user writes it, if any."""
        require_sample_memory(self, n, self.device)  # before y is allocated
        if y is None:
            encoded_y, users_y = self._draw_y(n, seed.child("conditions"))
        else:
            # n = 1, the default of users, means as many as y has.
            asked_n = n if n > 1 else None
            encoded_y, users_y = self._encode_y(y, asked_n, "samples")
            n = len(encoded_y)
            require_sample_memory(self, n, self.device)
        noise = seed.child("noise").normal(n, self.plan.n_columns)
        rows = self._in_users_form(self._from_noise(noise, encoded_y))
        return rows, users_y

    def _encode_for_rows(self, y: Any, n: int) -> Y | None:
        """The user's y of n rows, encoded; None without y."""
        if y is None:
            return None
        encoded_y, _ = self._encode_y(y, n, "rows")
        return encoded_y

    @abstractmethod
    def _encode_y(self, y: Any, n: int | None, noun: str) -> tuple[Y, NDArray[Any]]:
        """The user's y of n rows, encoded, and as the user writes it for each row.

        `Conditions.for_model` has the same parameters.
        """

    @abstractmethod
    def _draw_y(self, n: int, seed: Seed) -> tuple[Y, NDArray[Any] | None]:
        """Draw the y of n samples, in the proportions of the fitted rows.

        Returns it encoded, and as the user writes it: None if the model has no y.
        """

    @abstractmethod
    def _log_prob(self, X: NDArray[Any], y: Y | None) -> Tensor:
        """log p(x | y) (n,) of rows X (n, d); log p(x) without y."""

    @abstractmethod
    def _to_noise(self, X: NDArray[Any], y: Y | None) -> Tensor:
        """Rows X (n, d) as noise (n, d) of N(0, I)."""

    @abstractmethod
    def _from_noise(self, noise: Tensor, y: Y | None) -> Tensor:
        """Noise (n, d) of N(0, I) as rows (n, d)."""

    def sample_bytes(self, n: int = 1) -> int:
        """Memory to draw n samples."""
        n_values = n * self.plan.n_columns
        n_of_mixture = min(n_values * self._max_components, MAX_VALUES_PER_CHUNK)
        return 8 * (n_values * ARRAYS_PER_STEP + n_of_mixture)

    @property
    @abstractmethod
    def _max_components(self) -> int:
        """The components of the largest mixture."""

    def _in_users_form(self, rows: Tensor) -> VectorArray:
        """Rows (n, d) in the form and the dtype of the user's X."""
        rows = rows.to(self.plan.torch_dtype)
        check_finite(rows, "fit float64, or rescale the rows")
        return in_users_form(rows, self.names, self.tensor_device, self.device)

    def _as_tensor(self, X: NDArray[Any]) -> Tensor:
        """Rows X (n, d) of the user in float64, on the device of the model."""
        return torch.from_numpy(X.astype(np.float64)).to(self.device)

    def _without_bounds(self, X: NDArray[Any]) -> Tensor:
        """Rows X (n, d) of the user in columns without bounds; all must be inside."""
        x = self._as_tensor(X)
        outside = ~self.support_transform.contains(x)
        if bool(outside.any()):
            row = int(outside.double().argmax())
            raise DataError("it is not within the bounds", "drop the row", row=row)
        unbounded, _ = self.support_transform.call_and_ladj(x)
        return unbounded


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedClassDensities(BaseFittedDensity[ClassIndices]):
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

    def _encode_y(
        self, y: Any, n: int | None, noun: str
    ) -> tuple[ClassIndices, NDArray[Any]]:
        conditions = Conditions.for_model(self.y_encoder, y, n, noun)
        encoded_y = conditions.encoded_y
        assert isinstance(encoded_y, ClassIndices), "as its encoder makes it"
        return encoded_y, conditions.y

    @property
    def _max_components(self) -> int:
        return max(flow.initial_map.mixture.n_components for flow in self.class_flows)

    @property
    def log_priors(self) -> Tensor:
        """The logarithms of the shares of the classes, (C,)."""
        sizes = [each.n_rows for each in self.plan.classes]
        shares = torch.tensor(sizes, dtype=torch.float64, device=self.device)
        return (shares / shares.sum()).log()

    def _log_prob(self, X: NDArray[Any], y: ClassIndices | None) -> Tensor:
        """log p(x | y) (n,) of rows X (n, d) of classes y (n,); log p(x) without y."""
        if y is None:
            return self._log_joint(X).logsumexp(0)
        return self._log_probs(X).gather(0, y.values.to(self.device)[None])[0]

    def _log_joint(self, X: NDArray[Any]) -> Tensor:
        """log p(x, class) of rows X (n, d) for each class: (C, n)."""
        return self._log_probs(X) + self.log_priors[:, None]

    def _log_probs(self, X: NDArray[Any]) -> Tensor:
        """log p(x | class) of rows X (n, d) for each class: (C, n)."""
        x = self._as_tensor(X)
        inside = self.support_transform.contains(x)
        result = x.new_full((len(self.class_flows), len(x)), -torch.inf)
        if bool(inside.any()):
            result[:, inside] = log_prob(
                x[inside], self.support_transform, base=self._log_probs_unbounded
            )
        return result

    def _log_probs_unbounded(self, unbounded: Tensor) -> Tensor:
        """log p(x | class) of rows (n, d) in columns without bounds: (C, n)."""
        return torch.stack([flow.log_prob(unbounded) for flow in self.class_flows])

    def _to_noise(self, X: NDArray[Any], y: ClassIndices | None) -> Tensor:
        """Rows X (n, d) of classes y (n,) as noise (n, d) of N(0, I).

        Without y, each row takes its likeliest class.
        """
        if y is None:
            y = ClassIndices(self._log_joint(X).argmax(0))
        unbounded = self._without_bounds(X)
        return self._map_by_class(unbounded, y, Gaussianization.to_noise)

    def _from_noise(self, noise: Tensor, y: ClassIndices | None) -> Tensor:
        """Noise (n, d) of N(0, I) as rows (n, d) of classes y (n,)."""
        if y is None:
            if self.y_encoder is not None:
                hint = "pass y, one label for each row"
                raise DataError("the model has classes", hint)
            y = ClassIndices(torch.zeros(len(noise), dtype=torch.int64))
        noise = noise.to(self.device, torch.float64)
        unbounded = self._map_by_class(noise, y, Gaussianization.inverse)
        return self.support_transform.inverse(unbounded)

    def _map_by_class(
        self,
        rows: Tensor,
        y: ClassIndices,
        map_rows: Callable[[Gaussianization, Tensor], Tensor],
    ) -> Tensor:
        """Rows (n, d) in their order, each mapped by the density of its class."""
        result = torch.empty_like(rows)
        class_indices = y.values.to(rows.device)
        for c, flow in enumerate(self.class_flows):
            of_class = class_indices == c
            if bool(of_class.any()):
                result[of_class] = map_rows(flow, rows[of_class])
        return result

    def _draw_y(self, n: int, seed: Seed) -> tuple[ClassIndices, NDArray[Any] | None]:
        """n class indices in the proportions of the data, and their labels."""
        if self.y_encoder is None:
            return ClassIndices(torch.zeros(n, dtype=torch.int64)), None
        sizes = torch.tensor([each.n_rows for each in self.plan.classes])
        y_of_rows = ClassIndices(torch.arange(len(sizes)).repeat_interleave(sizes))
        drawn = y_of_rows.take(proportional_indices(y_of_rows, n, seed))
        return drawn, self.y_encoder.decode(drawn)


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedConditionalDensity(BaseFittedDensity[ContinuousY]):
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

    def _encode_y(
        self, y: Any, n: int | None, noun: str
    ) -> tuple[ContinuousY, NDArray[Any]]:
        conditions = Conditions.for_model(self.y_encoder, y, n, noun)
        encoded_y = conditions.encoded_y
        assert isinstance(encoded_y, ContinuousY), "as its encoder makes it"
        return encoded_y, conditions.y

    @property
    def _max_components(self) -> int:
        flow = self.conditional.residual_flow
        if flow is None:
            return 1
        return flow.initial_map.mixture.n_components

    def _log_prob(self, X: NDArray[Any], y: ContinuousY | None) -> Tensor:
        """log p(x | y) (n,) of rows X (n, d) given encoded y (n, l)."""
        y = _require_y(y)
        x = self._as_tensor(X)
        inside = self.support_transform.contains(x)
        result = x.new_full((len(x),), -torch.inf)
        if bool(inside.any()):
            map_given_y = self._map_given(y.take(inside.cpu()))

            def log_prob_unbounded(unbounded: Tensor) -> Tensor:
                values = self.conditional.log_prob(unbounded.cpu().numpy(), map_given_y)
                return torch.from_numpy(values).to(self.device)

            result[inside] = log_prob(
                x[inside], self.support_transform, base=log_prob_unbounded
            )
        return result

    def _to_noise(self, X: NDArray[Any], y: ContinuousY | None) -> Tensor:
        """Rows X (n, d) given encoded y (n, l) as noise (n, d) of N(0, I)."""
        map_given_y = self._map_given(_require_y(y))
        unbounded = self._without_bounds(X)
        noise = self.conditional.to_noise(unbounded.cpu().numpy(), map_given_y)
        return torch.from_numpy(noise).to(self.device)

    def _from_noise(self, noise: Tensor, y: ContinuousY | None) -> Tensor:
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

    def _draw_y(self, n: int, seed: Seed) -> tuple[ContinuousY, NDArray[Any] | None]:
        """Raise a `DataError`: y has no proportions that could be drawn from."""
        raise _missing_y()


FittedDensity = FittedClassDensities | FittedConditionalDensity


def _require_y(y: ContinuousY | None) -> ContinuousY:
    """y itself, or a `DataError` if it is None."""
    if y is None:
        raise _missing_y()
    return y


def _missing_y() -> DataError:
    """The error of a call without y."""
    hint = "pass the conditions, (n, l) or one row for all"
    return DataError("y is missing", hint)
