"""The five-step story: its evidence is that of the analyses, and it says when it does not hold."""

from __future__ import annotations

import pytest
import torch

import dcinterp
import synthetic_tasks
from dcinterp import UserError
from dcinterp.analysis.case_study import source_position
from dcinterp.analysis.case_study.case_study import source_positions


@pytest.fixture(scope="module")
def example():
    return synthetic_tasks.generate("task2", 1, seed=3, examples=1)[0].examples[0]


@pytest.fixture(scope="module")
def story(make_bridge, example):
    """That of the same weights as `bridge` has."""
    return dcinterp.case_study(make_bridge(), example)


def lead_under(bridge, story, prompt, hooks):
    """The answer's lead under hooks, without any code of the story."""
    target, foil = (
        bridge.tokenizer.convert_tokens_to_ids(w) for w in (story.attribution.target, story.attribution.foil)
    )
    with torch.no_grad():
        logits = bridge.run_with_hooks(bridge.to_tokens(prompt), fwd_hooks=hooks)[0, -1]
    return float(logits[target] - logits[foil])


def test_follows_the_head_that_writes_most_directly_to_the_source(bridge, story, example):
    there = story.attribution.by_position[:, :, -1]
    candidates = there >= 0.1 * there.max()
    assert candidates[story.layer, story.head]
    assert float(story.direct[story.layer, story.head]) == float(story.direct[candidates].max())
    assert "writes most directly" in story.step("head").sentence
    assert story.prediction.tokens[story.key] in synthetic_tasks.words(example.facts[example.source].item)
    assert [step.title[-1] for step in story.steps] == ["?"] * 7
    assert story.breakdown.key == story.key


def test_numbers_in_the_sentences_are_those_of_the_evidence(bridge, example):
    story = dcinterp.case_study(bridge, example, layer=1, head=2)
    assert f"give it {float(story.attribution.by_position[1, 2, -1]):+.2f}" in story.step("head").sentence
    assert f"to {story.logit_difference - float(story.direct[1, 2]):.2f} logits" in story.step("head").sentence
    assert f"it costs {float(story.attribution.ablation[1, 2]):+.2f}" in story.step("head").sentence
    assert f"{float(story.breakdown.out[2]):.2f}" in story.step("source").sentence
    assert story.head_from != 2


def test_a_direct_effect_is_what_goes_with_the_head_while_later_heads_stay(bridge, story, example):
    _, cache = bridge.run_with_cache(example.prompt)
    for layer, head in ((0, 1), (0, 3), (1, 2)):

        def silenced(z, hook, head=head):
            z = z.clone()
            z[0, -1, head] = 0
            return z

        later = [(f"blocks.{n}.attn.hook_z", lambda z, hook, n=n: cache[f"blocks.{n}.attn.hook_z"]) for n in (1,)]
        hooks = [(f"blocks.{layer}.attn.hook_z", silenced), *(later if layer == 0 else [])]
        cost = story.logit_difference - lead_under(bridge, story, example.prompt, hooks)
        assert cost != 0
        assert float(story.direct[layer, head]) == pytest.approx(cost, abs=1e-4)


def test_layer_and_head_alone_choose_the_best_of_the_rest(bridge, story, example):
    told = dcinterp.case_study(bridge, example, layer=0, attribution=story.attribution)
    there = story.attribution.by_position[0, :, -1]
    if float(there.max()) > 0:
        assert float(told.direct[0, told.head]) == float(told.direct[0][there >= 0.1 * there.max()].max())
    assert told.layer == 0
    assert dcinterp.case_study(bridge, example, head=3, attribution=story.attribution).head == 3


