"""Every command and its flags.

The flags of a command are the parameters of its function; help texts are here. Two
parameters are no flags: ``output`` gets an `Output` to print to, and ``settings`` gets
`Settings`, each field of which is a flag.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args

import typer

from sliceflow import __version__
from sliceflow.cli import evaluate, fit, impute, info, inpaint, play, sample
from sliceflow.cli.failures import Output, UsageError, exit_on_error
from sliceflow.cli.results import Result
from sliceflow.cli.settings import DATASET_NAMES, FLAGS_FOR, Settings

app = typer.Typer(
    name="sliceflow",
    help="New pictures and table rows like those you have, without a neural network: "
    "pictures by sliced-Wasserstein flows, tables by a chain of one-dimensional "
    "conditional transports on trees.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 success, 1 the command failed, 2 wrong usage.",
)
# Help for what is given without a flag, by name; "evaluate.run" is that of evaluate.
_ARGUMENTS = {
    "evaluate.run": "A run folder.",
    "source": f"{', '.join(DATASET_NAMES)}; a folder of pictures (subfolders are "
    "classes); an .npy or .npz file of pictures; "
    "a table (.csv, .tsv, .parquet, .xlsx).",
    "run": "A run folder, or a .sliceflow file.",
    "runs": "Run folders, or .sliceflow files; default: those of pictures in runs/.",
    "picture": "A picture, a folder of pictures, an .npy or .npz file.",
    "run_and_table": "A run of a table, or a .sliceflow file, if there is one; then a "
    "table with missing cells (.csv, .tsv, .parquet, .xlsx).",
}
# Help for flags, by name; "fit.out" is the flag --out of fit alone.
_FLAGS = {
    "out": "File or folder to write.",
    "sample.out": "File or folder to write; - prints rows of a table.",
    "impute.out": "File to write; - prints the table.",
    "fit.out": "Run folder; default: runs/NAME.",
    "quality": "draft, standard or best: more steps in each stage.",
    "steps_per_stage": "The number of steps in each stage; default: by --quality.",
    "particles": "Number of particles; default: by the data.",
    "conditional": "Fit pictures by class; default: if they have labels, as those in "
    "subfolders do.",
    "target": "The column that the measure utility predicts; default: the last that "
    "is no code, date or identifier.",
    "drop": "Leave this column of a table out; repeatable.",
    "column": "The kind of a table's column, such as zip=category; repeatable.",
    "missing": "A word for missing cells, such as 'not asked'; repeatable.",
    "constraint": 'What holds between columns, such as "start <= end"; repeatable.',
    "size": "Crop the middle square of pictures and resize it to this side.",
    "known": "The known part of pictures to complete: top, bottom, left, right, "
    "border, center, or a picture in which white is known and black is completed.",
    "mirror": "Also fit the mirror images.",
    "save_rows": "Save the pictures with the model, to complete any part.",
    "skip_broken": "Leave out pictures that cannot be read.",
    "data_root": "Folder of the named sets; default: the variable SLICEFLOW_DATA.",
    "holdout": "Share of your own data held out for measuring.",
    "n": "Number of samples.",
    "inpaint.n": "Completions of each picture.",
    "impute.n": "Number of filled tables, each with other draws.",
    "label": "Only this class; for a table use --given.",
    "inpaint.label": "The class that completions should have.",
    "given": "What all rows of a table have, such as plan=gold or 'net>100'; "
    "repeatable.",
    "resize": "Resize pictures to the model's size.",
    "against": "Other data to compare with: a set, a folder, a file.",
    "attack": "Attack a model of one half of a table: do its samples tell which rows "
    "were fitted?",
    "shadows": "Models that --attack fits to learn how outliers show; 0 for none.",
    "port": "Port of the page's server; default: any that is free.",
    "no_browser": "Only print the address.",
    "device": "cpu, cuda, or auto: a GPU if there is one.",
    "fit.device": "cpu, cuda, or auto: a GPU if there is one. "
    "Tables are always fitted on the CPU.",
    "seed": "The same seed gives the same result.",
    "no_measure": "Draw samples, but do not measure them; sliceflow evaluate does it "
    "later.",
    "checkpoint_every": "Seconds between checkpoints.",
    "resume": "Resume an interrupted run; the fit of a table starts again.",
    "dry_run": "Show the plan with its memory and time; write nothing.",
    "force": "Replace what already exists.",
    "json": "Print one JSON object on stdout.",
    "quiet": "Print nothing but errors, warnings and what was left out of the data.",
    "debug": "Show the traceback of an error.",
}
_SHORT_FLAGS = {"n": "-n", "quiet": "-q"}
# What the help shows as the value of a flag, where its type does not say it.
_METAVARS = {
    "known": "<part or path>",
    "quality": "<quality>",
    "data_root": "<path>",
    "out": "<path>",
    "run_and_table": "[RUN] TABLE",
}
_MAX_HOLDOUT = 0.9  # something must be left to fit
_MAX_PORT = 65_535  # the largest port of TCP


def _as_typer_parameter(
    command: str, parameter: inspect.Parameter
) -> inspect.Parameter:
    """A parameter of a function as an argument or a flag of its command."""
    name = parameter.name
    default = parameter.default
    if default is parameter.empty:
        default = ...  # typer's word for "required"
    is_flag = name not in _ARGUMENTS or f"{command}.{name}" in _FLAGS
    if is_flag:
        typer_default = _typer_option(command, name, default, parameter.annotation)
    else:
        typer_default = typer.Argument(
            default,
            help=_ARGUMENTS.get(f"{command}.{name}") or _ARGUMENTS[name],
            show_default=False,
            metavar=_METAVARS.get(name),
        )
    return parameter.replace(default=typer_default, kind=parameter.KEYWORD_ONLY)


def _typer_option(command: str, name: str, default: object, annotation: object) -> Any:
    """The flag of a command, as typer takes it for the default of a parameter."""
    flags = [f"--{name.replace('_', '-')}"]
    if bool in get_args(annotation):  # or None, which neither asks for
        flags = [f"{flags[0]}/--no-{name.replace('_', '-')}"]
    if name in _SHORT_FLAGS:
        flags.append(_SHORT_FLAGS[name])
    return typer.Option(
        default,
        *flags,
        help=_FLAGS.get(f"{command}.{name}") or _FLAGS[name],
        show_default=default is not ...,
        rich_help_panel=_help_panel(command, name),
        **_value_options(name, annotation),
    )


def _help_panel(command: str, name: str) -> str | None:
    """The box of the help in which a flag stands; None for the first box."""
    if command == "fit":
        for data, names in FLAGS_FOR.items():
            if name in names:
                return f"For {data}"
    return None


def _value_options(name: str, annotation: object) -> dict[str, Any]:
    """What typer needs to know of the value of a flag: how it is shown, its bounds."""
    types = {annotation, *get_args(annotation)}
    if bool in types:
        return {"metavar": ""}
    if list[str] in types:
        return {"metavar": "<str>"}
    if float in types:
        maximum = _MAX_HOLDOUT if name == "holdout" else None
        return {"metavar": "<float>", "min": 0, "max": maximum}
    if int in types:
        minimum = 0 if name in ("seed", "shadows") else 1
        maximum = _MAX_PORT if name == "port" else None
        return {"metavar": "<int>", "min": minimum, "max": maximum}
    return {"metavar": _METAVARS.get(name)}


def _add_command(function: Callable[..., Result | None], *output_flags: str) -> None:
    """Declare a command: its name and help are those of a function.

    Parameters
    ----------
    function : does the work, and returns what is printed
    output_flags : which of "json", "quiet" and "debug" the command has
    """
    name = function.__name__
    parameters = _parameters_of_command(function, output_flags)

    def command(**values: Any) -> None:
        _run(function, values, parameters)

    # Typer reads from the signature which arguments and flags a command has.
    typer_parameters = [
        _as_typer_parameter(name, parameter) for parameter in parameters.values()
    ]
    command.__annotations__ = {p.name: p.annotation for p in typer_parameters}
    signature = inspect.Signature(typer_parameters)
    command.__signature__ = signature  # type: ignore[attr-defined]
    app.command(name, help=inspect.getdoc(function))(command)


def _run(
    function: Callable[..., Result | None],
    values: Mapping[str, Any],
    flags: Collection[str],
) -> None:
    """Run a command, and print its result.

    Parameters
    ----------
    function : does the work
    values : what the user gave for arguments and flags, by name
    flags : the names of all arguments and flags
    """
    as_json = values.get("json", False)
    quiet = values.get("quiet", False)
    with exit_on_error(flags, debug=values.get("debug", False)):
        if as_json and str(values.get("out")) == "-":
            raise UsageError("--json and --out - both print", "choose one")
        output = Output(silent=quiet or as_json, progress=not quiet)
        result = function(**_arguments_of(function, values, output))
        if result is not None:
            _print_result(result, as_json, quiet)


def _arguments_of(
    function: Callable[..., Result | None], values: Mapping[str, Any], output: Output
) -> dict[str, object]:
    """The arguments with which a command calls its function, by name."""
    arguments: dict[str, object] = {}
    for name in inspect.signature(function).parameters:
        if name == "output":
            arguments[name] = output
        elif name == "settings":
            settings = {field.name: values[field.name] for field in fields(Settings)}
            arguments[name] = Settings(**settings)
        else:
            arguments[name] = values[name]
    return arguments


def _parameters_of_command(
    function: Callable[..., Result | None], output_flags: Sequence[str]
) -> dict[str, inspect.Parameter]:
    """The arguments and flags of a command, by name."""
    parameters = dict(inspect.signature(function, eval_str=True).parameters)
    parameters.pop("output", None)
    if parameters.pop("settings", None):
        settings = inspect.signature(Settings, eval_str=True).parameters
        parameters = dict(settings) | parameters
    for flag in output_flags:
        parameters[flag] = inspect.Parameter(
            flag, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=bool
        )
    return parameters


def _print_result(result: Result, as_json: bool, quiet: bool) -> None:
    if as_json:
        print(json.dumps(result.json, indent=2, ensure_ascii=False), flush=True)
    elif not quiet:
        print(result.text, flush=True)


_add_command(fit.fit, "json", "quiet", "debug")
_add_command(sample.sample, "json", "quiet", "debug")
_add_command(inpaint.inpaint, "json", "quiet", "debug")
_add_command(impute.impute, "json", "quiet", "debug")
_add_command(evaluate.evaluate, "json", "quiet", "debug")
_add_command(info.info, "json", "debug")
_add_command(play.play, "debug")


def _print_version(is_asked_for: bool) -> None:
    if is_asked_for:
        print(f"sliceflow {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _print_help(
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
    """What ``sliceflow`` does without a command."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
