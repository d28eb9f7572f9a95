"""Edge scores against head attribution, finite differences, and the model run without what they explain; in float64."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from dcinterp import UserError, attribute_edges, attribute_heads
from dcinterp.mechanism.branches import NAMES
from dcinterp.mechanism.intervention_hooks import measure_effects
from dcinterp.mechanism.interventions import all_units

TARGET, FOIL = "fruit", "animal"
OTHER = "< Ruth has a piano. Carol has a tiger. Ronald has blueberries. >. Ronald has a kind of"


@pytest.fixture(scope="module")
def make_double(tokenizer_folder):
    """Bridges in double precision, each built once: attribution leaves nothing behind, which is tested too."""
    from transformers import PreTrainedTokenizerFast

    from dcinterp.bridge import wrap
    from dcinterp.model.config import DCFormerConfig
    from dcinterp.model.decoder import DCFormerForCausalLM

    tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)

    @cache
    def make(preset="tiny-dcformer++", **changes):
        fields = {"num_hidden_layers": 2, "vocab_size": len(tokenizer), "max_position_embeddings": 128}
        torch.manual_seed(0)
        model = DCFormerForCausalLM(DCFormerConfig.preset(preset, **(fields | changes)))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".pre." in name or ".post." in name:
                    parameter.normal_(std=0.15)
        return wrap(model.double(), tokenizer)

    return make


@pytest.fixture(scope="module")
def double(make_double):
    return make_double()


def difference(bridge, logits):
    plus, minus = (bridge.tokenizer.convert_tokens_to_ids(word) for word in (TARGET, FOIL))
    return logits[:, -1, plus] - logits[:, -1, minus]


def metric_under(bridge, prompt, hooks):
    with torch.no_grad():
        return float(difference(bridge, bridge.run_with_hooks(prompt, fwd_hooks=hooks)))


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("tiny-dcformer++", {}),
        ("tiny-dcformer++", {"compose_static": True, "compose_groups": 2}),
        ("tiny-dcpythia", {}),  # parallel blocks, biases, norms of queries and keys
    ],
)
def test_edges_into_a_head_add_up_to_its_attribution(make_double, prompt, preset, changes):
    bridge, method = make_double(preset, **changes), "gradient" if changes else "ig"
    edges = attribute_edges(bridge, prompt, TARGET, FOIL, method=method, steps=6, max_steps=6, check=0)
    heads = attribute_heads(bridge, prompt, TARGET, FOIL, method=method, steps=6, max_steps=6)
    assert torch.allclose(edges.scores.sum((1, 2)), edges.heads, atol=1e-10)
    assert edges.mismatch.max() < 1e-10
    assert torch.allclose(edges.heads.float(), heads.scores, atol=1e-5)
    assert torch.equal(edges.by_source.sum(-1), edges.scores)


@pytest.mark.parametrize("stage", ["pre", "post"])
@pytest.mark.parametrize("baseline", [None, OTHER])
def test_edges_of_a_layer_add_up_to_the_metric_difference(double, prompt, stage, baseline):
    options = {"stage": stage, "baseline": baseline, "method": "ig", "tolerance": 1e-4, "check": 0}
    edges = attribute_edges(double, prompt, TARGET, FOIL, **options)
    explained = edges.metric - edges.metric_at_baseline
    assert torch.allclose(edges.scores.sum((1, 2, 3)) + edges.gap, explained.double(), atol=1e-6)
    assert (edges.gap.abs() <= 1e-4 * explained.abs() + 1e-9).all()


def test_what_the_paths_start_from(double, prompt):
    """post: the layer reads nothing; pre: every head looks at all its keys alike; a baseline: that prompt's values."""
    quick = {"method": "gradient", "check": 0}
    post, pre = (attribute_edges(double, prompt, TARGET, FOIL, stage=stage, **quick) for stage in ("post", "pre"))
    swapped = attribute_edges(double, prompt, TARGET, FOIL, baseline=OTHER, **quick)
    other_taps = double.run_with_cache(OTHER)[1]
    for layer in range(2):
        z, scores = f"blocks.{layer}.attn.hook_z", f"blocks.{layer}.attn.hook_attn_scores"
        nothing = metric_under(double, prompt, [(z, lambda t, hook: t * 0)])
        alike = metric_under(double, prompt, [(scores, lambda t, hook: torch.where(t > -1e30, 0.0, t))])
        other = metric_under(double, prompt, [(z, lambda t, hook: other_taps[hook.name])])
        assert float(post.metric_at_baseline[layer]) == pytest.approx(nothing, abs=1e-5)
        assert float(pre.metric_at_baseline[layer]) == pytest.approx(alike, abs=1e-5)
        assert float(swapped.metric_at_baseline[layer]) == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize("stage", ["pre", "post"])
