"""Fits of pictures: labels, clusters, mirror images, pixel values, shrunk maps."""

import gc
import math
import warnings
import weakref
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.svm import SVC

from models import DIGIT_LABELS as LABELS
from models import DIGITS, IMAGES, PICTURES, QUICK, pictures
from sliceflow import ImageFlow, ImageOptions
from sliceflow.engine.random import Seed
from sliceflow.engine.transports import HistogramTransport
from sliceflow.errors import DataError
from sliceflow.estimators.pictures.clusters import kmeans_centers, nearest_center

COUNTED = QUICK | dict(transport=HistogramTransport(64), amplifier=math.inf)


def shades(sizes=(150, 150), seed=0):
    """Pictures of as many shades as there are sizes, with labels from dark to light."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    shade = 40 + 170 * labels / max(1, len(sizes) - 1)
    noise = rng.integers(-25, 26, (len(labels), 5, 5))
    images = (shade[:, None, None] + noise).astype(np.uint8)
    return images, labels


SHADES = dict(
    schedule="1[1] 5[5,2]",
    n_particles=300,
    steps_per_stage=4,
    transport=HistogramTransport(64),
    random_state=0,
    device="cpu",
)


# Labels


@pytest.mark.parametrize("settings_", [QUICK, COUNTED], ids=["shared", "per_class"])
def test_digits_show_their_label(settings_):
    flow = ImageFlow(**settings_ | dict(steps_per_stage=8, n_particles=1000))
    flow.fit(IMAGES, LABELS)
    judge = SVC().fit(IMAGES.reshape(300, -1), LABELS)
    particles = flow.particles_.reshape(1000, -1)
    assert judge.score(particles, flow.particle_conditions_) > 0.85
    wanted = np.arange(300) % 10
    drawn = flow.sample(y=wanted, random_state=1)
    assert judge.score(drawn.reshape(300, -1), wanted) > 0.85


@pytest.mark.parametrize(
    "transport", ["auto", "sorted", HistogramTransport(64)], ids=str
)
def test_without_amplifier_the_flow_is_the_unconditional_one(transport):
    blind = ImageFlow(**QUICK, transport=transport, amplifier=0).fit(IMAGES, LABELS)
    plain = ImageFlow(**QUICK, transport=transport).fit(IMAGES)
    assert np.array_equal(blind.particles_, plain.particles_)
    assert np.array_equal(
        blind.sample(9, random_state=1), plain.sample(9, random_state=1)
    )


@pytest.mark.parametrize("amplifier", [10.0, math.inf])
@pytest.mark.parametrize("n_rare", [1, 5])
def test_a_rare_class_is_sampled_as_itself(n_rare, amplifier):
    images, labels = shades((1000, n_rare))
    flow = ImageFlow(**SHADES | dict(steps_per_stage=10), amplifier=amplifier).fit(
        images, labels
    )
    for label in (0, 1):
        light = flow.sample(100, y=label, random_state=1).mean((1, 2))
        assert ((light > 125) == (label == 1)).mean() > 0.98
    assert len(flow.particles_) == 300


def test_steps_that_look_at_few_columns_give_nearly_what_all_give():
    images, labels = shades((500, 3, 400))
    expected_brightness = np.array([40, 125, 210])
    at_once = HistogramTransport(64, batch_size=None)
    in_batches = HistogramTransport(64, batch_size=60)
    for changes in (dict(amplifier=math.inf), dict(amplifier=10.0, steps_per_stage=8)):
        settings_ = SHADES | changes
        whole = ImageFlow(**settings_ | dict(transport=at_once)).fit(images, labels)
        batched = ImageFlow(**settings_ | dict(transport=in_batches))
        batched.fit(images, labels)
        assert not np.array_equal(batched.particles_, whole.particles_)
        classes = batched.particle_conditions_
        assert np.array_equal(classes, whole.particle_conditions_)
        brightness = batched.particles_.mean((1, 2))
        assert np.abs(brightness - expected_brightness[classes]).max() < 35


def test_parts_have_all_classes_and_every_picture_is_seen():
    """On a CPU, stages look at parts of many pictures in turn."""
    images = np.tile(DIGITS.images.astype(np.uint8), (7, 1, 1))[:12_000]
    labels = np.tile(DIGITS.target, 7)[:12_000]
    flow = ImageFlow(
        steps_per_stage=1,
        n_pixel_values=17,
        n_particles=500,
        random_state=0,
        device="cpu",
    )
    planned_fit = flow.prepare(images, labels).planned_fit
    assert planned_fit.plan.batch_size == 10_000
    # Every stage sees all of few pictures.
    assert flow.plan(images[:1797], labels[:1797]).batch_size is None
    parts = planned_fit.training_pictures().parts
    assert len(parts) == 2
    indices = [part.indices.numpy() for part in parts]
    np.testing.assert_array_equal(np.sort(np.concatenate(indices)), np.arange(12_000))
    for part in indices:
        assert np.bincount(labels[part], minlength=10).min() > 500
    flow.fit(images, labels)
    for c in (0, 1):
        mean = images[labels == c].mean(0)
        particle_mean = flow.particles_[flow.particle_conditions_ == c].mean(0)
        assert np.abs(mean - particle_mean).max() < 2.5  # of 16


@pytest.mark.parametrize(
    "labels", [[0, 1], "seven", np.eye(10)[LABELS], ["a", None] * 150]
)
def test_labels_are_one_per_picture(labels):
    with pytest.raises(
        ValueError, match=r"pass one (class )?label per picture|has no label"
    ):
        ImageFlow(**QUICK).fit(IMAGES, labels)


def test_what_does_not_go_together_is_refused():
    with pytest.raises(
        ValueError, match="labels or known pixels, not both; choose one"
    ):
        ImageFlow(**QUICK, known="top").fit(IMAGES, LABELS)
    with pytest.raises(ValueError, match="n_particles=9 must be at least 10"):
        ImageFlow(**QUICK | dict(n_particles=9)).fit(IMAGES, LABELS)


# Clusters


def bars(n=200, seed=0):
    """Noisy pictures with a light left or right half: every fourth is right."""
    rng = np.random.default_rng(seed)
    right = np.arange(n) % 4 == 0
    light = np.where(right[:, None], np.arange(6) >= 3, np.arange(6) < 3)[:, None] * 10
    return (rng.integers(0, 7, (n, 6, 6)) + light).astype(np.uint8), right


BARS = SHADES | dict(schedule="1[1] 6[5,2]", n_pixel_values=17, transport="histogram")


def lean(images):
    """How much lighter the right half is."""
    gray = images.reshape(len(images), 6, 6, -1).mean((1, 3))
    return gray[:, 3:].mean(1) - gray[:, :3].mean(1)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 100))
@settings(max_examples=10)
def test_centers_are_the_means_of_what_is_nearest(k, f, seed):
    # The clusters are so far from each other that the algorithm has converged.
    x = Seed(seed).normal(f, 60) + torch.arange(60) % k * 100.0
    means = kmeans_centers(x, k, Seed(seed))
    assert means.shape == (f, k)
    classes = nearest_center(x, means)
    assert torch.equal(
        classes, (x.double()[:, None] - means[:, :, None]).square().sum(0).argmin(0)
    )
    for c in classes.unique():
        assert torch.allclose(
            means[:, c], x[:, classes == c].double().mean(1), atol=1e-8
        )


def test_equal_pictures_are_one_cluster_and_the_others_stay_empty():
    means = kmeans_centers(torch.ones(3, 20), 4, Seed(0))
    assert bool(torch.isfinite(means).all())
    flow = ImageFlow(**BARS, n_clusters=4).fit(np.full((50, 6, 6), 9, np.uint8))
    assert np.abs(flow.particles_.astype(int) - 9).max() <= 1


def test_two_kinds_of_pictures_are_found_and_nobody_is_told():
    images, right = bars()
    flow = ImageFlow(**BARS, n_clusters=2).fit(images, right).fit(images)
    classes = flow._record.model.encoded_y.values.numpy()
    assert np.array_equal(classes == classes[0], right == right[0])
    for samples in (flow.particles_, flow.sample(300, random_state=0)):
        assert np.abs(lean(samples)).min() > 6  # no picture is between the two
        assert np.isclose((lean(samples) > 0).mean(), 0.25, atol=0.01)
        assert 0.15 < (lean(samples) > 0)[:100].mean() < 0.35  # in random order
    assert flow.particle_conditions_ is None
    assert not hasattr(flow, "classes_")


def test_two_kinds_of_color_pictures_are_found_by_their_edges():
    images, turned = bars()
    images[turned] = images[turned].transpose(0, 2, 1)
    tints = np.random.default_rng(0).uniform(0.2, 1, (200, 1, 1, 3))
    flow = ImageFlow(**BARS, n_clusters=2).fit(
        (images[..., None] * tints).astype(np.uint8)
    )
    classes = flow._record.model.encoded_y.values.numpy()
    assert ((classes == classes[0]) == (turned == turned[0])).mean() > 0.97


def test_one_cluster_is_none_and_mirror_images_have_clusters_of_their_own():
    images, right = bars()
    one = ImageFlow(**BARS, n_clusters=1).fit(images)
    blind = ImageFlow(**BARS, amplifier=0)
    assert np.array_equal(one.particles_, blind.fit(images, right).particles_)
    flow = ImageFlow(**BARS, n_clusters=2, mirror=True)
    flow.fit(images[~right])  # all lean to the left
    classes = flow._record.model.encoded_y.values.numpy()
    n = len(classes) // 2
    assert len(set(classes[:n])) == 1
    assert len(set(classes[n:])) == 1
    assert np.isclose((lean(flow.particles_) > 0).mean(), 0.5)


# Values of pixels, and what else a fit keeps


def test_mirror_images_are_fitted_too():
    images = np.zeros((100, 6, 6), np.uint8)
    images[:, :, :2] = 16  # all ink on the left
    flow = ImageFlow(**BARS | dict(steps_per_stage=10), mirror=True).fit(
        images, np.arange(100) % 2
    )
    right = flow.particles_[:, :, 4:].mean((1, 2)) > 8
    assert 0.4 < right.mean() < 0.6
    assert Counter(flow.particle_conditions_.tolist()) == {0: 150, 1: 150}


def test_a_single_picture_is_copied_and_small_ones_can_be_fitted():
    image = PICTURES[:1, :4]
    settings_ = dict(
        n_pixel_values=17,
        steps_per_stage=10,
        n_particles=30,
        random_state=0,
        device="cpu",
    )
    flow = ImageFlow(**settings_, options=ImageOptions(taper=0)).fit(image)
    assert np.array_equal(flow.particles_, np.repeat(image, 30, axis=0))
    for shape in ((50, 1, 1), (50, 1, 7), (50, 5, 9)):
        flow = ImageFlow(**settings_ | dict(steps_per_stage=1)).fit(
            np.resize(PICTURES, shape)
        )
        assert flow.sample(3).shape == (3, *shape[1:])


@pytest.mark.parametrize("labels", [None, np.arange(500) % 2], ids=["all", "per class"])
def test_pixels_end_on_the_values_of_the_data_in_their_shares(labels, rng):
    """Bins that mix two values, or ties of clipped particles, would move shares."""
    u = rng.random((500, 6, 6))
    gray = rng.integers(1, 255, (500, 6, 6))
    x = np.select([u < 0.7, u > 0.98], [0, 255], gray).astype(np.uint8)
    settings_ = dict(
        schedule="1[1] 6[3,2] 6[1]=1", n_particles=2000, transport="histogram"
    )
    flow = ImageFlow(**settings_, steps_per_stage=8, random_state=0, device="cpu").fit(
        x, labels
    )
    for samples, tolerance in (
        (flow.particles_, 0.002),
        (flow.sample(2000, random_state=1), 0.01),
    ):
        for value in (0, 255):
            share = (samples == value).mean()
            assert share == pytest.approx((x == value).mean(), abs=tolerance)
        assert ((samples > 0) & (samples < 3)).mean() < 0.005 + tolerance


def test_clipping_keeps_particles_in_the_range_of_pixels():

    def largest_value(clip):
        """After the last step."""
        largest = []

        def listener(event):
            largest.append(float(event.particles.abs().max()))

        options = ImageOptions(start_noise=1.0, clip=clip, shrinkage=0)
        ImageFlow(**QUICK, options=options).fit(IMAGES, listeners=listener)
        return largest[-1]

    assert largest_value(clip=True) < largest_value(clip=False)


def test_a_stage_s_particles_are_freed_when_it_is_done():
    """A cycle of references held them: 50 GB with 700,000 particles of 32×32×3."""
    stages = {}

    def listener(event):
        stages.setdefault(event.stage_index, weakref.ref(event.particles))

    gc.collect()
    gc.disable()
    try:
        pictures(schedule="1[1] 3[3,2] 5[3]").fit(PICTURES, listeners=listener)
        assert [ref() is None for ref in stages.values()] == [True] * 4
    finally:
        gc.enable()


def test_history_has_the_share_of_maps_that_move():
    shrunk = ImageFlow(**COUNTED, options=ImageOptions(shrinkage=2.0))
    moving = np.array(shrunk.fit(IMAGES).history_["active_fraction"])
    assert moving[0] == 1
    assert moving.min() < 1
    assert moving.max() <= 1
    not_shrunk = ImageFlow(**COUNTED, options=ImageOptions(shrinkage=0))
    assert set(not_shrunk.fit(IMAGES).history_["active_fraction"]) == {1.0}


def test_copies_are_warned_of_and_shrinkage_prevents_them():
    few = DIGITS.images.astype(np.uint8)[DIGITS.target == 3][:40]
    settings_ = QUICK | dict(
        n_particles=1000, steps_per_stage=40, transport="histogram"
    )
    with pytest.warns(
        UserWarning, match=r"the particles copy rows of X \(.*\); more shrinkage"
    ):
        ImageFlow(**settings_, options=ImageOptions(shrinkage=0)).fit(few)
    with warnings.catch_warnings(action="error"):
        ImageFlow(**settings_).fit(few)


def test_fractions_as_labels_of_pictures_get_a_hint_that_works(rng):
    pictures = rng.integers(0, 17, (40, 4, 4)).astype(np.uint8)
    flow = ImageFlow(n_pixel_values=17, n_particles=20, device="cpu")
    with pytest.raises(DataError, match="pass whole numbers or text as classes"):
        flow.fit(pictures, rng.random(40))
