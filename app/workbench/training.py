"""Training runs in the app: each is `dcinterp train` in a process of its own, and a folder on the disk.

So a run goes on when the browser is closed, ends when the app does, and can be resumed from here or from a terminal.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st
import yaml

SECONDS_TO_END = 10
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
LOG = "app.log"
TASKS_RUN: dict[str, Any] = {
    "data": {"phases": [{"source": "tasks", "batch_size": 32, "examples": [1]}]},
    "evaluation": {"answers_per_task": 2, "examples": [1]},
}


@dataclass(frozen=True)
class Run:
    """A run as its folder tells it; `state` is running, finished, failed or stopped."""

    folder: Path
    state: str
    step: int
    steps: int
    loss: float
    problem: str = ""

    @property
    def share(self) -> float:
        return min(1.0, self.step / self.steps) if self.steps else 0.0

    def words(self) -> str:
        """Where it stands, in a line."""
        loss = f", loss {self.loss:.3f}" if self.loss == self.loss else ""
        return f"{self.state}: step {self.step:,} of {self.steps:,}{loss}"


_processes: dict[str, subprocess.Popen[bytes]] = {}


@atexit.register
def _end_all() -> None:
    """No run outlives the app."""
    for process in _processes.values():
        if process.poll() is None:
            process.terminate()


def runs(root: Path) -> list[str]:
    """Folders of runs at or below `root`, two levels deep, the latest first."""
    found = [path.parent for depth in ("", "*/", "*/*/") for path in root.glob(f"{depth}metrics.jsonl")]
    found = [folder for folder in found if (folder / "config.yaml").is_file()]
    found += [Path(folder) for folder in _processes if Path(folder) not in found and Path(folder).is_dir()]
    return [str(folder) for folder in sorted(found, key=lambda f: -f.stat().st_mtime)]


def start(output: Path, preset: str, steps: int, changes: dict[str, int], text: str) -> None:
    """Begin a small run.

    Raises:
        UserError: the folder holds something already, or a number does not fit the preset.
    """
    from dcinterp.errors import UserError
    from dcinterp.train.recipe import build_config
    from dcinterp.train.starter import text_run

    if output.exists() and any(output.iterdir()):
        raise UserError(f"{output} is not empty; choose another name, or resume the run that is in it.")
    if text and not Path(text).expanduser().exists():
        raise UserError(f"There is no text at {text}; give the path of a file or a folder.")
    tree = text_run(text) if text else TASKS_RUN
    every = max(1, steps // 10)
    phase = tree["data"]["phases"][0] | {"steps": steps}
    tree = tree | {
        "output": str(output),
        "model": {"preset": preset, "changes": changes},
        "data": tree["data"] | {"phases": [phase]},
        "evaluation": tree["evaluation"] | {"every": every},
        "save_every": every,
        # Ten, so that one can go back through the whole run.
        "keep_checkpoints": 10,
        "log_every": max(1, every // 2),
    }
    build_config(tree)
    output.mkdir(parents=True, exist_ok=True)
    config = output / "app.yaml"
    config.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
    _launch(output, [str(config)])


def resume(folder: Path) -> None:
    """Go on from the last checkpoint."""
    _launch(folder, [str(folder / "config.yaml"), "--resume"])


def _launch(folder: Path, arguments: list[str]) -> None:
    # Resuming takes the first run's own folder, whatever it was called then.
    command = [sys.executable, "-m", "dcinterp", "train", *arguments, "--output", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 2) - 1))}
    with (folder / LOG).open("ab") as log:
        _processes[str(folder)] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)


def stop(folder: Path) -> None:
    """End the process; what was trained since the last checkpoint is done again on resuming."""
    process = _processes.get(str(folder))
    if process is not None and process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()


def look(folder: Path) -> Run:
    """The run as it stands now."""
    process = _processes.get(str(folder))
    code = process.poll() if process is not None else None
    problem = ""
    if process is not None and code is None:
        state = "running"
    elif (folder / "model" / "config.json").is_file():
        state = "finished"
    elif code is not None and code > 0:
        state, problem = "failed", _last_line(folder / LOG)
    else:
        state = "stopped"
    step, loss = 0, float("nan")
    for record in _records(folder):
        step, loss = record.get("step", step), record.get("loss", loss)
    return Run(folder, state, step, _steps(folder), loss, problem)


def _records(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:  # a line that is being written
            continue
    return records


def losses(folder: Path) -> list[dict[str, float]]:
    """(step, loss) of every logged step."""
    return [{"step": r["step"], "loss": r["loss"]} for r in _records(folder) if "loss" in r]


def _steps(folder: Path) -> int:
    from dcinterp.train.recipe import read_config

    for name in ("config.yaml", "app.yaml"):
        if (folder / name).is_file():
            try:
                return read_config(folder / name).steps
            except ValueError:
                return 0
    return 0


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines() if path.is_file() else []
    return lines[-1].removeprefix("dcinterp: ") if lines else "it ended without a word"


def checkpoints(folder: Path) -> list[str]:
    """Folders of the checkpoints, earliest first, and of the finished model."""
    places = [p for p in (folder / "checkpoints").glob("checkpoint-*") if (p / "model.safetensors").is_file()]
    found = sorted(places, key=lambda p: int(p.name.rsplit("-", 1)[1]))
    finished = folder / "model"
    return [str(p) for p in (*found, *([finished] if (finished / "config.json").is_file() else []))]


@st.cache_data(max_entries=64, show_spinner=False)
def as_model(checkpoint: str) -> str:
    """A folder that `dcinterp.load` reads: the checkpoint's weights beside the run's tokenizer."""
    place = Path(checkpoint)
    if (place / "tokenizer.json").is_file():
        return checkpoint
    run = place.parents[1]
    folder = Path(tempfile.mkdtemp(prefix="dcinterp-")) / f"{run.name}-{place.name.replace('checkpoint-', 'step-')}"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to((place / name).resolve())
    for name in TOKENIZER_FILES:
        if (run / "tokenizer" / name).is_file():
            (folder / name).symlink_to((run / "tokenizer" / name).resolve())
    return str(folder)


@st.cache_data(show_spinner=False)
def tiny_presets() -> list[str]:
    """Presets that a laptop trains in minutes."""
    import dcinterp

    return [name for name in dcinterp.presets() if name.startswith("tiny-") and "vit" not in name]
