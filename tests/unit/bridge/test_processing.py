"""TransformerLens's optional paths: folded weights, an input per head, a result per head, on every family."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dcinterp.bridge import CompositionWarning, DCBridge
from dcinterp.support.errors import UserError

Make = Callable[..., DCBridge]
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "dcformer++": ("tiny-dcformer++", {}),
    "dcformer++ pre": ("tiny-dcformer++", dict(compose_stages=("pre",))),
    "dcformer++ windows": ("tiny-dcformer++", dict(attention_windows=(3, None))),
    "dcformer++ grouped": ("tiny-dcformer++", dict(compose_groups=2, compose_static=True)),
    "dcformer++ gated groups": ("tiny-dcformer++", dict(mlp_gate_groups=4)),
    "dcformer++ shared keys": ("tiny-dcformer++", dict(num_key_value_heads=2, head_dim=10)),
    "transformer++ as Qwen2": (
        "tiny-transformer++",
        dict(num_key_value_heads=2, attention_bias=True, attention_output_bias=False, tie_word_embeddings=True),
    ),
    "transformer++": ("tiny-transformer++", {}),
    "dcformer": ("tiny-dcformer", {}),
    "transformer": ("tiny-transformer", {}),
    "dcpythia": ("tiny-dcpythia", {}),
    "pythia": ("tiny-pythia", {}),
}


@pytest.fixture(params=FAMILIES)
def make(request: pytest.FixtureRequest, bridge: Make) -> Callable[[], DCBridge]:
    preset, changes = FAMILIES[request.param]
    return lambda: bridge(preset, **changes)


def probabilities(model: DCBridge, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model(ids).log_softmax(-1)


def test_folding_changes_no_probability(make: Callable[[], DCBridge], ids: Tensor) -> None:
    expected, folded = probabilities(make(), ids), make()
    folded.enable_compatibility_mode(disable_warnings=True)
    torch.testing.assert_close(probabilities(folded, ids), expected, atol=2e-5, rtol=0)
    assert folded.final_norm_is_folded()
    assert torch.equal(folded.blocks[0].ln1.original_component.weight, torch.ones(32))


def test_compatibility_without_processing_changes_nothing(make: Callable[[], DCBridge], ids: Tensor) -> None:
    expected, model = probabilities(make(), ids), make()
    model.enable_compatibility_mode(no_processing=True, disable_warnings=True)
    torch.testing.assert_close(probabilities(model, ids), expected, atol=1e-6, rtol=0)


def test_folding_without_the_norms_leaves_the_composition_alone(bridge: Make, ids: Tensor) -> None:
    expected, model = probabilities(bridge(), ids), bridge()
    model.enable_compatibility_mode(fold_ln=False, disable_warnings=True)
    torch.testing.assert_close(probabilities(model, ids), expected, atol=2e-5, rtol=0)


def test_folding_twice_folds_once(bridge: Make, ids: Tensor) -> None:
    expected, model = probabilities(bridge("tiny-dcpythia"), ids), bridge("tiny-dcpythia")
    for _ in range(2):
        model.enable_compatibility_mode(disable_warnings=True)
    torch.testing.assert_close(probabilities(model, ids), expected, atol=2e-5, rtol=0)


def test_value_biases_fold_only_where_rows_sum_to_one(bridge: Make) -> None:
    with pytest.raises(UserError, match="assumes attention that sums to 1, which composed attention does not"):
        bridge("tiny-dcpythia").enable_compatibility_mode(fold_value_biases=True)
    plain = bridge("tiny-pythia")
    plain.enable_compatibility_mode(fold_value_biases=True, disable_warnings=True)
    assert not plain.blocks[0].attn.v.original_component.bias.any()


def test_a_bias_of_the_norm_is_one_of_the_values_once_folded(
    bridge: Make, ids: Tensor, folder: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    from dcinterp.bridge import TransformerBridge

    fields = {"norm_type": "layernorm", "use_bias": False}

    def biased() -> DCBridge:
        model, draw = bridge(**fields), torch.Generator().manual_seed(0)
        for block in model.blocks:
            torch.nn.init.normal_(block.ln1.original_component.bias, std=0.5, generator=draw)
        return model

    expected = probabilities(model := biased(), ids)
    model.save(tmp_path)
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="assumes attention that sums to 1"):
        model.enable_compatibility_mode(fold_value_biases=True)
    model.enable_compatibility_mode(disable_warnings=True)
    torch.testing.assert_close(probabilities(model, ids), expected, atol=1e-4, rtol=0)
    theirs = TransformerBridge.boot_transformers(str(tmp_path), dtype=torch.float32)
    with pytest.raises(UserError, match="Value biases were folded as if attention summed to 1"):
        theirs.enable_compatibility_mode(disable_warnings=True)


@pytest.mark.parametrize("norm", ["rmsnorm", "layernorm"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_square_unembedding_is_centred_over_the_vocabulary(bridge: Make, ids: Tensor, norm: str, tied: bool) -> None:
    fields = {"vocab_size": 32, "hidden_size": 32, "norm_type": norm, "tie_word_embeddings": tied}
    expected, model = probabilities(bridge(**fields), ids % 32), bridge(**fields)
    for _ in range(2):
        model.enable_compatibility_mode(disable_warnings=True)
    torch.testing.assert_close(probabilities(model, ids % 32), expected, atol=2e-5, rtol=0)
    assert model.W_U.mean(-1).abs().max() < 1e-6


def test_a_square_mlp_is_refused_where_it_would_be_centred(bridge: Make, ids: Tensor) -> None:
    fields = {"intermediate_size": 32, "hidden_size": 32}
    model = bridge("tiny-dcpythia", **fields)
    expected = probabilities(model, ids)
    with pytest.raises(UserError, match=r"as wide as the stream \(32\) has square matrices"):
        model.enable_compatibility_mode()
    model.enable_compatibility_mode(fold_ln=False, center_writing_weights=False, disable_warnings=True)
    torch.testing.assert_close(probabilities(model, ids), expected, atol=2e-5, rtol=0)
    expected, model = probabilities(bridge(**fields), ids), bridge(**fields)
    model.enable_compatibility_mode(disable_warnings=True)
    torch.testing.assert_close(probabilities(model, ids), expected, atol=2e-5, rtol=0)


def test_taps_keep_their_names_and_act_after_folding(bridge: Make, ids: Tensor) -> None:
    model, folded = bridge(), bridge()
    folded.enable_compatibility_mode(disable_warnings=True)
    name = "blocks.1.attn.post.hook_o_kp"
    with torch.no_grad():
        for each in (model, folded):
            _, cache = each.run_with_cache(ids, names_filter=name)
            assert list(cache) == [name]
        zeroed = [
            m.run_with_hooks(ids, fwd_hooks=[(name, lambda t, hook: t * 0)]).log_softmax(-1) for m in (model, folded)
        ]
    torch.testing.assert_close(*zeroed, atol=2e-5, rtol=0)


@pytest.mark.parametrize("setters", ["split_qkv_input attn_result hook_mlp_in", "attn_in"])
def test_an_optional_path_changes_nothing(setters: str, make: Callable[[], DCBridge], ids: Tensor) -> None:
    expected, model = probabilities(make(), ids), make()
    for setter in setters.split():
        getattr(model, f"set_use_{setter}")(True)
    torch.testing.assert_close(probabilities(model, ids), expected, atol=1e-5, rtol=0)
    model.enable_compatibility_mode(disable_warnings=True)
    torch.testing.assert_close(probabilities(model, ids), expected, atol=2e-5, rtol=0)


def test_head_results_sum_to_the_attention_output(make: Callable[[], DCBridge], ids: Tensor) -> None:
    model = make()
    model.set_use_attn_result(True)
    _, cache = model.run_with_cache(ids)
    result = cache["result", 1]
    assert result.shape == (2, 7, 4, 32)
    bias = model.blocks[1].attn.o.original_component.bias
    total = result.sum(2) + (0 if bias is None else bias)
    torch.testing.assert_close(total, cache["attn_out", 1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        torch.einsum("bphd,hdm->bphm", cache["z", 1], model.W_O[1]), result, atol=1e-5, rtol=1e-5
    )


def test_the_input_of_one_head_moves_that_head_and_the_composition(bridge: Make, ids: Tensor) -> None:
    """A change of one head's query input moves its queries, and the dynamic weights by an equal share."""
    model, plain = bridge(), bridge("tiny-transformer++")
    change = torch.randn(32)

    def one_head(t: Tensor, hook: Any) -> Tensor:
        t = t.clone()
        t[:, :, 2] += change
        return t

    for each in (model, plain):
        each.set_use_split_qkv_input(True)
        names = [
            n
            for n in each.hook_dict
            if n.startswith("blocks.0.attn.") and n.split("hook_")[-1] in ("q", "k", "v", "w_qg", "w_kg")
        ]
        with torch.no_grad():
            _, before = each.run_with_cache(ids, names_filter=names)
            with each.hooks(fwd_hooks=[("blocks.0.attn.hook_q_input", one_head)]):
                _, after = each.run_with_cache(ids, names_filter=names)
        moved = {n.removeprefix("blocks.0.attn."): (after[n] - before[n]).abs().amax((0, 1)) for n in names}
        assert (moved["hook_q"].amax(-1) > 1e-3).tolist() == [False, False, True, False]
        assert moved["hook_k"].max() == moved["hook_v"].max() == 0
        if each is model:
            assert moved["pre.hook_w_qg"].min() > 0
            assert moved["post.hook_w_kg"].max() == 0


