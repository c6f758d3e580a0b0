"""`ImageFlow`: pictures out as they came in, reproducible, faithful to labels and observed pixels."""

import gc
import math
import re
import weakref
from collections import Counter
from dataclasses import fields

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC

from sliceflow import ImageFlow, PictureOptions, devices, load
from sliceflow.engine.random import Seed
from sliceflow.engine.transports import Histogram, Sorted
from sliceflow.errors import ParameterError
from sliceflow.metrics import nn_ratio
from sliceflow.spaces.pictures.layout import MASKS, Layout
from sliceflow.spaces.pictures.plan import choose_transport

quick = dict(n_pixel_values=17, quality=2, n_particles=300, random_state=0, device="cpu")
SHORT = "1[1] 3[3] 8[8,3]"


@pytest.fixture(scope="module")
def digits():
    images, target = load_digits(return_X_y=True)
    return images.reshape(-1, 8, 8).astype(np.uint8)[:400], target[:400]


@pytest.fixture(scope="module")
def labelled(digits):
    return ImageFlow(**quick).fit(*digits)


def colour(n=60, h=6, w=5, dtype="uint8"):
    numbers = np.random.default_rng(0).integers(0, 256, (n, h, w, 3))
    return (numbers / 255 if dtype.startswith("float") else numbers).astype(dtype)


def refused(message, kind=ValueError):
    return pytest.raises(kind, match=f"^{re.escape(message)}$")


def setting(name, value):
    """One parameter, or one of the options."""
    if name in {field.name for field in fields(PictureOptions)}:
        return {"options": PictureOptions(**{name: value})}
    return {name: value}


# What comes out


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32", "float64"])
@pytest.mark.parametrize("layout", ["grey", "one channel", "colour", "tensor"])
def test_samples_have_the_layout_and_type_of_the_data(dtype, layout):
    images = colour(dtype=dtype)
    if layout == "grey":
        images = images[..., 0]
    elif layout == "one channel":
        images = images[..., :1]
    elif layout == "tensor":
        images = torch.from_numpy(images)
    flow = ImageFlow("1[1] 6[3]", 70, 2, random_state=0, device="cpu").fit(images)
    for out in (flow.particles_, flow.sample(70)):
        assert type(out) is type(images)
        assert out.dtype == images.dtype
        assert out.shape == (70, *images.shape[1:])
        assert out.min() >= 0
        assert out.max() <= (1 if dtype.startswith("float") else 255)


def test_integer_samples_keep_to_the_levels(labelled):
    assert labelled.particles_.max() <= 16
    assert labelled.sample(300, random_state=0).max() <= 16


def test_the_same_seed_gives_the_same_bits(digits):
    images, labels = digits
    a, b, other = (ImageFlow(**{**quick, "random_state": s}).fit(images, labels) for s in (0, 0, 1))
    assert np.array_equal(a.particles_, b.particles_)
    assert np.array_equal(a.particle_conditions_, b.particle_conditions_)
    assert a.history_["distance"] == b.history_["distance"]
    assert not np.array_equal(a.particles_, other.particles_)
    ours, again, others = (a.sample(20, random_state=s) for s in (5, 5, 6))
    assert np.array_equal(ours, again)
    assert not np.array_equal(ours, others)
    assert np.array_equal(ours, b.sample(20, random_state=5))


def test_fitting_changes_neither_the_parameters_nor_the_data(digits):
    images, labels = digits
    before = images.copy(), labels.copy()
    flow = ImageFlow(**quick)
    parameters = flow.get_params()
    assert flow.fit(images, labels) is flow
    assert flow.get_params() == parameters
    assert clone(flow).get_params() == parameters
    assert np.array_equal(images, before[0])
    assert np.array_equal(labels, before[1])


def test_fitting_again_without_labels_forgets_them(digits):
    images, labels = digits
    flow = ImageFlow(**quick, schedule=SHORT).fit(images, labels).fit(images)
    assert flow.particle_conditions_ is None
    assert not hasattr(flow, "classes_")
    assert np.array_equal(flow.particles_, ImageFlow(**quick, schedule=SHORT).fit(images).particles_)


def test_samples_do_not_depend_on_how_many_there_are(digits):
    flow = ImageFlow(**quick, schedule=SHORT).fit(digits[0])
    few, many = (flow.sample(n, random_state=3).astype(int) for n in (4, 50))
    assert np.abs(few - many[:4]).max() <= 1  # products of other shapes round otherwise


@pytest.mark.parametrize("amplifier", [10.0, math.inf])
def test_an_evolution_goes_from_noise_to_the_samples(digits, amplifier, monkeypatch):
    flow = ImageFlow(**quick, amplifier=amplifier, transport="histogram").fit(*digits)
    labels = [3, 1, 4, 1, 5]
    way = flow.evolution(5, labels, random_state=2, n_frames=9)
    assert way.shape == (9, 5, 8, 8)
    assert way.dtype == np.uint8
    assert np.array_equal(way[-1], flow.sample(5, labels, random_state=2))
    gap = np.abs(np.diff(way.astype(int), axis=0)).mean((1, 2, 3))
    assert (gap > 0).all()  # something moves in every part
    far = np.abs(way[:-1].astype(int) - way[-1]).mean((1, 2, 3))
    assert far[0] > 3 * far[-1]
    monkeypatch.setattr("sliceflow.spaces.pictures.fitted._CHUNK", 2)
    chunks = flow.evolution(5, labels, random_state=2, n_frames=9)
    assert np.abs(chunks.astype(int) - way).mean() < 0.1  # products of other shapes round otherwise
    assert len(flow.evolution(1, n_frames=1000)) == flow.n_iter_ + 1  # no more than there are steps


