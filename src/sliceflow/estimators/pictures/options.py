"""Rarely changed settings of an `ImageFlow`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from sliceflow.validation import (
    is_real,
    require,
    require_bool,
    require_choice,
    require_int,
    require_real,
)

# The named values of the settings below.
Start = Literal["auto", "noise"]
DequantizeEvery = Literal["stage", "step"]
Precision = Literal["auto", "float32", "float16", "bfloat16"]

# Limits of files, which settings keep: pictures of a mosaic, and knots of a map.
MAX_MOSAIC_SIZE = 1 << 10
MAX_KNOTS = 1 << 16


@dataclass(frozen=True)
class ImageOptions:
    """Rarely changed settings of an `ImageFlow`.

    Parameters
    ----------
    start : "auto", "noise" or int, default "auto"
        Where particles start. With an int s, they start as mosaics, which are sums of s
        random pictures of their class; then classes must not share maps, and the model
        keeps the pictures. "auto" is 4 for color pictures without `known`, else
        "noise". Of 200 to 3,000 color pictures, a trial on held-out ones chooses
        between the two. Pictures whose channels are equal are gray.
    locality : float, default 2
        β, how much the weights of the pictures of a mosaic differ from place to place.
        With 0 they are equal everywhere.
    start_noise : float, default 0.1
        Standard deviation of the starting pixels, if they are noise.
    clip : bool, default True
        Clip particles to the range of pixels after each stage at full resolution.
    dequantize_every : "stage" or "step", default "stage"
        How often integer pixels get another random fraction.
    n_directions : int or "auto", default "auto"
        Directions per step, only with ``patch_basis="random"``. "auto" is 13 per value
        of a picture, at most 10,000: as many as the paper takes for MNIST.
    taper : float, default 0.5
        The step size falls from 1 to 0 over this last fraction of the last stage.
    n_knots : int or "auto", default "auto"
        Knots of each map that the model stores for offline samples; maps that classes
        share and sorted maps keep eight times as many. "auto" is one per 750 particles,
        between 16 and 64. 0 stores no model: then only the particles `particles_`
        exist.
    precision : "auto", "float32", "float16" or "bfloat16", default "auto"
        Type of the operands of matrix products on a GPU, of the fit and of samples.
        "auto" is "float16"; "float32" is slower. Sums and particles are always float32.
        `ImageFlow.set_sample_precision` sets that of samples alone.
    shrinkage : float or "auto", default "auto"
        κ: maps are shrunk within κ times their noise, and maps that move less than that
        become the identity. "auto" is 8 if particles start as mosaics, else 2.5·√(steps
        per stage/pictures per map), at most 2. 0 turns it off.

    Examples
    --------
    >>> from sliceflow import ImageFlow, ImageOptions
    >>> flow = ImageFlow(options=ImageOptions(n_knots=0))
    >>> flow.get_params()["options__n_knots"]
    0
    """

    start: Start | int = "auto"
    locality: float = 2.0
    start_noise: float = 0.1
    clip: bool = True
    dequantize_every: DequantizeEvery = "stage"
    n_directions: Literal["auto"] | int = "auto"
    taper: float = 0.5
    n_knots: Literal["auto"] | int = "auto"
    precision: Precision = "auto"
    shrinkage: Literal["auto"] | float = "auto"

    def require_valid(self) -> None:
        """Raise a `sliceflow.errors.ParameterError` for the first invalid setting."""
        require_int(
            "start", self.start, 1, maximum=MAX_MOSAIC_SIZE, others=get_args(Start)
        )
        require_real("locality", self.locality, 0)
        require_real("start_noise", self.start_noise, 0)
        require_bool("clip", self.clip)
        require_choice(
            "dequantize_every", self.dequantize_every, get_args(DequantizeEvery)
        )
        require_int("n_directions", self.n_directions, 1, others=("auto",))
        require(is_real(self.taper, 0, 1), "taper", self.taper, "a number from 0 to 1")
        require_int("n_knots", self.n_knots, 0, maximum=MAX_KNOTS, others=("auto",))
        require_choice("precision", self.precision, get_args(Precision))
        require_real("shrinkage", self.shrinkage, 0, others=("auto",))

    def check_saved(self) -> None:
        """Raise a ValueError if a file has an invalid setting."""
        self.require_valid()
