"""The case study of a question, for every page that needs it or a part of it.

The head scores of a case study are computed once for a prompt, since every click needs them again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dcinterp.mechanism.ablation_kinds import ABLATIONS
from dcinterp.support.errors import UserError
from workbench import analyses, models
from workbench.inputs import Question, is_quick


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
    chosen, again = _arguments(name, question, layer, head, key, kind, contrast)
    wanted = analyses.key_of("case_study", name, chosen)
    kept = analyses.cache().get(wanted)
    return kept if kept is not None else analyses.compute(wanted, "case_study", name, chosen, **again)


def long_case_study(
    name: str,
    question: Question,
    layer: int | None = None,
    head: int | None = None,
    key: int | None = None,
    *,
    kind: str = "mean",
    contrast: str = "facts",
) -> Any | None:
    """The same, for a large model or a long prompt after a button, with progress and a way to cancel.

    None as long as there is none.

    Raises:
        UserError: the question does not fit the model.
    """
    chosen, again = _arguments(name, question, layer, head, key, kind, contrast)
    config = models.model(name).cfg
    cost = f"{config.n_layers} layers, {config.n_layers * config.n_heads} heads: this may take minutes"
    title = "Run the case study" if layer is None and key is None else "Follow this choice"
    # One button stands there for a prompt, and another for a head or a token that was chosen later.
    place = "case-study" if layer is None and key is None else "case-study-chosen"
    quick = is_quick(name, question)
    return analyses.long(
        "case_study", name, title=title, key=place, cost=cost, at_once=quick, again=again, given=chosen
    )


def _arguments(
    name: str, question: Question, layer: int | None, head: int | None, key: int | None, kind: str, contrast: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of a case study, and the parts of the one before any choice that it uses again."""
    # An example says which of its words is the source; a bare prompt does not.
    example = question.example if question.example is not None else question.prompt
    answer = None if question.example is not None else question.answer
    base = {"example": example, "answer": answer, "kind": kind, "contrast": contrast}
    chosen = base | {"layer": layer, "head": head, "key": key}
    first = analyses.cache().get(analyses.key_of("case_study", name, base | dict.fromkeys(("layer", "head", "key"))))
    kept_parts = ("attribution", "direct", "strongest")
    return chosen, {part: getattr(first, part) for part in kept_parts} if first is not None else {}


class DirectHead(NamedTuple):
    """A head and its direct effect on the answer; replaced: what was done to its output to measure it."""

    layer: int
    head: int
    effect: float
    replaced: str


def most_direct_head(name: str, question: Question, scores: Any) -> DirectHead | None:
    """The head that the case study follows against the runner-up.

    None where the scores explain something else than the case study does, and for a large model or a long prompt:
    nobody who looks at scores waits for a whole case study besides.
    """
    if not is_quick(name, question):
        return None
    try:
        study = run_case_study(name, question, contrast="runner-up")
    except UserError:  # the scores stand without it
        return None
    if (study.attribution.target, study.attribution.foil) != (scores.target, scores.foil):
        return None
    effect = float(study.direct[study.layer, study.head])
    return DirectHead(study.layer, study.head, effect, ABLATIONS[study.kind].done)


def layer_worth(name: str, question: Question, study: Any) -> str:
    """What all composition of the followed head's layer does for the answer, in a sentence; "" where it says nothing.

    Measured by ablating everything that composition adds after the softmax of that layer, in the kind of the case
    study, with zero beside.
    """
    if study.breakdown is None or not analyses.small(name):
        return ""
    scores, kind = study.attribution, study.kind  # which is zero where the prompt has no reference prompts
    try:
        effect = analyses.run(
            "intervene",
            name,
            prompt=question.prompt,
            interventions=f"branch {study.layer}.post.added {kind}",
            target=scores.target,
            foil=scores.foil or None,
            reference=None if kind == "zero" else study.reference,
        )
    except UserError:
        return ""
    zero = "" if effect.effect_of_zero is None else f" (with zero in its place {effect.effect_of_zero:+z.2f})"
    return (
        f"All that composition adds to the attention weights of layer {study.layer} is worth {effect.effect:+z.2f} of "
        f"the logit difference of {effect.metric_before:z.2f}{zero}, measured with it {ABLATIONS[kind].done}."
    )
