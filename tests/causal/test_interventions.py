"""Interventions against the same change made another way: other weights, other hooks, another prompt."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dcinterp
from dcinterp import UserError, intervene
from dcinterp.mechanism.ablation import replacement
from dcinterp.mechanism.branches import NAMES
from dcinterp.mechanism.dataset import default_reference, draw_examples
from dcinterp.mechanism.edges import edge_state, head_map, layer_taps
from dcinterp.mechanism.intervention_hooks import applied, frozen_hooks, intervention_hooks, measure_effects, references
from dcinterp.mechanism.interventions import KINDS, WEIGHTS, Intervention, all_units, checked, read_interventions
from dcinterp.mechanism.objective import explain
from dcinterp.mechanism.prompt import token_ids

PROMPT = "< Ruth has a violin. Carol has a beetle. Ronald has blueberries. >. Ronald has a kind of"
OTHER = "< Ruth has a piano. Carol has a tiger. Ronald has blueberries. >. Ronald has a kind of"


@pytest.fixture(scope="module")
def model(tokenizer_folder):
    """One double-precision bridge for all tests here: interventions leave nothing behind, which is tested too."""
    from transformers import PreTrainedTokenizerFast

    from dcinterp.bridge import wrap
    from dcinterp.model.config import DCFormerConfig
    from dcinterp.model.decoder import DCFormerForCausalLM

    tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)
    torch.manual_seed(0)
    config = DCFormerConfig.preset(
        "tiny-dcformer++", num_hidden_layers=2, vocab_size=len(tokenizer), max_position_embeddings=128
    )
    plain = DCFormerForCausalLM(config)
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            if ".pre." in name or ".post." in name:
                parameter.normal_(std=0.15)
    return wrap(plain.double(), tokenizer)


@pytest.fixture(scope="module")
def caches(model):
    return {prompt: model.run_with_cache(prompt)[1] for prompt in (PROMPT, OTHER)}


def logits_under(model, lines, **kwargs):
    with torch.no_grad(), applied(model, lines, PROMPT, **kwargs):
        return model(PROMPT)


def logits_with(model, hooks):
    with torch.no_grad():
        return model.run_with_hooks(PROMPT, fwd_hooks=hooks)


def length_of(model):
    return model.to_tokens(PROMPT).shape[1]


@pytest.mark.parametrize("stage", ["pre", "post"])
@pytest.mark.parametrize("branch", ["qp", "kp", "qg", "kg"])
def test_a_branch_put_to_zero_is_a_model_whose_weights_lack_it(model, stage, branch):
    without = copy.deepcopy(model)
    side = getattr(getattr(without.blocks[1].attn, stage).original_component, {"q": "query", "k": "key"}[branch[0]])
    with torch.no_grad():
        (side.up if branch[1] == "p" else side.gate.weight).zero_()
        expected = without(PROMPT)
    assert torch.allclose(logits_under(model, f"branch 1.{stage}.{branch} zero"), expected, atol=1e-10)
    assert not torch.allclose(model(PROMPT), expected, atol=1e-4)


@pytest.mark.parametrize("stage", ["pre", "post"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("branch", ["qp", "kp", "kg"])
def test_all_edges_of_a_branch_are_the_branch(model, stage, kind, branch):
    edges = [one for one in all_units(model, "edge", stage) if (one.layer, one.name) == (1, branch)]
    edges = [replace(one, kind=kind, factor=1.5 if kind == "scale" else 0.0) for one in edges]
    whole = Intervention("branch", 1, stage, branch, kind=kind, factor=1.5 if kind == "scale" else 0.0)
    others = {"counterfactual": OTHER, "reference": [OTHER, "Ruth has a lime."]}
    assert len(edges) == (64 if branch[1] == "p" else 8)
    if (kind, branch[1]) == ("rotate", "g"):  # what a gate adds to the next head comes through no edge of a gate
        edges = [replace(one, kind="zero") for one in edges]
        whole = replace(whole, kind="zero")
    one_by_one, at_once = (logits_under(model, given, **others) for given in (edges, whole))
    assert torch.allclose(one_by_one, at_once, atol=1e-10)
    assert not torch.allclose(at_once, model(PROMPT), atol=1e-5)


def test_everything_from_another_prompt_is_its_pattern(model, caches):
    lines = [f"branch 1.post.{branch} counterfactual" for branch in NAMES]
    name = "blocks.1.attn.hook_pattern"
    expected = logits_with(model, [(name, lambda t, hook: caches[OTHER][name])])
    assert torch.allclose(logits_under(model, lines, counterfactual=OTHER), expected, atol=1e-10)


@pytest.mark.parametrize("kind", ["zero", "mean", "counterfactual"])
def test_heads_against_hooks_written_by_hand(model, caches, kind):
    name = "blocks.0.attn.hook_z"
    new = {
        "zero": torch.zeros(16, dtype=torch.float64),
        "mean": torch.cat([caches[p][name][0, :, 3] for p in (PROMPT, OTHER)]).mean(0),
        "counterfactual": caches[OTHER][name][0, :, 3],
    }[kind]

    def by_hand(t, hook):
        t[0, :, 3] = new
        return t

    mine = logits_under(model, f"head 0.3 {kind}", counterfactual=OTHER, reference=[PROMPT, OTHER])
    assert torch.allclose(mine, logits_with(model, [(name, by_hand)]), atol=1e-10)


def test_resampled_values_come_from_the_same_position_or_token(model, caches):
    """With one other prompt the donor is known: position by position, and for a token the place where it stands."""
    name = "blocks.0.attn.hook_z"
    ids, other = model.to_tokens(PROMPT)[0].tolist(), model.to_tokens(OTHER)[0].tolist()
    assert len(ids) == len(other)
    for kind in ("resample", "resample-token"):

        def by_hand(t, hook, kind=kind):
            for at, token in enumerate(ids):
                places = [p for p, o in enumerate(other) if o == token] if kind == "resample-token" else [at]
                if len(places) == 1:
                    t[0, at, 3] = caches[OTHER][name][0, places[0], 3]
            return t

        once = [at for at, token in enumerate(ids) if kind == "resample" or other.count(token) <= 1]
        with torch.no_grad(), applied(model, f"head 0.3 {kind}", PROMPT, reference=[PROMPT, OTHER]):
            _, cache = model.run_with_cache(PROMPT, names_filter=[name])
        with torch.no_grad(), model.hooks(fwd_hooks=[(name, by_hand)]):
            _, expected = model.run_with_cache(PROMPT, names_filter=[name])
        kept = [at for at in once if kind == "resample" or ids[at] in other]
        assert len(kept) > 5
        assert torch.allclose(cache[name][0, kept, 3], expected[name][0, kept, 3], atol=1e-10), kind
    rotated = logits_under(model, "head 0.3 rotate")
    assert torch.allclose(rotated, logits_with(model, [(name, _copied)]), atol=1e-10)


def test_a_counterfactual_beside_it_does_not_change_whom_a_prompt_is_resampled_from(model):
    others = [OTHER, "Ruth has a lime. Ruth has", "The lime is a kind of fruit. A"]
    alone = references(
        model,
        [Intervention.parse("head 0.3 resample")],
        len(model.to_tokens(PROMPT)[0]),
        None,
        others,
        ids=model.to_tokens(PROMPT),
    )
    beside = references(
        model,
        [Intervention.parse("head 0.3 resample"), Intervention.parse("head 0.0 counterfactual")],
        len(model.to_tokens(PROMPT)[0]),
        OTHER,
        others,
        ids=model.to_tokens(PROMPT),
    )
    for name, value in alone.ablations["resample"].items():
        assert torch.equal(beside.ablations["resample"][name], value)


def test_positions_that_no_reference_prompt_has_are_said(model):
    short = intervene(model, PROMPT, "head 0.3 resample", "fruit", "animal", reference=["Ruth has a lime."] * 2)
    assert 0 < short.unmatched < 1
    assert any("of the resampled positions no other prompt has the same" in line for line in short.warnings())
    long = intervene(model, PROMPT, "head 0.3 resample", "fruit", "animal", reference=[OTHER])
    assert long.unmatched == 0


def _copied(z, hook):
    z[0, :, 3] = z[0, :, 2].clone()
    return z


@pytest.mark.parametrize("kind", ["mean", "resample", "resample-token", "rotate"])
def test_hooks_for_a_batch_do_what_the_line_does(model, kind):
    """`Replacement.hooks` replaces whole taps in any batch; the line of an intervention does so on one prompt."""
    taps = [f"blocks.{n}.attn.{tap}" for n, tap in ((1, "post.hook_o_qp"), (1, "post.hook_o_kg"), (0, "hook_z"))]
    reference = [OTHER, "Ruth has a lime. Ruth has"]
    ids = [model.to_tokens(prompt) for prompt in reference]
    values = replacement(model, taps, kind, ids)
    lines = [f"branch 1.post.qp {kind}", f"branch 1.post.kg {kind}", *(f"head 0.{h} {kind}" for h in range(8))]
    one = logits_under(model, lines, reference=reference)
    with torch.no_grad(), model.hooks(fwd_hooks=list(values.hooks())):
        two = model(model.to_tokens(PROMPT).expand(2, -1))
    assert torch.allclose(two, one.expand(2, -1, -1), atol=1e-10)
    assert values.unmatched.positions == (2 * len(model.to_tokens(PROMPT)[0]) if kind.startswith("resample") else 0)


def test_a_line_without_a_kind_means_the_mean_over_examples_of_the_task(model):
    """The reference of a prompt of the tasks is its own task; zero stands beside it."""
    assert Intervention.parse("head 0.3 query=-1") == Intervention("head", 0, head=3, kind="mean", query=-1)
    result = intervene(model, PROMPT, "head 0.3", "fruit", "animal")
    assert result.reference == "task2 n=32 seed=7 split=held-out"
    assert result.effect == pytest.approx(
        intervene(model, PROMPT, "head 0.3 mean", "fruit", "animal", reference=result.reference).effect
    )
    zero = intervene(model, PROMPT, "head 0.3 zero", "fruit", "animal")
    assert result.effect_of_zero == pytest.approx(zero.effect, abs=1e-6)
    assert zero.effect_of_zero is None
    assert f"With zero in its place the effect is {zero.effect:+z.2f}" in result.sentence()
    assert abs(result.effect - zero.effect) > 1e-6


@pytest.mark.parametrize(
    ("after", "foil", "says"),
    [
        (1.0, "animal", 'the change speaks against "fruit", for "animal".'),
        (3.0, "animal", 'the change speaks for "fruit" over "animal".'),
        (1.0, None, "the change lowers this logit."),
        (3.0, None, "the change raises this logit."),
        (2.001, None, "the change moves it by less than 0.005."),
    ],
)
def test_without_a_foil_nothing_is_said_for_or_against_an_answer(model, after, foil, says):
    """All logits may move together, so that one alone has no contrast."""
    result = intervene(model, PROMPT, "head 0.3 zero", "fruit", "animal")
    made = dataclasses.replace(result, metric_before=2.0, metric_after=after, foil=foil)
    assert made.sentence().endswith(says)


def test_a_prompt_of_no_task_needs_a_reference(model, make_bridge):
    """Where the model knows the words of the tasks, tasks that end like the prompt stand in; else one must be given."""
    like = "< Ruth has a violin. Carol has a beetle. >. Carol has a thing that can"
    assert default_reference(model, like) == intervene(model, like, "head 0.3 mean", "fruit").reference
    assert "n=32" in default_reference(model, like)
    said = "ends like those of no task"
    for prompt, kind, warns in (
        (like, "mean", False),
        ("lime lime lime", "mean", True),
        ("lime lime lime", "zero", False),
    ):
        assert any(said in each for each in intervene(model, prompt, f"head 0.3 {kind}").warnings()) is warns
    with pytest.raises(UserError, match="give reference="):
        default_reference(dcinterp.load("planted:share-by-kp"), "Bob ruby Dora topaz")


@pytest.mark.parametrize("weight", WEIGHTS)
def test_weights_against_hooks_written_by_hand(model, caches, weight):
    name = f"blocks.0.attn.post.hook_{weight}"
    for kind in ("zero", "mean", "counterfactual"):
        new = {
            "zero": torch.zeros(()),
            "mean": torch.cat([caches[p][name][0] for p in (PROMPT, OTHER)]).mean(0)[..., 2],
            "counterfactual": caches[OTHER][name][0, ..., 2],
        }[kind]

        def by_hand(t, hook, new=new):
            t[0, ..., 2] = new
            return t

        line = f"weight 0.post.{weight}.2 {kind}"
        mine = logits_under(model, line, counterfactual=OTHER, reference=[PROMPT, OTHER])
        assert torch.allclose(mine, logits_with(model, [(name, by_hand)]), atol=1e-10), kind


def test_the_mean_map_is_composition_without_the_token(model, caches):
    names = layer_taps(model, 1, "post")
    maps = [head_map(edge_state(model, {n: caches[p][n] for n in names}, 1, "post"), "kp") for p in (PROMPT, OTHER)]
    mean = torch.cat(maps).mean(0)
    attention = caches[PROMPT]["blocks.1.attn.post.hook_in"]
    hooks = [("blocks.1.attn.post.hook_o_kp", lambda t, hook: torch.einsum("bfts,fh->bhts", attention, mean))]
    mine = logits_under(model, "branch 1.post.kp mean", reference=[PROMPT, OTHER])
    assert torch.allclose(mine, logits_with(model, hooks), atol=1e-10)


def test_positions_confine_the_change(model, caches):
    """Restricted to a query and a key, an edge changes one entry of the receiving head's pattern."""
    with torch.no_grad(), applied(model, "edge 1.post.kp.2>3 zero query=-1 key=4", PROMPT):
        _, cache = model.run_with_cache(PROMPT, names_filter=["blocks.1.attn.hook_pattern"])
    change = cache["blocks.1.attn.hook_pattern"] - caches[PROMPT]["blocks.1.attn.hook_pattern"]
    # Both passes compute layer 0 on paths of their own, equal to rounding.
    assert (change.abs() > 1e-4).nonzero().tolist() == [[0, 3, length_of(model) - 1, 4]]


