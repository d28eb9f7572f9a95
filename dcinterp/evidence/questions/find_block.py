"""What models of the puzzle `find_block` are asked to find the edges that carry a question.

    for change, asked in questions(source, 64).items():
        prompt, answer, other_prompt, its_answer = asked[0]

A question and its other prompt differ in one thing (`CHANGES`); what carries the difference carries that thing.
"""

from __future__ import annotations

from functools import partial
from itertools import product

from dcinterp.evidence.arm_circuits import measure_model
from dcinterp.support.errors import UserError
from dcinterp.train.data.puzzle_source import PuzzleSource
from dcinterp.train.data.puzzles.find_block import MARK, FindBlock

PUZZLE = FindBlock.name
CHANGES = {
    "both": "both letters of the question are of another block",
    "first": "the first letter alone is another one, which with the second is in another block",
    "second": "the second letter alone is another one, which with the first is in another block",
    "answer": "the block ends with another letter: it and another block exchange their last ones",
}


def questions(source: PuzzleSource, count: int) -> dict[str, list[tuple[str, str, str, str]]]:
    """{change: [(prompt, answer, other prompt, its answer)]} of the first documents that allow all changes.

    Raises:
        UserError: the puzzle asks for other letters than two, or for another answer than the last letter of the block.
    """
    puzzle, tokenizer = source.puzzle, source.tokenizer
    assert isinstance(puzzle, FindBlock)
    assert tokenizer is not None
    if (puzzle.asked, puzzle.says) != (2, "last"):
        raise UserError(
            f"The questions of {PUZZLE} name 2 letters and are answered by the last one of the block; this experiment "
            f"has asked = {puzzle.asked} and says = {puzzle.says!r}, for which there are none yet."
        )
    found: dict[str, list[tuple[str, str, str, str]]] = {change: [] for change in CHANGES}
    for row in source.held_out(puzzle.PARTS[0], 8 * count)["input_ids"].tolist():
        start, *words = list(tokenizer.convert_ids_to_tokens(row))
        width = puzzle.size + 1
        blocks = ["".join(words[at + 1 : at + width]) for at in range(0, puzzle.blocks * width, width)]
        first, second = words[words.index(MARK) + 1 :][: puzzle.asked]
        others = _others(blocks, first, second)
        if len(others) < len(CHANGES) or len(found["both"]) == count:
            continue
        now = _written(start, blocks, first, second)
        for change, other in others.items():
            found[change].append((*now, *_written(start, *other)))
    return found


def _others(blocks: list[str], first: str, second: str) -> dict[str, tuple[list[str], str, str]]:
    """{change: (blocks, letters of the question)}; of a change that cannot be made there is none."""
    found, (at,) = {}, _holding(blocks, first, second)
    letters = sorted(set("".join(blocks)))
    for change, pairs in {
        "both": [pair for pair in product(letters, letters) if not set(pair) & {first, second}],
        "first": [(letter, second) for letter in letters if letter not in (first, second)],
        "second": [(first, letter) for letter in letters if letter not in (first, second)],
    }.items():
        for pair in pairs:
            held = _holding(blocks, *pair) if pair[0] != pair[1] else []
            if len(held) == 1 and blocks[held[0]][-1] != blocks[at][-1]:
                found[change] = (blocks, *pair)
                break
    for other in range(len(blocks)):
        swapped = list(blocks)
        swapped[at], swapped[other] = blocks[at][:-1] + blocks[other][-1], blocks[other][:-1] + blocks[at][-1]
        whole = all(len(set(block)) == len(block) for block in swapped) and swapped[at] != blocks[at]
        if whole and _holding(swapped, first, second) == [at]:
            found["answer"] = (swapped, first, second)
            break
    return found


def _holding(blocks: list[str], first: str, second: str) -> list[int]:
    return [at for at, block in enumerate(blocks) if first in block and second in block]


def _written(start: str, blocks: list[str], first: str, second: str) -> tuple[str, str]:
    """(the prompt, its answer)."""
    (at,) = _holding(blocks, first, second)
    return " ".join([start, *(word for block in blocks for word in (".", *block)), MARK, first, second]), blocks[at][-1]


measure = partial(measure_model, prompts=questions)
"""Makes the rows of a model, from its experiment, its arm and its folder."""
