"""Trials: flows that are fitted to some of the rows, and judged by the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from sliceflow.arrays import Floats, Ints
from sliceflow.engine.events import FlowEvent
from sliceflow.engine.random import Seed
from sliceflow.estimators.density.gaussianization import fit_steps
from sliceflow.estimators.density.initial_map import InitialMap
from sliceflow.estimators.density.invertible_maps import (
    SlicedMap,
    standard_normal_log_prob,
)
from sliceflow.estimators.density.progress import FitProgress
from sliceflow.estimators.density.settings import GaussianizationSettings

# Up to this many rows, cross-validation chooses the settings; with more, one fold of
# the rows is held out, which is as good and five times faster.
MAX_CROSS_VALIDATED = 1_000
N_FOLDS = 5
# The most rows that are used to choose settings other than the size of a growing
# mixture, fitted and held out together.
MAX_ROWS_TO_CHOOSE = 20_000
# A flow ends if this many steps in a row do not make held-out rows more likely.
PATIENCE = 10
# What the progress of a fit calls the phases in which a flow is tried.
TRIAL_FLOWS = "trial flows"

# Rows (n, d), or rows with their y.
RowsT = TypeVar("RowsT")


class Split(NamedTuple, Generic[RowsT]):
    """Rows to fit, and rows that are held out."""

    train: RowsT
    held_out: RowsT


class RowsGivenY(NamedTuple):
    """Rows x, each with its conditions y."""

    x: Floats  # (n, d)
    y: Floats  # (n, l)

    def take(self, indices: Ints) -> RowsGivenY:
        """The rows with these indices, and their conditions."""
        return RowsGivenY(self.x[indices], self.y[indices])


class MappedSplit(NamedTuple):
    """The rows of a split after an initial map, as the steps of a flow get them."""

    train: Tensor  # (n, d)
    held_out: Tensor  # (m, d)
    held_out_ladj: Tensor  # (m,), of the initial map

    @classmethod
    def from_split(cls, split: Split[Tensor], initial_map: InitialMap) -> MappedSplit:
        """Map the rows of a split, once for all settings of the steps."""
        train, _ = initial_map.call_and_ladj(split.train)
        held_out, held_out_ladj = initial_map.call_and_ladj(split.held_out)
        return cls(train, held_out, held_out_ladj)


def iter_splits(x: Tensor, seed: Seed) -> Iterator[Split[Tensor]]:
    """The folds of a cross-validation of rows x (n, d); only one if they are many."""
    order = seed.permutation(len(x)).to(x.device)[:MAX_ROWS_TO_CHOOSE]
    n = len(order)
    n_folds = _count_folds(n)
    for fold in range(count_splits(n)):
        is_held_out = torch.arange(n, device=x.device) % n_folds == fold
        yield Split(x[order[~is_held_out]], x[order[is_held_out]])


def _count_folds(n: int) -> int:
    """The number of folds into which n rows are divided."""
    return max(2, min(N_FOLDS, n // 2))


def count_splits(n: int) -> int:
    """The number of splits of n rows: one for each fold, or one."""
    return _count_folds(n) if n <= MAX_CROSS_VALIDATED else 1


def count_train_rows(n: int) -> int:
    """How many of n rows the first split fits; no split fits fewer."""
    n = min(n, MAX_ROWS_TO_CHOOSE)
    return n - math.ceil(n / _count_folds(n))


def fold_in_words(fold: int, n_folds: int) -> str:
    """Such as " (fold 2 of 5)"; nothing if there is only one."""
    if n_folds == 1:
        return ""
    return f" (fold {fold + 1} of {n_folds})"


@dataclass(eq=False)
class HeldOutRows:
    """Held-out rows that move along with a flow, to see whether its steps help.

    Parameters
    ----------
    x : the rows (m, d) after the initial map and all steps so far
    ladj : of the initial map and all steps so far, (m,)
    log_probs : the mean log-density of the rows after 0, 1, … steps
    """

    x: Tensor
    ladj: Tensor
    log_probs: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._append_log_prob()

    def _append_log_prob(self) -> None:
        """Append the mean log-density of the rows after the last step."""
        log_probs = standard_normal_log_prob(self.x) + self.ladj
        self.log_probs.append(float(log_probs.mean()))

    def move(self, step: SlicedMap) -> None:
        """Move the rows by a step of the flow."""
        self.x, step_ladj = step.call_and_ladj(self.x)
        self.ladj = self.ladj + step_ladj
        self._append_log_prob()

    @property
    def has_stopped_improving(self) -> bool:
        """Whether the last `PATIENCE` steps were no better than one before them."""
        best_step = int(np.argmax(self.log_probs))
        last_step = len(self.log_probs) - 1
        return last_step - best_step >= PATIENCE


class HeldOutCurve(NamedTuple):
    """The mean log-density of held-out rows after 0, 1, … steps, over all trials."""

    log_probs: Floats  # (n_steps + 1,)
    is_ended: bool  # whether a listener has ended the search
    is_complete: bool  # whether all trials came to their end before that


def cross_validate_flow(
    splits: Sequence[MappedSplit],
    settings: GaussianizationSettings,
    seed: Seed,
    progress: FitProgress,
    announce_rest: Callable[[Floats], None],
) -> HeldOutCurve:
    """Fit a flow to each split, and return how likely held-out rows are at each step.

    Each of these flows is a trial. Those that end early keep the value that they ended
    with. If a listener ends the search, no other trial begins.

    Parameters
    ----------
    splits : the rows to fit, and those that are held out, after an initial map
    settings : of the flows
    seed : of the flows
    progress : is notified of every step
    announce_rest : tells `progress` what follows the trials, by the mean curve of those
    that are over; it is called before listeners hear of the last step of a trial
    """
    curves: list[Floats] = []
    for fold, split in enumerate(splits):
        progress.begin_phase(TRIAL_FLOWS)
        name = f"penalty {settings.penalty:g}{fold_in_words(fold, len(splits))}"
        flow = _TrialFlow(name, split, settings, progress)
        flow.fit(seed)
        curves.append(flow.log_probs)
        is_ended = flow.is_cut_short
        if settings.n_steps > 0 and not flow.is_cut_short:
            announce_rest(np.mean(curves, axis=0))
            is_ended = progress.notify_of_trial(name, flow.score, is_last=True)
        if is_ended:
            progress.announce_no_more(TRIAL_FLOWS)
            is_complete = fold == len(splits) - 1 and not flow.is_cut_short
            return HeldOutCurve(np.mean(curves, axis=0), is_ended, is_complete)
    return HeldOutCurve(np.mean(curves, axis=0), is_ended=False, is_complete=True)


class _TrialFlow:
    """A flow that tries settings; it ends when held-out rows get no likelier.

    Listeners of the user are notified of all its steps but the last: of that one by
    `cross_validate_flow`, when it is known what follows.

    Parameters
    ----------
    name : what is tried, in words
    split : the rows to fit, and those that are held out
    settings : of the flow
    progress : is notified of the steps

    Attributes
    ----------
    is_cut_short : whether a listener of the user ended the search before the last step
    """

    def __init__(
        self,
        name: str,
        split: MappedSplit,
        settings: GaussianizationSettings,
        progress: FitProgress,
    ) -> None:
        self.is_cut_short = False
        self._name = name
        self._train = split.train
        self._settings = settings
        self._progress = progress
        self._held_out = HeldOutRows(split.held_out, split.held_out_ladj)

    def fit(self, seed: Seed) -> None:
        """Fit the flow, and judge each of its steps by the held-out rows."""
        # No tensor of a trial leaves it; so torch need not keep track of them, which
        # takes a fifth of the time.
        with torch.inference_mode():
            fit_steps(self._train, self._settings, seed, [self._judge_step])

    def _judge_step(self, event: FlowEvent) -> bool:
        """Judge a step, and return whether the flow ends with it."""
        self._held_out.move(SlicedMap.from_step(event.model_step))
        is_last = event.step_index + 1 == event.stage_steps
        if is_last or self._held_out.has_stopped_improving:
            return True
        with torch.inference_mode(mode=False):  # listeners may use torch as they like
            self.is_cut_short = self._progress.notify_of_trial(self._name, self.score)
        return self.is_cut_short

    @property
    def score(self) -> float:
        """The mean log-density of the held-out rows after the last step so far."""
        return self._held_out.log_probs[-1]

    @property
    def log_probs(self) -> Floats:
        """The same after 0, 1, … steps (n_steps + 1,), level after the last step."""
        log_probs = self._held_out.log_probs
        n_missing = self._settings.n_steps + 1 - len(log_probs)
        return np.pad(log_probs, (0, n_missing), mode="edge")
