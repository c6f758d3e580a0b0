"""`TableFlow` as an estimator: fits, plans, files, rows added and forgotten."""

import warnings
from dataclasses import replace
from datetime import date

import numpy as np
import pandas as pd
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import sliceflow
from sliceflow import TableFlow
from sliceflow.spaces.tables import choosing


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
            "since": pd.Timestamp("2020-01-01")
            + pd.to_timedelta(r.integers(0, 900, n), "D"),
            "price": [f"{v:,.2f} €" for v in spent],
            "level": pd.Categorical(
                r.choice(["lo", "hi"], n), ["lo", "hi"], ordered=True
            ),
        }
    )
    frame["note"] = frame["age"].astype("Int64").mask(r.random(n) < 0.2)
    return frame


@pytest.fixture(scope="module")
def flow():
    return TableFlow(random_state=0).fit(table())


def test_samples_have_the_shares_and_means_of_the_table(flow):
    frame = table()
    new = flow.sample(1000, random_state=0)
    assert abs((new["plan"] == "gold").mean() - 0.3) < 0.06
    means = new.groupby("plan")["spent"].mean()
    assert means["gold"] > 2 * means["basic"]
    assert len(flow.sample()) == 1
    assert abs(new["note"].isna().mean() - 0.2) < 0.06
    filling = TableFlow(random_state=0, missing="fill").fit(frame)
    assert filling.sample(200, random_state=0)["note"].notna().all()


def test_rows_that_occur_once_are_not_copied(flow, rng):
    frame = pd.DataFrame(rng.integers(0, 12, (400, 4)), columns=list("abcd"))
    new = TableFlow(random_state=0).fit(frame).sample(1000, random_state=0)
    counts = frame.groupby(list("abcd")).size()
    shared = new.merge(counts.rename("n").reset_index(), how="inner")
    assert (shared["n"] == 1).sum() == 0


def test_the_plan_and_the_history(flow):
    plan = TableFlow(random_state=0).plan(table())
    assert str(plan) == str(flow.plan_)
    assert plan.identifiers == ("id",)
    assert "near rows and a chain of trees" in str(plan)
    assert (
        flow.n_iter_ == len(flow.history_["step"]) == 3
    )  # near rows, and two of seven columns
    seen = []
    TableFlow(detail=(5, 2.0), random_state=0).fit(table(50), listeners=seen.append)
    assert [event.steps_done for event in seen] == list(range(1, 8))
    assert {event.measure for event in seen} == {"unexplained share"}


@pytest.mark.parametrize(("n", "limit"), [(600, "_AS_FAR"), (8_000, "_NEARER")])
def test_trees_are_as_fine_as_copies_allow(monkeypatch, n, limit, rng):
    x = rng.normal(size=n)
    frame = pd.DataFrame({"x": x, "y": np.sin(3 * x) + 0.05 * rng.normal(size=n)})
    leaves = []
    for value in (0.01, 9.0):
        monkeypatch.setattr(choosing, limit, value)
        leaves.append(TableFlow().plan(frame).leaf)
    assert leaves == ([5, 20] if limit == "_AS_FAR" else [20, 5])
    monkeypatch.undo()
    noise = TableFlow().plan(pd.DataFrame(rng.normal(size=(n, 4)))).leaf
    assert (
        5 < noise < (21 if n == 600 else 20)
    )  # of many rows, neither the finest nor the coarsest
    assert TableFlow().plan(frame[:30]).leaf == 3


def test_trees_are_chosen_along_the_lines_of_the_table(monkeypatch, rng):
    seen = []
    grow = choosing.grow_chain
    monkeypatch.setattr(
        choosing, "grow_chain", lambda *how: seen.append(how[-1]) or grow(*how)
    )
    x = rng.normal(size=400)
    plan = TableFlow().plan(
        pd.DataFrame({"x": x, "y": x + 0.001 * rng.normal(size=400)})
    )
    assert {*seen} == {plan.strategies} == {("leaves", "numbers")}


def test_trees_are_as_fine_as_they_are_asked_to_be(flow, tmp_path):
    fine = flow.plan_.detail
    same = TableFlow(detail=fine, random_state=0).fit(table())
    pd.testing.assert_frame_equal(
        flow.sample(50, random_state=7), same.sample(50, random_state=7)
    )  # of the same seed
    assert not flow.sample(50).equals(flow.sample(50))
    same.save(tmp_path / "m")
    assert sliceflow.load(tmp_path / "m").detail == fine
    assert (
        TableFlow(detail=(40, 3)).plan(table(90)).leaf < 40
    )  # fewer rows have smaller leaves
    for wrong in (5, (5,), (5, -1), (5, 1, 2.5)):
        with pytest.raises(
            ValueError, match=r"detail=.* must be None or numbers such as"
        ):
            TableFlow(detail=wrong).fit(table())


