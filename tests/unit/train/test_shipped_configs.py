"""The configs that come with dcinterp are found from any folder, and nothing else is."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from dcinterp import UserError
from dcinterp.train.config.recipe import find_config, read_config
from dcinterp.train.control.sweep import read_sweep

ROOT = Path(__file__).parents[3]


def test_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_config("configs/quick.yaml").steps > 0
    assert len(read_sweep("configs/sweeps/ablation.yaml").runs) > 1
    for wrong in ("configs/none.yaml", "quick.yaml", "configs/../pyproject.toml", "configs"):
        with pytest.raises(UserError, match="There is no training config at"):
            find_config(wrong)


def test_a_file_of_the_person_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "quick.yaml").write_text("output: mine\n")
    assert read_config("configs/quick.yaml").output == "mine"


def test_the_wheel_has_them():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert build["force-include"]["configs"] == "dcinterp/configs"
