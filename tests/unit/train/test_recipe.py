"""The training config: read, overridden, saved, and refused with a sentence."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from dcinterp.support.errors import UserError
from dcinterp.train.config.recipe import (
    Phase,
    TrainConfig,
    read_config,
    require_cooldown,
    require_ranges,
    write_config,
)
from dcinterp.train.control.sweep import read_sweep
from dcinterp.train.loop.run import train
from dcinterp.train.loop.stacked import train_stacked

CONFIGS = sorted((Path(__file__).parents[3] / "configs").glob("*.yaml"))


def write(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_configs_of_the_repository_are_valid(path):
    assert read_config(path).steps > 0


def test_defaults_are_the_papers_recipe():
    recipe = TrainConfig().recipe
    assert (recipe.beta1, recipe.beta2, recipe.clip, recipe.weight_decay) == (0.9, 0.95, 1.0, 0.1)
    assert (recipe.warmup_fraction, recipe.final_learning_rate_fraction) == (0.01, 0.1)
    assert recipe.compose_learning_rate_fraction == 1.0


def test_overrides_win_and_numbers_may_be_written_as_people_do(tmp_path):
    path = write(tmp_path, "recipe: {learning_rate: 1e-3}\n")
    config = read_config(path, ["recipe.learning_rate=5e-4", "data.seed=7", "data.phases=[{steps: 3, examples: 2}]"])
    assert config.recipe.learning_rate == 5e-4
    assert config.data.seed == 7
    assert config.data.phases == (Phase(steps=3, examples=(2,)),)
    assert config.steps == 3


def test_resolved_config_reads_back_equal(tmp_path):
    config = read_config(CONFIGS[0])
    write_config(config, tmp_path / "config.yaml")
    assert read_config(tmp_path / "config.yaml") == config
    assert "weight_decay" in (tmp_path / "config.yaml").read_text(), "every number is written, defaults too"
    assert asdict(config)["recipe"]["weight_decay"] == 0.1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recipe: {lerning_rate: 1}", "Unknown key 'lerning_rate' in recipe .* did you mean learning_rate"),
        ("colour: red", "Unknown key 'colour' at the top level"),
        ("learning_rate: 1", r"'learning_rate' at the top level of .*; did you mean recipe.learning_rate\?$"),
        ("seed: 1", r"did you mean data.seed or recipe.seed\?$"),
        ("batch_size: 1", r"did you mean data.phases\[\].batch_size\?$"),
        ("intermediate_size: 8", r"did you mean model.changes.intermediate_size\?$"),
        ("recipe: {seed: many}", "recipe.seed is 'many'; it must be a whole number"),
        ("recipe: {bf16: 1}", "recipe.bf16 is 1; it must be true or false"),
        ("data: {phases: [{source: books}]}", r"data.phases\[0\].source is 'books'"),
        ("recipe: 3", "recipe must hold keys and values"),
        ("a: [1", "not valid YAML"),
        ("- 1", "must hold keys and values"),
    ],
)
def test_refuses_with_a_sentence(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        read_config(write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("beta1: 2", "recipe.beta1 is 2.0; it must be below 1"),
        ("clip: -1", "recipe.clip is -1.0; it must be at least 0"),
        ("clip: .nan", "recipe.clip is nan"),
        ("weight_decay: .inf", "recipe.weight_decay is inf; it must be finite"),
        ("learning_rate: -1", "recipe.learning_rate is -1.0; it must be at least 0"),
        ("warmup_fraction: 1.5", "recipe.warmup_fraction is 1.5; it must be at most 1"),
        ("threads: -1", "recipe.threads is -1; it must be at least 0"),
    ],
)
def test_what_makes_no_sense_is_not_run_and_can_be_read(tmp_path, text, message):
    config = read_config(write(tmp_path, f"output: {tmp_path / 'run'}\nrecipe: {{{text}}}"))
    for begin in (lambda: train(config), lambda: train_stacked([config])):
        with pytest.raises(UserError, match=message):
            begin()
    with pytest.raises(UserError, match=message):
        read_sweep(write(tmp_path, f"runs: [{{name: a}}]\nconfig: {{recipe: {{{text}}}}}"))
    assert not (tmp_path / "run").exists(), "nothing is written"
    require_ranges(read_config(write(tmp_path, "recipe: {clip: .inf, learning_rate: 0}")).recipe)


def test_a_cooldown_begins_after_the_warmup(tmp_path):
    """Before, it would fall from what the cosine is before its start."""
    common = (
        f"output: {tmp_path / 'run'}\ndata: {{phases: [{{source: pairs, steps: 12}}]}}\nevaluation: {{watch: false}}"
    )
    config = read_config(write(tmp_path, f"{common}\nrecipe: {{warmup_steps: 4, cooldown_steps: 9}}"))
    says = (
        r"recipe\.cooldown_steps is 9; it must be at most 8: the run has 12 steps, of which the first 4 are its warmup"
    )
    with pytest.raises(UserError, match=says):
        train(config)
    assert not (tmp_path / "run").exists(), "nothing is written"
    with pytest.raises(UserError, match=says):
        train_stacked([config])
    fits = read_config(write(tmp_path, f"{common}\nrecipe: {{warmup_steps: 4, cooldown_steps: 8}}"))
    require_cooldown(fits)
    rates = [fits.recipe.learning_rate_share(step, 12) for step in range(13)]
    assert max(rates) == rates[4] == 1.0


def test_a_cooldown_is_held_against_the_steps_that_tokens_come_to(tmp_path):
    text = "output: {}\ndata: {{phases: [{{source: pairs, tokens: 2000}}]}}\nrecipe: {{cooldown_steps: 500}}"
    with pytest.raises(UserError, match=r"recipe\.cooldown_steps is 500; it must be at most \d:"):
        train(read_config(write(tmp_path, text.format(tmp_path / "run"))))


def test_missing_file_and_bad_override(tmp_path):
    with pytest.raises(UserError, match="no training config at"):
        read_config(tmp_path / "none.yaml")
    with pytest.raises(UserError, match="has no '='"):
        read_config(write(tmp_path, ""), ["recipe.seed"])


def test_a_run_without_warmup_begins_at_its_full_rate():
    from dcinterp.train.config.recipe import RecipeSection

    none, little = RecipeSection(warmup_fraction=0.0), RecipeSection(warmup_fraction=0.01)
    assert [none.warmup(5), little.warmup(5)] == [0, 1]
    assert none.learning_rate_share(0, 5) == 1.0
    assert little.learning_rate_share(0, 5) == 0.0


def test_keys_that_are_no_names_are_refused(tmp_path):
    from dcinterp.train.config.recipe import read_config

    file = tmp_path / "run.yaml"
    file.write_text("model: {changes: {1: 2}}\n")
    with pytest.raises(UserError, match=r"model\.changes has the key 1; keys are names"):
        read_config(file)
