"""Maps are shrunk within their noise: no signal, no movement; and what is significant stays."""

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from sliceflow import ImageFlow, PictureOptions, load
from sliceflow.engine.classes import Runs
from sliceflow.engine.shrinkage import Shrunk
from sliceflow.engine.transports import Histogram, Sorted
from sliceflow.ranks import Ranks

IMAGES, LABELS = load_digits().images.astype(np.uint8), load_digits().target
QUICK = dict(schedule="1[1] 4[3] 8[3]", quality=6, n_pixel_values=17, n_particles=1000, random_state=0)
BOTH = pytest.mark.parametrize(
    "transport", [Sorted(), Histogram(64, most=None)], ids=["sorted", "bins"]
)


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


@BOTH
def test_without_signal_hardly_anything_moves(transport):
    z_p, z_q = normal(50, 800), normal(50, 600, seed=1)
    free, shrunk = transport.fit(z_p, z_q), Shrunk(transport, 3.0).fit(z_p, z_q)
    before, after = (fit.table.displace(z_p).square().mean() for fit in (free, shrunk))
    assert after < 0.15 * before
    assert torch.equal(shrunk.cost, free.cost)


@BOTH
def test_the_factor_is_that_of_james_and_stein(transport):
    z_p, z_q = normal(3, 500), 1.1 * normal(3, 400, seed=1) + 0.2
    free, shrunk = transport.fit(z_p, z_q), Shrunk(transport, 2.0, distinct=0.5).fit(z_p, z_q)
    noise = 2.0 * z_p.var(1, correction=0) * (1 / 500 + 1 / 200)
    factor = (1 - noise / free.cost).clamp(min=0)[:, None]
    bins = isinstance(transport, Histogram)
    wanted, found = (fit.table.displace(z_p) for fit in (free, shrunk))
    assert torch.allclose(found, factor * wanted, atol=0.01 if bins else 1e-12)
    if not bins:
        assert torch.allclose(shrunk.dz, factor * free.dz)


@BOTH
def test_strength_zero_changes_nothing(transport):
    z_p, z_q = normal(4, 300), normal(4, 200, seed=1) + 1
    free, shrunk = transport.fit(z_p, z_q), Shrunk(transport, 0.0).fit(z_p, z_q)
    assert torch.allclose(free.table.displace(z_p), shrunk.table.displace(z_p), atol=1e-12)


def test_weights_count_as_fewer_rows():
    z_p, z_q = normal(1, 300), normal(1, 200, seed=1) + 0.3
    weights = torch.ones(200, dtype=torch.float64)
    weights[:100] = 1e-9
    few, all_of_them = (
        Shrunk(Sorted(), 3.0).fit(z_p, z_q, w).dz.square().mean() / Sorted().fit(z_p, z_q, w).cost
        for w in (weights, None)
    )
    assert few < all_of_them


def test_every_class_has_its_own_noise():
    z = normal(2, 60), normal(2, 600, seed=1)
    p, q = torch.cat((z[0][:, :30], z[1][:, :300]), 1), torch.cat((z[0][:, 30:], z[1][:, 300:]), 1)
    runs = (Runs((0, 30, 330)), Runs((0, 30, 330)))
    table = Shrunk(Histogram(32, most=None), 3.0).fit(p, q, None, runs).table
    for c, (own, other) in enumerate((((p[:, :30]), q[:, :30]), (p[:, 30:], q[:, 30:]))):
        alone = Shrunk(Histogram(32, most=None), 3.0).fit(own, other).table
        assert torch.allclose(table.of_class(c, 2).values, alone.values)


@pytest.mark.parametrize("options", [{}, dict(amplifier=math.inf), dict(n_clusters=3)])
def test_real_pictures_stay_nearer_to_where_they_are(options):
    """Shrunk maps move the particles less at the end, by class, with clusters and without."""
    y = LABELS if "amplifier" in options else None
    last = []
    for kappa in (0.0, 3.0):
        flow = ImageFlow(
            **QUICK, transport="histogram", options=PictureOptions(shrinkage=kappa), **options
        )
        flow.fit(IMAGES, y)
        last.append(np.abs(flow.particles_.astype(float)).mean())
        assert ("shrinkage" in str(flow.plan_)) == (kappa > 0)
        assert flow.sample(3, random_state=0).shape == (3, 8, 8)
    assert last[0] == pytest.approx(last[1], rel=0.2)  # the same pictures, on the whole


def test_models_of_shrunk_maps_are_saved(tmp_path):
    flow = ImageFlow(**QUICK, options=PictureOptions(shrinkage=2.0)).fit(IMAGES)
    flow.save(tmp_path / "m")
    again = load(tmp_path / "m", device="cpu")
    assert again.options.shrinkage == 2.0
    assert np.array_equal(again.sample(5, random_state=0), flow.sample(5, random_state=0))


def test_where_it_cannot_be_it_is_refused():
    options = PictureOptions(shrinkage=1.0)
    with pytest.raises(ValueError, match=r"shrinkage=1.0 needs maps without classes or per class"):
        ImageFlow(**QUICK, options=options, amplifier=10).fit(IMAGES, LABELS)
    with pytest.raises(ValueError, match=r"shrinkage=1.0 does not work with partial_fit; set it to 0"):
        ImageFlow(**QUICK, options=options).partial_fit(IMAGES)
    with pytest.raises(ValueError, match=r"shrinkage=-1 must be a finite number of at least 0"):
        ImageFlow(**QUICK, options=PictureOptions(shrinkage=-1)).fit(IMAGES)
    assert ImageFlow(**QUICK, options=options).fit(IMAGES, ranks=Ranks()).n_iter_ > 0
