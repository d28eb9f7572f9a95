"""The synthetic in-context reasoning tasks of the DCFormer paper: generator, released format, solver, evaluation."""

from synthetic_tasks.catalogue import EXTRA_TASKS, TASKS, find
from synthetic_tasks.example import Example, Fact, Row
from synthetic_tasks.generate import generate, stream
from synthetic_tasks.split import HELD_OUT_FRACTION, is_held_out
from synthetic_tasks.task import Task
from synthetic_tasks.words import WORD_PATTERN, join, vocabulary, words

__all__ = [
    "EXTRA_TASKS",
    "HELD_OUT_FRACTION",
    "TASKS",
    "WORD_PATTERN",
    "Example",
    "Fact",
    "Row",
    "Task",
    "find",
    "generate",
    "is_held_out",
    "join",
    "stream",
    "vocabulary",
    "words",
]
