"""Fits of pictures: labels, classes apart, clusters, mirror images, exact pixel values, shrunk maps."""

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
from sliceflow import ImageFlow, PictureOptions
from sliceflow.engine.random import Seed
from sliceflow.engine.transports import Histogram
from sliceflow.spaces.pictures.clusters import centres, nearest

COUNTED = QUICK | dict(transport=Histogram(64), amplifier=math.inf)


def shades(sizes=(150, 150), seed=0):
    """Pictures that are dark or light, or of as many shades as there are sizes, and their labels."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    grey = 40 + 170 * labels / max(1, len(sizes) - 1)
    images = (grey[:, None, None] + rng.integers(-25, 26, (len(labels), 5, 5))).astype(
        np.uint8
    )
    return images, labels


SHADES = dict(
    schedule="1[1] 5[5,2]", n_particles=300, quality=4, transport=Histogram(64)
)
SHADES |= dict(random_state=0, device="cpu")


# Labels


@pytest.mark.parametrize("settings_", [QUICK, COUNTED], ids=["shared", "per_class"])
def test_digits_show_their_label(settings_):
    flow = ImageFlow(**settings_ | dict(quality=8, n_particles=1000)).fit(
        IMAGES, LABELS
    )
    judge = SVC().fit(IMAGES.reshape(300, -1), LABELS)
    assert (
        judge.score(flow.particles_.reshape(1000, -1), flow.particle_conditions_) > 0.85
    )
    wanted = np.arange(300) % 10
    drawn = flow.sample(y=wanted, random_state=1)
    assert judge.score(drawn.reshape(300, -1), wanted) > 0.85


@pytest.mark.parametrize("transport", ["auto", "sorted", Histogram(64)], ids=str)
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
    flow = ImageFlow(**SHADES | dict(quality=10), amplifier=amplifier).fit(
        images, labels
    )
    for label in (0, 1):
        light = flow.sample(100, y=label, random_state=1).mean((1, 2))
        assert ((light > 125) == (label == 1)).mean() > 0.98
    assert len(flow.particles_) == 300


def test_steps_that_look_at_few_columns_give_nearly_what_all_give():
    images, labels = shades((500, 3, 400))
    for changes in (dict(amplifier=math.inf), dict(amplifier=10.0, quality=8)):
        whole, few = (
            ImageFlow(
                **SHADES
                | changes
                | dict(transport=Histogram(64, max_samples=max_samples))
            ).fit(images, labels)
            for max_samples in (None, 60)
        )
        assert not np.array_equal(few.particles_, whole.particles_)
        assert np.array_equal(few.particle_conditions_, whole.particle_conditions_)
        light = few.particles_.mean((1, 2))
        assert (
            np.abs(light - np.array([40, 125, 210])[few.particle_conditions_]).max()
            < 35
        )


def test_parts_have_all_classes_and_every_picture_is_seen():
    """On a CPU, stages look at parts of many pictures in turn."""
    images = np.tile(DIGITS.images.astype(np.uint8), (7, 1, 1))[:12_000]
    labels = np.tile(DIGITS.target, 7)[:12_000]
    flow = ImageFlow(
        quality=1, n_pixel_values=17, n_particles=500, random_state=0, device="cpu"
    )
    job = flow.prepare(images, labels).planned
    assert job.plan.batch_size == 10_000
    assert (
        flow.plan(images[:1797], labels[:1797]).batch_size is None
    )  # every stage sees all
    parts = job.start().parts
    assert len(parts) == 2
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(12_000))
    for part in parts:
        assert np.bincount(labels[part.numpy()], minlength=10).min() > 500
    flow.fit(images, labels)
    both = (images, labels), (flow.particles_, flow.particle_conditions_)
    for c in (0, 1):
        means = [x[y == c].mean(0) for x, y in both]
        assert np.abs(means[0] - means[1]).max() < 2.5  # of 16


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
        ValueError, match="labels or observed pixels, not both; choose one"
    ):
        ImageFlow(**QUICK, observed="top").fit(IMAGES, LABELS)
    with pytest.raises(ValueError, match="n_particles=9 must be at least 10"):
        ImageFlow(**QUICK | dict(n_particles=9)).fit(IMAGES, LABELS)


# Clusters


def bars(n=200, seed=0):
    """Noisy pictures with a light left or right half, three left ones for each right one."""
    rng = np.random.default_rng(seed)
    right = np.arange(n) % 4 == 0
    light = np.where(right[:, None], np.arange(6) >= 3, np.arange(6) < 3)[:, None] * 10
    return (rng.integers(0, 7, (n, 6, 6)) + light).astype(np.uint8), right


BARS = SHADES | dict(schedule="1[1] 6[5,2]", n_pixel_values=17, transport="histogram")


def lean(images):
    """How much lighter the right half is."""
    grey = images.reshape(len(images), 6, 6, -1).mean((1, 3))
    return grey[:, 3:].mean(1) - grey[:, :3].mean(1)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 100))
@settings(max_examples=10)
def test_centres_are_the_means_of_what_is_nearest(k, f, seed):
    x = (
        Seed(seed).normal(f, 60) + torch.arange(60) % k * 100.0
    )  # far apart: it has converged
    means = centres(x, k, Seed(seed))
    assert means.shape == (f, k)
    codes = nearest(x, means)
    assert torch.equal(
        codes, (x.double()[:, None] - means[:, :, None]).square().sum(0).argmin(0)
    )
    for c in codes.unique():
        assert torch.allclose(means[:, c], x[:, codes == c].double().mean(1), atol=1e-8)


def test_equal_pictures_are_one_cluster_and_the_others_stay_empty():
    means = centres(torch.ones(3, 20), 4, Seed(0))
    assert bool(torch.isfinite(means).all())
    flow = ImageFlow(**BARS, n_clusters=4).fit(np.full((50, 6, 6), 9, np.uint8))
    assert np.abs(flow.particles_.astype(int) - 9).max() <= 1


def test_two_kinds_of_pictures_are_found_and_nobody_is_told():
    images, right = bars()
    flow = ImageFlow(**BARS, n_clusters=2).fit(images, right).fit(images)
    codes = flow._model.fitted.codes.numpy()
    assert np.array_equal(codes == codes[0], right == right[0])
    for found in (flow.particles_, flow.sample(300, random_state=0)):
        assert np.abs(lean(found)).min() > 6  # no picture is between the two
        assert np.isclose((lean(found) > 0).mean(), 0.25, atol=0.01)
        assert 0.15 < (lean(found) > 0)[:100].mean() < 0.35  # in random order
    assert flow.particle_conditions_ is None
    assert not hasattr(flow, "classes_")


def test_two_kinds_of_colour_pictures_are_found_by_their_edges():
    images, turned = bars()
    images[turned] = images[turned].transpose(0, 2, 1)
    tints = np.random.default_rng(0).uniform(0.2, 1, (200, 1, 1, 3))
    flow = ImageFlow(**BARS, n_clusters=2).fit(
        (images[..., None] * tints).astype(np.uint8)
    )
    codes = flow._model.fitted.codes.numpy()
    assert ((codes == codes[0]) == (turned == turned[0])).mean() > 0.97


def test_one_cluster_is_none_and_mirror_images_have_clusters_of_their_own():
    images, right = bars()
    one = ImageFlow(**BARS, n_clusters=1).fit(images)
    blind = ImageFlow(**BARS, amplifier=0)
    assert np.array_equal(one.particles_, blind.fit(images, right).particles_)
    flow = ImageFlow(**BARS, n_clusters=2, mirror=True).fit(
        images[~right]
    )  # all lean to the left
    codes = flow._model.fitted.codes.numpy()
    assert len(set(codes[: len(codes) // 2])) == len(set(codes[len(codes) // 2 :])) == 1
    assert np.isclose((lean(flow.particles_) > 0).mean(), 0.5)


# Values of pixels, and what else a fit keeps


def test_mirror_images_are_fitted_too():
    images = np.zeros((100, 6, 6), np.uint8)
    images[:, :, :2] = 16  # all ink on the left
    flow = ImageFlow(**BARS | dict(quality=10), mirror=True).fit(
        images, np.arange(100) % 2
    )
    right = flow.particles_[:, :, 4:].mean((1, 2)) > 8
    assert 0.4 < right.mean() < 0.6
    assert Counter(flow.particle_conditions_.tolist()) == {0: 150, 1: 150}


def test_a_single_picture_is_copied_and_small_ones_can_be_fitted():
    image = PICTURES[:1, :4]
    settings_ = dict(
        n_pixel_values=17, quality=10, n_particles=30, random_state=0, device="cpu"
    )
    flow = ImageFlow(**settings_, options=PictureOptions(taper=0)).fit(image)
    assert np.array_equal(flow.particles_, np.repeat(image, 30, axis=0))
    for shape in ((50, 1, 1), (50, 1, 7), (50, 5, 9)):
        flow = ImageFlow(**settings_ | dict(quality=1)).fit(np.resize(PICTURES, shape))
        assert flow.sample(3).shape == (3, *shape[1:])


@pytest.mark.parametrize("labels", [None, np.arange(500) % 2], ids=["all", "per class"])
def test_pixels_end_on_the_values_of_the_data_in_their_shares(labels, rng):
    """Bins that mix two values, or ties of clipped particles, would move the shares of both."""
    kind = rng.random((500, 6, 6))
    grey = rng.integers(1, 255, (500, 6, 6))
    x = np.where(kind < 0.7, 0, np.where(kind > 0.98, 255, grey)).astype(np.uint8)
    settings_ = dict(
        schedule="1[1] 6[3,2] 6[1]=1", n_particles=2000, transport="histogram"
    )
    flow = ImageFlow(**settings_, quality=8, random_state=0, device="cpu").fit(
        x, labels
    )
    for found, slack in (
        (flow.particles_, 0.002),
        (flow.sample(2000, random_state=1), 0.01),
    ):
        for value in (0, 255):
            assert (found == value).mean() == pytest.approx(
                (x == value).mean(), abs=slack
            )
        assert ((found > 0) & (found < 3)).mean() < 0.005 + slack


def test_clipping_keeps_particles_in_the_range_of_pixels():
    beyond = []
    for clip in (True, False):
        last = []
        options = PictureOptions(start_noise=1.0, clip=clip, shrinkage=0)
        ImageFlow(**QUICK, options=options).fit(
            IMAGES,
            listeners=lambda event, last=last: last.append(
                float(event.particles.abs().max())
            ),
        )
        beyond.append(last[-1])
    assert beyond[0] < beyond[1]


def test_a_stage_s_particles_are_freed_when_it_is_done():
    """They were held by a cycle of references: 50 GB with 700,000 particles of 32×32×3."""
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
    shrunk, off = (
        ImageFlow(**COUNTED, options=PictureOptions(shrinkage=k)) for k in (2.0, 0)
    )
    moving = np.array(shrunk.fit(IMAGES).history_["moving"])
    assert (moving[0], moving.min() < 1, moving.max() <= 1) == (1, True, True)
    assert set(off.fit(IMAGES).history_["moving"]) == {1.0}


def test_copies_are_warned_of_and_shrinkage_prevents_them():
    few = DIGITS.images.astype(np.uint8)[DIGITS.target == 3][:40]
    settings_ = QUICK | dict(n_particles=1000, quality=40, transport="histogram")
    with pytest.warns(
        UserWarning, match=r"the particles copy rows of X \(.*\); more shrinkage"
    ):
        ImageFlow(**settings_, options=PictureOptions(shrinkage=0)).fit(few)
    with warnings.catch_warnings(action="error"):
        ImageFlow(**settings_).fit(few)
