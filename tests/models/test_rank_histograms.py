"""Histograms over ranks: here ranks are threads, and their messages are exact sums."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from sliceflow.engine.batches import Batch, Batches, Target
from sliceflow.engine.clouds import Cloud, Runs
from sliceflow.engine.flow import Flow, Noise, simulate
from sliceflow.engine.frames import Axis, Orthogonal
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.shrinkage import Shrunk
from sliceflow.engine.transports import AlignedHistogram, Auto, Histogram, Interpolated, Sorted
from sliceflow.models.ranks import Ranks, SharedHistogram, across_ranks, weighted_batches


class Threads:
    """Ranks that are threads of this process."""

    def __init__(self, size):
        self.size, self._barrier, self._parts = size, threading.Barrier(size), []

    def _combined(self, part, how):
        self._parts.append(part)
        self._barrier.wait()
        out = how(torch.stack(list(self._parts)))
        if self._barrier.wait() == 0:
            self._parts.clear()
        self._barrier.wait()
        return out

    def sum(self, part):
        return self._combined(part, lambda parts: parts.sum(0))

    def minimum(self, part):
        return self._combined(part, lambda parts: parts.amin(0))

    def run(self, work):
        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(work, range(self.size)))


def same_tables(a, b):
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in ("lo", "hi", "values"))


@pytest.mark.parametrize("histogram", [Histogram(16), AlignedHistogram(16)], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_maps_are_those_of_a_single_process(histogram, weighted):
    z_p, z_q = Seed(0).normal(4, 90), Seed(1).normal(4, 60) * 2
    weights = torch.randint(1, 4, (60,)).double() if weighted else None
    alone = histogram.fit(z_p, z_q, Batch(weights=weights))
    ranks, ends = Threads(3), [0, 10, 25, 60]

    def fit(r):
        part = slice(ends[r], ends[r + 1])
        own = Batch(weights=None if weights is None else weights[part])
        return SharedHistogram(histogram, ranks).fit(z_p[:, 30 * r : 30 * r + 30], z_q[:, part], own)

    for found in ranks.run(fit):
        assert same_tables(found.table, alone.table)
        assert torch.equal(found.cost, alone.cost)


def test_every_class_has_its_own_maps_also_where_a_rank_has_none_of_it():
    """Class 1 is on the second rank alone; class 2 has no data anywhere and stays."""
    z_p, z_q = Seed(0).normal(3, 80), Seed(1).normal(3, 60) + 1
    alone = Histogram(16).fit(z_p, z_q, Batch(runs=(Runs((0, 30, 60, 80)), Runs((0, 30, 60, 60)))))
    runs = [
        (Runs((0, 30, 30, 40)), Runs((0, 30, 30, 30))),
        (Runs((0, 0, 30, 40)), Runs((0, 0, 30, 30))),
    ]
    columns = [
        torch.tensor([*range(30), *range(60, 70)]),
        torch.tensor([*range(30, 60), *range(70, 80)]),
    ]
    ranks = Threads(2)

    def fit(r):
        batch = Batch(runs=runs[r])
        return SharedHistogram(Histogram(16), ranks).fit(
            z_p[:, columns[r]], z_q[:, 30 * r : 30 * r + 30], batch
        )

    for found in ranks.run(fit):
        assert same_tables(found.table, alone.table)


def test_a_flow_over_ranks_moves_particles_as_a_single_process_does():
    """Two classes that share shrunk maps; the particles' shares are not the data's."""
    x, data = Seed(0).normal(2, 400), Seed(1).normal(2, 300)
    y_p, y_q = torch.arange(400) % 2, (torch.arange(300) % 3 == 0).long()
    data = data + 3 * y_q
    stage = Stage("flow", Orthogonal(), 6, Shrunk(Histogram(64), 2.0, (0.02,), n_shared=2))
    flow = Flow([stage], Seed(2), 2)
    alone = Cloud(x.clone(), y_p)
    model = simulate(flow, alone, flow.target(alone, Cloud(data, y_q)), Noise(Seed(3)))
    ranks = Threads(2)

    def fit(r):
        own, part = slice(200 * r, 200 * r + 200), torch.arange(100 * r, 100 + 200 * r)
        cloud = Cloud(x[:, own].clone(), y_p[own])
        batches = weighted_batches(y_q, y_p, part, "cpu")
        target = Target.from_cloud(Cloud(data[:, part], y_q[part]), batches)
        return cloud.x, simulate(across_ranks(flow, ranks), cloud, target, Noise(Seed(3), 200 * r))

    moved, models = zip(*ranks.run(fit), strict=True)
    assert torch.allclose(torch.cat(moved, 1), alone.x, atol=1e-9)
    for own in models:
        assert all(same_tables(a.table, b.table) for a, b in zip(own, model, strict=True))


def test_a_rank_whose_data_have_no_particles_sends_nothing():
    y_q, y_p = torch.tensor([0, 0, 1, 1]), torch.zeros(4, dtype=torch.int64)
    here, away = (weighted_batches(y_q, y_p, torch.arange(*ends), "cpu") for ends in ((0, 2), (2, 4)))
    assert here == Batches(weights=here.weights)
    assert away.weights.tolist() == [0.0]
    ranks, z_p, z_q = (
        Threads(2),
        Seed(0).normal(1, 4),
        torch.tensor([[5.0, 6.0, 100.0, 101.0]]).double(),
    )

    def fit(r):
        batch = (here, away)[r].at(0)
        data = z_q[:, 2 * r : 2 * r + 2]
        data = data if batch.data is None else data[:, batch.data]
        return SharedHistogram(Histogram(8), ranks).fit(z_p[:, 2 * r : 2 * r + 2], data, batch)

    for found in ranks.run(fit):
        assert float(found.table.values.max()) < 7


def test_one_rank_is_a_plain_fit_and_several_count():
    stages = [
        Stage("a", Orthogonal(), 2, Shrunk(Auto(n_bins=32), 1.0, (0.1,))),
        Stage("b", Axis(), 2, Sorted(), exact=True),
    ]
    flow = Flow(stages, Seed(0))
    assert across_ranks(flow, Ranks()) is flow
    several = Threads(2)
    first, last = (stage.transport for stage in across_ranks(flow, several).stages)
    assert first == replace(
        stages[0].transport, transport=SharedHistogram(Histogram(32), several), total=several.sum
    )
    assert last.histogram.n_bins == 4096
    for transport in (Sorted(), Interpolated(), Shrunk(Sorted(), 1.0, (0.1,))):
        with pytest.raises(ValueError, match="sorts, which 2 ranks cannot do together"):
            across_ranks(Flow([Stage("a", Orthogonal(), 2, transport)], Seed(0)), several)
