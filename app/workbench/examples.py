"""Held-out examples of the tasks by number, and one to start with that the model answers correctly."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import streamlit as st

from workbench import models, planted_models

SHOWCASE_TASKS = ("task2", "task10", "task6", "task58", "task56")
SHOWCASE_EXAMPLES, SHOWCASE_RIGHT = 10, 8


@dataclass(frozen=True)
class Own:
    """A prompt that comes with a model: in a few words what it shows, the text, and how it should go on."""

    about: str
    prompt: str
    answer: str


def link(name: str, task: str, number: int) -> dict[str, str]:
    """What a link to an example of a task holds: a model that has prompts of its own is asked by texts alone."""
    if not own(name):
        return {"task": task, "example": str(number)}
    example = held_out(task, number)
    return {"text": example.prompt, "answer": str(example.answer)}


def own(name: str) -> list[Own]:
    """The prompts of a model that was not trained on the tasks, as planted ones and those of source code; else none."""
    if name.startswith(planted_models.PREFIX):
        planted = planted_models.example(name, 0)
        return [Own("", planted.prompt, planted.target)]
    return _shipped_prompts(name)


@st.cache_data(max_entries=64, show_spinner=False)
def _shipped_prompts(name: str) -> list[Own]:
    from dcinterp.checkpoints.names import SHIPPED, shipped_models

    file = SHIPPED / name / "prompts.json"
    if name not in shipped_models() or not file.is_file():
        return []
    return [Own(**each) for each in json.loads(file.read_text(encoding="utf-8"))]


def showcase(name: str) -> tuple[str, int]:
    """(task, number) of a held-out example that the model answers correctly, of a task that it has learnt.

    Retrieval by person comes first. A task counts as learnt with 8 of 10 right answers: guessing among three facts
    reaches that once in three hundred times.
    """
    return _showcase(name, models.stamp(name))


@st.cache_data(max_entries=64, show_spinner="Looking for an example that this model answers correctly ...")
def _showcase(name: str, stamp: int) -> tuple[str, int]:
    bridge = models.model(name)
    with models.lock(name):
        for task in SHOWCASE_TASKS:
            if (number := first_right(bridge, task)) is not None:
                return task, number
    return SHOWCASE_TASKS[0], 0


def first_right(bridge: Any, task: str) -> int | None:
    """The first example of a task that the model answers correctly, if it has learnt the task.

    It stops as soon as too many answers are wrong: most other people's models do not know the tasks, and are slow.
    """
    right: list[int] = []
    for number in range(SHOWCASE_EXAMPLES):
        if answers_correctly(bridge, task, number):
            right.append(number)
        elif number + 1 - len(right) > SHOWCASE_EXAMPLES - SHOWCASE_RIGHT:
            return None
    return right[0]


def answers_correctly(bridge: Any, task: str, number: int) -> bool:
    """Whether the model's most likely next token is the first word of the answer."""
    import dcinterp
    import synthetic_tasks

    example = held_out(task, number)
    try:
        best = int(dcinterp.predict(bridge, example.prompt).top_ids[0])
    except ValueError:
        return False
    return synthetic_tasks.words(example.answer)[0] == bridge.tokenizer.decode([best]).strip()


def made_from(name: str) -> str:
    """What a model with prompts of its own learnt instead of the tasks, in a few words."""
    if name.startswith(planted_models.PREFIX):
        return "was set by hand, with words of its own"
    what = "source code" if knows_tasks(models.require(name).tokenizer) else "a puzzle"
    return f"was trained on {what}, not on the tasks"


def knows_tasks(tokenizer: Any) -> bool:
    """Whether a tokenizer of whole words has those of the tasks; one of parts of words has all, and None none."""
    if tokenizer is None:
        return False
    ids = tokenizer(held_out(SHOWCASE_TASKS[0], 0).prompt, add_special_tokens=False)["input_ids"]
    return tokenizer.unk_token_id is None or tokenizer.unk_token_id not in ids


@st.cache_data(max_entries=256, show_spinner=False)
def held_out(task: str, number: int) -> Any:
    """Held-out example `number` of a task: no shipped model was trained on it.

    The numbers stand in links that people keep, so a small task may show the same example under two of them; a list
    shows it once (`distinct`).
    """
    return _drawn(task, number)


def distinct(task: str, many: int) -> list[int]:
    """The numbers below `many` of a task's held-out examples, without those whose text has a lower number too."""
    first: dict[tuple[str, str], int] = {}
    for number in range(many):
        example = held_out(task, number)
        first.setdefault((example.prompt, example.answer), number)
    return list(first.values())


def _drawn(task: str, seed: int) -> Any:
    import synthetic_tasks

    return synthetic_tasks.generate(task, 1, seed=seed, examples=1, split="held-out")[0].examples[0]


def source_token(name: str, task: str, number: int) -> int | None:
    """Position of the token that the answer of a held-out example is read from."""
    return _source_token(name, models.stamp(name), task, number)


@st.cache_data(max_entries=256, show_spinner=False)
def _source_token(name: str, stamp: int, task: str, number: int) -> int | None:
    from dcinterp.analysis.case_study.following import source_position

    return source_position(models.model(name), held_out(task, number))


def label(task_id: str) -> str:
    """A task in one line."""
    import synthetic_tasks

    task = synthetic_tasks.TASKS[task_id]
    return f"{task_id.removeprefix('task')} · {task.qk} · {task.relation} ({task.domain}, {task.surface})"
