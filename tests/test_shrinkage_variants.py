"""The benchmark of variants of shrinkage: its rules are what they say, and it runs at tiny sizes."""

import json
import math
from functools import partial

import numpy as np
import pytest
import shrinkage
import torch
from shrinkage import Maps, Modes, Variant

from sliceflow import ImageFlow, PictureOptions, datasets, metrics
from sliceflow.engine.shrinkage import Shrinkage
from sliceflow.engine.transports import Histogram
from sliceflow.spaces.pictures.levels import LevelFlow

SHAPES = {
    "normal": lambda z: z,
    "uniform": torch.special.ndtr,
    "squared normal": torch.square,
}


def fitted(kappa, quality=3):
    digits = datasets.load("digits")
    flow = ImageFlow(
        quality=quality,
        n_particles=600,
        n_pixel_values=17,
        amplifier=math.inf,
        transport="histogram",
        options=PictureOptions(n_knots=0, shrinkage=kappa),
        random_state=0,
        device="cpu",
    )
    return flow.fit(digits.images[:300], digits.labels[:300])


def maps_between(z_p, z_q, side=1):
    """Maps of one class, and their displacement."""
    fit = Histogram(256).fit(z_p, z_q)
    rate = torch.full((len(z_p),), 1 / z_p.shape[1] + 1 / z_q.shape[1], dtype=torch.float64)
    maps = Maps(fit.table, fit.cost, rate, side, 1)
    return maps, fit.table.values.double() - maps.edges


def equal_distributions(shape, side=1):
    z = shape(torch.randn(400, 2000, generator=torch.Generator().manual_seed(0)))
    return maps_between(z[:, :1200], z[:, 1200:], side)


def test_own_factors_are_the_librarys_bit_for_bit():
    library, before = fitted(0.7), (Shrinkage.shrunk, LevelFlow.engine)
    with Variant.of("own:.7").running():
        variant = fitted(1.0)
    assert (Shrinkage.shrunk, LevelFlow.engine) == before
    assert np.array_equal(variant.particles_, library.particles_)
    assert variant.history_["distance"] == library.history_["distance"]
    assert variant.history_["moving"] == library.history_["moving"]
    assert min(library.history_["moving"]) < 1  # some maps stood still


def test_every_rule_changes_the_samples():
    library = fitted(0.0, 1)
    names = ("own:.7", "hard:.5", "squared:.7", "pooled:1,.1", "modes:4,.2", "shared:4,.2", "step:.5")
    seen = [library.particles_]
    for name in (*names, "tapered"):
        variant = Variant.of(name)
        with variant.running():
            seen.append(fitted(variant.shrinkage, 1).particles_)
    for i, samples in enumerate(seen):
        assert not any(np.array_equal(samples, other) for other in seen[:i])


@pytest.mark.parametrize("shape", SHAPES)
def test_modes_between_equal_distributions_have_the_noise_of_their_influence_functions(shape):
    maps, moved = equal_distributions(SHAPES[shape])
    found = Modes.of(maps, moved, 4)
    ratios = found.coefficients.square().mean(1) / found.noise.mean(1)
    assert ratios.tolist() == pytest.approx([1] * 4, abs=0.25)  # of 400 draws, √(2/400) = .07


def test_all_modes_and_the_rest_are_the_displacement():
    maps, moved = equal_distributions(SHAPES["normal"])
    found = Modes.of(maps, moved, 4)
    same = found.shrunk(maps, moved, found.coefficients, kappa=0.0, floor=0.0)
    torch.testing.assert_close(same, moved)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("own:4", 0.0, 0.1),
        ("hard:4", 0.0, 0.5),
        ("squared:4", 0.0, 0.2),
        ("pooled:3", 0.0, 0.1),
        ("pooled:9,.25", 0.25**2, 0.25**2),
        ("modes:4,0,1.5", 0.0, 0.2),
        ("shared:4,0,1.5", 0.0, 0.2),
        ("own:0", 1.0, 1.0),
    ],
)
def test_rules_stop_noise_and_let_a_shift_pass(name, least, most):
    ((rule, numbers),) = Variant.of(name).rules

    def left(maps, moved):
        return float(rule(maps, moved, *numbers).square().mean() / moved.square().mean())

    share = left(*equal_distributions(SHAPES["normal"], side=4))
    assert least - 1e-9 <= share <= most + 1e-9
    z = torch.randn(8, 2000, generator=torch.Generator().manual_seed(0))
    shifted = left(*maps_between(z[:, :1000], z[:, 1000:] + 3.0, side=4))
    assert shifted > 0.9 or "9,.25" in name
    assert shifted > share or name == "own:0"


def test_pooling_is_over_all_tiles_of_a_row_of_the_rotation():
    maps, _ = equal_distributions(SHAPES["normal"], side=2)
    ratio = torch.where(torch.arange(400) % 2 == 0, 8.0, 2.0).double()
    assert maps.wiener(ratio, 1.0, 0.6)[:4].tolist() == pytest.approx([7 / 8, 0.6, 7 / 8, 0.6])


@pytest.mark.parametrize("name", ["own", "own:x", "best:1", "none+auto", "tapered:1", "step:1,2"])
def test_a_variant_that_does_not_exist_is_refused(name):
    with pytest.raises(SystemExit, match=r"such as own:\.4"):
        Variant.of(name)


def test_the_usual_variants_exist():
    assert [Variant.of(name) for name in shrinkage.VARIANTS]


def test_the_table_of_digits_is_printed(tmp_path, capsys):
    size = ["--quality", "1", "--particles", "400", "--device", "cpu", "--out", str(tmp_path)]
    rows = shrinkage.main(["digits", *size, "--variants", "none", "pooled:1,.25+own:.2", "auto"])
    assert [row["variant"] for row in rows] == ["none", "pooled:1,.25+own:.2", "auto"]
    printed = capsys.readouterr().out
    assert "| pooled:1,.25+own:.2 |" in printed
    assert "Command: `python benchmarks/shrinkage.py digits" in printed
    assert (tmp_path / "shrinkage.md").read_text() in printed
    assert json.loads((tmp_path / "shrinkage.json").read_text())["rows"] == rows
    assert rows[0]["FD-PCA32"] > rows[0]["FD floor"] > 0


def test_photographs_are_made_smaller_and_scored_by_a_network(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)

    def load(name, split, root):
        assert name == "cifar10"
        images = rng.integers(0, 256, (60, 32, 32, 3)).astype(np.uint8)
        return datasets.Pictures(images, np.arange(60) % 2, 256, "cifar10")

    monkeypatch.setattr(datasets, "load", load)
    small = partial(metrics.train_classifier, epochs=1, width=4)
    monkeypatch.setattr(metrics, "train_classifier", small)
    train, _ = shrinkage.read("cifar16", None, 30)
    assert train.images.shape == (30, 16, 16, 3)
    assert train.images.std() < 50  # of means of four: half of 74
    size = ["--quality", "1", "--particles", "60", "--device", "cpu", "--out", str(tmp_path)]
    (row,) = shrinkage.main(["cifar16", *size, "--variants", "own:.4"])
    assert row["FD"] > 0
    assert 0 <= row["recognised"] <= 1
    assert "| own:.4  |" in capsys.readouterr().out
