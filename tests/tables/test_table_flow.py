"""`TableFlow`: what goes in comes out again, and what is asked for holds exactly."""

import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.neighbors import NearestNeighbors

import sliceflow
from mixed_tables import columns, dates
from sliceflow import TableFlow
from sliceflow.spaces.tables import files


def frame_of(library, n=300, seed=0, **more):
    return library.DataFrame(columns(n, seed) | more)


def fit(frame, **parameters):
    return TableFlow(**({"random_state": 0, "n_steps": 20} | parameters)).fit(frame)


def as_pandas(frame):
    return (
        frame
        if isinstance(frame, pd.DataFrame)
        else pd.DataFrame({c: frame[c].to_list() for c in frame.columns})
    )


def test_columns_order_dtypes_and_library_come_back(table):
    new = fit(table).sample(100, random_state=1)
    assert type(new) is type(table)
    assert list(new.columns) == list(table.columns)
    assert list(new.dtypes) == list(table.dtypes)
    assert len(new) == 100


def test_values_keep_bounds_decimals_and_categories(table):
    new, old = as_pandas(fit(table).sample(500, random_state=1)), as_pandas(table)
    for name in ("age", "height", "balance", "start", "end", "score"):
        assert new[name].min() >= old[name].min()
        assert new[name].max() <= old[name].max()
    assert set(new["plan"]) <= set(old["plan"])
    for name, decimals in (("height", 1), ("balance", 2)):
        assert np.array_equal(new[name], new[name].round(decimals))


def test_atoms_and_missing_cells_come_as_often_as_in_the_table(table):
    new, old = as_pandas(fit(table).sample(300, random_state=1)), as_pandas(table)
    assert abs((new["balance"] == 0).mean() - (old["balance"] == 0).mean()) < 0.02
    assert abs(new["score"].isna().mean() - old["score"].isna().mean()) < 0.02
    assert abs(new["churn"].astype(bool).mean() - old["churn"].astype(bool).mean()) < 0.02
    filled = fit(table, missing="fill").sample(300, random_state=1)
    assert not as_pandas(filled)["score"].isna().any()


def test_dependence_between_columns_of_different_kinds_is_kept(table):
    new, old = (as_pandas(x) for x in (fit(table).sample(3000, random_state=1), table))
    for frame in (old, new):
        means = frame[frame["balance"] > 0].groupby("plan")["balance"].mean()
        assert means["gold"] > 1.8 * means["basic"]
    zero_old, zero_new = (f[f["balance"] == 0]["churn"].astype(float).mean() for f in (old, new))
    assert abs(zero_old - zero_new) < 0.12
    correlations = [f[["age", "score"]].dropna().corr().iloc[0, 1] for f in (old, new)]
    assert abs(correlations[0] - correlations[1]) < 0.12


def test_new_numbers_lie_between_those_of_the_table():
    frame = pd.DataFrame({"x": np.random.default_rng(0).normal(size=200), "y": np.arange(200.0) % 7})
    new = fit(frame).sample(200, random_state=0)
    assert np.isin(new["x"], frame["x"]).mean() < 0.05
    assert set(new["y"]) <= set(frame["y"])


def test_same_seed_same_bits_and_other_seeds_other_rows(table):
    a, b = fit(table), fit(table)
    assert a.sample(20, random_state=3).equals(b.sample(20, random_state=3))
    assert not a.sample(20, random_state=3).equals(a.sample(20, random_state=4))


def test_parameters_follow_scikit_learn():
    flow = TableFlow(columns={"zip": "category"}, constraints=["a <= b"], n_neighbors=7)
    assert clone(flow).get_params() == flow.get_params()


