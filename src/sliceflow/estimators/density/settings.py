"""How a `Gaussianization` is fitted: what the user says, and what the fit chooses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from sliceflow.saved_types import Between, Count

# Shares of the variances of all rows that may be added to the variances of components.
# Where components are narrow, .001 costs a tenth of a nat (six of them in six
# dimensions, 3,000 rows); fewer rows need it. With the largest one, correlations are
# shrunk as well (Ledoit and Wolf 2004): this is for few rows, and hurts columns that
# are nearly sums of others.
REG_COVARS = (1e-4, 1e-3, 3e-2)
# The most components of a Gaussian mixture that is fitted at once, from random starts.
# Larger mixtures grow from a mixture of this size. With more, the search would take as
# long as all else, and hardly gain on fewer than 3,000 rows.
MAX_UNGROWN_COMPONENTS = 24
# A map that is fitted to n rows has 1.5·√n knots, within these limits. Fewer than 12
# cannot bend where the data do; beyond 48 the penalty decides, and knots only cost
# time.
_MIN_KNOTS = 12
_MAX_KNOTS = 48

# How many steps a flow has if their number is chosen, for estimates: on seven sets of
# 178 to 10,000 rows, trials took 11 to 40, of which the last ten were no better.
_EXPECTED_STEPS = 20

# What a fit chooses by trial, as the user writes it.
Auto = Literal["auto"]


@dataclass(frozen=True)
class InitialMapSettings:
    """How rows are mapped before the steps; see `InitialMap`."""

    n_components: Count = 1  # of the Gaussian mixture
    # One of `REG_COVARS`, which is added to the variances of components.
    reg_covar: Annotated[float, Between(0)] = REG_COVARS[0]
    columns_first: bool = False  # map every column to N(0, 1) before anything else


@dataclass(frozen=True)
class GaussianizationParameters:
    """What the user says of a `Gaussianization`; the fit chooses what is "auto"."""

    n_steps: Count | Auto = "auto"
    penalty: Annotated[float, Between(0)] | Auto = "auto"
    n_components: Count | Auto = "auto"  # of the mixture of the initial map

    @property
    def expected_steps(self) -> int:
        """About how many steps a flow will have."""
        if self.n_steps == "auto":
            return _EXPECTED_STEPS
        return self.n_steps


@dataclass(frozen=True)
class GaussianizationSettings:
    """How to fit a `Gaussianization`, with all settings chosen."""

    n_steps: Count
    # Of rough maps; see `GaussianizingTransport`.
    penalty: Annotated[float, Between(0)]
    initial_map: InitialMapSettings = InitialMapSettings()
    # Rotations of which a step takes the best; see `LeastGaussianRotation`.
    n_candidates: Count = 8
    # The share of the displacement that maps have.
    relaxation: Annotated[float, Between(0, 1)] = 0.7


def n_knots_for(n: int) -> int:
    """The knots of a map that is fitted to n rows."""
    return max(_MIN_KNOTS, min(_MAX_KNOTS, round(1.5 * math.sqrt(n))))
