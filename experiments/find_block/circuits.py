"""Which edges carry the two letters of a question in the multi-token models that find the block, seed by seed.

    python experiments/find_block/circuits.py

reads the models of the runs (so the runs must be there, not only their table), adds those that are missing to
circuits.csv of this folder, and prints the tables over seeds, which are also at the end of the experiment's page
(more-circuits.md). `dcinterp.evidence.pooled_edges` says what is measured.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path

import pandas as pd

from dcinterp.evidence.arm_circuits import DOCUMENTS, TABLE, TEXT_FILE, measure_model
from dcinterp.evidence.pooled_edges import DESCRIBES, EXPLAINED, arm_tables, change_list, with_shares
from dcinterp.evidence.script import run_script
from dcinterp.evidence.trained_models import RunsTable, print_measured, trained_models
from dcinterp.train.control.experiment import Experiment
from dcinterp.train.data.puzzle_source import PuzzleSource
from dcinterp.train.data.puzzles.find_block import MARK, FindBlock

HERE = Path(__file__).parent
ARM = "multi-token"
CHANGES = {
    "both": "both letters of the question are of another block",
    "first": "the first letter alone is another one, which with the second is in another block",
    "second": "the second letter alone is another one, which with the first is in another block",
    "answer": "the block ends with another letter: it and another block exchange their last ones",
}

TEXT = """## Which edges carry the question in the multi-token models

{solved} of {trained} seeds reach {at:.0%}. Those are asked the first question of {documents} documents that training
did not read, in which each of the changes below can be made. {explained} *kq* is the convolution over queries and keys,
without the place where a pair reads itself; that, and the map over heads, is *static*.

    python experiments/find_block/circuits.py{options}

{changes}

{tables}
"""


def prompts(source: PuzzleSource, count: int) -> dict[str, list[tuple[str, str, str, str]]]:
    """{change: [(prompt, answer, other prompt, its answer)]} of the first documents that allow all changes."""
    puzzle, tokenizer = source.puzzle, source.tokenizer
    assert isinstance(puzzle, FindBlock)
    assert tokenizer is not None
    found: dict[str, list[tuple[str, str, str, str]]] = {change: [] for change in CHANGES}
    for row in source.held_out(puzzle.PARTS[0], 8 * count)["input_ids"].tolist():
        start, *words = tokenizer.convert_ids_to_tokens(row)
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


def summary(rows: pd.DataFrame, experiment: Experiment, options: str = "") -> str:
    """The tables over seeds, as Markdown.

    options: of the command that makes it again.
    """
    solved = with_shares(rows)
    return TEXT.format(
        options=options,
        solved=solved["seed"].nunique(),
        trained=rows["seed"].nunique(),
        at=experiment.solved_at,
        documents=DOCUMENTS,
        explained=f"{EXPLAINED} {DESCRIBES}",
        changes=change_list(CHANGES),
        tables=arm_tables(solved, list(CHANGES)) if len(solved) else "",
    )


def main(table: RunsTable = None) -> None:
    """Measure the models that are missing, and print the tables."""
    measure = partial(measure_model, prompts=prompts)
    print_measured(trained_models(HERE, HERE, table), TABLE, TEXT_FILE, measure, summary, [ARM])


if __name__ == "__main__":
    run_script(main)
