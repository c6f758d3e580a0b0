"""The fitted states of a density: of classes, or given y that is numbers.

Both have the same methods. They take y as their `y_encoder` makes it: class indices
(n,), standardised numbers (n, l), or None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine.allocation import stratified_indices
from sliceflow.engine.conditions import ClassEncoder, ContinuousEncoder
from sliceflow.engine.encoded_y import ClassIndices, EncodedY
from sliceflow.engine.random import Seed
from sliceflow.errors import DataError
from sliceflow.models.vector_rows import in_users_form
from sliceflow.saved_types import Label
from sliceflow.spaces.density.conditional import ConditionalDensity
from sliceflow.spaces.density.gaussianization import Gaussianization
from sliceflow.spaces.density.maps import log_density
from sliceflow.spaces.density.mixture import MAX_VALUES
from sliceflow.spaces.density.plan import ARRAYS_PER_STEP, DensityPlan
from sliceflow.spaces.density.regression import ConditionalMoments
from sliceflow.spaces.density.support import SupportTransform


@dataclass(frozen=True, kw_only=True)
class BaseFittedDensity:
    """Base class of both fitted states."""

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

    def sample_bytes(self, n: int = 1) -> int:
        """Memory to draw n samples."""
        sizes = [plan.n_components for plan in self.plan.classes]
        n_values = n * self.plan.n_columns
        n_of_mixture = min(n_values * max(sizes, default=1), MAX_VALUES)
        return 8 * (n_values * ARRAYS_PER_STEP + n_of_mixture)

    def in_users_form(self, rows: Tensor) -> Any:
        """Rows (n, d) in the form and the dtype of the user's X."""
        rows = rows.to(self.plan.torch_dtype)
        return in_users_form(rows, self.names, self.tensor_device, self.device)

    def _as_tensor(self, X: np.ndarray) -> Tensor:
        """Rows X (n, d) of the user in float64, on the device of the model."""
        return torch.from_numpy(X.astype(np.float64)).to(self.device)

    def _without_bounds(self, X: np.ndarray) -> Tensor:
        """Rows X (n, d) of the user in columns without bounds; all must be inside."""
        x = self._as_tensor(X)
        outside = ~self.support_transform.contains(x)
        if bool(outside.any()):
            row = int(outside.double().argmax())
            raise DataError("it is not within the bounds", "drop the row", row=row)
        unbounded, _ = self.support_transform.call_and_ladj(x)
        return unbounded


@dataclass(frozen=True, kw_only=True)
class FittedClassDensities(BaseFittedDensity):
    """A density of each class, or one of all rows without y."""

    densities: tuple[Gaussianization, ...]  # of each class, or one of all rows
    y_encoder: ClassEncoder | None = None  # None without y

    def check_saved(self) -> None:
        """Raise a ValueError if the parts of a file do not fit together."""
        super().check_saved()
        n_densities = 1 if self.y_encoder is None else self.y_encoder.n_classes
        if len(self.densities) != n_densities or len(self.plan.classes) != n_densities:
            raise ValueError("there is not one density for each class")
        d = self.plan.n_columns
        if not all(density.has_columns(d) for density in self.densities):
            raise ValueError(f"a density does not have {d} columns")

    @property
    def log_priors(self) -> Tensor:
        """The logarithms of the shares of the classes, (C,)."""
        sizes = [plan.n_rows for plan in self.plan.classes]
        shares = torch.tensor(sizes, dtype=torch.float64, device=self.device)
        return (shares / shares.sum()).log()

    def log_density(self, X: np.ndarray, y: EncodedY | None) -> Tensor:
        """log p(x | y) (n,) of rows X (n, d) of classes y (n,); log p(x) without y."""
        if y is None:
            return self._log_joint(X).logsumexp(0)
        return self._log_densities(X).gather(0, y.values.to(self.device)[None])[0]

    def _log_joint(self, X: np.ndarray) -> Tensor:
        """log p(x, class) of rows X (n, d) for each class: (C, n)."""
        return self._log_densities(X) + self.log_priors[:, None]

    def _log_densities(self, X: np.ndarray) -> Tensor:
        """log p(x | class) of rows X (n, d) for each class: (C, n)."""
        x = self._as_tensor(X)
        inside = self.support_transform.contains(x)
        result = x.new_full((len(self.densities), len(x)), -torch.inf)
        if bool(inside.any()):
            result[:, inside] = log_density(
                x[inside], self.support_transform, base=self._log_densities_unbounded
            )
        return result

    def _log_densities_unbounded(self, unbounded: Tensor) -> Tensor:
        """log p(x | class) of rows (n, d) in columns without bounds: (C, n)."""
        return torch.stack(
            [density.log_density(unbounded) for density in self.densities]
        )

    def to_noise(self, X: np.ndarray, y: EncodedY | None) -> Tensor:
        """Rows X (n, d) of classes y (n,) as noise (n, d) of N(0, I).

        Without y, each row takes its likeliest class.
        """
        if y is None:
            y = ClassIndices(self._log_joint(X).argmax(0))
        unbounded = self._without_bounds(X)
        return self._map_by_class(unbounded, y, Gaussianization.__call__)

    def from_noise(self, noise: Tensor, y: EncodedY | None) -> Tensor:
        """Noise (n, d) of N(0, I) as rows (n, d) of classes y (n,)."""
        if y is None:
            if self.y_encoder is not None:
                hint = "pass y, one label for each row"
                raise DataError("the model has classes", hint)
            y = ClassIndices(torch.zeros(len(noise), dtype=torch.int64))
        noise = noise.to(self.device, torch.float64)
        unbounded = self._map_by_class(noise, y, Gaussianization.inv)
        return self.support_transform.inv(unbounded)

    def _map_by_class(
        self,
        rows: Tensor,
        y: EncodedY,
        map_rows: Callable[[Gaussianization, Tensor], Tensor],
    ) -> Tensor:
        """Rows (n, d), those of each class mapped by its density, in their order."""
        result = torch.empty_like(rows)
        class_indices = y.values.to(rows.device)
        for c, density in enumerate(self.densities):
            of_class = class_indices == c
            if bool(of_class.any()):
                result[of_class] = map_rows(density, rows[of_class])
        return result

    def draw_y(self, n: int, seed: Seed) -> EncodedY:
        """n class indices in the proportions of the data."""
        if self.y_encoder is None:
            return ClassIndices(torch.zeros(n, dtype=torch.int64))
        sizes = torch.tensor([plan.n_rows for plan in self.plan.classes])
        y_of_rows = ClassIndices(torch.arange(len(sizes)).repeat_interleave(sizes))
        return y_of_rows.take(stratified_indices(y_of_rows, n, seed))


