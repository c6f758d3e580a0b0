"""Networks that judge pictures: a classifier that learns the training set, and FID's
Inception.

The classifier has nine layers. Its features give FD, its classes what is recognised.
Inception ends at its layer of 768 features, and reads weights whose batch norms are
folded: an .npz file with NAME.w and NAME.b of every convolution of the network of
2015-12-05.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sliceflow.datasets import Pictures

__all__ = ["Classifier", "inception768", "train_classifier"]

_BATCH = 256


@dataclass(frozen=True, eq=False)
class Classifier:
    """A trained network and its `accuracy` on test pictures, None without any."""

    network: nn.Module
    classes: np.ndarray
    n_pixel_values: int
    accuracy: float | None = None

    def features(self, images: np.ndarray) -> np.ndarray:
        """(n, F) features: the input of the last layer."""
        return self._through(images, last=False)

    def predict(self, images: np.ndarray) -> np.ndarray:
        """(n,) classes."""
        return np.asarray(self.classes[self._through(images, last=True).argmax(1)])

    def score(self, images: np.ndarray, labels: np.ndarray) -> float:
        """The share of pictures that are classified as their labels say."""
        return float(np.mean(self.predict(images) == labels))

    def _through(self, images: np.ndarray, last: bool) -> np.ndarray:
        body, head = self.network.children()
        device = next(head.parameters()).device
        out = []
        with torch.inference_mode():
            for part in _tensor(images).split(1024):
                x = body(_scaled(part.to(device), self.n_pixel_values))
                out.append((head(x) if last else x).float().cpu().numpy())
        return np.concatenate(out)


def train_classifier(
    train: Pictures,
    test: Pictures,
    *,
    epochs: int | None = None,
    width: int | None = None,
    device: str = "cpu",
    seed: int = 0,
    cache: str | os.PathLike[str] | None = None,
) -> Classifier:
    """A residual network of nine layers, trained on real pictures.

    Parameters
    ----------
    train : without labels, the network learns by which of four rotations a picture was
        turned
    test : not used for training; they give `accuracy`
    epochs : passes over the pictures; None is 10, 20 for colour, more for less than
        1,500 pictures
    width : of the first layer; there are 8 times as many features. None is 16, 64 for
        colour
    cache : a folder, where the same call with the same pictures finds the trained
        network
    """
    images = train.images
    labels = train.labels
    n_pixel_values = train.n_pixel_values
    colour = images.ndim == 4 and images.shape[3] > 1
    epochs = epochs or max(20 if colour else 10, -(-15_000 // len(images)))
    width = width or (64 if colour else 16)
    path = None
    if cache is not None:
        key = _digest(images, labels, n_pixel_values, epochs, width, seed)
        path = Path(cache).expanduser() / f"classifier-{key}.safetensors"
    if labels is None:
        images, labels = _turned(images)
    shown = (
        (test.images, test.labels) if train.labels is not None else _turned(test.images)
    )
    classes, codes = np.unique(labels, return_inverse=True)
    channels = images.shape[3] if images.ndim == 4 else 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _network(channels, min(images.shape[1:3]), width, len(classes)).to(
            device
        )
    if path is not None and path.is_file():
        network.load_state_dict(load_file(path))
    else:
        _train(network, images, codes, n_pixel_values, epochs, colour, seed)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(
                {k: v.contiguous() for k, v in network.state_dict().items()}, path
            )
    trained = Classifier(network.eval(), classes, n_pixel_values)
    return replace(
        trained, accuracy=None if shown[1] is None else trained.score(*shown)
    )


class _Residual(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(*_layer(c, c), *_layer(c, c))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)  # type: ignore[no-any-return]


def _layer(i: int, o: int, pool: bool = False) -> list[nn.Module]:
    out: list[nn.Module] = [
        nn.Conv2d(i, o, 3, padding=1, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU(),
    ]
    return [*out, nn.MaxPool2d(2)] if pool else out


def _network(channels: int, side: int, width: int, n_classes: int) -> nn.Module:
    """Body and head; up to three poolings halve the picture, while at least two pixels
    are left.
    """
    w = width
    pools = [side >= 4, side >= 8, side >= 16]
    body = nn.Sequential(
        *_layer(channels, w),
        *_layer(w, 2 * w, pools[0]),
        _Residual(2 * w),
        *_layer(2 * w, 4 * w, pools[1]),
        *_layer(4 * w, 8 * w, pools[2]),
        _Residual(8 * w),
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
    """AdamW with one cycle of the step size; pictures are shifted, and mirrored if
    `mirror`.
    """
    device = next(network.parameters()).device
    rng = np.random.default_rng(seed)
    per_epoch = -(-len(images) // min(_BATCH, max(32, len(images) // 20)))
    optimiser = torch.optim.AdamW(network.parameters(), weight_decay=0.01)
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, 4e-3, total_steps=epochs * per_epoch, pct_start=0.2
    )
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    labels = torch.from_numpy(codes).to(device)
    pictures = _tensor(images).to(device)
    network.train()
    for _ in range(epochs):
        for chosen in np.array_split(rng.permutation(len(images)), per_epoch):
            rows = torch.from_numpy(chosen).to(device)
            x = _scaled(_shifted(pictures[rows], mirror, rng), n_pixel_values)
            optimiser.zero_grad(set_to_none=True)
            with torch.autocast(
                device.type, torch.bfloat16, enabled=device.type == "cuda"
            ):
                value = loss(network(x), labels[rows])
            value.backward()
            optimiser.step()
            cycle.step()


def _shifted(images: Tensor, mirror: bool, rng: np.random.Generator) -> Tensor:
    """Each picture shifted by up to an eighth of its side, with repeated borders."""
    n, h, w = images.shape[:3]
    most = max(1, min(h, w) // 8)
    rows = np.arange(h)[None] + rng.integers(-most, most + 1, (n, 1))
    columns = np.arange(w)[None] + rng.integers(-most, most + 1, (n, 1))
    rows = rows.clip(0, h - 1)
    columns = columns.clip(0, w - 1)
    if mirror:
        columns = np.where(rng.random((n, 1)) < 0.5, columns[:, ::-1], columns)
    parts = np.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]
    return images[tuple(torch.from_numpy(part).to(images.device) for part in parts)]


def _tensor(images: np.ndarray) -> Tensor:
    """Bytes stay bytes, which copy to a GPU quickly."""
    kind = np.uint8 if images.dtype == np.uint8 else np.float32
    return torch.from_numpy(
        np.require(images, kind, ["C", "W"])
    )  # torch warns of others


def _scaled(images: Tensor, n_pixel_values: int) -> Tensor:
    """(n, c, h, w) numbers in [-1, 1]."""
    x = images.float().mul(2 / (n_pixel_values - 1)).sub_(1)
    return x[:, None] if x.ndim == 3 else x.permute(0, 3, 1, 2)


def _turned(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Square pictures turned by each of four rotations, and these."""
    turned = [np.rot90(images, k, (1, 2)) for k in range(4)]
    return np.concatenate(turned), np.repeat(np.arange(4), len(images))


