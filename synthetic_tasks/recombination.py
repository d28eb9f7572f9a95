"""The recombination split: hold out combinations of a QK pattern and a relation, keep both parts in training.

A model that answers a combination it never saw, of parts it saw apart, recombines QK and OV circuits; this is the
paper's claim, and here it is measured directly.
"""

from collections.abc import Iterable
from dataclasses import dataclass

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


def recombination_split(holdout: Iterable[tuple[str, str]], tasks: Iterable[Task] | None = None) -> RecombinationSplit:
    """Split tasks (by default the 74) by held-out combinations.

    holdout: pairs (QK pattern, relation), for instance ("same-person", "city->country")

    Raises ValueError if a combination does not occur, or if one of its parts would not occur in training any more.
    """
    pool = tuple(TASKS.values() if tasks is None else tasks)
    known = families(pool)
    held = tuple(dict.fromkeys((pattern, relation) for pattern, relation in holdout))
    if not held:
        raise ValueError("nothing is held out; name at least one pair (QK pattern, relation)")
    for family in held:
        if family not in known:
            raise ValueError(f"no task combines {family[0]!r} with {family[1]!r}; see families() for those that exist")
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
