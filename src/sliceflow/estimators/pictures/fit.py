"""The fit of pictures: read them, plan their fit, choose its start, and run it.

`PictureAdapter` reads the user's pictures and plans their fit: a `PlannedPictureFit`.
Its `tune` chooses where particles start, and gives a `TunedPictureFit` (`tuned.py`).
That runs as `RunningPictureFit` (`running.py`), which holds the particles, the flow and
the pictures that they move onto, for `engine.flow.simulate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sliceflow.base.checkpoints import Checkpoints
from sliceflow.base.flow_estimator import run_flow
from sliceflow.base.protocols import FitResult
from sliceflow.base.ranks import ONE_PROCESS, Communicator
from sliceflow.base.rows import Conditions
from sliceflow.engine.events import FlowListener
from sliceflow.engine.labels import as_array
from sliceflow.engine.random import Seed
from sliceflow.errors import DataError, DataWarning, warn_user
from sliceflow.estimators.pictures.fitted import FittedPictures
from sliceflow.estimators.pictures.layout import Layout
from sliceflow.estimators.pictures.parameters import PictureParameters
from sliceflow.estimators.pictures.plan import PicturePlan
from sliceflow.estimators.pictures.rows import PictureRows
from sliceflow.estimators.pictures.running import RunningPictureFit
from sliceflow.estimators.pictures.start_trial import needs_trial, noise_is_better
from sliceflow.estimators.pictures.tuned import TunedPictureFit

# If all integer pixels are in the lowest quarter of the possible values, the user has
# probably forgotten `n_pixel_values`.
DARK_DIVISOR = 4


@dataclass(frozen=True)
class PictureAdapter:
    """Reads pictures and plans their fit, for the parameters of one `ImageFlow`."""

    parameters: PictureParameters
    device: torch.device
    layout: Layout | None = None  # the layout of pictures; None infers it from them
    ranks: Communicator = ONE_PROCESS

    def read(self, X: Any, y: Any) -> PictureRows:
        """The user's pictures and labels, checked."""
        if y is not None and self.parameters.known is not None:
            raise DataError(
                "a flow can use labels or known pixels, not both", "choose one"
            )
        layout = self.layout
        if layout is None:
            layout = Layout.infer(X, self.parameters.n_pixel_values)
        pixels = layout.read(X)
        if layout.n_pixel_values is None:
            dtype = np.promote_types(layout.dtype, np.float32)
            pixels = pixels.astype(dtype, copy=False)
        elif self.layout is None:
            _warn_if_dark(pixels, layout.n_pixel_values)

        labels = None
        kind = str(layout)
        if y is not None:
            labels = _as_labels(y, len(pixels))
            kind += " and labels"
        shard = None
        if self.ranks.size > 1:
            shard = self.ranks.shard_by_counts(len(pixels), kind)
        conditions = None
        if labels is not None:
            all_labels = self.ranks.all_gather_rows(labels)
            conditions = Conditions.infer(all_labels, len(all_labels), "labels")
        return PictureRows(layout, pixels, conditions, shard)

    def plan_fit(self, rows: PictureRows, seed: Seed) -> PlannedPictureFit:
        """What a fit of these pictures will do; an error if that is impossible."""
        as_planned = TunedPictureFit.from_rows(
            rows, self.parameters, seed, self.device, self.ranks
        )
        return PlannedPictureFit(rows, self.parameters, as_planned)


@dataclass(frozen=True)
class PlannedPictureFit:
    """A planned fit of pictures. No particle has moved yet."""

    rows: PictureRows  # the user's, checked
    parameters: PictureParameters
    as_planned: TunedPictureFit  # the fit, unless a trial chooses another start
    checkpoints: Checkpoints | None = None

    @property
    def plan(self) -> PicturePlan:
        """What the fit will do, unless a trial chooses another start."""
        return self.as_planned.plan

    @property
    def seed(self) -> Seed:
        """The seed of the fit."""
        return self.as_planned.seed

    @property
    def ranks(self) -> Communicator:
        """Those that take part."""
        return self.as_planned.ranks

    def with_checkpoints(self, checkpoints: Checkpoints) -> PlannedPictureFit:
        """The same fit, which writes checkpoints and resumes from the last one."""
        return replace(self, checkpoints=checkpoints)

    def run(self, listeners: Sequence[FlowListener]) -> FitResult[FittedPictures]:
        """Choose where particles start, if that is open, move them, finish the fit.

        The flow goes on where a checkpoint ended, if there is one.
        """
        running = RunningPictureFit(self.tune())
        with run_flow(running, listeners, self.ranks, self.checkpoints) as finished:
            return running.result(finished)

    def tune(self) -> TunedPictureFit:
        """The fit as planned, or from noise if trials find that much better."""
        if not needs_trial(self.plan):
            return self.as_planned
        if not noise_is_better(self.plan, self.rows, self.parameters, self.seed):
            return self.as_planned
        return self.as_planned.starting_as_noise(self.parameters)


def _warn_if_dark(pixels: NDArray[Any], n_pixel_values: int) -> None:
    """Warn if integer pixels probably have fewer values than `n_pixel_values`."""
    brightest = int(pixels.max())
    if 0 < brightest < n_pixel_values // DARK_DIVISOR:
        warning = DataWarning(
            f"the brightest pixel is {brightest}, but pixels may have "
            f"{n_pixel_values} values",
            f"if they are 0..{brightest}, pass n_pixel_values={brightest + 1}",
        )
        warn_user(warning)


def _as_labels(y: Any, n: int) -> NDArray[Any]:
    """The labels of n pictures as an array (n,)."""
    labels = np.atleast_1d(as_array(y, "labels"))
    if len(labels) != n:
        raise DataError(
            f"there are {n} pictures but {len(labels)} labels",
            "pass one label per picture",
        )
    if labels.ndim != 1:
        raise DataError(
            f"labels have shape {labels.shape}", "pass one class label per picture"
        )
    return labels
