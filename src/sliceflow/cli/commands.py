"""Every command and its flags. What a command does is in another room, imported when it runs."""

from __future__ import annotations

import json as json_text
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from sliceflow import __version__
from sliceflow.cli.failures import guarded

__all__ = ["app"]


class _Switches:
    """A command that shows its switches bare: by itself typer 0.29 writes <bool> behind each."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
        return params


class _Group(_Switches, TyperGroup):
    pass


class _Command(_Switches, TyperCommand):
    pass


app = typer.Typer(
    name="sliceflow",
    cls=_Group,
    help="New pictures and rows like those you have: nonparametric generative modelling by "
    "sliced-Wasserstein flows.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 good, 1 the run failed, 2 wrong usage.",
)


def _from_toml(context: typer.Context, path: Path | None) -> Path | None:
    """Values of a TOML file become the flags' defaults, so that flags override them."""
    if path is None or context.resilient_parsing:
        return path
    import tomllib

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}") from error
    values = {name.replace("-", "_"): value for name, value in values.items()}
    known = {p.name for p in context.command.params} - {"config", "help"}
    unknown = sorted(set(values) - known)
    if unknown:
        allowed = ", ".join(sorted(str(name) for name in known))
        raise typer.BadParameter(f"{path} has {unknown[0]!r}, which is none of {allowed}")
    context.default_map = {**(context.default_map or {}), **values}
    return path


class Observed(Enum):
    """What is known of pictures that are completed: the masks of `sliceflow.pictures`."""

    TOP = "top"
    BOTTOM = "bottom"
    LEFT = "left"
    RIGHT = "right"
    BORDER = "border"
    CENTER = "center"


SETS = ("digits", "mnist", "fashion-mnist", "cifar10", "celeba")  # nothing is imported to list them


def _complete_source(incomplete: str) -> list[str]:
    """Named sets, and paths."""
    folder, _, start = incomplete.rpartition("/")
    try:
        paths = sorted(Path(folder + "/" if folder else ".").iterdir())
    except OSError:
        paths = []
    shown = [f"{folder}/{path.name}" if folder else path.name for path in paths]
    hidden = start.startswith(".")
    named = [name for name in SETS if name.startswith(incomplete)]
    return named + [
        text + ("/" if path.is_dir() else "")
        for text, path in zip(shown, paths, strict=True)
        if path.name.startswith(start) and (hidden or not path.name.startswith("."))
    ]


def _say_version(asked: bool) -> None:
    if asked:
        print(f"sliceflow {__version__}")
        raise typer.Exit


Run = Annotated[Path, typer.Argument(help="A run folder, or a .sliceflow file.", show_default=False)]
DataRoot = Annotated[
    Path | None, typer.Option(help="Folder of the named sets; else the variable SLICEFLOW_DATA.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU where there is one.")]
Seed = Annotated[int, typer.Option(metavar="<int>", min=0, help="The same seed gives the same result.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, for machines.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="No progress while fitting.")]
Out = Annotated[Path, typer.Option(help="File or folder to write.", show_default=False)]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(cls=_Command)
@guarded
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
    out: Annotated[Path | None, typer.Option(help="Run folder; else runs/NAME.")] = None,
    quality: Annotated[
        str, typer.Option(help="draft, standard, best, or the number of steps per stage.")
    ] = "standard",
    particles: Annotated[
        int | None, typer.Option(metavar="<int>", min=1, help="How many; else 10,000 or more.")
    ] = None,
    conditional: Annotated[bool, typer.Option("--conditional", help="Fit by class.")] = False,
    target: Annotated[str | None, typer.Option(help="Column of labels, of a table.")] = None,
    drop: Annotated[
        list[str] | None, typer.Option(metavar="<str>", help="Leave out this column; repeat for more.")
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<str>",
            help="Keep this column, and only the rows with a number in it; repeat for more.",
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(metavar="<int>", min=1, help="Crop the middle square and resize it to this side."),
    ] = None,
    observed: Annotated[
        Observed | None,
        typer.Option(
            metavar="<part>",
            help="What is known when pictures are completed: top, bottom, left, right, border, center.",
        ),
    ] = None,
    schedule: Annotated[
        str, typer.Option(help='auto, mnist, cifar10, celeba, or text such as "1[1] 4[4,3] 8[5]".')
    ] = "auto",
    amplifier: Annotated[
        float | None,
        typer.Option(
            metavar="<float>",
            min=0,
            help="How far apart classes are held; inf gives each its own maps.",
            show_default="by size",
        ),
    ] = None,
    clusters: Annotated[
        int | None,
        typer.Option(
            metavar="<int>",
            min=1,
            help="Clusters of pictures without labels; 1 is none.",
            show_default="by size",
        ),
    ] = None,
    mirror: Annotated[bool, typer.Option("--mirror", help="Also fit the mirror images.")] = False,
    data_root: DataRoot = None,
    holdout: Annotated[
        float,
        typer.Option(
            metavar="<float>", min=0, max=0.9, help="Share of your own data kept for measuring."
        ),
    ] = 0.1,
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Leave out pictures that cannot be read.")
    ] = False,
    device: Device = "auto",
    seed: Seed = 0,
    checkpoint_every: Annotated[
        float, typer.Option(metavar="<float>", min=0, help="Seconds between checkpoints.")
    ] = 60.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run that was stopped.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with these flags; flags override it.", callback=_from_toml, is_eager=True
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Stages, memory and time; nothing is written.")
    ] = False,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    no_progress: NoProgress = False,
    debug: Debug = False,
) -> None:
    """Fit data into a run folder: model, samples, pictures of the way, a report."""
    from sliceflow.cli.fit import fit as run
    from sliceflow.cli.settings import Settings

    settings = Settings(
        source,
        out=None if out is None else str(out),
        data_root=None if data_root is None else str(data_root),
        size=size,
        target=target,
        drop=tuple(drop or ()),
        keep=tuple(keep or ()),
        conditional=conditional,
        observed=None if observed is None else observed.value,
        quality=quality,
        particles=particles,
        schedule=schedule,
        amplifier=amplifier,
        clusters=clusters,
        mirror=mirror,
        device=device,
        seed=seed,
        holdout=holdout,
        skip_broken=skip_broken,
        checkpoint_every=checkpoint_every,
    )
    run(
        settings,
        resume=resume,
        force=force,
        dry_run=dry_run,
        as_json=json,
        quiet=quiet,
        progress=not no_progress,
    )


