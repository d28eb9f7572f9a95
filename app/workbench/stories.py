"""The case study in the app: its head scores are computed once for a prompt, since every click needs them again."""

from __future__ import annotations

from typing import Any

from workbench import analyses
from workbench.inputs import Question


def attribution(name: str, asked: Question) -> Any:
    """Head scores of a question."""
    return told(name, asked, None, None, None).attribution


def told(name: str, asked: Question, layer: int | None, head: int | None, key: int | None) -> Any:
    """The steps for one choice of head and source token; UserError when the question does not fit the model."""
    # An example says which of its words is the source; a bare prompt does not.
    example = asked.example if asked.example is not None else asked.prompt
    answer = None if asked.example is not None else asked.answer
    base = {"example": example, "answer": answer}
    chosen = base | {"layer": layer, "head": head, "key": key}
    wanted = analyses.key_of("case_study", name, chosen)
    if (kept := analyses.cache().get(wanted)) is not None:
        return kept
    first = analyses.cache().get(analyses.key_of("case_study", name, base | dict.fromkeys(("layer", "head", "key"))))
    again = {"attribution": first.attribution} if first is not None else {}
    return analyses.compute(wanted, "case_study", name, chosen, **again)