def test_gradient_times_edge_is_the_slope_of_scaling_the_edge(double, prompt, stage):
    """Independent of all arithmetic here but the intervention: f with the edge scaled by 1 + e and by 1 - e."""
    scores = attribute_edges(double, prompt, TARGET, FOIL, stage=stage, method="gradient", check=0).scores
    ids, e = double.to_tokens(prompt), 1e-4
    edges = [edge for edge in all_units(double, "edge", stage) if (edge.layer + edge.head + edge.head_from) % 5 == 0]
    rows = [[replace(edge, kind="scale", factor=1 + sign * e)] for edge in edges for sign in (1, -1)]
    up, down = measure_effects(double, ids, rows, lambda logits: difference(double, logits)).reshape(-1, 2).T
    slopes = (down - up) / (2 * e)
    mine = torch.stack([scores[x.layer, NAMES.index(x.name), x.head_from, x.head] for x in edges])
    assert len(edges) > 50
    assert mine.abs().max() > 1e-3
    assert torch.allclose(slopes, mine, atol=1e-7 + 1e-5 * float(mine.abs().max()))


@pytest.mark.parametrize("stage", ["pre", "post"])
def test_a_joint_path_shares_one_difference_among_all_layers(double, prompt, stage):
    edges = attribute_edges(
        double, prompt, TARGET, FOIL, stage=stage, method="ig", path="joint", tolerance=1e-5, check=0
    )
    assert edges.gap.shape == (1,)
    assert float(edges.scores.sum() + edges.gap) == pytest.approx(edges.metric - float(edges.metric_at_baseline))
    assert edges.relative_gap.max() <= 1e-5
    if stage == "post":
        hooks = [(f"blocks.{layer}.attn.hook_z", lambda t, hook: t * 0) for layer in range(2)]
        assert float(edges.metric_at_baseline) == pytest.approx(metric_under(double, prompt, hooks), abs=1e-5)


def test_frozen_weights_take_control_flow_out(double, prompt):
    """The last layer has nothing after it to control; the first one's baseline is a model with pinned weights."""
    free, frozen = (
        attribute_edges(
            double, prompt, TARGET, FOIL, method="ig", dynamic_weights=kind, check=0, steps=16, max_steps=16
        )
        for kind in ("recomputed", "frozen")
    )
    assert torch.allclose(free.scores[1], frozen.scores[1], atol=1e-10)
    assert not torch.allclose(free.scores[0], frozen.scores[0], atol=1e-4)
    taps = double.run_with_cache(prompt)[1]
    pins = [(name, lambda t, hook: taps[hook.name]) for name in double.hook_dict if ".hook_w_" in name]
    without = metric_under(double, prompt, [*pins, ("blocks.0.attn.hook_z", lambda t, hook: t * 0)])
    assert float(frozen.metric_at_baseline[0]) == pytest.approx(without, abs=1e-5)
    assert float(frozen.scores[0].sum() + frozen.gap[0]) == pytest.approx(frozen.metric - without, abs=1e-5)


def test_a_branch_without_weights_scores_nothing(make_bridge, prompt):
    bridge = make_bridge()
    with torch.no_grad():
        bridge.original_model.model.layers[1].self_attn.post.original_component.key.up.zero_()
    scores = attribute_edges(bridge, prompt, TARGET, FOIL, method="gradient", check=0).scores
    assert scores[1, NAMES.index("kp")].abs().max() == 0
    assert scores[0, NAMES.index("kp")].abs().max() > 0
    off_diagonal = ~torch.eye(8, dtype=torch.bool)
    for branch in ("skip", "qg", "kg"):
        assert scores[:, NAMES.index(branch)][:, off_diagonal].abs().max() == 0


def test_plain_heads_have_one_edge_each(twin, prompt):
    edges = attribute_edges(twin, prompt, TARGET, FOIL, method="ig")
    heads = attribute_heads(twin, prompt, TARGET, FOIL)
    assert torch.allclose(torch.diagonal(edges.scores[:, 0], dim1=1, dim2=2), heads.scores, atol=1e-4)
    assert edges.scores[:, 1:].abs().max() == 0
    assert all(name.startswith("head ") for name in edges.checked)
    with pytest.raises(UserError, match="not composed"):
        attribute_edges(twin, prompt, TARGET, FOIL, stage="pre")