@app.command(cls=_Command)
@guarded
def sample(
    run: Run,
    out: Out,
    n: Annotated[int, typer.Option("--n", "-n", metavar="<int>", min=1, help="How many.")] = 64,
    label: Annotated[str | None, typer.Option(help="Of this class only.")] = None,
    device: Device = "auto",
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """New samples of a model: a .png grid, a folder of pictures, an .npz, a .csv for tables."""
    from sliceflow.cli.sample import sample as draw

    made = draw(run, out, n=n, label=label, device=device, seed=seed, force=force)
    _tell(made, f"wrote {n} samples to {out}", json, quiet)


@app.command(cls=_Command)
@guarded
def inpaint(
    run: Run,
    picture: Annotated[
        Path, typer.Argument(help="A picture, a folder of them, .npy or .npz.", show_default=False)
    ],
    out: Out,
    n: Annotated[
        int, typer.Option("--n", "-n", metavar="<int>", min=1, help="Completions of each picture.")
    ] = 8,
    resize: Annotated[
        bool, typer.Option("--resize", help="Bring pictures to the model's size.")
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
    _tell(made, f"wrote {n} completions of each of {made['pictures']} pictures to {out}", json, quiet)


@app.command(cls=_Command)
@guarded
def evaluate(
    run: Run,
    against: Annotated[
        str | None, typer.Option(help="Other data to measure against: a set, a folder, a file.")
    ] = None,
    data_root: DataRoot = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure a run's samples, each number with its floor; kept there, unless --against."""
    from sliceflow.cli.again import evaluate as again

    measures = again(run, against, data_root, device)
    _tell(measures.as_dict(), measures.text(), json, quiet)


@app.command(cls=_Command)
@guarded
def report(run: Run, json: Json = False, quiet: Quiet = False, debug: Debug = False) -> None:
    """Rebuild report.html, one page that needs nothing else, from the files of a run."""
    from sliceflow.cli.report import write_report
    from sliceflow.cli.run_folder import RunFolder

    path = write_report(RunFolder(run))
    _tell({"report": str(path)}, f"wrote {path}", json, quiet)


@app.command(cls=_Command)
@guarded
def info(run: Run, json: Json = False, debug: Debug = False) -> None:
    """What a run folder or a model file holds."""
    from sliceflow.cli.about import info as known

    found = known(run)
    _tell(found, _lines(found), json)


@app.command(cls=_Command)
@guarded
def datasets(data_root: DataRoot = None, json: Json = False, debug: Debug = False) -> None:
    """The named sets, and which of them are found."""
    from sliceflow.cli.about import datasets_found

    found = datasets_found(data_root)
    lines = [f"looked for in {found['root']}"]
    for one in found["sets"]:
        here = "found" if one["found"] else "missing"
        lines.append(f"{one['name']:<14} {here:<8} {one['pictures']}")
    _tell(found, "\n".join(lines), json)


@app.command(cls=_Command)
@guarded
def doctor(data_root: DataRoot = None, json: Json = False, debug: Debug = False) -> None:
    """Versions, devices, memory, data sets, and what is missing and how to get it."""
    from sliceflow.cli.about import doctor as examine

    found = examine(data_root)
    sets = ", ".join(s["name"] for s in found["data"]["sets"] if s["found"])
    shown = {k: v for k, v in found.items() if k not in ("data", "missing")}
    shown["data sets found"] = f"{sets} (looked for in {found['data']['root']})"
    shown["missing extras"] = found["missing"] or "none"
    _tell(found, _lines(shown), json)


@app.command(cls=_Command)
@guarded
def demo(
    out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/demo"),
    device: Device = "auto",
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    no_progress: NoProgress = False,
    debug: Debug = False,
) -> None:
    """Fit scikit-learn's digits by class, in under a minute, and write their report."""
    from sliceflow.cli.fit import fit as run
    from sliceflow.cli.settings import Settings

    settings = Settings(
        "digits", str(out), conditional=True, quality="draft", particles=5000, device=device
    )
    run(settings, force=force, as_json=json, quiet=quiet, progress=not no_progress)
    _tell({}, f"open {out / 'report.html'} in a browser", False, quiet or json)


def _tell(value: dict[str, Any], text: str, as_json: bool, quiet: bool = False) -> None:
    if as_json:
        json_text.dump(value, sys.stdout, indent=2, ensure_ascii=False)
        print()
    elif not quiet:
        print(text)


def _lines(value: dict[str, Any], indent: str = "") -> str:
    """A dict as lines, inner ones indented."""
    out = []
    for key, item in value.items():
        if isinstance(item, dict):
            out += [f"{indent}{key}:", _lines(item, indent + "  ")]
        elif item not in (None, []):
            shown = ", ".join(map(str, item)) if isinstance(item, list) else item
            out.append(
                f"{indent}{key}: {shown:.4g}" if isinstance(shown, float) else f"{indent}{key}: {shown}"
            )
    return "\n".join(out)
