"""All metrics at once, against one training and one test set, with their floors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from sliceflow.metrics.coverage import density_coverage, precision_recall
from sliceflow.metrics.distances import energy_distance, sliced_wasserstein
from sliceflow.metrics.floors import subsample
from sliceflow.metrics.frechet import frechet_distance, frechet_distance_pca
from sliceflow.metrics.neighbours import (
    IDEAL_COPIES,
    nearest_distances,
    ratio_of_medians,
    share_of_copies,
    share_of_strays,
)
from sliceflow.metrics.pairs import as_rows
from sliceflow.metrics.two_sample import two_sample_accuracy

__all__ = ["MEANING", "Battery"]

# The ideal value of each metric, and what it says.
MEANING = {
    "sliced distance": ("floor", "sliced 2-Wasserstein distance to held-out rows"),
    "energy distance": ("floor", "energy distance to held-out rows"),
    "FD": ("floor", "Fréchet distance to held-out rows, in the features"),
    "FD-PCA32": ("floor", "Fréchet distance to held-out rows, 32 components"),
    "precision": ("floor", "samples among held-out rows"),
    "recall": ("floor", "held-out rows among samples"),
    "density": ("1", "held-out rows around a sample, 1 as in the data"),
    "coverage": ("floor", "held-out rows that have a sample near"),
    "two-sample accuracy": ("0.5", "how often a classifier tells samples from held-out rows"),
    "NN ratio": ("1", "distance to the nearest training row, over a held-out row's; near 0 is copying"),
    "copies": ("0.01", "samples nearer to a training row than the nearest 1 % of held-out rows are"),
    "strays": ("floor", "samples farther from all training rows than any held-out row is"),
    "accuracy": ("floor", "samples that a classifier of real rows recognises as their class"),
}


@dataclass(frozen=True)
class Battery:
    """All metrics of samples against `test` rows, and the scores of `train` rows as floors.

    Distances and neighbours are those of the rows. FD, precision, recall, density and coverage are
    those of their features, if `features` is given. Otherwise precision and so on are of the rows, and
    FD is FD-PCA32, in the 32 leading principal components of the training rows. The floor of NN ratio
    is half of the test rows against the other half. The floors of copies and strays are what new real
    rows score on average, given n test rows: max(0.01, 1/(n + 1)) and 1/(n + 1). That of `accuracy` is
    the classifier's on the test rows. NN ratio, copies and strays are left out if most test rows equal
    a training row.

    Parameters
    ----------
    train, test : (n, d) rows or pictures, fitted and held out
    features : computes (n, F) features of rows, such as `PictureClassifier.features`
    predict : computes (n,) classes of rows, such as `PictureClassifier.predict`; adds `accuracy`
    test_labels : classes of the test rows, for the floor of `accuracy`
    n_trees : of the forest of the two-sample test, which takes the longest; 0 leaves it out
    most : the most rows of each kind, except training rows in the search for neighbours
    neighbours_of : the most rows whose neighbours are searched
    mirror : count mirror images of the training pictures as training rows in NN ratio, copies, strays
    device : "cpu", "cuda", or "auto": a GPU if there is one
    seed : of the rows left out, directions and forests

    Examples
    --------
    >>> train, test, samples = np.random.default_rng(0).normal(size=(3, 300, 4))
    >>> battery = Battery(train, test, n_trees=0, device="cpu")
    >>> score, floor = battery.score(samples), battery.floors
    >>> abs(score["NN ratio"] - 1) < 0.2 and score["sliced distance"] < 2 * floor["sliced distance"]
    True
    """

    train: np.ndarray
    test: np.ndarray
    features: Callable[[np.ndarray], np.ndarray] | None = None
    predict: Callable[[np.ndarray], np.ndarray] | None = None
    test_labels: np.ndarray | None = None
    n_trees: int = 200
    most: int = 10_000
    neighbours_of: int = 10_000
    mirror: bool = False
    device: str = "auto"
    seed: int = 0

    def score(self, samples: np.ndarray, labels: np.ndarray | None = None) -> dict[str, float]:
        """All metrics of the samples; `accuracy` needs labels and a classifier."""
        out = self._against_test(subsample(samples, self.n, self.seed))
        if self._test_distance > 0:
            made, real = self._distances_to_train(samples), self._test_distances
            out["NN ratio"] = ratio_of_medians(made, real)
            out["copies"] = share_of_copies(made, real)
            out["strays"] = share_of_strays(made, real)
        if self.predict is not None and labels is not None:
            out["accuracy"] = float(np.mean(self.predict(samples) == labels))
        return out

    @property
    def n(self) -> int:
        """The most samples that are used: as many as there are training rows for the floors."""
        return min(self.most, len(self.train))

    @cached_property
    def floors(self) -> dict[str, float]:
        """The scores of real rows."""
        out = self._against_test(subsample(self.train, self.n, self.seed + 1))
        if self._test_distance > 0:
            distances = self._test_distances
            out["NN ratio"] = float(np.median(distances[::2]) / max(np.median(distances[1::2]), 1e-300))
            out["strays"] = 1 / (len(distances) + 1)
            out["copies"] = max(IDEAL_COPIES, out["strays"])
        if self.predict is not None and self.test_labels is not None:
            labels = subsample(self.test_labels, self.most, self.seed)
            out["accuracy"] = float(np.mean(self.predict(self._unseen) == labels))
        return out

    def table(self, **kinds: Mapping[str, float]) -> str:
        """Scores of each kind of samples in columns, then the floor and the ideal value."""
        rows = [("", *kinds, "floor", "ideal")]
        for name, (ideal, _) in MEANING.items():
            numbers = [scores.get(name) for scores in (*kinds.values(), self.floors)]
            if any(number is not None for number in numbers):
                rows.append((name, *("–" if v is None else f"{v:.3g}" for v in numbers), ideal))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
        )

    def as_dict(self, **kinds: Mapping[str, float]) -> dict[str, Any]:
        """The same for JSON."""
        return {
            "scores": {kind: dict(scores) for kind, scores in kinds.items()},
            "floors": self.floors,
            "training rows": len(self.train),
            "held-out rows": len(self._unseen),
            "samples, at most": self.n,
        }

    def _against_test(self, rows: np.ndarray) -> dict[str, float]:
        flat, unseen = as_rows(rows, "samples"), as_rows(self._unseen, "test")
        out = {
            "sliced distance": sliced_wasserstein(flat, unseen, seed=self.seed),
            "energy distance": energy_distance(flat, unseen, device=self.device),
        }
        if self.features is None:
            seen = as_rows(subsample(self.train, self.most, self.seed), "train")
            out["FD-PCA32"] = frechet_distance_pca(flat, unseen, seen)
            made = flat
        else:
            made = self.features(rows)
            out["FD"] = frechet_distance(made, self._unseen_features)
        balls = partial(self._balls, made, self._unseen_features)
        out |= balls(precision_recall, 3) | balls(density_coverage, 5)
        if self.n_trees:
            out["two-sample accuracy"] = two_sample_accuracy(
                flat, unseen, n_trees=self.n_trees, seed=self.seed
            )
        return out

    def _balls(
        self, a: np.ndarray, b: np.ndarray, metric: Callable[..., Any], k: int
    ) -> dict[str, float]:
        if min(len(a), len(b)) <= k:  # no k-th neighbour
            return {}
        return dict(metric(a, b, k=k, device=self.device)._asdict())

    @cached_property
    def _unseen(self) -> np.ndarray:
        return subsample(self.test, self.most, self.seed)

    @cached_property
    def _unseen_features(self) -> np.ndarray:
        return as_rows(self._unseen) if self.features is None else self.features(self._unseen)

    def _distances_to_train(self, rows: np.ndarray) -> np.ndarray:
        some = subsample(rows, self.neighbours_of, self.seed)
        return nearest_distances(some, self.train, mirror=self.mirror, device=self.device)

    @cached_property
    def _test_distances(self) -> np.ndarray:
        return self._distances_to_train(self.test)

    @property
    def _test_distance(self) -> float:
        """Median distance of a test row to the nearest train row; 0 if most are in both."""
        return float(np.median(self._test_distances))
