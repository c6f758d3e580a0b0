"""The plan of a fit of vectors: all parameters, and what "auto" means for the rows.

One choice is made later: how far rows are spread takes a search for neighbors. A fit
begins with `PlannedVectorFit.tune`, which makes this choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sliceflow.base.fit_plan import FitPlan
from sliceflow.base.particle_allocation import ParticleAllocation
from sliceflow.base.presets import N_DIRECTIONS
from sliceflow.base.rows import Conditions
from sliceflow.base.vector_rows import VectorRows
from sliceflow.devices import max_projection_bytes, require_memory
from sliceflow.engine import frames
from sliceflow.engine.encoded_y import (
    ClassIndices,
    ContinuousY,
    FlowY,
    SeparateClassIndices,
)
from sliceflow.engine.flow import FlowSpec, MapSharing, resolve_map_sharing
from sliceflow.engine.frames import FrameKind, StorableFrameKind
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.transports import (
    AutoTransport,
    HistogramTransport,
    PaperTransport,
    SortedTransport,
    StorableTransport,
    resolve_transport,
)
from sliceflow.engine.y_encoders import (
    ClassEncoder,
    ConditionEncoder,
    MixedEncoder,
)
from sliceflow.errors import DataError, ParameterError
from sliceflow.estimators.vectors import costs
from sliceflow.estimators.vectors.parameters import (
    FRAME_KINDS,
    FrameName,
    VectorOptions,
    VectorParameters,
)
from sliceflow.saved_types import Between, Count

ConditionKind = Literal["none", "labels", "continuous", "mixed"]
# What a fit does with y. A flow shares its maps among conditions, separates the maps of
# classes, or ignores y. "local" draws samples near the y that is asked for: nothing
# flows.
UseOfY = MapSharing | Literal["local"]

# Directions for each column with the preset "paper". The paper's 10,000 directions are
# for hundreds of columns.
PAPER_DIRECTIONS_PER_COLUMN = 64

# The most steps of a flow: a limit of files, which is days of work for a few rows.
MAX_STEPS = 1 << 24

# The most fresh particles to which the model's axis steps are fitted, unless the flow
# moves more particles. With 65,536, 1 % quantiles have an error of a few per cent.
MAX_FRESH_PARTICLES = 1 << 16
# The most projections of fresh particles: with many directions there are fewer fresh
# particles.
MAX_FRESH_PROJECTIONS = 1 << 18
# A user's kind of frame makes one for this many rows, which shows whether it sees y.
# Even a kind that is fitted to the rows needs no more to make a frame.
MAX_TRIED_ROWS = 1000

# With fewer rows, "auto" does not smooth, because neighbors would say little.
MIN_SMOOTHED_ROWS = 10
# With more rows, "auto" does not smooth: they are hardly copied, and the search for
# neighbors would take longer than the flow. The search is slower in more columns.
MAX_SMOOTHED_ROWS = 50_000
MAX_SMOOTHED_ROWS_OF_MANY_COLUMNS = 5_000
FEW_COLUMNS = 4

# A rare class that shares its maps with others should have this many knots of a map,
# unless a map would then need more than the maximum.
KNOTS_OF_RAREST_CLASS = 32
MAX_SHARED_MAP_KNOTS = 4096

# The transports that the names "histogram" and "auto" stand for.
DEFAULT_HISTOGRAM_TRANSPORT = HistogramTransport()
DEFAULT_AUTO_TRANSPORT = AutoTransport()
# Axis steps sort, because bins would blur the values of discrete columns.
AXIS_TRANSPORT = SortedTransport()

NonNegative = Annotated[float, Between(0)]


@dataclass(frozen=True, kw_only=True)
class BaseVectorPlan(FitPlan):
    """Base class of all plans of vectors, with a flow or with local conditions.

    Attributes
    ----------
    n_rows : the number of rows of all ranks
    n_columns : d, the number of columns
    dtype : the type of the numbers in X
    n_particles : the number of particles that the user gets, as `particles_`
    condition_kind : the kind of y
    condition_dim : the number of classes, or of continuous columns of y; 0 without y
    standardize : whether columns are scaled to mean 0 and standard deviation 1
    """

    n_rows: Count
    n_columns: Annotated[int, Between(1, 1 << 24)]
    dtype: Literal["float32", "float64"]
    n_particles: Count
    condition_kind: ConditionKind
    condition_dim: Count
    standardize: bool

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of the numbers."""
        return torch.float32 if self.dtype == "float32" else torch.float64

    def summary(self) -> list[tuple[str, object]]:
        """Names and values to print; those with the value "" are left out."""
        data = f"{self.n_rows} rows of {self.n_columns} columns, {self.dtype}"
        return [("data", data), ("condition", self._condition_in_words())]

    def _condition_in_words(self) -> str:
        n = self.condition_dim
        if self.condition_kind == "labels":
            return f"{n} classes"
        if self.condition_kind == "continuous":
            return f"{n} columns"
        if self.condition_kind == "mixed":
            return f"labels, {n} columns"
        return ""


