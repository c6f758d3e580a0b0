"""Smoothing the target along its neighbours: new rows instead of copies, and atoms that stay exact."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_diabetes, make_moons

import sliceflow
from sliceflow import SlicedWassersteinFlow, VectorOptions, metrics
from sliceflow.engine.random import Seed
from sliceflow.errors import ParameterError
from sliceflow.models.ranks import Place, Ranks
from sliceflow.spaces.vectors import smoothing
from sliceflow.spaces.vectors.data import Rows
from sliceflow.spaces.vectors.smoothing import chosen, draws, groups_of, keeps, scaled

ON = dict(random_state=0, device="cpu")
RNG = np.random.default_rng(0)
NONE = torch.tensor(False)


def moons(n, noise=0.1, seed=0):
    return make_moons(n, noise=noise, random_state=seed)


def rows_of(x, codes=None):
    return Rows(x, Place(0, len(x), len(x)), codes=codes)


def drawn(x, codes=None, h=0.8, times=50, k=20, seed=0):
    groups = groups_of(x, codes, k)
    return draws(x, rows_of(x, codes), groups, h, times, Seed(seed), NONE)


def smoothed(h="auto", m=None, n_steps=60, k=20, **more):
    options = VectorOptions(smoothing=h, n_neighbors=k)
    return SlicedWassersteinFlow(m, n_steps, options=options, **ON, **more)


def test_noise_has_the_covariance_of_the_neighbours():
    x = torch.from_numpy(RNG.normal(size=(40, 3)) @ np.diag([1.0, 3.0, 0.1]))
    (group,) = groups_of(x, None, 8)
    noise = group.noise(torch.tensor([5]), 20_000, Seed(0))[0]
    wanted = torch.cov(x[group.near[5]].T)
    assert noise.mean(0).abs().max() < 0.05 * wanted.diagonal().max().sqrt()
    assert (torch.cov(noise.T) - wanted).abs().max() < 0.05 * wanted.abs().max()


@pytest.mark.parametrize("h", [0.3, 1.0, 2.0])
def test_draws_keep_mean_and_covariance_and_stay_in_the_range(h):
    x = torch.from_numpy(RNG.normal(3, 2, size=(300, 4)) @ RNG.normal(size=(4, 4)))
    flow, last = drawn(x, h=h)
    assert flow.x.shape == (300 * 50, 4)
    assert flow.place == Place(0, 15_000, 15_000)
    assert torch.allclose(flow.x.mean(0), x.mean(0))
    assert torch.allclose(torch.cov(flow.x.T, correction=0), torch.cov(x.T, correction=0))
    assert not torch.allclose(flow.x, x.repeat_interleave(50, 0), atol=0.1)
    assert (last.x >= x.amin(0)).all()
    assert (last.x <= x.amax(0)).all()


def test_columns_that_draws_would_change_keep_their_distribution():
    """Draws in many columns blur each of them: a skewed one would get another shape."""
    x = torch.from_numpy(RNG.normal(size=(1000, 6)))
    x[:, 5] = x[:, 5].mul(2).exp()
    flow, last = drawn(x, h=1.5, times=10)
    levels = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    own, with_draws, at_last = (t[:, 5].quantile(levels) for t in (x, flow.x, last.x))
    assert ((with_draws - own).abs() / own).max() > 0.5
    assert ((at_last - own).abs() / own).max() < 0.1


def test_a_strength_of_0_draws_the_rows():
    x = torch.from_numpy(RNG.normal(size=(50, 2)))
    flow, _ = drawn(x, h=0.0, times=3)
    assert torch.allclose(flow.x, x.repeat_interleave(3, 0))


def test_draws_stay_within_their_class():
    x, codes = torch.from_numpy(RNG.normal(size=(60, 2))), torch.arange(60) % 3
    x += 100.0 * codes[:, None]
    flow, _ = drawn(x, codes, h=1.5)
    assert (flow.x - 100.0 * flow.codes[:, None]).abs().max() < 20
    for c in range(3):
        mine, own = flow.x[flow.codes == c], x[codes == c]
        assert torch.allclose(mine.mean(0), own.mean(0))
        assert torch.allclose(torch.cov(mine.T, correction=0), torch.cov(own.T, correction=0))


@given(st.integers(1, 30), st.integers(2, 12), st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_neighbours_are_of_the_same_class_and_the_nearest(n, k, n_classes):
    rng = np.random.default_rng(n + 100 * k)
    x = torch.from_numpy(rng.normal(size=(n, 2)))
    codes = torch.from_numpy(rng.integers(n_classes, size=n))
    groups = groups_of(x, codes, k)
    assert torch.cat([g.numbers for g in groups]).sort().values.tolist() == list(range(n))
    for group in groups:
        assert codes[group.numbers].unique().numel() == 1
        far = torch.cdist(group.x, group.x)
        count = min(k, len(group.x))
        found = far.gather(1, group.near).sort(1).values
        assert torch.allclose(found, far.sort(1).values[:, :count], atol=1e-7)
        assert (group.near == torch.arange(len(group.x))[:, None]).any(1).all()


VALUES = st.sampled_from([0.0, 0.0, 1.0, 1.0, 2.0, -3.5, 1e6, 1e-9])


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=40), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_odd_rows_have_a_strength_and_finite_draws(pairs, n_classes):
    """Duplicates, constant columns, fewer rows than neighbours, classes of one row."""
    x = torch.tensor(pairs, dtype=torch.float64)
    codes = torch.arange(len(x)).clamp(max=n_classes) if n_classes else None
    h = chosen(groups_of(x, codes, 20))
    assert 0 <= h <= 2
    flow, last = drawn(x, codes, h or 1.0, times=4)
    assert flow.x.isfinite().all()
    for j in range(2):
        if (x[:, j] == x[0, j]).all():
            assert (flow.x[:, j] == x[0, j]).all()
    if codes is not None and (codes == 0).sum() == 1:
        assert (flow.x[flow.codes == 0] == x[codes == 0]).all()
    kept = keeps(x).repeat_interleave(4, 0)
    assert torch.equal(last.x[kept], x.repeat_interleave(4, 0)[kept])


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize(("n", "d"), [(200, 2), (500, 5), (6000, 2)])
def test_the_chosen_draws_are_as_far_from_rows_as_rows_are_from_each_other(n, d, labels):
    x = torch.from_numpy(np.random.default_rng(n).normal(size=(n, d)))
    codes = torch.arange(n) % 3 if labels else None
    h = chosen(groups_of(x, codes, 20))
    made, _ = drawn(x, codes, h, times=max(1, 12_000 // n), seed=1)
    ratios = []
    for c in range(3 if labels else 1):
        mine, own = (made.x[made.codes == c], x[codes == c]) if labels else (made.x, x)
        ratios.append(metrics.nn_ratio(mine.numpy(), own.numpy(), device="cpu"))
    assert np.mean(ratios) == pytest.approx(0.97, rel=0.03)


def test_rows_that_are_there_twice_choose_as_once():
    x = torch.from_numpy(RNG.normal(size=(300, 2)))
    once = chosen(groups_of(x, None, 20))
    twice = chosen(groups_of(torch.cat((x, x)), None, 40))
    assert twice == pytest.approx(once, rel=0.1)
    assert chosen(groups_of(torch.ones(50, 2), None, 20)) == 0
    assert chosen(groups_of(x[:3], torch.arange(3), 20)) == 0  # classes of one row


def test_far_apart_classes_do_not_choose_a_larger_strength():
    x, codes = torch.from_numpy(RNG.normal(size=(400, 2))), torch.arange(400) % 2
    near, apart = (chosen(groups_of(x + gap * codes[:, None], codes, 20)) for gap in (0, 100))
    assert apart == near


def test_two_moons_are_no_longer_copied():
    x, _ = moons(600)
    train, test = x[::2], x[1::2]
    with pytest.warns(UserWarning, match=r"copy rows of X .*VectorOptions\(smoothing='auto'\)"):
        as_they_are = smoothed(0).fit(train)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flow = smoothed().fit(train)
    assert metrics.nn_ratio(as_they_are.particles_, train, test) < 0.35
    for samples in (flow.particles_, flow.sample(2000, random_state=1)):
        assert 0.85 < metrics.nn_ratio(samples, train, test) < 1.15
        assert metrics.copies(samples, train, test) < 0.03
        assert metrics.strays(samples, train, test) < 0.02
    before, after = (metrics.sliced_wasserstein(f.particles_, test) for f in (as_they_are, flow))
    assert after < 1.1 * before
    assert "smoothing" not in str(as_they_are.plan_)
    h = flow.plan_.smoothing
    assert f"{h:.3g}, along 20 neighbours: leave-one-out distances of the rows" in str(flow.plan_)


def test_there_are_as_many_draws_as_particles():
    x, _ = moons(600)
    assert smoothed(m=300).plan(x).n_draws == 3  # 2,000 particles move
    assert smoothed(m=40_000).plan(x).n_draws == 67
    assert smoothed(0, m=40_000).plan(x).n_draws == 1
    assert smoothed(m=40_000).plan(x).nbytes > smoothed(0, m=40_000).plan(x).nbytes


def test_atoms_stay_exact():
    rng = np.random.default_rng(1)
    z = rng.normal(size=(400, 4))
    amount = np.where(z[:, 2] > 0, np.exp(z[:, 2]), 0.0)  # many zeros
    x = np.stack((z[:, 0], z[:, 0] + z[:, 1] > 0, np.rint(2 * z[:, 1]), amount, np.ones(400)), 1)
    flow = smoothed(m=4000, n_steps=20).fit(x)
    assert flow.plan_.smoothing > 0
    for samples, error in ((flow.particles_, 1e-3), (flow.sample(4000, random_state=1), 0.03)):
        for j in (1, 2, 4):
            values, counts = np.unique(x[:, j], return_counts=True)
            found = np.abs(samples[:, j][:, None] - values).argmin(1)
            exactly = np.abs(samples[:, j] - values[found]) < 1e-6
            assert exactly.mean() > 1 - 2 * error
            shares = np.bincount(found, minlength=len(values)) / 4000
            assert np.abs(shares - counts / 400).max() <= error
        assert np.mean(np.abs(samples[:, 3]) < 1e-6) == pytest.approx(np.mean(amount == 0), abs=error)
    assert len(np.unique(flow.particles_[:, 0])) > 3000  # no atoms: other values than the rows'


def test_the_sex_of_diabetes():
    x = load_diabetes().data  # its column 1 has two values
    flow = smoothed(0.8, 884, 30).fit(x)
    values, counts = np.unique(x[:, 1], return_counts=True)
    found = np.abs(flow.particles_[:, 1][:, None] - values).argmin(1)
    assert np.abs(flow.particles_[:, 1] - values[found]).max() < 1e-9
    assert np.bincount(found).tolist() == (2 * counts).tolist()


def test_classes_keep_their_place():
    x, y = moons(300, 0.05)
    x += 50.0 * y[:, None]
    for amplifier in (10.0, math.inf):
        flow = smoothed(m=900, n_steps=30, amplifier=amplifier).fit(x, y)
        assert flow.plan_.smoothing > 0
        for c in (0, 1):
            samples = flow.sample(200, y=c, random_state=0)
            assert np.abs(np.median(samples, 0) - np.median(x[y == c], 0)).max() < 3
            mine = flow.particles_[flow.particle_conditions_ == c]
            assert 0.7 < metrics.nn_ratio(mine, x[y == c]) < 1.3


def test_a_class_of_one_row_stays_as_it_is():
    x, y = moons(60)
    y = np.where(np.arange(60) == 7, 2, y)
    flow = smoothed(m=600, n_steps=20).fit(x, y)
    rare = flow.particles_[flow.particle_conditions_ == 2]
    assert np.abs(rare - x[7]).max() < 0.5


def test_a_flow_that_ignores_y_smooths_without_y():
    x, y = moons(100)
    plain = smoothed(m=200, n_steps=4).fit(x)
    for given_y in (y, x[:, :1]):
        other = smoothed(m=200, n_steps=4, amplifier=0).fit(x, given_y)
        assert other.plan_.smoothing == plain.plan_.smoothing


@pytest.mark.parametrize(
    ("x", "y", "why"),
    [
        (RNG.normal(size=(9, 2)), None, "fewer than 10 rows"),
        (RNG.normal(size=(50, 2)), RNG.normal(size=(50, 1)), "y is continuous"),
        (np.ones((50, 2)), None, "no rows of a class differ"),
        (RNG.normal(size=(5_001, 5)), None, "more than 5000 rows"),
        (RNG.normal(size=(50_001, 2)), None, "more than 50000 rows"),
    ],
    ids=["few", "columns", "same", "many", "more"],
)
def test_auto_is_0_for_a_reason_that_the_plan_says(x, y, why):
    plan = smoothed(m=20, n_steps=1).set_params(condition="joint").plan(x, y)
    assert plan.smoothing == 0
    assert f"smoothing  0: {why}" in str(plan)


def test_columns_of_a_condition_can_be_smoothed():
    x, _ = moons(200, 0.05)
    flow = smoothed(0.5, 400, 20, k=8).set_params(condition="joint").fit(x, x[:, :1])
    assert np.isfinite(flow.particles_).all()
    assert flow.sample(5, y=0.5, random_state=0).shape == (5, 2)


def test_the_plan_needs_no_seed_and_the_paper_none():
    x, _ = moons(200)
    flow = SlicedWassersteinFlow(device="cpu")
    assert flow.plan(x) == flow.plan(x)
    assert 0.3 < flow.plan(x).smoothing < 2
    assert smoothed(m=20, preset="paper", frame=sliceflow.frames.Random(9)).plan(x).smoothing == 0
    assert "smoothing  0.5, along 7 neighbours\n" in str(smoothed(0.5, k=7).plan(x))


def test_held_out_rows_are_not_smoothed_along(monkeypatch):
    x, seen = RNG.normal(size=(100, 2)), []
    monkeypatch.setattr(smoothing, "chosen", lambda groups: seen.append(len(groups[0].x)) or 0.5)
    plan = smoothed(m=200, n_steps=2, early_stopping=True).plan(x)
    assert seen == [90]
    assert plan.smoothing == 0.5


def test_the_same_seed_gives_the_same_bits_also_from_a_file(tmp_path):
    x, y = moons(120)
    a, b = (smoothed(m=300, n_steps=5).fit(x, y) for _ in range(2))
    assert np.array_equal(a.particles_, b.particles_)
    a.save(tmp_path / "a.sliceflow")
    loaded = sliceflow.load(tmp_path / "a.sliceflow", "cpu")
    assert loaded.options == VectorOptions(smoothing="auto")
    assert np.array_equal(loaded.sample(50, random_state=2), a.sample(50, random_state=2))
    other = smoothed(m=300, n_steps=5).set_params(random_state=1).fit(x, y)
    assert not np.array_equal(a.particles_, other.particles_)


@pytest.mark.parametrize("seed", [0, None])
def test_a_stopped_fit_resumes_with_the_same_draws(tmp_path, seed):
    x, _ = moons(100)
    flow = smoothed(m=200, n_steps=12, early_stopping=True).set_params(random_state=seed)
    at = []

    def stop(event):
        at.append(event.particles.numpy().copy())
        if event.steps_done == 7:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        flow.fit(x, listeners=stop, checkpoint_dir=tmp_path, checkpoint_every=0)
    assert any(tmp_path.iterdir())
    flow.fit(x, listeners=lambda e: at.append(e.steps_done) and None, checkpoint_dir=tmp_path)
    assert at[7] > 1  # it resumed
    if seed is not None:
        assert np.array_equal(
            flow.particles_, smoothed(m=200, n_steps=12, early_stopping=True).fit(x).particles_
        )


def test_partial_fit_refuses_a_strength_and_says_that_it_has_none():
    x, _ = moons(100)
    with pytest.raises(
        ParameterError, match=r"smoothing=0.8 needs rows, but partial_fit keeps only counts"
    ):
        smoothed(0.8, 200, 3).partial_fit(x)
    flow = smoothed(m=200, n_steps=3).partial_fit(x)
    assert "smoothing  0: partial_fit keeps only counts" in str(flow.plan_)
    with pytest.raises(ParameterError, match="smoothing"):
        flow.set_params(options=VectorOptions(smoothing=0.8)).refresh()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(smoothing=-1), "smoothing=-1 must be 'auto' or a number of at least 0"),
        (dict(smoothing="a"), "smoothing='a' must be"),
        (dict(n_neighbors=1), "n_neighbors=1 must be an int of at least 2"),
    ],
)
def test_wrong_strengths_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SlicedWassersteinFlow(options=VectorOptions(**options)).fit(np.zeros((5, 2)))


def test_ranks_share_the_draws_of_all_rows():
    """Each rank has the draws of its own rows, of the neighbours and with the scale of all rows."""
    x, y = moons(100)
    x, codes = torch.from_numpy(x), torch.from_numpy(y)
    groups = groups_of(x, codes, 20)
    whole, _ = draws(x, rows_of(x, codes), groups, 0.8, 3, Seed(0), NONE)
    parts = []
    for first, count in ((0, 30), (30, 70)):
        mine = Rows(x[first : first + count], Place(first, count, 100), codes=codes)
        parts.append(draws(x, mine, groups, 0.8, 3, Seed(0), NONE)[0])
    assert torch.equal(torch.cat([part.x for part in parts]), whole.x)
    assert [part.place for part in parts] == [Place(0, 90, 300), Place(90, 210, 300)]
    assert all(torch.equal(part.codes, whole.codes) for part in parts)


def test_too_many_rows_in_several_processes_are_refused(monkeypatch):
    monkeypatch.setattr(smoothing, "_MOST", 50)
    rows = Rows(torch.zeros(30, 2), Place(0, 30, 60))
    with pytest.raises(
        ParameterError, match=r"smoothing=0.8 needs all rows in one process, and 60 rows"
    ):
        smoothing.resolved(rows, VectorOptions(smoothing=0.8), 0.0, Ranks(0, 2))
    strength, groups = smoothing.resolved(rows, VectorOptions(), 0.0, Ranks(0, 2))
    assert strength == (0.0, "more than 50 rows")
    assert not groups


def test_draws_of_float32_rows_are_float32():
    x = torch.from_numpy(RNG.normal(size=(30, 2)).astype(np.float32))
    assert drawn(x)[0].x.dtype == torch.float32
    assert scaled(x.double(), torch.zeros(30, 2, 2).double(), 1.0).dtype == torch.float64