def test_some_layers_and_no_sources_are_the_same_numbers(double, prompt):
    few = {"method": "ig", "check": 0, "steps": 8, "max_steps": 8}
    full = attribute_edges(double, prompt, TARGET, FOIL, **few)
    part = attribute_edges(double, prompt, TARGET, FOIL, layers=[-1], per_source=False, batch_size=5, **few)
    assert part.layers == (1,)
    assert part.by_source.shape[-1] == 1
    assert torch.allclose(part.scores[0], full.scores[1], atol=1e-5)
    assert set(part.to_dataframe("scores").layer) == {1}, "its number, not its place among those scored"


def test_top_edges_are_the_largest_and_are_ablated(double, prompt):
    result = attribute_edges(double, prompt, TARGET, FOIL, check=4, method="gradient")
    top = result.top(4)
    between = ~torch.eye(result.scores.shape[-1], dtype=torch.bool)
    shared = result.scores[..., between].abs().flatten().sort(descending=True).values
    assert [abs(edge.score) for edge in top] == pytest.approx(shared[:4].tolist())
    assert result.checked == tuple(edge.intervention.unit for edge in top)
    taps = double.run_with_cache(prompt)[1]
    for edge, effect in zip(top, result.measured.tolist(), strict=True):
        # The same ablation by hand, from the taps of the compose.
        prefix = f"blocks.{edge.layer}.attn.post.hook_"
        a = taps[f"{prefix}in"][0, edge.head_from]
        w = {k: taps[f"{prefix}w_{k}"][0] for k in ("q1", "q2", "k1", "k2", "qg", "kg")}
        chosen = {
            "qp": (w["q1"][..., edge.head_from] * w["q2"][..., edge.head_to]).sum(1)[:, None],
            "kp": (w["k1"][..., edge.head_from] * w["k2"][..., edge.head_to]).sum(1)[None, :],
            "qg": w["qg"][:, edge.head_to][:, None],
            "kg": w["kg"][:, edge.head_to][None, :],
        }[edge.branch]

        def without(t, hook, h=edge.head_to, term=a * chosen):
            t[0, h] -= term
            return t

        after = metric_under(double, prompt, [(f"blocks.{edge.layer}.attn.hook_pattern", without)])
        assert effect == pytest.approx(result.metric - after, abs=1e-4)
    assert all(edge.shared for edge in result.top(10_000)), "a gate, or a head's own attention, is not shared"
    added = result.table()
    assert set(added["edge"][~added["shared"]].str.split(".").str[2]) == {"qp", "kp", "qg", "kg"}
    assert all(edge.shared == (edge.head_from != edge.head_to) for edge in result.top(10_000, shared=False))
    into = result.top(3, head_to=(1, 5), shared=False)
    assert {(edge.layer, edge.head_to) for edge in into} == {(1, 5)}


def test_warnings_say_what_to_know(double, prompt):
    result = attribute_edges(double, prompt, TARGET, FOIL, method="ig")
    assert any("not the largest" in warning for warning in result.warnings())
    fine = replace(result, answer=result.target, right=True, predicted=result.measured)
    assert fine.warnings() == []
    assert "misses" in replace(fine, gap=fine.gap + 100).warnings()[0]
    assert "The edges do not add up" in replace(fine, mismatch=fine.mismatch + 1).warnings()[0]
    assert fine.rounding == torch.finfo(torch.float64).eps
    coarse = replace(fine, mismatch=0.02 * fine.heads.abs().max().expand_as(fine.mismatch), rounding=2**-7)
    assert not any("add up" in said for said in coarse.warnings()), "sums of bfloat16 are off by as much"
    large = replace(fine, predicted=10 * fine.measured).warnings()
    assert len(large) == 1
    assert "differ from the effect by more than a factor of 3: integrated gradients divide" in large[0]
    assert "disagree in sign for 8 of the 8" in replace(fine, predicted=-fine.measured).warnings()[0]
    # What is shown is the effect itself: the prediction that it replaced is nobody's reading.
    assert replace(fine, method="screened", predicted=-fine.measured).warnings() == []


def test_bad_input_is_refused_in_a_sentence(double, prompt):
    with pytest.raises(UserError, match="did you mean post"):
        attribute_edges(double, prompt, TARGET, stage="posts")
    with pytest.raises(UserError, match="no method 'magic'"):
        attribute_edges(double, prompt, TARGET, method="magic")
    with pytest.raises(UserError, match="joint path belongs to 'ig' and 'gradient'"):
        attribute_edges(double, prompt, TARGET, path="joint")
    with pytest.raises(UserError, match="give baseline="):
        attribute_edges(double, prompt, TARGET, method="ig-counterfactual")
    with pytest.raises(UserError, match="same token"):
        attribute_edges(double, prompt, TARGET, TARGET)
    with pytest.raises(UserError, match="tokens long"):
        attribute_edges(double, prompt, TARGET, baseline="Ruth")
    with pytest.raises(UserError, match="no layer 7"):
        attribute_edges(double, prompt, TARGET, layers=[7])
    with pytest.raises(UserError, match="choose from frozen, recomputed"):
        attribute_edges(double, prompt, TARGET, dynamic_weights="thawed")


