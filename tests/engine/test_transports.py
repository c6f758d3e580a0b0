"""One-dimensional transport against POT, closed forms, and itself.

`test_algorithm1.py` writes out the two formulas of `PaperTransport`.
"""

import numpy as np
import ot
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from problems import batch_of_classes, sorted_classes
from sliceflow.engine.batches import Batch
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import ClassSlices
from sliceflow.engine.frames import Random
from sliceflow.engine.maps import GridMaps, KnotMaps
from sliceflow.engine.transports import (
    AutoTransport,
    HistogramTransport,
    PaperTransport,
    SortedTransport,
)

ALL = [
    SortedTransport(),
    PaperTransport(),
    HistogramTransport(64),
    AutoTransport(max_sorted=10),
]
seeds = st.integers(0, 2**32 - 1)


def transported(transport, z_p, z_q, weights=None):
    z_p = torch.as_tensor(z_p, dtype=torch.float64).reshape(1, -1)
    z_q = torch.as_tensor(z_q, dtype=torch.float64).reshape(1, -1)
    batch = Batch(weights=None if weights is None else torch.as_tensor(weights))
    solution = transport.solve(z_p, z_q, batch)
    dz = solution.maps.displace(z_p) if solution.dz is None else solution.dz
    return (z_p + dz)[0].numpy()


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        *((HistogramTransport, {"n_bins": n}) for n in (0, 8.5)),
        (SortedTransport, {"batch_size": 0.5}),
        (AutoTransport, {"max_sorted": -1}),
        (Random, {"n_directions": 0}),
    ],
)
def test_no_bins_no_columns_and_no_directions_are_refused(kind, parameters):
    (name,) = parameters
    with pytest.raises(ValueError, match=f"^{name}=.* must be .*an int of at least"):
        kind(**parameters)


@given(seeds, st.integers(1, 200))
def test_sorted_with_equal_counts_is_pots_plan(seed, n):
    rng = np.random.default_rng(seed)
    z_p = rng.normal(size=n)
    z_q = rng.gamma(2, size=n)
    plan = ot.emd_1d(z_p, z_q)  # a permutation / n
    assert np.allclose(
        transported(SortedTransport(), z_p, z_q), n * plan @ z_q, atol=1e-12
    )


@given(seeds, st.integers(1, 80), st.integers(1, 80), st.booleans())
def test_sorted_with_unequal_counts_stays_within_one_datum_of_pots_plan(
    seed, m, n, weighted
):
    """The plan gives particle k some data.

    Interpolation may reach the neighbors, never further.
    """
    rng = np.random.default_rng(seed)
    z_p = rng.normal(size=m)
    z_q = np.sort(rng.gamma(2, size=n))
    w = rng.uniform(0.2, 2, size=n) if weighted else np.ones(n)
    plan = ot.emd_1d(z_p, z_q, np.full(m, 1 / m), w / w.sum())
    out = transported(SortedTransport(), z_p, z_q, w if weighted else None)
    for k in range(m):
        used = np.flatnonzero(plan[k] > 1e-12)
        low = z_q[max(used[0] - 1, 0)]
        high = z_q[min(used[-1] + 1, n - 1)]
        assert low - 1e-9 <= out[k] <= high + 1e-9


@given(seeds, st.integers(2, 12))
def test_the_paper_puts_a_datum_at_the_share_of_weight_below_it(seed, n):
    rng = np.random.default_rng(seed)
    z_q = np.sort(rng.gamma(2, size=n))
    times = rng.integers(1, 4, size=n)
    total = int(times.sum())
    below = np.concatenate(([0], times.cumsum()[:-1]))
    z_p = np.sort(rng.normal(size=total))  # particle k has the level k/Σw
    out = transported(PaperTransport(), z_p, z_q, times.astype(float))
    assert np.allclose(out[below], z_q, atol=1e-12)
    assert np.allclose(out, np.interp(np.arange(total), below, z_q), atol=1e-9)
    assert np.allclose(
        transported(PaperTransport(), z_p, z_q, np.full(n, 0.25)),
        transported(PaperTransport(), z_p, z_q),
    )


@pytest.mark.parametrize("transport", ALL, ids=str)
@given(seed=seeds)
def test_target_equal_to_start_moves_nothing(transport, seed):
    z = torch.from_numpy(np.random.default_rng(seed).normal(size=(3, 100)))
    assert float(transport.solve(z, z).maps.displace(z).abs().max()) < 1e-6


