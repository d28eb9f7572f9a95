"""A run whose loss is no longer a finite number stops, keeps a finite checkpoint, and writes no model."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from dcinterp.support.errors import UserError
from dcinterp.train.config.recipe import (
    DataSection,
    EvaluationSection,
    ModelSection,
    Phase,
    RecipeSection,
    TrainConfig,
    read_config,
    write_config,
)
from dcinterp.train.loop import divergence
from dcinterp.train.loop.run import train
from dcinterp.train.loop.trainer import DocumentTrainer

TINY = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}


def tiny(output, **recipe) -> TrainConfig:
    return TrainConfig(
        output=str(output),
        model=ModelSection(changes=dict(TINY)),
        data=DataSection(phases=(Phase(source="pairs", steps=12, batch_size=4),)),
        recipe=RecipeSection(**({"learning_rate": 3e-3} | recipe)),
        evaluation=EvaluationSection(every=3, answers_per_task=1, examples=(1,)),
        save_every=3,
    )


@pytest.fixture
def overflow(monkeypatch):
    """From step 8 on, gradients are infinite, as those of a forward pass that overflows."""
    real = DocumentTrainer.training_step

    def training_step(self, model, *args, **kwargs):
        loss = real(self, model, *args, **kwargs)
        if self.state.global_step >= 7:
            for parameter in model.parameters():
                parameter.grad.fill_(torch.inf)
        return loss

    monkeypatch.setattr(DocumentTrainer, "training_step", training_step)


def test_weights_that_are_not_finite_are_neither_measured_nor_saved(tmp_path, overflow):
    output = tmp_path / "run"
    with pytest.raises(divergence.TrainingDiverged, match=r"weights became NaN .* step 8,.*checkpoint of step 6"):
        train(tiny(output))
    assert not (output / "model").exists()
    assert sorted(p.name for p in (output / "checkpoints").iterdir()) == ["checkpoint-3", "checkpoint-6"]
    for path in (output / "checkpoints").glob("*/model.safetensors"):
        assert all(weight.isfinite().all() for weight in load_file(path).values())
    assert max(json.loads(line)["step"] for line in (output / "metrics.jsonl").read_text().splitlines()) == 6


def test_the_way_out_in_the_sentence_works(tmp_path, monkeypatch):
    """Resumed at a tenth of the learning rate from the checkpoint; the steps before it are what they were."""
    output = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(divergence, "has_finite_weights", lambda model: next(counter) < 8)
        counter = iter(range(1, 100))
        with pytest.raises(UserError) as raised:
            train(tiny(output))
    overrides = [word for word in str(raised.value).split() if word.startswith("recipe.reduction")]
    assert overrides == ["recipe.reduction_step=6", "recipe.reduction_factor=0.1"]
    train(read_config(output / "config.yaml", overrides), resume=True)
    straight = tiny(tmp_path / "straight", reduction_step=6, reduction_factor=0.1)
    train(straight)
    mine, theirs = (load_file(run / "model" / "model.safetensors") for run in (output, tmp_path / "straight"))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs), "also the first step after the checkpoint"


def test_after_a_second_time_no_command_is_given_that_would_be_refused(tmp_path):
    """A reduction that is in force cannot be moved: it would raise the rate of steps that were made."""
    (tmp_path / "checkpoints" / "checkpoint-9").mkdir(parents=True)
    config = tiny(tmp_path, reduction_step=6, reduction_factor=0.1)
    said = str(divergence.describe(divergence.NotFinite("The loss became NaN", 11), config, tmp_path))
    assert "start in another folder with a recipe.learning_rate below 0.003" in said
    assert "--set" not in said
    later = tiny(tmp_path, reduction_step=9, reduction_factor=0.1)
    said = str(divergence.describe(divergence.NotFinite("The loss became NaN", 11), later, tmp_path))
    assert "--set recipe.reduction_step=9 --set recipe.reduction_factor=0.01" in said


@pytest.mark.usefixtures("warm_python")
def test_a_loss_that_is_not_finite_ends_the_command_with_1(tmp_path):
    """A learning rate of 10^30 overflows at once, before there is a checkpoint."""
    config = tmp_path / "run.yaml"
    write_config(tiny(tmp_path / "run", learning_rate=1e30, clip=1e30, warmup_steps=1), config)
    ran = subprocess.run([sys.executable, "-m", "dcinterp", "train", str(config)], capture_output=True, text=True)
    assert ran.returncode == 1, ran.stderr
    (line,) = ran.stderr.strip().splitlines()
    assert line.startswith("dcinterp: The ")
    assert "NaN or infinite at step" in line
    assert "recipe.learning_rate below 1e+30" in line
    assert "Trained model" not in ran.stdout
    assert not (tmp_path / "run" / "model").exists()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_one_wrong_weight_is_seen(value):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    assert divergence.has_finite_weights(model)
    with torch.no_grad():
        model[1].weight[1, 2] = value
    assert not divergence.has_finite_weights(model)


def test_a_reduction_is_of_the_steps_to_come():
    recipe = RecipeSection(learning_rate=1.0, warmup_steps=1)
    lower = replace(recipe, reduction_step=5, reduction_factor=0.1)
    for step in range(10):
        factor = 0.1 if step >= 5 else 1.0
        assert lower.learning_rate_share(step, 10) == pytest.approx(factor * recipe.learning_rate_share(step, 10))
    assert RecipeSection().reduction_factor == 1.0
