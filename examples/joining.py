"""Clothes join digits: a model learns new classes without being told the old ones again, and forgets.

    python examples/joining.py --out examples-out
    python examples/joining.py --data-root DATA --device cuda --quality 8 --n-particles 60000

writes joining.png: samples after a fit of the first classes, after `partial_fit` of the others, and after
`forget` of one. The model keeps its rows, so forgetting leaves no trace: the file is, byte for byte, that
of a model that never saw the class.
"""

import numpy as np
from grids import BLUE, ORANGE, Panel, by_class, sheet
from runs import arguments

from sliceflow import ImageFlow
from sliceflow.datasets import load


def main() -> None:
    """Fit, add, forget, and draw."""
    args = arguments(__doc__)
    if args.data_root is None:  # the digits from 5 on stand for the clothes
        digits = load("digits")
        images = digits.images
        labels = digits.labels
        values = digits.n_pixel_values
    else:
        sets = [load(name, root=args.data_root) for name in ("mnist", "fashion-mnist")]
        images = np.concatenate([pictures.images for pictures in sets])
        labels = np.concatenate((sets[0].labels, sets[1].labels + 10))
        values = 256
    known = labels < np.unique(labels).size // 2
    flow = ImageFlow(
        quality=args.quality,
        n_particles=args.n_particles,
        n_pixel_values=values,
        keep_rows=True,
        device=args.device,
        random_state=0,
    )

    def drawn(title: str, colour: str) -> Panel:
        return Panel(
            by_class(flow.particles_, flow.particle_conditions_, 6), title, colour
        )

    panels = [(flow.fit(images[known], labels[known]), drawn("fit", BLUE))[1]]
    flow.partial_fit(images[~known], labels[~known])
    panels.append(drawn("partial_fit of the others", ORANGE))
    last = labels == labels.max()
    flow.forget(images[last], labels[last])
    panels.append(drawn("forget the last class", BLUE))
    print(
        sheet(
            args.out / "joining.png",
            panels,
            values,
            "Classes that join, and one that goes",
        )
    )


if __name__ == "__main__":
    main()
