"""``sliceflow sample``, ``inpaint`` and ``complete``: from a model or pictures to files of samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sliceflow.cli import mixed
from sliceflow.cli.data import read
from sliceflow.cli.failures import Failed, WrongUsage
from sliceflow.cli.run_folder import RunFolder, check_new
from sliceflow.cli.settings import read_mask

__all__ = ["complete", "inpaint", "read_pictures", "sample"]


def sample(
    run: Path,
    out: Path,
    *,
    n: int,
    label: str | None,
    given: Sequence[str] = (),
    device: str,
    seed: int,
    force: bool,
) -> dict[str, Any]:
    """Write new samples to a picture, a folder of pictures, .npz or .csv; what was written."""
    check_new(out, force=force)  # before torch is imported
    from sliceflow.errors import from_tensor

    flow: Any = RunFolder.model(run, device)
    if type(flow).__name__ == "TableFlow":
        if label is not None:
            raise WrongUsage("--label is for classes; this is a table", "pass --given column=value")
        return mixed.sample(flow, out, n=n, given=given, seed=seed)
    if given:
        raise WrongUsage("--given is for tables", "pass --label for a class")
    if getattr(flow, "observed", None) is not None:
        raise WrongUsage(f"{run} completes pictures, and makes none", "use sliceflow inpaint")
    pictures = hasattr(flow, "schedule_")
    _check_ending(out, pictures)
    y = _class(flow, label, run)
    _check_memory(flow, n)
    x, labels = flow.sample(n, y=y, random_state=seed, return_y=True)
    x = np.asarray(from_tensor(x))
    if pictures:
        _write_pictures(out, x, flow.layout_, labels)
    else:
        _write_rows(out, x, *_columns(run, x.shape[1]), labels)
    return {"out": str(out), "n": n, "label": label, "seed": seed}


def inpaint(
    run: Path,
    given: Path,
    out: Path,
    *,
    observed: str | None,
    mask: Path | None,
    label: str | None,
    n: int,
    resize: bool,
    device: str,
    seed: int,
    force: bool,
) -> dict[str, Any]:
    """Write completions of a picture, a folder of pictures or an array; what was written."""
    _check_ending(out, pictures=True)
    check_new(out, force=force)
    if observed is not None and mask is not None:
        raise WrongUsage("the known part is given twice", "pass --observed top, or --mask m.png")
    from sliceflow.errors import from_tensor

    flow: Any = RunFolder.model(run, device)
    part = _part(observed, mask, getattr(flow, "layout_", None))
    if part is None and getattr(flow, "observed", None) is None:
        raise WrongUsage(
            f"{run} does not complete pictures",
            "fit with --observed top (or left, border, …), or with --mask mask.png; a model of colour "
            "pictures completes any part: pass it here",
        )
    pictures = read_pictures(given, flow.layout_, resize)
    _check_memory(flow, n * len(pictures))
    y = _class(flow, label, run)
    try:
        done = from_tensor(flow.inpaint(pictures, n, random_state=seed, mask=part, y=y))
    except ValueError as error:
        raise Failed(str(error), "or see sliceflow complete --help") from error
    known = flow.observed_ if part is None else part
    _write_completions(out, pictures, done, known, flow.layout_)
    return {"out": str(out), "pictures": len(pictures), "n": n, "label": label, "seed": seed}


def _part(observed: str | None, mask: Path | None, layout: Any) -> np.ndarray | None:
    """The known part (h, w) by its name or by a picture; None if neither is given."""
    if layout is None or (observed is None and mask is None):
        return None
    from sliceflow.spaces.pictures.layout import part_of

    if mask is not None:
        return read_mask(str(mask), (layout.height, layout.width))
    return part_of(observed, layout)


def complete(
    given: Path,
    out: Path,
    *,
    like: str,
    observed: str | None,
    mask: Path | None,
    label: str | None,
    n: int,
    resize: bool,
    data_root: Path | None,
    seed: int,
    force: bool,
) -> dict[str, Any]:
    """Write completions by the pictures most like the given ones; what was written."""
    _check_ending(out, pictures=True)
    check_new(out, force=force)
    if (observed is None) == (mask is None):
        raise WrongUsage(
            "the known part is not given, or twice", "pass --observed top, or --mask m.png"
        )
    data, _ = read(like, root=data_root, holdout=0.0)
    if not data.pictures:
        raise WrongUsage(f"--like {like} is a table", "pass pictures; sliceflow impute fills tables")
    from sliceflow.engine.random import Seed
    from sliceflow.spaces.pictures.inpainting import complete_pictures
    from sliceflow.spaces.pictures.layout import Layout

    layout = Layout.of(data.x, data.n_pixel_values)
    known = _part(observed, mask, layout)
    pictures = read_pictures(given, layout, resize)
    options: dict[str, Any] = {"n_pixel_values": data.n_pixel_values, "seed": Seed(seed)}
    if label is not None:
        classes = {} if data.labels is None else {str(c): c for c in np.unique(data.labels)}
        if label not in classes:
            raise WrongUsage(
                f"{like} has no class {label!r}", f"its classes: {', '.join(classes) or 'none'}"
            )
        options |= {"y": np.repeat(classes[label], len(pictures)), "like_y": data.labels}
    try:
        done = complete_pictures(pictures, known, data.x, n=n, **options)
    except ValueError as error:
        raise Failed(str(error), "pass other pictures") from error
    _write_completions(out, pictures, done, known, layout)
    return {"out": str(out), "pictures": len(pictures), "n": n, "label": label, "seed": seed}


def _write_completions(
    out: Path, pictures: np.ndarray, done: np.ndarray, known: Any, layout: Any
) -> None:
    """A grid shows the given picture first; a folder or an array holds completions only."""
    if out.suffix.lower() != ".png":
        _write_pictures(out, done.reshape(-1, *done.shape[2:]), layout, None)
        return
    from sliceflow.cli.grid import as_bytes, grid

    hidden = pictures.astype(done.dtype)  # a copy
    hidden[:, ~known] = 0.5 if layout.n_pixel_values is None else layout.n_pixel_values // 2
    shown = np.concatenate((hidden[:, None], done), axis=1)
    grid(as_bytes(shown, layout.n_pixel_values)).save(out, optimize=True)


def _check_memory(flow: Any, n: int) -> None:
    """Refuse more samples than memory could ever hold."""
    from sliceflow.devices import need_memory, resolve_device
    from sliceflow.errors import NotEnoughMemoryError

    d = flow.layout_.dimension if hasattr(flow, "schedule_") else flow.n_features_in_
    try:
        need_memory(12 * n * d, resolve_device(flow.device), f"{n} samples need", "")
    except NotEnoughMemoryError as error:
        hint = "pass a smaller --n, several times with different --seed"
        raise Failed(error.fact, hint) from error


def _class(flow: Any, label: str | None, run: Path) -> Any:
    """The class of the model that is written like `label`."""
    if label is None:
        return None
    classes = {str(c): c for c in getattr(flow, "classes_", ())}
    if not classes:
        raise WrongUsage(f"{run} was fitted without labels", "leave --label out")
    if label not in classes:
        raise WrongUsage(f"{run} has no class {label!r}", f"its classes: {', '.join(classes)}")
    return classes[label]


def _check_ending(out: Path, pictures: bool) -> None:
    """Refuse an ending that does not say what to write."""
    if out.suffix.lower() not in ((".png", ".npz", "") if pictures else (".csv", ".npz")):
        kinds = "a .png, an .npz or a folder" if pictures else "a .csv or an .npz"
        raise WrongUsage(f"--out {out} ends in {out.suffix or 'nothing'}", f"name {kinds}")


def _write_pictures(path: Path, x: np.ndarray, layout: Any, labels: np.ndarray | None) -> None:
    from sliceflow.cli.grid import as_bytes, grid, single

    if path.suffix.lower() == ".npz":
        _write_arrays(path, labels, images=x)
        return
    shown = as_bytes(x, layout.n_pixel_values)
    if path.suffix.lower() == ".png":
        columns = int(np.ceil(np.sqrt(len(x))))
        blank = np.full((-len(x) % columns, *shown.shape[1:]), 255, np.uint8)
        filled = np.concatenate((shown, blank))
        grid(filled.reshape(-1, columns, *shown.shape[1:])).save(path, optimize=True)
        return
    path.mkdir(exist_ok=True)
    for old in path.glob("*.png"):  # with --force: the samples of an earlier command
        if old.stem.isdigit():
            old.unlink()
    for i, picture in enumerate(shown):
        single(picture).save(path / f"{i:0{len(str(len(x) - 1))}d}.png")


def _write_rows(
    path: Path, x: np.ndarray, columns: list[str], target: str, labels: np.ndarray | None
) -> None:
    if path.suffix.lower() == ".npz":
        _write_arrays(path, labels, x=x, columns=np.array(columns))
        return
    from sliceflow.cli.table import write_csv

    table = dict(zip(columns, x.T.tolist(), strict=True))
    write_csv(path, table if labels is None else table | {target: labels.tolist()})


def _write_arrays(path: Path, labels: np.ndarray | None, **arrays: np.ndarray) -> None:
    arrays |= {} if labels is None else {"labels": labels}
    with path.open("wb") as stream:  # given a name, numpy would add .npz to .NPZ
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]


def _columns(run: Path, d: int) -> tuple[list[str], str]:
    """The names of a table's columns and of its column of labels, where they are known."""
    if run.is_dir() and (run / "config.json").exists():
        config = RunFolder(run).read_json("config.json")
        names = config["data"]["columns"]
        if names is not None and len(names) == d:
            return [str(name) for name in names], config["settings"]["target"] or "label"
    return [f"column {i + 1}" for i in range(d)], "label"


