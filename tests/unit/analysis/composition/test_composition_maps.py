"""Static, single and averaged maps over heads, against the model's own composed attention and against plain loops."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

import dcinterp
from dcinterp import UserError, composition_map, load_result, mean_composition_map, static_composition_map
from dcinterp.mechanism.branches import FORMER_PARTS
from dcinterp.mechanism.dataset import read_questions

TEXT = "task2 n=3"


def test_the_mean_is_that_of_all_pairs_one_by_one(bridge):
    asked = read_questions(bridge, TEXT)[:2]
    result = mean_composition_map(bridge, [q.example for q in asked], 1, "post")
    maps = []
    for question in asked:
        length = bridge.to_tokens(question.prompt).shape[1]
        pairs = [composition_map(bridge, question.prompt, 1, "post", -1, key).total for key in range(length)]
        maps.append(torch.stack(pairs))
    assert result.pairs == sum(map(len, maps))
    assert torch.allclose(result.total, torch.stack([each.mean(0) for each in maps]).mean(0), atol=1e-5)
    assert torch.allclose(result.spread, torch.cat(maps).std(0, unbiased=False), atol=1e-5)
    assert torch.allclose(sum(result.parts.values()), result.total, atol=1e-5)


def test_all_queries_count_every_causal_pair_once(bridge):
    prompt = "Ruth has a violin."
    result = mean_composition_map(bridge, [(prompt, "a")], 0, "pre", queries="all")
    length = bridge.to_tokens(prompt).shape[1]
    pairs = [composition_map(bridge, prompt, 0, "pre", t, s).total for t in range(length) for s in range(t + 1)]
    assert result.pairs == len(pairs) == length * (length + 1) // 2
    assert torch.allclose(result.total, torch.stack(pairs).mean(0), atol=1e-5)
    assert torch.allclose(result.spread, torch.stack(pairs).std(0, unbiased=False), atol=1e-5)
    assert not result.shared.any()


@pytest.mark.parametrize("queries", ["last", "all"])
def test_what_is_lent_is_what_composition_adds_to_row_sums(bridge, prompt, queries):
    result = mean_composition_map(bridge, [(prompt, "fruit")], 1, "post", queries=queries)
    names = ["blocks.1.attn.post.hook_in", "blocks.1.attn.post.hook_out"]
    _, cache = bridge.run_with_cache(prompt, names_filter=names)
    added = (cache[names[1]] - cache[names[0]])[0].sum(-1)  # [head, query]
    added = added[:, -1] if queries == "last" else added.mean(1)
    assert torch.allclose(result.shared.sum(0), added, atol=1e-5)


def test_the_static_map_is_the_base_alone(make_bridge, prompt):
    bridge = make_bridge()
    static = static_composition_map(bridge, -1, "post")
    assert torch.equal(static.total, static.base)
    assert torch.equal(static.base, composition_map(bridge, prompt, 1, "post", -1, 0).base)
    assert static.motifs() == ()
    assert (static.query, static.key, static.tokens) == (-1, -1, ())


def test_motifs_of_a_planted_map(bridge, prompt):
    """Gates that silence head 5 at every token are found in the mean, with its sign."""
    for side in ("query", "key"):
        gate = getattr(bridge.blocks[1].attn.post.original_component, side)
        with torch.no_grad():
            gate.gate.weight.zero_()
            gate.down.weight.zero_()

    def silence(gates, hook):
        gates = gates.clone()
        gates[..., 5] = -0.9
        return gates

    with bridge.hooks(fwd_hooks=[("blocks.1.attn.post.hook_w_qg", silence)]):
        single = composition_map(bridge, prompt, 1, "post", -1, 2)
        mean = mean_composition_map(bridge, TEXT, 1, "post")
    for motifs in (single.motifs(), mean.motifs(), single.motifs("query_gate")):
        assert [(m.name, m.sources) for m in motifs] == [("self-gating", (5,))]
        assert motifs[0].weights == pytest.approx((-0.9,), abs=1e-4)
    assert single.motifs("key_gate") == single.motifs("base") == ()


def test_entries_that_may_be_zero_make_no_motif(bridge):
    result = mean_composition_map(bridge, TEXT, 1, "post")
    unsure = (result.low - torch.eye(8) <= 0) & (result.high - torch.eye(8) >= 0)
    assert unsure.any()
    for motif in result.motifs(share=0.01, many=2):
        one_sided = len(motif.sources) != len(motif.targets)
        sources = motif.sources * (len(motif.targets) if one_sided and len(motif.sources) == 1 else 1)
        targets = motif.targets * (len(motif.sources) if one_sided and len(motif.targets) == 1 else 1)
        assert not any(unsure[edge] for edge in zip(sources, targets, strict=True))
    assert any("so the intervals are rough" in sentence for sentence in result.warnings())


def test_refusals(bridge, twin):
    with pytest.raises(UserError, match="composed"):
        static_composition_map(twin, 0, "post")
    with pytest.raises(UserError, match="choose from all, last"):
        mean_composition_map(bridge, TEXT, 1, "post", queries="first")
    with pytest.raises(UserError, match="layer 9"):
        mean_composition_map(bridge, TEXT, 9, "post")


def test_names_of_version_0_1_still_open_and_answer(bridge, prompt, tmp_path):
    """Parts were called query_low_rank and so on: in saved results, as attributes, arguments and of figures."""
    mean = mean_composition_map(bridge, [(prompt, "fruit")], 1, "post")
    for made in (composition_map(bridge, prompt, 1, "post", -1, 3), mean):
        folder = made.save(tmp_path / type(made).__name__)
        tensors = load_file(folder / "tensors.safetensors")
        assert {"qp", "qg", "kp", "kg"} < tensors.keys()
        former = {now: then for then, now in FORMER_PARTS.items()}
        save_file({former.get(name, name): t for name, t in tensors.items()}, folder / "tensors.safetensors")
        again = load_result(folder)
        assert again == made
        with pytest.warns(DeprecationWarning, match="query_low_rank is called qp now"):
            assert torch.equal(again.query_low_rank, made.qp)
        with pytest.raises(AttributeError, match="no attribute 'query_high_rank'"):
            again.query_high_rank  # noqa: B018
    single = composition_map(bridge, prompt, 1, "post", -1, 3)
    assert single.motifs("key_gate") == single.motifs("kg")
    drawn = [dcinterp.figures.plot(single, part=part).to_json() for part in ("key_low_rank", "kp")]
    assert drawn[0] == drawn[1]
    with pytest.raises(UserError, match="no part of a map 'key_gat'; choose from base"):
        single.motifs("key_gat")


def test_a_local_layer_has_maps_of_its_window_alone(make_bridge):
    bridge, prompt = make_bridge(attention_windows=(3,)), "Ruth has a violin. Carol has a pear."
    length = bridge.to_tokens(prompt).shape[1]
    for queries in ("last", "all"):
        result = mean_composition_map(bridge, [(prompt, "a")], 0, "post", queries=queries)
        at = range(length - 1, length) if queries == "last" else range(length)
        pairs = [
            composition_map(bridge, prompt, 0, "post", t, s).total for t in at for s in range(max(0, t - 2), t + 1)
        ]
        assert result.pairs == len(pairs)
        assert torch.allclose(result.total, torch.stack(pairs).mean(0), atol=1e-5)
        assert torch.allclose(result.spread, torch.stack(pairs).std(0, unbiased=False), atol=1e-5)
    assert "outside the local window" in composition_map(bridge, prompt, 0, "post", -1, 1).warnings()[0]
    assert composition_map(bridge, prompt, 0, "post", -1, length - 2).warnings() == []
    with pytest.raises(UserError, match="outside the local window"):
        dcinterp.compose_breakdown(bridge, prompt, 0, -1, 1, "pre")
    assert not dcinterp.compose_breakdown(bridge, prompt, 0, -1, 1, "post").out.any()


def test_a_key_behind_its_query_has_no_map(bridge, prompt):
    with pytest.raises(UserError, match="Key 4 comes after query 2"):
        composition_map(bridge, prompt, 1, "post", 2, 4)


def test_a_map_that_is_not_all_of_the_composition_says_so(make_bridge, prompt):
    bridge = make_bridge(compose="multi-token", compose_options={"queries": 2, "keys": 3})
    for result in (
        composition_map(bridge, prompt, 1, "pre", -1, 2),
        mean_composition_map(bridge, [(prompt, "a")], 1, "pre"),
    ):
        assert "not all of it" in result.warnings()[0]
