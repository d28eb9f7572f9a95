"""Counterfactual prompts: one thing changes, the solver confirms the new answer, and the token counts agree."""

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synthetic_tasks import (
    EXTRA_TASKS,
    KINDS,
    TASKS,
    Example,
    NoCounterfactual,
    corrupt,
    counterfactuals,
    find,
    generate,
    solve,
    words,
)

any_task = st.sampled_from([*TASKS, *EXTRA_TASKS])
seeds = st.integers(0, 2**63)


def one_example(task: str, seed: int) -> Example:
    return generate(task, 1, seed, examples=1)[0].examples[0]


def changes(clean: Example, changed: Example) -> set[str]:
    """What differs between two examples, read off their parts."""
    one, other = find(clean.task_id), find(changed.task_id)
    found = set()
    if clean.facts != changed.facts:
        same_facts = sorted(clean.facts) == sorted(changed.facts)
        found.add("position" if same_facts else "facts")
    if clean.asked != changed.asked:
        found.add("question")
    if one.relation != other.relation:
        found.add("relation")
    if one.grammar.pattern.negated != other.grammar.pattern.negated:
        found.add("polarity")
    assert (one.domain, one.surface) == (other.domain, other.surface)
    return found


@settings(max_examples=200, deadline=None)
@given(task=any_task, seed=seeds)
def test_exactly_one_thing_changes_and_the_solver_confirms(task: str, seed: int) -> None:
    clean = one_example(task, seed)
    for kind, other in counterfactuals(clean).items():
        if isinstance(other, NoCounterfactual):
            assert kind in str(other)
            continue
        expected = {"source": "facts"}.get(kind, kind)
        assert changes(clean, other.corrupt) == {expected}
        if kind == "source":
            differing = [p for p, (a, b) in enumerate(zip(clean.facts, other.corrupt.facts, strict=True)) if a != b]
            assert differing == [clean.source] == [other.corrupt.source]
        solution = solve(other.corrupt.prompt, other.corrupt.task_id)
        assert set(solution.accepted) == set(other.corrupt.accepted)
        assert other.answer in solution.accepted
        grammar = find(other.corrupt.task_id).grammar
        answers = {grammar.accepted(*solution.facts[place]) for place in solution.sources}
        assert other.unique == (len(answers) == 1)
        assert other.foil not in clean.accepted
        if kind == "position":
            assert other.answer == clean.answer
            assert other.corrupt.source != clean.source
        else:
            assert other.foil == other.answer


@settings(max_examples=100, deadline=None)
@given(task=any_task, seed=seeds)
def test_token_counts_agree_under_a_tokenizer(task: str, seed: int) -> None:
    clean = one_example(task, seed)
    for tokenizer in (words, list):  # words, and characters as the finest tokens there are
        for other in counterfactuals(clean, tokenizer=tokenizer).values():
            if not isinstance(other, NoCounterfactual):
                assert len(tokenizer(other.corrupt.prompt)) == len(tokenizer(clean.prompt))


LINE = "< Ruth has a lime. Karen has a pear. John has a dog. >. John has"
SHIFTED = "< Mary arrived in May. Ruth arrived in July. John arrived in March. >. John arrived the month just before"


@pytest.mark.parametrize(
    ("line", "kind", "tokenizer", "answers"),
    [
        (LINE, "question", None, {("lime",), ("pear",)}),
        (LINE, "relation", None, {("animal",)}),
        (LINE, "polarity", None, {("lime", "pear")}),
        (LINE, "position", words, {("dog",)}),
        (SHIFTED, "relation", words, {("February",)}),  # `just after` is as long as `just before`
    ],
)
def test_worked_counterfactuals(line: str, kind: str, tokenizer, answers: set) -> None:
    assert corrupt(solve(line).example(), kind, tokenizer=tokenizer).corrupt.accepted in answers


def test_polarity_with_two_facts_has_one_answer() -> None:
    example = solve("John has an apple. Mary has a dog. So John has a kind of").example()
    other = corrupt(example, "polarity")
    assert other.unique
    assert other.answer == "animal"
    assert other.corrupt.prompt == "John has an apple. Mary has a dog. So John does not have a kind of"


