"""Nonparametric generative modelling with sliced-Wasserstein flows: no network, no training.

The public API: the estimators, `load`, and the modules `datasets`, `inference`, `metrics`,
`frames`, `transports`, `schedules`, `events` and `ranks`. Names are imported on first use, because
torch takes seconds to import and ``sliceflow --help`` should be fast.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__all__ = [
    "ImageFlow",
    "ModelFileError",
    "PictureOptions",
    "SlicedWassersteinFlow",
    "TableFlow",
    "VectorOptions",
    "__version__",
    "datasets",
    "events",
    "frames",
    "inference",
    "load",
    "metrics",
    "ranks",
    "schedules",
    "transports",
]

__version__ = "0.3.0"

_HOME = {  # of names, and modules under other names
    "ImageFlow": "spaces.pictures.estimator",
    "PictureOptions": "spaces.pictures.options",
    "VectorOptions": "spaces.vectors.options",
    "ModelFileError": "models.file",
    "SlicedWassersteinFlow": "spaces.vectors.estimator",
    "TableFlow": "spaces.tables.estimator",
    "load": "loading",
    "events": "engine.events",
    "ranks": "models.ranks",
    "frames": "engine.frames",
    "schedules": "spaces.pictures.schedules",
    "transports": "engine.transports",
}

if TYPE_CHECKING:
    from sliceflow import datasets, inference, metrics
    from sliceflow.engine import events, frames, transports
    from sliceflow.loading import load
    from sliceflow.models import ranks
    from sliceflow.models.file import ModelFileError
    from sliceflow.spaces.pictures import schedules
    from sliceflow.spaces.pictures.estimator import ImageFlow
    from sliceflow.spaces.pictures.options import PictureOptions
    from sliceflow.spaces.tables.estimator import TableFlow
    from sliceflow.spaces.vectors.estimator import SlicedWassersteinFlow
    from sliceflow.spaces.vectors.options import VectorOptions
else:  # hidden from the type checker, which would accept any misspelt name

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            module = import_module(f"sliceflow.{_HOME[name]}")
            return getattr(module, name, module)
        if not name.startswith("_") and find_spec(f"sliceflow.{name}"):
            return import_module(f"sliceflow.{name}")
        raise AttributeError(f"module 'sliceflow' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
