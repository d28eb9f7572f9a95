"""Differential attention as transformers has it: random DiffLlama checkpoints, opened with taps, and written back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

import dcinterp
from dcinterp.bridge import wrap
from dcinterp.checkpoints.layouts import write_foreign
from dcinterp.checkpoints.layouts.diffllama import write_config
from dcinterp.checkpoints.read import read_model
from dcinterp.checkpoints.verify import verify
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.support.errors import UserError

IDS = torch.randint(0, 31, (2, 9), generator=torch.Generator().manual_seed(4))


def save(folder: Path, **changes: Any) -> DiffLlamaForCausalLM:
    sizes = dict(vocab_size=31, hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4)
    rope = {"rope_type": "default", "rope_theta": 5000.0}
    torch.manual_seed(0)
    model = DiffLlamaForCausalLM(
        DiffLlamaConfig(**(sizes | dict(max_position_embeddings=24, rope_parameters=rope, pad_token_id=0) | changes))
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            # A lambda close to 1 would make nothing but rounding of the first token.
            size = 0.2 if "lambda" in name else parameter.shape[-1] ** -0.5
            parameter.copy_(1 + 0.3 * noise if "norm" in name else size * noise)
    model.save_pretrained(folder)
    return model.eval()


@torch.no_grad()
@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict(tie_word_embeddings=True),
        dict(num_attention_heads=8, num_key_value_heads=4),
        dict(num_key_value_heads=2),
    ],
    ids=str,
)
def test_the_logits_are_those_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = save(tmp_path / "theirs", **changes)
    ours, expected = read_model(tmp_path / "theirs"), theirs(IDS).logits
    torch.testing.assert_close(ours(IDS).logits, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(wrap(ours).run_with_cache(IDS)[0], expected, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("shared", [4, 2], ids="{} heads of keys".format)
def test_it_is_written_back(shared: int, tmp_path: Path) -> None:
    theirs = save(tmp_path / "theirs", num_key_value_heads=shared)
    write_foreign(read_model(tmp_path / "theirs"), tmp_path / "back", "diffllama")
    back = DiffLlamaForCausalLM.from_pretrained(tmp_path / "back").eval()
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name
    torch.testing.assert_close(back(IDS).logits, theirs(IDS).logits)
    assert verify(tmp_path / "back", length=9).largest < 1e-5


def test_an_odd_number_of_heads_of_keys_has_no_place() -> None:
    with pytest.raises(UserError, match="The diffllama layout needs an even num_key_value_heads"):
        write_config(dcinterp.DCFormerConfig(compose="differential", norm_eps=1e-5, num_key_value_heads=1))


def test_edges_of_a_checkpoint_add_up(tmp_path: Path) -> None:
    save(tmp_path)
    bridge = dcinterp.load(tmp_path)
    found = dcinterp.attribute_edges(bridge, IDS[0].tolist(), 3, 5, method="gradient", per_source=False, check=2)
    torch.testing.assert_close(found.scores.sum((1, 2)), found.heads, atol=1e-5, rtol=1e-4)
    assert {(edge.head_from - edge.head_to) % 4 for edge in found.top(20)} == {2}, "pairs alone share attention"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (dict(num_key_value_heads=1), "num_key_value_heads=1"),
        (dict(attention_bias=True), "attention_bias=True"),
        (dict(hidden_act="gelu"), "hidden_act='gelu'"),
        (dict(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}), "rope_type='linear'"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], name: str, tmp_path: Path) -> None:
    save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=f"This diffllama checkpoint has {name}"):
        read_model(tmp_path)


@torch.no_grad()
def test_a_head_of_its_own_is_kept_where_the_config_says_tied(tmp_path: Path) -> None:
    save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    expected = DiffLlamaForCausalLM.from_pretrained(tmp_path).eval()(IDS).logits
    torch.testing.assert_close(read_model(tmp_path)(IDS).logits, expected, atol=1e-5, rtol=0)


def test_scaling_under_its_older_name_is_seen_too(tmp_path: Path) -> None:
    save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_scaling"] = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="rope_type='linear'"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        dict(rotary_scaling={"rope_type": "linear", "factor": 2.0}),
        dict(attention_bias=True),
        dict(mlp_bias=True),
        dict(head_dim=6),
    ],
    ids=str,
)
def test_what_the_layout_has_no_place_for_is_not_written(changes: dict[str, Any]) -> None:
    config = dcinterp.DCFormerConfig(compose="differential", hidden_size=32, num_attention_heads=4, **changes)
    with pytest.raises(UserError, match="diffllama"):
        write_config(config)


def test_half_precision_runs_as_it_is_stored(tmp_path):
    theirs = save(tmp_path).to(torch.bfloat16)
    theirs.save_pretrained(tmp_path)
    ours = read_model(tmp_path)
    assert ours.dtype == torch.bfloat16
    found, wanted = ours(IDS).logits.float(), theirs(IDS).logits.float()
    assert (found - wanted).abs().mean() < 0.05 * wanted.abs().mean()
    exact = read_model(tmp_path, dtype=torch.float32)
    wanted = DiffLlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()(IDS).logits
    assert torch.allclose(exact(IDS).logits, wanted, atol=2e-5)
    for number, model in enumerate((ours, exact, read_model(tmp_path).float())):
        write_foreign(model, tmp_path / str(number), "diffllama")


def test_layers_that_were_moved_are_not_written_as_if_they_had_not(tmp_path):
    sizes = dict(hidden_size=32, num_attention_heads=4, num_hidden_layers=3, intermediate_size=40, vocab_size=50)
    model = DCFormerForCausalLM(DCFormerConfig(**sizes, compose="differential", norm_eps=1e-5))
    model.model.layers = model.model.layers[1:]
    model.config.num_hidden_layers = 2
    with pytest.raises(UserError, match="layers were moved or taken out"):
        write_foreign(model, tmp_path, "diffllama")
