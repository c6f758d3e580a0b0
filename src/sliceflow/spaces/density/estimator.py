"""`SlicedDensity`: the density of vectors, by a flow from data to noise."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from sklearn.utils import TransformerTags
from sklearn.utils.validation import check_array, validate_data
from torch import Tensor

from sliceflow.devices import require_memory, resolve_device
from sliceflow.engine import conditions
from sliceflow.engine.conditions import LabelEncoder
from sliceflow.engine.encoded_y import EncodedY
from sliceflow.engine.labels import as_array
from sliceflow.engine.random import RandomState, Seed
from sliceflow.errors import DataError
from sliceflow.models.estimator import Estimator
from sliceflow.models.protocols import ParticleResult
from sliceflow.models.saving import FitRecord
from sliceflow.models.vector_rows import (
    VectorRows,
    as_rows,
    checked_by_sklearn,
    set_columns,
)
from sliceflow.spaces.density.fit import DensityAdapter
from sliceflow.spaces.density.fitted import FittedDensity
from sliceflow.spaces.density.plan import DensityPlan
from sliceflow.spaces.density.support import Bounds
from sliceflow.validation import is_bool, is_int, is_real, require


class SlicedDensity(Estimator[VectorRows, FittedDensity]):
    """The density of vectors: how likely rows are, exactly normalised.

    The flow goes from data to noise. A Gaussian mixture is mapped to N(0, I) first.
    Then each step rotates the rows, Θx, maps every coordinate towards N(0, 1) by a
    smooth increasing T, and rotates back. So the whole map has an inverse, and

        log p(x) = log N(noise; 0, I) + Σ over steps of log|det| = … + Σ log T′.

    The mixture, the number of steps and the smoothing are chosen by the likelihood of
    held-out rows; then all rows are fitted.

    X is an (n, d) array, tensor or DataFrame of finite numbers. A density is of
    continuous columns: if one value fills more than a tenth of a column, the values of
    that column are spread uniformly over the smallest step between them, with a
    warning. A constant column is an error. y is None or class labels (n,): then each
    class has its own density. y may also be numbers (n, l): then mean, scale and
    correlations of x are regressed on y first, and the flow is that of what is left
    over.

    Parameters
    ----------
    n_steps : steps of the flow, or "auto"
    smoothing : how smooth the maps are, or "auto". A larger number is smoother
    n_components : normal components of the mixture that the flow starts from, or "auto"
    bounds : None, or (low, high), the ends of the columns: numbers, or one for each
        column, infinite where there are none. Beyond them the density is 0
    device : "auto" uses a GPU if there is one
    random_state : int, RandomState, Generator or None; the same seed and machine give
        the same bits
    verbose : 1 logs how far the fit is
    keep_rows : write the rows into the model's file, too, so that rows can be added and
        removed after it is loaded

    Attributes
    ----------
    classes_ : the class labels, if y is labels
    plan_ : what the fit did, with every "auto" resolved; print it
    history_ : dict of lists: stage, step, sliced distance to noise before the step,
        seconds elapsed
    n_iter_ : steps done, in all classes
    n_features_in_ : d
    feature_names_in_ : the column names, if X is a DataFrame whose column names are
        strings

    Examples
    --------
    >>> import numpy as np
    >>> from sliceflow import SlicedDensity
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> density = SlicedDensity(random_state=0).fit(X)
    >>> near, far = density.score_samples([[0.0, 0.0], [9.0, 9.0]])
    >>> bool(near > far)
    True
    >>> noise = density.transform(X)  # near N(0, I)
    >>> bool(np.allclose(density.inverse_transform(noise), X, atol=1e-5))
    True
    """

    _state_types = (FittedDensity, VectorRows)
    plan_: DensityPlan
    classes_: np.ndarray
    n_features_in_: int

    def __init__(
        self,
        *,
        n_steps: int | Literal["auto"] = "auto",
        smoothing: float | Literal["auto"] = "auto",
        n_components: int | Literal["auto"] = "auto",
        bounds: Bounds | None = None,
        device: str | torch.device = "auto",
        random_state: RandomState = None,
        verbose: int = 0,
        keep_rows: bool = False,
    ) -> None:
        self.n_steps = n_steps
        self.smoothing = smoothing
        self.n_components = n_components
        self.bounds = bounds
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.keep_rows = keep_rows

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn's tools and checks know of this estimator."""
        tags = super().__sklearn_tags__()
        tags.estimator_type = "density_estimator"
        tags.transformer_tags = TransformerTags()
        return tags

    def _adapter(self, like_fitted: bool = False) -> DensityAdapter:
        n_steps = None
        if self.n_steps != "auto":
            ok = is_int(self.n_steps, 0)
            require(ok, "n_steps", self.n_steps, "'auto' or an int of at least 0")
            n_steps = int(self.n_steps)
        smoothing = None
        if self.smoothing != "auto":
            ok = is_real(self.smoothing, 0)
            require(ok, "smoothing", self.smoothing, "'auto' or a number from 0 on")
            smoothing = float(self.smoothing)
        n_components = None
        if self.n_components != "auto":
            ok = is_int(self.n_components, 1)
            what = "'auto' or an int of at least 1"
            require(ok, "n_components", self.n_components, what)
            n_components = int(self.n_components)
        verbose = self.verbose
        ok = is_bool(verbose) or is_int(verbose, 0)
        require(ok, "verbose", verbose, "a bool, or an int of at least 0")
        require(is_bool(self.keep_rows), "keep_rows", self.keep_rows, "True or False")
        validate: Callable[[Any], np.ndarray] = partial(
            checked_by_sklearn, estimator=self
        )
        if like_fitted:
            validate = self._validate_like_fitted
        device = resolve_device(self.device)
        return DensityAdapter(
            self.bounds, n_steps, smoothing, n_components, device, validate
        )

    def _validate_like_fitted(self, X: Any) -> np.ndarray:
        """X after scikit-learn's checks, with the columns of the model."""
        self._fitted_state()
        array = validate_data(
            self,
            X,
            dtype=["float64", "float32"],
            ensure_all_finite=False,
            reset=False,
        )
        return np.asarray(array)

    def _store(
        self,
        record: FitRecord[VectorRows, FittedDensity],
        particles: ParticleResult | None = None,
    ) -> None:
        super()._store(record, particles)
        fitted = record.fitted
        self.__dict__.pop("classes_", None)
        if isinstance(fitted.y_encoder, LabelEncoder):
            self.classes_ = fitted.y_encoder.classes
        set_columns(self, fitted.plan.n_columns, fitted.names)

    # Densities

    def score_samples(self, X: Any, y: Any = None) -> np.ndarray:
        """log p(x) of each row in the units of X, (n,); −∞ beyond the bounds.

        If the model has classes, this is log p(x | y) with y, one label for all rows or
        one for each, and log p(x) = log Σ p(y)·p(x | y) without.
        """
        fitted = self._fitted_state()
        array = as_rows(X, self._validate_like_fitted)
        encoded_y = self._encode_y(fitted, y, len(array))
        return np.asarray(fitted.log_density(array, encoded_y).cpu().numpy())

    def log_prob(self, X: Any, y: Any = None) -> np.ndarray:
        """The same as `score_samples`, by the name that PyTorch's flows use."""
        return self.score_samples(X, y)

    def score(self, X: Any, y: Any = None) -> float:
        """The mean log-density of held-out rows: higher is better.

        `GridSearchCV` and `cross_val_score` use this score.
        """
        return float(self.score_samples(X, y).mean())

    def transform(self, X: Any, y: Any = None) -> Any:
        """Rows as noise: if X is like the fitted rows, it is near N(0, I).

        If the model has classes and y is None, each row takes its likeliest class.
        """
        fitted = self._fitted_state()
        array = as_rows(X, self._validate_like_fitted)
        encoded_y = self._encode_y(fitted, y, len(array))
        noise = fitted.to_noise(array, encoded_y)
        if isinstance(X, Tensor):
            return noise.to(X.device)
        return np.ascontiguousarray(noise.cpu().numpy())

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Fit, and the fitted rows as noise."""
        return self.fit(X, y).transform(X, y)

    def inverse_transform(self, X: Any, y: Any = None) -> Any:
        """Noise (n, d) as rows in the form and the units of the fitted X.

        If the model has classes, y says which: one label for all, or one for each.
        """
        fitted = self._fitted_state()
        array = check_array(as_array(X, "X"), dtype="float64")
        if array.shape[1] != self.n_features_in_:
            fact = f"X has {array.shape[1]} columns but the model has "
            fact += f"{self.n_features_in_}"
            raise DataError(fact, "pass rows as `transform` returns them")
        encoded_y = self._encode_y(fitted, y, len(array))
        rows = fitted.from_noise(torch.from_numpy(array), encoded_y)
        return fitted.in_users_form(rows)

    def sample(
        self,
        n: int = 1,
        *,
        y: Any = None,
        random_state: RandomState = None,
        return_y: bool = False,
    ) -> Any:
        """Fresh samples.

        Parameters
        ----------
        n : number of samples
        y : one label for all samples, or one for each. None takes classes in the data's
            proportions
        random_state : int, RandomState, Generator or None (new samples on every call)
        return_y : also return the labels of the samples

        Returns
        -------
        n rows in the form, the units and the type of X; with `return_y`, a pair: the
        rows and their y (None without classes)
        """
        fitted = self._fitted_state()
        require(is_int(n, 1), "n", n, "an int of at least 1")
        encoded_y = self._encode_y(fitted, y, n)
        hint = "draw fewer at a time"
        nbytes = fitted.sample_bytes(n)
        require_memory(nbytes, fitted.device, f"n={n} samples need", hint)
        seed = Seed.from_random_state(random_state)
        if encoded_y is None:
            encoded_y = fitted.draw_y(n, seed.child("conditions"))
        noise = seed.child("noise").normal(n, fitted.plan.n_columns)
        rows = fitted.in_users_form(fitted.from_noise(noise, encoded_y))
        if not return_y:
            return rows
        if fitted.y_encoder is None:
            return rows, None
        return rows, conditions.decode_y(fitted.y_encoder, encoded_y)

    def _encode_y(self, fitted: FittedDensity, y: Any, n: int) -> EncodedY | None:
        """The encoded y of n rows, for one condition or n of them; None without y."""
        if y is None:
            return None
        return conditions.encode_y(fitted.y_encoder, y, n, "rows")
