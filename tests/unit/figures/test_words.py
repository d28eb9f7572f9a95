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
    figure.data[0].update(z=[[1e-9, 0.0, -1e-8]])
    assert "All values are about 0 (-1e-08 to 1e-09)." in describe(figure).alternative


def test_widest_bands_are_named_with_their_labels():
    link = {"source": [0, 1], "target": [1, 2], "value": [1.0, 2.0], "label": ["kp: +1", "for it: +2"]}
    text = said(go.Sankey(node={"label": ["a", "b", "c"]}, link=link))
    assert "from b to c (for it: +2); from a to b (kp: +1)" in text


def test_rows_that_ticks_name_are_called_so_and_intervals_are_said():
    ticks = {"tickvals": [0, 1], "ticktext": ["tea", "meat"]}
    bars = go.Bar(x=[0.9, 0.1], y=[0, 1], orientation="h", error_x={"array": [0.05, 0.02], "arrayminus": [0.1, 0.02]})
    text = said(bars, xaxis={"title": {"text": "probability"}}, yaxis={"title": {"text": "token"}, **ticks})
    assert text == "Bars of probability by token. 0.9 (0.8 to 0.95) at token tea, 0.1 (0.08 to 0.12) at token meat."
    points = go.Scatter(x=[0.9, 0.1], y=[0, 1], mode="markers", name="before")
    text = said(points, xaxis={"title": {"text": "logit"}}, yaxis={"title": {"text": "token"}, **ticks})
    assert text == "Points of logit by token. before: 0.9 at token tea, 0.1 at token meat."


def test_words_that_repeat_have_their_number():
    names = ["a", "car", "car"]
    figure = grid([[0, 1, 2]], x=names, y=["q"], x_title="key", y_title="query", quantity="weight", theme="light")
    assert figure.data[0].hovertext[0][1:] == ["query q, key car (1)", "query q, key car (2)"]
    assert "Largest 2 at query q, key car (2)" in describe(figure).alternative
