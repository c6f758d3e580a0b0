"""Table 4: the number of particles M.

python -m benchmarks.paper.table4 --scale full --data-root DATA
"""

from collections.abc import Sequence

from runs import fit, name

from . import curves
from .common import command, number

PAPER = {100_000: 64.0, 300_000: 61.4, 700_000: 59.7}  # M: FID in 2048 dimensions, CIFAR-10


def main(arguments: Sequence[str] | None = None) -> dict:
    """Fit one set with few to many particles."""
    run = command("Table 4: particles", "table4", __doc__, arguments)
    (dataset,) = run.sets("cifar10")
    train, test = run.read(dataset)
    scorer, settings = run.scorer(train, test), run.settings(dataset)
    sizes = run.scale.choose(
        tiny=[200, 400], small=[500, 2000, 8000], full=[10_000, 30_000, 100_000, 300_000, 700_000]
    )
    rows = []
    for m in sizes:
        flow, cost = fit(train, n_knots=0, **settings | {"n_particles": m})
        score = scorer.score(flow.particles_[: min(sizes)])  # as many samples of each
        rows.append({"particles": m, "steps": cost.steps, "seconds": cost.seconds, **score})
    points = [(r["particles"], f"{r['seconds']:.1f} s", r) for r in rows]
    title = f"{name(train)}: {rows[0]['samples']:,} samples, {settings['quality']} steps per stage"
    curves.draw(run.path(dataset), {"ours": points}, title, "particles M")
    keys = ("particles", "steps", "seconds", "samples", "FD", "FD floor", "FID")
    lines = [
        [f"{r[k]:,}" if isinstance(r.get(k), int) else number(r.get(k)) for k in keys] for r in rows
    ]
    notes = [
        f"{name(train)}, {len(train.images):,} pictures. The paper, FID (2048) on CIFAR-10: "
        "M = 100,000 64.0, 300,000 61.4, 700,000 59.7."
    ]
    numbers = {"rows": rows, "paper": PAPER, "notes": notes, "scored by": {dataset: scorer}}
    return run.finish(keys, lines, numbers)


if __name__ == "__main__":
    main()
