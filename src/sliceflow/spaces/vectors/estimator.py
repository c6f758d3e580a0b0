"""`SlicedWassersteinFlow`: generative models of vectors, following scikit-learn's conventions."""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from sliceflow.engine.flow import Flow
from sliceflow.engine.paper import VECTORS, with_preset
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.errors import is_int, need
from sliceflow.metrics.copied import copied
from sliceflow.models.checkpoints import CheckpointWriter, digest, identity, same_on_all
from sliceflow.models.file import Fields
from sliceflow.models.limits import Allowance
from sliceflow.models.ranks import Ranks
from sliceflow.models.saved import Saved, restore_rest
from sliceflow.models.schema import restore_parameters
from sliceflow.online.growing import Growing
from sliceflow.spaces.vectors import saved
from sliceflow.spaces.vectors.data import FitInput, check_rows, read_input
from sliceflow.spaces.vectors.fit import (
    FitResult,
    Job,
    local_plan,
    particle_conditions,
    per_class,
    prepare,
    prepare_classes,
    run,
)
from sliceflow.spaces.vectors.fitted import FittedVectors, Part
from sliceflow.spaces.vectors.local import is_local
from sliceflow.spaces.vectors.online import VectorsOnline, check_width, joined, without
from sliceflow.spaces.vectors.options import VectorOptions
from sliceflow.spaces.vectors.plan import VectorPlan, check_parameters, stages_of
from sliceflow.spaces.vectors.units import Units

__all__ = ["SlicedWassersteinFlow"]

_MIN_SCORED = 2_000  # `score` draws at least this many samples


