"""`ImageFlow`: generative models of pictures, with class labels or known pixels."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from sliceflow.base.flow_estimator import FlowEstimator, RequestedSamples
from sliceflow.base.presets import with_preset
from sliceflow.base.ranks import ONE_PROCESS, Communicator
from sliceflow.base.rows import Conditions
from sliceflow.devices import resolve_device
from sliceflow.engine import transports
from sliceflow.engine.random import RandomStateLike, Seed
from sliceflow.errors import DataError, ParameterError
from sliceflow.estimators.pictures.fit import PictureFitPlanner
from sliceflow.estimators.pictures.fitted import FittedPictures
from sliceflow.estimators.pictures.inpainting import PictureClasses, complete_pictures
from sliceflow.estimators.pictures.known_parts import (
    KnownPart,
    as_known,
    with_hidden_as_zero,
)
from sliceflow.estimators.pictures.layout import Layout, PictureArray
from sliceflow.estimators.pictures.options import ImageOptions, Precision
from sliceflow.estimators.pictures.paper import paper_parameters
from sliceflow.estimators.pictures.parameters import (
    PatchBasis,
    PictureParameters,
    Preset,
    Quality,
)
from sliceflow.estimators.pictures.plan import PicturePlan
from sliceflow.estimators.pictures.rows import PictureRows
from sliceflow.saved_types import ArraySpec
from sliceflow.validation import require_int, with_plain_numbers


class ImageFlow(FlowEstimator[PictureRows, FittedPictures, PicturePlan, PictureArray]):
    """Generative model for pictures: local directions, from coarse to fine.

    Particles start as noise or as mosaics of the pictures. Step by step they move onto
    the pictures, by one-dimensional optimal transport along directions that cover small
    parts of a picture; first at a coarse resolution, last at the full one [1]_.

    Parameters
    ----------
    schedule : str, default "auto"
        "auto", "paper" (its Table 2), or text in the paper's notation, such as ``"1[1]
        2[2] 4[4] 8[7,5,3]"``; see `sliceflow.schedules`.
    n_particles : int or None, default None
        Number of particles to keep: the pictures of `particles_`. None takes twice the
        number of pictures (without mirror images), or the smallest multiple of this
        that is at least 10,000. The fit may move more, so that the maps of the model
        are better. The plan has both numbers, `n_particles` and `n_moved_particles`.
    quality : "draft", "standard" or "best", default "standard"
        3, 8 or 25 steps in each stage, or 18, 48 or 150 if all pictures share maps and
        particles start as noise. On a CPU "draft" is 2 steps, or 12.
    steps_per_stage : int or None, default None
        The number of steps in each stage. None takes that of `quality`.
    amplifier : "auto" or float, default "auto"
        ξ, how strongly the flow separates classes. 0 ignores the labels; ∞ fits
        separate maps for each class. "auto" is ∞ if classes have at least 100 pictures
        on average and the transport uses histograms, else 10.
    n_pixel_values : int, default 256
        Integer pixels are 0..n_pixel_values-1; at most 2²⁰ values. A type with fewer
        values, such as bool, uses its own number.
    mirror : bool, default False
        Also fit the pictures' mirror images.
    device : str or torch.device, default "auto"
        "auto" uses a GPU if there is one.
    random_state : int, RandomState, Generator or None, default None
        The same seed and machine give the same bits.
    known : str, (h, w) array of bool or None, default None
        The pixels known in every picture, for `inpaint`: an (h, w) array, True where a
        pixel is known (`numpy.ma` and OpenCV mark what is hidden), or one of "top",
        "bottom", "left", "right", "border" (the center is missing), "center".
    transport : str or transport, default "auto"
        How to solve each direction: "auto" (histograms of 128 bins, or 1024 if classes
        share maps; sorted for small clouds), "sorted", "histogram" or "paper",
        or an object from `sliceflow.transports`.
    patch_basis : str, default "auto"
        The basis of a tile's directions: "pixels", a few "cosines", or "random", the
        paper's random patches. "auto" takes pixels for drawings, which have few gray
        pixels, else cosines.
    n_clusters : "auto" or int, default "auto"
        Divides pictures without labels into this many clusters, each with its own maps;
        1 turns clustering off. "auto" is 25 for color pictures, 30 for gray ones, and
        fewer if clusters would be small, because small clusters are copied; 1 with
        sorted transport or known pixels.
    save_rows : bool, default False
        Write the pictures into the model's file, too, so that pictures can be added and
        removed after it is loaded, and completed from any part (`inpaint`). In memory,
        an estimator always has its pictures.
    preset : "paper" or None, default None
        "paper" is the flow of [1]_ as printed. Parameters left at their defaults take
        the paper's values, which the page "Reproduce the paper" lists: slow, for
        comparison.
    options : ImageOptions or None, default None
        Rarely changed settings; None takes the defaults.
    verbose : int, default 0
        1 logs how far the fit is, to the logger "sliceflow" of Python's `logging`, or
        to stderr if no handler shows that.

    Attributes
    ----------
    particles_ : array or tensor (M, h, w[, c])
        The particles at the end of the fit, as pictures: the paper's *batched
        samples*.
    particle_conditions_ : array or None
        The labels of the particles.
    classes_ : array
        The class labels, if there are any.
    plan_ : PicturePlan
        What the fit did, with every "auto" resolved. Print it.
    history_ : dict of lists
        Columns of equal length, with an entry for each step: `stage`, `step`,
        `distance`, the sliced distance before the step, `active_fraction`, the fraction
        of maps that move, and `seconds` since the first step began (see
        `sliceflow.events.FlowEvent`).
    n_iter_ : int
        Steps done, of all stages.

    References
    ----------
    .. [1] Chao Du, Tianbo Li, Tianyu Pang, Shuicheng Yan and Min Lin, "Nonparametric
       Generative Modeling with Conditional Sliced-Wasserstein Flows", ICML 2023.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sliceflow import ImageFlow
    >>> digits = load_digits()
    >>> flow = ImageFlow(
    ...     steps_per_stage=3, n_particles=500, n_pixel_values=17, random_state=0
    ... )
    >>> flow.fit(digits.images.astype("uint8"), digits.target).sample(5, y=3).shape
    (5, 8, 8)
    """

    _saved_types = (FittedPictures, PictureRows)
    _options_type = ImageOptions
    options: ImageOptions | None

    def __init__(  # noqa: PLR0913, these are the settings of the model
        self,
        *,
        schedule: str = "auto",
        n_particles: int | None = None,
        quality: Quality = "standard",
        steps_per_stage: int | None = None,
        amplifier: Literal["auto"] | float = "auto",
        n_pixel_values: int = 256,
        mirror: bool = False,
        device: str | torch.device = "auto",
        random_state: RandomStateLike = None,
        known: (
            KnownPart | Annotated[np.ndarray, ArraySpec("h w", "bool")] | None
        ) = None,
        transport: transports.TransportName | transports.StorableTransport = "auto",
        patch_basis: Literal["auto"] | PatchBasis = "auto",
        n_clusters: Literal["auto"] | int = "auto",
        save_rows: bool = False,
        preset: Preset | None = None,
        options: ImageOptions | None = None,
        verbose: int = 0,
    ) -> None:
        self.schedule = schedule
        self.n_particles = n_particles
        self.quality = quality
        self.steps_per_stage = steps_per_stage
        self.amplifier = amplifier
        self.n_pixel_values = n_pixel_values
        self.mirror = mirror
        self.device = device
        self.random_state = random_state
        self.known = known
        self.transport = transport
        self.patch_basis = patch_basis
        self.n_clusters = n_clusters
        self.save_rows = save_rows
        self.preset = preset
        self.options = options
        self.verbose = verbose

    def inpaint(
        self,
        X: Any,
        known: Any = None,
        *,
        n: int = 1,
        y: Any = None,
        random_state: RandomStateLike = None,
    ) -> PictureArray:
        """Complete pictures from the part of them that is known.

        A model that was fitted with `known` moves the hidden pixels by its flow. A
        model that keeps its pictures (color, or ``save_rows=True``) completes from any
        `known` part, by similar pictures.

        Parameters
        ----------
        X : k pictures, as in `fit`
            Hidden pixels are ignored and may be masked (`numpy.ma`) or NaN.
        known : str, (h, w) array of bool or None, default None
            The known pixels, as in the parameter `known` of the model: True where a
            pixel is known, or a name. None for models that were fitted with `known`.
        n : int, default 1
            Completions of each picture.
        y : labels, one label or None, default None
            With `known` and a model of classes: the class of every picture, or one
            class for all.
        random_state : int, RandomState, Generator or None, default None
            With None, every call gives new completions.

        Returns
        -------
        completions : (k, n, h, w[, c]) array, or tensor if the pictures were tensors
            Known pixels equal those of X, bit for bit.

        Raises
        ------
        ParameterError
            If `known` needs pictures that the model does not keep.
        DataError
            If X, `known` or y do not fit the model.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> pictures = load_digits().images.astype("uint8")
        >>> flow = ImageFlow(
        ...     n_pixel_values=17, steps_per_stage=1, n_particles=500, save_rows=True
        ... )
        >>> flow = flow.fit(pictures[:1000])
        >>> flow.inpaint(pictures[1000:1002], "left", n=3, random_state=0).shape
        (2, 3, 8, 8)
        """
        model: FittedPictures = self._fitted_model()
        require_int("n", n, 1)
        seed = Seed.from_random_state(random_state)
        if model.known is None:
            return self._inpaint_by_similar_pictures(model, X, known, n, y, seed)
        for name, value in (("known", known), ("y", y)):
            if value is not None:
                raise DataError(
                    "the model was fitted with known=, and without labels",
                    f"omit {name}",
                )
        return model.completions(X, n, seed)[0]

    def _inpaint_by_similar_pictures(
        self, model: FittedPictures, X: Any, known: Any, n: int, y: Any, seed: Seed
    ) -> PictureArray:
        """Completions from the pictures that the model keeps, in the user's format.

        The parameters are those of `inpaint`.
        """
        if known is None:
            raise DataError(
                "the model was fitted without known=",
                "pass the known part of the pictures, such as known='left'",
            )
        is_known = as_known(known, model.layout)
        pictures = with_hidden_as_zero(X, is_known)
        training_pixels = self._kept_pictures(model)
        classes = None
        if y is not None:
            classes = _picture_classes(model, y, len(pictures), len(training_pixels))
        completed = complete_pictures(
            model.layout,
            pictures,
            is_known,
            training_pixels,
            n=n,
            seed=seed,
            classes=classes,
        )
        if model.layout.is_tensor:
            return torch.from_numpy(completed)
        return completed

    def _kept_pictures(self, model: FittedPictures) -> NDArray[Any]:
        """The pixels (n, c, h, w) of the pictures that the model keeps."""
        rows = self._rows_for_file()  # as a loaded model would have them
        if rows is not None:
            return rows.pixels
        if model.mosaics is None:
            raise ParameterError(
                "save_rows",
                self.save_rows,
                "leaves out the pictures, which completing any part needs",
                "fit it with save_rows=True, or for one part with known=",
            )
        return model.layout.read(model.mosaics.decoded_pictures(model.layout))

    def evolution(
        self,
        n: int = 1,
        *,
        y: Any = None,
        random_state: RandomStateLike = None,
        n_snapshots: int = 20,
        X: Any = None,
    ) -> PictureArray:
        """Samples on their way from the start to what `sample` draws for the same seed.

        Parameters
        ----------
        n : int, default 1
            Number of samples, as in `sample`.
        y : one label, several or None, default None
            Labels of the samples, as in `sample`.
        random_state : int, RandomState, Generator or None, default None
            With None, every call gives new samples.
        n_snapshots : int, default 20
            How many pictures show each sample on its way, at least 2. There are fewer
            if the model has fewer steps.
        X : k pictures or None, default None
            For a model with `known`: pictures to complete, each n times, as by
            `inpaint`.

        Returns
        -------
        snapshots : (s, n, h, w[, c]), or with X (s, k, n, h, w[, c])
            The first snapshot is the start, the last one the samples.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> pictures = load_digits().images.astype("uint8")
        >>> flow = ImageFlow(
        ...     n_particles=500, steps_per_stage=2, n_pixel_values=17, random_state=0
        ... )
        >>> snapshots = flow.fit(pictures).evolution(3, random_state=1, n_snapshots=5)
        >>> snapshots.shape
        (5, 3, 8, 8)
        >>> bool((snapshots[-1] == flow.sample(3, random_state=1)).all())
        True
        """
        require_int("n_snapshots", n_snapshots, 2)
        model = self._fitted_model()
        seed = Seed.from_random_state(random_state)
        if X is not None:
            if y is not None:
                raise DataError("y was given, but completions have no labels", "omit y")
            if model.known is None:
                raise DataError("the model was fitted without known=", "omit X")
            require_int("n", n, 1)
            return model.completions(X, n, seed, n_snapshots)
        requested = RequestedSamples.from_user(model, n, y, seed)
        snapshots = model.evolution(requested.n, requested.encoded_y, seed, n_snapshots)
        if model.layout.is_tensor:
            return torch.stack([torch.as_tensor(x) for x in snapshots])
        return np.stack(snapshots)

    def set_sample_precision(self, precision: Precision) -> Self:
        """Set the precision of matrix products in which a GPU draws samples from now.

        It is for what `sample`, `evolution`, `score` and, with `known`, `inpaint` draw
        after this call, and for those of a file that is saved after it; `plan_` shows
        it. A CPU always takes float32. What was fitted stays as it is: `particles_`,
        the maps, and the parameter `options`. So the next fit, also by `partial_fit`,
        `forget` or `refit`, takes ``options.precision`` for itself and its samples.

        Parameters
        ----------
        precision : "auto", "float32", "float16" or "bfloat16"
            See `ImageOptions`.

        Returns
        -------
        self : the estimator

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> pictures = load_digits().images.astype("uint8")
        >>> flow = ImageFlow(n_particles=500, steps_per_stage=1, n_pixel_values=17)
        >>> flow = flow.fit(pictures).set_sample_precision("float32")
        >>> flow.plan_.options.precision
        'float32'
        """
        model: FittedPictures = self._fitted_model()
        options = replace(model.plan.options, precision=precision)
        options.require_valid()
        plan = replace(model.plan, options=options)
        self._record = replace(self._record, model=replace(model, plan=plan))
        self.plan_ = plan
        return self

    def _fit_planner(
        self, like_fitted: bool = False, ranks: Communicator = ONE_PROCESS
    ) -> PictureFitPlanner:
        layout = None
        if like_fitted:
            layout = self._current_layout()
        return PictureFitPlanner(
            self._validated_parameters(), resolve_device(self.device), layout, ranks
        )

    def _validated_parameters(self) -> PictureParameters:
        """The parameters, checked, after the preset is applied."""
        self._require_shared_parameters(("mirror", "save_rows"))
        parameters = PictureParameters(
            schedule=self.schedule,
            n_particles=self.n_particles,
            quality=self.quality,
            steps_per_stage=self.steps_per_stage,
            amplifier=self.amplifier,
            n_pixel_values=self.n_pixel_values,
            mirror=self.mirror,
            known=self.known,
            transport=self.transport,
            patch_basis=self.patch_basis,
            n_clusters=self.n_clusters,
            preset=self.preset,
            options=self._options_or_defaults(ImageOptions),
        )
        parameters.require_valid()
        parameters = with_plain_numbers(parameters)
        if self.preset is None:
            return parameters
        defaults = type(self)()._validated_parameters()
        return with_preset(parameters, defaults, paper_parameters(defaults))

    def _current_layout(self) -> Layout:
        """The layout of the model's pictures, also if some were added since its fit."""
        if self._pending_rows is not None:
            return self._pending_rows.layout
        layout: Layout = self._fitted_model().layout
        return layout


def _picture_classes(
    model: FittedPictures, y: Any, n_pictures: int, n_training: int
) -> PictureClasses:
    """The class indices of pictures to complete, and of the training pictures.

    y has one label for each picture, or one label for all.
    """
    given = Conditions.for_model(model.y_encoder, y, n_pictures, "pictures")
    assert model.encoded_y is not None, "a model with an encoder of y has y"
    # Mirror images, whose classes come last, are no training pictures of completions.
    training = model.encoded_y.take(slice(n_training))
    return PictureClasses(given.encoded_y.values.numpy(), training.values.cpu().numpy())
