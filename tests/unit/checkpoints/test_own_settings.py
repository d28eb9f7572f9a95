"""Models of others whose settings change what is computed: each is kept, or refused by name."""

import json
from importlib.util import find_spec

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedTokenizerFast

import dcinterp
from dcinterp.checkpoints.gguf_settings import complete_config, require_settings
from dcinterp.checkpoints.load import _cast
from dcinterp.checkpoints.tensor_files import checkpoint_files
from dcinterp.support.errors import UserError

SIZES = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
IDS = torch.randint(3, 64, (1, 40), generator=torch.Generator().manual_seed(0))

needs_peft = pytest.mark.skipif(find_spec("peft") is None, reason="peft is an optional extra")


def tiny(kind: str, **changes):
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**(SIZES | changes))
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()


@pytest.mark.parametrize(
    ("kind", "header"),
    [
        ("starcoder2", {"rope.freq_base": 1e6}),
        ("stablelm", {"rope.freq_base": 1e6, "rope.dimension_count": 4}),
        ("phi3", {"attention.sliding_window": 12, "context_length": 256}),
        ("gemma2", {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}),
    ],
)
def test_what_a_gguf_header_says_is_computed(kind, header):
    config = CONFIG_MAPPING[kind](**SIZES)
    with pytest.raises(UserError, match="so its logits would be wrong"):
        require_settings(AutoModelForCausalLM.from_config(config), header, "file.gguf")
    complete_config(config, header)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    require_settings(model, header, "file.gguf")
    before = tiny(kind)
    model.load_state_dict(before.state_dict())
    with torch.no_grad():
        assert not torch.allclose(model(IDS).logits, before(IDS).logits, atol=1e-6)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("final_logit_softcapping", 5.0),
        ("attention.sliding_window", 12),
        ("logit_scale", 0.37),
        ("rope.freq_base", 5e5),
    ],
)
def test_what_a_model_has_no_place_for_is_named(key, value):
    with pytest.raises(UserError, match=f"file.gguf sets {key} to"):
        require_settings(tiny("llama"), {key: value, "context_length": 256}, "file.gguf")


def test_a_window_as_long_as_the_context_is_none():
    require_settings(tiny("llama"), {"attention.sliding_window": 256, "context_length": 256}, "file.gguf")


@pytest.mark.parametrize("kind", ["gemma3_text", "olmo2"])
def test_a_model_made_of_a_config_opens(kind):
    model = tiny(kind)
    assert not model.config.architectures
    with torch.no_grad():
        torch.testing.assert_close(dcinterp.load(model)(IDS), model(IDS).logits, atol=1e-4, rtol=1e-4)


def test_rotary_frequencies_stay_exact_in_half_precision():
    model = tiny("llama")
    exact = model.model.rotary_emb.inv_freq.clone()
    _cast(model, torch.bfloat16)
    assert torch.equal(model.model.rotary_emb.inv_freq, exact)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_a_given_tokenizer_keeps_what_was_added_to_it(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{n}": n for n in range(3, 60)}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **ends)
    tiny("llama").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    tokenizer.add_tokens(["<x>"])
    bridge = dcinterp.load(tmp_path, tokenizer=tokenizer)
    assert bridge.to_tokens("w5 <x> w7", prepend_bos=False)[0].tolist() == [5, 60, 7]


def test_of_two_indices_that_of_transformers_is_read(tmp_path):
    for name in ("consolidated", "model"):
        (tmp_path / f"{name}-00001-of-00001.safetensors").write_bytes(b"")
        index = {"weight_map": {"a": f"{name}-00001-of-00001.safetensors"}}
        (tmp_path / f"{name}.safetensors.index.json").write_text(json.dumps(index))
    assert [file.name for file in checkpoint_files(tmp_path)] == ["model-00001-of-00001.safetensors"]


@pytest.fixture
def adapted():
    """Makes a model with a LoRA that matters, by what its config says."""
    from peft import LoraConfig, get_peft_model

    def make(targets: list[str], **changes):
        model = get_peft_model(tiny("llama", **changes), LoraConfig(r=4, target_modules=["q_proj", *targets])).eval()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
        return model

    return make


@needs_peft
@pytest.mark.parametrize("target", ["embed_tokens", "lm_head"])
def test_an_adapter_of_one_end_leaves_the_tied_other_end(adapted, target):
    model = adapted([target], tie_word_embeddings=True)
    with torch.no_grad():
        torch.testing.assert_close(dcinterp.load(model)(IDS), model(IDS).logits, atol=1e-4, rtol=1e-4)


@needs_peft
def test_an_adapter_in_half_precision_may_be_rounded(adapted):
    model = adapted(["down_proj"]).to(torch.bfloat16)
    expected = model(IDS).logits.float()
    found = dcinterp.load(model)(IDS).float()
    assert float((found - expected).norm() / expected.norm()) < 0.1


@needs_peft
def test_an_adapter_that_is_switched_off_is_a_sentence(adapted):
    model = adapted([])
    model.base_model.disable_adapter_layers()
    with pytest.raises(UserError, match="is it switched off"):
        dcinterp.load(model)


@needs_peft
def test_an_adapter_that_transformers_put_in_is_in_the_weights(adapted):
    model = adapted([])
    inner = model.base_model.model
    bridge = dcinterp.load(inner)
    with torch.no_grad():
        torch.testing.assert_close(bridge(IDS), model(IDS).logits, atol=1e-4, rtol=1e-4)
    assert not any("lora" in name for name, _ in bridge.original_model.named_modules())


@needs_peft
def test_the_revision_of_an_adapters_base_is_taken(adapted, tmp_path, monkeypatch):
    from dcinterp.checkpoints import adapters

    asked = []
    monkeypatch.setattr(adapters, "cached_snapshot", lambda name, revision=None: asked.append((name, revision)))
    record = {"peft_type": "LORA", "base_model_name_or_path": "me/base", "revision": "step3"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"'me/base' \(revision 'step3'\), which is not on this machine"):
        dcinterp.load(tmp_path)
    assert asked
    assert set(asked) == {("me/base", "step3")}