def test_rows_of_a_batch_undergo_their_own_interventions(model):
    ids, length = model.to_tokens(PROMPT), length_of(model)
    lines = ["head 0.1 zero", "edge 1.post.qp.2>3 zero", "branch 0.pre.kp scale=-1", "weight 1.post.w_kg zero"]
    rows = [checked(model, Intervention.parse(line), length) for line in lines]

    def metric(logits):
        return logits[:, -1, 7] - logits[:, -1, 9]

    together = measure_effects(model, ids, rows, metric, batch_size=3)
    for line, effect in zip(lines, together.tolist(), strict=True):
        alone = float(metric(model(PROMPT)) - metric(logits_under(model, line)))
        assert effect == pytest.approx(alone, abs=1e-9)
        assert effect != 0


def test_interventions_act_in_the_order_of_the_computation(model):
    """A weight first, so that an edge is taken from what it has become; a whole branch last."""
    lines = ["edge 1.post.kp.2>3 zero", "weight 1.post.w_k1.2 scale=3"]
    assert torch.allclose(logits_under(model, lines), logits_under(model, lines[::-1]), atol=1e-12)
    both = logits_under(model, ["edge 1.post.kp.2>3 scale=5", "branch 1.post.kp zero"])
    assert torch.allclose(both, logits_under(model, "branch 1.post.kp zero"), atol=1e-12)


