"""Pictures in and out: layouts and values survive, and mistakes are named."""

import numpy as np
import pytest
import torch

from sliceflow.engine.random import Seed
from sliceflow.estimators.pictures.known_parts import KNOWN_PARTS, as_known
from sliceflow.estimators.pictures.layout import Layout


def columns(layout, images):
    """The pixels of pictures as columns (d, n)."""
    return layout.to_points(torch.from_numpy(layout.read(images)))


def there_and_back(images, n_pixel_values=256, dequantize=True):
    layout = Layout.infer(images, n_pixel_values)
    x = layout.encode(columns(layout, images), Seed(0) if dequantize else None)
    assert x.shape == (layout.dimension, len(images))
    assert x.dtype == torch.float32
    assert -1 <= float(x.min()) <= float(x.max()) <= 1
    return layout.decode(x)


@pytest.mark.parametrize("dequantize", [True, False])
@pytest.mark.parametrize(
    ("dtype", "values"),
    [("bool", 2), ("uint8", 17), ("int64", 256), ("int32", 1000), ("uint16", 1000)],
)
def test_every_value_survives_the_way_there_and_back(values, dtype, dequantize):
    images = np.arange(values).astype(dtype).repeat(4).reshape(values, 2, 2)
    back = there_and_back(images, values, dequantize)
    assert back.dtype == images.dtype
    assert np.array_equal(back, images)


@pytest.mark.parametrize(("dtype", "top"), [("bool", 1), ("int8", 127), ("uint8", 255)])
def test_there_are_no_more_values_than_the_type_holds(dtype, top):
    layout = Layout.infer(np.zeros((1, 1, 1), dtype), 1000)
    decoded = layout.decode(torch.tensor([[-9.0, 0.999, 9.0]]))
    assert decoded.ravel().tolist() == [0, top, top]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "longdouble"])
def test_floats_survive_the_way_there_and_back(dtype):
    images = np.random.default_rng(0).random((5, 3, 4)).astype(dtype)
    images[0, 0, :2] = 0, 1
    back = there_and_back(images)
    assert back.dtype == (np.float64 if dtype == "longdouble" else images.dtype)
    rounding = 1e-3 if dtype == "float16" else 1e-7
    assert np.allclose(back, images.astype(float), rtol=0, atol=rounding)
    assert back[0, 0, :2].tolist() == [0, 1]


@pytest.mark.parametrize(
    "shape", [(5, 3, 4), (5, 3, 4, 1), (5, 3, 4, 3), (1, 1, 1), (1, 7, 1, 2)]
)
@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy, list])
def test_every_layout_comes_back_as_it_was(shape, kind):
    images = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    images.flags.writeable = kind is torch.from_numpy
    back = there_and_back(kind(images))
    assert isinstance(back, torch.Tensor if kind is torch.from_numpy else np.ndarray)
    assert np.array_equal(np.asarray(back), images)
    pixels = columns(Layout.infer(images, 256), images)
    channels_last = images.reshape(*shape[:3], -1)
    channel_by_channel = channels_last.transpose(3, 1, 2, 0)
    assert np.array_equal(pixels.numpy(), channel_by_channel.reshape(-1, len(images)))


def test_dequantization_fills_the_step_of_each_value_and_is_drawn_from_the_seed():
    images = np.full((1000, 2, 2), 3, np.uint8)
    layout = Layout.infer(images, 8)
    pixels = columns(layout, images)
    x = layout.encode(pixels, Seed(0))
    assert torch.equal(x, layout.encode(pixels, Seed(0)))
    assert not torch.equal(x, layout.encode(pixels, Seed(1)))
    u = (x + 1) * 4 - 3
    assert 0 <= float(u.min()) < 0.01 < 0.99 < float(u.max()) < 1
    assert float(u.mean()) == pytest.approx(0.5, abs=0.02)
    middle = layout.encode(pixels)
    assert torch.equal(middle, torch.full_like(middle, 3.5 / 4 - 1))


def test_the_noise_of_a_picture_depends_on_its_index_only():
    images = np.full((1000, 2, 2), 3, np.uint8)
    layout = Layout.infer(images, 8)
    pixels = columns(layout, images)
    x = layout.encode(pixels, Seed(0))
    part = layout.encode(
        pixels[:, [2, 3, 7]],
        Seed(0),
        n_total=1000,
        index_slices=[slice(2, 4), slice(7, 8)],
    )
    assert torch.equal(part, x[:, [2, 3, 7]])


def test_the_brightest_pixels_never_round_up_to_the_next_value():
    brightest = torch.full((64 * 64, 500), 255, dtype=torch.uint8)
    x = Layout(64, 64, None, "uint8", 256).encode(brightest, Seed(0))
    assert bool((x < 1).all())


def test_values_beyond_the_range_are_decoded_as_its_ends_and_nan_is_refused():
    beyond = torch.tensor([[-1.5, -1.0, 1.0, 1.5]])
    integers = Layout(1, 1, None, "uint8", 17)
    floats = Layout(1, 1, None, "float32", None)
    assert integers.decode(beyond).ravel().tolist() == [0, 0, 16, 16]
    assert floats.decode(beyond).ravel().tolist() == [0, 0, 1, 1]
    with pytest.raises(ValueError, match="start_noise closer to the defaults"):
        integers.decode(beyond * torch.nan)


