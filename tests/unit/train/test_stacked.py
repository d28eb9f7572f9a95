"""Runs side by side are the runs that `train` makes one by one, and go on where they were stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from dcinterp.support.errors import UserError
from dcinterp.support.progress import Cancelled
from dcinterp.train.config.recipe import TrainConfig, build_config, write_config
from dcinterp.train.control.sweep import Sweep, is_finished, make_run, results, run_sweep, stacks
from dcinterp.train.data.batches import Batches
from dcinterp.train.data.data_source import open_data_source
from dcinterp.train.data.made_documents import PIECE, MadeBatches, make_documents, open_made
from dcinterp.train.loop import checkpoints
from dcinterp.train.loop.divergence import TrainingDiverged
from dcinterp.train.loop.run import resolve, train
from dcinterp.train.loop.stacked import CHECKPOINT, Stack, find_device, train_stacked
from dcinterp.train.loop.stacked_model import StackedBatches, StackedModel

GPU = torch.cuda.is_available()
TASKS = [
    {"source": "pairs", "steps": 5, "batch_size": 4, "score": "answer", "gaps": [0, 1, 2]},
    {"source": "tasks", "steps": 4, "batch_size": 3},
]
PUZZLE = [{"source": "puzzle", "steps": 9, "batch_size": 4, "score": "answer"}]
TEXT = [{"source": "text", "steps": 9, "batch_size": 2}]

KINDS = pytest.mark.parametrize(
    ("phases", "changes"),
    [
        (TASKS, {"compose": "dynamic"}),
        (TASKS, {"compose": "differential"}),
        (TASKS, {"compose": "multi-token"}),
        (TASKS, {"compose": "mixture-of-heads", "num_attention_heads": 4}),
        (PUZZLE, {"compose": "static", "position_type": "learned"}),
        (TEXT, {}),
    ],
    ids=[
        "tasks, dynamic",
        "tasks, differential",
        "tasks, multi-token",
        "tasks, mixture of heads",
        "puzzle, static",
        "text, plain",
    ],
)


def tree(phases: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    small = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 8}
    return {
        "model": {"preset": "tiny-transformer++", "changes": small | changes},
        "data": {"phases": phases, "text": {"context": 24}, "puzzle": {"options": {"questions": 1}}},
        # A clip that cuts, a cooldown and a share of its own for the composition: what makes steps differ.
        "recipe": {
            "learning_rate": 3e-3, "clip": 0.3, "warmup_steps": 2, "schedule_steps": 40, "cooldown_steps": 3,
            "compose_learning_rate_fraction": 0.1, "threads": 1,
        },
        "evaluation": {"every": 6, "answers_per_task": 1, "examples": [1], "validation_rows": 4, "watch": False},
        "save_every": 100,
        "log_every": 3,
    }  # fmt: skip


def three(phases: list[dict[str, Any]], folder: Path, **changes: Any) -> list[TrainConfig]:
    config = build_config(tree(phases, **changes))
    return [
        replace(
            config,
            output=str(folder / f"seed{seed}"),
            data=replace(config.data, seed=seed),
            recipe=replace(config.recipe, seed=seed, learning_rate=rate),
        )
        for seed, rate in ((1, 3e-3), (2, 1e-2), (3, 1e-3))
    ]


@pytest.fixture(autouse=True)
def trained_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """`train` takes a GPU where there is one, and bfloat16 there."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