@dataclass(frozen=True, kw_only=True)
class VectorPlan(BaseVectorPlan):
    """The plan of a flow of vectors. It prints as a table.

    Attributes
    ----------
    n_moved_particles : the number of particles that the flow moves: the particles that
        the user gets, and more for better maps
    n_fresh_particles : the number of new particles to which the model's axis steps are
        fitted
    amplifier : ξ; 0 without conditions
    frame_kind : makes the frames of the flow
    transport : fits the maps of the flow
    n_steps : the number of steps of the flow, without axis steps
    entropy : λ of the entropy-regularized flow
    options : the options of the estimator
    n_flow_knots : the number of knots that the model keeps of each map of the flow
    bandwidth : how far rows are spread. None if "auto" will choose it when the fit
        begins: the plan of a fitted model has the number
    smoothing_reason : why "auto" chose this; empty if the user set the option
    draws_per_row : the number of data for each row: draws along its neighbors, or the
        row itself
    batch_size : the most particles, and the most data, of a step of the flow. None
        takes all of them, as several ranks always do, because their counts add up
    """

    n_moved_particles: Count
    n_fresh_particles: Count
    amplifier: Annotated[float, Between(0, math.inf)]
    frame_kind: StorableFrameKind
    transport: StorableTransport
    n_steps: Annotated[int, Between(0, MAX_STEPS)]
    entropy: NonNegative
    options: VectorOptions
    n_flow_knots: Count
    bandwidth: NonNegative | None = 0.0
    smoothing_reason: str = ""
    draws_per_row: Count = 1
    batch_size: Count | None = None

    @property
    def map_sharing(self) -> MapSharing:
        """What the flow does with y."""
        return resolve_map_sharing(self.amplifier, self.condition_dim)

    @property
    def n_separate_classes(self) -> int:
        """The number of classes with separate maps; 0 if all rows share maps."""
        if self.condition_kind == "labels" and self.map_sharing == "separate":
            return self.condition_dim
        return 0

    @property
    def method(self) -> str:
        """The name of the method: SWF, CSWF with its ξ, or per class."""
        if self.map_sharing == "unconditional":
            return "SWF"
        if self.n_separate_classes:
            return "per class"
        return f"CSWF ξ={self.amplifier:g}"

    @property
    def step_size(self) -> float:
        """The step size of the first steps of the flow; see `VectorOptions.taper`."""
        if isinstance(self.frame_kind, frames.Random):
            return frames.largest_step_size(
                self.frame_kind.n_directions, self.n_columns
            )
        return 1.0

    def stages(self) -> list[Stage]:
        """The stages: one of the frame, then axis steps that make each column exact."""
        options = self.options
        stages = []
        if self.n_steps:
            stages.append(
                Stage(
                    "flow",
                    self.frame_kind,
                    self.n_steps,
                    self.transport,
                    self.step_size,
                    max_knots=self.n_flow_knots,
                    taper=options.taper,
                )
            )
        if options.n_axis_steps:
            stages.append(
                Stage(
                    "axis",
                    frames.Axis(),
                    options.n_axis_steps,
                    AXIS_TRANSPORT,
                    max_knots=options.n_knots,
                    is_axis_stage=True,
                )
            )
        return stages

    @property
    def flow_stage_indices(self) -> range:
        """The indices of the stages before the axis steps."""
        return range(1 if self.n_steps else 0)

    @property
    def axis_stage_indices(self) -> range:
        """The indices of the stages of axis steps, which come last."""
        n_flow_stages = self.flow_stage_indices.stop
        n_axis_stages = 1 if self.options.n_axis_steps else 0
        return range(n_flow_stages, n_flow_stages + n_axis_stages)

    def flow_spec(self, seed: Seed, device: torch.device) -> FlowSpec:
        """The whole flow, with the axis steps, as samples replay it.

        A fit trains it with other transports: see `PlannedVectorFit.training_spec`.
        """
        return FlowSpec(
            self.stages(),
            seed.child("flow"),
            self.condition_dim,
            self.amplifier,
            self.entropy,
            max_projection_bytes(device),
        )

    def summary(self) -> list[tuple[str, object]]:
        """Names and values to print; those with the value "" are left out."""
        return [
            *super().summary(),
            ("particles", self._particles_in_words()),
            ("start", "noise"),
            ("steps", self._steps_in_words()),
            ("transport", repr(self.transport)),
            ("step size", self._step_size_in_words()),
            ("entropy", f"{self.entropy:g}" if self.entropy else ""),
            ("smoothing", self._smoothing_in_words()),
            ("shrinkage", self._shrinkage_in_words()),
            ("model", f"at most {self.n_flow_knots} knots per map"),
        ]

    def _particles_in_words(self) -> str:
        if self.n_moved_particles > self.n_particles:
            return f"{self.n_particles}, {self.n_moved_particles} moved for the model"
        return f"{self.n_particles}"

    def _steps_in_words(self) -> str:
        steps = f"{self.n_steps} of {self.frame_kind!r}"
        if self.options.n_axis_steps:
            steps += f", then {self.options.n_axis_steps} axis steps"
        return steps

    def _step_size_in_words(self) -> str:
        words = f"{self.step_size:.3g}"
        if self.options.taper:
            words += f", to 0 over the last {self.options.taper:.0%} of the steps"
        return words

    def _smoothing_in_words(self) -> str:
        if self.bandwidth == 0 and not self.smoothing_reason:
            return ""
        words = "0"
        if self.bandwidth is None:
            words = f"auto, along {self.options.n_neighbors} neighbors"
        elif self.bandwidth > 0:
            words = f"{self.bandwidth:.3g}, along {self.options.n_neighbors} neighbors"
        if self.smoothing_reason:
            words += f": {self.smoothing_reason}"
        return words

    def _shrinkage_in_words(self) -> str:
        if self.options.shrinkage:
            return f"κ = {self.options.shrinkage:.2g}"
        return ""

    @property
    def nbytes(self) -> int:
        """Memory of the fit on each device, without the input data."""
        return costs.fit_bytes(self, self.n_rows_per_rank, self.n_moved_per_rank)

    def require_memory(self) -> None:
        """Raise a `NotEnoughMemoryError` if the device cannot hold the fit."""
        n_directions = costs.max_directions_of_fit(self.frame_kind, self.n_columns)
        what = (
            f"{self.n_moved_per_rank} moving particles, for "
            f"n_particles={self.n_particles}, {self.n_rows_per_rank} rows of "
            f"{self.n_columns} columns and up to {n_directions} directions need"
        )
        hint = (
            "lower n_particles, the number of columns, directions or bins, or n_knots"
        )
        require_memory(self.nbytes, torch.device(self.device), what, hint)

    @property
    def n_rows_per_rank(self) -> int:
        """The rows of the rank that has the most, if they are divided equally."""
        return math.ceil(self.n_rows / self.n_ranks)

    @property
    def n_moved_per_rank(self) -> int:
        """The moving particles of the rank that has the most."""
        return math.ceil(self.n_moved_particles / self.n_ranks)

    @property
    def seconds(self) -> float:
        """About the time of a fit: the time for the projections of all ranks."""
        nanoseconds = costs.NANOSECONDS_PER_VALUE
        if isinstance(self.transport, PaperTransport):
            nanoseconds = costs.NANOSECONDS_PER_VALUE_OF_PAPER
        return self.seconds_for(costs.n_projected_values(self), nanoseconds)


