"""The search for the settings of a `Gaussianization`, by held-out likelihood.

First it chooses the initial map, by its own log-density, which is quick. Then it
chooses the penalty of rough maps and the number of steps, by flows that are fitted to
some of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from torch import Tensor

from sliceflow.arrays import Floats
from sliceflow.engine.random import Seed
from sliceflow.estimators.density.initial_map import (
    MIXTURE_STARTS,
    InitialMap,
    fit_columns,
    fit_initial_map,
    fit_map_to_grow,
    fit_mixture,
    fit_whitening,
    grow_initial_map,
)
from sliceflow.estimators.density.invertible_maps import (
    ColumnwiseMap,
    Composition,
    InvertibleMap,
)
from sliceflow.estimators.density.progress import FLOW, FitProgress
from sliceflow.estimators.density.settings import (
    MAX_UNGROWN_COMPONENTS,
    REG_COVARS,
    GaussianizationParameters,
    GaussianizationSettings,
    InitialMapSettings,
)
from sliceflow.estimators.density.trials import (
    MAX_ROWS_TO_CHOOSE,
    N_FOLDS,
    TRIAL_FLOWS,
    FlowTrial,
    Split,
    count_splits,
    count_train_rows,
    fit_trial_flows,
    fold_in_words,
    iter_splits,
)
from sliceflow.validation import require

# Penalties of rough maps that are tried. Weaker ones follow noise on all sets that
# were measured.
PENALTIES = (30.0, 100.0, 300.0)
# Components of the mixture that the flow may start from, in the order in which they
# are tried; the search ends when two in a row are no better.
MIXTURE_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, MAX_UNGROWN_COMPONENTS)
_MAX_WORSE_SIZES = 2
# How many sizes are tried, for estimates before the search: three to nine were, on
# seven sets of 178 to 10,000 rows.
_EXPECTED_SIZES = 6
# The other settings of initial maps, with each of which all these sizes are tried: each
# of `REG_COVARS`, with and without maps of the columns.
_N_KINDS_OF_MAPS = 2 * len(REG_COVARS)
# Up to this many rows, all folds choose the mixture; with more, two of them are enough.
_MAX_ROWS_FOR_ALL_FOLDS = 400
_N_FOLDS_OF_MIXTURES = 2
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
# What the progress of a fit calls the phases in which mixtures of one kind are tried.
TRIAL_MIXTURES = "trial mixtures"


class ChosenMap(NamedTuple):
    """The settings that were chosen for the initial map.

    If its mixture has grown, there is a trial of the grown map, in which steps are
    searched: so it is not fitted again.
    """

    settings: InitialMapSettings
    grown_trial: FlowTrial | None


# Before the search


def require_enough_rows(n: int, parameters: GaussianizationParameters) -> None:
    """Raise a `ParameterError` if a trial fits fewer of n rows than `n_components`."""
    n_components = parameters.n_components
    n_train = count_train_rows(n)
    require(
        n_components == "auto" or n_components <= n_train,
        "n_components",
        n_components,
        f"'auto' or at most {n_train} for {n} rows",
        "trials fit only a part of them",
    )


def expect_trials(
    n: int, parameters: GaussianizationParameters, progress: FitProgress
) -> None:
    """Say how many mixtures and steps `choose_settings` will probably try for n rows.

    The numbers are exact if nothing is "auto".
    """
    n_sizes = min(_EXPECTED_SIZES, len(_mixture_sizes(n, parameters)))
    n_mixtures = n_sizes * _count_mixture_splits(n)
    progress.expect(TRIAL_MIXTURES, _N_KINDS_OF_MAPS, n_mixtures)
    if parameters.n_steps == "auto" or parameters.penalty == "auto":
        n_flows = len(_penalties(parameters)) * count_splits(n)
        progress.expect(TRIAL_FLOWS, n_flows, parameters.expected_steps)


def _count_mixture_splits(n: int) -> int:
    """How many of the splits of n rows choose the mixture."""
    n_splits = count_splits(n)
    if n <= _MAX_ROWS_FOR_ALL_FOLDS:
        return n_splits
    return min(n_splits, _N_FOLDS_OF_MIXTURES)


def _mixture_sizes(n: int, parameters: GaussianizationParameters) -> Sequence[int]:
    """The numbers of components that are tried for n rows."""
    if parameters.n_components != "auto":
        return [parameters.n_components]
    max_size = max(1, count_train_rows(n) // 2)  # two rows each, or more
    return [size for size in MIXTURE_SIZES if size <= max_size]


def _penalties(parameters: GaussianizationParameters) -> Sequence[float]:
    """The penalties that are tried."""
    if parameters.penalty == "auto":
        return PENALTIES
    return [parameters.penalty]


# The search


def choose_settings(
    x: Tensor,
    parameters: GaussianizationParameters,
    seed: Seed,
    progress: FitProgress,
) -> GaussianizationSettings:
    """Choose by trials on rows x (n, d) what is "auto" in the parameters."""
    splits = list(iter_splits(x, seed.child("splits")))
    chosen_map = _choose_initial_map(x, splits, parameters, seed, progress)
    return _choose_steps(splits, chosen_map, parameters, seed, progress)


# The initial map


def _choose_initial_map(
    x: Tensor,
    splits: Sequence[Split[Tensor]],
    parameters: GaussianizationParameters,
    seed: Seed,
    progress: FitProgress,
) -> ChosenMap:
    """Choose the initial map of rows x (n, d) that is likeliest on held-out ones."""
    mixture_splits = splits[: _count_mixture_splits(len(x))]
    sizes = _mixture_sizes(len(x), parameters)
    settings = _choose_ungrown_map(mixture_splits, sizes, seed, progress)
    is_largest = settings.n_components == MIXTURE_SIZES[-1]
    if parameters.n_components == "auto" and is_largest:
        return _double_mixture(x, settings, seed, progress)
    return ChosenMap(settings, grown_trial=None)


def _choose_ungrown_map(
    splits: Sequence[Split[Tensor]],
    sizes: Sequence[int],
    seed: Seed,
    progress: FitProgress,
) -> InitialMapSettings:
    """Try mixtures of these sizes; choose the map likeliest on held-out rows."""
    searches = []
    for columns_first in (False, True):
        column_maps: list[ColumnwiseMap | None] = [None] * len(splits)
        if columns_first:
            column_maps = [fit_columns(split.train) for split in splits]
        for reg_covar in REG_COVARS:
            trials = []
            for split, column_map in zip(splits, column_maps, strict=True):
                trials.append(_MixtureTrial.from_split(split, column_map, reg_covar))
            first = InitialMapSettings(sizes[0], reg_covar, columns_first)
            searches.append(_choose_mixture_size(trials, first, sizes, seed, progress))
    likeliest = max(searches, key=lambda search: search.best_score)
    return likeliest.best


class _MixtureTrial(NamedTuple):
    """A split whose rows are white, for mixtures of several sizes."""

    split: Split[Tensor]
    white: Tensor  # the training rows
    white_held_out: Tensor
    held_out_ladj: Tensor  # (m,), of the map to white rows

    @classmethod
    def from_split(
        cls, split: Split[Tensor], column_map: ColumnwiseMap | None, reg_covar: float
    ) -> _MixtureTrial:
        """Whiten the rows of a split, after a map of their columns if there is one."""
        train = split.train
        maps: list[InvertibleMap] = []
        if column_map is not None:
            train, _ = column_map.call_and_ladj(train)
            maps.append(column_map)
        whitening, white = fit_whitening(train, reg_covar)
        maps.append(whitening)
        white_held_out, ladj = Composition(maps).call_and_ladj(split.held_out)
        return cls(split, white, white_held_out, ladj)

    def score(self, settings: InitialMapSettings, seed: Seed, n_starts: int) -> float:
        """Fit a mixture, and return the mean log-density of the held-out rows."""
        if settings.n_components > MAX_UNGROWN_COMPONENTS:
            initial_map = fit_initial_map(self.split.train, settings, seed)
            return float(initial_map.log_prob(self.split.held_out).mean())
        mixture = fit_mixture(self.white, settings, seed, n_starts)
        log_probs = mixture.log_prob(self.white_held_out) + self.held_out_ladj
        return float(log_probs.mean())


@dataclass
class _SizeSearch:
    """The search for the size of a mixture.

    Parameters
    ----------
    best : the best settings so far
    n_left : how many sizes are not tried yet
    best_score : the log-density of held-out rows with the best settings
    n_worse : how many sizes in a row were no better
    """

    best: InitialMapSettings
    n_left: int
    best_score: float = -math.inf
    n_worse: int = 0

    def record(self, tried: InitialMapSettings, score: float) -> None:
        """Keep these settings if they are the best."""
        self.n_left -= 1
        self.n_worse += 1
        if score > self.best_score:
            self.best_score = score
            self.best = tried
            self.n_worse = 0

    @property
    def is_over(self) -> bool:
        """Whether no other size is tried."""
        return self.n_left == 0 or self.n_worse == _MAX_WORSE_SIZES


def _choose_mixture_size(
    trials: Sequence[_MixtureTrial],
    settings: InitialMapSettings,
    sizes: Sequence[int],
    seed: Seed,
    progress: FitProgress,
) -> _SizeSearch:
    """Try mixtures of these sizes until it is clear which is best."""
    search = _SizeSearch(settings, len(sizes))
    # Of many sizes, others make up for one that ended in a poor optimum. A single one
    # starts several times: with one start, two clear clusters were sometimes missed,
    # and for 2 of 30 seeds the choice fell on a map that was .16 nats worse.
    n_starts = 1
    if len(sizes) == 1:
        n_starts = MIXTURE_STARTS
    progress.begin_phase(TRIAL_MIXTURES)
    for n_components in sizes:
        tried = replace(settings, n_components=n_components)
        scores_of_folds = [trial.score(tried, seed, n_starts) for trial in trials]
        search.record(tried, sum(scores_of_folds))
        is_ended = _notify_of_size(tried, scores_of_folds, search.is_over, progress)
        if is_ended and not search.is_over:
            progress.end_phase()
        if is_ended or search.is_over:
            break
    return search


def _notify_of_size(
    tried: InitialMapSettings,
    scores_of_folds: Sequence[float],
    is_last: bool,
    progress: FitProgress,
) -> bool:
    """Notify listeners of a size, fold by fold; return whether one ends the search.

    `is_last` says that no other size is tried anyway.
    """
    answers = []
    n_folds = len(scores_of_folds)
    for fold, score in enumerate(scores_of_folds):
        name = _size_in_words(tried.n_components) + fold_in_words(fold, n_folds)
        ends_phase = is_last and fold == n_folds - 1
        answers.append(progress.notify_of_trial(name, score, ends_phase))
    return any(answers)


def _size_in_words(n_components: int) -> str:
    """Such as "a mixture of 8 components"."""
    if n_components == 1:
        return "a normal distribution"
    return f"a mixture of {n_components} components"


class _JudgedMap(NamedTuple):
    """A map whose mixture may grow, and the mean log-density of held-out rows."""

    initial_map: InitialMap
    score: float

    @classmethod
    def from_split(cls, initial_map: InitialMap, split: Split[Tensor]) -> _JudgedMap:
        """The map with its score on the held-out rows of a split."""
        return cls(initial_map, float(initial_map.log_prob(split.held_out).mean()))

    @property
    def n_components(self) -> int:
        """The components of its mixture."""
        return self.initial_map.mixture.n_components


def _double_mixture(
    x: Tensor, settings: InitialMapSettings, seed: Seed, progress: FitProgress
) -> ChosenMap:
    """Double the mixture while it makes held-out ones of the rows x (n, d) likelier."""
    split = _split_to_grow(x, seed)
    max_components = len(split.train) // _min_rows_per_component(x.shape[1])
    if 2 * settings.n_components > max_components:
        return ChosenMap(settings, grown_trial=None)

    map_to_grow = fit_map_to_grow(split.train, settings, seed)
    best = _JudgedMap.from_split(map_to_grow, split)
    is_ended = False
    while 2 * best.n_components <= max_components and not is_ended:
        grown_map = grow_initial_map(
            best.initial_map, 2 * best.n_components, split.train, settings.reg_covar
        )
        grown = _JudgedMap.from_split(grown_map, split)
        name = _size_in_words(grown.n_components)
        is_ended = progress.notify_of_trial(name, grown.score)
        if grown.score < best.score + _MIN_GAIN_OF_DOUBLING:
            break
        best = grown

    if best.initial_map is map_to_grow:
        return ChosenMap(settings, grown_trial=None)
    grown_settings = replace(settings, n_components=best.n_components)
    return ChosenMap(grown_settings, _trial_of_grown_map(split, best.initial_map))


def _split_to_grow(x: Tensor, seed: Seed) -> Split[Tensor]:
    """The rows of x (n, d) to which a mixture that grows is fitted, and the others."""
    order = seed.child("rows to grow").permutation(len(x)).to(x.device)
    order = order[:_MAX_ROWS_TO_GROW]
    n_held_out = int(_HELD_OUT_SHARE_TO_GROW * len(order))
    return Split(train=x[order[n_held_out:]], held_out=x[order[:n_held_out]])


def _trial_of_grown_map(split: Split[Tensor], grown: InitialMap) -> FlowTrial:
    """A trial of flows after a map that has grown on the rows of a split.

    The flow is tried on some of the rows that the mixture has seen, as it will be.
    """
    n_to_fit = MAX_ROWS_TO_CHOOSE * (N_FOLDS - 1) // N_FOLDS
    n_to_hold_out = MAX_ROWS_TO_CHOOSE // N_FOLDS
    fewer = Split(split.train[:n_to_fit], split.held_out[:n_to_hold_out])
    return FlowTrial.from_split(fewer, grown)


def _min_rows_per_component(d: int) -> int:
    """How many rows each component of a grown mixture in d dimensions should have."""
    n_parameters = 1 + d + d * (d + 1) // 2
    return max(_MIN_ROWS_PER_COMPONENT, n_parameters)


# The steps


def _choose_steps(
    splits: Sequence[Split[Tensor]],
    chosen_map: ChosenMap,
    parameters: GaussianizationParameters,
    seed: Seed,
    progress: FitProgress,
) -> GaussianizationSettings:
    """Choose the penalty and the steps that are likeliest in trials."""
    n_steps = MAX_STEPS
    if parameters.n_steps != "auto":
        n_steps = parameters.n_steps
    penalties = _penalties(parameters)
    settings = GaussianizationSettings(n_steps, penalties[-1], chosen_map.settings)
    if parameters.n_steps != "auto" and parameters.penalty != "auto":
        return settings
    trials = _flow_trials(splits, chosen_map, seed)
    search = _StepsSearch(progress, parameters.n_steps == "auto", settings)
    for penalty in penalties:
        tried = replace(settings, penalty=penalty)
        is_ended = search.try_settings(tried, trials, seed)
        if is_ended:
            break
    return search.best


def _flow_trials(
    splits: Sequence[Split[Tensor]], chosen_map: ChosenMap, seed: Seed
) -> list[FlowTrial]:
    """Fit the initial map of each split, after which flows are tried."""
    if chosen_map.grown_trial is not None:
        return [chosen_map.grown_trial]
    trials = []
    for split in splits:
        initial_map = fit_initial_map(split.train, chosen_map.settings, seed)
        trials.append(FlowTrial.from_split(split, initial_map))
    return trials


@dataclass(eq=False)
class _StepsSearch:
    """The search for the penalty and the number of steps of a flow.

    Parameters
    ----------
    progress : hears of every step of the trials
    chooses_n_steps : whether fewer steps are taken if held-out rows are likelier then
    best : the best settings so far; at first, those that are taken if none are tried
    best_score : the mean log-density of held-out rows with these
    """

    progress: FitProgress
    chooses_n_steps: bool
    best: GaussianizationSettings
    best_score: float = -math.inf

    def try_settings(
        self, tried: GaussianizationSettings, trials: Sequence[FlowTrial], seed: Seed
    ) -> bool:
        """Try settings in all trials; return whether a listener ends the search.

        Settings that not all trials have judged count only if they are the first.
        """
        expect_flow = partial(self._expect_flow, tried)
        curve = fit_trial_flows(trials, tried, seed, self.progress, expect_flow)
        if curve.is_complete or self.best_score == -math.inf:
            self.best, self.best_score = self._best_after(tried, curve.log_probs)
        return curve.is_ended

    def _best_after(
        self, tried: GaussianizationSettings, curve: Floats
    ) -> tuple[GaussianizationSettings, float]:
        """The best settings and their score, if those that are tried have this curve.

        The curve (n_steps + 1,) is the mean log-density of held-out rows.
        """
        n_steps = tried.n_steps
        if self.chooses_n_steps:
            n_steps = int(curve.argmax())
        if curve[n_steps] > self.best_score:
            return replace(tried, n_steps=n_steps), float(curve[n_steps])
        return self.best, self.best_score

    def _expect_flow(self, tried: GaussianizationSettings, curve: Floats) -> None:
        """Expect as many steps of the flow of all rows as are best so far."""
        best, _ = self._best_after(tried, curve)
        self.progress.expect(FLOW, 1, best.n_steps)
