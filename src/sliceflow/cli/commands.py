"""Every command and its flags. What a command does is in another module, imported when it runs."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import typer

from sliceflow import __version__
from sliceflow.cli.failures import Say, WrongUsage, exit_code

app = typer.Typer(
    name="sliceflow",
    help="New pictures and table rows like those you have: nonparametric generative modelling by "
    "sliced-Wasserstein flows.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 success, 1 the run failed, 2 wrong usage.",
)
Result = tuple[dict[str, Any], str] | None  # for --json, and as text


def _option(default: Any, help: str, *names: str, **more: Any) -> Any:
    return typer.Option(default, *names, help=help, **more)


def _integer(default: int | None, help: str, *names: str, least: int = 1) -> Any:
    return typer.Option(default, *names, metavar="<int>", min=least, help=help)


def _repeated(help: str) -> Any:
    return typer.Option(None, metavar="<str>", help=f"{help}; repeatable.")


def _switch(help: str, *names: str, **more: Any) -> Any:
    return typer.Option(False, *names, help=help, metavar="", **more)


_OUTPUT = {
    "json": _switch("Print one JSON object on stdout.", "--json"),
    "quiet": _switch("Print nothing but errors and what was left out of the data.", "--quiet", "-q"),
    "debug": _switch("Show the traceback of an error.", "--debug"),
}


def _command(*output: str) -> Callable[[Callable[..., Result]], None]:
    """Declare a command that has these flags of `_OUTPUT` too, and print what it returns.

    Its parameter `say` is no flag: it prints what happens, unless one of those flags was passed.
    """

    def declare(function: Callable[..., Result]) -> None:
        own = inspect.signature(function).parameters
        named = [p.replace(kind=p.KEYWORD_ONLY) for p in own.values() if p.name != "say"]
        named += [named[0].replace(name=o, default=_OUTPUT[o], annotation=bool) for o in output]

        def command(**flags: Any) -> None:
            as_json, quiet, debug = (flags.pop(name, False) for name in _OUTPUT)
            with exit_code(own, quiet=quiet, debug=debug):
                more = {"say": Say(quiet or as_json, progress=not quiet)} if "say" in own else {}
                found = function(**flags, **more)
                if found and (as_json or not quiet):
                    shown = json.dumps(found[0], indent=2, ensure_ascii=False) if as_json else found[1]
                    print(shown, flush=True)

        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__annotations__ = {p.name: p.annotation for p in named}
        command.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
        app.command()(command)

    return declare


def _print_version(asked: bool) -> None:
    if asked:
        print(f"sliceflow {__version__}")
        raise typer.Exit


_RUN: Any = typer.Argument(help="A run folder, or a .sliceflow file.", show_default=False)
_DATA_ROOT = _option(None, "Folder of the named sets; default: the variable SLICEFLOW_DATA.")
_DEVICE = _option("auto", "cpu, cuda, or auto: a GPU if there is one.")
_SEED = _integer(0, "The same seed gives the same result.", least=0)
_FORCE = _switch("Replace what already exists.", "--force")
_OUT = _option(..., "File or folder to write.", show_default=False)
_SOURCE: Any = typer.Argument(
    help="digits, mnist, fashion-mnist, cifar10, celeba; a folder of pictures (subfolders are "
    "classes); a .npy or .npz file; a table (.csv, .parquet, .xlsx).",
    show_default=False,
)
_PARTS = "The known part of pictures to complete: top, bottom, left, right, border, center."
_OBSERVED = _option(None, _PARTS, metavar="<part>")
_MASK = _option(None, "A picture of the known part instead: white is known, black is completed.")
Part = Literal["top", "bottom", "left", "right", "border", "center"]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = _switch("Show the version.", "--version", callback=_print_version, is_eager=True),
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@_command("json", "quiet", "debug")
def fit(  # many: a parameter for each flag
    source: str = _SOURCE,
    out: Path | None = _option(None, "Run folder; default: runs/NAME."),
    quality: str = _option("standard", "draft, standard, best, or the number of steps per stage."),
    particles: int | None = _integer(None, "Number of particles; default: by the data."),
    conditional: bool = _switch("Fit pictures by class.", "--conditional"),
    vectors: bool = _switch("Fit only the numbers of a table, as vectors.", "--vectors"),
    target: str | None = _option(None, "The column that measures predict; with --vectors, the labels."),
    drop: list[str] | None = _repeated("Leave this column of a table out"),
    column: list[str] | None = _repeated("The kind of a table's column, such as zip=category"),
    constraint: list[str] | None = _repeated('What holds between columns, such as "start <= end"'),
    size: int | None = _integer(None, "Crop the middle square of pictures and resize it to this side."),
    observed: Part | None = _OBSERVED,
    mask: Path | None = _MASK,
    mirror: bool = _switch("Also fit the mirror images.", "--mirror"),
    keep_rows: bool = _switch("Keep the data in the model, to complete any part.", "--keep-rows"),
    skip_broken: bool = _switch("Leave out pictures that cannot be read.", "--skip-broken"),
    data_root: Path | None = _DATA_ROOT,
    holdout: float = _option(
        0.1, "Share of your own data held out for measuring.", metavar="<float>", min=0, max=0.9
    ),
    device: str = _DEVICE,
    seed: int = _SEED,
    checkpoint_every: float = _option(60.0, "Seconds between checkpoints.", metavar="<float>", min=0),
    resume: bool = _switch("Resume an interrupted run.", "--resume"),
    dry_run: bool = _switch("Show the plan with its memory and time; write nothing.", "--dry-run"),
    force: bool = _FORCE,
    say: Say = Say(),
) -> Result:
    """Fit data into a run folder: model, samples, measures, a report."""
    flags = dict(locals())
    from dataclasses import fields

    from sliceflow.cli.fit import fit as run
    from sliceflow.cli.settings import Settings

    flags |= {name: tuple(flags[name] or ()) for name in ("drop", "column", "constraint")}
    flags |= {name: flags[name] and str(flags[name]) for name in ("out", "data_root", "mask")}
    settings = Settings(**{field.name: flags[field.name] for field in fields(Settings)})
    return run(settings, say, resume=resume, force=force, dry_run=dry_run)


@_command("json", "quiet", "debug")
def sample(  # many: a parameter for each flag
    run: Path = _RUN,
    out: Path = _OUT,
    n: int = _integer(64, "Number of samples.", "--n", "-n"),
    label: str | None = _option(None, "Only this class."),
    given: list[str] | None = _repeated("What all rows of a table have, such as plan=gold"),
    device: str = _DEVICE,
    seed: int = _SEED,
    force: bool = _FORCE,
) -> Result:
    """Draw new samples: a .png grid, a folder of pictures, an .npz, a .csv for tables."""
    from sliceflow.cli.draw import sample as draw
    from sliceflow.cli.run_folder import check_new

    check_new(out, force=force)
    drawn = draw(run, out, n=n, label=label, given=given or (), device=device, seed=seed)
    return drawn, f"wrote {n} samples to {out}"


@_command("json", "quiet", "debug")
def inpaint(  # many: a parameter for each flag
    run: Path = _RUN,
    picture: Path = typer.Argument(help="A picture, a folder, .npy or .npz.", show_default=False),
    out: Path = _OUT,
    observed: Part | None = _OBSERVED,
    mask: Path | None = _MASK,
    label: str | None = _option(None, "The class that completions should have."),
    n: int = _integer(8, "Completions of each picture.", "--n", "-n"),
    resize: bool = _switch("Resize pictures to the model's size.", "--resize"),
    device: str = _DEVICE,
    seed: int = _SEED,
    force: bool = _FORCE,
) -> Result:
    """Complete pictures.

    A model fitted with --observed or --mask completes that part. One that keeps its pictures (colour
    pictures, or --keep-rows) completes any part: pass it here.
    """
    from sliceflow.cli.draw import inpaint as complete
    from sliceflow.cli.run_folder import check_new

    check_new(out, force=force)
    if observed is not None and mask is not None:
        raise WrongUsage("the known part is given twice", "pass --observed top, or --mask m.png")
    how: dict[str, Any] = {"label": label, "n": n, "resize": resize, "device": device, "seed": seed}
    done = complete(run, picture, out, mask or observed, **how)
    return done, f"wrote {n} completions of each of {done['pictures']} pictures to {out}"


@_command("json", "quiet", "debug")
def impute(
    table: Path = typer.Argument(help="A table with missing cells.", show_default=False),
    out: Path = _OUT,
    run: Path | None = _option(None, "A run, or a .sliceflow file; default: fit the table itself."),
    n: int = _integer(1, "Number of filled tables, each with other draws.", "--n", "-n"),
    device: str = _DEVICE,
    seed: int = _SEED,
    force: bool = _FORCE,
) -> Result:
    """Fill the missing cells of a table, and leave all others as they are."""
    from sliceflow.cli.draw import impute as fill

    done = fill(table, out, run=run, n=n, device=device, seed=seed, force=force)
    left = f", {done['left']} are left empty" if done["left"] else ""
    return done, f"filled {done['cells']} cells{left}; wrote {', '.join(done['out'])}"


@_command("json", "quiet", "debug")
def evaluate(
    run: Path = _RUN,
    against: str | None = _option(None, "Other data to compare with: a set, a folder, a file."),
    data_root: Path | None = _DATA_ROOT,
    device: str = _DEVICE,
    say: Say = Say(),
) -> Result:
    """Measure a run's samples and write its report again; with --against only print the measures."""
    from sliceflow.cli.evaluate import as_text
    from sliceflow.cli.evaluate import evaluate as measure

    found = measure(run, against, data_root, device, say)
    return found, as_text(found)


