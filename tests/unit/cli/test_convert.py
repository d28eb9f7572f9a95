"""What `dcinterp convert` writes is a whole model of finite numbers, and its card says where it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import dcinterp
from dcinterp.cli import main
from dcinterp.model.build import build_model
from dcinterp.model.config import DCFormerConfig

SIZES = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "num_hidden_layers": 1}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = build_model(DCFormerConfig(vocab_size=11, max_position_embeddings=16, **SIZES))
    with torch.no_grad():
        model.lm_head.weight[0, 0] = 1e5
    model.save_pretrained(tmp_path / "large")
    return tmp_path / "large"


def test_weights_that_do_not_fit_are_refused(saved, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["convert", str(saved), str(tmp_path / "half"), "--dtype", "float16"])
    assert "has weights that are too large for float16; store them as bfloat16" in capsys.readouterr().err
    assert not (tmp_path / "half").exists()


def test_a_card_names_the_folder_that_it_is_in(saved, tmp_path):
    (saved / "tokenizer").mkdir()  # of a run; the model's own files are beside it
    with pytest.raises(SystemExit, match="0"):
        main(["convert", str(saved), str(tmp_path / "ours"), "--dtype", "bfloat16"])
    card = (tmp_path / "ours" / "README.md").read_text()
    assert "\n# ours\n" in card
    assert 'dcinterp.load("path/to/ours")' in card
    assert next(dcinterp.read_model(tmp_path / "ours").parameters()).dtype == torch.bfloat16
