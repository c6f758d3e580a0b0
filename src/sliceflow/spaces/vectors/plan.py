"""The plan of a fit of vectors: all parameters, with every "auto" resolved."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sliceflow import errors
from sliceflow.devices import need_memory
from sliceflow.engine import frames, transports
from sliceflow.engine.conditions import Condition, Labels, Mixed, default_particles
from sliceflow.engine.frames import FrameKind, frame_bytes
from sliceflow.engine.planning import as_table, in_bytes
from sliceflow.engine.schedule import Stage, flat
from sliceflow.engine.transports import JUMPS, Auto, Histogram, Transport
from sliceflow.errors import is_bool, is_int, is_real
from sliceflow.spaces.vectors.options import VectorOptions
from sliceflow.spaces.vectors.smoothing import Strength

__all__ = [
    "VectorPlan",
    "all_bytes",
    "check_parameters",
    "count_particles",
    "make_plan",
    "stages_of",
    "transport_of",
]

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
_KNOTS_OF_A_CLASS = 32  # knots of a shared map that the smallest class should have,
_MAX_KNOTS = 4096  # unless the map would need more than this
_DRAW_BYTES = 24  # bytes per normal number while it is drawn; a few million are drawn at a time
_BIN_BYTES = 72  # bytes per bin: both counts, values, and smoothing
_NUMBERS_PER_CHECK = 3 * 100  # numbers per particle in a comparison with held-out rows


@dataclass(frozen=True)
class VectorPlan:
    """What a fit of vectors does. It prints as a table.

    Parameters
    ----------
    n_rows, n_columns : size of the fitted data, of all ranks
    dtype : dtype of the particles, "float32" or "float64"
    n_particles : particles kept
    n_moved : particles moved; may be more than are kept, to improve the model
    condition : "none", "labels", "columns" or "mixed"
    n_conditions : number of classes, or of condition columns
    amplifier : ξ; 0 if the flow ignores conditions, ∞ if each class is fitted separately
    frame, transport : directions of a step, and how to solve them
    n_steps, n_axis_steps : numbers of steps
    step_size : size of the first steps; 1 solves the directions of a Parseval frame exactly
    taper, entropy : the parameters of these names
    n_knots : knots kept per map
    n_axis_knots : knots kept per map of the axis steps
    n_fresh : number of fresh particles to which the model's axis steps are fitted
    standardize, early_stopping : the parameters of these names
    validation_fraction, n_iter_no_change, tol : settings of early stopping
    smoothing, n_neighbors : h and k of the options of these names
    smoothing_from : why "auto" is this h; empty if the user set it
    shrinkage : κ of the maps; 0 is off
    n_ranks : number of processes
    device : device of the fit
    nbytes : memory of the fit on each device, without the input data
    neighbours, components : rows of a neighbourhood, and the most regressions of one, chosen by BIC,
        if conditions are local; else 0
    distances : what of y the distances to its neighbours see, if conditions are local; else empty

    Examples
    --------
    >>> from sliceflow import SlicedWassersteinFlow
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> plan = SlicedWassersteinFlow(n_steps=50, device="cpu").plan(X)
    >>> plan.n_particles, plan.transport
    (10200, Histogram(n_bins=1024, most=131072))
    >>> print(plan)  # doctest: +ELLIPSIS +NORMALIZE_WHITESPACE
    method     SWF
    data       300 rows of 2 columns, float64
    particles  10200
    steps      50 of Orthogonal(), then 2 axis steps
    ...
    """

    n_rows: int
    n_columns: int
    dtype: str
    n_particles: int
    n_moved: int
    condition: str
    n_conditions: int
    amplifier: float
    frame: FrameKind
    transport: Transport
    n_steps: int
    n_axis_steps: int
    step_size: float
    taper: float
    entropy: float
    n_knots: int
    n_axis_knots: int
    n_fresh: int
    standardize: bool
    early_stopping: bool
    validation_fraction: float
    n_iter_no_change: int
    tol: float
    smoothing: float
    smoothing_from: str
    n_neighbors: int
    shrinkage: float
    n_ranks: int
    device: str
    nbytes: int
    neighbours: int = 0
    components: int = 0
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
        """Directions of a step."""
        return max(getattr(self.frame, "n_directions", self.n_columns), self.n_columns)

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
        return flat(
            self.frame,
            self.n_steps,
            transport=self.transport,
            taper=self.taper,
            n_knots=self.n_knots,
            n_axis_steps=self.n_axis_steps,
            n_axis_knots=self.n_axis_knots,
        )

    def settings(self) -> dict[str, Any]:
        """All settings that determine the result. A checkpoint belongs to a fit with equal settings."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("nbytes", "n_ranks", "device"):
            del values[name]
        if self.smoothing_from:  # it follows from the rows, and which are held out is not yet known
            del values["smoothing"]
        return values

    def _local_table(self) -> str:
        mixed = self.condition == "mixed"
        n = self.n_conditions - mixed
        what = f"{'labels and ' if mixed else ''}{n} column{'s' if n > 1 else ''}"
        k = f"the {self.neighbours} nearest of {self.n_rows} rows"
        if mixed:
            k = f"at most {self.neighbours} nearest rows with the same labels"
        return as_table(
            [
                ("method", self.method),
                ("data", f"{self.n_rows} rows of {self.n_columns} columns, {self.dtype}"),
                ("condition", what),
                ("neighbours", f"{k}: likelihood of rows left out"),
                ("distances", f"exact, {self.distances}"),
                ("regressions", f"1 to {self.components} in a neighbourhood, by BIC"),
                ("particles", f"{self.n_particles}"),
                ("model", "keeps all rows"),
                ("memory", f"about {in_bytes(self.nbytes)}"),
            ]
        )

    def __str__(self) -> str:
        if self.neighbours:
            return self._local_table()
        more = f", {self.n_moved} moved for the model" if self.n_moved > self.n_particles else ""
        axis = f", then {self.n_axis_steps} axis steps" if self.n_axis_steps else ""
        kinds = {"labels": f"{self.n_conditions} classes", "columns": f"{self.n_conditions} columns"}
        taper = f", to 0 over the last {self.taper:.0%} of the steps" if self.taper else ""
        smooth = f"{self.smoothing:.3g}, along {self.n_neighbors} neighbours" if self.smoothing else "0"
        smooth += f": {self.smoothing_from}" if self.smoothing_from else ""
        stops = ""
        if self.early_stopping:
            stops = f"after {self.n_iter_no_change} steps without improvement on held-out rows"
        return as_table(
            [
                ("method", self.method),
                ("data", f"{self.n_rows} rows of {self.n_columns} columns, {self.dtype}"),
                ("condition", kinds.get(self.condition, "")),
                ("particles", f"{self.n_particles}{more}"),
                ("steps", f"{self.n_steps} of {self.frame!r}{axis}"),
                ("transport", repr(self.transport)),
                ("step size", f"{self.step_size:g}{taper}"),
                ("entropy", "" if self.entropy == 0 else f"{self.entropy:g}"),
                ("smoothing", "" if smooth == "0" else smooth),
                ("shrinkage", f"κ = {self.shrinkage:.2g}" if self.shrinkage else ""),
                ("stops early", stops),
                ("model", f"at most {self.n_knots} knots per map"),
                ("device", self.device if self.n_ranks == 1 else f"{self.n_ranks} × {self.device}"),
                ("memory", f"about {in_bytes(self.nbytes)}"),
            ]
        )


