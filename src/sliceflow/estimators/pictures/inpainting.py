"""Completions of pictures from any known part, by the pictures that are most like it.

1. Principal components x describe the hidden pixels of each training picture.
2. A ridge regression on random features of the known pixels predicts the components.
   Its prediction is the condition y.
3. Local conditions (`sliceflow.neighbors`) draw x given y around a neighbor, which is
   one of the training pictures with a similar y.
4. In photographs, a draw gets the fine detail of this neighbor. In drawings, of whose
   pixels a fifth are black or white, detail would be specks.
5. A tone curve, one monotone map, gives hidden pixels the distribution that they have
   in training pictures: sums of components are never quite black.
6. Of several draws, one is taken that continues the known pixels. In photographs, the
   remaining step at the seam is spread over the hidden pixels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from torch import Tensor

from sliceflow.arrays import Floats, Ints, Mask
from sliceflow.engine.random import Seed
from sliceflow.errors import DataError
from sliceflow.estimators.pictures.layout import Layout
from sliceflow.estimators.pictures.seams import DRAWS_PER_COMPLETION, Seam
from sliceflow.neighbors.features import FeatureMap, fit_ridge, projected_features
from sliceflow.neighbors.local import LocalSampler, LocalSettings
from sliceflow.neighbors.sampling import sample_neighborhoods

# With fewer training pictures, completion is refused: they do not say how hidden pixels
# vary.
MIN_TRAINING_PICTURES = 10

# The most principal components of known and of hidden pixels. In photographs, the fine
# detail of a neighbor replaces what the components leave out.
N_KNOWN_COMPONENTS = 60
N_HIDDEN_COMPONENTS = 100
# Random features of the known pixels. With 500 instead, 83 instead of 85 % of completed
# digits were recognized.
N_RANDOM_FEATURES = 1_000
# Principal components of the predictions that make up the condition. More would need
# more neighbors.
N_CONDITION_COMPONENTS = 20

# Training pictures that a completion is drawn from, and h of `sample_neighborhoods`,
# how far draws go from them. "Completions" in benchmarks/RESULTS.md were measured with
# these two values; there is no record of others.
N_NEIGHBORS = 100
BANDWIDTH = 0.4

# Quantiles of the tone curve of pixels, and training pictures that it is fitted to:
# each gives hundreds of pixels.
N_TONE_QUANTILES = 2_001
N_TONE_PICTURES = 200
# Added from quantile to quantile, so that they increase, as `numpy.interp` wants them.
TONE_INCREMENT = 1e-9

# Training pictures in which differences of neighboring pixels are measured, and by
# which drawings are recognized.
N_MEASURED_PICTURES = 2_000
# Pictures are drawings if this share of pixels, or more, is black or white.
MIN_EXTREME_SHARE_OF_DRAWINGS = 0.2


class PictureClasses(NamedTuple):
    """Class indices of the pictures to complete (m,), and of training pictures (N,)."""

    given: Ints
    training: Ints


def complete_pictures(
    layout: Layout,
    X: NDArray[Any],
    is_known: Mask,
    training_pixels: NDArray[Any],
    *,
    n: int,
    seed: Seed,
    classes: PictureClasses | None = None,
) -> NDArray[Any]:
    """Complete pictures from their known pixels.

    Parameters
    ----------
    X : pictures (m, h, w[, c]); the hidden pixels are any in range
    is_known : (h, w), True where a pixel is known
    training_pixels : (N, c, h, w) as `Layout.read` returns them, at least 10
    n : completions of each picture
    classes : if given, a completion learns only from pictures of its class

    Returns
    -------
    (m, n, h, w[, c])
    """
    _check_known_part(is_known, len(training_pixels))
    pixels = layout.read(X)
    rows = _as_unit_rows(pixels, layout)
    training_rows = _as_unit_rows(training_pixels, layout)
    is_known_value = np.tile(is_known.ravel(), layout.shape[0])
    if classes is None:
        classes = PictureClasses(
            np.zeros(len(rows), int), np.zeros(len(training_rows), int)
        )
    completer = _Completer(
        training_rows, is_known_value, layout.shape, seed.child("tones")
    )
    hidden = completer.draw_by_class(rows, n, classes, seed)
    completed = _with_hidden_values(pixels, is_known_value, hidden, layout)
    channels_last = completed.transpose(0, 1, 3, 4, 2)
    return channels_last.astype(X.dtype).reshape(len(X), n, *X.shape[1:])


def _as_unit_rows(pixels: NDArray[Any], layout: Layout) -> NDArray[np.float32]:
    """Pixels (n, c, h, w) as rows (n, d) of values from 0 to 1."""
    rows = pixels.reshape(len(pixels), -1)
    return rows.astype(np.float32) / np.float32(layout.max_pixel_value)


def _with_hidden_values(
    pixels: NDArray[Any], is_known_value: Mask, hidden: Floats, layout: Layout
) -> NDArray[Any]:
    """Completed pictures (m, n, c, h, w): `pixels` with other hidden values.

    `pixels` (m, c, h, w) are the pictures to complete, and `hidden` (m, n, hidden) the
    hidden values of each completion, from 0 to 1.
    """
    m, n, _ = hidden.shape
    brightest = layout.max_pixel_value
    hidden_pixels = hidden * brightest
    if layout.n_pixel_values is not None:
        hidden_pixels = hidden_pixels.round()
    completed = np.repeat(pixels.reshape(m, 1, -1), n, 1)
    completed[..., ~is_known_value] = hidden_pixels.clip(0, brightest)
    return completed.reshape(m, n, *layout.shape)


def _check_known_part(is_known: Mask, n_training: int) -> None:
    """Raise a `DataError` where nothing is to be completed, or nothing says how."""
    if is_known.all():
        raise DataError("every pixel is known", "hide the pixels to complete")
    if not is_known.any():
        raise DataError("no pixel is known", "draw new pictures with sample")
    if n_training < MIN_TRAINING_PICTURES:
        raise DataError(
            f"there are {n_training} pictures to learn from",
            f"pass at least {MIN_TRAINING_PICTURES}",
        )


class _ToneCurve(NamedTuple):
    """The monotone map of pixels: quantiles of drawn pixels, and of real ones."""

    drawn: Floats
    real: Floats


class _Completer:
    """Training pictures, ready to complete others with the same known pixels.

    Parameters
    ----------
    rows : training pictures (N, d) with values in [0, 1]
    is_known_value : (d,), True where a value is known
    shape : (c, h, w) of a picture
    seed : chooses the pictures to which the tone curve is fitted
    """

    def __init__(
        self,
        rows: NDArray[np.float32],
        is_known_value: Mask,
        shape: tuple[int, int, int],
        seed: Seed,
    ) -> None:
        measured = rows[:N_MEASURED_PICTURES]
        is_extreme = (measured <= 0) | (measured >= 1)
        has_drawings = bool(is_extreme.mean() >= MIN_EXTREME_SHARE_OF_DRAWINGS)
        known = rows[:, is_known_value]
        hidden = rows[:, ~is_known_value]
        self.is_known_value = is_known_value
        self.seam = Seam(measured, is_known_value, shape, smooth=not has_drawings)

        # Of each training picture: components x of its hidden pixels, and condition y.
        self.known_pca = _fit_pca(known, N_KNOWN_COMPONENTS)
        self.hidden_pca = _fit_pca(hidden, N_HIDDEN_COMPONENTS)
        known_components = _components(self.known_pca, known)
        self.x = _components(self.hidden_pca, hidden)
        self.feature_map = FeatureMap.from_data(known_components, N_RANDOM_FEATURES)
        self.slopes = _condition_slopes(self.feature_map, known_components, self.x)
        self.y = projected_features(self.feature_map, known_components, self.slopes)

        self.detail: Floats | None = None  # hidden pixels minus their components
        if not has_drawings:
            self.detail = hidden - self.hidden_pca.inverse_transform(self.x.numpy())
        self.tone_curve = self._fit_tone_curve(hidden, seed)

    def draw_by_class(
        self, rows: NDArray[np.float32], n: int, classes: PictureClasses, seed: Seed
    ) -> Floats:
        """Hidden pixels (m, n, hidden) of pictures (m, d), learned from their class."""
        hidden = np.empty((len(rows), n, int((~self.is_known_value).sum())))
        for i, class_index in enumerate(np.unique(classes.given)):
            given_indices = np.flatnonzero(classes.given == class_index)
            training_indices = np.flatnonzero(classes.training == class_index)
            hidden[given_indices] = self.draw(
                rows[given_indices], n, training_indices, seed.child("class", i)
            )
        return hidden

    def draw(
        self, rows: NDArray[np.float32], n: int, training_indices: Ints, seed: Seed
    ) -> Floats:
        """Hidden pixels (m, n, hidden) of pictures (m, d).

        `training_indices` say from which training pictures to learn.
        """
        known_components = _components(self.known_pca, rows[:, self.is_known_value])
        y = projected_features(self.feature_map, known_components, self.slopes)
        draws = self._local_sampler(training_indices).sample(
            y, n * DRAWS_PER_COMPLETION, seed, max_components=1
        )
        x = draws.x.numpy()  # (m, 8n, components)
        neighbors = training_indices[draws.row_indices.numpy()]  # (m, 8n)
        pixels_at_seam = self._pixels(x, neighbors, self.seam.hidden_of_pair)
        # The indices (m, n) of draws that continue the known pixels.
        chosen = self.seam.choose_draws(rows, pixels_at_seam, seed.child("continuing"))
        chosen_x = np.take_along_axis(x, chosen[..., None], 1)
        chosen_neighbors = np.take_along_axis(neighbors, chosen, 1)
        return self.seam.blend(rows, self._pixels(chosen_x, chosen_neighbors))

    def _local_sampler(self, training_indices: Ints) -> LocalSampler:
        """A `LocalSampler` of components x given y, for some training pictures."""
        settings = LocalSettings(
            n_neighbors=min(N_NEIGHBORS, len(training_indices)),
            bandwidth=BANDWIDTH,
            projection=torch.eye(self.y.shape[1], dtype=torch.float64),
        )
        return LocalSampler(
            self.x[training_indices], self.y[training_indices], settings
        )

    def _pixels(
        self,
        x: Floats,
        neighbors: Ints,
        selection: slice | Ints = slice(None),
    ) -> Floats:
        """Hidden pixels (…, hidden) of draws x (…, components), or a selection of them.

        `neighbors` (…) are the indices of the training pictures around which x are
        drawn.
        """
        pixels = self._pixels_before_tones(x, neighbors, selection)
        tone_curve = self.tone_curve
        return np.asarray(np.interp(pixels, tone_curve.drawn, tone_curve.real))

    def _pixels_before_tones(
        self, x: Floats, neighbors: Ints, selection: slice | Ints
    ) -> Floats:
        """Hidden pixels as `_pixels` returns them, before the tone curve."""
        pca = self.hidden_pca
        pixels = x @ pca.components_[:, selection] + pca.mean_[selection]
        if self.detail is not None:
            pixels += self.detail[:, selection][neighbors]
        return np.asarray(pixels)

    def _fit_tone_curve(self, hidden: NDArray[np.float32], seed: Seed) -> _ToneCurve:
        """The tone curve of hidden pixels.

        Some training pictures are completed from all others.
        """
        chosen = seed.child("rows").permutation(len(hidden))[:N_TONE_PICTURES]
        local_sampler = self._local_sampler(np.arange(len(hidden)))
        neighborhoods = local_sampler.neighborhoods(
            self.y[chosen], exclude=chosen, max_components=1
        )
        x, neighbor_index = sample_neighborhoods(neighborhoods, 1, BANDWIDTH, seed)
        neighbors = neighborhoods.row_indices.gather(1, neighbor_index)
        drawn = self._pixels_before_tones(x.numpy(), neighbors.numpy(), slice(None))
        probabilities = np.linspace(0, 1, N_TONE_QUANTILES)
        drawn_quantiles = np.quantile(drawn, probabilities)
        real_quantiles = np.quantile(hidden[chosen.numpy()], probabilities)
        increments = TONE_INCREMENT * np.arange(N_TONE_QUANTILES)
        return _ToneCurve(drawn_quantiles + increments, real_quantiles)


def _condition_slopes(
    feature_map: FeatureMap, known_components: Tensor, x: Tensor
) -> Tensor:
    """The slopes (f, m) by which features of known pixels give the condition y.

    A ridge regression predicts x from these features. The condition is the main
    components of its predictions.
    """
    slopes = fit_ridge(feature_map, known_components, x)
    predictions = projected_features(feature_map, known_components, slopes)
    main_axes = _fit_pca(predictions.numpy(), N_CONDITION_COMPONENTS).components_
    return slopes @ torch.from_numpy(main_axes.T).double()


def _fit_pca(rows: NDArray[np.floating], max_components: int) -> PCA:
    """The principal components of rows (n, d): `max_components`, or all of few."""
    n_components = min(max_components, len(rows) - 1, rows.shape[1])
    with np.errstate(invalid="ignore"):  # rows that are all alike
        return PCA(n_components, random_state=0).fit(rows)


def _components(pca: PCA, rows: NDArray[np.float32]) -> Tensor:
    """The principal components (n, k) of rows (n, d)."""
    return torch.from_numpy(pca.transform(rows)).double()
