"""Triton's maps through a few knots against the plain-torch reference."""

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton", reason="Triton is not installed")

from sliceflow.kernels import reference  # noqa: E402
from sliceflow.kernels import triton as gpu  # noqa: E402

MANY = 40 if DEVICE == "cuda" else 1  # times as many maps as an interpreter has patience for
EXPONENT = -9
SIZES = [
    (128, 16, 24),
    (128, 17, 8),
    (64, 2, 8),
    (100, 12, 8),
    (256, 128, 4),
    (300, 257, 2),
    (2500, 9, 2),
]


def maps(n_bins, h, dtype=torch.float32):
    """From random clouds to two hills, counted: lo, hi, values, counts."""
    rng = torch.Generator().manual_seed(n_bins)
    p = torch.randn(h, 3000, generator=rng) * (0.5 + torch.rand(h, 1, generator=rng))
    q = torch.randn(h, 3000, generator=rng) + torch.where(
        torch.rand(h, 3000, generator=rng) < 0.4, 2, -2
    )
    counts, lo, hi = reference.histogram(p, n_bins)
    values, _ = reference.compose(counts, lo, hi, *reference.histogram(q, n_bins))
    return [t.to(DEVICE) for t in (lo.to(dtype), hi.to(dtype), values.to(dtype), counts.int())]


def hostile(kind, dtype=torch.float32):
    """Maps of 32 bins that are hard on knots."""
    place = torch.linspace(-1, 1, 33, dtype=torch.float64).repeat(3, 1)
    counts = torch.randint(0, 50, (3, 32), generator=torch.Generator().manual_seed(0)).int()
    values, size = place + 0.3 * place.sin(), 1.0
    if kind == "straight":
        values = place
    elif kind == "point":  # all of it leads to one
        values = torch.full_like(place, 0.25)
    elif kind == "from a point":
        size = 0.0
    elif kind == "one particle":
        counts = torch.zeros_like(counts)
        counts[0, 0] = counts[1, 13] = counts[2, 31] = 1
    elif kind == "one bend":
        values = place + torch.where(place > 0, 0.5, 0.0)
    elif kind == "huge":
        values, size = values * 1e30, 1e30
    elif kind == "tiny":
        values, size = values * 1e-30, 1e-30
    elif kind == "clipped":  # displacements that no level is for
        values = values + 1000
    lo, hi = torch.full((3,), -size, dtype=dtype), torch.full((3,), size, dtype=dtype)
    return [t.to(DEVICE) for t in (lo, hi, values.to(dtype), counts)]


def both(arguments, n_knots, exponent=EXPONENT):
    """Of the kernel and of the reference: lo, hi, places and levels."""
    ours, theirs = (k.at_bends(*arguments, n_knots, exponent) for k in (gpu, reference))
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
    return ours, theirs


def on_grid(kept, n_bins):
    return reference.through_knots(*kept, n_bins, EXPONENT, torch.float64)


def check_places(at, n_bins):
    assert bool((at.diff(dim=1) > 0).all())
    assert at[:, 0].eq(0).all()
    assert at[:, -1].eq(n_bins).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n_bins", "n_knots", "h"), SIZES)
def test_knots_agree_but_for_ties(n_bins, n_knots, h, dtype):
    """Sums are rounded in another order: a knot in a thousand may stand one edge beside."""
    arguments = maps(n_bins, h * MANY, dtype)
    ours, theirs = both(arguments, n_knots)
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])
    check_places(ours[2], n_bins)
    assert float((ours[2] != theirs[2]).float().mean()) <= 1e-3
    same = (ours[2] == theirs[2]).all(1)
    assert int((ours[3] - theirs[3])[same].abs().max()) <= 1
    # Particles see less than a step of it: rms over those of every map.
    error = (on_grid(ours, n_bins) - on_grid(theirs, n_bins)).square()
    weight = arguments[3] / arguments[3].sum(1, keepdim=True)
    rms = (weight * (error[:, 1:] + error[:, :-1]) / 2).sum(1).sqrt()
    assert float(rms[same].max()) <= 2.0**EXPONENT
    assert float(rms.mean()) <= 0.1 * 2.0**EXPONENT


