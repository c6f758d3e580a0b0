"""Schedules: the paper's Table 2, its notation read and refused, and one for pictures of any size."""

import re
from itertools import groupby, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sliceflow.spaces.pictures.schedules import PictureStage, auto, from_string, paper

BAD = [
    "8",
    "8[]",
    "[8]",
    "8[3,]",
    "8[3;5]",
    "8[-3]",
    "x[3]",
    "8[3]×2",
    "8[3]*-1",
    "8[3]=0",
    "8[3]=2*2",
]
FINE = [15, 13, 11, 9, 7, 5, 3]
_CIFAR = {
    7: [7],
    8: [8, 7, 5, 3],
    12: [12, 11, 9, 7, 5, 3],
    16: FINE,
    24: FINE,
    32: FINE,
}
TABLE_2 = {
    28: {
        7: [7, 5, 3],
        11: [11, 9, 7, 5, 3],
        14: [14, 13, 11, 9, 7, 5, 3],
        21: FINE,
        28: FINE,
    },
    32: _CIFAR,
    64: _CIFAR | {64: FINE},
}


@pytest.mark.parametrize("full", TABLE_2)
def test_the_papers_schedule_is_its_table_2(full):
    levels = from_string(paper(full, full), full, full, steps=7)
    patches = {r: [r] for r in range(1, 7)} | TABLE_2[full]
    assert levels == [
        PictureStage(r, r, s, 7) for r, several in patches.items() for s in several
    ]


@given(
    st.lists(
        st.integers(1, 40).flatmap(
            lambda r: st.tuples(
                st.just(r), st.lists(st.integers(1, r), min_size=1, max_size=5)
            )
        ),
        min_size=1,
        max_size=8,
    )
)
def test_text_is_read_as_it_is_written(words):
    text = " ".join(f"{r}[{','.join(map(str, patches))}]" for r, patches in words)
    levels = from_string(text, 40, 40, steps=3)
    assert levels == [
        PictureStage(r, r, patch, 3) for r, patches in words for patch in patches
    ]
    assert [str(level) for level in levels] == [
        f"{r}[{s}]×3" for r, patches in words for s in patches
    ]
    again = "\n\t ".join(str(level).removesuffix("×3") for level in levels)
    assert from_string(again, 40, 40, steps=3) == levels


def test_a_resolution_is_the_longer_side():
    assert from_string("1[1] 4[3] 8[5]", 8, 6) == [
        PictureStage(1, 1, 1, 100),
        PictureStage(4, 3, 3, 100),
        PictureStage(8, 6, 5, 100),
    ]
    assert from_string("20[5]", 1, 20)[0] == PictureStage(1, 20, 5, 100)
    assert str(from_string("4[3]", 6, 8)[0]) == "3x4[3]×100"


def test_a_bracket_can_have_more_steps_or_fewer():
    levels = from_string("1[1]*0.01 4[4,3]*2.5 8[3] 8[2,1]=3", 8, 8, steps=10)
    assert [level.n_steps for level in levels] == [1, 25, 25, 10, 3, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (
                word,
                f"schedule entry {word!r} is not of the form resolution[patch,patch,…]",
            )
            for word in BAD
        ),
        (
            "1[1] 0[3]",
            "schedule has resolution 0 but the pictures are 6×8; use 1 to 8, or schedule='",
        ),
        (
            "1[1] 9[3]",
            "schedule has resolution 9 but the pictures are 6×8; use 1 to 8, or schedule='",
        ),
        (
            "4[9]",
            "schedule entry '4[9]' has a patch of 9 pixels at a resolution of 4; use 1 to 4",
        ),
        (
            "8[3,0]",
            "schedule entry '8[3,0]' has a patch of 0 pixels at a resolution of 8; use 1 to 8",
        ),
        (" \n", "the schedule is empty; pass at least one resolution[patch]"),
    ],
)
def test_what_is_no_schedule_is_named(text, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        from_string(text, 6, 8)


@given(st.integers(1, 300), st.integers(1, 300))
@example(1, 1)
@example(1, 7)
@example(8, 8)
@example(28, 28)
@example(64, 48)
@example(1024, 1024)
def test_auto_suits_pictures_of_any_size(height, width):
    """Coarse to fine, ending at the full resolution; patches fit and fall, down to 3 where they can.

    Coarse levels have more steps. The last one does small patches again, pairs, and grey pixels once.
    """
    colour = from_string(auto(height, width, channels=3), height, width)
    levels = from_string(auto(height, width), height, width)
    assert levels[: len(colour)] == colour
    assert (levels[0].h, levels[0].w, levels[0].patch) == (1, 1, 1)
    assert (levels[-1].h, levels[-1].w) == (height, width)
    longer = [max(level.h, level.w) for level in levels]
    assert longer == sorted(longer)
    for r, group in groupby(levels, key=lambda level: max(level.h, level.w)):
        last = r == max(height, width)
        again = [7, 5, 3] if last and r >= 16 else []
        ends = [patch for patch in (2, 1) if last and patch < r]
        patches, steps = zip(
            *((level.patch, level.n_steps) for level in group), strict=True
        )
        falling = list(patches[: len(patches) - len(again) - len(ends)])
        assert list(patches) == falling + again + ends
        assert falling[0] == min(r, 15)
        assert falling == sorted(set(falling), reverse=True)
        assert falling[-1] == (3 if r >= 7 else r)
        first = 100 if last or r >= 20 else 200 if r >= 12 else 300
        small = [{2: 50, 1: 1}[patch] for patch in ends]
        assert list(steps) == [first] * len(falling) + [200] * len(again) + small
    resolutions = sorted(set(longer))
    assert all(b <= max(a + 1, 1.6 * a) for a, b in pairwise(resolutions))
