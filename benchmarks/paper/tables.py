"""The paper's tables: FID, schedules, directions, particles; its method beside ours."""

from __future__ import annotations

from typing import Any

from report import Row

from sliceflow import ImageOptions
from sliceflow.estimators.pictures import schedules

from .common import PaperRun
from .figures import measure_samples

# Table 2, as printed.
FINE = "15,13,11,9,7,5,3"
COARSE = "1[1] 2[2] 3[3] 4[4] 5[5] 6[6]"
MNIST = f"{COARSE} 7[7,5,3] 11[11,9,7,5,3] 14[14,13,11,9,7,5,3] 21[{FINE}] 28[{FINE}]"
CIFAR = f"{COARSE} 7[7] 8[8,7,5,3] 12[12,11,9,7,5,3] 16[{FINE}] 24[{FINE}] 32[{FINE}]"
SCHEDULES = {  # by set: the side of its pictures, and its schedule
    "mnist": (28, MNIST),
    "cifar10": (32, CIFAR),
    "celeba": (64, f"{CIFAR} 64[{FINE}]"),
}


def table1(run: PaperRun) -> list[Row]:
    """CIFAR-10 and CelebA without labels, batched and offline."""
    rows = []
    for dataset in run.sets("cifar10", "celeba"):
        rows += measure_samples(run, dataset)
    return run.finish(
        rows,
        "The paper's FID, in 2048 dimensions: CIFAR-10 59.7 batched, 61.1 offline; "
        "CelebA 38.3. Others there: SWF (2019) > 200 and > 150, SINF 66.5 and 37.3, "
        "SWGAN 17.0 and 13.2, NCSN 25.3.",
        "FID-768 and FD are other numbers than FID in 2048 dimensions.",
    )


def table2(run: PaperRun) -> list[Row]:
    """Whether `schedule="paper"` is the paper's."""
    rows = []
    for dataset, (side, schedule) in SCHEDULES.items():
        is_ours = "no"
        if schedules.paper(side, side) == schedule:
            is_ours = "yes"
        rows.append(
            {
                "set": dataset,
                "the paper's schedule": f"`{schedule}`",
                "stages": len(schedules.from_string(schedule, side, side)),
                "is ours": is_ours,
            }
        )
    return run.finish(rows)


def as_printed(run: PaperRun, n_directions: int) -> dict[str, Any]:
    """Settings of the paper's method as printed, with fewer steps."""
    options = ImageOptions(n_knots=0, n_directions=n_directions)
    return {
        "preset": "paper",
        "options": options,
        "steps_per_stage": run.choose(1, 3, 30),
    }


def table3(run: PaperRun) -> list[Row]:
    """The number of directions H; our frames fix it, and have steps to choose."""
    (dataset,) = run.sets("cifar10")
    train, test = run.read(dataset)
    judge = run.judge(train, test)
    rows = []
    for h in run.choose([16, 64], [100, 300, 1_000], [1_000, 5_000, 10_000]):
        flow, row = run.fit(train, **as_printed(run, h))
        row["method"] = f"as printed, H = {h:,}"
        rows.append(row | judge.score(flow.particles_))
    for n_steps in run.choose([1, 2], [3, 8, 30], [3, 8, 30, 100]):
        flow, row = run.fit(train, steps_per_stage=n_steps, n_knots=0)
        row["method"] = f"ours, {n_steps} a stage"
        rows.append(row | judge.score(flow.particles_))
    note = "The paper's FID on CIFAR-10: H = 1000 90.8, 5000 68.1, 10,000 59.7."
    return run.finish(rows, note, judge)


def table4(run: PaperRun) -> list[Row]:
    """The number of particles M."""
    (dataset,) = run.sets("cifar10")
    train, test = run.read(dataset)
    judge = run.judge(train, test)
    tiny = [200, 400]
    small = [500, 2_000, 8_000]
    full = [10_000, 100_000, 300_000, 700_000]
    sizes = run.choose(tiny, small, full)
    rows = []
    for m in sizes:
        flow, row = run.fit(train, n_particles=m, n_knots=0)
        scored = flow.particles_[: min(sizes)]  # as many samples of each
        rows.append(row | judge.score(scored))
    note = "The paper's FID on CIFAR-10: M = 100,000 64.0, 300,000 61.4, 700,000 59.7."
    return run.finish(rows, note, judge)


def printed(run: PaperRun) -> list[Row]:
    """The paper's method as printed beside ours, without labels and by class."""
    paper_settings = as_printed(run, run.choose(16, 300, 2_000))
    our_settings = {"n_knots": 0}
    rows = []
    for dataset in run.sets("mnist", "cifar10"):
        train, test = run.read(dataset)
        judge = run.judge(train, test)
        for labels in (None, train.labels):
            for version, settings in (
                ("as printed", paper_settings),
                ("ours", our_settings),
            ):
                flow, row = run.fit(train, labels, **settings)
                row["method"] = f"{flow.plan_.method}, {version}"
                scores = judge.score(flow.particles_, flow.particle_conditions_)
                rows.append(row | scores)
    note = "As printed has fewer directions and steps than the paper's 10,000 and 300."
    return run.finish(rows, note)


TABLES = {
    "table1": table1,
    "table2": table2,
    "table3": table3,
    "table4": table4,
    "printed": printed,
}
