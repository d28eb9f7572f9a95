"""A verdict says which of three things became of a hypothesis, and names the arms that keep it open."""

from __future__ import annotations

import pytest

from dcinterp.evidence.verdict_words import verdict_words


@pytest.mark.parametrize(
    ("side", "arms", "says"),
    [
        (1, [], "**supported**"),
        (-1, [], "**refuted**: it is below 1"),
        (0, [], "**open**"),
        (-1, ["all"], "**open**, as *all* may do better with a value beyond those searched"),
        (1, ["a", "b", "c"], "**open**, as *a*, *b* and *c* may do better with a value beyond those searched"),
    ],
)
def test_says(side, arms, says):
    assert verdict_words(side, refuted="it is below 1", at_an_edge=arms) == (says.split("**")[1], says)
