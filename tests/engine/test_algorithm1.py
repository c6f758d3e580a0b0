"""Algorithm 1 of Du et al.

(ICML 2023), written out in numpy, and the engine: equal after every step.

Both are given the same directions, the same start and the same data. Two slips of the
printed text are mended here as the text around them demands. The algorithm subtracts
η·v̂, but v̂ has its minus sign in eq. (7) already, and the ODE is dX = v̂ dt. And I in
F counts from 1, but in F⁻¹ from 0: else F⁻¹(F(z_k)) would be z_{k-1}.
"""

import numpy as np
import pytest
import torch

from models import picture_plan
from problems import target_for
from sliceflow import ImageOptions
from sliceflow.engine.batches import DataTarget
from sliceflow.engine.clouds import Cloud
from sliceflow.engine.encoded_y import ClassIndices, ContinuousY
from sliceflow.engine.flow import FlowSpec, ParticleRng, replay, simulate
from sliceflow.engine.frames import Random
from sliceflow.engine.random import Seed
from sliceflow.engine.schedule import Stage
from sliceflow.engine.transports import PaperTransport
from sliceflow.estimators.pictures.flow_builder import PictureFlowBuilder
from sliceflow.estimators.pictures.layout import Layout
from sliceflow.estimators.pictures.pyramid import PyramidSubspace
from sliceflow.estimators.pictures.schedules import PictureStage

SAME = dict(rtol=0, atol=1e-9)

# Algorithm 1. x, y are the particles (M, d), (M, l), data and labels (N, d), (N, l);
# theta (H, d + l).


def cdf(z, samples):
    s = np.sort(samples)
    n = len(samples)
    i = np.clip(
        np.searchsorted(s, z, side="right"), 1, n - 1
    )  # z_I <= z <= z_{I+1}, I from 1
    return (i - 1) / n + (z - s[i - 1]) / (s[i] - s[i - 1]) / n


def inverse_cdf(a, samples):
    s = np.append(np.sort(samples), np.max(samples))
    n = len(samples)
    i = np.floor(a * n + 1e-9).astype(
        int
    )  # from 0; a·n may be a whole number and a little less
    return s[i] + (a * n - i) * (s[i + 1] - s[i])


def velocity(x, y, maps, theta, xi):
    z = np.hstack((x, xi * y))
    v = np.zeros((len(x), theta.shape[1]))
    for (p, q), direction in zip(maps, theta, strict=True):
        psi = z @ direction - inverse_cdf(cdf(z @ direction, p), q)  # eq. (8)
        v -= psi[:, None] * direction / len(theta)  # eq. (7)
    v[:, x.shape[1] :] = 0  # velocity masking
    return v


def estimated(x, y, data, labels, theta, xi):
    """The shaded lines: the samples of both CDFs along every direction."""
    p = np.hstack((x, xi * y))
    q = np.hstack((data, xi * labels))
    return [(p @ direction, q @ direction) for direction in theta]


def step(x, y, data, labels, theta, xi, eta):
    maps = estimated(x, y, data, labels, theta, xi)
    return x + eta * velocity(x, y, maps, theta, xi)[:, : x.shape[1]]


# The engine


def as_points(x):
    return torch.from_numpy(np.ascontiguousarray(x.T))


def joint(flow, k, cloud):
    """The directions of step k, without ξ."""
    frame = flow.stages[0].frame_kind.make_frame(
        flow.seed.child("frame", 0), k, cloud.x, flow.shared_condition_dim
    )
    parts = [frame.theta] if frame.theta_y is None else [frame.theta, frame.theta_y]
    return torch.cat(parts, 1).numpy()