def test_the_evolution_of_colours_and_tensors_keeps_their_layout():
    pictures = colour()
    for given in (pictures, torch.from_numpy(pictures)):
        flow = ImageFlow(**quick | {"n_pixel_values": 256}, schedule="1[1] 6[3]").fit(given)
        way = flow.evolution(2, random_state=0, n_frames=3)
        assert type(way) is type(given)
        assert way.shape == (3, 2, 6, 5, 3)


def test_an_evolution_that_makes_no_sense_is_refused(labelled, digits):
    with pytest.raises(ParameterError, match="n_frames=1"):
        labelled.evolution(n_frames=1)
    with pytest.raises(ValueError, match="was fitted without observed="):
        labelled.evolution(X=digits[0][:3])
    flow = ImageFlow(**quick, schedule=SHORT, observed="top").fit(digits[0])
    with pytest.raises(ValueError, match="or evolution"):
        flow.evolution()
    with pytest.raises(ValueError, match="y was given"):
        flow.evolution(y=3, X=digits[0][:3])


@pytest.mark.parametrize("tensor", [False, True])
def test_the_evolution_of_completions_ends_with_them(digits, tensor):
    images = torch.from_numpy(digits[0]) if tensor else digits[0]
    flow = ImageFlow(**quick, schedule=SHORT, observed="top").fit(images)
    way = flow.evolution(2, random_state=1, n_frames=4, X=images[:3])
    assert way.shape == (4, 3, 2, 8, 8)
    assert type(way) is type(images)
    assert (way[-1] == flow.inpaint(images[:3], 2, random_state=1)).all()
    assert (way[..., :4, :] == images[None, :3, None, :4]).all()  # what is known does not move
    assert (way[0] != way[-1]).any()


def test_pictures_of_one_pixel_and_single_rows_can_be_fitted():
    rng = np.random.default_rng(0)
    for shape in ((50, 1, 1), (50, 1, 7), (50, 5, 9), (1, 4, 4)):
        images = rng.integers(0, 17, shape).astype(np.uint8)
        flow = ImageFlow(**quick).fit(images)
        assert flow.sample(3).shape == (3, *shape[1:])


def test_a_single_picture_is_copied():
    image = np.random.default_rng(0).integers(0, 17, (1, 4, 4)).astype(np.uint8)
    flow = ImageFlow(**{**quick, "quality": 10}, options=PictureOptions(taper=0, dequantize=False)).fit(
        image
    )
    assert np.array_equal(flow.particles_, np.repeat(image, 300, axis=0))


def test_mirror_images_are_fitted_too():
    """All ink on the left: with mirror images half of the samples have it on the right."""
    images = np.zeros((100, 6, 6), np.uint8)
    images[:, :, :2] = 16
    flow = ImageFlow(**{**quick, "quality": 10}, mirror=True).fit(images, np.arange(100) % 2)
    right = flow.particles_[:, :, 4:].mean((1, 2)) > 8
    assert 0.4 < right.mean() < 0.6
    assert Counter(flow.particle_conditions_.tolist()) == {0: 150, 1: 150}


def test_the_default_number_of_particles_is_a_multiple_of_the_pictures():
    images = np.zeros((30, 2, 2), np.uint8)
    flow = ImageFlow(quality=1, schedule="1[1]", random_state=0).fit(images)
    assert len(flow.particles_) == 30 * 334


def test_mirror_images_count_as_pictures_for_the_default_number_of_particles():
    images = np.zeros((6000, 2, 2), np.uint8)
    flow = ImageFlow(
        quality=1, schedule="1[1]", random_state=0, mirror=True, options=PictureOptions(n_knots=0)
    ).fit(images)
    assert len(flow.particles_) == 12_000


def test_clipping_keeps_particles_in_the_range_of_pixels(digits):
    beyond = []
    for clip in (True, False):
        flow = ImageFlow(
            **quick, schedule=SHORT, options=PictureOptions(start_noise=1.0, clip=clip)
        ).fit(digits[0])
        beyond.append(float(flow._fitted.moved(Seed(0), slice(0, 200))[-1].abs().max()))
    assert beyond[0] <= 1 < beyond[1]


# Stages and listeners


def test_the_history_covers_all_stages(labelled):
    names = [f"{level.h}×{level.w}[{level.patch}]" for level in labelled.schedule_]
    steps = [level.n_steps for level in labelled.schedule_]
    assert steps == [6] * 6 + [2] * 4 + [1, 1]  # coarse levels have three times as many
    assert labelled.history_["stage"] == [
        name for name, n in zip(names, steps, strict=True) for _ in range(n)
    ]
    assert labelled.history_["step"] == [k for n in steps for k in range(n)]
    assert labelled.n_iter_ == 46
    assert all(d >= 0 for d in labelled.history_["distance"])
    assert labelled.history_["seconds"] == sorted(labelled.history_["seconds"])


