"""Training runs in the app: each is `dcinterp train` in a process of its own, and a folder on the disk.

A run goes on when the browser is closed, and stops at a checkpoint when the app ends, however that ends. Runs that were
started in a terminal, or by another app, are seen and can be stopped here too: what counts is the folder.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from dcinterp.support.file_names import is_trained
from dcinterp.support.paths import path_of
from dcinterp.train.loop.metrics_file import trained_steps
from workbench import jobs
from workbench.drawings import drawn
from workbench.theme import theme

if TYPE_CHECKING:
    from dcinterp.train.control.run_lock import LockHolder

LOG = "app.log"
SAYS = "dcinterp: "
"""What a sentence of the command on standard error begins with."""
SECONDS_OF_PATIENCE = 10
CHECKPOINTS_KEPT = 30
TASKS_RUN: dict[str, Any] = {
    "data": {"phases": [{"source": "tasks", "batch_size": 32, "examples": [1]}]},
    "evaluation": {"answers_per_task": 2, "examples": [1]},
}


@dataclass(frozen=True)
class Run:
    """A run as its folder shows it; `state` is starting, running, stopping, finished, failed or stopped."""

    folder: Path
    state: str
    step: int
    steps: int
    loss: float = math.nan
    message: str = ""
    saved: int = 0
    """The step of the last checkpoint."""
    host: str = ""
    """The machine that it runs on, where that is another: from here it cannot be stopped."""

    @property
    def alive(self) -> bool:
        return self.state in ("starting", "running", "stopping")

    @property
    def share(self) -> float:
        return min(1.0, self.step / self.steps) if self.steps else 0.0

    def words(self) -> str:
        """Where it stands, in a line."""
        at = f"step {self.step:,} of {self.steps:,}"
        if self.state == "starting":
            return f"Starting: {self.message or 'loading PyTorch'} ..."
        if self.state == "running":
            return f"Running: {at}, {self.message}"
        if self.state == "stopping":
            return "Stopping: finishing this step, and writing a checkpoint ..."
        if self.state == "finished":
            return f"Finished: {self.steps:,} steps" + ("" if math.isnan(self.loss) else f", loss {self.loss:.3f}")
        if self.state == "failed":
            return f"Failed at {at}"
        if not self.saved:
            return "Stopped before its first checkpoint; there is nothing to go on from."
        redone = f" (the steps since the checkpoint of step {self.saved:,} are done again)"
        return f"Stopped at {at}; Resume goes on from there{redone if self.step > self.saved else ''}."


_processes: dict[str, subprocess.Popen[bytes]] = {}
_started_by: dict[str, list[str]] = {}
"""Folders of the runs that each visitor started, the latest first."""
_stop_requested: dict[str, tuple[int, float]] = {}
"""Folders whose run was asked to stop: the process, and when."""


@atexit.register
def _end_all() -> None:
    """No run outlives the app. One that is killed cannot do this: then the runs see that it is gone."""
    for process in _processes.values():
        if process.poll() is None:
            process.terminate()


def runs(root: Path) -> list[str]:
    """Folders of runs at or below `root`, the latest first."""
    depths = ("", "*/", "*/*/", "runs/*/*/")
    marks = ("history.jsonl", "app.yaml")
    found = {path.parent for depth in depths for mark in marks for path in root.glob(f"{depth}{mark}")}
    found |= {Path(folder) for folder in _processes if Path(folder).is_dir()}
    return [str(folder) for folder in sorted(found, key=lambda f: -f.stat().st_mtime)]


def alive() -> list[Run]:
    """The runs of this app that are under way."""
    return [read_run(Path(folder)) for folder, process in list(_processes.items()) if process.poll() is None]


def started(folder: Path) -> None:
    """Remember who started a run."""
    mine = _started_by.setdefault(jobs.visitor(), [])
    mine.insert(0, str(folder))


def own_run(found: list[str]) -> str | None:
    """Which of some runs this visitor started last; None if none of them."""
    return next((run for run in _started_by.get(jobs.visitor(), []) if run in found), None)


def name(folder: Path | str) -> str:
    """A run's folder as a person would write it here."""
    folder = Path(folder)
    return str(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder)


def free_name() -> str:
    """A folder for the next run."""
    number = 1
    while Path(f"runs/run-{number}").exists():
        number += 1
    return f"runs/run-{number}"


