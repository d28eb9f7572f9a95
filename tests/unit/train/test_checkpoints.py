"""Damaged checkpoints are set aside, a disk that takes nothing costs one sentence, and only the future may change."""

from __future__ import annotations

import errno
import json
import logging
import resource
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import dcinterp
from dcinterp.support.errors import UserError
from dcinterp.train.config.default_run import text_run
from dcinterp.train.config.recipe import (
    DataSection,
    EvaluationSection,
    ModelSection,
    Phase,
    RecipeSection,
    TrainConfig,
    build_config,
)
from dcinterp.train.control.resume import check_resumable, differences
from dcinterp.train.loop import checkpoints
from dcinterp.train.loop.metrics_file import read_metrics
from dcinterp.train.loop.run import train


class Crashed(Exception):
    """Ends a run at once, without the checkpoint that cancelling leaves."""


def tiny(output, steps=6, **changes) -> TrainConfig:
    config = TrainConfig(
        output=str(output),
        model=ModelSection(
            changes={"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
        ),
        data=DataSection(phases=(Phase(source="pairs", steps=steps, batch_size=4),)),
        recipe=RecipeSection(learning_rate=3e-3),
        evaluation=EvaluationSection(every=6, answers_per_task=1, examples=(1,)),
        save_every=2,
        keep_checkpoints=3,
    )
    return replace(config, **changes)


def stop_after(step):
    def progress(done, total, message=""):
        if done == step:
            raise Crashed

    return progress


def weights(output):
    return load_file(output / "model" / "model.safetensors")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    output = tmp_path_factory.mktemp("whole")
    train(tiny(output))
    return output


def break_optimizer(folder, how: str) -> None:
    file = folder / "optimizer.pt"
    data = bytearray(file.read_bytes())
    if how == "missing":
        file.unlink()
    else:
        data[len(data) // 2] ^= 1
        file.write_bytes(data[: len(data) // 2] if how == "cut short" else data)


def write_nan(folder) -> None:
    """A checkpoint of a version that sealed whatever the weights were."""
    tensors = load_file(folder / "model.safetensors")
    next(iter(tensors.values())).fill_(torch.nan)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    checkpoints.seal(folder)


DAMAGE = {
    "optimizer.pt is not what was written": lambda folder: break_optimizer(folder, "cut short"),
    "optimizer.pt is not what": lambda folder: break_optimizer(folder, "a bit flipped"),
    "optimizer.pt is missing": lambda folder: break_optimizer(folder, "missing"),
    "its seal.json is missing": lambda folder: (folder / "seal.json").unlink(),
    "does not list trainer_state.json": lambda folder: (folder / "seal.json").write_text("{}"),
    "does not list files": lambda folder: (folder / "seal.json").write_text("[]"),
    "its seal.json cannot be read": lambda folder: (folder / "seal.json").write_bytes(b"\xff{"),
    "its weights are NaN": write_nan,
}


@pytest.mark.parametrize("sentence", DAMAGE)
def test_a_checkpoint_that_cannot_be_verified_falls_back_to_the_last_good_one(whole, tmp_path, caplog, sentence):
    output = tmp_path / "run"
    with pytest.raises(Crashed):
        train(tiny(output), progress=stop_after(5))
    folder = output / "checkpoints" / "checkpoint-4"
    DAMAGE[sentence](folder)
    with caplog.at_level(logging.WARNING):
        train(tiny(output), resume=True)
    assert "checkpoint of step 4 is damaged (" in caplog.text
    assert "goes on from step 2" in caplog.text
    assert (output / "checkpoints" / "damaged-checkpoint-4").is_dir()
    mine, theirs = weights(output), weights(whole)
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    last = json.loads((output / "history.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 2
    assert sentence in last["damaged"][0]


def test_nothing_is_unpickled(tmp_path):
    """A checkpoint that would run code is damaged, and does not run it."""
    import pickle

    class Evil:
        def __reduce__(self):
            return open, (str(tmp_path / "ran"), "w")

    folder = tmp_path / "checkpoint-2"
    folder.mkdir()
    (folder / "trainer_state.json").write_text("{}")
    (folder / "optimizer.pt").write_bytes(pickle.dumps(Evil()))
    assert checkpoints.find_damage(folder)
    assert not (tmp_path / "ran").exists()


def test_a_disk_that_takes_no_more_is_a_sentence(tmp_path):
    """The operating system refuses to write more than 30 kB into a file, as a full disk would."""
    output = tmp_path / "run"
    with pytest.raises(Crashed):
        train(tiny(output), progress=stop_after(3))
    old, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, old[1]))
    try:
        with pytest.raises(UserError, match=r"step 4 could not be written .*--resume from step 2"):
            train(tiny(output), resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert checkpoints.steps_in(output / "checkpoints") == [2]
    assert not (output / "checkpoints" / checkpoints.STAGING).exists()
    train(tiny(output), resume=True)


def test_a_model_stays_where_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    folder, replace = tmp_path / "model", Path.replace
    checkpoints.write_whole(folder, lambda aside: (aside.mkdir(parents=True), (aside / "a").write_text("old")))

    def full(self, target):
        if self.name == "model" and self.parent.name == checkpoints.STAGING:
            raise OSError(errno.ENOSPC, "no space")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", full)
    (tmp_path / "checkpoints" / "checkpoint-4").mkdir(parents=True)
    with pytest.raises(UserError, match=r"model could not be written .* continue with --resume from step 4"):
        checkpoints.write_whole(folder, lambda aside: (aside.mkdir(parents=True), (aside / "a").write_text("new")))
    assert (folder / "a").read_text() == "old"
    monkeypatch.undo()
    checkpoints.write_whole(folder, lambda aside: (aside.mkdir(parents=True), (aside / "a").write_text("new")))
    assert [(each.name, each.read_text()) for each in folder.iterdir()] == [("a", "new")]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["checkpoints", "model"]


def test_metrics_on_a_full_disk_too(tmp_path):
    output = tmp_path / "run"
    output.mkdir()
    (output / "history.jsonl").write_text("")  # a run was begun here
    (output / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"could not be written .*make room on the disk"):
        train(tiny(output, log_every=1))


@pytest.mark.parametrize("name", ["metrics.jsonl", "history.jsonl"])
def test_a_loop_of_links_is_a_sentence(tmp_path, name):
    output = tmp_path / "run"
    output.mkdir()
    (output / "history.jsonl").write_text("")
    (output / name).unlink(missing_ok=True)
    (output / name).symlink_to(output / name)
    with pytest.raises(UserError, match=rf"{name} cannot be used \(.*\); remove it, or choose another output folder"):
        train(tiny(output, log_every=1))


def test_a_text_that_is_a_loop_of_links_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    with pytest.raises(UserError, match=r"There is no text at loop\.txt"):
        train(build_config(text_run("loop.txt")))


@pytest.mark.parametrize("accuracy", [{"ten": {"all": 0.5}}, {"10": {"all": "half"}}, {"10": [0.5]}, 0.5])
def test_odd_accuracies_are_no_measurement(tmp_path, accuracy):
    line = json.dumps({"step": 1, "tokens": 8, "accuracy": accuracy})
    (tmp_path / "metrics.jsonl").write_text(f"{line}\n")
    with pytest.raises(UserError, match=r"Line 1 of .* is not a measurement of a run"):
        dcinterp.training_curves(tmp_path)


@pytest.mark.parametrize(
    "wrong", ["[]", "3", "{", '{"step": "two"}', '{"step": NaN, "tokens": 1}', '{"step": 1e99}', '"\\u2028"', "\0"]
)
def test_a_wrong_line_of_history_or_metrics_is_a_sentence(whole, tmp_path, caplog, wrong):
    output = tmp_path / "run"
    with pytest.raises(Crashed):
        train(tiny(output, log_every=1), progress=stop_after(5))
    for name in ("metrics.jsonl", "history.jsonl"):
        lines = (output / name).read_text().splitlines()
        (output / name).write_text("\n".join([lines[0], wrong, *lines[1:]]) + "\n")
    with pytest.raises(UserError, match=r"Line 2 of .*metrics\.jsonl is not a measurement of a run; remove that line"):
        read_metrics(output / "metrics.jsonl")
    with caplog.at_level(logging.WARNING):
        train(tiny(output, log_every=1), resume=True)
    assert "Line 2 of" in caplog.text
    assert "metrics.jsonl is not a measurement of a run and was removed" in caplog.text
    assert "history.jsonl is not the start of a run and is ignored" in caplog.text
    steps = [record["step"] for record in read_metrics(output / "metrics.jsonl") if "loss" in record]
    assert steps == [1, 2, 3, 4, 5, 6]
    mine, theirs = weights(output), weights(whole)
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_a_longer_run_with_another_phase_is_the_run_from_the_start(tmp_path):
    """Phases that have not begun may change on resuming; the result is that of the changed config."""
    scheduled = RecipeSection(learning_rate=3e-3, schedule_steps=20)
    later = (Phase(source="pairs", steps=5, batch_size=4), Phase(source="tasks", steps=3, batch_size=4))
    short = tiny(tmp_path / "run", recipe=scheduled)
    longer = replace(short, data=DataSection(phases=later), save_every=3, keep_checkpoints=1)
    with pytest.raises(Crashed):
        train(short, progress=stop_after(5))
    train(longer, resume=True)
    straight = replace(longer, output=str(tmp_path / "straight"))
    train(straight)
    mine, theirs = weights(tmp_path / "run"), weights(tmp_path / "straight")
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    last = json.loads((tmp_path / "run" / "history.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 4
    assert last["changes"]["save_every"] == [2, 3]
    assert last["changes"]["data.phases[0].steps"] == [6, 5]


BASE = tiny("run", recipe=RecipeSection(schedule_steps=100, learning_rate=1e-3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": replace(BASE.model, preset="tiny-transformer++")}, "model.preset was 'tiny-dcformer"),
        ({"data": replace(BASE.data, seed=9)}, "data.seed was 0, not 9"),
        ({"data": DataSection(phases=(Phase(steps=6, batch_size=4),))}, r"data.phases\[0\].source was 'pairs'"),
        ({"data": DataSection(phases=(Phase(source="pairs", steps=3, batch_size=4), Phase()))}, "data.phases"),
        ({"recipe": replace(BASE.recipe, clip=2.0)}, "recipe.clip was 1.0, not 2.0"),
        ({"recipe": replace(BASE.recipe, learning_rate=2e-3)}, "the learning rate of step 2"),
        ({"recipe": replace(BASE.recipe, schedule_steps=0)}, "the learning rate of step .*schedule_steps: 100"),
        ({"recipe": replace(BASE.recipe, gradient_accumulation=2)}, "gradient_accumulation"),
    ],
)
def test_what_was_trained_under_cannot_change(tmp_path, change, message):
    with pytest.raises(UserError, match=message):
        check_resumable(BASE, replace(BASE, **change), 5, tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"output": "elsewhere", "save_every": 7, "evaluation": EvaluationSection(every=1), "report_to": ("wandb",)},
        {"data": DataSection(phases=(Phase(source="pairs", steps=5, batch_size=4), Phase(steps=90)))},
        {"data": DataSection(phases=(Phase(source="pairs", steps=500, batch_size=4),))},
        {"recipe": replace(BASE.recipe, cooldown_steps=1)},
    ],
)
def test_what_lies_ahead_may_change(tmp_path, change):
    changed = replace(BASE, **change)
    check_resumable(BASE, changed, 5, tmp_path)
    assert differences(BASE, changed)


def test_why_a_rate_differs_is_said_with_its_key_or_the_cooldown(tmp_path):
    faster = replace(BASE, recipe=replace(BASE.recipe, learning_rate=2e-3))
    with pytest.raises(UserError, match=r"recipe.learning_rate was 0.001, not 0.002\)"):
        check_resumable(BASE, faster, 5, tmp_path)
    cooled = replace(BASE, recipe=replace(BASE.recipe, cooldown_steps=3))
    longer = replace(cooled, data=replace(BASE.data, phases=(replace(BASE.data.phases[0], steps=20),)))
    with pytest.raises(UserError, match="its cooldown had begun, at step 3 of 6, so it cannot be made longer"):
        check_resumable(cooled, longer, 5, tmp_path)
