"""Classes with maps of their own: one flow per class, whatever else is beside it."""

import math

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.svm import SVC

import sliceflow
from sliceflow import ImageFlow, ModelFileError, PictureOptions
from sliceflow.engine.transports import Auto, Histogram, Sorted
from sliceflow.models import file as container
from sliceflow.spaces.pictures.plan import choose_amplifier, choose_transport

DIGITS = load_digits()
IMAGES, LABELS = DIGITS.images.astype(np.uint8)[:900], DIGITS.target[:900]
apart = dict(
    schedule="1[1] 3[3] 8[5,2]",
    n_particles=700,
    quality=4,
    n_pixel_values=17,
    random_state=0,
    device="cpu",
    amplifier=math.inf,
    transport=Histogram(64),
)


@pytest.fixture(scope="module")
def digits():
    return ImageFlow(**{**apart, "n_particles": 2000, "quality": 12}).fit(IMAGES, LABELS)


def shades(sizes=(300, 300), seed=0):
    """Pictures that are dark or light, or of as many shades as there are sizes, and their labels."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    grey = 40 + 170 * labels / max(1, len(sizes) - 1)
    return (grey[:, None, None] + rng.integers(-25, 26, (len(labels), 5, 5))).astype(np.uint8), labels


few = {**apart, "schedule": "1[1] 5[5,2]", "n_pixel_values": 256, "n_particles": 300}


# One flow per class


def test_a_class_of_one_picture_is_fitted():
    images, labels = shades((200, 1, 99))
    flow = ImageFlow(**few).fit(images, labels)
    lone = flow.particles_[flow.particle_conditions_ == 1].astype(int)
    assert len(lone) == 1
    assert np.abs(lone - images[labels == 1]).mean() < 12


# Batches


def test_batches_give_the_same_bits_again_and_nearly_what_all_columns_give():
    images, labels = shades((500, 3, 400))
    whole = ImageFlow(**few).fit(images, labels)
    flow, again = (
        ImageFlow(**{**few, "transport": Histogram(64, most=60)}).fit(images, labels) for _ in range(2)
    )
    assert np.array_equal(flow.particles_, again.particles_)
    assert not np.array_equal(flow.particles_, whole.particles_)
    assert np.array_equal(flow.particle_conditions_, whole.particle_conditions_)
    for c, grey in enumerate((40, 125, 210)):
        ours = flow.particles_[flow.particle_conditions_ == c]
        assert np.abs(ours.mean((1, 2)) - grey).max() < 25
    assert np.array_equal(flow.sample(9, random_state=0), again.sample(9, random_state=0))


def test_large_clouds_are_counted_though_a_step_sees_few():
    images, labels = shades((3000, 2500))
    flow = ImageFlow("1[1] 5[3]", 1000, 1, random_state=0, transport=Auto(most=500)).fit(images, labels)
    assert flow._fitted.levels.apart == 2
    assert np.array_equal(flow.particles_.mean((1, 2)) > 125, flow.particle_conditions_ == 1)


# Offline samples


def test_samples_show_their_label(digits):
    wanted = np.arange(500) % 10
    samples = digits.sample(500, y=wanted, random_state=1)
    assert SVC().fit(IMAGES.reshape(900, -1), LABELS).score(samples.reshape(500, -1), wanted) > 0.9
    assert np.array_equal(
        digits.sample(3, 7, random_state=1), digits.sample(3, [7] * 3, random_state=1)
    )


def test_one_hot_rows_are_labels_whatever_else_is_drawn(digits):
    wanted = np.random.default_rng(0).integers(0, 10, 60)
    ours = digits.sample(60, y=wanted, random_state=1).astype(int)
    assert np.abs(digits.sample(60, y=np.eye(10)[wanted], random_state=1) - ours).max() <= 1
    other = np.where(np.arange(60) % 3 == 0, wanted, 9 - wanted)
    theirs = digits.sample(60, y=other, random_state=1).astype(int)
    assert np.abs(theirs - ours)[other == wanted].max() <= 1
    assert np.abs(theirs - ours)[other != wanted].mean() > 1
    few = digits.sample(5, y=wanted[:5], random_state=1).astype(int)
    assert np.abs(few - ours[:5]).max() <= 1


def test_a_mixed_picture_is_between_its_classes():
    flow = ImageFlow(**few).fit(*shades())
    grey = [
        float(flow.sample(50, y=np.tile(row, (50, 1)), random_state=0).mean())
        for row in ([1.0, 0.0], [0.5, 0.5], [0.0, 1.0])
    ]
    assert grey[0] < 60 < 90 < grey[1] < 160 < 190 < grey[2]


# What is kept


def refitted(name, n_knots=12):
    images, labels = shades()
    options = few | {"options": PictureOptions(n_knots=n_knots)}
    if name == "classes":
        return ImageFlow(**options).fit(images, np.array(["dark", "light"])[labels])
    return ImageFlow(**options | {"amplifier": "auto", "n_clusters": 3}).fit(images)


@pytest.mark.parametrize("n_knots", [12, 1024])
@pytest.mark.parametrize("name", ["classes", "clusters"])
def test_files_give_the_same_bits_again(name, n_knots, tmp_path):
    flow = refitted(name, n_knots)
    flow.save(tmp_path / "a", particles=True)
    loaded = sliceflow.load(tmp_path / "a", device="cpu")
    assert loaded.get_params() == flow.get_params()
    assert np.array_equal(loaded.sample(60, random_state=1), flow.sample(60, random_state=1))
    assert np.array_equal(loaded.particles_, flow.particles_)
    if name == "classes":
        ours, theirs = (f.sample(9, y="light", random_state=1) for f in (flow, loaded))
        assert np.array_equal(ours, theirs)
        assert loaded.classes_.tolist() == ["dark", "light"]
    else:
        assert loaded.particle_conditions_ is None
        assert not hasattr(loaded, "classes_")
        with pytest.raises(ValueError, match=r"^y was given but the model was fitted without labels"):
            loaded.sample(3, y=1)
    loaded.save(tmp_path / "b", particles=True)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(("was", "now"), [(10.0, None), (math.inf, 10.0)])
def test_a_file_with_the_maps_of_another_amplifier_is_refused(was, now, tmp_path):
    flow = ImageFlow(**few | {"amplifier": was}).fit(*shades())
    flow.save(tmp_path / "m")
    text, tensors = container.read(tmp_path / "m")
    assert text["amplifier"] == (None if was == math.inf else was)
    container.write(tmp_path / "m", {**text, "amplifier": now}, tensors)
    with pytest.raises(ModelFileError, match=r"has \d maps but its frame needs \d"):
        sliceflow.load(tmp_path / "m", device="cpu")


# Which amplifier


def test_the_automatic_amplifier_holds_large_classes_apart():
    choices = {
        ("auto", 3000, 2001, 2): math.inf,
        ("auto", 3000, 2000, 2): 10.0,  # sorted
        ("auto", 9000, 199, 2): 10.0,  # a class has less than 100 pictures
        ("auto", 9000, 200, 2): math.inf,
        ("histogram", 10, 200, 2): math.inf,
        ("histogram", 10, 199, 2): 10.0,
        ("sorted", 90_000, 90_000, 2): 10.0,
        (Sorted(), 90_000, 90_000, 2): 10.0,
        (Histogram(8), 10, 2000, 2): math.inf,
        (Auto(threshold=10), 10, 2000, 2): math.inf,
        (Auto(threshold=10**6), 9000, 2000, 2): 10.0,
    }
    assert {of: choose_amplifier("auto", *of) for of in choices} == choices
    assert choose_amplifier(3, "auto", 9000, 9000, 2) == 3.0
    assert choose_amplifier(math.inf, "auto", 9000, 20, 2) == math.inf
    assert choose_amplifier(0.0, "sorted", 9000, 20, 2) == 0.0
    bins = {xi: choose_transport("histogram", xi).n_bins for xi in (0.0, 10.0, math.inf)}
    assert bins == {0.0: 128, 10.0: 1024, math.inf: 128}


@pytest.mark.parametrize(
    ("n_per_class", "transport", "amplifier", "found"),
    [
        (1000, "auto", "auto", math.inf),
        (100, "histogram", "auto", math.inf),
        (99, "histogram", "auto", 10.0),
        (1000, "sorted", "auto", 10.0),
        (1000, "auto", 5, 5.0),
        (1000, "auto", 0, 0.0),
    ],
)
def test_a_fit_uses_it(n_per_class, transport, amplifier, found):
    images, labels = shades((n_per_class, n_per_class))
    options = dict(amplifier=amplifier, transport=transport, random_state=0)
    flow = ImageFlow("1[1]", 3500, 1, **options).fit(images, labels)
    assert flow._fitted.levels.amplifier == found
    table = flow._fitted.model[0].table
    assert len(table.values if transport == "sorted" else table.lo) == (2 if found == math.inf else 1)


def test_classes_that_are_sorted_cannot_be_held_apart():
    message = (
        "^amplifier=inf needs histograms, but this transport sorts 300 particles and 600 pictures; "
        "use a finite amplifier such as 10, or transport='histogram'$"
    )
    for transport in ("auto", "sorted", Sorted()):
        with pytest.raises(ValueError, match=message):
            ImageFlow(**few | {"transport": transport}).fit(*shades())


def test_a_class_of_one_picture_has_a_particle():
    images, labels = shades()
    labels = labels.copy()
    labels[:] = 0
    labels[0] = 7
    for n_knots in (0, 16):
        flow = ImageFlow(**few | {"n_particles": 20}, options=PictureOptions(n_knots=n_knots)).fit(
            images, labels
        )
        assert sorted(flow.particle_conditions_.tolist()) == [0] * 19 + [7]
