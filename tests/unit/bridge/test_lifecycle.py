"""Loading, wrapping, generating, saving and sharing a bridge."""

import copy
import json
import shutil
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import dcinterp
from dcinterp.bridge import DCBridge, DCFormerAdapter, wrap
from dcinterp.model.compose.registry import COMPOSERS
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM, DCFormerModel
from dcinterp.support.errors import UserError

TEXT = "Ruth has a lime . Karen has a pear . Ruth has a kind of"


def test_load_gives_the_saved_model(folder: Path) -> None:
    bridge = dcinterp.load(folder)
    raw = DCFormerForCausalLM.from_pretrained(folder)
    ids = bridge.to_tokens(TEXT)
    assert ids.shape == (1, len(TEXT.split())), "no token is put in front that training did not see"
    assert bridge.to_str_tokens(TEXT) == TEXT.split()
    with torch.no_grad():
        torch.testing.assert_close(bridge(TEXT), raw(ids).logits, atol=1e-5, rtol=0)
        loss = bridge(TEXT, return_type="loss")
    torch.testing.assert_close(loss, raw(ids, labels=ids).loss, atol=1e-5, rtol=0)


def test_a_text_that_fits_is_read_whole_and_a_longer_one_with_a_warning(folder: Path) -> None:
    bridge = dcinterp.load(folder)
    words = "Ruth has a lime .".split() * 9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bridge.to_tokens(" ".join(words[:40])).shape == (1, 40), "the context of this model"
        assert bridge.to_tokens(" ".join(words), truncate=False).shape == (1, 45)
    with pytest.warns(UserWarning, match="45 tokens and this model reads 40: only its first"):
        assert bridge.to_tokens(" ".join(words)).shape[1] <= 40


def test_generation_under_a_hook_does_not_depend_on_the_cache(folder: Path) -> None:
    bridge = dcinterp.load(folder)
    ids = bridge.to_tokens(TEXT)
    with bridge.hooks(fwd_hooks=[("blocks.0.attn.post.hook_o_kp", lambda t, hook: t * 0)]):
        with_cache, without = (
            bridge.generate(
                ids, max_new_tokens=6, do_sample=False, use_past_kv_cache=use, verbose=False, stop_at_eos=False
            )
            for use in (True, False)
        )
    plain = bridge.generate(ids, max_new_tokens=6, do_sample=False, verbose=False, stop_at_eos=False)
    assert torch.equal(with_cache, without)
    assert not torch.equal(with_cache, plain)
    assert plain.shape == (1, ids.shape[1] + 6)
    hf = DCFormerForCausalLM.from_pretrained(folder).generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None)
    assert torch.equal(hf, plain)


def test_the_key_hooks_see_the_whole_cached_axis(folder: Path) -> None:
    bridge, shapes = dcinterp.load(folder), []
    with bridge.hooks(fwd_hooks=[("blocks.1.attn.post.hook_in", lambda t, hook: shapes.append(tuple(t.shape)))]):
        bridge.generate(
            bridge.to_tokens("Ruth has a"), max_new_tokens=3, do_sample=False, verbose=False, stop_at_eos=False
        )
    assert shapes == [(1, 4, 3, 3), (1, 4, 1, 4), (1, 4, 1, 5)]


def test_a_left_padded_batch_equals_single_prompts(folder: Path) -> None:
    bridge = dcinterp.load(folder)
    texts = [TEXT, "Karen has a pear"]
    batch = bridge.to_tokens(texts, padding_side="left")
    assert batch[1, 0] == bridge.tokenizer.pad_token_id
    with torch.no_grad():
        logits = bridge(batch, attention_mask=(batch != bridge.tokenizer.pad_token_id).long())
        for row, text in enumerate(texts):
            torch.testing.assert_close(logits[row, -1], bridge(text)[0, -1], atol=1e-4, rtol=0)


def test_a_wrapped_model_refuses_a_second_wrapping(raw: Callable[..., DCFormerForCausalLM]) -> None:
    model = raw()
    wrap(model)
    with pytest.raises(UserError, match="wrapped in a bridge already; use that bridge, or wrap a deep copy"):
        wrap(model)


@pytest.mark.parametrize("family", ["tiny-dcformer++", "tiny-dcpythia", "tiny-transformer"])
def test_a_saved_bridge_is_the_model_again(
    family: str, bridge: Callable[..., DCBridge], tmp_path: Path, ids: Tensor
) -> None:
    wrapped = bridge(family)
    with torch.no_grad():
        expected = wrapped(ids)
        wrapped.save(tmp_path)
        torch.testing.assert_close(dcinterp.load(tmp_path)(ids), expected, atol=1e-6, rtol=0)
        model, report = DCFormerForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
        assert not any(report.values())
        torch.testing.assert_close(model(ids).logits, expected, atol=1e-5, rtol=0)


