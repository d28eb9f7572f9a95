"""Readings of architectures that we did not make: right, or refused with a sentence, never something else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf

import dcinterp
from dcinterp import UserError
from dcinterp.mechanism.head_sites import head_sites

IDS = [5, 9, 11, 3, 7, 22, 40, 13]
OTHER = [*IDS[:3], 50, *IDS[4:]]
WORDS = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
WIDE = WORDS | {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SHARED = WIDE | {"num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": False}
GEMMA = SHARED | {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4}
NARROW = WORDS | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
CONFIGS: dict[str, Any] = {
    "gptj": lambda: hf.GPTJConfig(**NARROW, rotary_dim=4),
    "opt": lambda: hf.OPTConfig(**WIDE, ffn_dim=48, word_embed_proj_dim=32, max_position_embeddings=64),
    "olmo": lambda: hf.OlmoConfig(**SHARED, clip_qkv=0.5),
    "gemma2": lambda: hf.Gemma2Config(**GEMMA),
    "gemma3": lambda: hf.Gemma3TextConfig(**GEMMA),
    "granite": lambda: hf.GraniteConfig(**SHARED, embedding_multiplier=3.0, residual_multiplier=0.5),
    "phi": lambda: hf.PhiConfig(**(SHARED | {"num_key_value_heads": 4}), partial_rotary_factor=0.5),
    "olmo2": lambda: hf.Olmo2Config(**SHARED),
    "bloom": lambda: hf.BloomConfig(**WORDS, hidden_size=32, n_layer=2, n_head=4),
    "mpt": lambda: hf.MptConfig(vocab_size=64, d_model=32, n_layers=2, n_heads=4, max_seq_len=64),
    "gptoss": lambda: hf.GptOssConfig(**GEMMA, num_local_experts=4, num_experts_per_tok=2),
    "llama": lambda: hf.LlamaConfig(**SHARED),
}


@cache
def model_of(name: str) -> Any:
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    model.config.architectures = [type(model).__name__]
    return model


@cache
def bridge_of(name: str) -> Any:
    return dcinterp.load(model_of(name))


@pytest.mark.parametrize("name", ["gptj", "opt"])
def test_a_pattern_that_heads_do_not_read_is_not_patched_and_there_are_no_scores(name):
    bridge = bridge_of(name)
    assert "pattern" not in head_sites(bridge)
    for sites in (["pattern"], ["z", "pattern"]):
        with pytest.raises(UserError, match="hook_pattern shows the attention, and heads do not read"):
            dcinterp.patch_heads(bridge, IDS, OTHER, 4, 37, sites=sites)
    with pytest.raises(UserError, match="heads do not read"):
        dcinterp.patch_head_positions(bridge, IDS, OTHER, 4, 37, site="pattern")
    assert float(dcinterp.patch_heads(bridge, IDS, OTHER, 4, 37).effect.abs().max()) > 0
    patterns = dcinterp.attention_patterns(bridge, IDS, 1)
    assert patterns.scores.isnan().all()
    assert torch.allclose(patterns.weights.sum(-1), torch.ones(4, 8), atol=1e-5)
    assert any("no scores here" in sentence for sentence in patterns.warnings())
    dcinterp.figures.plot(patterns, head=0, which="weights")


def test_a_pattern_that_heads_read_is_patched():
    assert "pattern" in head_sites(bridge_of("llama"))
    assert not dcinterp.attention_patterns(bridge_of("llama"), IDS, 1).warnings()


def test_edges_read_clipped_values():
    bridge, model = bridge_of("olmo"), model_of("olmo")

    def difference() -> float:
        with torch.no_grad():
            logits = model(torch.tensor([IDS])).logits[0, -1]
        return float(logits[4] - logits[37])

    by_hand, size = [], 8
    for head in range(4):

        def without(module: Any, given: Any, head: int = head) -> Any:
            z = given[0].clone()
            z[..., head * size : (head + 1) * size] = 0
            return (z,)

        watch = model.model.layers[1].self_attn.o_proj.register_forward_pre_hook(without)
        by_hand.append(-difference())
        watch.remove()
    by_hand = [difference() + each for each in by_hand]
    found = dcinterp.attribute_edges(bridge, IDS, 4, 37, method="ablation")
    assert [float(found.scores[1, 0, h, h]) for h in range(4)] == pytest.approx(by_hand, abs=1e-4)
    with (
        bridge.hooks(fwd_hooks=[("blocks.1.attn.hook_z", lambda z, hook: z * 0.5)]),
        pytest.raises(UserError, match="In layer 1 what heads write is not their pattern times their values"),
    ):
        dcinterp.attribute_edges(bridge, IDS, 4, 37, method="ablation")


@pytest.mark.parametrize("name", ["llama", "granite", "gemma2", "gemma3", "phi", "olmo2", "gptj", "opt"])
def test_an_ov_circuit_is_what_the_head_adds_in_a_run_on_the_word(name):
    """With attention before it off; behind a norm of the attention up to its scale."""
    bridge, word, head = bridge_of(name), 7, 2
    seen: dict[str, torch.Tensor] = {}
    positions = "pos_embed.hook_out" in bridge.hook_dict

    def keep(tensor: Any, hook: Any) -> None:
        seen["z"] = tensor.detach()

    hooks: list[Any] = [("blocks.0.attn.hook_out", lambda tensor, hook: torch.zeros_like(tensor))]
    hooks += [("pos_embed.hook_out", lambda tensor, hook: torch.zeros_like(tensor))] * positions
    hooks += [("blocks.1.attn.hook_z", keep)]
    with torch.no_grad():
        bridge.run_with_hooks(torch.tensor([[word]]), fwd_hooks=hooks)
        attention = bridge.blocks[1].attn
        z = seen["z"].view(4, -1)[head]
        bias = getattr(attention, "b_V", None)
        bias = None if bias is None else bias.reshape(-1, len(z))
        written = (z if bias is None else z - bias[head * len(bias) // 4]) @ attention.W_O[head]
        block = bridge.blocks[1]
        if hasattr(block, "ln1_post"):
            written = block.ln1_post(written[None, None])[0, 0]
        expected = written @ bridge.W_U
    top = dcinterp.ov_top_tokens(bridge, 1, head, [word], k=64)
    found = torch.zeros(64)
    found[top.top_ids[0]] = top.logit[0]
    assert torch.corrcoef(torch.stack([found, expected]))[0, 1] > 0.9999
    if hasattr(block, "ln1_post"):
        assert any("Tokens keep their ranks" in sentence for sentence in top.warnings())
    else:
        multiplier = 0.5 if name == "granite" else 1.0
        assert torch.allclose(found, expected * multiplier, atol=1e-4 * float(expected.abs().max()))


def test_an_ov_circuit_through_parts_of_another_make_is_refused():
    with pytest.raises(UserError, match="it does more than look words up"):
        dcinterp.ov_top_tokens(bridge_of("bloom"), 0, 2, [7])
    bridge = bridge_of("mpt")
    with pytest.raises(UserError, match="give the residual stream back, and not what they add"):
        dcinterp.ov_top_tokens(bridge, 1, 2, [7])
    assert dcinterp.ov_top_tokens(bridge, 0, 2, [7]).top_ids.numel()
    assert dcinterp.ov_top_tokens(bridge, 1, 2, [7], mlp0="never").top_ids.numel()


def test_a_verdict_under_a_hook_is_not_kept():
    bridge = dcinterp.load(model_of("llama"))
    with (
        bridge.hooks(fwd_hooks=[("blocks.0.hook_out", lambda x, hook: x * 0.5)]),
        pytest.raises(UserError, match="OV circuits behind the first block are not known"),
    ):
        dcinterp.ov_top_tokens(bridge, 1, 2, [7])
    assert dcinterp.ov_top_tokens(bridge, 1, 2, [7]).top_ids.numel()
    last = f"blocks.{bridge.cfg.n_layers - 1}.attn.hook_z"
    with bridge.hooks(fwd_hooks=[(last, lambda z, hook: z + 1)]):
        assert "pattern" not in head_sites(bridge)
    assert "pattern" in head_sites(bridge)


def test_threads_share_a_bridge_of_another_make():
    bridge, questions = bridge_of("llama"), [(IDS, 4, 37), (OTHER, 9, 21)]

    def scores(at: int) -> Any:
        return dcinterp.attribute_heads(bridge, *questions[at % 2], steps=4, max_steps=8)

    wanted = [scores(at).scores for at in range(2)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(scores, range(6)))
    for at, each in enumerate(found):
        assert torch.allclose(each.scores, wanted[at % 2], atol=1e-5)


def test_edges_in_half_precision():
    bridge = dcinterp.load(model_of("olmo"), dtype=torch.bfloat16)
    found = dcinterp.attribute_edges(bridge, IDS, 4, 37, method="ablation")
    exact = dcinterp.attribute_edges(bridge_of("olmo"), IDS, 4, 37, method="ablation")
    assert torch.allclose(found.scores, exact.scores, atol=0.1 * float(exact.scores.abs().max()))


def test_attention_sinks_are_named():
    bridge = bridge_of("gptoss")
    for found in (dcinterp.attention_rows(bridge, IDS, 1), dcinterp.attention_patterns(bridge, IDS, 1)):
        assert any("attention sink" in sentence for sentence in found.warnings())
