"""Plans of pictures: stages, steps, classes, clusters, shrinkage, memory."""

import math

import numpy as np
import pytest
import torch

from models import EVEN_AND_ODD, PICTURES, pictures
from sliceflow import ImageFlow, ImageOptions
from sliceflow.engine.transports import (
    AutoTransport,
    HistogramTransport,
    SortedTransport,
)
from sliceflow.estimators.pictures.batching import resolve_batch_size
from sliceflow.estimators.pictures.choices import (
    resolve_amplifier,
    resolve_n_clusters,
    resolve_picture_transport,
    resolve_shrinkage,
)


@pytest.mark.parametrize(
    ("quality", "steps"), [("draft", 2), ("standard", 8), ("best", 25)]
)
def test_quality_is_more_steps_where_all_pictures_share_maps(quality, steps):
    images = np.full((400, 2, 2), 200, np.uint8)
    labels = np.arange(400) % 2
    settings = dict(
        schedule="1[1]",
        n_particles=500,
        quality=quality,
        transport="histogram",
        device="cpu",
    )
    flow = ImageFlow(**settings)
    assert flow.plan(images, labels).n_steps == steps
    assert flow.plan(images).n_steps == 6 * steps
    assert (
        ImageFlow(**settings, amplifier=10.0).plan(images, labels).n_steps == 6 * steps
    )
    assert ImageFlow(**settings, known="top").plan(images).n_steps == 6 * steps
    colors = np.full((400, 2, 2, 3), (200, 100, 50), np.uint8)  # they start as mosaics
    assert flow.plan(colors).n_steps == steps
    assert flow.set_params(steps_per_stage=7).plan(images).n_steps == 7


def test_stages_are_those_of_the_schedule():
    plan = ImageFlow(schedule="paper", steps_per_stage=1, device="cpu").plan(
        np.zeros((20, 28, 28), np.uint8)
    )
    assert len(plan.picture_stages) == 35
    flow = pictures().fit(PICTURES)
    assert list(dict.fromkeys(flow.history_["stage"])) == [
        stage.name for stage in flow.plan_.picture_stages
    ]
    for schedule, message in (
        ("1[1] 8x[3]", r"has the entry '8x\[3\]', which is not of the form"),
        ("1[1] 6[3]", "has resolution 6 but the pictures are 5×4"),
    ):
        with pytest.raises(ValueError, match=message):
            pictures(schedule=schedule).plan(PICTURES)


def test_a_forgotten_number_of_pixel_values_is_told():
    with pytest.warns(UserWarning, match="n_pixel_values=17"):
        ImageFlow().plan(PICTURES)


def test_the_default_number_of_particles_is_a_multiple_of_the_pictures():
    for n, mirror, m in (
        (30, False, 10_020),
        (6000, True, 12_000),
        (6000, False, 12_000),
    ):
        flow = ImageFlow(
            steps_per_stage=1, schedule="1[1]", mirror=mirror, device="cpu"
        )
        assert flow.plan(np.zeros((n, 2, 2), np.uint8)).n_particles == m


def test_a_cpu_has_fewer_particles_than_twice_the_pictures():
    images = np.zeros((30_000, 4, 4), np.uint8)
    images[:, 0, 0] = np.arange(30_000) % 251
    for quality, m in (("draft", 10_000), ("standard", 20_000), ("best", 40_000)):
        plan = ImageFlow(quality=quality, device="cpu").plan(images)
        assert plan.n_particles == m


def test_the_automatic_amplifier_holds_large_classes_apart():
    for transport, m, n, expected in (
        ("auto", 3000, 2001, math.inf),
        ("auto", 3000, 2000, 10.0),  # sorted
        ("auto", 9000, 199, 10.0),  # a class has less than 100 pictures
        ("histogram", 10, 200, math.inf),
        ("sorted", 90_000, 90_000, 10.0),
        (SortedTransport(), 90_000, 90_000, 10.0),
        (HistogramTransport(8), 10, 2000, math.inf),
        (AutoTransport(max_sorted=10**6), 9000, 2000, 10.0),
    ):
        assert resolve_amplifier("auto", transport, m, n, 2) == expected
    assert resolve_amplifier(3, "auto", 9000, 9000, 2) == 3.0


def test_histograms_that_classes_share_have_more_bins():
    for sharing, n_bins in (
        ("unconditional", 128),
        ("shared", 1024),
        ("separate", 128),
    ):
        assert resolve_picture_transport("histogram", sharing, 9).n_bins == n_bins


