"""Memory that cannot be had is refused at once, before any work, with a `MemoryError`."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sliceflow import ImageFlow, PictureOptions, SlicedWassersteinFlow, VectorOptions
from sliceflow.engine import frames, transports
from sliceflow.engine.frames import Axis, Orthogonal, Random, frame_bytes, rotation_bytes
from sliceflow.engine.schedule import Stage
from sliceflow.spaces.vectors.plan import make_plan
from sliceflow.spaces.vectors.units import Units

X = np.random.default_rng(0).normal(size=(20, 3))
PICTURES = np.random.default_rng(0).integers(0, 17, (30, 8, 8)).astype(np.uint8)
VECTORS = dict(n_particles=40, n_steps=2, random_state=0, device="cpu")
QUICK = dict(
    n_particles=40, schedule="1[1] 8[3]", quality=1, n_pixel_values=17, random_state=0, device="cpu"
)


@pytest.fixture(autouse=True)
def sixteen_gibibytes(monkeypatch):
    """Free on every machine; and nothing is drawn, which would be work."""
    monkeypatch.setattr("sliceflow.devices.free_memory", lambda device: 1 << 34)


def refused(*words):
    return pytest.raises(MemoryError, match=".*".join((*words, "GiB but cpu has 16.0 GiB free")))


def test_rotations_of_many_columns_are_counted():
    wide = np.zeros((2, 40_000), np.float32)
    wide[0] = 1
    with refused("n_particles=10 with 2 rows of 40000 columns"):
        SlicedWassersteinFlow(10, 1, device="cpu", random_state=0).fit(wide)


@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("d", [17, 600, 6000, 40_000])
def test_a_rotation_takes_its_pool_and_more(d, itemsize):
    """The eight of the pool are there while one more is made of two."""
    least = (8 * 8 + 4 * 8 + itemsize) * d * d
    most = least + 2 * 32 * (1 << 22) + 3 * itemsize * d * d + 40 * d * d
    assert least <= rotation_bytes(d, itemsize) <= most


def test_only_frames_that_are_drawn_take_memory():
    assert frame_bytes(Axis(), 10**6, 3, 8) == 0
    assert frame_bytes(Orthogonal(), 10, 0, 8) == 0
    assert frame_bytes(Random(10_000), 300, 2, 4) >= 10_000 * 302 * (8 + 4)


def test_many_random_directions_are_counted():
    with refused("10000000 directions"):
        SlicedWassersteinFlow(10, 1, frame=frames.Random(10**7), device="cpu").fit(np.eye(200))


@pytest.mark.parametrize("transport", [transports.Histogram(10**9), transports.Auto(0, 10**9)])
def test_a_billion_bins(transport):
    with refused("n_particles=40"):
        SlicedWassersteinFlow(**VECTORS, transport=transport).fit(X)
    with refused("n_particles=40"):
        ImageFlow(**QUICK, transport=transport).fit(PICTURES)


def test_bins_that_sorted_particles_have_not_are_not_counted():
    flow = SlicedWassersteinFlow(**VECTORS, transport=transports.Auto(n_bins=10**9))
    assert flow.fit(X).particles_.shape == (40, 3)


@pytest.mark.parametrize("last", [None, 1])
def test_more_particles_than_memory_before_any_row_is_counted(last):
    for flow, rows in (
        (SlicedWassersteinFlow(**VECTORS), X),
        (ImageFlow(**QUICK), PICTURES),
    ):
        flow.partial_fit(rows)
        before, n = flow.particles_, flow._online.ledger.sizes()
        flow.set_params(n_particles=10**12)
        with refused("n_particles=1000000000000"):
            flow.partial_fit(rows)
        with refused("n_particles=1000000000000"):
            flow.refresh(last)
        assert flow._online.ledger.sizes() == n
        assert flow.particles_ is before
        flow.partial_fit(rows, refresh=False)  # they are only counted


def test_the_first_partial_fit_is_refused_too():
    flow = SlicedWassersteinFlow(**{**VECTORS, "n_particles": 10**12})
    with refused("n_particles=1000000000000"):
        flow.partial_fit(X)
    assert flow._online is None


@pytest.mark.parametrize("y", [None, np.arange(20) % 2, X[:, :1]])
def test_more_samples_of_vectors_than_memory(y):
    flow = SlicedWassersteinFlow(**VECTORS).fit(X, y)
    with refused("n_samples=100000000000 of 3 columns need"):
        flow.sample(10**11)
    with refused("n_samples=100000000000 of 3 columns need"):
        flow.sample(10**11, y=None if y is None else y[0])


def test_samples_of_a_model_whose_rotations_do_not_fit():
    """As a small file can ask for."""
    flow = SlicedWassersteinFlow(10, 0, options=VectorOptions(n_axis_steps=1), device="cpu").fit(
        np.eye(3)
    )
    (part,) = flow._fitted.parts
    part.flow.schedule.insert(0, Stage("flow", Orthogonal(), 1))
    wide = replace(part, units=Units.linear(np.zeros(40_000), np.ones(40_000)))
    flow._fitted = replace(flow._fitted, parts=(wide,))
    with refused("n_samples=1 of 40000 columns"):
        flow.sample(1)


@pytest.mark.parametrize("labels", [None, np.arange(30) % 2])
def test_more_pictures_than_memory(labels):
    flow = ImageFlow(**QUICK).fit(PICTURES, labels)
    with refused("100000000000 pictures of 64 values need"):
        flow.sample(10**11)


def test_more_completed_pictures_than_memory():
    flow = ImageFlow(**QUICK, observed="top").fit(PICTURES)
    with refused("300000000000 pictures of 64 values need"):
        flow.inpaint(PICTURES[:3], 10**11)


def test_large_tiles_take_rotations():
    """The rotations of 80 × 80 pixels in three colours: 19,200 values."""
    pictures = np.zeros((2, 80, 80, 3), np.uint8)
    with refused("pictures of 19200 values"):
        ImageFlow(
            schedule="80[80]", n_particles=4, quality=1, options=PictureOptions(n_knots=0), device="cpu"
        ).fit(pictures)


def test_an_estimate_grows_with_all_that_a_fit_has(monkeypatch):
    monkeypatch.setattr("sliceflow.devices.free_memory", lambda device: None)

    def estimate(n=1000, d=50, m=10_000, transport=None, **parameters):
        flow = SlicedWassersteinFlow(**parameters, transport=transport or "auto")
        return make_plan(
            flow._parameters(),
            shape=(n, d),
            dtype=torch.float64,
            n_particles=m,
            condition=None,
            codes=None,
            device=torch.device("cpu"),
        ).nbytes

    least = estimate()
    for more in (
        dict(n=100_000), dict(d=500), dict(m=100_000), dict(n_steps=300),
        dict(options=VectorOptions(n_knots=1024)), dict(options=VectorOptions(n_axis_steps=40)),
        dict(transport=transports.Histogram(1 << 20)), dict(frame=frames.Random(50_000)),
    ):  # fmt: skip
        assert estimate(**more) > least, more
    assert estimate(n_steps=0, options=VectorOptions(n_axis_steps=0)) < least
    rotations = estimate(d=6000, m=100, n_steps=5, options=VectorOptions(n_knots=8))
    assert rotations > 36e6 * 8 * 12  # twelve of them
