"""The reference of the training config is the code's, and says something about every key."""

from __future__ import annotations

import inspect
import textwrap
import typing
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
import yaml
from sitetools.config_reference import describe, reference
from sitetools.marked import require_part

from dcinterp.support.errors import UserError
from dcinterp.train.config.recipe import (
    EvaluationSection,
    ImageSection,
    ModelSection,
    Phase,
    RecipeSection,
    TextSection,
    TrainConfig,
    build_config,
    recipe_of_preset,
)
from dcinterp.train.control import experiment_file

PAGE = Path(__file__).parents[2] / "docs" / "config-reference.md"
SECTIONS = [TrainConfig, ModelSection, Phase, TextSection, ImageSection, RecipeSection, EvaluationSection]


def test_the_page_is_fresh():
    assert PAGE.read_text() == reference(), "run: make config-reference"


def test_a_whole_file_of_an_experiment_is_shown():
    code = inspect.cleandoc(experiment_file.__doc__).partition("\n\n")[2].rpartition("\n\n")[0]
    text = textwrap.dedent(code)
    assert set(yaml.safe_load(text)) == set(experiment_file.KEYS), "every key is there"
    require_part(PAGE.with_name("experiments-how.md"), "experiment file", f"\n```yaml\n{text.rstrip()}\n```\n")


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_is_described(section):
    hints = typing.get_type_hints(section)
    keys = {field.name for field in fields(section) if not is_dataclass(hints[field.name])}
    assert keys == set(describe(section)[1])
    assert all(len(words) > 5 for words in describe(section)[1].values())


def test_presets_bring_the_papers_numbers_and_the_file_wins():
    assert build_config({"model": {"preset": "dcformer++-405m"}}).recipe.learning_rate == 3e-4
    images = build_config({"model": {"preset": "dcvit-s/16"}}).recipe
    assert (images.beta1, images.beta2, images.weight_decay) == (0.9, 0.9, 1e-4)
    assert images.warmup_steps == 10_000
    assert images.learning_rate_share(5_000, 100_000) == pytest.approx(0.5)
    said = build_config({"model": {"preset": "dcvit-s/16"}, "recipe": {"beta2": 0.95}}, ["recipe.clip=2.0"]).recipe
    assert (said.beta2, said.clip, said.weight_decay) == (0.95, 2.0, 1e-4)
    assert recipe_of_preset("tiny-dcformer++") == {}
    with pytest.raises(UserError, match="no preset"):
        build_config({"model": {"preset": "huge"}})
