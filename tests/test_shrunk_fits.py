"""Fits with shrunk maps: what is noise stays, and what is significant does not."""

import math
import warnings

import numpy as np
import pytest
from sklearn.datasets import load_digits

from sliceflow import ImageFlow, PictureOptions, SlicedWassersteinFlow, VectorOptions, load
from sliceflow.metrics import nn_ratio
from sliceflow.models.ranks import Ranks
from sliceflow.spaces.pictures.plan import choose_shrinkage

IMAGES, LABELS = load_digits().images.astype(np.uint8), load_digits().target
QUICK = dict(schedule="1[1] 4[3] 8[3]", quality=6, n_pixel_values=17, n_particles=1000, random_state=0)


def test_history_has_the_share_of_maps_that_move():
    flow = ImageFlow(**QUICK, options=PictureOptions(shrinkage=1.0)).fit(IMAGES)
    moving = np.array(flow.history_["moving"])
    assert len(moving) == len(flow.history_["step"])
    assert (moving[0], moving.min() < 1, moving.max() <= 1) == (1, True, True)
    off = ImageFlow(**QUICK, options=PictureOptions(shrinkage=0)).fit(IMAGES)
    assert set(off.history_["moving"]) == {1.0}


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
        ValueError, match=r"shrinkage=-1 must be 'auto' or a finite number of at least 0"
    ):
        ImageFlow(**QUICK, options=PictureOptions(shrinkage=-1)).fit(IMAGES)
    assert ImageFlow(**QUICK, options=options).fit(IMAGES, ranks=Ranks()).n_iter_ > 0


def test_the_default_depends_on_steps_and_pictures():
    few, many = (choose_shrinkage("auto", n, 50) for n in (100, 60_000))
    assert 0.05 < many < 0.1 < few <= 2
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
        schedule="1[1] 3[3] 6[3,2] 6[1]=1",
        n_particles=3000,
        quality=12,
        transport="histogram",
        random_state=0,
        device="cpu",
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
        schedule="1[1] 5[3,2] 5[1]=1",
        n_particles=3000,
        quality=10,
        n_pixel_values=5,
        transport="histogram",
        random_state=0,
    )
    shares = [
        np.bincount(pictures.ravel(), minlength=5) / pictures.size
        for pictures in (x, flow.fit(x).particles_)
    ]
    np.testing.assert_allclose(*shares, atol=0.003)
