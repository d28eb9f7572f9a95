"""What models of the puzzle `pairing` are asked to find the edges that carry a question.

    for change, asked in questions(source, 64).items():
        prompt, answer, other_prompt, its_answer = asked[0]

A question and its other prompt differ in one thing (`CHANGES`); what carries the difference carries that thing.
"""

from __future__ import annotations

from functools import partial

from dcinterp.evidence.arm_circuits import measure_model
from dcinterp.train.data.puzzle_source import PuzzleSource
from dcinterp.train.data.puzzles.pairing import HALVES, Pairing
from dcinterp.train.data.puzzles.recombination import FACTS

PUZZLE = Pairing.name
CHANGES = {
    "fact": "the half of the key that counts names another fact",
    "half": "the other half of the key counts, so that the other fact which the key names is meant",
    "relation": "another relation is asked for",
    "letter": "the fact that is meant has another letter: it and a fact that the key does not name exchange theirs",
}


def questions(source: PuzzleSource, count: int) -> dict[str, list[tuple[str, str, str, str]]]:
    """{change: [(prompt, answer, other prompt, its answer)]}, of documents of seen pairs up to their first key.

    Each change has the first documents that allow it: both prompts ask for pairs that training shows, and have other
    answers. Of the relations that the other prompt may ask for, each is taken in turn.
    """
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
        start, *words = list(tokenizer.convert_ids_to_tokens(row))
        facts, key = [word.split("-") for word in words[:FACTS]], words[FACTS + 2].split("-")
        half, rule = HALVES.index(words[FACTS]), int(words[FACTS + 1].removeprefix("rule"))
        meant, other = (next(n for n, fact in enumerate(facts) if fact[side] == key[side]) for side in (half, 1 - half))
        third = next(n for n in range(FACTS) if n not in (meant, other))
        relations = [each for side, each in puzzle.pairs(part) if side == half and each != rule]
        named, swapped = list(key), [list(fact) for fact in facts]
        named[half] = facts[third][half]
        swapped[meant][2], swapped[third][2] = facts[third][2], facts[meant][2]
        others = {"fact": written(start, facts, half, rule, named), "letter": written(start, swapped, half, rule, key)}
        if (1 - half, rule) in puzzle.pairs(part):
            others["half"] = written(start, facts, 1 - half, rule, key)
        if relations:
            turn = relations[len(found["relation"]) % len(relations)]
            others["relation"] = written(start, facts, half, turn, key)
        now = written(start, facts, half, rule, key)
        for change, pair in others.items():
            if pair[1] != now[1] and len(found[change]) < count:
                found[change].append((*now, *pair))
    return found


measure = partial(measure_model, prompts=questions)
"""Makes the rows of a model, from its experiment, its arm and its folder."""
