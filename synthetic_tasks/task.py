"""A task: one QK pattern with one relation on one domain, in one surface; and its grammar, ready to write text."""

from dataclasses import dataclass
from functools import cache, cached_property

from synthetic_tasks.domain import Domain, Scope
from synthetic_tasks.domains import DOMAINS
from synthetic_tasks.lexicon import Item
from synthetic_tasks.pattern import Pattern
from synthetic_tasks.patterns import PATTERNS
from synthetic_tasks.registry import lookup
from synthetic_tasks.relation import Relation
from synthetic_tasks.relations import RELATIONS
from synthetic_tasks.surface import SURFACES, Surface


@dataclass(frozen=True)
class Task:
    """One task; every field is the name of an entry of its registry.

    `partner`: tasks with the same partner key share facts, predicates, questions and answers under one seed, as
    the released partner tasks do. It is also the cluster of error bars (docs/tasks.md).
    """

    id: str
    qk: str
    relation: str
    domain: str
    surface: str
    partner: str

    @property
    def grammar(self) -> "Grammar":
        return grammar_of(self)

    @property
    def family(self) -> tuple[str, str]:
        """The (QK, relation) pair, the unit of the baseline table and of the recombination split."""
        return self.qk, self.relation


@dataclass(frozen=True)
class Grammar:
    """A task with its names looked up: how to draw it and how to write it."""

    task: Task
    pattern: Pattern
    relation: Relation
    domain: Domain
    surface: Surface

    @cached_property
    def scopes(self) -> tuple[Scope, ...]:
        """The items to draw from: those of the domain the relation is defined on (all, in the released tasks)."""
        scopes = self.domain.set_scopes if self.surface.fact is None else self.domain.person_scopes
        kept = (scope.keep(self.defined) for scope in scopes)
        # Persons take an item each; a set takes one that differs from the repeated one, of another group.
        if self.surface.fact is None:
            return tuple(scope for scope in kept if len(scope.groups) > 1)
        return tuple(scope for scope in kept if len(scope.items) >= self.surface.size)

    def defined(self, word: str) -> bool:
        """Whether the relation has a value for this item (the first point of a scale has no previous one)."""
        try:
            return bool(self.relation.values(word))
        except KeyError:
            return False

    @cached_property
    def fact(self) -> str:
        """Template of one fact, with the fields `person` and `item`."""
        return "{item.listed}" if self.surface.fact is None else self.domain.facts[self.surface.fact]

    @cached_property
    def question(self) -> str:
        """Template of the question, with the fields `asked`, `predicate` and `unit`; it ends before the answer."""
        before_item = self.domain.copied_in_set if self.surface.fact is None else ""
        # A relation applied before the selection names the value that is asked; its output is copied.
        names_answer = self.pattern.answer == "value" or "{phrase}" in self.template
        phrase = self.relation.phrase if names_answer else ""
        phrase = phrase or before_item
        question = self.template.replace("{phrase}", phrase).replace("{Phrase}", phrase[:1].upper() + phrase[1:])
        return " ".join(question.split())  # an empty phrase leaves a double or a last space

    @cached_property
    def template(self) -> str:
        return self.pattern.questions[self.surface.name]

    @cached_property
    def predicates(self) -> tuple[str, ...]:
        if self.pattern.negated:
            return tuple(predicate.negative for predicate in self.domain.predicates)
        return tuple(predicate.positive for predicate in self.domain.predicates)

    @cached_property
    def predicate_weights(self) -> tuple[float, ...]:
        if self.pattern.negated:
            return tuple(predicate.negative_weight for predicate in self.domain.predicates)
        return tuple(predicate.positive_weight for predicate in self.domain.predicates)

    @cached_property
    def names_asked(self) -> bool:
        """Whether the question names anything; if not it asks for the odd one out."""
        return "{asked}" in self.template

    def key(self, person: str, word: str) -> tuple[str, ...]:
        """What the question compares a fact by."""
        if self.pattern.by == "value":
            return self.relation.values(word)
        return (person if self.pattern.by == "person" else word,)

    def accepted(self, person: str, word: str) -> tuple[str, ...]:
        """The accepted answers if the fact (person, word) is the source."""
        if self.pattern.answer == "value":
            return self.relation.values(word)
        return (person if self.pattern.answer == "person" else word,)

    def write_fact(self, person: str, item: Item) -> str:
        return self.fact.format(person=person, item=item)

    def write(self, persons: list[str], items: list[Item], asked: str, predicate: str, unit: str) -> str:
        """Facts and question up to the answer, without a space at the end."""
        surface, fact = self.surface, self.fact.format
        facts = surface.joiner.join([fact(person=p, item=i) for p, i in zip(persons, items, strict=True)])
        question = self.question.format(asked=asked, predicate=predicate, unit=unit)
        return f"{surface.opening}{facts}{surface.closing}{question}"


@cache
def grammar_of(task: Task) -> Grammar:
    """Look the names of a task up; a ValueError names what does not exist or does not fit."""
    grammar = Grammar(
        task,
        pattern=lookup(PATTERNS, task.qk, "QK pattern"),
        relation=lookup(RELATIONS, task.relation, "relation"),
        domain=lookup(DOMAINS, task.domain, "domain"),
        surface=lookup(SURFACES, task.surface, "surface"),
    )
    if task.surface not in grammar.pattern.questions:
        raise ValueError(
            f"pattern {task.qk!r} has no surface {task.surface!r}; it has {', '.join(grammar.pattern.questions)}"
        )
    if task.domain not in grammar.relation.domains:
        raise ValueError(
            f"relation {task.relation!r} is not defined on {task.domain!r}, "
            f"only on {', '.join(grammar.relation.domains)}"
        )
    if grammar.pattern.needs_shared_values and not grammar.relation.many_to_one:
        raise ValueError(
            f"pattern {task.qk!r} needs a relation that gives several items one value, unlike {task.relation!r}"
        )
    if grammar.surface.fact is not None and grammar.surface.fact not in grammar.domain.facts:
        raise ValueError(f"domain {task.domain!r} has no {grammar.surface.fact} facts about persons")
    return grammar
