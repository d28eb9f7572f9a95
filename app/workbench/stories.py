"""What the pages on one example start from: its story, and the heads between which most is lent.

The head scores of a story are computed once for a prompt, since every click needs them again.
"""

from __future__ import annotations

from typing import Any

from workbench import analyses, inputs
from workbench.inputs import Question


def attribution(name: str, asked: Question) -> Any:
    """Head scores of a question."""
    return told(name, asked, None, None, None).attribution


def writer(name: str, asked: Question, scores: Any) -> tuple[int, int, float] | None:
    """(layer, head, direct effect) of the head that writes most directly, if scores explain what the story does.

    None for a large model, too: nobody who looks at scores waits for a whole story besides.
    """
    if not analyses.small(name):
        return None
    story = told(name, asked, None, None, None)
    if (story.attribution.target, story.attribution.foil) != (scores.target, scores.foil):
        return None
    return story.layer, story.head, float(story.direct[story.layer, story.head])


def most_shared(breakdown: Any) -> tuple[int, int]:
    """(from, to) of the two heads between which most attention goes, by the choice of both tokens."""
    moved = (breakdown.shared("key") + breakdown.shared("query")).abs().fill_diagonal_(0)
    head_from, head_to = divmod(int(moved.argmax()), len(moved))
    return head_from, head_to


def sharing_side(breakdown: Any, head_from: int, head_to: int) -> str:
    """ "key" or "query": the token by whose choice one head lends most to another, whose weights tell how."""
    return max(("key", "query"), key=lambda side: abs(float(breakdown.shared(side)[head_from, head_to])))


def answer_words(scores: Any) -> str:
    """The answer that scores explain, and what it competes with."""
    target, foil = (f'"{inputs.shown(token).strip()}"' for token in (scores.target, scores.foil))
    return f"{target} against {foil}" if scores.foil else target


def edge_sentence(edges: Any, edge: Any) -> str:
    """The strongest edge in words, with what its ablation did where that was measured."""
    from dcinterp.mechanism.branches import BRANCHES

    what, use, count, cost = "attention", f"used with the values of head {edge.head_to}", "It counts", "it costs"
    if edges.stage == "pre":
        what, use, count, cost = "scores", f"lent to the softmax of head {edge.head_to}", "They count", "they cost"
    if edge.head_from == edge.head_to:
        use = "scaled and used again"
    said = (
        f"The strongest edge is in layer {edge.layer}: the {what} of head {edge.head_from}, {use}, through the "
        f"{BRANCHES[edge.branch].label}. "
        f"{count} for **{edge.score:+.2f}** logits of {answer_words(edges)}"
    )
    return f"{said}{_taken_out(edges, edge, cost)}."


def writer_sentence(edges: Any, wrote: tuple[int, int, float]) -> str:
    """The strongest edge into the head that writes the answer most directly, in words; empty where there is none."""
    from dcinterp.mechanism.branches import BRANCHES

    layer, head, _ = wrote
    into = edges.top(1, head_to=(layer, head)) if layer in edges.layers else []
    if not into or into == edges.top(1):
        return ""
    (edge,) = into
    return (
        f"Into head {head} of layer {layer}, which writes the answer most directly, the strongest comes from head "
        f"{edge.head_from}, through the {BRANCHES[edge.branch].label}: {edge.score:+.2f}{_taken_out(edges, edge)}."
    )


def _taken_out(edges: Any, edge: Any, cost: str = "it costs") -> str:
    measured = dict(zip(edges.checked, edges.measured.tolist(), strict=True)).get(edge.intervention.unit)
    return f"; taken out, {cost} {measured:+.2f}" if measured is not None else ""


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
    again = {"attribution": first.attribution, "direct": first.direct} if first is not None else {}
    return analyses.compute(wanted, "case_study", name, chosen, **again)
