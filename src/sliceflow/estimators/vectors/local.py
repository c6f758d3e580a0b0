"""Local conditions: samples come from rows with a similar y, and nothing flows.

A `LocalSampler` of all rows draws at any continuous y. With labels in y, each
combination of labels has a sampler of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from sliceflow.base.checkpoints import Checkpoints
from sliceflow.base.protocols import FitResult, ParticleResult
from sliceflow.base.ranks import ONE_PROCESS, Communicator
from sliceflow.base.vector_rows import VectorArray, VectorRows
from sliceflow.devices import require_memory
from sliceflow.engine.encoded_y import EncodedY, LocalY, MixedY
from sliceflow.engine.events import FlowListener, History
from sliceflow.engine.proportions import balanced_indices
from sliceflow.engine.random import Seed
from sliceflow.errors import DataWarning
from sliceflow.estimators.vectors.fitted import BaseFittedVectors
from sliceflow.estimators.vectors.parameters import VectorParameters
from sliceflow.estimators.vectors.plan import BaseVectorPlan
from sliceflow.estimators.vectors.scaling import ColumnScaler
from sliceflow.neighbors.local import (
    LocalSampler,
    LocalSettings,
    fit_local_sampler,
)
from sliceflow.neighbors.regressions import MAX_COMPONENTS
from sliceflow.saved_types import Count

# The default number of particles. Each needs a neighborhood of its own, so there are
# fewer than in a flow.
LOCAL_PARTICLES = 200
# Parameters that only a flow reads, in the order of the constructor.
FLOW_PARAMETERS = (
    "n_steps",
    "frame",
    "transport",
    "amplifier",
    "entropy",
    "options",
)
# Bytes that the choice of settings takes.
_CHOICE_BYTES = 1 << 27


@dataclass(frozen=True, kw_only=True)
class LocalVectorPlan(BaseVectorPlan):
    """The plan of a fit with local conditions. It prints as a table.

    Attributes
    ----------
    n_local_neighbors : the number of rows in a neighborhood; None until the fit has
        chosen it
    distance_description : which columns of y the distances between neighbors see; None
        until the fit has chosen them
    """

    n_local_neighbors: Count | None = None
    distance_description: str | None = None

    @property
    def method(self) -> str:
        """The name of the method."""
        return "local"

    @property
    def nbytes(self) -> int:
        """Memory of the fit, without the input data."""
        n = self.n_rows
        d = self.n_columns
        n_values = 4 * n * d + 6 * n * self.condition_dim + 4 * self.n_particles * d
        return _CHOICE_BYTES + 8 * n_values

    @property
    def seconds(self) -> float:
        """Always 0: the time to choose settings is unknown before."""
        return 0.0

    def summary(self) -> list[tuple[str, object]]:
        """Names and values to print; those with the value "" are left out."""
        among = f"of {self.n_rows} rows"
        if self.condition_kind == "mixed":
            among = "rows with the same labels"
        n_nearest = self.n_local_neighbors or "auto"
        nearest = f"the {n_nearest} nearest {among}"
        return [
            *super().summary(),
            ("neighbors", f"{nearest}: likelihood of rows left out"),
            ("distances", f"exact, {self.distance_description or 'auto'}"),
            ("regressions", f"1 to {MAX_COMPONENTS} in a neighborhood, by BIC"),
            ("particles", str(self.n_particles)),
            ("model", "keeps all rows"),
        ]


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedLocalVectors(BaseFittedVectors):
    """The fitted model of vectors with local conditions.

    Attributes
    ----------
    settings : the settings of each of the `samplers`
    samplers : one sampler of all rows, or one for each combination of labels in y. A
        file does not have them: it has the rows once, and `with_rows` makes samplers
    """

    plan: LocalVectorPlan
    settings: tuple[LocalSettings, ...]
    samplers: tuple[LocalSampler, ...] = field(default=(), metadata={"saved": False})

    @property
    def needs_rows(self) -> bool:
        """True: samples are drawn from the rows."""
        return True

    def with_rows(self, rows: VectorRows | None) -> FittedLocalVectors:
        """The model of a file, completed by samplers of its rows."""
        if rows is None or not isinstance(rows.encoded_y, LocalY):
            raise ValueError("local conditions need rows with a continuous condition")
        n_columns = rows.X.shape[1]
        if n_columns != self.plan.n_columns:
            raise ValueError(
                f"the rows have {n_columns} columns, not {self.plan.n_columns}"
            )
        parts = _parts(rows, self.scaler)
        if len(parts) != len(self.settings):
            n_settings = len(self.settings)
            raise ValueError(
                f"local has settings for {n_settings} parts of {len(parts)}"
            )
        samplers = []
        for (x, y), settings in zip(parts, self.settings, strict=True):
            on_cpu = replace(settings, projection=settings.projection.cpu())
            sampler = LocalSampler(x, y, on_cpu)
            sampler.check_saved()
            samplers.append(sampler)
        return replace(self, samplers=tuple(samplers))

    def sample(self, n: int, y: EncodedY | None, seed: Seed) -> VectorArray:
        """n samples near the rows with conditions similar to `y`."""
        assert isinstance(y, LocalY), "local conditions have a continuous y"
        shape = (n, self.plan.n_columns)
        out = torch.empty(shape, dtype=self.plan.torch_dtype, device=self.device)
        for c, indices, continuous in _iter_labels(y):
            sampler = self.samplers[c]
            sampler.warn_if_far(continuous, "y", indices)
            x = sampler.sample_each(continuous, seed.child(c))  # float64: small spreads
            out[indices] = self.rows_in_user_units(x.T).to(out)
        return self.in_user_form(out)


def _iter_labels(
    y: LocalY,
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Each combination of labels, the rows that have it, and their continuous y."""
    labels = torch.zeros(len(y), dtype=torch.int64)
    continuous = y.values
    if isinstance(y, MixedY):
        labels = y.class_indices
        continuous = y.continuous
    for c in torch.unique(labels).tolist():
        indices = torch.nonzero(labels == c)[:, 0]
        yield c, indices, continuous[indices]


