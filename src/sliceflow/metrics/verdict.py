"""The verdict on samples: may I use them, may I share them?

Every finding is green, amber or red by fixed limits; an answer is as bad as its worst
finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sliceflow.metrics.attack_results import Attacks
from sliceflow.metrics.findings import (
    GRADES,
    Finding,
    Grade,
    judge_sharing,
    judge_use,
)

if TYPE_CHECKING:
    from sliceflow.metrics.reports import Report


@dataclass(frozen=True)
class Answer:
    """The answer to a question: as bad as the worst of its findings.

    Attributes
    ----------
    question : str
        Such as "May I use it?".
    grade : "green", "amber", "red" or "note"
        The worst grade of the findings.
    findings : tuple of Finding
        The facts, the worst first.
    """

    question: str
    grade: Grade
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        texts = "; ".join(finding.text for finding in self.findings)
        return f"{self.question} {self.grade.capitalize()}: {texts}"


@dataclass(frozen=True)
class Verdict:
    """Whether samples may be used, and shared. `judge` makes it; `print` it.

    Attributes
    ----------
    use : Answer
        May the samples be used in place of real rows?
    sharing : Answer
        May the samples be shared without telling of single rows?
    """

    use: Answer
    sharing: Answer

    def __str__(self) -> str:
        return f"{self.use}\n{self.sharing}"

    @property
    def summary(self) -> str:
        """Both grades in a few words, such as "use green, share amber"."""
        return f"use {self.use.grade}, share {self.sharing.grade}"

    def to_dict(self) -> dict[str, Any]:
        """The verdict as a dict that JSON can hold."""
        out = asdict(self)
        for answer in out.values():
            answer["findings"] = list(answer["findings"])
        return out


def judge(
    report: Report,
    attacks: Attacks | None = None,
    notes: Sequence[str] = (),
    *,
    from_mosaics: bool = False,
) -> Verdict:
    """Judge a report and attacks: may samples be used, may they be shared?

    An answer is never green if a rule is lost, a correlation falls by 0.1 or more, or
    an attack succeeds. Tables that were not attacked are amber at best.

    Parameters
    ----------
    report : Report
        The metrics of the samples.
    attacks : Attacks or None, default None
        The results of attacks, if there were any.
    notes : sequence of str, default ()
        What else the second answer should say, such as what became of names.
    from_mosaics : bool, default False
        Whether samples are pictures that started as mosaics of fitted ones. If a
        classifier tells them from held-out pictures, the verdict says "collages".

    Returns
    -------
    verdict : Verdict

    Examples
    --------
    >>> import numpy as np
    >>> from sliceflow import metrics
    >>> train, held_out = np.random.default_rng(0).normal(size=(2, 400, 2))
    >>> found = metrics.report(train, train, held_out, device="cpu")  # copies
    >>> metrics.judge(found).summary
    'use green, share red'
    """
    use = judge_use(report, from_mosaics)
    sharing = judge_sharing(report, attacks)
    sharing.extend(Finding("note", note) for note in notes)
    return Verdict(
        use=_answer("May I use it?", use),
        sharing=_answer("May I share it?", sharing),
    )


def _answer(question: str, findings: Sequence[Finding]) -> Answer:
    ordered = sorted(findings, key=lambda finding: GRADES.index(finding.grade))
    grade = ordered[0].grade if ordered else "note"
    return Answer(question, grade, tuple(ordered))