def _digest(images: np.ndarray, labels: np.ndarray | None, *settings: int) -> str:
    """For the name of a file."""
    out = hashlib.sha256(
        json.dumps([images.shape, str(images.dtype), *settings]).encode()
    )
    for part in (images, labels):
        if part is not None:
            out.update(np.ascontiguousarray(part).tobytes())
    return out.hexdigest()[:16]


# --- Inception ------------------------------------------------------------------------


def inception768(
    weights: str | os.PathLike[str], device: str = "cpu", batch: int = 500
) -> Callable[[np.ndarray], np.ndarray]:
    """A function from uint8 pictures (n, h, w[, 3]) to their (n, 768) features."""
    with np.load(weights) as file:
        layers = {k: torch.from_numpy(file[k]).to(device) for k in file.files}

    @torch.inference_mode()
    def features(images: np.ndarray) -> np.ndarray:
        out = []
        for part in _tensor(images).split(batch):
            x = part.to(device).float()
            x = (
                x[:, None].expand(-1, 3, -1, -1)
                if x.ndim == 3
                else x.permute(0, 3, 1, 2)
            )
            x = F.interpolate(x, (299, 299), mode="bilinear", align_corners=False)
            x = (x / 127.5 - 1).contiguous(memory_format=torch.channels_last)
            out.append(_inception(x, layers).cpu().numpy())
        return np.concatenate(out)

    return features


def _inception(x: Tensor, layers: dict[str, Tensor]) -> Tensor:
    """The mean of the last layer with 768 channels."""

    def conv(x: Tensor, name: str, stride: int = 1, pad: bool = True) -> Tensor:
        w = layers[name + ".w"]
        padding = (w.shape[2] // 2, w.shape[3] // 2) if pad else (0, 0)
        return F.relu(F.conv2d(x, w, layers[name + ".b"], stride, padding))

    def chain(x: Tensor, prefix: str, n: int) -> Tensor:
        for i in range(n):
            x = conv(x, prefix + (f"_{i}" if i else ""))
        return x

    pool = partial(F.max_pool2d, kernel_size=3, stride=2)

    def averaged(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)

    x = pool(conv(conv(conv(x, "conv", 2, False), "conv_1", 1, False), "conv_2"))
    x = pool(conv(conv(x, "conv_3", 1, False), "conv_4", 1, False))
    for m in ("mixed", "mixed_1", "mixed_2"):
        parts = [
            conv(x, f"{m}_conv"),
            chain(x, f"{m}_tower_conv", 2),
            chain(x, f"{m}_tower_1_conv", 3),
        ]
        x = torch.cat([*parts, conv(averaged(x), f"{m}_tower_2_conv")], 1)
    tower = conv(chain(x, "mixed_3_tower_conv", 2), "mixed_3_tower_conv_2", 2, False)
    x = torch.cat([conv(x, "mixed_3_conv", 2, False), tower, pool(x)], 1)
    for m in ("mixed_4", "mixed_5", "mixed_6", "mixed_7"):
        parts = [
            conv(x, f"{m}_conv"),
            chain(x, f"{m}_tower_conv", 3),
            chain(x, f"{m}_tower_1_conv", 5),
        ]
        x = torch.cat([*parts, conv(averaged(x), f"{m}_tower_2_conv")], 1)
    return x.mean((2, 3))