def test_given_holds_in_every_row_and_changes_the_others(table):
    flow = fit(table)
    new = as_pandas(flow.sample(200, given={"plan": "gold", "age": 40}, random_state=0))
    assert set(new["plan"]) == {"gold"}
    assert set(new["age"]) == {40}
    basic = as_pandas(flow.sample(200, given={"plan": "basic"}, random_state=0))
    spent = [f.loc[f["balance"] > 0, "balance"].mean() for f in (new, basic)]
    assert spent[0] > 1.6 * spent[1]
    missing = as_pandas(flow.sample(20, given={"score": None, "churn": True}, random_state=0))
    assert missing["score"].isna().all()
    assert missing["churn"].astype(bool).all()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"plan": "platinum"}, "no category 'platinum'; it has basic"),
        ({"age": 40.5}, "steps of 1"),
        ({"colour": 1}, "not a column"),
        ({"age": "old"}, "holds numbers; 'old' is none"),
        ({"age": np.inf}, "holds numbers; inf is none"),
        ({"age": None}, "never missing"),
    ],
)
def test_what_cannot_be_given_is_said(table, given, told):
    with pytest.raises(ValueError, match=told):
        fit(table).sample(3, given=given)


def test_impute_fills_missing_cells_and_leaves_all_others(table):
    flow = fit(table)
    full = flow.impute(table, random_state=0)
    old, new = as_pandas(table), as_pandas(full)
    assert list(full.dtypes) == list(table.dtypes)
    assert not new["score"].isna().any()
    there = old["score"].notna()
    assert new.loc[there].astype(str).equals(old.loc[there].astype(str))


def test_several_imputations_differ_and_cover_the_truth():
    rng = np.random.default_rng(0)
    a = rng.normal(size=1000)
    frame = pd.DataFrame(
        {"a": a, "b": 2 * a + 0.5 * rng.normal(size=1000), "c": rng.choice(["u", "v"], 1000)}
    )
    hidden = frame.copy()
    gone = rng.random(1000) < 0.3
    hidden.loc[gone, "b"] = np.nan
    draws = fit(hidden).impute(hidden, n_samples=200, random_state=0)
    cells = np.array([draw.loc[gone, "b"] for draw in draws])
    low, high = np.quantile(cells, [0.05, 0.95], axis=0)
    truth = frame.loc[gone, "b"].to_numpy()
    assert 0.84 < np.mean((low <= truth) & (truth <= high)) < 0.95
    assert np.abs(cells.mean(0) - truth).mean() < 0.55  # 0.4 is the noise


def test_imputations_of_small_tables_spread_as_far_as_the_truth():
    inside = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        hidden = rng.normal(size=(500, 2))
        x = hidden @ rng.normal(size=(2, 5)) + 0.7 * rng.normal(size=(500, 5))
        frame = pd.DataFrame(x, columns=list("abcde"))
        gaps = frame[100:].reset_index(drop=True).assign(a=np.nan)
        draws = fit(frame[:100], n_steps=0).impute(gaps, n_samples=100, random_state=0)
        cells = [draw["a"] for draw in draws]
        low, high = np.quantile(cells, [0.05, 0.95], axis=0, method="weibull")
        inside.append(np.mean((low <= x[100:, 0]) & (x[100:, 0] <= high)))
    assert 0.87 < np.mean(inside) < 0.94  # .84 with draws as far as the rows of a leaf


def test_guesses_of_categories_without_an_order_are_as_good_as_can_be():
    # five levels around a circle, and one in its middle: no order of them follows a line
    rng = np.random.default_rng(0)
    angle = 2 * np.pi * np.arange(5) / 5
    centres = np.concatenate((2.5 * np.column_stack((np.cos(angle), np.sin(angle))), np.zeros((1, 2))))
    level = rng.integers(0, 6, 800)
    x = centres[level] + 0.6 * rng.normal(size=(800, 2))
    frame = pd.DataFrame({"x": x[:, 0], "y": x[:, 1], "level": np.array(list("cafbed"))[level]})
    gaps = frame[600:].reset_index(drop=True).assign(level=None)
    draws = fit(frame[:600], n_steps=0).impute(gaps, n_samples=30, random_state=0)
    guess = pd.DataFrame([draw["level"] for draw in draws]).mode().iloc[0].to_numpy()
    ideal = ((x[600:, None] - centres) ** 2).sum(2).argmin(1) == level[600:]
    assert (guess == frame["level"][600:]).mean() > ideal.mean() - 0.06


