"""The plan of a fit of vectors: all parameters, with every "auto" resolved."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from sliceflow.devices import projection_budget
from sliceflow.engine import frames, transports
from sliceflow.engine.compact import JUMPS
from sliceflow.engine.conditions import Condition, Labels, default_particles
from sliceflow.engine.flow import Flow
from sliceflow.engine.frames import FrameKind, frame_bytes
from sliceflow.engine.paper import N_DIRECTIONS
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage, flat
from sliceflow.engine.transports import Histogram, Transport
from sliceflow.errors import ParameterError, is_bool, is_int, is_real, need
from sliceflow.models.codec import Between
from sliceflow.models.plan import Plan
from sliceflow.spaces.vectors.options import VectorOptions

__all__ = ["FRAMES", "TRANSPORTS", "VectorPlan", "check_parameters", "count_particles"]

FRAMES: dict[str, Callable[[], FrameKind]] = {
    "orthogonal": frames.Orthogonal,
    "random": frames.Random,
    "max-sliced": frames.MaxSliced,
    "axis": frames.Axis,
}
TRANSPORTS: dict[str, Callable[[], Transport]] = {
    "auto": transports.Auto,
    "sorted": transports.Sorted,
    "histogram": transports.Histogram,
    "interpolated": transports.Interpolated,
}
_DIRECTIONS_PER_COLUMN = 64  # of the paper's preset: its 10,000 are for hundreds of columns
_BIN_BYTES = 72  # bytes per bin: both counts, values, and smoothing
_NUMBERS_PER_CHECK = 300  # numbers per particle in a comparison with held-out rows
_NANOSECONDS = {"cpu": 60.0, "cuda": 1.0}  # for each projected value of a step, on one thread

Count = Annotated[int, Between(0, 1 << 40)]
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
    frame: FrameKind
    transport: Transport
    n_steps: Annotated[int, Between(0, 1 << 24)]
    entropy: Real
    standardize: bool
    early_stopping: bool
    options: VectorOptions
    n_knots: Count  # knots kept per map
    n_fresh: Count = 0  # number of fresh particles to which the model's axis steps are fitted
    smoothing: Real = 0.0  # h of the option of this name
    smoothing_from: str = ""  # why "auto" is this h; empty if the user set it
    # If conditions are local: the rows of a neighbourhood, the most regressions of one, chosen by BIC,
    # and what of y the distances to neighbours see.
    neighbours: Count = 0
    components: Count = 0
    distances: str = ""

    @property
    def method(self) -> str:
        """The method: SWF, CSWF with its ξ, per class, or local."""
        if self.neighbours:
            return "local"
        if self.amplifier == 0 or self.condition == "none":
            return "SWF"
        return "per class" if math.isinf(self.amplifier) else f"CSWF ξ={self.amplifier:g}"

    @property
    def n_directions(self) -> int:
        return max(getattr(self.frame, "n_directions", 0), self.n_columns)

    @property
    def n_draws(self) -> int:
        """Draws of each row with `smoothing`, about as many in all as particles; 1 without."""
        return max(1, round(self.n_moved / self.n_rows)) if self.smoothing else 1

    @property
    def against_copying(self) -> str:
        """What helps if samples copy rows."""
        if not self.smoothing and not self.smoothing_from:
            return "VectorOptions(smoothing='auto') prevents it"
        more = f"more smoothing than {self.smoothing:.2g}" if self.smoothing else "smoothing=0.8"
        return f"VectorOptions with {more}, or fewer n_steps, help"

    def stages(self) -> list[Stage]:
        """The stages of the flow."""
        if self.neighbours:
            return []
        options, maps = self.options, dict[str, Any](transport=self.transport, n_knots=self.n_knots)
        axis = dict[str, Any](n_axis_steps=options.n_axis_steps, n_axis_knots=options.n_knots)
        return flat(self.frame, self.n_steps, taper=options.taper, **maps, **axis)

    def flow(self, seed: Seed, device: torch.device) -> Flow:
        """The flow of the plan. With separate fits per class, it is that of each class."""
        y = (0, 0.0) if math.isinf(self.amplifier) else (self.n_conditions, self.amplifier)
        budget = projection_budget(device)
        return Flow(self.stages(), seed.child("flow"), *y, self.entropy, budget)

    def settings(self) -> dict[str, Any]:
        values = super().settings()
        if self.smoothing_from:  # it follows from the rows, and which are held out is not yet known
            del values["smoothing"]
        return values

    def lines(self) -> Sequence[tuple[str, object]]:
        n, mixed = self.n_conditions, self.condition == "mixed"
        kinds = dict(labels=f"{n} classes", columns=f"{n} columns", mixed=f"labels, {n - 1} columns")
        size = f"{self.n_rows} rows of {self.n_columns} columns, {self.dtype}"
        data = [("data", size), ("condition", kinds.get(self.condition, ""))]
        if self.neighbours:
            among = "rows with the same labels" if mixed else f"of {self.n_rows} rows"
            return [
                *data,
                ("neighbours", f"the {self.neighbours} nearest {among}: likelihood of rows left out"),
                ("distances", f"exact, {self.distances}"),
                ("regressions", f"1 to {self.components} in a neighbourhood, by BIC"),
                ("particles", self.n_particles),
                ("model", "keeps all rows"),
            ]
        more = f", {self.n_moved} moved for the model" if self.n_moved > self.n_particles else ""
        axis = self.options.n_axis_steps
        smooth = f"{self.smoothing:.3g}, along {self.options.n_neighbors} neighbours"
        smooth = smooth if self.smoothing else "0" if self.smoothing_from else ""
        smooth += f": {self.smoothing_from}" if self.smoothing_from else ""
        taper, patience = self.options.taper, self.options.n_iter_no_change
        stops = f"after {patience} steps without improvement on held-out rows"
        return [
            *data,
            ("particles", f"{self.n_particles}{more}"),
            ("start", "noise"),
            ("steps", f"{self.n_steps} of {self.frame!r}{f', then {axis} axis steps' if axis else ''}"),
            ("transport", repr(self.transport)),
            ("step size", "1" + (f", to 0 over the last {taper:.0%} of the steps" if taper else "")),
            ("entropy", f"{self.entropy:g}" if self.entropy else ""),
            ("smoothing", smooth),
            ("shrinkage", f"κ = {self.options.shrinkage:.2g}" if self.options.shrinkage else ""),
            ("stops early", stops if self.early_stopping else ""),
            ("model", f"at most {self.n_knots} knots per map"),
        ]


def fit_bytes(plan: VectorPlan, n: int, m: int) -> int:
    """Peak memory of a fit of n rows and m particles on this rank: clouds, model, and the most work."""
    d, h, transport = plan.n_columns, plan.n_directions, plan.transport
    itemsize: int = getattr(torch, plan.dtype).itemsize
    n, all_rows = n * plan.n_draws, plan.n_rows * plan.n_draws
    smoothed = (4 * 8 * d * all_rows + 8 * plan.options.n_neighbors * plan.n_rows) * (
        plan.smoothing > 0
    )
    sort_bytes = 16 + 8 * itemsize  # per sorted projection: order, knots, values, and thinning
    n_bins = transport.n_bins if isinstance(transport, Histogram) else 0
    looked_at = min(m, transport.most or m) + min(n, transport.most or n)
    counted = 3 * looked_at * itemsize + _BIN_BYTES * n_bins
    projected = h * (counted if n_bins else sort_bytes * looked_at)
    if plan.n_fresh:  # the axis steps sort the columns of all ranks
        projected = max(projected, sort_bytes * d * (plan.n_moved + all_rows + plan.n_fresh - m))
    if plan.early_stopping:
        projected = max(projected, _NUMBERS_PER_CHECK * m * itemsize)
    frame = frame_bytes(plan.frame, d, plan.n_conditions, itemsize)
    stepped = projected + frame * (plan.n_steps > 0)
    clouds = m + plan.n_fresh + (2 * n if plan.smoothing else n)
    work = max(smoothed, stepped, (16 + itemsize) * d * m)
    return itemsize * d * clouds + model_bytes(plan, m) + work


def model_bytes(plan: VectorPlan, m: int) -> int:
    """The maps that a fit of m particles keeps."""
    itemsize: int = getattr(torch, plan.dtype).itemsize
    n_bins = plan.transport.n_bins if isinstance(plan.transport, Histogram) else 0
    axis = min(plan.options.n_knots + 3 * JUMPS, m) * plan.n_columns * plan.options.n_axis_steps
    maps = min(plan.n_knots, n_bins or m) * plan.n_directions * plan.n_steps
    return 2 * itemsize * (maps + axis)


def fit_seconds(plan: VectorPlan) -> float:
    """About how long a fit takes on its device."""
    clouds = plan.n_moved, plan.n_rows * plan.n_draws
    looked_at = sum(min(n, plan.transport.most or n) for n in clouds)
    values = plan.n_directions * looked_at * plan.n_steps + 4 * plan.n_columns * plan.n_fresh
    values *= max(1, plan.n_columns // 100)  # projecting costs more than counting
    return plan.estimate(values, _NANOSECONDS)


def count_particles(
    n_particles: int | None, n: int, condition: Condition | None, particle_conditions: np.ndarray | None
) -> int:
    """M: the user's number, the number of particle conditions, or the default for n rows."""
    m = default_particles(n) if n_particles is None else int(n_particles)
    if particle_conditions is not None:
        m = len(particle_conditions)
        if condition is None:
            raise ValueError("particle_conditions was given without y; pass y as well")
        if n_particles not in (None, m):
            fact = f"particle_conditions has {m} rows but n_particles={n_particles}"
            raise ValueError(f"{fact}; make them equal or leave n_particles=None")
    if isinstance(condition, Labels) and m < condition.width:
        fact = f"n_particles={m} is fewer than the {condition.width} classes of y"
        raise ValueError(f"{fact}; pass n_particles >= {condition.width}")
    return m


