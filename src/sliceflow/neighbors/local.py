"""Local conditions: samples of x given y = y₀, from the rows whose y is near y₀.

The k nearest rows, by features of y (`features`), get Epanechnikov's weights and move
to y₀ along linear regressions (`regressions`). Samples are drawn along them
(`sampling`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from sliceflow.arrays import MAX_LOG_DENSITY_DROP, chunks
from sliceflow.engine.random import Seed
from sliceflow.errors import warn_user
from sliceflow.neighbors.distance_ratios import choose_bandwidth
from sliceflow.neighbors.features import (
    FeatureMap,
    fit_ridge,
    inverse_deviation,
    projected_features,
    relevance,
    standardized_moments,
)
from sliceflow.neighbors.regressions import (
    MAX_COMPONENTS,
    Neighborhoods,
    adjust_by_regression,
)
from sliceflow.neighbors.sampling import (
    MIN_COVARIANCE_DRAWS,
    N_NOISE_ROWS,
    center_components,
    sample_neighborhoods,
)
from sliceflow.neighbors.search import RowIndex, build_index, query_index
from sliceflow.neighbors.weights import kernel_weights
from sliceflow.saved_types import ArraySpec, Between, Count

# The numbers of neighbors that are tried begin here, or at twice the columns if these
# are more: a regression needs more rows than columns.
_MIN_NEIGHBORS = 50
# They double up to this number, because more neighbors cost time and memory.
_MAX_NEIGHBORS = 2_000
# Rows that are held out, and whose likelihood chooses k. Chosen by hand: k is chosen
# only up to a factor of 2, so few rows are enough.
_N_HELD_OUT = 150
# A summary of y is tried from this many columns on: nearest neighbors in fewer columns
# suffer little from columns that do not matter.
_MIN_SUMMARY_COLUMNS = 4
# With more columns than this, nearest neighbors are too far away, and the summary is
# taken without a trial.
_MAX_RELEVANCE_COLUMNS = 20
# With fewer rows, no summary is tried: it would have at most 100 random features.
_MIN_SUMMARY_ROWS = 400
# The most random features of a summary, and how many rows there must be for each.
_MAX_RANDOM_FEATURES = 500
_ROWS_PER_RANDOM_FEATURE = 4
# The neighborhoods of this many rows choose the bandwidth.
_N_BANDWIDTH_ROWS = 20
# The bandwidth until one is chosen, which neighborhoods without different rows keep.
# Chosen by hand: somewhat below 1, at which draws are a kernel estimate with the
# covariance of the neighbors.
_DEFAULT_BANDWIDTH = 0.8
# A condition is far from the rows if its nearest row is farther than any row's tenth
# neighbor, which is measured on about this many rows.
_N_FAR_NEIGHBORS = 10
_N_FAR_ROWS = 1_000
# Values of a model are smaller than this, so that their fourth powers are finite.
_MAX_MAGNITUDE = 1e50
# Values of one array in memory at a time: 16 MiB of float64.
_MAX_VALUES = 1 << 21


@dataclass(frozen=True, eq=False)
class LocalSettings:
    """The settings that a fit chooses for rows, and that a file keeps beside them."""

    n_neighbors: Count  # k, of a condition
    # How far samples go along their neighbors
    bandwidth: Annotated[float, Between(0, 100)]
    # (l + n_random_features, m): distances are between features of y times this matrix
    projection: Annotated[Tensor, ArraySpec("f m", "float64")] = field(repr=False)
    n_random_features: Count = 0  # features of y beside its l columns


class _ConditionSpacing(NamedTuple):
    """How far apart the conditions of the rows are, to tell whether another is far.

    Distances are in standard deviations of y.
    """

    row_index: RowIndex  # of the distinct conditions
    inverse_scale: Tensor  # (l,)
    max_distance_to_tenth: float  # of a condition to its tenth neighbor


class LocalDraws(NamedTuple):
    """Samples given q conditions, and around which rows they are drawn."""

    x: Tensor  # (q, n, d)
    row_indices: Tensor  # (q, n)


class _RepeatedConditions(NamedTuple):
    """The distinct conditions that occur n times each, and where they do."""

    distinct: Tensor  # (m, l)
    indices: Tensor  # (m, n), where each distinct condition occurs


def _group_by_frequency(y0: Tensor) -> Iterator[_RepeatedConditions]:
    """The distinct conditions of y0 (q, l), grouped by how often they occur.

    Of conditions a, b, a, c, a first come b and c, with the indices [[1], [3]], and
    then a, with [[0, 2, 4]].
    """
    distinct, inverse, counts = torch.unique(
        y0, dim=0, return_inverse=True, return_counts=True
    )
    # The indices of y0, with equal conditions side by side.
    sorted_indices = torch.argsort(inverse, stable=True)
    frequencies = counts[inverse[sorted_indices]]
    for n in torch.unique(counts).tolist():
        indices = sorted_indices[frequencies == n].view(-1, n)
        yield _RepeatedConditions(distinct[counts == n], indices)


@dataclass(frozen=True, eq=False)
class _ConditionIndex:
    """An index by which the conditions of the rows are searched.

    Everything is computed when it is first needed, and kept.
    """

    y: Tensor  # (n, l)
    projection: Tensor  # (l + n_random_features, m)
    n_random_features: int

    @cached_property
    def feature_map(self) -> FeatureMap:
        """The function from conditions to features, before they are projected."""
        return FeatureMap.from_data(self.y, self.n_random_features)

    @cached_property
    def features(self) -> Tensor:
        """The projected features (n, m) of the rows, between which distances are."""
        return self.project(self.y)

    @cached_property
    def row_index(self) -> RowIndex:
        """The index of the features of the rows."""
        return build_index(self.features)

    def project(self, y: Tensor) -> Tensor:
        """The projected features (q, m) of conditions y (q, l)."""
        return projected_features(self.feature_map, y, self.projection)


@dataclass(frozen=True, eq=False)
class LocalSampler:
    """Samples of x given y, from rows whose y is near.

    Parameters
    ----------
    x, y : the rows (n, d), and their conditions (n, l); both in float64, and finite, as
        rows of a fit are
    settings : how neighbors are found, and how far samples go along them
    shared_index : the index of another sampler of the same rows, whose settings differ
        in k or the bandwidth only
    """

    x: Tensor
    y: Tensor
    settings: LocalSettings
    shared_index: _ConditionIndex | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        assert self.x.dtype == torch.float64, "rows are in float64"
        assert self.y.dtype == torch.float64, "conditions are in float64"

    def with_n_neighbors(self, n_neighbors: int) -> LocalSampler:
        """A sampler of the same rows and index with another number of neighbors."""
        settings = replace(self.settings, n_neighbors=n_neighbors)
        return replace(self, settings=settings, shared_index=self._condition_index)

    def with_bandwidth(self, bandwidth: float) -> LocalSampler:
        """A sampler of the same rows and index with another bandwidth."""
        settings = replace(self.settings, bandwidth=bandwidth)
        return replace(self, settings=settings, shared_index=self._condition_index)

    def check_saved(self) -> None:
        """Raise a ValueError if samples might fail: damaged rows or settings."""
        n, n_columns = self.y.shape
        settings = self.settings
        width, n_projected = settings.projection.shape
        is_consistent = (
            1 <= settings.n_neighbors <= n
            and 0 <= settings.n_random_features <= _MAX_RANDOM_FEATURES
            and n_projected > 0
            and width == n_columns + settings.n_random_features
        )
        if not is_consistent:
            raise ValueError(
                f"local settings do not fit {n} rows with {n_columns} columns of y: "
                f"{settings}"
            )
        for values in (self.x, self.y, self._condition_index.features):
            if not bool((values.abs() < _MAX_MAGNITUDE).all()):
                raise ValueError(
                    f"local has numbers beyond {_MAX_MAGNITUDE:.0e}, or that are none"
                )

    @property
    def description(self) -> str:
        """The features of y between which distances are measured, in words."""
        n_columns = self.y.shape[1]
        n_scores = len(self._condition_index.feature_map.normal_scores)
        n_random_features = self.settings.n_random_features
        tails = ""
        if n_scores > 0:
            tails = f"; normal scores of {n_scores} heavy-tailed"
        if n_random_features:
            return (
                f"of a summary of {n_columns} columns by {n_random_features} random "
                f"features{tails}"
            )
        n_used = int((torch.diagonal(self.settings.projection) > 0).sum())
        return f"of {n_used} of {n_columns} columns, weighted by relevance{tails}"

    @cached_property
    def _condition_index(self) -> _ConditionIndex:
        """The index of the conditions of the rows: the shared one, if there is one."""
        if self.shared_index is not None:
            return self.shared_index
        settings = self.settings
        return _ConditionIndex(self.y, settings.projection, settings.n_random_features)

    @cached_property
    def _spacing(self) -> _ConditionSpacing:
        """How far the conditions of the rows are apart."""
        inverse_scale = inverse_deviation(self.y)
        distinct = torch.unique(self.y * inverse_scale, dim=0)
        index = build_index(distinct)
        measured = distinct[:: max(1, len(distinct) // _N_FAR_ROWS)]
        k = min(_N_FAR_NEIGHBORS, len(distinct))
        distances, _ = query_index(index, measured, k)
        return _ConditionSpacing(index, inverse_scale, float(distances.max()))

    def warn_if_far(self, y0: Tensor, name: str, indices: Tensor | None = None) -> None:
        """Warn of the condition of y0 (q, l) farthest from the rows, if it is far.

        `name` is what the user calls y; `indices` (q,) are the conditions' places in
        it.
        """
        spacing = self._spacing
        distances, _ = query_index(spacing.row_index, y0 * spacing.inverse_scale, 1)
        farthest = int(distances.argmax())
        distance = float(distances[farthest])
        if distance <= spacing.max_distance_to_tenth:
            return
        index = farthest
        if indices is not None:
            index = int(indices[farthest])
        warn_user(
            f"{name}[{index}] is {distance:.3g} standard deviations of {name} from the "
            "nearest row, where rows have ten neighbors within "
            f"{spacing.max_distance_to_tenth:.3g}: its samples are extrapolated"
        )

    def neighborhoods(
        self,
        y0: Tensor,
        exclude: Tensor | None = None,
        max_components: int = MAX_COMPONENTS,
        density_at: Tensor | None = None,
    ) -> Neighborhoods:
        """The k neighbors of each condition y0, moved there by regressions.

        Parameters
        ----------
        y0 : conditions (q, l)
        exclude : (q,), for each condition the index of a row that must be no neighbor
        max_components : the most regressions along which neighbors move
        density_at : points (q, d) whose log densities given y0 are computed, too
        """
        condition_index = self._condition_index
        features = condition_index.project(y0)
        n_others = len(self.x)
        if exclude is not None:
            n_others -= 1
        k = min(self.settings.n_neighbors, n_others)
        distances, row_indices = query_index(
            condition_index.row_index, features, k, exclude
        )
        weights, radius = kernel_weights(distances)
        differences = condition_index.features[row_indices] - features[:, None]
        offsets = differences / radius[..., None]
        return adjust_by_regression(
            self.x[row_indices],
            offsets,
            weights,
            row_indices,
            max_components,
            density_at,
        )

    def sample_each(self, y0: Tensor, seed: Seed) -> Tensor:
        """One sample (q, d) for each condition of y0 (q, l).

        Equal conditions share a neighborhood, so they are sampled together.
        """
        samples = torch.empty(len(y0), self.x.shape[1], dtype=torch.float64)
        for repeated in _group_by_frequency(y0):
            n = repeated.indices.shape[1]
            draws = self.sample(repeated.distinct, n, seed.child(n))
            samples[repeated.indices] = draws.x
        return samples

    def sample(
        self, y0: Tensor, n: int, seed: Seed, max_components: int = MAX_COMPONENTS
    ) -> LocalDraws:
        """n samples for each condition of y0 (q, l).

        The samples of a condition depend on its index and the seed, not on the other
        conditions.
        """
        samples = torch.empty(len(y0), n, self.x.shape[1], dtype=torch.float64)
        row_indices = torch.empty(len(y0), n, dtype=torch.int64)
        conditions_per_chunk, samples_per_chunk = self._chunk_sizes(n)
        for condition_slice in chunks(len(y0), conditions_per_chunk):
            neighborhoods = self.neighborhoods(
                y0[condition_slice], max_components=max_components
            )
            for sample_slice in chunks(n, samples_per_chunk):
                draws = sample_neighborhoods(
                    neighborhoods,
                    sample_slice.stop - sample_slice.start,
                    self.settings.bandwidth,
                    _seed_of_samples(seed, sample_slice),
                    first_condition=condition_slice.start,
                )
                drawn_from = neighborhoods.row_indices.gather(1, draws.neighbors)
                samples[condition_slice, sample_slice] = draws.x
                row_indices[condition_slice, sample_slice] = drawn_from
        # A column of one value stays as it is, to the last bit.
        is_varying = (self.x != self.x[0]).any(0)
        return LocalDraws(torch.where(is_varying, samples, self.x[0]), row_indices)

    def _chunk_sizes(self, n: int) -> tuple[int, int]:
        """How many conditions, and how many of their n samples, fit into memory."""
        k = self.settings.n_neighbors
        d = self.x.shape[1]
        samples_per_chunk = min(n, max(1, _MAX_VALUES // (N_NOISE_ROWS * d)))
        # Values of a condition: to fit its mixture, to compare its neighbors with its
        # draws, and to hold the neighbors of its draws.
        n_projected = self.settings.projection.shape[1]
        mixture = k * MAX_COMPONENTS * (n_projected + d + 1)
        distances = k * min(k, max(samples_per_chunk, MIN_COVARIANCE_DRAWS))
        noise = samples_per_chunk * N_NOISE_ROWS * d
        values_per_condition = max(mixture, distances, noise)
        conditions_per_chunk = max(1, _MAX_VALUES // values_per_condition)
        return conditions_per_chunk, samples_per_chunk


def _seed_of_samples(seed: Seed, sample_slice: slice) -> Seed:
    """The seed of some of the samples of a condition: of the first, `seed` itself."""
    if sample_slice.start == 0:
        return seed
    return seed.child("from", sample_slice.start)


def fit_local_sampler(
    x: Tensor, y: Tensor, n_neighbors: int | None = None
) -> LocalSampler:
    """The sampler of rows x (n, d) given y (n, l) whose settings suit them.

    Distances are those between summaries of y, or between its columns, weighted by
    relevance. Trials choose the kind of distance and k: held-out rows are then most
    likely. They choose the bandwidth, too.

    Parameters
    ----------
    x, y : finite and in float64
    n_neighbors : k, if it is given; then a summary is not tried
    """
    n, n_columns = y.shape
    if n_columns > _MAX_RELEVANCE_COLUMNS:
        sampler = _with_summary(x, y)
    else:
        sampler = _with_relevance(x, y)
    if n_neighbors is None:
        sampler = _choose_distances_and_k(sampler)
    else:
        sampler = sampler.with_n_neighbors(min(n_neighbors, n))
    return sampler.with_bandwidth(_choose_bandwidth(sampler))


def _choose_distances_and_k(sampler: LocalSampler) -> LocalSampler:
    """The sampler with the best k, and with summaries of y if they are better."""
    n, n_columns = sampler.y.shape
    chosen = _choose_k(sampler)
    is_summary_tried = (
        _MIN_SUMMARY_COLUMNS <= n_columns <= _MAX_RELEVANCE_COLUMNS
        and n >= _MIN_SUMMARY_ROWS
    )
    if is_summary_tried:
        trial = _with_summary(sampler.x, sampler.y, held_out=_held_out(n))
        of_summary = _choose_k(trial)
        if _is_clearly_better(of_summary.log_likelihood, chosen.log_likelihood):
            return _with_summary(sampler.x, sampler.y).with_n_neighbors(of_summary.k)
    return sampler.with_n_neighbors(chosen.k)


def _held_out(n: int) -> Tensor:
    """The indices of the rows, of n, that are held out to choose k."""
    return Seed(0).child("k").permutation(n)[:_N_HELD_OUT]


def _with_relevance(x: Tensor, y: Tensor) -> LocalSampler:
    """A sampler with distances between the columns of y, weighted by relevance.

    All rows x (n, d) and y (n, l) are neighbors, until k is chosen.
    """
    features = FeatureMap.from_data(y)(y)
    projection = torch.diag(relevance(x, features))
    return LocalSampler(x, y, LocalSettings(len(x), _DEFAULT_BANDWIDTH, projection))


def _with_summary(x: Tensor, y: Tensor, held_out: Tensor | None = None) -> LocalSampler:
    """A sampler with distances between summaries of y, learned without `held_out`.

    All rows x (n, d) and y (n, l) are neighbors, until k is chosen. `held_out` (m,) are
    indices of rows.
    """
    n_random_features = min(_MAX_RANDOM_FEATURES, len(y) // _ROWS_PER_RANDOM_FEATURE)
    feature_map = FeatureMap.from_data(y, n_random_features)
    is_train = torch.ones(len(y), dtype=torch.bool)
    if held_out is not None:
        is_train[held_out] = False
    projection = fit_ridge(feature_map, y[is_train], standardized_moments(x[is_train]))
    settings = LocalSettings(len(x), _DEFAULT_BANDWIDTH, projection, n_random_features)
    return LocalSampler(x, y, settings)


def _is_clearly_better(ours: Tensor, theirs: Tensor) -> bool:
    """Whether log likelihoods of held-out rows are higher by a standard error.

    False if either was not measured, because there are too few rows.
    """
    if len(ours) == 0 or len(theirs) == 0:
        return False
    gain = ours - theirs
    return bool(gain.mean() > gain.std() / math.sqrt(len(gain)))


class _ChosenK(NamedTuple):
    """A number of neighbors, and how likely it makes held-out rows."""

    k: int
    # (m,) of the held-out rows; none if there are so few rows that all are neighbors.
    log_likelihood: Tensor


def _choose_k(sampler: LocalSampler) -> _ChosenK:
    """The least k whose mean log likelihood of held-out rows is near the best mean.

    Near is within half a standard error of the difference.
    """
    n = len(sampler.x)
    n_columns = sampler.settings.projection.shape[1] + sampler.x.shape[1]
    min_k = max(_MIN_NEIGHBORS, 2 * n_columns)
    if n <= min_k:
        return _ChosenK(n, torch.empty(0))
    tried = _try_ks(sampler, min_k, max_k=min(n - 1, _MAX_NEIGHBORS))
    best = _likeliest(tried)
    for k, log_likelihood in tried.items():
        loss = tried[best] - log_likelihood
        if loss.mean() <= loss.std() / (2 * math.sqrt(len(loss))):
            return _ChosenK(k, log_likelihood)
    return _ChosenK(best, tried[best])


def _try_ks(sampler: LocalSampler, min_k: int, max_k: int) -> dict[int, Tensor]:
    """The log likelihoods (m,) of held-out rows with each k that is tried.

    k doubles from `min_k` to `max_k`, or until their mean has fallen twice.
    """
    held_out = _held_out(len(sampler.x))
    log_likelihoods: dict[int, Tensor] = {}
    k = min_k
    while True:
        k = min(k, max_k)
        log_likelihoods[k] = _log_likelihood(sampler.with_n_neighbors(k), held_out)
        last_two = list(log_likelihoods)[-2:]
        fell_twice = _likeliest(log_likelihoods) not in last_two
        if k == max_k or fell_twice:
            return log_likelihoods
        k *= 2


def _likeliest(log_likelihoods: Mapping[int, Tensor]) -> int:
    """The k with the highest mean log likelihood."""
    return max(log_likelihoods, key=lambda k: float(log_likelihoods[k].mean()))


def _log_likelihood(sampler: LocalSampler, held_out: Tensor) -> Tensor:
    """Log likelihoods (m,) of the rows with the indices `held_out` (m,).

    Each is given its y, and is no neighbor of itself. None is far below the median.
    """
    n_columns = sampler.settings.projection.shape[1] + sampler.x.shape[1]
    values_per_row = sampler.settings.n_neighbors * MAX_COMPONENTS * (n_columns + 1)
    chunk_size = max(1, _MAX_VALUES // values_per_row)
    parts = []
    for row_indices in torch.split(held_out, chunk_size):
        neighborhoods = sampler.neighborhoods(
            sampler.y[row_indices],
            exclude=row_indices,
            density_at=sampler.x[row_indices],
        )
        parts.append(neighborhoods.log_density)
    log_likelihood = torch.cat(parts)
    least = float(log_likelihood.median()) - MAX_LOG_DENSITY_DROP
    return log_likelihood.clamp(min=least)


def _choose_bandwidth(sampler: LocalSampler) -> float:
    """The bandwidth by `choose_bandwidth`, from the neighborhoods of some rows."""
    if sampler.settings.n_neighbors < 3:
        return sampler.settings.bandwidth
    chosen = Seed(0).child("spread").permutation(len(sampler.x))[:_N_BANDWIDTH_ROWS]
    neighborhoods = sampler.neighborhoods(sampler.y[chosen])
    inverse_scale = center_components(neighborhoods).inverse_scale
    n_draws = 2 * MIN_COVARIANCE_DRAWS

    def draw(bandwidth: float) -> list[Tensor]:
        draws = sample_neighborhoods(neighborhoods, n_draws, bandwidth, Seed(0))
        return list(draws.x * inverse_scale)

    bandwidth = choose_bandwidth(list(neighborhoods.x * inverse_scale), draw)
    if bandwidth == 0:
        return sampler.settings.bandwidth
    return bandwidth