@pytest.mark.parametrize(
    "strategies", [("logs",) * 7, ("per_level",) * 7, ("leaves",) * 6, ("leaves",) * 8]
)
def test_a_file_says_of_each_column_how_it_is_drawn(flow, strategies):
    model = flow._model
    fitted = replace(
        model.fitted, table=None, plan=replace(flow.plan_, strategies=strategies)
    )
    with pytest.raises(ValueError, match="do not fit the plan"):
        TableFlow()._store_model(replace(model, fitted=fitted))


def test_other_orders_of_columns_and_units_of_time_are_the_same_rows(flow):
    frame = table()
    other = frame[frame.columns[::-1]].assign(
        since=frame["since"].astype("datetime64[ns]")
    )
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
        new = TableFlow(random_state=0).fit(frame).sample(4, random_state=0)
        assert (new.dtypes == frame.dtypes).all()  # in the same order of columns


def test_an_interrupted_fit_leaves_no_model():
    def stop(event):
        if event.steps_done == 3:
            raise KeyboardInterrupt

    flow = TableFlow(random_state=0)
    with pytest.raises(KeyboardInterrupt):
        flow.fit(table(), listeners=stop)
    assert not hasattr(flow, "history_")


def test_score_prefers_held_out_rows_of_the_same_kind(flow):
    other = table(200, 5)
    assert flow.score(other) > flow.score(other.assign(spent=other["spent"] * 3))


def test_parameters_are_checked():
    for bad in ({"missing": "x"}, {"constraints": "a <= b"}, {"columns": ["a"]}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            TableFlow(**bad).fit(table(30))
    with pytest.raises(ValueError, match="no y"):
        TableFlow().fit(table(30), np.zeros(30))
    with pytest.raises(ValueError, match="n="):
        TableFlow(random_state=0).fit(table(30)).sample(0)


DAYS = st.dates(date(2000, 1, 1), date(2030, 1, 1))
WORDS = st.sampled_from(["a", "b", "c d", "é"])
LEVELS = ["mid", "lo", "hi", "unused"]
KINDS = {
    "number": (st.floats(-1e6, 1e6).map(lambda v: round(v, 3)), "float64"),
    "single": (st.floats(-1, 1, width=32), "float32"),
    "integer": (st.integers(-5, 5), "int64"),
    "big": (st.integers(2**60, 2**62), "Int64"),
    "unsigned": (st.integers(2**63, 2**64 - 1), "UInt64"),
    "huge": (st.integers(2**70, 2**71), object),
    "flag": (st.booleans(), "boolean"),
    "text": (WORDS, "str"),
    "code": (st.integers(0, 9).map("{:05}".format), "str"),
    "day": (DAYS, object),
    "european": (DAYS.map(lambda day: day.strftime("%d.%m.%Y")), "str"),
    "iso": (DAYS.map(str), "str"),
    "time": (
        st.datetimes(pd.Timestamp("2000-01-01"), pd.Timestamp("2030-01-01")),
        "datetime64[us]",
    ),
    "zone": (st.integers(1729900800, 1730000000), "datetime64[s, Europe/Berlin]"),
    "span": (st.timedeltas(pd.Timedelta(0), pd.Timedelta(9, "D")), "timedelta64[us]"),
    "decimal": (st.decimals(0, 99, places=2), object),
    "price": (st.integers(0, 10**6).map(lambda v: f"{v / 100:,.2f} €"), "str"),
    "level": (st.sampled_from(LEVELS[:3]), pd.CategoricalDtype(LEVELS, ordered=True)),
    "class": (st.integers(0, 3), pd.CategoricalDtype([3, 9, 2, 1, 0])),
    "mail": (st.integers(0, 10**9).map(lambda v: f"u{v}@x.org"), "str"),
    "empty": (st.none(), "float64"),
    "same": (st.just(7), "Int64"),
}
EXACT = (
    "text",
    "code",
    "flag",
    "level",
    "class",
    "same",
)  # samples have no new values of these
RULES = ["low < high", "total = low + part", "total <= cap"]


@st.composite
def tables(draw):
    """A table of all kinds of columns, with missing cells, duplicates, and columns that keep `RULES`."""
    n = draw(st.integers(8, 40))
    columns = {}
    for k, kind in enumerate(
        draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5))
    ):
        values, dtype = KINDS[kind]
        drawn = pd.Series(
            draw(st.lists(values, min_size=n, max_size=n)), dtype=object
        ).astype(dtype)
        if draw(st.booleans()) and dtype != "int64":
            drawn = drawn.mask(
                np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
            )
        columns[f"{kind}{k}"] = drawn
    frame = pd.DataFrame(columns)
    low, part, more = (
        np.array(draw(st.lists(st.integers(0, 9), min_size=n, max_size=n)))
        for _ in "123"
    )
    frame = frame.assign(
        cap=low + part + more, total=low + part, part=part, low=low, high=low + 1 + more
    )
    again = draw(st.lists(st.integers(0, n - 1), max_size=5))
    return pd.concat([frame, frame.iloc[again]], ignore_index=True)


