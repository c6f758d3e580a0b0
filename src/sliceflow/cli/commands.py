"""Every command and its flags. What a command does is in another module, imported when it runs."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Any, Literal

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


def _option(default: Any, help: str, **more: Any) -> Any:
    return typer.Option(default, help=help, **more)


def _integer(default: int | None, help: str, *names: str, least: int = 1, **more: Any) -> Any:
    return typer.Option(default, *names, metavar="<int>", min=least, help=help, **more)


def _real(default: float | None, help: str, **more: Any) -> Any:
    return typer.Option(default, metavar="<float>", min=0, help=help, **more)


def _switch(help: str, *names: str, **more: Any) -> Any:
    return typer.Option(False, *names, help=help, **more)


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
        raise typer.BadParameter(f"{path} has {name!r}, which is not one of {', '.join(sorted(known))}")
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


_RUN: Any = typer.Argument(help="A run folder, or a .sliceflow file.", show_default=False)
_DATA_ROOT = _option(None, "Folder of the named sets; default: the variable SLICEFLOW_DATA.")
_DEVICE = _option("auto", "cpu, cuda, or auto: a GPU if there is one.")
_SEED = _integer(0, "The same seed gives the same result.", least=0)
_FORCE = _switch("Replace what already exists.", "--force")
_JSON = _switch("Print one JSON object on stdout.", "--json")
_DEBUG = _switch("Show the traceback of an error.", "--debug")
_QUIET = _switch("Print nothing but errors.", "--quiet", "-q")
_NO_PROGRESS = _switch("Show no progress while fitting.", "--no-progress")
_OUT = _option(..., "File or folder to write.", show_default=False)
_SOURCE: Any = typer.Argument(
    help="digits, mnist, fashion-mnist, cifar10, celeba; a folder of pictures (subfolders are "
    "classes); a .npy or .npz file; a table (.csv, .parquet, .xlsx).",
    show_default=False,
    autocompletion=_complete_source,
)
_CONFIG = _option(
    None, "TOML file with these flags; flags override it.", callback=_use_config, is_eager=True
)
_BY_SIZE: Any = {"show_default": "by size"}
_OBSERVED = _option(
    None,
    "The known part of pictures to complete: top, bottom, left, right, border, center.",
    metavar="<part>",
)
_MASK = _option(None, "A picture of the known part instead: white is known, black is completed.")
_COMPLETED_LABEL = _option(None, "The class that completions should have.")
Part = Literal["top", "bottom", "left", "right", "border", "center"]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = _switch("Show the version.", "--version", callback=_print_version, is_eager=True),
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@_command
def fit(
    source: str = _SOURCE,
    out: Path | None = _option(None, "Run folder; default: runs/NAME."),
    quality: str = _option("standard", "draft, standard, best, or the number of steps per stage."),
    particles: int | None = _integer(
        None, "Number of particles; default: 10,000 or more, by the data."
    ),
    conditional: bool = _switch("Fit by class.", "--conditional"),
    target: str | None = _option(None, "The label column of a table."),
    drop: list[str] | None = _option(None, "Leave this column out; repeatable.", metavar="<str>"),
    keep: list[str] | None = _option(
        None, "Keep this column, and only rows with a number in it; repeatable.", metavar="<str>"
    ),
    column: list[str] | None = _option(
        None, "The kind of a table's column, such as zip=category; repeatable.", metavar="<str>"
    ),
    constraint: list[str] | None = _option(
        None, 'What holds between columns, such as "start <= end"; repeatable.', metavar="<str>"
    ),
    vectors: bool = _switch("Fit only the numbers of a table, as vectors.", "--vectors"),
    size: int | None = _integer(None, "Crop the middle square and resize it to this side."),
    observed: Part | None = _OBSERVED,
    mask: Path | None = _MASK,
    schedule: str = _option(
        "auto", 'auto, mnist, cifar10, celeba, or text such as "1[1] 4[4,3] 8[5]".'
    ),
    amplifier: float | None = _real(
        None, "How strongly classes are separated; inf gives each class its own maps.", **_BY_SIZE
    ),
    clusters: int | None = _integer(
        None, "Clusters of pictures without labels; 1 means none.", **_BY_SIZE
    ),
    mirror: bool = _switch("Also fit the mirror images.", "--mirror"),
    start: str = _option(
        "auto", "noise, or the number of pictures whose sum a sample starts as: the model keeps them."
    ),
    data_root: Path | None = _DATA_ROOT,
    holdout: float = _real(0.1, "Share of your own data held out for measuring.", max=0.9),
    skip_broken: bool = _switch("Leave out pictures that cannot be read.", "--skip-broken"),
    device: str = _DEVICE,
    seed: int = _SEED,
    checkpoint_every: float = _real(60.0, "Seconds between checkpoints."),
    resume: bool = _switch("Resume an interrupted run.", "--resume"),
    config: Path | None = _CONFIG,
    dry_run: bool = _switch("Show stages, memory and time; write nothing.", "--dry-run"),
    force: bool = _FORCE,
    json: bool = _JSON,
    quiet: bool = _QUIET,
    no_progress: bool = _NO_PROGRESS,
    debug: bool = _DEBUG,
) -> None:
    """Fit data into a run folder: model, samples, an animation, measures, a report."""
    flags = dict(locals())
    from dataclasses import fields

    from sliceflow.cli.data import check_source
    from sliceflow.cli.fit import fit as run
    from sliceflow.cli.mixed import fit as fit_table
    from sliceflow.cli.mixed import is_mixed
    from sliceflow.cli.settings import Settings

    flags |= {name: tuple(flags[name] or ()) for name in ("drop", "keep", "column", "constraint")}
    flags |= {"out": out and str(out), "data_root": data_root and str(data_root)}
    flags |= {"mask": mask and str(mask)}
    settings = Settings(**{field.name: flags[field.name] for field in fields(Settings)})
    if is_mixed(settings):
        check_source(settings.source)
        fit_table(settings, force=force, resume=resume, dry_run=dry_run, as_json=json, quiet=quiet)
        return
    run(
        settings,
        resume=resume,
        force=force,
        dry_run=dry_run,
        as_json=json,
        quiet=quiet,
        show_progress=not no_progress,
    )


@_command
def sample(
    run: Path = _RUN,
    out: Path = _OUT,
    n: int = _integer(64, "Number of samples.", "--n", "-n"),
    label: str | None = _option(None, "Only this class."),
    given: list[str] | None = _option(
        None, "What all rows of a table have, such as plan=gold; repeatable.", metavar="<str>"
    ),
    device: str = _DEVICE,
    seed: int = _SEED,
    force: bool = _FORCE,
    json: bool = _JSON,
    quiet: bool = _QUIET,
    debug: bool = _DEBUG,
) -> None:
    """Draw new samples: a .png grid, a folder of pictures, an .npz, a .csv for tables."""
    from sliceflow.cli.sample import sample as draw

    made = draw(run, out, n=n, label=label, given=given or (), device=device, seed=seed, force=force)
    _print(made, f"wrote {n} samples to {out}", json, quiet)


@_command
def impute(
    table: Path = typer.Argument(help="A table with missing cells.", show_default=False),
    out: Path = _OUT,
    run: Path | None = _option(None, "A run, or a .sliceflow file; default: fit the table itself."),
    n: int = _integer(1, "Number of filled tables, each with other draws.", "--n", "-n"),
    device: str = _DEVICE,
    seed: int = _SEED,
    force: bool = _FORCE,
    json: bool = _JSON,
    quiet: bool = _QUIET,
    debug: bool = _DEBUG,
) -> None:
    """Fill the missing cells of a table, and leave all others as they are."""
    from sliceflow.cli.mixed import impute as fill

    made = fill(table, out, run=run, n=n, device=device, seed=seed, force=force)
    _print(made, f"filled {made['cells']} cells; wrote {', '.join(made['out'])}", json, quiet)


@_command
def inpaint(
    run: Path = _RUN,
    picture: Path = typer.Argument(help="A picture, a folder, .npy or .npz.", show_default=False),
    out: Path = _OUT,
    observed: Part | None = _OBSERVED,
    mask: Path | None = _MASK,
    label: str | None = _COMPLETED_LABEL,
    n: int = _integer(8, "Completions of each picture.", "--n", "-n"),
    resize: bool = _switch("Resize pictures to the model's size.", "--resize"),
    device: str = _DEVICE,
    seed: int = _SEED,
    force: bool = _FORCE,
    json: bool = _JSON,
    quiet: bool = _QUIET,
    debug: bool = _DEBUG,
) -> None:
    """Complete pictures with a model that was fitted with --observed, or that keeps its pictures.

    A model with --observed knows its part. Models of colour pictures complete any part: pass it here.
    """
    from sliceflow.cli.sample import inpaint as complete

    made = complete(
        run,
        picture,
        out,
        observed=observed,
        mask=mask,
        label=label,
        n=n,
        resize=resize,
        device=device,
        seed=seed,
        force=force,
    )
    _print(made, f"wrote {n} completions of each of {made['pictures']} pictures to {out}", json, quiet)


@_command
def complete(
    picture: Path = typer.Argument(help="A picture, a folder, .npy or .npz.", show_default=False),
    out: Path = _OUT,
    like: str = _option(..., "Pictures to learn from: a set, a folder or a file.", show_default=False),
    observed: Part | None = _OBSERVED,
    mask: Path | None = _MASK,
    label: str | None = _COMPLETED_LABEL,
    n: int = _integer(8, "Completions of each picture.", "--n", "-n"),
    resize: bool = _switch("Resize pictures to the size of --like.", "--resize"),
    data_root: Path | None = _DATA_ROOT,
    seed: int = _SEED,
    force: bool = _FORCE,
    json: bool = _JSON,
    quiet: bool = _QUIET,
    debug: bool = _DEBUG,
) -> None:
    """Complete pictures from any known part, without a fit, by the pictures most like them."""
    from sliceflow.cli.sample import complete as run

    made = run(
        picture,
        out,
        like=like,
        observed=observed,
        mask=mask,
        label=label,
        n=n,
        resize=resize,
        data_root=data_root,
        seed=seed,
        force=force,
    )
    _print(made, f"wrote {n} completions of each of {made['pictures']} pictures to {out}", json, quiet)


@_command
def evaluate(
    run: Path = _RUN,
    against: str | None = _option(None, "Other data to compare with: a set, a folder, a file."),
    data_root: Path | None = _DATA_ROOT,
    device: str = _DEVICE,
    json: bool = _JSON,
    quiet: bool = _QUIET,
    debug: bool = _DEBUG,
) -> None:
    """Measure a run's samples, each number with its floor; saved in the run, unless --against."""
    from sliceflow.cli import mixed
    from sliceflow.cli.evaluate import evaluate_run

    if mixed.is_run(run):
        found = mixed.evaluate(run, against, device)
        _print(found, mixed.text_of(found), json, quiet)
        return
    measures = evaluate_run(run, against, data_root, device)
    _print(measures.as_dict(), measures.text(), json, quiet)