def test_added_is_all_but_the_skip(model, caches):
    name = "blocks.1.attn.hook_pattern"
    weights = caches[PROMPT]["blocks.1.attn.post.hook_in"]
    expected = logits_with(model, [(name, lambda t, hook: weights)])
    assert torch.allclose(logits_under(model, "branch 1.post.added zero"), expected, atol=1e-10)
    split = [f"edge 1.post.{branch}.3>3 zero" for branch in NAMES[1:]]
    one = logits_under(model, "edge 1.post.added.3>3 zero")
    assert torch.allclose(one, logits_under(model, split), atol=1e-12)
    shared = logits_under(model, "edge 1.post.added.2>3 zero")
    assert torch.allclose(
        shared, logits_under(model, split[:2][0].replace("3>3", "2>3") + ";" + split[1].replace("3>3", "2>3"))
    )


def test_frozen_weights_stay_and_recomputed_ones_answer(model, caches):
    name = "blocks.1.attn.post.hook_w_q1"
    for kind, same in (("frozen", True), ("recomputed", False)):
        with torch.no_grad(), applied(model, "branch 0.post.kp zero", PROMPT, dynamic_weights=kind):
            _, cache = model.run_with_cache(PROMPT, names_filter=[name])
        assert torch.allclose(cache[name], caches[PROMPT][name], atol=1e-10) is same
    # An intervention on a frozen weight still acts.
    frozen = logits_under(model, "weight 1.post.w_q2 zero", dynamic_weights="frozen")
    assert torch.allclose(frozen, logits_under(model, "branch 1.post.qp zero"), atol=1e-10)


