"""Clusters: pictures without labels are divided by what they show, and nobody needs to know."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sliceflow import ImageFlow
from sliceflow.engine.random import Seed
from sliceflow.engine.transports import Auto, Histogram
from sliceflow.spaces.pictures.clusters import centres, nearest
from sliceflow.spaces.pictures.plan import choose_clusters

quick = dict(
    schedule="1[1] 6[5,2]",
    n_particles=300,
    quality=4,
    n_pixel_values=17,
    random_state=0,
    device="cpu",
    transport="histogram",
)


def bars(n=200, seed=0, colour=False):
    """Noisy pictures with a light left or right half, three left ones for each right one."""
    rng = np.random.default_rng(seed)
    right = np.arange(n) % 4 == 0
    light = np.where(right[:, None], np.arange(6) >= 3, np.arange(6) < 3)[:, None] * 10
    images = (rng.integers(0, 7, (n, 6, 6)) + light).astype(np.uint8)
    return (np.stack([images] * 3, axis=3) if colour else images), right


def lean(images):
    """How much lighter the right half is."""
    grey = images.reshape(len(images), 6, 6, -1).mean((1, 3))
    return grey[:, 3:].mean(1) - grey[:, :3].mean(1)


# Centres


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 100))
def test_centres_are_the_means_of_what_is_nearest(k, f, seed):
    x = Seed(seed).normal(f, 60) + torch.arange(60) % k * 100.0  # far apart: it has converged
    means = centres(x, k, Seed(seed))
    assert means.shape == (f, k)
    codes = nearest(x, means)
    brute = (x.double()[:, None] - means[:, :, None]).square().sum(0).argmin(0)
    assert torch.equal(codes, brute)
    for c in codes.unique():
        assert torch.allclose(means[:, c], x[:, codes == c].double().mean(1), atol=1e-8)
    assert torch.equal(means, centres(x, k, Seed(seed)))


def test_equal_pictures_are_one_cluster_and_the_others_stay_empty():
    x = torch.ones(3, 20)
    means = centres(x, 4, Seed(0))
    assert bool(torch.isfinite(means).all())
    assert len(nearest(x, means).unique()) == 1
    flow = ImageFlow(**quick, n_clusters=4).fit(np.full((50, 6, 6), 9, np.uint8))
    assert np.abs(flow.particles_.astype(int) - 9).max() <= 1


# Fits


def test_two_kinds_of_pictures_are_found():
    images, right = bars()
    flow = ImageFlow(**quick, n_clusters=2).fit(images)
    codes = flow._fitted.codes.numpy()
    assert np.array_equal(codes == codes[0], right == right[0])
    for pictures in (flow.particles_, flow.sample(300, random_state=0)):
        shown = lean(pictures)
        assert np.abs(shown).min() > 6  # no picture is between the two
        assert np.isclose((shown > 0).mean(), 0.25, atol=0.01)


def test_two_kinds_of_colour_pictures_are_found_by_their_edges():
    images, turned = bars(colour=True)
    images[turned] = images[turned].transpose(0, 2, 1, 3)
    rng = np.random.default_rng(0)
    images = (images * rng.uniform(0.2, 1, (200, 1, 1, 3))).astype(np.uint8)  # of any colour
    flow = ImageFlow(**quick, n_clusters=2).fit(images)
    codes = flow._fitted.codes.numpy()
    assert ((codes == codes[0]) == (turned == turned[0])).mean() > 0.97


def test_nobody_is_told_of_clusters():
    images, right = bars()
    flow = ImageFlow(**quick, n_clusters=2).fit(images, right).fit(images)
    assert flow.particle_conditions_ is None
    assert not hasattr(flow, "classes_")
    assert flow.sample(5, random_state=0, return_y=True)[1] is None
    with pytest.raises(ValueError, match=r"^y was given but the model was fitted without labels"):
        flow.sample(3, y=1)
    by_kind = lean(flow.particles_) > 0
    assert 0.15 < by_kind[:100].mean() < 0.35  # in random order


def test_labels_and_observed_pixels_leave_no_room_for_clusters():
    images, right = bars()
    flow = ImageFlow(**quick, n_clusters=2).fit(images, right)
    assert flow.classes_.tolist() == [False, True]
    assert not flow._fitted.condition.hidden
    flow = ImageFlow(**quick, n_clusters=2, observed="left").fit(images)
    assert flow._fitted.condition is None


def test_the_same_seed_finds_the_same_clusters():
    images, _ = bars()
    a, b, other = (
        ImageFlow(**quick | {"random_state": s}, n_clusters=3).fit(images) for s in (0, 0, 1)
    )
    assert torch.equal(a._fitted.codes, b._fitted.codes)
    assert np.array_equal(a.particles_, b.particles_)
    assert np.array_equal(a.sample(9, random_state=0), b.sample(9, random_state=0))
    assert not np.array_equal(a.particles_, other.particles_)


def test_one_cluster_is_none():
    images, right = bars()
    one, few = (ImageFlow(**quick, n_clusters=k).fit(images) for k in (1, "auto"))
    blind = ImageFlow(**quick, amplifier=0).fit(images, right)
    assert one._fitted.condition is None
    assert np.array_equal(one.particles_, few.particles_)
    assert np.array_equal(one.particles_, blind.particles_)
    two = ImageFlow(**quick, n_clusters=2).fit(images)
    assert not np.array_equal(one.particles_, two.particles_)


def test_mirror_images_have_clusters_of_their_own():
    images, right = bars()
    flow = ImageFlow(**quick, n_clusters=2, mirror=True).fit(images[~right])  # all lean to the left
    codes = flow._fitted.codes.numpy()
    assert len(codes) == 2 * (~right).sum()
    assert len(set(codes[: len(codes) // 2])) == len(set(codes[len(codes) // 2 :])) == 1
    assert np.isclose((lean(flow.particles_) > 0).mean(), 0.5)


def test_many_pictures_are_divided_by_default():
    images = bars(6000)[0].repeat(4, 1).repeat(4, 2)  # fewer values would be one cluster
    flow = ImageFlow("1[1]", 2000, 1, n_pixel_values=17, random_state=0).fit(images)
    assert flow._fitted.levels.apart == 6
    flow = ImageFlow("1[1]", 1, 1, n_pixel_values=17, random_state=0).fit(images)  # more than particles
    assert flow._fitted.levels.apart == 0


# How many


def test_there_are_as_many_as_pictures_allow():
    digit, photograph, tiny = (1, 28, 28), (3, 32, 32), (1, 8, 8)
    choices = {
        ("auto", "draft", 10_000, 60_000, digit): 30,
        ("auto", "standard", 10_000, 60_000, digit): 30,
        ("auto", "best", 10_000, 60_000, digit): 20,
        ("auto", "draft", 10_000, 100_000, photograph): 25,
        ("auto", "best", 10_000, 50_000, photograph): 25,
        ("auto", "best", 10_000, 10_000, photograph): 5,
        ("auto", "draft", 10_000, 60_000, tiny): 4,
        ("auto", 1, 10_000, 2000, digit): 2,
        ("auto", 1, 10_000, 1999, digit): 1,
        ("auto", 1, 10_000, 7, digit): 1,
        ("auto", 1, 12, 60_000, digit): 12,
        ("sorted", 1, 10_000, 60_000, digit): 1,
        ("histogram", 1, 10, 60_000, digit): 10,
        (Histogram(8), 1, 100, 60_000, digit): 30,
        (Auto(threshold=10**6), 1, 10_000, 60_000, digit): 1,
    }

    def chosen(transport, quality, m, *of, **more):
        flow = ImageFlow(transport=transport, quality=quality, n_particles=m, **more)
        return choose_clusters(flow.get_params(), *of)

    assert {of: chosen(*of) for of in choices} == choices
    assert chosen("auto", 25, 10_000, 18_000, photograph, mirror=True) == 4  # of 9,000 faces
    assert chosen("histogram", 50, 10, 10, photograph, n_clusters=7) == 7
    assert chosen("sorted", 50, 10, 10, photograph, n_clusters=1) == 1


@pytest.mark.parametrize(
    ("clusters", "options", "message"),
    [
        (0, {}, "n_clusters=0 must be 'auto' or an int of at least 1; 1 turns clustering off"),
        (
            "many",
            {},
            "n_clusters='many' must be 'auto' or an int of at least 1; 1 turns clustering off",
        ),
        (2.0, {}, "n_clusters=2.0 must be 'auto' or an int of at least 1; 1 turns clustering off"),
        (True, {}, "n_clusters=True must be 'auto' or an int of at least 1; 1 turns clustering off"),
        (None, {}, "n_clusters=None must be 'auto' or an int of at least 1; 1 turns clustering off"),
        (201, {}, "n_clusters=201 must be at most 200: each cluster needs a particle and a picture"),
        (
            5,
            dict(n_particles=4),
            "n_clusters=5 must be at most 4: each cluster needs a particle and a picture",
        ),
        (
            2,
            dict(transport="auto"),
            "n_clusters=2 needs histograms, but this transport sorts 300 particles and 200 pictures; "
            "use n_clusters=1, or transport='histogram'",
        ),
    ],
)
def test_numbers_that_cannot_be_are_refused(clusters, options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ImageFlow(**quick | options, n_clusters=clusters).fit(bars()[0])
