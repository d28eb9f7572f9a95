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
from dcinterp.train.data.puzzles.compositional_recall import CompositionalRecall
from dcinterp.train.data.puzzles.find_block import DOT, MARK, FindBlock
from dcinterp.train.data.puzzles.lookup import Lookup
from dcinterp.train.data.puzzles.pairing import HALVES, Pairing
from dcinterp.train.data.puzzles.recombination import COLOURS, FACTS, THINGS, Recombination


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


def test_pairing_asks_for_what_the_relation_makes_of_the_letter_that_the_half_finds():
    puzzle = Pairing(relations=8, held_out=4)
    alphabet = "ABCDEFGH"
    rules = ["".join(alphabet[letter] for letter in rule) for rule in puzzle.rules()]
    assert all(sorted(rule) == list(alphabet) for rule in rules)
    assert len(set(rules)) == 8
    for part in puzzle.PARTS:
        for words, answers in zip(*read(puzzle, part), strict=True):
            facts = [word.split("-") for word in words[:FACTS]]
            assert all(len(set(column)) == FACTS for column in zip(*facts, strict=True))
            by_half = [{fact[half]: fact[2] for fact in facts} for half in range(2)]
            for half, relation, key, answer in zip(*(words[FACTS + i :: 4] for i in range(4)), strict=True):
                found = [by_half[n][word] for n, word in enumerate(key.split("-"))]
                assert found[0] != found[1]
                rule = rules[int(relation.removeprefix("rule"))]
                assert answer == rule[alphabet.index(found[HALVES.index(half)])]
            questions = [tuple(words[start : start + 2]) for start in range(FACTS, len(words), 4)]
            letters = [answer for answer, asked in zip(words, answers, strict=True) if asked]
            assert len(set(zip(questions, letters, strict=True))) == puzzle.questions
            assert [n for n, is_answer in enumerate(answers) if is_answer] == list(range(FACTS + 3, len(words), 4))


def test_pairing_asks_for_every_half_and_relation_but_those_held_out():
    puzzle = Pairing(relations=8, held_out=4, first=2)
    asked = {
        part: {
            (HALVES.index(half), int(relation.removeprefix("rule")))
            for words in read(puzzle, part, 400)[0]
            for half, relation in zip(words[FACTS::4], words[FACTS + 1 :: 4], strict=True)
        }
        for part in puzzle.PARTS
    }
    assert asked["held-out"] == {(0, 2), (1, 3), (0, 4), (1, 5)}
    assert asked["seen"] == {(half, relation) for half in range(2) for relation in range(8)} - asked["held-out"]
    assert f"{COLOURS[0]}-{THINGS[1]}" in puzzle.words()


def test_pairing_says_when_its_documents_cannot_ask_so_much():
    with pytest.raises(UserError, match=r"questions = 9; 4 facts and 2 pairs of a part are asked about in 8 ways"):
        Pairing(questions=9)
    with pytest.raises(UserError, match="'pairing' needs 4 to 26 letters"):
        Pairing(letters=3)


def test_lookup_asks_for_what_the_relation_makes_of_the_letter_of_the_one_item_with_a_value():
    puzzle = Lookup(attributes=6, values=4, items=32, held_out=6, first=3)
    alphabet, (held, letter) = "ABCDEFGH", puzzle.table
    rules = ["".join(alphabet[each] for each in rule) for rule in puzzle.rules()]
    asked = {}
    for part in puzzle.PARTS:
        asked[part] = set()
        for words, answers in zip(*read(puzzle, part, 200), strict=True):
            facts, start = [int(word.removeprefix("item")) for word in words[: puzzle.facts]], puzzle.facts
            assert len({letter[item] for item in facts}) == len(facts)
            questions = list(zip(*(words[start + i :: 3] for i in range(3)), strict=True))
            for named, relation, answer in questions:
                attribute, value = map(int, named.removeprefix("a").split("="))
                (item,) = [each for each in facts if held[each, attribute] == value]
                rule = int(relation.removeprefix("rule"))
                assert answer == rules[rule][letter[item]]
                asked[part].add((attribute, rule))
            assert len(set(questions)) == puzzle.questions
            assert [n for n, is_answer in enumerate(answers) if is_answer] == list(range(start + 2, len(words), 3))
    assert asked["held-out"] == {(attribute, (3 + attribute) % 8) for attribute in range(6)}
    assert asked["seen"] == {(a, r) for a in range(6) for r in range(8)} - asked["held-out"]


def test_lookup_says_what_it_cannot_ask():
    with pytest.raises(UserError, match="held_out from 1 to the number of attributes"):
        Lookup(held_out=9)
    with pytest.raises(UserError, match="2 facts to as many as letters"):
        Lookup(facts=9)
    with pytest.raises(UserError, match="items = 20; it must be a multiple of letters = 8"):
        Lookup(items=20)
    with pytest.raises(
        UserError, match="4 facts and held_out = 1 pairs of an attribute and a relation are asked about in 4"
    ):
        Lookup(held_out=1)
    with pytest.raises(UserError, match="too few documents of the part 'held-out' can be asked so much"):
        Lookup(questions=16, values=2).documents(np.random.default_rng(0), 4, "held-out")


