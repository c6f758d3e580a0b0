"""The vectors of a `SlicedWassersteinFlow` that grows: rows in the coarse units of the first ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import torch
from torch import Tensor

from sliceflow.dataframes import Form
from sliceflow.devices import projection_budget, resolve_device
from sliceflow.engine import events, transports
from sliceflow.engine.flow import Flow, Run, replay, simulate
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import flat
from sliceflow.errors import need
from sliceflow.online.counts import Ledger, Place
from sliceflow.online.first import Column, FirstVectors
from sliceflow.online.growing import can_go_on, go_on, keep
from sliceflow.online.rows import Given, Online, histogram_bins, parameters_of
from sliceflow.vectors import units
from sliceflow.vectors.data import checked
from sliceflow.vectors.memory import check_online_memory
from sliceflow.vectors.start import count_particles

if TYPE_CHECKING:
    from sliceflow.vectors.estimator import SlicedWassersteinFlow

__all__ = ["VectorsOnline"]

_FAR = 1e12  # units; whatever is further out leaves no bin for the others
_FIXED = (
    "n_steps", "frame", "transport", "device", "random_state", "standardize", "taper", "n_axis_steps",
    "early_stopping",
)  # fmt: skip


@dataclass
class VectorsOnline(Online):
    """What a `SlicedWassersteinFlow` keeps.

    Parameters
    ----------
    shift, scale : the units of the engine, 0 and 1 while they are not decided
    type : of the particles
    given : where the user's tensors are, or None for arrays
    form : of the user's DataFrames, or None for others
    """

    shift: np.ndarray = field(kw_only=True)
    scale: np.ndarray = field(kw_only=True)
    type: torch.dtype = field(kw_only=True)
    given: torch.device | None = field(kw_only=True)
    form: Form | None = field(kw_only=True, default=None)

    @classmethod
    def begin(cls, estimator: SlicedWassersteinFlow, X: Any) -> VectorsOnline:
        """Nothing counted yet."""
        if estimator.early_stopping:
            raise ValueError(
                "early_stopping=True holds rows out, which partial_fit does not keep; set it to False"
            )
        need(
            estimator.n_steps + estimator._options.n_axis_steps > 0,
            "n_steps",
            estimator.n_steps,
            "at least 1 for partial_fit, or n_axis_steps: without steps nothing is counted",
        )
        n_bins = histogram_bins(estimator.transport, 1024)
        given, form = X.device if isinstance(X, Tensor) else None, Form.of(X)
        X = checked(estimator, X)
        device, seed = resolve_device(estimator.device), Seed.of(estimator.random_state)
        stages = flat(
            estimator._frame(),
            estimator.n_steps,
            n_axis_steps=estimator._options.n_axis_steps,
            taper=estimator._options.taper,
        )
        # Axis steps sort, where there is something to sort.
        stages = [replace(stage, transport=None) for stage in stages]
        flow = Flow(stages, seed.child("flow"), budget=projection_budget(device))
        places = [Place(flow, i) for i in range(len(stages))]
        return cls(
            Ledger(places, X.shape[1], n_bins),
            seed,
            device,
            parameters_of(estimator, _FIXED),
            waiting={} if estimator.standardize else None,
            shift=np.zeros(X.shape[1]),
            scale=np.ones(X.shape[1]),
            type=torch.float32 if X.dtype == np.float32 else torch.float64,
            given=given,
            form=form,
        )

    def rows(self, estimator: Any, X: Any) -> np.ndarray:
        X = checked(estimator, X, reset=False).astype(np.float64)
        return cast(np.ndarray, X + 0.0)  # no −0, which is 0 by another name

    def decided(self, given: Given) -> Self:
        columns = []
        for j, column in enumerate(given.rows.T):
            try:
                columns.append(Column.of(column))
            except OverflowError:
                raise ValueError(
                    f"column {j} of X cannot be standardised: its values reach "
                    f"{np.abs(column).max():.3g}; rescale it"
                ) from None
        names = {label: Counter(given.names[of]) for label, of in given.groups}
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
            x = units.encode(rows, self.shift, self.scale)
        if bool((far := x.abs() > _FAR).any()):
            i, j = (int(at) for at in far.nonzero()[0])
            raise ValueError(
                f"column {j} of X holds {rows[i, j]:.6g}, more than {_FAR:.0e} times its unit of "
                f"{self.scale[j]:.3g} away from 0 or from the first rows; drop such rows, rescale the "
                "column, or begin with rows that show its scale"
            )
        return x.to(self.device).T.contiguous()

    def values(self, columns: Tensor, names: Tensor, place: int) -> Tensor:
        return columns

    def check_memory(self, estimator: Any, m: int | None) -> None:
        if m is not None:
            d, n_bins = self.ledger.dimension, self.ledger.n_bins
            check_online_memory(estimator, d, self.type.itemsize, int(m), n_bins, self.device)

    def refresh(
        self,
        estimator: SlicedWassersteinFlow,
        last: int | None,
        heard: list[events.Listener],
        history: events.History,
    ) -> None:
        condition, labels, codes = self.condition()
        m = count_particles(estimator.n_particles, len(codes), condition)
        self.check_memory(estimator, m)
        flow = replace(
            self.ledger.places[0].flow,
            n_conditions=0 if condition is None else condition.width,
            amplifier=float(estimator.amplifier),
            entropy=float(estimator.entropy),
        )
        d, own = self.ledger.dimension, None if condition is None else codes
        particles, noise = self.particles(d, self.type, m, own, flow.amplifier)
        run = Run()
        if last is not None:
            steps = estimator._model[: max(0, estimator.n_iter_ - last)]
            can_go_on(estimator, condition, estimator._model)
            replay(flow, steps, particles, noise)
            run = go_on(steps, estimator, history)
        data = self.mixture(0, labels, codes, particles, flow)
        transport = transports.Histogram(data.n_bins)
        knots = estimator._options.n_knots
        model = simulate(
            flow, particles, data, transport, noise, n_knots=knots, listeners=heard, run=run
        )
        estimator._flow, estimator._model, estimator._n_rows = flow, model, len(codes)
        estimator._units = units.Units.linear(self.shift, self.scale)
        estimator._type, estimator._device, estimator._given_device = self.type, self.device, self.given
        estimator._form = self.form
        particles = particles.part(slice(m))
        keep(estimator, condition, own, particles, history)
        estimator.particles_ = estimator._give_back(particles.x)  # or an error, and nothing is kept
