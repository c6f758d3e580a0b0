"""The paper's figures: directions, ablation, samples, classes, completions, amplifier, neighbours."""

from __future__ import annotations

from typing import Any

import amplifier
import appendix_a
import gallery
import local_and_pyramid
import matplotlib
import nearest
import numpy as np
import torch
from grids import BLUE, ORANGE, Panel, by_class, sheet
from runs import class_names, name

from sliceflow.engine.random import Seed
from sliceflow.spaces.pictures.layout import MASKS
from sliceflow.spaces.pictures.pyramid import PyramidLevel
from sliceflow.spaces.pictures.tiles import Tiles

from .common import FlowState

matplotlib.use("Agg")
import matplotlib.pyplot as plt

Rows = list[dict[str, Any]]
SIDE = 28
COLUMNS = 6
LEVELS = ((28, 7), (28, 3), (14, 7), (14, 3), (7, 3), (4, 4))  # resolution, patch
GIVEN = {
    "digits": "top",
    "mnist": "top",
    "fashion-mnist": "left",
    "cifar10": "left",
    "celeba": "border",
}


def directions(level: int, patch: int) -> np.ndarray:
    """(COLUMNS, SIDE, SIDE): directions of a frame of tiles at a level, as they act on pictures."""
    frame = Tiles(1, level, level, patch).draw(Seed(0), 1, torch.zeros(level**2, 1), 0)
    lifted = frame.lift(torch.eye(frame.n_directions))  # (level², directions)
    # The tiles in the middle, not those that hang over the border.
    inside = torch.argsort(lifted.norm(dim=0), descending=True, stable=True)
    chosen = inside[torch.linspace(0, len(inside) // 2, COLUMNS).long()]
    up = PyramidLevel(1, SIDE, SIDE, level, level).extend(lifted[:, chosen])
    return up.T.reshape(COLUMNS, SIDE, SIDE).numpy()


def figure1(run: FlowState) -> Rows:
    """Local directions, and those of a coarser level brought to the picture's resolution."""
    fig, axes = plt.subplots(
        len(LEVELS), COLUMNS, figsize=(8.4, 9), layout="constrained"
    )
    rows = []
    for line, (level, patch) in zip(axes, LEVELS, strict=True):
        drawn = directions(level, patch)
        for ax, theta in zip(line, drawn, strict=True):
            shown = ax.imshow(theta / np.abs(theta).max(), cmap="RdBu", vmin=-1, vmax=1)
            ax.set(xticks=(), yticks=())
        line[0].set_ylabel(f"{level}×{level}\npatch {patch}×{patch}")
        length = float(np.linalg.norm(drawn.reshape(COLUMNS, -1), axis=1).max())
        rows.append({"level[patch]": f"{level}[{patch}]", "longest direction": length})
    fig.colorbar(
        shown, ax=axes, shrink=0.4, label="weight of a pixel, over the largest"
    )
    fig.savefig(run.path("directions"), dpi=90)
    plt.close(fig)
    return run.finish(rows, "Directions have length 1.")


def figure2(run: FlowState) -> Rows:
    """Uniform directions, local ones, local ones in a pyramid; equally many steps."""
    rows = []
    for dataset in run.sets("mnist", "cifar10"):
        train, test = run.read(dataset)
        found = local_and_pyramid.draw(
            run.path(dataset, train), train, test, run.settings(dataset)
        )
        costs = [None, *found["fits"]]  # real pictures were not fitted
        for (strategy, score), cost in zip(found["scores"].items(), costs, strict=True):
            work = (
                {} if cost is None else {"steps": cost.steps, "seconds": cost.seconds}
            )
            rows.append({"set": dataset, "directions": strategy, **work, **score})
    return run.finish(rows)


def samples_of(run: FlowState, dataset: str) -> Rows:
    """Batched and offline samples without labels, drawn and scored."""
    train, test = run.read(dataset)
    flow, row = run.fitted(train)
    fresh = flow.sample(min(50_000, len(flow.particles_)), random_state=1)
    grid = [x[:80].reshape(8, 10, *x.shape[1:]) for x in (flow.particles_, fresh)]
    panels = [
        Panel(grid[0], "batched: the particles", BLUE),
        Panel(grid[1], "offline: new noise through the kept maps", ORANGE),
    ]
    sheet(
        run.path(dataset, train),
        panels,
        train.n_pixel_values,
        f"{name(train)}, no labels",
    )
    judge = run.judge(train, test)
    return [
        {**row, "samples are": "batched", **judge.score(flow.particles_)},
        {"set": dataset, "samples are": "offline", **judge.score(fresh)},
    ]


def figure3(run: FlowState) -> Rows:
    """Figures 3, 8 and 10: samples without labels, batched and offline."""
    sets = run.sets("mnist", "fashion-mnist", "cifar10", "celeba")
    return run.finish([row for dataset in sets for row in samples_of(run, dataset)])


def figure4(run: FlowState) -> Rows:
    """Figures 4 and 11: samples by class, ξ = 10."""
    rows = []
    for dataset in run.sets("mnist", "fashion-mnist", "cifar10"):
        train, test = run.read(dataset)
        flow, row = run.fitted(train, train.labels, amplifier=10.0)
        grid = by_class(flow.particles_, flow.particle_conditions_, 10)
        panel = Panel(grid, row_names=class_names(train))
        sheet(
            run.path(dataset, train),
            [panel],
            train.n_pixel_values,
            f"{name(train)} by class",
        )
        scores = run.judge(train, test).score(
            flow.particles_, flow.particle_conditions_
        )
        rows.append(row | scores)
    return run.finish(rows)


def figure5(run: FlowState) -> Rows:
    """Figures 5 and 12: test pictures completed, ξ = 1."""
    rows = []
    for dataset in run.sets("mnist", "fashion-mnist", "cifar10", "celeba"):
        train, test = run.read(dataset)
        given = GIVEN[dataset]
        judge = run.judge(train, test)
        known = MASKS[given](*test.images.shape[1:3])
        images = test.images[:500]
        labels = None if test.labels is None else test.labels[:500]

        def measure(
            flow: Any, images: np.ndarray = images, known: np.ndarray = known
        ) -> dict[str, Any]:
            done = flow.inpaint(images, random_state=1)[:, 0]
            same = float(np.mean(done[:, known] == images[:, known]))
            return {"done": done, "known pixels kept": same}

        path = run.path(dataset, train)
        settings = run.settings(dataset)
        found = gallery.inpainting(path, train, test, settings, given, measure)
        (cost,) = found.pop("fits")
        done = found.pop("done")
        row = {"set": dataset, "known": given, "seconds": cost.seconds, **found}
        rows.append(row | judge.score(done, labels))
    return run.finish(rows)


def figure6(run: FlowState) -> Rows:
    """Joint, ideal and conditional flows of two Gaussians (Appendix A)."""
    shares = appendix_a.draw(run.path("appendix-a"))
    return run.finish(
        [
            {"flow": flow, "reach the target at their own height": share}
            for flow, share in shares.items()
        ]
    )


def figure7(run: FlowState) -> Rows:
    """The amplifier ξ = 0, 2, 5, 10 on the sets with classes."""
    rows = []
    for dataset in run.sets("mnist", "fashion-mnist", "cifar10"):
        train, test = run.read(dataset)
        network = run.judge(train, test).network
        path = run.path(dataset, train)
        settings = run.settings(dataset)
        found = amplifier.draw(path, train, test, settings, network.predict)
        for (xi, share), cost in zip(
            found["recognised"].items(), found["fits"], strict=True
        ):
            rows.append(
                {"set": dataset, "ξ": xi, "seconds": cost.seconds, "recognised": share}
            )
        rows.append(
            {"set": dataset, "ξ": "real", "recognised": found["real ones recognised"]}
        )
    return run.finish(rows)


def figure9(run: FlowState) -> Rows:
    """Nearest training pictures of samples."""
    rows = []
    for dataset in run.sets("mnist", "fashion-mnist", "cifar10", "celeba"):
        train, test = run.read(dataset)
        found = nearest.draw(
            run.path(dataset, train), train, test, run.settings(dataset)
        )
        (cost,) = found["fits"]
        rows.append(
            {"set": dataset, "seconds": cost.seconds, "NN ratio": found["NN ratio"]}
        )
    return run.finish(rows, "1 is ideal, near 0 is copying.")


FIGURES = {
    "figure1": figure1,
    "figure2": figure2,
    "figure3": figure3,
    "figure4": figure4,
    "figure5": figure5,
    "figure6": figure6,
    "figure7": figure7,
    "figure9": figure9,
}
