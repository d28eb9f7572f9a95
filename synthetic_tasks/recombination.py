"""The recombination split: hold out combinations of a QK pattern and a relation, keep both parts in training.

A model that answers a combination it never saw, of parts it saw apart, recombines QK and OV circuits; this is the
paper's claim, and here it is measured directly.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from synthetic_tasks.catalogue import TASKS
from synthetic_tasks.task import Task

Family = tuple[str, str]


@dataclass(frozen=True)
class RecombinationSplit:
    """Tasks to train on and tasks to test on; both surfaces of a held-out combination are in `test`."""

    holdout: tuple[Family, ...]
    train: tuple[Task, ...]
    test: tuple[Task, ...]


def families(tasks: Iterable[Task] | None = None) -> tuple[Family, ...]:
    """The (QK pattern, relation) combinations of some tasks, by default of the 74, in order."""
    return tuple(dict.fromkeys(task.family for task in (TASKS.values() if tasks is None else tasks)))


def _pair(held: Any) -> Family:
    """What is held out, as a combination."""
    if isinstance(held, str) or not isinstance(held, Sequence) or len(held) != 2:
        raise ValueError(f"{held!r} is no pair (QK pattern, relation), such as ('same-person', 'city->country')")
    return held[0], held[1]


def recombination_split(holdout: Iterable[tuple[str, str]], tasks: Iterable[Task] | None = None) -> RecombinationSplit:
    """Split tasks (by default the 74) by held-out combinations.

    holdout: pairs (QK pattern, relation), for instance ("same-person", "city->country")

    Raises ValueError if a combination does not occur, or if one of its parts would not occur in training any more.
    """
    pool = tuple(TASKS.values() if tasks is None else tasks)
    known = families(pool)
    held = tuple(dict.fromkeys(map(_pair, holdout)))
    if not held:
        raise ValueError("nothing is held out; name at least one pair (QK pattern, relation)")
    for family in held:
        if family not in known:
            there = [relation for pattern, relation in known if pattern == family[0]]
            way = f"it has {', '.join(there)}" if there else f"patterns are {', '.join(dict(known))}"
            raise ValueError(f"no task combines {family[0]!r} with {family[1]!r}; {way}")
    train = tuple(task for task in pool if task.family not in held)
    test = tuple(task for task in pool if task.family in held)
    for part, left in ((0, {task.qk for task in train}), (1, {task.relation for task in train})):
        for family in held:
            if family[part] not in left:
                raise ValueError(
                    f"{family[part]!r} would occur in no training task, so {' x '.join(family)} could not be "
                    "recombined; hold out fewer combinations"
                )
    return RecombinationSplit(held, train, test)
