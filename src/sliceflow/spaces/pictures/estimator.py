"""`ImageFlow`: generative models of pictures, with class labels or observed pixels."""

from __future__ import annotations

import copy
import os
import warnings
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from sliceflow.devices import resolve_device
from sliceflow.engine import conditions, events, transports
from sliceflow.engine.paper import PICTURES, with_preset
from sliceflow.engine.random import Seed
from sliceflow.errors import is_int, need
from sliceflow.metrics.copied import copied
from sliceflow.models.checkpoints import CheckpointWriter, digest, identity, same_on_all
from sliceflow.models.file import Fields
from sliceflow.models.limits import Allowance
from sliceflow.models.ranks import Ranks
from sliceflow.models.saved import Saved, restore_rest
from sliceflow.models.schema import restore_parameters
from sliceflow.online.growing import Growing
from sliceflow.spaces.pictures import saved, schedules
from sliceflow.spaces.pictures.data import PictureData
from sliceflow.spaces.pictures.fit import prepare, run
from sliceflow.spaces.pictures.fitted import FittedPictures
from sliceflow.spaces.pictures.inpainting import without_hidden
from sliceflow.spaces.pictures.layout import Layout, part_of
from sliceflow.spaces.pictures.online import PicturesOnline
from sliceflow.spaces.pictures.options import PictureOptions
from sliceflow.spaces.pictures.plan import PicturePlan, check_parameters, choose_operands, stages_of

__all__ = ["ImageFlow"]

_MIN_SCORED = 2_000  # `score` draws at least this many samples


