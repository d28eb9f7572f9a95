"""Figures say what they show: attention or scores, before and after or one row, signs that differ in quarters."""

from __future__ import annotations

import numpy as np
import pytest

import dcinterp
from dcinterp.figures import plot

PROMPT = "Ruth has a piano. Carol has a tiger. Ruth has a"


@pytest.mark.parametrize(("stage", "what"), [("pre", "score"), ("post", "attention")])
def test_before_the_softmax_there_are_scores(bridge, stage, what):
    breakdown = dcinterp.compose_breakdown(bridge, PROMPT, layer=1, query=-1, key=2, stage=stage)
    assert plot(breakdown).data[0].name == f"own {what} (o_b)"
    assert plot(breakdown, kind="lending", selected=1).layout.yaxis.title.text == f"{what} added to head 1"


def test_where_nothing_is_composed_attention_has_one_row(bridge, twin):
    def rows(of):
        return plot(dcinterp.attention_rows(of, PROMPT, layer=1), head=1, key=2).data[0].z.shape[0]

    assert (rows(bridge), rows(twin)) == (2, 1)


def test_points_of_the_check_stand_between_lines_at_zero(bridge):
    edges = dcinterp.attribute_edges(bridge, PROMPT, "tiger", "piano", method="gradient", check=6)
    figure = plot(edges, kind="check")
    assert len(figure.layout.shapes) == 2
    points = [trace for trace in figure.data if trace.mode != "lines"]
    for letter, values in (("x", edges.predicted), ("y", edges.measured)):
        low, high = figure.layout[f"{letter}axis"].range
        assert low < 0 < high
        drawn = np.concatenate([np.asarray(trace[letter], dtype=float) for trace in points])
        assert sorted(drawn) == pytest.approx(sorted(values.tolist()))
        assert low < drawn.min() <= drawn.max() < high
