"""Makes the model files of the current format, with samples drawn from them: python tests/data/make.py.

Files of earlier formats stay as they are: they must keep loading.
"""

import json
import math
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from sliceflow import ImageFlow, PictureOptions, SlicedWassersteinFlow, VectorOptions
from sliceflow.engine.transports import Histogram
from sliceflow.storage.models import FORMAT

HERE = Path(__file__).parent
RNG = np.random.default_rng(0)


def main() -> None:
    x = RNG.normal(size=(200, 3)) @ RNG.normal(size=(3, 3)) + 1
    names = [("even", 0), ("odd", 1)]
    options = dict(device="cpu", random_state=0)
    vectors = SlicedWassersteinFlow(400, 12, **options, options=VectorOptions(n_knots=16)).fit(
        x, [names[i % 2] for i in range(200)]
    )
    keep("vectors", vectors, {"y": [None], "samples": [vectors.sample(4, random_state=0).tolist()]})

    images = RNG.integers(0, 17, (150, 6, 6)).astype(np.uint8)
    options |= dict(schedule="1[1] 3[3] 6[3,1]", quality=3, n_pixel_values=17, n_particles=300)
    options["options"] = PictureOptions(n_knots=16)
    labels = np.array(["a", "b"])[np.arange(150) % 2]
    pictures = ImageFlow(**options, transport=Histogram(16)).fit(images, labels)  # so few stay grids
    ys = [None, "b"]
    samples = [pictures.sample(4, y, random_state=0).tolist() for y in ys]
    keep("pictures", pictures, {"y": ys, "samples": samples})

    digits = load_digits()
    classes = ImageFlow(
        **options | dict(schedule="1[1] 4[3] 8[3]", quality=2, options=PictureOptions(n_knots=8)),
        transport="histogram",
        amplifier=math.inf,
    ).fit(digits.images[:400].astype(np.uint8), digits.target[:400] % 2)
    ys = [None, 1, [1, 0, 0, 1]]
    samples = [classes.sample(4, y, random_state=0).tolist() for y in ys]
    keep("classes", classes, {"y": ys, "samples": samples})

    bends = ImageFlow(
        **options | dict(schedule="1[1] 4[3] 8[3]", quality=2, options=PictureOptions(n_knots=2)),
        transport="histogram",
        amplifier=10,
    ).fit(digits.images[:400].astype(np.uint8), digits.target[:400] % 2)
    samples = [bends.sample(4, y, random_state=0).tolist() for y in ys]
    keep("bends", bends, {"y": ys, "samples": samples})

    inpainting = ImageFlow(**options | dict(options=PictureOptions(n_knots=2)), observed="top").fit(
        images
    )
    completed = inpainting.inpaint(images[:3], 2, random_state=0).tolist()
    keep("inpainting", inpainting, {"pictures": images[:3].tolist(), "inpaint": completed})


def keep(name: str, flow: SlicedWassersteinFlow | ImageFlow, recorded: dict[str, object]) -> None:
    path = HERE / f"{name}-{FORMAT}.sliceflow"
    flow.save(path)
    path.with_suffix(".json").write_text(json.dumps(recorded) + "\n")


if __name__ == "__main__":
    main()
