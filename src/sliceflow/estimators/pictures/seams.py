"""The seam of a completion, where known and hidden pixels meet.

Of several draws, one is taken that continues the known pixels. In photographs, the
remaining step at the seam is spread over the hidden pixels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.linalg import SuperLU, splu

from sliceflow.arrays import Floats, Ints, Mask
from sliceflow.engine.random import Seed

# A completion is one of this many draws, chosen by how well it continues the known
# pixels.
DRAWS_PER_COMPLETION = 8
# The temperature t of this choice: about how many neighboring differences say the
# same, so that their squares count as one. With a larger t the choice is more random.
# There is no record of other values.
SEAM_CORRELATION = 3.0


class Seam:
    """Where known and hidden pixels meet.

    Pair k of pixels side by side has the known pixel known_of_pair[k], an index among
    all pixels, and the hidden one hidden_of_pair[k], an index among hidden pixels.
    """

    def __init__(
        self,
        rows: NDArray[np.float32],
        is_known_value: Mask,
        shape: tuple[int, int, int],
        smooth: bool,
    ) -> None:
        first, second = _neighboring_pixels(shape)
        is_first_known = is_known_value[first]
        is_second_known = is_known_value[second]
        is_at_seam = is_first_known != is_second_known
        known_side = np.where(is_first_known, first, second)[is_at_seam]
        hidden_side = np.where(is_first_known, second, first)[is_at_seam]
        # The index of each pixel among the hidden ones, if it is hidden.
        hidden_index = (~is_known_value).cumsum() - 1
        self.known_of_pair = known_side
        self.hidden_of_pair = hidden_index[hidden_side]

        # σ² of the differences, in real pictures; a little more, never zero.
        differences = rows[:, known_side] - rows[:, hidden_side]
        self.mean_square = float(np.square(differences).mean()) + 1e-12

        self.solver: SuperLU | None = None  # of photographs
        if smooth:
            is_hidden_pair = ~is_first_known & ~is_second_known
            self.solver = _laplace_solver(
                hidden_index[first[is_hidden_pair]],
                hidden_index[second[is_hidden_pair]],
                self.hidden_of_pair,
                int((~is_known_value).sum()),
            )

    def choose_draws(
        self, rows: NDArray[np.float32], pixels_at_seam: Floats, seed: Seed
    ) -> Ints:
        """The indices (m, n) of draws that continue the known pixels of rows (m, d).

        One in eight is drawn in proportion to exp(−Σe²/(2tσ²)), for differences e at
        the seam. `pixels_at_seam` (m, 8n, pairs) are the hidden pixels of the draws
        that have a known neighbor.
        """
        known = rows[:, None, self.known_of_pair]
        squares = np.square(pixels_at_seam - known).sum(2)
        log_weight = -squares / (2 * SEAM_CORRELATION * self.mean_square)
        # With Gumbel's noise the largest is a draw in proportion to the weights.
        uniform = seed.uniform(*log_weight.shape).numpy()
        log_weight -= np.log(-np.log(uniform))
        m, n_draws = log_weight.shape
        groups = log_weight.reshape(m, -1, DRAWS_PER_COMPLETION)
        group_starts = np.arange(0, n_draws, DRAWS_PER_COMPLETION)
        return np.asarray(group_starts + groups.argmax(2))

    def blend(self, rows: NDArray[np.float32], pixels: Floats) -> Floats:
        """Hidden pixels (m, n, hidden) of photographs, joined to rows (m, d).

        Laplace's equation spreads the differences at the seam, as in Pérez, Gangnet and
        Blake (2003), "Poisson image editing". In drawings that would be fog.
        """
        if self.solver is None:
            return pixels
        known = rows[:, None, self.known_of_pair]
        differences = known - pixels[..., self.hidden_of_pair]
        m, n, n_pairs = differences.shape
        right_side = np.zeros((pixels.shape[2], m * n))
        np.add.at(right_side, self.hidden_of_pair, differences.reshape(-1, n_pairs).T)
        correction = self.solver.solve(right_side).T.reshape(pixels.shape)
        return np.asarray(pixels + correction)


def _neighboring_pixels(shape: tuple[int, int, int]) -> tuple[Ints, Ints]:
    """All pairs of pixels side by side, one above or left of the other, as indices."""
    index = np.arange(np.prod(shape)).reshape(shape)
    first = np.concatenate((index[:, :-1].ravel(), index[:, :, :-1].ravel()))
    second = np.concatenate((index[:, 1:].ravel(), index[:, :, 1:].ravel()))
    return first, second


def _laplace_solver(first: Ints, second: Ints, at_seam: Ints, n: int) -> SuperLU:
    """Solves the discrete Laplace equation on n hidden pixels.

    Pixels `first` and `second` are side by side. The solution is given at known pixels.
    A pixel in `at_seam` has a known neighbor, or as many as it is listed times.
    """
    degree = np.bincount(np.concatenate((first, second, at_seam)), minlength=n)
    diagonal = np.arange(n)
    values = np.concatenate((degree, -np.ones(2 * len(first))))
    rows = np.concatenate((diagonal, first, second))
    columns = np.concatenate((diagonal, second, first))
    return splu(coo_matrix((values, (rows, columns)), (n, n)).tocsc())