class ImageFlow(Growing, Saved, BaseEstimator):  # type: ignore[misc]
    """Generative model for pictures: local directions, from coarse to fine.

    `partial_fit` adds pictures and `forget` removes them.

    Parameters
    ----------
    schedule : "auto", a preset ("mnist", "cifar10", "celeba"), or text in the paper's notation, such as
        ``"1[1] 2[2] 4[4] 8[7,5,3]"``; see `sliceflow.schedules`
    n_particles : number of particles to keep; None takes twice the number of pictures (each once, if
        there are mirror images as well), or the smallest multiple of this that is at least 10,000. The
        fit may move more to improve the model: at least 2,000, and per class 200, or 1,000 if classes
        have separate maps
    quality : "draft", "standard" or "best", or the number of steps per stage. The names are 3, 8 and
        25 steps, or 18, 48 and 150 if all pictures share maps and particles start as noise
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
    patch_basis : the basis of a tile's directions: "pixels" combines all pixels; "cosines" combines a
        few cosines; "random" replaces tiles by the paper's random patches. "auto" takes pixels for
        drawings, where less than a fifth of the pixels are neither dark nor light, else cosines
    n_clusters : divides pictures without labels into this many clusters, each with its own maps
        (`sliceflow.spaces.pictures.clusters`); 1 turns clustering off. "auto" is 25 for colour
        pictures, and fewer if clusters would have fewer than 2,000 different pictures; 30 for grey
        ones, and fewer if clusters would have fewer than 1,000 pictures or 470,000·√steps values,
        because small clusters are copied. Clustering is off with sorted transport or a mask
    preset : None, or "paper": the flow of Du et al. (2023) as printed. Parameters left at their
        defaults take the paper's values (`sliceflow.engine.paper`): slow, for comparison
    options : PictureOptions or None; rarely changed settings, None takes the defaults
    verbose : 1 shows a progress bar

    Attributes
    ----------
    particles_ : batched samples as pictures
    particle_conditions_ : their labels, or None
    classes_ : the class labels, if there are any
    schedule_ : the stages of the fit
    layout_ : shape and dtype of the pictures, a `sliceflow.spaces.pictures.layout.Layout`
    observed_ : (h, w) booleans, True where a pixel is known; None without `observed`
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

    _fitted: FittedPictures

    def __init__(
        self,
        schedule: str = "auto",
        n_particles: int | None = None,
        quality: str | int = "standard",
        amplifier: str | float = "auto",
        n_pixel_values: int = 256,
        mirror: bool = False,
        device: str | torch.device = "auto",
        random_state: Any = None,
        *,
        observed: Any = None,
        transport: str | transports.Transport = "auto",
        patch_basis: str = "auto",
        n_clusters: str | int = "auto",
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
        self.preset = preset
        self.options = options
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        listeners: events.Listeners = (),
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 60.0,
        ranks: Ranks | None = None,
    ) -> Self:
        """Move particles onto the pictures.

        Parameters
        ----------
        X : pictures (n, h, w) or (n, h, w, c), integers 0..n_pixel_values-1 or floats in [0, 1]
        y : None, or class labels (n,) of any hashable kind
        listeners : a callable that takes a `sliceflow.events.Event` after every step, or a tuple of
            them; returning True ends the stage
        checkpoint_dir : a folder for the state of the fit, or None. To resume an interrupted fit, call
            it again with the same data, parameters and folder. The result has the same bits as an
            uninterrupted fit
        checkpoint_every : seconds between checkpoints
        ranks : from `sliceflow.models.ranks.joined`. All ranks call this with the same parameters and their
            own pictures and labels. `particles_` and `particle_conditions_` are this rank's share;
            ``ranks.gather(flow.particles_)`` gives all
        """
        parameters, listening = self._parameters(), events.listening(listeners)
        all_ranks, name = ranks or Ranks(), type(self).__name__
        same_on_all(all_ranks, name, parameters, resolve_device(self.device), checkpoint_dir)
        data = self._read(X, y, all_ranks)
        seed = all_ranks.broadcast(Seed.of(self.random_state))
        job, writer = prepare(parameters, data, seed, ranks), None
        if checkpoint_dir is not None:
            fixed = None if self.random_state is None else seed
            digests = data.digests(all_ranks) | {"observed": _digest_of(job.mask)}
            fit_identity = identity(name, job.plan.settings(), data.device, fixed, **digests)
            writer = CheckpointWriter(checkpoint_dir, checkpoint_every, fit_identity, seed, all_ranks)
            if writer.seed != seed:
                job = prepare(parameters, data, writer.seed, ranks)
        history, all_listeners = events.History(), [*all_ranks.agreeing(listening)]
        if self.verbose and all_ranks.first:
            all_listeners.append(events.Progress())
        with events.closing(all_listeners):
            result = run(job, history, all_listeners, writer, ranks)
        # Set attributes last: a fit that fails or is interrupted leaves the old model unchanged.
        self._keep(job.plan, *result, history.as_columns())
        if ranks is None and self.observed is None:
            made = torch.as_tensor(result.particles).flatten(1)
            if shown := copied([(job.data.raw.T, made.T)], job.plan.device):
                warnings.warn(
                    f"the particles copy pictures of X ({shown}); more shrinkage than "
                    f"{job.plan.shrinkage:.2g} (PictureOptions), or a lower quality, help",
                    UserWarning,
                    stacklevel=2,
                )
        return self

    def plan(self, X: Any, y: Any = None) -> PicturePlan:
        """What ``fit(X, y)`` would do, with every "auto" resolved; fits nothing."""
        seed = Seed.of(copy.deepcopy(self.random_state))  # a generator must not advance
        return prepare(self._parameters(), self._read(X, y, Ranks()), seed, None).plan

    def _read(self, X: Any, y: Any, ranks: Ranks) -> PictureData:
        return PictureData.of(
            X,
            y,
            n_pixel_values=self.n_pixel_values,
            observed=self.observed,
            device=self.device,
            ranks=ranks,
        )

    def _keep(
        self,
        plan: PicturePlan,
        fitted: FittedPictures,
        particles: Any,
        y: np.ndarray | None,
        history: dict[str, list[Any]],
    ) -> None:
        super()._keep(plan, fitted, particles, y, history)
        self.schedule_ = list(fitted.levels.stages)

    def sample(
        self, n_samples: int = 1, y: Any = None, random_state: Any = None, *, return_y: bool = False
    ) -> Any:
        """Offline samples: fresh noise moved by the fitted maps.

        Parameters
        ----------
        n_samples : int
        y : one label for all, one per sample, an (n_samples, C) array of class weights, or None
            for labels in the data's proportions
        random_state : int, RandomState, Generator or None (new samples on every call)
        return_y : also return the labels of the samples

        Returns
        -------
        pictures of the shape and type of X; with `return_y`, a pair: the pictures and their labels
        (None if there are none)
        """
        fitted, n, seed, codes = self._drawn(n_samples, y, random_state)
        pictures = fitted.samples(n, codes, seed)
        if not return_y:
            return pictures
        condition = fitted.condition
        if condition is None or condition.hidden or codes is None:
            return pictures, None
        return pictures, condition.decode(codes)

    def evolution(
        self,
        n_samples: int = 1,
        y: Any = None,
        random_state: Any = None,
        *,
        n_frames: int = 20,
        X: Any = None,
    ) -> Any:
        """The samples that `sample` gives for the same seed, on their way from where they start.

        Parameters
        ----------
        n_samples, y, random_state : as in `sample`
        n_frames : pictures of each sample, at least 2; fewer if the model has fewer steps
        X : for a model with `observed`: pictures to complete, each `n_samples` times, as by `inpaint`

        Returns
        -------
        (frames, n_samples, h, w[, c]), with X (frames, n, n_samples, h, w[, c]): first the start, last
        the samples. In between, detail above the resolution of the step is still that of the start

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from sliceflow import ImageFlow
        >>> images = load_digits().images.astype("uint8")
        >>> flow = ImageFlow(n_particles=500, quality=2, n_pixel_values=17, random_state=0).fit(images)
        >>> way = flow.evolution(3, random_state=1, n_frames=5)
        >>> way.shape, bool((way[-1] == flow.sample(3, random_state=1)).all())
        ((5, 3, 8, 8), True)
        """
        need(is_int(n_frames, 2), "n_frames", n_frames, "an int of at least 2")
        if X is not None:
            if y is not None:
                raise ValueError("y was given, but completions have no labels; omit y")
            return self._completions(X, n_samples, random_state, int(n_frames))
        fitted, n, seed, codes = self._drawn(n_samples, y, random_state)
        return fitted.evolution(n, codes, seed, int(n_frames))

    def _drawn(
        self, n_samples: int, y: Any, random_state: Any
    ) -> tuple[FittedPictures, int, Seed, Tensor | None]:
        """What samples are made of: the model, their number, their seed and their codes."""
        fitted = self._with_maps()
        if fitted.levels.known is not None:
            raise ValueError(
                "this model completes pictures (observed=…); call inpaint(X), or evolution(X=X)"
            )
        need(is_int(n_samples, 1), "n_samples", n_samples, "an int of at least 1")
        n, seed = int(n_samples), Seed.of(random_state)
        fitted.check_memory(n)  # before codes are allocated
        return fitted, n, seed, fitted.codes_for(n, y, seed)

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the sliced Wasserstein distance between fresh samples and pictures: higher is better.

        −SW₂ over 100 random directions of the pixels in [−1, 1]. With y, samples take the pictures'
        labels, and pictures of a class are compared with samples of that class. Pass held-out pictures:
        on the fitted ones the model that copies best would win. The score is rough for pictures;
        `sliceflow.metrics` has better ones. `GridSearchCV` and `cross_val_score` use it.
        """
        fitted = self._with_maps()
        if fitted.levels.known is not None:
            raise ValueError(
                "this model completes pictures (observed=…); score cannot rate completions"
            )
        layout = fitted.layout
        seed = Seed.of(copy.deepcopy(self.random_state)).child("score")  # a generator must not advance
        raw, codes = layout.read(X), None
        n = raw.shape[1]
        if fitted.condition is not None and not fitted.condition.hidden and y is not None:
            codes = fitted.condition.encode(conditions.as_array(y))
            if len(codes) != n:
                raise ValueError(
                    f"X has {n} pictures but y has {len(codes)}; pass one label per picture"
                )
        times = -(-_MIN_SCORED // n)
        if codes is None:
            codes_of = fitted.codes_for(times * n, None, seed)
        else:
            codes_of = codes.repeat(times, *[1] * (codes.dim() - 1))
        drawn = layout.read(fitted.samples(times * n, codes_of, seed))
        rows, fresh = (layout.encode(t, Seed(0), dequantize=False) for t in (raw, drawn))
        rule = events.HeldOut(rows, Seed(0), codes, None if codes is None else codes_of)
        return -rule.distance(fresh)

    def inpaint(
        self,
        X: Any,
        n_samples: int = 1,
        random_state: Any = None,
        *,
        mask: Any = None,
        y: Any = None,
    ) -> Any:
        """Complete pictures from their `observed` pixels, or from any other part of them.

        A flow that was fitted with `observed` moves the hidden pixels. A model that keeps its pictures,
        as those of colour pictures do, completes from any `mask` by its pictures instead.

        Parameters
        ----------
        X : pictures as in `fit`; unobserved pixels are ignored and may be masked (`numpy.ma`)
        n_samples : completions per picture
        mask : None for models with `observed`; else (h, w) booleans, True where pixels are known, or a
            name such as "top"
        y : with `mask` and a model of classes: the class of every picture, or one class

        Returns
        -------
        (n, n_samples, h, w[, c]); observed pixels equal those of X, bit for bit
        """
        if mask is None and y is None:
            return self._completions(X, n_samples, random_state)[0]
        fitted = self._with_maps()
        if fitted.observed is not None:
            given = "mask" if mask is not None else "y"
            raise ValueError(
                f"{given} was given, but a model with observed= has its own mask and no labels; omit "
                f"{given}"
            )
        if mask is None:
            raise ValueError("y was given without mask; pass the known part as mask, too")
        if fitted.sums is None:
            raise ValueError(
                "mask needs a model that keeps its pictures, and this one keeps none"
            )
        need(is_int(n_samples, 1), "n_samples", n_samples, "an int of at least 1")
        known = part_of(mask, fitted.layout, "mask")
        X, seed = without_hidden(X, known), Seed.of(random_state)
        return fitted.completed(X, known, int(n_samples), y, seed)

    def _completions(self, X: Any, n_samples: int, random_state: Any, n_frames: int = 1) -> Any:
        """Completions on their way: (frames, n, n_samples, h, w[, c])."""
        fitted = self._with_maps()
        where = fitted.observed
        if where is None:
            raise ValueError(
                "the model was fitted without observed=, so it has no mask; fit with observed=, or "
                "pass mask= to a model that keeps its pictures"
            )
        need(is_int(n_samples, 1), "n_samples", n_samples, "an int of at least 1")
        X, seed = without_hidden(X, where), Seed.of(random_state)
        return fitted.completions(X, int(n_samples), seed, n_frames)

    def stages(
        self, height: int, width: int, channels: int = 1, *, joint: bool = False
    ) -> list[schedules.PictureStage]:
        """The stages for pictures of this size; can be called before `fit`.

        `joint` if neither classes nor clusters have maps of their own and particles start as noise, as
        with `observed`: then the names of `quality` are more steps. `plan` decides it by the pictures.
        """
        layout = Layout(height, width, channels, "uint8", 256)
        return stages_of(self._resolved(), layout, joint or self.observed is not None)

    @property
    def layout_(self) -> Layout:
        return self._fitted.layout

    @property
    def observed_(self) -> np.ndarray | None:
        return self._fitted.observed

    def _with_maps(self) -> FittedPictures:
        """The fitted state; raises an error if it has no maps."""
        check_is_fitted(self, "history_")
        self._fitted.check_model()
        return self._fitted

    def _begin_online(self, X: Any, rows: Any) -> PicturesOnline:
        return PicturesOnline.begin(self._parameters(), X)

    def _online_rows(self, X: Any, first: bool = False) -> Any:
        return X

    def _packed(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        return saved.packed(self._with_maps(), tensors)

    @classmethod
    def _unpacked(
        cls, header: Fields, tensors: dict[str, Tensor], device: torch.device, allowed: Allowance
    ) -> Self:
        parameters = restore_parameters(header, cls, PictureOptions)
        parameters = saved.with_mask(parameters, tensors)
        flow = cls(**parameters)
        precision = flow._parameters()["options"].precision
        flow._fitted = fitted = saved.unpacked(header, tensors, device, allowed, precision)
        layout, flow.schedule_ = fitted.layout, list(fitted.levels.stages)
        shape = (layout.height, layout.width) + ((layout.channels,) if layout.channels else ())
        restore_rest(flow, header, tensors, shape, layout.dtype)
        if layout.tensor and "particles_" in vars(flow):
            flow.particles_ = torch.from_numpy(flow.particles_)
        return flow

    def use_precision(self, precision: str) -> Self:
        """Change the precision for sampling."""
        options = replace(self.options or PictureOptions(), precision=precision)
        options.check()
        self.set_params(options=options)
        operands = choose_operands(precision, self._fitted.device)
        levels = replace(self._fitted.levels, precision=operands)
        self._fitted = replace(self._fitted, levels=levels)
        return self

    def _parameters(self) -> dict[str, Any]:
        check_parameters(self.get_params(deep=False))
        return self._resolved()

    def _resolved(self) -> dict[str, Any]:
        """The parameters, including those of the preset."""
        parameters: dict[str, Any] = self.get_params(deep=False)
        defaults = type(self)().get_params(deep=False)
        options = {"options": self.options or PictureOptions()}
        return with_preset(self.preset, parameters | options, defaults, PICTURES)


def _digest_of(mask: Tensor | None) -> str:
    return digest(None if mask is None else mask.numpy())
