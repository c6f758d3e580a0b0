"""`FlowEstimator`: what all flows of particles share.

To follow a fit: `FlowEstimator.fit` → the planner's `read` and `plan_fit` →
`Estimator._run_fit` → the planned fit's `run` → `run_flow`, at the end of this module →
`engine.flow.simulate` → the rest of `run`.
"""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    Self,
    TypeVar,
    cast,
    get_args,
    overload,
)

import torch
from numpy.typing import NDArray
from torch import Tensor

from sliceflow.base.checkpoints import Checkpoints, RunningFlow, read_checkpoint
from sliceflow.base.estimator import (
    Estimator,
    draws_per_scored_row,
    require_sample_memory,
)
from sliceflow.base.fingerprint import fingerprint, require_same_parameters
from sliceflow.base.prepared_fit import PreparedFit, copied_parameters
from sliceflow.base.protocols import (
    FittedFlow,
    FittedFlowT,
    FlowFitPlanner,
    FlowRowsT,
    Options,
    ParticleResult,
    PlannedFlowFit,
    PlanT,
)
from sliceflow.base.ranks import ONE_PROCESS, Communicator, listeners_across_ranks
from sliceflow.base.rows import Conditions
from sliceflow.base.saving import FitRecord, save
from sliceflow.engine.batches import Target
from sliceflow.engine.clouds import Cloud, sliced_distance
from sliceflow.engine.encoded_y import EncodedY
from sliceflow.engine.events import FlowEvent, FlowListener, History, Listeners
from sliceflow.engine.flow import (
    FlowSpec,
    FlowState,
    ParticleRng,
    do_nothing,
    simulate,
)
from sliceflow.engine.labels import as_array
from sliceflow.engine.proportions import proportional_indices
from sliceflow.engine.random import RandomStateLike, Seed
from sliceflow.engine.transports import Transport, TransportName
from sliceflow.engine.y_encoders import ClassEncoder, require_encoder
from sliceflow.errors import DataError, ParameterError
from sliceflow.validation import (
    require,
    require_bool,
    require_choice,
    require_int,
    require_real,
    require_verbosity,
)

# The default number of particles, rounded up to a multiple of the number of rows. More
# particles take longer, in proportion.
_DEFAULT_PARTICLES = 10_000
_PARTICLE_ATTRIBUTES = ("particles_", "particle_conditions_")


def resolve_n_particles(
    n_particles: int | None, n_rows: int, n_classes: int, n_ranks: int
) -> int:
    """The number of particles to keep: what the user says, or one that fits the rows.

    If `n_particles` is None, it is the smallest multiple of the number of rows that is
    at least 10,000: a multiple uses the conditions of all rows equally often. Raises a
    `ParameterError` if the user wants fewer particles than there are classes or ranks.
    """
    if n_particles is None:
        n_particles = n_rows * math.ceil(_DEFAULT_PARTICLES / n_rows)
    minimum = max(n_classes, n_ranks)
    requirement = f"at least {minimum}, one for each class and rank"
    require(n_particles >= minimum, "n_particles", n_particles, requirement)
    return int(n_particles)


# What users pass as X, and get as samples.
UserRowsT = TypeVar("UserRowsT")


