"""The verdict: never green when something is lost, and what it says."""

import json

import numpy as np
import pandas as pd
import pytest

from sliceflow import metrics
from sliceflow.metrics.attack_results import Attack, Attacks
from sliceflow.metrics.membership import AttackScore, Estimate
from sliceflow.metrics.reports import Metric, Report
from sliceflow.metrics.rules import KeptRule
from sliceflow.metrics.table_comparison import ColumnPair

GOOD = {
    "detection": (0.51, 0.5),
    "utility": (0.79, 0.8),
    "rules kept": (1.0, 1.0),
    "rare values": (0.1, 0.1),
    "exact copies": (0.0, 0.0),
    "NN ratio": (1.0, 1.0),
    "copy rate": (0.01, 0.01),
}
PAIR = ("a", "b", 0.5, 0.45)
RULE = ("a <= b", 1.0, 1.0, 2000)


def made(pair=PAIR, rule=RULE, n=1000, **scores):
    """A report of a table, good but for what is passed."""
    scores = GOOD | {name.replace("_", " "): value for name, value in scores.items()}
    found = [
        Metric(name, value, reference, "", "")
        for name, (value, reference) in scores.items()
    ]
    details = {
        "lost_pairs": [ColumnPair(*pair)],
        "rules": [KeptRule(*rule)],
        "revealed": {"id": 0.0},
        "target": "b",
    }
    counts = {"samples": n, "train": n, "held_out": n}
    return Report("tables", tuple(found), counts, 2000, details)


def attacked(auc=0.51, found=0.01, p_value=0.001, name="forest"):
    """An attack with this success."""
    success = AttackScore(
        Estimate(auc, auc, auc),
        Estimate(found, found, found),
        Estimate(0.0, 0.0, 0.0),
        p_value,
    )
    return Attacks((Attack(name, "", success, success, {}),), {}, "b")


def test_good_samples_that_withstand_attacks_are_green():
    assert metrics.judge(made(), attacked()).summary == "use green, share green"
    assert made().verdict.summary == "use green, share amber"
    assert "nobody has attacked" in str(made().verdict.sharing)


@pytest.mark.parametrize(
    ("change", "grade", "said"),
    [
        ({"detection": (0.6, 0.5)}, "amber", "sometimes tells samples"),
        ({"detection": (0.7, 0.52)}, "red", "easily tells samples"),
        ({"utility": (0.7, 0.8)}, "amber", "from real rows 0.80"),
        ({"utility": (0.5, 0.8)}, "red", "who learns b from samples reaches 0.50"),
        ({"pair": ("a", "b", 0.5, 0.4)}, "amber", "association of a and b"),
        ({"pair": ("a", "b", 0.9, 0.5)}, "red", "0.90 in training rows"),
        (
            {"rule": ("a <= b", 1.0, 0.99, 2000)},
            "amber",
            "lost: a <= b (99.0% keep it)",
        ),
        ({"rule": ("a <= b", 1.0, 0.5, 2000)}, "red", "1 of 1 rules is lost"),
        ({"n": 60}, "amber", "all numbers are rough"),
    ],
)
def test_what_is_lost_is_never_green_to_use(change, grade, said):
    answer = metrics.judge(made(**change), attacked()).use
    assert answer.grade == grade
    assert answer.findings[0].grade == grade
    assert said in answer.findings[0].text


def test_mosaics_that_a_classifier_knows_are_called_collages():
    told_apart = made(detection=(0.7, 0.52))
    assert "collages" in str(metrics.judge(told_apart, from_mosaics=True).use)
    assert "collages" not in str(metrics.judge(told_apart).use)
    assert "collages" not in str(metrics.judge(made(), from_mosaics=True).use)


@pytest.mark.parametrize(
    ("change", "attack", "grade", "said"),
    [
        ({"copy rate": (0.2, 0.01)}, {}, "red", "samples copy training rows"),
        ({"exact_copies": (0.02, 0.0)}, {}, "amber", "2.0% of samples equal"),
        ({"rare_values": (0.6, 0.1)}, {}, "amber", "60% of the samples' numbers"),
        ({"n": 300}, {}, "amber", "fewer than 500"),
        ({}, {"auc": 0.6}, "amber", "an attack succeeds, forest: AUC 0.60"),
        ({}, {"auc": 0.7}, "red", "an attack succeeds"),
        ({}, {"found": 0.04}, "amber", "it finds 4.0% of the members"),
        ({}, {"found": 0.3}, "red", "an attack succeeds"),
    ],
)
def test_what_leaks_is_never_green_to_share(change, attack, grade, said):
    answer = metrics.judge(made(**change), attacked(**attack)).sharing
    assert answer.grade == grade
    assert said in answer.findings[0].text


def test_what_chance_finds_is_no_success():
    assert (
        metrics.judge(made(), attacked(auc=0.6, p_value=0.2)).sharing.grade == "green"
    )
    shadow = attacked(auc=0.58, found=0.05, name="shadow models, outliers")
    assert metrics.judge(made(), shadow).sharing.grade == "green"


def test_a_rule_that_real_rows_break_as_often_is_not_lost():
    kept = made(rule=("a <= b", 0.99, 0.99, 2000))
    assert metrics.judge(kept).use.grade == "green"


def test_notes_come_last_and_change_nothing():
    verdict = metrics.judge(made(), attacked(), notes=["the model file has your rows"])
    assert verdict.sharing.grade == "green"
    assert verdict.sharing.findings[-1].text == "the model file has your rows"
    told = json.loads(json.dumps(verdict.to_dict()))
    assert told["sharing"]["findings"][-1]["grade"] == "note"
    assert str(verdict).splitlines()[1].startswith("May I share it? Green: ")


def test_a_broken_sum_is_seen_where_a_classifier_sees_little(rng):
    """Orders whose total is a cent off: red, though all columns look right."""

    def orders(n):
        net = rng.integers(1_000, 100_000, n) / 100
        shipping = rng.choice([0, 4.99, 9.99], n)
        total = np.round(net + shipping, 2)
        return pd.DataFrame({"net": net, "shipping": shipping, "total": total})

    samples = orders(400)
    samples["total"] = (samples["total"] + rng.normal(0, 5, 400)).round(2)
    verdict = metrics.report(samples, orders(400), orders(400), device="cpu").verdict
    assert verdict.use.grade == "red"
    assert "total = net + shipping" in str(verdict.use)
