"""What the tables and figures share: sets and sizes of a scale, fits, the judge, what
is written.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gallery
import numpy as np
import torch
from judge import Judge, first, load_split
from report import keep, number, table
from runs import fit, mirrored

from sliceflow import ImageFlow
from sliceflow.datasets import Pictures

__all__ = ["SCALES", "FlowState", "Scale"]


@dataclass(frozen=True)
class Scale:
    """How much is computed. None where the set decides."""

    pictures: int | None
    steps: int | None
    particles: int | None
    network: dict[str, int] = field(default_factory=dict)


SCALES = {
    "tiny": Scale(300, 1, 300, {"width": 4, "epochs": 2}),  # to see that it runs
    "small": Scale(2_000, 8, 2_000, {"width": 8, "epochs": 8}),  # minutes on a CPU
    "full": Scale(None, None, None),  # one GPU
}


@dataclass
class FlowState:
    """One table or figure being made."""

    name: str
    title: str
    args: argparse.Namespace
    command: str

    @property
    def scale(self) -> Scale:
        return SCALES[self.args.scale]

    def choose(self, tiny: Any, small: Any, full: Any) -> Any:
        """The value for this scale."""
        return {"tiny": tiny, "small": small, "full": full}[self.args.scale]

    def sets(self, *wanted: str) -> list[str]:
        """The paper's sets where they are to be had; else digits stand for them."""
        if self.args.datasets:
            foreign = set(self.args.datasets) - {"digits", *wanted}
            if foreign:
                raise SystemExit(
                    f"{self.name} is of {', '.join(wanted)}; --datasets {' '.join(foreign)} is not"
                )
            return list(self.args.datasets)
        return list(wanted) if self.args.data_root else ["digits"]

    def read(self, dataset: str) -> tuple[Pictures, Pictures]:
        """Training and test pictures, as many as the scale allows."""
        train, test = load_split(dataset, self.args.data_root, self.scale.pictures)
        return train, first(test, self.scale.pictures)

    def settings(self, dataset: str) -> dict[str, Any]:
        """What every fit is given: steps per stage, particles, device."""
        return {
            "quality": self.args.quality
            or self.scale.steps
            or gallery.STEPS.get(dataset, 50),
            "n_particles": self.args.n_particles
            or self.scale.particles
            or gallery.PARTICLES.get(dataset, 60_000),
            "device": self.args.device,
        }

    def judge(self, train: Pictures, test: Pictures) -> Judge:
        """The judge of this set's samples; its network is trained once."""
        return _judge(
            self.args.out,
            self.args.device,
            self.args.fid_weights,
            self.args.scale,
            train,
            test,
        )

    def fitted(
        self, train: Pictures, labels: np.ndarray | None = None, **settings: Any
    ) -> tuple[ImageFlow, dict[str, Any]]:
        """A flow, and the beginning of its row: the set, particles, steps and seconds."""
        flow, cost = fit(train, labels, **{**self.settings(train.name), **settings})
        row = {"set": train.name, "particles": cost.particles, "steps": cost.steps}
        return flow, row | {"seconds": cost.seconds}

    def path(self, label: str, train: Pictures | None = None) -> Path:
        """Where a picture goes: .jpg for photographs, else .png."""
        photographs = train is not None and train.images.ndim == 4
        return self.args.out / f"{self.name}-{label}.{'jpg' if photographs else 'png'}"

    def finish(
        self, rows: Sequence[dict[str, Any]], *notes: object
    ) -> list[dict[str, Any]]:
        """Write and print the table and its numbers."""
        header = list(dict.fromkeys(key for row in rows for key in row))
        cells = [[number(row.get(key)) for key in header] for row in rows]
        text = "\n\n".join(
            [f"### {self.title}", table(header, cells), *map(str, notes)]
        )
        keep(
            self.args.out / self.name,
            text,
            list(rows),
            torch.device(self.args.device),
            self.command,
        )
        return list(rows)


_judges: dict[tuple[Any, ...], Judge] = {}


def _judge(
    out: Path,
    device: str,
    weights: Path | None,
    scale: str,
    train: Pictures,
    test: Pictures,
) -> Judge:
    """The same judge for every table and figure of a run."""
    key = (out, device, weights, scale, train.name)
    if key not in _judges:
        options = {
            "cache": out / "networks",
            "fid_weights": weights,
            "mirror": mirrored(train),
        }
        _judges[key] = Judge(train, test, device, **options, **SCALES[scale].network)
    return _judges[key]