@KINDS
def test_each_run_is_the_one_that_is_trained_by_itself(
    phases: list[dict[str, Any]], changes: dict[str, Any], tmp_path: Path
) -> None:
    folders = train_stacked(three(phases, tmp_path / "stack", **changes), device="cpu")
    assert folders == [tmp_path / "stack" / f"seed{seed}" / "model" for seed in (1, 2, 3)]
    alone = three(phases, tmp_path / "alone", **changes)[1]
    train(alone)
    beside, by_itself = tmp_path / "stack" / "seed2", tmp_path / "alone" / "seed2"
    for found, wanted in zip(lines(beside), lines(by_itself), strict=True):
        assert found.keys() == wanted.keys()
        assert (found["step"], found["tokens"]) == (wanted["step"], wanted["tokens"])
        assert found.get("accuracy") == wanted.get("accuracy")
        for key in {"loss", "learning_rate", "gradient_norm", "validation_loss"} & found.keys():
            assert found[key] == pytest.approx(wanted[key], rel=1e-4), key
    found, wanted = weights(beside), weights(by_itself)
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-3, atol=1e-5)
    for file in ("config.json", "tokenizer.json"):
        assert (beside / "model" / file).read_text() == (by_itself / "model" / file).read_text()
    assert not torch.equal(
        found["model.embed_tokens.weight"], weights(tmp_path / "stack" / "seed1")["model.embed_tokens.weight"]
    )


@KINDS
def test_runs_side_by_side_have_the_gradients_of_one_after_the_other(
    phases: list[dict[str, Any]], changes: dict[str, Any], tmp_path: Path
) -> None:
    """A GPU has the former, the other tests of this file the latter."""
    for config in (configs := [resolve(each) for each in three(phases, tmp_path, **changes)]):
        Path(config.output).mkdir()
    stack = Stack(configs, torch.device("cpu"))
    batch = StackedBatches([Batches(run.config.data, run.data_source) for run in stack.runs], 0)[1]
    assert not stack.model.side_by_side
    torch.manual_seed(0)
    for group in stack.model.groups:  # at the start some gradients are next to nothing
        group.held.add_(0.1 * torch.randn_like(group.held))
    wanted, wanted_gradients = stack.model.gradients(batch)
    stack.model.side_by_side = True
    found, found_gradients = stack.model.gradients(batch)
    torch.testing.assert_close(found, wanted)
    assert len({round(loss, 3) for loss in found.tolist()}) == len(configs), "each has weights and documents of its own"
    parameters = stack.model.parameters
    for group, got, want in zip(stack.model.groups, found_gradients, wanted_gradients, strict=True):
        sizes = [parameters[name][0].numel() for name in group.names]
        for name, one, other in zip(group.names, got.split(sizes, 1), want.split(sizes, 1), strict=True):
            assert ((one - other).norm(dim=1) <= 1e-3 * other.norm(dim=1)).all(), name


