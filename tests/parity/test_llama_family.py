"""Llama and its relatives: the models of transformers, random, opened in our decoder with nothing composed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import dcinterp
from dcinterp.checkpoints.layouts import write_foreign
from dcinterp.checkpoints.names import SHIPPED
from dcinterp.checkpoints.read import read_model
from dcinterp.checkpoints.verify import verify
from dcinterp.support.errors import UserError

SMALL = dict(vocab_size=53, hidden_size=48, intermediate_size=72, num_hidden_layers=3, num_attention_heads=6)
SMALL |= dict(max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]

# What config.json says beside the sizes, in the spellings of several versions of transformers.
CASES: dict[str, dict[str, Any]] = {
    "llama": dict(model_type="llama", num_key_value_heads=2, rope_theta=5000.0),
    "llama-all-heads": dict(model_type="llama", rms_norm_eps=1e-5),
    "llama-one-key-head-tied": dict(model_type="llama", num_key_value_heads=1, tie_word_embeddings=True),
    "llama-biases-wide-heads": dict(
        model_type="llama", num_key_value_heads=3, attention_bias=True, mlp_bias=True, head_dim=10
    ),
    "llama-3": dict(
        model_type="llama", rope_theta=500.0, rope_scaling=LLAMA3 | {"original_max_position_embeddings": 16},
        tie_word_embeddings=True, num_key_value_heads=2,
    ),
    "llama-linear": dict(model_type="llama", rope_theta=1000.0, rope_scaling={"type": "linear", "factor": 4.0}),
    "llama-yarn": dict(model_type="llama", rope_parameters=YARN | {"rope_theta": 100.0}),
    "llama-yarn-every-field": dict(
        model_type="llama",
        rope_parameters=YARN
        | dict(rope_theta=50.0, beta_fast=4.0, beta_slow=0.5, truncate=False, attention_factor=0.9),
    ),
    "llama-yarn-mscale": dict(
        model_type="llama", rope_parameters=YARN | dict(rope_theta=100.0, mscale=1.0, mscale_all_dim=0.5)
    ),
    "llama-dynamic": dict(model_type="llama", rope_scaling={"type": "dynamic", "factor": 2.0}),
    "mistral": dict(model_type="mistral", num_key_value_heads=2, sliding_window=5),
    "mistral-global": dict(model_type="mistral", num_key_value_heads=3, sliding_window=None, head_dim=12),
    "qwen2": dict(model_type="qwen2", num_key_value_heads=2, tie_word_embeddings=True),
    "qwen2-upper-layers-local": dict(
        model_type="qwen2", num_key_value_heads=2, use_sliding_window=True, sliding_window=4, max_window_layers=1
    ),
    "qwen3": dict(model_type="qwen3", num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-3),
    "qwen3-local-biases": dict(
        model_type="qwen3", num_key_value_heads=3, head_dim=8, attention_bias=True, use_sliding_window=True,
        sliding_window=3, layer_types=LAYERS,
    ),
}  # fmt: skip


def write(folder: Path, fields: dict[str, Any]) -> Any:
    """A random model of transformers with this config.json, saved with it as it is; and the model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SMALL | fields))
    model = AutoModelForCausalLM.from_config(
        their_config(folder), attn_implementation="eager", dtype=torch.float32
    ).eval()
    g = torch.Generator().manual_seed(len(str(fields)))
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=g)
            p.copy_(1 + 0.3 * noise if name.endswith("norm.weight") else noise / p.shape[-1] ** 0.5)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(SMALL | fields))
    return model


def their_config(folder: Path) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder)


def ids(length: int = 40) -> torch.Tensor:
    return torch.randint(3, 53, (2, length), generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=CASES)
def fields(request: pytest.FixtureRequest) -> dict[str, Any]:
    return CASES[request.param]


@torch.no_grad()
def test_our_decoder_gives_the_logits_of_transformers(fields: dict[str, Any], tmp_path: Path) -> None:
    theirs, tokens = write(tmp_path, fields), ids()
    expected = theirs(tokens).logits
    bridge = dcinterp.load(tmp_path, decoder="own")
    assert type(bridge).__name__ == "DCBridge"
    torch.testing.assert_close(bridge(tokens), expected, atol=1e-5, rtol=0)
    tapped, cache = bridge.run_with_cache(tokens)  # stage by stage
    torch.testing.assert_close(tapped, expected, atol=1e-5, rtol=0)
    heads = theirs.config.num_key_value_heads
    assert cache["v", 1].shape[2] == cache["k", 1].shape[2] == cache["rot_k", 1].shape[2] == heads
    patterns = theirs(tokens, output_attentions=True).attentions
    # Some processors round a softmax of float32 by a little more than 1e-6.
    torch.testing.assert_close(cache["pattern", 1], patterns[1], atol=1e-5, rtol=0)


