"""Other people's models: the cache warns where it would leave out a norm's gain."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import dcinterp
from dcinterp import UserError
from dcinterp.bridge import GainWarning, TransformerBridge


@pytest.mark.parametrize("shape", ["llama", "gpt2"])
def test_norms_of_parts_warn_until_their_gain_is_folded(own_model: Callable[[str], Path], shape: str) -> None:
    bridge = dcinterp.load(own_model(shape))
    assert isinstance(bridge, TransformerBridge)
    with torch.no_grad():  # a trained model's gains are not 1
        bridge.ln_final.original_component.weight.mul_(torch.linspace(0.5, 2, bridge.cfg.d_model))
    ids = torch.tensor([[5, 6, 7]])
    logits, cache = bridge.run_with_cache(ids)
    with pytest.warns(GainWarning, match=r"without the norm's gain.*call enable_compatibility_mode\(\)"):
        wrong = cache.decompose_resid(apply_ln=True).sum(0) @ bridge.W_U
    assert not torch.allclose(wrong, logits, atol=1e-2)
    bridge.enable_compatibility_mode(disable_warnings=True, fold_ln=False)
    with pytest.warns(GainWarning, match="without the norm's gain"):
        bridge.run_with_cache(ids)[1].decompose_resid(apply_ln=True)
    bridge = dcinterp.load(own_model(shape))
    with torch.no_grad():
        bridge.ln_final.original_component.weight.mul_(torch.linspace(0.5, 2, bridge.cfg.d_model))
    bridge.enable_compatibility_mode(disable_warnings=True)
    logits, cache = bridge.run_with_cache(ids)
    with warnings.catch_warnings():
        warnings.simplefilter("error", GainWarning)
        right = cache.decompose_resid(apply_ln=True).sum(0) @ bridge.W_U + bridge.b_U
    torch.testing.assert_close(right, logits, atol=1e-4, rtol=1e-4)


def test_norms_that_multiply_by_one_plus_their_weight_have_no_gain_once_folded(tmp_path: Path) -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    Gemma2ForCausalLM(Gemma2Config(**sizes, num_attention_heads=4, num_key_value_heads=2)).save_pretrained(tmp_path)
    bridge = dcinterp.load(tmp_path)
    with torch.no_grad():
        bridge.ln_final.original_component.weight.add_(torch.linspace(0.5, 2, bridge.cfg.d_model))
    with pytest.warns(GainWarning):
        bridge.run_with_cache(torch.tensor([[5, 6, 7]]))[1].decompose_resid(apply_ln=True)
    bridge.enable_compatibility_mode(disable_warnings=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", GainWarning)
        bridge.run_with_cache(torch.tensor([[5, 6, 7]]))[1].decompose_resid(apply_ln=True)


@pytest.mark.parametrize("saved", [True, False])
def test_a_config_that_the_bridge_does_not_know_is_refused(tmp_path: Path, saved: bool) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
    model = GPT2LMHeadModel(GPT2Config(**sizes, scale_attn_weights=False))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"logits of TransformerLens's bridge are not those of .* \(off by 0\.\d+ of"):
        dcinterp.load(tmp_path if saved else model)


def test_an_architecture_that_is_not_wrapped_is_one_sentence() -> None:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    model = GPTNeoXForCausalLM(GPTNeoXConfig(**sizes, num_attention_heads=4, attention_bias=False))
    with pytest.raises(UserError, match="GPTNeoXForCausalLM is a model that TransformerLens does not wrap"):
        dcinterp.load(model)


@pytest.mark.parametrize("kind", ["T5ForConditionalGeneration", "BertForMaskedLM", "LlamaForSequenceClassification"])
def test_what_does_not_continue_texts_is_refused_by_its_kind(tmp_path: Path, kind: str) -> None:
    import transformers

    sizes = {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 48,
    }
    theirs = getattr(transformers, kind)
    model = theirs(theirs.config_class(**({"vocab_size": 64, "num_layers": 1} if kind[0] == "T" else sizes)))
    model.save_pretrained(tmp_path)
    for opens in (dcinterp.load, dcinterp.describe):
        for name in (str(tmp_path), f"own:{tmp_path}"):
            with pytest.raises(UserError, match=r"config\.json is that of .*; give a causal language model"):
                opens(name)
    with pytest.raises(UserError, match=rf"The config of this {kind} is that of .*; give a causal language model"):
        dcinterp.load(model)


def test_a_model_that_runs_but_not_with_a_cache_is_refused() -> None:
    """OPT of 350M: norms behind the layers, and an embedding that is narrower than they are."""
    from transformers import OPTConfig, OPTForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "ffn_dim": 48, "num_attention_heads": 4}
    narrow = OPTConfig(**sizes, word_embed_proj_dim=16, do_layer_norm_before=False, max_position_embeddings=64)
    with pytest.raises(UserError, match=r"TransformerLens does not run OPTForCausalLM, though transformers does: "):
        dcinterp.load(OPTForCausalLM(narrow))


def test_processing_that_changes_what_a_model_predicts_is_refused() -> None:
    """A square MLP, whose matrices TransformerLens takes for their transposes."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    square = GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64, n_inner=32)
    model = GPT2LMHeadModel(square)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (".ln_" in name and name.endswith("weight")))
    with pytest.raises(UserError, match=r"processing of the weights changed what .* predicts .* open the model again"):
        dcinterp.load(model).enable_compatibility_mode(disable_warnings=True)
    bridge = dcinterp.load(model)
    bridge.enable_compatibility_mode(disable_warnings=True, no_processing=True)
