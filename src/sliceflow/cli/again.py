"""``sliceflow evaluate``: a finished run measured once more, with its own data or others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sliceflow.cli.data import Data, read
from sliceflow.cli.evaluate import Measures, draw_neighbours, measure
from sliceflow.cli.failures import Failed, WrongUsage
from sliceflow.cli.run_folder import RunFolder
from sliceflow.cli.settings import Settings
from sliceflow.datasets import available, sets

__all__ = ["evaluate"]


def evaluate(run: Path, against: str | None, root: Path | None, device: str) -> Measures:
    """Measure the run in a folder.

    `against` are data to be measured with in place of the run's own held-out ones: a set, a path, or
    the folder that holds the run's own set. Without it the result is kept in the run folder.
    """
    folder = RunFolder(run)
    folder.check_finished()
    settings = Settings.of(folder)
    train, test = _own(settings, root)
    called = "held-out rows"
    if against is not None:
        test, called = _other(settings, against, root, train), f"rows of {against}"
    flow: Any = RunFolder.model(run, device)
    kept = folder.samples()
    batched = kept["images" if train.pictures else "x"]
    measures = measure(flow, train, test, batched=batched, labels=kept.get("labels"), called=called)
    if against is not None and test is not None:
        words = (measures.note, *_fitted(test, train), *test.notes)
        return replace(measures, note="; ".join(words))
    folder.write_json("evaluation.json", measures.as_dict())
    draw_neighbours(batched, train, folder / "neighbours.png", mirror=settings.mirror)
    return measures


def _own(settings: Settings, root: Path | None) -> tuple[Data, Data | None]:
    """The data of the run."""
    try:
        return read(
            settings.source,
            root=root or (None if settings.data_root is None else Path(settings.data_root)),
            size=settings.size,
            target=settings.target,
            drop=settings.drop,
            keep=settings.keep,
            skip_broken=settings.skip_broken,
            holdout=settings.holdout,
        )
    except Failed as error:
        raise Failed(
            f"the data of the run cannot be read again: {error}",
            "run this where the run was made, with its data in place (--data-root for a named set)",
        ) from error


def _other(settings: Settings, against: str, root: Path | None, train: Data) -> Data:
    """Data to measure with: the test split of a set, all of anything else."""
    folder = Path(against).expanduser()
    if settings.source in sets.SETS and folder.is_dir() and available(folder)[settings.source]:
        against, root = settings.source, folder
    sized = folder.is_dir() or against == "celeba"
    whole, held = read(
        against,
        root=root,
        size=settings.size if sized else None,
        columns=train.columns,
        skip_broken=settings.skip_broken,
        holdout=0,
    )
    test = whole if held is None else held
    if test.x.shape[1:] != train.x.shape[1:]:
        raise WrongUsage(
            f"--against {against} has {test.what}, the run {train.what}",
            "pass data like those that were fitted",
        )
    if _has_pixel_values_of(test, train, folder):
        most = train.n_pixel_values - 1
        note = f"its pixels, 0 to {int(test.x.max())}, are taken as the run's, 0 to {most}"
        return replace(
            test, x=test.x.astype(train.x.dtype), n_pixel_values=train.n_pixel_values, notes=(note,)
        )
    return test.like(train)


def _has_pixel_values_of(test: Data, train: Data, path: Path) -> bool:
    """Whether whole pixels of an array file, which does not say its levels, have the run's own."""
    whole = test.x.dtype.kind in "iu" and train.x.dtype.kind in "iu"
    fewer = train.n_pixel_values < test.n_pixel_values and path.suffix.lower() in (".npy", ".npz")
    return train.pictures and whole and fewer and bool(test.x.max() < train.n_pixel_values)


def _fitted(test: Data, train: Data) -> list[str]:
    """A word on rows that were fitted: they say nothing about new ones."""
    seen = {row.tobytes() for row in np.ascontiguousarray(train.x)}
    both = sum(row.tobytes() in seen for row in np.ascontiguousarray(test.x.astype(train.x.dtype)))
    return [f"not held out: {both} of the {len(test.x)} rows were fitted"] if both else []
