"""The 74 released tasks (docs/tasks.md) and, apart from them, tasks the released file lacks.

A task is one line here; generating, solving, corrupting and evaluating it follow from its names.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from itertools import product
from types import MappingProxyType

from synthetic_tasks.patterns import PATTERNS
from synthetic_tasks.relations import RELATIONS
from synthetic_tasks.task import Task, grammar_of

# The columns of the released numbering: a person setting has these QK patterns, each in two word orders.
PERSON_PATTERNS = ("the-other-person", "same-person", "the-other-object", "same-object")
PERSON_SETTINGS = (
    ("obj->superclass", "object"),
    ("copy", "object"),
    ("city->country", "city"),
    ("copy", "city"),
    ("obj->capability", "tool"),
    ("adj->opposite", "adjective"),
    ("ordinal->next", "ordinal"),
)
SET_SETTINGS = (
    ("copy", "object"),
    ("obj->superclass", "object"),
    ("copy", "city"),
    ("city->country", "city"),
    ("copy", "tool"),
    ("obj->capability", "tool"),
    ("adj->opposite", "adjective"),
    ("ordinal->next", "ordinal"),
    ("ordinal->prev", "ordinal"),
)


def released() -> Iterator[Task]:
    """task0 .. task73 in order."""
    number = 0
    for relation, domain in PERSON_SETTINGS:
        for qk in PERSON_PATTERNS:
            for surface in ("person-first", "item-first"):
                yield Task(f"task{number}", qk, relation, domain, surface, f"{qk}/{relation}/{domain}")
                number += 1
    for relation, domain in SET_SETTINGS:
        for surface in ("which-is-not", "which-is-different"):
            # 56 and 57, ... share facts; of the four ordinal tasks those of one question do: 70 = 72, 71 = 73.
            shared = f"ordinal/{surface}" if domain == "ordinal" else f"{relation}/{domain}"
            yield Task(f"task{number}", "different-in-set", relation, domain, surface, f"different-in-set/{shared}")
            number += 1


TASKS: Mapping[str, Task] = MappingProxyType({task.id: task for task in released()})

EXTRA_TASKS: Mapping[str, Task] = MappingProxyType(
    {
        task.id: task
        for task in (
            # The paper's other examples (docs/tasks.md), which the released file does not have.
            Task("the-other-class", "the-other-class", "obj->superclass", "object", "which-is-not", "the-other-class"),
            Task(
                "synonym-set", "different-meaning", "synonym->opposite", "synonym", "which-is-different", "synonym-set"
            ),
            Task("so-kind-of", "same-person", "obj->superclass", "object", "so", "so-kind-of"),
            # Its negation: with two facts the polarity counterfactual of either has exactly one answer.
            Task("so-not-kind-of", "the-other-person", "obj->superclass", "object", "so", "so-not-kind-of"),
        )
    }
)


def compose(qk: str, relation: str, domain: str, surface: str) -> Task:
    """The task of these parts: the catalogued one if there is one, else a new one whose id is its parts.

    Raises ValueError if the parts do not exist or do not fit.
    """
    parts = (qk, relation, domain, surface)
    for task in (*TASKS.values(), *EXTRA_TASKS.values()):
        if (task.qk, task.relation, task.domain, task.surface) == parts:
            return task
    task = Task("+".join(parts), *parts, partner="+".join(parts))
    grammar_of(task)  # raises if the parts do not fit
    return task


@cache
def compositions() -> tuple[Task, ...]:
    """Every task that fits together, catalogued or not."""
    fitting = []
    for pattern, relation in product(PATTERNS.values(), RELATIONS.values()):
        for domain, surface in product(relation.domains, pattern.questions):
            with suppress(ValueError):
                fitting.append(compose(pattern.name, relation.name, domain, surface))
    return tuple(fitting)


def find(task: Task | str | int) -> Task:
    """Return the task itself, the one of this id (released, extra or composed), or the released one of this number."""
    if isinstance(task, Task):
        return task
    name = f"task{task}" if isinstance(task, int) or task.isdigit() else task
    for tasks in (TASKS, EXTRA_TASKS):
        if name in tasks:
            return tasks[name]
    if name.count("+") == 3:
        return compose(*name.split("+"))
    close = get_close_matches(name, (*TASKS, *EXTRA_TASKS), 1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(
        f"no task is called {name!r}; {meant}released tasks are task0 .. task{len(TASKS) - 1}, "
        f"extra ones {', '.join(EXTRA_TASKS)}"
    )
