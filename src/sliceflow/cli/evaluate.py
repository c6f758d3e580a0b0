"""``sliceflow evaluate``: measure a run again, and attack a model of half its table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sliceflow.cli.data import Input, make_table_flow, read_data
from sliceflow.cli.failures import CommandError, Output, UsageError
from sliceflow.cli.fitted_run import MIN_HELD_OUT_ROWS
from sliceflow.cli.progress import progress_bars
from sliceflow.cli.results import Result
from sliceflow.cli.run_folder import RunFolder, load_model
from sliceflow.cli.run_kinds import as_fitted_run
from sliceflow.cli.settings import DATASET_NAMES, TABLE, Settings
from sliceflow.cli.table_run import TableRun, choose_target
from sliceflow.errors import HintedError
from sliceflow.wording import format_duration

if TYPE_CHECKING:
    from sliceflow.metrics import Attacks

# What attacks cost beside fits, measured on 2 busy cores of an x86-64 machine.
_SECONDS_PER_ATTACKED_ROW = 0.02
# Shadow models of an attack, as many as `metrics.attack` takes by default.
N_SHADOWS = 60
# With fewer shadow models, results are noise; `metrics.attack` takes no fewer.
_MIN_SHADOWS = 8


def evaluate(
    output: Output,
    run: Path,
    against: str | None = None,
    attack: bool = False,
    shadows: int = N_SHADOWS,
    data_root: str | None = None,
    device: str = "auto",
) -> Result:
    """Measure a run's samples again, and write its report again.

    With --against the measures are only printed. With --attack a model of one half of
    the table is attacked, too: do its samples tell which rows it was fitted to?
    """
    folder = RunFolder(run)
    folder.check_fitted()
    settings = replace(Settings.from_folder(folder), device=device, no_measure=False)
    if attack:
        _check_attack(settings, against, shadows)
    uses_named_set = settings.source in DATASET_NAMES or against in DATASET_NAMES
    if data_root is not None and not uses_named_set:
        fact = f"--data-root is for named sets, not for {settings.source}"
        raise UsageError(fact, "leave it out")
    output.say(f"reading {settings.source}")
    train, held_out = _read_again(settings, data_root)
    model = load_model(run, device)
    fitted_run = as_fitted_run(settings, model, train, held_out, output)
    if against is not None:
        return fitted_run.measure_against(against, data_root)
    attacks = None
    if attack and isinstance(fitted_run, TableRun):
        _check_held_out(held_out)
        _announce_attack(folder, train, shadows, output)
        attacks = attack_half(fitted_run, shadows)
    return fitted_run.measure_and_report(folder, attacks)


def _check_attack(settings: Settings, against: str | None, shadows: int) -> None:
    """Refuse --attack for what cannot be attacked."""
    if settings.kind != TABLE:
        fact = f"--attack is for tables, not for {settings.source}"
        raise UsageError(fact, "leave it out")
    if against is not None:
        fact = "--attack and --against exclude each other"
        raise UsageError(fact, "choose one")
    if 0 < shadows < _MIN_SHADOWS:
        fact = f"--shadows {shadows} are too few to tell anything"
        raise UsageError(fact, f"pass 0, or {_MIN_SHADOWS} or more")


def _check_held_out(held_out: Input | None) -> None:
    """Refuse --attack where nothing is measured."""
    if held_out is None or held_out.n_rows < MIN_HELD_OUT_ROWS:
        fact = "--attack is for runs that are measured, and too few rows were held out"
        raise CommandError(fact, "sliceflow fit --holdout, for 100 rows or more")


def _announce_attack(
    folder: RunFolder, train: Input, shadows: int, output: Output
) -> None:
    """Print what an attack does, and about how long it takes."""
    n_rows = len(train.fitted_rows)
    text = f"attacking a model of {n_rows // 2} rows"
    if shadows:
        text += f", and {shadows} shadow models"
    fit_seconds = folder.read_json("config.json").get("seconds", 0) / 2
    seconds = (1 + shadows) * fit_seconds + _SECONDS_PER_ATTACKED_ROW * n_rows
    output.say(f"{text}: about {format_duration(seconds)} (--shadows 0 is quick)")


def attack_half(run: TableRun, shadows: int) -> Attacks:
    """Attack a model of one half of the table; the other half is not fitted.

    A model of fewer rows reveals more of each row, so this overstates the risk of the
    run.
    """
    from sliceflow import metrics

    settings = run.settings
    model = run.model
    train = run.train
    shuffled = train.fitted_rows.sample(frac=1, random_state=settings.seed)
    half = len(shuffled) // 2
    fitted = shuffled.iloc[:half].reset_index(drop=True)
    others = shuffled.iloc[half:].reset_index(drop=True)
    attacked = make_table_flow(settings, train.free_text).set_params(
        tree_settings=model.plan_.tree_settings
    )
    attacked.fit(fitted, listeners=progress_bars(run.output))
    return metrics.attack(
        attacked,
        fitted,
        others,
        hidden=settings.target or choose_target(model.columns_),
        n_shadows=shadows,
        random_state=settings.seed,
        device=settings.device,
        notify=run.output.say,
    )


def _read_again(
    settings: Settings, data_root: str | None
) -> tuple[Input, Input | None]:
    """The data of a run that was fitted before."""
    try:
        return read_data(settings, data_root)
    except (HintedError, ValueError, OSError) as error:
        reason = error.fact if isinstance(error, HintedError) else error
        hint = (
            "run this where the run was made, with its data in place "
            "(--data-root for a named set)"
        )
        fact = f"the data of the run cannot be read again: {reason}"
        raise CommandError(fact, hint) from error