def test_a_folded_bridge_is_not_saved(bridge: Callable[..., DCBridge], tmp_path: Path) -> None:
    folded = bridge()
    folded.enable_compatibility_mode(disable_warnings=True)
    with pytest.raises(UserError, match="folded for analysis; load the model again and save that bridge"):
        folded.save(tmp_path)


def test_the_state_holds_every_parameter(bridge: Callable[..., DCBridge], ids: Tensor) -> None:
    one, other = bridge(seed=1), bridge(seed=2)
    assert {"blocks.1.attn.post.key.up", "blocks.0.attn.pre.query.down.weight"} <= set(one.state_dict())
    with torch.no_grad():
        assert (one(ids) - other(ids)).abs().max() > 0.1
        other.load_state_dict(one.state_dict())
        torch.testing.assert_close(one(ids), other(ids))
    incomplete = {k: v for k, v in one.state_dict().items() if k != "blocks.1.attn.post.key.up"}
    with pytest.raises(RuntimeError, match=r"blocks\.1\.attn\.post\.key\.up"):
        other.load_state_dict(incomplete)


def test_a_deep_copy_is_independent(bridge: Callable[..., DCBridge], ids: Tensor) -> None:
    one = bridge()
    two = copy.deepcopy(one)
    with torch.no_grad():
        expected = one(ids)
        two.blocks[0].attn.post.original_component.key.up.zero_()
        assert not torch.equal(two(ids), expected)
        assert torch.equal(one(ids), expected)


@pytest.mark.parametrize("hook", ["attn.hook_q_input", "hook_mlp_in"])
def test_a_deep_copy_of_a_bridge_that_has_run_has_hooks_of_its_own(bridge: Callable[..., DCBridge], hook: str) -> None:
    """TransformerLens hangs some on the model in its first run, with references to the blocks of that bridge."""
    one = bridge()
    first, other = (
        torch.randint(0, 29, (2, length), generator=torch.Generator().manual_seed(length)) for length in (7, 5)
    )
    double = [(f"blocks.1.{hook}", lambda tensor, hook: 2 * tensor)]

    def run(model: DCBridge) -> Tensor:
        with torch.no_grad():
            return model.run_with_hooks(other, fwd_hooks=double)

    for model in (one, fresh := bridge()):
        model.set_use_split_qkv_input(True)
        model.set_use_hook_mlp_in(True)
    with torch.no_grad():
        one(first)
    two = copy.deepcopy(one)
    assert torch.equal(run(two), run(fresh))
    assert torch.equal(run(one), run(fresh))
    with torch.no_grad():
        assert not torch.equal(run(two), two(other)), "the hook counts"


def test_threads_do_not_mix_their_hooks(bridge: Callable[..., DCBridge], ids: Tensor) -> None:
    model = bridge()
    scales = [0.0, 0.5, 2.0, 3.0]

    def run(scale: float) -> Tensor:
        with torch.no_grad():
            return model.run_with_hooks(ids, fwd_hooks=[("blocks.0.attn.post.hook_o_qp", lambda t, hook: t * scale)])

    expected, wrong = {scale: run(scale) for scale in scales}, []

    def work(scale: float) -> None:
        for _ in range(10):
            if not torch.equal(run(scale), expected[scale]):
                wrong.append(scale)

    threads = [threading.Thread(target=work, args=(scale,)) for scale in scales]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_tokenizer_that_lives_only_in_memory_will_do(folder: Path, raw: Callable[..., DCFormerForCausalLM]) -> None:
    from transformers import PreTrainedTokenizerFast

    saved = PreTrainedTokenizerFast.from_pretrained(folder)
    special = {name: getattr(saved, name) for name in ("pad_token", "unk_token", "bos_token", "eos_token")}
    fresh = PreTrainedTokenizerFast(tokenizer_object=saved.backend_tokenizer, **special)
    assert wrap(raw(), fresh).to_str_tokens(TEXT) == TEXT.split()


def test_a_tokenizer_whose_folder_is_gone_will_do(
    folder: Path, raw: Callable[..., DCFormerForCausalLM], tmp_path: Path
) -> None:
    from transformers import PreTrainedTokenizerFast

    shutil.copytree(folder, tmp_path / "copy")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy")
    assert wrap(raw(), tokenizer).to_str_tokens(TEXT) == TEXT.split()


def test_a_tokenizer_without_special_tokens_is_refused(folder: Path, raw: Callable[..., DCFormerForCausalLM]) -> None:
    """TransformerLens would invent <|endoftext|>, which a word tokenizer reads as <unk>, and swallow the first word."""
    from transformers import PreTrainedTokenizerFast

    bare = PreTrainedTokenizerFast(tokenizer_object=PreTrainedTokenizerFast.from_pretrained(folder).backend_tokenizer)
    with pytest.raises(UserError, match="tokenizer has no bos_token; give it bos_token, eos_token and pad_token"):
        wrap(raw(), bare)


