"""The synthetic in-context reasoning tasks of the DCFormer paper: generator, released format, solver, evaluation."""

from synthetic_tasks.baselines import baselines
from synthetic_tasks.catalogue import EXTRA_TASKS, TASKS, compose, find
from synthetic_tasks.counterfactual import KINDS, NoTwin, Twin, corrupt, twins
from synthetic_tasks.dataset import read_jsonl, write_jsonl
from synthetic_tasks.evaluate import evaluate
from synthetic_tasks.evaluation import Evaluation
from synthetic_tasks.example import Example, Fact, Row
from synthetic_tasks.generate import generate, stream
from synthetic_tasks.recombination import RecombinationSplit, families, recombination_split
from synthetic_tasks.solve import Solution, UnsolvableLine, solve
from synthetic_tasks.spans import Span, Spans
from synthetic_tasks.split import HELD_OUT_FRACTION, is_held_out
from synthetic_tasks.task import Task
from synthetic_tasks.words import WORD_PATTERN, join, vocabulary, words

__all__ = [
    "EXTRA_TASKS",
    "HELD_OUT_FRACTION",
    "KINDS",
    "TASKS",
    "WORD_PATTERN",
    "Evaluation",
    "Example",
    "Fact",
    "NoTwin",
    "RecombinationSplit",
    "Row",
    "Solution",
    "Span",
    "Spans",
    "Task",
    "Twin",
    "UnsolvableLine",
    "baselines",
    "compose",
    "corrupt",
    "evaluate",
    "families",
    "find",
    "generate",
    "is_held_out",
    "join",
    "read_jsonl",
    "recombination_split",
    "solve",
    "stream",
    "twins",
    "vocabulary",
    "words",
    "write_jsonl",
]
