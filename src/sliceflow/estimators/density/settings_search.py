"""The search for the settings of a `Gaussianization`, by held-out likelihood.

First it chooses the initial map (`initial_map_search.py`), which is quick. Then it
chooses the penalty of rough maps and the number of steps, by flows that are fitted to
some of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from sliceflow.arrays import Floats
from sliceflow.engine.random import Seed
from sliceflow.estimators.density.initial_map import fit_initial_map
from sliceflow.estimators.density.initial_map_search import (
    InitialMapChoice,
    choose_initial_map_settings,
    expected_mixtures,
)
from sliceflow.estimators.density.progress import (
    ExpectedPhases,
    FitProgress,
    expected_flow,
)
from sliceflow.estimators.density.settings import (
    GaussianizationParameters,
    GaussianizationSettings,
)
from sliceflow.estimators.density.trials import (
    TRIAL_FLOWS,
    MappedSplit,
    Split,
    count_splits,
    count_train_rows,
    cross_validate_flow,
    iter_splits,
)
from sliceflow.validation import require

# Penalties of rough maps that are tried. Weaker ones follow noise on all sets that
# were measured.
PENALTIES = (30.0, 100.0, 300.0)
# The most steps of a flow, if the number of steps is chosen.
MAX_STEPS = 150


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


def expected_phases(
    n: int, parameters: GaussianizationParameters
) -> list[ExpectedPhases]:
    """The phases of a fit to n rows: the trials that choose its settings, its flow."""
    trials = expected_trials(n, parameters)
    return [*trials, expected_flow(parameters.expected_steps)]


def expected_trials(
    n: int, parameters: GaussianizationParameters
) -> list[ExpectedPhases]:
    """The mixtures and steps that `choose_settings` will probably try for n rows.

    The numbers are exact if nothing is "auto".
    """
    trials = [expected_mixtures(n, parameters)]
    if parameters.n_steps == "auto" or parameters.penalty == "auto":
        n_flows = len(_penalties(parameters)) * count_splits(n)
        flows = ExpectedPhases(TRIAL_FLOWS, n_flows, parameters.expected_steps)
        trials.append(flows)
    return trials


def _penalties(parameters: GaussianizationParameters) -> Sequence[float]:
    """The penalties that are tried."""
    if parameters.penalty == "auto":
        return PENALTIES
    return [parameters.penalty]


def choose_settings(
    x: Tensor,
    parameters: GaussianizationParameters,
    seed: Seed,
    progress: FitProgress,
) -> GaussianizationSettings:
    """Choose by trials on rows x (n, d) what is "auto" in the parameters.

    `progress` is notified of every trial. The caller has announced `expected_phases`;
    when the steps of the flow are chosen, they are announced.
    """
    splits = list(iter_splits(x, seed.child("splits")))
    choice = choose_initial_map_settings(x, splits, parameters, seed, progress)
    settings = _choose_steps(splits, choice, parameters, seed, progress)
    progress.announce([expected_flow(settings.n_steps)])
    return settings


def _choose_steps(
    splits: Sequence[Split[Tensor]],
    choice: InitialMapChoice,
    parameters: GaussianizationParameters,
    seed: Seed,
    progress: FitProgress,
) -> GaussianizationSettings:
    """Choose the penalty and the steps that are likeliest in trials."""
    n_steps = MAX_STEPS
    if parameters.n_steps != "auto":
        n_steps = parameters.n_steps
    penalties = _penalties(parameters)
    settings = GaussianizationSettings(n_steps, penalties[-1], choice.settings)
    if parameters.n_steps != "auto" and parameters.penalty != "auto":
        return settings
    mapped_splits = _map_splits(splits, choice, seed)
    search = _StepsSearch(progress, parameters.n_steps == "auto", settings)
    for penalty in penalties:
        tried = replace(settings, penalty=penalty)
        is_ended = search.try_settings(tried, mapped_splits, seed)
        if is_ended:
            break
    return search.best


def _map_splits(
    splits: Sequence[Split[Tensor]], choice: InitialMapChoice, seed: Seed
) -> list[MappedSplit]:
    """Fit the initial map of each split, and map its rows."""
    if choice.grown_split is not None:
        return [choice.grown_split]
    mapped_splits = []
    for split in splits:
        initial_map = fit_initial_map(split.train, choice.settings, seed)
        mapped_splits.append(MappedSplit.from_split(split, initial_map))
    return mapped_splits


@dataclass(eq=False)
class _StepsSearch:
    """The search for the penalty and the number of steps of a flow.

    Parameters
    ----------
    progress : hears of every step of the trials
    chooses_n_steps : whether fewer steps are taken if held-out rows are likelier then
    best : the best settings so far; at first those to take if nothing is tried
    best_score : the mean log-density of held-out rows with these
    """

    progress: FitProgress
    chooses_n_steps: bool
    best: GaussianizationSettings
    best_score: float = -math.inf

    def try_settings(
        self,
        tried: GaussianizationSettings,
        splits: Sequence[MappedSplit],
        seed: Seed,
    ) -> bool:
        """Try settings on all splits; return whether a listener ends the search.

        Settings that not all splits have judged count only if they are the first.
        """
        announce_flow = partial(self._announce_flow, tried)
        curve = cross_validate_flow(splits, tried, seed, self.progress, announce_flow)
        if curve.is_complete or self.best_score == -math.inf:
            self.best, self.best_score = self._best_after(tried, curve.log_probs)
        return curve.is_ended

    def _best_after(
        self, tried: GaussianizationSettings, curve: Floats
    ) -> tuple[GaussianizationSettings, float]:
        """The best settings and their score, if the tried settings have this curve.

        The curve (n_steps + 1,) is the mean log-density of held-out rows.
        """
        n_steps = tried.n_steps
        if self.chooses_n_steps:
            n_steps = int(curve.argmax())
        if curve[n_steps] > self.best_score:
            return replace(tried, n_steps=n_steps), float(curve[n_steps])
        return self.best, self.best_score

    def _announce_flow(self, tried: GaussianizationSettings, curve: Floats) -> None:
        """Announce as many steps of the flow of all rows as are best so far."""
        best, _ = self._best_after(tried, curve)
        self.progress.announce([expected_flow(best.n_steps)])
