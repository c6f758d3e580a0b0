"""Nonparametric generative modelling by sliced-Wasserstein flows: data, directions, sorting.

The public API: the estimators, `load`, and the modules `datasets`, `metrics`, `frames`, `transports`,
`schedules`, `events` and `ranks`. Nothing is imported before it is used: torch takes seconds to import,
and ``sliceflow --help`` should not.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__all__ = [
    "ImageFlow",
    "ModelFileError",
    "PictureOptions",
    "SlicedWassersteinFlow",
    "VectorOptions",
    "__version__",
    "datasets",
    "events",
    "frames",
    "load",
    "metrics",
    "ranks",
    "schedules",
    "transports",
]

__version__ = "0.1.0"

_HOMES = {
    "ImageFlow": "pictures.estimator",
    "PictureOptions": "pictures.options",
    "VectorOptions": "vectors.options",
    "ModelFileError": "storage.file",
    "SlicedWassersteinFlow": "vectors.estimator",
    "load": "loading",
}
_MODULES = {  # and `datasets`, `metrics` and `ranks`, which are packages of that name
    "events": "engine.events",
    "frames": "engine.frames",
    "schedules": "pictures.schedules",
    "transports": "engine.transports",
}

if TYPE_CHECKING:
    from sliceflow import datasets, metrics, ranks
    from sliceflow.engine import events, frames, transports
    from sliceflow.loading import load
    from sliceflow.pictures import schedules
    from sliceflow.pictures.estimator import ImageFlow
    from sliceflow.pictures.options import PictureOptions
    from sliceflow.storage.file import ModelFileError
    from sliceflow.vectors.estimator import SlicedWassersteinFlow
    from sliceflow.vectors.options import VectorOptions
else:  # or every misspelt name would pass the type checker

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(f"sliceflow.{_HOMES[name]}"), name)
        if name in _MODULES:
            return import_module(f"sliceflow.{_MODULES[name]}")
        if not name.startswith("_") and find_spec(f"sliceflow.{name}"):
            return import_module(f"sliceflow.{name}")
        raise AttributeError(f"module 'sliceflow' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
