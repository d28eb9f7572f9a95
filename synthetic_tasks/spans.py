"""Where the parts of an example stand in its text, as character spans.

The text is written a second time, piece by piece, from the same templates; a test holds both against each other.
"""

import re
from dataclasses import dataclass
from string import Formatter
from typing import NamedTuple

from synthetic_tasks.catalogue import find
from synthetic_tasks.example import Example, Fact
from synthetic_tasks.task import Grammar

CUE_WORDS = re.compile(r"\b(?:not|different)\b")


class Span(NamedTuple):
    """A half-open range of characters: text[start:end]."""

    start: int
    end: int

    def of(self, text: str) -> str:
        return text[self.start : self.end]


@dataclass(frozen=True)
class Spans:
    """Spans into `Example.text` (and, but for the answer, into `Example.prompt`).

    facts: each fact whole; persons, items: the person (none in sets) and the bare word of the item in each
    source: the word the answer is read from, the item or the person of the source fact
    distractors: the same word in the other facts
    query: the question; cue: what in it selects, the person or value named and the words `not` or `different`
    answer: the answer
    """

    facts: tuple[Span, ...]
    persons: tuple[Span, ...]
    items: tuple[Span, ...]
    source: Span
    distractors: tuple[Span, ...]
    query: Span
    cue: tuple[Span, ...]
    answer: Span


def locate(example: Example) -> Spans:
    """Find the spans of an example."""
    grammar = find(example.task_id).grammar
    surface = grammar.surface
    facts, persons, items = [], [], []
    end = len(surface.opening)
    for fact in example.facts:
        start = end
        end, person, item = locate_fact(grammar, fact, start)
        facts.append(Span(start, end))
        items.append(item)
        if person is not None:
            persons.append(person)
        end += len(surface.joiner)
    start = end - len(surface.joiner) + len(surface.closing)
    query = Span(start, len(example.prompt))
    attended = persons if grammar.pattern.answer == "person" else items
    return Spans(
        facts=tuple(facts),
        persons=tuple(persons),
        items=tuple(items),
        source=attended[example.source],
        distractors=tuple(span for place, span in enumerate(attended) if place != example.source),
        query=query,
        cue=locate_cue(grammar, example, start),
        answer=Span(len(example.prompt) + 1, len(example.text)),
    )


def locate_fact(grammar: Grammar, fact: Fact, start: int) -> tuple[int, Span | None, Span]:
    """The end of a fact that starts at `start`, and the spans of its person, if any, and of its item's bare word."""
    item = grammar.domain.items[fact.item]
    person, word = None, None
    end = start
    for literal, field, *_ in Formatter().parse(grammar.fact):
        end += len(literal)
        if field == "person":
            person = Span(end, end + len(fact.person))
            end = person.end
        elif field:
            form = getattr(item, field.removeprefix("item."))
            at = end + form.lower().index(fact.item.lower())  # "The lime is", "pencils", "Bad"
            word = Span(at, at + len(fact.item))
            end += len(form)
    assert word is not None, f"the fact template {grammar.fact!r} names no item"
    return end, person, word


def locate_cue(grammar: Grammar, example: Example, start: int) -> tuple[Span, ...]:
    """What the question selects by, in the order of the text."""
    cue = []
    end = start
    values = {"asked": example.asked, "predicate": example.predicate, "unit": example.unit}
    for literal, field, *_ in Formatter().parse(grammar.question):
        for text, is_asked in ((literal, False), (values.get(field or "", ""), field == "asked")):
            if is_asked:
                cue.append(Span(end, end + len(text)))
            else:
                cue += [Span(end + found.start(), end + found.end()) for found in CUE_WORDS.finditer(text)]
            end += len(text)
    return tuple(cue)
