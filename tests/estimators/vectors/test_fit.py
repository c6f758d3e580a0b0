"""Fits of vectors: closed forms, exact columns, conditions, classes, shrunk maps."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance
from sklearn.datasets import load_digits

from models import LABELS, X, vectors
from problems import clouds, gaussian
from sliceflow import SlicedWassersteinFlow, VectorOptions, frames, metrics, transports
from sliceflow.base.particle_allocation import allocate_particles
from sliceflow.base.ranks import Communicator, Shard
from sliceflow.engine.random import Seed
from sliceflow.errors import DataError

ROWS = VectorOptions(smoothing=0)
QUICK = dict(n_particles=64, n_steps=5, random_state=0, device="cpu")
flow_of = partial(SlicedWassersteinFlow, device="cpu", random_state=0, options=ROWS)


# Where the flow ends


@given(gaussian(2000))
@settings(max_examples=3)
def test_a_gaussian_is_reached(problem):
    x = flow_of(n_particles=2000, n_steps=40).fit(problem.data).particles_
    spread = np.sqrt(np.trace(problem.cov))
    assert np.linalg.norm(x.mean(0) - problem.mean) < 0.01 * spread
    cov = np.cov(x.T, bias=True).reshape(problem.cov.shape)
    assert np.linalg.norm(cov - problem.cov) < 0.02 * np.linalg.norm(problem.cov)


@given(clouds(), st.integers(-20, 20))
@settings(max_examples=5)
def test_scaled_rows_give_scaled_samples(x, power):
    """A power of two scales without rounding: bit for bit."""
    scale = 2.0**power
    flow = SlicedWassersteinFlow(**QUICK).fit(x)
    scaled = SlicedWassersteinFlow(**QUICK).fit(scale * x)
    assert np.array_equal(scaled.particles_, scale * flow.particles_)
    samples = flow.sample(9, random_state=1)
    assert np.array_equal(scaled.sample(9, random_state=1), scale * samples)


def test_shifted_rows_give_shifted_samples_and_huge_ones_keep_their_scale():
    shift = np.array([5, -70, 0.1])

    def particles(rows):
        return flow_of(n_particles=200, n_steps=10).fit(rows).particles_

    assert np.allclose(particles(X + shift), particles(X) + shift, atol=1e-6)
    for scale in (1e-30, 1e30):
        assert np.allclose(particles(X * scale).std(0), X.std(0) * scale, rtol=0.2)


@given(clouds())
@settings(max_examples=5)
def test_axis_steps_make_every_column_exact(x):
    """As many particles as rows: every column has exactly the data's values."""
    assume(x.shape[1] > 1)
    flow = flow_of(n_particles=len(x), n_steps=3).fit(x)
    for column, ours in zip(x.T, flow.particles_.T, strict=True):
        far = np.abs(ours[:, None] - column).min(axis=1)
        if len(np.unique(column)) == len(column):
            far = np.abs(np.sort(ours) - np.sort(column))
        assert far.max() < 1e-9 * max(1, np.abs(column).max())


def test_degenerate_rows_are_legal():
    one = flow_of(n_particles=40, n_steps=3).fit(X[:1])
    assert np.allclose(one.particles_, X[:1], atol=1e-12)
    assert np.allclose(one.sample(3), X[:1], atol=1e-12)
    assert flow_of(n_particles=1, n_steps=3).fit(X[:, :1]).particles_.shape == (1, 1)
    assert np.isfinite(
        flow_of(n_particles=40, n_steps=3).fit(np.repeat(X[:2], 20, 0)).particles_
    ).all()
    for value in (0.1, -3.0, 1e300):
        x = X.copy()
        x[:, 2] = value
        flow = flow_of(n_particles=40, n_steps=3).fit(x)
        assert np.all(flow.particles_[:, 2] == value)
        assert np.all(flow.sample(5, random_state=0)[:, 2] == value)


@pytest.mark.parametrize(
    "transport",
    [
        transports.HistogramTransport(64, batch_size=500),
        transports.SortedTransport(batch_size=500),
    ],
)
def test_steps_that_look_at_few_columns_end_near_the_data(transport):
    labels = np.repeat([0, 1], 1000)
    rows = (
        np.random.default_rng(0).normal(size=(2000, 3)) * [1, 0.5, 2]
        + 6 * labels[:, None]
    )
    flow = flow_of(n_particles=2000, n_steps=30, transport=transport)
    flow.fit(rows, labels)  # sorted: a run is not a fair sample
    for label in (0, 1):
        ours = flow.particles_[flow.particle_conditions_ == label]
        assert metrics.sliced_wasserstein(ours, rows[labels == label]) < 0.15
        drawn = flow.sample(500, y=label, random_state=0)
        assert metrics.sliced_wasserstein(drawn, rows[labels == label]) < 0.3