def _kind_of(condition: Condition | None) -> str:
    kinds = {Labels: "labels", Mixed: "mixed"}
    return "none" if condition is None else kinds.get(type(condition), "columns")


def make_plan(
    parameters: Mapping[str, Any],
    *,
    shape: tuple[int, int],
    dtype: torch.dtype,
    n_particles: int,
    condition: Condition | None,
    codes: Tensor | None,
    device: torch.device,
    n_moved: int | None = None,
    local_counts: tuple[int, int] | None = None,
    n_ranks: int = 1,
    smoothing: Strength = Strength(0.0),  # noqa: B008, it is frozen
) -> VectorPlan:
    """The plan for data of a shape; raises a `NotEnoughMemoryError` if memory cannot hold it.

    Parameters
    ----------
    parameters : the estimator's checked parameters, including `options`, which is not None
    shape : rows and columns, of all ranks
    n_particles : particles to keep
    condition : the kind of y
    codes : conditions of the moved particles; None before they are known
    n_moved : particles moved; None moves only those kept
    local_counts : rows and particles of this rank; None means all
    smoothing : the option, resolved
    """
    (n, d), options = shape, parameters["options"]
    m = n_particles if n_moved is None else n_moved
    transport = transport_of(parameters["transport"])
    if isinstance(transport, Auto) and n_ranks > 1:
        transport = Histogram(transport.n_bins, transport.most)
    elif isinstance(transport, Auto):
        transport = transport.chosen(m + (n if smoothing.h == 0 else max(n, m)))
    amplifier = float(parameters["amplifier"]) if condition is not None else 0.0
    kind = _kind_of(condition)
    plan = VectorPlan(
        n_rows=n,
        n_columns=d,
        dtype=str(dtype).removeprefix("torch."),
        n_particles=n_particles,
        n_moved=m,
        condition=kind,
        n_conditions=0 if condition is None else condition.width,
        amplifier=amplifier,
        frame=_checked_frame(parameters["frame"], amplifier, n_ranks),
        transport=transport,
        n_steps=int(parameters["n_steps"]),
        n_axis_steps=int(options.n_axis_steps),
        step_size=1.0,
        taper=float(options.taper),
        entropy=float(parameters["entropy"]),
        n_knots=count_knots(int(options.n_knots), codes if amplifier > 0 else None),
        n_axis_knots=int(options.n_knots),
        n_fresh=0,
        standardize=bool(parameters["standardize"]),
        early_stopping=bool(parameters["early_stopping"]),
        validation_fraction=float(options.validation_fraction),
        n_iter_no_change=int(options.n_iter_no_change),
        tol=float(options.tol),
        smoothing=smoothing.h,
        smoothing_from=smoothing.why,
        n_neighbors=int(options.n_neighbors),
        shrinkage=_shrinkage(options, kind, amplifier),
        n_ranks=n_ranks,
        device=str(device),
        nbytes=0,
    )
    last = plan.stages()[-1:]
    if last and last[0].exact:
        plan = replace(plan, n_fresh=count_fresh(m, plan.n_directions))
    rows, particles = local_counts or (n, m)
    plan = replace(plan, nbytes=_fit_bytes(plan, rows, particles, dtype.itemsize))
    what = (
        f"n_particles={particles} with {rows} rows of {d} columns and {plan.n_directions} "
        "directions needs"
    )
    advice = "lower n_particles, the number of columns, directions or bins, or n_knots"
    need_memory(plan.nbytes, device, what, advice)
    return plan


