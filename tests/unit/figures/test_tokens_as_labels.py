"""Tokens on the axes of figures: those that look the same stay apart."""

from __future__ import annotations

from dataclasses import replace

import dcinterp
from dcinterp.figures.base.style import visible_apart


def test_spaces_are_shown_only_where_tokens_differ_in_nothing_else():
    assert visible_apart([" left", "left", " right", "\n"]) == ["␣left", "left", " right", "↵"]


def test_tokens_that_look_the_same_keep_bars_of_their_own(bridge):
    found = dcinterp.predict(bridge, [5, 7, 9])
    alike = replace(found, top_tokens=["\N{REPLACEMENT CHARACTER}"] * len(found.top_tokens))
    (bars,) = dcinterp.figures.plot(alike).data
    assert len(set(bars.y)) == len(bars.x) == 5
