"""People's own models: without a tokenizer, as an adapter, as a GGUF file, and in memory."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dcinterp
from dcinterp import UserError
from dcinterp.checkpoints import adapters, gguf_file

PROMPT = [5, 6, 7, 8]
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
BYTES = [*"abcdefgh", "Ġ", "Ġa", "ab", "<s>"]

needs_gguf = pytest.mark.skipif(find_spec("gguf") is None, reason="gguf is an optional extra")
needs_peft = pytest.mark.skipif(find_spec("peft") is None, reason="peft is an optional extra")


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Path:
    """A tiny Llama without a tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("own") / "llama"
    LlamaForCausalLM(LlamaConfig(vocab_size=509, num_key_value_heads=2, **SIZES)).save_pretrained(folder)
    return folder


def reference(folder: Path) -> Any:
    """The model of transformers itself."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder)


def test_a_model_without_a_tokenizer_takes_token_ids(bare):
    bridge = dcinterp.load(bare)
    assert bridge.tokenizer is None
    ids = torch.tensor([PROMPT])
    torch.testing.assert_close(bridge(ids), reference(bare)(ids).logits)
    assert dcinterp.predict(bridge, PROMPT).tokens == ("5", "6", "7", "8")
    with pytest.raises(UserError, match="came without a tokenizer"):
        dcinterp.predict(bridge, "a violin")


def test_a_tokenizer_of_another_folder_is_used_and_remembered(bare, tmp_path):
    bridge = dcinterp.load(bare, tokenizer="dcformer++")
    found = dcinterp.predict(bridge, "Ruth has a violin")
    assert found.tokens[-1].strip() == "violin"
    assert 'tokenizer="dcformer++"' in found.call.python()
    assert "--tokenizer dcformer++" in found.call.command()
    found.save(tmp_path / "result")
    again = dcinterp.replay(tmp_path / "result")
    assert again.same
    assert again.again.tokens == found.tokens


def test_the_command_line_takes_a_tokenizer_too(bare, capsys):
    from dcinterp.cli import main

    said = ["--prompt", "Ruth has a violin", "--json"]
    with pytest.raises(SystemExit) as ended:
        main(["analyze", "predict", str(bare), "--tokenizer", "dcformer++", *said])
    assert not ended.value.code
    assert json.loads(capsys.readouterr().out)["call"]["tokenizer"] == "dcformer++"
    with pytest.raises(SystemExit) as ended:
        main(["analyze", "predict", str(bare), *said])
    assert ended.value.code == 2
    assert "came without a tokenizer; give token ids instead of text" in capsys.readouterr().err


def test_a_tokenizer_of_another_vocabulary_is_refused(tmp_path, bare):
    with pytest.raises(UserError, match="has no tokenizer"):
        dcinterp.load(bare, tokenizer=bare)
    with pytest.raises(UserError, match="no folder"):
        dcinterp.load(bare, tokenizer=tmp_path / "nowhere")
    with pytest.raises(UserError, match="has its own words"):
        dcinterp.load("planted:share-by-kp", tokenizer="dcformer++")
    config = json.loads((bare / "config.json").read_text())
    from transformers import LlamaConfig, LlamaForCausalLM

    LlamaForCausalLM(LlamaConfig(**(config | {"vocab_size": 40}))).save_pretrained(tmp_path / "small")
    with pytest.raises(UserError, match=r"ids up to 508, .* ends at 39"):
        dcinterp.load(tmp_path / "small", tokenizer="dcformer++")


def test_a_model_in_memory_is_copied(bare):
    model = reference(bare).eval()
    ids = torch.tensor([PROMPT])
    expected = model(ids).logits
    bridge = dcinterp.load(model, tokenizer="dcformer++")
    torch.testing.assert_close(bridge(ids), expected)
    assert torch.equal(model(ids).logits, expected)
    assert "built in memory" in dcinterp.predict(bridge, PROMPT).call.python()
    with pytest.raises(UserError, match="Linear is not a language model"):
        dcinterp.load(torch.nn.Linear(2, 2))


def adapter(folder: Path, base: object) -> Path:
    """A folder that says whose adapter it is."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": base}))
    return folder


@pytest.mark.parametrize("act", [dcinterp.load, dcinterp.describe])
@pytest.mark.parametrize(
    ("base", "said"),
    [
        ("nobody/nothing", "'nobody/nothing', which is not on this machine"),
        ("a" * 5000, "The adapter in .*which is not on this machine"),
        ("~nobody/x", "The adapter in .*which is not on this machine"),
        (None, "does not say"),
    ],
)
def test_an_adapter_whose_base_is_not_there_says_so(tmp_path, act, base, said):
    with pytest.raises(UserError, match=said):
        act(adapter(tmp_path / "adapter", base))


def test_an_adapter_without_peft_or_weights_says_so(tmp_path, bare, monkeypatch):
    shutil.copytree(bare, tmp_path / "llama")
    folder = adapter(tmp_path / "llama" / "adapter", "..")  # relative to the adapter, as people move both together
    monkeypatch.setattr(adapters, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="takes the package peft; install it with: pip install"):
        dcinterp.load(folder)
    monkeypatch.setattr(adapters, "find_spec", lambda name: True)
    with pytest.raises(UserError, match=r"no adapter_model\.safetensors"):
        dcinterp.load(folder)


