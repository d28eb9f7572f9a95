"""What Matplotlib draws is what the figure says: where bars stand, from where to where, in which order."""

from __future__ import annotations

import plotly.graph_objects as go
import pytest

from dcinterp.figures.base import export


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
