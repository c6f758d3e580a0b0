"""Batched and offline samples of one set, drawn and scored: the ground of Table 1 and Figure 3."""

import time
from typing import Any

import numpy as np
from grids import BLUE, ORANGE, Panel, sheet
from runs import fit, name

from .common import MOST, Command, number

__all__ = ["HEADER", "cells", "measured"]

HEADER = (
    "set", "pictures", "samples", "particles", "steps", "seconds", "FD", "FD floor", "NN ratio", "FID",
)  # fmt: skip


def measured(run: Command, dataset: str, shape: tuple[int, int] = (8, 10)) -> dict[str, Any]:
    """Fit without labels, keep the maps; draw and score particles and fresh samples side by side."""
    train, test = run.read(dataset)
    scorer = run.scorer(train, test)
    flow, cost = fit(train, **run.settings(dataset))
    n = min(50_000 if run.args.fid_weights else MOST, len(flow.particles_))
    began = time.perf_counter()
    offline = flow.sample(n, random_state=1)
    seconds = time.perf_counter() - began

    def grid(images: np.ndarray) -> np.ndarray:
        return images[: shape[0] * shape[1]].reshape(*shape, *images.shape[1:])

    panels = [
        Panel(grid(flow.particles_), "batched: the particles", BLUE),
        Panel(grid(offline), "offline: new noise through the kept maps", ORANGE),
    ]
    sheet(run.path(dataset, train), panels, train.n_pixel_values, f"{name(train)}, no labels: {cost}")
    kinds = {"batched": flow.particles_[:n], "offline": offline}
    scores = {
        kind: {**scorer.score(images), "NN ratio": scorer.nn_ratio(images)}
        for kind, images in kinds.items()
    }
    return {
        "set": name(train),
        "pictures": len(train.images),
        "fit": cost,
        "offline seconds": seconds,
        "knots": flow.options.n_knots,
        "scores": scores,
        "scorer": scorer,
    }


def cells(row: dict[str, Any]) -> list[list[str]]:
    """The table's lines of one set."""
    cost, out = row["fit"], []
    for kind, score in row["scores"].items():
        seconds = {"batched": cost.seconds, "offline": row["offline seconds"]}.get(kind)
        work = [f"{cost.particles:,}", f"{cost.steps:,}"] if kind == "batched" else ["", ""]
        numbers = [score["FD"], score["FD floor"], score.get("NN ratio"), score.get("FID")]
        pictures = f"{row['pictures']:,}"
        out.append([row["set"], pictures, kind, *work, number(seconds), *map(number, numbers)])
    return out