def test_a_stack_goes_on_run_by_run_where_it_was_stopped_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a CPU after a GPU."""

    def stop(done: int, total: int, message: str = "") -> None:
        if done == 4:
            raise Cancelled("enough")

    whole, cut = (three(TASKS, tmp_path / name, compose="dynamic") for name in ("whole", "cut"))
    train_stacked(whole, device="cpu")
    with monkeypatch.context() as patch:
        made = StackedModel.__init__

        def beside(self: StackedModel, *given: Any) -> None:
            made(self, *given)
            self.side_by_side = True

        patch.setattr(StackedModel, "__init__", beside)
        with pytest.raises(Cancelled):
            train_stacked(cut, device="cpu", progress=stop)
    train_stacked(cut, device="cpu")
    for seed in (1, 2, 3):
        found, wanted = (weights(tmp_path / name / f"seed{seed}") for name in ("cut", "whole"))
        for name, weight in wanted.items():
            torch.testing.assert_close(found[name], weight, rtol=1e-3, atol=1e-5)


def test_a_stack_that_is_stopped_goes_on_and_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    def stop(done: int, total: int, message: str = "") -> None:
        if done == 4:
            raise Cancelled("enough")

    whole, cut = (three(TASKS, tmp_path / name, compose="dynamic") for name in ("whole", "cut"))
    train_stacked(whole, device="cpu")
    with pytest.raises(Cancelled):
        train_stacked(cut, device="cpu", progress=stop)
    with safe_open(tmp_path / "cut" / "seed1" / CHECKPOINT, framework="pt") as file:
        before = json.loads(file.metadata()["stack"])["seconds"]
    steps: list[int] = []
    train_stacked(cut, device="cpu", progress=lambda done, total, message="": steps.append(done))
    assert steps == [5, 6, 7, 8, 9]
    timings = json.loads((tmp_path / "cut" / "seed1" / "timings.json").read_text(encoding="utf-8"))
    assert 3 * timings["seconds"] > before > 0, "of all starts, a third for each run"
    assert not (tmp_path / "cut" / "seed1" / CHECKPOINT).exists()
    for seed in (1, 2, 3):
        assert lines(tmp_path / "cut" / f"seed{seed}") == lines(tmp_path / "whole" / f"seed{seed}")
        found, wanted = (weights(tmp_path / name / f"seed{seed}") for name in ("cut", "whole"))
        assert all(torch.equal(found[name], weight) for name, weight in wanted.items())


def test_a_disk_that_fills_while_models_are_saved_loses_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are there, or none: those that have no model yet go on from the checkpoint of all."""
    runs, write = three(PUZZLE, tmp_path), checkpoints.write_whole

    def full(folder: Path, fill: Callable[[Path], None]) -> None:
        if "seed2" in str(folder):
            raise UserError("no space")
        write(folder, fill)

    monkeypatch.setattr(checkpoints, "write_whole", full)
    with pytest.raises(UserError, match="no space"):
        train_stacked(runs, device="cpu")
    assert not any((tmp_path / f"seed{seed}" / "model").exists() for seed in (1, 2, 3))
    assert (tmp_path / "seed1" / CHECKPOINT).is_file()
    monkeypatch.setattr(checkpoints, "write_whole", write)
    steps: list[int] = []
    train_stacked(runs, device="cpu", progress=lambda done, total, message="": steps.append(done))
    assert len(steps) <= 1, "no step is trained twice"
    assert [path.name for path in tmp_path.glob("seed*/model*")] == ["model"] * 3


def test_a_stack_that_is_told_to_stop_at_its_end_is_done(tmp_path: Path) -> None:
    def stop(done: int, total: int, message: str = "") -> None:
        if done == total:
            raise Cancelled("too late")

    assert all(folder.is_dir() for folder in train_stacked(three(PUZZLE, tmp_path), device="cpu", progress=stop))


