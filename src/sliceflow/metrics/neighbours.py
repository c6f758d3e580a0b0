"""Nearest neighbours, and whether samples are copies of training rows."""

from __future__ import annotations

import numpy as np

from sliceflow.metrics.pairs import as_rows, blocks, on_device, same_width

__all__ = ["nearest", "nearest_pictures", "nn_ratio"]

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
    test: np.ndarray,
    *,
    mirror: bool = False,
    device: str = "auto",
) -> float:
    """Median distance of samples to the nearest train row, divided by that of test rows.

    1 is ideal. Near 0 the samples are copies of the training rows; above 1 they are far from the data.
    With `mirror`, for flows that were fitted to mirror images, too, those count as train rows.

    Examples
    --------
    >>> train, test = np.random.default_rng(0).normal(size=(2, 200, 3))
    >>> nn_ratio(train[:50], train, test, device="cpu")  # copies
    0.0
    """

    if mirror and np.ndim(train) < 3:
        raise ValueError(
            f"rows of shape {np.shape(train)} have no mirror images; pass pictures (n, h, w), or "
            "mirror=False"
        )

    def apart(x: np.ndarray) -> float:
        distances = nearest(x, train, device=device)[0]
        if mirror:
            distances = np.minimum(distances, nearest(x[:, :, ::-1], train, device=device)[0])
        return float(np.median(distances))

    theirs = apart(test)
    if theirs == 0:
        raise ValueError(
            "the median test row is identical to a train row, so the NN ratio is undefined; "
            "remove duplicates between test and train"
        )
    return apart(samples) / theirs


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
    distances, index = nearest(images, train, k, device=device)
    found = train[index]
    if not mirror:
        return found, distances
    turned, numbers = nearest(images[:, :, ::-1], train, k, device=device)
    # A picture may be found both ways: only the nearer one counts.
    all_found = np.concatenate((found, train[numbers][:, :, :, ::-1]), axis=1)
    all_distances = np.concatenate((distances, turned), axis=1)
    all_numbers = np.concatenate((index, numbers), axis=1)
    for i in range(len(images)):
        order = np.argsort(all_distances[i], kind="stable")
        first = np.sort(np.unique(all_numbers[i][order], return_index=True)[1])[:k]
        found[i], distances[i] = all_found[i][order[first]], all_distances[i][order[first]]
    return found, distances
