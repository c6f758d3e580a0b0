"""`SlicedWassersteinFlow`: generative models of vectors, as scikit-learn wants them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import torch
from numpy.typing import NDArray
from torch import Tensor

from sliceflow.base.flow_estimator import FlowEstimator
from sliceflow.base.presets import with_preset
from sliceflow.base.protocols import ParticleResult, StorableModel
from sliceflow.base.ranks import ONE_PROCESS, Communicator
from sliceflow.base.saving import FitRecord
from sliceflow.base.vector_rows import (
    KnownColumns,
    VectorArray,
    VectorRows,
    as_float_array,
    set_feature_names,
    validated_by_sklearn,
    validated_like_fitted,
)
from sliceflow.devices import resolve_device
from sliceflow.engine import frames, transports
from sliceflow.engine.random import RandomStateLike
from sliceflow.estimators.vectors.fit import VectorFitPlanner
from sliceflow.estimators.vectors.fitted import FittedVectors
from sliceflow.estimators.vectors.local import FittedLocalVectors, LocalVectorPlan
from sliceflow.estimators.vectors.paper import PAPER
from sliceflow.estimators.vectors.parameters import (
    FRAME_KINDS,
    ConditionMode,
    FrameName,
    VectorOptions,
    VectorParameters,
)
from sliceflow.estimators.vectors.plan import MAX_STEPS, VectorPlan
from sliceflow.validation import (
    require_choice,
    require_int,
    require_real,
    with_plain_numbers,
)


class SlicedWassersteinFlow(
    FlowEstimator[
        VectorRows,
        FittedVectors | FittedLocalVectors,
        VectorPlan | LocalVectorPlan,
        VectorArray,
    ]
):
    """Generative model for vectors: particles moved by sliced optimal transport.

    Each of `n_steps` steps projects particles and data on a frame of directions, solves
    the one-dimensional optimal transport T = F_q⁻¹ ∘ F_p on each, and moves the
    particles by x += Θᵀ(T(Θx) − Θx). Two axis steps then make every column's own
    distribution exact.

    X is an (n, d) array, tensor or DataFrame of finite numbers; float32 and float64 are
    kept. y is None, labels (n,) of any hashable kind, continuous columns (n, l), or
    both in one DataFrame or (n, L) array of objects, where a column is continuous if
    all its values are numbers.

    Parameters
    ----------
    n_particles : int or None, default None
        Number of particles to keep: the rows of `particles_`. None takes the smallest
        multiple of the number of rows that is at least 10,000. The fit may move more,
        so that the maps of the model are better: at least 2,000, and 200 per class.
        The plan has both numbers, `n_particles` and `n_moved_particles`.
    n_steps : int, default 200
        Steps of the flow, before the axis steps. More steps fit the data more closely.
    frame : str or frame kind, default "orthogonal"
        Directions of a step: "orthogonal", "random", "max-sliced" (fitted to particles
        and data: fewer steps and a smaller model for many columns) or "axis", or an
        object from `sliceflow.frames` such as ``frames.Random(n_directions=10_000)``.
        "max-sliced" and "axis" do not see y: they take classes with amplifier ∞ only.
    transport : str or transport, default "auto"
        How to solve each direction: "auto", "sorted", "histogram" or "paper", or
        an object from `sliceflow.transports`.
    amplifier : float, default 10
        ξ, how strongly the flow separates conditions. 0 ignores y; ∞ fits separate maps
        for each class.
    entropy : float, default 0
        λ ≥ 0 of the entropy-regularized flow: each step adds √(2λη)·noise.
    device : str or torch.device, default "auto"
        "auto" uses a GPU if there is one.
    random_state : int, RandomState, Generator or None, default None
        The same seed and machine give the same bits.
    verbose : int, default 0
        1 logs how far the fit is, to the logger "sliceflow" of Python's `logging`, or
        to stderr if no handler shows that.
    standardize : bool, default True
        Scale columns to mean 0 and standard deviation 1; an asinh compresses heavy
        tails first. With False, the flow starts from N(0, I) in your units: pass data
        that are near it in scale.
    preset : "paper" or None, default None
        "paper" is Algorithm 1 of Du et al. (2023) as printed. Parameters left at their
        defaults take its values, which the page "Reproduce the paper" lists. The data
        should be near N(0, I) in scale.
    condition_mode : "auto", "joint" or "local", default "auto"
        What to do with a continuous y. "joint" runs one flow of x and y together, as
        the paper. "local" keeps the rows and samples from those near the y that is
        asked for, without steps or maps. "auto" is local unless ξ is 0 or ∞, or several
        ranks take part; labels alone never are.
    save_rows : bool, default False
        Write the rows into the model's file, too, so that rows can be added and removed
        after it is loaded. In memory, an estimator always has its rows.
    options : VectorOptions or None, default None
        Rarely changed settings; None takes the defaults.

    Attributes
    ----------
    particles_ : array, tensor or DataFrame (M, d)
        The particles at the end of the fit, in the form of X: the paper's *batched
        samples*.
    particle_conditions_ : array or None
        The conditions of the particles, as the user wrote them.
    classes_ : array
        The class labels, if y is labels.
    plan_ : VectorPlan, or LocalVectorPlan if conditions are local
        What the fit did, with every "auto" resolved. Print it.
    history_ : dict of lists
        Columns of equal length, with an entry for each step: `stage`, `step`,
        `distance`, the sliced distance before the step, `active_fraction`, the fraction
        of maps that move, and `seconds` since the first step began (see
        `sliceflow.events.FlowEvent`).
    n_iter_ : int
        Steps done, axis steps included.
    n_features_in_ : int
        d, the number of columns.
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

    _saved_types = (FittedVectors | FittedLocalVectors, VectorRows)
    n_features_in_: int
    _options_type = VectorOptions
    options: VectorOptions | None

    def __init__(  # noqa: PLR0913, these are the settings of the model
        self,
        *,
        n_particles: int | None = None,
        n_steps: int = 200,
        frame: FrameName | frames.StorableFrameKind = "orthogonal",
        transport: transports.TransportName | transports.StorableTransport = "auto",
        amplifier: float = 10.0,
        entropy: float = 0.0,
        device: str | torch.device = "auto",
        random_state: RandomStateLike = None,
        verbose: int = 0,
        standardize: bool = True,
        preset: Literal["paper"] | None = None,
        condition_mode: ConditionMode = "auto",
        save_rows: bool = False,
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
        self.preset = preset
        self.condition_mode = condition_mode
        self.save_rows = save_rows
        self.options = options

    def _fit_planner(
        self, like_fitted: bool = False, ranks: Communicator = ONE_PROCESS
    ) -> VectorFitPlanner:
        validate: Callable[[Any], NDArray[Any]] = partial(
            validated_by_sklearn, estimator=self
        )
        if like_fitted:
            validate = self._validate_like_fitted
        return VectorFitPlanner(
            self._validated_parameters(), resolve_device(self.device), validate, ranks
        )

    def _validated_parameters(self) -> VectorParameters:
        """The parameters, checked, after the preset is applied."""
        self._require_shared_parameters(("standardize", "save_rows"))
        require_int("n_steps", self.n_steps, 0, maximum=MAX_STEPS)

        require_choice(
            "frame",
            self.frame,
            sorted(FRAME_KINDS),
            protocol=frames.FrameKind,
            objects="a frame kind from sliceflow.frames",
        )
        require_real("amplifier", self.amplifier, 0, may_be_infinite=True)
        require_choice("condition_mode", self.condition_mode, get_args(ConditionMode))
        require_real("entropy", self.entropy, 0)

        parameters = VectorParameters(
            n_particles=self.n_particles,
            n_steps=int(self.n_steps),
            frame=self.frame,
            transport=self.transport,
            amplifier=float(self.amplifier),
            entropy=float(self.entropy),
            standardize=bool(self.standardize),
            condition_mode=self.condition_mode,
            options=VectorOptions() if self.options is None else self.options,
        )
        parameters = with_plain_numbers(parameters)
        if self.preset is None:
            return parameters
        return with_preset(parameters, VectorParameters(), PAPER)

    def _validate_like_fitted(self, X: Any) -> NDArray[Any]:
        """X after scikit-learn's checks, with the columns of the current rows."""
        if self._pending_rows is not None:
            columns = KnownColumns.of_rows(self._pending_rows)
        else:
            columns = KnownColumns.of_model(self._fitted_model())
        return validated_like_fitted(X, self, columns)

    def _standardized_points(self, X: Any) -> Tensor:
        rows = as_float_array(X, self._validate_like_fitted)
        return self._fitted_model().standardized_points(rows)

    def _restore_model(
        self, saved: StorableModel, rows: VectorRows | None
    ) -> FittedVectors | FittedLocalVectors:
        if isinstance(saved, FittedLocalVectors):
            return saved.with_rows(rows)
        return super()._restore_model(saved, rows)

    def _set_fitted(
        self,
        record: FitRecord[VectorRows, FittedVectors | FittedLocalVectors],
        particles: ParticleResult[VectorArray] | None = None,
    ) -> None:
        super()._set_fitted(record, particles)
        set_feature_names(self, record.model.plan.n_columns, record.model.names)
