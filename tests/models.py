"""Small models of each kind, and what their files hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from sliceflow import ImageFlow, PictureOptions, SlicedWassersteinFlow, VectorOptions
from sliceflow.engine.transports import Histogram
from sliceflow.storage import file as container

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
PICTURES = RNG.integers(0, 17, (50, 5, 4)).astype(np.uint8)


def vectors(n_axis_steps: int = 2, **changes: Any) -> SlicedWassersteinFlow:
    """Four steps of 80 particles, not fitted yet."""
    settings = dict(n_particles=80, n_steps=4, random_state=3, device="cpu")
    options = VectorOptions(n_knots=16, n_axis_steps=n_axis_steps)
    return SlicedWassersteinFlow(**settings | {"options": options} | changes)


def pictures(n_knots: int = 16, **changes: Any) -> ImageFlow:
    """Three levels of two steps, of 60 particles, not fitted yet."""
    settings = dict(schedule="1[1] 3[2] 5[3]", n_particles=60, quality=2, n_pixel_values=17)
    settings |= dict(random_state=3, device="cpu", options=PictureOptions(n_knots=n_knots))
    return ImageFlow(**settings | changes)


EVEN_AND_ODD = np.arange(50) % 2
FITTED: dict[str, Callable[[], SlicedWassersteinFlow | ImageFlow]] = {
    "vectors": lambda: vectors().fit(X, np.arange(60) % 3),
    "tuples": lambda: vectors().fit(X, [("a", i % 3, None) for i in range(60)]),
    "floats": lambda: vectors(entropy=0.01).fit(X.astype(np.float32)),
    "columns": lambda: vectors().fit(X, X[:, :2]),
    "counted": lambda: vectors(transport=Histogram(16)).fit(X),
    "pictures": lambda: pictures().fit(PICTURES, EVEN_AND_ODD),
    "bends": lambda: pictures(4, transport=Histogram(16)).fit(PICTURES),
    "classes": lambda: pictures(4, transport=Histogram(16), amplifier=math.inf).fit(
        PICTURES, EVEN_AND_ODD
    ),
    "inpainting": lambda: pictures(observed="top").fit(PICTURES),
}


class Parts(NamedTuple):
    """What a file holds: its JSON text, and its tensors by name."""

    text: dict[str, Any]
    tensors: dict[str, torch.Tensor]


def parts(path: Path) -> Parts:
    return Parts(*container.read(path))
