"""About how long the measures of a run take on a CPU."""

from __future__ import annotations

import math

from sliceflow.cli.data import Input, PictureInput
from sliceflow.cli.picture_run import MAX_PICTURES

# What measures of pictures cost on one thread of a CPU, that of
# `devices.cpu_slowness`, where 60,000 pictures of 28×28 were measured: forests, per
# compared picture, the searches for copies, per value of each training picture and
# searched picture, and principal components, per picture and pair of values. Users are
# told an order of magnitude.
_SECONDS_OF_PICTURES = 0.5  # for any number of them
_SECONDS_PER_COMPARED_PICTURE = 1.4e-3
_SECONDS_PER_SEARCHED_VALUE = 1.1e-10
_SECONDS_OF_COMPONENTS = 8.5e-10
# What measures of tables cost on one thread of an aarch64 machine, with 300 to 2,000
# compared rows of 5 to 20 columns.
_SECONDS_OF_TABLE = 0.7
_SECONDS_PER_CELL = 2.5e-5


def estimate_seconds(
    train: Input, held_out: Input | None, fit_seconds: float, device: str
) -> float | None:
    """About how long the measures take on a CPU; None if that is not known.

    Measures of a table begin with a second fit, which takes about `fit_seconds` again.
    """
    from sliceflow.devices import resolve_device

    if held_out is None or resolve_device(device).type != "cpu":
        return None
    n_train = train.n_rows
    n_held_out = held_out.n_rows
    n_compared = min(n_train, MAX_PICTURES) + min(n_held_out, MAX_PICTURES)
    if not isinstance(train, PictureInput):
        n_cells = n_compared * len(train.columns)
        return fit_seconds + _SECONDS_OF_TABLE + _SECONDS_PER_CELL * n_cells
    n_values = math.prod(train.x.shape[1:])
    return _seconds_of_pictures(n_train, n_held_out, n_compared, n_values)


def _seconds_of_pictures(
    n_train: int, n_held_out: int, n_compared: int, n_values: int
) -> float:
    """About how long the measures of pictures of this many values take on a CPU."""
    import torch

    from sliceflow.devices import cpu_slowness
    from sliceflow.metrics.picture_comparison import MAX_PICTURES_SEARCHED_ON_CPU

    n_searched = min(n_train, MAX_PICTURES_SEARCHED_ON_CPU)
    n_searched += min(n_held_out, MAX_PICTURES_SEARCHED_ON_CPU)
    n_decomposed = min(n_train, MAX_PICTURES)  # into principal components
    seconds = _SECONDS_OF_PICTURES
    seconds += _SECONDS_PER_COMPARED_PICTURE * n_compared
    seconds += _SECONDS_PER_SEARCHED_VALUE * n_searched * n_train * n_values
    seconds += _SECONDS_OF_COMPONENTS * n_decomposed * n_values**2
    return float(seconds) * cpu_slowness() / torch.get_num_threads()
