"""Maps are shrunk within their noise: no signal, no movement.

And what is significant stays.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from problems import batch_of_classes
from sliceflow.engine.batches import Batch, DataTarget
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import ClassIndices, ClassSlices, SeparateClassIndices
from sliceflow.engine.flow import FlowSpec, FlowState, ParticleRng, simulate
from sliceflow.engine.frames import Axis, Orthogonal
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.shrinkage import (
    ShrunkTransport,
    compute_noise_factors,
    shrunk_flow,
    variance_within,
)
from sliceflow.engine.transports import HistogramTransport, SortedTransport

BOTH = pytest.mark.parametrize(
    "transport",
    [SortedTransport(), HistogramTransport(64, batch_size=None)],
    ids=["sort", "bins"],
)


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def shrunk(transport, z_p, z_q, kappa, **factors):
    m = z_p.shape[1]
    n = z_q.shape[1]
    return ShrunkTransport(
        transport, kappa, compute_noise_factors(m, n, **factors)
    ).solve(z_p, z_q)


@BOTH
def test_without_signal_hardly_anything_moves(transport):
    z_p = normal(50, 800)
    z_q = normal(50, 600, seed=1)
    free = transport.solve(z_p, z_q)
    less = shrunk(transport, z_p, z_q, 3.0)
    before = free.maps.displace(z_p).square().mean()
    after = less.maps.displace(z_p).square().mean()
    assert after < 0.15 * before
    assert less.active_fraction < 0.5
    assert free.active_fraction is None
    assert torch.equal(less.mean_squared_displacement, free.mean_squared_displacement)


@dataclass(frozen=True)
class _BinsWithKnownDisplacements(HistogramTransport):
    """A transport of a user, whose maps on a grid come with displacements."""

    def solve(self, z_p, z_q, batch=None):
        solution = super().solve(z_p, z_q)
        return solution._replace(dz=solution.maps.displace(z_p))


def test_known_displacements_of_maps_on_a_grid_are_shrunk_as_the_maps():
    z_p = normal(3, 500)
    z_q = normal(3, 400, seed=1) + 0.2
    less = shrunk(_BinsWithKnownDisplacements(64), z_p, z_q, 3.0)
    assert torch.allclose(less.dz, less.maps.displace(z_p), atol=1e-9)


@BOTH
@given(scale=st.floats(0.2, 5), shift=st.floats(-2, 2), kappa=st.floats(0, 10))
@settings(max_examples=20, deadline=None)
def test_the_factor_is_that_of_james_and_stein(transport, scale, shift, kappa):
    z_p = normal(3, 500)
    z_q = scale * normal(3, 400, seed=1) + shift
    free = transport.solve(z_p, z_q)
    less = shrunk(transport, z_p, z_q, kappa, distinct_share=0.5)
    wanted = free.maps.displace(z_p)
    shrunk_dz = less.maps.displace(z_p)
    largest = wanted.abs().argmax(1, keepdim=True)
    factor = (shrunk_dz.gather(1, largest) / wanted.gather(1, largest))[:, 0]
    noise = kappa * z_p.var(1, correction=0) * (1 / 500 + 1 / 200)
    expected = (1 - noise / free.mean_squared_displacement).clamp(min=0)
    bins = isinstance(transport, HistogramTransport)
    assert torch.allclose(factor, expected, atol=0.02 if bins else 1e-9)
    assert torch.allclose(shrunk_dz, factor[:, None] * wanted, atol=1e-9)
    if not bins:
        assert torch.allclose(less.dz, factor[:, None] * free.dz)


def test_weights_mini_batches_and_mirror_images_count_as_fewer_rows():
    labels = ClassIndices(torch.tensor([0] * 100 + [1] * 100))
    few = ClassIndices(torch.tensor([0] * 190 + [1] * 10))
    assert compute_noise_factors(200, 200) == compute_noise_factors(
        200, 200, y_p=labels, y_q=labels
    )
    assert (
        compute_noise_factors(200, 200, y_p=labels, y_q=few)[0]
        > compute_noise_factors(200, 200)[0]
    )
    assert compute_noise_factors(200, 400, batch_size=100) == (1 / 100 + 1 / 100,)
    assert compute_noise_factors(200, 400, distinct_share=0.5) == (1 / 200 + 1 / 200,)
    separate = SeparateClassIndices(labels.values, 3)
    few_separate = SeparateClassIndices(few.values, 3)
    by_class = compute_noise_factors(200, 200, y_p=separate, y_q=few_separate)
    assert by_class[1] == 1 / 100 + 1 / 10


def test_every_class_has_its_own_noise():
    z = normal(2, 60), normal(2, 600, seed=1)
    p = torch.cat((z[0][:, :30], z[1][:, :300]), 1)
    q = torch.cat((z[0][:, 30:], z[1][:, 300:]), 1)
    class_slices = (ClassSlices((0, 30, 330)),) * 2
    y = SeparateClassIndices(torch.tensor([0] * 30 + [1] * 300), 2)
    bins = HistogramTransport(32, batch_size=None)
    factors = compute_noise_factors(330, 330, y_p=y, y_q=y)
    table = (
        ShrunkTransport(bins, 3.0, factors)
        .solve(p, q, batch_of_classes(*class_slices))
        .maps
    )
    for c, (own, other) in enumerate(
        (((p[:, :30]), q[:, :30]), (p[:, 30:], q[:, 30:]))
    ):
        alone = shrunk(bins, own, other, 3.0).maps
        assert torch.allclose(table.values[2 * c : 2 * c + 2], alone.values)


def test_where_classes_share_maps_their_gaps_are_no_noise():
    """Two samples of the same classes, far apart.

    The noise is that of the classes, added up.
    """
    classes = torch.arange(4000) % 10
    y = ClassIndices(classes)
    z_p = normal(60, 4000) + 100 * classes
    z_q = normal(60, 4000, seed=1) + 100 * classes
    within = variance_within(z_q, y, 10)
    assert torch.allclose(
        within, torch.full((60,), 10.0, dtype=torch.float64), rtol=0.1
    )
    kappa = SortedTransport().solve(z_p, z_q).mean_squared_displacement / (
        within * (2 / 4000)
    )
    assert 2 < kappa.mean() < 4  # as for one class
    factors = compute_noise_factors(4000, 4000, y_p=y, y_q=y)
    solution = ShrunkTransport(
        SortedTransport(), 3.0, factors, n_shared_classes=10
    ).solve(z_p, z_q, Batch(all_data_y=y))
    assert 0.2 < solution.active_fraction < 0.8


def test_stages_that_match_marginals_are_never_shrunk():
    stages = [
        Stage("a", Orthogonal(), 2),
        Stage("b", Axis(), 2, SortedTransport(), is_axis_stage=True),
    ]
    flow = shrunk_flow(FlowSpec(stages, Seed(0), 3), 2.0, (0.1,))
    assert flow.stages[0].transport == ShrunkTransport(
        stages[0].transport, 2.0, (0.1,), n_shared_classes=3
    )
    assert flow.stages[0].transport.batch_size == stages[0].transport.batch_size
    assert flow.stages[1] == stages[1]


def test_a_flow_between_equal_distributions_ends_early():
    x = normal(4, 3000)
    y = normal(4, 3000, seed=1)
    plain = FlowSpec([Stage("flow", Orthogonal(), 200, SortedTransport())], Seed(0))
    for kappa, fewest, most in ((0.0, 200, 200), (6.0, 4, 60)):
        state = FlowState()
        flow = shrunk_flow(plain, kappa, compute_noise_factors(3000, 3000))
        particles = Cloud(x.clone())
        simulate(
            flow,
            particles,
            DataTarget.from_cloud(Cloud(y)),
            ParticleRng(Seed(1)),
            state=state,
        )
        assert fewest <= state.steps_done <= most
        assert state.steps_done + state.steps_skipped == 200