def test_imputed_categories_are_drawn_as_often_as_they_are_likely():
    rng = np.random.default_rng(0)
    x = rng.normal(size=2000)
    likely = 1 / (1 + np.exp(-2 * x))
    frame = pd.DataFrame({"x": x, "yes": np.where(rng.random(2000) < likely, "yes", "no")})
    gaps = frame[1500:].reset_index(drop=True).assign(yes=None)
    draws = fit(frame[:1500], n_steps=0).impute(gaps, n_samples=50, random_state=0)
    share = np.mean([draw["yes"] == "yes" for draw in draws], axis=0)
    assert np.abs(share - likely[1500:]).mean() < 0.12
    assert abs(share.mean() - likely[1500:].mean()) < 0.04


def test_an_imputed_number_whose_slope_hangs_on_a_category_follows_it():
    rng = np.random.default_rng(0)
    side, x = rng.choice(["a", "b", "c"], 900), rng.uniform(-1, 1, 900)
    y = np.choose(np.searchsorted(["a", "b", "c"], side), [2 * x, -2 * x, 3 + 0 * x])
    frame = pd.DataFrame({"side": side, "x": x, "y": y + 0.1 * rng.normal(size=900)})
    gaps = frame[700:].reset_index(drop=True).assign(y=np.nan)
    draws = fit(frame[:700], n_steps=0).impute(gaps, n_samples=30, random_state=0)
    guess = np.median([draw["y"] for draw in draws], axis=0)
    assert np.abs(guess - frame["y"][700:]).mean() < 0.25  # .08 is the noise; without the trees .46


def test_imputation_of_many_categories_and_of_columns_with_few_known_cells():
    rng = np.random.default_rng(0)
    town = rng.integers(0, 60, 600)
    frame = pd.DataFrame({"town": [f"t{k}" for k in town], "x": town + rng.normal(size=600)})
    frame["rare"] = np.where(np.arange(600) < 10, rng.normal(size=600), np.nan)
    gaps = frame.copy()
    gaps.loc[::7, "town"] = None
    full = fit(frame, n_steps=0).impute(gaps, random_state=0)
    assert not full.isna().any().any()
    assert set(full["town"]) <= set(frame["town"])
    off = np.abs(full["town"].str[1:].astype(int) - town)[::7]
    assert off.median() <= 3


def test_small_tables_are_not_copied():
    # With ten neighbours, .22 of the samples are nearer to a row than any held-out one: their median
    # distance is .79 of that of held-out rows.
    from sklearn.datasets import load_wine

    frame = load_wine(as_frame=True).data
    order = np.random.default_rng(3).permutation(len(frame))
    train, test = (frame.iloc[rows].reset_index(drop=True) for rows in np.array_split(order, 2))
    unit = train.std()
    search = NearestNeighbors(n_neighbors=1).fit(train / unit)

    def distances(rows):
        return search.kneighbors(rows / unit)[0][:, 0]

    flow = TableFlow(random_state=0).fit(train)
    found, fresh = distances(flow.sample(1000, random_state=0)), distances(test)
    assert flow.n_neighbors_ > flow.n_neighbors
    assert np.mean(found <= np.quantile(fresh, 0.01)) < 0.12
    assert 0.9 < np.median(found) / np.median(fresh) < 1.15


def test_more_neighbours_are_taken_where_they_blur_less():
    # ten neighbours keep away from rows too, but only with smoothing 1
    frame = pd.read_csv(Path(__file__).parents[2] / "docs" / "penguins.csv")
    train = frame.iloc[np.random.default_rng(0).permutation(len(frame))[: len(frame) // 2]]
    flow = fit(train, n_steps=0, random_state=1)
    assert flow.n_neighbors_ > 10
    assert flow.smoothing_ < 0.9

    def blur(flow):
        own = flow._fitted.flow
        return own.h**2 * own.z[own.near].var(1).sum(1).mean()

    assert blur(flow) < 0.8 * blur(fit(train, n_steps=0, random_state=1, smoothing=1.0))


def test_tables_of_equal_rows_are_not_blurred():
    # half of the rows are equal to another, so that samples may be
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.integers(0, 4, 500), "b": rng.choice(["u", "v"], 500)})
    flow = fit(frame, n_steps=0)
    assert flow.smoothing_ < 1
    assert flow.n_neighbors_ == 10


