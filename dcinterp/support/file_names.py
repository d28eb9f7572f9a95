"""Names of files that more than one room knows."""

from __future__ import annotations

from pathlib import Path

COMPOSITION = "composition.json"
"""The file by which one knows the folder of a composition that was added to a model."""


def is_trained(folder: Path) -> bool:
    """Whether the folder that a run writes at its end is there: a model, or a composition alone."""
    return (folder / "config.json").is_file() or (folder / COMPOSITION).is_file()


def is_run(folder: Path) -> bool:
    """Whether a training run, a sweep or the runs of an experiment are in the folder.

    The two files of a run are written before its first step, the others keep sweeps out of each other's way.
    """
    started = (folder / "history.jsonl").is_file() and (folder / "config.yaml").is_file()
    return started or any((folder / name).is_file() for name in (".sweep", ".experiment", ".training"))
