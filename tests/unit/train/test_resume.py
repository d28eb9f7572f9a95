"""What a resumed run may change, and that it trains as it then says."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

import dcinterp
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Cancelled
from dcinterp.train.config.recipe import (
    DataSection,
    EvaluationSection,
    ModelSection,
    Phase,
    RecipeSection,
    TrainConfig,
    write_config,
)
from dcinterp.train.control.resume import check_resumable
from dcinterp.train.control.sweep import read_sweep, require_same_text, run_sweep
from dcinterp.train.loop.run import require_valid_start, train

SMALL = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}


def config_of(output: Path, source: str = "pairs", steps: int = 6, **recipe: object) -> TrainConfig:
    images = source == "images"
    return TrainConfig(
        output=str(output),
        model=ModelSection(preset="tiny-dcvit" if images else "tiny-dcformer++", changes=SMALL),
        data=DataSection(phases=(Phase(source=source, steps=steps, batch_size=4),)),
        recipe=RecipeSection(**({"learning_rate": 1e-3, "warmup_steps": 4} | recipe)),
        evaluation=EvaluationSection(every=99, answers_per_task=1, examples=(1,), watch=False),
        log_every=1,
    )


def logged(output: Path, key: str) -> list[float]:
    return [each[key] for each in map(json.loads, (output / "metrics.jsonl").read_text().splitlines()) if key in each]


@pytest.mark.parametrize(
    "changes",
    [
        {"learning_rate": 2e-3, "warmup_steps": 8},  # the same rates up to here
        {"reduction_step": 3, "reduction_factor": 0.1},
    ],
)
def test_a_changed_schedule_is_the_one_that_is_trained_and_told(tmp_path, changes):
    def stop(done: int, total: int, message: str = "") -> None:
        if done == 3:
            raise Cancelled

    with pytest.raises(Cancelled):
        train(config_of(tmp_path / "run"), progress=stop)
    resumed = train(config_of(tmp_path / "run", **changes), resume=True)
    whole = train(config_of(tmp_path / "whole", **changes))
    mine, theirs = (dcinterp.read_model(folder).state_dict() for folder in (resumed, whole))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert logged(tmp_path / "run", "learning_rate") == logged(tmp_path / "whole", "learning_rate")


def test_parts_that_are_not_alike_make_the_gradient_of_their_batch(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(config_of(whole, "images", 3))
    train(config_of(parts, "images", 3, gradient_accumulation=3))
    for key in ("loss", "gradient_norm"):
        assert logged(parts, key) == pytest.approx(logged(whole, key), rel=1e-4), key


def test_a_run_that_has_ended_is_not_measured_anew(tmp_path):
    old = config_of(tmp_path)
    new = dataclasses.replace(old, evaluation=dataclasses.replace(old.evaluation, answers_per_task=2))
    check_resumable(old, new, 5, tmp_path)
    with pytest.raises(UserError, match=r"evaluation.answers_per_task was 1, not 2"):
        check_resumable(old, new, 6, tmp_path)
    check_resumable(old, dataclasses.replace(old, evaluation=dataclasses.replace(old.evaluation, every=7)), 6, tmp_path)


def test_runs_of_two_texts_under_one_name_are_not_one_table(tmp_path):
    def run(name: str, digest: str, path: str = "text.txt") -> Path:
        folder = tmp_path / name
        (folder / "model").mkdir(parents=True)
        (folder / "model" / "config.json").write_text("{}")
        (folder / "history.jsonl").write_text(json.dumps({"step": 0, "material": digest}) + "\n")
        config = config_of(folder, "text")
        data = dataclasses.replace(config.data, text=dataclasses.replace(config.data.text, path=path))
        write_config(dataclasses.replace(config, data=data), folder / "config.yaml")
        return folder

    read: dict[str, tuple[Path, str]] = {}
    for folder in (run("a", "1"), run("b", "1"), run("another text", "2", "other.txt"), run("made", "")):
        require_same_text(folder, read)
    require_same_text(tmp_path / "not there", read)
    with pytest.raises(UserError, match=r"a and .*c were trained on different texts or images"):
        require_same_text(run("c", "2"), read)


@pytest.mark.usefixtures("warm_python")
def test_a_folder_that_a_sweep_does_not_name_is_not_compared(tmp_path):
    """Of an earlier sweep, say, whose text has changed since."""
    text = tmp_path / "text.txt"
    text.write_text("The first text has words. " * 400)
    base = config_of(tmp_path / "base", "text", 2)
    data = dataclasses.replace(base.data, text=dataclasses.replace(base.data.text, path=str(text), context=16))
    write_config(dataclasses.replace(base, data=data), tmp_path / "base.yaml")
    sweep = tmp_path / "sweep.yaml"

    def run(name: str) -> list[str]:
        sweep.write_text(f"output: {tmp_path / 'out'}\nconfig: base.yaml\nruns: [{name}]\n")
        return list(run_sweep(read_sweep(sweep))["status"])

    assert run("{name: old}") == ["done"]
    text.write_text("The second text has other words. " * 400)
    assert run("{name: new}") == ["done"]
    with pytest.raises(UserError, match="were trained on different texts or images"):
        run("{name: old}, {name: new}")


def test_a_run_that_an_earlier_version_began_goes_on_with_its_cooldown(tmp_path):
    (tmp_path / "checkpoints" / "checkpoint-3").mkdir(parents=True)
    long = config_of(tmp_path, cooldown_steps=6)
    require_valid_start(long, tmp_path)
    with pytest.raises(UserError, match="must be at most 2"):
        require_valid_start(long, tmp_path / "another")
    smooth = config_of(tmp_path, cooldown_steps=6, warmup_steps=0, warmup_fraction=0.0)
    require_valid_start(smooth, tmp_path / "another")