@_command("json", "debug")
def info(
    run: Path | None = typer.Argument(None, help="A run folder, or a .sliceflow file."),
) -> Result:
    """Show what a run or a model file holds; without one: versions, devices, memory, extras."""
    from sliceflow.cli.info import lines, run_info, system_info

    found = system_info() if run is None else run_info(run)
    return found, "\n".join(lines(found))


@_command("debug")
def play(
    runs: list[Path] | None = typer.Argument(
        None, help="Run folders, or .sliceflow files; default: those of pictures in runs/.",
        show_default=False,
    ),
    no_browser: bool = _switch("Only print the address.", "--no-browser"),
    device: str = _DEVICE,
) -> Result:  # fmt: skip
    """Open a page in the browser: paint points, look at pictures, complete them, fit a table."""
    from sliceflow.cli.play import play as run

    run(runs or [], open_browser=not no_browser, device=device)
    return None


@_command("json", "debug")
def datasets(data_root: Path | None = _DATA_ROOT) -> Result:
    """List the named sets, and which of them are found."""
    from sliceflow.cli.info import datasets_found

    found = datasets_found(data_root)
    lines = [f"looked for in {found['root']}"]
    for one in found["sets"]:
        here = "found" if one["found"] else "missing"
        lines.append(f"{one['name']:<14} {here:<8} {one['pictures']}")
    return found, "\n".join(lines)


@_command("json", "quiet", "debug")
def demo(
    out: Path = _option(Path("runs/demo"), "Run folder."),
    device: str = _DEVICE,
    force: bool = _FORCE,
    say: Say = Say(),
) -> Result:
    """Fit scikit-learn's digits by class, in under a minute, and write the report."""
    from sliceflow.cli.fit import fit as run
    from sliceflow.cli.settings import Settings

    settings = Settings("digits", str(out), conditional=True, particles=5000, device=device)
    found = run(settings, say, force=force)
    return found and (found[0], f"{found[1]}\nopen {out / 'report.html'} in a browser")
