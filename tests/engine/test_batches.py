"""Batches.

Every point is used, conditions are matched, and classes with their own maps are
separate flows.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sliceflow.engine.batches import (
    Batches,
    DataTarget,
    make_batches,
    point_weights,
)
from sliceflow.engine.clouds import ALL_POINTS, ClassOrder, Cloud, PointSelection
from sliceflow.engine.encoded_y import (
    ClassIndices,
    ClassSlices,
    ContinuousY,
    SeparateClassIndices,
)
from sliceflow.engine.flow import FlowSpec, ParticleRng, simulate
from sliceflow.engine.frames import Orthogonal
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.transports import HistogramTransport


def pair(batches, turn):
    """The particles and the data of a batch."""
    batch = batch_at(batches, turn)
    return batch.particle_selection.indices, batch.data_selection.indices


def sorted_indices(classes, n_classes):
    """Classes (n,) that ascend, each with maps of its own."""
    y = SeparateClassIndices(classes, n_classes)
    return ClassOrder.from_y(y, n_classes).apply_to_y(y)


def batch_at(batches, turn):
    """The batch of a step, of clouds that know nothing of their classes."""
    points = Cloud(torch.zeros(1, 0))
    return batches.at_step(turn, points, points)


def assert_whole(batch):
    """All particles and data, without weights."""
    assert (batch.particle_selection, batch.data_selection) == (ALL_POINTS, ALL_POINTS)
    assert batch.weights is None


def test_small_clouds_are_looked_at_whole():
    labels = ClassIndices(torch.arange(60) % 3)
    for batch_size in (None, 60, 1000):
        without_y = make_batches(60, 40, batch_size, Seed(0))
        assert_whole(batch_at(without_y, 5))
        labeled = make_batches(60, 60, batch_size, Seed(0), y_p=labels, y_q=labels)
        assert_whole(batch_at(labeled, 5))


def test_shares_that_differ_are_weighted_where_all_is_looked_at():
    y_p = ClassIndices(torch.tensor([0, 0, 0, 1]))
    y_q = ClassIndices(torch.tensor([0, 1, 1, 2]))
    batches = make_batches(4, 4, None, Seed(0), y_p=y_p, y_q=y_q)
    # class 2 has no particle
    assert batch_at(batches, 0).data_selection.indices.tolist() == [0, 1, 2]
    assert batches.weights.tolist() == [3.0, 0.5, 0.5]


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(60, 700))
def test_every_point_takes_its_turn(m, n, batch_size):
    batches = make_batches(m, n, batch_size, Seed(0))
    seen_p = set()
    seen_q = set()
    pairs = set()
    for step in range(len(batches.data_selections or [0])):
        p, q = pair(batches, step)
        p = p or slice(0, m)
        q = q or slice(0, n)
        assert p.stop - p.start <= batch_size or m <= batch_size
        assert q.stop - q.start <= batch_size or n <= batch_size
        seen_p |= set(range(m)[p])
        seen_q |= set(range(n)[q])
        pairs.add((p.start, q.start))
    # A remainder that does not fill a batch is left out: below 16 points for every
    # batch.
    assert len(seen_p) >= m - 17 * -(-m // batch_size)
    assert len(seen_q) >= n - 17 * -(-n // batch_size)
    if batches.data_selections is not None:
        assert sorted(batches.data_order.indices.tolist()) == list(range(n))
        assert len(pairs) == -(-m // batch_size) * -(-n // batch_size)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=400),
    st.integers(1, 500),
    st.integers(1, 120) | st.just(350),
    st.integers(0, 5),
)
def test_every_batch_has_as_many_data_as_particles_of_each_class(
    labels, m, batch_size, step
):
    classes_q = torch.tensor(labels)
    if max(m, len(classes_q)) <= batch_size:
        return
    present = classes_q.unique()
    classes_p = present[
        Seed(1).permutation(m) % len(present)
    ]  # other shares than the data's
    batches = make_batches(
        m,
        len(classes_q),
        batch_size,
        Seed(0),
        y_p=ClassIndices(classes_p),
        y_q=ClassIndices(classes_q),
    )
    p, q = pair(batches, step)
    data = classes_q[batches.data_order.indices][q.long()]
    ours = classes_p if p is None else classes_p[p]
    assert torch.equal(
        torch.bincount(ours, minlength=5), torch.bincount(data, minlength=5)
    )


def test_continuous_conditions_are_matched_one_to_one():
    y = torch.from_numpy(np.random.default_rng(0).normal(size=(300, 2)))
    rows = Seed(1).permutation(300).repeat(3)
    batches = make_batches(
        900, 300, 100, Seed(0), y_p=ContinuousY(y[rows]), y_q=ContinuousY(y)
    )
    for step in range(5):
        p, q = pair(batches, step)
        ours = y[rows][p].sort(dim=0).values
        theirs = y[batches.data_order.indices][q.long()].sort(dim=0).values
        assert torch.equal(ours, theirs)


# Classes apart


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=150),
    st.lists(st.integers(0, 4), min_size=30, max_size=150),
    st.integers(1, 29) | st.just(150),
)
def test_every_point_is_in_one_batch_of_each_round(labels_p, labels_q, batch_size):
    classes = torch.tensor(sorted(labels_p)), torch.tensor(labels_q)
    batches = make_batches(
        len(classes[0]),
        len(classes[1]),
        batch_size,
        Seed(0),
        y_p=sorted_indices(classes[0], 5),
        y_q=SeparateClassIndices(classes[1], 5),
    )
    assert sorted(batches.data_order.indices.tolist()) == list(range(len(labels_q)))
    classes = classes[0], classes[1][batches.data_order.indices]
    assert bool((classes[1].diff() >= 0).all())
    if max(map(len, classes)) <= batch_size:
        clouds = [
            Cloud(torch.zeros(1, len(own)), sorted_indices(own, 5)) for own in classes
        ]
        batch = batches.at_step(3, *clouds)
        assert batch.particle_selection.indices is None
        assert batch.data_selection.indices is None
        assert batch.class_slices == tuple(
            ClassSlices.from_class_indices(ClassIndices(own), 5) for own in classes
        )
        return
    for side, own in enumerate(classes):
        count = -(-len(own) // batch_size)
        for turn in range(2):
            seen = [pair(batches, turn * count + b)[side] for b in range(count)]
            assert sorted(torch.cat(seen).tolist()) == list(range(len(own)))
            assert max(map(len, seen)) <= batch_size + 5
    for step in range(12):
        for indices, own, class_slices in zip(
            pair(batches, step),
            classes,
            batch_at(batches, step).class_slices,
            strict=True,
        ):
            y = ClassIndices(own[indices])
            assert class_slices == ClassSlices.from_class_indices(y, 5)
            assert bool((own[indices].diff() >= 0).all())


def engine(n_classes, n_steps=6):
    return FlowSpec(
        [Stage("", Orthogonal(), n_steps, HistogramTransport(32))],
        Seed(3),
        n_classes,
        math.inf,
    )


def cloud(*sizes, seed=0, scale=1.0):
    """Some points of every class, (3, n), which is at its own place."""
    classes = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    x = Seed(seed).normal(len(classes), 3, dtype=torch.float64).T * scale + classes
    return Cloud(x, sorted_indices(classes, len(sizes)))


def moved(particles, data):
    """The particles after a flow of their own copy, and its model."""
    particles = replace(particles, x=particles.x.clone())
    flow = engine(len(particles.class_slices))
    return particles, simulate(
        flow, particles, DataTarget.from_cloud(data), ParticleRng(Seed(0))
    )


def test_parts_of_separate_classes_say_where_these_are():
    """Classes would share maps otherwise, and the maps of others would be missing."""
    points = cloud(3, 2)
    batches = Batches([PointSelection(slice(0, 4))])
    with pytest.raises(AssertionError, match="parts of unsorted classes"):
        batches.at_step(0, points, points)


def test_classes_apart_are_one_flow_for_each_class():
    particles = cloud(200, 100, 150)
    data = cloud(150, 90, 70, seed=1, scale=0.5)
    together, model = moved(particles, data)
    for c in range(3):
        own = slice(*particles.class_slices.starts[c : c + 2])
        other = slice(*data.class_slices.starts[c : c + 2])
        alone = Cloud(particles.x[:, own].clone())
        flow = replace(engine(3), condition_dim=0)
        target = DataTarget.from_cloud(Cloud(data.x[:, other]))
        steps = simulate(flow, alone, target, ParticleRng(Seed(0)))
        assert torch.allclose(together.x[:, own], alone.x, atol=1e-6)
        for step, single in zip(model, steps, strict=True):
            of_class = step.maps.values[3 * c : 3 * c + 3]
            assert torch.allclose(of_class, single.maps.values, atol=1e-6)


# Targets


def test_data_are_loaded_once_a_stage_or_anew_for_every_step():
    flow = FlowSpec(
        [Stage(name, Orthogonal(), 2, HistogramTransport(8)) for name in "ab"], Seed(0)
    )
    for every_step, wanted in (
        (False, [(0, 0), (1, 0)]),
        (True, [(0, 0), (0, 1), (1, 0), (1, 1)]),
    ):
        loaded = []

        def load_data(step, loaded=loaded):
            loaded.append((step.stage_index, step.step_index))
            return cloud(50)

        simulate(
            flow,
            cloud(60),
            DataTarget(load_data, reloads_every_step=every_step),
            ParticleRng(Seed(0)),
        )
        assert loaded == wanted


def test_separate_classes_are_counted_once_however_often_data_are_loaded(monkeypatch):
    """To count them, the CPU waits for a GPU."""
    particles = cloud(60, 40)
    data = cloud(30, 20)
    order = Seed(3).permutation(50)
    shuffled = Cloud(data.x[:, order], data.y.take(order))
    counted = []
    from_class_indices = ClassSlices.from_class_indices

    def count(y, n_classes):
        counted.append(len(y))
        return from_class_indices(y, n_classes)

    monkeypatch.setattr(ClassSlices, "from_class_indices", count)
    batches = make_batches(100, 50, None, Seed(0), y_p=particles.y, y_q=shuffled.y)
    target = DataTarget(lambda step: shuffled, lambda: batches, reloads_every_step=True)
    flow = replace(engine(2), max_projection_bytes=1)
    assert sum(stage.n_steps for stage in flow.stages) > 2
    simulate(flow, particles, target, ParticleRng(Seed(0)))
    assert counted == [50]


def test_batches_take_turns_over_all_stages():
    parts = [slice(0, 20), slice(20, 40), slice(40, 60)]
    seen = []

    class Recorded(HistogramTransport):
        def solve(self, z_p, z_q, batch):
            seen.append((batch.particle_selection.indices, z_p.shape[1]))
            return super().solve(z_p, z_q, batch)

    flow = FlowSpec(
        [Stage(name, Orthogonal(), 2, Recorded(8)) for name in "ab"], Seed(0)
    )
    batches = Batches([PointSelection(part) for part in parts])
    target = DataTarget.from_cloud(Cloud(cloud(50).x), batches)
    simulate(flow, Cloud(cloud(60).x), target, ParticleRng(Seed(0)))
    assert seen == [(parts[turn % 3], 20) for turn in range(4)]


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=40),
    st.lists(st.integers(0, 4), min_size=1),
)
def test_weighted_data_have_the_particles_class_masses(data, particles):
    data = torch.tensor(data)
    particles = torch.tensor(particles)
    weights = point_weights(y_p=ClassIndices(particles), y_q=ClassIndices(data))
    weights = torch.ones(len(data)).double() if weights is None else weights
    for c in set(data.tolist()):
        mass = weights[data == c].sum() / len(data)
        assert float(mass) == pytest.approx(
            float((particles == c).double().mean()), abs=1e-12
        )


def test_repeated_rows_of_continuous_conditions_are_weighted_and_foreign_ones_are_not():
    rows = ContinuousY(torch.tensor([[0.0], [1.0]]).double())
    weights = point_weights(y_p=rows.take(torch.tensor([0, 0, 0, 1])), y_q=rows)
    assert weights.tolist() == [1.5, 0.5]
    other = ContinuousY(torch.tensor([[0.5]]).double())
    assert point_weights(y_p=other, y_q=rows) is None


def test_another_simulation_loads_its_own_data():
    """The second one moved onto the data of the first."""
    offsets = iter([5.0, -5.0])
    target = DataTarget(lambda step: Cloud(torch.randn(2, 100) + next(offsets)))
    flow = FlowSpec([Stage("flow", Orthogonal(), n_steps=5)], Seed(0))
    means = []
    for _ in range(2):
        particles = Cloud(torch.randn(2, 100))
        simulate(flow, particles, target)
        means.append(float(particles.x.mean()))
    assert means[0] > 4
    assert means[1] < -4
