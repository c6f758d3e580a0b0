"""The parameters of an `ImageFlow`, checked and typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from sliceflow.arrays import Mask
from sliceflow.engine.transports import Transport, TransportName
from sliceflow.estimators.pictures.known_parts import KnownPart
from sliceflow.estimators.pictures.layout import MAX_PIXEL_VALUES
from sliceflow.estimators.pictures.options import ImageOptions
from sliceflow.estimators.pictures.schedules import MAX_STEPS
from sliceflow.validation import (
    require,
    require_choice,
    require_int,
    require_real,
    with_plain_numbers,
)

# Names for the number of steps of a stage; `choices.STEPS_OF_QUALITY` has the numbers.
Quality = Literal["draft", "standard", "best"]
# The directions of a patch; "random" stands for the paper's random patches, not tiles.
PatchBasis = Literal["pixels", "cosines", "random"]
Preset = Literal["paper"]


@dataclass(frozen=True, eq=False)
class PictureParameters:
    """The parameters of an `ImageFlow` that a fit needs, checked.

    A preset is applied, and `options` are never None. Values of "auto" are not resolved
    yet: that needs the pictures, and happens in the plan of a fit.
    """

    schedule: str
    n_particles: int | None
    quality: Quality
    steps_per_stage: int | None
    amplifier: Literal["auto"] | float
    n_pixel_values: int
    mirror: bool
    known: KnownPart | Mask | None
    transport: TransportName | Transport
    patch_basis: Literal["auto"] | PatchBasis
    n_clusters: Literal["auto"] | int
    preset: Preset | None
    options: ImageOptions

    @classmethod
    def from_dict(cls, parameters: Mapping[str, Any]) -> Self:
        """Parameters by name, as `require_valid_parameters` accepts them.

        Those that a fit does not need, such as `verbose`, are left out.
        """
        checked = cls(
            schedule=parameters["schedule"],
            n_particles=parameters["n_particles"],
            quality=parameters["quality"],
            steps_per_stage=parameters["steps_per_stage"],
            amplifier=parameters["amplifier"],
            n_pixel_values=parameters["n_pixel_values"],
            mirror=bool(parameters["mirror"]),
            known=parameters["known"],
            transport=parameters["transport"],
            patch_basis=parameters["patch_basis"],
            n_clusters=parameters["n_clusters"],
            preset=parameters["preset"],
            options=parameters["options"],
        )
        return with_plain_numbers(checked)


def require_valid_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise a `ParameterError` for the first invalid parameter of pictures alone."""
    require_choice(
        "quality",
        parameters["quality"],
        get_args(Quality),
        "steps_per_stage= takes a number",
    )
    require_int(
        "steps_per_stage",
        parameters["steps_per_stage"],
        1,
        maximum=MAX_STEPS,
        others=(None,),
    )
    schedule = parameters["schedule"]
    is_text = isinstance(schedule, str)
    require(is_text, "schedule", schedule, "a string: 'auto', 'paper' or stages")
    n_pixel_values = parameters["n_pixel_values"]
    require_int("n_pixel_values", n_pixel_values, 2)
    require(
        n_pixel_values <= MAX_PIXEL_VALUES,
        "n_pixel_values",
        n_pixel_values,
        f"at most {MAX_PIXEL_VALUES}, because particles are float32",
        "divide the pixels, or pass them as floats in [0, 1]",
    )
    require_choice(
        "patch_basis", parameters["patch_basis"], ("auto", *get_args(PatchBasis))
    )
    require_real(
        "amplifier",
        parameters["amplifier"],
        0,
        others=("auto",),
        may_be_infinite=True,
    )
    require_int(
        "n_clusters",
        parameters["n_clusters"],
        1,
        others=("auto",),
        hint="1 turns clustering off",
    )
