"""`load`: the fitted estimator of a model file."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias, cast

from sliceflow.base.saving import load_estimator
from sliceflow.devices import resolve_device
from sliceflow.errors import ParameterError

if TYPE_CHECKING:
    import torch

    from sliceflow.estimators.density.estimator import SlicedDensity
    from sliceflow.estimators.pictures.estimator import ImageFlow
    from sliceflow.estimators.pictures.options import Precision
    from sliceflow.estimators.tables.estimator import TableFlow
    from sliceflow.estimators.vectors.estimator import SlicedWassersteinFlow

    AnyEstimator: TypeAlias = (
        SlicedWassersteinFlow | ImageFlow | TableFlow | SlicedDensity
    )

# The folders of `estimators` in which the estimators are.
_MODULE_OF_ESTIMATOR = {
    "SlicedWassersteinFlow": "vectors",
    "ImageFlow": "pictures",
    "TableFlow": "tables",
    "SlicedDensity": "density",
}


def load(
    path: str | os.PathLike[str],
    device: str | torch.device = "auto",
    precision: Precision | None = None,
    *,
    max_memory: int | None = None,
) -> AnyEstimator:
    """Load the estimator that ``flow.save(path)`` wrote. It gives the same samples.

    Parameters
    ----------
    path : str or path
        The model file, or the run folder of the command line that contains it.
    device : str or torch.device, default "auto"
        Device for sampling; any, whatever the fit used. "auto" uses a GPU if there is
        one.
    precision : "auto", "float32", "float16", "bfloat16" or None, default None
        Precision in which a GPU draws samples of an `ImageFlow`, as by its
        `set_sample_precision`; None keeps the model's. "float32" is slower, with nearly
        the results of a CPU.
    max_memory : int or None, default None
        Maximum bytes for the model and for drawing one sample. None takes a limit from
        the file's size, which accepts models of usual fits and refuses files made to
        exhaust memory.

    Returns
    -------
    estimator : SlicedWassersteinFlow, ImageFlow, TableFlow or SlicedDensity

    Raises
    ------
    ModelFileError
        If the file is damaged, not a model, too new or too large, or its samples could
        be infinite.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import sliceflow
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> flow = sliceflow.SlicedWassersteinFlow(n_steps=5, random_state=0).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     flow.save(f"{folder}/normal.sliceflow")
    ...     loaded = sliceflow.load(f"{folder}/normal.sliceflow")
    >>> same = loaded.sample(5, random_state=0) == flow.sample(5, random_state=0)
    >>> bool(same.all())
    True
    """
    if device not in ("auto", "cpu"):  # these need no check, which imports torch
        device = resolve_device(device)
    flow = load_estimator(path, _estimator_type, device, max_memory)
    class_name = type(flow).__name__
    if class_name != "TableFlow":  # tables have no parameter `device`
        flow.set_params(device=device)
    if precision is not None:
        if class_name != "ImageFlow":
            fact = f"applies to pictures, but this is a {class_name}"
            raise ParameterError("precision", precision, fact, "omit it")
        cast("ImageFlow", flow).set_sample_precision(precision)
    return flow


def _estimator_type(class_name: str) -> type[AnyEstimator]:
    """The class of estimators of this name.

    Only its module is imported, because each takes a while.
    """
    if class_name not in _MODULE_OF_ESTIMATOR:
        class_names = ", ".join(_MODULE_OF_ESTIMATOR)
        raise ValueError(f"it holds {class_name[:60]!r}, not one of {class_names}")
    module = import_module(
        f"sliceflow.estimators.{_MODULE_OF_ESTIMATOR[class_name]}.estimator"
    )
    estimator_type: type[AnyEstimator] = getattr(module, class_name)
    return estimator_type
