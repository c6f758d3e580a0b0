"""Nearest neighbours, and whether samples are copies of training rows."""

from __future__ import annotations

import numpy as np

from sliceflow.errors import need
from sliceflow.metrics.pairs import as_rows, blocks, on_device, same_width

__all__ = [
    "IDEAL_COPIES",
    "copies",
    "lookalikes",
    "nearest",
    "nearest_distances",
    "nearest_pictures",
    "nn_ratio",
    "ratio_of_medians",
    "share_of_copies",
    "share_of_strays",
    "strays",
]

IDEAL_COPIES = 0.01  # share of real rows that count as copies, in `copies`
_AMONG = 10  # neighbours that the nearest is compared with, in `lookalikes`
_SPARE = 8  # candidates beyond k whose distance is computed exactly


def nearest(
    rows: np.ndarray,
    data: np.ndarray,
    k: int = 1,
    *,
    device: str = "auto",
    leave_out_itself: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Distances (n, k) of each row to its k nearest rows of `data`, and their indices (n, k).

    Candidates come from products of blocks in float32, on a GPU if there is one. The distances of the
    best k + 8 are then computed again as |a − b| in float64, so that the distance of a copy is 0.
    Ties are in order of the indices. Memory beyond the arrays stays below 1 GiB.

    Parameters
    ----------
    rows, data : (n, d) and (N, d), or pictures; integers are not converted in memory
    k : the number of neighbours
    device : "cpu", "cuda", or "auto": a GPU if there is one
    leave_out_itself : `rows` are `data`; row i is not a neighbour of itself, but its copies are

    Examples
    --------
    >>> data = np.array([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0]])
    >>> distances, index = nearest(np.array([[0.9, 0.0]]), data, k=2, device="cpu")
    >>> distances.round(3), index
    (array([[0.1, 0.9]]), array([[1, 0]]))
    """
    import torch

    from sliceflow.devices import resolve_device
    from sliceflow.errors import is_int, need

    rows, data = as_rows(rows, "rows"), as_rows(data, "data")
    same_width(rows, data, "rows and data")
    if leave_out_itself and len(rows) != len(data):
        raise ValueError(
            f"leave_out_itself=True needs rows that are the data, but there are {len(rows)} rows and "
            f"{len(data)} data"
        )
    there = len(data) - leave_out_itself
    need(is_int(k, 1) and k <= there, "k", k, f"a whole number from 1 to {there}, the rows there are")
    where, wanted = resolve_device(device), min(k + _SPARE, there)
    centre = data.mean(axis=0, dtype=np.float64)
    distances, index = np.empty((len(rows), k)), np.empty((len(rows), k), np.int64)
    for i in blocks(rows):
        ours = on_device(rows[i], centre, where, torch.float32)
        best = torch.empty(len(ours), 0, device=where)
        number = best.long()
        for j in blocks(data):
            theirs = on_device(data[j], centre, where, torch.float32)
            # Less |ours|², which is the same for all.
            score = torch.addmm(theirs.square().sum(1)[None], ours, theirs.T, alpha=-2)
            if leave_out_itself:
                same = np.arange(max(i.start, j.start), min(i.stop, j.stop))
                score[same - i.start, same - j.start] = torch.inf
            near = score.topk(min(wanted, score.shape[1]), dim=1, largest=False, sorted=False)
            best = torch.cat((best, near.values), 1)
            number = torch.cat((number, near.indices + j.start), 1)
            best, kept = best.topk(min(wanted, best.shape[1]), dim=1, largest=False, sorted=False)
            number = number.gather(1, kept)
        distances[i], index[i] = _exact(rows[i], data, np.sort(number.cpu().numpy(), axis=1), k)
    return distances, index


def _exact(
    rows: np.ndarray, data: np.ndarray, candidates: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest of each row's candidates, (n, c) indices in ascending order."""
    distances = np.empty(candidates.shape)
    for c, number in enumerate(candidates.T):
        for part in blocks(rows):
            apart = np.subtract(rows[part], data[number[part]], dtype=np.float64)  # bytes must not wrap
            distances[part, c] = np.sqrt(np.einsum("ij,ij->i", apart, apart))
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, order, 1), np.take_along_axis(candidates, order, 1)


