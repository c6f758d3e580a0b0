"""The pyramid as one flow: its stages, their spaces, and what is observed."""

import math

import pytest
import torch

from models import picture_plan
from sliceflow import ImageOptions
from sliceflow.engine.batches import DataTarget
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.flow import FlowState, ParticleRng, Step, simulate
from sliceflow.engine.random import Seed
from sliceflow.engine.shrinkage import ShrunkTransport
from sliceflow.engine.transports import (
    AlignedHistogramTransport,
    HistogramTransport,
    SortedTransport,
)
from sliceflow.estimators.pictures import schedules
from sliceflow.estimators.pictures.costs import max_directions_per_stage
from sliceflow.estimators.pictures.flow_builder import PictureFlowBuilder
from sliceflow.estimators.pictures.layout import Layout
from sliceflow.estimators.pictures.pyramid import PyramidSubspace
from sliceflow.estimators.pictures.tiles import RandomPatches, Tiles

HISTOGRAM = HistogramTransport(16)  # of the plan


def builder(schedule="2[2] 6[3] 6[1]=1", device="cpu", clip=True, **changes):
    """The flow of pictures of 6×6 pixels, two steps a stage."""
    stages = schedules.from_string(schedule, 6, 6, 2)
    options = ImageOptions(n_directions=30, clip=clip)
    plan = picture_plan(picture_stages=tuple(stages), options=options, **changes)
    return PictureFlowBuilder(plan, Seed(0), torch.device(device))


def clouds(m=40, n=30):
    start = Seed(1).normal(m, 36)
    data = Seed(2).uniform(n, 36) * 2 - 1
    return Cloud(start.T.contiguous()), Cloud(data.T.contiguous())


@pytest.mark.parametrize("patch_basis", ["pixels", "cosines", "random"])
def test_stages_have_the_directions_of_their_resolution(patch_basis):
    flow_builder = builder("2[2] 6[3]", patch_basis=patch_basis)
    flow = flow_builder.flow_spec()
    x = torch.zeros(36, 1)
    kind = RandomPatches if patch_basis == "random" else Tiles
    for i in range(2):
        assert isinstance(flow.stages[i].frame_kind, kind)
        cloud = Cloud(flow.stages[i].subspace.restrict(x))
        n_directions = max_directions_per_stage(flow_builder.plan)[i]
        for k in range(5):
            frame = Step(flow, i, k, 0, cloud, Cloud(x)).make_frame()
            assert frame.count_directions(0) == flow_builder.count_directions_of_step(
                i, k
            )
            assert frame.count_directions(0) <= n_directions


def test_single_pixels_are_exact_and_come_after_everything_else():
    stages = (
        builder(shrinkage=2.0).flow_spec((0.1,)).stages
    )  # coarse, fine, single pixels
    shrunk = ShrunkTransport(HISTOGRAM, 2.0, (0.1,))
    aligned = AlignedHistogramTransport(32, HISTOGRAM.batch_size, (-1.0, 64 / 17 - 1))
    assert [stage.transport for stage in stages] == [shrunk, shrunk, aligned]
    assert [stage.max_knots for stage in stages] == [12, 12, 512]
    assert [stage.taper for stage in stages] == [0, 0.5, 0]
    assert [stage.subspace.clip for stage in stages] == [False, False, True]
    sorting = builder(transport=SortedTransport()).flow_spec()
    assert sorting.stages[-1].transport == SortedTransport()
    without_model = builder(n_knots=0).flow_spec()
    assert not any(stage.stores_maps for stage in without_model.stages)
    on_gpu = builder(device="meta").flow_spec()
    half = [stage.frame_kind.precision for stage in on_gpu.stages]
    assert half == [torch.float16, torch.float16, None]


def test_a_coarse_stage_leaves_finer_detail_alone_and_the_last_one_clips():
    flow = builder(transport=SortedTransport()).flow_spec()
    particles, data = clouds()
    start = particles.x.clone()
    subspace = PyramidSubspace(1, 6, 6, 2, 2)
    simulate(
        flow,
        particles,
        DataTarget.from_cloud(data),
        ParticleRng(Seed(0)),
        stage_indices=range(1),
    )
    change = particles.x - start
    assert float(change.abs().max()) > 0.1
    assert torch.allclose(subspace.embed(subspace.restrict(change)), change, atol=1e-9)
    assert float(particles.x.abs().max()) > 1
    simulate(
        flow,
        particles,
        DataTarget.from_cloud(data),
        ParticleRng(Seed(0)),
        state=FlowState(stage_index=1),
    )
    assert float(particles.x.abs().max()) <= 1


def test_classes_apart_and_shared_maps_reach_the_engine():
    conditional = dict(n_classes=3, shrinkage=1.0)
    separate = builder(**conditional, amplifier=math.inf).flow_spec((0.1,))
    assert separate.map_sharing == "separate"
    assert separate.shared_condition_dim == 0
    assert separate.stages[0].transport.n_shared_classes == 0
    shared = builder(**conditional, amplifier=5.0).flow_spec((0.1,))
    assert shared.map_sharing == "shared"
    assert shared.shared_condition_dim == 3
    assert shared.stages[0].transport.n_shared_classes == 3


def test_stages_know_their_place_among_the_others():
    def marks(**changes):
        stages = builder("6[1]=1 6[3] 6[1]=1 6[1]=1", **changes).stage_contexts
        return [(s.is_pixelwise, s.is_before_pixelwise, s.is_tapered) for s in stages]

    assert marks() == [
        (True, False, False),
        (False, True, True),
        (True, True, False),
        (True, False, False),
    ]
    not_pixelwise = [(False, False, False)] * 3 + [(False, False, True)]
    assert marks(patch_basis="random") == not_pixelwise
    assert marks(layout=Layout(6, 6, 3, "uint8", 256)) == not_pixelwise