def test_frozen_hooks_alone_change_nothing(model):
    ids = model.to_tokens(PROMPT)
    hooks = list(intervention_hooks(model, [[]], frozen=frozen_hooks(model, ids)))
    assert torch.allclose(logits_with(model, hooks), model(PROMPT), atol=1e-10)


def test_scaling_by_one_changes_nothing_and_no_hook_stays(model):
    lines = ["head 0.1 scale=1", "edge 1.post.kp.2>3 scale=1", "branch 0.pre.qg scale=1", "weight 1.pre.w_k2 scale=1"]
    assert torch.allclose(logits_under(model, lines), model(PROMPT), atol=1e-10)
    with pytest.raises(RuntimeError, match="stop"), applied(model, lines, PROMPT):
        raise RuntimeError("stop")
    assert not any(hook._forward_hooks or hook._backward_hooks for hook in model.hook_dict.values())


def test_intervene_reports_both_runs(model, caches):
    line = "branch 0.post.added zero"
    result = intervene(model, PROMPT, line, "fruit", "animal", dynamic_weights="recomputed")
    plus, minus = (model.tokenizer.convert_tokens_to_ids(word) for word in ("fruit", "animal"))
    clean, edited = model(PROMPT)[0, -1], logits_under(model, line)[0, -1]
    assert result.effect == pytest.approx(float((clean - edited)[plus] - (clean - edited)[minus]), abs=1e-6)
    assert torch.allclose(result.logit_after, edited[result.top_ids].float(), atol=1e-5)
    assert set(result.top_ids.tolist()) == set(clean.topk(10).indices.tolist()) | set(edited.topk(10).indices.tolist())
    pattern = caches[PROMPT]["blocks.1.attn.hook_pattern"][0].float()
    assert torch.allclose(result.attention_before[1], pattern[:, -1], atol=1e-6)
    assert result.attention_change[1].min() > 0, "what was taken out of layer 0 moves the attention of layer 1"
    assert result.call.arguments["interventions"] == line
    assert intervene(model, PROMPT, read_interventions(line)).call.arguments["interventions"] == [line]


