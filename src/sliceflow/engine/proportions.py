"""How many particles of each condition a fit has, and whose conditions they take."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sliceflow.engine.encoded_y import (
    ClassIndices,
    ContinuousY,
    EncodedY,
    FlowY,
    SeparateClassIndices,
)
from sliceflow.engine.random import Seed

# The fewest particles of a fit. Maps of fewer particles are too noisy for offline
# samples, to which they were not fitted; more particles cost time.
MIN_PARTICLES = 2_000
# The fewest particles of each class, if classes share their maps. A large fit of M
# particles has more, `_MIN_ROOTS_OF_SHARED_CLASS`·√M: the tails of a stored map, ¼√M
# particles at each end, must not be most of a rare class.
_MIN_OF_SHARED_CLASS = 200
_MIN_ROOTS_OF_SHARED_CLASS = 2
# The fewest particles of each class that has its own maps, which no other class helps
# to estimate. It trades the noise of rare classes for time.
_MIN_OF_SEPARATE_CLASS = 1_000
# With many classes these minima would cost too much. They are lowered so that all
# classes together need at most twice this number of particles, or twice the particles
# of the fit if these are more.
_ENOUGH_FOR_ALL_CLASSES = 10_000


def proportional_indices(y: EncodedY, m: int, seed: Seed, minimum: int = 0) -> Tensor:
    """The indices (M,) of the data whose conditions M particles take, in random order.

    Classes have the data's proportions: class c gets M·N_c/N particles, rounded by
    largest remainders, and at least `minimum` if M allows it. `y` has the conditions
    of the data.
    """
    n = len(y)
    if not isinstance(y, ClassIndices):
        return balanced_indices(n, m, seed)
    class_sizes = y.sizes()
    counts = _proportional_counts(class_sizes, m)
    _increase_to_minimum(counts, class_sizes > 0, minimum)
    # All data of a class have the same condition: any index of the class will do.
    first_of_class = torch.zeros(len(class_sizes), dtype=torch.int64)
    first_of_class.scatter_reduce_(
        0, y.values.long(), torch.arange(n), "amin", include_self=False
    )
    indices = torch.repeat_interleave(first_of_class, counts)
    return indices[seed.child("order").permutation(m)]


def _proportional_counts(class_sizes: Tensor, m: int) -> Tensor:
    """M particles divided in proportion to class sizes (C,), by largest remainders."""
    share = class_sizes.double() * (m / int(class_sizes.sum()))
    counts = share.floor().long()
    # A stable order, by class index: the same on every machine.
    by_remainder = torch.argsort(share - counts, descending=True, stable=True)
    n_left = m - int(counts.sum())
    counts[by_remainder[:n_left]] += 1
    return counts


def _increase_to_minimum(counts: Tensor, is_present: Tensor, minimum: int) -> None:
    """Increase the counts (C,) of classes that are present to a minimum, in place.

    The largest class gives them particles, one at a time, as long as it has more than
    the minimum.
    """
    is_too_small = is_present & (counts < minimum)
    for c in torch.nonzero(is_too_small)[:, 0].tolist():
        while counts[c] < minimum and counts.max() > minimum:
            counts[counts.argmax()] -= 1
            counts[c] += 1


def balanced_indices(n: int, m: int, seed: Seed) -> Tensor:
    """Indices (M,) from 0 to N − 1 in random order, each ⌊M/N⌋ or ⌈M/N⌉ times."""
    indices = seed.child("rows").permutation(n).repeat(math.ceil(m / n))[:m]
    return indices[seed.child("order").permutation(m)]


def y_with_added_particles(*, y_p: FlowY, y_q: FlowY, seed: Seed) -> FlowY:
    """The y of the requested particles, followed by the y of particles that a fit adds.

    Maps of few particles are too noisy for offline samples. So a fit of M particles has
    at least `MIN_PARTICLES`, and at least max(200, 2√M) of every class in the data. If
    classes have separate maps, every class has at least 1,000. With many classes, these
    minima are lower.

    Parameters
    ----------
    y_p : the y of the requested particles
    y_q : the y of the data
    seed : draws the data whose conditions the added particles take
    """
    if isinstance(y_p, ClassIndices):
        assert isinstance(y_q, ClassIndices), "particles have the data's kind of y"
        return _with_added_labels(y_p, y_q)
    n_added = max(0, MIN_PARTICLES - len(y_p))
    added = y_q.values[balanced_indices(len(y_q), n_added, seed)]
    return ContinuousY(torch.cat((y_p.values, added)))


def _with_added_labels(y_p: ClassIndices, y_q: ClassIndices) -> ClassIndices:
    """The labels `y_p`, followed by the labels of the particles that a fit adds."""
    are_separate = isinstance(y_q, SeparateClassIndices)
    n_particles = max(len(y_p), MIN_PARTICLES)
    sizes_q = y_q.sizes()
    is_in_data = sizes_q > 0
    min_size = _min_class_size(n_particles, int(is_in_data.sum()), are_separate)
    min_sizes = torch.where(is_in_data, min_size, 0)
    if len(y_p) < MIN_PARTICLES:
        in_proportion = sizes_q.double() * (n_particles / len(y_q))
        min_sizes = min_sizes.maximum(in_proportion.round().long())
    n_added = (min_sizes - y_p.sizes(len(sizes_q))).clamp(min=0)
    added = torch.repeat_interleave(torch.arange(len(sizes_q)), n_added)
    values = torch.cat((y_p.values, added))
    if isinstance(y_q, SeparateClassIndices):
        return SeparateClassIndices(values, y_q.n_classes)
    return ClassIndices(values)


def _min_class_size(n_particles: int, n_classes: int, are_separate: bool) -> int:
    """The fewest particles of a class, in a fit of `n_particles` and `n_classes`.

    `are_separate` says whether each class has its own maps.
    """
    if are_separate:
        min_size = _MIN_OF_SEPARATE_CLASS
    else:
        roots = math.ceil(_MIN_ROOTS_OF_SHARED_CLASS * math.sqrt(n_particles))
        min_size = max(_MIN_OF_SHARED_CLASS, roots)
    enough_for_all = 2 * max(n_particles, _ENOUGH_FOR_ALL_CLASSES)
    return min(min_size, enough_for_all // n_classes)
