"""Copies: are samples nearer to training rows than new real rows are, or too far?

d(x) is the distance of x to its nearest training row. Without held-out rows, training
rows take their place, with their distance to the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sliceflow.arrays import Floats
from sliceflow.errors import DataError, ParameterError
from sliceflow.metrics.rows import RowsLike, nearest
from sliceflow.neighbors.distance_ratios import median_distance_ratio
from sliceflow.validation import from_tensor, is_int, require, require_bool

if TYPE_CHECKING:
    from torch import Tensor

    # Rows (n, d) of a fit, and the particles (m, d) that it moved.
    RowsAndParticles: TypeAlias = tuple[NDArray[Any] | Tensor, NDArray[Any] | Tensor]

# By definition, the share of new real rows that count as copies.
IDEAL_COPY_RATE = 0.01
# Distances to the nearest train row are compared with those to the tenth: a copy is far
# nearer to the first.
N_COMPARED_NEIGHBORS = 10
# A fit looks for copies only among fewer rows than this: so many rows are hardly ever
# copied, and the search would take long.
_MAX_WARNED_ROWS = 20_000
# With fewer particles, a copy rate says nothing.
_MIN_WARNED_PARTICLES = 100
# Particles, and also rows, whose distances are measured: enough of each that a share
# of 2 % is still 20 of them.
_N_WARNED_PARTICLES = 1_000
# Samples copy rows if their copy rate is more than this many times that of new
# real rows. Of 99 new real rows and fewer, one set in 150 has as many by chance.
_MAX_RELATIVE_COPY_RATE = 5
# Samples also copy rows if their NN ratio is below this: a clear distance from 1, which
# new real rows score on average.
_MIN_NN_RATIO = 0.7


def nn_ratio(
    samples: RowsLike,
    train: RowsLike,
    held_out: RowsLike | None = None,
    *,
    mirror: bool = False,
    device: str = "auto",
) -> float:
    """Median distance to the nearest train row, of samples over that of held-out rows.

    1 is ideal. Near 0 the samples are copies of the training rows; above 1 they are far
    from the data. A median does not see a few copies among many samples; `copy_rate`
    does.

    Parameters
    ----------
    samples, train : (n, d) and (N, d), or pictures
        The samples, and the rows that were fitted.
    held_out : (m, d) or None, default None
        Held-out rows. None takes every train row in its turn, and its distance to the
        others.
    mirror : bool, default False
        Mirror images of train rows count as train rows: for flows that were fitted with
        ``mirror=True``.
    device : "cpu", "cuda" or "auto", default "auto"
        Where nearest rows are searched.

    Returns
    -------
    ratio : float

    Examples
    --------
    >>> train, held_out = np.random.default_rng(0).normal(size=(2, 200, 3))
    >>> nn_ratio(train[:50], train, held_out, device="cpu")  # copies
    0.0
    """
    sample_distances, real_distances = _train_distances(
        samples, train, held_out, mirror, device
    )
    return median_distance_ratio(sample_distances, real_distances)


def copy_rate(
    samples: RowsLike,
    train: RowsLike,
    held_out: RowsLike | None = None,
    *,
    mirror: bool = False,
    device: str = "auto",
) -> float:
    """Share of samples nearer to a train row than the nearest 1 % of held-out rows.

    It is the share of samples with d(x) < q, where q is the 1 % quantile of d over the
    n held-out rows. 0.01 is ideal, and 1 means that all samples are copies. New real
    rows score on average 0.01; 1/(n + 1) if there are n < 99 held-out rows; 2/(N + 1)
    if there are no held-out rows and N < 199 training rows.

    Parameters
    ----------
    samples, train : (n, d) and (N, d), or pictures
        The samples, and the rows that were fitted.
    held_out : (m, d) or None, default None
        Held-out rows. None takes every train row in its turn, and its distance to the
        others.
    mirror : bool, default False
        Mirror images of train rows count as train rows.
    device : "cpu", "cuda" or "auto", default "auto"
        Where nearest rows are searched.

    Returns
    -------
    share : float

    Examples
    --------
    >>> train, held_out, samples = np.random.default_rng(0).normal(size=(3, 1000, 3))
    >>> samples[:100] = train[:100]  # one in ten
    >>> print(f"{copy_rate(samples, train, held_out, device='cpu'):.2f}")
    0.11
    """
    sample_distances, real_distances = _train_distances(
        samples, train, held_out, mirror, device
    )
    return copy_rate_of_distances(sample_distances, real_distances)


def outlier_rate(
    samples: RowsLike,
    train: RowsLike,
    held_out: RowsLike | None = None,
    *,
    mirror: bool = False,
    device: str = "auto",
) -> float:
    """Share of samples farther from all train rows than any held-out row.

    It is the share of samples with d(x) > max d over the n held-out rows. Near 0 is
    ideal: new real rows score 1/(n + 1) on average.

    Parameters
    ----------
    samples, train : (n, d) and (N, d), or pictures
        The samples, and the rows that were fitted.
    held_out : (m, d) or None, default None
        Held-out rows. None takes every train row in its turn, and its distance to the
        others.
    mirror : bool, default False
        Mirror images of train rows count as train rows.
    device : "cpu", "cuda" or "auto", default "auto"
        Where nearest rows are searched.

    Returns
    -------
    share : float

    Examples
    --------
    >>> train, held_out, samples = np.random.default_rng(0).normal(size=(3, 500, 3))
    >>> samples[:50] += 20
    >>> print(f"{outlier_rate(samples, train, held_out, device='cpu'):.2f}")
    0.10
    """
    sample_distances, real_distances = _train_distances(
        samples, train, held_out, mirror, device
    )
    return float(np.mean(sample_distances > real_distances.max()))


def memorized_rate(
    samples: RowsLike,
    train: RowsLike,
    held_out: RowsLike,
    *,
    mirror: bool = False,
    patch: int | None = None,
    device: str = "auto",
) -> float:
    """Share of samples that resemble one train row far more than all others.

    0.01 is ideal: this share of held-out rows does. It is `copy_rate` by d₁/d₁₀ instead
    of d₁, where d₁ and d₁₀ are the distances to the first and the tenth train row. So
    it sees copies of rows that are far from all others, such as pictures of high
    contrast.

    Parameters
    ----------
    samples, train : (n, d) and (N, d), or pictures
        The samples, and the rows that were fitted.
    held_out : (m, d)
        Held-out rows.
    mirror : bool, default False
        Mirror images of train rows count as train rows.
    patch : int or None, default None
        Compare patches of patch×patch pixels at nine positions of the pictures, and
        return the mean of the nine shares. Half of a side finds pictures made of large
        pieces of others.
    device : "cpu", "cuda" or "auto", default "auto"
        Where nearest rows are searched.

    Returns
    -------
    share : float

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> rows = rng.normal(size=(3, 1000, 8)) * rng.exponential(size=(3, 1000, 1))
    >>> train, held_out, samples = rows
    >>> far = np.abs(train).sum(1).argsort()[-50:]
    >>> samples[:50] = train[far] + 0.1 * rng.normal(size=(50, 8))  # nearly copies
    >>> print(f"{memorized_rate(samples, train, held_out, device='cpu'):.2f}")
    0.06
    """
    train = np.concatenate(_with_mirror_images(train, mirror))
    if len(train) < N_COMPARED_NEIGHBORS:
        raise DataError(
            f"memorized_rate needs {N_COMPARED_NEIGHBORS} train rows or more, "
            f"but there are {len(train)}"
        )
    samples = np.asarray(from_tensor(samples))
    held_out = np.asarray(from_tensor(held_out))
    if patch is None:
        return _memorized_rate(samples, train, held_out, device)
    if train.ndim < 3:
        fact = "cuts pictures (n, h, w), but the rows are (n, d)"
        raise ParameterError("patch", patch, fact, "leave it out")
    height, width = train.shape[1:3]
    side = f"an int from 1 to the side of the pictures, which are {height}×{width}"
    is_side = is_int(patch, 1) and patch <= min(height, width)
    require(is_side, "patch", patch, side)
    rates = []
    for top in (0, (height - patch) // 2, height - patch):
        for left in (0, (width - patch) // 2, width - patch):
            part = np.s_[:, top : top + patch, left : left + patch]
            rates.append(
                _memorized_rate(samples[part], train[part], held_out[part], device)
            )
    return float(np.mean(rates))


def _memorized_rate(
    samples: NDArray[Any], train: NDArray[Any], held_out: NDArray[Any], device: str
) -> float:
    """`memorized_rate` of whole rows, or of one patch of pictures."""
    # One search, which reads the train rows once
    rows = np.concatenate((samples, held_out))
    distances, _ = nearest(rows, train, N_COMPARED_NEIGHBORS, device=device)
    tenth = np.maximum(distances[:, -1], np.finfo(float).tiny)
    ratios = distances[:, 0] / tenth
    n_samples = len(samples)
    return copy_rate_of_distances(ratios[:n_samples], ratios[n_samples:])


def nearest_pictures(
    pictures: NDArray[Any],
    train: NDArray[Any],
    k: int = 5,
    *,
    mirror: bool = False,
    device: str = "auto",
) -> tuple[NDArray[Any], Floats]:
    """Find the training pictures that are most like given pictures.

    Parameters
    ----------
    pictures, train : (n, h, w[, c]) and (N, h, w[, c])
        The pictures, and the training pictures to search.
    k : int, default 5
        How many training pictures to find for each picture.
    mirror : bool, default False
        For flows that were fitted with ``mirror=True``: the nearer of a training
        picture and its mirror image is shown.
    device : "cpu", "cuda" or "auto", default "auto"
        Where they are searched.

    Returns
    -------
    found : (n, k, h, w[, c])
        The nearest training pictures.
    distances : (n, k)
        Their distances, in units of pixel values, such as 0 to 255.

    Examples
    --------
    >>> from sliceflow.datasets import load
    >>> images = load("digits").images
    >>> found, distances = nearest_pictures(images[:3], images, k=2, device="cpu")
    >>> found.shape, distances[:, 0]
    ((3, 2, 8, 8), array([0., 0., 0.]))
    """
    wanted = f"a whole number from 1 to {len(train)}, the training pictures there are"
    require(is_int(k, 1) and k <= len(train), "k", k, wanted)
    versions = _with_mirror_images(train, mirror)
    candidates = np.concatenate(versions)
    # A picture and its mirror image may both be found: of these, the nearer counts.
    n_searched = min(len(versions) * k, len(candidates))
    distances, indices = nearest(pictures, candidates, n_searched, device=device)
    train_indices = indices % len(train)  # the same for a picture and its mirror image
    chosen = np.empty((len(pictures), k), int)
    for i, found_indices in enumerate(train_indices):
        _, first_places = np.unique(found_indices, return_index=True)
        chosen[i] = np.sort(first_places)[:k]
    nearest_indices = np.take_along_axis(indices, chosen, 1)
    return candidates[nearest_indices], np.take_along_axis(distances, chosen, 1)


def describe_copying(pairs: Sequence[RowsAndParticles], device: str = "cpu") -> str:
    """Evidence that particles copy rows, such as "copy rate 0.20, NN ratio 0.61".

    The text is empty if there is no evidence, if there are too few particles or rows to
    tell, or too many rows to search. `pairs` are rows (n, d) and particles (m, d), such
    as the pair of each class.
    """
    n = sum(len(rows) for rows, _ in pairs)
    m = sum(len(particles) for _, particles in pairs)
    is_measurable = 2 * _MAX_RELATIVE_COPY_RATE <= n <= _MAX_WARNED_ROWS
    if not is_measurable or m < _MIN_WARNED_PARTICLES:
        return ""
    # A single row has no other row to compare with.
    compared = [pair for pair in pairs if len(pair[0]) >= 2]
    if not compared:
        return ""
    n_per_pair = math.ceil(_N_WARNED_PARTICLES / len(pairs))
    distances = [_distances_to_rows(pair, n_per_pair, device) for pair in compared]
    row_distances = np.concatenate([of_rows for of_rows, _ in distances])
    particle_distances = np.concatenate([of_particles for _, of_particles in distances])
    if np.median(row_distances) == 0:
        return ""
    share = copy_rate_of_distances(particle_distances, row_distances)
    ratio = median_distance_ratio(particle_distances, row_distances)
    reference = max(IDEAL_COPY_RATE, 2 / (n + 1))
    if not is_evidence_of_copying(share, ratio, reference):
        return ""
    return f"copy rate {share:.2f}, NN ratio {ratio:.2f}"


def _distances_to_rows(
    pair: RowsAndParticles, n: int, device: str
) -> tuple[Floats, Floats]:
    """Distances of about n rows to other rows, and of n particles to rows."""
    rows = from_tensor(pair[0])
    particles = from_tensor(pair[1])
    compared_rows = rows[:: math.ceil(len(rows) / n)]
    compared_particles = particles[:: math.ceil(len(particles) / n)]
    # The nearest of two rows is the row itself.
    row_distances, _ = nearest(compared_rows, rows, 2, device=device)
    particle_distances, _ = nearest(compared_particles, rows, device=device)
    return row_distances[:, 1], particle_distances[:, 0]


def is_evidence_of_copying(
    share: float, ratio: float, reference: float = IDEAL_COPY_RATE
) -> bool:
    """Whether a copy rate or an NN ratio shows copying.

    `reference` is the copy rate among new real rows.
    """
    return share > _MAX_RELATIVE_COPY_RATE * reference or ratio < _MIN_NN_RATIO


def copy_rate_of_distances(sample_distances: Floats, real_distances: Floats) -> float:
    """`copy_rate`, from distances of samples and real rows to nearest rows."""
    limit = np.quantile(real_distances, IDEAL_COPY_RATE, method="weibull")
    share = float(np.mean(sample_distances < limit))
    tied = float(np.mean(real_distances == limit))
    if tied:
        # Of real rows exactly 1 % are to count, so rows at the limit count in part.
        below = float(np.mean(real_distances < limit))
        tied_samples = float(np.mean(sample_distances == limit))
        share += tied_samples * ((IDEAL_COPY_RATE - below) / tied)
    return share


def nearest_distances(
    rows: RowsLike,
    train: RowsLike,
    *,
    mirror: bool = False,
    device: str = "auto",
    exclude_self: bool = False,
) -> Floats:
    """Distances (n,) of rows to their nearest train row.

    With `mirror`, mirror images of train rows count as train rows.
    """
    versions = _with_mirror_images(rows, mirror)
    if exclude_self:
        distances = [
            nearest(version, train, device=device, exclude_self=True)[0]
            for version in versions
        ]
    else:  # in one search, which reads the train rows once
        found, _ = nearest(np.concatenate(versions), train, device=device)
        distances = np.split(found, len(versions))
    return np.asarray(np.min(distances, axis=0)[:, 0])


def _train_distances(
    samples: RowsLike,
    train: RowsLike,
    held_out: RowsLike | None,
    mirror: bool,
    device: str,
) -> tuple[NDArray[Any], Floats]:
    """Distances to the nearest train row, of samples (n,) and of real rows (m,)."""
    if held_out is None:
        real_distances = nearest_distances(
            train, train, mirror=mirror, device=device, exclude_self=True
        )
        real_name = "train"
        duplicates = "in train"
    else:
        real_distances = nearest_distances(
            held_out, train, mirror=mirror, device=device
        )
        real_name = "held-out"
        duplicates = "between held_out and train"
    if np.median(real_distances) == 0:
        raise DataError(
            f"the median {real_name} row is identical to a train row: no distance can "
            "be compared",
            f"remove duplicates {duplicates}",
        )
    sample_distances = nearest_distances(samples, train, mirror=mirror, device=device)
    return sample_distances, real_distances


def _with_mirror_images(rows: RowsLike, mirror: bool) -> list[NDArray[Any]]:
    """The rows and, with `mirror`, their mirror images."""
    require_bool("mirror", mirror)
    rows = np.asarray(from_tensor(rows))
    if not mirror:
        return [rows]
    if rows.ndim < 3:
        fact = f"rows of shape {rows.shape} have no mirror images"
        raise DataError(fact, "pass pictures (n, h, w)")
    return [rows, rows[:, :, ::-1]]