def test_warnings_say_what_to_know(model):
    nothing = intervene(model, PROMPT, "edge 1.post.kp.2>3 scale=1", "fruit")
    assert any("changes no logit" in warning for warning in nothing.warnings())
    assert any("not the largest" in warning for warning in nothing.warnings())
    assert intervene(model, PROMPT, "head 1.2 zero").warnings() == []


def test_prompts_that_no_line_takes_a_value_from_are_said(model):
    both = {"counterfactual": OTHER, "reference": [PROMPT, OTHER]}
    assert intervene(model, PROMPT, "head 1.2 zero", **both).warnings() == [
        "The counterfactual that was given is not used: no line is of the kind counterfactual.",
        "The reference that was given is not used: no line is of the kind mean or resample or resample-token.",
    ]
    used = intervene(model, PROMPT, "head 1.2 mean; head 1.3 counterfactual", **both)
    assert used.unused == ()
    assert not any("not used" in warning for warning in used.warnings())


@settings(max_examples=60, deadline=None)
@given(
    part=st.sampled_from(["head", "branch", "edge", "weight"]),
    kind=st.sampled_from(KINDS),
    layer=st.integers(-3, 40),
    heads=st.tuples(st.integers(0, 64), st.integers(0, 64)),
    factor=st.sampled_from([-1.0, 0.5, 2.0]),
    places=st.tuples(st.none() | st.integers(-9, 9), st.none() | st.integers(-9, 9)),
)
def test_lines_read_back_as_they_are_written(part, kind, layer, heads, factor, places):
    one = Intervention(
        part,
        layer,
        stage="" if part == "head" else "post",
        name={"head": "", "weight": "w_k1"}.get(part, "qp"),
        head=None if part == "branch" else heads[0],
        head_from=heads[1] if part == "edge" else None,
        kind=kind,
        factor=factor if kind == "scale" else 0.0,
        query=places[0],
        key=places[1],
    )
    assert Intervention.parse(str(one)) == one


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("knock out head 3", "names no|no intervention|nothing called"),
        ("neuron 1.3 zero", "nothing called 'neuron'"),
        ("head 1.3 remove", "no kind of change"),
        ("head 1 zero", "names no head"),
        ("head 1.3 scale", "takes a factor"),
        ("head 1.3 scale=much", "no factor"),
        ("head 1.9 zero", "no head 9"),
        ("head 5.1 zero", "no layer 5"),
        ("head 1.3 zero key=2", "no key position"),
        ("weight 1.post.w_q1 zero key=2", "no key position"),
        ("head 1.3 zero query=99", "outside the prompt"),
        ("branch 1.middle.kp zero", "no stage 'middle'"),
        ("branch 1.post.kq zero", "no branch 'kq'"),
        ("edge 1.post.qg.2>3 zero", "to itself only"),
        ("weight 1.post.w_z1 zero", "no dynamic weight"),
        ("branch 1.post.skip mean", "its mean changes nothing"),
        ("head 1.3 counterfactual", "give counterfactual="),
        ("edge 1.post.skip.2>2 rotate", "cannot be rotated"),
        (f"head 1.{'9' * 5000} zero", "too large"),
        (f"head 1.3 zero query={'9' * 5000}", "too large"),
        (" ; ", "no intervention"),
    ],
)
def test_bad_lines_are_refused_in_a_sentence(model, line, says):
    with pytest.raises(UserError, match=says):
        intervene(model, PROMPT, line)


