"""Particles that start as mosaics of a few pictures."""

from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch

from sliceflow import ImageFlow, ImageOptions
from sliceflow.engine.encoded_y import ClassIndices
from sliceflow.engine.flow import ParticleRng
from sliceflow.engine.random import Seed
from sliceflow.errors import ParameterError
from sliceflow.estimators.pictures.layout import Layout
from sliceflow.estimators.pictures.mosaics import Mosaics

LAYOUT = Layout(4, 3, 3, "uint8", 256)
PIXELS = torch.from_numpy(
    np.random.default_rng(0).integers(0, 256, (600, 3, 4, 3), dtype=np.uint8)
)
CLASSES = torch.arange(600) % 3
MOSAICS = Mosaics(
    mosaic_size=4,
    locality=2.0,
    layout=LAYOUT,
    pixels=PIXELS,
    y=ClassIndices(CLASSES),
    n_classes=3,
)
SMALL = dict(
    schedule="2[2] 4[3]",
    steps_per_stage=2,
    transport="histogram",
    n_particles=400,
    device="cpu",
    random_state=0,
)


def values(mosaics, columns=slice(None)):
    """The pictures of mosaics, or some of them, as values in [−1, 1]: (d, n)."""
    points = mosaics.layout.to_points(mosaics.pixels)
    return mosaics.layout.encode(points[:, columns])


