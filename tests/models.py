"""Small models of each kind, what their files hold, and rows that come to them and go."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from sliceflow import ImageFlow, PictureOptions, SlicedWassersteinFlow, VectorOptions
from sliceflow.engine.transports import Histogram
from sliceflow.models import file as container

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
DIGITS, DIGIT_LABELS = load_digits().images.astype(np.uint8), load_digits().target
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


def counted_vectors(**changes: Any) -> SlicedWassersteinFlow:
    """Three steps of 100 particles, for `partial_fit`."""
    settings = dict(n_particles=100, n_steps=3, random_state=0, transport=Histogram(64))
    return SlicedWassersteinFlow(**settings | changes)


def counted_pictures(**changes: Any) -> ImageFlow:
    """Two stages of one step, of 50 particles, for `partial_fit` on `DIGITS`."""
    settings = dict(schedule="1[1] 8[4]", quality=1, n_particles=50, n_pixel_values=17, random_state=0)
    return ImageFlow(**settings | changes)


def come_and_go(
    data: st.DataObject,
    rng: np.random.Generator,
    flow: SlicedWassersteinFlow | ImageFlow,
    X: np.ndarray,
    y: np.ndarray,
    refreshed: st.SearchStrategy[bool],
) -> np.ndarray:
    """Of 30 rows some come, `refreshed` or not, and some go again; the numbers of those left."""
    there: Counter[int] = Counter()
    for _ in range(data.draw(st.integers(2, 7))):
        some = list(there.elements())
        if len(some) > 1 and data.draw(st.booleans()):
            rows = rng.permutation(some)[: rng.integers(1, len(some))]
            flow.forget(X[rows], y[rows], refresh=False)
            there -= Counter(rows.tolist())
        else:
            rows = rng.integers(30, size=rng.integers(1, 12))
            flow.partial_fit(X[rows], y[rows], refresh=data.draw(refreshed))
            there += Counter(rows.tolist())
    return np.array(sorted(there.elements()))


EVEN_AND_ODD = np.arange(50) % 2
FITTED: dict[str, Callable[[], SlicedWassersteinFlow | ImageFlow]] = {
    "vectors": lambda: vectors().fit(X, np.arange(60) % 3),
    "tuples": lambda: vectors().fit(X, [("a", i % 3, None) for i in range(60)]),
    "floats": lambda: vectors(entropy=0.01).fit(X.astype(np.float32)),
    "columns": lambda: vectors(condition="joint").fit(X, X[:, :2]),
    "counted": lambda: vectors(transport=Histogram(16)).fit(X),
    "max-sliced": lambda: vectors(frame="max-sliced").fit(X),
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