@pytest.mark.parametrize(
    ("line", "kind", "tokenizer", "statement"),
    [
        (LINE, "polarity", words, "has as many tokens"),
        ("There are a cat, a cat, a bus. Which is different? The", "question", None, "the question names nothing"),
        ("There are a cat, a cat, a bus. Which is not cat? The", "polarity", None, "both with and without `not`"),
    ],
)
def test_missing_counterfactuals_are_stated(line: str, kind: str, tokenizer, statement: str) -> None:
    with pytest.raises(NoCounterfactual, match=statement):
        corrupt(solve(line).example(), kind, tokenizer=tokenizer)


@pytest.mark.parametrize(
    "line",
    [
        "< Ruth is unhappy. John is tall. Karen is safe. >. Ruth is the opposite of",
        "There are Monday, Tuesday, Tuesday. Which is different? The day just before",
    ],
)
def test_a_word_that_no_relation_draws_has_no_counterfactual(line: str) -> None:
    """The solver takes it, as all words of the domain."""
    example = solve(line).example()
    for kind in KINDS:
        with suppress(NoCounterfactual):
            corrupt(example, kind)


def test_source_counterfactuals_keep_articles_and_gender() -> None:
    for seed in range(40):
        clean = one_example("task0", seed)
        other = corrupt(clean, "source")
        assert len(words(other.corrupt.prompt)) == len(words(clean.prompt)) or " " in other.answer
        assert [f.person for f in other.corrupt.facts] == [f.person for f in clean.facts]


def test_counterfactuals_are_reproducible_and_vary_with_the_seed() -> None:
    example = one_example("task10", 0)
    assert str(counterfactuals(example)) == str(counterfactuals(example))
    assert len({corrupt(example, "source", seed=seed).corrupt.text for seed in range(8)}) > 4


def test_unknown_kind() -> None:
    with pytest.raises(ValueError, match="there is no kind of counterfactual 'colour'"):
        corrupt(one_example("task0", 0), "colour")  # type: ignore[arg-type]
    assert KINDS == ("question", "source", "relation", "polarity", "position")


def test_tokenizers_of_both_libraries_count_alike() -> None:
    """Byte-level BPE, where words differ in length: clean and corrupt prompt still have as many tokens."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    bare = tokenizers.Tokenizer(tokenizers.models.BPE())
    bare.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = [row.prompt for task in ("task0", "task18", "task52") for row in generate(task, 3, 0)]
    bare.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(vocab_size=500, special_tokens=["<s>"]))
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=bare)
    made = 0
    for task in TASKS:
        clean = one_example(task, 1)
        for kind, other in counterfactuals(clean, tokenizer=bare).items():
            if isinstance(other, NoCounterfactual):
                continue
            made += 1
            lengths = [len(bare.encode(one.prompt).ids) for one in (clean, other.corrupt)]
            assert lengths[0] == lengths[1]
            assert corrupt(clean, kind, tokenizer=wrapped) == other
    assert made > 150


def test_a_relation_that_somebody_adds_changes_none_of_the_74_tasks(monkeypatch):
    import synthetic_tasks.counterfactual as module

    example = one_example("task48", 0)
    before, real = str(counterfactuals(example)), module.compositions
    added = [replace(each, relation="mine") for each in real()]  # there is none, so that asking it anything fails
    monkeypatch.setattr(module, "compositions", lambda: (*added, *real()))
    assert str(counterfactuals(example)) == before


@pytest.mark.parametrize("person", ["Carol", "Donna"])
def test_a_word_inside_a_name_is_no_word(person: str) -> None:
    line = f"< {person} has a car. Ruth has a lime. Karen has a dog. >. {person} has a kind of"
    changed = corrupt(solve(line).example(), "source", seed=0).corrupt
    assert changed.facts[0].item != "car"
    assert changed.facts[0].person == person


def test_the_foil_of_another_place_is_wrong() -> None:
    """Two of the three things are fruit, so only the dog's place gives another answer."""
    example = solve("< Ruth has a lime. Karen has a pear. John has a dog. >. Ruth has a kind of").example()
    for seed in range(6):
        made = corrupt(example, "position", seed=seed)
        assert made.foil not in made.corrupt.accepted
