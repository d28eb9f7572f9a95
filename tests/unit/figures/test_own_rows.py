"""A figure's own rows, names beside the bands of a flow, and whole pages as one file."""

from __future__ import annotations

import json

import numpy as np
import plotly.graph_objects as go
import pytest

import dcinterp
from dcinterp import figures
from dcinterp.figures.base import export
from dcinterp.figures.base.describe import describe
from dcinterp.figures.base.export import whole_page
from dcinterp.figures.base.notebook import notebook
from dcinterp.figures.base.rows import rows
from dcinterp.figures.base.style import BRANCH_COLOURS, diverging, edge_name, sequential

PROMPT = "There are a pear, a car, a car. Which is not car? The"


@pytest.fixture(scope="module")
def patterns(shipped):
    return dcinterp.attention_patterns(shipped, PROMPT, 1)


@pytest.fixture(scope="module")
def edges(shipped):
    return dcinterp.attribute_edges(shipped, PROMPT, "pear", "car", method="gradient")


def test_the_rows_of_a_heatmap_are_its_cells(patterns):
    table = rows(figures.plot(patterns, head=3))
    length = len(patterns.tokens)
    assert len(table) == length * (length + 1) // 2, "one head, and no later tokens"
    assert list(table.columns)[:2] == ["query", "key"]
    last = table.iloc[-1]
    assert last["query"].startswith(f"{length - 1}: ")
    assert float(last.iloc[2]) == pytest.approx(float(patterns.composed[3, -1, -1]))


def test_the_rows_of_bars_and_of_a_flow_have_their_numbers(edges, shipped):
    breakdown = dcinterp.compose_breakdown(shipped, PROMPT, 1, -1, 2)
    table = rows(figures.plot(breakdown))
    own = table[table["series"].str.startswith("own attention")]
    np.testing.assert_allclose(own["attention weight"].to_numpy(), breakdown.branches["o_b"].numpy(), atol=1e-7)
    flow = rows(figures.plot(edges, kind="flow", k=4))
    assert set(flow.columns) == {"from", "to", "size", "label"}
    (first,) = edges.top(1, shared=True)
    assert flow["size"].iloc[0] == pytest.approx(abs(first.score))


def test_every_figure_that_the_pages_draw_has_rows(patterns, edges, shipped):
    study = [dcinterp.predict(shipped, PROMPT, "pear"), dcinterp.attention_rows(shipped, PROMPT, 1)]
    for result, kinds in ((edges, ("", "flow", "map", "sources")), (study[0], ("",)), (study[1], ("", "heads"))):
        for kind in kinds:
            assert len(rows(figures.plot(result, kind=kind))), (type(result).__name__, kind)


def test_the_rows_of_points_say_what_each_is(make_bridge):
    checked = dcinterp.attribute_edges(make_bridge(), PROMPT, "pear", "car", method="gradient", check=6)
    table = rows(figures.plot(checked, kind="check"))
    assert sorted(table["name"]) == sorted(edge_name(unit) for unit in checked.checked)
    answers = rows(figures.plot(dcinterp.predict(make_bridge(), PROMPT)))
    assert "name" not in answers, "it stands along the axis"
    both = go.Figure(go.Scatter(x=[1], y=[2], error_x={"array": [0.1]}, error_y={"array": [0.2]}))
    assert rows(both).loc[0, ["above x", "above y"]].tolist() == [0.1, 0.2]


