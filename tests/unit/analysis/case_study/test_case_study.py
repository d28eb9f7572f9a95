"""The case study: its evidence is that of the analyses, and it says when a step does not hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import dcinterp
import synthetic_tasks
from dcinterp import UserError
from dcinterp.analysis.case_study.evidence import Ablator, Effect
from dcinterp.analysis.case_study.following import source_position, source_positions
from dcinterp.analysis.case_study.steps import head_step
from dcinterp.analysis.case_study.wording import Words


@pytest.fixture(scope="module")
def example():
    return synthetic_tasks.generate("task2", 1, seed=3, examples=1)[0].examples[0]


@pytest.fixture(scope="module")
def study(make_bridge, example):
    """The case study of the weights that `bridge` has, with zero: the ablation that is easily made by hand."""
    return dcinterp.case_study(make_bridge(), example, kind="zero")


def logit_difference_under(bridge, study, prompt, hooks):
    """The logit difference under hooks, without any code of the case study."""
    target, foil = (
        bridge.tokenizer.convert_tokens_to_ids(w) for w in (study.attribution.target, study.attribution.foil)
    )
    with torch.no_grad():
        logits = bridge.run_with_hooks(bridge.to_tokens(prompt), fwd_hooks=hooks)[0, -1]
    return float(logits[target] - logits[foil])


def test_follows_the_head_with_the_largest_direct_effect_to_the_source(bridge, study, example):
    there = study.attribution.by_position[:, :, -1]
    candidates = there >= 0.1 * there.max()
    assert candidates[study.layer, study.head]
    assert float(study.direct[study.layer, study.head]) == float(study.direct[candidates].max())
    assert "has the largest direct effect (of the heads" in study.step("head").sentence
    assert study.prediction.tokens[study.key] in synthetic_tasks.words(example.facts[example.source].item)
    assert [step.title[-1] for step in study.steps] == ["?"] * 7
    assert study.breakdown.key == study.key


def test_numbers_in_the_sentences_are_those_of_the_evidence(bridge, example):
    study = dcinterp.case_study(bridge, example, layer=1, head=2, kind="zero")
    assert f"attribute {float(study.attribution.by_position[1, 2, -1]):+z.2f}" in study.step("head").sentence
    assert f"to {study.logit_difference - float(study.direct[1, 2]):z.2f} logits" in study.step("head").sentence
    ablation = float(study.attribution.ablation[1, 2])
    verb = "reduces" if round(ablation, 2) > 0 else "increases" if round(ablation, 2) else "changes"
    assert f"set to zero at all positions {verb} the difference by {abs(ablation):.2f}" in study.step("head").sentence
    assert f"{float(study.breakdown.out[2]):z.2f}" in study.step("source").sentence
    assert study.head_from != 2


@pytest.mark.parametrize(("gap", "said"), [(0.2, True), (0.006, True), (0.004, False)])
def test_a_gap_is_said_in_logits_and_measured_by_a_tenth_of_the_largest_effect_at_least(study, gap, said):
    # Layer 0 hardly matters: 0.004 is twice its effect, and 0.8 % of a tenth of the other's.
    found = replace(
        study.attribution,
        metric=6.0,
        metric_at_baseline=torch.tensor([5.998, 1.0]),
        gap=torch.tensor([gap, 0.0]),
    )
    nothing = Effect(0.0, 0.0)
    sentence = head_step(found, nothing, nothing, study.direct, 0, 1, (0, 1), Words("zero"), "").sentence
    assert ("read them with care" in sentence) == said
    assert (f"miss {gap:.2g} of its effect of +0.002," in sentence) == said


def test_a_direct_effect_is_what_goes_with_the_head_while_later_heads_stay(bridge, study, example):
    _, cache = bridge.run_with_cache(example.prompt)
    for layer, head in ((0, 1), (0, 3), (1, 2)):

        def silenced(z, hook, head=head):
            z = z.clone()
            z[0, -1, head] = 0
            return z

        later = [(f"blocks.{n}.attn.hook_z", lambda z, hook, n=n: cache[f"blocks.{n}.attn.hook_z"]) for n in (1,)]
        hooks = [(f"blocks.{layer}.attn.hook_z", silenced), *(later if layer == 0 else [])]
        cost = study.logit_difference - logit_difference_under(bridge, study, example.prompt, hooks)
        assert cost != 0
        assert float(study.direct[layer, head]) == pytest.approx(cost, abs=1e-4)


def test_layer_and_head_alone_choose_the_best_of_the_rest(bridge, study, example):
    found = dcinterp.case_study(bridge, example, layer=0, attribution=study.attribution, kind="zero")
    there = study.attribution.by_position[0, :, -1]
    if float(there.max()) > 0:
        assert float(found.direct[0, found.head]) == float(found.direct[0][there >= 0.1 * there.max()].max())
    assert found.layer == 0
    assert dcinterp.case_study(bridge, example, head=3, attribution=study.attribution, kind="zero").head == 3


def test_the_effect_of_shared_attention_is_that_of_its_line(bridge, study, example):
    head = study.head
    words = (study.attribution.target, study.attribution.foil)
    effect = dcinterp.intervene(bridge, example.prompt, study.edge_line, *words)
    assert effect.effect != 0
    assert float(study.shared_effect[study.head_from]) == pytest.approx(effect.effect, abs=1e-4)
    edge = f"edge {study.layer}.post.added.{study.head_from}>{head} zero"
    effect = dcinterp.intervene(bridge, example.prompt, edge, *words)
    assert float(study.shared_effect_everywhere[study.head_from]) == pytest.approx(effect.effect, abs=1e-4)
    for head_from in (head_from for head_from in range(8) if head_from != head):
        shared = float(
            study.breakdown.shared("key")[head_from, head] + study.breakdown.shared("query")[head_from, head]
        )

        def take(attention, hook, shared=shared):
            attention = attention.clone()
            attention[0, head, -1, study.key] -= shared
            return attention

        taken = logit_difference_under(
            bridge, study, example.prompt, [(f"blocks.{study.layer}.attn.post.hook_out", take)]
        )
        assert float(study.shared_effect[head_from]) == pytest.approx(study.logit_difference - taken, abs=1e-4)
    assert float(study.shared_effect[head]) == 0


def test_a_wrong_answer_is_said_and_a_right_one_too(bridge, study, example):
    first, *others = (token for token in study.prediction.top_tokens if token.isalpha())
    for answer, holds in ((first, first == study.prediction.top_tokens[0]), (others[0], False)):
        found = dcinterp.case_study(bridge, example.prompt, answer, attribution=study.attribution, kind="zero")
        assert found.step("answer").holds == holds
        assert ("wrong" in found.step("answer").sentence) != holds


def test_a_head_that_attends_by_itself_is_said(make_bridge, example):
    bridge = make_bridge()
    with torch.no_grad():
        for name, parameter in bridge.original_model.named_parameters():
            if ".post" in name:
                parameter.zero_()
    study = dcinterp.case_study(bridge, example, kind="zero")
    most = int(study.rows.weights[study.head].argmax())
    again = {"layer": study.layer, "head": study.head, "attribution": study.attribution}
    study = dcinterp.case_study(bridge, example, key=most, **again, kind="zero")
    assert "by itself" in study.step("source").sentence
    assert "No other head shares" in study.step("sharing").sentence
    assert "No head shares" in study.summary
    assert "its own attention" in study.summary
    assert not study.step("source").holds


def test_a_source_that_the_head_does_not_read_is_said(bridge, study, example):
    composed = study.rows.composed[study.head].abs() + study.rows.weights[study.head]
    unread = int(composed.argmin())
    again = {"layer": study.layer, "head": study.head, "attribution": study.attribution}
    study = dcinterp.case_study(bridge, example, key=unread, **again, kind="zero")
    assert "hardly attends" in study.step("source").sentence
    assert "hardly attends" in study.summary
    assert not study.step("source").holds


def test_a_plain_transformer_has_a_case_study_without_sharing(twin, example):
    study = dcinterp.case_study(twin, example, kind="zero")
    assert study.breakdown is None
    assert study.head_from is None
    assert study.edge_line is None
    assert "not composed" in study.step("source").sentence
    assert "not composed" in study.summary
    unread = int(study.rows.weights[study.head].argmin())
    again = dcinterp.case_study(twin, example, layer=study.layer, head=study.head, key=unread, kind="zero")
    assert float(again.rows.weights[study.head, unread]) < 0.1
    assert "hardly attends" in again.summary


def planted_sharing(bridge, study, key, size):
    """Make one head share so much attention to one token with another, by the query's dynamic weights alone."""
    head_from, head, at = study.head_from, study.head, f"blocks.{study.layer}.attn.post.hook_"

    def look(attention, hook):
        attention = attention.clone()
        attention[:, head_from, -1] = 0
        attention[:, head_from, -1, key] = 1
        return attention

    def only(weight, hook, at, value):
        weight = torch.zeros_like(weight)
        weight[:, -1, 0, at] = value
        return weight

    def none(weight, hook):
        return torch.zeros_like(weight)

    gathers = (f"{at}w_q1", lambda weight, hook: only(weight, hook, head_from, 1.0))
    shares = (f"{at}w_q2", lambda weight, hook: only(weight, hook, head, size))
    return [(f"{at}in", look), gathers, shares, *((f"{at}w_{name}", none) for name in ("qg", "kg", "k1", "k2"))]