def plan_vectors(
    rows: VectorRows,
    parameters: VectorParameters,
    allocation: ParticleAllocation,
    map_sharing: MapSharing,
    device: torch.device,
    n_ranks: int,
) -> VectorPlan:
    """The plan of a flow onto these rows, with every "auto" resolved.

    Parameters
    ----------
    rows : this rank's rows, with the conditions of all rows
    parameters : the parameters of the estimator
    allocation : how many particles the flow moves, and their y
    map_sharing : what the flow does with y
    device, n_ranks : where the fit runs
    """
    options = parameters.options
    n_columns = rows.X.shape[1]

    condition_kind: ConditionKind = "none"
    condition_dim = 0
    amplifier = 0.0
    if rows.conditions is not None:
        condition_kind = rows.conditions.encoder.kind
        condition_dim = rows.conditions.encoder.condition_dim
        amplifier = parameters.amplifier

    frame_kind = resolve_frame_kind(parameters.frame, n_columns, n_ranks)
    n_fresh_particles = resolve_n_fresh_particles(
        allocation.n_moved, frame_kind, n_columns, options.n_axis_steps
    )
    n_flow_knots = int(options.n_knots)
    if map_sharing == "shared":
        require_settings_for_y(parameters, frame_kind, rows)
        n_flow_knots = resolve_n_flow_knots(n_flow_knots, allocation.moved_y)
    smoothing = resolve_smoothing(options.smoothing, rows, allocation)
    transport = resolve_transport(
        parameters.transport,
        max_points_per_map(allocation, rows.n_all_rows, smoothing.n_data),
        n_ranks,
        DEFAULT_HISTOGRAM_TRANSPORT,
        DEFAULT_AUTO_TRANSPORT,
    )
    return VectorPlan(
        device=str(device),
        n_ranks=n_ranks,
        n_rows=rows.n_all_rows,
        n_columns=n_columns,
        dtype=rows.dtype,
        n_particles=allocation.n_kept,
        n_moved_particles=allocation.n_moved,
        n_fresh_particles=n_fresh_particles,
        condition_kind=condition_kind,
        condition_dim=condition_dim,
        amplifier=amplifier,
        frame_kind=frame_kind,
        transport=transport,
        n_steps=parameters.n_steps,
        entropy=parameters.entropy,
        standardize=parameters.standardize,
        options=options,
        n_flow_knots=n_flow_knots,
        bandwidth=smoothing.bandwidth,
        smoothing_reason=smoothing.reason,
        draws_per_row=smoothing.draws_per_row,
        batch_size=transport.batch_size if n_ranks == 1 else None,
    )


