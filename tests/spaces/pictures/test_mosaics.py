"""Particles that start as mosaics of a few pictures."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sliceflow import ImageFlow, PictureOptions
from sliceflow.engine.flow import Noise
from sliceflow.engine.random import Seed
from sliceflow.errors import ParameterError
from sliceflow.spaces.pictures.layout import Layout
from sliceflow.spaces.pictures.mosaics import Mosaics

LAYOUT = Layout(4, 3, 3, "uint8", 256)
PIXELS = torch.from_numpy(
    np.random.default_rng(0).integers(0, 256, (600, 3, 4, 3), dtype=np.uint8)
)
CODES = torch.arange(600) % 3
MOSAICS = Mosaics(4, 2.0, LAYOUT, PIXELS, codes=CODES, n_classes=3)
SMALL = dict(schedule="2[2] 4[3]", quality=2, transport="histogram", n_particles=400)
SMALL |= dict(device="cpu", random_state=0)


def values(mosaics, at=slice(None)):
    return mosaics.layout.encode(mosaics._columns[:, at])


def shades(n=360, seed=0):
    """Colour pictures of three classes, each with a brightness of its own."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    X = (
        rng.normal(60 + 60 * y[:, None, None, None], 20, (n, 4, 4, 3))
        .clip(0, 255)
        .astype(np.uint8)
    )
    return X, y


@pytest.mark.parametrize(("size", "locality"), [(2, 0.0), (9, 0.0), (4, 2.0), (3, 9.0)])
def test_mosaics_have_about_the_mean_and_the_covariance_of_their_class(size, locality):
    mosaics = replace(MOSAICS, mosaic_size=size, locality=locality)
    y = torch.arange(15_000) % 3
    x = mosaics.draw(len(y), y, Noise(Seed(1))).double()
    for c in range(3):
        own = values(mosaics, c == CODES).double()
        assert ((x[:, y == c].mean(1) - own.mean(1)).abs() < 0.1 * own.std(1)).all()
        difference = torch.cov(x[:, y == c]) - torch.cov(own)
        if (
            locality
        ):  # pixels that are apart are of different pictures, and vary less together
            difference = difference.diag()
        assert difference.abs().max() < 0.12 * own.var(1).mean()


def test_a_mosaic_is_the_sum_of_the_formula():
    raw = torch.tensor([[0, 200, 40, 0], [10, 30, 0, 255]], dtype=torch.uint8)
    mosaics = Mosaics(
        2, 0.0, Layout(1, 2, None, "uint8", 256), raw.T.reshape(4, 1, 1, 2).contiguous()
    )
    pixels = values(mosaics)
    mean = pixels.mean(1, keepdim=True)
    away = pixels - mean
    contrasts = away.norm(dim=0)
    units = away / contrasts
    x = mosaics.draw(500, None, Noise(Seed(0)))
    possible = [
        mean[:, 0] + r / 2**0.5 * (units[:, i] + units[:, j])
        for r in contrasts
        for i in range(4)
        for j in range(i, 4)
    ]
    distance = torch.cdist(x.T, torch.stack(possible))
    assert distance.min(1).values.max() < 0.02  # the small noise that separates ties
    assert len(set(distance.argmin(1).tolist())) == len(possible)


def test_a_class_of_one_picture_starts_as_it():
    codes = torch.zeros(600, dtype=torch.int64)
    codes[7] = 1
    x = replace(MOSAICS, codes=codes, n_classes=2).draw(
        3, torch.ones(3).long(), Noise(Seed(0))
    )
    assert (x - values(MOSAICS, slice(7, 8))).abs().max() < 0.02


def test_a_particle_starts_alike_in_any_chunk():
    y = torch.arange(50) % 3
    whole = MOSAICS.draw(50, y, Noise(Seed(5)))
    assert torch.allclose(
        whole[:, 20:30], MOSAICS.draw(10, y[20:30], Noise(Seed(5), 20)), atol=1e-6
    )


@pytest.mark.parametrize("locality", [0.5, 2.0, 8.0])
def test_weights_are_smooth_and_no_picture_prevails_everywhere(locality):
    layout = Layout(16, 12, 3, "uint8", 256)
    mosaics = Mosaics(
        4, locality, layout, torch.zeros(1, *layout.shape, dtype=torch.uint8)
    )
    weights = mosaics._weights(500, Noise(Seed(0)))
    assert torch.allclose(weights.square().sum(0), torch.ones(16 * 12, 500), atol=1e-5)
    field = weights.view(4, 16, 12, 500)
    assert max(field.diff(dim=k).abs().mean() for k in (1, 2)) < 0.5 * field.std()
    shares = field.square().mean((1, 2))  # of each picture in the whole
    assert shares.max(0).values.median() < 0.45
    assert torch.allclose(shares.mean(1), torch.full((4,), 0.25), atol=0.03)
    softer = replace(mosaics, locality=locality / 2)._weights(500, Noise(Seed(0)))
    assert (1 / softer.pow(4).sum(0)).mean() > (1 / weights.pow(4).sum(0)).mean() > 1


def test_colour_pictures_start_as_mosaics_and_others_as_noise():
    X, y = shades()

    def summed(*data, **changes):
        return ImageFlow(**SMALL | changes).plan(*data).mosaic_size

    assert (summed(X, y), summed(X), summed(X, y, amplifier=0)) == (4, 4, 4)
    noise = PictureOptions(start="noise")
    assert (
        summed(X[..., 0], y),
        summed(X, observed="top"),
        summed(X, y, amplifier=10),
    ) == (0, 0, 0)
    assert summed(X, y, options=noise) == summed(X, y, preset="paper") == 0
    assert "mosaics of 4 training pictures" in str(ImageFlow(**SMALL).plan(X, y))
    for changes, words in (
        (dict(observed="top"), "observed"),
        (dict(amplifier=10.0), "amplifier=inf"),
    ):
        with pytest.raises(ParameterError, match=words):
            summed(
                X,
                None if "observed" in changes else y,
                options=PictureOptions(start=3),
                **changes,
            )


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("labelled", [False, True])
def test_samples_are_of_their_class_and_the_model_keeps_the_pictures(labelled, mirror):
    X, y = shades()
    flow = ImageFlow(**SMALL, mirror=mirror, n_clusters="auto" if labelled else 3)
    flow.fit(X, y if labelled else None)
    kept = flow._model.fitted.mosaics.decoded_pictures(flow.plan_.layout)
    assert np.abs(kept.astype(int) - X).max() <= 4  # rounded to 64 values
    if labelled:
        light = (
            flow.sample(300, y=np.arange(300) % 3, random_state=0)
            .reshape(300, -1)
            .mean(1)
        )
        for c in range(3):
            assert abs(light[c::3].mean() - X[y == c].mean()) < 4
        fitted = flow._model.fitted
        fitted.check()
        for pixels in (
            None,
            fitted.pixels[:-1],
            fitted.pixels[..., :3],
            fitted.pixels + 60,
        ):
            with pytest.raises(ValueError, match="kept pictures"):
                replace(fitted, pixels=pixels).check()