def test_what_a_loan_is_worth_is_the_effect_of_its_line(bridge, story, example):
    head = story.head
    words = (story.attribution.target, story.attribution.foil)
    effect = dcinterp.intervene(bridge, example.prompt, story.edge_line, *words)
    assert effect.effect != 0
    assert float(story.shared_effect[story.head_from]) == pytest.approx(effect.effect, abs=1e-4)
    edge = f"edge {story.layer}.post.added.{story.head_from}>{head} zero"
    effect = dcinterp.intervene(bridge, example.prompt, edge, *words)
    assert float(story.shared_effect_everywhere[story.head_from]) == pytest.approx(effect.effect, abs=1e-4)
    for head_from in (head_from for head_from in range(8) if head_from != head):
        shared = float(
            story.breakdown.shared("key")[head_from, head] + story.breakdown.shared("query")[head_from, head]
        )

        def take(attention, hook, shared=shared):
            attention = attention.clone()
            attention[0, head, -1, story.key] -= shared
            return attention

        taken = lead_under(bridge, story, example.prompt, [(f"blocks.{story.layer}.attn.post.hook_out", take)])
        assert float(story.shared_effect[head_from]) == pytest.approx(story.logit_difference - taken, abs=1e-4)
    assert float(story.shared_effect[head]) == 0


def test_a_wrong_answer_is_said_and_a_right_one_too(bridge, story, example):
    first, *others = (token for token in story.prediction.top_tokens if token.isalpha())
    for answer, holds in ((first, first == story.prediction.top_tokens[0]), (others[0], False)):
        told = dcinterp.case_study(bridge, example.prompt, answer, attribution=story.attribution)
        assert told.step("answer").holds == holds
        assert ("wrong" in told.step("answer").sentence) != holds


def test_a_head_that_attends_by_itself_is_said(make_bridge, example):
    bridge = make_bridge()
    with torch.no_grad():
        for name, parameter in bridge.original_model.named_parameters():
            if ".post" in name:
                parameter.zero_()
    story = dcinterp.case_study(bridge, example)
    most = int(story.rows.weights[story.head].argmax())
    again = {"layer": story.layer, "head": story.head, "attribution": story.attribution}
    story = dcinterp.case_study(bridge, example, key=most, **again)
    assert "by itself" in story.step("source").sentence
    assert "No other head" in story.step("lender").sentence
    assert "No head lends" in story.summary
    assert "its own attention" in story.summary
    assert not story.step("source").holds


def test_a_source_that_the_head_does_not_read_is_said(bridge, story, example):
    composed = story.rows.composed[story.head].abs() + story.rows.weights[story.head]
    unread = int(composed.argmin())
    again = {"layer": story.layer, "head": story.head, "attribution": story.attribution}
    story = dcinterp.case_study(bridge, example, key=unread, **again)
    assert "hardly attends" in story.step("source").sentence
    assert "hardly attends" in story.summary
    assert not story.step("source").holds


def test_a_plain_transformer_has_a_story_without_lending(twin, example):
    story = dcinterp.case_study(twin, example)
    assert story.breakdown is None
    assert story.head_from is None
    assert story.edge_line is None
    assert "not composed" in story.step("source").sentence
    assert "not composed" in story.summary
    unread = int(story.rows.weights[story.head].argmin())
    again = dcinterp.case_study(twin, example, layer=story.layer, head=story.head, key=unread)
    assert float(again.rows.weights[story.head, unread]) < 0.1
    assert "hardly attends" in again.summary


def planted_loan(bridge, story, key, size):
    """Make one head lend another so much attention to one token, by the query's dynamic weights alone."""
    head_from, head, at = story.head_from, story.head, f"blocks.{story.layer}.attn.post.hook_"

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
def test_the_verdict_names_a_planted_loan_and_what_it_is_worth(bridge, story, example, size):
    with bridge.hooks(fwd_hooks=planted_loan(bridge, story, story.key, size)):
        told = dcinterp.case_study(bridge, example, layer=story.layer, head=story.head, key=story.key)
    assert told.head_from == story.head_from
    assert told.side == "query"
    verb = "lends" if size > 0 else "takes 1.50 of attention"
    assert f"Head {story.head_from} {verb}" in told.summary
    assert f"{size:+.2f} through the query projection)" in told.summary
    without = told.logit_difference - float(told.shared_effect[told.head_from])
    assert f"from {told.logit_difference:.2f} to {without:.2f} logits" in told.summary
    # All that is lent here is lent to one token by one branch: with it, all composition of this entry goes.
    assert without == pytest.approx(told.logit_difference_without, abs=1e-4)