@pytest.mark.parametrize("first", [0, 4])
def test_pairs_held_out_stand_nowhere_in_training_and_their_halves_do(first):
    puzzle = Recombination(held_out=4, first=first)

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


def facts_and_questions(puzzle, words):
    """(first part, second part, value) of the facts, and of the questions, of a document of compositional recall."""
    facts, questions = words[: 3 * puzzle.side**2], words[3 * puzzle.side**2 :]
    told = [(facts[at + 1], facts[at + 2], facts[at]) for at in range(0, len(facts), 3)]
    assert set(questions[::4]) == {"?"}
    return told, [tuple(questions[at + 1 : at + 4]) for at in range(0, len(questions), 4)]


def test_compositional_recall_asks_for_the_value_of_the_fact_with_both_parts():
    puzzle = CompositionalRecall(side=3, parts=5, values=11, questions=4)
    orders = set()
    for words, answers in zip(*read(puzzle, "seen"), strict=True):
        facts, questions = facts_and_questions(puzzle, words)
        told = {fact[:2]: fact[2] for fact in facts}
        assert len(told) == len(set(told.values())) == 9
        assert all(first[0] == "a" and second[0] == "b" and value.isalpha() for first, second, value in facts)
        assert [told[question[:2]] for question in questions] == [question[2] for question in questions]
        assert [n for n, asked in enumerate(answers) if asked] == list(range(27 + 3, len(words), 4))
        orders.add(tuple(sorted(range(9), key=lambda n: facts[n][:2])))
    assert len(orders) > 30, "where a fact stands says nothing of its key"


def test_one_part_of_a_key_leaves_as_many_values_as_the_side():
    """No shortcut: who knows one part is right in 1 of `side`, also with what earlier questions have told."""
    puzzle = CompositionalRecall(side=3, parts=5, values=11, questions=6)
    by_one, by_old, asked = {0: 0.0, 1: 0.0}, 0, 0
    for words in read(puzzle, "seen", 400)[0]:
        facts, questions = facts_and_questions(puzzle, words)
        for place in (0, 1):
            values = {part: [f[2] for f in facts if f[place] == part] for part in {f[place] for f in facts}}
            assert [len(set(each)) for each in values.values()] == [3, 3, 3]
            by_one[place] += sum(values[q[place]][0] == q[2] for q in questions)
        for number, question in enumerate(questions):
            # What was answered when the same part was asked about before.
            same = [q[2] for q in questions[:number] if q[0] == question[0]]
            by_old += bool(same) and same[-1] == question[2]
            asked += bool(same)
    for place in (0, 1):
        assert by_one[place] / (400 * 6) == pytest.approx(1 / 3, abs=0.04)
    assert by_old / asked == pytest.approx(1 / 3, abs=0.05)


SAID = {"first": [0], "last": [4], "all": [0, 1, 2, 3, 4]}
ASKED_AT = {"first": [27, 31], "last": [27, 31], "all": [27, 28, 29, 30, 31, 35, 36, 37, 38, 39]}


@pytest.mark.parametrize("says", SAID)
def test_find_block_asks_for_the_one_block_that_holds_all_letters(says):
    puzzle = FindBlock(letters=12, blocks=4, size=5, asked=2, questions=2, says=says)
    repeated, targets = [], []
    for words, answers in zip(*read(puzzle, "seen", 100), strict=True):
        told, *questions = " ".join(words).split(f" {MARK} ")
        blocks = [block.split() for block in told.split(DOT)[1:]]
        assert [len(set(block)) for block in blocks] == [5] * 4
        for question in questions:
            letters, said = question.split()[:2], question.split()[2:]
            (target,) = [number for number, block in enumerate(blocks) if set(letters) <= set(block)]
            assert len(set(letters)) == 2
            assert said == [blocks[target][place] for place in SAID[says]]
            repeated.append(said[0] == letters[0])
            targets.append(target)
        assert [n for n, asked in enumerate(answers) if asked] == ASKED_AT[says]
        assert [words[n] for n in ASKED_AT[says]] == [word for each in questions for word in each.split()[2:]]
    assert np.mean(repeated) == pytest.approx(1 / 5, abs=0.09)
    assert min(np.bincount(targets)) > 25, "no place of the target is rare"


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
        (PuzzleSection(options={"held_out": 4, "first": 5}), "first = 5"),
        (PuzzleSection(name="compositional-recall", options={"side": 9}), "has 9, 4 and 8"),
        (PuzzleSection(name="compositional-recall", options={"side": 3}), "9 to 26 letters"),
        (PuzzleSection(name="find-block", options={"asked": 5}), "asked < size"),
        (PuzzleSection(name="find-block", options={"says": "middle"}), "'first', 'last' or 'all'"),
        (PuzzleSection(name="find-block", options={"letters": 6}), "give more letters"),
    ],
)
def test_what_a_puzzle_cannot_be_is_said(section, says):
    with pytest.raises(UserError, match=says):
        open_puzzle(section)