@pytest.mark.parametrize(
    "kind", ["bent", "straight", "point", "from a point", "one particle", "one bend", "huge", "clipped"]
)
def test_hostile_maps_are_kept_as_by_the_reference(kind):
    for n_knots in (2, 8, 16, 33):
        arguments = hostile(kind)
        ours, theirs = both(arguments, n_knots)
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])
        check_places(ours[2], 32)
        assert int((ours[2] - theirs[2]).abs().max()) <= 1  # straight maps: every place is as good
        if kind == "huge":
            continue  # its levels are all at their limits, whose signs are those of rounding
        error = (on_grid(ours, 32) - on_grid(theirs, 32)).abs()
        assert float(error.max()) <= 2.0**EXPONENT, n_knots


def test_steps_of_any_size_are_exact():
    """Float32 knows no 2⁻²⁰⁰."""
    arguments = hostile("tiny", torch.float64)
    for exponent in (-108, 1):
        ours, theirs = both(arguments, 9, exponent)
        assert torch.equal(ours[0], theirs[0])
        assert int((ours[2] - theirs[2]).abs().max()) <= 1
        assert int((ours[3] - theirs[3]).abs().max()) <= 1
    arguments[:3] = (t * 1e-30 for t in arguments[:3])
    ours, theirs = both(arguments, 9, -208)
    assert torch.equal(ours[1], theirs[1])
    assert int(ours[3].abs().max()) > 100
    assert int((ours[3] - theirs[3]).abs().max()) <= 1


def test_counts_may_be_of_any_type_and_weights():
    lo, hi, values, counts = maps(64, 4)
    whole = gpu.at_bends(lo, hi, values, counts, 8, EXPONENT)
    for dtype in (torch.int64, torch.float32, torch.float64):
        again = gpu.at_bends(lo, hi, values, counts.to(dtype), 8, EXPONENT)
        assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True))
    ours, theirs = both((lo, hi, values, counts.double().sqrt()), 8)
    assert torch.equal(ours[2], theirs[2])
    assert int((ours[3] - theirs[3]).abs().max()) <= 1


def test_the_same_maps_are_kept_by_the_same_bits_and_a_gpu_is_not_waited_for():
    arguments = maps(128, 3 * MANY)
    first = gpu.at_bends(*arguments, 16, EXPONENT)
    if DEVICE == "cuda":
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
    try:
        again = gpu.at_bends(*arguments, 16, EXPONENT)
        gpu.through_knots(*again, 128, EXPONENT, torch.float32)
    finally:
        if DEVICE == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    part = gpu.at_bends(*(t[1:2] for t in arguments), 16, EXPONENT)  # whatever is beside them
    assert all(torch.equal(a[1:2], b) for a, b in zip(first, part, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("n_bins", "n_knots"), [(1, 2), (2, 3), (37, 5), (128, 2), (128, 16), (128, 100), (2500, 257)]
)
def test_grids_are_made_again_with_the_bits_of_the_reference(n_bins, n_knots, dtype):
    """Also with those of the reference on the CPU."""
    kept = reference.at_bends(*maps(n_bins, 4 * MANY, dtype), n_knots, EXPONENT)
    kept[3][:, ::3] *= -1  # lines that descend are made to ascend
    ours = gpu.through_knots(*kept, n_bins, EXPONENT, dtype)
    assert ours.dtype == dtype
    assert bool((ours.diff(dim=1) >= 0).all())
    assert torch.equal(ours, reference.through_knots(*kept, n_bins, EXPONENT, dtype))
    on_cpu = reference.through_knots(*(t.cpu() for t in kept), n_bins, EXPONENT, dtype)
    assert torch.equal(ours.cpu(), on_cpu)
