"""Pictures out of nothing, for measuring time where no data set is at hand. Nothing is read here."""

import numpy as np
import torch
from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.spaces.pictures.layout import Layout
from sliceflow.spaces.pictures.pyramid import Subspace

__all__ = ["cloud", "pictures"]


def pictures(
    shape: tuple[int, int, int], n: int, device: torch.device | str = "cpu", seed: int = 0
) -> np.ndarray:
    """n soft blobs of (C, h, w) as uint8 (n, h, w[, C]): a third of all pixels are black, some white.

    How fast values are counted depends on how they are spread, and pictures pile up at both ends.
    """
    c, h, w = shape
    coarse = Subspace(c, h, w, min(7, h), min(7, w))
    numbers = torch.randn(
        (coarse.dimension, n), generator=torch.Generator(device).manual_seed(seed), device=device
    )
    x = coarse.up(numbers).mul_(coarse.scale()).sub_(0.5).clamp_(-1, 1)
    raw = ((x + 1) * 127.5).to(torch.uint8).view(c, h, w, n).permute(3, 1, 2, 0)
    array: np.ndarray = raw.contiguous().cpu().numpy()
    return array if c > 1 else array[..., 0]


def cloud(shape: tuple[int, int, int], n: int, device: torch.device | str, seed: int = 0) -> Tensor:
    """The same as the engine sees them: columns (C·h·w, n) of dequantised values in [-1, 1]."""
    images = pictures(shape, n, device, seed)
    layout = Layout.of(images, 256)
    return layout.encode(layout.read(images, device), Seed(seed))
