"""``sliceflow sample``, ``inpaint`` and ``impute``: from a model to files, and grids of pictures."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from sliceflow.app.pictures import as_bytes, class_named, single
from sliceflow.cli.data import read_mask
from sliceflow.cli.failures import Failed, WrongUsage
from sliceflow.cli.run_folder import check_new, load_model
from sliceflow.cli.settings import Part, kinds_of
from sliceflow.errors import from_tensor, rows_of_the_file
from sliceflow.models.atomic import write_atomically
from sliceflow.number_formats import TABLES

_SHOWN = 56  # pixels: smaller pictures are enlarged
_FRAMES = 40
_ENDINGS = {"pictures": (".png", ".npz", ""), "vectors": (".npz",), "table": TABLES}


def sample(  # many: a parameter for each flag
    run: Path,
    out: Path,
    n: int = 64,
    label: str | None = None,
    given: list[str] | None = None,
    device: str = "auto",
    seed: int = 0,
    force: bool = False,
) -> tuple[dict[str, Any], str]:
    """Draw new samples: a .png grid, a folder of pictures, an .npz, a .csv for tables."""
    from sliceflow.spaces.tables.files import write_table

    check_new(out, force=force)
    flow = load_model(run, device)
    kind = _kind(flow)
    _check_ending(out, kind)
    if kind == "table":
        if label is not None:
            raise WrongUsage(
                "--label is for classes; this is a table", "pass --given column=value"
            )
        wanted = dict(_given(flow, text) for text in given or ())
        write_table(flow.sample(n, given=wanted or None, random_state=seed), out)
    elif given:
        raise WrongUsage("--given is for tables", "pass --label for a class")
    elif getattr(flow, "observed", None) is not None:
        raise WrongUsage(
            f"{run} completes pictures, and makes none", "use sliceflow inpaint"
        )
    else:
        x, labels = flow.sample(
            n, y=_class(flow, label, run), random_state=seed, return_y=True
        )
        x = np.asarray(from_tensor(x))
        if kind == "pictures":
            _write_pictures(out, x, flow.plan_.layout, labels)
        else:
            write_arrays(out, labels, x=x)
    about = {
        "out": str(out),
        "n": n,
        "label": label,
        "given": given or [],
        "seed": seed,
    }
    return about, f"wrote {n} samples to {out}"


def inpaint(  # many: a parameter for each flag
    run: Path,
    picture: Path,
    out: Path,
    observed: Part | None = None,
    mask: str | None = None,
    label: str | None = None,
    n: int = 8,
    resize: bool = False,
    device: str = "auto",
    seed: int = 0,
    force: bool = False,
) -> tuple[dict[str, Any], str]:
    """Complete pictures.

    A model fitted with --observed or --mask completes that part. One that keeps its pictures (colour
    pictures, or --keep-rows) completes any part: pass it here.
    """
    from sliceflow.spaces.pictures.layout import as_mask

    check_new(out, force=force)
    if observed is not None and mask is not None:
        raise WrongUsage(
            "the known part is given twice", "pass --observed top, or --mask m.png"
        )
    _check_ending(out, "pictures")
    flow = load_model(run, device)
    if _kind(flow) != "pictures":
        raise WrongUsage(
            f"{run} is not a model of pictures", "sliceflow impute fills tables"
        )
    layout = flow.plan_.layout
    known: Any = observed
    if mask is not None:
        known = read_mask(mask, (layout.height, layout.width))
    if known is None and flow.observed is None:
        hint = "pass the known part with --observed top (or left, border, …), or with --mask mask.png"
        raise WrongUsage(f"{run} was not fitted for one known part", hint)
    pictures = read_pictures(picture, layout, resize)
    y = _class(flow, label, run)
    try:
        done = np.asarray(flow.inpaint(pictures, known, n=n, y=y, random_state=seed))
    except ValueError as error:
        again = "sliceflow fit … --keep-rows keeps the pictures, for any part; --observed fits one part"
        raise Failed(str(error).partition(";")[0], again) from error
    if out.suffix.lower() == ".png":  # a grid shows the given picture first
        grey = 0.5 if layout.n_pixel_values is None else layout.n_pixel_values // 2
        hidden = pictures.astype(done.dtype)  # a copy
        hidden[:, ~as_mask(flow.observed if known is None else known, layout)] = grey
        shown = np.concatenate((hidden[:, None], done), axis=1)
        write_picture(out, grid(as_bytes(shown, layout.n_pixel_values)), optimize=True)
    else:
        _write_pictures(out, done.reshape(-1, *done.shape[2:]), layout, None)
    about = {
        "out": str(out),
        "pictures": len(pictures),
        "n": n,
        "label": label,
        "seed": seed,
    }
    return about, f"wrote {n} completions of each of {len(pictures)} pictures to {out}"


def impute(  # many: a parameter for each flag
    table: Path,
    out: Path,
    run: Path | None = None,
    column: list[str] | None = None,
    drop: list[str] | None = None,
    n: int = 1,
    device: str = "auto",
    seed: int = 0,
    force: bool = False,
) -> tuple[dict[str, Any], str]:
    """Fill the missing cells of a table, and leave all others as they are."""
    from sliceflow.spaces.tables.files import read_table, write_table

    _check_ending(out, "table")
    outs = (
        [out] if n == 1 else [out.with_stem(f"{out.stem}-{i}") for i in range(1, n + 1)]
    )
    for path in outs:
        check_new(path, force=force)
    frame = read_table(table)
    if run is None:
        from sliceflow import TableFlow

        flow: Any = TableFlow(
            columns=kinds_of(column, drop), device=device, random_state=seed
        )
        with rows_of_the_file():
            flow.fit(frame)
    elif column or drop:
        fact = "--column and --drop are for fitting the table itself, not for a run"
        raise WrongUsage(fact, "leave them out, or leave --run out")
    else:
        flow = load_model(run, device)
        if _kind(flow) != "table":
            raise WrongUsage(
                f"{run} is not a model of a table", "fit one, or leave --run out"
            )
    filled = flow.impute(frame, n=n, random_state=seed)
    tables = [filled] if n == 1 else filled
    for path, one in zip(outs, tables, strict=True):
        write_table(one, path)
    cells, left = (int(one.isna().sum().sum()) for one in (frame, tables[0]))
    names = [str(path) for path in outs]
    empty = f", {left} are left empty" if left else ""
    about = {"out": names, "cells": cells - left, "left": left, "seed": seed}
    return about, f"filled {cells - left} cells{empty}; wrote {', '.join(names)}"


def _kind(flow: Any) -> str:
    return {"TableFlow": "table", "ImageFlow": "pictures"}.get(
        type(flow).__name__, "vectors"
    )


def _given(flow: Any, text: str) -> tuple[str, Any]:
    """A column and its value from text such as plan=gold."""
    name, equals, value = text.partition("=")
    names = [str(column) for column in flow.feature_names_in_]
    if not equals or name not in names:
        hint = f"pass column=value; there are {', '.join(names)}"
        raise WrongUsage(f"--given {text} does not name a column", hint)
    try:
        return name, flow.value_of(name, value)
    except ValueError as error:
        fact, _, hint = str(error).partition("; ")
        raise WrongUsage(
            f"--given {text}: {fact}", hint or "pass another value"
        ) from error


def _class(flow: Any, label: str | None, run: Path) -> Any:
    """The class of the model that is written like `label`."""
    try:
        return None if label is None else class_named(flow, label, str(run))
    except ValueError as error:
        raise WrongUsage(*str(error).split("; ")) from error


def _check_ending(out: Path, kind: str) -> None:
    """Refuse an ending that does not say what to write."""
    if out.suffix.lower() not in _ENDINGS[kind]:
        endings = ", ".join(ending or "a folder" for ending in _ENDINGS[kind])
        raise WrongUsage(
            f"--out {out} ends in {out.suffix or 'nothing'}", f"name one of {endings}"
        )


def _write_pictures(
    path: Path, x: np.ndarray, layout: Any, labels: np.ndarray | None
) -> None:
    if path.suffix.lower() == ".npz":
        return write_arrays(path, labels, images=x)
    shown = as_bytes(x, layout.n_pixel_values)
    if path.suffix.lower() == ".png":
        columns = int(np.ceil(np.sqrt(len(x))))
        blank = np.full((-len(x) % columns, *shown.shape[1:]), 255, np.uint8)
        filled = np.concatenate((shown, blank))
        write_picture(
            path, grid(filled.reshape(-1, columns, *shown.shape[1:])), optimize=True
        )
        return
    with TemporaryDirectory(
        prefix=f".{path.name}.", dir=path.parent
    ) as new:  # a disk may fill
        for i, picture in enumerate(shown):
            write_picture(
                Path(new, f"{i:0{len(str(len(x) - 1))}d}.png"), single(picture)
            )
        path.mkdir(exist_ok=True)
        for old in path.glob(
            "*.png"
        ):  # with --force: the samples of an earlier command
            if old.stem.isdigit():
                old.unlink()
        for file in Path(new).iterdir():
            file.rename(path / file.name)


def write_arrays(path: Path, labels: np.ndarray | None, **arrays: np.ndarray) -> None:
    """Arrays and labels as .npz."""
    arrays |= {} if labels is None else {"labels": labels}
    write_atomically(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]


def read_pictures(given: Path, layout: Any, resize: bool) -> np.ndarray:
    """Pictures like those of a layout: its size, its colours, its kind of pixels."""
    from PIL.Image import Resampling

    from sliceflow.datasets import DatasetError, load
    from sliceflow.datasets.folders import SUFFIXES, upright

    if given.suffix.lower() in (".npy", ".npz"):
        if resize:
            raise WrongUsage(
                f"--resize is for files of pictures, not for {given}", "leave it out"
            )
        try:
            return load(given).images
        except DatasetError as error:
            raise Failed(
                error.fact, "pass pictures like those that were fitted"
            ) from error
    inside = sorted(given.iterdir()) if given.is_dir() else []
    files = (
        [file for file in inside if file.suffix.lower() in SUFFIXES]
        if given.is_dir()
        else [given]
    )
    if not files or not given.exists():
        fact = (
            f"{given} holds no pictures"
            if given.exists()
            else f"{given} does not exist"
        )
        raise WrongUsage(
            fact,
            f"name a picture, a folder of {', '.join(SUFFIXES)}, an .npy or an .npz",
        )
    out = []
    size = (layout.width, layout.height)
    for file in files:
        try:
            picture = upright(file).convert("L" if layout.shape[0] == 1 else "RGB")
        except DatasetError as error:
            raise Failed(str(error), "fix or remove that file") from error
        if picture.size != size:
            if not resize:
                own, wanted = ("{}x{}".format(*sides) for sides in (picture.size, size))
                raise WrongUsage(
                    f"{file} is {own}, the model's pictures are {wanted}",
                    "pass --resize",
                )
            picture = picture.resize(size, Resampling.LANCZOS)
        out.append(np.asarray(picture))
    values = np.stack(out) / 255.0
    values = values[..., None] if layout.channels == 1 else values
    if layout.n_pixel_values is not None:
        values = (values * (layout.n_pixel_values - 1)).round()
    return np.asarray(values.astype(layout.dtype))


def grid(images: np.ndarray, shown: int = _SHOWN, *, ground: int = 255) -> Any:
    """Bytes (rows, columns, h, w[, c]) as one picture, with grey `ground` between them."""
    n_rows, n_columns, h, w = images.shape[:4]
    gap = max(1, h // 12)
    out = np.full(
        (n_rows, h + gap, n_columns, w + gap, *images.shape[4:]), ground, np.uint8
    )
    out[:, :h, :, :w] = images.swapaxes(1, 2)
    flat = out.reshape(n_rows * (h + gap), n_columns * (w + gap), *images.shape[4:])
    picture = single(flat[:-gap, :-gap])
    zoom = max(1, round(shown / h))
    return picture.resize(
        (zoom * picture.width, zoom * picture.height), 0
    )  # 0: the nearest pixel


def by_class(
    images: np.ndarray, labels: np.ndarray | None, columns: int = 10
) -> tuple[np.ndarray, list[str]]:
    """(rows, columns, h, w[, c]) with a row for each class, and the class names."""
    if labels is None:
        columns = min(columns, len(images))
        rows = min(columns, len(images) // columns)
        return images[: rows * columns].reshape(rows, columns, *images.shape[1:]), []
    classes, counts = np.unique(labels, return_counts=True)
    columns = min(columns, int(counts.min()))
    return np.stack([images[labels == c][:columns] for c in classes]), [
        str(c) for c in classes
    ]


def write_evolution(flow: Any, pictures: np.ndarray, path: Path, seed: int) -> None:
    """Write samples of a model, or completions of these pictures, as an animation from their start."""
    side = 8 if pictures.ndim == 3 else 6  # colours make a .gif large
    how: dict[str, Any] = {"random_state": seed, "n_frames": _FRAMES}
    if flow.observed is None:
        strategy = flow.evolution(side**2, **how)
    else:
        some = pictures[np.linspace(0, len(pictures) - 1, side**2).astype(int)]
        strategy = flow.evolution(1, **how, X=some)[:, :, 0]
    values = flow.plan_.layout.n_pixel_values
    shown = (by_class(as_bytes(x, values), None, side)[0] for x in np.asarray(strategy))
    first, *rest = (
        grid(x, 32, ground=128) for x in shown
    )  # a .gif cannot fit the page: grey
    times = [90] * len(rest) + [2000]  # it pauses at its last frame
    write_picture(
        path, first, "GIF", save_all=True, append_images=rest, duration=times, loop=0
    )


def write_picture(path: Path, picture: Any, kind: str = "PNG", **how: Any) -> None:
    """Write a picture to a file, whole or not at all."""
    write_atomically(path, lambda file: picture.save(file, kind, **how))
