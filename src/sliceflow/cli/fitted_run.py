"""What follows a fit: samples, their measures beside real rows, the report."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from sliceflow.cli import report
from sliceflow.cli.against import count_common_rows, read_against
from sliceflow.cli.data import BaseInput
from sliceflow.cli.failures import Output
from sliceflow.cli.results import Result
from sliceflow.cli.run_folder import RunFolder
from sliceflow.cli.settings import Settings

if TYPE_CHECKING:
    from sliceflow.app.server import JsonObject
    from sliceflow.metrics import Attacks, Report
    from sliceflow.metrics.rules import KeptRule
    from sliceflow.metrics.table_comparison import ColumnPair

# With fewer held-out rows than this, no measure is meaningful.
MIN_HELD_OUT_ROWS = 10
# evaluation.json lists this many of the worst pairs of columns, beside those of the
# heat maps.
_MAX_WORST_PAIRS = 50
# evaluation.json lists this many rules of a table, those that are kept least.
_MAX_RULES = 50

InputT = TypeVar("InputT", bound=BaseInput)
SamplesT = TypeVar("SamplesT")


class Evidence(NamedTuple):
    """The facts that a verdict needs beside a report."""

    attacks: Attacks | None = None
    notes: tuple[str, ...] = ()  # facts to know before samples are shared
    rules: tuple[KeptRule, ...] = ()  # rules that the model found
    from_mosaics: bool = False  # whether samples started as mosaics of fitted pictures


NO_EVIDENCE = Evidence()


@dataclass(frozen=True, eq=False)
class FittedRun(ABC, Generic[InputT, SamplesT]):
    """A fitted model, its data, and where messages go.

    `PictureRun` and `TableRun` have the model, and know what samples of it are.
    """

    settings: Settings
    train: InputT
    held_out: InputT | None
    output: Output

    @abstractmethod
    def draw_samples(self) -> SamplesT:
        """As many samples as training rows, of pictures 2,000 at most."""

    @abstractmethod
    def write_samples(self, samples: SamplesT, folder: RunFolder) -> None:
        """Write samples into the folder of the run, and the history of the fit."""

    @abstractmethod
    def measure(self, samples: SamplesT, attacks: Attacks | None = None) -> Result:
        """Measure samples of the model, beside held-out rows."""

    @abstractmethod
    def _compare(self, samples: SamplesT, held_out: InputT) -> Report:
        """The report on samples beside the training and the held-out rows."""

    @abstractmethod
    def describe(self, samples: SamplesT) -> JsonObject:
        """What the page of the report shows of the samples."""

    def measure_and_report(
        self, folder: RunFolder, attacks: Attacks | None = None
    ) -> Result:
        """Draw samples, measure them, and write all files but the model.

        The samples are written first, for users who do not want to wait for the
        measures.
        """
        self.output.say("drawing samples")
        samples = self.draw_samples()
        self.write_samples(samples, folder)
        if self.settings.no_measure:
            quoted = shlex.quote(str(folder.path))
            measures = _no_measures(
                f"not measured; sliceflow evaluate {quoted} does it"
            )
        else:
            measures = self.measure(samples, attacks)
        folder.write_json("evaluation.json", measures.json)
        config = folder.read_json("config.json")
        animation = folder / "evolution.gif"
        page = report.render(
            config, measures.json, self.train, self.describe(samples), animation
        )
        folder.write_text("report.html", page)
        return measures

    def measure_against(self, against: str, data_root: str | None) -> Result:
        """Compare samples with other data in place of the held-out rows."""
        fitted = self.train.fitted_data
        held_out = read_against(self.settings, against, data_root, fitted)
        note = f"held-out rows are those of {against}"
        n_fitted = count_common_rows(held_out, fitted)
        if n_fitted:  # fitted rows say nothing about new ones
            note += f", of which {n_fitted} were fitted"
        # A model that completes pictures completes what the run itself held out.
        samples = self.draw_samples()
        compared_run = replace(self, train=fitted, held_out=held_out)
        return compared_run.measure_and_judge(samples, note)

    def measure_and_judge(
        self,
        samples: SamplesT,
        note: str = "",
        evidence: Evidence = NO_EVIDENCE,
    ) -> Result:
        """Compare samples with held-out rows, and judge them by all evidence.

        `note` says which rows were measured.
        """
        from sliceflow import metrics

        n_held_out = 0 if self.held_out is None else self.held_out.n_rows
        if self.held_out is None or n_held_out < MIN_HELD_OUT_ROWS:
            return _not_measured(n_held_out)
        compared = _with_rules(self._compare(samples, self.held_out), evidence.rules)
        verdict = metrics.judge(
            compared,
            evidence.attacks,
            evidence.notes,
            from_mosaics=evidence.from_mosaics,
        )
        json = compared.to_dict()
        _limit_details(json["details"], self.train.columns)
        json["verdict"] = verdict.to_dict()
        json["note"] = compared.note
        text = f"{verdict}\n{compared.table}"
        if evidence.attacks is not None:
            json["attacks"] = evidence.attacks.to_dict()
            text += f"\n\n{evidence.attacks}"
        if note:
            json["note"] += f"; {note}"
            text += f"\n{note}"
        return Result(json, text)


def _limit_details(details: JsonObject, columns: Sequence[str]) -> None:
    """Leave pairs and rules out of evaluation.json that nobody would read."""
    if details.get("pairs"):
        details["pairs"] = _pairs_to_report(details["pairs"], columns)
    if "rules" in details:
        details["rules"] = details["rules"][:_MAX_RULES]


def _with_rules(found: Report, rules: Sequence[KeptRule]) -> Report:
    """A report that lists the rules of a model first, and no rule twice."""
    if not rules:
        return found
    texts = {rule.text for rule in rules}
    others = [r for r in found.details.get("rules", []) if r.text not in texts]
    details = found.details.copy()
    details["rules"] = [*rules, *others]
    return replace(found, details=details)


def _not_measured(n_held_out: int) -> Result:
    """The note in place of measures if too few rows were held out."""
    note = (
        f"not measured: {n_held_out} rows were held out, "
        f"and {MIN_HELD_OUT_ROWS} are needed"
    )
    if n_held_out == 0:
        note += " (sliceflow fit --holdout, for 100 rows or more)"
    return _no_measures(note)


def _no_measures(note: str) -> Result:
    """Measures without numbers: a note that says why there are none."""
    return Result({"metrics": [], "details": {}, "verdict": None, "note": note}, note)


def _pairs_to_report(
    pairs: list[ColumnPair], columns: Sequence[str]
) -> list[ColumnPair]:
    """The worst pairs of columns, which come first, and all pairs of the heat maps."""
    in_heat_maps = set(columns[: report.MAX_HEAT_MAP_COLUMNS])
    kept = []
    for i, pair in enumerate(pairs):
        if i < _MAX_WORST_PAIRS or {pair.first, pair.second} <= in_heat_maps:
            kept.append(pair)
    return kept
