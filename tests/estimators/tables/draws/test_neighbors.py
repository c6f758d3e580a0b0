"""Rows drawn from neighbors: moments, distributions, and when they are chosen."""

import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import kstest

import sliceflow
from sliceflow import ModelFileError, TableFlow
from sliceflow.estimators.tables import fitted
from sliceflow.estimators.tables.draws import neighbor_columns
from sliceflow.estimators.tables.draws.chain import fit_chain
from sliceflow.estimators.tables.draws.neighbors_model import NeighborsModel
from sliceflow.estimators.tables.trials import choose_neighbors

NEAR = (5, 2.0, 20)  # the last is the number of neighbors


def curve(n, rng):
    """Three numbers along a curve, and a category."""
    t = rng.uniform(0, 3, n)
    near = 0.05 * rng.normal(size=(n, 3)) + np.column_stack((t, np.sin(2 * t), t**2))
    return pd.DataFrame(near, columns=list("abc")).assign(
        side=np.where(t < 1, "left", "right")
    )


def tuned_plan(frame, **parameters):
    """The plan of a fit after its trials."""
    planned_fit = TableFlow(**parameters).prepare(frame).planned_fit
    return planned_fit.tune([]).plan


def fit(frame, **parameters):
    """The fitted flow, and the steps of its chain."""
    flow = TableFlow(random_state=0, **parameters).fit(frame)
    (chain,) = flow._fitted_model().fitted_chains.values()
    return flow, chain


def test_a_draw_has_the_moments_of_its_formula(rng):
    flow, (model,) = fit(curve(300, rng), tree_settings=NEAR)
    assert isinstance(model, NeighborsModel)
    row = 7
    k = NEAR[2]
    around = model.scores[model.neighbors[row]]
    drawn = model._draw_scores(np.full(40_000, row), rng)
    h2 = k / (k + 4)
    mean = around.mean(0)
    expected = mean + np.sqrt(1 - h2) * (model.scores[row] - mean)
    np.testing.assert_allclose(drawn.mean(0), expected, atol=0.01)
    np.testing.assert_allclose(np.cov(drawn.T), h2 * np.cov(around.T), atol=0.004)
    assert 0 < model.unexplained_share < 0.2
    assert flow.history_["unexplained"] == [model.unexplained_share]
    assert flow.history_["column"] == ["side, a, b, c"]


def test_the_neighbors_are_those_of_a_plain_search(rng):
    """All distances, with columns weighted by how much the others explain of them."""
    frame = curve(200, rng).assign(noise=rng.normal(size=200))
    flow, (model,) = fit(frame, tree_settings=(5, 2.0, 4))
    table = flow._fitted_model().table
    x = np.hstack(
        [
            table.columns[c].features(table.level_positions[:, c])
            for c in model.drawn_indices
        ]
    )
    centered = x - x.mean(0)
    for j in range(x.shape[1]):
        others = np.delete(centered, j, 1)
        n_others = others.shape[1]
        ridge = np.sqrt(2) * np.eye(n_others)  # .01 for each of 200 rows
        target = np.append(centered[:, j], np.zeros(n_others))
        slopes = np.linalg.lstsq(np.vstack((others, ridge)), target, rcond=None)[0]
        total = (centered[:, j] ** 2).sum() + 2
        square = (slopes**2).sum()
        left = ((centered[:, j] - others @ slopes) ** 2).sum() + 2 * (1 + square)
        x[:, j] *= np.sqrt(np.clip(1 - left / total, 0.25, 1))
    nearest = np.argsort(cdist(x, x), axis=1)[:, :4]
    is_same = np.sort(model.neighbors, axis=1) == np.sort(nearest, axis=1)
    assert is_same.mean() > 0.99


def test_samples_have_the_distributions_and_the_dependence_of_rows(rng):
    frame = curve(400, rng)
    flow, _ = fit(frame, tree_settings=NEAR)
    new = flow.sample(400, random_state=1)
    assert all(
        kstest(new[name], frame[name], method="asymp").statistic < 0.01
        for name in "abc"
    )
    assert (
        np.abs(new["c"] - new["a"] ** 2).median()
        < 2 * np.abs(frame["c"] - frame["a"] ** 2).median()
    )
    assert ((new["a"] < 1) == (new["side"] == "left")).mean() > 0.93
    # Few rows are no more independent than many.
    few = pd.concat([flow.sample(2, random_state=seed) for seed in range(200)])
    assert few["a"].corr(few["c"]) == pytest.approx(
        frame["a"].corr(frame["c"]), abs=0.02
    )
    assert not new.merge(frame).shape[0]


def test_what_is_exact_stays_exact(rng):
    frame = curve(400, rng).round(2)
    frame["total"] = (frame["a"] + 2 * frame["b"]).round(2)
    frame["same"] = np.where(
        rng.random(400) < 0.3, frame["a"], (frame["a"] + rng.gamma(2, 1, 400)).round(2)
    )
    frame["none"] = np.where(frame["side"] == "left", 0, 10 * frame["b"].abs()).round(2)
    frame.loc[:9, "total"] = np.nan
    flow, (together, *others) = fit(frame, tree_settings=NEAR)
    names = frame.columns
    assert [names[c] for c in together.drawn_indices] == ["side", "a", "b", "c"]
    drawn_later = [step.drawn_indices for step in others]
    assert [names[c] for (c,) in drawn_later] == ["total", "same", "none"]
    assert flow.n_iter_ == 4
    new = flow.sample(1000, random_state=0)
    assert np.abs(new["total"] - new["a"] - 2 * new["b"]).median() < 0.02
    share = (frame["same"] == frame["a"]).mean()
    assert (new["same"] == new["a"]).mean() == pytest.approx(share, abs=0.06)
    assert (new["none"] == 0).eq(new["side"] == "left").mean() > 0.98


