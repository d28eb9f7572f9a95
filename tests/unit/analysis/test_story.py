"""The five-step story: its evidence is that of the analyses, and it says when it does not hold."""

from __future__ import annotations

import pytest
import torch

import dcinterp
import synthetic_tasks
from dcinterp.story import source_position


@pytest.fixture(scope="module")
def example():
    return synthetic_tasks.generate("task2", 1, seed=3, examples=1)[0].examples[0]


def test_follows_the_strongest_head_to_the_source(bridge, example):
    story = dcinterp.case_study(bridge, example)
    there = story.attribution.by_position[:, :, -1]
    assert float(there[story.layer, story.head]) == float(there.max())
    assert story.prediction.tokens[story.key] in synthetic_tasks.words(example.facts[example.source].item)
    assert [step.title[-1] for step in story.steps] == ["?"] * 5
    assert story.breakdown.key == story.key


def test_numbers_in_the_sentences_are_those_of_the_evidence(bridge, example):
    story = dcinterp.case_study(bridge, example, layer=1, head=2)
    assert f"{float(story.attribution.by_position[1, 2, -1]):+.2f} logits" in story.steps[1].sentence
    assert f"{float(story.attribution.scores[1, 2]):+.2f} over all" in story.steps[1].sentence
    assert f"{float(story.breakdown.out[2]):.2f}" in story.steps[2].sentence
    assert story.lender != 2


def test_a_wrong_answer_is_said(bridge, example):
    story = dcinterp.case_study(bridge, example)
    if story.prediction.rank != 1:
        assert "wrong" in story.steps[0].sentence
        assert not story.steps[0].holds


def test_a_head_that_attends_by_itself_is_said(make_bridge, example):
    bridge = make_bridge()
    with torch.no_grad():
        for name, parameter in bridge.original_model.named_parameters():
            if ".post" in name:
                parameter.zero_()
    story = dcinterp.case_study(bridge, example)
    most = int(story.rows.weights[story.head].argmax())
    story = dcinterp.case_study(bridge, example, layer=story.layer, head=story.head, key=most)
    assert "by itself" in story.steps[2].sentence
    assert "No other head" in story.steps[3].sentence
    assert not story.steps[2].holds


def test_a_source_that_the_head_does_not_read_is_said(bridge, example):
    story = dcinterp.case_study(bridge, example)
    composed = story.rows.composed[story.head].abs() + story.rows.weights[story.head]
    unread = int(composed.argmin())
    story = dcinterp.case_study(bridge, example, layer=story.layer, head=story.head, key=unread)
    assert "hardly attends" in story.steps[2].sentence
    assert not story.steps[2].holds


def test_a_plain_transformer_has_a_story_without_lending(twin, example):
    story = dcinterp.case_study(twin, example)
    assert story.breakdown is None
    assert story.lender is None
    assert "not composed" in story.steps[2].sentence


def test_a_bare_prompt_needs_no_answer(bridge, prompt):
    story = dcinterp.case_study(bridge, prompt)
    assert story.attribution.target == story.prediction.top_tokens[0]
    assert story.key == int(story.rows.composed[story.head].abs().argmax())


def test_the_source_of_a_multi_word_item_is_its_last_token(bridge):
    for seed in range(40):
        example = synthetic_tasks.generate("task26", 1, seed=seed, examples=1)[0].examples[0]
        item = example.facts[example.source].item
        tokens = bridge.to_str_tokens(example.prompt)
        assert tokens[source_position(bridge, example)].strip() == synthetic_tasks.words(item)[-1]
