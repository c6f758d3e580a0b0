"""Rarely changed settings of an `ImageFlow`."""

from __future__ import annotations

from dataclasses import dataclass

from sliceflow.errors import is_bool, is_int, is_real, need
from sliceflow.spaces.pictures.pyramid import UPSAMPLINGS

__all__ = ["PRECISIONS", "PictureOptions"]

PRECISIONS = ("auto", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class PictureOptions:
    """Rarely changed settings of an `ImageFlow`.

    Parameters
    ----------
    start : "noise", or an int s: particles start as sums of s random pictures of their class. Classes
        must not share maps then, and the model keeps the pictures. "auto" is 4 for colour pictures
        without a mask, else "noise"
    locality : β: how much the weights of the summed pictures differ from place to place; 0: not at all
    start_noise : standard deviation of the starting pixels, if they are noise
    clip : clip particles to the range of pixels after each stage at full resolution
    dequantize : add uniform noise to integer pixels
    dequantize_every : "stage" or "step": how often this noise is redrawn
    n_directions : directions per step, only with ``patch_basis="random"``
    upsampling : kernel of the pyramid: "lanczos", "bilinear" or "nearest"
    taper : the step size falls from 1 to 0 over this last fraction of the last stage
    n_knots : knots kept per map for offline samples; shared maps of classes and sorted maps keep eight
        times as many. "auto" is one per 750 particles, between 16 and 64. 0 keeps no model: then only
        the batched samples `particles_` exist
    precision : operands of matrix products on a GPU: "float16" (the default), "bfloat16" or "float32",
        which is slower. Sums and particles are always float32
    shrinkage : κ: maps are shrunk within κ times their noise, and maps with less than that move
        nothing. "auto" is 8 if particles start as sums of pictures, else
        2.5·√(steps per stage/pictures per map), at most 2. 0 turns it off

    Examples
    --------
    >>> from sliceflow import ImageFlow, PictureOptions
    >>> flow = ImageFlow(options=PictureOptions(n_knots=0))
    """

    start: str | int = "auto"
    locality: float = 2.0
    start_noise: float = 0.1
    clip: bool = True
    dequantize: bool = True
    dequantize_every: str = "stage"
    n_directions: int = 1000
    upsampling: str = "lanczos"
    taper: float = 0.5
    n_knots: str | int = "auto"
    precision: str = "auto"
    shrinkage: str | float = "auto"

    def check(self) -> None:
        """Raise a `sliceflow.errors.ParameterError` for the first invalid setting."""
        knots = self.n_knots
        need(knots == "auto" or is_int(knots, 0), "n_knots", knots, "'auto' or an int of at least 0")
        need(self.precision in PRECISIONS, "precision", self.precision, f"one of {list(PRECISIONS)}")
        for name in ("clip", "dequantize"):
            need(is_bool(getattr(self, name)), name, getattr(self, name), "True or False")
        every, ways, kappa = self.dequantize_every, sorted(UPSAMPLINGS), self.shrinkage
        need(every in ("stage", "step"), "dequantize_every", every, "'stage' or 'step'")
        need(is_int(self.n_directions, 1), "n_directions", self.n_directions, "an int of at least 1")
        need(self.upsampling in ways, "upsampling", self.upsampling, f"one of {ways}")
        ok = kappa == "auto" or is_real(kappa, 0)
        need(ok, "shrinkage", kappa, "'auto' or a finite number of at least 0")
        ok = self.start in ("auto", "noise") or is_int(self.start, 1)
        need(ok, "start", self.start, "'auto', 'noise' or an int of at least 1")
        for name in ("locality", "start_noise"):
            value = getattr(self, name)
            need(is_real(value, 0), name, value, "a finite number of at least 0")
        need(is_real(self.taper, 0, 1), "taper", self.taper, "a number from 0 to 1")
