"""Whole steps at every stage of a preset: wall time, the GPU's own, the least."""

import time
from functools import partial

import floors
import made_up
import torch
from presets import CLASSES, SEED, Preset
from report import table
from timing import steps_own_seconds, steps_seconds

from sliceflow import ImageFlow, PictureOptions
from sliceflow.devices import columns_looked_at
from sliceflow.engine import transports
from sliceflow.engine.events import Listener
from sliceflow.spaces.pictures.tiles import Tiles

__all__ = ["measured_stages", "stages_text"]


def measured_stages(
    preset: Preset,
    m: int,
    rates: floors.Rates,
    device: torch.device,
    *,
    n_steps: int = 33,
    n_profiled: int = 9,
    labels: bool = False,
) -> dict:
    """Seconds per step of every stage, through `ImageFlow.fit` on made-up pictures.

    Of `n_steps` steps the first is not timed, so that 33 are one block of rotations.
    """
    images = made_up.pictures(preset.shape, preset.n_data, device)
    classes = torch.arange(preset.n_data).numpy() % CLASSES if labels else None
    bins = 128

    def fit(steps: int, listeners: tuple[Listener, ...] = ()) -> None:
        ImageFlow(
            preset.schedule,
            m,
            steps,
            device=device,
            random_state=SEED.entropy,
            transport=transports.Histogram(bins),
            n_clusters=1,
            options=PictureOptions(n_knots=0),
        ).fit(images, classes, listeners=listeners)

    began = time.perf_counter()
    fit(1)
    first_fit = time.perf_counter() - began
    began = time.perf_counter()
    seconds = steps_seconds(partial(fit, n_steps), n_steps, device)
    rest = time.perf_counter() - began - n_steps * sum(seconds)
    own = steps_own_seconds(partial(fit, n_profiled), n_profiled) if device.type == "cuda" else []

    stages = preset.stages()
    directions = max(Tiles(preset.shape[0], s.h, s.w, s.patch).most_directions for s in stages)
    most = columns_looked_at(transports.MOST, directions, device)
    looked = [n if most is None else n // -(-n // most) for n in (m, preset.n_data)]
    rows = []
    for i, (stage, taken) in enumerate(zip(stages, seconds, strict=True)):
        cut = floors.geometry((preset.shape[0], stage.h, stage.w), stage.patch)
        least = floors.step(cut, m, *looked, bins)
        rows.append(
            {
                "stage": f"{stage.h}×{stage.w}[{stage.patch}]",
                "directions": cut.n_directions,
                "bytes": least.bytes,
                "operations": least.operations,
                "least seconds": least.least_seconds(rates),
                "seconds": taken,
                "own seconds": own[i] if len(own) == len(seconds) else None,
            }
        )
    return {
        "preset": preset.name,
        "labels": labels,
        "particles": m,
        "pictures": preset.n_data,
        "stages": rows,
        "rest seconds": rest,
        "first fit seconds": first_fit,
    }


def stages_text(numbers: dict, n: int = 100) -> str:
    """The table of a preset's stages, with the sum for n steps per stage."""
    rows, rest = numbers["stages"], numbers["rest seconds"]

    def cells(row: dict) -> list[str]:
        taken, own, least = row["seconds"], row["own seconds"], row["least seconds"]
        return [
            f"{1000 * taken:.3f}",
            "" if own is None else f"{1000 * own:.3f}",
            "" if own is None else f"{own / taken:.0%}",
            f"{1000 * least:.3f}",
            f"{taken / least:.1f}x",
            f"{n * taken:.3f}",
        ]

    own = [row["own seconds"] for row in rows]
    sums = {
        "seconds": sum(row["seconds"] for row in rows),
        "own seconds": None if None in own else sum(own),
        "least seconds": sum(row["least seconds"] for row in rows),
    }
    total = n * sums["seconds"]
    kind = "class labels" if numbers["labels"] else "unconditional"
    head = ["ms per step", "GPU's own ms", "GPU busy", "least ms", "over least", f"n = {n}: s"]
    body = [[row["stage"], f"{row['directions']:,}", *cells(row)] for row in rows]
    return "\n".join(
        [
            f"Preset {numbers['preset']}, {kind}, M = {numbers['particles']:,}, "
            f"N = {numbers['pictures']:,} made-up pictures, no model kept. The least: x read once to "
            "count and once to move, and written once; or the products, if those take longer.",
            "",
            table(["stage", "directions", *head], [*body, ["sum", "", *cells(sums)]]),
            "",
            f"`fit` with n = {n}: {total:.2f} s of steps and {rest:.2f} s of reading, encoding, the "
            f"pyramid and writing, {total + rest:.2f} s in all. The first fit, of one step per stage, "
            f"took {numbers['first fit seconds']:.1f} s: it compiles.",
        ]
    )
