"""Two samples: distances (sliced Wasserstein, Fréchet), coverage, a classifier's test, and FID."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from sliceflow.devices import resolve_device
from sliceflow.errors import from_tensor
from sliceflow.metrics.pairs import as_rows, nearest, same_width

_MANY = 1_000  # rows of which a classifier learns enough from two thirds


def sliced_wasserstein(
    a: Any,
    b: Any,
    *,
    n_directions: int = 1000,
    seed: int = 0,
    directions: np.ndarray | None = None,
) -> float:
    """Sliced 2-Wasserstein distance between two samples of any sizes, exact on each direction.

    SW₂(a, b)² = 1/H · Σ_h ∫₀¹ |F⁻¹_{a,h}(t) − F⁻¹_{b,h}(t)|² dt

    Parameters
    ----------
    a, b : (n, d) and (m, d)
    n_directions, seed : H random unit directions, and their seed
    directions : (H, d) unit vectors to use instead

    Examples
    --------
    >>> a = np.random.default_rng(0).normal(size=(400, 3))
    >>> round(sliced_wasserstein(a, a + np.array([3.0, 0, 0])), 1)  # |shift| / sqrt(d)
    1.7
    """
    a = as_rows(a, "a").astype(np.float64)
    b = as_rows(b, "b").astype(np.float64)
    same_width(a, b, "a and b")
    if directions is None:
        directions = np.random.default_rng(seed).standard_normal(
            (n_directions, a.shape[1])
        )
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    n = len(a)
    m = len(b)
    total = 0.0
    # The two quantile functions are constant between the levels i/n and j/m: integrate piecewise.
    levels = np.union1d(np.arange(1, n + 1) / n, np.arange(1, m + 1) / m)
    width = np.diff(levels, prepend=0.0)
    i, j = (np.minimum(((levels - width / 2) * k).astype(int), k - 1) for k in (n, m))
    for block in np.array_split(directions, max(1, len(directions) // 64)):
        za = np.sort(block @ a.T, axis=1)
        zb = np.sort(block @ b.T, axis=1)
        total += float((np.square(za[:, i] - zb[:, j]) @ width).sum())
    return float(np.sqrt(total / len(directions)))


def frechet_distance(a: Any, b: Any) -> float:
    """Squared 2-Wasserstein distance between the Gaussians fitted to two samples.

    FD = |μ_a − μ_b|² + tr Σ_a + tr Σ_b − 2·tr (Σ_a Σ_b)^½

    **It is biased upwards for few samples**: two samples of n and m rows from the same standard
    Gaussian in d dimensions have a distance of about (1/n + 1/m)·(d + d(d + 1)/4). Compare only at
    equal counts, and with the floor.

    Examples
    --------
    >>> a = np.random.default_rng(0).normal(size=(1000, 2))
    >>> round(frechet_distance(a, 2 * a + 3), 1)  # |3, 3|^2 + tr(1 + 4 - 2*2)
    19.7
    """
    a = as_rows(a, "a").astype(np.float64)
    b = as_rows(b, "b").astype(np.float64)
    same_width(a, b, "a and b")
    if min(len(a), len(b)) < 2:
        raise ValueError(
            f"a covariance needs two rows, but there are {len(a)} and {len(b)}"
        )
    apart = a.mean(axis=0) - b.mean(axis=0)
    root_a = _root(a)
    root_b = _root(b)  # singular values of R_a R_bᵀ sum to tr (Σ_a Σ_b)^½
    cross = np.linalg.svd(root_a @ root_b.T, compute_uv=False).sum()
    squares = np.square(root_a).sum() + np.square(root_b).sum()
    return float(apart @ apart + max(0.0, squares - 2 * cross))


def frechet_distance_pca(
    samples: Any, test: Any, train: Any, n_components: int = 32
) -> float:
    """Fréchet distance of samples to test rows in the leading principal components of train rows.

    Examples
    --------
    >>> a = np.random.default_rng(0).normal(size=(1000, 4)) * [9, 1, 1, 1]
    >>> round(frechet_distance_pca(a + [0, 5, 0, 0], a, a, n_components=1), 1)  # not seen: not in it
    0.0
    """
    mean, axes = principal_axes(as_rows(train, "train"), n_components)
    samples = as_rows(samples, "samples")
    test = as_rows(test, "test")
    return frechet_distance((samples - mean) @ axes.T, (test - mean) @ axes.T)


def principal_axes(rows: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The mean (d,) of rows, and their n leading principal axes (n, d)."""
    mean = rows.mean(axis=0, dtype=np.float64)
    centred = rows - mean
    if len(rows) < rows.shape[1]:
        return mean, np.linalg.svd(centred, full_matrices=False)[2][:n]
    return mean, np.linalg.eigh(centred.T @ centred)[1].T[::-1][:n]  # far faster


def _root(x: np.ndarray) -> np.ndarray:
    """R with RᵀR the covariance of x, of at most d rows."""
    n, d = x.shape
    centred = (x - x.mean(axis=0)) / np.sqrt(n - 1)
    if n <= d:
        return np.asarray(centred)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    return np.asarray(np.sqrt(np.maximum(values, 0))[:, None] * vectors.T)


