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
    known: Mask,
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
    known : (h, w), True where a pixel is known
    training_pixels : (N, c, h, w) as `Layout.read` returns them, at least 10
    n : completions of each picture
    classes : if given, a completion learns only from pictures of its class

    Returns
    -------
    (m, n, h, w[, c])
    """
    _check(known, len(training_pixels))
    c, h, w = layout.shape
    brightest = layout.max_pixel_value
    is_known = np.tile(known.ravel(), c)  # of the values of a picture
    pixel_rows = layout.read(X).reshape(len(X), -1)
    rows = pixel_rows.astype(np.float32) / np.float32(brightest)
    training_rows = training_pixels.reshape(len(training_pixels), -1)
    training_rows = training_rows.astype(np.float32) / np.float32(brightest)
    if classes is None:
        classes = PictureClasses(
            np.zeros(len(rows), int), np.zeros(len(training_rows), int)
        )

    completer = _Completer(training_rows, is_known, layout.shape, seed.child("tones"))
    hidden = completer.draw_by_class(rows, n, classes, seed)
    if layout.n_pixel_values is not None:
        hidden = (hidden * brightest).round()
    completed = np.repeat(pixel_rows[:, None], n, 1)
    completed[..., ~is_known] = hidden.clip(0, brightest)
    channels_last = completed.reshape(-1, c, h, w).transpose(0, 2, 3, 1)
    return channels_last.astype(X.dtype).reshape(len(rows), n, *X.shape[1:])


def _check(known: Mask, n_training: int) -> None:
    """Raise a `DataError` where nothing is to be completed, or nothing says how."""
    if known.all():
        raise DataError("every pixel is known", "hide the pixels to complete")
    if not known.any():
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
    known : (d,), True where a value is known
    shape : (c, h, w) of a picture
    """

    def __init__(
        self,
        rows: NDArray[np.float32],
        known: Mask,
        shape: tuple[int, int, int],
        seed: Seed,
    ) -> None:
        measured = rows[:N_MEASURED_PICTURES]
        is_extreme = (measured <= 0) | (measured >= 1)
        are_drawings = bool(is_extreme.mean() >= MIN_EXTREME_SHARE_OF_DRAWINGS)
        hidden = rows[:, ~known]
        self.known = known
        self.seam = Seam(measured, known, shape, smooth=not are_drawings)

        # Of the training pictures: components x of hidden pixels, and conditions y.
        self.known_pca = _fit_pca(rows[:, known], N_KNOWN_COMPONENTS)
        self.hidden_pca = _fit_pca(hidden, N_HIDDEN_COMPONENTS)
        known_scores = _scores(self.known_pca, rows[:, known])
        self.x = _scores(self.hidden_pca, hidden)
        self.feature_map = FeatureMap.from_data(known_scores, N_RANDOM_FEATURES)
        self.slopes = _condition_slopes(self.feature_map, known_scores, self.x)
        self.y = projected_features(self.feature_map, known_scores, self.slopes)

        self.detail: Floats | None = None  # pixels minus their components
        if not are_drawings:
            self.detail = hidden - self.hidden_pca.inverse_transform(self.x.numpy())
        self.tone_curve = self._fit_tone_curve(hidden, seed)

    def draw_by_class(
        self, rows: NDArray[np.float32], n: int, classes: PictureClasses, seed: Seed
    ) -> Floats:
        """Hidden pixels (m, n, hidden) of pictures (m, d), learned from their class."""
        hidden = np.empty((len(rows), n, int((~self.known).sum())))
        for i, class_index in enumerate(np.unique(classes.given)):
            given = np.flatnonzero(classes.given == class_index)
            training = np.flatnonzero(classes.training == class_index)
            hidden[given] = self.draw(rows[given], n, training, seed.child("class", i))
        return hidden

    def draw(
        self, rows: NDArray[np.float32], n: int, training: Ints, seed: Seed
    ) -> Floats:
        """Hidden pixels (m, n, hidden) of pictures (m, d).

        `training` are the indices of the training pictures to learn from.
        """
        known_scores = _scores(self.known_pca, rows[:, self.known])
        y = projected_features(self.feature_map, known_scores, self.slopes)
        drawn = self._local_sampler(training).sample(
            y, n * DRAWS_PER_COMPLETION, seed, max_components=1
        )
        draws = drawn.x.numpy()  # (m, 8n, components)
        neighbors = training[drawn.row_indices.numpy()]  # (m, 8n)
        at_seam = self._pixels(draws, neighbors, self.seam.hidden_of_pair)
        best = self.seam.choose(rows, at_seam, seed.child("continuing"))
        draws = np.take_along_axis(draws, best[..., None], 1)
        neighbors = np.take_along_axis(neighbors, best, 1)
        return self.seam.blend(rows, self._pixels(draws, neighbors))

    def _local_sampler(self, training: Ints) -> LocalSampler:
        """A `LocalSampler` of components x given y, for some training pictures."""
        settings = LocalSettings(
            n_neighbors=min(N_NEIGHBORS, len(training)),
            bandwidth=BANDWIDTH,
            projection=torch.eye(self.y.shape[1], dtype=torch.float64),
        )
        return LocalSampler(self.x[training], self.y[training], settings)

    def _pixels(
        self,
        x: Floats,
        neighbors: Ints,
        selection: slice | Ints = slice(None),
    ) -> Floats:
        """Hidden pixels (…, hidden) of draws x (…, components), or a selection of them.

        `neighbors` (…) are the training pictures around which x are drawn.
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
        adjusted = local_sampler.neighborhoods(
            self.y[chosen], exclude=chosen, max_components=1
        )
        x, picked = sample_neighborhoods(adjusted, 1, BANDWIDTH, seed)
        neighbors = adjusted.row_indices.gather(1, picked)
        drawn = self._pixels_before_tones(x.numpy(), neighbors.numpy(), slice(None))
        probabilities = np.linspace(0, 1, N_TONE_QUANTILES)
        drawn_quantiles = np.quantile(drawn, probabilities)
        real_quantiles = np.quantile(hidden[chosen.numpy()], probabilities)
        increasing = drawn_quantiles + TONE_INCREMENT * np.arange(N_TONE_QUANTILES)
        return _ToneCurve(increasing, real_quantiles)


def _condition_slopes(
    feature_map: FeatureMap, known_scores: Tensor, x: Tensor
) -> Tensor:
    """The slopes (f, m) by which features of known pixels give the condition y.

    These are the main components of what a ridge regression predicts of x.
    """
    slopes = fit_ridge(feature_map, known_scores, x)
    predictions = projected_features(feature_map, known_scores, slopes)
    main = _fit_pca(predictions.numpy(), N_CONDITION_COMPONENTS).components_
    return slopes @ torch.from_numpy(main.T).double()


def _fit_pca(rows: NDArray[np.floating], max_components: int) -> PCA:
    n_components = min(max_components, len(rows) - 1, rows.shape[1])
    with np.errstate(invalid="ignore"):  # rows that are all alike
        return PCA(n_components, random_state=0).fit(rows)


def _scores(pca: PCA, rows: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(pca.transform(rows)).double()