def test_effects_are_small_or_large_against_the_lead():
    from dcinterp.analysis.case_study.steps import matters, share_of

    assert share_of(0.5, 10) == " (5% of the lead)"
    assert share_of(-0.001, 10) == " (0% of the lead)"
    assert share_of(30, 10) == " (3.0 times the lead)"
    assert share_of(0.5, -1) == ""
    assert matters(1.0, 10)
    assert not matters(0.99, 10)
    assert not matters(-0.1, -1)


def test_an_attribution_far_from_the_measurement_is_said(bridge, story, example):
    from dataclasses import replace

    layer, head = story.layer, story.head
    for factor, said in ((1.0, ""), (0.2, "5.0 times apart"), (-1.0, "disagree in sign")):
        scores = replace(story.attribution, ablation=story.attribution.scores * factor)
        sentence = (
            dcinterp.case_study(bridge, example, attribution=scores, layer=layer, head=head).step("head").sentence
        )
        assert said in sentence
        assert ("apart" in sentence or "disagree" in sentence) == bool(said)


def test_a_bare_prompt_needs_no_answer(bridge, prompt):
    story = dcinterp.case_study(bridge, prompt)
    assert story.attribution.target == story.prediction.top_tokens[0]
    assert story.key == int(story.rows.composed[story.head].abs().argmax())


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
    story = dcinterp.case_study(bridge, example.prompt, word, layer=1, head=2, key=source_position(bridge, example))
    assert int(story.copy_rank[1, 2]) == 1
    assert "(rank 1 of" in story.step("transformation").sentence
    assert "the word itself" in story.step("transformation").sentence
    assert story.step("transformation").holds
    wrong = dcinterp.case_study(bridge, example, layer=1, head=2, attribution=story.attribution)
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
        story = dcinterp.case_study(bridge, example)
        assert float(story.before[1, 2]) == pytest.approx(0.9)
        gates = float(story.query_gate[1, 2] + story.key_gate[1, 2])
        silent = "nothing silences it" in story.step("gate").sentence
        assert silent == (gates > -0.09)
    closed = [
        *look,
        ("blocks.1.attn.post.hook_w_qg", lambda w, hook: torch.full_like(w, -1.0)),
        ("blocks.1.attn.post.hook_w_kg", lambda w, hook: torch.zeros_like(w)),
    ]
    with bridge.hooks(fwd_hooks=closed):
        story = dcinterp.case_study(bridge, example)
    assert float(story.query_gate[1, 2]) == pytest.approx(-0.9)
    assert "Head 2 of layer 1 copies" in story.step("gate").sentence
    assert "the query gate adds -0.90" in story.step("gate").sentence
    assert story.step("gate").holds


def _looking(attention, head, key, weight):
    attention = attention.clone()
    attention[0, head, -1, key] = weight
    return attention


def test_every_head_at_the_source_is_what_the_taps_hold(bridge, story, example):
    _, cache = bridge.run_with_cache(example.prompt)
    for layer in range(2):
        at = f"blocks.{layer}.attn."
        for name, tap in (("before", "post.hook_in"), ("after", "hook_pattern"), ("key_gate", "post.hook_o_kg")):
            assert torch.equal(getattr(story, name)[layer], cache[at + tap][0, :, -1, story.key])


def test_what_the_composed_attention_is_worth_is_measured(bridge, story, example):
    own = float(story.breakdown.o_b[story.head])

    def put_back(z, hook):
        """The same by the values: what the head reads changes by (own - composed) times the source's value."""
        v = kept["v"][:, story.key, story.head]
        z = z.clone()
        z[:, -1, story.head] += (own - float(story.breakdown.out[story.head])) * v
        return z

    kept = {}
    at = f"blocks.{story.layer}.attn.hook_"
    hooks = [(at + "v", lambda v, hook: kept.update(v=v)), (at + "z", put_back)]
    assert story.logit_difference_without == pytest.approx(lead_under(bridge, story, example.prompt, hooks), abs=1e-4)
    assert story.logit_difference == pytest.approx(story.attribution.metric, abs=1e-4)


