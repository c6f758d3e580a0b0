"""The parameters of a `SlicedWassersteinFlow`: its options, and what a fit needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from sliceflow.engine import frames
from sliceflow.engine.frames import FrameKind
from sliceflow.engine.transports import Transport, TransportName
from sliceflow.validation import is_real, require, require_int, require_real

# What to do with a continuous y.
ConditionMode = Literal["auto", "joint", "local"]
# Names of kinds of frames; `FRAME_KINDS` has the kinds.
FrameName = Literal["orthogonal", "random", "max-sliced", "axis"]

# Rows spread this far, in standard deviations of the rows near them, are noise.
MAX_SMOOTHING = 1e6

FRAME_KINDS: dict[FrameName, Callable[[], FrameKind]] = {
    "orthogonal": frames.Orthogonal,
    "random": frames.Random,
    "max-sliced": frames.MaxSliced,
    "axis": frames.Axis,
}


@dataclass(frozen=True)
class VectorOptions:
    """Rarely changed settings of a `SlicedWassersteinFlow`.

    Parameters
    ----------
    taper : float, default 0.5
        The step size falls from 1 to 0 over this last fraction of the steps. 0 keeps it
        at 1.
    n_axis_steps : int, default 2
        Axis steps at the end, which make the distribution of each column exact.
    n_knots : int, default 512
        Maximum number of knots of each map that the model stores for offline samples.
    smoothing : float or "auto", default "auto"
        How far each row is spread along its nearest rows, in standard deviations of the
        nearest rows, so that small data are not copied. With "auto", draws are as far
        from the rows as rows are from each other. 0 fits the rows themselves.
    n_neighbors : int, default 20
        k, the number of nearest rows along which a row is spread, itself among them.
    shrinkage : float, default 0
        κ: maps are shrunk within κ times their noise, and the flow ends when hardly any
        map moves. 0 turns it off. With shrinkage, thin shapes in few columns, such as
        two moons, stay blurred.

    Examples
    --------
    >>> from sliceflow import SlicedWassersteinFlow, VectorOptions
    >>> flow = SlicedWassersteinFlow(options=VectorOptions(n_axis_steps=0))
    >>> flow.get_params()["options__n_axis_steps"]
    0
    """

    taper: float = 0.5
    n_axis_steps: int = 2
    n_knots: int = 512
    smoothing: float | Literal["auto"] = "auto"
    n_neighbors: int = 20
    shrinkage: float = 0.0

    def require_valid(self) -> None:
        """Raise a `sliceflow.errors.ParameterError` for the first invalid setting."""
        require_int("n_axis_steps", self.n_axis_steps, 0)
        require_int("n_knots", self.n_knots, 2)
        require_int("n_neighbors", self.n_neighbors, 2)
        require(is_real(self.taper, 0, 1), "taper", self.taper, "a number from 0 to 1")
        require_real("shrinkage", self.shrinkage, 0)
        require_real("smoothing", self.smoothing, 0, others=("auto",))
        is_too_large = self.smoothing != "auto" and self.smoothing > MAX_SMOOTHING
        requirement = f"at most {MAX_SMOOTHING:g}, beyond which rows count no more"
        require(not is_too_large, "smoothing", self.smoothing, requirement)

    def check_saved(self) -> None:
        """Raise a ValueError if a file has an invalid setting."""
        self.require_valid()


@dataclass(frozen=True)
class VectorParameters:
    """The parameters of a `SlicedWassersteinFlow` that a fit needs, checked.

    A preset is applied, and `options` are never None. Values of "auto" are not resolved
    yet: that needs the rows, and happens in `plan`. The defaults are those of the
    constructor.
    """

    n_particles: int | None = None
    n_steps: int = 200
    frame: FrameName | Literal["paper"] | FrameKind = "orthogonal"  # "paper": a preset
    transport: TransportName | Transport = "auto"
    amplifier: float = 10.0
    entropy: float = 0.0
    standardize: bool = True
    condition_mode: ConditionMode = "auto"
    options: VectorOptions = VectorOptions()

    def changed(self, names: Sequence[str]) -> tuple[str, ...]:
        """Which of these parameters differ from their defaults."""
        defaults = VectorParameters()
        return tuple(
            name for name in names if getattr(self, name) != getattr(defaults, name)
        )
