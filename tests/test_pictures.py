"""Pictures in and out: every layout and level survives the round trip, every mistake is named."""

import re

import numpy as np
import pytest
import torch

from sliceflow.engine.random import Seed
from sliceflow.spaces.pictures.layout import MASKS, Layout, mask_of


def refused(message):
    return pytest.raises(ValueError, match=f"^{re.escape(message)}$")


def there_and_back(images, n_pixel_values=256, dequantize=True):
    layout = Layout.of(images, n_pixel_values)
    x = layout.encode(layout.read(images), Seed(0), dequantize=dequantize)
    assert x.shape == (layout.dimension, len(images))
    assert x.dtype == torch.float32
    assert float(x.min()) >= -1
    assert float(x.max()) <= 1
    return layout.write(x)


@pytest.mark.parametrize("dequantize", [True, False])
@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "uint16"])
@pytest.mark.parametrize("levels", [2, 17, 256])
def test_every_level_survives_the_way_there_and_back(levels, dtype, dequantize):
    images = np.arange(levels).astype(dtype).repeat(4).reshape(levels, 2, 2)
    again = there_and_back(images, levels, dequantize)
    assert again.dtype == images.dtype
    assert np.array_equal(again, images)


def test_more_than_256_levels_survive():
    images = np.arange(1000, dtype=np.int32).reshape(10, 10, 10)
    assert np.array_equal(there_and_back(images, 1000), images)


def test_booleans_are_two_levels():
    images = np.random.default_rng(0).random((5, 3, 4)) < 0.5
    again = there_and_back(images, 2)
    assert again.dtype == bool
    assert np.array_equal(again, images)


@pytest.mark.parametrize(("dtype", "top"), [("bool", 1), ("int8", 127), ("uint8", 255)])
def test_there_are_no_more_levels_than_the_type_holds(dtype, top):
    layout = Layout.of(np.zeros((1, 1, 1), dtype), 1000)
    assert layout.write(torch.tensor([[-9.0, 0.999, 9.0]])).ravel().tolist() == [0, top, top]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_survive_the_way_there_and_back(dtype):
    images = np.random.default_rng(0).random((5, 3, 4)).astype(dtype)
    images[0, 0, :2] = 0, 1
    again = there_and_back(images)
    assert again.dtype == images.dtype
    assert np.allclose(again, images, rtol=0, atol=1e-3 if dtype == "float16" else 1e-7)
    assert again[0, 0, :2].tolist() == [0, 1]


@pytest.mark.parametrize(
    "shape", [(5, 3, 4), (5, 3, 4, 1), (5, 3, 4, 3), (5, 3, 4, 4), (1, 1, 1), (1, 7, 1, 2)]
)
@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_every_layout_comes_back_as_it_was(shape, tensor, dtype):
    numbers = np.random.default_rng(0).integers(0, 256, shape)
    images = (numbers / 255 if dtype == "float32" else numbers).astype(dtype)
    given = torch.from_numpy(images) if tensor else images
    again = there_and_back(given)
    assert type(again) is type(given)
    assert again.dtype == given.dtype
    assert np.allclose(np.asarray(again), images, rtol=0, atol=1e-7)


def test_pictures_are_stored_channel_by_channel():
    images = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)
    raw = Layout.of(images, 256).read(images)
    assert torch.equal(raw, torch.from_numpy(images).permute(3, 1, 2, 0).reshape(36, 2))


def test_lists_of_pictures_and_tensors_that_need_gradients_are_read():
    images = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    assert np.array_equal(there_and_back(list(images)), images)
    floats = torch.rand(2, 3, 4, requires_grad=True)
    assert torch.allclose(there_and_back(floats), floats.detach(), atol=1e-7)


@pytest.mark.filterwarnings("error")
def test_read_only_pictures_are_read_without_a_warning():
    images = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    images.flags.writeable = False
    assert np.array_equal(there_and_back(images), images)