def _parts(rows: VectorRows, scaler: ColumnScaler) -> list[tuple[Tensor, Tensor]]:
    """x and continuous y: of all rows, or for each combination of labels in y."""
    assert isinstance(rows.encoded_y, LocalY), "local conditions have a continuous y"
    x = scaler.transform(rows.X).double()
    parts = _iter_labels(rows.encoded_y)
    return [(x[indices], y) for _, indices, y in parts]


@dataclass(frozen=True, eq=False)
class PlannedLocalVectorFit:
    """A planned fit of local conditions, which moves nothing: its model is the rows.

    Attributes
    ----------
    plan : what the fit will do
    rows : the user's rows, checked
    seed : the seed of the fit
    device : the device of the samples
    ignored : the names of parameters that the user has set, and that only a flow reads
    samplers : as in `FittedLocalVectors`; empty until the fit is tuned
    ranks : always one process, which has all rows
    """

    plan: LocalVectorPlan
    rows: VectorRows
    seed: Seed
    device: torch.device
    ignored: tuple[str, ...] = ()
    samplers: tuple[LocalSampler, ...] = ()
    ranks: Communicator = ONE_PROCESS

    @classmethod
    def for_rows(
        cls,
        rows: VectorRows,
        parameters: VectorParameters,
        seed: Seed,
        device: torch.device,
    ) -> PlannedLocalVectorFit:
        """A fit that keeps these rows, if there is memory for it."""
        conditions = rows.conditions
        assert conditions is not None, "local conditions need y"
        n, d = rows.X.shape
        n_particles = LOCAL_PARTICLES
        if parameters.n_particles is not None:
            n_particles = int(parameters.n_particles)
        plan = LocalVectorPlan(
            device=str(device),
            n_rows=n,
            n_columns=d,
            dtype=rows.dtype,
            n_particles=n_particles,
            condition_kind=conditions.encoder.kind,
            condition_dim=conditions.encoder.condition_dim,
            standardize=parameters.standardize,
        )
        what = f"{n} rows of {d} columns, kept for conditions, need"
        require_memory(plan.nbytes, device, what, "keep fewer")
        return cls(plan, rows, seed, device, parameters.changed(FLOW_PARAMETERS))

    def with_checkpoints(self, checkpoints: Checkpoints) -> PlannedLocalVectorFit:
        """The planned fit itself: there are no steps to resume."""
        return self

    def run(self, listeners: Sequence[FlowListener]) -> FitResult[FittedLocalVectors]:
        """Choose the settings of the samplers, and draw the particles.

        Particles are samples at the conditions of rows, each of which is used equally
        often. There are no steps, so listeners get no events.
        """
        return self.tune(listeners)._run_tuned()

    def tune(self, listeners: Sequence[FlowListener] = ()) -> PlannedLocalVectorFit:
        """This fit with samplers under which held-out rows are likeliest.

        Trials choose the settings of the samplers, once. Nothing else is fitted: the
        rows are the model. Listeners get no events.
        """
        if self.samplers:
            return self
        parts = _parts(self.rows, self._scaler)
        samplers = tuple(fit_local_sampler(x, y) for x, y in parts)
        largest = max(samplers, key=lambda sampler: len(sampler.x))
        plan = replace(
            self.plan,
            n_local_neighbors=largest.settings.n_neighbors,
            distance_description=largest.description,
        )
        return replace(self, plan=plan, samplers=samplers)

    def _run_tuned(self) -> FitResult[FittedLocalVectors]:
        """Draw the particles, and return them with the fitted model."""
        fitted = self._fitted_vectors()
        conditions = self.rows.conditions
        assert conditions is not None, "local conditions need y"
        indices = balanced_indices(
            self.plan.n_rows, self.plan.n_particles, self.seed.child("conditions")
        )
        particle_conditions = conditions.take(indices)
        y = particle_conditions.encoded_y
        X = fitted.sample(len(y), y, self.seed.child("particles"))
        no_steps = History().as_columns()
        particles = ParticleResult(X, particle_conditions.y)
        return FitResult(fitted, no_steps, self._warning(), particles)

    def _warning(self) -> DataWarning | None:
        """A warning of parameters that do nothing here, if the user has set any."""
        if not self.ignored:
            return None
        have = "has" if len(self.ignored) == 1 else "have"
        return DataWarning(
            "y is continuous, so samples come from rows with a similar y and nothing "
            f"flows: {', '.join(self.ignored)} {have} no effect",
            "leave out what has none, or set condition_mode='joint'",
        )

    @cached_property
    def _scaler(self) -> ColumnScaler:
        """The units in which distances between rows are measured."""
        return ColumnScaler.from_data(self.rows.X, self.plan.standardize)

    def _fitted_vectors(self) -> FittedLocalVectors:
        """The fitted model of a tuned fit."""
        rows = self.rows
        return FittedLocalVectors(
            plan=self.plan,
            scaler=self._scaler,
            conditions=rows.conditions,
            names=rows.names,
            tensor_device=rows.tensor_device,
            settings=tuple(sampler.settings for sampler in self.samplers),
            samplers=self.samplers,
            device=self.device,
        )
