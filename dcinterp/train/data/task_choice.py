"""Which of the 74 tasks the phases of a run draw from, and which combinations of its parts it leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import synthetic_tasks
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.text import shown
from dcinterp.train.config.recipe import DataSection, Phase

DEFAULT_PATTERNS: Mapping[str, tuple[str, ...]] = {"tasks": (), "questions": ("same-person", "same-object")}
"""The sources that draw from tasks, with the QK patterns where a phase names none; all when empty."""


def choose_tasks(phase: Phase) -> list[synthetic_tasks.Task]:
    """The tasks a phase draws from: those it names, else those of its patterns, else those of `DEFAULT_PATTERNS`.

    Raises:
        UserError: a task or a pattern is unknown.
    """
    everything = synthetic_tasks.TASKS
    for name in phase.tasks:
        if name not in everything:
            if name in synthetic_tasks.EXTRA_TASKS or name.count("+") == 3:
                raise UserError(
                    f"Runs train on the 74 tasks alone, and {name!r} is another one; write a puzzle for it."
                )
            raise UserError(f"The config names an unknown task {name!r}; {nearest(name, everything)}")
    if phase.tasks:
        return [everything[name] for name in phase.tasks]
    known = {task.qk for task in everything.values()}
    for pattern in phase.patterns:
        if pattern not in known:
            raise UserError(f"The config names an unknown QK pattern {pattern!r}; {nearest(pattern, known)}")
    default = DEFAULT_PATTERNS[phase.source]
    if not phase.patterns:
        return [task for task in everything.values() if not default or task.qk in default]
    return [task for pattern in phase.patterns for task in everything.values() if task.qk == pattern]


@dataclass(frozen=True)
class TaskSides:
    """Names of the tasks that a run leaves out (`data.holdout`), and of those that its phases draw from."""

    held_out: frozenset[str] = frozenset()
    seen: frozenset[str] = frozenset()

    def of(self, name: str) -> tuple[str, ...]:
        """On which side a task is, where a run has sides: "held-out", "seen", or neither."""
        if not self.held_out:
            return ()
        return ("held-out",) if name in self.held_out else ("seen",) if name in self.seen else ()

    def keep(self, phase: Phase) -> Phase:
        """The phase without the tasks that are held out."""
        if not self.held_out or phase.source not in DEFAULT_PATTERNS:
            return phase
        drawn = (task.id for task in choose_tasks(phase))
        return replace(phase, tasks=tuple(name for name in drawn if name not in self.held_out))


def held_out_tasks(holdout: tuple[str, ...]) -> frozenset[str]:
    """The names of the tasks of some combinations, such as "same-person:city->country".

    Raises:
        UserError: no task has such a combination.
    """
    by_family = {":".join(family): family for family in synthetic_tasks.families()}
    for each in holdout:
        if each not in by_family:
            raise UserError(
                f"data.holdout takes combinations PATTERN:RELATION of the tasks, not {shown(each)}; "
                f"{nearest(each[:60], by_family)}"
            )
    held = {by_family[each] for each in holdout}
    return frozenset(task.id for task in synthetic_tasks.TASKS.values() if task.family in held)


def sides_of(section: DataSection) -> TaskSides:
    """The tasks that a run leaves out and those that it draws from; checked before the first step.

    Raises:
        UserError: a combination is unknown, a part of one is in no task that a phase draws from, or a phase has no task
            left.
    """
    if not section.holdout:
        return TaskSides()
    held = held_out_tasks(section.holdout)
    seen: set[str] = set()
    for number, phase in enumerate(section.phases):
        if phase.source in DEFAULT_PATTERNS:
            left = {task.id for task in choose_tasks(phase)} - held
            if not left:
                raise UserError(f"data.holdout leaves phase {number + 1} of data.phases no task; give it other tasks.")
            seen |= left
    trained = {part for name in seen for part in synthetic_tasks.TASKS[name].family}
    for each in section.holdout:
        for part in each.split(":", 1):
            if part not in trained:
                raise UserError(
                    f"No phase draws from a task with {part}, so {each} of data.holdout cannot be put together from "
                    "what is learnt; hold out fewer combinations, or draw from more tasks."
                )
    return TaskSides(held, frozenset(seen))
