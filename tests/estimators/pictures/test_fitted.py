"""Fitted pictures: evolutions, completions by a flow, chunks."""

import math

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

import sliceflow
from models import COLORS, DIGIT_LABELS, IMAGES, PICTURES, QUICK, pictures
from sliceflow import ImageFlow, ImageOptions
from sliceflow.engine.random import Seed
from sliceflow.engine.transports import HistogramTransport
from sliceflow.errors import ParameterError
from sliceflow.estimators.pictures.flow_builder import PictureFlowBuilder
from sliceflow.estimators.pictures.known_parts import KNOWN_PARTS
from sliceflow.estimators.pictures.layout import Layout


@pytest.fixture(scope="module")
def top():
    return ImageFlow(**QUICK, known="top").fit(IMAGES)


# Precision


def precision_on_a_gpu(flow):
    """The type in which a GPU would draw samples of the first stage."""
    plan = flow._fitted_model().plan
    builder = PictureFlowBuilder(plan, Seed(0), torch.device("cuda"))
    return builder.frame_kind(builder.stage_contexts[0]).precision


def test_another_precision_is_that_of_samples_alone(tmp_path):
    flow = ImageFlow(**QUICK, options=ImageOptions(precision="bfloat16"))
    with pytest.raises(NotFittedError):
        flow.set_sample_precision("float16")
    flow.fit(IMAGES)
    assert precision_on_a_gpu(flow) == torch.bfloat16
    particles = flow.particles_.copy()
    samples = flow.sample(5, random_state=0)

    assert flow.set_sample_precision("float32") is flow
    assert precision_on_a_gpu(flow) == torch.float32
    assert flow.plan_.options.precision == "float32"
    assert flow.options.precision == "bfloat16"
    assert np.array_equal(flow.particles_, particles)
    # A CPU has one precision.
    assert np.array_equal(flow.sample(5, random_state=0), samples)

    flow.save(tmp_path / "model")
    loaded = sliceflow.load(tmp_path / "model", device="cpu")
    assert precision_on_a_gpu(loaded) == torch.float32
    other = sliceflow.load(tmp_path / "model", device="cpu", precision="float16")
    assert precision_on_a_gpu(other) == torch.float16
    assert other.options.precision == "bfloat16"

    assert precision_on_a_gpu(flow.refit()) == torch.bfloat16


def test_a_precision_that_does_not_exist_changes_nothing():
    flow = ImageFlow(**QUICK).fit(IMAGES)
    with pytest.raises(ParameterError, match="precision='double' must be 'auto'"):
        flow.set_sample_precision("double")
    assert flow.plan_.options.precision == "auto"


# Evolutions


@pytest.mark.parametrize("amplifier", [10.0, math.inf])
def test_an_evolution_goes_from_noise_to_the_samples(amplifier):
    flow = ImageFlow(**QUICK, amplifier=amplifier, transport="histogram").fit(
        IMAGES, DIGIT_LABELS
    )
    labels = [3, 1, 4, 1, 5]
    frames = flow.evolution(5, y=labels, random_state=2, n_snapshots=5)
    assert frames.shape == (5, 5, 8, 8)
    assert frames.dtype == np.uint8
    assert np.array_equal(frames[-1], flow.sample(5, y=labels, random_state=2))
    assert (np.abs(np.diff(frames.astype(int), axis=0)).mean((1, 2, 3)) > 0).all()
    # There are no more frames than steps.
    assert len(flow.evolution(1, n_snapshots=1000)) == flow.n_iter_ + 1


def test_evolutions_keep_layouts_and_make_sense(fitted, top):
    for images in (COLORS, torch.from_numpy(COLORS)):
        flow = pictures(schedule="1[1] 4[2]", n_pixel_values=256).fit(images)
        frames = flow.evolution(2, random_state=0, n_snapshots=3)
        assert type(frames) is type(images)
        assert frames.shape == (3, 2, 4, 4, 3)
    frames = top.evolution(2, random_state=1, n_snapshots=4, X=IMAGES[:3])
    assert frames.shape == (4, 3, 2, 8, 8)
    assert (frames[-1] == top.inpaint(IMAGES[:3], n=2, random_state=1)).all()
    # What is known does not move.
    assert (frames[..., :4, :] == IMAGES[None, :3, None, :4]).all()