@pytest.mark.parametrize("size", [1.5, -1.5])
def test_the_summary_names_planted_sharing_and_its_effect(bridge, study, example, size):
    with bridge.hooks(fwd_hooks=planted_sharing(bridge, study, study.key, size)):
        found = dcinterp.case_study(bridge, example, layer=study.layer, head=study.head, key=study.key, kind="zero")
    assert found.head_from == study.head_from
    assert found.side == "query"
    verb = "shares its attention to" if size > 0 else "takes 1.50 of attention"
    assert f"Head {study.head_from} {verb}" in found.summary
    assert f"{size:+.2f} through the query projection)" in found.summary
    sentence = found.step("sharing").sentence
    assert f"{size:+.2f} through the query projection" in sentence
    effect = float(found.shared_effect[found.head_from])
    verb = "reduces" if round(effect, 2) > 0 else "increases" if round(effect, 2) else "changes"
    assert f"Having this attention set to zero {verb} the logit difference by {abs(effect):.2f}" in sentence
    without = found.logit_difference - float(found.shared_effect[found.head_from])
    assert f"from {found.logit_difference:.2f} to {without:.2f} logits" in found.summary
    # All attention that is shared here goes to one token by one branch: with it, all composition of this entry goes.
    assert without == pytest.approx(found.logit_difference_without, abs=1e-4)


