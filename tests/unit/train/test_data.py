"""The documents: a function of seed and step, never from the held-out part, scored where they should be."""

from __future__ import annotations

from random import Random

import pytest
import torch
from transformers import PreTrainedTokenizerFast

import synthetic_tasks
from dcinterp.support.errors import UserError
from dcinterp.train.config.recipe import DataSection, Phase
from dcinterp.train.data.batches import NOT_SCORED, SOURCES, Batches, Encoder, TaskSource, pad, shuffle_index


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder):
    return PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)


def section(**fields) -> DataSection:
    return DataSection(seed=3, phases=(Phase(steps=4, batch_size=5, **fields), Phase(steps=2, batch_size=3)))


@pytest.mark.parametrize("source", SOURCES)
def test_a_step_is_the_same_whenever_it_is_asked_for(tokenizer, source):
    one, two = (Batches(section(source=source), TaskSource(tokenizer)) for _ in range(2))
    assert len(one) == 6
    two[0], two[3]
    for step in (2, 5):
        assert all(torch.equal(one[step][name], two[step][name]) for name in ("input_ids", "labels"))
    assert not torch.equal(one[0]["input_ids"][0, :8], one[1]["input_ids"][0, :8])
    assert len(one[3]["input_ids"]) == 5
    assert len(one[4]["input_ids"]) == 3


def test_every_source_scores_some_answers_and_no_padding(tokenizer):
    for source in SOURCES:
        batch = Batches(section(source=source, score="answer"), TaskSource(tokenizer))[0]
        scored = batch["labels"] != NOT_SCORED
        assert scored.any(dim=1).all(), source
        assert torch.equal(batch["labels"][scored], batch["input_ids"][scored])
        assert not (scored & (batch["input_ids"] == tokenizer.pad_token_id)).any()


def test_encoding_by_dictionary_is_what_the_tokenizer_does(tokenizer):
    encoder = Encoder(tokenizer)
    for task in synthetic_tasks.TASKS:
        row = synthetic_tasks.generate(task, 1, seed=5)[0]
        document = encoder.document([(e.prompt, e.answer) for e in row.examples])
        assert list(document.ids) == tokenizer(row.prompt)["input_ids"], task
        told = " ".join(
            tokenizer.convert_ids_to_tokens(i) for i, a in zip(document.ids, document.answers, strict=True) if a
        )
        assert told == " ".join(" ".join(synthetic_tasks.words(e.answer)) for e in row.examples)
        assert tokenizer.unk_token_id not in document.ids


def test_tasks_come_from_the_training_part_only(tokenizer):
    """A document's facts are never those of a held-out example of its task."""
    phase = Phase(steps=1, batch_size=200, examples=(1,))
    batch = Batches(DataSection(seed=0, phases=(phase,)), TaskSource(tokenizer))[0]
    texts = {tokenizer.decode(ids[ids != tokenizer.pad_token_id]).strip() for ids in batch["input_ids"]}
    held_out = {
        row.examples[0].text
        for task in synthetic_tasks.TASKS
        for row in synthetic_tasks.generate(task, 40, seed=1, examples=1, split="held-out")
    }
    assert not texts & held_out
    facts = [text.split(">.")[0] for text in texts]
    assert any(text.startswith("<") for text in facts)


def test_questions_ask_about_every_fact(tokenizer):
    phase = Phase(source="questions", steps=1, batch_size=20, patterns=("same-person",), score="answer")
    batch = Batches(DataSection(seed=0, phases=(phase,)), TaskSource(tokenizer))[0]
    for ids in batch["input_ids"]:
        text = tokenizer.decode(ids[ids != tokenizer.pad_token_id]).strip()
        assert len(text.split(">.")[1].strip().splitlines()) == 3


def test_questions_may_ask_about_a_fact_again_so_that_elimination_does_not_pay(tokenizer):
    phase = Phase(source="questions", steps=1, batch_size=40, tasks=("task14",), score="answer", asked=5)
    documents = SOURCES["questions"](phase, Random("again"), Encoder(tokenizer))
    answers = [[i for i, a in zip(d.ids, d.answers, strict=True) if a] for d in documents]
    assert {len(told) for told in answers} == {5}
    assert any(len(set(told)) == 1 for told in answers) or any(len(set(told)) == 2 for told in answers)
    assert any(len(set(told)) == 3 for told in answers)


def test_pairs_take_the_fillers_that_the_phase_names(tokenizer):
    encoder = Encoder(tokenizer)
    phase = Phase(source="pairs", steps=1, batch_size=10, gaps=(2,), fillers=("?", "Who"))
    for document in SOURCES["pairs"](phase, Random("fillers"), encoder):
        assert {document.ids[1], document.ids[2]} <= {encoder.vocabulary["?"], encoder.vocabulary["Who"]}
    with pytest.raises(UserError, match="zebra-crossing"):
        SOURCES["pairs"](Phase(source="pairs", fillers=("zebra-crossing",)), Random(0), encoder)


def test_questions_refuse_patterns_that_they_cannot_ask(tokenizer):
    phase = Phase(source="questions", steps=1, patterns=("the-other-person",))
    with pytest.raises(ValueError, match="same-person and same-object only"):
        Batches(DataSection(phases=(phase,)), TaskSource(tokenizer))[0]


def test_pads_on_the_right(tokenizer):
    encoder = Encoder(tokenizer)
    batch = pad(
        [encoder.document([("Ruth", "violin")]), encoder.document([("Ruth has a", "violin")])], 0, answers_only=False
    )
    assert batch["input_ids"][0, -1] == 0
    assert batch["labels"][0, -1] == NOT_SCORED
    assert (batch["labels"][1] == batch["input_ids"][1]).all()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 1000, 1025])
def test_shuffling_without_a_table_is_a_permutation(size):
    places = [shuffle_index(index, size, "3:0") for index in range(size)]
    assert sorted(places) == list(range(size))
    if size > 60:
        assert places != [shuffle_index(index, size, "3:1") for index in range(size)]
        moved = sum(abs(place - index) for index, place in enumerate(places)) / size
        assert moved > size / 5, "a random permutation moves things by a third of the size"


@pytest.mark.parametrize("source", SOURCES)
def test_parts_of_a_batch_make_the_batch(tokenizer, source):
    data_source = TaskSource(tokenizer)
    whole, parts = Batches(section(source=source), data_source), Batches(section(source=source), data_source, parts=3)
    assert len(parts) == 3 * len(whole)
    for step in (1, 4):
        rows = {tuple(ids[ids != 0].tolist()) for ids in whole[step]["input_ids"]}
        cut = [ids for part in range(3) for ids in parts[3 * step + part]["input_ids"]]
        assert {tuple(ids[ids != 0].tolist()) for ids in cut} == rows
        assert len(cut) == len(whole[step]["input_ids"])
    with pytest.raises(ValueError, match="cannot be cut into 4 parts"):
        Batches(section(source=source), data_source, parts=4)
