"""What models of the puzzle `recombination` are asked to find the edges that carry a question.

    for row in measure(experiment, arm, model):
        row["part"], row["change"], row["group"], row["share"]

A question and its other prompt differ in one thing (`CHANGES`); what carries the difference carries that thing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from dcinterp.evidence.arm_circuits import DOCUMENTS
from dcinterp.evidence.pooled_edges import pooled_shares
from dcinterp.evidence.trained_models import accuracy_by_part, open_trained
from dcinterp.train.control.experiment import Experiment
from dcinterp.train.data.batches import NOT_SCORED
from dcinterp.train.data.puzzle_source import PuzzleSource
from dcinterp.train.data.puzzles.recombination import Recombination

PUZZLE = Recombination.name
CHANGES = {
    "key": "another fact is asked for",
    "letter": "the fact that is asked for has another letter: it and another fact exchange theirs",
    "key and letter": "both, so that another fact is asked for and the letter that is found stays the same, as does "
    "the answer; shares are of what *key* does to the difference between its two answers",
    "relation": "the letter is to be moved on by another number of places",
}
SAME = "key and letter"
"""This change leaves the answer as it is; what patching does is a share of what `key` does to the answer."""


def questions(source: PuzzleSource, part: str, change: str, count: int) -> list[tuple[str, str, str, str]]:
    """(prompt, answer, other prompt, its answer): documents of a part up to their first question's key.

    Of `SAME`, whose prompts have one answer, the last is that of the change "key".
    """
    puzzle, tokenizer = source.puzzle, source.tokenizer
    assert isinstance(puzzle, Recombination)
    assert tokenizer is not None
    letters = [word for word in puzzle.words() if len(word) == 1]
    found = []
    for row in source.held_out(part, count)["input_ids"].tolist():
        start, *words = list(tokenizer.convert_ids_to_tokens(row))
        facts, relation, key = [word.split("-") for word in words[:4]], int(words[4]), words[5]
        at, pattern = next((n, fact.index(key)) for n, fact in enumerate(facts) if key in fact)
        other = (at + 1) % len(facts)
        swapped = [list(fact) for fact in facts]
        swapped[at][2], swapped[other][2] = facts[other][2], facts[at][2]
        relations = [each for side, each in puzzle.pairs(part) if side == pattern and each != relation]
        asked = {
            "key": (facts, relation, other),
            "letter": (swapped, relation, at),
            SAME: (swapped, relation, other),
            "relation": (facts, relations[relation % len(relations)], at),
        }
        (prompt, answer), (counterfactual, its_answer), (_, foil) = (
            (
                " ".join([start, *map("-".join, these), f"+{places}", these[fact][pattern]]),
                letters[(letters.index(these[fact][2]) + places) % len(letters)],
            )
            for these, places, fact in ((facts, relation, at), asked[change], asked["key"])
        )
        found.append((prompt, answer, counterfactual, foil if change == SAME else its_answer))
    return found


def measure(experiment: Experiment, arm: str, model: Path) -> list[dict[str, Any]]:
    """A row for every part of the puzzle, change and group of edges: the share of the difference that it carries.

    Of a model that has not learnt the seen pairs, one row with its accuracy; no rows of a part in which it prefers the
    answer too seldom (`pooled_shares`), and that one row if that is every part.
    """
    bridge, source = open_trained(experiment, arm, model)
    accuracy = accuracy_by_part(bridge, source, source.puzzle.PARTS)
    if accuracy[source.puzzle.PARTS[0]] < experiment.solved_at:
        return [accuracy]
    found = [
        accuracy | {"part": part} | row
        for part in source.puzzle.PARTS
        for row in pooled_shares(
            bridge, {change: questions(source, part, change, DOCUMENTS) for change in CHANGES}, like={SAME: "key"}
        )
    ]
    return found or [accuracy]


def asked_first(documents: dict[str, Tensor]) -> dict[str, Tensor]:
    """The documents without the labels of questions whose answer stands there, asked before of this fact.

    Letters of facts differ within a document, so a relation and an answer that come again are of the same fact.
    """
    labels = documents["labels"].clone()
    for ids, row in zip(documents["input_ids"], labels, strict=True):
        asked = set()
        for at in (row >= 0).nonzero().flatten().tolist():
            question = (int(ids[at - 2]), int(ids[at]))
            row[at] = NOT_SCORED if question in asked else row[at]
            asked.add(question)
    return documents | {"labels": labels}
