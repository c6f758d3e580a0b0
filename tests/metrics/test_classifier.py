"""The small network: it learns, it is kept without pickle, it can do without labels."""

import json
import zipfile

import numpy as np
import pytest
from safetensors import safe_open

from sliceflow.datasets import load
from sliceflow.metrics import frechet_distance, train_classifier

QUICK = {"n_pixel_values": 17, "epochs": 4, "width": 4, "device": "cpu"}


@pytest.fixture(scope="module")
def digits():
    return load("digits"), load("digits", split="test")


def test_digits_are_recognised_and_the_network_is_read_again(digits, tmp_path):
    train, test = digits
    given = (train.images, train.labels, test.images, test.labels)
    judge = train_classifier(*given, cache=tmp_path, **QUICK)
    assert judge.accuracy > 0.85
    assert judge.accuracy == judge.score(test.images, test.labels)
    (file,) = tmp_path.iterdir()
    assert not zipfile.is_zipfile(file)  # torch.save would have made one, with a pickle in it
    with safe_open(file, "pt") as kept:
        assert json.loads(kept.metadata()["sliceflow"])["accuracy"] == judge.accuracy
    again = train_classifier(*given, cache=tmp_path, **QUICK)
    assert again.about["read from"] == str(file)
    assert again.accuracy == judge.accuracy
    assert np.array_equal(again.features(test.images), judge.features(test.images))
    assert np.array_equal(again.predict(test.images), judge.predict(test.images))
    # Other pictures or settings are another file.
    train_classifier(train.images[:200], train.labels[:200], cache=tmp_path, **QUICK | {"epochs": 1})
    assert len(list(tmp_path.iterdir())) == 2


def test_noise_is_far_in_its_features_and_real_pictures_are_near(digits):
    train, test = digits
    judge = train_classifier(train.images, train.labels, **QUICK)
    assert judge.accuracy is None
    real, unseen = judge.features(train.images), judge.features(test.images)
    noise = judge.features(np.random.default_rng(0).integers(0, 17, test.images.shape).astype(np.uint8))
    assert frechet_distance(noise, real) > 20 * frechet_distance(unseen, real)


def test_without_labels_it_learns_which_way_is_up():
    up = np.linspace(0, 255, 12).astype(np.uint8)[None, :, None, None]
    noise = np.random.default_rng(0).integers(-20, 21, (240, 12, 12, 3))
    images = (up + noise).clip(0, 255).astype(np.uint8)
    judge = train_classifier(
        images[:200], None, images[200:], epochs=4, width=4, device="cpu", mirror=False
    )
    assert list(judge.classes) == ["0°", "180°", "270°", "90°"]
    assert judge.accuracy > 0.95
    assert judge.about["classes"] == "rotations"
    assert judge.features(images[:3]).shape == (3, 32)
    with pytest.raises(ValueError, match="12×8 cannot be turned"):
        train_classifier(images[:, :, :8], None)


def test_classes_may_be_words(digits):
    train, test = digits
    words = np.array(["zero", "other"])[(train.labels > 0).astype(int)]
    judge = train_classifier(train.images, words, **QUICK | {"epochs": 1})
    assert set(judge.predict(test.images)) <= {"zero", "other"}


def test_labels_must_be_one_for_each_picture(digits):
    images, labels = digits[0].images, digits[0].labels
    for wrong in (labels[:-1], np.repeat(labels, 2), labels[:, None]):
        with pytest.raises(
            ValueError, match=r"labels have shape .* for 1297 pictures; pass one for each"
        ):
            train_classifier(images, wrong, **QUICK)
    with pytest.raises(ValueError, match=r"pictures have shape \(1297, 64\); pass \(n, h, w\)"):
        train_classifier(images.reshape(-1, 64), labels, **QUICK)


def test_labels_may_be_a_list_of_numbers_of_numpy(digits, tmp_path):
    images, labels = digits[0].images[:50], digits[0].labels[:50]
    for given in (labels, list(labels)):
        judge = train_classifier(images, given, cache=tmp_path, **QUICK)
    assert "read from" in judge.about


@pytest.mark.filterwarnings("error")
def test_read_only_pictures_are_not_warned_of(digits):
    images, labels = digits[0].images[:50].copy(), digits[0].labels[:50]
    images.flags.writeable = False
    judge = train_classifier(images, labels, **QUICK)
    assert np.array_equal(judge.features(images), judge.features(images.copy()))


def test_a_damaged_cache_is_named(tmp_path):
    train = load("digits")
    given = train.images[:100], train.labels[:100]
    train_classifier(*given, cache=tmp_path, **QUICK | {"epochs": 1})
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(kept.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"classifier-\w+.safetensors is not a classifier, or damaged"):
        train_classifier(*given, cache=tmp_path, **QUICK | {"epochs": 1})
