"""The parameters that all flows have, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, get_args

from sliceflow.engine.transports import TransportName
from sliceflow.validation import is_bool, is_int, require

# Names that the parameters `transport` and `preset` of all flows may have.
_TRANSPORTS = get_args(TransportName)
_PRESETS = (None, "paper")


class Options(Protocol):
    """Rarely changed settings of an estimator."""

    def require_valid(self) -> None:
        """Raise a `ParameterError` for the first invalid one."""


def require_shared_parameters(
    parameters: Mapping[str, Any], flags: Sequence[str], options_type: type[Options]
) -> None:
    """Raise a `ParameterError` for the first invalid one of what all flows have.

    `flags` are the names of parameters that must be True or False.
    """
    m = parameters["n_particles"]
    require(m is None or is_int(m, 1), "n_particles", m, "None or an int of at least 1")
    verbose = parameters["verbose"]
    is_verbosity = is_bool(verbose) or is_int(verbose, 0)
    require(is_verbosity, "verbose", verbose, "a bool, or an int of at least 0")
    for name in flags:
        require(is_bool(parameters[name]), name, parameters[name], "True or False")

    options = parameters["options"]
    is_options = options is None or isinstance(options, options_type)
    requirement = f"None or a sliceflow.{options_type.__name__}"
    require(is_options, "options", options, requirement)
    if options is not None:
        options.require_valid()

    transport = parameters["transport"]
    if isinstance(transport, str):
        is_transport = transport in _TRANSPORTS
    else:
        is_transport = hasattr(transport, "fit") and hasattr(transport, "max_samples")
    requirement = f"one of {list(_TRANSPORTS)} or a transport from sliceflow.transports"
    require(is_transport, "transport", transport, requirement)

    preset = parameters["preset"]
    require(preset in _PRESETS, "preset", preset, "None or 'paper'")