def problem(condition, m=60, n=30, d=4):
    """Particles, data, their y as numbers, their y as the engine has it, and l."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(m, d))
    data = rng.gamma(2, size=(n, d)) - 1
    tiled = torch.arange(n).repeat(m // n)
    if condition == "none":
        return x, data, np.zeros((m, 0)), np.zeros((n, 0)), None, None, 0
    if condition == "labels":
        code = np.arange(n) % 3
        y = np.eye(3)[code]
        classes = ClassIndices(torch.from_numpy(code))
        particles = np.tile(y, (m // n, 1))
        return x, data, particles, y, classes.take(tiled), classes, 3
    y = rng.normal(size=(n, 2))
    numbers = ContinuousY(torch.from_numpy(y))
    return x, data, np.tile(y, (m // n, 1)), y, numbers.take(tiled), numbers, 2


@pytest.mark.parametrize("eta_over_d", [1.0, 0.3])
@pytest.mark.parametrize("xi", [0.0, 10.0])
@pytest.mark.parametrize("condition", ["none", "labels", "columns"])
def test_vectors_follow_algorithm_1_step_by_step(condition, xi, eta_over_d):
    x, data, y_p, y_q, encoded_p, encoded_q, width = problem(condition)
    n_steps = 6
    n_directions = 40
    d = x.shape[1]
    stage = Stage("flow", Random(n_directions), n_steps, PaperTransport(), eta_over_d)
    flow = FlowSpec([stage], Seed(1), width, xi)
    seen = []
    clouds = [
        Cloud(as_points(a), encoded_y)
        for a, encoded_y in ((x, encoded_p), (data, encoded_q))
    ]
    kept = None if encoded_p is None else encoded_p.values.clone()
    listeners = [lambda event: seen.append(event.particles.T.numpy().copy())]
    simulate(
        flow,
        clouds[0],
        target_for(flow, *clouds),
        ParticleRng(Seed(2)),
        listeners=listeners,
    )
    for k in range(n_steps):
        theta = joint(flow, k, clouds[0])
        assert np.allclose(np.linalg.norm(theta, axis=1), 1)
        assert theta.shape == (n_directions, d + (width if xi else 0))
        seen_y = (
            (y_p, y_q) if xi else (y_p[:, :0], y_q[:, :0])
        )  # at 0 directions do not see y at all
        x = step(x, seen_y[0], data, seen_y[1], theta, xi, eta_over_d * d)
        assert np.allclose(seen[k], x, **SAME)
    assert kept is None or torch.equal(clouds[0].y.values, kept)


def test_offline_samples_skip_the_shaded_lines():
    """Fresh particles between the fitted ones, moved by the CDFs that were kept."""
    x, data, y_p, y_q, encoded_p, encoded_q, width = problem("labels")
    stage = Stage("flow", Random(40), 1, PaperTransport(), max_knots=None)
    flow = FlowSpec([stage], Seed(1), width, 10.0)
    particles = Cloud(as_points(x), encoded_p)
    theta = joint(flow, 0, particles)
    target = target_for(flow, particles, Cloud(as_points(data), encoded_q))
    model = simulate(flow, particles, target, ParticleRng(Seed(2)))
    classes = encoded_p.values
    pairs = [(i, j) for i in range(12) for j in range(i) if classes[i] == classes[j]]
    fresh = np.array([0.7 * x[i] + 0.3 * x[j] for i, j in pairs])
    y = np.array([y_p[i] for i, _ in pairs])
    fresh_y = encoded_p.take(torch.tensor([i for i, _ in pairs]))
    cloud = Cloud(as_points(fresh), fresh_y)
    replay(flow, model, cloud, ParticleRng(Seed(3)))
    maps = estimated(x, y_p, data, y_q, theta, 10.0)
    wanted = fresh + 4 * velocity(fresh, y, maps, theta, 10.0)[:, :4]
    assert np.allclose(cloud.x.T.numpy(), wanted, **SAME)


# Pictures: locally-connected projections at a resolution of a pyramid, at the picture's
# own resolution.


def lanczos(full, small):
    if full == small:
        return np.eye(full)
    t = ((np.arange(full) + 0.5) * small / full - 0.5)[:, None] - np.arange(small)
    weights = np.where(np.abs(t) < 5, np.sinc(t) * np.sinc(t / 5), 0.0)
    return weights / weights.sum(1, keepdims=True)


def local_directions(patches, centers, theta_y, level, full):
    """Patches at their centers, upsampled, and normalized together with θ_y."""
    c, h, w = level
    s = patches.shape[-1]
    out = []
    for patch, (row, column), of_y in zip(patches, centers, theta_y, strict=True):
        picture = np.zeros((c, h + 2 * s, w + 2 * s))
        top = row - s // 2 + s
        left = column - s // 2 + s
        picture[:, top : top + s, left : left + s] = patch
        picture = picture[:, s : s + h, s : s + w]
        theta_x = (lanczos(full[0], h) @ picture @ lanczos(full[1], w).T).ravel()
        theta = np.concatenate((theta_x / np.linalg.norm(theta_x), of_y))
        out.append(theta / np.linalg.norm(theta))
    return np.array(out)


def drawn(seed, k, n, level, s, width):
    """What the engine draws for step k, as numpy has it: patches, centers, unit θ_y."""
    seed = seed.child(k)
    c, h, w = level
    patches = seed.child("x").normal(n, c * s * s).view(n, c, s, s).numpy()
    centers = (seed.child("centre").uniform(n, 2).numpy() * [h, w]).astype(int)
    theta_y = seed.child("y").normal(n, width).numpy()
    return patches, centers, theta_y / np.linalg.norm(theta_y, axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("labels", "observed"), [(False, False), (False, True), (True, False)]
)
@pytest.mark.parametrize(
    ("level", "patch", "channels"),
    [((3, 3), 3, 1), ((5, 4), 3, 2), ((8, 6), 4, 2)],
    ids=str,
)
def test_a_picture_stage_follows_algorithm_1_with_patches(
    level, patch, channels, labels, observed, rng
):
    """The engine moves a level's coefficients, Algorithm 1 pictures.

    Data have new noise always.
    """
    full = (8, 6)
    n_directions = 50
    n_steps = 4
    m = 40
    n = 20
    layout = Layout(*full, None if channels == 1 else channels, "uint8", 256)
    d = layout.dimension
    eta = min(channels * level[0] * level[1], n_directions)
    x = rng.normal(size=(m, d))
    data = rng.integers(0, 256, size=(n, d))
    noisy = [(data + rng.uniform(size=(n, d))) / 128 - 1 for _ in range(n_steps)]
    width = 2 if labels else 0
    classes_q = torch.arange(n) % 2
    classes_p = torch.arange(m) % 2
    y_p = np.eye(2)[classes_p][:, :width]
    y_q = np.eye(2)[classes_q][:, :width]
    known = np.zeros(full, bool)
    known[: full[0] // 2] = observed
    known = np.tile(known.ravel(), channels)

    plan = picture_plan(
        layout=layout,
        n_classes=width,
        amplifier=10.0,
        patch_basis="random",
        n_knots=0,
        n_directions=n_directions,
        picture_stages=(PictureStage(*level, patch, n_steps),),
        transport=PaperTransport(),
        options=ImageOptions(clip=False, taper=0.0),
    )
    mask = torch.from_numpy(known)[:, None] if observed else None
    flow = PictureFlowBuilder(plan, Seed(3), torch.device("cpu"), mask).flow_spec()
    seen = []
    particles = Cloud(as_points(x), ClassIndices(classes_p) if labels else None)
    y = ClassIndices(classes_q) if labels else None
    target = DataTarget(
        lambda step: Cloud(as_points(noisy[step.step_index]), y),
        reloads_every_step=True,
    )
    listeners = [lambda event: seen.append(event.particles.clone())]
    simulate(flow, particles, target, ParticleRng(Seed(4)), listeners=listeners)

    subspace = PyramidSubspace(channels, *full, *level)
    start = as_points(x)
    seed = flow.seed.child("level", 0, "frame", 0)
    for k in range(n_steps):
        theta = local_directions(
            *drawn(seed, k, n_directions, (channels, *level), patch, width),
            (channels, *level),
            full,
        )
        moved = step(x, y_p, noisy[k], y_q, theta, 10.0, eta)
        x = np.where(known, x, moved)  # what is observed is the rest of y
        whole = seen[k]
        if not observed:  # coefficients: what a resolution does not see stays
            whole = start + subspace.embed(whole - subspace.restrict(start))
        assert np.allclose(whole.T.numpy(), x, **SAME)
    assert np.allclose(particles.x.T.numpy(), x, **SAME)