def test_there_are_as_many_clusters_as_pictures_allow():
    digit = (1, 28, 28)
    photograph = (3, 32, 32)
    tiny = (1, 8, 8)

    def chosen(transport, steps, m, n, shape, mirror=False):
        flow = ImageFlow(transport=transport, steps_per_stage=steps, mirror=mirror)
        parameters = flow._fit_planner().parameters
        return resolve_n_clusters(parameters, m, n, shape, torch.device("cuda"))

    for transport, steps, m, n, shape, expected in (
        ("auto", None, 10_000, 60_000, digit, 30),
        ("auto", 25, 10_000, 60_000, digit, 20),
        ("auto", 3, 10_000, 100_000, photograph, 25),
        ("auto", 25, 10_000, 10_000, photograph, 5),
        ("auto", 3, 10_000, 60_000, tiny, 4),
        ("auto", 1, 10_000, 1999, digit, 1),
        ("auto", 1, 12, 60_000, digit, 12),
        ("sorted", 1, 10_000, 60_000, digit, 1),
        (HistogramTransport(8), 1, 100, 60_000, digit, 30),
        (AutoTransport(max_sorted=10**6), 1, 10_000, 60_000, digit, 1),
    ):
        assert chosen(transport, steps, m, n, shape) == expected
    n_faces = 9_000  # and as many mirror images, which are not different
    assert chosen("auto", 25, 10_000, 2 * n_faces, photograph, mirror=True) == 4


def test_clusters_that_cannot_be_fitted_are_refused():
    message = "n_clusters=51 must be at most 50: each cluster needs a particle"
    with pytest.raises(ValueError, match=message):
        pictures(n_clusters=51, transport="histogram").plan(PICTURES)
    message = "n_clusters=2 needs histograms, but this transport"
    with pytest.raises(ValueError, match=message):
        pictures(n_clusters=2, transport="auto").plan(PICTURES)


def test_shrinkage_depends_on_steps_and_pictures():
    of_few_pictures = resolve_shrinkage("auto", 100, 50, has_mosaic_start=False)
    of_many_pictures = resolve_shrinkage("auto", 60_000, 50, has_mosaic_start=False)
    assert 0.05 < of_many_pictures < 0.1 < of_few_pictures <= 2
    assert resolve_shrinkage("auto", 100, 50, has_mosaic_start=True) == 8
    plan = pictures(transport="histogram", amplifier=math.inf).plan(
        PICTURES, EVEN_AND_ODD
    )
    assert plan.shrinkage == pytest.approx(2.5 * (2 / 25) ** 0.5)
    assert "κ = " in str(plan)
    off = pictures(options=ImageOptions(shrinkage=0)).plan(PICTURES)
    assert ["shrinkage", "off"] in [line.split() for line in str(off).splitlines()]


def test_memory_decides_how_many_columns_a_step_looks_at(monkeypatch):
    """The stage has 36 directions at most; a step looks at 4096 columns at least."""
    flow = pictures(
        transport=HistogramTransport(16, batch_size=50_000),
        n_particles=60_000,
        schedule="5[2]",
    )
    for memory, batch_size, of_gpu in (
        (10**12, 50_000, 50_000),
        (8 * 288 * 5000, 5000, 10_000),
        (1, 4096, 4096),
    ):
        monkeypatch.setattr(
            "sliceflow.estimators.pictures.batching.total_memory",
            lambda device, m=memory: m,
        )
        plan = flow.plan(PICTURES)
        assert plan.batch_size == batch_size
        assert resolve_batch_size(plan, torch.device("cuda")) == of_gpu


@pytest.mark.parametrize(
    ("flow", "images"),
    [
        (pictures(n_particles=10**12), PICTURES),
        (pictures(transport=HistogramTransport(10**9)), PICTURES),
        (
            ImageFlow(schedule="80[80]", n_particles=4, steps_per_stage=1),
            np.zeros((2, 80, 80, 3), np.uint8),
        ),
    ],
    ids=["particles", "bins", "rotations"],
)
def test_memory_is_counted_before_any_work(flow, images, monkeypatch):
    monkeypatch.setattr("sliceflow.devices.free_memory", lambda device: 1 << 34)
    with pytest.raises(
        MemoryError, match=r"GiB but cpu has 16\.0 GiB free; lower n_particles"
    ):
        flow.set_params(device="cpu").fit(images)


def test_memory_of_conditions_is_counted_before_they_are_made(monkeypatch):
    monkeypatch.setattr("sliceflow.devices.free_memory", lambda device: 1 << 34)
    flow = pictures(n_particles=10**12)
    with pytest.raises(MemoryError, match=r"conditions .* lower n_particles"):
        flow.fit(PICTURES, np.arange(len(PICTURES)) % 2)
