"""Presets: `preset="paper"` gives the settings of Du et al. (ICML 2023) as printed.

The values stand with the parameters, in `paper.py` of vectors and of pictures, each
with its source in the paper. `tests/engine/test_algorithm1.py` compares the engine with
Algorithm 1, step by step. What still differs:

- η is the dimension of a resolution of the pyramid, and at most H, as in the authors'
  script.
- The printed algorithm subtracts η·v̂. It must be added: v̂ already points to the data.
- Particles have classes in exactly the data's proportions; the paper draws them at
  random.
- Offline samples use maps with fewer knots. The paper keeps all particles and data as
  knots.
- The paper does not say how many particles the CDFs of CIFAR-10 and CelebA use; see
  `PaperTransport(batch_size=)`.
"""

from __future__ import annotations

from dataclasses import Field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

N_DIRECTIONS = 10_000  # Sec. 6: H


class HasOptions(Protocol):
    """The parameters of an estimator: a dataclass with a dataclass of `options`."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def options(self) -> DataclassInstance: ...


ParametersT = TypeVar("ParametersT", bound=HasOptions)
SettingsT = TypeVar("SettingsT", bound="DataclassInstance")


def with_preset(
    parameters: ParametersT, defaults: ParametersT, preset: ParametersT
) -> ParametersT:
    """The parameters, in which a preset replaces those left at their default.

    `preset` has the preset's values, and the defaults where the preset says nothing.
    Options are replaced one by one.
    """
    options = _with_changed_defaults(
        parameters.options, defaults.options, preset.options
    )
    changed = _with_changed_defaults(parameters, defaults, preset)
    return replace(changed, options=options)


def _with_changed_defaults(
    settings: SettingsT, defaults: SettingsT, preset: SettingsT
) -> SettingsT:
    """The settings; each that equals its default has the value of the preset."""
    changes = {}
    for field in fields(settings):
        default = getattr(defaults, field.name)
        value = getattr(preset, field.name)
        if value != default and getattr(settings, field.name) == default:
            changes[field.name] = value
    return replace(settings, **changes)
