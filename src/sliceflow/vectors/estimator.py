"""`SlicedWassersteinFlow`: the door for vectors, by scikit-learn's conventions.

It hands what it is given to the engine, and gives results back in the user's units, types and labels.
What is checked and made ready for a fit is in `vectors`, the algorithm itself in `flow`.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from sliceflow.dataframes import Form
from sliceflow.devices import resolve_device
from sliceflow.engine import conditions, events, frames, transports
from sliceflow.engine.flow import Noise, Run, replay, simulate
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage, flat
from sliceflow.errors import is_int, need, need_finite
from sliceflow.online.growing import Growing
from sliceflow.ranks import Ranks
from sliceflow.storage.checkpoints import CheckpointWriter, digest, identity, same_on_all
from sliceflow.storage.file import Fields
from sliceflow.storage.limits import Allowance
from sliceflow.storage.models import Saved
from sliceflow.vectors import saved
from sliceflow.vectors.data import HeldRows, hold_out, read
from sliceflow.vectors.finish import finish, stages_before_axis_steps
from sliceflow.vectors.memory import check_sample_memory
from sliceflow.vectors.online import VectorsOnline
from sliceflow.vectors.options import VectorOptions
from sliceflow.vectors.parameters import check_parameters, frame_of
from sliceflow.vectors.start import Start, begin, cloud
from sliceflow.vectors.units import Units

__all__ = ["SlicedWassersteinFlow"]

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
        How many particles are kept. None takes the smallest multiple of the number of rows that is at
        least 10,000. A fit may have more: at least 2,000, and 200 of every class, because offline
        samples are poor where maps were fitted to few.
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
        Work on columns of mean 0 and standard deviation 1; those with heavy tails are bent first
        (`sliceflow.vectors.units`). Results are in the user's units either way. Without it the flow
        still starts from N(0, I), so bring the data near that scale.
    early_stopping : bool
        Hold out rows, and stop when the particles no longer come closer to them; to those of the same
        condition, where there is one.
    options : VectorOptions or None
        Settings that are rarely changed; None is all their defaults.

    Attributes
    ----------
    particles_ : array, tensor or DataFrame, as X was
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
    feature_names_in_ : array
        The names of the columns, if X was a DataFrame with texts for names.

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

    _form: Form | None = None  # of the DataFrame that was fitted

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
        early_stopping: bool = False,
        options: VectorOptions | None = None,
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
        self.early_stopping = early_stopping
        self.options = options

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        particle_conditions: Any = None,
        listeners: events.Listeners = (),
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 60.0,
        ranks: Ranks | None = None,
    ) -> Self:
        """Move particles onto the rows of X.

        Parameters
        ----------
        X : (n, d) array, tensor or DataFrame of finite numbers; float32 and float64 are kept
        y : None, labels (n,) of any hashable kind, or continuous columns (n, l)
        particle_conditions : the particles' own y, M of them, in any shares; None takes the data's
            proportions. For labels the data are weighted to match, so any shares are right; continuous
            ones should be spread as the data's are.
        listeners : a callable that takes a `sliceflow.events.Event` after every step, or a tuple of
            them; one that returns True ends the stage
        checkpoint_dir : a folder for the state of the fit, or None. A fit that was killed goes on
            when it is called again with the same data, parameters and folder, and ends with the same
            bits as one that was not
        checkpoint_every : seconds between two checkpoints
        ranks : of `sliceflow.ranks.joined`, all of which call this with the same parameters. X
            and y are then this rank's own rows, `particle_conditions` all of them, and `particles_`
            and `particle_conditions_` this rank's share: ``ranks.gather(flow.particles_)`` are all
        """
        self._check_parameters()
        listening = events.listening(listeners)
        together, device = ranks or Ranks(), resolve_device(self.device)
        if particle_conditions is not None:
            particle_conditions = np.atleast_1d(conditions.as_array(particle_conditions))
        same_on_all(
            together, self, device, checkpoint_dir, particle_conditions=digest(particle_conditions)
        )
        given = read(self, X, y, together)
        seed, keeper = together.broadcast(Seed.of(self.random_state)), None
        if checkpoint_dir is not None:
            of = identity(self, device, seed, **given.digests(particle_conditions, together))
            keeper = CheckpointWriter(checkpoint_dir, checkpoint_every, of, seed, together)
            seed = keeper.seed

        units = Units.of(given.X, self.standardize, together, given.place.total)
        rows = given.rows(units)
        held = None
        if self.early_stopping:
            rows, held = hold_out(
                rows, self._options.validation_fraction, seed.child("held out"), together
            )
        start, run = begin(self, rows, particle_conditions, seed, device, ranks), Run()
        heard: list[events.Listener] = [history := events.History()]
        heard += together.agreeing(listening)
        rule = None
        if held is not None:
            rule = self._stopping_rule(held, start, seed.child("stopping rule"), together)
            heard.append(rule)
        if self.verbose and together.first:
            heard.append(events.Progress())
        kept_up: Any = nullcontext()
        if keeper is not None:
            kept_up = keeper.running(run, start.particles, history, rule, start.share.first)
        with events.closing(heard), kept_up:
            simulate(
                start.shared,
                start.particles,
                start.data,
                start.transport,
                start.noise,
                n_knots=start.n_knots,
                listeners=heard,
                batches=start.batches,
                run=run,
                n_stages=stages_before_axis_steps(start.flow),
            )
            to_tell = [listener for listener in heard if listener is not rule]
            particles, model = finish(
                start, run, rows, self._options.n_knots, to_tell, seed.child("fresh"), ranks
            )

        batched = _given_back(units.decode(particles), given.device)
        # Only now is anything kept: a fit that fails or is interrupted leaves the old model whole.
        self._online = None
        self.__dict__.pop("_file", None)  # no longer the model of a file
        self._flow, self._model, self._units = start.flow, model, units
        self._condition, self._codes = rows.condition, rows.codes
        self._n_rows = rows.place.total
        self._type, self._device, self._given_device = rows.x.dtype, device, given.device
        self._form = given.form
        self.__dict__.pop("feature_names_in_", None)
        self.__dict__.update(given.features)
        self.particles_ = self._in_form(batched)
        self.particle_conditions_ = start.y
        if isinstance(rows.condition, conditions.Labels):
            self.classes_ = rows.condition.classes
        elif hasattr(self, "classes_"):
            del self.classes_
        self.history_ = history.as_columns()
        self.n_iter_ = len(self.history_["step"])
        return self

    @frames.releasing()
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
        (n_samples, d) array, or a tensor or DataFrame if the model was fitted on one, in the units and
        type of X
        """
        check_is_fitted(self, "history_")
        need(is_int(n_samples, 1), "n_samples", n_samples, "an int of at least 1")
        check_sample_memory(
            [stage.frame for stage in self._flow.schedule],
            int(n_samples),
            len(self._units.shift),
            self._type.itemsize,
            self._flow.n_conditions,
            min(_CHUNK, int(n_samples)),
            self._device,
        )
        seed = Seed.of(random_state)
        codes = self._codes_for_sampling(int(n_samples), y, seed.child("conditions"))
        out = []
        for first in range(0, int(n_samples), _CHUNK):
            n = min(_CHUNK, int(n_samples) - first)
            x = torch.empty((n, len(self._units.shift)), dtype=self._type)
            chunk = cloud(x, None if codes is None else codes[first : first + n], self._device)
            noise = Noise(seed.child("particles"), first)
            noise.child("start").fill(chunk.x)
            replay(self._flow, self._model, chunk, noise)
            out.append(self._rows(chunk.x))
        return self._in_form(np.concatenate(out) if self._given_device is None else torch.cat(out))

    def sampled_labels(self, n_samples: int, random_state: Any) -> np.ndarray | None:
        """The labels of ``sample(n_samples, random_state=random_state)``: in the data's proportions."""
        check_is_fitted(self, "history_")
        if not isinstance(self._condition, conditions.Labels) or self._codes is None:
            return None
        seed = Seed.of(random_state).child("conditions")
        codes = self._codes[conditions.proportional(self._codes, n_samples, seed)]
        return np.asarray(self._condition.classes[codes.numpy()])

    @property
    def _options(self) -> VectorOptions:
        return VectorOptions() if self.options is None else self.options

    def stages(self) -> list[Stage]:
        """The stages of a fit; nothing needs to be fitted."""
        return flat(
            self._frame(),
            self.n_steps,
            n_axis_steps=self._options.n_axis_steps,
            taper=self._options.taper,
        )

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
        return self._in_form(self._rows(x))

    def _in_form(self, rows: Any) -> Any:
        return rows if self._form is None else self._form.made(rows)

    def _rows(self, x: Tensor) -> Any:
        return _given_back(self._units.decode(x), self._given_device)

    def _begin_online(self, X: Any) -> VectorsOnline:
        return VectorsOnline.begin(self, X)

    def _packed(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        return saved.packed(self, tensors)

    @classmethod
    def _unpacked(
        cls, header: Fields, tensors: dict[str, Tensor], device: torch.device, allowed: Allowance
    ) -> Self:
        return saved.unpacked(cls, header, tensors, device, allowed)

    def _check_parameters(self) -> None:
        check_parameters(self)

    def _frame(self) -> frames.FrameKind:
        return frame_of(self.frame)

    def _stopping_rule(self, held: HeldRows, start: Start, seed: Seed, ranks: Ranks) -> events.HeldOut:
        return events.HeldOut(
            held.x.to(start.data.x.device).T.contiguous(),
            seed,
            held.codes,
            start.codes,
            n_iter_no_change=self._options.n_iter_no_change,
            tol=self._options.tol,
            joint=ranks.joint,
        )


def _given_back(rows: Tensor, device: torch.device | None) -> Any:
    """Rows (n, d) as an array, or as a tensor on `device` if there is one; finite, or an error."""
    need_finite(rows, "rescale X, drop rows that are far from all others, or pass float64")
    if device is None:
        return np.ascontiguousarray(rows.cpu().numpy())
    return rows.contiguous().to(device)
