"""TransformerLens's own tools, unmodified, on a composed model and its twin: each is held to a value."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformer_lens import FactoredMatrix, patching
from transformer_lens.head_detector import detect_head
from transformer_lens.SVDInterpreter import SVDInterpreter
from transformer_lens.tools import analysis

import dcinterp
from dcinterp.bridge import CompositionWarning, DCBridge, wrap
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.support.errors import UserError

PAIR = ["tiny-dcformer++", "tiny-transformer++"]
ALL = [*PAIR, "tiny-dcformer", "tiny-dcpythia"]
LAYERS, HEADS, POS = 2, 4, 7


@pytest.fixture(params=PAIR)
def pair(request: pytest.FixtureRequest, bridge: Callable[..., DCBridge]) -> DCBridge:
    return bridge(request.param)


@pytest.fixture(params=ALL)
def folded(request: pytest.FixtureRequest, bridge: Callable[..., DCBridge]) -> DCBridge:
    model = bridge(request.param)
    model.enable_compatibility_mode(disable_warnings=True)
    return model


@pytest.fixture
def clean(ids: Tensor) -> Tensor:
    return ids[:1]


@pytest.fixture
def corrupt(ids: Tensor) -> Tensor:
    """The clean tokens but for the third."""
    changed = ids[:1].clone()
    changed[0, 2] = (changed[0, 2] + 5) % 29
    return changed


def metric(logits: Tensor) -> Tensor:
    return logits[0, -1, 3] - logits[0, -1, 11]


def close(a: Tensor, b: Tensor, atol: float = 2e-5) -> None:
    torch.testing.assert_close(a, b, atol=atol, rtol=1e-4, check_dtype=False)


# ---- ActivationCache


@pytest.mark.parametrize("family", ALL)
def test_decompose_resid_sums_to_the_stream(family: str, bridge: Callable[..., DCBridge], ids: Tensor) -> None:
    _, cache = bridge(family).run_with_cache(ids)
    parts, labels = cache.decompose_resid(layer=LAYERS, return_labels=True)
    close(parts.sum(0), cache["resid_post", LAYERS - 1])
    assert {"0_attn_out", "1_mlp_out"} <= set(labels)
    if not family.endswith("pythia"):
        close(cache["resid_pre", 1] + cache["attn_out", 1], cache["resid_mid", 1])


@pytest.mark.parametrize("family", ALL)
def test_accumulated_resid_unembeds_to_the_logits(family: str, bridge: Callable[..., DCBridge], ids: Tensor) -> None:
    model = bridge(family)
    model.enable_compatibility_mode(disable_warnings=True)
    logits, cache = model.run_with_cache(ids)
    stack = cache.accumulated_resid(layer=None, incl_mid=False, apply_ln=True)
    assert stack.shape == (LAYERS + 1, 2, POS, 32)
    close(stack[-1] @ model.W_U + model.b_U, logits)


def test_head_results_and_neurons_sum_to_the_stream(pair: DCBridge, ids: Tensor) -> None:
    _, cache = pair.run_with_cache(ids)
    heads = cache.stack_head_results(layer=LAYERS, incl_remainder=True)
    assert heads.shape == (LAYERS * HEADS + 1, 2, POS, 32)
    close(heads.sum(0), cache["resid_post", LAYERS - 1])
    close(heads[1 * HEADS + 2], torch.einsum("bpd,dm->bpm", cache["z", 1][:, :, 2], pair.W_O[1, 2]))
    everything = cache.get_full_resid_decomposition(layer=LAYERS, expand_neurons=True)
    close(everything.sum(0), cache["resid_post", LAYERS - 1])


def test_logit_attrs_are_refused_until_the_final_norm_is_folded(pair: DCBridge, ids: Tensor) -> None:
    _, cache = pair.run_with_cache(ids)
    with pytest.raises(UserError, match=r"ignore the gain of the final norm; call enable_compatibility_mode\(\)"):
        cache.logit_attrs(cache.decompose_resid(), tokens=torch.tensor([[3] * POS] * 2))


NORMED: dict[str, Callable[[Any], Tensor]] = {
    "apply_ln_to_stack": lambda cache: cache.apply_ln_to_stack(cache.decompose_resid()),
    "decompose_resid": lambda cache: cache.decompose_resid(apply_ln=True),
    "an inner layer": lambda cache: cache.decompose_resid(layer=1, apply_ln=True),
    "stack_head_results": lambda cache: cache.stack_head_results(LAYERS, apply_ln=True, incl_remainder=True),
    "stack_neuron_results": lambda cache: cache.stack_neuron_results(LAYERS, apply_ln=True, incl_remainder=True),
    "get_full_resid_decomposition": lambda cache: cache.get_full_resid_decomposition(apply_ln=True),
    "projected": lambda cache: cache.get_full_resid_decomposition(
        apply_ln=True, project_output_onto=cache.model.W_U[:, 3]
    ),
}
"""Tools of the cache that apply a norm to parts of the stream, by the scale of the whole and without a gain."""


@pytest.mark.parametrize("tool", NORMED)
def test_norms_of_parts_are_refused_until_their_gain_is_folded(tool: str, pair: DCBridge, ids: Tensor) -> None:
    _, cache = pair.run_with_cache(ids)
    with pytest.raises(UserError, match=r"would ignore the norm's gain; call enable_compatibility_mode\(\)"):
        NORMED[tool](cache)


@pytest.mark.parametrize("tool", NORMED)
def test_normed_parts_sum_to_the_logits_once_folded(tool: str, folded: DCBridge, ids: Tensor) -> None:
    logits, cache = folded.run_with_cache(ids)
    whole = NORMED[tool](cache).sum(0)
    if tool == "an inner layer":
        close(whole, cache["blocks.1.ln1.hook_normalized"])
    elif tool == "projected":
        close(whole + folded.b_U[3], logits[..., 3], atol=1e-4)
    else:
        close(whole @ folded.W_U + folded.b_U, logits, atol=1e-4)


def test_logit_attrs_sum_to_the_logit_difference(folded: DCBridge, ids: Tensor) -> None:
    logits, cache = folded.run_with_cache(ids)
    right, wrong = torch.full((2, POS), 3), torch.full((2, POS), 11)
    attributions = cache.logit_attrs(cache.decompose_resid(), tokens=right, incorrect_tokens=wrong)
    constant = folded.b_U[3] - folded.b_U[11]
    close(attributions.sum(0) + constant, logits[..., 3] - logits[..., 11], atol=1e-4)


def test_stack_activation_and_shorthand_reach_the_branches(bridge: Callable[..., DCBridge], ids: Tensor) -> None:
    _, cache = bridge().run_with_cache(ids)
    stacked = cache.stack_activation("o_qp", sublayer_type="attn.pre")
    assert stacked.shape == (LAYERS, 2, HEADS, POS, POS)
    assert torch.equal(stacked[1], cache["blocks.1.attn.pre.hook_o_qp"])
    assert torch.equal(cache["o_qp", 1, "attn.pre"], stacked[1])


def test_pos_slice_and_names_filter(pair: DCBridge, ids: Tensor) -> None:
    names = ["blocks.0.hook_resid_post", "blocks.1.attn.hook_pattern", "blocks.1.attn.hook_q"]
    _, whole = pair.run_with_cache(ids, names_filter=names)
    _, part = pair.run_with_cache(ids, names_filter=names, pos_slice=-1)
    assert set(names) <= set(part)  # and the canonical names of the two aliases
    assert len(part) <= 5
    assert torch.equal(part[names[0]].squeeze(1), whole[names[0]][:, -1])
    assert torch.equal(part[names[1]].squeeze(2), whole[names[1]][:, :, -1])
    assert torch.equal(part[names[2]].squeeze(1), whole[names[2]][:, -1])


# ---- Patching: every score is compared with an intervention made by hand


def shorten(clean: Tensor, corrupt: Tensor) -> tuple[Tensor, Tensor]:
    """Four tokens: the sweeps run once for every position, or every pair of them."""
    return clean[:, :4], corrupt[:, :4]


def by_hand(model: DCBridge, tokens: Tensor, cache: Any, name: str, index: Any) -> Tensor:
    def put(t: Tensor, hook: Any) -> Tensor:
        t = t.clone()
        t[index] = cache[name][index]
        return t

    with torch.no_grad():
        return metric(model.run_with_hooks(tokens, fwd_hooks=[(name, put)]))


@pytest.mark.parametrize("place", ["resid_pre", "resid_mid", "attn_out", "mlp_out"])
def test_patching_the_stream(place: str, pair: DCBridge, clean: Tensor, corrupt: Tensor) -> None:
    clean, corrupt = shorten(clean, corrupt)
    _, cache = pair.run_with_cache(clean)
    scores = getattr(patching, f"get_act_patch_{place}")(pair, corrupt, cache, metric)
    assert scores.shape == (LAYERS, 4)
    name = f"blocks.1.hook_{place}"
    for position in (2, 3):
        close(scores[1, position], by_hand(pair, corrupt, cache, name, (slice(None), position)))
    if place == "resid_pre":
        with torch.no_grad():
            close(scores[0, 2], metric(pair(clean)))  # the only token that differs


@pytest.mark.parametrize(("what", "hook"), [("out", "z"), ("q", "q"), ("k", "k"), ("v", "v")])
def test_patching_heads(what: str, hook: str, pair: DCBridge, clean: Tensor, corrupt: Tensor) -> None:
    clean, corrupt = shorten(clean, corrupt)
    _, cache = pair.run_with_cache(clean)
    everywhere = getattr(patching, f"get_act_patch_attn_head_{what}_all_pos")(pair, corrupt, cache, metric)
    by_pos = getattr(patching, f"get_act_patch_attn_head_{what}_by_pos")(pair, corrupt, cache, metric)
    assert everywhere.shape == (LAYERS, HEADS)
    assert by_pos.shape == (LAYERS, 4, HEADS)
    name = f"blocks.1.attn.hook_{hook}"
    close(everywhere[1, 2], by_hand(pair, corrupt, cache, name, (slice(None), slice(None), 2)))
    close(by_pos[1, 3, 2], by_hand(pair, corrupt, cache, name, (slice(None), 3, 2)))


def test_patching_patterns(pair: DCBridge, clean: Tensor, corrupt: Tensor) -> None:
    clean, corrupt = shorten(clean, corrupt)
    _, cache = pair.run_with_cache(clean)
    name = "blocks.1.attn.hook_pattern"
    everywhere = patching.get_act_patch_attn_head_pattern_all_pos(pair, corrupt, cache, metric)
    close(everywhere[1, 3], by_hand(pair, corrupt, cache, name, (slice(None), 3)))
    by_pos = patching.get_act_patch_attn_head_pattern_by_pos(pair, corrupt, cache, metric)
    close(by_pos[1, 3, 2], by_hand(pair, corrupt, cache, name, (slice(None), 3, 2)))
    pairs = patching.get_act_patch_attn_head_pattern_dest_src_pos(pair, corrupt, cache, metric)
    close(pairs[1, 3, 3, 2], by_hand(pair, corrupt, cache, name, (slice(None), 3, 3, 2)))


# ---- Attribution


def test_node_attribution_is_the_gradient_times_the_difference(pair: DCBridge, clean: Tensor, corrupt: Tensor) -> None:
    result = analysis.attribution_patch(pair, clean, corrupt, metric)
    name = "blocks.1.attn.hook_z"
    _, cache = pair.run_with_cache(clean, names_filter=name)
    kept: dict[str, Tensor] = {}

    def keep(z: Tensor, hook: Any) -> Tensor:
        kept["z"] = z.detach().requires_grad_()
        return kept["z"]

    metric(pair.run_with_hooks(corrupt, fwd_hooks=[(name, keep)])).backward()
    expected = ((cache[name] - kept["z"]) * kept["z"].grad)[0].sum(-1)
    scores = {
        (n.position, n.head): s for n, s in result.node_scores.items() if n.kind == "attn_head_out" and n.layer == 1
    }
    for position in range(POS):
        for head in range(HEADS):
            assert scores[position, head] == pytest.approx(expected[position, head].item(), abs=1e-4)


@pytest.mark.parametrize(
    "changes", [{}, dict(compose_stages=("pre",)), dict(compose_stages=("post",)), dict(compose="none")]
)
def test_edges_add_up_to_nodes(
    changes: dict[str, Any], bridge: Callable[..., DCBridge], clean: Tensor, corrupt: Tensor
) -> None:
    """With the path from the stream into the dynamic weights left out, they would differ by more than the scores."""
    model = bridge(**changes)
    edge = analysis.attribution_patch(model, clean, corrupt, metric, analysis.EdgeAttributionConfig(granularity="edge"))
    node = analysis.attribution_patch(model, clean, corrupt, metric)
    largest = max(abs(score) for score in node.node_scores.values())
    shared = set(edge.node_scores) & set(node.node_scores)
    assert len(shared) > LAYERS * HEADS
    for key in shared:
        assert edge.node_scores[key] == pytest.approx(node.node_scores[key], abs=1e-4 * max(1, largest))


def test_faithfulness_of_all_edges_and_of_none(pair: DCBridge, clean: Tensor, corrupt: Tensor) -> None:
    config = analysis.EdgeAttributionConfig(granularity="edge")
    edges = list(analysis.attribution_patch(pair, clean, corrupt, metric, config).edge_scores)
    whole = analysis.faithfulness(pair, clean, corrupt, metric, edges)
    nothing = analysis.faithfulness(pair, clean, corrupt, metric, [])
    assert whole.recovered == pytest.approx(1, abs=1e-3)
    assert nothing.recovered == pytest.approx(0, abs=1e-3)


def test_direct_path_into_values_moves_one_head(pair: DCBridge, clean: Tensor, corrupt: Tensor) -> None:
    _, a = pair.run_with_cache(clean)
    _, b = pair.run_with_cache(corrupt)
    with torch.no_grad():
        scores = patching.get_act_patch_direct_path(pair, corrupt, a, b, metric, 0, 1, component="v", verbose=False)
        delta = torch.einsum("bpd,dm->bpm", (a["z", 0] - b["z", 0])[:, :, 1], pair.W_O[0, 1])

        def add(x: Tensor, hook: Any) -> Tensor:
            """The values of head 2 as they are when its stream holds `delta` more."""
            attn, norm = pair.blocks[1].attn, pair.blocks[1].ln1.original_component
            moved = norm(b["resid_pre", 1] + delta) @ attn.v.original_component.weight.T
            x = x.clone()
            x[:, :, 2] = moved.unflatten(-1, (HEADS, -1))[:, :, 2]
            return x

        expected = metric(pair.run_with_hooks(corrupt, fwd_hooks=[("blocks.1.attn.hook_v", add)]))
    close(scores[1, 2], expected)


def test_direct_logit_attribution(folded: DCBridge, ids: Tensor) -> None:
    logits = folded(ids[:1])
    result = analysis.direct_logit_attribution(folded, ids[:1], answer_tokens=3, incorrect_tokens=11, unit="component")
    total = result.attribution.sum() + folded.b_U[3] - folded.b_U[11]
    close(total, metric(logits), atol=1e-4)


def test_direct_logit_attribution_before_folding_is_refused(pair: DCBridge, ids: Tensor) -> None:
    with pytest.raises(ValueError, match="compatibility mode"):
        analysis.direct_logit_attribution(pair, ids[:1], answer_tokens=3)


def test_logit_lens_ends_in_the_logits(pair: DCBridge, ids: Tensor) -> None:
    logits = pair(ids)
    result = analysis.logit_lens(pair, ids, positions=None)
    close(result.values[-1], logits)
    normed = pair.ln_final.original_component(pair.run_with_cache(ids)[1]["resid_pre", 1])
    close(result.values[1], normed @ pair.W_U)


# ---- Weights


def test_factored_matrices_are_the_products_of_the_weights(pair: DCBridge) -> None:
    ov, qk = pair.OV[1, 2], pair.QK[1, 2]
    assert isinstance(ov, FactoredMatrix)
    attn = pair.blocks[1].attn
    rows = slice(2 * 8, 3 * 8)
    w_v, w_q, w_k = (getattr(attn, n).original_component.weight[rows] for n in "vqk")
    w_o = attn.o.original_component.weight[:, rows]
    close(ov.AB, w_v.T @ w_o.T)
    close(qk.AB, w_q.T @ w_k)
    close(ov.svd()[1][:8], torch.linalg.svdvals(w_v.T @ w_o.T)[:8])


def test_svd_interpreter(pair: DCBridge) -> None:
    vectors = SVDInterpreter(pair).get_singular_vectors("OV", layer_index=1, head_index=2, num_vectors=3)
    attn, rows = pair.blocks[1].attn, slice(16, 24)
    matrix = attn.v.original_component.weight[rows].T @ attn.o.original_component.weight[:, rows].T
    right = torch.linalg.svd(matrix.detach())[2][:3]
    found = vectors.squeeze()
    found = found if found.shape[0] == 29 else found.T
    expected = (right @ pair.W_U).T
    close(found.abs(), expected.abs(), atol=1e-3)


def test_subspace_affinity_is_one_for_a_shared_subspace(pair: DCBridge) -> None:
    with torch.no_grad():
        first, second = pair.blocks[0].attn, pair.blocks[1].attn
        second.q.original_component.weight[16:24] = first.o.original_component.weight[:, 8:16].T
    result = analysis.attention_head_subspace_affinity(pair, target_role="Q")
    assert result.scores[0, 1, 1, 2] == pytest.approx(8, abs=1e-3), "the sum of 8 squared cosines of 1"
    assert result.top_pairs(1)[0].target.head == 2


def test_composition_scores_say_that_heads_are_mixed(bridge: Callable[..., DCBridge]) -> None:
    with pytest.warns(CompositionWarning, match="mixed with that of others"):
        composed = bridge().all_composition_scores("V").scores
    plain = bridge("tiny-transformer++")
    scores = plain.all_composition_scores("V").scores
    left, right = plain.OV[0, 1].AB, plain.OV[1, 2].AB
    expected = (left @ right).norm() / (left.norm() * right.norm())
    close(scores[0, 1, 1, 2], expected, atol=1e-4)
    assert composed.shape == scores.shape


# ---- detect_head


def test_detect_head_finds_a_planted_head(folder: Any) -> None:
    """A pattern put there by hand: head 1 of layer 0 looks at the token before."""
    model = dcinterp.load(folder)
    text = "Ruth has a lime . Karen has a pear"
    length = model.to_tokens(text).shape[1]
    previous = torch.zeros(length, length)
    previous[torch.arange(1, length), torch.arange(length - 1)] = 1
    previous[0, 0] = 1

    def plant(pattern: Tensor, hook: Any) -> Tensor:
        pattern = pattern.clone()
        pattern[:, 1] = previous
        return pattern

    with model.hooks(fwd_hooks=[("blocks.0.attn.hook_pattern", plant)]), pytest.warns(CompositionWarning):
        scores = detect_head(model, text, "previous_token_head")
    assert scores[0, 1] == pytest.approx((length - 1) / length, abs=1e-5)


def test_detect_head_on_the_softmax_is_a_share(bridge: Callable[..., DCBridge], ids: Tensor) -> None:
    """What the docs recommend for composed models: the same measure on post.hook_in, whose rows sum to 1."""
    _, cache = bridge().run_with_cache(ids)
    softmax = cache["blocks.0.attn.post.hook_in"]
    close(softmax.sum(-1), torch.ones(2, HEADS, POS))
    assert (cache["blocks.0.attn.hook_pattern"].sum(-1) - 1).abs().max() > 0.1


def test_tools_accept_a_deep_copy_and_a_loaded_model(folder: Any, raw: Callable[..., DCFormerForCausalLM]) -> None:
    import copy

    model = copy.deepcopy(dcinterp.load(folder))
    ids = model.to_tokens("Ruth has a lime")
    logits, cache = model.run_with_cache(ids)
    close(cache.decompose_resid(layer=LAYERS).sum(0), cache["resid_post", 1])
    assert logits.shape == (1, 4, 29)
    assert wrap(raw()).cfg.n_heads == HEADS


def test_words_that_the_model_does_not_know_are_not_read_silently() -> None:
    bridge = dcinterp.load("dcformer++")
    with pytest.warns(UserWarning, match="does not know the words 'zeppelin', 'sat', and reads"):
        tokens = bridge.to_tokens("The zeppelin sat. The zeppelin")
    assert int((tokens == bridge.tokenizer.unk_token_id).sum()) == 3
    with pytest.warns(UserWarning, match="zeppelin"):
        bridge("The zeppelin")
    with pytest.raises(UserError, match="does not know the word 'zeppelin'"):
        bridge.to_single_token("zeppelin")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bridge.to_tokens(["< Ruth has a revolver.", "< Kevin has a jersey."])


def test_every_shorthand_of_a_composed_pattern_warns(bridge: Callable[..., DCBridge], ids: Tensor) -> None:
    cache = bridge().run_with_cache(ids)[1]
    for key in (("pattern", 0), ("attn", 0), "pattern0"):
        with pytest.warns(CompositionWarning, match="signed"):
            cache[key]
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompositionWarning)
        cache["blocks.0.attn.hook_pattern"]
        cache["resid_post", 0]
