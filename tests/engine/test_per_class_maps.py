"""SortedTransport maps of separate classes: each class moves as if it were alone."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from problems import batch_of_classes, sorted_classes
from sliceflow.engine.batches import DataTarget
from sliceflow.engine.clouds import ClassOrder, Cloud
from sliceflow.engine.compression import Compression
from sliceflow.engine.encoded_y import ClassIndices, ClassSlices
from sliceflow.engine.flow import FlowSpec, ParticleRng, as_flow_y, replay, simulate
from sliceflow.engine.frames import Axis, Orthogonal
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.shrinkage import ShrunkTransport, compute_noise_factors
from sliceflow.engine.transports import (
    HistogramTransport,
    PaperTransport,
    SortedTransport,
)

SORTING = pytest.mark.parametrize(
    "transport", [SortedTransport(), PaperTransport()], ids=str
)


@st.composite
def classes(draw, n_rows=3):
    """Projections z_p (h, M) and z_q (h, N) of a few classes, and their class slices.

    Some classes have no particles, no data, few of them, or ties.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = st.integers(0, 40)
    sizes = draw(st.lists(st.tuples(size, size), min_size=1, max_size=4))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    n_digits = draw(st.integers(0, 6))
    slices_p = slices_of(m for m, _ in sizes)
    slices_q = slices_of(n for _, n in sizes)
    z_p = rng.normal(size=(n_rows, slices_p.starts[-1])).round(n_digits)
    z_q = rng.gamma(2, size=(n_rows, slices_q.starts[-1])).round(n_digits)
    return (
        torch.from_numpy(z_p).to(dtype),
        torch.from_numpy(z_q).to(dtype),
        slices_p,
        slices_q,
    )


def slices_of(sizes):
    return ClassSlices((0, *np.cumsum(list(sizes)).tolist()))


def each_class(slices_p, slices_q):
    """The class index, and the slices of its particles and of its data."""
    pairs = zip(pairwise(slices_p.starts), pairwise(slices_q.starts), strict=True)
    for c, (points_p, points_q) in enumerate(pairs):
        yield c, slice(*points_p), slice(*points_q)


def is_empty(points):
    return points.start == points.stop


@SORTING
@given(problem=classes())
def test_every_class_has_the_maps_that_it_would_have_alone(transport, problem):
    z_p, z_q, slices_p, slices_q = problem
    h = len(z_p)
    solution = transport.solve(z_p, z_q, batch_of_classes(slices_p, slices_q))
    dz = solution.maps.displace(z_p, Cloud(z_p, sorted_classes(slices_p)))
    assert (
        solution.maps.knots.shape[0]
        == len(solution.mean_squared_displacement)
        == len(slices_p) * h
    )
    solution.maps.check_saved()
    for c, points_p, points_q in each_class(slices_p, slices_q):
        rows = slice(c * h, (c + 1) * h)
        if is_empty(points_p) or is_empty(points_q):
            assert not solution.dz[:, points_p].any()
            assert not solution.mean_squared_displacement[rows].any()
            assert dz[:, points_p].abs().sum() < 1e-12
            continue
        alone = transport.solve(z_p[:, points_p], z_q[:, points_q])
        n_knots = alone.maps.knots.shape[1]
        assert torch.equal(solution.maps.knots[rows, :n_knots], alone.maps.knots)
        assert torch.equal(solution.maps.values[rows, :n_knots], alone.maps.values)
        assert torch.equal(solution.dz[:, points_p], alone.dz)
        assert torch.equal(
            solution.mean_squared_displacement[rows], alone.mean_squared_displacement
        )
        assert torch.equal(dz[:, points_p], alone.maps.displace(z_p[:, points_p]))


@pytest.mark.parametrize(
    "transport",
    [SortedTransport(), PaperTransport(), HistogramTransport(16)],
    ids=str,
)
def test_classes_count_by_their_data_in_the_distance(transport):
    # Ten data are 3 away, thirty are 1 away; the third class has no data.
    slices_p = slices_of([20, 20, 20])
    slices_q = slices_of([10, 30, 0])
    z_p = torch.linspace(0, 1, 20, dtype=torch.float64).repeat(2, 3)
    z_q = torch.cat((torch.linspace(3, 4, 10), torch.linspace(1, 2, 30)))
    z_q = z_q.double().expand(2, -1).contiguous()
    solution = ShrunkTransport(transport, 0.0, (0.1, 0.1, 0.1)).solve(
        z_p, z_q, batch_of_classes(slices_p, slices_q)
    )
    assert float(solution.distance) == pytest.approx(
        ((10 * 9 + 30) / 40) ** 0.5, rel=0.03
    )


