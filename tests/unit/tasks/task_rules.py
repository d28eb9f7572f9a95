"""The rules of docs/tasks.md as checks of one row, written down a second time and without the generator's code."""

from collections import Counter

from synthetic_tasks import Example, Row, find
from synthetic_tasks.domains import DOMAINS
from synthetic_tasks.domains.city import COUNTRIES
from synthetic_tasks.domains.object import CLASSES
from synthetic_tasks.domains.ordinal import SCALES
from synthetic_tasks.domains.tool import CAPABILITIES
from synthetic_tasks.lexicon import FEMALE_NAMES, MALE_NAMES

GROUPED = ("obj->superclass", "city->country", "obj->capability")
TABLES = {"object": CLASSES, "city": COUNTRIES, "tool": CAPABILITIES}
NEVER_OF_A_PERSON = {"unhappy", "unhealthy", "uninteresting"}


def group(domain: str, word: str) -> str:
    """The group of a word; of an adjective the word its pair is named after, of a point in time itself."""
    if domain in TABLES:
        return next(name for name, members in TABLES[domain].items() if word in members)
    if domain == "adjective":
        return next(c for c in DOMAINS["adjective"].set_scopes[0].groups if word in [i.word for i in c])[0].word
    return word


def check_row(row: Row) -> None:
    """Everything docs/tasks.md says about a row of eight examples."""
    assert len(row.examples) == 8
    assert len(set(row.examples)) == 8, "the examples of a row are distinct"
    assert len({example.predicate for example in row.examples}) == 1, "the predicate is constant in a row"
    positions = Counter(example.source for example in row.examples)
    assert sorted(positions.values()) in ([2, 3, 3], [2, 2, 4]), "source positions are balanced"
    assert max(Counter(example.answer for example in row.examples).values()) <= 2, "an answer is used twice at most"
    assert row.text.startswith("\n")
    assert row.text.endswith("\n")
    assert row.text.count("\n") == 9
    for shot, example in enumerate(row.examples):
        check_example(example)
        assert row.text.split("\n")[shot + 1].count("[") == (shot >= 2), "shots 2 to 7 are in brackets"


def check_example(example: Example) -> None:
    task = find(example.task_id)
    assert len(example.facts) == 3
    assert example.answer in example.accepted
    check_persons(task.qk, example)
    check_items(task.qk, task.relation, task.domain, example)


def check_persons(qk: str, example: Example) -> None:
    persons = [fact.person for fact in example.facts]
    if qk == "different-in-set":
        assert persons == ["", "", ""]
        return
    if qk != "the-other-person":
        assert len(set(persons)) == 3, "three different names"
        return
    counts = Counter(persons)
    assert sorted(counts.values()) == [1, 2], "two names"
    assert counts[example.asked] == 2, "the asked person holds two facts"
    assert len(set(persons) & set(MALE_NAMES)) == len(set(persons) & set(FEMALE_NAMES)) == 1, "one of each gender"


def check_items(qk: str, relation: str, domain: str, example: Example) -> None:
    words = [fact.item for fact in example.facts]
    source = words[example.source]
    distractors = [word for place, word in enumerate(words) if place != example.source]
    groups = [group(domain, word) for word in words]
    source_group = groups[example.source]
    other_groups = [name for place, name in enumerate(groups) if place != example.source]
    if qk == "different-in-set":
        assert distractors[0] == distractors[1] != source
        assert source_group not in other_groups, "groups differ, and no antonym pair"
    elif qk == "the-other-object":
        if relation in GROUPED:
            assert distractors[0] != distractors[1]
            assert other_groups[0] == other_groups[1] != source_group
        else:
            assert distractors[0] == distractors[1] != source
            assert relation != "copy" or source_group not in other_groups
    else:
        assert len(set(words)) == 3
        assert relation not in GROUPED or source_group not in other_groups
    if domain == "adjective" and qk != "different-in-set":
        assert not set(words) & NEVER_OF_A_PERSON
    if domain == "ordinal":
        check_scale(qk, words, example.unit)


def check_scale(qk: str, words: list[str], unit: str) -> None:
    scale = SCALES[unit][1]
    places = [scale.index(word) for word in words]
    assert max(places) < len(scale) - 1, "every item has a next one"
    assert qk != "different-in-set" or min(places) > 0, "an item of a set has a previous one too"
