"""`SlicedDensity`: the density of vectors, by a flow from data to noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import TransformerTags
from sklearn.utils.validation import check_array
from torch import Tensor

from sliceflow.arrays import Floats
from sliceflow.base.estimator import Estimator, require_sample_memory
from sliceflow.base.protocols import ParticleResult
from sliceflow.base.rows import Conditions
from sliceflow.base.saving import FitRecord
from sliceflow.base.vector_rows import (
    KnownColumns,
    VectorArray,
    VectorRows,
    as_float_array,
    set_feature_names,
    validated_by_sklearn,
    validated_like_fitted,
)
from sliceflow.devices import resolve_device
from sliceflow.engine.encoded_y import EncodedY
from sliceflow.engine.labels import as_array
from sliceflow.engine.random import RandomStateLike, Seed
from sliceflow.engine.y_encoders import ClassEncoder
from sliceflow.errors import DataError
from sliceflow.estimators.density.fit import DensityFitPlanner
from sliceflow.estimators.density.fitted import FittedDensity
from sliceflow.estimators.density.plan import DensityPlan
from sliceflow.estimators.density.progress import DensityEvent
from sliceflow.estimators.density.settings import GaussianizationParameters
from sliceflow.validation import (
    ColumnBounds,
    require_bool,
    require_int,
    require_real,
    require_verbosity,
)


class SlicedDensity(Estimator[VectorRows, FittedDensity, DensityEvent, DensityPlan]):
    """Density of vectors: how likely rows are, exactly normalized.

    The flow goes from data to noise. A Gaussian mixture is mapped to N(0, I) first.
    Then each step rotates the rows, Θx, maps every coordinate towards N(0, 1) by a
    smooth increasing T, and rotates back. So the whole map has an inverse, and

        log p(x) = log N(noise; 0, I) + log|det ∂noise/∂x|,

    where every step adds Σ log T′ to the last term.

    The mixture, the number of steps and the penalty of rough maps are chosen by trials:
    by the likelihood of held-out rows, under flows that are fitted to the others. Then
    all rows are fitted. The trials take most of the time of a fit, so `plan` leaves
    them out, and says "auto" for what they will choose. Listeners hear of every trial:
    first come events with a `trial` in words and its `held_out_log_prob`, and then the
    `sliceflow.events.FlowEvent` of every step.

    X is an (n, d) array, tensor or DataFrame of finite numbers. A density is of
    continuous columns. If one value fills more than a tenth of a column, or more than
    half of it in a class, the values of that column are spread uniformly over the
    smallest step between them, with a warning. A constant column is an error.

    y is None, class labels (n,), or continuous: columns of numbers (n, l). Each class
    gets its own density. With a continuous y, mean, scale and correlations of x are
    first regressed on y, and the flow fits the residuals.

    Parameters
    ----------
    n_steps : int or "auto", default "auto"
        Steps of the flow.
    penalty : float or "auto", default "auto"
        Penalty on how much the slope of a map changes. A larger number gives smoother
        maps.
    n_components : int or "auto", default "auto"
        Components of the Gaussian mixture from which the flow starts. A number above
        that of the rows that a trial fits, about four fifths of them, is an error.
    bounds : tuple (low, high) or None, default None
        The ends of the columns: numbers, or one number for each column, infinite where
        there is no end. Beyond them the density is 0.
    device : str or torch.device, default "auto"
        "auto" uses a GPU if there is one.
    random_state : int, RandomState, Generator or None, default None
        The same seed and machine give the same bits.
    verbose : int, default 0
        1 logs how far the fit is, to the logger "sliceflow" of Python's `logging`, or
        to stderr if no handler shows that.
    save_rows : bool, default False
        Write the rows into the model's file, too, so that rows can be added and removed
        after it is loaded. In memory, an estimator always has its rows.

    Attributes
    ----------
    classes_ : array
        The class labels, if y is labels.
    plan_ : DensityPlan
        What the fit did, with every "auto" resolved. Print it.
    history_ : dict of lists
        Columns of equal length, with an entry for each step: `stage`, `step`,
        `distance`, the sliced distance to noise before the step, `active_fraction`,
        which is 1 here, and `seconds` since the fit began, with its trials.
    n_iter_ : int
        Steps done, in all classes.
    n_features_in_ : int
        d, the number of columns.
    feature_names_in_ : array
        The column names, if X is a DataFrame whose column names are strings.

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

    _saved_types = (FittedDensity, VectorRows)
    classes_: NDArray[Any]
    n_features_in_: int

    def __init__(
        self,
        *,
        n_steps: int | Literal["auto"] = "auto",
        penalty: float | Literal["auto"] = "auto",
        n_components: int | Literal["auto"] = "auto",
        bounds: ColumnBounds | None = None,
        device: str | torch.device = "auto",
        random_state: RandomStateLike = None,
        verbose: int = 0,
        save_rows: bool = False,
    ) -> None:
        self.n_steps = n_steps
        self.penalty = penalty
        self.n_components = n_components
        self.bounds = bounds
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.save_rows = save_rows

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn's tools and checks know of this estimator."""
        tags = super().__sklearn_tags__()
        tags.estimator_type = "density_estimator"
        tags.transformer_tags = TransformerTags()
        return tags

    def _fit_planner(self, like_fitted: bool = False) -> DensityFitPlanner:
        require_int("n_steps", self.n_steps, 0, others=("auto",))
        require_real("penalty", self.penalty, 0, others=("auto",))
        require_int("n_components", self.n_components, 1, others=("auto",))
        require_verbosity(self.verbose)
        require_bool("save_rows", self.save_rows)
        parameters = GaussianizationParameters()
        if self.n_steps != "auto":
            parameters = replace(parameters, n_steps=int(self.n_steps))
        if self.penalty != "auto":
            parameters = replace(parameters, penalty=float(self.penalty))
        if self.n_components != "auto":
            parameters = replace(parameters, n_components=int(self.n_components))
        validate: Callable[[Any], NDArray[Any]] = partial(
            validated_by_sklearn, estimator=self
        )
        if like_fitted:
            validate = self._validate_like_fitted
        device = resolve_device(self.device)
        return DensityFitPlanner(
            parameters=parameters,
            bounds=self.bounds,
            device=device,
            validate=validate,
        )

    def _validate_like_fitted(self, X: Any) -> NDArray[Any]:
        """X after scikit-learn's checks, with the columns of the current rows."""
        if self._pending_rows is not None:
            columns = KnownColumns.of_rows(self._pending_rows)
        else:
            columns = KnownColumns.of_model(self._fitted_model())
        return validated_like_fitted(X, self, columns, ("float64", "float32"))

    def _set_fitted(
        self,
        record: FitRecord[VectorRows, FittedDensity],
        particles: ParticleResult[Any] | None = None,
    ) -> None:
        super()._set_fitted(record, particles)
        model = record.model
        self.__dict__.pop("classes_", None)
        if isinstance(model.y_encoder, ClassEncoder):
            self.classes_ = model.y_encoder.classes
        set_feature_names(self, model.plan.n_columns, model.names)

    # Densities

    def score_samples(self, X: Any, y: Any = None) -> Floats:
        """Log-density log p(x) of each row, in the units of X.

        With classes and without y, it is log p(x) = log Σ p(y)·p(x | y) over the
        classes.

        Parameters
        ----------
        X : array, tensor or DataFrame (n, d)
            Rows with the columns of the fitted ones.
        y : one condition, n conditions or None, default None
            With y, the result is log p(x | y). One condition counts for all rows. A
            model that was fitted to a continuous y needs it.

        Returns
        -------
        log_prob : array (n,)
            −∞ for rows beyond the bounds.
        """
        model = self._fitted_model()
        array = as_float_array(X, self._validate_like_fitted)
        log_prob = model.log_prob(array, _encode_y(model, y, len(array)))
        return np.asarray(log_prob.cpu().numpy())

    def log_prob(self, X: Any, y: Any = None) -> Floats:
        """Log-densities of rows: `score_samples`, as PyTorch's flows call it.

        Parameters
        ----------
        X : array, tensor or DataFrame (n, d)
            As in `score_samples`.
        y : one condition, n conditions or None, default None
            As in `score_samples`.

        Returns
        -------
        log_prob : array (n,)
        """
        return self.score_samples(X, y)

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-density of held-out rows: higher is better.

        `GridSearchCV` and `cross_val_score` use this score.

        Parameters
        ----------
        X : array, tensor or DataFrame (n, d)
            Held-out rows.
        y : one condition, n conditions or None, default None
            As in `score_samples`.

        Returns
        -------
        score : float
        """
        return float(self.score_samples(X, y).mean())

    def transform(self, X: Any, y: Any = None) -> NDArray[Any] | Tensor:
        """Map rows to noise. If X is like the fitted rows, the noise is near N(0, I).

        Parameters
        ----------
        X : array, tensor or DataFrame (n, d)
            Rows with the columns of the fitted ones.
        y : one condition, n conditions or None, default None
            With classes and without y, each row takes its likeliest class.

        Returns
        -------
        noise : array or tensor (n, d)
            A tensor if X is one.
        """
        model = self._fitted_model()
        array = as_float_array(X, self._validate_like_fitted)
        noise = model.to_noise(array, _encode_y(model, y, len(array)))
        if isinstance(X, Tensor):
            return noise.to(X.device)
        return np.ascontiguousarray(noise.cpu().numpy())

    def fit_transform(self, X: Any, y: Any = None) -> NDArray[Any] | Tensor:
        """Fit the rows of X, and return them as noise.

        Parameters
        ----------
        X : array, tensor or DataFrame (n, d)
            The rows.
        y : n conditions or None, default None
            As in `fit`.

        Returns
        -------
        noise : array or tensor (n, d)
            As `transform` returns it.
        """
        return self.fit(X, y).transform(X, y)

    def inverse_transform(self, X: Any, y: Any = None) -> VectorArray:
        """Map noise to rows: the inverse of `transform`.

        Parameters
        ----------
        X : array or tensor (n, d)
            Noise, such as `transform` returns.
        y : one condition, n conditions or None, default None
            The condition of each row: its class, or its continuous y. A model that was
            fitted to y needs it.

        Returns
        -------
        rows : (n, d)
            In the form and the units of the fitted X.
        """
        model = self._fitted_model()
        array = check_array(as_array(X, "X"), dtype="float64")
        if array.shape[1] != self.n_features_in_:
            fact = f"X has {array.shape[1]} columns but the model has "
            fact += f"{self.n_features_in_}"
            raise DataError(fact, "pass rows as `transform` returns them")
        noise = torch.tensor(array)  # a copy: X may be read-only
        rows = model.from_noise(noise, _encode_y(model, y, len(noise)))
        return model.in_user_form(rows)

    @overload
    def sample(
        self,
        n: int = 1,
        *,
        y: Any = None,
        random_state: RandomStateLike = None,
        return_y: Literal[False] = False,
    ) -> VectorArray: ...

    @overload
    def sample(
        self,
        n: int = 1,
        *,
        y: Any = None,
        random_state: RandomStateLike = None,
        return_y: Literal[True],
    ) -> tuple[VectorArray, NDArray[Any] | None]: ...

    def sample(
        self,
        n: int = 1,
        *,
        y: Any = None,
        random_state: RandomStateLike = None,
        return_y: bool = False,
    ) -> VectorArray | tuple[VectorArray, NDArray[Any] | None]:
        """Draw fresh samples.

        Parameters
        ----------
        n : int, default 1
            Number of samples.
        y : one condition, several, or None, default None
            One condition is for all samples. With several, n must be 1 (one sample of
            each) or their number. None takes classes in the data's proportions.
            With n=1, an empty y gives no samples.
        random_state : int, RandomState, Generator or None, default None
            With None, every call gives new samples.
        return_y : bool, default False
            Also return the labels of the samples.

        Returns
        -------
        samples : (n, d)
            In the form, the units and the type of the fitted X.
        y : array or None
            The conditions of the samples; None if there are none. Only with `return_y`.

        Examples
        --------
        >>> X = np.random.default_rng(0).normal(size=(100, 2)) + [[5, 0]]
        >>> density = SlicedDensity(n_steps=0, penalty=1, n_components=1).fit(X)
        >>> samples = density.sample(200, random_state=0)
        >>> samples.shape, bool(4.5 < samples[:, 0].mean() < 5.5)
        ((200, 2), True)
        """
        model = self._fitted_model()
        require_int("n", n, 1)
        seed = Seed.from_random_state(random_state)
        require_sample_memory(model, n, model.device)  # before y is encoded
        if y is None:
            conditions = model.draw_conditions(n, seed.child("conditions"))
        else:
            conditions = Conditions.of_samples(model.y_encoder, y, n)
        encoded_y = None
        user_y = None
        if conditions is not None:
            n = len(conditions)
            encoded_y = conditions.encoded_y
            user_y = conditions.y
        require_sample_memory(model, n, model.device)
        rows = model.sample(n, encoded_y, seed)
        if return_y:
            return rows, user_y
        return rows


def _encode_y(model: FittedDensity, y: Any, n: int) -> EncodedY | None:
    """The user's y of n rows, encoded for the model; None without y."""
    if y is None:
        return None
    return Conditions.for_model(model.y_encoder, y, n, "rows").encoded_y