def test_dequantisation_fills_the_step_of_each_level_and_is_drawn_from_the_seed():
    images = np.full((1000, 2, 2), 3, np.uint8)
    layout = Layout.of(images, 8)
    raw = layout.read(images)
    a, again, other = (layout.encode(raw, Seed(s)) for s in (0, 0, 1))
    assert torch.equal(a, again)
    assert not torch.equal(a, other)
    u = (a + 1) * 4 - 3
    assert 0 <= float(u.min()) < 0.01
    assert 0.99 < float(u.max()) <= 1
    assert float(u.mean()) == pytest.approx(0.5, abs=0.02)
    middle = layout.encode(raw, Seed(0), dequantize=False)
    assert torch.equal(middle, torch.full_like(middle, (3.5) / 4 - 1))


def test_values_beyond_the_range_are_written_as_its_ends():
    beyond = torch.tensor([[-1.5, -1.0, 1.0, 1.5]])
    assert Layout(1, 1, None, "uint8", 17).write(beyond).ravel().tolist() == [0, 0, 16, 16]
    assert Layout(1, 1, None, "float32", None).write(beyond).ravel().tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("shape", [(4, 3, 5), (4, 3, 5, 3)])
def test_mirror_images_follow_the_pictures(shape):
    images = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    layout = Layout.of(images, 256)
    both = layout.mirrored(layout.read(images))
    written = layout.write(layout.encode(both, Seed(0), dequantize=False))
    assert np.array_equal(written, np.concatenate((images, images[:, :, ::-1])))


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("channels", [None, 3])
def test_masks_by_name_cover_what_they_say(name, channels):
    mask = mask_of(name, Layout(8, 12, channels, "uint8", 256)).view(-1, 8, 12).numpy()
    row, column = np.mgrid[:8, :12]
    inner = (row >= 2) & (row < 6) & (column >= 3) & (column < 9)
    known = {
        "top": row < 4,
        "bottom": row >= 4,
        "left": column < 6,
        "right": column >= 6,
        "border": ~inner,
        "center": inner,
    }
    assert len(mask) == (channels or 1)
    assert all(np.array_equal(channel, known[name]) for channel in mask)


def test_masks_and_their_opposites_share_the_pixels_of_odd_pictures():
    layout = Layout(7, 5, None, "uint8", 256)
    for a, b in (("top", "bottom"), ("left", "right"), ("border", "center")):
        assert torch.equal(mask_of(a, layout), ~mask_of(b, layout))


def test_a_mask_of_ones_own_is_used_for_every_channel():
    own = np.random.default_rng(0).random((4, 6)) < 0.5
    for given in (own, own.tolist(), torch.from_numpy(own)):
        mask = mask_of(given, Layout(4, 6, 3, "uint8", 256))
        assert mask.shape == (72, 1)
        assert np.array_equal(mask.view(3, 4, 6).numpy(), np.stack([own] * 3))


# Mistakes


@pytest.mark.parametrize("shape", [(), (8,), (8, 8), (2, 3, 8, 8, 3)])
def test_pictures_of_another_rank_are_refused(shape):
    message = f"pictures have shape {shape}; pass (n, h, w) or (n, h, w, c), all of one size"
    with refused(message):
        Layout.of(np.zeros(shape, np.uint8), 256)


@pytest.mark.parametrize("shape", [(0, 8, 8), (3, 0, 8), (3, 8, 8, 0)])
def test_no_pictures_are_refused(shape):
    with refused(f"pictures have shape {shape}, which is empty; pass at least one picture"):
        Layout.of(np.zeros(shape, np.uint8), 256)


def test_pictures_of_mixed_sizes_are_refused():
    with refused("pictures have different sizes; resize them to one size first"):
        Layout.of([np.zeros((8, 8)), np.zeros((8, 7))], 256)


def test_channels_before_pixels_are_refused_with_the_cure():
    message = (
        "pictures have shape (5, 3, 8, 9), which looks like (n, c, h, w); "
        "pass (n, h, w, c): images.transpose(0, 2, 3, 1)"
    )
    images = np.zeros((5, 3, 8, 9), np.uint8)
    with refused(message):
        Layout.of(images, 256)
    assert Layout.of(images.transpose(0, 2, 3, 1), 256).shape == (3, 8, 9)


