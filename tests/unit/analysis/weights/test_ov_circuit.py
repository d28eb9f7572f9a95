"""OV circuits against runs of the model on single words, on planted heads, and on other families of models."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import dcinterp
from dcinterp import UserError
from dcinterp.analysis.weights.ov_top_tokens import ov_ranks
from dcinterp.analysis.weights.ov_transformations import _against_chance, _by_value, _half, word_pairs

WORDS = ["violin", "beetle", "lime", "Ruth"]


def logits_of(result):
    """[word, d_vocab], from a result with all tokens."""
    return torch.zeros(result.top_ids.shape).scatter_(1, result.top_ids, result.logit)


def run_on_words(bridge, layer, ids):
    """What every head reads off each word in a real run: values [word, kv_head, d_head], attention before it off."""
    zero = [(f"blocks.{below}.hook_attn_out", lambda x, hook: x * 0) for below in range(layer)]
    if "hook_pos_embed" in bridge.hook_dict:
        zero.append(("hook_pos_embed", lambda x, hook: x * 0))
    kept = {}
    name = f"blocks.{layer}.attn.hook_v"
    with torch.no_grad():
        bridge.run_with_hooks(ids[:, None], fwd_hooks=[*zero, (name, lambda v, hook: kept.update(v=v.clone()))])
    v = kept["v"][:, 0]
    bias = getattr(bridge.blocks[layer].attn.v.original_component, "bias", None)
    return v if bias is None else v - bias.detach().view(v.shape[1:])


@pytest.mark.parametrize("preset", ["tiny-dcformer++", "tiny-transformer++", "tiny-dcpythia", "tiny-dcformer"])
@pytest.mark.parametrize("layer", [0, 1])
def test_is_what_the_head_writes_in_a_run_on_the_word_alone(make_bridge, preset, layer):
    bridge = make_bridge(preset)
    ids = torch.tensor([bridge.tokenizer.convert_tokens_to_ids(word) for word in WORDS])
    values = run_on_words(bridge, layer, ids)
    for head in (0, 5):
        result = dcinterp.ov_top_tokens(bridge, layer, head, WORDS, k=bridge.cfg.d_vocab)
        written = values[:, head] @ bridge.blocks[layer].attn.W_O[head] @ bridge.W_U
        assert torch.allclose(logits_of(result), written, atol=1e-4)
        assert (result.logit.diff(dim=1) <= 0).all()
        assert result.own_rank.tolist() == [int((row > row[i]).sum()) + 1 for row, i in zip(written, ids, strict=True)]


def test_layer_0_can_read_words_as_the_later_layers_do(make_bridge):
    """Through MLP 0 the heads of layer 0 read what a run gives to layer 1 when nothing attends before it."""
    bridge = make_bridge()
    ids = torch.tensor([bridge.tokenizer.convert_tokens_to_ids(word) for word in WORDS])
    kept = {}
    no_attention = ("blocks.0.hook_attn_out", lambda x, hook: x * 0)
    with torch.no_grad():
        out = ("blocks.0.hook_resid_post", lambda x, hook: kept.update(x=x.clone()))
        bridge.run_with_hooks(ids[:, None], fwd_hooks=[no_attention, out])
        read = bridge.blocks[0].ln1(kept["x"])[:, 0]
        attention = bridge.blocks[0].attn
        written = read @ attention.W_V[5] @ attention.W_O[5] @ bridge.W_U
    always, run = (
        dcinterp.ov_top_tokens(bridge, 0, 5, WORDS, k=bridge.cfg.d_vocab, mlp0=m) for m in ("always", "later")
    )
    assert torch.allclose(logits_of(always), written, atol=1e-4)
    assert not torch.allclose(logits_of(always), logits_of(run), atol=1e-2)
    with pytest.raises(UserError, match="mlp0"):
        dcinterp.ov_top_tokens(bridge, 0, 5, WORDS, mlp0="first")


@pytest.mark.parametrize("family", ["gpt2", "llama", "neox"])
@pytest.mark.parametrize("layer", [0, 1])
def test_other_families_and_shared_values(foreign, family, layer):
    bridge = foreign(family)
    ids = torch.tensor([bridge.tokenizer(f" {name}", add_special_tokens=False).input_ids for name in ("Ruth", "Mary")])
    assert ids.shape == (2, 1), "the tokenizer knows these names with the space before them"
    values = run_on_words(bridge, layer, ids[:, 0])
    for head in range(4):
        result = dcinterp.ov_top_tokens(bridge, layer, head, ["Ruth", "Mary"], k=10**6)
        shared = values[:, head * values.shape[1] // 4]
        written = shared @ bridge.blocks[layer].attn.W_O[head] @ bridge.W_U
        assert torch.allclose(logits_of(result), written, atol=1e-5)


def test_final_norm_brings_its_gain(make_bridge):
    bridge = make_bridge()
    with torch.no_grad():
        bridge.ln_final.original_component.weight.uniform_(0.1, 3)
    plain, normed = (
        logits_of(dcinterp.ov_top_tokens(bridge, 1, 2, WORDS, k=bridge.cfg.d_vocab, final_norm=on)) for on in (0, 1)
    )
    assert not torch.allclose(plain.argsort(1), normed.argsort(1))
    gain = bridge.ln_final.original_component.weight
    # Undo the unembedding to compare what was written, up to the size that the norm takes away.
    written, scaled = (torch.linalg.lstsq(bridge.W_U.T.double(), x.T.double()).solution for x in (plain, normed))
    ratio = scaled / (written * gain[:, None])
    assert torch.allclose(ratio, ratio[:1].expand_as(ratio), rtol=1e-2)


def planted(make_bridge, layer, head):
    """A plain model in which one head copies: W_V W_O projects on 16 directions, and the unembedding reads e_w back."""
    bridge = make_bridge("tiny-transformer++", initializer_range=0.02)
    directions = torch.linalg.qr(torch.randn(128, 16, generator=torch.Generator().manual_seed(0))).Q
    with torch.no_grad():
        attention = bridge.original_model.model.layers[layer].self_attn
        attention.v_proj.weight[16 * head : 16 * (head + 1)] = directions.T
        attention.o_proj.weight[:, 16 * head : 16 * (head + 1)] = directions
        embeddings = torch.nn.functional.normalize(bridge.embed.original_component.weight, dim=1)
        bridge.embed.original_component.weight.copy_(embeddings)
        bridge.unembed.original_component.weight.copy_(
            torch.nn.functional.normalize(embeddings @ directions, dim=1) @ directions.T
        )
    return bridge


@pytest.mark.parametrize("layer", [0, 1])
def test_finds_the_planted_copying_head_and_only_it(make_bridge, layer):
    scores = dcinterp.ov_transformations(planted(make_bridge, layer, 3), k=1, permutations=200)
    copy = scores.relations.index("copy")
    assert scores.best("copy") == (layer, 3)
    assert scores.score[layer, 3, copy] > 0.99
    assert scores.control[layer, 3, copy] < 0.05
    assert scores.above_control[layer, 3, copy]
    assert scores.held_out("copy") > 0.99
    others = scores.score[:, :, copy].clone()
    others[layer, 3] = 0
    assert others.max() < 0.1
    assert (scores.low <= scores.score).all()
    assert (scores.score <= scores.high).all()


def test_a_head_that_says_the_same_whatever_it_reads_is_no_better_than_its_control():
    always = torch.tensor([True, False, True, False, False]).expand(5, 5)
    score, control, control_low, control_high = _against_chance(always, 100, seed=0)
    assert [score, control, control_low, control_high] == pytest.approx([0.4] * 4)
    low, high, *_ = _by_value(always, [(word, (word,)) for word in range(5)])
    assert low < 0.4 < high


def test_pairs_of_one_value_are_worth_little_more_than_one():
    """20 instruments and 20 fruits, the instruments all right: two values say nearly nothing, 40 would say much."""
    hits = (torch.arange(40) < 20)[:, None].expand(40, 40)
    low, high, first, second = _by_value(hits, [(word, (word // 20,)) for word in range(40)])
    assert low < 0.05 < 0.95 < high
    assert (first, second) == (1, 0), "no value is in both halves"
    low, high, *_ = _by_value(hits, [(word, (word,)) for word in range(40)])
    assert 0.33 < low < 0.5 < high < 0.67
    assert all(math.isnan(end) for end in _by_value(hits, [(word, (0,)) for word in range(40)])[:2])


def test_halves_are_alike_in_size_and_share_no_value():
    groups = torch.tensor([0] * 7 + [1] * 4 + [2] * 3 + [3] * 2)
    half = _half(groups, torch.bincount(groups))
    assert int(half.sum()) in (7, 8, 9)
    assert not set(groups[half].tolist()) & set(groups[~half].tolist())


def test_the_best_of_many_heads_is_judged_on_what_it_was_not_chosen_on(make_bridge):
    """Heads of random weights: the best one of 16 looks better where it was chosen than elsewhere."""
    scores = dcinterp.ov_transformations(make_bridge("tiny-transformer++"), k=60, permutations=10)
    chosen = [float(scores.score[(*scores.best(name), r)]) for r, name in enumerate(scores.relations)]
    judged = [scores.held_out(name) for name in scores.relations]
    assert sum(judged) < sum(chosen)
    with pytest.raises(UserError, match="compute it again"):
        replace(scores, first_half=None).held_out("copy")


def test_the_control_by_hand():
    """Three words, each right for its own value alone: a random order keeps 1 of 3 in place on average."""
    score, control, _, _ = _against_chance(torch.eye(3, dtype=torch.bool), 4000, seed=0)
    assert score == 1
    assert control == pytest.approx(1 / 3, abs=0.02)


def test_scores_agree_with_the_top_tokens(bridge):
    scores = dcinterp.ov_transformations(bridge, relations=["obj->superclass"], k=10, permutations=10)
    pairs = [(word, values) for word, values in word_pairs("obj->superclass") if values != ("musical instrument",)]
    assert scores.pairs.tolist() == [len(pairs)]
    assert scores.skipped.tolist() == [3]
    assert "guitar -> musical instrument" in scores.warnings()[0]
    top = dcinterp.ov_top_tokens(bridge, 1, 4, [word for word, _ in pairs], k=10)
    hits = [bool({*values} & {*tokens}) for (_, values), tokens in zip(pairs, top.top_tokens, strict=True)]
    assert float(scores.score[1, 4, 0]) == pytest.approx(sum(hits) / len(hits))


def test_every_released_relation_is_scored_by_default(bridge):
    scores = dcinterp.ov_transformations(bridge, permutations=10)
    assert {name.split("->")[-1] for name in scores.relations} == {
        "superclass", "country", "capability", "opposite", "next", "prev", "copy"
    }  # fmt: skip


def test_ranks_of_targets_in_all_heads(bridge):
    ranks = ov_ranks(bridge, ["violin", "lime"], ["Ruth", "lime"])
    assert ranks.shape == (2, 8, 2)
    top = dcinterp.ov_top_tokens(bridge, 1, 6, ["violin", "lime"], k=bridge.cfg.d_vocab)
    assert top.top_tokens[0][int(ranks[1, 6, 0]) - 1] == "Ruth"
    assert int(ranks[1, 6, 1]) == int(top.own_rank[1])


def test_words_of_several_tokens(foreign):
    bridge = foreign("gpt2")
    with pytest.raises(UserError, match="choose 'first' for multi_token"):
        dcinterp.ov_top_tokens(bridge, 0, 0, ["xylophone"])
    result = dcinterp.ov_top_tokens(bridge, 0, 0, ["xylophone", "Ruth"], multi_token="first")
    assert len(result.warnings()) == 1
    assert '"xylophone" is' in result.warnings()[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layer": 7}, "layers 0..1"),
        ({"head": 8}, "heads 0..7"),
        ({"words": []}, "at least one"),
        ({"words": ["zebra"]}, "zebra"),
        ({"words": ["swim fins"]}, "2 tokens"),
        ({"words": [" "]}, "empty"),
        ({"k": 0}, "at least 1"),
        ({"multi_token": "guess"}, "choose from first, refuse"),
    ],
)
def test_refuses_with_a_sentence(bridge, arguments, message):
    with pytest.raises(UserError, match=message):
        dcinterp.ov_top_tokens(bridge, **({"layer": 0, "head": 0, "words": ["lime"]} | arguments))


def test_unknown_relations_are_refused(bridge):
    with pytest.raises(UserError, match="obj->superclass"):
        dcinterp.ov_transformations(bridge, relations=["superclass"])


@pytest.mark.parametrize(("preset", "options"), [("tiny-gated", {"elementwise": True}), ("tiny-differential", {})])
def test_a_gate_or_norm_behind_the_heads_is_that_of_the_word_alone(make_bridge, preset, options):
    bridge = make_bridge(preset, compose_options=options)
    ids = torch.tensor([bridge.tokenizer.convert_tokens_to_ids(word) for word in WORDS])
    kept = {}
    name = "blocks.1.attn.hook_z"
    silent = ("blocks.0.hook_attn_out", lambda x, hook: x * 0)
    with torch.no_grad():
        bridge.run_with_hooks(ids[:, None], fwd_hooks=[silent, (name, lambda z, hook: kept.update(z=z.clone()))])
        for head in range(bridge.cfg.n_heads):
            written = kept["z"][:, 0, head] @ bridge.blocks[1].attn.W_O[head] @ bridge.W_U
            found = dcinterp.ov_top_tokens(bridge, 1, head, WORDS, k=bridge.cfg.d_vocab, final_norm=False)
            torch.testing.assert_close(logits_of(found), written, atol=1e-5, rtol=1e-4)
