"""Every command and its flags. What it does is in another module, imported when it runs."""

import copy
import inspect
import json
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import typer

from sliceflow import __version__
from sliceflow.cli.failures import Say, exit_code
from sliceflow.cli.settings import NAMES, ONLY

app = typer.Typer(
    name="sliceflow",
    help="New pictures and table rows like those you have: nonparametric generative modelling by "
    "sliced-Wasserstein flows.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 success, 1 the run failed, 2 wrong usage.",
)
Part = Literal["top", "bottom", "left", "right", "border", "center"]


def _option(kind: Any, default: Any, help: str, *names: str, **more: Any) -> tuple[Any, Any]:
    return kind, typer.Option(default, *names, help=help, **more)


def _integer(default: int | None, help: str, *names: str, least: int = 1) -> tuple[Any, Any]:
    kind = int | None if default is None else int
    return kind, typer.Option(default, *names, metavar="<int>", min=least, help=help)


def _path(help: str, kind: type = str) -> tuple[Any, Any]:
    return kind | None, typer.Option(None, metavar="<path>", help=help)


def _repeated(help: str) -> tuple[Any, Any]:
    return list[str] | None, typer.Option(None, metavar="<str>", help=f"{help}; repeatable.")


def _switch(help: str, *names: str) -> tuple[Any, Any]:
    return bool, typer.Option(False, *names, help=help, metavar="")


def _argument(kind: Any, help: str, *default: Any, **more: Any) -> tuple[Any, Any]:
    return kind, typer.Argument(*default, help=help, **more)


_SOURCES = (
    f"{', '.join(NAMES)}; a folder of pictures (subfolders are classes); a .npy or .npz file; "
    "a table (.csv, .parquet, .xlsx)."
)
_PARTS = "The known part of pictures to complete: top, bottom, left, right, border, center."
_FLAGS: dict[str, tuple[Any, Any]] = {  # by name, or by command and name
    "source": _argument(str, _SOURCES, show_default=False),
    "run": _argument(Path, "A run folder, or a .sliceflow file.", show_default=False),
    "info.run": _argument(Path | None, "A run folder, or a .sliceflow file.", None),
    "impute.run": _path("A run, or a .sliceflow file; default: fit the table itself.", Path),
    "runs": _argument(
        list[Path] | None,
        "Run folders, or .sliceflow files; default: those of pictures in runs/.",
        None,
        show_default=False,
    ),
    "picture": _argument(Path, "A picture, a folder, .npy or .npz.", show_default=False),
    "table": _argument(Path, "A table with missing cells.", show_default=False),
    "out": _option(Path, ..., "File or folder to write.", show_default=False),
    "fit.out": _path("Run folder; default: runs/NAME."),
    "quality": _option(str, "standard", "draft, standard, best, or the number of steps per stage."),
    "particles": _integer(None, "Number of particles; default: by the data."),
    "conditional": _switch("Fit pictures by class.", "--conditional"),
    "target": _option(str | None, None, "The column that measures predict; default: the last."),
    "drop": _repeated("Leave this column of a table out"),
    "column": _repeated("The kind of a table's column, such as zip=category"),
    "constraint": _repeated('What holds between columns, such as "start <= end"'),
    "size": _integer(None, "Crop the middle square of pictures and resize it to this side."),
    "observed": _option(Part | None, None, _PARTS, metavar="<part>"),
    "mask": _path("A picture of the known part instead: white is known, black is completed."),
    "mirror": _switch("Also fit the mirror images.", "--mirror"),
    "keep_rows": _switch("Keep the data in the model, to complete any part.", "--keep-rows"),
    "skip_broken": _switch("Leave out pictures that cannot be read.", "--skip-broken"),
    "data_root": _path("Folder of the named sets; default: the variable SLICEFLOW_DATA."),
    "holdout": _option(
        float, 0.1, "Share of your own data held out for measuring.", metavar="<float>", min=0, max=0.9
    ),
    "n": _integer(64, "Number of samples.", "--n", "-n"),
    "inpaint.n": _integer(8, "Completions of each picture.", "--n", "-n"),
    "impute.n": _integer(1, "Number of filled tables, each with other draws.", "--n", "-n"),
    "label": _option(str | None, None, "Only this class."),
    "inpaint.label": _option(str | None, None, "The class that completions should have."),
    "given": _repeated("What all rows of a table have, such as plan=gold"),
    "resize": _switch("Resize pictures to the model's size.", "--resize"),
    "against": _option(str | None, None, "Other data to compare with: a set, a folder, a file."),
    "no_browser": _switch("Only print the address.", "--no-browser"),
    "device": _option(str, "auto", "cpu, cuda, or auto: a GPU if there is one."),
    "seed": _integer(0, "The same seed gives the same result.", least=0),
    "checkpoint_every": _option(float, 60.0, "Seconds between checkpoints.", metavar="<float>", min=0),
    "resume": _switch("Resume an interrupted run.", "--resume"),
    "dry_run": _switch("Show the plan with its memory and time; write nothing.", "--dry-run"),
    "force": _switch("Replace what already exists.", "--force"),
    "json": _switch("Print one JSON object on stdout.", "--json"),
    "quiet": _switch("Print nothing but errors and what was left out of the data.", "--quiet", "-q"),
    "debug": _switch("Show the traceback of an error.", "--debug"),
}


