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
from dataclasses import Field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from sliceflow.engine import transports

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

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


class HasOptions(Protocol):
    """The parameters of an estimator: a dataclass, with `options` that are another."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def options(self) -> DataclassInstance: ...


ParametersT = TypeVar("ParametersT", bound=HasOptions)
SettingsT = TypeVar("SettingsT", bound="DataclassInstance")


def with_preset(
    parameters: ParametersT, defaults: ParametersT, preset: Mapping[str, object]
) -> ParametersT:
    """The parameters, in which a preset replaces those left at their default.

    A setting of the preset that is not a parameter is one of the options.
    """
    own = {field.name for field in fields(parameters)}
    of_parameters = {name: value for name, value in preset.items() if name in own}
    of_options = {name: value for name, value in preset.items() if name not in own}
    options = _with_changed_defaults(parameters.options, defaults.options, of_options)
    changed = _with_changed_defaults(parameters, defaults, of_parameters)
    return replace(changed, options=options)


def _with_changed_defaults(
    settings: SettingsT, defaults: SettingsT, changed_defaults: Mapping[str, object]
) -> SettingsT:
    """The settings, where those equal to their default have another value."""
    changes = {
        name: value
        for name, value in changed_defaults.items()
        if getattr(settings, name) == getattr(defaults, name)
    }
    return replace(settings, **changes)
