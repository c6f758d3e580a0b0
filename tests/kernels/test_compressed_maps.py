"""Maps through a few knots.

Those of every backend against the plain-torch reference.
"""

import pytest
import torch

from sliceflow.kernels import cpu, reference

EXPONENT = -9
SIZES = [(128, 16, 3), (64, 2, 2), (100, 12, 2), (300, 257, 1), (2500, 9, 1)]
HARD = [
    "bent",
    "straight",
    "point",
    "from a point",
    "one particle",
    "one bend",
    "huge",
    "clipped",
]


def maps(n_bins, h, device, dtype=torch.float32):
    """From random clouds to two hills, counted: lo, hi, values, counts."""
    rng = torch.Generator().manual_seed(n_bins)
    p = torch.randn(h, 3000, generator=rng) * (0.5 + torch.rand(h, 1, generator=rng))
    hills = torch.where(torch.rand(h, 3000, generator=rng) < 0.4, 2, -2)
    q = torch.randn(h, 3000, generator=rng) + hills
    counts, lo, hi = reference.histogram(p, n_bins)
    values, _ = reference.compose_histograms(
        counts, lo, hi, *reference.histogram(q, n_bins)
    )
    return [
        t.to(device)
        for t in (lo.to(dtype), hi.to(dtype), values.to(dtype), counts.int())
    ]


def hostile(kind, device, dtype=torch.float32):
    """Maps of 32 bins that are hard on knots."""
    place = torch.linspace(-1, 1, 33, dtype=torch.float64).repeat(3, 1)
    counts = torch.randint(
        0, 50, (3, 32), generator=torch.Generator().manual_seed(0)
    ).int()
    values = place + 0.3 * place.sin()
    size = 1.0
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
    elif kind in ("huge", "tiny"):
        size = 1e30 if kind == "huge" else 1e-30
        values = values * size
    elif kind == "clipped":  # displacements that no level is for
        values = values + 1000
    lo = torch.full((3,), -size, dtype=dtype)
    hi = torch.full((3,), size, dtype=dtype)
    return [t.to(device) for t in (lo, hi, values.to(dtype), counts)]


def both(backend, arguments, n_knots, exponent=EXPONENT):
    """Of the kernel and of the reference: lo, hi, places and levels.

    The ranges are the same bits.
    """
    ours = backend.compress_grid(*arguments, n_knots, exponent)
    theirs = reference.compress_grid(*arguments, n_knots, exponent)
    assert all(
        a.dtype == b.dtype and a.shape == b.shape
        for a, b in zip(ours, theirs, strict=True)
    )
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])
    assert bool((ours[2].diff(dim=1) > 0).all())
    assert bool(
        (ours[2][:, 0] == 0).all() and (ours[2][:, -1] == arguments[3].shape[1]).all()
    )
    return ours, theirs


def on_grid(compressed, n_bins):
    return reference.expand_grid(*compressed, n_bins, EXPONENT, torch.float64)


@pytest.mark.parametrize(("n_bins", "n_knots", "h"), SIZES)
def test_knots_agree_but_for_ties(backend, n_bins, n_knots, h):
    """Sums are rounded in another order.

    A knot in a thousand may stand one edge beside.
    """
    dtype = torch.float32 if n_bins % 100 else torch.float64
    arguments = maps(
        n_bins, h * (40 if backend.device == "cuda" else 1), backend.device, dtype
    )
    ours, theirs = both(backend, arguments, n_knots)
    assert float((ours[2] != theirs[2]).float().mean()) <= 1e-3
    same = (ours[2] == theirs[2]).all(1)
    assert int((ours[3] - theirs[3])[same].abs().max()) <= 1
    # Particles see less than a step of it: rms over those of every map.
    error = (on_grid(ours, n_bins) - on_grid(theirs, n_bins)).square()
    weight = arguments[3] / arguments[3].sum(1, keepdim=True)
    rms = (weight * (error[:, 1:] + error[:, :-1]) / 2).sum(1).sqrt()
    assert float(rms[same].max()) <= 2.0**EXPONENT
    assert float(rms.mean()) <= 0.1 * 2.0**EXPONENT