@dataclass(frozen=True, kw_only=True)
class FittedConditionalDensity(BaseFittedDensity):
    """A density given y that is numbers. Without y it has no density and no samples."""

    conditional: ConditionalDensity  # of rows in columns without bounds, on the CPU
    y_encoder: ContinuousEncoder

    def check_saved(self) -> None:
        """Raise a ValueError if the parts of a file do not fit together."""
        super().check_saved()
        d = self.plan.n_columns
        if self.conditional.n_columns != d:
            raise ValueError(f"the regression does not have {d} columns")
        self.conditional.check_conditions(self.y_encoder.condition_dim)

    def log_density(self, X: np.ndarray, y: EncodedY | None) -> Tensor:
        """log p(x | y) (n,) of rows X (n, d) given encoded y (n, l)."""
        y = _required(y)
        x = self._as_tensor(X)
        inside = self.support_transform.contains(x)
        result = x.new_full((len(x),), -torch.inf)
        if bool(inside.any()):
            moments = self._moments(y.take(inside.cpu()))

            def log_density_unbounded(unbounded: Tensor) -> Tensor:
                values = self.conditional.log_density(unbounded.cpu().numpy(), moments)
                return torch.from_numpy(values).to(self.device)

            result[inside] = log_density(
                x[inside], self.support_transform, base=log_density_unbounded
            )
        return result

    def to_noise(self, X: np.ndarray, y: EncodedY | None) -> Tensor:
        """Rows X (n, d) given encoded y (n, l) as noise (n, d) of N(0, I)."""
        moments = self._moments(_required(y))
        unbounded = self._without_bounds(X)
        noise = self.conditional.to_noise(unbounded.cpu().numpy(), moments)
        return torch.from_numpy(noise).to(self.device)

    def from_noise(self, noise: Tensor, y: EncodedY | None) -> Tensor:
        """Noise (n, d) of N(0, I) as rows (n, d) given encoded y (n, l)."""
        moments = self._moments(_required(y))
        noise = noise.to("cpu", torch.float64)
        unbounded = self.conditional.from_noise(noise.numpy(), moments)
        return self.support_transform.inv(torch.from_numpy(unbounded).to(self.device))

    def _moments(self, y: EncodedY) -> ConditionalMoments:
        return self.conditional.moments(y.values.cpu().numpy())

    def draw_y(self, n: int, seed: Seed) -> EncodedY:
        """Raise a `DataError`: y has no proportions that could be drawn from."""
        raise _missing_y()


FittedDensity = FittedClassDensities | FittedConditionalDensity


def _required(y: EncodedY | None) -> EncodedY:
    """y itself, or a `DataError` if it is None."""
    if y is None:
        raise _missing_y()
    return y


def _missing_y() -> DataError:
    hint = "pass the conditions, (n, l) or one row for all"
    return DataError("y is missing", hint)
