"""Completions of pictures by the pictures most like them."""

import completions
import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from sklearn.svm import SVC

from sliceflow import metrics
from sliceflow.datasets import load
from sliceflow.engine.random import Seed
from sliceflow.estimators.pictures import inpainting
from sliceflow.estimators.pictures.inpainting import PictureClasses, complete_pictures
from sliceflow.estimators.pictures.known_parts import as_known, with_hidden_as_zero
from sliceflow.estimators.pictures.layout import Layout
from sliceflow.estimators.pictures.seams import Seam

TRAIN = load("digits", "train")
TEST = load("digits", "test")
TOP = np.arange(8)[:, None] < np.full((1, 8), 4)
FREE = np.random.default_rng(0).random((8, 8)) < 0.6  # any part will do


@pytest.fixture(scope="module", autouse=True)
def shared_completers():
    """Each fit to the same pictures, with the same part known, is made once."""
    fit = inpainting._Completer
    made = {}

    def completer(rows, known, shape, seed):
        constants = (
            inpainting.MIN_EXTREME_SHARE_OF_DRAWINGS,
            inpainting.N_HIDDEN_COMPONENTS,
        )
        key = (rows.tobytes(), known.tobytes(), shape, seed.key, constants)
        if key not in made:
            made[key] = fit(rows, known, shape, seed)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inpainting, "_Completer", completer)
        yield


def completed(X, known, train, seed=0, n_pixel_values=17, n=1, y=None, train_y=None):
    """Completions as `ImageFlow.inpaint` asks for them."""
    layout = Layout.infer(train, n_pixel_values)
    is_known = as_known(known, layout)
    classes = None
    if y is not None:
        classes = PictureClasses(np.asarray(y), np.asarray(train_y))
    return complete_pictures(
        layout,
        with_hidden_as_zero(X, is_known),
        is_known,
        layout.read(train),
        n=n,
        seed=Seed(seed),
        classes=classes,
    )


@pytest.fixture(scope="module")
def judge():
    svc = SVC(gamma=0.001).fit(TRAIN.images.reshape(-1, 64), TRAIN.labels)
    return lambda images, labels: (svc.predict(images.reshape(-1, 64)) == labels).mean()


@pytest.mark.parametrize("part", ["top", FREE], ids=["top", "free"])
def test_known_pixels_are_kept_and_digits_stay_what_they_are(judge, part):
    images = TEST.images[:150]
    labels = TEST.labels[:150]
    done = completed(images, part, TRAIN.images, n=2)
    assert done.shape == (len(images), 2, 8, 8)
    assert done.dtype == np.uint8
    assert done.max() <= 16
    known = TOP if isinstance(part, str) else part
    assert (done[:, :, known] == images[:, None, known]).all()
    assert (done[:, 0] != done[:, 1]).any()
    # Half of the pixels of a digit do not say all of it; real ones reach .99.
    assert judge(done[:, 0], labels) > 0.8


def test_completions_are_new_and_their_pixels_are_distributed_as_real_ones():
    done = completed(TEST.images[:200], "top", TRAIN.images)[:, 0]
    assert (done[:, 4:] == 0).mean() == pytest.approx(
        (TEST.images[:, 4:] == 0).mean(), abs=0.03
    )
    halves = [
        images[:, 4:].reshape(-1, 32) for images in (done, TRAIN.images, TEST.images)
    ]
    assert 0.8 < metrics.nn_ratio(*halves) < 1.3
    assert metrics.copy_rate(*halves) < 0.05


def walks(n, drawn=False):
    """Pictures whose neighboring pixels are alike; drawn ones are black and white."""
    sums = np.random.default_rng(0).normal(size=(n, 10, 10)).cumsum(1).cumsum(2)
    brightness = (sums - sums.min()) / (sums.max() - sums.min())
    if drawn:
        brightness = brightness > np.median(brightness)
    return (255 * brightness).astype(np.uint8)


@pytest.mark.parametrize("drawn", [False, True], ids=["photographs", "drawings"])
def test_completions_continue_the_known_pixels(drawn):
    images = walks(500, drawn)
    hidden = np.arange(10) >= np.full((10, 1), 5)
    done = completed(images[:100], "left", images[100:], n_pixel_values=256)[:, 0]
    step_at_seam = completions.seam(done, hidden)
    real_step = completions.seam(images[:100], hidden)
    assert 0.2 < step_at_seam / real_step < (1.25 if drawn else 0.95)
    if drawn:  # no fog
        assert np.isin(done, (0, 255)).mean() > 0.99


def seam_of(rows, smooth):
    """The seam of pictures of 4×3 pixels, of which the upper half is known."""
    row, _ = np.mgrid[:4, :3]
    return Seam(rows, (row < 2).ravel(), (1, 4, 3), smooth)


def test_a_constant_difference_at_the_seam_is_spread_over_all_hidden_pixels():
    """Laplace's equation has one solution then: that difference everywhere."""
    seam = seam_of(np.zeros((1, 12)), smooth=True)
    assert seam.known_of_pair.tolist() == [3, 4, 5]
    assert seam.hidden_of_pair.tolist() == [0, 1, 2]
    pixels = np.random.default_rng(0).random((2, 3, 6))
    given = np.zeros((2, 12))
    given[:, 3:6] = 0.5
    pixels[..., :3] = 0.2
    np.testing.assert_allclose(seam.blend(given, pixels), pixels + 0.3)
    assert seam_of(np.zeros((1, 12)), smooth=False).blend(given, pixels) is pixels


