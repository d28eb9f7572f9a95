"""The word-level view of the texts: one pattern that splits them, one rule that joins them, one list of all words.

The pattern works in Python's `re` and in the regular expressions of the `tokenizers` library alike.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from string import Formatter

from synthetic_tasks.catalogue import EXTRA_TASKS, TASKS
from synthetic_tasks.lexicon import NAMES
from synthetic_tasks.task import Grammar

# A newline; the possessive 's; a word, which may hold an apostrophe, a period or a hyphen between letters (o'clock,
# D.C, T-shirt) but not a possessive; any other mark alone. Spaces separate and are not tokens.
WORD_PATTERN = r"\n|'s\b|\w+(?:[.\-]\w+|'(?!s\b)\w+)*|[^\w\s]"

_WORD = re.compile(WORD_PATTERN)
NO_SPACE_BEFORE = frozenset({".", ",", "?", "'s", "\n"})


def words(text: str) -> list[str]:
    """Split a text into words, punctuation marks, possessives and newlines."""
    return _WORD.findall(text)


def join(tokens: Iterable[str]) -> str:
    """Put words back together: a space between any two, but none before `. , ? 's` or a newline or after a newline.

    `join(words(text)) == text` for every text of every task, with brackets or without.
    """
    text: list[str] = []
    for token in tokens:
        if text and text[-1] != "\n" and token not in NO_SPACE_BEFORE:
            text.append(" ")
        text.append(token)
    return "".join(text)


@cache
def vocabulary(include_extra: bool = False) -> tuple[str, ...]:
    """Every word that can occur in a generated text, sorted; `include_extra` adds those of the extra tasks."""
    found = {"\n", "[", "]", *NAMES}
    for task in (*TASKS.values(), *(EXTRA_TASKS.values() if include_extra else ())):
        for text in texts_of(task.grammar):
            found.update(words(text))
    return tuple(sorted(found))


def texts_of(grammar: Grammar) -> Iterator[str]:
    """Texts that hold every word of a task except the names of persons."""
    yield from (grammar.surface.opening, grammar.surface.joiner, grammar.surface.closing)
    yield from literals(grammar.question)
    yield from grammar.predicates if "{predicate}" in grammar.question else ()
    for scope in grammar.scopes:
        yield scope.unit
        for item in scope.items:
            yield from fact_words(grammar, item.word)
            if grammar.pattern.answer != "person":
                yield from grammar.accepted("", item.word)
            if grammar.names_asked and grammar.pattern.by != "person":
                yield from grammar.key("", item.word)


def fact_words(grammar: Grammar, word: str) -> Sequence[str]:
    """The words of a fact about this item, those of a stand-in person left out."""
    fact = grammar.write_fact("\n", grammar.domain.items[word])
    return fact.split("\n")


def literals(template: str) -> list[str]:
    return [literal for literal, *_ in Formatter().parse(template)]