def test_saved_and_read_back_with_its_steps(bridge, story, example, tmp_path):
    again = dcinterp.load_result(story.save(tmp_path / "story"))
    assert again.steps == story.steps
    assert again.summary == story.summary
    assert again.table()["sentence"][0] == story.summary
    assert again.step("head").sentence == story.step("head").sentence
    assert torch.equal(again.attribution.scores, story.attribution.scores)
    assert again.breakdown.shared().equal(story.breakdown.shared())
    with pytest.raises(UserError, match="transformation"):
        story.step("transform")


@pytest.mark.parametrize("family", ["gpt2", "llama", "neox"])
def test_any_other_model_has_a_story(foreign, family):
    story = dcinterp.case_study(foreign(family), "Ruth has a violin. Who has the", "Ruth", key=1)
    assert story.breakdown is None
    assert not story.holds
    assert "not composed" in story.step("source").sentence


def test_parts_computed_before_are_used_again_and_change_nothing(bridge, example, story, monkeypatch):
    whole = dcinterp.case_study(bridge, example, layer=1, head=2)

    def again(*arguments, **named):
        raise AssertionError("computed again")

    for name in ("attribute_heads", "direct_effects"):
        monkeypatch.setattr(f"dcinterp.analysis.case_study.case_study.{name}", again)
    parts = {"attribution": story.attribution, "direct": story.direct}
    assert dcinterp.case_study(bridge, example, layer=1, head=2, **parts) == whole


def test_of_a_source_of_several_tokens_the_one_that_the_head_reads_is_followed(bridge):
    several = (synthetic_tasks.generate("task26", 1, seed=seed, examples=1)[0].examples[0] for seed in range(40))
    example = next(example for example in several if len(source_positions(bridge, example)) == 2)
    for read in source_positions(bridge, example):
        with bridge.hooks(
            fwd_hooks=[("blocks.1.attn.post.hook_out", lambda a, hook, at=read: _looking(a, 2, at, 5.0))]
        ):
            assert dcinterp.case_study(bridge, example, layer=1, head=2).key == read


def test_a_largest_weight_below_zero_is_no_looking(bridge, story, example):
    unread = int((story.rows.composed[story.head].abs() + story.rows.weights[story.head]).argmin())
    other = next(at for at in range(4) if at != unread)
    name = f"blocks.{story.layer}.attn.post.hook_out"
    with bridge.hooks(fwd_hooks=[(name, lambda a, hook: _looking(a, story.head, other, -5.0))]):
        told = dcinterp.case_study(bridge, example, layer=story.layer, head=story.head, key=unread)
    for said in (told.summary, told.step("source").sentence):
        assert f'a negative one, on "{story.rows.tokens[other]}" (position {other}, -5.00)' in said
        assert "looks most at" not in said


def test_the_lead_without_the_layers_composition_is_measured(bridge, story, example):
    own = {}
    hooks = [
        (f"blocks.{story.layer}.attn.post.hook_in", lambda a, hook: own.update(attention=a)),
        (f"blocks.{story.layer}.attn.post.hook_out", lambda a, hook: own["attention"]),
    ]
    logit_difference = lead_under(bridge, story, example.prompt, hooks)
    assert abs(logit_difference - story.logit_difference) > 1e-4
    assert story.logit_difference_uncomposed == pytest.approx(logit_difference, abs=1e-4)
    assert f"would lead by {logit_difference:+.2f} logits" in story.step("lender").sentence


def test_a_head_with_a_larger_score_is_named(story):
    top = story.attribution.best
    named = f"Head {top[1]} of layer {top[0]} has the largest score"
    assert (named in story.step("head").sentence) == (top != (story.layer, story.head))
