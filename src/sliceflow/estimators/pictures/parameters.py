"""The parameters of an `ImageFlow`, with their types and their checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

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
)

# Names for the number of steps of a stage; `choices.STEPS_OF_QUALITY` has the numbers.
Quality = Literal["draft", "standard", "best"]
# The directions of a patch; "random" stands for the paper's random patches, not tiles.
PatchBasis = Literal["pixels", "cosines", "random"]
Preset = Literal["paper"]


@dataclass(frozen=True, eq=False)
class PictureParameters:
    """The parameters of an `ImageFlow` that a fit needs.

    In a fit they are checked, and a preset is applied. Values of "auto" are not
    resolved yet: that needs the pictures, and happens in the plan of a fit.
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

    def require_valid(self) -> None:
        """Raise a `ParameterError` for the first invalid one of pictures alone.

        Parameters that all flows have are checked before.
        """
        require_choice(
            "quality",
            self.quality,
            get_args(Quality),
            "steps_per_stage= takes a number",
        )
        require_int(
            "steps_per_stage",
            self.steps_per_stage,
            1,
            maximum=MAX_STEPS,
            others=(None,),
        )
        is_text = isinstance(self.schedule, str)
        requirement = "a string: 'auto', 'paper' or stages"
        require(is_text, "schedule", self.schedule, requirement)
        require_int("n_pixel_values", self.n_pixel_values, 2)
        require(
            self.n_pixel_values <= MAX_PIXEL_VALUES,
            "n_pixel_values",
            self.n_pixel_values,
            f"at most {MAX_PIXEL_VALUES}, because particles are float32",
            "divide the pixels, or pass them as floats in [0, 1]",
        )
        require_choice("patch_basis", self.patch_basis, ("auto", *get_args(PatchBasis)))
        require_real(
            "amplifier", self.amplifier, 0, others=("auto",), may_be_infinite=True
        )
        require_int(
            "n_clusters",
            self.n_clusters,
            1,
            others=("auto",),
            hint="1 turns clustering off",
        )
