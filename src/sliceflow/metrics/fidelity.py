"""FID by torch-fidelity, the field's reference. It needs the extra ``sliceflow[metrics]``."""

from __future__ import annotations

import os
from typing import Any

import numpy as np


def fid(
    samples: np.ndarray, real: np.ndarray, *, n_pixel_values: int = 256,
    weights: str | os.PathLike[str] | None = None, device: str = "auto",
) -> float:  # fmt: skip
    """Fréchet inception distance (2048 features) of samples to real pictures.

    It depends on the counts: the usual one compares 50,000 samples with all training pictures. Its
    floor is ``fid(test, train)``. torch-fidelity downloads the network on first use.

    Parameters
    ----------
    samples, real : pictures (n, h, w) or (n, h, w, 3) of whole numbers
    n_pixel_values : pixels are 0..n_pixel_values-1
    weights : the network's file, for machines without internet access

    Examples
    --------
    >>> fid(flow.particles_[:50_000], train.images)  # doctest: +SKIP
    """
    from sliceflow.devices import resolve_device

    given = [_dataset(x, n_pixel_values) for x in (samples, real)]
    try:
        from torch_fidelity import calculate_metrics  # type: ignore[import-untyped]
    except Exception as error:  # a torchvision that does not match torch raises a RuntimeError
        fact = f"FID needs torch-fidelity and a torchvision that fits torch ({error})"
        raise ImportError(f"{fact}; pip install 'sliceflow[metrics]' torchvision") from error
    options: Any = dict(cuda=resolve_device(device).type == "cuda", cache=False, verbose=False)
    if weights is not None:
        options |= {"feature_extractor_weights_path": os.fspath(weights)}
    found = calculate_metrics(input1=given[0], input2=given[1], fid=True, **options)
    return float(found["frechet_inception_distance"])


def _dataset(images: Any, n_pixel_values: int) -> Any:
    """Pictures as a dataset of bytes (3, h, w); grey ones get three equal channels."""
    import torch
    from torch.utils.data import ConcatDataset

    images = np.asarray(images)
    if images.ndim not in (3, 4) or images.dtype.kind not in "iu":
        raise ValueError(f"pictures are {images.dtype} of shape {images.shape}; pass whole numbers")
    pixels = (images * (255 / (n_pixel_values - 1))).round().astype(np.uint8)
    pixels = np.broadcast_to(pixels.reshape(*pixels.shape[:3], -1), (*pixels.shape[:3], 3))
    bytes_ = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
    return ConcatDataset([bytes_])  # type: ignore[list-item]  # its items are those of the tensor
