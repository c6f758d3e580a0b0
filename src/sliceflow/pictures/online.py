"""The pictures of an `ImageFlow` that grows; the noise of a pixel depends on what the picture shows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from sliceflow import kernels
from sliceflow.devices import projection_budget, resolve_device
from sliceflow.engine import conditions, events, transports
from sliceflow.engine.batches import MiniBatches
from sliceflow.engine.classes import sort_by_class
from sliceflow.engine.flow import Cloud, Noise, Run
from sliceflow.engine.frames import AnyFrame
from sliceflow.engine.random import Seed
from sliceflow.online.counts import REACH, Ledger, Place, whole
from sliceflow.online.first import First
from sliceflow.online.growing import check_classes, resumed
from sliceflow.online.rows import Before, Given, Online, Refreshed, fixed, histogram_bins
from sliceflow.pictures.fitted import FittedPictures
from sliceflow.pictures.layout import Layout
from sliceflow.pictures.levels import Walk
from sliceflow.pictures.options import PictureOptions
from sliceflow.pictures.plan import PicturePlan, make_plan, patch_basis_for, pixels_between, stages_of
from sliceflow.pictures.pyramid import Subspace, basis
from sliceflow.pictures.tiles import TileFrame, Tiles

__all__ = ["PicturesOnline"]

_NARROW = 2.0**7  # by which the first bins of cosines are narrower

_FIXED = (
    "schedule", "quality", "n_pixel_values", "mirror", "device", "random_state", "observed",
    "transport",
    "dequantize", "upsampling", "patch_basis", "taper",
)  # fmt: skip


@dataclass(frozen=True)
class LevelPlace(Place):
    """A stage whose pictures are counted, in its subspace."""

    subspace: Subspace

    @property
    def independent(self) -> bool:
        return True

    @property
    def most_directions(self) -> int:
        return self._tiles.most_directions

    @property
    def _tiles(self) -> Tiles:
        kind = self.kind
        assert isinstance(kind, Tiles)
        return kind

    def down(self, x: Tensor) -> Tensor:
        space, x, n = self.subspace, whole(x), x.shape[1]
        if space.whole:
            return x
        rows = whole(basis(space.height, space.h, space.upsampling)).to(x.device)
        columns = whole(basis(space.width, space.w, space.upsampling)).to(x.device)
        image = x.reshape(space.channels, space.height, space.width * n)
        image = whole(torch.matmul(rows.T, image)).view(-1, space.width, n)
        return whole(torch.matmul(columns.T, image)).view(-1, n)

    def project(self, frame: AnyFrame, x: Tensor) -> Tensor:
        assert isinstance(frame, TileFrame)
        z: Tensor = kernels.for_tensor(x).project_tiles(x, whole(frame.theta), frame.geometry)
        return z  # exact: x is float64

    def reach(self, frame: AnyFrame, x: Tensor) -> Tensor:
        """How far the first bins reach on either side of 0, for x (d, n): (h,).

        Pixels in [−1, 1] are of length √d at most, as standardised rows are. They cannot be further out
        than the sum of a direction's coefficients. Cosines see some frequencies far out and others
        hardly at all: their bins begin narrow and become as wide as they have to.
        """
        assert isinstance(frame, TileFrame)
        space, k, h = self.subspace, frame.geometry.side, frame.n_directions
        half = torch.full((h,), REACH, dtype=torch.float64, device=x.device)
        sums = whole(frame.theta[:k, :k]).abs().sum(1).repeat(h // k)
        largest = math.prod(
            float(basis(full, small, space.upsampling).abs().sum(0).max())
            for full, small in ((space.height, space.h), (space.width, space.w))
        )
        if self._tiles.cosines:
            half = half / _NARROW
        # A little more: the largest pixel must not lie on the last edge.
        return torch.minimum(half * space.scale(), sums * (largest * 1.01))


@dataclass(frozen=True)
class FirstPictures(First):
    """The first pictures, where they choose the directions.

    Parameters
    ----------
    layout : of the pictures
    between, pixels : how many of their pixels are neither dark nor bright, and how many they have
    patch_basis : that were chosen
    """

    layout: Layout
    between: int
    pixels: int
    patch_basis: str

    def without(self, rows: np.ndarray) -> Self:
        between = self.between - pixels_between(self.layout, torch.from_numpy(rows))
        return replace(self, between=between, pixels=self.pixels - rows.size)

    def trace(self) -> str:
        if self.pixels and patch_basis_for(self.between, self.pixels) == self.patch_basis:
            return ""
        return f'patch_basis={self.patch_basis!r}, chosen by "auto"'


@dataclass
class PicturesOnline(Online):
    """What an `ImageFlow` keeps.

    Parameters
    ----------
    layout : of the pictures
    walk : the stages, without conditions; its directions are "auto" while they are not decided
    """

    layout: Layout = field(kw_only=True)
    walk: Walk = field(kw_only=True)

    @classmethod
    def begin(cls, parameters: Mapping[str, Any], X: Any) -> PicturesOnline:
        """Nothing counted yet; the pictures show their layout."""
        if parameters["observed"] is not None:
            raise ValueError(
                "observed pixels are taken from the pictures themselves, which partial_fit does not "
                "keep; use fit, or observed=None"
            )
        if parameters["patch_basis"] == "random":
            raise ValueError(
                "patch_basis='random' cannot be counted; partial_fit takes 'auto', 'pixels' or "
                "'cosines'"
            )
        n_bins = histogram_bins(parameters["transport"], 256)
        layout = Layout.of(X, parameters["n_pixel_values"])
        device, seed = resolve_device(parameters["device"]), Seed.of(parameters["random_state"])
        options: PictureOptions = parameters["options"]
        walk = Walk(
            layout,
            stages_of(parameters, layout),
            seed.child("flow"),
            n_conditions=0,
            amplifier=0.0,
            known=None,
            upsampling=options.upsampling,
            patch_basis=parameters["patch_basis"],
            clip=options.clip,
            dequantize=options.dequantize,
            start_noise=float(options.start_noise),
            taper=options.taper,
            budget=projection_budget(device),
            precision=None,  # whatever it is for the particles
        )
        return cls(
            Ledger(_places(walk), layout.dimension, n_bins),
            seed,
            device,
            fixed(parameters, _FIXED),
            2 if parameters["mirror"] else 1,
            waiting={} if parameters["patch_basis"] == "auto" else None,
            layout=layout,
            walk=walk,
        )

    def read(self, X: Any) -> np.ndarray:
        return self.layout.read(X).T.contiguous().numpy()

    def decided(self, given: Given) -> Self:
        names = {label: Counter(given.names[of]) for label, of in given.groups}
        between, pixels = pixels_between(self.layout, torch.from_numpy(given.rows)), given.rows.size
        first = FirstPictures(names, self.layout, between, pixels, patch_basis_for(between, pixels))
        walk = replace(self.walk, patch_basis=first.patch_basis)
        ledger = replace(self.ledger, places=_places(walk), tallies={}, rows={})
        return replace(self, waiting=None, first=first, walk=walk, ledger=ledger)

    def columns(self, rows: np.ndarray) -> Tensor:
        raw = torch.from_numpy(rows).to(self.device).T.contiguous()
        return self.layout.mirrored(raw) if self.times == 2 else raw

    def values(self, columns: Tensor, names: Tensor, place: int) -> Tensor:
        return self.layout.encode(
            columns, self.seed.child("data", place), dequantize=self.walk.dequantize, names=names
        )

    def check_memory(self, parameters: Mapping[str, Any], m: int) -> None:
        self._plan({**parameters, "n_particles": m}, max(1, len(self.ledger.rows)), None)

    def _plan(
        self, parameters: Mapping[str, Any], n: int, condition: conditions.Labels | None
    ) -> PicturePlan:
        return make_plan(
            parameters,
            layout=self.layout,
            n=n,
            n_moved=None,
            condition=condition,
            patch_basis=self.walk.patch_basis,
            device=self.device,
            transport=transports.Histogram(self.ledger.n_bins, most=None),
        )

    def refresh(
        self,
        parameters: Mapping[str, Any],
        before: Before | None,
        heard: list[events.Listener],
        history: events.History,
    ) -> Refreshed:
        condition, labels, codes = self.condition()
        plan = self._plan(parameters, self.times * len(codes), condition)
        m = plan.n_particles
        walk = replace(
            self.walk,
            n_conditions=plan.n_conditions,
            amplifier=plan.amplifier,
            start_noise=plan.start_noise,
            clip=plan.clip,
            precision=plan.precision,
        )
        d, own = self.layout.dimension, None if condition is None else codes
        particles, noise = self.particles(
            d, torch.float32, m, own, plan.amplifier, walk.start_noise, model=plan.n_knots > 0
        )
        place = None
        if walk.apart and particles.y is not None:
            y, _, place, runs = sort_by_class(particles.y, walk.apart)
            particles = Cloud(particles.x, y, runs)
        run = Run()
        if before is not None:
            run = _resumed(walk, before, condition, particles, noise, history)
        data = [
            self.mixture(i, labels, codes, particles, walk.engine(i)[0])
            for i in range(len(walk.stages))
        ]
        model = walk.simulate(
            particles,
            data.__getitem__,
            transports.Histogram(data[0].n_bins),
            noise,
            plan.n_knots,
            heard,
            MiniBatches(),
            run,
        )
        fitted = FittedPictures(walk, model, condition, own, len(codes), self.device)
        n_moved = particles.x.shape[1]
        particles = particles.part(slice(m) if place is None else place[:m])
        kept = None
        if condition is not None and particles.y is not None:
            kept = condition.decode(particles.y)
        return Refreshed(replace(plan, n_moved=n_moved), fitted, self.layout.write(particles.x), kept)


def _resumed(
    walk: Walk,
    before: Before,
    condition: conditions.Labels | None,
    particles: Cloud,
    noise: Noise,
    history: events.History,
) -> Run:
    """The run behind all but the last stages, which have at least `before.last` steps together."""
    was: FittedPictures = before.fitted
    check_classes(was.condition, condition)
    was.check_model()
    if was.walk.apart != walk.apart:
        raise ValueError(
            f"classes {'had' if was.walk.apart else 'had no'} maps of their own at the last refresh, "
            f"and amplifier={walk.amplifier} changes that; all steps must be done again: leave last out"
        )
    first, left = len(walk.stages), before.last
    while first > 0 and left > 0:
        first -= 1
        left -= walk.stages[first].n_steps
    replace(walk, stages=walk.stages[:first]).replay(particles, was.model, noise)
    run = resumed([step for stage in was.model[:first] for step in stage], before, history)
    # Every level of a walk is a flow of a single stage.
    run.stage, run.step, run.model = first, 0, was.model[:first]
    return run


def _places(walk: Walk) -> list[Place]:
    """Where the pictures of a walk are counted; every level is a flow of a single stage."""
    engines = (walk.engine(i) for i in range(len(walk.stages)))
    return [LevelPlace(flow, 0, subspace) for flow, subspace in engines]
