"""Is it copying? Samples beside the training pictures that are nearest to them.

    python examples/neighbours.py --out examples-out

writes `neighbours.png`. Left: batched samples, no labels. Right: test pictures, which no model has
seen, as the measure of what to expect. After each, its five nearest training pictures. The samples are
copies if they look more like their neighbours than the test pictures look like theirs.
"""

from pathlib import Path

import numpy as np
import torch
from grids import BLUE, INK, Panel, sheet
from runs import arguments, mirrored, name, read, samples, settings

from sliceflow.checks import resolve_device
from sliceflow.datasets import Pictures

N_ROWS, N_NEAREST, BLOCK = 10, 5, 4096


def nearest(
    images: np.ndarray, train: Pictures, k: int = 1, device: str = "auto"
) -> tuple[np.ndarray, np.ndarray]:
    """The k training pictures (n, k, h, w[, c]) nearest to each image, and their distances (n, k).

    Pixels are numbers in [-1, 1], as in the metrics. Where the flow was fitted to mirror images too, a
    training picture is turned if that brings it nearer. Memory: one block of them as floats.
    """
    where = resolve_device(device)

    def rows(pictures: np.ndarray) -> torch.Tensor:
        # Small whole numbers: exact in TF32 too.
        values = torch.from_numpy(pictures.reshape(len(pictures), -1)).to(where).float()
        return values - train.levels // 2

    views = [rows(images), rows(images[:, :, ::-1])][: 1 + mirrored(train)]
    best = torch.empty(len(images), 0, device=where)
    index = best.long()
    for first in range(0, len(train.images), BLOCK):
        theirs = rows(train.images[first : first + BLOCK])
        products = torch.stack([ours @ theirs.T for ours in views]).amax(0)
        squares = theirs.square().sum(1) - 2 * products  # less |ours|², the same for all
        number = torch.arange(first, first + len(theirs), device=where).expand_as(squares)
        best, kept = torch.cat((best, squares), 1).topk(min(k, first + len(theirs)), largest=False)
        index = torch.cat((index, number), 1).gather(1, kept)
    found = train.images[index.cpu().numpy()]
    distances = np.empty(found.shape[:2])
    for j in range(found.shape[1]):
        theirs = rows(found[:, j])
        nearer = torch.stack([(ours - theirs).norm(dim=1) for ours in views]).min(0)
        distances[:, j] = nearer.values.cpu() * 2 / (train.levels - 1)
        turned = nearer.indices.cpu().numpy() == 1
        found[turned, j] = found[turned, j][:, :, ::-1]
    return found, distances


def nn_ratio(images: np.ndarray, train: Pictures, test: Pictures, device: str = "auto") -> float:
    """`sliceflow.metrics.nn_ratio` of at most 2000 pictures, on the device: quick on large sets."""
    ours, theirs = (
        np.median(nearest(part[:2000], train, 1, device)[1]) for part in (images, test.images)
    )
    return float(ours / theirs)


def draw(path: Path, train: Pictures, test: Pictures, settings: dict) -> dict:
    """Fit, find the neighbours, draw them."""
    images, cost = samples(train, **settings)
    device = settings["device"]
    ratio = nn_ratio(images, train, test, device)
    panels = []
    for what, group, colour in (("sample", images, BLUE), ("test", test.images, INK)):
        group = group[:N_ROWS]
        found, distances = nearest(group, train, N_NEAREST, device)
        numbers = [f"{d:.1f}" for d in distances[:, 0]]
        panels += [
            Panel(group[:, None], what, colour, row_names=numbers),
            Panel(found, "nearest training pictures"),
        ]
    title = f"{name(train)}, no labels: {cost}. Numbers are distances to the nearest training picture. "
    title += f"NN ratio {ratio:.2f} (1 is ideal, near 0 is copying)."
    sheet(path, panels, train.levels, title)
    return {"fits": [cost], "NN ratio": ratio}


def main() -> None:
    """Draw the neighbours of one set."""
    args = arguments(__doc__)
    path = args.out / "neighbours.png"
    print(f"NN ratio {draw(path, *read(args), settings(args))['NN ratio']:.3f}")
    print("wrote", path)


if __name__ == "__main__":
    main()