def shades(n=360, seed=0):
    """Color pictures of three classes, each with a brightness of its own."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    brightness = 60 + 60 * y[:, None, None, None]
    X = rng.normal(brightness, 20, (n, 4, 4, 3))
    return X.clip(0, 255).astype(np.uint8), y


@pytest.mark.parametrize(("size", "locality"), [(2, 0.0), (9, 0.0), (4, 2.0), (3, 9.0)])
def test_mosaics_have_about_the_mean_and_the_covariance_of_their_class(size, locality):
    mosaics = replace(MOSAICS, mosaic_size=size, locality=locality)
    y = torch.arange(15_000) % 3
    x = mosaics.draw(len(y), ClassIndices(y), ParticleRng(Seed(1))).double()
    for c in range(3):
        members = values(mosaics, c == CLASSES).double()
        drawn = x[:, y == c]
        error = (drawn.mean(1) - members.mean(1)).abs()
        assert (error < 0.1 * members.std(1)).all()
        difference = torch.cov(drawn) - torch.cov(members)
        if locality:
            # Distant pixels are of different pictures, and vary less together.
            difference = difference.diag()
        assert difference.abs().max() < 0.12 * members.var(1).mean()


def test_a_mosaic_is_the_sum_of_the_formula():
    pixels = torch.tensor([[0, 10], [200, 30], [40, 0], [0, 255]], dtype=torch.uint8)
    mosaics = Mosaics(
        mosaic_size=2,
        locality=0.0,
        layout=Layout(1, 2, None, "uint8", 256),
        pixels=pixels.view(4, 1, 1, 2),
    )
    x = mosaics.draw(500, None, ParticleRng(Seed(0)))
    mean = values(mosaics).mean(1, keepdim=True)
    deviations = values(mosaics) - mean
    contrasts = deviations.norm(dim=0)
    units = deviations / contrasts
    possible = []
    for i, j in combinations_with_replacement(range(4), 2):
        for r in contrasts:
            possible.append(mean[:, 0] + r / 2**0.5 * (units[:, i] + units[:, j]))
    distance = torch.cdist(x.T, torch.stack(possible))
    assert distance.min(1).values.max() < 0.02  # the small noise that separates ties
    assert len(set(distance.argmin(1).tolist())) == len(possible)


def test_a_class_of_one_picture_starts_as_it():
    classes = torch.zeros(600, dtype=torch.int64)
    classes[7] = 1
    mosaics = replace(MOSAICS, y=ClassIndices(classes), n_classes=2)
    x = mosaics.draw(3, ClassIndices(torch.ones(3).long()), ParticleRng(Seed(0)))
    assert (x - values(MOSAICS, slice(7, 8))).abs().max() < 0.02


def test_a_particle_starts_alike_in_any_chunk():
    y = ClassIndices(torch.arange(50) % 3)
    x = MOSAICS.draw(50, y, ParticleRng(Seed(5)))
    part = MOSAICS.draw(10, y.take(slice(20, 30)), ParticleRng(Seed(5), 20))
    assert torch.allclose(x[:, 20:30], part, atol=1e-6)


@pytest.mark.parametrize("locality", [0.5, 2.0, 8.0])
def test_weights_are_smooth_and_no_picture_prevails_everywhere(locality):
    layout = Layout(16, 12, 3, "uint8", 256)
    black = torch.zeros(1, *layout.shape, dtype=torch.uint8)
    mosaics = Mosaics(4, locality, layout, black)
    weights = mosaics._weights(500, ParticleRng(Seed(0)))
    assert torch.allclose(weights.square().sum(0), torch.ones(16 * 12, 500), atol=1e-5)
    field = weights.view(4, 16, 12, 500)
    assert max(field.diff(dim=k).abs().mean() for k in (1, 2)) < 0.5 * field.std()
    shares = field.square().mean((1, 2))  # of each picture in the whole
    assert shares.max(0).values.median() < 0.45
    assert torch.allclose(shares.mean(1), torch.full((4,), 0.25), atol=0.03)
    softer = replace(mosaics, locality=locality / 2)._weights(500, ParticleRng(Seed(0)))
    assert n_effective(softer) > n_effective(weights) > 1


def n_effective(weights):
    """How many pictures prevail at a pixel, on average over pixels and mosaics."""
    return (1 / weights.pow(4).sum(0)).mean()


def test_color_pictures_start_as_mosaics_and_others_as_noise():
    X, y = shades()

    def mosaic_size(X, y=None, **changes):
        return ImageFlow(**SMALL | changes).plan(X, y).mosaic_size

    assert mosaic_size(X, y) == 4
    assert mosaic_size(X) == 4
    assert mosaic_size(X, y, amplifier=0) == 4
    assert mosaic_size(X[..., 0], y) == 0
    assert mosaic_size(X, known="top") == 0
    assert mosaic_size(X, y, amplifier=10) == 0
    assert mosaic_size(X, y, options=ImageOptions(start="noise")) == 0
    assert mosaic_size(X, y, preset="paper") == 0
    assert "mosaics of 4 training pictures" in str(ImageFlow(**SMALL).plan(X, y))
    mosaics = ImageOptions(start=3)
    with pytest.raises(ParameterError, match="known"):
        mosaic_size(X, known="top", options=mosaics)
    with pytest.raises(ParameterError, match="amplifier=inf"):
        mosaic_size(X, y, amplifier=10.0, options=mosaics)


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("labeled", [False, True])
def test_samples_are_of_their_class_and_the_model_keeps_the_pictures(labeled, mirror):
    X, y = shades()
    flow = ImageFlow(
        **SMALL,
        mirror=mirror,
        n_clusters="auto" if labeled else 3,
        options=ImageOptions(start=4),
    )
    flow.fit(X, y if labeled else None)
    stored = flow._record.model.mosaics.decoded_pictures(flow.plan_.layout)
    assert np.abs(stored.astype(int) - X).max() <= 4  # rounded to 64 values
    if labeled:
        samples = flow.sample(300, y=np.arange(300) % 3, random_state=0)
        for c in range(3):
            assert abs(samples[c::3].mean() - X[y == c].mean()) < 4


def test_stored_pictures_that_do_not_fit_the_model_are_refused():
    X, y = shades()
    fitted = ImageFlow(**SMALL).fit(X, y)._record.model
    fitted.check_saved()
    for pixels in (
        None,
        fitted.mosaic_sources[:-1],
        fitted.mosaic_sources[..., :3],
        fitted.mosaic_sources + 60,
    ):
        with pytest.raises(ValueError, match="kept pictures"):
            replace(fitted, mosaic_sources=pixels).check_saved()
