"""The synthetic in-context reasoning tasks of the DCFormer paper: generator, released format, solver, evaluation."""

from synthetic_tasks.baselines import baselines
from synthetic_tasks.catalogue import EXTRA_TASKS, TASKS, compose, find
from synthetic_tasks.counterfactual import KINDS, Counterfactual, NoCounterfactual, corrupt, counterfactuals
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
    "Counterfactual",
    "Evaluation",
    "Example",
    "Fact",
    "NoCounterfactual",
    "RecombinationSplit",
    "Row",
    "Solution",
    "Span",
    "Spans",
    "Task",
    "UnsolvableLine",
    "baselines",
    "compose",
    "corrupt",
    "counterfactuals",
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
    "vocabulary",
    "words",
    "write_jsonl",
]

_FORMER = {"Twin": "Counterfactual", "NoTwin": "NoCounterfactual", "twins": "counterfactuals"}
"""Names that version 0.1 had, and what they are called now; they go in version 0.3."""


def __getattr__(name: str) -> object:
    if name not in _FORMER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import warnings

    warnings.warn(f"{name} is called {_FORMER[name]} now.", DeprecationWarning, stacklevel=2)
    return globals()[_FORMER[name]]