class FlowEstimator(
    Estimator[FlowRowsT, FittedFlowT, FlowEvent, PlanT],
    Generic[FlowRowsT, FittedFlowT, PlanT, UserRowsT],
):
    """An estimator that moves particles onto the rows, step by step.

    It has particles, conditions, steps, checkpoints, ranks and a device. A subclass
    provides what an `Estimator` needs, with a `FlowFitPlanner`, a `PlannedFlowFit` and
    a `FittedFlow`. Its constructor has the parameters that are annotated here.
    """

    _options_type: type[Options]
    # Parameters of the constructor.
    n_particles: int | None
    transport: TransportName | Transport
    device: str | torch.device
    preset: Literal["paper"] | None
    save_rows: bool
    options: Options | None
    # Set by a fit. `classes_` exists if y is labels. The particle attributes exist
    # unless the model was loaded from a file saved without particles.
    classes_: NDArray[Any]
    particles_: UserRowsT
    particle_conditions_: NDArray[Any] | None

    @abstractmethod
    def _fit_planner(
        self, like_fitted: bool = False, ranks: Communicator = ONE_PROCESS
    ) -> FlowFitPlanner[FlowRowsT, FittedFlowT, PlanT]:
        """The planner that reads rows and plans their fit, on these ranks."""

    def _require_shared_parameters(self, flags: Sequence[str]) -> None:
        """Raise a `ParameterError` for the first invalid parameter that all flows have.

        `flags` are the names of parameters that must be True or False.
        """
        require_int("n_particles", self.n_particles, 1, others=(None,))
        require_verbosity(self.verbose)
        for name in flags:
            require_bool(name, getattr(self, name))

        options = self.options
        is_options = options is None or isinstance(options, self._options_type)
        requirement = f"None or a sliceflow.{self._options_type.__name__}"
        require(is_options, "options", options, requirement)
        if options is not None:
            options.require_valid()

        require_choice(
            "transport",
            self.transport,
            get_args(TransportName),
            protocol=Transport,
            objects="a transport from sliceflow.transports",
        )
        require_choice("preset", self.preset, (None, "paper"))

    # Fitting

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        listeners: Listeners[FlowEvent] = (),
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 60.0,
        keep_checkpoint: bool = False,
        ranks: Communicator | None = None,
    ) -> Self:
        """Move particles onto the rows of X.

        Parameters
        ----------
        X : rows
            Of the kinds that the class lists, or what `prepare` returned.
        y : conditions of the rows or None, default None
            Of the kinds that the class lists.
        listeners : callable or tuple of callables, default ()
            Each takes a `sliceflow.events.FlowEvent` after every step. If one returns
            True, the stage ends.
        checkpoint_dir : str, path or None, default None
            A folder for the state of the fit. To resume an interrupted fit, call it
            again with the same data, parameters and folder. The result has the same
            bits as that of an uninterrupted fit.
        checkpoint_every : float, default 60
            Seconds between checkpoints.
        keep_checkpoint : bool, default False
            Keep the last checkpoint after the fit, so that the fit can be resumed if
            saving the model fails. Delete it yourself after saving.
        ranks : Communicator or None, default None
            From `sliceflow.ranks.joined`. All ranks call this with the same parameters
            and their own rows. `particles_` and `particle_conditions_` are this rank's
            share; ``ranks.all_gather_rows(flow.particles_)`` gives all.

        Returns
        -------
        self : the fitted estimator

        Raises
        ------
        ParameterError, DataError
            If a parameter or the data are not valid.
        FitInterrupted
            If Ctrl-C stopped a fit with a `checkpoint_dir`.
        """
        folder = None
        if checkpoint_dir is not None:
            folder = _checkpoint_folder(checkpoint_dir)
        require_real("checkpoint_every", checkpoint_every, 0, hint="it is in seconds")
        require_bool("keep_checkpoint", keep_checkpoint)
        planned_fit = self._read_and_plan(X, y, ranks)
        ranks = planned_fit.ranks
        if ranks.size > 1:  # all ranks write checkpoints, or no rank
            folder_given = "None" if folder is None else "a folder"
            ranks.require_equal({"checkpoint_dir": folder_given})
        if folder is not None:
            planned_fit = self._open_checkpoints(
                planned_fit, folder, checkpoint_every, keep_checkpoint
            )
        is_prepared = isinstance(X, PreparedFit)
        return self._run_fit(
            planned_fit, listeners, ranks=ranks, may_keep_rows=is_prepared
        )

    def _open_checkpoints(
        self,
        planned_fit: PlannedFlowFit[FlowRowsT, FittedFlowT, PlanT],
        folder: Path,
        every: float,
        keep: bool,
    ) -> PlannedFlowFit[FlowRowsT, FittedFlowT, PlanT]:
        """The fit with checkpoints; it resumes from the last checkpoint, if any."""
        last = read_checkpoint(folder, torch.device(planned_fit.plan.device))
        if last is not None and self.random_state is None:
            planner = self._fit_planner(ranks=planned_fit.ranks)
            planned_fit = planner.plan_fit(planned_fit.rows, last.seed)
        checkpoints = Checkpoints(
            folder,
            every,
            self._fingerprint(planned_fit),
            planned_fit.seed,
            planned_fit.ranks,
            keep,
            last,
        )
        return planned_fit.with_checkpoints(checkpoints)

    def prepare(
        self, X: Any, y: Any = None, *, ranks: Communicator | None = None
    ) -> PreparedFit[PlannedFlowFit[FlowRowsT, FittedFlowT, PlanT]]:
        """Read and plan the rows. `fit` takes the result instead of X and y.

        Parameters
        ----------
        X : rows
            As in `fit`. What `prepare` returned before is not planned again.
        y : conditions of the rows or None, default None
            As in `fit`.
        ranks : Communicator or None, default None
            As in `fit`.

        Returns
        -------
        prepared : PreparedFit
            Its `plan` says what the fit will do, with the parameters that the estimator
            has now. It holds a copy of the rows, which takes as much memory as X.
        """
        planned_fit = self._read_and_plan(X, y, ranks, copies_rows=True)
        return PreparedFit(self, copied_parameters(self), planned_fit)

    def _read_and_plan(
        self,
        X: Any,
        y: Any,
        ranks: Communicator | None = None,
        *,
        copies_rows: bool = False,
    ) -> PlannedFlowFit[FlowRowsT, FittedFlowT, PlanT]:
        """The planned fit of the user's X and y; `prepare` may have planned it."""
        is_ranks = ranks is None or isinstance(ranks, Communicator)
        require(is_ranks, "ranks", ranks, "None or what sliceflow.ranks.joined gives")
        if isinstance(X, PreparedFit):
            return X.planned_fit_for(self, y, ranks)
        if ranks is None:
            ranks = ONE_PROCESS
        planner = self._fit_planner(ranks=ranks)
        seed = Seed.from_random_state(self.random_state)
        if ranks.size > 1:
            self._require_same_on_all(ranks, planner.device)
            seed = ranks.broadcast(seed)
        rows = planner.read(X, y)
        if copies_rows:
            rows = rows.copy()
        return planner.plan_fit(rows, seed)

    def _require_same_on_all(self, ranks: Communicator, device: torch.device) -> None:
        """Raise an error unless several ranks can fit together.

        All ranks must have the same parameters. `save_rows` must be False, because no
        rank has all rows.
        """
        parameters = self.get_params(deep=False)
        require_same_parameters(ranks, type(self).__name__, parameters, device)
        if self.save_rows:
            fact = "needs all rows in one process"
            hint = "fit without it, or in one process"
            raise ParameterError("save_rows", True, fact, hint)

    def _fingerprint(
        self, planned_fit: PlannedFlowFit[FlowRowsT, FittedFlowT, PlanT]
    ) -> dict[str, str]:
        """Texts of all that the result of a fit depends on.

        A fit resumes from a checkpoint only if both have the same texts.
        """
        plan = planned_fit.plan
        return fingerprint(
            type(self).__name__,
            self.get_params(deep=False) | plan.settings(),
            torch.device(plan.device),
            None if self.random_state is None else planned_fit.seed,
            **planned_fit.rows.digests(planned_fit.ranks),
        )

    def _set_fitted(
        self,
        record: FitRecord[FlowRowsT, FittedFlowT],
        particles: ParticleResult[UserRowsT] | None = None,
    ) -> None:
        """Replace the fitted attributes; a file may have no particles."""
        super()._set_fitted(record)
        for name in ("classes_", *_PARTICLE_ATTRIBUTES):
            self.__dict__.pop(name, None)
        if particles is not None:
            self.particles_ = particles.X
            self.particle_conditions_ = particles.y
        encoder = record.model.y_encoder
        if isinstance(encoder, ClassEncoder) and not encoder.encodes_clusters:
            self.classes_ = encoder.classes

    # Sampling

    @overload
    def sample(
        self,
        n: int = 1,
        *,
        y: Any = None,
        random_state: RandomStateLike = None,
        return_y: Literal[False] = False,
    ) -> UserRowsT: ...

    @overload
    def sample(
        self,
        n: int = 1,
        *,
        y: Any = None,
        random_state: RandomStateLike = None,
        return_y: Literal[True],
    ) -> tuple[UserRowsT, NDArray[Any] | None]: ...

    def sample(
        self,
        n: int = 1,
        *,
        y: Any = None,
        random_state: RandomStateLike = None,
        return_y: bool = False,
    ) -> UserRowsT | tuple[UserRowsT, NDArray[Any] | None]:
        """Draw fresh samples.

        Parameters
        ----------
        n : int, default 1
            Number of samples.
        y : one condition, several, or None, default None
            One condition is for all samples. With several, n must be 1 (one sample of
            each) or the number of conditions. None takes conditions in the data's
            proportions.
            With n=1, an empty y gives no samples.
        random_state : int, RandomState, Generator or None, default None
            With None, every call gives new samples.
        return_y : bool, default False
            Also return the conditions of the samples.

        Returns
        -------
        samples : (n, …)
            Rows of the type and in the units of X.
        y : array or None
            The conditions of the samples; None if there are none. Only with `return_y`.

        Raises
        ------
        DataError
            If y does not fit the model or n.

        Examples
        --------
        >>> import numpy as np
        >>> from sliceflow import SlicedWassersteinFlow
        >>> X = np.random.default_rng(0).normal(size=(200, 2))
        >>> y = np.repeat(["left", "right"], 100)
        >>> X[y == "right"] += [100, 0]
        >>> flow = SlicedWassersteinFlow(n_particles=200, n_steps=5).fit(X, y)
        >>> bool(flow.sample(9, y="right", random_state=0)[:, 0].min() > 50)
        True
        """
        model = self._fitted_model()
        seed = Seed.from_random_state(random_state)
        requested = RequestedSamples.from_user(model, n, y, seed)
        # Samples have the type of X, which the bound of `FittedFlowT` cannot say.
        rows = cast(UserRowsT, model.sample(requested.n, requested.encoded_y, seed))
        if return_y:
            return rows, requested.y
        return rows

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the sliced Wasserstein distance of samples to rows: higher is better.

        It is −SW₂ over 100 random directions, in units that make columns comparable and
        that are the same for all classes. With y, samples take the rows' conditions:
        rows of a class are compared with samples of that class, and with continuous y,
        pairs (x, y) are compared. Pass held-out rows: on the fitted rows the model that
        copies best would win. `GridSearchCV` and `cross_val_score` use this score.
        A fitted model gives the same rows the same score, also after it is loaded.

        Parameters
        ----------
        X : held-out rows
            Of the kinds that the class lists.
        y : conditions or None, default None
            The conditions of the rows.

        Returns
        -------
        score : float
            At most 0.
        """
        model = self._fitted_model()
        seed = self._record.seed.child("score")
        points = self._standardized_points(X)
        n = points.shape[1]
        held_out_y = _encode_y_of_rows(model, y, n)
        n_draws = draws_per_scored_row(n)
        if held_out_y is None:
            requested = RequestedSamples.from_user(model, n_draws * n, None, seed)
            sample_y = requested.encoded_y
        else:
            sample_y = held_out_y.take(torch.arange(n).repeat(n_draws))
        drawn = model.standardized_points(model.sample(n_draws * n, sample_y, seed))
        return -sliced_distance(drawn, points, Seed(0), y_p=sample_y, y_q=held_out_y)

    def _standardized_points(self, X: Any) -> Tensor:
        """X, checked to be like the fitted rows, as points (d, n) in common units."""
        return self._fitted_model().standardized_points(X)

    # Files

    def save(self, path: str | os.PathLike[str], *, particles: bool = False) -> None:
        """Write the fitted model to one file, which `sliceflow.load` opens anywhere.

        The file holds the rows if the model keeps them: ``sliceflow info`` tells.

        Parameters
        ----------
        path : str or path
            The file. An existing file is replaced atomically and keeps its permissions.
            A symbolic link is followed. Folders, pipes and devices raise an error.
        particles : bool, default False
            Also save `particles_` and `particle_conditions_`.

        Raises
        ------
        DataError
            If `particles` is True but the model has none.
        """
        self._check_saveable()
        particle_rows = None
        if particles:
            if "particles_" not in vars(self):
                fact = "this model has no particles: its file was saved without them"
                hint = "save without particles, or fit again and save with particles"
                raise DataError(fact, hint)
            planner = self._fit_planner(like_fitted=True)
            particle_rows = planner.read(self.particles_, self.particle_conditions_)
        save(self, path, particle_rows)

    if not TYPE_CHECKING:  # or every misspelt attribute would pass

        def __getattr__(self, name: str) -> Any:
            if name in _PARTICLE_ATTRIBUTES and "_record" in self.__dict__:
                fact = f"{name} is not in the file of this model"
                hint = "draw with sample(), or save with particles=True"
                raise AttributeError(f"{fact}, which was saved without; {hint}")
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}"
            )


def _checkpoint_folder(checkpoint_dir: object) -> Path:
    """The parameter `checkpoint_dir`, checked, as a path; the folder may be new."""
    is_path = isinstance(checkpoint_dir, str | os.PathLike)
    requirement = "None or the path of a folder"
    require(is_path, "checkpoint_dir", checkpoint_dir, requirement)
    text = os.fspath(cast("str | os.PathLike[str]", checkpoint_dir))
    is_text = isinstance(text, str) and text != "" and "\0" not in text
    require(is_text, "checkpoint_dir", checkpoint_dir, requirement)
    folder = Path(text)
    is_folder = folder.is_dir() or not folder.exists()
    requirement = "a folder, but is a file"
    require(is_folder, "checkpoint_dir", checkpoint_dir, requirement)
    return folder


def _encode_y_of_rows(model: FittedFlow[object], y: Any, n: int) -> EncodedY | None:
    """The encoded conditions of n rows; None if the user has none."""
    if y is None:
        return None
    encoder = require_encoder(model.y_encoder)
    encoded_y: EncodedY = encoder.encode(as_array(y))
    if len(encoded_y) != n:
        fact = f"X has {n} rows but y has {len(encoded_y)}"
        raise DataError(fact, "pass one y for every row")
    return encoded_y


@dataclass(frozen=True, eq=False)
class RequestedSamples:
    """How many samples a user asks for, and their conditions.

    Attributes
    ----------
    n : the number of samples
    conditions : the conditions of the samples; None without y
    """

    n: int
    conditions: Conditions | None

    @classmethod
    def from_user(
        cls, model: FittedFlow[object], n: int, y: Any, seed: Seed
    ) -> RequestedSamples:
        """The samples of the user's n and y, if there is memory for them.

        If y is None, samples take the conditions of rows, in the data's proportions.
        """
        require_int("n", n, 1)
        require_sample_memory(model, n, model.device)  # before y is allocated
        if y is None:
            if model.conditions is None:
                return cls(n, None)
            row_y = model.conditions.encoded_y
            indices = proportional_indices(row_y, n, seed.child("conditions"))
            return cls(n, model.conditions.take(indices))
        conditions = Conditions.of_samples(model.y_encoder, y, n)
        require_sample_memory(model, len(conditions), model.device)
        return cls(len(conditions), conditions)

    @property
    def encoded_y(self) -> EncodedY | None:
        """The conditions as the model takes them; None without y."""
        if self.conditions is None:
            return None
        return self.conditions.encoded_y

    @property
    def y(self) -> NDArray[Any] | None:
        """The conditions as the user writes them.

        None without y, and if the conditions are clusters, which the user did not pass.
        """
        if self.conditions is None or self.conditions.encoder.encodes_clusters:
            return None
        return self.conditions.y


@contextmanager
def checkpointed_until_done(checkpoints: Checkpoints | None) -> Iterator[None]:
    """Run and finish a flow in a `with` block, then discard its last checkpoint.

    Ctrl-C waits until the fit can be resumed. An error in the block leaves the
    checkpoint where it is. Without checkpoints, this does nothing.
    """
    if checkpoints is None:
        yield
        return
    with checkpoints.deferring_ctrl_c():
        yield
    checkpoints.discard()


def run_flow(
    spec: FlowSpec,
    particles: Cloud,
    target: Target,
    particle_rng: ParticleRng,
    *,
    stage_indices: range | None = None,
    listeners: Sequence[FlowListener],
    ranks: Communicator,
    checkpoints: Checkpoints | None,
) -> RunningFlow:
    """Move this rank's particles to the end of the flow, in place: `simulate` in a fit.

    With `checkpoints`, this goes on where the last checkpoint ended, and writes new
    ones. Call it in a block of `checkpointed_until_done`, which ends when the fit does.
    """
    state = FlowState()
    history = History()
    all_listeners = [history, *listeners]
    if ranks.size > 1:
        all_listeners = [history, *listeners_across_ranks(listeners, ranks)]
    run = RunningFlow(particles, particle_rng.first, state, history, all_listeners)
    after_step: Callable[[Cloud], None] = do_nothing
    if checkpoints is not None:
        checkpoints.resume(run)
        after_step = checkpoints.save_if_due
    simulate(
        spec,
        particles,
        target,
        particle_rng,
        stage_indices=stage_indices,
        listeners=all_listeners,
        state=state,
        after_step=after_step,
    )
    return run
