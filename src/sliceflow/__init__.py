"""Nonparametric generative modelling by sliced-Wasserstein flows: data, directions, sorting.

The front door. Experts find `frames`, `transports`, `schedule`, `conditions`, `events`, `flow` and
`metrics` one level down. Nothing is imported before it is asked for: torch takes seconds, and
``sliceflow --help`` should not.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__all__ = ["ImageFlow", "ModelFileError", "SlicedWassersteinFlow", "__version__", "load"]

__version__ = "0.1.0"

_HOMES = {
    "ImageFlow": "pictures.estimator",
    "ModelFileError": "storage.models",
    "SlicedWassersteinFlow": "vectors.estimator",
    "load": "storage.models",
}

if TYPE_CHECKING:
    from sliceflow.pictures.estimator import ImageFlow
    from sliceflow.storage.models import ModelFileError, load
    from sliceflow.vectors.estimator import SlicedWassersteinFlow
else:  # or every misspelt name would pass the type checker

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(f"sliceflow.{_HOMES[name]}"), name)
        if not name.startswith("_") and find_spec(f"sliceflow.{name}"):
            return import_module(f"sliceflow.{name}")
        raise AttributeError(f"module 'sliceflow' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
