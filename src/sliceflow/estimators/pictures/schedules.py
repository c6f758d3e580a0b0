"""Schedules of pictures: resolutions and patches, in the paper's notation."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated

from sliceflow.errors import ParameterError
from sliceflow.saved_types import Between

__all__ = ["PictureStage", "auto", "from_string", "paper"]

# Limits on the numbers of a saved model, so that a damaged file is refused early. They
# are far beyond what fits into memory.
MAX_SIDE = 1 << 14
MAX_STEPS = 1 << 24


@dataclass(frozen=True)
class PictureStage:
    """One stage: steps with S×S tiles at one resolution of the pyramid.

    Attributes
    ----------
    height, width : int
        The resolution, in coefficients of the pyramid.
    patch : int
        S, the side of a tile.
    n_steps : int
        The number of steps.

    Examples
    --------
    >>> str(PictureStage(height=8, width=8, patch=5, n_steps=20))
    '8[5]×20'
    """

    height: Annotated[int, Between(1, MAX_SIDE)]  # in coefficients of the pyramid
    width: Annotated[int, Between(1, MAX_SIDE)]
    patch: Annotated[int, Between(1, MAX_SIDE)]  # S
    n_steps: Annotated[int, Between(1, MAX_STEPS)]

    @property
    def name(self) -> str:
        """The name of the stage in events, such as "8×8[5]"."""
        return f"{self.height}×{self.width}[{self.patch}]"

    def __str__(self) -> str:
        size = f"{self.height}x{self.width}"
        if self.height == self.width:
            size = f"{self.height}"
        return f"{size}[{self.patch}]×{self.n_steps}"


# The schedules of the paper's Table 2.
_COARSE_RESOLUTIONS = "1[1] 2[2] 3[3] 4[4] 5[5] 6[6]"
_FINE_PATCHES = "15,13,11,9,7,5,3"
_MNIST = (
    f"{_COARSE_RESOLUTIONS} 7[7,5,3] 11[11,9,7,5,3] 14[14,13,11,9,7,5,3] "
    f"21[{_FINE_PATCHES}] 28[{_FINE_PATCHES}]"
)
_CIFAR = (
    f"{_COARSE_RESOLUTIONS} 7[7] 8[8,7,5,3] 12[12,11,9,7,5,3] "
    f"16[{_FINE_PATCHES}] 24[{_FINE_PATCHES}] 32[{_FINE_PATCHES}]"
)
_CELEBA = f"{_CIFAR} 64[{_FINE_PATCHES}]"

# The largest patch of Table 2, and its largest resolution with patches of one size
# only.
MAX_PATCH = 15
LAST_COARSE_RESOLUTION = 7

# Resolutions of the automatic schedule below these have more steps: they are
# cheap and decide what a picture shows. On MNIST without clusters, three times the
# steps below 12×12 took FD from 6.9 to 3.8.
TRIPLE_STEPS_BELOW = 12
DOUBLE_STEPS_BELOW = 20
# From this size on, the small patches of the last resolution are repeated. With three
# times the steps that took FID-768 of CIFAR-10 from .46 to .41.
REPEAT_SMALL_PATCHES_FROM = 16

_ENTRY_PATTERN = re.compile(
    r"(?P<resolution>\d+)"
    r"\[(?P<patches>\d+(?:,\d+)*)\]"
    r"(?:\*(?P<factor>\d+(?:\.\d+)?)|=(?P<steps>[1-9]\d*))?"
)


def from_string(
    text: str, height: int, width: int, steps: int = 100
) -> list[PictureStage]:
    """Read the stages of a schedule for pictures of height × width.

    The text names resolutions (of the longer side), each with patch sizes in brackets.
    ``*3`` after a bracket triples the steps of its stages, ``*0.5`` halves them, ``=4``
    makes them 4.

    Parameters
    ----------
    text : str
        The schedule, in the paper's notation.
    height, width : int
        The size of the pictures.
    steps : int, default 100
        The number of steps of each stage.

    Returns
    -------
    stages : list of PictureStage

    Raises
    ------
    ParameterError
        If the text is no schedule, or one for larger pictures.

    Examples
    --------
    >>> [str(stage) for stage in from_string("1[1] 4[4,3] 8[5]", 8, 8, steps=20)]
    ['1[1]×20', '4[4]×20', '4[3]×20', '8[5]×20']
    >>> str(from_string("4[3]", 8, 6)[0])
    '4x3[3]×100'
    >>> [stage.n_steps for stage in from_string("4[4] 8[3,2]*3 8[1]=4", 8, 8, steps=20)]
    [20, 60, 60, 4]
    """
    stages = []
    for entry in text.split():
        stages.extend(_read_entry(entry, text, height, width, steps))
    if not stages:
        raise ParameterError(
            "schedule", text, "is empty", "pass at least one resolution[patch]"
        )
    return stages


def _read_entry(
    entry: str, schedule: str, height: int, width: int, steps: int
) -> list[PictureStage]:
    """The stages of one entry of a schedule, such as "8[5,3]*2"."""
    match = _ENTRY_PATTERN.fullmatch(entry)
    if match is None:
        raise ParameterError(
            "schedule",
            schedule,
            f"has the entry {entry!r}, which is not of the form "
            "resolution[patch,patch,…]",
            "write 28[15,13,11], or 28[15,13,11]*2 for twice the steps, or 28[1]=4 "
            "for 4 steps",
        )
    resolution = int(match["resolution"])
    longer_side = max(height, width)
    if not 1 <= resolution <= longer_side:
        raise ParameterError(
            "schedule",
            schedule,
            f"has resolution {resolution} but the pictures are {height}×{width}",
            f"use 1 to {longer_side}, or schedule='auto'",
        )
    patches = [int(patch) for patch in match["patches"].split(",")]
    for patch in patches:
        if not 1 <= patch <= resolution:
            raise ParameterError(
                "schedule",
                schedule,
                f"has the entry {entry!r} with a patch of {patch} pixels at a "
                f"resolution of {resolution}",
                f"use patches of 1 to {resolution}",
            )
    stage_height = max(1, round(resolution * height / longer_side))
    stage_width = max(1, round(resolution * width / longer_side))
    n_steps = _steps_of_entry(match, steps)
    return [
        PictureStage(stage_height, stage_width, patch, n_steps) for patch in patches
    ]


def _steps_of_entry(match: re.Match[str], steps: int) -> int:
    """The steps of each stage of an entry: the usual `steps`, unless it says others."""
    if match["factor"] is not None:
        return max(1, round(steps * float(match["factor"])))
    if match["steps"] is not None:
        return int(match["steps"])
    return steps


def auto(height: int, width: int, channels: int = 1) -> str:
    """The automatic schedule for pictures of any size, in the paper's notation.

    It is like the paper's: resolutions 1 to 7, then each about 1.4 times the previous
    one; patches from 15 (or the full picture) down to 3. Coarse resolutions have more
    steps: they are cheap and determine the content. The small patches of the last
    resolution are repeated. Pairs of pixels come last, and for gray pictures a step of
    single pixels, which gives each pixel its own distribution: black is black.

    Parameters
    ----------
    height, width : int
        The size of the pictures.
    channels : int, default 1
        The number of channels: 1 for gray pictures.

    Returns
    -------
    schedule : str

    Examples
    --------
    >>> auto(8, 8)
    '1[1]*3 2[2]*3 3[3]*3 4[4]*3 5[5]*3 6[6]*3 8[8,7,5,3] 8[2]*0.5 8[1]=1'
    """
    longer_side = max(height, width)
    entries = []
    for resolution in _auto_resolutions(longer_side):
        patches = [min(resolution, MAX_PATCH)]
        if resolution >= LAST_COARSE_RESOLUTION:
            patches = _falling_patches(resolution)
        entry = _format_entry(resolution, patches)
        if resolution < min(longer_side, TRIPLE_STEPS_BELOW):
            entry += "*3"
        elif resolution < min(longer_side, DOUBLE_STEPS_BELOW):
            entry += "*2"
        entries.append(entry)
    if longer_side >= REPEAT_SMALL_PATCHES_FROM:
        entries.append(f"{longer_side}[7,5,3]*2")
    if longer_side > 2:
        entries.append(f"{longer_side}[2]*0.5")
    if longer_side > 1 and channels == 1:
        entries.append(f"{longer_side}[1]=1")
    return " ".join(entries)


def paper(height: int, width: int) -> str:
    """The schedule of the paper's Table 2 for pictures of this size.

    The table has pictures of 28, 32 and 64 pixels. Other sizes take the lower
    resolutions of CelebA's column, then their own resolution with patches from 15 down
    to 3.

    Parameters
    ----------
    height, width : int
        The size of the pictures.

    Returns
    -------
    schedule : str

    Examples
    --------
    >>> paper(8, 8)
    '1[1] 2[2] 3[3] 4[4] 5[5] 6[6] 7[7] 8[8,7,5,3]'
    """
    longer_side = max(height, width)
    if longer_side == 28:
        return _MNIST
    entries = []
    for entry in _CELEBA.split():
        resolution = int(entry.partition("[")[0])
        if resolution < longer_side:
            entries.append(entry)
        elif resolution == longer_side:
            return " ".join([*entries, entry])
    entries.append(_format_entry(longer_side, _falling_patches(longer_side)))
    return " ".join(entries)


def _auto_resolutions(longer_side: int) -> list[int]:
    """The resolutions of the automatic schedule, from 1 to the whole picture."""
    resolutions = [longer_side]
    while resolutions[0] > LAST_COARSE_RESOLUTION:
        coarser = round(resolutions[0] / math.sqrt(2))
        resolutions.insert(0, max(LAST_COARSE_RESOLUTION, coarser))
    if len(resolutions) > 1 and resolutions[1] <= LAST_COARSE_RESOLUTION + 1:
        resolutions.pop(0)  # 7 and 8 are too close
    first = min(resolutions[0], LAST_COARSE_RESOLUTION)
    return [*range(1, first), *resolutions]


def _falling_patches(resolution: int) -> list[int]:
    """The whole picture or 15 pixels, then the smaller ones of 13, 11, 9, 7, 5, 3."""
    largest = min(resolution, MAX_PATCH)
    return [largest, *(patch for patch in range(13, 2, -2) if patch < largest)]


def _format_entry(resolution: int, patches: list[int]) -> str:
    """An entry of a schedule, such as "8[5,3]"."""
    return f"{resolution}[{','.join(map(str, patches))}]"
