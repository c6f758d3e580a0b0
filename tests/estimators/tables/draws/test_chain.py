"""The chain of trees: what its draws must keep, with known answers."""

import re

import numpy as np
import pandas as pd
import pytest

import sliceflow
from sliceflow import TableFlow
from sliceflow.engine.random import Seed
from sliceflow.estimators.tables.columns.column_data import limit_predictors
from sliceflow.estimators.tables.columns.level_positions import has_value
from sliceflow.estimators.tables.draws import trees
from sliceflow.estimators.tables.draws.column_model import fit_column_model
from sliceflow.estimators.tables.draws.partly_drawn_rows import PartlyDrawnRows
from sliceflow.estimators.tables.draws.row_distances import nearest_distances
from sliceflow.estimators.tables.draws.strategies import uses_ridge
from sliceflow.estimators.tables.draws.trees import TreeSettings
from sliceflow.estimators.tables.rows.table_rows import read_dataframe
from sliceflow.estimators.tables.table import Table
from sliceflow.estimators.tables.trials import choose_strategies

FINE = TreeSettings(min_samples_leaf=5, ccp_factor=2.0)


def read(frame):
    return Table.from_rows(read_dataframe(frame), {}, ())


def chosen_strategies(table):
    planned = choose_strategies.plan_strategies(table)
    return choose_strategies.choose_strategies(table, planned, lambda trial: None)


def draw(frame, n=2000):
    return TableFlow(random_state=0).fit(frame).sample(n, random_state=0)


def test_draws_are_spread_evenly_over_rows_and_lie_between_neighbors(rng):
    level = pd.Series([*"aabbb"] * 60 + ["once"])
    assert (
        draw(level.to_frame("level"), 301)["level"]
        .value_counts()
        .equals(level.value_counts())
    )
    x, noise = rng.normal(size=(2, 300))
    two = pd.DataFrame({"x": x, "two": rng.choice([-5.0, 5.0], 300) + 0.1 * noise})
    assert (draw(two)["two"].abs() < 4).mean() < 0.05  # one gap in a leaf


def test_a_level_of_one_row_is_drawn_with_what_follows_from_it():
    frame = pd.DataFrame(
        {"town": [*"ab"] * 20 + ["c"], "country": [*"xy"] * 20 + ["z"], "n": range(41)}
    )
    new = draw(frame, 500)
    assert (new["town"] == "c").equals(new["country"] == "z")
    assert 2 < (new["town"] == "c").sum() < 30


def test_sums_and_frequent_levels_are_kept(rng):
    """A sum of many columns, with noise; four of 44 levels tell its quarter."""
    x = rng.normal(size=(2000, 6))
    frame = pd.DataFrame(x, columns=[*"abcdef"]).assign(
        total=x.sum(1) + 1.5 * rng.normal(size=2000)
    )
    quarter = np.digitize(frame["total"], frame["total"].quantile([0.25, 0.5, 0.75]))
    level = np.where(rng.random(2000) < 0.8, quarter, rng.integers(4, 44, 2000))
    frame["level"] = [f"l{k:02}" for k in level]
    new = draw(frame)
    for rows in (frame, new):
        correlation = np.corrcoef(rows["total"], rows[[*"abcdef"]].sum(axis=1))[0, 1]
        assert correlation == pytest.approx(0.85, abs=0.04)
    new_quarter = np.digitize(new["total"], frame["total"].quantile([0.25, 0.5, 0.75]))
    is_kept = new["level"] == [f"l{k:02}" for k in new_quarter]
    assert np.mean(is_kept) == pytest.approx(0.8, abs=0.08)


@pytest.mark.parametrize("times", [False, True])
def test_a_number_equals_another_as_often_as_in_the_table(rng, times):
    a = rng.normal(100_000, 10_000, 1000).round()
    b = a + np.where(rng.random(1000) < 0.3, 0, rng.gamma(2, 1000, 1000).round())
    frame = pd.DataFrame({"a": a, "b": b})
    if times:  # in different units
        frame = pd.DataFrame(
            {"a": a.astype("datetime64[s]"), "b": (1000 * b).astype("datetime64[ms]")}
        )
    new = draw(frame)
    assert (new["a"] == new["b"]).mean() == pytest.approx(0.3, abs=0.04)


