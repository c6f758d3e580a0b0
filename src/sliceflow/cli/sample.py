"""``sliceflow sample``: new pictures, vectors, or rows of a table."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sliceflow.cli.failures import UsageError
from sliceflow.cli.given import parse_given_flags, split_given
from sliceflow.cli.grids import write_arrays, write_pictures
from sliceflow.cli.outputs import PICTURE_ENDINGS, check_ending, find_class
from sliceflow.cli.results import Result
from sliceflow.cli.run_folder import (
    check_new,
    is_stdout,
    load_model,
    read_description,
    write_or_print,
)
from sliceflow.cli.settings import PICTURES, TABLE
from sliceflow.table_files import TABLE_ENDINGS
from sliceflow.validation import from_tensor

if TYPE_CHECKING:
    import pandas as pd

    from sliceflow import ImageFlow, SlicedWassersteinFlow, TableFlow

_VECTOR_ENDINGS = (".npz",)
_VECTORS = "vectors"


def sample(
    run: Path,
    out: Path,
    n: int = 64,
    label: str | None = None,
    given: list[str] | None = None,
    device: str = "auto",
    seed: int = 0,
    force: bool = False,
) -> Result | None:
    """Draw new samples from a model: pictures, vectors, or rows of a table.

    The ending of --out chooses the format: a .png grid, an .npz, a folder of pictures;
    for tables .csv, .tsv, .parquet, .xlsx. Rows of a table also go to stdout, as
    --out - asks for.
    """
    check_new(out, force=force)
    description = read_description(run)
    _check_request(description.kind, out, label, given)
    if description.columns:
        for text in given or ():
            split_given(text, description.columns)
    # This takes long: errors that need no model came before.
    with _without_garbage_collection():
        model = load_model(run, device)
    from sliceflow import TableFlow

    if isinstance(model, TableFlow):
        _check_request(TABLE, out, label, given)
        rows = _draw_rows(model, n, given or [], seed)
        write_or_print(rows, out, description.dialect)
        if is_stdout(out):
            return None
    else:
        _check_request(_kind_of_flow(model, run), out, label, given)
        _sample_flow(model, out, n, find_class(model, label, run), seed)
    found = {
        "out": str(out),
        "n": n,
        "label": label,
        "given": given or [],
        "seed": seed,
    }
    return Result(found, f"wrote {n} samples to {out}")


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Keep Python from collecting garbage, now and at its exit.

    Modules and the model stay until the command ends. Otherwise, a fifth of the time of
    five rows would go into collections: some while modules are imported, and one when
    the process exits, which `gc.freeze` spares.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _check_request(
    kind: str, out: Path, label: str | None, given: list[str] | None
) -> None:
    """Refuse an ending and flags that are not for models of this kind.

    The kind is empty if it is not known yet.
    """
    if not kind:
        return
    if kind == TABLE:
        check_ending(out, TABLE_ENDINGS, allows_stdout=True)
        if label is not None:
            fact = "--label is for classes; this is a table"
            raise UsageError(fact, "pass --given column=value")
        return
    check_ending(out, PICTURE_ENDINGS if kind == PICTURES else _VECTOR_ENDINGS)
    if given:
        raise UsageError("--given is for tables", "pass --label for a class")


def _kind_of_flow(model: SlicedWassersteinFlow | ImageFlow, run: Path) -> str:
    """What a flow makes; an error if it completes pictures, and makes none."""
    from sliceflow import ImageFlow  # imports torch, which a table does not need

    if not isinstance(model, ImageFlow):
        return _VECTORS
    if model.known is not None:
        fact = f"{run} completes pictures, and makes none"
        raise UsageError(fact, "use sliceflow inpaint")
    return PICTURES


def _draw_rows(model: TableFlow, n: int, given: list[str], seed: int) -> pd.DataFrame:
    """A DataFrame of n new rows, with what is given in each of them."""
    conditions = parse_given_flags(model, given)
    return model.sample(n, given=conditions or None, random_state=seed)


def _sample_flow(
    model: SlicedWassersteinFlow | ImageFlow, out: Path, n: int, label: Any, seed: int
) -> None:
    """Write n new pictures or vectors, of one class or of all."""
    from sliceflow import ImageFlow

    samples, labels = model.sample(n, y=label, random_state=seed, return_y=True)
    x = np.asarray(from_tensor(samples))
    if isinstance(model, ImageFlow):
        write_pictures(out, x, model.plan_.layout, labels)
    else:
        write_arrays(out, labels, x=x)
