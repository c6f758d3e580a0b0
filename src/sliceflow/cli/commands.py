"""Every command and its flags. What a command does is in another module, imported when it runs."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from sliceflow import __version__
from sliceflow.cli.failures import with_exit_code

__all__ = ["app"]

SETS = ("digits", "mnist", "fashion-mnist", "cifar10", "celeba")  # listing them imports nothing


class _BareSwitches:
    """A command that shows its switches bare: typer 0.29 by itself writes <bool> behind each."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
        return params


class _Group(_BareSwitches, TyperGroup):
    pass


class _Command(_BareSwitches, TyperCommand):
    pass


app = typer.Typer(
    name="sliceflow",
    cls=_Group,
    help="New pictures and table rows like those you have: nonparametric generative modelling by "
    "sliced-Wasserstein flows.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 success, 1 the run failed, 2 wrong usage.",
)


def _command(function: Any) -> Any:
    return app.command(cls=_Command)(with_exit_code(function))


def _integer(help: str, *names: str, least: int = 1, **more: Any) -> Any:
    return typer.Option(*names, metavar="<int>", min=least, help=help, **more)


def _real(help: str, **more: Any) -> Any:
    return typer.Option(metavar="<float>", min=0, help=help, **more)


def _use_config(context: typer.Context, path: Path | None) -> Path | None:
    """The values of a TOML file become the defaults of the flags, so flags override them."""
    if path is None or context.resilient_parsing:
        return path
    import tomllib

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}") from error
    values = {name.replace("-", "_"): value for name, value in values.items()}
    known = {str(p.name) for p in context.command.params} - {"config", "help"}
    for name in sorted(set(values) - known):
        raise typer.BadParameter(f"{path} has {name!r}, which is none of {', '.join(sorted(known))}")
    context.default_map = {**(context.default_map or {}), **values}
    return path


def _complete_source(incomplete: str) -> list[str]:
    """Named sets, and paths."""
    folder, slash, start = incomplete.rpartition("/")
    try:
        paths = sorted(Path(folder + slash or ".").iterdir())
    except OSError:
        paths = []
    return [name for name in SETS if name.startswith(incomplete)] + [
        folder + slash + path.name + ("/" if path.is_dir() else "")
        for path in paths
        if path.name.startswith(start) and (start.startswith(".") or not path.name.startswith("."))
    ]


def _print_version(asked: bool) -> None:
    if asked:
        print(f"sliceflow {__version__}")
        raise typer.Exit


Run = Annotated[Path, typer.Argument(help="A run folder, or a .sliceflow file.", show_default=False)]
DataRoot = Annotated[
    Path | None, typer.Option(help="Folder of the named sets; default: the variable SLICEFLOW_DATA.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU if there is one.")]
