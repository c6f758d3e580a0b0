"""Completions of pictures from any known part, by the pictures that are most like it.

The hidden pixels of all pictures are described by their leading principal components, x. A ridge
regression on random features of the known pixels predicts x: its prediction is the condition, y. So
pictures are neighbours if their known parts suggest the same hidden parts. Local conditions
(`engine.neighbourhoods`) then draw x given y, each around one of the neighbours. In photographs, the
draw gets what components leave out of the hidden pixels of this neighbour: fine detail. One monotone
map gives hidden pixels the distribution that they have in the pictures: sums of components are never
black.

Of several draws, that is taken which continues the known pixels: with probability proportional to
exp(−Σe²/(2tσ²)), for the differences e of neighbouring pixels of which one is hidden, their mean square
σ² in the pictures, and t = 3, because differences side by side say the same. In photographs, what is
left of the differences is then spread over the hidden pixels by Laplace's equation, as in Pérez,
Gangnet and Blake (2003), "Poisson image editing". In drawings, where a fifth of the pixels or more are
black or white, that would be fog, and the detail of a neighbour would be specks.

This is not in the paper. It needs no fit, only the pictures, and serves any mask within seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.linalg import splu
from sklearn.decomposition import PCA

from sliceflow.engine.neighbourhoods import Neighbourhoods, drawn, drawn_from
from sliceflow.engine.random import Seed
from sliceflow.errors import ParameterError, is_int, need
from sliceflow.spaces.pictures.layout import Layout, as_array, mask_of

__all__ = ["Completion", "complete"]

N_NEIGHBORS = 100
_HIDDEN, _KNOWN = 100, 60  # principal components of hidden and of known pixels
_SUGGESTED = 20  # principal components of the predictions: more would need more neighbours
_SPREAD = 0.4  # of draws around their neighbours
_FEATURES, _RIDGE = 1500, 1e-2  # random features, and the ridge over their number of rows
_TONES, _TONE_ROWS = 2001, 200  # quantiles of the last map, and pictures that it is fitted to
_NUMBERS = 1 << 26  # features computed at a time
_DRAWS, _ALIKE = 8, 3.0  # draws of which one is taken, and t
_COMPARED = 2_000  # pictures whose differences at the seam are measured
_EXTREME = 0.2  # share of black and white pixels from which pictures are drawings


@dataclass(frozen=True)
class Completion:
    """Pictures, ready to complete others of which the same part is known.

    Parameters
    ----------
    layout : of the pictures
    known : (d,) booleans
    features : of known pixels
    slopes, centre : of the regression on them
    hidden : the principal components of hidden pixels
    near : the numbers of the pictures of a class, and their neighbourhoods; None is the class of all
    detail : (n, hidden), what the components leave out of the pictures; None for drawings
    tones : values of hidden pixels before and after the monotone map; None while it is fitted
    seam : where known and hidden pixels meet
    """

    layout: Layout
    known: np.ndarray
    features: _Features
    slopes: np.ndarray
    centre: np.ndarray
    hidden: PCA
    near: dict[Any, tuple[np.ndarray, Neighbourhoods]]
    detail: np.ndarray | None
    tones: tuple[np.ndarray, np.ndarray] | None
    seam: _Seam

    @classmethod
    def of(
        cls,
        X: Any,
        mask: Any,
        y: Any = None,
        *,
        n_pixel_values: int = 256,
        n_neighbors: int = N_NEIGHBORS,
        random_state: Any = None,
    ) -> Completion:
        """From pictures X and the part that is known in others; parameters as in `complete`."""
        need(is_int(n_neighbors, 3), "n_neighbors", n_neighbors, "an int of at least 3")
        layout, seed = Layout.of(X, n_pixel_values), Seed.of(random_state)
        known = mask_of(mask, layout, "mask")[:, 0].numpy()
        if known.all() or not known.any():
            every = "every pixel is" if known.all() else "no pixel is"
            raise ValueError(f"{every} known in mask; pass some of them, not all")
        rows = _rows(layout, X)
        if len(rows) < 10:
            raise ValueError(f"there are {len(rows)} pictures to learn from; pass at least 10")
        labelled = [] if y is None else _by_label(y, len(rows))
        hidden = _components(rows[:, ~known], _HIDDEN)
        x = hidden.transform(rows[:, ~known]).astype(np.float64)
        features = _Features.of(rows[:, known], seed.child("features"))
        slopes, centre = _ridge(features, rows[:, known], x)
        predicted = features.predicted(rows[:, known], slopes, centre)
        slopes = slopes @ _components(predicted, _SUGGESTED).components_.T
        conditions = features.predicted(rows[:, known], slopes, centre)
        numbers = np.arange(len(rows))
        near = {
            label: (numbers[some], _neighbourhoods(x[some], conditions[some], n_neighbors))
            for label, some in [*_by_label(None, len(rows)), *labelled]
        }
        photographs, detail = _is_photograph(rows), None
        if photographs:
            detail = rows[:, ~known] - hidden.inverse_transform(x).astype(np.float32)
        seam = _Seam.of(layout, known, rows, smooth=photographs)
        made = cls(layout, known, features, slopes, centre, hidden, near, detail, None, seam)
        return replace(made, tones=made._tones(rows, seed.child("tones")))

    def sample(
        self, X: Any, n_samples: int = 1, y: Any = None, *, random_state: Any = None
    ) -> np.ndarray:
        """Completions of pictures, (n, n_samples, h, w[, c]); parameters as in `complete`."""
        need(is_int(n_samples, 1), "n_samples", n_samples, "an int of at least 1")
        seed, given = Seed.of(random_state), as_array(X)
        rows = _rows(self.layout, X)
        conditions = self.features.predicted(rows[:, self.known], self.slopes, self.centre)
        pixels = np.empty((len(rows), n_samples, int((~self.known).sum())))
        for label, some in _by_label(y, len(rows)):
            if label not in self.near:
                classes = [c for c in self.near if c is not None]
                raise ParameterError("y", label, f"is not one of the classes {classes}")
            own = seed.child(repr(label))
            numbers, near = self.near[label]
            draws = near.draws(conditions[some], n_samples * _DRAWS, own, most=1)
            made, around = draws[0].numpy(), numbers[draws[1].numpy()]
            best = self._continuing(rows[some], made, around, own.child("continuing"))
            made = np.take_along_axis(made, best[..., None], 1)
            pixels[some] = self._pixels(made, np.take_along_axis(around, best, 1))
        if self.seam.smooth:
            pixels += self.seam.correction(rows, pixels)
        out = np.repeat(self.layout.read(X).T.numpy()[:, None], n_samples, 1)
        out[..., ~self.known] = _written(self.layout, pixels)
        c, h, w = self.layout.shape
        pictures = out.reshape(-1, c, h, w).transpose(0, 2, 3, 1).astype(given.dtype)
        return pictures.reshape(len(rows), n_samples, *given.shape[1:])

    def _pixels(self, made: np.ndarray, around: np.ndarray, some: Any = slice(None)) -> np.ndarray:
        """Hidden pixels (or `some` of them) of components (…, components) drawn around pictures (…)."""
        pixels = made @ self.hidden.components_[:, some] + self.hidden.mean_[some]
        if self.detail is not None:
            pixels += self.detail[:, some][around]
        return np.asarray(pixels if self.tones is None else np.interp(pixels, *self.tones))

    def _continuing(
        self, rows: np.ndarray, made: np.ndarray, around: np.ndarray, seed: Seed
    ) -> np.ndarray:
        """Which (q, n) of draws (q, n·_DRAWS, components) continue the rows."""
        q, m = made.shape[:2]
        e = self._pixels(made, around, self.seam.inner) - rows[:, None, self.seam.outer]
        score = -np.square(e).sum(2) / (2 * _ALIKE * self.seam.square)
        score -= np.log(-np.log(seed.uniform(q, m).numpy()))  # Gumbel: the largest is a draw
        best = score.reshape(q, -1, _DRAWS).argmax(2)
        return np.asarray(np.arange(0, m, _DRAWS) + best)

    def _tones(self, rows: np.ndarray, seed: Seed) -> tuple[np.ndarray, np.ndarray]:
        """Quantiles of hidden pixels, as completions of known pictures have them and as they are."""
        some = seed.child("rows").permutation(len(rows))[:_TONE_ROWS]
        near = self.near[None][1]
        at = near.adjusted(near.y[some], without=some, most=1)
        picks = drawn_from(at, 1, seed)
        made = drawn(at, 1, near.spread, seed, picks=picks).numpy()
        around, levels = at.rows.gather(1, picks[:, :1]).numpy(), np.linspace(0, 1, _TONES)
        before = np.quantile(self._pixels(made, around), levels)
        after = np.quantile(rows[some.numpy()][:, ~self.known], levels)
        return before + 1e-9 * np.arange(_TONES), after


def complete(
    X: Any,
    mask: Any,
    like: Any,
    n_samples: int = 1,
    *,
    y: Any = None,
    like_y: Any = None,
    n_pixel_values: int = 256,
    n_neighbors: int = N_NEIGHBORS,
    random_state: Any = None,
) -> np.ndarray:
    """Complete pictures from any known part, without a fit: by the pictures `like`.

    For many calls with the same mask, make a `Completion` once. Hidden parts of photographs have the
    fine detail of a training picture, those of drawings do not.

    Parameters
    ----------
    X : pictures (n, h, w) or (n, h, w, c); hidden pixels are ignored
    mask : (h, w) booleans, True where pixels are known; or "top", "bottom", "left", "right", "border"
        or "center"
    like : pictures to learn from, at least 10, in the same layout; hundreds or more of each kind
    n_samples : completions of each picture
    y, like_y : labels of X, and of `like`: a completion then uses pictures of its own class
    n_pixel_values : of integer pictures
    n_neighbors : pictures that a completion is drawn from

    Returns
    -------
    (n, n_samples, h, w[, c]); known pixels equal those of X

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> images = load_digits().images.astype("uint8")
    >>> done = complete(images[:3], "top", images[100:], 5, n_pixel_values=17, random_state=0)
    >>> done.shape, bool((done[:, :, :4] == images[:3, None, :4]).all())
    ((3, 5, 8, 8), True)
    """
    seed = Seed.of(random_state)
    settings = {"n_pixel_values": n_pixel_values, "n_neighbors": n_neighbors}
    if (y is None) != (like_y is None):
        raise ValueError("y and like_y go together; pass both, or neither")
    made = Completion.of(like, mask, like_y, **settings, random_state=seed.child("learn"))
    return made.sample(X, n_samples, y, random_state=seed.child("sample"))


@dataclass(frozen=True)
class _Seam:
    """Pairs of neighbouring pixels, one known and one hidden.

    Parameters
    ----------
    outer, inner : (p,), the known one, among all pixels; and the hidden one, among the hidden ones
    square : mean square of their difference in pictures
    smooth : the solver of Laplace's equation on the hidden pixels; None for drawings
    """

    outer: np.ndarray
    inner: np.ndarray
    square: float
    smooth: Any

    @classmethod
    def of(cls, layout: Layout, known: np.ndarray, rows: np.ndarray, smooth: bool) -> _Seam:
        number = np.where(known, -1, (~known).cumsum() - 1)
        pixels = np.arange(len(known)).reshape(layout.shape)
        ends = [(pixels[:, :-1], pixels[:, 1:]), (pixels[:, :, :-1], pixels[:, :, 1:])]
        a, b = (np.concatenate([pair[i].ravel() for pair in ends]) for i in (0, 1))
        meet = known[a] != known[b]
        outer, inner = (np.where(known[a] == one, a, b)[meet] for one in (True, False))
        some = rows[:_COMPARED]
        square = float(np.square(some[:, outer] - some[:, inner]).mean()) + 1e-12
        solver = None
        if smooth:
            within = ~known[a] & ~known[b]
            i, j, n = number[a[within]], number[b[within]], int((~known).sum())
            degree = np.bincount(np.concatenate((i, j, number[inner])), minlength=n)
            at = np.concatenate((np.arange(n), i, j)), np.concatenate((np.arange(n), j, i))
            values = np.concatenate((degree, -np.ones(2 * len(i))))
            solver = splu(coo_matrix((values, at), (n, n)).tocsc())
        return cls(outer, number[inner], square, solver)

    def correction(self, rows: np.ndarray, pixels: np.ndarray) -> np.ndarray:
        """What to add to hidden pixels (q, n, hidden) of rows (q, d)."""
        e = rows[:, None, self.outer] - pixels[..., self.inner]
        right = np.zeros((pixels.shape[2], e.shape[0] * e.shape[1]))
        np.add.at(right, self.inner, e.reshape(-1, e.shape[2]).T)
        return np.asarray(self.smooth.solve(right).T.reshape(pixels.shape))


@dataclass(frozen=True)
class _Features:
    """max(0, W·(whitened components) + b) of known pixels."""

    components: PCA
    weights: np.ndarray
    bias: np.ndarray

    @classmethod
    def of(cls, known: np.ndarray, seed: Seed) -> _Features:
        components = _components(known, _KNOWN, whiten=True)
        n = components.n_components_
        weights = seed.child("weights").normal(n, _FEATURES).numpy() / np.sqrt(n)
        return cls(components, weights, seed.child("bias").normal(1, _FEATURES).numpy()[0] / 2)

    def __call__(self, known: np.ndarray) -> np.ndarray:
        inside: np.ndarray = self.components.transform(known) @ self.weights + self.bias
        return inside.clip(min=0)

    def predicted(self, known: np.ndarray, slopes: np.ndarray, centre: np.ndarray) -> np.ndarray:
        parts = np.array_split(known, -(-len(known) * _FEATURES // _NUMBERS))
        return np.concatenate([(self(part) - centre) @ slopes for part in parts])


def _components(rows: np.ndarray, most: int, whiten: bool = False) -> PCA:
    """The leading principal components."""
    n = min(most, len(rows) - 1, rows.shape[1])
    with np.errstate(invalid="ignore"):  # rows that are all alike
        return PCA(n, whiten=whiten, random_state=0).fit(rows)


def _ridge(features: _Features, known: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slopes of x on the features of known pixels, and the means of the features."""
    parts = -(-len(known) * _FEATURES // _NUMBERS)
    pairs = list(zip(np.array_split(known, parts), np.array_split(x, parts), strict=True))
    centre = sum(features(part).sum(0) for part, _ in pairs) / len(known)
    gram, cross = _RIDGE * len(known) * np.eye(_FEATURES), np.zeros((_FEATURES, x.shape[1]))
    for part, own in pairs:
        found = features(part) - centre
        gram += found.T @ found
        cross += found.T @ own
    return np.linalg.solve(gram, cross), centre


def _neighbourhoods(x: np.ndarray, y: np.ndarray, k: int) -> Neighbourhoods:
    """Those of hidden components x given predictions y."""
    rows, conditions = torch.from_numpy(x), torch.from_numpy(y)
    unit = torch.eye(y.shape[1], dtype=torch.float64)
    return Neighbourhoods(rows, conditions, min(k, len(x)), unit, _SPREAD)


def _is_photograph(rows: np.ndarray) -> bool:
    """Whether few pixels are black or white."""
    some = rows[:_COMPARED]
    return bool(((some <= 0) | (some >= 1)).mean() < _EXTREME)


def _rows(layout: Layout, X: Any) -> np.ndarray:
    """Pixels in [0, 1] as rows, float32."""
    raw = layout.read(X).T.numpy().astype(np.float32)
    return raw if layout.n_pixel_values is None else raw / np.float32(layout.n_pixel_values - 1)


def _written(layout: Layout, pixels: np.ndarray) -> np.ndarray:
    if layout.n_pixel_values is None:
        return pixels.clip(0, 1)
    top = layout.n_pixel_values - 1
    return (pixels * top).round().clip(0, top)


def _by_label(y: Any, n: int) -> list[tuple[Any, Any]]:
    """Each label with where it is; None with all rows if there are no labels."""
    if y is None:
        return [(None, slice(None))]
    labels = np.asarray(y)
    if labels.shape != (n,):
        raise ValueError(f"y has shape {labels.shape}; pass a label for each of {n} pictures")
    return [(label, labels == label) for label in np.unique(labels)]
