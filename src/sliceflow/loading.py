"""`load`: the fitted estimator of a model file, whichever it is."""

from __future__ import annotations

import os

import torch

from sliceflow.devices import resolve_device
from sliceflow.pictures.estimator import ImageFlow
from sliceflow.storage.models import read_model
from sliceflow.vectors.estimator import SlicedWassersteinFlow

__all__ = ["load"]


def load(
    path: str | os.PathLike[str],
    device: str | torch.device = "auto",
    precision: str | None = None,
    *,
    max_memory: int | None = None,
) -> SlicedWassersteinFlow | ImageFlow:
    """The fitted estimator that ``flow.save(path)`` wrote, ready to sample.

    Parameters
    ----------
    path : the file, or the folder of a run of the command line, which has one
    device : where to sample, whatever the model was fitted on; "auto" takes a GPU where there is one
    precision : of an `ImageFlow` on a GPU, in place of the one it was fitted with: "float32" samples
        more slowly, and nearly what a CPU does
    max_memory : bytes that the model and the drawing of one sample may take. None judges by the file's
        size: no model that was saved after a fit of usual size is refused, and files made to fill the
        memory are

    Returns
    -------
    A `SlicedWassersteinFlow` or an `ImageFlow`, as saved. The same file, seed and device give the same
    samples, bit for bit.

    Raises
    ------
    ModelFileError
        If the file cannot be read, is damaged, is no model, needs a newer version or too much memory,
        or would give samples that are not finite.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import sliceflow
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> flow = sliceflow.SlicedWassersteinFlow(n_particles=200, n_steps=5, random_state=0).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     flow.save(f"{folder}/normal.sliceflow")
    ...     again = sliceflow.load(f"{folder}/normal.sliceflow")
    >>> bool((again.sample(5, random_state=0) == flow.sample(5, random_state=0)).all())
    True
    """
    place, kinds = resolve_device(device), (SlicedWassersteinFlow, ImageFlow)
    flow: SlicedWassersteinFlow | ImageFlow = read_model(
        path, {kind.__name__: kind for kind in kinds}, place, max_memory
    )
    flow.set_params(device=device)
    if precision is not None:
        if not isinstance(flow, ImageFlow):
            raise ValueError(
                f"precision={precision!r} is of pictures; this model is of vectors: leave it out"
            )
        flow.use_precision(precision)
    return flow