def test_partial_fit_is_a_fit_to_all_rows(table):
    frame = as_pandas(table)
    both = fit(frame[:200]).partial_fit(frame[200:])
    assert both.n_rows_ == 300
    assert both.sample(50, random_state=1).equals(fit(frame).sample(50, random_state=1))


def test_partial_fit_learns_new_categories():
    frame = pd.DataFrame({"a": ["x", "y"] * 20, "b": np.arange(40.0)})
    flow = fit(frame, columns={"b": "continuous"}).partial_fit(
        pd.DataFrame({"a": ["z"] * 20, "b": np.arange(20) + 0.5})
    )
    assert "z" in set(flow.sample(60, random_state=0)["a"])


def test_forget_is_a_fit_to_the_other_rows(table):
    frame = as_pandas(table)
    left = fit(frame).forget(frame[100:150])
    rest = pd.concat((frame[:100], frame[150:]), ignore_index=True)
    assert left.sample(50, random_state=1).equals(fit(rest).sample(50, random_state=1))
    with pytest.raises(ValueError, match="row 0 of X is not in the model"):
        left.forget(frame[100:101])


def test_a_loaded_model_gives_the_same_bits(table, tmp_path):
    flow = fit(table, constraints=["start <= end"])
    flow.save(tmp_path / "t.sliceflow")
    loaded = sliceflow.load(tmp_path / "t.sliceflow", device="cpu")
    assert isinstance(loaded, TableFlow)
    for more in ({}, {"given": {"plan": "gold"}}):
        a, b = (f.sample(30, random_state=2, **more) for f in (flow, loaded))
        assert a.equals(b)
    assert loaded.columns_.equals(flow.columns_)
    assert loaded.impute(table, random_state=0).equals(flow.impute(table, random_state=0))


def test_the_flow_moves_only_principal_coordinates_of_many_and_is_saved_so(tmp_path, monkeypatch):
    monkeypatch.setattr("sliceflow.spaces.tables.local._MOST_COORDINATES", 3)
    frame = pd.DataFrame(columns(300))
    flow = fit(frame)
    assert flow._fitted.flow.turn.shape[1] == 3
    turn, few = flow._fitted.flow.turn, {"n_steps": 0, "smoothing": flow.smoothing_}
    still = fit(frame, n_neighbors=flow.n_neighbors_, **few)._fitted.flow
    seed = still.flow.seed.child("some")
    moved = flow._fitted.flow.sample(200, seed, "cpu") - still.sample(200, seed, "cpu")
    assert np.abs(moved).max() > 0.01
    np.testing.assert_allclose(moved @ turn @ turn.T, moved, atol=1e-9)
    flow.save(tmp_path / "t.sliceflow")
    loaded = sliceflow.load(tmp_path / "t.sliceflow", device="cpu")
    assert loaded.sample(30, random_state=2).equals(flow.sample(30, random_state=2))


def test_damaged_model_files_are_refused(table, tmp_path):
    from sliceflow.models.file import read, write

    flow, path = fit(table), tmp_path / "t.sliceflow"
    flow.save(path)
    text, tensors = read(path)
    for change in ({"rows": 5}, {"coordinates": []}, {"smoothing": 7}, {"columns": []}):
        write(path, text | change, tensors)
        with pytest.raises(sliceflow.ModelFileError):
            sliceflow.load(path, device="cpu")


def test_dates_keep_their_grid_and_time_zone(library):
    days = dates(200).astype("datetime64[us]")
    hours = days + np.random.default_rng(1).integers(0, 24, 200).astype("timedelta64[h]")
    months = days.astype("datetime64[M]").astype("datetime64[us]")
    frame = library.DataFrame({"day": days, "hour": hours, "month": months, "x": np.arange(200.0)})
    flow = fit(frame)
    notes = as_pandas(flow.columns_).set_index("column")["note"]
    assert notes[["day", "hour", "month"]].tolist() == ["every day", "every hour", "every month"]
    new = as_pandas(flow.sample(100, random_state=0))
    assert (pd.to_datetime(new["day"]).dt.hour == 0).all()
    assert (pd.to_datetime(new["hour"]).dt.minute == 0).all()
    assert (pd.to_datetime(new["month"]).dt.day == 1).all()
    one = as_pandas(flow.sample(3, given={"day": "2016-05-04"}, random_state=0))
    assert set(pd.to_datetime(one["day"])) == {pd.Timestamp("2016-05-04")}
    with pytest.raises(ValueError, match="'day' holds dates, not 'May'; pass '2024-01-31'"):
        flow.sample(3, given={"day": "May"})


