"""A fitted flow of vectors, and how to draw samples from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine.clouds import Cloud
from sliceflow.engine.compact import ModelStep
from sliceflow.engine.conditions import MixedCondition
from sliceflow.engine.flow import Noise, replay
from sliceflow.engine.frames import (
    MaxSliced,
    count_directions,
    frame_bytes,
    freeing_rotation_pools,
)
from sliceflow.engine.random import Seed
from sliceflow.errors import require_finite
from sliceflow.fields import Label
from sliceflow.models.limits import check_steps
from sliceflow.models.rows import Conditions, HasConditions
from sliceflow.neighbours.local import LocalSampler, LocalSettings
from sliceflow.spaces.vectors.plan import VectorPlan
from sliceflow.spaces.vectors.rows import Units, VectorRows, in_users_form

_CHUNK = 1 << 16  # offline samples per pass


@dataclass(frozen=True)
class VectorModel:
    """The maps of one flow."""

    seed: Seed  # of the flow: its frames are drawn again
    steps: tuple[ModelStep, ...]
    units: Units


@dataclass(frozen=True)
class FittedVectors(HasConditions):
    """The state of a fitted estimator."""

    plan: VectorPlan
    units: Units  # the units of the columns of all rows
    models: tuple[VectorModel, ...] = ()  # one flow, or one per class if ξ = ∞
    given: Conditions | None = None  # the conditions of the rows; None without y
    names: tuple[Label, ...] | None = (
        None  # of the columns of a DataFrame; None for other types
    )
    tensor: str = ""  # the kind of device of the user's tensor; empty for other types
    settings: tuple[LocalSettings, ...] = ()  # of `local`
    device: torch.device = field(default=torch.device("cpu"), metadata={"saved": False})
    # If conditions are local, all rows; with labels in y, the rows of each combination of them. A file
    # has the rows once, and `with_rows` puts them here.
    local: tuple[LocalSampler, ...] = field(default=(), metadata={"saved": False})

    @property
    def needs_rows(self) -> bool:
        return len(self.settings) > 0

    def with_rows(self, rows: VectorRows | None) -> FittedVectors:
        """The same with the rows that local conditions need."""
        if not self.needs_rows or self.local:
            return self
        if rows is None or rows.codes is None or rows.codes.dim() != 2:
            raise ValueError("local conditions need rows with a continuous condition")
        if rows.X.shape[1] != self.plan.n_columns:
            raise ValueError(
                f"the rows have {rows.X.shape[1]} columns, not {self.plan.n_columns}"
            )
        parts = self.local_parts(rows)
        if len(parts) != len(self.settings):
            raise ValueError(
                f"local has settings for {len(self.settings)} parts of {len(parts)}"
            )
        settings = [
            replace(own, projection=own.projection.cpu()) for own in self.settings
        ]
        local = tuple(
            LocalSampler(*part, own) for part, own in zip(parts, settings, strict=True)
        )
        for part in local:
            part.check()
        return replace(self, local=local)

    def local_parts(self, rows: VectorRows) -> list[tuple[Tensor, Tensor]]:
        """x and y of all rows; with labels in y, of each combination of them."""
        x = self.units.encode(rows.X).double()
        codes = rows.codes
        return (
            []
            if codes is None
            else [(x[at], own) for _, at, own in self._by_model(codes)]
        )

    def check(self) -> None:
        plan = self.plan
        d = self.plan.n_columns
        flows = {"local": 0, "per class": plan.n_conditions}.get(plan.method, 1)
        if len(self.models) != flows or self.needs_rows != (plan.method == "local"):
            raise ValueError(
                f"{len(self.models)} models do not fit the method {plan.method}"
            )
        if (width := self.n_conditions) != plan.n_conditions:
            raise ValueError(
                f"the condition has width {width}, the plan {plan.n_conditions}"
            )
        if self.names is not None and len(set(self.names)) != d:
            raise ValueError(f"there are {len(set(self.names))} names for {d} columns")
        if any(
            len(units.shift) != d
            for units in (self.units, *(m.units for m in self.models))
        ):
            raise ValueError(f"there are not units for {d} columns")
        for model in self.models:
            self._check_model(model)

    def _check_model(self, model: VectorModel) -> None:
        flow = self.plan.flow(model.seed, self.device)
        d = self.plan.n_columns
        units = model.units
        n_maps = [count_directions(stage.frame, d) for stage in flow.stages]
        dtype = self.plan.torch_dtype
        reach = check_steps(
            flow, model.steps, lambda i, k: n_maps[i], d, dtype, self.codes
        )
        for step in model.steps:
            fitted = isinstance(flow.stages[step.stage].frame, MaxSliced)
            if (0 if step.theta is None else step.theta.shape[1]) != (
                d if fitted else 0
            ):
                raise ValueError(
                    f"step {step.step} does not have directions in {d} columns"
                )
        linear = ~units.heavy_tailed  # `decode` clamps heavy-tailed columns
        end = reach * float(units.scale[linear].max(initial=0.0))
        end += float(np.abs(units.shift[linear]).max(initial=0.0))
        if not end < torch.finfo(dtype).max:
            fact = f"samples may not stay finite: scale and shift can take them to {end:.1e}"
            raise ValueError(f"{fact}; fit with rescaled columns, or in float64")

    def sample_bytes(self, n: int = 1) -> int:
        """Twice the samples, because chunks are joined, their conditions, and one chunk's work."""
        d = self.plan.n_columns
        width = self.plan.n_conditions
        itemsize = self.plan.torch_dtype.itemsize
        kinds = [stage.frame for stage in self.plan.stages()]
        drawn = max(
            (frame_bytes(kind, d, width, itemsize) for kind in kinds), default=0
        )
        chosen = 64 + 8 * width if width else 0
        return (
            n * (2 * d * itemsize + chosen) + 4 * min(_CHUNK, n) * d * itemsize + drawn
        )

    def columns(self, X: Any) -> Tensor:
        rows = np.asarray(X.detach().cpu() if isinstance(X, Tensor) else X)
        return self.units.encode(rows.astype(self.plan.dtype)).T

    @freeing_rotation_pools()
    def draw(self, n: int, codes: Tensor | None, seed: Seed) -> Any:
        if len(self.models) == 1:
            return self.in_form(self._replay(self.models[0], n, codes, seed))
        assert codes is not None
        out = torch.empty(
            (n, self.plan.n_columns), dtype=self.plan.torch_dtype, device=self.device
        )
        for c, at, own in self._by_model(codes):
            if self.local:
                self.local[c].warn_if_far(own, "y", stacklevel=4, indices=at)
                x = self.local[c].sample_each(
                    own, seed.child(c)
                )  # float64: keeps small spreads
                out[at] = self.decode(self.units, x.T).to(out)
            else:
                out[at] = self._replay(
                    self.models[c], len(at), None, seed.child("class", c)
                )
        return self.in_form(out)

    def _by_model(self, codes: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Each class that has its own model, the numbers of its codes, and what they are beside it."""
        labelled = isinstance(self.condition, MixedCondition)
        label = (
            codes
            if codes.dim() == 1
            else codes[:, 0]
            if labelled
            else torch.zeros(len(codes))
        )
        for c in torch.unique(label).long().tolist():
            at = torch.nonzero(label == c)[:, 0]
            yield c, at, codes[at, 1:] if labelled else codes[at]

    def _replay(
        self, model: VectorModel, n: int, codes: Tensor | None, seed: Seed
    ) -> Tensor:
        """n rows of one flow, in the user's units."""
        flow = self.plan.flow(model.seed, self.device)
        out = []
        for first in range(0, n, _CHUNK):
            count = min(_CHUNK, n - first)
            x = torch.empty((count, self.plan.n_columns), dtype=self.plan.torch_dtype)
            cloud = as_cloud(
                x, None if codes is None else codes[first : first + count], self.device
            )
            noise = Noise(seed.child("particles"), first)
            noise.child("start").fill(cloud.x)
            replay(flow, model.steps, cloud, noise)
            out.append(self.decode(model.units, cloud.x))
        return out[0] if len(out) == 1 else torch.cat(out)

    def decode(self, units: Units, x: Tensor) -> Tensor:
        """(d, n) in the engine's units -> (n, d) in the user's units."""
        rows = units.decode(x)
        require_finite(rows, "rescale X, drop outliers, or pass float64")
        return rows

    def in_form(self, rows: Tensor) -> Any:
        """Rows in the form of X: an array, a tensor or a DataFrame."""
        return in_users_form(rows, self.names, self.tensor, self.device)


def as_cloud(x: Tensor, codes: Tensor | None, device: torch.device) -> Cloud:
    """Rows (n, d) and codes in the engine's layout: columns, on the device."""
    return Cloud(
        x.to(device).T.contiguous(), None if codes is None else codes.to(device)
    )