def resolve_use_of_y(
    conditions: Conditions | None, parameters: VectorParameters, n_ranks: int
) -> UseOfY:
    """What a fit does with the y of its rows, for the amplifier and `condition_mode`.

    Raises an error if the fit cannot do what the user wants.
    """
    mode = parameters.condition_mode
    is_continuous = conditions is not None and not isinstance(
        conditions.encoder, ClassEncoder
    )
    if mode == "local" and not is_continuous:
        fact = "needs continuous columns in y"
        raise ParameterError("condition_mode", mode, fact, "pass y of shape (n, l)")
    if conditions is None:
        return "unconditional"
    encoder = conditions.encoder
    amplifier = parameters.amplifier
    sharing = resolve_map_sharing(amplifier, encoder.condition_dim)
    if is_continuous:
        return _resolve_use_of_continuous_y(encoder, sharing, parameters, n_ranks)
    if sharing == "separate" and n_ranks > 1:
        fact = "fits each class separately, which several ranks cannot do"
        hint = "use a finite amplifier, or one process"
        raise ParameterError("amplifier", amplifier, fact, hint)
    return sharing


def _resolve_use_of_continuous_y(
    encoder: ConditionEncoder,
    sharing: MapSharing,
    parameters: VectorParameters,
    n_ranks: int,
) -> UseOfY:
    """What a fit does with a y that has continuous columns, and perhaps labels.

    `sharing` is what a flow with the user's amplifier would do with this y.
    """
    mode = parameters.condition_mode
    if mode == "local" and n_ranks > 1:
        fact = "keeps all rows in one process"
        hint = "fit in one process, or set condition_mode='joint'"
        raise ParameterError("condition_mode", mode, fact, hint)
    if mode == "local":
        return "local"
    if mode == "auto" and sharing == "shared" and n_ranks == 1:
        return "local"
    if isinstance(encoder, MixedEncoder):
        fact = (
            f"y has labels and columns, which condition_mode={mode!r} cannot fit here"
        )
        hint = "use condition_mode='local', or pass labels (n,) or columns (n, l)"
        raise DataError(fact, hint)
    if sharing == "separate":
        fact = "fits each class separately, but y is continuous"
        hint = "use a finite amplifier, or labels (n,)"
        raise ParameterError("amplifier", parameters.amplifier, fact, hint)
    return sharing


