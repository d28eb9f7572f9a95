"""Layout, spans and words."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synthetic_tasks import (
    EXTRA_TASKS,
    TASKS,
    WORD_PATTERN,
    Row,
    find,
    generate,
    join,
    solve,
    vocabulary,
    words,
)

any_task = st.sampled_from([*TASKS, *EXTRA_TASKS])


def test_released_layout_and_prompt() -> None:
    (row,) = generate("task2", 1, 0)
    lines = row.text.split("\n")
    assert len(lines) == 10
    assert lines[0] == lines[-1] == ""
    assert row.prompt == row.text.replace("[ ", "").replace(" ]", "")
    assert list(row.scored) == [2, 3, 4, 5, 6, 7]
    assert list(generate("task2", 1, 0, examples=1)[0].scored) == [0]


def test_quirks_of_nouns_are_kept() -> None:
    """docs/tasks.md: articles, plurals, pencil(s) and the T-shirt."""
    tool, thing = find("task33").grammar, find("task1").grammar
    written = {word: tool.write_fact("Ruth", tool.domain.items[word]) for word in ("pencil", "goggles", "oven")}
    assert written == {
        "pencil": "The pencil is Ruth's",
        "goggles": "The goggles are Ruth's",
        "oven": "The oven is Ruth's",
    }
    assert thing.write_fact("Charles", thing.domain.items["T-shirt"]) == "T-shirt is Charles's"
    stated = [item.stated for item in (tool.domain.items[w] for w in ("pencil", "goggles", "oven", "chalk"))]
    assert stated == ["pencils", "goggles", "an oven", "chalk"]


@settings(max_examples=150, deadline=None)
@given(task=any_task, seed=st.integers(0, 2**63))
def test_spans(task: str, seed: int) -> None:
    example = generate(task, 1, seed, examples=1)[0].examples[0]
    grammar, text, spans = find(task).grammar, example.text, example.spans
    items = [grammar.domain.items[fact.item] for fact in example.facts]
    assert [span.of(text) for span in spans.facts] == [
        grammar.write_fact(fact.person, item) for fact, item in zip(example.facts, items, strict=True)
    ]
    assert [span.of(text).lower() for span in spans.items] == [fact.item.lower() for fact in example.facts]
    assert [span.of(text) for span in spans.persons] == [fact.person for fact in example.facts if fact.person]
    assert spans.answer.of(text) == example.answer
    assert example.prompt.endswith(spans.query.of(text))
    assert spans.facts[-1].end < spans.query.start
    attended = (
        example.facts[example.source].person if grammar.pattern.answer == "person" else items[example.source].word
    )
    assert spans.source.of(text).lower() == attended.lower()
    assert spans.source not in spans.distractors
    assert len(spans.distractors) == len(example.facts) - 1
    cue = [span.of(text) for span in spans.cue]
    assert (example.asked in cue) == bool(example.asked)
    assert ("not" in cue or "different" in cue) == grammar.pattern.negated
    assert all(spans.query.start <= span.start < span.end <= spans.query.end for span in spans.cue)


@settings(max_examples=150, deadline=None)
@given(task=any_task, seed=st.integers(0, 2**63))
def test_words_round_trip_and_lie_in_the_vocabulary(task: str, seed: int) -> None:
    (row,) = generate(task, 1, seed)
    for text in (row.text, row.prompt, row.examples[0].prompt):
        assert join(words(text)) == text
    assert set(words(row.text)) <= set(vocabulary(include_extra=task in EXTRA_TASKS))


def test_every_word_of_the_vocabulary_occurs() -> None:
    seen = {word for task in TASKS for row in generate(task, 40, 2) for word in words(row.text)}
    assert seen == set(vocabulary())
    assert set(vocabulary()) < set(vocabulary(include_extra=True))
    assert list(vocabulary()) == sorted(set(vocabulary()))


def test_words_of_the_sample(sample: list[Row]) -> None:
    known = set(vocabulary())
    for row in sample:
        assert join(words(row.text)) == row.text
        assert set(words(row.text)) <= known


def test_word_boundaries() -> None:
    assert words("\nThomas's T-shirt. >. At 9 o'clock, [ D.C ]?\n") == [
        *("\n", "Thomas", "'s", "T-shirt", ".", ">", ".", "At", "9", "o'clock", ",", "[", "D.C", "]", "?", "\n")
    ]
    assert words("likes Washington, D.C. Who") == ["likes", "Washington", ",", "D.C", ".", "Who"]


def test_the_tokenizers_library_splits_alike() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(WORD_PATTERN), "removed", invert=True)
    for task in TASKS:
        text = generate(task, 1, 4)[0].text
        assert [word for word, _ in split.pre_tokenize_str(text)] == words(text)


def test_reading_text_needs_no_generator() -> None:
    assert solve("< Ruth has a lime. Karen has a pear. John has a dog. >. John has").example().spans.answer.start > 0
