"""Completions of pictures from any known part, by the pictures that are most like it.

Principal components x describe hidden pixels. A ridge regression on random features of known pixels
predicts them: its prediction is the condition y. Local conditions (`sliceflow.neighbours`) draw x given
y around a neighbour. In photographs, a draw gets the fine detail of this neighbour; in drawings, where a
fifth of the pixels are black or white, it would be specks. One monotone map gives hidden pixels the
distribution that they have in pictures: sums of components are never black.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.linalg import splu
from sklearn.decomposition import PCA
from torch import Tensor

from sliceflow.engine.random import Seed
from sliceflow.neighbours.sampling import sample_neighbourhoods
from sliceflow.neighbours.local import LocalSampler, LocalSettings
from sliceflow.neighbours.features import FeatureMap, project, ridge
from sliceflow.spaces.pictures.layout import Layout, as_array

_HIDDEN = 100
_KNOWN = 60
_FEATURES = 1_000  # components, and random features of the known ones
_SUGGESTED = 20  # components of the predictions: more would need more neighbours
_NEIGHBOURS = 100
_SPREAD = 0.4  # pictures that a completion is drawn from, and how far from them
_TONES = 2_001
_TONE_ROWS = 200  # quantiles of the monotone map, and pictures that it is fitted to
_DRAWS = 8
_ALIKE = 3.0  # draws of which one is taken; t, as differences side by side say the same
_COMPARED = 2_000
_EXTREME = 0.2  # pictures that are measured; share of black and white in drawings

Codes = (
    tuple[np.ndarray, np.ndarray] | None
)  # class numbers of pictures to complete, and to learn from


def complete_pictures(
    layout: Layout,
    X: np.ndarray,
    mask: np.ndarray,
    like: np.ndarray,
    *,
    n: int,
    seed: Seed,
    codes: Codes = None,
) -> np.ndarray:
    """Complete pictures X (m, h, w[, c]) from what a mask (h, w) knows: (m, n, h, w[, c]).

    It learns from at least 10 pixels `like` (N, c, h, w). With `codes`, a completion uses its own class.
    """
    if mask.all() or not mask.any():
        every = "every pixel is" if mask.all() else "no pixel is"
        raise ValueError(f"{every} known in mask; pass some of them, not all")
    if len(like) < 10:
        raise ValueError(
            f"there are {len(like)} pictures to learn from; pass at least 10"
        )
    c, h, w = layout.shape
    top = (layout.n_pixel_values or 2) - 1
    known = np.tile(mask.ravel(), c)
    raw = layout.read(X).reshape(len(X), -1)
    like = like.reshape(len(like), -1)
    rows, given = (r.astype(np.float32) / np.float32(top) for r in (like, raw))
    pictures = _Pictures(rows, known, layout.shape, seed.child("tones"))
    pixels = np.empty((len(given), n, int((~known).sum())))
    asked, learnt = codes or (np.zeros(len(given), int), np.zeros(len(rows), int))
    for i, code in enumerate(np.unique(asked)):
        some, own = (np.flatnonzero(numbers == code) for numbers in (asked, learnt))
        pixels[some] = pictures.draw(given[some], n, own, seed.child("class", i))
    pixels = (pixels if layout.n_pixel_values is None else (pixels * top).round()).clip(
        0, top
    )
    out = np.repeat(raw[:, None], n, 1)
    out[..., ~known] = pixels
    done = out.reshape(-1, c, h, w).transpose(0, 2, 3, 1).astype(X.dtype)
    return done.reshape(len(given), n, *X.shape[1:])


def without_hidden(X: Any, known: np.ndarray) -> np.ndarray:
    """A copy of pictures whose hidden pixels are 0, whatever they were: NaN, masked, out of range."""
    fits = np.shape(X)[1:3] == known.shape  # else `Layout.read` says what is wrong
    if (
        fits
        and isinstance(X, np.ma.MaskedArray)
        and not np.ma.getmaskarray(X)[:, known].any()
    ):
        X = X.filled(0)
    pictures: np.ndarray = np.array(as_array(X))
    if fits:
        pictures[:, ~known] = 0
    return pictures


class _Pictures:
    """Pictures in [0, 1] as rows (n, d), ready to complete others with the same `known` pixels (d,)."""

    def __init__(
        self,
        rows: np.ndarray,
        known: np.ndarray,
        shape: tuple[int, int, int],
        seed: Seed,
    ) -> None:
        some = rows[:_COMPARED]
        hidden = rows[:, ~known]
        drawings = ((some <= 0) | (some >= 1)).mean() >= _EXTREME
        self.known = known
        self.seam = _Seam(some, known, shape, smooth=not drawings)
        self.shown = _components(rows[:, known], _KNOWN)
        self.hidden = _components(hidden, _HIDDEN)
        seen = _scores(self.shown, rows[:, known])
        self.x = _scores(self.hidden, hidden)
        self.view = FeatureMap.fit(seen, _FEATURES)
        slopes = ridge(self.view, seen, self.x)
        main = _components(
            project(self.view, seen, slopes).numpy(), _SUGGESTED
        ).components_
        self.slopes = slopes @ torch.from_numpy(main.T).double()
        self.y = project(self.view, seen, self.slopes)
        self.detail = (
            None if drawings else hidden - self.hidden.inverse_transform(self.x.numpy())
        )
        self.tones: tuple[np.ndarray, np.ndarray] | None = None
        self.tones = self._fit_tones(hidden, seed)

    def _local(self, own: np.ndarray) -> LocalSampler:
        unit = torch.eye(self.y.shape[1], dtype=torch.float64)
        settings = LocalSettings(min(_NEIGHBOURS, len(own)), _SPREAD, unit)
        return LocalSampler(self.x[own], self.y[own], settings)

    def _pixels(
        self, draws: np.ndarray, around: np.ndarray, some: Any = slice(None)
    ) -> np.ndarray:
        """Hidden pixels (or `some` of them) of components (…, p) that are drawn around pictures (…)."""
        pixels = draws @ self.hidden.components_[:, some] + self.hidden.mean_[some]
        if self.detail is not None:
            pixels += self.detail[:, some][around]
        return np.asarray(
            pixels if self.tones is None else np.interp(pixels, *self.tones)
        )

    def _fit_tones(
        self, hidden: np.ndarray, seed: Seed
    ) -> tuple[np.ndarray, np.ndarray]:
        """Quantiles of hidden pixels, as completions of known pictures have them and as they are."""
        some = seed.child("rows").permutation(len(hidden))[:_TONE_ROWS]
        near = self._local(np.arange(len(hidden))).neighbourhoods(
            self.y[some], exclude=some, max_components=1
        )
        draws, picked = sample_neighbourhoods(near, 1, _SPREAD, seed)
        pixels = self._pixels(draws.numpy(), near.rows.gather(1, picked).numpy())
        levels = np.linspace(0, 1, _TONES)
        before, after = (
            np.quantile(values, levels) for values in (pixels, hidden[some.numpy()])
        )
        return before + 1e-9 * np.arange(_TONES), after

    def draw(
        self, given: np.ndarray, n: int, own: np.ndarray, seed: Seed
    ) -> np.ndarray:
        """Hidden pixels (m, n, hidden) of given rows (m, d), by the pictures with the numbers `own`."""
        y = project(self.view, _scores(self.shown, given[:, self.known]), self.slopes)
        draws, around = (
            t.numpy()
            for t in self._local(own).sample(y, n * _DRAWS, seed, max_components=1)
        )
        numbers = own[around]
        edge = self._pixels(draws, numbers, self.seam.inner)
        best = self.seam.choose(given, edge, seed.child("continuing"))
        draws = np.take_along_axis(draws, best[..., None], 1)
        return self.seam.joined(
            given, self._pixels(draws, np.take_along_axis(numbers, best, 1))
        )


class _Seam:
    """Where known and hidden pixels meet: pairs of neighbours `outer` and `inner`, as their numbers
    among all and among hidden pixels; `square` is the mean square of their difference in pictures.
    """

    def __init__(
        self,
        rows: np.ndarray,
        known: np.ndarray,
        shape: tuple[int, int, int],
        smooth: bool,
    ) -> None:
        pixels = np.arange(len(known)).reshape(shape)
        number = (~known).cumsum() - 1
        ends = [(pixels[:, :-1], pixels[:, 1:]), (pixels[:, :, :-1], pixels[:, :, 1:])]
        a, b = (np.concatenate([pair[i].ravel() for pair in ends]) for i in (0, 1))
        meet = known[a] != known[b]
        within = ~known[a] & ~known[b]
        self.outer, inner = (
            np.where(known[a] == one, a, b)[meet] for one in (True, False)
        )
        self.inner = number[inner]
        n = int((~known).sum())
        self.square = (
            float(np.square(rows[:, self.outer] - rows[:, inner]).mean()) + 1e-12
        )
        i = number[a[within]]
        j = number[b[within]]
        degree = np.bincount(np.concatenate((i, j, self.inner)), minlength=n)
        at = np.concatenate((np.arange(n), i, j)), np.concatenate((np.arange(n), j, i))
        laplacian = coo_matrix(
            (np.concatenate((degree, -np.ones(2 * len(i)))), at), (n, n)
        )
        self.solver = splu(laplacian.tocsc()) if smooth else None

    def choose(self, given: np.ndarray, edge: np.ndarray, seed: Seed) -> np.ndarray:
        """Which draws (m, n) continue given rows; `edge` (m, 8n, p) has hidden pixels at the seam.

        One in eight is drawn in proportion to exp(−Σe²/(2tσ²)), for differences e at the seam.
        """
        score = -np.square(edge - given[:, None, self.outer]).sum(2) / (
            2 * _ALIKE * self.square
        )
        score -= np.log(
            -np.log(seed.uniform(*score.shape).numpy())
        )  # Gumbel: the largest is a draw
        best = score.reshape(len(score), -1, _DRAWS).argmax(2)
        return np.asarray(np.arange(0, score.shape[1], _DRAWS) + best)

    def joined(self, given: np.ndarray, pixels: np.ndarray) -> np.ndarray:
        """Hidden pixels (m, n, hidden) of photographs, joined to the known ones of given rows (m, d).

        Laplace's equation spreads the differences at the seam, as in Pérez, Gangnet and Blake (2003),
        "Poisson image editing". In drawings that would be fog.
        """
        if self.solver is None:
            return pixels
        e = given[:, None, self.outer] - pixels[..., self.inner]
        right = np.zeros((pixels.shape[2], e.shape[0] * e.shape[1]))
        np.add.at(right, self.inner, e.reshape(-1, e.shape[2]).T)
        return np.asarray(pixels + self.solver.solve(right).T.reshape(pixels.shape))


def _components(rows: np.ndarray, most: int) -> PCA:
    with np.errstate(invalid="ignore"):  # rows that are all alike
        return PCA(min(most, len(rows) - 1, rows.shape[1]), random_state=0).fit(rows)


def _scores(components: PCA, rows: np.ndarray) -> Tensor:
    return torch.from_numpy(components.transform(rows)).double()