def max_points_per_map(allocation: ParticleAllocation, n_rows: int, n_data: int) -> int:
    """The largest number of particles and data together to which a map is fitted.

    If classes have separate maps, only the points of one class count for a map.
    `n_data` is the number of draws of all `n_rows` rows, or of the rows themselves.
    """
    row_y = allocation.row_y
    moved_y = allocation.moved_y
    if not (
        isinstance(row_y, SeparateClassIndices)
        and isinstance(moved_y, SeparateClassIndices)
    ):
        return allocation.n_moved + n_data
    sizes_p = moved_y.sizes(row_y.n_classes)
    sizes_q = row_y.sizes(row_y.n_classes)
    return int((sizes_p + n_data / n_rows * sizes_q).max())


def resolve_n_flow_knots(n_knots: int, moved_y: FlowY | None) -> int:
    """Choose how many knots to keep of a map that all particles share.

    These are more than `n_knots` if a rare class would otherwise get too few knots of
    the maps that it shares with other classes. `moved_y` is the y of the particles.
    """
    if not isinstance(moved_y, ClassIndices):
        return n_knots
    sizes = moved_y.sizes()
    rarest = int(sizes[sizes > 0].min())
    wanted = KNOTS_OF_RAREST_CLASS * len(moved_y) // rarest
    return max(n_knots, min(wanted, MAX_SHARED_MAP_KNOTS))


def resolve_frame_kind(
    frame: FrameName | Literal["paper"] | FrameKind, d: int, n_ranks: int
) -> FrameKind:
    """The kind of frame for d columns.

    Raises a `ParameterError` if it must be fitted to all points, but several ranks have
    them.
    """
    if isinstance(frame, str) and frame == "paper":
        return frames.Random(min(N_DIRECTIONS, PAPER_DIRECTIONS_PER_COLUMN * d))
    kind = FRAME_KINDS[frame]() if isinstance(frame, str) else frame
    if isinstance(kind, frames.MaxSliced) and n_ranks > 1:
        fact = "does not work with several processes"
        raise ParameterError("frame", frame, fact, "use frame='orthogonal'")
    return kind