def test_a_counterfactual_of_another_length_and_plain_models_are_refused(model, twin):
    with pytest.raises(UserError, match="tokens long"):
        intervene(model, PROMPT, "head 1.3 counterfactual", counterfactual="Ruth")
    with pytest.raises(UserError, match="not composed"):
        intervene(twin, PROMPT, "branch 1.post.kp zero")
    assert intervene(twin, PROMPT, "head 1.3 zero", "fruit").effect != 0


def test_answers_of_several_tokens_leave_the_prompt_its_length(model):
    """The tokens of the answer that are read behind the prompt are read behind the counterfactual, too."""
    ids, other = token_ids(model, PROMPT), token_ids(model, OTHER)
    whole = intervene(model, ids, "head 1.3 counterfactual", "violin fruit", counterfactual=other)
    behind = [*ids[0].tolist(), *explain(model, ids, "violin fruit").expected[:1]]
    assert len(behind) == ids.shape[1] + 1
    assert whole.effect != 0
    last = intervene(model, ids, "head 1.3 zero query=-1", "violin fruit").effect
    assert last == intervene(model, ids, f"head 1.3 zero query={ids.shape[1] - 1}", "violin fruit").effect
    assert last != intervene(model, ids, f"head 1.3 zero query={ids.shape[1]}", "violin fruit").effect
    with pytest.raises(UserError, match="Query -99 is outside the prompt"):
        intervene(model, ids, "head 1.3 zero query=-99", "violin fruit")


