"""One judge of sampled pictures for all benchmarks: FD, classes, copies and FID."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from networks import Classifier, inception768, train_classifier
from scores import copies, distances_to, frechet, nn_ratio

from sliceflow.datasets import PictureSet, load

__all__ = ["Judge", "load_split", "slice_pictures"]

MAX_SCORED = 10_000  # pictures, as many as MNIST and CIFAR-10 have for tests
MAX_SEARCHED = 2_000  # pictures whose nearest training picture is searched
MAX_FID_PICTURES = 50_000  # as many as FID is usually measured with
MAX_FACES_HELD_OUT = 500  # of CelebA's pictures, which have no test set here


def slice_pictures(
    pictures: PictureSet, start: int | None = None, stop: int | None = None
) -> PictureSet:
    """Pictures `start` to `stop` of a set, with their labels."""
    labels = pictures.labels
    if labels is not None:
        labels = labels[start:stop]
    images = pictures.images[start:stop]
    return PictureSet(images, labels, pictures.n_pixel_values, pictures.name)


def load_split(
    name: str, root: str | os.PathLike[str] | None = None, n: int | None = None
) -> tuple[PictureSet, PictureSet]:
    """At most n pictures to fit, and pictures held out.

    Faces have no test set: their last tenth, or the last 500, are held out.
    """
    train = load(name, "train", root)
    if name != "celeba":
        return slice_pictures(train, stop=n), load(name, "test", root)
    n_faces = len(train.images)
    n_fitted = n_faces - min(MAX_FACES_HELD_OUT, n_faces // 10)
    held_out = slice_pictures(train, start=n_fitted)
    if n is not None:
        n_fitted = min(n, n_fitted)
    return slice_pictures(train, stop=n_fitted), held_out


class Judge:
    """Scores of samples of one set of pictures, and those of its test pictures.

    Parameters
    ----------
    train, test : fitted and held-out pictures
    device : "cpu" or "cuda"
    cache : a folder for the network that is trained
    fid_weights : FID's network as .npz, for FID-768; None leaves FID out
    mirror : also search the mirror images of the training pictures for copies
    epochs, width : of the network, see `train_classifier`
    """

    def __init__(
        self,
        train: PictureSet,
        test: PictureSet,
        device: str = "cpu",
        *,
        cache: str | os.PathLike[str] | None = None,
        fid_weights: str | os.PathLike[str] | None = None,
        mirror: bool = False,
        epochs: int | None = None,
        width: int | None = None,
    ) -> None:
        self.train = train
        self.test = test
        self.device = device
        self.mirror = mirror
        self.fid_weights = fid_weights
        self.network: Classifier = train_classifier(
            train, test, device=device, cache=cache, epochs=epochs, width=width
        )

    def __str__(self) -> str:
        accuracy = ""
        if self.network.accuracy is not None:
            accuracy = f", {self.network.accuracy:.1%} accurate"
        n = len(self.train.images)
        network = f"a network that learnt {n:,} training pictures{accuracy}"
        return f"FD in the features of {network}; it is not FID."

    def score(
        self, images: np.ndarray, labels: np.ndarray | None = None
    ) -> dict[str, Any]:
        """FD and its floor, the share recognized, NN ratio, copies, and FID-768.

        The share recognized needs labels, FID-768 the judge's `fid_weights`.
        """
        n = min(MAX_SCORED, len(images), len(self.test.images))
        features = self.network.features(images[:n])
        scores: dict[str, Any] = {
            "samples": len(images),
            "FD": frechet(features, self._train_features, self.device),
            "FD floor": self.floor(n),
        }
        if labels is not None:
            scores["recognized"] = self.network.score(
                images[:MAX_SCORED], labels[:MAX_SCORED]
            )
        distances = self._distances_to_train(images[:MAX_SEARCHED])
        scores["NN ratio"] = nn_ratio(distances, self._test_distances)
        scores["copies"] = copies(distances, self._test_distances)
        if self._inception is not None:
            features = self._inception(images[:MAX_FID_PICTURES])
            scores["FID-768"] = frechet(
                features, self._train_inception_features, self.device
            )
        return scores

    def floor(self, n: int) -> float:
        """FD of n test pictures."""
        features = self.network.features(self.test.images[:n])
        return frechet(features, self._train_features, self.device)

    def among(self, classes: np.ndarray) -> Judge:
        """The same network, with the pictures of these classes alone."""
        judge = copy.copy(self)
        for name in ("_train_features", "_test_distances", "_train_inception_features"):
            vars(judge).pop(name, None)  # computed from the pictures of all classes
        judge.train = _of_classes(self.train, classes)
        judge.test = _of_classes(self.test, classes)
        return judge

    def _distances_to_train(self, images: np.ndarray) -> np.ndarray:
        """Distances (n,) to the nearest training picture, or mirror image of one."""
        distances = distances_to(images, self.train.images, device=self.device)
        if not self.mirror:
            return distances
        mirrored = images[:, :, ::-1]
        of_mirrored = distances_to(mirrored, self.train.images, device=self.device)
        return np.minimum(distances, of_mirrored)

    @cached_property
    def _train_features(self) -> np.ndarray:
        return self.network.features(self.train.images)

    @cached_property
    def _test_distances(self) -> np.ndarray:
        return self._distances_to_train(self.test.images[:MAX_SEARCHED])

    @cached_property
    def _inception(self) -> Callable[[np.ndarray], np.ndarray] | None:
        if self.fid_weights is None:
            return None
        return inception768(self.fid_weights, self.device)

    @cached_property
    def _train_inception_features(self) -> np.ndarray:
        assert self._inception is not None
        return self._inception(self.train.images)


def _of_classes(pictures: PictureSet, classes: np.ndarray) -> PictureSet:
    """The labeled pictures of some classes."""
    assert pictures.labels is not None, f"{pictures.name} has no labels"
    chosen = np.isin(pictures.labels, classes)
    return PictureSet(
        pictures.images[chosen],
        pictures.labels[chosen],
        pictures.n_pixel_values,
        pictures.name,
    )