def test_neighbors_are_chosen_where_they_are_better(rng, monkeypatch):
    """By the detector: where it hardly tells, either choice does little harm."""
    auc_of_neighbors = 0.6

    def trial_auc(table, fitted_z, held_out_z, settings, strategies):
        return auc_of_neighbors if settings.n_neighbors else 0.65

    factors = rng.normal(size=(300, 2)) @ rng.normal(size=(2, 6))
    smooth = pd.DataFrame(
        factors + 0.3 * rng.normal(size=(300, 6)), columns=list("abcdef")
    )
    with monkeypatch.context() as patch:
        patch.setattr(choose_neighbors, "trial_auc", trial_auc)
        assert TableFlow().plan(smooth).n_neighbors is None
        plan = tuned_plan(smooth)
        assert plan.n_neighbors > 0
        assert "neighbors and a chain of trees" in str(plan)
        auc_of_neighbors = 0.7
        assert tuned_plan(smooth).n_neighbors == 0
    # All draws are too near.
    monkeypatch.setattr(choose_neighbors, "MIN_DISTANCE_RATIO", 99.0)
    assert tuned_plan(smooth).n_neighbors == 0


def test_where_neighbors_cannot_be_the_plan_says_so_without_a_trial(rng):
    smooth = curve(300, rng)
    assert TableFlow(tree_settings=NEAR).plan(smooth).n_neighbors == NEAR[2]
    for frame, parameters in (
        (smooth, {"constraints": ["a <= 99"]}),
        (smooth, {"tree_settings": NEAR, "constraints": ["a <= 99"]}),
        (smooth, {"tree_settings": NEAR[:2]}),
        (smooth[:30], {}),
        (curve(1_000, rng), {}),
        (curve(1_000, rng), {"tree_settings": NEAR}),
        (pd.DataFrame({"side": list("lr") * 50}), {"tree_settings": NEAR}),
    ):
        plan = TableFlow(**parameters).plan(frame)
        assert plan.n_neighbors == plan.n_neighbor_trials == 0


def test_neighbors_that_were_asked_for_draw_no_number_that_follows_from_others(rng):
    """Only the fit finds out that one follows, by a regression."""
    x = rng.integers(0, 5, (400, 6))
    frame = pd.DataFrame(x, columns=list("abcdef"))
    frame["total"] = (x @ [7.3, 1.1, 0.3, 2.9, 0.7, 4.1]).round(1)
    assert TableFlow(tree_settings=NEAR).plan(frame).n_neighbors == NEAR[2]
    assert tuned_plan(frame, tree_settings=NEAR).n_neighbors == 0


def test_neighbors_are_conditional_and_filled(rng, one_comparison):
    frame = curve(400, rng)
    frame.loc[rng.random(400) < 0.05, ["b", "c"]] = np.nan  # together
    frame.loc[rng.random(400) < 0.05, "side"] = None
    flow, _ = fit(frame, tree_settings=NEAR)
    new = flow.sample(400, random_state=0)
    assert new["b"].isna().mean() == pytest.approx(frame["b"].isna().mean(), abs=0.02)
    assert new["b"].isna().equals(new["c"].isna())
    assert new[new["b"].notna()][["a", "c"]].corr().loc["a", "c"] > 0.95
    left = flow.sample(200, random_state=0, given={"side": "left"})
    assert (left["side"] == "left").all()
    assert left["c"].mean() == pytest.approx(
        frame["c"][frame["side"] == "left"].mean(), abs=0.05
    )
    moved = flow.sample(300, random_state=0, given={"a": 2.0, "side": "right"})
    assert moved["c"].mean() == pytest.approx(4, abs=0.1)
    assert (
        flow.sample(100, random_state=0, given={"a": (1.5, 2.0)})["a"]
        .between(1.5, 2.0)
        .all()
    )
    for given in (["a", "b", "c"], ["a", "b", "c", "side"]):  # no dense number is left
        assert flow.sample(
            3, random_state=0, given=frame.loc[0, given].to_dict()
        ).shape == (3, 4)
    assert (
        flow.set_params(missing="never")
        .sample(100, random_state=0)
        .notna()
        .all(axis=None)
    )
    assert (
        flow.sample(50, random_state=0, given={"side": "left"}).notna().all(axis=None)
    )


def test_the_chain_of_rows_without_missing_cells_is_fitted_once(rng, monkeypatch):
    flow, _ = fit(curve(60, rng), tree_settings=(5, 2.0, 8), missing="never")
    n_fits = 0

    def counting(*args, **options):
        nonlocal n_fits
        n_fits += 1
        return fit_chain(*args, **options)

    monkeypatch.setattr(fitted, "fit_chain", counting)
    first = flow.sample(20, random_state=0)
    assert flow.sample(20, random_state=0).equals(first)
    assert n_fits == 1


def test_a_file_whose_rows_cannot_be_near_is_refused(rng, tmp_path, monkeypatch):
    flow, _ = fit(curve(60, rng), tree_settings=(5, 2.0, 8))
    flow.save(tmp_path / "m")
    pd.testing.assert_frame_equal(
        sliceflow.load(tmp_path / "m").sample(9, random_state=0),
        flow.sample(9, random_state=0),
    )
    monkeypatch.setattr(neighbor_columns, "MAX_ROWS_FOR_NEIGHBORS", 50)
    with pytest.raises(ModelFileError, match="do not fit the plan"):
        sliceflow.load(tmp_path / "m")
