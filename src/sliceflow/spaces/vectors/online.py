"""`partial_fit` and `forget` for vectors: rows are counted in coarse units that the first rows set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor

from sliceflow.dataframes import Form
from sliceflow.devices import projection_budget, resolve_device
from sliceflow.engine import conditions, events, transports
from sliceflow.engine.flow import Flow, Run, replay, simulate
from sliceflow.engine.frames import MaxSliced
from sliceflow.engine.random import Seed
from sliceflow.engine.shrinkage import Shrinkage
from sliceflow.errors import ParameterError, need
from sliceflow.models.ranks import Ranks
from sliceflow.online.counts import CountedStage, Ledger
from sliceflow.online.first import Column, FirstVectors
from sliceflow.online.growing import check_classes, resume_run
from sliceflow.online.rows import (
    Online,
    PreviousRefresh,
    Refreshed,
    RowBatch,
    fixed,
    histogram_bins,
    settings,
)
from sliceflow.spaces.vectors.data import FitInput, read_input
from sliceflow.spaces.vectors.fitted import FittedVectors, Part
from sliceflow.spaces.vectors.options import VectorOptions
from sliceflow.spaces.vectors.plan import VectorPlan, count_particles, make_plan, stages_of
from sliceflow.spaces.vectors.smoothing import Strength
from sliceflow.spaces.vectors.units import Units, encode

__all__ = ["VectorsOnline", "check_width", "joined", "without"]

_FAR = 1e12  # units; a larger value would leave no bins for the others
_FIXED = (
    "n_steps", "frame", "transport", "device", "random_state", "standardize", "taper", "n_axis_steps",
    "early_stopping",
)  # fmt: skip


@dataclass
class VectorsOnline(Online):
    """The counts of a `SlicedWassersteinFlow`.

    Parameters
    ----------
    shift, scale : the engine's units; 0 and 1 until the first rows decide them
    dtype : dtype of the particles
    given_device : device of the user's tensors; None for arrays
    form : columns of the user's DataFrames; None for other types
    """

    shift: np.ndarray = field(kw_only=True)
    scale: np.ndarray = field(kw_only=True)
    dtype: torch.dtype = field(kw_only=True)
    given_device: torch.device | None = field(kw_only=True)
    form: Form | None = field(kw_only=True, default=None)

    @classmethod
    def begin(
        cls,
        parameters: Mapping[str, Any],
        rows: np.ndarray,
        given_device: torch.device | None,
        form: Form | None,
    ) -> VectorsOnline:
        """Empty counts."""
        if parameters["early_stopping"]:
            raise ValueError(
                "early_stopping=True holds out rows, but partial_fit keeps only counts; set it to False"
            )
        _no_smoothing(parameters["options"])
        need(
            not any(isinstance(stage.frame, MaxSliced) for stage in stages_of(parameters)),
            "frame",
            parameters["frame"],
            "'orthogonal', 'random' or 'axis' for partial_fit: directions are fitted to rows",
        )
        now = settings(parameters)
        need(
            now["n_steps"] + now["n_axis_steps"] > 0,
            "n_steps",
            now["n_steps"],
            "at least 1 for partial_fit, unless n_axis_steps is: counts belong to steps",
        )
        n_bins = histogram_bins(parameters["transport"], 1024)
        device, seed = resolve_device(parameters["device"]), Seed.of(parameters["random_state"])
        # Axis steps usually sort, but counts cannot be sorted.
        stages = [replace(stage, transport=None) for stage in stages_of(parameters)]
        flow = Flow(stages, seed.child("flow"), budget=projection_budget(device))
        places = [CountedStage(flow, i) for i in range(len(stages))]
        d = rows.shape[1]
        return cls(
            Ledger(places, d, n_bins),
            seed,
            device,
            fixed(parameters, _FIXED),
            waiting={} if parameters["standardize"] else None,
            shift=np.zeros(d),
            scale=np.ones(d),
            dtype=torch.float32 if rows.dtype == np.float32 else torch.float64,
            given_device=given_device,
            form=form,
        )

    def read(self, X: Any) -> np.ndarray:
        return cast(
            np.ndarray, X.astype(np.float64) + 0.0
        )  # −0 becomes 0: equal rows must have equal bytes

    def decided(self, batch: RowBatch) -> Self:
        columns = []
        for j, column in enumerate(batch.rows.T):
            try:
                columns.append(Column.of(column))
            except OverflowError:
                raise ValueError(
                    f"column {j} of X cannot be standardised: its values reach "
                    f"{np.abs(column).max():.3g}; rescale it"
                ) from None
        names = {label: Counter(batch.names[of]) for label, of in batch.groups}
        return replace(
            self,
            waiting=None,
            first=FirstVectors(names, tuple(columns)),
            shift=np.array([column.shift for column in columns]),
            scale=np.array([column.scale for column in columns]),
            ledger=replace(self.ledger, tallies={}, rows={}),
        )

    def columns(self, rows: np.ndarray) -> Tensor:
        with np.errstate(over="ignore"):
            x = encode(rows, self.shift, self.scale)
        if bool((far := x.abs() > _FAR).any()):
            i, j = (int(at) for at in far.nonzero()[0])
            raise ValueError(
                f"column {j} of X holds {rows[i, j]:.6g}, more than {_FAR:.0e} times its unit of "
                f"{self.scale[j]:.3g} away from 0 or from the first rows; drop such rows, rescale the "
                "column, or start with rows of its full range"
            )
        return x.to(self.device).T.contiguous()

    def values(self, columns: Tensor, names: Tensor, place: int) -> Tensor:
        return columns

    def check_memory(self, parameters: Mapping[str, Any], m: int) -> None:
        self._plan(parameters, 0, m, None)

    def _plan(
        self, parameters: Mapping[str, Any], n: int, m: int, condition: conditions.Labels | None
    ) -> VectorPlan:
        return make_plan(
            parameters,
            shape=(n, self.ledger.dimension),
            dtype=self.dtype,
            n_particles=m,
            condition=condition,
            codes=None,
            device=self.device,
            transport=transports.Histogram(self.ledger.n_bins, most=None),
            smoothing=_no_smoothing(parameters["options"]),
        )

    def refresh(
        self,
        parameters: Mapping[str, Any],
        previous: PreviousRefresh | None,
        listeners: list[events.Listener],
        history: events.History,
    ) -> Refreshed:
        condition, labels, codes = self.condition()
        m = count_particles(parameters["n_particles"], len(codes), condition)
        plan = self._plan(parameters, len(codes), m, condition)
        flow = replace(
            self.ledger.places[0].flow,
            n_conditions=plan.n_conditions,
            amplifier=plan.amplifier,
            entropy=plan.entropy,
        )
        d, data_codes = self.ledger.dimension, None if condition is None else codes
        particles, place, noise = self.particles(d, self.dtype, m, data_codes, flow.amplifier)
        run = Run()
        if previous is not None:
            part = previous.fitted.parts[0]
            check_classes(previous.fitted.condition, condition)
            steps = part.model[: max(0, len(part.model) - previous.last)]
            replay(flow, steps, particles, noise)
            run = resume_run(steps, previous, history)
        data = self.mixture(0, labels, codes, particles, flow)
        transport = transports.Histogram(data.n_bins)
        model = simulate(
            flow,
            particles,
            data,
            transport,
            noise,
            n_knots=plan.n_knots,
            listeners=listeners,
            run=run,
            shrinkage=Shrinkage.of(plan.shrinkage, particles.x.shape[1], len(codes)),
        )
        units = Units.linear(self.shift, self.scale)
        fitted = FittedVectors(
            (Part(flow, model, units),),
            condition,
            data_codes,
            len(codes),
            self.dtype,
            self.device,
            self.given_device,
            self.form,
        )
        n_moved = particles.x.shape[1]
        particles = particles.part(place)
        y_kept = None
        if condition is not None and particles.y is not None:
            y_kept = condition.decode(particles.y)
        batched = fitted.in_form(fitted.rows(units, particles.x))  # an error here keeps nothing
        return Refreshed(replace(plan, n_moved=n_moved), fitted, batched, y_kept)


def _no_smoothing(options: VectorOptions) -> Strength:
    """None for `partial_fit`: counts have no neighbours."""
    if options.smoothing not in ("auto", 0):
        fact = "needs rows, but partial_fit keeps only counts"
        raise ParameterError("smoothing", options.smoothing, fact, "use 'auto' or 0, or call fit")
    return Strength(0.0, "partial_fit keeps only counts" if options.smoothing == "auto" else "")


def joined(parts: Sequence[FitInput]) -> FitInput:
    """All rows in one, in the form of the first."""
    X, y = (np.concatenate([_pair(part)[i] for part in parts]) for i in (0, 1))
    return read_input(X, y, parts[0].device, parts[0].form, Ranks())


def check_width(y: Any, known: FitInput) -> np.ndarray:
    """y as an array with as many columns as that of the rows of a model."""
    width = _pair(known)[1].shape[1]
    array = np.empty(0) if y is None else conditions.as_array(y)
    if array.ndim != 2 or array.shape[1] != width:
        raise ValueError(
            f"y {'is missing' if y is None else f'has shape {array.shape}'}, but a model of local "
            f"conditions keeps every row with its y, here of {width} columns; pass y of shape "
            f"(n, {width})"
        )
    return array


def without(known: FitInput, X: np.ndarray, y: np.ndarray) -> FitInput:
    """The rows that are left when those of X and y go; of equal rows the last go first."""
    left: dict[tuple[Any, ...], list[int]] = {}
    for i, key in enumerate(_keys(*_pair(known))):
        left.setdefault(key, []).append(i)
    keep = np.ones(len(known.X), dtype=bool)
    for i, key in enumerate(_keys(X, y)):
        if not left.get(key):
            raise ValueError(
                f"row {i} of X, with its y, is not in the model, or X has it more often; nothing was "
                "forgotten"
            )
        keep[left[key].pop()] = False
    if keep.sum() < 2:
        raise ValueError(
            f"forgetting {(~keep).sum()} rows would leave {keep.sum()}; delete the model instead"
        )
    X, y = (a[keep] for a in _pair(known))
    return read_input(X, y, known.device, known.form, Ranks())


def _pair(rows: FitInput) -> tuple[np.ndarray, np.ndarray]:
    assert rows.y is not None
    return rows.X, rows.y


def _keys(X: np.ndarray, y: np.ndarray) -> Iterator[tuple[Any, ...]]:
    """Something to look each row up by; equal for equal numbers of any type."""
    if len(X) != len(y):
        raise ValueError(f"X has {len(X)} rows but y has {len(y)}; pass one y for every row of X")
    return ((*x, *values) for x, values in zip(X.tolist(), y.tolist(), strict=True))
