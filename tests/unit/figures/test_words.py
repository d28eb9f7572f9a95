"""The text alternative says what is seen: names with their values, words in cells, where lines begin and end."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.figures.base.describe import describe
from dcinterp.figures.base.grid import grid


def said(*traces, **layout) -> str:
    return describe(go.Figure(list(traces), layout)).alternative


def test_points_beside_names_are_described_by_their_values():
    # Names like "2.7" (layer.head) are no numbers.
    heads = ["2.7", "1.0", "0.3", "0.4", "1.1", "1.2", "2.2"]
    text = said(
        go.Scatter(x=[5.0, -1.0, 2.0, 0.0, 1.0, 1.5, 0.5], y=heads, mode="markers", name="score"),
        xaxis={"title": {"text": "logits"}},
        yaxis={"title": {"text": "head"}},
    )
    assert text == "Points of logits by head. score: 7 values, largest 5 at head 2.7, smallest -1 at head 1.0."


def test_spans_are_described_from_where_to_where():
    text = said(go.Bar(x=[3.0], base=[-1.0], y=["a"], orientation="h", name="control"))
    assert text.endswith("control: a from -1 to 2.")


def test_lines_are_described_from_end_to_end():
    text = said(go.Scatter(x=[1, 2, 3], y=[0.25, 0.5, 1.0], mode="lines", name="mean"))
    assert text.endswith("mean: 0.25 at 1, 0.5 at 2, 1 at 3.")


def test_words_in_cells_are_read_out_and_marks_are_listed():
    figure = grid(
        [[2.0, 1.0]], x=["1", "2", "3"], y=["violin"], x_title="rank", y_title="reads", quantity="q", theme="light"
    )
    figure.data[0].update(text=[["play", "music"]])
    assert "reads violin: play, music." in describe(figure).alternative
    figure.data[0].update(z=[[1.0, 1.0, 1.0]], text=[["", "", "G"]])
    text = describe(figure).alternative
    assert "1 row (reads) by 3 columns (rank). Every value is 1." in text
    assert text.endswith("Marked cells: G at reads violin, rank 3.")


def test_widest_bands_are_named_with_their_labels():
    link = {"source": [0, 1], "target": [1, 2], "value": [1.0, 2.0], "label": ["kp: +1", "for it: +2"]}
    text = said(go.Sankey(node={"label": ["a", "b", "c"]}, link=link))
    assert "from b to c (for it: +2); from a to b (kp: +1)" in text
