"""Particles that start as sums of a few pictures."""

import numpy as np
import pytest
import torch

import sliceflow
from sliceflow import ImageFlow, PictureOptions
from sliceflow.engine.flow import Noise
from sliceflow.engine.random import Seed
from sliceflow.errors import ParameterError
from sliceflow.metrics import copies, lookalikes
from sliceflow.models.disclosure import holds_data
from sliceflow.spaces.pictures.layout import Layout
from sliceflow.spaces.pictures.sums import Sums

LAYOUT = Layout(4, 3, 3, "uint8", 256)
RAW = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (36, 600), dtype=np.uint8))
CODES = torch.arange(600) % 3
SMALL = dict(schedule="2[2] 4[3]", quality=2, transport="histogram", device="cpu", random_state=0)


def pictures(n=360, seed=0):
    """Colour pictures of three classes, each with a brightness of its own."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    X = rng.normal(60 + 60 * y[:, None, None, None], 20, (n, 4, 4, 3)).clip(0, 255).astype(np.uint8)
    return X, y


@pytest.mark.parametrize(("size", "locality"), [(2, 0), (4, 0), (9, 0), (4, 2.0), (3, 9.0)])
def test_sums_have_about_the_mean_and_the_covariance_of_their_class(size, locality):
    sums = Sums(size, locality, LAYOUT, RAW, CODES, 3)
    y = torch.arange(30_000) % 3
    x = sums.start(len(y), y, Noise(Seed(1))).double()
    for c in range(3):
        of = LAYOUT.encode(RAW[:, c == CODES], Seed(0), dequantize=False).double()
        assert ((x[:, y == c].mean(1) - of.mean(1)).abs() < 0.1 * of.std(1)).all()
        difference = torch.cov(x[:, y == c]) - torch.cov(of)
        if locality:  # pixels that are apart are of different pictures, and vary less together
            difference = difference.diag()
        assert difference.abs().max() < 0.1 * of.var(1).mean()


def test_the_sum_is_that_of_the_formula():
    raw = torch.tensor([[0, 200, 40, 0], [10, 30, 0, 255]], dtype=torch.uint8)
    layout = Layout(1, 2, None, "uint8", 256)
    pixels = layout.encode(raw, Seed(0), dequantize=False)
    mean = pixels.mean(1, keepdim=True)
    away = pixels - mean
    contrasts = away.norm(dim=0)
    units = away / contrasts
    x = Sums(2, 0, layout, raw).start(500, None, Noise(Seed(0)))
    possible = [
        mean[:, 0] + r / 2**0.5 * (units[:, i] + units[:, j])
        for r in contrasts
        for i in range(4)
        for j in range(i, 4)
    ]
    distance = torch.cdist(x.T, torch.stack(possible))
    assert distance.min(1).values.max() < 0.02  # the small noise that separates ties
    assert len(set(distance.argmin(1).tolist())) == len(possible)


def test_no_picture_stands_out_of_a_sum():
    raw = RAW.clone()
    raw[:, 0] = torch.tensor([0, 255] * 18, dtype=torch.uint8)  # of far more contrast than others
    raw[:, 1:] = 128 + (raw[:, 1:] - 128.0).mul(0.1).to(torch.uint8)
    pixels = LAYOUT.encode(raw, Seed(0), dequantize=False)
    x = Sums(4, 2.0, LAYOUT, raw).start(4000, None, Noise(Seed(0)))
    mean = pixels.mean(1, keepdim=True)
    cosine = torch.nn.functional.cosine_similarity(x - mean, (pixels - mean)[:, :1], dim=0)
    assert cosine.abs().max() < 0.95


def test_a_class_of_one_picture_starts_as_it():
    codes = torch.zeros(600, dtype=torch.int64)
    codes[7] = 1
    x = Sums(4, 2.0, LAYOUT, RAW, codes, 2).start(3, torch.ones(3, dtype=torch.int64), Noise(Seed(0)))
    picture = LAYOUT.encode(RAW[:, 7:8], Seed(0), dequantize=False)
    assert (x - picture).abs().max() < 0.02
    assert torch.isfinite(x).all()


def test_a_particle_of_several_classes_starts_between_them():
    sums, noise = Sums(4, 2.0, LAYOUT, RAW, CODES, 3), Noise(Seed(0))
    classes = torch.arange(30) % 3
    pure = torch.eye(3, dtype=torch.float64)[classes]
    own = sums.start(30, classes, noise)
    assert torch.equal(sums.start(30, pure, noise), own)
    weights = torch.tensor([[0.75, 0.25, 0.0]], dtype=torch.float64).expand(20_000, 3)
    x = sums.start(20_000, weights, noise)
    means = [LAYOUT.encode(RAW[:, c == CODES], Seed(0), dequantize=False).mean(1) for c in range(3)]
    assert (x.mean(1) - (0.75 * means[0] + 0.25 * means[1])).abs().max() < 0.03
    spread = sums.start(20_000, torch.zeros(20_000, dtype=torch.int64), noise).std(1).mean()
    assert float(x.std(1).mean()) == pytest.approx(float(spread), rel=0.05)


def test_samples_of_several_classes():
    X, y = pictures()
    flow = ImageFlow(**SMALL).fit(X, y)
    assert flow.plan_.n_summed == 4
    weights = np.eye(3)[[0, 1, 2]]
    alone = flow.sample(3, y=weights, random_state=0).astype(int)
    assert np.abs(alone - flow.sample(3, y=[0, 1, 2], random_state=0)).max() <= 1
    mixed = [[1.0, 0, 0]], [[0.5, 0.5, 0]], [[0, 1.0, 0]]
    light = [flow.sample(200, y=w * 200, random_state=0).mean() for w in mixed]
    assert light[0] + 15 < light[1] < light[2] - 15


def test_a_particle_starts_alike_in_any_chunk():
    sums, noise, y = Sums(3, 2.0, LAYOUT, RAW, CODES, 3), Seed(5), torch.arange(50) % 3
    whole = sums.start(50, y, Noise(noise))
    assert torch.equal(whole[:, 20:30], sums.start(10, y[20:30], Noise(noise, 20)))


def test_colour_pictures_start_as_sums_and_others_as_noise():
    X, y = pictures()
    assert ImageFlow(**SMALL).plan(X, y).n_summed == 4
    assert ImageFlow(**SMALL).plan(X).n_summed == 4
    assert ImageFlow(**SMALL).plan(X[..., 0], y).n_summed == 0
    assert ImageFlow(**SMALL, observed="top").plan(X).n_summed == 0
    assert ImageFlow(**SMALL, amplifier=10).plan(X, y).n_summed == 0
    assert ImageFlow(**SMALL, options=PictureOptions(start="noise")).plan(X, y).n_summed == 0
    paper = ImageFlow(preset="paper", device="cpu", options=PictureOptions(n_knots=0))
    assert paper.plan(X, y).n_summed == 0
    assert "sums of 4 pictures" in str(ImageFlow(**SMALL).plan(X, y))


@pytest.mark.parametrize(
    ("more", "words"),
    [(dict(observed="top"), "observed"), (dict(amplifier=10.0), "amplifier=inf")],
)
def test_sums_that_cannot_be_are_refused(more, words):
    X, y = pictures()
    flow = ImageFlow(**SMALL, options=PictureOptions(start=3), **more)
    with pytest.raises(ParameterError, match=words):
        flow.fit(X, None if "observed" in more else y)


@pytest.mark.parametrize("start", [0, 1.5, "data", True, -1])
def test_a_wrong_start_is_refused(start):
    with pytest.raises(ParameterError, match="start"):
        ImageFlow(options=PictureOptions(start=start)).fit(pictures()[0])


def test_pictures_that_only_are_counted_start_as_noise():
    X, y = pictures()
    flow = ImageFlow(**SMALL).partial_fit(X, y)
    assert flow.plan_.n_summed == 0
    with pytest.raises(ParameterError, match="partial_fit"):
        ImageFlow(**SMALL, options=PictureOptions(start=3)).partial_fit(X, y)


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("floats", [False, True])
def test_a_saved_model_keeps_the_pictures_and_draws_the_same_samples(
    tmp_path, mirror, labelled, floats
):
    X, y = pictures()
    X = X / 255 if floats else X
    y = y if labelled else None
    flow = ImageFlow(**SMALL, mirror=mirror, n_clusters=3 if y is None else "auto").fit(X, y)
    flow.save(tmp_path / "m.sliceflow")
    again = sliceflow.load(tmp_path / "m.sliceflow")
    np.testing.assert_array_equal(again.sample(40, random_state=3), flow.sample(40, random_state=3))
    assert holds_data(flow)
    assert holds_data(again)
    again.save(tmp_path / "again.sliceflow")
    third = sliceflow.load(tmp_path / "again.sliceflow")
    np.testing.assert_array_equal(third.sample(40, random_state=3), flow.sample(40, random_state=3))


def test_labels_that_the_flow_ignores_do_not_matter():
    X, y = pictures()
    flow = ImageFlow(**SMALL, amplifier=0).fit(X, y)
    assert flow.plan_.n_summed == 4
    assert flow.sample(9, y=2, random_state=0).shape == (9, 4, 4, 3)


def test_offline_samples_are_of_their_class():
    X, y = pictures(600)
    samples = ImageFlow(**SMALL).fit(X, y).sample(300, y=np.arange(300) % 3, random_state=0)
    light = samples.reshape(300, -1).mean(1)
    for c in range(3):
        assert abs(light[c::3].mean() - X[y == c].mean()) < 3


def test_a_fit_that_starts_as_sums_goes_on_after_a_stop(tmp_path):
    X, y = pictures()
    whole = ImageFlow(**SMALL).fit(X, y)

    class Stopped(Exception):
        pass

    def stop(event):
        if event.steps_done == 3:
            raise Stopped

    with pytest.raises(Stopped):
        ImageFlow(**SMALL).fit(X, y, checkpoint_dir=tmp_path, checkpoint_every=0, listeners=stop)
    resumed = ImageFlow(**SMALL).fit(X, y, checkpoint_dir=tmp_path, checkpoint_every=0)
    np.testing.assert_array_equal(resumed.particles_, whole.particles_)


def test_lookalikes_are_found_where_copies_are_not():
    rng = np.random.default_rng(0)
    train, test, samples = rng.normal(size=(3, 2000, 10)) * rng.exponential(size=(3, 2000, 1))
    assert 0.002 < lookalikes(samples, train, test, device="cpu") < 0.025
    far = np.linalg.norm(train, axis=1).argsort()[-100:]
    samples[:100] = train[far] * 1.05
    assert copies(samples, train, test, device="cpu") < 0.02
    assert lookalikes(samples, train, test, device="cpu") > 0.045


def test_a_mirror_image_is_a_lookalike_if_mirror_images_were_fitted():
    rng = np.random.default_rng(1)
    train, test, samples = rng.integers(0, 256, (3, 300, 6, 6, 3)).astype(np.uint8)
    samples[:30] = train[:30, :, ::-1]
    assert lookalikes(samples, train, test, device="cpu") < 0.05
    assert lookalikes(samples, train, test, mirror=True, device="cpu") >= 0.1


def test_pictures_of_large_pieces_are_lookalikes_of_patches():
    rng = np.random.default_rng(2)
    train, test, samples = rng.integers(0, 256, (3, 400, 8, 8, 3)).astype(np.uint8)
    samples[:100, :4, :4] = train[:100, :4, :4]  # a quarter of each is that of a picture
    settings = dict(patch=4, device="cpu")
    assert lookalikes(samples[100:], train, test, **settings) < 0.03
    assert lookalikes(samples[:100], train, test, **settings) > 1 / 9
    assert lookalikes(samples[:100, :, ::-1], train, test, mirror=True, **settings) > 1 / 9
    with pytest.raises(ParameterError, match="patch=9 must be 1 to the side"):
        lookalikes(samples, train, test, patch=9, device="cpu")
    with pytest.raises(ParameterError, match="0×0"):
        lookalikes(*(of.reshape(400, -1) for of in (samples, train, test)), patch=2, device="cpu")


@pytest.mark.parametrize("locality", [0.5, 2.0, 8.0])
def test_weights_are_smooth_and_no_picture_prevails_everywhere(locality):
    layout = Layout(32, 24, 3, "uint8", 256)
    raw = torch.zeros(layout.dimension, 1, dtype=torch.uint8)
    weights = Sums(4, locality, layout, raw)._weights(500, Noise(Seed(0)))
    assert torch.allclose(weights.square().sum(0), torch.ones(32 * 24, 500), atol=1e-5)
    field = weights.view(4, 32, 24, 500)
    steps = [field.diff(dim=k).abs().mean() for k in (1, 2)]
    assert max(steps) < 0.3 * field.std()
    shares = field.square().mean((1, 2))  # of each picture in the whole
    assert shares.max(0).values.median() < 0.4
    assert torch.allclose(shares.mean(1), torch.full((4,), 0.25), atol=0.03)


def test_sharper_weights_have_fewer_pictures_at_a_place():
    layout = Layout(16, 16, 3, "uint8", 256)
    raw = torch.zeros(layout.dimension, 1, dtype=torch.uint8)

    def pictures(locality):
        weights = Sums(4, locality, layout, raw)._weights(300, Noise(Seed(0)))
        return float((1 / weights.pow(4).sum(0)).mean())

    assert pictures(0.0) == pytest.approx(4)
    assert pictures(0.0) > pictures(1.0) > pictures(2.0) > pictures(8.0) > 1


@pytest.mark.parametrize("locality", [-1, float("nan"), "much", None, True])
def test_a_wrong_locality_is_refused(locality):
    with pytest.raises(ParameterError, match="locality"):
        ImageFlow(options=PictureOptions(locality=locality)).fit(pictures()[0])