def test_a_frequent_lowest_value_of_a_regression_is_drawn_as_often(rng, monkeypatch):
    """Only draws beyond the ends are repeated, not those at an end.

    The share of zeros has a deviation of .02, so it fails once in 10,000 times.
    """
    n = 800
    x = np.where(rng.random(n) < 0.2, 0, rng.gamma(3, 100, n)).round()
    noise = rng.normal(size=(2, n))
    frame = pd.DataFrame({"other": noise[0], "x": x})
    frame["y"] = np.where(x > 0, 0.3 * x + noise[1], 0).round().clip(0)
    monkeypatch.setattr(choose_strategies, "MAX_SHARE_OF_ONE_VALUE", 1.0)
    flow = TableFlow(random_state=0).fit(frame)
    assert uses_ridge(flow.plan_.strategies[-1])
    new = flow.sample(1000, random_state=0)
    assert (new["y"] == 0).mean() == pytest.approx((frame["y"] == 0).mean(), abs=0.08)


def test_of_many_columns_the_model_sees_the_category_that_tells(rng):
    """A town of 20 decides the longitude; 45 numbers have nothing to do with it.

    Of a number given towns in random order, the codes of towns explain next to nothing.
    """
    n = 1000
    town = rng.integers(0, 20, n)
    longitude = rng.permutation(20)[town] + 0.1 * rng.normal(size=n)
    frame = pd.DataFrame(rng.normal(size=(n, 45)), columns=[f"x{i}" for i in range(45)])
    frame.insert(0, "town", [f"t{v:02}" for v in town])
    frame["longitude"] = longitude
    table = read(frame)
    assert 0 in limit_predictors(table.column_data(46, range(46))).predictor_indices
    assert 46 in limit_predictors(table.column_data(0, range(1, 47))).predictor_indices


def errors_by_two(frame):
    """What is left over of the column "rest", grouped by "two"."""
    predicted = 10 - frame["a"] ** 2 / 5 - 5 * frame["two"]
    return frame.assign(error=predicted - frame["rest"]).groupby("two")


def interquartile_range(values):
    return values.quantile(0.75) - values.quantile(0.25)


def test_numbers_that_follow_from_others_still_do(rng):
    """A product, a ratio of whole numbers, a difference, and a spiked column."""
    n = 1500
    a, b = rng.gamma(9, 1, (2, 1500)).round(2) + 1
    frame = pd.DataFrame(
        {"a": a, "b": b, "area": (a * b).round(2), "ratio": (1000 * a / b).round()}
    )
    two = rng.random(n) < 0.5
    rest = 10 - a**2 / 5 - 5 * two + np.where(two, 0.02, 0.2) * rng.normal(size=n)
    frame["rest"] = np.where(two & (rng.random(n) < 0.4), np.nan, rest.round(2))
    frame["spikes"] = np.where(rng.random(n) < 0.5, 0, 10 * a).round(2)
    frame = frame.assign(two=two, ratio=frame["ratio"].astype(int))
    flow = TableFlow(random_state=0).fit(frame)
    assert flow.plan_.order[0] == "two"
    chosen = dict(zip(flow.plan_.order, flow.plan_.strategies, strict=True))
    by_regression = {name for name, strategy in chosen.items() if uses_ridge(strategy)}
    assert by_regression == {"rest"}  # the others are computed
    assert re.search("regressions +rest", str(flow.plan_))
    new = flow.sample(n, random_state=0)
    assert np.abs(new["area"] - new["a"] * new["b"]).max() < 0.005 + 1e-9
    assert np.abs(new["ratio"] - 1000 * new["a"] / new["b"]).max() < 0.5 + 1e-9
    rows = errors_by_two(frame)
    draws = errors_by_two(new)
    # Middle halves, because the few numbers in the tail move far: their neighbors are.
    log_width_of_rows = np.log(rows["error"].apply(interquartile_range))
    log_width_of_draws = np.log(draws["error"].apply(interquartile_range))
    assert np.allclose(log_width_of_rows, log_width_of_draws, atol=0.3)
    assert (np.abs(draws["error"].mean() - rows["error"].mean()) < 0.05).all()
    share_of_rows = rows["rest"].count() / rows.size()
    share_of_draws = draws["rest"].count() / draws.size()
    assert np.allclose(share_of_rows, share_of_draws, atol=0.05)
    assert not new.drop(columns="two").isin(frame).all(axis=1).any()
    for name in ("area", "ratio", "rest"):
        # Predictions beyond the ends are drawn anew; a few are there by chance.
        at_the_ends = new[name].isin([frame[name].min(), frame[name].max()])
        assert at_the_ends.sum() <= 3
    assert new["area"].equals(new["area"].round(2))


