"""The front door: scikit-learn's conventions, closed forms through the pipeline, kinds, units."""

import math
import subprocess
import sys
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits, make_moons
from sklearn.utils.estimator_checks import parametrize_with_checks

from problems import clouds, gaussian, mixture
from sliceflow import SlicedWassersteinFlow, VectorOptions, load
from sliceflow.engine import frames, transports
from sliceflow.metrics import frechet_distance_pca, sliced_wasserstein

quick = dict(n_particles=64, n_steps=5, random_state=0)
ROWS = VectorOptions(smoothing=0)


@parametrize_with_checks([SlicedWassersteinFlow(**quick)])
def test_scikit_learn_conventions(estimator, check):
    """Every check of scikit-learn. Only the array API one skips itself, unless SCIPY_ARRAY_API is set:
    torch tensors, the array API input that matters here, are tested below."""
    check(estimator)


@given(gaussian())
@settings(max_examples=8)
def test_gaussian_target_is_reached_within_one_percent(problem):
    flow = SlicedWassersteinFlow(n_particles=4000, n_steps=60, random_state=0, options=ROWS)
    x = flow.fit(problem.data).particles_
    spread = np.sqrt(np.trace(problem.cov))
    assert np.linalg.norm(x.mean(0) - problem.mean) < 0.01 * spread
    cov = np.cov(x.T, bias=True).reshape(problem.cov.shape)
    assert np.linalg.norm(cov - problem.cov) < 0.01 * np.linalg.norm(problem.cov)


@pytest.mark.parametrize("name", ["moons", "mixture"])
def test_algorithm_1_and_the_fast_flow_end_at_the_same_distribution(name):
    """random + sorted, as printed in the paper, against orthogonal + histogram."""
    if name == "moons":
        train, test = (make_moons(1000, noise=0.05, random_state=s)[0] for s in (0, 1))
    else:
        train, test = mixture(1000, seed=0), mixture(1000, seed=1)
    kinds = (
        (frames.Random(n_directions=100), transports.Sorted()),
        (frames.Orthogonal(), transports.Histogram(1024)),
    )
    distances = [
        sliced_wasserstein(
            SlicedWassersteinFlow(1500, 60, frame, transport, random_state=0, options=ROWS)
            .fit(train)
            .particles_,
            test,
            n_directions=200,
        )
        for frame, transport in kinds
    ]
    assert distances[0] == pytest.approx(distances[1], rel=0.1)


@given(clouds(), st.integers(-20, 20))
@settings(max_examples=15)
def test_scaled_data_give_scaled_samples(x, power):
    """A power of two scales without rounding, so the samples must be the scaled ones bit for bit."""
    scale = 2.0**power
    a, b = (SlicedWassersteinFlow(**quick).fit(rows) for rows in (x, scale * x))
    assert np.array_equal(b.particles_, scale * a.particles_)
    assert np.array_equal(b.sample(9, random_state=1), scale * a.sample(9, random_state=1))


def test_shifted_data_give_shifted_samples():
    x, shift = mixture(200, 3), np.array([5, -70, 0.1])
    flow = partial(SlicedWassersteinFlow, 200, 20, random_state=0, options=ROWS)
    a, b = (flow().fit(rows) for rows in (x, x + shift))
    assert np.allclose(b.particles_, a.particles_ + shift, atol=1e-6)


@given(clouds(), st.randoms(use_true_random=False))
@settings(max_examples=15)
def test_the_order_of_the_rows_does_not_matter(x, random):
    order = random.sample(range(len(x)), len(x))
    flow = SlicedWassersteinFlow(**{**quick, "options": ROWS})
    a, b = (flow.fit(rows).particles_ for rows in (x, x[order]))
    assert np.allclose(a, b, rtol=0, atol=1e-6 * np.abs(x).max())


@given(clouds())
@settings(max_examples=15)
def test_axis_steps_make_every_column_exact(x):
    """As many particles as rows: every column holds exactly the data's values.

    A single column is there before the axis steps, and particles may share a place.
    """
    assume(x.shape[1] > 1)
    flow = SlicedWassersteinFlow(len(x), 5, random_state=0, options=ROWS).fit(x)
    for column, ours in zip(x.T, flow.particles_.T, strict=True):
        if len(np.unique(column)) == len(column):
            assert np.allclose(np.sort(ours), np.sort(column), rtol=0, atol=1e-9 * np.abs(column).max())
        else:
            assert np.abs(ours[:, None] - column).min(axis=1).max() < 1e-9 * max(
                1, np.abs(column).max()
            )


def test_same_seed_same_bits_other_seed_other_bits():
    x, y = make_moons(100, noise=0.1, random_state=0)
    a, b, c = (
        SlicedWassersteinFlow(n_particles=80, n_steps=10, random_state=s).fit(x, y) for s in (0, 0, 1)
    )
    assert np.array_equal(a.particles_, b.particles_)
    assert np.array_equal(a.particle_conditions_, b.particle_conditions_)
    assert np.array_equal(a.sample(5, random_state=3), b.sample(5, random_state=3))
    assert not np.array_equal(a.particles_, c.particles_)
    assert not np.array_equal(a.sample(5, random_state=3), a.sample(5, random_state=4))
    assert not np.array_equal(a.sample(5), a.sample(5))


