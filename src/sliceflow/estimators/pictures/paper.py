"""The parameters of `preset="paper"` for pictures; see `base.presets`."""

from __future__ import annotations

from dataclasses import replace

from sliceflow.engine.transports import PaperTransport
from sliceflow.estimators.pictures.parameters import PictureParameters


def paper_parameters(defaults: PictureParameters) -> PictureParameters:
    """The defaults of an `ImageFlow`, with the paper's values."""
    return replace(
        defaults,
        # App. C.2: linear interpolation of both sorted samples
        transport=PaperTransport(),
        amplifier=10.0,  # Sec. 6.2.1: ξ = 10 for all data sets
        schedule="paper",  # Table 2
        # Sec. 6: K = 10,000 to 20,000 steps in all; 300 for each of the 35, 38 or 45
        # stages of Table 2 are 10,500, 11,400 and 13,500
        steps_per_stage=300,
        patch_basis="random",  # Sec. 5.1: locally-connected projections
        n_clusters=1,  # Sec. 6.1: one flow for all pictures
        options=replace(
            defaults.options,
            taper=0.0,  # Algorithm 1: every step has the same size η; Sec. 6: η = d
            shrinkage=0.0,  # Algorithm 1: maps as they were fitted
            # Sec. 6: H = 10,000, for 784 values and more; small pictures take as many
            # per value
            n_directions="auto",
            start="noise",  # Algorithm 1
            start_noise=1.0,  # Algorithm 1: N(0, I)
            dequantize_every="step",  # App. C: dynamically at each step
            clip=False,  # the paper does not mention it
        ),
    )
