"""Generative modeling with sliced-Wasserstein flows: no network, no training loop.

The public names are the estimators, `load`, and the modules `datasets`, `events`,
`frames`, `inference`, `metrics`, `ranks`, `schedules` and `transports`. They are
imported on first use, because torch takes seconds to import and ``sliceflow --help``
should be fast.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__all__ = [
    "ImageFlow",
    "ImageOptions",
    "ModelFileError",
    "SlicedDensity",
    "SlicedWassersteinFlow",
    "TableFlow",
    "TreeSettings",
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

__version__ = "0.4.0.dev0"

# The module of each public name that is not a module itself.
_MODULE_OF_NAME = {
    "ImageFlow": "estimators.pictures.estimator",
    "ModelFileError": "base.file",
    "ImageOptions": "estimators.pictures.options",
    "SlicedDensity": "estimators.density.estimator",
    "SlicedWassersteinFlow": "estimators.vectors.estimator",
    "TableFlow": "estimators.tables.estimator",
    "TreeSettings": "estimators.tables.draws.trees",
    "VectorOptions": "estimators.vectors.parameters",
    "load": "loading",
}

if TYPE_CHECKING:
    from sliceflow import (
        datasets,
        events,
        frames,
        inference,
        metrics,
        ranks,
        schedules,
        transports,
    )
    from sliceflow.base.file import ModelFileError
    from sliceflow.estimators.density.estimator import SlicedDensity
    from sliceflow.estimators.pictures.estimator import ImageFlow
    from sliceflow.estimators.pictures.options import ImageOptions
    from sliceflow.estimators.tables.draws.trees import TreeSettings
    from sliceflow.estimators.tables.estimator import TableFlow
    from sliceflow.estimators.vectors.estimator import SlicedWassersteinFlow
    from sliceflow.estimators.vectors.parameters import VectorOptions
    from sliceflow.loading import load
else:  # hidden from the type checker, which would accept any misspelt name

    def __getattr__(name: str) -> Any:
        """A public name or a module of the package, imported when it is asked for."""
        if name in _MODULE_OF_NAME:
            return getattr(import_module(f"sliceflow.{_MODULE_OF_NAME[name]}"), name)
        if not name.startswith("_") and find_spec(f"sliceflow.{name}"):
            return import_module(f"sliceflow.{name}")
        raise AttributeError(f"module 'sliceflow' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
