"""Trials: flows that are fitted to some of the rows, and judged by the others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sliceflow.arrays import Floats
from sliceflow.engine.events import Event
from sliceflow.engine.random import Seed
from sliceflow.spaces.density.gaussianization import EarlyStopping, fit_steps
from sliceflow.spaces.density.initial_map import InitialMap
from sliceflow.spaces.density.progress import FitProgress
from sliceflow.spaces.density.settings import GaussianizationSettings

# Up to this many rows, cross-validation chooses the settings; with more, one part of
# the rows is held out, which is as good and five times faster.
MAX_CROSS_VALIDATED = 1_000
N_FOLDS = 5
# The most rows that are used to choose settings other than the size of a growing
# mixture, fitted and held out together.
MAX_ROWS_TO_CHOOSE = 20_000
# What the progress of a fit calls the parts in which a flow is tried.
TRIAL_FLOWS = "trial flows"


class Split(NamedTuple):
    """Rows to fit (n, d), and rows that are held out (m, d)."""

    train: Tensor
    held_out: Tensor


class FlowTrial(NamedTuple):
    """The rows of a split after an initial map, on which steps are tried."""

    train: Tensor  # (n, d)
    held_out: Tensor  # (m, d)
    held_out_ladj: Tensor  # (m,), of the initial map

    @classmethod
    def from_split(cls, split: Split, initial_map: InitialMap) -> FlowTrial:
        """Map the rows of a split, once for all settings of the steps."""
        train, _ = initial_map.call_and_ladj(split.train)
        held_out, held_out_ladj = initial_map.call_and_ladj(split.held_out)
        return cls(train, held_out, held_out_ladj)


def iter_splits(x: Tensor, seed: Seed) -> Iterator[Split]:
    """The folds of a cross-validation of rows x (n, d); of many rows, the first one."""
    order = seed.permutation(len(x)).to(x.device)[:MAX_ROWS_TO_CHOOSE]
    n = len(order)
    n_folds = _count_folds(n)
    for fold in range(count_splits(n)):
        is_held_out = torch.arange(n, device=x.device) % n_folds == fold
        yield Split(x[order[~is_held_out]], x[order[is_held_out]])


def _count_folds(n: int) -> int:
    """The number of parts into which n rows are divided."""
    return max(2, min(N_FOLDS, n // 2))


def count_splits(n: int) -> int:
    """The number of splits of n rows: one for each part, or one."""
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


def held_out_curve(
    trials: Sequence[FlowTrial],
    settings: GaussianizationSettings,
    seed: Seed,
    progress: FitProgress,
) -> Floats:
    """The mean log-density of held-out rows after 0, 1, … steps, over all trials.

    Flows that end early keep the value that they ended with.
    """
    curves = []
    for fold, trial in enumerate(trials):
        progress.begin(TRIAL_FLOWS)
        held_out = EarlyStopping(trial.held_out, trial.held_out_ladj)
        name = f"penalty {settings.penalty:g}{fold_in_words(fold, len(trials))}"
        listener = _TrialListener(held_out, name, progress)
        # No tensor of a trial leaves it; so torch need not keep track of them, which
        # takes a fifth of the time.
        with torch.inference_mode():
            fit_steps(trial.train, settings, seed, [listener])
        curve = held_out.curve
        curve += [curve[-1]] * (settings.n_steps + 1 - len(curve))
        curves.append(curve)
    return np.asarray(np.mean(curves, axis=0))


@dataclass(frozen=True)
class _TrialListener:
    """A listener of a trial flow, which tells the user's listeners of its steps."""

    held_out: EarlyStopping
    trial: str  # what is tried, in words
    progress: FitProgress

    def __call__(self, event: Event) -> bool:
        is_over = self.held_out(event)
        is_last = is_over or event.step_index == event.stage_steps
        score = self.held_out.curve[-1]
        with torch.inference_mode(mode=False):  # listeners may use torch as they like
            is_ended = self.progress.notify_of_trial(self.trial, score, is_last)
        return is_over or is_ended
