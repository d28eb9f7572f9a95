"""The answer to the story's question in a sentence or two: whose attention wrote this answer, and what it is worth."""

from __future__ import annotations

from dcinterp.analysis.attention.attention_rows import AttentionRows
from dcinterp.analysis.attribution.attribute_heads import HeadAttribution
from dcinterp.analysis.case_study.evidence import SharingEffects
from dcinterp.analysis.case_study.steps import (
    BRANCH_WORDS,
    NOTABLE_EFFECT,
    is_notable,
    is_unread,
    looks_most,
    shared_with,
    strongest_head_from,
)
from dcinterp.analysis.composition.compose_breakdown import ComposeBreakdown
from dcinterp.mechanism.branches import BRANCHES

SLIGHT_EFFECT = 0.02
"""Of the answer's lead; what costs less than that hardly matters."""


def summarize(
    attribution: HeadAttribution,
    rows: AttentionRows,
    breakdown: ComposeBreakdown | None,
    sharing: SharingEffects | None,
    head: int,
    key: int,
    *,
    best: bool,
) -> str:
    """Who lends attention to the head, how much, through what, and what the answer's lead is without that loan.

    Args:
        attribution: names the answer and its foil, and has their lead.
        rows, breakdown: the head's attention, and its composition at the last position and `key`.
        loans: what taking loans out does; None, as `breakdown`, where heads are not composed.
        head: the head of the rows' layer that is followed.
        key: the source.
        best: whether it is the head that writes most directly.
    """
    token = rows.tokens[key]
    wrong = "" if attribution.right else f'The model does not answer "{attribution.target}". '
    who = f"head {head} of layer {rows.layer}"
    who += ", which writes the answer most directly," if best else ", which was chosen,"
    if breakdown is None or sharing is None:
        weight = float(rows.weights[head, key])
        alone = f'{who} reads "{token}" with its own attention ({weight:.2f})'
        if is_unread(rows, head, key):
            return (
                f'{wrong}Heads are not composed in this model: {who} hardly attends to "{token}" ({weight:.2f}). '
                f"{looks_most(rows, head)}"
            )
        return f"{wrong}Heads are not composed in this model: {alone}."
    own, after = float(breakdown.o_b[head]), float(breakdown.out[head])
    if is_unread(rows, head, key):
        return (
            f'{wrong}No attention to "{token}" was lent: {who} hardly attends to it ({own:.2f} before composition, '
            f"{after:.2f} after). {looks_most(rows, head)}"
        )
    head_from, shared = strongest_head_from(breakdown, head), shared_with(breakdown, head)
    if not is_notable(shared[head_from], breakdown, head):
        return wrong + _without_sharing(breakdown, head, who, token)
    through = [
        f"{amount:+.2f} through the {BRANCH_WORDS[branch]}"
        for branch, side in ((BRANCHES[name].hook, BRANCHES[name].side) for name in ("qp", "kp"))
        if abs(amount := float(breakdown.shared(side)[head_from, head])) >= 0.005
    ]
    parts = ", ".join(through)
    if shared[head_from] > 0:
        said = f'Head {head_from} lends {who} {shared[head_from]:+.2f} of attention to "{token}" ({parts}). Without this loan'
    else:
        head_to = "the head that writes the answer most directly" if best else "the chosen head"
        said = (
            f'Head {head_from} takes {-shared[head_from]:.2f} of attention to "{token}" away from {head_to}, head {head} of '
            f"layer {rows.layer} ({parts}). Without this"
        )
    return f"{wrong}{said} {_worth(attribution, float(sharing.here[head_from]))}"


def _without_sharing(breakdown: ComposeBreakdown, head: int, who: str, token: str) -> str:
    """The sentence where no single head lends a notable part."""
    shared, head_from = shared_with(breakdown, head), strongest_head_from(breakdown, head)
    own, after = float(breakdown.o_b[head]), float(breakdown.out[head])
    others = sum(amount for head_from, amount in enumerate(shared) if head_from != head)
    gates = float(breakdown.o_qg[head] + breakdown.o_kg[head])
    parts = [f"{own:.2f} before composition"]
    parts += [f"gates {gates:+.2f}"] if is_notable(gates, breakdown, head) else []
    parts += [f"all other heads together {others:+.2f}"] if is_notable(others, breakdown, head) else []
    whose = "its own attention" if is_notable(own, breakdown, head) else "attention that many heads lend it a little of"
    return (
        f'No head lends {who} a notable part of its attention to "{token}" (most: head {head_from}, {shared[head_from]:+.3f}). '
        f"It reads with {whose}: {', '.join([*parts, f'{after:.2f} after'])}."
    )


def _worth(attribution: HeadAttribution, effect: float) -> str:
    """The end of a sentence: what taking the loan out does to the answer's lead, and how much of it that is."""
    logit_difference, without = attribution.metric, attribution.metric - effect
    names = f'"{attribution.target}" over "{attribution.foil}"'
    if logit_difference <= 0:
        return f"the lead of {names} goes from {logit_difference:.2f} to {without:.2f} logits."
    share, way = effect / logit_difference, f"from {logit_difference:.2f} to {without:.2f} logits"
    if share <= -SLIGHT_EFFECT:
        how = f"rises {way}: it works against the answer, by {-share:.0%} of the lead"
    elif share < SLIGHT_EFFECT:
        how = f"goes {way}: it hardly matters here"
    else:
        sizes = ((1, "all of it"), (0.5, "most of it"), (NOTABLE_EFFECT, "a notable part"), (0, "a small part"))
        how = f"falls {way}: {next(word for least, word in sizes if share >= least)} ({share:.0%})"
    return f"the lead of {names} {how}."
