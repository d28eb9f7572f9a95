"""Questions of `find_block`, and what its scripts say of circuits and of other seeds."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest
from experiment_scripts import FOLDER, script

from dcinterp.analysis.training.compare_arms import ArmComparison
from dcinterp.evidence.questions import find_block
from dcinterp.evidence.verdicts import comparison
from dcinterp.support.errors import UserError
from dcinterp.train.config.recipe import PuzzleSection
from dcinterp.train.control.experiment_file import read_experiment
from dcinterp.train.data.puzzle_source import PuzzleSource


def test_questions_on_blocks_differ_in_what_the_change_says(tmp_path):
    """Read anew from the prompts: one block alone holds both letters, its last is the answer, and little differs."""
    section = read_experiment(FOLDER / "find_block").config["data"]["puzzle"]
    source = PuzzleSource(PuzzleSection(**section), tmp_path)
    documents = {tuple(ids[:28].tolist()) for ids in source.held_out("seen", 160)["input_ids"]}

    def blocks_and_answer(prompt: str) -> tuple[list[str], str]:
        told, asked = prompt.removeprefix("<bos> . ").split(" # ")
        blocks = told.split(" . ")
        (held,) = [block for block in blocks if set(asked.split()) <= set(block.split())]
        return blocks, held.split()[-1]

    found = find_block.questions(source, 20)
    assert [len(found[change]) for change in find_block.CHANGES] == [20] * 4
    for change, rows in found.items():
        for prompt, answer, other, its_answer in rows:
            assert tuple(source.tokenizer(prompt, add_special_tokens=False)["input_ids"]) in documents
            assert (answer, its_answer) == (blocks_and_answer(prompt)[1], blocks_and_answer(other)[1])
            assert answer != its_answer
            differ = [at for at, (a, b) in enumerate(zip(prompt.split(), other.split(), strict=True)) if a != b]
            if change == "answer":
                assert len(differ) == 2
                assert all(at % 6 == 0 for at in differ), "the last letters of two blocks"
                assert blocks_and_answer(prompt)[0] != blocks_and_answer(other)[0]
            else:
                assert differ == {"both": [26, 27], "first": [26], "second": [27]}[change]


def test_a_variant_of_the_puzzle_that_has_no_questions_is_named(tmp_path):
    """The full size says all letters of the block: its next token is the first one, and not the last."""
    section = read_experiment(FOLDER / "find_block_full").config["data"]["puzzle"]
    with pytest.raises(UserError, match=r"answered by the last one of the block; .* says = 'all'"):
        find_block.questions(PuzzleSource(PuzzleSection(**section), tmp_path), 1)


def test_the_words_on_blocks_are_those_of_the_table():
    module, folder = script("find_block", "circuits"), FOLDER / "find_block"
    rows, experiment = pd.read_csv(folder / "circuits.csv"), read_experiment(FOLDER / "find_block")
    assert (folder / "more-circuits.md").read_text(encoding="utf-8") == module.summary(rows, experiment)
    assert set(rows["seed"]) == set(experiment.seeds)


def test_what_came_again_is_a_side_of_zero():
    """H1 was open and H5 no test, so of them the side is named; H2 was below zero and H4 above."""
    module, experiment = script("find_block", "other_seeds"), read_experiment(FOLDER / "find_block")
    first, asked = comparison(experiment, None), [*experiment.hypotheses, module.ADDED]
    assert (FOLDER / "find_block" / module.TEXT_FILE).read_text(encoding="utf-8") == module.summary()
    other = dataclasses.replace(first, values=1 - first.values)
    alike = dataclasses.replace(first, values=first.values[:1].expand_as(first.values))

    def says(second: ArmComparison, level: float = 0.95) -> list[str]:
        return [module.row_of(each, first, second, level)[-1] for each in asked]

    assert says(first) == ["not shown", *["came again"] * 3, "above zero"]
    assert says(first, 0.99) == ["not shown", *["did not come again"] * 2, "came again", "above zero"]
    assert says(other) == ["not shown", *["the other sign"] * 3, "below zero"]
    assert says(alike) == ["not shown", *["did not come again"] * 3, "not shown"]
