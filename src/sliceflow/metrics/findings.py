"""Findings: facts about samples, each graded by fixed limits.

Each function takes a report, or attacks, and returns the findings of one kind. The
limits are documented in docs/how-to/evaluate.md.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from sliceflow.metrics import copying
from sliceflow.metrics.attack_results import (
    MIN_PRECISE_ROWS,
    SHADOW_ATTACK,
    Attack,
    Attacks,
)
from sliceflow.metrics.tables import MIN_COMMON_COUNT

if TYPE_CHECKING:
    from sliceflow.metrics.reports import Metric, Report
    from sliceflow.metrics.table_comparison import ColumnPair

# A "note" is something one must know that does not grade the samples.
Grade = Literal["green", "amber", "red", "note"]
# The worst first.
GRADES: tuple[Grade, ...] = ("red", "amber", "green", "note")


class Limits(NamedTuple):
    """The limits of a grade: green up to `green`, amber up to `amber`, then red."""

    green: float
    amber: float


# How far the AUC or accuracy of a classifier may be above chance, or above what it
# reaches with real rows in place of the samples: that is about the noise of some
# hundred rows. From .65 on it easily tells them.
_DETECTION = Limits(0.05, 0.15)
# By how much the strongest loss among all pairs of columns may weaken an association.
_LOST_ASSOCIATION = Limits(0.1, 0.3)
# By how much R² or AUC may fall if one learns from samples instead of real rows.
_LOST_UTILITY = Limits(0.05, 0.15)
# By how much the share of held-out pictures with a sample near may fall.
_LOST_COVERAGE = Limits(0.1, 0.3)
# The share of samples that may break a rule. Green is none: by the rule of three, n
# rows that all keep a rule allow that up to 3/n of all rows break it.
_BROKEN_ROWS = Limits(0.0, 0.05)
_RULE_OF_THREE = 3
# The AUC of an attack, and the share of members that it finds at 1 % false positives.
# What is above counts if it is beyond chance.
_ATTACK_AUC = Limits(0.55, 0.65)
_ATTACK_FOUND = Limits(0.02, 0.1)
# Shadow models attack the rows that stand out most, with more knowledge than anybody
# has: more of these may be found.
_SHADOW_AUC = Limits(0.6, 0.75)
_SHADOW_FOUND = Limits(0.06, 0.2)
# By how much the share of rare numbers may be above that of held-out rows.
_RARE_VALUES = Limits(0.1, 1.0)
# By how much the share of exact copies may be above that of held-out rows.
_EXACT_COPIES = Limits(0.005, 0.05)
# In smaller tables single rows stand out, and attacks find more.
_MIN_TABLE_ROWS = 500
# Of rules that are lost, this many are named.
_N_NAMED_RULES = 3


@dataclass(frozen=True)
class Finding:
    """One fact about samples, and how good it is.

    Attributes
    ----------
    grade : "green", "amber", "red" or "note"
        How good it is.
    text : str
        The fact, in words.
    """

    grade: Grade
    text: str


def judge_use(report: Report, from_mosaics: bool) -> list[Finding]:
    """All findings on whether samples may be used in place of real rows."""
    findings = [
        *_judge_detection(report, from_mosaics),
        *_judge_coverage(report),
        *_judge_pairs(report),
        *_judge_rules(report),
        *_judge_utility(report),
    ]
    n_held_out = report.counts["held_out"]
    if n_held_out < MIN_PRECISE_ROWS:
        text = f"with {n_held_out} held-out rows all numbers are rough"
        findings.append(Finding("amber", text))
    return findings


def judge_sharing(report: Report, attacks: Attacks | None) -> list[Finding]:
    """All findings on whether samples tell of single training rows."""
    findings = [
        *_judge_copies(report),
        *_judge_values(report),
        *_judge_attacks(report, attacks),
    ]
    n_train = report.counts["train"]
    if report.kind == "tables" and n_train < _MIN_TABLE_ROWS:
        text = (
            f"with {n_train} rows, fewer than {_MIN_TABLE_ROWS}, single rows stand out"
        )
        findings.append(Finding("amber", text))
    return findings


def _grade(value: float, limits: Limits, *, includes_limits: bool = True) -> Grade:
    """Green up to the first limit, amber up to the second, red above.

    A value at a limit has the better grade, unless `includes_limits` is False.
    """
    is_within = operator.le if includes_limits else operator.lt
    if is_within(value, limits.green):
        return "green"
    if is_within(value, limits.amber):
        return "amber"
    return "red"


def _metric(report: Report, name: str) -> Metric | None:
    """A metric of a report; None if the report does not have it, or if it is NaN."""
    for metric in report.metrics:
        if metric.name == name and not math.isnan(metric.value):
            return metric
    return None


def _judge_detection(report: Report, from_mosaics: bool) -> list[Finding]:
    """Whether a classifier tells samples from held-out rows."""
    findings = []
    words = {"green": "hardly", "amber": "sometimes", "red": "easily"}
    for name in ("two-sample accuracy", "detection"):
        metric = _metric(report, name)
        if metric is None:
            continue
        grade = _grade(metric.value - max(0.5, metric.reference), _DETECTION)
        findings.append(
            Finding(
                grade,
                f"a classifier {words[grade]} tells samples from held-out rows "
                f"({name} {metric.value:.2f}, of real rows {metric.reference:.2f})",
            )
        )
        if from_mosaics and grade != "green":
            text = (
                "many are collages: they started as mosaics of fitted pictures, "
                "and their parts do not fit together"
            )
            findings.append(Finding(grade, text))
    return findings


def _judge_coverage(report: Report) -> list[Finding]:
    """Whether there are samples near to held-out rows."""
    metric = _metric(report, "coverage")
    if metric is None:
        return []
    text = (
        f"samples cover {metric.value:.0%} of held-out rows "
        f"(real ones {metric.reference:.0%})"
    )
    return [Finding(_grade(metric.reference - metric.value, _LOST_COVERAGE), text)]


def _judge_pairs(report: Report) -> list[Finding]:
    """The pair of columns whose association falls most."""
    pairs = report.details.get("lost_pairs", [])
    if not pairs:
        return []
    worst = pairs[0]
    # Rounded: 0.5 − 0.4 is a little less than 0.1 to a computer.
    fall = round(worst.real_association - worst.sample_association, 3)
    grade = _grade(fall, _LOST_ASSOCIATION, includes_limits=False)
    return [Finding(grade, _describe_pair(worst))]


def _describe_pair(pair: ColumnPair) -> str:
    return (
        f"of all pairs, the association of {pair.first} and {pair.second} weakens "
        f"most: {pair.real_association:.2f} in training rows, "
        f"{pair.sample_association:.2f} in samples"
    )


def _judge_rules(report: Report) -> list[Finding]:
    """Which rules are lost, and how many rows break one."""
    rules = report.details.get("rules", [])
    if not rules:
        return []
    lost = []
    for rule in rules:
        allowed = 1 - rule.real_share + _RULE_OF_THREE / rule.n_rows
        if 1 - rule.sample_share > allowed:
            lost.append(rule)
    if not lost:
        n_rules = f"the {len(rules)} rules" if len(rules) > 1 else "the one rule"
        return [Finding("green", f"samples keep {n_rules} of the training rows")]
    named = ", ".join(
        f"{rule.text} ({rule.sample_share:.1%} keep it)"
        for rule in lost[:_N_NAMED_RULES]
    )
    n_lost = f"{len(lost)} of {len(rules)} rules are"
    if len(lost) == 1:
        n_lost = f"1 of {len(rules)} rules is"
    grade = _grade(1 - min(rule.sample_share for rule in lost), _BROKEN_ROWS)
    return [Finding(grade, f"{n_lost} lost: {named}")]


def _judge_utility(report: Report) -> list[Finding]:
    """Whether one can learn from samples what one can learn from real rows."""
    metric = _metric(report, "utility")
    if metric is None or math.isnan(metric.reference):
        return []
    target = report.details.get("target", "a column")
    text = (
        f"who learns {target} from samples reaches {metric.value:.2f}, "
        f"from real rows {metric.reference:.2f}"
    )
    return [Finding(_grade(metric.reference - metric.value, _LOST_UTILITY), text)]


def _judge_copies(report: Report) -> list[Finding]:
    """Whether samples are copies, by the worst of the copy rates."""
    findings = []
    shares = [m for m in report.metrics if m.name.startswith("copy rate")]
    ratio = _metric(report, "NN ratio")
    if shares and ratio is not None:
        worst = max(shares, key=lambda metric: metric.value)
        numbers = f"({worst.name} {worst.value:.2g}, NN ratio {ratio.value:.2g})"
        if copying.is_evidence_of_copying(worst.value, ratio.value, worst.reference):
            findings.append(Finding("red", f"samples copy training rows {numbers}"))
        else:
            findings.append(Finding("green", f"samples are no copies {numbers}"))
    exact = _metric(report, "exact copies")
    if exact is not None and exact.value > exact.reference + _EXACT_COPIES.green:
        grade = _grade(exact.value - exact.reference, _EXACT_COPIES)
        text = f"{exact.value:.1%} of samples equal a training row"
        findings.append(Finding(grade, f"{text} (held-out rows {exact.reference:.1%})"))
    return findings


def _judge_values(report: Report) -> list[Finding]:
    """Real values of columns that identify a row, and numbers that few rows have."""
    findings = []
    revealed = report.details.get("revealed", {})
    revealed_columns = [name for name, share in revealed.items() if share > 0]
    if revealed_columns:
        text = (
            f"REAL VALUES of {', '.join(revealed_columns)}, which identify a row, are "
            "in the samples"
        )
        findings.append(Finding("red", text))
    elif revealed:
        names = ", ".join(revealed)
        text = f"no real value of {names}, which identify a row, is in the samples"
        findings.append(Finding("green", text))
    rare = _metric(report, "rare values")
    if rare is not None:
        grade = _grade(rare.value - rare.reference, _RARE_VALUES)
        text = (
            f"{rare.value:.0%} of the samples' numbers are real ones that fewer than "
            f"{MIN_COMMON_COUNT} training rows have (held-out rows "
            f"{rare.reference:.0%})"
        )
        findings.append(Finding(grade, text))
    return findings


def _judge_attacks(report: Report, attacks: Attacks | None) -> list[Finding]:
    """Which attacks succeed, or that none does."""
    if attacks is None:
        if report.kind == "pictures":
            return []
        text = "nobody has attacked the samples: distances alone prove no privacy"
        return [Finding("amber", text)]
    findings = []
    for attack in attacks.attacks:
        grade = _grade_attack(attack)
        if grade != "green":
            score = attack.score
            text = (
                f"an attack succeeds, {attack.name}: AUC {score.auc.value:.2f}, it "
                f"finds {score.tpr_at_fpr_1pct.value:.1%} of the members at 1 % "
                "false positives"
            )
            findings.append(Finding(grade, text))
    if not findings:
        names = ", ".join(attack.name for attack in attacks.attacks)
        findings.append(Finding("green", f"no attack succeeds ({names})"))
    return findings


def _grade_attack(attack: Attack) -> Grade:
    """Green if an attack finds no more than it may, or no more than chance."""
    if not attack.score.is_beyond_chance:
        return "green"
    auc_limits = _ATTACK_AUC
    found_limits = _ATTACK_FOUND
    if attack.name == SHADOW_ATTACK:
        auc_limits = _SHADOW_AUC
        found_limits = _SHADOW_FOUND
    grades = (
        _grade(attack.score.auc.value, auc_limits),
        _grade(attack.score.tpr_at_fpr_1pct.value, found_limits),
    )
    return min(grades, key=GRADES.index)
