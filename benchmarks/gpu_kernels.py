"""Every kernel at the sizes of the presets: its least work, its time, its shares of the rates."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import floors
import made_up
import torch
from presets import CIFAR10, CLASSES, MNIST, SEED, Preset
from report import table
from timing import own_seconds
from torch import Tensor

from sliceflow.engine.frames import rotation

__all__ = ["Case", "kernel_cases", "kernels_text", "measured_kernels"]

KNOTS, EXPONENT = 16, -12  # of maps that are kept
TABLE_VALUES = 10_000  # that the tables of `table_cases` are fitted to


@dataclass(frozen=True)
class Case:
    """A call of a kernel at one size, and the least it must do."""

    kernel: str
    size: str
    least: floors.Work
    work: Callable[[], object]


def _maps(k: ModuleType, z: Tensor, bins: int) -> tuple[Tensor, Tensor, Tensor]:
    """lo, hi and values of the maps that take z to 1.01 z: small displacements, as late in a flow."""
    counts, lo, hi = k.histogram(z, bins)
    values, _ = k.compose(counts, lo, hi, counts, 1.01 * lo, 1.01 * hi)
    return lo, hi, values.to(z.dtype)


def row_cases(k: ModuleType, h: int, m: int, device: torch.device) -> Iterator[Case]:
    """The kernels that work on projections (h, m)."""
    z = torch.randn((h, m), device=device)
    size = f"{h:,} × {m:,}"
    for bins in (256, 512, 1024):
        least = floors.histogram(h, m, bins)
        yield Case("histogram", f"{size}, {bins} bins", least, partial(k.histogram, z, bins))
    for bins in (256, 1024):
        maps = _maps(k, z, bins)
        least = floors.displace_grid(h, m, bins)
        yield Case("displace_grid", f"{size}, {bins} bins", least, partial(k.displace_grid, z, *maps))
    offsets = torch.randn((h, CLASSES), device=device)
    codes = torch.randint(CLASSES, (m,), device=device)
    yield Case(
        "add_class_offsets",
        f"{size}, {CLASSES} classes",
        floors.add_class_offsets(h, m, CLASSES),
        partial(k.add_class_offsets, z, offsets, codes),
    )


def table_cases(
    k: ModuleType, pack: Callable[..., object] | None, h: int, device: torch.device
) -> Iterator[Case]:
    """The kernels that work on the tables of h directions; `pack` is None where a device has none."""
    z = torch.randn((h, TABLE_VALUES), device=device)
    for bins in (256, 1024):
        size = f"{h:,} × {bins} bins"
        counts, lo, hi = k.histogram(z, bins)
        compose = partial(k.compose, counts, lo, hi, counts, lo, hi)
        yield Case("compose", size, floors.compose(h, bins), compose)
        maps = _maps(k, z, bins)
        keep = partial(k.at_bends, *maps, counts, KNOTS, EXPONENT)
        some = f"{size}, {KNOTS} knots"
        yield Case("at_bends", some, floors.at_bends(h, bins, KNOTS), keep)
        lo, hi, at, levels = keep()
        knots = (lo, hi, at, levels, bins, EXPONENT, z.dtype)
        least = floors.through_knots(h, bins, KNOTS)
        yield Case("through_knots", some, least, partial(k.through_knots, *knots))
        if pack is not None:
            yield Case("pack", size, floors.pack(h, bins), partial(pack, *maps))


def tile_cases(
    k: ModuleType,
    preset: Preset,
    patches: Sequence[int],
    m: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Iterator[Case]:
    """Projecting and moving m pictures cut into tiles, with 256 bins, or 1024 with labels."""
    x = made_up.cloud(preset.shape, m, device)
    codes = torch.randint(CLASSES, (m,), device=device)
    for patch in patches:
        cut = floors.geometry(preset.shape, patch)
        theta = rotation(SEED, 0, cut.side, device, dtype, k.lanes(cut.side))
        size = f"{preset.name} [{patch}], {cut.n_directions:,} × {m:,}"
        project = partial(k.project_tiles, x, theta, cut)
        yield Case("project_tiles", size, floors.project_tiles(cut, m), project)
        # Steps of a thousandth, so that any number of them leaves the pictures nearly as they are.
        maps = _maps(k, project(), 256)
        least = floors.move_tiles(cut, m, 256)
        yield Case("move_tiles", size, least, partial(k.move_tiles, x, theta, cut, *maps, 1e-3))
        offsets = 10 * torch.randn((cut.n_directions, CLASSES), device=device) / CLASSES**0.5
        maps = _maps(k, project(None, offsets, codes), 1024)
        least = floors.move_tiles(cut, m, 1024, CLASSES)
        move = partial(k.move_tiles, x, theta, cut, *maps, 1e-3, offsets, codes)
        yield Case("move_tiles, labels", size, least, move)


def kernel_cases(
    k: ModuleType,
    pack: Callable[..., object] | None,
    m: int,
    device: torch.device,
    dtype: torch.dtype = torch.float16,
    *,
    presets: Sequence[Preset] = (MNIST, CIFAR10),
    heights: Sequence[int] = (3072, 784),
    quick: bool = False,
) -> Iterator[Case]:
    """Every kernel of module `k` at the sizes that the presets need; rotations are of type `dtype`."""
    for h in heights[:1] if quick else heights:
        yield from row_cases(k, h, m, device)
    yield from table_cases(k, pack, heights[0], device)
    counters = 196 * m  # the numbers of m MNIST pictures
    philox = partial(k.philox, 0, counters, SEED.key, device)
    yield Case("philox", f"{counters:,} × 4 words", floors.philox(counters), philox)
    for preset in presets[:1] if quick else presets:
        patches = preset.top_patches
        yield from tile_cases(k, preset, patches[::3] if quick else patches, m, device, dtype)


def measured_kernels(cases: Iterator[Case], rates: floors.Rates, device: torch.device) -> list[dict]:
    """A row of numbers for every case."""
    rows = []
    for case in cases:
        seconds = own_seconds(case.work, device)
        rows.append(
            {
                "kernel": case.kernel,
                "size": case.size,
                "bytes": case.least.bytes,
                "operations": case.least.operations,
                "least seconds": case.least.least_seconds(rates),
                "seconds": seconds,
                "share of copy": case.least.share_of_copy(seconds, rates),
                "share of products": case.least.share_of_products(seconds, rates),
            }
        )
    return rows


def kernels_text(rows: Sequence[dict], rates: floors.Rates) -> str:
    """The table of the kernels, and what counting and displacing take together."""
    cells = [
        [
            row["kernel"],
            row["size"],
            f"{row['bytes'] / 1e6:,.1f}",
            f"{row['operations'] / 1e9:,.2f}",
            f"{1000 * row['least seconds']:.3f}",
            f"{1000 * row['seconds']:.3f}",
            f"{row['share of copy']:.0%}",
            "" if row["share of products"] is None else f"{row['share of products']:.0%}",
        ]
        for row in rows
    ]
    text = [
        "MB that must be moved at least; operations, of products where the last column has a share, "
        "elsewhere elementary ones, counted roughly; the least time at the rates above; and the time "
        "on the GPU itself, median of 20 calls. What fits into the cache may lie there, as in a step: "
        "hence shares above 100 %.",
        "",
        table(["kernel", "size", "MB", "Gop", "least ms", "ms", "of copy", "of products"], cells),
    ]
    count, displace = (
        next((r for r in rows if r["kernel"] == name and r["size"].endswith("256 bins")), None)
        for name in ("histogram", "displace_grid")
    )
    if count is not None and displace is not None:
        seconds = count["seconds"] + displace["seconds"]
        share = (count["bytes"] + displace["bytes"]) / seconds / rates.copy
        least = count["least seconds"] + displace["least seconds"]
        text += [
            "",
            f"Counting and displacing {count['size']}: {1000 * seconds:.2f} ms together, {share:.0%} "
            f"of a copy; as two passes they cannot take less than {1000 * least:.2f} ms.",
        ]
    return "\n".join(text)