def test_a_checkpoint_that_was_cut_short_is_named_and_its_runs_start_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "seed1").mkdir()
    (tmp_path / "seed1" / CHECKPOINT).write_bytes(b"cut short")
    assert len(train_stacked(three(PUZZLE, tmp_path), device="cpu")) == 3
    assert "cannot be read" in caplog.text


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="signals a group of processes")
@pytest.mark.usefixtures("warm_python")
def test_ctrl_c_stops_at_a_checkpoint_whatever_the_workers_do(tmp_path: Path) -> None:
    long = [{"source": "pairs", "steps": 5000, "batch_size": 4}]
    configs = three(long, tmp_path)[:2]
    for number, config in enumerate(configs):
        write_config(config, tmp_path / f"{number}.yaml")
    command = [sys.executable, "-m", "dcinterp.train.loop.stacked", *(str(tmp_path / f"{n}.yaml") for n in (0, 1))]
    # A child of a program that ignores the signal, as one started in the background does, would ignore it too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    child = subprocess.Popen(
        [*command, "--device", "cpu", "--workers", "1"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    killer = threading.Timer(120, child.kill)
    killer.start()
    try:
        assert child.stdout is not None
        assert any(" step " in line for line in child.stdout), "it ended before its first step"
        os.killpg(child.pid, signal.SIGINT)
        said = child.stdout.read()
        assert child.wait() == 130, said
    finally:
        killer.cancel()
        child.kill()
        signal.signal(signal.SIGINT, before)
    assert "Stopped at a checkpoint (Ctrl-C)" in said
    assert (tmp_path / "seed1" / CHECKPOINT).is_file()


def test_other_runs_do_not_go_on_from_a_stack_of_some_of_them(tmp_path: Path) -> None:
    def stop(done: int, total: int, message: str = "") -> None:
        raise Cancelled("enough")

    configs = three(PUZZLE, tmp_path)
    with pytest.raises(Cancelled):
        train_stacked(configs, device="cpu", progress=stop)
    steps: list[int] = []
    train_stacked(configs[:2], device="cpu", progress=lambda done, total, message="": steps.append(done))
    assert steps[0] == 1
    assert Path(configs[0].output, CHECKPOINT).with_suffix(".others").is_file(), "what they had is not lost"


def test_a_run_that_diverges_takes_no_other_with_it(tmp_path: Path) -> None:
    configs = three(PUZZLE, tmp_path)
    configs[1] = replace(configs[1], recipe=replace(configs[1].recipe, learning_rate=1e30))
    with pytest.raises(TrainingDiverged, match=r"in seed2; the other runs are done"):
        train_stacked(configs, device="cpu")
    assert [(tmp_path / f"seed{seed}" / "model").is_dir() for seed in (1, 2, 3)] == [True, False, True]
    train_stacked(three(PUZZLE, tmp_path / "without")[::2], device="cpu")
    found, wanted = (weights(folder / "seed3") for folder in (tmp_path, tmp_path / "without"))
    for name, weight in wanted.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=1e-6)


def test_what_a_stack_cannot_do_is_refused_by_name(tmp_path: Path) -> None:
    configs = three(PUZZLE, tmp_path)
    wider = replace(configs[1], recipe=replace(configs[1].recipe, weight_decay=0.2))
    with pytest.raises(UserError, match=r"seed2 differs in recipe\.weight_decay"):
        train_stacked([configs[0], wider], device="cpu")
    watched = [replace(each, evaluation=replace(each.evaluation, watch=True)) for each in configs]
    with pytest.raises(UserError, match=r"evaluation\.watch"):
        train_stacked(watched, device="cpu")
    with pytest.raises(UserError, match="keep_checkpoints asks for"):
        train_stacked([replace(each, keep_checkpoints=50) for each in configs], device="cpu")
    half = [replace(each, recipe=replace(each.recipe, bf16=True)) for each in configs]
    with pytest.raises(UserError, match=r"recipe\.bf16"):
        train_stacked(half, device="cpu")
    train_stacked(configs[:1], device="cpu")
    shutil.rmtree(tmp_path / "seed1" / "tokenizer")
    with pytest.raises(UserError, match="already holds a trained model"):
        train_stacked(configs, device="cpu")
    assert not (tmp_path / "seed1" / "tokenizer").exists(), "nothing is written beside a run that is there"


def test_documents_that_were_made_before_are_the_same(tmp_path: Path) -> None:
    configs = three([{"source": "pairs", "steps": PIECE + 3, "batch_size": 2, "score": "answer"}], tmp_path)
    other = replace(configs[0], model=replace(configs[0].model, preset="tiny-dcformer++"))
    make_documents([*configs, other], tmp_path / "made", 1)
    anew = [Batches(each.data, open_data_source(each, tmp_path / "words")) for each in configs]
    opened = [open_made(batches, tmp_path / "made") for batches in anew]
    # Only what two runs read is made.
    assert [type(each) for each in opened] == [MadeBatches, Batches, Batches]
    for step in (0, 1, PIECE - 1, PIECE, PIECE + 2, 3):
        for key, wanted in anew[0][step].items():
            assert torch.equal(opened[0][step][key], wanted)


