"""Counterfactual prompts: the same example with exactly one thing changed, and what the answer is then.

Kinds of change:
    question   the person, value or item the question names
    source     the word the answer is read from (the item, or the person where a person is answered)
    relation   the transformation R; everything else stays, the words that name R change
    polarity   `not` added or taken away
    position   the source fact changes places with another one; the answer stays

Every one is read and answered by the solver's rules, never by the way it was made, and its text stays inside the
grammar. With a tokenizer the prompts of both have the same number of tokens. Where there is none `corrupt`
raises NoCounterfactual, which says why: for instance a question with and without `not` never has the same length.

One may have several correct answers (`unique` is False): who is asked with `not` about three different facts
leaves two. The clean answer is then still wrong, so it stays usable as the foil.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal, get_args

from synthetic_tasks.catalogue import EXTRA_TASKS, TASKS, compositions, find
from synthetic_tasks.domain import Scope
from synthetic_tasks.example import Example, Fact
from synthetic_tasks.lexicon import FEMALE_NAMES, MALE_NAMES
from synthetic_tasks.pattern import select
from synthetic_tasks.sampling import shuffled
from synthetic_tasks.task import Grammar

Kind = Literal["question", "source", "relation", "polarity", "position"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FORMER_KINDS: dict[str, Kind] = {"asked": "question"}
"""Words of version 0.1, which are still read."""


class NoCounterfactual(ValueError):
    """There is no counterfactual of this kind; the message says why."""


@dataclass(frozen=True)
class Counterfactual:
    """A clean example and its counterfactual.

    foil: for the clean prompt, the answer of whoever follows the corrupt one; where the change keeps the answer
        (position), the answer of whoever goes on looking at the old place
    unique: whether the corrupt prompt has one correct answer
    """

    kind: Kind
    clean: Example
    corrupt: Example
    foil: str
    unique: bool

    @property
    def answer(self) -> str:
        """The new answer, that of the corrupt prompt."""
        return self.corrupt.answer


def corrupt(example: Example, kind: Kind, *, tokenizer: Any = None, seed: int = 0) -> Counterfactual:
    """Return the counterfactual of an example, with one thing changed.

    tokenizer: a transformers or tokenizers tokenizer, or a function from a text to its tokens; if given, clean and
        corrupt prompt have the same number of tokens
    seed: which of several possible ones is taken

    Raises NoCounterfactual with the reason if there is none.
    """
    kind = FORMER_KINDS.get(kind, kind)
    if kind not in KINDS:
        raise ValueError(f"there is no kind of counterfactual {kind!r}; choose from {', '.join(KINDS)}")
    # The draws are those of version 0.1, which had another word for the first kind.
    rng = Random(f"{seed}/{'asked' if kind == 'question' else kind}/{example.text}")
    count = token_counter(tokenizer)
    tried, ambiguous = 0, None
    for candidate in CHANGES[kind](example, rng):
        tried += 1
        if count is not None and count(candidate.prompt) != count(example.prompt):
            continue
        made = counterfactual_of(kind, example, candidate)
        if made.unique:
            return made
        ambiguous = ambiguous or made
    if ambiguous is not None:
        return ambiguous
    if tried:
        raise NoCounterfactual(
            f"no {kind} counterfactual of {example.prompt!r} has as many tokens ({tried} were tried)"
        )
    raise NoCounterfactual(f"there is no {kind} counterfactual of {example.prompt!r}: {WHY_NOT[kind]}")


def counterfactuals(
    example: Example, *, tokenizer: Any = None, seed: int = 0
) -> dict[Kind, Counterfactual | NoCounterfactual]:
    """The counterfactuals of an example by kind; a NoCounterfactual, which says why, for those that do not exist."""
    made: dict[Kind, Counterfactual | NoCounterfactual] = {}
    for kind in KINDS:
        try:
            made[kind] = corrupt(example, kind, tokenizer=tokenizer, seed=seed)
        except NoCounterfactual as reason:
            made[kind] = reason
    return made


def counterfactual_of(kind: Kind, clean: Example, changed: Example) -> Counterfactual:
    foil = changed.answer
    if kind == "position":
        there = changed.facts[clean.source]  # what stands now where the source stood
        foil = find(changed.task_id).grammar.accepted(*there)[0]
    return Counterfactual(kind, clean, changed, foil, unique=is_unique(changed))


def is_unique(example: Example) -> bool:
    """Whether all selected facts give the same accepted answers."""
    grammar = find(example.task_id).grammar
    return example.accepted == grammar.accepted(*example.facts[example.source])


def answered(grammar: Grammar, facts: Sequence[Fact], asked: str, predicate: str) -> Example | None:
    """The example of these facts and this question, answered by the selection rule; None if nothing answers it."""
    if not all(grammar.defined(fact.item) for fact in facts):
        return None
    keys = [grammar.key(*fact) for fact in facts]
    sources = select(keys, asked if grammar.names_asked else None, grammar.pattern.negated)
    if not sources:
        return None
    accepted = tuple(dict.fromkeys(answer for place in sources for answer in grammar.accepted(*facts[place])))
    items = [grammar.domain.items[fact.item] for fact in facts]
    unit = grammar.domain.unit_of[facts[0].item]
    prompt = grammar.write([fact.person for fact in facts], items, asked, predicate, unit)
    return Example(grammar.task.id, tuple(facts), sources[0], asked, predicate, unit, accepted[0], accepted, prompt)


def changed(example: Example, grammar: Grammar, facts: Sequence[Fact], asked: str, predicate: str) -> Iterator[Example]:
    """Yield the answered candidate if its answers differ from the clean ones."""
    candidate = answered(grammar, facts, asked, predicate)
    if candidate is not None and not set(candidate.accepted) & set(example.accepted):
        yield candidate


def change_question(example: Example, rng: Random) -> Iterator[Example]:
    grammar = find(example.task_id).grammar
    if not grammar.names_asked:
        return
    named = dict.fromkeys(key for fact in example.facts for key in grammar.key(*fact) if key != example.asked)
    for asked in shuffled(rng, list(named)):
        yield from changed(example, grammar, example.facts, asked, example.predicate)


def change_source(example: Example, rng: Random) -> Iterator[Example]:
    grammar = find(example.task_id).grammar
    old = example.facts[example.source]
    for new in replacements(example, grammar, rng):
        facts = [new if place == example.source else fact for place, fact in enumerate(example.facts)]
        # Asking for the source by name would change with it: that makes two changes.
        if old.person != new.person and example.asked == old.person:
            continue
        for candidate in changed(example, grammar, facts, example.asked, example.predicate):
            if candidate.source == example.source:
                yield candidate


def replacements(example: Example, grammar: Grammar, rng: Random) -> Iterator[Fact]:
    """Other source facts that keep the sampling rules: another person, or an item in the same form ("a", not "an")."""
    old = example.facts[example.source]
    if grammar.pattern.answer == "person":
        present = {fact.person for fact in example.facts}
        for name in shuffled(rng, MALE_NAMES if old.person in MALE_NAMES else FEMALE_NAMES):
            if name not in present:
                yield Fact(name, old.item)
        return
    if (scope := scope_of(grammar, old.item)) is None:
        return
    others = [fact.item for place, fact in enumerate(example.facts) if place != example.source]
    apart = grammar.surface.fact is None or grammar.relation.many_to_one
    taken = {scope.group_of[word] for word in others} if apart else set()
    for item in shuffled(rng, scope.items):
        if item.word in (*others, old.item) or scope.group_of[item.word] in taken:
            continue
        if frame(grammar, Fact(old.person, item.word)) == frame(grammar, old):
            yield Fact(old.person, item.word)


def scope_of(grammar: Grammar, word: str) -> Scope | None:
    """The items that may stand in place of this one; None if the relation draws none like it."""
    return next((scope for scope in grammar.scopes if word in scope.group_of), None)


def frame(grammar: Grammar, fact: Fact) -> str:
    """A fact with its item blanked: what must not change when the item does."""
    item = grammar.domain.items[fact.item]
    text = grammar.write_fact("", item).lower()  # the word may stand in a name: "car" in Carol
    return text.replace(fact.item.lower(), "_", 1)


def change_relation(example: Example, rng: Random) -> Iterator[Example]:
    task = find(example.task_id)
    # A relation that somebody adds has words that the models of these tasks do not know.
    known = {each.relation for each in (*TASKS.values(), *EXTRA_TASKS.values())}
    offered = [each for each in compositions() if task.relation not in known or each.relation in known]
    for other in shuffled(rng, offered):
        alike = (other.qk, other.domain, other.surface) == (task.qk, task.domain, task.surface)
        if alike and other.relation != task.relation:
            yield from changed(example, other.grammar, example.facts, example.asked, example.predicate)


def change_polarity(example: Example, rng: Random) -> Iterator[Example]:
    task = find(example.task_id)
    for other in compositions():
        alike = (other.relation, other.domain, other.surface) == (task.relation, task.domain, task.surface)
        if alike and is_negation(task.grammar, other.grammar):
            at = task.grammar.predicates.index(example.predicate)
            predicate = other.grammar.predicates[at]
            yield from changed(example, other.grammar, example.facts, example.asked, predicate)


def is_negation(one: Grammar, other: Grammar) -> bool:
    """Whether two grammars differ in nothing but `not`."""
    parts = [(g.pattern.by, g.pattern.answer, g.question) for g in (one, other)]
    return parts[0] == parts[1] and one.pattern.negated != other.pattern.negated and "{predicate}" in one.question


def change_position(example: Example, rng: Random) -> Iterator[Example]:
    grammar = find(example.task_id).grammar
    for place in shuffled(rng, [place for place in range(len(example.facts)) if place != example.source]):
        facts = list(example.facts)
        facts[place], facts[example.source] = facts[example.source], facts[place]
        candidate = answered(grammar, facts, example.asked, example.predicate)
        if candidate is not None and grammar.accepted(*facts[example.source])[0] not in candidate.accepted:
            yield replace(candidate, answer=example.answer)


CHANGES: dict[Kind, Callable[[Example, Random], Iterator[Example]]] = {
    "question": change_question,
    "source": change_source,
    "relation": change_relation,
    "polarity": change_polarity,
    "position": change_position,
}
WHY_NOT: dict[Kind, str] = {
    "question": "the question names nothing, or nothing else it could name has another answer",
    "source": "no other word fits in its place",
    "relation": "no other relation with this pattern and surface has another answer to the question",
    "polarity": "no pattern asks this question both with and without `not`",
    "position": "there is no fact with another answer to change places with",
}


def token_counter(tokenizer: Any) -> Callable[[str], int] | None:
    """A function from a text to its number of tokens, special tokens aside; None without a tokenizer."""
    if tokenizer is None:
        return None
    if hasattr(tokenizer, "encode"):

        def count(text: str) -> int:
            encoded = tokenizer.encode(text, add_special_tokens=False)
            return len(getattr(encoded, "ids", encoded))

        return count
    return lambda text: len(tokenizer(text))