def keys(frame):
    """The cells of each row."""
    return [
        tuple(None if pd.isna(v) else v for v in row)
        for row in frame.itertuples(index=False)
    ]


def without(frame, gone):
    """The rows left, of equal ones the first; a category that loses its last row goes."""
    left = list(range(len(frame)))
    known = keys(frame)
    for key in keys(gone):
        left.remove(max(k for k in left if known[k] == key))
    out = frame.iloc[left].reset_index(drop=True)
    for name in frame.select_dtypes("category"):
        lost = set(frame[name].dropna()) - set(out[name].dropna())
        out[name] = out[name].cat.set_categories(
            [c for c in out[name].cat.categories if c not in lost]
        )
    return out


def joined(frame, more):
    """Rows below others; new categories come last."""
    out = pd.concat([frame, more], ignore_index=True)
    for name in frame.select_dtypes("category"):
        known = list(frame[name].cat.categories)
        new = sorted(set(more[name].dropna()) - set(known))
        dtype = pd.CategoricalDtype([*known, *new], frame[name].cat.ordered)
        out[name] = pd.concat(
            [frame[name].astype(dtype), more[name].astype(dtype)], ignore_index=True
        )
    return out


@settings(phases=[Phase.generate])  # a smaller table takes minutes to find
@given(frame=tables(), data=st.data())
@pytest.mark.filterwarnings(
    "ignore::UserWarning"
)  # of few rows, and of cells that stay empty
def test_any_table_comes_back(frame, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")

    rules, detail = data.draw(
        st.sampled_from([(RULES, None), ((), (3, 2.0, 5))])
    )  # or near rows

    def fitted(rows):
        kinds = {
            name: "category" for name in frame if name.startswith(("text", "code"))
        }
        return TableFlow(
            columns=kinds, constraints=rules, detail=detail, random_state=0
        ).fit(rows)

    def file_of(flow):
        flow.save(folder / "m")
        return (folder / "m").read_bytes()

    def check(new):
        assert (new.dtypes == frame.dtypes).all()
        if rules:
            assert (new["low"] < new["high"]).all()
            assert (new["total"] == new["low"] + new["part"]).all()
            assert (new["total"] <= new["cap"]).all()
        for name in frame:
            known = frame[name].dropna()
            drawn = new[name].dropna()
            assert {type(v) for v in drawn} <= {type(v) for v in known}
            assert frame[name].isna().any() or new[name].notna().all()
            if name.startswith("mail"):
                assert not set(drawn) & set(known)
            elif name.startswith(EXACT):
                assert set(drawn) <= set(known)
            elif len(drawn) and not name.startswith(("european", "price")):
                assert known.min() <= drawn.min() <= drawn.max() <= known.max()

    flow = fitted(frame)
    check(flow.sample(20, random_state=0))
    whole = file_of(flow)
    loaded = sliceflow.load(folder / "m")
    pd.testing.assert_frame_equal(
        loaded.sample(5, random_state=1), flow.sample(5, random_state=1)
    )
    assert (file_of(loaded), loaded.plan_) == (whole, flow.plan_)

    name = data.draw(st.sampled_from([c for c in frame if not c.startswith("mail")]))
    value = frame[name].iloc[data.draw(st.integers(0, len(frame) - 1))]
    few = flow.sample(
        3, random_state=0, given={name: None if pd.isna(value) else value}
    )
    check(few)
    assert few[name].isna().all() if pd.isna(value) else (few[name] == value).all()
    ends = sorted(frame["low"].sample(2, random_state=0))
    if frame["low"].nunique() > 1:
        assert (
            flow.sample(3, random_state=0, given={"low": tuple(ends)})["low"]
            .between(*ends)
            .all()
        )

    gone = data.draw(
        st.sets(st.integers(0, len(frame) - 1), min_size=1, max_size=len(frame) - 2)
    )
    mask = np.isin(np.arange(len(frame)), list(gone))
    holes = frame.copy()
    for c, name in enumerate(frame):
        nullable = "Int64" if frame[name].dtype == "int64" else frame[name].dtype
        holes[name] = frame[name].astype(nullable).mask(np.roll(mask, c))
    with warnings.catch_warnings(record=True, action="always") as said:
        filled = flow.impute(holes, random_state=0)
    for name in frame:
        there = holes[name].notna()
        assert filled[name][there].map(repr).equals(holes[name][there].map(repr))
        assert said or filled[name].notna().all()

    others = frame[mask]
    left = without(frame, frame[mask])
    assert file_of(flow.forget(others)) == file_of(fitted(left))
    assert file_of(flow.partial_fit(others)) == file_of(fitted(joined(left, others)))