def test_local_midnights_stay_midnights_across_summer_time():
    frame = pd.DataFrame(
        {
            "t": pd.Series(dates(200)).astype("datetime64[us]").dt.tz_localize("Europe/Berlin"),
            "x": np.arange(200.0),
        }
    )
    new = fit(frame).sample(100, random_state=0)
    assert new["t"].dtype == frame["t"].dtype
    assert (new["t"].dt.hour == 0).all()


def test_dates_without_time_in_polars():
    pl = pytest.importorskip("polars")
    day = [
        datetime.date(2020, 1, 1) + datetime.timedelta(days=int(k))
        for k in np.random.default_rng(0).integers(0, 500, 100)
    ]
    frame = pl.DataFrame(
        {"day": day, "x": np.arange(100.0), "d": [datetime.timedelta(minutes=k) for k in range(100)]}
    )
    new = fit(frame).sample(20, random_state=0)
    assert new.schema == frame.schema


def test_categories_of_pandas_and_polars_come_back():
    values = ["low", "high", "mid", "mid"] * 20
    frame = pd.DataFrame(
        {
            "c": pd.Categorical(values, ["low", "mid", "high", "never"], ordered=True),
            "x": np.arange(80.0),
        }
    )
    flow = fit(frame)
    assert flow.columns_["kind"][0] == "ordered"
    assert flow.sample(10)["c"].dtype == frame["c"].dtype
    pl = pytest.importorskip("polars")
    for dtype in (pl.Categorical, pl.Enum(["low", "mid", "high"])):
        frame = pl.DataFrame({"c": pl.Series(values, dtype=dtype), "x": np.arange(80.0)})
        assert fit(frame).sample(10).schema == frame.schema


def test_nullable_dtypes_come_back():
    frame = pd.DataFrame(
        {
            "i": pd.array([1, None, 3, 4] * 20, dtype="Int64"),
            "b": pd.array([True, None, False, True] * 20, dtype="boolean"),
            "s": pd.array(["a", None, "b", "b"] * 20, dtype="string"),
            "f": np.arange(80, dtype=np.float32),
            "o": [True, None, False, False] * 20,
            "u": np.arange(80, dtype=np.uint8) % 5,
        }
    )
    new = fit(frame).sample(80, random_state=0)
    assert list(new.dtypes) == list(frame.dtypes)
    assert new["i"].isna().sum() == pytest.approx(20, abs=3)


def test_identifiers_are_new_and_look_alike():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "customer_id": np.arange(1000, 1200),
            "code": [f"AB-{k:05d}x" for k in rng.permutation(90000)[:200] + 1000],
            "uuid": [f"{k:032x}" for k in rng.integers(1 << 60, size=200)],
            "x": rng.normal(size=200),
        }
    )
    flow = fit(frame)
    assert flow.columns_["kind"].tolist() == ["identifier"] * 3 + ["continuous"]
    new = flow.sample(500, random_state=0)
    for name in ("customer_id", "code", "uuid"):
        assert new[name].is_unique
        assert not set(new[name]) & set(frame[name])
    assert new["code"].str.fullmatch(r"[A-Z]{2}-\d{5}[a-z]").all()
    assert new["uuid"].str.fullmatch(r"[0-9a-f]{32}").all()


def test_kinds_can_be_overridden():
    frame = pd.DataFrame(
        {
            "zip": np.random.default_rng(0).integers(10000, 99999, 100),
            "x": np.arange(100.0),
            "note": ["a b c d"] * 100,
        }
    )
    flow = fit(frame, columns={"zip": "category", "note": "drop"})
    assert flow.columns_["kind"].tolist() == ["category", "integer", "drop"]
    new = flow.sample(50)
    assert set(new["zip"]) <= set(frame["zip"])
    assert list(new.columns) == ["zip", "x"]


