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
from sliceflow.models.saved import FORMAT

HERE = Path(__file__).parent
RNG = np.random.default_rng(0)


def main() -> None:
    x = RNG.normal(size=(200, 3)) @ RNG.normal(size=(3, 3)) + 1
    names = [("even", 0), ("odd", 1)]
    on = dict(device="cpu", random_state=0)
    vectors = SlicedWassersteinFlow(400, 12, options=VectorOptions(n_knots=16), **on)
    vectors.fit(x, [names[i % 2] for i in range(200)])
    keep("vectors", vectors, {"y": [None], "samples": [vectors.sample(4, random_state=0).tolist()]})

    images = RNG.integers(0, 17, (150, 6, 6)).astype(np.uint8)
    on |= dict(n_pixel_values=17, n_particles=300)
    levels = dict(schedule="1[1] 3[3] 6[3] 6[1]=1", quality=3, **on)
    labels = np.array(["a", "b"])[np.arange(150) % 2]
    grids = dict(transport=Histogram(16), options=PictureOptions(n_knots=16))  # so few bins stay grids
    pictures = ImageFlow(**levels, **grids).fit(images, labels)
    ys = [None, "b"]
    samples = [pictures.sample(4, y, random_state=0).tolist() for y in ys]
    keep("pictures", pictures, {"y": ys, "samples": samples})

    digits = load_digits()
    counted = dict(schedule="1[1] 4[3] 8[3]", quality=2, transport="histogram", **on)
    classes = ImageFlow(**counted, amplifier=math.inf, options=PictureOptions(n_knots=8)).fit(
        digits.images[:400].astype(np.uint8), digits.target[:400] % 2
    )
    ys = [None, 1, [1, 0, 0, 1]]
    samples = [classes.sample(4, y, random_state=0).tolist() for y in ys]
    keep("classes", classes, {"y": ys, "samples": samples})

    bends = ImageFlow(**counted, amplifier=10, options=PictureOptions(n_knots=2)).fit(
        digits.images[:400].astype(np.uint8), digits.target[:400] % 2
    )
    samples = [bends.sample(4, y, random_state=0).tolist() for y in ys]
    keep("bends", bends, {"y": ys, "samples": samples})

    inpainting = ImageFlow(**levels, observed="top", options=PictureOptions(n_knots=2)).fit(images)
    completed = inpainting.inpaint(images[:3], 2, random_state=0).tolist()
    keep("inpainting", inpainting, {"pictures": images[:3].tolist(), "inpaint": completed})

    colours = RNG.integers(0, 17, (220, 4, 4, 3)).astype(np.uint8)
    counted |= dict(schedule="2[2] 4[3]", mirror=True)
    sums = ImageFlow(**counted, options=PictureOptions(n_knots=4))
    sums.fit(colours, np.arange(220) % 2)
    ys = [None, 1]
    samples = [sums.sample(4, y, random_state=0).tolist() for y in ys]
    keep("sums", sums, {"y": ys, "samples": samples})

    rng = np.random.default_rng(0)
    y = rng.uniform(-1, 1, (200, 2))
    y[:, 1] = np.round(y[:, 1], 1)
    x = np.c_[np.sin(2 * y[:, :1]), y[:, 1:] ** 2] + 0.1 * rng.normal(size=(200, 2))
    near = dict(condition="local", device="cpu", random_state=0)
    local = SlicedWassersteinFlow(**near).fit(x, y)
    ys = [[0.5, 0.1], [[0.1 * i, 0.3] for i in range(4)]]
    samples = [local.sample(4, at, random_state=0).tolist() for at in ys]
    keep("local", local, {"y": ys, "samples": samples})

    named = np.empty((200, 2), dtype=object)
    named[:, 0], named[:, 1] = np.array(["a", "b"])[np.arange(200) % 2], y[:, 0]
    mixed = SlicedWassersteinFlow(**near).fit(x, named)
    ys = [[["b", 0.1 * i] for i in range(4)]]
    samples = [mixed.sample(4, at, random_state=0).tolist() for at in ys]
    keep("mixed", mixed, {"y": ys, "samples": samples})


def keep(name: str, flow: SlicedWassersteinFlow | ImageFlow, recorded: dict[str, object]) -> None:
    path = HERE / f"{name}-{FORMAT}.sliceflow"
    flow.save(path)
    path.with_suffix(".json").write_text(json.dumps(recorded) + "\n")


if __name__ == "__main__":
    main()
