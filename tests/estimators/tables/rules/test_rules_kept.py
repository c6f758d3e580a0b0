"""`rules_kept`: the share of any rows that keep the rules of a model."""

import numpy as np
import pandas as pd

from sliceflow import TableFlow


def orders(rng, n):
    net = rng.integers(100, 9_000, n) / 100
    shipping = rng.choice([0, 4.99, 9.99], n)
    total = np.round(net + shipping, 2)
    notes = [f"order {i}" for i in range(n)]
    return pd.DataFrame(
        {"notes": notes, "net": net, "shipping": shipping, "total": total}
    )


def test_samples_keep_the_rules_and_broken_rows_are_counted(rng):
    table = orders(rng, 400)
    flow = TableFlow(kinds={"notes": "drop"}, random_state=0).fit(table)
    texts = [rule.text for rule in flow.rules_]
    assert texts[0] == "total = net + shipping"
    kept = flow.rules_kept(flow.sample(300, random_state=0))  # without notes
    assert list(kept) == texts
    assert set(kept.values()) == {1.0}
    broken = table.copy()
    some = table["total"].nsmallest(100).index
    broken.loc[some, "total"] = table["total"][some] + 0.01
    assert flow.rules_kept(broken)["total = net + shipping"] == 0.75
    broken.loc[some, "shipping"] = np.nan
    assert flow.rules_kept(broken)["total = net + shipping"] == 1


def test_numbers_outside_the_range_do_not_count_as_the_end_of_it(rng):
    """At the end, a total that is too large would keep the rule."""
    table = orders(rng, 400)
    flow = TableFlow(kinds={"notes": "drop"}, random_state=0).fit(table)
    largest = table["total"].idxmax()
    rows = table.loc[[largest, largest]].reset_index(drop=True)
    rows.loc[0, ["net", "total"]] = [70.0, 75.99]
    rows.loc[1, "total"] += 0.01
    assert flow.rules_kept(rows)["total = net + shipping"] == 0


def test_a_dropped_column_need_not_be_there_whatever_its_name_is(rng):
    table = orders(rng, 400).rename(columns={"notes": 7})
    flow = TableFlow(kinds={"7": "drop"}, random_state=0).fit(table)
    rows = table.drop(columns=7)
    assert flow.rules_kept(rows)["total = net + shipping"] == 1
    assert 7 not in rows
