"""The run of a model of a table: its samples, and what they are compared with."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sliceflow.cli import report
from sliceflow.cli.data import TableInput, make_table_flow
from sliceflow.cli.fitted_run import Evidence, FittedRun
from sliceflow.cli.progress import progress_bars
from sliceflow.cli.results import Result
from sliceflow.cli.run_folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd

    from sliceflow import TableFlow
    from sliceflow.app.server import JsonObject
    from sliceflow.metrics import Attacks, Report
    from sliceflow.metrics.rules import KeptRule

# A category with more levels is probably a code or a place, which nobody would predict.
_MAX_LEVELS_OF_TARGET = 20
# Names of columns that hold codes, whatever their cells look like: zip, user_id, PLZ.
_NAME_OF_CODE = re.compile(
    r"(^|[\W_])(zip|zipcode|postal|postcode|plz|id|ids|code|key|uuid|phone|tel)([\W_]|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True, eq=False)
class TableRun(FittedRun[TableInput, "pd.DataFrame"]):
    """A fitted model of a table, its data, and where messages go."""

    model: TableFlow

    def draw_samples(self) -> pd.DataFrame:
        """As many samples as fitted rows."""
        n = len(self.train.fitted_rows)
        return self.model.sample(n, random_state=self.settings.seed)

    def write_samples(self, samples: pd.DataFrame, folder: RunFolder) -> None:
        """Write samples like the table that was read, and the history."""
        from sliceflow.estimators.tables.files import write_table

        write_table(samples, folder / "samples.csv", self.train.dialect)
        self.output.say(f"wrote {folder / 'samples.csv'}")
        folder.write_history(self.model.history_)

    def measure(self, samples: pd.DataFrame, attacks: Attacks | None = None) -> Result:
        """Measure samples of the model, beside held-out rows.

        If the model was fitted to all rows, the measures are those of a second fit, as
        fine as the first, without the held-out rows.
        """
        run = self._with_target()
        notes = _notes_on_sharing(self.model)
        if attacks is None:
            notes.append("sliceflow evaluate --attack attacks them")
        evidence = Evidence(attacks, tuple(notes))
        if run.train.full_table is None or run.held_out is None:
            return run.measure_and_judge(samples, evidence=evidence)
        n_held_out = run.held_out.n_rows
        run.output.say(
            f"fitting again without the {n_held_out} held-out rows, "
            "to measure with them"
        )
        second_run = run._fitted_without_held_out_rows()
        second_samples = second_run.draw_samples()
        rules = _model_rules(second_run.model, second_samples, run.train.n_rows)
        note = "measured by a second fit, without the held-out rows"
        return second_run.measure_and_judge(
            second_samples, note, evidence._replace(rules=rules)
        )

    def _with_target(self) -> TableRun:
        """The run with a column to predict, chosen if the settings name none."""
        if self.settings.target is not None:
            return self
        target = choose_target(self.model.columns_)
        return replace(self, settings=replace(self.settings, target=target))

    def _fitted_without_held_out_rows(self) -> TableRun:
        """The run of a second model, as fine as the first, of the training rows."""
        train = self.train
        model = make_table_flow(self.settings, train.free_text)
        model.set_params(tree_settings=self.model.plan_.tree_settings)
        model.fit(train.x, listeners=progress_bars(self.output))
        return replace(self, model=model, train=replace(train, full_table=None))

    def _compare(self, samples: pd.DataFrame, held_out: TableInput) -> Report:
        from sliceflow import metrics
        from sliceflow.devices import resolve_device

        # Samples are without the columns that were dropped.
        names = [name for name in self.train.x.columns if name in samples]
        return metrics.report(
            samples[names],
            self.train.x[names],
            held_out.x[names],
            y=self.settings.target,
            kind="tables",
            device=str(resolve_device(self.settings.device)),
            notify=self.output.say,
        )

    def describe(self, samples: pd.DataFrame) -> JsonObject:
        """The first samples, and a plot for every column."""
        return report.describe_columns(
            self.train.fitted_rows, samples, self.model.kinds_
        )


def _model_rules(
    model: TableFlow, samples: pd.DataFrame, n_rows: int
) -> tuple[KeptRule, ...]:
    """The rules that a model of n rows found, and the shares of samples that keep them.

    The shares of real rows are shares of the fitted rows.
    """
    from sliceflow.metrics.rules import KeptRule

    shares = model.rules_kept(samples)
    rules = []
    for rule in model.rules_:
        rules.append(KeptRule(rule.text, rule.share, shares[rule.text], n_rows))
    return tuple(rules)


def _notes_on_sharing(model: TableFlow) -> list[str]:
    """Facts about a model of a table to know before its samples are shared."""
    notes = ["share samples, not the model file: it contains your rows"]
    for name, kind in model.kinds_.items():
        if kind == "identifier":
            notes.append(f"the column {name} tells who it is; its values are made up")
    return notes


def choose_target(columns: pd.DataFrame) -> str | None:
    """The column that utility predicts, from a model's `columns_`; None if none suits.

    It is the last one that somebody would want to predict: neither an identifier nor a
    code, such as a zip code, nor a category of many levels, nor a date.
    """
    for kind, name, n_distinct in zip(
        columns["kind"][::-1],
        columns["column"][::-1],
        columns["distinct"][::-1],
        strict=True,
    ):
        is_label = kind in ("boolean", "category", "ordered")
        is_small_label = is_label and n_distinct <= _MAX_LEVELS_OF_TARGET
        is_number = kind in ("continuous", "integer")
        if (is_small_label or is_number) and not _NAME_OF_CODE.search(name):
            return str(name)
    return None
