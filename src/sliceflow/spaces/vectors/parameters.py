"""The parameters of a `SlicedWassersteinFlow`, checked and typed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sliceflow.engine import frames
from sliceflow.engine.frames import FrameKind
from sliceflow.engine.paper import VECTORS, with_preset
from sliceflow.engine.transports import Transport, TransportName
from sliceflow.models.parameters import require_shared_parameters
from sliceflow.spaces.vectors.options import VectorOptions
from sliceflow.validation import is_int, is_real, require

# What to do with a continuous y.
ConditionMode = Literal["auto", "joint", "local"]
# Directions of a step, by name; `FRAME_KINDS` has what they stand for.
FrameName = Literal["orthogonal", "random", "max-sliced", "axis"]

FRAME_KINDS: dict[str, Callable[[], FrameKind]] = {
    "orthogonal": frames.Orthogonal,
    "random": frames.Random,
    "max-sliced": frames.MaxSliced,
    "axis": frames.Axis,
}


@dataclass(frozen=True)
class VectorParameters:
    """What a fit needs of the parameters of a `SlicedWassersteinFlow`.

    A preset is applied, and `options` are never None. Values of "auto" are not resolved
    yet: that needs the rows, and happens in `VectorAdapter.make_task`.
    """

    n_particles: int | None
    n_steps: int
    frame: str | FrameKind  # a key of `FRAME_KINDS`, or "paper" of the preset
    transport: TransportName | Transport
    amplifier: float
    entropy: float
    standardize: bool
    condition: ConditionMode
    options: VectorOptions


def validated_parameters(
    given: Mapping[str, Any], defaults: Mapping[str, Any]
) -> VectorParameters:
    """The parameters of an estimator with those of its preset.

    `given` and `defaults` are by name. Raises a `ParameterError` for the first invalid
    one.
    """
    require_shared_parameters(given, ("standardize", "keep_rows"), VectorOptions)
    n_steps = given["n_steps"]
    require(is_int(n_steps, 0), "n_steps", n_steps, "an int of at least 0")

    frame = given["frame"]
    if isinstance(frame, str):
        is_frame = frame in FRAME_KINDS
    else:
        is_frame = hasattr(frame, "draw") and hasattr(frame, "n_directions")
    requirement = f"one of {sorted(FRAME_KINDS)} or a frame kind from sliceflow.frames"
    require(is_frame, "frame", frame, requirement)

    amplifier = given["amplifier"]
    is_infinite = isinstance(amplifier, float) and amplifier == math.inf
    is_amplifier = is_infinite or is_real(amplifier, 0)
    requirement = "a number of at least 0, which may be math.inf"
    require(is_amplifier, "amplifier", amplifier, requirement)

    mode = given["condition"]
    modes = get_args(ConditionMode)
    require(mode in modes, "condition", mode, f"one of {modes}")
    entropy = given["entropy"]
    require(is_real(entropy, 0), "entropy", entropy, "a finite number of at least 0")

    parameters = dict(given)
    if given["options"] is None:
        parameters["options"] = VectorOptions()
    if given["preset"] is not None:
        defaults = {**defaults, "options": VectorOptions()}
        parameters = with_preset(parameters, defaults, VECTORS)
    return VectorParameters(
        n_particles=parameters["n_particles"],
        n_steps=int(parameters["n_steps"]),
        frame=parameters["frame"],
        transport=parameters["transport"],
        amplifier=float(parameters["amplifier"]),
        entropy=float(parameters["entropy"]),
        standardize=bool(parameters["standardize"]),
        condition=parameters["condition"],
        options=parameters["options"],
    )
