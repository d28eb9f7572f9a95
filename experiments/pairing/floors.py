"""How far one comes with the puzzle `pairing` without using all three words of a question.

    python experiments/pairing/floors.py

draws documents of the experiment's puzzle and prints, for pairs that training shows and for those it never shows, what
share of the answers is right by ways that do less, and how often a question stands earlier in its document.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from dcinterp.evidence.floors import print_floors
from dcinterp.evidence.script import run_script
from dcinterp.train.data.puzzles.pairing import HALVES, Pairing
from dcinterp.train.data.puzzles.recombination import FACTS


def floors(puzzle: Pairing, part: str, documents: int, seed: int = 0) -> dict[str, float]:
    """{way: share of right answers, expected where the way draws lots}."""
    words = puzzle.documents(np.random.default_rng(seed), documents, part).words
    every = np.array(puzzle.words())
    facts = np.array([[word.split("-") for word in row] for row in every[words[:, :FACTS]]])
    letter = np.array([[ord(each) - ord("A") for each in row] for row in facts[..., 2]])
    half, relation, key, said = (every[words[:, FACTS + place :: 4]] for place in range(4))
    rule = np.array([[int(each.removeprefix("rule")) for each in row] for row in relation])
    named = np.array([[each.split("-") for each in row] for row in key])
    by_half = [(facts[:, None, :, n] == named[:, :, None, n]).argmax(-1) for n in range(2)]
    meant, other = (np.where(half == HALVES[n], by_half[0], by_half[1]) for n in range(2))
    answer = np.array([[ord(each) - ord("A") for each in row] for row in said])
    row = np.arange(documents)[:, None]
    right = [puzzle.rules()[rule, letter[row, fact]] == answer for fact in (meant, other)]
    any_rule = puzzle.rules()[:, letter[row, meant]] == answer
    same = (rule[:, :, None] == rule[:, None]) & (meant[:, :, None] == meant[:, None])
    earlier = np.tril(np.ones(same.shape[1:], bool), -1)
    said_before = [
        ((rule[:, :, None] == rule[:, None]) & (answer[:, None] == said[:, :, None]) & earlier).any(-1)
        for said in (puzzle.rules()[rule, letter[row, fact]] for fact in (meant, other))
    ]
    left = np.where(said_before[0], 0.0, np.where(said_before[1], 1.0, 0.5))
    return {
        "finds by a random half, with the right relation": float(np.mean(right)),
        "finds by the other half, with the right relation": float(right[1].mean()),
        "takes, of the two facts, one whose answer was not yet said after the relation": float(
            np.where(right[1], 1.0, left).mean()
        ),
        "finds the fact, with a random relation": float(any_rule.mean()),
        "says the answer of an earlier question about the same fact and relation": float(
            (same & earlier).any(-1).mean()
        ),
    }


def main(documents: Annotated[int, typer.Option(min=1, help="Documents to draw.")] = 20_000) -> None:
    """Print the shares of both parts."""
    print_floors(Path(__file__).parent, floors, documents)


if __name__ == "__main__":
    run_script(main)
