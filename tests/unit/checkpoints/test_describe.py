"""A description of files says the same as one of the loaded model, and both say what the model is."""

from __future__ import annotations

import pytest
import torch

import dcinterp
from dcinterp.checkpoints.describe import composition_of, describe, family_of, size
from dcinterp.checkpoints.layouts import write_foreign
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.model.presets import FAMILIES, presets
from dcinterp.support.errors import UserError


@pytest.mark.parametrize("name", ["dcformer++", "transformer++"])
def test_files_and_bridge_agree(name):
    described, bridge = describe(name), dcinterp.load(name)
    assert described == describe(bridge)
    # The bridge adds zero biases of its own; the model's file is the truth.
    stored = dcinterp.read_model(dcinterp.checkpoints.load.SHIPPED / name).parameters()
    assert described.parameters == sum(parameter.numel() for parameter in stored)
    assert described.weights_bytes == 4 * described.parameters


def test_what_composing_takes_is_the_difference_to_the_baseline():
    composed, plain = describe("dcformer++"), describe("transformer++")
    assert composed.parameters - composed.composition_parameters == plain.parameters
    assert composed.composition.startswith("scores (pre) and weights (post)")
    assert plain.composition == ""


@pytest.mark.parametrize("layout", ["dcformer", "dcpythia"])
def test_a_released_layout_is_described_from_its_files(tmp_path, layout):
    family = {"dcformer": "dcformer++", "dcpythia": "dcpythia"}[layout]
    config = DCFormerConfig.preset(f"tiny-{family}", num_hidden_layers=2, vocab_size=50, use_qk_norm=True)
    model = DCFormerForCausalLM(config).to(torch.bfloat16)
    write_foreign(model, tmp_path, layout)
    described = describe(tmp_path)
    assert (described.family, described.layers, described.dtype) == (family, 2, "bfloat16")
    assert described.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert described.weights_bytes == 2 * described.parameters


def test_a_width_that_is_not_written_and_windows_are_told(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

    GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=24, n_layer=1, n_head=4)).save_pretrained(tmp_path / "gpt2")
    assert "MLP 96" in describe(tmp_path / "gpt2").sentences()[0]
    sizes = {"vocab_size": 50, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
    config = MistralConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, sliding_window=4)
    MistralForCausalLM(config).save_pretrained(tmp_path / "mistral")
    assert ", windows 4, " in describe(f"own:{tmp_path / 'mistral'}").sentences()[0]
    assert "windows" not in describe("dcformer++").sentences()[0]


def test_a_foreign_model_is_described(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=50, hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path)
    described = describe(tmp_path)
    assert (described.family, described.layers, described.heads, described.head_width) == ("llama", 3, 4, 6)
    assert described.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert "not composed" in "\n".join(described.sentences())


def test_every_preset_is_of_its_family():
    for each in presets().values():
        assert family_of(DCFormerConfig.preset(each.name)) == each.family
        assert bool(composition_of(DCFormerConfig.preset(each.name))) == (each.family not in FAMILIES)


def test_ablations_are_named():
    config = DCFormerConfig.preset(
        "tiny-dcformer++", compose_gate=False, compose_key_wise=False, compose_stages=["post"]
    )
    assert composition_of(config) == "weights (post) composed by query: rank 2"


def test_refusals(tmp_path):
    with pytest.raises(UserError, match="no folder EleutherAI/pythia-70m"):
        describe("EleutherAI/pythia-70m")
    (tmp_path / "config.json").write_text('{"model_type": "dcmha"}')
    with pytest.raises(UserError, match="no safetensors weights"):
        describe(tmp_path)


def test_sizes_in_words():
    assert [size(n) for n in (999, 3_228_160, 13.9e9, 2.5e12)] == ["999 B", "3.23 MB", "13.9 GB", "2,500 GB"]