def test_effects_are_small_or_large_against_the_logit_difference():
    from dcinterp.analysis.case_study.wording import matters, reduces, share_of

    assert share_of(0.5, 10) == " (5% of the difference)"
    assert share_of(-0.001, 10) == " (0% of the difference)"
    assert share_of(30, 10) == " (3.0 times the difference)"
    assert share_of(0.5, -1) == ""
    assert reduces(1.34, 10) == "reduces it by 1.34 (13% of the difference)"
    assert reduces(-0.5, 10, "the sum") == "increases the sum by 0.50 (5% of the difference)"
    assert reduces(-0.001, 0) == "changes it by 0.00"
    assert matters(1.0, 10)
    assert matters(0.951, 10), "which is printed as 10%"
    assert not matters(0.949, 10)
    assert not matters(-0.1, -1)


@pytest.mark.parametrize(
    ("attributed", "measured", "said"),
    [
        (2.0, 2.0, ""),
        (2.0, 0.4, "a factor of 5.0"),
        (2.0, -1.0, "disagree in sign"),
        (2.03, 1.0, ""),
        (0.05, -0.05, ""),
    ],
)
def test_an_attribution_far_from_the_measurement_is_said(attributed, measured, said):
    from dcinterp.analysis.case_study.steps import apart

    assert said in apart(attributed, measured)
    assert bool(apart(attributed, measured)) == bool(said)


def test_a_bare_prompt_needs_no_answer(bridge, prompt):
    study = dcinterp.case_study(bridge, prompt, kind="zero")
    assert study.attribution.target == study.prediction.top_tokens[0]
    assert study.key == int(study.rows.composed[study.head].abs().argmax())


def test_the_source_of_a_multi_word_item_is_its_last_token(bridge):
    for seed in range(40):
        example = synthetic_tasks.generate("task26", 1, seed=seed, examples=1)[0].examples[0]
        item = example.facts[example.source].item
        tokens = bridge.to_str_tokens(example.prompt)
        assert tokens[source_position(bridge, example)].strip() == synthetic_tasks.words(item)[-1]


