"""The parameters of an `ImageFlow`, checked and typed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from sliceflow.arrays import Mask
from sliceflow.engine.transports import Transport, TransportName
from sliceflow.spaces.pictures.known_parts import KnownPart
from sliceflow.spaces.pictures.options import ImageOptions
from sliceflow.validation import is_int, is_real, require

# Names for the number of steps of a stage; `choices.STEPS_OF_QUALITY` has the numbers.
Quality = Literal["draft", "standard", "best"]
# The directions of a patch; "random" stands for the paper's random patches, not tiles.
PatchBasis = Literal["pixels", "cosines", "random"]
Preset = Literal["paper"]


@dataclass(frozen=True)
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
        return cls(
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


def require_valid_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise a `ParameterError` for the first invalid parameter of pictures alone."""

    def require_parameter(name: str, ok: bool, requirement: str) -> None:
        require(ok, name, parameters[name], requirement)

    qualities = get_args(Quality)
    require_parameter(
        "quality",
        parameters["quality"] in qualities,
        f"one of {list(qualities)}; steps_per_stage= takes a number",
    )
    steps_per_stage = parameters["steps_per_stage"]
    require_parameter(
        "steps_per_stage",
        steps_per_stage is None or is_int(steps_per_stage, 1),
        "None or an int of at least 1",
    )
    require_parameter(
        "schedule",
        isinstance(parameters["schedule"], str),
        "a string: 'auto', 'paper' or stages",
    )
    require_parameter(
        "n_pixel_values",
        is_int(parameters["n_pixel_values"], 2),
        "an int of at least 2",
    )
    patch_bases = ("auto", *get_args(PatchBasis))
    require_parameter(
        "patch_basis",
        parameters["patch_basis"] in patch_bases,
        f"one of {list(patch_bases)}",
    )
    xi = parameters["amplifier"]
    is_infinite = isinstance(xi, float) and xi == math.inf
    require_parameter(
        "amplifier",
        xi == "auto" or is_real(xi, 0) or is_infinite,
        "'auto', or a number of at least 0, which may be math.inf",
    )
    n_clusters = parameters["n_clusters"]
    require_parameter(
        "n_clusters",
        n_clusters == "auto" or is_int(n_clusters, 1),
        "'auto' or an int of at least 1; 1 turns clustering off",
    )