@SORTING
@given(
    problem=classes(),
    n_knots=st.integers(2, 8),
    tails=st.booleans(),
    scale=st.floats(0.1, 10),
)
def test_thin_maps_move_fresh_particles_of_a_class_as_its_own_thin_maps_do(
    transport, problem, n_knots, tails, scale
):
    z_p, z_q, slices_p, slices_q = problem
    solution = transport.solve(z_p, z_q, batch_of_classes(slices_p, slices_q))
    compression = Compression(n_knots, keep_tails=tails)
    stored = compression.compress(solution.maps)
    stored.check_saved()
    fresh = torch.linspace(-3, 3, 50, dtype=z_p.dtype).repeat(len(slices_p))
    fresh = (scale * fresh).expand(len(z_p), -1).contiguous()
    slices = slices_of([50] * len(slices_p))
    dz = stored.displace(fresh, Cloud(fresh, sorted_classes(slices)))
    for c, points_p, points_q in each_class(slices_p, slices_q):
        points = slice(50 * c, 50 * (c + 1))
        if is_empty(points_p) or is_empty(points_q):
            assert dz[:, points].abs().max() < 1e-12
            continue
        alone = transport.solve(z_p[:, points_p], z_q[:, points_q]).maps
        own = compression.compress(alone)
        assert torch.equal(dz[:, points], own.displace(fresh[:, points]))


@SORTING
@given(problem=classes(), strength=st.floats(0, 5))
def test_every_class_is_shrunk_by_its_own_noise(transport, problem, strength):
    z_p, z_q, slices_p, slices_q = problem
    h = len(z_p)
    y_p = sorted_classes(slices_p)
    y_q = sorted_classes(slices_q)
    factors = compute_noise_factors(
        len(y_p),
        len(y_q),
        y_p=y_p,
        y_q=y_q,
    )
    batch = batch_of_classes(slices_p, slices_q)
    solution = ShrunkTransport(transport, strength, factors).solve(z_p, z_q, batch)
    for c, points_p, points_q in each_class(slices_p, slices_q):
        if is_empty(points_p) or is_empty(points_q):
            assert not solution.dz[:, points_p].any()
            continue
        own_p = z_p[:, points_p]
        own_q = z_q[:, points_q]
        own_factors = compute_noise_factors(own_p.shape[1], own_q.shape[1])
        alone = ShrunkTransport(transport, strength, own_factors).solve(own_p, own_q)
        n_knots = alone.maps.knots.shape[1]
        rows = slice(c * h, (c + 1) * h)
        assert torch.equal(solution.maps.values[rows, :n_knots], alone.maps.values)
        assert torch.equal(solution.dz[:, points_p], alone.dz)


def test_a_flow_with_maps_per_class_is_the_flow_of_each_class_alone(rng):
    """Class 1 has fewer particles than a stored map has knots, class 2 has no data."""
    slices_p = ClassSlices((0, 300, 320, 350))
    slices_q = ClassSlices((0, 200, 230, 230))
    x = torch.from_numpy(rng.normal(size=(3, 350)))
    data = torch.from_numpy(rng.gamma(2, size=(3, 230)).round(1))
    fresh = torch.from_numpy(rng.normal(size=(3, 90)))
    fresh_slices = ClassSlices((0, 30, 60, 90))
    stages = [
        Stage("flow", Orthogonal(), 6, SortedTransport(), max_knots=32),
        Stage("axes", Axis(), 2, SortedTransport(), max_knots=32, is_axis_stage=True),
    ]
    flow = FlowSpec(stages, Seed(0), condition_dim=3, amplifier=np.inf)
    particles = Cloud(x.clone(), sorted_classes(slices_p))
    target = DataTarget.from_cloud(Cloud(data, sorted_classes(slices_q)))
    model = simulate(flow, particles, target, ParticleRng(Seed(1)))
    samples = Cloud(fresh.clone(), sorted_classes(fresh_slices))
    replay(flow, model, samples, ParticleRng(Seed(2)))
    unconditional = replace(flow, condition_dim=0)
    for c, points_p, points_q in each_class(slices_p, slices_q):
        points = slice(30 * c, 30 * (c + 1))
        if is_empty(points_q):
            assert torch.allclose(particles.x[:, points_p], x[:, points_p])
            assert torch.allclose(samples.x[:, points], fresh[:, points])
            continue
        alone = Cloud(x[:, points_p].clone())
        own_target = DataTarget.from_cloud(Cloud(data[:, points_q]))
        own_model = simulate(unconditional, alone, own_target, ParticleRng(Seed(1)))
        assert torch.allclose(particles.x[:, points_p], alone.x)
        own_samples = Cloud(fresh[:, points].clone())
        replay(unconditional, own_model, own_samples, ParticleRng(Seed(2)))
        assert torch.allclose(samples.x[:, points], own_samples.x)