@pytest.mark.parametrize("shape", [(4, 3, 5), (4, 3, 5, 3)])
def test_mirror_images_follow_the_pictures(shape):
    images = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    layout = Layout.infer(images, 256)
    doubled = layout.with_mirror_images(columns(layout, images))
    decoded = layout.decode(layout.encode(doubled))
    assert np.array_equal(decoded, np.concatenate((images, images[:, :, ::-1])))


@pytest.mark.parametrize("name", KNOWN_PARTS)
@pytest.mark.parametrize("channels", [None, 3])
def test_known_parts_cover_what_they_say(name, channels):
    layout = Layout(8, 12, channels, "uint8", 256)
    column = layout.is_known_value(as_known(name, layout), "cpu")
    is_known = column.view(-1, 8, 12).numpy()
    row, column = np.mgrid[:8, :12]
    inner = (row >= 2) & (row < 6) & (column >= 3) & (column < 9)
    halves = {
        "top": row < 4,
        "bottom": row >= 4,
        "left": column < 6,
        "right": column >= 6,
    }
    expected = halves | {"border": ~inner, "center": inner}
    assert len(is_known) == (channels or 1)
    assert all(np.array_equal(channel, expected[name]) for channel in is_known)


def test_known_parts_and_their_opposites_share_the_pixels_of_odd_pictures():
    layout = Layout(7, 5, None, "uint8", 256)
    for a, b in (("top", "bottom"), ("left", "right"), ("border", "center")):
        assert np.array_equal(as_known(a, layout), ~as_known(b, layout))
    random = np.random.default_rng(0).random((7, 5)) < 0.5
    for known in (random, random.tolist(), torch.from_numpy(random)):
        assert np.array_equal(as_known(known, layout), random)
    assert layout.is_known_value(np.zeros((7, 5), bool), "cpu") is None


def zeros(*shape, dtype=np.uint8):
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (
            zeros(8, 8),
            r"shape \(8, 8\); pass \(n, h, w\) or \(n, h, w, c\), all of one size",
        ),
        (zeros(2, 3, 8, 8, 3), r"shape \(2, 3, 8, 8, 3\); pass"),
        (zeros(0, 8, 8), "which is empty; pass at least one picture"),
        (zeros(3, 8, 8, 0), "which is empty; pass at least one picture"),
        (zeros(5, 3, 8, 8), r"looks like \(n, c, h, w\); pass \(n, h, w, c\)"),
        ([zeros(8, 8), zeros(8, 7)], "pictures have different sizes; resize them"),
        (
            zeros(2, 2, 2, dtype=complex),
            "pictures have dtype complex128; pass integers or floats",
        ),
        (np.full((1, 2, 2), "a"), "pictures have dtype <U1; pass integers or floats"),
        (
            np.full((1, 2, 2), 17),
            r"must be in 0\.\.16 but range from 17 to 17; set n_pixel_values=",
        ),
        (np.full((1, 2, 2), -1), r"must be in 0\.\.16 but range from -1 to -1"),
        (
            np.full((1, 2, 2), 1.5),
            r"must be in \[0, 1\] but range from 1\.5 to 1\.5; divide by",
        ),
        (np.full((1, 2, 2), np.nan), r"must be in \[0, 1\] but range from nan to nan"),
        (
            np.ma.masked_array(zeros(1, 2, 2), mask=np.eye(2, dtype=bool)[None]),
            "is masked at",
        ),
    ],
)
def test_pictures_that_cannot_be_fitted_are_refused(images, message):
    with pytest.raises(ValueError, match=message):
        Layout.infer(images, 17).read(images)


def test_pictures_of_another_kind_than_the_models_are_refused():
    layout = Layout.infer(zeros(2, 8, 8, 3), 256)
    for images, message in (
        (
            zeros(2, 8, 7, 3),
            r"pictures are \(8, 7, 3\) but the model was fitted on \(8, 8, 3\)",
        ),
        (
            zeros(2, 8, 8),
            r"pictures are \(8, 8\) but the model was fitted on \(8, 8, 3\)",
        ),
        (
            zeros(2, 8, 8, 3, dtype=float),
            r"are float64 but the model was fitted on integers 0\.\.255",
        ),
        (zeros(0, 8, 8, 3), "there are no pictures"),
    ):
        with pytest.raises(ValueError, match=message):
            layout.read(images)


@pytest.mark.parametrize(
    "known",
    [np.ones((8, 7), bool), np.ones((8, 8, 3), bool), np.ones((8, 8), int), "middle"],
    ids=str,
)
def test_known_parts_that_do_not_fit_are_refused(known):
    with pytest.raises(
        ValueError, match=r"pass an \(8, 8\) array of booleans|is not one of .*'center'"
    ):
        as_known(known, Layout(8, 8, None, "uint8", 256))
