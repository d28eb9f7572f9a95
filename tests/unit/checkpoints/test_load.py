"""Hub ids: taken from the local cache without a network, and refused in one sentence when they are not there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

import dcinterp
from dcinterp.bridge import DCBridge
from dcinterp.checkpoints.hub import cached_snapshot, hub_reason
from dcinterp.checkpoints.names import SHIPPED
from dcinterp.checkpoints.read import read_model
from dcinterp.support.errors import UserError

NAME = "somebody/mini"


@pytest.fixture
def cached(monkeypatch, tmp_path) -> Path:
    """The folder of a model in a cache as the hub's client lays it out."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    root = tmp_path / "hub" / "models--somebody--mini"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text("0" * 40)
    return shutil.copytree(SHIPPED / "dcformer++", root / "snapshots" / ("0" * 40))


def test_a_cached_hub_id_loads_as_the_folder_does(cached):
    assert cached_snapshot(NAME) == cached
    bridge, shipped = dcinterp.load(NAME), dcinterp.load("dcformer++")
    assert isinstance(bridge, DCBridge)
    assert bridge.cfg.model_name == bridge.source == NAME
    ids = torch.arange(12)[None]
    assert torch.equal(bridge(ids), shipped(ids))
    assert dcinterp.describe(NAME) == dcinterp.describe(bridge)


def test_a_cached_model_of_another_kind_keeps_its_name(cached):
    from transformers import GPT2Config, GPT2LMHeadModel

    shutil.rmtree(cached)
    GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=16, n_embd=8, n_layer=1, n_head=2)).save_pretrained(cached)
    shutil.copy(SHIPPED / "dcformer++" / "tokenizer.json", cached)
    shutil.copy(SHIPPED / "dcformer++" / "tokenizer_config.json", cached)
    bridge = dcinterp.load(NAME)
    assert not isinstance(bridge, DCBridge)
    assert bridge.cfg.model_name == NAME


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "a shard", "a whole index"])
def test_half_a_download_is_no_model(cached, missing):
    if missing.endswith("s") or missing.endswith("json"):
        (cached / missing).unlink()
    else:
        parts = {"a.weight": "model.safetensors", "b.weight": "model-00002.safetensors"}
        index = json.dumps({"weight_map": parts}) if missing == "a shard" else "{"
        (cached / "model.safetensors.index.json").write_text(index)
    assert cached_snapshot(NAME) is None


def test_a_name_that_is_nowhere_is_one_sentence(cached):
    with pytest.raises(UserError, match="not in the local cache, and HF_HUB_OFFLINE") as refused:
        dcinterp.load("nobody/not-there")
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match=r"did you mean dcformer\+\+"):
        dcinterp.load("dcfromer++")
    with pytest.raises(UserError, match="cache of the hub"):
        dcinterp.describe("nobody/not-there")


def test_reasons_are_sentences_for_a_person():
    reasons = [
        hub_reason(e) for e in (OfflineModeIsEnabled(), LocalEntryNotFoundError("x"), OSError("a\nb"), OSError())
    ]
    assert [reason.splitlines() for reason in reasons] == [[reason] for reason in reasons]
    assert reasons[2:] == ["a", "OSError"]


def test_the_card_that_goes_to_the_hub_is_ours(tmp_path, monkeypatch):
    from transformers.utils.hub import PushToHubMixin

    sent = {}

    def upload(self, folder, repository, *args, **kwargs):
        sent[repository] = (Path(folder) / "README.md").read_text(encoding="utf-8")

    monkeypatch.setattr(PushToHubMixin, "_upload_modified_files", upload)
    model = read_model(SHIPPED / "transformer++")
    empty = "# Model Card for Model ID\n\nThis is the model card of a 🤗 transformers model that has been pushed."
    (tmp_path / "README.md").write_text(empty, encoding="utf-8")
    model._upload_modified_files(tmp_path, "me/mine", {})
    assert 'dcinterp.load("me/mine")' in sent["me/mine"]
    assert 'from_pretrained("me/mine")' in sent["me/mine"]
    model.save_pretrained(tmp_path / "own")
    assert 'dcinterp.load("path/to/own")' in (tmp_path / "own" / "README.md").read_text(encoding="utf-8")
    (tmp_path / "README.md").write_text("what I wrote", encoding="utf-8")
    model._upload_modified_files(tmp_path, "me/mine", {})
    assert sent["me/mine"] == "what I wrote"
