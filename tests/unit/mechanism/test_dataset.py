"""Sets of questions: what a text names, what competes with an answer, and how shots are laid out."""

from __future__ import annotations

import pytest

from dcinterp import UserError
from dcinterp.mechanism.dataset import (
    default_reference,
    draw_examples,
    other_answers,
    prompts,
    read_questions,
    repeats,
)
from synthetic_tasks import find, generate


def test_the_text_form_spreads_examples_evenly_over_the_tasks(bridge):
    made = read_questions(bridge, "same-person n=20 seed=4")
    counts = {q.task: sum(p.task == q.task for p in made) for q in made}
    assert len(made) == 20
    assert set(counts.values()) == {1, 2}
    assert {find(task).qk for task in counts} == {"same-person"}
    assert [q.prompt for q in read_questions(bridge, "same-person n=5 seed=4")] == [q.prompt for q in made[:5]]


def test_prompts_with_shots_are_the_rows_of_the_tasks_up_to_the_answer():
    row = generate("task2", 1, 0, examples=3)[0]
    ((example, prompt),) = draw_examples("task2 n=1 shots=2")
    assert example == row.examples[-1]
    assert row.prompt == f"{prompt} {example.answer}\n"


def test_the_foil_is_what_another_fact_would_answer(bridge):
    for task in ("task2", "task14", "task58", "task73"):
        for row in generate(task, 5, 1, examples=1):
            (example,) = row.examples
            others = other_answers(example)
            assert others
            assert not set(others) & set(example.accepted)
            (question,) = read_questions(bridge, [example])
            foil = bridge.tokenizer.decode([question.foil])
            assert any(other.startswith(foil) for other in others)
            assert question.foil != question.target


def test_pairs_of_ones_own(bridge):
    made = read_questions(bridge, [("Ruth has a", "violin"), ["Ruth has a", "violin", "lime"]])
    assert [(q.target, q.foil) for q in made] == [("violin", None), ("violin", "lime")]


def test_a_prompt_that_comes_twice_repeats_itself(bridge):
    pairs = [("John is a", "man"), ("John is a", "man"), (bridge.to_tokens("Mary is a"), "man"), ("Mary is", "man")]
    assert len(set(repeats(bridge, read_questions(bridge, pairs)))) == 3
    pairs = [("John is a", "man"), (bridge.to_tokens("John is a", prepend_bos=False), "man")]
    assert len(set(repeats(bridge, read_questions(bridge, pairs)))) == 1, "as text and as ids"


def test_the_reference_of_a_prompt_is_that_of_its_task_also_beside_the_74():
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    from dcinterp.bridge import wrap
    from dcinterp.model.build import build_model
    from dcinterp.model.config import DCFormerConfig
    from synthetic_tasks import WORD_PATTERN, vocabulary

    known = {word: place for place, word in enumerate(("<|endoftext|>", *vocabulary(True)))}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(known))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(WORD_PATTERN), "removed", invert=True)
    end = dict.fromkeys(("bos_token", "eos_token", "pad_token"), "<|endoftext|>")
    model = build_model(DCFormerConfig.preset("tiny-dcformer++", vocab_size=len(known), num_hidden_layers=1))
    asked = wrap(model, PreTrainedTokenizerFast(tokenizer_object=words, **end))
    for task in ("so-kind-of", "task2"):
        example = generate(task, 1, seed=0, examples=1)[0].examples[0]
        assert default_reference(asked, example.prompt) == default_reference(asked, example)
        assert default_reference(asked, example).startswith(f"{task} n=32 ")


def test_a_reference_set_is_prompts_or_a_text(bridge):
    assert [ids.shape[0] for ids in prompts(bridge, "task2 n=3")] == [1, 1, 1]
    assert prompts(bridge, ["Ruth has a"])[0].tolist() == bridge.to_tokens("Ruth has a").tolist()
    with pytest.raises(UserError, match="empty"):
        prompts(bridge, [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("same-persn", "same-persn"),
        ("all m=3", "no 'm'"),
        ("all n=x", "whole numbers"),
        ("all n=0", "from 1 to 100,000"),
        ("all n=1000000000000", "from 1 to 100,000"),
        ("all split=dev", "split must be"),
        ([], "no examples"),
        (["just a text"], "is not a valid question"),
        ("different-in-set 20", r"what 20 means is open; write task20 for the task, or n=20 for so many"),
        ("different-in-set 200", r"what 200 means is open; write n=200 for so many"),
    ],
)
def test_refusals(bridge, text, message):
    with pytest.raises(UserError, match=message):
        read_questions(bridge, text)