@pytest.mark.parametrize("stage", ["pre", "post"])
def test_what_is_measured_is_the_effect_of_the_removal(double, prompt, stage):
    """By default the strongest edges, with method "ablation" all of them; compared with the other implementation."""
    screened = attribute_edges(double, prompt, TARGET, FOIL, stage=stage, check=3, per_source=False)
    every = attribute_edges(double, prompt, TARGET, FOIL, stage=stage, method="ablation", per_source=False)
    units = {edge.unit: edge for edge in all_units(double, "edge", stage)}
    assert set(every.checked) == set(units)
    assert set(screened.checked) < set(units)
    assert 9 <= len(screened.checked) <= 27, "3 between two heads and 6 of single heads, by one ranking to three"
    ids = double.to_tokens(prompt)
    effects = measure_effects(
        double, ids, [[units[name]] for name in screened.checked], lambda logits: difference(double, logits)
    )
    assert torch.allclose(screened.measured.double(), effects, atol=1e-5)
    places = [(e.layer, NAMES.index(e.name), e.head_from, e.head) for e in map(units.get, screened.checked)]
    assert torch.equal(torch.stack([screened.scores[at] for at in places]).float(), screened.measured)
    assert torch.allclose(torch.stack([every.scores[at] for at in places]), effects, atol=1e-5)
    # The others keep what the rule predicts.
    predicted = attribute_edges(double, prompt, TARGET, FOIL, stage=stage, method="recomputed", check=0).scores
    for at in places:
        predicted[at] = screened.scores[at]
    assert torch.allclose(predicted, screened.scores, atol=1e-12)
    assert screened.mismatch.max() < 1e-10


@pytest.mark.parametrize("stage", ["pre", "post"])
def test_with_a_baseline_an_edge_becomes_what_it_is_there(double, prompt, stage):
    one = attribute_edges(double, prompt, TARGET, FOIL, stage=stage, baseline=OTHER, method="ablation")
    line = f"edge 1.{stage}.kp.2>3"
    name = f"blocks.1.attn.{'hook_pattern' if stage == 'post' else 'pre.hook_out'}"
    prefix = f"blocks.1.attn.{stage}.hook_"

    def edge(text):
        taps = double.run_with_cache(text)[1]
        w1, w2 = taps[f"{prefix}w_k1"][0, ..., 2], taps[f"{prefix}w_k2"][0, ..., 3]
        return taps[f"{prefix}in"][0, 2] * (w1 * w2).sum(1)[None, :], taps["blocks.1.attn.hook_v"][0, :, 3]

    (here, v), (there, v_there) = edge(prompt), edge(OTHER)

    def swap_scores(t, hook):
        t[0, 3] -= here - there
        return t

    def swap_read(t, hook):
        t[0, :, 3] -= here @ v - there @ v_there
        return t

    hooks = [(name, swap_scores)] if stage == "pre" else [("blocks.1.attn.hook_z", swap_read)]
    effect = one.metric - metric_under(double, prompt, hooks)
    assert dict(zip(one.checked, one.measured.tolist(), strict=True))[line] == pytest.approx(effect, abs=1e-5)


def test_no_hook_stays_behind(double, prompt):
    attribute_edges(double, prompt, TARGET, FOIL, dynamic_weights="frozen")
    assert not any(hook._forward_hooks or hook._backward_hooks for hook in double.hook_dict.values())


def test_what_a_baseline_does_to_an_edge_is_measured_with_its_values(double, prompt):
    quick = {"baseline": OTHER, "check": 6, "steps": 8, "max_steps": 8}
    found = attribute_edges(double, prompt, TARGET, FOIL, method="ig", **quick)
    screened = attribute_edges(double, prompt, TARGET, FOIL, method="ablation", **quick)
    for unit, measured in zip(found.checked, found.measured.tolist(), strict=True):
        layer, _, branch, pair = unit.split()[1].split(".")
        head_from, head_to = map(int, pair.split(">"))
        exact = float(screened.scores[int(layer), NAMES.index(branch), head_from, head_to])
        assert measured == pytest.approx(exact, abs=1e-6), unit


@pytest.mark.parametrize("compose", ["multi-token", "dense-collaboration"])
def test_edges_of_scores_can_be_measured_where_more_than_the_pair_is_read(make_double, prompt, compose):
    bridge = make_double("tiny-dcformer++", compose=compose)
    found = attribute_edges(bridge, prompt, TARGET, FOIL, stage="pre", check=3)
    assert found.measured.isfinite().all()