@pytest.mark.parametrize(
    "factor", [1 / 3, 2.0, 1e-7, -0.1, np.linspace(0, 1, 7)[1], np.float32(1 / 3), torch.tensor(0.5)]
)
def test_a_factor_is_read_as_it_is_written(factor):
    one = Intervention("head", 1, head=3, kind="scale", factor=factor)
    assert Intervention.parse(str(one)) == one


def test_factors_are_finite_and_so_are_the_logits(model, shipped):
    for factor in ("nan", "inf", "1e999"):
        with pytest.raises(UserError, match="is no factor; write a number"):
            intervene(model, PROMPT, f"head 1.3 scale={factor}")
    with pytest.raises(UserError, match="nan is no factor"):
        intervene(model, PROMPT, Intervention("head", 1, head=3, kind="scale", factor=float("nan")))
    with pytest.raises(UserError, match="no longer finite numbers"):
        intervene(shipped, PROMPT, "head 1.3 scale=1e300")


def test_references_are_kept_only_where_needed(model):
    one = checked(model, Intervention.parse("edge 1.post.kp.2>3 counterfactual"), length_of(model))
    kept = references(model, one, length_of(model), OTHER)
    assert set(kept.counterfactual) == {f"blocks.1.attn.post.hook_{name}" for name in ("in", "w_k1", "w_k2")}


def test_a_rotation_over_the_border_of_a_group_is_no_edge(make_bridge):
    """The edge of the head before would lead out of its group, where the model has none: nothing takes its place."""
    model = make_bridge(compose_groups=2)
    first = model.cfg.n_heads // 2
    line = f"edge 1.post.kp.{first}>{first}"
    assert torch.allclose(logits_under(model, f"{line} rotate"), logits_under(model, f"{line} zero"))


def test_an_edge_of_a_result_stands_for_its_removal(model):
    """Alone, as it is a tuple too, and among lines; before the softmax it is named so."""
    edges = dcinterp.attribute_edges(model, PROMPT, "food", stage="pre", method="gradient")
    edge, other = edges.top(2)
    assert edge.label.endswith(f"(pre {edge.branch})")
    assert dataclasses.replace(edges, stage="post").top(1)[0].label.endswith(f"({edge.branch})")
    assert read_interventions(edge) == [edge.intervention]
    assert read_interventions([other, "head 1.3 zero", edge])[::2] == [other.intervention, edge.intervention]
    by_edge, by_line = (intervene(model, PROMPT, each, "food") for each in (edge, str(edge.intervention)))
    assert by_edge.metric_after == by_line.metric_after != by_line.metric_before
    assert by_edge.call.arguments == by_line.call.arguments
    assert by_edge.call.arguments["interventions"] == str(edge.intervention)


def test_a_branch_that_rotates_keeps_the_edits_of_its_edges(model):
    """As the order says: weights, then edges, then whole branches."""
    edge, branch = "edge 1.post.kp.1>2 zero", "branch 1.post.kp rotate"
    one, other, both = (logits_under(model, line) for line in (edge, branch, f"{edge}; {branch}"))
    assert not torch.allclose(both, other, atol=1e-6)
    assert not torch.allclose(both, one, atol=1e-6)
    assert torch.allclose(both, logits_under(model, f"{branch}; {edge}"), atol=1e-10)


