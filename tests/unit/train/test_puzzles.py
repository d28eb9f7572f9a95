"""Puzzles ask what they say, by an answerer that reads their words; batches are functions of seed and step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dcinterp.support.errors import UserError
from dcinterp.train.config.recipe import Phase, PuzzleSection
from dcinterp.train.data.batches import Draw
from dcinterp.train.data.puzzle_source import PuzzleSource
from dcinterp.train.data.puzzles import PUZZLES, open_puzzle
from dcinterp.train.data.puzzles.recombination import COLOURS, FACTS, Recombination


def read(puzzle, part, count=40):
    """The documents of a part as words, and whether each word is an answer."""
    made = puzzle.documents(np.random.default_rng(3), count, part)
    words = np.array(puzzle.words())
    return words[made.words].tolist(), made.answers.tolist()


def test_recombination_asks_for_the_letter_of_the_fact_with_the_key_moved_on():
    puzzle = Recombination()
    for part in puzzle.PARTS:
        for words, answers in zip(*read(puzzle, part), strict=True):
            facts = [word.split("-") for word in words[:FACTS]]
            assert all(len(set(column)) == FACTS for column in zip(*facts, strict=True))
            for relation, key, answer in zip(*(words[FACTS + i :: 3] for i in range(3)), strict=True):
                (letter,) = [fact[2] for fact in facts if key in fact[:2]]
                assert ord(answer) - ord("A") == (ord(letter) - ord("A") + int(relation)) % puzzle.letters
            assert [n for n, asked in enumerate(answers) if asked] == list(range(FACTS + 2, len(words), 3))


def test_pairs_held_out_stand_nowhere_in_training_and_their_halves_do():
    puzzle = Recombination(held_out=4)

    def asked(part):
        documents, _ = read(puzzle, part, 400)
        pairs = [
            (key in COLOURS, int(relation))
            for words in documents
            for relation, key in zip(words[FACTS::3], words[FACTS + 1 :: 3], strict=True)
        ]
        return set(pairs)

    seen, held_out = asked("seen"), asked("held-out")
    assert len(seen) == 12
    assert len(held_out) == 4
    assert not seen & held_out
    for pattern, relation in held_out:
        assert any(p == pattern for p, _ in seen)
        assert any(r == relation for _, r in seen)
    assert {r for p, r in seen if p} != {r for p, r in seen if not p}


@pytest.mark.parametrize("name", PUZZLES)
def test_batches_are_functions_of_seed_and_step_and_text_gives_the_same_ids(tmp_path, name):
    source = PuzzleSource(PuzzleSection(name=name), tmp_path)
    phase = Phase(source="puzzle", batch_size=4, score="answer")
    first = source.batch(Draw(0, 5, phase))
    assert torch.equal(first["input_ids"], source.batch(Draw(0, 5, phase))["input_ids"])
    assert not torch.equal(first["input_ids"], source.batch(Draw(0, 6, phase))["input_ids"])
    assert not torch.equal(first["input_ids"], source.batch(Draw(1, 5, phase))["input_ids"])
    halves = [source.batch(Draw(0, 5, phase), part, 2)["labels"] for part in range(2)]
    assert torch.equal(torch.stack(halves, 1).flatten(0, 1), first["labels"])
    scored = first["labels"] >= 0
    assert torch.equal(first["labels"][scored], first["input_ids"][scored])
    tokenizer = source.tokenizer
    assert tokenizer is not None
    ids = first["input_ids"][0].tolist()
    assert tokenizer.encode(tokenizer.decode(ids[1:]), add_special_tokens=False) == ids[1:]
    assert source.model_fields()["max_position_embeddings"] == len(ids)
    for part in source.puzzle.PARTS:
        assert torch.equal(source.held_out(part, 3)["input_ids"], source.held_out(part, 3)["input_ids"])


@pytest.mark.parametrize(
    ("section", "says"),
    [
        (PuzzleSection(name="recombine"), "recombination"),
        (PuzzleSection(options={"letter": 8}), "letters"),
        (PuzzleSection(options={"letters": "8"}), "whole number"),
        (PuzzleSection(options={"letters": True}), "whole number"),
        (PuzzleSection(options={"letters": 3}), "4 to 26 letters"),
        (PuzzleSection(options={"held_out": 8}), "held_out = 8"),
    ],
)
def test_what_a_puzzle_cannot_be_is_said(section, says):
    with pytest.raises(UserError, match=says):
        open_puzzle(section)