def test_evolutions_that_make_no_sense_are_refused(fitted, top):
    gray = fitted("gray")
    for call, message in (
        (
            lambda: gray.evolution(n_snapshots=1),
            "n_snapshots=1 must be an int of at least 2",
        ),
        (lambda: gray.evolution(X=PICTURES[:3]), "was fitted without known="),
        (
            lambda: top.evolution(),
            r"completes pictures \(known=…\); call inpaint\(X\)",
        ),
        (lambda: top.evolution(y=3, X=IMAGES[:3]), "y was given"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


# Completions


@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize(
    "part", ["left", "center", np.arange(16).reshape(4, 4) % 3 > 0], ids=str
)
def test_known_pixels_come_back_bit_for_bit(part, dtype, color):
    images = COLORS
    if not color:
        images = COLORS[..., 0]
    if dtype == "float32":
        images = (images / 255).astype(dtype)
    flow = pictures(schedule="1[1] 4[3]", n_pixel_values=256, known=part).fit(
        images[:30]
    )
    done = flow.inpaint(images[30:], n=3, random_state=0)
    assert done.dtype == images.dtype
    assert done.shape == (10, 3, *images.shape[1:])
    known = KNOWN_PARTS[part](4, 4) if isinstance(part, str) else part
    given = images[30:, None].repeat(3, axis=1)
    assert np.array_equal(done[:, :, known], given[:, :, known])
    assert not np.array_equal(done[:, :, ~known], given[:, :, ~known])
    assert not np.array_equal(done[:, 0], done[:, 1])


def test_hidden_pixels_are_ignored_and_may_be_masked(top):
    hidden = np.ma.masked_array(IMAGES[:5].copy(), mask=np.zeros((5, 8, 8), bool))
    hidden[:, 4:] = np.ma.masked
    black = IMAGES[:5].copy()
    black[:, 4:] = 0
    done = top.inpaint(IMAGES[:5], n=2, random_state=0)
    for given in (hidden, black):
        assert np.array_equal(top.inpaint(given, n=2, random_state=0), done)
    with pytest.raises(ValueError, match="is masked at"):
        top.inpaint(np.ma.masked_array(IMAGES[:5], mask=~hidden.mask))


def test_particles_have_the_known_pixels_of_the_pictures(top):

    def sorted_top_halves(x):
        return sorted(x[:, :4].reshape(300, -1).tolist())

    in_batches = HistogramTransport(32, batch_size=100)
    batched = ImageFlow(**QUICK, known="top", transport=in_batches).fit(IMAGES)
    for flow in (top, batched):
        assert sorted_top_halves(flow.particles_) == sorted_top_halves(IMAGES)


def test_everything_known_and_nothing_known():
    everything = ImageFlow(**QUICK, known=np.ones((8, 8), bool)).fit(IMAGES)
    assert np.array_equal(
        everything.inpaint(IMAGES[:9], n=2), IMAGES[:9, None].repeat(2, axis=1)
    )
    plain = ImageFlow(**QUICK).fit(IMAGES)
    nothing = ImageFlow(**QUICK, known=np.zeros((8, 8), bool)).fit(IMAGES)
    assert np.array_equal(nothing.particles_, plain.particles_)
    done = nothing.inpaint(IMAGES[:5], random_state=0)[:, 0]
    assert np.array_equal(done, plain.sample(5, random_state=0))


def test_the_known_half_tells_about_the_other():
    left = np.random.default_rng(0).integers(0, 2, (400, 1, 1)) * 15
    images = np.broadcast_to(left, (400, 4, 4)).astype(np.uint8)
    settings = dict(
        n_pixel_values=16,
        steps_per_stage=20,
        n_particles=600,
        random_state=0,
        device="cpu",
    )
    flow = ImageFlow(**settings, known="left").fit(images[:300])
    done = flow.inpaint(images[300:], random_state=0)[:, 0]
    is_light = done[:, :, 2:].mean((1, 2)) > 7.5
    should_be_light = images[300:, 0, 0] > 7
    assert (is_light == should_be_light).mean() > 0.9


@pytest.mark.parametrize("dtype", ["uint16", "float16", "bfloat16"])
def test_tensors_of_any_type_are_completed(dtype):
    kind = getattr(torch, dtype)
    images = torch.from_numpy(COLORS).to(kind)
    if kind.is_floating_point:
        images = (images / 255).requires_grad_()
    flow = pictures(schedule="1[1] 4[3]", n_pixel_values=256, known="top").fit(images)
    done = flow.inpaint(images[:4], n=2)
    assert done.dtype == (torch.float32 if dtype == "bfloat16" else kind)
    given = images[:4, :2].detach().to(done.dtype)
    assert np.array_equal(done[:, 1, :2].numpy(), given.numpy())


def test_pictures_are_completed_from_any_mask_if_they_are_kept(tmp_path, rng):
    labels = np.array(["falling", "rising"] * 55)
    slope = np.linspace(-1, 1, 4) * np.where(labels == "rising", 1, -1)[:, None]
    shade = 128 + 60 * slope[:, None, :, None] + 20 * rng.normal(size=(110, 1, 1, 3))
    images = (shade + 3 * rng.normal(size=(110, 4, 4, 3))).clip(0, 255).astype(np.uint8)
    small = dict(schedule="1[1] 4[3]", n_pixel_values=256)
    # Mosaics keep pictures.
    color = pictures(**small, transport="histogram", amplifier=math.inf)
    gray = pictures(**small, save_rows=True)
    middle = np.zeros((4, 4), bool)
    middle[:, 2] = True
    test_labels = labels[100:]
    for flow, given in ((color, images), (gray, images[..., 0])):
        test = given[100:]
        done = flow.fit(given[:100], labels[:100]).inpaint(
            test, middle, n=2, y=test_labels, random_state=0
        )
        assert done.shape == (10, 2, *test.shape[1:])
        assert (done[:, :, middle] == test[:, None, middle]).all()
        wide = done.reshape(10, 2, 4, 4, -1).astype(float)
        rises = (wide[..., -1, :] - wide[..., 0, :]).mean((2, 3)) > 0
        assert (rises == (test_labels == "rising")[:, None]).mean() > 0.9
        flow.save(tmp_path / "model")
        loaded = sliceflow.load(tmp_path / "model", device="cpu")
        assert np.array_equal(
            loaded.inpaint(test, middle, n=2, y=test_labels, random_state=0), done
        )
        for y, message in (
            ("flat", "unknown label 'flat'"),
            (test_labels[:3], "y has 3 conditions for 2 pic"),
        ):
            with pytest.raises(ValueError, match=message):
                flow.inpaint(test[:2], "left", y=y)


def test_what_cannot_be_completed_is_refused(fitted, top):
    gray = fitted("gray")
    color = fitted("color")
    for call, message in (
        (
            lambda: gray.inpaint(PICTURES[:2]),
            "pass the known part of the pictures",
        ),
        (
            lambda: gray.inpaint(PICTURES[:2], "top"),
            "which completing any part needs; fit it with save_rows=True",
        ),
        (lambda: color.inpaint(COLORS[:2], "middle"), "known='middle' is not one of"),
        (
            lambda: color.inpaint(COLORS[:2], "left", y=1),
            "was fitted without y; omit y",
        ),
        (
            lambda: top.inpaint(IMAGES[:2], "left"),
            "was fitted with known=, and without labels; omit known",
        ),
        (
            lambda: top.inpaint(IMAGES[:2], y=1),
            "was fitted with known=, and without labels; omit y",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_no_knots_keep_no_model():
    settings = QUICK | {"n_particles": 2000}  # enough for a model
    with_model = ImageFlow(**settings, options=ImageOptions(n_knots=16)).fit(IMAGES)
    flow = ImageFlow(**settings, options=ImageOptions(n_knots=0)).fit(IMAGES)
    assert np.array_equal(flow.particles_, with_model.particles_)
    for call in (flow.sample, flow.evolution, lambda: flow.score(IMAGES)):
        with pytest.raises(
            ValueError, match="fitted with n_knots=0, which keeps no maps"
        ):
            call()


def test_completions_and_evolutions_stream_in_chunks(top, monkeypatch):
    """A device never holds more than a chunk."""

    def completions():
        return top.inpaint(IMAGES[:9], n=5, random_state=0).astype(int)

    def frames():
        return top.evolution(5, X=IMAGES[:9], random_state=0).astype(int)

    decode = Layout.decode
    widths = []

    def recording_decode(layout, x):
        widths.append(x.shape[1])
        return decode(layout, x)

    all_completions = completions()
    all_frames = frames()
    monkeypatch.setattr("sliceflow.estimators.pictures.fitted.SAMPLES_PER_PASS", 7)
    monkeypatch.setattr(Layout, "decode", recording_decode)
    # Other widths round products otherwise.
    assert np.abs(completions() - all_completions).max() <= 1
    assert np.abs(frames() - all_frames).max() <= 1
    assert max(widths) <= 7