@pytest.mark.parametrize(
    ("images", "dtype"),
    [(np.full((2, 3, 3), "a"), "<U1"), (np.zeros((2, 3, 3), complex), "complex128")],
)
def test_pictures_must_be_numbers(images, dtype):
    with refused(f"pictures have dtype {dtype}; pass integers or floats"):
        Layout.of(images, 256)


@pytest.mark.parametrize(
    ("low", "high", "levels"), [(0, 17, 17), (0, 255, 17), (-1, 3, 256), (0, 2, 2)]
)
def test_integers_outside_the_levels_are_refused(low, high, levels):
    message = (
        f"integer pictures must be in 0..{levels - 1} but range from {low} to {high}; "
        "set n_pixel_values= to one more than the largest possible value"
    )
    with refused(message):
        Layout.of(np.array([low, high, 1, 1]).reshape(1, 2, 2), levels)


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (-0.25, 1, "-0.25 to 1"),
        (0, 255, "0 to 255"),
        (0.5, np.nan, "nan to nan"),
        (0, np.inf, "0 to inf"),
    ],
)
def test_floats_outside_the_unit_interval_are_refused(low, high, text):
    message = (
        f"float pictures must be in [0, 1] but range from {text}; "
        "divide by the largest value, or pass integers with n_pixel_values="
    )
    with refused(message):
        Layout.of(np.array([low, high, 0.5, 0.5]).reshape(1, 2, 2), 256)


def test_pictures_of_another_size_than_the_first_are_refused():
    layout = Layout.of(np.zeros((2, 8, 8, 3), np.uint8), 256)
    with refused("pictures are (8, 7, 3) but the model was fitted on (8, 8, 3)"):
        layout.read(np.zeros((2, 8, 7, 3), np.uint8))
    with refused("pictures are (8, 8) but the model was fitted on (8, 8, 3)"):
        layout.read(np.zeros((2, 8, 8), np.uint8))


@pytest.mark.parametrize(
    "mask",
    [np.ones((8, 7), bool), np.ones((8, 8, 3), bool), np.ones((8, 8), int), np.ones(64, bool)],
    ids=lambda mask: f"{mask.shape}-{mask.dtype}",
)
def test_masks_of_another_shape_or_type_are_refused(mask):
    message = (
        f"observed has shape {mask.shape} and dtype {mask.dtype}; "
        "pass an (8, 8) mask of booleans, True where a pixel is known"
    )
    with refused(message):
        mask_of(mask, Layout(8, 8, None, "uint8", 256))


def test_unknown_mask_names_are_refused():
    message = (
        "observed='middle' is not one of "
        "['border', 'bottom', 'center', 'left', 'right', 'top'], nor a mask"
    )
    with refused(message):
        mask_of("middle", Layout(8, 8, None, "uint8", 256))


def test_mirror_images_are_drawn_with_the_pictures(monkeypatch):
    """Pictures and their mirror images are two runs that meet: drawn row by row, they took seconds."""
    asked = []
    whole = Seed.uniform_part

    def spy(self, rows, columns, part, **kind):
        asked.append(part)
        return whole(self, rows, columns, part, **kind)

    monkeypatch.setattr(Seed, "uniform_part", spy)
    images = np.zeros((5, 4, 4), np.uint8)
    layout = Layout.of(images, 256)
    raw = layout.mirrored(layout.read(images))
    together = layout.encode(raw, Seed(0), total=10, runs=[slice(0, 5), slice(5, 10)])
    assert asked == [slice(0, 10)]
    assert torch.equal(together, layout.encode(raw, Seed(0)))
    layout.encode(raw[:, :4], Seed(0), total=10, runs=[slice(0, 2), slice(5, 7)])
    assert asked[2:] == [slice(0, 2), slice(5, 7)]
