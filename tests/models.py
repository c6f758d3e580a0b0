"""Small models of each kind, made from fixed seeds in fractions of a second.

`FITTED` makes them; the fixture `fitted` keeps them for all tests of a process.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from sliceflow import ImageFlow, ImageOptions, SlicedWassersteinFlow, VectorOptions
from sliceflow.engine.transports import HistogramTransport
from sliceflow.estimators.pictures.layout import Layout
from sliceflow.estimators.pictures.plan import PicturePlan

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
LABELS = np.arange(60) % 3
PICTURES = RNG.integers(0, 17, (50, 5, 4)).astype(np.uint8)
COLORS = RNG.integers(0, 256, (40, 4, 4, 3)).astype(np.uint8)
EVEN_AND_ODD = np.arange(50) % 2
DIGITS = load_digits()
IMAGES = DIGITS.images.astype(np.uint8)[:300]
DIGIT_LABELS = DIGITS.target[:300]
QUICK = dict(
    schedule="1[1] 3[3] 8[8,3]", n_pixel_values=17, steps_per_stage=2, n_particles=300
)
QUICK |= dict(random_state=0, device="cpu")  # an `ImageFlow` of these digits


def vectors(n_axis_steps: int = 2, **changes: Any) -> SlicedWassersteinFlow:
    """Four steps of 80 particles, not fitted yet."""
    settings = dict(n_particles=80, n_steps=4, random_state=3, device="cpu")
    options = VectorOptions(n_knots=16, n_axis_steps=n_axis_steps)
    return SlicedWassersteinFlow(**settings | {"options": options} | changes)


def pictures(n_knots: int = 16, **changes: Any) -> ImageFlow:
    """Three levels of two steps, of 60 particles, not fitted yet."""
    settings = dict(
        schedule="1[1] 3[2] 5[3]", n_particles=60, steps_per_stage=2, n_pixel_values=17
    )
    settings |= dict(
        random_state=3, device="cpu", options=ImageOptions(n_knots=n_knots)
    )
    return ImageFlow(**settings | changes)


def picture_plan(**changes: Any) -> PicturePlan:
    """A plan of gray pictures of 6×6 pixels, as a fit of 40 particles could have it."""
    plan: Any = dict(
        device="cpu", n_pictures=30, mirror=False, n_particles=40, n_moved_particles=40
    )
    plan |= dict(
        condition_kind="none",
        n_classes=0,
        amplifier=0.0,
        patch_basis="pixels",
        n_knots=12,
    )
    plan |= dict(
        layout=Layout(6, 6, None, "uint8", 17),
        transport=HistogramTransport(16),
        mosaic_size=0,
    )
    return PicturePlan(
        **plan | dict(shrinkage=0.0, n_directions=30, options=ImageOptions()) | changes
    )


def draws(flow: Any, n: int = 7, seed: int | None = 5) -> np.ndarray:
    """n samples, or completions, as an array."""
    if getattr(flow, "known", None) is not None:
        return np.asarray(flow.inpaint(PICTURES[:n], random_state=seed))
    return np.asarray(flow.sample(n, random_state=seed))


def saved(flow: Any, **options: Any) -> bytes:
    """The bytes of a model's file."""
    with tempfile.TemporaryDirectory() as folder:
        flow.save(Path(folder, "model"), **options)
        return Path(folder, "model").read_bytes()


def interrupt(*_: Any, **__: Any) -> None:
    """A listener, or anything else, that ends what calls it as Ctrl-C does."""
    raise KeyboardInterrupt


def full_disk(*_: Any) -> None:
    """A function of `os` that finds no space."""
    raise OSError(28, "No space left on device")


def table() -> Any:
    """A table with a column of every kind and of many types, fitted."""
    import pandas as pd

    from sliceflow import TableFlow

    rng = np.random.default_rng(0)
    n = 80
    plan = rng.choice(["basic", "gold", "free"], n)
    age = rng.integers(18, 80, n)
    gone = rng.random(n) < 0.2
    start = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n), "D")
    frame = pd.DataFrame(
        {
            "id": [f"C-{k:06}" for k in rng.permutation(10**6)[:n]],
            "plan": plan,
            "age": age,
            "height": rng.normal(170, 10, n).round(1),
            "level": pd.Categorical(
                rng.choice(["lo", "hi"], n), ["lo", "hi"], ordered=True
            ),
            "spent": [
                Decimal(f"{v:.2f}") for v in rng.gamma(2, 20 + (plan == "gold") * age)
            ],
            "price": [f"{v:,.2f} €" for v in rng.gamma(2, 900, n)],
            "churn": rng.random(n) < 0.3,
            "start": start.tz_localize("Europe/Berlin"),
            "end": start + pd.to_timedelta(age, "D"),
            "written": [f"{day:%d.%m.%Y}" for day in start],
            "big": 2**62 + rng.integers(0, 999, n),
            "visits": pd.array(age, "Int64"),
            "same": 7,
            "score": np.where(gone, np.nan, rng.normal(size=n)),
        }
    )
    frame.loc[gone, "visits"] = pd.NA
    return TableFlow(constraints=["age <= 100"], random_state=3).fit(frame)


MIXED = np.array(
    [["odd", x] if i % 2 else ["even", x] for i, x in enumerate(X[:, 0])], dtype=object
)
TUPLES = [("a", i % 3, None) for i in range(60)]
FEW_BINS = HistogramTransport(16)
PARTS: dict[
    str, tuple[Callable[[], Any], tuple[Any, ...]]
] = {  # an estimator, and its data
    "vectors": (vectors, (X,)),
    "labels": (vectors, (X, LABELS)),
    "tuples": (vectors, (X, TUPLES)),
    "floats": (lambda: vectors(entropy=0.01), (X.astype(np.float32),)),
    "columns": (lambda: vectors(condition_mode="joint"), (X, X[:, :2])),
    "local": (lambda: vectors(condition_mode="local", n_particles=9), (X, X[:, :1])),
    "mixed": (lambda: vectors(n_particles=9), (X, MIXED)),
    "histogram": (lambda: vectors(transport=FEW_BINS), (X,)),
    "max-sliced": (lambda: vectors(frame="max-sliced"), (X,)),
    "per class": (lambda: vectors(amplifier=math.inf), (X, LABELS)),
    "gray": (pictures, (PICTURES,)),
    "gray floats": (
        lambda: pictures(mirror=True),
        ((PICTURES / 16).astype(np.float32),),
    ),
    "gray labels": (pictures, (PICTURES, EVEN_AND_ODD)),
    "bends": (lambda: pictures(4, transport=FEW_BINS), (PICTURES,)),
    "classes apart": (
        lambda: pictures(4, transport=FEW_BINS, amplifier=math.inf),
        (PICTURES, EVEN_AND_ODD),
    ),
    "clusters": (lambda: pictures(4, transport=FEW_BINS, n_clusters=3), (PICTURES,)),
    "color": (lambda: pictures(schedule="1[1] 4[2]", n_pixel_values=256), (COLORS,)),
    "masked": (lambda: pictures(known="top"), (PICTURES,)),
    "kept": (lambda: pictures(save_rows=True), (PICTURES, EVEN_AND_ODD)),
}
FITTED: dict[str, Callable[[], Any]] = {
    kind: lambda make=make, data=data: make().fit(*data)
    for kind, (make, data) in PARTS.items()
} | {"table": table}