def sweep(folder: Path, ways: tuple[str, ...]) -> Sweep:
    runs = [
        make_run(
            tree(PUZZLE),
            folder,
            f"{way},seed={seed}",
            {"model.changes.compose": way, "recipe.seed": seed, "data.seed": seed, "recipe.learning_rate": seed / 1000},
        )
        for way in ways
        for seed in (1, 2)
    ]
    return Sweep(folder, tuple(runs), 2)


def test_runs_that_differ_in_more_than_seeds_and_rates_are_stacks_of_their_own(tmp_path: Path) -> None:
    found = [[run.name for run in together] for together in stacks(sweep(tmp_path, ("none", "dynamic")).runs)]
    assert found == [["none,seed=1", "none,seed=2"], ["dynamic,seed=1", "dynamic,seed=2"]]


@pytest.mark.usefixtures("warm_python")
def test_a_sweep_of_stacks_gives_the_table_of_runs_one_by_one(tmp_path: Path) -> None:
    planned, alone = (sweep(tmp_path / name, ("dynamic",)) for name in ("stacked", "alone"))
    found = run_sweep(planned, engine="stacked:cpu")
    for run in alone.runs:
        train(run.config)
    wanted = results(alone)
    assert all(map(is_finished, planned.runs))
    assert not list((tmp_path / "stacked").glob(".documents-*"))
    same = ["name", "status", "steps", "tokens", "parameters", "flops", "accuracy 1 seen"]
    pd.testing.assert_frame_equal(found[same], wanted[same])
    assert found["loss"].tolist() == pytest.approx(wanted["loss"].tolist(), rel=1e-4)


@pytest.mark.skipif(not hasattr(signal, "alarm"), reason="signals of Unix")
def test_a_request_to_end_leaves_a_loader_time_for_the_last_steps():
    """Slurm sends it to every process of a job, and the stack would lose its last steps with its loader."""
    code = """if True:
        import os, signal
        from dcinterp.train.loop.stacked import LAST_SECONDS, _leave_signals
        _leave_signals(0)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert 0 < signal.alarm(0) <= LAST_SECONDS
        print("goes on")
    """
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "goes on"


@pytest.mark.usefixtures("warm_python")
def test_shared_documents_are_there_until_the_stacks_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep that is stopped waits for its stacks, which read documents until they come to a checkpoint."""
    there = []

    @contextmanager
    def engine(*_: object) -> Iterator[None]:
        try:
            yield None
        finally:  # here a pool waits for what it runs
            there.append(any((tmp_path / "stacked").glob(".documents-*")))

    def stop(_done: int, _total: int, said: str = "") -> None:
        if not said.endswith(("finished before", "several runs read")):
            raise Cancelled

    monkeypatch.setattr("dcinterp.train.control.sweep.open_engine", engine)
    monkeypatch.setattr("dcinterp.train.control.sweep.ORPHAN_SECONDS", 0.1)
    monkeypatch.setattr("dcinterp.train.control.sweep._submit_stack", lambda *_: Future())
    with pytest.raises(Cancelled):
        run_sweep(sweep(tmp_path / "stacked", ("none", "dynamic")), engine="stacked:cpu", progress=stop)
    assert there == [True]
    assert not list((tmp_path / "stacked").glob(".documents-*"))


def test_a_gpu_without_a_number_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.current_device", lambda: 3)
    assert find_device("cuda") == torch.device("cuda:3")  # without it, torch.cuda.set_device raises
    assert find_device("cuda:1") == torch.device("cuda:1")
    assert find_device("cpu") == torch.device("cpu")


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_a_gpu_gives_the_losses_of_a_cpu(tmp_path: Path) -> None:
    for device in ("cuda", "cpu"):
        train_stacked(three(TASKS, tmp_path / device, compose="dynamic"), device=device)
    for seed in (1, 2, 3):
        found, wanted = (lines(tmp_path / device / f"seed{seed}") for device in ("cuda", "cpu"))
        losses = [[line["loss"] for line in each if "loss" in line] for each in (found, wanted)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-3)