def test_no_hook_of_the_attention_is_dead(make: Callable[[], DCBridge], ids: Tensor) -> None:
    model = make()
    for setter in ("set_use_split_qkv_input", "set_use_attn_result"):
        getattr(model, setter)(True)
    _, cache = model.run_with_cache(ids)
    silent = [n for n in model.hook_dict if n.startswith("blocks.0.attn.") and n not in cache]
    assert {n.split(".")[-1] for n in silent} <= {"hook_attn_in", "hook_in", "hook_out"}, silent


def test_a_head_norm_keeps_its_own_epsilon(bridge: Make, ids: Tensor) -> None:
    wrapped = bridge("tiny-dcpythia", norm_eps=1e-2)
    with torch.no_grad():
        torch.testing.assert_close(wrapped(ids), wrapped.original_model(ids).logits)
    assert wrapped.blocks[0].attn.q_norm.config.eps == 1e-6
    assert wrapped.blocks[0].ln1.config.eps == 1e-2


def test_a_pattern_read_by_shorthand_warns(bridge: Make, ids: Tensor) -> None:
    _, cache = bridge().run_with_cache(ids)
    with pytest.warns(CompositionWarning, match="signed and its rows do not sum to 1; the softmax before composition"):
        cache["pattern", 0]
    with pytest.warns(CompositionWarning, match="mixed with that of others"):
        bridge().all_composition_scores("V")


