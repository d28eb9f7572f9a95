"""What models of the puzzle `compositional_recall` are asked to find the edges that carry a question.

    for change, asked in questions(source, 64).items():
        prompt, answer, other_prompt, its_answer = asked[0]

A question and its other prompt differ in one thing (`CHANGES`); what carries the difference carries that thing.
"""

from __future__ import annotations

from functools import partial

from dcinterp.evidence.arm_circuits import measure_model
from dcinterp.train.data.puzzle_source import PuzzleSource
from dcinterp.train.data.puzzles.compositional_recall import MARK, CompositionalRecall

PUZZLE = CompositionalRecall.name
CHANGES = {
    "first": "the first part of the key is another one, of a fact with the same second part",
    "second": "the second part of the key is another one, of a fact with the same first part",
    "both": "both parts are others",
    "value": "the fact that is asked for has another value: it and a fact that shares no part with it exchange theirs",
}


def questions(source: PuzzleSource, count: int) -> dict[str, list[tuple[str, str, str, str]]]:
    """{change: [(prompt, answer, other prompt, its answer)]}, of documents up to their first question's key."""
    puzzle, tokenizer = source.puzzle, source.tokenizer
    assert isinstance(puzzle, CompositionalRecall)
    assert tokenizer is not None
    found: dict[str, list[tuple[str, str, str, str]]] = {change: [] for change in CHANGES}

    def written(start: str, facts: list[list[str]], key: tuple[str, str]) -> tuple[str, str]:
        (value,) = (fact[0] for fact in facts if (fact[1], fact[2]) == key)
        return " ".join([start, *(word for fact in facts for word in fact), MARK, *key]), value

    for row in source.held_out(puzzle.PARTS[0], count)["input_ids"].tolist():
        start, *words = list(tokenizer.convert_ids_to_tokens(row))
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


measure = partial(measure_model, prompts=questions)
"""Makes the rows of a model, from its experiment, its arm and its folder."""