def plant_copy(bridge, layer, head, word):
    """Give a head an OV circuit that copies one word: it reads that word's own normed vector and writes its logit."""
    model = bridge.original_model
    token = bridge.tokenizer.convert_tokens_to_ids(word)
    with torch.no_grad():
        attention = model.model.layers[layer].self_attn
        x = bridge.embed(torch.tensor([[token]]))
        if layer:
            x = x + bridge.blocks[0].mlp(bridge.blocks[0].ln2(x))
        direction = torch.nn.functional.normalize(bridge.blocks[layer].ln1(x)[0, 0], dim=0)
        attention.v_proj.weight[16 * head] = direction
        attention.o_proj.weight[:, 16 * head] = 30 * torch.nn.functional.normalize(model.lm_head.weight[token], dim=0)


def test_names_the_planted_transformation(make_bridge, example):
    bridge = make_bridge()
    word = synthetic_tasks.words(example.facts[example.source].item)[-1]
    plant_copy(bridge, 1, 2, word)
    study = dcinterp.case_study(
        bridge, example.prompt, word, layer=1, head=2, key=source_position(bridge, example), kind="zero"
    )
    assert int(study.copy_rank[1, 2]) == 1
    assert "(rank 1 of" in study.step("transformation").sentence
    assert "the word itself" in study.step("transformation").sentence
    assert study.step("transformation").holds
    wrong = dcinterp.case_study(bridge, example, layer=1, head=2, attribution=study.attribution, kind="zero")
    assert "does not promote the answer" in wrong.step("transformation").sentence
    assert f'but "{word}", the word itself (rank 1)' in wrong.step("transformation").sentence
    assert not wrong.step("transformation").holds


def test_finds_the_gate_that_silences_a_copying_head(make_bridge, example):
    bridge = make_bridge()
    word = synthetic_tasks.words(example.facts[example.source].item)[-1]
    plant_copy(bridge, 1, 2, word)
    key = source_position(bridge, example)
    look = [("blocks.1.attn.post.hook_in", lambda a, hook: _looking(a, 2, key, 0.9))]
    with bridge.hooks(fwd_hooks=look):
        study = dcinterp.case_study(bridge, example, kind="zero")
        assert float(study.before[1, 2]) == pytest.approx(0.9)
        gates = float(study.query_gate[1, 2] + study.key_gate[1, 2])
        silent = "no gate silences it" in study.step("gate").sentence
        assert silent == (round(100 * -gates / 0.9) < 10)
    closed = [
        *look,
        ("blocks.1.attn.post.hook_w_qg", lambda w, hook: torch.full_like(w, -1.0)),
        *((f"blocks.1.attn.post.hook_w_{n}", lambda w, hook: torch.zeros_like(w)) for n in ("kg", "q1", "k1")),
    ]
    with bridge.hooks(fwd_hooks=closed):
        study = dcinterp.case_study(bridge, example, kind="zero")
    assert float(study.query_gate[1, 2]) == pytest.approx(-0.9)
    assert "Head 2 of layer 1 copies" in study.step("gate").sentence
    assert "the query gate adds -0.90" in study.step("gate").sentence
    # On a random model the word that is copied competes with the answer a little, or not at all.
    assert study.step("gate").holds == ("matters little" not in study.step("gate").sentence)


def _looking(attention, head, key, weight):
    attention = attention.clone()
    attention[0, head, -1, key] = weight
    return attention


def test_every_head_at_the_source_is_what_the_taps_hold(bridge, study, example):
    _, cache = bridge.run_with_cache(example.prompt)
    for layer in range(2):
        at = f"blocks.{layer}.attn."
        for name, tap in (("before", "post.hook_in"), ("after", "hook_pattern"), ("key_gate", "post.hook_o_kg")):
            assert torch.equal(getattr(study, name)[layer], cache[at + tap][0, :, -1, study.key])


