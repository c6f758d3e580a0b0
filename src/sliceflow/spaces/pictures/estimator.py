"""`ImageFlow`: generative models of pictures, with class labels or observed pixels."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Self

import numpy as np
import torch
from torch import Tensor

from sliceflow.devices import resolve_device
from sliceflow.engine import conditions, transports
from sliceflow.engine.paper import PICTURES, with_preset
from sliceflow.engine.random import Seed
from sliceflow.errors import ParameterError, is_int, require
from sliceflow.fields import Array
from sliceflow.models.flow_estimator import FlowEstimator
from sliceflow.models.ranks import SINGLE, Ranks
from sliceflow.spaces.pictures.fit import PictureAdapter
from sliceflow.spaces.pictures.fitted import FittedPictures
from sliceflow.spaces.pictures.inpainting import complete_pictures, with_hidden_as_zero
from sliceflow.spaces.pictures.layout import as_mask
from sliceflow.spaces.pictures.options import PictureOptions
from sliceflow.spaces.pictures.plan import PicturePlan, check_parameters
from sliceflow.spaces.pictures.rows import PictureRows


class ImageFlow(FlowEstimator[PictureRows, FittedPictures]):
    """Generative model for pictures: local directions, from coarse to fine.

    Parameters
    ----------
    schedule : "auto", "paper" (its Table 2), or text in the paper's notation, such as
        ``"1[1] 2[2] 4[4] 8[7,5,3]"``; see `sliceflow.schedules`
    n_particles : number of particles to keep; None takes twice the number of pictures (without mirror
        images), or the smallest multiple of this that is at least 10,000. The fit may move more
    quality : "draft", "standard" or "best", or the number of steps per stage. The names are 3, 8 and
        25 steps, or 18, 48 and 150 if all pictures share maps and particles start as noise. On a CPU
        "draft" is 2 steps, or 12
    amplifier : ξ, how strongly the flow separates classes; 0 ignores the labels, ∞ fits separate maps
        for each class. "auto" is ∞ if classes have at least 100 pictures on average and the
        transport uses histograms, else 10
    n_pixel_values : integer pixels are 0..n_pixel_values-1; a type with fewer values, such as bool,
        uses its own number
    mirror : also fit the pictures' mirror images
    device : "auto" uses a GPU if there is one
    random_state : int, RandomState, Generator or None
    observed : None, or the pixels known in every picture, for `inpaint`: an (h, w) mask of booleans, or
        one of "top", "bottom", "left", "right", "border" (the centre is missing), "center"
    transport : "auto" (histograms of 128 bins, or 1024 if classes share maps; sorted for small
        clouds), or any of `sliceflow.transports`
    patch_basis : the basis of a tile's directions: "pixels", a few "cosines", or "random", the paper's
        random patches. "auto" takes pixels for drawings, which have few grey pixels, else cosines
    n_clusters : divides pictures without labels into this many clusters, each with its own maps; 1
        turns clustering off. "auto" is 25 for colour pictures, 30 for grey ones, and fewer if clusters
        would be small, because these are copied; 1 with sorted transport or a mask
    keep_rows : keep the pictures in the model and its file, so that pictures can be added, removed, and
        completed from any part (`inpaint`)
    preset : None, or "paper": the flow of Du et al. (2023) as printed. Parameters left at their
        defaults take the paper's values: slow, for comparison
    options : PictureOptions or None; rarely changed settings, None takes the defaults
    verbose : 1 prints how far the fit is

    Attributes
    ----------
    particles_ : batched samples as pictures
    particle_conditions_ : their labels, or None
    classes_ : the class labels, if there are any
    plan_ : a `PicturePlan`: what the fit did, with every "auto" resolved; print it
    history_ : dict of lists: stage, step, sliced distance, seconds elapsed
    n_iter_ : steps done, of all stages

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sliceflow import ImageFlow
    >>> digits = load_digits()
    >>> flow = ImageFlow(quality=3, n_particles=500, n_pixel_values=17, random_state=0)
    >>> flow.fit(digits.images.astype("uint8"), digits.target).sample(5, y=3).shape
    (5, 8, 8)
    """

    _saved_types = (FittedPictures, PictureRows)
    plan_: PicturePlan
    _options_type = PictureOptions

    def __init__(  # noqa: PLR0913, these are the settings of the model
        self,
        *,
        schedule: str = "auto",
        n_particles: int | None = None,
        quality: str | int = "standard",
        amplifier: str | float = "auto",
        n_pixel_values: int = 256,
        mirror: bool = False,
        device: str | torch.device = "auto",
        random_state: Any = None,
        observed: str | Annotated[np.ndarray, Array("h w", torch.bool)] | None = None,
        transport: str | transports.SavedTransport = "auto",
        patch_basis: str = "auto",
        n_clusters: str | int = "auto",
        keep_rows: bool = False,
        preset: str | None = None,
        options: PictureOptions | None = None,
        verbose: int = 0,
    ) -> None:
        self.schedule = schedule
        self.n_particles = n_particles
        self.quality = quality
        self.amplifier = amplifier
        self.n_pixel_values = n_pixel_values
        self.mirror = mirror
        self.device = device
        self.random_state = random_state
        self.observed = observed
        self.transport = transport
        self.patch_basis = patch_basis
        self.n_clusters = n_clusters
        self.keep_rows = keep_rows
        self.preset = preset
        self.options = options
        self.verbose = verbose

    def inpaint(
        self,
        X: Any,
        mask: Any = None,
        *,
        n: int = 1,
        y: Any = None,
        random_state: Any = None,
    ) -> Any:
        """Complete pictures from the part of them that is known.

        A model that was fitted with `observed` moves the hidden pixels by its flow. A model that keeps
        its pictures (colour, or ``keep_rows=True``) completes from any `mask`, by similar pictures.

        Parameters
        ----------
        X : pictures as in `fit`; hidden pixels are ignored and may be masked (`numpy.ma`) or NaN
        mask : what is known: an (h, w) mask of booleans, or a name as in `observed`. None for models
            that were fitted with `observed`
        n : completions of each picture
        y : with `mask` and a model of classes: the class of every picture, or one class for all

        Returns
        -------
        (k, n, h, w[, c]) for k pictures; known pixels equal those of X, bit for bit

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> images = load_digits().images.astype("uint8")
        >>> flow = ImageFlow(n_pixel_values=17, quality=1, n_particles=500, keep_rows=True)
        >>> flow.fit(images[:1000]).inpaint(images[1000:1002], "left", n=3, random_state=0).shape
        (2, 3, 8, 8)
        """
        fitted: FittedPictures = self._fitted_state()
        require(is_int(n, 1), "n", n, "an int of at least 1")
        seed = Seed.from_random_state(random_state)
        if fitted.observed is not None:
            if mask is not None or y is not None:
                given = "mask" if mask is not None else "y"
                raise ValueError(
                    f"a model with observed= has its own mask and no labels; omit {given}"
                )
            return fitted.completions(X, n, seed)[0]
        if mask is None:
            raise ValueError(
                "pass mask=, what is known of the pictures, such as mask='left'"
            )
        known = as_mask(mask, fitted.layout, "mask")
        codes = None
        pictures = with_hidden_as_zero(X, known)
        like = self._kept_pictures(fitted)
        if y is not None:
            if fitted.conditions is None or fitted.conditions.condition.hidden:
                raise ValueError(
                    "y was given but the model was fitted without labels; omit y"
                )
            condition = fitted.conditions.condition
            learnt = fitted.conditions.codes[: len(like)]
            asked = condition.encode(conditions.repeated(condition, y, len(pictures)))
            if len(asked) != len(pictures):
                fact = f"y has {len(asked)} labels for {len(pictures)} pictures"
                raise ValueError(f"{fact}; pass one each")
            codes = asked.numpy(), learnt.cpu().numpy()
        done = complete_pictures(
            fitted.layout, pictures, known, like, n=n, seed=seed, codes=codes
        )
        return torch.from_numpy(done) if fitted.layout.tensor else done

    def _kept_pictures(self, fitted: FittedPictures) -> np.ndarray:
        """The pixels (n, c, h, w) of the pictures that the model keeps."""
        rows = self._rows_for_file()  # as a loaded model would have them
        if rows is not None:
            return rows.pixels
        if fitted.mosaics is None:
            fact = "keeps no pictures, but a mask needs them"
            hint = "fit it with keep_rows=True, or for one mask with observed="
            raise ParameterError("keep_rows", self.keep_rows, fact, hint)
        return fitted.layout.read(fitted.mosaics.decoded_pictures(fitted.layout))

    def evolution(
        self,
        n: int = 1,
        *,
        y: Any = None,
        random_state: Any = None,
        n_frames: int = 20,
        X: Any = None,
    ) -> Any:
        """The samples that `sample` gives for the same seed, on their way from where they start.

        Parameters
        ----------
        n, y, random_state : as in `sample`
        n_frames : pictures of each sample, at least 2; fewer if the model has fewer steps
        X : for a model with `observed`: pictures to complete, each n times, as by `inpaint`

        Returns
        -------
        (frames, n, h, w[, c]), with X (frames, k, n, h, w[, c]): first the start, last the samples

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> images = load_digits().images.astype("uint8")
        >>> flow = ImageFlow(n_particles=500, quality=2, n_pixel_values=17, random_state=0).fit(images)
        >>> strategy = flow.evolution(3, random_state=1, n_frames=5)
        >>> strategy.shape, bool((strategy[-1] == flow.sample(3, random_state=1)).all())
        ((5, 3, 8, 8), True)
        """
        require(is_int(n_frames, 2), "n_frames", n_frames, "an int of at least 2")
        fitted = self._fitted_state()
        seed = Seed.from_random_state(random_state)
        if X is not None:
            if y is not None:
                raise ValueError("y was given, but completions have no labels; omit y")
            if fitted.observed is None:
                raise ValueError("the model was fitted without observed=; omit X")
            return fitted.completions(X, n, seed, n_frames)
        n, codes = self._codes_for(fitted, n, y, seed)
        frames = fitted.trajectory(n, codes, seed, n_frames)
        return (
            torch.stack(frames) if isinstance(frames[0], Tensor) else np.stack(frames)
        )

    def use_precision(self, precision: str) -> Self:
        """Change the precision for sampling on a GPU."""
        options = replace(self.options or PictureOptions(), precision=precision)
        options.check()
        self.set_params(options=options)
        fitted: FittedPictures = self._fitted_state()
        plan = replace(
            fitted.plan, options=replace(fitted.plan.options, precision=precision)
        )
        self._model = replace(self._model, fitted=replace(fitted, plan=plan))
        return self

    def _adapter(
        self, like_fitted: bool = False, ranks: Ranks = SINGLE
    ) -> PictureAdapter:
        parameters = self.get_params(deep=False)
        check_parameters(parameters)
        parameters["options"] = self.options or PictureOptions()
        if self.preset is not None:
            defaults = type(self)().get_params(deep=False)
            defaults["options"] = PictureOptions()
            parameters = with_preset(parameters, defaults, PICTURES)
        layout = None
        if like_fitted:
            pending = self._pending_rows
            layout = self._fitted_state().layout if pending is None else pending.layout
        return PictureAdapter(parameters, resolve_device(self.device), layout, ranks)
