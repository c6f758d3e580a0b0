"""Networks that judge pictures: a classifier of the training set, FID's Inception.

The classifier has nine layers. Its features give FD, its classes what is recognized.
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

from sliceflow.datasets import PictureSet

__all__ = ["Classifier", "inception768", "train_classifier"]

# Usual settings for small residual networks; none of them was tuned.
MAX_BATCH = 256
MIN_BATCH = 32
MIN_BATCHES_PER_EPOCH = 20  # small sets have smaller batches
PEAK_LEARNING_RATE = 4e-3
WEIGHT_DECAY = 0.01
LABEL_SMOOTHING = 0.1
WARMUP_SHARE = 0.2  # of the steps
# Small sets are seen more often, until this many pictures have been seen.
MIN_PICTURES_SEEN = 15_000
PREDICT_BATCH = 1024  # fits into the memory of any GPU

LayerWeights = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Classifier:
    """A trained network and its `accuracy` on test pictures, None without any."""

    network: nn.Module  # its children are a body, which gives features, and a head
    classes: np.ndarray
    n_pixel_values: int
    accuracy: float | None = None

    def features(self, images: np.ndarray) -> np.ndarray:
        """(n, F) features: the input of the last layer."""
        body, _ = self.network.children()
        return self._apply(body, images)

    def predict(self, images: np.ndarray) -> np.ndarray:
        """(n,) classes."""
        logits = self._apply(self.network, images)
        return np.asarray(self.classes[logits.argmax(1)])

    def score(self, images: np.ndarray, labels: np.ndarray) -> float:
        """The share of pictures that are classified as their labels say."""
        return float(np.mean(self.predict(images) == labels))

    def _apply(self, network: nn.Module, images: np.ndarray) -> np.ndarray:
        """What a network makes of pictures, batch by batch."""
        device = next(self.network.parameters()).device
        outputs = []
        with torch.inference_mode():
            for batch in _tensor(images).split(PREDICT_BATCH):
                x = _scaled(batch.to(device), self.n_pixel_values)
                outputs.append(network(x).float().cpu().numpy())
        return np.concatenate(outputs)


def train_classifier(
    train: PictureSet,
    test: PictureSet,
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
    epochs : passes over the pictures; None is 10, 20 for color, more for less than
        1,500 pictures
    width : of the first layer; there are 8 times as many features. None is 16, 64 for
        color
    cache : a folder, where the same call with the same pictures finds the trained
        network
    """
    images = train.images
    labels = train.labels
    test_images = test.images
    test_labels = test.labels
    color = images.ndim == 4 and images.shape[3] > 1
    if epochs is None:
        epochs = _default_epochs(len(images), color)
    if width is None:
        width = _default_width(color)
    path = None
    if cache is not None:
        settings = (train.n_pixel_values, epochs, width, seed)
        digest = _digest(images, labels, *settings)
        path = Path(cache).expanduser() / f"classifier-{digest}.safetensors"
    if labels is None:
        images, labels = _rotations(images)
        test_images, test_labels = _rotations(test_images)
    classes, codes = np.unique(labels, return_inverse=True)
    network = _new_network(images, len(classes), width, seed).to(device)
    if path is not None and path.is_file():
        network.load_state_dict(load_file(path))
    else:
        _train(
            network,
            images,
            codes,
            n_pixel_values=train.n_pixel_values,
            epochs=epochs,
            mirror=color,
            seed=seed,
        )
        if path is not None:
            _save_weights(network, path)
    classifier = Classifier(network.eval(), classes, train.n_pixel_values)
    if test_labels is None:
        return classifier
    accuracy = classifier.score(test_images, test_labels)
    return replace(classifier, accuracy=accuracy)


