"""Nonparametric generative modelling with sliced-Wasserstein flows: no network, no training.

The public API: the estimators, `load`, `complete`, and the modules `datasets`, `inference`, `metrics`,
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
    "complete",
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

__version__ = "0.2.0"

_MODULE_OF_NAME = {
    "ImageFlow": "pictures.estimator",
    "complete": "pictures.completion",
    "PictureOptions": "pictures.options",
    "VectorOptions": "vectors.options",
    "ModelFileError": "storage.file",
    "SlicedWassersteinFlow": "vectors.estimator",
    "TableFlow": "tables.estimator",
    "load": "loading",
}
_MODULES = {  # besides `datasets`, `inference`, `metrics` and `ranks`
    "events": "engine.events",
    "frames": "engine.frames",
    "schedules": "pictures.schedules",
    "transports": "engine.transports",
}

if TYPE_CHECKING:
    from sliceflow import datasets, inference, metrics, ranks
    from sliceflow.engine import events, frames, transports
    from sliceflow.loading import load
    from sliceflow.pictures import schedules
    from sliceflow.pictures.completion import complete
    from sliceflow.pictures.estimator import ImageFlow
    from sliceflow.pictures.options import PictureOptions
    from sliceflow.storage.file import ModelFileError
    from sliceflow.tables.estimator import TableFlow
    from sliceflow.vectors.estimator import SlicedWassersteinFlow
    from sliceflow.vectors.options import VectorOptions
else:  # hidden from the type checker, which would accept any misspelt name

    def __getattr__(name: str) -> Any:
        if name in _MODULE_OF_NAME:
            return getattr(import_module(f"sliceflow.{_MODULE_OF_NAME[name]}"), name)
        if name in _MODULES:
            return import_module(f"sliceflow.{_MODULES[name]}")
        if not name.startswith("_") and find_spec(f"sliceflow.{name}"):
            return import_module(f"sliceflow.{name}")
        raise AttributeError(f"module 'sliceflow' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
