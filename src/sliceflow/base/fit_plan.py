"""Plans: what a fit will do, with every "auto" resolved, and what it costs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from typing import Any

from sliceflow.devices import cpu_slowness
from sliceflow.wording import format_bytes, format_duration

# Fields of a plan that do not change the result of a fit.
_FIELDS_WITHOUT_EFFECT = ("device", "n_ranks")


@dataclass(frozen=True, kw_only=True)
class FitPlan(ABC):
    """What a fit does, and what it costs. It prints as a table.

    Each kind of data adds fields, the `method` in a word or two, its `summary`, and
    what the fit costs.
    """

    device: str
    n_ranks: int = 1

    @property
    @abstractmethod
    def method(self) -> str:
        """The name of the method."""

    @abstractmethod
    def summary(self) -> Sequence[tuple[str, object]]:
        """Names and values to print. Values that are "" are left out."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Memory of the fit on each device, without the input data."""

    @property
    @abstractmethod
    def seconds(self) -> float:
        """About how long the fit takes, within a factor of two or so; 0 if unknown.

        It counts the steps, and the trials of tables and densities, at the speed of
        this machine and with torch's threads; not what comes before, such as reading
        rows and choosing a bandwidth. `history_["seconds"]` is what was measured.
        """

    def settings(self) -> dict[str, Any]:
        """All fields that determine the result, by name.

        A checkpoint belongs to a fit with equal settings.
        """
        names = [f.name for f in fields(self) if f.name not in _FIELDS_WITHOUT_EFFECT]
        return {name: getattr(self, name) for name in names}

    def seconds_for(self, n_values: float, nanoseconds: Mapping[str, float]) -> float:
        """Seconds for `n_values`, from the nanoseconds of one by kind of device."""
        import torch  # plans of tables do not need it

        device_type = torch.device(self.device).type
        n_threads = 1
        cost = nanoseconds.get(device_type, 1.0)
        if device_type == "cpu":
            n_threads = torch.get_num_threads()
            cost *= cpu_slowness()
        return 1e-9 * cost * n_values / (n_threads * self.n_ranks)

    def __str__(self) -> str:
        lines = self._lines()
        width = max(len(name) for name, _ in lines)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)

    def _repr_html_(self) -> str:
        """The table as HTML, for notebooks."""
        cells = [
            f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
            for name, value in self._lines()
        ]
        return f"<table>{''.join(cells)}</table>"

    def _lines(self) -> list[tuple[str, str]]:
        """The lines of the table: names and values. Empty values are left out."""
        device = self.device
        if self.n_ranks > 1:
            device = f"{self.n_ranks} × {self.device}"
        time = ""
        if self.seconds:
            time = f"about {format_duration(self.seconds)}"
        lines = [
            ("method", self.method),
            *self.summary(),
            ("device", device),
            ("memory", f"about {format_bytes(self.nbytes)}"),
            ("time", time),
        ]
        return [(name, str(value)) for name, value in lines if value != ""]
