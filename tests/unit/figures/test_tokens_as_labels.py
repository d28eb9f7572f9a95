"""Tokens on the axes of figures: those that look the same stay apart."""

from __future__ import annotations

from dataclasses import replace
from html import unescape

import pytest

import dcinterp
from dcinterp.figures.base.describe import describe
from dcinterp.figures.base.rows import rows
from dcinterp.figures.base.style import bare, visible, visible_apart


def test_spaces_are_shown_only_where_tokens_differ_in_nothing_else():
    assert visible_apart([" left", "left", " right", "\n"]) == ["␣left", "left", " right", "↵"]


@pytest.mark.parametrize("token", ["&lt;", "&copy", "&#60;", "&amp;lt;", "<unk>", "&<b>"])
def test_what_looks_like_html_is_the_same_once_it_is_drawn(token):
    label = visible(token)
    assert unescape(label) == token
    assert "<" not in label


def test_an_ampersand_that_names_nothing_is_left_alone():
    assert [visible(token) for token in ("&", "&&", " & ")] == ["&", "&&", " & "]


def test_tokens_that_look_the_same_keep_bars_of_their_own(bridge):
    found = dcinterp.predict(bridge, [5, 7, 9])
    alike = replace(found, top_tokens=["\N{REPLACEMENT CHARACTER}"] * len(found.top_tokens))
    (bars,) = dcinterp.figures.plot(alike).data
    assert len(set(bars.y)) == len(bars.x) == 5


def test_a_label_without_spaces_around_it_keeps_a_token_of_spaces():
    assert [bare(token) for token in (" the", "   ", "\n\n", "")] == ["the", "␣␣␣", "↵↵", "(empty)"]


def test_long_words_are_cut_in_cells_and_whole_elsewhere(bridge):
    lens = dcinterp.logit_lens(bridge, [5, 7, 9] * 10)
    long = replace(lens, top_tokens=tuple(tuple(("<unknown>",) * len(p) for p in d) for d in lens.top_tokens))
    (trace,) = (figure := dcinterp.figures.plot(long)).data
    assert {word for row in trace.text for word in row} == {"&lt;un…"}
    assert {word for row in trace.customdata for word in row} == {"&lt;unknown>"}
    assert "%{customdata}" in trace.hovertemplate
    assert set(rows(figure)["text"]) == {"<unknown>"}
    many = dcinterp.figures.plot(dcinterp.logit_lens(bridge, [5, 7, 9] * 30))
    assert many.data[0].text is None, "no word could be read"
    assert many.data[0].customdata is not None


def test_words_about_a_figure_have_no_tags(bridge):
    figure = dcinterp.figures.plot(dcinterp.logit_lens(bridge, [5, 7, 9]))
    cells = [["<b>1</b><br><sup>2</sup>", "&lt;unk>", "c"]] * len(figure.data[0].z)
    figure.data[0].update(text=cells, customdata=None)
    assert "1 2" in " ".join(describe(figure).alternative.split())
    assert "<unk>" in describe(figure).alternative
    assert set(rows(figure)["text"].str.split().str.join(" ")) == {"1 2", "<unk>", "c"}
