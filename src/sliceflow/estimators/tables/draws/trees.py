"""Decision trees whose leaves hold rows, and how fine such trees are.

A tree compares distributions, not means. Its targets for a number are the normal score
and the cosines cos(kπu), where u is its place among all numbers, from 0 to 1. So
differences in scale and shape count as well. Cost-complexity pruning removes splits
that gain hardly more than a split of pure noise would.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from sliceflow.arrays import Floats, Ints, Mask
from sliceflow.estimators.tables.columns.column import Column, middle_probabilities
from sliceflow.estimators.tables.columns.level_positions import (
    LevelPositions,
    is_missing,
)

# A tree is fitted to at most this many rows; all rows are in its leaves. With 15,000,
# samples of Adult are told from rows more easily (C2ST .915 for .997;
# benchmarks/RESULTS.md).
MAX_ROWS_PER_TREE = 50_000

# In a small table, leaves are made smaller until a tree can have this many of them. But
# no leaf has fewer rows than MIN_SAMPLES_LEAF. With more leaves, or smaller ones, draws
# would be nearly copies of rows; with fewer, trees would hardly see other columns.
MIN_LEAVES_PER_TABLE = 15
MIN_SAMPLES_LEAF = 3

# Cosines of u among the targets of a number. C2ST of the tables Default and
# Magic with 5, 8, 16: .70, .79, .81 and .90, .97, 1.0; 24 give the same as 16.
N_COSINES = 16

# The weight of the normal score beside the cosines, so that tails count. With a larger
# one the middle of the distribution would count less.
NORMAL_SCORE_WEIGHT = 1.5

# A category with more levels is not one target with classes, but has a target of 0 and
# 1 for each of its most frequent levels. scikit-learn is slow with many classes.
MAX_CLASSES = 30

# The least impurity that is divided by: that of a constant target is 0.
MIN_IMPURITY = 1e-12

# The largest uniform random number: 1 itself would be beyond the last value of a leaf.
MAX_UNIFORM = 1 - 1e-12


# What trees see of rows (m, p), in single precision, as scikit-learn's trees take them.
TreeFeatures = NDArray[np.float32]

# What a tree is fitted to: classes (n,), or numbers (n, k).
Targets = Ints | Floats


class TreeNodes(Protocol):
    """The used part of the attribute `tree_` of scikit-learn's trees.

    Arrays have one entry for each node; children of leaves are −1.
    """

    node_count: int
    children_left: Ints
    children_right: Ints
    impurity: Floats
    n_node_samples: Ints

    def apply(self, X: TreeFeatures) -> Ints:
        """The leaf (m,) of each row of features (m, p) in single precision."""
        ...


class TreeSettings(NamedTuple):
    """How fine the trees of a `TableFlow` are, and whether neighbors draw numbers.

    With larger leaves and splits that must gain more, trees copy less.

    Parameters
    ----------
    min_samples_leaf : int
        The least number of rows of a leaf.
    ccp_factor : float
        What a split must gain, relative to a split of pure noise.
    n_neighbors : int, default 0
        From how many neighbors the dense numbers of a small table without constraints
        are drawn: columns of which no value is frequent. 0 draws all from trees.

    Examples
    --------
    >>> import pandas as pd
    >>> from sliceflow import TableFlow, TreeSettings
    >>> table = pd.DataFrame({"a": range(300), "b": [0, 1, 2] * 100})
    >>> settings = TreeSettings(min_samples_leaf=10, ccp_factor=2.5)
    >>> TableFlow(tree_settings=settings).plan(table).min_samples_leaf
    10
    """

    min_samples_leaf: int
    ccp_factor: float
    n_neighbors: int = 0

    def for_n_rows(self, n: int) -> TreeSettings:
        """The same settings with smaller leaves if there are few rows."""
        limit = max(MIN_SAMPLES_LEAF, n // MIN_LEAVES_PER_TABLE)
        return self._replace(min_samples_leaf=min(self.min_samples_leaf, limit))


# How fine trees are, unless the user says otherwise. Of six settings it was the hardest
# to tell from rows on 20 small tables (benchmarks/RESULTS.md). Finer trees are better
# only for large tables, and give more rows away; coarser ones give fewer away.
DEFAULT_TREE_SETTINGS = TreeSettings(min_samples_leaf=7, ccp_factor=2.25)


class DrawnValues(NamedTuple):
    """Values that were drawn from nodes of a tree, and the two around each draw."""

    values: Floats  # (m,), each of a random row of its node
    # (m,), the values of the leaf between which the draw is. They say nothing in a node
    # above leaves, whose values are not sorted.
    below: Floats
    above: Floats
    fraction: Floats  # (m,), how far from `below` to `above` the draw is, from 0 to 1


@dataclass(frozen=True, eq=False)
class Tree:
    """A tree whose leaves hold values: each node has a range of the array `values`."""

    nodes: TreeNodes
    values: Floats  # (n,), by leaf, and ascending within a leaf
    node_start: Ints  # (nodes,), where the range of each node begins
    node_size: Ints  # (nodes,), how many values each node has
    parent: Ints  # (nodes,), the node above each node; 0 for the root
    residual_impurity: float = 1.0  # share of the root's impurity that leaves have

    @classmethod
    def from_data(
        cls,
        x: TreeFeatures,
        targets: Targets,
        values: Floats,
        settings: TreeSettings,
        rng: np.random.Generator,
    ) -> Tree:
        """Split rows by their features x (n, p), so that `targets` are alike in leaves.

        Targets are classes (n,), or numbers (n, k), as `tree_targets` makes them. The
        leaves hold the `values` (n,) of their rows.
        """
        sample = subsample_indices(np.arange(len(values)), rng)
        nodes = _fit_nodes(x[sample], targets[sample], settings)
        leaf = nodes.apply(x)
        row_order = np.lexsort((values, leaf))
        sorted_leaf = leaf[row_order]
        parent, subtree_end = _parents_and_subtree_ends(nodes)
        node_start = np.searchsorted(sorted_leaf, np.arange(nodes.node_count))
        node_end = np.searchsorted(sorted_leaf, subtree_end)
        return cls(
            nodes,
            values[row_order],
            node_start,
            node_end - node_start,
            parent,
            _residual_impurity(nodes),
        )

    def find_leaves(self, x: TreeFeatures) -> Ints:
        """The leaf (m,) of each row of features (m, p)."""
        return self.nodes.apply(x)

    def is_leaf(self, node: Ints) -> Mask:
        """Which of the nodes (m,) are leaves."""
        return self.nodes.children_left[node] < 0

    def draw(self, node: Ints, rng: np.random.Generator) -> DrawnValues:
        """Draw a random value of each node (m,), and say which values are next to it.

        Draws from one node are spread over its values: none is drawn more often than
        its share.
        """
        start = self.node_start[node]
        size = self.node_size[node]
        place = _stratified_uniforms(node, rng) * size
        # The i-th value is in the middle of the places from i to i + 1.
        centered = np.clip(place - 0.5, 0, size - 1)
        below = centered.astype(np.int64)
        above = np.minimum(below + 1, size - 1)
        return DrawnValues(
            values=self.values[start + place.astype(np.int64)],
            below=self.values[start + below],
            above=self.values[start + above],
            fraction=centered - below,
        )

    def leaf_range(self, node: Ints) -> tuple[LevelPositions, LevelPositions]:
        """The lowest and the highest value (m,) of leaves (m,) that hold positions.

        Missing cells do not count, unless a leaf has nothing else. Of nodes above
        leaves, these are just two of the values.
        """
        start = self.node_start[node]
        lowest = self.values[start + self._n_missing[node]]
        highest = self.values[start + self.node_size[node] - 1]
        return LevelPositions(lowest), LevelPositions(highest)

    @cached_property
    def _n_missing(self) -> Ints:
        """How many missing cells each node has, at most all but one: (nodes,)."""
        n_before = np.append(0, np.cumsum(is_missing(LevelPositions(self.values))))
        node_end = self.node_start + self.node_size
        n_missing = n_before[node_end] - n_before[self.node_start]
        return np.asarray(np.minimum(n_missing, self.node_size - 1))


def _stratified_uniforms(node: Ints, rng: np.random.Generator) -> Floats:
    """Uniform random numbers in [0, 1) for nodes (m,), stratified within equal nodes.

    Of k equal nodes, one has a number in each of [0, 1/k), [1/k, 2/k), …: so no row of
    a leaf is drawn more often than its share.
    """
    order = np.lexsort((rng.random(len(node)), node))
    group_start = np.flatnonzero(np.diff(node[order], prepend=-1))
    group_size = np.diff(group_start, append=len(node))
    index_in_group = np.arange(len(node)) - np.repeat(group_start, group_size)
    size = np.repeat(group_size, group_size)
    uniforms = np.empty(len(node))
    # Rounding could give 1.
    stratified = (index_in_group + rng.random(len(node))) / size
    uniforms[order] = np.minimum(stratified, MAX_UNIFORM)
    return uniforms


def subsample_indices(row_indices: Ints, rng: np.random.Generator) -> Ints:
    """Random ones of the indices (n,), at most `MAX_ROWS_PER_TREE`, ascending."""
    order = rng.permutation(len(row_indices))
    return np.sort(row_indices[order[:MAX_ROWS_PER_TREE]])


def tree_targets(column: Column, values: Floats) -> Targets:
    """The targets of a tree of a column: classes (n,), or numbers (n, k).

    The `values` (n,) are what the tree holds: positions, or residuals. Of a category,
    targets are the levels, or with very many levels a column of 0 and 1 for each of the
    most frequent ones. Of a quantitative column, they are functions of the place u of
    each value among all, from 0 to 1.
    """
    if column.is_quantitative:
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        u = middle_probabilities(counts)[inverse]
        cosines = np.cos(np.pi * np.arange(1, N_COSINES + 1) * u[:, None])
        return np.column_stack((cosines, NORMAL_SCORE_WEIGHT * ndtri(u)))
    levels, counts = np.unique(values, return_counts=True)
    if len(levels) <= MAX_CLASSES:
        return values.astype(np.int64)
    most_frequent = levels[np.argsort(-counts, kind="stable")[:MAX_CLASSES]]
    return np.asarray(values[:, None] == most_frequent, dtype=np.float64)


def _fit_nodes(x: TreeFeatures, targets: Targets, settings: TreeSettings) -> TreeNodes:
    """The `tree_` of scikit-learn for features x (n, p) and targets (n,) or (n, k)."""
    ccp_alpha = settings.ccp_factor / len(x) * _impurity(targets)
    estimator_type = DecisionTreeClassifier
    if targets.ndim == 2:
        estimator_type = DecisionTreeRegressor
    estimator = estimator_type(
        random_state=0,
        min_samples_leaf=settings.min_samples_leaf,
        ccp_alpha=ccp_alpha,
        # To save time, splits that gain less than half of what pruning asks for are
        # not made. Pruning would remove nearly all of them.
        min_impurity_decrease=ccp_alpha / 2,
    )
    nodes: TreeNodes = estimator.fit(x, targets).tree_
    return nodes


def _impurity(targets: Targets) -> float:
    """The mean variance of numbers (n, k), or Gini's index of classes (n,)."""
    if targets.ndim == 2:
        return float(targets.var(axis=0).mean())
    counts = np.unique(targets, return_counts=True)[1]
    shares = counts / len(targets)
    return float(1 - (shares**2).sum())


def _parents_and_subtree_ends(nodes: TreeNodes) -> tuple[Ints, Ints]:
    """The parent of each node, and one more than the last node below it.

    scikit-learn numbers nodes depth first: what is below a left child ends where its
    sibling begins, and what is below a right child where its parent's subtree ends.
    """
    parent = np.zeros(nodes.node_count, dtype=np.int64)
    subtree_end = np.full(nodes.node_count, nodes.node_count)
    for node in np.flatnonzero(nodes.children_left >= 0):
        left = nodes.children_left[node]
        right = nodes.children_right[node]
        parent[left] = node
        parent[right] = node
        subtree_end[left] = right
        subtree_end[right] = subtree_end[node]
    return parent, subtree_end


def _residual_impurity(nodes: TreeNodes) -> float:
    """The impurity of all leaves together, as a share of the root's."""
    impurity = nodes.impurity * nodes.n_node_samples
    is_leaf = nodes.children_left < 0
    return float(impurity[is_leaf].sum() / max(impurity[0], MIN_IMPURITY))