@needs_peft
@pytest.mark.parametrize("ours", [False, True])
def test_an_adapter_computes_what_peft_computes(tmp_path, bare, ours):
    from peft import LoraConfig, get_peft_model

    base = Path(dcinterp.__file__).parent / "checkpoints" / "shipped" / "dcformer++" if ours else bare
    model = dcinterp.read_model(base) if ours else reference(base)
    model.config.name_or_path = str(base)
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"])).eval()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    adapted.save_pretrained(tmp_path / "adapter")
    ids = torch.tensor([PROMPT])
    expected = adapted(ids).logits
    assert not torch.allclose(expected, dcinterp.load(base)(ids), atol=1e-3)
    for given in (tmp_path / "adapter", adapted):
        bridge = dcinterp.load(given)
        torch.testing.assert_close(bridge(ids), expected, atol=1e-4, rtol=1e-4)
        assert (bridge.tokenizer is not None) == ours
    assert torch.equal(adapted(ids).logits, expected), "the one in memory was changed"
    assert "adapter" in dcinterp.describe(tmp_path / "adapter").family


def write_gguf(path: Path, model: Any, more: Any = lambda file: None) -> Path:
    """A tiny Llama as llama.cpp stores it: rows of q and k in another order, a byte-level BPE inside.

    more: adds to the writer what else the file is to hold.
    """
    import gguf

    config, tensors = model.config, {name: t.numpy() for name, t in model.state_dict().items()}
    file = gguf.GGUFWriter(str(path), "llama")
    file.add_block_count(config.num_hidden_layers)
    file.add_context_length(64)
    file.add_embedding_length(config.hidden_size)
    file.add_feed_forward_length(config.intermediate_size)
    file.add_head_count(config.num_attention_heads)
    file.add_head_count_kv(config.num_key_value_heads)
    file.add_layer_norm_rms_eps(config.rms_norm_eps)
    file.add_rope_freq_base(config.rope_parameters["rope_theta"])
    file.add_vocab_size(config.vocab_size)
    file.add_tokenizer_model("gpt2")
    file.add_token_list(BYTES)
    file.add_token_types([gguf.TokenType.NORMAL] * (len(BYTES) - 1) + [gguf.TokenType.CONTROL])
    file.add_token_merges(["Ġ a", "a b"])
    for special in ("bos", "eos", "unk"):
        getattr(file, f"add_{special}_token_id")(len(BYTES) - 1)
    places = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.o_proj": "attn_output",
        **{f"self_attn.{x}_proj": f"attn_{x}" for x in "qkv"},
        **{f"mlp.{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")},
    }
    tops = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for name, array in tensors.items():
        part = name.removesuffix(".weight")
        theirs = tops.get(part) or f"blk.{part.split('.')[2]}.{places[part.split('.', 3)[3]]}"
        if theirs.endswith(("attn_q", "attn_k")):
            heads = config.num_attention_heads if theirs.endswith("q") else config.num_key_value_heads
            halves = array.reshape(heads, 2, -1, array.shape[1])
            array = halves.swapaxes(1, 2).reshape(array.shape)
        file.add_tensor(f"{theirs}.weight", np.ascontiguousarray(array))
    more(file)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path


