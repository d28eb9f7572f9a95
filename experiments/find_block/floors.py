"""How far one comes with find-block without combining the letters of a question.

    python experiments/find_block/floors.py

draws documents of the experiment's puzzle and prints what share of the answers is right by three ways that do less.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from dcinterp.evidence.script import run_script
from dcinterp.train.control.experiment import FINAL
from dcinterp.train.control.experiment_file import read_experiment
from dcinterp.train.data.puzzles.find_block import FindBlock


def floors(puzzle: FindBlock, documents: int, seed: int = 0) -> dict[str, float]:
    """{way: share of right answers, expected where the way draws lots}."""
    words = puzzle.documents(np.random.default_rng(seed), documents, "seen").words
    told = puzzle.blocks * (puzzle.size + 1)
    blocks = words[:, :told].reshape(documents, puzzle.blocks, puzzle.size + 1)[:, :, 1:]
    questions = words[:, told:].reshape(documents, puzzle.questions, puzzle.asked + 2)
    asked, answers = questions[:, :, 1:-1], questions[:, :, -1:]
    said = blocks[:, :, 0 if puzzle.says == "first" else -1]
    common = np.array([np.bincount(each).argmax() for each in said])[:, None]
    holds = (blocks[:, None] == asked[:, :, :1, None]).any(
        -1
    )  # [document, question, block]: the first letter asked about
    right = ((said[:, None] == answers) & holds).sum(-1)
    return {
        "repeats a letter of the question": float((asked == answers).mean()),
        "says the commonest answer of the blocks, whatever is asked": float((common == answers[..., 0]).mean()),
        "draws one of the blocks that hold the first letter of the question": float(np.mean(right / holds.sum(-1))),
    }


def main(documents: Annotated[int, typer.Option(min=1, help="Documents to draw.")] = 20_000) -> None:
    """Print the three shares."""
    section = read_experiment(Path(__file__).parent).run(FINAL, "plain", {}, 0).config.data.puzzle
    for way, share in floors(FindBlock(**section.options), documents).items():
        typer.echo(f"{share:.3f}  {way}")


if __name__ == "__main__":
    run_script(main)