def read_pictures(given: Path, layout: Any, resize: bool) -> np.ndarray:
    """Pictures like those of a layout: its size, its colours, its kind of pixels."""
    from PIL.Image import Resampling

    from sliceflow.datasets import DatasetError, load
    from sliceflow.datasets.folders import SUFFIXES, upright

    if not given.exists():
        raise WrongUsage(f"{given} does not exist", "name a picture, a folder, an .npy or an .npz")
    if given.suffix.lower() in (".npy", ".npz"):
        try:
            return load(given).images
        except DatasetError as error:
            raise Failed(error.fact, "pass pictures like those that were fitted") from error
    files = [given]
    if given.is_dir():
        files = sorted(file for file in given.iterdir() if file.suffix.lower() in SUFFIXES)
    if not files:
        raise Failed(f"{given} holds no pictures", f"put {', '.join(SUFFIXES)} files there")
    out = []
    size = (layout.width, layout.height)
    for file in files:
        try:
            picture = upright(file).convert("L" if layout.shape[0] == 1 else "RGB")
        except DatasetError as error:
            raise Failed(str(error), "fix or remove that file") from error
        if picture.size != size:
            if not resize:
                own = f"{picture.width}x{picture.height}"
                fact = f"{file} is {own}, the model's pictures are {size[0]}x{size[1]}"
                raise WrongUsage(fact, "pass --resize")
            picture = picture.resize(size, Resampling.LANCZOS)
        out.append(np.asarray(picture))
    values = np.stack(out) / 255.0
    values = values[..., None] if layout.channels == 1 else values
    if layout.n_pixel_values is not None:
        values = (values * (layout.n_pixel_values - 1)).round()
    return np.asarray(values.astype(layout.dtype))
