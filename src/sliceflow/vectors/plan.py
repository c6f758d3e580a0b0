"""The plan of a fit of vectors: every parameter as it will be used, nothing left "auto"."""

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
from sliceflow.engine.conditions import Condition, Labels, default_particles
from sliceflow.engine.frames import FrameKind, frame_bytes
from sliceflow.engine.planning import as_table, in_bytes
from sliceflow.engine.schedule import Stage, flat
from sliceflow.engine.transports import Auto, Histogram, Transport
from sliceflow.errors import is_bool, is_int, is_real
from sliceflow.vectors.options import VectorOptions

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
    "axis": frames.Axis,
}
TRANSPORTS: dict[str, Callable[[], Transport]] = {
    "auto": transports.Auto,
    "sorted": transports.Sorted,
    "histogram": transports.Histogram,
    "interpolated": transports.Interpolated,
}
_KNOTS_OF_A_CLASS = 32  # knots that the smallest class should have of a map that it shares with others,
_MOST_KNOTS = 4096  # unless that would take more
_DRAWN = 24  # bytes per number while normal numbers are drawn, some millions at a time
_BINS = 72  # bytes per bin: both counts, values, and what steadying them takes
_JUDGED = 3 * 100  # numbers per particle when held-out rows are compared with it


@dataclass(frozen=True)
class VectorPlan:
    """What a fit of vectors does. Printed, it is a table.

    Parameters
    ----------
    n_rows, n_columns : of the data that are fitted, of all ranks
    dtype : of the particles, "float32" or "float64"
    n_particles : that are kept
    n_moved : that the fit moves: more than are kept where a model needs more
    condition : "none", "labels" or "columns"
    n_conditions : classes, or columns of the condition
    amplifier : ξ; 0 where the flow sees no condition, ∞ where every class is fitted by itself
    frame, transport : of the steps
    n_steps, n_axis_steps : how many
    step_size : of the first steps; 1 solves a Parseval frame's directions exactly
    taper, entropy : as the parameters of these names
    n_knots : kept of each map
    n_axis_knots : the same of the axis steps
    n_fresh : fresh particles that the model's axis steps are fitted to
    standardize, early_stopping : as the parameters of these names
    validation_fraction, n_iter_no_change, tol : of early stopping
    n_ranks : processes that fit together
    device : where
    nbytes : memory that the fit takes on each device beside the data as they are given

    Examples
    --------
    >>> from sliceflow import SlicedWassersteinFlow
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> plan = SlicedWassersteinFlow(n_steps=50, device="cpu").plan(X)
    >>> plan.n_particles, plan.transport
    (10200, Histogram(n_bins=1024, most=131072))
    >>> print(plan)  # doctest: +ELLIPSIS
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
    n_ranks: int
    device: str
    nbytes: int

    @property
    def method(self) -> str:
        """The method's name: SWF, CSWF with its ξ, or per class."""
        if self.amplifier == 0 or self.condition == "none":
            return "SWF"
        return "per class" if math.isinf(self.amplifier) else f"CSWF ξ={self.amplifier:g}"

    @property
    def n_directions(self) -> int:
        """Directions of a step."""
        return max(getattr(self.frame, "n_directions", self.n_columns), self.n_columns)

    def stages(self) -> list[Stage]:
        """The stages of the flow."""
        return flat(
            self.frame,
            self.n_steps,
            n_axis_steps=self.n_axis_steps,
            step_size=self.step_size,
            taper=self.taper,
        )

    def settings(self) -> dict[str, Any]:
        """All that the result depends on, by name: a checkpoint is of a fit with the same."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("nbytes", "n_ranks", "device"):
            del values[name]
        return values

    def __str__(self) -> str:
        more = f", {self.n_moved} moved for the model" if self.n_moved > self.n_particles else ""
        axis = f", then {self.n_axis_steps} axis steps" if self.n_axis_steps else ""
        kinds = {"labels": f"{self.n_conditions} classes", "columns": f"{self.n_conditions} columns"}
        taper = f", to 0 over the last {self.taper:.0%} of the steps" if self.taper else ""
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
                ("stops early", stops),
                ("model", f"at most {self.n_knots} knots a map"),
                ("device", self.device if self.n_ranks == 1 else f"{self.n_ranks} × {self.device}"),
                ("memory", f"about {in_bytes(self.nbytes)}"),
            ]
        )


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
    here: tuple[int, int] | None = None,
    n_ranks: int = 1,
    transport: Transport | None = None,
) -> VectorPlan:
    """The plan for rows of a shape; a `NotEnoughMemoryError` if it cannot fit into memory.

    Parameters
    ----------
    parameters : of the estimator, checked; `options` among them, never None
    shape : rows and columns, of all ranks
    n_particles : that the user asked for
    condition : what y is
    codes : conditions of the particles that are moved; None before they are known
    n_moved : how many are moved; None as many as are asked for
    here : rows and particles of this rank; None is all of them
    transport : in place of the parameter: data that are counted (`online`) cannot be sorted
    """
    (n, d), options = shape, parameters["options"]
    counted = transport is not None
    m = n_particles if n_moved is None else n_moved
    transport = transport_of(parameters["transport"]) if transport is None else transport
    if isinstance(transport, Auto):
        transport = transport.chosen(m + n)
    amplifier = float(parameters["amplifier"]) if condition is not None else 0.0
    kind = "none" if condition is None else "labels" if isinstance(condition, Labels) else "columns"
    frame = parameters["frame"]
    frame = FRAMES[frame]() if isinstance(frame, str) else frame
    plan = VectorPlan(
        n_rows=n,
        n_columns=d,
        dtype=str(dtype).removeprefix("torch."),
        n_particles=n_particles,
        n_moved=m,
        condition=kind,
        n_conditions=0 if condition is None else condition.width,
        amplifier=amplifier,
        frame=frame,
        transport=transport,
        n_steps=int(parameters["n_steps"]),
        n_axis_steps=int(options.n_axis_steps),
        step_size=1.0,
        taper=float(options.taper),
        entropy=float(parameters["entropy"]),
        n_knots=count_knots(int(options.n_knots), codes if amplifier > 0 and not counted else None),
        n_axis_knots=int(options.n_knots),
        n_fresh=0,
        standardize=bool(parameters["standardize"]),
        early_stopping=bool(parameters["early_stopping"]),
        validation_fraction=float(options.validation_fraction),
        n_iter_no_change=int(options.n_iter_no_change),
        tol=float(options.tol),
        n_ranks=n_ranks,
        device=str(device),
        nbytes=0,
    )
    last = plan.stages()[-1:]
    if last and isinstance(last[0].frame, frames.Axis) and not counted:
        plan = replace(plan, n_fresh=count_fresh(m, plan.n_directions))
    rows, particles = here or (n, m)
    plan = replace(plan, nbytes=_fit_bytes(plan, 0 if counted else rows, particles, dtype.itemsize))
    if counted:
        n_bins = getattr(transport, "n_bins", 0)
        what = f"n_particles={m} of {d} columns and {n_bins} bins need"
        advice = "lower n_particles or n_knots"
    else:
        what = (
            f"n_particles={particles} with {rows} rows of {d} columns and {plan.n_directions} "
            "directions needs"
        )
        advice = "lower n_particles, the number of columns, directions or bins, or n_knots"
    need_memory(plan.nbytes, device, what, advice)
    return plan


def _fit_bytes(plan: VectorPlan, n: int, m: int, itemsize: int) -> int:
    """What a fit takes beside the data as it is given, at its largest moment.

    The clouds, of fresh particles too, and the model stay. Besides there are, one after the other: the
    random numbers that the particles start from; the steps, with a frame, projections and what is
    fitted to them; and the particles in the user's units. n and m are the rows and particles here.
    """
    d, h, transport = plan.n_columns, plan.n_directions, plan.transport
    one = 16 + 8 * itemsize  # a projection that is sorted: order, knots, values, and thinning
    n_bins = transport.n_bins if isinstance(transport, Histogram) else 0
    looked_at = min(m, transport.most or m) + min(n, transport.most or n)
    projected = h * (3 * looked_at * itemsize + _BINS * n_bins if n_bins else one * looked_at)
    fresh = plan.n_fresh and count_fresh(m, h)
    if fresh:  # the axis steps sort everything, of all ranks
        projected = max(projected, one * d * (plan.n_moved + plan.n_rows + fresh - m))
    if plan.early_stopping:
        projected = max(projected, _JUDGED * m * itemsize)
    kept = _model_bytes(plan, m, itemsize)
    drawn = itemsize * min(d * m, 1 << 26) + _DRAWN * min(d * m, 1 << 22)
    frame = frame_bytes(plan.frame, d, plan.n_conditions, itemsize)
    stepped = projected + frame * (plan.n_steps > 0)
    given_back = (8 + 8 + itemsize) * d * m
    return itemsize * d * (m + n + fresh) + kept + max(drawn, stepped, given_back)


def _model_bytes(plan: VectorPlan, m: int, itemsize: int) -> int:
    """The model of a fit that moves m particles here."""
    n_bins = plan.transport.n_bins if isinstance(plan.transport, Histogram) else 0
    axis = min(plan.n_axis_knots, m) * plan.n_columns * plan.n_axis_steps
    maps = min(plan.n_knots, n_bins or m) * plan.n_directions * plan.n_steps
    return 2 * itemsize * (maps + axis)


def all_bytes(plans: Sequence[VectorPlan]) -> int:
    """What fits one after the other take: the largest, and the rows and models of all others."""

    def stays(plan: VectorPlan) -> int:
        itemsize: int = getattr(torch, plan.dtype).itemsize
        rows = itemsize * plan.n_columns * (plan.n_rows + plan.n_particles)
        return rows + _model_bytes(plan, plan.n_moved, itemsize)

    return sum(map(stays, plans)) + max(plan.nbytes - stays(plan) for plan in plans)


def count_fresh(m: int, widest: int) -> int:
    """How many fresh particles the axis steps of a model are fitted to, where m particles were fitted.

    At least as many, and 65,536 if they have few directions: then quantiles at 1 % are right to some
    per cent.
    """
    return max(m, min(1 << 16, (1 << 18) // widest))


def count_particles(
    n_particles: int | None,
    n: int,
    condition: Condition | None,
    particle_conditions: np.ndarray | None = None,
) -> int:
    """M: as many as the user says, or as they have conditions, or enough for n rows."""
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
    """How many knots to keep of each map: more than asked for, where a rare class would get few.

    Examples
    --------
    >>> count_knots(512, None), count_knots(512, torch.tensor([0] * 9_900 + [1] * 100))
    (512, 3200)
    """
    if codes is None or codes.dim() != 1:
        return n_knots
    sizes = torch.bincount(codes)
    wanted = _KNOTS_OF_A_CLASS * len(codes) // int(sizes[sizes > 0].min())
    return max(n_knots, min(wanted, _MOST_KNOTS))


def stages_of(parameters: Mapping[str, Any]) -> list[Stage]:
    """The stages that rows of any number of columns go through."""
    options: VectorOptions = parameters["options"]
    frame, n_steps = parameters["frame"], int(parameters["n_steps"])
    frame = FRAMES[frame]() if isinstance(frame, str) else frame
    return flat(frame, n_steps, n_axis_steps=int(options.n_axis_steps), taper=float(options.taper))


def transport_of(transport: str | Transport) -> Transport:
    """The transport of that name, or the one that is given."""
    return TRANSPORTS[transport]() if isinstance(transport, str) else transport


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise a `errors.ParameterError` for the first parameter that cannot be used."""

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
    need(ok, "amplifier", "a number of at least 0; math.inf fits every class by itself")
    need(is_real(parameters["entropy"], 0), "entropy", "a finite number of at least 0")
    need(is_int(parameters["verbose"], 0), "verbose", "an int of at least 0")
