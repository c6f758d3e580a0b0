"""Numbers written as text are read, and written the same way."""

import subprocess
import sys

import numpy as np
import pytest

from running import environment
from sliceflow.number_formats import infer_number_format

FORMATS = {
    "thousands": (["1,234", "12,345", "999", "1,000,000"], [1234, 12345, 999, 1000000]),
    "decimal comma": (["3,14", "2,5", "10,25", "0,5"], [3.14, 2.5, 10.25, 0.5]),
    "both": (
        ["1.234,50", "10,00", "7,25", "1.000.000,75"],
        [1234.5, 10, 7.25, 1000000.75],
    ),
    "per cent": (["7%", "12%", "0%", "100%"], [7, 12, 0, 100]),
    "currency": (
        ["$1,200.50", "$3.75", "$10.00", "$999.99"],
        [1200.5, 3.75, 10, 999.99],
    ),
    "code": (["EUR 1,200.50", "EUR 3.75", "EUR -10.00"], [1200.5, 3.75, -10]),
    "code behind": (["1.200,50 CHF", "-3,75 CHF"], [1200.5, -3.75]),
    "letters": (["R$ 1.200,50", "R$ 3,75"], [1200.5, 3.75]),
    "minus before": (["-$1,200.50", "$3.75", "-$0.25"], [-1200.5, 3.75, -0.25]),
    "parentheses": (["($1,200.50)", "$3.75", "$0.25"], [-1200.5, 3.75, 0.25]),
    "bare parentheses": (["(7.50)", "3.75"], [-7.5, 3.75]),
    "gaps": (["1 234,50", "12,25", "1 000 000,00"], [1234.5, 12.25, 1000000]),
    "gaps before a sign": (["12 500 €", "800 €"], [12500, 800]),
    "apostrophes": (["1'234.50", "12.25"], [1234.5, 12.25]),
}
NO_NUMBERS = {
    "leading zeros": ["00123", "00456"],
    "words": ["Room 12", "Room 7"],
    "codes": ["K12", "K7"],
    "numbers of persons": ["123 456 782", "046 454 286"],
    "groups of two": ["12 34", "56 78"],
    "a point and a comma": ["1,234.5", "3,14"],
    "a comma and a point": ["1.234,5", "3.14"],
    "groups of four": ["1234,567.5", "3"],
}


@pytest.mark.parametrize(("texts", "numbers"), FORMATS.values(), ids=FORMATS)
def test_numbers_are_read_and_written_the_same_way(texts, numbers):
    cells = np.array(texts, dtype=object)
    number_format = infer_number_format(cells)
    assert number_format.parse(cells).tolist() == numbers
    assert number_format.write(np.array(numbers, dtype=float)) == texts


@pytest.mark.parametrize("texts", NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_other_texts_are_no_numbers(texts):
    assert infer_number_format(np.array(texts, dtype=object)) is None


CODE = """
import numpy as np
from sliceflow.number_formats import infer_number_format

for texts in (["7%", "8 %"], ["€ 5", "$6"]):
    print(infer_number_format(np.array(texts, dtype=object)))
"""


def test_of_two_formats_the_first_counts_in_every_process():
    """Sets of texts have another order in each."""
    outputs = set()
    for seed in range(2):
        variables = environment() | {"PYTHONHASHSEED": str(seed)}
        process = subprocess.run(
            [sys.executable, "-c", CODE], env=variables, capture_output=True
        )
        outputs.add(process.stdout)
    assert len(outputs) == 1
    assert b"suffix='%'" in outputs.pop()