def test_what_the_composed_attention_is_worth_is_measured(bridge, study, example):
    own = float(study.breakdown.o_b[study.head])

    def put_back(z, hook):
        """The same by the values: what the head reads changes by (own - composed) times the source's value."""
        v = kept["v"][:, study.key, study.head]
        z = z.clone()
        z[:, -1, study.head] += (own - float(study.breakdown.out[study.head])) * v
        return z

    kept = {}
    at = f"blocks.{study.layer}.attn.hook_"
    hooks = [(at + "v", lambda v, hook: kept.update(v=v)), (at + "z", put_back)]
    assert study.logit_difference_without == pytest.approx(
        logit_difference_under(bridge, study, example.prompt, hooks), abs=1e-4
    )
    assert study.logit_difference == pytest.approx(study.attribution.metric, abs=1e-4)


def test_saved_and_read_back_with_its_steps(bridge, study, example, tmp_path):
    again = dcinterp.load_result(study.save(tmp_path / "study"))
    assert again.steps == study.steps
    assert again.summary == study.summary
    assert again.table()["sentence"][0] == study.summary
    assert again.step("head").sentence == study.step("head").sentence
    assert torch.equal(again.attribution.scores, study.attribution.scores)
    assert again.breakdown.shared().equal(study.breakdown.shared())
    with pytest.raises(UserError, match="transformation"):
        study.step("transform")


@pytest.mark.parametrize("family", ["gpt2", "llama", "neox"])
def test_any_other_model_has_a_case_study(foreign, family):
    study = dcinterp.case_study(foreign(family), "Ruth has a violin. Who has the", "Ruth", key=1, kind="zero")
    assert study.breakdown is None
    assert not study.holds
    assert "not composed" in study.step("source").sentence


def test_parts_computed_before_are_used_again_and_change_nothing(bridge, example, study, monkeypatch):
    whole = dcinterp.case_study(bridge, example, layer=1, head=2, kind="zero")

    def again(*arguments, **named):
        raise AssertionError("computed again")

    for name in ("attribute_heads", "strongest_edge"):
        monkeypatch.setattr(f"dcinterp.analysis.case_study.case_study.{name}", again)
    monkeypatch.setattr(Ablator, "direct", again)
    parts = {"attribution": study.attribution, "direct": study.direct, "strongest": study.strongest}
    assert dcinterp.case_study(bridge, example, layer=1, head=2, **parts, kind="zero") == whole


def test_of_a_source_of_several_tokens_the_one_that_the_head_reads_is_followed(bridge):
    several = (synthetic_tasks.generate("task26", 1, seed=seed, examples=1)[0].examples[0] for seed in range(40))
    example = next(example for example in several if len(source_positions(bridge, example)) == 2)
    for read in source_positions(bridge, example):
        with bridge.hooks(
            fwd_hooks=[("blocks.1.attn.post.hook_out", lambda a, hook, at=read: _looking(a, 2, at, 5.0))]
        ):
            assert dcinterp.case_study(bridge, example, layer=1, head=2, kind="zero").key == read


def test_a_largest_weight_below_zero_is_not_attending(bridge, study, example):
    unread = int((study.rows.composed[study.head].abs() + study.rows.weights[study.head]).argmin())
    other = next(at for at in range(4) if at != unread)
    name = f"blocks.{study.layer}.attn.post.hook_out"
    with bridge.hooks(fwd_hooks=[(name, lambda a, hook: _looking(a, study.head, other, -5.0))]):
        found = dcinterp.case_study(bridge, example, layer=study.layer, head=study.head, key=unread, kind="zero")
    for said in (found.summary, found.step("source").sentence):
        assert f'weight is negative, on "{study.rows.tokens[other]}" (position {other}, -5.00)' in said
        assert "attends most to" not in said


def test_the_logit_difference_without_the_layers_composition_is_measured(bridge, study, example):
    own = {}
    hooks = [
        (f"blocks.{study.layer}.attn.post.hook_in", lambda a, hook: own.update(attention=a)),
        (f"blocks.{study.layer}.attn.post.hook_out", lambda a, hook: own["attention"]),
    ]
    logit_difference = logit_difference_under(bridge, study, example.prompt, hooks)
    assert abs(logit_difference - study.logit_difference) > 1e-4
    assert study.logit_difference_uncomposed == pytest.approx(logit_difference, abs=1e-4)
    assert f"the logit difference would be {logit_difference:+.2f} instead of" in study.step("sharing").sentence


def test_a_head_with_a_larger_score_is_named(study):
    top = study.attribution.best
    named = f"Head {top[1]} of layer {top[0]} has the largest attribution score"
    assert (named in study.step("head").sentence) == (top != (study.layer, study.head))