def nn_ratio(
    samples: np.ndarray,
    train: np.ndarray,
    test: np.ndarray | None = None,
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
    device : "cpu", "cuda", or "auto": a GPU if there is one

    Examples
    --------
    >>> train, test = np.random.default_rng(0).normal(size=(2, 200, 3))
    >>> nn_ratio(train[:50], train, test, device="cpu")  # copies
    0.0
    """
    return ratio_of_medians(*_distances(samples, train, test, mirror, device))


def copies(
    samples: np.ndarray,
    train: np.ndarray,
    test: np.ndarray | None = None,
    *,
    mirror: bool = False,
    device: str = "auto",
) -> float:
    """Share of samples nearer to a train row than the nearest 1 % of test rows are.

    0.01 is ideal, 1 means that all samples are copies. With d(x) = min |x − train row|, and q the 1 %
    quantile of d over the n test rows, it is the share of samples with d(x) < q. The quantile is taken
    at rank (n + 1)/100, interpolated, so that new real rows score 0.01 on average. With fewer than 99
    test rows q is their least distance, and new real rows score 1/(n + 1). With train rows in place of
    test rows, the two nearest share the least distance: below 199, new real rows score 2/(N + 1).

    Samples with d(x) = q count in part, so that the test rows themselves score 0.01: if 2 % of the test
    rows equal a train row, half of the samples that do count as copies.

    Parameters
    ----------
    samples, train : (n, d) and (N, d), or pictures
    test : held-out rows; None takes every train row in its turn, and its distance to the others
    mirror : for flows that were fitted to mirror images, too: those count as train rows
    device : "cpu", "cuda", or "auto": a GPU if there is one

    Examples
    --------
    >>> train, test, samples = np.random.default_rng(0).normal(size=(3, 1000, 3))
    >>> samples[:100] = train[:100]  # one in ten
    >>> print(f"{copies(samples, train, test, device='cpu'):.2f}")
    0.11
    >>> print(f"{copies(samples, train, device='cpu'):.2f}")  # no rows were held out
    0.11
    >>> print(f"{nn_ratio(samples, train, test, device='cpu'):.2f}")
    0.93
    """
    return share_of_copies(*_distances(samples, train, test, mirror, device))


def lookalikes(
    samples: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    *,
    mirror: bool = False,
    patch: int | None = None,
    device: str = "auto",
) -> float:
    """Share of samples that resemble one train row far more than others, as only 1 % of test rows do.

    0.01 is ideal. With d₁ ≤ … ≤ d₁₀ the distances to the ten nearest train rows, and q the 1 % quantile
    of d₁/d₁₀ over the test rows, it is the share of samples with d₁/d₁₀ < q. `copies` has d₁ alone.
    So it misses copies of rows that are far from all others, such as pictures of high contrast.

    Parameters
    ----------
    samples, train, test : (n, d), (N, d) and (n', d), or pictures; test rows are held out
    mirror : for flows that were fitted to mirror images, too: those count as train rows
    patch : compares patches of pictures, of so many rows and columns, instead of whole pictures: at
        nine places, and the mean of the nine shares is returned. Half of a side finds pictures that are
        put together from large pieces of others
    device : "cpu", "cuda", or "auto": a GPU if there is one

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> train, test, samples = rng.normal(size=(3, 1000, 8)) * rng.exponential(size=(3, 1000, 1))
    >>> far = np.abs(train).sum(1).argsort()[-50:]
    >>> samples[:50] = train[far] + 0.1 * rng.normal(size=(50, 8))  # nearly copies, of far rows
    >>> print(f"{copies(samples, train, test, device='cpu'):.2f}")
    0.01
    >>> print(f"{lookalikes(samples, train, test, device='cpu'):.2f}")
    0.06
    """
    if patch is not None:
        height, width = train.shape[1:3] if train.ndim > 2 else (0, 0)
        ok = 1 <= patch <= min(height, width)
        need(ok, "patch", patch, f"1 to the side of the pictures, which are {height}×{width}")
        corners = [[0, (side - patch) // 2, side - patch] for side in (height, width)]
        train = np.concatenate(_ways(train, mirror))
        shares = [
            lookalikes(
                *(of[:, i : i + patch, j : j + patch] for of in (samples, train, test)), device=device
            )
            for i in corners[0]
            for j in corners[1]
        ]
        return float(np.mean(shares))
    ways = _ways(train, mirror)
    if len(train) < _AMONG:
        raise ValueError(f"lookalikes needs {_AMONG} train rows or more, but there are {len(train)}")

    def standing_out(rows: np.ndarray) -> np.ndarray:
        found = [nearest(rows, way, _AMONG, device=device)[0] for way in ways]
        near = np.sort(np.concatenate(found, axis=1), axis=1)[:, :_AMONG]
        return np.asarray(near[:, 0] / np.maximum(near[:, -1], np.finfo(float).tiny))

    return share_of_copies(standing_out(samples), standing_out(test))


def strays(
    samples: np.ndarray,
    train: np.ndarray,
    test: np.ndarray | None = None,
    *,
    mirror: bool = False,
    device: str = "auto",
) -> float:
    """Share of samples farther from all train rows than any test row is.

    Near 0 is ideal, 1 means that all samples are far from the data. With d(x) = min |x − train row|, it
    is the share of samples with d(x) > max d(test row). New real rows score 1/(n + 1) on average, for n
    test rows.

    Parameters
    ----------
    samples, train : (n, d) and (N, d), or pictures
    test : held-out rows; None takes every train row in its turn, and its distance to the others
    mirror : for flows that were fitted to mirror images, too: those count as train rows
    device : "cpu", "cuda", or "auto": a GPU if there is one

    Examples
    --------
    >>> train, test, samples = np.random.default_rng(0).normal(size=(3, 1000, 3))
    >>> samples[:100] += 9  # one in ten
    >>> print(f"{strays(samples, train, test, device='cpu'):.2f}")
    0.10
    """
    return share_of_strays(*_distances(samples, train, test, mirror, device))


def _distances(
    samples: np.ndarray, train: np.ndarray, test: np.ndarray | None, mirror: bool, device: str
) -> tuple[np.ndarray, np.ndarray]:
    """Distances to the nearest train row, of samples and of real rows."""
    real = nearest_distances(
        train if test is None else test,
        train,
        mirror=mirror,
        device=device,
        leave_out_itself=test is None,
    )
    if np.median(real) == 0:
        same, where = ("test", "between test and train") if test is not None else ("train", "in train")
        raise ValueError(
            f"the median {same} row is identical to a train row, so there is no distance to compare "
            f"with; remove duplicates {where}"
        )
    return nearest_distances(samples, train, mirror=mirror, device=device), real


def nearest_distances(
    rows: np.ndarray,
    train: np.ndarray,
    *,
    mirror: bool = False,
    device: str = "auto",
    leave_out_itself: bool = False,
) -> np.ndarray:
    """Distances (n,) of rows to their nearest train row; with `mirror`, to its mirror image, too."""
    ways = _ways(rows, mirror)
    found = [nearest(x, train, device=device, leave_out_itself=leave_out_itself)[0] for x in ways]
    return np.asarray(np.min(found, axis=0)[:, 0])


def _ways(rows: np.ndarray, mirror: bool) -> list[np.ndarray]:
    """The rows; with `mirror` their mirror images, too."""
    if not mirror:
        return [rows]
    if np.ndim(rows) < 3:
        raise ValueError(
            f"rows of shape {np.shape(rows)} have no mirror images; pass pictures (n, h, w), or "
            "mirror=False"
        )
    return [rows, rows[:, :, ::-1]]


def ratio_of_medians(made: np.ndarray, real: np.ndarray) -> float:
    """`nn_ratio` from the distances of samples and of real rows."""
    return float(np.median(made) / np.median(real))


def share_of_copies(made: np.ndarray, real: np.ndarray) -> float:
    """`copies` from the distances of samples and of real rows."""
    limit = np.quantile(real, IDEAL_COPIES, method="weibull")
    counted, tied = float(np.mean(made < limit)), float(np.mean(real == limit))
    if tied:
        counted += float(np.mean(made == limit)) * (IDEAL_COPIES - float(np.mean(real < limit))) / tied
    return counted


def share_of_strays(made: np.ndarray, real: np.ndarray) -> float:
    """`strays` from the distances of samples and of real rows."""
    return float(np.mean(made > real.max()))


def nearest_pictures(
    images: np.ndarray, train: np.ndarray, k: int = 5, *, mirror: bool = False, device: str = "auto"
) -> tuple[np.ndarray, np.ndarray]:
    """The k training pictures (n, k, h, w[, c]) nearest to each image, and their distances (n, k).

    Distances are in units of pixel values, such as 0 to 255. With `mirror`, for flows that were fitted
    to mirror images, too, the nearer of a training picture and its mirror image counts.

    Examples
    --------
    >>> from sliceflow.datasets import load
    >>> images = load("digits").images
    >>> found, distances = nearest_pictures(images[:3], images, k=2, device="cpu")
    >>> found.shape, distances[:, 0]
    ((3, 2, 8, 8), array([0., 0., 0.]))
    """
    ways = _ways(images, mirror)
    distances, index = nearest(images, train, k, device=device)
    found = train[index]
    if not mirror:
        return found, distances
    turned, numbers = nearest(ways[1], train, k, device=device)
    # A picture may be found both ways: only the nearer one counts.
    all_found = np.concatenate((found, train[numbers][:, :, :, ::-1]), axis=1)
    all_distances = np.concatenate((distances, turned), axis=1)
    all_numbers = np.concatenate((index, numbers), axis=1)
    for i in range(len(images)):
        order = np.argsort(all_distances[i], kind="stable")
        first = np.sort(np.unique(all_numbers[i][order], return_index=True)[1])[:k]
        found[i], distances[i] = all_found[i][order[first]], all_distances[i][order[first]]
    return found, distances