def _checked_frame(frame: Any, amplifier: float, n_ranks: int) -> FrameKind:
    """The kind of frame; a ParameterError if it must be fitted and cannot be."""
    what = "several processes" if n_ranks > 1 else None
    advice = "use frame='orthogonal'"
    if 0 < amplifier < math.inf:
        what = f"conditions that share maps, as with amplifier={amplifier:g}"
        advice += ", or amplifier=math.inf, which gives every class its own maps"
    if what and isinstance(_frame_of(frame), frames.MaxSliced):
        raise errors.ParameterError("frame", frame, f"does not work with {what}", advice)
    return _frame_of(frame)


def _shrinkage(options: VectorOptions, kind: str, amplifier: float) -> float:
    """κ; a ParameterError if the noise of the maps is unknown."""
    kappa, shared = float(options.shrinkage), 0 < amplifier < math.inf
    if kappa and shared and kind == "columns":
        raise errors.ParameterError(
            "shrinkage", kappa, "does not work with a continuous y", "set it to 0"
        )
    return kappa


def _fit_bytes(plan: VectorPlan, n: int, m: int, itemsize: int) -> int:
    """Peak memory of a fit of n rows and m particles on this rank, without the input data.

    The clouds, including fresh particles, and the model stay in memory. Besides these, one after the
    other: draws around the rows; random numbers for the starting particles; the steps, with frame,
    projections and fitted maps; and the particles in the user's units.
    """
    d, h, transport = plan.n_columns, plan.n_directions, plan.transport
    n, all_rows = n * plan.n_draws, plan.n_rows * plan.n_draws
    smoothed = (4 * 8 * d * all_rows + 8 * plan.n_neighbors * plan.n_rows) * (plan.smoothing > 0)
    sort_bytes = 16 + 8 * itemsize  # per sorted projection: order, knots, values, and thinning
    n_bins = transport.n_bins if isinstance(transport, Histogram) else 0
    looked_at = min(m, transport.most or m) + min(n, transport.most or n)
    projected = h * (
        3 * looked_at * itemsize + _BIN_BYTES * n_bins if n_bins else sort_bytes * looked_at
    )
    fresh = plan.n_fresh and count_fresh(m, h)
    if fresh:  # the axis steps sort the columns of all ranks
        projected = max(projected, sort_bytes * d * (plan.n_moved + all_rows + fresh - m))
    if plan.early_stopping:
        projected = max(projected, _NUMBERS_PER_CHECK * m * itemsize)
    kept = _model_bytes(plan, m, itemsize)
    drawn = itemsize * min(d * m, 1 << 26) + _DRAW_BYTES * min(d * m, 1 << 22)
    frame = frame_bytes(plan.frame, d, plan.n_conditions, itemsize)
    stepped = projected + frame * (plan.n_steps > 0)
    converted = (8 + 8 + itemsize) * d * m
    clouds = m + fresh + (2 * n if plan.smoothing else n)
    return itemsize * d * clouds + kept + max(smoothed, drawn, stepped, converted)


def _model_bytes(plan: VectorPlan, m: int, itemsize: int) -> int:
    """The model of a fit that moves m particles here."""
    n_bins = plan.transport.n_bins if isinstance(plan.transport, Histogram) else 0
    axis = min(plan.n_axis_knots + 3 * JUMPS, m) * plan.n_columns * plan.n_axis_steps
    maps = min(plan.n_knots, n_bins or m) * plan.n_directions * plan.n_steps
    return 2 * itemsize * (maps + axis)


