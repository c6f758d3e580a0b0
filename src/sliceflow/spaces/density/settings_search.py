"""The search for the settings of a `Gaussianization`, by held-out likelihood.

First it chooses the initial map, by its own log-density, which is quick. Then it
chooses the penalty of rough maps and the number of steps, by flows that are fitted to
parts of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sliceflow.arrays import Floats
from sliceflow.engine.random import Seed
from sliceflow.spaces.density.gaussianization import EarlyStopping, fit_steps
from sliceflow.spaces.density.initial_map import (
    InitialMap,
    fit_initial_map,
    fit_map_to_grow,
    grow_initial_map,
)
from sliceflow.spaces.density.settings import (
    MAX_UNGROWN_COMPONENTS,
    REG_COVARS,
    GaussianizationSettings,
    InitialMapSettings,
)
from sliceflow.validation import require

# Penalties of rough maps that are tried. Weaker ones follow noise on all sets that
# were measured.
PENALTIES = (30.0, 100.0, 300.0)
# Components of the mixture that the flow may start from, in the order in which they
# are tried; the search ends when two in a row are no better.
MIXTURE_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, MAX_UNGROWN_COMPONENTS)
_MAX_WORSE_SIZES = 2
# Up to this many rows, all folds choose the mixture; with more, two of them are enough.
_MAX_ROWS_FOR_ALL_FOLDS = 400
_N_FOLDS_OF_MIXTURES = 2
# Up to this many rows, cross-validation chooses the settings; with more, one part of
# the rows is held out, which is as good and five times faster.
MAX_CROSS_VALIDATED = 1_000
N_FOLDS = 5
# The most rows that are used to choose settings other than the size of a growing
# mixture, fitted and held out together.
MAX_ROWS_TO_CHOOSE = 20_000
# If the largest of these mixtures is the best one, it is doubled while that makes
# held-out rows likelier: a tenth of at most this many. With fewer rows, the best size
# would be too small for all of them.
_MAX_ROWS_TO_GROW = 100_000
_HELD_OUT_SHARE_TO_GROW = 0.1
# Rows that every component has, on average, but as many as it has parameters at least.
# In 20 dimensions these are 231; with 50 rows for each, held-out rows of 10,000 became
# likelier by the mixture alone, but less likely by .19 nats after the flow.
_MIN_ROWS_PER_COMPONENT = 50
# A doubling must gain this, in nats. Mixtures of twice the size take twice the time in
# all that follows, and the flow gains a part of it without them. Of hundreds of
# held-out rows, less may be noise.
_MIN_GAIN_OF_DOUBLING = 0.05
# The most steps of a flow, if the number of steps is chosen.
MAX_STEPS = 150


class Split(NamedTuple):
    """Rows to fit (n, d), and rows that are held out (m, d)."""

    fitted: Tensor
    held_out: Tensor


class Trial(NamedTuple):
    """The rows of a split after an initial map, on which steps are tried."""

    fitted: Tensor  # (n, d)
    held_out: Tensor  # (m, d)
    held_out_ladj: Tensor  # (m,), of the initial map

    @classmethod
    def from_split(cls, split: Split, initial_map: InitialMap) -> Trial:
        """Map the rows of a split, once for all settings of the steps."""
        fitted, _ = initial_map.call_and_ladj(split.fitted)
        held_out, held_out_ladj = initial_map.call_and_ladj(split.held_out)
        return cls(fitted, held_out, held_out_ladj)


class GrownSettings(NamedTuple):
    """The settings of an initial map whose mixture may have grown.

    If it has, there is a trial of the grown map, in which steps are searched.
    """

    settings: InitialMapSettings
    trials: Sequence[Trial] | None


def choose_settings(
    x: Tensor,
    seed: Seed,
    n_steps: int | None = None,
    penalty: float | None = None,
    n_components: int | None = None,
) -> GaussianizationSettings:
    """The settings for rows x (n, d). Arguments that are not None are not chosen.

    A `ParameterError` says if there are fewer rows to fit than `n_components`.
    """
    splits = list(_splits(x, seed.child("splits")))
    n_fitted = min(len(split.fitted) for split in splits)
    require(
        n_components is None or n_components <= n_fitted,
        "n_components",
        n_components,
        f"'auto' or at most {n_fitted} for {len(x)} rows",
        "trials fit only a part of them",
    )
    mixture_splits = splits
    if len(x) > _MAX_ROWS_FOR_ALL_FOLDS:
        mixture_splits = splits[:_N_FOLDS_OF_MIXTURES]
    map_settings = _choose_initial_map(mixture_splits, seed, n_components)
    trials = None
    if n_components is None and map_settings.n_components == MIXTURE_SIZES[-1]:
        grown = _double_mixture(x, map_settings, seed)
        map_settings = grown.settings
        trials = grown.trials
    if n_steps is not None and penalty is not None:
        return GaussianizationSettings(n_steps, penalty, map_settings)
    if trials is None:  # the mixture did not grow: a grown one is not fitted again
        trials = []
        for split in splits:
            initial_map = fit_initial_map(split.fitted, map_settings, seed)
            trials.append(Trial.from_split(split, initial_map))
    return _choose_steps(trials, map_settings, seed, n_steps, penalty)


def _choose_steps(
    trials: Sequence[Trial],
    map_settings: InitialMapSettings,
    seed: Seed,
    n_steps: int | None,
    penalty: float | None,
) -> GaussianizationSettings:
    """The settings with the steps and the penalty that are likeliest in the trials.

    `n_steps` and `penalty` are chosen if they are None.
    """
    penalties = PENALTIES if penalty is None else (penalty,)
    max_steps = MAX_STEPS if n_steps is None else n_steps
    best = -math.inf
    chosen = GaussianizationSettings(max_steps, penalties[-1], map_settings)
    for candidate in penalties:
        tried = GaussianizationSettings(max_steps, candidate, map_settings)
        curve = held_out_curve(trials, tried, seed)
        if n_steps is not None:
            curve = curve[-1:]
        if curve.max() > best:
            best = float(curve.max())
            best_n_steps = int(curve.argmax()) if n_steps is None else n_steps
            chosen = replace(tried, n_steps=best_n_steps)
    return chosen


def _splits(x: Tensor, seed: Seed) -> Iterator[Split]:
    """The folds of a cross-validation of rows x (n, d); of many rows, the first one."""
    order = seed.permutation(len(x)).to(x.device)[:MAX_ROWS_TO_CHOOSE]
    n = len(order)
    n_folds = max(2, min(N_FOLDS, n // 2))
    folds = range(n_folds) if n <= MAX_CROSS_VALIDATED else range(1)
    for fold in folds:
        is_held_out = torch.arange(n, device=x.device) % n_folds == fold
        yield Split(x[order[~is_held_out]], x[order[is_held_out]])


def _choose_initial_map(
    splits: Sequence[Split], seed: Seed, n_components: int | None
) -> InitialMapSettings:
    """The initial map that is likeliest on held-out rows.

    `n_components` is chosen if it is None.
    """
    sizes = _sizes_for(len(splits[0].fitted))
    if n_components is not None:
        sizes = [n_components]
    best = -math.inf
    chosen = InitialMapSettings(sizes[0])
    for columns_first in (False, True):
        for reg_covar in REG_COVARS:
            tried = InitialMapSettings(reg_covar=reg_covar, columns_first=columns_first)
            score, tried = _choose_mixture_size(splits, tried, seed, sizes)
            if score > best:
                best = score
                chosen = tried
    return chosen


def _sizes_for(n: int) -> Sequence[int]:
    """The numbers of components that are tried for n rows: two rows each, or more."""
    return [size for size in MIXTURE_SIZES if size <= max(1, n // 2)]


def _choose_mixture_size(
    splits: Sequence[Split],
    settings: InitialMapSettings,
    seed: Seed,
    sizes: Sequence[int],
) -> tuple[float, InitialMapSettings]:
    """The best held-out log-density, and the settings with that many components."""
    best = -math.inf
    chosen = settings
    n_worse = 0
    for n_components in sizes:
        if n_worse == _MAX_WORSE_SIZES:
            break
        tried = replace(settings, n_components=n_components)
        score = _score_initial_map(splits, tried, seed)
        n_worse += 1
        if score > best:
            best = score
            chosen = tried
            n_worse = 0
    return best, chosen


def _score_initial_map(
    splits: Sequence[Split], settings: InitialMapSettings, seed: Seed
) -> float:
    """The mean log-density of held-out rows without steps, summed over the splits."""
    score = 0.0
    for split in splits:
        initial_map = fit_initial_map(split.fitted, settings, seed, n_mixture_starts=1)
        score += float(initial_map.log_density(split.held_out).mean())
    return score


def _double_mixture(
    x: Tensor, settings: InitialMapSettings, seed: Seed
) -> GrownSettings:
    """Double the mixture while it makes held-out ones of the rows x (n, d) likelier."""
    order = seed.child("rows to grow").permutation(len(x)).to(x.device)
    order = order[:_MAX_ROWS_TO_GROW]
    n_held_out = int(_HELD_OUT_SHARE_TO_GROW * len(order))
    held_out = x[order[:n_held_out]]
    fitted = x[order[n_held_out:]]
    n_components = 2 * settings.n_components
    min_rows = _min_rows_per_component(x.shape[1])
    if len(fitted) < min_rows * n_components:
        return GrownSettings(settings, trials=None)
    grown = fit_map_to_grow(fitted, settings, seed)
    score = float(grown.log_density(held_out).mean())
    chosen = None
    while len(fitted) >= min_rows * n_components:
        grown = grow_initial_map(grown, n_components, fitted, settings.reg_covar)
        before = score
        score = float(grown.log_density(held_out).mean())
        if score < before + _MIN_GAIN_OF_DOUBLING:
            break
        settings = replace(settings, n_components=n_components)
        chosen = grown
        n_components *= 2
    if chosen is None:
        return GrownSettings(settings, trials=None)
    # The flow is tried on some of the rows that the mixture has seen, as it will be.
    n_to_fit = MAX_ROWS_TO_CHOOSE * (N_FOLDS - 1) // N_FOLDS
    n_to_hold_out = MAX_ROWS_TO_CHOOSE // N_FOLDS
    split = Split(fitted[:n_to_fit], held_out[:n_to_hold_out])
    return GrownSettings(settings, [Trial.from_split(split, chosen)])


def _min_rows_per_component(d: int) -> int:
    """How many rows each component of a grown mixture in d dimensions should have."""
    n_parameters = 1 + d + d * (d + 1) // 2
    return max(_MIN_ROWS_PER_COMPONENT, n_parameters)


def held_out_curve(
    trials: Sequence[Trial], settings: GaussianizationSettings, seed: Seed
) -> Floats:
    """The mean log-density of held-out rows after 0, 1, … steps, over all trials.

    Flows that end early keep the value that they ended with.
    """
    curves = []
    for trial in trials:
        held_out = EarlyStopping(trial.held_out, trial.held_out_ladj)
        fit_steps(trial.fitted, settings, seed, [held_out])
        curve = held_out.curve
        curve += [curve[-1]] * (settings.n_steps + 1 - len(curve))
        curves.append(curve)
    return np.asarray(np.mean(curves, axis=0))