def test_the_former_name_of_a_step_still_works(study):
    from dataclasses import replace

    with pytest.warns(DeprecationWarning, match="the step lender is called sharing now"):
        assert study.step("lender") == study.step("sharing")
    old = replace(study, steps=tuple(("lender", *step[1:]) if step[0] == "sharing" else step for step in study.steps))
    assert old.step("sharing") == study.step("sharing")


def test_a_model_of_one_head_shares_with_nobody(make_bridge, example):
    study = dcinterp.case_study(make_bridge(num_attention_heads=1), example, kind="zero")
    assert "No other head shares a notable part" in next(s.sentence for s in study.steps if s.name == "sharing")


def test_a_model_composed_before_the_softmax_alone_is_not_called_uncomposed(make_bridge, example):
    study = dcinterp.case_study(make_bridge(compose_stages=("pre",)), example, kind="zero")
    assert "Attention is not composed after the softmax in this model" in study.summary


def test_a_static_map_is_said_to_be_in_what_stands_before_composition(make_bridge, example):
    with_map = dcinterp.case_study(make_bridge(compose_static=True), example, kind="zero")
    assert any("a map that is the same for all tokens" in said for said in with_map.warnings())
    without = dcinterp.case_study(make_bridge(), example, kind="zero")
    assert not any("a map that is the same for all tokens" in said for said in without.warnings())


def test_line_breaks_around_an_example_do_not_move_its_source(bridge, example):
    """The tokenizer of GPT-2's kind reads a line break as a token, that of the tasks as none."""
    inside = source_positions(bridge, example)
    before = bridge.to_tokens("\n" + example.prompt).shape[1] - bridge.to_tokens(example.prompt).shape[1]
    assert source_positions(bridge, example, "\n") == [at + before for at in inside]
    study, moved = (
        dcinterp.case_study(bridge, prompt, example.answer, key=at, kind="mean", reference="task2 n=4")
        for prompt, at in ((example.prompt, inside[-1]), (f"\n{example.prompt}\n", inside[-1] + before))
    )
    assert study.control is not None
    assert moved.control is not None
    assert study.control.source is moved.control.source is True


def test_a_static_map_is_not_called_the_heads_own_attention(make_bridge, example):
    bridge = make_bridge("tiny-dcformer++", compose="static")
    study = dcinterp.case_study(bridge, example, kind="zero")
    said = " ".join([study.summary, *(study.step(name).sentence for name in ("source", "sharing"))])
    assert "before composition" not in said
    assert "its own attention" not in said
    assert "by itself" not in said
    assert "With all that composition adds" not in said, "nothing of it could be ablated"


def test_composition_of_scores_alone_is_not_called_none(make_bridge, example):
    study = dcinterp.case_study(make_bridge(compose_stages=["pre"]), example, kind="zero")
    sharing = study.step("sharing").sentence
    assert sharing.startswith("None after the softmax, where this model composes nothing; heads share their scores")
    assert "(pre: its scores)" in sharing
    assert "without composition there are no gates" not in study.step("gate").sentence


def test_resampling_without_the_position_is_said(make_bridge, example):
    study = dcinterp.case_study(make_bridge(), example, kind="resample", reference=["< Ruth has a lime.", "< Ruth"])
    assert study.unmatched > 0
    assert any("no other prompt has the same position" in said for said in study.remarks())


def test_another_right_answer_is_neither_wrong_nor_a_foil(make_bridge):
    rows = synthetic_tasks.generate("task40", 60, seed=0, examples=1, split="held-out")
    both = next(row.examples[0] for row in rows if len(row.examples[0].accepted) > 1)
    bridge = make_bridge()
    other = next(word for word in both.accepted if word != both.answer)
    token = bridge.tokenizer.convert_tokens_to_ids(other)

    def prefer(logits, hook):  # a model that gives the other right answer
        logits[..., token] += 100
        return logits

    with bridge.hooks(fwd_hooks=[("unembed.hook_out", prefer)]):
        study = dcinterp.case_study(bridge, both, kind="zero", contrast="runner-up")
    assert study.prediction.top_tokens[0] == other
    assert study.attribution.foil not in both.accepted
    assert f'The model answers "{other}"' in study.steps[0].sentence
    assert "which is right, too" in study.steps[0].sentence
