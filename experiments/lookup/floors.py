"""How far one comes with the puzzle `lookup` without reading both words of a question.

    python experiments/lookup/floors.py

draws documents of the experiment's puzzle and prints what share of the answers is right by ways that do less.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from dcinterp.evidence.floors import print_floors
from dcinterp.evidence.script import run_script
from dcinterp.train.data.puzzles.lookup import Lookup


def floors(puzzle: Lookup, part: str, documents: int, seed: int = 0) -> dict[str, float]:
    """{way: share of right answers, expected where the way draws lots}."""
    words = puzzle.documents(np.random.default_rng(seed), documents, part).words
    _, letter = puzzle.table
    facts, letters = words[:, : puzzle.facts], puzzle.items + puzzle.attributes * puzzle.values
    relation = words[:, puzzle.facts + 1 :: 3] - letters - puzzle.letters
    answer = words[:, puzzle.facts + 2 :: 3] - letters
    ways = puzzle.alone(facts).sum(-1)  # [row, fact]: attributes that it can be asked by
    rules, own = puzzle.rules(), letter[facts]
    likeliest = np.take_along_axis(own, ways.argmax(1, keepdims=True), axis=1)
    said = rules[relation[:, :, None], own[:, None]]  # [row, question, fact]
    meant = np.take_along_axis(own, (said == answer[:, :, None]).argmax(-1), axis=1)
    return {
        "says a random letter": 1 / puzzle.letters,
        "takes a random item, with the right relation": float((said == answer[:, :, None]).mean()),
        "takes the item that can be asked for in most ways, with the right relation": float(
            (rules[relation, likeliest] == answer).mean()
        ),
        "finds the item, with a random relation": float((rules[:, meant] == answer).mean()),
    }


def main(documents: Annotated[int, typer.Option(min=1, help="Documents to draw.")] = 20_000) -> None:
    """Print the shares of both parts."""
    print_floors(Path(__file__).parent, floors, documents)


if __name__ == "__main__":
    run_script(main)
