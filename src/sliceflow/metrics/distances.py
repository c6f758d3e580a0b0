"""Metrics of two samples: sliced and Fréchet distances, coverage, detection, FID."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from sliceflow.arrays import Floats
from sliceflow.devices import resolve_device
from sliceflow.engine.wasserstein import squared_wasserstein
from sliceflow.errors import DataError
from sliceflow.metrics.rows import RowsLike, as_flat_rows, nearest, require_same_width
from sliceflow.validation import from_tensor, require_int

if TYPE_CHECKING:
    from sklearn.ensemble import RandomForestClassifier
    from torch.utils.data import ConcatDataset

# Directions whose projections are in memory at a time. More take more memory; fewer
# are slower.
_DIRECTIONS_PER_BLOCK = 64
# The two-sample test has five folds, as is usual.
_N_FOLDS = 5
# With this many rows or more it has three folds, to save time: a classifier learns
# enough from two thirds of them.
_MANY_ROWS = 1_000
_N_FOLDS_OF_MANY_ROWS = 3
# Every fold needs a row of each sample.
_MIN_ROWS = _N_FOLDS


def sliced_wasserstein(
    a: RowsLike,
    b: RowsLike,
    *,
    n_directions: int = 1000,
    random_state: int = 0,
    directions: Floats | None = None,
) -> float:
    """Sliced 2-Wasserstein distance between two samples, exact on each direction.

    SW₂(a, b)² = 1/H · Σ_h ∫₀¹ |F⁻¹_{a,h}(t) − F⁻¹_{b,h}(t)|² dt

    Parameters
    ----------
    a, b : (n, d) and (m, d)
        The two samples, of any sizes.
    n_directions : int, default 1000
        H, the number of random unit directions.
    random_state : int, default 0
        The seed of the directions.
    directions : (H, d) or None, default None
        Unit vectors to use instead of random ones.

    Returns
    -------
    distance : float

    Examples
    --------
    >>> a = np.random.default_rng(0).normal(size=(400, 3))
    >>> round(sliced_wasserstein(a, a + np.array([3.0, 0, 0])), 1)  # |shift| / sqrt(d)
    1.7
    """
    require_int("n_directions", n_directions, 1)
    require_int("random_state", random_state, 0)
    a, b = _as_float64(a, b)
    if directions is None:
        rng = np.random.default_rng(random_state)
        directions = rng.standard_normal((n_directions, a.shape[1]))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    else:
        directions = as_flat_rows(directions, "directions")
        require_same_width(directions, a, "directions and a")
    total = 0.0
    n_blocks = max(1, len(directions) // _DIRECTIONS_PER_BLOCK)
    for block in np.array_split(directions, n_blocks):
        z_a = torch.from_numpy(block @ a.T)
        z_b = torch.from_numpy(block @ b.T)
        total += float(squared_wasserstein(z_a, z_b).sum())
    return float(np.sqrt(total / len(directions)))


def _as_float64(a: RowsLike, b: RowsLike) -> tuple[Floats, Floats]:
    """Two samples as rows of equally many float64 numbers."""
    a = as_flat_rows(a, "a").astype(np.float64)
    b = as_flat_rows(b, "b").astype(np.float64)
    require_same_width(a, b, "a and b")
    return a, b


def frechet_distance(a: RowsLike, b: RowsLike) -> float:
    """Squared 2-Wasserstein distance between the Gaussians fitted to two samples.

    FD = |μ_a − μ_b|² + tr Σ_a + tr Σ_b − 2·tr (Σ_a Σ_b)^½

    **It is biased upwards for few samples**: two samples of n and m rows from the same
    standard Gaussian in d dimensions have a distance of about (1/n + 1/m)·(d + d(d +
    1)/4). Compare only at equal counts, and with real rows.

    Parameters
    ----------
    a, b : (n, d) and (m, d)
        The two samples.

    Returns
    -------
    distance : float

    Examples
    --------
    >>> a = np.random.default_rng(0).normal(size=(1000, 2))
    >>> round(frechet_distance(a, 2 * a + 3), 1)  # |3, 3|^2 + tr(1 + 4 - 2*2)
    19.7
    """
    a, b = _as_float64(a, b)
    if min(len(a), len(b)) < 2:
        raise DataError(
            f"a covariance needs two rows, but there are {len(a)} and {len(b)}"
        )
    shift = a.mean(axis=0) - b.mean(axis=0)
    root_a = _covariance_root(a)
    root_b = _covariance_root(b)
    # The singular values of R_a R_bᵀ sum to tr (Σ_a Σ_b)^½.
    cross = np.linalg.svd(root_a @ root_b.T, compute_uv=False).sum()
    squares = np.square(root_a).sum() + np.square(root_b).sum()
    return float(shift @ shift + max(0.0, squares - 2 * cross))


def frechet_distance_pca(
    samples: RowsLike, held_out: RowsLike, train: RowsLike, n_components: int = 32
) -> float:
    """Fréchet distance of samples to held-out rows, in principal components.

    The components are those of the train rows. Only the leading ones are seen: a shift
    along another one is not.

    Parameters
    ----------
    samples, held_out, train : (n, d), (m, d) and (N, d)
        The samples, held-out rows to compare them with, and the rows whose components
        are taken.
    n_components : int, default 32
        How many leading components are compared.

    Returns
    -------
    distance : float

    Examples
    --------
    >>> a = np.random.default_rng(0).normal(size=(1000, 4)) * [9, 1, 1, 1]
    >>> round(frechet_distance_pca(a + [0, 5, 0, 0], a, a, n_components=1), 1)
    0.0
    """
    require_int("n_components", n_components, 1)
    train_rows = as_flat_rows(train, "train")
    samples = as_flat_rows(samples, "samples")
    held_out = as_flat_rows(held_out, "held_out")
    require_same_width(samples, train_rows, "samples and train")
    require_same_width(held_out, train_rows, "held_out and train")
    mean, axes = principal_axes(train_rows, n_components)
    return frechet_distance((samples - mean) @ axes.T, (held_out - mean) @ axes.T)


def principal_axes(rows: NDArray[Any], n: int) -> tuple[Floats, Floats]:
    """The mean (d,) of rows, and their n leading principal axes (n, d)."""
    mean = rows.mean(axis=0, dtype=np.float64)
    centered = rows - mean
    if len(rows) < rows.shape[1]:
        _, _, axes = np.linalg.svd(centered, full_matrices=False)
        return mean, axes[:n]
    # Far faster for many rows. Eigenvalues ascend.
    _, vectors = np.linalg.eigh(centered.T @ centered)
    return mean, vectors.T[::-1][:n]


def _covariance_root(x: Floats) -> Floats:
    """R with RᵀR the covariance of x, of at most d rows."""
    n, d = x.shape
    centered = (x - x.mean(axis=0)) / np.sqrt(n - 1)
    if n <= d:
        return np.asarray(centered)
    values, vectors = np.linalg.eigh(centered.T @ centered)
    deviations = np.sqrt(np.maximum(values, 0))
    return np.asarray(deviations[:, None] * vectors.T)


def coverage(
    samples: RowsLike, held_out: RowsLike, *, k: int = 5, device: str = "auto"
) -> float:
    """Share of held-out rows that have a sample near (Naeem et al., ICML 2020).

    1/m · Σ_i [min_j |y_j − x_i| ≤ r_k(x_i)] with samples y, held-out rows x, and r_k
    the distance to the k-th nearest other held-out row. As many new real rows score
    about 1 − 2⁻ᵏ, which is .97 for k = 5.

    Parameters
    ----------
    samples, held_out : (n, d) and (m, d), or pictures
        The samples, and held-out rows.
    k : int, default 5
        Which of the nearest other held-out rows says how far "near" is.
    device : "cpu", "cuda" or "auto", default "auto"
        Where nearest rows are searched.

    Returns
    -------
    share : float

    Examples
    --------
    >>> a, b = np.random.default_rng(0).normal(size=(2, 1000, 2))
    >>> round(coverage(a, b, device="cpu"), 2)
    0.97
    """
    held_out_distances, _ = nearest(
        held_out, held_out, k, device=device, exclude_self=True
    )
    sample_distances, _ = nearest(held_out, samples, device=device)
    return float(np.mean(sample_distances[:, 0] <= held_out_distances[:, -1]))


def two_sample_score(
    samples: RowsLike,
    held_out: RowsLike,
    *,
    classifier: Any = None,
    scoring: str = "accuracy",
    n_trees: int = 200,
    random_state: int = 0,
) -> float:
    """Classifier two-sample test (C2ST): can samples be told from held-out rows?

    It is the cross-validated score of a classifier that tells samples from held-out
    rows: its accuracy, or what `scoring` names. Accuracy and AUC are 0.5 if it cannot,
    which is ideal, and 1 if it always can. Equally many of both are used (a random
    subset of the larger), in five shuffled folds; 1,000 or more in three, which find as
    much. A random forest detects what distances do not: values that never occur,
    columns that never vary. See Lopez-Paz and Oquab, ICLR 2017.

    Parameters
    ----------
    samples, held_out : (n, d) and (m, d)
        The samples, and held-out rows.
    classifier : classifier of scikit-learn or None, default None
        None takes a random forest.
    scoring : str, default "accuracy"
        The name of a score of scikit-learn; "roc_auc" returns the AUC.
    n_trees : int, default 200
        The number of trees of the forest.
    random_state : int, default 0
        The seed of the subset, the folds and the forest.

    Returns
    -------
    score : float
        The mean score over the folds.

    Examples
    --------
    >>> a, b = np.random.default_rng(0).normal(size=(2, 100, 2))
    >>> two_sample_score(a, b + 9, n_trees=10)
    1.0
    """
    from sklearn.base import clone
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.metrics import get_scorer
    from sklearn.model_selection import StratifiedKFold

    require_int("n_trees", n_trees, 1)
    require_int("random_state", random_state, 0)
    if classifier is None:  # one of the user's may take missing values
        samples = as_flat_rows(samples, "samples")
        held_out = as_flat_rows(held_out, "held_out")
        require_same_width(samples, held_out, "samples and held_out")
    X = _equally_many(samples, held_out, random_state)
    n = len(X) // 2
    y = np.repeat([0, 1], n)
    is_forest = classifier is None
    if is_forest:
        classifier = RandomForestClassifier(n_trees, random_state=random_state)
    n_folds = _N_FOLDS
    if n >= _MANY_ROWS:
        n_folds = _N_FOLDS_OF_MANY_ROWS
    folds = StratifiedKFold(n_folds, shuffle=True, random_state=random_state)
    scorer = get_scorer(scoring)
    scores = []
    for fitted_rows, scored_rows in folds.split(X, y):
        fold_classifier = clone(classifier)
        if is_forest:
            _fit_by_all_threads(fold_classifier, X[fitted_rows], y[fitted_rows])
        else:
            fold_classifier.fit(X[fitted_rows], y[fitted_rows])
        scores.append(scorer(fold_classifier, X[scored_rows], y[scored_rows]))
    return float(np.mean(scores))


def _equally_many(samples: RowsLike, held_out: RowsLike, seed: int) -> NDArray[Any]:
    """Samples (n, d), and then equally many held-out rows: random ones of the larger.

    Both are in random order.
    """
    samples = np.asarray(from_tensor(samples))
    held_out = np.asarray(from_tensor(held_out))
    n = min(len(samples), len(held_out))
    if n < _MIN_ROWS:
        fact = f"there are {len(samples)} samples and {len(held_out)} held-out rows"
        raise DataError(fact, f"pass {_MIN_ROWS} or more")
    rng = np.random.default_rng(seed)
    chosen_samples = samples[rng.permutation(len(samples))[:n]]
    chosen_held_out = held_out[rng.permutation(len(held_out))[:n]]
    return np.concatenate((chosen_samples, chosen_held_out))


def _fit_by_all_threads(
    forest: RandomForestClassifier, X: NDArray[Any], y: NDArray[Any]
) -> None:
    """Fit a forest by all threads. It predicts by one, so that sums have one order."""
    forest.set_params(n_jobs=torch.get_num_threads())
    forest.fit(X, y)
    forest.set_params(n_jobs=1)


def fid(
    samples: NDArray[Any],
    real: NDArray[Any],
    *,
    n_pixel_values: int = 256,
    weights: str | os.PathLike[str] | None = None,
    device: str = "auto",
) -> float:
    """Fréchet inception distance (2048 features) of samples to real pictures.

    torch-fidelity, the field's reference, computes it; the extra ``sliceflow[metrics]``
    installs it, and it downloads the network on first use. FID depends on the counts:
    the usual one compares 50,000 samples with all training pictures. Real rows score
    ``fid(held_out, train)``.

    Parameters
    ----------
    samples, real : (n, h, w) or (n, h, w, 3)
        Pictures of whole numbers.
    n_pixel_values : int, default 256
        Pixels are 0 to ``n_pixel_values - 1``.
    weights : str, path or None, default None
        The network's file, for machines without internet access.
    device : "cpu", "cuda" or "auto", default "auto"
        Where the network runs.

    Returns
    -------
    distance : float

    Examples
    --------
    >>> fid(flow.particles_[:50_000], train.images)  # doctest: +SKIP
    """
    require_int("n_pixel_values", n_pixel_values, 2)
    sample_set = _as_dataset(samples, n_pixel_values)
    real_set = _as_dataset(real, n_pixel_values)
    try:
        from torch_fidelity import calculate_metrics  # type: ignore[import-untyped]
    except Exception as error:
        # Not only ImportError: a torchvision that does not match torch raises a
        # RuntimeError.
        raise ImportError(
            f"FID needs torch-fidelity and a torchvision that fits torch ({error}); "
            "pip install 'sliceflow[metrics]' torchvision"
        ) from error
    options = {}
    if weights is not None:
        options["feature_extractor_weights_path"] = os.fspath(weights)
    metrics = calculate_metrics(
        input1=sample_set,
        input2=real_set,
        fid=True,
        cuda=resolve_device(device).type == "cuda",
        cache=False,
        verbose=False,
        **options,
    )
    return float(metrics["frechet_inception_distance"])


def _as_dataset(
    pictures: NDArray[Any], n_pixel_values: int
) -> ConcatDataset[torch.Tensor]:
    """Pictures as a dataset of bytes (3, h, w); gray ones get three equal channels."""
    from torch.utils.data import ConcatDataset

    pictures = np.asarray(pictures)
    if pictures.ndim not in (3, 4) or pictures.dtype.kind not in "iu":
        fact = f"pictures are {pictures.dtype} of shape {pictures.shape}"
        raise DataError(fact, "pass whole numbers")
    n, height, width = pictures.shape[:3]
    pixels = (pictures * (255 / (n_pixel_values - 1))).round().astype(np.uint8)
    pixels = pixels.reshape(n, height, width, -1)
    pixels = np.broadcast_to(pixels, (n, height, width, 3))
    # torch wants arrays in row-major order that can be written to.
    channels_first = np.require(pixels.transpose(0, 3, 1, 2), requirements=["C", "W"])
    # Its items are those of the tensor.
    return ConcatDataset([torch.from_numpy(channels_first)])  # type: ignore[list-item]