def test_a_sample_does_not_depend_on_how_many_are_drawn(monkeypatch):
    x, y = make_moons(100, noise=0.1, random_state=0)
    flow = SlicedWassersteinFlow(**quick).fit(x, y)
    many = flow.sample(50, y=1, random_state=0)
    assert np.allclose(many[:20], flow.sample(20, y=1, random_state=0), atol=1e-12)
    monkeypatch.setattr("sliceflow.spaces.vectors.fitted._CHUNK", 7)
    assert np.allclose(many, flow.sample(50, y=1, random_state=0), atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_arrays_and_tensors_come_back_as_they_came(dtype, as_tensor):
    x = mixture(50, 3).astype(dtype)
    given = torch.from_numpy(x) if as_tensor else x
    flow = SlicedWassersteinFlow(**quick).fit(given)
    for out in (flow.particles_, flow.sample(3)):
        assert type(out) is type(given)
        assert out.dtype == given.dtype


def test_integers_and_data_frames_are_taken():
    flow = SlicedWassersteinFlow(**quick).fit(pd.DataFrame({"a": [1, 2, 3], "b": [4, 5, 6]}))
    assert flow.feature_names_in_.tolist() == ["a", "b"]
    assert flow.particles_.dtypes.tolist() == [np.float64, np.float64]


@pytest.mark.parametrize(
    ("y", "one"),
    [
        (np.array([0, 1] * 30), 1),
        (np.array(["no", "yes"] * 30), "yes"),
        ([("a", 1), ("b", 2)] * 30, ("b", 2)),
        (np.random.default_rng(0).normal(size=(60, 1)).astype(np.float32), 0.5),
        (np.random.default_rng(0).normal(size=(60, 2)), [0.5, 1.0]),
    ],
)
def test_conditions_come_back_in_the_users_own_form(y, one):
    x = mixture(60, 2)
    flow = SlicedWassersteinFlow(n_particles=120, n_steps=5, random_state=0).fit(x, y)
    own = flow.particle_conditions_
    rows = [v if isinstance(v, tuple) else np.asarray(v).tolist() for v in own]
    wanted = [v if isinstance(v, tuple) else np.asarray(v).tolist() for v in y] * 2
    assert sorted(map(repr, rows)) == sorted(map(repr, wanted))  # each used equally often, bit for bit
    if isinstance(y, np.ndarray):
        assert own.dtype == y.dtype
    assert flow.sample(4, y=one, random_state=0).shape == (4, 2)
    assert flow.sample(4, y=y[:4], random_state=0).shape == (4, 2)
    assert flow.sample(4, random_state=0).shape == (4, 2)


def test_labels_choose_what_is_sampled():
    rng = np.random.default_rng(0)
    y = rng.choice(["low", "high"], size=400, p=[0.8, 0.2])
    x = np.where(y == "low", -3.0, 3.0)[:, None] + rng.normal(size=(400, 2))
    flow = SlicedWassersteinFlow(n_particles=1000, n_steps=60, random_state=0).fit(x, y)
    assert flow.classes_.tolist() == ["high", "low"]
    for label, sign in (("low", -1), ("high", 1)):
        assert np.mean(np.sign(flow.sample(300, y=label, random_state=0).mean(1)) == sign) > 0.98
        batched = flow.particles_[flow.particle_conditions_ == label]
        assert np.mean(np.sign(batched.mean(1)) == sign) > 0.98
    halfway = flow.sample(300, y=np.tile([0.5, 0.5], (300, 1)), random_state=0)
    assert abs(halfway.mean()) < 2.5  # class weights, between the two


@pytest.mark.parametrize("condition", ["joint", "local"])
def test_a_continuous_condition_moves_the_samples(condition):
    rng = np.random.default_rng(0)
    y = rng.uniform(-1, 1, size=(1000, 1))
    x = np.concatenate((3 * y, rng.normal(size=(1000, 1))), axis=1) + 0.1 * rng.normal(size=(1000, 2))
    m = 2000 if condition == "joint" else 200
    flow = SlicedWassersteinFlow(m, n_steps=200, condition=condition, random_state=0).fit(x, y)
    for value in (-0.7, 0.0, 0.7):
        ours = flow.sample(400, y=value, random_state=0)[:, 0]
        assert ours.mean() == pytest.approx(3 * value, abs=0.3)
        assert ours.std() < 0.6  # 0.1 in truth, 1.7 without the condition


def test_particle_conditions_may_be_chosen():
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], [270, 30])
    x = np.where(y == 0, -3.0, 3.0)[:, None] + rng.normal(size=(300, 2))
    wanted = np.repeat([1, 0], [400, 100])
    flow = SlicedWassersteinFlow(n_steps=60, random_state=0).fit(x, y, particle_conditions=wanted)
    assert np.array_equal(flow.particle_conditions_, wanted)
    assert np.mean((flow.particles_.mean(1) > 0) == (wanted == 1)) > 0.98


