"""Combinations that a run leaves out are in none of its documents and are measured apart; some cannot be left out."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

import synthetic_tasks
from dcinterp.support.errors import UserError
from dcinterp.train.config.recipe import DataSection, EvaluationSection, ModelSection, Phase, TrainConfig, write_config
from dcinterp.train.data.batches import Batches
from dcinterp.train.data.data_source import open_data_source
from dcinterp.train.data.held_out import held_out_documents
from dcinterp.train.data.task_choice import sides_of
from dcinterp.train.loop.callbacks import HeldOutAccuracy, Metrics
from dcinterp.train.loop.run_summary import describe_data

HOLDOUT = ("same-person:city->country", "the-other-object:obj->superclass")
FAMILIES = {("same-person", "city->country"), ("the-other-object", "obj->superclass")}
COPIES = tuple(task.id for task in synthetic_tasks.TASKS.values() if task.family == ("same-person", "copy"))


def run_of(*phases: Phase, holdout=HOLDOUT) -> TrainConfig:
    return TrainConfig(
        model=ModelSection(preset="tiny-dcformer++"), data=DataSection(phases=phases or (Phase(),), holdout=holdout)
    )


def families_in(batch, tokenizer) -> set[tuple[str, str]]:
    texts = (tokenizer.decode(ids[ids != tokenizer.pad_token_id]).strip() for ids in batch["input_ids"])
    return {synthetic_tasks.solve(text.split("\n")[0]).task.family for text in texts}


@pytest.mark.parametrize("source", ["tasks", "questions"])
def test_no_phase_draws_from_what_is_left_out(tmp_path, source):
    phases = (Phase(steps=1), Phase(source=source, steps=1, batch_size=150, examples=(1,)))
    found = {}
    for holdout in ((), HOLDOUT):
        config = run_of(*phases, holdout=holdout)
        data_source = open_data_source(config, tmp_path)
        found[holdout] = families_in(Batches(config.data, data_source)[1], data_source.tokenizer)
    assert not found[HOLDOUT] & FAMILIES
    assert ("same-person", "city->country") in found[()]
    assert ("same-object", "city->country") in found[HOLDOUT]


def test_a_row_counts_on_the_side_of_its_task(tmp_path):
    data_source = open_data_source(run_of(Phase(patterns=("same-person", "the-other-object"))), tmp_path)
    section = EvaluationSection(answers_per_task=1, examples=(1,))
    callback = HeldOutAccuracy(section, data_source, Metrics(tmp_path / "metrics.jsonl"))
    tokenizer = data_source.tokenizer
    by_side: dict[str, set[tuple[str, str]]] = {"seen": set(), "held-out": set(), "": set()}
    for (pattern, *side, whole), document in callback.rows[1]:
        family = synthetic_tasks.solve(tokenizer.decode(document.ids).strip()).task.family
        assert (pattern, whole) == (family[0], "all")
        by_side[side[0] if side else ""].add(family)
    assert by_side["held-out"] == FAMILIES
    assert {pattern for pattern, _ in by_side["seen"]} == {"same-person", "the-other-object"}
    assert len(by_side["seen"]) == 10
    assert {pattern for pattern, _ in by_side[""]} == {"the-other-person", "same-object", "different-in-set"}


def test_documents_for_analyses_are_none_of_those(tmp_path):
    config = run_of()
    tokenizer = open_data_source(config, tmp_path).tokenizer
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    write_config(config, tmp_path / "config.yaml")
    documents = held_out_documents(tmp_path, 74)
    found = {synthetic_tasks.solve(tokenizer.decode(ids[0]).strip().split("\n")[0]).task.family for ids, _ in documents}
    assert found == set(synthetic_tasks.families()) - FAMILIES


@pytest.mark.parametrize(
    ("phases", "holdout", "says"),
    [
        ((Phase(),), ("same-person",), "takes combinations PATTERN:RELATION of the tasks, not 'same-person'; "),
        (
            (Phase(),),
            ("same-person:city->town",),
            "not 'same-person:city->town'; did you mean same-person:city->country",
        ),
        (
            (Phase(), Phase(tasks=COPIES)),
            ("same-person:copy",),
            "leaves phase 2 of data.phases no task",
        ),
        (
            (Phase(patterns=("same-person",)),),
            ("the-other-object:obj->superclass",),
            "No phase draws from a task with the-other-object, so the-other-object:obj->superclass of data.holdout",
        ),
        ((Phase(source="pairs"),), HOLDOUT, "No phase draws from a task with same-person"),
        ((Phase(source="text"),), HOLDOUT, "data.holdout leaves out tasks, and this run reads text; take it out"),
        ((Phase(source="puzzle"),), HOLDOUT, "data.holdout leaves out tasks, and this run reads puzzle; take it out"),
    ],
)
def test_what_cannot_be_left_out_is_refused_before_the_first_step(tmp_path, phases, holdout, says):
    with pytest.raises(UserError) as raised:
        open_data_source(run_of(*phases, holdout=holdout), tmp_path)
    assert says in str(raised.value)


def test_a_run_says_how_much_it_leaves_out():
    assert describe_data(DataSection(holdout=HOLDOUT)) == "the synthetic tasks without 2 combinations"
    assert describe_data(DataSection(holdout=HOLDOUT[:1])) == "the synthetic tasks without 1 combination"
    assert sides_of(DataSection()).of("task10") == ()
