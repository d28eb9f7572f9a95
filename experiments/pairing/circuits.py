"""Which edges carry the words of a question in the models that learnt the puzzle, seed by seed.

    python experiments/pairing/circuits.py
    python experiments/pairing/circuits.py --folder experiments/pairing_routes

reads the models of the runs (so the runs must be there, not only their table), adds those that are missing to
circuits.csv of that folder, and prints the tables over seeds, which are also at the end of the experiment's page
(more-circuits.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dcinterp.bench.arm_circuits import ask_models
from dcinterp.bench.trained_models import RunsTable
from dcinterp.train.data.puzzle_source import PuzzleSource
from dcinterp.train.data.puzzles.pairing import HALVES, Pairing
from dcinterp.train.data.puzzles.recombination import FACTS

HERE = Path(__file__).parent
CHANGES = {
    "fact": "the half of the key that counts names another fact",
    "half": "the other half of the key counts, so that the other fact which the key names is meant",
    "relation": "another relation is asked for",
    "letter": "the fact that is meant has another letter: it and a fact that the key does not name exchange theirs",
}


def prompts(source: PuzzleSource, count: int) -> dict[str, list[tuple[str, str, str, str]]]:
    """{change: [(prompt, answer, other prompt, its answer)]} of the first documents that allow all changes."""
    puzzle, tokenizer = source.puzzle, source.tokenizer
    assert isinstance(puzzle, Pairing)
    assert tokenizer is not None
    part, letters, rules = puzzle.PARTS[0], puzzle.alphabet(), puzzle.rules()
    found: dict[str, list[tuple[str, str, str, str]]] = {change: [] for change in CHANGES}

    def written(start: str, facts: list[list[str]], half: int, rule: int, key: list[str]) -> tuple[str, str]:
        (meant,) = (fact for fact in facts if fact[half] == key[half])
        words = [start, *map("-".join, facts), HALVES[half], f"rule{rule}", "-".join(key)]
        return " ".join(words), letters[rules[rule, letters.index(meant[2])]]

    for row in source.held_out(part, 8 * count)["input_ids"].tolist():
        start, *words = tokenizer.convert_ids_to_tokens(row)
        facts, key = [word.split("-") for word in words[:FACTS]], words[FACTS + 2].split("-")
        half, rule = HALVES.index(words[FACTS]), int(words[FACTS + 1].removeprefix("rule"))
        meant, other = (next(n for n, fact in enumerate(facts) if fact[side] == key[side]) for side in (half, 1 - half))
        third = next(n for n in range(FACTS) if n not in (meant, other))
        relations = [each for side, each in puzzle.pairs(part) if side == half and each != rule]
        if (1 - half, rule) not in puzzle.pairs(part) or not relations or len(found["fact"]) == count:
            continue
        named, swapped = list(key), [list(fact) for fact in facts]
        named[half] = facts[third][half]
        swapped[meant][2], swapped[third][2] = facts[third][2], facts[meant][2]
        pairs = {
            "fact": written(start, facts, half, rule, named),
            "half": written(start, facts, 1 - half, rule, key),
            "relation": written(start, facts, half, relations[0], key),
            "letter": written(start, swapped, half, rule, key),
        }
        now = written(start, facts, half, rule, key)
        if all(its_answer != now[1] for _, its_answer in pairs.values()):
            for change, pair in pairs.items():
                found[change].append((*now, *pair))
    return found


def main(
    table: RunsTable = None,
    folder: Annotated[Path, typer.Option(help="Folder of the experiment.")] = HERE,
) -> None:
    """Measure the models that are missing, and print the tables."""
    ask_models(HERE, prompts, CHANGES, table, folder)


if __name__ == "__main__":
    typer.run(main)
