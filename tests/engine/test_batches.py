"""Batches: every column is seen, conditions are matched, and large clouds end where they should."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sliceflow import ImageFlow, PictureOptions, SlicedWassersteinFlow, VectorOptions
from sliceflow.engine.batches import divide
from sliceflow.engine.random import Seed
from sliceflow.engine.transports import Histogram, Sorted
from sliceflow.metrics import sliced_wasserstein


def test_small_clouds_are_looked_at_whole():
    labels = torch.arange(60) % 3
    for most in (None, 60, 1000):
        assert divide(60, 40, most, None, None, Seed(0)).at(5) == (None, None)
        batches = divide(60, 60, most, labels, labels, Seed(0))
        assert batches.at(5) == (None, None)
        assert batches.weights is None


def test_shares_that_differ_are_weighted_where_all_is_looked_at():
    codes_p, codes_q = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 1, 2])
    batches = divide(4, 4, None, codes_p, codes_q, Seed(0))
    assert batches.at(0)[1].tolist() == [0, 1, 2]  # class 2 has no particle
    assert batches.weights.tolist() == [3.0, 0.5, 0.5]


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 700))
def test_every_column_takes_its_turn(m, n, most):
    batches = divide(m, n, most, None, None, Seed(0))
    seen_p, seen_q = set(), set()
    pairs = set()
    for step in range(len(batches.data or [0])):
        p, q = batches.at(step)
        p, q = p or slice(0, m), q or slice(0, n)
        assert p.stop - p.start <= most or m <= most
        assert q.stop - q.start <= most or n <= most
        seen_p |= set(range(m)[p])
        seen_q |= set(range(n)[q])
        pairs.add((p.start, q.start))
    # A remainder that does not fill a batch is left out: below 16 columns for every batch.
    assert len(seen_p) >= m - 17 * -(-m // most)
    assert len(seen_q) >= n - 17 * -(-n // most)
    if batches.data is not None:
        assert sorted(batches.order.tolist()) == list(range(n))
        assert len(pairs) == -(-m // most) * -(-n // most)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=400),
    st.integers(1, 500),
    st.integers(1, 120) | st.just(350),
    st.integers(0, 5),
)
def test_every_batch_has_as_many_data_as_particles_of_each_class(labels, m, most, step):
    codes_q = torch.tensor(labels)
    if max(m, len(codes_q)) <= most:
        return
    present = codes_q.unique()
    codes_p = present[Seed(1).permutation(m) % len(present)]  # other shares than the data's
    batches = divide(m, len(codes_q), most, codes_p, codes_q, Seed(0))
    p, q = batches.at(step)
    data = codes_q[batches.order][q.long()]
    ours = codes_p if p is None else codes_p[p]
    assert torch.equal(torch.bincount(ours, minlength=5), torch.bincount(data, minlength=5))


def test_one_batch_of_particles_is_matched_whole():
    """303 is no multiple of 16: all of them are looked at, so all of them need partners."""
    codes_p, codes_q = torch.arange(303) % 3, torch.arange(900) % 3
    p, q = divide(303, 900, 400, codes_p, codes_q, Seed(0)).at(0)
    assert p is None
    assert len(q) == 303


def test_a_class_without_data_is_left_out_and_does_no_harm():
    codes_p, codes_q = torch.arange(100) % 3, torch.arange(100) % 2
    p, q = divide(100, 100, 50, codes_p, codes_q, Seed(0)).at(0)
    assert len(q) == int((codes_p[p] < 2).sum())


def test_continuous_conditions_are_matched_one_to_one():
    y = torch.from_numpy(np.random.default_rng(0).normal(size=(300, 2)))
    rows = Seed(1).permutation(300).repeat(3)
    batches = divide(900, 300, 100, y[rows], y, Seed(0))
    for step in range(5):
        p, q = batches.at(step)
        ours, theirs = (t.sort(dim=0).values for t in (y[rows][p], y[batches.order][q.long()]))
        assert torch.equal(ours, theirs)


def test_conditions_of_the_users_own_are_compared_as_they_are():
    y_p, y_q = torch.randn(900, 1).double(), torch.randn(300, 1).double()
    p, q = divide(900, 300, 100, y_p, y_q, Seed(0)).at(0)
    assert p == slice(0, 100)
    assert q == slice(0, 100)


@pytest.mark.parametrize("transport", [Histogram(64, most=500), Sorted(most=500)], ids=str)
def test_a_flow_of_batches_ends_near_the_data(transport):
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], 2000)
    rows = rng.normal(size=(4000, 3)) * [1, 0.5, 2] + 6 * labels[:, None]
    flow = SlicedWassersteinFlow(
        n_particles=3000,
        n_steps=30,
        transport=transport,
        random_state=0,
        options=VectorOptions(smoothing=0),
    )
    flow.fit(rows, labels)
    for label in (0, 1):
        ours = flow.particles_[flow.particle_conditions_ == label]
        assert sliced_wasserstein(ours, rows[labels == label]) < 0.1
        assert sliced_wasserstein(flow.sample(500, label, 0), rows[labels == label]) < 0.3


def test_particles_come_back_in_the_order_of_their_own_conditions():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], 500)
    rows = rng.normal(size=(1000, 2)) + 20 * labels[:, None]
    wanted = np.repeat([1, 0], [900, 100])  # sorted: a run of them is not a fair sample
    transport = Histogram(64, most=200)
    flow = SlicedWassersteinFlow(n_steps=20, transport=transport, random_state=0)
    flow.fit(rows, labels, particle_conditions=wanted)
    assert np.array_equal(flow.particles_.mean(axis=1) > 10, wanted == 1)


def test_pictures_in_batches_keep_their_classes():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 900)
    pictures = np.clip(60 + 120 * labels[:, None, None] + rng.normal(0, 20, (900, 4, 4)), 0, 255)
    flow = ImageFlow(
        n_particles=800,
        quality=5,
        transport=Histogram(64, most=200),
        options=PictureOptions(n_knots=0),
        random_state=0,
    ).fit(pictures.astype(np.uint8), labels)
    assert np.array_equal(flow.particles_.mean(axis=(1, 2)) > 120, flow.particle_conditions_ == 1)
