"""How far one comes with a puzzle without reading all of a question: what scripts named floors.py print."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer

from dcinterp.train.control.experiment import FINAL
from dcinterp.train.control.experiment_file import read_experiment
from dcinterp.train.data.puzzles import open_puzzle


def print_floors(folder: Path, floors: Callable[[Any, str, int], Mapping[str, float]], documents: int) -> None:
    """Print the share of right answers of every way that does less, for every part of the puzzle.

    Args:
        folder: of the experiment.
        floors: {way: share}, of the puzzle, a part of it, and so many documents.
        documents: to draw.
    """
    experiment = read_experiment(folder)
    section = experiment.run(FINAL, experiment.baseline, {}, 0).config.data.puzzle
    assert section is not None
    puzzle = open_puzzle(section)
    for part in puzzle.PARTS:
        typer.echo(part)
        for way, share in floors(puzzle, part, documents).items():
            typer.echo(f"  {share:.3f}  {way}")