def test_value_biases_of_zero_are_no_sign_of_folding(bridge: Make, ids: Tensor) -> None:
    def model() -> DCBridge:
        made = bridge("tiny-dcpythia")
        for block in made.blocks:
            block.attn.v.original_component.bias.data.zero_()
        return made

    folded = model()
    folded.enable_compatibility_mode(disable_warnings=True)
    torch.testing.assert_close(probabilities(folded, ids), probabilities(model(), ids), atol=2e-5, rtol=0)


def test_value_biases_are_left_where_one_asks_for_that(bridge: Make, ids: Tensor) -> None:
    plain = bridge("tiny-pythia")
    with torch.no_grad():
        plain.blocks[0].attn.v.original_component.bias.fill_(0.5)
    expected = probabilities(plain, ids)
    plain.process_weights(False, True, True, True, False)
    assert plain.blocks[0].attn.v.original_component.bias.any()
    torch.testing.assert_close(probabilities(plain, ids), expected, atol=2e-5, rtol=0)


def test_attention_that_cannot_be_refactored_is_refused_before_a_weight_changes(bridge: Make, ids: Tensor) -> None:
    for name in ("tiny-dcpythia", "tiny-pythia", "tiny-dcformer++"):
        expected, model = probabilities(bridge(name), ids), bridge(name)
        with pytest.raises(UserError, match="leave refactor_factored_attn_matrices out"):
            model.enable_compatibility_mode(refactor_factored_attn_matrices=True, disable_warnings=True)
        torch.testing.assert_close(probabilities(model, ids), expected)
        model.enable_compatibility_mode(disable_warnings=True)
        torch.testing.assert_close(probabilities(model, ids), expected, atol=2e-5, rtol=0)
