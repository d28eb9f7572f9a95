"""Figures say what they show: attention or scores, before and after or one row, signs that differ in quarters."""

from __future__ import annotations

import numpy as np
import pytest

import dcinterp
from dcinterp.figures import plot
from dcinterp.support.errors import UserError

PROMPT = "Ruth has a piano. Carol has a tiger. Ruth has a"


@pytest.mark.parametrize(("stage", "quantity"), [("pre", "score"), ("post", "attention")])
def test_before_the_softmax_there_are_scores(bridge, stage, quantity):
    breakdown = dcinterp.compose_breakdown(bridge, PROMPT, layer=1, query=-1, key=2, stage=stage)
    assert plot(breakdown).data[0].name == f"own {quantity} (o_b)"
    assert plot(breakdown, kind="sharing", selected=1).layout.yaxis.title.text == f"{quantity} added to head 1"


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        (("pre", "post"), ("score before composition", "weight before composition", "weight after composition")),
        (("pre",), ("score before composition", "attention weight", "attention weight")),
        ((), ("attention score", "attention weight", "attention weight")),
    ],
)
def test_a_colour_bar_speaks_of_composition_only_where_there_is_one(make_bridge, stages, said):
    composing = {"compose_stages": stages} if stages else {"compose": "none"}
    patterns = dcinterp.attention_patterns(make_bridge(**composing), PROMPT, 1)
    bars = [plot(patterns, which=which).data[0].colorbar.title.text for which in ("scores", "weights", "composed")]
    assert tuple(bars) == said
    rows = dcinterp.attention_rows(make_bridge(**composing), PROMPT, 1)
    assert plot(rows, kind="heads").data[0].colorbar.title.text == said[2]


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


def test_without_composition_a_check_is_of_heads(twin):
    edges = dcinterp.attribute_edges(twin, PROMPT, "tiger", "piano", method="gradient", check=2)
    points = [trace for trace in plot(edges, kind="check").data if trace.mode != "lines"]
    assert {name for trace in points for name in trace.hovertext} == set(edges.checked)
    diamonds = [trace for trace in plot(edges).data if trace.name == "measured by ablation"]
    assert sum(len(trace.x) for trace in diamonds) == 2


@pytest.mark.parametrize("kind", ["", "map", "check", "sources"])
def test_the_unit_is_that_of_what_is_explained(bridge, kind):
    options = {"method": "gradient", "check": 2, "objective": "log-probability"}
    text = plot(dcinterp.attribute_edges(bridge, PROMPT, "tiger", **options), kind=kind).to_json()
    assert "(nats)" in text
    assert "(logits)" not in text


def test_the_strongest_edges_are_among_those_that_are_drawn(make_bridge):
    """In multi-token attention a head takes scores of other pairs of tokens too."""
    edges = dcinterp.attribute_edges(
        make_bridge(compose="multi-token"), PROMPT, "tiger", "piano", method="gradient", stage="pre"
    )
    first = edges.table().iloc[0]
    bars = {
        name: score
        for trace in plot(edges, k=4, shared=False).data
        for name, score in zip(trace.y, trace.x, strict=True)
    }
    assert abs(max(bars.values(), key=abs)) == pytest.approx(abs(first["score"]))
    assert len(edges.strongest(4)) == 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"k": 3, "colour": "red"}, "no option 'colour'"),
        ({"theme": "blue"}, "no theme 'blue'"),
    ],
)
def test_an_option_that_a_figure_lacks_is_refused(bridge, options, said):
    edges = dcinterp.attribute_edges(bridge, PROMPT, "tiger", "piano", method="gradient")
    with pytest.raises(UserError, match=said):
        plot(edges, **options)


def test_heads_and_sides_that_there_are_not_are_refused(bridge):
    breakdown = dcinterp.compose_breakdown(bridge, PROMPT, 1, -1, 2)
    with pytest.raises(UserError, match="no side 'head'"):
        plot(breakdown, kind="weights", side="head")
    with pytest.raises(UserError, match="no head 99"):
        plot(breakdown, kind="sharing", selected=99)


def test_names_of_the_check_are_left_out_where_there_is_no_room():
    from dcinterp.figures.attribution.edge_check import _label_sides

    heap = [(0.001 * i, 0.001 * i) for i in range(30)]
    sides = _label_sides([*heap, (0.8, 0.8)], [0.0] * 30 + [1.0], ["L1H6 → L1H1 (kp)"] * 31)
    assert sides[-1]
    assert 1 <= sum(map(bool, sides[:-1])) <= 4


def test_edges_are_labelled_by_the_two_heads(bridge):
    from dcinterp.figures.base.style import edge_name

    assert edge_name("edge 1.post.kp.6>1") == "L1H6 → L1H1 (kp)"
    assert edge_name("head 1.6") == "head 1.6"
    edges = dcinterp.attribute_edges(bridge, PROMPT, "tiger", "piano", method="gradient", check=2)
    (first, *_) = edges.top(1)
    assert first.label == f"L{first.layer}H{first.head_from} → L{first.layer}H{first.head_to} ({first.branch})"
    assert first.label == edge_name(first.intervention.unit)
    assert first.label in {name for trace in plot(edges).data for name in trace.y}


def test_edges_before_the_softmax_are_named_so_everywhere(make_bridge):
    bridge = make_bridge()
    edges = dcinterp.attribute_edges(bridge, PROMPT, "tiger", "piano", stage="pre", method="gradient")
    over = dcinterp.attribute_edges_over(bridge, [(PROMPT, "tiger", "piano")], stage="pre", method="gradient")
    assert all("(pre " in str(name) for name in plot(over).layout.yaxis.categoryarray)
    assert all("(pre " in str(text) for trace in plot(edges, kind="check").data for text in trace.text or ())


def test_tokens_of_measured_edges_are_said_to_be_predicted(bridge):
    for method, said in (("screened", "predicted contribution"), ("gradient", "contribution")):
        edges = dcinterp.attribute_edges(bridge, PROMPT, "tiger", "piano", method=method)
        figure = plot(edges, kind="sources")
        assert figure.data[0].colorbar.title.text.startswith(said)
        first = edges.top(1)[0]
        assert (f"{first.label}: {first.score:+.2f}" in figure.layout.yaxis.ticktext) == (method == "screened")


def test_heads_that_there_are_not_are_refused_by_every_figure(bridge):
    rows = dcinterp.attention_rows(bridge, PROMPT, 1)
    heads = dcinterp.attribute_heads(bridge, PROMPT, "tiger", "piano")
    for result, options in (
        (rows, {"head": 99}),
        (rows, {"head": -1}),
        (rows, {"head_from": 99}),
        (rows, {"kind": "heads", "selected": 99}),
        (heads, {"kind": "positions", "selected": 99}),
    ):
        with pytest.raises(UserError, match="There is no head"):
            plot(result, **options)
    edges = dcinterp.attribute_edges(bridge, PROMPT, "tiger", "piano", method="gradient")
    with pytest.raises(UserError, match="k is 0"):
        plot(edges, kind="sources", k=0)