def test_foreign_code_boots_our_folder(folder: Path) -> None:
    from transformer_lens.model_bridge import TransformerBridge

    booted = TransformerBridge.boot_transformers(str(folder), device="cpu", dtype=torch.float32)
    assert isinstance(booted.adapter, DCFormerAdapter)
    with torch.no_grad():
        ids = torch.tensor([[4, 5, 6, 7]])
        torch.testing.assert_close(booted(ids), dcinterp.load(folder)(ids), atol=1e-5, rtol=0)
    assert "blocks.0.attn.post.hook_o_kp" in booted.hook_dict


def test_a_stock_bridge_refuses_to_fold_what_does_not_sum_to_one(
    raw: Callable[..., DCFormerForCausalLM], ids: Tensor
) -> None:
    """`build_bridge_from_module` gives a stock bridge, whose defaults fold value biases."""
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

    def stock() -> Any:
        model = raw("tiny-dcpythia")
        return build_bridge_from_module(model, "DCFormerForCausalLM", hf_config=model.config)

    with pytest.raises(UserError, match=r"load the model with dcinterp\.load, or pass fold_value_biases=False"):
        stock().enable_compatibility_mode(disable_warnings=True)
    expected, folded = stock()(ids).log_softmax(-1), stock()
    folded.enable_compatibility_mode(disable_warnings=True, fold_value_biases=False)
    torch.testing.assert_close(folded(ids).log_softmax(-1), expected, atol=2e-5, rtol=0)


def test_another_model_gets_the_stock_bridge(folder: Path, tmp_path: Path, ids: Tensor) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = dict(hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4)
    llama = LlamaForCausalLM(LlamaConfig(vocab_size=29, **shape)).eval()
    llama.save_pretrained(tmp_path)
    for file in folder.glob("tokenizer*"):
        shutil.copy(file, tmp_path)
    bridge = dcinterp.load(tmp_path)
    assert not isinstance(bridge, DCBridge)
    with torch.no_grad():
        torch.testing.assert_close(bridge(ids), llama(ids).logits, atol=1e-5, rtol=0)


def test_the_entry_point_names_the_adapter() -> None:
    from importlib.metadata import entry_points

    (point,) = entry_points(group="transformer_lens.architectures", name="DCFormerForCausalLM")
    assert point.load() is DCFormerAdapter


def broken(folder: Path, tmp_path: Path, how: str) -> Path:
    path = tmp_path / "broken"
    shutil.copytree(folder, path)
    if how == "no config":
        (path / "config.json").unlink()
    elif how == "bad config":
        (path / "config.json").write_text("{")
    elif how == "no weights":
        (path / "model.safetensors").unlink()
    elif how == "cut weights":
        whole = (path / "model.safetensors").read_bytes()
        (path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    elif how == "other shape":
        fields = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(fields | {"intermediate_size": 48}))
    elif how == "more layers":
        fields = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(fields | {"num_hidden_layers": 3}))
    elif how == "unknown field":
        fields = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(fields | {"compose_rnak": 3}))
    return path


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no config", "has no config.json, so it is not a model folder; give a folder that"),
        ("bad config", "is not valid JSON .*; copy it again"),
        ("no weights", "has a config.json but no safetensors weights; copy model.safetensors"),
        ("cut weights", "is damaged .*; copy or download it again"),
        ("other shape", "do not fit its config.json .*; use files that belong together"),
        ("more layers", "do not fit its config.json .*; use files that belong together"),
        ("unknown field", "has no field 'compose_rnak'. Did you mean compose_rank"),
    ],
)
def test_a_damaged_folder_is_one_sentence(how: str, message: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        dcinterp.load(broken(folder, tmp_path, how))
    assert "\n" not in str(raised.value)


def test_a_wrong_path_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no folder .*; check the path"):
        dcinterp.load(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"is a file; give the folder that holds config\.json"):
        dcinterp.load(tmp_path / "file")


@pytest.mark.parametrize("changes", [dict(compose=name) for name in COMPOSERS] + [dict(mlp_gate_groups=4)], ids=str)
def test_a_state_of_any_kind_can_be_loaded(
    changes: dict[str, Any], bridge: Callable[..., DCBridge], ids: Tensor
) -> None:
    one, other = bridge(seed=1, **changes), bridge(seed=2, **changes)
    with torch.no_grad():
        assert (one(ids) - other(ids)).abs().max() > 0.01
        other.load_state_dict(one.state_dict())
        torch.testing.assert_close(one(ids), other(ids))


def test_the_stored_type_counts_and_not_the_one_in_the_config(tmp_path: Path) -> None:
    DCFormerForCausalLM(DCFormerConfig.preset("tiny-dcformer++", vocab_size=29)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert dcinterp.load(tmp_path).cfg.dtype == torch.float32


def test_a_model_without_logits_is_one_sentence() -> None:
    with pytest.raises(UserError, match="A DCFormerModel has no logits to look at; give a DCFormerForCausalLM"):
        dcinterp.load(DCFormerModel(DCFormerConfig.preset("tiny-dcformer++", vocab_size=29)))