def test_presets_and_text_are_schedules():
    images = np.zeros((20, 28, 28), np.uint8)
    flow = ImageFlow("mnist", 20, 1, random_state=0, options=PictureOptions(n_knots=0)).fit(images)
    assert len(flow.schedule_) == 35
    flow = ImageFlow("1[1] 8x[3]", 20, 1)
    with pytest.raises(ValueError, match=r"^schedule entry '8x\[3\]' is not of the form"):
        flow.fit(images)
    with pytest.raises(ValueError, match=r"^schedule has resolution 32 but the pictures are 28×28"):
        ImageFlow("cifar10", 20, 1).fit(images)


@pytest.mark.parametrize(("quality", "steps"), [("draft", 3), ("standard", 8), ("best", 25), (7, 7)])
def test_quality_is_more_steps_where_all_pictures_share_maps(quality, steps):
    images, joint = np.zeros((400, 2, 2), np.uint8), steps if quality == 7 else 6 * steps
    flow = ImageFlow("1[1]", 500, quality, transport="histogram")
    assert flow.plan(images, np.arange(400) % 2).n_steps == steps
    assert flow.plan(images).n_steps == joint
    assert flow.set_params(amplifier=10.0).plan(images, np.arange(400) % 2).n_steps == joint
    assert flow.set_params(observed="top").plan(images).n_steps == joint
    assert [s.n_steps for s in flow.stages(2, 2)] == [joint]
    flow.set_params(observed=None)
    assert [s.n_steps for s in flow.stages(2, 2)] == [steps]
    assert [s.n_steps for s in flow.stages(2, 2, joint=True)] == [joint]
    colours = np.zeros((400, 2, 2, 3), np.uint8)
    assert flow.set_params(amplifier="auto").plan(colours).n_steps == steps  # mosaics


@pytest.mark.parametrize(("quality", "steps"), [("draft", 18), ("standard", 48), ("best", 150), (7, 7)])
def test_quality_is_the_number_of_steps(quality, steps):
    images = np.zeros((5, 2, 2), np.uint8)
    flow = ImageFlow("1[1]", 5, quality, random_state=0, options=PictureOptions(shrinkage=0)).fit(
        images
    )
    assert flow.n_iter_ == flow.plan_.n_steps == steps
    assert ImageFlow("1[1]", 5, quality, random_state=0).fit(images).n_iter_ <= min(steps, 10)


def test_listeners_hear_every_step_and_can_end_a_stage(digits):
    heard = []

    def first_steps_only(event):
        heard.append((event.stage_index, event.step, event.steps_total))
        return event.stage_index == 1

    flow = ImageFlow(**{**quick, "quality": 3}, schedule=SHORT).fit(
        digits[0], listeners=(first_steps_only,)
    )
    stages = [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1), (2, 2), (3, 0), (3, 1), (3, 2)]
    assert [event[:2] for event in heard] == stages
    assert flow.n_iter_ == 10
    assert flow.sample(2).shape == (2, 8, 8)


# Labels


def test_labels_can_be_strings(digits):
    images, target = digits
    names = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
    flow = ImageFlow(**quick, schedule=SHORT).fit(images, names[target])
    assert flow.classes_.tolist() == sorted(names)
    assert set(flow.particle_conditions_) == set(names)
    assert flow.sample(4, y="three").shape == (4, 8, 8)
    assert flow.sample(2, y=["one", "two"]).shape == (2, 8, 8)


def test_particles_carry_the_labels_in_the_datas_proportions(digits):
    images, target = digits
    flow = ImageFlow(**{**quick, "n_particles": 400}, schedule=SHORT).fit(images, target)
    assert Counter(flow.particle_conditions_.tolist()) == Counter(target.tolist())
    skewed = np.where(np.arange(400) < 100, "a", "b")
    flow = ImageFlow(**quick, schedule=SHORT).fit(images, skewed)
    assert Counter(flow.particle_conditions_.tolist()) == {"a": 75, "b": 225}


def test_labels_of_samples_are_one_or_many_or_weights_or_the_datas_own(labelled):
    assert labelled.sample(5, y=3).shape == (5, 8, 8)
    assert labelled.sample(3, y=[1, 2, 3]).shape == (3, 8, 8)
    assert labelled.sample(3, y=np.full((3, 10), 0.1)).shape == (3, 8, 8)
    assert labelled.sample(3).shape == (3, 8, 8)
    one, many = labelled.sample(3, 7, random_state=0), labelled.sample(3, [7] * 3, random_state=0)
    assert np.array_equal(one, many)
    one_hot = labelled.sample(3, np.eye(10)[[7] * 3], random_state=0)
    assert np.abs(one.astype(int) - one_hot).max() <= 1


def test_unknown_labels_are_refused_with_the_known_ones(labelled):
    known = "the model knows 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"
    with refused(f"unknown label 11; {known}"):
        labelled.sample(2, y=11)
    with refused(f"unknown labels 'x', 12; {known}"):
        labelled.sample(3, y=["x", 12, 3])