def test_particles_in_any_order_are_replayed_as_if_they_were_sorted_by_class(rng):
    """They come back in their own order, and so do the snapshots on their way."""
    y = ClassIndices(torch.arange(90) % 3)
    by_class = torch.argsort(y.values, stable=True)
    slices = slices_of([30, 30, 30])
    x = torch.from_numpy(rng.normal(size=(3, 90)))
    data = torch.from_numpy(rng.gamma(2, size=(3, 90)))
    stages = [Stage("flow", Orthogonal(), 4, SortedTransport(), max_knots=32)]
    flow = FlowSpec(stages, Seed(0), condition_dim=3, amplifier=np.inf)
    model = simulate(
        flow,
        Cloud(x[:, by_class], sorted_classes(slices)),
        DataTarget.from_cloud(Cloud(data, sorted_classes(slices))),
        ParticleRng(Seed(1)),
    )
    in_order = Cloud(x[:, by_class], sorted_classes(slices))
    snapshots = replay(flow, model, in_order, ParticleRng(Seed(2)), {1, 3})
    mixed = Cloud(x.clone(), y)
    mixed_snapshots = replay(flow, model, mixed, ParticleRng(Seed(2)), {1, 3})
    assert len(snapshots) == len(mixed_snapshots) == 2
    assert not torch.equal(snapshots[0], in_order.x)
    assert torch.equal(mixed.x[:, by_class], in_order.x)
    for snapshot, mixed_snapshot in zip(snapshots, mixed_snapshots, strict=True):
        assert torch.equal(mixed_snapshot[:, by_class], snapshot)


def test_the_noise_of_a_particle_does_not_depend_on_the_classes_of_others(rng):
    """With separate maps, too, for which particles are sorted by class."""
    y = ClassIndices(torch.arange(90) % 3)
    other_y = ClassIndices(y.values.clone())
    other_y.values[:40] = 2
    by_class = sorted_classes(slices_of([30] * 3))
    data = Cloud(torch.from_numpy(rng.gamma(2, size=(3, 90))), by_class)
    stages = [Stage("flow", Orthogonal(), 4, SortedTransport(), max_knots=32)]
    flow = FlowSpec(stages, Seed(0), condition_dim=3, amplifier=np.inf, entropy=0.01)
    fitted = Cloud(torch.from_numpy(rng.normal(size=(3, 90))), by_class)
    target = DataTarget.from_cloud(data)
    model = simulate(flow, fitted, target, ParticleRng(Seed(1)))

    x = torch.from_numpy(rng.normal(size=(3, 90)))
    particles = Cloud(x.clone(), y)
    replay(flow, model, particles, ParticleRng(Seed(2)))
    beside_others = Cloud(x.clone(), other_y)
    replay(flow, model, beside_others, ParticleRng(Seed(2)))
    same = y.values == other_y.values
    assert 30 < int(same.sum()) < 90
    assert torch.equal(particles.x[:, same], beside_others.x[:, same])
    assert not torch.equal(particles.x[:, ~same], beside_others.x[:, ~same])


def test_points_that_are_not_sorted_by_class_are_refused():
    """Their classes would share maps without a word."""
    classes = torch.arange(40) % 2
    y = as_flow_y(ClassIndices(classes), "separate", 2)
    data = Cloud(torch.randn(2, 40), y)
    stages = [Stage("flow", Orthogonal(), n_steps=1)]
    spec = FlowSpec(stages, Seed(0), condition_dim=2, amplifier=math.inf)
    with pytest.raises(ValueError, match="points are not sorted by class"):
        simulate(spec, Cloud(torch.randn(2, 40), y), DataTarget.from_cloud(data))
    order = ClassOrder.from_y(y, 2)
    particles = Cloud(torch.randn(2, 40), y).reordered(order)
    simulate(spec, particles, DataTarget.from_cloud(data.reordered(order)))
