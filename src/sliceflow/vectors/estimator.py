"""`SlicedWassersteinFlow`: generative models of vectors, by scikit-learn's conventions."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from sliceflow.dataframes import Form
from sliceflow.devices import resolve_device
from sliceflow.engine import conditions, events, frames, transports
from sliceflow.engine.paper import VECTORS, with_preset
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.errors import is_int, need
from sliceflow.online.growing import Growing
from sliceflow.ranks import Ranks
from sliceflow.storage.checkpoints import CheckpointWriter, digest, identity, same_on_all
from sliceflow.storage.file import Fields
from sliceflow.storage.limits import Allowance
from sliceflow.storage.models import Saved, restore_rest
from sliceflow.storage.schema import restore_parameters
from sliceflow.vectors import saved
from sliceflow.vectors.data import Given, checked, read
from sliceflow.vectors.fit import Done, Job, per_class, prepare, prepare_classes, run
from sliceflow.vectors.fitted import FittedVectors
from sliceflow.vectors.online import VectorsOnline
from sliceflow.vectors.options import VectorOptions
from sliceflow.vectors.plan import VectorPlan, check_parameters, stages_of
from sliceflow.vectors.units import Units

__all__ = ["SlicedWassersteinFlow"]

_SCORED = 2_000  # fresh samples that `score` draws at least


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
        ξ, how far apart conditions are held. 0 ignores y; ``math.inf`` fits every class by itself.
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
    preset : None or "paper"
        "paper" runs Algorithm 1 of Du et al. (2023) as it is printed: parameters that are left at their
        defaults take the paper's values (`sliceflow.engine.paper`). Give data near N(0, I) in scale.
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
    plan_ : VectorPlan
        What the fit did, with every "auto" resolved; print it.
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

    _fitted: FittedVectors

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
        preset: str | None = None,
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
        self.preset = preset
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
        parameters, listening = self._parameters(), events.listening(listeners)
        together, device = ranks or Ranks(), resolve_device(self.device)
        y_p = _conditions(particle_conditions)
        name = type(self).__name__
        same_on_all(together, name, parameters, device, checkpoint_dir, particle_conditions=digest(y_p))
        given, features = self._read(X, y, together)
        seed = together.broadcast(Seed.of(self.random_state))
        jobs, whole, y_kept, codes_kept = self._jobs(parameters, given, y_p, seed, device, together)
        keepers: list[CheckpointWriter | None] = [None] * len(jobs)
        if checkpoint_dir is not None:
            fixed = None if self.random_state is None else seed
            data = given.digests(y_p, together)
            of = identity(name, whole.settings(), device, fixed, **data)
            names = [f"class-{c}" for c in range(len(jobs))] if len(jobs) > 1 else [""]
            writers = [
                CheckpointWriter(checkpoint_dir, checkpoint_every, of, seed, together, part=part)
                for part in names
            ]
            keepers = [*writers]
            if (found := next((w.seed for w in writers if w.resumes), seed)) != seed:
                jobs, whole, y_kept, codes_kept = self._jobs(
                    parameters, given, y_p, found, device, together
                )
        heard: list[events.Listener] = [*together.agreeing(listening)]
        if self.verbose and together.first:
            heard.append(events.Progress())
        done: list[Done] = []
        histories: list[dict[str, list[Any]]] = []
        with events.closing(heard):
            for i, (job, keeper) in enumerate(zip(jobs, keepers, strict=True)):
                told = heard if len(jobs) == 1 else [_as_one_of(jobs, i, histories, heard)]
                history = events.History()
                done.append(run(job, history, told, keeper, ranks))
                histories.append(history.as_columns())
        if len(jobs) > 1:
            for keeper in keepers:
                if keeper is not None:
                    keeper.remove()

        fitted = FittedVectors(
            tuple(one.part for one in done),
            given.condition,
            jobs[0].rows.codes if codes_kept is None else given.codes,
            whole.n_rows,
            jobs[0].rows.x.dtype,
            device,
            given.device,
            given.form,
        )
        parts = [fitted.rows(one.part.units, one.particles) for one in done]
        particles = parts[0]
        if codes_kept is not None:
            particles = _in_order(parts, codes_kept)
        # Only now is anything kept: a fit that fails or is interrupted leaves the old model whole.
        self.__dict__.pop("feature_names_in_", None)
        self.__dict__.update(features)
        y_kept = done[0].y if codes_kept is None else y_kept
        told_of = histories[0]
        if len(jobs) > 1:
            told_of = events.joined(histories, [job.name for job in jobs])
        self._keep(whole, fitted, fitted.in_form(particles), y_kept, told_of)
        return self

    def plan(self, X: Any, y: Any = None, *, particle_conditions: Any = None) -> VectorPlan:
        """What ``fit(X, y)`` would do, with every "auto" resolved; nothing is fitted.

        Examples
        --------
        >>> X = np.random.default_rng(0).normal(size=(2000, 3))
        >>> SlicedWassersteinFlow(n_steps=100).plan(X).method
        'SWF'
        """
        parameters, device = self._parameters(), resolve_device(self.device)
        given, _ = self._read(X, y, Ranks())
        y_p = _conditions(particle_conditions)
        seed = Seed.of(copy.deepcopy(self.random_state))  # a generator must not move on
        return self._jobs(parameters, given, y_p, seed, device, Ranks())[1]

    def _jobs(
        self,
        parameters: dict[str, Any],
        given: Given,
        y_p: np.ndarray | None,
        seed: Seed,
        device: torch.device,
        ranks: Ranks,
    ) -> tuple[list[Job], VectorPlan, np.ndarray | None, Tensor | None]:
        """What is to be fitted, the plan of it all; per class also the kept particles' y and codes."""
        if given.condition is None or not math.isinf(parameters["amplifier"]):
            job = prepare(parameters, given, y_p, seed, device, ranks)
            return [job], job.plan, None, None
        jobs, y_kept, codes = prepare_classes(parameters, given, y_p, seed, device, ranks)
        return jobs, per_class(jobs, len(codes)), y_kept, codes

    def _keep(
        self,
        plan: VectorPlan,
        fitted: FittedVectors,
        particles: Any,
        y: np.ndarray | None,
        history: dict[str, list[Any]],
    ) -> None:
        """What was learned replaces what was there."""
        self.plan_, self._fitted, self._online = plan, fitted, None
        self.__dict__.pop("_file", None)  # no longer the model of a file
        self.particles_, self.particle_conditions_ = particles, y
        self.__dict__.pop("classes_", None)
        if isinstance(fitted.condition, conditions.Labels):
            self.classes_ = fitted.condition.classes
        self.history_ = history
        self.n_iter_ = len(self.history_["step"])

    def sample(
        self, n_samples: int = 1, y: Any = None, random_state: Any = None, *, return_y: bool = False
    ) -> Any:
        """Offline samples: fresh noise moved by the fitted maps.

        Parameters
        ----------
        n_samples : int
        y : one condition for all samples, an array with one per sample, or None for conditions in the
            data's proportions. Labels may also be given as an (n_samples, C) array of class weights,
            unless every class was fitted by itself.
        random_state : int, RandomState, Generator or None
            None draws anew on every call.
        return_y : bool
            Also return the conditions of the samples.

        Returns
        -------
        (n_samples, d) array, or a tensor or DataFrame if the model was fitted on one, in the units and
        type of X; with `return_y` a pair of this and the samples' y, None without a condition
        """
        check_is_fitted(self, "history_")
        need(is_int(n_samples, 1), "n_samples", n_samples, "an int of at least 1")
        fitted, n, seed = self._fitted, int(n_samples), Seed.of(random_state)
        fitted.check_memory(n)
        codes = fitted.codes_for(n, y, seed.child("conditions"))
        x = fitted.sample(n, codes, seed)
        if not return_y:
            return x
        return x, None if fitted.condition is None or codes is None else fitted.condition.decode(codes)

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the sliced Wasserstein distance between fresh samples and rows: more is better.

        −SW₂ over 100 random directions, in the units of the flow: standardised columns, unless
        ``standardize=False``. With y, samples take the rows' own conditions. Rows of a class are
        compared with samples of that class; with columns, x and y are compared together. Give held-out
        rows: of the rows that were fitted the best copy would win. `GridSearchCV` and
        `cross_val_score` use it.

        Examples
        --------
        >>> from sklearn.model_selection import GridSearchCV
        >>> X = np.random.default_rng(0).gamma(2, size=(300, 2))
        >>> flow = SlicedWassersteinFlow(n_particles=500, random_state=0)
        >>> GridSearchCV(flow, {"n_steps": [1, 40]}, cv=2).fit(X).best_params_
        {'n_steps': 40}
        """
        check_is_fitted(self, "history_")
        fitted = self._fitted
        seed = Seed.of(copy.deepcopy(self.random_state)).child("score")  # a generator must not move on
        rows = checked(X, self._validated(reset=False))
        codes = None
        if fitted.condition is not None and y is not None:
            codes = fitted.condition.encode(conditions.as_array(y))
            if len(codes) != len(rows):
                raise ValueError(f"X has {len(rows)} rows but y has {len(codes)}; pass one y a row")
        times = -(-_SCORED // len(rows))
        codes_of = None if codes is None else codes.repeat(times, *[1] * (codes.dim() - 1))
        if codes_of is None:
            codes_of = fitted.codes_for(times * len(rows), None, seed.child("conditions"))
        bare = replace(fitted, form=None, given_device=None)
        drawn = bare.sample(times * len(rows), codes_of, seed)
        units = fitted.parts[0].units
        if len(fitted.parts) > 1:  # each class has its own, but all must be compared in the same
            units = Units.of(rows, self._parameters()["standardize"])
        columns = units.encode(rows.astype(drawn.dtype)).T
        rule = events.HeldOut(columns, Seed(0), codes, None if codes is None else codes_of)
        return -rule.distance(units.encode(drawn).T)

    def _read(self, X: Any, y: Any, ranks: Ranks) -> tuple[Given, dict[str, Any]]:
        """X and y, checked, and what scikit-learn's conventions say of the columns, by its names."""
        device, form = X.device if isinstance(X, Tensor) else None, Form.of(X)
        told = copy.copy(self)  # a fit that fails leaves the estimator as it was
        rows = checked(X, told._validated(reset=True))
        names = ("n_features_in_", "feature_names_in_")
        features = {name: vars(told)[name] for name in names if name in vars(told)}
        return read(rows, y, device, form, ranks), features

    def _validated(self, reset: bool) -> Callable[[Any], np.ndarray]:
        """Scikit-learn's check of X: it learns the columns' number and names, or holds X to them."""
        types = [np.float64, np.float32]
        return lambda X: validate_data(self, X, dtype=types, ensure_all_finite=False, reset=reset)

    def stages(self) -> list[Stage]:
        """The stages of a fit; nothing needs to be fitted."""
        return stages_of(self._parameters())

    def _begin_online(self, X: Any) -> VectorsOnline:
        device, form = X.device if isinstance(X, Tensor) else None, Form.of(X)
        return VectorsOnline.begin(
            self._parameters(), checked(X, self._validated(reset=False)), device, form
        )

    def _online_rows(self, X: Any, first: bool = False) -> np.ndarray:
        return checked(X, self._validated(reset=first))

    def _packed(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        names = getattr(self, "feature_names_in_", None)
        return saved.packed(self._fitted, names, tensors)

    @classmethod
    def _unpacked(
        cls, header: Fields, tensors: dict[str, Tensor], device: torch.device, allowed: Allowance
    ) -> Self:
        parameters = restore_parameters(header, cls, VectorOptions)
        flow = cls(**parameters)
        flow._parameters()
        flow._fitted, names = saved.unpacked(header, tensors, device, allowed)
        flow.n_features_in_ = flow._fitted.n_columns
        if names is not None:
            flow.feature_names_in_ = np.array(names, dtype=object)
        fitted, kind = flow._fitted, str(flow._fitted.dtype).removeprefix("torch.")
        restore_rest(flow, header, tensors, (fitted.n_columns,), kind)
        if "particles_" in vars(flow):
            if fitted.given_device is not None:
                flow.particles_ = torch.from_numpy(flow.particles_).to(fitted.given_device)
            flow.particles_ = fitted.in_form(flow.particles_)
        return flow

    def _particle_tensor(self) -> Tensor:
        if self._fitted.form is None:
            return torch.as_tensor(self.particles_)
        rows = np.asarray(self.particles_, dtype=np.float64)  # columns may be of several types
        return torch.tensor(rows, dtype=self._fitted.dtype)

    def _parameters(self) -> dict[str, Any]:
        given: dict[str, Any] = self.get_params(deep=False)
        check_parameters(given)
        defaults = type(self)().get_params(deep=False)
        options = {"options": self.options or VectorOptions()}
        return with_preset(self.preset, given | options, defaults, VECTORS)


def _conditions(particle_conditions: Any) -> np.ndarray | None:
    if particle_conditions is None:
        return None
    return np.atleast_1d(conditions.as_array(particle_conditions))


def _as_one_of(
    jobs: Sequence[Job],
    i: int,
    histories: Sequence[dict[str, list[Any]]],
    heard: Sequence[events.Listener],
) -> events.Listener:
    """A listener that tells those who listen of the steps of job i as steps of all jobs."""
    stages = [job.plan.stages() for job in jobs]
    return events.relayed(
        heard,
        jobs[i].name,
        stages_before=sum(map(len, stages[:i])),
        steps_before=sum(len(history["step"]) for history in histories),
        steps_after=sum(stage.n_steps for of_job in stages[i + 1 :] for stage in of_job),
        seconds=sum(history["seconds"][-1] for history in histories if history["seconds"]),
    )


def _in_order(parts: Sequence[Any], codes: Tensor) -> Any:
    """The rows of all classes, each where its class number is among `codes`."""
    out = np.empty if isinstance(parts[0], np.ndarray) else parts[0].new_empty
    shape = (len(codes), parts[0].shape[1])
    whole = out(shape, dtype=parts[0].dtype)
    for c, part in enumerate(parts):
        at = torch.nonzero(codes == c)[:, 0]
        if len(at):
            whole[at.numpy() if isinstance(part, np.ndarray) else at.to(part.device)] = part
    return whole
