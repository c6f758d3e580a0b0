"""FID in torch-fidelity's Inception network, with its weights and its resizing. Extra ``[metrics]``."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import types
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sliceflow.metrics.floors import subsample
from sliceflow.metrics.frechet import frechet_distance

__all__ = ["FID", "fid", "inception_features"]

LAYERS = (64, 192, 768, 2048)
WEIGHTS = "weights-inception-2015-12-05-6726825d.pth"
_PUBLISHED = WEIGHTS.removesuffix(".pth").rsplit("-", 1)[1]  # how its SHA-256 begins


@dataclass(frozen=True)
class FID:
    """A Fréchet inception distance, with everything needed to compare it with another one."""

    value: float
    floor: float
    layer: int
    network: str
    weights: str
    split: str
    n_samples: int
    n_real: int
    n_floor: int

    def __str__(self) -> str:
        return (
            f"FID-{self.layer} {self.value:.4g} (floor {self.floor:.4g}: {self.n_floor} real pictures "
            f"against the rest) of {self.n_samples} samples to {self.n_real} pictures of the "
            f"{self.split} split; {self.network}, {self.weights}"
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def fid(
    samples: np.ndarray,
    real: np.ndarray,
    *,
    layer: int = 2048,
    weights: str | os.PathLike[str] | None = None,
    split: str = "train",
    n_pixel_values: int = 256,
    device: str = "auto",
    seed: int = 0,
) -> FID:
    """Fréchet inception distance of samples to real pictures, with its floor.

    The floor is that of real pictures, as many as samples but at most half, against the rest. FID
    depends on the counts, the layer and the weights. The result names them all; compare only if they
    are equal. The usual FID is that of layer 2048 with 50,000 samples. Values of layer 768 are far
    smaller.

    Parameters
    ----------
    samples, real : pictures (n, h, w) or (n, h, w, 3) of integers; or their features by
        `inception_features`, (n, layer), with the same weights
    layer : 64, 192, 768 or 2048 features
    weights : the network's file; None uses the one that torch-fidelity downloads
    split : the name of the split of `real`, for the result
    n_pixel_values : pixels are 0..n_pixel_values-1
    device : "cpu", "cuda", or "auto": a GPU if there is one
    seed : of the pictures of the floor

    Raises
    ------
    ImportError
        If torch-fidelity is missing.
    FileNotFoundError
        If the weights are missing, with what to download.

    Examples
    --------
    >>> fid(flow.particles_[:50_000], train.images)  # doctest: +SKIP
    """
    network = _network(layer, _file(weights), device)

    def features(images: np.ndarray) -> np.ndarray:
        if images.dtype.kind == "f" and images.shape[1:] == (layer,):
            return images
        return inception_features(images, network=network, n_pixel_values=n_pixel_values, device=device)

    made, true = features(samples), features(real)
    n = min(len(samples), len(real) // 2)
    chosen = subsample(np.arange(len(real)), n, seed)
    floor = frechet_distance(true[chosen], np.delete(true, chosen, axis=0))
    version = importlib.metadata.version("torch-fidelity")
    return FID(
        frechet_distance(made, true),
        floor,
        layer,
        f"Inception-v3 of 2015-12-05 as in torch-fidelity {version}",
        _name(_file(weights)),
        split,
        len(samples),
        len(real),
        n,
    )


def inception_features(
    images: np.ndarray,
    layer: int = 2048,
    *,
    weights: str | os.PathLike[str] | None = None,
    network: Any = None,
    n_pixel_values: int = 256,
    device: str = "auto",
    batch: int = 128,
) -> np.ndarray:
    """(n, layer) features of pictures; grey ones get three equal channels.

    `network` may be an extractor of torch-fidelity, instead of `weights`.
    """
    import torch

    from sliceflow.devices import resolve_device

    if images.ndim not in (3, 4) or images.dtype.kind not in "iu":
        raise ValueError(
            f"images are {images.dtype} of shape {images.shape}; pass whole numbers (n, h, w[, c])"
        )
    if network is None:
        network = _network(layer, _file(weights), device)
    where, out = resolve_device(device), []
    for first in range(0, len(images), batch):
        part = images[first : first + batch]
        part = part[..., None] if part.ndim == 3 else part
        part = np.broadcast_to(part, (*part.shape[:3], 3)).transpose(0, 3, 1, 2)
        pixels = (part * (255 / (n_pixel_values - 1))).round().astype(np.uint8)
        with torch.inference_mode():
            out.append(network(torch.from_numpy(pixels).to(where))[0].cpu().numpy())
    return np.concatenate(out)


def extractor_class() -> Any:
    """torch-fidelity's network, imported without its ``__init__``, which would import torchvision.

    torchvision is often missing, or fails to import because its build does not match torch's. Neither
    the network nor its resizing uses it.
    """
    spec = importlib.util.find_spec("torch_fidelity")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("FID needs torch-fidelity: pip install 'sliceflow[metrics]'")
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if _theirs(name)}
    bare = types.ModuleType("torch_fidelity")
    bare.__path__ = list(spec.submodule_search_locations)
    sys.modules["torch_fidelity"] = bare
    try:
        module = importlib.import_module("torch_fidelity.feature_extractor_inceptionv3")
    finally:  # a later import of torch_fidelity gets the whole package
        for name in [name for name in sys.modules if _theirs(name)]:
            del sys.modules[name]
        sys.modules.update(before)
    return module.FeatureExtractorInceptionV3


def _theirs(name: str) -> bool:
    return name.partition(".")[0] == "torch_fidelity"


def _file(weights: str | os.PathLike[str] | None) -> Path | None:
    """The file of weights; None if torch-fidelity has to fetch it."""
    import torch

    cached = Path(torch.hub.get_dir(), "checkpoints", WEIGHTS)
    if weights is None:
        return cached if cached.is_file() else None
    path = Path(weights).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file; pass the path of {WEIGHTS}{_where_from()}")
    return path


def _where_from() -> str:
    return f", from https://github.com/toshas/torch-fidelity/releases/download/v0.2.0/{WEIGHTS} (91 MB)"


@cache
def _name(path: Path | None) -> str:
    """The published weights, or others by their file name and the beginning of their SHA-256."""
    if path is None:
        return f"published weights {_PUBLISHED}"
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    same = digest.startswith(_PUBLISHED)
    return f"published weights {_PUBLISHED}" if same else f"other weights {path.name} {digest[:8]}"


def _network(layer: int, path: Path | None, device: str) -> Any:
    import torch

    from sliceflow.devices import resolve_device

    if layer not in LAYERS:
        raise ValueError(f"layer={layer!r} must be one of {', '.join(map(str, LAYERS))}")
    build = extractor_class()
    if path is not None:
        try:  # torch-fidelity would unpickle anything: check first that there are only tensors
            torch.load(path, map_location="meta", weights_only=True)
        except Exception as error:
            raise ValueError(f"{path} is not a file of weights by torch.save: {error}") from error
    try:
        network = build("inception-v3-compat", [str(layer)], None if path is None else str(path))
    except RuntimeError as error:
        raise ValueError(f"{path} does not hold the weights of the FID network: {error}") from error
    except OSError as error:  # no network
        raise FileNotFoundError(
            f"the FID network's weights are missing and could not be downloaded ({error}); download "
            f"{WEIGHTS} on another machine{_where_from()} and pass weights=PATH"
        ) from error
    return network.to(resolve_device(device))