@_command
def report(run: Path = _RUN, json: bool = _JSON, quiet: bool = _QUIET, debug: bool = _DEBUG) -> None:
    """Rebuild report.html, one self-contained page, from the files of a run."""
    from sliceflow.cli import mixed
    from sliceflow.cli.report import write_report
    from sliceflow.cli.run_folder import RunFolder

    path = mixed.rebuild(run) if mixed.is_run(run) else write_report(RunFolder(run))
    _print({"report": str(path)}, f"wrote {path}", json, quiet)


@_command
def info(run: Path = _RUN, json: bool = _JSON, debug: bool = _DEBUG) -> None:
    """Show what a run folder or a model file holds."""
    from sliceflow.cli.info import run_info

    found = run_info(run)
    _print(found, _lines(found), json)


@_command
def play(
    runs: list[Path] | None = typer.Argument(
        None,
        help="Run folders, or .sliceflow files; default: those of pictures in runs/.",
        show_default=False,
    ),
    no_browser: bool = _switch("Only print the address.", "--no-browser"),
    device: str = _DEVICE,
    debug: bool = _DEBUG,
) -> None:
    """Open a page in the browser: paint points, look at pictures, complete them, fit a table."""
    from sliceflow.cli.play import play as run

    run(runs or [], open_browser=not no_browser, device=device)


@_command
def datasets(data_root: Path | None = _DATA_ROOT, json: bool = _JSON, debug: bool = _DEBUG) -> None:
    """List the named sets, and which of them are found."""
    from sliceflow.cli.info import datasets_found

    found = datasets_found(data_root)
    lines = [f"looked for in {found['root']}"]
    for one in found["sets"]:
        here = "found" if one["found"] else "missing"
        lines.append(f"{one['name']:<14} {here:<8} {one['pictures']}")
    _print(found, "\n".join(lines), json)


@_command
def doctor(data_root: Path | None = _DATA_ROOT, json: bool = _JSON, debug: bool = _DEBUG) -> None:
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
    out: Path = _option(Path("runs/demo"), "Run folder."),
    device: str = _DEVICE,
    force: bool = _FORCE,
    json: bool = _JSON,
    quiet: bool = _QUIET,
    no_progress: bool = _NO_PROGRESS,
    debug: bool = _DEBUG,
) -> None:
    """Fit scikit-learn's digits by class, in under a minute, and write the report."""
    from sliceflow.cli.fit import fit as run
    from sliceflow.cli.settings import Settings

    settings = Settings(
        "digits", str(out), conditional=True, quality="standard", particles=5000, device=device
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
