"""The results of attacks: how well each tells fitted rows from others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sliceflow.metrics.membership import AttackScore, Estimate
from sliceflow.metrics.text_tables import format_table

# With fewer held-out rows, 1 % of false positives cannot be counted.
MIN_PRECISE_ROWS = 100
SHADOW_ATTACK = "shadow models, outliers"


@dataclass(frozen=True)
class Attack:
    """The result of one attack, on samples and on fresh real rows in their place.

    Attributes
    ----------
    name : str
        Such as "density ratio".
    meaning : str
        When the attack takes a row for a fitted one.
    score : AttackScore
        How well the attack does with the samples: `auc`, `tpr_at_fpr_1pct` and
        `tpr_at_fpr_0_1pct`, each with a `value` and its 95 % interval, `low` to
        `high`, and a `p_value`.
    null_score : AttackScore
        How well the attack does with fresh rows: what chance finds.
    auc_by_n_samples : dict
        The AUC with more samples, by their number. Empty if no model was given.
    """

    name: str
    meaning: str
    score: AttackScore
    null_score: AttackScore
    auc_by_n_samples: Mapping[int, float]


@dataclass(frozen=True)
class Attacks:
    """The results of all attacks. `attack` makes it; `print` shows a table.

    ``attacks["density ratio"]`` is one `Attack`.

    Attributes
    ----------
    attacks : tuple of Attack
        One result for each attack.
    counts : dict
        The numbers of "samples", "members", "others", "shadows" (shadow models) and
        "outliers".
    hidden : str
        The column that attribute disclosure guesses.
    """

    attacks: tuple[Attack, ...]
    counts: Mapping[str, int]
    hidden: str

    def __getitem__(self, name: str) -> Attack:
        return {result.name: result for result in self.attacks}[name]

    def __str__(self) -> str:
        larger_counts: set[int] = set()
        for attack_result in self.attacks:
            larger_counts.update(attack_result.auc_by_n_samples)
        sample_counts = sorted(larger_counts)
        rows = [
            [
                "",
                "AUC",
                "(95 %)",
                "found at 1 %",
                "(95 %)",
                "at 0.1 %",
                "fresh rows: AUC",
                "at 1 %",
                *[f"AUC, {n} samples" for n in sample_counts],
            ]
        ]
        for attack_result in self.attacks:
            rows.append(_table_row(attack_result, sample_counts))
        right_aligned = [column > 0 for column in range(len(rows[0]))]
        return f"{format_table(rows, right_aligned)}\n{self.note}"

    @property
    def note(self) -> str:
        """How many rows were attacked, and what chance would find."""
        counts = self.counts
        note = (
            f"{counts['samples']} samples, {counts['members']} members and "
            f"{counts['others']} others; the hidden column is {self.hidden}; "
            "chance has an AUC of 0.5, and finds 1 % and 0.1 %"
        )
        if counts["shadows"]:
            note += (
                f"; {counts['shadows']} shadow models and {counts['outliers']} outliers"
            )
        if counts["others"] < MIN_PRECISE_ROWS:
            note += f"; with {counts['others']} others all numbers are rough"
        return note

    def to_dict(self) -> dict[str, Any]:
        """The results as a dict that JSON can hold."""
        out = asdict(self)
        out["attacks"] = list(out["attacks"])
        for attack_result in out["attacks"]:
            aucs = attack_result["auc_by_n_samples"]
            attack_result["auc_by_n_samples"] = {str(n): auc for n, auc in aucs.items()}
            for score in (attack_result["score"], attack_result["null_score"]):
                for name, value in score.items():
                    if isinstance(value, Estimate):
                        score[name] = value._asdict()
        out["note"] = self.note
        return out


def _table_row(attack_result: Attack, sample_counts: list[int]) -> list[str]:
    """The cells of an attack in the table; `sample_counts` are the last columns."""
    score = attack_result.score
    null_score = attack_result.null_score
    auc = score.auc
    found = score.tpr_at_fpr_1pct
    cells = [
        attack_result.name,
        f"{auc.value:.3f}",
        f"{auc.low:.2f}–{auc.high:.2f}",
        f"{found.value:.1%}",
        f"{found.low:.1%}–{found.high:.1%}",
        f"{score.tpr_at_fpr_0_1pct.value:.1%}",
        f"{null_score.auc.value:.3f}",
        f"{null_score.tpr_at_fpr_1pct.value:.1%}",
    ]
    aucs = attack_result.auc_by_n_samples
    for n in sample_counts:
        cells.append(f"{aucs[n]:.3f}" if n in aucs else "")
    return cells
