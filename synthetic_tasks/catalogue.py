"""The 74 released tasks (tasks.md section 1) and, apart from them, tasks the released file lacks.

A task is one line here; generating, solving, corrupting and evaluating it follow from its names.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from synthetic_tasks.registry import lookup
from synthetic_tasks.task import Task

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
            yield Task(
                f"task{number}", "different-in-set", relation, domain, surface, f"different-in-set/{shared}"
            )
            number += 1


TASKS: Mapping[str, Task] = MappingProxyType({task.id: task for task in released()})

EXTRA_TASKS: Mapping[str, Task] = MappingProxyType({})


def find(task: Task | str | int) -> Task:
    """Return the task itself, the one with this id ("task7", or an extra id), or the released one of this number."""
    if isinstance(task, Task):
        return task
    name = f"task{task}" if isinstance(task, int) or task.isdigit() else task
    if name in EXTRA_TASKS:
        return EXTRA_TASKS[name]
    if name not in TASKS:
        raise ValueError(
            f"no task is called {name!r}; released tasks are task0 .. task{len(TASKS) - 1}"
            + (f", extra ones {', '.join(EXTRA_TASKS)}" if EXTRA_TASKS else "")
        )
    return lookup(TASKS, name, "task")
