"""Problems together with their closed-form answers, for every solver to be held
against.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st

from sliceflow.engine.batches import Batch, DataTarget, make_batches
from sliceflow.engine.clouds import Cloud, SortedSelection
from sliceflow.engine.encoded_y import ClassSlices, SortedClassIndices
from sliceflow.engine.flow import FlowSpec


@dataclass(frozen=True)
class Problem:
    """Data to fit, and the mean and covariance that the samples must have."""

    name: str
    data: np.ndarray
    mean: np.ndarray
    cov: np.ndarray


@st.composite
def gaussian(draw: st.DrawFn, n: int = 4000) -> Problem:
    """A Gaussian sample, whitened and colored so that its moments are the wanted ones
    exactly.
    """
    d = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.standard_normal((n, d))
    x -= x.mean(0)
    x = x @ np.linalg.inv(np.linalg.cholesky(np.cov(x.T, bias=True).reshape(d, d))).T
    mean = rng.normal(scale=5, size=d)
    mix = rng.normal(size=(d, d)) + 2 * np.eye(d)
    return Problem("gaussian", x @ mix.T + mean, mean, mix @ mix.T)


@st.composite
def clouds(draw: st.DrawFn, *, max_rows: int = 60, max_columns: int = 3) -> np.ndarray:
    """Rows as users have them.

    Continuous, discrete with ties, or with a constant column.
    """
    n = draw(st.integers(2, max_rows))
    d = draw(st.integers(1, max_columns))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.normal(size=(n, d)) * rng.uniform(0.1, 10, size=d) + rng.normal(size=d) * 5
    kind = draw(st.sampled_from(["continuous", "discrete", "constant column"]))
    if kind == "discrete":
        x = np.round(x)
    if kind == "constant column":
        x[:, 0] = 3.0
    return x


def mixture(n: int, d: int = 10, seed: int = 0) -> np.ndarray:
    """A mixture of five Gaussians in d dimensions."""
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(7).normal(scale=2.0, size=(5, d))
    return centers[rng.integers(5, size=n)] + 0.5 * rng.normal(size=(n, d))


def batch_of_classes(slices_p: ClassSlices, slices_q: ClassSlices) -> Batch:
    """All particles and data, of classes that have their own maps."""
    return Batch(SortedSelection(None, slices_p), SortedSelection(None, slices_q))


def sorted_classes(slices: ClassSlices) -> SortedClassIndices:
    """The classes of points that are sorted by class, and have their own maps."""
    sizes = torch.tensor(slices.starts).diff()
    classes = torch.arange(len(slices)).repeat_interleave(sizes)
    return SortedClassIndices(classes, len(slices), slices)


def target_for(flow: FlowSpec, particles: Cloud, data: Cloud) -> DataTarget:
    """The data as a target, weighted and in batches as the first stage needs them."""
    y_p = None
    y_q = None
    if flow.shared_condition_dim:
        y_p = particles.y
        y_q = data.y
    batches = make_batches(
        particles.x.shape[1],
        data.x.shape[1],
        flow.stages[0].transport.batch_size if flow.stages else None,
        flow.seed.child("batches"),
        data.x.device,
        y_p=y_p,
        y_q=y_q,
    )
    return DataTarget.from_cloud(data, batches)
