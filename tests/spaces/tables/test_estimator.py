"""`TableFlow` as an estimator: fits, plans, files, rows added and forgotten."""

import warnings
from datetime import date

import numpy as np
import pandas as pd
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import sliceflow
from sliceflow import TableFlow
from sliceflow.spaces.tables import fit


def table(n=300, seed=0):
    r = np.random.default_rng(seed)
    plan = r.choice(["basic", "gold", "free"], n, p=[0.5, 0.3, 0.2])
    age = r.integers(18, 80, n)
    spent = np.round(r.gamma(2, 20 + (plan == "gold") * age), 2)
    frame = pd.DataFrame(
        {
            "id": [f"C-{k:06}" for k in r.permutation(10**6)[:n]],
            "plan": plan,
            "age": age,
            "spent": spent,
            "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(r.integers(0, 900, n), "D"),
            "price": [f"{v:,.2f} €" for v in spent],
            "level": pd.Categorical(r.choice(["lo", "hi"], n), ["lo", "hi"], ordered=True),
        }
    )
    frame["note"] = frame["age"].astype("Int64").mask(r.random(n) < 0.2)
    return frame


@pytest.fixture(scope="module")
def flow():
    return TableFlow(random_state=0).fit(table())


def test_samples_have_the_shape_of_the_table(flow):
    frame, new = table(), flow.sample(1000, 0)
    assert list(new.columns) == list(frame.columns)
    assert (new.dtypes == frame.dtypes).all()
    assert abs((new["plan"] == "gold").mean() - 0.3) < 0.06
    means = new.groupby("plan")["spent"].mean()
    assert means["gold"] > 2 * means["basic"]
    assert not set(new["id"]) & set(frame["id"])
    assert len(flow.sample()) == 1


def test_the_same_seed_gives_the_same_rows(flow):
    again = TableFlow(random_state=0).fit(table())
    pd.testing.assert_frame_equal(flow.sample(50, 7), again.sample(50, 7))
    assert not flow.sample(50).equals(flow.sample(50))


def test_rows_that_occur_once_are_not_copied(flow):
    r = np.random.default_rng(0)
    frame = pd.DataFrame(r.integers(0, 12, (400, 4)), columns=list("abcd"))
    new = TableFlow(random_state=0).fit(frame).sample(1000, 0)
    counts = frame.groupby(list("abcd")).size()
    shared = new.merge(counts.rename("n").reset_index(), how="inner")
    assert (shared["n"] == 1).sum() == 0


def test_the_plan_and_the_history(flow):
    plan = TableFlow(random_state=0).plan(table())
    assert str(plan) == str(flow.plan_)
    assert plan.identifiers == ("id",)
    assert "chain of trees" in str(plan)
    assert flow.n_iter_ == len(flow.history_["step"]) == len(plan.order) == 7
    seen = []
    TableFlow(random_state=0, verbose=0).fit(table(50), listeners=seen.append)
    assert [event.steps_done for event in seen] == list(range(1, 8))
    assert {event.measure for event in seen} == {"unexplained share"}


@pytest.mark.parametrize(("n", "limit"), [(600, "_APART"), (8_000, "_NEARER")])
def test_trees_are_as_fine_as_copies_allow(monkeypatch, n, limit):
    r = np.random.default_rng(0)
    x = r.normal(size=n)
    frame = pd.DataFrame({"x": x, "y": np.sin(3 * x) + 0.05 * r.normal(size=n)})
    leaves = []
    for value in (0.01, 9.0):
        monkeypatch.setattr(fit, limit, value)
        leaves.append(TableFlow().plan(frame).leaf)
    assert leaves == ([5, 20] if limit == "_APART" else [20, 5])
    assert TableFlow().plan(frame[:30]).leaf == 3


def test_numbers_that_follow_from_others_still_do():
    """A product, a ratio and a difference, rounded; a spiked column is none of these."""
    r = np.random.default_rng(0)
    n, a, b = 1500, r.gamma(9, 1, 1500).round(2) + 1, r.gamma(9, 1, 1500).round(2) + 1
    frame = pd.DataFrame({"a": a, "b": b, "area": (a * b).round(2), "ratio": (a / b).round(4)})
    rest = np.where(r.random(n) < 0.2, np.nan, 100 - a - b + r.normal(0, 0.1, n))
    frame["rest"] = rest.round(2)
    frame["spikes"] = np.where(r.random(n) < 0.5, 0, 10 * a).round(2)
    frame["two"] = r.choice(["x", "y"], n)
    flow = TableFlow(random_state=0).fit(frame)
    assert flow.plan_.order[0] == "two"
    ways = dict(zip(flow.plan_.order, flow.plan_.ways, strict=True))
    assert {name for name, way in ways.items() if way != "leaves"} == {"area", "ratio", "rest"}
    assert "area, ratio, rest" in str(flow.plan_)
    new = flow.sample(n, random_state=0)
    for name, of in {"area": new.a * new.b, "ratio": new.a / new.b}.items():
        assert (new[name] - of).abs().quantile(0.9) < 0.05 * frame[name].std()
    errors = [(100 - t.a - t.b - t.rest).dropna() for t in (frame, new)]
    assert abs(errors[1].std() / errors[0].std() - 1) < 0.2
    assert abs(new.rest.isna().mean() - 0.2) < 0.03
    assert not new.drop(columns="two").isin(frame).all(axis=1).any()