def test_as_many_labels_as_samples_are_needed(labelled):
    message = "y has 2 labels but n_samples=3; pass one label, or one per sample"
    with refused(message):
        labelled.sample(3, y=[1, 2])


def test_labels_of_a_model_without_are_refused(digits):
    flow = ImageFlow(**quick, schedule="1[1]").fit(digits[0])
    with refused("y was given but the model was fitted without labels; omit y"):
        flow.sample(3, y=1)


def test_labels_of_another_length_are_refused(digits):
    with pytest.raises(ValueError, match=r"400 .* 399"):
        ImageFlow(**quick).fit(digits[0], digits[1][:-1])


def test_labels_are_one_per_picture(digits):
    with refused("there are 400 pictures but 1 labels; pass one label per picture"):
        ImageFlow(**quick).fit(digits[0], "seven")
    with refused("labels have shape (400, 10); pass one class label per picture"):
        ImageFlow(**quick).fit(digits[0], np.eye(10)[digits[1]])


def test_every_class_needs_a_particle(digits):
    message = "n_particles=9 is fewer than the 10 classes of the labels; pass n_particles >= 10"
    with refused(message):
        ImageFlow(**{**quick, "n_particles": 9}).fit(*digits)
    flow = ImageFlow(**{**quick, "n_particles": 10}, schedule=SHORT).fit(*digits)
    assert len(flow.particles_) == 10


@pytest.mark.parametrize("transport", ["auto", "sorted", "histogram", Histogram(64)], ids=str)
def test_without_amplifier_the_flow_is_the_unconditional_one(digits, transport):
    images, labels = digits
    options = {**quick, "schedule": SHORT, "transport": transport}
    blind, plain = (
        ImageFlow(**options, amplifier=0).fit(images, labels),
        ImageFlow(**options).fit(images),
    )
    assert np.array_equal(blind.particles_, plain.particles_)
    ours, theirs = (f.sample(9, random_state=1) for f in (blind, plain))
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("transport", ["sorted", "histogram", Sorted(most=100), Histogram(50)], ids=str)
def test_every_transport_fits_labelled_digits(digits, transport):
    flow = ImageFlow(**quick, schedule=SHORT, transport=transport).fit(*digits)
    assert flow.history_["distance"][-1] < flow.history_["distance"][0]


# Observed pixels


def test_drawings_in_booleans_need_no_levels(digits):
    images = digits[0] > 7
    options = dict(quality=3, n_particles=300, random_state=0)
    flow, told = (ImageFlow(n_pixel_values=levels, **options).fit(images) for levels in (256, 2))
    assert np.array_equal(flow.sample(100, random_state=0), told.sample(100, random_state=0))


def observed_pixels(mask, images):
    known = MASKS[mask](*images.shape[1:3]) if isinstance(mask, str) else mask
    return known if images.ndim == 3 else np.broadcast_to(known[..., None], images.shape[1:])


@pytest.mark.parametrize("channels", ["grey", "colour"])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("mask", [*MASKS, np.random.default_rng(0).random((6, 5)) < 0.5], ids=str)
def test_observed_pixels_come_back_bit_for_bit(mask, dtype, channels):
    images = colour(dtype=dtype) if channels == "colour" else colour(dtype=dtype)[..., 0]
    options = dict(schedule="1[1] 3[3] 6[5,3]", n_particles=60, quality=2, random_state=0)
    flow = ImageFlow(**options, observed=mask).fit(images[:50])
    done = flow.inpaint(images[50:], n_samples=3, random_state=0)
    assert done.dtype == images.dtype
    assert done.shape == (10, 3, *images.shape[1:])
    known = observed_pixels(mask, images)
    given = images[50:, None].repeat(3, axis=1)
    assert np.array_equal(done[:, :, known], given[:, :, known])
    assert not np.array_equal(done[:, :, ~known], given[:, :, ~known])
    assert not np.array_equal(done[:, 0], done[:, 1])
    assert done.min() >= 0
    assert done.max() <= (1 if dtype.startswith("float") else 255)


def test_observed_pixels_of_particles_are_the_pictures_own(digits):
    images = digits[0]
    flow = ImageFlow(**{**quick, "n_particles": 400}, schedule=SHORT, observed="top").fit(images)
    ours, theirs = (sorted(x[:, :4].reshape(400, -1).tolist()) for x in (flow.particles_, images))
    assert ours == theirs


def test_what_is_not_observed_is_ignored(digits):
    images = digits[0]
    flow = ImageFlow(**quick, schedule=SHORT, observed="left").fit(images)
    hidden = images[:5].copy()
    hidden[:, :, 4:] = 0
    a, b = (flow.inpaint(x, 2, random_state=0) for x in (images[:5], hidden))
    assert np.array_equal(a, b)


def test_tensors_are_completed_too():
    images = torch.from_numpy(colour())
    flow = ImageFlow("1[1] 6[3]", 60, 2, random_state=0, observed="top").fit(images)
    done = flow.inpaint(images[:4], 2)
    assert isinstance(done, torch.Tensor)
    assert torch.equal(done[:, 1, :3], images[:4, :3])


