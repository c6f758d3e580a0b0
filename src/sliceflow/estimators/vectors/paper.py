"""The parameters of `preset="paper"` for vectors; see `base.presets`."""

from __future__ import annotations

from sliceflow.engine.transports import PaperTransport
from sliceflow.estimators.vectors.parameters import VectorOptions, VectorParameters

PAPER = VectorParameters(
    # App. C.2: linear interpolation of both sorted samples
    transport=PaperTransport(),
    amplifier=10.0,  # Sec. 6.2.1: ξ = 10 for all data sets
    # Algorithm 1: θ uniform on the sphere of R^(d+l), redrawn at every step; Sec. 6:
    # H = 10,000 for pictures. Rows of d columns take 64·d directions, at most 10,000
    frame="paper",
    condition_mode="joint",  # Sec. 4: one flow of x and y together
    entropy=0.0,  # Sec. 3.4, footnote: the Laplacian term is ignored
    standardize=False,  # Algorithm 1: unscaled data; the start is N(0, I)
    options=VectorOptions(
        taper=0.0,  # Algorithm 1: every step has the same size η; Sec. 6: η = d
        shrinkage=0.0,  # Algorithm 1: maps as they were fitted
        n_axis_steps=0,  # Algorithm 1: random directions only
        smoothing=0.0,  # Algorithm 1: the data themselves
    ),
)
