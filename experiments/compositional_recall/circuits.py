"""Which edges carry the two parts of a key in the models that learnt the task, seed by seed.

    python experiments/compositional_recall/circuits.py

reads the models of the runs (so the runs must be there, not only their table), adds those that are missing to
circuits.csv of this folder, and prints the tables over seeds, which are also at the end of the experiment's page
(more-circuits.md).
"""

from __future__ import annotations

from pathlib import Path

from dcinterp.evidence.arm_circuits import ask_models
from dcinterp.evidence.script import run_script
from dcinterp.evidence.trained_models import RunsTable
from dcinterp.train.data.puzzle_source import PuzzleSource
from dcinterp.train.data.puzzles.compositional_recall import MARK, CompositionalRecall

HERE = Path(__file__).parent
CHANGES = {
    "first": "the first part of the key is another one, of a fact with the same second part",
    "second": "the second part of the key is another one, of a fact with the same first part",
    "both": "both parts are others",
    "value": "the fact that is asked for has another value: it and a fact that shares no part with it exchange theirs",
}


def prompts(source: PuzzleSource, count: int) -> dict[str, list[tuple[str, str, str, str]]]:
    """{change: [(prompt, answer, other prompt, its answer)]}, of documents up to their first question's key."""
    puzzle, tokenizer = source.puzzle, source.tokenizer
    assert isinstance(puzzle, CompositionalRecall)
    assert tokenizer is not None
    found: dict[str, list[tuple[str, str, str, str]]] = {change: [] for change in CHANGES}

    def written(start: str, facts: list[list[str]], key: tuple[str, str]) -> tuple[str, str]:
        (value,) = (fact[0] for fact in facts if (fact[1], fact[2]) == key)
        return " ".join([start, *(word for fact in facts for word in fact), MARK, *key]), value

    for row in source.held_out(puzzle.PARTS[0], count)["input_ids"].tolist():
        start, *words = tokenizer.convert_ids_to_tokens(row)
        at = words.index(MARK)
        facts, first, second = [words[n : n + 3] for n in range(0, at, 3)], words[at + 1], words[at + 2]
        swapped = [list(fact) for fact in facts]
        meant = next(fact for fact in swapped if fact[1:] == [first, second])
        apart = next(fact for fact in swapped if fact[1] != first and fact[2] != second)
        meant[0], apart[0] = apart[0], meant[0]
        others = apart[1:]
        now = written(start, facts, (first, second))
        found["first"].append((*now, *written(start, facts, (others[0], second))))
        found["second"].append((*now, *written(start, facts, (first, others[1]))))
        found["both"].append((*now, *written(start, facts, (others[0], others[1]))))
        found["value"].append((*now, *written(start, swapped, (first, second))))
    return found


def main(table: RunsTable = None) -> None:
    """Measure the models that are missing, and print the tables."""
    ask_models(HERE, prompts, CHANGES, table)


if __name__ == "__main__":
    run_script(main)
