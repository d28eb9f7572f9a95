"""A tokenizer's files may ask for code of their own to be run, and TransformerLens would do as they say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import dcinterp
from dcinterp.checkpoints import load as loading
from dcinterp.support.errors import UserError
from dcinterp.support.pretrained import on_disk

SHIPPED = Path(dcinterp.__file__).parent / "checkpoints" / "shipped" / "transformer++-pairing"


@pytest.fixture
def folder(tmp_path):
    """A shipped model whose tokenizer says that its own code is to be run, and code that leaves a mark."""
    folder = tmp_path / "model"
    shutil.copytree(SHIPPED, folder)
    (folder / "tok.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nfrom transformers import PreTrainedTokenizerFast\n"
        "class Own(PreTrainedTokenizerFast): pass\n"
    )
    (folder / "tokenizer.json").unlink(missing_ok=True)
    words = {"bos_token": "<bos>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", "extra_ids": 0}
    code = {"trust_remote_code": True, "auto_map": {"AutoTokenizer": [f"{folder}--tok.Own"] * 2}}
    config = {"tokenizer_class": "ByT5Tokenizer", "model_max_length": 37, **words, **code}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_it_is_not_run_with_a_model(folder):
    with pytest.raises(UserError):  # its ids do not fit the model
        dcinterp.load("transformer++-pairing", tokenizer=folder)
    dcinterp.load(folder)
    assert not (folder.parent / "ran").exists()


def test_it_is_not_run_with_a_model_of_others(folder, tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    for file in ("config.json", "model.safetensors"):
        (folder / file).unlink(missing_ok=True)
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 16}
    GPT2LMHeadModel(GPT2Config(vocab_size=300, **sizes)).save_pretrained(folder)
    opened = dcinterp.load(folder)
    assert opened.tokenizer is not None
    assert not (tmp_path / "ran").exists()


def test_a_hub_that_does_not_answer_is_not_taken_for_one_without_a_tokenizer(monkeypatch):
    from huggingface_hub.errors import LocalEntryNotFoundError

    def silent(*_):
        raise LocalEntryNotFoundError("no network")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", silent)
    monkeypatch.setattr("dcinterp.bridge.boot", lambda *_, **__: pytest.fail("nobody looked at its files"))
    with pytest.raises(LocalEntryNotFoundError):
        loading._boot_hub("somebody/model", None, None, None)


def test_what_transformer_lens_reads_again_asks_for_no_code(folder):
    from transformers import AutoTokenizer

    words = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    assert words.init_kwargs["trust_remote_code"] is True  # as the files say
    with on_disk(words) as again:
        assert again.init_kwargs["trust_remote_code"] is False


def test_a_tokenizer_of_the_hub_that_asks_for_code_is_refused(folder, monkeypatch):
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda name, file: str(folder / file))
    with pytest.raises(UserError, match="asks for code of its own to be run"):
        loading._boot_hub("somebody/model", None, None, None)
