"""The paper's figures: directions, samples, classes, completions, neighbors, …"""

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
from report import Row
from runs import class_names, name

from sliceflow import ImageFlow
from sliceflow.datasets import PictureSet
from sliceflow.engine.random import Seed
from sliceflow.estimators.pictures.known_parts import KNOWN_PARTS
from sliceflow.estimators.pictures.pyramid import PyramidSubspace
from sliceflow.estimators.pictures.tiles import Tiles

from .common import PaperRun

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# Figure 1: directions of pictures as large as MNIST's.
SIDE = 28
N_COLUMNS = 6
LEVELS = ((28, 7), (28, 3), (14, 7), (14, 3), (7, 3), (4, 4))  # resolution, patch
# Figure 3: at most as many samples as FID is usually measured with.
MAX_OFFLINE_SAMPLES = 50_000
# Figure 5: the parts of pictures that are known, and how many are completed.
PARTS_OF_SETS = {
    "digits": "top",
    "mnist": "top",
    "fashion-mnist": "left",
    "cifar10": "left",
    "celeba": "border",
}
N_COMPLETED = 500


def directions(resolution: int, patch: int) -> np.ndarray:
    """(6, 28, 28) directions of tiles at a resolution, as they act on pictures."""
    kind = Tiles(1, resolution, resolution, patch)
    frame = kind.make_frame(Seed(0), 1, torch.zeros(resolution**2, 1), 0)
    n_directions = frame.geometry.n_directions
    lifted = frame.lift(torch.eye(n_directions))  # (resolution², directions)
    # The tiles in the middle, not those that hang over the border.
    inside = torch.argsort(lifted.norm(dim=0), descending=True, stable=True)
    chosen = inside[torch.linspace(0, len(inside) // 2, N_COLUMNS).long()]
    pictures = PyramidSubspace(1, SIDE, SIDE, resolution, resolution).embed(
        lifted[:, chosen]
    )
    return pictures.T.reshape(N_COLUMNS, SIDE, SIDE).numpy()


def figure1(run: PaperRun) -> list[Row]:
    """Local directions, and those of coarser levels at the picture's resolution."""
    figure, axes = plt.subplots(
        len(LEVELS), N_COLUMNS, figsize=(8.4, 9), layout="constrained"
    )
    rows = []
    for row_axes, (level, patch) in zip(axes, LEVELS, strict=True):
        thetas = directions(level, patch)
        for ax, theta in zip(row_axes, thetas, strict=True):
            weights = theta / np.abs(theta).max()
            image = ax.imshow(weights, cmap="RdBu", vmin=-1, vmax=1)
            ax.set(xticks=(), yticks=())
        row_axes[0].set_ylabel(f"{level}×{level}\npatch {patch}×{patch}")
        lengths = np.linalg.norm(thetas.reshape(N_COLUMNS, -1), axis=1)
        rows.append(
            {
                "level[patch]": f"{level}[{patch}]",
                "longest direction": float(lengths.max()),
            }
        )
    figure.colorbar(
        image, ax=axes, shrink=0.4, label="weight of a pixel, over the largest"
    )
    figure.savefig(run.path("directions"), dpi=90)
    plt.close(figure)
    return run.finish(rows, "Directions have length 1.")


def figure2(run: PaperRun) -> list[Row]:
    """Uniform directions, local ones, local ones in a pyramid; equally many steps."""
    rows = []
    for dataset in run.sets("mnist", "cifar10"):
        train, test = run.read(dataset)
        path = run.path(dataset, train)
        results = local_and_pyramid.draw(path, train, test, run.settings(dataset))
        flow_scores = dict(results["scores"])
        real_scores = flow_scores.pop("real")
        rows.append({"set": dataset, "directions": "real"} | real_scores)
        for flow_name, cost in zip(flow_scores, results["fits"], strict=True):
            row = {
                "set": dataset,
                "directions": flow_name,
                "steps": cost.steps,
                "seconds": cost.seconds,
            }
            rows.append(row | flow_scores[flow_name])
    return run.finish(rows)


def measure_samples(run: PaperRun, dataset: str) -> list[Row]:
    """Batched and offline samples without labels, drawn and scored."""
    train, test = run.read(dataset)
    flow, row = run.fit(train)
    batched = flow.particles_
    offline = flow.sample(min(MAX_OFFLINE_SAMPLES, len(batched)), random_state=1)
    panels = [
        Panel(sample_grid(batched), "batched: the particles", BLUE),
        Panel(sample_grid(offline), "offline: new noise through the kept maps", ORANGE),
    ]
    title = f"{name(train)}, no labels"
    sheet(run.path(dataset, train), panels, train.n_pixel_values, title)
    judge = run.judge(train, test)
    return [
        {**row, "samples are": "batched", **judge.score(batched)},
        {"set": dataset, "samples are": "offline", **judge.score(offline)},
    ]


def sample_grid(images: np.ndarray) -> np.ndarray:
    """The first 80 pictures in eight lines of ten."""
    return images[:80].reshape(8, 10, *images.shape[1:])


def figure3(run: PaperRun) -> list[Row]:
    """Figures 3, 8 and 10: samples without labels, batched and offline."""
    rows = []
    for dataset in run.sets("mnist", "fashion-mnist", "cifar10", "celeba"):
        rows += measure_samples(run, dataset)
    return run.finish(rows)


def figure4(run: PaperRun) -> list[Row]:
    """Figures 4 and 11: samples by class, ξ = 10."""
    rows = []
    for dataset in run.sets("mnist", "fashion-mnist", "cifar10"):
        train, test = run.read(dataset)
        flow, row = run.fit(train, train.labels, amplifier=10.0)
        images = flow.particles_
        labels = flow.particle_conditions_
        panel = Panel(by_class(images, labels, 10), row_names=class_names(train))
        title = f"{name(train)} by class"
        sheet(run.path(dataset, train), [panel], train.n_pixel_values, title)
        rows.append(row | run.judge(train, test).score(images, labels))
    return run.finish(rows)


def figure5(run: PaperRun) -> list[Row]:
    """Figures 5 and 12: test pictures completed, ξ = 1."""
    rows = []
    for dataset in run.sets("mnist", "fashion-mnist", "cifar10", "celeba"):
        train, test = run.read(dataset)
        rows.append(measure_completions(run, train, test))
    return run.finish(rows)


def measure_completions(run: PaperRun, train: PictureSet, test: PictureSet) -> Row:
    """Completions of a set's test pictures, drawn and scored."""
    part = PARTS_OF_SETS[train.name]
    known = KNOWN_PARTS[part](*test.images.shape[1:3])
    images = test.images[:N_COMPLETED]
    labels = test.labels
    if labels is not None:
        labels = labels[:N_COMPLETED]

    def measure(flow: ImageFlow) -> dict[str, Any]:
        completed = flow.inpaint(images, random_state=1)[:, 0]
        same = float(np.mean(completed[:, known] == images[:, known]))
        return {"completed": completed, "known pixels kept": same}

    results = gallery.inpainting(
        run.path(train.name, train),
        train,
        test,
        run.settings(train.name),
        part,
        measure,
    )
    (cost,) = results["fits"]
    row = {
        "set": train.name,
        "known": part,
        "seconds": cost.seconds,
        "known pixels kept": results["known pixels kept"],
    }
    return row | run.judge(train, test).score(results["completed"], labels)


def figure6(run: PaperRun) -> list[Row]:
    """Joint, ideal and conditional flows of two Gaussians (Appendix A)."""
    shares = appendix_a.draw(run.path("appendix-a"))
    rows = []
    for flow_name, share in shares.items():
        rows.append({"flow": flow_name, "reach the target at their own height": share})
    return run.finish(rows)


def figure7(run: PaperRun) -> list[Row]:
    """The amplifier ξ = 0, 2, 5, 10 on the sets with classes."""
    rows: list[Row] = []
    for dataset in run.sets("mnist", "fashion-mnist", "cifar10"):
        train, test = run.read(dataset)
        network = run.judge(train, test).network
        path = run.path(dataset, train)
        settings = run.settings(dataset)
        results = amplifier.draw(path, train, test, settings, network.predict)
        shares = results["recognized"]
        for xi, cost in zip(shares, results["fits"], strict=True):
            rows.append(
                {
                    "set": dataset,
                    "ξ": xi,
                    "seconds": cost.seconds,
                    "recognized": shares[xi],
                }
            )
        real_share = results["real ones recognized"]
        rows.append({"set": dataset, "ξ": "real", "recognized": real_share})
    return run.finish(rows)


def figure9(run: PaperRun) -> list[Row]:
    """Nearest training pictures of samples."""
    rows = []
    for dataset in run.sets("mnist", "fashion-mnist", "cifar10", "celeba"):
        train, test = run.read(dataset)
        path = run.path(dataset, train)
        results = nearest.draw(path, train, test, run.settings(dataset))
        (cost,) = results["fits"]
        row = {
            "set": dataset,
            "seconds": cost.seconds,
            "NN ratio": results["NN ratio"],
        }
        rows.append(row)
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