def count_knots(n_knots: int, codes: Tensor | None) -> int:
    """Knots to keep per map: more than `n_knots` if a rare class would otherwise get too few."""
    if codes is None or codes.dim() != 1:
        return n_knots
    sizes = torch.bincount(codes)  # the smallest class should have 32, unless this needs too many
    return max(n_knots, min(32 * len(codes) // int(sizes[sizes > 0].min()), 4096))


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise a `ParameterError` for the first invalid parameter."""

    def check(ok: bool, name: str, what: str) -> None:
        need(ok, name, parameters[name], what)

    names = ("n_particles", "frame", "transport", "options", "amplifier")
    m, frame, transport, options, xi = (parameters[name] for name in names)
    check(m is None or is_int(m, 1), "n_particles", "None or an int of at least 1")
    check(is_int(parameters["n_steps"], 0), "n_steps", "an int of at least 0")
    ok = is_bool(parameters["verbose"]) or is_int(parameters["verbose"], 0)
    check(ok, "verbose", "a bool, or an int of at least 0")
    for name in ("standardize", "early_stopping", "keep_rows"):
        check(is_bool(parameters[name]), name, "True or False")
    ok = options is None or isinstance(options, VectorOptions)
    check(ok, "options", "None or a sliceflow.VectorOptions")
    (options or VectorOptions()).check()
    ok = frame in FRAMES if isinstance(frame, str) else hasattr(frame, "draw")
    check(ok, "frame", f"one of {sorted(FRAMES)} or a frame kind from sliceflow.frames")
    ok = hasattr(transport, "fit") and hasattr(transport, "most")
    ok = transport in TRANSPORTS if isinstance(transport, str) else ok
    check(ok, "transport", f"one of {sorted(TRANSPORTS)} or a transport from sliceflow.transports")
    ok = is_real(xi, 0) or (isinstance(xi, float) and xi == math.inf)
    check(ok, "amplifier", "a number of at least 0; math.inf fits each class separately")
    ok = parameters["condition"] in ("auto", "joint", "local")
    check(ok, "condition", "'auto', 'joint' or 'local'")
    check(is_real(parameters["entropy"], 0), "entropy", "a finite number of at least 0")


def choose_frame(frame: str | FrameKind, d: int, amplifier: float, n_ranks: int) -> FrameKind:
    """The kind of frame. Raises a ParameterError if it must be fitted to the clouds and cannot be."""
    if isinstance(frame, str) and frame == "paper":
        return frames.Random(min(N_DIRECTIONS, _DIRECTIONS_PER_COLUMN * d))
    kind = FRAMES[frame]() if isinstance(frame, str) else frame
    shared = 0 < amplifier < math.inf
    if isinstance(kind, frames.MaxSliced) and (shared or n_ranks > 1):
        what = "conditions that share maps" if shared else "several processes"
        advice = f"use frame='orthogonal'{', or amplifier=math.inf' if shared else ''}"
        raise ParameterError("frame", frame, f"does not work with {what}", advice)
    return kind
