"""`SlicedWassersteinFlow`: the door for vectors, by scikit-learn's conventions.

It validates, standardises, encodes conditions, hands everything to the engine, and gives results back
in the user's units, types and labels. The algorithm itself is in `flow`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from sliceflow import conditions, events, frames, transports
from sliceflow.checkpoints import Keeper, digest, identity
from sliceflow.checks import (
    default_particles,
    is_int,
    is_real,
    need_memory,
    projection_budget,
    resolve_device,
)
from sliceflow.checks import need as check
from sliceflow.distributed import Ranks, weighed
from sliceflow.flow import Cloud, Flow, Noise, Run, replay, simulate
from sliceflow.model_file import Saved
from sliceflow.online.growing import Growing
from sliceflow.online.vectors import VectorsOnline
from sliceflow.rng import Seed
from sliceflow.schedule import Stage, flat

__all__ = ["SlicedWassersteinFlow"]

_FRAMES: dict[str, Callable[[], frames.FrameKind]] = {
    "orthogonal": frames.Orthogonal,
    "random": frames.Random,
    "axis": frames.Axis,
}
_TRANSPORTS: dict[str, Callable[[], transports.Transport]] = {
    "auto": transports.Auto,
    "sorted": transports.Sorted,
    "histogram": transports.Histogram,
}
_CHUNK = 1 << 16  # offline samples per pass


class SlicedWassersteinFlow(Growing, Saved, BaseEstimator):  # type: ignore[misc]
    """Generative model for vectors: particles moved onto the data by sliced optimal transport.

    Each of `n_steps` steps projects particles and data on a frame of directions, solves the
    one-dimensional optimal transport T = F_q⁻¹ ∘ F_p on each, and moves the particles by
    x += Θᵀ(T(Θx) − Θx). Two axis steps then make every column's own distribution exact. There is no
    network and no training: the model is the maps. Rows can also be added and forgotten, by the
    `partial_fit` and `forget` of `sliceflow.online`.

    Parameters
    ----------
    n_particles : int or None
        M. None takes the smallest multiple of the number of rows that is at least 10,000.
    n_steps : int
        Steps of the flow, before the axis steps. More come closer to the data, and on small data in
        the end copy it: look at `sliceflow.metrics.nn_ratio`.
    frame : str or frame kind
        Directions of a step: "orthogonal", "random" or "axis"; objects from `sliceflow.frames` set
        their parameters, such as ``frames.Random(n_directions=10_000)``.
    transport : str or transport
        How each direction is solved: "auto", "sorted" or "histogram"; see `sliceflow.transports`.
    amplifier : float
        ξ, how far apart conditions are held. 0 ignores y.
    entropy : float
        λ ≥ 0 of the entropy-regularised flow: adds √(2λη)·noise each step, η the step in the paper's
        units.
    device : str or torch.device
        "auto" takes a GPU where there is one.
    random_state : int, RandomState, Generator or None
        The same seed on the same machine gives the same bits.
    verbose : int
        1 shows a progress bar.
    standardize : bool
        Work on columns of mean 0 and standard deviation 1. Results are in the user's units either way.
        Without it the flow still starts from N(0, I), so bring the data near that scale.
    taper : float
        The step size falls from 1 to 0 over this last share of the steps (0: never).
    n_axis_steps : int
        Axis steps at the end.
    n_knots : int
        At most this many knots are kept of each map for offline samples.
    early_stopping : bool
        Hold out rows, and stop when the particles no longer come closer to them.
    validation_fraction : float
        The share of the rows held out by `early_stopping`.
    n_iter_no_change : int
        Steps without improvement after which `early_stopping` stops.
    tol : float
        The least relative improvement that counts.

    Attributes
    ----------
    particles_ : array or tensor
        (M, d) batched samples.
    particle_conditions_ : array or None
        Their conditions as the user wrote them.
    classes_ : array
        The class labels, if y was labels.
    history_ : dict
        Lists: stage, step, sliced distance before the step, seconds.
    n_iter_ : int
        Steps done, axis steps included.
    n_features_in_ : int
        d.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from sliceflow import SlicedWassersteinFlow
    >>> X, y = make_moons(500, noise=0.05, random_state=0)
    >>> flow = SlicedWassersteinFlow(n_steps=50, random_state=0).fit(X, y)
    >>> flow.particles_.shape
    (10000, 2)
    >>> flow.sample(3, y=1, random_state=0).shape
    (3, 2)
    """

    def __init__(
        self,
        n_particles: int | None = None,
        n_steps: int = 200,
        frame: str | frames.FrameKind = "orthogonal",
        transport: str | transports.Transport = "auto",
        amplifier: float = 10.0,
        entropy: float = 0.0,
        device: str | torch.device = "auto",
        random_state: Any = None,
        verbose: int = 0,
        *,
        standardize: bool = True,
        taper: float = 0.5,
        n_axis_steps: int = 2,
        n_knots: int = 512,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-4,
    ) -> None:
        self.n_particles = n_particles
        self.n_steps = n_steps
        self.frame = frame
        self.transport = transport
        self.amplifier = amplifier
        self.entropy = entropy
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.standardize = standardize
        self.taper = taper
        self.n_axis_steps = n_axis_steps
        self.n_knots = n_knots
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        particle_conditions: Any = None,
        listeners: tuple[events.Listener, ...] = (),
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 60.0,
        ranks: Ranks | None = None,
    ) -> Self:
        """Move particles onto the rows of X.

        Parameters
        ----------
        X : (n, d) array or tensor of finite numbers; float32 and float64 are kept
        y : None, labels (n,) of any hashable kind, or continuous columns (n, l)
        particle_conditions : the particles' own y, M of them, in any shares; None takes the data's
            proportions. For labels the data are weighted to match, so any shares are right; continuous
            ones should be spread as the data's are.
        listeners : callables that take a `sliceflow.events.Event` after every step; one that returns
            True ends the stage
        checkpoint_dir : a folder for the state of the fit, or None. A fit that was killed goes on
            when it is called again with the same data, parameters and folder, and ends with the same
            bits as one that was not
        checkpoint_every : seconds between two checkpoints
        ranks : of `sliceflow.distributed.joined`, all of which call this with the same parameters. X
            and y are then this rank's own rows, `particle_conditions` all of them, and `particles_`
            and `particle_conditions_` this rank's share: ``ranks.gather(flow.particles_)`` are all
        """
        self._check_parameters()
        together = ranks or Ranks()
        given = X.device if isinstance(X, Tensor) else None
        if isinstance(X, Tensor):
            X = X.detach().cpu().numpy()
        X = validate_data(self, X, dtype=[np.float64, np.float32])
        condition, codes = None, None
        y = None if y is None else conditions.as_array(y)
        place = together.place(len(X), _kind(X, y))
        if y is not None:
            conditions.infer(y, len(X))  # what is wrong with a rank's own is said before all are asked
            y = together.gather(y)
            condition = conditions.infer(y, place.total)
            codes = condition.encode(y)
        device = resolve_device(self.device)
        seed, keeper = together.told_by_first(Seed.of(self.random_state)), None
        if checkpoint_dir is not None:
            given_y = None if particle_conditions is None else conditions.as_array(particle_conditions)
            data_of = dict(X=digest(X, together, place), y=digest(y))
            data_of["particle_conditions"] = digest(given_y)
            of = identity(self, device, seed, **data_of)
            keeper = Keeper(checkpoint_dir, checkpoint_every, of, seed, together)
            seed = keeper.seed

        shift, scale = _standardization(X, self.standardize, together, place.total)
        x = torch.from_numpy(((X - shift) / scale).astype(X.dtype))
        heard: list[events.Listener] = [history := events.History()]
        heard += together.agreeing(listeners)
        rule = None
        if self.early_stopping:
            kept, held = self._hold_out(place.total, seed.child("held out"))
            kept_here, held_here = (
                rows[(rows >= place.first) & (rows < place.first + place.count)] - place.first
                for rows in (kept, held)
            )
            all_held = together.gather(x[held_here])
            rule = self._stopping_rule(all_held.to(device), seed.child("stopping rule"), together)
            heard.append(rule)
            x = x[kept_here]
            if y is not None and codes is not None:
                y, codes = y[kept.numpy()], codes[kept]
            place = together.place(len(x))
        if self.verbose and together.first:
            heard.append(events.Progress())

        m = self._resolve_n_particles(place.total, condition, particle_conditions)
        share = together.share(m)
        check(share.total >= together.size, "n_particles", m, f"at least {together.size}, one per rank")
        transport = self._transport()
        h = max(getattr(self._frame(), "n_directions", 0), x.shape[1])
        n_values = 2 * self.n_knots * (h * self.n_steps + x.shape[1] * self.n_axis_steps)
        gathered = m + place.total
        _check_memory(
            share.count, x, self._frame(), transport, self.n_axis_steps, n_values, gathered, device
        )
        y_p, codes_p, order = None, None, None
        if condition is not None and codes is not None:
            if particle_conditions is not None:
                y_p = conditions.as_array(particle_conditions)
                order = seed.child("conditions").permutation(m)  # the flow wants them in random order
                codes_p = condition.encode(y_p)[order]
            else:
                rows = conditions.proportional(codes, m, seed.child("conditions"))
                y_p, codes_p = y[rows.numpy()], codes[rows]

        data = _cloud(x, None if codes is None else codes[place.slice], device)
        noise = Noise(seed.child("particles"), share.first)
        own_codes = None if codes_p is None else codes_p[share.slice]
        particles = _cloud(x.new_empty(share.count, x.shape[1]), own_codes, device)
        noise.child("start").fill(particles.x)
        flow = Flow(
            self.stages(),
            seed.child("flow"),
            0 if condition is None else condition.width,
            float(self.amplifier),
            float(self.entropy),
            projection_budget(device),
        )
        run, batches, shared = Run(), None, flow
        if ranks is not None:  # every step looks at everything, and all ranks at the same maps
            pair = (codes, codes_p) if flow.conditional else (None, None)
            here = torch.arange(place.first, place.first + place.count)
            batches, left_out = weighed(*pair, here, device)
            shared, transport = _shared(flow, transport, ranks, m + place.total - left_out)
        kept_up: Any = nullcontext()
        if keeper is not None:
            kept_up = keeper.running(run, particles, history, rule, share.first)
        with events.closing(heard), kept_up:
            model = simulate(
                shared,
                particles,
                data,
                transport,
                noise,
                n_knots=self.n_knots,
                listeners=heard,
                batches=batches,
                run=run,
            )

        # Only now is anything kept: a fit that fails or is interrupted leaves the old model whole.
        self._online = None
        self.__dict__.pop("_file", None)  # no longer the model of a file
        self._flow, self._model, self._shift, self._scale = flow, model, shift, scale
        self._condition, self._codes = condition, codes
        self._type, self._device, self._given_device = x.dtype, device, given
        moved = particles.x
        if order is not None:  # back into the user's own
            moved = together.pick(moved, torch.argsort(order)[share.slice].to(device))
        self.particles_ = self._give_back(moved)
        self.particle_conditions_ = None if y_p is None else y_p[share.slice]
        if isinstance(condition, conditions.Labels):
            self.classes_ = condition.classes
        elif hasattr(self, "classes_"):
            del self.classes_
        self.history_ = history.as_columns()
        self.n_iter_ = len(self.history_["step"])
        return self

    def sample(self, n_samples: int = 1, y: Any = None, random_state: Any = None) -> Any:
        """Offline samples: fresh noise moved by the fitted maps.

        Parameters
        ----------
        n_samples : int
        y : one condition for all samples, an array with one per sample, or None for conditions in the
            data's proportions. Labels may also be given as an (n_samples, C) array of class weights.
        random_state : int, RandomState, Generator or None
            None draws anew on every call.

        Returns
        -------
        (n_samples, d) array, or tensor if the model was fitted on one, in the units and type of X
        """
        check_is_fitted(self, "history_")
        check(is_int(n_samples, 1), "n_samples", n_samples, "an int of at least 1")
        seed = Seed.of(random_state)
        codes = self._codes_for_sampling(int(n_samples), y, seed.child("conditions"))
        out = []
        for first in range(0, int(n_samples), _CHUNK):
            n = min(_CHUNK, int(n_samples) - first)
            x = torch.empty((n, len(self._shift)), dtype=self._type)
            chunk = _cloud(x, None if codes is None else codes[first : first + n], self._device)
            noise = Noise(seed.child("particles"), first)
            noise.child("start").fill(chunk.x)
            replay(self._flow, self._model, chunk, noise)
            out.append(self._give_back(chunk.x))
        return np.concatenate(out) if self._given_device is None else torch.cat(out)

    def sampled_labels(self, n_samples: int, random_state: Any) -> np.ndarray | None:
        """The labels of ``sample(n_samples, random_state=random_state)``: in the data's proportions."""
        check_is_fitted(self, "history_")
        if not isinstance(self._condition, conditions.Labels) or self._codes is None:
            return None
        seed = Seed.of(random_state).child("conditions")
        codes = self._codes[conditions.proportional(self._codes, n_samples, seed)]
        return np.asarray(self._condition.classes[codes.numpy()])

    def stages(self) -> list[Stage]:
        """The stages of a fit; nothing needs to be fitted."""
        return flat(self._frame(), self.n_steps, n_axis_steps=self.n_axis_steps, taper=self.taper)

    def _codes_for_sampling(self, n: int, y: Any, seed: Seed) -> Tensor | None:
        condition = self._condition
        if condition is None:
            if y is not None:
                raise ValueError("y was given but the model was fitted without conditions; leave y out")
            return None
        if y is None and self._codes is not None:
            return self._codes[conditions.proportional(self._codes, n, seed)]
        codes = condition.encode(conditions.repeated(condition, y, n))
        if len(codes) != n:
            raise ValueError(
                f"y has {len(codes)} rows but n_samples={n}; pass one condition, or one per sample"
            )
        return codes

    def _give_back(self, x: Tensor) -> Any:
        """(d, n) in the engine's units -> (n, d) in the user's units, type and kind of array."""
        scale, shift = (torch.from_numpy(t).to(x.device) for t in (self._scale, self._shift))
        rows = (x.T.double() * scale + shift).to(x.dtype)
        if self._given_device is None:
            return np.ascontiguousarray(rows.cpu().numpy())
        return rows.contiguous().to(self._given_device)

    def _begin_online(self, X: Any) -> VectorsOnline:
        return VectorsOnline.begin(self, X)

    def _units(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return _standardization(X, self.standardize)

    def _frame(self) -> frames.FrameKind:
        return _FRAMES[self.frame]() if isinstance(self.frame, str) else self.frame

    def _transport(self) -> transports.Transport:
        if isinstance(self.transport, str):
            return _TRANSPORTS[self.transport]()
        return self.transport

    def _hold_out(self, n: int, seed: Seed) -> tuple[Tensor, Tensor]:
        """Row numbers to fit and row numbers held out."""
        n_held = math.ceil(self.validation_fraction * n)
        if n_held >= n:
            raise ValueError(
                f"early_stopping holds out {n_held} of {n} rows and leaves none to fit; "
                "give more rows or set early_stopping=False"
            )
        order = seed.permutation(n)
        return order[n_held:].sort().values, order[:n_held].sort().values

    def _stopping_rule(self, rows: Tensor, seed: Seed, ranks: Ranks) -> events.HeldOut:
        return events.HeldOut(
            rows.T.contiguous(),
            seed,
            n_iter_no_change=self.n_iter_no_change,
            tol=self.tol,
            joint=ranks.joint,
        )

    def _resolve_n_particles(
        self, n: int, condition: conditions.Condition | None, particle_conditions: Any
    ) -> int:
        if particle_conditions is not None:
            if condition is None:
                raise ValueError("particle_conditions was given without y; pass y as well")
            m = len(particle_conditions)
            if self.n_particles not in (None, m):
                raise ValueError(
                    f"particle_conditions has {m} rows but n_particles={self.n_particles}; "
                    "make them equal or leave n_particles=None"
                )
        elif self.n_particles is not None:
            m = int(self.n_particles)
        else:
            m = default_particles(n)
        if isinstance(condition, conditions.Labels) and m < condition.width:
            raise ValueError(
                f"n_particles={m} is fewer than the {condition.width} classes of y; "
                f"pass n_particles >= {condition.width}"
            )
        return m

    def _check_parameters(self) -> None:
        def need(ok: bool, name: str, what: str) -> None:
            check(ok, name, getattr(self, name), what)

        need(
            self.n_particles is None or is_int(self.n_particles, 1),
            "n_particles",
            "None or an int of at least 1",
        )
        need(is_int(self.n_steps, 0), "n_steps", "an int of at least 0")
        need(is_int(self.n_axis_steps, 0), "n_axis_steps", "an int of at least 0")
        need(is_int(self.n_knots, 2), "n_knots", "an int of at least 2")
        need(
            self.frame in _FRAMES if isinstance(self.frame, str) else hasattr(self.frame, "draw"),
            "frame",
            f"one of {sorted(_FRAMES)} or a frame kind from sliceflow.frames",
        )
        need(
            self.transport in _TRANSPORTS
            if isinstance(self.transport, str)
            else hasattr(self.transport, "fit") and hasattr(self.transport, "most"),
            "transport",
            f"one of {sorted(_TRANSPORTS)} or a transport from sliceflow.transports",
        )
        for name in ("amplifier", "entropy"):
            need(is_real(getattr(self, name), 0), name, "a finite number of at least 0")
        need(is_real(self.taper, 0, 1), "taper", "a number from 0 to 1")
        need(
            is_real(self.validation_fraction, 0, 1) and 0 < self.validation_fraction < 1,
            "validation_fraction",
            "a number between 0 and 1",
        )
        need(is_int(self.n_iter_no_change, 1), "n_iter_no_change", "an int of at least 1")
        need(is_real(self.tol, 0), "tol", "a number of at least 0")
        need(is_int(self.verbose, 0), "verbose", "an int of at least 0")


def _cloud(x: Tensor, codes: Tensor | None, device: torch.device) -> Cloud:
    """Rows (n, d) and codes, as the engine stores them: columns, on its device."""
    return Cloud(x.to(device).T.contiguous(), None if codes is None else codes.to(device))


def _kind(X: np.ndarray, y: np.ndarray | None) -> str:
    """What ranks must agree on."""
    of_y = "no y" if y is None else f"y of kind {y.dtype.kind} and shape (n, {y.shape[1:]})"
    return f"X of {X.dtype} with {X.shape[1]} columns and {of_y}"


def _shared(flow: Flow, transport: transports.Transport, ranks: Ranks, n: int) -> Any:
    """The flow and the transport with which ranks simulate, `n` particles and data in all."""
    stages = [
        replace(stage, transport=stage.transport and ranks.shared(stage.transport, n))
        for stage in flow.schedule
    ]
    return replace(flow, schedule=stages), ranks.shared(transport, n)


def _standardization(
    X: np.ndarray,
    wanted: bool,
    ranks: Ranks = Ranks(),  # noqa: B008, it is frozen
    n: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(shift, scale) of each column; a constant column is shifted to 0 and not scaled.

    Of the rows of all ranks, n in all.
    """
    n = len(X) if n is None else n
    d = X.shape[1]
    if not wanted:
        return np.zeros(d), np.ones(d)

    ends = ranks.least(torch.from_numpy(np.stack((X.min(axis=0), -X.max(axis=0)))))
    constant = (ends[0] == -ends[1]).numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        mean = ranks.mean(X, n)
        std = np.sqrt(ranks.mean(X, n, about=mean))
    bad = ~constant & ~(np.isfinite(std) & (std > 0))
    if bad.any():
        column = int(np.argmax(bad))
        raise ValueError(
            f"column {column} of X cannot be standardised: its values reach "
            f"{np.abs(X[:, column]).max():.3g} and their standard deviation is {std[column]}; "
            "rescale it"
        )
    return np.where(constant, X[0].astype(np.float64), mean), np.where(constant, 1.0, std)


def _check_memory(
    m: int,
    x: Tensor,
    frame: frames.FrameKind,
    transport: transports.Transport,
    n_axis_steps: int,
    n_values: int,
    gathered: int,
    device: torch.device,
) -> None:
    """Refuse what cannot fit: both clouds, projections and what fitting makes of them, the model."""
    n, d = x.shape
    h = max(getattr(frame, "n_directions", d), d)
    looked_at = min(m, transport.most or m) + min(n, transport.most or n)
    arrays = 7 if transport.most is None else 3  # sorting keeps order, knots and values besides z
    projected = arrays * h * looked_at
    if n_axis_steps:
        projected = max(projected, 7 * d * gathered)  # axis steps sort everything
    need_memory(
        x.itemsize * (2 * d * (m + n) + projected + n_values),
        device,
        f"n_particles={m} with {n} rows of {d} columns and {h} directions needs",
        "lower n_particles, the number of directions or n_knots",
    )
