"""The settings of the paper, for `preset="paper"`: Du et al. (ICML 2023) as printed.

`VECTORS` and `PICTURES` are parameters of the two estimators, each with its source in
the paper. `tests/engine/test_algorithm1.py` compares the engine with Algorithm 1, step
by step. What still differs:

- η is the dimension of a resolution of the pyramid, and at most H, as in the authors'
  script.
- The printed algorithm subtracts η·v̂. It must be added: v̂ already points to the data.
- Particles have classes in exactly the data's proportions; the paper draws them at
  random.
- Offline samples use maps with fewer knots. The paper keeps all particles and data as
  knots.
- The paper does not say how many particles the CDFs of CIFAR-10 and CelebA use; see
  `Interpolated(max_samples=)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sliceflow.engine import transports

N_DIRECTIONS = 10_000  # Sec. 6: H

_VECTORS_AND_PICTURES = {
    # App. C.2: linear interpolation of both sorted samples
    "transport": transports.Interpolated(),
    "amplifier": 10.0,  # Sec. 6.2.1: ξ = 10 for all data sets
    "taper": 0.0,  # Algorithm 1: every step has the same size η; Sec. 6: η = d
    "shrinkage": 0.0,  # Algorithm 1: maps as they were fitted
}
VECTORS = _VECTORS_AND_PICTURES | {
    # Algorithm 1: θ uniform on the sphere of R^(d+l), redrawn at every step; Sec. 6:
    # H = 10,000 for pictures. Rows of d columns take 64·d directions, at most 10,000
    "frame": "paper",
    "condition_mode": "joint",  # Sec. 4: one flow of x and y together
    "entropy": 0.0,  # Sec. 3.4, footnote: the Laplacian term is ignored
    "standardize": False,  # Algorithm 1: unscaled data; the start is N(0, I)
    "n_axis_steps": 0,  # Algorithm 1: random directions only
    "smoothing": 0.0,  # Algorithm 1: the data themselves
}
PICTURES = _VECTORS_AND_PICTURES | {
    "schedule": "paper",  # Table 2
    # Sec. 6: K = 10,000 to 20,000 steps in all; 300 for each of the 35, 38 or 45 stages
    # of Table 2 are 10,500, 11,400 and 13,500
    "steps_per_stage": 300,
    "patch_basis": "random",  # Sec. 5.1: locally-connected projections
    # Sec. 6: H = 10,000, for 784 values and more; small pictures take as many per value
    "n_directions": "auto",
    "n_clusters": 1,  # Sec. 6.1: one flow for all pictures
    "start": "noise",  # Algorithm 1
    "start_noise": 1.0,  # Algorithm 1: N(0, I)
    "dequantize_every": "step",  # App. C: dynamically at each step
    "clip": False,  # the paper does not mention it
}


def with_preset(
    parameters: Mapping[str, Any],
    defaults: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """The parameters, in which a preset replaces those left at their default.

    `parameters` and `defaults` are those of an estimator, by name, with `options` that
    are not None. A setting of the preset that is not a parameter is a field of the
    options.
    """
    resolved = dict(parameters)
    options = parameters["options"]
    changes = {}
    for name, value in settings.items():
        if name in defaults:
            if _equal(parameters[name], defaults[name]):
                resolved[name] = value
        elif getattr(options, name) == getattr(defaults["options"], name):
            changes[name] = value
    resolved["options"] = replace(options, **changes)
    return resolved


def _equal(value: Any, other: Any) -> bool:
    return value is other or bool(value == other)
