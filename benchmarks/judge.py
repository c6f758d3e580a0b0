"""How near samples of pictures are to real ones: the distances the benchmarks print."""

from dataclasses import dataclass

import numpy as np

from sliceflow import metrics

__all__ = ["Judge", "NetworkJudge"]


@dataclass(frozen=True)
class Judge:
    """Scores samples against `test` rows: sliced distance, and FD in the training rows' leading axes.

    All rows are pixels as 2v/n_pixel_values - 1. `Judge.of` finds the axes once; the numbers are of
    `metrics.frechet_distance_pca`.
    """

    test: np.ndarray
    mean: np.ndarray
    axes: np.ndarray
    n_pixel_values: int
    n_directions: int

    @classmethod
    def of(
        cls,
        train: np.ndarray,
        test: np.ndarray,
        *,
        n_pixel_values: int = 256,
        most: int = 5000,
        n_components: int = 32,
        n_directions: int = 500,
    ) -> "Judge":
        """The judge of pictures (n, h, w[, c]); no more than `most` test pictures are used."""
        rows = _rows(train, n_pixel_values)
        covariance = np.cov(rows.T, dtype=np.float64)
        axes = np.linalg.eigh(covariance)[1][:, ::-1][:, :n_components].T
        return cls(
            _rows(test[:most], n_pixel_values), rows.mean(axis=0), axes, n_pixel_values, n_directions
        )

    def score(self, samples: np.ndarray) -> dict[str, float]:
        """Both distances of as many samples as there are test rows."""
        rows = _rows(samples[: len(self.test)], self.n_pixel_values)
        return {
            "sliced distance": metrics.sliced_wasserstein(
                rows, self.test, n_directions=self.n_directions
            ),
            "FD-PCA32": metrics.frechet_distance(
                (rows - self.mean) @ self.axes.T, (self.test - self.mean) @ self.axes.T
            ),
        }


@dataclass(frozen=True)
class NetworkJudge:
    """Scores samples by FD to the training pictures, in the features of a network that learnt these."""

    network: metrics.PictureClassifier
    features: np.ndarray

    @classmethod
    def of(
        cls,
        train: np.ndarray,
        labels: np.ndarray | None,
        *,
        n_pixel_values: int = 256,
        device: str = "auto",
    ) -> "NetworkJudge":
        """Train the network; without labels it learns which way up pictures are."""
        network = metrics.train_classifier(train, labels, n_pixel_values=n_pixel_values, device=device)
        return cls(network, network.features(train))

    def score(self, samples: np.ndarray) -> dict[str, float]:
        """The distance; it depends on how many samples there are."""
        return {"FD": metrics.frechet_distance(self.network.features(samples), self.features)}


def _rows(images: np.ndarray, n_pixel_values: int) -> np.ndarray:
    return images.reshape(len(images), -1).astype(np.float32) * np.float32(2 / n_pixel_values) - 1
