"""What figures say of results that are empty, equal, of one example, or drawn with an option that does not fit."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import dcinterp
from dcinterp import figures
from dcinterp.analysis.training.scaling_fit import ScalingFit
from dcinterp.analysis.training.training_edges import TrainingEdges
from dcinterp.figures.base import export
from dcinterp.figures.base.describe import describe
from dcinterp.figures.base.grid import grid
from dcinterp.figures.base.rows import rows
from dcinterp.figures.base.style import visible
from dcinterp.support.errors import UserError

PROMPT = "Kevin is"


def said(result, **options):
    return describe(figures.plot(result, **options)).alternative


@pytest.fixture(scope="module")
def edges(shipped):
    return dcinterp.attribute_edges(shipped, PROMPT, "food", method="gradient")


def only(edges, *, branch, head_from, head_to, score=1.0):
    """The result with one score other than zero, in its first layer."""
    scores = torch.zeros_like(edges.scores)
    scores[0, ("skip", "qp", "kp", "qg", "kg").index(branch), head_from, head_to] = score
    return dataclasses.replace(edges, scores=scores, target="<unk>")


def test_without_an_interval_a_bar_has_none(shipped):
    one = dcinterp.circuit(shipped, "task0 n=1", steps=2)
    figure = figures.plot(one, k=3)
    assert " to " not in describe(figure).alternative.replace(" to edge", "")
    assert "below" not in rows(figure)
    score = dcinterp.task_accuracy(shipped, tasks="56", rows=1)
    assert "the model: 1 at QK pattern" in said(score, kind="bars") or "the model: 0 at" in said(score, kind="bars")
    importance = dcinterp.composition_importance(shipped, [(PROMPT, "food", "drink")], steps=2)
    assert "mean over one example" in said(importance)
    assert "together: " in said(importance), "and not with an interval"


def test_values_that_look_alike_are_not_called_equal():
    def drawn(values):
        return describe(
            grid(values, x=["0", "1"], y=["a"], x_title="head", y_title="layer", quantity="q", theme="light")
        ).alternative

    assert "All values are about 15.4 (15.41 to 15.44)." in drawn([[15.41, 15.44]])
    assert "Every value is 2." in drawn([[2.0, 2.0]])
    assert "1 value is infinite." in drawn([[float("inf"), 1.0]])


def test_several_largest_values_are_counted():
    figure = grid([[1.0, 1.0], [1.0, 0.0]], x="ab", y="cd", x_title="x", y_title="y", quantity="q", theme="light")
    assert "Largest 1 at y c, x a and 2 others; smallest 0 at y d, x b." in describe(figure).alternative


def test_a_static_edge_between_heads_is_not_the_heads_own_attention(edges):
    static = only(edges, branch="skip", head_from=0, head_to=1)
    checked = dataclasses.replace(
        static,
        checked=("edge 0.post.skip.0>1",),
        predicted=torch.ones(1),
        measured=torch.ones(1),
    )
    for kind in ("", "flow", "check"):
        assert "map of all tokens" in said(checked, kind=kind)
        assert "own attention" not in said(checked, kind=kind)
    assert "own attention and map of all tokens" in said(static, kind="map", branch="skip")
    assert "own attention." in said(only(edges, branch="skip", head_from=0, head_to=0), kind="map", branch="skip")


def test_a_head_that_uses_its_own_attention_borrows_none(edges):
    own = said(only(edges, branch="skip", head_from=0, head_to=0), kind="flow")
    assert "from L0H0 attends to L0H0 reads (own attention: +1.000)" in own
    assert "to for <unk> (+1.000)" in own, "as text, and not as HTML"
    small = said(only(edges, branch="qp", head_from=0, head_to=1, score=-4e-4), kind="flow")
    assert "L0H1 borrows (query projection: +0.000)" in small, "and not -0.000"


def test_a_figure_of_nothing_can_be_described_and_kept(edges):
    nothing = dataclasses.replace(edges, scores=torch.zeros_like(edges.scores))
    assert said(nothing) == "No value to show."
    assert export.image(figures.plot(nothing, kind="flow"), "svg")


@pytest.mark.parametrize("k", [0, -1, 1.5])
def test_how_many_are_shown_is_a_count(edges, k):
    for kind in ("", "flow", "sources"):
        with pytest.raises(UserError, match=f"k is {k}; it must be"):
            figures.plot(edges, kind=kind, k=k)


def test_shares_of_scores_are_refused(shipped):
    mean = dcinterp.mean_composition_map(shipped, "same-person n=2", 1, "pre")
    assert "mean weight added" in said(mean)
    with pytest.raises(UserError, match="no amounts to share"):
        figures.plot(mean, show="shared")


def test_an_edge_that_is_not_shown_to_matter_has_no_start():
    step, flat = torch.tensor([10, 20, 30]), torch.tensor([[0.0], [0.1], [0.3]])
    found = TrainingEdges(
        run="r",
        level=0.95,
        edges=("1.post.kp.6>1",),
        step=step,
        loss=2 - flat,
        right=flat,
        effect=flat[:, None],
        effect_right=flat[:, None],
        start=step[2:],
        start_low=step[1:2],
        start_high=step[2:],
        explained=torch.tensor([0.9]),
        final=torch.tensor([0.05]),
        final_low=torch.tensor([-0.5]),
        final_high=torch.tensor([0.6]),
        loss_start=20,
        loss_start_low=20,
        loss_start_high=20,
        loss_explained=0.9,
    )
    assert "step of L1H6 → L1H1 (kp), not shown to matter" in said(found)
    assert found.table()["starts at step"].isna().all()
    shown = dataclasses.replace(found, final_low=torch.tensor([0.01]))
    assert "start of L1H6 → L1H1 (kp)" in said(shown)
    assert shown.table()["starts at step"].tolist() == [30]


def test_a_multiplier_of_compute_says_of_what():
    def one(value):
        return torch.tensor([value])

    fit = ScalingFit(
        families=("base", "other"),
        points=tuple(
            (name, c, s * k) for name, k in (("base", 1.0), ("other", 0.9)) for c, s in ((1e15, 3), (1e17, 2))
        ),
        exponent=(0.08, 0.08),
        exponent_low=(0.08, 0.08),
        exponent_high=(0.08, 0.08),
        log_coefficient=(3.86, 3.75),
        largest_residual=(0.0, 0.0),
        loss=one(2.1),
        base_flops=one(1e17),
        other_flops=one(3e16),
        multiplier=one(3.3),
        multiplier_low=one(0.5),
        multiplier_high=one(float("inf")),
    )
    assert "2 runs of base and 2 runs of other" in said(fit)
    assert "base needs 3.30 times the compute of other" in said(fit)
    hover = figures.plot(fit).data[-1].hovertemplate
    assert hover.startswith("base needs 3.30 times the compute of other")
    assert "(0.50 to no bound)" in hover


def test_tabs_and_returns_can_be_seen():
    assert [visible(token) for token in ("\t", "\r", "a\tb")] == ["⇥", "␍", "a⇥b"]