def test_draws_are_taken_in_proportion_to_how_well_they_continue():
    """Not always the best one: eight equal ones are taken equally often."""
    rows = np.zeros((2, 12))
    rows[:, 3:6] = [[1.0], [-1.0]]  # σ² = 1
    seam = seam_of(rows, smooth=False)
    assert seam.mean_square == pytest.approx(1)
    given = np.zeros((4_000, 12))
    at_seam = np.zeros((4_000, 8, 3))
    best = seam.choose_draws(given, at_seam, Seed(0))
    assert best.shape == (4_000, 1)
    assert chisquare(np.bincount(best[:, 0], minlength=8)).pvalue > 0.01
    # Σe²/(2·3·σ²) = log 2: half as likely as each of the others.
    at_seam[:, 0] = np.sqrt(2 * np.log(2))
    share = (seam.choose_draws(given, at_seam, Seed(1)) == 0).mean()
    assert share == pytest.approx(1 / 15, abs=0.012)
    at_seam[:, 1:] = 50
    assert (seam.choose_draws(given, at_seam, Seed(2)) == 0).all()


def test_photographs_have_the_detail_that_components_leave_out(monkeypatch, rng):
    shade = rng.normal(size=(540, 16, 16, 3)).cumsum(1).cumsum(2)
    detail = rng.normal(size=shade.shape)
    images = (128 + 3 * shade + 12 * detail).clip(1, 254).astype(np.uint8)
    hidden = np.arange(16) >= np.full((16, 1), 8)
    test = images[:40]
    real = completions.speckle(test, hidden)
    done = completed(test, "left", images[40:], n_pixel_values=256)[:, 0]
    assert 0.9 < completions.speckle(done, hidden) / real < 1.1
    monkeypatch.setattr(inpainting, "MIN_EXTREME_SHARE_OF_DRAWINGS", 0.0)  # as drawings
    done = completed(test, "left", images[40:], n_pixel_values=256)[:, 0]
    assert completions.speckle(done, hidden) / real < 0.8


def test_detail_is_that_of_the_own_class(monkeypatch, rng):
    """One class has rough detail, which two components leave out."""
    monkeypatch.setattr(inpainting, "N_HIDDEN_COMPONENTS", 2)
    shade = 0.2 * rng.random((400, 1, 1)) + 0.4 + 0.05 * rng.random((400, 16, 16))
    label = np.arange(400) % 4 == 3
    noise = rng.choice([-0.15, 0.15], (400, 16, 16)) * label[:, None, None]
    images = shade + noise
    given = images[~label][:40]
    wanted = np.repeat([0, 1], 20)
    done = completed(given, "left", images, y=wanted, train_y=1 * label)[:, 0]
    roughness = done[:, :, 9:].std((1, 2))
    assert roughness[20:].min() > 0.1
    assert roughness[:20].max() < 0.08


def test_labels_decide_what_a_part_does_not_say(judge):
    known = np.zeros((8, 8), bool)
    known[0] = True  # hardly anything
    wanted = np.arange(60) % 10
    given = TEST.images[:60]
    done = completed(given, known, TRAIN.images, y=wanted, train_y=TRAIN.labels)[:, 0]
    assert judge(done, wanted) > 0.6
    assert judge(completed(given, known, TRAIN.images)[:, 0], wanted) < 0.4


def test_hidden_pixels_and_other_pictures_play_no_part():
    given = TEST.images[:5].copy()
    done = completed(given, "top", TRAIN.images, n=3)
    given[:, 4:] = 77  # not even in the range
    assert np.array_equal(completed(given, "top", TRAIN.images, n=3), done)
    assert np.array_equal(completed(given[:2], "top", TRAIN.images, n=3), done[:2])
    assert not np.array_equal(completed(given, "top", TRAIN.images, n=3, seed=1), done)


def test_hidden_pixels_may_be_nan_or_masked():
    images = TRAIN.images / 16
    given = images[:3].copy()
    done = completed(given, "top", images[100:])
    given[:, 4:] = np.nan
    assert np.array_equal(completed(given, "top", images[100:]), done)
    assert np.isfinite(done).all()
    masked = np.ma.masked_invalid(given)
    assert np.array_equal(
        with_hidden_as_zero(masked, TOP), with_hidden_as_zero(given, TOP)
    )
    given[0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="float pictures must be in"):
        completed(given, "top", images[100:])


def test_color_and_floats_and_tensors():
    shade = np.random.default_rng(0).random((300, 1, 1, 3)).astype(np.float32)
    images = np.broadcast_to(shade, (300, 6, 5, 3)).copy()  # one color each
    done = completed(images[:20], "left", images[20:])[:, 0]
    assert done.dtype == np.float32
    assert np.abs(done - images[:20]).mean() < 0.1
    assert completed(torch.from_numpy(images[:2]), "left", images[20:]).shape[0] == 2


def test_few_pictures_and_a_constant_part_work():
    images = np.zeros((12, 4, 4), np.uint8)
    images[:, 3] = np.arange(12)[:, None]  # the known part says nothing
    done = completed(images[:2], "top", images, n=50)
    assert done[:, :, 3].std() > 1
    assert (done[:, :, 2] == 0).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"known": np.ones((8, 8), bool)}, "every pixel is known; hide"),
        ({"known": np.zeros((8, 8), bool)}, "no pixel is known; draw"),
        ({"train": TRAIN.images[:5]}, "5 pictures to learn from; pass at least 10"),
    ],
)
def test_bad_input_is_named(changed, message):
    given = {"X": TEST.images[:3], "known": "top", "train": TRAIN.images} | changed
    with pytest.raises(ValueError, match=message):
        completed(**given)
