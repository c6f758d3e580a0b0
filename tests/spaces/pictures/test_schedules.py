"""Schedules: the paper's Table 2, its notation read and refused, and one for pictures of any size."""

import re
from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceflow.spaces.pictures.schedules import PRESETS, PictureStage, auto, from_string

FINE = [15, 13, 11, 9, 7, 5, 3]
SMALL = {r: [r] for r in range(1, 7)}
TABLE_2 = {
    "mnist": (
        28,
        {7: [7, 5, 3], 11: [11, 9, 7, 5, 3], 14: [14, 13, 11, 9, 7, 5, 3], 21: FINE, 28: FINE},
    ),
    "cifar10": (32, {7: [7], 8: [8, 7, 5, 3], 12: [12, 11, 9, 7, 5, 3], 16: FINE, 24: FINE, 32: FINE}),
}
TABLE_2["celeba"] = (64, TABLE_2["cifar10"][1] | {64: FINE})


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_the_papers_table_2(name):
    full, coarse_to_fine = TABLE_2[name]
    levels = from_string(PRESETS[name], full, full, steps=7)
    expected = [
        PictureStage(r, r, s, 7) for r, patches in (SMALL | coarse_to_fine).items() for s in patches
    ]
    assert levels == expected


@pytest.mark.parametrize(
    ("name", "full", "counts"),
    [
        ("mnist", 28, [1] * 6 + [3, 5, 7, 7, 7]),
        ("cifar10", 32, [1] * 6 + [1, 4, 6, 7, 7, 7]),
        ("celeba", 64, [1] * 6 + [1, 4, 6, 7, 7, 7, 7]),
    ],
)
def test_presets_have_as_many_stages_as_table_2(name, full, counts):
    levels = from_string(PRESETS[name], full, full)
    assert [len(list(group)) for _, group in groupby(levels, key=lambda level: level.h)] == counts


@given(
    st.lists(
        st.integers(1, 40).flatmap(
            lambda r: st.tuples(st.just(r), st.lists(st.integers(1, r), min_size=1, max_size=5))
        ),
        min_size=1,
        max_size=8,
    )
)
def test_text_is_read_as_it_is_written(words):
    text = " ".join(f"{r}[{','.join(map(str, patches))}]" for r, patches in words)
    levels = from_string(text, 40, 40, steps=3)
    assert levels == [PictureStage(r, r, patch, 3) for r, patches in words for patch in patches]
    assert [str(level) for level in levels] == [f"{r}[{s}]×3" for r, patches in words for s in patches]
    again = " ".join(str(level).removesuffix("×3") for level in levels)
    assert from_string(again, 40, 40, steps=3) == levels


def test_any_blank_separates_words():
    assert from_string(" 1[1]\n\t 4[3] ", 4, 4) == from_string("1[1] 4[3]", 4, 4)


def test_a_resolution_is_the_longer_side():
    assert from_string("1[1] 4[3] 8[5]", 8, 6) == [
        PictureStage(1, 1, 1, 100),
        PictureStage(4, 3, 3, 100),
        PictureStage(8, 6, 5, 100),
    ]
    assert from_string("20[5]", 1, 20)[0] == PictureStage(1, 20, 5, 100)
    assert str(from_string("4[3]", 6, 8)[0]) == "3x4[3]×100"


def test_steps_can_be_a_rule():
    levels = from_string("1[1] 4[4,3]", 8, 4, steps=lambda h, w, patch: 100 * h + 10 * w + patch)
    assert [level.n_steps for level in levels] == [111, 424, 423]


def test_a_bracket_can_have_more_steps_or_fewer():
    levels = from_string("1[1]*0.01 4[4,3]*2.5 8[3] 8[2,1]=3", 8, 8, steps=10)
    assert [level.n_steps for level in levels] == [1, 25, 25, 10, 3, 3]


@pytest.mark.parametrize(
    "word",
    [
        "8",
        "8[",
        "8[]",
        "[8]",
        "8[3,]",
        "8[3;5]",
        "8[-3]",
        "x[3]",
        "8(3)",
        "8[3]×2",
        "8[3]*",
        "8[3]*-1",
        "8[3]=",
        "8[3]=0",
        "8[3]=2*2",
    ],
)
def test_a_word_of_another_form_is_named(word):
    message = (
        f"schedule entry {word!r} is not of the form resolution[patch,patch,…], "
        "such as 28[15,13,11], or 28[15,13,11]*2 for twice the steps, or 28[1]=4 for 4 steps"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        from_string(f"1[1] {word}", 8, 8)


@pytest.mark.parametrize("resolution", [0, 9])
def test_a_resolution_that_the_pictures_do_not_have_is_named(resolution):
    message = (
        f"schedule has resolution {resolution} but the pictures are 6×8; use 1 to 8, or schedule='auto'"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        from_string(f"1[1] {resolution}[3]", 6, 8)


def test_a_patch_without_pixels_is_refused():
    message = "schedule entry '8[3,0]' has a patch of 0 pixels at a resolution of 8; use 1 to 8"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        from_string("8[3,0]", 8, 8)


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_schedule_is_refused(text):
    message = "the schedule is empty; pass at least one resolution[patch]"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        from_string(text, 8, 8)


@given(st.integers(1, 300), st.integers(1, 300))
def test_auto_suits_pictures_of_any_size(height, width):
    check_auto(height, width)


@pytest.mark.parametrize(
    ("height", "width"),
    [(1, 1), (1, 7), (7, 1), (5, 9), (8, 8), (28, 28), (32, 32), (64, 48), (1, 500), (1024, 1024)],
)
def test_auto_suits_pictures_of_these_sizes(height, width):
    check_auto(height, width)


@pytest.mark.parametrize("size", range(1, 65))
def test_auto_suits_squares(size):
    check_auto(size, size)


def check_auto(height, width):
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
        patches, steps = zip(*((level.patch, level.n_steps) for level in group), strict=True)
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
