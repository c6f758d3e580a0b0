"""How sampled pictures compare with training and held-out pictures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sliceflow.arrays import chunks
from sliceflow.devices import resolve_device
from sliceflow.metrics import copying, distances
from sliceflow.metrics.comparisons import (
    N_TREES,
    ClassLabels,
    ComparisonSettings,
    Score,
    Scores,
    copy_scores,
    recognized_score,
    reference_copy_rate,
    with_references,
)
from sliceflow.metrics.rows import as_flat_rows, subsample

# Principal components that stand for a picture, as in the name FD-PCA32.
_N_COMPONENTS = 32
# Pictures that are converted to float64 at a time: 25 MB of pictures of 28×28.
_ROWS_PER_BLOCK = 4096
# The side of a thumbnail, about.
_THUMBNAIL_SIDE = 8
# On a CPU, copies are searched among all training pictures for this many samples and
# held-out pictures each. The copy rate of new pictures, .01, then has an error
# of .003. With more, measuring MNIST would take longer than fitting it.
MAX_PICTURES_SEARCHED_ON_CPU = 1_000
# The same for half-size patches: nine of each picture, so fewer pictures will do.
_MAX_PICTURES_OF_PATCHES_ON_CPU = 250


def compare_pictures(
    samples: NDArray[Any],
    train: NDArray[Any],
    held_out: NDArray[Any],
    labels: ClassLabels | None,
    settings: ComparisonSettings,
) -> Scores:
    """The metrics of pictures (n, h, w[, c]).

    Mirror images of training pictures count as copies.
    """
    scores = _component_scores(samples, train, held_out, labels, settings)
    settings.notify("searching for copies")
    search_settings = _limited_on_cpu(settings, MAX_PICTURES_SEARCHED_ON_CPU)
    scores |= copy_scores(samples, [train], held_out, search_settings, mirror=True)
    scores |= _thumbnail_scores(samples, train, held_out, search_settings)
    patch_settings = _limited_on_cpu(settings, _MAX_PICTURES_OF_PATCHES_ON_CPU)
    memorized = _memorized_halves(samples, train, held_out, patch_settings)
    scores["memorized, halves"] = memorized
    return scores


def _limited_on_cpu(settings: ComparisonSettings, max_rows: int) -> ComparisonSettings:
    """The settings with at most so many rows on a CPU, where searches take long."""
    if resolve_device(settings.device).type != "cpu":
        return settings
    return replace(settings, max_rows=min(settings.max_rows, max_rows))


def _component_scores(
    samples: NDArray[Any],
    train: NDArray[Any],
    held_out: NDArray[Any],
    labels: ClassLabels | None,
    settings: ComparisonSettings,
) -> Scores:
    """The metrics of principal components, which stand for pictures."""
    # In units in which pixels are −1 to 1, as the flow sees them.
    half_range = max(float(np.ptp(train)), np.finfo(float).tiny) / 2
    fitted_rows = as_flat_rows(subsample(train, settings.max_rows))
    mean, axes = distances.principal_axes(fitted_rows, _N_COMPONENTS)

    def components(pictures: NDArray[Any]) -> NDArray[Any]:
        rows = as_flat_rows(pictures)
        blocks = [
            (rows[block] - mean) @ axes.T / half_range
            for block in chunks(len(rows), _ROWS_PER_BLOCK)
        ]
        return np.concatenate(blocks)

    sample_components = components(samples)
    train_components = components(train)
    held_out_components = components(held_out)
    compared = subsample(held_out_components, settings.max_rows)

    def measure(x: NDArray[Any]) -> dict[str, float]:
        return {
            "FD-PCA32": distances.frechet_distance(x, compared),
            "coverage": distances.coverage(x, compared, device=settings.device),
            "two-sample accuracy": distances.two_sample_score(
                x, compared, n_trees=N_TREES
            ),
        }

    scores = with_references(measure, sample_components, train_components, settings)
    if labels is not None:
        scores["recognized"] = recognized_score(
            sample_components, train_components, held_out_components, labels, settings
        )
    return scores


def _thumbnail_scores(
    samples: NDArray[Any],
    train: NDArray[Any],
    held_out: NDArray[Any],
    settings: ComparisonSettings,
) -> Scores:
    """Copies among thumbnails, which noise does not hide; none of small pictures."""
    side = min(train.shape[1:3])
    if side < 2 * _THUMBNAIL_SIDE:
        return {}
    factor = side // _THUMBNAIL_SIDE
    settings.notify("searching for copies among thumbnails")
    scores = copy_scores(
        _thumbnails(samples, factor),
        [_thumbnails(train, factor)],
        _thumbnails(held_out, factor),
        settings,
        mirror=True,
    )
    if "copy rate" not in scores:
        return {}
    return {"copy rate, thumbnails": scores["copy rate"]}


def _memorized_halves(
    samples: NDArray[Any],
    train: NDArray[Any],
    held_out: NDArray[Any],
    settings: ComparisonSettings,
) -> Score:
    """The share of patches, of half a side, that match one training picture."""
    settings.notify("searching for patches that are copies")
    side = min(train.shape[1:3])
    held_out = subsample(held_out, settings.max_rows)
    memorized = copying.memorized_rate(
        subsample(samples, settings.max_rows),
        train,
        held_out,
        mirror=True,
        patch=max(1, side // 2),
        device=settings.device,
    )
    return Score(memorized, reference_copy_rate(len(held_out)))


def _thumbnails(pictures: NDArray[Any], factor: int) -> NDArray[Any]:
    """Means of squares of pixels; what does not fill a square is left out."""
    n = pictures.shape[0]
    h = pictures.shape[1] // factor
    w = pictures.shape[2] // factor
    whole = pictures[:, : h * factor, : w * factor].reshape(
        n, h * factor, w * factor, -1
    )
    total = np.zeros((n, h, w, whole.shape[-1]))
    for top in range(factor):
        for left in range(factor):
            total += whole[:, top::factor, left::factor]
    return total / factor**2
