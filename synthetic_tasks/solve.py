"""A symbolic solver: read any line of a known task, with or without its answer, and say what is asked and answered.

The solver shares the grammar with the generator but not its decisions: it finds facts and question in the text and
applies the selection rule of the pattern and the table of the relation. Tested on every released line.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from string import Formatter

from synthetic_tasks.catalogue import EXTRA_TASKS, TASKS, compositions, find
from synthetic_tasks.example import Example, Fact
from synthetic_tasks.lexicon import NAMES
from synthetic_tasks.pattern import select
from synthetic_tasks.task import Grammar, Task


class UnsolvableLine(ValueError):
    """A line no task can read; the message holds the line and the reason."""

    def __init__(self, line: str, reason: str) -> None:
        super().__init__(f"cannot solve {line!r}: {reason}")
        self.line, self.reason = line, reason


@dataclass(frozen=True)
class Solution:
    """What a line says.

    task_ids: the tasks that read the line alike, the chosen one first (a set of words that are both objects and
        tools belongs to two tasks)
    sources: places of the facts the question selects; exactly one in every released line
    accepted: all correct answers
    given: the answer in the line, None if there is none; bracketed: whether it is in brackets
    """

    task: Task
    task_ids: tuple[str, ...]
    facts: tuple[Fact, ...]
    sources: tuple[int, ...]
    asked: str
    predicate: str
    unit: str
    accepted: tuple[str, ...]
    prompt: str
    given: str | None
    bracketed: bool

    @property
    def task_id(self) -> str:
        return self.task.id

    @property
    def pattern(self) -> str:
        return self.task.qk

    @property
    def transformation(self) -> str:
        return self.task.relation

    @property
    def source(self) -> int | None:
        """The one selected fact, or None if the question selects several."""
        return self.sources[0] if len(self.sources) == 1 else None

    @property
    def correct(self) -> bool | None:
        """Whether the given answer is accepted; None without a given answer."""
        return None if self.given is None else self.given in self.accepted

    def example(self) -> Example:
        """The line as an Example; its answer is the given one if that is accepted, else the first accepted one."""
        answer = self.given if self.given in self.accepted else self.accepted[0]
        grammar = self.task.grammar
        source = next((s for s in self.sources if answer in grammar.accepted(*self.facts[s])), self.sources[0])
        return Example(
            self.task.id,
            self.facts,
            source,
            self.asked,
            self.predicate,
            self.unit,
            answer,
            self.accepted,
            self.prompt,
        )


def solve(line: str, task: Task | str | int | None = None) -> Solution:
    """Solve one line; `task` says which task it belongs to where that is known.

    Without it the released tasks are tried first, then the extra ones, then every other composition of a known
    pattern, relation, domain and surface. A reading with exactly one source wins. Raises UnsolvableLine.
    """
    line = line.strip("\n")
    pools = [[find(task)]] if task is not None else [TASKS.values(), EXTRA_TASKS.values(), compositions()]
    failures: list[tuple[int, str]] = []
    found: list[Solution] = []
    for pool in pools:
        found += list(readings(line, pool, failures))
        if any(solution.source is not None for solution in found):
            break
    if not found:
        raise UnsolvableLine(line, max(failures, key=lambda failure: failure[0])[1])
    best = next((solution for solution in found if solution.source is not None), found[0])
    alike = (s.task.id for s in found if s.facts == best.facts and s.accepted == best.accepted)
    return replace(best, task_ids=tuple(dict.fromkeys((best.task.id, *alike))))


def readings(line: str, tasks: Iterable[Task], failures: list[tuple[int, str]]) -> Iterator[Solution]:
    """All solutions of a line by some tasks; for the others, how far they read and why not further."""
    facts_read: dict[tuple[object, ...], tuple[list[Fact], int]] = {}
    for task in tasks:
        reader = reader_of(task)
        if reader.layout not in facts_read:
            facts_read[reader.layout] = reader.read_facts(line)
        facts, end = facts_read[reader.layout]
        if len(facts) < task.grammar.surface.size:
            few = f"it has {len(facts)} facts, and a task like it {task.grammar.surface.size}"
            failures.append((end, f"its facts cannot be read from {line[end:]!r} on" if line[end:].strip() else few))
            continue
        try:
            yield reader.read_question(line, facts, end)
        except UnsolvableLine as failure:
            failures.append((end + 1 if failure.reason.startswith("no task") else end + 2, failure.reason))


@dataclass(frozen=True)
class Reader:
    """The grammar of one task as regular expressions."""

    grammar: Grammar

    @cached_property
    def layout(self) -> tuple[object, ...]:
        """Tasks of one layout read the same facts."""
        surface = self.grammar.surface
        return self.grammar.domain.name, self.grammar.fact, surface.opening, surface.closing, surface.size

    @cached_property
    def words(self) -> dict[str, str]:
        """The written form of an item in a fact -> its bare word."""
        field = next(field for _, field, *_ in Formatter().parse(self.grammar.fact) if (field or "").startswith("item"))
        return {getattr(item, field.removeprefix("item.")): word for word, item in self.grammar.domain.items.items()}

    @cached_property
    def fact(self) -> re.Pattern[str]:
        fields = {"person": named("person", NAMES), "item": named("item", self.words)}
        return re.compile(expression(self.grammar.fact, fields))

    @cached_property
    def question(self) -> re.Pattern[str]:
        grammar = self.grammar
        if grammar.pattern.by == "person":
            askable: Iterable[str] = NAMES
        else:
            askable = {key for word in self.defined for key in grammar.key("", word)}
        units = {scope.unit for scope in grammar.scopes}
        fields = {
            "asked": named("asked", askable),
            "predicate": named("predicate", grammar.predicates),
            "unit": named("unit", units),
        }
        answers = NAMES if grammar.pattern.answer == "person" else self.answers
        question = f"(?P<question>{expression(grammar.question, fields)})"
        return re.compile(f"{question}(?: (?:{named('bare', answers)}|\\[ {named('bracketed', answers)} \\]))?\\s*")

    @cached_property
    def defined(self) -> list[str]:
        """The words of the domain the relation is defined on."""
        return [word for word in self.grammar.domain.items if self.grammar.defined(word)]

    @cached_property
    def answers(self) -> set[str]:
        return {answer for word in self.defined for answer in self.grammar.accepted("", word)}

    def read_facts(self, line: str) -> tuple[list[Fact], int]:
        """The facts at the start of a line and where the reading ended; fewer than `size` facts if it failed."""
        surface = self.grammar.surface
        facts: list[Fact] = []
        end, mark = 0, surface.opening
        while line.startswith(mark, end) and len(facts) < surface.size:
            match = self.fact.match(line, end + len(mark))
            if match is None:
                return facts, end + len(mark)
            facts.append(Fact(match.groupdict().get("person") or "", self.words[match["item"]]))
            end, mark = match.end(), surface.joiner
        if len(facts) == surface.size and line.startswith(surface.closing, end):
            return facts, end + len(surface.closing)
        return facts[: surface.size - 1], end

    def read_question(self, line: str, facts: list[Fact], start: int) -> Solution:
        """Read the question from `start` on and answer it; UnsolvableLine if it is not of this task."""
        grammar = self.grammar
        match = self.question.fullmatch(line, start)
        if match is None:
            raise UnsolvableLine(line, f"no task asks {line[start:]!r} about {grammar.domain.name} facts")
        fields = match.groupdict()
        asked, unit = fields.get("asked") or "", fields.get("unit") or ""
        units = {grammar.domain.unit_of[fact.item] for fact in facts}
        if len(units) > 1 or (unit and units != {unit}):
            raise UnsolvableLine(line, f"its items are of the units {sorted(units)}, its question of {unit!r}")
        undefined = [fact.item for fact in facts if not grammar.defined(fact.item)]
        if undefined:
            raise UnsolvableLine(line, f"{grammar.relation.name} is not defined on {undefined[0]!r}")
        keys = [grammar.key(*fact) for fact in facts]
        sources = select(keys, asked if grammar.names_asked else None, grammar.pattern.negated)
        if not sources:
            raise UnsolvableLine(line, f"no fact answers {match['question']!r}")
        accepted = dict.fromkeys(answer for place in sources for answer in grammar.accepted(*facts[place]))
        return Solution(
            task=grammar.task,
            task_ids=(grammar.task.id,),
            facts=tuple(facts),
            sources=sources,
            asked=asked,
            predicate=fields.get("predicate") or "",
            unit=units.pop(),
            accepted=tuple(accepted),
            prompt=line[: match.end("question")],
            given=fields["bare"] or fields["bracketed"],
            bracketed=fields["bracketed"] is not None,
        )


@cache
def reader_of(task: Task) -> Reader:
    return Reader(task.grammar)


def named(name: str, values: Iterable[str]) -> str:
    """A named group of alternatives, longest first so that no value hides a longer one."""
    alternatives = "|".join(re.escape(value) for value in sorted(set(values), key=lambda v: (-len(v), v)))
    return f"(?P<{name}>{alternatives})"


def expression(template: str, fields: dict[str, str]) -> str:
    """A template as a regular expression, its fields replaced by groups."""
    parts = []
    for literal, field, *_ in Formatter().parse(template):
        parts.append(re.escape(literal))
        if field:
            parts.append(fields[field.partition(".")[0]])
    return "".join(parts)