@torch.no_grad()
def test_cached_decoding_and_generation(fields: dict[str, Any], tmp_path: Path) -> None:
    theirs, tokens = write(tmp_path, fields), ids(12)
    model = read_model(tmp_path)
    cache, decoded = None, []
    for step in (tokens[:, :5], *tokens[:, 5:].split(1, dim=1)):
        output = model(step, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        decoded.append(output.logits)
    assert cache.layers[1].keys.shape[1] == theirs.config.num_key_value_heads
    torch.testing.assert_close(torch.cat(decoded, 1), theirs(tokens).logits, atol=1e-5, rtol=0)
    options = dict(max_new_tokens=8, do_sample=False, attention_mask=torch.ones_like(tokens))
    assert torch.equal(model.generate(tokens, **options), theirs.generate(tokens, **options))


@torch.no_grad()
def test_there_and_back(fields: dict[str, Any], tmp_path: Path) -> None:
    """Through our own layout, and from it to a folder that transformers opens as its own model."""
    theirs, tokens = write(tmp_path / "theirs", fields), ids()
    model = read_model(tmp_path / "theirs")
    model.save_pretrained(tmp_path / "ours")
    again = read_model(tmp_path / "ours")
    assert torch.equal(again(tokens).logits, model(tokens).logits)
    assert again.num_parameters() == model.num_parameters() == theirs.num_parameters()
    write_foreign(again, tmp_path / "back", fields["model_type"])
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "back", attn_implementation="eager")
    assert type(back) is type(theirs)
    torch.testing.assert_close(back(tokens).logits, theirs(tokens).logits, atol=1e-6, rtol=0)


def test_the_plain_reference_agrees(fields: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, fields)
    assert verify(tmp_path, length=24).largest < 1e-5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(model_type="llama", hidden_act="gelu"), "has hidden_act, and our decoder does not compute 'gelu'"),
        (
            dict(
                model_type="llama",
                rope_scaling=dict(rope_type="longrope", short_factor=[1.0] * 4, long_factor=[2.0] * 4),
            ),
            "has rope_type, and our decoder does not compute 'longrope'",
        ),
        (
            dict(model_type="llama", partial_rotary_factor=0.5),
            r"has partial_rotary_factor, and our decoder does not compute 0\.5",
        ),
        (dict(model_type="llama", quantization_config=dict(bits=4)), "has quantization_config"),
        (dict(model_type="llama", num_key_value_heads=4), "num_key_value_heads is 4; choose a divisor of the 6"),
        (dict(model_type="llama", rope_scaling=dict(rope_type="llama3", factor=2.0)), "is not a valid llama one"),
        (dict(model_type="mistral", layer_types=LAYERS), "has layer_types"),
        (dict(model_type="qwen2", layer_types=["chunked_attention"] * 3), "layer_types"),
    ],
)
def test_what_it_does_not_compute_is_refused_by_name(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    write(tmp_path, dict(model_type=fields["model_type"]))
    (tmp_path / "config.json").write_text(json.dumps(SMALL | fields))
    with pytest.raises(UserError, match=message) as raised:
        dcinterp.load(tmp_path, decoder="own")
    assert "\n" not in str(raised.value)


def test_the_decoder_is_chosen_by_the_person(tmp_path: Path) -> None:
    write(tmp_path, CASES["llama"])
    for file in (SHIPPED / "dcformer++").glob("tokenizer*"):
        shutil.copy(file, tmp_path)  # TransformerLens opens no folder without one
    assert type(dcinterp.load(tmp_path)).__name__ == "ForeignBridge"
    by_name = dcinterp.load(f"own:{tmp_path}")
    assert by_name.source == dcinterp.load(tmp_path, decoder="own").source == f"own:{tmp_path}"
    assert dcinterp.describe(f"own:{tmp_path}").family == "transformer++"
    assert dcinterp.describe(tmp_path).family == "llama"
    with pytest.raises(UserError, match="There is no decoder 'ours'"):
        dcinterp.load(tmp_path, decoder="ours")  # type: ignore[arg-type]
    (tmp_path / "config.json").write_text(json.dumps(dict(model_type="gpt2")))
    with pytest.raises(UserError, match="of type 'gpt2', which our decoder does not read; it reads dcformer"):
        dcinterp.load(tmp_path, decoder="own")


def test_ends_that_differ_are_not_tied(tmp_path: Path) -> None:
    """The weights are believed, not the config, as in transformers."""
    theirs = write(tmp_path, CASES["llama"])
    (tmp_path / "config.json").write_text(json.dumps(SMALL | CASES["llama"] | {"tie_word_embeddings": True}))
    model = read_model(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(model(ids()).logits, theirs(ids()).logits, atol=1e-5, rtol=0)
        model.save_pretrained(tmp_path / "ours")
        assert torch.equal(read_model(tmp_path / "ours")(ids()).logits, model(ids()).logits)
