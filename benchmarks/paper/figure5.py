"""Figures 5 and 12: test pictures of the four sets completed, ξ = 1.

python -m benchmarks.paper.figure5 --scale full --data-root DATA
"""

from collections.abc import Sequence
from typing import Any

import gallery
import numpy as np
from runs import name

from sliceflow import ImageFlow
from sliceflow.datasets import Pictures
from sliceflow.spaces.pictures.layout import MASKS

from .common import Scorer, command, number

KEYS = ("observed pixels kept", "FD", "FD floor", "recognised", "recognised floor")
GIVEN = {  # what is shown of a set's pictures
    "digits": "top",
    "mnist": "top",
    "fashion-mnist": "left",
    "cifar10": "left",
    "celeba": "border",
}
MOST = 500  # test pictures to complete


def measured(flow: ImageFlow, test: Pictures, given: str, scorer: Scorer) -> dict[str, Any]:
    """Are observed pixels kept, and are completed pictures recognised as what they were?"""
    images = test.images[:MOST]
    labels = None if test.labels is None else test.labels[:MOST]
    completed = flow.inpaint(images, 1, random_state=1)[:, 0]
    known = MASKS[given](*images.shape[1:3])
    out = scorer.score(completed, labels)
    out["observed pixels kept"] = float(np.mean(completed[:, known] == images[:, known]))
    if labels is not None:
        out["recognised floor"] = scorer.network.score(images, labels)
    out["FD floor"] = scorer.score(images)["FD"]  # of the same pictures as they were
    return out


def main(arguments: Sequence[str] | None = None) -> dict:
    """Fit, complete and draw each set."""
    run = command("Figures 5 and 12: pictures completed", "figure5", __doc__, arguments)
    rows, lines, scored = {}, [], {}
    for dataset in run.sets("mnist", "fashion-mnist", "cifar10", "celeba"):
        train, test = run.read(dataset)
        scorer, given = run.scorer(train, test), GIVEN[dataset]

        def measure(flow, test=test, given=given, scorer=scorer):
            return measured(flow, test, given, scorer)

        path, settings = run.path(dataset, train), run.settings(dataset)
        made = gallery.inpainting(path, train, test, settings, given, measure)
        rows[dataset], scored[dataset], (cost,) = made, scorer, made["fits"]
        scores = [number(made.get(key)) for key in KEYS]
        lines.append(
            [name(train), gallery.GIVEN[given], f"{cost.steps:,}", f"{cost.seconds:.1f}", *scores]
        )
    notes = ["Floors are those of the same test pictures, whole."]
    header = ["set", "given", "steps", "seconds", *KEYS]
    return run.finish(header, lines, {"rows": rows, "notes": notes, "scored by": scored})


if __name__ == "__main__":
    main()
