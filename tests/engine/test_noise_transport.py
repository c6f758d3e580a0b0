"""From data to noise: the transport to N(0, 1), and the directions that are taken."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from sliceflow.engine import normal
from sliceflow.engine.batches import AnalyticTarget, DataTarget
from sliceflow.engine.clouds import ClassOrder, Cloud
from sliceflow.engine.encoded_y import SeparateClassIndices
from sliceflow.engine.flow import FlowSpec, ParticleRng, simulate
from sliceflow.engine.frames import Orthogonal
from sliceflow.engine.noise_transport import (
    GaussianizingTransport,
    LeastGaussianRotation,
)
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage


def fitted(values, penalty=30.0):
    z = torch.from_numpy(np.atleast_2d(values))
    return (
        GaussianizingTransport(penalty, n_knots=32, n_iterations=15)
        .solve(z, z[:, :0])
        .maps
    )


def held_out_log_prob(one, values):
    t, log_slopes = one.call_and_ladj(torch.from_numpy(np.atleast_2d(values)))
    return float((normal.log_prob(t) + log_slopes).sum(0).mean())


def test_known_densities_are_fitted_within_two_hundredths_of_a_nat(rng):
    # 4,000 values; the excess over the entropy is some 10 degrees of freedom / 8,000.
    # Its standard error is below .002, so .02 fails in less than one of 1e6 runs.
    for family in (stats.norm(3, 2), stats.logistic(), stats.beta(3, 2), stats.t(5)):
        one = fitted(family.rvs(4000, random_state=rng))
        new = family.rvs(20_000, random_state=rng)
        expected = family.logpdf(new).mean()
        assert held_out_log_prob(one, new) > expected - 0.02, family.dist.name


def test_the_cost_is_the_squared_distance_to_a_normal_also_of_smaller_steps(rng):
    # N(3, 2²) is √(3² + 1²) from N(0, 1); the error of the mean of 4,000 is .03.
    z = torch.from_numpy(rng.normal(3, 2, (1, 4000)))
    for share in (1.0, 0.7, 0.1):
        solution = GaussianizingTransport(relaxation=share, n_iterations=15).solve(
            z, z[:, :0]
        )
        assert abs(float(solution.mean_squared_displacement.sqrt()) - 10**0.5) < 0.2
        moved = float(solution.dz.square().mean().sqrt())
        assert abs(moved - share * 10**0.5) < 0.2


def test_two_separate_groups_get_a_gap(rng):
    values = np.concatenate((rng.normal(-4, 1, 2000), rng.normal(4, 1, 2000)))
    one = fitted(values)
    _, log_slopes = one.call_and_ladj(torch.tensor([[0.0, 4.0]], dtype=torch.float64))
    assert log_slopes[0, 0] < log_slopes[0, 1] - 2


def test_normal_values_hardly_move(rng):
    # What is fitted is noise: a strong penalty leaves mean and variance, whose errors
    # are 1/√n. Six of these fail in less than one of 1e6 runs.
    n = 1000
    values = rng.normal(size=n)
    one = fitted(values, penalty=3000.0)
    z = torch.linspace(-2, 2, 50, dtype=torch.float64)[None]
    assert float((one.call_and_ladj(z)[0] - z).abs().max()) < 6 * 3 / np.sqrt(n)


def test_the_direction_that_is_not_normal_is_found(rng):
    x = rng.normal(size=(5, 3000))
    x[3] = rng.choice([-1.0, 1.0], 3000) + 0.1 * x[3]  # two narrow groups
    mixing, _ = np.linalg.qr(rng.normal(size=(5, 5)))
    theta = (
        LeastGaussianRotation()
        .make_frame(Seed(0), 0, torch.from_numpy(mixing @ x))
        .theta
    )
    np.testing.assert_allclose(theta @ theta.T, np.eye(5), atol=1e-10)
    alignment = np.abs(theta.numpy() @ mixing[:, 3]).max()
    assert alignment > 0.95  # a random direction has .45 on average


def test_the_slope_does_not_jump_at_the_outermost_datum(rng):
    """Else rounding would decide about the density of the largest value."""
    z = torch.from_numpy(rng.uniform(size=(2, 200)))
    maps = GaussianizingTransport().solve(z, z[:, :0]).maps
    for end, sign in ((z.min(1), -1), (z.max(1), 1)):
        at_the_end = end.values[:, None]
        _, inside = maps.call_and_ladj(at_the_end - sign * 1e-9)
        _, beyond = maps.call_and_ladj(at_the_end + sign * 1e-9)
        torch.testing.assert_close(inside, beyond, atol=1e-4, rtol=0)


def test_particles_flow_onto_a_known_target_without_data(rng):
    # 4,000 exponential numbers in both columns. The distance of Kolmogorov of as many
    # normal ones is above 2.6/√4000 = .041 in one of 400,000 sets; at first it is .24.
    x = torch.from_numpy(rng.exponential(size=(2, 4000)) - 1)
    particles = Cloud(x)
    transport = GaussianizingTransport(penalty=30.0, n_knots=48)
    stage = Stage(
        "flow", LeastGaussianRotation(), 15, transport=transport, max_knots=None
    )
    flow = FlowSpec([stage], Seed(0).child("flow"))
    steps = simulate(flow, particles, AnalyticTarget(), ParticleRng(Seed(0)))
    assert len(steps) == 15
    for column in particles.x:
        assert stats.kstest(column.numpy(), "norm").statistic < 0.041


def test_classes_with_separate_maps_are_refused():
    """They silently shared one map."""
    y = SeparateClassIndices(torch.arange(40) // 20, 2)
    order = ClassOrder.from_y(y, 2)
    cloud = Cloud(torch.randn(2, 40), y).reordered(order)
    stage = Stage("flow", Orthogonal(), 1, GaussianizingTransport())
    spec = FlowSpec([stage], Seed(0), condition_dim=2, amplifier=math.inf)
    with pytest.raises(ValueError, match="one flow for each class"):
        simulate(spec, cloud, DataTarget.from_cloud(cloud))
