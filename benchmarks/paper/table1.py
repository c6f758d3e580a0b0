"""Table 1: FID on CIFAR-10 and CelebA, batched; beside it the offline samples' (Section 5.1).

python -m benchmarks.paper.table1 --scale full --data-root DATA --fid-weights WEIGHTS.pth
"""

from collections.abc import Sequence

from .common import command
from .unconditional import HEADER, cells, measured

PAPER = {  # FID in 2048 dimensions: CIFAR-10, CelebA
    "VAE": (155.7, 85.7),
    "SWAE": (107.9, 48.9),
    "WAE": (None, 42),
    "CWAE": (120.0, 49.7),
    "PixelCNN": (65.9, None),
    "EBM": (37.9, None),
    "WGAN": (55.2, 41.3),
    "WGAN-GP": (55.8, 30.0),
    "CSW": (36.8, None),
    "SWGAN": (17.0, 13.2),
    "NCSN": (25.3, None),
    "SWF (2019)": (">200", ">150"),
    "SINF": (66.5, 37.3),
    "the paper's, batched": (59.7, 38.3),
    "the paper's, offline": (61.1, None),
}
FACES = (
    "CelebA here is what is found of it, 500 faces held out; 10,000 faces at half size are not the "
    "paper's 160,000 or more at 178×218, and their score is not its score."
)


def main(arguments: Sequence[str] | None = None) -> dict:
    """Fit, score and draw both sets."""
    run = command("Table 1: no labels, batched and offline", "table1", __doc__, arguments)
    rows = {dataset: measured(run, dataset) for dataset in run.sets("cifar10", "celeba")}
    notes = ["The paper's FID (2048): CIFAR-10 59.7 batched, 61.1 offline; CelebA 38.3."]
    if "celeba" in rows:
        notes.append(FACES)
    scored = {dataset: row.pop("scorer") for dataset, row in rows.items()}
    lines = [line for row in rows.values() for line in cells(row)]
    numbers = {"rows": rows, "paper": PAPER, "notes": notes, "scored by": scored}
    return run.finish(HEADER, lines, numbers)


if __name__ == "__main__":
    main()