def all_bytes(plans: Sequence[VectorPlan]) -> int:
    """What fits one after the other take: the largest, and the rows and models of all others."""

    def stays(plan: VectorPlan) -> int:
        itemsize: int = getattr(torch, plan.dtype).itemsize
        rows = itemsize * plan.n_columns * (plan.n_rows + plan.n_particles)
        if plan.smoothing:
            rows += 8 * (plan.n_columns + plan.n_neighbors) * plan.n_rows
        return rows + _model_bytes(plan, plan.n_moved, itemsize)

    return sum(map(stays, plans)) + max(plan.nbytes - stays(plan) for plan in plans)


def count_fresh(m: int, widest: int) -> int:
    """Number of fresh particles to which the model's axis steps are fitted, for m fitted particles.

    At least m, and 65,536 if there are few directions: then the 1 % quantiles have an error of a few
    per cent.
    """
    return max(m, min(1 << 16, (1 << 18) // widest))


def count_particles(
    n_particles: int | None,
    n: int,
    condition: Condition | None,
    particle_conditions: np.ndarray | None = None,
) -> int:
    """M: the user's number, the number of particle conditions, or the default for n rows."""
    if particle_conditions is not None:
        if condition is None:
            raise ValueError("particle_conditions was given without y; pass y as well")
        m = len(particle_conditions)
        if n_particles not in (None, m):
            raise ValueError(
                f"particle_conditions has {m} rows but n_particles={n_particles}; "
                "make them equal or leave n_particles=None"
            )
    elif n_particles is not None:
        m = int(n_particles)
    else:
        m = default_particles(n)
    if isinstance(condition, Labels) and m < condition.width:
        raise ValueError(
            f"n_particles={m} is fewer than the {condition.width} classes of y; "
            f"pass n_particles >= {condition.width}"
        )
    return m


def count_knots(n_knots: int, codes: Tensor | None) -> int:
    """Knots to keep per map: more than `n_knots` if a rare class would otherwise get too few.

    Examples
    --------
    >>> count_knots(512, None), count_knots(512, torch.tensor([0] * 9_900 + [1] * 100))
    (512, 3200)
    """
    if codes is None or codes.dim() != 1:
        return n_knots
    sizes = torch.bincount(codes)
    n_needed = _KNOTS_OF_A_CLASS * len(codes) // int(sizes[sizes > 0].min())
    return max(n_knots, min(n_needed, _MAX_KNOTS))


def stages_of(parameters: Mapping[str, Any]) -> list[Stage]:
    """The stages of a fit; they do not depend on the data."""
    options: VectorOptions = parameters["options"]
    return flat(
        _frame_of(parameters["frame"]),
        int(parameters["n_steps"]),
        n_axis_steps=int(options.n_axis_steps),
        taper=float(options.taper),
    )


def _frame_of(frame: str | FrameKind) -> FrameKind:
    return FRAMES[frame]() if isinstance(frame, str) else frame


def transport_of(transport: str | Transport) -> Transport:
    """The transport of that name; a transport object is returned as it is."""
    return TRANSPORTS[transport]() if isinstance(transport, str) else transport


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise an `errors.ParameterError` for the first invalid parameter."""

    def need(ok: bool, name: str, what: str) -> None:
        errors.need(ok, name, parameters[name], what)

    m, frame, transport, options = (
        parameters[name] for name in ("n_particles", "frame", "transport", "options")
    )
    need(m is None or is_int(m, 1), "n_particles", "None or an int of at least 1")
    need(is_int(parameters["n_steps"], 0), "n_steps", "an int of at least 0")
    for name in ("standardize", "early_stopping"):
        need(is_bool(parameters[name]), name, "True or False")
    ok = options is None or isinstance(options, VectorOptions)
    need(ok, "options", "None or a sliceflow.VectorOptions")
    (options or VectorOptions()).check()
    need(
        frame in FRAMES if isinstance(frame, str) else hasattr(frame, "draw"),
        "frame",
        f"one of {sorted(FRAMES)} or a frame kind from sliceflow.frames",
    )
    need(
        transport in TRANSPORTS
        if isinstance(transport, str)
        else hasattr(transport, "fit") and hasattr(transport, "most"),
        "transport",
        f"one of {sorted(TRANSPORTS)} or a transport from sliceflow.transports",
    )
    xi = parameters["amplifier"]
    ok = is_real(xi, 0) or (isinstance(xi, float) and xi == math.inf)
    need(ok, "amplifier", "a number of at least 0; math.inf fits each class separately")
    ok = parameters["condition"] in ("auto", "joint", "local")
    need(ok, "condition", "'auto', 'joint' or 'local'")
    need(is_real(parameters["entropy"], 0), "entropy", "a finite number of at least 0")
    need(is_int(parameters["verbose"], 0), "verbose", "an int of at least 0")