def test_max_sliced_directions_need_fewer_steps_and_keep_a_smaller_model(tmp_path):
    digits = load_digits().data[:400]
    size = {}
    distance = {}
    for frame, n_steps in (("orthogonal", 10), ("max-sliced", 4)):
        flow = SlicedWassersteinFlow(
            n_steps=n_steps, n_particles=300, frame=frame, random_state=0, device="cpu"
        ).fit(digits[:200])
        flow.save(tmp_path / frame)
        size[frame] = (tmp_path / frame).stat().st_size
        drawn = flow.sample(400, random_state=1)
        distance[frame] = metrics.frechet_distance_pca(
            drawn, digits[200:], digits[:200]
        )
    assert distance["max-sliced"] < 1.1 * distance["orthogonal"]
    assert size["max-sliced"] < size["orthogonal"] / 2


# Conditions


def two_places(n_low=160, n_high=40, distance=6.0):
    """Rows of the classes "low" and "high", far from each other."""
    y = np.repeat(["low", "high"], [n_low, n_high])
    rng = np.random.default_rng(0)
    return np.where(y == "low", 0.0, distance)[:, None] + rng.normal(
        size=(len(y), 2)
    ), y


def test_a_joint_condition_moves_the_samples(rng):
    y = rng.uniform(-1, 1, size=(1000, 1))
    x = np.concatenate((3 * y, rng.normal(size=(1000, 1))), axis=1) + 0.1 * rng.normal(
        size=(1000, 2)
    )
    flow = SlicedWassersteinFlow(
        n_particles=50, n_steps=150, condition_mode="joint", random_state=0
    )
    flow.fit(x, y)
    for value in (-0.7, 0.7):
        ours = flow.sample(400, y=value, random_state=0)[:, 0]
        assert ours.mean() == pytest.approx(3 * value, abs=0.3)
        assert ours.std() < 0.6  # 0.1 in truth, 1.7 without the condition


def test_amplifier_zero_is_the_unconditional_flow_bit_for_bit():
    blind = vectors(amplifier=0).fit(X, LABELS)
    plain = vectors().fit(X)
    assert np.array_equal(blind.particles_, plain.particles_)
    assert np.array_equal(
        blind.sample(9, y=1, random_state=0), plain.sample(9, random_state=0)
    )


@pytest.mark.parametrize(
    "changes", [dict(transport="histogram"), {}, dict(amplifier=math.inf)], ids=str
)
@pytest.mark.parametrize("n_rare", [1, 20])
def test_a_rare_class_is_sampled_as_itself(n_rare, changes):
    x, y = two_places(1500, n_rare, 30.0)
    flow = SlicedWassersteinFlow(
        n_particles=len(x), n_steps=40, random_state=0, **changes
    )
    flow.fit(x, y)
    assert (
        flow.particle_conditions_ == "high"
    ).sum() == n_rare  # in the data's proportions
    for label, shard in (("high", 30), ("low", 0)):
        drawn = flow.sample(300, y=label, random_state=1)
        assert (np.abs(drawn.mean(axis=1) - shard) < 15).mean() > 0.98
        assert (np.abs(drawn - shard).max(axis=1) < 6).mean() > 0.9


@given(
    st.lists(st.integers(0, 3), min_size=4, max_size=40),
    st.integers(4, 60),
    st.sampled_from(["shared", "separate"]),
    st.integers(0, 99),
)
def test_particle_conditions_have_the_datas_proportions(labels, m, sharing, seed):
    labels = np.array([0, 1, 2, 3, *labels])
    rows = vectors()._fit_planner().read(np.zeros((len(labels), 1)), labels)
    particles = allocate_particles(rows.conditions, m, sharing, Seed(seed))
    counts = np.bincount(particles.kept_user_y, minlength=4)
    assert counts.sum() == m
    assert counts.min() >= 1
    assert np.abs(counts - m * np.bincount(labels) / len(labels)).max() <= 4
    kept_y = particles.kept_y
    assert np.array_equal(rows.y_encoder.decode(kept_y), particles.kept_user_y)
    moved_y = particles.moved_y
    assert len(moved_y) >= 1990  # enough for a model, but for rounding
    assert len(moved_y) == particles.n_moved
    if sharing == "separate":
        for c, points in enumerate(moved_y.class_slices.slices):
            assert (moved_y.values[points] == c).all()


