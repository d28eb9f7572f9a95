"""Numbers for people."""

from __future__ import annotations

import pytest

from dcinterp.support.text import printable, readable

WORDS = ("thousand", "million", "billion")


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (999, "999"),
        (1_234, "1.23 thousand"),
        (999_499, "999 thousand"),
        (999_999, "1 million"),
        (12_345_678, "12.3 million"),
        (1.2e12, "1,200 billion"),
    ],
)
def test_the_unit_is_that_of_the_rounded_number(count, said):
    assert readable(count, WORDS) == said


def test_signs_that_steer_a_terminal_are_written_out():
    assert printable("a \x1b[31mred\x9b\x07 word\nand é 中\t.") == "a \\x1b[31mred\\x9b\\x07 word\nand é 中\t."