def test_constant_columns_and_columns_without_cells_come_back():
    frame = pd.DataFrame(
        {
            "c": ["k"] * 30,
            "n": [3.5] * 30,
            "e": [np.nan] * 30,
            "x": np.arange(30.0),
            "t": [np.nan, 2.0] * 15,
        }
    )
    new = fit(frame).sample(30, random_state=0)
    assert set(new["c"]) == {"k"}
    assert set(new["n"]) == {3.5}
    assert new["e"].isna().all()
    assert new["t"].isna().sum() == 15
    assert set(new["t"].dropna()) == {2.0}


def test_identifiers_keep_what_all_of_them_share():
    n = 60
    frame = pd.DataFrame(
        {
            "customer": [f"C-{i:06d}" for i in range(n)],
            "phone": [f"+47 {100 + 7 * i} {10_000 + 13 * i}" for i in range(n)],
            "x": np.arange(n) % 9,
        }
    )
    flow = fit(frame)
    assert flow.kinds_ == {"customer": "identifier", "phone": "identifier", "x": "integer"}
    told = flow.columns_.set_index("column")
    assert told.loc["phone", "distinct"] == n
    new = flow.sample(50, random_state=0)
    assert new["customer"].str.fullmatch(r"C-\d{6}").all()
    assert new["phone"].str.fullmatch(r"\+47 \d{3} \d{5}").all()
    for name in ("customer", "phone"):
        assert not new[name].isin(frame[name]).any()
        assert new[name].is_unique


@pytest.mark.parametrize(
    ("ending", "package"), [("parquet", "pyarrow"), ("xlsx", "openpyxl"), ("csv", "pandas")]
)
def test_tables_in_files_keep_their_types(tmp_path, ending, package):
    pytest.importorskip(package, reason=f"reading .{ending} files needs {package}")
    old = pd.DataFrame(columns(120)).assign(day=dates(120).astype("datetime64[s]"))
    old["plan"] = old["plan"].astype(str)
    path = tmp_path / f"old.{ending}"
    files.write_table(old, path)
    read = files.read_table(path)
    assert list(read.columns) == list(old.columns)
    if ending != "xlsx":
        assert [dtype.kind for dtype in read.dtypes] == [dtype.kind for dtype in old.dtypes]
    flow = fit(path)
    assert flow.kinds_ == fit(old).kinds_
    new = flow.sample(50, random_state=0)
    files.write_table(new, tmp_path / f"new.{ending}")
    again = files.read_table(tmp_path / f"new.{ending}")
    pd.testing.assert_frame_equal(again, new.astype(again.dtypes), rtol=1e-12)


def test_parquet_keeps_categories_zones_and_small_integers(tmp_path, library):
    pytest.importorskip("pyarrow", reason="reading .parquet files needs pyarrow")
    old = pd.DataFrame(
        {
            "size": pd.Categorical(["S", "L", "M", "S"] * 30, ["S", "M", "L"], ordered=True),
            "small": np.arange(120, dtype=np.int8) % 7,
            "gone": pd.array([1, None, 3] * 40, dtype="Int64"),
            "t": pd.Series(dates(120)).astype("datetime64[us]").dt.tz_localize("Europe/Berlin"),
        }
    )
    if library is not pd:
        old = library.from_pandas(old)
    files.write_table(old, tmp_path / "old.parquet")
    new = fit(tmp_path / "old.parquet").sample(40, random_state=0)
    files.write_table(new, tmp_path / "new.parquet")
    again = pd.read_parquet(tmp_path / "new.parquet")
    if library is pd:
        assert list(again.dtypes) == list(old.dtypes)
    assert (again["t"].dt.hour == 0).all()


def test_a_missing_reader_is_named(tmp_path, monkeypatch):
    def absent(path):
        raise ImportError("no engine")

    monkeypatch.setattr(pd, "read_parquet", absent)
    (tmp_path / "a.parquet").touch()
    with pytest.raises(ImportError, match="pip install pyarrow"):
        files.read_table(tmp_path / "a.parquet")


def test_numbers_off_any_grid_stay_within_their_bounds():
    x = np.random.default_rng(0).normal(650, 20, 300).astype(np.float32).astype(float)
    new = fit(pd.DataFrame({"x": x, "y": x.round()})).sample(3000, random_state=0)
    assert new["x"].between(x.min(), x.max()).all()