def _default_epochs(n_pictures: int, color: bool) -> int:
    """10 passes, 20 for color, more of few pictures."""
    usual = 10
    if color:
        usual = 20
    return max(usual, -(-MIN_PICTURES_SEEN // n_pictures))


def _default_width(color: bool) -> int:
    """16 channels in the first layer, 64 for color."""
    if color:
        return 64
    return 16


def _digest(images: np.ndarray, labels: np.ndarray | None, *settings: int) -> str:
    """A hash of pictures, labels and settings, for the name of a file."""
    header = json.dumps([images.shape, str(images.dtype), *settings])
    state = hashlib.sha256(header.encode())
    state.update(np.ascontiguousarray(images).tobytes())
    if labels is not None:
        state.update(np.ascontiguousarray(labels).tobytes())
    return state.hexdigest()[:16]


def _save_weights(network: nn.Module, path: Path) -> None:
    """Write a network's weights as safetensors."""
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = {}
    for name, tensor in network.state_dict().items():
        weights[name] = tensor.contiguous()
    save_file(weights, path)


# --- the classifier -------------------------------------------------------------------


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            *_layer(channels, channels), *_layer(channels, channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)  # type: ignore[no-any-return]


def _layer(n_inputs: int, n_outputs: int, pool: bool = False) -> list[nn.Module]:
    """A 3 × 3 convolution with its norm, and pooling that halves the picture."""
    layers: list[nn.Module] = [
        nn.Conv2d(n_inputs, n_outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(n_outputs),
        nn.ReLU(),
    ]
    if pool:
        layers.append(nn.MaxPool2d(2))
    return layers


def _new_network(
    images: np.ndarray, n_classes: int, width: int, seed: int
) -> nn.Sequential:
    """A body and a head for pictures of this shape, not trained yet.

    Up to three poolings halve the picture, while at least two pixels are left.
    """
    channels = 1
    if images.ndim == 4:
        channels = images.shape[3]
    side = min(images.shape[1:3])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body = nn.Sequential(
            *_layer(channels, width),
            *_layer(width, 2 * width, pool=side >= 4),
            _Residual(2 * width),
            *_layer(2 * width, 4 * width, pool=side >= 8),
            *_layer(4 * width, 8 * width, pool=side >= 16),
            _Residual(8 * width),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        return nn.Sequential(body, nn.Linear(8 * width, n_classes))


def _train(
    network: nn.Module,
    images: np.ndarray,
    codes: np.ndarray,
    *,
    n_pixel_values: int,
    epochs: int,
    mirror: bool,
    seed: int,
) -> None:
    """AdamW with one cycle of the step size, on pictures that are shifted.

    They are also mirrored at random, if `mirror`.
    """
    device = next(network.parameters()).device
    rng = np.random.default_rng(seed)
    batch_size = max(MIN_BATCH, len(images) // MIN_BATCHES_PER_EPOCH)
    batch_size = min(MAX_BATCH, batch_size)
    n_batches = -(-len(images) // batch_size)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=WEIGHT_DECAY)
    learning_rate = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        PEAK_LEARNING_RATE,
        total_steps=epochs * n_batches,
        pct_start=WARMUP_SHARE,
    )
    cross_entropy = nn.CrossEntropyLoss(label_smoothing=LABEL_SMOOTHING)
    labels = torch.from_numpy(codes).to(device)
    pictures = _tensor(images).to(device)
    network.train()
    for _ in range(epochs):
        for batch in np.array_split(rng.permutation(len(images)), n_batches):
            rows = torch.from_numpy(batch).to(device)
            x = _scaled(_shifted(pictures[rows], mirror, rng), n_pixel_values)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(
                device.type, torch.bfloat16, enabled=device.type == "cuda"
            ):
                loss = cross_entropy(network(x), labels[rows])
            loss.backward()
            optimizer.step()
            learning_rate.step()


def _shifted(images: Tensor, mirror: bool, rng: np.random.Generator) -> Tensor:
    """Each picture shifted by up to an eighth of its side, with repeated borders."""
    n, h, w = images.shape[:3]
    max_shift = max(1, min(h, w) // 8)
    rows = np.arange(h)[None] + rng.integers(-max_shift, max_shift + 1, (n, 1))
    columns = np.arange(w)[None] + rng.integers(-max_shift, max_shift + 1, (n, 1))
    rows = rows.clip(0, h - 1)
    columns = columns.clip(0, w - 1)
    if mirror:
        is_mirrored = rng.random((n, 1)) < 0.5
        columns = np.where(is_mirrored, columns[:, ::-1], columns)
    picture_index = torch.arange(n, device=images.device)[:, None, None]
    row_index = torch.from_numpy(rows).to(images.device)[:, :, None]
    column_index = torch.from_numpy(columns).to(images.device)[:, None, :]
    return images[picture_index, row_index, column_index]


def _tensor(images: np.ndarray) -> Tensor:
    """Pictures as a tensor; bytes stay bytes, which copy to a GPU quickly."""
    dtype = np.float32
    if images.dtype == np.uint8:
        dtype = np.uint8
    # torch warns of arrays that cannot be written to.
    return torch.from_numpy(np.require(images, dtype, ["C", "W"]))


def _scaled(images: Tensor, n_pixel_values: int) -> Tensor:
    """(n, c, h, w) numbers in [-1, 1]."""
    x = images.float().mul(2 / (n_pixel_values - 1)).sub_(1)
    if x.ndim == 3:
        return x[:, None]
    return x.permute(0, 3, 1, 2)


def _rotations(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Square pictures turned by each of four rotations, and the rotations' numbers."""
    turned = [np.rot90(images, k, (1, 2)) for k in range(4)]
    return np.concatenate(turned), np.repeat(np.arange(4), len(images))


# --- Inception ------------------------------------------------------------------------


def inception768(
    weights: str | os.PathLike[str], device: str = "cpu", batch_size: int = 500
) -> Callable[[np.ndarray], np.ndarray]:
    """A function from uint8 pictures (n, h, w[, 3]) to their (n, 768) features."""
    with np.load(weights) as file:
        layers = {name: torch.from_numpy(file[name]).to(device) for name in file.files}

    @torch.inference_mode()
    def features(images: np.ndarray) -> np.ndarray:
        outputs = []
        for batch in _tensor(images).split(batch_size):
            x = _inception_input(batch.to(device))
            outputs.append(_inception(x, layers).cpu().numpy())
        return np.concatenate(outputs)

    return features


def _inception_input(images: Tensor) -> Tensor:
    """Bytes (n, h, w[, 3]) as (n, 3, 299, 299) numbers in [-1, 1]."""
    x = images.float()
    if x.ndim == 3:
        x = x[:, None].expand(-1, 3, -1, -1)
    else:
        x = x.permute(0, 3, 1, 2)
    x = F.interpolate(x, (299, 299), mode="bilinear", align_corners=False)
    return (x / 127.5 - 1).contiguous(memory_format=torch.channels_last)


def _conv(
    layers: LayerWeights, x: Tensor, name: str, stride: int = 1, pad: bool = True
) -> Tensor:
    """One convolution of Inception, with its ReLU; `pad` keeps the picture's size."""
    weight = layers[name + ".w"]
    padding = (0, 0)
    if pad:
        padding = (weight.shape[2] // 2, weight.shape[3] // 2)
    return F.relu(F.conv2d(x, weight, layers[name + ".b"], stride, padding))


def _conv_chain(layers: LayerWeights, x: Tensor, prefix: str, n: int) -> Tensor:
    """n convolutions, named PREFIX, PREFIX_1, PREFIX_2, …"""
    x = _conv(layers, x, prefix)
    for i in range(1, n):
        x = _conv(layers, x, f"{prefix}_{i}")
    return x


def _mixed_block(
    layers: LayerWeights, x: Tensor, name: str, n_tower: int, n_tower_1: int
) -> Tensor:
    """Four branches beside each other: 1 × 1, two towers, and an average."""
    average = F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
    branches = [
        _conv(layers, x, f"{name}_conv"),
        _conv_chain(layers, x, f"{name}_tower_conv", n_tower),
        _conv_chain(layers, x, f"{name}_tower_1_conv", n_tower_1),
        _conv(layers, average, f"{name}_tower_2_conv"),
    ]
    return torch.cat(branches, 1)


def _inception(x: Tensor, layers: LayerWeights) -> Tensor:
    """The mean (n, 768) of the last layer with 768 channels."""
    conv = partial(_conv, layers)
    pool = partial(F.max_pool2d, kernel_size=3, stride=2)
    x = conv(x, "conv", stride=2, pad=False)
    x = conv(x, "conv_1", pad=False)
    x = pool(conv(x, "conv_2"))
    x = conv(x, "conv_3", pad=False)
    x = pool(conv(x, "conv_4", pad=False))
    for name in ("mixed", "mixed_1", "mixed_2"):
        x = _mixed_block(layers, x, name, n_tower=2, n_tower_1=3)
    tower = _conv_chain(layers, x, "mixed_3_tower_conv", 2)
    tower = conv(tower, "mixed_3_tower_conv_2", stride=2, pad=False)
    shortcut = conv(x, "mixed_3_conv", stride=2, pad=False)
    x = torch.cat([shortcut, tower, pool(x)], 1)
    for name in ("mixed_4", "mixed_5", "mixed_6", "mixed_7"):
        x = _mixed_block(layers, x, name, n_tower=3, n_tower_1=5)
    return x.mean((2, 3))
