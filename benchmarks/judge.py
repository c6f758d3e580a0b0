"""One judge of sampled pictures for all benchmarks: FD, what is recognised, copies, and
FID if asked.
"""

from __future__ import annotations

import copy
import os
from functools import cached_property
from typing import Any

import numpy as np
from networks import Classifier, inception768, train_classifier
from scores import copies, distances_to, frechet, nn_ratio

from sliceflow.datasets import Pictures

__all__ = ["Judge", "first", "load_split"]

MOST = 10_000  # pictures that are scored
NEAREST = 2_000  # pictures whose nearest training picture is looked for


def first(pictures: Pictures, n: int | None, start: int = 0) -> Pictures:
    """Some of the pictures."""
    part = slice(start, None if n is None else start + n)
    labels = None if pictures.labels is None else pictures.labels[part]
    return Pictures(
        pictures.images[part], labels, pictures.n_pixel_values, pictures.name
    )


def load_split(
    name: str, root: Any = None, n: int | None = None
) -> tuple[Pictures, Pictures]:
    """At most n pictures to fit, and pictures held out; of faces the last tenth, or
    500, are.
    """
    from sliceflow.datasets import load

    train = load(name, "train", root)
    if name != "celeba":
        return first(train, n), load(name, "test", root)
    fitted = len(train.images) - min(500, len(train.images) // 10)
    return first(train, min(n or fitted, fitted)), first(train, None, fitted)


class Judge:
    """Scores of samples of one set of pictures, and those of its test pictures.

    Parameters
    ----------
    train, test : fitted and held-out pictures
    device : "cpu" or "cuda"
    cache : a folder for the network that is trained
    fid_weights : FID's network as .npz, for FID-768; None leaves FID out
    mirror : also take the mirror images of the training pictures for neighbours
    small : `epochs` and `width` of the network
    """

    def __init__(
        self,
        train: Pictures,
        test: Pictures,
        device: str = "cpu",
        *,
        cache: str | os.PathLike[str] | None = None,
        fid_weights: str | os.PathLike[str] | None = None,
        mirror: bool = False,
        **small: int | None,
    ) -> None:
        self.train = train
        self.test = test
        self.device = device
        self.mirror = mirror
        self.fid_weights = fid_weights
        self.network: Classifier = train_classifier(
            train, test, device=device, cache=cache, **small
        )

    def __str__(self) -> str:
        accuracy = (
            ""
            if self.network.accuracy is None
            else f", {self.network.accuracy:.1%} accurate"
        )
        return (
            f"FD in the features of a network that learnt {len(self.train.images):,} training "
            f"pictures{accuracy}; it is not FID."
        )

    def score(
        self, images: np.ndarray, labels: np.ndarray | None = None
    ) -> dict[str, Any]:
        """FD and its floor, the share recognised, NN ratio and copies, FID-768 if there
        are weights.
        """
        n = min(MOST, len(images), len(self.test.images))
        out: dict[str, Any] = {"samples": len(images)}
        out["FD"] = frechet(
            self.network.features(images[:n]), self._features, self.device
        )
        out["FD floor"] = self.floor(n)
        if labels is not None:
            out["recognised"] = self.network.score(images[:MOST], labels[:MOST])
        near = self._distances(images[:NEAREST])
        out |= {
            "NN ratio": nn_ratio(near, self._usual),
            "copies": copies(near, self._usual),
        }
        if self._inception is not None:
            out["FID-768"] = frechet(
                self._inception(images[:50_000]), self._real, self.device
            )
        return out

    def among(self, classes: np.ndarray) -> Judge:
        """The same network, with the pictures of these classes alone."""
        out = copy.copy(self)
        for cached in ("_features", "_usual", "_real"):
            vars(out).pop(cached, None)
        out.train = _of_classes(self.train, classes)
        out.test = _of_classes(self.test, classes)
        return out

    def floor(self, n: int) -> float:
        """FD of n test pictures."""
        return frechet(
            self.network.features(self.test.images[:n]), self._features, self.device
        )

    def _distances(self, images: np.ndarray) -> np.ndarray:
        near = distances_to(images, self.train.images, device=self.device)
        if self.mirror:
            turned = distances_to(
                images[:, :, ::-1], self.train.images, device=self.device
            )
            near = np.minimum(near, turned)
        return near

    @cached_property
    def _features(self) -> np.ndarray:
        return self.network.features(self.train.images)

    @cached_property
    def _usual(self) -> np.ndarray:
        return self._distances(self.test.images[:NEAREST])

    @cached_property
    def _inception(self) -> Any:
        return (
            None
            if self.fid_weights is None
            else inception768(self.fid_weights, self.device)
        )

    @cached_property
    def _real(self) -> np.ndarray:
        return np.asarray(self._inception(self.train.images))


def _of_classes(pictures: Pictures, classes: np.ndarray) -> Pictures:
    """The labelled pictures of some classes."""
    assert pictures.labels is not None, f"{pictures.name} has no labels"
    chosen = np.isin(pictures.labels, classes)
    return Pictures(
        pictures.images[chosen],
        pictures.labels[chosen],
        pictures.n_pixel_values,
        pictures.name,
    )
