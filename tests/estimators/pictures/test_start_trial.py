"""Few color pictures start as mosaics or as noise, as a trial decides."""

import numpy as np
import pytest

from sliceflow import ImageFlow, ImageOptions
from sliceflow.estimators.pictures import fit, start_trial

SIDE = 16


def squares_and_crosses(n, rng):
    """Pictures of one object each: a square or a cross, of any color and place."""
    pictures = np.empty((n, SIDE, SIDE, 3), dtype=np.uint8)
    pictures[:] = rng.integers(180, 256, (n, 1, 1, 3))
    for i in range(n):
        size = rng.integers(5, 9)
        top, left = rng.integers(0, SIDE - size, 2)
        color = rng.integers(0, 160, 3)
        part = pictures[i, top : top + size, left : left + size]
        if i % 2:
            part[:] = color
        else:
            diagonal = np.arange(size)
            part[diagonal, diagonal] = color
            part[diagonal, diagonal[::-1]] = color
    return pictures


def circles_squares_and_crosses(n, rng):
    """Pictures of one large object each, of any color and place."""
    y, x = np.mgrid[:SIDE, :SIDE]
    pictures = np.empty((n, SIDE, SIDE, 3), dtype=np.uint8)
    for i in range(n):
        pictures[i] = rng.integers(150, 256, 3)
        radius = rng.integers(3, 5)
        center = rng.integers(radius, SIDE - radius, 2)
        down = np.abs(y - center[0])
        across = np.abs(x - center[1])
        in_box = (down <= radius) & (across <= radius)
        is_object = [
            down**2 + across**2 <= radius**2,
            in_box,
            in_box & ((down <= 1) | (across <= 1)),
        ]
        pictures[i][is_object[i % 3]] = rng.integers(0, 120, 3)
    return pictures


def plan_of_fit(monkeypatch, auc, **options):
    """The plan after a fit whose trials have this AUC, and how many ran."""
    rng = np.random.default_rng(0)
    trials = []

    def score(*args, **_):
        trials.append(args)
        return auc

    monkeypatch.setattr(start_trial, "two_sample_score", score)
    flow = ImageFlow(
        schedule="4[4]",
        steps_per_stage=1,
        n_particles=20,
        random_state=0,
        device="cpu",
        options=ImageOptions(**options),
    )
    pictures = squares_and_crosses(start_trial.MIN_PICTURES_OF_TRIAL, rng)
    return flow.fit(pictures).plan_, len(trials)


def test_mosaics_that_nobody_tells_from_pictures_stay(monkeypatch):
    plan, n_trials = plan_of_fit(monkeypatch, 0.6)
    assert plan.mosaic_size == 4
    assert n_trials == 2


def test_pictures_of_which_mosaics_are_collages_start_as_noise(monkeypatch):
    plan, n_trials = plan_of_fit(monkeypatch, 0.9)
    assert plan.mosaic_size == 0
    assert plan.options.start == "noise"
    assert n_trials == 2


@pytest.mark.parametrize("labeled", [False, True])
def test_noise_of_a_trial_is_planned_as_noise_of_the_user(rng, monkeypatch, labeled):
    pictures = squares_and_crosses(start_trial.MIN_PICTURES_OF_TRIAL, rng)
    labels = np.arange(len(pictures)) % 2 if labeled else None

    def flow(start):
        return ImageFlow(
            transport="histogram",
            mirror=True,
            random_state=0,
            device="cpu",
            options=ImageOptions(start=start),
        )

    planned_fit = flow("auto").prepare(pictures, labels).planned_fit
    assert planned_fit.plan.mosaic_size > 0
    monkeypatch.setattr(fit, "choose_start_by_trial", lambda _: "noise")
    assert planned_fit.tune().plan == flow("noise").plan(pictures, labels)


@pytest.mark.parametrize("rows_of_last_class", [100, 3])
def test_pictures_with_labels_are_tried_class_by_class(
    rng, monkeypatch, rows_of_last_class
):
    """So few would be sorted, but separate maps need histograms."""
    monkeypatch.setattr(start_trial, "two_sample_score", lambda *_, **__: 0.9)
    pictures = squares_and_crosses(start_trial.MIN_PICTURES_OF_TRIAL, rng)
    labels = np.arange(len(pictures)) < rows_of_last_class
    flow = ImageFlow(
        schedule="4[4]",
        steps_per_stage=1,
        n_particles=5_000,
        random_state=0,
        device="cpu",
    )
    planned_fit = flow.prepare(pictures, labels).planned_fit
    assert planned_fit.plan.method == "per class"
    assert start_trial.needs_trial(planned_fit.plan)
    events = []
    plan = planned_fit.tune([events.append]).plan
    assert plan.method == "per class"
    assert plan.start == "noise"
    assert events == []  # the steps of trials are none of the fit


def test_a_tuned_fit_tries_no_more(rng, monkeypatch):
    """`run` tried the start of a tuned fit again if it was mosaics."""
    pictures = squares_and_crosses(start_trial.MIN_PICTURES_OF_TRIAL, rng)
    monkeypatch.setattr(fit, "choose_start_by_trial", lambda _: "mosaics")
    tuned = ImageFlow(device="cpu").prepare(pictures).planned_fit.tune()
    monkeypatch.setattr(fit, "choose_start_by_trial", None)
    assert tuned.tune() is tuned
    assert tuned.plan.mosaic_size == 4


def test_a_start_of_the_user_is_not_tried(monkeypatch):
    plan, n_trials = plan_of_fit(monkeypatch, 0.9, start=2)
    assert plan.mosaic_size == 2
    assert n_trials == 0


def test_gray_pictures_with_three_channels_are_gray(rng):
    """Mosaics of gray digits, stored in color, had six times the FD of noise."""
    gray = rng.integers(0, 256, (start_trial.MIN_PICTURES_OF_TRIAL, SIDE, SIDE, 1))
    pictures = np.repeat(gray.astype(np.uint8), 3, axis=3)
    flow = ImageFlow(device="cpu")
    assert flow.plan(pictures).start == "noise"
    pictures[7, 3, 2, 1] ^= 1
    assert flow.plan(pictures).mosaic_size == 4


@pytest.mark.parametrize("side", [8, 15, 28])
def test_energies_are_those_of_the_frequencies(side):
    """A wave of one frequency has all its energy in one band."""
    across = np.arange(side)
    for k in range(1, side // 2):
        wave = np.cos(2 * np.pi * k * across / side)
        pictures = np.broadcast_to(wave, (1, 1, side, side))
        energies = np.expm1(start_trial.band_energies(pictures))
        assert np.count_nonzero(energies > 1e-9) == 1
    flat = np.full((1, 3, side, side), 7)
    assert (start_trial.band_energies(flat) == 0).all()


@pytest.mark.slow
def test_pictures_of_one_object_start_as_noise(rng):
    """Mosaics of circles, squares and crosses have other frequencies."""
    flow = ImageFlow(quality="draft", n_particles=200, random_state=0, device="cpu")
    flow.fit(circles_squares_and_crosses(400, rng))
    assert flow.plan_.start == "noise"
