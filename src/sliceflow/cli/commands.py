"""Every command and its flags: those are the parameters of a function, with a help text for each."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any, get_args

import typer

from sliceflow import __version__
from sliceflow.cli import draw, evaluate, fit, info, play
from sliceflow.cli.failures import Say, exit_code
from sliceflow.cli.settings import NAMES, ONLY, Settings

app = typer.Typer(
    name="sliceflow",
    help="New pictures and table rows like those you have: nonparametric generative modelling by "
    "sliced-Wasserstein flows.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 success, 1 the run failed, 2 wrong usage.",
)
_ARGUMENTS = {  # what is given without a flag
    "source": f"{', '.join(NAMES)}; a folder of pictures (subfolders are classes); a .npy or .npz file; "
    "a table (.csv, .parquet, .xlsx).",
    "run": "A run folder, or a .sliceflow file.",
    "runs": "Run folders, or .sliceflow files; default: those of pictures in runs/.",
    "picture": "A picture, a folder, .npy or .npz.",
    "table": "A table with missing cells.",
}
_FLAGS = {  # by name, or by command and name
    "impute.run": "A run, or a .sliceflow file; default: fit the table itself.",
    "out": "File or folder to write.",
    "fit.out": "Run folder; default: runs/NAME.",
    "quality": "draft, standard, best, or the number of steps per stage.",
    "particles": "Number of particles; default: by the data.",
    "conditional": "Fit pictures by class.",
    "target": "The column that measures predict; default: the last.",
    "drop": "Leave this column of a table out; repeatable.",
    "column": "The kind of a table's column, such as zip=category; repeatable.",
    "constraint": 'What holds between columns, such as "start <= end"; repeatable.',
    "size": "Crop the middle square of pictures and resize it to this side.",
    "observed": "The known part of pictures to complete: top, bottom, left, right, border, center.",
    "mask": "A picture of the known part instead: white is known, black is completed.",
    "mirror": "Also fit the mirror images.",
    "keep_rows": "Keep the data in the model, to complete any part.",
    "skip_broken": "Leave out pictures that cannot be read.",
    "data_root": "Folder of the named sets; default: the variable SLICEFLOW_DATA.",
    "holdout": "Share of your own data held out for measuring.",
    "n": "Number of samples.",
    "inpaint.n": "Completions of each picture.",
    "impute.n": "Number of filled tables, each with other draws.",
    "label": "Only this class.",
    "inpaint.label": "The class that completions should have.",
    "given": "What all rows of a table have, such as plan=gold; repeatable.",
    "resize": "Resize pictures to the model's size.",
    "against": "Other data to compare with: a set, a folder, a file.",
    "no_browser": "Only print the address.",
    "device": "cpu, cuda, or auto: a GPU if there is one.",
    "seed": "The same seed gives the same result.",
    "checkpoint_every": "Seconds between checkpoints.",
    "resume": "Resume an interrupted run.",
    "dry_run": "Show the plan with its memory and time; write nothing.",
    "force": "Replace what already exists.",
    "json": "Print one JSON object on stdout.",
    "quiet": "Print nothing but errors, warnings and what was left out of the data.",
    "debug": "Show the traceback of an error.",
}
_SHORT = {"n": "-n", "quiet": "-q"}
_METAVARS = {
    "observed": "<part>",
    "mask": "<path>",
    "data_root": "<path>",
    "out": "<path>",
}


def _typer_parameter(verb: str, parameter: inspect.Parameter) -> inspect.Parameter:
    """A parameter of a function as an argument or a flag of its command."""
    name = parameter.name
    kind = parameter.annotation
    default = ... if parameter.default is parameter.empty else parameter.default
    own = _FLAGS.get(f"{verb}.{name}")
    if name in _ARGUMENTS and own is None:
        flag = typer.Argument(default, help=_ARGUMENTS[name], show_default=False)
        return parameter.replace(
            default=flag, annotation=kind, kind=parameter.KEYWORD_ONLY
        )
    kinds = {kind, *get_args(kind)}
    how = dict[str, Any](metavar=_METAVARS.get(name))
    if kind is bool or list[str] in kinds:
        how["metavar"] = "" if kind is bool else "<str>"
    elif float in kinds:
        how = {
            "metavar": "<float>",
            "min": 0,
            "max": 0.9 if name == "holdout" else None,
        }
    elif int in kinds:
        how = {"metavar": "<int>", "min": 0 if name == "seed" else 1}
    if verb == "fit":
        how["rich_help_panel"] = next(
            (f"For {what}" for what, ns in ONLY.items() if name in ns.split()), None
        )
    names = [f"--{name.replace('_', '-')}", *([_SHORT[name]] if name in _SHORT else [])]
    flag = typer.Option(
        default,
        *names,
        help=own or _FLAGS[name],
        show_default=default is not ...,
        **how,
    )
    return parameter.replace(default=flag, kind=parameter.KEYWORD_ONLY)


def _command(run: Callable[..., Any], *output: str) -> None:
    """Declare a command; its function returns a dict and a text to print, or nothing."""
    verb = run.__name__
    asked = dict(inspect.signature(run, eval_str=True).parameters)
    speaks = asked.pop("say", None) is not None
    if asked.pop("flags", None):  # of a fit: its settings
        asked = dict(inspect.signature(Settings, eval_str=True).parameters) | asked
    for name in output:
        asked[name] = inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=bool
        )
    parameters = [_typer_parameter(verb, parameter) for parameter in asked.values()]

    def command(**values: Any) -> None:
        as_json, quiet, debug = (
            values.pop(name, False) for name in ("json", "quiet", "debug")
        )
        with exit_code(asked, debug=debug):
            if speaks:
                values["say"] = Say(quiet or as_json, progress=not quiet)
            found = run(**values)
            if found and (as_json or not quiet):
                shown = (
                    json.dumps(found[0], indent=2, ensure_ascii=False)
                    if as_json
                    else found[1]
                )
                print(shown, flush=True)

    command.__name__ = verb
    command.__doc__ = run.__doc__
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    app.command()(command)


for _run in (fit.fit, draw.sample, draw.inpaint, draw.impute, evaluate.evaluate):
    _command(_run, "json", "quiet", "debug")
_command(info.info, "json", "debug")
_command(play.play, "debug")


def _print_version(asked: bool) -> None:
    if asked:
        print(f"sliceflow {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(
        False,
        "--version",
        help="Show the version.",
        metavar="",
        callback=_print_version,
        is_eager=True,
    ),
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