def start(output: Path, preset: str, steps: int, changes: dict[str, int], text: str) -> None:
    """Begin a small run.

    Raises:
        UserError: the folder holds something already or cannot be made, or a number does not fit the preset.
    """
    from dcinterp.support.errors import UserError
    from dcinterp.train.config.default_run import text_run
    from dcinterp.train.config.recipe import build_config

    if output.is_dir() and any(output.iterdir()):
        raise UserError(f"{output} is not empty; choose another name, or resume the run that is in it.")
    if text and not path_of(text).exists():
        raise UserError(f"There is no text at {text}; give the path of a file or a folder.")
    tree = text_run(text) if text else TASKS_RUN
    every = max(1, steps // 10)
    phase = tree["data"]["phases"][0] | {"steps": steps}
    tree = tree | {
        "output": str(output),
        "model": {"preset": preset, "changes": changes},
        "data": tree["data"] | {"phases": [phase]},
        # A core is left to the app. The number is part of the run: resumed with another, it would round differently.
        "recipe": tree.get("recipe", {}) | {"threads": max(1, (os.cpu_count() or 2) - 1)},
        "evaluation": tree["evaluation"] | {"every": every},
        "save_every": every,
        # All of them, so that one can go back through the whole run.
        "keep_checkpoints": CHECKPOINTS_KEPT,
        "log_every": max(1, steps // 50),
    }
    build_config(tree)
    try:
        output.mkdir(parents=True, exist_ok=True)
        # JSON is YAML.
        (output / "app.yaml").write_text(json.dumps(tree, indent=1), encoding="utf-8")
        _launch(output, [str(output / "app.yaml")])
    except OSError as error:
        raise UserError(f"Nothing can be written to {output} ({error.strerror}); choose another folder.") from error


def resume(folder: Path) -> None:
    """Go on from the last checkpoint, or start again where there is none."""
    if read_run(folder).alive:
        return
    settled = folder / "config.yaml"
    _launch(folder, [str(settled if settled.is_file() else folder / "app.yaml"), "--resume"])


def _launch(folder: Path, arguments: list[str]) -> None:
    from dcinterp.train.control.signals import child_environment

    # Resuming takes the first run's own folder, whatever it was called then.
    command = [sys.executable, "-m", "dcinterp", "train", *arguments, "--output", str(folder)]
    if (folder / LOG).is_symlink():  # or the run would write into a file elsewhere
        (folder / LOG).unlink()
    with (folder / LOG).open("ab") as log:
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=child_environment())
    _processes[str(folder)] = child


def stop(folder: Path) -> None:
    """Ask the run to end after its step, with a checkpoint; a second time, when it does not answer, end it at once.

    A run on another machine is left alone: there its number is that of another process.
    """
    from dcinterp.train.control.run_lock import lock_holder

    held = lock_holder(folder)
    if (process := _process(folder, held)) <= 0 or (held is not None and held.elsewhere):
        return
    again = (request := _stop_requested.get(str(folder))) is not None and request[0] == process
    try:
        os.kill(process, signal.SIGKILL if again and hasattr(signal, "SIGKILL") else signal.SIGTERM)
    except ProcessLookupError:
        return
    if not again:
        _stop_requested[str(folder)] = (process, time.monotonic())


def ignores_stop(folder: Path) -> bool:
    """Whether a run was asked to stop a while ago and has not."""
    return str(folder) in _stop_requested and time.monotonic() - _stop_requested[str(folder)][1] > SECONDS_OF_PATIENCE


def _process(folder: Path, held: LockHolder | None) -> int:
    """The process that trains in a folder, whoever started it; 0 when there is none.

    held: who has the lock of the folder.
    """
    mine = _processes.get(str(folder))
    if mine is not None and mine.poll() is None:
        return mine.pid
    return held.process if held is not None else 0


def read_run(folder: Path) -> Run:
    """The run as it stands now."""
    from dcinterp.train.control.run_lock import lock_holder

    held = lock_holder(folder)
    process = _process(folder, held)
    steps = _config(folder).get("steps", 0)
    saved = max((step for step, place in checkpoints(folder).items() if Path(place).name != "model"), default=0)
    if held is not None or process:
        step, steps, message = (held.step, held.steps or steps, held.message) if held is not None else (0, steps, "")
        stopping = _stop_requested.get(str(folder), (0, 0.0))[0] == process
        state = "stopping" if stopping else "running" if step else "starting"
        return Run(
            folder, state, step, steps, message=message, saved=saved, host=held.elsewhere if held is not None else ""
        )
    step, loss = 0, math.nan
    for record in _records(folder):
        step, loss = record.get("step", step), record.get("loss", loss)
    last = _last_line(folder / LOG)
    whole = is_trained(folder / "model") and trained_steps(folder) in (None, steps)  # else it is being lengthened
    # A run that failed here may have been ended elsewhere since: then its model is newer than its last words.
    if _failed(_processes.get(str(folder)), last) and not (whole and _newer(folder / "model", folder / LOG)):
        return Run(folder, "failed", step, steps, loss, message=last.removeprefix(SAYS), saved=saved)
    state = "finished" if whole else "stopped"
    return Run(folder, state, max(step, saved), steps, loss, saved=saved)


def _records(folder: Path) -> list[dict[str, Any]]:
    from dcinterp.train.loop.metrics_file import read_records

    return read_records(folder / "metrics.jsonl", needed=("step", "tokens"))[0]


def losses(folder: Path) -> Any | None:
    """The `LossCurves` of every logged step, with those on held-out text or images; None before the first."""
    import torch

    from dcinterp.analysis.training.loss_curves import LossCurves
    from dcinterp.train.loop.metrics_file import by_step

    lines = by_step(record for record in _records(folder) if "loss" in record or "validation_loss" in record)
    if not any("loss" in line for line in lines):
        return None

    def column(key: str) -> torch.Tensor:
        return torch.tensor([line.get(key, math.nan) for line in lines])

    return LossCurves(
        run=name(folder),
        step=torch.tensor([line["step"] for line in lines]),
        tokens_read=torch.tensor([line["tokens"] for line in lines]),
        training_loss=column("loss"),
        validation_loss=column("validation_loss"),
    )


def picture(result: Any, place: str, caption: str) -> None:
    """The figure of a result that is still growing, without the tables and files of `view`."""
    figure, words = drawn(result, "", theme(), {})
    key = f"figure-{place}"
    st.plotly_chart(
        figure, key=key, width="stretch", theme=None, config={"displayModeBar": False}, alt=words.alternative
    )
    st.caption(caption)


def source(folder: Path) -> str:
    """What the run reads: tasks, text, images or a puzzle."""
    return str(_config(folder).get("source", "tasks"))


def _config(folder: Path) -> dict[str, Any]:
    for file in (folder / "config.yaml", folder / "app.yaml"):
        if file.is_file():
            return _read_config(file, file.stat().st_mtime_ns)
    return {}


@lru_cache(maxsize=256)
def _read_config(file: Path, stamp: int) -> dict[str, Any]:
    from dcinterp.train.config.recipe import read_config

    try:
        config = read_config(file)
    except ValueError:
        return {}
    reads = config.data.phases[0].source if config.data.phases else "tasks"
    return {"steps": config.steps, "source": reads if reads in ("text", "images", "puzzle") else "tasks"}


def _failed(process: subprocess.Popen[bytes] | None, last: str) -> bool:
    """Whether a run that is over ended with an error: by its exit code, or, of an earlier app's, by its last words."""
    if process is None:
        return last.startswith(SAYS) and not last.startswith((f"{SAYS}stopped", f"{SAYS}note: "))
    # 130 is what a run ends with that was asked to stop.
    return (process.poll() or 0) > 0 and process.poll() != 130


def _newer(model: Path, log: Path) -> bool:
    """Whether a model was written after the last words of a process."""
    written = max((path.stat().st_mtime for path in model.iterdir()), default=0.0)
    return not log.is_file() or written > log.stat().st_mtime


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines() if path.is_file() else []
    return lines[-1] if lines else "it ended without a word"


def checkpoints(folder: Path) -> dict[int, str]:
    """{step: folder of a model} of the checkpoints, earliest first; of the last step the finished model."""
    places = [p for p in (folder / "checkpoints").glob("checkpoint-*") if any(p.glob("*.safetensors"))]
    found = {int(p.name.rsplit("-", 1)[1]): str(p) for p in places if p.name.rsplit("-", 1)[1].isdecimal()}
    if is_trained(folder / "model"):
        found[trained_steps(folder) or _config(folder).get("steps", 0)] = str(folder / "model")
    return dict(sorted(found.items()))


def index_at_step(steps: list[int], step: int) -> int:
    """The number of the last of some recorded steps that is not later than `step`."""
    return max((number for number, other in enumerate(steps) if other <= step), default=0)


@st.cache_data(show_spinner=False)
def tiny_presets() -> list[str]:
    """Presets that a laptop trains in minutes."""
    import dcinterp

    return [name for name in dcinterp.presets() if name.startswith("tiny-") and "vit" not in name]


def sidebar() -> None:
    """The runs of this app that are under way, on every page."""
    if not alive():
        return

    @st.fragment(run_every=2.0)
    def follow() -> None:
        under_way = alive()
        for run in under_way:
            st.progress(run.share, text=f"Training {name(run.folder)}: {run.state}, step {run.step:,} of {run.steps:,}")
        if not under_way:
            st.rerun()

    follow()
