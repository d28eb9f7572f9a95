"""What pages say about scores in words: what they explain, which edge is the strongest, what an ablation did."""

from __future__ import annotations

from typing import Any

from dcinterp.support.errors import UserError
from workbench import analyses
from workbench.inputs import Question, is_quick, shown
from workbench.markdown import escape


def explained(scores: Any) -> str:
    """What scores explain: the logit difference between two tokens, or the logit of one."""
    target, foil = (f'"{escape(shown(token).strip())}"' for token in (scores.target, scores.foil))
    return f"the logit difference between {target} and {foil}" if scores.foil else f"the logit of {target}"


def change_by(effect: float, scores: Any) -> str:
    """What an ablation did, as the end of a sentence; `effect` is the value before minus the value after."""
    quantity = "logit difference" if scores.foil else "logit"
    verb = "increases" if round(effect, 2) < 0 else "reduces"
    return f"{verb} the {quantity} by {abs(effect):.2f}"


def with_its_mean(name: str, question: Question, unit: str, scores: Any) -> str:
    """The effect of the mean beside that of zero, as the end of a sentence; "" where there is none, or it takes long.

    Args:
        name: the model.
        question: what it was asked.
        unit: a head or an edge, as interventions name it.
        scores: of `question`, whose target and foil are the ones that count.
    """
    if not is_quick(name, question):
        return ""
    try:
        effect = analyses.run(
            "intervene",
            name,
            prompt=question.prompt,
            interventions=f"{unit} mean",
            target=scores.target,
            foil=scores.foil or None,
        )
    except UserError:  # a prompt without reference prompts
        return ""
    if effect.foil != scores.foil or effect.target != scores.target:
        return ""
    return f", and setting it to its mean over examples (`{effect.reference}`) {change_by(effect.effect, scores)}"


def emphasised(effect: Any) -> str:
    """The sentence of an intervention as Markdown, with its answers and numbers bold, whatever signs tokens have."""
    mark = "\0"
    return escape(effect.sentence(strong=mark)).replace(mark, "**")


def edge_label(edge: Any) -> str:
    """An edge as figures label it, with its branch."""
    return f"**L{edge.layer}H{edge.head_from} → L{edge.layer}H{edge.head_to}** through the {_branch(edge)}"


def describe_strongest_edge(edges: Any, edge: Any, mean: str = "") -> str:
    """The strongest edge in words, with what its ablation did where that was measured, and `mean` behind it."""
    shared, use = "attention", f"head {edge.head_to} uses it with its own values"
    if edges.stage == "pre":
        shared, use = "scores", f"the softmax of head {edge.head_to} uses them"
    if edge.head_from == edge.head_to:
        meaning = f"the {shared} of head {edge.head_from}, scaled and used by the head itself"
    else:
        meaning = f"head {edge.head_from} shares its {shared} with head {edge.head_to}; {use}"
    return (
        f"The strongest edge is {edge_label(edge)}: {meaning}. It contributes **{edge.score:+.2f}** to "
        f"{explained(edges)}{_ablated(edges, edge)}{mean}."
    )


def describe_strongest_edge_into(edges: Any, layer: int, head: int) -> str:
    """The strongest edge into a head in words; empty where there is none, or where it is the strongest of all."""
    into = edges.top(1, head_to=(layer, head)) if layer in edges.layers else []
    if not into or into == edges.top(1):
        return ""
    (edge,) = into
    return (
        f"The head with the largest direct effect on the answer is head {head} of layer {layer}. The strongest edge "
        f"into it is {edge_label(edge)}, which contributes {edge.score:+.2f}{_ablated(edges, edge)}."
    )


def _ablated(edges: Any, edge: Any) -> str:
    measured = dict(zip(edges.checked, edges.measured.tolist(), strict=True)).get(edge.intervention.unit)
    return f"; setting the edge to zero {change_by(measured, edges)}" if measured is not None else ""


def _branch(edge: Any) -> str:
    from dcinterp.figures.base.style import edge_branch_name

    return edge_branch_name(edge.branch, edge.head_from, edge.head_to)
