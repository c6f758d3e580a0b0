"""`ImageFlow`: generative models of pictures, with class labels or observed pixels."""

from __future__ import annotations

import copy
import os
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
from sliceflow.online.growing import Growing
from sliceflow.pictures import saved, schedules
from sliceflow.pictures.data import PictureData
from sliceflow.pictures.fit import prepare, run
from sliceflow.pictures.fitted import FittedPictures
from sliceflow.pictures.layout import Layout
from sliceflow.pictures.online import PicturesOnline
from sliceflow.pictures.options import PictureOptions
from sliceflow.pictures.plan import PicturePlan, check_parameters, choose_operands, stages_of
from sliceflow.ranks import Ranks
from sliceflow.storage.checkpoints import CheckpointWriter, digest, identity, same_on_all
from sliceflow.storage.file import Fields
from sliceflow.storage.limits import Allowance
from sliceflow.storage.models import Saved, restore_rest
from sliceflow.storage.schema import restore_parameters

__all__ = ["ImageFlow"]

_SCORED = 2_000  # fresh samples that `score` draws at least


class ImageFlow(Growing, Saved, BaseEstimator):  # type: ignore[misc]
    """Generative model for pictures: local directions, from coarse to fine.

    Pictures can also be added and forgotten, by the `partial_fit` and `forget` of `sliceflow.online`.

    Parameters
    ----------
    schedule : "auto", a preset ("mnist", "cifar10", "celeba"), or text in the paper's notation, such as
        ``"1[1] 2[2] 4[4] 8[7,5,3]"``; see `sliceflow.schedule`
    n_particles : how many particles are kept; None takes the smallest multiple of the number of
        pictures, mirror images among them, that is at least 10,000. A fit may have more, for the sake
        of a model: at least 2,000, and 200 of every class, 1,000 of one with maps of its own
    quality : "draft", "standard" or "best" (15, 50 or 200 steps per stage), or the number of steps
    amplifier : ξ, how far apart classes are held; 0 ignores the labels, ∞ gives every class maps of its
        own. "auto" is ∞ for classes of a thousand pictures or more on average, if they are counted and
        not sorted, else 10
    n_pixel_values : integer pixels are 0..n_pixel_values-1, or as many of these as their type holds;
        booleans are two
    mirror : also fit the pictures' mirror images
    device : "auto" takes a GPU where there is one
    random_state : int, RandomState, Generator or None
    observed : None, or what is known of every picture: an (h, w) mask of booleans, or one of "top",
        "bottom", "left", "right", "border" (the centre is missing), "center". Makes `inpaint` possible
    transport : "auto" (histograms of 128 bins, 1024 where classes share them; sorted for small clouds),
        or any of `sliceflow.transports`
    patch_basis : what a tile's directions are made of: "pixels", all of them; "cosines", a few at a
        time; "random": no tiles but the paper's random patches; or "auto": cosines, unless the pictures
        are drawings, of whose pixels less than a fifth are neither dark nor light
    n_clusters : pictures without labels are divided into so many clusters, each with maps of its own
        (`pictures.clusters`); 1 does not divide them. "auto" is 30, or 10 of coloured ones, and fewer
        where each would have less than a thousand pictures, or 470,000·√steps values together: they
        would be copied. Pictures that are sorted, or observed, are not divided
    preset : None, or "paper": the flow of Du et al. (2023) as it is printed. Parameters that are left
        at their defaults take the paper's values (`sliceflow.engine.paper`): slow, for comparison
    options : PictureOptions or None; settings that are rarely changed, None is all their defaults
    verbose : 1 shows a progress bar

    Attributes
    ----------
    particles_ : batched samples as pictures
    particle_conditions_ : their labels, or None
    classes_ : the class labels, if there were any
    schedule_ : the stages that were run
    layout_ : what the fitted pictures look like, a `sliceflow.pictures.layout.Layout`
    observed_ : (h, w) booleans, True where a pixel is known; None without `observed`
    plan_ : a `PicturePlan`, what the fit did with every "auto" resolved; print it
    history_ : dict of lists: stage, step, sliced distance, seconds
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
            them; one that returns True ends the stage
        checkpoint_dir : a folder for the state of the fit, or None. A fit that was killed goes on
            when it is called again with the same data, parameters and folder, and ends with the same
            bits as one that was not
        checkpoint_every : seconds between two checkpoints
        ranks : of `sliceflow.ranks.joined`, all of which call this with the same parameters.
            Pictures and labels are then this rank's own, and `particles_` and `particle_conditions_`
            this rank's share: ``ranks.gather(flow.particles_)`` are all
        """
        parameters, listening = self._parameters(), events.listening(listeners)
        together, name = ranks or Ranks(), type(self).__name__
        same_on_all(together, name, parameters, resolve_device(self.device), checkpoint_dir)
        data = self._read(X, y, together)
        seed = together.broadcast(Seed.of(self.random_state))
        job, keeper = prepare(parameters, data, seed, ranks), None
        if checkpoint_dir is not None:
            fixed = None if self.random_state is None else seed
            given = data.digests(together) | {"observed": _digest_of(job.mask)}
            of = identity(name, job.plan.settings(), data.device, fixed, **given)
            keeper = CheckpointWriter(checkpoint_dir, checkpoint_every, of, seed, together)
            if keeper.seed != seed:
                job = prepare(parameters, data, keeper.seed, ranks)
        history, heard = events.History(), [*together.agreeing(listening)]
        if self.verbose and together.first:
            heard.append(events.Progress())
        with events.closing(heard):
            done = run(job, history, heard, keeper, ranks)
        # Only now is anything kept: a fit that fails or is interrupted leaves the old model whole.
        self._keep(job.plan, *done, history.as_columns())
        return self

    def plan(self, X: Any, y: Any = None) -> PicturePlan:
        """What ``fit(X, y)`` would do, with every "auto" resolved; nothing is fitted."""
        seed = Seed.of(copy.deepcopy(self.random_state))  # a generator must not move on
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
        """What was learned replaces what was there."""
        self.plan_, self._fitted, self._online = plan, fitted, None
        self.__dict__.pop("_file", None)  # no longer the model of a file
        self.schedule_ = list(fitted.walk.stages)
        self.particles_, self.particle_conditions_ = particles, y
        self.__dict__.pop("classes_", None)
        if fitted.condition is not None and not fitted.condition.hidden:
            self.classes_ = fitted.condition.classes
        self.history_ = history
        self.n_iter_ = len(self.history_["step"])

    def sample(
        self, n_samples: int = 1, y: Any = None, random_state: Any = None, *, return_y: bool = False
    ) -> Any:
        """Offline samples: fresh noise moved by the fitted maps.

        Parameters
        ----------
        n_samples : int
        y : one label for all, one per sample, an (n_samples, C) array of class weights, or None
            for labels in the data's proportions
        random_state : int, RandomState, Generator or None (anew on every call)
        return_y : also return the labels of the samples, or None if there are none

        Returns
        -------
        pictures like those fitted; with `return_y` a pair of these and their labels
        """
        fitted = self._with_maps()
        if fitted.walk.known is not None:
            raise ValueError("this model completes pictures (observed=…); call inpaint(pictures)")
        need(is_int(n_samples, 1), "n_samples", n_samples, "an int of at least 1")
        n, seed = int(n_samples), Seed.of(random_state)
        fitted.check_memory(n)  # before so many codes are made
        codes = fitted.codes_for(n, y, seed)
        pictures = fitted.samples(n, codes, seed)
        if not return_y:
            return pictures
        condition = fitted.condition
        named = condition is not None and not condition.hidden and codes is not None
        return pictures, condition.decode(codes) if condition and codes is not None and named else None

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the sliced Wasserstein distance between fresh samples and pictures: more is better.

        −SW₂ over 100 random directions of the pixels in [−1, 1]. With y, samples take the pictures' own
        labels, and pictures of a class are compared with samples of that class. Give held-out pictures:
        of those that were fitted the best copy would win. It is a rough judge of pictures;
        `sliceflow.metrics` has finer ones. `GridSearchCV` and `cross_val_score` use it.
        """
        fitted = self._with_maps()
        if fitted.walk.known is not None:
            raise ValueError("this model completes pictures (observed=…), which score does not judge")
        layout = fitted.layout
        seed = Seed.of(copy.deepcopy(self.random_state)).child("score")  # a generator must not move on
        raw, codes = layout.read(X), None
        n = raw.shape[1]
        if fitted.condition is not None and not fitted.condition.hidden and y is not None:
            codes = fitted.condition.encode(conditions.as_array(y))
            if len(codes) != n:
                raise ValueError(f"X has {n} pictures but y has {len(codes)}; pass one label a picture")
        times = -(-_SCORED // n)
        if codes is None:
            codes_of = fitted.codes_for(times * n, None, seed)
        else:
            codes_of = codes.repeat(times, *[1] * (codes.dim() - 1))
        drawn = layout.read(fitted.samples(times * n, codes_of, seed))
        rows, fresh = (layout.encode(t, Seed(0), dequantize=False) for t in (raw, drawn))
        rule = events.HeldOut(rows, Seed(0), codes, None if codes is None else codes_of)
        return -rule.distance(fresh)

    def inpaint(self, X: Any, n_samples: int = 1, random_state: Any = None) -> Any:
        """Complete pictures of which only the `observed` pixels are known.

        Parameters
        ----------
        X : pictures as fitted; their unobserved pixels are ignored, and may be masked (`numpy.ma`)
        n_samples : completions of each

        Returns
        -------
        (n, n_samples, h, w[, c]); observed pixels are the given ones, bit for bit
        """
        fitted = self._with_maps()
        where = fitted.observed
        if where is None:
            raise ValueError("the model was fitted without observed=; nothing tells what to complete")
        need(is_int(n_samples, 1), "n_samples", n_samples, "an int of at least 1")
        if isinstance(X, np.ma.MaskedArray) and X.shape[1:3] == where.shape:
            hidden = np.ma.getmaskarray(X)
            if not hidden[:, where].any():
                X = X.filled(0)
        return fitted.completions(X, where, n_samples, Seed.of(random_state))

    def stages(self, height: int, width: int) -> list[schedules.PictureStage]:
        """The stages that pictures of this size go through; nothing needs to be fitted."""
        layout = Layout(height, width, None, "uint8", 256)
        return stages_of(self._resolved(), layout)

    @property
    def layout_(self) -> Layout:
        return self._fitted.layout

    @property
    def observed_(self) -> np.ndarray | None:
        return self._fitted.observed

    def _with_maps(self) -> FittedPictures:
        """The fitted state, if there are maps in it."""
        check_is_fitted(self, "history_")
        self._fitted.check_model()
        return self._fitted

    def _begin_online(self, X: Any) -> PicturesOnline:
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
        layout, flow.schedule_ = fitted.layout, list(fitted.walk.stages)
        shape = (layout.height, layout.width) + ((layout.channels,) if layout.channels else ())
        restore_rest(flow, header, tensors, shape, layout.dtype)
        if layout.tensor and "particles_" in vars(flow):
            flow.particles_ = torch.from_numpy(flow.particles_)
        return flow

    def use_precision(self, precision: str) -> Self:
        """Sample in another precision than the model was fitted with."""
        options = replace(self.options or PictureOptions(), precision=precision)
        options.check()
        self.set_params(options=options)
        operands = choose_operands(precision, self._fitted.device)
        walk = replace(self._fitted.walk, precision=operands)
        self._fitted = replace(self._fitted, walk=walk)
        return self

    def _parameters(self) -> dict[str, Any]:
        check_parameters(self.get_params(deep=False))
        return self._resolved()

    def _resolved(self) -> dict[str, Any]:
        """The parameters, those of the preset among them."""
        given: dict[str, Any] = self.get_params(deep=False)
        defaults = type(self)().get_params(deep=False)
        options = {"options": self.options or PictureOptions()}
        return with_preset(self.preset, given | options, defaults, PICTURES)


def _digest_of(mask: Tensor | None) -> str:
    return digest(None if mask is None else mask.numpy())
