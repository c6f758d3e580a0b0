"""Table 3: the number of directions H. In our frames it is fixed; the matching knob is steps: both.

    python -m benchmarks.paper.table3 --scale full --data-root DATA

The paper's Algorithm 1, in plain torch, with few steps per stage and H directions in each; ours with
few to many steps per stage of as many orthogonal directions as there are coefficients.
"""

from collections.abc import Sequence

from compare_paper_step import paper_flow
from runs import fit, name

from sliceflow.devices import resolve_device
from sliceflow.spaces.pictures import schedules

from . import curves
from .common import command, number

PAPER = {1000: 90.8, 5000: 68.1, 10_000: 59.7}  # H: FID in 2048 dimensions, CIFAR-10


def main(arguments: Sequence[str] | None = None) -> dict:
    """Run both knobs on one set."""
    run = command("Table 3: directions, or steps", "table3", __doc__, arguments)
    (dataset,) = run.sets("cifar10")
    train, test = run.read(dataset)
    scorer, settings = run.scorer(train, test), run.settings(dataset)
    device = resolve_device(run.args.device)
    directions = run.scale.choose(tiny=[16, 64], small=[100, 300, 1000], full=list(PAPER))
    their_steps = run.scale.choose(tiny=1, small=5, full=3)
    our_steps = run.scale.choose(tiny=[1, 2], small=[3, 10, 30], full=[3, 10, 30, 100, 300])
    m = run.args.n_particles or run.scale.choose(tiny=300, small=2000, full=50_000)
    text = schedules.PRESETS.get(dataset) or schedules.auto(*train.images.shape[1:3])
    rows = []
    for h in directions:
        images, seconds = paper_flow(train, text, m, h, their_steps, min(h, 1000), device)
        knob = {"flow": "Algorithm 1", "directions": f"{h:,}", "steps per stage": their_steps}
        rows.append(knob | {"seconds": seconds, **scorer.score(images)})
    for steps in our_steps:
        given = settings | {"quality": steps, "n_particles": m, "schedule": text}
        flow, cost = fit(train, n_knots=0, **given)
        knob = {"flow": "ours", "directions": "orthogonal", "steps per stage": steps}
        rows.append(knob | {"seconds": cost.seconds, **scorer.score(flow.particles_)})

    def points(flow: str, word: str) -> list[tuple[float, str, dict]]:
        return [(r["seconds"], word.format(r), r) for r in rows if r["flow"] == flow]

    both = {
        "Algorithm 1": points("Algorithm 1", "H = {0[directions]}"),
        "ours": points("ours", "{0[steps per stage]} steps"),
    }
    title = f"{name(train)}, {m:,} particles: directions, or steps per stage"
    curves.draw(run.path(dataset), both, title, "seconds of steps (ours: of the whole fit)")
    header = ("flow", "directions", "steps per stage", "seconds", "FD", "FD floor", "FID")
    lines = [
        [str(r[key]) for key in header[:3]] + [number(r.get(key)) for key in header[3:]] for r in rows
    ]
    notes = [
        f"{name(train)}, {len(train.images):,} pictures, {m:,} particles, schedule `{text}`.",
        "The paper, FID (2048) on CIFAR-10: H = 1000 90.8, 5000 68.1, 10,000 59.7.",
    ]
    numbers = {"rows": rows, "paper": PAPER, "schedule": text, "notes": notes}
    return run.finish(header, lines, numbers | {"scored by": {dataset: scorer}})


if __name__ == "__main__":
    main()
