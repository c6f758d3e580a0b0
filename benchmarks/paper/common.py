"""What tables and figures share: sets and sizes of a scale, fits, the judge, files."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import gallery
import numpy as np
import runs
import torch
from judge import Judge, load_split, slice_pictures
from report import Row, table_of_rows, write_report

from sliceflow import ImageFlow
from sliceflow.datasets import PictureSet

__all__ = ["SCALES", "PaperRun", "Scale"]

Value = TypeVar("Value")


@dataclass(frozen=True)
class Scale:
    """How much is computed. None where the set decides."""

    pictures: int | None = None
    steps: int | None = None
    particles: int | None = None
    network_width: int | None = None
    network_epochs: int | None = None


SCALES = {
    "tiny": Scale(  # to see that it runs
        pictures=300, steps=1, particles=300, network_width=4, network_epochs=2
    ),
    "small": Scale(  # minutes on a CPU
        pictures=2_000, steps=8, particles=2_000, network_width=8, network_epochs=8
    ),
    "full": Scale(),  # one GPU
}
# Of sets that the gallery has no numbers for, which are digits.
USUAL_STEPS = 50
USUAL_PARTICLES = 60_000


@dataclass
class PaperRun:
    """One table or figure being made."""

    name: str
    title: str
    args: argparse.Namespace
    command: str

    @property
    def scale(self) -> Scale:
        """How much is computed."""
        return SCALES[self.args.scale]

    def choose(self, tiny: Value, small: Value, full: Value) -> Value:
        """The value for this scale."""
        return {"tiny": tiny, "small": small, "full": full}[self.args.scale]

    def sets(self, *paper_sets: str) -> list[str]:
        """The paper's sets where they are to be had; else digits stand for them."""
        if self.args.datasets:
            foreign = set(self.args.datasets) - {"digits", *paper_sets}
            if foreign:
                wanted = ", ".join(paper_sets)
                given = " ".join(foreign)
                raise SystemExit(
                    f"{self.name} is of {wanted}; --datasets {given} is not"
                )
            return list(self.args.datasets)
        if self.args.data_root:
            return list(paper_sets)
        return ["digits"]

    def read(self, dataset: str) -> tuple[PictureSet, PictureSet]:
        """Training and test pictures, as many as the scale allows."""
        train, test = load_split(dataset, self.args.data_root, self.scale.pictures)
        return train, slice_pictures(test, stop=self.scale.pictures)

    def settings(self, dataset: str) -> dict[str, Any]:
        """What every fit is given: steps per stage, particles, device.

        The command line decides, else the scale, else the set.
        """
        steps_per_stage = first_given(
            self.args.steps_per_stage,
            self.scale.steps,
            gallery.STEPS.get(dataset, USUAL_STEPS),
        )
        n_particles = first_given(
            self.args.n_particles,
            self.scale.particles,
            gallery.PARTICLES.get(dataset, USUAL_PARTICLES),
        )
        return {
            "steps_per_stage": steps_per_stage,
            "n_particles": n_particles,
            "device": self.args.device,
        }

    def judge(self, train: PictureSet, test: PictureSet) -> Judge:
        """The judge of this set's samples, the same for every table and figure."""
        args = self.args
        key = (args.out, args.device, args.fid_weights, args.scale, train.name)
        if key not in _judges:
            _judges[key] = Judge(
                train,
                test,
                args.device,
                cache=args.out / "networks",
                fid_weights=args.fid_weights,
                mirror=runs.mirrored(train),
                width=self.scale.network_width,
                epochs=self.scale.network_epochs,
            )
        return _judges[key]

    def fit(
        self, train: PictureSet, labels: np.ndarray | None = None, **settings: Any
    ) -> tuple[ImageFlow, Row]:
        """A flow, and the beginning of its row: set, particles, steps and seconds."""
        flow, cost = runs.fit(train, labels, **self.settings(train.name) | settings)
        row = {
            "set": train.name,
            "particles": cost.particles,
            "steps": cost.steps,
            "seconds": cost.seconds,
        }
        return flow, row

    def path(self, label: str, train: PictureSet | None = None) -> Path:
        """Where a picture goes: .jpg for photographs, else .png."""
        suffix = "png"
        if train is not None and train.images.ndim == 4:
            suffix = "jpg"
        return self.args.out / f"{self.name}-{label}.{suffix}"

    def finish(self, rows: Sequence[Row], *notes: object) -> list[Row]:
        """Write and print the table and its numbers; notes are paragraphs below it."""
        header: dict[str, None] = {}
        for row in rows:
            header |= dict.fromkeys(row)
        table = table_of_rows(list(header), rows)
        text = "\n\n".join([f"### {self.title}", table, *map(str, notes)])
        device = torch.device(self.args.device)
        write_report(self.args.out / self.name, text, rows, device, self.command)
        return list(rows)


def first_given(*values: int | None) -> int:
    """The first that is not None."""
    for value in values:
        if value is not None:
            return value
    raise ValueError("all are None")


# By output folder, device, weights of FID, scale and set: training them takes long.
_judges: dict[tuple[Path, str, Path | None, str, str], Judge] = {}
