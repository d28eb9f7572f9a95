"""What Matplotlib draws is what the figure says: where bars stand, from where to where, in which order."""

from __future__ import annotations

import plotly.graph_objects as go
import pytest

from dcinterp.figures.base import export

SCALE = [[0, "#f5f5f5"], [1, "#0b3c6f"]]


def drawn(*traces, **layout):
    return export.canvas(go.Figure(list(traces), layout)).axes[0]


def names(ticks) -> list[str]:
    return [label.get_text() for label in ticks]


def test_a_page_says_what_is_seen_what_made_it_and_what_to_beware_of():
    page = export.html(
        go.Figure(go.Bar(x=["a"], y=[1.0])),
        "Head attribution: dcformer++",
        caption='Bars of "a" < b.',
        warnings=["Do not build on it."],
        command="dcinterp analyze attribute-heads dcformer++",
        alternative='a "bar"',
    ).decode()
    assert "<h1>Head attribution: dcformer++</h1>" in page
    assert page.index("Do not build on it.") < page.index("plotly") < page.index("Bars of &quot;a&quot; &lt; b.")
    assert "<pre>dcinterp analyze attribute-heads dcformer++</pre>" in page
    assert 'aria-label="a &quot;bar&quot;"' in page


def test_marks_have_their_forms_and_sizes():
    marks = go.Scatter(
        x=[1, 2, 3],
        y=[1, 2, 3],
        mode="markers",
        marker={"symbol": ["square", "diamond", "square"], "size": [10, 13, 4]},
    )
    squares, diamonds = drawn(marks).collections
    assert [len(each.get_offsets()) for each in (squares, diamonds)] == [2, 1]
    first, last = squares.get_sizes()
    assert first == pytest.approx((10 / 4) ** 2 * last)
    assert len(squares.get_paths()[0].vertices) == len(diamonds.get_paths()[0].vertices)


def test_a_line_over_the_whole_figure_moves_no_axis_and_a_shape_stays_on_its_panel():
    whole = {"type": "line", "x0": 2, "x1": 2, "y0": 0, "y1": 1, "yref": "paper", "line": {"dash": "dot"}}
    lower = {"type": "line", "x0": 1, "x1": 3, "y0": 5, "y1": 5, "yref": "y2"}
    figure = go.Figure(
        [go.Scatter(x=[1, 3], y=[0.001, 0.002]), go.Scatter(x=[1, 3], y=[4, 6], yaxis="y2")],
        {"yaxis": {"domain": [0.5, 1]}, "yaxis2": {"domain": [0, 0.4]}, "shapes": [whole, lower]},
    )
    upper, under = export.canvas(figure).axes
    assert upper.get_ylim()[1] < 0.01
    assert [len(axes.lines) for axes in (upper, under)] == [2, 3]
    assert upper.lines[1].get_linestyle() == ":"


def test_points_of_a_group_stand_beside_each_other():
    groups = [go.Scatter(x=[1.0], y=[0], orientation="h", mode="markers", offsetgroup=str(n)) for n in range(2)]
    first, second = drawn(*groups, scattermode="group").collections
    assert first.get_offsets()[0][1] < second.get_offsets()[0][1]


def test_an_axis_that_is_hidden_is_not_drawn():
    axes = drawn(go.Scatter(x=[1, 2], y=[1, 2]), xaxis={"visible": False})
    assert not axes.xaxis.get_visible()
    assert axes.yaxis.get_visible()


def bars(axes) -> list[tuple[float, float, float]]:
    """(middle across the bar, where it begins, where it ends) of horizontal bars."""
    return [(b.get_y() + b.get_height() / 2, b.get_x(), b.get_x() + b.get_width()) for b in axes.patches]


def test_bars_of_several_traces_stand_on_their_names():
    axes = drawn(
        go.Bar(x=[3.0, 1.0], y=["a", "c"], orientation="h", name="one"),
        go.Bar(x=[2.0], y=["b"], orientation="h", name="other"),
        yaxis={"type": "category", "categoryorder": "array", "categoryarray": ["c", "b", "a"]},
    )
    assert names(axes.get_yticklabels()) == ["c", "b", "a"]
    assert bars(axes) == [pytest.approx(bar) for bar in [(2, 0, 3), (0, 0, 1), (1, 0, 2)]]


def test_categories_bear_the_names_that_their_axis_gives_them():
    axis = {"type": "category", "autorange": "reversed", "tickvals": ["0", "1"], "ticktext": ["left", "left"]}
    axes = drawn(go.Bar(x=[3.0, 1.0], y=["0", "1"], orientation="h"), yaxis=axis)
    assert names(axes.get_yticklabels()) == ["left", "left"]
    assert axes.get_yticks().tolist() == [0, 1]
    assert bars(axes) == [pytest.approx(bar) for bar in [(0, 0, 3), (1, 0, 1)]]


def test_bars_that_share_a_name_stand_side_by_side():
    axes = drawn(*(go.Bar(x=[1.0], y=["a"], orientation="h", name=name) for name in ("one", "other")))
    (first, _, _), (second, _, _) = bars(axes)
    assert first == -second != 0


def test_bars_begin_at_their_base():
    axes = drawn(go.Bar(x=[3.0, 2.0], base=[-1.0, 0.0], y=["a", "b"], orientation="h", opacity=0.35))
    assert bars(axes) == [pytest.approx(bar) for bar in [(0, -1, 2), (1, 0, 2)]]
    assert {bar.get_alpha() for bar in axes.patches} == {0.35}


def test_the_legend_has_the_order_of_the_figure():
    figure = go.Figure(
        [go.Bar(x=["a"], y=[1], name="first"), go.Scatter(x=["a"], y=[1], mode="markers", name="second")]
    )
    (legend,) = export.canvas(figure).legends
    assert names(legend.get_texts()) == ["first", "second"]


def test_shares_are_per_cent_and_words_legible():
    axes = drawn(
        go.Heatmap(z=[[0.1, 1.0]], colorscale=[[0, "#f5f5f5"], [1, "#0b3c6f"]], zmin=0, zmax=1, text=[["low", "high"]]),
        yaxis={"tickformat": ".0%", "range": [0, 1]},
    )
    assert axes.yaxis.get_major_formatter()(0.25) == "25%"
    assert {text.get_text(): text.get_color() for text in axes.texts} == {"low": "black", "high": "white"}


def test_texts_of_many_cells_are_written_small():
    cells = {"z": [[0.5] * 30] * 20, "zmin": 0, "zmax": 1, "colorscale": SCALE}
    axes = drawn(go.Heatmap(text=[["wor…"] * 30] * 20, customdata=[["words"] * 30] * 20, **cells))
    assert len(axes.texts) == 600
    assert 3 < axes.texts[0].get_fontsize() < 7
    assert not drawn(go.Heatmap(text=[["0.12"] * 30] * 20, **cells)).texts, "numbers are not cut, and would overlap"


def test_a_long_name_leaves_room_for_the_figure():
    named = {"tickvals": [0], "ticktext": ["a" * 200]}
    axes = drawn(go.Heatmap(z=[[0.5]], zmin=0, zmax=1, colorscale=SCALE), xaxis=named)
    assert [len(name) for name in names(axes.get_xticklabels())] == [40]


def test_shares_on_a_logarithmic_axis_are_per_cent():
    axes = drawn(go.Scatter(x=[0.001, 1.0], y=[0, 1]), xaxis={"type": "log", "tickformat": ".1~%"})
    assert axes.xaxis.get_major_formatter()(0.01).rstrip("0.").startswith("1")
    assert axes.xaxis.get_major_formatter()(0.01).endswith("%")
