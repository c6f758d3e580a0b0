"""C2ST as sbibm has it: how often a perceptron tells samples from draws of the true
posterior.

The perceptron has two hidden layers of 10·d units and learns by Adam until its loss
stops falling; five folds are held out in turn. `c2st` is scikit-learn's, as in sbibm.
`c2st_many` trains the same networks for many pairs at once, which a GPU does in
seconds.
"""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold, cross_val_score
from sklearn.neural_network import MLPClassifier
from torch import Tensor

__all__ = ["c2st", "c2st_many"]

FOLDS = 5
EPOCHS = 300
BATCH = 200
_RATE = 1e-3
_DECAY = 1e-4
_TOLERANCE = 1e-4
_PATIENCE = 10  # scikit-learn's


def _folds(n: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(KFold(FOLDS, shuffle=True, random_state=seed).split(np.empty((n, 0))))


def c2st(
    samples: np.ndarray, true: np.ndarray, seed: int = 1, epochs: int = EPOCHS
) -> float:
    """Accuracy on as many samples (n, d) as true draws."""
    d = true.shape[1]
    network = MLPClassifier((10 * d, 10 * d), max_iter=epochs, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        x = np.concatenate((true, samples), dtype=np.float32)
        y = np.repeat([0, 1], len(true))
        return float(cross_val_score(network, x, y, cv=_folds(len(x), seed)).mean())


def c2st_many(
    samples: Tensor,
    true: Tensor,
    seed: int = 1,
    epochs: int = EPOCHS,
    device: str = "cpu",
) -> Tensor:
    """Accuracies (p,) on p pairs of samples and true draws, each (p, n, d); n a
    multiple of 5.
    """
    x = torch.cat((true, samples), 1).to(device, torch.float32)
    p, n, d = x.shape
    y = (torch.arange(n, device=device) >= n // 2).float()
    learnt, kept = (
        torch.from_numpy(np.stack(part)).to(device)
        for part in zip(*_folds(n, seed), strict=True)
    )
    own = torch.arange(p, device=device).repeat_interleave(
        FOLDS
    )  # the pair of each network
    learnt = learnt.repeat(p, 1)
    kept = kept.repeat(p, 1)
    generator = torch.Generator(device).manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(p * FOLDS, *shape, generator=generator, device=device) * 2 - 1

    sizes = (d, 10 * d, 10 * d, 1)
    layers = []
    for a, b in itertools.pairwise(sizes):
        width = (6 / (a + b)) ** 0.5
        layers += [uniform(a, b).mul_(width), uniform(1, b).mul_(width)]
    for layer in layers:
        layer.requires_grad_()
    adam = torch.optim.Adam(layers, _RATE, foreach=True)

    def logits(rows: Tensor, layers: list[Tensor]) -> Tensor:
        for i in range(0, 6, 2):
            rows = torch.baddbmm(layers[i + 1], rows, layers[i])
            rows = rows.relu() if i < 4 else rows
        return rows[..., 0]

    best = torch.full((p * FOLDS,), torch.inf, device=device)
    waited = torch.zeros(p * FOLDS, device=device)
    ended = torch.zeros(p * FOLDS, dtype=torch.bool, device=device)
    final = [layer.detach().clone() for layer in layers]
    m = learnt.shape[1]
    for _ in range(epochs):
        order = torch.rand(p * FOLDS, m, generator=generator, device=device).argsort(1)
        rows = learnt.gather(1, order)
        shuffled = x[own[:, None], rows]
        label = y[rows]
        total = torch.zeros_like(best)
        for first in range(0, m, BATCH):
            part = slice(first, first + BATCH)
            size = label[:, part].shape[1]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                logits(shuffled[:, part], layers), label[:, part], reduction="none"
            ).mean(1)
            loss = loss + sum(w.square().sum((1, 2)) for w in layers[::2]) * (
                0.5 * _DECAY / size
            )
            adam.zero_grad()
            loss.sum().backward()
            adam.step()
            total += loss.detach() * size
        total /= m
        waited = torch.where(total > best - _TOLERANCE, waited + 1, 0)
        best = torch.minimum(best, total)
        for kept_layer, layer in zip(final, layers, strict=True):
            kept_layer[~ended] = layer.detach()[~ended]
        ended |= waited > _PATIENCE
        if bool(ended.all()):
            break
    found = logits(x[own[:, None], kept], final) > 0
    return (found == (y[kept] > 0)).double().mean(1).view(p, FOLDS).mean(1).cpu()
