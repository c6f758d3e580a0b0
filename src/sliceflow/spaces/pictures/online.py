"""`partial_fit` and `forget` for pictures. A picture's content determines its dequantisation noise."""

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
from sliceflow.engine.flow import Cloud, Noise, Run
from sliceflow.engine.frames import AnyFrame
from sliceflow.engine.random import Seed
from sliceflow.engine.shrinkage import Shrinkage
from sliceflow.online.counts import REACH, CountedStage, Ledger, to_grid
from sliceflow.online.first import FirstRows
from sliceflow.online.growing import check_classes, resume_run
from sliceflow.online.rows import Online, PreviousRefresh, Refreshed, RowBatch, fixed, histogram_bins
from sliceflow.spaces.pictures.fitted import FittedPictures
from sliceflow.spaces.pictures.layout import Layout
from sliceflow.spaces.pictures.levels import LevelFlow
from sliceflow.spaces.pictures.options import PictureOptions
from sliceflow.spaces.pictures.plan import (
    PicturePlan,
    make_plan,
    patch_basis_for,
    pixels_between,
    stages_of,
)
from sliceflow.spaces.pictures.pyramid import Subspace, basis
from sliceflow.spaces.pictures.tiles import TileFrame, Tiles

__all__ = ["PicturesOnline"]

_NARROW = 2.0**7  # for cosines, the first bins are narrower by this factor

_FIXED = (
    "schedule", "quality", "n_pixel_values", "mirror", "device", "random_state", "observed",
    "transport",
    "dequantize", "upsampling", "patch_basis", "taper",
)  # fmt: skip


