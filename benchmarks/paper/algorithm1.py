"""Algorithm 1 of Du et al. (ICML 2023) as printed, in plain torch; nothing of ours is in it.

Unconditional, with the paper's locally-connected directions. Particles and data are columns (d, n).
"""

import torch
from torch import Tensor

__all__ = ["cdf", "displacement", "inverse_cdf", "random_patches"]


def random_patches(
    n: int, shape: tuple[int, int, int], patch: int, generator: torch.Generator
) -> Tensor:
    """n unit directions (n, C·h·w), each an S×S patch from the sphere at a random centre.

    What hangs over the border is cut off and the rest normalised. `generator` says on which device.
    """
    (c, h, w), device = shape, generator.device
    values = torch.randn((n, c, patch, patch), generator=generator, device=device)
    centre = torch.rand((n, 2), generator=generator, device=device) * torch.tensor(
        [h, w], device=device
    )
    corner = centre.long() - patch // 2 + patch  # in a canvas with a margin of S on every side
    canvas = torch.zeros((n, c, h + 2 * patch, w + 2 * patch), device=device)
    inside = torch.arange(patch, device=device)
    rows, columns = (corner[:, i, None] + inside for i in (0, 1))  # (n, S)
    canvas[
        torch.arange(n, device=device)[:, None, None, None],
        torch.arange(c, device=device)[None, :, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ] = values
    theta = canvas[:, :, patch : patch + h, patch : patch + w].reshape(n, -1)
    return torch.nn.functional.normalize(theta, dim=1)


def cdf(z: Tensor, knots: Tensor) -> Tensor:
    """F(z) from sorted samples (h, n): I/n + (z - z_I)/(n·(z_{I+1} - z_I)), I counted from 0.

    I is found by binary search; F is clamped outside the samples, and no gap of zero is divided by.
    """
    n = knots.shape[1]
    i = torch.searchsorted(knots, z, right=True).sub_(1).clamp_(0, n - 2)
    left = torch.gather(knots, 1, i)
    gap = torch.gather(knots, 1, i + 1).sub_(left)
    inside = torch.where(gap > 0, (z - left) / gap, 0.0).clamp_(0, 1)
    return inside.add_(i).div_(n)


def inverse_cdf(a: Tensor, knots: Tensor) -> Tensor:
    """F⁻¹(a): z_I + (a·n - I)·(z_{I+1} - z_I) with I = ⌊a·n⌋."""
    n = knots.shape[1]
    position = a * n
    i = position.long().clamp_(0, n - 2)
    left = torch.gather(knots, 1, i)
    gap = torch.gather(knots, 1, i + 1).sub_(left)
    return left.addcmul_(position.sub_(i).clamp_(0, 1), gap)


def displacement(x: Tensor, data: Tensor, theta: Tensor, chunk: int, *, search: bool = True) -> Tensor:
    """-η·v̂ of one step, η = d: d/H · Σ_h θ_h·(F_q⁻¹(F_p(θ_hᵀx)) - θ_hᵀx), (d, M).

    `chunk` directions at a time bound the memory. Without `search`, F_p of the particles, which are
    its own samples, is read off their ranks: the same numbers, but for ties, in less time.
    """
    (d, m), n = x.shape, data.shape[1]
    dx = torch.zeros_like(x)
    for part in theta.split(chunk):
        z, sorted_q = torch.mm(part, x), torch.sort(torch.mm(part, data), dim=1).values
        if search:
            image = inverse_cdf(cdf(z, torch.sort(z, dim=1).values), sorted_q)
        else:
            order = torch.sort(z, dim=1).indices
            position = torch.arange(m, device=x.device) * (n / m)
            i = position.long().clamp_(0, n - 2)
            left = sorted_q[:, i]
            left += (position - i).clamp_(0, 1).to(x.dtype) * (sorted_q[:, i + 1] - left)
            image = torch.empty_like(z).scatter_(1, order, left)
        dx.addmm_(part.T, image.sub_(z))
    return dx.mul_(d / len(theta))
