"""``sliceflow evaluate``: a finished run measured once more, with its own data or others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sliceflow.cli.data import Data, read
from sliceflow.cli.evaluate import Measures, measure
from sliceflow.cli.failures import Failed, WrongUsage
from sliceflow.cli.run_folder import RunFolder
from sliceflow.cli.settings import Settings

__all__ = ["evaluate"]


def evaluate(run: Path, against: str | None, root: Path | None, device: str) -> Measures:
    """Measure the run in a folder and keep the result there.

    `against` are data to be measured with in place of the run's own held-out ones.
    """
    if not run.is_dir():
        raise WrongUsage(f"{run} is not a run folder", "name the folder that sliceflow fit made")
    folder = RunFolder(run)
    settings = Settings(**folder.read_json("config.json")["settings"])
    flow: Any = RunFolder.model(run, device)
    train, test = _read(settings, settings.source, root)
    if against is not None:
        whole, held = _read(settings, against, root)
        test = whole if held is None else held
    if test is not None and test.x.shape[1:] != train.x.shape[1:]:
        raise WrongUsage(
            f"--against {against} is of shape {test.x.shape[1:]}, the run of {train.x.shape[1:]}",
            "pass data like those that were fitted",
        )
    with np.load(folder / "samples.npz") as kept:
        batched = kept["images" if train.pictures else "x"]
    measures = measure(flow, train, test, batched=batched)
    if against is None:
        folder.write_json("evaluation.json", measures.as_dict())
    return measures


def _read(settings: Settings, source: str, root: Path | None) -> tuple[Data, Data | None]:
    try:
        return read(
            source,
            root=root or (None if settings.data_root is None else Path(settings.data_root)),
            size=settings.size,
            target=settings.target,
            skip_broken=settings.skip_broken,
            holdout=settings.holdout,
        )
    except WrongUsage as error:
        raise Failed(str(error), "the data must be where they were when the run was made") from error
