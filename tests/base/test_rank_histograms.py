"""Histograms over ranks: here ranks are threads, and their messages are exact sums."""

from dataclasses import replace

import pytest
import torch

from problems import batch_of_classes
from rank_threads import Threads
from sliceflow.base.distributed import DistributedHistogramTransport, across_ranks
from sliceflow.base.ranks import Communicator
from sliceflow.engine.batches import make_weighted_batches
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import ClassIndices, ClassSlices
from sliceflow.engine.flow import FlowSpec
from sliceflow.engine.frames import Axis, Orthogonal
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.shrinkage import ShrunkTransport
from sliceflow.engine.transports import (
    HistogramTransport,
    PaperTransport,
    SortedTransport,
)


def test_every_class_has_its_own_maps_also_where_a_rank_has_none_of_it():
    """Class 1 is on the second rank alone; class 2 has no data anywhere and stays."""
    z_p = Seed(0).normal(3, 80)
    z_q = Seed(1).normal(3, 60) + 1
    alone = HistogramTransport(16).solve(
        z_p,
        z_q,
        batch_of_classes(ClassSlices((0, 30, 60, 80)), ClassSlices((0, 30, 60, 60))),
    )
    starts = [((0, 30, 30, 40), (0, 30, 30, 30)), ((0, 0, 30, 40), (0, 0, 30, 30))]
    columns = [[*range(30), *range(60, 70)], [*range(30, 60), *range(70, 80)]]
    ranks = Threads(2)

    def fit(r):
        batch = batch_of_classes(*map(ClassSlices, starts[r]))
        return DistributedHistogramTransport(HistogramTransport(16), ranks).solve(
            z_p[:, columns[r]], z_q.chunk(2, 1)[r], batch
        )

    for shared in ranks.run(fit):
        for name in ("lo", "hi", "values"):
            assert torch.equal(getattr(shared.maps, name), getattr(alone.maps, name))


def test_a_rank_whose_data_have_no_particles_sends_nothing():
    y_q = ClassIndices(torch.tensor([0, 0, 1, 1]))
    y_p = ClassIndices(torch.zeros(4, dtype=torch.int64))
    with_particles = make_weighted_batches(torch.arange(0, 2), "cpu", y_p=y_p, y_q=y_q)
    without = make_weighted_batches(torch.arange(2, 4), "cpu", y_p=y_p, y_q=y_q)
    assert with_particles.weights is not None
    assert with_particles.particle_selections is None
    assert with_particles.data_selections is None
    assert without.weights.tolist() == [0.0]
    ranks = Threads(2)
    z_p = Seed(0).normal(1, 4)
    z_q = torch.tensor([[5.0, 6.0, 100.0, 101.0]]).double()

    def fit(r):
        columns = slice(2 * r, 2 * r + 2)
        particles = Cloud(z_p[:, columns])
        data = Cloud(z_q[:, columns])
        batch = (with_particles, without)[r].at_step(0, particles, data)
        return DistributedHistogramTransport(HistogramTransport(8), ranks).solve(
            particles.x, data.take(batch.data_selection.indices).x, batch
        )

    for fit_of_rank in ranks.run(fit):
        assert float(fit_of_rank.maps.values.max()) < 7


def test_one_rank_is_a_plain_fit_and_several_count():
    stages = [
        Stage(
            "a", Orthogonal(), 2, ShrunkTransport(HistogramTransport(32), 1.0, (0.1,))
        ),
        Stage("b", Axis(), 2, SortedTransport(), is_axis_stage=True),
    ]
    flow = FlowSpec(stages, Seed(0))
    assert across_ranks(flow, Communicator()) is flow
    several = Threads(2)
    first, last = across_ranks(flow, several).stages
    assert first.transport == replace(
        stages[0].transport,
        transport=DistributedHistogramTransport(HistogramTransport(32), several),
        sum_over_ranks=several.sum_,
    )
    assert last.transport.histogram.n_bins == 4096
    for transport in (
        SortedTransport(),
        PaperTransport(),
        ShrunkTransport(SortedTransport(), 1.0, (0.1,)),
    ):
        with pytest.raises(ValueError, match="sorts, which 2 ranks cannot do together"):
            across_ranks(
                FlowSpec([Stage("a", Orthogonal(), 2, transport)], Seed(0)), several
            )