@pytest.mark.parametrize("dtype", ["uint16", "int32", "float16", "bfloat16", "float64"])
def test_tensors_of_any_type_are_completed(dtype):
    kind = getattr(torch, dtype)
    images = torch.from_numpy(colour()).to(kind)
    if kind.is_floating_point:
        images = (images / 255).requires_grad_()
    flow = ImageFlow("1[1] 6[3]", 60, 2, random_state=0, observed="top").fit(images)
    done = flow.inpaint(images[:4], 2)
    assert done.dtype == (torch.float32 if dtype == "bfloat16" else kind)
    given = images[:4, :3].detach().to(done.dtype)
    assert np.array_equal(done[:, 1, :3].numpy(), given.numpy())


def test_a_mask_that_observes_everything_returns_the_pictures(digits):
    images = digits[0]
    flow = ImageFlow(**{**quick, "n_particles": 400}, schedule=SHORT, observed=np.ones((8, 8), bool))
    flow.fit(images)
    assert np.array_equal(flow.inpaint(images[:9], 2), images[:9, None].repeat(2, axis=1))
    assert sorted(flow.particles_.reshape(400, -1).tolist()) == sorted(images.reshape(400, -1).tolist())


def test_a_mask_that_observes_nothing_is_the_unconditional_flow(digits):
    images = digits[0]
    plain = ImageFlow(**quick).fit(images)
    blind = ImageFlow(**quick, observed=np.zeros((8, 8), bool)).fit(images)
    assert np.array_equal(blind.particles_, plain.particles_)
    done = blind.inpaint(images[:5], random_state=0)
    assert np.array_equal(done[:, 0], plain.sample(5, random_state=0))


def test_the_observed_half_tells_about_the_other():
    """Pictures whose right half repeats the left: completions follow what is observed."""
    left = np.random.default_rng(0).integers(0, 2, (400, 1, 1)) * 15
    images = np.broadcast_to(left, (400, 4, 4)).astype(np.uint8)
    flow = ImageFlow(n_pixel_values=16, quality=20, n_particles=1000, random_state=0, observed="left")
    done = flow.fit(images[:300]).inpaint(images[300:], random_state=0)[:, 0]
    same = (done[:, :, 2:].mean((1, 2)) > 7.5) == (images[300:, 0, 0] > 7)
    assert same.mean() > 0.9