def test_a_flow_that_ignores_y_does_not_see_it():
    """Users still get the conditions of their particles."""
    labels = np.arange(12) % 3
    rows = vectors()._fit_planner().read(np.zeros((12, 1)), labels)
    ignored = allocate_particles(rows.conditions, 24, "unconditional", Seed(0))
    assert np.bincount(ignored.kept_user_y).tolist() == [8, 8, 8]
    assert ignored.moved_y is None
    assert ignored.row_y is None
    planned_fit = (
        vectors(amplifier=0).prepare(np.arange(24.0).reshape(12, 2), labels).planned_fit
    )
    data = planned_fit.tune().training_data()
    assert planned_fit.allocation.row_y is None
    assert data.y is None
    assert planned_fit.allocation.moved_y is None


# Classes of their own


@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict(transport=transports.HistogramTransport(16, batch_size=40)),
        dict(frame=frames.Random(7), entropy=0.01),
        dict(standardize=False),
    ],
    ids=str,
)
def test_rows_of_other_classes_do_not_move_a_class(changes):
    names = np.array(["cat", "cat", "dog"])[LABELS]
    others_moved = X.copy()
    others_moved[names == "dog"] *= 100
    changes |= dict(options=VectorOptions(n_knots=16, smoothing=0.5))
    flow = vectors(amplifier=math.inf, **changes).fit(X, names)
    other = vectors(amplifier=math.inf, **changes).fit(others_moved, names)
    cats = flow.particle_conditions_ == "cat"
    assert np.array_equal(flow.particle_conditions_, other.particle_conditions_)
    assert np.array_equal(flow.particles_[cats], other.particles_[cats])
    assert not np.array_equal(flow.particles_[~cats], other.particles_[~cats])
    drawn, labels = flow.sample(30, random_state=8, return_y=True)
    others_drawn = other.sample(30, random_state=8)
    assert np.array_equal(drawn[labels == "cat"], others_drawn[labels == "cat"])


def test_classes_of_very_different_scales_come_out_better_by_themselves():
    rng = np.random.default_rng(1)
    x = np.concatenate((rng.normal(0, 100, (200, 2)), rng.uniform(0, 0.1, (200, 2))))
    y = np.arange(400) // 200
    distance = {}
    for xi in (10.0, math.inf):
        flow = flow_of(n_particles=400, n_steps=30, amplifier=xi).fit(x, y)
        rows = x[y == 1]
        drawn = flow.sample(500, y=1, random_state=0)
        unit = rows.std(0)
        distance[xi] = metrics.sliced_wasserstein(drawn / unit, rows / unit)
    assert distance[math.inf] < 0.15 < distance[10.0]


def test_what_classes_of_their_own_cannot_do():
    with pytest.raises(
        ValueError, match="each class separately, but y is continuous; use a finite"
    ):
        vectors(amplifier=math.inf).fit(X, X[:, :1])
    with pytest.raises(ValueError, match="n_particles=2 must be at least 3"):
        vectors(amplifier=math.inf, n_particles=2).fit(X, LABELS)


# Shrunk maps


@pytest.mark.parametrize("amplifier", [10.0, math.inf])
def test_shrunk_maps_spare_steps_and_keep_columns_exact(amplifier):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 3))
    x[:, 1] = rng.integers(0, 2, 400)
    x[:, 2] = np.where(rng.random(400) < 0.6, 0, x[:, 2])
    options = VectorOptions(shrinkage=2.0, smoothing=0)
    flow = SlicedWassersteinFlow(
        n_particles=800,
        n_steps=60,
        amplifier=amplifier,
        random_state=0,
        options=options,
    ).fit(x, np.arange(400) % 2)
    assert min(flow.history_["active_fraction"]) < 1
    assert flow.n_iter_ < 62
    for found in (flow.particles_.round(9), flow.sample(2000, random_state=0).round(9)):
        assert np.isin(found[:, 1], (0, 1)).mean() > 0.999
        assert found[:, 1].mean() == pytest.approx(x[:, 1].mean(), abs=0.03)
        assert (found[:, 2] == 0).mean() == pytest.approx(
            (x[:, 2] == 0).mean(), abs=0.04
        )
    with pytest.raises(
        ValueError, match="does not work with a continuous y; set it to 0"
    ):
        SlicedWassersteinFlow(condition_mode="joint", options=options).fit(
            x[:, :2], x[:, 2:]
        )


def test_the_number_of_threads_changes_no_bit(rng):
    """Of rows with six columns: their covariance was once summed by each thread."""
    X = rng.normal(size=(1000, 6)) @ rng.normal(size=(6, 6))
    n_threads = torch.get_num_threads()
    samples = []
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            flow = SlicedWassersteinFlow(n_steps=3, random_state=0).fit(X)
            samples.append(flow.sample(100, random_state=0).tobytes())
    finally:
        torch.set_num_threads(n_threads)
    assert samples[0] == samples[1]


