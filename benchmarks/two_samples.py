"""C2ST as sbibm has it: how often a perceptron tells samples from true draws.

The perceptron has two hidden layers of 10·d units and learns by Adam until its loss
stops falling; five folds are held out in turn. `c2st` is scikit-learn's, as in sbibm.
`c2st_many` trains the same networks for many pairs at once, which a GPU does in
seconds.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold, cross_val_score
from sklearn.neural_network import MLPClassifier
from torch import Tensor

__all__ = ["c2st", "c2st_many"]

FOLDS = 5  # sbibm's
EPOCHS = 300  # at most, where scikit-learn's default is 200
# Defaults of scikit-learn's perceptron:
BATCH = 200
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 1e-4
TOLERANCE = 1e-4  # a smaller fall of the loss counts as none
PATIENCE = 10  # epochs without a fall, after which a network is done

Weights = list[Tensor]  # weights and biases of the three layers in turn


def c2st(
    samples: np.ndarray, true: np.ndarray, seed: int = 1, epochs: int = EPOCHS
) -> float:
    """Accuracy on as many samples (n, d) as true draws."""
    d = true.shape[1]
    network = MLPClassifier((10 * d, 10 * d), max_iter=epochs, random_state=seed)
    x = np.concatenate((true, samples), dtype=np.float32)
    y = np.repeat([0, 1], len(true))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return float(cross_val_score(network, x, y, cv=_folds(len(x), seed)).mean())


def _folds(n: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Fitted and held-out rows of each fold of n rows."""
    return list(KFold(FOLDS, shuffle=True, random_state=seed).split(np.empty((n, 0))))


def c2st_many(
    samples: Tensor,
    true: Tensor,
    seed: int = 1,
    epochs: int = EPOCHS,
    device: str = "cpu",
) -> Tensor:
    """Accuracies (p,) on p pairs of samples and true draws, each (p, n, d).

    n is a multiple of 5. There is one network for each pair and fold, all trained at
    once; a network whose loss stops falling keeps its weights of then.
    """
    x = torch.cat((true, samples), 1).to(device, torch.float32)
    n_pairs, n, d = x.shape
    n_networks = n_pairs * FOLDS
    y = (torch.arange(n, device=device) >= n // 2).float()
    folds = _folds(n, seed)
    fitted_rows = torch.from_numpy(np.stack([rows for rows, _ in folds])).to(device)
    held_out_rows = torch.from_numpy(np.stack([rows for _, rows in folds])).to(device)
    fitted_rows = fitted_rows.repeat(n_pairs, 1)
    held_out_rows = held_out_rows.repeat(n_pairs, 1)
    pair = torch.arange(n_pairs, device=device).repeat_interleave(FOLDS)[:, None]
    generator = torch.Generator(device).manual_seed(seed)

    def random(*shape: int) -> Tensor:
        """Uniform numbers in [0, 1) for every network."""
        return torch.rand(n_networks, *shape, generator=generator, device=device)

    weights = _initial_weights(d, random)
    adam = torch.optim.Adam(weights, LEARNING_RATE, foreach=True)
    lowest_loss = torch.full((n_networks,), torch.inf, device=device)
    n_epochs_waited = torch.zeros(n_networks, device=device)
    done = torch.zeros(n_networks, dtype=torch.bool, device=device)
    final_weights = [weight.detach().clone() for weight in weights]
    for _ in range(epochs):
        order = random(fitted_rows.shape[1]).argsort(1)
        rows = fitted_rows.gather(1, order)
        loss = _train_epoch(weights, adam, x[pair, rows], y[rows])
        stalls = loss > lowest_loss - TOLERANCE
        n_epochs_waited = torch.where(stalls, n_epochs_waited + 1, 0)
        lowest_loss = torch.minimum(lowest_loss, loss)
        for final, weight in zip(final_weights, weights, strict=True):
            final[~done] = weight.detach()[~done]
        done |= n_epochs_waited > PATIENCE
        if bool(done.all()):
            break
    predicted = _logits(x[pair, held_out_rows], final_weights) > 0
    correct = predicted == (y[held_out_rows] > 0)
    accuracy = correct.double().mean(1)
    return accuracy.view(n_pairs, FOLDS).mean(1).cpu()


def _initial_weights(d: int, random: Callable[..., Tensor]) -> Weights:
    """Uniform weights and biases of all networks, as wide as Glorot's."""
    weights: Weights = []
    for n_inputs, n_outputs in itertools.pairwise((d, 10 * d, 10 * d, 1)):
        bound = (6 / (n_inputs + n_outputs)) ** 0.5
        weights.append((random(n_inputs, n_outputs) * 2 - 1).mul_(bound))
        weights.append((random(1, n_outputs) * 2 - 1).mul_(bound))
    for weight in weights:
        weight.requires_grad_()
    return weights


def _logits(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """The outputs (networks, rows) of all networks for rows x (networks, rows, d)."""
    w1, b1, w2, b2, w3, b3 = weights
    hidden = torch.baddbmm(b1, x, w1).relu()
    hidden = torch.baddbmm(b2, hidden, w2).relu()
    return torch.baddbmm(b3, hidden, w3)[..., 0]


def _train_epoch(
    weights: Weights, adam: torch.optim.Adam, x: Tensor, y: Tensor
) -> Tensor:
    """One pass over rows x (networks, rows, d) and labels y; the mean losses."""
    total = torch.zeros(len(x), device=x.device)
    for start in range(0, x.shape[1], BATCH):
        batch_x = x[:, start : start + BATCH]
        batch_y = y[:, start : start + BATCH]
        batch_size = batch_y.shape[1]
        cross_entropy = torch.nn.functional.binary_cross_entropy_with_logits(
            _logits(batch_x, weights), batch_y, reduction="none"
        ).mean(1)
        squares = sum(weight.square().sum((1, 2)) for weight in weights[::2])
        loss = cross_entropy + squares * (0.5 * WEIGHT_DECAY / batch_size)
        adam.zero_grad()
        loss.sum().backward()
        adam.step()
        total += loss.detach() * batch_size
    return total / x.shape[1]
