"""What models of the puzzle `lookup` are asked to find the edges that carry a question.

    for change, asked in questions(source, 64).items():
        prompt, answer, other_prompt, its_answer = asked[0]

A question and its other prompt differ in one word (`CHANGES`); what carries the difference carries that word.
"""

from __future__ import annotations

from functools import partial

from dcinterp.evidence.arm_circuits import measure_model
from dcinterp.train.data.puzzle_source import PuzzleSource
from dcinterp.train.data.puzzles.lookup import Lookup

PUZZLE = Lookup.name
CHANGES = {
    "item": "the question names another attribute, by a value that another item alone has",
    "relation": "another relation is asked for",
    "letter": "in place of the item that is meant stands another one with this value, and with another letter",
}


def questions(source: PuzzleSource, count: int) -> dict[str, list[tuple[str, str, str, str]]]:
    """{change: [(prompt, answer, other prompt, its answer)]}, of documents of seen pairs up to their first relation.

    Each change has the first documents that allow it: both prompts ask for pairs that training shows, and have other
    answers. Of what the other prompt may name, each is taken in turn.
    """
    puzzle, tokenizer = source.puzzle, source.tokenizer
    assert isinstance(puzzle, Lookup)
    assert tokenizer is not None
    part, rules, (held, letter) = puzzle.PARTS[0], puzzle.rules(), puzzle.table
    pairs, letters = puzzle.pairs(part), puzzle.alphabet()
    found: dict[str, list[tuple[str, str, str, str]]] = {change: [] for change in CHANGES}

    def meant(facts: list[int], attribute: int, value: int) -> list[int]:
        return [fact for fact in facts if held[fact, attribute] == value]

    def written(start: str, facts: list[int], attribute: int, value: int, rule: int) -> tuple[str, str] | None:
        if len(those := meant(facts, attribute, value)) != 1 or not pairs[attribute, rule]:
            return None
        words = [start, *(f"item{fact}" for fact in facts), f"a{attribute}={value}", f"rule{rule}"]
        return " ".join(words), letters[rules[rule, letter[those[0]]]]

    for row in source.held_out(part, 4 * count)["input_ids"].tolist():
        start, *words = list(tokenizer.convert_ids_to_tokens(row))
        facts = [int(word.removeprefix("item")) for word in words[: puzzle.facts]]
        attribute, value = map(int, words[puzzle.facts].removeprefix("a").split("="))
        rule = int(words[puzzle.facts + 1].removeprefix("rule"))
        (item,) = meant(facts, attribute, value)
        replaced = [
            [new if fact == item else fact for fact in facts]
            for new in range(puzzle.items)
            if held[new, attribute] == value and letter[new] not in letter[facts]
        ]
        others = {
            "item": [
                written(start, facts, other, int(held[fact, other]), rule)
                for fact in facts
                for other in range(puzzle.attributes)
                if fact != item and other != attribute
            ],
            "relation": [written(start, facts, attribute, value, each) for each in range(puzzle.relations)],
            "letter": [written(start, each, attribute, value, rule) for each in replaced],
        }
        now = written(start, facts, attribute, value, rule)
        assert now is not None
        for change, all_of in others.items():
            able = [pair for pair in all_of if pair is not None and pair[1] != now[1]]
            if able and len(found[change]) < count:
                found[change].append((*now, *able[len(found[change]) % len(able)]))
    return found


measure = partial(measure_model, prompts=questions)
"""Makes the rows of a model, from its experiment, its arm and its folder."""
