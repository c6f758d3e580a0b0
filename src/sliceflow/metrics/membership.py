"""How well scores tell members from others: rows that were fitted from those not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sliceflow.arrays import Floats

# What intervals cover: the usual level.
_CONFIDENCE = 0.95
# With a p-value below this, an attack does better than chance. Five or six attacks are
# made at a time: at a level of .05 one of four harmless generators would be accused.
MAX_P_VALUE = 0.01


class Estimate(NamedTuple):
    """A number, and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class AttackScore:
    """How well an attack tells members from others."""

    auc: Estimate  # ½ is chance
    # The true positive rates, shares of members that are found, at false positive rates
    # of 1 % and .1 %, shares of others that are taken for members.
    tpr_at_fpr_1pct: Estimate
    tpr_at_fpr_0_1pct: Estimate
    p_value: float  # of the test that the attack guesses

    @property
    def is_beyond_chance(self) -> bool:
        """Whether the attack does better than guessing, by its p-value."""
        return self.p_value < MAX_P_VALUE


def score_attack(members: Floats, others: Floats) -> AttackScore:
    """How well scores of members (m,) and of others (n,) differ: high means member.

    The interval of the AUC is DeLong's (1988), and those of shares are Clopper and
    Pearson's. The p-value is twice the smaller one of two tests: Mann and Whitney's,
    and how often so many members are above the limit by chance.
    """
    from scipy.stats import mannwhitneyu

    found_at_1pct = _find_members(members, others, 0.01)
    found_at_0_1pct = _find_members(members, others, 0.001)
    p_value_of_found = _chance_of_finding(found_at_1pct, len(members), len(others))
    p_value_of_ranks = mannwhitneyu(members, others, alternative="greater").pvalue
    least_p_value = min(p_value_of_found, float(p_value_of_ranks))
    return AttackScore(
        auc=_auc_with_interval(members, others),
        tpr_at_fpr_1pct=share_with_interval(found_at_1pct.n, len(members)),
        tpr_at_fpr_0_1pct=share_with_interval(found_at_0_1pct.n, len(members)),
        p_value=min(1.0, 2 * least_p_value),
    )


def area_under_curve(members: Floats, others: Floats) -> float:
    """The share of pairs in which the member has the higher score; of ties, half."""
    from scipy.stats import rankdata

    m = len(members)
    n = len(others)
    ranks = rankdata(np.concatenate((members, others)))
    return float((ranks[:m].sum() - m * (m + 1) / 2) / (m * n))


def true_positive_rate(members: Floats, others: Floats, max_fpr: float) -> float:
    """The share of members above the limit that at most `max_fpr` of others exceed."""
    return _find_members(members, others, max_fpr).n / len(members)


def _auc_with_interval(members: Floats, others: Floats) -> Estimate:
    """The AUC with DeLong's interval."""
    from scipy.stats import norm, rankdata

    m = len(members)
    n = len(others)
    ranks = rankdata(np.concatenate((members, others)))
    # Of each row, the share of the other group that it is ranked right against.
    member_shares = (ranks[:m] - rankdata(members)) / n
    other_shares = 1 - (ranks[m:] - rankdata(others)) / m
    auc = float(member_shares.mean())
    variance = member_shares.var(ddof=1) / m + other_shares.var(ddof=1) / n
    margin = float(norm.ppf((1 + _CONFIDENCE) / 2) * np.sqrt(variance))
    return Estimate(auc, max(0.0, auc - margin), min(1.0, auc + margin))


class _FoundMembers(NamedTuple):
    """The members whose score is above a limit, the j-th largest of the others."""

    n: int  # how many there are
    j: int


def _find_members(members: Floats, others: Floats, max_fpr: float) -> _FoundMembers:
    """Find the members above a limit that at most a share `max_fpr` of others exceed.

    Of fresh rows a share of j/(n + 1) is above the j-th largest score of n others. j is
    the largest for which this is at most `max_fpr`, or 1 where n is too small for that.
    """
    j = max(1, math.floor(max_fpr * (len(others) + 1)))
    limit = np.partition(others, -j)[-j]
    return _FoundMembers(int((members > limit).sum()), j)


def _chance_of_finding(found: _FoundMembers, m: int, n: int) -> float:
    """The probability that as many of m members, or more, are found by chance.

    If the scores of the m members and of the n others have one distribution, the share
    above the limit has a beta distribution, and the number of members above it is
    beta-binomial.
    """
    from scipy.stats import betabinom

    return float(betabinom.sf(found.n - 1, m, found.j, n + 1 - found.j))


def share_with_interval(count: int, n: int) -> Estimate:
    """A share with the interval of Clopper and Pearson."""
    from scipy.stats import binomtest

    interval = binomtest(count, n).proportion_ci(_CONFIDENCE, method="exact")
    return Estimate(count / n, float(interval.low), float(interval.high))


def central_interval(value: float, draws: Floats) -> Estimate:
    """A number with the central interval of draws of it, such as of a bootstrap."""
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(draws, (tail, 1 - tail))
    return Estimate(value, float(low), float(high))