@pytest.mark.parametrize("kind", HARD)
def test_hostile_maps_are_kept_as_by_the_reference(backend, kind):
    for n_knots in (2, 33):
        ours, theirs = both(backend, hostile(kind, backend.device), n_knots)
        assert (
            int((ours[2] - theirs[2]).abs().max()) <= 1
        )  # straight maps: every place is as good
        if (
            kind != "huge"
        ):  # its levels are all at their limits, whose signs are those of rounding
            error = (on_grid(ours, 32) - on_grid(theirs, 32)).abs()
            assert float(error.max()) <= 2.0**EXPONENT, n_knots


def test_steps_of_any_size_are_exact(backend):
    """Float32 knows no 2⁻²⁰⁰."""
    arguments = hostile("tiny", backend.device, torch.float64)
    for exponent in (-108, 1):
        ours, theirs = both(backend, arguments, 9, exponent)
        assert int((ours[2] - theirs[2]).abs().max()) <= 1
        assert int((ours[3] - theirs[3]).abs().max()) <= 1
    arguments[:3] = (t * 1e-30 for t in arguments[:3])
    ours, theirs = both(backend, arguments, 9, -208)
    assert int(ours[3].abs().max()) > 100
    assert int((ours[3] - theirs[3]).abs().max()) <= 1


def test_counts_of_any_type_give_the_same_bits_whatever_is_beside_them(backend):
    arguments = maps(64, 2, backend.device)
    whole = backend.compress_grid(*arguments, 8, EXPONENT)
    for dtype in (torch.int64, torch.float64):
        same = backend.compress_grid(
            *arguments[:3], arguments[3].to(dtype), 8, EXPONENT
        )
        assert all(torch.equal(a, b) for a, b in zip(whole, same, strict=True))
    part = backend.compress_grid(*(t[1:2] for t in arguments), 8, EXPONENT)
    assert all(torch.equal(a[1:2], b) for a, b in zip(whole, part, strict=True))
    ours, theirs = both(backend, (*arguments[:3], arguments[3].double().sqrt()), 8)
    assert torch.equal(ours[2], theirs[2])
    assert int((ours[3] - theirs[3]).abs().max()) <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("n_bins", "n_knots"), [(1, 2), (2, 3), (37, 5), (128, 16), (2500, 257)]
)
def test_grids_are_made_with_the_same_bits_on_every_device(
    backend, n_bins, n_knots, dtype
):
    compressed = reference.compress_grid(
        *maps(n_bins, 2, backend.device, dtype), n_knots, EXPONENT
    )
    compressed[3][:, ::3] *= -1  # lines that descend are made to ascend
    ours = backend.expand_grid(*compressed, n_bins, EXPONENT, dtype)
    assert ours.dtype == dtype
    assert bool((ours.diff(dim=1) >= 0).all())
    on_cpu = reference.expand_grid(
        *(t.cpu() for t in compressed), n_bins, EXPONENT, dtype
    )
    assert torch.equal(ours.cpu(), on_cpu)


@pytest.mark.parametrize(("n_bins", "n_knots", "h"), SIZES)
def test_numba_has_the_bits_of_the_reference(n_bins, n_knots, h):
    """So models do not depend on whether numba can be imported."""
    arguments = maps(n_bins, h, "cpu")
    arguments[:2] = [t.double() for t in arguments[:2]]
    ours = cpu.compress_grid(*arguments, n_knots, EXPONENT)
    theirs = reference.compress_grid(*arguments, n_knots, EXPONENT)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    form = (n_bins, EXPONENT, torch.float32)
    expanded = cpu.expand_grid(*ours, *form)
    assert torch.equal(expanded, reference.expand_grid(*ours, *form))
