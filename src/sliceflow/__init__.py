"""Nonparametric generative modelling by sliced-Wasserstein flows: data, directions, sorting.

The front door. Experts find `frames`, `transports`, `schedule`, `conditions`, `events`, `flow` and
`metrics` one level down.
"""

from sliceflow.estimator import SlicedWassersteinFlow
from sliceflow.image_flow import ImageFlow
from sliceflow.model_file import ModelFileError, load

__all__ = ["ImageFlow", "ModelFileError", "SlicedWassersteinFlow", "__version__", "load"]

__version__ = "0.1.0"
