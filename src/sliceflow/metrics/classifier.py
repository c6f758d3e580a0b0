"""A small network that classifies pictures: its features for FD, its classes for accuracy.

It is trained on the real pictures and can be cached on disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["PictureClassifier", "train_classifier"]

_VERSION = 2  # of the network, its training and its file, whose name depends on it
_BATCH = 256


@dataclass(frozen=True, eq=False)
class PictureClassifier:
    """A trained network, and its `accuracy` on test pictures.

    `about` says how it was trained and on what, and whether it was read from a file.
    """

    network: nn.Module
    classes: np.ndarray
    n_pixel_values: int
    accuracy: float | None
    about: dict[str, Any]

    def features(self, images: np.ndarray) -> np.ndarray:
        """(n, F) features: the input of the last layer."""
        return self._through(images, features=True)

    def predict(self, images: np.ndarray) -> np.ndarray:
        """(n,) classes."""
        return np.asarray(self.classes[self._through(images, features=False).argmax(axis=1)])

    def score(self, images: np.ndarray, labels: np.ndarray) -> float:
        """The share of pictures that are classified correctly."""
        return float(np.mean(self.predict(images) == labels))

    def _through(self, images: np.ndarray, features: bool) -> np.ndarray:
        import torch

        body, head = self.network.children()
        device, out = next(head.parameters()).device, []
        with torch.inference_mode():
            for first in range(0, len(images), 1024):
                part = _tensor(images[first : first + 1024]).to(device)
                x = body(_encoded(part, self.n_pixel_values))
                out.append((x if features else head(x)).float().cpu().numpy())
        return np.concatenate(out)


def train_classifier(
    images: np.ndarray,
    labels: np.ndarray | None,
    test_images: np.ndarray | None = None,
    test_labels: np.ndarray | None = None,
    *,
    n_pixel_values: int = 256,
    epochs: int | None = None,
    width: int | None = None,
    mirror: bool | None = None,
    device: str = "auto",
    seed: int = 0,
    cache: str | os.PathLike[str] | None = None,
) -> PictureClassifier:
    """A residual network of nine layers, trained on real pictures.

    Parameters
    ----------
    images, labels : pictures (n, h, w) or (n, h, w, c) and their classes (n,). Without labels the
        network learns by which of four rotations a picture was turned
    test_images, test_labels : not used for training; they give `accuracy`
    n_pixel_values : pixels are 0..n_pixel_values-1
    epochs : passes over the pictures; None is 10, 20 for colour, more for less than 1500 pictures
    width : of the first layer; there are 8 times as many features. None is 16, 64 for colour
    mirror : also train on mirror images; None does so for colour
    device : "cpu", "cuda", or "auto": a GPU if there is one
    seed : of the weights and of the order of the pictures
    cache : a folder, where the same call with the same pictures finds the trained network

    Examples
    --------
    >>> from sliceflow.datasets import load
    >>> train, test = load("digits"), load("digits", split="test")
    >>> given = train.images, train.labels, test.images, test.labels
    >>> judge = train_classifier(*given, n_pixel_values=17,
    ...     epochs=4, width=4, device="cpu")
    >>> judge.accuracy > 0.8, judge.features(test.images).shape
    (True, (500, 32))
    """
    import torch

    from sliceflow.devices import resolve_device

    images, given = np.asarray(images), (labels, test_images, test_labels)
    labels, test_images, test_labels = (None if a is None else np.asarray(a) for a in given)
    if images.ndim not in (3, 4) or len(images) == 0:
        raise ValueError(f"pictures have shape {images.shape}; pass (n, h, w) or (n, h, w, c)")
    if labels is not None and labels.shape != images.shape[:1]:
        raise ValueError(
            f"labels have shape {labels.shape} for {len(images)} pictures; pass one for each"
        )
    colour = images.ndim == 4 and images.shape[3] > 1
    epochs = epochs or max(20 if colour else 10, -(-15_000 // len(images)))
    width = width or (64 if colour else 16)
    mirror = colour if mirror is None else mirror
    settings: dict[str, Any] = dict(
        version=_VERSION,
        n_pixel_values=n_pixel_values,
        epochs=epochs,
        width=width,
        mirror=mirror,
        seed=seed,
    )
    path = None
    if cache is not None:
        key = _digest(images, labels, test_images, test_labels, settings)
        path = Path(cache).expanduser() / f"classifier-{key}.safetensors"
    if labels is None:
        images, labels = _turned(images)
        if test_images is not None:
            test_images, test_labels = _turned(test_images)
    classes, codes = np.unique(labels, return_inverse=True)
    where = resolve_device(device)
    channels = images.shape[3] if images.ndim == 4 else 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _network(channels, min(images.shape[1:3]), width, len(classes)).to(where)
    if path is not None and path.is_file():
        return _read(path, network, classes, n_pixel_values)
    began = time.perf_counter()
    _train(network, images, codes, n_pixel_values, epochs, mirror, seed)
    network.eval()
    about = {
        **settings,
        "trained on": len(images),
        "classes": "rotations" if classes.dtype.kind == "U" and classes[0] == "0°" else "labels",
        "seconds": time.perf_counter() - began,
        "device": str(where),
    }
    made = PictureClassifier(network, classes, n_pixel_values, None, about)
    if test_images is not None and test_labels is not None:
        accuracy = made.score(test_images, test_labels)
        made = PictureClassifier(network, classes, n_pixel_values, accuracy, about)
    if path is not None:
        from sliceflow.models.file import write

        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, {"accuracy": made.accuracy, "about": made.about}, network.state_dict())
    return made


def _network(channels: int, side: int, width: int, n_classes: int) -> nn.Module:
    """Body and head; up to three poolings halve the picture, while at least two pixels are left."""
    from torch import nn

    def layer(i: int, o: int, pool: bool = False) -> list[nn.Module]:
        out: list[nn.Module] = [nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU()]
        return [*out, nn.MaxPool2d(2)] if pool else out

    class Residual(nn.Module):
        def __init__(self, c: int) -> None:
            super().__init__()
            self.inner = nn.Sequential(*layer(c, c), *layer(c, c))

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = x + self.inner(x)
            return made

    w, pools = width, [side >= 4, side >= 8, side >= 16]
    body = nn.Sequential(
        *layer(channels, w),
        *layer(w, 2 * w, pools[0]),
        Residual(2 * w),
        *layer(2 * w, 4 * w, pools[1]),
        *layer(4 * w, 8 * w, pools[2]),
        Residual(8 * w),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return nn.Sequential(body, nn.Linear(8 * w, n_classes))


def _train(
    network: nn.Module,
    images: np.ndarray,
    codes: np.ndarray,
    n_pixel_values: int,
    epochs: int,
    mirror: bool,
    seed: int,
) -> None:
    """Adam with one cycle of the step size; pictures are shifted, and mirrored if `mirror`."""
    import torch

    device = next(network.parameters()).device
    order = np.random.default_rng(seed)
    batch = min(_BATCH, max(32, len(images) // 20))
    per_epoch = -(-len(images) // batch)
    optimiser = torch.optim.AdamW(network.parameters(), weight_decay=0.01)
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, 4e-3, total_steps=epochs * per_epoch, pct_start=0.2
    )
    loss = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    half = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    labels, pictures = torch.from_numpy(codes).to(device), _tensor(images).to(device)
    network.train()
    for _ in range(epochs):
        for chosen in np.array_split(order.permutation(len(images)), per_epoch):
            numbers = torch.from_numpy(chosen).to(device)
            x = _encoded(_moved(pictures[numbers], mirror, order), n_pixel_values)
            optimiser.zero_grad(set_to_none=True)
            with half:
                value = loss(network(x), labels[numbers])
            value.backward()
            optimiser.step()
            cycle.step()


def _moved(images: Tensor, mirror: bool, order: np.random.Generator) -> Tensor:
    """Each picture shifted by up to an eighth of its side, with repeated borders."""
    import torch

    n, h, w = images.shape[:3]
    most = max(1, min(h, w) // 8)
    rows, columns = (np.arange(side)[None] + order.integers(-most, most + 1, (n, 1)) for side in (h, w))
    rows, columns = rows.clip(0, h - 1), columns.clip(0, w - 1)
    if mirror:
        columns = np.where(order.random((n, 1)) < 0.5, columns[:, ::-1], columns)
    parts = np.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]
    return images[tuple(torch.from_numpy(part).to(images.device) for part in parts)]


def _tensor(images: np.ndarray) -> Tensor:
    """The images as a tensor; bytes stay bytes, which copy to a GPU quickly."""
    import torch

    images = np.asarray(images)
    kind = np.uint8 if images.dtype == np.uint8 else np.float32
    return torch.from_numpy(np.require(images, kind, ["C", "W"]))  # torch warns of others


def _encoded(images: Tensor, n_pixel_values: int) -> Tensor:
    """(n, c, h, w) numbers in [-1, 1]."""
    x = images.float().mul(2 / (n_pixel_values - 1)).sub_(1)
    return x[:, None] if x.ndim == 3 else x.permute(0, 3, 1, 2)


def _turned(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Square pictures turned by each of four rotations, and the names of these."""
    if images.shape[1] != images.shape[2]:
        raise ValueError(
            f"pictures of {images.shape[1]}×{images.shape[2]} cannot be turned; pass labels, or squares"
        )
    turned = [np.rot90(images, k, (1, 2)) for k in range(4)]
    return np.concatenate(turned), np.repeat(["0°", "90°", "180°", "270°"], len(images))


def _digest(*parts: Any) -> str:
    """A hash of arrays and settings, for the name of the file."""
    out = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            out.update(f"{part.dtype}{part.shape}".encode())
            part = np.ascontiguousarray(part)
            out.update(part.astype("U").tobytes() if part.dtype.kind == "O" else part.tobytes())
        else:
            out.update(json.dumps(part).encode())
    return out.hexdigest()[:16]


def _read(
    path: Path, network: nn.Module, classes: np.ndarray, n_pixel_values: int
) -> PictureClassifier:
    from sliceflow.models.file import read

    try:
        kept, tensors = read(path)
        network.load_state_dict(tensors)
        accuracy, about = kept["accuracy"], kept["about"] | {"read from": str(path)}
    except (ValueError, RuntimeError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path} is not a classifier, or damaged ({error}); remove the file"
        ) from error
    network.eval()
    return PictureClassifier(network, classes, n_pixel_values, accuracy, about)
