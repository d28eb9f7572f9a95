"""Naming several tasks in one text: ids, numbers, ranges, patterns and relations."""

from difflib import get_close_matches

from synthetic_tasks.catalogue import TASKS, find
from synthetic_tasks.task import Task


def chosen(selection: str) -> list[Task]:
    """Return the tasks a selection names: `0-7,task40,same-person,obj->superclass`; all 74 if it is empty.

    Raises ValueError for a part that names no task, with the nearest names, for a range that goes backwards, and for
    commas alone.
    """
    tasks: list[Task] = []
    if selection.strip() and not selection.replace(",", "").strip():
        raise ValueError(f"{selection!r} names no task; leave it empty for all")
    for part in filter(None, (piece.strip() for piece in selection.split(","))):
        first, dash, last = part.partition("-")
        named = [task for task in TASKS.values() if part in (task.qk, task.relation)]
        if named:
            tasks += named
        elif dash and first.isdecimal() and last.isdecimal():
            if int(first) > int(last):
                raise ValueError(f"the range {part} is empty; write it as {last}-{first}")
            tasks += [find(number) for number in range(int(first), int(last) + 1)]
        else:
            tasks.append(_one(part))
    return list(dict.fromkeys(tasks)) or list(TASKS.values())


def _one(name: str) -> Task:
    """The task of a name; where there is none, patterns and relations may have been meant."""
    try:
        return find(name)
    except ValueError as error:
        patterns, relations = ({getattr(task, kind) for task in TASKS.values()} for kind in ("qk", "relation"))
        if close := get_close_matches(name, sorted({*patterns, *relations}), cutoff=0.6):
            raise ValueError(
                f"no task is called {name!r}, and no pattern or relation; did you mean {' or '.join(close)}?"
            ) from None
        raise ValueError(
            f"{error}; patterns are {', '.join(sorted(patterns))}; relations are {', '.join(sorted(relations))}"
        ) from None