Seed = Annotated[int, _integer("The same seed gives the same result.", least=0)]
Force = Annotated[bool, typer.Option("--force", help="Replace what already exists.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="Show no progress while fitting.")]
Out = Annotated[Path, typer.Option(help="File or folder to write.", show_default=False)]
Part = Literal["top", "bottom", "left", "right", "border", "center"]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@_command
def fit(
    source: Annotated[
        str,
        typer.Argument(
            help="digits, mnist, fashion-mnist, cifar10, celeba; a folder of pictures (subfolders are "
            "classes); a .npy, .npz or .csv file.",
            show_default=False,
            autocompletion=_complete_source,
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Run folder; default: runs/NAME.")] = None,
    quality: Annotated[
        str, typer.Option(help="draft, standard, best, or the number of steps per stage.")
    ] = "standard",
    particles: Annotated[
        int | None, _integer("Number of particles; default: 10,000 or more, by the data.")
    ] = None,
    conditional: Annotated[bool, typer.Option("--conditional", help="Fit by class.")] = False,
    target: Annotated[str | None, typer.Option(help="The label column of a table.")] = None,
    drop: Annotated[
        list[str] | None, typer.Option(metavar="<str>", help="Leave this column out; repeatable.")
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<str>", help="Keep this column, and only rows with a number in it; repeatable."
        ),
    ] = None,
    size: Annotated[int | None, _integer("Crop the middle square and resize it to this side.")] = None,
    observed: Annotated[
        Part | None,
        typer.Option(
            metavar="<part>",
            help="The known part of pictures to complete: top, bottom, left, right, border, center.",
        ),
    ] = None,
    schedule: Annotated[
        str, typer.Option(help='auto, mnist, cifar10, celeba, or text such as "1[1] 4[4,3] 8[5]".')
    ] = "auto",
    amplifier: Annotated[
        float | None,
        _real(
            "How strongly classes are separated; inf gives each class its own maps.",
            show_default="by size",
        ),
    ] = None,
    clusters: Annotated[
        int | None,
        _integer("Clusters of pictures without labels; 1 means none.", show_default="by size"),
    ] = None,
    mirror: Annotated[bool, typer.Option("--mirror", help="Also fit the mirror images.")] = False,
    data_root: DataRoot = None,
    holdout: Annotated[float, _real("Share of your own data held out for measuring.", max=0.9)] = 0.1,
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Leave out pictures that cannot be read.")
    ] = False,
    device: Device = "auto",
    seed: Seed = 0,
    checkpoint_every: Annotated[float, _real("Seconds between checkpoints.")] = 60.0,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with these flags; flags override it.", callback=_use_config, is_eager=True
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show stages, memory and time; write nothing.")
    ] = False,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    no_progress: NoProgress = False,
    debug: Debug = False,
) -> None:
    """Fit data into a run folder: model, samples, an animation, measures, a report."""
    flags = dict(locals())
    from dataclasses import fields

    from sliceflow.cli.fit import fit as run
    from sliceflow.cli.settings import Settings

    flags |= {"drop": tuple(drop or ()), "keep": tuple(keep or ())}
    flags |= {"out": out and str(out), "data_root": data_root and str(data_root)}
    run(
        Settings(**{field.name: flags[field.name] for field in fields(Settings)}),
        resume=resume,
        force=force,
        dry_run=dry_run,
        as_json=json,
        quiet=quiet,
        show_progress=not no_progress,
    )


@_command
def sample(
    run: Run,
    out: Out,
    n: Annotated[int, _integer("Number of samples.", "--n", "-n")] = 64,
    label: Annotated[str | None, typer.Option(help="Only this class.")] = None,
    device: Device = "auto",
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Draw new samples: a .png grid, a folder of pictures, an .npz, a .csv for tables."""
    from sliceflow.cli.sample import sample as draw

    made = draw(run, out, n=n, label=label, device=device, seed=seed, force=force)
    _print(made, f"wrote {n} samples to {out}", json, quiet)


@_command
def inpaint(
    run: Run,
    picture: Annotated[
        Path, typer.Argument(help="A picture, a folder of them, .npy or .npz.", show_default=False)
    ],
    out: Out,
    n: Annotated[int, _integer("Completions of each picture.", "--n", "-n")] = 8,
    resize: Annotated[
        bool, typer.Option("--resize", help="Resize pictures to the model's size.")
    ] = False,
    device: Device = "auto",
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Complete pictures with a model that was fitted with --observed."""
    from sliceflow.cli.sample import inpaint as complete

    made = complete(run, picture, out, n=n, resize=resize, device=device, seed=seed, force=force)
    _print(made, f"wrote {n} completions of each of {made['pictures']} pictures to {out}", json, quiet)


@_command
def evaluate(
    run: Run,
    against: Annotated[
        str | None, typer.Option(help="Other data to compare with: a set, a folder, a file.")
    ] = None,
    data_root: DataRoot = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure a run's samples, each number with its floor; saved in the run, unless --against."""
    from sliceflow.cli.evaluate import evaluate_run

    measures = evaluate_run(run, against, data_root, device)
    _print(measures.as_dict(), measures.text(), json, quiet)


@_command
def report(run: Run, json: Json = False, quiet: Quiet = False, debug: Debug = False) -> None:
    """Rebuild report.html, one self-contained page, from the files of a run."""
    from sliceflow.cli.report import write_report
    from sliceflow.cli.run_folder import RunFolder

    path = write_report(RunFolder(run))
    _print({"report": str(path)}, f"wrote {path}", json, quiet)


@_command
def info(run: Run, json: Json = False, debug: Debug = False) -> None:
    """Show what a run folder or a model file holds."""
    from sliceflow.cli.info import run_info

    found = run_info(run)
    _print(found, _lines(found), json)


@_command
def datasets(data_root: DataRoot = None, json: Json = False, debug: Debug = False) -> None:
    """List the named sets, and which of them are found."""
    from sliceflow.cli.info import datasets_found

    found = datasets_found(data_root)
    lines = [f"looked for in {found['root']}"]
    for one in found["sets"]:
        here = "found" if one["found"] else "missing"
        lines.append(f"{one['name']:<14} {here:<8} {one['pictures']}")
    _print(found, "\n".join(lines), json)


@_command
def doctor(data_root: DataRoot = None, json: Json = False, debug: Debug = False) -> None:
    """Show versions, devices, memory, data sets, and how to install what is missing."""
    from sliceflow.cli.info import system_info

    found = system_info(data_root)
    sets = ", ".join(s["name"] for s in found["data"]["sets"] if s["found"])
    shown = {k: v for k, v in found.items() if k not in ("data", "missing")}
    shown["data sets found"] = f"{sets} (looked for in {found['data']['root']})"
    shown["missing extras"] = found["missing"] or "none"
    _print(found, _lines(shown), json)


@_command
def demo(
    out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/demo"),
    device: Device = "auto",
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    no_progress: NoProgress = False,
    debug: Debug = False,
) -> None:
    """Fit scikit-learn's digits by class, in under a minute, and write the report."""
    from sliceflow.cli.fit import fit as run
    from sliceflow.cli.settings import Settings

    settings = Settings(
        "digits", str(out), conditional=True, quality="draft", particles=5000, device=device
    )
    run(settings, force=force, as_json=json, quiet=quiet, show_progress=not no_progress)
    _print({}, f"open {out / 'report.html'} in a browser", False, quiet or json)


def _print(value: dict[str, Any], text: str, as_json: bool, quiet: bool = False) -> None:
    if as_json:
        print(json_text.dumps(value, indent=2, ensure_ascii=False))
    elif not quiet:
        print(text)


def _lines(value: dict[str, Any], indent: str = "") -> str:
    """A dict as lines, with inner dicts indented."""
    out = []
    for key, item in value.items():
        if isinstance(item, dict):
            out += [f"{indent}{key}:", _lines(item, indent + "  ")]
        elif item not in (None, []):
            shown = ", ".join(map(str, item)) if isinstance(item, list) else item
            shown = f"{shown:.4g}" if isinstance(shown, float) else shown
            out.append(f"{indent}{key}: {shown}")
    return "\n".join(out)