def test_of_many_columns_trees_see_those_that_matter(rng):
    x = rng.normal(size=(300, 60))
    table = read(
        pd.DataFrame(np.column_stack((x, -x[:, 59] + 0.1 * rng.normal(size=300))))
    )
    data = table.column_data(60, range(60))
    model = fit_column_model(data, seed=Seed(0), settings=FINE)
    assert 59 in model.predictor_indices


def test_a_regression_must_be_much_better_than_leaves(rng):
    x, e = rng.normal(size=(2, 2000))
    for noise, is_ridge in ((0.15, False), (0.001, True)):
        table = read(pd.DataFrame({"x": x, "y": x + noise * e}))
        first, second = chosen_strategies(table)
        assert first == "tree"
        assert uses_ridge(second) == is_ridge  # of logarithms is as good


def test_what_leaves_do_not_allow_is_drawn_from_the_nodes_above_and_not_between_them(
    rng, monkeypatch
):
    """Leaves are at 0 or at 10. First all is allowed, then only what is far away."""
    monkeypatch.setattr(trees, "MAX_ROWS_PER_TREE", 300)  # of 800; all are in leaves
    x = rng.integers(0, 8, 800)
    frame = pd.DataFrame({"x": x, "y": 10 * (x % 2) + 0.1 * rng.normal(size=800)})
    table = read(frame)
    model = fit_column_model(
        table.column_data(1, predictor_indices=[0]), seed=Seed(0), settings=FINE
    )
    grid_values_at = table.columns[1].grid_values_at

    class KnownCells(PartlyDrawnRows):
        def allows(self, c, row_indices, positions):
            assert c == 1
            return positions >= 0

    class FarCells(PartlyDrawnRows):
        def allows(self, c, row_indices, positions):
            return np.abs(grid_values_at(positions) - 10 * (x[row_indices] % 2)) > 2

    blank = np.column_stack((table.level_positions[:, 0], np.full(800, np.nan)))
    in_leaf = model.draw(KnownCells(blank), rng)[:, 0]
    assert (np.abs(grid_values_at(in_leaf) - 10 * (x % 2)) < 1).all()
    above = model.draw(FarCells(blank), rng)[:, 0]
    assert (np.abs(grid_values_at(above) - 10 * (1 - x % 2)) < 1).all()


def test_rows_are_compared_by_the_range_of_numbers_and_by_levels(rng):
    x = np.where(rng.random(60) < 0.2, np.nan, rng.permutation(60))
    frame = pd.DataFrame(
        {"x": x, "few": rng.choice([1, 5, 9], 60), "c": rng.choice([*"ab"], 60)}
    )
    share = np.where(
        np.isnan(x), -0.5, (x - np.nanmin(x)) / (np.nanmax(x) - np.nanmin(x))
    )
    away = np.abs(share[:, None] - share)
    for name in ("few", "c"):
        away += 2 * (frame[name].to_numpy()[:, None] != frame[name].to_numpy())
    table = read(frame)
    low = np.flatnonzero(frame["few"] == 1)
    high = np.flatnonzero(frame["few"] == 9)
    distances = nearest_distances(
        table, table.level_positions[low], table.level_positions[high]
    )
    assert np.allclose(distances, away[np.ix_(low, high)].min(1), atol=1e-5)
    np.fill_diagonal(away, np.inf)
    others = nearest_distances(
        table, table.level_positions, table.level_positions, exclude_self=True
    )
    assert np.allclose(others, away.min(1), atol=1e-5)