def test_trees_are_as_fine_as_they_are_asked_to_be(flow, tmp_path):
    fine = flow.plan_.detail
    same = TableFlow(detail=fine, random_state=0).fit(table())
    pd.testing.assert_frame_equal(flow.sample(50, 7), same.sample(50, 7))
    same.save(tmp_path / "m")
    assert sliceflow.load(tmp_path / "m").detail == fine
    assert TableFlow(detail=(40, 3)).plan(table(90)).leaf < 40  # fewer rows have smaller leaves
    with pytest.raises(ValueError, match=r"detail=5 must be None or a pair"):
        TableFlow(detail=5).fit(table())


def test_other_orders_of_columns_and_units_of_time_are_the_same_rows(flow):
    frame = table()
    other = frame[frame.columns[::-1]].assign(since=frame["since"].astype("datetime64[ns]"))
    left = TableFlow(random_state=0).fit(frame).forget(other.iloc[:100])
    assert left.plan_.n_rows == 200
    with pytest.raises(ValueError, match="not in the model"):
        left.forget(other.iloc[:1])
    assert flow.score(other) == flow.score(frame)
    holes = other.assign(age=other["age"].astype(float).mask(np.arange(300) % 5 == 0))
    assert flow.impute(holes, random_state=0)["age"].notna().all()


def test_tiny_tables():
    for frame in (
        pd.DataFrame({"a": [1.5]}),
        pd.DataFrame({"a": [1, 2], "b": [None, "x"]}),
        pd.DataFrame({"k": [7, 7, 7]}),
    ):
        new = TableFlow(random_state=0).fit(frame).sample(4, 0)
        assert list(new.columns) == list(frame.columns)
        assert (new.dtypes == frame.dtypes).all()


def test_categories_go_with_their_last_row():
    c = pd.Categorical(["a", "b"] * 20 + ["z"], ["a", "b", "z", "unused"])
    frame = pd.DataFrame({"c": c, "x": range(41)})
    flow = TableFlow(random_state=0).fit(frame).forget(frame.iloc[[40]])
    assert list(flow.sample(5, 0)["c"].cat.categories) == ["a", "b", "unused"]


def test_an_interrupted_fit_goes_on(tmp_path):
    class Stop(Exception):
        pass

    def stop(event):
        if event.steps_done == 3:
            raise Stop

    kept = dict(checkpoint_dir=tmp_path, checkpoint_every=0)
    with pytest.raises(Stop):
        TableFlow(random_state=0).fit(table(), listeners=stop, **kept)
    resumed = TableFlow(random_state=0).fit(table(), checkpoint_dir=tmp_path)
    whole = TableFlow(random_state=0).fit(table())
    pd.testing.assert_frame_equal(resumed.sample(20, 0), whole.sample(20, 0))
    assert resumed.n_iter_ == whole.n_iter_


def test_score_prefers_held_out_rows_of_the_same_kind(flow):
    other = table(200, 5)
    assert flow.score(other) > flow.score(other.assign(spent=other["spent"] * 3))


def test_missing_cells_are_drawn_or_filled():
    frame = table()
    assert abs(TableFlow(random_state=0).fit(frame).sample(1000, 0)["note"].isna().mean() - 0.2) < 0.06
    assert TableFlow(random_state=0, missing="fill").fit(frame).sample(200, 0)["note"].notna().all()


