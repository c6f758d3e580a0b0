"""Copies: are samples nearer to training rows than new real rows are, or too far from them?

d(x) is the distance of x to its nearest training row. Without held-out rows, training rows take their
place, with the distance to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sliceflow.errors import from_tensor, require
from sliceflow.metrics.pairs import nearest

IDEAL_COPIES = 0.01  # the share of new real rows that count as copies
_AMONG = 10  # neighbours that the nearest is compared with, in `memorized_rate`
_FEWEST_PARTICLES = 100  # fewer show nothing
_MOST_ROWS = 20_000  # more are hardly copied, and the search would take long
_LOOKED_AT = (
    1_000  # particles, and rows that they are compared with: 2 % of them are 20
)
_MANY_COPIES = 5  # times the floor, which 99 and fewer new real rows have once in 150
_LEAST_RATIO = 0.7


def nn_ratio(
    samples: Any,
    train: Any,
    test: Any = None,
    *,
    mirror: bool = False,
    device: str = "auto",
) -> float:
    """Median distance of samples to the nearest train row, divided by that of test rows.

    1 is ideal. Near 0 the samples are copies of the training rows; above 1 they are far from the data.
    A median does not see a few copies among many samples: `copies` does.

    Parameters
    ----------
    samples, train : (n, d) and (N, d), or pictures
    test : held-out rows; None takes every train row in its turn, and its distance to the others
    mirror : for flows that were fitted to mirror images, too: those count as train rows

    Examples
    --------
    >>> train, test = np.random.default_rng(0).normal(size=(2, 200, 3))
    >>> nn_ratio(train[:50], train, test, device="cpu")  # copies
    0.0
    """
    of_samples, of_real = _distances(samples, train, test, mirror, device)
    return float(np.median(of_samples) / np.median(of_real))


def copies(
    samples: Any,
    train: Any,
    test: Any = None,
    *,
    mirror: bool = False,
    device: str = "auto",
) -> float:
    """Share of samples nearer to a train row than the nearest 1 % of test rows are.

    0.01 is ideal, 1 means that all samples are copies. It is the share of samples with d(x) < q, the
    1 % quantile of d over the n test rows, which score 0.01 themselves. New real rows score 0.01 on
    average; with fewer than 99 test rows 1/(n + 1), without any and with N < 199 train rows 2/(N + 1).
    Parameters: see `nn_ratio`.

    Examples
    --------
    >>> train, test, samples = np.random.default_rng(0).normal(size=(3, 1000, 3))
    >>> samples[:100] = train[:100]  # one in ten
    >>> print(f"{copies(samples, train, test, device='cpu'):.2f}")
    0.11
    """
    return share_of_copies(*_distances(samples, train, test, mirror, device))


def outlier_rate(
    samples: Any,
    train: Any,
    test: Any = None,
    *,
    mirror: bool = False,
    device: str = "auto",
) -> float:
    """Share of samples farther from all train rows than any of the n test rows: d(x) > max d(test row).

    Near 0 is ideal: new real rows score 1/(n + 1) on average. Parameters: see `nn_ratio`.
    """
    of_samples, of_real = _distances(samples, train, test, mirror, device)
    return float(np.mean(of_samples > of_real.max()))


def memorized_rate(
    samples: Any,
    train: Any,
    test: Any,
    *,
    mirror: bool = False,
    patch: int | None = None,
    device: str = "auto",
) -> float:
    """Share of samples that resemble one train row far more than others, as only 1 % of test rows do.

    0.01 is ideal. It is `copies` by d₁/d₁₀ instead of d₁, the distances to the first and the tenth
    train row: so it sees copies of rows that are far from all others, such as those of high contrast.

    Parameters
    ----------
    samples, train, test, mirror, device : as in `nn_ratio`
    patch : compares patches of pictures, of so many rows and columns, at nine positions, and returns
        the mean of the nine shares. Half of a side finds pictures made of large pieces of others

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> train, test, samples = rng.normal(size=(3, 1000, 8)) * rng.exponential(size=(3, 1000, 1))
    >>> far = np.abs(train).sum(1).argsort()[-50:]
    >>> samples[:50] = train[far] + 0.1 * rng.normal(size=(50, 8))  # nearly copies, of far rows
    >>> print(f"{memorized_rate(samples, train, test, device='cpu'):.2f}")
    0.06
    """
    train = np.concatenate(_ways(train, mirror))
    if len(train) < _AMONG:
        raise ValueError(
            f"lookalikes needs {_AMONG} train rows or more, but there are {len(train)}"
        )
    if patch is not None:
        height, width = train.shape[1:3] if train.ndim > 2 else (0, 0)
        ok = 1 <= patch <= min(height, width)
        require(
            ok,
            "patch",
            patch,
            f"1 to the side of the pictures, which are {height}×{width}",
        )
        tops, lefts = (
            [0, (side - patch) // 2, side - patch] for side in (height, width)
        )
        parts = [np.s_[:, i : i + patch, j : j + patch] for i in tops for j in lefts]
        rows = samples, train, test
        return float(
            np.mean(
                [memorized_rate(*(x[at] for x in rows), device=device) for at in parts]
            )
        )

    def nearness(rows: np.ndarray) -> np.ndarray:
        near = nearest(rows, train, _AMONG, device=device)[0]
        return np.asarray(near[:, 0] / np.maximum(near[:, -1], np.finfo(float).tiny))

    return share_of_copies(nearness(samples), nearness(test))


def nearest_pictures(
    images: np.ndarray,
    train: np.ndarray,
    k: int = 5,
    *,
    mirror: bool = False,
    device: str = "auto",
) -> tuple[np.ndarray, np.ndarray]:
    """The k training pictures (n, k, h, w[, c]) nearest to each image, and their distances (n, k).

    Distances are in units of pixel values, such as 0 to 255. With `mirror`, for flows that were fitted
    to mirror images, too, the nearer of a training picture and its mirror image is shown.

    Examples
    --------
    >>> from sliceflow.datasets import load
    >>> images = load("digits").images
    >>> found, distances = nearest_pictures(images[:3], images, k=2, device="cpu")
    >>> found.shape, distances[:, 0]
    ((3, 2, 8, 8), array([0., 0., 0.]))
    """
    both = np.concatenate(_ways(train, mirror))
    n = len(train)
    distances, index = nearest(
        images, both, min((1 + mirror) * k, len(both)), device=device
    )
    chosen = np.empty((len(images), k), int)
    for row, found in enumerate(
        index % n
    ):  # a picture may be found both ways: the nearer counts
        chosen[row] = np.sort(np.unique(found, return_index=True)[1])[:k]
    return both[np.take_along_axis(index, chosen, 1)], np.take_along_axis(
        distances, chosen, 1
    )


def copy_warning(pairs: Sequence[tuple[Any, Any]], device: str = "cpu") -> str:
    """What shows that particles copy rows; empty if nothing does, or if there are too few or many.

    `pairs` are rows (n, d) and particles (m, d) of each flow, such as one for each class.
    """
    n = sum(len(rows) for rows, _ in pairs)
    m = sum(len(particles) for _, particles in pairs)
    if not 2 * _MANY_COPIES <= n <= _MOST_ROWS or m < _FEWEST_PARTICLES:
        return ""
    of_particles = []
    of_rows = []
    for rows, particles in ((from_tensor(a), from_tensor(b)) for a, b in pairs):
        if len(rows) > 1:
            each = -(-_LOOKED_AT // len(pairs))
            step = -(-len(rows) // each)
            stride = -(-len(particles) // each)
            of_rows.append(nearest(rows[::step], rows, 2, device=device)[0][:, 1])
            of_particles.append(
                nearest(particles[::stride], rows, device=device)[0][:, 0]
            )
    if not of_rows or np.median(real := np.concatenate(of_rows)) == 0:
        return ""
    found = np.concatenate(of_particles)
    share = share_of_copies(found, real)
    ratio = float(np.median(found) / np.median(real))
    if not shows_copying(share, ratio, max(IDEAL_COPIES, 2 / (n + 1))):
        return ""
    return f"copies {share:.2f}, NN ratio {ratio:.2f}"


def shows_copying(share: float, ratio: float, floor: float = IDEAL_COPIES) -> bool:
    """Whether this share of copies and this NN ratio show copying; `floor` is that of new real rows."""
    return share > _MANY_COPIES * floor or ratio < _LEAST_RATIO


def share_of_copies(of_samples: np.ndarray, of_real: np.ndarray) -> float:
    """`copies` from the distances of samples and of real rows."""
    limit = np.quantile(of_real, IDEAL_COPIES, method="weibull")
    share = float(np.mean(of_samples < limit))
    tied = float(np.mean(of_real == limit))
    if tied:
        part = (IDEAL_COPIES - float(np.mean(of_real < limit))) / tied
        share += float(np.mean(of_samples == limit)) * part
    return share


def nearest_distances(
    rows: Any,
    train: Any,
    *,
    mirror: bool = False,
    device: str = "auto",
    leave_out_itself: bool = False,
) -> np.ndarray:
    """Distances (n,) of rows to their nearest train row; with `mirror`, to its mirror image, too."""
    strategies = _ways(rows, mirror)
    found = [
        nearest(x, train, device=device, leave_out_itself=leave_out_itself)[0]
        for x in strategies
    ]
    return np.asarray(np.min(found, axis=0)[:, 0])


def _distances(
    samples: Any, train: Any, test: Any, mirror: bool, device: str
) -> tuple[np.ndarray, np.ndarray]:
    """Distances to the nearest train row, of samples and of real rows."""
    alone = test is None
    rows = train if alone else test
    real = nearest_distances(
        rows, train, mirror=mirror, device=device, leave_out_itself=alone
    )
    if np.median(real) == 0:
        same, where = (
            ("train", "in train") if alone else ("test", "between test and train")
        )
        fact = f"the median {same} row is identical to a train row: no distance can be compared"
        raise ValueError(f"{fact}; remove duplicates {where}")
    return nearest_distances(samples, train, mirror=mirror, device=device), real


def _ways(rows: Any, mirror: bool) -> list[np.ndarray]:
    """The rows; with `mirror` their mirror images, too."""
    rows = np.asarray(from_tensor(rows))
    if mirror and rows.ndim < 3:
        raise ValueError(
            f"rows of shape {rows.shape} have no mirror images; pass pictures (n, h, w)"
        )
    return [rows, rows[:, :, ::-1]] if mirror else [rows]
