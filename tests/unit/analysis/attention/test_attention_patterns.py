"""Whole attention matrices: the same rows as elsewhere, and a softmax where it says so."""

from __future__ import annotations

import pytest
import torch

import dcinterp
from dcinterp import figures
from dcinterp.support.errors import UserError


@pytest.fixture
def patterns(bridge, prompt):
    return dcinterp.attention_patterns(bridge, prompt, 1)


def test_rows_are_those_of_attention_rows(bridge, prompt, patterns):
    rows = dcinterp.attention_rows(bridge, prompt, 1, query=9)
    torch.testing.assert_close(patterns.weights[:, 9, :10], rows.weights)
    torch.testing.assert_close(patterns.composed[:, 9, :10], rows.composed)


def test_weights_are_the_softmax_of_the_composed_scores(patterns):
    size = len(patterns.tokens)
    visible = torch.tril(torch.ones(size, size, dtype=torch.bool))
    scores = patterns.composed_scores.masked_fill(~visible, -torch.inf)
    torch.testing.assert_close(scores.softmax(-1), patterns.weights)
    assert not torch.allclose(patterns.scores, patterns.composed_scores), "this model composes before the softmax"
    assert not patterns.scores[:, ~visible].any()


def test_without_composition_both_sides_are_the_same(twin, prompt):
    plain = dcinterp.attention_patterns(twin, prompt, 0)
    assert plain.stages == ()
    assert torch.equal(plain.weights, plain.composed)
    assert torch.equal(plain.scores, plain.composed_scores)


def test_the_figure_leaves_the_future_empty_and_refuses_what_is_not_there(patterns):
    figure = figures.plot(patterns, head=2, which="change", selected=(3, 1))
    shown = torch.as_tensor(figure.data[0].z)
    assert shown.isnan().sum() == len(patterns.tokens) * (len(patterns.tokens) - 1) // 2
    assert float(shown[5, 2]) == pytest.approx(float((patterns.composed - patterns.weights)[2, 5, 2]))
    with pytest.raises(UserError, match="no matrix 'pattern'"):
        figures.plot(patterns, which="pattern")
    with pytest.raises(UserError, match="no head 99"):
        figures.plot(patterns, head=99)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_future_is_empty_in_every_type_of_numbers(dtype, prompt):
    found = dcinterp.attention_patterns(dcinterp.load("dcformer++", dtype=dtype), prompt, 1)
    for name in ("scores", "composed_scores", "weights", "composed"):
        assert not getattr(found, name).triu(1).any(), name
        assert getattr(found, name).abs().max() < 1e3, name


def test_a_score_outside_the_window_is_no_zero(make_bridge, prompt):
    local = make_bridge(attention_windows=(3, None))
    found, whole = (dcinterp.attention_patterns(local, prompt, layer) for layer in (0, 1))
    assert found.scores[:, 6, :4].isnan().all()
    assert found.scores[:, 6, 4:7].isfinite().all()
    assert not found.weights[:, 6, :4].any()
    assert not whole.scores.isnan().any()
    assert not found.warnings() or "no scores" not in found.warnings()[-1]
    for which in ("scores", "weights", "composed"):
        shown = torch.as_tensor(figures.plot(found, which=which).data[0].z)
        assert shown[6, :4].isnan().all(), which
        assert shown[6, 4:7].isfinite().all(), which