class SlicedWassersteinFlow(Growing, Saved, BaseEstimator):  # type: ignore[misc]
    """Generative model for vectors: particles moved onto the data by sliced optimal transport.

    Each of `n_steps` steps projects particles and data on a frame of directions, solves the
    one-dimensional optimal transport T = F_q⁻¹ ∘ F_p on each, and moves the particles by
    x += Θᵀ(T(Θx) − Θx). Two axis steps then make every column's own distribution exact. There is no
    network and no training: the model is the maps. `partial_fit` adds rows and `forget` removes them.

    Parameters
    ----------
    n_particles : int or None
        Number of particles to keep. None takes the smallest multiple of the number of rows that is at
        least 10,000. The fit may move more: at least 2,000, and 200 per class, because maps fitted to
        few particles give poor offline samples.
    n_steps : int
        Steps of the flow, before the axis steps. More steps fit the data more closely. Smoothing along
        the nearest rows (`VectorOptions`) prevents copies of small data; `fit` warns of them.
    frame : str or frame kind
        Directions of a step: "orthogonal", "random", "max-sliced" (fitted to particles and data: fewer
        steps and a smaller model for many columns) or "axis", or an object from `sliceflow.frames`
        such as ``frames.Random(n_directions=10_000)``.
    transport : str or transport
        How to solve each direction: "auto", "sorted" or "histogram"; see `sliceflow.transports`.
    amplifier : float
        ξ, how strongly the flow separates conditions. 0 ignores y; ``math.inf`` fits each class
        separately.
    entropy : float
        λ ≥ 0 of the entropy-regularised flow: each step adds √(2λη)·noise, where η is the step size
        in the paper's units.
    device : str or torch.device
        "auto" uses a GPU if there is one.
    random_state : int, RandomState, Generator or None
        The same seed on the same machine gives the same bits.
    verbose : int
        1 shows a progress bar.
    standardize : bool
        Scale columns to mean 0 and standard deviation 1; an asinh compresses heavy tails first
        (`sliceflow.spaces.vectors.units`). Results are in the user's units either way. With False the flow
        still starts from N(0, I), so scale the data to be near it.
    early_stopping : bool
        Hold out rows, and stop when the particles no longer get closer to them. Particles are compared
        with held-out rows of the same condition.
    preset : None or "paper"
        "paper" runs Algorithm 1 of Du et al. (2023) as printed: parameters left at their defaults
        take the paper's values (`sliceflow.engine.paper`). The data should be near N(0, I) in scale.
    condition : "auto", "joint" or "local"
        What to do with a continuous y. "joint" runs one flow of x and y together, as the paper. "local"
        keeps the rows and samples from those near the y that is asked for
        (`sliceflow.neighbours.local`): more exact where y says much about x, without steps or
        maps. "auto" is local for continuous columns, also with labels beside them, unless ξ = 0,
        ``early_stopping`` or several ranks need the joint flow. Labels alone are never local.
    options : VectorOptions or None
        Rarely changed settings; None takes the defaults.

    Attributes
    ----------
    particles_ : array, tensor or DataFrame, like X
        (M, d) batched samples.
    particle_conditions_ : array or None
        Their conditions, as the user wrote them.
    classes_ : array
        The class labels, if y is labels.
    plan_ : VectorPlan
        What the fit did, with every "auto" resolved; print it.
    history_ : dict
        Lists: stage, step, sliced distance before the step, seconds elapsed.
    n_iter_ : int
        Steps done, axis steps included.
    n_features_in_ : int
        d.
    feature_names_in_ : array
        The column names, if X is a DataFrame whose column names are strings.

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
    _waiting: tuple[FitInput, ...] = ()  # rows for the next refresh of local conditions

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
        condition: str = "auto",
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
        self.condition = condition
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
        y : None, labels (n,) of any hashable kind, continuous columns (n, l), or both in one DataFrame
            or (n, L) array of objects, where a column is continuous if all its values are numbers
        particle_conditions : y of the M particles; None takes the data's proportions. Labels may have
            any proportions, because the data are weighted to match. Continuous conditions should be
            distributed like the data's.
        listeners : a callable that takes a `sliceflow.events.Event` after every step, or a tuple of
            them; returning True ends the stage
        checkpoint_dir : a folder for the state of the fit, or None. To resume an interrupted fit, call
            it again with the same data, parameters and folder. The result has the same bits as an
            uninterrupted fit
        checkpoint_every : seconds between checkpoints
        ranks : from `sliceflow.models.ranks.joined`. All ranks call this with the same parameters. X and y
            are this rank's rows, `particle_conditions` those of all ranks. `particles_` and
            `particle_conditions_` are this rank's share; ``ranks.gather(flow.particles_)`` gives all
        """
        parameters, listening = self._parameters(), events.listening(listeners)
        all_ranks, device = ranks or Ranks(), resolve_device(self.device)
        y_p = _conditions(particle_conditions)
        name = type(self).__name__
        same_on_all(
            all_ranks, name, parameters, device, checkpoint_dir, particle_conditions=digest(y_p)
        )
        inputs, features = self._read(X, y, all_ranks)
        seed = all_ranks.broadcast(Seed.of(self.random_state))
        if is_local(parameters, inputs.condition, ranks):
            self._fit_local(parameters, inputs, y_p, seed, device)
            self.__dict__.pop("feature_names_in_", None)
            self.__dict__.update(features)
            return self
        jobs, plan, y_kept, codes_kept = self._jobs(parameters, inputs, y_p, seed, device, all_ranks)
        writers: list[CheckpointWriter] = []
        if checkpoint_dir is not None:
            fixed = None if self.random_state is None else seed
            digests = inputs.digests(y_p, all_ranks)
            fit_identity = identity(name, plan.settings(), device, fixed, **digests)
            names = [f"class-{c}" for c in range(len(jobs))] if len(jobs) > 1 else [""]
            writers = [
                CheckpointWriter(
                    checkpoint_dir, checkpoint_every, fit_identity, seed, all_ranks, part=part
                )
                for part in names
            ]
            if (found := next((w.seed for w in writers if w.resumes), seed)) != seed:
                jobs, plan, y_kept, codes_kept = self._jobs(
                    parameters, inputs, y_p, found, device, all_ranks
                )
        all_listeners: list[events.Listener] = [*all_ranks.agreeing(listening)]
        if self.verbose and all_ranks.first:
            all_listeners.append(events.Progress())
        results: list[FitResult] = []
        histories: list[dict[str, list[Any]]] = []
        with events.closing(all_listeners):
            for i, job in enumerate(jobs):
                writer = writers[i] if writers else None
                job_listeners = all_listeners
                if len(jobs) > 1:
                    job_listeners = [_as_one_of(jobs, i, histories, all_listeners)]
                history = events.History()
                results.append(run(job, history, job_listeners, writer, ranks))
                histories.append(history.as_columns())
        if len(jobs) > 1:
            for finished in writers:
                finished.remove()

        fitted = FittedVectors(
            tuple(result.part for result in results),
            inputs.condition,
            jobs[0].rows.codes if codes_kept is None else inputs.codes,
            plan.n_rows,
            jobs[0].rows.x.dtype,
            device,
            inputs.device,
            inputs.form,
        )
        parts = [fitted.rows(result.part.units, result.particles) for result in results]
        particles = parts[0]
        if codes_kept is not None:
            particles = _interleave(parts, codes_kept)
        # Set attributes last: a fit that fails or is interrupted leaves the old model unchanged.
        self.__dict__.pop("feature_names_in_", None)
        self.__dict__.update(features)
        y_kept = results[0].y if codes_kept is None else y_kept
        history_columns = histories[0]
        if len(jobs) > 1:
            history_columns = events.joined(histories, [job.name for job in jobs])
        self._keep(plan, fitted, fitted.in_form(particles), y_kept, history_columns)
        if ranks is None and y_p is None:
            pairs = [(job.rows.x, x.particles) for job, x in zip(jobs, results, strict=True)]
            if shown := copied(pairs):
                warnings.warn(
                    f"the particles copy rows of X ({shown}); {plan.against_copying}",
                    UserWarning,
                    stacklevel=2,
                )
        return self

    def plan(self, X: Any, y: Any = None, *, particle_conditions: Any = None) -> VectorPlan:
        """What ``fit(X, y)`` would do, with every "auto" resolved; fits nothing.

        Examples
        --------
        >>> X = np.random.default_rng(0).normal(size=(2000, 3))
        >>> SlicedWassersteinFlow(n_steps=100).plan(X).method
        'SWF'
        """
        parameters, device = self._parameters(), resolve_device(self.device)
        inputs, _ = self._read(X, y, Ranks())
        y_p = _conditions(particle_conditions)
        if is_local(parameters, inputs.condition, None):
            return local_plan(parameters, inputs, y_p, device)[0]
        seed = Seed.of(copy.deepcopy(self.random_state))  # a generator must not advance
        return self._jobs(parameters, inputs, y_p, seed, device, Ranks())[1]

    def _fit_local(
        self,
        parameters: dict[str, Any],
        inputs: FitInput,
        y_p: np.ndarray | None,
        seed: Seed,
        device: torch.device,
    ) -> None:
        """Keep the rows; the particles are samples at their own conditions."""
        plan, units, model = local_plan(parameters, inputs, y_p, device)
        part = Part(Flow([], seed.child("flow")), [], units)
        dtype, condition = getattr(torch, plan.dtype), inputs.condition
        fitted = FittedVectors(
            (part,),
            condition,
            inputs.codes,
            plan.n_rows,
            dtype,
            device,
            inputs.device,
            inputs.form,
            model,
            inputs,
        )
        y, codes = particle_conditions(inputs, plan.n_particles, y_p, seed.child("conditions"))
        particles = fitted.sample(len(codes), codes, seed.child("particles"))
        self._keep(plan, fitted, particles, y, events.History().as_columns())

    def _grow_rows(self, X: Any, y: Any, refresh: bool | int) -> bool:
        if not self._is_local(y):
            return False
        only = "True or False: local conditions have no steps"
        need(isinstance(refresh, bool), "refresh", refresh, only)
        with self._unchanged_by_errors():
            known = self._known()
            device, form = X.device if isinstance(X, Tensor) else None, Form.of(X)
            y = check_width(y, known[0]) if known else y
            rows = self._online_rows(X, first=not known)
            self._waiting = (*self._waiting, read_input(rows, y, device, form, Ranks()))
            if refresh:
                self._fit_joined(joined(self._known()))
        return True

    def _forget_rows(self, X: Any, y: Any, refresh: bool | int) -> bool:
        if not (known := self._known()):
            return False
        need(refresh is True, "refresh", refresh, "True: local conditions forget rows at once")
        y = check_width(y, known[0])
        with self._unchanged_by_errors():
            self._fit_joined(without(joined(known), self._online_rows(X), y))
        return True

    def _refresh_rows(self, last: int | None) -> bool:
        if not (known := self._known()):
            return False
        need(last is None, "last", last, "None: local conditions have no steps")
        with self._unchanged_by_errors():
            self._fit_joined(joined(known))
        return True

    def _known(self) -> list[FitInput]:
        """The rows of a model with local conditions, and those that wait for a refresh."""
        given = self._fitted.given if hasattr(self, "_fitted") else None
        return [*([] if given is None else [given]), *self._waiting]

    def _is_local(self, y: Any) -> bool:
        """Whether `partial_fit` keeps rows."""
        if self._known():
            return True
        parameters, array = self._parameters(), None if y is None else conditions.as_array(y)
        columns = array is not None and array.ndim == 2
        if self._online is not None or not (columns or parameters["condition"] == "local"):
            return False
        condition = None if array is None else conditions.infer(array, len(array))
        return is_local(parameters, condition, None)

    def _fit_joined(self, inputs: FitInput) -> None:
        parameters = self._parameters()
        local = is_local(parameters, inputs.condition, None)
        need(local, "condition", self.condition, "'auto' or 'local': this model keeps its rows")
        seed, device = Seed.of(self.random_state), resolve_device(self.device)
        self._fit_local(parameters, inputs, None, seed, device)

    @contextmanager
    def _unchanged_by_errors(self) -> Iterator[None]:
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def _jobs(
        self,
        parameters: dict[str, Any],
        inputs: FitInput,
        y_p: np.ndarray | None,
        seed: Seed,
        device: torch.device,
        ranks: Ranks,
    ) -> tuple[list[Job], VectorPlan, np.ndarray | None, Tensor | None]:
        """The jobs, their joint plan and, if classes are separate, the kept particles' y and codes."""
        if inputs.condition is None or not math.isinf(parameters["amplifier"]):
            job = prepare(parameters, inputs, y_p, seed, device, ranks)
            return [job], job.plan, None, None
        jobs, y_kept, codes = prepare_classes(parameters, inputs, y_p, seed, device, ranks)
        return jobs, per_class(jobs, len(codes)), y_kept, codes

    def sample(
        self,
        n_samples: int | None = None,
        y: Any = None,
        random_state: Any = None,
        *,
        return_y: bool = False,
    ) -> Any:
        """Offline samples: fresh noise moved by the fitted maps, or draws near y if that is local.

        Parameters
        ----------
        n_samples : int or None
            None takes one for each condition in y, or 1.
        y : one condition for all samples, an array with one per sample, or None for conditions in the
            data's proportions. Labels may also be an (n_samples, C) array of class weights, unless
            each class was fitted separately.
        random_state : int, RandomState, Generator or None
            None gives new samples on every call.
        return_y : bool
            Also return the conditions of the samples.

        Returns
        -------
        (n_samples, d) array, or a tensor or DataFrame if X was one, in the units and type of X. With
        `return_y`, a pair: the samples and their y (None without conditions)
        """
        check_is_fitted(self, "history_")
        fitted, seed = self._fitted, Seed.of(random_state)
        if n_samples is None:
            known = None if y is None else fitted.condition
            n_samples = 1 if known is None else len(conditions.repeated(known, y, 1))
        need(is_int(n_samples, 1), "n_samples", n_samples, "an int of at least 1")
        n = int(n_samples)
        fitted.check_memory(n)
        codes = fitted.codes_for(n, y, seed.child("conditions"))
        if fitted.local is not None and y is not None and codes is not None:
            fitted.local.warn_of_far(codes, stacklevel=3)
        x = fitted.sample(n, codes, seed)
        if not return_y:
            return x
        return x, None if fitted.condition is None or codes is None else fitted.condition.decode(codes)

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the sliced Wasserstein distance between fresh samples and rows: higher is better.

        −SW₂ over 100 random directions, in the units of the flow: standardised columns, unless
        ``standardize=False``. With y, samples take the rows' conditions. Rows of a class are compared
        with samples of that class; with continuous y, (x, y) are compared jointly. Pass held-out rows:
        on the fitted rows the model that copies best would win. `GridSearchCV` and `cross_val_score`
        use this score.

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
        seed = Seed.of(copy.deepcopy(self.random_state)).child("score")  # a generator must not advance
        rows = check_rows(X, self._validated(reset=False))
        codes = None
        if fitted.condition is not None and y is not None:
            codes = fitted.condition.encode(conditions.as_array(y))
            if len(codes) != len(rows):
                raise ValueError(f"X has {len(rows)} rows but y has {len(codes)}; pass one y per row")
        times = -(-_MIN_SCORED // len(rows))
        codes_of = None if codes is None else codes.repeat(times, *[1] * (codes.dim() - 1))
        if codes_of is None:
            codes_of = fitted.codes_for(times * len(rows), None, seed.child("conditions"))
        bare = replace(fitted, form=None, given_device=None)
        drawn = bare.sample(times * len(rows), codes_of, seed)
        units = fitted.parts[0].units
        if len(fitted.parts) > 1:  # each class has its own units; compare all classes in the same
            units = Units.of(rows, self._parameters()["standardize"])
        columns = units.encode(rows.astype(drawn.dtype)).T
        rule = events.HeldOut(columns, Seed(0), codes, None if codes is None else codes_of)
        return -rule.distance(units.encode(drawn).T)

    def _read(self, X: Any, y: Any, ranks: Ranks) -> tuple[FitInput, dict[str, Any]]:
        """X and y, checked, and scikit-learn's attributes that describe the columns."""
        device, form = X.device if isinstance(X, Tensor) else None, Form.of(X)
        probe = copy.copy(self)  # a fit that fails leaves the estimator as it was
        rows = check_rows(X, probe._validated(reset=True))
        names = ("n_features_in_", "feature_names_in_")
        features = {name: vars(probe)[name] for name in names if name in vars(probe)}
        return read_input(rows, y, device, form, ranks), features

    def _validated(self, reset: bool) -> Callable[[Any], np.ndarray]:
        """Scikit-learn's check of X. With `reset` it records the columns, else it compares them."""
        types = [np.float64, np.float32]
        return lambda X: validate_data(self, X, dtype=types, ensure_all_finite=False, reset=reset)

    def stages(self) -> list[Stage]:
        """The stages of a fit; can be called before `fit`."""
        return stages_of(self._parameters())

    def _begin_online(self, X: Any, rows: Any) -> VectorsOnline:
        device, form = X.device if isinstance(X, Tensor) else None, Form.of(X)
        return VectorsOnline.begin(self._parameters(), rows, device, form)

    def _online_rows(self, X: Any, first: bool = False) -> np.ndarray:
        return check_rows(X, self._validated(reset=first))

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
        rows = np.asarray(self.particles_, dtype=np.float64)  # columns may have different types
        return torch.tensor(rows, dtype=self._fitted.dtype)

    def _parameters(self) -> dict[str, Any]:
        parameters: dict[str, Any] = self.get_params(deep=False)
        check_parameters(parameters)
        defaults = type(self)().get_params(deep=False)
        options = {"options": self.options or VectorOptions()}
        return with_preset(self.preset, parameters | options, defaults, VECTORS)


def _conditions(particle_conditions: Any) -> np.ndarray | None:
    if particle_conditions is None:
        return None
    return np.atleast_1d(conditions.as_array(particle_conditions))


def _as_one_of(
    jobs: Sequence[Job],
    i: int,
    histories: Sequence[dict[str, list[Any]]],
    listeners: Sequence[events.Listener],
) -> events.Listener:
    """A listener that reports the steps of job i to others as steps of all jobs."""
    stages = [job.plan.stages() for job in jobs]
    return events.relayed(
        listeners,
        jobs[i].name,
        stages_before=sum(map(len, stages[:i])),
        steps_before=sum(len(history["step"]) for history in histories),
        steps_after=sum(stage.n_steps for of_job in stages[i + 1 :] for stage in of_job),
        seconds=sum(history["seconds"][-1] for history in histories if history["seconds"]),
    )


def _interleave(parts: Sequence[Any], codes: Tensor) -> Any:
    """The rows of all classes, in the order of the class numbers `codes`."""
    empty = np.empty if isinstance(parts[0], np.ndarray) else parts[0].new_empty
    out = empty((len(codes), parts[0].shape[1]), dtype=parts[0].dtype)
    for c, part in enumerate(parts):
        at = torch.nonzero(codes == c)[:, 0]
        if len(at):
            out[at.numpy() if isinstance(part, np.ndarray) else at.to(part.device)] = part
    return out
