"""Maps are shrunk within their noise: no signal, no movement; and what is significant stays."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sliceflow.engine.classes import Runs

from sliceflow import ImageFlow, PictureOptions, SlicedWassersteinFlow, VectorOptions, load
from sliceflow.engine.flow import Cloud, Flow, Noise, Run, simulate
from sliceflow.engine.frames import Orthogonal
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.shrinkage import Shrinkage, noise_rates, variance_within
from sliceflow.engine.transports import Histogram, Sorted
from sliceflow.metrics import nn_ratio
from sliceflow.models.ranks import Ranks
from sliceflow.spaces.pictures.plan import choose_shrinkage

IMAGES, LABELS = load_digits().images.astype(np.uint8), load_digits().target
QUICK = dict(schedule="1[1] 4[3] 8[3]", quality=6, n_pixel_values=17, n_particles=1000, random_state=0)
BOTH = pytest.mark.parametrize(
    "transport", [Sorted(), Histogram(64, most=None)], ids=["sorted", "bins"]
)


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def shrunk(transport, z_p, z_q, kappa, **rates):
    m, n = z_p.shape[1], z_q.shape[1]
    return Shrinkage(kappa, noise_rates(m, n, **rates)).shrunk(transport.fit(z_p, z_q))


@BOTH
def test_without_signal_hardly_anything_moves(transport):
    z_p, z_q = normal(50, 800), normal(50, 600, seed=1)
    free, (less, factor) = transport.fit(z_p, z_q), shrunk(transport, z_p, z_q, 3.0)
    before, after = (fit.table.displace(z_p).square().mean() for fit in (free, less))
    assert after < 0.15 * before
    assert (factor > 0).double().mean() < 0.5
    assert torch.equal(less.cost, free.cost)


@BOTH
@given(scale=st.floats(0.2, 5), shift=st.floats(-2, 2), kappa=st.floats(0, 10))
@settings(max_examples=20, deadline=None)
def test_the_factor_is_that_of_james_and_stein(transport, scale, shift, kappa):
    z_p, z_q = normal(3, 500), scale * normal(3, 400, seed=1) + shift
    free, (less, factor) = transport.fit(z_p, z_q), shrunk(transport, z_p, z_q, kappa, distinct=0.5)
    noise = kappa * z_p.var(1, correction=0) * (1 / 500 + 1 / 200)
    expected = (1 - noise / free.cost).clamp(min=0)
    bins = isinstance(transport, Histogram)
    assert torch.allclose(factor, expected, atol=0.02 if bins else 1e-9)
    wanted, found = (fit.table.displace(z_p) for fit in (free, less))
    assert torch.allclose(found, factor[:, None] * wanted, atol=1e-9)
    if not bins:
        assert torch.allclose(less.dz, factor[:, None] * free.dz)


def test_sorted_and_binned_maps_have_the_same_factor():
    z_p, z_q = normal(20, 5000), 1.02 * normal(20, 4000, seed=1)
    factors = [shrunk(t, z_p, z_q, 2.0)[1] for t in (Sorted(), Histogram(256, most=None))]
    assert torch.allclose(*factors, atol=0.1)
    assert factors[0].mean() == pytest.approx(float(factors[1].mean()), abs=0.02)
    assert 0 < factors[0].mean() < 1


def test_weights_mini_batches_and_mirror_images_count_as_fewer_rows():
    labels = torch.tensor([0] * 100 + [1] * 100)
    few = torch.tensor([0] * 190 + [1] * 10)
    assert noise_rates(200, 200) == noise_rates(200, 200, labels, labels)
    assert noise_rates(200, 200, labels, few)[0] > noise_rates(200, 200)[0]
    assert noise_rates(200, 400, most=100) == (1 / 100 + 1 / 100,)
    assert noise_rates(200, 400, distinct=0.5) == (1 / 200 + 1 / 200,)
    assert noise_rates(200, 200, labels, few, n_apart=3)[1] == 1 / 100 + 1 / 10


def test_every_class_has_its_own_noise():
    z = normal(2, 60), normal(2, 600, seed=1)
    p, q = torch.cat((z[0][:, :30], z[1][:, :300]), 1), torch.cat((z[0][:, 30:], z[1][:, 300:]), 1)
    runs, codes = (Runs((0, 30, 330)),) * 2, torch.tensor([0] * 30 + [1] * 300)
    bins = Histogram(32, most=None)
    rates = noise_rates(330, 330, codes, codes, n_apart=2)
    table = Shrinkage(3.0, rates).shrunk(bins.fit(p, q, None, runs))[0].table
    for c, (own, other) in enumerate((((p[:, :30]), q[:, :30]), (p[:, 30:], q[:, 30:]))):
        alone = shrunk(bins, own, other, 3.0)[0].table
        assert torch.allclose(table.of_class(c, 2).values, alone.values)


def test_where_classes_share_maps_their_gaps_are_no_noise():
    """Two samples of the same classes, far apart: the noise is that of the classes, added up."""
    codes = torch.arange(4000) % 10
    z_p, z_q = (normal(60, 4000, seed=s) + 100 * codes for s in (0, 1))
    within = variance_within(z_q, codes, 10)
    assert torch.allclose(within, torch.full((60,), 10.0, dtype=torch.float64), rtol=0.1)
    kappa = Sorted().fit(z_p, z_q).cost / (within * (2 / 4000))
    assert 2 < kappa.mean() < 4  # as for one class
    rates = noise_rates(4000, 4000, codes, codes)
    _, factor = Shrinkage(3.0, rates).shrunk(Sorted().fit(z_p, z_q), within)
    assert 0.2 < (factor > 0).double().mean() < 0.8


def test_a_flow_between_equal_distributions_ends_early():
    x, y = normal(4, 3000), normal(4, 3000, seed=1)
    flow = Flow([Stage("flow", Orthogonal(), 200)], Seed(0))
    for kappa, least, most in ((0.0, 200, 200), (6.0, 4, 60)):
        run = Run()
        shrinkage = Shrinkage(kappa, noise_rates(3000, 3000))
        particles = Cloud(x.clone())
        simulate(flow, particles, Cloud(y), Sorted(), Noise(Seed(1)), run=run, shrinkage=shrinkage)
        assert least <= run.done <= most
        assert run.done + run.spared == 200


def test_history_has_the_share_of_maps_that_move():
    flow = ImageFlow(**QUICK, options=PictureOptions(shrinkage=1.0)).fit(IMAGES)
    moving = np.array(flow.history_["moving"])
    assert len(moving) == len(flow.history_["step"])
    assert (moving[0], moving.min() < 1, moving.max() <= 1) == (1, True, True)
    off = ImageFlow(**QUICK, options=PictureOptions(shrinkage=0)).fit(IMAGES)
    assert set(off.history_["moving"]) == {1.0}


@pytest.mark.parametrize("amplifier", [math.inf, 0.0])
def test_counted_pictures_have_the_same_factor(amplifier):
    """Online counts and pictures themselves give nearly the same maps, which stand still alike."""
    options = PictureOptions(shrinkage=1.0)
    flows = [
        ImageFlow(**QUICK, transport="histogram", amplifier=amplifier, options=options) for _ in "ab"
    ]
    flows[0].fit(IMAGES, LABELS)
    flows[1].partial_fit(IMAGES, LABELS)
    moving = [np.array(flow.history_["moving"]) for flow in flows]
    assert moving[0].mean() == pytest.approx(moving[1].mean(), abs=0.05)
    assert moving[0].mean() < 0.99


@pytest.mark.parametrize("options", [{}, dict(amplifier=math.inf), dict(n_clusters=3)])
def test_real_pictures_stay_nearer_to_where_they_are(options):
    """Shrunk maps move the particles less at the end, by class, with clusters and without."""
    y = LABELS if "amplifier" in options else None
    last = []
    for kappa in (0.0, 3.0):
        flow = ImageFlow(
            **QUICK, transport="histogram", options=PictureOptions(shrinkage=kappa), **options
        )
        flow.fit(IMAGES, y)
        last.append(np.abs(flow.particles_.astype(float)).mean())
        assert ("κ = " in str(flow.plan_)) == (kappa > 0)
        assert flow.sample(3, random_state=0).shape == (3, 8, 8)
    assert last[0] == pytest.approx(last[1], rel=0.2)  # the same pictures, on the whole


def test_models_of_shrunk_maps_are_saved(tmp_path):
    flow = ImageFlow(**QUICK, options=PictureOptions(shrinkage=2.0)).fit(IMAGES)
    flow.save(tmp_path / "m")
    again = load(tmp_path / "m", device="cpu")
    assert again.options.shrinkage == 2.0
    assert np.array_equal(again.sample(5, random_state=0), flow.sample(5, random_state=0))


def test_where_it_cannot_be_it_is_refused():
    options = PictureOptions(shrinkage=1.0)
    with pytest.raises(
        ValueError, match=r"shrinkage=1.0 does not work with partial_fit if amplifier=10"
    ):
        ImageFlow(**QUICK, options=options, amplifier=10).partial_fit(IMAGES, LABELS)
    with pytest.raises(
        ValueError, match=r"shrinkage=-1 must be 'auto' or a finite number of at least 0"
    ):
        ImageFlow(**QUICK, options=PictureOptions(shrinkage=-1)).fit(IMAGES)
    assert ImageFlow(**QUICK, options=options).fit(IMAGES, ranks=Ranks()).n_iter_ > 0


def test_the_default_depends_on_steps_and_pictures():
    few, many = (choose_shrinkage("auto", 0.0, n, 50) for n in (100, 60_000))
    assert 0.05 < many < 0.1 < few <= 2
    assert choose_shrinkage("auto", 10.0, 500, 50, counted=True) == 0
    plan = ImageFlow(**QUICK, transport="histogram").plan(IMAGES, LABELS)
    assert plan.method == "per class"
    assert plan.shrinkage == pytest.approx(2.5 * (6 / 179.7) ** 0.5)
    paper = ImageFlow(**QUICK, preset="paper", options=PictureOptions(n_knots=0)).plan(IMAGES)
    assert paper.shrinkage == 0


def rows_of(n, seed):
    return np.random.default_rng(seed).normal(size=(n, 3)) @ np.array([[1, 0, 0], [1, 1, 0], [0, 0, 2]])


@pytest.mark.parametrize("amplifier", [10.0, math.inf])
def test_vectors_spare_steps_and_keep_their_columns_exact(amplifier):
    """The flow ends early; columns of two values and of many zeros end on their values."""
    x, rng = rows_of(800, 0), np.random.default_rng(1)
    x[:, 1] = rng.integers(0, 2, 800)
    x[:, 2] = np.where(rng.random(800) < 0.6, 0, x[:, 2])
    y = np.arange(800) % 2
    options = VectorOptions(shrinkage=2.0, smoothing=0)
    flow = SlicedWassersteinFlow(n_particles=1600, amplifier=amplifier, random_state=0, options=options)
    flow.fit(x, y)
    assert "κ = 2" in str(flow.plan_)
    assert min(flow.history_["moving"]) < 1
    assert flow.n_iter_ < (202 if amplifier < math.inf else 404)
    for found in (flow.particles_, flow.sample(2000, random_state=0)):
        found = found.round(9)
        assert np.isin(found[:, 1], (0, 1)).mean() > 0.999
        assert found[:, 1].mean() == pytest.approx(x[:, 1].mean(), abs=0.02)
        assert (found[:, 2] == 0).mean() == pytest.approx((x[:, 2] == 0).mean(), abs=0.03)


def test_shrunk_vectors_are_not_copied():
    """Few rows without labels: the flow that runs on lands on them, the shrunk one does not."""
    x, new = rows_of(300, 0), rows_of(300, 1)
    ratios = [
        nn_ratio(
            SlicedWassersteinFlow(random_state=0, options=VectorOptions(shrinkage=k, smoothing=0))
            .fit(x)
            .particles_[:2000],
            x,
            new,
        )
        for k in (0.0, 1.0)
    ]
    assert ratios[0] < 0.6 < 0.85 < ratios[1] < 1.15


def test_vectors_whose_noise_is_unknown_are_refused():
    x, options = rows_of(300, 0), VectorOptions(shrinkage=1.0, smoothing=0)
    with pytest.raises(
        ValueError, match=r"shrinkage=1.0 does not work with a continuous y; set it to 0"
    ):
        SlicedWassersteinFlow(options=options).fit(x[:, :2], x[:, 2:])
    with pytest.raises(ValueError, match=r"does not work with partial_fit if amplifier=10"):
        SlicedWassersteinFlow(options=options).partial_fit(x, np.arange(300) % 2)
    counted = SlicedWassersteinFlow(options=options, random_state=0).partial_fit(x)
    whole = SlicedWassersteinFlow(options=options, random_state=0).fit(x)
    assert counted.n_iter_ == pytest.approx(whole.n_iter_, rel=0.5)


def test_pictures_that_are_copied_are_warned_of():
    few = IMAGES[LABELS == 3][:60]
    settings = dict(
        n_pixel_values=17, n_particles=3000, quality=30, transport="histogram", random_state=0
    )
    with pytest.warns(
        UserWarning, match=r"the particles copy pictures of X \(copies .*\); more shrinkage"
    ):
        ImageFlow(**settings, options=PictureOptions(shrinkage=0)).fit(few)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ImageFlow(**settings).fit(few)


@pytest.mark.parametrize("labels", [None, np.arange(800) % 2], ids=["all", "per class"])
def test_black_is_black_and_white_is_white(labels):
    """Bins that mix two values, or ties of clipped particles, would move the shares of both."""
    rng = np.random.default_rng(0)
    shape = (800, 6, 6)
    kind, grey = rng.random(shape), rng.integers(1, 255, shape)
    x = np.where(kind < 0.7, 0, np.where(kind > 0.98, 255, grey)).astype(np.uint8)
    flow = ImageFlow(
        "1[1] 3[3] 6[3,2] 6[1]=1", 3000, 12, transport="histogram", random_state=0, device="cpu"
    )
    flow.fit(x, labels)
    for found, slack in ((flow.particles_, 0.002), (flow.sample(2000, random_state=1), 0.01)):
        for value in (0, 255):
            assert (found == value).mean() == pytest.approx((x == value).mean(), abs=slack)
        assert ((found > 0) & (found < 3)).mean() < 0.005 + slack


def test_pictures_with_few_values_end_on_all_of_them():
    rng = np.random.default_rng(0)
    x = rng.choice(np.arange(5), p=[0.5, 0.1, 0.05, 0.05, 0.3], size=(600, 5, 5)).astype(np.uint8)
    flow = ImageFlow(
        "1[1] 5[3,2] 5[1]=1", 3000, 10, n_pixel_values=5, transport="histogram", random_state=0
    )
    shares = [
        np.bincount(pictures.ravel(), minlength=5) / pictures.size
        for pictures in (x, flow.fit(x).particles_)
    ]
    np.testing.assert_allclose(*shares, atol=0.003)
