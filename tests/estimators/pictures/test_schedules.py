"""Schedules: the paper's Table 2, its notation, and one for pictures of any size."""

import re
from itertools import groupby, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sliceflow.errors import ParameterError
from sliceflow.estimators.pictures.schedules import (
    PictureStage,
    auto,
    from_string,
    paper,
)

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
    stages = from_string(paper(full, full), full, full, steps=7)
    patches_by_resolution = {r: [r] for r in range(1, 7)} | TABLE_2[full]
    expected = []
    for resolution, patches in patches_by_resolution.items():
        for patch in patches:
            expected.append(PictureStage(resolution, resolution, patch, 7))
    assert stages == expected


@st.composite
def entries(draw):
    """A resolution, and patches that fit into it."""
    resolution = draw(st.integers(1, 40))
    patches = draw(st.lists(st.integers(1, resolution), min_size=1, max_size=5))
    return resolution, patches


@given(st.lists(entries(), min_size=1, max_size=8))
def test_text_is_read_as_it_is_written(schedule):
    words = []
    expected = []
    for resolution, patches in schedule:
        words.append(f"{resolution}[{','.join(map(str, patches))}]")
        for patch in patches:
            expected.append(PictureStage(resolution, resolution, patch, 3))
    stages = from_string(" ".join(words), 40, 40, steps=3)
    assert stages == expected
    written = [str(stage) for stage in stages]
    assert written == [f"{stage.height}[{stage.patch}]×3" for stage in expected]
    again = "\n\t ".join(text.removesuffix("×3") for text in written)
    assert from_string(again, 40, 40, steps=3) == stages


def test_a_resolution_is_the_longer_side():
    assert from_string("1[1] 4[3] 8[5]", 8, 6) == [
        PictureStage(1, 1, 1, 100),
        PictureStage(4, 3, 3, 100),
        PictureStage(8, 6, 5, 100),
    ]
    assert from_string("20[5]", 1, 20)[0] == PictureStage(1, 20, 5, 100)
    assert str(from_string("4[3]", 6, 8)[0]) == "3x4[3]×100"


def test_a_bracket_can_have_more_steps_or_fewer():
    stages = from_string("1[1]*0.01 4[4,3]*2.5 8[3] 8[2,1]=3", 8, 8, steps=10)
    assert [stage.n_steps for stage in stages] == [1, 25, 25, 10, 3, 3]


@pytest.mark.parametrize("entry", BAD)
def test_what_is_no_entry_is_named(entry):
    fact = (
        f"has the entry {entry!r}, which is not of the form resolution[patch,patch,…]"
    )
    message = f"schedule={entry!r} {fact}; write 28[15,13,11]"
    with pytest.raises(ParameterError, match=f"^{re.escape(message)}"):
        from_string(entry, 6, 8)


@pytest.mark.parametrize(
    ("text", "fact", "hint"),
    [
        (
            "1[1] 0[3]",
            "has resolution 0 but the pictures are 6×8",
            "use 1 to 8, or schedule='auto'",
        ),
        (
            "1[1] 9[3]",
            "has resolution 9 but the pictures are 6×8",
            "use 1 to 8, or schedule='auto'",
        ),
        (
            "4[9]",
            "has the entry '4[9]' with a patch of 9 pixels at a resolution of 4",
            "use patches of 1 to 4",
        ),
        (
            "8[3,0]",
            "has the entry '8[3,0]' with a patch of 0 pixels at a resolution of 8",
            "use patches of 1 to 8",
        ),
        (" \n", "is empty", "pass at least one resolution[patch]"),
    ],
)
def test_what_is_no_schedule_is_named(text, fact, hint):
    message = f"schedule={text!r} {fact}; {hint}"
    with pytest.raises(ParameterError, match=f"^{re.escape(message)}$"):
        from_string(text, 6, 8)


@given(st.integers(1, 300), st.integers(1, 300))
@example(1, 1)
@example(1, 7)
@example(8, 8)
@example(28, 28)
@example(64, 48)
@example(1024, 1024)
def test_auto_suits_pictures_of_any_size(height, width):
    """Coarse to fine, ending at the full resolution, in steps that are small enough."""
    color = from_string(auto(height, width, channels=3), height, width)
    stages = from_string(auto(height, width), height, width)
    assert stages[: len(color)] == color
    assert (stages[0].height, stages[0].width, stages[0].patch) == (1, 1, 1)
    assert (stages[-1].height, stages[-1].width) == (height, width)
    longer_sides = [max(stage.height, stage.width) for stage in stages]
    assert longer_sides == sorted(longer_sides)
    for r, group in groupby(stages, key=lambda stage: max(stage.height, stage.width)):
        check_auto_resolution(r, list(group), is_last=r == max(height, width))
    resolutions = sorted(set(longer_sides))
    assert all(b <= max(a + 1, 1.6 * a) for a, b in pairwise(resolutions))


def check_auto_resolution(resolution, stages, is_last):
    """Patches fit and fall, down to 3 where they can.

    Coarse resolutions have more steps. The last one does small patches again, pairs,
    and gray pixels once.
    """
    repeated = []
    smallest = []
    if is_last and resolution >= 16:
        repeated = [7, 5, 3]
    if is_last:
        smallest = [patch for patch in (2, 1) if patch < resolution]
    patches = [stage.patch for stage in stages]
    falling = patches[: len(patches) - len(repeated) - len(smallest)]
    assert patches == falling + repeated + smallest
    assert falling[0] == min(resolution, 15)
    assert falling == sorted(set(falling), reverse=True)
    assert falling[-1] == (3 if resolution >= 7 else resolution)

    n_steps = 300
    if is_last or resolution >= 20:
        n_steps = 100
    elif resolution >= 12:
        n_steps = 200
    steps_of_smallest = [{2: 50, 1: 1}[patch] for patch in smallest]
    assert [stage.n_steps for stage in stages] == (
        [n_steps] * len(falling) + [200] * len(repeated) + steps_of_smallest
    )