def require_settings_for_y(
    parameters: VectorParameters, frame_kind: FrameKind, rows: VectorRows
) -> None:
    """Raise a `ParameterError` for a setting with which conditions cannot share maps.

    A step must tell conditions apart: otherwise samples would have the same
    distribution whatever y is. The axis steps at the end never do.
    """
    assert rows.conditions is not None, "only conditions share maps"
    encoder = rows.conditions.encoder
    shrinkage = parameters.options.shrinkage
    if shrinkage and not isinstance(encoder, ClassEncoder):
        fact = "does not work with a continuous y"
        raise ParameterError("shrinkage", shrinkage, fact, "set it to 0")
    other_way = "condition_mode='local'"
    if isinstance(encoder, ClassEncoder):
        other_way = "amplifier=math.inf"
    if parameters.n_steps == 0:
        fact = "leaves no steps that see y"
        hint = f"use n_steps=1 or more, or {other_way}"
        raise ParameterError("n_steps", 0, fact, hint)
    x = torch.tensor(rows.X[:MAX_TRIED_ROWS]).T  # a copy: X may be read-only
    if not frames.has_condition_directions(frame_kind, x, encoder.condition_dim):
        fact = "does not work with conditions that share maps: it does not see y"
        hint = f"use frame='orthogonal', or {other_way}"
        raise ParameterError("frame", parameters.frame, fact, hint)


class SmoothingChoice(NamedTuple):
    """How far rows are spread, and how often each row is drawn.

    Attributes
    ----------
    bandwidth : how far rows are spread. 0 fits the rows themselves; None if a trial
        will choose it
    reason : why "auto" chose this; empty if the user set the option
    draws_per_row : the number of draws of each row
    n_data : about the number of data: each row is drawn a whole number of times
    """

    bandwidth: float | None
    reason: str
    draws_per_row: int
    n_data: int


def resolve_smoothing(
    option: float | Literal["auto"], rows: VectorRows, allocation: ParticleAllocation
) -> SmoothingChoice:
    """What the option `smoothing` means for these rows."""
    n_rows = rows.n_all_rows
    bandwidth: float | None = None
    reason = "leave-one-out distances of the rows"
    if option != "auto":
        bandwidth = float(option)
        reason = ""
    elif reason_against := _reason_against_smoothing(rows, allocation.row_y):
        bandwidth = 0.0
        reason = reason_against
    if bandwidth == 0:
        return SmoothingChoice(bandwidth, reason, draws_per_row=1, n_data=n_rows)
    # In all there are as many draws as particles.
    n_particles = allocation.n_moved
    draws_per_row = max(1, round(n_particles / n_rows))
    return SmoothingChoice(bandwidth, reason, draws_per_row, max(n_rows, n_particles))


def _reason_against_smoothing(rows: VectorRows, y: FlowY | None) -> str:
    """Why "auto" does not spread rows with the flow_y `y`; empty if it does."""
    n_rows = rows.n_all_rows
    max_rows = MAX_SMOOTHED_ROWS
    if rows.X.shape[1] > FEW_COLUMNS:
        max_rows = MAX_SMOOTHED_ROWS_OF_MANY_COLUMNS
    if isinstance(y, ContinuousY):
        return "y is continuous"
    if n_rows < MIN_SMOOTHED_ROWS:
        return f"fewer than {MIN_SMOOTHED_ROWS} rows"
    if n_rows > max_rows:
        return f"more than {max_rows} rows"
    # The search for neighbors takes minutes among equal rows. A rank does not know
    # whether the rows of other ranks differ.
    if len(rows.X) == n_rows and not _rows_differ(rows.X, y):
        return "no rows of a class differ"
    return ""


def _rows_differ(X: NDArray[Any], y: ClassIndices | None) -> bool:
    """Whether any two rows (n, d) of a class differ."""
    first_of_class = np.zeros(len(X), np.int64)
    if y is not None:
        _, first, class_of_row = np.unique(
            y.values.numpy(), return_index=True, return_inverse=True
        )
        first_of_class = first[class_of_row]
    return bool((X[first_of_class] != X).any())


def resolve_n_fresh_particles(
    n_moved_particles: int, frame_kind: FrameKind, d: int, n_axis_steps: int
) -> int:
    """The number of fresh particles to which the model's axis steps are fitted."""
    if n_axis_steps == 0:
        return 0
    n_directions = max(frame_kind.max_directions(d), d)  # of the flow, or of axis steps
    affordable = MAX_FRESH_PROJECTIONS // n_directions
    return max(n_moved_particles, min(MAX_FRESH_PARTICLES, affordable))
