"""The search for the initial map of a `Gaussianization`, by held-out likelihood.

Mixtures of several sizes are fitted to some of the rows, and judged by their own
log-density of the others: no flow is fitted for that. If the largest of these is best,
it is doubled while that gains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.estimators.density.initial_map import (
    MIXTURE_STARTS,
    InitialMap,
    fit_columns,
    fit_initial_map,
    fit_mixture,
    fit_ungrown_map,
    fit_whitening,
    grow_initial_map,
)
from sliceflow.estimators.density.invertible_maps import (
    ColumnwiseMap,
    Composition,
    InvertibleMap,
)
from sliceflow.estimators.density.progress import ExpectedPhases, FitProgress
from sliceflow.estimators.density.settings import (
    MAX_UNGROWN_COMPONENTS,
    REG_COVARS,
    GaussianizationParameters,
    InitialMapSettings,
)
from sliceflow.estimators.density.trials import (
    MAX_ROWS_TO_CHOOSE,
    N_FOLDS,
    MappedSplit,
    Split,
    count_splits,
    count_train_rows,
    fold_in_words,
)

# Components of the mixture that the flow may start from, in the order in which they
# are tried; the search ends when two in a row are no better.
MIXTURE_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, MAX_UNGROWN_COMPONENTS)
_MAX_WORSE_SIZES = 2
# How many sizes are tried, for estimates before the search: three to nine were, on
# seven sets of 178 to 10,000 rows.
_EXPECTED_SIZES = 6
# The other settings of initial maps, with each of which all these sizes are tried: each
# of `REG_COVARS`, with and without maps of the columns. See `_candidate_settings`.
_N_CANDIDATE_SETTINGS = 2 * len(REG_COVARS)
# Up to this many rows, all folds choose the mixture; with more, two of them are enough.
_MAX_ROWS_FOR_ALL_FOLDS = 400
_N_FOLDS_OF_MIXTURES = 2
# If the largest of these mixtures is the best one, it is doubled while that makes
# held-out rows likelier. At most this many rows are used for that, and this share of
# them is held out. With fewer rows, the chosen size would be too small for all rows.
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
# What the progress of a fit calls the phases in which mixtures of one kind are tried.
TRIAL_MIXTURES = "trial mixtures"


class InitialMapChoice(NamedTuple):
    """The settings that were chosen for the initial map.

    If the mixture has grown in the search, `grown_split` has rows after the grown map.
    The search for the steps takes these, so that the map is not fitted again.
    """

    settings: InitialMapSettings
    grown_split: MappedSplit | None


def expected_mixtures(n: int, parameters: GaussianizationParameters) -> ExpectedPhases:
    """The mixtures that `choose_initial_map_settings` will probably try for n rows."""
    n_sizes = min(_EXPECTED_SIZES, len(_mixture_sizes(n, parameters)))
    n_mixtures = n_sizes * _count_mixture_splits(n)
    return ExpectedPhases(TRIAL_MIXTURES, _N_CANDIDATE_SETTINGS, n_mixtures)


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


def choose_initial_map_settings(
    x: Tensor,
    splits: Sequence[Split[Tensor]],
    parameters: GaussianizationParameters,
    seed: Seed,
    progress: FitProgress,
) -> InitialMapChoice:
    """Choose the settings whose map of rows x (n, d) makes held-out ones likeliest."""
    mixture_splits = splits[: _count_mixture_splits(len(x))]
    sizes = _mixture_sizes(len(x), parameters)
    if sizes[-1] > MAX_UNGROWN_COMPONENTS:  # as the user says
        settings = _choose_grown_settings(mixture_splits, sizes[-1], seed, progress)
    else:
        settings = _choose_ungrown_settings(mixture_splits, sizes, seed, progress)
    is_largest = settings.n_components == MIXTURE_SIZES[-1]
    if parameters.n_components == "auto" and is_largest:
        return _double_mixture(x, settings, seed, progress)
    return InitialMapChoice(settings, grown_split=None)


def _choose_ungrown_settings(
    splits: Sequence[Split[Tensor]],
    sizes: Sequence[int],
    seed: Seed,
    progress: FitProgress,
) -> InitialMapSettings:
    """Try mixtures of these sizes; choose settings by held-out rows."""
    # Of many sizes, others make up for one that ended in a poor optimum. A single one
    # starts several times: with one start, two clear clusters were sometimes missed,
    # and for 2 of 30 seeds the choice fell on a map that was .16 nats worse.
    n_starts = 1
    if len(sizes) == 1:
        n_starts = MIXTURE_STARTS
    column_maps = [fit_columns(split.train) for split in splits]
    searches = []
    for settings in _candidate_settings(sizes[0]):
        trials = []
        for split, column_map in zip(splits, column_maps, strict=True):
            before_whitening = column_map if settings.columns_first else None
            trials.append(
                _UngrownMixtureTrial.from_split(
                    split, before_whitening, settings.reg_covar, n_starts
                )
            )
        searches.append(_choose_mixture_size(trials, settings, sizes, seed, progress))
    return max(searches, key=lambda search: search.best_score).best


def _choose_grown_settings(
    splits: Sequence[Split[Tensor]],
    n_components: int,
    seed: Seed,
    progress: FitProgress,
) -> InitialMapSettings:
    """Try mixtures that grow to one size; choose settings by held-out rows."""
    trials = [_GrownMixtureTrial(split) for split in splits]
    searches = []
    for settings in _candidate_settings(n_components):
        searches.append(
            _choose_mixture_size(trials, settings, [n_components], seed, progress)
        )
    return max(searches, key=lambda search: search.best_score).best


def _candidate_settings(n_components: int) -> list[InitialMapSettings]:
    """All settings that are tried for an initial map with so many components."""
    candidates = []
    for columns_first in (False, True):
        for reg_covar in REG_COVARS:
            settings = InitialMapSettings(n_components, reg_covar, columns_first)
            candidates.append(settings)
    return candidates


class _MixtureTrial(Protocol):
    """A split, on which initial maps with mixtures of several sizes are tried."""

    def score(self, settings: InitialMapSettings, seed: Seed) -> float:
        """Fit a map, and return the mean log-density of the held-out rows."""


class _UngrownMixtureTrial(NamedTuple):
    """A split whose rows are white: so only the mixture is fitted, for each size."""

    white: Tensor  # the training rows
    white_held_out: Tensor
    held_out_ladj: Tensor  # (m,), of the map to white rows
    n_starts: int  # of the fit of each mixture

    @classmethod
    def from_split(
        cls,
        split: Split[Tensor],
        column_map: ColumnwiseMap | None,
        reg_covar: float,
        n_starts: int,
    ) -> _UngrownMixtureTrial:
        """Whiten the rows of a split, after a map of their columns if there is one."""
        train = split.train
        maps: list[InvertibleMap] = []
        if column_map is not None:
            train, _ = column_map.call_and_ladj(train)
            maps.append(column_map)
        whitening, white = fit_whitening(train, reg_covar)
        maps.append(whitening)
        white_held_out, ladj = Composition(maps).call_and_ladj(split.held_out)
        return cls(white, white_held_out, ladj, n_starts)

    def score(self, settings: InitialMapSettings, seed: Seed) -> float:
        """Fit a mixture, and return the mean log-density of the held-out rows."""
        mixture = fit_mixture(self.white, settings, seed, self.n_starts)
        log_probs = mixture.log_prob(self.white_held_out) + self.held_out_ladj
        return float(log_probs.mean())


class _GrownMixtureTrial(NamedTuple):
    """A split to which whole initial maps are fitted, with mixtures that grow."""

    split: Split[Tensor]

    def score(self, settings: InitialMapSettings, seed: Seed) -> float:
        """Fit a map, and return the mean log-density of the held-out rows."""
        initial_map = fit_initial_map(self.split.train, settings, seed)
        return float(initial_map.log_prob(self.split.held_out).mean())


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
    progress.begin_phase(TRIAL_MIXTURES)
    for n_components in sizes:
        tried = replace(settings, n_components=n_components)
        scores_of_folds = [trial.score(tried, seed) for trial in trials]
        search.record(tried, sum(scores_of_folds))
        is_ended = _notify_of_size(tried, scores_of_folds, search.is_over, progress)
        if search.is_over:
            break
        if is_ended:
            progress.end_phase()
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


class _ScoredMap(NamedTuple):
    """A map whose mixture may grow, and the mean log-density of held-out rows."""

    initial_map: InitialMap
    score: float

    @classmethod
    def from_split(cls, initial_map: InitialMap, split: Split[Tensor]) -> _ScoredMap:
        """The map with its score on the held-out rows of a split."""
        return cls(initial_map, float(initial_map.log_prob(split.held_out).mean()))

    @property
    def n_components(self) -> int:
        """The components of its mixture."""
        return self.initial_map.mixture.n_components


def _double_mixture(
    x: Tensor, settings: InitialMapSettings, seed: Seed, progress: FitProgress
) -> InitialMapChoice:
    """Double the mixture while that makes held-out rows likelier.

    Some of the rows x (n, d) are held out, and the mixture is fitted to the others.
    """
    split = _split_to_grow(x, seed)
    max_components = len(split.train) // _min_rows_per_component(x.shape[1])
    if 2 * settings.n_components > max_components:
        return InitialMapChoice(settings, grown_split=None)

    ungrown_map = fit_ungrown_map(split.train, settings, seed)
    best = _ScoredMap.from_split(ungrown_map, split)
    is_ended = False
    while 2 * best.n_components <= max_components and not is_ended:
        grown_map = grow_initial_map(
            best.initial_map, 2 * best.n_components, split.train, settings.reg_covar
        )
        grown = _ScoredMap.from_split(grown_map, split)
        name = _size_in_words(grown.n_components)
        is_ended = progress.notify_of_trial(name, grown.score)
        if grown.score < best.score + _MIN_GAIN_OF_DOUBLING:
            break
        best = grown

    if best.initial_map is ungrown_map:
        return InitialMapChoice(settings, grown_split=None)
    grown_settings = replace(settings, n_components=best.n_components)
    return InitialMapChoice(grown_settings, _split_after_map(split, best.initial_map))


def _split_to_grow(x: Tensor, seed: Seed) -> Split[Tensor]:
    """The rows of x (n, d) to which a mixture that grows is fitted, and the others."""
    order = seed.child("rows to grow").permutation(len(x)).to(x.device)
    order = order[:_MAX_ROWS_TO_GROW]
    n_held_out = int(_HELD_OUT_SHARE_TO_GROW * len(order))
    return Split(train=x[order[n_held_out:]], held_out=x[order[:n_held_out]])


def _split_after_map(split: Split[Tensor], grown_map: InitialMap) -> MappedSplit:
    """Some rows of a split after a map that has grown on its rows.

    The flow is fitted to some of the rows to which the mixture was fitted: the final
    flow and its mixture are fitted to the same rows, too.
    """
    n_to_fit = MAX_ROWS_TO_CHOOSE * (N_FOLDS - 1) // N_FOLDS
    n_to_hold_out = MAX_ROWS_TO_CHOOSE // N_FOLDS
    fewer = Split(split.train[:n_to_fit], split.held_out[:n_to_hold_out])
    return MappedSplit.from_split(fewer, grown_map)


def _min_rows_per_component(d: int) -> int:
    """How many rows each component of a grown mixture in d dimensions should have."""
    n_parameters = 1 + d + d * (d + 1) // 2
    return max(_MIN_ROWS_PER_COMPONENT, n_parameters)
