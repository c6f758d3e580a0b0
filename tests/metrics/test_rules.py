"""Rules of tables: real ones are found, those by chance are not."""

import numpy as np
import pytest

from sliceflow.metrics.rules import find_rules, measure_rules, share_keeping_all

NAMES = ["town", "land", "low", "high", "x"]


def kept(train, rows, is_categorical):
    names = [f"c{i}" for i in range(train.shape[1])]
    return share_keeping_all(find_rules(train, names, is_categorical), rows)


def test_rules_that_training_rows_obey_are_found_and_those_by_chance_are_not(rng):
    town = rng.integers(0, 8, 400).astype(float)
    low = rng.integers(0, 50, 400).astype(float)
    train = np.column_stack(
        (town, town // 3, low, low + rng.random(400), rng.normal(size=400))
    )
    kinds = [True, True, False, False, False]
    assert kept(train[:300], train[300:], kinds) == 1
    for column, change in (
        (1, 1.0),
        (2, 100.0),
        (2, -0.5),
    ):  # another country, a > b, no whole number
        broken = train.copy()
        broken[:100, column] += change
        assert kept(train, broken, kinds) == 0.75
    gone = train.copy()
    gone[:200, 1:3] = np.nan
    assert kept(train, gone, kinds) == 1, "missing cells break no rule"
    unknown = train.copy()
    unknown[:40, 0] = np.nan  # countries of unknown towns differ, and break no rule
    broken = train.copy()
    broken[:100, 1] += 1
    assert kept(unknown, broken, kinds) == 0.75
    group = np.arange(400.0) // 5
    rare = np.column_stack((group, group == 7))  # all of one small group: may be chance
    assert kept(rare, np.column_stack((group, group != 7)), [True, True]) == 1


def test_rules_are_said_in_words_the_least_kept_first(rng):
    town = rng.integers(0, 8, 400).astype(float)
    low = 3 * rng.random(400)
    train = np.column_stack((town, town // 3, low, low + 1, rng.normal(size=400)))
    rules = find_rules(train, NAMES, [True, True, False, False, False])
    assert [rule.text for rule in rules] == ["land follows from town", "low <= high"]
    samples = train.copy()
    samples[:100, 3] = -1
    worst, other = measure_rules(rules, 400, train, samples)
    assert worst == ("low <= high", 1.0, 0.75, 800)
    assert other == ("land follows from town", 1.0, 1.0, 400)


def test_sums_of_prices_are_found_also_with_missing_cells(rng):
    net = rng.integers(100, 100_000, 500) / 100
    shipping = rng.choice([0, 4.99, 9.99], 500)
    tax = np.round(0.19 * net, 2)
    total = np.round(net + shipping + tax, 2)
    rest = rng.normal(size=500)
    columns = np.column_stack((net, shipping, rest, tax, total))
    columns[rng.random(columns.shape) < 0.03] = np.nan
    names = ["net", "shipping", "rest", "tax", "total"]
    rules = find_rules(columns, names, [False] * 5)
    sums = [rule for rule in rules if " = " in rule.text]
    assert [rule.text for rule in sums] == ["total = net + shipping + tax"]
    moved = columns.copy()
    moved[:, 4] += 0.01  # a cent
    assert sums[0].is_kept_by(moved).mean() == pytest.approx(
        np.isnan(columns[:, [0, 1, 3, 4]]).any(axis=1).mean()
    )
    shuffled = rng.permuted(columns, axis=0)
    assert not [r for r in find_rules(shuffled, names, [False] * 5) if "=" in r.text]


def test_coefficients_of_sums_are_small_whole_numbers(rng):
    hit, double, triple, home_run = rng.integers(0, 30, (4, 300)).astype(float)
    bases = hit + double + 2 * triple + 3 * home_run
    half = 0.5 * hit + double  # no rule of whole numbers
    columns = np.column_stack((hit, double, triple, home_run, bases, half))
    names = ["hit", "double", "triple", "home_run", "bases", "half"]
    rules = find_rules(columns, names, [False] * 6)
    sums = [rule.text for rule in rules if " = " in rule.text]
    assert sums == ["bases = hit + double + 2·triple + 3·home_run"]
