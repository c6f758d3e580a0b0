"""Values of one person do not come back: rare numbers, rare levels, personal data."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sliceflow import TableFlow, load
from sliceflow.errors import DataWarning
from sliceflow.estimators.tables.draws.rare_numbers import LevelRange, is_rare, move
from sliceflow.estimators.tables.identifiers import judgment
from sliceflow.estimators.tables.identifiers.new_identifiers import new_identifiers
from sliceflow.estimators.tables.rows.table_rows import read_dataframe
from sliceflow.estimators.tables.table import Table

FIRST = ("Anna", "Ben", "Cleo", "Dan", "Eva", "Greta", "Hugo", "Ines", "Jan", "Piotr")
LAST = ("Kowalski", "Nowak", "Smith", "O'Neil", "Meyer-Huber", "Garcia", "Kim", "Brown")


def fit(frame, **parameters):
    return TableFlow(random_state=0, **parameters).fit(frame)


def column_of(values, **parameters):
    rows = read_dataframe(pd.DataFrame({"c": values}))
    return Table.from_rows(rows, {}, (), **parameters).columns[0]


def judge_identifier(name, values):
    (column,) = read_dataframe(pd.DataFrame({name: values})).columns
    return judgment.judge_identifier(column, np.arange(len(values)))


# --- numbers --------------------------------------------------------------------------


def test_numbers_of_one_row_do_not_come_back_and_keep_decimals_and_bounds(rng):
    x = np.round(rng.lognormal(3, 1, 400), 2)
    frame = pd.DataFrame({"x": x, "y": rng.normal(size=400), "k": [0, 1] * 200})
    new = fit(frame).sample(2000, random_state=0)
    # x: 400 of some 5,000 numbers of cents are met by chance; y: none of the floats is.
    assert new["x"].isin(x).mean() < 0.2
    assert not new["y"].isin(frame["y"]).any()
    assert set(new["k"]) == {0, 1}
    assert (new["x"].round(2) == new["x"]).all()
    assert new["x"].between(x.min(), x.max()).all()
    # The next number below the largest is dollars away: no draw meets it by chance. The
    # smallest is some cents away, and may be met.
    assert not (new["x"] == x.max()).any()
    assert (new["x"] == x.min()).mean() < 0.005
    known = fit(frame, min_count=1).sample(2000, random_state=0)
    assert known["x"].isin(x).mean() > new["x"].isin(x).mean()
    quantiles = np.linspace(0.05, 0.95, 10)
    # The standard error of such a quantile of 400 ranks is at most .025.
    ranks = np.searchsorted(np.sort(x), new["x"].quantile(quantiles)) / 400
    np.testing.assert_allclose(ranks, quantiles, atol=0.08)


def test_the_same_seed_moves_numbers_in_the_same_way(rng, tmp_path):
    frame = pd.DataFrame({"x": rng.gamma(2, size=100), "n": rng.poisson(9, 100)})
    flow = fit(frame, min_count=3)
    flow.save(tmp_path / "flow")
    first = flow.sample(50, random_state=1)
    pd.testing.assert_frame_equal(first, flow.sample(50, random_state=1))
    loaded = load(tmp_path / "flow")
    pd.testing.assert_frame_equal(first, loaded.sample(50, random_state=1))


def test_constraints_hold_for_numbers_that_moved(rng):
    low = rng.integers(0, 10_000, 300)
    frame = pd.DataFrame({"low": low, "high": low + rng.integers(0, 40, 300)})
    frame["sum"] = frame["low"] + frame["high"]
    rules = ["low <= high", "sum = low + high", "low >= 0"]
    new = fit(frame, constraints=rules).sample(500, random_state=0)
    assert (new["low"] <= new["high"]).all()
    assert (new["sum"] == new["low"] + new["high"]).all()
    # 300 of 10,000 numbers would be met by chance.
    assert new["low"].isin(low).mean() < 0.2


@given(
    st.lists(st.integers(0, 400), min_size=12, max_size=60),
    st.integers(2, 6),
    st.integers(0, 1000),
)
@settings(deadline=None, max_examples=40)
def test_a_moved_number_is_another_one_near_by_on_the_grid(values, min_count, seed):
    column = column_of(5 * np.array([*values, 0, 400]), min_count=min_count)
    levels = np.arange(column.n_levels, dtype=float)
    rare = levels[is_rare(column, levels)]
    whole = LevelRange.of_column(column, len(rare))
    moved = move(column, rare, whole, np.random.default_rng(seed))
    assert (moved != rare).all()
    assert ((moved >= 0) & (moved <= column.n_levels - 1)).all()
    # Rare levels have a row or more: 3 ranks are 3 levels, and rounding is 1 step.
    if (
        column.new_value_policy.allows_values_in_gaps
        and column.new_value_policy.has_full_grid
    ):
        assert (np.abs(moved - rare) <= 4).all()
    values = column.decode(moved)
    assert (values % 5 == 0).all()


def test_grades_stay_grades_and_frequent_zeros_stay_alone(rng):
    grades = rng.choice([1.0, 1.3, 1.7, 2.0, 2.3], 400)
    grades[:2] = 4.0
    spent = np.where(rng.random(400) < 0.5, 0, 100 + rng.gamma(2, 50, 400)).round(2)
    new = fit(pd.DataFrame({"grade": grades, "spent": spent})).sample(
        2000, random_state=0
    )
    assert set(new["grade"]) == {1.0, 1.3, 1.7, 2.0, 2.3}
    assert abs((new["spent"] == 0).mean() - (spent == 0).mean()) < 0.05
    assert not new["spent"].between(0.01, spent[spent > 0].min() - 0.01).any()


def test_dates_of_one_row_move_by_whole_days(rng):
    days = pd.to_datetime("2020-01-01") + pd.to_timedelta(
        rng.integers(0, 9000, 200), "D"
    )
    new = fit(pd.DataFrame({"day": days})).sample(500, random_state=0)["day"]
    assert (new == new.dt.normalize()).all()
    assert new.isin(days).mean() < 0.15  # 200 of 9,000 days by chance


def test_min_count_is_a_count():
    frame = pd.DataFrame({"x": [1.0, 2.0]})
    with pytest.raises(ValueError, match=r"min_count=0 must be an int of at least 1"):
        fit(frame, min_count=0)
    with pytest.raises(ValueError, match="'warn', 'keep' or 'merge'"):
        fit(frame, rare_levels="hide")


# --- levels ---------------------------------------------------------------------------


def towns(rng):
    town = rng.choice(["Bonn", "Köln"], 200)
    town[:4] = ["Ahr", "Ems", "Ems", "Rur"]
    town[4:7] = "Ulm"
    return pd.DataFrame({"town": town, "x": rng.normal(size=200)})


def test_rare_levels_warn_with_their_columns_and_counts(rng, recwarn):
    frame = towns(rng)
    with pytest.warns(DataWarning, match=r"fewer than 5 rows, of the columns town \(4"):
        fit(frame)
    recwarn.clear()
    flow = fit(frame, rare_levels="keep")
    assert not [w for w in recwarn if issubclass(w.category, DataWarning)]
    assert "Ulm" in set(flow.sample(2000, random_state=0)["town"])


@pytest.mark.parametrize("dtype", ["str", "category"])
def test_rare_levels_are_merged(dtype, rng, tmp_path):
    frame = towns(rng).astype({"town": dtype})
    flow = fit(frame, rare_levels="merge")
    flow.save(tmp_path / "flow")
    new = load(tmp_path / "flow").sample(2000, random_state=0)["town"]
    assert set(new) == {"Bonn", "Köln", "other"}
    assert abs((new == "other").mean() - 7 / 200) < 0.03
    assert np.isfinite(flow.score(frame))  # rows with merged levels are known
    # Two rows are too few for a level of their own.
    few = pd.DataFrame({"c": ["a"] * 100 + ["b"] * 90 + ["z"] * 2, "x": range(192)})
    merged = fit(few, rare_levels="merge").sample(500, random_state=0)["c"]
    assert set(merged) == {"a", "b"}


def test_rare_levels_of_numbers_become_the_next_level(rng):
    year = rng.choice([2001, 2005], 100)
    year[0] = 2006
    frame = pd.DataFrame({"year": year, "x": rng.normal(size=100)})
    flow = fit(frame, kinds={"year": "category"}, rare_levels="merge")
    assert set(flow.sample(200, random_state=0)["year"]) == {2001, 2005}


# --- personal data --------------------------------------------------------------------


def persons(n_persons, n_rows, rng):
    names = rng.permutation([f"{a} {b}" for a in FIRST for b in LAST])[:n_persons]
    who = rng.integers(0, n_persons, n_rows)
    mails = []
    for i, name in enumerate(names):
        user = name.lower().replace(" ", ".")
        mails.append(f"{user}{i}@{('gmail.com', 'acme.de', 'kowalski.pl')[i % 3]}")
    return pd.DataFrame(
        {
            "client": names[who],
            "mail": np.array(mails)[who],
            "phone": [f"0{170 + i % 9}/{1_000_000 + 77 * i}" for i in who],
            "customer_id": who + 1,
            "sex": np.where(who % 2, "m", "f"),
            "spent": rng.gamma(2, size=n_rows),
        }
    )


def test_persons_with_many_rows_get_one_new_name_each(rng):
    frame = persons(60, 500, rng)
    flow = fit(frame)
    new = flow.sample(400, random_state=0)
    personal = ["client", "mail", "phone", "customer_id"]
    for name in personal:
        assert flow.kinds_[name] == "identifier"
        assert not set(new[name]) & set(frame[name])
        assert new[name].dtype == frame[name].dtype
        assert 10 < new[name].nunique() <= 60
    # Who is m or f in the table is so in samples, and has one mail.
    assert (new.groupby("client")[["sex", "mail"]].nunique() == 1).all(axis=None)
    text = " ".join([*new["client"], *new["mail"]]).lower()
    for word in (*FIRST, *LAST):
        if len(word) > 3:
            assert word.lower() not in text
    assert new["phone"].str.fullmatch(r"0\d{3}/\d{7}").all()
    assert new["mail"].str.fullmatch(r"[^@]+@[a-z]+\.[a-z]+").all()
    with pytest.raises(ValueError, match="kind identifier"):
        flow.sample(1, given={"client": frame["client"][0]})


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("klient", [f"{a} {b}" for a in FIRST for b in LAST], "a name"),
        ("x", [f"{b}, {a}" for a in FIRST for b in LAST], "a name"),
        ("patient", ["Xu Tse", "Ng Phu", "Oe Ra", "Ix Um"], "a name"),
        ("last_name", list(LAST), "a name"),
        ("a", ["12 Main St", "3 Oak Avenue", "77b Elm Rd. Apt 4"], "an address"),
        ("a", ["Hauptstraße 3", "Am Ufer 12", "Berliner Allee 7a"], "an address"),
        ("a", ["a.b@c.org", "x@y.de"], "an e-mail address"),
        ("a", ["4111 1111 1111 1111", "5500 0000 0000 0004"], "a card number"),
        ("a", ["123-45-6789", "987-65-4321"], "a national identifier"),
        ("a", ["+48 601 234 567", "+48 22 123 45 67"], "a phone number"),
    ],
)
def test_personal_kinds_are_recognized_also_when_they_repeat(name, values, kind):
    judgment = judge_identifier(name, values * 4)
    assert judgment == (f"looks like {kind}", True)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("species", ["Adelie Penguin", "Chinstrap Penguin", "Gentoo Penguin"]),
        ("species_name", ["Pinus sylvestris", "Quercus robur", "Acer campestre"]),
        ("country", ["United States", "New Zealand", "Costa Rica", "South Africa"]),
        ("country_name", ["United States", "New Zealand", "Costa Rica", "Sri Lanka"]),
        ("city", ["San Francisco", "Saint Charlotte", "New York", "Los Angeles"]),
        ("city", ["Austin", "Charlotte", "Florence", "Victoria", "Madison"]),
        ("model", ["Ford Mustang", "Toyota Corolla", "Mercedes Benz", "Alfa Romeo"]),
        ("car name", ["Ford Mustang", "Toyota Corolla", "Honda Civic", "Fiat Uno"]),
        ("product_name", ["Red Chair", "Blue Table", "Green Lamp", "White Sofa"]),
        ("job", ["Sales Manager", "Data Scientist", "Office Clerk"]),
        ("department", ["Human Resources", "Public Relations", "Legal Affairs"]),
        ("team", ["Boston Celtics", "Chicago Bulls", "Miami Heat", "Utah Jazz"]),
        ("island", ["Biscoe", "Dream", "Torgersen"]),
        ("phone", ["yes", "no"]),
        ("phone", [0, 1]),
        ("account_number", [1, 2, 3, 4]),
        ("user_id", [1, 2, 3]),
        ("room", ["12 A", "13 B", "14 C"]),
        ("date", ["2024-01-31", "2024-02-29"]),
        ("score", ["1-2", "3-0", "2-2"]),
    ],
)
def test_ordinary_categories_are_not_taken_for_persons(name, values):
    assert judge_identifier(name, values * 12).reason == ""


def test_lengths_and_forms_follow_the_column(rng):
    pets = ["Eli", "Rex", "Bella", "Mo", "Captain Fluffy the 3rd of May"]
    (column,) = read_dataframe(pd.DataFrame({"pet": pets})).columns
    new = new_identifiers(column, 500, rng)
    assert len(set(new)) == 500
    n_words = pd.Series([len(text.split()) for text in new])
    assert abs((n_words == 1).mean() - 0.8) < 0.1  # five standard errors
    ids = rng.permutation(12_343)[:3000] + 2
    (column,) = read_dataframe(pd.DataFrame({"id": ids})).columns
    new_ids = new_identifiers(column, 2000, rng)
    assert not set(new_ids) & set(ids.tolist())
    lengths = pd.Series(new_ids).astype(str).str.len().value_counts(normalize=True)
    known = pd.Series(ids).astype(str).str.len().value_counts(normalize=True)
    for length in (3, 4, 5):
        assert abs(lengths[length] - known[length]) < 0.06
    # All numbers of one and two digits are taken, so new ones are longer.
    (column,) = read_dataframe(pd.DataFrame({"id": range(100)})).columns
    assert min(new_identifiers(column, 100, rng)) >= 100


def test_what_all_values_share_stays(rng):
    (column,) = read_dataframe(
        pd.DataFrame({"key": [f"DE-{k:06}/acme" for k in range(700)]})
    ).columns
    new = pd.Series(new_identifiers(column, 100, rng))
    assert new.str.fullmatch(r"DE-\d{6}/acme").all()


def test_a_number_of_which_all_are_known_grows(rng):
    """Only the last one grew: no text was ever new, and the search did not end."""
    keys = [f"u{number}-{number % 9}" for number in range(10_000, 100_000)]
    (column,) = read_dataframe(pd.DataFrame({"key": keys})).columns
    new = pd.Series(new_identifiers(column, 50, rng))
    assert new.is_unique
    assert new.str.fullmatch(r"u\d{6,}-\d+").all()


# --- conditions -----------------------------------------------------------------------


def test_a_condition_of_few_rows_warns_with_their_number(rng):
    state = np.array(["CA"] * 31 + ["NY"] * 269)
    flow = fit(pd.DataFrame({"state": state, "x": rng.normal(size=300)}))
    with pytest.warns(UserWarning, match="only 31 rows of the table have this"):
        flow.sample(5, given={"state": "CA"}, random_state=0)
