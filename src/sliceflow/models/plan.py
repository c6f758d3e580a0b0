"""Plans: what a fit will do, with every "auto" resolved, what it takes, and how it prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import torch

from sliceflow.devices import require_memory, resolve_device
from sliceflow.errors import is_bool, is_int, require
from sliceflow.wording import format_bytes, format_duration

_TRANSPORTS = ("auto", "sorted", "histogram", "interpolated")
_CIRCUMSTANCES = (
    "device",
    "n_ranks",
    "nbytes",
    "seconds",
)  # they do not change what a fit does


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a fit does. Each space adds its own fields, the `method` in a word or two, and `lines`."""

    device: str
    n_ranks: int = 1
    nbytes: int = 0  # memory of the fit on each device, without the input data
    # About how long the fit takes here, with as many threads as torch has: not in files.
    seconds: float = field(default=0.0, compare=False, metadata={"saved": False})

    @property
    def method(self) -> str:
        raise NotImplementedError

    def lines(self) -> Sequence[tuple[str, object]]:
        """Names and values to print; those with the value "" are left out."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """All settings that determine the result. A checkpoint belongs to a fit with equal settings."""
        names = (own.name for own in fields(self))
        return {
            name: getattr(self, name) for name in names if name not in _CIRCUMSTANCES
        }

    def estimate(self, values: float, nanoseconds: Mapping[str, float]) -> float:
        """Seconds for so many values of all steps, each with its cost on this kind of device."""
        kind = resolve_device(self.device).type
        threads = torch.get_num_threads() if kind == "cpu" else 1
        return 1e-9 * nanoseconds.get(kind, 1.0) * values / (threads * self.n_ranks)

    def taking(self, nbytes: int, seconds: float, what: str, advice: str) -> Self:
        """The plan with what it takes; a `NotEnoughMemoryError` if the device cannot hold the fit."""
        require_memory(nbytes, resolve_device(self.device), what, advice)
        return replace(self, nbytes=nbytes, seconds=seconds)

    def __str__(self) -> str:
        where = self.device if self.n_ranks == 1 else f"{self.n_ranks} × {self.device}"
        rows = [("method", self.method), *self.lines(), ("device", where)]
        rows.append(("memory", f"about {format_bytes(self.nbytes)}"))
        rows.append(
            ("time", f"about {format_duration(self.seconds)}" if self.seconds else "")
        )
        shown = [(name, str(value)) for name, value in rows if value != ""]
        width = max(len(name) for name, _ in shown)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in shown)


def check_shared(
    parameters: Mapping[str, Any], flags: Sequence[str], options: Any
) -> None:
    """Raise a `ParameterError` for the first invalid parameter of those that all flows share."""
    m = parameters["n_particles"]
    verbose = parameters["verbose"]
    own = parameters["options"]
    require(m is None or is_int(m, 1), "n_particles", m, "None or an int of at least 1")
    ok = is_bool(verbose) or is_int(verbose, 0)
    require(ok, "verbose", verbose, "a bool, or an int of at least 0")
    for name in flags:
        require(is_bool(parameters[name]), name, parameters[name], "True or False")
    ok = own is None or isinstance(own, options)
    require(ok, "options", own, f"None or a sliceflow.{options.__name__}")
    (own or options()).check()
    transport = parameters["transport"]
    ok = hasattr(transport, "fit") and hasattr(transport, "max_samples")
    ok = transport in _TRANSPORTS if isinstance(transport, str) else ok
    what = f"one of {list(_TRANSPORTS)} or a transport from sliceflow.transports"
    require(ok, "transport", transport, what)
