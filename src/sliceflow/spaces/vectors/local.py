"""Local conditions of vectors: the rows are kept, and every condition asks those nearest to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sliceflow.engine.conditions import Condition, Labels, Mixed
from sliceflow.engine.random import Seed
from sliceflow.errors import ParameterError
from sliceflow.models.ranks import Ranks
from sliceflow.neighbours.local import LocalRows, LocalSettings

__all__ = ["PARTICLES", "LocalModel", "is_local"]

PARTICLES = 200  # of a fit unless the user says how many: each needs a neighbourhood


@dataclass(frozen=True)
class LocalModel:
    """The rows of a fit, ready to be asked for x given y."""

    parts: tuple[LocalRows, ...]  # all rows; with labels in y, the rows of each combination of them
    labelled: bool  # whether the first column of codes is the number of a combination of labels

    @classmethod
    def fit_to(
        cls, x: Tensor, codes: Tensor, labelled: bool, settings: Sequence[LocalSettings] | None = None
    ) -> LocalModel:
        """The model of rows x (n, d) and codes (n, l); a file has the settings, else rows find them."""
        x, parts = x.double(), [(x.double(), codes)]
        if labelled:
            label = codes[:, 0].long()
            masks = [label == c for c in range(int(label.max()) + 1)]
            parts = [(x[mask], codes[mask, 1:]) for mask in masks]
        if settings is None:
            return cls(tuple(LocalRows.fit_to(*part) for part in parts), labelled)
        if len(parts) != len(settings):
            raise ValueError(f"local has settings for {len(settings)} parts of {len(parts)}")
        pairs = zip(parts, settings, strict=True)
        model = cls(tuple(LocalRows(*part, own) for part, own in pairs), labelled)
        for part in model.parts:
            part.check()
        return model

    @property
    def description(self) -> str:
        """What distances see of y, in words; with labels, in most parts."""
        text = max(words := [part.description for part in self.parts], key=words.count)
        return text if len(set(words)) == 1 else f"in most parts {text}"

    def sample(self, codes: Tensor, seed: Seed) -> Tensor:
        """One row x (n, d) for each of the codes (n, l); equal ones share a neighbourhood."""
        out = torch.empty(len(codes), self.parts[0].x.shape[1], dtype=torch.float64)
        for c, at, y in self._by_part(codes):
            distinct, own, counts = torch.unique(y, dim=0, return_inverse=True, return_counts=True)
            order, first = torch.argsort(own, stable=True), torch.cumsum(counts, 0) - counts
            for n in torch.unique(counts).tolist():  # conditions that are there equally often
                some = torch.nonzero(counts == n)[:, 0]
                rows = order[(first[some][:, None] + torch.arange(n)).flatten()]
                draws = self.parts[c].sample(distinct[some], n, seed.child(c, n))
                out[at[rows]] = draws.flatten(0, 1)
        return out

    def warn_of_far(self, codes: Tensor, stacklevel: int) -> None:
        """Warn of conditions that are farther from all rows than rows are from each other."""
        for c, at, y in self._by_part(codes):
            self.parts[c].warn_of_far(y, "y", stacklevel + 1, at)

    def _by_part(self, codes: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Each part that is asked for, the numbers of its codes, and its conditions."""
        label = codes[:, 0].long() if self.labelled else torch.zeros(len(codes), dtype=torch.int64)
        for c in torch.unique(label).tolist():
            at = torch.nonzero(label == c)[:, 0]
            yield c, at, codes[at, int(self.labelled) :]


def is_local(parameters: Mapping[str, Any], condition: Condition | None, ranks: Ranks) -> bool:
    """Whether a fit is local; raises an error if that is required but impossible."""
    mode, xi = parameters["condition"], parameters["amplifier"]
    if condition is None or isinstance(condition, Labels):
        obstacle = "needs continuous columns in y", "pass y of shape (n, l)"
    elif ranks.size > 1:
        obstacle = "keeps all rows in one process", "fit in one process, or set condition='joint'"
    elif parameters["early_stopping"]:
        obstacle = "has no steps that could stop early", "set early_stopping=False"
    elif mode == "local" or (mode == "auto" and 0 < xi < float("inf")):
        return True
    else:
        obstacle = "", ""
    if mode == "local":
        raise ParameterError("condition", mode, *obstacle)
    if isinstance(condition, Mixed):
        fact = f"y has labels and columns, which condition={mode!r} cannot fit here"
        raise ValueError(f"{fact}; use condition='local', or pass labels (n,) or columns (n, l)")
    return False