@pytest.mark.parametrize("transport", ALL, ids=str)
@given(seed=seeds, shift=st.floats(-5, 5), scale=st.floats(0.1, 10))
def test_maps_follow_translation_and_scaling(transport, seed, shift, scale):
    rng = np.random.default_rng(seed)
    z_p = rng.normal(size=150)
    z_q = rng.normal(size=130)
    out = transported(transport, z_p, z_q)
    assert np.allclose(
        transported(transport, z_p, scale * z_q + shift), scale * out + shift, atol=1e-9
    )
    assert np.allclose(transported(transport, scale * z_p + shift, z_q), out, atol=1e-9)


@pytest.mark.parametrize("transport", ALL, ids=str)
@given(seed=seeds)
def test_maps_are_monotone_everywhere(transport, seed):
    rng = np.random.default_rng(seed)
    z_p = torch.from_numpy(np.round(rng.normal(size=(2, 120)), rng.integers(1, 4)))
    z_q = torch.from_numpy(rng.standard_t(2, size=(2, 90)))
    z = torch.linspace(-8, 8, 2001).double().expand(2, -1).contiguous()
    image = z + transport.solve(z_p, z_q).maps.displace(z)
    assert bool((image.diff(dim=1) >= -1e-12).all())


@pytest.mark.parametrize(
    "transport", [SortedTransport(), HistogramTransport(64)], ids=str
)
@pytest.mark.parametrize(
    ("factor", "slope"), [(2.0, 1.0), (1.0, 1.0), (0.25, 1.0), (0.0, 0.0)]
)
def test_beyond_the_ends_the_map_is_a_rigid_shift_or_one_point(
    transport, factor, slope
):
    z_p = torch.linspace(0, 1, 11).double()[None]
    maps = transport.solve(z_p, 5 + factor * z_p).maps
    far = torch.tensor([[-100.0, -1.0, 2.0, 50.0]]).double()
    image = (far + maps.displace(far))[0]
    wanted = [5 - 100 * slope, 5 - slope, 5 + factor + slope, 5 + factor + 49 * slope]
    assert torch.allclose(image, torch.tensor(wanted).double())


def test_tied_particles_move_together_to_the_middle_of_their_mass():
    out = transported(SortedTransport(), [0.0, 0.0, 0.0, 1.0], [10.0, 20.0, 30.0, 40.0])
    assert out.tolist() == [20.0, 20.0, 20.0, 40.0]


@pytest.mark.parametrize(
    "transport", [SortedTransport(), HistogramTransport(2048)], ids=str
)
@given(seed=seeds)
def test_integer_weights_are_repetitions(transport, seed):
    rng = np.random.default_rng(seed)
    z_p = rng.normal(size=400)
    z_q = rng.normal(size=50)
    repeats = rng.integers(1, 4, size=50)
    weighted = transported(transport, z_p, z_q, repeats.astype(float))
    repeated = transported(transport, z_p, np.repeat(z_q, repeats))
    # Linear interpolation sees repeated data as a plateau: equal up to the local gap.
    gap = np.max(np.diff(np.sort(z_q)))
    assert np.abs(weighted - repeated).max() <= gap + 1e-9
    assert np.abs(weighted.mean() - repeated.mean()) < 0.1


def test_auto_picks_by_size():
    z = torch.randn(1, 100)
    assert isinstance(AutoTransport(max_sorted=200).solve(z, z).maps, KnotMaps)
    assert isinstance(AutoTransport(max_sorted=199).solve(z, z).maps, GridMaps)


@pytest.mark.parametrize("transport", ALL, ids=str)
def test_the_cost_is_the_mean_squared_displacement(transport, rng):
    z_p = torch.from_numpy(rng.normal(size=(3, 3000)))
    z_q = torch.from_numpy(rng.gamma(2, size=(3, 4000)))
    solution = transport.solve(z_p, z_q)
    assert solution.mean_squared_displacement.shape == (3,)
    assert torch.allclose(
        solution.mean_squared_displacement,
        solution.maps.displace(z_p).square().mean(1),
        rtol=0.02,
    )


def test_a_class_that_stays_where_it_is_costs_nothing():
    """It has no data; the others cost what they move."""
    z_p = torch.tensor([[0.0, 1.0, 5.0, 7.0]]).double()
    z_q = torch.tensor([[10.0, 11.0]]).double()
    slices_p = ClassSlices((0, 2, 4))
    solution = HistogramTransport(16).solve(
        z_p, z_q, batch_of_classes(slices_p, ClassSlices((0, 2, 2)))
    )
    assert solution.mean_squared_displacement.tolist() == pytest.approx(
        [100.0, 0.0], rel=1e-6
    )
    assert (
        solution.maps.displace(z_p, Cloud(z_p, sorted_classes(slices_p)))[:, 2:]
        .abs()
        .max()
        == 0
    )