def test_what_rotates_does_not_hang_on_the_order_of_the_lines(model):
    """Units of one sort act together: a rotating head reads the others as they were."""
    one, other = (
        logits_under(model, lines) for lines in ("head 1.1 zero; head 1.2 rotate", "head 1.2 rotate; head 1.1 zero")
    )
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"part": "head", "layer": 0, "head": 1, "kind": "Mean"}, "no kind of change 'Mean'"),
        ({"part": "heads", "layer": 0, "head": 1}, "nothing called 'heads'"),
        ({"part": "head", "layer": 0}, "a head names its head="),
        ({"part": "edge", "layer": 0, "stage": "post", "name": "kp", "head": 1}, "as head_from="),
    ],
)
def test_an_intervention_that_is_none_is_refused(model, given, said):
    with pytest.raises(UserError, match=said):
        intervene(model, PROMPT, Intervention(**given), "fruit")


def test_a_line_names_a_position_once():
    with pytest.raises(UserError, match="'query=1 query=2' names one position twice"):
        Intervention.parse("head 0.1 zero query=1 query=2")


def test_interventions_in_force_take_a_reference_in_text_form(model):
    given = [prompt for _, prompt in draw_examples("task0 n=4")]
    by_text, by_list = (logits_under(model, "head 0.3 mean", reference=each) for each in ("task0 n=4", given))
    assert torch.equal(by_text, by_list)
    default = logits_under(model, "head 0.3 mean", reference=default_reference(model, PROMPT))
    assert torch.equal(logits_under(model, "head 0.3 mean"), default)


def test_the_prompt_is_no_other_prompt_behind_an_answer_of_several_tokens(model):
    among = [PROMPT, PROMPT, PROMPT, OTHER]
    for seed in range(6):
        many, one = (
            intervene(model, PROMPT, "head 0.3 resample", "violin fruit", reference=each, seed=seed).effect
            for each in (among, [OTHER])
        )
        assert many == pytest.approx(one)


@pytest.mark.parametrize("stage", ["pre", "post"])
@pytest.mark.parametrize("factor", [0.0, 2.0])
def test_all_of_a_heads_attention_is_what_every_head_uses_of_it(model, stage, factor):
    """Against a hook where the composition reads it."""
    tap, head = f"blocks.1.attn.{stage}.hook_in", 6

    def change(x, hook):
        x = x.clone()
        x[:, head] *= factor
        return x

    line = f"attention 1.{'pre.' if stage == 'pre' else ''}{head} {'scale=2' if factor else 'zero'}"
    found = logits_under(model, line)
    with torch.no_grad():
        expected = model.run_with_hooks(PROMPT, fwd_hooks=[(tap, change)])
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    assert str(Intervention.parse(line)) == line
    assert not torch.allclose(found, model(PROMPT))


def test_attention_as_a_whole_has_no_map_and_may_be_of_other_pairs(model):
    with pytest.raises(UserError, match=r"'attention 1\.6' is changed by zero or scale=X: mean would replace how"):
        intervene(model, PROMPT, "attention 1.6")
    for more in ("edge 1.post.kp.6>3 zero", "attention 1.post.6 scale=2"):
        with pytest.raises(UserError, match=f"'attention 1.6 zero' and '{more}' both change 'edge 1.post"):
            intervene(model, PROMPT, f"attention 1.6 zero; {more}")
    intervene(model, PROMPT, "attention 1.6 zero query=-1; attention 1.6 zero query=-2; attention 1.7 zero")
    with pytest.raises(UserError, match="There is no head 9"):
        intervene(model, PROMPT, "attention 1.9 zero")
    from dcinterp.bridge import wrap
    from dcinterp.model.config import DCFormerConfig
    from dcinterp.model.decoder import DCFormerForCausalLM

    sizes = {"num_hidden_layers": 2, "vocab_size": 16}
    other = wrap(DCFormerForCausalLM(DCFormerConfig.preset("tiny-dcformer++", compose="multi-token", **sizes)).eval())
    with pytest.raises(UserError, match="attention of other pairs of tokens too"):
        intervene(other, [5, 7, 9], "attention 1.3 zero", 3)
