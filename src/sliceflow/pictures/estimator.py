"""`ImageFlow`: the door for pictures, ℓ-SWF and ℓ-CSWF with class labels or observed pixels.

It reads what is given (`picture_data`), makes what a fit starts from (`picture_start`), sends the
particles down the pyramid's levels (`walk`), and draws from the model (`picture_samples`).
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from sliceflow.devices import resolve_device
from sliceflow.engine import conditions, events, transports
from sliceflow.engine.compact import Step
from sliceflow.engine.flow import Run
from sliceflow.engine.random import Seed
from sliceflow.errors import is_int, need
from sliceflow.online.growing import Growing
from sliceflow.pictures import saved, schedules
from sliceflow.pictures.data import PictureData
from sliceflow.pictures.layout import Layout
from sliceflow.pictures.online import PicturesOnline
from sliceflow.pictures.options import PictureOptions
from sliceflow.pictures.plan import (
    check_parameters,
    choose_clusters,
    choose_operands,
    choose_particles,
    steps_per_stage,
)
from sliceflow.pictures.samples import Offline, proportional_codes, sample_codes
from sliceflow.pictures.start import PictureStart, begin
from sliceflow.ranks import Ranks
from sliceflow.storage.checkpoints import CheckpointWriter, identity, same_on_all
from sliceflow.storage.file import Fields
from sliceflow.storage.limits import Allowance
from sliceflow.storage.models import Saved

__all__ = ["ImageFlow"]


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
        time; or "auto": cosines, unless the pictures are drawings, of whose
        pixels less than a fifth are neither dark nor light
    n_clusters : pictures without labels are divided into so many clusters, each with maps of its own
        (`pictures.clusters`); 1 does not divide them. "auto" is 30, or 10 of coloured ones, and fewer
        where each would have less than a thousand pictures, or 470,000·√steps values together: they
        would be copied. Pictures that are sorted, or observed, are not divided
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

    _condition: conditions.Labels | None

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
        self._check_parameters()
        listening = events.listening(listeners)
        together = ranks or Ranks()
        same_on_all(together, self, resolve_device(self.device), checkpoint_dir)
        data = PictureData.of(
            X,
            y,
            n_pixel_values=self.n_pixel_values,
            observed=self.observed,
            device=self.device,
            ranks=together,
        )
        seed, keeper = together.broadcast(Seed.of(self.random_state)), None
        if checkpoint_dir is not None:
            of = identity(self, data.device, seed, **data.digests(together))
            keeper = CheckpointWriter(checkpoint_dir, checkpoint_every, of, seed, together)
            seed = keeper.seed
        if self.mirror:
            data = data.with_mirror_images()
        if data.condition is None and self.observed is None:
            m = choose_particles(self.n_particles, data.n, None)
            k = choose_clusters(self, m, data.n, data.layout.shape)
            if k > 1:
                data = data.clustered(k, seed.child("data"), self._options.upsampling, together)
        start = begin(self, data, seed, ranks)
        data = replace(data, order=start.batches.order)
        history = events.History()
        heard: list[events.Listener] = [history, *together.agreeing(listening)]
        if self.verbose and together.first:
            heard.append(events.Progress())
        run = Run()
        kept_up: Any = nullcontext()
        if keeper is not None:
            kept_up = keeper.running(run, start.particles, history, None, start.share.first)

        with events.closing(heard), kept_up:
            model = start.walk.simulate(
                start.particles,
                lambda i: data.cloud(seed.child("data", i), self._options.dequantize, start.walk.apart),
                start.transport,
                start.noise,
                start.n_knots,
                heard,
                start.batches,
                run,
            )

        self._keep(data, start, model, together)
        self.history_ = history.as_columns()
        self.n_iter_ = len(self.history_["step"])
        return self

    def _keep(
        self, data: PictureData, start: PictureStart, model: list[list[Step]], ranks: Ranks
    ) -> None:
        """What is learned. Only now: a fit that fails or is interrupted leaves the old model whole."""
        pictures = data.layout.write(start.given_back(ranks))
        self._online = None
        self.__dict__.pop("_file", None)  # no longer the model of a file
        self._walk, self._model, self._layout = start.walk, model, data.layout
        self._condition, self._codes = data.condition, data.codes
        self._device, self._mask = data.device, start.mask
        self._n_rows = data.place.total
        self.schedule_ = start.walk.stages
        self.particles_ = pictures
        self.particle_conditions_ = None
        if data.names is not None and start.rows is not None:
            self.particle_conditions_ = data.names[start.rows[start.kept.slice].cpu().numpy()]
        if data.condition is not None and not data.condition.hidden:
            self.classes_ = data.condition.classes
        elif hasattr(self, "classes_"):
            del self.classes_

    def sample(self, n_samples: int = 1, y: Any = None, random_state: Any = None) -> Any:
        """Offline samples: fresh noise moved by the fitted maps.

        Parameters
        ----------
        n_samples : int
        y : one label for all, one per sample, an (n_samples, C) array of class weights, or None
            for labels in the data's proportions
        random_state : int, RandomState, Generator or None (anew on every call)
        """
        self._check_model()
        if self._walk.known is not None:
            raise ValueError("this model completes pictures (observed=…); call inpaint(pictures)")
        need(is_int(n_samples, 1), "n_samples", n_samples, "an int of at least 1")
        seed, offline = Seed.of(random_state), self._offline()
        offline.check_memory(n_samples)  # before so many codes are made
        codes = sample_codes(self._condition, self._codes, y, n_samples, seed)
        return offline.samples(n_samples, codes, seed)

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
        self._check_model()
        where = self.observed_
        if where is None:
            raise ValueError("the model was fitted without observed=; nothing tells what to complete")
        need(is_int(n_samples, 1), "n_samples", n_samples, "an int of at least 1")
        if isinstance(X, np.ma.MaskedArray) and X.shape[1:3] == where.shape:
            hidden = np.ma.getmaskarray(X)
            if not hidden[:, where].any():
                X = X.filled(0)
        return self._offline().completions(X, where, n_samples, Seed.of(random_state))

    def sampled_labels(self, n_samples: int, random_state: Any) -> np.ndarray | None:
        """The labels of ``sample(n_samples, random_state=random_state)``: in the data's proportions."""
        check_is_fitted(self, "history_")
        if self._condition is None or self._condition.hidden or self._codes is None:
            return None
        codes = proportional_codes(self._codes, n_samples, Seed.of(random_state))
        return np.asarray(self._condition.classes[codes.numpy()])

    @property
    def _options(self) -> PictureOptions:
        return PictureOptions() if self.options is None else self.options

    def stages(self, height: int, width: int) -> list[schedules.PictureStage]:
        """The stages that pictures of this size go through; nothing needs to be fitted."""
        text = self.schedule
        if text == "auto":
            text = schedules.auto(height, width)
        return schedules.from_string(
            schedules.PRESETS.get(text, text), height, width, steps_per_stage(self.quality)
        )

    @property
    def layout_(self) -> Layout:
        return self._layout

    @property
    def observed_(self) -> np.ndarray | None:
        # Known in one channel, known in all.
        return None if self._mask is None else self._mask.view(*self._layout.shape)[0].numpy()

    def _begin_online(self, images: Any) -> PicturesOnline:
        return PicturesOnline.begin(self, images)

    def _offline(self) -> Offline:
        return Offline(self._walk, self._model, self._device)

    def _check_model(self) -> None:
        check_is_fitted(self, "history_")
        if not self._model[0]:
            raise ValueError("the model was fitted with n_knots=0, which keeps no maps; fit it again")

    def _packed(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        return saved.packed(self, tensors)

    @classmethod
    def _unpacked(
        cls, header: Fields, tensors: dict[str, Tensor], device: torch.device, allowed: Allowance
    ) -> Self:
        return saved.unpacked(cls, header, tensors, device, allowed)

    def _use_precision(self, precision: str, device: torch.device) -> None:
        self.set_params(options=replace(self._options, precision=precision))._check_parameters()
        self._walk = replace(self._walk, precision=choose_operands(precision, device))

    def _check_parameters(self) -> None:
        check_parameters(self)
