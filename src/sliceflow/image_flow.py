"""`ImageFlow`: the door for pictures, ℓ-SWF and ℓ-CSWF with class labels or observed pixels.

It validates, reads and writes pictures (`pictures`), encodes labels, and sends the particles down the
pyramid's levels (`walk`).
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from sliceflow import conditions, events, schedule, transports
from sliceflow.checkpoints import Keeper, digest, identity
from sliceflow.checks import (
    columns_looked_at,
    default_particles,
    is_int,
    is_real,
    need,
    need_memory,
    projection_budget,
    resolve_device,
)
from sliceflow.distributed import Ranks, weighed
from sliceflow.flow import Cloud, Noise, Run
from sliceflow.local import Tiles
from sliceflow.minibatch import divide
from sliceflow.model_file import Saved
from sliceflow.online.growing import Growing
from sliceflow.online.pictures import PicturesOnline
from sliceflow.pictures import Layout, mask_of
from sliceflow.pyramid import UPSAMPLINGS
from sliceflow.rng import Seed
from sliceflow.walk import DIRECTIONS, Walk

__all__ = ["ImageFlow"]

QUALITY = {"draft": 30, "standard": 100, "best": 300}
_CHUNK = 1 << 13  # offline samples per pass
_PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class ImageFlow(Growing, Saved, BaseEstimator):  # type: ignore[misc]
    """Generative model for pictures: local directions, from coarse to fine.

    Pictures can also be added and forgotten, by the `partial_fit` and `forget` of `sliceflow.online`.

    Parameters
    ----------
    schedule : "auto", a preset ("mnist", "cifar10", "celeba"), or text in the paper's notation, such as
        ``"1[1] 2[2] 4[4] 8[7,5,3]"``; see `sliceflow.schedule`
    n_particles : M; None takes the smallest multiple of the number of pictures of at least 10,000
    quality : "draft", "standard" or "best" (30, 100 or 300 steps per stage), or the number of steps
    amplifier : ξ, how far apart classes are held; 0 ignores the labels
    levels : integer pixels are 0..levels-1
    mirror : also fit the pictures' mirror images
    device : "auto" takes a GPU where there is one
    random_state : int, RandomState, Generator or None
    observed : None, or what is known of every picture: an (h, w) mask of booleans, or one of "top",
        "bottom", "left", "right", "border" (the centre is missing), "center". Makes `inpaint` possible
    transport : "auto" (histograms of 128 bins, 1024 with labels; sorted for small clouds), or any of
        `sliceflow.transports`
    start_noise : standard deviation of the particles' starting pixels
    clip : keep particles in the range of pixels at the full resolution
    dequantize : spread integer pixels over their step, anew at every stage
    upsampling : of the pyramid: "lanczos", "bilinear" or "nearest"
    directions : what a tile's directions are made of: "pixels", all of them; "cosines", a few at a time
        (see `sliceflow.cosines`); or "auto": cosines, unless the pictures are drawings, of whose
        pixels less than a fifth are neither dark nor light
    taper : the step size falls from 1 to 0 over this last share of the last stage
    n_knots : knots kept of each map for offline samples; 0 keeps no model, and then only the batched
        samples `particles_` are there
    precision : operands of the products on a GPU, "float16" (the default there), "bfloat16" or
        "float32". Sums and particles are float32 whatever it is, displacements are read from tables in
        half precision. A CPU always uses float32 throughout
    verbose : 1 shows a progress bar

    Attributes
    ----------
    particles_ : batched samples as pictures
    particle_conditions_ : their labels, or None
    classes_ : the class labels, if there were any
    schedule_ : the stages that were run
    layout_ : what the fitted pictures look like, a `sliceflow.pictures.Layout`
    observed_ : (h, w) booleans, True where a pixel is known; None without `observed`
    history_ : dict of lists: stage, step, sliced distance, seconds

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sliceflow import ImageFlow
    >>> digits = load_digits()
    >>> flow = ImageFlow(quality=3, n_particles=500, levels=17, random_state=0)
    >>> flow.fit(digits.images.astype("uint8"), digits.target).sample(5, labels=3).shape
    (5, 8, 8)
    """

    def __init__(
        self,
        schedule: str = "auto",
        n_particles: int | None = None,
        quality: str | int = "standard",
        amplifier: float = 10.0,
        levels: int = 256,
        mirror: bool = False,
        device: str | torch.device = "auto",
        random_state: Any = None,
        *,
        observed: Any = None,
        transport: str | transports.Transport = "auto",
        start_noise: float = 0.1,
        clip: bool = True,
        dequantize: bool = True,
        upsampling: str = "lanczos",
        directions: str = "auto",
        taper: float = 0.5,
        n_knots: int = 128,
        precision: str = "auto",
        verbose: int = 0,
    ) -> None:
        self.schedule = schedule
        self.n_particles = n_particles
        self.quality = quality
        self.amplifier = amplifier
        self.levels = levels
        self.mirror = mirror
        self.device = device
        self.random_state = random_state
        self.observed = observed
        self.transport = transport
        self.start_noise = start_noise
        self.clip = clip
        self.dequantize = dequantize
        self.upsampling = upsampling
        self.directions = directions
        self.taper = taper
        self.n_knots = n_knots
        self.precision = precision
        self.verbose = verbose

    def fit(
        self,
        images: Any,
        labels: Any = None,
        *,
        listeners: tuple[events.Listener, ...] = (),
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_every: float = 60.0,
        ranks: Ranks | None = None,
    ) -> Self:
        """Move particles onto the pictures.

        Parameters
        ----------
        images : (n, h, w) or (n, h, w, c), integers 0..levels-1 or floats in [0, 1]
        labels : None, or class labels (n,) of any hashable kind
        listeners : callables that take a `sliceflow.events.Event` after every step
        checkpoint_dir : a folder for the state of the fit, or None. A fit that was killed goes on
            when it is called again with the same data, parameters and folder, and ends with the same
            bits as one that was not
        checkpoint_every : seconds between two checkpoints
        ranks : of `sliceflow.distributed.joined`, all of which call this with the same parameters.
            Pictures and labels are then this rank's own, and `particles_` and `particle_conditions_`
            this rank's share: ``ranks.gather(flow.particles_)`` are all
        """
        self._check_parameters()
        together = ranks or Ranks()
        layout = Layout.of(images, self.levels)
        device = resolve_device(self.device)
        raw = layout.read(images, device)
        place = together.place(raw.shape[1], f"{layout}{'' if labels is None else ' and labels'}")
        n = place.total
        condition: conditions.Labels | None = None
        codes, names = None, None
        if labels is not None:
            if self.observed is not None:
                raise ValueError("labels and observed pixels cannot both condition a flow; choose one")
            names = conditions.as_array(labels)
            if len(names) != place.count:
                raise ValueError(
                    f"there are {place.count} pictures but {len(names)} labels; pass one for each"
                )
            names = together.gather(names)
            inferred = conditions.infer(names, n)
            if not isinstance(inferred, conditions.Labels):
                raise ValueError(f"labels have shape {names.shape}; pass one class label per picture")
            condition, codes = inferred, inferred.encode(names)
        seed, keeper = together.told_by_first(Seed.of(self.random_state)), None
        if checkpoint_dir is not None:
            images_of = digest(raw.T.cpu().numpy(), together, place)
            of = dict(layout=repr(layout), images=images_of, labels=digest(names))
            of = identity(self, device, seed, **of)
            keeper = Keeper(checkpoint_dir, checkpoint_every, of, seed, together)
            seed = keeper.seed
        m = self.n_particles or default_particles(n)
        if condition is not None and m < condition.width:
            raise ValueError(
                f"n_particles={m} is fewer than the {condition.width} classes of the labels; "
                f"pass n_particles >= {condition.width}"
            )
        share, runs = together.share(m), [place.slice]
        need(m >= together.size, "n_particles", m, f"at least {together.size}, one per rank")
        if self.mirror:
            raw, runs = layout.mirrored(raw), [*runs, slice(n + place.first, n + runs[0].stop)]
            n *= 2
            codes = None if codes is None else codes.repeat(2)
            names = None if names is None else np.concatenate((names, names))
        mask = None if self.observed is None else mask_of(self.observed, layout)
        # Nothing observed: the unconditional flow.
        known = None if mask is None or not bool(mask.any()) else mask.to(device)
        stages = self.stages(layout.height, layout.width)
        transport = self._transport(condition is not None and self.amplifier > 0)
        directions = [Tiles(layout.shape[0], v.h, v.w, v.patch).most_directions for v in stages]
        most = columns_looked_at(transport.most, max(directions), device) if ranks is None else None
        looked_at = min(share.count, most or m) + min(raw.shape[1], most or n)
        knots = self.n_knots + 1 if self.n_knots else 0
        n_values = knots * sum(h * v.n_steps for h, v in zip(directions, stages, strict=True))
        _check_memory(share.count, raw, looked_at, directions, n_values, device)

        rows = None
        if codes is not None:
            rows = conditions.proportional(codes, m, seed.child("conditions")).to(device)
            codes = codes.to(device)
        codes_p = None if rows is None or codes is None else codes[rows]
        seen = None if self.amplifier == 0 else codes_p
        here = torch.cat([torch.arange(run.start, run.stop, device=device) for run in runs])
        if ranks is None:
            batches = divide(m, n, most, seen, codes, seed.child("batches"), device)
        else:  # every step looks at everything, and all ranks at the same maps
            batches, left_out = weighed(codes, seen, here, device)
            transport = ranks.shared(transport, m + n - left_out)
        noise = Noise(seed.child("particles"), share.first)
        x = torch.empty(layout.dimension, share.count, dtype=torch.float32, device=device)
        noise.child("start").fill(x).mul_(self.start_noise)
        if known is not None:
            # The particles' observed pixels are the pictures' own, each used equally often.
            pictures = conditions.evenly(n, m, seed.child("conditions"))[share.slice].to(device)
            own = layout.encode(
                _picked(raw, pictures, together, self.mirror),
                seed.child("observed"),
                dequantize=self.dequantize,
                total=m,
                runs=[share.slice],
            )
            x = torch.where(known, own, x)
        particles = Cloud(x, None if codes_p is None else codes_p[share.slice])
        walk = Walk(
            layout,
            stages,
            seed.child("flow"),
            n_conditions=0 if condition is None else condition.width,
            amplifier=float(self.amplifier),
            known=known,
            upsampling=self.upsampling,
            directions=self._directions(layout, raw, here, n, together),
            clip=self.clip,
            dequantize=self.dequantize,
            start_noise=float(self.start_noise),
            taper=self.taper,
            budget=projection_budget(device),
            precision=self._operands(device),
        )
        own_codes = None if codes is None else codes[here]
        if batches.order is not None:
            raw = raw[:, batches.order]
            own_codes = None if own_codes is None else own_codes[batches.order]
        history = events.History()
        heard: list[events.Listener] = [history, *together.agreeing(listeners)]
        if self.verbose and together.first:
            heard.append(events.Progress())
        run = Run()
        kept_up: Any = nullcontext()
        if keeper is not None:
            kept_up = keeper.running(run, particles, history, None, share.first)

        def data(i: int) -> Cloud:
            place_of = seed.child("data", i)
            encoded = layout.encode(raw, place_of, dequantize=self.dequantize, total=n, runs=runs)
            return Cloud(encoded, own_codes)

        with events.closing(heard), kept_up:
            model = walk.simulate(
                particles,
                data,
                transport,
                noise,
                self.n_knots,
                heard,
                batches,
                run,
            )

        self._online = None
        self.__dict__.pop("_file", None)  # no longer the model of a file
        self._walk, self._model, self._layout, self._condition = walk, model, layout, condition
        self._codes = None if codes is None else codes.cpu()
        self._device, self._mask = device, mask
        self.schedule_ = stages
        self.particles_ = layout.write(particles.x)
        own_rows = None if rows is None else rows[share.slice].cpu().numpy()
        self.particle_conditions_ = None if names is None or own_rows is None else names[own_rows]
        if condition is not None:
            self.classes_ = condition.classes
        elif hasattr(self, "classes_"):
            del self.classes_
        self.history_ = history.as_columns()
        self.n_iter_ = len(self.history_["step"])
        return self

    def sample(self, n_samples: int = 1, labels: Any = None, random_state: Any = None) -> Any:
        """Offline samples: fresh noise moved by the fitted maps.

        Parameters
        ----------
        n_samples : int
        labels : one label for all, one per sample, an (n_samples, C) array of class weights, or None
            for labels in the data's proportions
        random_state : int, RandomState, Generator or None (anew on every call)
        """
        self._check_model()
        if self._walk.known is not None:
            raise ValueError("this model completes pictures (observed=…); call inpaint(pictures)")
        need(is_int(n_samples, 1), "n_samples", n_samples, "an int of at least 1")
        seed = Seed.of(random_state)
        codes = None
        if self._condition is None:
            if labels is not None:
                raise ValueError("labels were given but the model was fitted without; leave them out")
        elif labels is None and self._codes is not None:
            codes = self._codes[
                conditions.proportional(self._codes, n_samples, seed.child("conditions"))
            ]
        else:
            codes = self._condition.encode(conditions.repeated(self._condition, labels, n_samples))
            if len(codes) != n_samples:
                raise ValueError(
                    f"labels have {len(codes)} rows but n_samples={n_samples}; "
                    "pass one label, or one per sample"
                )
        out, chunk = [], self._chunk()
        for first in range(0, n_samples, chunk):
            count = min(chunk, n_samples - first)
            y = None if codes is None else codes[first : first + count].to(self._device)
            out.append(self._layout.write(self._moved(seed, first, count, y, None)))
        return _joined(out)

    def inpaint(self, pictures: Any, n_samples: int = 1, random_state: Any = None) -> Any:
        """Complete pictures of which only the `observed` pixels are known.

        Parameters
        ----------
        pictures : as fitted; their unobserved pixels are ignored
        n_samples : completions of each

        Returns
        -------
        (n, n_samples, h, w[, c]); observed pixels are the given ones, bit for bit
        """
        self._check_model()
        if self._mask is None:
            raise ValueError("the model was fitted without observed=; nothing tells what to complete")
        need(is_int(n_samples, 1), "n_samples", n_samples, "an int of at least 1")
        layout, seed = self._layout, Seed.of(random_state)
        raw = layout.read(pictures, self._device)
        n, out = raw.shape[1] * n_samples, []
        for first in range(0, n, _CHUNK):
            columns = torch.arange(first, min(first + _CHUNK, n), device=raw.device) // n_samples
            values = layout.encode(
                raw[:, columns], seed.child("observed", first), dequantize=self._walk.dequantize
            )
            out.append(layout.write(self._moved(seed, first, len(columns), None, values)))
        done = _joined(out)
        # The values came back through rounding; the given ones are exact.
        given: Any = np.asarray(pictures).repeat(n_samples, 0).astype(layout.dtype)
        given = torch.from_numpy(given) if layout.tensor else given
        where = self.observed_
        done[:, where] = given[:, where]
        return done.reshape(len(given) // n_samples, n_samples, *done.shape[1:])

    def _chunk(self) -> int:
        """Samples per pass: more on a GPU, which takes as long for a step of few as of many."""
        if self._device.type == "cpu":
            return _CHUNK
        return max(_CHUNK, min(1 << 16, (1 << 26) // self._layout.dimension))

    def sampled_labels(self, n_samples: int, random_state: Any) -> np.ndarray | None:
        """The labels of ``sample(n_samples, random_state=random_state)``: in the data's proportions."""
        check_is_fitted(self, "history_")
        if self._condition is None or self._codes is None:
            return None
        seed = Seed.of(random_state).child("conditions")
        codes = self._codes[conditions.proportional(self._codes, n_samples, seed)]
        return np.asarray(self._condition.classes[codes.numpy()])

    def stages(self, height: int, width: int) -> list[schedule.PictureStage]:
        """The stages that pictures of this size go through; nothing needs to be fitted."""
        text = self.schedule
        if text == "auto":
            text = schedule.auto(height, width)
        steps = QUALITY[self.quality] if isinstance(self.quality, str) else int(self.quality)
        return schedule.from_string(schedule.PRESETS.get(text, text), height, width, steps)

    @property
    def layout_(self) -> Layout:
        return self._layout

    @property
    def observed_(self) -> np.ndarray | None:
        # Known in one channel, known in all.
        return None if self._mask is None else self._mask.view(*self._layout.shape)[0].numpy()

    def _moved(
        self, seed: Seed, first: int, count: int, y: Tensor | None, values: Tensor | None
    ) -> Tensor:
        """`count` fresh particles, with observed pixels `values` if given, moved by the model."""
        noise = Noise(seed.child("particles"), first)
        x = torch.empty(self._layout.dimension, count, dtype=torch.float32, device=self._device)
        noise.child("start").fill(x).mul_(self._walk.start_noise)
        if values is not None and self._walk.known is not None:
            x = torch.where(self._walk.known, values, x)
        cloud = Cloud(x, y)
        self._walk.replay(cloud, self._model, noise)
        return cloud.x

    def _begin_online(self, images: Any) -> PicturesOnline:
        return PicturesOnline.begin(self, images)

    def _transport(self, labelled: bool) -> transports.Transport:
        if not isinstance(self.transport, str):
            return self.transport
        n_bins = 1024 if labelled else 128
        kinds: dict[str, transports.Transport] = {
            "auto": transports.Auto(n_bins=n_bins),
            "sorted": transports.Sorted(),
            "histogram": transports.Histogram(n_bins),
        }
        return kinds[self.transport]

    def _directions(
        self,
        layout: Layout,
        raw: Tensor,
        here: Tensor | None = None,
        n: int = 0,
        ranks: Ranks = Ranks(),  # noqa: B008, it is frozen
    ) -> str:
        """What directions the pictures are for; those of ranks are numbers `here` out of n."""
        if self.directions != "auto":
            return self.directions
        here = torch.arange(raw.shape[1], device=raw.device) if here is None else here
        some = raw[:, here % max(1, (n or len(here)) // 10_000) == 0].float()
        value = some / (1 if layout.levels is None else layout.levels - 1)
        between = ((value > 0.1) & (value < 0.9)).sum()
        few, all_of_them = ranks.sum(torch.tensor([int(between), some.numel()])).tolist()
        return "pixels" if few / all_of_them < 0.2 else "cosines"

    def _operands(self, device: torch.device) -> torch.dtype | None:
        if device.type == "cpu":
            return None
        return _PRECISIONS["float16" if self.precision == "auto" else self.precision]

    def _check_model(self) -> None:
        check_is_fitted(self, "history_")
        if not self._model[0]:
            raise ValueError("the model was fitted with n_knots=0, which keeps no maps; fit it again")

    def _check_parameters(self) -> None:
        m, q = self.n_particles, self.quality
        need(m is None or is_int(m, 1), "n_particles", m, "None or an int of at least 1")
        ok = q in QUALITY if isinstance(q, str) else is_int(q, 1)
        need(ok, "quality", q, f"one of {list(QUALITY)} or a number of steps per stage")
        need(isinstance(self.schedule, str), "schedule", self.schedule, "a string: 'auto', a preset, …")
        need(is_int(self.levels, 2), "levels", self.levels, "an int of at least 2")
        need(is_int(self.n_knots, 0), "n_knots", self.n_knots, "an int of at least 0")
        choices = ["auto", *_PRECISIONS]
        need(self.precision in choices, "precision", self.precision, f"one of {choices}")
        need(
            self.upsampling in UPSAMPLINGS,
            "upsampling",
            self.upsampling,
            f"one of {sorted(UPSAMPLINGS)}",
        )
        ways = ["auto", *DIRECTIONS]
        need(self.directions in ways, "directions", self.directions, f"one of {ways}")
        for name in ("amplifier", "start_noise"):
            value = getattr(self, name)
            need(is_real(value, 0), name, value, "a finite number of at least 0")
        need(is_real(self.taper, 0, 1), "taper", self.taper, "a number from 0 to 1")
        known = isinstance(self.transport, str) and self.transport in ("auto", "sorted", "histogram")
        need(
            known or (hasattr(self.transport, "fit") and hasattr(self.transport, "most")),
            "transport",
            self.transport,
            "'auto', 'sorted', 'histogram' or a transport from sliceflow.transports",
        )


def _picked(raw: Tensor, numbers: Tensor, ranks: Ranks, mirrored: bool) -> Tensor:
    """Columns by their numbers among those of all ranks; mirror images come after all others."""
    if not mirrored or ranks.size == 1:
        return ranks.pick(raw, numbers)
    halves = raw.chunk(2, dim=1)
    n = sum(ranks.told_by_all(halves[0].shape[1]))
    straight, flipped = (ranks.pick(half, numbers % n) for half in halves)
    return torch.where(numbers < n, straight, flipped)


def _joined(chunks: list[Any]) -> Any:
    """Pictures of all chunks, arrays or tensors as they are."""
    if len(chunks) == 1:
        return chunks[0]
    return torch.cat(chunks) if isinstance(chunks[0], Tensor) else np.concatenate(chunks)


def _check_memory(
    m: int, raw: Tensor, looked_at: int, directions: list[int], n_values: int, device: torch.device
) -> None:
    """Refuse what cannot fit: particles, a level's coefficients, pictures, projections, the model."""
    d, n = raw.shape
    clouds = 4 * d * (4 * m + 3 * n) + raw.nbytes
    need_memory(
        clouds + 4 * max(directions) * looked_at + 5 * n_values,  # values, and a byte of weight
        device,
        f"n_particles={m}, {n} pictures of {d} values and a model of {n_values} numbers need",
        "lower n_particles, quality or n_knots (0 keeps no model)",
    )