def clouds(n, seed):
    """Smooth noise, 8×8, of very different contrasts."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(16), np.fft.fftfreq(16))) + 1 / 16
    noise = np.fft.fft2(rng.normal(size=(n, 16, 16))) / frequency**1.5
    x = np.fft.ifft2(noise).real[:, :8, :8]
    contrast = np.exp(0.7 * rng.normal(size=(n, 1, 1)) - 0.25)
    return np.clip(128 + 40 * contrast * x / x.std(), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("observed", [None, "left"])
def test_unusual_pictures_do_not_end_as_noise(observed):
    """Far out the maps are chance. Fresh particles that stay there were shaken at every step."""

    def roughness(pictures):
        hidden = pictures[:, :, 4:].astype(float)
        return np.quantile(np.abs(np.diff(hidden, axis=1)).mean((1, 2)), 0.95)

    flow = ImageFlow(
        "1[1] 2[2] 4[4] 8[8,5,3]",
        1000,
        20,
        random_state=0,
        observed=observed,
        transport="histogram",
        options=PictureOptions(n_knots=64),
    ).fit(clouds(1000, 0))
    real = clouds(1000, 1)
    if observed:
        offline = flow.inpaint(real, random_state=0)[:, 0]
    else:
        offline = flow.sample(1000, random_state=0)
    assert 0.7 < roughness(offline) / roughness(real) < 1.2  # was 1.6
    assert 0.7 < roughness(offline) / roughness(flow.particles_) < 1.2


def test_only_a_model_with_observed_pixels_completes_pictures(digits):
    images, labels = digits
    flow = ImageFlow(**quick, schedule="1[1]")
    with pytest.raises(NotFittedError):
        flow.inpaint(images[:2])
    with pytest.raises(NotFittedError):
        flow.sample(2)
    without = "the model was fitted without observed=, so it has no mask; fit with observed=, or pass "
    with refused(without + "mask= to a model that keeps its pictures"):
        flow.fit(images).inpaint(images[:2])
    flow = ImageFlow(**quick, schedule="1[1]", observed="top")
    with refused("a flow can use labels or observed pixels, not both; choose one"):
        flow.fit(images, labels)
    with refused("this model completes pictures (observed=…); call inpaint(X), or evolution(X=X)"):
        flow.fit(images).sample(2)
    with refused("pictures are (8, 7) but the model was fitted on (8, 8)"):
        flow.inpaint(images[:2, :, :7])


def test_masks_that_do_not_fit_are_refused(digits):
    for observed, start in (
        ("middle", "observed='middle' is not one of"),
        (np.ones((7, 8), bool), "observed has"),
    ):
        with pytest.raises(ValueError, match=f"^{start}"):
            ImageFlow(**quick, observed=observed).fit(digits[0])


# Models and parameters


def test_observed_pixels_stay_where_particles_are_seen_and_moved_in_runs(digits, monkeypatch):
    monkeypatch.setattr("sliceflow.spaces.pictures.start.projection_budget", lambda device: 1 << 10)
    flow = ImageFlow(**quick, schedule=SHORT, observed="top", transport=Histogram(32, most=100))
    flow.fit(digits[0])
    assert {tuple(top.ravel()) for top in flow.particles_[:, :4]} <= {
        tuple(top.ravel()) for top in digits[0][:, :4]
    }


def test_no_knots_keep_no_model(digits):
    options = {**quick, "n_particles": 2000, "schedule": SHORT}  # enough for a model
    kept, flow = (
        ImageFlow(**options, options=PictureOptions(n_knots=n)).fit(digits[0]) for n in (16, 0)
    )
    assert np.array_equal(flow.particles_, kept.particles_)
    message = "the model was fitted with n_knots=0, which keeps no maps; fit again with n_knots > 0"
    with refused(message):
        flow.sample(3)
    with refused(message):
        flow.inpaint(digits[0][:2])


TRANSPORTS = (
    "one of ['auto', 'sorted', 'histogram', 'interpolated'] or a transport from sliceflow.transports"
)


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("n_particles", 0, "None or an int of at least 1"),
        ("n_particles", 2.5, "None or an int of at least 1"),
        ("quality", "good", "one of ['draft', 'standard', 'best'] or a number of steps per stage"),
        ("quality", 0, "one of ['draft', 'standard', 'best'] or a number of steps per stage"),
        ("n_pixel_values", 1, "an int of at least 2"),
        ("n_pixel_values", 17.0, "an int of at least 2"),
        ("upsampling", "cubic", "one of ['bilinear', 'lanczos', 'nearest']"),
        ("amplifier", -1, "'auto', or a number of at least 0, which may be math.inf"),
        ("amplifier", float("nan"), "'auto', or a number of at least 0, which may be math.inf"),
        ("amplifier", float("-inf"), "'auto', or a number of at least 0, which may be math.inf"),
        ("amplifier", "none", "'auto', or a number of at least 0, which may be math.inf"),
        ("start_noise", -0.1, "a finite number of at least 0"),
        ("taper", 1.5, "a number from 0 to 1"),
        ("taper", -0.5, "a number from 0 to 1"),
        (
            "transport",
            "greedy",
            TRANSPORTS,
        ),
        (
            "transport",
            None,
            TRANSPORTS,
        ),
    ],
)
def test_parameters_are_checked(digits, name, value, what):
    with refused(f"{name}={value!r} must be {what}"):
        ImageFlow(**quick | setting(name, value)).fit(digits[0])


@pytest.mark.parametrize("n_samples", [0, -3, 2.5])
def test_numbers_of_samples_are_checked(digits, labelled, n_samples):
    with refused(f"n_samples={n_samples} must be an int of at least 1"):
        labelled.sample(n_samples)
    flow = ImageFlow(**quick, schedule="1[1]", observed="top").fit(digits[0])
    with refused(f"n_samples={n_samples} must be an int of at least 1"):
        flow.inpaint(digits[0][:2], n_samples)


def test_more_particles_than_memory_are_refused_at_once(digits):
    message = (
        r"^n_particles=1000000000, 400 pictures of 64 values and a model of \d+ maps need about "
        r"\d+\.\d GiB but cpu has \d+\.\d GiB free; lower n_particles, quality or n_knots \(0 keeps "
        r"no model\)$"
    )
    with pytest.raises(MemoryError, match=message):
        ImageFlow(**{**quick, "n_particles": 10**9}).fit(*digits)


@pytest.mark.parametrize("upsampling", ["lanczos", "bilinear", "nearest"])
def test_every_upsampling_brings_the_particles_closer(digits, upsampling):
    flow = ImageFlow(
        **quick, schedule="1[1] 3[3] 5[5] 8[8]", options=PictureOptions(upsampling=upsampling)
    ).fit(digits[0])
    assert flow.history_["distance"][-1] < 0.5 * flow.history_["distance"][0]


# How good the samples are


@pytest.mark.slow
@pytest.mark.parametrize(("n_particles", "accuracy"), [(2000, 0.985), (250, 0.95)])
def test_digits_are_recognised_and_not_copied(n_particles, accuracy):
    """500 held-out digits say how near new ones come to those that train the flow and the judge."""
    images, target = load_digits(return_X_y=True)
    train, test, y_train, _ = train_test_split(
        images, target, test_size=500, stratify=target, random_state=0
    )
    flow = ImageFlow(
        n_pixel_values=17,
        quality=30,
        n_particles=n_particles,
        random_state=0,
        transport="histogram",
        device="cpu",
    ).fit(train.reshape(-1, 8, 8).astype(np.uint8), y_train)
    rows = flow.particles_.reshape(n_particles, 64).astype(float)
    assert SVC().fit(train, y_train).score(rows, flow.particle_conditions_) >= accuracy
    if n_particles == 2000:
        assert 0.8 <= nn_ratio(rows, train, test) <= 1.2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_knots", -1),
        ("n_knots", "many"),
        ("n_knots", 1.5),
        ("schedule", None),
        ("amplifier", "10"),
        ("start_noise", float("inf")),
        ("quality", True),
    ],
)
def test_parameters_of_the_wrong_kind_are_named(digits, name, value):
    with pytest.raises(ValueError, match=f"{name}={value!r} must be"):
        ImageFlow(**quick | setting(name, value)).fit(digits[0])


def test_numpy_integers_are_integers(digits):
    flow = ImageFlow(**(quick | {"n_particles": np.int64(50), "quality": np.int64(1)})).fit(digits[0])
    assert len(flow.sample(np.int64(3))) == 3
    with pytest.raises(ValueError, match=r"n_samples=2\.0 must be an int of at least 1"):
        flow.sample(2.0)


def test_pictures_of_another_kind_cannot_be_completed(digits):
    flow = ImageFlow(**quick, observed="top").fit(digits[0])
    with pytest.raises(
        ValueError, match=r"pictures are float64 but the model was fitted on integers 0\.\.16"
    ):
        flow.inpaint(digits[0][:2] / 16)
    with pytest.raises(ValueError, match="there are no pictures"):
        flow.inpaint(digits[0][:0])
    whole = ImageFlow(**quick, observed="top").fit(torch.from_numpy(digits[0]))
    assert isinstance(whole.inpaint(digits[0][:2]), torch.Tensor)


def test_dequantised_pixels_never_round_up_to_the_next_level():
    layout = Layout(64, 64, None, "uint8", 256)
    raw = torch.full((64 * 64, 500), 255, dtype=torch.uint8)
    assert bool((layout.encode(raw, Seed(0)) < 1).all())
    raw -= 1
    assert set(np.unique(layout.write(layout.encode(raw, Seed(0))))) == {254}


def test_a_stage_that_is_ended_early_is_counted_as_it_was_run(digits):
    heard = []

    def first_step_only(event):
        heard.append((event.steps_done, event.steps_total))
        return event.stage_index == 0

    ImageFlow("1[1] 2[2]", 50, 3, n_pixel_values=17, random_state=0).fit(
        digits[0], listeners=(first_step_only,)
    )
    assert heard == [(1, 6), (2, 4), (3, 4), (4, 4)]


def test_parameters_changed_after_fitting_do_not_change_samples(digits):
    flow = ImageFlow(**quick, observed="top").fit(digits[0])
    before = flow.inpaint(digits[0][:5], 2, random_state=0)
    flow.set_params(options=PictureOptions(start_noise=1.0, dequantize=False))
    assert np.array_equal(flow.inpaint(digits[0][:5], 2, random_state=0), before)


def test_stages_layout_and_mask_are_told():
    flow = ImageFlow(quality=2, n_particles=40, observed="left", random_state=0)
    stages = flow.stages(6, 5, 3)
    assert not hasattr(flow, "layout_")
    flow.fit(colour())
    assert flow.schedule_ == stages
    assert (flow.layout_.height, flow.layout_.width, flow.layout_.channels) == (6, 5, 3)
    assert np.array_equal(flow.observed_, MASKS["left"](6, 5))
    assert flow.set_params(observed=None).fit(colour()).observed_ is None
    assert [s.name for s in stages] == list(dict.fromkeys(flow.history_["stage"]))


def test_a_level_s_particles_are_freed_when_it_is_done(digits):
    """They were held by a cycle of references: 50 GB with 700,000 particles of 32×32×3."""
    images, _ = digits
    levels = {}

    def listener(event):
        levels.setdefault(event.stage_index, weakref.ref(event.particles))

    gc.collect()
    gc.disable()
    try:
        ImageFlow("1[1] 4[4,3] 8[3]", 100, 2, n_pixel_values=17, random_state=0).fit(
            images[:50], listeners=(listener,)
        )
        assert [ref() is None for ref in levels.values()] == [True] * 4
    finally:
        gc.enable()


def in_chunks(flow, draw, size, monkeypatch):
    """What `draw` gives in chunks of `size`, none of which may be larger."""
    write, widths = type(flow.layout_).write, []

    def recorded(layout, x):
        widths.append(x.shape[1])
        return write(layout, x)

    monkeypatch.setattr("sliceflow.spaces.pictures.fitted._CHUNK", size)
    monkeypatch.setattr(type(flow.layout_), "write", recorded)
    out = draw()
    monkeypatch.undo()
    assert max(widths) <= size
    return out


@pytest.mark.parametrize("tensor", [False, True])
def test_samples_stream_in_chunks_and_do_not_depend_on_them(digits, tensor, monkeypatch):
    """The device never holds more than a chunk, however many samples are drawn."""
    images = torch.from_numpy(digits[0]) if tensor else digits[0]
    flow = ImageFlow(**quick).fit(images, digits[1])
    whole = flow.sample(50, random_state=0)
    parts = in_chunks(flow, lambda: flow.sample(50, random_state=0), 7, monkeypatch)
    assert type(parts) is type(whole)
    assert parts.shape == whole.shape
    assert np.abs(np.asarray(parts).astype(int) - np.asarray(whole)).max() <= 1  # rounding of products


def test_completions_stream_in_chunks(digits, monkeypatch):
    flow = ImageFlow(**quick, observed="top").fit(digits[0])
    whole = flow.inpaint(digits[0][:9], 5, random_state=0)
    parts = in_chunks(flow, lambda: flow.inpaint(digits[0][:9], 5, random_state=0), 7, monkeypatch)
    assert parts.shape == whole.shape == (9, 5, 8, 8)
    assert np.abs(parts.astype(int) - whole).max() <= 1


def test_memory_decides_how_many_columns_a_step_looks_at(monkeypatch):
    """The largest stage of CIFAR-10 has 10,800 directions."""
    monkeypatch.setattr(devices, "total_memory", lambda device: 80 * 10**9)
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert devices.columns_looked_at(1 << 20, 10_800, gpu) == 80 * 10**9 // 4 // (8 * 10_800)
    assert devices.columns_looked_at(1 << 20, 10_800, cpu) == 80 * 10**9 // 8 // (8 * 10_800)
    assert devices.columns_looked_at(None, 10_800, gpu) is None
    assert devices.columns_looked_at(500, 10_800, gpu) == 500
    monkeypatch.setattr(devices, "total_memory", lambda device: 10**6)
    assert devices.columns_looked_at(1 << 20, 10_800, cpu) == 4096
    for name in ("auto", "histogram"):
        assert choose_transport(name, 0.0).most > 700_000


@pytest.fixture(scope="module")
def shades():
    """Colour pictures of two classes, rising and falling to the right, and their model."""
    rng = np.random.default_rng(0)
    labels = np.array(["falling", "rising"] * 200)
    slope = np.linspace(-1, 1, 8) * np.where(labels == "rising", 1, -1)[:, None]
    grey = 128 + 60 * slope[:, None, :, None] + 20 * rng.normal(size=(400, 1, 1, 3))
    images = (grey + 3 * rng.normal(size=(400, 8, 8, 3))).clip(0, 255).astype(np.uint8)
    flow = ImageFlow(n_particles=400, quality=1, random_state=0, device="cpu", transport="histogram")
    return images, labels, flow.set_params(amplifier=math.inf).fit(images[:300], labels[:300])


def test_a_model_that_keeps_its_pictures_completes_from_any_mask(shades, tmp_path):
    images, labels, flow = shades
    test, own = images[300:], labels[300:]
    rows = np.zeros((8, 8), bool)
    rows[:, 3] = True  # near the middle: it says little about the class
    for known, mask in ((np.arange(8) < np.full((8, 1), 4), "left"), (rows, rows)):
        done = flow.inpaint(test, 2, random_state=0, mask=mask)
        assert done.shape == (100, 2, 8, 8, 3)
        assert done.dtype == np.uint8
        assert (done[:, :, known] == test[:, None, known]).all()
    rises = (done[..., -1, :].astype(float) - done[..., 0, :]).mean((2, 3)) > 0
    assert (rises[:, 0] == (own == "rising")).mean() < 0.85
    done = flow.inpaint(test, 2, random_state=0, mask=rows, y=own)
    rises = (done[..., -1, :].astype(float) - done[..., 0, :]).mean((2, 3)) > 0
    assert (rises == (own == "rising")[:, None]).mean() > 0.95
    flow.save(tmp_path / "m")
    loaded = load(tmp_path / "m", device="cpu")
    assert np.array_equal(loaded.inpaint(test, 2, random_state=0, mask=rows, y=own), done)
    one = flow.inpaint(test[:4], random_state=0, mask=rows, y="rising")
    assert (one[:, 0, :, -1].mean((1, 2)) > one[:, 0, :, 0].mean((1, 2))).all()
    hidden = np.ma.masked_array(test[:4], np.broadcast_to(~rows[None, :, :, None], (4, 8, 8, 3)))
    assert np.array_equal(flow.inpaint(hidden, random_state=0, mask=rows, y="rising"), one)


def test_masks_that_a_model_cannot_complete_from(shades, digits):
    images, _, flow = shades
    with refused("y was given without mask; pass the known part as mask, too"):
        flow.inpaint(images[:2], y="rising")
    with refused("unknown label 'flat'; the model knows 'falling', 'rising'"):
        flow.inpaint(images[:2], mask="left", y="flat")
    with refused(f"mask='middle' is not one of {sorted(MASKS)}, nor a mask"):
        flow.inpaint(images[:2], mask="middle")
    grey = ImageFlow(n_particles=100, quality=1, n_pixel_values=17, device="cpu").fit(digits[0][:100])
    with refused("mask needs a model that keeps its pictures, and this one keeps none"):
        grey.inpaint(digits[0][:2], mask="top")
    top = ImageFlow(n_particles=100, quality=1, n_pixel_values=17, observed="top", device="cpu")
    own = "mask was given, but a model with observed= has its own mask and no labels; omit mask"
    with refused(own):
        top.fit(digits[0][:100]).inpaint(digits[0][:2], mask="left")
    none = ImageFlow(n_particles=200, quality=1, device="cpu", random_state=0).fit(images[:200])
    with refused("y was given but the model was fitted without labels; omit y"):
        none.inpaint(images[:2], mask="left", y="rising")