def test_default_number_of_particles_uses_every_row_equally_often():
    assert len(SlicedWassersteinFlow(n_steps=0).fit(mixture(3000, 2)).particles_) == 12_000
    assert len(SlicedWassersteinFlow(n_steps=0).fit(mixture(11_000, 2)).particles_) == 11_000


def test_amplifier_zero_is_the_unconditional_estimator_bit_for_bit():
    x, y = make_moons(100, noise=0.1, random_state=0)
    blind = SlicedWassersteinFlow(amplifier=0, **quick).fit(x, y)
    plain = SlicedWassersteinFlow(**quick).fit(x)
    assert np.array_equal(blind.particles_, plain.particles_)
    assert np.array_equal(blind.sample(9, y=1, random_state=0), plain.sample(9, random_state=0))


def test_parameters_are_left_as_given_and_clone_works():
    flow = SlicedWassersteinFlow(frame=frames.Random(50), transport=transports.Sorted(most=9), **quick)
    again = clone(flow).fit(mixture(40, 2))
    assert again.get_params() == flow.get_params()


def test_import_is_light():
    """What torch and scikit-learn bring along, and nothing else: numba waits for its first use."""
    code = (
        "import sys, sliceflow; "
        "print([m for m in ('numba', 'matplotlib', 'ot', 'triton') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cpu_and_gpu_agree():
    x, y = make_moons(500, noise=0.05, random_state=0)
    for transport in ("sorted", "histogram"):
        cpu, gpu = (
            SlicedWassersteinFlow(2000, 40, transport=transport, device=device, random_state=0).fit(
                x, y
            )
            for device in ("cpu", "cuda")
        )
        # Rounding decides now and then which side of a bin a particle falls on: compare the bulk.
        # Tables of a GPU are float32; what forty steps make of that was .013 on an H200.
        most = 1e-3 if transport == "sorted" else 0.05
        assert np.quantile(np.abs(cpu.particles_ - gpu.particles_).max(1), 0.95) < most
        assert np.array_equal(
            gpu.particles_,
            SlicedWassersteinFlow(2000, 40, transport=transport, device="cuda", random_state=0)
            .fit(x, y)
            .particles_,
        )


def test_samples_come_with_their_labels():
    X, y = make_moons(60, random_state=0)
    flow = SlicedWassersteinFlow(n_particles=60, n_steps=3, random_state=0)
    names = np.array(["up", "down"])[y]
    x, labels = flow.fit(X, names).sample(30, random_state=1, return_y=True)
    assert sorted(labels) == ["down"] * 15 + ["up"] * 15
    assert np.array_equal(x, flow.sample(30, y=labels, random_state=1))
    assert np.array_equal(x, flow.sample(30, random_state=1))
    assert flow.fit(X).sample(30, random_state=1, return_y=True)[1] is None


def test_samples_come_with_their_columns():
    X, y = np.random.default_rng(0).normal(size=(2, 80, 2))
    flow = SlicedWassersteinFlow(n_particles=80, n_steps=3, random_state=0).fit(X, y)
    _, given = flow.sample(4, y=[[0.5, 2.0]] * 4, random_state=1, return_y=True)
    assert given == pytest.approx(np.array([[0.5, 2.0]] * 4))
    _, drawn = flow.sample(80, random_state=1, return_y=True)
    assert np.sort(drawn[:, 0]) == pytest.approx(np.sort(y[:, 0]))


def test_max_sliced_directions_need_fewer_steps_and_keep_a_smaller_model(tmp_path):
    X = load_digits().data
    size, distance = {}, {}
    for frame, n_steps in (("orthogonal", 20), ("max-sliced", 8)):
        flow = SlicedWassersteinFlow(n_steps=n_steps, frame=frame, random_state=0, device="cpu")
        samples = flow.fit(X[:1200]).sample(600, random_state=1)
        flow.save(tmp_path / frame)
        assert np.array_equal(load(tmp_path / frame).sample(600, random_state=1), samples)
        size[frame] = (tmp_path / frame).stat().st_size
        distance[frame] = frechet_distance_pca(samples, X[1200:], X[:1200])
    assert distance["max-sliced"] < distance["orthogonal"]
    assert size["max-sliced"] < size["orthogonal"] / 2


def test_max_sliced_directions_of_classes_apart_and_what_they_cannot_do():
    X = np.random.default_rng(0).normal(size=(200, 4))
    y = (X[:, 0] > 0).astype(int)
    options = dict(n_steps=5, frame="max-sliced", n_particles=200, random_state=0, device="cpu")
    made = SlicedWassersteinFlow(**options, amplifier=math.inf).fit(X, y).sample(200, y=1)
    assert (made[:, 0] > -0.3).mean() > 0.95
    with pytest.raises(
        ValueError, match=r"^frame='max-sliced' does not work with conditions that share"
    ):
        SlicedWassersteinFlow(**options).fit(X, y)
    with pytest.raises(ValueError, match=r"^frame='max-sliced' must be .* for partial_fit"):
        SlicedWassersteinFlow(**options).partial_fit(X)