def test_a_pixel_of_a_small_matrix_has_the_name_of_its_head(shipped):
    thumbnails = dcinterp.attention_thumbnails(shipped, PROMPT)
    figure = figures.plot(thumbnails, which="composed")
    z = figure.data[0].z
    row, column = np.unravel_index(np.nanargmax(z), z.shape)
    size = thumbnails.composed.shape[-1]
    step = size + max(1, size // 12)
    assert f"at layer {row // step} after, head {column // step};" in describe(figure).alternative
    table = rows(figure)
    assert set(table["head"]) == set(map(str, range(shipped.cfg.n_heads)))
    where = table[(table["head"] == "3") & (table["row"] == "layer 1 after") & (table["query"] == 4)]
    assert where.filter(like="weight").iloc[:, 0].tolist() == pytest.approx(thumbnails.composed[1, 3, 4, :5].tolist())
    assert where["key"].tolist() == [0, 1, 2, 3, 4]
    assert f"{shipped.cfg.n_layers} by {shipped.cfg.n_heads} matrices (head), each query by key, {size} by {size}" in (
        describe(figure).alternative
    )


def test_the_names_of_a_flow_stand_beside_its_bands(edges):
    figure = figures.plot(edges, kind="flow", k=6)
    (sankey,) = figure.data
    notes = figure.layout.annotations
    assert [note.text for note in notes] == list(sankey.node.label)
    assert sankey.textfont.color == "rgba(0,0,0,0)", "Plotly's own names would lie on the bands"
    for note in notes:
        assert note.xanchor == {0: "right", 1: "left"}.get(note.x, "center")
    middle = [(note.y, note.yshift) for note in notes if 0 < note.x < 1]
    tops = sorted(y * (figure.layout.height - 44) + shift for y, shift in middle)
    assert all(b - a > 16 for a, b in zip(tops, tops[1:], strict=False)), "names do not lie on each other"


def test_the_colours_of_branches_are_not_those_of_signs():
    def hue(colour: str) -> float:
        from colorsys import rgb_to_hsv

        return rgb_to_hsv(*(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)))[0]

    signs = [hue(diverging("light")[0][1]), hue(diverging("light")[-1][1])]
    for name, colour in BRANCH_COLOURS.items():
        if name != "o_b":
            assert all(min(abs(hue(colour) - sign), 1 - abs(hue(colour) - sign)) > 0.12 for sign in signs), name
    for theme in ("light", "dark"):
        assert abs(hue(sequential(theme)[-1][1]) - hue(diverging(theme)[-1][1])) < 0.05, "more is positive"


def test_a_page_has_its_numbers_as_a_table_and_sends_nothing_away(patterns, monkeypatch):
    shown = [(patterns, figures.plot(patterns, head=head), "") for head in (3, 4)]
    text = whole_page("Two", shown).decode()
    assert text.count("<summary>Table</summary>") == 2
    monkeypatch.setattr(export, "TABLE_ROWS", 5)
    assert "<summary>Table</summary>" not in whole_page("Two", shown).decode(), "too many numbers"
    assert text.count("<h2>") == 2
    assert '"modeBarButtonsToRemove": ["sendChartToCloud"]' in text
    for figure in (
        go.Figure(go.Pie(values=[1, 2])),
        go.Figure(go.Scatter(x=[1], y=[2]), {"xaxis": {"visible": False}}),
    ):
        assert "<summary>Table</summary>" not in export.html(figure).decode(), "nothing to read along axes"
    assert 'name="viewport"' in text


def test_a_whole_page_brings_plotly_once_and_escapes_what_tokens_say(patterns):
    shown = [(patterns, figures.plot(patterns, head=head), f"<b>{head}</b>") for head in (0, 1, 2)]
    made = whole_page("<script>alert(1)</script>", shown).decode()
    assert made.count("Plotly.newPlot(") == 3
    assert len(made) < 6_500_000, "plotly.js is in it once"
    assert "<script>alert(1)" not in made
    assert "<b>0</b>" not in made


def test_a_notebook_of_a_page_runs_and_loads_the_model_once(patterns, shipped):
    rows_of_heads = dcinterp.attention_rows(shipped, PROMPT, 1)
    shown = [
        (patterns, {"kind": "", "head": 3}, "A pattern."),
        (rows_of_heads, {"kind": "heads"}, ""),
        (patterns, {"kind": "", "head": 4}, ""),
    ]
    made = json.loads(notebook("A page", shown))
    code = ["".join(cell["source"]) for cell in made["cells"] if cell["cell_type"] == "code"]
    assert sum("dcinterp.load" in cell for cell in code) == 1
    assert sum("attention_patterns(" in cell for cell in code) == 1, "computed once, drawn twice"
    scope: dict = {}
    for cell in code:
        exec(cell, scope)
    assert scope["result_1"].composed.equal(patterns.composed)


def test_a_span_has_its_two_ends_and_no_length():
    import plotly.graph_objects as go

    figure = go.Figure(go.Bar(x=[3.0], base=[-1.0], y=["a"], orientation="h"), {"xaxis": {"title": {"text": "mean"}}})
    assert rows(figure)[["from", "to"]].to_numpy().tolist() == [[-1.0, 2.0]]
    assert "mean" not in rows(figure)
