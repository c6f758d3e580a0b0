"""What the parameters of `SlicedWassersteinFlow` may be; frames and transports by their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sliceflow import errors
from sliceflow.engine import frames, transports
from sliceflow.errors import is_int, is_real
from sliceflow.vectors.options import VectorOptions

if TYPE_CHECKING:
    from sliceflow.vectors.estimator import SlicedWassersteinFlow

__all__ = ["FRAMES", "TRANSPORTS", "check_parameters", "frame_of", "transport_of"]

FRAMES: dict[str, Callable[[], frames.FrameKind]] = {
    "orthogonal": frames.Orthogonal,
    "random": frames.Random,
    "axis": frames.Axis,
}
TRANSPORTS: dict[str, Callable[[], transports.Transport]] = {
    "auto": transports.Auto,
    "sorted": transports.Sorted,
    "histogram": transports.Histogram,
}


def frame_of(frame: str | frames.FrameKind) -> frames.FrameKind:
    """The frame kind of that name, or the one that is given."""
    return FRAMES[frame]() if isinstance(frame, str) else frame


def transport_of(transport: str | transports.Transport) -> transports.Transport:
    """The transport of that name, or the one that is given."""
    return TRANSPORTS[transport]() if isinstance(transport, str) else transport


def check_parameters(estimator: SlicedWassersteinFlow) -> None:
    """Raise a `errors.ParameterError` for the first parameter that cannot be used."""

    def need(ok: bool, name: str, what: str) -> None:
        errors.need(ok, name, getattr(estimator, name), what)

    need(
        estimator.n_particles is None or is_int(estimator.n_particles, 1),
        "n_particles",
        "None or an int of at least 1",
    )
    need(is_int(estimator.n_steps, 0), "n_steps", "an int of at least 0")
    options = estimator.options
    ok = options is None or isinstance(options, VectorOptions)
    need(ok, "options", "None or a sliceflow.VectorOptions")
    (options or VectorOptions()).check()
    frame, transport = estimator.frame, estimator.transport
    need(
        frame in FRAMES if isinstance(frame, str) else hasattr(frame, "draw"),
        "frame",
        f"one of {sorted(FRAMES)} or a frame kind from sliceflow.frames",
    )
    need(
        transport in TRANSPORTS
        if isinstance(transport, str)
        else hasattr(transport, "fit") and hasattr(transport, "most"),
        "transport",
        f"one of {sorted(TRANSPORTS)} or a transport from sliceflow.transports",
    )
    for name in ("amplifier", "entropy"):
        need(is_real(getattr(estimator, name), 0), name, "a finite number of at least 0")
    need(is_int(estimator.verbose, 0), "verbose", "an int of at least 0")
