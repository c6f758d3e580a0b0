"""Schedules of pictures: resolutions and patches, in the paper's notation."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated

from sliceflow.fields import Between

__all__ = ["PictureStage", "auto", "from_string", "paper"]


@dataclass(frozen=True)
class PictureStage:
    """One stage for pictures: `n_steps` steps with S×S tiles at resolution h×w of the pyramid."""

    h: Annotated[int, Between(1, 1 << 14)]
    w: Annotated[int, Between(1, 1 << 14)]
    patch: Annotated[int, Between(1, 1 << 14)]
    n_steps: Annotated[int, Between(1, 1 << 24)]

    @property
    def name(self) -> str:
        """Its name in events, such as "8×8[5]"."""
        return f"{self.h}×{self.w}[{self.patch}]"

    def __str__(self) -> str:
        size = f"{self.h}" if self.h == self.w else f"{self.h}x{self.w}"
        return f"{size}[{self.patch}]×{self.n_steps}"


_SMALL = "1[1] 2[2] 3[3] 4[4] 5[5] 6[6]"
_FINE = "15,13,11,9,7,5,3"
# the paper's Table 2
_MNIST = (
    f"{_SMALL} 7[7,5,3] 11[11,9,7,5,3] 14[14,13,11,9,7,5,3] 21[{_FINE}] 28[{_FINE}]"
)
_CIFAR = (
    f"{_SMALL} 7[7] 8[8,7,5,3] 12[12,11,9,7,5,3] 16[{_FINE}] 24[{_FINE}] 32[{_FINE}]"
)
_CELEBA = f"{_CIFAR} 64[{_FINE}]"


def from_string(
    text: str, height: int, width: int, steps: int = 100
) -> list[PictureStage]:
    """The stages of a schedule, each of so many steps, for pictures of height × width.

    The text names resolutions (of the longer side), each with patch sizes in brackets. ``*3`` after a
    bracket triples the steps of its stages, ``*0.5`` halves them, ``=4`` makes them 4.

    Examples
    --------
    >>> [str(level) for level in from_string("1[1] 4[4,3] 8[5]", 8, 8, steps=20)]
    ['1[1]×20', '4[4]×20', '4[3]×20', '8[5]×20']
    >>> str(from_string("4[3]", 8, 6)[0])
    '4x3[3]×100'
    >>> [level.n_steps for level in from_string("4[4] 8[3,2]*3 8[1]=4", 8, 8, steps=20)]
    [20, 60, 60, 4]
    """
    longer = max(height, width)
    levels = []
    for word in text.split():
        match = re.fullmatch(
            r"(\d+)\[(\d+(?:,\d+)*)\](?:\*(\d+(?:\.\d+)?)|=([1-9]\d*))?", word
        )
        if match is None:
            raise ValueError(
                f"schedule entry {word!r} is not of the form resolution[patch,patch,…], "
                "such as 28[15,13,11], or 28[15,13,11]*2 for twice the steps, or 28[1]=4 for 4 steps"
            )
        resolution, patches = int(match[1]), [int(p) for p in match[2].split(",")]
        if not 1 <= resolution <= longer:
            fact = f"schedule has resolution {resolution} but the pictures are {height}×{width}"
            raise ValueError(f"{fact}; use 1 to {longer}, or schedule='auto'")
        h, w = (max(1, round(resolution * side / longer)) for side in (height, width))
        for patch in patches:
            if not 1 <= patch <= resolution:
                fact = f"{word!r} has a patch of {patch} pixels at a resolution of {resolution}"
                raise ValueError(f"schedule entry {fact}; use 1 to {resolution}")
            n_steps = max(
                1, int(match[4]) if match[4] else round(steps * float(match[3] or 1))
            )
            levels.append(PictureStage(h, w, patch, n_steps))
    if not levels:
        raise ValueError("the schedule is empty; pass at least one resolution[patch]")
    return levels


def auto(height: int, width: int, channels: int = 1) -> str:
    """A schedule for pictures of any size, in the paper's notation.

    Like the paper's: resolutions 1 to 7, then each about 1.4 times the previous one; patches from 15
    (or the full picture) down to 3. Coarse levels have more steps: they are cheap and determine the
    content. The small patches of the last level are repeated. Pairs of pixels come last, and for grey
    pictures a step of single pixels, which gives each pixel its own distribution: black is black.

    Examples
    --------
    >>> auto(8, 8)
    '1[1]*3 2[2]*3 3[3]*3 4[4]*3 5[5]*3 6[6]*3 8[8,7,5,3] 8[2]*0.5 8[1]=1'
    """
    longer = max(height, width)
    resolutions = [longer]
    while resolutions[-1] > 7:
        resolutions.append(max(7, round(resolutions[-1] / math.sqrt(2))))
    if len(resolutions) > 1 and resolutions[-2] <= 8:  # 7 and 8 are too close
        resolutions.pop()
    levels = [*range(1, min(resolutions[-1], 7)), *reversed(resolutions)]
    words = []
    for r in levels:
        first = min(r, 15)
        rest = [p for p in range(13, 2, -2) if p < first] if r >= 7 else []
        more = "*3" if r < min(longer, 12) else "*2" if r < min(longer, 20) else ""
        words.append(f"{r}[{','.join(map(str, [first, *rest]))}]{more}")
    if longer >= 16:
        words.append(f"{longer}[7,5,3]*2")
    if longer > 2:
        words.append(f"{longer}[2]*0.5")
    if longer > 1 and channels == 1:
        words.append(f"{longer}[1]=1")
    return " ".join(words)


def paper(height: int, width: int) -> str:
    """The schedule of the paper's Table 2 for pictures of this size.

    The table has pictures of 28, 32 and 64 pixels. Other sizes take the lower resolutions of CelebA's
    column, then their own resolution with patches from 15 down to 3.

    Examples
    --------
    >>> paper(8, 8)
    '1[1] 2[2] 3[3] 4[4] 5[5] 6[6] 7[7] 8[8,7,5,3]'
    """
    longer = max(height, width)
    if longer == 28:
        return _MNIST
    words = {int(word.partition("[")[0]): word for word in _CELEBA.split()}
    patches = [min(longer, 15), *(p for p in range(13, 2, -2) if p < longer)]
    words.setdefault(longer, f"{longer}[{','.join(map(str, patches))}]")
    return " ".join(words[r] for r in sorted(words) if r <= longer)
