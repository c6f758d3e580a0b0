"""What the shared core asks of a kind of data: typed seams that mypy checks.

A `FitPlanner` reads the user's X and y, and plans a fit of these rows: a `PlannedFit`,
whose `run` does it and gives a `FittedModel`.

A plan runs no trial: settings that take one stay "auto" in it. `run` begins with
`tune`, which gives the same fit with a plan in which all settings are chosen. What is
tried depends on the kind of data (docs/architecture.md, "Follow a fit"). But planning a
fit of pictures copies them to the device, and may divide them into clusters.

A planned fit that moves particles has `base.flow_estimator.run_flow` move them, which
gives a `RunningFlow`.

Who does what, for each kind of data (classes need not derive from a protocol: mypy
compares their methods):

                       plans by            planned fit              fitted model
vectors                VectorFitPlanner    PlannedVectorFit         FittedVectors
vectors, local y       VectorFitPlanner    PlannedLocalVectorFit    FittedLocalVectors
pictures               PictureFitPlanner   PlannedPictureFit        FittedPictures
tables                 TableFitPlanner     PlannedTableFit          FittedTable
densities by class     DensityFitPlanner   PlannedClassDensityFit   FittedClassDensities
densities given y      DensityFitPlanner   PlannedConditionalDensityFit
                                                                FittedConditionalDensity
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import Field, dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
)

from numpy.typing import NDArray

from sliceflow.arrays import Ints
from sliceflow.base.fit_plan import FitPlan
from sliceflow.base.ranks import Communicator
from sliceflow.engine.events import (
    EventListener,
    FlowEvent,
    HistoryColumns,
    ProgressEvent,
)
from sliceflow.engine.random import Seed

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from sliceflow.base.checkpoints import Checkpoints
    from sliceflow.base.rows import Conditions
    from sliceflow.engine.encoded_y import EncodedY
    from sliceflow.engine.y_encoders import ConditionEncoder


class Options(Protocol):
    """Rarely changed settings of an estimator: a frozen dataclass with defaults."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def require_valid(self) -> None:
        """Raise a `ParameterError` for the first invalid option."""


class Rows(Protocol):
    """Training rows, as an estimator reads, keeps, adds and forgets them."""

    def __len__(self) -> int: ...

    def concatenate(self, others: Self) -> Self:
        """These rows, followed by the `others`."""

    def copy(self) -> Self:
        """The same rows, with copies of all arrays of the user."""

    def take(self, indices: Ints) -> Self:
        """A copy of the rows with these indices, in this order."""

    def keys(self) -> Sequence[Hashable]:
        """A key of each row and its y; keys are equal for equal rows only."""


class FlowRows(Rows, Protocol):
    """Training rows of a flow, which checkpoints identify and files may hold."""

    def digests(self, ranks: Communicator) -> dict[str, str]:
        """Short texts that identify X and y, by which a checkpoint knows its rows."""

    def user_X_and_y(self, device: torch.device) -> tuple[object, NDArray[Any] | None]:
        """X and y as the user would pass them."""


class StorableModel(Protocol):
    """What a file holds of a fitted model: a dataclass.

    Most fitted models are stored as they are.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def sample_bytes(self, n: int = 1) -> int:
        """Memory to draw n samples."""


class FittedModel(StorableModel, Protocol):
    """A fitted model, which draws samples.

    If `needs_rows`, a file stores the rows once, outside the saved model. When the file
    is read, `Estimator._restore_model` makes the fitted model of rows and saved model.
    """

    @property
    def plan(self) -> FitPlan: ...

    @property
    def needs_rows(self) -> bool:
        """Whether samples need the rows. Then a file always has them."""


# Samples in the user's form.
UserRowsT_co = TypeVar("UserRowsT_co", covariant=True)


class FittedFlow(FittedModel, Protocol[UserRowsT_co]):
    """The fitted model of a flow."""

    @property
    def device(self) -> torch.device: ...

    @property
    def y_encoder(self) -> ConditionEncoder | None:
        """The encoder of y; None without y."""

    @property
    def conditions(self) -> Conditions | None:
        """The conditions of the rows; None without y."""

    def sample(self, n: int, y: EncodedY | None, seed: Seed) -> UserRowsT_co:
        """n samples in the user's form, with these encoded conditions."""

    def standardized_points(self, X: Any) -> Tensor:
        """The user's rows as points (d, n), in units that make columns comparable."""


