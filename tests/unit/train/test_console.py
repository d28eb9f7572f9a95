"""What the commands print while they train: loss, tokens per second and time left, with a terminal and without."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from concurrent.futures import wait
from pathlib import Path

import pytest
import yaml

from dcinterp.cli import _training_progress, main
from dcinterp.model.config import DCFormerConfig
from dcinterp.support.errors import UserError
from dcinterp.train.control import sweep as sweep_module
from dcinterp.train.control.run_lock import LockHolder

MESSAGE = r"loss \d+\.\d+, [\d,]+ tokens/s, \d+:\d\d:\d\d left"


def config(folder: Path, steps: int) -> dict:
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    return {
        "output": str(folder / "run"),
        "model": {"preset": "tiny-transformer++", "changes": sizes},
        "data": {"phases": [{"source": "pairs", "steps": steps, "batch_size": 4}]},
        "evaluation": {"every": steps, "answers_per_task": 1, "examples": [1], "watch": False},
    }


@pytest.mark.usefixtures("warm_python")
def test_train_says_how_far_it_is_without_a_terminal(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(config(tmp_path, 5)))
    command = [sys.executable, "-m", "dcinterp", "train", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    lines = [line for line in ran.stdout.splitlines() if re.fullmatch(rf"step 5 of 5: {MESSAGE}", line)]
    assert len(lines) == 1, ran.stdout


@pytest.mark.usefixtures("warm_python")
def test_a_sweep_says_how_far_its_runs_are(tmp_path, monkeypatch):
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({"config": config(tmp_path, 400), "runs": [{"name": "only"}]}))
    messages: list[str] = []
    # It looks once a second, in which a tiny run may come and go.
    monkeypatch.setattr(sweep_module, "wait", lambda futures, **options: wait(futures, timeout=0.05))
    table = sweep_module.run_sweep(
        sweep_module.read_sweep(path, output=tmp_path / "out"),
        progress=lambda done, total, message="": messages.append(message),
    )
    assert table["status"].tolist() == ["done"]
    assert any(re.fullmatch(rf"only at step \d+ of 400, {MESSAGE}", message) for message in messages), messages[-5:]


def test_blind_progress_tells_steps_and_no_loss(tmp_path, monkeypatch):
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({"config": config(tmp_path, 400), "runs": [{"name": "only"}]}))
    [run] = sweep_module.read_sweep(path, output=tmp_path / "out").runs
    monkeypatch.setattr(sweep_module, "lock_holder", lambda folder: LockHolder(1, 1250, 2000, "loss 1.234, 9 tokens/s"))
    told, blind = (sweep_module._describe_running([run], each) for each in (False, True))
    assert (told, blind) == (
        "only at step 1,250 of 2,000, loss 1.234, 9 tokens/s",
        "only at step 1,250 of 2,000",
    )


def test_lines_are_seldom_and_the_last_is_always_there(monkeypatch):
    clock, stream = [0.0], io.StringIO()
    monkeypatch.setattr(_training_progress.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    with _training_progress.show_progress("step", lines=stream) as progress:
        for step in range(1, 101):
            clock[0] += 0.25
            progress(step, 100, "loss 1")
    assert [line.split()[1] for line in stream.getvalue().splitlines()] == ["40", "80", "100"]


def test_a_bar_begins_again_where_another_count_begins(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with _training_progress.show_progress("run", lines=terminal) as progress:
        progress(48, 48, "search")
        progress(1, 80, "final")
    assert " 1/80" in terminal.getvalue()
    assert "48/80" not in terminal.getvalue()


def test_all_of_it_fits_into_a_terminal_of_80_columns():
    message = ", loss 10.916, 11,977 tokens/s, 0:00:02 left"
    fields = {"desc": "step", "percentage": 57, "bar": "###", "n_fmt": "9999", "total_fmt": "9999", "postfix": message}
    assert len(_training_progress.BAR.format(**fields)) <= 80


@pytest.mark.parametrize(("preset", "layers", "rate"), [("tiny-transformer++", 2, 2e-3), ("dcformer-405m", 24, 3e-4)])
def test_a_preset_of_the_paper_has_its_own_numbers(tmp_path, preset, layers, rate, monkeypatch):
    """The two layers and the rate of the small run are of the tiny models."""
    configs = []

    def stop(config, **options):
        configs.append(config)
        raise UserError("enough")

    monkeypatch.setattr("dcinterp.train.loop.run.train", stop)
    with pytest.raises(SystemExit):
        main(["train", "--preset", preset, "--text", __file__, "--output", str(tmp_path / "run")])
    (each,) = configs
    made = DCFormerConfig.preset(each.model.preset, **each.model.changes)
    assert (made.num_hidden_layers, each.recipe.learning_rate) == (layers, rate)