def test_any_number_of_bins_gives_offline_samples_like_the_data(rng):
    # W₁ of 4,000 and 2,000 draws of Exp(1) is about .03. A map of one bin gave 2.
    X = rng.gamma(1, size=(2000, 2))
    flow = flow_of(
        n_steps=20,
        transport=transports.HistogramTransport(n_bins=1021),
        options=VectorOptions(n_axis_steps=0, smoothing=0),
    ).fit(X)
    samples = flow.sample(4000, random_state=0)
    assert wasserstein_distance(samples[:, 0], X[:, 0]) < 0.2


def test_listeners_get_the_stored_steps_and_kept_axis_steps_are_not_stored(rng):
    events = []
    flow = vectors(n_steps=2).fit(rng.normal(size=(30, 2)), listeners=events.append)
    stored = [event.model_step for event in events if event.stage_name == "flow"]
    assert stored == list(flow._record.model.steps[:2])
    of_axes = [event.model_step for event in events if event.stage_name == "axis"]
    assert of_axes == [None, None]


def test_ranks_use_all_points_whatever_the_limit_of_a_step():
    """Several ranks make no batches: nothing of a fit depends on `batch_size`."""
    x = np.random.default_rng(0).normal(size=(500, 3))
    ranks = Communicator(0, 2)
    planned_fits = []
    for batch_size in (40, None):
        flow = SlicedWassersteinFlow(
            n_particles=2000,
            n_steps=5,
            transport=transports.HistogramTransport(16, batch_size=batch_size),
            standardize=False,  # or ranks would have to talk to each other
            options=VectorOptions(shrinkage=1.0, smoothing=0),
            device="cpu",
        )
        planner = flow._fit_planner(ranks=ranks)
        rows = flow._fit_planner().read(x[:250], None)
        rows = replace(rows, partial_shard=Shard(0, 250, 500))
        planned_fits.append(planner.plan_fit(rows, Seed(0)))
    limited, whole = planned_fits
    assert limited.plan.nbytes == whole.plan.nbytes
    assert limited.plan.seconds == whole.plan.seconds
    stage = limited.training_spec(limited.training_data()).stages[0]
    assert stage.transport.noise_factors == (
        1 / limited.plan.n_moved_particles + 1 / 500,
    )


@pytest.mark.parametrize("n_directions", [2, 5, 8])
def test_fewer_random_directions_than_columns_do_not_diverge(n_directions, rng):
    """With H < d, whole steps overshoot: the distance grew to thousands."""
    X = rng.normal(size=(300, 1)) + 0.1 * rng.normal(size=(300, 10))
    flow = SlicedWassersteinFlow(
        n_steps=round(300 / n_directions),
        n_particles=500,
        frame=frames.Random(n_directions=n_directions),
        random_state=0,
        device="cpu",
    ).fit(X)
    distances = flow.history_["distance"]
    assert distances[flow.n_steps - 1] < distances[0] / 5
    correlation = np.corrcoef(flow.sample(1_000, random_state=0).T)[0, 1]
    assert correlation > 0.9


class Tagged(SlicedWassersteinFlow):
    """An estimator of a user's own, whose constructor has a required parameter."""

    def __init__(self, tag, *, n_steps=3, n_particles=200, random_state=0):
        super().__init__(
            n_steps=n_steps, n_particles=n_particles, random_state=random_state
        )
        self.tag = tag


def test_subclasses_may_have_required_parameters(rng):
    """`score` and `partial_fit` made an estimator without any parameter."""
    X = rng.normal(size=(60, 2))
    flow = Tagged("a").fit(X)
    assert flow.score(X) < 0
    assert flow.partial_fit(X).plan_.n_rows == 120
    with pytest.raises(ValueError, match="Tagged is expecting 2 features"):
        flow.score(X[:, :1])


@pytest.mark.parametrize("labeled", [False, True])
def test_the_model_has_as_many_axis_steps_as_the_particles(rng, labeled):
    """A listener ended the axis steps of the kept particles, and the model had all."""
    X = rng.normal(size=(60, 2))
    y = np.arange(60) % 2 if labeled else None
    flow = SlicedWassersteinFlow(
        n_steps=3, n_particles=100, amplifier=math.inf, random_state=0
    )
    flow.fit(X, y, listeners=lambda event: event.stage_name == "axis")
    steps = flow._fitted_model().steps
    assert [step.stage_index for step in steps] == [0, 0, 0, 1]
    assert flow.n_iter_ == len(steps)


@pytest.mark.parametrize("labeled", [False, True])
def test_one_condition_in_a_list_is_not_one_for_all(rng, labeled):
    X = rng.normal(size=(60, 2))
    y = np.arange(60) % 2 if labeled else X[:, :1]
    flow = SlicedWassersteinFlow(n_steps=3, n_particles=100).fit(X, y)
    with pytest.raises(DataError, match="not in a list"):
        flow.sample(3, y=y[:1])
    assert flow.sample(3, y=y[0]).shape == (3, 2)