@pytest.fixture
def packed(tmp_path) -> tuple[Path, Any]:
    """(a GGUF file, the model that is in it)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=len(BYTES), num_key_value_heads=2, max_position_embeddings=64, **SIZES)
    model = LlamaForCausalLM(config).eval()
    (tmp_path / "gguf").mkdir()
    return write_gguf(tmp_path / "gguf" / "tiny.gguf", model), model


@needs_gguf
def test_a_gguf_file_and_its_folder_open(packed):
    file, model = packed
    bridge = dcinterp.load(file)
    ids = bridge.tokenizer("ab a", return_tensors="pt", add_special_tokens=False)["input_ids"]
    assert bridge.tokenizer.convert_ids_to_tokens(ids[0]) == ["ab", "Ġa"]
    torch.testing.assert_close(bridge(ids), model(ids).logits, atol=1e-5, rtol=1e-4)
    found = dcinterp.predict(dcinterp.load(file.parent), "ab a")
    assert found.call.reproducible
    described = dcinterp.describe(file)
    assert (described.layers, described.width, described.heads, described.context) == (2, 16, 4, 64)
    assert (described.key_value_heads, described.head_width) == (2, 4)
    assert described.parameters == sum(p.numel() for p in model.parameters())
    assert described.dtype == "float32, from F32 in the file"
    assert dcinterp.describe(bridge).parameters == described.parameters


@needs_gguf
def test_a_damaged_gguf_file_is_one_sentence(packed):
    file, _ = packed
    file.write_bytes(file.read_bytes()[:700])
    for act in (dcinterp.load, dcinterp.describe):
        with pytest.raises(UserError, match="damaged") as refused:
            act(file)
        assert len(str(refused.value)) < 400 + len(str(file))


@needs_gguf
@pytest.mark.parametrize("what", ["type", "factors", "bias", "linear", "no type", "cap", "window", "part"])
def test_what_transformers_leaves_out_of_a_gguf_file_is_refused(packed, tmp_path, what):
    from gguf import RopeScalingType

    adds = {
        "type": lambda file: (file.add_rope_scaling_type(RopeScalingType.YARN), file.add_rope_scaling_factor(4.0)),
        "factors": lambda file: file.add_tensor("rope_freqs.weight", np.ones(2, np.float32)),
        "bias": lambda file: file.add_tensor("blk.0.attn_q.bias", np.ones(16, np.float32)),
        "linear": lambda file: file.add_float32("llama.rope.scale_linear", 4.0),
        "no type": lambda file: file.add_rope_scaling_factor(4.0),
        "cap": lambda file: file.add_final_logit_softcapping(5.0),
        "window": lambda file: file.add_sliding_window(12),
        "part": lambda file: file.add_uint16("split.count", 2),
    }
    said = {"type": r"scales its rotary embedding \('yarn'\)", "factors": "by factors of its own", "bias": "has biases"}
    said |= {what: r"scales its rotary embedding \('linear'\)" for what in ("linear", "no type")}
    said |= {"cap": "sets final_logit_softcapping to 5.0", "window": "sets attention.sliding_window to 12"}
    said["part"] = r"is one of 2 parts of a model; join them"
    with pytest.raises(UserError, match=said[what]):
        dcinterp.load(write_gguf(tmp_path / "more.gguf", packed[1], adds[what]))


def test_gguf_files_that_cannot_be_read_say_why(tmp_path, monkeypatch):
    (tmp_path / "one.gguf").write_bytes(b"GGUF" + bytes(20))
    monkeypatch.setattr(gguf_file, "find_spec", lambda name: None)
    for act in (dcinterp.load, dcinterp.describe):
        with pytest.raises(UserError, match=r"takes the package gguf; install it with: pip install 'dcinterp\[gguf\]'"):
            act(tmp_path)
    (tmp_path / "two.gguf").write_bytes(b"nothing")
    with pytest.raises(UserError, match="does not begin as a GGUF file does"):
        dcinterp.load(tmp_path / "two.gguf")
    with pytest.raises(UserError, match=r"has 2 GGUF files \(one\.gguf, two\.gguf\); give the path of one"):
        dcinterp.load(tmp_path)
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(UserError, match="is a file; give the folder"):
        dcinterp.load(tmp_path / "notes.txt")


def test_a_model_in_memory_is_opened_as_it_is(bare):
    with pytest.raises(UserError, match='decoder="own" opens a folder or a hub id'):
        dcinterp.load(reference(bare), decoder="own")
    with pytest.raises(UserError, match="nonsense"):
        dcinterp.load(reference(bare), decoder="nonsense")


def test_a_tokenizer_in_two_older_files_is_read_by_our_decoder_too(bare, tmp_path):
    folder = shutil.copytree(bare, tmp_path / "llama")
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(BYTES)}))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "GPT2Tokenizer", "bos_token": "<s>", "eos_token": "<s>", "unk_token": "<s>"})
    )
    found = dcinterp.load(folder, decoder="own").tokenizer
    assert found is not None
    assert found("ab").input_ids[-1] == BYTES.index("ab")


def test_a_model_and_an_adapter_in_one_folder_are_refused_and_an_adapter_beside_a_config_is_one(tmp_path, bare):
    import shutil

    both = shutil.copytree(bare, tmp_path / "both")
    (both / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": str(bare)}))
    for act in (dcinterp.load, dcinterp.describe, lambda folder: dcinterp.load(folder, decoder="own")):
        with pytest.raises(UserError, match=r"holds a model and an adapter .*; move one of them"):
            act(both)
    (both / "model.safetensors").unlink()
    (both / "training_args.bin").write_bytes(b"")
    assert "with the adapter merged into it" in dcinterp.describe(both).family


def test_biases_that_the_config_does_not_ask_for_are_refused(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    LlamaForCausalLM(LlamaConfig(vocab_size=50, attention_bias=True, **SIZES)).save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    del fields["attention_bias"]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(UserError, match=r"they have .*_proj\.bias, which it does not ask for"):
        dcinterp.load(tmp_path)


def test_masks_of_old_checkpoints_are_neither_refused_nor_counted(tmp_path):
    from safetensors.torch import load_file, save_file
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
    model = GPT2LMHeadModel(GPT2Config(**sizes))
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    count = dcinterp.describe(tmp_path).parameters
    assert count == sum(each.numel() for each in model.parameters())
    mask = torch.ones(1, 1, 32, 32)
    tensors |= {
        f"transformer.h.{layer}.attn.{name}": mask.clone() for layer in (0, 1) for name in ("bias", "masked_bias")
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert dcinterp.describe(tmp_path).parameters == count
    ids = torch.tensor([PROMPT])
    torch.testing.assert_close(dcinterp.load(tmp_path)(ids), model.eval()(ids).logits)