RowsT = TypeVar("RowsT", bound=Rows)
FlowRowsT = TypeVar("FlowRowsT", bound=FlowRows)
FittedModelT = TypeVar("FittedModelT", bound=FittedModel)
FittedFlowT = TypeVar("FittedFlowT", bound=FittedFlow[object])
PlanT = TypeVar("PlanT", bound=FitPlan)
# Covariant: a fit that gives one kind of model will do where one of several is asked
# for.
RowsT_co = TypeVar("RowsT_co", bound=Rows, covariant=True)
FlowRowsT_co = TypeVar("FlowRowsT_co", bound=FlowRows, covariant=True)
FittedModelT_co = TypeVar("FittedModelT_co", bound=FittedModel, covariant=True)
FittedFlowT_co = TypeVar("FittedFlowT_co", bound=FittedFlow[object], covariant=True)
PlanT_co = TypeVar("PlanT_co", bound=FitPlan, covariant=True)
# The type of the events that the listeners of a fit get.
EventT_co = TypeVar("EventT_co", bound=ProgressEvent, covariant=True)


@dataclass(frozen=True, eq=False)
class ParticleResult(Generic[UserRowsT_co]):
    """The particles at the end of a flow, for the attributes of its estimator."""

    X: UserRowsT_co  # in the form of the user's X
    y: NDArray[Any] | None  # the conditions of the particles; None without y


@dataclass(frozen=True, eq=False)
class FitResult(Generic[FittedModelT_co]):
    """The result of a fit: a fitted model, its history, and perhaps a warning."""

    model: FittedModelT_co
    history: HistoryColumns = field(default_factory=dict)
    warning: Warning | None = None  # what the user should know about the result
    particles: ParticleResult[Any] | None = None  # only flows have them


class PlannedFit(Protocol[RowsT_co, FittedModelT_co, EventT_co, PlanT_co]):
    """A planned fit, which has not run yet."""

    @property
    def plan(self) -> PlanT_co:
        """What the fit will do. A fitted model has the plan of what it did."""

    @property
    def rows(self) -> RowsT_co:
        """The user's rows, checked."""

    @property
    def seed(self) -> Seed:
        """The seed of the fit."""

    def tune(self, listeners: Sequence[EventListener[EventT_co]]) -> Self:
        """The same fit, with all settings chosen that the plan has left "auto".

        A tuned fit has no trials left. Only settings that depend on what the fit
        computes, such as the settings for residuals, are chosen later, by `run`.

        The listeners may get an event after every trial.
        """

    def run(
        self, listeners: Sequence[EventListener[EventT_co]]
    ) -> FitResult[FittedModelT_co]:
        """Tune the fit, and run it.

        The listeners get an event after every step, and may get events of trials.
        """


AnyPlannedFit: TypeAlias = PlannedFit[Rows, FittedModel, ProgressEvent, FitPlan]


class PlannedFlowFit(
    PlannedFit[FlowRowsT_co, FittedFlowT_co, FlowEvent, PlanT_co],
    Protocol[FlowRowsT_co, FittedFlowT_co, PlanT_co],
):
    """A fit of a `FlowEstimator`, which may resume from a checkpoint."""

    @property
    def ranks(self) -> Communicator:
        """The ranks that run this fit."""

    def with_checkpoints(self, checkpoints: Checkpoints) -> Self:
        """The same fit, which writes checkpoints and resumes from the last one."""


class FitPlanner(Protocol[RowsT, FittedModelT_co, EventT_co, PlanT_co]):
    """Reads rows and plans their fit, for the parameters of one estimator."""

    def read(self, X: Any, y: Any) -> RowsT:
        """The user's rows, checked."""

    def plan_fit(
        self, rows: RowsT, seed: Seed
    ) -> PlannedFit[RowsT, FittedModelT_co, EventT_co, PlanT_co]:
        """Plan a fit of these rows. Raises an error if that is impossible."""


class FlowFitPlanner(
    FitPlanner[FlowRowsT, FittedFlowT_co, FlowEvent, PlanT_co],
    Protocol[FlowRowsT, FittedFlowT_co, PlanT_co],
):
    """A planner of a flow, which may run on several ranks."""

    @property
    def device(self) -> torch.device: ...

    @property
    def ranks(self) -> Communicator: ...

    def plan_fit(
        self, rows: FlowRowsT, seed: Seed
    ) -> PlannedFlowFit[FlowRowsT, FittedFlowT_co, PlanT_co]: ...