def coverage(samples: Any, real: Any, *, k: int = 5, device: str = "auto") -> float:
    """Share of real rows that have a sample near (Naeem et al., ICML 2020).

    1/m · Σ_i [min_j |y_j − x_i| ≤ r_k(x_i)] with samples y, real rows x, and r_k the distance to the k-th
    nearest other real row. As many new real rows score about 1 − 2⁻ᵏ, which is .97 for k = 5.

    Examples
    --------
    >>> a, b = np.random.default_rng(0).normal(size=(2, 1000, 2))
    >>> round(coverage(a, b, device="cpu"), 2)
    0.97
    """
    radii = nearest(real, real, k, device=device, leave_out_itself=True)[0][:, -1]
    return float(np.mean(nearest(real, samples, device=device)[0][:, 0] <= radii))


def two_sample_accuracy(
    samples: Any,
    real: Any,
    *,
    classifier: Any = None,
    scoring: str = "accuracy",
    n_trees: int = 200,
    seed: int = 0,
) -> float:
    """Cross-validated score of a classifier that separates samples from real rows; 0.5 is ideal.

    Equally many of both are used (a random subset of the larger), in five shuffled folds; 1,000 or more
    in three, which find as much. A random forest detects what distances do not: values that never occur,
    columns that never vary.

    Parameters
    ----------
    samples, real : (n, d) and (m, d)
    classifier : any classifier of scikit-learn, instead of a forest with n_trees trees
    scoring : "accuracy", or another score of scikit-learn such as "roc_auc"
    seed : of the subset, the folds and the forest

    Examples
    --------
    >>> a, b = np.random.default_rng(0).normal(size=(2, 100, 2))
    >>> two_sample_accuracy(a, b + 9, n_trees=10)
    1.0
    """
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    rng = np.random.default_rng(seed)
    n = min(len(samples), len(real))
    if n < 5:
        raise ValueError(
            f"there are {len(samples)} samples and {len(real)} real rows; pass 5 or more"
        )
    a, b = (
        np.asarray(from_tensor(x))[rng.permutation(len(x))[:n]] for x in (samples, real)
    )
    if classifier is None:
        classifier = RandomForestClassifier(n_trees, random_state=seed)
    X = np.concatenate((a, b))
    y = np.repeat([0, 1], n)
    folds = StratifiedKFold(5 if n < _MANY else 3, shuffle=True, random_state=seed)
    return float(cross_val_score(classifier, X, y, cv=folds, scoring=scoring).mean())


def fid(
    samples: np.ndarray,
    real: np.ndarray,
    *,
    n_pixel_values: int = 256,
    weights: str | os.PathLike[str] | None = None,
    device: str = "auto",
) -> float:
    """Fréchet inception distance (2048 features) of samples to real pictures.

    By torch-fidelity, the field's reference, from the extra ``sliceflow[metrics]``, which downloads the
    network on first use. It depends on the counts: the usual one compares 50,000 samples with all
    training pictures. Its floor is ``fid(test, train)``.

    Parameters
    ----------
    samples, real : pictures (n, h, w) or (n, h, w, 3) of whole numbers
    n_pixel_values : pixels are 0..n_pixel_values-1
    weights : the network's file, for machines without internet access

    Examples
    --------
    >>> fid(flow.particles_[:50_000], train.images)  # doctest: +SKIP
    """
    given = [_as_dataset(x, n_pixel_values) for x in (samples, real)]
    try:
        from torch_fidelity import calculate_metrics  # type: ignore[import-untyped]
    except (
        Exception
    ) as error:  # a torchvision that does not match torch raises a RuntimeError
        fact = f"FID needs torch-fidelity and a torchvision that fits torch ({error})"
        raise ImportError(
            f"{fact}; pip install 'sliceflow[metrics]' torchvision"
        ) from error
    options: Any = dict(
        cuda=resolve_device(device).type == "cuda", cache=False, verbose=False
    )
    if weights is not None:
        options |= {"feature_extractor_weights_path": os.fspath(weights)}
    found = calculate_metrics(input1=given[0], input2=given[1], fid=True, **options)
    return float(found["frechet_inception_distance"])


def _as_dataset(images: Any, n_pixel_values: int) -> Any:
    """Pictures as a dataset of bytes (3, h, w); grey ones get three equal channels."""
    import torch
    from torch.utils.data import ConcatDataset

    images = np.asarray(images)
    if images.ndim not in (3, 4) or images.dtype.kind not in "iu":
        raise ValueError(
            f"pictures are {images.dtype} of shape {images.shape}; pass whole numbers"
        )
    pixels = (images * (255 / (n_pixel_values - 1))).round().astype(np.uint8)
    pixels = np.broadcast_to(
        pixels.reshape(*pixels.shape[:3], -1), (*pixels.shape[:3], 3)
    )
    bytes_ = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
    return ConcatDataset([bytes_])  # type: ignore[list-item]  # its items are those of the tensor