def _command(verb: str, does: str, flags: str, help: str) -> None:
    """Declare a command: `does` names its function, which returns a dict and a text to print."""
    module, _, function = does.partition(".")
    keyword, named = inspect.Parameter.KEYWORD_ONLY, []
    for name in flags.split():
        kind, flag = _FLAGS.get(f"{verb}.{name}") or _FLAGS[name]
        panels = [f"For {what}" for what, names in ONLY.items() if name in names.split()]
        if verb == "fit" and panels:
            flag = copy.copy(flag)
            flag.rich_help_panel = panels[0]
        named.append(inspect.Parameter(name, keyword, default=flag, annotation=kind))

    def command(**values: Any) -> None:
        as_json, quiet, debug = (values.pop(name, False) for name in ("json", "quiet", "debug"))
        with exit_code(flags.split(), quiet=quiet, debug=debug):
            run = getattr(import_module(f"sliceflow.cli.{module}"), function)
            if "say" in inspect.signature(run).parameters:
                values["say"] = Say(quiet or as_json, progress=not quiet)
            found = run(**values)
            if found and (as_json or not quiet):
                shown = json.dumps(found[0], indent=2, ensure_ascii=False) if as_json else found[1]
                print(shown, flush=True)

    command.__name__, command.__doc__ = verb, help
    command.__annotations__ = {p.name: p.annotation for p in named}
    command.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    app.command()(command)


_OUTPUT = "json quiet debug"
_FIT = (
    "source out device seed holdout checkpoint_every resume dry_run force quality particles conditional "
    "observed mask mirror keep_rows size skip_broken data_root target drop column constraint "
)
_INPAINT = """Complete pictures.

A model fitted with --observed or --mask completes that part. One that keeps its pictures (colour
pictures, or --keep-rows) completes any part: pass it here.
"""
for _declared in (
    ("fit", "fit.fit", _FIT + _OUTPUT, "Fit data into a run folder: model, samples, measures, a report."),
    ("sample", "draw.sample", f"run out n label given device seed force {_OUTPUT}",
     "Draw new samples: a .png grid, a folder of pictures, an .npz, a .csv for tables."),
    ("inpaint", "draw.inpaint",
     f"run picture out observed mask label n resize device seed force {_OUTPUT}", _INPAINT),
    ("impute", "draw.impute", f"table out run column drop n device seed force {_OUTPUT}",
     "Fill the missing cells of a table, and leave all others as they are."),
    ("evaluate", "evaluate.evaluate", f"run against data_root device {_OUTPUT}",
     "Measure a run's samples and write its report again; with --against only print the measures."),
    ("info", "info.info", "run json debug",
     "Show what a run or a model file holds; without one: versions, devices, memory, data sets."),
    ("play", "play.play", "runs no_browser device debug",
     "Open a page in the browser: paint points, look at pictures, complete them, fit a table."),
):  # fmt: skip
    _command(*_declared)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"sliceflow {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", help="Show the version.", metavar="", callback=_print_version, is_eager=True
    ),
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
