"""The plan of a fit of vectors: all parameters, with every "auto" resolved."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from sliceflow.devices import projection_budget
from sliceflow.engine import frames
from sliceflow.engine.compact import MAX_JUMPS
from sliceflow.engine.conditions import (
    ContinuousCondition,
    LabelCondition,
    MixedCondition,
)
from sliceflow.engine.flow import Flow
from sliceflow.engine.frames import Axis, FrameKind, SavedFrame, frame_bytes
from sliceflow.engine.paper import N_DIRECTIONS
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.transports import Histogram, SavedTransport, Sorted
from sliceflow.errors import ParameterError, is_int, is_real, require
from sliceflow.fields import Between, Count
from sliceflow.models.plan import Plan, check_shared
from sliceflow.neighbours.regressions import MAX_COMPONENTS
from sliceflow.spaces.vectors.options import VectorOptions

KINDS: dict[Any, Any] = {
    type(None): "none",
    LabelCondition: "labels",
    ContinuousCondition: "columns",
    MixedCondition: "mixed",
}
_FRAMES: dict[str, Callable[[], FrameKind]] = {
    "orthogonal": frames.Orthogonal,
    "random": frames.Random,
    "max-sliced": frames.MaxSliced,
    "axis": Axis,
}
_CONDITIONS = ("auto", "joint", "local")
_DIRECTIONS_PER_COLUMN = (
    64  # of the paper's preset: its 10,000 are for hundreds of columns
)
_BIN_BYTES = 72  # bytes per bin: both counts, values, and smoothing
_NANOSECONDS = {
    "cpu": 60.0,
    "cuda": 1.0,
}  # for each projected value of a step, on one thread

Real = Annotated[float, Between(0)]


@dataclass(frozen=True, kw_only=True)
class VectorPlan(Plan):
    """What a fit of vectors does. It prints as a table."""

    n_rows: Count  # of all ranks
    n_columns: Annotated[int, Between(1, 1 << 24)]
    dtype: Literal["float32", "float64"]
    n_particles: Count  # particles kept
    n_moved: Count  # particles moved; may be more than are kept, to improve the model
    condition: Literal["none", "labels", "columns", "mixed"]  # the kind of y
    n_conditions: Count  # number of classes, or of condition columns
    amplifier: Annotated[float, Between(0, math.inf)]  # ξ; 0 without conditions
    frame: SavedFrame
    transport: SavedTransport
    n_steps: Annotated[int, Between(0, 1 << 24)]
    entropy: Real
    standardize: bool
    options: VectorOptions
    n_knots: Count  # knots kept per map
    smoothing: Real = 0.0  # h of the option of this name
    smoothing_from: str = ""  # why "auto" is this h; empty if the user set it
    neighbours: Count = 0  # if conditions are local: the rows of a neighbourhood,
    distances: str = ""  # and what of y the distances to neighbours see

    @property
    def method(self) -> str:
        """The method: SWF, CSWF with its ξ, per class, or local."""
        if self.neighbours:
            return "local"
        if self.amplifier == 0 or self.condition == "none":
            return "SWF"
        return (
            "per class" if math.isinf(self.amplifier) else f"CSWF ξ={self.amplifier:g}"
        )

    @property
    def n_directions(self) -> int:
        return max(getattr(self.frame, "n_directions", 0), self.n_columns)

    @property
    def n_bins(self) -> int:
        return self.transport.n_bins if isinstance(self.transport, Histogram) else 0

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)  # type: ignore[no-any-return]

    @property
    def n_draws(self) -> int:
        """Draws of each row with `smoothing`, about as many in all as particles; 1 without."""
        return max(1, round(self.n_moved / self.n_rows)) if self.smoothing else 1

    @property
    def n_fresh(self) -> int:
        """Fresh particles to which the model's axis steps are fitted.

        65,536 if there are few directions: 1 % quantiles then have an error of a few per cent.
        """
        enough = max(self.n_moved, min(1 << 16, (1 << 18) // self.n_directions))
        return enough if self.options.n_axis_steps else 0

    def stages(self) -> list[Stage]:
        """The stages of the flow: one of the frame, then axis steps that make each column exact."""
        options = self.options
        how = dict[str, Any](n_knots=self.n_knots, taper=self.options.taper)
        stages = [
            Stage("flow", self.frame, self.n_steps, self.transport, **how),
            # Sorted, because bins would blur the values of discrete columns.
            Stage(
                "axis",
                Axis(),
                options.n_axis_steps,
                Sorted(),
                n_knots=options.n_knots,
                exact=True,
            ),
        ]
        return [stage for stage in stages if stage.n_steps > 0 and not self.neighbours]

    def flow(self, seed: Seed, device: torch.device) -> Flow:
        """The flow of the plan. With separate fits per class, it is that of each class."""
        y = (
            (0, 0.0)
            if math.isinf(self.amplifier)
            else (self.n_conditions, self.amplifier)
        )
        budget = projection_budget(device)
        return Flow(self.stages(), seed.child("flow"), *y, self.entropy, budget)

    def lines(self) -> Sequence[tuple[str, object]]:
        n = self.n_conditions
        mixed = self.condition == "mixed"
        kinds = dict(
            labels=f"{n} classes",
            columns=f"{n} columns",
            mixed=f"labels, {n - 1} columns",
        )
        size = f"{self.n_rows} rows of {self.n_columns} columns, {self.dtype}"
        data = [("data", size), ("condition", kinds.get(self.condition, ""))]
        if self.neighbours:
            among = "rows with the same labels" if mixed else f"of {self.n_rows} rows"
            return [
                *data,
                (
                    "neighbours",
                    f"the {self.neighbours} nearest {among}: likelihood of rows left out",
                ),
                ("distances", f"exact, {self.distances}"),
                ("regressions", f"1 to {MAX_COMPONENTS} in a neighbourhood, by BIC"),
                ("particles", self.n_particles),
                ("model", "keeps all rows"),
            ]
        more = (
            f", {self.n_moved} moved for the model"
            if self.n_moved > self.n_particles
            else ""
        )
        axis = self.options.n_axis_steps
        smooth = f"{self.smoothing:.3g}, along {self.options.n_neighbors} neighbours"
        smooth = smooth if self.smoothing else "0" if self.smoothing_from else ""
        smooth += f": {self.smoothing_from}" if self.smoothing_from else ""
        taper = self.options.taper
        return [
            *data,
            ("particles", f"{self.n_particles}{more}"),
            ("start", "noise"),
            (
                "steps",
                f"{self.n_steps} of {self.frame!r}{f', then {axis} axis steps' if axis else ''}",
            ),
            ("transport", repr(self.transport)),
            (
                "step size",
                "1"
                + (f", to 0 over the last {taper:.0%} of the steps" if taper else ""),
            ),
            ("entropy", f"{self.entropy:g}" if self.entropy else ""),
            ("smoothing", smooth),
            (
                "shrinkage",
                f"κ = {self.options.shrinkage:.2g}" if self.options.shrinkage else "",
            ),
            ("model", f"at most {self.n_knots} knots per map"),
        ]


def fit_bytes(plan: VectorPlan, n: int, m: int) -> int:
    """Peak memory of a fit of n rows and m particles on this rank: clouds, model, and the most work."""
    d = plan.n_columns
    itemsize = plan.torch_dtype.itemsize
    max_samples = plan.transport.max_samples
    n = n * plan.n_draws
    all_rows = plan.n_rows * plan.n_draws
    looked_at = min(m, max_samples or m) + min(n, max_samples or n)
    sort_bytes = (
        16 + 8 * itemsize
    )  # per sorted projection: order, knots, values, and thinning
    counted = 3 * looked_at * itemsize + _BIN_BYTES * plan.n_bins
    stepped = plan.n_directions * (counted if plan.n_bins else sort_bytes * looked_at)
    if plan.n_fresh:  # the axis steps sort the columns of all ranks
        stepped = max(
            stepped, sort_bytes * d * (plan.n_moved + all_rows + plan.n_fresh - m)
        )
    if plan.n_steps:
        stepped += frame_bytes(plan.frame, d, plan.n_conditions, itemsize)
    clouds = m + plan.n_fresh + n
    smoothed = 0
    if plan.smoothing:
        clouds += n
        smoothed = 4 * 8 * d * all_rows + 8 * plan.options.n_neighbors * plan.n_rows
    work = max(smoothed, stepped, (16 + itemsize) * d * m)
    return itemsize * d * clouds + model_bytes(plan, m) + work


def model_bytes(plan: VectorPlan, m: int) -> int:
    """The maps that a fit of m particles keeps."""
    axis = (
        min(plan.options.n_knots + 3 * MAX_JUMPS, m)
        * plan.n_columns
        * plan.options.n_axis_steps
    )
    maps = min(plan.n_knots, plan.n_bins or m) * plan.n_directions * plan.n_steps
    return 2 * plan.torch_dtype.itemsize * (maps + axis)


def fit_seconds(plan: VectorPlan) -> float:
    """About how long a fit takes on its device."""
    clouds = plan.n_moved, plan.n_rows * plan.n_draws
    looked_at = sum(min(n, plan.transport.max_samples or n) for n in clouds)
    values = (
        plan.n_directions * looked_at * plan.n_steps + 4 * plan.n_columns * plan.n_fresh
    )
    values *= max(1, plan.n_columns // 100)  # projecting costs more than counting
    return plan.estimate(values, _NANOSECONDS)


def join(parts: Sequence[VectorPlan]) -> VectorPlan:
    """The plan of all classes."""
    largest = max(parts, key=lambda plan: plan.nbytes)
    sums: Any = {
        name: sum(getattr(plan, name) for plan in parts)
        for name in ("n_rows", "n_particles", "n_moved")
    }
    plan = replace(
        largest,
        **sums,
        condition="labels",
        n_conditions=len(parts),
        amplifier=math.inf,
        smoothing_from=largest.smoothing_from
        and f"{largest.smoothing_from}, of the largest class",
    )
    what = f"n_particles={plan.n_particles} with {len(parts)} classes, each with maps of its own, needs"
    nbytes = largest.nbytes + sum(model_bytes(part, part.n_moved) for part in parts)
    seconds = sum(part.seconds for part in parts)
    return plan.taking(nbytes, seconds, what, "lower n_steps or n_knots")


def count_knots(n_knots: int, codes: Tensor | None) -> int:
    """Knots to keep per map: more than `n_knots` if a rare class would otherwise get too few."""
    if codes is None or codes.dim() != 1:
        return n_knots
    sizes = torch.bincount(
        codes
    )  # the smallest class should have 32, unless this needs too many
    return max(n_knots, min(32 * len(codes) // int(sizes[sizes > 0].min()), 4096))


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise a `ParameterError` for the first invalid parameter."""
    check_shared(parameters, ("standardize", "keep_rows"), VectorOptions)
    frame = parameters["frame"]
    xi = parameters["amplifier"]
    a_frame = frame in _FRAMES if isinstance(frame, str) else hasattr(frame, "draw")
    infinite = isinstance(xi, float) and xi == math.inf
    for name, ok, what in (
        ("n_steps", is_int(parameters["n_steps"], 0), "an int of at least 0"),
        (
            "frame",
            a_frame,
            f"one of {sorted(_FRAMES)} or a frame kind from sliceflow.frames",
        ),
        (
            "amplifier",
            is_real(xi, 0) or infinite,
            "a number of at least 0, which may be math.inf",
        ),
        ("condition", parameters["condition"] in _CONDITIONS, f"one of {_CONDITIONS}"),
        ("entropy", is_real(parameters["entropy"], 0), "a finite number of at least 0"),
    ):
        require(ok, name, parameters[name], what)


def choose_frame(
    frame: str | FrameKind, d: int, amplifier: float, n_ranks: int
) -> FrameKind:
    """The kind of frame. Raises a ParameterError if it must be fitted to the clouds and cannot be."""
    if isinstance(frame, str) and frame == "paper":
        return frames.Random(min(N_DIRECTIONS, _DIRECTIONS_PER_COLUMN * d))
    kind = _FRAMES[frame]() if isinstance(frame, str) else frame
    shared = 0 < amplifier < math.inf
    if isinstance(kind, frames.MaxSliced) and (shared or n_ranks > 1):
        what = "conditions that share maps" if shared else "several processes"
        advice = f"use frame='orthogonal'{', or amplifier=math.inf' if shared else ''}"
        raise ParameterError("frame", frame, f"does not work with {what}", advice)
    return kind