@dataclass(frozen=True)
class CountedLevel(CountedStage):
    """A stage whose pictures are counted, in the subspace of its level."""

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
        space, x, n = self.subspace, to_grid(x), x.shape[1]
        if space.is_full_resolution:
            return x
        rows = to_grid(basis(space.height, space.h, space.upsampling)).to(x.device)
        columns = to_grid(basis(space.width, space.w, space.upsampling)).to(x.device)
        image = x.reshape(space.channels, space.height, space.width * n)
        image = to_grid(torch.matmul(rows.T, image)).view(-1, space.width, n)
        return to_grid(torch.matmul(columns.T, image)).view(-1, n)

    def project(self, frame: AnyFrame, x: Tensor) -> Tensor:
        assert isinstance(frame, TileFrame)
        z: Tensor = kernels.for_tensor(x).project_tiles(x, to_grid(frame.theta), frame.geometry)
        return z  # exact: x is float64

    def reach(self, frame: AnyFrame, x: Tensor) -> Tensor:
        """The range of the first bins on either side of 0, for x (d, n): (h,).

        Pixels in [−1, 1] have length √d at most, like standardised rows. A projection is at most the
        sum of its direction's absolute coefficients. Projections on cosines have very different
        scales, so their bins start narrow and widen as needed.
        """
        assert isinstance(frame, TileFrame)
        space, k, h = self.subspace, frame.geometry.side, frame.n_directions
        half = torch.full((h,), REACH, dtype=torch.float64, device=x.device)
        sums = to_grid(frame.theta[:k, :k]).abs().sum(1).repeat(h // k)
        largest = math.prod(
            float(basis(full, small, space.upsampling).abs().sum(0).max())
            for full, small in ((space.height, space.h), (space.width, space.w))
        )
        if self._tiles.cosines:
            half = half / _NARROW
        # 1 % more, so that the largest pixel does not fall on the last edge.
        return torch.minimum(half * space.scale(), sums * (largest * 1.01))


@dataclass(frozen=True)
class FirstPictures(FirstRows):
    """The first pictures, if they choose the patch basis.

    Parameters
    ----------
    layout : the pictures' layout
    between, pixels : number of pixels that are neither dark nor bright, and of all pixels
    patch_basis : the chosen basis
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
    """The counts of an `ImageFlow`.

    Parameters
    ----------
    layout : the pictures' layout
    levels : the stages, without conditions; `patch_basis` is "auto" until the first pictures decide it
    """

    layout: Layout = field(kw_only=True)
    levels: LevelFlow = field(kw_only=True)

    @classmethod
    def begin(cls, parameters: Mapping[str, Any], X: Any) -> PicturesOnline:
        """Empty counts for pictures like X."""
        if parameters["observed"] is not None:
            raise ValueError(
                "observed pixels come from the pictures, but partial_fit keeps only counts; "
                "use fit, or observed=None"
            )
        if parameters["patch_basis"] == "random":
            raise ValueError(
                "partial_fit does not support patch_basis='random'; use 'auto', 'pixels' or 'cosines'"
            )
        n_bins = histogram_bins(parameters["transport"], 256)
        layout = Layout.of(X, parameters["n_pixel_values"])
        device, seed = resolve_device(parameters["device"]), Seed.of(parameters["random_state"])
        options: PictureOptions = parameters["options"]
        levels = LevelFlow(
            layout,
            stages_of(parameters, layout, joint=True),
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
            precision=None,  # counting does not use it
        )
        return cls(
            Ledger(_counted_levels(levels), layout.dimension, n_bins),
            seed,
            device,
            fixed(parameters, _FIXED),
            2 if parameters["mirror"] else 1,
            waiting={} if parameters["patch_basis"] == "auto" else None,
            layout=layout,
            levels=levels,
        )

    def read(self, X: Any) -> np.ndarray:
        return self.layout.read(X).T.contiguous().numpy()

    def decided(self, batch: RowBatch) -> Self:
        names = {label: Counter(batch.names[of]) for label, of in batch.groups}
        between, pixels = pixels_between(self.layout, torch.from_numpy(batch.rows)), batch.rows.size
        first = FirstPictures(names, self.layout, between, pixels, patch_basis_for(between, pixels))
        levels = replace(self.levels, patch_basis=first.patch_basis)
        ledger = replace(self.ledger, places=_counted_levels(levels), tallies={}, rows={})
        return replace(self, waiting=None, first=first, levels=levels, ledger=ledger)

    def columns(self, rows: np.ndarray) -> Tensor:
        raw = torch.from_numpy(rows).to(self.device).T.contiguous()
        return self.layout.mirrored(raw) if self.times == 2 else raw

    def values(self, columns: Tensor, names: Tensor, place: int) -> Tensor:
        return self.layout.encode(
            columns, self.seed.child("data", place), dequantize=self.levels.dequantize, names=names
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
            patch_basis=self.levels.patch_basis,
            device=self.device,
            transport=transports.Histogram(self.ledger.n_bins, most=None),
        )

    def refresh(
        self,
        parameters: Mapping[str, Any],
        previous: PreviousRefresh | None,
        listeners: list[events.Listener],
        history: events.History,
    ) -> Refreshed:
        condition, labels, codes = self.condition()
        plan = self._plan(parameters, self.times * len(codes), condition)
        m = plan.n_particles
        levels = replace(
            self.levels,
            n_conditions=plan.n_conditions,
            amplifier=plan.amplifier,
            start_noise=plan.start_noise,
            clip=plan.clip,
            precision=plan.precision,
        )
        d, data_codes = self.layout.dimension, None if condition is None else codes
        particles, place, noise = self.particles(
            d, torch.float32, m, data_codes, plan.amplifier, levels.start_noise, model=plan.n_knots > 0
        )
        run = Run()
        if previous is not None:
            run = _resume(levels, previous, condition, particles, noise, history)
        data = [
            self.mixture(i, labels, codes, particles, levels.engine(i)[0])
            for i in range(len(levels.stages))
        ]
        model = levels.simulate(
            particles,
            data.__getitem__,
            transports.Histogram(data[0].n_bins),
            noise,
            plan.n_knots,
            listeners,
            MiniBatches(),
            run,
            Shrinkage.of(
                plan.shrinkage,
                particles.x.shape[1],
                len(codes),
                *((particles.y, codes) if plan.apart else (None, None)),
                n_apart=plan.apart,
            ),
        )
        fitted = FittedPictures(levels, model, condition, data_codes, len(codes), self.device)
        n_moved = particles.x.shape[1]
        particles = particles.part(place)
        y_kept = None
        if condition is not None and particles.y is not None:
            y_kept = condition.decode(particles.y)
        return Refreshed(replace(plan, n_moved=n_moved), fitted, self.layout.write(particles.x), y_kept)


def _resume(
    levels: LevelFlow,
    previous: PreviousRefresh,
    condition: conditions.Labels | None,
    particles: Cloud,
    noise: Noise,
    history: events.History,
) -> Run:
    """The run before the last stages, which have at least `previous.last` steps in total."""
    earlier: FittedPictures = previous.fitted
    check_classes(earlier.condition, condition)
    earlier.check_model()
    if earlier.levels.apart != levels.apart:
        raise ValueError(
            f"classes {'had' if earlier.levels.apart else 'did not have'} their own maps at the last "
            f"refresh, and amplifier={levels.amplifier} changes that; refresh all steps: leave last out"
        )
    first, left = len(levels.stages), previous.last
    while first > 0 and left > 0:
        first -= 1
        left -= levels.stages[first].n_steps
    replace(levels, stages=levels.stages[:first]).replay(particles, earlier.model, noise)
    run = resume_run([step for stage in earlier.model[:first] for step in stage], previous, history)
    # Each level is a flow with a single stage.
    run.stage, run.step, run.model = first, 0, earlier.model[:first]
    return run


def _counted_levels(levels: LevelFlow) -> list[CountedStage]:
    """The counted stages; each level is a flow with a single stage."""
    engines = (levels.engine(i) for i in range(len(levels.stages)))
    return [CountedLevel(flow, 0, subspace) for flow, subspace in engines]
