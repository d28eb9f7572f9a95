"""The case study of a question, for every page that needs it or a part of it.

The head scores of a case study are computed once for a prompt, since every click needs them again.
"""

from __future__ import annotations

from typing import Any

from workbench import analyses
from workbench.inputs import Question


def run_case_study(
    name: str,
    question: Question,
    layer: int | None = None,
    head: int | None = None,
    key: int | None = None,
    *,
    kind: str = "mean",
    contrast: str = "facts",
) -> Any:
    """The case study of a question for one choice of head and source token, kind of ablation and contrast.

    Raises:
        UserError: the question does not fit the model.
    """
    # An example says which of its words is the source; a bare prompt does not.
    example = question.example if question.example is not None else question.prompt
    answer = None if question.example is not None else question.answer
    base = {"example": example, "answer": answer, "kind": kind, "contrast": contrast}
    chosen = base | {"layer": layer, "head": head, "key": key}
    wanted = analyses.key_of("case_study", name, chosen)
    if (kept := analyses.cache().get(wanted)) is not None:
        return kept
    first = analyses.cache().get(analyses.key_of("case_study", name, base | dict.fromkeys(("layer", "head", "key"))))
    kept_parts = ("attribution", "direct", "strongest")
    again = {part: getattr(first, part) for part in kept_parts} if first is not None else {}
    return analyses.compute(wanted, "case_study", name, chosen, **again)


def head_scores(name: str, question: Question, kind: str, contrast: str) -> Any:
    """The head scores of a question; UserError when it does not fit the model."""
    return run_case_study(name, question, kind=kind, contrast=contrast).attribution


def most_direct_head(name: str, question: Question, scores: Any) -> tuple[int, int, float] | None:
    """(layer, head, effect) of the head that the case study follows against the foil of these scores, the runner-up.

    None where the scores explain something else than the case study does, and for a large model: nobody who looks at
    scores waits for a whole case study besides.
    """
    if not analyses.small(name):
        return None
    study = run_case_study(name, question, contrast="runner-up")
    if (study.attribution.target, study.attribution.foil) != (scores.target, scores.foil):
        return None
    return study.layer, study.head, float(study.direct[study.layer, study.head])