def test_parameters_are_checked():
    for bad in ({"missing": "x"}, {"constraints": "a <= b"}, {"columns": ["a"]}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            TableFlow(**bad).fit(table(30))
    with pytest.raises(ValueError, match="no y"):
        TableFlow().fit(table(30), np.zeros(30))
    with pytest.raises(ValueError, match="n="):
        TableFlow(random_state=0).fit(table(30)).sample(0)


KINDS = {
    "number": (st.floats(-1e6, 1e6).map(lambda v: round(v, 3)), "float64"),
    "integer": (st.integers(-5, 5), "int64"),
    "big": (st.integers(2**60, 2**62), "Int64"),
    "huge": (st.integers(2**70, 2**71), object),
    "flag": (st.booleans(), "boolean"),
    "text": (st.sampled_from(["a", "b", "c d", "é"]), "str"),
    "day": (st.dates(date(2000, 1, 1), date(2030, 1, 1)), object),
    "time": (st.datetimes(pd.Timestamp("2000-01-01"), pd.Timestamp("2030-01-01")), "datetime64[us]"),
    "zone": (st.integers(1729900800, 1730000000), "datetime64[s, Europe/Berlin]"),
    "iso": (st.dates(date(2000, 1, 1), date(2030, 1, 1)).map(str), "str"),
    "decimal": (st.decimals(0, 99, places=2), object),
    "price": (st.integers(0, 10**6).map(lambda v: f"{v / 100:,.2f} €"), "str"),
    "level": (st.sampled_from(["lo", "hi"]), pd.CategoricalDtype(["lo", "hi"], ordered=True)),
    "mail": (st.integers(0, 10**9).map(lambda v: f"u{v}@x.org"), "str"),
    "span": (st.timedeltas(pd.Timedelta(0), pd.Timedelta(9, "D")), "timedelta64[us]"),
}


@st.composite
def tables(draw):
    """A table of all kinds of columns, with missing cells, duplicates, and `low` below `high`."""
    n = draw(st.integers(8, 40))
    columns = {}
    for k, kind in enumerate(draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5))):
        values, dtype = KINDS[kind]
        drawn = pd.Series(draw(st.lists(values, min_size=n, max_size=n)), dtype=object).astype(dtype)
        if draw(st.booleans()) and dtype != "int64":
            drawn = drawn.mask(np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n))))
        columns[f"{kind}{k}"] = drawn
    frame = pd.DataFrame(columns)
    frame["low"], frame["high"] = np.arange(n), np.arange(n) + draw(st.integers(1, 9))
    return pd.concat([frame, frame.iloc[:2]], ignore_index=True) if draw(st.booleans()) else frame


def narrow(frame):
    """Without categories that no row has, which go with their last row."""
    categories = frame.select_dtypes("category")
    return frame.assign(**{name: frame[name].cat.remove_unused_categories() for name in categories})


@settings(phases=[Phase.generate])  # a smaller table takes minutes to find
@given(frame=tables(), data=st.data())
def test_any_table_comes_back(frame, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")

    def fitted(rows):
        kinds = {name: "category" for name in frame if name.startswith("text")}
        return TableFlow(columns=kinds, constraints=["low < high"], random_state=0).fit(rows)

    def file_of(flow):
        flow.save(folder / "m")
        return (folder / "m").read_bytes()

    frame = narrow(frame)
    flow = fitted(frame)
    new = flow.sample(20, 0)
    assert (new.dtypes == frame.dtypes).all()
    assert (new["low"] < new["high"]).all()
    for name in frame:
        known = frame[name].dropna()
        assert {type(v) for v in new[name].dropna()} <= {type(v) for v in known}
        if name.startswith(("text", "flag", "level")):
            assert set(new[name].dropna()) <= set(known)
        elif name.startswith("mail"):
            assert not set(new[name].dropna()) & set(known)
        elif name[:-1] in ("number", "integer", "big", "huge", "day", "time", "zone", "iso", "span"):
            assert not len(known) or known.min() <= new[name].dropna().min() <= known.max()
        assert frame[name].isna().any() or new[name].notna().all()
    whole, loaded = file_of(flow), sliceflow.load(folder / "m")
    pd.testing.assert_frame_equal(loaded.sample(5, 1), flow.sample(5, 1))
    assert (file_of(loaded), str(loaded.plan_)) == (whole, str(flow.plan_))
    holes = frame.assign(low=frame["low"].astype("Int64").mask(np.arange(len(frame)) % 3 == 0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        filled = flow.impute(holes, random_state=0)
        value = frame["low"].iloc[data.draw(st.integers(0, len(frame) - 1))]
        assert (flow.sample(3, 0, given={"low": value})["low"] == value).all()
    assert filled["low"].notna().all()
    for name in frame:
        there = holes[name].notna()
        assert filled[name][there].map(repr).equals(holes[name][there].map(repr))
    k = data.draw(st.integers(2, len(frame) - 1))
    first, others = narrow(frame.iloc[:k]), frame.iloc[k:]
    assert file_of(flow.forget(others)) == file_of(fitted(first))
    if not any(name.startswith("level") for name in frame):
        assert file_of(flow.partial_fit(others)) == file_of(fitted(frame))