def labeled(rng, n=2400, shift=3.0):
    """A label that moves w by `shift`, and y = x or y = −x by it; low < high.

    With a shift of 0, no number tells the label.
    """
    sign = np.tile([-1.0, 1.0], n // 2)
    w, x, noise = rng.normal(size=(3, n))
    slope = 1.0
    if shift:
        slope = sign
    frame = pd.DataFrame(
        {"w": shift / 2 * sign + w, "x": x, "y": slope * x + 0.3 * noise}
    )
    frame["low"] = rng.integers(0, 90, n)
    frame["high"] = frame["low"] + rng.integers(1, 4, n)
    return frame.assign(kind=np.where(sign > 0, "b", "a"))


def test_levels_of_a_label_among_numbers_have_trees_of_their_own(rng, tmp_path):
    frame = labeled(rng)
    flow = TableFlow(constraints=["low < high"], random_state=0).fit(frame)
    assert flow.plan_.order[0] == "kind"
    assert flow.plan_.strategies == ("splitting_label", *["tree"] * 5)
    printed = str(flow.plan_)
    assert "splitting_label" not in printed
    assert re.search(r"separate trees +for each level of kind\b", printed)
    (chain,) = flow._fitted_model().fitted_chains.values()
    _, *others = chain
    z = flow._fitted_model().table.level_positions
    for step in others:
        assert 0 <= step.unexplained_share <= 1
        for level, model in step.models.items():
            rows_of_level = z[:, step.label_index] == level
            (column,) = step.drawn_indices
            values = model.sampler.tree.values
            assert np.array_equal(np.sort(values), np.sort(z[rows_of_level, column]))
    # The constraint is checked with the row of each cell, whatever its level.
    (last,) = others[-1].drawn_indices
    partly_drawn = PartlyDrawnRows(z.copy(), flow._fitted_model().table.rule_set)
    partly_drawn.set_columns([last], np.full((len(z), 1), np.nan))
    partly_drawn.set_columns([last], others[-1].draw(partly_drawn, rng))
    has_cell = has_value(
        partly_drawn.level_positions[:, last]
    )  # others are to be drawn again
    assert has_cell.mean() > 0.9
    kept = partly_drawn.level_positions[has_cell]
    drawn = flow._fitted_model().table.to_dataframe(kept, Seed(0))
    assert (drawn["low"] < drawn["high"]).all()
    new = flow.sample(3000, random_state=1)
    assert (new["low"] < new["high"]).all()
    for kind, sign in (("a", -1), ("b", 1)):
        for rows in (
            new[new["kind"] == kind],
            flow.sample(1000, random_state=2, given={"kind": kind}),
        ):
            assert set(rows["kind"]) == {kind}
            # Trees lose .008 ± .003 of the correlation over twelve seeds, so the limit
            # is four standard deviations away.
            assert np.corrcoef(rows["x"], rows["y"])[0, 1] == pytest.approx(
                0.958 * sign, abs=0.02
            )
            assert rows["w"].mean() == pytest.approx(1.5 * sign, abs=0.1)
    flow.save(tmp_path / "m")
    pd.testing.assert_frame_equal(
        sliceflow.load(tmp_path / "m").sample(3000, random_state=1), new
    )
    flow.forget(frame[:1500])
    assert "splitting_label" not in flow.plan_.strategies  # too few rows of each level


@pytest.mark.parametrize(
    "why", ["not told", "few", "many", "another category", "cells are missing"]
)
def test_trees_of_a_label_are_not_held_apart_in_vain(rng, why, monkeypatch):
    max_rows = 1000 if why == "many" else 2000
    monkeypatch.setattr(choose_strategies, "MAX_ROWS_PER_TREE", max_rows)
    n = 900 if why == "few" else 2400
    frame = labeled(rng, n, shift=0.0 if why == "not told" else 3.0)
    if why == "another category":
        frame["other"] = rng.choice([*"pqr"], len(frame))
    if why == "cells are missing":
        frame.loc[::3, "kind"] = None
    assert "splitting_label" not in chosen_strategies(read(frame))


def test_a_number_that_is_often_zero_is_not_drawn_by_a_regression(rng):
    # An eighth of the numbers is 0 exactly. A regression would draw numbers near 0.
    x = rng.uniform(1, 2, 400)
    y = np.where(rng.random(400) < 0.125, 0.0, (3 * x).round(4))
    frame = pd.DataFrame({"x": x, "y": y})
    flow = TableFlow(random_state=0).fit(frame)
    share = (flow.sample(400, random_state=0)["y"] == 0).mean()
    # Four standard errors of 400 rows.
    assert abs(share - (y == 0).mean()) < 0.07
