"""Settings of an `ImageFlow` that are rarely changed."""

from __future__ import annotations

from dataclasses import dataclass

from sliceflow.errors import is_bool, is_int, is_real, need
from sliceflow.pictures.pyramid import UPSAMPLINGS

__all__ = ["PRECISIONS", "PictureOptions"]

PRECISIONS = ("auto", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class PictureOptions:
    """Settings of an `ImageFlow` that are rarely changed.

    Parameters
    ----------
    start_noise : standard deviation of the particles' starting pixels
    clip : keep particles in the range of pixels at the full resolution
    dequantize : spread integer pixels over their step
    dequantize_every : "stage" or "step": how often this noise is drawn anew
    n_directions : of a step, with ``patch_basis="random"`` alone
    upsampling : of the pyramid: "lanczos", "bilinear" or "nearest"
    taper : the step size falls from 1 to 0 over this last share of the last stage
    n_knots : knots kept of each map for offline samples, where it bends; eight times as many where
        classes share maps, and of sorted particles, whose knots have equal shares of these. "auto" is
        16, and more where a map has more than 12,000 particles: one for every 750, at most 64. 0 keeps
        no model, and then only the batched samples `particles_` are there
    precision : operands of the products on a GPU, "float16" (the default there), "bfloat16" or
        "float32", which is slower. With 16 bits displacements are read from tables in half precision;
        sums and particles are always float32. A CPU always uses float32 throughout

    Examples
    --------
    >>> from sliceflow import ImageFlow, PictureOptions
    >>> flow = ImageFlow(options=PictureOptions(n_knots=0))
    """

    start_noise: float = 0.1
    clip: bool = True
    dequantize: bool = True
    dequantize_every: str = "stage"
    n_directions: int = 1000
    upsampling: str = "lanczos"
    taper: float = 0.5
    n_knots: str | int = "auto"
    precision: str = "auto"

    def check(self) -> None:
        """Raise a `sliceflow.errors.ParameterError` for the first setting that cannot be used."""
        knots = self.n_knots
        need(knots == "auto" or is_int(knots, 0), "n_knots", knots, "'auto' or an int of at least 0")
        need(self.precision in PRECISIONS, "precision", self.precision, f"one of {list(PRECISIONS)}")
        for name in ("clip", "dequantize"):
            value = getattr(self, name)
            need(is_bool(value), name, value, "True or False")
        every = self.dequantize_every
        need(every in ("stage", "step"), "dequantize_every", every, "'stage' or 'step'")
        need(is_int(self.n_directions, 1), "n_directions", self.n_directions, "an int of at least 1")
        ways = sorted(UPSAMPLINGS)
        need(self.upsampling in ways, "upsampling", self.upsampling, f"one of {ways}")
        noise = self.start_noise
        need(is_real(noise, 0), "start_noise", noise, "a finite number of at least 0")
        need(is_real(self.taper, 0, 1), "taper", self.taper, "a number from 0 to 1")
